//! Exactly-once answer token of a message inside a channel.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tocsin_connect::Clock;
use tocsin_model::{
    delivery_policy::Priority,
    id::Name,
    receipt::{Disposition, Reason, ReasonKind},
    time::Timestamp,
};
use tokio::{
    sync::{Notify, mpsc},
    time::Instant,
};

use crate::{
    channel::{Answer, Context, Outgoing},
    flow::line::Waits,
    queue::{TAKES_NO_MORE, Turn},
    withdrawal::Withdrawal,
};

/// Most answers sent in one batch.
const ANSWERS_AT_ONCE: usize = 256;

/// State that all messages of a channel share.
pub(crate) struct DeliveryContext {
    pub name: Name,
    pub clock: Arc<dyn Clock>,
    open: AtomicUsize,
    settled: Notify,
    attempts: [metrics::Counter; 3],
    returned: metrics::Counter,
    duration: metrics::Histogram,
}

impl DeliveryContext {
    /// The metrics recorder must be in place by now.
    pub fn new(name: &Name, context: &Context) -> Arc<Self> {
        let (clock, application, channel) = (context.clock.clone(), &context.application, name.to_string());
        let attempts = ["delivered", "deferred", "refused"].map(|outcome| {
            metrics::counter!(
                "tocsin_deliver_attempts_total",
                "application" => application.clone(), "channel" => channel.clone(), "outcome" => outcome
            )
        });
        let duration = metrics::histogram!(
            "tocsin_deliver_duration_seconds", "application" => application.clone(), "channel" => channel.clone()
        );
        let returned = metrics::counter!(
            "tocsin_deliver_released_total", "application" => application.clone(), "channel" => channel.clone()
        );
        let (open, settled) = (AtomicUsize::new(0), Notify::new());
        Arc::new(DeliveryContext { name: name.clone(), clock, open, settled, attempts, returned, duration })
    }

    /// Counts attempts with this disposition and duration, and their recipients.
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

    /// Marks recipients as answered.
    fn close(&self, count: usize) {
        if self.open.fetch_sub(count, Ordering::AcqRel) == count {
            self.settled.notify_waiters();
        }
    }

    /// Waits until every recipient has an answer.
    pub async fn wait_until_answered(&self) {
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

/// Answer channel and queueing time that the messages of one call share.
struct AnswerContext {
    shared: Arc<DeliveryContext>,
    answers: mpsc::Sender<Answer>,
    queued: Instant,
}

/// A message inside a channel, with all its recipients. It is answered when `answer` is called, or else when it is
/// dropped.
pub(crate) struct PendingDelivery {
    pub outgoing: Outgoing,
    /// Key of its lane, once known.
    pub lane: Option<Arc<str>>,
    /// Its place in the lane of its mailbox provider, shared with the other recipients of the same mail.
    pub turn: Option<Arc<Turn>>,
    /// Number of sessions that failed with it before its content was sent.
    pub breaks: u8,
    /// When it was handed to the receiver.
    pub sent_at: Option<Timestamp>,
    arrival: Arc<AnswerContext>,
    /// Its answer, while the answer channel is full.
    ready: Option<Box<Answer>>,
    answered: bool,
}

impl PendingDelivery {
    /// Wraps the messages of one call.
    pub fn all(
        outgoing: Vec<Outgoing>,
        shared: &Arc<DeliveryContext>,
        answers: &mpsc::Sender<Answer>,
    ) -> Vec<PendingDelivery> {
        shared.open.fetch_add(outgoing.iter().map(Outgoing::count).sum(), Ordering::AcqRel);
        let arrival = AnswerContext { shared: shared.clone(), answers: answers.clone(), queued: Instant::now() };
        let arrival = Arc::new(arrival);
        let pending = |outgoing| PendingDelivery {
            outgoing,
            lane: None,
            turn: None,
            breaks: 0,
            sent_at: None,
            arrival: arrival.clone(),
            ready: None,
            answered: false,
        };
        outgoing.into_iter().map(pending).collect()
    }

    /// Whether its sender has withdrawn it, or a recipient has changed since it was formatted.
    pub fn is_withdrawn(&self) -> bool {
        self.outgoing.is_recalled() || self.outgoing.message.withdrawal.as_ref().is_some_and(Withdrawal::is_set)
    }

    /// Number of recipients.
    pub fn count(&self) -> usize {
        self.outgoing.count()
    }

    /// Splits it into one per recipient, in order.
    pub fn into_each(mut self) -> Vec<PendingDelivery> {
        let others = std::mem::take(&mut self.outgoing.others);
        let mut each = Vec::with_capacity(1 + others.len());
        each.push(self);
        for other in others {
            let one = each[0].like(other.with(each[0].outgoing.message.clone()));
            each.push(one);
        }
        each
    }

    /// A message with some of the recipients of this one.
    fn like(&self, outgoing: Outgoing) -> PendingDelivery {
        let PendingDelivery { lane, turn, breaks, sent_at, arrival, .. } = self;
        let (lane, turn, breaks, sent_at) = (lane.clone(), turn.clone(), *breaks, *sent_at);
        PendingDelivery {
            outgoing,
            lane,
            turn,
            breaks,
            sent_at,
            arrival: arrival.clone(),
            ready: None,
            answered: false,
        }
    }

    /// Joins messages that `into_each` has split.
    pub fn together(each: Vec<PendingDelivery>) -> Option<PendingDelivery> {
        let mut each = each.into_iter();
        let mut first = each.next()?;
        each.for_each(|mut next| first.join(&mut next));
        Some(first)
    }

    /// Keeps the first `at` recipients, at least one; returns the rest, if any.
    pub fn split_off(&mut self, at: usize) -> Option<PendingDelivery> {
        let rest = self.outgoing.split_off(at)?;
        Some(self.like(rest))
    }

    /// Moves the recipients of `next` here; they are answered together.
    fn join(&mut self, next: &mut PendingDelivery) {
        self.outgoing.join(&mut next.outgoing);
        next.turn = None;
        next.answered = true;
    }

    /// Joins consecutive messages with equal content into multicasts.
    pub fn gather(messages: &mut Vec<PendingDelivery>) {
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

    /// When it entered the queue.
    pub fn queued(&self) -> Instant {
        self.arrival.queued
    }

    /// Records the current time as the time of sending.
    pub fn sent(&mut self) {
        PendingDelivery::sent_together(std::slice::from_mut(self));
    }

    /// Records the same time of sending for all messages.
    pub fn sent_together(messages: &mut [PendingDelivery]) {
        let Some(first) = messages.first() else { return };
        let now = first.arrival.shared.clock.now();
        messages.iter_mut().for_each(|message| message.sent_at = Some(now));
    }

    /// Whether it has expired.
    pub fn expired(&self) -> bool {
        self.outgoing.message.expires_at.is_some_and(|at| at <= self.arrival.shared.clock.now())
    }

    /// The reason to drop it, if it has expired.
    pub fn too_late(&self) -> Option<Reason> {
        self.expired().then(|| Reason::new(ReasonKind::Expired, "its time was over before it was sent"))
    }

    /// Sends the answer; waits while the answer channel is full.
    pub async fn answer(mut self, disposition: Disposition) {
        let arrival = self.arrival.clone();
        let count = self.count();
        let turn = self.turn.take();
        if let Some(turn) = &turn {
            turn.record(&disposition, count);
        }
        let answer = self.finish(disposition, arrival.shared.clock.now());
        if let Err(mpsc::error::TrySendError::Full(answer)) = arrival.answers.try_send(answer) {
            // A wait that is cancelled from here on loses no answer: `drop` sends the one that is ready.
            self.ready = Some(Box::new(answer));
            if let Ok(permit) = arrival.answers.reserve().await
                && let Some(answer) = self.ready.take()
            {
                permit.send(*answer);
            }
            self.ready = None;
        }
        self.close(count);
        // The last recipient of the mail ends its turn.
        if let Some(turn) = turn.and_then(Arc::into_inner) {
            let (returned, after) = turn.complete(&arrival.shared.name);
            for pending in returned {
                Box::pin(pending.return_untried(after, TAKES_NO_MORE)).await;
            }
        }
    }

    /// Returns it untried, to be sent again after `after`.
    pub async fn return_untried(self, after: Duration, why: &'static str) {
        // Jitter: messages that are returned together are not retried at the same time.
        let after = after.mul_f64(1.0 + 0.2 * fastrand::f64());
        let reason = Reason::new(ReasonKind::Untried, why);
        self.answer(Disposition::Deferred { reason, retry_after: Some(after) }).await;
    }

    /// Builds and counts its answer.
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

impl Waits for PendingDelivery {
    fn priority(&self) -> Priority {
        self.outgoing.message.priority
    }

    fn since(&self) -> Instant {
        self.arrival.queued
    }
}

impl Drop for PendingDelivery {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        let answer = self.ready.take().map(|answer| *answer).unwrap_or_else(|| {
            let reason = if std::thread::panicking() {
                Reason::new(ReasonKind::Internal, "the attempt failed with an internal error")
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
            // Bounded: each task stands for a message that occupied a slot of the bounded queue.
            let answers = self.arrival.answers.clone();
            runtime.spawn(async move { answers.send(answer).await });
        }
        self.close(count);
    }
}

/// Answers several messages with the same disposition; cheaper than one by one.
pub(crate) async fn answer_all(mut messages: Vec<PendingDelivery>, disposition: &Disposition) {
    PendingDelivery::gather(&mut messages);
    let mut messages = VecDeque::from(messages);
    while let Some(first) = messages.front() {
        let arrival = first.arrival.clone();
        let answers = &arrival.answers;
        let most = ANSWERS_AT_ONCE.min(answers.max_capacity());
        let sent_at = first.sent_at;
        let together = |next: &&PendingDelivery| {
            let same_way = Arc::ptr_eq(&next.arrival, &arrival) || next.arrival.answers.same_channel(answers);
            same_way && next.sent_at == sent_at
        };
        let count = messages.iter().take(most).take_while(together).count();
        let recipients = messages.iter().take(count).map(PendingDelivery::count).sum();
        let answered_at = arrival.shared.clock.now();
        arrival.shared.count(disposition, answered_at.since(sent_at.unwrap_or(answered_at)), count, recipients);
        let finish = |message: &mut PendingDelivery| message.answer_uncounted(disposition.clone(), answered_at);
        if let Ok(permits) = answers.try_reserve_many(count) {
            for (permit, mut message) in permits.zip(messages.drain(..count)) {
                permit.send(finish(&mut message));
                message.answered = true;
            }
            arrival.shared.close(recipients);
            continue;
        }
        let mut some: Vec<PendingDelivery> = messages.drain(..count).collect();
        // A wait that is cancelled from here on loses no answer: `drop` sends the ones that are ready.
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
