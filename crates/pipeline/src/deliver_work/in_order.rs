//! Feeds an item whose events are in ordered mode: each notification when it is its turn.

use std::time::Duration;

use tocsin_model::time::Timestamp;
use tokio_util::sync::CancellationToken;

use super::{Fed, Loaded, Worker};
use crate::{
    lanes::{Standing, Turn},
    record_receipts::Report,
};

/// How long an item waits for one before it that is neither sent nor put off, and how long it is put off then.
const PATIENCE: Duration = Duration::from_secs(1);

impl Worker {
    /// Hands over what is first in its lane, and waits for the answers of those before the rest. What has to wait for a
    /// retry is put off until then, so that it holds up nothing here.
    pub(super) async fn feed_in_order(
        &self,
        key: u64,
        loaded: &Loaded,
        due_at: Timestamp,
        stop: &CancellationToken,
    ) -> Fed {
        let lanes = &self.running.lanes;
        let mut total = Fed { fed: 0, left: Vec::new(), due_at };
        let mut left = loaded.ordinals.clone();
        let mut patient = true;
        loop {
            let mut changes = lanes.changes();
            let now = self.flow.clock.now();
            let (mut ready, mut behind, mut later) = (Vec::new(), Vec::new(), Vec::new());
            for ordinal in left {
                match lanes.turn(loaded.id(ordinal)) {
                    Turn::Now => ready.push(ordinal),
                    Turn::After(Standing::Later(time)) if time > now => later.push((ordinal, time)),
                    Turn::After(Standing::Later(_) | Standing::Waits) if !patient => {
                        later.push((ordinal, now + PATIENCE))
                    }
                    Turn::After(_) => behind.push(ordinal),
                }
            }
            for (ordinal, due_at) in later {
                metrics::counter!("deliver_put_off_total").increment(1);
                total.fed += 1;
                if self.reports.send(Report::Held { key, ordinal, due_at }).await.is_err() {
                    return total;
                }
            }
            patient = true;
            let mut is_fed = true;
            if !ready.is_empty() {
                lanes.sent(ready.iter().map(|ordinal| loaded.id(*ordinal)));
                let fed = self.feed(key, loaded, &ready, due_at, stop).await;
                lanes.unsent(fed.left.iter().map(|ordinal| loaded.id(*ordinal)));
                is_fed = fed.left.is_empty();
                total.fed += fed.fed;
                total.left.extend(fed.left);
                total.due_at = fed.due_at;
            }
            if behind.is_empty() || !is_fed {
                total.left.extend(behind);
                return total;
            }
            left = behind;
            tokio::select! {
                () = stop.cancelled() => {
                    total.left.extend(left);
                    return total;
                }
                _ = changes.changed() => {}
                () = tokio::time::sleep(PATIENCE) => patient = false,
            }
        }
    }
}
