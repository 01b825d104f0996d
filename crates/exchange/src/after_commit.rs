//! Runs the work that must wait for a commit: dispatches the message, completes waiting callers, starts the next leg of
//! the port.
//!
//! The spool's writer sends an event per commit, and one task handles them in commit order. So no work stops half-way
//! because a caller disconnects, and a commit of many messages wakes one task.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tocsin_model::{
    exchange::{FlowSide, MessageKind, ThrottleReason, TrackPoint},
    id::MessageId,
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    spool::{LegOutcome, LegTransition, MessageAcceptance, NewMessage, ReceivedMessage, SettleResult},
};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_util::sync::CancellationToken;

use crate::{
    commit::{Commit, Committed, CompletedAttempt, PendingBatch, PendingCombination, PendingMessage, routed},
    dispatch::Dispatch,
    reply_waiters::ReplyNotice,
    running::RunningExchange,
    send_queue::FinishedLeg,
    track::BodyCapture,
};

/// Events that are handled before the task yields.
const AT_ONCE: usize = 64;

/// Delay before an outcome that could not be stored is stored again.
const STORE_AGAIN: Duration = Duration::from_secs(1);

/// Handles the results of commits until the exchanges stop.
pub(crate) async fn run(
    dispatch: Arc<Dispatch>,
    mut commits: UnboundedReceiver<Committed>,
    stopped: CancellationToken,
) {
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
        for committed in events.drain(..) {
            // A panic affects only its own message.
            let attempt = match &committed {
                Committed::Attempt(attempt, _) | Committed::Both(_, attempt, _) => Some(attempt.clone()),
                _ => None,
            };
            if catch_unwind(AssertUnwindSafe(|| handle(&dispatch, committed))).is_err() {
                tracing::error!("panic while handling a stored message; the message is handled at the next start");
                // Released, so that the queue goes on.
                attempt.iter().for_each(|attempt| finish(&dispatch, attempt, FinishedLeg::of(&attempt.leg)));
            }
        }
        tokio::task::yield_now().await;
    }
}

fn handle(dispatch: &Arc<Dispatch>, committed: Committed) {
    match committed {
        Committed::Message(pending, stored) => message_stored(dispatch, pending, stored),
        Committed::Attempt(attempt, settled) => attempt_stored(dispatch, attempt, settled),
        Committed::Both(pending, attempt, Ok(settled)) => {
            message_stored(dispatch, pending, Ok((MessageAcceptance::New, None)));
            attempt_stored(dispatch, attempt, Ok(settled));
        }
        Committed::Both(pending, attempt, Err(error)) => {
            discard(dispatch, &attempt, &error);
            message_stored(dispatch, pending, Err(error));
        }
        Committed::Batch(batch, stored) => batch_stored(dispatch, *batch, stored),
        Committed::Combined(combination, stored) => combination_stored(dispatch, *combination, stored),
        Committed::NotDispatched(port) => dispatch.refill(&port),
    }
}

fn message_stored(
    dispatch: &Arc<Dispatch>,
    mut pending: Box<PendingMessage>,
    stored: Result<(MessageAcceptance, Option<Timestamp>), StoreError>,
) {
    let accepted = stored.map(|(accepted, due_at)| {
        due_at.into_iter().for_each(|at| dispatch.core.aggregation_alarm.expect(at));
        accepted
    });
    if let (Some(lost), Err(_)) = (&pending.lost, &accepted) {
        lost.store(true, Ordering::Release);
    }
    pending.is_new = matches!(accepted, Ok(MessageAcceptance::New));
    if pending.is_new {
        dispatch_message(dispatch, &pending);
    }
    if let Some(sender) = pending.sender.take() {
        // The message is stored even if the sender has disconnected.
        let _ = sender.send(accepted);
    }
}

/// Dispatches a stored message, or its parts.
fn dispatch_message(dispatch: &Arc<Dispatch>, pending: &PendingMessage) {
    let (core, PendingMessage { running, port, .. }) = (&dispatch.core, pending);
    let received = &*pending.received;
    let whole = &received.whole;
    if let Some(meters) = running.meters.get(port) {
        meters.new.increment(1);
    }
    index(dispatch, running, received);
    match pending.lost.is_some() {
        // Its leg was sent before the commit.
        true => core.expect_expiry(whole),
        false => routed(received).for_each(|message| dispatch.dispatch(running, message)),
    }
    if let Some(headers) = &pending.headers {
        core.spans.received(whole, headers, pending.since, core.now());
    }
    if let Some((content_type, body, row)) = &pending.tracked {
        let (exchange, message, point) = (&running.compiled.definition.name, whole.id, TrackPoint::Received);
        let captured = BodyCapture { exchange, message, point, port, attempt: None, content_type, body };
        core.track(running, &captured, row.as_ref(), pending.since);
    }
}

/// Adds a message and its parts to the property index.
fn index(dispatch: &Dispatch, running: &RunningExchange, ReceivedMessage { whole, parts, .. }: &ReceivedMessage) {
    for message in std::iter::once(whole).chain(parts.iter().flatten()) {
        dispatch.core.index_properties(running, message.id, &message.head, message.accepted_at);
    }
}

fn batch_stored(dispatch: &Arc<Dispatch>, batch: PendingBatch, stored: Result<Option<Timestamp>, StoreError>) {
    let PendingBatch { running, messages, done, .. } = batch;
    let stored = stored.map(|due_at| {
        due_at.into_iter().for_each(|at| dispatch.core.aggregation_alarm.expect(at));
        for received in &messages {
            index(dispatch, &running, received);
            routed(received).for_each(|message| dispatch.dispatch(&running, message));
        }
        messages
    });
    // The messages are stored even if the location was stopped.
    let _ = done.send(stored);
}

fn combination_stored(dispatch: &Arc<Dispatch>, combination: PendingCombination, stored: Result<bool, StoreError>) {
    let PendingCombination { running, members, whole, done, .. } = combination;
    if let Ok(true) = stored {
        let labels = [("exchange", running.name()), ("port", whole.port.to_string())];
        metrics::counter!("tocsin_exchange_aggregated_total", &labels).increment(members.len() as u64);
        dispatch.core.index_properties(&running, whole.id, &whole.head, whole.accepted_at);
        dispatch.dispatch(&running, &whole);
    }
    // The aggregator waits until shutdown.
    let _ = done.send(stored);
}

/// Notifies callers and releases the leg. While the store is full, the outcome is stored again. If the store has
/// failed, the leg stays reserved, since the spool would hand it out again at once; after a restart it is sent again
/// with the same id.
fn attempt_stored(dispatch: &Arc<Dispatch>, attempt: Arc<CompletedAttempt>, settled: Result<SettleResult, StoreError>) {
    let core = &dispatch.core;
    let CompletedAttempt { running, port, leg, outcome, .. } = &*attempt;
    match settled {
        Ok(settled) => {
            let finished = FinishedLeg { took: Some(attempt.begun_at.elapsed()), ..FinishedLeg::of(leg) };
            let finished = match &outcome.then {
                LegTransition::Done(_) | LegTransition::Await(_) => finished,
                LegTransition::Retry(due_at) => FinishedLeg { retry_at: Some(*due_at), ..finished },
                LegTransition::Suspend(_) => FinishedLeg { is_suspended: true, ..finished },
            };
            notify_callers(dispatch, &attempt, settled);
            finish(dispatch, &attempt, finished);
        }
        Err(error) if attempt.lost.as_ref().is_some_and(|lost| lost.load(Ordering::Acquire)) => {
            discard(dispatch, &attempt, &error);
        }
        Err(StoreError::Full(why)) if !core.stopping.is_cancelled() => {
            tracing::warn!(message = %outcome.message, why, "the store is full; the outcome is stored later");
            running.flow.hit(FlowSide::Delivery, Some(port.name()), ThrottleReason::Disk, why, core.now());
            let again = core.clone();
            core.tasks.spawn(async move {
                tokio::time::sleep(STORE_AGAIN).await;
                again.commit(Commit::Attempt(attempt)).await;
            });
        }
        Err(error) => {
            tracing::error!(message = %outcome.message, %error, "an outcome could not be stored before the next start");
        }
    }
}

/// Drops the outcome of a message whose commit failed. The sender gets the error; nothing was promised to it.
fn discard(dispatch: &Arc<Dispatch>, attempt: &CompletedAttempt, error: &StoreError) {
    let CompletedAttempt { port, leg, outcome, .. } = attempt;
    let said = &outcome.said;
    port.meters.count("unstored");
    tracing::error!(message = %leg.message, port = %port.name(), said, %error, "a message was sent, but could not be stored");
    finish(dispatch, attempt, FinishedLeg::of(leg));
}

/// Releases the leg in the send queue, once.
fn finish(dispatch: &Arc<Dispatch>, attempt: &CompletedAttempt, finished: FinishedLeg) {
    if !attempt.is_finished.swap(true, Ordering::AcqRel) {
        dispatch.finished(&attempt.port, finished);
    }
}

/// Notifies callers of a stored outcome, and dispatches the reply.
fn notify_callers(dispatch: &Arc<Dispatch>, attempt: &CompletedAttempt, settled: SettleResult) {
    let (core, CompletedAttempt { running, port, leg, outcome, .. }) = (&dispatch.core, attempt);
    port.meters.count(result(outcome, settled));
    if let LegTransition::Done(Some(reply)) | LegTransition::Suspend(Some(reply)) = &outcome.then {
        core.index_properties(running, reply.id, &reply.head, reply.accepted_at);
    }
    let answer = |request: MessageId, notice| core.reply_waiters.answer(request, notice);
    match (&outcome.then, settled) {
        (LegTransition::Done(Some(reply)), SettleResult::Answered) => {
            let NewMessage { id, head, body, .. } = &**reply;
            answer(leg.message, ReplyNotice::Reply(*id, head.clone(), body.clone()));
        }
        (LegTransition::Done(Some(reply)), SettleResult::Stored) => dispatch.dispatch(running, reply),
        (LegTransition::Done(Some(reply)), SettleResult::Late) => {
            tracing::warn!(message = %leg.message, reply = %reply.id, "a reply came too late");
        }
        (LegTransition::Await(until), SettleResult::Stored) => core.expiry_alarm.expect(*until),
        (LegTransition::Suspend(_), SettleResult::Stored) => {
            tracing::warn!(message = %leg.message, port = %port.name(), reason = outcome.said, "a message is suspended");
            if leg.leg.replies && leg.kind == MessageKind::Request {
                answer(leg.message, ReplyNotice::None);
            }
        }
        _ => {}
    }
}

/// The result of an attempt, as in metrics.
fn result(outcome: &LegOutcome, settled: SettleResult) -> &'static str {
    match (&outcome.then, settled) {
        (LegTransition::Await(_), _) => "awaiting",
        (_, SettleResult::Gone) => "ended",
        (_, SettleResult::Late) => "late",
        (LegTransition::Done(_), _) => "done",
        (LegTransition::Retry(_), _) => "retry",
        (LegTransition::Suspend(Some(_)), _) => "wrong",
        (LegTransition::Suspend(None), _) => "suspended",
    }
}
