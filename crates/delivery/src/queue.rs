//! The bounded queue that a channel's sessions pull from, and the message that must be answered.

use std::{
    collections::{HashMap, VecDeque},
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
    id::Name,
    receipt::{Disposition, Reason, ReasonKind},
    time::Timestamp,
};
use tokio::{
    sync::{Notify, Semaphore, mpsc},
    task::JoinSet,
    time::Instant,
};

use crate::channel::{Answer, Clock, OpenChannel, Outgoing};

/// Messages that wait for a session, at most.
pub(crate) const QUEUE_LENGTH: usize = 4096;

/// How long `close` waits for what is on its way.
const CLOSE_PATIENCE: Duration = Duration::from_secs(30);

/// What all messages of a channel share.
pub(crate) struct Shared {
    pub name: Name,
    pub clock: Arc<dyn Clock>,
    open: AtomicUsize,
    settled: Notify,
    attempts: [metrics::Counter; 3],
    duration: metrics::Histogram,
}

impl Shared {
    /// The metrics recorder must be in place by now.
    pub fn new(name: &Name, clock: Arc<dyn Clock>) -> Arc<Self> {
        let attempts = ["delivered", "deferred", "refused"].map(
            |outcome| metrics::counter!("deliver_attempts_total", "channel" => name.to_string(), "outcome" => outcome),
        );
        let duration = metrics::histogram!("deliver_duration_seconds", "channel" => name.to_string());
        let (open, settled) = (AtomicUsize::new(0), Notify::new());
        Arc::new(Shared { name: name.clone(), clock, open, settled, attempts, duration })
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

/// A message inside a channel. It is answered when `answer` is called, or else when it is dropped.
pub(crate) struct Pending {
    pub outgoing: Outgoing,
    /// When it came into the queue.
    pub queued: Instant,
    /// How many sessions broke under it before its content was sent.
    pub breaks: u8,
    /// When it was handed to the far side.
    pub sent_at: Option<Timestamp>,
    shared: Arc<Shared>,
    answers: mpsc::Sender<Answer>,
    ready: Option<Answer>,
    answered: bool,
}

impl Pending {
    fn new(outgoing: Outgoing, shared: &Arc<Shared>, answers: &mpsc::Sender<Answer>, queued: Instant) -> Self {
        shared.open.fetch_add(1, Ordering::AcqRel);
        let (shared, answers) = (shared.clone(), answers.clone());
        Pending { outgoing, queued, breaks: 0, sent_at: None, shared, answers, ready: None, answered: false }
    }

    /// Notes that it is handed over now.
    pub fn sent(&mut self) {
        self.sent_at = Some(self.shared.clock.now());
    }

    /// Whether its time is over.
    pub fn expired(&self) -> bool {
        self.outgoing.message.expires_at.is_some_and(|at| at <= self.shared.clock.now())
    }

    /// Gives the answer to whoever sent the message; waits while they are not ready for it.
    pub async fn answer(mut self, disposition: Disposition) {
        // From here on a cancelled wait still tells the truth: `drop` sends what is ready.
        self.ready = Some(self.finish(disposition));
        if let Ok(permit) = self.answers.reserve().await
            && let Some(answer) = self.ready.take()
        {
            permit.send(answer);
        }
        self.ready = None;
        self.close();
    }

    fn finish(&self, disposition: Disposition) -> Answer {
        let answered_at = self.shared.clock.now();
        let sent_at = self.sent_at.unwrap_or(answered_at);
        let outcome = match disposition {
            Disposition::Delivered { .. } => 0,
            Disposition::Deferred { .. } => 1,
            Disposition::Refused { .. } => 2,
        };
        self.shared.attempts[outcome].increment(1);
        self.shared.duration.record(answered_at.since(sent_at).as_secs_f64());
        let (ticket, id, formatted_at) = (self.outgoing.ticket, self.outgoing.id, self.outgoing.message.formatted_at);
        Answer { ticket, id, formatted_at, sent_at, answered_at, disposition }
    }

    fn close(&mut self) {
        self.answered = true;
        if self.shared.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.settled.notify_waiters();
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        let answer = self.ready.take().unwrap_or_else(|| {
            let reason = if std::thread::panicking() {
                Reason::new(ReasonKind::Internal, "the attempt broke off in the middle of our own work")
            } else if self.sent_at.is_none() {
                Reason::new(ReasonKind::Untried, "the channel was closed before it was sent")
            } else {
                Reason::new(ReasonKind::Connection, "the channel was closed before there was an answer")
            };
            self.finish(Disposition::Deferred { reason, retry_after: None })
        });
        if let Err(mpsc::error::TrySendError::Full(answer)) = self.answers.try_send(answer)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            // Bounded: each such task stands for a message that held a place in a bounded queue.
            let answers = self.answers.clone();
            runtime.spawn(async move { answers.send(answer).await });
        }
        self.close();
    }
}

/// Messages that wait, in lanes: one for each destination, or a single one.
///
/// Lanes take turns. When several lanes have work, one lane holds at most half of the sessions; a lane that is alone
/// leaves an eighth of them free (at least one, unless there is only one session), so that a newcomer always finds one.
pub(crate) struct Queue {
    lanes: Mutex<Lanes>,
    arrived: Notify,
    space: Semaphore,
    sessions: usize,
    shares: bool,
}

#[derive(Default)]
struct Lanes {
    lanes: HashMap<Arc<str>, Lane>,
    turns: VecDeque<Arc<str>>,
    closed: bool,
}

#[derive(Default)]
struct Lane {
    waiting: VecDeque<Pending>,
    busy: usize,
}

/// The lane of a protocol with a single far side.
pub(crate) fn only_lane(_: &Outgoing) -> Arc<str> {
    static LANE: std::sync::OnceLock<Arc<str>> = std::sync::OnceLock::new();
    LANE.get_or_init(|| Arc::from("")).clone()
}

impl Queue {
    /// For `sessions` sessions that all talk to one far side.
    pub fn single(sessions: usize) -> Arc<Self> {
        Self::new(sessions, false)
    }

    /// For `sessions` sessions that are shared among the lanes.
    pub fn shared(sessions: usize) -> Arc<Self> {
        Self::new(sessions, true)
    }

    fn new(sessions: usize, shares: bool) -> Arc<Self> {
        let (lanes, arrived, space) = (Mutex::default(), Notify::new(), Semaphore::new(QUEUE_LENGTH));
        Arc::new(Queue { lanes, arrived, space, sessions, shares })
    }

    fn lane_limit(&self, lanes: usize) -> usize {
        match (self.shares, lanes) {
            (false, _) => usize::MAX,
            (true, ..=1) if self.sessions > 1 => self.sessions - (self.sessions / 8).max(1),
            _ => (self.sessions / 2).max(1),
        }
    }

    /// Appends messages, waiting for space. Those that find the queue closed are dropped, which answers them.
    async fn push_all(&self, mut waiting: impl ExactSizeIterator<Item = (Arc<str>, Pending)>) {
        while waiting.len() > 0 {
            let count = waiting.len().min(QUEUE_LENGTH / 4);
            match self.space.acquire_many(count as u32).await {
                Ok(permit) => permit.forget(),
                Err(_) => return waiting.for_each(drop),
            }
            let mut lanes = self.lanes.lock();
            if lanes.closed {
                drop(lanes);
                return waiting.for_each(drop);
            }
            for (key, pending) in waiting.by_ref().take(count) {
                let lane = lanes.lanes.entry(key.clone()).or_default();
                let first = lane.waiting.is_empty();
                lane.waiting.push_back(pending);
                if first {
                    lanes.turns.push_back(key);
                }
            }
            drop(lanes);
            for _ in 0..count.min(self.sessions) {
                self.arrived.notify_one();
            }
        }
    }

    /// The next message, if one may be taken now.
    pub fn try_pop(&self) -> Option<Pending> {
        let mut lanes = self.lanes.lock();
        let limit = self.lane_limit(lanes.lanes.len());
        for _ in 0..lanes.turns.len() {
            let key = lanes.turns.pop_front()?;
            let lane = lanes.lanes.get_mut(&key).expect("a lane with a turn exists until it is empty and idle");
            if lane.busy >= limit {
                lanes.turns.push_back(key);
                continue;
            }
            let pending = lane.waiting.pop_front().expect("a lane with a turn has something waiting");
            let (more, shares) = (!lane.waiting.is_empty(), self.shares);
            if shares {
                lane.busy += 1;
            }
            match (more, shares) {
                (true, _) => lanes.turns.push_back(key),
                (false, true) => {}
                (false, false) => drop(lanes.lanes.remove(&key)),
            }
            drop(lanes);
            self.space.add_permits(1);
            return Some(pending);
        }
        None
    }

    /// Up to `limit` messages of a queue with a single lane.
    pub fn try_pop_many(&self, limit: usize) -> Vec<Pending> {
        let mut lanes = self.lanes.lock();
        let Some(key) = lanes.turns.front().cloned() else { return Vec::new() };
        let lane = lanes.lanes.get_mut(&key).expect("a lane with a turn exists until it is empty and idle");
        let count = lane.waiting.len().min(limit);
        let taken: Vec<Pending> = lane.waiting.drain(..count).collect();
        if lane.waiting.is_empty() {
            lanes.turns.pop_front();
            lanes.lanes.remove(&key);
        }
        drop(lanes);
        self.space.add_permits(count);
        taken
    }

    /// The next message and those right behind it that are the same multicast, up to `limit` in all. Of a queue with a
    /// single lane.
    pub fn try_pop_multicast(&self, limit: usize) -> Vec<Pending> {
        let mut lanes = self.lanes.lock();
        let Some(key) = lanes.turns.front().cloned() else { return Vec::new() };
        let lane = lanes.lanes.get_mut(&key).expect("a lane with a turn exists until it is empty and idle");
        let count = same_message(lane.waiting.iter(), limit);
        let taken: Vec<Pending> = lane.waiting.drain(..count).collect();
        if lane.waiting.is_empty() {
            lanes.turns.pop_front();
            lanes.lanes.remove(&key);
        }
        drop(lanes);
        self.space.add_permits(count);
        taken
    }

    /// Says that a message of this lane needs its session no longer. Only for queues with several lanes.
    pub fn release(&self, key: &str) {
        let mut lanes = self.lanes.lock();
        let Some(lane) = lanes.lanes.get_mut(key) else { return };
        lane.busy = lane.busy.saturating_sub(1);
        if lane.busy == 0 && lane.waiting.is_empty() {
            lanes.lanes.remove(key);
            // Who is left alone may now use more sessions.
            if lanes.lanes.len() == 1 {
                self.arrived.notify_waiters();
            }
        }
    }

    /// The next message; `None` when the queue is closed.
    pub async fn pop(&self) -> Option<Pending> {
        loop {
            let mut arrived = std::pin::pin!(self.arrived.notified());
            arrived.as_mut().enable();
            if let Some(pending) = self.try_pop() {
                return Some(pending);
            }
            if self.lanes.lock().closed {
                return None;
            }
            arrived.await;
        }
    }

    /// Up to `limit` messages, at least one; `None` when the queue is closed. For a queue with a single lane.
    pub async fn pop_many(&self, limit: usize) -> Option<Vec<Pending>> {
        loop {
            let mut arrived = std::pin::pin!(self.arrived.notified());
            arrived.as_mut().enable();
            let taken = self.try_pop_many(limit);
            if !taken.is_empty() {
                return Some(taken);
            }
            if self.lanes.lock().closed {
                return None;
            }
            arrived.await;
        }
    }

    /// The next multicast, of one recipient at least; `None` when the queue is closed. See `try_pop_multicast`.
    pub async fn pop_multicast(&self, limit: usize) -> Option<Vec<Pending>> {
        loop {
            let mut arrived = std::pin::pin!(self.arrived.notified());
            arrived.as_mut().enable();
            let taken = self.try_pop_multicast(limit);
            if !taken.is_empty() {
                return Some(taken);
            }
            if self.lanes.lock().closed {
                return None;
            }
            arrived.await;
        }
    }

    /// Takes nothing more and answers what waits.
    pub fn close(&self) {
        self.space.close();
        let waiting = {
            let mut lanes = self.lanes.lock();
            lanes.closed = true;
            lanes.turns.clear();
            let waiting: Vec<_> = lanes.lanes.values_mut().flat_map(|lane| std::mem::take(&mut lane.waiting)).collect();
            waiting
        };
        drop(waiting);
        self.arrived.notify_waiters();
    }
}

/// How many of the first hold the same message, `limit` at most.
pub(crate) fn same_message<'a>(mut waiting: impl Iterator<Item = &'a Pending>, limit: usize) -> usize {
    let Some(first) = waiting.next() else { return 0 };
    let same = |next: &&Pending| Arc::ptr_eq(&next.outgoing.message, &first.outgoing.message);
    1 + waiting.take(limit.saturating_sub(1)).take_while(same).count()
}

/// What a protocol adds to the queue and its sessions.
#[async_trait]
pub(crate) trait FarSide: Send + Sync {
    /// See `OpenChannel::probe`.
    async fn probe(&self) -> Result<String, Reason>;
    /// See `OpenChannel::down`.
    fn down(&self) -> Option<Reason>;
}

/// A queue with its sessions: the one open channel of all protocols.
pub(crate) struct Running {
    shared: Arc<Shared>,
    queue: Arc<Queue>,
    lane_of: fn(&Outgoing) -> Arc<str>,
    far_side: Arc<dyn FarSide>,
    sessions: JoinSet<()>,
}

impl Running {
    /// Starts `sessions` sessions; each is the future that `session` makes. One that panics is started anew. Must be
    /// called inside a tokio runtime.
    pub fn start<F, S>(
        shared: Arc<Shared>,
        queue: Arc<Queue>,
        lane_of: fn(&Outgoing) -> Arc<str>,
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
        Box::new(Running { shared, queue, lane_of, far_side, sessions })
    }
}

#[async_trait]
impl OpenChannel for Running {
    async fn send(&self, outgoing: Outgoing, answers: &mpsc::Sender<Answer>) {
        let lane = (self.lane_of)(&outgoing);
        let pending = Pending::new(outgoing, &self.shared, answers, Instant::now());
        self.queue.push_all(std::iter::once((lane, pending))).await;
    }

    async fn send_all(&self, outgoing: Vec<Outgoing>, answers: &mpsc::Sender<Answer>) {
        let now = Instant::now();
        let pending: Vec<_> = outgoing
            .into_iter()
            .map(|outgoing| ((self.lane_of)(&outgoing), Pending::new(outgoing, &self.shared, answers, now)))
            .collect();
        self.queue.push_all(pending.into_iter()).await;
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
    }

    fn address_lane(outgoing: &Outgoing) -> Arc<str> {
        Arc::from(outgoing.address.as_str())
    }

    /// Queues messages to these addresses, as they are, without any session.
    async fn queue_of(queue: &Queue, addresses: &str) -> mpsc::Receiver<Answer> {
        let shared = Shared::new(&"c".parse().expect("a name"), context().clock);
        let (answers, answered) = mpsc::channel(100);
        let pending: Vec<_> = addresses
            .chars()
            .enumerate()
            .map(|(number, address)| outgoing(number as u32, &address.to_string()))
            .map(|outgoing| (address_lane(&outgoing), Pending::new(outgoing, &shared, &answers, Instant::now())))
            .collect();
        queue.push_all(pending.into_iter()).await;
        answered
    }

    fn taken(queue: &Queue) -> String {
        std::iter::from_fn(|| queue.try_pop()).map(|pending| pending.outgoing.address.clone()).collect()
    }

    #[tokio::test]
    async fn lanes_take_turns_and_leave_room() {
        // Eight sessions: a lane that is alone gets seven; among others, four.
        let queue = Queue::shared(8);
        let _answers = queue_of(&queue, "aaaaaaaaaa").await;
        assert_eq!(taken(&queue), "aaaaaaa");
        let _more = queue_of(&queue, "bbc").await;
        assert_eq!(taken(&queue), "bcb");
        // The lane of `a` holds more than its half already; it gets on when it is below.
        for _ in 0..4 {
            queue.release("a");
        }
        assert_eq!(taken(&queue), "a");
        for lane in ["b", "b", "c"] {
            queue.release(lane);
        }
        assert_eq!(taken(&queue), "aa");
        let queue = Queue::shared(1);
        let _answers = queue_of(&queue, "ab").await;
        assert_eq!(taken(&queue), "ab", "a single session is nobody's reserve");
    }

    #[tokio::test]
    async fn a_single_lane_keeps_its_order() {
        let queue = Queue::single(2);
        let _answers = queue_of(&queue, "aaaaaa").await;
        assert_eq!(
            queue.try_pop_many(2).iter().map(|pending| pending.outgoing.ticket.ordinal).collect::<Vec<_>>(),
            [0, 1]
        );
    }

    #[tokio::test]
    async fn a_multicast_is_taken_together_up_to_a_limit() {
        let (queue, shared) = (Queue::single(2), Shared::new(&"c".parse().expect("a name"), context().clock));
        let (answers, _answered) = mpsc::channel(100);
        let (one, other) = (outgoing(0, "a"), outgoing(1, "b"));
        let all = [&one, &one, &one, &other, &one].map(Clone::clone);
        let all = all.map(|outgoing| (only_lane(&outgoing), Pending::new(outgoing, &shared, &answers, Instant::now())));
        queue.push_all(all.into_iter()).await;
        let taken: Vec<usize> =
            std::iter::from_fn(|| Some(queue.try_pop_multicast(2).len()).filter(|n| *n > 0)).collect();
        assert_eq!(taken, [2, 1, 1, 1]);
    }

    #[tokio::test]
    async fn what_is_left_at_the_end_is_answered() {
        let queue = Queue::single(1);
        let mut answered = queue_of(&queue, "abc").await;
        queue.close();
        let _late = queue_of(&queue, "d").await;
        assert!(queue.pop().await.is_none());
        for _ in 0..3 {
            let answer = answered.recv().await.expect("an answer");
            assert_eq!(show(&answer.disposition), "deferred Untried the channel was closed before it was sent");
        }
        assert!(answered.recv().await.is_none(), "and none twice");
    }

    #[tokio::test]
    async fn a_panic_is_an_answer_too_and_the_session_goes_on() {
        let (queue, shared) = (Queue::single(1), Shared::new(&"c".parse().expect("a name"), context().clock));
        let sessions = queue.clone();
        let session = move || {
            let queue = sessions.clone();
            async move {
                while let Some(pending) = queue.pop().await {
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
        let queue = Queue::single(1);
        let _answers = queue_of(&queue, &"a".repeat(QUEUE_LENGTH)).await;
        let waiting = tokio::time::timeout(Duration::from_secs(1), queue_of(&queue, "b"));
        assert!(waiting.await.is_err(), "there is no room");
        drop(queue.try_pop());
        let room = tokio::time::timeout(Duration::from_secs(1), queue_of(&queue, "b"));
        assert!(room.await.is_ok(), "there is room for one");
    }
}
