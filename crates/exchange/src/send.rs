//! Delivery attempts: sends a leg through its port's transport, stores the outcome with the reply, then notifies
//! callers.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::{FutureExt, TryFutureExt};
use tocsin_delivery::http::call::{Call, Returned};
use tocsin_model::{
    exchange::{FlowSide, MessageKind, ThrottleReason, TrackPoint, Transport},
    time::Timestamp,
    trace_context::TraceContext,
};
use tocsin_store::{
    error::StoreError,
    spool::{Head, LegOutcome, LegTransition, NewMessage, SettleResult, WaitingLeg},
};

use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::{
    Exchanges, RunningExchange,
    after_commit::{CommitEvent, PendingMessage},
    compile::CompiledSendPort,
    groups::WorkerGroup,
    pipeline::PipelineMessage,
    promote,
    reply_waiters::ReplyNotice,
    send_queue::{FinishedLeg, LegReservation, SendQueue},
    track::BodyCapture,
};

/// Delay before an outcome that could not be stored is stored again.
const STORE_AGAIN: Duration = Duration::from_secs(1);

/// Longest time that a message sent before its commit waits for its outcome, so that both are one commit. Longer than a
/// fast receiver takes, even when many callers share its processors.
const STORED_WITHIN: Duration = Duration::from_millis(20);

/// Timeout of an asynchronous reply if the definition no longer has one.
const REPLY_WITHIN: Duration = Duration::from_secs(86_400);

/// Reason of suspension after a panic during sending.
const BROKEN: &str = "internal error while sending the message; see the log";

const CONTENT_ENCODING: &str = "content-encoding";

/// Sends a leg once and stores the outcome.
pub(crate) async fn send(exchanges: Arc<Exchanges>, send_queue: Arc<SendQueue>, leg: Box<WaitingLeg>) {
    let is_over = leg.leg.replies && leg.expires_at.is_some_and(|at| at <= exchanges.parts.clock.now());
    // Upkeep expires the request; its leg must not be in progress then.
    let running = exchanges.find(send_queue.exchange()).filter(|_| !is_over);
    match running {
        Some(running) => attempt(exchanges, running, send_queue, leg, None).await,
        None => send_queue.finished(finished(&leg)),
    }
}

/// Sends the only leg of a message before its commit. Message and outcome are stored together, or the message first if
/// the attempt takes longer.
pub(crate) async fn send_first(
    exchanges: Arc<Exchanges>,
    send_queue: Arc<SendQueue>,
    leg: Box<WaitingLeg>,
    pending: Box<PendingMessage>,
) {
    let running = pending.running.clone();
    attempt(exchanges, running, send_queue, leg, Some(pending)).await;
}

async fn attempt(
    exchanges: Arc<Exchanges>,
    running: Arc<RunningExchange>,
    send_queue: Arc<SendQueue>,
    leg: Box<WaitingLeg>,
    unstored: Option<Box<PendingMessage>>,
) {
    let (send_port, begun_at) = (send_queue.send_port(), tokio::time::Instant::now());
    let lost = unstored.as_ref().and_then(|pending| pending.lost.clone());
    let (place, since) = (exchanges.spans.trace_of_attempt(&leg), exchanges.parts.clock.now());
    let (result, unstored) = {
        // A panic suspends the message; the port goes on with the next.
        let delivery =
            AssertUnwindSafe(attempt_delivery(&exchanges, &running, &send_port, &leg, place.as_deref())).catch_unwind();
        let mut delivery = pin!(delivery.unwrap_or_else(|_| AttemptResult::PipelineFailed(BROKEN.to_owned())));
        match unstored {
            None => (delivery.await, None),
            Some(pending) => tokio::select! {
                biased;
                result = &mut delivery => (result, Some(pending)),
                () = tokio::time::sleep(STORED_WITHIN) => {
                    Box::pin(exchanges.store(pending)).await;
                    (delivery.await, None)
                }
            },
        }
    };
    exchanges.poison_messages.clear(leg.message);
    let outcome = catch_unwind(AssertUnwindSafe(|| outcome(&exchanges, &running, &send_port, &leg, result)))
        .unwrap_or_else(|_| {
            self::outcome(&exchanges, &running, &send_port, &leg, AttemptResult::PipelineFailed(BROKEN.to_owned()))
        });
    exchanges.spans.sent(&leg, place.as_deref(), since, &outcome);
    let reply = match &outcome.then {
        LegTransition::Done(Some(reply)) => std::slice::from_ref(&**reply),
        _ => &[],
    };
    let reservation = running.reserve_legs(reply);
    let under_way = exchanges.tasks.token();
    let outcome = Arc::new(outcome);
    let completed = Arc::new(CompletedAttempt {
        exchanges: Arc::downgrade(&exchanges),
        running,
        send_queue,
        leg,
        outcome,
        lost,
        begun_at,
        is_finished: AtomicBool::new(false),
        _reservation: reservation,
        _under_way: under_way,
    });
    match unstored {
        None => store(&exchanges, completed),
        Some(pending) => store_with_message(&exchanges, pending, completed),
    }
}

/// A completed attempt and its outcome. The writer can be the last owner, and must not be the one that closes the
/// spool.
pub(crate) struct CompletedAttempt {
    exchanges: Weak<Exchanges>,
    running: Arc<RunningExchange>,
    send_queue: Arc<SendQueue>,
    leg: Box<WaitingLeg>,
    outcome: Arc<LegOutcome>,
    /// For a message that is sent before its commit: whether the commit failed.
    lost: Option<Arc<AtomicBool>>,
    begun_at: tokio::time::Instant,
    /// Whether the send queue has released the leg.
    is_finished: AtomicBool,
    /// Reserves the legs of the reply, so that the send queue does not load them from the spool.
    _reservation: LegReservation,
    /// Delays shutdown until this is handled.
    _under_way: TaskTrackerToken,
}

/// Stores the outcome of a leg. The work that follows runs after the commit.
fn store(exchanges: &Exchanges, completed: Arc<CompletedAttempt>) {
    let (stored, outcome) = (exchanges.stored.clone(), completed.outcome.clone());
    let notify = move |settled| {
        // The send fails after shutdown.
        let _ = stored.send(CommitEvent::Settled(completed, settled));
    };
    exchanges.parts.spool.settle_then(outcome, notify);
}

/// Stores the outcome together with its message.
fn store_with_message(exchanges: &Exchanges, pending: Box<PendingMessage>, completed: Arc<CompletedAttempt>) {
    let stored = exchanges.stored.clone();
    let (taken, outcome) = (pending.taken.clone(), completed.outcome.clone());
    let notify = move |settled| {
        let _ = stored.send(CommitEvent::AcceptedAndSettled(pending, completed, settled));
    };
    exchanges.parts.spool.accept_settled_then(taken, outcome, notify);
}

/// A leg that leaves the send queue without a result.
fn finished(leg: &WaitingLeg) -> FinishedLeg {
    let leg_id = (leg.message, leg.leg.number);
    FinishedLeg { leg_id, key: leg.lane.clone(), retry_at: None, is_suspended: false, took: None }
}

impl CompletedAttempt {
    /// Drops the outcome of a message whose commit failed. The sender gets the error; nothing was promised to it.
    pub fn forget(&self, error: &StoreError) {
        let CompletedAttempt { send_queue, leg, outcome, .. } = self;
        let said = &outcome.said;
        send_queue.meters.count("unstored");
        tracing::error!(message = %leg.message, port = %send_queue.port(), said, %error, "a message was sent, but could not be stored");
        self.finish(finished(leg));
    }

    /// Releases the leg in the send queue, once.
    fn finish(&self, finished: FinishedLeg) {
        if !self.is_finished.swap(true, Ordering::AcqRel) {
            self.send_queue.finished(finished);
        }
    }

    /// Releases the leg after a panic, so that the queue goes on.
    pub fn give_up(&self) {
        self.finish(finished(&self.leg));
    }

    /// Notifies callers and releases the leg after the commit. While the store is full, the outcome is stored again. If
    /// the store has failed, the leg stays reserved, since the spool would hand it out again at once; after a restart
    /// it is sent again with the same id.
    pub fn on_commit(self: Arc<Self>, settled: Result<SettleResult, StoreError>) {
        let Some(exchanges) = self.exchanges.upgrade() else { return };
        let CompletedAttempt { running, send_queue, leg, outcome, .. } = &*self;
        match settled {
            Ok(settled) => {
                let finished = match &outcome.then {
                    LegTransition::Done(_) | LegTransition::Await(_) => finished(leg),
                    LegTransition::Retry(due_at) => FinishedLeg { retry_at: Some(*due_at), ..finished(leg) },
                    LegTransition::Suspend(_) => FinishedLeg { is_suspended: true, ..finished(leg) },
                };
                notify_callers(&exchanges, running, send_queue, leg, outcome, settled);
                self.finish(FinishedLeg { took: Some(self.begun_at.elapsed()), ..finished });
            }
            Err(error) if self.lost.as_ref().is_some_and(|lost| lost.load(Ordering::Acquire)) => self.forget(&error),
            Err(StoreError::Full(why)) if !exchanges.stopping.is_cancelled() => {
                tracing::warn!(message = %outcome.message, why, "the store is full; the outcome is stored later");
                let now = exchanges.parts.clock.now();
                running.flow.hit(FlowSide::Delivery, Some(send_queue.port()), ThrottleReason::Disk, why, now);
                let again = exchanges.clone();
                exchanges.tasks.spawn(async move {
                    tokio::time::sleep(STORE_AGAIN).await;
                    store(&again, self);
                });
            }
            Err(error) => {
                tracing::error!(message = %outcome.message, %error, "an outcome could not be stored before the next start");
            }
        }
    }
}

/// Result of an attempt.
enum AttemptResult {
    /// Nothing was sent: a step of the port's pipeline failed.
    PipelineFailed(String),
    /// The receiver accepted it with this status; the reply comes asynchronously.
    Accepted(u16),
    /// The response without a reply to route, or the transport error.
    Returned(Returned),
    /// The status and the reply; the error if a step of the reply pipeline failed.
    Replied(u16, PipelineMessage, Option<String>),
}

/// Runs the send pipeline, calls the receiver and runs the reply pipeline.
async fn attempt_delivery(
    exchanges: &Exchanges,
    running: &RunningExchange,
    send_port: &CompiledSendPort,
    leg: &WaitingLeg,
    place: Option<&TraceContext>,
) -> AttemptResult {
    let head = &leg.head;
    let message = PipelineMessage {
        content_type: head.content_type.clone(),
        headers: head.headers.clone(),
        properties: head.properties.clone(),
        body: leg.body.clone(),
        ..PipelineMessage::default()
    };
    // Each leg has its own id, so that a receiver behind two ports does not treat the second as a duplicate. An edited
    // message has another id.
    let id = match head.edits {
        0 => format!("{}-{}", leg.message, leg.leg.number),
        edits => format!("{}-{}-e{edits}", leg.message, leg.leg.number),
    };
    let (clock, workers) = (&exchanges.parts.clock, exchanges.groups.of(WorkerGroup::Send));
    let (before, after) = (!send_port.pipeline.is_empty(), !send_port.reply_pipeline.is_empty());
    let step_guard = match (before || after).then(|| exchanges.poison_messages.enter(leg.message)).transpose() {
        Ok(step_guard) => step_guard.filter(|_| before),
        Err(why) => return AttemptResult::PipelineFailed(why),
    };
    let message = match send_port.pipeline.apply(message, &id, clock, workers).await {
        Ok(mut messages) => messages.pop().expect("send pipelines do not split"),
        Err(step_error) => return AttemptResult::PipelineFailed(step_error.to_string()),
    };
    drop(step_guard);
    let tracks = running.tracks();
    let row = tracks.has_routes().then(|| promote::row(&running.compiled, &leg.from, leg.kind, head, leg.body.len()));
    let track = |point, content_type: &str, body: &Bytes| {
        let (exchange, message, port) = (&running.compiled.definition.name, leg.message, &leg.leg.port);
        let attempt = Some((leg.leg.number, leg.leg.attempts + 1));
        let seen = BodyCapture { exchange, message, point, port, attempt, content_type, body };
        exchanges.track(running, &seen, row.as_ref(), clock.now());
    };
    track(TrackPoint::Sent, &message.content_type, &message.body);
    let reply = match call(send_port, leg, &id, &message, place).await {
        Returned::Taken(reply) if leg.leg.through.is_some() => return AttemptResult::Accepted(reply.status),
        Returned::Taken(reply) if leg.leg.replies => reply,
        returned => return AttemptResult::Returned(returned),
    };
    let content_type = reply.headers.iter().find(|(name, _)| name == "content-type").map(|(_, value)| value.clone());
    let reply_message = PipelineMessage {
        content_type: content_type.unwrap_or_default(),
        headers: reply.headers,
        body: Bytes::from(reply.body),
        // No standard defines trace headers of responses; the reply is a child of this attempt.
        trace: place.map(|place| Box::new(place.clone())),
        ..PipelineMessage::default()
    };
    track(TrackPoint::Replied, &reply_message.content_type, &reply_message.body);
    if send_port.reply_pipeline.is_empty() {
        return AttemptResult::Replied(reply.status, reply_message, None);
    }
    let _step_guard = match exchanges.poison_messages.enter(leg.message) {
        Ok(step_guard) => step_guard,
        Err(why) => return AttemptResult::Replied(reply.status, reply_message, Some(why)),
    };
    match send_port.reply_pipeline.apply(reply_message.clone(), &id, clock, workers).await {
        Ok(mut messages) => {
            AttemptResult::Replied(reply.status, messages.pop().expect("reply pipelines do not split"), None)
        }
        Err(step_error) => {
            AttemptResult::Replied(reply.status, reply_message, Some(format!("the reply cannot be used: {step_error}")))
        }
    }
}

async fn call(
    send_port: &CompiledSendPort,
    leg: &WaitingLeg,
    id: &str,
    message: &PipelineMessage,
    place: Option<&TraceContext>,
) -> Returned {
    let caller = match &send_port.backup {
        Some(backup) if leg.leg.on_backup => backup,
        _ => &send_port.first,
    };
    let mut about = vec![("tocsin-message", leg.message.to_string()), ("tocsin-kind", leg.kind.word().to_owned())];
    about.extend(leg.answers.map(|request| ("tocsin-answers", request.to_string())));
    let packed = message.headers.iter().find(|(name, _)| name == CONTENT_ENCODING);
    about.extend(packed.map(|(_, how)| (CONTENT_ENCODING, how.clone())));
    about.extend(place.iter().flat_map(|place| place.headers()));
    let property = |name: &str| promote::text_of(&leg.head, name);
    // The received trace headers are replaced; invalid ones are dropped.
    let is_sent_already = |name: &str| [CONTENT_ENCODING, "traceparent", "tracestate"].contains(&name);
    let headers: Vec<(String, String)> =
        message.headers.iter().filter(|(name, _)| !is_sent_already(name)).cloned().collect();
    caller
        .call(&Call {
            id,
            content_type: &message.content_type,
            headers: &headers,
            about: &about,
            body: &message.body,
            property: &property,
            signed: message.signed.as_ref().map(|(seconds, signature)| (*seconds, signature.as_str())),
        })
        .await
}

fn outcome(
    exchanges: &Exchanges,
    running: &RunningExchange,
    send_port: &CompiledSendPort,
    leg: &WaitingLeg,
    result: AttemptResult,
) -> LegOutcome {
    let now = exchanges.parts.clock.now();
    let attempts = leg.leg.attempts + 1;
    let outcome = |said: String, then| LegOutcome {
        message: leg.message,
        exchange: running.compiled.definition.name.clone(),
        leg: leg.leg.number,
        attempts,
        is_first: leg.leg.tried_at.is_none(),
        on_backup: leg.leg.on_backup,
        said,
        tried_at: now,
        then,
    };
    let returned = match result {
        AttemptResult::Accepted(status) => {
            let within = send_port.definition.later.as_ref().map_or(REPLY_WITHIN, |later| later.within);
            return outcome(status.to_string(), LegTransition::Await(now + within));
        }
        AttemptResult::PipelineFailed(reason) => return outcome(reason, LegTransition::Suspend(None)),
        AttemptResult::Returned(returned) => returned,
        AttemptResult::Replied(status, reply, step_error) => {
            let (reply, correlation_error) = reply_message(exchanges, running, send_port, leg, &reply, now);
            return match step_error.or(correlation_error) {
                None => outcome(status.to_string(), LegTransition::Done(Some(Box::new(reply)))),
                Some(correlation_error) => outcome(correlation_error, LegTransition::Suspend(Some(Box::new(reply)))),
            };
        }
    };
    match returned {
        Returned::Taken(reply) => outcome(reply.status.to_string(), LegTransition::Done(None)),
        Returned::Refused(reason) => {
            switch_to_backup_or(send_port, leg, now, outcome(reason.text, LegTransition::Suspend(None)))
        }
        Returned::Deferred { reason, retry_after } => {
            let schedule = &transport(send_port, leg.leg.on_backup).retry;
            match schedule.delay_after(attempts, retry_after, fastrand::f64()) {
                Some(delay) => outcome(reason.text, LegTransition::Retry(now + delay)),
                None => switch_to_backup_or(send_port, leg, now, outcome(reason.text, LegTransition::Suspend(None))),
            }
        }
    }
}

fn transport(send_port: &CompiledSendPort, on_backup: bool) -> &Transport {
    match &send_port.definition.backup {
        Some(backup) if on_backup => backup,
        _ => &send_port.definition.transport,
    }
}

/// Switches to the backup transport after the first has failed permanently.
fn switch_to_backup_or(
    send_port: &CompiledSendPort,
    leg: &WaitingLeg,
    now: Timestamp,
    failed: LegOutcome,
) -> LegOutcome {
    match (&send_port.backup, leg.leg.on_backup) {
        (Some(_), false) => LegOutcome { attempts: 0, on_backup: true, then: LegTransition::Retry(now), ..failed },
        _ => failed,
    }
}

/// Builds the message of a reply; also returns why it does not correlate, if so.
fn reply_message(
    exchanges: &Exchanges,
    running: &RunningExchange,
    send_port: &CompiledSendPort,
    leg: &WaitingLeg,
    reply: &PipelineMessage,
    now: Timestamp,
) -> (NewMessage, Option<String>) {
    let body = reply.body.clone();
    let mut head = promote::head(&running.compiled, reply);
    let correlation_error = correlation_error(send_port, &leg.head, &head);
    promote::inherit(&mut head, &leg.head);
    let port = &leg.leg.port;
    // The reply to a request goes to the waiting caller; any other is routed like every message.
    let routed = match leg.kind {
        MessageKind::Request => Ok(Vec::new()),
        MessageKind::OneWay | MessageKind::Reply => running.legs(port, MessageKind::Reply, &head, body.len()),
    };
    // A reply is stored in the partition of its request.
    let partition = exchanges.parts.spool.partition_of(leg.message);
    let message = exchanges.new_message(running, partition, port, MessageKind::Reply, body, now);
    (NewMessage { answers: Some(leg.message), head, ..message }.routed(routed), correlation_error)
}

/// Checks correlation: returns the property that differs between request and reply.
fn correlation_error(send_port: &CompiledSendPort, request: &Head, reply: &Head) -> Option<String> {
    send_port.definition.correlate.iter().find_map(|name| {
        let (asked, said) = (promote::text_of(request, name.as_str()), promote::text_of(reply, name.as_str()));
        let shown = |text: Option<&String>| text.map_or("nothing".to_owned(), |text| format!("`{text}`"));
        (asked != said).then(|| {
            let (asked, said) = (shown(asked.as_ref()), shown(said.as_ref()));
            format!("the reply does not belong to the request: its `{name}` is {said}, not {asked}")
        })
    })
}

/// Notifies callers of a stored outcome, and dispatches the reply.
fn notify_callers(
    exchanges: &Exchanges,
    running: &RunningExchange,
    send_queue: &SendQueue,
    leg: &WaitingLeg,
    outcome: &LegOutcome,
    settled: SettleResult,
) {
    send_queue.meters.count(result(outcome, settled));
    if let LegTransition::Done(Some(reply)) | LegTransition::Suspend(Some(reply)) = &outcome.then {
        exchanges.index_properties(running, reply.id, &reply.head, reply.accepted_at);
    }
    match (&outcome.then, settled) {
        (LegTransition::Done(Some(reply)), SettleResult::Answered) => {
            let NewMessage { id, head, body, .. } = &**reply;
            exchanges.reply_waiters.answer(leg.message, ReplyNotice::Reply(*id, head.clone(), body.clone()));
        }
        (LegTransition::Done(Some(reply)), SettleResult::Stored) => exchanges.dispatch(running, reply),
        (LegTransition::Done(Some(reply)), SettleResult::Late) => {
            tracing::warn!(message = %leg.message, reply = %reply.id, "a reply came too late");
        }
        (LegTransition::Await(until), SettleResult::Stored) => exchanges.upkeep.expect(*until),
        (LegTransition::Suspend(_), SettleResult::Stored) => {
            tracing::warn!(message = %leg.message, port = %send_queue.port(), reason = outcome.said, "a message is suspended");
            if leg.leg.replies && leg.kind == MessageKind::Request {
                exchanges.reply_waiters.answer(leg.message, ReplyNotice::None);
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
