//! Feeds an item whose events are in ordered mode: each notification when it is its turn.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Worker;
use crate::{
    feed::Feeding,
    lanes::{Standing, Turn},
    record_receipts::Report,
};

/// How long an item waits for one before it that is neither sent nor put off, and how long it is put off then.
const PATIENCE: Duration = Duration::from_secs(1);

impl Worker {
    /// Hands over what is first in its lane, and waits for the answers of those before the rest. What has to wait for a
    /// retry is put off until then, so that it holds up nothing here.
    pub(super) async fn feed_in_order(&self, item: &mut Feeding, stop: &CancellationToken) {
        let lanes = &self.running.lanes;
        let mut left = std::mem::take(&mut item.ordinals);
        let mut left_over = Vec::new();
        let mut patient = true;
        loop {
            let mut changes = lanes.changes();
            let now = self.flow.clock.now();
            let (mut ready, mut behind, mut later) = (Vec::new(), Vec::new(), Vec::new());
            for ordinal in left {
                match lanes.turn(item.loaded.id(ordinal)) {
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
                item.fed += 1;
                if self.reports.send(Report::Snoozed { key: item.key, ordinal, due_at }).await.is_err() {
                    return item.left.extend(left_over);
                }
            }
            patient = true;
            let mut is_fed = true;
            if !ready.is_empty() {
                lanes.sent(ready.iter().map(|ordinal| item.loaded.id(*ordinal)));
                item.ordinals = ready;
                self.feed(std::slice::from_mut(item), stop).await;
                let unsent = std::mem::take(&mut item.left);
                lanes.unsent(unsent.iter().map(|ordinal| item.loaded.id(*ordinal)));
                is_fed = unsent.is_empty();
                left_over.extend(unsent);
            }
            if behind.is_empty() || !is_fed {
                left_over.extend(behind);
                return item.left.extend(left_over);
            }
            left = behind;
            tokio::select! {
                () = stop.cancelled() => {
                    left_over.extend(left);
                    return item.left.extend(left_over);
                }
                _ = changes.changed() => {}
                () = tokio::time::sleep(PATIENCE) => patient = false,
            }
        }
    }
}
