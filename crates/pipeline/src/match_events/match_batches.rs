//! Matches the batches of a quantum: failed rules are isolated and the other rules matched again, until a match is
//! complete.

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use bytes::Bytes;
use tocsin_matching::rule::RuleNumber;
use tocsin_model::{
    event::EventBatch,
    field::Fields,
    id::{EventBatchId, Name},
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    journal::{ClaimedEvents, Step},
};

use super::{
    make_batches::new_batches,
    matched::{Matched, Queried, Readable},
    report::{report_failures, report_filtered, report_suppressed},
};
use crate::{
    Flow, delays, keep_busy,
    rule_breaker::IsolatedRules,
    run_queries,
    shards::{Cut, RuleStateCommand},
    slow_firings::SlowFiring,
};

/// A quantum being matched.
struct MatchingQuantum {
    started_at: Timestamp,
    /// Batches to match, in order.
    readable: Vec<Readable>,
    /// Batches that are set aside, with the reason.
    failed: BTreeMap<EventBatchId, String>,
    /// Rules that do not fire for a batch, with the firings to list.
    isolation: IsolatedRules,
}

impl Matched {
    /// Matches batches in order and adds the results to the step. A batch that fails yields no notifications: its
    /// matches come again when it is matched again. A rule that fails too often is stopped within the quantum.
    pub(super) async fn match_batches(
        &mut self,
        flow: &Flow,
        name: &Name,
        batches: &[&ClaimedEvents],
        step: &mut Step,
    ) -> Result<(), StoreError> {
        let mut quantum = self.unpack(flow, batches).await?;
        let mut cut = self.match_until_complete(flow, name, &mut quantum).await?;
        report_failures(&self.compiled, &self.compiled.rules, &cut.failures);
        report_suppressed(&cut.suppressed);
        report_filtered(cut.filtered);
        let compiled = self.compiled.clone();
        let readable = quantum.readable.iter().map(|readable| (&readable.batch, &readable.rows[..]));
        let delayed = delays::take_delayed(&compiled, &compiled.rules, &mut cut.batches, readable);
        for Readable { batch, rows, .. } in &quantum.readable {
            step.cancelled.extend(delays::cancellations(&compiled, batch, rows));
        }
        let accepted_at = self.record_batches(quantum, name, batches, step);
        delays::within_limit(flow, &compiled, delayed, step).await?;
        self.report_incidents(name);
        step.states.extend(cut.states.into_iter().map(|page| (name.clone(), page)));
        // Rules may take seconds; a notification is made, and its time to live begins, when they end.
        let matched_at = flow.clock.now();
        step.batches
            .extend(keep_busy(|| new_batches(&compiled, &compiled.rules, cut.batches, accepted_at, matched_at)));
        Ok(())
    }

    /// Unpacks batches, and finds the rules that do not fire for them.
    async fn unpack(&mut self, flow: &Flow, batches: &[&ClaimedEvents]) -> Result<MatchingQuantum, StoreError> {
        let started_at = flow.clock.now();
        let mut failed: BTreeMap<EventBatchId, String> = BTreeMap::new();
        let mut fields = Vec::with_capacity(batches.len());
        for events in batches {
            match flow.versions.event_fields(&events.batch).await? {
                Ok(found) => fields.push((&events.batch, found)),
                Err(reason) => drop(failed.insert(events.batch.id, reason)),
            }
        }
        let (compiled, stops) = (self.compiled.clone(), flow.stops.lock().clone());
        let mut isolation = IsolatedRules::default();
        let failure_counts = self.breaker.failure_counts(&compiled);
        let breaker = &mut self.breaker;
        let unpack = |(batch, fields): (&EventBatch, Fields)| match compiled.rules.rows(batch, &fields) {
            Ok(rows) => {
                breaker.before(&compiled, &stops, batch, started_at, &mut isolation);
                let excluded_rules = isolation.of(batch.id);
                let batch = EventBatch { chronicled: Bytes::new(), ..batch.clone() };
                let rows = rows.into();
                let (again, entries, failure_counts) = (false, Vec::new(), failure_counts.clone());
                Some(Readable { batch, fields, rows, excluded_rules, again, entries, failure_counts })
            }
            Err(damaged) => {
                failed.insert(batch.id, damaged.to_string());
                None
            }
        };
        let readable: Vec<Readable> = keep_busy(|| fields.into_iter().filter_map(unpack).collect());
        Ok(MatchingQuantum { started_at, readable, failed, isolation })
    }

    /// Matches the batches, again without the rules that failed: a firing is complete or does not happen.
    async fn match_until_complete(
        &mut self,
        flow: &Flow,
        name: &Name,
        quantum: &mut MatchingQuantum,
    ) -> Result<Cut, StoreError> {
        loop {
            keep_busy(|| self.take_events(&mut quantum.readable, &mut quantum.failed));
            let (cut, queried) = self.cut(flow, name, &quantum.readable).await?;
            self.report = self.followed.with_queries(cut.report.clone());
            self.record_slow_rules(flow, &quantum.readable, &cut);
            self.isolate_queries(queried, quantum);
            if !self.isolate_rules(&cut, quantum) {
                return Ok(cut);
            }
            self.undo(quantum);
        }
    }

    /// Isolates the queries that failed. They produced no matches, so there is nothing to undo.
    fn isolate_queries(&mut self, Queried { failed, stopped }: Queried, quantum: &mut MatchingQuantum) {
        let MatchingQuantum { started_at, isolation, .. } = quantum;
        for (batch, rule, reason) in failed {
            isolation.fail(&self.compiled, batch, rule, reason, *started_at);
        }
        for (batch, rule) in stopped {
            self.breaker.skip(&self.compiled, batch, rule, *started_at, isolation);
        }
    }

    /// Isolates the rules that panicked, failed or were stopped on a shard. A batch whose panic belongs to no rule is
    /// set aside. Returns whether there were any, so that the cut must not be used.
    fn isolate_rules(&mut self, cut: &Cut, quantum: &mut MatchingQuantum) -> bool {
        let MatchingQuantum { started_at, failed, isolation, .. } = quantum;
        let mut is_incomplete = !cut.stopped.is_empty() || !cut.panicked.is_empty();
        // A rule may panic on several shards, but is isolated once.
        let mut isolated: BTreeSet<(EventBatchId, RuleNumber)> = BTreeSet::new();
        for (id, rule) in &cut.panicked {
            let mut isolate = |rule: RuleNumber| {
                let reason = "it made the matcher panic".to_owned();
                isolated.contains(&(*id, rule))
                    || isolation.fail(&self.compiled, *id, rule, reason, *started_at) && isolated.insert((*id, rule))
            };
            if !rule.is_some_and(&mut isolate) {
                failed.insert(*id, "matching it made the matcher panic".to_owned());
            }
        }
        for failure in cut.failures.iter().filter(|failure| failure.whole) {
            let reason = format!("{} (event {})", failure.error, failure.event);
            is_incomplete |= isolation.fail(&self.compiled, failure.event.batch, failure.rule, reason, *started_at);
        }
        // Shards that did not leave it out have matched it.
        for (batch, rule) in &cut.stopped {
            self.breaker.skip(&self.compiled, *batch, *rule, *started_at, isolation);
        }
        is_incomplete
    }

    /// Rolls rule state back, and leaves out the batches and rules that failed.
    fn undo(&mut self, quantum: &mut MatchingQuantum) {
        // If a shard is lost, the next cut finds out.
        let _ = keep_busy(|| self.followed.shards().apply_state_command(&RuleStateCommand::Undo));
        let MatchingQuantum { readable, failed, isolation, .. } = quantum;
        readable.retain(|readable| !failed.contains_key(&readable.batch.id));
        for readable in readable {
            readable.excluded_rules = isolation.of(readable.batch.id);
        }
    }

    /// Adds the batches to the step, as matched or set aside, with their chronicle values and missed firings. Returns
    /// when the oldest matched batch was accepted.
    fn record_batches(
        &mut self,
        quantum: MatchingQuantum,
        name: &Name,
        batches: &[&ClaimedEvents],
        step: &mut Step,
    ) -> Timestamp {
        let MatchingQuantum { started_at, readable, mut failed, isolation } = quantum;
        let mut oldest = started_at;
        for events in batches {
            match failed.remove(&events.batch.id) {
                Some(reason) => step.failed.push((events.claim, reason)),
                None => {
                    oldest = oldest.min(events.batch.accepted_at);
                    self.breaker.after(&self.compiled, &events.batch, &isolation, started_at, &mut step.stops);
                    step.matched.push(events.claim);
                }
            }
        }
        for Readable { batch, .. } in readable.iter().filter(|readable| !readable.batch.chronicled.is_empty()) {
            step.chronicled.push((batch.id, batch.chronicled.clone()));
        }
        let pages = self.chronicles.take_changes();
        step.states.extend(pages.into_iter().map(|page| (name.clone(), page)));
        // For a batch that is set aside nothing else is listed: all its rules fire when it is matched again.
        let matched: BTreeSet<EventBatchId> = step.matched.iter().map(|claim| claim.id).collect();
        step.firings.extend(isolation.firings.into_iter().filter(|firing| matched.contains(&firing.batch)));
        oldest
    }

    /// Processes the events of batches by the chronicles in order, or again after a failure. A batch that makes them
    /// panic is set aside.
    fn take_events(&mut self, readable: &mut Vec<Readable>, failed: &mut BTreeMap<EventBatchId, String>) {
        if !self.chronicles.has_chronicles() {
            return;
        }
        let chronicles = &mut self.chronicles;
        loop {
            chronicles.undo();
            chronicles.begin();
            let mut tables = self.followed.queries();
            let culprit = readable.iter_mut().position(|Readable { batch, rows, entries, .. }| {
                entries.clear();
                let take = || {
                    let packed = chronicles.take(&batch.class, Arc::make_mut(rows), batch.accepted_at);
                    // Before the first batch the tables are not read, so this is their initial state.
                    match tables.take() {
                        Some(tables) => {
                            chronicles.publish_tables(batch.accepted_at, &mut |change| {
                                run_queries::apply_chronicle_change(tables, &change)
                            });
                        }
                        None => chronicles.publish_tables(batch.accepted_at, &mut |change| entries.push(change)),
                    }
                    packed
                };
                let taken = catch_unwind(AssertUnwindSafe(take));
                taken.map(|packed| batch.chronicled = packed).is_err()
            });
            let Some(culprit) = culprit else { return };
            let reason = "its chronicles made the matcher panic".to_owned();
            failed.insert(readable.remove(culprit).batch.id, reason);
        }
    }

    /// Lists slow firings.
    fn record_slow_rules(&self, flow: &Flow, batches: &[Readable], cut: &Cut) {
        let least = flow.options.slow_rule();
        for ((id, rule), took) in cut.times.iter().filter(|(_, took)| **took >= least) {
            let Some(Readable { batch, .. }) = batches.iter().find(|readable| readable.batch.id == *id) else {
                continue;
            };
            let now = flow.clock.now();
            flow.slow_firings.add(SlowFiring::new(&self.compiled, &self.report, (batch, *rule), *took, now));
        }
    }

    /// Counts events that chronicles rejected and keys that they evicted.
    fn report_incidents(&mut self, application: &Name) {
        for ((class, chronicle), incidents) in self.chronicles.take_incidents() {
            metrics::counter!("tocsin_match_chronicle_evictions_total").increment(incidents.evicted);
            for (reason, count) in incidents.not_taken {
                metrics::counter!("tocsin_match_chronicle_skipped_total", "reason" => reason.name()).increment(count);
            }
            if let Some(error) = incidents.error {
                tracing::warn!(%application, %class, %chronicle, %error, "a chronicle could not take an event");
            }
        }
    }
}
