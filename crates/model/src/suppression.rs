//! Suppressions: addresses that must not be sent to, because they bounced, complained, or were blocked by an
//! operator.
//!
//! A [`Suppression`] applies to an address within a protocol, for all devices and applications, or to one device.
//! Bounces and complaints arrive as [`Report`]s. The policy of feedback counts them; the thresholds are those of
//! [`Policy`].

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    id::{Name, NotificationId, SubscriberId},
    mailbox::{Mailbox, unicode_form},
    time::Timestamp,
};

/// Longest address.
pub const ADDRESS_BYTES_MAX: usize = 2_048;
/// Most bytes of a detail; longer ones are cut.
pub const DETAIL_BYTES_MAX: usize = 1_024;
/// Largest limit of soft bounces in a policy.
pub const SOFT_BOUNCES_MAX: u32 = 100;

/// Target of a suppression.
///
/// Its text is `address/<protocol>/<address>`, `channel/<application>/<channel>/<address>` or
/// `device/<subscriber>/<device>`; lists are ordered by these texts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Target {
    /// An address, on any device.
    Address {
        /// The protocol whose channels use it.
        protocol: Name,
        /// The address in canonical form: see [`canonical`].
        address: String,
    },
    /// An address, on one channel of an application: its owner replied STOP to a message of that channel.
    Channel {
        /// The application.
        application: Name,
        /// The channel.
        channel: Name,
        /// The address in the form of [`reply_address`].
        address: String,
    },
    /// One device of a subscriber.
    Device {
        /// The subscriber.
        subscriber: SubscriberId,
        /// The device.
        device: Name,
    },
}

impl Target {
    /// The address, unless it is a device.
    pub fn text_address(&self) -> Option<&str> {
        match self {
            Target::Address { address, .. } | Target::Channel { address, .. } => Some(address),
            Target::Device { .. } => None,
        }
    }

    /// An address within a protocol, in canonical form.
    pub fn address(protocol: &Name, address: &str) -> Target {
        Target::Address { protocol: protocol.clone(), address: canonical(protocol, address) }
    }

    /// An address on a channel, in the form of [`reply_address`].
    pub fn channel(application: &Name, channel: &Name, address: &str) -> Target {
        let (application, channel) = (application.clone(), channel.clone());
        Target::Channel { application, channel, address: reply_address(address) }
    }

    /// The same target as versions before 2026-11-27 stored it, if that differs: mailboxes had their domain in
    /// Unicode.
    pub fn former(&self) -> Option<Target> {
        match self {
            Target::Address { protocol, address } if protocol.as_str() == "smtp" => {
                let address = unicode_form(address)?;
                Some(Target::Address { protocol: protocol.clone(), address })
            }
            _ => None,
        }
    }
}

/// Canonical form of an address: that of a mail protocol by [`Mailbox::canonical`], any other trimmed.
pub fn canonical(protocol: &Name, address: &str) -> String {
    match protocol.as_str() {
        // A text that is not a mailbox is used as it is.
        "smtp" => Mailbox::parse(address).map_or_else(|_| address.trim().to_lowercase(), |mailbox| mailbox.canonical()),
        _ => address.trim().to_owned(),
    }
}

/// Canonical form of the device address that a suppression is bound to: for any protocol, without regard to case.
pub fn bound(address: &str) -> String {
    Mailbox::parse(address).map_or_else(|_| address.trim().to_lowercase(), |mailbox| mailbox.canonical())
}

/// Form of an address in which a reply to it is compared: of a phone number its digits after the international prefix
/// (E.164), of any other address that of [`bound`].
pub fn reply_address(address: &str) -> String {
    let address = address.trim();
    let is_number =
        address.bytes().all(|byte| byte.is_ascii_digit() || b"+-.() ".contains(&byte)) && address.contains(is_digit);
    if !is_number {
        return bound(address);
    }
    let digits: String = address.chars().filter(|c| c.is_ascii_digit()).collect();
    match digits.strip_prefix("00").filter(|_| !address.starts_with('+')) {
        Some(international) => international.to_owned(),
        None => digits,
    }
}

fn is_digit(c: char) -> bool {
    c.is_ascii_digit()
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Address { protocol, address } => write!(f, "address/{protocol}/{address}"),
            Target::Channel { application, channel, address } => write!(f, "channel/{application}/{channel}/{address}"),
            Target::Device { subscriber, device } => write!(f, "device/{subscriber}/{device}"),
        }
    }
}

/// A text that is not a [`Target`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not `address/<protocol>/<address>`, `channel/<application>/<channel>/<address>` or `device/…/…`")]
pub struct TargetError(pub String);

impl FromStr for Target {
    type Err = TargetError;
    fn from_str(text: &str) -> Result<Self, TargetError> {
        let wrong = || TargetError(text.to_owned());
        let mut parts = text.splitn(3, '/');
        let (kind, first, last) = (parts.next(), parts.next(), parts.next());
        match (kind, first, last) {
            (Some("address"), Some(protocol), Some(address)) if !address.is_empty() => {
                let protocol = protocol.parse().map_err(|_| wrong())?;
                Ok(Target::Address { protocol, address: address.to_owned() })
            }
            (Some("channel"), Some(application), Some(rest)) => {
                let (channel, address) =
                    rest.split_once('/').filter(|(_, address)| !address.is_empty()).ok_or_else(wrong)?;
                let [application, channel] = [application, channel].map(|name| name.parse().map_err(|_| wrong()));
                Ok(Target::Channel { application: application?, channel: channel?, address: address.to_owned() })
            }
            (Some("device"), Some(subscriber), Some(device)) => Ok(Target::Device {
                subscriber: subscriber.parse().map_err(|_| wrong())?,
                device: device.parse().map_err(|_| wrong())?,
            }),
            _ => Err(wrong()),
        }
    }
}

/// Cause of a suppression, in ascending severity: a more severe cause replaces a less severe one, never the reverse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Too many temporary bounces, for example of a full mailbox.
    SoftBounce,
    /// Set by an operator.
    Manual,
    /// A permanent bounce: the address does not exist.
    HardBounce,
    /// The recipient unsubscribed at the mail provider.
    Unsubscribed,
    /// The recipient reported a message as spam.
    Complaint,
}

impl Cause {
    /// All causes, the least severe first.
    pub const ALL: [Cause; 5] =
        [Cause::SoftBounce, Cause::Manual, Cause::HardBounce, Cause::Unsubscribed, Cause::Complaint];

    /// Its name in tables, metrics and answers.
    pub fn word(self) -> &'static str {
        match self {
            Cause::SoftBounce => "soft_bounce",
            Cause::Manual => "manual",
            Cause::HardBounce => "hard_bounce",
            Cause::Unsubscribed => "unsubscribed",
            Cause::Complaint => "complaint",
        }
    }

    /// Text for readers, as the end of a sentence: `the address is suppressed: ...`.
    pub fn phrase(self) -> &'static str {
        match self {
            Cause::SoftBounce => "too many messages came back",
            Cause::Manual => "an operator said so",
            Cause::HardBounce => "a message came back for good",
            Cause::Unsubscribed => "its owner unsubscribed with the provider",
            Cause::Complaint => "its owner complained",
        }
    }

    /// Whether a policy may let critical messages pass it: only causes that the recipient did not ask for and that
    /// may be temporary.
    pub fn may_pass(self) -> bool {
        matches!(self, Cause::SoftBounce | Cause::Manual)
    }
}

impl FromStr for Cause {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        Cause::ALL.into_iter().find(|cause| cause.word() == text).ok_or(())
    }
}

/// Suppression state of an address or a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suppression {
    /// The target.
    pub target: Target,
    /// For a device: valid only as long as the device has this address, in the form of [`bound`]. `None`: for any
    /// address.
    pub address: Option<String>,
    /// The cause.
    pub cause: Cause,
    /// Whether it is in force. Soft bounces below the limit are only counted.
    pub in_force: bool,
    /// The origin: a channel's protocol, the name of a provider, the key of an operator.
    pub origin: String,
    /// Text of the receiver or of the operator.
    pub detail: String,
    /// The notification that caused it, if known.
    pub notification: Option<NotificationId>,
    /// The soft bounces within the window, oldest first.
    pub bounces: Vec<SoftBounce>,
    /// Time of the first report of this cause.
    pub since: Timestamp,
    /// Time of the last report.
    pub updated_at: Timestamp,
    /// Expiry time.
    pub expires_at: Option<Timestamp>,
}

impl Suppression {
    /// Whether it has not expired.
    pub fn is_active(&self, now: Timestamp) -> bool {
        self.expires_at.is_none_or(|end| now < end)
    }

    /// Whether it stays when `new` is stored for the same target: it is in force then, and its cause is more severe.
    pub fn outranks(&self, new: &Suppression) -> bool {
        let is_same = self.address.is_none() || self.address == new.address;
        is_same && self.in_force && self.is_active(new.updated_at) && self.cause > new.cause
    }
}

/// A counted soft bounce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SoftBounce {
    /// Its time.
    pub at: Timestamp,
    /// The bounced notification. Each counts once, however often its bounce is reported.
    pub notification: Option<NotificationId>,
}

/// A report about an address or a device: a bounce, a complaint, an unsubscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The target.
    pub target: Target,
    /// See [`Suppression::address`].
    pub address: Option<String>,
    /// The cause.
    pub cause: Cause,
    /// See [`Suppression::origin`].
    pub origin: String,
    /// See [`Suppression::detail`].
    pub detail: String,
    /// The notification that bounced or was complained about.
    pub notification: Option<NotificationId>,
}

/// Suppression policy of the installation; an address is shared by all its applications.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// Soft bounces within the window that suppress; from 1 to [`SOFT_BOUNCES_MAX`].
    pub soft_bounces: u32,
    /// The window.
    pub soft_bounce_window: Duration,
    /// Duration after soft bounces. `None`: until it is lifted.
    pub soft_bounce_lasts: Option<Duration>,
    /// Hard bounces within the window that suppress; 0: none do.
    pub hard_bounces: u32,
    /// The window of hard bounces.
    pub hard_bounce_window: Duration,
    /// Duration after a hard bounce. `None`: until it is lifted.
    pub hard_bounce_lasts: Option<Duration>,
    /// Challenges within the window that suppress; 0: none do.
    pub challenges: u32,
    /// The window of challenges.
    pub challenge_window: Duration,
    /// Duration after challenges. `None`: until it is lifted.
    pub challenge_lasts: Option<Duration>,
    /// Complaints within the window that suppress; 0: none do.
    pub complaints: u32,
    /// The window of complaints.
    pub complaint_window: Duration,
    /// Causes that do not stop notifications of a critical class. Only those with [`Cause::may_pass`] count.
    pub critical_passes: Vec<Cause>,
}

impl Default for Policy {
    fn default() -> Self {
        let days = |days: u64| Duration::from_secs(days * 86_400);
        Policy {
            soft_bounces: 5,
            soft_bounce_window: days(14),
            soft_bounce_lasts: Some(days(30)),
            hard_bounces: 1,
            hard_bounce_window: days(1),
            hard_bounce_lasts: None,
            challenges: 0,
            challenge_window: days(30),
            challenge_lasts: Some(days(30)),
            complaints: 1,
            complaint_window: days(1),
            critical_passes: vec![Cause::SoftBounce],
        }
    }
}

impl Policy {
    /// Whether a notification of a critical class is sent despite this cause.
    pub fn ignores(&self, cause: Cause) -> bool {
        cause.may_pass() && self.critical_passes.contains(&cause)
    }
}

/// Cuts a detail to [`DETAIL_BYTES_MAX`], between characters.
pub fn cut(mut detail: String) -> String {
    if detail.len() > DETAIL_BYTES_MAX {
        let end = (0..=DETAIL_BYTES_MAX).rev().find(|at| detail.is_char_boundary(*at)).unwrap_or(0);
        detail.truncate(end);
    }
    detail
}

/// Cause of a bounce with this enhanced status code (RFC 3463): `None` if the code is not a failure or not a code.
///
/// Most codes of class 5 do not concern the address: the message was too large, or its content was refused. Only
/// those that do are hard bounces; the others are soft ones, a single one of which has no effect.
pub fn cause_of_status(status: &str) -> Option<Cause> {
    let mut parts = status.trim().split('.').map(|part| part.parse::<u16>().ok());
    let (class, subject, detail) = (parts.next()??, parts.next()??, parts.next()??);
    match (class, subject, detail, parts.next()) {
        (5, 1, 1 | 2 | 3 | 6 | 10, None) | (5, 2, 1, None) | (5, 0, 0, None) => Some(Cause::HardBounce),
        (4 | 5, _, _, None) => Some(Cause::SoftBounce),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().expect("a name")
    }

    #[test]
    fn targets_are_texts() {
        for text in ["address/smtp/bob@example.org", "address/http/https://example.org/a/b", "device/a:b/phone"] {
            assert_eq!(text.parse::<Target>().map(|target| target.to_string()), Ok(text.to_owned()));
        }
        let wrong =
            ["address/smtp/", "address/smtp", "channel/a/b", "channel/a/b/", "device/a", "device/a/b/c", "x/y/z", ""];
        for text in wrong {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
        assert_eq!(Target::address(&name("smtp"), " Bob@Example.ORG").to_string(), "address/smtp/bob@example.org");
    }

    #[test]
    fn status_codes_map_to_causes() {
        let cause = |status: &str| cause_of_status(status).map(Cause::word);
        assert_eq!(["5.1.1", "5.1.10", "5.2.1", "5.0.0"].map(cause), [Some("hard_bounce"); 4]);
        assert_eq!(["4.2.2", "5.2.2", "5.7.1", "4.1.1"].map(cause), [Some("soft_bounce"); 4]);
        assert_eq!(["2.0.0", "5.1", "5.1.1.1", "", "no"].map(cause), [None; 5]);
    }
}
