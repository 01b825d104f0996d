//! Validation of ID tokens (OpenID Connect Core, 3.1.3.7).

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use serde_json::Value;
use tocsin_model::time::Timestamp;

use crate::keys::Key;

/// Maximum length of a token.
const TOKEN_BYTES_MAX: usize = 64 << 10;
/// Tolerated difference of the clocks, in seconds.
const CLOCK_SKEW_SECONDS: i64 = 60;
/// Maximum age of a token when it arrives, in seconds.
const AGE_SECONDS_MAX: i64 = 10 * 60;

/// An ID token whose signature is not verified yet.
pub(crate) struct IdToken<'t> {
    header: Value,
    claims: Value,
    signed: &'t str,
    signature: Vec<u8>,
}

/// Expected values of the claims.
pub(crate) struct Expected<'e> {
    pub(crate) issuer: &'e str,
    pub(crate) client: &'e str,
    pub(crate) nonce: &'e str,
    /// Earliest time of the authentication, in seconds since 1970, if the user had to authenticate again.
    pub(crate) authenticated_after: Option<i64>,
    pub(crate) now: Timestamp,
}

impl<'t> IdToken<'t> {
    /// Reads the parts of a token. `None`: it is malformed.
    pub(crate) fn read(token: &'t str) -> Option<IdToken<'t>> {
        if token.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let json = |part: &str| serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(part).ok()?).ok();
        let signature = BASE64_URL_SAFE_NO_PAD.decode(signature).ok()?;
        Some(IdToken { header: json(header)?, claims: json(claims)?, signed, signature })
    }

    /// Whether one of the keys has signed it. A header with critical parameters is not understood.
    pub(crate) fn is_signed_by(&self, keys: &[Key]) -> bool {
        let id = self.header.get("kid").and_then(Value::as_str);
        let Some(algorithm) = self.header.get("alg").and_then(Value::as_str) else { return false };
        let signs = |key: &&Key| key.verifies(algorithm, self.signed.as_bytes(), &self.signature);
        self.header.get("crit").is_none() && keys.iter().filter(|key| key.may_be(id)).any(|key| signs(&key))
    }

    /// The claims.
    ///
    /// # Errors
    /// The claim that is not the expected one.
    pub(crate) fn claims(self, expected: &Expected<'_>) -> Result<Value, &'static str> {
        let claims = &self.claims;
        let text = |name: &str| claims.get(name).and_then(Value::as_str);
        let time = |name: &str| claims.get(name).and_then(Value::as_f64).map(|seconds| seconds as i64);
        let now = expected.now.as_millis() / 1_000;
        if text("iss") != Some(expected.issuer) {
            return Err("iss");
        }
        let (is_for, is_for_others) = match claims.get("aud") {
            Some(Value::String(audience)) => (audience == expected.client, false),
            Some(Value::Array(list)) => {
                let is_client = |audience: &Value| audience == expected.client;
                (list.iter().any(is_client), !list.iter().all(is_client))
            }
            _ => (false, false),
        };
        if !is_for {
            return Err("aud");
        }
        let party = text("azp");
        if party.is_some_and(|party| party != expected.client) || (is_for_others && party.is_none()) {
            return Err("azp");
        }
        if time("exp").is_none_or(|expiry| expiry + CLOCK_SKEW_SECONDS <= now) {
            return Err("exp");
        }
        if time("nbf").is_some_and(|start| start - CLOCK_SKEW_SECONDS > now) {
            return Err("nbf");
        }
        let is_fresh = |made: i64| made - CLOCK_SKEW_SECONDS <= now && now <= made + AGE_SECONDS_MAX;
        if time("iat").is_none_or(|made| !is_fresh(made)) {
            return Err("iat");
        }
        if text("nonce") != Some(expected.nonce) {
            return Err("nonce");
        }
        if let Some(after) = expected.authenticated_after
            && time("auth_time").is_none_or(|at| at + CLOCK_SKEW_SECONDS < after)
        {
            return Err("auth_time");
        }
        Ok(self.claims)
    }
}
