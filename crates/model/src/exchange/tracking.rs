//! At which points of its way the body of a message is kept for people to look at.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

use super::JsonPath;
use crate::id::{IdError, MessageId, Name};

/// A point of a message's way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrackPoint {
    /// As it came, before the steps of its receive port.
    Received,
    /// As it leaves, after the steps of the send port; at each attempt.
    Sent,
    /// As the far side replied, before the steps that replies go through.
    Replied,
    /// As its caller is given the reply.
    Returned,
}

impl TrackPoint {
    /// All of them, in the order of the way.
    pub const ALL: [TrackPoint; 4] =
        [TrackPoint::Received, TrackPoint::Sent, TrackPoint::Replied, TrackPoint::Returned];

    /// Those that lie at receive ports.
    pub const OF_RECEIVE: [TrackPoint; 2] = [TrackPoint::Received, TrackPoint::Returned];

    /// Those that lie at send ports.
    pub const OF_SEND: [TrackPoint; 2] = [TrackPoint::Sent, TrackPoint::Replied];

    /// Its one word.
    pub fn word(self) -> &'static str {
        match self {
            TrackPoint::Received => "received",
            TrackPoint::Sent => "sent",
            TrackPoint::Replied => "replied",
            TrackPoint::Returned => "returned",
        }
    }
}

/// The text names no point.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no point at which bodies are tracked: give `received`, `sent`, `replied` or `returned`")]
pub struct TrackPointError(pub String);

impl FromStr for TrackPoint {
    type Err = TrackPointError;

    fn from_str(text: &str) -> Result<TrackPoint, TrackPointError> {
        let found = TrackPoint::ALL.into_iter().find(|point| point.word() == text);
        found.ok_or_else(|| TrackPointError(text.to_owned()))
    }
}

/// What is tracked of the messages of a port.
#[derive(Debug, Clone, PartialEq)]
pub struct Tracking {
    /// Where bodies are kept.
    pub points: Vec<TrackPoint>,
    /// Of how many messages in a hundred. A message is tracked at all these points or at none.
    pub sample_percent: u8,
    /// What is struck out of bodies of JSON. A body that is no JSON is not kept then.
    pub redact: Vec<JsonPath>,
    /// What a body is cut to.
    pub body_bytes_max: u32,
    /// For how long.
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
    /// Whether the body of this message is kept at this point. All points of a message agree, so that a sample has whole ways.
    pub fn takes(&self, point: TrackPoint, message: MessageId) -> bool {
        // Ids follow each other; the multiplication scatters them, so that a sample follows no rhythm of the senders.
        let drawn = (message.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % 100;
        drawn < u64::from(self.sample_percent) && self.points.contains(&point)
    }
}

/// Where an operator sets what is tracked.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TrackPlace {
    /// At all ports of an exchange for which nothing is set.
    Exchange,
    /// At the ports of this name.
    Ports(Name),
    /// On the ways of the messages that this route leads.
    Route(Name),
}

/// What begins the text of a route; no name has it.
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

/// What an operator has set against the definition.
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
