//! What is over: requests that nobody answered in time, and messages that need not be kept any more.

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
    spool::Over,
    sqlite::tracking::OVER_MAX,
    tracking::{Entries, NewBlock, OverBlock},
};
use tokio::{sync::Notify, time::Instant};

use crate::{Exchanges, callers::Answer};

/// Messages that one step ends or removes, so that it never holds up the flow.
const STEP: usize = 500;
/// How often messages are looked for whose time to be kept is over.
const PRUNE_EVERY: Duration = Duration::from_secs(60);
/// How much longer messages are found whose exchange does not run, and so says nothing of it.
const UNKNOWN_KEPT: Duration = Duration::from_secs(86_400);
/// The longest that nobody looks, whatever was announced.
const RING_MAX: Duration = Duration::from_secs(3_600);
/// When the spool is asked again after it did not answer.
const AGAIN: Duration = Duration::from_secs(1);

/// When the first request is over.
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
    /// A request is over at this time.
    pub fn expect(&self, at: Timestamp) {
        if self.next.fetch_min(at.0, Ordering::AcqRel) > at.0 {
            self.earlier.notify_one();
        }
    }
}

impl Alarm {
    /// Whatever is announced from here on rings.
    pub fn set(&self) {
        self.next.store(i64::MAX, Ordering::Release);
    }

    /// Waits for the earliest time that was announced.
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

/// Runs until the exchanges stop.
pub(crate) async fn run(exchanges: Arc<Exchanges>) {
    let mut prune_at = Instant::now();
    loop {
        // Whatever is announced from here on is noticed, whether the spool shows it or not.
        exchanges.upkeep.next.store(i64::MAX, Ordering::Release);
        let next = expire(&exchanges).await;
        for (exchange, open) in exchanges.parts.spool.open_by_exchange() {
            metrics::gauge!("exchange_open_messages", "exchange" => exchange).set(open as f64);
        }
        for (partition, load) in exchanges.parts.spool.load_by_partition() {
            metrics::gauge!("exchange_partition_open_messages", "partition" => partition).set(load.open as f64);
            metrics::gauge!("exchange_partition_bytes", "partition" => partition).set(load.bytes as f64);
        }
        if Instant::now() >= prune_at {
            exchanges.suspend_all_strays().await;
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

/// Ends what is over. Gives when the next message is.
async fn expire(exchanges: &Exchanges) -> Option<Timestamp> {
    let now = exchanges.parts.clock.now();
    match exchanges.parts.spool.expire(now, STEP).await {
        Ok(Over { expired, unanswered, next }) => {
            for id in unanswered {
                tracing::warn!(message = %id, "no later reply came in time: the message is suspended");
                metrics::counter!("exchange_unanswered_total").increment(1);
                exchanges.callers.answer(id, Answer::None);
            }
            for id in expired {
                tracing::warn!(message = %id, "nobody answered a request in time");
                metrics::counter!("exchange_expired_total").increment(1);
                exchanges.callers.answer(id, Answer::None);
            }
            next
        }
        Err(error) => {
            tracing::error!(%error, "what is over cannot be ended");
            Some(now + AGAIN)
        }
    }
}

/// Removes what need not be kept. Gives whether there may be more.
async fn prune(exchanges: &Exchanges) -> bool {
    match exchanges.parts.spool.prune(exchanges.parts.clock.now(), STEP).await {
        // Each partition removed so many at most.
        Ok(removed) => removed >= STEP as u64,
        Err(error) => {
            tracing::error!(%error, "messages that are over cannot be removed");
            false
        }
    }
}

/// The same for what is tracked. By its properties a message is found for as long as it is there: if it waits or is suspended,
/// that may be longer than messages are kept otherwise.
pub(crate) async fn prune_tracking(exchanges: &Exchanges, now: Timestamp) -> bool {
    let replaced = async {
        let over = exchanges.parts.tracking.over(now).await?;
        if over.is_empty() {
            return Ok(false);
        }
        let sought: Vec<MessageId> = over.iter().flat_map(|block| &block.findable).map(|found| found.message).collect();
        let there = exchanges.parts.spool.those_there(&sought).await?;
        let (ids, may_be_more) = (over.iter().map(|block| block.id).collect(), over.len() == OVER_MAX);
        let kept = over.into_iter().filter_map(|mut block| {
            block.findable.retain(|found| there.contains(&found.message));
            let running = exchanges.find(&block.exchange);
            let kept = running.map_or(UNKNOWN_KEPT, |running| running.compiled.definition.retention);
            let OverBlock { exchange, findable, .. } = block;
            let goes_at = now + kept.max(PRUNE_EVERY);
            (!findable.is_empty()).then_some(NewBlock { exchange, goes_at, entries: Entries::Findable(findable) })
        });
        exchanges.parts.tracking.replace(ids, kept.collect()).await?;
        Ok::<_, StoreError>(may_be_more)
    };
    replaced.await.unwrap_or_else(|error| {
        tracing::error!(%error, "what is tracked and over cannot be removed");
        false
    })
}
