//! Types of the spool: the messages of exchanges, each with one body and a leg for every send port that it goes to.
//!
//! A message is committed with its legs before anything is sent. The outcome of a leg, its reply and the reply's legs
//! are one commit too. A round trip therefore costs two shared fsyncs, and after a crash the spool holds exactly the
//! remaining work. A request that its caller cannot repeat may be sent first and be stored with the outcome (dispatch
//! before commit).

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tocsin_model::{
    application::Rate,
    exchange::{FlowSide, MessageKind, PortState, ThrottleReason},
    id::{MessageId, Name},
    time::Timestamp,
    trace_context::TraceContext,
    value::Value,
};

/// Metadata of a message.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Head {
    /// Media type of the body.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub content_type: String,
    /// Headers that travel with the message; names in lower case.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// Promoted properties: values extracted from the message for routing, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub properties: Vec<(Name, Value)>,
    /// Number of replies in the chain before it; detects loops.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hops: u32,
    /// Whether the body is unprocessed because a pipeline step of its port failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub raw: bool,
    /// Number of edits by operators.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub edits: u32,
    /// W3C trace context of the message's parent.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "trace_text")]
    pub trace: Option<Box<TraceContext>>,
}

/// Serialized form of a trace context: `traceparent`, and `tracestate` if present.
mod trace_text {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use tocsin_model::trace_context::TraceContext;

    #[derive(Serialize, Deserialize)]
    struct Text {
        parent: String,
        #[serde(default, skip_serializing_if = "str::is_empty")]
        state: Box<str>,
    }

    pub fn serialize<S: Serializer>(trace: &Option<Box<TraceContext>>, serializer: S) -> Result<S::Ok, S::Error> {
        let text = trace.as_ref().map(|trace| Text { parent: trace.parent_text(), state: trace.state.clone() });
        text.serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<TraceContext>>, D::Error> {
        let text = Option::<Text>::deserialize(deserializer)?;
        Ok(text.and_then(|text| TraceContext::read(&text.parent, Some(&text.state))).map(Box::new))
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Partition of the spool, from 0: a file with its own writer. A message, its legs, its parts and its replies share
/// one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionNumber(pub u8);

/// Existing messages that determine the partition of a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartitionAffinity<'a> {
    /// None.
    Nothing,
    /// Messages with the same idempotency key of the caller.
    Key(&'a str),
    /// All others received by locations of its port, or aggregated there.
    Port,
    /// All others received through these ports, which may be replies to each other.
    Ports(&'a [Name]),
}

/// Message to store.
#[derive(Debug, Clone, PartialEq)]
pub struct NewMessage {
    /// Id from [`crate::sqlite::spool::SqliteSpool::next_id`]; it contains the partition.
    pub id: MessageId,
    /// Exchange.
    pub exchange: Name,
    /// Receive port; for a reply, the send port.
    pub port: Name,
    /// Kind.
    pub kind: MessageKind,
    /// For a reply: the request.
    pub answers: Option<MessageId>,
    /// For a reply through a receive port: the leg of the request that awaits it. If the leg no longer waits when
    /// this is stored, the reply is [`Ending::Late`] and is not sent on.
    pub settles: Option<u32>,
    /// Original message, if this is a part of one that was split.
    pub part_of: Option<MessageId>,
    /// Idempotency key.
    pub key: Option<IdempotencyKey>,
    /// API key of the sender, which alone may read the reply; empty if received in another way.
    pub sender: Box<str>,
    /// See [`Head`].
    pub head: Head,
    /// Body.
    pub body: Bytes,
    /// Legs to create.
    pub legs: Vec<NewLeg>,
    /// Reason of the suspension, if the message has no route.
    pub suspended: Option<String>,
    /// Time of receipt.
    pub accepted_at: Timestamp,
    /// For a request: end of its reply timeout.
    pub expires_at: Option<Timestamp>,
    /// Retention after its end.
    pub kept: Duration,
}

impl NewMessage {
    /// Sets the legs, or suspends the message with the reason why it has none.
    pub fn routed(self, ways: Result<Vec<NewLeg>, String>) -> NewMessage {
        let (legs, suspended) = match ways {
            Ok(legs) => (legs, None),
            Err(reason) => (Vec::new(), Some(reason)),
        };
        NewMessage { legs, suspended, ..self }
    }

    /// Makes it the reply to a leg that awaits it, if any.
    pub fn answering(self, waiting: Option<(MessageId, u32)>) -> NewMessage {
        match waiting {
            None => self,
            Some((id, leg)) => {
                NewMessage { kind: MessageKind::Reply, answers: Some(id), settles: Some(leg), expires_at: None, ..self }
            }
        }
    }
}

/// Receive location: a place from which messages are received.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LocationKey {
    /// Exchange.
    pub exchange: Name,
    /// Receive port.
    pub port: Name,
    /// Receive location.
    pub location: Name,
}

/// Message received by a location.
#[derive(Debug, Clone, PartialEq)]
pub struct ReceivedMessage {
    /// Message as received, or as processed by the pipeline of its port.
    pub whole: NewMessage,
    /// Parts, if it was split.
    pub parts: Option<Vec<NewMessage>>,
    /// Aggregation, if it becomes part of another message.
    pub gather: Option<AggregationRule>,
}

impl From<NewMessage> for ReceivedMessage {
    /// A message that is neither split nor aggregated.
    fn from(whole: NewMessage) -> ReceivedMessage {
        ReceivedMessage { whole, parts: None, gather: None }
    }
}

/// Leg to create: the delivery of a message to one send port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewLeg {
    /// Send port.
    pub port: Name,
    /// Whether the response is stored as a message.
    pub replies: bool,
    /// Correlation of a reply that comes later through a receive port.
    pub awaits: Option<CorrelationKey>,
    /// Key of ordered delivery (lane), if the port delivers in order: legs with the same key leave in order.
    pub lane: Option<String>,
    /// For ports with priorities: how far the leg is ranked before its time of receipt.
    pub ahead: Option<Duration>,
}

/// Correlation of a later reply: receive port and key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CorrelationKey {
    /// Receive port.
    pub through: Name,
    /// Correlation key shared by request and reply.
    pub key: String,
}

/// Leg that awaits a reply, or did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CorrelatedLeg {
    /// Message.
    pub message: MessageId,
    /// Leg number.
    pub leg: u32,
    /// Whether it still waits.
    pub waits: bool,
}

/// Aggregator rule of a message (EIP): the group it joins, and when the group is complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AggregationRule {
    /// Key of the group.
    pub key: String,
    /// Format of the aggregated message, encoded by the caller.
    pub form: String,
    /// Maximum number of messages.
    pub count_max: u32,
    /// Maximum number of bytes.
    pub bytes_max: u64,
    /// Maximum time after the first message.
    pub within: Duration,
    /// Whether this message completes the group.
    pub closes: bool,
}

/// Group of messages that will be aggregated into one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageGroup {
    /// Partition.
    pub partition: PartitionNumber,
    /// Group number in the partition.
    pub id: u64,
    /// Exchange.
    pub exchange: Name,
    /// Receive port.
    pub port: Name,
    /// See [`AggregationRule`].
    pub form: String,
}

/// Order in which the due legs of a send port are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LegOrder {
    /// By due time.
    Due,
    /// By time of receipt, for ordered delivery. In each lane, nothing is read after a leg that is not yet due, or
    /// after a suspended one if `stops`.
    Lanes {
        /// Whether a suspended leg blocks its lane.
        stops: bool,
    },
    /// By rank: time of receipt, less the priority's advance.
    Rank,
}

/// Idempotency key of a caller, with a hash of the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// Key, unique per receive port and sender.
    pub key: String,
    /// SHA-256 of the body.
    pub digest: [u8; 32],
}

/// Result of storing a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageAcceptance {
    /// Stored.
    New,
    /// A message with the same key and body exists.
    Known(MessageId),
    /// A message with the same key and another body exists.
    Reused(MessageId),
}

/// Message as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredMessage {
    /// See [`NewMessage`], also for the following fields.
    pub id: MessageId,
    /// Exchange.
    pub exchange: Name,
    /// Port.
    pub port: Name,
    /// Kind.
    pub kind: MessageKind,
    /// For a reply: the request.
    pub answers: Option<MessageId>,
    /// Reply, if there is one.
    pub reply: Option<MessageId>,
    /// Original message, if this is a part of one that was split.
    pub part_of: Option<MessageId>,
    /// See [`NewMessage`].
    pub sender: Box<str>,
    /// See [`Head`].
    pub head: Head,
    /// Size of the body in bytes.
    pub bytes: u64,
    /// Time of receipt.
    pub accepted_at: Timestamp,
    /// End of the reply timeout.
    pub expires_at: Option<Timestamp>,
    /// Time at which all work was done.
    pub ended_at: Option<Timestamp>,
    /// Result of the message, once known; see [`Ending`].
    pub ending: Option<Ending>,
    /// Reason of the suspension of the whole message.
    pub suspended: Option<String>,
    /// Legs.
    pub legs: Vec<Leg>,
}

/// Final outcome of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// All legs are done.
    Delivered,
    /// It was answered, and all legs are done.
    Answered,
    /// Its reply timeout passed.
    Expired,
    /// An operator ended it.
    Ended,
    /// A late reply: its request had been answered, had expired or was ended.
    Late,
    /// A reply that does not match its request.
    Wrong,
    /// It was split into parts, each with legs of its own.
    Split,
    /// It was aggregated into another message.
    Assembled,
}

impl Ending {
    /// All endings.
    pub const ALL: [Ending; 8] = [
        Ending::Delivered,
        Ending::Answered,
        Ending::Expired,
        Ending::Ended,
        Ending::Late,
        Ending::Wrong,
        Ending::Split,
        Ending::Assembled,
    ];

    /// Name of the ending.
    pub fn word(self) -> &'static str {
        match self {
            Ending::Delivered => "delivered",
            Ending::Answered => "answered",
            Ending::Expired => "expired",
            Ending::Ended => "ended",
            Ending::Late => "late",
            Ending::Wrong => "wrong",
            Ending::Split => "split",
            Ending::Assembled => "assembled",
        }
    }
}

/// Leg: the delivery of a message to one send port.
#[derive(Debug, Clone, PartialEq)]
pub struct Leg {
    /// Number within the message, from 0.
    pub number: u32,
    /// Send port.
    pub port: Name,
    /// Whether the response is stored as a message.
    pub replies: bool,
    /// Receive port of a later reply, if any.
    pub through: Option<Name>,
    /// State.
    pub state: LegState,
    /// Number of attempts on the present transport.
    pub attempts: u32,
    /// Whether the port's backup transport is in use.
    pub on_backup: bool,
    /// Due time while it waits; for a later reply, the end of the timeout.
    pub due_at: Timestamp,
    /// Time of the last attempt's response or failure.
    pub tried_at: Option<Timestamp>,
    /// Last response of the receiver, or the reason of the failure.
    pub said: Option<String>,
}

/// Legs of a send port that wait to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingLegs {
    /// Exchange.
    pub exchange: Name,
    /// Send port.
    pub port: Name,
    /// Due legs, including those in flight.
    pub due: u64,
    /// Legs due later.
    pub later: u64,
    /// Due time of the first of `later`.
    pub next: Option<Timestamp>,
}

/// State of a leg.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LegState {
    /// Waiting to be sent.
    Waiting,
    /// Accepted by the receiver.
    Done,
    /// Failed; waits for an operator.
    Suspended,
    /// Ended without delivery.
    Ended,
    /// Accepted by the receiver; the reply comes later.
    Awaiting,
}

impl LegState {
    /// All states. Their positions are stored.
    pub const ALL: [LegState; 5] =
        [LegState::Waiting, LegState::Done, LegState::Suspended, LegState::Ended, LegState::Awaiting];

    /// Name of the state.
    pub fn word(self) -> &'static str {
        match self {
            LegState::Waiting => "waiting",
            LegState::Done => "done",
            LegState::Suspended => "suspended",
            LegState::Ended => "ended",
            LegState::Awaiting => "awaiting",
        }
    }
}

/// Due leg with everything that sending needs.
#[derive(Debug, Clone, PartialEq)]
pub struct WaitingLeg {
    /// Message.
    pub message: MessageId,
    /// Port of receipt.
    pub from: Name,
    /// Kind.
    pub kind: MessageKind,
    /// For a reply: the request.
    pub answers: Option<MessageId>,
    /// See [`Head`].
    pub head: Head,
    /// Body.
    pub body: Bytes,
    /// Time of receipt.
    pub accepted_at: Timestamp,
    /// End of the reply timeout.
    pub expires_at: Option<Timestamp>,
    /// See [`NewLeg`].
    pub lane: Option<String>,
    /// Rank, if the port has priorities: time of receipt, less the priority's advance.
    pub rank: Option<Timestamp>,
    /// Leg.
    pub leg: Leg,
}

/// Outcome of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct LegOutcome {
    /// Message.
    pub message: MessageId,
    /// Exchange.
    pub exchange: Name,
    /// Leg number.
    pub leg: u32,
    /// Number of attempts, including this one.
    pub attempts: u32,
    /// Whether this is the leg's first attempt ever.
    pub is_first: bool,
    /// Whether the backup transport is used from here on.
    pub on_backup: bool,
    /// Response of the receiver, or the reason of the failure.
    pub said: String,
    /// Time.
    pub tried_at: Timestamp,
    /// Next state of the leg.
    pub then: LegTransition,
}

/// Next state of a leg after an attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum LegTransition {
    /// Done: the receiver accepted the message, with a reply if the port takes replies.
    Done(Option<Box<NewMessage>>),
    /// The receiver accepted the message; its reply comes through a receive port until this time.
    Await(Timestamp),
    /// Retry at this time.
    Retry(Timestamp),
    /// Suspend. A reply that does not match is stored beside it.
    Suspend(Option<Box<NewMessage>>),
}

/// Effect of a stored outcome on waiting callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettleResult {
    /// The leg was stored; it answers no request.
    Stored,
    /// The reply of the outcome answers the request.
    Answered,
    /// The reply was late: its request had been answered, had expired or was ended. It is stored as [`Ending::Late`].
    Late,
    /// The leg had ended meanwhile; nothing changed.
    Gone,
}

/// Timeouts found by an expiry run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExpiredMessages {
    /// Requests whose reply timeout passed; they are ended.
    pub expired: Vec<MessageId>,
    /// Messages with a leg whose later reply did not come in time; that leg is suspended.
    pub unanswered: Vec<MessageId>,
    /// Time of the next timeout.
    pub next: Option<Timestamp>,
}

/// Filter of messages; all given conditions must hold.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MessageFilter {
    /// Message id.
    pub id: Option<MessageId>,
    /// Exchange.
    pub exchange: Option<Name>,
    /// Port of receipt.
    pub port: Option<Name>,
    /// Original message of a part.
    pub part_of: Option<MessageId>,
    /// Send port of a leg.
    pub to: Option<Name>,
    /// Status.
    pub standing: Option<MessageStatus>,
    /// Text that the reason of the suspension contains.
    pub reason: Option<String>,
    /// Received before this time.
    pub before: Option<Timestamp>,
}

/// Suspended message as edited by an operator.
#[derive(Debug, Clone, PartialEq)]
pub struct EditedMessage {
    /// See [`Head`].
    pub head: Head,
    /// Body.
    pub body: Bytes,
    /// Suspended legs by number, with the keys that the new head gives them.
    pub legs: Vec<(u32, NewLeg)>,
    /// Whether anything differs from before.
    pub is_other: bool,
    /// Description of the change.
    pub change: String,
    /// Operator.
    pub by: String,
    /// Time.
    pub at: Timestamp,
}

/// Result of an edit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageEdit {
    /// The edit was stored; the original is kept.
    Done,
    /// Nothing of the message is suspended.
    NotSuspended,
    /// A leg still waits to be sent with the former content.
    Waits,
}

/// Message before its first edit.
#[derive(Debug, Clone, PartialEq)]
pub struct OriginalMessage {
    /// See [`Head`].
    pub head: Head,
    /// Body.
    pub body: Bytes,
    /// Operator of the first edit.
    pub by: String,
    /// Time.
    pub at: Timestamp,
}

/// Result of processing a suspended raw message again.
#[derive(Debug, Clone, PartialEq)]
pub enum ReprocessedMessage {
    /// One message with another head and body, and legs or another reason of suspension.
    One {
        /// See [`Head`].
        head: Box<Head>,
        /// Body.
        body: Bytes,
        /// Leg that it replies to, if any.
        answers: Option<(MessageId, u32)>,
        /// Legs.
        legs: Result<Vec<NewLeg>, String>,
    },
    /// Parts of a split message.
    Parts(Vec<NewMessage>),
    /// Part of an aggregation.
    Gathered {
        /// See [`Head`].
        head: Box<Head>,
        /// Body.
        body: Bytes,
        /// Aggregation rule.
        gather: AggregationRule,
    },
    /// It stays suspended, for this reason.
    Stuck(String),
}

/// Status of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MessageStatus {
    /// Not ended: waiting, or suspended.
    Open,
    /// The message or one of its legs is suspended.
    Suspended,
    /// Nothing is left to do.
    Ended,
}

/// Maximum number of history entries per message. Of more, the oldest after the first ones are dropped.
pub const HISTORY_MAX: u32 = 200;

/// Number of entries at the beginning of a history that are never dropped: they explain why the message has one.
pub const HISTORY_FIRST: u32 = 20;

/// Maximum size of a history entry's text in bytes; longer texts are cut.
pub const HISTORY_TEXT_BYTES_MAX: usize = 1_024;

/// History entry: an attempt to send a message, or an action on it. A successful first attempt has no entry, since
/// the leg has the same data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryEntry {
    /// Number within the message, from 1. Gaps are dropped entries.
    pub number: u32,
    /// Time.
    pub at: Timestamp,
    /// Action.
    pub act: HistoryAction,
    /// Send port, if the entry is about a leg.
    pub port: Option<Name>,
    /// For an attempt: its number on its transport.
    pub attempt: Option<u32>,
    /// For an attempt: whether the backup transport made it.
    pub on_backup: bool,
    /// API key of the operator; empty for the server.
    pub by: Box<str>,
    /// The receiver's answer, or the reason.
    pub text: Box<str>,
}

/// Actions in a message's history. Their positions are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HistoryAction {
    /// An attempt succeeded.
    Sent,
    /// An attempt failed, and the leg is tried again.
    Failed,
    /// The main transport failed finally; the backup transport takes over.
    Backup,
    /// The receiver accepted the message, and its reply comes later.
    Awaiting,
    /// A leg, or the message as a whole, was suspended.
    Suspended,
    /// An operator resumed it.
    Resumed,
    /// An operator edited it.
    Edited,
    /// An operator ended it.
    Ended,
    /// The reply timeout passed.
    Expired,
    /// It was routed again.
    Routed,
    /// Its later reply came.
    Replied,
}

impl HistoryAction {
    /// All actions.
    pub const ALL: [HistoryAction; 11] = [
        HistoryAction::Sent,
        HistoryAction::Failed,
        HistoryAction::Backup,
        HistoryAction::Awaiting,
        HistoryAction::Suspended,
        HistoryAction::Resumed,
        HistoryAction::Edited,
        HistoryAction::Ended,
        HistoryAction::Expired,
        HistoryAction::Routed,
        HistoryAction::Replied,
    ];

    /// Name of the action.
    pub fn word(self) -> &'static str {
        match self {
            HistoryAction::Sent => "sent",
            HistoryAction::Failed => "failed",
            HistoryAction::Backup => "backup",
            HistoryAction::Awaiting => "awaiting",
            HistoryAction::Suspended => "suspended",
            HistoryAction::Resumed => "resumed",
            HistoryAction::Edited => "edited",
            HistoryAction::Ended => "ended",
            HistoryAction::Expired => "expired",
            HistoryAction::Routed => "routed",
            HistoryAction::Replied => "replied",
        }
    }
}

/// Number of messages and legs affected by an operator's action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AffectedCounts {
    /// Messages.
    pub messages: u64,
    /// Legs of them.
    pub legs: u64,
}

impl AffectedCounts {
    /// Sum of several counts.
    pub fn sum(acts: impl IntoIterator<Item = AffectedCounts>) -> AffectedCounts {
        let add = |sum: AffectedCounts, one: AffectedCounts| AffectedCounts {
            messages: sum.messages + one.messages,
            legs: sum.legs + one.legs,
        };
        acts.into_iter().fold(AffectedCounts::default(), add)
    }
}

/// Definition of an exchange as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredExchange {
    /// Name.
    pub name: Name,
    /// Version, incremented by each change.
    pub version: u32,
    /// Text of the definition.
    pub text: String,
    /// Author.
    pub author: String,
    /// Time of the change.
    pub applied_at: Timestamp,
}

/// Send port with a state set by an operator.
#[derive(Debug, Clone, PartialEq)]
pub struct SetPort {
    /// Exchange.
    pub exchange: Name,
    /// Port.
    pub port: Name,
    /// State.
    pub state: PortState,
}

/// Rate limit set by an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetRate {
    /// Exchange.
    pub exchange: Name,
    /// Receiving or sending side.
    pub side: FlowSide,
    /// Port; `None`: all ports together.
    pub port: Option<Name>,
    /// Rate limit.
    pub rate: Rate,
}

/// Start or end of throttling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThrottleChange {
    /// Time.
    pub at: Timestamp,
    /// Exchange.
    pub exchange: Name,
    /// Receiving or sending side.
    pub side: FlowSide,
    /// Port that causes it, if any.
    pub port: Option<Name>,
    /// Reason.
    pub reason: ThrottleReason,
    /// Start or end.
    pub begins: bool,
    /// Description.
    pub detail: String,
}

/// Row counts. Cheap to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpoolCounts {
    /// Messages that have not ended.
    pub open: u64,
}

/// Load of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PartitionLoad {
    /// Messages that have not ended.
    pub open: u64,
    /// Size of its file and WAL in bytes.
    pub bytes: u64,
}
