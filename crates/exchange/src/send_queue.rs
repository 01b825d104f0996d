//! Send queue of a port: legs that are ready in memory, and overflow in the spool.
//!
//! The spool is the source of truth. Legs that exceed the memory limit, are due later, or belong to a held port stay
//! there and are read when they are due. So a receiver that is down for a week costs memory for about a thousand legs.
//! Legs that are in memory, in progress or reserved are excluded from reads: a leg is reserved while it is being
//! stored, since the spool can show it before it is pushed.
//!
//! For ordered delivery, all legs are read from the spool, which knows their sequence. One leg per ordering key is in
//! progress at a time. When a leg must be retried, the later legs of its key are evicted from memory.

use std::{
    collections::{HashSet, VecDeque},
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use tocsin_delivery::Meter;
use tocsin_model::{
    application::Rate,
    exchange::{Mode, PortState, SendOrder},
    id::{MessageId, Name},
    time::Timestamp,
    value::Value,
};
use tocsin_store::spool::{CorrelationKey, Head, LegOrder, NewLeg, NewMessage, WaitingLeg};
use tokio::{task::AbortHandle, time::Instant};

use crate::{
    Exchanges, RunningExchange, compile::CompiledSendPort, meters::SendMeters, promote, reply_correlation, send,
};

/// Maximum ready legs of a port in memory.
const READY_MAX: usize = 1_024;
/// Minimum capacity for ready legs, however slow the port is.
const ROOM_MIN: usize = 16;
/// Approximate maximum bytes of their bodies.
const READY_BYTES_MAX: usize = 16 << 20;
/// The highest priority.
const PRIORITY_MAX: i64 = 9;
/// Legs per read of the spool.
const REFILL: usize = 256;
/// Delay before a failed read is retried.
const REFILL_AGAIN: Duration = Duration::from_secs(1);
/// Legs and bytes per read while memory is short.
const REFILL_SHORT: (usize, usize) = (16, 1 << 20);
/// A port holds the legs of this time in memory, plus its concurrency; the rest waits in the spool.
const AHEAD: Duration = Duration::from_secs(30);
/// Failures in a row after which a receiver counts as unavailable; its durations are ignored then.
const FAILURES_OF_UNAVAILABLE: u32 = 16;
/// Weight of one leg in the moving averages.
const WEIGHT: f64 = 1.0 / 32.0;
/// An overloaded port accepts messages again when the expected wait is below this part of the limit.
pub(crate) const RELIEF: f64 = 0.75;

/// Identifies a leg: its message, and its number in the message.
pub(crate) type LegId = (MessageId, u32);

/// Send queue of one port.
pub(crate) struct SendQueue {
    exchange: Name,
    port: Name,
    exchanges: Weak<Exchanges>,
    send_port: RwLock<(Arc<CompiledSendPort>, PortState)>,
    queue: Mutex<QueueState>,
    pub(crate) meters: SendMeters,
}

#[derive(Default)]
struct QueueState {
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
    throughput: ThroughputEstimate,
    /// Rate limit that an operator has set.
    rate: Option<(Rate, Meter)>,
    /// When the rate allows the next leg, and the task that waits for it.
    paced: Option<(Instant, AbortHandle)>,
    alarm: Option<(Timestamp, AbortHandle)>,
}

/// Measured throughput of a port, and its backlog.
#[derive(Default)]
struct ThroughputEstimate {
    /// Approximate number of due legs that are not in progress; corrected now and then by a count in the spool.
    waiting: u64,
    /// Legs that were added or started since the start.
    moves: u64,
    /// Moving averages: seconds per attempt, and concurrent attempts.
    took: Option<f64>,
    busy: f64,
    failures: u32,
    /// Whether the expected wait exceeded its limit and has not fallen below the relief threshold.
    is_crowded: bool,
}

impl ThroughputEstimate {
    fn note(&mut self, took: Duration, busy: u32, failed: bool) {
        self.failures = if failed { self.failures.saturating_add(1) } else { 0 };
        let (took, busy) = (took.as_secs_f64(), f64::from(busy));
        self.took = Some(match self.took {
            Some(mean) => {
                self.busy += (busy - self.busy) * WEIGHT;
                mean + (took - mean) * WEIGHT
            }
            None => {
                self.busy = busy;
                took
            }
        });
    }

    /// Expected legs per second, if known.
    fn per_second(&self, rate: Option<&Rate>) -> Option<f64> {
        let by_rate = rate.map(|rate| f64::from(rate.messages) / rate.per.as_secs_f64().max(1.0));
        if self.failures >= FAILURES_OF_UNAVAILABLE || by_rate == Some(0.0) {
            return None;
        }
        let by_pace = self.took.map(|took| self.busy / took.max(1e-6));
        by_pace.into_iter().chain(by_rate).reduce(f64::min)
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

/// State during a read of the spool.
#[derive(Default)]
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

/// Reservation of legs that are being stored. On drop, legs that were not pushed are read from the spool, if they are
/// there.
#[must_use]
pub(crate) struct LegReservation(Vec<(Arc<SendQueue>, LegId)>);

impl Drop for LegReservation {
    fn drop(&mut self) {
        for (send_queue, leg_id) in self.0.drain(..) {
            if send_queue.queue.lock().reserved.remove(&leg_id) {
                send_queue.refill_from_spool();
            }
        }
    }
}

impl RunningExchange {
    /// Reserves the legs of messages before their commit, so that no leg is both read from the spool and pushed. Legs
    /// of ordered delivery are only ever read from the spool.
    pub(crate) fn reserve_legs(&self, messages: &[NewMessage]) -> LegReservation {
        // Replies through a receive port are excluded: the commit decides whether they are still waited for.
        let legs = messages.iter().filter(|message| message.settles.is_none()).flat_map(|message| {
            (0..).zip(&message.legs).filter_map(|(number, leg)| {
                let send_queue = self.send_queues.get(&leg.port).filter(|_| leg.lane.is_none())?;
                Some((send_queue.clone(), (message.id, number)))
            })
        });
        let reserved = LegReservation(legs.collect());
        for (send_queue, leg_id) in &reserved.0 {
            send_queue.queue.lock().reserved.insert(*leg_id);
        }
        reserved
    }
}

impl SendQueue {
    pub fn new(
        exchange: Name,
        port: Name,
        send_port: Arc<CompiledSendPort>,
        state: PortState,
        exchanges: Weak<Exchanges>,
    ) -> Arc<SendQueue> {
        let queue = Mutex::new(QueueState { is_truncated: true, ..QueueState::default() });
        let meters = SendMeters::new(&exchange, &port);
        Arc::new(SendQueue { exchange, port, exchanges, send_port: RwLock::new((send_port, state)), queue, meters })
    }

    pub fn exchange(&self) -> &Name {
        &self.exchange
    }

    pub fn port(&self) -> &Name {
        &self.port
    }

    pub fn send_port(&self) -> Arc<CompiledSendPort> {
        self.send_port.read().0.clone()
    }

    pub fn state(&self) -> PortState {
        self.send_port.read().1
    }

    /// Builds the leg of a message to this port.
    ///
    /// # Errors
    /// The message lacks a property that its asynchronous reply is correlated by.
    pub fn new_leg(&self, head: &Head) -> Result<NewLeg, String> {
        let send_port = self.send_port();
        let awaits = send_port.definition.later.as_ref().map(|later| {
            let missing = |name| format!("it has no `{name}`, by which its reply from `{}` would be known", self.port);
            let key = reply_correlation::correlation_key(head, &send_port.definition.correlate).map_err(missing)?;
            Ok::<_, String>(CorrelationKey { through: later.through.clone(), key })
        });
        let (mut lane, mut ahead) = (None, None);
        match &send_port.definition.order {
            SendOrder::Due => {}
            SendOrder::Keyed { by, .. } => {
                let texts = by.iter().map(|name| promote::text_of(head, name.as_str()).unwrap_or_default());
                lane = Some(texts.collect::<Vec<_>>().join("\u{1f}"));
            }
            SendOrder::Priority { by, ageing } => {
                let priority = match head.properties.iter().find(|(name, _)| name == by) {
                    Some((_, Value::Integer(priority))) => (*priority).clamp(0, PRIORITY_MAX),
                    _ => 0,
                };
                ahead = Some(*ageing * u32::try_from(priority).expect("it is small"));
            }
        }
        let (port, replies) = (self.port.clone(), send_port.definition.mode == Mode::Request);
        Ok(NewLeg { port, replies, awaits: awaits.transpose()?, lane, ahead })
    }

    /// When its service window opens, if it is closed.
    pub fn opens_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.send_port.read().0.definition.window.as_ref()?.opens(now)
    }

    /// Whether its state and its service window let it send now.
    fn is_open(&self, now: Timestamp) -> bool {
        self.state() == PortState::Active && self.opens_at(now).is_none()
    }

    fn order(&self) -> LegOrder {
        match self.send_port.read().0.definition.order {
            SendOrder::Due => LegOrder::Due,
            SendOrder::Keyed { stops, .. } => LegOrder::Lanes { stops },
            SendOrder::Priority { .. } => LegOrder::Rank,
        }
    }

    /// Capacity for ready legs: those that are sent soon. For ordered delivery it is the maximum, since legs of one key
    /// would displace others.
    fn room(&self, queue: &QueueState) -> usize {
        match &self.send_port.read().0.definition {
            definition if matches!(definition.order, SendOrder::Keyed { .. }) => READY_MAX,
            definition => queue.room(definition.concurrency),
        }
    }

    /// The number of legs in progress, and of ready legs.
    pub fn load(&self) -> (u32, usize) {
        let queue = self.queue.lock();
        (queue.busy, queue.ready.len())
    }

    /// The legs in progress.
    pub fn under_way(&self) -> Vec<LegId> {
        let queue = self.queue.lock();
        let ready: HashSet<LegId> = queue.ready.iter().map(leg_id).collect();
        queue.in_memory.difference(&ready).copied().collect()
    }

    /// Limits the rate of sending; `None`: unlimited.
    pub fn set_rate(self: &Arc<SendQueue>, rate: Option<Rate>) {
        self.queue.lock().rate = rate.map(|rate| (rate, Meter::new(rate)));
        self.dispatch_ready();
    }

    /// Its load, for flow control.
    pub fn flow_load(&self) -> FlowLoad {
        let concurrency = self.send_port.read().0.definition.concurrency;
        let queue = self.queue.lock();
        let rate = queue.rate.as_ref().map(|(rate, _)| *rate);
        let room = self.room(&queue);
        let slowed_to = (room < READY_MAX && queue.throughput.waiting > room as u64).then_some(room);
        FlowLoad { busy: queue.busy, waiting: queue.throughput.waiting, concurrency, rate, slowed_to }
    }

    /// The number of added and started legs, for [`SendQueue::counted`], if the spool can have more due legs than known
    /// here.
    pub fn moves_if_truncated(&self) -> Option<u64> {
        let queue = self.queue.lock();
        let is_behind =
            queue.is_truncated || queue.refill.is_some() || queue.throughput.waiting > queue.ready.len() as u64;
        is_behind.then_some(queue.throughput.moves)
    }

    /// Corrects the backlog by a count of due legs in the spool, including those in progress. `moves_before` is from
    /// before the count.
    pub fn counted(&self, due: u64, moves_before: u64) {
        self.queue.lock().counted(due, moves_before);
    }

    /// Expected wait of a new leg; `None` if unknown, because the port does not send now or its receiver is
    /// unavailable.
    pub fn expected_wait(&self, now: Timestamp) -> Option<Duration> {
        if !self.is_open(now) {
            return None;
        }
        let queue = self.queue.lock();
        let per_second = queue.throughput.per_second(queue.rate.as_ref().map(|(rate, _)| rate))?;
        Duration::try_from_secs_f64(queue.throughput.waiting as f64 / per_second).ok()
    }

    /// Expected wait of a new leg, if it exceeds the limit; or, after that, until it is below the relief threshold.
    pub fn excessive_wait(&self, most: Duration, now: Timestamp) -> Option<Duration> {
        let wait = self.expected_wait(now);
        let concurrency = self.send_port.read().0.definition.concurrency;
        let mut queue = self.queue.lock();
        let most = if queue.throughput.is_crowded { most.mul_f64(RELIEF) } else { most };
        // A backlog within the concurrency is not a queue, however slow the receiver is.
        let many = queue.throughput.waiting > u64::from(concurrency);
        let excessive_wait = wait.filter(|wait| many && *wait > most);
        queue.throughput.is_crowded = excessive_wait.is_some();
        excessive_wait
    }

    /// Changes the definition or state of the port. Attempts in progress go on unchanged.
    pub fn change(self: &Arc<SendQueue>, send_port: Arc<CompiledSendPort>, state: PortState) {
        *self.send_port.write() = (send_port, state);
        if state != PortState::Active {
            let mut queue = self.queue.lock();
            let QueueState { ready, in_memory, .. } = &mut *queue;
            for leg in ready.drain(..) {
                in_memory.remove(&leg_id(&leg));
            }
            (queue.ready_bytes, queue.is_truncated) = (0, true);
        }
        self.dispatch_ready();
    }

    /// Adds a leg that was just stored.
    pub fn push(self: &Arc<SendQueue>, leg: WaitingLeg) {
        let (is_active, order) = (self.state() == PortState::Active, self.order());
        let mut queue = self.queue.lock();
        let room = self.room(&queue);
        queue.reserved.remove(&leg_id(&leg));
        queue.throughput.waiting += 1;
        queue.throughput.moves += 1;
        let is_next = !queue.is_truncated && queue.refill.is_none() && queue.has_room(room);
        match order {
            LegOrder::Due | LegOrder::Rank if is_active && is_next => queue.insert(leg),
            LegOrder::Rank if is_active && queue.comes_before_others(&leg) => queue.insert_evicting(leg, room),
            _ => queue.mark_truncated(),
        }
        drop(queue);
        self.dispatch_ready();
    }

    /// Starts a leg before its message is stored, only if it would be sent at once in any case.
    pub fn claim(&self, leg_id: LegId) -> bool {
        let Some(exchanges) = self.exchanges.upgrade() else { return false };
        let most = self.send_port.read().0.definition.concurrency;
        let is_open = self.is_open(exchanges.parts.clock.now()) && !exchanges.stopping.is_cancelled();
        if !is_open || matches!(self.order(), LegOrder::Lanes { .. }) {
            return false;
        }
        let mut queue = self.queue.lock();
        let is_next = queue.ready.is_empty() && !queue.is_truncated && queue.refill.is_none();
        if !is_next || queue.busy >= most || queue.next_slot_at(Instant::now()).is_some() {
            return false;
        }
        queue.in_memory.insert(leg_id);
        queue.throughput.moves += 1;
        queue.count_started();
        true
    }

    /// Removes cancelled messages from memory and from a read in progress. Attempts in progress go on.
    pub fn remove_cancelled(&self, ended: &HashSet<MessageId>) {
        let mut queue = self.queue.lock();
        let QueueState { ready, ready_bytes, in_memory, refill, .. } = &mut *queue;
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

    /// Marks that the spool has more due legs, and reads them.
    pub fn refill_from_spool(self: &Arc<SendQueue>) {
        self.queue.lock().mark_truncated();
        self.dispatch_ready();
    }

    /// Starts as many legs as limits allow, and reads more when few are ready.
    pub fn dispatch_ready(self: &Arc<SendQueue>) {
        let Some(exchanges) = self.exchanges.upgrade() else { return };
        let (most, state) = {
            let send_port = self.send_port.read();
            (send_port.0.definition.concurrency, send_port.1)
        };
        if state != PortState::Active || exchanges.stopping.is_cancelled() {
            return;
        }
        if let Some(opens_at) = self.opens_at(exchanges.parts.clock.now()) {
            return self.refill_at(opens_at);
        }
        let is_short = exchanges.watch.memory_is_short();
        let mut queue = self.queue.lock();
        let mut next_slot_at = None;
        while queue.busy < most {
            next_slot_at = queue.next_slot_at(Instant::now());
            if next_slot_at.is_some() {
                break;
            }
            let Some(leg) = queue.next() else { break };
            exchanges.tasks.spawn(send::send(exchanges.clone(), self.clone(), Box::new(leg)));
        }
        let enough = if is_short { 1 } else { REFILL.min(self.room(&queue) / 2).max(1) };
        if queue.is_truncated && queue.refill.is_none() && queue.ready.len() < enough {
            queue.refill = Some(Refill::default());
            exchanges.tasks.spawn(refill(exchanges.clone(), self.clone()));
        }
        let waits = !queue.ready.is_empty();
        drop(queue);
        if let Some(next_slot_at) = next_slot_at.filter(|_| waits) {
            self.dispatch_at(next_slot_at, &exchanges);
        }
    }

    /// Schedules the next dispatch that the rate limit allows.
    fn dispatch_at(self: &Arc<SendQueue>, at: Instant, exchanges: &Arc<Exchanges>) {
        let mut queue = self.queue.lock();
        // The rate may have been raised; the earlier time counts.
        if queue.paced.as_ref().is_some_and(|(earlier, _)| *earlier <= at) {
            return;
        }
        let (send_queue, stopping) = (self.clone(), exchanges.stopping.clone());
        let paced = exchanges.tasks.spawn(async move {
            tokio::select! {
                () = tokio::time::sleep_until(at) => {}
                () = stopping.cancelled() => return,
            }
            send_queue.queue.lock().paced = None;
            send_queue.dispatch_ready();
        });
        if let Some((_, later)) = queue.paced.replace((at, paced.abort_handle())) {
            later.abort();
        }
    }

    /// Releases a leg after its attempt.
    pub fn finished(self: &Arc<SendQueue>, leg: FinishedLeg) {
        let stops = self.order() == LegOrder::Lanes { stops: true };
        let mut queue = self.queue.lock();
        if let Some(took) = leg.took {
            let busy = queue.busy;
            queue.throughput.note(took, busy, leg.retry_at.is_some() || leg.is_suspended);
        }
        queue.busy -= 1;
        queue.throughput.moves += 1;
        queue.in_memory.remove(&leg.leg_id);
        if let Some(refill) = &mut queue.refill {
            refill.finished.insert(leg.leg_id);
        }
        if let Some(key) = leg.key {
            queue.release_key(key, leg.retry_at.is_some() || (leg.is_suspended && stops));
        }
        drop(queue);
        if let Some(due_at) = leg.retry_at {
            self.refill_at(due_at);
        }
        self.dispatch_ready();
    }

    /// Schedules a read of the spool, unless an earlier one is scheduled.
    fn refill_at(self: &Arc<SendQueue>, due_at: Timestamp) {
        let Some(exchanges) = self.exchanges.upgrade() else { return };
        let mut queue = self.queue.lock();
        if queue.alarm.as_ref().is_some_and(|(earlier, _)| *earlier <= due_at) {
            return;
        }
        let (send_queue, delay) = (self.clone(), due_at.since(exchanges.parts.clock.now()));
        let stopping = exchanges.stopping.clone();
        let alarm = exchanges.tasks.spawn(async move {
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                () = stopping.cancelled() => return,
            }
            send_queue.queue.lock().alarm = None;
            send_queue.refill_from_spool();
        });
        if let Some((_, later)) = queue.alarm.replace((due_at, alarm.abort_handle())) {
            later.abort();
        }
    }
}

impl QueueState {
    fn has_room(&self, room: usize) -> bool {
        self.ready.len() < room && self.ready_bytes < READY_BYTES_MAX
    }

    /// Capacity for ready legs: about those of half a minute, and at least the concurrency.
    fn room(&self, concurrency: u32) -> usize {
        let Some(per_second) = self.throughput.per_second(self.rate.as_ref().map(|(rate, _)| rate)) else {
            return READY_MAX;
        };
        let at_once = (concurrency as usize).clamp(ROOM_MIN, READY_MAX);
        ((per_second * AHEAD.as_secs_f64()) as usize).clamp(at_once, READY_MAX)
    }

    /// A leg that moves during the count may or may not be included, so differences up to the number of such legs are
    /// ignored.
    fn counted(&mut self, due: u64, moves_before: u64) {
        let counted = due.saturating_sub(self.busy.into());
        let uncertain = self.throughput.moves - moves_before + u64::from(self.busy) + self.reserved.len() as u64;
        if counted.abs_diff(self.throughput.waiting) > uncertain {
            self.throughput.waiting = counted;
        }
    }

    /// Legs that a read of the spool must skip.
    fn loaded_legs(&self) -> HashSet<LegId> {
        self.in_memory.union(&self.reserved).copied().collect()
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
            // Until another rate is set, or the queue is dispatched for another reason.
            return Some(now + Duration::from_secs(60));
        }
        meter.wait(now)
    }

    /// The first leg whose ordering key has no leg in progress.
    fn next(&mut self) -> Option<WaitingLeg> {
        let is_free = |leg: &WaitingLeg| leg.lane.as_ref().is_none_or(|key| !self.busy_keys.contains(key));
        let leg = self.ready.remove(self.ready.iter().position(is_free)?)?;
        self.ready_bytes -= leg.body.len();
        self.throughput.waiting = self.throughput.waiting.saturating_sub(1).max(self.ready.len() as u64);
        self.busy_keys.extend(leg.lane.clone());
        self.count_started();
        Some(leg)
    }

    /// Counts a started leg.
    fn count_started(&mut self) {
        self.busy += 1;
        self.throughput.moves += 1;
        if let Some((_, meter)) = &mut self.rate {
            meter.count(Instant::now());
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

fn leg_id(leg: &WaitingLeg) -> LegId {
    (leg.message, leg.leg.number)
}

/// Reads due legs from the spool, and the time of the next one.
async fn refill(exchanges: Arc<Exchanges>, send_queue: Arc<SendQueue>) {
    let in_memory = Arc::new(send_queue.queue.lock().loaded_legs());
    let (spool, now) = (&exchanges.parts.spool, exchanges.parts.clock.now());
    let room = send_queue.room(&send_queue.queue.lock());
    let bound = match exchanges.watch.memory_is_short() {
        true => REFILL_SHORT,
        false => (REFILL.min(room), READY_BYTES_MAX),
    };
    let read = async {
        let due =
            spool.due_legs(&send_queue.exchange, &send_queue.port, send_queue.order(), now, in_memory, bound).await?;
        Ok::<_, tocsin_store::error::StoreError>((
            due,
            spool.next_due(&send_queue.exchange, &send_queue.port, now).await?,
        ))
    };
    let next = match read.await {
        Ok((due, next)) => {
            let mut queue = send_queue.queue.lock();
            let refill = queue.refill.take().unwrap_or_default();
            // Fewer than requested means all, unless the byte limit was reached.
            let is_all = due.is_empty() || (due.len() < bound.0 && bytes(&due) < bound.1);
            queue.is_truncated = refill.outdated || !is_all;
            // A removed port can be added again; its legs are suspended by then.
            let is_off = send_queue.state() == PortState::Off;
            queue.is_truncated |= is_off;
            let has_failed = |leg: &WaitingLeg| leg.lane.as_ref().is_some_and(|key| refill.failed_keys.contains(key));
            let has_ended =
                |leg: &WaitingLeg| refill.finished.contains(&leg_id(leg)) || refill.ended.contains(&leg.message);
            let is_good = |leg: &WaitingLeg| !is_off && !has_ended(leg) && !has_failed(leg);
            for leg in due.into_iter().filter(is_good) {
                if !queue.reserved.contains(&leg_id(&leg)) {
                    queue.insert(leg);
                }
            }
            next
        }
        Err(error) => {
            tracing::error!(%error, exchange = %send_queue.exchange, port = %send_queue.port, "the spool is unavailable");
            send_queue.queue.lock().refill = None;
            tokio::time::sleep(REFILL_AGAIN).await;
            None
        }
    };
    if let Some(due_at) = next {
        send_queue.refill_at(due_at);
    }
    send_queue.dispatch_ready();
}

fn bytes(legs: &[WaitingLeg]) -> usize {
    legs.iter().map(|leg| leg.body.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected throughput (legs per second) of a port, given duration, concurrency and recent failures.
    fn check(took_ms: u64, busy: u32, failed: u32, rate: Option<&str>, expected: Option<f64>) {
        let mut throughput = ThroughputEstimate::default();
        (0..200).for_each(|_| throughput.note(Duration::from_millis(took_ms), busy, false));
        (0..failed).for_each(|_| throughput.note(Duration::from_millis(took_ms), busy, true));
        let rate = rate.map(|text| text.parse::<Rate>().expect("a rate"));
        let found = throughput.per_second(rate.as_ref());
        assert_eq!(found.map(f64::round), expected, "{took_ms} ms, {busy} at a time, {failed} failed, {rate:?}");
    }

    #[test]
    fn a_slow_port_keeps_few_messages_in_memory() {
        let room = |took_ms: u64, busy: u32, failed: u32| {
            let mut queue = QueueState::default();
            (0..200).for_each(|_| queue.throughput.note(Duration::from_millis(took_ms), busy, false));
            (0..failed).for_each(|_| queue.throughput.note(Duration::from_millis(took_ms), busy, true));
            queue.room(8)
        };
        assert_eq!(QueueState::default().room(8), READY_MAX, "nothing has left yet");
        assert_eq!(room(10, 8, 0), READY_MAX);
        assert_eq!(room(8_000, 8, 0), 30);
        assert_eq!(room(60_000, 8, 0), ROOM_MIN);
        assert_eq!(room(60_000, 8, 16), READY_MAX, "an unavailable receiver does not count as slow");
    }

    #[test]
    fn throughput_is_known_unless_the_receiver_is_unavailable() {
        check(100, 32, 0, None, Some(320.0));
        check(15_000, 30, 0, None, Some(2.0));
        check(100, 32, 15, None, Some(320.0));
        check(15_000, 32, 16, None, None);
        check(100, 32, 0, Some("7/s"), Some(7.0));
        check(100, 1, 0, Some("600/m"), Some(10.0));
        check(100, 32, 0, Some("0"), None);
        assert_eq!(ThroughputEstimate::default().per_second(None), None, "nothing has left yet");
    }

    #[test]
    fn a_count_ignores_differences_by_concurrent_moves() {
        let check = |due: u64, moves_before: u64, expected: u64| {
            let throughput = ThroughputEstimate { waiting: 3, moves: 9, ..ThroughputEstimate::default() };
            let mut queue =
                QueueState { busy: 1, reserved: [(MessageId(1), 0)].into(), throughput, ..QueueState::default() };
            queue.counted(due, moves_before);
            assert_eq!(queue.throughput.waiting, expected, "{due} are due, after {moves_before} moves");
        };
        // One leg is in progress and one is being stored: either may be counted or not.
        check(2, 9, 3);
        check(6, 9, 3);
        check(7, 9, 6);
        check(1, 9, 0);
        // One leg was added or started as well.
        check(1, 8, 3);
        check(7, 8, 3);
        check(8, 8, 7);
    }
}
