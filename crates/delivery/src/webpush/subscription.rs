//! A device's address: the `PushSubscription` of a browser, as its `JSON.stringify` writes it.

use std::borrow::Cow;

use base64::{
    Engine, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use ring::{
    agreement::{ECDH_P256, EphemeralPrivateKey, UnparsedPublicKey, agree_ephemeral},
    rand::SystemRandom,
};
use serde::Deserialize;

/// Browsers write base64url; some libraries add padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::URL_SAFE,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

#[derive(Deserialize)]
struct Written<'a> {
    #[serde(borrow)]
    endpoint: Cow<'a, str>,
    #[serde(default, rename = "expirationTime")]
    expiration_time: Option<f64>,
    #[serde(borrow)]
    keys: WrittenKeys<'a>,
}

#[derive(Deserialize)]
struct WrittenKeys<'a> {
    #[serde(borrow)]
    p256dh: Cow<'a, str>,
    #[serde(borrow)]
    auth: Cow<'a, str>,
}

/// Endpoint and keys of a push subscription.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Subscription {
    /// The push service's URL for it.
    pub endpoint: String,
    /// Its expiration time in milliseconds since 1970, if known.
    pub ends_at_millis: Option<f64>,
    pub keys: Keys,
}

/// Encryption keys of a browser.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Keys {
    /// Public key, uncompressed.
    pub public: [u8; 65],
    /// Authentication secret.
    pub auth: [u8; 16],
}

impl Subscription {
    /// Parses a device's address. The error says what is wrong with it.
    pub fn read(address: &str) -> Result<Subscription, String> {
        let written: Written<'_> = serde_json::from_str(address)
            .map_err(|error| format!("this is not the JSON of a push subscription: {error}"))?;
        let endpoint = written.endpoint.into_owned();
        if !["https://", "http://"].iter().any(|scheme| endpoint.starts_with(scheme)) {
            return Err("`endpoint` is not a URL that starts with `https://`".into());
        }
        let public = bytes(&written.keys.p256dh).filter(|key: &[u8; 65]| key[0] == 4);
        let public = public.ok_or("`keys.p256dh` is not a public key of 65 bytes in base64 for URLs")?;
        let auth = bytes(&written.keys.auth).ok_or("`keys.auth` is not a secret of 16 bytes in base64 for URLs")?;
        Ok(Subscription { endpoint, ends_at_millis: written.expiration_time, keys: Keys { public, auth } })
    }
}

/// Decodes base64url of exactly `N` bytes.
pub(super) fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    BASE64.decode(text.trim()).ok()?.try_into().ok()
}

/// The endpoint of an address, without checking the rest; empty if there is none.
pub(super) fn endpoint(address: &str) -> Cow<'_, str> {
    #[derive(Deserialize)]
    struct Endpoint<'a> {
        #[serde(borrow)]
        endpoint: Cow<'a, str>,
    }
    serde_json::from_str::<Endpoint<'_>>(address).map(|found| found.endpoint).unwrap_or_default()
}

/// Checks that a text is a push subscription, and its public key a point of the curve P-256 (SEC 1, section 3.2.2.1).
///
/// # Errors
/// A sentence about the first problem.
pub fn check_subscription(address: &str) -> Result<(), String> {
    let keys = Subscription::read(address)?.keys;
    match is_point(&keys.public) {
        true => Ok(()),
        false => Err("`keys.p256dh` is not a point of the curve P-256, so no message could be encrypted for it".into()),
    }
}

/// Whether a public key is a point of the curve P-256. Verifying a signature checks the key first, but does not report
/// why it failed, so the key is used in an agreement.
fn is_point(public: &[u8; 65]) -> bool {
    let ours = EphemeralPrivateKey::generate(&ECDH_P256, &SystemRandom::new());
    // Without random numbers nothing is known against the key, and no message is sent either.
    ours.is_ok_and(|ours| agree_ephemeral(ours, &UnparsedPublicKey::new(&ECDH_P256, public), |_| ()).is_ok())
}
