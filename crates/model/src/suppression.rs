//! Addresses that are not written to: they bounced, complained, or somebody said so.
//!
//! A [`Suppression`] stands for an address within a protocol, whoever's device has it and in whichever application, or for
//! one device. What far sides say comes as a [`Report`]; [`Policy::take`] says what a report makes of what was known
//! before, and is the whole of the rules.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    id::{Name, NotificationId, SubscriberId},
    mailbox::{Mailbox, unicode_form},
    time::Timestamp,
};

/// Longest address.
pub const ADDRESS_BYTES_MAX: usize = 2_048;
/// Most bytes of a detail; what is longer is cut.
pub const DETAIL_BYTES_MAX: usize = 1_024;
/// Most soft bounces that a policy may wait for.
pub const SOFT_BOUNCES_MAX: u32 = 100;

/// What is not written to.
///
/// As text it is `address/<protocol>/<address>` or `device/<subscriber>/<device>`; in the order of these texts they are
/// listed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Target {
    /// An address, whoever's device has it.
    Address {
        /// The protocol whose channels use it.
        protocol: Name,
        /// The address in the form in which it is compared: see [`canonical`].
        address: String,
    },
    /// One device of a subscriber.
    Device {
        /// Whose.
        subscriber: SubscriberId,
        /// Which.
        device: Name,
    },
}

impl Target {
    /// An address within a protocol, in the form in which it is compared.
    pub fn address(protocol: &Name, address: &str) -> Target {
        Target::Address { protocol: protocol.clone(), address: canonical(protocol, address) }
    }

    /// The same target as versions before 2026-11-27 stored it, if that differs: mailboxes had their domain in Unicode.
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

/// An address as it is compared: that of a mail protocol as [`Mailbox::canonical`] says, any other without white space around
/// it.
pub fn canonical(protocol: &Name, address: &str) -> String {
    match protocol.as_str() {
        // What is no mailbox can still stand for itself.
        "smtp" => Mailbox::parse(address).map_or_else(|_| address.trim().to_lowercase(), |mailbox| mailbox.canonical()),
        _ => address.trim().to_owned(),
    }
}

/// The address of a device to which a suppression is bound, as it is compared: whatever its protocol, without regard to case.
pub fn bound(address: &str) -> String {
    Mailbox::parse(address).map_or_else(|_| address.trim().to_lowercase(), |mailbox| mailbox.canonical())
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Address { protocol, address } => write!(f, "address/{protocol}/{address}"),
            Target::Device { subscriber, device } => write!(f, "device/{subscriber}/{device}"),
        }
    }
}

/// The text is no [`Target`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither `address/<protocol>/<address>` nor `device/<subscriber>/<device>`")]
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
            (Some("device"), Some(subscriber), Some(device)) => Ok(Target::Device {
                subscriber: subscriber.parse().map_err(|_| wrong())?,
                device: device.parse().map_err(|_| wrong())?,
            }),
            _ => Err(wrong()),
        }
    }
}

/// Why an address is not written to. A later one is heavier: it takes the place of a lighter one, never the other way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Too many messages came back for the time being: a full mailbox, say.
    SoftBounce,
    /// Somebody said so.
    Manual,
    /// A message came back for good: there is no such address.
    HardBounce,
    /// Whoever has the address ended it with the provider, past us.
    Unsubscribed,
    /// Whoever has the address called a message spam.
    Complaint,
}

impl Cause {
    /// All of them, the lightest first.
    pub const ALL: [Cause; 5] =
        [Cause::SoftBounce, Cause::Manual, Cause::HardBounce, Cause::Unsubscribed, Cause::Complaint];

    /// Its one word, in tables, metrics and answers.
    pub fn word(self) -> &'static str {
        match self {
            Cause::SoftBounce => "soft_bounce",
            Cause::Manual => "manual",
            Cause::HardBounce => "hard_bounce",
            Cause::Unsubscribed => "unsubscribed",
            Cause::Complaint => "complaint",
        }
    }

    /// The same for people, as the end of a sentence: `the address is suppressed: ...`.
    pub fn phrase(self) -> &'static str {
        match self {
            Cause::SoftBounce => "too many messages came back",
            Cause::Manual => "an operator said so",
            Cause::HardBounce => "a message came back for good",
            Cause::Unsubscribed => "its owner unsubscribed with the provider",
            Cause::Complaint => "its owner complained",
        }
    }

    /// Whether a critical message may pass it, if the policy says so: only what no owner of an address has asked for and
    /// what may be over.
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

/// What is known against an address or a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suppression {
    /// What is not written to.
    pub target: Target,
    /// Of a device: it holds only as long as the device has this address, as [`bound`] gives it. `None`: whatever its
    /// address.
    pub address: Option<String>,
    /// Why.
    pub cause: Cause,
    /// Whether it is not written to. Soft bounces below the limit are only counted.
    pub in_force: bool,
    /// Who said so: a channel's protocol, the name of a provider, the key of an operator.
    pub origin: String,
    /// The words of the far side, or of the operator.
    pub detail: String,
    /// The notification that it began with, if it is known.
    pub notification: Option<NotificationId>,
    /// The soft bounces within the window, oldest first.
    pub bounces: Vec<SoftBounce>,
    /// When the first word of this cause came.
    pub since: Timestamp,
    /// When the last word came.
    pub updated_at: Timestamp,
    /// From then on it is as if it had never been.
    pub expires_at: Option<Timestamp>,
}

impl Suppression {
    /// Whether it still stands at a time.
    pub fn stands(&self, now: Timestamp) -> bool {
        self.expires_at.is_none_or(|end| now < end)
    }
}

/// A soft bounce that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SoftBounce {
    /// When it came.
    pub at: Timestamp,
    /// What bounced. The same notification counts once, however often its bounce is told.
    pub notification: Option<NotificationId>,
}

/// What a far side, or somebody for it, says of an address or a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Of whom.
    pub target: Target,
    /// See [`Suppression::address`].
    pub address: Option<String>,
    /// What.
    pub cause: Cause,
    /// See [`Suppression::origin`].
    pub origin: String,
    /// See [`Suppression::detail`].
    pub detail: String,
    /// What bounced, or was complained about.
    pub notification: Option<NotificationId>,
}

/// What reports make of an address: a matter of the installation, since an address is the same for all its applications.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// So many soft bounces within the window suppress; from 1 to [`SOFT_BOUNCES_MAX`].
    pub soft_bounces: u32,
    /// The window.
    pub soft_bounce_window: Duration,
    /// How long they suppress. `None`: until somebody lifts it.
    pub soft_bounce_lasts: Option<Duration>,
    /// How long a hard bounce suppresses. `None`: until somebody lifts it.
    pub hard_bounce_lasts: Option<Duration>,
    /// The causes that a notification of a critical class passes. Only those of which [`Cause::may_pass`] is true count.
    pub critical_passes: Vec<Cause>,
}

impl Default for Policy {
    fn default() -> Self {
        let days = |days: u64| Duration::from_secs(days * 86_400);
        Policy {
            soft_bounces: 5,
            soft_bounce_window: days(14),
            soft_bounce_lasts: Some(days(30)),
            hard_bounce_lasts: None,
            critical_passes: vec![Cause::SoftBounce],
        }
    }
}

impl Policy {
    /// Whether a notification of a critical class goes out against this cause.
    pub fn lets_pass(&self, cause: Cause) -> bool {
        cause.may_pass() && self.critical_passes.contains(&cause)
    }

    /// What is known after a report, given what was before; gives it unchanged if the report says nothing new.
    ///
    /// A heavier cause takes the place of a lighter one, the same cause is renewed with the words of the report, and a
    /// lighter one changes nothing. Soft bounces count up to the limit, each notification once; what is older than the
    /// window does not count.
    pub fn take(&self, before: Option<Suppression>, report: Report, now: Timestamp) -> Suppression {
        // What holds for an address that the device does not have any more says nothing of the present one.
        let is_same = |found: &Suppression| found.address.is_none() || found.address == report.address;
        let before = before.filter(|found| found.stands(now) && is_same(found));
        let Report { target, address, cause, origin, detail, notification } = report;
        // What holds for a device whatever its address goes on doing so.
        let address = address.filter(|_| before.as_ref().is_none_or(|found| found.address.is_some()));
        let heavier = before.as_ref().filter(|found| found.in_force && found.cause > cause);
        if let Some(found) = heavier {
            return found.clone();
        }
        let mut bounces = before.as_ref().map(|found| found.bounces.clone()).unwrap_or_default();
        if cause == Cause::SoftBounce {
            let is_told = |bounce: &SoftBounce| notification.is_some() && bounce.notification == notification;
            if let Some(found) = before.as_ref().filter(|_| bounces.iter().any(is_told)) {
                return found.clone();
            }
            bounces.retain(|bounce| now.since(bounce.at) < self.soft_bounce_window);
            bounces.push(SoftBounce { at: now, notification });
            let most = self.soft_bounces.clamp(1, SOFT_BOUNCES_MAX) as usize;
            bounces.drain(..bounces.len().saturating_sub(most));
        }
        let same = before.filter(|found| found.cause == cause);
        let limit = self.soft_bounces.clamp(1, SOFT_BOUNCES_MAX) as usize;
        let was_in_force = same.as_ref().is_some_and(|found| found.in_force);
        let in_force = cause != Cause::SoftBounce || was_in_force || bounces.len() >= limit;
        let lasts = match cause {
            Cause::SoftBounce if !in_force => Some(self.soft_bounce_window),
            Cause::SoftBounce => self.soft_bounce_lasts,
            Cause::HardBounce => self.hard_bounce_lasts,
            Cause::Manual | Cause::Unsubscribed | Cause::Complaint => None,
        };
        Suppression {
            target,
            address,
            cause,
            in_force,
            origin,
            detail: cut(detail),
            notification: same.as_ref().and_then(|found| found.notification).or(notification),
            bounces,
            since: same.filter(|found| found.in_force == in_force).map_or(now, |found| found.since),
            updated_at: now,
            expires_at: lasts.map(|lasts| now + lasts),
        }
    }
}

/// No longer than [`DETAIL_BYTES_MAX`], cut between characters.
pub fn cut(mut detail: String) -> String {
    if detail.len() > DETAIL_BYTES_MAX {
        let end = (0..=DETAIL_BYTES_MAX).rev().find(|at| detail.is_char_boundary(*at)).unwrap_or(0);
        detail.truncate(end);
    }
    detail
}

/// What an enhanced status code (RFC 3463) says of a bounce: `None` for one that says of nothing that failed, or that is
/// no such code.
///
/// Most codes of class 5 say nothing against the address: the message was too large, or its content was refused. Only
/// those that do are hard bounces; the others are soft ones, of which a single one does no harm.
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

    fn report(cause: Cause, notification: Option<u32>) -> Report {
        Report {
            target: Target::address(&name("smtp"), " Bob@Example.ORG"),
            address: None,
            cause,
            origin: "test".to_owned(),
            detail: String::new(),
            notification: notification
                .map(|ordinal| NotificationId { batch: crate::id::NotificationBatchId(3), ordinal }),
        }
    }

    /// Reports as `day cause[notification]`, and what is known after each.
    fn check(policy: &Policy, reports: &[(u64, Cause, Option<u32>)], expected: &[&str]) {
        let mut known = None;
        let mut told = Vec::new();
        for (day, cause, notification) in reports {
            let now = Timestamp::from_millis(*day as i64 * 86_400_000);
            let after = policy.take(known.take(), report(*cause, *notification), now);
            let force = if after.in_force { "in force" } else { "counted" };
            let ends =
                after.expires_at.map_or_else(|| "never".to_owned(), |end| format!("day {}", end.0 / 86_400_000_000));
            told.push(format!("{} {force} {} bounces, ends {ends}", after.cause.word(), after.bounces.len()));
            known = Some(after);
        }
        assert_eq!(told, expected);
    }

    #[test]
    fn soft_bounces_count_up_to_the_limit() {
        let policy = Policy { soft_bounces: 3, ..Policy::default() };
        check(
            &policy,
            &[
                (0, Cause::SoftBounce, Some(1)),
                (1, Cause::SoftBounce, Some(1)),
                (10, Cause::SoftBounce, None),
                (15, Cause::SoftBounce, None),
                (16, Cause::SoftBounce, Some(4)),
                (17, Cause::SoftBounce, Some(5)),
            ],
            &[
                "soft_bounce counted 1 bounces, ends day 14",
                "soft_bounce counted 1 bounces, ends day 14",
                "soft_bounce counted 2 bounces, ends day 24",
                "soft_bounce counted 2 bounces, ends day 29",
                "soft_bounce in force 3 bounces, ends day 46",
                "soft_bounce in force 3 bounces, ends day 47",
            ],
        );
    }

    #[test]
    fn a_heavier_cause_takes_the_place_of_a_lighter_one() {
        let policy = Policy { hard_bounce_lasts: Some(Duration::from_secs(90 * 86_400)), ..Policy::default() };
        check(
            &policy,
            &[
                (0, Cause::SoftBounce, None),
                (1, Cause::HardBounce, None),
                (2, Cause::SoftBounce, None),
                (3, Cause::HardBounce, None),
                (4, Cause::Complaint, None),
                (5, Cause::HardBounce, None),
            ],
            &[
                "soft_bounce counted 1 bounces, ends day 14",
                "hard_bounce in force 1 bounces, ends day 91",
                "hard_bounce in force 1 bounces, ends day 91",
                "hard_bounce in force 1 bounces, ends day 93",
                "complaint in force 1 bounces, ends never",
                "complaint in force 1 bounces, ends never",
            ],
        );
    }

    #[test]
    fn what_is_over_was_never_there() {
        let policy = Policy { hard_bounce_lasts: Some(Duration::from_secs(86_400)), ..Policy::default() };
        check(
            &policy,
            &[(0, Cause::HardBounce, None), (1, Cause::SoftBounce, None)],
            &["hard_bounce in force 0 bounces, ends day 1", "soft_bounce counted 1 bounces, ends day 15"],
        );
    }

    #[test]
    fn targets_are_texts() {
        for text in ["address/smtp/bob@example.org", "address/http/https://example.org/a/b", "device/a:b/phone"] {
            assert_eq!(text.parse::<Target>().map(|target| target.to_string()), Ok(text.to_owned()));
        }
        for text in ["address/smtp/", "address/smtp", "device/a", "device/a/b/c", "x/y/z", ""] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
        assert_eq!(Target::address(&name("smtp"), " Bob@Example.ORG").to_string(), "address/smtp/bob@example.org");
    }

    #[test]
    fn status_codes_tell_what_came_back() {
        let told = |status: &str| cause_of_status(status).map(Cause::word);
        assert_eq!(["5.1.1", "5.1.10", "5.2.1", "5.0.0"].map(told), [Some("hard_bounce"); 4]);
        assert_eq!(["4.2.2", "5.2.2", "5.7.1", "4.1.1"].map(told), [Some("soft_bounce"); 4]);
        assert_eq!(["2.0.0", "5.1", "5.1.1.1", "", "no"].map(told), [None; 5]);
    }
}
