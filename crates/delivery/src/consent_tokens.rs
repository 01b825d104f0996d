//! Tokens of consents: links and codes of confirmation messages, handles of requests, hashes of addresses. Link and code
//! derive from the number of the request, so that neither is stored.

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    hmac,
    rand::{SecureRandom, SystemRandom},
};
use tocsin_model::{
    consent::CODE_DIGITS,
    id::{Name, SubscriptionId},
    suppression::bound,
};

use crate::signed_text::is_same;

/// Bytes of the signature in a link: 128 bits.
const LINK_BYTES: usize = 16;

/// Keys of the tokens, derived from the installation's secret.
pub struct ConsentTokens {
    links: hmac::Key,
    codes: hmac::Key,
    hashes: hmac::Key,
    handles: LessSafeKey,
}

/// Subject of a confirmation link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConfirmLink {
    /// The subscription.
    pub subscription: SubscriptionId,
    /// The number of the request.
    pub request: u64,
}

impl ConsentTokens {
    /// `key` derives a key for a purpose.
    pub(crate) fn new(key: impl Fn(&str) -> hmac::Key) -> ConsentTokens {
        let handles = hmac::sign(&key("consent handle"), b"key");
        let handles = UnboundKey::new(&AES_256_GCM, handles.as_ref()).expect("HMAC-SHA256 has the length of the key");
        ConsentTokens {
            links: key("consent link"),
            codes: key("consent code"),
            hashes: key("consent hash"),
            handles: LessSafeKey::new(handles),
        }
    }

    /// Token of a confirmation link: digits, letters, `-` and `_`.
    pub fn link(&self, link: ConfirmLink) -> String {
        let subject = format!("{}-{}", link.subscription.0, link.request);
        let tag = hmac::sign(&self.links, subject.as_bytes());
        format!("{subject}-{}", BASE64_URL_SAFE_NO_PAD.encode(&tag.as_ref()[..LINK_BYTES]))
    }

    /// Subject of a token with a valid signature.
    pub fn verify_link(&self, token: &str) -> Option<ConfirmLink> {
        let mut parts = token.splitn(3, '-');
        let subscription = SubscriptionId(parts.next()?.parse().ok()?);
        let link = ConfirmLink { subscription, request: parts.next()?.parse().ok()? };
        is_same(&self.link(link), token).then_some(link)
    }

    /// Code of a request: digits.
    pub fn code(&self, link: ConfirmLink) -> String {
        let tag = hmac::sign(&self.codes, format!("{} {}", link.subscription.0, link.request).as_bytes());
        let number = tag.as_ref().iter().take(8).fold(0u64, |number, byte| number << 8 | u64::from(*byte));
        format!("{:0CODE_DIGITS$}", number % 10u64.pow(CODE_DIGITS as u32))
    }

    /// Whether a code is that of a request, in constant time.
    pub fn is_code(&self, link: ConfirmLink, code: &str) -> bool {
        is_same(&self.code(link), code)
    }

    /// Hash of a code that another system chose.
    pub fn code_hash(&self, code: &str) -> Vec<u8> {
        hmac::sign(&self.codes, format!("given {code}").as_bytes()).as_ref().to_vec()
    }

    /// Whether a code has this hash, in constant time.
    pub fn has_code_hash(&self, code: &str, hash: &[u8]) -> bool {
        hmac::verify(&self.codes, format!("given {code}").as_bytes(), hash).is_ok()
    }

    /// Keyed hash of an address within a channel, equal for all spellings of a mailbox.
    pub fn address_hash(&self, channel: &Name, address: &str) -> String {
        hex::encode(
            &hmac::sign(&self.hashes, format!("{channel} {}", bound(address)).as_bytes()).as_ref()[..LINK_BYTES],
        )
    }

    /// Handle of a request: the subscription, encrypted. Each call returns another text, so a handle does not disclose
    /// whether the subscription existed before. `None` if there is no randomness.
    pub fn handle(&self, subscription: SubscriptionId) -> Option<String> {
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).ok()?;
        let mut sealed = subscription.0.to_be_bytes().to_vec();
        let random = Nonce::assume_unique_for_key(nonce);
        self.handles.seal_in_place_append_tag(random, Aad::empty(), &mut sealed).ok()?;
        Some(BASE64_URL_SAFE_NO_PAD.encode([&nonce[..], &sealed].concat()))
    }

    /// Subscription of a handle made here.
    pub fn open_handle(&self, handle: &str) -> Option<SubscriptionId> {
        let mut bytes = BASE64_URL_SAFE_NO_PAD.decode(handle).ok()?;
        let (nonce, sealed) = bytes.split_at_mut_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let opened = self.handles.open_in_place(nonce, Aad::empty(), sealed).ok()?;
        Some(SubscriptionId(u64::from_be_bytes((&*opened).try_into().ok()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TokenSigner;

    const LINK: ConfirmLink = ConfirmLink { subscription: SubscriptionId(15), request: 2 };

    #[test]
    fn links_are_verified_and_cannot_be_made() {
        let (ours, theirs) = (TokenSigner::new(&[7; 32]), TokenSigner::new(&[8; 32]));
        let token = ours.consent().link(LINK);
        assert_eq!(ours.consent().verify_link(&token), Some(LINK));
        assert_eq!(theirs.consent().verify_link(&token), None);
        for wrong in [
            "",
            "15",
            "15-2",
            "15-2-",
            &token[..token.len() - 1],
            &format!("{token}A"),
            &format!("0{token}"),
            &token.replace("15-2-", "15-3-"),
            &token.replace("15-2-", "16-2-"),
            &ours.token(SubscriptionId(15)),
        ] {
            assert_eq!(ours.consent().verify_link(wrong), None, "{wrong}");
        }
        assert_eq!(ours.subscription(&token), None, "it does not unsubscribe");
    }

    #[test]
    fn codes_are_digits_of_one_request() {
        let signer = TokenSigner::new(&[7; 32]);
        let tokens = signer.consent();
        let code = tokens.code(LINK);
        assert!(code.len() == CODE_DIGITS && code.bytes().all(|byte| byte.is_ascii_digit()), "{code}");
        assert!(tokens.is_code(LINK, &code) && !tokens.is_code(LINK, &code[1..]) && !tokens.is_code(LINK, ""));
        assert_ne!(tokens.code(ConfirmLink { request: 3, ..LINK }), code);
        let hash = tokens.code_hash("12345");
        assert!(tokens.has_code_hash("12345", &hash) && !tokens.has_code_hash("12346", &hash));
    }

    #[test]
    fn handles_hide_their_subscription() {
        let (ours, theirs) = (TokenSigner::new(&[7; 32]), TokenSigner::new(&[8; 32]));
        let handles = [15, 15, 4_000_000_000].map(|id| ours.consent().handle(SubscriptionId(id)).expect("random"));
        assert_eq!(ours.consent().open_handle(&handles[0]), Some(SubscriptionId(15)));
        assert_ne!(handles[0], handles[1]);
        assert_eq!(handles[0].len(), handles[2].len());
        for wrong in ["", "AAAA", &handles[0][1..], &handles[0].replace(&handles[0][..2], "__")] {
            assert_eq!(ours.consent().open_handle(wrong), None, "{wrong}");
        }
        assert_eq!(theirs.consent().open_handle(&handles[0]), None);
    }

    #[test]
    fn hashes_of_addresses_ignore_their_spelling() {
        let signer = TokenSigner::new(&[7; 32]);
        let hash =
            |channel: &str, address: &str| signer.consent().address_hash(&channel.parse().expect("a name"), address);
        assert_eq!(hash("email", "Ann@Example.ORG"), hash("email", "ann@example.org"));
        assert_ne!(hash("email", "ann@example.org"), hash("sms", "ann@example.org"));
    }
}
