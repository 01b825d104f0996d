//! Tracked bodies and properties.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tocsin_model::{
    exchange::TrackPoint,
    id::{MessageId, Name},
    time::Timestamp,
};

/// A body at one point of the path of its message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrackedBody {
    /// The message; for a reply, its request.
    pub message: MessageId,
    /// The point.
    pub point: TrackPoint,
    /// The port at that point.
    pub port: Name,
    /// At a send port: the number of the leg, and the number of the attempt, starting with 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<(u32, u32)>,
    /// The time.
    pub at: Timestamp,
    /// The media type.
    pub content_type: String,
    /// Length of the original body in bytes.
    pub bytes: u64,
    /// The reason why the stored body differs from the original.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<BodyChange>,
    /// The body.
    #[serde(skip)]
    pub body: Bytes,
}

/// Reason why a tracked body differs from the original.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BodyChange {
    /// It was too long.
    Cut,
    /// Parts were redacted.
    Redacted,
    /// Parts had to be redacted but could not be located: nothing of it is stored.
    Withheld,
}

impl BodyChange {
    /// The word in answers.
    pub fn word(self) -> &'static str {
        match self {
            BodyChange::Cut => "cut",
            BodyChange::Redacted => "redacted",
            BodyChange::Withheld => "withheld",
        }
    }
}

/// Properties by which a message is found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IndexedProperties {
    /// The message.
    pub message: MessageId,
    /// The time of its acceptance.
    pub at: Timestamp,
    /// The properties, as text.
    pub properties: Vec<(Name, String)>,
}
