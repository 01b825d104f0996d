//! How many at a time: three pools, each with places and a queue of its own.
//!
//! A block that is sent up is unpacked in the first, meets the rows in the second, and what is new is read in the third. The
//! store has one writer, so the bound of the second holds for everybody; within it, the second finds by itself how many places
//! help. Who finds no place waits: applications take turns, and within one so do collections, as far as it is known which one a
//! request is about; the rest is first come first served. A device has one request at a time, so none takes the place of many.
//! Who finds the queue full is told when to come again, each at another time.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tocsin_model::id::Name;
use tocsin_pace::Pace;
use tokio::{sync::oneshot, time::Instant};

use crate::SyncError;

/// How much at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Blocks that are unpacked and checked.
    pub uploads: usize,
    /// Blocks that meet the rows, at most.
    pub reconciles: usize,
    /// Whether it is found out how many of these help.
    pub sizing: Sizing,
    /// Blocks that are read and packed.
    pub downloads: usize,
    /// Requests that may wait for each of these.
    pub waiting: usize,
    /// Devices that may wait for news.
    pub watchers: usize,
}

/// How many places a pool has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sizing {
    /// As many as help, and never more than its bound.
    #[default]
    Auto,
    /// As many as its bound.
    Fixed,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { uploads: 4, reconciles: 20, sizing: Sizing::Auto, downloads: 4, waiting: 2_000, watchers: 10_000 }
    }
}

/// A pool as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolStatus {
    /// Its name.
    pub name: &'static str,
    /// Its places.
    pub size: usize,
    /// Those that it may have.
    pub size_max: usize,
    /// Those that are taken.
    pub busy: usize,
    /// Requests that wait.
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

/// Places, and who waits for them. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Pool(Arc<Shared>);

struct Shared {
    name: &'static str,
    size_max: usize,
    waiting_max: usize,
    state: Mutex<State>,
}

struct State {
    pace: Pace,
    busy: usize,
    /// Who waits, by application and collection.
    queues: Turns<Name, Turns<Option<Name>, VecDeque<oneshot::Sender<Place>>>>,
    /// How many wait; those who went away are in the queues and not in here.
    waiting: usize,
    /// How long a place was held of late.
    held: Duration,
    /// Requests that were sent away within a window, which will come back: its begin, and their number.
    sent_away: (Instant, usize),
}

/// The time for which requests that were sent away count among those that will come back.
const SENT_AWAY_WINDOW: Duration = Duration::from_secs(5);
/// The longest estimate of a queue. Behind it a device comes again and asks anew.
const WAIT_MAX: Duration = Duration::from_secs(120);
/// The least spread of the times that are told, so that devices that are sent away together do not come back together.
const SPREAD_MIN: Duration = Duration::from_secs(4);

/// Queues that take turns: the first is served next, and then goes to the end.
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

    /// What the next queue gives that gives something. `take` says whether there is more in it.
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

/// A place in a pool; it is free again when this is dropped.
pub(crate) struct Place {
    pool: Pool,
    since: Instant,
}

/// A place, and how long it was waited for.
pub(crate) struct Seat {
    _place: Place,
    pub(crate) waited: Duration,
}

impl Pool {
    fn new(name: &'static str, size_max: usize, sizing: Sizing, waiting_max: usize) -> Pool {
        let size_max = size_max.max(1);
        let pace = match sizing {
            Sizing::Auto => Pace::new(size_max),
            Sizing::Fixed => Pace::fixed(size_max),
        };
        note_size(name, &pace);
        let (queues, held) = (Turns::default(), Duration::from_millis(1));
        let sent_away = (Instant::now(), 0);
        let state = Mutex::new(State { pace, busy: 0, queues, waiting: 0, held, sent_away });
        Pool(Arc::new(Shared { name, size_max, waiting_max, state }))
    }

    /// Waits for a place, in the turn of an application, and within that of a collection.
    ///
    /// # Errors
    /// `Busy` if too many wait already.
    pub(crate) async fn enter(&self, application: &Name, collection: Option<&Name>) -> Result<Seat, SyncError> {
        let began = Instant::now();
        let place = match self.ask(application, collection, began)? {
            Asked::Given(place) => place,
            Asked::Later(place) => {
                let _waiting = Waiting(self);
                // The pool keeps the sender of a receiver that waits until it has sent a place.
                place.await.expect("a place comes to each receiver that waits")
            }
        };
        let waited = began.elapsed();
        metrics::histogram!("sync_wait_seconds", "pool" => self.0.name).record(waited.as_secs_f64());
        Ok(Seat { _place: place, waited })
    }

    fn ask(&self, application: &Name, collection: Option<&Name>, now: Instant) -> Result<Asked, SyncError> {
        let mut state = self.0.state.lock();
        if state.busy < state.pace.limit() && state.waiting == 0 {
            return Ok(Asked::Given(self.place(&mut state, now)));
        }
        if state.waiting >= self.0.waiting_max {
            metrics::counter!("sync_refused_total", "pool" => self.0.name).increment(1);
            let position = state.waiting;
            let reason = format!("{position} requests wait for the {} pool already", self.0.name);
            return Err(SyncError::Busy { reason, retry_after: state.retry_after(now), position });
        }
        let (sender, receiver) = oneshot::channel();
        state.wait(application, collection, sender);
        // A place may be free although some are counted as waiting: one that went away gave its place back, and is
        // still counted. No `leave` would follow then.
        let granted = self.grant(&mut state, now);
        drop(state);
        granted.into_iter().for_each(|(next, place)| drop(next.send(place)));
        Ok(Asked::Later(receiver))
    }

    /// The places that are free now, each with the request that is next. To be sent without the lock: a place whose
    /// receiver is gone comes back by `leave`.
    fn grant(&self, state: &mut State, now: Instant) -> Vec<(oneshot::Sender<Place>, Place)> {
        let mut granted = Vec::new();
        while state.busy < state.pace.limit()
            && let Some(next) = state.next()
        {
            granted.push((next, self.place(state, now)));
        }
        granted
    }

    fn place(&self, state: &mut State, now: Instant) -> Place {
        state.busy += 1;
        state.pace.begin(now);
        Place { pool: self.clone(), since: now }
    }

    pub(crate) fn status(&self) -> PoolStatus {
        let state = self.0.state.lock();
        let (size, busy, waiting) = (state.pace.limit(), state.busy, state.waiting);
        PoolStatus { name: self.0.name, size, size_max: self.0.size_max, busy, waiting }
    }

    /// A place was left after so long: those who wait get what is free now.
    fn leave(&self, now: Instant, held: Duration) {
        let granted = {
            let mut state = self.0.state.lock();
            let (size, is_full) = (state.pace.limit(), state.busy >= state.pace.limit());
            state.pace.answered(now, held, true, is_full);
            if state.pace.limit() != size {
                note_size(self.0.name, &state.pace);
            }
            state.held = (state.held * 15 + held) / 16;
            state.busy -= 1;
            self.grant(&mut state, now)
        };
        granted.into_iter().for_each(|(next, place)| drop(next.send(place)));
    }
}

fn note_size(pool: &'static str, pace: &Pace) {
    metrics::gauge!("sync_pool_places", "pool" => pool).set(pace.limit() as f64);
}

enum Asked {
    Given(Place),
    Later(oneshot::Receiver<Place>),
}

impl State {
    fn wait(&mut self, application: &Name, collection: Option<&Name>, sender: oneshot::Sender<Place>) {
        self.waiting += 1;
        let queue = self.queues.of(application.clone()).of(collection.cloned());
        // Those who went away and whose turn has not come are let go before there are more of them than of others.
        if queue.len() == queue.capacity() {
            queue.retain(|sender| !sender.is_closed());
        }
        queue.push_back(sender);
    }

    /// Who is next: the applications take turns, and in each its collections.
    fn next(&mut self) -> Option<oneshot::Sender<Place>> {
        let first = |queue: &mut VecDeque<oneshot::Sender<Place>>| {
            let found = std::iter::from_fn(|| queue.pop_front()).find(|sender| !sender.is_closed());
            (found, !queue.is_empty())
        };
        self.queues.next(|collections| collections.next(first)).0
    }

    /// When the queue of now, and those that were sent away before, will have been served, by how long places are held; and up
    /// to half of that later, but never by less than [`SPREAD_MIN`].
    fn retry_after(&mut self, now: Instant) -> Duration {
        if now - self.sent_away.0 > SENT_AWAY_WINDOW {
            self.sent_away = (now, 0);
        }
        self.sent_away.1 += 1;
        let ahead = self.waiting + self.sent_away.1;
        let wait = self.held.mul_f64(ahead as f64 / self.pace.limit() as f64).min(WAIT_MAX);
        Duration::from_secs(1) + wait + (wait / 2).max(SPREAD_MIN).mul_f64(fastrand::f64())
    }
}

/// Counted while somebody waits, also one who goes away.
struct Waiting<'a>(&'a Pool);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.0.state.lock().waiting -= 1;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let now = Instant::now();
        self.pool.leave(now, now - self.since);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().expect("a name")
    }

    #[tokio::test]
    async fn who_finds_the_queue_full_is_told_when_to_come_again() {
        let (pool, shop) = (Pool::new("upload", 1, Sizing::Fixed, 1), name("shop"));
        let first = pool.enter(&shop, None).await.expect("free");
        let mut second = Box::pin(pool.enter(&shop, None));
        assert!(futures_poll(&mut second).await.is_none(), "it waits");
        assert_eq!(pool.status(), PoolStatus { name: "upload", size: 1, size_max: 1, busy: 1, waiting: 1 });
        match pool.enter(&shop, None).await {
            Err(SyncError::Busy { position: 1, retry_after, .. }) => assert!(retry_after >= Duration::from_secs(1)),
            _ => panic!("the queue is full"),
        }
        drop(first);
        assert!(second.await.is_ok());
        assert_eq!((pool.status().waiting, pool.status().busy), (0, 0));
    }

    #[tokio::test]
    async fn b37_devices_that_are_sent_away_together_do_not_come_back_together() {
        let (pool, shop) = (Pool::new("upload", 1, Sizing::Fixed, 1), name("shop"));
        let _first = pool.enter(&shop, None).await.expect("free");
        let mut second = Box::pin(pool.enter(&shop, None));
        assert!(futures_poll(&mut second).await.is_none(), "it waits");
        let mut told = std::collections::BTreeSet::new();
        for _ in 0..200 {
            let Err(SyncError::Busy { retry_after, .. }) = pool.enter(&shop, None).await else { panic!("it is full") };
            assert!(retry_after >= Duration::from_secs(1) && retry_after < Duration::from_secs(7), "{retry_after:?}");
            told.insert(retry_after.as_secs());
        }
        assert!(told.len() >= 4, "200 devices come back within as many seconds: {told:?}");
        // Places that are held for long are waited for: 100 that wait for a place of 2 s each are served after 200 s.
        pool.0.state.lock().held = Duration::from_secs(2);
        let Err(SyncError::Busy { retry_after, .. }) = pool.enter(&shop, None).await else { panic!("it is full") };
        assert!(retry_after >= WAIT_MAX, "{retry_after:?}");
    }

    #[tokio::test]
    async fn who_goes_away_leaves_its_place_to_the_next() {
        let (pool, shop) = (Pool::new("upload", 1, Sizing::Fixed, 10), name("shop"));
        let first = pool.enter(&shop, None).await.expect("free");
        let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(pool.enter(&shop, None))).collect();
        for one in &mut waiting {
            assert!(futures_poll(one).await.is_none(), "it waits");
        }
        // One goes while it waits, one when it was given the place but did not hear of it.
        drop(waiting.remove(0));
        drop(first);
        drop(waiting.remove(0));
        assert!(waiting.remove(0).await.is_ok());
        assert_eq!((pool.status().waiting, pool.status().busy), (0, 0));
    }

    #[tokio::test]
    async fn b1_a_request_is_served_while_one_that_went_away_is_still_counted() {
        let (pool, shop) = (Pool::new("upload", 1, Sizing::Fixed, 10), name("shop"));
        let first = pool.enter(&shop, None).await.expect("free");
        let Ok(Asked::Later(gone)) = pool.ask(&shop, None, Instant::now()) else { panic!("the pool is full") };
        let counted = Waiting(&pool);
        drop(first);
        drop(gone);
        let mut next = Box::pin(pool.enter(&shop, None));
        assert!(futures_poll(&mut next).await.is_some(), "no place is taken");
        drop(counted);
        drop(next);
        assert_eq!((pool.status().waiting, pool.status().busy), (0, 0));
    }

    #[tokio::test]
    async fn applications_take_turns() {
        let pool = Pool::new("upload", 1, Sizing::Fixed, 100);
        let first = pool.enter(&name("big"), None).await.expect("free");
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = Vec::new();
        for application in ["big", "big", "big", "big", "small", "small"] {
            let (pool_of_it, order) = (pool.clone(), order.clone());
            waiting.push(tokio::spawn(async move {
                let _seat = pool_of_it.enter(&name(application), None).await.expect("a place");
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
        let first = pool.enter(&name("shop"), None).await.expect("free");
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = Vec::new();
        for (application, collection) in
            [("shop", "visits"), ("shop", "visits"), ("shop", "visits"), ("shop", "notes"), ("other", "orders")]
        {
            let (pool_of_it, order) = (pool.clone(), order.clone());
            waiting.push(tokio::spawn(async move {
                let collection = name(collection);
                let _seat = pool_of_it.enter(&name(application), Some(&collection)).await.expect("a place");
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

    /// Work that eight can do at a time, so that more would only wait.
    #[tokio::test(start_paused = true)]
    async fn a_pool_finds_how_many_places_help_and_has_never_more_than_it_may() {
        let (pool, shop) = (Pool::new("reconcile", 64, Sizing::Auto, 1_000), name("shop"));
        let workers = Arc::new(tokio::sync::Semaphore::new(8));
        let ends = Instant::now() + Duration::from_secs(60);
        let devices = (0..100).map(|_| {
            let (pool, shop, workers) = (pool.clone(), shop.clone(), workers.clone());
            tokio::spawn(async move {
                while Instant::now() < ends {
                    let _seat = pool.enter(&shop, None).await.expect("a place");
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
