//! Connects inbox channels to the store of the feeds, and removes expired items from it.

use std::sync::Arc;

use async_trait::async_trait;
use tocsin_connect::Clock;
use tocsin_delivery::FeedStore;
use tocsin_model::{
    inbox::NewItem,
    receipt::{Reason, ReasonKind},
};
use tocsin_store::inbox::Inbox;
use tokio_util::sync::CancellationToken;

use crate::Flow;

/// Rows removed per step, so that expiry never blocks readers for long.
const STEP: usize = 1_000;

/// Feed store for channels, backed by the inbox.
pub(crate) struct StoredFeeds {
    pub inbox: Arc<dyn Inbox>,
    pub clock: Arc<dyn Clock>,
}

#[async_trait]
impl FeedStore for StoredFeeds {
    async fn put(&self, items: Vec<NewItem>, items_max: u32) -> Result<(), Reason> {
        let put = self.inbox.put_items(items, items_max, self.clock.now()).await;
        let delivered = put.map_err(|error| Reason::new(ReasonKind::Internal, format!("the feeds: {error}")))?;
        metrics::counter!("tocsin_inbox_items_total", "result" => "new").increment(delivered.new);
        metrics::counter!("tocsin_inbox_items_total", "result" => "known").increment(delivered.known);
        metrics::counter!("tocsin_inbox_items_total", "result" => "evicted").increment(delivered.evicted);
        Ok(())
    }

    async fn probe(&self) -> Result<String, Reason> {
        match self.inbox.probe().await {
            Ok(_) => Ok(format!("the feeds hold {} items", self.inbox.counts().items)),
            Err(error) => Err(Reason::new(ReasonKind::Internal, format!("the feeds: {error}"))),
        }
    }
}

/// Removes expired items step by step.
pub(crate) async fn expire(flow: &Flow, stop: &CancellationToken) {
    let now = flow.clock.now();
    let mut removed = 0;
    loop {
        match flow.inbox.expire(now, STEP).await {
            Ok((count, more)) => {
                removed += count;
                if !more || stop.is_cancelled() {
                    break;
                }
            }
            Err(error) => {
                tracing::error!(%error, "expired items of feeds cannot be removed");
                break;
            }
        }
        tokio::task::yield_now().await;
    }
    metrics::counter!("tocsin_inbox_expired_total").increment(removed);
}
