//! Signed return addresses (VERP): the local part names the notification, the device or subscription, and the purpose.
//!
//! The signed part is binary, in Base32 of lower case, so that it survives servers that change the case of letters.
//! It stands behind a `+` (subaddressing, RFC 5233) or is the whole local part. It fits into the 64 octets of a local
//! part (RFC 5321, 4.5.3.1.1) with the largest numbers in the second form, and with usual ones in the first.
//!
//! | octets | content |
//! |---|---|
//! | 1 | version, purpose, kind of the reference and of the target |
//! | 2 | day of issue, as days since 1970 |
//! | 2 | lengths of the numbers |
//! | 0 to 8 | batch or message |
//! | 0 to 4 | ordinal in the batch |
//! | 0 to 8 | subscriber or subscription |
//! | 0 or 4 | tag of the device |
//! | 10 | HMAC-SHA-256 over the octets before, truncated to 80 bits (RFC 2104, 5) |
//!
//! Numbers have no leading zero octet, so an address has one text for its content.

mod former; // addresses of versions before 2026-12

use std::{fmt, sync::LazyLock, time::Duration};

use data_encoding::{Encoding, Specification};
use ring::{digest, hmac};
use tocsin_model::{
    id::{MessageId, NotificationBatchId, NotificationId, SubscriberNumber, SubscriptionId},
    mailbox::{LOCAL_BYTES_MAX, Mailbox},
    time::Timestamp,
};

/// Octets of the truncated signature: 80 bits.
const TAG_BYTES: usize = 10;
/// Octets before the numbers.
const HEAD_BYTES: usize = 5;
/// Version of the layout, in the upper bits of the first octet.
const VERSION: u8 = 0;
/// Most keys that are tried.
pub const KEYS_MAX: usize = 8;

/// The alphabet of RFC 4648, section 6, in lower case; upper case is accepted.
static BASE32: LazyLock<Encoding> = LazyLock::new(|| {
    let mut specification = Specification::new();
    specification.symbols.push_str("abcdefghijklmnopqrstuvwxyz234567");
    specification.translate.from.push_str("ABCDEFGHIJKLMNOPQRSTUVWXYZ");
    specification.translate.to.push_str("abcdefghijklmnopqrstuvwxyz");
    specification.encoding().expect("a valid specification")
});

/// Purpose of a return address. A mail at an address of one purpose has no effect of another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// The envelope sender: bounces and complaints.
    Bounce,
    /// The address of `List-Unsubscribe`: any mail that a person sends withdraws the subscription.
    Unsubscribe,
    /// The address of a request for consent: a reply confirms it.
    Confirm,
}

/// Reference to what was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reference {
    /// One notification.
    Notification(NotificationId),
    /// One mail to several recipients of a notification batch.
    Multicast(NotificationBatchId),
    /// A message of an exchange.
    Message(MessageId),
}

/// Target of the mail: the object that feedback concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Target {
    /// The recipient that the report names, for a mail to several recipients.
    Reported,
    /// The only recipient of the notification. Addresses of versions before 2026-12 name no device.
    OnlyRecipient,
    /// A device of a subscriber.
    Device(SubscriberNumber, DeviceTag),
    /// A subscription.
    Subscription(SubscriptionId),
}

/// Tag of a device: 32 bits of a hash of its address. A device whose address changed has another one, so a late bounce
/// of the previous address has no effect on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeviceTag([u8; 4]);

impl DeviceTag {
    /// The tag of a device with this mail address. Spellings of one mailbox have one tag.
    pub fn of(address: &str) -> DeviceTag {
        let address = tocsin_model::mailbox::comparable(address);
        let hash = digest::digest(&digest::SHA256, address.as_bytes());
        let bytes = hash.as_ref();
        DeviceTag([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
}

/// The content of a return address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The purpose.
    pub purpose: Purpose,
    /// The reference.
    pub reference: Reference,
    /// The target.
    pub target: Target,
}

/// The content of a return address whose signature was verified.
///
/// Only [`ReturnAddresses::verify`] makes one. Feedback changes the state of a device through a value of this type, so
/// a forged or unsigned address changes none.
///
/// ```compile_fail
/// use tocsin_feedback::return_address::{Origin, VerifiedOrigin};
/// fn forge(origin: Origin) -> VerifiedOrigin {
///     VerifiedOrigin { origin, issued_on: 0 }
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct VerifiedOrigin {
    origin: Origin,
    issued_on: u16,
}

impl VerifiedOrigin {
    /// The content.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The day of issue, as days since 1970 in UTC.
    pub fn issued_on(&self) -> u16 {
        self.issued_on
    }
}

/// An address that is not a valid return address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// Another domain or another local part than those of the configuration, or no signed part.
    #[error("the address is not a return address of this installation")]
    Foreign,
    /// The signature is not valid.
    #[error("the return address has no valid signature")]
    Signature,
    /// The day of issue is too long ago.
    #[error("the return address has expired")]
    Expired,
    /// The day of issue is in the future.
    #[error("the return address is not valid yet")]
    Early,
}

/// A return address that cannot be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IssueError {
    /// The local part has more octets than a local part can have.
    #[error("the local part takes {0} octets of at most {LOCAL_BYTES_MAX}: use a shorter one, or the whole form")]
    TooLong(usize),
    /// The time is before 1970 or after 2149.
    #[error("the day of issue is not between 1970 and 2149")]
    Day,
}

/// A configuration that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigurationError {
    /// The base address is not a mailbox.
    #[error("`{0}` is not a mail address")]
    Address(String),
    /// No key, or more than [`KEYS_MAX`].
    #[error("{0} keys; from 1 to {KEYS_MAX} are allowed")]
    Keys(usize),
}

/// Position of the signed part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position {
    /// Behind the local part of the base address and a `+`: `bounces+…@example.org`.
    Subaddress,
    /// The whole local part; only the domain of the base address is used: `…@bounces.example.org`.
    WholeLocalPart,
}

/// Makes and verifies return addresses.
#[derive(Clone)]
pub struct ReturnAddresses {
    base: Mailbox,
    position: Position,
    keys: Vec<hmac::Key>,
    former_keys: Vec<hmac::Key>,
    lifetime_days: u16,
}

impl fmt::Debug for ReturnAddresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReturnAddresses")
            .field("base", &self.base)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

impl ReturnAddresses {
    /// With a base address, and secrets of which the first signs and all verify. To rotate, put a new secret first and
    /// remove the last one after the lifetime. A lifetime is counted in whole days.
    ///
    /// # Errors
    /// The base address is not a mailbox, or there is no secret or too many.
    pub fn new(
        base: &str,
        position: Position,
        secrets: &[[u8; 32]],
        lifetime: Duration,
    ) -> Result<ReturnAddresses, ConfigurationError> {
        let base = Mailbox::parse(base).map_err(|_| ConfigurationError::Address(base.to_owned()))?;
        if !(1..=KEYS_MAX).contains(&secrets.len()) {
            return Err(ConfigurationError::Keys(secrets.len()));
        }
        // The secret has other uses: the key of this one is derived.
        let derived = |purpose: &[u8]| {
            let key = |secret: &[u8; 32]| {
                let root = hmac::Key::new(hmac::HMAC_SHA256, secret);
                hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&root, purpose).as_ref())
            };
            secrets.iter().map(key).collect()
        };
        let lifetime_days = u16::try_from(lifetime.as_secs() / 86_400).unwrap_or(u16::MAX);
        let (keys, former_keys) = (derived(b"feedback return address"), derived(former::PURPOSE));
        Ok(ReturnAddresses { base, position, keys, former_keys, lifetime_days })
    }

    /// The same with another base address.
    ///
    /// # Errors
    /// The base address is not a mailbox.
    pub fn at(&self, base: &str, position: Position) -> Result<ReturnAddresses, ConfigurationError> {
        let base = Mailbox::parse(base).map_err(|_| ConfigurationError::Address(base.to_owned()))?;
        let (keys, former_keys) = (self.keys.clone(), self.former_keys.clone());
        Ok(ReturnAddresses { base, position, keys, former_keys, lifetime_days: self.lifetime_days })
    }

    /// Whether the addresses have ASCII characters only.
    pub fn is_ascii(&self) -> bool {
        self.position == Position::WholeLocalPart || self.base.local().is_ascii()
    }

    /// The domain in its ASCII form.
    pub fn domain(&self) -> &str {
        self.base.domain_ascii()
    }

    /// The return address for a mail that is sent now.
    ///
    /// # Errors
    /// The local part would be too long, or the time is out of range.
    pub fn issue(&self, origin: &Origin, now: Timestamp) -> Result<String, IssueError> {
        let mut bytes = encoded(origin, day(now).ok_or(IssueError::Day)?);
        let tag = hmac::sign(&self.keys[0], &bytes);
        bytes.extend_from_slice(&tag.as_ref()[..TAG_BYTES]);
        let code = BASE32.encode(&bytes);
        let local = match self.position {
            Position::Subaddress => format!("{}+{code}", self.base.local()),
            Position::WholeLocalPart => code,
        };
        match local.len() {
            octets if octets > LOCAL_BYTES_MAX => Err(IssueError::TooLong(octets)),
            _ => Ok(format!("{local}@{}", self.base.domain_ascii())),
        }
    }

    /// The content of a return address, in any case of letters, if its signature is valid and it has not expired. An
    /// address that was made less than a day after `now` by another clock is valid. Addresses of versions before
    /// 2026-12 have no date and do not expire.
    ///
    /// # Errors
    /// The address is foreign, forged or expired.
    pub fn verify(&self, address: &str, now: Timestamp) -> Result<VerifiedOrigin, VerifyError> {
        let mailbox = Mailbox::parse(address).map_err(|_| VerifyError::Foreign)?;
        if !mailbox.domain_ascii().eq_ignore_ascii_case(self.base.domain_ascii()) {
            return Err(VerifyError::Foreign);
        }
        if let Some(origin) = former::verify(mailbox.local(), &self.former_keys) {
            return Ok(VerifiedOrigin { origin, issued_on: 0 });
        }
        let code = match self.position {
            Position::Subaddress => {
                let (base, code) = mailbox.local().rsplit_once('+').ok_or(VerifyError::Foreign)?;
                if !base.eq_ignore_ascii_case(self.base.local()) {
                    return Err(VerifyError::Foreign);
                }
                code
            }
            Position::WholeLocalPart => mailbox.local(),
        };
        let bytes = BASE32.decode(code.as_bytes()).map_err(|_| VerifyError::Foreign)?;
        if bytes.len() < HEAD_BYTES + TAG_BYTES {
            return Err(VerifyError::Foreign);
        }
        let (content, tag) = bytes.split_at(bytes.len() - TAG_BYTES);
        if !self.keys.iter().any(|key| is_tag(key, content, tag)) {
            return Err(VerifyError::Signature);
        }
        let (origin, issued_on) = decoded(content).ok_or(VerifyError::Foreign)?;
        let today = day(now).ok_or(VerifyError::Expired)?;
        match today.checked_sub(issued_on) {
            Some(age) if age > self.lifetime_days => Err(VerifyError::Expired),
            None if issued_on - today > 1 => Err(VerifyError::Early),
            _ => Ok(VerifiedOrigin { origin, issued_on }),
        }
    }
}

/// Compares a truncated signature in constant time.
fn is_tag(key: &hmac::Key, content: &[u8], tag: &[u8]) -> bool {
    let ours = hmac::sign(key, content);
    ours.as_ref()[..TAG_BYTES].iter().zip(tag).fold(0, |other, (a, b)| other | (a ^ b)) == 0
}

/// Days since 1970.
fn day(now: Timestamp) -> Option<u16> {
    u16::try_from(now.as_millis().div_euclid(86_400_000)).ok()
}

/// Length of a number without leading zero octets.
fn length(number: u64) -> usize {
    8 - number.leading_zeros() as usize / 8
}

fn encoded(origin: &Origin, day: u16) -> Vec<u8> {
    let purpose = match origin.purpose {
        Purpose::Bounce => 0,
        Purpose::Unsubscribe => 1,
        Purpose::Confirm => 2,
    };
    let (kind, first, ordinal) = match origin.reference {
        Reference::Notification(id) => (0, id.batch.0, id.ordinal),
        Reference::Multicast(batch) => (1, batch.0, 0),
        Reference::Message(id) => (2, id.0, 0),
    };
    let (target, number, tag) = match origin.target {
        // Never issued: it has no form of its own.
        Target::Reported | Target::OnlyRecipient => (0, 0, None),
        Target::Device(subscriber, tag) => (1, subscriber.0, Some(tag.0)),
        Target::Subscription(id) => (2, id.0, None),
    };
    let ordinal = u64::from(ordinal);
    let lengths = [length(first), length(ordinal), length(number)];
    let [high, low] = day.to_be_bytes();
    let mut bytes = vec![
        VERSION << 6 | purpose << 4 | kind << 2 | target,
        high,
        low,
        (lengths[0] << 4 | lengths[1]) as u8,
        lengths[2] as u8,
    ];
    for (number, length) in [first, ordinal, number].iter().zip(lengths) {
        bytes.extend_from_slice(&number.to_be_bytes()[8 - length..]);
    }
    bytes.extend(tag.into_iter().flatten());
    bytes
}

fn decoded(content: &[u8]) -> Option<(Origin, u16)> {
    let (head, mut rest) = content.split_at_checked(HEAD_BYTES)?;
    let mut number = |length: u8| {
        let (digits, after) = rest.split_at_checked(usize::from(length)).filter(|_| length <= 8)?;
        rest = after;
        let is_short = digits.first() != Some(&0);
        is_short.then(|| digits.iter().fold(0_u64, |number, digit| number << 8 | u64::from(*digit)))
    };
    let (first, ordinal, last) = (number(head[3] >> 4)?, number(head[3] & 15)?, number(head[4])?);
    let ordinal = u32::try_from(ordinal).ok()?;
    let purpose = match head[0] >> 4 {
        0 => Purpose::Bounce,
        1 => Purpose::Unsubscribe,
        2 => Purpose::Confirm,
        _ => return None,
    };
    let reference = match head[0] >> 2 & 3 {
        0 => Reference::Notification(NotificationId { batch: NotificationBatchId(first), ordinal }),
        1 => Reference::Multicast(NotificationBatchId(first)),
        2 => Reference::Message(MessageId(first)),
        _ => return None,
    };
    let target = match (head[0] & 3, rest) {
        (0, []) => Target::Reported,
        (1, [a, b, c, d]) => Target::Device(SubscriberNumber(last), DeviceTag([*a, *b, *c, *d])),
        (2, []) => Target::Subscription(SubscriptionId(last)),
        _ => return None,
    };
    Some((Origin { purpose, reference, target }, u16::from_be_bytes([head[1], head[2]])))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_796_000_000_000);
    const DAYS: Duration = Duration::from_secs(30 * 86_400);

    fn addresses(base: &str, position: Position, secrets: &[[u8; 32]]) -> ReturnAddresses {
        ReturnAddresses::new(base, position, secrets, DAYS).expect("a configuration")
    }

    fn later(days: u64) -> Timestamp {
        NOW + Duration::from_secs(days * 86_400)
    }

    fn origin(purpose: Purpose, largest: bool) -> Origin {
        let (batch, ordinal, subscriber) =
            if largest { (u64::MAX, u32::MAX, u64::MAX) } else { (70_000, 41, 1_000_000) };
        Origin {
            purpose,
            reference: Reference::Notification(NotificationId { batch: NotificationBatchId(batch), ordinal }),
            target: Target::Device(SubscriberNumber(subscriber), DeviceTag::of("ann@example.org")),
        }
    }

    fn all() -> Vec<Origin> {
        let references = [
            Reference::Notification(NotificationId { batch: NotificationBatchId(0), ordinal: 0 }),
            Reference::Notification(NotificationId { batch: NotificationBatchId(u64::MAX), ordinal: u32::MAX }),
            Reference::Multicast(NotificationBatchId(256)),
            Reference::Message(MessageId(1)),
        ];
        let targets = [
            Target::Reported,
            Target::Device(SubscriberNumber(0), DeviceTag::of("ann@example.org")),
            Target::Device(SubscriberNumber(u64::MAX), DeviceTag::of("ann@example.org")),
            Target::Subscription(SubscriptionId(255)),
        ];
        let purposes = [Purpose::Bounce, Purpose::Unsubscribe, Purpose::Confirm];
        let pairs = references.iter().flat_map(|reference| targets.iter().map(move |target| (*reference, *target)));
        pairs.flat_map(|(reference, target)| purposes.map(|purpose| Origin { purpose, reference, target })).collect()
    }

    #[test]
    fn every_origin_survives_lower_and_upper_case_in_64_octets() {
        let whole = addresses("x@b.example.org", Position::WholeLocalPart, &[[7; 32]]);
        for origin in all() {
            let address = whole.issue(&origin, NOW).expect("an address");
            assert!(address.split('@').next().is_some_and(|local| local.len() <= 64), "{address}");
            for spelling in [address.clone(), address.to_uppercase(), address.to_lowercase()] {
                let verified = whole.verify(&spelling, NOW).map(|verified| *verified.origin());
                assert_eq!(verified, Ok(origin), "{spelling}");
            }
        }
    }

    #[test]
    fn a_subaddress_keeps_the_local_part_and_has_a_limit() {
        let usual = addresses("bounces@Example.ORG", Position::Subaddress, &[[7; 32]]);
        let address = usual.issue(&origin(Purpose::Bounce, false), NOW).expect("an address");
        assert!(address.starts_with("bounces+") && address.len() < 80, "{address}");
        assert!(usual.verify(&address.to_uppercase(), NOW).is_ok());
        assert_eq!(usual.issue(&origin(Purpose::Bounce, true), NOW), Err(IssueError::TooLong(71)));
        assert_eq!(usual.issue(&origin(Purpose::Bounce, true), Timestamp(-1)), Err(IssueError::Day));
        let idn = addresses("b@bücher.example", Position::Subaddress, &[[7; 32]]);
        let address = idn.issue(&origin(Purpose::Bounce, false), NOW).expect("an address");
        let unicode = address.replace("xn--bcher-kva", "BÜCHER");
        assert!(address.is_ascii() && idn.verify(&unicode, NOW).is_ok(), "{address}");
    }

    #[test]
    fn forged_foreign_and_damaged_addresses_are_refused() {
        let ours = addresses("b@example.org", Position::Subaddress, &[[7; 32]]);
        let theirs = addresses("b@example.org", Position::Subaddress, &[[8; 32]]);
        let origin = origin(Purpose::Bounce, false);
        let address = ours.issue(&origin, NOW).expect("an address");
        assert_eq!(theirs.verify(&address, NOW), Err(VerifyError::Signature));
        for wrong in
            ["", "b@example.org", "b+@example.org", "b+x@example.org", "b+aaaaaaaaaaaaaaaaaaaaaaaa1@example.org"]
        {
            assert_eq!(ours.verify(wrong, NOW), Err(VerifyError::Foreign), "{wrong}");
        }
        assert_eq!(ours.verify(&address.replace("example.org", "example.net"), NOW), Err(VerifyError::Foreign));
        assert_eq!(ours.verify(&address.replace("b+", "c+"), NOW), Err(VerifyError::Foreign));
        // Every other letter in every place, every shorter and every longer text.
        let (head, domain) = address.split_once('@').expect("an address");
        for at in 2..head.len() {
            for letter in "abcdefghijklmnopqrstuvwxyz234567".chars() {
                let changed: String = head.char_indices().map(|(i, c)| if i == at { letter } else { c }).collect();
                let changed = format!("{changed}@{domain}");
                assert_eq!(ours.verify(&changed, NOW).is_ok(), changed == address, "{changed}");
            }
            assert!(ours.verify(&format!("{}@{domain}", &head[..at]), NOW).is_err());
        }
        assert!(ours.verify(&format!("{head}a@{domain}"), NOW).is_err());
        assert!(ours.verify(&format!("{head}aaaaaaaa@{domain}"), NOW).is_err());
    }

    #[test]
    fn an_address_of_one_origin_fits_no_other() {
        let ours = addresses("b@example.org", Position::WholeLocalPart, &[[7; 32]]);
        let texts: Vec<String> = all().iter().map(|origin| ours.issue(origin, NOW).expect("an address")).collect();
        let distinct: std::collections::BTreeSet<&String> = texts.iter().collect();
        assert_eq!(distinct.len(), texts.len());
        for (one, other) in texts.iter().zip(texts.iter().skip(1)) {
            let (one, other) = (one.split('@').next().expect("a part"), other.split('@').next().expect("a part"));
            // The content of one with the signature of the other.
            let spliced = format!("{}{}@example.org", &one[..one.len() - 16], &other[other.len() - 16..]);
            assert!(ours.verify(&spliced, NOW).is_err(), "{spliced}");
        }
    }

    #[test]
    fn keys_rotate_and_addresses_expire() {
        let before = addresses("b@example.org", Position::Subaddress, &[[1; 32]]);
        let rotated = addresses("b@example.org", Position::Subaddress, &[[2; 32], [1; 32]]);
        let after = addresses("b@example.org", Position::Subaddress, &[[2; 32]]);
        let old = before.issue(&origin(Purpose::Bounce, false), NOW).expect("an address");
        let new = rotated.issue(&origin(Purpose::Bounce, false), NOW).expect("an address");
        assert!(
            rotated.verify(&old, NOW).is_ok() && rotated.verify(&new, NOW).is_ok() && after.verify(&new, NOW).is_ok()
        );
        assert_eq!(after.verify(&old, NOW), Err(VerifyError::Signature));
        assert_eq!(rotated.verify(&old, later(30)).map(|verified| verified.issued_on()), Ok(20_787));
        assert_eq!(rotated.verify(&old, later(31)), Err(VerifyError::Expired));
        let early = before.issue(&origin(Purpose::Bounce, false), later(2)).expect("an address");
        assert_eq!(before.verify(&early, NOW), Err(VerifyError::Early));
        assert!(before.verify(&early, later(1)).is_ok());
        for (secrets, expected) in [(0, Err(ConfigurationError::Keys(0))), (9, Err(ConfigurationError::Keys(9)))] {
            let made = ReturnAddresses::new("b@example.org", Position::Subaddress, &vec![[1; 32]; secrets], DAYS);
            assert_eq!(made.map(drop), expected);
        }
        assert!(ReturnAddresses::new("b", Position::Subaddress, &[[1; 32]], DAYS).is_err());
    }

    #[test]
    fn spellings_of_a_mailbox_have_one_tag() {
        assert_eq!(DeviceTag::of("Ann@BÜCHER.example"), DeviceTag::of("ann@xn--bcher-kva.example"));
        assert_ne!(DeviceTag::of("ann@example.org"), DeviceTag::of("bob@example.org"));
    }
}
