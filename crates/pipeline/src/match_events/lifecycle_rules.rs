//! Rules on lifecycle events: each is evaluated for the subscription of its event only.

use std::sync::Arc;

use tocsin_model::{
    event::EventBatch,
    id::{Name, SubscriptionId},
    lifecycle::subscription_of,
};
use tocsin_store::{
    error::StoreError,
    journal::{FiringStatus, NewFiring, Step},
};

use super::{make_batches::new_batches, report::report_failures};
use crate::{Flow, compile::Compiled, delays, targeted_run::TargetedRun};

/// Evaluates the rules on a batch of lifecycle events, or `only` one of them, and adds the result to the step. A rule
/// that fails or is stopped is listed with the batch.
///
/// # Errors
/// The store fails.
pub(super) async fn run_lifecycle(
    flow: &Flow,
    compiled: &Arc<Compiled>,
    batch: &EventBatch,
    only: Option<&Name>,
    step: &mut Step,
) -> Result<(), StoreError> {
    for (name, rule) in &compiled.application.rules {
        if !rule.enabled || rule.on != batch.class || only.is_some_and(|only| only != name) {
            continue;
        }
        let stop = flow.stops.lock().get(&(batch.application.clone(), name.clone())).cloned();
        let missed = match stop.filter(|_| only.is_none()) {
            Some(stop) => Some((FiringStatus::Skipped, format!("it is stopped: {}", stop.reason))),
            None => {
                run_rule(flow, compiled, batch, name, step).await?.err().map(|reason| (FiringStatus::Failed, reason))
            }
        };
        if let Some((status, reason)) = missed {
            tracing::error!(application = %batch.application, rule = %name, batch = %batch.id, reason,
                "a rule did not fire for a batch of lifecycle events");
            step.firings.push(NewFiring {
                application: batch.application.clone(),
                rule: name.clone(),
                batch: batch.id,
                status,
                reason,
                run: None,
                at: flow.clock.now(),
            });
        }
    }
    Ok(())
}

/// Evaluates one rule. The inner error says why it failed; then nothing was added.
async fn run_rule(
    flow: &Flow,
    compiled: &Arc<Compiled>,
    batch: &EventBatch,
    rule: &Name,
    step: &mut Step,
) -> Result<Result<(), String>, StoreError> {
    let Some(mut run) = TargetedRun::new(flow, compiled, rule) else { return Ok(Ok(())) };
    let fields = match flow.versions.event_fields(batch).await? {
        Ok(fields) => fields,
        Err(reason) => return Ok(Err(reason)),
    };
    let mut batch = batch.clone();
    if let Some((_, packed)) = step.chronicled.iter().find(|(id, _)| *id == batch.id) {
        batch.chronicled = packed.clone();
    }
    let rows = match run.rules().rows(&batch, &fields) {
        Ok(rows) => rows,
        Err(damaged) => return Ok(Err(damaged.to_string())),
    };
    let pair = |(ordinal, row): (usize, &tocsin_model::field::Row)| Some((ordinal as u32, subscription_of(row)?));
    let pairs: Vec<(u32, SubscriptionId)> = rows.iter().enumerate().filter_map(pair).collect();
    if let Err(reason) = run.add(&batch, &rows, &pairs).await? {
        return Ok(Err(reason));
    }
    let (mut cut, failures) = run.finish();
    let rules = run.rules().clone();
    report_failures(compiled, &rules, &failures);
    let delayed = delays::take_delayed(compiled, &rules, &mut cut, std::iter::once((&batch, &rows[..])));
    delays::within_limit(flow, compiled, delayed, step).await?;
    step.batches.extend(new_batches(compiled, &rules, cut, batch.accepted_at, flow.clock.now()));
    Ok(Ok(()))
}
