//! Fires a rule again for batches for which it did not fire.

use std::sync::Arc;

use tocsin_matching::{chronicle::tables::EntryChange, rule::RuleNumber};
use tocsin_model::{id::EventBatchId, time::Timestamp};
use tocsin_store::journal::{Firing, RefiredBatch, Step};

use super::{
    lifecycle_rules::run_lifecycle,
    make_batches::{channels_of, new_batches},
    matched::{Matched, Readable},
    report::report_suppressed,
};
use crate::{Flow, RefireError, delays, keep_busy, rule_breaker::RuleFailureCounts, shards::RuleStateCommand};

impl Matched {
    /// Fires a rule for the batches of a listed firing, with the current subscriptions.
    pub(super) async fn refire(&mut self, flow: &Arc<Flow>, firing: &Firing) -> Result<u64, RefireError> {
        let compiled = self.compiled.clone();
        let rules = &compiled.rules;
        let now = flow.clock.now();
        let number = rules.number(firing.rule.as_str());
        let on = number.map(|number| rules.event_class(number).clone());
        let others = |number: RuleNumber| -> Vec<RuleNumber> {
            let on = rules.rules_on(rules.event_class(number));
            on.into_iter().filter(|other| *other != number).collect()
        };
        let mut done = 0;
        self.load_rule_state(flow, &firing.application, None).await?;
        for id in firing.first.0..=firing.last.0 {
            let refired = RefiredBatch { id: firing.id, batch: EventBatchId(id) };
            let mut step = Step { refired: vec![refired], ..Step::default() };
            let is_last = id == firing.last.0;
            let found = flow.event_log.event_batch(EventBatchId(id)).await?;
            // Batches removed by retention, or of a removed rule, cannot be fired any more.
            let batch = found.map(|(batch, _)| batch);
            let batch =
                batch.filter(|batch| batch.application == firing.application && Some(&batch.class) == on.as_ref());
            match (batch, number) {
                (Some(batch), Some(number)) => {
                    if compiled.is_lifecycle(&firing.rule) {
                        run_lifecycle(flow, &compiled, &batch, Some(&firing.rule), &mut step).await?;
                        if let Some(missed) = step.firings.pop() {
                            return Err(RefireError::Failed { batch: batch.id, reason: missed.reason });
                        }
                        done += 1;
                        let channels = channels_of(&step);
                        flow.work_queue.commit(step).await?;
                        flow.serve(channels);
                        flow.delays_started.notify_one();
                        continue;
                    }
                    let Ok(fields) = flow.versions.event_fields(&batch).await? else { continue };
                    let Ok(rows) = rules.rows(&batch, &fields) else { continue };
                    let mut batch = batch;
                    // At the current subscriptions.
                    batch.snapshot_sequence = Some(self.followed.place());
                    let readable = Readable {
                        batch: batch.clone(),
                        fields,
                        rows: rows.into(),
                        excluded_rules: others(number),
                        again: true,
                        entries: self.missing_entries(batch.accepted_at),
                        failure_counts: RuleFailureCounts::default(),
                    };
                    let readable = [readable];
                    let (mut cut, queries) = self.cut(flow, &firing.application, &readable).await?;
                    // Unless it is committed, the rule state it made is invalid.
                    self.remembers = false;
                    if let Some((batch, _, reason)) = queries.failed.into_iter().next() {
                        return Err(RefireError::Failed { batch, reason });
                    }
                    if let Some(failure) = cut.failures.iter().find(|failure| failure.whole) {
                        let reason = format!("{} (event {})", failure.error, failure.event);
                        return Err(RefireError::Failed { batch: batch.id, reason });
                    }
                    if !cut.panicked.is_empty() {
                        let reason = "it made the matcher panic".to_owned();
                        return Err(RefireError::Failed { batch: batch.id, reason });
                    }
                    let rows = readable.iter().map(|readable| (&readable.batch, &readable.rows[..]));
                    let delayed = delays::take_delayed(&compiled, &compiled.rules, &mut cut.batches, rows);
                    delays::within_limit(flow, &compiled, delayed, &mut step).await?;
                    if let Some(missed) = step.firings.pop() {
                        return Err(RefireError::Failed { batch: batch.id, reason: missed.reason });
                    }
                    step.batches = new_batches(&compiled, &compiled.rules, cut.batches, batch.accepted_at, now);
                    report_suppressed(&cut.suppressed);
                    step.states = cut.states.into_iter().map(|page| (firing.application.clone(), page)).collect();
                    done += 1;
                }
                _ if !is_last => continue,
                _ => {}
            }
            let channels = channels_of(&step);
            flow.work_queue.commit(step).await?;
            flow.serve(channels);
            flow.delays_started.notify_one();
            if !self.remembers {
                let confirmed = keep_busy(|| self.followed.shards().apply_state_command(&RuleStateCommand::Confirm));
                self.remembers = confirmed.is_ok();
            }
        }
        Ok(done)
    }

    /// All entries of the chronicle tables, if they are empty.
    fn missing_entries(&mut self, accepted_at: Timestamp) -> Vec<EntryChange> {
        let mut entries = Vec::new();
        if self.chronicles.needs_full_publish() {
            self.chronicles.publish_tables(accepted_at, &mut |change| entries.push(change));
        }
        entries
    }
}
