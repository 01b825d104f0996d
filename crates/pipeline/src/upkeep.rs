//! Background upkeep: retention in small steps, expiry, and gauges.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::Duration,
};

use tocsin_model::{
    application::{Application, Retention},
    id::Name,
    time::Timestamp,
};
use tocsin_store::{error::StoreError, journal::Cutoffs};
use tokio_util::sync::CancellationToken;

use crate::{Flow, Pipeline, class_counters::Labels, feeds, options::PipelineOptions};

/// Retention of endpoints without attempts.
const ENDPOINTS_KEPT: Duration = Duration::from_secs(60 * 86_400);
/// Limit when counting the batches past their retention.
const REMAINING_MAX: usize = 100_000;

/// Removes data past its retention at an interval, until `stop`.
pub(crate) async fn run(flow: Arc<Flow>, pipeline: Weak<Pipeline>, stop: CancellationToken) {
    let every = Duration::from_secs(flow.options.upkeep_seconds.max(1));
    let mut shown = BTreeMap::new();
    show_subscriptions(&flow, &mut shown).await;
    end_removed(&flow, &pipeline).await;
    while stop.run_until_cancelled(tokio::time::sleep(every)).await.is_some() {
        let now = flow.clock.now();
        end_removed(&flow, &pipeline).await;
        if let Some(cutoffs) = pipeline.upgrade().map(|pipeline| pipeline.cutoffs(now))
            && let Err(error) = retain(&flow, &cutoffs, &stop).await
        {
            tracing::error!(%error, "finished batches cannot be removed");
        }
        feeds::expire(&flow, &stop).await;
        wake_subscriptions(&flow).await;
        expire_consents(&flow).await;
        prune_suppressions(&flow).await;
        prune_feedback(&flow).await;
        if let Err(error) = flow.endpoints.prune(&*flow.recipient_store, now - ENDPOINTS_KEPT).await {
            tracing::error!(%error, "unused endpoints cannot be removed");
        }
        show_subscriptions(&flow, &mut shown).await;
        metrics::histogram!("tocsin_upkeep_duration_seconds").record(flow.clock.now().since(now));
    }
}

/// Cut-off times of retention for these applications.
pub(crate) fn cutoffs<'a>(
    applications: impl Iterator<Item = &'a Application>,
    options: &PipelineOptions,
    now: Timestamp,
) -> Cutoffs {
    // Data of removed applications is kept for the longest retention.
    let mut longest = Retention::default().finished;
    let mut cutoffs = Cutoffs::all(now);
    for application in applications {
        longest = longest.max(application.retention.finished);
        let of = |class: &Name| (application.name.clone(), class.clone());
        let events = application.events.keys().map(|class| (of(class), now - application.events_kept(class)));
        cutoffs.events.extend(events);
        let classes = application.notifications.keys();
        cutoffs.notifications.extend(classes.map(|class| (of(class), now - application.notifications_kept(class))));
    }
    cutoffs.before = now - longest;
    cutoffs.activity = now - Duration::from_secs(u64::from(options.activity_days) * 86_400);
    cutoffs
}

/// Removes data past its retention at the permitted hours, and logs the rest.
async fn retain(flow: &Flow, cutoffs: &Cutoffs, stop: &CancellationToken) -> Result<(), StoreError> {
    let in_hours = || flow.options.may_prune(flow.clock.now());
    let began = in_hours();
    if began {
        prune(flow, cutoffs, in_hours, stop).await?;
    }
    let remaining = flow.maintenance.prunable(cutoffs, REMAINING_MAX).await?;
    metrics::gauge!("tocsin_upkeep_remaining_batches").set(remaining as f64);
    if began && remaining > 0 && !in_hours() {
        tracing::warn!(batches = remaining, "the hours of retention ended before all was removed that is past it");
        metrics::counter!("tocsin_upkeep_timeouts_total").increment(1);
    }
    Ok(())
}

/// Removes data past its retention in small steps, while permitted. Returns the number of batches removed.
pub(crate) async fn prune(
    flow: &Flow,
    cutoffs: &Cutoffs,
    goes_on: impl Fn() -> bool,
    stop: &CancellationToken,
) -> Result<u64, StoreError> {
    let mut removed = 0;
    let is_done = loop {
        let count = flow.maintenance.prune(cutoffs, flow.clock.now(), flow.options.prune_batches).await?;
        removed += count as u64;
        metrics::counter!("tocsin_upkeep_deleted_batches_total").increment(count as u64);
        let is_done = count < flow.options.prune_batches;
        if is_done || stop.is_cancelled() || !goes_on() {
            break is_done;
        }
        tokio::task::yield_now().await;
    };
    if removed > 0 {
        tracing::info!(batches = removed, "removed finished batches past their retention");
    }
    if is_done {
        metrics::gauge!("tocsin_upkeep_retention_ended_timestamp_seconds").set(flow.clock.now().0 as f64 / 1e6);
    }
    Ok(removed)
}

/// Updates the gauges of subscriptions by class. Gauges of removed classes are set to zero.
async fn show_subscriptions(flow: &Flow, shown: &mut BTreeMap<Labels, [u64; 3]>) {
    let counts = match flow.subscription_store.subscription_counts().await {
        Ok(counts) => counts,
        Err(error) => return tracing::error!(%error, "subscriptions cannot be counted"),
    };
    shown.values_mut().for_each(|counts| *counts = [0; 3]);
    for found in counts {
        let [enabled, disabled, added] =
            shown.entry(flow.classes.labels(&found.application, &found.class)).or_default();
        *enabled += found.enabled;
        *disabled += found.disabled;
        *added += found.added;
    }
    for (class, [enabled, disabled, added]) in shown {
        for (state, count) in [("enabled", enabled), ("disabled", disabled)] {
            let [application, class] = class.clone();
            let labels = [application, class, ("state", state.to_owned())];
            metrics::gauge!("tocsin_records_class_subscriptions", &labels).set(*count as f64);
        }
        metrics::counter!("tocsin_records_class_subscriptions_added_total", class).absolute(*added);
    }
}

/// Enables subscriptions whose snooze has ended.
async fn wake_subscriptions(flow: &Flow) {
    let most = flow.options.prune_batches;
    loop {
        match flow.subscription_store.wake_subscriptions(flow.clock.now(), most).await {
            Ok(count) if count == most => tokio::task::yield_now().await,
            Ok(_) => return,
            Err(error) => return tracing::error!(%error, "subscriptions that were snoozed cannot be woken"),
        }
    }
}

/// Removes subscriptions whose consent was not given in time, and evidence of erased persons past its retention.
async fn expire_consents(flow: &Flow) {
    let most = flow.options.prune_batches;
    loop {
        match flow.consent_store.expire_consents(flow.clock.now(), most).await {
            Ok(count) => {
                metrics::counter!("tocsin_consent_expired_total").increment(count as u64);
                if count < most {
                    break;
                }
            }
            Err(error) => return tracing::error!(%error, "expired requests for consent cannot be removed"),
        }
        tokio::task::yield_now().await;
    }
    let before = flow.clock.now() - flow.options.evidence_kept;
    loop {
        match flow.consent_store.prune_evidence(before, most).await {
            Ok(count) if count == most => tokio::task::yield_now().await,
            Ok(_) => return,
            Err(error) => return tracing::error!(%error, "evidence of erased persons cannot be removed"),
        }
    }
}

/// Ends the work of applications that are not in the records: a crash interrupted their removal.
async fn end_removed(flow: &Flow, pipeline: &Weak<Pipeline>) {
    let open = match flow.work_queue.open_applications().await {
        Ok(open) => open,
        Err(error) => return tracing::error!(%error, "applications with open work cannot be listed"),
    };
    for name in open {
        let Some(pipeline) = pipeline.upgrade() else { return };
        if pipeline.application(&name).is_some() {
            continue;
        }
        if let Err(error) = pipeline.end_removed(&name).await {
            tracing::error!(application = %name, %error, "the work of a removed application cannot be ended");
        }
    }
}

async fn prune_suppressions(flow: &Flow) {
    let most = flow.options.prune_batches;
    loop {
        match flow.suppression_store.prune_suppressions(flow.clock.now(), most).await {
            Ok(count) if count == most => tokio::task::yield_now().await,
            Ok(_) => return,
            Err(error) => return tracing::error!(%error, "suppressions that are over cannot be removed"),
        }
    }
}

async fn prune_feedback(flow: &Flow) {
    let most = flow.options.prune_batches;
    loop {
        match flow.feedback_store.prune_feedback(flow.clock.now(), most).await {
            Ok(count) if count == most => tokio::task::yield_now().await,
            Ok(_) => return,
            Err(error) => return tracing::error!(%error, "feedback past its retention cannot be removed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_has_its_retention_and_events_stay_as_long_as_their_notifications() {
        let text = "
            application: stock
            events: { trade: { fields: { price: number }, retention: 1h }, quote: { fields: { price: number } } }
            subscriptions: { wish: {} }
            notifications: { alert: { retention: 3d, content: { templates: { base: { text: x } } } } }
            rules: { near: { on: trade, subscription: wish, notify: alert } }
            retention: { finished: 10d }";
        let application = tocsin_model::definition::read(text, &|_| None).unwrap_or_else(|wrong| panic!("{wrong:?}"));
        let now = Timestamp(1_800_000_000_000_000);
        let found = cutoffs([&application].into_iter(), &PipelineOptions::default(), now);
        let days = |count: u64| now - Duration::from_secs(count * 86_400);
        let of = |class: &str| (application.name.clone(), class.parse().expect("a name"));
        assert_eq!(found.events[&of("trade")], days(3), "as long as the alerts");
        assert_eq!(found.events[&of("quote")], days(10));
        assert_eq!(found.notifications[&of("alert")], days(3));
        assert_eq!((found.before, found.activity), (days(10), days(90)));
    }
}
