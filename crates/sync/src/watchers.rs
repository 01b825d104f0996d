//! Devices that wait for changes, in memory.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tocsin_store::collections::DeviceNumber;
use tokio::sync::Notify;

use crate::{
    devices::Device,
    error::{SyncError, SyncLimit},
};

/// Waiting devices, at most one request each.
pub(crate) struct Watchers {
    waiting: Mutex<HashMap<DeviceNumber, Arc<Watcher>>>,
    most: usize,
}

pub(crate) struct Watcher {
    pub(crate) device: Device,
    pub(crate) rung: Notify,
}

/// Slot of a waiting device, released on drop.
pub(crate) struct WatcherSlot<'a> {
    pub(crate) watchers: &'a Watchers,
    pub(crate) watcher: Arc<Watcher>,
}

impl Watchers {
    pub(crate) fn new(most: usize) -> Watchers {
        Watchers { waiting: Mutex::default(), most }
    }

    pub(crate) fn acquire(&self, device: &Device) -> Result<WatcherSlot<'_>, SyncError> {
        let watcher = Arc::new(Watcher { device: device.clone(), rung: Notify::new() });
        let mut waiting = self.waiting.lock();
        if waiting.len() >= self.most && !waiting.contains_key(&device.0.number) {
            metrics::counter!("tocsin_sync_refused_total", "pool" => "watch").increment(1);
            let (reason, position) = (format!("{} devices wait already", self.most), waiting.len());
            let retry_after = Duration::from_secs(30).mul_f64(1.0 + fastrand::f64());
            return Err(SyncError::Busy { limit: SyncLimit::Watchers, reason, retry_after, position });
        }
        // A new wait of a device ends its previous one.
        if let Some(before) = waiting.insert(device.0.number, watcher.clone()) {
            before.rung.notify_one();
        }
        metrics::gauge!("tocsin_sync_waiting_devices").set(waiting.len() as f64);
        Ok(WatcherSlot { watchers: self, watcher })
    }

    /// Number of waiting devices.
    pub(crate) fn len(&self) -> usize {
        self.waiting.lock().len()
    }

    /// Wakes the affected devices.
    pub(crate) fn ring(&self, concerns: impl Fn(&Device) -> bool) {
        let waiting = self.waiting.lock();
        waiting.values().filter(|watcher| concerns(&watcher.device)).for_each(|watcher| watcher.rung.notify_one());
    }
}

impl Drop for WatcherSlot<'_> {
    fn drop(&mut self) {
        let mut waiting = self.watchers.waiting.lock();
        let number = self.watcher.device.0.number;
        if waiting.get(&number).is_some_and(|watcher| Arc::ptr_eq(watcher, &self.watcher)) {
            waiting.remove(&number);
        }
        metrics::gauge!("tocsin_sync_waiting_devices").set(waiting.len() as f64);
    }
}
