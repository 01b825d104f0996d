//! Circuit breaker for rules: which rules fire for which batches. A rule that fails is isolated; one that is stopped
//! or too late skips its firings; notifications of an event beyond its limit are suspended. Every missed firing is
//! counted and listed, so it can be fired again.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tocsin_matching::{cut::CutBatch, rule::RuleNumber};
use tocsin_model::{
    event::EventBatch,
    id::{EventBatchId, EventId, Name},
    notification::{EventRun, Notifications},
    time::Timestamp,
};
use tocsin_store::journal::{FiringStatus, NewFiring, RuleStop};

use crate::compile::Compiled;

/// Actor recorded when the server stops a rule.
const SELF: &str = "tocsin";

/// Failures in a row left to each rule until it is stopped. Rules without a limit are missing.
pub(crate) type RuleFailureCounts = Arc<BTreeMap<RuleNumber, u32>>;

/// The stopped rules of all applications, by application and rule.
pub(crate) type Stops = BTreeMap<(Name, Name), RuleStop>;

/// Breaker state of the rules of one application.
#[derive(Debug, Default)]
pub(crate) struct RuleBreaker {
    /// Failed firings in a row.
    failures: BTreeMap<Name, u32>,
    /// Current run of skipped firings of each rule: its first batch and the reason.
    runs: BTreeMap<Name, (EventBatchId, String)>,
}

/// Missed firings of a quantum.
#[derive(Debug, Default)]
pub(crate) struct IsolatedRules {
    rules: BTreeMap<EventBatchId, Vec<RuleNumber>>,
    failed: BTreeSet<(EventBatchId, RuleNumber)>,
    /// Missed firings for the journal.
    pub firings: Vec<NewFiring>,
}

impl IsolatedRules {
    /// Rules that do not fire for a batch.
    pub fn of(&self, batch: EventBatchId) -> Vec<RuleNumber> {
        self.rules.get(&batch).cloned().unwrap_or_default()
    }

    /// Records a failure of a rule for a batch. Returns whether it is new.
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

impl RuleBreaker {
    /// Before a batch is matched: skips stopped rules, and all rules if the batch waited too long.
    pub fn before(
        &mut self,
        compiled: &Compiled,
        stops: &Stops,
        batch: &EventBatch,
        now: Timestamp,
        isolated: &mut IsolatedRules,
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
            isolated.rules.entry(batch.id).or_default().push(rule);
            let run = self.run_of(name, batch.id, &reason);
            isolated.firings.push(NewFiring {
                application: application.name.clone(),
                rule: name.clone(),
                batch: batch.id,
                status: FiringStatus::Skipped,
                reason,
                run: Some(run),
                at: now,
            });
        }
    }

    /// Failures left to each rule at the beginning of a quantum.
    pub fn failure_counts(&self, compiled: &Compiled) -> RuleFailureCounts {
        let failure_counts =
            compiled.application.rules.iter().filter(|(_, rule)| rule.stop_after > 0).filter_map(|(name, rule)| {
                let failures = self.failures.get(name).copied().unwrap_or(0);
                Some((compiled.rules.number(name.as_str())?, rule.stop_after.saturating_sub(failures).max(1)))
            });
        Arc::new(failure_counts.collect())
    }

    /// Skips a batch for a rule that failed too often in the batches before it.
    pub fn skip(
        &mut self,
        compiled: &Compiled,
        batch: EventBatchId,
        rule: RuleNumber,
        now: Timestamp,
        isolated: &mut IsolatedRules,
    ) {
        let rules = isolated.rules.entry(batch).or_default();
        if rules.contains(&rule) {
            return;
        }
        rules.push(rule);
        let name = compiled.rules.name(rule);
        let most = compiled.application.rules.get(name).map_or(0, |rule| rule.stop_after);
        let reason = format!("it is stopped: {}", failed_too_often(most));
        let run = self.run_of(name, batch, &reason);
        isolated.firings.push(NewFiring {
            application: compiled.application.name.clone(),
            rule: name.clone(),
            batch,
            status: FiringStatus::Skipped,
            reason,
            run: Some(run),
            at: now,
        });
    }

    /// First batch of the run of skipped firings that this batch continues.
    fn run_of(&mut self, rule: &Name, batch: EventBatchId, reason: &str) -> EventBatchId {
        let run = self.runs.entry(rule.clone()).or_insert_with(|| (batch, reason.to_owned()));
        if run.1 != reason {
            *run = (batch, reason.to_owned());
        }
        run.0
    }

    /// After a batch is matched: counts failures in a row. Returns the rules to stop.
    pub fn after(
        &mut self,
        compiled: &Compiled,
        batch: &EventBatch,
        isolated: &IsolatedRules,
        now: Timestamp,
        stops: &mut Vec<RuleStop>,
    ) {
        let application = &compiled.application;
        let absent = isolated.rules.get(&batch.id);
        for rule in compiled.rules.rules_on(&batch.class) {
            let name = compiled.rules.name(rule);
            if !isolated.failed.contains(&(batch.id, rule)) {
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
                    reason: failed_too_often(most),
                    since: now,
                });
            }
        }
    }
}

fn failed_too_often(most: u32) -> String {
    format!("it failed {most} times in a row")
}

/// Splits off the notifications of an event beyond its limit: an operator decides on them.
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

/// Splits notifications: the first `within` of each event, and the rest.
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
    fn notifications_beyond_the_limit_of_an_event_are_split_off() {
        let event = |ordinal| EventId { batch: EventBatchId(1), ordinal };
        let runs = [(event(0), 3), (event(1), 1)].map(|(event, count)| EventRun { event, count });
        let whole = Notifications {
            events: runs.to_vec(),
            subscriptions: (1..=4).map(SubscriptionId).collect(),
            captured: vec![("number".parse().expect("a name"), Column::Integers(vec![10, 20, 30, 40]))],
        };
        let cut = CutBatch {
            rule: RuleNumber(0),
            class: "alert".parse().expect("a name"),
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
}
