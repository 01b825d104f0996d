//! State-machine model of a send queue, checked against sequences of inputs: messages that are stored, pushed, claimed
//! or given up, reads, outcomes, states of the port, cancellation and the passing of time.
//!
//! [`World`] is a queue with a model of its spool, its attempts and its timer. After each input these must hold:
//!
//! - the queue's sums fit its legs, and no bound is exceeded (`check_invariants`),
//! - a leg is started only if it waits, its port sends, and nothing before it in its ordering key is open (`start`),
//! - all legs are sent once the port sends and the receiver accepts (`check_progress`): no leg is forgotten in the
//!   spool, and no wake-up is lost.
//!
//! All short sequences are tried, by breadth-first search over distinct states, and long ones at random.

use std::{
    collections::{BTreeSet, HashSet, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
};

use proptest::prelude::{Just, ProptestConfig, Strategy, TestCaseError, prop_oneof, proptest};

use super::{
    tests::{conditions, leg, settings},
    *,
};

const LOW: QueueLimits = QueueLimits { ready_max: 2, room_min: 1, refill_max: 2 };

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Done,
    /// To be sent again after so many seconds.
    Retry(u64),
    Suspended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    /// A message is stored; its leg is not pushed yet.
    Store,
    /// The first leg that is stored is pushed.
    Push,
    /// The first reservation is dropped.
    GiveUp,
    /// A message is sent before it is stored, if the queue allows it.
    Claim,
    /// The requested read sees the spool as it is now.
    Read,
    /// The queue gets the result of the read.
    Deliver,
    /// The read fails.
    Fail,
    /// The attempt of this number ends.
    Finish(usize, Outcome),
    State(PortState),
    /// An operator stops sending by a rate of zero, or removes the rate.
    Stop(bool),
    /// An operator cancels the first open message.
    Cancel,
    /// An operator resumes the first suspended message.
    Resume,
    /// So many seconds pass.
    Pass(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Stored {
    /// Waits, and is due at this second.
    Waiting(u64),
    Suspended,
    Over,
}

#[derive(Clone)]
struct World {
    queue: SendQueue,
    order: LegOrder,
    concurrency: u32,
    state: PortState,
    is_stopped: bool,
    start: Instant,
    seconds: u64,
    /// The state of each message, by id; id 0 is the first.
    spool: Vec<Stored>,
    unpushed: Vec<usize>,
    in_progress: Vec<usize>,
    request: Option<RefillRequest>,
    page: Option<Page>,
    wake_at: Option<Instant>,
    /// Whether the caller ignores wake-ups, to show that the checks can fail.
    ignores_wakes: bool,
}

impl World {
    fn new(order: LegOrder, concurrency: u32) -> World {
        let mut queue = SendQueue::new(settings(PortState::Active, concurrency, order));
        queue.limits = LOW;
        World {
            queue,
            order,
            concurrency,
            state: PortState::Active,
            is_stopped: false,
            start: Instant::now(),
            seconds: 0,
            spool: Vec::new(),
            unpushed: Vec::new(),
            in_progress: Vec::new(),
            request: None,
            page: None,
            wake_at: None,
            ignores_wakes: false,
        }
    }

    fn key_of(&self, id: usize) -> Option<String> {
        matches!(self.order, LegOrder::Lanes { .. }).then(|| format!("k{}", id % 2))
    }

    /// The leg of a message. With ranks, every second message is more urgent than those before it.
    fn leg(&self, id: usize) -> WaitingLeg {
        let rank = (self.order == LegOrder::Rank).then_some(if id % 2 == 1 { 0 } else { id as i64 + 1 });
        leg(id as u64, self.key_of(id).as_deref(), rank)
    }

    fn conditions(&self) -> Conditions {
        conditions(self.start, self.seconds)
    }

    fn input(&mut self, input: impl FnOnce(&mut SendQueue, &Conditions) -> Actions) -> Result<(), String> {
        let conditions = self.conditions();
        for action in input(&mut self.queue, &conditions) {
            match action {
                Action::Start(leg) => self.start(&leg)?,
                Action::Refill(_) if self.request.is_some() || self.page.is_some() => return Err("two reads".into()),
                Action::Refill(request) => self.request = Some(request),
                Action::WakeAt(_) if self.ignores_wakes => {}
                Action::WakeAt(at) => self.wake_at = Some(at),
            }
        }
        Ok(())
    }

    fn start(&mut self, leg: &WaitingLeg) -> Result<(), String> {
        let id = usize::try_from(leg.message.0).expect("it is small");
        if self.in_progress.contains(&id) {
            return Err(format!("{id} is started twice"));
        }
        if !matches!(self.spool[id], Stored::Waiting(at) if at <= self.seconds) {
            return Err(format!("{id} is started while it is {:?}", self.spool[id]));
        }
        if self.state != PortState::Active || self.is_stopped {
            return Err(format!("{id} is started while the port does not send"));
        }
        let key = self.key_of(id);
        let is_open = |other: usize| match self.spool[other] {
            Stored::Waiting(_) => true,
            Stored::Suspended => self.order == LegOrder::Lanes { stops: true },
            Stored::Over => false,
        };
        if let Some(before) = (0..id).find(|other| key.is_some() && self.key_of(*other) == key && is_open(*other)) {
            return Err(format!("{id} overtakes {before}"));
        }
        self.in_progress.push(id);
        Ok(())
    }

    /// Stores a message. Legs of ordered delivery are not reserved.
    fn store(&mut self) -> usize {
        self.spool.push(Stored::Waiting(self.seconds));
        self.spool.len() - 1
    }

    /// Result of a read of the spool, as the store defines it.
    fn due(&self, request: &RefillRequest) -> Vec<usize> {
        let is_due = |id: &usize| matches!(self.spool[*id], Stored::Waiting(at) if at <= self.seconds);
        let is_skipped = |id: &usize| request.skip.contains(&(MessageId(*id as u64), 0));
        let mut due: Vec<usize> = match self.order {
            LegOrder::Due | LegOrder::Rank => (0..self.spool.len()).filter(is_due).collect(),
            LegOrder::Lanes { stops } => {
                let (mut blocked, mut due) = (HashSet::new(), Vec::new());
                for id in 0..self.spool.len() {
                    let key = self.key_of(id);
                    match self.spool[id] {
                        Stored::Over => {}
                        Stored::Suspended if stops => drop(blocked.insert(key)),
                        Stored::Suspended => {}
                        Stored::Waiting(_) if blocked.contains(&key) => {}
                        Stored::Waiting(at) if at > self.seconds => drop(blocked.insert(key)),
                        Stored::Waiting(_) => due.push(id),
                    }
                }
                due
            }
        };
        match self.order {
            LegOrder::Due => due.sort_by_key(|id| (self.due_at(*id), *id)),
            LegOrder::Rank => due.sort_by_key(|id| rank(&self.leg(*id))),
            LegOrder::Lanes { .. } => {}
        }
        due.retain(|id| !is_skipped(id));
        due.truncate(request.legs_max);
        due
    }

    fn due_at(&self, id: usize) -> u64 {
        match self.spool[id] {
            Stored::Waiting(at) => at,
            Stored::Suspended | Stored::Over => u64::MAX,
        }
    }

    fn act(&mut self, act: Act) -> Result<(), String> {
        match act {
            Act::Store => {
                let id = self.store();
                if self.key_of(id).is_none() {
                    self.queue.reserve((MessageId(id as u64), 0));
                }
                self.unpushed.push(id);
                Ok(())
            }
            Act::Push if !self.unpushed.is_empty() => {
                let id = self.unpushed.remove(0);
                let leg = self.leg(id);
                self.input(|queue, conditions| queue.push(leg, conditions))
            }
            Act::GiveUp if !self.unpushed.is_empty() && self.key_of(self.unpushed[0]).is_none() => {
                let id = self.unpushed.remove(0);
                match self.queue.release((MessageId(id as u64), 0)) {
                    true => self.input(SendQueue::refill),
                    false if self.spool[id] == Stored::Over => Ok(()),
                    false => Err(format!("{id} is not reserved")),
                }
            }
            Act::Claim => {
                let (id, conditions) = (self.spool.len(), self.conditions());
                if self.queue.claim((MessageId(id as u64), 0), &conditions) {
                    self.store();
                    self.start(&self.leg(id))?;
                }
                Ok(())
            }
            Act::Read => {
                if let Some(request) = self.request.take() {
                    let legs = self.due(&request).into_iter().map(|id| self.leg(id)).collect();
                    let later = (0..self.spool.len()).map(|id| self.due_at(id));
                    let next = later.filter(|at| *at > self.seconds && *at < u64::MAX).min();
                    let next = next.map(|at| Timestamp(0) + Duration::from_secs(at));
                    self.page = Some(request.page(legs, next));
                }
                Ok(())
            }
            Act::Deliver => match self.page.take() {
                Some(page) => self.input(|queue, conditions| queue.refilled(page, conditions)),
                None => Ok(()),
            },
            Act::Fail if self.request.take().is_some() || self.page.take().is_some() => {
                self.input(SendQueue::refill_failed)
            }
            Act::Finish(number, outcome) if number < self.in_progress.len() => self.finish(number, outcome),
            Act::State(state) => {
                self.state = state;
                let settings = settings(state, self.concurrency, self.order);
                self.input(|queue, conditions| queue.configure(settings, conditions))
            }
            Act::Stop(is_stopped) => {
                self.is_stopped = is_stopped;
                let rate = is_stopped.then(|| "0".parse::<Rate>().expect("a rate"));
                self.input(|queue, conditions| queue.set_rate(rate, conditions))
            }
            Act::Cancel => {
                let Some(id) = self.spool.iter().position(|stored| *stored != Stored::Over) else { return Ok(()) };
                self.spool[id] = Stored::Over;
                self.queue.remove_cancelled(&HashSet::from([MessageId(id as u64)]));
                self.input(SendQueue::refill)
            }
            // Without `stops`, the order of a key holds until an operator resumes an earlier message.
            Act::Resume if self.order != (LegOrder::Lanes { stops: false }) => {
                let Some(id) = self.spool.iter().position(|stored| *stored == Stored::Suspended) else { return Ok(()) };
                self.spool[id] = Stored::Waiting(self.seconds);
                self.input(SendQueue::refill)
            }
            Act::Pass(seconds) => {
                self.seconds += seconds;
                self.wake()
            }
            Act::Push | Act::GiveUp | Act::Fail | Act::Finish(..) | Act::Resume => Ok(()),
        }
    }

    /// Calls the queue if the time of its wake-up has come.
    fn wake(&mut self) -> Result<(), String> {
        match self.wake_at {
            Some(at) if at <= self.conditions().instant => {
                self.wake_at = None;
                self.input(SendQueue::woken)
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self, number: usize, outcome: Outcome) -> Result<(), String> {
        let id = self.in_progress.remove(number);
        let is_cancelled = self.spool[id] == Stored::Over;
        let finished = FinishedLeg::of(&self.leg(id));
        let finished = match outcome {
            // The outcome of a cancelled message changes nothing in the spool.
            _ if is_cancelled => finished,
            Outcome::Done => {
                self.spool[id] = Stored::Over;
                finished
            }
            Outcome::Retry(after) => {
                let due_at = self.seconds + after;
                self.spool[id] = Stored::Waiting(due_at);
                FinishedLeg { retry_at: Some(Timestamp(0) + Duration::from_secs(due_at)), ..finished }
            }
            Outcome::Suspended => {
                self.spool[id] = Stored::Suspended;
                FinishedLeg { is_suspended: true, ..finished }
            }
        };
        self.input(|queue, conditions| queue.finished(finished, conditions))
    }

    fn check_invariants(&self) -> Result<(), String> {
        let queue = &self.queue;
        let ready: Vec<usize> = queue.ready.iter().map(|leg| leg.message.0 as usize).collect();
        let in_memory: BTreeSet<usize> = queue.in_memory.iter().map(|(message, _)| message.0 as usize).collect();
        let known: BTreeSet<usize> = ready.iter().chain(&self.in_progress).copied().collect();
        if in_memory != known || known.len() != ready.len() + self.in_progress.len() {
            return Err(format!("in memory are {in_memory:?}, ready {ready:?}, in progress {:?}", self.in_progress));
        }
        if queue.busy as usize != self.in_progress.len() || queue.busy > self.concurrency {
            return Err(format!("{} are counted as in progress, not {:?}", queue.busy, self.in_progress));
        }
        if queue.ready_bytes != ready.len() || ready.len() > LOW.ready_max + LOW.refill_max {
            return Err(format!("{} bytes of {ready:?}", queue.ready_bytes));
        }
        if !queue.ready.iter().map(rank).is_sorted() && self.order == LegOrder::Rank {
            return Err(format!("{ready:?} are not in the order of rank"));
        }
        if let Some(id) = ready.iter().find(|id| !matches!(self.spool[**id], Stored::Waiting(_))) {
            return Err(format!("{id} is ready while it is {:?}", self.spool[*id]));
        }
        if queue.refill.is_some() != (self.request.is_some() || self.page.is_some()) {
            return Err("a read is lost".into());
        }
        Ok(())
    }

    /// All legs are sent once the port sends, the spool answers and the receiver accepts.
    fn check_progress(mut self) -> Result<(), String> {
        self.act(Act::Stop(false))?;
        self.act(Act::State(PortState::Active))?;
        while !self.unpushed.is_empty() {
            self.act(Act::Push)?;
        }
        for _ in 0..200 {
            self.check_invariants()?;
            if self.request.is_some() {
                self.act(Act::Read)?;
            } else if self.page.is_some() {
                self.act(Act::Deliver)?;
            } else if !self.in_progress.is_empty() {
                self.act(Act::Finish(0, Outcome::Done))?;
            } else if !self.spool.iter().any(|stored| matches!(stored, Stored::Waiting(_))) {
                return Ok(());
            } else if self.order == (LegOrder::Lanes { stops: true }) && self.spool.contains(&Stored::Suspended) {
                // The legs behind it wait for an operator, who cancels it.
                let id = self.spool.iter().position(|stored| *stored == Stored::Suspended).expect("there is one");
                self.spool[id] = Stored::Over;
                self.input(SendQueue::refill)?;
            } else {
                let Some(at) = self.wake_at else {
                    return Err(format!("{:?} wait, and no event will come", self.spool));
                };
                let ahead = at.saturating_duration_since(self.conditions().instant);
                self.act(Act::Pass(ahead.as_secs()))?;
            }
        }
        Err(format!("{:?} wait still", self.spool))
    }

    fn check(&self) -> Result<(), String> {
        self.check_invariants()?;
        self.clone().check_progress()
    }

    /// Hash of the state; equal for states that behave alike from now on.
    fn fingerprint(&self) -> u64 {
        let (mut hash, conditions) = (DefaultHasher::new(), self.conditions());
        let ahead = |at: Instant| at.saturating_duration_since(conditions.instant);
        let sorted = |ids: &HashSet<LegId>| ids.iter().copied().collect::<BTreeSet<LegId>>();
        let queue = &self.queue;
        for stored in &self.spool {
            match stored {
                Stored::Waiting(at) => (0, at.saturating_sub(self.seconds)).hash(&mut hash),
                Stored::Suspended => 1.hash(&mut hash),
                Stored::Over => 2.hash(&mut hash),
            }
        }
        // Legs are read in the order of their due times.
        let mut by_due: Vec<usize> = (0..self.spool.len()).collect();
        by_due.sort_by_key(|id| (self.due_at(*id), *id));
        (by_due, &self.unpushed, &self.in_progress, std::mem::discriminant(&self.state), self.is_stopped)
            .hash(&mut hash);
        queue.ready.iter().map(leg_id).collect::<Vec<_>>().hash(&mut hash);
        (sorted(&queue.reserved), queue.is_truncated).hash(&mut hash);
        queue.busy_keys.iter().collect::<BTreeSet<_>>().hash(&mut hash);
        queue.next_due.map(|at| at.since(conditions.now)).hash(&mut hash);
        (queue.wake_at.map(ahead), queue.refill_not_before.map(ahead), self.wake_at.map(ahead)).hash(&mut hash);
        if let Some(refill) = &queue.refill {
            let failed: BTreeSet<&String> = refill.failed_keys.iter().collect();
            let ended: BTreeSet<&MessageId> = refill.ended.iter().collect();
            (sorted(&refill.finished), ended, failed, refill.outdated).hash(&mut hash);
        }
        self.request.as_ref().map(|request| sorted(&request.skip)).hash(&mut hash);
        let legs = |page: &Page| page.legs.iter().map(leg_id).collect::<Vec<_>>();
        let next = |page: &Page| page.next_due.map(|at| at.since(conditions.now));
        self.page.as_ref().map(|page| (legs(page), page.is_all, next(page))).hash(&mut hash);
        hash.finish()
    }
}

const ORDERS: [LegOrder; 4] =
    [LegOrder::Due, LegOrder::Rank, LegOrder::Lanes { stops: false }, LegOrder::Lanes { stops: true }];

fn acts(concurrency: u32) -> Vec<Act> {
    let mut acts = vec![Act::Store, Act::Push, Act::GiveUp, Act::Claim, Act::Read, Act::Deliver, Act::Fail];
    for number in 0..concurrency as usize {
        let outcomes = [Outcome::Done, Outcome::Retry(0), Outcome::Retry(3), Outcome::Suspended];
        acts.extend(outcomes.map(|outcome| Act::Finish(number, outcome)));
    }
    acts.extend([PortState::Active, PortState::Hold, PortState::Off].map(Act::State));
    acts.extend([Act::Stop(true), Act::Stop(false), Act::Cancel, Act::Resume, Act::Pass(1), Act::Pass(3)]);
    acts
}

/// Checks all sequences of up to `depth` inputs after `stored` messages; equivalent states are followed once.
fn check_all(order: LegOrder, concurrency: u32, stored: usize, depth: usize) -> usize {
    let mut world = World::new(order, concurrency);
    world.act(Act::State(PortState::Active)).expect("it begins");
    for _ in 0..stored {
        world.act(Act::Store).and_then(|()| world.act(Act::Push)).expect("it is stored");
    }
    let acts = acts(concurrency);
    let mut seen = HashSet::new();
    let mut level = vec![(world, Vec::new())];
    for _ in 0..depth {
        let mut next = Vec::new();
        for (world, path) in level {
            for act in &acts {
                let (mut world, mut path): (World, Vec<Act>) = (world.clone(), path.clone());
                path.push(*act);
                if let Err(text) = world.act(*act) {
                    panic!("{order:?}, {concurrency} at a time, {stored} stored: {text}: {path:?}");
                }
                if !seen.insert(world.fingerprint()) {
                    continue;
                }
                if let Err(text) = world.check() {
                    panic!("{order:?}, {concurrency} at a time, {stored} stored: {text}: {path:?}");
                }
                next.push((world, path));
            }
        }
        level = next;
    }
    seen.len()
}

#[test]
fn a_lost_wake_up_is_found() {
    let check = |ignores_wakes| {
        let mut world = World { ignores_wakes, ..World::new(LegOrder::Due, 1) };
        for act in [Act::State(PortState::Active), Act::Read, Act::Deliver, Act::Store, Act::Push] {
            world.act(act).expect("it goes well");
        }
        world.act(Act::Finish(0, Outcome::Retry(3))).and_then(|()| world.check())
    };
    assert_eq!(check(false), Ok(()));
    assert!(check(true).is_err_and(|why| why.contains("no event will come")));
}

#[test]
fn b1_no_short_sequence_of_inputs_loses_a_leg_or_a_wake() {
    for order in ORDERS {
        assert!(check_all(order, 1, 0, 5) > 200, "{order:?}");
        assert!(check_all(order, 2, 3, 4) > 200, "{order:?}");
    }
}

#[test]
fn slow_b1_no_longer_sequence_of_inputs_loses_a_leg_or_a_wake() {
    for order in ORDERS {
        for (concurrency, stored) in [(1, 0), (1, 4), (2, 2), (2, 5)] {
            assert!(check_all(order, concurrency, stored, 6) > 1_000, "{order:?}");
        }
    }
}

fn any_act() -> impl Strategy<Value = Act> {
    let outcome = prop_oneof![
        4 => Just(Outcome::Done),
        2 => (0..20u64).prop_map(Outcome::Retry),
        1 => Just(Outcome::Suspended),
    ];
    let state = prop_oneof![2 => Just(PortState::Active), 1 => Just(PortState::Hold), 1 => Just(PortState::Off)];
    prop_oneof![
        4 => Just(Act::Store),
        4 => Just(Act::Push),
        1 => Just(Act::GiveUp),
        1 => Just(Act::Claim),
        4 => Just(Act::Read),
        4 => Just(Act::Deliver),
        1 => Just(Act::Fail),
        6 => ((0..3usize), outcome).prop_map(|(number, outcome)| Act::Finish(number, outcome)),
        1 => state.prop_map(Act::State),
        1 => proptest::bool::ANY.prop_map(Act::Stop),
        1 => Just(Act::Cancel),
        1 => Just(Act::Resume),
        3 => (0..30u64).prop_map(Act::Pass),
    ]
}

fn check_long(acts: &[Act], mut world: World) -> Result<(), TestCaseError> {
    for act in acts {
        world.act(*act).map_err(TestCaseError::fail)?;
        world.check_invariants().map_err(TestCaseError::fail)?;
    }
    world.check_progress().map_err(TestCaseError::fail)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn b1_no_long_sequence_of_inputs_loses_a_leg_or_a_wake(
        acts in proptest::collection::vec(any_act(), 0..120),
        concurrency in 1..4u32,
        order in 0..ORDERS.len(),
    ) {
        check_long(&acts, World::new(ORDERS[order], concurrency))?;
    }
}
