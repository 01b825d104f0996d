//! Accepts the events of broadcasts that are due: at their start time, and after a pause.

use std::{sync::Arc, time::Duration};

use tocsin_model::time::Timestamp;
use tocsin_store::{
    error::StoreError,
    journal::{Broadcast, BroadcastChange, RequestedState},
};
use tokio_util::sync::CancellationToken;

use super::run_part::event_of;
use crate::Flow;

/// Broadcasts begun at a time.
const AT_ONCE: usize = 100;
/// Delay after the store failed, or while the application does not run.
const PAUSE: Duration = Duration::from_secs(5);
/// Maximum wait for a start time: clocks are adjusted, and machines sleep.
const SLEEP_MAX: Duration = Duration::from_secs(60);

/// Begins broadcasts until `stop`.
pub(crate) async fn run(flow: Arc<Flow>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        let mut changed = std::pin::pin!(flow.broadcasts_changed.notified());
        changed.as_mut().enable();
        let pause = match begin_due(&flow).await {
            Ok(None) => SLEEP_MAX,
            Ok(Some(next)) => next.since(flow.clock.now()).min(SLEEP_MAX),
            Err(error) => {
                tracing::error!(%error, "broadcasts cannot be started and are tried again");
                PAUSE
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = changed => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Begins all due broadcasts. Returns the time of the next.
async fn begin_due(flow: &Flow) -> Result<Option<Timestamp>, StoreError> {
    let mut next: Option<Timestamp> = None;
    let mut wait_until = |at: Timestamp| next = Some(next.map_or(at, |next| next.min(at)));
    loop {
        let found = flow.broadcast_store.startable_broadcasts(AT_ONCE).await?;
        let now = flow.clock.now();
        let is_full = found.len() == AT_ONCE;
        let mut begun = 0;
        for broadcast in found {
            if broadcast.starts_at > now {
                wait_until(broadcast.starts_at);
                break;
            }
            match begin(flow, &broadcast, now).await? {
                true => begun += 1,
                false => wait_until(now + PAUSE),
            }
        }
        if !is_full || begun == 0 {
            return Ok(next);
        }
    }
}

/// Accepts the event of the next part. Returns false if the application does not run.
async fn begin(flow: &Flow, broadcast: &Broadcast, now: Timestamp) -> Result<bool, StoreError> {
    let running = flow.running.lock().get(&broadcast.application).and_then(std::sync::Weak::upgrade);
    let version = match (broadcast.version, running) {
        (Some(version), _) => version,
        (None, Some(running)) => running.compiled().version,
        (None, None) if flow.application_store.application(&broadcast.application, None).await?.is_some() => {
            return Ok(false);
        }
        (None, None) => {
            let reason = Some("the application was removed".to_owned());
            let change = BroadcastChange { to: RequestedState::Failed, by: broadcast.by.clone(), reason, now };
            flow.broadcast_store.change_broadcast(broadcast.id, change).await?;
            return Ok(true);
        }
    };
    let sequence = *flow.change_log.newest_change().borrow();
    let event = event_of(broadcast, version, broadcast.reached, sequence, now);
    if flow.broadcast_store.begin_broadcast(broadcast.id, event).await?.is_some() {
        tracing::info!(broadcast = %broadcast.id, application = %broadcast.application, "a broadcast is started");
        metrics::counter!("tocsin_broadcast_started_total").increment(1);
    }
    Ok(true)
}
