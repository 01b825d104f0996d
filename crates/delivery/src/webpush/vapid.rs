//! VAPID (RFC 8292): the application server's key, and a token for each push service.

use std::{collections::HashMap, sync::Arc, time::Duration};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use http::HeaderValue;
use parking_lot::Mutex;
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair},
};
use serde_json::json;
use tocsin_model::time::Timestamp;

use super::subscription::bytes;

/// Validity of a token; push services accept at most a day.
const LASTS: Duration = Duration::from_secs(12 * 3_600);
/// A token with less validity left is renewed.
const SPARE: Duration = Duration::from_secs(3_600);
/// Most cached tokens, one per push service. There are few push services; a full cache is cleared.
const KEPT: usize = 1_000;

/// A key pair, each part in base64url without padding, as browsers and other libraries write it.
#[derive(Clone, PartialEq, Eq)]
pub struct VapidKey {
    /// The public key, for `applicationServerKey` of browsers.
    pub public: String,
    /// The private key; secret.
    pub private: String,
}

/// Generates a key pair.
///
/// # Errors
/// The system has no random numbers.
pub fn generate_key() -> Result<VapidKey, &'static str> {
    let failed = |_| "the system has no random numbers";
    let document =
        EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new()).map_err(failed)?;
    // PKCS #8 of RFC 5915: the private key follows the head, the public key is at the end.
    let document = document.as_ref();
    let (private, public) = (&document[36..68], &document[document.len() - 65..]);
    let key =
        VapidKey { public: BASE64_URL_SAFE_NO_PAD.encode(public), private: BASE64_URL_SAFE_NO_PAD.encode(private) };
    Vapid::new(&key.public, &key.private, "").map(|_| key).map_err(|_| "the key that was made is not one")
}

/// Signs requests to push services.
pub(super) struct Vapid {
    pair: EcdsaKeyPair,
    random: SystemRandom,
    public: String,
    subject: String,
    tokens: Mutex<HashMap<Arc<str>, (HeaderValue, Timestamp)>>,
}

impl Vapid {
    /// The error names the invalid option, and never shows a key.
    pub fn new(public: &str, private: &str, subject: &str) -> Result<Vapid, (&'static str, &'static str)> {
        let public: [u8; 65] = bytes(public)
            .filter(|key: &[u8; 65]| key[0] == 4)
            .ok_or(("public_key", "this is not a public key of 65 bytes in base64 for URLs"))?;
        let private: [u8; 32] =
            bytes(private).ok_or(("private_key", "this is not a private key of 32 bytes in base64 for URLs"))?;
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let pair = EcdsaKeyPair::from_private_key_and_public_key(algorithm, &private, &public, &random)
            .map_err(|_| ("private_key", "this does not belong to the public key"))?;
        let public = BASE64_URL_SAFE_NO_PAD.encode(pair.public_key());
        Ok(Vapid { pair, random, public, subject: subject.to_owned(), tokens: Mutex::default() })
    }

    /// The public key, in the form that browsers use.
    pub fn public(&self) -> &str {
        &self.public
    }

    /// Value of `Authorization` for the push service of this origin.
    pub fn authorization(&self, origin: &Arc<str>, now: Timestamp) -> Option<HeaderValue> {
        let mut tokens = self.tokens.lock();
        if let Some((value, end)) = tokens.get(origin)
            && *end > now + SPARE
        {
            return Some(value.clone());
        }
        let end = now + LASTS;
        let value = self.sign(origin, end)?;
        if tokens.len() >= KEPT {
            tokens.clear();
        }
        tokens.insert(origin.clone(), (value.clone(), end));
        Some(value)
    }

    fn sign(&self, origin: &str, end: Timestamp) -> Option<HeaderValue> {
        let part = |json: serde_json::Value| BASE64_URL_SAFE_NO_PAD.encode(json.to_string());
        let head = part(json!({ "typ": "JWT", "alg": "ES256" }));
        let seconds = end.as_millis().div_euclid(1_000);
        let claims = part(json!({ "aud": audience(origin), "exp": seconds, "sub": self.subject }));
        let signed = format!("{head}.{claims}");
        let signature = self.pair.sign(&self.random, signed.as_bytes()).ok()?;
        let signature = BASE64_URL_SAFE_NO_PAD.encode(signature);
        HeaderValue::try_from(format!("vapid t={signed}.{signature}, k={}", self.public)).ok()
    }
}

/// The origin as in RFC 6454: without the default port of its scheme.
fn audience(origin: &str) -> &str {
    match origin.split_once("://") {
        Some(("https", _)) => origin.strip_suffix(":443").unwrap_or(origin),
        Some(("http", _)) => origin.strip_suffix(":80").unwrap_or(origin),
        _ => origin,
    }
}
