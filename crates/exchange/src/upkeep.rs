//! Upkeep: expires unanswered requests and deletes messages past their retention.

use std::{sync::Arc, time::Duration};

use tocsin_model::{id::MessageId, time::Timestamp};
use tocsin_store::{
    error::StoreError,
    spool::ExpiredMessages,
    sqlite::tracking::EXPIRED_BLOCKS_MAX,
    tracking::{Entries, ExpiredBlock, NewBlock},
};
use tokio::time::Instant;

use crate::{core::Core, operate::Operations, reply_waiters::ReplyNotice};

/// Messages per step, so that a step never delays the message flow.
const STEP: usize = 500;
/// Interval of deleting expired messages.
const PRUNE_EVERY: Duration = Duration::from_secs(60);
/// Retention of index entries whose exchange does not run.
const UNKNOWN_KEPT: Duration = Duration::from_secs(86_400);
/// Delay before a failed read is retried.
const AGAIN: Duration = Duration::from_secs(1);

/// Runs upkeep until the exchanges stop.
pub(crate) async fn run(operations: Arc<Operations>) {
    let core = &operations.core;
    let mut prune_at = Instant::now();
    loop {
        // Cleared before the read, so that no time that is scheduled during it is missed.
        core.expiry_alarm.clear();
        let next = expire(core).await;
        for (exchange, open) in core.parts.spool.open_by_exchange() {
            metrics::gauge!("tocsin_exchange_open_messages", "exchange" => exchange).set(open as f64);
        }
        for (partition, load) in core.parts.spool.load_by_partition() {
            metrics::gauge!("tocsin_exchange_partition_open_messages", "partition" => partition).set(load.open as f64);
            metrics::gauge!("tocsin_exchange_partition_bytes", "partition" => partition).set(load.bytes as f64);
        }
        if Instant::now() >= prune_at {
            operations.suspend_all_orphaned_legs().await;
            let more = prune(core).await | prune_tracking(core, core.now()).await;
            prune_at = Instant::now() + if more { Duration::ZERO } else { PRUNE_EVERY };
        }
        next.into_iter().for_each(|next| core.expiry_alarm.expect(next));
        tokio::select! {
            () = tokio::time::sleep_until(prune_at) => {}
            () = core.expiry_alarm.ring(&*core.parts.clock) => {}
            () = core.stopping.cancelled() => return,
        }
    }
}

/// Expires requests. Returns when the next one expires.
async fn expire(core: &Core) -> Option<Timestamp> {
    let now = core.now();
    match core.parts.spool.expire(now, STEP).await {
        Ok(ExpiredMessages { expired, unanswered, next }) => {
            for id in unanswered {
                tracing::warn!(message = %id, "no reply came in time; the message is suspended");
                metrics::counter!("tocsin_exchange_reply_timeouts_total").increment(1);
                core.reply_waiters.answer(id, ReplyNotice::None);
            }
            for id in expired {
                tracing::warn!(message = %id, "a request expired without a reply");
                metrics::counter!("tocsin_exchange_expired_total").increment(1);
                core.reply_waiters.answer(id, ReplyNotice::None);
            }
            next
        }
        Err(error) => {
            tracing::error!(%error, "cannot expire requests");
            Some(now + AGAIN)
        }
    }
}

/// Deletes messages past their retention. Returns whether there may be more.
async fn prune(core: &Core) -> bool {
    match core.parts.spool.prune(core.now(), STEP).await {
        // Each partition removes at most this many.
        Ok(removed) => removed >= STEP as u64,
        Err(error) => {
            tracing::error!(%error, "cannot delete expired messages");
            false
        }
    }
}

/// Deletes expired tracking entries. Index entries of messages that still exist (waiting or suspended) are kept longer.
pub(crate) async fn prune_tracking(core: &Core, now: Timestamp) -> bool {
    let replaced = async {
        let over = core.parts.tracking.expired_blocks(now).await?;
        if over.is_empty() {
            return Ok(false);
        }
        let sought: Vec<MessageId> = over.iter().flat_map(|block| &block.findable).map(|found| found.message).collect();
        let there = core.parts.spool.existing(&sought).await?;
        let (ids, may_be_more) = (over.iter().map(|block| block.id).collect(), over.len() == EXPIRED_BLOCKS_MAX);
        let kept = over.into_iter().filter_map(|mut block| {
            block.findable.retain(|found| there.contains(&found.message));
            let running = core.find(&block.exchange);
            let kept = running.map_or(UNKNOWN_KEPT, |running| running.compiled.definition.retention);
            let ExpiredBlock { exchange, findable, .. } = block;
            let goes_at = now + kept.max(PRUNE_EVERY);
            (!findable.is_empty()).then_some(NewBlock { exchange, goes_at, entries: Entries::Properties(findable) })
        });
        core.parts.tracking.replace(ids, kept.collect()).await?;
        Ok::<_, StoreError>(may_be_more)
    };
    replaced.await.unwrap_or_else(|error| {
        tracing::error!(%error, "cannot delete expired tracking entries");
        false
    })
}
