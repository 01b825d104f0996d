//! Keys of the provider (RFC 7517), and signatures with them (RFC 7518).

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384,
    RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512,
    RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm,
};
use serde::Deserialize;
use serde_json::Value;

/// A key set, as the provider publishes it.
#[derive(Deserialize)]
pub(crate) struct KeySet {
    keys: Vec<Value>,
}

impl KeySet {
    /// The keys that can be read.
    pub(crate) fn known(self) -> Vec<Key> {
        self.keys.into_iter().filter_map(|key| serde_json::from_value(key).ok()).collect()
    }
}

/// A public key. Members of other key types are ignored.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Key {
    kid: Option<String>,
    kty: String,
    #[serde(rename = "use")]
    purpose: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl Key {
    /// Whether it may have signed a token with this key id. A token without an id is checked with each key.
    pub(crate) fn may_be(&self, id: Option<&str>) -> bool {
        self.purpose.as_deref() != Some("enc") && id.is_none_or(|id| self.kid.as_deref() == Some(id))
    }

    /// Verifies a signature. The type of the key must be the one of the algorithm; `none` and algorithms with
    /// shared keys are no signature of a provider.
    pub(crate) fn verifies(&self, algorithm: &str, signed: &[u8], signature: &[u8]) -> bool {
        let verified = match (self.kty.as_str(), self.crv.as_deref(), algorithm) {
            ("RSA", _, _) => rsa(algorithm).and_then(|parameters| self.verifies_rsa(parameters, signed, signature)),
            ("EC", Some("P-256"), "ES256") => self.verifies_point(&ECDSA_P256_SHA256_FIXED, signed, signature),
            ("EC", Some("P-384"), "ES384") => self.verifies_point(&ECDSA_P384_SHA384_FIXED, signed, signature),
            ("OKP", Some("Ed25519"), "EdDSA" | "Ed25519") => {
                bytes(&self.x).and_then(|key| UnparsedPublicKey::new(&ED25519, key).verify(signed, signature).ok())
            }
            _ => None,
        };
        verified.is_some()
    }

    fn verifies_rsa(&self, parameters: &'static RsaParameters, signed: &[u8], signature: &[u8]) -> Option<()> {
        let key = RsaPublicKeyComponents { n: bytes(&self.n)?, e: bytes(&self.e)? };
        key.verify(parameters, signed, signature).ok()
    }

    fn verifies_point(
        &self,
        algorithm: &'static dyn VerificationAlgorithm,
        signed: &[u8],
        signature: &[u8],
    ) -> Option<()> {
        // An uncompressed point (SEC 1, 2.3.3).
        let point = [vec![4], bytes(&self.x)?, bytes(&self.y)?].concat();
        UnparsedPublicKey::new(algorithm, point).verify(signed, signature).ok()
    }
}

fn rsa(algorithm: &str) -> Option<&'static RsaParameters> {
    Some(match algorithm {
        "RS256" => &RSA_PKCS1_2048_8192_SHA256,
        "RS384" => &RSA_PKCS1_2048_8192_SHA384,
        "RS512" => &RSA_PKCS1_2048_8192_SHA512,
        "PS256" => &RSA_PSS_2048_8192_SHA256,
        "PS384" => &RSA_PSS_2048_8192_SHA384,
        "PS512" => &RSA_PSS_2048_8192_SHA512,
        _ => return None,
    })
}

fn bytes(text: &Option<String>) -> Option<Vec<u8>> {
    BASE64_URL_SAFE_NO_PAD.decode(text.as_deref()?.trim_end_matches('=')).ok()
}
