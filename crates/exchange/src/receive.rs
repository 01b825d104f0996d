//! A message comes through a receive port, is stored with its legs, and its caller waits for the reply.

use std::{borrow::Cow, collections::BTreeSet, sync::Arc, time::Duration};

use bytes::Bytes;
use ring::digest;
use tocsin_model::{
    exchange::{MessageKind, Mode, PortState, ReceivePort, ThrottleReason, TrackPoint},
    field::Row,
    id::{MessageId, Name},
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    spool::{
        Accepted, Beside, Ending, Gather, Head, IdempotencyKey, Leg, LegState, NewLeg, NewMessage, PartitionNumber,
        StoredMessage, TakenMessage, WaitingLeg,
    },
};
use tokio::{sync::oneshot, time::Instant};

use crate::{
    Exchanges, Running,
    callers::Answer,
    flow::{self, InFlight},
    follow::{Coming, Stored},
    groups::Group,
    lane::Lane,
    later::Routed,
    pipeline::Parcel,
    promote, send,
    track::Seen,
};

/// Longest idempotency key.
pub const KEY_BYTES_MAX: usize = 255;

/// Most replies that follow each other, each routed like a message.
const HOPS_MAX: u32 = 16;

/// A message as it comes.
#[derive(Debug, Clone, Default)]
pub struct Incoming {
    /// The media type of the body; empty if it is not known.
    pub content_type: String,
    /// Its headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Bytes,
    /// What makes a repetition known as such.
    pub key: Option<String>,
    /// The API key that sends it, which alone may ask for its reply; empty if it comes in another way.
    pub sender: Box<str>,
    /// How long its caller would wait, at most.
    pub wait: Option<Duration>,
}

/// What a caller is told.
#[derive(Debug, Clone, PartialEq)]
pub struct Received {
    /// The message.
    pub id: MessageId,
    /// Whether its key came before, so that it is the message of then.
    pub duplicate: bool,
    /// What came of it so far.
    pub course: Course,
}

/// What came of a message so far.
#[derive(Debug, Clone, PartialEq)]
pub enum Course {
    /// It is stored, and nobody waits for an answer.
    Stored,
    /// It is answered.
    Replied {
        /// The reply.
        reply: MessageId,
        /// Its head.
        head: Head,
        /// Its body.
        body: Bytes,
    },
    /// Its reply is not there yet.
    Pending,
    /// It waits for an operator, for this reason. Resumed, it may be answered yet.
    Suspended(String),
    /// Nobody answered in time.
    Expired,
    /// An operator ended it.
    Ended,
}

/// Why a message was not taken; nothing was stored.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// There is no such exchange, or it has no such receive port.
    #[error("{0} does not exist")]
    Missing(String),
    /// The port takes nothing at present.
    #[error("the receive port `{0}` is switched off")]
    Disabled(Name),
    /// It is not its time.
    #[error("the receive port `{port}` opens at {opens_at}, by its service window")]
    Closed {
        /// The port.
        port: Name,
        /// When it opens.
        opens_at: Timestamp,
        /// How long that is.
        opens_in: Duration,
    },
    /// The body is larger than the port takes.
    #[error("the body is larger than {0} bytes")]
    TooLarge(usize),
    /// The key is not one.
    #[error("an idempotency key has 1 to 255 characters")]
    Key,
    /// The key came before with another body, which became this message.
    #[error("the idempotency key came before with another body, which became {0}")]
    KeyReused(MessageId),
    /// A bound is reached: the same message may be taken later.
    #[error("{reason}")]
    Full {
        /// Why, as one word.
        code: ThrottleReason,
        /// Why, in words.
        reason: String,
        /// When it may be taken.
        retry_after: Duration,
    },
    /// The store does not answer.
    #[error(transparent)]
    Store(StoreError),
}

/// A new message that is with the spool, and what is told to its sender when.
struct Sent {
    id: MessageId,
    mode: Mode,
    /// When it came.
    since: Timestamp,
    /// How long its sender waits for the reply.
    wait: Duration,
    /// Why it goes nowhere, if it does not.
    suspended: Option<String>,
    /// What routes see of it, if they may be tracked.
    row: Option<Row>,
    /// The reply, if there may be one.
    answered: Option<oneshot::Receiver<Answer>>,
    /// Whether it is stored.
    accepted: oneshot::Receiver<Result<Accepted, StoreError>>,
    _in_flight: InFlight,
}

/// What the steps of a port made of a message.
pub(crate) enum Worked {
    /// A message, and where it goes, or why nowhere.
    One(Head, Bytes, Routed),
    /// Several, each with its legs.
    Parts(Vec<NewMessage>),
    /// A message, and with which others it becomes one.
    Gathered(Head, Bytes, Gather),
}

impl Running {
    /// A receive port that takes messages.
    ///
    /// # Errors
    /// There is none of this name, or it is switched off.
    pub fn receive_port(&self, port: &Name) -> Result<&ReceivePort, ReceiveError> {
        let definition = &self.compiled.definition;
        let missing = || ReceiveError::Missing(format!("the receive port `{port}` of `{}`", definition.name));
        let found = definition.receive.get(port).ok_or_else(missing)?;
        if found.enabled { Ok(found) } else { Err(ReceiveError::Disabled(port.clone())) }
    }

    /// The legs of a message, or why it has none. A request needs one that brings an answer.
    pub(crate) fn legs(
        &self,
        port: &Name,
        kind: MessageKind,
        head: &Head,
        bytes: usize,
    ) -> Result<Vec<NewLeg>, String> {
        if head.hops > HOPS_MAX {
            let hint = "its routes lead replies round; `message.kind != 'reply'` in a route keeps them out";
            return Err(format!("{HOPS_MAX} replies came before it, each to the one before: {hint}"));
        }
        let row = promote::row(&self.compiled, port, kind, head, bytes);
        let lanes = self.compiled.routes.targets(&row).into_iter().filter_map(|target| self.lanes.get(target));
        let open = lanes.filter(|lane| lane.state() != PortState::Off);
        let legs = open.map(|lane| lane.new_leg(head)).collect::<Result<Vec<NewLeg>, String>>()?;
        let closed = |port: &Name| match self.lanes.get(port).map(|lane| lane.state()) {
            Some(PortState::Off) => Some(format!("its send port `{port}` is off")),
            None => Some(format!("its send port `{port}` does not exist")),
            Some(PortState::Hold | PortState::Active) => {
                let replies = self.compiled.definition.send.get(port).is_some_and(|port| port.mode == Mode::Request);
                (!replies).then(|| format!("its send port `{port}` does not reply"))
            }
        };
        let nearest = || match self.compiled.routes.nearest(&row, &self.compiled.fields, closed) {
            nearest if nearest.is_empty() => "the exchange has no routes".to_owned(),
            nearest => format!("nearest: {}", nearest.join("; ")),
        };
        if legs.is_empty() {
            return Err(format!("no route leads it to a send port that is not off; {}", nearest()));
        }
        if kind == MessageKind::Request && !legs.iter().any(|leg| leg.replies) {
            return Err(format!("no route leads this request to a send port that replies; {}", nearest()));
        }
        Ok(legs)
    }
}

impl Exchanges {
    /// Takes a message through a receive port. When this returns it is stored, and so is whatever the caller is told.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn receive(
        self: &Arc<Self>,
        running: &Arc<Running>,
        port: &Name,
        incoming: Incoming,
    ) -> Result<Received, ReceiveError> {
        let sender = incoming.sender.clone();
        let again = incoming.key.clone().map(|key| (key, incoming.body.clone(), incoming.wait));
        // What is at hand until a message is stored is large, and senders wait much longer behind that: it goes first.
        let received = match Box::pin(self.send_in(running, port, incoming)).await {
            Ok(sent) => self.told_of(running, port, sent).await,
            Err(refused) => Err(refused),
        };
        match (received, again) {
            // Who asks for the second time takes no room, and what came of the first may be there.
            (Err(refused @ (ReceiveError::Full { .. } | ReceiveError::Closed { .. })), Some((key, body, wait))) => {
                let key = idempotency_key(key, &body);
                let known = Box::pin(self.receive_known(running, port, &sender, key, wait)).await;
                known.unwrap_or(Err(refused))
            }
            (received, _) => received,
        }
    }

    /// What a message becomes whose key came before; `None`: it has not.
    async fn receive_known(
        &self,
        running: &Running,
        port: &Name,
        sender: &str,
        key: IdempotencyKey,
        wait: Option<Duration>,
    ) -> Option<Result<Received, ReceiveError>> {
        let definition = running.receive_port(port).ok()?;
        let wait = wait.map_or(definition.wait, |wait| wait.min(definition.wait));
        match self.parts.spool.known(&running.compiled.definition.name, port, sender, &key).await {
            Ok(None) => None,
            Ok(Some(Accepted::Reused(known))) => Some(Err(ReceiveError::KeyReused(known))),
            Ok(Some(Accepted::Known(known))) => {
                Some(self.repeated(running, port, definition.mode, known, wait, None).await)
            }
            Ok(Some(Accepted::New)) => unreachable!("it is looked up, not stored"),
            Err(error) => Some(Err(ReceiveError::Store(error))),
        }
    }

    /// What the sender of a message that came before is told.
    async fn repeated(
        &self,
        running: &Running,
        port: &Name,
        mode: Mode,
        known: MessageId,
        wait: Duration,
        row: Option<&Row>,
    ) -> Result<Received, ReceiveError> {
        if let Some(meters) = running.meters.get(port) {
            meters.duplicate.increment(1);
        }
        let course = match mode {
            Mode::OneWay => Course::Stored,
            Mode::Request => {
                let course = self.wait_for(known, wait).await.map_err(ReceiveError::Store)?;
                let course = course.unwrap_or(Course::Pending);
                self.track_returned(running, port, known, row, &course);
                course
            }
        };
        Ok(Received { id: known, duplicate: true, course })
    }

    /// Gives a new message to the spool.
    async fn send_in(
        self: &Arc<Self>,
        running: &Arc<Running>,
        port: &Name,
        incoming: Incoming,
    ) -> Result<Sent, ReceiveError> {
        let definition = running.receive_port(port)?;
        check(definition, &incoming)?;
        let now = self.parts.clock.now();
        check_window(port, definition, now)?;
        let in_flight = self.let_in(running, port, now)?;
        let wait = incoming.wait.map_or(definition.wait, |wait| wait.min(definition.wait));
        let tracks = running.tracks();
        let is_tracked = tracks.of_receive(port).is_some() || tracks.has_routes();
        let raw = is_tracked.then(|| (incoming.content_type.clone(), incoming.body.clone()));
        let headers = self.spans.0.is_on().then(|| incoming.headers.clone());
        let partition = self.partition_for(running, port, incoming.key.as_deref()).await;
        let partition = partition.map_err(ReceiveError::Store)?;
        let taken = self.take_in(running, partition, (port, definition), incoming, now).await;
        let messages = std::iter::once(&taken.whole).chain(taken.parts.iter().flatten());
        let ports: BTreeSet<&Name> = messages.flat_map(|message| &message.legs).map(|leg| &leg.port).collect();
        self.check_queues(running, ports.into_iter(), now).map_err(flow::refuse)?;
        let (id, kind) = (taken.whole.id, taken.whole.kind);
        let suspended = taken.whole.suspended.clone();
        let headers = headers.filter(|_| taken.whole.head.trace.is_some());
        let row = tracks.has_routes().then(|| {
            let NewMessage { port, kind, head, body, .. } = &taken.whole;
            promote::row(&running.compiled, port, *kind, head, body.len())
        });
        let waits = kind == MessageKind::Request && suspended.is_none();
        // Before it is stored: the reply may be quicker than this task.
        let answered = waits.then(|| self.callers.wait_for(id));
        let (sender, accepted) = oneshot::channel();
        let first = self.leaves_first(running, definition, &taken, wait);
        let parts = taken.parts.as_deref().unwrap_or(std::slice::from_ref(&taken.whole));
        let announced = running.announce(if first.is_some() { &[] } else { parts });
        let coming = Box::new(Coming {
            exchanges: Arc::downgrade(self),
            callers: self.callers.clone(),
            running: running.clone(),
            port: port.clone(),
            taken: Arc::new(taken),
            since: now,
            headers,
            seen: raw.map(|(content_type, body)| (content_type, body, row.clone())),
            sender: Some(sender),
            is_new: false,
            lost: first.is_some().then(Arc::default),
            _announced: announced,
            _under_way: self.tasks.token(),
        });
        match first {
            Some((lane, leg)) => {
                if let Some(meters) = running.meters.get(port) {
                    meters.left_first.increment(1);
                }
                self.tasks.spawn(send::send_first(self.clone(), lane, leg, coming));
            }
            None => self.store(coming).await,
        }
        Ok(Sent {
            id,
            mode: definition.mode,
            since: now,
            wait,
            suspended,
            row,
            answered,
            accepted,
            _in_flight: in_flight,
        })
    }

    /// What the sender of a message is told that is with the spool.
    async fn told_of(&self, running: &Running, port: &Name, sent: Sent) -> Result<Received, ReceiveError> {
        let Sent { id, mode, since, wait, suspended, row, answered, accepted, _in_flight } = sent;
        let (until, waits) = (Instant::now() + wait, answered.is_some());
        let replied = match answered {
            Some(answered) => tokio::time::timeout_at(until, answered).await.ok().and_then(Result::ok),
            None => None,
        };
        let replied = match replied {
            Some(Answer::Reply(reply, head, body)) => Some(Course::Replied { reply, head, body }),
            Some(Answer::None) | None => None,
        };
        // What was replied to is stored.
        let accepted = match &replied {
            Some(_) => Accepted::New,
            None => {
                let accepted = accepted.await.unwrap_or_else(|gone| Err(StoreError::unavailable(gone)));
                accepted.map_err(|error| refused(error, running, since))?
            }
        };
        match accepted {
            Accepted::New if waits => {
                let course = match replied {
                    Some(replied) => replied,
                    // One of its send ports may have none, and another yet.
                    None => Box::pin(self.course_without_reply(id, until)).await?,
                };
                self.track_returned(running, port, id, row.as_ref(), &course);
                if let Some(meters) = running.meters.get(port) {
                    meters.wait.record(self.parts.clock.now().since(since));
                }
                Ok(Received { id, duplicate: false, course })
            }
            Accepted::New => {
                Ok(Received { id, duplicate: false, course: suspended.map_or(Course::Stored, Course::Suspended) })
            }
            Accepted::Known(known) => Box::pin(self.repeated(running, port, mode, known, wait, row.as_ref())).await,
            Accepted::Reused(known) => Err(ReceiveError::KeyReused(known)),
        }
    }

    /// The leg of a message that may leave before the message is stored, and its place is taken: somebody waits for the reply,
    /// is promised nothing until then, and has no key by which to ask again.
    fn leaves_first(
        &self,
        running: &Running,
        port: &ReceivePort,
        taken: &TakenMessage,
        wait: Duration,
    ) -> Option<(Arc<Lane>, Box<WaitingLeg>)> {
        let TakenMessage { whole, parts: None, gather: None } = taken else { return None };
        let [leg] = &whole.legs[..] else { return None };
        let may = !port.store_first && whole.key.is_none() && !wait.is_zero() && leg.replies && leg.awaits.is_none();
        if !may
            || whole.kind != MessageKind::Request
            || self.parts.spool.room().is_err()
            || !self.parts.spool.is_taken(whole.id)
        {
            return None;
        }
        let lane = running.lanes.get(&leg.port)?;
        lane.claim((whole.id, 0)).then(|| (lane.clone(), Box::new(waiting_leg(whole, 0, leg))))
    }

    /// Gives a message to the spool. What follows does not wait for its sender.
    pub(crate) async fn store(&self, coming: Box<Coming>) {
        let (taken, stored) = (coming.taken.clone(), self.stored.clone());
        let tell = move |accepted| {
            // Nobody hears of it once the exchanges have stopped: the next start finds the message.
            let _ = stored.send(Stored::Taken(coming, accepted));
        };
        self.parts.spool.accept_then(taken, tell).await;
    }

    /// Keeps the body of a reply that a caller gets, if it is tracked.
    fn track_returned(&self, running: &Running, port: &Name, message: MessageId, row: Option<&Row>, course: &Course) {
        if let Course::Replied { head, body, .. } = course {
            let (exchange, content_type) = (&running.compiled.definition.name, &*head.content_type);
            let point = TrackPoint::Returned;
            let seen = Seen { exchange, message, point, port, attempt: None, content_type, body };
            self.track(running, &seen, row, self.parts.clock.now());
        }
    }

    /// What came of a request whose caller asks for it by its address, as [`Exchanges::wait_for`] tells it.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn reply_to(&self, id: MessageId, wait: Duration) -> Result<Option<Course>, StoreError> {
        let course = self.wait_for(id, wait).await?;
        if let Some(replied @ Course::Replied { .. }) = &course
            && let Some(request) = self.parts.spool.message(id).await?
            && let Some(running) = self.find(&request.exchange)
        {
            let bytes = usize::try_from(request.bytes).unwrap_or(usize::MAX);
            let row = promote::row(&running.compiled, &request.port, request.kind, &request.head, bytes);
            self.track_returned(&running, &request.port, id, Some(&row), replied);
        }
        Ok(course)
    }

    /// What came of a request, waiting for up to `wait` while that is not known. `None` if there is no such message.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn wait_for(&self, id: MessageId, wait: Duration) -> Result<Option<Course>, StoreError> {
        let course = self.look_and_wait(id, Instant::now() + wait).await;
        self.callers.forget(id);
        course
    }

    async fn look_and_wait(&self, id: MessageId, until: Instant) -> Result<Option<Course>, StoreError> {
        loop {
            // Waiting begins before looking: what comes between is not missed.
            let answered = self.callers.wait_for(id);
            let Some(course) = self.present_course(id).await? else { return Ok(None) };
            if course != Course::Pending || until <= Instant::now() {
                return Ok(Some(course));
            }
            match tokio::time::timeout_at(until, answered).await {
                Ok(Ok(Answer::Reply(reply, head, body))) => return Ok(Some(Course::Replied { reply, head, body })),
                // One of its send ports has none, and others may.
                Ok(Ok(Answer::None)) => {}
                _ => return self.present_course(id).await,
            }
        }
    }

    async fn present_course(&self, id: MessageId) -> Result<Option<Course>, StoreError> {
        match self.parts.spool.message(id).await? {
            Some(stored) => Ok(Some(self.course(&stored).await?)),
            None => Ok(None),
        }
    }

    /// What came of a request whose reply did not come in time.
    async fn course_without_reply(&self, id: MessageId, until: Instant) -> Result<Course, ReceiveError> {
        let course = self.look_and_wait(id, until).await.map_err(ReceiveError::Store);
        self.callers.forget(id);
        Ok(course?.unwrap_or(Course::Ended))
    }

    async fn course(&self, stored: &StoredMessage) -> Result<Course, StoreError> {
        if stored.kind != MessageKind::Request {
            return Ok(Course::Stored);
        }
        if let (Some(Ending::Answered), Some(reply)) = (stored.ending, stored.reply)
            && let Some(found) = self.parts.spool.message(reply).await?
            && let Some(body) = self.parts.spool.body(reply).await?
        {
            return Ok(Course::Replied { reply, head: found.head, body });
        }
        let hopeful = |leg: &&Leg| leg.replies && matches!(leg.state, LegState::Waiting | LegState::Awaiting);
        let suspended = |leg: &&Leg| leg.replies && leg.state == LegState::Suspended;
        Ok(match (stored.ending, &stored.suspended) {
            (Some(Ending::Expired), _) => Course::Expired,
            (Some(_), _) => Course::Ended,
            (None, Some(reason)) => Course::Suspended(reason.clone()),
            (None, None) => match stored.legs.iter().find(suspended) {
                Some(leg) if !stored.legs.iter().any(|leg| hopeful(&leg)) => {
                    Course::Suspended(format!("{}: {}", leg.port, leg.said.as_deref().unwrap_or_default()))
                }
                _ => Course::Pending,
            },
        })
    }

    /// Does the steps of the port to a message, and routes what comes of it.
    pub(crate) async fn take_in(
        &self,
        running: &Running,
        partition: PartitionNumber,
        (port, definition): (&Name, &ReceivePort),
        incoming: Incoming,
        now: Timestamp,
    ) -> TakenMessage {
        let kind = match definition.mode {
            Mode::OneWay => MessageKind::OneWay,
            Mode::Request => MessageKind::Request,
        };
        let Incoming { content_type, headers, body, key, sender, .. } = incoming;
        let whole = self.new_message(running, partition, port, kind, body.clone(), now);
        let trace = self.spans.enter(&headers, whole.id);
        let raw = Parcel { content_type, headers, body, trace, ..Parcel::default() };
        let key = key.map(|key| idempotency_key(key, &raw.body));
        let expires_at = (kind == MessageKind::Request).then(|| now + definition.expires_after);
        let whole = NewMessage { key, sender, expires_at, ..whole };
        match self.work(running, &whole, &raw).await {
            Ok(Worked::One(head, body, routed)) => {
                let whole = NewMessage { head, body, ..whole }.answering(routed.answers).routed(routed.legs);
                TakenMessage::from(whole)
            }
            Ok(Worked::Parts(parts)) => {
                let head = promote::head(&running.compiled, &raw);
                TakenMessage { whole: NewMessage { head, ..whole }, parts: Some(parts), gather: None }
            }
            Ok(Worked::Gathered(head, body, gather)) => {
                TakenMessage { whole: NewMessage { head, body, ..whole }, parts: None, gather: Some(gather) }
            }
            Err(stuck) => as_it_came(running, whole, &raw, stuck),
        }
    }

    /// The partition for a message that comes through a port: where it may meet others that it is to be one with, or itself.
    pub(crate) async fn partition_for(
        &self,
        running: &Running,
        port: &Name,
        key: Option<&str>,
    ) -> Result<PartitionNumber, StoreError> {
        let gathers = running.compiled.receive.get(port).is_some_and(|pipeline| pipeline.assembler.is_some());
        let together = &running.compiled.together;
        let beside = match key {
            _ if !together.is_empty() => Beside::Ports(together),
            _ if gathers => Beside::Port,
            Some(key) => Beside::Key(key),
            None => Beside::Nothing,
        };
        self.parts.spool.partition_for(&running.compiled.definition.name, port, beside).await
    }

    /// A message that comes now, before anything is known of it but its body.
    pub(crate) fn new_message(
        &self,
        running: &Running,
        partition: PartitionNumber,
        port: &Name,
        kind: MessageKind,
        body: Bytes,
        now: Timestamp,
    ) -> NewMessage {
        NewMessage {
            id: self.parts.spool.next_id(partition),
            exchange: running.compiled.definition.name.clone(),
            port: port.clone(),
            kind,
            answers: None,
            settles: None,
            part_of: None,
            key: None,
            sender: Box::default(),
            head: Head::default(),
            body,
            legs: Vec::new(),
            suspended: None,
            accepted_at: now,
            expires_at: None,
            kept: running.compiled.definition.retention,
        }
    }

    /// What the steps of its port make of a message, with its legs; or which step failed, and why.
    pub(crate) async fn work(&self, running: &Running, whole: &NewMessage, raw: &Parcel) -> Result<Worked, String> {
        let gone =
            || format!("the receive port `{}`, whose steps it has not passed, does not exist any more", whole.port);
        let pipeline = running.compiled.receive.get(&whole.port).ok_or_else(gone)?;
        let mut parcels = match pipeline.is_empty() {
            true => vec![Cow::Borrowed(raw)],
            false => {
                let (id, workers) = (whole.id.to_string(), self.groups.of(Group::Receive));
                let worked = pipeline.apply(raw.clone(), &id, &self.parts.clock, workers).await;
                let parcels = worked.map_err(|stuck| {
                    let (exchange, port) = (running.name(), whole.port.to_string());
                    metrics::counter!("exchange_stuck_total", "exchange" => exchange, "port" => port).increment(1);
                    stuck.to_string()
                })?;
                parcels.into_iter().map(Cow::Owned).collect()
            }
        };
        let _worker = self.groups.of(Group::Route).enter().await;
        if let Some(assembler) = &pipeline.assembler {
            let parcel = parcels.pop().expect("nothing is split before messages are gathered");
            let head = promote::head(&running.compiled, &parcel);
            let row = promote::row(&running.compiled, &whole.port, whole.kind, &head, parcel.body.len());
            let gather = assembler.gather(&head, &row);
            return Ok(Worked::Gathered(head, parcel.body.clone(), gather));
        }
        let partition = self.parts.spool.partition_of(whole.id);
        let finish = async |parcel: Cow<'_, Parcel>| {
            let mut head = promote::head(&running.compiled, &parcel);
            let through = (&whole.port, whole.kind);
            let routed = self.route(running, through, &mut head, parcel.body.len(), partition).await;
            // Resumed, it is routed when the store answers.
            let unknown =
                |error| Routed { legs: Err(format!("what waits for it cannot be read: {error}")), answers: None };
            let mut routed = routed.unwrap_or_else(unknown);
            if let (Err(reason), Some(unread)) = (&mut routed.legs, promote::unreadable(&running.compiled, &parcel)) {
                *reason = format!("its properties cannot be read: {unread}; {reason}");
            }
            (head, parcel.body.clone(), routed)
        };
        if !pipeline.splits {
            let (head, body, routed) = finish(parcels.pop().expect("one stays one unless it is split")).await;
            return Ok(Worked::One(head, body, routed));
        }
        let mut parts = Vec::with_capacity(parcels.len());
        for parcel in parcels {
            let (head, body, routed) = finish(parcel).await;
            let (id, part_of) = (self.parts.spool.next_id(partition), Some(whole.id));
            let part = NewMessage { id, part_of, key: None, head, body, ..whole.clone() };
            parts.push(part.answering(routed.answers).routed(routed.legs));
        }
        Ok(Worked::Parts(parts))
    }

    /// Sends a stored message on its ways.
    pub(crate) fn begin(&self, running: &Running, stored: &NewMessage) {
        if let Some(reason) = &stored.suspended {
            if !stored.head.raw {
                metrics::counter!("exchange_unroutable_total", "exchange" => running.name()).increment(1);
            }
            tracing::warn!(message = %stored.id, exchange = %stored.exchange, reason, "a message is suspended");
        }
        self.expect_expiry(stored);
        if let (Some(_), Some(request)) = (stored.settles, stored.answers) {
            // Whoever waits finds in the spool whether it came in time.
            stored.legs.iter().filter_map(|leg| running.lanes.get(&leg.port)).for_each(Lane::look);
            return self.callers.answer(request, Answer::None);
        }
        for (number, leg) in stored.legs.iter().enumerate() {
            let Some(lane) = running.lanes.get(&leg.port) else { continue };
            lane.push(waiting_leg(stored, u32::try_from(number).expect("legs are few"), leg));
        }
    }

    /// A request that nobody answers is over then.
    pub(crate) fn expect_expiry(&self, stored: &NewMessage) {
        if let Some(expires_at) = stored.expires_at {
            self.upkeep.expect(expires_at);
        }
    }
}

fn waiting_leg(message: &NewMessage, number: u32, leg: &NewLeg) -> WaitingLeg {
    WaitingLeg {
        message: message.id,
        from: message.port.clone(),
        kind: message.kind,
        answers: message.answers,
        head: message.head.clone(),
        body: message.body.clone(),
        accepted_at: message.accepted_at,
        expires_at: message.expires_at,
        lane: leg.lane.clone(),
        rank: leg.ahead.map(|ahead| message.accepted_at - ahead),
        leg: Leg {
            number,
            port: leg.port.clone(),
            replies: leg.replies,
            through: leg.awaits.as_ref().map(|awaits| awaits.through.clone()),
            state: LegState::Waiting,
            attempts: 0,
            on_backup: false,
            due_at: message.accepted_at,
            tried_at: None,
            said: None,
        },
    }
}

impl Running {
    pub(crate) fn name(&self) -> String {
        self.compiled.definition.name.to_string()
    }
}

/// A message that waits for an operator, as it came.
pub(crate) fn as_it_came(running: &Running, whole: NewMessage, raw: &Parcel, reason: String) -> TakenMessage {
    let head = Head { raw: true, ..promote::head(&running.compiled, raw) };
    TakenMessage { whole: NewMessage { head, suspended: Some(reason), ..whole }, parts: None, gather: None }
}

fn check(port: &ReceivePort, incoming: &Incoming) -> Result<(), ReceiveError> {
    if incoming.body.len() > port.body_bytes_max as usize {
        return Err(ReceiveError::TooLarge(port.body_bytes_max as usize));
    }
    if incoming.key.as_ref().is_some_and(|key| !(1..=KEY_BYTES_MAX).contains(&key.len())) {
        return Err(ReceiveError::Key);
    }
    Ok(())
}

fn idempotency_key(key: String, body: &[u8]) -> IdempotencyKey {
    let digest = digest::digest(&digest::SHA256, body);
    IdempotencyKey { key, digest: digest.as_ref().try_into().expect("SHA-256 has 32 bytes") }
}

fn check_window(port: &Name, definition: &ReceivePort, now: Timestamp) -> Result<(), ReceiveError> {
    let Some(opens_at) = definition.window.as_ref().and_then(|window| window.opens(now)) else { return Ok(()) };
    metrics::counter!("exchange_refused_total", "reason" => "service_window").increment(1);
    Err(ReceiveError::Closed { port: port.clone(), opens_at, opens_in: opens_at.since(now) })
}

fn refused(error: StoreError, running: &Running, now: Timestamp) -> ReceiveError {
    match error {
        StoreError::Full(reason) => {
            flow::refuse(running.flow.brake(None, ThrottleReason::Disk, reason, Duration::from_secs(1), now))
        }
        error => ReceiveError::Store(error),
    }
}
