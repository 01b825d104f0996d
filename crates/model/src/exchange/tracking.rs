//! Tracking: the points at which message bodies are stored for inspection.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

use super::JsonPath;
use crate::id::{IdError, MessageId, Name};

/// A tracking point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrackPoint {
    /// The received body, before the steps of the receive port.
    Received,
    /// The sent body, after the steps of the send port; at each attempt.
    Sent,
    /// The peer's reply, before the steps for replies.
    Replied,
    /// The reply returned to the caller.
    Returned,
}

impl TrackPoint {
    /// All points, in order.
    pub const ALL: [TrackPoint; 4] =
        [TrackPoint::Received, TrackPoint::Sent, TrackPoint::Replied, TrackPoint::Returned];

    /// Points of receive ports.
    pub const OF_RECEIVE: [TrackPoint; 2] = [TrackPoint::Received, TrackPoint::Returned];

    /// Points of send ports.
    pub const OF_SEND: [TrackPoint; 2] = [TrackPoint::Sent, TrackPoint::Replied];

    /// Its name.
    pub fn word(self) -> &'static str {
        match self {
            TrackPoint::Received => "received",
            TrackPoint::Sent => "sent",
            TrackPoint::Replied => "replied",
            TrackPoint::Returned => "returned",
        }
    }
}

/// A text that names no tracking point.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a tracking point: use `received`, `sent`, `replied` or `returned`")]
pub struct TrackPointError(pub String);

impl FromStr for TrackPoint {
    type Err = TrackPointError;

    fn from_str(text: &str) -> Result<TrackPoint, TrackPointError> {
        let found = TrackPoint::ALL.into_iter().find(|point| point.word() == text);
        found.ok_or_else(|| TrackPointError(text.to_owned()))
    }
}

/// Tracking of a port's messages.
#[derive(Debug, Clone, PartialEq)]
pub struct Tracking {
    /// Points at which bodies are stored.
    pub points: Vec<TrackPoint>,
    /// Sampling rate in percent. A message is tracked at all these points or at none.
    pub sample_percent: u8,
    /// Values removed from JSON bodies. A body that is not JSON is then not stored.
    pub redact: Vec<JsonPath>,
    /// Bodies are cut to this length.
    pub body_bytes_max: u32,
    /// Retention.
    pub kept: Duration,
}

impl Default for Tracking {
    fn default() -> Self {
        Tracking {
            points: Vec::new(),
            sample_percent: 100,
            redact: Vec::new(),
            body_bytes_max: 64 << 10,
            kept: Duration::from_secs(3 * 86_400),
        }
    }
}

impl Tracking {
    /// Whether the body of this message is stored at this point. All points of a message agree, so that a sampled
    /// message is complete.
    pub fn takes(&self, point: TrackPoint, message: MessageId) -> bool {
        // Ids are consecutive; the multiplication scatters them, so that sampling does not follow a pattern of the
        // senders.
        let drawn = (message.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % 100;
        drawn < u64::from(self.sample_percent) && self.points.contains(&point)
    }
}

/// Scope of an operator's tracking setting.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TrackPlace {
    /// All ports of an exchange without a setting of their own.
    Exchange,
    /// At the ports of this name.
    Ports(Name),
    /// Messages of this route.
    Route(Name),
}

/// Prefix of a route; no name begins with it.
const ROUTE: &str = "route/";

/// Empty for the exchange, the name of ports, `route/` and the name of a route.
impl fmt::Display for TrackPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TrackPlace::Exchange => Ok(()),
            TrackPlace::Ports(name) => f.write_str(name.as_str()),
            TrackPlace::Route(name) => write!(f, "{ROUTE}{name}"),
        }
    }
}

impl FromStr for TrackPlace {
    type Err = IdError;

    fn from_str(text: &str) -> Result<TrackPlace, IdError> {
        match text.strip_prefix(ROUTE) {
            Some(name) => name.parse().map(TrackPlace::Route),
            None if text.is_empty() => Ok(TrackPlace::Exchange),
            None => text.parse().map(TrackPlace::Ports),
        }
    }
}

/// An operator's setting, which overrides the definition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrackSwitch {
    /// See [`Tracking`].
    pub points: Vec<TrackPoint>,
    /// See [`Tracking`].
    pub sample_percent: u8,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_of_whole_ways_and_of_about_the_part_that_was_asked_for() {
        let tracking = Tracking { points: TrackPoint::ALL.to_vec(), sample_percent: 10, ..Tracking::default() };
        let taken = |point| (1..=10_000).map(MessageId).filter(|id| tracking.takes(point, *id)).collect::<Vec<_>>();
        let received = taken(TrackPoint::Received);
        assert_eq!(received, taken(TrackPoint::Returned));
        assert!((900..1_100).contains(&received.len()), "{}", received.len());
        let all = Tracking { sample_percent: 100, ..tracking.clone() };
        assert!((1..=1_000).all(|id| all.takes(TrackPoint::Sent, MessageId(id))));
        let none = Tracking { sample_percent: 0, ..tracking };
        assert!(!(1..=1_000).any(|id| none.takes(TrackPoint::Sent, MessageId(id))));
    }
}
