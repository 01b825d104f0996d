//! Where nothing is sent, and endpoints that fail.

use tocsin_model::{
    id::{Name, SubscriberId},
    suppression::{Cause, Target},
    time::Timestamp,
};

use crate::error::StoreError;

/// The endpoint of a device, as the flow knows it. In the order of these three they are listed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointKey {
    /// The application that sends to it.
    pub application: Name,
    /// By this channel.
    pub channel: Name,
    /// Where.
    pub address: String,
}

/// An endpoint that has only failed of late.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailingEndpoint {
    /// Which.
    pub key: EndpointKey,
    /// Whose device it is, once that is known.
    pub subscriber: Option<SubscriberId>,
    /// The device.
    pub device: Option<Name>,
    /// Since when it has only failed.
    pub since: Timestamp,
    /// The last failure.
    pub last: Timestamp,
    /// How often it has failed.
    pub failures: u64,
    /// What it said last.
    pub reason: String,
    /// When it was told that it will be switched off.
    pub warned_at: Option<Timestamp>,
    /// When its device was switched off.
    pub disabled_at: Option<Timestamp>,
}

/// What is wanted of a list of suppressions; conditions are joined by and.
#[derive(Debug, Clone, PartialEq)]
pub struct SuppressionFilter {
    /// Only addresses of this protocol.
    pub protocol: Option<Name>,
    /// Only devices of this subscriber.
    pub subscriber: Option<SubscriberId>,
    /// Only those of this cause.
    pub cause: Option<Cause>,
    /// Only those that are in force, or that are only counted.
    pub in_force: Option<bool>,
    /// Only those whose address, or whose subscriber's id, contains this text; letters of ASCII in either case.
    pub contains: Option<String>,
    /// Those that are over by then are left out.
    pub now: Timestamp,
}

impl SuppressionFilter {
    /// All that stand at a time.
    pub fn all(now: Timestamp) -> Self {
        SuppressionFilter { protocol: None, subscriber: None, cause: None, in_force: None, contains: None, now }
    }

    /// The text with which the targets begin that can meet it.
    pub(crate) fn prefix(&self) -> Option<String> {
        match (&self.protocol, &self.subscriber) {
            (Some(_), Some(_)) => None,
            (Some(protocol), None) => Some(format!("address/{protocol}/")),
            (None, Some(subscriber)) => Some(format!("device/{subscriber}/")),
            (None, None) => Some(String::new()),
        }
    }
}

/// Targets that one entry of the feed tells of, at most.
pub(crate) const TARGETS_TOLD: usize = 1_000;

pub(crate) fn no_suppression(target: &Target) -> StoreError {
    let what = match target {
        Target::Address { protocol, address } => format!("a suppression of the {protocol} address `{address}`"),
        Target::Device { subscriber, device } => {
            format!("a suppression of the device `{device}` of subscriber `{subscriber}`")
        }
    };
    StoreError::Missing(what)
}
