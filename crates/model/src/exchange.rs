//! Exchanges between systems. An [`Exchange`] has receive ports for incoming messages, send ports for outgoing ones,
//! and routes that select send ports by the message's properties.

use std::{collections::BTreeMap, fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    application::RetrySchedule,
    field::{Field, FieldType, Fields},
    filter::Filter,
    id::Name,
    value::Value,
};

mod flow; // flow control of receive and send ports
mod path; // JSON paths of properties
mod pipeline; // pipeline steps at a port
mod tracking; // tracking: which message bodies are stored
mod window; // service windows of ports
mod xml_path; // XML paths of properties

pub use flow::{FlowSide, FlowWordError, MessageFlow, RateError, ThrottleReason};
pub use path::{JsonPath, JsonPathError};
pub use pipeline::{Assembled, Assembly, Compression, Pipeline, Split, Step, TransformLanguage, Validation};
pub use tracking::{TrackPlace, TrackPoint, TrackPointError, TrackSwitch, Tracking};
pub use window::ServiceWindow;
pub use xml_path::{XmlEnd, XmlPath, XmlPathError, XmlStep};

/// Predefined fields of every message; properties must have other names.
pub const CONTEXT_FIELDS: [(&str, FieldType); 4] = [
    ("port", FieldType::String),
    ("kind", FieldType::String),
    ("content_type", FieldType::String),
    ("bytes", FieldType::Integer),
];

/// A named set of ports and routes, as its definition says.
#[derive(Debug, Clone, PartialEq)]
pub struct Exchange {
    /// Its name.
    pub name: Name,
    /// A description for readers.
    pub description: Option<String>,
    /// Values extracted from each message for routes and searches, in the order of the definition.
    pub properties: Vec<Property>,
    /// Receive ports.
    pub receive: BTreeMap<Name, ReceivePort>,
    /// Send ports.
    pub send: BTreeMap<Name, SendPort>,
    /// Named groups of send ports.
    pub groups: BTreeMap<Name, Vec<Name>>,
    /// Routes from messages to send ports.
    pub routes: BTreeMap<Name, Route>,
    /// Retention of ended messages; for this time an idempotency key gets the stored reply.
    pub retention: Duration,
    /// Most open messages; above this the receive ports refuse.
    pub open_messages_max: u64,
    /// Flow control of the receive ports.
    pub flow: MessageFlow,
}

impl Exchange {
    /// Fields that routes see: [`CONTEXT_FIELDS`], then the properties.
    pub fn fields(&self) -> Fields {
        let context = CONTEXT_FIELDS.iter().map(|(name, kind)| Field {
            name: name.parse().expect("the names of the context are names"),
            kind: *kind,
            required: false,
            default: Value::Null,
            description: None,
        });
        let properties = self.properties.iter().map(|property| Field {
            name: property.name.clone(),
            kind: property.kind,
            required: false,
            default: Value::Null,
            description: None,
        });
        Fields::new(context.chain(properties).collect())
    }
}

/// A property: a value extracted from each message (promotion).
#[derive(Debug, Clone, PartialEq)]
pub struct Property {
    /// Its name.
    pub name: Name,
    /// Its type. A message with a value of another type lacks the property.
    pub kind: FieldType,
    /// Its location.
    pub from: PropertyLocation,
    /// Whether messages can be searched by it.
    pub search: bool,
}

/// Location of a property in a message.
#[derive(Debug, Clone, PartialEq)]
pub enum PropertyLocation {
    /// In a body of JSON.
    Json(JsonPath),
    /// In a body of XML.
    Xml(XmlPath),
    /// In a header, by its name in lower case.
    Header(String),
}

/// Whether the sender of a message waits for a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// It does not.
    OneWay,
    /// It waits for a reply.
    Request,
}

/// A receive port: accepts messages.
#[derive(Debug, Clone, PartialEq)]
pub struct ReceivePort {
    /// A description for readers.
    pub description: Option<String>,
    /// Whether senders wait for a reply.
    pub mode: Mode,
    /// Whether it accepts messages.
    pub enabled: bool,
    /// Time that a caller waits synchronously; then it gets the location of the reply.
    pub wait: Duration,
    /// Expiry of an unanswered request.
    pub expires_after: Duration,
    /// Whether each request is stored before it is dispatched. Otherwise a request without an idempotency key whose
    /// caller waits is dispatched at once if no other message is queued before it, and stored with its result.
    pub store_first: bool,
    /// Most bytes of a body.
    pub body_bytes_max: u32,
    /// Pipeline that runs before routing.
    pub pipeline: Pipeline,
    /// Service window; `None`: always.
    pub window: Option<ServiceWindow>,
    /// Tracking of message bodies.
    pub tracking: Tracking,
    /// Receive locations: sources that it polls, in addition to messages sent to it.
    pub locations: BTreeMap<Name, Location>,
}

/// A receive location: a source that a receive port takes messages from.
#[derive(Debug, Clone, PartialEq)]
pub struct Location {
    /// A description for readers.
    pub description: Option<String>,
    /// Its kind: a kind of source.
    pub kind: Name,
    /// Options of the kind; checked by its implementation.
    pub options: serde_json::Map<String, serde_json::Value>,
    /// Whether it is active.
    pub enabled: bool,
    /// Its service window, within that of the port; `None`: that of the port.
    pub window: Option<ServiceWindow>,
    /// Media type of bodies without one.
    pub content_type: Option<String>,
}

/// A send port: sends messages to another system.
#[derive(Debug, Clone, PartialEq)]
pub struct SendPort {
    /// A description for readers.
    pub description: Option<String>,
    /// Whether the response is a message too.
    pub mode: Mode,
    /// Its state.
    pub state: PortState,
    /// Primary transport.
    pub transport: Transport,
    /// Backup transport, used when all attempts by the primary one have failed.
    pub backup: Option<Transport>,
    /// Most concurrent requests.
    pub concurrency: u32,
    /// Properties in which a reply must equal its request.
    pub correlate: Vec<Name>,
    /// Asynchronous replies, if the response is not the reply.
    pub later: Option<LaterReplies>,
    /// Pipeline of outgoing messages, run at each attempt.
    pub pipeline: Pipeline,
    /// Pipeline of replies, run before they are stored.
    pub reply_pipeline: Pipeline,
    /// Service window; `None`: always.
    pub window: Option<ServiceWindow>,
    /// Order of messages.
    pub order: SendOrder,
    /// Tracking of message bodies.
    pub tracking: Tracking,
}

/// Asynchronous replies (correlation): messages that arrive later through a receive port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaterReplies {
    /// The receive port of the replies.
    pub through: Name,
    /// Timeout of a reply, from the acceptance of the message.
    pub within: Duration,
}

/// Order in which waiting messages leave a send port.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum SendOrder {
    /// By due time.
    #[default]
    Due,
    /// Ordered delivery by key: messages with equal values of these properties leave in order, each after the outcome
    /// of the previous one.
    Keyed {
        /// The properties.
        by: Vec<Name>,
        /// Whether a suspended message blocks those behind it.
        stops: bool,
    },
    /// By priority.
    Priority {
        /// The property with the priority, an integer from 0 to 9.
        by: Name,
        /// Waiting time that raises the priority by one (aging).
        ageing: Duration,
    },
}

/// State of a send port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortState {
    /// Disabled: no route leads to it.
    Off,
    /// Paused: routed messages wait.
    Hold,
    /// Active.
    #[default]
    Active,
}

impl PortState {
    /// All states.
    pub const ALL: [PortState; 3] = [PortState::Off, PortState::Hold, PortState::Active];

    /// Its name.
    pub fn word(self) -> &'static str {
        match self {
            PortState::Off => "off",
            PortState::Hold => "hold",
            PortState::Active => "active",
        }
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// A text that names no state of a port.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a state of a port: use `off`, `hold` or `active`")]
pub struct PortStateError(pub String);

impl FromStr for PortState {
    type Err = PortStateError;

    fn from_str(text: &str) -> Result<PortState, PortStateError> {
        let found = PortState::ALL.into_iter().find(|state| state.word() == text);
        found.ok_or_else(|| PortStateError(text.to_owned()))
    }
}

/// A transport of a send port: protocol, options and retry policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Transport {
    /// The protocol.
    pub protocol: Name,
    /// Options of the protocol; checked by its implementation.
    pub options: serde_json::Map<String, serde_json::Value>,
    /// Retry policy.
    pub retry: RetrySchedule,
}

/// A route: selects send ports for messages.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    /// A description for readers.
    pub description: Option<String>,
    /// Filter of the messages.
    pub when: Filter,
    /// The send ports, including those of groups.
    pub to: Vec<Name>,
    /// Tracking of these messages, in addition to that of their ports.
    pub tracking: Tracking,
}

/// Kind of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MessageKind {
    /// No reply is expected.
    OneWay,
    /// Its sender waits for a reply.
    Request,
    /// It is the reply to another message.
    Reply,
}

impl MessageKind {
    /// All kinds.
    pub const ALL: [MessageKind; 3] = [MessageKind::OneWay, MessageKind::Request, MessageKind::Reply];

    /// Its name, the value of `message.kind` in routes.
    pub fn word(self) -> &'static str {
        match self {
            MessageKind::OneWay => "one_way",
            MessageKind::Request => "request",
            MessageKind::Reply => "reply",
        }
    }
}
