//! Worker groups (bulkheads): concurrency limits per kind of work.
//!
//! Each group has its own workers, so a flood in one group cannot starve another: receiving does not delay sending, and
//! tracking delays nothing. A message that waits for its receiver occupies no worker. A group adapts its limit, or has
//! the configured one. Messages without a worker wait in turn; flow control limits how many, by slowing senders down
//! earlier.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use tocsin_pace::AdaptiveConcurrency;
use tokio::{sync::Notify, time::Instant};

/// A worker group: one kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerGroup {
    /// Pipeline steps of receive ports.
    Receive,
    /// Evaluation of routes.
    Route,
    /// Pipeline steps of send ports, including replies.
    Send,
    /// Tracking of bodies.
    Track,
}

impl WorkerGroup {
    /// All of them.
    pub const ALL: [WorkerGroup; 4] = [WorkerGroup::Receive, WorkerGroup::Route, WorkerGroup::Send, WorkerGroup::Track];

    /// Its name in metrics and reports.
    pub const fn word(self) -> &'static str {
        match self {
            WorkerGroup::Receive => "receive",
            WorkerGroup::Route => "route",
            WorkerGroup::Send => "send",
            WorkerGroup::Track => "track",
        }
    }
}

/// Maximum workers of each group; 0: adaptive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkerLimits {
    /// See [`WorkerGroup`].
    pub receive: usize,
    /// See [`WorkerGroup`].
    pub route: usize,
    /// See [`WorkerGroup`].
    pub send: usize,
}

/// Load of a worker group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupLoad {
    /// The group.
    pub group: WorkerGroup,
    /// Workers in use.
    pub busy: usize,
    /// Messages that wait for a worker.
    pub waiting: usize,
    /// The present limit of workers.
    pub most: usize,
}

/// Upper bound of the adaptive limit, per processor. More workers let more messages share a commit, until one commit
/// takes all of them.
const MOST_FOR_EACH_PROCESSOR: usize = 16;

/// The groups of a process.
pub(crate) struct WorkerGroups([Arc<Workers>; 4]);

impl WorkerGroups {
    pub fn new(most: WorkerLimits) -> WorkerGroups {
        let many = std::thread::available_parallelism().map_or(2, std::num::NonZero::get) * MOST_FOR_EACH_PROCESSOR;
        let pace =
            |given: usize| if given == 0 { AdaptiveConcurrency::new(many) } else { AdaptiveConcurrency::fixed(given) };
        // Tracking writes to one file.
        let paces = [pace(most.receive), pace(most.route), pace(most.send), AdaptiveConcurrency::fixed(1)];
        WorkerGroups(paces.map(|pace| Arc::new(Workers::new(pace))))
    }

    pub fn of(&self, group: WorkerGroup) -> &Arc<Workers> {
        &self.0[group as usize]
    }

    pub fn load(&self) -> Vec<GroupLoad> {
        let load = |group: WorkerGroup| {
            let workers = self.of(group);
            let state = workers.state.lock();
            let waiting = workers.waiting.load(Ordering::Relaxed);
            GroupLoad { group, busy: state.busy, waiting, most: state.pace.limit() }
        };
        WorkerGroup::ALL.into_iter().map(load).collect()
    }
}

/// The workers of a group.
pub(crate) struct Workers {
    state: Mutex<State>,
    waiting: AtomicUsize,
    freed: Notify,
}

struct State {
    busy: usize,
    pace: AdaptiveConcurrency,
}

impl Workers {
    pub fn new(pace: AdaptiveConcurrency) -> Workers {
        Workers { state: Mutex::new(State { busy: 0, pace }), waiting: AtomicUsize::new(0), freed: Notify::new() }
    }

    /// Waits for a worker permit, which is released on drop.
    pub async fn enter(&self) -> WorkerPermit<'_> {
        let _waits = WaitingCount::new(&self.waiting);
        loop {
            let freed = self.freed.notified();
            if let Some(worker) = self.try_enter() {
                return worker;
            }
            freed.await;
        }
    }

    fn try_enter(&self) -> Option<WorkerPermit<'_>> {
        let now = Instant::now();
        let mut state = self.state.lock();
        if state.busy >= state.pace.limit() {
            return None;
        }
        state.busy += 1;
        state.pace.begin(now);
        // The limit can grow by more than one, so wake the next waiter too.
        if state.busy < state.pace.limit() {
            self.freed.notify_one();
        }
        Some(WorkerPermit { workers: self, since: now })
    }
}

/// Counts a waiter until it is dropped.
struct WaitingCount<'a>(&'a AtomicUsize);

impl<'a> WaitingCount<'a> {
    fn new(waiting: &'a AtomicUsize) -> WaitingCount<'a> {
        waiting.fetch_add(1, Ordering::Relaxed);
        WaitingCount(waiting)
    }
}

impl Drop for WaitingCount<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Permit of a worker in use.
pub(crate) struct WorkerPermit<'a> {
    workers: &'a Workers,
    since: Instant,
}

impl Drop for WorkerPermit<'_> {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut state = self.workers.state.lock();
        let is_full = state.busy >= state.pace.limit();
        state.pace.answered(now, now.duration_since(self.since), true, is_full);
        state.busy -= 1;
        drop(state);
        self.workers.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(receive: usize, send: usize) -> WorkerGroups {
        WorkerGroups::new(WorkerLimits { receive, route: 1, send })
    }

    fn load(groups: &WorkerGroups, group: WorkerGroup) -> (usize, usize, usize) {
        let load = groups.load().into_iter().find(|load| load.group == group).expect("all are there");
        (load.busy, load.waiting, load.most)
    }

    #[tokio::test]
    async fn a_flood_in_one_group_leaves_the_others_alone() {
        let groups = groups(2, 2);
        let receive = groups.of(WorkerGroup::Receive).clone();
        let held = [receive.enter().await, receive.enter().await];
        let flood: Vec<_> = (0..100)
            .map(|_| {
                tokio::spawn({
                    let receive = receive.clone();
                    async move {
                        receive.enter().await;
                    }
                })
            })
            .collect();
        while load(&groups, WorkerGroup::Receive).1 < 100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(load(&groups, WorkerGroup::Receive), (2, 100, 2));
        let _leaves = groups.of(WorkerGroup::Send).enter().await;
        assert_eq!(load(&groups, WorkerGroup::Send), (1, 0, 2));
        drop(held);
        for task in flood {
            task.await.expect("each has its turn");
        }
        assert_eq!(load(&groups, WorkerGroup::Receive), (0, 0, 2));
    }

    #[tokio::test]
    async fn a_cancelled_wait_does_not_leak_a_worker() {
        let groups = groups(1, 1);
        let receive = groups.of(WorkerGroup::Receive).clone();
        let held = receive.enter().await;
        for _ in 0..10 {
            let waits = tokio::spawn({
                let receive = receive.clone();
                async move {
                    receive.enter().await;
                }
            });
            while load(&groups, WorkerGroup::Receive).1 == 0 {
                tokio::task::yield_now().await;
            }
            waits.abort();
            assert!(waits.await.is_err());
        }
        drop(held);
        receive.enter().await;
        assert_eq!(load(&groups, WorkerGroup::Receive), (0, 0, 1));
    }

    #[test]
    fn a_group_without_a_configured_limit_adapts() {
        let groups = WorkerGroups::new(WorkerLimits::default());
        assert!(groups.load().iter().all(|load| load.most > 0 && load.busy == 0));
    }
}
