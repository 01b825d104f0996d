//! Delivery attempts: sends a leg through its port's transport, and commits the outcome with the reply.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{FutureExt, TryFutureExt};
use tocsin_delivery::http::call::{Call, Returned};
use tocsin_model::{
    exchange::{MessageKind, TrackPoint, Transport},
    time::Timestamp,
    trace_context::TraceContext,
};
use tocsin_store::spool::{Head, LegOutcome, LegTransition, NewMessage, WaitingLeg};

use crate::{
    commit::{Commit, CompletedAttempt, PendingMessage},
    compile::CompiledSendPort,
    core::Core,
    groups::WorkerGroup,
    message::{CONTENT_ENCODING, PipelineMessage},
    promote,
    running::RunningExchange,
    send_port::SendPort,
    track::BodyCapture,
};

/// Longest time that a message sent before its commit waits for its outcome, so that both are one commit. Longer than a
/// fast receiver takes, even when many callers share its processors.
const STORED_WITHIN: Duration = Duration::from_millis(20);

/// Timeout of an asynchronous reply if the definition no longer has one.
const REPLY_WITHIN: Duration = Duration::from_secs(86_400);

/// Reason of suspension after a panic during sending.
const BROKEN: &str = "internal error while sending the message; see the log";

/// Sends a leg once and commits the outcome. A message that is not stored yet is committed together with it, or before
/// it if the attempt takes longer.
pub(crate) async fn attempt(
    core: Arc<Core>,
    running: Arc<RunningExchange>,
    port: Arc<SendPort>,
    leg: Box<WaitingLeg>,
    unstored: Option<Box<PendingMessage>>,
) {
    let (compiled, begun_at) = (port.compiled(), tokio::time::Instant::now());
    let lost = unstored.as_ref().and_then(|pending| pending.lost.clone());
    let (place, since) = (core.spans.trace_of_attempt(&leg), core.now());
    let (result, unstored) = {
        // A panic suspends the message; the port goes on with the next.
        let delivery =
            AssertUnwindSafe(attempt_delivery(&core, &running, &compiled, &leg, place.as_deref())).catch_unwind();
        let mut delivery = pin!(delivery.unwrap_or_else(|_| AttemptResult::PipelineFailed(BROKEN.to_owned())));
        match unstored {
            None => (delivery.await, None),
            Some(pending) => tokio::select! {
                biased;
                result = &mut delivery => (result, Some(pending)),
                () = tokio::time::sleep(STORED_WITHIN) => {
                    Box::pin(core.commit(Commit::Message(pending))).await;
                    (delivery.await, None)
                }
            },
        }
    };
    core.poison_messages.clear(leg.message);
    let outcome = catch_unwind(AssertUnwindSafe(|| outcome(&core, &running, &compiled, &leg, result)));
    let outcome = outcome.unwrap_or_else(|_| {
        self::outcome(&core, &running, &compiled, &leg, AttemptResult::PipelineFailed(BROKEN.to_owned()))
    });
    core.spans.sent(&leg, place.as_deref(), since, &outcome);
    let reply = match &outcome.then {
        LegTransition::Done(Some(reply)) => Some(&**reply),
        _ => None,
    };
    let completed = Arc::new(CompletedAttempt {
        _reservation: core.reserve_legs(&running, reply),
        _in_progress: core.tasks.token(),
        running,
        port,
        leg,
        outcome: Arc::new(outcome),
        lost,
        begun_at,
        is_finished: AtomicBool::new(false),
    });
    let commit = match unstored {
        None => Commit::Attempt(completed),
        Some(pending) => Commit::Both(pending, completed),
    };
    Box::pin(core.commit(commit)).await;
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
    core: &Core,
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
    let (clock, workers) = (&core.parts.clock, core.groups.of(WorkerGroup::Send));
    let (before, after) = (!send_port.pipeline.is_empty(), !send_port.reply_pipeline.is_empty());
    let step_guard = match (before || after).then(|| core.poison_messages.enter(leg.message)).transpose() {
        Ok(step_guard) => step_guard.filter(|_| before),
        Err(why) => return AttemptResult::PipelineFailed(why),
    };
    let message = match send_port.pipeline.apply(message, &id, clock, workers).await {
        Ok(mut messages) => messages.pop().expect("send pipelines do not split"),
        Err(step_error) => return AttemptResult::PipelineFailed(step_error.to_string()),
    };
    drop(step_guard);
    let tracks = running.tracks();
    let row =
        tracks.has_routes().then(|| promote::row(&running.compiled.schema, &leg.from, leg.kind, head, leg.body.len()));
    let track = |point, content_type: &str, body: &Bytes| {
        let (exchange, message, port) = (&running.compiled.definition.name, leg.message, &leg.leg.port);
        let attempt = Some((leg.leg.number, leg.leg.attempts + 1));
        let captured = BodyCapture { exchange, message, point, port, attempt, content_type, body };
        core.track(running, &captured, row.as_ref(), clock.now());
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
    let _step_guard = match core.poison_messages.enter(leg.message) {
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
    core: &Core,
    running: &RunningExchange,
    send_port: &CompiledSendPort,
    leg: &WaitingLeg,
    result: AttemptResult,
) -> LegOutcome {
    let now = core.now();
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
            let (reply, correlation_error) = reply_message(core, running, send_port, leg, &reply, now);
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
    core: &Core,
    running: &RunningExchange,
    send_port: &CompiledSendPort,
    leg: &WaitingLeg,
    reply: &PipelineMessage,
    now: Timestamp,
) -> (NewMessage, Option<String>) {
    let body = reply.body.clone();
    let mut head = promote::head(&running.compiled.schema, reply);
    let correlation_error = correlation_error(send_port, &leg.head, &head);
    promote::inherit(&mut head, &leg.head);
    let port = &leg.leg.port;
    // The reply to a request goes to the waiting caller; any other is routed like every message.
    let routed = match leg.kind {
        MessageKind::Request => Ok(Vec::new()),
        MessageKind::OneWay | MessageKind::Reply => running.legs(port, MessageKind::Reply, &head, body.len()),
    };
    // A reply is stored in the partition of its request.
    let partition = core.parts.spool.partition_of(leg.message);
    let message = core.new_message(running, partition, port, MessageKind::Reply, body, now);
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
