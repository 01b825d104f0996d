//! How systems talk through the platform: an [`Exchange`] has receive ports where messages come in, send ports where they
//! leave, and routes that say which go where, by what they hold.

use std::{collections::BTreeMap, fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    application::RetrySchedule,
    field::{Field, FieldType, Fields},
    filter::Filter,
    id::Name,
    value::Value,
};

mod flow; // how fast messages may come and leave
mod path; // where a property stands in a body of JSON
mod pipeline; // what is done to messages at a port
mod tracking; // which bodies are kept on the way
mod window; // the hours at which a port works
mod xml_path; // where a property stands in a body of XML

pub use flow::{FlowSide, FlowWordError, MessageFlow, RateError, ThrottleReason};
pub use path::{JsonPath, JsonPathError};
pub use pipeline::{Assembled, Assembly, Compression, Pipeline, Split, Step, TransformLanguage, Validation};
pub use tracking::{TrackPlace, TrackPoint, TrackPointError, TrackSwitch, Tracking};
pub use window::ServiceWindow;
pub use xml_path::{XmlEnd, XmlPath, XmlPathError, XmlStep};

/// What is known of every message without being declared; properties have other names.
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
    /// What it is for.
    pub description: Option<String>,
    /// What is taken out of each message for routes and searches, in the order of the definition.
    pub properties: Vec<Property>,
    /// Where messages come in.
    pub receive: BTreeMap<Name, ReceivePort>,
    /// Where they leave.
    pub send: BTreeMap<Name, SendPort>,
    /// Send ports that are named together.
    pub groups: BTreeMap<Name, Vec<Name>>,
    /// Which go where.
    pub routes: BTreeMap<Name, Route>,
    /// How long a message is kept after it ended; for as long an idempotency key gets the stored reply.
    pub retention: Duration,
    /// Most messages that are not ended; with more the receive ports refuse.
    pub open_messages_max: u64,
    /// When the receive ports take no more for a while.
    pub flow: MessageFlow,
}

impl Exchange {
    /// What routes see of a message: [`CONTEXT_FIELDS`], then the properties.
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

/// A value that is taken out of each message.
#[derive(Debug, Clone, PartialEq)]
pub struct Property {
    /// Its name.
    pub name: Name,
    /// What it holds. A message in which something else stands there has no such property.
    pub kind: FieldType,
    /// Where it stands.
    pub from: Place,
    /// Whether messages are found by it.
    pub search: bool,
}

/// Where a property stands in a message.
#[derive(Debug, Clone, PartialEq)]
pub enum Place {
    /// In a body of JSON.
    Json(JsonPath),
    /// In a body of XML.
    Xml(XmlPath),
    /// In a header, by its name in lower case.
    Header(String),
}

/// Whether who gives a message waits for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// It does not.
    OneWay,
    /// It waits for a reply.
    Request,
}

/// Where messages come in.
#[derive(Debug, Clone, PartialEq)]
pub struct ReceivePort {
    /// What it is for.
    pub description: Option<String>,
    /// Whether those who send to it wait for a reply.
    pub mode: Mode,
    /// Whether it takes anything.
    pub enabled: bool,
    /// How long a caller is held open before it is told where the reply will be.
    pub wait: Duration,
    /// When a request is over that nobody answered.
    pub expires_after: Duration,
    /// Whether each request is stored before it leaves. Otherwise one without an idempotency key, whose caller waits, leaves at
    /// once if nothing is before it, and is stored with what comes of it.
    pub store_first: bool,
    /// Most bytes of a body.
    pub body_bytes_max: u32,
    /// What is done to a message before it is routed.
    pub pipeline: Pipeline,
    /// When it takes messages; `None`: always.
    pub window: Option<ServiceWindow>,
    /// Which bodies are kept.
    pub tracking: Tracking,
    /// Where messages are taken from, beside those that are sent here.
    pub locations: BTreeMap<Name, Location>,
}

/// Where a receive port takes messages from.
#[derive(Debug, Clone, PartialEq)]
pub struct Location {
    /// What it is for.
    pub description: Option<String>,
    /// What kind of place it is: a kind of source.
    pub kind: Name,
    /// What the kind needs to know; checked where it is known.
    pub options: serde_json::Map<String, serde_json::Value>,
    /// Whether anything is taken.
    pub enabled: bool,
    /// When it is, within the window of the port; `None`: whenever that is open.
    pub window: Option<ServiceWindow>,
    /// The media type of bodies of which the far side says none.
    pub content_type: Option<String>,
}

/// Where messages leave.
#[derive(Debug, Clone, PartialEq)]
pub struct SendPort {
    /// What it is for.
    pub description: Option<String>,
    /// Whether what the far side answers is a message too.
    pub mode: Mode,
    /// Whether it sends.
    pub state: PortState,
    /// How it sends, and another way for when that does not work.
    pub transport: Transport,
    /// See `transport`.
    pub backup: Option<Transport>,
    /// Most requests that are under way.
    pub concurrency: u32,
    /// Properties that a reply must have in common with its request.
    pub correlate: Vec<Name>,
    /// How its replies come, if they are not what the far side answers.
    pub later: Option<LaterReplies>,
    /// What is done to a message before it leaves, at each attempt.
    pub pipeline: Pipeline,
    /// What is done to a reply before it is stored.
    pub reply_pipeline: Pipeline,
    /// When it sends; `None`: always.
    pub window: Option<ServiceWindow>,
    /// Which messages leave before others.
    pub order: SendOrder,
    /// Which bodies are kept.
    pub tracking: Tracking,
}

/// Replies that come some time after the far side has taken a message, as messages of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaterReplies {
    /// The receive port that they come through.
    pub through: Name,
    /// How long after the message was taken one is waited for.
    pub within: Duration,
}

/// Which of the messages that wait for a send port leaves first.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum SendOrder {
    /// The one that is due the longest.
    #[default]
    Due,
    /// Of those with the same values of these properties the one that came first, and the next only when it is known what
    /// became of it.
    Keyed {
        /// The properties.
        by: Vec<Name>,
        /// Whether a suspended message keeps those behind it.
        stops: bool,
    },
    /// The one of the highest priority.
    Priority {
        /// The property that holds it, an integer from 0 to 9.
        by: Name,
        /// After how long a message that waits has one more.
        ageing: Duration,
    },
}

/// Whether a send port sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortState {
    /// No route leads to it.
    Off,
    /// What is routed to it waits.
    Hold,
    /// It does.
    #[default]
    Active,
}

impl PortState {
    /// All of them.
    pub const ALL: [PortState; 3] = [PortState::Off, PortState::Hold, PortState::Active];

    /// Its one word.
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

/// The text is no state of a port.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no state of a port: give `off`, `hold` or `active`")]
pub struct PortStateError(pub String);

impl FromStr for PortState {
    type Err = PortStateError;

    fn from_str(text: &str) -> Result<PortState, PortStateError> {
        let found = PortState::ALL.into_iter().find(|state| state.word() == text);
        found.ok_or_else(|| PortStateError(text.to_owned()))
    }
}

/// One way to a far side.
#[derive(Debug, Clone, PartialEq)]
pub struct Transport {
    /// The protocol.
    pub protocol: Name,
    /// What it needs to know; checked where the protocol is known.
    pub options: serde_json::Map<String, serde_json::Value>,
    /// When it is tried again.
    pub retry: RetrySchedule,
}

/// Which messages go where.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    /// What it is for.
    pub description: Option<String>,
    /// What a message must be like.
    pub when: Filter,
    /// The send ports that get it, those of groups among them.
    pub to: Vec<Name>,
    /// Which bodies of these messages are kept, beside those that their ports ask for.
    pub tracking: Tracking,
}

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MessageKind {
    /// Nobody waits for an answer to it.
    OneWay,
    /// Its sender waits for a reply.
    Request,
    /// It answers another.
    Reply,
}

impl MessageKind {
    /// All of them.
    pub const ALL: [MessageKind; 3] = [MessageKind::OneWay, MessageKind::Request, MessageKind::Reply];

    /// Its one word, which routes see as `message.kind`.
    pub fn word(self) -> &'static str {
        match self {
            MessageKind::OneWay => "one_way",
            MessageKind::Request => "request",
            MessageKind::Reply => "reply",
        }
    }
}
