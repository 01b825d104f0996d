//! The bounded queue that a channel's sessions pull from, and the message that must be answered.

use std::{
    borrow::Cow,
    collections::VecDeque,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures_util::FutureExt;
use parking_lot::Mutex;
use tocsin_model::{
    application::{Channel, Flow, Rate},
    conduct::Priority,
    content::PartsUsed,
    id::Name,
    receipt::{Disposition, Reason, ReasonKind},
    time::Timestamp,
};
use tokio::{
    sync::{Notify, mpsc},
    task::JoinSet,
    time::Instant,
};

use crate::{
    channel::{Answer, Clock, Context, Destination, OpenChannel, Outgoing},
    flow::{
        lanes::{Done, Event, Lanes, Pushed, Signal, Take},
        line::{Line, Waits},
        rate::Meter,
    },
    protocol::Opened,
};

/// Recipients of messages that wait for a session, at most; where all go to one far side, of each priority. A multicast may
/// be longer than the room that is left.
pub(crate) const QUEUE_LENGTH: usize = 4096;

/// How long a sender waits for room in a lane that moves.
const ROOM_PATIENCE: Duration = Duration::from_secs(1);
/// After so many messages have left, senders that wait for room are told.
const ROOM_STEP: usize = 128;

/// Answers that are given at once, at most.
const ANSWERS_AT_ONCE: usize = 256;

/// How long `close` waits for what is on its way.
const CLOSE_PATIENCE: Duration = Duration::from_secs(30);

/// What all messages of a channel share.
pub(crate) struct Shared {
    pub name: Name,
    pub clock: Arc<dyn Clock>,
    open: AtomicUsize,
    settled: Notify,
    attempts: [metrics::Counter; 3],
    returned: metrics::Counter,
    duration: metrics::Histogram,
}

impl Shared {
    /// The metrics recorder must be in place by now.
    pub fn new(name: &Name, clock: Arc<dyn Clock>) -> Arc<Self> {
        let attempts = ["delivered", "deferred", "refused"].map(
            |outcome| metrics::counter!("deliver_attempts_total", "channel" => name.to_string(), "outcome" => outcome),
        );
        let duration = metrics::histogram!("deliver_duration_seconds", "channel" => name.to_string());
        let returned = metrics::counter!("deliver_returned_total", "channel" => name.to_string());
        let (open, settled) = (AtomicUsize::new(0), Notify::new());
        Arc::new(Shared { name: name.clone(), clock, open, settled, attempts, returned, duration })
    }

    /// Counts so many attempts that came to this, after so long, at so many recipients.
    fn count(&self, disposition: &Disposition, lasted: Duration, attempts: usize, recipients: usize) {
        let outcome = match disposition {
            Disposition::Delivered { .. } => Some(0),
            Disposition::Deferred { reason, .. } if reason.kind == ReasonKind::Untried => None,
            Disposition::Deferred { .. } => Some(1),
            Disposition::Refused { .. } => Some(2),
        };
        match outcome {
            Some(outcome) => {
                self.attempts[outcome].increment(recipients as u64);
                self.duration.record_many(lasted.as_secs_f64(), attempts);
            }
            None => self.returned.increment(recipients as u64),
        }
    }

    /// So many recipients have their answer.
    fn close(&self, count: usize) {
        if self.open.fetch_sub(count, Ordering::AcqRel) == count {
            self.settled.notify_waiters();
        }
    }

    async fn settle(&self) {
        loop {
            let mut settled = std::pin::pin!(self.settled.notified());
            settled.as_mut().enable();
            if self.open.load(Ordering::Acquire) == 0 {
                return;
            }
            settled.await;
        }
    }
}

/// What messages share that came together.
struct Arrival {
    shared: Arc<Shared>,
    answers: mpsc::Sender<Answer>,
    queued: Instant,
}

/// A message inside a channel, with all its recipients. It is answered when `answer` is called, or else when it is dropped.
pub(crate) struct Pending {
    pub outgoing: Outgoing,
    /// The key of its lane, once that was looked up.
    lane: Option<Arc<str>>,
    /// How many sessions broke under it before its content was sent.
    pub breaks: u8,
    /// When it was handed to the far side.
    pub sent_at: Option<Timestamp>,
    arrival: Arc<Arrival>,
    /// Its answer while it waits for room.
    ready: Option<Box<Answer>>,
    answered: bool,
}

impl Pending {
    /// Messages that come together.
    fn all(outgoing: Vec<Outgoing>, shared: &Arc<Shared>, answers: &mpsc::Sender<Answer>) -> Vec<Pending> {
        shared.open.fetch_add(outgoing.iter().map(Outgoing::count).sum(), Ordering::AcqRel);
        let arrival = Arrival { shared: shared.clone(), answers: answers.clone(), queued: Instant::now() };
        let arrival = Arc::new(arrival);
        let pending = |outgoing| Pending {
            outgoing,
            lane: None,
            breaks: 0,
            sent_at: None,
            arrival: arrival.clone(),
            ready: None,
            answered: false,
        };
        outgoing.into_iter().map(pending).collect()
    }

    /// How many recipients it has.
    pub fn count(&self) -> usize {
        self.outgoing.count()
    }

    /// The same to each recipient alone, in their order.
    pub fn into_each(mut self) -> Vec<Pending> {
        let others = std::mem::take(&mut self.outgoing.others);
        let mut each = Vec::with_capacity(1 + others.len());
        each.push(self);
        for other in others {
            let one = each[0].like(other.with(each[0].outgoing.message.clone()));
            each.push(one);
        }
        each
    }

    /// A part of this one.
    fn like(&self, outgoing: Outgoing) -> Pending {
        let Pending { lane, breaks, sent_at, arrival, .. } = self;
        let (lane, breaks, sent_at, arrival) = (lane.clone(), *breaks, *sent_at, arrival.clone());
        Pending { outgoing, lane, breaks, sent_at, arrival, ready: None, answered: false }
    }

    /// Messages as one, of which `into_each` has made several.
    pub fn together(each: Vec<Pending>) -> Option<Pending> {
        let mut each = each.into_iter();
        let mut first = each.next()?;
        each.for_each(|mut next| first.join(&mut next));
        Some(first)
    }

    /// Keeps the first so many recipients, one at least; gives the same to the rest, if there is one.
    pub fn split_off(&mut self, at: usize) -> Option<Pending> {
        let rest = self.outgoing.split_off(at)?;
        Some(self.like(rest))
    }

    /// Takes the recipients of another over, which is answered with this one.
    fn join(&mut self, next: &mut Pending) {
        self.outgoing.join(&mut next.outgoing);
        next.answered = true;
    }

    /// Makes one of those that follow each other and are the same.
    fn gather(messages: &mut Vec<Pending>) {
        messages.dedup_by(|next, last| {
            let is_same = Arc::ptr_eq(&next.outgoing.message, &last.outgoing.message)
                && Arc::ptr_eq(&next.arrival, &last.arrival)
                && (next.sent_at, next.breaks) == (last.sent_at, last.breaks);
            if is_same {
                last.join(next);
            }
            is_same
        });
    }

    /// When it came into the queue.
    pub fn queued(&self) -> Instant {
        self.arrival.queued
    }

    /// Notes that it is handed over now.
    pub fn sent(&mut self) {
        Pending::sent_together(std::slice::from_mut(self));
    }

    /// Notes that messages are handed over now, as one.
    pub fn sent_together(messages: &mut [Pending]) {
        let Some(first) = messages.first() else { return };
        let now = first.arrival.shared.clock.now();
        messages.iter_mut().for_each(|message| message.sent_at = Some(now));
    }

    /// Whether its time is over.
    pub fn expired(&self) -> bool {
        self.outgoing.message.expires_at.is_some_and(|at| at <= self.arrival.shared.clock.now())
    }

    /// Why it is not sent any more, if its time is over.
    pub fn too_late(&self) -> Option<Reason> {
        self.expired().then(|| Reason::new(ReasonKind::Expired, "its time was over before it was sent"))
    }

    /// Gives the answer to whoever sent the message; waits while they are not ready for it.
    pub async fn answer(mut self, disposition: Disposition) {
        let arrival = self.arrival.clone();
        let count = self.count();
        let answer = self.finish(disposition, arrival.shared.clock.now());
        if let Err(mpsc::error::TrySendError::Full(answer)) = arrival.answers.try_send(answer) {
            // From here on a cancelled wait still tells the truth: `drop` sends what is ready.
            self.ready = Some(Box::new(answer));
            if let Ok(permit) = arrival.answers.reserve().await
                && let Some(answer) = self.ready.take()
            {
                permit.send(*answer);
            }
            self.ready = None;
        }
        self.close(count);
    }

    /// Gives it back as it is, to be sent after this time.
    async fn give_back(self, after: Duration, why: &'static str) {
        // Those that come back together do not come all at once.
        let after = after.mul_f64(1.0 + 0.2 * fastrand::f64());
        let reason = Reason::new(ReasonKind::Untried, why);
        self.answer(Disposition::Deferred { reason, retry_after: Some(after) }).await;
    }

    /// Its answer, counted.
    fn finish(&mut self, disposition: Disposition, answered_at: Timestamp) -> Answer {
        let sent_at = self.sent_at.unwrap_or(answered_at);
        self.arrival.shared.count(&disposition, answered_at.since(sent_at), 1, self.count());
        self.answer_uncounted(disposition, answered_at)
    }

    fn answer_uncounted(&mut self, disposition: Disposition, answered_at: Timestamp) -> Answer {
        let shared = &self.arrival.shared;
        let sent_at = self.sent_at.unwrap_or(answered_at);
        let (ticket, id, formatted_at) = (self.outgoing.ticket, self.outgoing.id, self.outgoing.message.formatted_at);
        let Outgoing { address, others, .. } = &mut self.outgoing;
        let (address, others) = (std::mem::take(address), std::mem::take(others));
        let (channel, place) = (shared.name.clone(), self.outgoing.message.place.clone());
        Answer { ticket, id, formatted_at, sent_at, answered_at, disposition, channel, address, place, others }
    }

    fn close(&mut self, count: usize) {
        self.answered = true;
        self.arrival.shared.close(count);
    }
}

impl Waits for Pending {
    fn priority(&self) -> Priority {
        self.outgoing.message.priority
    }

    fn since(&self) -> Instant {
        self.arrival.queued
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        let answer = self.ready.take().map(|answer| *answer).unwrap_or_else(|| {
            let reason = if std::thread::panicking() {
                Reason::new(ReasonKind::Internal, "the attempt broke off in the middle of our own work")
            } else if self.sent_at.is_none() {
                Reason::new(ReasonKind::Untried, "the channel was closed before it was sent")
            } else {
                Reason::new(ReasonKind::Connection, "the channel was closed before there was an answer")
            };
            let now = self.arrival.shared.clock.now();
            self.finish(Disposition::Deferred { reason, retry_after: None }, now)
        });
        let count = answer.count();
        if let Err(mpsc::error::TrySendError::Full(answer)) = self.arrival.answers.try_send(answer)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            // Bounded: each such task stands for a message that held a place in a bounded queue.
            let answers = self.arrival.answers.clone();
            runtime.spawn(async move { answers.send(answer).await });
        }
        self.close(count);
    }
}

/// Gives some messages the same answer; cheaper than one by one.
pub(crate) async fn answer_all(mut messages: Vec<Pending>, disposition: &Disposition) {
    Pending::gather(&mut messages);
    let mut messages = VecDeque::from(messages);
    while let Some(first) = messages.front() {
        let arrival = first.arrival.clone();
        let answers = &arrival.answers;
        let most = ANSWERS_AT_ONCE.min(answers.max_capacity());
        let sent_at = first.sent_at;
        let together = |next: &&Pending| {
            let same_way = Arc::ptr_eq(&next.arrival, &arrival) || next.arrival.answers.same_channel(answers);
            same_way && next.sent_at == sent_at
        };
        let count = messages.iter().take(most).take_while(together).count();
        let recipients = messages.iter().take(count).map(Pending::count).sum();
        let answered_at = arrival.shared.clock.now();
        arrival.shared.count(disposition, answered_at.since(sent_at.unwrap_or(answered_at)), count, recipients);
        let finish = |message: &mut Pending| message.answer_uncounted(disposition.clone(), answered_at);
        if let Ok(permits) = answers.try_reserve_many(count) {
            for (permit, mut message) in permits.zip(messages.drain(..count)) {
                permit.send(finish(&mut message));
                message.answered = true;
            }
            arrival.shared.close(recipients);
            continue;
        }
        let mut some: Vec<Pending> = messages.drain(..count).collect();
        // From here on a cancelled wait still tells the truth: `drop` sends what is ready.
        some.iter_mut().for_each(|message| message.ready = Some(Box::new(finish(message))));
        let Ok(permits) = answers.reserve_many(count).await else { continue };
        for (permit, mut message) in permits.zip(some) {
            if let Some(answer) = message.ready.take() {
                let count = answer.count();
                permit.send(*answer);
                message.close(count);
            }
        }
    }
}

/// Messages that wait for the sessions of a channel.
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    arrived: Notify,
    room: Notify,
    sessions: usize,
    has_lanes: bool,
    /// Recipients of one multicast that a turn takes, at most.
    recipients_per_turn: usize,
}

struct Waiting {
    order: Order,
    /// Recipients that have left since senders were told of room.
    left: usize,
    senders: usize,
    closed: bool,
}

enum Order {
    /// All go to one far side; the sessions that serve it are the channel's own affair.
    Single(Box<Single>),
    /// Each destination has its lane.
    Shared(Box<Lanes<Pending>>),
}

/// What waits for the one far side.
struct Single {
    line: Line<Pending>,
    /// Recipients that wait, of each priority.
    recipients: [usize; Priority::ALL.len()],
    meter: Option<Meter>,
}

impl Single {
    fn new() -> Self {
        Single { line: Line::new(), recipients: Default::default(), meter: None }
    }

    /// Gives it back if its priority has no room.
    fn push_back(&mut self, pending: Pending) -> Option<Pending> {
        let waiting = &mut self.recipients[pending.priority() as usize];
        if *waiting >= QUEUE_LENGTH {
            return Some(pending);
        }
        *waiting += pending.count();
        self.line.push_back(pending);
        None
    }

    /// There is always room for what was taken from it.
    fn push_front(&mut self, pending: Pending) {
        self.recipients[pending.priority() as usize] += pending.count();
        self.line.push_front(pending);
    }

    /// What `take` takes of the messages that go next, or when they may go. They are no more than one time allows.
    fn take(
        &mut self,
        now: Instant,
        take: impl FnOnce(&mut VecDeque<Pending>) -> Vec<Pending>,
    ) -> Result<Vec<Pending>, Option<Instant>> {
        let Some(waiting) = self.line.front() else { return Err(None) };
        if let Some(at) = self.meter.as_ref().and_then(|meter| meter.wait(now)) {
            return Err(Some(at));
        }
        let taken = take(waiting);
        let count = taken.iter().map(Pending::count).sum::<usize>();
        if let Some(first) = taken.first() {
            self.recipients[first.priority() as usize] -= count;
        }
        if let Some(meter) = &mut self.meter {
            (0..count).for_each(|_| meter.count(now));
        }
        Ok(taken)
    }

    fn clear(&mut self) -> Vec<Pending> {
        self.recipients = Default::default();
        self.line.drain().collect()
    }
}

/// A message that was taken, and the lane that it occupies until `Queue::done`. Dropped without that, as by a panic,
/// it says nothing about its destination.
pub(crate) struct Turn {
    queue: Arc<Queue>,
    lane: Arc<str>,
    began: Instant,
    /// What was taken with it, since it is the same multicast.
    same: Vec<Pending>,
    over: bool,
}

impl Turn {
    /// The messages of the same multicast that were taken with the first.
    pub fn take_same(&mut self) -> Vec<Pending> {
        std::mem::take(&mut self.same)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.over {
            drop(self.queue.finish(self, Signal::Unasked));
            self.queue.arrived.notify_one();
        }
    }
}

impl Queue {
    /// For a channel whose sessions all talk to one far side.
    pub fn single(sessions: usize) -> Arc<Self> {
        Self::new(sessions, 1, Order::Single(Box::new(Single::new())))
    }

    /// For a channel whose sessions are shared among destinations.
    pub fn shared(sessions: usize, flow: Flow) -> Arc<Self> {
        Self::shared_by_many(sessions, flow, 1)
    }

    /// For a channel whose sessions are shared among destinations, and each of whose turns is for so many recipients of one
    /// multicast.
    pub fn shared_by_many(sessions: usize, flow: Flow, recipients_per_turn: usize) -> Arc<Self> {
        let lanes = Lanes::new(flow, sessions, QUEUE_LENGTH);
        Self::new(sessions, recipients_per_turn, Order::Shared(Box::new(lanes)))
    }

    fn new(sessions: usize, recipients_per_turn: usize, order: Order) -> Arc<Self> {
        let has_lanes = matches!(order, Order::Shared(_));
        let waiting = Mutex::new(Waiting { order, left: 0, senders: 0, closed: false });
        let (arrived, room) = (Notify::new(), Notify::new());
        Arc::new(Queue { waiting, arrived, room, sessions, has_lanes, recipients_per_turn })
    }

    /// Appends messages. Those whose lane is full wait for room for a moment and then go back, as do those whose
    /// destination is let be; in a queue of a single lane they wait. Those that find the queue closed are dropped, which
    /// answers them.
    async fn push_all(&self, mut waiting: Vec<Pending>, lane_of: &LaneOf) {
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
                pending.give_back(after, "its destination has enough to do").await;
            }
            if waiting.is_empty() {
                return;
            }
            let until = *deadline.get_or_insert_with(|| Instant::now() + ROOM_PATIENCE);
            match single {
                true => room.await,
                false => drop(tokio::time::timeout_at(until, room).await),
            }
        }
    }

    fn try_take(self: &Arc<Self>) -> Result<(Turn, Pending), Option<Instant>> {
        let now = Instant::now();
        let mut state = self.waiting.lock();
        let Order::Shared(lanes) = &mut state.order else { return Err(None) };
        let (lane, pending) = match lanes.take(now) {
            Take::Item(lane, pending) => (lane, pending),
            Take::Wait(at) => return Err(at),
        };
        // In the same moment: another session would take of it.
        let is_same = |next: &Pending| Arc::ptr_eq(&next.outgoing.message, &pending.outgoing.message);
        let same = match self.recipients_per_turn {
            0 | 1 => Vec::new(),
            most => lanes.take_more(&lane, most - 1, now, is_same),
        };
        let more = lanes.has_turns();
        self.note_room(&mut state, 1 + same.len());
        drop(state);
        if more {
            self.arrived.notify_one();
        }
        Ok((Turn { queue: self.clone(), lane, began: now, same, over: false }, pending))
    }

    /// Takes from a single lane what `take` takes from its front.
    fn try_take_many(
        &self,
        take: impl FnOnce(&mut VecDeque<Pending>) -> Vec<Pending>,
    ) -> Result<Vec<Pending>, Option<Instant>> {
        let mut state = self.waiting.lock();
        let Order::Single(single) = &mut state.order else { return Err(None) };
        let taken = single.take(Instant::now(), take)?;
        self.note_room(&mut state, taken.iter().map(Pending::count).sum());
        Ok(taken)
    }

    fn try_take_multicast(&self, limit: usize) -> Result<Pending, Option<Instant>> {
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
    pub async fn take(self: &Arc<Self>) -> Option<(Turn, Pending)> {
        self.wait_for(|| self.try_take()).await
    }

    /// Up to `limit` messages, at least one; `None` when the queue is closed. For a queue with a single lane.
    pub async fn pop_many(&self, limit: usize) -> Option<Vec<Pending>> {
        self.wait_for(|| self.try_take_many(|waiting| waiting.drain(..limit.min(waiting.len())).collect())).await
    }

    /// The next message, to as many of its recipients as `limit`, one at least; `None` when the queue is closed. For a queue
    /// with a single lane.
    pub async fn pop_multicast(&self, limit: usize) -> Option<Pending> {
        self.wait_for(|| self.try_take_multicast(limit)).await
    }

    /// As `pop_multicast`; nothing if nothing may go now.
    pub fn try_pop_multicast(&self, limit: usize) -> Option<Pending> {
        self.try_take_multicast(limit).ok()
    }

    /// Gives back what was taken from a single lane and not sent, to whoever takes next.
    pub fn put_back(&self, taken: impl IntoIterator<Item = Pending>) {
        let taken: Vec<Pending> = taken.into_iter().collect();
        let count = taken.len();
        {
            let mut state = self.waiting.lock();
            let closed = state.closed;
            match &mut state.order {
                Order::Single(single) if !closed => {
                    taken.into_iter().rev().for_each(|pending| single.push_front(pending));
                }
                _ => {
                    drop(state);
                    return drop(taken);
                }
            }
        }
        for _ in 0..count.min(self.sessions) {
            self.arrived.notify_one();
        }
    }

    /// Whether it takes nothing more.
    pub fn is_closed(&self) -> bool {
        self.waiting.lock().closed
    }

    /// Says what came of a message, and takes the next if one may go now.
    pub async fn done(self: &Arc<Self>, mut turn: Turn, signal: Signal, name: &Name) -> Option<(Turn, Pending)> {
        let Done { returned, after, event } = self.finish(&turn, signal);
        turn.over = true;
        if let Some(event) = event {
            tell(name, &turn.lane, event);
        }
        if !returned.is_empty() {
            self.room.notify_waiters();
        }
        let next = self.try_take().ok();
        for pending in returned {
            pending.give_back(after, "its destination is let be for a while").await;
        }
        next
    }

    fn finish(&self, turn: &Turn, signal: Signal) -> Done<Pending> {
        let now = Instant::now();
        match &mut self.waiting.lock().order {
            Order::Shared(lanes) => lanes.done(&turn.lane, signal, now - turn.began, now, fastrand::f64()),
            Order::Single(_) => Done { returned: Vec::new(), after: Duration::ZERO, event: None },
        }
    }

    /// Tells senders that wait, now and then: each may bring many.
    fn note_room(&self, state: &mut Waiting, count: usize) {
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

    /// From now on messages leave no faster than this, all together.
    fn keep_to(&self, rate: Option<Rate>) {
        let meter = rate.map(Meter::new);
        match &mut self.waiting.lock().order {
            Order::Single(single) => single.meter = meter,
            Order::Shared(lanes) => lanes.keep_to(meter),
        }
    }

    /// Takes nothing more and answers what waits.
    pub fn close(&self) {
        let left: Vec<Pending> = {
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

    fn lanes<R>(&self, look: impl FnOnce(&Lanes<Pending>, Instant) -> R) -> Option<R> {
        // Asked for each notification, while the sessions take from it.
        if !self.has_lanes {
            return None;
        }
        match &self.waiting.lock().order {
            Order::Shared(lanes) => Some(look(lanes, Instant::now())),
            Order::Single(_) => None,
        }
    }
}

impl Waiting {
    /// Takes in what has room. What is better sent later goes to `returned`; what waits for room stays, unless this is
    /// the `last` time. Gives how many sessions may have something to do.
    fn push(
        &mut self,
        waiting: &mut Vec<Pending>,
        lane_of: &LaneOf,
        returned: &mut Vec<(Pending, Duration)>,
        last: bool,
    ) -> usize {
        let mut wakes = 0;
        match &mut self.order {
            Order::Single(single) => {
                // Each priority has room of its own, so that what presses does not wait to get in.
                let mut stay = Vec::new();
                for pending in waiting.drain(..) {
                    stay.extend(single.push_back(pending));
                    wakes += 1;
                }
                wakes -= stay.len();
                *waiting = stay;
            }
            Order::Shared(lanes) => {
                let now = Instant::now();
                let mut stay = Vec::with_capacity(waiting.len());
                // Most that wait for room wait for the same lane, and are looked at whenever some of it has left.
                let mut full: Option<(Arc<str>, Priority)> = None;
                for mut pending in waiting.drain(..) {
                    let address = &pending.outgoing.address;
                    let lane = pending.lane.get_or_insert_with(|| lanes.key(&lane_of(address))).clone();
                    let priority = pending.priority();
                    if full.as_ref().is_some_and(|full| full.1 == priority && full.0 == lane) {
                        stay.push(pending);
                        continue;
                    }
                    match lanes.push(&lane, pending, now) {
                        Pushed::Waits { wake } => wakes += usize::from(wake),
                        Pushed::NoRoom(pending, Some(after)) => returned.push((pending, after)),
                        Pushed::NoRoom(pending, None) if last => returned.push((pending, lanes.stay_away(&lane))),
                        Pushed::NoRoom(pending, None) => {
                            stay.push(pending);
                            full = Some((lane, priority));
                        }
                    }
                }
                *waiting = stay;
            }
        }
        wakes
    }
}

/// Writes to the log what an operator may want to know; a destination that stays in trouble is told of now and then.
fn tell(channel: &Name, destination: &str, event: Event) {
    match event {
        Event::Paused { pause, reason, failures, tell: true } => tracing::warn!(
            %channel, destination, failures, %reason, pause_s = pause.as_secs(),
            "a destination only fails and is let be for a while, each time longer"
        ),
        Event::Paused { pause, reason, .. } => {
            tracing::debug!(%channel, destination, %reason, pause_s = pause.as_secs(), "a destination fails still");
        }
        Event::Back { after } => {
            tracing::info!(%channel, destination, after_s = after.as_secs(), "a destination is back");
        }
    }
}

/// How long a session lets its only far side be after so many failures in a row, of which there is at least one: a
/// second, doubled with each, up to 16.
pub(crate) fn pause_after(failures: u32) -> Duration {
    Duration::from_secs(1 << failures.saturating_sub(1).min(4))
}

/// The lane of a protocol with a single far side.
pub(crate) fn only_lane(_: &str) -> Cow<'_, str> {
    "".into()
}

/// The first message that waits, to as many of its recipients as `limit`, one at least; the rest of them wait on.
pub(crate) fn take_first(waiting: &mut VecDeque<Pending>, limit: usize) -> Option<Pending> {
    let mut first = waiting.pop_front()?;
    if let Some(rest) = first.split_off(limit) {
        waiting.push_front(rest);
    }
    Some(first)
}

/// What a protocol adds to the queue and its sessions.
#[async_trait]
pub(crate) trait FarSide: Send + Sync {
    /// See `OpenChannel::probe`.
    async fn probe(&self) -> Result<String, Reason>;
    /// See `OpenChannel::down`.
    fn down(&self) -> Option<Reason>;
    /// See `OpenChannel::parts_used`.
    fn parts_used(&self) -> PartsUsed;
    /// Whether the messages that its sessions take may have several recipients.
    fn takes_multicasts(&self) -> bool {
        false
    }
    /// See `OpenChannel::successor`.
    fn successor(&self, _name: &Name, _channel: &Channel, _context: &Context) -> Option<Opened> {
        None
    }
}

/// The lane of an address.
type LaneOf = dyn for<'a> Fn(&'a str) -> Cow<'a, str> + Send + Sync;

/// A queue with its sessions: the one open channel of all protocols.
pub(crate) struct Running {
    shared: Arc<Shared>,
    queue: Arc<Queue>,
    lane_of: Box<LaneOf>,
    far_side: Arc<dyn FarSide>,
    sessions: JoinSet<()>,
}

impl Running {
    /// Starts `sessions` sessions; each is the future that `session` makes. One that panics is started anew. Must be
    /// called inside a tokio runtime.
    pub fn start<F, S>(
        shared: Arc<Shared>,
        queue: Arc<Queue>,
        lane_of: impl for<'a> Fn(&'a str) -> Cow<'a, str> + Send + Sync + 'static,
        far_side: Arc<dyn FarSide>,
        session: F,
    ) -> Box<dyn OpenChannel>
    where
        F: Fn() -> S + Clone + Send + 'static,
        S: Future<Output = ()> + Send + 'static,
    {
        let mut sessions = JoinSet::new();
        for _ in 0..queue.sessions {
            let (session, name) = (session.clone(), shared.name.clone());
            sessions.spawn(async move {
                // The message in hand is answered as its session unwinds, so a poison message cannot loop here.
                while std::panic::AssertUnwindSafe(session()).catch_unwind().await.is_err() {
                    tracing::error!(channel = %name, "a session broke off in the middle of our own work and starts anew");
                }
            });
        }
        Box::new(Running { shared, queue, lane_of: Box::new(lane_of), far_side, sessions })
    }
}

#[async_trait]
impl OpenChannel for Running {
    async fn send(&self, outgoing: Outgoing, answers: &mpsc::Sender<Answer>) {
        self.send_all(vec![outgoing], answers).await;
    }

    async fn send_all(&self, outgoing: Vec<Outgoing>, answers: &mpsc::Sender<Answer>) {
        let pending = match self.far_side.takes_multicasts() {
            true => {
                let mut pending = Pending::all(outgoing, &self.shared, answers);
                Pending::gather(&mut pending);
                pending
            }
            false if outgoing.iter().all(|outgoing| outgoing.others.is_empty()) => {
                Pending::all(outgoing, &self.shared, answers)
            }
            false => Pending::all(outgoing.into_iter().flat_map(Outgoing::into_each).collect(), &self.shared, answers),
        };
        self.queue.push_all(pending, &*self.lane_of).await;
    }

    fn parts_used(&self) -> PartsUsed {
        self.far_side.parts_used()
    }

    fn hold(&self, address: &str, priority: Priority) -> Option<Duration> {
        self.queue.lanes(|lanes, now| lanes.hold(&(self.lane_of)(address), priority, now)).flatten()
    }

    fn destinations(&self, limit: usize) -> Vec<Destination> {
        self.queue.lanes(|lanes, now| lanes.destinations(limit, now)).unwrap_or_default()
    }

    fn census(&self) -> [usize; 3] {
        self.queue.lanes(|lanes, now| lanes.census(now)).unwrap_or_default()
    }

    fn keep_to(&self, rate: Option<Rate>) {
        self.queue.keep_to(rate);
    }

    async fn settle(&self) {
        self.shared.settle().await;
    }

    async fn probe(&self) -> Result<String, Reason> {
        self.far_side.probe().await
    }

    fn wind_down(&self) {
        self.queue.close();
    }

    fn successor(&self, name: &Name, channel: &Channel, context: &Context) -> Option<Opened> {
        let opened = self.far_side.successor(name, channel, context)?;
        Some(opened.inspect(|open| open.keep_to(channel.flow.rate)))
    }

    fn down(&self) -> Option<Reason> {
        self.far_side.down()
    }

    async fn close(mut self: Box<Self>) {
        self.queue.close();
        let finish = async { while self.sessions.join_next().await.is_some() {} };
        if tokio::time::timeout(CLOSE_PATIENCE, finish).await.is_err() {
            self.sessions.shutdown().await;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The sessions are aborted with the set; what they hold is answered as it drops.
        self.queue.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{context, outgoing, show};

    struct Nobody;

    #[async_trait]
    impl FarSide for Nobody {
        async fn probe(&self) -> Result<String, Reason> {
            Ok(String::new())
        }

        fn down(&self) -> Option<Reason> {
            None
        }

        fn parts_used(&self) -> PartsUsed {
            PartsUsed::ALL
        }
    }

    fn single() -> Arc<Queue> {
        Queue::single(1)
    }

    /// Queues messages, a letter each for their address and so their lane, without any session.
    async fn queue_of(queue: &Queue, addresses: &str) -> mpsc::Receiver<Answer> {
        let shared = Shared::new(&"c".parse().expect("a name"), context().clock);
        let (answers, answered) = mpsc::channel(addresses.len().max(1));
        let all = addresses.chars().enumerate().map(|(number, address)| outgoing(number as u32, &address.to_string()));
        queue.push_all(Pending::all(all.collect(), &shared, &answers), &|address| address.into()).await;
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
    async fn what_presses_passes_a_full_queue() {
        let shared = Shared::new(&"c".parse().expect("a name"), context().clock);
        let of = |number: u32, priority| {
            let mut outgoing = outgoing(number, "a");
            Arc::make_mut(&mut outgoing.message).priority = priority;
            outgoing
        };
        for queue in [single(), Queue::shared(1, Flow::default())] {
            let (answers, _answered) = mpsc::channel(2 * QUEUE_LENGTH);
            let push = async |messages: Vec<Outgoing>| {
                queue.push_all(Pending::all(messages, &shared, &answers), &only_lane).await;
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

    #[tokio::test]
    async fn a_multicast_is_taken_together_up_to_a_limit() {
        let (queue, shared) = (Queue::single(2), Shared::new(&"c".parse().expect("a name"), context().clock));
        let (answers, _answered) = mpsc::channel(100);
        let (one, other) = (outgoing(0, "a"), outgoing(1, "b"));
        let all = [&one, &one, &one, &other, &one].map(Clone::clone);
        let mut all = Pending::all(all.into(), &shared, &answers);
        Pending::gather(&mut all);
        queue.push_all(all, &only_lane).await;
        let taken: Vec<usize> =
            std::iter::from_fn(|| queue.try_pop_multicast(2).map(|pending| pending.count())).collect();
        assert_eq!(taken, [2, 1, 1, 1]);
    }

    #[tokio::test]
    async fn a_turn_is_for_the_same_multicast_before_others_can_take_of_it() {
        let queue = Queue::shared_by_many(2, Flow::default(), 3);
        let shared = Shared::new(&"c".parse().expect("a name"), context().clock);
        let (answers, _answered) = mpsc::channel(100);
        let (one, other) = (outgoing(0, "a"), outgoing(1, "b"));
        let all = [&one, &one, &one, &one, &other].map(Clone::clone);
        queue.push_all(Pending::all(all.into(), &shared, &answers), &only_lane).await;
        let mut sizes = Vec::new();
        while let Ok((mut turn, _first)) = queue.try_take() {
            sizes.push(1 + turn.take_same().len());
        }
        assert_eq!(sizes, [3, 1, 1]);
    }

    #[tokio::test]
    async fn what_is_left_at_the_end_is_answered() {
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
    async fn a_lane_that_does_not_move_gives_back_what_has_no_room() {
        let queue = Queue::shared(8, Flow::default());
        let before = Instant::now();
        let mut answered = queue_of(&queue, &"a".repeat(QUEUE_LENGTH)).await;
        assert_eq!(before.elapsed(), ROOM_PATIENCE, "room may come");
        let answer = answered.recv().await.expect("an answer");
        assert_eq!(show(&answer.disposition), "deferred Untried its destination has enough to do");
        assert!(matches!(answer.disposition, Disposition::Deferred { retry_after: Some(_), .. }));
        let others = queue_of(&queue, &"bcd".repeat(100)).await;
        assert_eq!(before.elapsed(), ROOM_PATIENCE, "for the others there is room at once");
        assert_eq!(others.len() + 300, others.max_capacity());
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_is_kept_by_all_sessions_together() {
        for (queue, shared) in [(Queue::single(4), false), (Queue::shared(4, Flow::default()), true)] {
            queue.keep_to(Some(Rate { messages: 2, per: Duration::from_secs(1) }));
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

    #[tokio::test]
    async fn a_panic_is_an_answer_too_and_the_session_goes_on() {
        let (queue, shared) = (single(), Shared::new(&"c".parse().expect("a name"), context().clock));
        let sessions = queue.clone();
        let session = move || {
            let queue = sessions.clone();
            async move {
                while let Some(pending) = queue.pop_many(1).await.and_then(|mut taken| taken.pop()) {
                    assert!(pending.outgoing.address != "poison", "swallowed poison");
                    pending.answer(Disposition::Delivered { reply: "fine".into() }).await;
                }
            }
        };
        let open = Running::start(shared, queue, only_lane, Arc::new(Nobody), session);
        // One place for answers, so that the answer of the panic finds none.
        let (answers, mut answered) = mpsc::channel(1);
        for (number, address) in ["a", "b", "poison", "poison", "c"].into_iter().enumerate() {
            open.send(outgoing(number as u32, address), &answers).await;
        }
        drop(answers);
        let mut shown = Vec::new();
        while let Some(answer) = answered.recv().await {
            shown.push((answer.ticket.ordinal, show(&answer.disposition)));
        }
        shown.sort();
        let broken = "deferred Internal the attempt broke off in the middle of our own work";
        let expected = ["delivered fine", "delivered fine", broken, broken, "delivered fine"];
        assert!(shown.iter().map(|(_, shown)| shown.as_str()).eq(expected), "{shown:?}");
        open.settle().await;
        open.close().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_makes_its_senders_wait() {
        let queue = single();
        let _answers = queue_of(&queue, &"a".repeat(QUEUE_LENGTH)).await;
        let waiting = tokio::time::timeout(Duration::from_secs(1), queue_of(&queue, "b"));
        assert!(waiting.await.is_err(), "there is no room");
        drop(queue.try_pop_multicast(1));
        let room = tokio::time::timeout(Duration::from_secs(1), queue_of(&queue, "b"));
        assert!(room.await.is_ok(), "there is room for one");
    }
}
