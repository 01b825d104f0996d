//! Last uses of API keys: marked in memory at each request, stored once a minute.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::RwLock;
use tocsin_model::time::Timestamp;
use tocsin_store::{
    error::StoreError,
    records::{ApiKeyStore, ApiKeyUse},
};

/// Precision of the stored time, and interval at which uses are stored.
const PRECISION: Duration = Duration::from_secs(60);

/// Last uses, by key.
pub(crate) struct KeyUses {
    store: Arc<dyn ApiKeyStore>,
    known: RwLock<UseCache>,
}

#[derive(Default)]
struct UseCache {
    uses: HashMap<Arc<str>, ApiKeyUse>,
    /// Keys whose last use is not stored yet.
    unstored: BTreeSet<Arc<str>>,
}

impl KeyUses {
    pub(crate) async fn load(store: Arc<dyn ApiKeyStore>) -> Result<Arc<KeyUses>, StoreError> {
        let stored = store.api_key_uses().await?;
        let uses = stored.into_iter().map(|one| (one.id.as_str().into(), one)).collect();
        Ok(Arc::new(KeyUses { store, known: RwLock::new(UseCache { uses, unstored: BTreeSet::new() }) }))
    }

    /// Marks a use. A repetition from the same address within a minute costs one lookup.
    pub(super) fn mark(&self, key: &Arc<str>, at: Timestamp, from: Option<String>) {
        let is_marked = |one: &ApiKeyUse| one.from == from && at.since(one.at) < PRECISION;
        if self.known.read().uses.get(key).is_some_and(is_marked) {
            return;
        }
        let mut known = self.known.write();
        known.uses.insert(key.clone(), ApiKeyUse { id: key.to_string(), at, from });
        known.unstored.insert(key.clone());
    }

    /// The last use of a key.
    pub(super) fn of(&self, id: &str) -> Option<ApiKeyUse> {
        self.known.read().uses.get(id).cloned()
    }

    /// Stores the uses since the last call.
    pub(super) async fn store(&self) -> Result<(), StoreError> {
        let (keys, uses) = {
            let mut known = self.known.write();
            let keys = std::mem::take(&mut known.unstored);
            let uses: Vec<ApiKeyUse> = keys.iter().filter_map(|key| known.uses.get(key).cloned()).collect();
            (keys, uses)
        };
        if uses.is_empty() {
            return Ok(());
        }
        let stored = self.store.put_api_key_uses(uses).await;
        if stored.is_err() {
            self.known.write().unstored.extend(keys);
        }
        stored
    }
}

/// Stores uses once a minute. Ends when they are dropped.
pub(crate) fn keep_storing(uses: &Arc<KeyUses>) {
    let uses: Weak<KeyUses> = Arc::downgrade(uses);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(PRECISION).await;
            let Some(uses) = uses.upgrade() else { return };
            if let Err(error) = uses.store().await {
                tracing::warn!(%error, "could not store the last uses of API keys; will try again");
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use tocsin_store::{memory::records::MemoryRecords, records::ApiKey};

    use super::*;

    #[tokio::test]
    async fn uses_are_stored_together_and_read_at_the_start() {
        let records = Arc::new(MemoryRecords::new().expect("records"));
        let key = ApiKey {
            id: "a".to_owned(),
            hash: [7; 32],
            description: String::new(),
            scopes: Vec::new(),
            resources: Vec::new(),
            created_at: Timestamp(0),
            expires_at: None,
        };
        records.put_api_key(key).await.expect("stored");
        let uses = KeyUses::load(records.clone()).await.expect("loaded");
        let (id, second): (Arc<str>, _) = ("a".into(), |seconds: i64| Timestamp::from_millis(seconds * 1_000));
        let home = || Some("192.0.2.1".to_owned());
        uses.mark(&id, second(100), home());
        uses.mark(&id, second(130), home());
        assert_eq!(uses.of("a").expect("used").at, second(100), "within the precision");
        uses.mark(&id, second(131), None);
        assert_eq!(uses.of("a").expect("used").from, None, "another address");
        uses.store().await.expect("stored");
        uses.mark(&id, second(200), home());
        let again = KeyUses::load(records.clone()).await.expect("loaded");
        assert_eq!(again.of("a").expect("stored").at, second(131));
        uses.store().await.expect("stored");
        let again = KeyUses::load(records).await.expect("loaded");
        assert_eq!(again.of("a"), Some(ApiKeyUse { id: "a".to_owned(), at: second(200), from: home() }));
    }
}
