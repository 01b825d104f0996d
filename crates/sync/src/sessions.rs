//! Active sessions: what the device may see, and its transfer counts.
//!
//! They are in memory only: the number of the last edit is stored with the rows, and the read position is in the
//! device's cursor.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tocsin_model::{id::ChangeSequence, time::Timestamp};
use tocsin_store::collections::{DeviceNumber, KeyNumber, ReplicaDevice, SessionCounts};

use crate::{devices::Device, error::SyncError};

/// An active session.
#[derive(Debug, Clone)]
pub struct Session {
    /// Id.
    pub id: Arc<str>,
    /// Device.
    pub device: Arc<ReplicaDevice>,
    /// Start.
    pub began_at: Timestamp,
    /// Last request of the device.
    pub last_request_at: Timestamp,
    /// Transfer counts so far.
    pub tally: SessionCounts,
    /// Rows that the device may see.
    pub(crate) view: Arc<View>,
    /// Position at which the device's edits continue.
    pub(crate) lineage: Arc<Mutex<Lineage>>,
    /// Held by the request in progress.
    pub(crate) turn: Arc<tokio::sync::Mutex<()>>,
}

/// Position at which the edits of a replica copy continue.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lineage {
    /// Last batches of the copy that the server may know, newest first.
    pub(crate) batches: Vec<String>,
    /// The server was restored, so a client without batches may lack edits that only the lost state had.
    pub(crate) may_skip: bool,
}

/// Rows that a device may see.
#[derive(Debug)]
pub(crate) struct View {
    /// Change sequence of the records at which this was computed.
    pub(crate) as_of: ChangeSequence,
    pub(crate) generation: u32,
    /// Keys, ascending.
    pub(crate) held: Vec<KeyNumber>,
}

/// Active sessions, one per device.
#[derive(Default)]
pub(crate) struct Sessions(pub(crate) Mutex<HashMap<DeviceNumber, Session>>);

impl Sessions {
    pub(crate) fn drop_of(&self, device: DeviceNumber) {
        self.0.lock().remove(&device);
    }

    /// The session of a device. Sessions of other devices count as missing.
    pub(crate) fn find(&self, device: &Device, id: &str) -> Result<Session, SyncError> {
        let found = self.0.lock().get(&device.0.number).filter(|session| &*session.id == id).cloned();
        found.ok_or_else(|| SyncError::Missing(format!("the session `{id}`")))
    }

    pub(crate) fn record(&self, session: &Session, now: Timestamp, update: impl FnOnce(&mut SessionCounts)) {
        if let Some(kept) = self.0.lock().get_mut(&session.device.number).filter(|kept| kept.id == session.id) {
            kept.last_request_at = now;
            update(&mut kept.tally);
        }
    }
}
