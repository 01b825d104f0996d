//! A device's address: the `PushSubscription` of a browser, as its `JSON.stringify` writes it.

use std::borrow::Cow;

use base64::{
    Engine, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
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

/// Checks that a text is a push subscription.
///
/// # Errors
/// A sentence about the first problem.
pub fn check_subscription(address: &str) -> Result<(), String> {
    Subscription::read(address).map(drop)
}
