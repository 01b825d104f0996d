//! Dynamic configuration of services, and the RSA key pair of the installation.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use rsa::{
    RsaPrivateKey,
    pkcs8::{EncodePrivateKey, EncodePublicKey, LineEnding},
    rand_core::OsRng,
};
use serde_json::{Value, json};
use tocsin_notifybc::{
    configuration::SubscriptionConfiguration,
    record::{self, Collection, Document},
    rss,
};

use super::{Notifybc, NotifybcError, RequestContext, documents::configuration_key};
use crate::consent::ConsentKey;

/// Size of the key pair.
const KEY_BITS: usize = 4_096;
/// Most services with a cached configuration.
const CACHED_MAX: usize = 10_000;
/// Most bytes of the name of a service whose configuration is cached. Any caller can name one as long as a body.
const CACHED_NAME_BYTES_MAX: usize = 256;
/// The version of the documents, as NotifyBC 6.4.1 has it.
const SCHEMA_VERSION: &str = "0.9.0";

/// The merged subscription configurations of services, and the RSA key. A change of any configuration empties it.
#[derive(Default)]
pub struct ConfigurationCache(Mutex<Cached>);

#[derive(Default)]
struct Cached {
    generation: u64,
    subscriptions: HashMap<String, Arc<SubscriptionConfiguration>>,
    key: Option<Arc<ConsentKey>>,
}

impl ConfigurationCache {
    /// Drops what a change of a collection makes stale.
    pub(crate) fn changed(&self, collection: Collection) {
        if collection == Collection::Configuration {
            let mut cached = self.0.lock();
            *cached = Cached { generation: cached.generation + 1, ..Cached::default() };
        }
    }
}

impl Notifybc {
    /// The value of a dynamic configuration.
    pub(crate) async fn configuration_value(
        &self,
        name: &str,
        service: Option<&str>,
    ) -> Result<Option<Value>, NotifybcError> {
        let key = configuration_key(name, service);
        let Some(stored) = self.store.document_by_unique(Collection::Configuration, &key).await? else {
            return Ok(None);
        };
        let mut document = super::documents::Record::of(stored)?.document;
        Ok(document.shift_remove("value"))
    }

    /// The subscription configuration of a service: its dynamic configuration merged over the static one.
    pub(crate) async fn subscription_configuration(
        &self,
        service: &str,
    ) -> Result<Arc<SubscriptionConfiguration>, NotifybcError> {
        let generation = {
            let cached = self.configuration_cache.0.lock();
            if let Some(found) = cached.subscriptions.get(service) {
                return Ok(found.clone());
            }
            cached.generation
        };
        let value = self.configuration_value("subscription", Some(service)).await?;
        let merged = Arc::new(self.configuration.subscription(value.as_ref()).into_owned());
        let mut cached = self.configuration_cache.0.lock();
        // A change during the read makes it stale.
        if cached.generation == generation && service.len() <= CACHED_NAME_BYTES_MAX {
            if cached.subscriptions.len() >= CACHED_MAX {
                cached.subscriptions.clear();
            }
            cached.subscriptions.insert(service.to_owned(), merged.clone());
        }
        Ok(merged)
    }

    /// The private key of the installation, for encrypted confirmation codes.
    ///
    /// # Errors
    /// It is not made yet, or was replaced by a text that is no key.
    pub(crate) async fn private_key(&self) -> Result<Arc<ConsentKey>, NotifybcError> {
        let generation = {
            let cached = self.configuration_cache.0.lock();
            if let Some(key) = &cached.key {
                return Ok(key.clone());
            }
            cached.generation
        };
        let value = self.configuration_value("rsa", None).await?.unwrap_or_default();
        let pem = value.get("private").and_then(Value::as_str).unwrap_or_default();
        let key = ConsentKey::from_pem(pem)
            .map_err(|error| NotifybcError::Internal(format!("the configuration `rsa` {error}")))?;
        let key = Arc::new(key);
        let mut cached = self.configuration_cache.0.lock();
        if cached.generation == generation {
            cached.key = Some(key.clone());
        }
        Ok(key)
    }

    /// Stores the configurations that every installation has, if they are missing: the version of the documents and the
    /// RSA key pair. Making the key takes seconds of processor time.
    ///
    /// # Errors
    /// The store is unavailable, or the key cannot be made.
    pub async fn store_own_configurations(&self) -> Result<(), NotifybcError> {
        if self.configuration_value("dbSchemaVersion", None).await?.is_none() {
            self.store_own("dbSchemaVersion", json!(SCHEMA_VERSION)).await?;
        }
        if self.configuration_value("rsa", None).await?.is_none() {
            let made = tokio::task::spawn_blocking(key_pair).await;
            let pair = made.map_err(|error| NotifybcError::Internal(format!("the key was not made: {error}")))??;
            self.store_own("rsa", pair).await?;
        }
        Ok(())
    }

    async fn store_own(&self, name: &str, value: Value) -> Result<(), NotifybcError> {
        let mut body = Document::new();
        body.insert("name".to_owned(), Value::from(name));
        body.insert("value".to_owned(), value);
        let id = self.new_id().to_string();
        let document = record::create(Collection::Configuration, &id, body, self.now(), None)?;
        self.insert(Collection::Configuration, &document).await
    }

    /// The body of a configuration; a feed without a public URL gets that of the request.
    pub(super) fn with_feed_host(&self, context: &RequestContext, collection: Collection, body: Document) -> Document {
        match collection {
            Collection::Configuration => {
                rss::with_http_host(body, self.configuration.http_host.as_deref(), &context.base_url)
            }
            _ => body,
        }
    }
}

/// A new key pair: `{private, public}` in PEM (PKCS #8, SPKI).
fn key_pair() -> Result<Value, NotifybcError> {
    let failed = |error: &dyn std::fmt::Display| NotifybcError::Internal(format!("the key was not made: {error}"));
    let key = RsaPrivateKey::new(&mut OsRng, KEY_BITS).map_err(|error| failed(&error))?;
    let private = key.to_pkcs8_pem(LineEnding::LF).map_err(|error| failed(&error))?;
    let public = key.to_public_key().to_public_key_pem(LineEnding::LF).map_err(|error| failed(&error))?;
    Ok(json!({ "private": private.as_str(), "public": public }))
}
