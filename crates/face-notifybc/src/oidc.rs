//! Keys of the OpenID provider: its discovery document, its JSON Web Key Set (RFC 7517), and their refresh.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use base64::{
    Engine,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD},
};
use parking_lot::Mutex;
use reqwest::Client;
use serde_json::Value;
use tocsin_model::time::Timestamp;
use tocsin_notifybc::configuration::Oidc;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use x509_cert::{
    Certificate,
    der::{Decode, Encode, asn1::UintRef},
};

use crate::jwt::SignedToken;

/// Time between attempts while the provider is unavailable, and least time between fetches for an unknown key.
const RETRY: Duration = Duration::from_secs(60);
/// Time after which the keys are fetched again.
const REFRESH: Duration = Duration::from_secs(3_600);
/// Longest duration of a request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Most bytes of a document.
const DOCUMENT_BYTES_MAX: usize = 1 << 20;

/// The keys of a provider.
pub struct KeySet {
    options: Oidc,
    keys: Mutex<Arc<Vec<Key>>>,
    authorization_url: Mutex<Option<String>>,
    unknown: Notify,
    attempted: watch::Sender<bool>,
}

/// An RSA public key.
struct Key {
    id: Option<String>,
    der: Vec<u8>,
}

impl KeySet {
    /// The keys of a provider, which are fetched by [`KeySet::follow`].
    pub fn new(options: Oidc) -> Arc<KeySet> {
        Arc::new(KeySet {
            options,
            keys: Mutex::default(),
            authorization_url: Mutex::default(),
            unknown: Notify::new(),
            attempted: watch::Sender::new(false),
        })
    }

    /// Fetches the keys, again every minute while the provider is unavailable, then hourly and when a token names an
    /// unknown key. Ends with `stopping`.
    pub async fn follow(&self, stopping: CancellationToken) {
        // The first provider of the process stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder().timeout(TIMEOUT).no_proxy().build();
        let client = match client {
            Ok(client) => client,
            Err(error) => {
                tracing::error!(%error, "cannot make the client of the OpenID provider");
                self.attempted.send_replace(true);
                return;
            }
        };
        loop {
            let began = Instant::now();
            let wait = match self.fetch(&client).await {
                Ok(count) => {
                    tracing::debug!(count, "keys of the OpenID provider fetched");
                    REFRESH
                }
                Err(reason) => {
                    tracing::warn!(
                        reason,
                        url = self.options.discovery_url,
                        "cannot fetch the keys of the OpenID provider"
                    );
                    RETRY
                }
            };
            self.attempted.send_replace(true);
            let unknown = async {
                self.unknown.notified().await;
                tokio::time::sleep(RETRY.saturating_sub(began.elapsed())).await;
            };
            tokio::select! {
                () = stopping.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
                () = unknown => {}
            }
        }
    }

    /// Waits until the first fetch has ended.
    pub async fn attempted(&self) {
        // The sender lives as long as this value.
        let _ = self.attempted.subscribe().wait_for(|attempted| *attempted).await;
    }

    /// The authorization endpoint of the provider, if it is known.
    pub fn authorization_url(&self) -> Option<String> {
        self.authorization_url.lock().clone()
    }

    async fn fetch(&self, client: &Client) -> Result<usize, String> {
        let discovered = get(client, &self.options.discovery_url).await?;
        let keys =
            discovered.get("jwks_uri").and_then(Value::as_str).ok_or("the discovery document has no jwks_uri")?;
        let keys = keys_of(&get(client, keys).await?)?;
        let count = keys.len();
        *self.keys.lock() = Arc::new(keys);
        let authorization = discovered.get("authorization_endpoint").and_then(Value::as_str);
        *self.authorization_url.lock() = authorization.map(str::to_owned);
        Ok(count)
    }

    /// The claims of a token that a key of the provider has signed.
    pub fn claims(&self, token: &str, now: Timestamp) -> Option<Value> {
        let token = SignedToken::read(token)?;
        let keys = self.keys.lock().clone();
        let key = match &**keys {
            [] => return None,
            [only] => only,
            several => match several.iter().find(|key| key.id.as_deref() == token.key_id() && key.id.is_some()) {
                Some(key) => key,
                None => {
                    self.unknown.notify_one();
                    return None;
                }
            },
        };
        token.claims(&key.der, &self.options, now)
    }
}

/// Fetches a JSON document.
async fn get(client: &Client, url: &str) -> Result<Value, String> {
    let failed = |error: reqwest::Error| format!("{url}: {error}");
    let mut response = client.get(url).send().await.and_then(reqwest::Response::error_for_status).map_err(failed)?;
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(failed)? {
        if body.len() + chunk.len() > DOCUMENT_BYTES_MAX {
            return Err(format!("{url}: longer than {DOCUMENT_BYTES_MAX} bytes"));
        }
        body.extend_from_slice(&chunk);
    }
    serde_json::from_slice(&body).map_err(|error| format!("{url}: {error}"))
}

/// The RSA keys of a key set. Keys of other types are kept as unusable, since their number decides.
fn keys_of(document: &Value) -> Result<Vec<Key>, String> {
    let keys = document.get("keys").and_then(Value::as_array).ok_or("the key set has no keys")?;
    let of = |key: &Value| Key {
        id: key.get("kid").and_then(Value::as_str).map(str::to_owned),
        der: components(key).or_else(|| certified(key)).unwrap_or_default(),
    };
    Ok(keys.iter().map(of).collect())
}

/// The key of modulus and exponent (RFC 7518, 6.3.1), in DER.
fn components(key: &Value) -> Option<Vec<u8>> {
    let number = |name: &str| {
        let text = key.get(name)?.as_str()?;
        BASE64_URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok()
    };
    let (modulus, exponent) = (number("n")?, number("e")?);
    let integers = [UintRef::new(&modulus).ok()?, UintRef::new(&exponent).ok()?];
    integers.to_vec().to_der().ok()
}

/// The key of the first certificate in `x5c`, a list or one text.
fn certified(key: &Value) -> Option<Vec<u8>> {
    let text = match key.get("x5c")? {
        Value::Array(chain) => chain.first()?.as_str()?,
        one => one.as_str()?,
    };
    let text: String = text.split_whitespace().collect();
    let certificate = Certificate::from_der(&BASE64_STANDARD.decode(text).ok()?).ok()?;
    let key = &certificate.tbs_certificate.subject_public_key_info.subject_public_key;
    key.as_bytes().map(<[u8]>::to_vec)
}

#[cfg(test)]
mod tests {
    use rsa::{RsaPublicKey, pkcs1::EncodeRsaPublicKey, traits::PublicKeyParts};
    use serde_json::json;

    use super::*;

    #[test]
    fn s3_modulus_and_exponent_are_the_key_in_der() {
        let (n, e) = (rsa::BigUint::from_bytes_be(&[0xd5; 256]), rsa::BigUint::from(65_537_u32));
        let key = RsaPublicKey::new(n | rsa::BigUint::from(1_u32), e).expect("a key");
        let text = |number: &rsa::BigUint| BASE64_URL_SAFE_NO_PAD.encode(number.to_bytes_be());
        let set =
            json!({ "keys": [{ "kid": "a", "kty": "RSA", "n": text(key.n()), "e": text(key.e()) }, { "kid": "b" }] });
        let keys = keys_of(&set).expect("keys");
        assert_eq!(keys[0].der, key.to_pkcs1_der().expect("DER").as_bytes());
        assert_eq!((keys[0].id.as_deref(), keys[1].der.len()), (Some("a"), 0));
        assert!(keys_of(&json!({})).is_err());
    }
}
