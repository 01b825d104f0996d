//! Flow control of exchanges: limits, rates, and the names of throttling reasons.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

use crate::application::Rate;

/// Flow control of an exchange, from its definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageFlow {
    /// Longest expected waiting time of a new message at a send port.
    pub wait_max: Duration,
    /// Most messages whose senders wait for a reply.
    pub in_flight_max: u32,
}

impl Default for MessageFlow {
    fn default() -> Self {
        MessageFlow { wait_max: Duration::from_secs(30), in_flight_max: 10_000 }
    }
}

/// Side on which messages are throttled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlowSide {
    /// At receive ports.
    Publishing,
    /// At send ports.
    Delivery,
}

impl FlowSide {
    /// Both sides.
    pub const ALL: [FlowSide; 2] = [FlowSide::Publishing, FlowSide::Delivery];

    /// Its name.
    pub fn word(self) -> &'static str {
        match self {
            FlowSide::Publishing => "publishing",
            FlowSide::Delivery => "delivery",
        }
    }
}

/// Reason for throttling. Its name is used in answers, logs and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThrottleReason {
    /// Set by an operator.
    Operator,
    /// Memory limit of the process.
    Memory,
    /// Disk space.
    Disk,
    /// Limit of open messages.
    StoreGrowth,
    /// Limit of messages in flight.
    InFlight,
    /// More messages arrive than leave.
    RateImbalance,
}

impl ThrottleReason {
    /// All reasons.
    pub const ALL: [ThrottleReason; 6] = [
        ThrottleReason::Operator,
        ThrottleReason::Memory,
        ThrottleReason::Disk,
        ThrottleReason::StoreGrowth,
        ThrottleReason::InFlight,
        ThrottleReason::RateImbalance,
    ];

    /// Its name.
    pub fn word(self) -> &'static str {
        match self {
            ThrottleReason::Operator => "operator",
            ThrottleReason::Memory => "memory",
            ThrottleReason::Disk => "disk",
            ThrottleReason::StoreGrowth => "store_growth",
            ThrottleReason::InFlight => "in_flight",
            ThrottleReason::RateImbalance => "rate_imbalance",
        }
    }
}

impl fmt::Display for ThrottleReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// A text that names no reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not known here")]
pub struct FlowWordError(pub String);

impl FromStr for FlowSide {
    type Err = FlowWordError;

    fn from_str(text: &str) -> Result<FlowSide, FlowWordError> {
        FlowSide::ALL.into_iter().find(|side| side.word() == text).ok_or_else(|| FlowWordError(text.to_owned()))
    }
}

impl FromStr for ThrottleReason {
    type Err = FlowWordError;

    fn from_str(text: &str) -> Result<ThrottleReason, FlowWordError> {
        let found = ThrottleReason::ALL.into_iter().find(|reason| reason.word() == text);
        found.ok_or_else(|| FlowWordError(text.to_owned()))
    }
}

/// Units of a rate.
const UNITS: [(&str, u64); 3] = [("s", 1), ("m", 60), ("h", 3_600)];

/// `20/s`, `6/m`, `1/h`; `0` for none.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS.iter().find(|(_, seconds)| *seconds == self.per.as_secs()) {
            _ if self.messages == 0 => f.write_str("0"),
            Some((unit, _)) => write!(f, "{}/{unit}", self.messages),
            None => write!(f, "{} in {:?}", self.messages, self.per),
        }
    }
}

/// A text that is not a rate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a rate: use messages per second, minute or hour, such as `20/s`, `6/m` or `1/h`, or `0` for none"
)]
pub struct RateError(pub String);

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Rate, RateError> {
        let wrong = || RateError(text.to_owned());
        let (messages, unit) = text.split_once('/').unwrap_or((text, if text == "0" { "s" } else { "" }));
        let (_, seconds) = UNITS.iter().find(|(known, _)| *known == unit).ok_or_else(wrong)?;
        let messages = messages.parse().map_err(|_| wrong())?;
        Ok(Rate { messages, per: Duration::from_secs(*seconds) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_as_they_are_written() {
        for text in ["20/s", "6/m", "1/h", "0"] {
            assert_eq!(text.parse::<Rate>().expect(text).to_string(), text);
        }
        assert_eq!("0/m".parse::<Rate>().expect("a rate").to_string(), "0");
        for text in ["", "20", "20/d", "-1/s", "1.5/s", "/s", "4294967296/s"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }
}
