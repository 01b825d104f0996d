//! What the spool keeps: the messages of exchanges, each body once, and a leg for every send port that a message goes to.
//!
//! A message is stored with its legs in one commit, before anything of it leaves; what became of a leg, the reply that came
//! of it and the legs of that reply are one commit too. So a round trip costs two shared fsyncs, and after a crash the spool
//! says exactly what is still to be done. A request that nobody could ask for again may leave first, and be stored with what
//! comes of it.

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

/// What is known of a message beside its body.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Head {
    /// The media type of its body.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub content_type: String,
    /// Headers that travel with it, names in lower case.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// The promoted properties by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub properties: Vec<(Name, Value)>,
    /// How many replies came before it, each to the one before: what goes round and round is noticed by it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hops: u32,
    /// Whether its body is as it came: the steps of its port did not get to their end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub raw: bool,
    /// How often an operator has changed what is sent.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub edits: u32,
    /// Where it stands in a trace that runs through many systems: what leads to it.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "trace_text")]
    pub trace: Option<Box<TraceContext>>,
}

/// A place in a trace as it travels: `traceparent`, and `tracestate` if there is one.
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

/// A part of the spool, from 0: a file with its own writer. A message, its legs, its parts and its replies are in one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionNumber(pub u8);

/// What a message that comes must be in one partition with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beside<'a> {
    /// With nothing.
    Nothing,
    /// With what its caller sent under the same idempotency key.
    Key(&'a str),
    /// With all others that locations of its port take, or that are gathered there.
    Port,
    /// With all others that come through these ports: they may be the replies to each other.
    Ports(&'a [Name]),
}

/// A message that asks to be stored.
#[derive(Debug, Clone, PartialEq)]
pub struct NewMessage {
    /// Its id, from [`crate::sqlite::spool::SqliteSpool::next_id`]. It says the partition.
    pub id: MessageId,
    /// Its exchange.
    pub exchange: Name,
    /// The receive port it came through; of a reply the send port.
    pub port: Name,
    /// What it is.
    pub kind: MessageKind,
    /// Of a reply: what it answers.
    pub answers: Option<MessageId>,
    /// Of a reply that came through a receive port: the leg of that message which waits for it. If none does any more when
    /// this is stored, the reply is [`Ending::Late`] and goes nowhere.
    pub settles: Option<u32>,
    /// The message that it is a part of, if one was split.
    pub part_of: Option<MessageId>,
    /// What makes a repetition known as such.
    pub key: Option<IdempotencyKey>,
    /// The API key that sent it, which alone may ask for its reply; empty if it came in another way.
    pub sender: Box<str>,
    /// See [`Head`].
    pub head: Head,
    /// Its body.
    pub body: Bytes,
    /// Where it goes.
    pub legs: Vec<NewLeg>,
    /// Why it goes nowhere, if so: it is suspended.
    pub suspended: Option<String>,
    /// When it came.
    pub accepted_at: Timestamp,
    /// Of a request: when it is over without an answer.
    pub expires_at: Option<Timestamp>,
    /// How long it is kept after it ended.
    pub kept: Duration,
}

impl NewMessage {
    /// The same with its ways; or, with the reason why it has none, suspended.
    pub fn routed(self, ways: Result<Vec<NewLeg>, String>) -> NewMessage {
        let (legs, suspended) = match ways {
            Ok(legs) => (legs, None),
            Err(reason) => (Vec::new(), Some(reason)),
        };
        NewMessage { legs, suspended, ..self }
    }

    /// The same as the reply to a message that waits for it, if it is one.
    pub fn answering(self, waiting: Option<(MessageId, u32)>) -> NewMessage {
        match waiting {
            None => self,
            Some((id, leg)) => {
                NewMessage { kind: MessageKind::Reply, answers: Some(id), settles: Some(leg), expires_at: None, ..self }
            }
        }
    }
}

/// A place from which messages are taken.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LocationKey {
    /// The exchange.
    pub exchange: Name,
    /// The receive port.
    pub port: Name,
    /// Its location.
    pub location: Name,
}

/// A message that a location took.
#[derive(Debug, Clone, PartialEq)]
pub struct TakenMessage {
    /// The message as it came, or what the steps of its port made of it.
    pub whole: NewMessage,
    /// What it became, if it was split.
    pub parts: Option<Vec<NewMessage>>,
    /// With which others it becomes one, if it does.
    pub gather: Option<Gather>,
}

impl From<NewMessage> for TakenMessage {
    /// It stays one, and alone.
    fn from(whole: NewMessage) -> TakenMessage {
        TakenMessage { whole, parts: None, gather: None }
    }
}

/// A way that a message is to take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewLeg {
    /// The send port.
    pub port: Name,
    /// Whether what the far side answers is a message too.
    pub replies: bool,
    /// Where that comes later, and by what it is known.
    pub awaits: Option<Awaits>,
    /// Where it leaves in order: the key that it has in common with those before and behind it.
    pub lane: Option<String>,
    /// Where priorities count: so much earlier than it came it takes its place.
    pub ahead: Option<Duration>,
}

/// A message waits for another: it comes through this receive port, and has this key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Awaits {
    /// The receive port.
    pub through: Name,
    /// The key, which both have in common.
    pub key: String,
}

/// A leg that waits for a message, or did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Awaiting {
    /// Its message.
    pub message: MessageId,
    /// Its number there.
    pub leg: u32,
    /// Whether it still does.
    pub waits: bool,
}

/// With which others a message becomes one, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gather {
    /// The key that it has in common with them.
    pub key: String,
    /// What is made of them, as who makes it has it.
    pub form: String,
    /// With so many they become one.
    pub count_max: u32,
    /// With so many bytes they become one.
    pub bytes_max: u64,
    /// So long after the first they become one.
    pub within: Duration,
    /// With this one they become one.
    pub closes: bool,
}

/// Messages that are to become one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gathering {
    /// Where they are.
    pub partition: PartitionNumber,
    /// Its number there.
    pub id: u64,
    /// The exchange.
    pub exchange: Name,
    /// The receive port.
    pub port: Name,
    /// See [`Gather`].
    pub form: String,
}

/// Which of the legs that wait for a send port are read first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LegOrder {
    /// Those that are due the longest.
    Due,
    /// Those of lanes as they came. Nothing of a lane is read behind a leg that is not due yet, or, if so asked, suspended.
    Lanes {
        /// See above.
        stops: bool,
    },
    /// By the time at which they came, less what they are ahead.
    Rank,
}

/// A caller's own name for a message, and what the body was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// The key; one for each receive port and sender.
    pub key: String,
    /// SHA-256 of the body.
    pub digest: [u8; 32],
}

/// What became of a message that asked to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accepted {
    /// It is stored.
    New,
    /// Its key had come before, with the same body.
    Known(MessageId),
    /// Its key had come before, with another body.
    Reused(MessageId),
}

/// A message as it is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredMessage {
    /// See [`NewMessage`], also for what follows.
    pub id: MessageId,
    /// Its exchange.
    pub exchange: Name,
    /// The port.
    pub port: Name,
    /// What it is.
    pub kind: MessageKind,
    /// Of a reply: what it answers.
    pub answers: Option<MessageId>,
    /// Its answer, if there is one.
    pub reply: Option<MessageId>,
    /// The message that it is a part of, if one was split.
    pub part_of: Option<MessageId>,
    /// See [`NewMessage`].
    pub sender: Box<str>,
    /// See [`Head`].
    pub head: Head,
    /// Bytes of its body.
    pub bytes: u64,
    /// When it came.
    pub accepted_at: Timestamp,
    /// When it is over without an answer.
    pub expires_at: Option<Timestamp>,
    /// When all was done.
    pub ended_at: Option<Timestamp>,
    /// What came of it, once that is known; see [`Ending`].
    pub ending: Option<Ending>,
    /// Why it is suspended as a whole.
    pub suspended: Option<String>,
    /// Where it goes.
    pub legs: Vec<Leg>,
}

/// How a message ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// All its legs are done.
    Delivered,
    /// It was answered, and all its legs are done.
    Answered,
    /// A request that nobody answered in time.
    Expired,
    /// An operator ended it.
    Ended,
    /// A reply that nobody waited for any more: its request had been answered, had expired or was ended.
    Late,
    /// A reply that does not belong to its request.
    Wrong,
    /// It became several messages, each with its own legs.
    Split,
    /// It became one message with others.
    Assembled,
}

impl Ending {
    /// All of them.
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

    /// Its one word.
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

/// One way of a message: to one send port.
#[derive(Debug, Clone, PartialEq)]
pub struct Leg {
    /// Its place among those of the message, from 0.
    pub number: u32,
    /// The send port.
    pub port: Name,
    /// Whether what the far side answers is a message too.
    pub replies: bool,
    /// The receive port through which that comes, if it comes later.
    pub through: Option<Name>,
    /// How it stands.
    pub state: LegState,
    /// How often it was tried, on the present transport.
    pub attempts: u32,
    /// Whether the port's backup transport is at it.
    pub on_backup: bool,
    /// When it is to be tried, while it waits; how long a later reply is waited for.
    pub due_at: Timestamp,
    /// When the last attempt was answered, or given up.
    pub tried_at: Option<Timestamp>,
    /// What the far side said last, or why there was no answer.
    pub said: Option<String>,
}

/// How a leg stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LegState {
    /// It is to be sent.
    Waiting,
    /// The far side took it.
    Done,
    /// It failed, and waits for an operator.
    Suspended,
    /// It was given up.
    Ended,
    /// The far side took it, and its reply is to come.
    Awaiting,
}

impl LegState {
    /// All of them. Their places are stored.
    pub const ALL: [LegState; 5] =
        [LegState::Waiting, LegState::Done, LegState::Suspended, LegState::Ended, LegState::Awaiting];

    /// Its one word.
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

/// A leg that is to be sent, with all that sending needs.
#[derive(Debug, Clone, PartialEq)]
pub struct WaitingLeg {
    /// The message.
    pub message: MessageId,
    /// The port that it came through.
    pub from: Name,
    /// What it is.
    pub kind: MessageKind,
    /// Of a reply: what it answers.
    pub answers: Option<MessageId>,
    /// See [`Head`].
    pub head: Head,
    /// Its body.
    pub body: Bytes,
    /// When it came.
    pub accepted_at: Timestamp,
    /// When it is over without an answer.
    pub expires_at: Option<Timestamp>,
    /// See [`NewLeg`].
    pub lane: Option<String>,
    /// When it came, less what it is ahead; where priorities count.
    pub rank: Option<Timestamp>,
    /// The leg.
    pub leg: Leg,
}

/// What came of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct LegOutcome {
    /// The message.
    pub message: MessageId,
    /// Its exchange.
    pub exchange: Name,
    /// The leg's number.
    pub leg: u32,
    /// How often it was tried, this time included.
    pub attempts: u32,
    /// Whether this is the first attempt that the leg ever had.
    pub is_first: bool,
    /// Whether the backup transport is at it, from here on.
    pub on_backup: bool,
    /// What the far side said, or why there was no answer.
    pub said: String,
    /// When.
    pub tried_at: Timestamp,
    /// What follows.
    pub then: Then,
}

/// What follows an attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum Then {
    /// The far side took it, and answered so if its port gets replies.
    Done(Option<Box<NewMessage>>),
    /// The far side took it, and its reply comes through a receive port, until this time.
    Await(Timestamp),
    /// It is tried again at this time.
    Retry(Timestamp),
    /// It waits for an operator. A reply that was no answer to it is kept beside it.
    Suspend(Option<Box<NewMessage>>),
}

/// What a stored outcome changed for those who wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// The leg is stored; nobody is answered by it.
    Stored,
    /// The message that was a request is answered by the reply of the outcome.
    Answered,
    /// The reply came when its request had been answered, had expired or was ended: it is kept as [`Ending::Late`].
    Late,
    /// The leg had been ended meanwhile. Nothing changed.
    Gone,
}

/// What was over when it was looked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Over {
    /// Requests that nobody answered in time: they are ended.
    pub expired: Vec<MessageId>,
    /// Messages for which no later reply came in time: that leg of each is suspended.
    pub unanswered: Vec<MessageId>,
    /// When the next one's time is over.
    pub next: Option<Timestamp>,
}

/// Which messages; conditions are joined by and.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MessageFilter {
    /// This one.
    pub id: Option<MessageId>,
    /// Of this exchange.
    pub exchange: Option<Name>,
    /// That came through this port.
    pub port: Option<Name>,
    /// That are parts of this one.
    pub part_of: Option<MessageId>,
    /// Of which a leg goes to this send port.
    pub to: Option<Name>,
    /// That stand so.
    pub standing: Option<Standing>,
    /// Whose reason to be suspended contains this text.
    pub reason: Option<String>,
    /// That came before.
    pub before: Option<Timestamp>,
}

/// What an operator makes of a suspended message.
#[derive(Debug, Clone, PartialEq)]
pub struct EditedMessage {
    /// See [`Head`].
    pub head: Head,
    /// Its body.
    pub body: Bytes,
    /// Suspended legs, by their numbers, with the keys that the head gives them.
    pub legs: Vec<(u32, NewLeg)>,
    /// Whether something is other than before.
    pub is_other: bool,
    /// The change, in words.
    pub change: String,
    /// Who made it so.
    pub by: String,
    /// When.
    pub at: Timestamp,
}

/// Whether a message could be edited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageEdit {
    /// It is as the operator wants it; what it was before the first edit is kept.
    Done,
    /// Nothing of it is suspended.
    NotSuspended,
    /// Something of it still waits to be sent as it was.
    Waits,
}

/// A message as it was before it was edited.
#[derive(Debug, Clone, PartialEq)]
pub struct OriginalMessage {
    /// See [`Head`].
    pub head: Head,
    /// Its body.
    pub body: Bytes,
    /// Who edited it first.
    pub by: String,
    /// When.
    pub at: Timestamp,
}

/// What a message became that was suspended as it came.
#[derive(Debug, Clone, PartialEq)]
pub enum Reworked {
    /// It has another head and body now, and legs or another reason to be suspended.
    One {
        /// See [`Head`].
        head: Box<Head>,
        /// Its body.
        body: Bytes,
        /// The leg that it is the reply to, if it is one.
        answers: Option<(MessageId, u32)>,
        /// Where it goes.
        legs: Result<Vec<NewLeg>, String>,
    },
    /// It became these.
    Parts(Vec<NewMessage>),
    /// It waits to become one with others.
    Gathered {
        /// See [`Head`].
        head: Box<Head>,
        /// Its body.
        body: Bytes,
        /// With which.
        gather: Gather,
    },
    /// It stays as it is, for this reason.
    Stuck(String),
}

/// How a message stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// Something of it is still to be done or suspended.
    Open,
    /// It, or a leg of it, waits for an operator.
    Suspended,
    /// Nothing is left to be done.
    Ended,
}

/// Most entries of the history of one message. Of more, the oldest behind the first ones are dropped.
pub const HISTORY_MAX: u32 = 200;

/// Entries at the beginning of a history that are never dropped: how it came that the message needed one.
pub const HISTORY_FIRST: u32 = 20;

/// Longest text of an entry of the history, in bytes; longer ones are cut.
pub const HISTORY_TEXT_BYTES_MAX: usize = 1_024;

/// An attempt to send a message, or an act on it, as its history keeps it. The first attempt of a leg that succeeds has no
/// entry: the leg says all of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryEntry {
    /// Its number among those of the message, from 1. Where one is missing, entries were dropped.
    pub number: u32,
    /// When.
    pub at: Timestamp,
    /// The act.
    pub act: HistoryAct,
    /// The send port of the leg, if it is of one.
    pub port: Option<Name>,
    /// For an attempt: its number on its transport.
    pub attempt: Option<u32>,
    /// For an attempt: whether the backup transport made it.
    pub on_backup: bool,
    /// The API key of the operator who did it; empty if the server did.
    pub by: Box<str>,
    /// The receiver's answer, or the reason.
    pub text: Box<str>,
}

/// What happened to a message. Their places are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HistoryAct {
    /// An attempt succeeded.
    Sent,
    /// An attempt failed, and the leg is tried again.
    Failed,
    /// The first transport gave up; the backup transport takes over.
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
    /// No reply came in time.
    Expired,
    /// It was routed anew.
    Routed,
    /// Its later reply came.
    Replied,
}

impl HistoryAct {
    /// All of them.
    pub const ALL: [HistoryAct; 11] = [
        HistoryAct::Sent,
        HistoryAct::Failed,
        HistoryAct::Backup,
        HistoryAct::Awaiting,
        HistoryAct::Suspended,
        HistoryAct::Resumed,
        HistoryAct::Edited,
        HistoryAct::Ended,
        HistoryAct::Expired,
        HistoryAct::Routed,
        HistoryAct::Replied,
    ];

    /// Its one word.
    pub fn word(self) -> &'static str {
        match self {
            HistoryAct::Sent => "sent",
            HistoryAct::Failed => "failed",
            HistoryAct::Backup => "backup",
            HistoryAct::Awaiting => "awaiting",
            HistoryAct::Suspended => "suspended",
            HistoryAct::Resumed => "resumed",
            HistoryAct::Edited => "edited",
            HistoryAct::Ended => "ended",
            HistoryAct::Expired => "expired",
            HistoryAct::Routed => "routed",
            HistoryAct::Replied => "replied",
        }
    }
}

/// What an operator's act changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Acted {
    /// Messages.
    pub messages: u64,
    /// Legs of them.
    pub legs: u64,
}

impl Acted {
    /// What several acts changed.
    pub fn sum(acts: impl IntoIterator<Item = Acted>) -> Acted {
        let add = |sum: Acted, one: Acted| Acted { messages: sum.messages + one.messages, legs: sum.legs + one.legs };
        acts.into_iter().fold(Acted::default(), add)
    }
}

/// A definition as it is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredExchange {
    /// The name.
    pub name: Name,
    /// Grows with each change.
    pub version: u32,
    /// The definition.
    pub text: String,
    /// Who stored it.
    pub author: String,
    /// When.
    pub applied_at: Timestamp,
}

/// A send port whose state an operator has set.
#[derive(Debug, Clone, PartialEq)]
pub struct SetPort {
    /// The exchange.
    pub exchange: Name,
    /// The port.
    pub port: Name,
    /// The state.
    pub state: PortState,
}

/// A rate that an operator has set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetRate {
    /// The exchange.
    pub exchange: Name,
    /// Where messages come in, or where they leave.
    pub side: FlowSide,
    /// At this port; `None`: at all of them together.
    pub port: Option<Name>,
    /// Most messages.
    pub rate: Rate,
}

/// Messages began to be slowed down, or are not any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThrottleChange {
    /// When.
    pub at: Timestamp,
    /// The exchange.
    pub exchange: Name,
    /// Where messages come in, or where they leave.
    pub side: FlowSide,
    /// The port for whose sake, if it is one.
    pub port: Option<Name>,
    /// Why.
    pub reason: ThrottleReason,
    /// Whether it begins; otherwise it ends.
    pub begins: bool,
    /// In words.
    pub detail: String,
}

/// How much there is. Cheap to tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpoolCounts {
    /// Messages that are not ended.
    pub open: u64,
}

/// How much there is in a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PartitionLoad {
    /// Messages that are not ended.
    pub open: u64,
    /// Bytes of its file and its log.
    pub bytes: u64,
}
