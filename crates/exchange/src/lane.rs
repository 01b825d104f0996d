//! What waits for a send port: some of it in memory, ready to leave, and behind that the spool.
//!
//! The spool is the truth: what does not fit into memory, what is to be tried later and what a held port may not send stays
//! there and is read when its turn comes. So a far side that is down for a week costs memory for a thousand messages, not
//! for all of them. What is in memory or under way is never read again meanwhile, and neither is what is about to be pushed
//! by the one who stores it: the spool may show a leg before that.
//!
//! Where messages leave in order, all of them are read from the spool, which knows what came before each: of those with
//! the same key one is under way at a time, and what is in memory of them goes back when one is to be tried again.

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
use tocsin_store::spool::{Awaits, Head, LegOrder, NewLeg, NewMessage, WaitingLeg};
use tokio::{task::AbortHandle, time::Instant};

use crate::{Exchanges, Running, compile::Way, later, meters::SendMeters, promote, send};

/// Legs of a port that are in memory, ready to leave.
const READY_MAX: usize = 1_024;
/// However slow a port is, so many of its legs may be ready.
const ROOM_MIN: usize = 16;
/// Bytes of their bodies, about.
const READY_BYTES_MAX: usize = 16 << 20;
/// The highest priority.
const PRIORITY_MAX: i64 = 9;
/// Legs that are read from the spool at a time.
const REFILL: usize = 256;
/// When the spool is asked again after it did not answer.
const REFILL_AGAIN: Duration = Duration::from_secs(1);
/// The same where the process has about as much memory as it may.
const REFILL_SHORT: (usize, usize) = (16, 1 << 20);
/// A port has in memory what it sends in this time, and what may be under way at once; the rest can as well wait in the
/// spool.
const AHEAD: Duration = Duration::from_secs(30);
/// After so many failures in a row a far side is taken for dead: how long it takes says nothing then.
const FAILURES_OF_DEAD: u32 = 16;
/// What the next leg tells of the pace of a port.
const WEIGHT: f64 = 1.0 / 32.0;
/// A port that had too much to do takes more when a message would wait for this part of what it may.
pub(crate) const RELIEF: f64 = 0.75;

/// A leg: its message, and its number there.
pub(crate) type Place = (MessageId, u32);

/// What waits for one send port.
pub(crate) struct Lane {
    exchange: Name,
    port: Name,
    exchanges: Weak<Exchanges>,
    way: RwLock<(Arc<Way>, PortState)>,
    queue: Mutex<Queue>,
    pub(crate) meters: SendMeters,
}

#[derive(Default)]
struct Queue {
    ready: VecDeque<WaitingLeg>,
    ready_bytes: usize,
    /// Under way.
    busy: u32,
    /// The keys of those under way, where messages leave in order.
    busy_keys: HashSet<String>,
    /// Ready or under way.
    in_hand: HashSet<Place>,
    /// Being stored; who stores them pushes them then, and the spool may show them before.
    announced: HashSet<Place>,
    /// Whether more is due in the spool.
    behind: bool,
    refill: Option<Refill>,
    pace: Pace,
    /// How fast an operator lets legs leave.
    rate: Option<(Rate, Meter)>,
    /// When more leave by its rate, and the task that waits for this time.
    paced: Option<(Instant, AbortHandle)>,
    alarm: Option<(Timestamp, AbortHandle)>,
}

/// How fast a port is, and how much it has to do.
#[derive(Default)]
struct Pace {
    /// Legs that are due and not under way, about: what the spool shows is counted now and then.
    waiting: u64,
    /// Legs that came or left since the start.
    moves: u64,
    /// Seconds that a leg is under way, and how many are so with it; means of those that were done last.
    took: Option<f64>,
    busy: f64,
    failures: u32,
    /// A message would wait for too long, or did until there was relief.
    is_crowded: bool,
}

impl Pace {
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

    /// Legs in a second, if it is known.
    fn per_second(&self, rate: Option<&Rate>) -> Option<f64> {
        let by_rate = rate.map(|rate| f64::from(rate.messages) / rate.per.as_secs_f64().max(1.0));
        if self.failures >= FAILURES_OF_DEAD || by_rate == Some(0.0) {
            return None;
        }
        let by_pace = self.took.map(|took| self.busy / took.max(1e-6));
        by_pace.into_iter().chain(by_rate).reduce(f64::min)
    }
}

/// What is under way and waits.
pub(crate) struct FlowLoad {
    pub busy: u32,
    pub waiting: u64,
    pub concurrency: u32,
    pub rate: Option<Rate>,
    /// So few of those that wait are in memory, for more come than leave.
    pub slowed_to: Option<usize>,
}

/// What became of a leg that was under way.
pub(crate) struct Finished {
    pub place: Place,
    /// Its key, where messages leave in order.
    pub key: Option<String>,
    /// When it is tried again, if it is.
    pub retry_at: Option<Timestamp>,
    pub is_suspended: bool,
    /// How long it was under way, if it was tried.
    pub took: Option<Duration>,
}

/// The spool is being read.
#[derive(Default)]
struct Refill {
    /// Finished since it began: it may still show as waiting.
    finished: HashSet<Place>,
    /// Messages that an operator ended since.
    ended: HashSet<MessageId>,
    /// Keys of which one failed since: what was read of them is behind it.
    failed_keys: HashSet<String>,
    /// Whether something came since that it may not show.
    outdated: bool,
}

/// Legs that are being stored. What was not pushed when this ends is left to the spool, if it is there.
#[must_use]
pub(crate) struct Announced(Vec<(Arc<Lane>, Place)>);

impl Drop for Announced {
    fn drop(&mut self) {
        for (lane, place) in self.0.drain(..) {
            if lane.queue.lock().announced.remove(&place) {
                lane.look();
            }
        }
    }
}

impl Running {
    /// To be called before messages are stored whose legs are pushed then: no leg is read from the spool and sent, and
    /// pushed after that. Legs that leave in order are only ever read from the spool.
    pub(crate) fn announce(&self, messages: &[NewMessage]) -> Announced {
        // Whether a reply that came through a receive port is still waited for shows when it is stored.
        let legs = messages.iter().filter(|message| message.settles.is_none()).flat_map(|message| {
            (0..).zip(&message.legs).filter_map(|(number, leg)| {
                let lane = self.lanes.get(&leg.port).filter(|_| leg.lane.is_none())?;
                Some((lane.clone(), (message.id, number)))
            })
        });
        let announced = Announced(legs.collect());
        for (lane, place) in &announced.0 {
            lane.queue.lock().announced.insert(*place);
        }
        announced
    }
}

impl Lane {
    pub fn new(exchange: Name, port: Name, way: Arc<Way>, state: PortState, exchanges: Weak<Exchanges>) -> Arc<Lane> {
        let queue = Mutex::new(Queue { behind: true, ..Queue::default() });
        let meters = SendMeters::new(&exchange, &port);
        Arc::new(Lane { exchange, port, exchanges, way: RwLock::new((way, state)), queue, meters })
    }

    pub fn exchange(&self) -> &Name {
        &self.exchange
    }

    pub fn port(&self) -> &Name {
        &self.port
    }

    pub fn way(&self) -> Arc<Way> {
        self.way.read().0.clone()
    }

    pub fn state(&self) -> PortState {
        self.way.read().1
    }

    /// A leg of a message to this port.
    ///
    /// # Errors
    /// Why there is none: its reply could not be known.
    pub fn new_leg(&self, head: &Head) -> Result<NewLeg, String> {
        let way = self.way();
        let awaits = way.definition.later.as_ref().map(|later| {
            let missing = |name| format!("it has no `{name}`, by which its reply from `{}` would be known", self.port);
            let key = later::key(head, &way.definition.correlate).map_err(missing)?;
            Ok::<_, String>(Awaits { through: later.through.clone(), key })
        });
        let (mut lane, mut ahead) = (None, None);
        match &way.definition.order {
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
        let (port, replies) = (self.port.clone(), way.definition.mode == Mode::Request);
        Ok(NewLeg { port, replies, awaits: awaits.transpose()?, lane, ahead })
    }

    /// When it sends again that does not now, by its service window.
    pub fn opens_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.way.read().0.definition.window.as_ref()?.opens(now)
    }

    /// Whether it sends now, by its state and its service window.
    fn is_open(&self, now: Timestamp) -> bool {
        self.state() == PortState::Active && self.opens_at(now).is_none()
    }

    fn order(&self) -> LegOrder {
        match self.way.read().0.definition.order {
            SendOrder::Due => LegOrder::Due,
            SendOrder::Keyed { stops, .. } => LegOrder::Lanes { stops },
            SendOrder::Priority { .. } => LegOrder::Rank,
        }
    }

    /// How many legs may be ready: those that leave soon. Where they leave in order it is as many as there may be, for those
    /// of one key would keep others out.
    fn room(&self, queue: &Queue) -> usize {
        match &self.way.read().0.definition {
            definition if matches!(definition.order, SendOrder::Keyed { .. }) => READY_MAX,
            definition => queue.room(definition.concurrency),
        }
    }

    /// Legs that are under way, and that are ready.
    pub fn load(&self) -> (u32, usize) {
        let queue = self.queue.lock();
        (queue.busy, queue.ready.len())
    }

    /// The legs that are under way.
    pub fn under_way(&self) -> Vec<Place> {
        let queue = self.queue.lock();
        let ready: HashSet<Place> = queue.ready.iter().map(place).collect();
        queue.in_hand.difference(&ready).copied().collect()
    }

    /// How fast legs may leave; `None`: as fast as they can.
    pub fn set_rate(self: &Arc<Lane>, rate: Option<Rate>) {
        self.queue.lock().rate = rate.map(|rate| (rate, Meter::new(rate)));
        self.pump();
    }

    /// What is under way and waits.
    pub fn flow_load(&self) -> FlowLoad {
        let concurrency = self.way.read().0.definition.concurrency;
        let queue = self.queue.lock();
        let rate = queue.rate.as_ref().map(|(rate, _)| *rate);
        let room = self.room(&queue);
        let slowed_to = (room < READY_MAX && queue.pace.waiting > room as u64).then_some(room);
        FlowLoad { busy: queue.busy, waiting: queue.pace.waiting, concurrency, rate, slowed_to }
    }

    /// If more may wait in the spool than is known here: how many legs came or left until now, for [`Lane::counted`].
    pub fn moves_if_behind(&self) -> Option<u64> {
        let queue = self.queue.lock();
        let is_behind = queue.behind || queue.refill.is_some() || queue.pace.waiting > queue.ready.len() as u64;
        is_behind.then_some(queue.pace.moves)
    }

    /// So many are due in the spool, those under way among them; so many legs had come or left before they were counted.
    pub fn counted(&self, due: u64, moves_before: u64) {
        self.queue.lock().counted(due, moves_before);
    }

    /// How long a new leg would wait for its turn; `None` if that cannot be known: the port does not work at present, or its
    /// far side is dead.
    pub fn wait_of_next(&self, now: Timestamp) -> Option<Duration> {
        if !self.is_open(now) {
            return None;
        }
        let queue = self.queue.lock();
        let per_second = queue.pace.per_second(queue.rate.as_ref().map(|(rate, _)| rate))?;
        Duration::try_from_secs_f64(queue.pace.waiting as f64 / per_second).ok()
    }

    /// How long a new leg would wait, if that is longer than it may; or if it was so and there is no relief yet.
    pub fn too_long(&self, most: Duration, now: Timestamp) -> Option<Duration> {
        let wait = self.wait_of_next(now);
        let concurrency = self.way.read().0.definition.concurrency;
        let mut queue = self.queue.lock();
        let most = if queue.pace.is_crowded { most.mul_f64(RELIEF) } else { most };
        // As many as leave at once are no queue, however slow the far side is.
        let many = queue.pace.waiting > u64::from(concurrency);
        let too_long = wait.filter(|wait| many && *wait > most);
        queue.pace.is_crowded = too_long.is_some();
        too_long
    }

    /// Takes another way or another state. What is under way goes on as it began.
    pub fn change(self: &Arc<Lane>, way: Arc<Way>, state: PortState) {
        *self.way.write() = (way, state);
        if state != PortState::Active {
            let mut queue = self.queue.lock();
            let Queue { ready, in_hand, .. } = &mut *queue;
            for leg in ready.drain(..) {
                in_hand.remove(&place(&leg));
            }
            (queue.ready_bytes, queue.behind) = (0, true);
        }
        self.pump();
    }

    /// A leg that was stored just now.
    pub fn push(self: &Arc<Lane>, leg: WaitingLeg) {
        let (is_active, order) = (self.state() == PortState::Active, self.order());
        let mut queue = self.queue.lock();
        let room = self.room(&queue);
        queue.announced.remove(&place(&leg));
        queue.pace.waiting += 1;
        queue.pace.moves += 1;
        let is_next = !queue.behind && queue.refill.is_none() && queue.has_room(room);
        match order {
            LegOrder::Due | LegOrder::Rank if is_active && is_next => queue.take(leg),
            LegOrder::Rank if is_active && queue.comes_before_others(&leg) => queue.take_for_another(leg, room),
            _ => queue.leave_behind(),
        }
        drop(queue);
        self.pump();
    }

    /// Takes a place among those under way for a leg whose message is not stored yet; only where it would leave at once in
    /// any case.
    pub fn claim(&self, place: Place) -> bool {
        let Some(exchanges) = self.exchanges.upgrade() else { return false };
        let most = self.way.read().0.definition.concurrency;
        let is_open = self.is_open(exchanges.parts.clock.now()) && !exchanges.stopping.is_cancelled();
        if !is_open || matches!(self.order(), LegOrder::Lanes { .. }) {
            return false;
        }
        let mut queue = self.queue.lock();
        let is_next = queue.ready.is_empty() && !queue.behind && queue.refill.is_none();
        if !is_next || queue.busy >= most || queue.free_at(Instant::now()).is_some() {
            return false;
        }
        queue.in_hand.insert(place);
        queue.pace.moves += 1;
        queue.leaves();
        true
    }

    /// Messages that have ended do not leave, though they are in memory or being read. One that is under way goes on.
    pub fn forget(&self, ended: &HashSet<MessageId>) {
        let mut queue = self.queue.lock();
        let Queue { ready, ready_bytes, in_hand, refill, .. } = &mut *queue;
        ready.retain(|leg| {
            let stays = !ended.contains(&leg.message);
            if !stays {
                *ready_bytes -= leg.body.len();
                in_hand.remove(&place(leg));
            }
            stays
        });
        if let Some(refill) = refill {
            refill.ended.extend(ended);
        }
    }

    /// More is due in the spool than is known here.
    pub fn look(self: &Arc<Lane>) {
        self.queue.lock().leave_behind();
        self.pump();
    }

    /// Sends as much as may be under way, and reads more when there is too little to send.
    pub fn pump(self: &Arc<Lane>) {
        let Some(exchanges) = self.exchanges.upgrade() else { return };
        let (most, state) = {
            let way = self.way.read();
            (way.0.definition.concurrency, way.1)
        };
        if state != PortState::Active || exchanges.stopping.is_cancelled() {
            return;
        }
        if let Some(opens_at) = self.opens_at(exchanges.parts.clock.now()) {
            return self.wake_at(opens_at);
        }
        let is_short = exchanges.watch.memory_is_short();
        let mut queue = self.queue.lock();
        let mut free_at = None;
        while queue.busy < most {
            free_at = queue.free_at(Instant::now());
            if free_at.is_some() {
                break;
            }
            let Some(leg) = queue.next() else { break };
            exchanges.tasks.spawn(send::send(exchanges.clone(), self.clone(), Box::new(leg)));
        }
        let enough = if is_short { 1 } else { REFILL.min(self.room(&queue) / 2).max(1) };
        if queue.behind && queue.refill.is_none() && queue.ready.len() < enough {
            queue.refill = Some(Refill::default());
            exchanges.tasks.spawn(refill(exchanges.clone(), self.clone()));
        }
        let waits = !queue.ready.is_empty();
        drop(queue);
        if let Some(free_at) = free_at.filter(|_| waits) {
            self.pump_at(free_at, &exchanges);
        }
    }

    /// Sends more at this time, by the operator's rate.
    fn pump_at(self: &Arc<Lane>, at: Instant, exchanges: &Arc<Exchanges>) {
        let mut queue = self.queue.lock();
        // The rate may have been raised since: its earlier time counts.
        if queue.paced.as_ref().is_some_and(|(earlier, _)| *earlier <= at) {
            return;
        }
        let (lane, stopping) = (self.clone(), exchanges.stopping.clone());
        let paced = exchanges.tasks.spawn(async move {
            tokio::select! {
                () = tokio::time::sleep_until(at) => {}
                () = stopping.cancelled() => return,
            }
            lane.queue.lock().paced = None;
            lane.pump();
        });
        if let Some((_, later)) = queue.paced.replace((at, paced.abort_handle())) {
            later.abort();
        }
    }

    /// A leg is done with for now.
    pub fn finished(self: &Arc<Lane>, leg: Finished) {
        let stops = self.order() == LegOrder::Lanes { stops: true };
        let mut queue = self.queue.lock();
        if let Some(took) = leg.took {
            let busy = queue.busy;
            queue.pace.note(took, busy, leg.retry_at.is_some() || leg.is_suspended);
        }
        queue.busy -= 1;
        queue.pace.moves += 1;
        queue.in_hand.remove(&leg.place);
        if let Some(refill) = &mut queue.refill {
            refill.finished.insert(leg.place);
        }
        if let Some(key) = leg.key {
            queue.free(key, leg.retry_at.is_some() || (leg.is_suspended && stops));
        }
        drop(queue);
        if let Some(due_at) = leg.retry_at {
            self.wake_at(due_at);
        }
        self.pump();
    }

    /// Looks into the spool at this time, unless it does so earlier anyway.
    fn wake_at(self: &Arc<Lane>, due_at: Timestamp) {
        let Some(exchanges) = self.exchanges.upgrade() else { return };
        let mut queue = self.queue.lock();
        if queue.alarm.as_ref().is_some_and(|(earlier, _)| *earlier <= due_at) {
            return;
        }
        let (lane, delay) = (self.clone(), due_at.since(exchanges.parts.clock.now()));
        let stopping = exchanges.stopping.clone();
        let alarm = exchanges.tasks.spawn(async move {
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                () = stopping.cancelled() => return,
            }
            lane.queue.lock().alarm = None;
            lane.look();
        });
        if let Some((_, later)) = queue.alarm.replace((due_at, alarm.abort_handle())) {
            later.abort();
        }
    }
}

impl Queue {
    fn has_room(&self, room: usize) -> bool {
        self.ready.len() < room && self.ready_bytes < READY_BYTES_MAX
    }

    /// How many leave soon: about as many as in half a minute, and those that may be under way at once.
    fn room(&self, concurrency: u32) -> usize {
        let Some(per_second) = self.pace.per_second(self.rate.as_ref().map(|(rate, _)| rate)) else {
            return READY_MAX;
        };
        let at_once = (concurrency as usize).clamp(ROOM_MIN, READY_MAX);
        ((per_second * AHEAD.as_secs_f64()) as usize).clamp(at_once, READY_MAX)
    }

    /// Of a leg that moves just then nobody knows whether it was counted: what differs by no more than these says nothing.
    fn counted(&mut self, due: u64, moves_before: u64) {
        let counted = due.saturating_sub(self.busy.into());
        let uncertain = self.pace.moves - moves_before + u64::from(self.busy) + self.announced.len() as u64;
        if counted.abs_diff(self.pace.waiting) > uncertain {
            self.pace.waiting = counted;
        }
    }

    /// What need not be read from the spool.
    fn known(&self) -> HashSet<Place> {
        self.in_hand.union(&self.announced).copied().collect()
    }

    /// Something stays in the spool for now.
    fn leave_behind(&mut self) {
        self.behind = true;
        if let Some(refill) = &mut self.refill {
            refill.outdated = true;
        }
    }

    fn take(&mut self, leg: WaitingLeg) {
        if self.in_hand.insert(place(&leg)) {
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

    /// Takes a leg, and puts back what there is no room for then.
    fn take_for_another(&mut self, leg: WaitingLeg, room: usize) {
        self.take(leg);
        while !self.has_room(room)
            && self.ready.len() > 1
            && let Some(last) = self.ready.pop_back()
        {
            self.put_back(&last);
        }
    }

    /// What was ready is in the spool alone again.
    fn put_back(&mut self, leg: &WaitingLeg) {
        self.ready_bytes -= leg.body.len();
        self.in_hand.remove(&place(leg));
        self.leave_behind();
    }

    /// When the next may leave by the operator's rate, if not now.
    fn free_at(&self, now: Instant) -> Option<Instant> {
        let (rate, meter) = self.rate.as_ref()?;
        if rate.messages == 0 {
            // Until another rate is set, or somebody looks.
            return Some(now + Duration::from_secs(60));
        }
        meter.wait(now)
    }

    /// The first that may leave: nothing with its key is under way.
    fn next(&mut self) -> Option<WaitingLeg> {
        let is_free = |leg: &WaitingLeg| leg.lane.as_ref().is_none_or(|key| !self.busy_keys.contains(key));
        let leg = self.ready.remove(self.ready.iter().position(is_free)?)?;
        self.ready_bytes -= leg.body.len();
        self.pace.waiting = self.pace.waiting.saturating_sub(1).max(self.ready.len() as u64);
        self.busy_keys.extend(leg.lane.clone());
        self.leaves();
        Some(leg)
    }

    /// One more is under way.
    fn leaves(&mut self) {
        self.busy += 1;
        self.pace.moves += 1;
        if let Some((_, meter)) = &mut self.rate {
            meter.count(Instant::now());
        }
    }

    /// The next of a key may leave; or, if one `failed` that those behind it wait for, none that is in memory.
    fn free(&mut self, key: String, failed: bool) {
        self.busy_keys.remove(&key);
        self.leave_behind();
        if failed {
            let (behind, ready): (VecDeque<WaitingLeg>, _) =
                self.ready.drain(..).partition(|leg| leg.lane.as_ref() == Some(&key));
            self.ready = ready;
            behind.iter().for_each(|leg| self.put_back(leg));
            if let Some(refill) = &mut self.refill {
                refill.failed_keys.insert(key);
            }
        }
    }
}

fn rank(leg: &WaitingLeg) -> (Option<Timestamp>, MessageId, u32) {
    (leg.rank, leg.message, leg.leg.number)
}

fn place(leg: &WaitingLeg) -> Place {
    (leg.message, leg.leg.number)
}

/// Reads what is due from the spool, and when the next one is.
async fn refill(exchanges: Arc<Exchanges>, lane: Arc<Lane>) {
    let in_hand = Arc::new(lane.queue.lock().known());
    let (spool, now) = (&exchanges.parts.spool, exchanges.parts.clock.now());
    let room = lane.room(&lane.queue.lock());
    let bound = match exchanges.watch.memory_is_short() {
        true => REFILL_SHORT,
        false => (REFILL.min(room), READY_BYTES_MAX),
    };
    let read = async {
        let due = spool.due_legs(&lane.exchange, &lane.port, lane.order(), now, in_hand, bound).await?;
        Ok::<_, tocsin_store::error::StoreError>((due, spool.next_due(&lane.exchange, &lane.port, now).await?))
    };
    let next = match read.await {
        Ok((due, next)) => {
            let mut queue = lane.queue.lock();
            let refill = queue.refill.take().unwrap_or_default();
            // Fewer than asked for are all, unless their bodies were too large.
            let is_all = due.is_empty() || (due.len() < bound.0 && bytes(&due) < bound.1);
            queue.behind = refill.outdated || !is_all;
            // A port that has left meanwhile may come again, and its legs are suspended by then.
            let is_off = lane.state() == PortState::Off;
            queue.behind |= is_off;
            let has_failed = |leg: &WaitingLeg| leg.lane.as_ref().is_some_and(|key| refill.failed_keys.contains(key));
            let has_ended =
                |leg: &WaitingLeg| refill.finished.contains(&place(leg)) || refill.ended.contains(&leg.message);
            let is_good = |leg: &WaitingLeg| !is_off && !has_ended(leg) && !has_failed(leg);
            for leg in due.into_iter().filter(is_good) {
                if !queue.announced.contains(&place(&leg)) {
                    queue.take(leg);
                }
            }
            next
        }
        Err(error) => {
            tracing::error!(%error, exchange = %lane.exchange, port = %lane.port, "the spool does not answer");
            lane.queue.lock().refill = None;
            tokio::time::sleep(REFILL_AGAIN).await;
            None
        }
    };
    if let Some(due_at) = next {
        lane.wake_at(due_at);
    }
    lane.pump();
}

fn bytes(legs: &[WaitingLeg]) -> usize {
    legs.iter().map(|leg| leg.body.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Legs in a second of a port of which each takes so long while so many are under way; the last ones failed.
    fn check(took_ms: u64, busy: u32, failed: u32, rate: Option<&str>, expected: Option<f64>) {
        let mut pace = Pace::default();
        (0..200).for_each(|_| pace.note(Duration::from_millis(took_ms), busy, false));
        (0..failed).for_each(|_| pace.note(Duration::from_millis(took_ms), busy, true));
        let rate = rate.map(|text| text.parse::<Rate>().expect("a rate"));
        let found = pace.per_second(rate.as_ref());
        assert_eq!(found.map(f64::round), expected, "{took_ms} ms, {busy} at a time, {failed} failed, {rate:?}");
    }

    #[test]
    fn a_slow_port_has_few_of_its_messages_in_memory() {
        let room = |took_ms: u64, busy: u32, failed: u32| {
            let mut queue = Queue::default();
            (0..200).for_each(|_| queue.pace.note(Duration::from_millis(took_ms), busy, false));
            (0..failed).for_each(|_| queue.pace.note(Duration::from_millis(took_ms), busy, true));
            queue.room(8)
        };
        assert_eq!(Queue::default().room(8), READY_MAX, "nothing has left yet");
        assert_eq!(room(10, 8, 0), READY_MAX);
        assert_eq!(room(8_000, 8, 0), 30);
        assert_eq!(room(60_000, 8, 0), ROOM_MIN);
        assert_eq!(room(60_000, 8, 16), READY_MAX, "a dead far side is not slow");
    }

    #[test]
    fn the_pace_of_a_port_is_known_unless_its_far_side_is_dead() {
        check(100, 32, 0, None, Some(320.0));
        check(15_000, 30, 0, None, Some(2.0));
        check(100, 32, 15, None, Some(320.0));
        check(15_000, 32, 16, None, None);
        check(100, 32, 0, Some("7/s"), Some(7.0));
        check(100, 1, 0, Some("600/m"), Some(10.0));
        check(100, 32, 0, Some("0"), None);
        assert_eq!(Pace::default().per_second(None), None, "nothing has left yet");
    }

    #[test]
    fn a_count_says_nothing_of_what_moved_meanwhile() {
        let check = |due: u64, moves_before: u64, expected: u64| {
            let pace = Pace { waiting: 3, moves: 9, ..Pace::default() };
            let mut queue = Queue { busy: 1, announced: [(MessageId(1), 0)].into(), pace, ..Queue::default() };
            queue.counted(due, moves_before);
            assert_eq!(queue.pace.waiting, expected, "{due} are due, after {moves_before} moves");
        };
        // One is under way and one is being stored: either may be counted or not.
        check(2, 9, 3);
        check(6, 9, 3);
        check(7, 9, 6);
        check(1, 9, 0);
        // One came or left as well.
        check(1, 8, 3);
        check(7, 8, 3);
        check(8, 8, 7);
    }
}
