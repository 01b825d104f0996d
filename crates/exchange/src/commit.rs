//! Commits: everything that is stored with new messages or outcomes, and what must wait for it.
//!
//! `Core::commit` is the one way to store them. The result of each commit is an event for `after_commit`, in commit
//! order. A commit holds no reference to the core: the spool's writer can be the last owner of a commit, and must not
//! be the one that closes the spool.

use std::sync::{Arc, atomic::AtomicBool};

use bytes::Bytes;
use tocsin_model::{field::Row, id::Name, mark::Mark, time::Timestamp};
use tocsin_store::{
    error::StoreError,
    spool::{
        LegOutcome, LocationKey, MessageAcceptance, MessageGroup, NewMessage, ReceivedMessage, SettleResult, WaitingLeg,
    },
};
use tokio::sync::{mpsc::UnboundedSender, oneshot};
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::{
    reply_waiters::{ReplyNotice, ReplyWaiters},
    running::RunningExchange,
    send_port::SendPort,
    send_queue::LegId,
};

/// Changes that are stored in one commit.
pub(crate) enum Commit {
    /// A received message, with its legs.
    Message(Box<PendingMessage>),
    /// The outcome of an attempt, with the reply and its legs.
    Attempt(Arc<CompletedAttempt>),
    /// A message that was sent before its commit, and the outcome of its leg.
    Both(Box<PendingMessage>, Arc<CompletedAttempt>),
    /// The messages of a receive location, with its checkpoint.
    Batch(Box<PendingBatch>),
    /// An aggregated message, and the end of its members.
    Combined(Box<PendingCombination>),
}

/// A commit of the spool, or its failure.
pub(crate) enum Committed {
    Message(Box<PendingMessage>, Result<(MessageAcceptance, Option<Timestamp>), StoreError>),
    Attempt(Arc<CompletedAttempt>, Result<SettleResult, StoreError>),
    Both(Box<PendingMessage>, Arc<CompletedAttempt>, Result<SettleResult, StoreError>),
    Batch(Box<PendingBatch>, Result<Option<Timestamp>, StoreError>),
    Combined(Box<PendingCombination>, Result<bool, StoreError>),
    /// Legs of this port may be stored and were not dispatched: the commit failed, or was abandoned.
    NotDispatched(Arc<SendPort>),
}

/// Channel for the results of commits. It is unbounded, but each event was a queued write before, and the number of
/// queued writes is limited.
pub(crate) type CommitSender = UnboundedSender<Committed>;

/// A message whose commit is pending.
pub(crate) struct PendingMessage {
    pub reply_waiters: Arc<ReplyWaiters>,
    pub running: Arc<RunningExchange>,
    pub port: Name,
    pub received: Arc<ReceivedMessage>,
    /// The time of receipt.
    pub since: Timestamp,
    /// The headers of the request, if a span is sent.
    pub headers: Option<Vec<(String, String)>>,
    /// The received media type and body, and the row that routes evaluate, if they may be tracked.
    pub tracked: Option<(String, Bytes, Option<Row>)>,
    /// Result for its sender, which is read only if no reply shows that the message is stored.
    pub sender: Option<oneshot::Sender<Result<MessageAcceptance, StoreError>>>,
    pub is_new: bool,
    /// For a message that is sent before its commit: whether the commit failed.
    pub lost: Option<Arc<AtomicBool>>,
    pub _reservation: LegReservation,
    /// Delays shutdown until this is handled.
    pub _in_progress: TaskTrackerToken,
}

impl Drop for PendingMessage {
    /// Releases the callers of a message that was not stored, or that is a duplicate.
    fn drop(&mut self) {
        if !self.is_new {
            self.reply_waiters.answer(self.received.whole.id, ReplyNotice::None);
        }
    }
}

/// A completed attempt and its outcome.
pub(crate) struct CompletedAttempt {
    pub running: Arc<RunningExchange>,
    pub port: Arc<SendPort>,
    pub leg: Box<WaitingLeg>,
    pub outcome: Arc<LegOutcome>,
    /// For a message that is sent before its commit: whether the commit failed.
    pub lost: Option<Arc<AtomicBool>>,
    pub begun_at: tokio::time::Instant,
    /// Whether the send queue has released the leg.
    pub is_finished: AtomicBool,
    pub _reservation: LegReservation,
    /// Delays shutdown until this is handled.
    pub _in_progress: TaskTrackerToken,
}

/// Messages of a receive location whose commit is pending.
pub(crate) struct PendingBatch {
    pub running: Arc<RunningExchange>,
    pub location: LocationKey,
    pub messages: Vec<ReceivedMessage>,
    pub marks: Vec<Mark>,
    /// Result for the location: the stored messages.
    pub done: oneshot::Sender<Result<Vec<ReceivedMessage>, StoreError>>,
    pub _reservation: LegReservation,
}

/// An aggregated message whose commit is pending.
pub(crate) struct PendingCombination {
    pub running: Arc<RunningExchange>,
    pub group: MessageGroup,
    pub members: Vec<tocsin_model::id::MessageId>,
    pub whole: NewMessage,
    /// Result for the aggregator: whether all members were still there.
    pub done: oneshot::Sender<Result<bool, StoreError>>,
    pub _reservation: LegReservation,
}

/// The messages that have legs: the message itself, or its parts.
pub(crate) fn routed(received: &ReceivedMessage) -> impl Iterator<Item = &NewMessage> {
    let ReceivedMessage { whole, parts, .. } = received;
    parts.as_deref().unwrap_or(std::slice::from_ref(whole)).iter()
}

/// Reservation of legs that are being stored, so that no leg is both read from the spool and pushed. On drop, legs that
/// were not pushed are read from the spool, if they are there.
#[must_use]
pub(crate) struct LegReservation {
    legs: Vec<(Arc<SendPort>, LegId)>,
    commits: CommitSender,
}

impl LegReservation {
    /// Reserves the legs of messages before their commit. Legs of ordered delivery are only ever read from the spool.
    pub fn new<'a>(
        running: &RunningExchange,
        messages: impl IntoIterator<Item = &'a NewMessage>,
        commits: CommitSender,
    ) -> LegReservation {
        // Replies through a receive port are excluded: the commit decides whether they are still waited for.
        let messages = messages.into_iter().filter(|message| message.settles.is_none());
        let legs = messages.flat_map(|message| {
            (0..).zip(&message.legs).filter_map(|(number, leg)| {
                let port = running.send_ports.get(&leg.port).filter(|_| leg.lane.is_none())?;
                Some((port.clone(), (message.id, number)))
            })
        });
        let legs: Vec<(Arc<SendPort>, LegId)> = legs.collect();
        legs.iter().for_each(|(port, leg_id)| port.with(|queue| queue.reserve(*leg_id)));
        LegReservation { legs, commits }
    }
}

impl Drop for LegReservation {
    fn drop(&mut self) {
        for (port, leg_id) in self.legs.drain(..) {
            if port.with(|queue| queue.release(leg_id)) {
                // The send fails after shutdown; the next start reads the spool.
                let _ = self.commits.send(Committed::NotDispatched(port));
            }
        }
    }
}
