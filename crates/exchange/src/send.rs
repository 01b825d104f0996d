//! A leg leaves through its port's transport; what came of it is stored, with the reply, and then told to who waits.

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
    spool::{Head, LegOutcome, NewMessage, Settled, Then, WaitingLeg},
};

use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::{
    Exchanges, Running,
    callers::Answer,
    compile::Way,
    follow::{Coming, Stored},
    groups::Group,
    lane::{Announced, Finished, Lane},
    pipeline::Parcel,
    promote,
    track::Seen,
};

/// How long an outcome that could not be stored waits to be stored again.
const STORE_AGAIN: Duration = Duration::from_secs(1);

/// How long a message that left before it is stored waits for what comes of it, to be stored together with that: longer than a
/// good far side takes, also where many callers share the processors with it.
const STORED_WITHIN: Duration = Duration::from_millis(20);

/// How long a later reply is waited for where the definition does not say it any more.
const REPLY_WITHIN: Duration = Duration::from_secs(86_400);

/// Why a message is suspended whose sending panicked.
const BROKEN: &str = "sending it broke; this is a fault of the platform, and the log says more";

const CONTENT_ENCODING: &str = "content-encoding";

/// Sends a leg once, and lets what came of it be stored.
pub(crate) async fn send(exchanges: Arc<Exchanges>, lane: Arc<Lane>, leg: Box<WaitingLeg>) {
    let is_over = leg.leg.replies && leg.expires_at.is_some_and(|at| at <= exchanges.parts.clock.now());
    // Upkeep ends what is over; it has no use for a leg that is under way.
    let running = exchanges.find(lane.exchange()).filter(|_| !is_over);
    match running {
        Some(running) => attempt(exchanges, running, lane, leg, None).await,
        None => lane.finished(finished(&leg)),
    }
}

/// The same with the only leg of a message that is not stored yet. It is stored together with what comes of it; or, if that
/// takes longer than a moment, meanwhile.
pub(crate) async fn send_first(exchanges: Arc<Exchanges>, lane: Arc<Lane>, leg: Box<WaitingLeg>, coming: Box<Coming>) {
    let running = coming.running.clone();
    attempt(exchanges, running, lane, leg, Some(coming)).await;
}

async fn attempt(
    exchanges: Arc<Exchanges>,
    running: Arc<Running>,
    lane: Arc<Lane>,
    leg: Box<WaitingLeg>,
    unstored: Option<Box<Coming>>,
) {
    let (way, begun_at) = (lane.way(), tokio::time::Instant::now());
    let lost = unstored.as_ref().and_then(|coming| coming.lost.clone());
    let (place, since) = (exchanges.spans.leave(&leg), exchanges.parts.clock.now());
    let (came, unstored) = {
        // A fault of the platform suspends the message; the port goes on with the next.
        let going = AssertUnwindSafe(go(&exchanges, &running, &way, &leg, place.as_deref())).catch_unwind();
        let mut going = pin!(going.unwrap_or_else(|_| Came::Stuck(BROKEN.to_owned())));
        match unstored {
            None => (going.await, None),
            Some(coming) => tokio::select! {
                biased;
                came = &mut going => (came, Some(coming)),
                () = tokio::time::sleep(STORED_WITHIN) => {
                    Box::pin(exchanges.store(coming)).await;
                    (going.await, None)
                }
            },
        }
    };
    exchanges.suspects.clear(leg.message);
    let outcome = catch_unwind(AssertUnwindSafe(|| outcome(&exchanges, &running, &way, &leg, came)))
        .unwrap_or_else(|_| self::outcome(&exchanges, &running, &way, &leg, Came::Stuck(BROKEN.to_owned())));
    exchanges.spans.sent(&leg, place.as_deref(), since, &outcome);
    let reply = match &outcome.then {
        Then::Done(Some(reply)) => std::slice::from_ref(&**reply),
        _ => &[],
    };
    let announced = running.announce(reply);
    let under_way = exchanges.tasks.token();
    let outcome = Arc::new(outcome);
    let tried = Arc::new(Tried {
        exchanges: Arc::downgrade(&exchanges),
        running,
        lane,
        leg,
        outcome,
        lost,
        begun_at,
        is_finished: AtomicBool::new(false),
        _announced: announced,
        _under_way: under_way,
    });
    match unstored {
        None => store(&exchanges, tried),
        Some(coming) => store_both(&exchanges, coming, tried),
    }
}

/// A leg that was tried, and what came of it. The writer may be the last to have it, and must not be the one who closes the
/// spool.
pub(crate) struct Tried {
    exchanges: Weak<Exchanges>,
    running: Arc<Running>,
    lane: Arc<Lane>,
    leg: Box<WaitingLeg>,
    outcome: Arc<LegOutcome>,
    /// Of one that left first: whether its message could not be stored.
    lost: Option<Arc<AtomicBool>>,
    begun_at: tokio::time::Instant,
    /// Whether the lane has its place back.
    is_finished: AtomicBool,
    /// Legs of the reply, which nobody else sends meanwhile.
    _announced: Announced,
    /// Whoever stops waits for it.
    _under_way: TaskTrackerToken,
}

/// Stores what came of a leg. What follows is done once that is durable.
fn store(exchanges: &Exchanges, tried: Arc<Tried>) {
    let (stored, outcome) = (exchanges.stored.clone(), tried.outcome.clone());
    let tell = move |settled| {
        // Nobody hears of it once the exchanges have stopped.
        let _ = stored.send(Stored::Tried(tried, settled));
    };
    exchanges.parts.spool.settle_then(outcome, tell);
}

/// The same with the message, which is not stored yet.
fn store_both(exchanges: &Exchanges, coming: Box<Coming>, tried: Arc<Tried>) {
    let stored = exchanges.stored.clone();
    let (taken, outcome) = (coming.taken.clone(), tried.outcome.clone());
    let tell = move |settled| {
        let _ = stored.send(Stored::Both(coming, tried, settled));
    };
    exchanges.parts.spool.accept_settled_then(taken, outcome, tell);
}

/// A leg that was under way and was not tried, or of which nobody knows.
fn finished(leg: &WaitingLeg) -> Finished {
    let place = (leg.message, leg.leg.number);
    Finished { place, key: leg.lane.clone(), retry_at: None, is_suspended: false, took: None }
}

impl Tried {
    /// Its message could not be stored, and neither could this. Its sender is told, and nobody was promised anything.
    pub fn forget(&self, error: &StoreError) {
        let Tried { lane, leg, outcome, .. } = self;
        let said = &outcome.said;
        lane.meters.count("unstored");
        tracing::error!(message = %leg.message, port = %lane.port(), said, %error, "a message left and could not be stored");
        self.finish(finished(leg));
    }

    /// Gives the lane its place back, once.
    fn finish(&self, finished: Finished) {
        if !self.is_finished.swap(true, Ordering::AcqRel) {
            self.lane.finished(finished);
        }
    }

    /// What was to follow broke: the next of the lane has its turn all the same.
    pub fn give_up(&self) {
        self.finish(finished(&self.leg));
    }

    /// Tells those who wait what was stored, and makes room for the next. While the store has no room it is stored again and
    /// again; if the store has failed for good, the leg keeps its place, since the spool would give it out again at once: a
    /// restart finds it waiting, and sends it once more under its id.
    pub fn follow(self: Arc<Self>, settled: Result<Settled, StoreError>) {
        let Some(exchanges) = self.exchanges.upgrade() else { return };
        let Tried { running, lane, leg, outcome, .. } = &*self;
        match settled {
            Ok(settled) => {
                let finished = match &outcome.then {
                    Then::Done(_) | Then::Await(_) => finished(leg),
                    Then::Retry(due_at) => Finished { retry_at: Some(*due_at), ..finished(leg) },
                    Then::Suspend(_) => Finished { is_suspended: true, ..finished(leg) },
                };
                tell(&exchanges, running, lane, leg, outcome, settled);
                self.finish(Finished { took: Some(self.begun_at.elapsed()), ..finished });
            }
            Err(error) if self.lost.as_ref().is_some_and(|lost| lost.load(Ordering::Acquire)) => self.forget(&error),
            Err(StoreError::Full(why)) if !exchanges.stopping.is_cancelled() => {
                tracing::warn!(message = %outcome.message, why, "an outcome waits to be stored");
                let now = exchanges.parts.clock.now();
                running.flow.hit(FlowSide::Delivery, Some(lane.port()), ThrottleReason::Disk, why, now);
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

/// What came of an attempt.
enum Came {
    /// It did not leave: a step of the port's pipeline failed.
    Stuck(String),
    /// The far side took it with this status, and its reply comes later.
    Taken(u16),
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
    // Each leg has an id of its own, so that a far side behind two ports does not take the second for a repetition; and what
    // an operator has made of a message is another one.
    let id = match head.edits {
        0 => format!("{}-{}", leg.message, leg.leg.number),
        edits => format!("{}-{}-e{edits}", leg.message, leg.leg.number),
    };
    let (clock, workers) = (&exchanges.parts.clock, exchanges.groups.of(Group::Send));
    let (before, after) = (!way.pipeline.is_empty(), !way.reply_pipeline.is_empty());
    let under_steps = match (before || after).then(|| exchanges.suspects.enter(leg.message)).transpose() {
        Ok(under_steps) => under_steps.filter(|_| before),
        Err(why) => return Came::Stuck(why),
    };
    let parcel = match way.pipeline.apply(parcel, &id, clock, workers).await {
        Ok(mut parcels) => parcels.pop().expect("nothing is split on its way out"),
        Err(stuck) => return Came::Stuck(stuck.to_string()),
    };
    drop(under_steps);
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
        Returned::Taken(reply) if leg.leg.through.is_some() => return Came::Taken(reply.status),
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
    if way.reply_pipeline.is_empty() {
        return Came::Replied(reply.status, came, None);
    }
    let _under_steps = match exchanges.suspects.enter(leg.message) {
        Ok(under_steps) => under_steps,
        Err(why) => return Came::Replied(reply.status, came, Some(why)),
    };
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
        is_first: leg.leg.tried_at.is_none(),
        on_backup: leg.leg.on_backup,
        said,
        tried_at: now,
        then,
    };
    let returned = match came {
        Came::Taken(status) => {
            let within = way.definition.later.as_ref().map_or(REPLY_WITHIN, |later| later.within);
            return outcome(status.to_string(), Then::Await(now + within));
        }
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

/// Tells those who wait what was stored, and sends the reply on its ways.
fn tell(
    exchanges: &Exchanges,
    running: &Running,
    lane: &Lane,
    leg: &WaitingLeg,
    outcome: &LegOutcome,
    settled: Settled,
) {
    lane.meters.count(result(outcome, settled));
    if let Then::Done(Some(reply)) | Then::Suspend(Some(reply)) = &outcome.then {
        exchanges.let_be_found(running, reply.id, &reply.head, reply.accepted_at);
    }
    match (&outcome.then, settled) {
        (Then::Done(Some(reply)), Settled::Answered) => {
            let NewMessage { id, head, body, .. } = &**reply;
            exchanges.callers.answer(leg.message, Answer::Reply(*id, head.clone(), body.clone()));
        }
        (Then::Done(Some(reply)), Settled::Stored) => exchanges.begin(running, reply),
        (Then::Done(Some(reply)), Settled::Late) => {
            tracing::warn!(message = %leg.message, reply = %reply.id, "a reply came too late");
        }
        (Then::Await(until), Settled::Stored) => exchanges.upkeep.expect(*until),
        (Then::Suspend(_), Settled::Stored) => {
            tracing::warn!(message = %leg.message, port = %lane.port(), reason = outcome.said, "a message is suspended");
            if leg.leg.replies && leg.kind == MessageKind::Request {
                exchanges.callers.answer(leg.message, Answer::None);
            }
        }
        _ => {}
    }
}

/// The word for what came of a leg.
fn result(outcome: &LegOutcome, settled: Settled) -> &'static str {
    match (&outcome.then, settled) {
        (Then::Await(_), _) => "awaiting",
        (_, Settled::Gone) => "ended",
        (_, Settled::Late) => "late",
        (Then::Done(_), _) => "done",
        (Then::Retry(_), _) => "retry",
        (Then::Suspend(Some(_)), _) => "wrong",
        (Then::Suspend(None), _) => "suspended",
    }
}
