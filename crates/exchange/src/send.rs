//! A leg leaves through its port's transport; what came of it is stored, with the reply, and then told to who waits.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tocsin_delivery::http::call::{Call, Returned};
use tocsin_model::{
    exchange::{FlowSide, MessageKind, ThrottleReason, TrackPoint, Transport},
    time::Timestamp,
    trace_context::TraceContext,
};
use tocsin_store::{
    error::StoreError,
    spool::{Head, LegOutcome, NewMessage, Settled, Then, WaitingLeg},
};

use crate::{
    Exchanges, Running,
    callers::Answer,
    compile::Way,
    groups::Group,
    lane::{Finished, Lane},
    pipeline::Parcel,
    promote,
    track::Seen,
};

/// How long an outcome that could not be stored waits to be stored again.
const STORE_AGAIN: Duration = Duration::from_secs(1);

const CONTENT_ENCODING: &str = "content-encoding";

/// Sends a leg once, and stores what came of it.
pub(crate) async fn send(exchanges: Arc<Exchanges>, lane: Arc<Lane>, leg: WaitingLeg) {
    let place = (leg.message, leg.leg.number);
    let key = leg.lane.clone();
    let is_over = leg.leg.replies && leg.expires_at.is_some_and(|at| at <= exchanges.parts.clock.now());
    // Upkeep ends what is over; it has no use for a leg that is under way.
    let begun_at = tokio::time::Instant::now();
    let outcome = if is_over { None } else { attempt(&exchanges, &lane, leg).await };
    let took = outcome.is_some().then(|| begun_at.elapsed());
    let retry_at = if let Some(Then::Retry(due_at)) = outcome { Some(due_at) } else { None };
    let is_suspended = matches!(outcome, Some(Then::Suspend(_)));
    lane.finished(Finished { place, key, retry_at, is_suspended, took });
}

/// Gives what follows.
async fn attempt(exchanges: &Arc<Exchanges>, lane: &Arc<Lane>, leg: WaitingLeg) -> Option<Then> {
    let way = lane.way();
    let running = exchanges.find(lane.exchange())?;
    let (place, since) = (exchanges.spans.leave(&leg), exchanges.parts.clock.now());
    let came = go(exchanges, &running, &way, &leg, place.as_deref()).await;
    let outcome = outcome(exchanges, &running, &way, &leg, came);
    exchanges.spans.sent(&leg, place.as_deref(), since, &outcome);
    let reply = match &outcome.then {
        Then::Done(Some(reply)) => std::slice::from_ref(&**reply),
        _ => &[],
    };
    let _announced = running.announce(reply);
    let settled = store(exchanges, &running, lane, &outcome).await?;
    let then = match &outcome.then {
        Then::Done(_) => Then::Done(None),
        Then::Retry(due_at) => Then::Retry(*due_at),
        Then::Suspend(_) => Then::Suspend(None),
    };
    tell(exchanges, &running, lane, &leg, outcome, settled).await;
    Some(then)
}

/// What came of an attempt.
enum Came {
    /// It did not leave: a step of the port's pipeline failed.
    Stuck(String),
    /// What the far side answered, or why it did not.
    Returned(Returned),
    /// The reply with its status, and what is wrong with it if a step failed that replies go through.
    Replied(u16, Parcel, Option<String>),
}

/// Makes of a message what leaves, sends it, and makes of the response what is stored.
async fn go(
    exchanges: &Exchanges,
    running: &Running,
    way: &Way,
    leg: &WaitingLeg,
    place: Option<&TraceContext>,
) -> Came {
    let head = &leg.head;
    let parcel = Parcel {
        content_type: head.content_type.clone(),
        headers: head.headers.clone(),
        properties: head.properties.clone(),
        body: leg.body.clone(),
        ..Parcel::default()
    };
    // Each leg has an id of its own, so that a far side behind two ports does not take the second for a repetition.
    let id = format!("{}-{}", leg.message, leg.leg.number);
    let (clock, workers) = (&exchanges.parts.clock, exchanges.groups.of(Group::Send));
    let parcel = match way.pipeline.apply(parcel, &id, clock, workers).await {
        Ok(mut parcels) => parcels.pop().expect("nothing is split on its way out"),
        Err(stuck) => return Came::Stuck(stuck.to_string()),
    };
    let tracks = running.tracks();
    let row = tracks.has_routes().then(|| promote::row(&running.compiled, &leg.from, leg.kind, head, leg.body.len()));
    let track = |point, content_type: &str, body: &Bytes| {
        let (exchange, message, port) = (&running.compiled.definition.name, leg.message, &leg.leg.port);
        let attempt = Some((leg.leg.number, leg.leg.attempts + 1));
        let seen = Seen { exchange, message, point, port, attempt, content_type, body };
        exchanges.track(running, &seen, row.as_ref(), clock.now());
    };
    track(TrackPoint::Sent, &parcel.content_type, &parcel.body);
    let reply = match call(way, leg, &id, &parcel, place).await {
        Returned::Taken(reply) if leg.leg.replies => reply,
        returned => return Came::Returned(returned),
    };
    let content_type = reply.headers.iter().find(|(name, _)| name == "content-type").map(|(_, value)| value.clone());
    let came = Parcel {
        content_type: content_type.unwrap_or_default(),
        headers: reply.headers,
        body: Bytes::from(reply.body),
        // What is said of a trace in a response is nobody's standard: the reply comes of this attempt.
        trace: place.map(|place| Box::new(place.clone())),
        ..Parcel::default()
    };
    track(TrackPoint::Replied, &came.content_type, &came.body);
    match way.reply_pipeline.apply(came.clone(), &id, clock, workers).await {
        Ok(mut parcels) => Came::Replied(reply.status, parcels.pop().expect("no reply is split"), None),
        Err(stuck) => Came::Replied(reply.status, came, Some(format!("the reply cannot be used: {stuck}"))),
    }
}

async fn call(way: &Way, leg: &WaitingLeg, id: &str, parcel: &Parcel, place: Option<&TraceContext>) -> Returned {
    let caller = match &way.backup {
        Some(backup) if leg.leg.on_backup => backup,
        _ => &way.first,
    };
    let mut about = vec![("tocsin-message", leg.message.to_string()), ("tocsin-kind", leg.kind.word().to_owned())];
    about.extend(leg.answers.map(|request| ("tocsin-answers", request.to_string())));
    let packed = parcel.headers.iter().find(|(name, _)| name == CONTENT_ENCODING);
    about.extend(packed.map(|(_, how)| (CONTENT_ENCODING, how.clone())));
    about.extend(place.iter().flat_map(|place| place.headers()));
    let property = |name: &str| promote::text_of(&leg.head, name);
    // The place of the caller is not that of our request, and one that is none goes no further.
    let is_sent_already = |name: &str| [CONTENT_ENCODING, "traceparent", "tracestate"].contains(&name);
    let headers: Vec<(String, String)> =
        parcel.headers.iter().filter(|(name, _)| !is_sent_already(name)).cloned().collect();
    caller
        .call(&Call {
            id,
            content_type: &parcel.content_type,
            headers: &headers,
            about: &about,
            body: &parcel.body,
            property: &property,
            signed: parcel.signed.as_ref().map(|(seconds, signature)| (*seconds, signature.as_str())),
        })
        .await
}

fn outcome(exchanges: &Exchanges, running: &Running, way: &Way, leg: &WaitingLeg, came: Came) -> LegOutcome {
    let now = exchanges.parts.clock.now();
    let attempts = leg.leg.attempts + 1;
    let outcome = |said: String, then| LegOutcome {
        message: leg.message,
        exchange: running.compiled.definition.name.clone(),
        leg: leg.leg.number,
        attempts,
        on_backup: leg.leg.on_backup,
        said,
        tried_at: now,
        then,
    };
    let returned = match came {
        Came::Stuck(reason) => return outcome(reason, Then::Suspend(None)),
        Came::Returned(returned) => returned,
        Came::Replied(status, reply, stuck) => {
            let (reply, objection) = reply_message(exchanges, running, way, leg, &reply, now);
            return match stuck.or(objection) {
                None => outcome(status.to_string(), Then::Done(Some(Box::new(reply)))),
                Some(objection) => outcome(objection, Then::Suspend(Some(Box::new(reply)))),
            };
        }
    };
    match returned {
        Returned::Taken(reply) => outcome(reply.status.to_string(), Then::Done(None)),
        Returned::Refused(reason) => on_backup_or(way, leg, now, outcome(reason.text, Then::Suspend(None))),
        Returned::Deferred { reason, retry_after } => {
            let schedule = &transport(way, leg.leg.on_backup).retry;
            match schedule.delay_after(attempts, retry_after, fastrand::f64()) {
                Some(delay) => outcome(reason.text, Then::Retry(now + delay)),
                None => on_backup_or(way, leg, now, outcome(reason.text, Then::Suspend(None))),
            }
        }
    }
}

fn transport(way: &Way, on_backup: bool) -> &Transport {
    match &way.definition.backup {
        Some(backup) if on_backup => backup,
        _ => &way.definition.transport,
    }
}

/// Where the first transport has failed for good, the backup begins.
fn on_backup_or(way: &Way, leg: &WaitingLeg, now: Timestamp, failed: LegOutcome) -> LegOutcome {
    match (&way.backup, leg.leg.on_backup) {
        (Some(_), false) => LegOutcome { attempts: 0, on_backup: true, then: Then::Retry(now), ..failed },
        _ => failed,
    }
}

/// The reply as a message, and what is wrong with it.
fn reply_message(
    exchanges: &Exchanges,
    running: &Running,
    way: &Way,
    leg: &WaitingLeg,
    reply: &Parcel,
    now: Timestamp,
) -> (NewMessage, Option<String>) {
    let body = reply.body.clone();
    let mut head = promote::head(&running.compiled, reply);
    let objection = objection(way, &leg.head, &head);
    promote::inherit(&mut head, &leg.head);
    let port = &leg.leg.port;
    // The reply to a request goes to who waits for it; any other is routed like every message.
    let routed = match leg.kind {
        MessageKind::Request => Ok(Vec::new()),
        MessageKind::OneWay | MessageKind::Reply => running.legs(port, MessageKind::Reply, &head, body.len()),
    };
    // What is said of the request is said in its partition.
    let partition = exchanges.parts.spool.partition_of(leg.message);
    let message = exchanges.new_message(running, partition, port, MessageKind::Reply, body, now);
    (NewMessage { answers: Some(leg.message), head, ..message }.routed(routed), objection)
}

/// What a reply does not have in common with its request although it must.
fn objection(way: &Way, request: &Head, reply: &Head) -> Option<String> {
    way.definition.correlate.iter().find_map(|name| {
        let (asked, said) = (promote::text_of(request, name.as_str()), promote::text_of(reply, name.as_str()));
        let shown = |text: Option<&String>| text.map_or("nothing".to_owned(), |text| format!("`{text}`"));
        (asked != said).then(|| {
            let (asked, said) = (shown(asked.as_ref()), shown(said.as_ref()));
            format!("the reply does not belong to the request: its `{name}` is {said}, not {asked}")
        })
    })
}

/// Stores an outcome, again and again while the store has no room. `None` if the store has failed for good: then a
/// restart finds the leg waiting, and sends it once more under its id.
async fn store(exchanges: &Exchanges, running: &Running, lane: &Lane, outcome: &LegOutcome) -> Option<Settled> {
    loop {
        match exchanges.parts.spool.settle(outcome.clone()).await {
            Ok(settled) => return Some(settled),
            Err(StoreError::Full(why)) if !exchanges.stopping.is_cancelled() => {
                tracing::warn!(message = %outcome.message, why, "an outcome waits to be stored");
                let now = exchanges.parts.clock.now();
                running.flow.hit(FlowSide::Delivery, Some(lane.port()), ThrottleReason::Disk, why, now);
                tokio::time::sleep(STORE_AGAIN).await;
            }
            Err(error) => {
                tracing::error!(message = %outcome.message, %error, "an outcome could not be stored");
                return None;
            }
        }
    }
}

/// Tells those who wait what was stored, and sends the reply on its ways.
async fn tell(
    exchanges: &Exchanges,
    running: &Running,
    lane: &Lane,
    leg: &WaitingLeg,
    outcome: LegOutcome,
    settled: Settled,
) {
    count(running, lane, &outcome, settled);
    if let Then::Done(Some(reply)) | Then::Suspend(Some(reply)) = &outcome.then {
        exchanges.let_be_found(running, reply.id, &reply.head, reply.accepted_at);
    }
    match (outcome.then, settled) {
        (Then::Done(Some(reply)), Settled::Answered) => {
            exchanges.callers.answer(leg.message, &Answer::Reply(reply.id, reply.head, reply.body));
        }
        (Then::Done(Some(reply)), Settled::Stored) => exchanges.begin(running, &reply),
        (Then::Done(Some(reply)), Settled::Late) => {
            tracing::warn!(message = %leg.message, reply = %reply.id, "a reply came too late");
        }
        (Then::Suspend(_), Settled::Stored) => {
            tracing::warn!(message = %leg.message, port = %lane.port(), reason = outcome.said, "a message is suspended");
            if leg.leg.replies && leg.kind == MessageKind::Request {
                exchanges.callers.answer(leg.message, &Answer::None);
            }
        }
        _ => {}
    }
}

fn count(running: &Running, lane: &Lane, outcome: &LegOutcome, settled: Settled) {
    let result = match (&outcome.then, settled) {
        (_, Settled::Gone) => "ended",
        (_, Settled::Late) => "late",
        (Then::Done(_), _) => "done",
        (Then::Retry(_), _) => "retry",
        (Then::Suspend(Some(_)), _) => "wrong",
        (Then::Suspend(None), _) => "suspended",
    };
    let labels = [("exchange", running.name()), ("port", lane.port().to_string()), ("result", result.to_owned())];
    metrics::counter!("exchange_sent_total", &labels).increment(1);
}
