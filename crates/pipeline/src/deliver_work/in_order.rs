//! Dispatches an item whose event class is in ordered mode: each notification when it is first in its lane.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Worker;
use crate::{
    dispatch_items::ItemDispatch,
    lanes::{LaneStatus, Turn},
};

/// Maximum wait for an earlier notification that is neither sent nor deferred; also the deferral after that.
const ORDER_TIMEOUT: Duration = Duration::from_secs(1);

impl Worker {
    /// Hands over the notifications that are first in their lanes, and waits for earlier answers before the rest.
    /// Notifications behind a retry are deferred until that retry, so that they block nothing here.
    pub(super) async fn dispatch_in_order(&self, item: &mut ItemDispatch, stop: &CancellationToken) {
        let lanes = &self.active.lanes;
        let mut left = std::mem::take(&mut item.ordinals);
        let mut left_over = Vec::new();
        let mut may_wait = true;
        loop {
            let mut changes = lanes.changes();
            let now = self.flow.clock.now();
            let (mut ready, mut behind, mut later) = (Vec::new(), Vec::new(), Vec::new());
            for ordinal in left {
                match lanes.turn(item.loaded.id(ordinal)) {
                    Turn::Now => ready.push(ordinal),
                    Turn::After(LaneStatus::Later(time)) if time > now => later.push((ordinal, time)),
                    Turn::After(LaneStatus::Later(_) | LaneStatus::Waits) if !may_wait => {
                        later.push((ordinal, now + ORDER_TIMEOUT))
                    }
                    Turn::After(_) => behind.push(ordinal),
                }
            }
            for (ordinal, due_at) in later {
                metrics::counter!("tocsin_deliver_order_deferred_total").increment(1);
                item.dispatched += 1;
                item.tracker.snooze(ordinal, due_at);
            }
            may_wait = true;
            let mut all_sent = true;
            if !ready.is_empty() {
                lanes.sent(ready.iter().map(|ordinal| item.loaded.id(*ordinal)));
                item.ordinals = ready;
                self.dispatch(std::slice::from_mut(item), stop).await;
                let unsent = std::mem::take(&mut item.left);
                lanes.unsent(unsent.iter().map(|ordinal| item.loaded.id(*ordinal)));
                all_sent = unsent.is_empty();
                left_over.extend(unsent);
            }
            if behind.is_empty() || !all_sent {
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
                () = tokio::time::sleep(ORDER_TIMEOUT) => may_wait = false,
            }
        }
    }
}
