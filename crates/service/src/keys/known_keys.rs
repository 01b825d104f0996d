//! Cache of all API keys, reloaded when the records change.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use arc_swap::ArcSwap;
use tocsin_model::time::Timestamp;
use tocsin_store::{error::StoreError, records::ApiKeyStore};
use tokio::sync::watch;

use super::caller::Caller;

/// The keys in memory, by hash. A lookup by hash reveals nothing about partly correct keys (no timing side channel).
pub(crate) struct Keys {
    api_key_store: Arc<dyn ApiKeyStore>,
    /// Counts the reloads.
    pub(super) read: watch::Sender<u64>,
    /// Serializes changes, so that two removals cannot together remove the last admin key.
    pub(super) changing: tokio::sync::Mutex<()>,
    /// Serializes reloads, so that an earlier one cannot replace the result of a later one.
    reloading: tokio::sync::Mutex<()>,
    pub(super) known: ArcSwap<HashMap<[u8; 32], Caller>>,
    /// Descriptions by id, also of removed keys.
    pub(super) names: ArcSwap<HashMap<String, String>>,
}

impl Keys {
    pub(crate) async fn load(api_key_store: Arc<dyn ApiKeyStore>) -> Result<Arc<Keys>, StoreError> {
        let keys = Arc::new(Keys {
            api_key_store,
            read: watch::Sender::new(0),
            changing: tokio::sync::Mutex::default(),
            reloading: tokio::sync::Mutex::default(),
            known: ArcSwap::default(),
            names: ArcSwap::default(),
        });
        keys.refresh().await?;
        Ok(keys)
    }

    /// Keys that expire after `from` and until `to`, by id, each with its description if it has one.
    pub(crate) fn expiring(&self, from: Timestamp, to: Timestamp) -> Vec<(String, Timestamp)> {
        let (known, names) = (self.known.load(), self.names.load());
        let mut expiring: Vec<(String, Timestamp)> = known
            .values()
            .filter_map(|caller| Some((caller.key(), caller.expires_at?)))
            .filter(|(_, at)| from < *at && *at <= to)
            .map(|(id, at)| (names.get(id).map_or_else(|| id.to_owned(), |name| format!("{id} ({name})")), at))
            .collect();
        expiring.sort();
        expiring
    }

    /// Notifies those who wait for changes of credentials: a session or its user changed.
    pub(crate) fn announce(&self) {
        self.read.send_modify(|count| *count += 1);
    }

    pub(super) async fn refresh(&self) -> Result<(), StoreError> {
        let _one_at_a_time = self.reloading.lock().await;
        let (keys, removed) = (self.api_key_store.api_keys().await?, self.api_key_store.removed_api_keys().await?);
        let known = keys.iter().map(|key| (key.hash, Caller::of(key))).collect();
        let names = removed.into_iter().chain(keys.into_iter().map(|key| (key.id, key.description)));
        let names = names.filter(|(_, description)| !description.trim().is_empty()).collect();
        self.known.store(Arc::new(known));
        self.names.store(Arc::new(names));
        self.read.send_modify(|count| *count += 1);
        Ok(())
    }
}

/// Reloads the keys whenever they change. Ends when the keys are dropped.
pub(crate) fn follow_changes(keys: &Arc<Keys>) {
    let mut changes = keys.api_key_store.newest_key_change();
    let keys: Weak<Keys> = Arc::downgrade(keys);
    tokio::spawn(async move {
        while changes.changed().await.is_ok() {
            let Some(keys) = keys.upgrade() else { return };
            if let Err(error) = keys.refresh().await {
                tracing::warn!(%error, "could not read changed API keys; will try again");
                changes.mark_changed();
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        }
    });
}
