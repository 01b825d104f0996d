//! Which rules fire for which batches, and what becomes of firings that do not happen: a rule that fails is isolated,
//! one that is stopped or too late skips, and what an event makes too much is suspended. All of it is counted and listed, and
//! nothing is lost.

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

/// Who stops a rule that fails again and again.
const SELF: &str = "tocsin";

/// The failures in a row that each rule has left; with the last one it is stopped. Rules without a bound are missing.
pub(crate) type Strikes = Arc<BTreeMap<RuleNumber, u32>>;

/// The stopped rules of all applications, by application and rule.
pub(crate) type Stops = BTreeMap<(Name, Name), RuleStop>;

/// What is remembered of the rules of one application from batch to batch.
#[derive(Debug, Default)]
pub(crate) struct Guard {
    /// Failed firings in a row.
    failures: BTreeMap<Name, u32>,
    /// The unbroken run of skipped firings that a rule is in: its first batch and why.
    runs: BTreeMap<Name, (EventBatchId, String)>,
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
            let run = self.run_of(name, batch.id, &reason);
            left_out.firings.push(NewFiring {
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

    /// The failures that each rule has left at the beginning of a quantum.
    pub fn strikes(&self, compiled: &Compiled) -> Strikes {
        let strikes =
            compiled.application.rules.iter().filter(|(_, rule)| rule.stop_after > 0).filter_map(|(name, rule)| {
                let failures = self.failures.get(name).copied().unwrap_or(0);
                Some((compiled.rules.number(name.as_str())?, rule.stop_after.saturating_sub(failures).max(1)))
            });
        Arc::new(strikes.collect())
    }

    /// A rule was left out of a batch, since it has failed too often in the batches before it.
    pub fn skip(
        &mut self,
        compiled: &Compiled,
        batch: EventBatchId,
        rule: RuleNumber,
        now: Timestamp,
        left_out: &mut LeftOut,
    ) {
        let rules = left_out.rules.entry(batch).or_default();
        if rules.contains(&rule) {
            return;
        }
        rules.push(rule);
        let name = compiled.rules.name(rule);
        let most = compiled.application.rules.get(name).map_or(0, |rule| rule.stop_after);
        let reason = format!("it is stopped: {}", failed_too_often(most));
        let run = self.run_of(name, batch, &reason);
        left_out.firings.push(NewFiring {
            application: compiled.application.name.clone(),
            rule: name.clone(),
            batch,
            status: FiringStatus::Skipped,
            reason,
            run: Some(run),
            at: now,
        });
    }

    /// The first batch of the unbroken run of skipped firings that goes on with a batch.
    fn run_of(&mut self, rule: &Name, batch: EventBatchId, reason: &str) -> EventBatchId {
        let run = self.runs.entry(rule.clone()).or_insert_with(|| (batch, reason.to_owned()));
        if run.1 != reason {
            *run = (batch, reason.to_owned());
        }
        run.0
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
}
