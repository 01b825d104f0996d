//! Which rules fire for which batches, and what becomes of firings that do not happen: a rule that fails is isolated,
//! one that is stopped or too late skips, and an application that makes too much waits or is suspended. All of it is
//! counted and listed, and nothing is lost.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tocsin_matching::{cut::CutBatch, rule::RuleNumber};
use tocsin_model::{
    application::Throttle,
    event::EventBatch,
    id::{EventBatchId, EventId, Name},
    notification::{EventRun, Notifications},
    time::Timestamp,
};
use tocsin_store::journal::{FiringStatus, NewFiring, RuleStop};

use crate::compile::Compiled;

/// Who stops a rule that fails again and again.
const SELF: &str = "tocsin";

/// The stopped rules of all applications, by application and rule.
pub(crate) type Stops = BTreeMap<(Name, Name), RuleStop>;

/// What is remembered of the rules of one application from batch to batch.
#[derive(Debug, Default)]
pub(crate) struct Guard {
    /// Failed firings in a row.
    failures: BTreeMap<Name, u32>,
    /// The unbroken run of skipped firings that a rule is in: its first batch and why.
    runs: BTreeMap<Name, (EventBatchId, String)>,
    bucket: Option<Bucket>,
    /// Notifications of one event batch: the average of the last quantum, or half of what it was before if that is more.
    /// `None`: nothing was matched under a throttle yet.
    per_batch: Option<f64>,
}

/// Firings that do not happen, while a quantum is matched.
#[derive(Debug, Default)]
pub(crate) struct LeftOut {
    rules: BTreeMap<EventBatchId, Vec<RuleNumber>>,
    failed: BTreeSet<(EventBatchId, RuleNumber)>,
    /// For the journal.
    pub firings: Vec<NewFiring>,
}

impl LeftOut {
    /// The rules that do not fire for a batch.
    pub fn of(&self, batch: EventBatchId) -> Vec<RuleNumber> {
        self.rules.get(&batch).cloned().unwrap_or_default()
    }

    /// A rule failed for a batch. Gives whether that is news.
    pub fn fail(
        &mut self,
        compiled: &Compiled,
        batch: EventBatchId,
        rule: RuleNumber,
        reason: String,
        now: Timestamp,
    ) -> bool {
        let rules = self.rules.entry(batch).or_default();
        if rules.contains(&rule) {
            return false;
        }
        rules.push(rule);
        self.failed.insert((batch, rule));
        let (application, rule) = (compiled.application.name.clone(), compiled.rules.name(rule).clone());
        tracing::error!(%application, %rule, %batch, reason, "a rule failed for an event batch and was left out of it");
        self.firings.push(NewFiring {
            application,
            rule,
            batch,
            status: FiringStatus::Failed,
            reason,
            run: None,
            at: now,
        });
        true
    }
}

impl Guard {
    /// What is known before a batch is matched: rules that are stopped, and all of them if it waited too long.
    pub fn before(
        &mut self,
        compiled: &Compiled,
        stops: &Stops,
        batch: &EventBatch,
        now: Timestamp,
        left_out: &mut LeftOut,
    ) {
        let application = &compiled.application;
        let age = now.since(batch.accepted_at);
        let too_old = application.limits.skip_older_than.filter(|limit| age > *limit);
        for rule in compiled.rules.rules_on(&batch.class) {
            let name = compiled.rules.name(rule);
            let stop = stops.get(&(application.name.clone(), name.clone()));
            let reason = match (stop, too_old) {
                (Some(stop), _) => format!("it is stopped: {}", stop.reason),
                (None, Some(limit)) => format!("the events waited longer than {limit:?}"),
                (None, None) => {
                    self.runs.remove(name);
                    continue;
                }
            };
            left_out.rules.entry(batch.id).or_default().push(rule);
            let run = self.runs.entry(name.clone()).or_insert_with(|| (batch.id, reason.clone()));
            if run.1 != reason {
                *run = (batch.id, reason.clone());
            }
            left_out.firings.push(NewFiring {
                application: application.name.clone(),
                rule: name.clone(),
                batch: batch.id,
                status: FiringStatus::Skipped,
                reason,
                run: Some(run.0),
                at: now,
            });
        }
    }

    /// Counts failures in a row, now that a batch is matched. Gives the rules to stop.
    pub fn after(
        &mut self,
        compiled: &Compiled,
        batch: &EventBatch,
        left_out: &LeftOut,
        now: Timestamp,
        stops: &mut Vec<RuleStop>,
    ) {
        let application = &compiled.application;
        let absent = left_out.rules.get(&batch.id);
        for rule in compiled.rules.rules_on(&batch.class) {
            let name = compiled.rules.name(rule);
            if !left_out.failed.contains(&(batch.id, rule)) {
                if absent.is_none_or(|absent| !absent.contains(&rule)) {
                    self.failures.remove(name);
                }
                continue;
            }
            let failures = self.failures.entry(name.clone()).or_default();
            *failures += 1;
            let most = application.rules.get(name).map_or(0, |rule| rule.stop_after);
            if most > 0 && *failures >= most {
                self.failures.remove(name);
                stops.push(RuleStop {
                    application: application.name.clone(),
                    rule: name.clone(),
                    by: SELF.to_owned(),
                    reason: format!("it failed {most} times in a row"),
                    since: now,
                });
            }
        }
    }

    /// Notes how many notifications so many event batches made.
    pub fn spend(&mut self, throttle: Option<Throttle>, notifications: u64, batches: usize, now: Timestamp) {
        let Some(throttle) = throttle else {
            (self.bucket, self.per_batch) = (None, None);
            return;
        };
        let bucket = self.bucket.get_or_insert_with(|| Bucket::full(throttle, now));
        bucket.fill(throttle, now);
        bucket.left -= notifications as f64;
        let average = notifications as f64 / batches.max(1) as f64;
        self.per_batch = Some(average.max(self.per_batch.unwrap_or_default() / 2.0));
    }

    /// The number of event batches of the application that one quantum may match; `None`: any number. Under a throttle these are as
    /// many as the rate is likely to allow by what batches made lately, and at least one, since a batch is matched whole.
    pub fn batches_max(&mut self, throttle: Option<Throttle>, now: Timestamp) -> Option<usize> {
        let throttle = throttle?;
        let left = match &mut self.bucket {
            Some(bucket) => {
                bucket.fill(throttle, now);
                bucket.left
            }
            None => throttle.notifications as f64,
        };
        // Before anything was matched a batch may make any number.
        let per_batch = self.per_batch.map_or(f64::INFINITY, |made| made.max(0.01));
        Some(((left / per_batch) as usize).max(1))
    }

    /// How long it takes until the application may be matched again; `None` if it may.
    pub fn wait(&mut self, throttle: Option<Throttle>, now: Timestamp) -> Option<Duration> {
        let (throttle, bucket) = (throttle?, self.bucket.as_mut()?);
        bucket.fill(throttle, now);
        (bucket.left < 0.0).then(|| {
            let share = -bucket.left / throttle.notifications.max(1) as f64;
            throttle.per.mul_f64(share.min(1e6)) + Duration::from_millis(1)
        })
    }
}

/// A token bucket that may go into debt: a batch is matched whole, and what it made too much is waited for.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    left: f64,
    at: Timestamp,
}

impl Bucket {
    fn full(throttle: Throttle, now: Timestamp) -> Bucket {
        Bucket { left: throttle.notifications as f64, at: now }
    }

    fn fill(&mut self, throttle: Throttle, now: Timestamp) {
        let most = throttle.notifications as f64;
        let share = now.since(self.at).as_secs_f64() / throttle.per.as_secs_f64().max(1e-6);
        self.left = (self.left + most * share).min(most);
        self.at = self.at.max(now);
    }
}

/// Parts what was cut where an event has more notifications than it may: the rest is for an operator to decide on.
pub(crate) fn cap(cut: Vec<CutBatch>, most: u64) -> Vec<(CutBatch, Option<String>)> {
    let total: u64 = cut.iter().map(|cut| cut.notifications.count() as u64).sum();
    if total <= most {
        return cut.into_iter().map(|cut| (cut, None)).collect();
    }
    let mut made: BTreeMap<EventId, u64> = BTreeMap::new();
    let mut capped = Vec::with_capacity(cut.len());
    for cut in cut {
        let mut within = Vec::with_capacity(cut.notifications.events.len());
        for run in &cut.notifications.events {
            let made = made.entry(run.event).or_default();
            within.push(u64::from(run.count).min(most.saturating_sub(*made)) as u32);
            *made += u64::from(run.count);
        }
        let reason = || format!("the event has more than {most} notifications");
        let is_whole = cut.notifications.events.iter().zip(&within).all(|(run, within)| run.count == *within);
        if is_whole {
            capped.push((cut, None));
        } else if within.iter().all(|within| *within == 0) {
            capped.push((cut, Some(reason())));
        } else {
            let (kept, beyond) = part(&cut.notifications, &within);
            capped.push((CutBatch { notifications: kept, ..cut.clone() }, None));
            capped.push((CutBatch { notifications: beyond, ..cut }, Some(reason())));
        }
    }
    capped
}

/// The first so many of each run of an event, and the others.
fn part(notifications: &Notifications, within: &[u32]) -> (Notifications, Notifications) {
    let (mut kept, mut beyond) = (Notifications::default(), Notifications::default());
    let mut at = 0;
    for (run, within) in notifications.events.iter().zip(within) {
        let (middle, end) = (at + *within as usize, at + run.count as usize);
        for (to, range) in [(&mut kept, at..middle), (&mut beyond, middle..end)] {
            if range.is_empty() {
                continue;
            }
            to.events.push(EventRun { event: run.event, count: range.len() as u32 });
            to.subscriptions.extend_from_slice(&notifications.subscriptions[range.clone()]);
            for (column, (name, values)) in notifications.captured.iter().enumerate() {
                match to.captured.get_mut(column) {
                    Some((_, to)) => to.append(values, range.clone()),
                    None => {
                        let mut first = values.clone();
                        first.clear();
                        first.append(values, range.clone());
                        to.captured.push((name.clone(), first));
                    }
                }
            }
        }
        at = end;
    }
    (kept, beyond)
}

#[cfg(test)]
mod tests {
    use tocsin_model::{id::SubscriptionId, notification::Column};

    use super::*;

    #[test]
    fn what_an_event_has_too_much_is_parted_off() {
        let event = |ordinal| EventId { batch: EventBatchId(1), ordinal };
        let runs = [(event(0), 3), (event(1), 1)].map(|(event, count)| EventRun { event, count });
        let whole = Notifications {
            events: runs.to_vec(),
            subscriptions: (1..=4).map(SubscriptionId).collect(),
            captured: vec![("number".parse().expect("a name"), Column::Integers(vec![10, 20, 30, 40]))],
        };
        let cut = CutBatch {
            rule: RuleNumber(0),
            class: "told".parse().expect("a name"),
            channel: None,
            notifications: whole.clone(),
            subscribers: Vec::new(),
        };
        let capped = cap(vec![cut.clone(), cut.clone()], 2);
        let counts: Vec<(usize, bool)> =
            capped.iter().map(|(cut, reason)| (cut.notifications.count(), reason.is_some())).collect();
        assert_eq!(counts, [(3, false), (1, true), (1, false), (3, true)]);
        let ids = |at: usize| capped[at].0.notifications.subscriptions.iter().map(|id| id.0).collect::<Vec<_>>();
        assert_eq!([ids(0), ids(1), ids(2), ids(3)], [vec![1, 2, 4], vec![3], vec![4], vec![1, 2, 3]]);
        assert_eq!(capped[0].0.notifications.captured[0].1, Column::Integers(vec![10, 20, 40]));
        assert_eq!(cap(vec![cut.clone()], 4), [(cut, None)]);
    }

    #[test]
    fn b13_a_quantum_takes_as_many_batches_as_the_rate_allows() {
        let throttle = Some(Throttle { notifications: 5, per: Duration::from_secs(2) });
        let mut guard = Guard::default();
        let at = |seconds: i64| Timestamp(seconds * 1_000_000);
        assert_eq!(guard.batches_max(None, at(0)), None);
        assert_eq!(guard.batches_max(throttle, at(0)), Some(1), "what a batch makes is not known yet");
        guard.spend(throttle, 1, 1, at(0));
        assert_eq!(guard.batches_max(throttle, at(0)), Some(4), "4 of 5 are left, and a batch makes 1");
        guard.spend(throttle, 4, 4, at(0));
        assert_eq!(guard.batches_max(throttle, at(0)), Some(1), "nothing is left: at least one, once it may go on");
        guard.spend(throttle, 3, 1, at(2));
        assert_eq!(guard.batches_max(throttle, at(4)), Some(1), "a batch made 3");
        guard.spend(throttle, 0, 10, at(100));
        assert_eq!(guard.batches_max(throttle, at(100)), Some(3), "the average falls by half at most");
    }

    #[test]
    fn an_application_in_debt_waits_until_it_is_paid() {
        let throttle = Some(Throttle { notifications: 100, per: Duration::from_secs(10) });
        let mut guard = Guard::default();
        let at = |seconds: i64| Timestamp(seconds * 1_000_000);
        assert_eq!(guard.wait(throttle, at(0)), None);
        guard.spend(throttle, 80, 1, at(0));
        assert_eq!(guard.wait(throttle, at(0)), None, "80 of 100 are made");
        guard.spend(throttle, 70, 1, at(0));
        assert_eq!(guard.wait(throttle, at(0)), Some(Duration::from_millis(5_001)), "50 too many take 5 s");
        assert_eq!(guard.wait(throttle, at(4)), Some(Duration::from_millis(1_001)));
        assert_eq!(guard.wait(throttle, at(5)), None);
        guard.spend(throttle, 100, 1, at(1_000));
        assert_eq!(guard.wait(throttle, at(1_000)), None, "no more than 100 are saved up");
        guard.spend(throttle, 1, 1, at(1_000));
        assert!(guard.wait(throttle, at(1_000)).is_some());
        guard.spend(None, 1, 1, at(1_000));
        assert_eq!(guard.wait(throttle, at(1_000)), None, "without a throttle it is forgotten");
    }
}
