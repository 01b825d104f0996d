//! Signs tokens (HMAC) that return to us: unsubscribe links, return addresses (VERP), inbox passes and device claims.
//! A token cannot be forged, and one kind cannot be used as another.

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use ring::hmac;
use tocsin_model::{
    id::{NotificationBatchId, NotificationId, SubscriberNumber, SubscriptionId},
    time::Timestamp,
};

/// Bytes of the signature in a link: 128 bits.
const LINK_BYTES: usize = 16;
/// Letters of the signature in a return address: 100 bits, as a local part has at most 64 letters.
const RETURN_LETTERS: usize = 20;
/// Longest local part of the base address that leaves room for the signed part.
pub(crate) const RETURN_LOCAL_MAX: usize = 20;

/// Signs and verifies tokens with keys derived from the installation's secret.
pub struct TokenSigner {
    links: hmac::Key,
    returns: hmac::Key,
    passes: hmac::Key,
    claims: hmac::Key,
}

impl std::fmt::Debug for TokenSigner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokenSigner")
    }
}

/// Permission to read the feed of one subscriber, used in place of an API key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InboxPass {
    /// The subscriber.
    pub subscriber: SubscriberNumber,
    /// Whether the holder may mark items.
    pub may_mark: bool,
    /// End of validity. Whole seconds.
    pub expires_at: Timestamp,
}

/// Proof that a user receives what is sent to a subscriber's device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim<'a> {
    /// The subscriber.
    pub subscriber: SubscriberNumber,
    /// Channel and address of the device. They are signed but not contained, so the claim is void when they change.
    pub device: (&'a str, &'a str),
    /// End of validity. Whole seconds.
    pub expires_at: Timestamp,
}

/// Prefix of a claim.
const CLAIM: &str = "claim";

/// Prefix of a pass; no API key begins with it.
const PASS: &str = "inbox";

/// The subject of a return address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Returned {
    /// One notification, so one recipient.
    Notification(NotificationId),
    /// A mail to several recipients of a notification batch; the bounce must name the recipient.
    Multicast(NotificationBatchId),
}

impl TokenSigner {
    /// Derives one key for each use from the secret.
    pub fn new(secret: &[u8; 32]) -> TokenSigner {
        let root = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let key = |purpose: &str| hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&root, purpose.as_bytes()).as_ref());
        TokenSigner {
            links: key("unsubscribe"),
            returns: key("return address"),
            passes: key("inbox"),
            claims: key("claim"),
        }
    }

    /// The token of an unsubscribe link; letters, digits, `-` and `_`.
    pub fn token(&self, subscription: SubscriptionId) -> String {
        let number = subscription.0.to_string();
        let tag = hmac::sign(&self.links, number.as_bytes());
        format!("{number}-{}", BASE64_URL_SAFE_NO_PAD.encode(&tag.as_ref()[..LINK_BYTES]))
    }

    /// The subscription of an unsubscribe token with a valid signature.
    pub fn subscription(&self, token: &str) -> Option<SubscriptionId> {
        let subscription = SubscriptionId(token.split_once('-')?.0.parse().ok()?);
        is_same(&self.token(subscription), token).then_some(subscription)
    }

    /// The text of a pass; letters, digits, `.`, `-` and `_`.
    pub fn inbox_pass(&self, pass: &InboxPass) -> String {
        let right = if pass.may_mark { "w" } else { "r" };
        let seconds = pass.expires_at.as_millis().div_euclid(1_000);
        let what = format!("{PASS}.{}.{right}.{seconds}", base36(pass.subscriber.0));
        let tag = hmac::sign(&self.passes, what.as_bytes());
        format!("{what}.{}", BASE64_URL_SAFE_NO_PAD.encode(&tag.as_ref()[..LINK_BYTES]))
    }

    /// The pass in a text if its signature is valid; the caller checks its expiry.
    pub fn verify_inbox_pass(&self, text: &str) -> Option<InboxPass> {
        let [PASS, subscriber, right, seconds, _] = text.split('.').collect::<Vec<_>>()[..] else { return None };
        let pass = InboxPass {
            subscriber: SubscriberNumber(u64::from_str_radix(subscriber, 36).ok()?),
            may_mark: right == "w",
            expires_at: Timestamp::from_millis(seconds.parse::<i64>().ok()?.checked_mul(1_000)?),
        };
        is_same(&self.inbox_pass(&pass), text).then_some(pass)
    }

    /// The text of a claim, sent to its device; letters, digits, `.`, `-` and `_`.
    pub fn claim(&self, claim: &Claim<'_>) -> String {
        let seconds = claim.expires_at.as_millis().div_euclid(1_000);
        let what = format!("{CLAIM}.{}.{seconds}", base36(claim.subscriber.0));
        let (channel, address) = claim.device;
        let tag = hmac::sign(&self.claims, format!("{what} {channel} {address}").as_bytes());
        format!("{what}.{}", BASE64_URL_SAFE_NO_PAD.encode(&tag.as_ref()[..LINK_BYTES]))
    }

    /// Expiry of a claim to one of these devices, if its signature is valid; the caller compares it with the clock.
    pub fn verify_claim<'a>(
        &self,
        text: &str,
        subscriber: SubscriberNumber,
        mut devices: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Option<Timestamp> {
        let [CLAIM, _, seconds, _] = text.split('.').collect::<Vec<_>>()[..] else { return None };
        let expires_at = Timestamp::from_millis(seconds.parse::<i64>().ok()?.checked_mul(1_000)?);
        let is_ours = |device| is_same(&self.claim(&Claim { subscriber, device, expires_at }), text);
        devices.any(is_ours).then_some(expires_at)
    }

    /// Return path for bounces (VERP): `base` with the subject and its signature after a `+`.
    pub fn return_address(&self, base: &str, returned: Returned) -> String {
        let (local, domain) = base.rsplit_once('@').unwrap_or((base, "localhost"));
        format!("{local}+{}@{domain}", self.sealed(returned))
    }

    /// The subject of a return address, in any case of letters; `None` without a valid signature.
    pub fn verify_return_address(&self, address: &str) -> Option<Returned> {
        let (local, _) = address.rsplit_once('@')?;
        let (_, sealed) = local.rsplit_once('+')?;
        let sealed = sealed.to_ascii_lowercase();
        let mut parts = sealed.split('-');
        let batch = NotificationBatchId(u64::from_str_radix(parts.next()?, 36).ok()?);
        let second = parts.next()?;
        let returned = match parts.next() {
            Some(_) => {
                let ordinal = u32::from_str_radix(second, 36).ok()?;
                Returned::Notification(NotificationId { batch, ordinal })
            }
            None => Returned::Multicast(batch),
        };
        is_same(&self.sealed(returned), &sealed).then_some(returned)
    }

    fn sealed(&self, returned: Returned) -> String {
        let what = match returned {
            Returned::Notification(id) => format!("{}-{}", base36(id.batch.0), base36(id.ordinal.into())),
            Returned::Multicast(batch) => base36(batch.0),
        };
        let tag = hmac::sign(&self.returns, what.as_bytes());
        // Relays may change the case of letters, so only one case is used.
        let letters =
            tag.as_ref().iter().map(|byte| char::from(b"abcdefghijklmnopqrstuvwxyz234567"[usize::from(byte % 32)]));
        let letters: String = letters.take(RETURN_LETTERS).collect();
        format!("{what}-{letters}")
    }
}

/// Compares in constant time.
fn is_same(ours: &str, theirs: &str) -> bool {
    ours.len() == theirs.len() && ours.bytes().zip(theirs.bytes()).fold(0, |other, (a, b)| other | (a ^ b)) == 0
}

fn base36(mut number: u64) -> String {
    let mut digits = Vec::with_capacity(13);
    loop {
        digits.push(b"0123456789abcdefghijklmnopqrstuvwxyz"[(number % 36) as usize]);
        number /= 36;
        if number == 0 {
            break;
        }
    }
    digits.iter().rev().map(|digit| char::from(*digit)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_known_and_cannot_be_made() {
        let (ours, theirs) = (TokenSigner::new(&[7; 32]), TokenSigner::new(&[8; 32]));
        let token = ours.token(SubscriptionId(15));
        assert_eq!(token.len(), "15-".len() + 22, "{token}");
        assert_eq!(ours.subscription(&token), Some(SubscriptionId(15)));
        assert_eq!(ours.token(SubscriptionId(15)), token, "it stays the same");
        assert_eq!(theirs.subscription(&token), None);
        let other = ours.token(SubscriptionId(16));
        for wrong in [
            "",
            "15",
            "15-",
            &token[..token.len() - 1],
            &format!("{token}A"),
            &format!("0{token}"),
            &format!("+{token}"),
            &token.to_uppercase(),
            &format!("15-{}", &other[3..]),
            &format!("16-{}", &token[3..]),
        ] {
            assert_eq!(ours.subscription(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn claims_are_known_and_cannot_be_made() {
        let token_signer = TokenSigner::new(&[7; 32]);
        let subscriber = SubscriberNumber(71);
        let expires_at = Timestamp::from_millis(1_800_000_000_000);
        let device = ("email", "ann@example.org");
        let claim = token_signer.claim(&Claim { subscriber, device, expires_at });
        let shown = |text: &str, number, device| {
            token_signer.verify_claim(text, SubscriberNumber(number), [device].into_iter())
        };
        assert_eq!(shown(&claim, 71, device), Some(expires_at));
        for (text, number, device) in [
            (claim.as_str(), 72, device),
            (&claim, 71, ("email", "bob@example.org")),
            (&claim, 71, ("sms", "ann@example.org")),
            (&claim.replace(".18", ".19"), 71, device),
            (&claim[1..], 71, device),
            (&TokenSigner::new(&[8; 32]).claim(&Claim { subscriber, device, expires_at }), 71, device),
            ("claim.1z.99999999999999999999.x", 71, device),
            ("", 71, device),
        ] {
            assert_eq!(shown(text, number, device), None, "{text}");
        }
        assert_eq!(token_signer.verify_inbox_pass(&claim), None);
    }

    #[test]
    fn passes_are_known_and_cannot_be_made() {
        let (ours, theirs) = (TokenSigner::new(&[7; 32]), TokenSigner::new(&[8; 32]));
        let pass = InboxPass {
            subscriber: SubscriberNumber(77),
            may_mark: false,
            expires_at: Timestamp(1_700_000_000_000_000),
        };
        let text = ours.inbox_pass(&pass);
        assert_eq!(ours.verify_inbox_pass(&text), Some(pass));
        let stronger = ours.inbox_pass(&InboxPass { may_mark: true, ..pass });
        assert!(ours.verify_inbox_pass(&stronger).is_some_and(|pass| pass.may_mark));
        for wrong in [
            "",
            "inbox",
            "tocsin_a_b",
            &text.replace(".r.", ".w."),
            &text.replace(".r.", ".x."),
            &text.replace("inbox.25.", "inbox.26."),
            &text.replace("1700", "1800"),
            &text[..text.len() - 1],
            &format!("{text}.x"),
            &ours.token(SubscriptionId(77)),
        ] {
            assert_eq!(ours.verify_inbox_pass(wrong), None, "{wrong}");
        }
        assert_eq!(theirs.verify_inbox_pass(&text), None);
    }

    #[test]
    fn return_addresses_are_known_and_cannot_be_made() {
        let (ours, theirs) = (TokenSigner::new(&[7; 32]), TokenSigner::new(&[8; 32]));
        let one = Returned::Notification(NotificationId { batch: NotificationBatchId(3), ordinal: 41 });
        let most = Returned::Notification(NotificationId { batch: NotificationBatchId(u64::MAX), ordinal: u32::MAX });
        let many = Returned::Multicast(NotificationBatchId(3));
        for returned in [one, most, many] {
            let base = format!("{}@example.org", "b".repeat(RETURN_LOCAL_MAX));
            let address = ours.return_address(&base, returned);
            assert!(address.rsplit_once('@').is_some_and(|(local, _)| local.len() <= 64), "{address}");
            assert_eq!(ours.verify_return_address(&address), Some(returned));
            assert_eq!(ours.verify_return_address(&address.to_uppercase()), Some(returned));
            assert_eq!(theirs.verify_return_address(&address), None);
        }
        let address = ours.return_address("b+c@example.org", one);
        assert_eq!(ours.verify_return_address(&address), Some(one), "{address}");
        let of_many = ours.return_address("b@example.org", many);
        for wrong in [
            "b@example.org",
            "b+3-15@example.org",
            "b+3-15-aaaaaaaaaaaaaaaaaaaa@example.org",
            &address.replace("+3-", "+4-"),
            &address.replace("+3-15-", "+3-"),
            &of_many.replace("+3-", "+3-15-"),
            &address.replace("-15-", "-015-"),
            "",
        ] {
            assert_eq!(ours.verify_return_address(wrong), None, "{wrong}");
        }
    }
}
