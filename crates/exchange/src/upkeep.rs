//! Upkeep: expires unanswered requests and deletes messages past their retention.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use tocsin_delivery::Clock;
use tocsin_model::{id::MessageId, time::Timestamp};
use tocsin_store::{
    error::StoreError,
    spool::ExpiredMessages,
    sqlite::tracking::EXPIRED_BLOCKS_MAX,
    tracking::{Entries, ExpiredBlock, NewBlock},
};
use tokio::{sync::Notify, time::Instant};

use crate::{Exchanges, reply_waiters::ReplyNotice};

/// Messages per step, so that a step never delays the message flow.
const STEP: usize = 500;
/// Interval of deleting expired messages.
const PRUNE_EVERY: Duration = Duration::from_secs(60);
/// Retention of index entries whose exchange does not run.
const UNKNOWN_KEPT: Duration = Duration::from_secs(86_400);
/// Longest wait, whatever is scheduled.
const RING_MAX: Duration = Duration::from_secs(3_600);
/// Delay before a failed read is retried.
const AGAIN: Duration = Duration::from_secs(1);

/// Timer for the earliest of the scheduled times.
pub(crate) struct Alarm {
    next: AtomicI64,
    earlier: Notify,
}

impl Default for Alarm {
    fn default() -> Self {
        Alarm { next: AtomicI64::new(i64::MIN), earlier: Notify::new() }
    }
}

impl Alarm {
    /// Schedules this time.
    pub fn expect(&self, at: Timestamp) {
        if self.next.fetch_min(at.0, Ordering::AcqRel) > at.0 {
            self.earlier.notify_one();
        }
    }
}

impl Alarm {
    /// Clears the timer. Times that are scheduled from here on wake it.
    pub fn set(&self) {
        self.next.store(i64::MAX, Ordering::Release);
    }

    /// Waits for the earliest scheduled time.
    pub async fn ring(&self, clock: &dyn Clock) {
        loop {
            let left = Timestamp(self.next.load(Ordering::Acquire)).since(clock.now());
            tokio::select! {
                () = tokio::time::sleep(left.min(RING_MAX)) => return,
                () = self.earlier.notified() => {}
            }
        }
    }
}

/// Runs upkeep until the exchanges stop.
pub(crate) async fn run(exchanges: Arc<Exchanges>) {
    let mut prune_at = Instant::now();
    loop {
        // Cleared before the read, so that no time that is scheduled during it is missed.
        exchanges.upkeep.next.store(i64::MAX, Ordering::Release);
        let next = expire(&exchanges).await;
        for (exchange, open) in exchanges.parts.spool.open_by_exchange() {
            metrics::gauge!("tocsin_exchange_open_messages", "exchange" => exchange).set(open as f64);
        }
        for (partition, load) in exchanges.parts.spool.load_by_partition() {
            metrics::gauge!("tocsin_exchange_partition_open_messages", "partition" => partition).set(load.open as f64);
            metrics::gauge!("tocsin_exchange_partition_bytes", "partition" => partition).set(load.bytes as f64);
        }
        if Instant::now() >= prune_at {
            exchanges.suspend_all_orphaned_legs().await;
            let more = prune(&exchanges).await | prune_tracking(&exchanges, exchanges.parts.clock.now()).await;
            prune_at = Instant::now() + if more { Duration::ZERO } else { PRUNE_EVERY };
        }
        if let Some(next) = next {
            exchanges.upkeep.next.fetch_min(next.0, Ordering::AcqRel);
        }
        let until_next = Timestamp(exchanges.upkeep.next.load(Ordering::Acquire)).since(exchanges.parts.clock.now());
        let until_next = Instant::now().checked_add(until_next).unwrap_or(prune_at);
        tokio::select! {
            () = tokio::time::sleep_until(until_next.min(prune_at)) => {}
            () = exchanges.upkeep.earlier.notified() => {}
            () = exchanges.stopping.cancelled() => return,
        }
    }
}

/// Expires requests. Returns when the next one expires.
async fn expire(exchanges: &Exchanges) -> Option<Timestamp> {
    let now = exchanges.parts.clock.now();
    match exchanges.parts.spool.expire(now, STEP).await {
        Ok(ExpiredMessages { expired, unanswered, next }) => {
            for id in unanswered {
                tracing::warn!(message = %id, "no reply came in time; the message is suspended");
                metrics::counter!("tocsin_exchange_reply_timeouts_total").increment(1);
                exchanges.reply_waiters.answer(id, ReplyNotice::None);
            }
            for id in expired {
                tracing::warn!(message = %id, "a request expired without a reply");
                metrics::counter!("tocsin_exchange_expired_total").increment(1);
                exchanges.reply_waiters.answer(id, ReplyNotice::None);
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
async fn prune(exchanges: &Exchanges) -> bool {
    match exchanges.parts.spool.prune(exchanges.parts.clock.now(), STEP).await {
        // Each partition removes at most this many.
        Ok(removed) => removed >= STEP as u64,
        Err(error) => {
            tracing::error!(%error, "cannot delete expired messages");
            false
        }
    }
}

/// Deletes expired tracking entries. Index entries of messages that still exist (waiting or suspended) are kept longer.
pub(crate) async fn prune_tracking(exchanges: &Exchanges, now: Timestamp) -> bool {
    let replaced = async {
        let over = exchanges.parts.tracking.expired_blocks(now).await?;
        if over.is_empty() {
            return Ok(false);
        }
        let sought: Vec<MessageId> = over.iter().flat_map(|block| &block.findable).map(|found| found.message).collect();
        let there = exchanges.parts.spool.existing(&sought).await?;
        let (ids, may_be_more) = (over.iter().map(|block| block.id).collect(), over.len() == EXPIRED_BLOCKS_MAX);
        let kept = over.into_iter().filter_map(|mut block| {
            block.findable.retain(|found| there.contains(&found.message));
            let running = exchanges.find(&block.exchange);
            let kept = running.map_or(UNKNOWN_KEPT, |running| running.compiled.definition.retention);
            let ExpiredBlock { exchange, findable, .. } = block;
            let goes_at = now + kept.max(PRUNE_EVERY);
            (!findable.is_empty()).then_some(NewBlock { exchange, goes_at, entries: Entries::Properties(findable) })
        });
        exchanges.parts.tracking.replace(ids, kept.collect()).await?;
        Ok::<_, StoreError>(may_be_more)
    };
    replaced.await.unwrap_or_else(|error| {
        tracing::error!(%error, "cannot delete expired tracking entries");
        false
    })
}
