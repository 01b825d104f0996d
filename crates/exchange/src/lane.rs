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
};

use parking_lot::{Mutex, RwLock};
use tocsin_model::{
    exchange::{Mode, PortState, SendOrder},
    id::{MessageId, Name},
    time::Timestamp,
    value::Value,
};
use tocsin_store::spool::{Head, LegOrder, NewLeg, NewMessage, WaitingLeg};
use tokio::task::AbortHandle;

use crate::{Exchanges, Running, compile::Way, promote, send};

/// Legs of a port that are in memory, ready to leave.
const READY_MAX: usize = 1_024;
/// Bytes of their bodies, about.
const READY_BYTES_MAX: usize = 16 << 20;
/// The highest priority.
const PRIORITY_MAX: i64 = 9;
/// Legs that are read from the spool at a time.
const REFILL: usize = 256;
/// When the spool is asked again after it did not answer.
const REFILL_AGAIN: std::time::Duration = std::time::Duration::from_secs(1);

/// A leg: its message, and its number there.
type Place = (MessageId, u32);

/// What waits for one send port.
pub(crate) struct Lane {
    exchange: Name,
    port: Name,
    exchanges: Weak<Exchanges>,
    way: RwLock<(Arc<Way>, PortState)>,
    queue: Mutex<Queue>,
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
    alarm: Option<(Timestamp, AbortHandle)>,
}

/// What became of a leg that was under way.
pub(crate) struct Finished {
    pub place: Place,
    /// Its key, where messages leave in order.
    pub key: Option<String>,
    /// When it is tried again, if it is.
    pub retry_at: Option<Timestamp>,
    pub is_suspended: bool,
}

/// The spool is being read.
#[derive(Default)]
struct Refill {
    /// Finished since it began: it may still show as waiting.
    finished: HashSet<Place>,
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
        let legs = messages.iter().flat_map(|message| {
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
        Arc::new(Lane { exchange, port, exchanges, way: RwLock::new((way, state)), queue })
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
    pub fn new_leg(&self, head: &Head) -> NewLeg {
        let way = self.way();
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
        NewLeg { port: self.port.clone(), replies: way.definition.mode == Mode::Request, lane, ahead }
    }

    /// When it sends again that does not now, by its service window.
    pub fn opens_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.way.read().0.definition.window.as_ref()?.opens(now)
    }

    fn order(&self) -> LegOrder {
        match self.way.read().0.definition.order {
            SendOrder::Due => LegOrder::Due,
            SendOrder::Keyed { stops, .. } => LegOrder::Lanes { stops },
            SendOrder::Priority { .. } => LegOrder::Rank,
        }
    }

    /// Legs that are under way, and that are ready.
    pub fn load(&self) -> (u32, usize) {
        let queue = self.queue.lock();
        (queue.busy, queue.ready.len())
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
        queue.announced.remove(&place(&leg));
        let is_next = !queue.behind && queue.refill.is_none() && queue.has_room();
        match order {
            LegOrder::Due | LegOrder::Rank if is_active && is_next => queue.take(leg),
            LegOrder::Rank if is_active && queue.comes_before_others(&leg) => queue.take_for_another(leg),
            _ => queue.leave_behind(),
        }
        drop(queue);
        self.pump();
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
        let mut queue = self.queue.lock();
        while queue.busy < most
            && let Some(leg) = queue.next()
        {
            exchanges.tasks.spawn(send::send(exchanges.clone(), self.clone(), leg));
        }
        if queue.behind && queue.refill.is_none() && queue.ready.len() < REFILL {
            queue.refill = Some(Refill::default());
            exchanges.tasks.spawn(refill(exchanges.clone(), self.clone()));
        }
    }

    /// A leg is done with for now.
    pub fn finished(self: &Arc<Lane>, leg: Finished) {
        let stops = self.order() == LegOrder::Lanes { stops: true };
        let mut queue = self.queue.lock();
        queue.busy -= 1;
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
    fn has_room(&self) -> bool {
        self.ready.len() < READY_MAX && self.ready_bytes < READY_BYTES_MAX
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
    fn take_for_another(&mut self, leg: WaitingLeg) {
        self.take(leg);
        while !self.has_room()
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

    /// The first that may leave: nothing with its key is under way.
    fn next(&mut self) -> Option<WaitingLeg> {
        let is_free = |leg: &WaitingLeg| leg.lane.as_ref().is_none_or(|key| !self.busy_keys.contains(key));
        let leg = self.ready.remove(self.ready.iter().position(is_free)?)?;
        self.busy += 1;
        self.ready_bytes -= leg.body.len();
        self.busy_keys.extend(leg.lane.clone());
        Some(leg)
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
    let read = async {
        let due =
            spool.due_legs(&lane.exchange, &lane.port, lane.order(), now, in_hand, (REFILL, READY_BYTES_MAX)).await?;
        Ok::<_, tocsin_store::error::StoreError>((due, spool.next_due(&lane.exchange, &lane.port, now).await?))
    };
    let next = match read.await {
        Ok((due, next)) => {
            let mut queue = lane.queue.lock();
            let refill = queue.refill.take().unwrap_or_default();
            // Fewer than asked for are all, unless their bodies were too large.
            let is_all = due.is_empty() || (due.len() < REFILL && bytes(&due) < READY_BYTES_MAX);
            queue.behind = refill.outdated || !is_all;
            let has_failed = |leg: &WaitingLeg| leg.lane.as_ref().is_some_and(|key| refill.failed_keys.contains(key));
            let is_good = |leg: &WaitingLeg| !refill.finished.contains(&place(leg)) && !has_failed(leg);
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
