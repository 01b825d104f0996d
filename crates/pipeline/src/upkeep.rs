//! The clockwork beside the flow: retention in small steps, what ends by itself, and gauges of what waits.

use std::{sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use crate::{Flow, feeds};

/// How long an endpoint is remembered of which nothing is heard.
const ENDPOINTS_KEPT: Duration = Duration::from_secs(60 * 86_400);

/// Removes what is finished and past its retention, every now and then until `stop`. `retention` gives the longest of
/// the running applications.
pub(crate) async fn run(flow: Arc<Flow>, retention: impl Fn() -> Duration, stop: CancellationToken) {
    let every = Duration::from_secs(flow.options.upkeep_seconds.max(1));
    while stop.run_until_cancelled(tokio::time::sleep(every)).await.is_some() {
        let now = flow.clock.now();
        prune(&flow, retention(), &stop).await;
        feeds::expire(&flow, &stop).await;
        wake_subscriptions(&flow).await;
        prune_suppressions(&flow).await;
        if let Err(error) = flow.endpoints.prune(&flow, now - ENDPOINTS_KEPT).await {
            tracing::error!(%error, "endpoints that nobody sends to cannot be forgotten");
        }
        metrics::histogram!("upkeep_duration_seconds").record(flow.clock.now().since(now));
    }
}

async fn prune(flow: &Flow, retention: Duration, stop: &CancellationToken) {
    let now = flow.clock.now();
    let mut removed = 0;
    loop {
        match flow.journal.prune(now - retention, now, flow.options.prune_batches).await {
            Ok(count) => {
                removed += count;
                if count < flow.options.prune_batches || stop.is_cancelled() {
                    break;
                }
            }
            Err(error) => {
                tracing::error!(%error, "finished batches cannot be removed");
                break;
            }
        }
        tokio::task::yield_now().await;
    }
    if removed > 0 {
        metrics::counter!("upkeep_removed_batches_total").increment(removed as u64);
        tracing::info!(batches = removed, "removed finished batches past their retention");
    }
}

/// Who was snoozed until now is matched again.
async fn wake_subscriptions(flow: &Flow) {
    let most = flow.options.prune_batches;
    loop {
        match flow.records.wake_subscriptions(flow.clock.now(), most).await {
            Ok(count) if count == most => tokio::task::yield_now().await,
            Ok(_) => return,
            Err(error) => return tracing::error!(%error, "subscriptions that were snoozed cannot be woken"),
        }
    }
}

async fn prune_suppressions(flow: &Flow) {
    let most = flow.options.prune_batches;
    loop {
        match flow.records.prune_suppressions(flow.clock.now(), most).await {
            Ok(count) if count == most => tokio::task::yield_now().await,
            Ok(_) => return,
            Err(error) => return tracing::error!(%error, "suppressions that are over cannot be removed"),
        }
    }
}
