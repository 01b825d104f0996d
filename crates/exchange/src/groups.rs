//! Worker groups: how many messages are worked on at the same time, for each kind of work.
//!
//! Each group has workers of its own, so a flood in one never takes those of another: what comes does not keep what leaves
//! from leaving, and tracking keeps nobody from anything. A message that waits for its far side has no worker. A group finds
//! by itself how many help, or has as many as the configuration says; what finds none waits for its turn, and how many may
//! wait follows from the flow: senders are slowed down before.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use tocsin_pace::Pace;
use tokio::{sync::Notify, time::Instant};

/// A kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// The steps of receive ports.
    Receive,
    /// Predicates over messages.
    Route,
    /// The steps of send ports, also for replies.
    Send,
    /// What is kept of bodies on their way.
    Track,
}

impl Group {
    /// All of them.
    pub const ALL: [Group; 4] = [Group::Receive, Group::Route, Group::Send, Group::Track];

    /// Its one word.
    pub const fn word(self) -> &'static str {
        match self {
            Group::Receive => "receive",
            Group::Route => "route",
            Group::Send => "send",
            Group::Track => "track",
        }
    }
}

/// How many workers each group has at most; 0: it finds by itself how many help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkersMost {
    /// See [`Group`].
    pub receive: usize,
    /// See [`Group`].
    pub route: usize,
    /// See [`Group`].
    pub send: usize,
}

/// How busy a group is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupLoad {
    /// Which.
    pub group: Group,
    /// Messages that are worked on.
    pub busy: usize,
    /// Messages that wait for a worker.
    pub waiting: usize,
    /// How many workers there may be now.
    pub most: usize,
}

/// How many workers of a group may help, if it finds out by itself: with more of them more messages come to a commit at the
/// same time, until it takes all along anyway.
const MOST_FOR_EACH_PROCESSOR: usize = 16;

/// The groups of a process.
pub(crate) struct Groups([Arc<Workers>; 4]);

impl Groups {
    pub fn new(most: WorkersMost) -> Groups {
        let many = std::thread::available_parallelism().map_or(2, std::num::NonZero::get) * MOST_FOR_EACH_PROCESSOR;
        let pace = |given: usize| if given == 0 { Pace::new(many) } else { Pace::fixed(given) };
        // What is tracked goes to one file.
        let paces = [pace(most.receive), pace(most.route), pace(most.send), Pace::fixed(1)];
        Groups(paces.map(|pace| Arc::new(Workers::new(pace))))
    }

    pub fn of(&self, group: Group) -> &Arc<Workers> {
        &self.0[group as usize]
    }

    pub fn load(&self) -> Vec<GroupLoad> {
        let load = |group: Group| {
            let workers = self.of(group);
            let state = workers.state.lock();
            let waiting = workers.waiting.load(Ordering::Relaxed);
            GroupLoad { group, busy: state.busy, waiting, most: state.pace.limit() }
        };
        Group::ALL.into_iter().map(load).collect()
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
    pace: Pace,
}

impl Workers {
    pub fn new(pace: Pace) -> Workers {
        Workers { state: Mutex::new(State { busy: 0, pace }), waiting: AtomicUsize::new(0), freed: Notify::new() }
    }

    /// Waits for a worker. It works until it is dropped.
    pub async fn enter(&self) -> Worker<'_> {
        let _waits = Waits::new(&self.waiting);
        loop {
            let freed = self.freed.notified();
            if let Some(worker) = self.try_enter() {
                return worker;
            }
            freed.await;
        }
    }

    fn try_enter(&self) -> Option<Worker<'_>> {
        let now = Instant::now();
        let mut state = self.state.lock();
        if state.busy >= state.pace.limit() {
            return None;
        }
        state.busy += 1;
        state.pace.begin(now);
        // The limit may have grown by more than one.
        if state.busy < state.pace.limit() {
            self.freed.notify_one();
        }
        Some(Worker { workers: self, since: now })
    }
}

/// Somebody waits.
struct Waits<'a>(&'a AtomicUsize);

impl<'a> Waits<'a> {
    fn new(waiting: &'a AtomicUsize) -> Waits<'a> {
        waiting.fetch_add(1, Ordering::Relaxed);
        Waits(waiting)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A worker that works.
pub(crate) struct Worker<'a> {
    workers: &'a Workers,
    since: Instant,
}

impl Drop for Worker<'_> {
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

    fn groups(receive: usize, send: usize) -> Groups {
        Groups::new(WorkersMost { receive, route: 1, send })
    }

    fn load(groups: &Groups, group: Group) -> (usize, usize, usize) {
        let load = groups.load().into_iter().find(|load| load.group == group).expect("all are there");
        (load.busy, load.waiting, load.most)
    }

    #[tokio::test]
    async fn a_flood_in_one_group_leaves_the_others_alone() {
        let groups = groups(2, 2);
        let receive = groups.of(Group::Receive).clone();
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
        while load(&groups, Group::Receive).1 < 100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(load(&groups, Group::Receive), (2, 100, 2));
        let _leaves = groups.of(Group::Send).enter().await;
        assert_eq!(load(&groups, Group::Send), (1, 0, 2));
        drop(held);
        for task in flood {
            task.await.expect("each has its turn");
        }
        assert_eq!(load(&groups, Group::Receive), (0, 0, 2));
    }

    #[tokio::test]
    async fn who_gives_up_waiting_takes_no_worker_away() {
        let groups = groups(1, 1);
        let receive = groups.of(Group::Receive).clone();
        let held = receive.enter().await;
        for _ in 0..10 {
            let waits = tokio::spawn({
                let receive = receive.clone();
                async move {
                    receive.enter().await;
                }
            });
            while load(&groups, Group::Receive).1 == 0 {
                tokio::task::yield_now().await;
            }
            waits.abort();
            assert!(waits.await.is_err());
        }
        drop(held);
        receive.enter().await;
        assert_eq!(load(&groups, Group::Receive), (0, 0, 1));
    }

    #[test]
    fn a_group_without_a_number_finds_it_by_itself() {
        let groups = Groups::new(WorkersMost::default());
        assert!(groups.load().iter().all(|load| load.most > 0 && load.busy == 0));
    }
}
