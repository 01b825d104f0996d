//! API keys.

use async_trait::async_trait;
use tocsin_model::{id::ChangeSequence, time::Timestamp};

use crate::{
    error::StoreError,
    records::api_keys::{ApiKey, ApiKeyUse},
};

/// API keys, as hashes.
///
/// A write is durable when the call returns and is logged in the same commit. Callers keep a copy in memory and follow
/// [`newest_key_change`](ApiKeyStore::newest_key_change), which costs no I/O.
#[async_trait]
pub trait ApiKeyStore: Send + Sync + 'static {
    /// Stores an API key.
    async fn put_api_key(&self, key: ApiKey) -> Result<(), StoreError>;

    /// All API keys, oldest first.
    async fn api_keys(&self) -> Result<Vec<ApiKey>, StoreError>;

    /// Ids and descriptions of the last 10,000 removed API keys, by id. They are kept, because stored objects name keys
    /// as authors.
    async fn removed_api_keys(&self) -> Result<Vec<(String, String)>, StoreError>;

    /// Removes an API key; `Missing` if there is none.
    async fn remove_api_key(&self, id: &str) -> Result<(), StoreError>;

    /// Stores last uses of API keys. Unknown keys are ignored. Not a change of the keys.
    async fn put_api_key_uses(&self, uses: Vec<ApiKeyUse>) -> Result<(), StoreError>;

    /// Last uses of API keys, by id.
    async fn api_key_uses(&self) -> Result<Vec<ApiKeyUse>, StoreError>;

    /// Sets the expiry of an API key; `Missing` if there is none.
    async fn set_api_key_expiry(&self, id: &str, expires_at: Option<Timestamp>) -> Result<(), StoreError>;

    /// The same for changes of API keys only; zero until there is one.
    fn newest_key_change(&self) -> tokio::sync::watch::Receiver<ChangeSequence>;
}
