//! Send queue of a port as a state machine: each input changes the state and returns the actions to take.
//!
//! Ready legs are in memory, and the rest is in the spool, the source of truth. Legs that exceed the memory limit, are
//! due later, or belong to a held port stay there and are read when they are due. So a receiver that is down for a week
//! costs memory for about a thousand legs. Legs that are in memory, in progress or reserved are excluded from reads: a
//! leg is reserved while it is being stored, since the spool can show it before it is pushed.
//!
//! For ordered delivery, all legs are read from the spool, which knows their sequence. One leg per ordering key is in
//! progress at a time. When a leg must be retried, the later legs of its key are evicted from memory.
//!
//! | input | effect | actions |
//! |---|---|---|
//! | `configure` | definition or state of the port; a port that does not send evicts its ready legs | start, refill |
//! | `set_rate` | rate limit of an operator | start, wake |
//! | `reserve`, `release` | a leg is being stored; it was not pushed | refill |
//! | `push` | a stored leg: ready if nothing in the spool comes before it | start |
//! | `claim` | a leg is sent before its commit, if it would be sent at once | |
//! | `finished` | an attempt ended: frees its slot and its ordering key | start, refill, wake |
//! | `refill` | the spool has legs that are not in memory | refill |
//! | `refilled`, `refill_failed` | result of a read: legs, and the time of the next one | start, refill, wake |
//! | `woken` | the time of a wake action has come | start, refill, wake |
//! | `remove_cancelled` | an operator ended messages | |
//!
//! Pure: time is part of each input, and the caller performs the actions.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use tocsin_delivery::Meter;
use tocsin_model::{
    application::Rate,
    exchange::{PortState, ServiceWindow},
    id::MessageId,
    time::Timestamp,
};
use tocsin_store::spool::{LegOrder, WaitingLeg};
use tokio::time::Instant;

mod throughput; // measured throughput of a port, and its backlog

use throughput::ThroughputEstimate;

/// Limits of a send queue.
const LIMITS: QueueLimits = QueueLimits { ready_max: 1_024, room_min: 16, refill_max: 256 };
/// Approximate maximum bytes of their bodies.
const READY_BYTES_MAX: usize = 16 << 20;
/// Delay before a failed read is retried.
const REFILL_AGAIN: Duration = Duration::from_secs(1);
/// Legs and bytes per read while memory is short.
const REFILL_SHORT: (usize, usize) = (16, 1 << 20);
/// A port holds the legs of this time in memory, plus its concurrency; the rest waits in the spool.
const AHEAD: Duration = Duration::from_secs(30);
/// Interval after which a rate of zero is checked again.
const RATE_CHECK: Duration = Duration::from_secs(60);
/// Longest time until a wake-up; a later one is requested again then.
const WAKE_MAX: Duration = Duration::from_secs(86_400);
/// A wake-up is not moved for less than this: the two clocks differ slightly.
const WAKE_GRAIN: Duration = Duration::from_millis(1);
/// An overloaded port accepts messages again when the expected wait is below this part of the limit.
pub(crate) const RELIEF: f64 = 0.75;

/// Identifies a leg: its message, and its number in the message.
pub(crate) type LegId = (MessageId, u32);

/// The id of a waiting leg.
pub(crate) fn leg_id(leg: &WaitingLeg) -> LegId {
    (leg.message, leg.leg.number)
}

/// Limits of a send queue; the model has lower ones.
#[derive(Debug, Clone, Copy)]
struct QueueLimits {
    /// Maximum ready legs in memory.
    ready_max: usize,
    /// Minimum capacity for ready legs, however slow the port is.
    room_min: usize,
    /// Legs per read of the spool.
    refill_max: usize,
}

/// Settings of a send queue, from the definition and the operator.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct QueueSettings {
    pub state: PortState,
    pub concurrency: u32,
    pub order: LegOrder,
    pub window: Option<ServiceWindow>,
}

impl QueueSettings {
    /// When the service window opens, if it is closed.
    fn opens_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.window.as_ref()?.opens(now)
    }

    /// Whether state and service window let the port send now.
    fn is_open(&self, now: Timestamp) -> bool {
        self.state == PortState::Active && self.opens_at(now).is_none()
    }
}

/// Time, and state of the process, at an input.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Conditions {
    pub now: Timestamp,
    /// The same moment on the monotonic clock, for rates and wake-ups.
    pub instant: Instant,
    /// Whether the process has reached its memory limit: reads are small then.
    pub memory_is_short: bool,
    /// Whether the process stops: nothing more is started then.
    pub is_stopping: bool,
}

/// Actions that the caller must take after an input.
#[derive(Debug, PartialEq)]
pub(crate) enum Action {
    /// Send this leg, then call `finished`.
    Start(Box<WaitingLeg>),
    /// Read due legs from the spool, then call `refilled` or `refill_failed`.
    Refill(RefillRequest),
    /// Call `woken` at this time, instead of an earlier request.
    WakeAt(Instant),
}

/// The actions after an input, in order.
pub(crate) type Actions = Vec<Action>;

/// A read of due legs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RefillRequest {
    /// Legs that the read must skip.
    pub skip: Arc<HashSet<LegId>>,
    pub order: LegOrder,
    pub legs_max: usize,
    pub bytes_max: usize,
}

/// Result of a read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Page {
    /// Due legs, in the order of sending.
    pub legs: Vec<WaitingLeg>,
    /// Whether the spool has no other due legs.
    pub is_all: bool,
    /// When the next leg is due.
    pub next_due: Option<Timestamp>,
}

impl RefillRequest {
    /// The page of these legs. Fewer than requested are all, unless the byte limit was reached.
    pub fn page(&self, legs: Vec<WaitingLeg>, next_due: Option<Timestamp>) -> Page {
        let bytes: usize = legs.iter().map(|leg| leg.body.len()).sum();
        let is_all = legs.is_empty() || (legs.len() < self.legs_max && bytes < self.bytes_max);
        Page { legs, is_all, next_due }
    }
}

/// Load of a send queue, for flow control.
pub(crate) struct FlowLoad {
    pub busy: u32,
    pub waiting: u64,
    pub concurrency: u32,
    pub rate: Option<Rate>,
    /// The reduced number of legs in memory, if the port is too slow for its messages.
    pub slowed_to: Option<usize>,
}

/// A leg that is no longer in progress.
#[derive(Debug, Clone)]
pub(crate) struct FinishedLeg {
    pub leg_id: LegId,
    /// Its ordering key.
    pub key: Option<String>,
    /// When it is retried, if it is.
    pub retry_at: Option<Timestamp>,
    pub is_suspended: bool,
    /// Duration of the attempt, if there was one.
    pub took: Option<Duration>,
}

impl FinishedLeg {
    /// A leg that leaves the queue without a result.
    pub fn of(leg: &WaitingLeg) -> FinishedLeg {
        FinishedLeg { leg_id: leg_id(leg), key: leg.lane.clone(), retry_at: None, is_suspended: false, took: None }
    }
}

/// State during a read of the spool.
#[derive(Debug, Clone, Default)]
struct Refill {
    /// Legs that finished since it began; the read can still return them as waiting.
    finished: HashSet<LegId>,
    /// Messages that an operator cancelled since.
    ended: HashSet<MessageId>,
    /// Ordering keys with a failure since; legs of them that were read must wait behind it.
    failed_keys: HashSet<String>,
    /// Whether a leg was added since that the read may not return.
    outdated: bool,
}

/// Send queue of one port.
#[derive(Clone)]
pub(crate) struct SendQueue {
    settings: QueueSettings,
    limits: QueueLimits,
    ready: VecDeque<WaitingLeg>,
    ready_bytes: usize,
    /// Legs in progress.
    busy: u32,
    /// Ordering keys of the legs in progress.
    busy_keys: HashSet<String>,
    /// Legs that are ready or in progress.
    in_memory: HashSet<LegId>,
    /// Legs that are reserved while they are being stored.
    reserved: HashSet<LegId>,
    /// Whether the spool has more due legs.
    is_truncated: bool,
    refill: Option<Refill>,
    /// After a failed read: when the next one may begin.
    refill_not_before: Option<Instant>,
    throughput: ThroughputEstimate,
    /// Rate limit that an operator has set.
    rate: Option<(Rate, Meter)>,
    /// When the spool has another due leg, or the service window opens.
    next_due: Option<Timestamp>,
    /// The requested wake-up.
    wake_at: Option<Instant>,
}

impl SendQueue {
    /// A queue whose legs, if any, are all in the spool.
    pub fn new(settings: QueueSettings) -> SendQueue {
        SendQueue {
            settings,
            limits: LIMITS,
            ready: VecDeque::new(),
            ready_bytes: 0,
            busy: 0,
            busy_keys: HashSet::new(),
            in_memory: HashSet::new(),
            reserved: HashSet::new(),
            is_truncated: true,
            refill: None,
            refill_not_before: None,
            throughput: ThroughputEstimate::default(),
            rate: None,
            next_due: None,
            wake_at: None,
        }
    }

    /// Changes the settings. Attempts in progress go on unchanged.
    pub fn configure(&mut self, settings: QueueSettings, conditions: &Conditions) -> Actions {
        self.settings = settings;
        if self.settings.state != PortState::Active {
            for leg in self.ready.drain(..) {
                self.in_memory.remove(&leg_id(&leg));
            }
            self.ready_bytes = 0;
            self.mark_truncated();
        }
        self.next_actions(conditions)
    }

    /// Limits the rate of sending; `None`: unlimited.
    pub fn set_rate(&mut self, rate: Option<Rate>, conditions: &Conditions) -> Actions {
        self.rate = rate.map(|rate| (rate, Meter::new(rate)));
        self.next_actions(conditions)
    }

    /// Reserves a leg that is being stored, so that it is not both read from the spool and pushed.
    pub fn reserve(&mut self, leg_id: LegId) {
        self.reserved.insert(leg_id);
    }

    /// Ends a reservation. Returns whether the leg was neither pushed nor cancelled, so that the caller must call
    /// `refill`.
    pub fn release(&mut self, leg_id: LegId) -> bool {
        self.reserved.remove(&leg_id)
    }

    /// Adds a reserved leg that was just stored. A leg that is not reserved, or was cancelled meanwhile, is left to the
    /// spool.
    pub fn push(&mut self, leg: WaitingLeg, conditions: &Conditions) -> Actions {
        let room = self.room();
        let is_reserved = self.reserved.remove(&leg_id(&leg));
        self.throughput.waiting += 1;
        self.throughput.moves += 1;
        let may_enter = is_reserved && self.settings.state == PortState::Active;
        let is_next = !self.is_truncated && self.refill.is_none() && self.has_room(room);
        match self.settings.order {
            LegOrder::Due | LegOrder::Rank if may_enter && is_next => self.insert(leg),
            LegOrder::Rank if may_enter && self.comes_before_others(&leg) => self.insert_evicting(leg, room),
            _ => self.mark_truncated(),
        }
        self.next_actions(conditions)
    }

    /// Starts a leg before its message is stored, only if it would be sent at once in any case. Returns whether it is
    /// in progress.
    pub fn claim(&mut self, leg_id: LegId, conditions: &Conditions) -> bool {
        let is_open = self.settings.is_open(conditions.now) && !conditions.is_stopping;
        if !is_open || matches!(self.settings.order, LegOrder::Lanes { .. }) {
            return false;
        }
        let is_next = self.ready.is_empty() && !self.is_truncated && self.refill.is_none();
        let is_full = self.busy >= self.settings.concurrency || self.next_slot_at(conditions.instant).is_some();
        if !is_next || is_full {
            return false;
        }
        self.in_memory.insert(leg_id);
        self.throughput.moves += 1;
        self.count_started(conditions.instant);
        true
    }

    /// Removes cancelled messages from memory, from the reservations and from a read in progress. Attempts in progress
    /// go on.
    pub fn remove_cancelled(&mut self, ended: &HashSet<MessageId>) {
        let SendQueue { ready, ready_bytes, in_memory, reserved, refill, .. } = self;
        reserved.retain(|(message, _)| !ended.contains(message));
        ready.retain(|leg| {
            let stays = !ended.contains(&leg.message);
            if !stays {
                *ready_bytes -= leg.body.len();
                in_memory.remove(&leg_id(leg));
            }
            stays
        });
        if let Some(refill) = refill {
            refill.ended.extend(ended);
        }
    }

    /// Reads the spool, which has legs that are not in memory.
    pub fn refill(&mut self, conditions: &Conditions) -> Actions {
        self.mark_truncated();
        self.next_actions(conditions)
    }

    /// Releases a leg after its attempt.
    pub fn finished(&mut self, leg: FinishedLeg, conditions: &Conditions) -> Actions {
        let stops = self.settings.order == LegOrder::Lanes { stops: true };
        if let Some(took) = leg.took {
            self.throughput.note(took, self.busy, leg.retry_at.is_some() || leg.is_suspended);
        }
        self.busy -= 1;
        self.throughput.moves += 1;
        self.in_memory.remove(&leg.leg_id);
        if let Some(refill) = &mut self.refill {
            refill.finished.insert(leg.leg_id);
        }
        if let Some(key) = leg.key {
            self.release_key(key, leg.retry_at.is_some() || (leg.is_suspended && stops));
        }
        if let Some(due_at) = leg.retry_at {
            self.expect_due(due_at);
        }
        self.next_actions(conditions)
    }

    /// Adds the legs that a read returned.
    pub fn refilled(&mut self, page: Page, conditions: &Conditions) -> Actions {
        let refill = self.refill.take().unwrap_or_default();
        // A port that stopped sending meanwhile reads again when it sends; legs of a removed one are suspended by then.
        let is_active = self.settings.state == PortState::Active;
        self.is_truncated = refill.outdated || !page.is_all || !is_active;
        let has_failed = |leg: &WaitingLeg| leg.lane.as_ref().is_some_and(|key| refill.failed_keys.contains(key));
        let has_ended =
            |leg: &WaitingLeg| refill.finished.contains(&leg_id(leg)) || refill.ended.contains(&leg.message);
        let is_good = |leg: &WaitingLeg| is_active && !has_ended(leg) && !has_failed(leg);
        for leg in page.legs.into_iter().filter(is_good) {
            if !self.reserved.contains(&leg_id(&leg)) {
                self.insert(leg);
            }
        }
        page.next_due.into_iter().for_each(|due_at| self.expect_due(due_at));
        self.next_actions(conditions)
    }

    /// Retries a failed read after a pause.
    pub fn refill_failed(&mut self, conditions: &Conditions) -> Actions {
        self.refill = None;
        self.is_truncated = true;
        self.refill_not_before = Some(conditions.instant + REFILL_AGAIN);
        self.next_actions(conditions)
    }

    /// Continues at the time of a wake-up.
    pub fn woken(&mut self, conditions: &Conditions) -> Actions {
        self.wake_at = None;
        self.next_actions(conditions)
    }

    /// The state of the port.
    pub fn state(&self) -> PortState {
        self.settings.state
    }

    /// When the service window opens, if it is closed.
    pub fn opens_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.settings.opens_at(now)
    }

    /// The number of legs in progress, and of ready legs.
    pub fn load(&self) -> (u32, usize) {
        (self.busy, self.ready.len())
    }

    /// The legs in progress.
    pub fn in_progress(&self) -> Vec<LegId> {
        let ready: HashSet<LegId> = self.ready.iter().map(leg_id).collect();
        self.in_memory.difference(&ready).copied().collect()
    }

    /// Its load, for flow control.
    pub fn flow_load(&self) -> FlowLoad {
        let room = self.room();
        FlowLoad {
            busy: self.busy,
            waiting: self.throughput.waiting,
            concurrency: self.settings.concurrency,
            rate: self.rate.as_ref().map(|(rate, _)| *rate),
            slowed_to: (room < self.limits.ready_max && self.throughput.waiting > room as u64).then_some(room),
        }
    }

    /// The number of added and started legs, for [`SendQueue::counted`], if the spool can have more due legs than known
    /// here.
    pub fn moves_if_truncated(&self) -> Option<u64> {
        let is_behind = self.is_truncated || self.refill.is_some() || self.throughput.waiting > self.ready.len() as u64;
        is_behind.then_some(self.throughput.moves)
    }

    /// Corrects the backlog by a count of due legs in the spool, including those in progress. `moves_before` is from
    /// before the count.
    ///
    /// A leg that moves during the count may or may not be included, so differences up to the number of such legs are
    /// ignored.
    pub fn counted(&mut self, due: u64, moves_before: u64) {
        let counted = due.saturating_sub(self.busy.into());
        let uncertain = self.throughput.moves - moves_before + u64::from(self.busy) + self.reserved.len() as u64;
        if counted.abs_diff(self.throughput.waiting) > uncertain {
            self.throughput.waiting = counted;
        }
    }

    /// Expected wait of a new leg; `None` if unknown, because the port does not send now or its receiver is
    /// unavailable.
    pub fn expected_wait(&self, now: Timestamp) -> Option<Duration> {
        if !self.settings.is_open(now) {
            return None;
        }
        let per_second = self.throughput.per_second(self.rate.as_ref().map(|(rate, _)| rate))?;
        Duration::try_from_secs_f64(self.throughput.waiting as f64 / per_second).ok()
    }

    /// Expected wait of a new leg, if it exceeds the limit; or, after that, until it is below the relief threshold.
    pub fn excessive_wait(&mut self, most: Duration, now: Timestamp) -> Option<Duration> {
        let most = if self.throughput.is_crowded { most.mul_f64(RELIEF) } else { most };
        // A backlog within the concurrency is not a queue, however slow the receiver is.
        let many = self.throughput.waiting > u64::from(self.settings.concurrency);
        let excessive_wait = self.expected_wait(now).filter(|wait| many && *wait > most);
        self.throughput.is_crowded = excessive_wait.is_some();
        excessive_wait
    }

    /// Starts as many legs as limits allow, reads more when few are ready, and asks to be woken for the rest.
    fn next_actions(&mut self, conditions: &Conditions) -> Actions {
        let mut actions = Actions::new();
        if conditions.is_stopping || self.settings.state != PortState::Active {
            return actions;
        }
        if self.next_due.is_some_and(|at| at <= conditions.now) {
            self.next_due = None;
            self.mark_truncated();
        }
        let mut slot_at = None;
        match self.settings.opens_at(conditions.now) {
            Some(opens_at) => self.expect_due(opens_at),
            None => {
                while self.busy < self.settings.concurrency {
                    slot_at = self.next_slot_at(conditions.instant);
                    if slot_at.is_some() {
                        break;
                    }
                    let Some(leg) = self.next(conditions.instant) else { break };
                    actions.push(Action::Start(Box::new(leg)));
                }
                actions.extend(self.next_refill(conditions).map(Action::Refill));
            }
        }
        let due_at = self.next_due.map(|at| conditions.instant + at.since(conditions.now).min(WAKE_MAX));
        let slot_at = slot_at.filter(|_| !self.ready.is_empty());
        let refill_at = self.refill_not_before.filter(|_| self.is_truncated && self.refill.is_none());
        if let Some(at) = [due_at, slot_at, refill_at].into_iter().flatten().min()
            && self.wake_at.is_none_or(|known| at + WAKE_GRAIN < known)
        {
            self.wake_at = Some(at);
            actions.push(Action::WakeAt(at));
        }
        actions
    }

    /// The next read of the spool, if one is needed and may begin.
    fn next_refill(&mut self, conditions: &Conditions) -> Option<RefillRequest> {
        let room = self.room();
        let enough = if conditions.memory_is_short { 1 } else { self.limits.refill_max.min(room / 2).max(1) };
        let is_needed = self.is_truncated && self.refill.is_none() && self.ready.len() < enough;
        if !is_needed || self.refill_not_before.is_some_and(|at| at > conditions.instant) {
            return None;
        }
        self.refill_not_before = None;
        self.refill = Some(Refill::default());
        let (legs_max, bytes_max) = match conditions.memory_is_short {
            true => REFILL_SHORT,
            false => (self.limits.refill_max.min(room), READY_BYTES_MAX),
        };
        let skip = self.in_memory.union(&self.reserved).copied().collect();
        Some(RefillRequest { skip: Arc::new(skip), order: self.settings.order, legs_max, bytes_max })
    }

    /// Capacity for ready legs: about those of half a minute, and at least the concurrency. For ordered delivery it is
    /// the maximum, since legs of one key would displace others.
    fn room(&self) -> usize {
        let QueueLimits { ready_max, room_min, .. } = self.limits;
        if matches!(self.settings.order, LegOrder::Lanes { .. }) {
            return ready_max;
        }
        let Some(per_second) = self.throughput.per_second(self.rate.as_ref().map(|(rate, _)| rate)) else {
            return ready_max;
        };
        let at_once = (self.settings.concurrency as usize).clamp(room_min, ready_max);
        ((per_second * AHEAD.as_secs_f64()) as usize).clamp(at_once, ready_max)
    }

    fn has_room(&self, room: usize) -> bool {
        self.ready.len() < room && self.ready_bytes < READY_BYTES_MAX
    }

    /// Expects another due leg in the spool at this time.
    fn expect_due(&mut self, at: Timestamp) {
        self.next_due = Some(self.next_due.map_or(at, |earlier| earlier.min(at)));
    }

    /// Marks that the spool has legs that are not in memory.
    fn mark_truncated(&mut self) {
        self.is_truncated = true;
        if let Some(refill) = &mut self.refill {
            refill.outdated = true;
        }
    }

    fn insert(&mut self, leg: WaitingLeg) {
        if self.in_memory.insert(leg_id(&leg)) {
            self.ready_bytes += leg.body.len();
            let at = match leg.rank {
                Some(_) => self.ready.partition_point(|other| rank(other) <= rank(&leg)),
                None => self.ready.len(),
            };
            self.ready.insert(at, leg);
        }
    }

    fn comes_before_others(&self, leg: &WaitingLeg) -> bool {
        self.ready.back().is_some_and(|last| rank(leg) < rank(last))
    }

    /// Inserts a leg, and evicts the last ones beyond the capacity.
    fn insert_evicting(&mut self, leg: WaitingLeg, room: usize) {
        self.insert(leg);
        while !self.has_room(room)
            && self.ready.len() > 1
            && let Some(last) = self.ready.pop_back()
        {
            self.evict(&last);
        }
    }

    /// Drops a ready leg from memory; it stays in the spool.
    fn evict(&mut self, leg: &WaitingLeg) {
        self.ready_bytes -= leg.body.len();
        self.in_memory.remove(&leg_id(leg));
        self.mark_truncated();
    }

    /// When the rate limit allows the next leg, if not now.
    fn next_slot_at(&self, now: Instant) -> Option<Instant> {
        let (rate, meter) = self.rate.as_ref()?;
        if rate.messages == 0 {
            return Some(now + RATE_CHECK);
        }
        meter.wait(now)
    }

    /// The first leg whose ordering key has no leg in progress.
    fn next(&mut self, now: Instant) -> Option<WaitingLeg> {
        let is_free = |leg: &WaitingLeg| leg.lane.as_ref().is_none_or(|key| !self.busy_keys.contains(key));
        let leg = self.ready.remove(self.ready.iter().position(is_free)?)?;
        self.ready_bytes -= leg.body.len();
        self.throughput.waiting = self.throughput.waiting.saturating_sub(1).max(self.ready.len() as u64);
        self.busy_keys.extend(leg.lane.clone());
        self.count_started(now);
        Some(leg)
    }

    /// Counts a started leg.
    fn count_started(&mut self, now: Instant) {
        self.busy += 1;
        self.throughput.moves += 1;
        if let Some((_, meter)) = &mut self.rate {
            meter.count(now);
        }
    }

    /// Releases an ordering key. If its leg `failed` and blocks the key, evicts the later legs of the key.
    fn release_key(&mut self, key: String, failed: bool) {
        self.busy_keys.remove(&key);
        self.mark_truncated();
        if failed {
            let (behind, ready): (VecDeque<WaitingLeg>, _) =
                self.ready.drain(..).partition(|leg| leg.lane.as_ref() == Some(&key));
            self.ready = ready;
            behind.iter().for_each(|leg| self.evict(leg));
            if let Some(refill) = &mut self.refill {
                refill.failed_keys.insert(key);
            }
        }
    }
}

fn rank(leg: &WaitingLeg) -> (Option<Timestamp>, MessageId, u32) {
    (leg.rank, leg.message, leg.leg.number)
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
