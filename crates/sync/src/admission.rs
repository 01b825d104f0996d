//! Admission control for sync requests: three pools (upload, reconcile, download), each with slots and a bounded queue.
//!
//! An uploaded block is unpacked in the first pool, applied to the rows in the second, and the new rows are read in the
//! third. The store has one writer, so the second pool can adapt its number of slots (adaptive concurrency). The queue
//! is fair: applications take turns, and so do the collections of one application if the collection is known. The rest
//! is first come, first served. A device has one request at a time. If the queue is full, the request is rejected with
//! a `retry_after` that differs per device (jitter).

use std::{collections::VecDeque, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tocsin_model::id::Name;
use tocsin_pace::AdaptiveConcurrency;
use tokio::{sync::oneshot, time::Instant};

use crate::error::{SyncError, SyncLimit};

/// Limits of concurrent sync work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum blocks unpacked and checked concurrently.
    pub uploads: usize,
    /// Maximum blocks applied to rows concurrently.
    pub reconciles: usize,
    /// Whether the number of these is adapted.
    pub sizing: Sizing,
    /// Maximum blocks read and packed concurrently.
    pub downloads: usize,
    /// Maximum requests that wait for each pool.
    pub waiting: usize,
    /// Maximum devices that wait for changes.
    pub watchers: usize,
}

/// Sizing of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sizing {
    /// Adaptive, up to the maximum.
    #[default]
    Auto,
    /// Always the maximum.
    Fixed,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { uploads: 4, reconciles: 20, sizing: Sizing::Auto, downloads: 4, waiting: 2_000, watchers: 10_000 }
    }
}

/// Status of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolStatus {
    /// Name.
    pub name: &'static str,
    /// Current slots.
    pub size: usize,
    /// Maximum slots.
    pub size_max: usize,
    /// Slots in use.
    pub busy: usize,
    /// Waiting requests.
    pub waiting: usize,
}

pub(crate) struct Admission {
    pub(crate) uploads: Pool,
    pub(crate) reconciles: Pool,
    pub(crate) downloads: Pool,
}

impl Admission {
    pub(crate) fn new(limits: &Limits) -> Admission {
        Admission {
            uploads: Pool::new("upload", limits.uploads, Sizing::Fixed, limits.waiting),
            reconciles: Pool::new("reconcile", limits.reconciles, limits.sizing, limits.waiting),
            downloads: Pool::new("download", limits.downloads, Sizing::Fixed, limits.waiting),
        }
    }
}

/// A pool of slots with a fair queue. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Pool(Arc<Shared>);

struct Shared {
    name: &'static str,
    size_max: usize,
    waiting_max: usize,
    state: Mutex<State>,
}

struct State {
    pace: AdaptiveConcurrency,
    busy: usize,
    /// Waiting requests, by application and collection.
    queues: Turns<Name, Turns<Option<Name>, VecDeque<oneshot::Sender<PoolSlot>>>>,
    /// Number of waiting requests; cancelled ones may still be in the queues, but are not counted.
    waiting: usize,
    /// Recent time for which a slot is held (moving average).
    held: Duration,
    /// Rejected requests of the current window, expected to return: start of the window, and their number.
    rejected: (Instant, usize),
}

/// Window in which rejected requests are expected to return.
const REJECTED_WINDOW: Duration = Duration::from_secs(5);
/// Maximum estimate of the waiting time; a device that returns afterwards gets a new estimate.
const WAIT_MAX: Duration = Duration::from_secs(120);
/// Minimum spread of `retry_after`, so that devices rejected together do not return together.
const JITTER_MIN: Duration = Duration::from_secs(4);

/// Round-robin queues: the first is served next, and then moves to the end.
struct Turns<K, Q>(VecDeque<(K, Q)>);

impl<K, Q> Default for Turns<K, Q> {
    fn default() -> Self {
        Turns(VecDeque::new())
    }
}

impl<K: PartialEq, Q: Default> Turns<K, Q> {
    fn of(&mut self, key: K) -> &mut Q {
        let at = self.0.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
            self.0.push_back((key, Q::default()));
            self.0.len() - 1
        });
        &mut self.0[at].1
    }

    /// Takes an item from the next queue that has one. `take` also returns whether the queue has more.
    fn next<T>(&mut self, mut take: impl FnMut(&mut Q) -> (Option<T>, bool)) -> (Option<T>, bool) {
        while let Some((key, mut queue)) = self.0.pop_front() {
            let (found, has_more) = take(&mut queue);
            if has_more {
                self.0.push_back((key, queue));
            }
            if found.is_some() {
                return (found, !self.0.is_empty());
            }
        }
        (None, false)
    }
}

/// A slot in a pool, released on drop.
pub(crate) struct PoolSlot {
    pool: Pool,
    since: Instant,
}

/// A slot, with the time it was waited for.
pub(crate) struct GrantedSlot {
    _place: PoolSlot,
    pub(crate) waited: Duration,
}

impl Pool {
    fn new(name: &'static str, size_max: usize, sizing: Sizing, waiting_max: usize) -> Pool {
        let size_max = size_max.max(1);
        let pace = match sizing {
            Sizing::Auto => AdaptiveConcurrency::new(size_max),
            Sizing::Fixed => AdaptiveConcurrency::fixed(size_max),
        };
        set_size_gauge(name, &pace);
        let (queues, held) = (Turns::default(), Duration::from_millis(1));
        let rejected = (Instant::now(), 0);
        let state = Mutex::new(State { pace, busy: 0, queues, waiting: 0, held, rejected });
        Pool(Arc::new(Shared { name, size_max, waiting_max, state }))
    }

    /// Waits for a slot, fairly per application and collection.
    ///
    /// # Errors
    /// `Busy` if too many requests wait already.
    pub(crate) async fn acquire(
        &self,
        application: &Name,
        collection: Option<&Name>,
    ) -> Result<GrantedSlot, SyncError> {
        let began = Instant::now();
        let place = match self.request_slot(application, collection, began)? {
            AdmissionResult::Given(place) => place,
            AdmissionResult::Later(place) => {
                let _waiting = Waiting(self);
                // The pool keeps the sender of a receiver that waits until it has sent a place.
                place.await.expect("each waiting receiver gets a slot")
            }
        };
        let waited = began.elapsed();
        metrics::histogram!("tocsin_sync_wait_seconds", "pool" => self.0.name).record(waited.as_secs_f64());
        Ok(GrantedSlot { _place: place, waited })
    }

    fn request_slot(
        &self,
        application: &Name,
        collection: Option<&Name>,
        now: Instant,
    ) -> Result<AdmissionResult, SyncError> {
        let mut state = self.0.state.lock();
        if state.busy < state.pace.limit() && state.waiting == 0 {
            return Ok(AdmissionResult::Given(self.place(&mut state, now)));
        }
        if state.waiting >= self.0.waiting_max {
            metrics::counter!("tocsin_sync_refused_total", "pool" => self.0.name).increment(1);
            let position = state.waiting;
            let reason = format!("{position} requests wait for the {} pool already", self.0.name);
            return Err(SyncError::Busy {
                limit: SyncLimit::Pool,
                reason,
                retry_after: state.retry_after(now),
                position,
            });
        }
        let (sender, receiver) = oneshot::channel();
        state.wait(application, collection, sender);
        // A slot may be free although requests are counted as waiting: a cancelled one returned its slot but is still
        // counted. No later `release` would grant it.
        let granted = self.grant(&mut state, now);
        drop(state);
        granted.into_iter().for_each(|(next, place)| drop(next.send(place)));
        Ok(AdmissionResult::Later(receiver))
    }

    /// Assigns the free slots to the next requests. Must be sent without the lock: a slot whose receiver is gone
    /// returns through `release`.
    fn grant(&self, state: &mut State, now: Instant) -> Vec<(oneshot::Sender<PoolSlot>, PoolSlot)> {
        let mut granted = Vec::new();
        while state.busy < state.pace.limit()
            && let Some(next) = state.next()
        {
            granted.push((next, self.place(state, now)));
        }
        granted
    }

    fn place(&self, state: &mut State, now: Instant) -> PoolSlot {
        state.busy += 1;
        state.pace.begin(now);
        PoolSlot { pool: self.clone(), since: now }
    }

    pub(crate) fn status(&self) -> PoolStatus {
        let state = self.0.state.lock();
        let (size, busy, waiting) = (state.pace.limit(), state.busy, state.waiting);
        PoolStatus { name: self.0.name, size, size_max: self.0.size_max, busy, waiting }
    }

    /// Releases a slot that was held for this long, and grants free slots to waiting requests.
    fn release(&self, now: Instant, held: Duration) {
        let granted = {
            let mut state = self.0.state.lock();
            let (size, is_full) = (state.pace.limit(), state.busy >= state.pace.limit());
            state.pace.answered(now, held, true, is_full);
            if state.pace.limit() != size {
                set_size_gauge(self.0.name, &state.pace);
            }
            state.held = (state.held * 15 + held) / 16;
            state.busy -= 1;
            self.grant(&mut state, now)
        };
        granted.into_iter().for_each(|(next, place)| drop(next.send(place)));
    }
}

fn set_size_gauge(pool: &'static str, pace: &AdaptiveConcurrency) {
    metrics::gauge!("tocsin_sync_pool_slots", "pool" => pool).set(pace.limit() as f64);
}

enum AdmissionResult {
    Given(PoolSlot),
    Later(oneshot::Receiver<PoolSlot>),
}

impl State {
    fn wait(&mut self, application: &Name, collection: Option<&Name>, sender: oneshot::Sender<PoolSlot>) {
        self.waiting += 1;
        let queue = self.queues.of(application.clone()).of(collection.cloned());
        // Drops cancelled requests before they outnumber the others.
        if queue.len() == queue.capacity() {
            queue.retain(|sender| !sender.is_closed());
        }
        queue.push_back(sender);
    }

    /// The next request: applications take turns, and within each its collections.
    fn next(&mut self) -> Option<oneshot::Sender<PoolSlot>> {
        let first = |queue: &mut VecDeque<oneshot::Sender<PoolSlot>>| {
            let found = std::iter::from_fn(|| queue.pop_front()).find(|sender| !sender.is_closed());
            (found, !queue.is_empty())
        };
        self.queues.next(|collections| collections.next(first)).0
    }

    /// Estimated time until the current queue and the rejected requests are served, plus jitter of up to half of it, at
    /// least [`JITTER_MIN`].
    fn retry_after(&mut self, now: Instant) -> Duration {
        if now - self.rejected.0 > REJECTED_WINDOW {
            self.rejected = (now, 0);
        }
        self.rejected.1 += 1;
        let ahead = self.waiting + self.rejected.1;
        let wait = self.held.mul_f64(ahead as f64 / self.pace.limit() as f64).min(WAIT_MAX);
        Duration::from_secs(1) + wait + (wait / 2).max(JITTER_MIN).mul_f64(fastrand::f64())
    }
}

/// Counts a waiting request until it is granted or cancelled.
struct Waiting<'a>(&'a Pool);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.0.state.lock().waiting -= 1;
    }
}

impl Drop for PoolSlot {
    fn drop(&mut self) {
        let now = Instant::now();
        self.pool.release(now, now - self.since);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().expect("a name")
    }

    #[tokio::test]
    async fn a_request_that_finds_the_queue_full_gets_a_retry_time() {
        let (pool, shop) = (Pool::new("upload", 1, Sizing::Fixed, 1), name("shop"));
        let first = pool.acquire(&shop, None).await.expect("free");
        let mut second = Box::pin(pool.acquire(&shop, None));
        assert!(futures_poll(&mut second).await.is_none(), "it waits");
        assert_eq!(pool.status(), PoolStatus { name: "upload", size: 1, size_max: 1, busy: 1, waiting: 1 });
        match pool.acquire(&shop, None).await {
            Err(SyncError::Busy { limit: SyncLimit::Pool, position: 1, retry_after, .. }) => {
                assert!(retry_after >= Duration::from_secs(1))
            }
            _ => panic!("the queue is full"),
        }
        drop(first);
        assert!(second.await.is_ok());
        assert_eq!((pool.status().waiting, pool.status().busy), (0, 0));
    }

    #[tokio::test]
    async fn b37_devices_rejected_together_do_not_return_together() {
        let (pool, shop) = (Pool::new("upload", 1, Sizing::Fixed, 1), name("shop"));
        let _first = pool.acquire(&shop, None).await.expect("free");
        let mut second = Box::pin(pool.acquire(&shop, None));
        assert!(futures_poll(&mut second).await.is_none(), "it waits");
        let mut times = std::collections::BTreeSet::new();
        for _ in 0..200 {
            let Err(SyncError::Busy { retry_after, .. }) = pool.acquire(&shop, None).await else {
                panic!("it is full")
            };
            assert!(retry_after >= Duration::from_secs(1) && retry_after < Duration::from_secs(7), "{retry_after:?}");
            times.insert(retry_after.as_secs());
        }
        assert!(times.len() >= 4, "200 devices come back within as many seconds: {times:?}");
        // A long holding time counts: 100 requests with slots of 2 s each are served after 200 s.
        pool.0.state.lock().held = Duration::from_secs(2);
        let Err(SyncError::Busy { retry_after, .. }) = pool.acquire(&shop, None).await else { panic!("it is full") };
        assert!(retry_after >= WAIT_MAX, "{retry_after:?}");
    }

    #[tokio::test]
    async fn a_cancelled_request_leaves_its_slot_to_the_next() {
        let (pool, shop) = (Pool::new("upload", 1, Sizing::Fixed, 10), name("shop"));
        let first = pool.acquire(&shop, None).await.expect("free");
        let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(pool.acquire(&shop, None))).collect();
        for one in &mut waiting {
            assert!(futures_poll(one).await.is_none(), "it waits");
        }
        // One is cancelled while it waits, and one after it was granted the slot.
        drop(waiting.remove(0));
        drop(first);
        drop(waiting.remove(0));
        assert!(waiting.remove(0).await.is_ok());
        assert_eq!((pool.status().waiting, pool.status().busy), (0, 0));
    }

    #[tokio::test]
    async fn b1_a_request_is_served_while_a_cancelled_one_is_still_counted() {
        let (pool, shop) = (Pool::new("upload", 1, Sizing::Fixed, 10), name("shop"));
        let first = pool.acquire(&shop, None).await.expect("free");
        let Ok(AdmissionResult::Later(gone)) = pool.request_slot(&shop, None, Instant::now()) else {
            panic!("the pool is full")
        };
        let counted = Waiting(&pool);
        drop(first);
        drop(gone);
        let mut next = Box::pin(pool.acquire(&shop, None));
        assert!(futures_poll(&mut next).await.is_some(), "no place is taken");
        drop(counted);
        drop(next);
        assert_eq!((pool.status().waiting, pool.status().busy), (0, 0));
    }

    #[tokio::test]
    async fn applications_take_turns() {
        let pool = Pool::new("upload", 1, Sizing::Fixed, 100);
        let first = pool.acquire(&name("big"), None).await.expect("free");
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = Vec::new();
        for application in ["big", "big", "big", "big", "small", "small"] {
            let (pool_of_it, order) = (pool.clone(), order.clone());
            waiting.push(tokio::spawn(async move {
                let _permit = pool_of_it.acquire(&name(application), None).await.expect("a place");
                order.lock().push(application);
            }));
            while pool.status().waiting < waiting.len() {
                tokio::task::yield_now().await;
            }
        }
        drop(first);
        for one in waiting {
            one.await.expect("it ends");
        }
        assert_eq!(*order.lock(), ["big", "small", "big", "small", "big", "big"]);
    }

    #[tokio::test]
    async fn collections_of_an_application_take_turns() {
        let pool = Pool::new("reconcile", 1, Sizing::Fixed, 100);
        let first = pool.acquire(&name("shop"), None).await.expect("free");
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = Vec::new();
        for (application, collection) in
            [("shop", "visits"), ("shop", "visits"), ("shop", "visits"), ("shop", "notes"), ("other", "orders")]
        {
            let (pool_of_it, order) = (pool.clone(), order.clone());
            waiting.push(tokio::spawn(async move {
                let collection = name(collection);
                let _permit = pool_of_it.acquire(&name(application), Some(&collection)).await.expect("a place");
                order.lock().push(collection.to_string());
            }));
            while pool.status().waiting < waiting.len() {
                tokio::task::yield_now().await;
            }
        }
        drop(first);
        for one in waiting {
            one.await.expect("it ends");
        }
        assert_eq!(*order.lock(), ["visits", "orders", "notes", "visits", "visits"]);
    }

    /// Work with a natural concurrency of eight, beyond which requests only wait.
    #[tokio::test(start_paused = true)]
    async fn an_adaptive_pool_finds_its_size_within_the_maximum() {
        let (pool, shop) = (Pool::new("reconcile", 64, Sizing::Auto, 1_000), name("shop"));
        let workers = Arc::new(tokio::sync::Semaphore::new(8));
        let ends = Instant::now() + Duration::from_secs(60);
        let devices = (0..100).map(|_| {
            let (pool, shop, workers) = (pool.clone(), shop.clone(), workers.clone());
            tokio::spawn(async move {
                while Instant::now() < ends {
                    let _permit = pool.acquire(&shop, None).await.expect("a place");
                    let _worker = workers.acquire().await.expect("open");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    let status = pool.status();
                    assert!(status.busy <= 64 && status.size <= status.size_max, "{status:?}");
                }
            })
        });
        for device in devices.collect::<Vec<_>>() {
            device.await.expect("it works");
        }
        let size = pool.status().size;
        assert!((6..=16).contains(&size), "eight work at a time: {size}");
    }

    async fn futures_poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
        std::future::poll_fn(|context| {
            std::task::Poll::Ready(match std::pin::Pin::new(&mut *future).poll(context) {
                std::task::Poll::Ready(output) => Some(output),
                std::task::Poll::Pending => None,
            })
        })
        .await
    }
}
