//! Matches of delayed rules become notifications that wait, and events cancel those that wait.

use std::collections::BTreeMap;

use tocsin_matching::{cut::CutBatch, rule::RuleSet};
use tocsin_model::{
    application::CancelKey,
    event::EventBatch,
    field::Row,
    id::{EventBatchId, EventId, Name},
    lifecycle::subscription_of,
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    journal::{CancelDelayed, Correlation, FiringStatus, NewDelayed, NewFiring, Step},
};

use crate::{Flow, compile::Compiled};

/// Takes the matches of delayed rules out of `cut`. `batches` are those of the events, with rows of the rules.
pub(crate) fn take_delayed<'a>(
    compiled: &Compiled,
    rules: &RuleSet,
    cut: &mut Vec<CutBatch>,
    batches: impl Iterator<Item = (&'a EventBatch, &'a [Row])>,
) -> Vec<NewDelayed> {
    if compiled.delays.is_empty() {
        return Vec::new();
    }
    let is_delayed = |cut: &mut CutBatch| compiled.delays.contains_key(rules.name(cut.rule));
    let taken: Vec<CutBatch> = cut.extract_if(.., is_delayed).collect();
    if taken.is_empty() {
        return Vec::new();
    }
    let batches: BTreeMap<EventBatchId, (&EventBatch, &[Row])> =
        batches.map(|(batch, rows)| (batch.id, (batch, rows))).collect();
    let mut delayed = Vec::new();
    for cut in taken {
        let rule = rules.name(cut.rule);
        let (Some(keys), Some(after)) = (compiled.delays.get(rule), after(compiled, rule)) else { continue };
        let mut last: Option<(EventId, Timestamp, Option<Box<str>>)> = None;
        for (event, subscription) in cut.notifications.event_of_each().zip(&cut.notifications.subscriptions) {
            if last.as_ref().is_none_or(|(known, ..)| *known != event) {
                let Some((batch, rows)) = batches.get(&event.batch) else { continue };
                let row = rows.get(event.ordinal as usize);
                let key = row.and_then(|row| keys.key.as_ref()?.of(row));
                last = Some((event, batch.accepted_at + after, key));
            }
            let Some((_, due_at, key)) = &last else { continue };
            delayed.push(NewDelayed {
                application: compiled.application.name.clone(),
                rule: rule.clone(),
                event,
                subscription: *subscription,
                due_at: *due_at,
                key: key.clone(),
            });
        }
    }
    delayed
}

fn after(compiled: &Compiled, rule: &Name) -> Option<std::time::Duration> {
    Some(compiled.application.rules.get(rule)?.delay.as_ref()?.after)
}

/// The cancellations by the events of a batch. `rows` are its events, by the fields of their class.
pub(crate) fn cancellations(compiled: &Compiled, batch: &EventBatch, rows: &[Row]) -> Vec<CancelDelayed> {
    let mut cancelled = Vec::new();
    for (rule, keys) in &compiled.delays {
        for (_, key) in keys.cancel_on.iter().filter(|(class, _)| *class == batch.class) {
            for (ordinal, row) in rows.iter().enumerate() {
                let correlation = match key {
                    Some(key) => key.of(row).map(Correlation::Key),
                    None => subscription_of(row).map(Correlation::Subscription),
                };
                // An event without a key cancels nothing.
                let Some(correlation) = correlation else { continue };
                cancelled.push(CancelDelayed {
                    application: compiled.application.name.clone(),
                    rule: rule.clone(),
                    by: EventId { batch: batch.id, ordinal: ordinal as u32 },
                    correlation,
                });
            }
        }
    }
    debug_assert!(cancelled.iter().all(|cancel| cancels_on(compiled, cancel, &batch.class)));
    cancelled
}

fn cancels_on(compiled: &Compiled, cancel: &CancelDelayed, class: &Name) -> bool {
    let delay = compiled.application.rules.get(&cancel.rule).and_then(|rule| rule.delay.as_ref());
    let by_subscription = matches!(cancel.correlation, Correlation::Subscription(_));
    delay
        .and_then(|delay| delay.cancel_on.get(class))
        .is_some_and(|key| matches!(key, CancelKey::Subscription) == by_subscription)
}

/// Adds delayed notifications to a step, unless too many of the application wait: then the firings of their rules fail
/// and are listed.
pub(crate) async fn within_limit(
    flow: &Flow,
    compiled: &Compiled,
    delayed: Vec<NewDelayed>,
    step: &mut Step,
) -> Result<(), StoreError> {
    if delayed.is_empty() {
        return Ok(());
    }
    let name = &compiled.application.name;
    let limit = compiled.application.limits.delayed_notifications;
    let waiting = flow.delays.delayed_count(name).await? + step.delayed.len() as u64;
    if waiting + delayed.len() as u64 <= limit {
        for new in &delayed {
            let Some(rule) = compiled.application.rules.get(&new.rule) else { continue };
            let labels = flow.classes.labels(name, &rule.notify);
            metrics::counter!("tocsin_delay_started_total", &labels).increment(1);
        }
        step.delayed.extend(delayed);
        return Ok(());
    }
    let reason = format!("{waiting} delayed notifications wait, and `limits.delayed_notifications` is {limit}");
    let mut missed: Vec<(Name, EventBatchId)> = delayed.into_iter().map(|new| (new.rule, new.event.batch)).collect();
    missed.sort_unstable();
    missed.dedup();
    for (rule, batch) in missed {
        tracing::error!(application = %name, %rule, %batch, reason, "a delayed rule failed for an event batch");
        step.firings.push(NewFiring {
            application: name.clone(),
            rule,
            batch,
            status: FiringStatus::Failed,
            reason: reason.clone(),
            run: None,
            at: flow.clock.now(),
        });
    }
    Ok(())
}
