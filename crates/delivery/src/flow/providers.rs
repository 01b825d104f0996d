//! Pace and warm-up of all mailbox providers of a channel.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use tocsin_model::{mail_provider::ProviderDay, time::Timestamp};
use tokio::time::Instant;

use super::{
    provider_pace::{PaceLimits, ProviderPace},
    warm_up::{Answers, DailyBudget, WarmUpPlan},
};

const DAY: Duration = Duration::from_secs(86_400);
/// Interval at which a lane looks again whether the stored numbers are read.
const UNREAD_WAIT: Duration = Duration::from_secs(1);
/// Due times of held messages are rounded up to this, so that they are few rows in the journal.
const SLOT: Duration = Duration::from_secs(30);
/// Most time that a message is held by its place behind others; it is examined again then, as the rate may rise.
const BOOKED_MAX: Duration = Duration::from_secs(900);
/// Longest time that a message is held by the limit of a day: an operator may raise it.
const WARM_UP_WAIT_MAX: Duration = Duration::from_secs(3_600);

/// Name of all providers that have none of their own, in metrics and in the warm-up.
pub(crate) const OTHER: &str = "other";

/// Settings of the providers of a channel.
#[derive(Debug, Clone)]
pub(crate) struct ProviderSettings {
    /// Providers with a name of their own: keys of lanes that are known or configured.
    pub named: Vec<Arc<str>>,
    /// Limits of a provider; the key [`OTHER`] is for those without.
    pub limits: BTreeMap<Arc<str>, PaceLimits>,
    /// Limits of all others.
    pub limits_default: PaceLimits,
    /// Warm-up by provider; `None`: none.
    pub plans: BTreeMap<Arc<str>, Option<WarmUpPlan>>,
    /// Warm-up of all others.
    pub plan_default: Option<WarmUpPlan>,
}

impl ProviderSettings {
    /// The name of a provider in metrics, and the key of its warm-up. The number of names is bounded.
    pub fn label(&self, key: &str) -> Arc<str> {
        self.named.iter().find(|named| ***named == *key).cloned().unwrap_or_else(|| OTHER.into())
    }

    fn limits(&self, key: &str, label: &str) -> PaceLimits {
        self.limits.get(key).or_else(|| self.limits.get(label)).copied().unwrap_or(self.limits_default)
    }

    fn plan(&self, label: &str) -> Option<WarmUpPlan> {
        self.plans.get(label).copied().unwrap_or(self.plan_default)
    }
}

/// Pace and warm-up of the providers of a channel. Time is an argument; the date comes with
/// [`set_date`](Providers::set_date).
#[derive(Debug, Clone)]
pub(crate) struct Providers {
    settings: Arc<ProviderSettings>,
    /// By label. Providers without a plan have none.
    budgets: HashMap<Arc<str>, DailyBudget>,
    /// Whether the stored numbers were read.
    is_read: bool,
    /// A moment on both clocks.
    date: (Instant, Timestamp),
    /// Numbers of earlier days that are to be stored.
    unsaved: Vec<(Arc<str>, ProviderDay)>,
    /// Answers since they were last taken, for metrics.
    counts: BTreeMap<Arc<str>, Answers>,
}

/// A provider's part of a lane.
#[derive(Debug, Clone)]
pub(crate) struct LaneProvider {
    pub pace: ProviderPace,
    pub label: Arc<str>,
    /// When the provider was first seen; the slots of held messages begin here.
    since: Instant,
    /// Due time of the last held message.
    booked: Option<Instant>,
}

impl LaneProvider {
    /// The time after which a held message is due: behind those that were held before it, at the pace of the
    /// provider. `wait` is the time until the first of them may leave.
    pub fn book(&mut self, wait: Duration, now: Instant) -> Duration {
        let first = now + wait;
        let Some(each) = self.pace.interval() else { return wait };
        let at = self.booked.map_or(first, |booked| booked.max(first));
        if at > now + wait.max(BOOKED_MAX) {
            return wait.max(BOOKED_MAX);
        }
        self.booked = Some(at + each);
        let slots = (at - self.since).as_nanos().div_ceil(SLOT.as_nanos());
        self.since + SLOT * u32::try_from(slots).unwrap_or(u32::MAX) - now
    }
}

impl Providers {
    /// Without stored numbers nothing leaves that has a warm-up, until [`read`](Providers::read).
    pub fn new(settings: Arc<ProviderSettings>, now: Instant, date: Timestamp) -> Providers {
        let is_read = settings.plan_default.is_none() && settings.plans.values().all(Option::is_none);
        Providers {
            settings,
            budgets: HashMap::new(),
            is_read,
            date: (now, date),
            unsaved: Vec::new(),
            counts: BTreeMap::new(),
        }
    }

    /// Sets the date: the wall clock can be changed, and does not stop while the machine sleeps.
    pub fn set_date(&mut self, now: Instant, date: Timestamp) {
        self.date = (now, date);
    }

    /// Whether the numbers must be read from the store first.
    pub fn is_unread(&self) -> bool {
        !self.is_read
    }

    /// Begins with stored numbers: the last day of each provider.
    pub fn read(&mut self, last: impl IntoIterator<Item = (Box<str>, ProviderDay)>) {
        self.is_read = true;
        for (label, day) in last {
            if let Some(plan) = self.settings.plan(&label) {
                self.budgets.insert(Arc::from(label), DailyBudget::new(plan, Some(day)));
            }
        }
    }

    /// The provider of a new lane.
    pub fn lane(&self, key: &str, now: Instant) -> LaneProvider {
        let label = self.settings.label(key);
        let pace = ProviderPace::new(self.settings.limits(key, &label));
        LaneProvider { pace, label, since: now, booked: None }
    }

    fn time(&self, now: Instant) -> Timestamp {
        let (instant, date) = self.date;
        date + now.saturating_duration_since(instant)
    }

    fn day(&self, now: Instant) -> u32 {
        u32::try_from(self.time(now).0.div_euclid(DAY.as_micros() as i64)).unwrap_or(0)
    }

    /// The begin of the next day.
    fn midnight(&self, now: Instant) -> Instant {
        let into_day = self.time(now).0.rem_euclid(DAY.as_micros() as i64);
        now + DAY.saturating_sub(Duration::from_micros(into_day as u64))
    }

    fn budget(&mut self, label: &Arc<str>) -> Option<&mut DailyBudget> {
        let plan = self.settings.plan(label)?;
        Some(self.budgets.entry(label.clone()).or_insert_with(|| DailyBudget::new(plan, None)))
    }

    /// Recipients that may still get mail today.
    fn left(&self, label: &str, now: Instant) -> u64 {
        let Some(plan) = self.settings.plan(label) else { return u64::MAX };
        let day = self.day(now);
        self.budgets.get(label).map_or_else(|| plan.limit(None, day), |budget| budget.left(day))
    }

    /// When the next mail may leave by the warm-up; `None` for now.
    pub fn wait(&self, label: &str, now: Instant) -> Option<Instant> {
        self.settings.plan(label)?;
        if !self.is_read {
            return Some(now + UNREAD_WAIT);
        }
        (self.left(label, now) == 0).then(|| self.midnight(now))
    }

    /// Time for which a message is held by the warm-up before it is formatted.
    pub fn hold(&self, label: &str, now: Instant) -> Option<Duration> {
        Some((self.wait(label, now)? - now).min(WARM_UP_WAIT_MAX))
    }

    /// Most recipients of one mail.
    pub fn recipients_max(&self, label: &str, now: Instant) -> usize {
        usize::try_from(self.left(label, now)).unwrap_or(usize::MAX)
    }

    /// Reserves a recipient whose mail leaves now.
    pub fn reserve(&mut self, label: &Arc<str>) {
        if let Some(budget) = self.budget(label) {
            budget.reserve();
        }
    }

    /// Records the answers of a mail.
    pub fn settle(&mut self, label: &Arc<str>, answers: Answers, now: Instant) {
        let day = self.day(now);
        let counts = self.counts.entry(label.clone()).or_default();
        counts.accepted += answers.accepted;
        counts.held_back += answers.held_back;
        if let Some(earlier) = self.budget(label).and_then(|budget| budget.settle(day, answers)) {
            self.unsaved.push((label.clone(), earlier));
        }
    }

    /// Text about a limit of the day that is reached.
    pub fn warm_up_reached(&self, label: &str, now: Instant) -> Option<String> {
        let (sent, limit) = self.budgets.get(label)?.used(self.day(now))?;
        (self.left(label, now) == 0).then(|| format!("{sent} of {limit} mails of today are sent by the warm-up"))
    }

    /// Answers by label since the last call.
    pub fn take_counts(&mut self) -> BTreeMap<Arc<str>, Answers> {
        std::mem::take(&mut self.counts)
    }

    /// The numbers that are not stored yet.
    pub fn take_unsaved(&mut self) -> Vec<(Arc<str>, ProviderDay)> {
        let mut unsaved = std::mem::take(&mut self.unsaved);
        unsaved.extend(
            self.budgets.iter_mut().filter_map(|(label, budget)| Some((label.clone(), budget.take_unsaved()?))),
        );
        unsaved
    }

    /// Takes numbers back that could not be stored.
    pub fn give_back(&mut self, unsaved: Vec<(Arc<str>, ProviderDay)>) {
        for (label, row) in unsaved {
            match self.budgets.get_mut(&label) {
                Some(budget) if budget.is_of(row.day) => budget.give_back(&row),
                _ => self.unsaved.push((label, row)),
            }
        }
    }
}
