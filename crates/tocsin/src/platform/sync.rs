//! The rows that devices keep replicas of: their store, their room, and its upkeep.

use std::{sync::Arc, time::Duration};

use tocsin_store::{
    inbox::Inbox,
    records::Records,
    sqlite::collections::{CollectionsOptions, SqliteCollections},
};
use tocsin_sync::{Limits, Parts, Replicas, Sizing};
use tokio_util::sync::CancellationToken;

use super::{now, store_failure};
use crate::{
    configuration::{Configuration, PoolSizing},
    failure::{Failure, Outcome},
};

/// Time between two rounds of upkeep.
const TIDY_EVERY: Duration = Duration::from_secs(60);

/// Opens `sync.db`, and the room over it.
///
/// # Errors
/// The store does not open, or the records do not answer.
pub async fn open(
    configuration: &Configuration,
    records: Arc<dyn Records>,
    inbox: Arc<dyn Inbox>,
) -> Outcome<Arc<Replicas>> {
    let (folder, options) = (configuration.data.folder.clone(), &configuration.sync);
    let places = |count: u32| count.max(1) as usize;
    let kept = CollectionsOptions { reserve_bytes: options.disk_reserve.0, readers: places(options.readers) };
    let limits = Limits {
        uploads: places(options.uploads),
        reconciles: places(options.reconciles),
        sizing: match options.reconciles_sizing {
            PoolSizing::Auto => Sizing::Auto,
            PoolSizing::Fixed => Sizing::Fixed,
        },
        downloads: places(options.downloads),
        waiting: options.waiting_max as usize,
    };
    let opening = tokio::task::spawn_blocking(move || SqliteCollections::open(&folder, &kept)).await;
    let opened = opening.map_err(|error| Failure::failed("opening the rows of devices broke").because(&error))?;
    let store = Arc::new(opened.map_err(|error| store_failure("rows of devices", &error))?);
    let (clock, environment) = (Arc::new(now), Arc::new(|name: &str| std::env::var(name).ok()));
    let opened = Replicas::open(Parts { records, inbox, store, clock, environment, limits }).await;
    opened.map_err(|error| Failure::failed("the devices that keep replicas cannot be read").because(&error))
}

/// Forgets what is past its time, until the server ends.
pub fn tidy_now_and_then(replicas: &Arc<Replicas>, stopping: CancellationToken) {
    let replicas = Arc::downgrade(replicas);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = tokio::time::sleep(TIDY_EVERY) => {}
                () = stopping.cancelled() => return,
            }
            let Some(replicas) = replicas.upgrade() else { return };
            if let Err(error) = replicas.tidy().await {
                tracing::warn!(%error, "what is past its time could not be forgotten; will try again");
            }
        }
    });
}
