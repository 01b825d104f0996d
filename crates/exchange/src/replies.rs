//! The status of the reply to a request, from the spool or from a commit that comes in time.

use std::time::Duration;

use bytes::Bytes;
use tocsin_model::{
    exchange::{MessageKind, TrackPoint},
    field::Row,
    id::{MessageId, Name},
};
use tocsin_store::{
    error::StoreError,
    spool::{Ending, Head, Leg, LegState, StoredMessage},
};
use tokio::time::Instant;

use crate::{
    core::Core, error::ReceiveError, promote, reply_waiters::ReplyNotice, running::RunningExchange, track::BodyCapture,
};

/// Status of the reply to a message.
#[derive(Debug, Clone, PartialEq)]
pub enum ReplyStatus {
    /// The message is stored; no reply is expected.
    Stored,
    /// The reply is stored.
    Replied {
        /// The reply.
        reply: MessageId,
        /// Its head.
        head: Head,
        /// Its body.
        body: Bytes,
    },
    /// There is no reply yet.
    Pending,
    /// Suspended for this reason; it can still be answered after an operator resumes it.
    Suspended(String),
    /// No reply came in time.
    Expired,
    /// An operator cancelled it.
    Ended,
}

/// Tracks the body of a reply that a caller gets.
pub(crate) fn track_returned(
    core: &Core,
    running: &RunningExchange,
    port: &Name,
    message: MessageId,
    row: Option<&Row>,
    reply_status: &ReplyStatus,
) {
    if let ReplyStatus::Replied { head, body, .. } = reply_status {
        let (exchange, content_type) = (&running.compiled.definition.name, &*head.content_type);
        let point = TrackPoint::Returned;
        let captured = BodyCapture { exchange, message, point, port, attempt: None, content_type, body };
        core.track(running, &captured, row, core.now());
    }
}

/// The status of a request that its caller polls, as for [`wait_for`].
///
/// # Errors
/// The store does not answer.
pub(crate) async fn reply_to(core: &Core, id: MessageId, wait: Duration) -> Result<Option<ReplyStatus>, StoreError> {
    let reply_status = wait_for(core, id, wait).await?;
    if let Some(replied @ ReplyStatus::Replied { .. }) = &reply_status
        && let Some(request) = core.parts.spool.message(id).await?
        && let Some(running) = core.find(&request.exchange)
    {
        let bytes = usize::try_from(request.bytes).unwrap_or(usize::MAX);
        let row = promote::row(&running.compiled.schema, &request.port, request.kind, &request.head, bytes);
        track_returned(core, &running, &request.port, id, Some(&row), replied);
    }
    Ok(reply_status)
}

/// The reply status of a request; waits up to `wait` while it is pending. `None` if there is no such message.
///
/// # Errors
/// The store does not answer.
pub(crate) async fn wait_for(core: &Core, id: MessageId, wait: Duration) -> Result<Option<ReplyStatus>, StoreError> {
    let reply_status = poll_status(core, id, Instant::now() + wait).await;
    core.reply_waiters.forget(id);
    reply_status
}

async fn poll_status(core: &Core, id: MessageId, until: Instant) -> Result<Option<ReplyStatus>, StoreError> {
    loop {
        // Registered before the read, so that no reply in between is missed.
        let answered = core.reply_waiters.wait_for(id);
        let Some(reply_status) = stored_status(core, id).await? else { return Ok(None) };
        if reply_status != ReplyStatus::Pending || until <= Instant::now() {
            return Ok(Some(reply_status));
        }
        match tokio::time::timeout_at(until, answered).await {
            Ok(Ok(ReplyNotice::Reply(reply, head, body))) => {
                return Ok(Some(ReplyStatus::Replied { reply, head, body }));
            }
            // One send port has no reply; others may.
            Ok(Ok(ReplyNotice::None)) => {}
            _ => return stored_status(core, id).await,
        }
    }
}

async fn stored_status(core: &Core, id: MessageId) -> Result<Option<ReplyStatus>, StoreError> {
    match core.parts.spool.message(id).await? {
        Some(stored) => Ok(Some(reply_status(core, &stored).await?)),
        None => Ok(None),
    }
}

/// The status of a request whose reply did not come in time.
pub(crate) async fn status_without_reply(
    core: &Core,
    id: MessageId,
    until: Instant,
) -> Result<ReplyStatus, ReceiveError> {
    let reply_status = poll_status(core, id, until).await.map_err(ReceiveError::Store);
    core.reply_waiters.forget(id);
    Ok(reply_status?.unwrap_or(ReplyStatus::Ended))
}

async fn reply_status(core: &Core, stored: &StoredMessage) -> Result<ReplyStatus, StoreError> {
    if stored.kind != MessageKind::Request {
        return Ok(ReplyStatus::Stored);
    }
    if let (Some(Ending::Answered), Some(reply)) = (stored.ending, stored.reply)
        && let Some(found) = core.parts.spool.message(reply).await?
        && let Some(body) = core.parts.spool.body(reply).await?
    {
        return Ok(ReplyStatus::Replied { reply, head: found.head, body });
    }
    let hopeful = |leg: &&Leg| leg.replies && matches!(leg.state, LegState::Waiting | LegState::Awaiting);
    let suspended = |leg: &&Leg| leg.replies && leg.state == LegState::Suspended;
    Ok(match (stored.ending, &stored.suspended) {
        (Some(Ending::Expired), _) => ReplyStatus::Expired,
        (Some(_), _) => ReplyStatus::Ended,
        (None, Some(reason)) => ReplyStatus::Suspended(reason.clone()),
        (None, None) => match stored.legs.iter().find(suspended) {
            Some(leg) if !stored.legs.iter().any(|leg| hopeful(&leg)) => {
                ReplyStatus::Suspended(format!("{}: {}", leg.port, leg.said.as_deref().unwrap_or_default()))
            }
            _ => ReplyStatus::Pending,
        },
    })
}
