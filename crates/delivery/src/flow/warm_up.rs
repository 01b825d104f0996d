//! Warm-up of a sender at a mailbox provider: most mails of a day, rising from day to day.

use tocsin_model::mail_provider::ProviderDay;

/// A day without a limit.
pub(crate) const UNLIMITED: u64 = u64::MAX;
/// After so many days without mail the warm-up begins again: providers forget a sender in about a month.
const FORGOTTEN_DAYS: u32 = 30;
/// The limit rises after a day that used at least this share of it, in percent.
const USED_PERCENT: u64 = 50;
/// The limit falls after a day on which the provider held back this share of the mails, in percent.
const HELD_BACK_PERCENT: u64 = 10;

/// Plan of the warm-up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct WarmUpPlan {
    /// Most mails of the first day.
    pub start: u64,
    /// Factor from day to day, above 1.
    pub growth: f64,
    /// The plan ends with a limit of so many mails.
    pub until: u64,
}

impl WarmUpPlan {
    /// Limit of `day` after the last day with mail.
    ///
    /// - After a day that used half of its limit or more, it rises by the factor.
    /// - After a day with less, it stays.
    /// - After a day on which a tenth of the mails or more were held back, it falls by the factor, not below the start.
    /// - After 30 days without mail it begins again.
    pub fn limit(&self, last: Option<&ProviderDay>, day: u32) -> u64 {
        let Some(last) = last.filter(|last| day.saturating_sub(last.day) <= FORGOTTEN_DAYS) else {
            return self.start;
        };
        if last.day >= day {
            return last.limit;
        }
        let tried = last.sent + last.held_back;
        if last.limit == UNLIMITED || last.limit >= self.until {
            return UNLIMITED;
        }
        let limit = if tried > 0 && last.held_back * 100 >= tried * HELD_BACK_PERCENT {
            ((last.limit as f64 / self.growth) as u64).max(self.start)
        } else if last.sent * 100 >= last.limit * USED_PERCENT {
            ((last.limit as f64 * self.growth).ceil() as u64).max(last.limit + 1)
        } else {
            last.limit
        };
        if limit >= self.until { UNLIMITED } else { limit }
    }
}

/// Mails to one provider today, and how many are left by the plan.
#[derive(Debug, Clone)]
pub(crate) struct DailyBudget {
    plan: WarmUpPlan,
    today: Option<ProviderDay>,
    /// Recipients under way.
    reserved: u64,
    /// Numbers that are not stored yet, all of the day of `today`.
    unsaved: (u64, u64),
}

impl DailyBudget {
    /// A budget after the last day with mail.
    pub fn new(plan: WarmUpPlan, last: Option<ProviderDay>) -> DailyBudget {
        DailyBudget { plan, today: last, reserved: 0, unsaved: (0, 0) }
    }

    /// Recipients that may still get mail on this day.
    pub fn left(&self, day: u32) -> u64 {
        let limit = self.plan.limit(self.today.as_ref(), day);
        let sent = self.today.as_ref().filter(|today| today.day == day).map_or(0, |today| today.sent);
        if limit == UNLIMITED { UNLIMITED } else { limit.saturating_sub(sent + self.reserved) }
    }

    /// Limit and sent mails of this day; `None` after the end of the plan.
    pub fn used(&self, day: u32) -> Option<(u64, u64)> {
        let limit = self.plan.limit(self.today.as_ref(), day);
        let sent = self.today.as_ref().filter(|today| today.day == day).map_or(0, |today| today.sent);
        (limit != UNLIMITED).then_some((sent, limit))
    }

    /// Reserves a recipient whose mail leaves now.
    pub fn reserve(&mut self) {
        self.reserved += 1;
    }

    /// Records the answers of reserved recipients: how many the provider, or the relay before it, accepted, and how
    /// many were held back. The others do not count. Returns the numbers of an earlier day that are to be stored.
    pub fn settle(&mut self, day: u32, answers: Answers) -> Option<ProviderDay> {
        self.reserved = self.reserved.saturating_sub(answers.taken);
        if answers.accepted + answers.held_back == 0 {
            return None;
        }
        let earlier = if self.today.as_ref().is_some_and(|today| today.day < day) { self.take_unsaved() } else { None };
        let limit = self.plan.limit(self.today.as_ref(), day);
        let today = match &mut self.today {
            // The clock may have gone back over midnight: the later day goes on.
            Some(today) if today.day >= day => today,
            today => today.insert(ProviderDay { day, limit, sent: 0, held_back: 0 }),
        };
        today.sent += answers.accepted;
        today.held_back += answers.held_back;
        self.unsaved.0 += answers.accepted;
        self.unsaved.1 += answers.held_back;
        earlier
    }

    /// The numbers that are not stored yet.
    pub fn take_unsaved(&mut self) -> Option<ProviderDay> {
        let (sent, held_back) = std::mem::take(&mut self.unsaved);
        let today = self.today.as_ref().filter(|_| sent + held_back > 0)?;
        Some(ProviderDay { day: today.day, limit: today.limit, sent, held_back })
    }

    /// Whether its current numbers are of this day.
    pub fn is_of(&self, day: u32) -> bool {
        self.today.as_ref().is_some_and(|today| today.day == day)
    }

    /// Takes numbers of the current day back that could not be stored.
    pub fn give_back(&mut self, unsaved: &ProviderDay) {
        self.unsaved.0 += unsaved.sent;
        self.unsaved.1 += unsaved.held_back;
    }
}

/// Answers to the recipients of one mail.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Answers {
    /// Recipients of the mail.
    pub taken: u64,
    pub accepted: u64,
    pub held_back: u64,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, prop_assert, proptest};

    use super::*;

    const PLAN: WarmUpPlan = WarmUpPlan { start: 200, growth: 1.5, until: 2_000 };

    /// The limits of days, each with the share of the limit that was sent, and of the mails that were held back, in
    /// percent; `None`: a day without mail.
    fn check(days: &[Option<(u64, u64)>], expected: &[u64]) {
        let (mut last, mut limits) = (None, Vec::new());
        for (day, used) in days.iter().enumerate() {
            let limit = PLAN.limit(last.as_ref(), day as u32);
            limits.push(limit);
            let Some((sent, held_back)) = used else { continue };
            let sent = limit.min(10_000) * sent / 100;
            last = Some(ProviderDay { day: day as u32, limit, sent, held_back: sent * held_back / 100 });
        }
        assert_eq!(limits, expected);
    }

    #[test]
    fn the_limit_rises_with_use_and_falls_after_resistance() {
        check(&[Some((100, 0)); 8], &[200, 300, 450, 675, 1_013, 1_520, UNLIMITED, UNLIMITED]);
        check(&[Some((100, 0)), Some((10, 0)), None, Some((60, 0)), Some((1, 0))], &[200, 300, 300, 300, 450]);
        check(&[Some((100, 0)), Some((100, 0)), Some((80, 30)), Some((80, 30)), None], &[200, 300, 450, 300, 200]);
    }

    #[test]
    fn a_month_without_mail_begins_the_plan_again() {
        let last = ProviderDay { day: 100, limit: UNLIMITED, sent: 5_000, held_back: 0 };
        assert_eq!((PLAN.limit(Some(&last), 130), PLAN.limit(Some(&last), 131)), (UNLIMITED, 200));
    }

    #[test]
    fn numbers_of_a_day_are_stored_under_their_day() {
        let mut budget = DailyBudget::new(PLAN, None);
        (0..3).for_each(|_| budget.reserve());
        assert_eq!(budget.left(7), 197);
        assert_eq!(budget.settle(7, Answers { taken: 2, accepted: 2, held_back: 0 }), None);
        assert_eq!((budget.left(7), budget.used(7)), (197, Some((2, 200))));
        // The last answer comes after midnight.
        let earlier = budget.settle(8, Answers { taken: 1, accepted: 1, held_back: 0 });
        assert_eq!(earlier, Some(ProviderDay { day: 7, limit: 200, sent: 2, held_back: 0 }));
        let later = budget.take_unsaved().expect("one mail");
        assert_eq!(later, ProviderDay { day: 8, limit: 200, sent: 1, held_back: 0 });
        assert_eq!(budget.take_unsaved(), None);
        budget.give_back(&later);
        assert_eq!(budget.take_unsaved(), Some(later));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// With any answers, crashes and restarts in any order, a day has at most its limit, and its limit does not
        /// change. A crash forgets only what was not stored.
        #[test]
        fn no_day_exceeds_its_limit(steps in proptest::collection::vec((0..6u8, 1..60u64), 1..400)) {
            let (mut stored, mut day): (Vec<ProviderDay>, u32) = (Vec::new(), 1);
            let mut budget = DailyBudget::new(PLAN, None);
            let (mut under_way, mut sent, mut limit, mut lost) = (0u64, 0u64, None, 0u64);
            let store = |stored: &mut Vec<ProviderDay>, new: ProviderDay| match stored.last_mut() {
                Some(row) if row.day == new.day => {
                    row.sent += new.sent;
                    row.held_back += new.held_back;
                }
                _ => stored.push(new),
            };
            for (step, count) in steps {
                match step {
                    0 | 1 => for _ in 0..count.min(budget.left(day)) {
                        budget.reserve();
                        under_way += 1;
                    },
                    2 | 3 => {
                        let taken = count.min(under_way);
                        under_way -= taken;
                        let held_back = if step == 3 { taken / 4 } else { 0 };
                        let answers = Answers { taken, accepted: taken - held_back, held_back };
                        sent += answers.accepted;
                        if let Some(earlier) = budget.settle(day, answers) {
                            store(&mut stored, earlier);
                        }
                    }
                    4 => if let Some(row) = budget.take_unsaved() {
                        store(&mut stored, row);
                    },
                    _ if count > 50 && under_way == 0 => {
                        if let Some(row) = budget.take_unsaved() {
                            store(&mut stored, row);
                        }
                        (day, sent, limit, lost) = (day + 1, 0, None, 0);
                    }
                    _ => {
                        lost += budget.take_unsaved().map_or(0, |row| row.sent);
                        budget = DailyBudget::new(PLAN, stored.last().cloned());
                        under_way = 0;
                    }
                }
                let now = PLAN.limit(stored.iter().rfind(|row| row.day < day), day);
                prop_assert!(limit.is_none_or(|limit| limit == now), "the limit changed within a day");
                limit = Some(now);
                prop_assert!(now == UNLIMITED || sent <= now + lost, "{sent} sent, {now} allowed, {lost} lost");
            }
        }
    }
}
