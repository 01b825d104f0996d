//! Receives a message through a receive port: stores it with its legs and waits for the reply.

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
        AggregationRule, Ending, Head, IdempotencyKey, Leg, LegState, MessageAcceptance, NewLeg, NewMessage,
        PartitionAffinity, PartitionNumber, ReceivedMessage, StoredMessage, WaitingLeg,
    },
};
use tokio::{sync::oneshot, time::Instant};

use crate::{
    Exchanges, RunningExchange,
    after_commit::{CommitEvent, PendingMessage},
    flow::{self, InFlight},
    groups::WorkerGroup,
    pipeline::PipelineMessage,
    promote,
    reply_correlation::RoutingResult,
    reply_waiters::ReplyNotice,
    send,
    send_queue::SendQueue,
    track::BodyCapture,
};

/// Maximum length of an idempotency key.
pub const KEY_BYTES_MAX: usize = 255;

/// Maximum chain of replies, each of which is routed like a message.
const HOPS_MAX: u32 = 16;

/// A message as submitted.
#[derive(Debug, Clone, Default)]
pub struct IncomingMessage {
    /// The media type of the body; empty if unknown.
    pub content_type: String,
    /// Headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Bytes,
    /// The idempotency key, by which a repetition is recognized.
    pub key: Option<String>,
    /// The API key of the sender, the only one that may read the reply; empty for other ways of receipt.
    pub sender: Box<str>,
    /// Maximum time for which the caller waits for the reply.
    pub wait: Option<Duration>,
}

/// Result of receiving a message.
#[derive(Debug, Clone, PartialEq)]
pub struct ReceiveResult {
    /// The message.
    pub id: MessageId,
    /// Whether the idempotency key was used before; `id` is then the earlier message.
    pub duplicate: bool,
    /// The status of its reply.
    pub reply_status: ReplyStatus,
}

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

/// Why a message was refused; nothing was stored.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The exchange or the receive port does not exist.
    #[error("{0} does not exist")]
    Missing(String),
    /// The receive port is disabled.
    #[error("the receive port `{0}` is switched off")]
    Disabled(Name),
    /// The service window of the port is closed.
    #[error("the receive port `{port}` opens at {opens_at}, by its service window")]
    Closed {
        /// The port.
        port: Name,
        /// When it opens.
        opens_at: Timestamp,
        /// The time until then.
        opens_in: Duration,
    },
    /// An operator closed the intake of the server.
    #[error("messages are not accepted: {0}")]
    IntakeClosed(String),
    /// The body is larger than the port's limit.
    #[error("the body is larger than {0} bytes")]
    TooLarge(usize),
    /// The idempotency key is invalid.
    #[error("an idempotency key has 1 to 255 characters")]
    Key,
    /// The idempotency key was used with another body, for this message.
    #[error("the idempotency key was used before with another body, for message {0}")]
    KeyReused(MessageId),
    /// A limit is reached; the message can be sent again later.
    #[error("{reason}")]
    Full {
        /// The reason as a code.
        code: ThrottleReason,
        /// The reason as text.
        reason: String,
        /// Delay before a retry.
        retry_after: Duration,
    },
    /// The store does not answer.
    #[error(transparent)]
    Store(StoreError),
}

/// A new message whose commit is pending, with what the response to its sender needs.
struct SubmittedMessage {
    id: MessageId,
    mode: Mode,
    /// The time of receipt.
    since: Timestamp,
    /// Time for which the sender waits for the reply.
    wait: Duration,
    /// The reason of suspension, if it is suspended.
    suspended: Option<String>,
    /// The row that routes evaluate, if routes track.
    row: Option<Row>,
    /// Receives the reply, if one is expected.
    answered: Option<oneshot::Receiver<ReplyNotice>>,
    /// Receives the result of the commit.
    accepted: oneshot::Receiver<Result<MessageAcceptance, StoreError>>,
    _in_flight: InFlight,
}

/// Result of the receive pipeline.
pub(crate) enum PipelineOutput {
    /// One message and its routing.
    One(Head, Bytes, RoutingResult),
    /// The parts of a split message, each with its legs.
    Parts(Vec<NewMessage>),
    /// A message that waits for aggregation, with its aggregation rule.
    Gathered(Head, Bytes, AggregationRule),
}

impl RunningExchange {
    /// An enabled receive port.
    ///
    /// # Errors
    /// The port does not exist or is disabled.
    pub fn receive_port(&self, port: &Name) -> Result<&ReceivePort, ReceiveError> {
        let definition = &self.compiled.definition;
        let missing = || ReceiveError::Missing(format!("the receive port `{port}` of `{}`", definition.name));
        let found = definition.receive.get(port).ok_or_else(missing)?;
        if found.enabled { Ok(found) } else { Err(ReceiveError::Disabled(port.clone())) }
    }

    /// Routes a message to legs, or returns why it has none. A request needs a leg that replies.
    pub(crate) fn legs(
        &self,
        port: &Name,
        kind: MessageKind,
        head: &Head,
        bytes: usize,
    ) -> Result<Vec<NewLeg>, String> {
        if head.hops > HOPS_MAX {
            let hint = "its routes form a loop of replies; add `message.kind != 'reply'` to a route to exclude them";
            return Err(format!("the chain of replies before it is longer than {HOPS_MAX}: {hint}"));
        }
        let row = promote::row(&self.compiled, port, kind, head, bytes);
        let send_queues =
            self.compiled.routes.targets(&row).into_iter().filter_map(|target| self.send_queues.get(target));
        let open = send_queues.filter(|send_queue| send_queue.state() != PortState::Off);
        let legs = open.map(|send_queue| send_queue.new_leg(head)).collect::<Result<Vec<NewLeg>, String>>()?;
        let closed = |port: &Name| match self.send_queues.get(port).map(|send_queue| send_queue.state()) {
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
    /// Receives a message. When this returns, the message and any reply in the result are stored.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn receive(
        self: &Arc<Self>,
        running: &Arc<RunningExchange>,
        port: &Name,
        incoming: IncomingMessage,
    ) -> Result<ReceiveResult, ReceiveError> {
        let sender = incoming.sender.clone();
        let again = incoming.key.clone().map(|key| (key, incoming.body.clone(), incoming.wait));
        // Boxed: the state before the commit is large, and callers wait much longer after it.
        let received = match Box::pin(self.submit(running, port, incoming)).await {
            Ok(sent) => self.await_result(running, port, sent).await,
            Err(refused) => Err(refused),
        };
        match (received, again) {
            // A repeated key consumes no capacity, and its result may be known.
            (
                Err(
                    refused @ (ReceiveError::Full { .. } | ReceiveError::Closed { .. } | ReceiveError::IntakeClosed(_)),
                ),
                Some((key, body, wait)),
            ) => {
                let key = idempotency_key(key, &body);
                let known = Box::pin(self.receive_known(running, port, &sender, key, wait)).await;
                known.unwrap_or(Err(refused))
            }
            (received, _) => received,
        }
    }

    /// Looks up a message by its idempotency key; `None` if the key is new.
    async fn receive_known(
        &self,
        running: &RunningExchange,
        port: &Name,
        sender: &str,
        key: IdempotencyKey,
        wait: Option<Duration>,
    ) -> Option<Result<ReceiveResult, ReceiveError>> {
        let definition = running.receive_port(port).ok()?;
        let wait = wait.map_or(definition.wait, |wait| wait.min(definition.wait));
        match self.parts.spool.known(&running.compiled.definition.name, port, sender, &key).await {
            Ok(None) => None,
            Ok(Some(MessageAcceptance::Reused(known))) => Some(Err(ReceiveError::KeyReused(known))),
            Ok(Some(MessageAcceptance::Known(known))) => {
                Some(self.repeated(running, port, definition.mode, known, wait, None).await)
            }
            Ok(Some(MessageAcceptance::New)) => unreachable!("it is looked up, not stored"),
            Err(error) => Some(Err(ReceiveError::Store(error))),
        }
    }

    /// The response to a duplicate.
    async fn repeated(
        &self,
        running: &RunningExchange,
        port: &Name,
        mode: Mode,
        known: MessageId,
        wait: Duration,
        row: Option<&Row>,
    ) -> Result<ReceiveResult, ReceiveError> {
        if let Some(meters) = running.meters.get(port) {
            meters.duplicate.increment(1);
        }
        let reply_status = match mode {
            Mode::OneWay => ReplyStatus::Stored,
            Mode::Request => {
                let reply_status = self.wait_for(known, wait).await.map_err(ReceiveError::Store)?;
                let reply_status = reply_status.unwrap_or(ReplyStatus::Pending);
                self.track_returned(running, port, known, row, &reply_status);
                reply_status
            }
        };
        Ok(ReceiveResult { id: known, duplicate: true, reply_status })
    }

    /// Processes a new message and hands it to the spool.
    async fn submit(
        self: &Arc<Self>,
        running: &Arc<RunningExchange>,
        port: &Name,
        incoming: IncomingMessage,
    ) -> Result<SubmittedMessage, ReceiveError> {
        let definition = running.receive_port(port)?;
        check(definition, &incoming)?;
        self.check_intake()?;
        let now = self.parts.clock.now();
        check_window(port, definition, now)?;
        let in_flight = self.admit(running, port, now)?;
        let wait = incoming.wait.map_or(definition.wait, |wait| wait.min(definition.wait));
        let tracks = running.tracks();
        let is_tracked = tracks.of_receive(port).is_some() || tracks.has_routes();
        let raw = is_tracked.then(|| (incoming.content_type.clone(), incoming.body.clone()));
        let headers = self.spans.0.is_on().then(|| incoming.headers.clone());
        let partition = self.partition_for(running, port, incoming.key.as_deref()).await;
        let partition = partition.map_err(ReceiveError::Store)?;
        let taken = self.process_incoming(running, partition, (port, definition), incoming, now).await;
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
        // Registered before the commit, since the reply can be faster than this task.
        let answered = waits.then(|| self.reply_waiters.wait_for(id));
        let (sender, accepted) = oneshot::channel();
        let first = self.send_before_commit(running, definition, &taken, wait);
        let parts = taken.parts.as_deref().unwrap_or(std::slice::from_ref(&taken.whole));
        let reservation = running.reserve_legs(if first.is_some() { &[] } else { parts });
        let pending = Box::new(PendingMessage {
            exchanges: Arc::downgrade(self),
            reply_waiters: self.reply_waiters.clone(),
            running: running.clone(),
            port: port.clone(),
            taken: Arc::new(taken),
            since: now,
            headers,
            seen: raw.map(|(content_type, body)| (content_type, body, row.clone())),
            sender: Some(sender),
            is_new: false,
            lost: first.is_some().then(Arc::default),
            _reservation: reservation,
            _under_way: self.tasks.token(),
        });
        match first {
            Some((send_queue, leg)) => {
                if let Some(meters) = running.meters.get(port) {
                    meters.sent_before_commit.increment(1);
                }
                self.tasks.spawn(send::send_first(self.clone(), send_queue, leg, pending));
            }
            None => self.store(pending).await,
        }
        Ok(SubmittedMessage {
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

    /// Waits for the commit and the reply of a message.
    async fn await_result(
        &self,
        running: &RunningExchange,
        port: &Name,
        sent: SubmittedMessage,
    ) -> Result<ReceiveResult, ReceiveError> {
        let SubmittedMessage { id, mode, since, wait, suspended, row, answered, accepted, _in_flight } = sent;
        let (until, waits) = (Instant::now() + wait, answered.is_some());
        let replied = match answered {
            Some(answered) => tokio::time::timeout_at(until, answered).await.ok().and_then(Result::ok),
            None => None,
        };
        let replied = match replied {
            Some(ReplyNotice::Reply(reply, head, body)) => Some(ReplyStatus::Replied { reply, head, body }),
            Some(ReplyNotice::None) | None => None,
        };
        // A reply implies that the message is stored.
        let accepted = match &replied {
            Some(_) => MessageAcceptance::New,
            None => {
                let accepted = accepted.await.unwrap_or_else(|gone| Err(StoreError::unavailable(gone)));
                accepted.map_err(|error| refused(error, running, since))?
            }
        };
        match accepted {
            MessageAcceptance::New if waits => {
                let reply_status = match replied {
                    Some(replied) => replied,
                    // One send port has no reply; another may still reply.
                    None => Box::pin(self.status_without_reply(id, until)).await?,
                };
                self.track_returned(running, port, id, row.as_ref(), &reply_status);
                if let Some(meters) = running.meters.get(port) {
                    meters.wait.record(self.parts.clock.now().since(since));
                }
                Ok(ReceiveResult { id, duplicate: false, reply_status })
            }
            MessageAcceptance::New => Ok(ReceiveResult {
                id,
                duplicate: false,
                reply_status: suspended.map_or(ReplyStatus::Stored, ReplyStatus::Suspended),
            }),
            MessageAcceptance::Known(known) => {
                Box::pin(self.repeated(running, port, mode, known, wait, row.as_ref())).await
            }
            MessageAcceptance::Reused(known) => Err(ReceiveError::KeyReused(known)),
        }
    }

    /// Reserves the leg of a message that may be sent before its commit ("dispatch before commit"). Conditions: the
    /// port allows it, the message is a request with one replying leg, the caller waits for the reply, and there is no
    /// idempotency key by which the caller could ask again.
    fn send_before_commit(
        &self,
        running: &RunningExchange,
        port: &ReceivePort,
        taken: &ReceivedMessage,
        wait: Duration,
    ) -> Option<(Arc<SendQueue>, Box<WaitingLeg>)> {
        let ReceivedMessage { whole, parts: None, gather: None } = taken else { return None };
        let [leg] = &whole.legs[..] else { return None };
        let may = !port.store_first && whole.key.is_none() && !wait.is_zero() && leg.replies && leg.awaits.is_none();
        if !may
            || whole.kind != MessageKind::Request
            || self.parts.spool.room().is_err()
            || !self.parts.spool.is_reserved(whole.id)
        {
            return None;
        }
        let send_queue = running.send_queues.get(&leg.port)?;
        send_queue.claim((whole.id, 0)).then(|| (send_queue.clone(), Box::new(waiting_leg(whole, 0, leg))))
    }

    /// Hands a message to the spool. The work after the commit does not depend on the sender.
    pub(crate) async fn store(&self, pending: Box<PendingMessage>) {
        let (taken, stored) = (pending.taken.clone(), self.stored.clone());
        let notify = move |accepted| {
            // The send fails after shutdown; the next start finds the message.
            let _ = stored.send(CommitEvent::Accepted(pending, accepted));
        };
        self.parts.spool.accept_then(taken, notify).await;
    }

    /// Tracks the body of a reply that a caller gets.
    fn track_returned(
        &self,
        running: &RunningExchange,
        port: &Name,
        message: MessageId,
        row: Option<&Row>,
        reply_status: &ReplyStatus,
    ) {
        if let ReplyStatus::Replied { head, body, .. } = reply_status {
            let (exchange, content_type) = (&running.compiled.definition.name, &*head.content_type);
            let point = TrackPoint::Returned;
            let seen = BodyCapture { exchange, message, point, port, attempt: None, content_type, body };
            self.track(running, &seen, row, self.parts.clock.now());
        }
    }

    /// The status of a request that its caller polls, as for [`Exchanges::wait_for`].
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn reply_to(&self, id: MessageId, wait: Duration) -> Result<Option<ReplyStatus>, StoreError> {
        let reply_status = self.wait_for(id, wait).await?;
        if let Some(replied @ ReplyStatus::Replied { .. }) = &reply_status
            && let Some(request) = self.parts.spool.message(id).await?
            && let Some(running) = self.find(&request.exchange)
        {
            let bytes = usize::try_from(request.bytes).unwrap_or(usize::MAX);
            let row = promote::row(&running.compiled, &request.port, request.kind, &request.head, bytes);
            self.track_returned(&running, &request.port, id, Some(&row), replied);
        }
        Ok(reply_status)
    }

    /// The reply status of a request; waits up to `wait` while it is pending. `None` if there is no such message.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn wait_for(&self, id: MessageId, wait: Duration) -> Result<Option<ReplyStatus>, StoreError> {
        let reply_status = self.poll_status(id, Instant::now() + wait).await;
        self.reply_waiters.forget(id);
        reply_status
    }

    async fn poll_status(&self, id: MessageId, until: Instant) -> Result<Option<ReplyStatus>, StoreError> {
        loop {
            // Registered before the read, so that no reply in between is missed.
            let answered = self.reply_waiters.wait_for(id);
            let Some(reply_status) = self.stored_status(id).await? else { return Ok(None) };
            if reply_status != ReplyStatus::Pending || until <= Instant::now() {
                return Ok(Some(reply_status));
            }
            match tokio::time::timeout_at(until, answered).await {
                Ok(Ok(ReplyNotice::Reply(reply, head, body))) => {
                    return Ok(Some(ReplyStatus::Replied { reply, head, body }));
                }
                // One send port has no reply; others may.
                Ok(Ok(ReplyNotice::None)) => {}
                _ => return self.stored_status(id).await,
            }
        }
    }

    async fn stored_status(&self, id: MessageId) -> Result<Option<ReplyStatus>, StoreError> {
        match self.parts.spool.message(id).await? {
            Some(stored) => Ok(Some(self.reply_status(&stored).await?)),
            None => Ok(None),
        }
    }

    /// The status of a request whose reply did not come in time.
    async fn status_without_reply(&self, id: MessageId, until: Instant) -> Result<ReplyStatus, ReceiveError> {
        let reply_status = self.poll_status(id, until).await.map_err(ReceiveError::Store);
        self.reply_waiters.forget(id);
        Ok(reply_status?.unwrap_or(ReplyStatus::Ended))
    }

    async fn reply_status(&self, stored: &StoredMessage) -> Result<ReplyStatus, StoreError> {
        if stored.kind != MessageKind::Request {
            return Ok(ReplyStatus::Stored);
        }
        if let (Some(Ending::Answered), Some(reply)) = (stored.ending, stored.reply)
            && let Some(found) = self.parts.spool.message(reply).await?
            && let Some(body) = self.parts.spool.body(reply).await?
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

    /// Runs the receive pipeline on a message and routes the result.
    pub(crate) async fn process_incoming(
        &self,
        running: &RunningExchange,
        partition: PartitionNumber,
        (port, definition): (&Name, &ReceivePort),
        incoming: IncomingMessage,
        now: Timestamp,
    ) -> ReceivedMessage {
        let kind = match definition.mode {
            Mode::OneWay => MessageKind::OneWay,
            Mode::Request => MessageKind::Request,
        };
        let IncomingMessage { content_type, headers, body, key, sender, .. } = incoming;
        let whole = self.new_message(running, partition, port, kind, body.clone(), now);
        let trace = self.spans.trace_of_received(&headers, whole.id);
        let raw = PipelineMessage { content_type, headers, body, trace, ..PipelineMessage::default() };
        let key = key.map(|key| idempotency_key(key, &raw.body));
        let expires_at = (kind == MessageKind::Request).then(|| now + definition.expires_after);
        let whole = NewMessage { key, sender, expires_at, ..whole };
        match self.work(running, &whole, &raw).await {
            Ok(PipelineOutput::One(head, body, routed)) => {
                let whole = NewMessage { head, body, ..whole }.answering(routed.answers).routed(routed.legs);
                ReceivedMessage::from(whole)
            }
            Ok(PipelineOutput::Parts(parts)) => {
                let head = promote::head(&running.compiled, &raw);
                ReceivedMessage { whole: NewMessage { head, ..whole }, parts: Some(parts), gather: None }
            }
            Ok(PipelineOutput::Gathered(head, body, gather)) => {
                ReceivedMessage { whole: NewMessage { head, body, ..whole }, parts: None, gather: Some(gather) }
            }
            Err(step_error) => suspended_as_received(running, whole, &raw, step_error),
        }
    }

    /// Selects the partition for a message: that of related messages, if it can be correlated or aggregated with
    /// others.
    pub(crate) async fn partition_for(
        &self,
        running: &RunningExchange,
        port: &Name,
        key: Option<&str>,
    ) -> Result<PartitionNumber, StoreError> {
        let gathers = running.compiled.receive.get(port).is_some_and(|pipeline| pipeline.assembler.is_some());
        let colocated_ports = &running.compiled.colocated_ports;
        let beside = match key {
            _ if !colocated_ports.is_empty() => PartitionAffinity::Ports(colocated_ports),
            _ if gathers => PartitionAffinity::Port,
            Some(key) => PartitionAffinity::Key(key),
            None => PartitionAffinity::Nothing,
        };
        self.parts.spool.partition_for(&running.compiled.definition.name, port, beside).await
    }

    /// A new message with its body, before pipeline and routing.
    pub(crate) fn new_message(
        &self,
        running: &RunningExchange,
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

    /// Runs the receive pipeline and routes the result, or returns which step failed and why.
    pub(crate) async fn work(
        &self,
        running: &RunningExchange,
        whole: &NewMessage,
        raw: &PipelineMessage,
    ) -> Result<PipelineOutput, String> {
        let gone =
            || format!("the receive port `{}`, whose steps it has not passed, does not exist any more", whole.port);
        let pipeline = running.compiled.receive.get(&whole.port).ok_or_else(gone)?;
        let mut messages = match pipeline.is_empty() {
            true => vec![Cow::Borrowed(raw)],
            false => {
                let (id, workers) = (whole.id.to_string(), self.groups.of(WorkerGroup::Receive));
                let worked = pipeline.apply(raw.clone(), &id, &self.parts.clock, workers).await;
                let messages = worked.map_err(|step_error| {
                    let (exchange, port) = (running.name(), whole.port.to_string());
                    metrics::counter!("tocsin_exchange_step_failures_total", "exchange" => exchange, "port" => port)
                        .increment(1);
                    step_error.to_string()
                })?;
                messages.into_iter().map(Cow::Owned).collect()
            }
        };
        let _worker = self.groups.of(WorkerGroup::Route).enter().await;
        if let Some(assembler) = &pipeline.assembler {
            let message = messages.pop().expect("a pipeline does not split before it aggregates");
            let head = promote::head(&running.compiled, &message);
            let row = promote::row(&running.compiled, &whole.port, whole.kind, &head, message.body.len());
            let gather = assembler.gather(&head, &row);
            return Ok(PipelineOutput::Gathered(head, message.body.clone(), gather));
        }
        let partition = self.parts.spool.partition_of(whole.id);
        let finish = async |message: Cow<'_, PipelineMessage>| {
            let mut head = promote::head(&running.compiled, &message);
            let through = (&whole.port, whole.kind);
            let routed = self.route(running, through, &mut head, message.body.len(), partition).await;
            // If it is resumed, it is routed again.
            let unknown = |error| RoutingResult {
                legs: Err(format!("the waiting requests cannot be read: {error}")),
                answers: None,
            };
            let mut routed = routed.unwrap_or_else(unknown);
            if let (Err(reason), Some(unread)) = (&mut routed.legs, promote::unreadable(&running.compiled, &message)) {
                *reason = format!("its properties cannot be read: {unread}; {reason}");
            }
            (head, message.body.clone(), routed)
        };
        if !pipeline.splits {
            let (head, body, routed) = finish(messages.pop().expect("only a split makes several messages")).await;
            return Ok(PipelineOutput::One(head, body, routed));
        }
        let mut parts = Vec::with_capacity(messages.len());
        for message in messages {
            let (head, body, routed) = finish(message).await;
            let (id, part_of) = (self.parts.spool.next_id(partition), Some(whole.id));
            let part = NewMessage { id, part_of, key: None, head, body, ..whole.clone() };
            parts.push(part.answering(routed.answers).routed(routed.legs));
        }
        Ok(PipelineOutput::Parts(parts))
    }

    /// Dispatches the legs of a stored message.
    pub(crate) fn dispatch(&self, running: &RunningExchange, stored: &NewMessage) {
        if let Some(reason) = &stored.suspended {
            if !stored.head.raw {
                metrics::counter!("tocsin_exchange_unroutable_total", "exchange" => running.name()).increment(1);
            }
            tracing::warn!(message = %stored.id, exchange = %stored.exchange, reason, "a message is suspended");
        }
        self.expect_expiry(stored);
        if let (Some(_), Some(request)) = (stored.settles, stored.answers) {
            // The caller reads from the spool whether the reply was in time.
            stored
                .legs
                .iter()
                .filter_map(|leg| running.send_queues.get(&leg.port))
                .for_each(SendQueue::refill_from_spool);
            return self.reply_waiters.answer(request, ReplyNotice::None);
        }
        for (number, leg) in stored.legs.iter().enumerate() {
            let Some(send_queue) = running.send_queues.get(&leg.port) else { continue };
            send_queue.push(waiting_leg(stored, u32::try_from(number).expect("legs are few"), leg));
        }
    }

    /// Schedules the request's expiry.
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

impl RunningExchange {
    pub(crate) fn name(&self) -> String {
        self.compiled.definition.name.to_string()
    }
}

/// A message that is suspended in its received form, before the pipeline.
pub(crate) fn suspended_as_received(
    running: &RunningExchange,
    whole: NewMessage,
    raw: &PipelineMessage,
    reason: String,
) -> ReceivedMessage {
    let head = Head { raw: true, ..promote::head(&running.compiled, raw) };
    ReceivedMessage { whole: NewMessage { head, suspended: Some(reason), ..whole }, parts: None, gather: None }
}

fn check(port: &ReceivePort, incoming: &IncomingMessage) -> Result<(), ReceiveError> {
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
    metrics::counter!("tocsin_exchange_refused_total", "reason" => "service_window").increment(1);
    Err(ReceiveError::Closed { port: port.clone(), opens_at, opens_in: opens_at.since(now) })
}

fn refused(error: StoreError, running: &RunningExchange, now: Timestamp) -> ReceiveError {
    match error {
        StoreError::Full(reason) => {
            flow::refuse(running.flow.throttle(None, ThrottleReason::Disk, reason, Duration::from_secs(1), now))
        }
        error => ReceiveError::Store(error),
    }
}
