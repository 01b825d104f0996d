//! Bearer tokens: signature and times of a JWT (RFC 7519) with an RSA key.

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use ring::signature::{
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256,
    RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, RsaParameters, UnparsedPublicKey,
};
use serde_json::Value;
use tocsin_model::time::Timestamp;
use tocsin_notifybc::configuration::Oidc;

/// Most bytes of a token.
const TOKEN_BYTES_MAX: usize = 64 << 10;

/// A token whose signature is not checked yet.
pub struct SignedToken<'t> {
    header: Value,
    signed: &'t str,
    signature: Vec<u8>,
}

impl<'t> SignedToken<'t> {
    /// Reads the parts of a token. `None`: it is malformed.
    pub fn read(token: &'t str) -> Option<SignedToken<'t>> {
        if token.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let (signed, signature) = token.rsplit_once('.')?;
        let header = signed.split_once('.')?.0;
        Some(SignedToken {
            header: serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(header).ok()?).ok()?,
            signed,
            signature: BASE64_URL_SAFE_NO_PAD.decode(signature).ok()?,
        })
    }

    /// The id of the key.
    pub fn key_id(&self) -> Option<&str> {
        self.header.get("kid")?.as_str()
    }

    /// The claims, if the key has signed them, and times, audience and issuer are those of the configuration.
    /// `key` is an RSA public key in DER (PKCS #1).
    pub fn claims(&self, key: &[u8], options: &Oidc, now: Timestamp) -> Option<Value> {
        let name = self.header.get("alg")?.as_str()?;
        if !options.algorithms.is_empty() && !options.algorithms.iter().any(|allowed| allowed == name) {
            return None;
        }
        let key = UnparsedPublicKey::new(algorithm(name)?, key);
        key.verify(self.signed.as_bytes(), &self.signature).ok()?;
        let claims = self.signed.split_once('.')?.1;
        let claims: Value = serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(claims).ok()?).ok()?;
        are_valid(&claims, options, now).then_some(claims)
    }
}

/// The RSA algorithm of a name. Others, such as `none` and those with shared keys, are no signature of a provider.
fn algorithm(name: &str) -> Option<&'static RsaParameters> {
    Some(match name {
        "RS256" => &RSA_PKCS1_2048_8192_SHA256,
        "RS384" => &RSA_PKCS1_2048_8192_SHA384,
        "RS512" => &RSA_PKCS1_2048_8192_SHA512,
        "PS256" => &RSA_PSS_2048_8192_SHA256,
        "PS384" => &RSA_PSS_2048_8192_SHA384,
        "PS512" => &RSA_PSS_2048_8192_SHA512,
        _ => return None,
    })
}

/// Whether expiry, start, audience and issuer are those of the configuration. A time that is not a number is invalid.
fn are_valid(claims: &Value, options: &Oidc, now: Timestamp) -> bool {
    let now = now.as_millis() as f64 / 1_000.0;
    let tolerance = options.clock_tolerance_seconds as f64;
    let holds = |name: &str, is_met: &dyn Fn(f64) -> bool| match claims.get(name) {
        None => true,
        Some(value) => value.as_f64().is_some_and(is_met),
    };
    let is_alive = options.ignores_expiration || holds("exp", &|expiry| now < expiry + tolerance);
    let has_begun = holds("nbf", &|start| start <= now + tolerance);
    let is_for = |audience: &Value| options.audience.iter().any(|expected| audience == expected.as_str());
    let has_audience = options.audience.is_empty()
        || match claims.get("aud") {
            Some(Value::Array(audiences)) => audiences.iter().any(is_for),
            Some(audience) => is_for(audience),
            None => false,
        };
    let issuer = claims.get("iss").and_then(Value::as_str);
    let has_issuer =
        options.issuer.is_empty() || options.issuer.iter().any(|expected| Some(expected.as_str()) == issuer);
    claims.is_object() && is_alive && has_begun && has_audience && has_issuer
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn options() -> Oidc {
        Oidc {
            discovery_url: "https://id.example.org/".to_owned(),
            client_id: None,
            audience: Vec::new(),
            issuer: Vec::new(),
            clock_tolerance_seconds: 0,
            ignores_expiration: false,
            algorithms: Vec::new(),
            admin: Vec::new(),
            refused: Vec::new(),
        }
    }

    #[test]
    fn s3_expiry_start_audience_and_issuer_of_a_token_are_checked() {
        let now = Timestamp::from_millis(1_000_000);
        let check = |claims: Value, options: &Oidc| are_valid(&claims, options, now);
        let plain = options();
        assert!(check(json!({}), &plain));
        assert!(check(json!({ "exp": 1_001, "nbf": 1_000 }), &plain));
        assert!(!check(json!({ "exp": 1_000 }), &plain), "expired");
        assert!(!check(json!({ "exp": "2000" }), &plain), "not a number");
        assert!(!check(json!({ "nbf": 1_001 }), &plain), "not yet valid");
        assert!(!check(json!("text"), &plain));
        let strict = Oidc { audience: vec!["a".into(), "b".into()], issuer: vec!["i".into()], ..options() };
        assert!(check(json!({ "aud": ["x", "b"], "iss": "i" }), &strict));
        assert!(check(json!({ "aud": "a", "iss": "i" }), &strict));
        assert!(!check(json!({ "aud": "x", "iss": "i" }), &strict));
        assert!(!check(json!({ "aud": "a", "iss": "j" }), &strict));
        assert!(!check(json!({ "iss": "i" }), &strict));
    }

    #[test]
    fn s3_only_rsa_signatures_count() {
        for name in ["none", "HS256", "ES256", "rs256", ""] {
            assert!(algorithm(name).is_none(), "{name}");
        }
        let token = |header: Value| format!("{}.e30.", BASE64_URL_SAFE_NO_PAD.encode(header.to_string()));
        let none = token(json!({ "alg": "none" }));
        let read = SignedToken::read(&none).expect("three parts");
        assert!(read.claims(b"", &options(), Timestamp::from_millis(0)).is_none());
        for malformed in ["", "a.b", "a.b.c", "..", "e30"] {
            assert!(SignedToken::read(malformed).is_none_or(|token| token.key_id().is_none()), "{malformed}");
        }
    }
}
