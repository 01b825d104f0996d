//! Runs the work that must wait for a commit: dispatches the message, completes waiting callers, starts the next leg of
//! the port.
//!
//! The spool's writer sends an event per commit, and one task handles them in commit order. So no work stops half-way
//! because a caller disconnects, and a commit of many messages wakes one task. The channel is unbounded, but each event
//! was a queued write before, and the number of queued writes is limited.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use tocsin_model::{exchange::TrackPoint, field::Row, id::Name, time::Timestamp};
use tocsin_store::{
    error::StoreError,
    spool::{MessageAcceptance, ReceivedMessage, SettleResult},
};
use tokio::sync::{
    mpsc::{UnboundedReceiver, UnboundedSender},
    oneshot,
};
use tokio_util::{sync::CancellationToken, task::task_tracker::TaskTrackerToken};

use crate::{
    Exchanges, RunningExchange,
    reply_waiters::{ReplyNotice, ReplyWaiters},
    send::CompletedAttempt,
    send_queue::LegReservation,
    track::BodyCapture,
};

/// Events that are handled before the task yields.
const AT_ONCE: usize = 64;

/// A commit of the spool, or its failure.
pub(crate) enum CommitEvent {
    Accepted(Box<PendingMessage>, Result<(MessageAcceptance, Option<Timestamp>), StoreError>),
    Settled(Arc<CompletedAttempt>, Result<SettleResult, StoreError>),
    /// A message that was sent before its commit, and the outcome of its leg.
    AcceptedAndSettled(Box<PendingMessage>, Arc<CompletedAttempt>, Result<SettleResult, StoreError>),
}

/// Channel for commit events.
pub(crate) type CommitSender = UnboundedSender<CommitEvent>;

/// Handles commit events until the exchanges stop.
pub(crate) async fn run(mut commits: UnboundedReceiver<CommitEvent>, stopped: CancellationToken) {
    let mut events = Vec::with_capacity(AT_ONCE);
    loop {
        let many = tokio::select! {
            biased;
            many = commits.recv_many(&mut events, AT_ONCE) => many,
            () = stopped.cancelled() => 0,
        };
        if many == 0 {
            return;
        }
        for stored in events.drain(..) {
            // A panic affects only its own message.
            let attempt = match &stored {
                CommitEvent::Settled(attempt, _) | CommitEvent::AcceptedAndSettled(_, attempt, _) => {
                    Some(attempt.clone())
                }
                CommitEvent::Accepted(..) => None,
            };
            let followed = catch_unwind(AssertUnwindSafe(|| match stored {
                CommitEvent::Accepted(pending, stored) => pending.on_commit(stored),
                CommitEvent::Settled(attempt, settled) => attempt.on_commit(settled),
                CommitEvent::AcceptedAndSettled(pending, attempt, Ok(settled)) => {
                    pending.on_commit(Ok((MessageAcceptance::New, None)));
                    attempt.on_commit(Ok(settled));
                }
                CommitEvent::AcceptedAndSettled(pending, attempt, Err(error)) => {
                    attempt.forget(&error);
                    pending.on_commit(Err(error));
                }
            }));
            if followed.is_err() {
                tracing::error!("panic while handling a stored message; the message is handled at the next start");
                attempt.iter().for_each(|attempt| attempt.give_up());
            }
        }
        tokio::task::yield_now().await;
    }
}

/// A message whose commit is pending. The writer can be the last owner, and must not be the one that closes the spool.
pub(crate) struct PendingMessage {
    pub exchanges: Weak<Exchanges>,
    pub reply_waiters: Arc<ReplyWaiters>,
    pub running: Arc<RunningExchange>,
    pub port: Name,
    pub taken: Arc<ReceivedMessage>,
    /// The time of receipt.
    pub since: Timestamp,
    /// The headers of the request, if a span is sent.
    pub headers: Option<Vec<(String, String)>>,
    /// The received media type and body, and the row that routes evaluate, if they may be tracked.
    pub seen: Option<(String, Bytes, Option<Row>)>,
    /// Result for its sender, which is read only if no reply shows that the message is stored.
    pub sender: Option<oneshot::Sender<Result<MessageAcceptance, StoreError>>>,
    pub is_new: bool,
    /// For a message that is sent before its commit: whether the commit failed.
    pub lost: Option<Arc<AtomicBool>>,
    /// Reserves its legs, so that the send queue does not load them from the spool.
    pub _reservation: LegReservation,
    /// Delays shutdown until this is handled.
    pub _under_way: TaskTrackerToken,
}

impl Drop for PendingMessage {
    /// Releases the callers of a message that was not stored, or that is a duplicate.
    fn drop(&mut self) {
        if !self.is_new {
            self.reply_waiters.answer(self.taken.whole.id, ReplyNotice::None);
        }
    }
}

impl PendingMessage {
    fn on_commit(mut self: Box<Self>, stored: Result<(MessageAcceptance, Option<Timestamp>), StoreError>) {
        let Some(exchanges) = self.exchanges.upgrade() else { return };
        let accepted = stored.map(|(accepted, due_at)| {
            due_at.into_iter().for_each(|at| exchanges.aggregation_alarm.expect(at));
            accepted
        });
        if let (Some(lost), Err(_)) = (&self.lost, &accepted) {
            lost.store(true, Ordering::Release);
        }
        self.is_new = matches!(accepted, Ok(MessageAcceptance::New));
        if self.is_new {
            self.dispatch(&exchanges);
        }
        if let Some(sender) = self.sender.take() {
            // The message is stored even if the sender has disconnected.
            let _ = sender.send(accepted);
        }
    }

    /// Dispatches the stored message.
    fn dispatch(&self, exchanges: &Exchanges) {
        let PendingMessage { running, port, .. } = self;
        let ReceivedMessage { whole, parts, .. } = &*self.taken;
        if let Some(meters) = running.meters.get(port) {
            meters.new.increment(1);
        }
        for message in std::iter::once(whole).chain(parts.iter().flatten()) {
            exchanges.index_properties(running, message.id, &message.head, message.accepted_at);
        }
        match parts {
            None if self.lost.is_some() => exchanges.expect_expiry(whole),
            None => exchanges.dispatch(running, whole),
            Some(parts) => parts.iter().for_each(|part| exchanges.dispatch(running, part)),
        }
        if let Some(headers) = &self.headers {
            exchanges.spans.received(whole, headers, self.since, exchanges.parts.clock.now());
        }
        if let Some((content_type, body, row)) = &self.seen {
            let (exchange, message, point) = (&running.compiled.definition.name, whole.id, TrackPoint::Received);
            let seen = BodyCapture { exchange, message, point, port, attempt: None, content_type, body };
            exchanges.track(running, &seen, row.as_ref(), self.since);
        }
    }
}
