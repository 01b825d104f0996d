//! The bounded queue that a channel's sessions pull from.

use std::{
    borrow::Cow,
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tocsin_model::{
    application::{Flow, Rate},
    delivery_policy::Priority,
    id::Name,
    receipt::Disposition,
};
use tokio::{sync::Notify, time::Instant};

use crate::{
    flow::{
        lanes::{AttemptEffect, Event, Lanes, Pushed, Signal, Take},
        line::{AgingQueue, Waits},
        providers::Providers,
        rate::Meter,
        warm_up::Answers,
    },
    pending::PendingDelivery,
};

/// Most recipients that wait for a session; for a channel with a single destination the limit applies to each
/// priority. A multicast may exceed the remaining room.
pub(crate) const QUEUE_LENGTH: usize = 4096;

/// Time that a sender waits for room in a lane that makes progress.
const ROOM_TIMEOUT: Duration = Duration::from_secs(1);
/// Senders that wait for room are woken after this many messages have left.
const ROOM_STEP: usize = 128;

/// Reason of a message that is returned untried because its mailbox provider gets less.
pub(crate) const TAKES_NO_MORE: &str = "its mailbox provider takes no more mail for now";

/// Maps an address to the key of its lane.
pub(crate) type LaneOf = dyn for<'a> Fn(&'a str) -> Cow<'a, str> + Send + Sync;

/// Messages that wait for the sessions of a channel.
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    arrived: Notify,
    room: Notify,
    pub sessions: usize,
    has_lanes: bool,
    /// Most recipients of one multicast per turn.
    recipients_per_turn: usize,
    /// Set if the answers to messages end their turns.
    signal_of: Option<SignalOf>,
}

struct Waiting {
    order: Order,
    /// Recipients that have left since senders were last woken.
    left: usize,
    senders: usize,
    closed: bool,
}

enum Order {
    /// One destination; its sessions are managed by the protocol.
    Single(Box<Single>),
    /// One lane per destination.
    Shared(Box<Lanes<PendingDelivery>>),
}

/// Queue of a single destination.
struct Single {
    line: AgingQueue<PendingDelivery>,
    /// Waiting recipients by priority.
    recipients: [usize; Priority::ALL.len()],
    meter: Option<Meter>,
}

impl Single {
    fn new() -> Self {
        Single { line: AgingQueue::new(), recipients: Default::default(), meter: None }
    }

    /// Returns the message if its priority has no room.
    fn push_back(&mut self, pending: PendingDelivery) -> Option<PendingDelivery> {
        let waiting = &mut self.recipients[pending.priority() as usize];
        if *waiting >= QUEUE_LENGTH {
            return Some(pending);
        }
        *waiting += pending.count();
        self.line.push_back(pending);
        None
    }

    /// Puts a taken message back; never refused.
    fn push_front(&mut self, pending: PendingDelivery) {
        self.recipients[pending.priority() as usize] += pending.count();
        self.line.push_front(pending);
    }

    /// Removes the messages that `take` selects from the front, or returns when they may go. The rate limit is
    /// respected.
    fn take(
        &mut self,
        now: Instant,
        take: impl FnOnce(&mut VecDeque<PendingDelivery>) -> Vec<PendingDelivery>,
    ) -> Result<Vec<PendingDelivery>, Option<Instant>> {
        let Some(waiting) = self.line.front() else { return Err(None) };
        if let Some(at) = self.meter.as_ref().and_then(|meter| meter.wait(now)) {
            return Err(Some(at));
        }
        let taken = take(waiting);
        let count = taken.iter().map(PendingDelivery::count).sum::<usize>();
        if let Some(first) = taken.first() {
            self.recipients[first.priority() as usize] -= count;
        }
        if let Some(meter) = &mut self.meter {
            (0..count).for_each(|_| meter.count(now));
        }
        Ok(taken)
    }

    fn clear(&mut self) -> Vec<PendingDelivery> {
        self.recipients = Default::default();
        self.line.drain().collect()
    }
}

/// Classifies a disposition as a signal of the destination.
pub(crate) type SignalOf = fn(&Disposition) -> Signal;

/// A message that was taken, and the lane that it occupies until `Queue::done`. If it is dropped before, for example
/// by a panic, nothing is recorded about its destination.
pub(crate) struct Turn {
    queue: Arc<Queue>,
    lane: Arc<str>,
    began: Instant,
    /// Messages of the same multicast that were taken with it.
    same: Vec<PendingDelivery>,
    over: bool,
    /// Whether its session waits for the answer to another message.
    is_ahead: AtomicBool,
    /// Answers to its recipients, if the queue classifies them.
    answers: Mutex<(Answers, Signal)>,
}

impl Turn {
    /// The messages of the same multicast that were taken with the first.
    pub fn take_same(&mut self) -> Vec<PendingDelivery> {
        std::mem::take(&mut self.same)
    }

    /// Records that its session sends it now, if it was sent ahead.
    pub fn promote(&self) {
        if self.is_ahead.swap(false, Ordering::AcqRel) {
            self.queue.change_lanes(|lanes, _| lanes.promote(&self.lane));
        }
    }

    /// Whether its destination is slow.
    pub fn is_slow(&self) -> bool {
        self.queue.lanes(|lanes, _| lanes.is_slow(&self.lane)).unwrap_or_default()
    }

    /// Records the answer to some recipients. The mail's signal is the one that says most about the destination.
    pub fn record(&self, disposition: &Disposition, recipients: usize) {
        let Some(signal_of) = self.queue.signal_of else { return };
        let new = signal_of(disposition);
        let (answers, signal) = &mut *self.answers.lock();
        match (&new, disposition) {
            (Signal::HeldBack(..), _) => answers.held_back += recipients as u64,
            (_, Disposition::Delivered { .. }) => answers.accepted += recipients as u64,
            _ => {}
        }
        let rank = |signal: &Signal| match signal {
            Signal::Unasked => 0,
            Signal::Answered => 1,
            Signal::Fine => 2,
            _ => 3,
        };
        if rank(&new) > rank(signal) {
            *signal = new;
        }
    }

    /// Ends the turn with the recorded answers. Returns messages that should be sent later, and when.
    pub fn complete(mut self, name: &Name) -> (Vec<PendingDelivery>, Duration) {
        self.over = true;
        let signal = std::mem::replace(&mut self.answers.get_mut().1, Signal::Unasked);
        let AttemptEffect { returned, after, event } = self.queue.finish(&self, signal);
        if let Some(event) = event {
            log_event(name, &self.lane, event);
        }
        if !returned.is_empty() {
            self.queue.room.notify_waiters();
        }
        self.queue.arrived.notify_one();
        (returned, after)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.over {
            let signal = std::mem::replace(&mut self.answers.get_mut().1, Signal::Unasked);
            drop(self.queue.finish(self, signal));
            self.queue.arrived.notify_one();
        }
    }
}

impl Queue {
    /// Queue of a channel with a single destination.
    pub fn single(sessions: usize) -> Arc<Self> {
        Self::new(sessions, 1, Order::Single(Box::new(Single::new())), None)
    }

    /// Queue of a channel whose sessions are shared among destinations.
    pub fn shared(sessions: usize, flow: Flow) -> Arc<Self> {
        Self::shared_by_many(sessions, flow, 1)
    }

    /// Queue of a channel whose sessions are shared among destinations, with up to `recipients_per_turn` recipients
    /// of one multicast per turn.
    pub fn shared_by_many(sessions: usize, flow: Flow, recipients_per_turn: usize) -> Arc<Self> {
        let lanes = Lanes::new(flow, sessions, QUEUE_LENGTH);
        Self::new(sessions, recipients_per_turn, Order::Shared(Box::new(lanes)), None)
    }

    /// Queue of a mail channel with a lane for each mailbox provider. A session has up to two mails under way, one of
    /// them sent ahead, which occupies no session of its own. The answers to the recipients of a mail end its turn.
    pub fn of_providers(sessions: usize, providers: Providers, signal_of: SignalOf) -> Arc<Self> {
        let lanes = Lanes::of_providers(providers, Flow::default(), sessions, QUEUE_LENGTH);
        Self::new(sessions, 1, Order::Shared(Box::new(lanes)), Some(signal_of))
    }

    fn new(sessions: usize, recipients_per_turn: usize, order: Order, signal_of: Option<SignalOf>) -> Arc<Self> {
        let has_lanes = matches!(order, Order::Shared(_));
        let waiting = Mutex::new(Waiting { order, left: 0, senders: 0, closed: false });
        let (arrived, room) = (Notify::new(), Notify::new());
        Arc::new(Queue { waiting, arrived, room, sessions, has_lanes, recipients_per_turn, signal_of })
    }

    /// Appends messages. In a queue with lanes, messages for a full lane wait briefly and are then returned, as are
    /// those for a paused destination. In a single queue they wait. Messages for a closed queue are dropped, which
    /// answers them.
    pub async fn push_all(&self, mut waiting: Vec<PendingDelivery>, lane_of: &LaneOf) {
        let mut deadline = None;
        loop {
            let mut room = std::pin::pin!(self.room.notified());
            room.as_mut().enable();
            let mut returned = Vec::new();
            let mut single = false;
            let wakes = {
                let mut state = self.waiting.lock();
                if state.closed {
                    drop(state);
                    return drop(waiting);
                }
                let last = deadline.is_some_and(|deadline| Instant::now() >= deadline);
                single |= matches!(state.order, Order::Single(_));
                let wakes = state.push(&mut waiting, lane_of, &mut returned, last);
                state.senders += usize::from(!waiting.is_empty() && deadline.is_none());
                if waiting.is_empty() && deadline.is_some() {
                    state.senders -= 1;
                }
                wakes
            };
            for _ in 0..wakes.min(self.sessions) {
                self.arrived.notify_one();
            }
            for (pending, after) in returned {
                pending.return_untried(after, "its destination has enough to do").await;
            }
            if waiting.is_empty() {
                return;
            }
            let until = *deadline.get_or_insert_with(|| Instant::now() + ROOM_TIMEOUT);
            match single {
                true => room.await,
                false => drop(tokio::time::timeout_at(until, room).await),
            }
        }
    }

    fn try_take(self: &Arc<Self>) -> Result<(Turn, PendingDelivery), Option<Instant>> {
        self.try_take_some(self.recipients_per_turn, None)
    }

    /// Takes a message, with up to `most` recipients of the same multicast. Withdrawn messages are returned untried.
    fn try_take_some(
        self: &Arc<Self>,
        most: usize,
        ahead_of: Option<&Turn>,
    ) -> Result<(Turn, PendingDelivery), Option<Instant>> {
        loop {
            let (turn, pending) = self.take_next(most, ahead_of)?;
            if !pending.is_withdrawn() {
                return Ok((turn, pending));
            }
        }
    }

    fn take_next(
        self: &Arc<Self>,
        most: usize,
        ahead_of: Option<&Turn>,
    ) -> Result<(Turn, PendingDelivery), Option<Instant>> {
        let now = Instant::now();
        let mut state = self.waiting.lock();
        let Order::Shared(lanes) = &mut state.order else { return Err(None) };
        let next = match ahead_of {
            Some(current) => lanes.take_ahead(&current.lane, now),
            None => lanes.take(now),
        };
        let (lane, pending) = match next {
            Take::Item(lane, pending) => (lane, pending),
            Take::Wait(at) => return Err(at),
        };
        // Under the same lock: another session could take some of them otherwise.
        let is_same = |next: &PendingDelivery| Arc::ptr_eq(&next.outgoing.message, &pending.outgoing.message);
        let same = match most {
            0 | 1 => Vec::new(),
            most => lanes.take_more(&lane, most - 1, now, is_same),
        };
        // Also wake one for a parked lane: the session that waited for its time may be the one that takes this
        // message.
        let needs_session = lanes.needs_session();
        self.note_free_slots(&mut state, 1 + same.len());
        drop(state);
        if needs_session {
            self.arrived.notify_one();
        }
        let taken = 1 + same.len() as u64;
        let answers = Mutex::new((Answers { taken, ..Answers::default() }, Signal::Unasked));
        let (queue, is_ahead) = (self.clone(), AtomicBool::new(ahead_of.is_some()));
        Ok((Turn { queue, lane, began: now, same, over: false, is_ahead, answers }, pending))
    }

    /// Takes messages that `take` selects from the front of a single queue. Withdrawn messages are returned untried.
    fn try_take_many(
        &self,
        take: impl Fn(&mut VecDeque<PendingDelivery>) -> Vec<PendingDelivery>,
    ) -> Result<Vec<PendingDelivery>, Option<Instant>> {
        loop {
            let mut taken = self.take_next_many(&take)?;
            let was_empty = taken.is_empty();
            taken.retain(|pending| !pending.is_withdrawn());
            if was_empty || !taken.is_empty() {
                return Ok(taken);
            }
        }
    }

    fn take_next_many(
        &self,
        take: impl Fn(&mut VecDeque<PendingDelivery>) -> Vec<PendingDelivery>,
    ) -> Result<Vec<PendingDelivery>, Option<Instant>> {
        let mut state = self.waiting.lock();
        let Order::Single(single) = &mut state.order else { return Err(None) };
        let taken = single.take(Instant::now(), take)?;
        // Recipients of one multicast are pushed as one message; each session takes a part of them.
        let needs_session = !single.line.is_empty();
        self.note_free_slots(&mut state, taken.iter().map(PendingDelivery::count).sum());
        drop(state);
        if needs_session {
            self.arrived.notify_one();
        }
        Ok(taken)
    }

    fn try_take_multicast(
        self: &Arc<Self>,
        limit: usize,
        ahead_of: Option<&Turn>,
    ) -> Result<PendingDelivery, Option<Instant>> {
        if self.has_lanes {
            let (mut turn, first) = self.try_take_some(limit, ahead_of)?;
            let same = turn.take_same();
            let turn = Arc::new(turn);
            let same = same.into_iter().filter(|pending| !pending.is_withdrawn());
            let mut each: Vec<PendingDelivery> = std::iter::once(first).chain(same).collect();
            each.iter_mut().for_each(|pending| pending.turn = Some(turn.clone()));
            return PendingDelivery::together(each).ok_or(None);
        }
        let taken = self.try_take_many(|waiting| take_first(waiting, limit).into_iter().collect())?;
        taken.into_iter().next().ok_or(None)
    }

    /// Waits until something can be taken; `None` when the queue is closed.
    async fn wait_for<T>(&self, take: impl Fn() -> Result<T, Option<Instant>>) -> Option<T> {
        loop {
            let mut arrived = std::pin::pin!(self.arrived.notified());
            arrived.as_mut().enable();
            let at = match take() {
                Ok(taken) => return Some(taken),
                Err(at) => at,
            };
            if self.waiting.lock().closed {
                return None;
            }
            match at {
                Some(at) => drop(tokio::time::timeout_at(at, arrived).await),
                None => arrived.await,
            }
        }
    }

    /// The next message of a queue with lanes; `None` when the queue is closed.
    pub async fn take(self: &Arc<Self>) -> Option<(Turn, PendingDelivery)> {
        self.wait_for(|| self.try_take()).await
    }

    /// Up to `limit` messages, at least one; `None` when the queue is closed. For a queue with a single lane.
    pub async fn pop_many(&self, limit: usize) -> Option<Vec<PendingDelivery>> {
        self.wait_for(|| self.try_take_many(|waiting| waiting.drain(..limit.min(waiting.len())).collect())).await
    }

    /// The next message, with up to `limit` of its recipients, at least one; `None` when the queue is closed. For a
    /// queue with a single lane.
    pub async fn pop_multicast(self: &Arc<Self>, limit: usize) -> Option<PendingDelivery> {
        self.wait_for(|| self.try_take_multicast(limit, None)).await
    }

    /// As `pop_multicast`, without waiting. In a queue with lanes it is sent ahead, while the session waits for the answer
    /// to a message with the turn `current`.
    pub fn try_pop_multicast(self: &Arc<Self>, limit: usize, current: Option<&Turn>) -> Option<PendingDelivery> {
        if self.has_lanes && current.is_none() {
            return None;
        }
        self.try_take_multicast(limit, current).ok()
    }

    /// Puts messages that were taken from a single lane and not sent back to its front.
    pub fn put_back(&self, taken: impl IntoIterator<Item = PendingDelivery>) {
        let taken: Vec<PendingDelivery> = taken.into_iter().collect();
        let count = taken.len();
        // Dropped without the lock, which frees their places in the lanes.
        let mut turns = Vec::new();
        {
            let mut state = self.waiting.lock();
            let closed = state.closed;
            match &mut state.order {
                Order::Single(single) if !closed => {
                    taken.into_iter().rev().for_each(|pending| single.push_front(pending));
                }
                Order::Shared(lanes) if !closed => {
                    for mut pending in taken.into_iter().rev().flat_map(|pending| pending.into_each().into_iter().rev())
                    {
                        turns.extend(pending.turn.take());
                        if let Some(lane) = pending.lane.clone() {
                            lanes.push_front(&lane, pending);
                        }
                    }
                }
                _ => {
                    drop(state);
                    return drop(taken);
                }
            }
        }
        drop(turns);
        for _ in 0..count.min(self.sessions) {
            self.arrived.notify_one();
        }
    }

    /// Whether the queue is closed.
    pub fn is_closed(&self) -> bool {
        self.waiting.lock().closed
    }

    /// Records the result of an attempt, and takes the next message if one may leave now.
    pub async fn done(
        self: &Arc<Self>,
        mut turn: Turn,
        signal: Signal,
        name: &Name,
    ) -> Option<(Turn, PendingDelivery)> {
        let AttemptEffect { returned, after, event } = self.finish(&turn, signal);
        turn.over = true;
        if let Some(event) = event {
            log_event(name, &turn.lane, event);
        }
        if !returned.is_empty() {
            self.room.notify_waiters();
        }
        let next = self.try_take().ok();
        for pending in returned {
            pending.return_untried(after, "its destination is paused").await;
        }
        next
    }

    fn finish(&self, turn: &Turn, signal: Signal) -> AttemptEffect<PendingDelivery> {
        let now = Instant::now();
        match &mut self.waiting.lock().order {
            Order::Shared(lanes) => {
                if turn.is_ahead.swap(false, Ordering::AcqRel) {
                    lanes.promote(&turn.lane);
                }
                lanes.settle(&turn.lane, turn.answers.lock().0, now);
                lanes.done(&turn.lane, signal, now - turn.began, now, fastrand::f64())
            }
            Order::Single(_) => AttemptEffect { returned: Vec::new(), after: Duration::ZERO, event: None },
        }
    }

    /// Wakes waiting senders from time to time; each may bring many messages.
    fn note_free_slots(&self, state: &mut Waiting, count: usize) {
        state.left += count;
        let empty = match &state.order {
            Order::Single(single) => single.line.is_empty(),
            Order::Shared(lanes) => lanes.waiting() == 0,
        };
        if state.senders > 0 && (empty || state.left >= ROOM_STEP) {
            state.left = 0;
            self.room.notify_waiters();
        }
    }

    /// Sets the rate limit of all messages together.
    pub fn set_rate(&self, rate: Option<Rate>) {
        let meter = rate.map(Meter::new);
        match &mut self.waiting.lock().order {
            Order::Single(single) => single.meter = meter,
            Order::Shared(lanes) => lanes.set_rate(meter),
        }
        // Waiting sessions computed their wake-up time from the old rate.
        self.arrived.notify_waiters();
    }

    /// Closes the queue and answers waiting messages.
    pub fn close(&self) {
        let left: Vec<PendingDelivery> = {
            let mut state = self.waiting.lock();
            state.closed = true;
            match &mut state.order {
                Order::Single(single) => single.clear(),
                Order::Shared(lanes) => lanes.clear(),
            }
        };
        drop(left);
        self.room.notify_waiters();
        self.arrived.notify_waiters();
    }

    /// Changes the lanes, if the queue has some.
    pub fn change_lanes<R>(&self, change: impl FnOnce(&mut Lanes<PendingDelivery>, Instant) -> R) -> Option<R> {
        if !self.has_lanes {
            return None;
        }
        match &mut self.waiting.lock().order {
            Order::Shared(lanes) => Some(change(lanes, Instant::now())),
            Order::Single(_) => None,
        }
    }

    /// Returns the messages of mailbox providers whose warm-up allows no more today.
    pub async fn return_used_up(&self) {
        let drained = self.change_lanes(|lanes, now| lanes.drain_all_used_up(now));
        let Some(AttemptEffect { returned, after, .. }) = drained else { return };
        if !returned.is_empty() {
            self.room.notify_waiters();
        }
        for pending in returned {
            pending.return_untried(after, TAKES_NO_MORE).await;
        }
    }

    /// Wakes all sessions, which may have computed a wake-up time that is too late.
    pub fn wake_sessions(&self) {
        self.arrived.notify_waiters();
    }

    /// Whether each destination has a lane.
    pub fn has_lanes(&self) -> bool {
        self.has_lanes
    }

    pub fn lanes<R>(&self, read: impl FnOnce(&Lanes<PendingDelivery>, Instant) -> R) -> Option<R> {
        // Called for each notification, while sessions take from the queue.
        if !self.has_lanes {
            return None;
        }
        match &self.waiting.lock().order {
            Order::Shared(lanes) => Some(read(lanes, Instant::now())),
            Order::Single(_) => None,
        }
    }
}

impl Waiting {
    /// Moves messages that have room into their lanes. Messages that should be sent later go to `returned`; those
    /// without room stay, unless this is the `last` call. Returns how many sessions may have work.
    fn push(
        &mut self,
        waiting: &mut Vec<PendingDelivery>,
        lane_of: &LaneOf,
        returned: &mut Vec<(PendingDelivery, Duration)>,
        last: bool,
    ) -> usize {
        let mut wakes = 0;
        match &mut self.order {
            Order::Single(single) => {
                // Each priority has its own room, so that high-priority messages need not wait.
                let mut remaining = Vec::new();
                for pending in waiting.drain(..) {
                    remaining.extend(single.push_back(pending));
                    wakes += 1;
                }
                wakes -= remaining.len();
                *waiting = remaining;
            }
            Order::Shared(lanes) => {
                let now = Instant::now();
                let mut remaining = Vec::with_capacity(waiting.len());
                // Most waiting messages wait for the same lane, and are checked whenever some of it has left.
                let mut full: Option<(Arc<str>, Priority)> = None;
                for mut pending in waiting.drain(..) {
                    let address = &pending.outgoing.address;
                    let lane = pending.lane.get_or_insert_with(|| lanes.key(&lane_of(address))).clone();
                    let priority = pending.priority();
                    if full.as_ref().is_some_and(|full| full.1 == priority && full.0 == lane) {
                        remaining.push(pending);
                        continue;
                    }
                    match lanes.push(&lane, pending, now) {
                        Pushed::Waits { wake } => wakes += usize::from(wake),
                        Pushed::NoRoom(pending, Some(after)) => returned.push((pending, after)),
                        Pushed::NoRoom(pending, None) if last => returned.push((pending, lanes.retry_delay(&lane))),
                        Pushed::NoRoom(pending, None) => {
                            remaining.push(pending);
                            full = Some((lane, priority));
                        }
                    }
                }
                *waiting = remaining;
            }
        }
        wakes
    }
}

/// Logs a change of a destination's state; continued failure is logged from time to time.
fn log_event(channel: &Name, destination: &str, event: Event) {
    match event {
        Event::Paused { pause, reason, failures, log: true } => tracing::warn!(
            %channel, destination, failures, %reason, pause_s = pause.as_secs(),
            "a destination only fails and is paused, each time longer"
        ),
        Event::Paused { pause, reason, .. } => {
            tracing::debug!(%channel, destination, %reason, pause_s = pause.as_secs(), "a destination fails still");
        }
        Event::HeldBack { pause, said, log: true } => tracing::warn!(
            %channel, provider = destination, %said, pause_s = pause.as_secs(),
            "a mailbox provider holds mail back, and gets less"
        ),
        Event::HeldBack { pause, said, .. } => {
            tracing::debug!(%channel, provider = destination, %said, pause_s = pause.as_secs(), "a mailbox provider holds mail back still");
        }
        Event::Recovered { after } => {
            tracing::info!(%channel, provider = destination, after_s = after.as_secs(), "a mailbox provider gets mail at the full rate again");
        }
        Event::Back { after } => {
            tracing::info!(%channel, destination, after_s = after.as_secs(), "a destination is back");
        }
    }
}

/// The first waiting message, with up to `limit` of its recipients, at least one; the other recipients stay in the
/// queue.
pub(crate) fn take_first(waiting: &mut VecDeque<PendingDelivery>, limit: usize) -> Option<PendingDelivery> {
    let mut first = waiting.pop_front()?;
    if let Some(rest) = first.split_off(limit) {
        waiting.push_front(rest);
    }
    Some(first)
}

#[cfg(test)]
mod tests {
    use tocsin_model::{id::SubscriberNumber, receipt::ReasonKind};
    use tokio::sync::mpsc;

    use super::*;
    use crate::{
        channel::{Answer, Outgoing},
        pending::DeliveryContext,
        recall::Recalls,
        running::single_lane,
        testing::{context, outgoing, show},
        withdrawal::Withdrawal,
    };

    fn single() -> Arc<Queue> {
        Queue::single(1)
    }

    /// Queues messages without a session; each letter is an address and so a lane.
    async fn queue_of(queue: &Queue, addresses: &str) -> mpsc::Receiver<Answer> {
        let shared = DeliveryContext::new(&"c".parse().expect("a name"), &context());
        let (answers, answered) = mpsc::channel(addresses.len().max(1));
        let all = addresses.chars().enumerate().map(|(number, address)| outgoing(number as u32, &address.to_string()));
        queue.push_all(PendingDelivery::all(all.collect(), &shared, &answers), &|address| address.into()).await;
        answered
    }

    #[tokio::test]
    async fn a_single_lane_keeps_its_order() {
        let queue = single();
        let _answers = queue_of(&queue, "aaaaaa").await;
        let many = queue.pop_many(2).await.expect("an open queue");
        assert_eq!(many.iter().map(|pending| pending.outgoing.ticket.ordinal).collect::<Vec<_>>(), [0, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn high_priority_passes_a_full_queue() {
        let shared = DeliveryContext::new(&"c".parse().expect("a name"), &context());
        let of = |number: u32, priority| {
            let mut outgoing = outgoing(number, "a");
            Arc::make_mut(&mut outgoing.message).priority = priority;
            outgoing
        };
        for queue in [single(), Queue::shared(1, Flow::default())] {
            let (answers, _answered) = mpsc::channel(2 * QUEUE_LENGTH);
            let push = async |messages: Vec<Outgoing>| {
                queue.push_all(PendingDelivery::all(messages, &shared, &answers), &single_lane).await;
            };
            push((0..QUEUE_LENGTH as u32).map(|number| of(number, Priority::Low)).collect()).await;
            let before = Instant::now();
            push(vec![of(9_000, Priority::High), of(9_001, Priority::Urgent)]).await;
            assert_eq!(before.elapsed(), Duration::ZERO, "there is room for them");
            let mut taken = Vec::new();
            for _ in 0..3 {
                let pending = match queue.lanes(|_, _| ()) {
                    Some(()) => queue.take().await.map(|(_turn, pending)| pending),
                    None => queue.pop_many(1).await.and_then(|mut taken| taken.pop()),
                };
                taken.push(pending.expect("an open queue").outgoing.ticket.ordinal);
            }
            assert_eq!(taken, [9_001, 9_000, 0]);
        }
    }

    /// A message that was formatted before its recipient changed is decided on again.
    #[tokio::test]
    async fn a_recalled_message_is_returned_untried() {
        let (ann, bob) = (SubscriberNumber(1), SubscriberNumber(2));
        for queue in [single(), Queue::shared(1, Flow::default())] {
            let recalls = Arc::new(Recalls::default());
            let to = |ordinal: u32, subscriber: SubscriberNumber| Outgoing {
                subscriber: Some(subscriber),
                recall: Some(recalls.mark()),
                ..outgoing(ordinal, "a")
            };
            let shared = DeliveryContext::new(&"c".parse().expect("a name"), &context());
            let (answers, mut answered) = mpsc::channel(10);
            let before = vec![to(0, ann), to(1, bob), to(2, ann)];
            queue.push_all(PendingDelivery::all(before, &shared, &answers), &single_lane).await;
            recalls.recall_subscribers([ann]);
            queue.push_all(PendingDelivery::all(vec![to(3, ann)], &shared, &answers), &single_lane).await;
            let mut taken = Vec::new();
            for _ in 0..2 {
                let pending = match queue.lanes(|_, _| ()) {
                    Some(()) => queue.take().await.map(|(_turn, pending)| pending),
                    None => queue.pop_many(1).await.and_then(|mut taken| taken.pop()),
                };
                taken.push(pending.expect("an open queue").outgoing.ticket.ordinal);
            }
            assert_eq!(taken, [1, 3]);
            let mut returned = Vec::new();
            while let Ok(answer) = answered.try_recv() {
                assert!(
                    matches!(&answer.disposition, Disposition::Deferred { reason, .. } if reason.kind == ReasonKind::Untried)
                );
                returned.push(answer.ticket.ordinal);
            }
            // The taken messages were dropped, which returns them as well.
            returned.retain(|ordinal| !taken.contains(ordinal));
            assert_eq!(returned, [0, 2]);
        }
    }

    #[tokio::test]
    async fn a_withdrawn_message_is_returned_untried_until_the_withdrawal_ends() {
        for queue in [single(), Queue::shared(1, Flow::default())] {
            let withdrawal = Withdrawal::default();
            let of = |ordinal: u32, withdrawal: Option<Withdrawal>| {
                let mut outgoing = outgoing(ordinal, "a");
                Arc::make_mut(&mut outgoing.message).withdrawal = withdrawal;
                outgoing
            };
            let shared = DeliveryContext::new(&"c".parse().expect("a name"), &context());
            let (answers, mut answered) = mpsc::channel(10);
            let all = vec![of(0, Some(withdrawal.clone())), of(1, None), of(2, Some(withdrawal.clone()))];
            queue.push_all(PendingDelivery::all(all, &shared, &answers), &single_lane).await;
            let take = async || match queue.lanes(|_, _| ()) {
                Some(()) => queue.take().await.map(|(_turn, pending)| pending.outgoing.ticket.ordinal),
                None => queue.pop_many(1).await.and_then(|taken| Some(taken.first()?.outgoing.ticket.ordinal)),
            };
            withdrawal.set(true);
            assert_eq!(take().await, Some(1));
            assert_eq!(answered.try_recv().expect("an answer").ticket.ordinal, 0, "it was returned");
            withdrawal.set(false);
            assert_eq!(take().await, Some(2));
        }
    }

    #[tokio::test]
    async fn a_multicast_is_taken_together_up_to_a_limit() {
        let (queue, shared) = (Queue::single(2), DeliveryContext::new(&"c".parse().expect("a name"), &context()));
        let (answers, _answered) = mpsc::channel(100);
        let (one, other) = (outgoing(0, "a"), outgoing(1, "b"));
        let all = [&one, &one, &one, &other, &one].map(Clone::clone);
        let mut all = PendingDelivery::all(all.into(), &shared, &answers);
        PendingDelivery::gather(&mut all);
        queue.push_all(all, &single_lane).await;
        let taken: Vec<usize> =
            std::iter::from_fn(|| queue.try_pop_multicast(2, None).map(|pending| pending.count())).collect();
        assert_eq!(taken, [2, 1, 1, 1]);
    }

    #[tokio::test]
    async fn a_turn_is_for_the_same_multicast_before_others_can_take_of_it() {
        let queue = Queue::shared_by_many(2, Flow::default(), 3);
        let shared = DeliveryContext::new(&"c".parse().expect("a name"), &context());
        let (answers, _answered) = mpsc::channel(100);
        let (one, other) = (outgoing(0, "a"), outgoing(1, "b"));
        let all = [&one, &one, &one, &one, &other].map(Clone::clone);
        queue.push_all(PendingDelivery::all(all.into(), &shared, &answers), &single_lane).await;
        let mut sizes = Vec::new();
        while let Ok((mut turn, _first)) = queue.try_take() {
            sizes.push(1 + turn.take_same().len());
        }
        assert_eq!(sizes, [3, 1, 1]);
    }

    #[tokio::test]
    async fn closing_the_queue_answers_waiting_messages() {
        let queue = single();
        let mut answered = queue_of(&queue, "abc").await;
        queue.close();
        let _late = queue_of(&queue, "d").await;
        assert!(queue.pop_many(1).await.is_none());
        for _ in 0..3 {
            let answer = answered.recv().await.expect("an answer");
            assert_eq!(show(&answer.disposition), "deferred Untried the channel was closed before it was sent");
        }
        assert!(answered.recv().await.is_none(), "and none twice");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stuck_lane_returns_messages_without_room() {
        let queue = Queue::shared(8, Flow::default());
        let before = Instant::now();
        let mut answered = queue_of(&queue, &"a".repeat(QUEUE_LENGTH)).await;
        assert_eq!(before.elapsed(), ROOM_TIMEOUT, "room may come");
        let answer = answered.recv().await.expect("an answer");
        assert_eq!(show(&answer.disposition), "deferred Untried its destination has enough to do");
        assert!(matches!(answer.disposition, Disposition::Deferred { retry_after: Some(_), .. }));
        let others = queue_of(&queue, &"bcd".repeat(100)).await;
        assert_eq!(before.elapsed(), ROOM_TIMEOUT, "for the others there is room at once");
        assert_eq!(others.len() + 300, others.max_capacity());
    }

    /// An endpoint that rejects the first `refusals` requests with a rate-limit answer and then accepts. Sessions
    /// work as those of channels; a returned message is pushed again when it is due.
    async fn check_recovery(sessions: usize, refusals: usize, wish: Option<u64>) {
        let queue = Queue::shared(sessions, Flow::default());
        let shared = DeliveryContext::new(&"c".parse().expect("a name"), &context());
        let (answers, mut answered) = mpsc::channel(100);
        let left = Arc::new(std::sync::atomic::AtomicUsize::new(refusals));
        for _ in 0..sessions {
            let (queue, left, name) = (queue.clone(), left.clone(), "c".parse::<Name>().expect("a name"));
            tokio::spawn(async move {
                let mut next = None;
                while let Some((turn, pending)) = match next.take() {
                    Some(given) => Some(given),
                    None => queue.take().await,
                } {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    let refuses = left
                        .fetch_update(
                            std::sync::atomic::Ordering::SeqCst,
                            std::sync::atomic::Ordering::SeqCst,
                            |left| left.checked_sub(1),
                        )
                        .is_ok();
                    let wish = wish.map(Duration::from_secs);
                    if refuses {
                        next = queue.done(turn, Signal::Slower(wish), &name).await;
                        let reason = tocsin_model::receipt::Reason::new(ReasonKind::Answer, "429");
                        pending.answer(Disposition::Deferred { reason, retry_after: wish }).await;
                    } else {
                        next = queue.done(turn, Signal::Fine, &name).await;
                        pending.answer(Disposition::Delivered { reply: String::new() }).await;
                    }
                }
            });
        }
        let push = async |number: u32| {
            let pending = PendingDelivery::all(vec![outgoing(number, "a")], &shared, &answers);
            queue.push_all(pending, &single_lane).await;
        };
        for number in 0..12 {
            push(number).await;
        }
        let mut delivered = 0;
        while delivered < 12 {
            let answer = tokio::time::timeout(Duration::from_secs(3_600), answered.recv()).await;
            let answer = answer.expect("a message waits forever").expect("the queue is open");
            match answer.disposition {
                Disposition::Delivered { .. } => delivered += 1,
                Disposition::Deferred { retry_after, .. } => {
                    tokio::time::sleep(retry_after.unwrap_or(Duration::from_secs(1))).await;
                    push(answer.ticket.ordinal).await;
                }
                Disposition::Refused { .. } => panic!("none is refused"),
            }
        }
        queue.close();
    }

    #[tokio::test(start_paused = true)]
    async fn b1_an_endpoint_that_asks_for_less_is_served_when_it_answers() {
        for sessions in [1, 2, 8] {
            for refusals in [1, 2, 5, 12, 40] {
                for wish in [None, Some(0), Some(1), Some(3), Some(60)] {
                    check_recovery(sessions, refusals, wish).await;
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn b1_a_rate_that_is_raised_counts_at_once() {
        for queue in [Queue::single(1), Queue::shared(1, Flow::default())] {
            queue.set_rate(Some(Rate { messages: 1, per: Duration::from_secs(3_600) }));
            let _answers = queue_of(&queue, "aa").await;
            let take = async || match queue.lanes(|_, _| ()) {
                Some(()) => drop(queue.take().await),
                None => drop(queue.pop_many(1).await),
            };
            take().await;
            let before = Instant::now();
            tokio::join!(take(), async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                queue.set_rate(None);
            });
            assert_eq!(before.elapsed(), Duration::from_secs(1));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_is_kept_by_all_sessions_together() {
        for (queue, shared) in [(Queue::single(4), false), (Queue::shared(4, Flow::default()), true)] {
            queue.set_rate(Some(Rate { messages: 2, per: Duration::from_secs(1) }));
            let _answers = queue_of(&queue, "aabbccddee").await;
            let (before, mut times) = (Instant::now(), Vec::new());
            while times.len() < 10 {
                match shared {
                    true => drop(queue.take().await),
                    false => drop(queue.pop_many(1).await),
                }
                times.push(before.elapsed().as_millis());
            }
            assert_eq!(times, (0..10).map(|number| number * 500).collect::<Vec<u128>>());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_makes_its_senders_wait() {
        let queue = single();
        let _answers = queue_of(&queue, &"a".repeat(QUEUE_LENGTH)).await;
        let waiting = tokio::time::timeout(Duration::from_secs(1), queue_of(&queue, "b"));
        assert!(waiting.await.is_err(), "there is no room");
        drop(queue.try_pop_multicast(1, None));
        let room = tokio::time::timeout(Duration::from_secs(1), queue_of(&queue, "b"));
        assert!(room.await.is_ok(), "there is room for one");
    }
}
