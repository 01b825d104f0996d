//! Suppressions and failing endpoints.

use tocsin_model::{
    id::{Name, SubscriberId},
    suppression::{Cause, Target},
    time::Timestamp,
};

use crate::error::StoreError;

/// Key of a device's endpoint, as delivery knows it. The order of the fields is the order of lists.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointKey {
    /// Application that sends to it.
    pub application: Name,
    /// Channel.
    pub channel: Name,
    /// Address.
    pub address: String,
}

/// Endpoint whose recent deliveries have all failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailingEndpoint {
    /// Endpoint.
    pub key: EndpointKey,
    /// Subscriber of the device, once known.
    pub subscriber: Option<SubscriberId>,
    /// Device.
    pub device: Option<Name>,
    /// Time of the first failure in a row.
    pub since: Timestamp,
    /// Time of the last failure.
    pub last: Timestamp,
    /// Number of failures in a row.
    pub failures: u64,
    /// Last error.
    pub reason: String,
    /// Time at which the owner was warned that the device will be disabled.
    pub warned_at: Option<Timestamp>,
    /// Time at which the device was disabled.
    pub disabled_at: Option<Timestamp>,
}

/// Filter of suppressions; all given conditions must hold.
#[derive(Debug, Clone, PartialEq)]
pub struct SuppressionFilter {
    /// Protocol of the address.
    pub protocol: Option<Name>,
    /// Subscriber of the device.
    pub subscriber: Option<SubscriberId>,
    /// Cause.
    pub cause: Option<Cause>,
    /// In force, or only counted so far.
    pub in_force: Option<bool>,
    /// Text that the address or the subscriber's id contains, ignoring ASCII case.
    pub contains: Option<String>,
    /// Time; suppressions expired by then are left out.
    pub now: Timestamp,
}

impl SuppressionFilter {
    /// All suppressions that are not expired at a time.
    pub fn all(now: Timestamp) -> Self {
        SuppressionFilter { protocol: None, subscriber: None, cause: None, in_force: None, contains: None, now }
    }

    /// Common prefix of the texts of all targets that can match.
    pub(crate) fn prefix(&self) -> Option<String> {
        match (&self.protocol, &self.subscriber) {
            (Some(_), Some(_)) => None,
            (Some(protocol), None) => Some(format!("address/{protocol}/")),
            (None, Some(subscriber)) => Some(format!("device/{subscriber}/")),
            (None, None) => Some(String::new()),
        }
    }
}

/// Maximum number of targets in one entry of the change log.
pub(crate) const LOGGED_TARGETS_MAX: usize = 1_000;

pub(crate) fn no_suppression(target: &Target) -> StoreError {
    let what = match target {
        Target::Address { protocol, address } => format!("a suppression of the {protocol} address `{address}`"),
        Target::Channel { application, channel, address } => {
            format!("a suppression of `{address}` on the channel `{channel}` of the application `{application}`")
        }
        Target::Device { subscriber, device } => {
            format!("a suppression of the device `{device}` of subscriber `{subscriber}`")
        }
    };
    StoreError::Missing(what)
}
