//! Signatures of Standard Webhooks 1.0.

use base64::{Engine, prelude::BASE64_STANDARD};
use ring::{hmac, signature::Ed25519KeyPair};

/// Signs requests as in Standard Webhooks 1.0: for each secret `v1,<base64 of HMAC-SHA256>` or `v1a,<base64 of
/// ed25519>`.
pub struct Signer {
    keys: Vec<Key>,
}

enum Key {
    Symmetric(hmac::Key),
    Asymmetric(Box<Ed25519KeyPair>),
}

impl Signer {
    /// Parses one secret, or several separated by spaces. The error never shows the secret.
    pub fn new(secrets: &str) -> Result<Self, String> {
        let keys: Vec<_> = secrets.split_ascii_whitespace().map(Key::read).collect::<Result<_, String>>()?;
        if keys.is_empty() { Err("the secret is empty".into()) } else { Ok(Signer { keys }) }
    }

    /// Value of `webhook-signature`.
    pub fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> String {
        let mut signatures = String::with_capacity(96 * self.keys.len());
        let head = format!("{id}.{timestamp}.");
        for key in &self.keys {
            if !signatures.is_empty() {
                signatures.push(' ');
            }
            match key {
                Key::Symmetric(key) => {
                    let mut context = hmac::Context::with_key(key);
                    context.update(head.as_bytes());
                    context.update(body);
                    signatures.push_str("v1,");
                    BASE64_STANDARD.encode_string(context.sign(), &mut signatures);
                }
                Key::Asymmetric(key) => {
                    signatures.push_str("v1a,");
                    let signature = key.sign(&[head.as_bytes(), body].concat());
                    BASE64_STANDARD.encode_string(signature, &mut signatures);
                }
            }
        }
        signatures
    }
}

impl Key {
    fn read(secret: &str) -> Result<Key, String> {
        let decode = |encoded: &str, start: &str| {
            BASE64_STANDARD.decode(encoded).map_err(|_| format!("what follows `{start}` is not base64"))
        };
        if let Some(encoded) = secret.strip_prefix("whsec_") {
            let bytes = decode(encoded, "whsec_")?;
            return match bytes.len() {
                24..=64 => Ok(Key::Symmetric(hmac::Key::new(hmac::HMAC_SHA256, &bytes))),
                length => Err(format!("a secret has 24 to 64 bytes, this one has {length}")),
            };
        }
        let Some(encoded) = secret.strip_prefix("whsk_") else {
            return Err("a secret starts with `whsec_`, or with `whsk_` for a key pair".into());
        };
        let bytes = decode(encoded, "whsk_")?;
        let pair = match bytes.len() {
            32 => Ed25519KeyPair::from_seed_unchecked(&bytes),
            // The private key followed by its public key, as some libraries store it.
            64 => Ed25519KeyPair::from_seed_and_public_key(&bytes[..32], &bytes[32..]),
            length => {
                return Err(format!("a private key has 32 bytes, or 64 with its public key; this one has {length}"));
            }
        };
        pair.map(|pair| Key::Asymmetric(Box::new(pair)))
            .map_err(|_| "what follows `whsk_` is not a key of ed25519".into())
    }
}
