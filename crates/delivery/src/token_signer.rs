//! Signs tokens (HMAC) that return to us: unsubscribe links, return addresses (VERP), inbox passes and device claims.
//! A token cannot be forged, and one kind cannot be used as another.

use std::time::Duration;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use ring::hmac;
use tocsin_feedback::return_address::{
    ConfigurationError, Origin, Position, ReturnAddresses, VerifiedOrigin, VerifyError,
};
use tocsin_model::{
    id::{SubscriberNumber, SubscriptionId},
    time::Timestamp,
};

use crate::{
    consent_tokens::ConsentTokens,
    page_tokens::PageTokens,
    signed_text::{base36, is_same},
};

/// Bytes of the signature in a link: 128 bits.
const LINK_BYTES: usize = 16;
/// Longest local part of the base address that leaves room for the signed part.
pub(crate) const RETURN_LOCAL_MAX: usize = 20;

/// Base and domain of references: they are return addresses, of which only the local part is used.
const REFERENCE_BASE: &str = "reference@localhost";
const REFERENCE_DOMAIN: &str = "@localhost";
/// Lifetime of references.
const REFERENCE_DAYS: u64 = 365;

/// Signs and verifies tokens with keys derived from the installation's secret.
pub struct TokenSigner {
    pages: PageTokens,
    consent: ConsentTokens,
    references: ReturnAddresses,
    returns: Vec<ReturnAddresses>,
    links: hmac::Key,
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

impl TokenSigner {
    /// Derives one key for each use from the secret.
    pub fn new(secret: &[u8; 32]) -> TokenSigner {
        let root = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let key = |purpose: &str| hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&root, purpose.as_bytes()).as_ref());
        TokenSigner {
            pages: PageTokens::new(key),
            consent: ConsentTokens::new(key),
            references: ReturnAddresses::new(
                REFERENCE_BASE,
                Position::WholeLocalPart,
                &[*secret],
                Duration::from_secs(REFERENCE_DAYS * 86_400),
            )
            .expect("a mailbox and one secret are a configuration"),
            returns: Vec::new(),
            links: key("unsubscribe"),
            passes: key("inbox"),
            claims: key("claim"),
        }
    }

    /// The tokens of hosted pages.
    pub fn pages(&self) -> &PageTokens {
        &self.pages
    }

    /// Adds return addresses at which the installation receives feedback. Mails have those added first; all are
    /// verified.
    ///
    /// # Errors
    /// The base address is not a mailbox.
    pub fn with_return_addresses(mut self, base: &str, position: Position) -> Result<TokenSigner, ConfigurationError> {
        self.returns.push(self.references.at(base, position)?);
        Ok(self)
    }

    /// The return addresses of mails, if the installation receives feedback.
    pub fn return_addresses(&self) -> Option<&ReturnAddresses> {
        self.returns.first()
    }

    /// Verifies a return address of the installation.
    ///
    /// # Errors
    /// The address is foreign, forged or expired.
    pub fn verify_return_address(&self, address: &str, now: Timestamp) -> Result<VerifiedOrigin, VerifyError> {
        let mut error = VerifyError::Foreign;
        for addresses in &self.returns {
            match addresses.verify(address, now) {
                Err(VerifyError::Foreign) => {}
                Err(found) => error = found,
                Ok(origin) => return Ok(origin),
            }
        }
        Err(error)
    }

    /// Return addresses with this base, behind its local part and a `+`.
    ///
    /// # Errors
    /// The base address is not a mailbox.
    pub fn return_addresses_at(&self, base: &str) -> Result<ReturnAddresses, ConfigurationError> {
        self.references.at(base, Position::Subaddress)
    }

    /// The tokens of consents.
    pub fn consent(&self) -> &ConsentTokens {
        &self.consent
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

    /// The reference to a mail that a provider returns with its events: the code of a return address. `None` if the
    /// clock is out of range.
    pub fn reference(&self, origin: &Origin, now: Timestamp) -> Option<String> {
        let address = self.references.issue(origin, now).ok()?;
        address.strip_suffix(REFERENCE_DOMAIN).map(str::to_owned)
    }

    /// The content of a reference whose signature is valid.
    ///
    /// # Errors
    /// The reference is foreign, forged or expired.
    pub fn verify_reference(&self, text: &str, now: Timestamp) -> Result<VerifiedOrigin, VerifyError> {
        self.references.verify(&format!("{text}{REFERENCE_DOMAIN}"), now)
    }
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
}
