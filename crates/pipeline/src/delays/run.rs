//! A due time of a delayed rule: the rule is evaluated again for each event and subscription, with the subscription as
//! it is now.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use tocsin_model::{
    event::EventBatch,
    id::{EventBatchId, Name, SubscriptionId},
};
use tocsin_store::{
    error::StoreError,
    journal::{Delayed, NewNotificationBatch, Step},
};

use crate::{
    Flow,
    compile::Compiled,
    match_events::{new_batches, report_failures},
    targeted_run::TargetedRun,
};

/// Runs the due time of a batch, and adds its notifications to the step. Earlier steps must be committed. The inner
/// error says why it could not be run; then nothing was added.
///
/// # Errors
/// The store fails.
pub(crate) async fn run_delays(
    flow: &Flow,
    compiled: &Arc<Compiled>,
    batch: &EventBatch,
    step: &mut Step,
) -> Result<Result<(), String>, StoreError> {
    let found = flow.delays.delayed_of(batch.id).await?;
    let is_cancelled = |delayed: &Delayed| step.cancelled.iter().any(|cancel| cancel.cancels(delayed));
    let mut by_rule: BTreeMap<Name, BTreeMap<EventBatchId, Vec<(u32, SubscriptionId)>>> = BTreeMap::new();
    for delayed in found.into_iter().filter(|delayed| !is_cancelled(delayed)) {
        let of_rule = by_rule.entry(delayed.rule).or_default();
        of_rule.entry(delayed.event.batch).or_default().push((delayed.event.ordinal, delayed.subscription));
    }
    // The chronicle values of this step are not in the journal yet.
    let chronicled: BTreeMap<EventBatchId, Bytes> = step.chronicled.iter().cloned().collect();
    let mut made = Vec::new();
    for (rule, batches) in by_rule {
        let pairs: usize = batches.values().map(Vec::len).sum();
        let delayed = compiled.delays.contains_key(&rule);
        let Some(mut run) = TargetedRun::new(flow, compiled, &rule).filter(|_| delayed) else {
            dropped("rule_removed", pairs);
            continue;
        };
        for (id, pairs) in batches {
            let Some((mut events, _)) = flow.event_log.event_batch(id).await? else {
                dropped("event_removed", pairs.len());
                continue;
            };
            if let Some(packed) = chronicled.get(&id) {
                events.chronicled = packed.clone();
            }
            let fields = match flow.versions.event_fields(&events).await? {
                Ok(fields) => fields,
                Err(reason) => {
                    tracing::error!(batch = %id, %rule, reason, "delayed notifications of an event batch are dropped");
                    dropped("event_unreadable", pairs.len());
                    continue;
                }
            };
            let rows = match run.rules().rows(&events, &fields) {
                Ok(rows) => rows,
                Err(damaged) => return Ok(Err(damaged.to_string())),
            };
            if let Err(reason) = run.add(&events, &rows, &pairs).await? {
                return Ok(Err(reason));
            }
        }
        let (cut, failures) = run.finish();
        report_failures(compiled, run.rules(), &failures);
        for reason in &run.left_out {
            dropped(reason.word(), 1);
        }
        let notified: usize = cut.iter().map(|cut| cut.notifications.count()).sum();
        dropped("no_match", pairs.saturating_sub(notified + run.left_out.len()));
        let now = flow.clock.now();
        let batches = new_batches(compiled, run.rules(), cut, batch.accepted_at, now);
        made.extend(batches.into_iter().map(|made| NewNotificationBatch { run: Some(batch.id), ..made }));
    }
    step.batches.extend(made);
    step.released.push(batch.id);
    Ok(Ok(()))
}

fn dropped(reason: &'static str, count: usize) {
    if count > 0 {
        metrics::counter!("tocsin_delay_dropped_total", "reason" => reason).increment(count as u64);
    }
}
