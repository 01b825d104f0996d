//! How many at a time: three pools, each with places and a queue of its own.
//!
//! A block that is sent up is unpacked in the first, meets the rows in the second, and what is new is read in the third. The
//! store has one writer, so the bound of the second holds for everybody. Who finds no place waits, first come first served; a
//! device has one request at a time, so none takes the place of many. Who finds the queue full is told when to come again, each
//! at another time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::SyncError;

/// How much at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Blocks that are unpacked and checked.
    pub uploads: usize,
    /// Blocks that meet the rows.
    pub reconciles: usize,
    /// Blocks that are read and packed.
    pub downloads: usize,
    /// Requests that may wait for each of these.
    pub waiting: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { uploads: 4, reconciles: 20, downloads: 4, waiting: 2_000 }
    }
}

/// A pool as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolStatus {
    /// Its name.
    pub name: &'static str,
    /// Its places.
    pub size: usize,
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
            uploads: Pool::new("upload", limits.uploads, limits.waiting),
            reconciles: Pool::new("reconcile", limits.reconciles, limits.waiting),
            downloads: Pool::new("download", limits.downloads, limits.waiting),
        }
    }
}

pub(crate) struct Pool {
    name: &'static str,
    size: usize,
    places: Arc<Semaphore>,
    waiting: AtomicUsize,
    waiting_max: usize,
    /// How long a place was held of late, in microseconds.
    held_micros: AtomicU64,
}

/// A place in a pool.
pub(crate) struct Seat<'a> {
    pool: &'a Pool,
    since: Instant,
    /// How long it was waited for.
    pub(crate) waited: Duration,
    _place: OwnedSemaphorePermit,
}

impl Pool {
    fn new(name: &'static str, size: usize, waiting_max: usize) -> Pool {
        let size = size.max(1);
        let places = Arc::new(Semaphore::new(size));
        Pool { name, size, places, waiting: AtomicUsize::new(0), waiting_max, held_micros: AtomicU64::new(1_000) }
    }

    /// Waits for a place.
    ///
    /// # Errors
    /// `Busy` if too many wait already.
    pub(crate) async fn enter(&self) -> Result<Seat<'_>, SyncError> {
        let began = Instant::now();
        let place = match self.places.clone().try_acquire_owned() {
            Ok(place) => place,
            Err(_) => {
                let waiting = Waiting::begin(self)?;
                let place = self.places.clone().acquire_owned().await.expect("pools are never closed");
                drop(waiting);
                place
            }
        };
        let waited = began.elapsed();
        metrics::histogram!("sync_wait_seconds", "pool" => self.name).record(waited.as_secs_f64());
        Ok(Seat { pool: self, since: Instant::now(), waited, _place: place })
    }

    pub(crate) fn status(&self) -> PoolStatus {
        let busy = self.size - self.places.available_permits().min(self.size);
        PoolStatus { name: self.name, size: self.size, busy, waiting: self.waiting.load(Ordering::Relaxed) }
    }

    /// When the queue of now will be empty, by how long places are held, and up to half of that later: who is sent away
    /// together does not come back together.
    fn retry_after(&self, waiting: usize) -> Duration {
        let micros = self.held_micros.load(Ordering::Relaxed) * waiting as u64 / self.size as u64;
        Duration::from_secs(1)
            + Duration::from_micros(micros).min(Duration::from_secs(120)).mul_f64(1.0 + fastrand::f64() / 2.0)
    }
}

/// Counted while somebody waits, also one who goes away.
struct Waiting<'a>(&'a Pool);

impl<'a> Waiting<'a> {
    fn begin(pool: &'a Pool) -> Result<Waiting<'a>, SyncError> {
        let position = pool.waiting.fetch_add(1, Ordering::Relaxed);
        let waiting = Waiting(pool);
        if position < pool.waiting_max {
            return Ok(waiting);
        }
        metrics::counter!("sync_refused_total", "pool" => pool.name).increment(1);
        Err(SyncError::Busy {
            reason: format!("{position} requests wait for the {} pool already", pool.name),
            retry_after: pool.retry_after(position),
            position,
        })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let held = u64::try_from(self.since.elapsed().as_micros()).unwrap_or(u64::MAX);
        let before = self.pool.held_micros.load(Ordering::Relaxed);
        self.pool.held_micros.store(before - before / 16 + held / 16, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_finds_the_queue_full_is_told_when_to_come_again() {
        let pool = Pool::new("upload", 1, 1);
        let first = pool.enter().await.expect("free");
        let mut second = Box::pin(pool.enter());
        assert!(futures_poll(&mut second).await.is_none(), "it waits");
        assert_eq!(pool.status(), PoolStatus { name: "upload", size: 1, busy: 1, waiting: 1 });
        match pool.enter().await {
            Err(SyncError::Busy { position: 1, retry_after, .. }) => assert!(retry_after >= Duration::from_secs(1)),
            _ => panic!("the queue is full"),
        }
        drop(first);
        assert!(second.await.is_ok());
        assert_eq!(pool.status().waiting, 0);
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
