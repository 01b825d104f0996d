//! Intake: receives messages through receive ports, stores them with their legs, and waits for replies.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tocsin_model::{
    exchange::{MessageKind, Mode, ReceivePort, ThrottleReason},
    field::Row,
    id::{MessageId, Name},
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    spool::{IdempotencyKey, MessageAcceptance, NewMessage, ReceivedMessage, WaitingLeg},
};
use tokio::{
    sync::{oneshot, watch},
    time::Instant,
};

use crate::{
    admission,
    commit::{Commit, PendingMessage, routed},
    core::Core,
    dispatch::Dispatch,
    error::ReceiveError,
    flow::{InFlight, refuse},
    intake::IntakeState,
    process, promote, replies,
    reply_waiters::ReplyNotice,
    running::RunningExchange,
    send_port::SendPort,
};
pub use crate::{message::IncomingMessage, replies::ReplyStatus};

/// Maximum length of an idempotency key.
pub const KEY_BYTES_MAX: usize = 255;

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

/// Receives messages of all exchanges.
pub struct Intake {
    pub(crate) core: Arc<Core>,
    pub(crate) dispatch: Arc<Dispatch>,
    /// Whether receive ports and locations take messages.
    pub(crate) state: watch::Sender<IntakeState>,
}

impl Intake {
    /// Receives a message. When this returns, the message and any reply in the result are stored.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn receive(
        &self,
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
                let key = process::idempotency_key(key, &body);
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
        match self.core.parts.spool.known(&running.compiled.definition.name, port, sender, &key).await {
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
                let reply_status = replies::wait_for(&self.core, known, wait).await.map_err(ReceiveError::Store)?;
                let reply_status = reply_status.unwrap_or(ReplyStatus::Pending);
                replies::track_returned(&self.core, running, port, known, row, &reply_status);
                reply_status
            }
        };
        Ok(ReceiveResult { id: known, duplicate: true, reply_status })
    }

    /// Processes a new message and hands it to the spool.
    async fn submit(
        &self,
        running: &Arc<RunningExchange>,
        port: &Name,
        incoming: IncomingMessage,
    ) -> Result<SubmittedMessage, ReceiveError> {
        let definition = running.receive_port(port)?;
        check(definition, &incoming)?;
        self.check_open()?;
        let now = self.core.now();
        check_window(port, definition, now)?;
        let in_flight = admission::admit(&self.core, running, port, now)?;
        let wait = incoming.wait.map_or(definition.wait, |wait| wait.min(definition.wait));
        let tracks = running.tracks();
        let is_tracked = tracks.of_receive(port).is_some() || tracks.has_routes();
        let raw = is_tracked.then(|| (incoming.content_type.clone(), incoming.body.clone()));
        let headers = self.core.spans.0.is_on().then(|| incoming.headers.clone());
        let partition = process::partition_for(&self.core, running, port, incoming.key.as_deref()).await;
        let partition = partition.map_err(ReceiveError::Store)?;
        let received = process::receive(&self.core, running, partition, (port, definition), incoming, now).await;
        let messages = std::iter::once(&received.whole).chain(received.parts.iter().flatten());
        let ports: BTreeSet<&Name> = messages.flat_map(|message| &message.legs).map(|leg| &leg.port).collect();
        admission::check_queues(running, ports.into_iter(), now).map_err(refuse)?;
        let (id, kind) = (received.whole.id, received.whole.kind);
        let suspended = received.whole.suspended.clone();
        let headers = headers.filter(|_| received.whole.head.trace.is_some());
        let row = tracks.has_routes().then(|| {
            let NewMessage { port, kind, head, body, .. } = &received.whole;
            promote::row(&running.compiled.schema, port, *kind, head, body.len())
        });
        let waits = kind == MessageKind::Request && suspended.is_none();
        // Registered before the commit, since the reply can be faster than this task.
        let answered = waits.then(|| self.core.reply_waiters.wait_for(id));
        let (sender, accepted) = oneshot::channel();
        let first = self.send_before_commit(running, definition, &received, wait);
        let unpushed = routed(&received).filter(|_| first.is_none());
        let reservation = self.core.reserve_legs(running, unpushed);
        let pending = Box::new(PendingMessage {
            reply_waiters: self.core.reply_waiters.clone(),
            running: running.clone(),
            port: port.clone(),
            received: Arc::new(received),
            since: now,
            headers,
            tracked: raw.map(|(content_type, body)| (content_type, body, row.clone())),
            sender: Some(sender),
            is_new: false,
            lost: first.is_some().then(Arc::default),
            _reservation: reservation,
            _in_progress: self.core.tasks.token(),
        });
        match first {
            Some((send_port, leg)) => {
                if let Some(meters) = running.meters.get(port) {
                    meters.sent_before_commit.increment(1);
                }
                self.dispatch.send_first(send_port, leg, pending);
            }
            None => self.core.commit(Commit::Message(pending)).await,
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
                    None => Box::pin(replies::status_without_reply(&self.core, id, until)).await?,
                };
                replies::track_returned(&self.core, running, port, id, row.as_ref(), &reply_status);
                if let Some(meters) = running.meters.get(port) {
                    meters.wait.record(self.core.now().since(since));
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
        received: &ReceivedMessage,
        wait: Duration,
    ) -> Option<(Arc<SendPort>, Box<WaitingLeg>)> {
        let ReceivedMessage { whole, parts: None, gather: None } = received else { return None };
        let [leg] = &whole.legs[..] else { return None };
        let may = !port.store_first && whole.key.is_none() && !wait.is_zero() && leg.replies && leg.awaits.is_none();
        if !may
            || whole.kind != MessageKind::Request
            || self.core.parts.spool.room().is_err()
            || !self.core.parts.spool.is_reserved(whole.id)
        {
            return None;
        }
        let send_port = running.send_ports.get(&leg.port)?;
        Some((send_port.clone(), self.dispatch.claim(send_port, whole)?))
    }

    /// The status of a request that its caller polls. Waits up to `wait` while it is pending. `None` if there is no such
    /// message.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn reply_to(&self, id: MessageId, wait: Duration) -> Result<Option<ReplyStatus>, StoreError> {
        replies::reply_to(&self.core, id, wait).await
    }

    /// Closes or opens the intake of all exchanges.
    pub fn set_state(&self, state: IntakeState) {
        self.state.send_if_modified(|known| {
            let is_changed = *known != state;
            *known = state;
            is_changed
        });
    }

    /// Checks whether receive ports accept messages.
    fn check_open(&self) -> Result<(), ReceiveError> {
        match &self.state.borrow().refusal {
            None => Ok(()),
            Some(reason) => {
                metrics::counter!("tocsin_exchange_refused_total", "reason" => "operator").increment(1);
                Err(ReceiveError::IntakeClosed(reason.clone()))
            }
        }
    }
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

fn check_window(port: &Name, definition: &ReceivePort, now: Timestamp) -> Result<(), ReceiveError> {
    let Some(opens_at) = definition.window.as_ref().and_then(|window| window.opens(now)) else { return Ok(()) };
    metrics::counter!("tocsin_exchange_refused_total", "reason" => "service_window").increment(1);
    Err(ReceiveError::Closed { port: port.clone(), opens_at, opens_in: opens_at.since(now) })
}

fn refused(error: StoreError, running: &RunningExchange, now: Timestamp) -> ReceiveError {
    match error {
        StoreError::Full(reason) => {
            refuse(running.flow.throttle(None, ThrottleReason::Disk, reason, Duration::from_secs(1), now))
        }
        error => ReceiveError::Store(error),
    }
}
