//! Devices with replicas. A device authenticates by a token `tocsin_device_<id>_<secret>`, of which only the hash is
//! stored. All devices are in memory, so a request costs one hash and one lookup.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::RwLock;
use ring::{
    digest,
    rand::{SecureRandom, SystemRandom},
};
use tocsin_model::{
    id::{Name, SubscriberId},
    problem::{Code, Problem},
};
use tocsin_store::{
    collections::{DeviceNumber, ReplicaDevice},
    error::StoreError,
    sqlite::collections::SqliteCollections,
};

use crate::error::SyncError;

/// Maximum length of a device name, in characters.
pub const NAME_CHARS_MAX: usize = 100;

/// An authenticated device. Only `Replicas::device` creates one.
#[derive(Debug, Clone)]
pub struct Device(pub(crate) Arc<ReplicaDevice>);

impl Device {
    /// The public id.
    pub fn id(&self) -> &str {
        &self.0.id
    }
}

/// Request for a new device.
#[derive(Debug, Clone, PartialEq)]
pub struct NewDevice {
    /// Application whose collections it reads.
    pub application: Name,
    /// Owner.
    pub subscriber: SubscriberId,
    /// Name given by its owner.
    pub name: String,
    /// Collections that it may use; `None`: all.
    pub collections: Option<Vec<Name>>,
    /// Whether it may send edits.
    pub may_write: bool,
    /// Lifetime of its token; `None`: unlimited.
    pub lasts: Option<Duration>,
}

/// All devices, by token hash.
pub(crate) struct Devices(pub(crate) RwLock<HashMap<[u8; 32], Arc<ReplicaDevice>>>);

impl Devices {
    pub(crate) async fn load(store: &SqliteCollections) -> Result<Devices, SyncError> {
        let devices = store.devices().await?;
        Ok(Devices(RwLock::new(devices.into_iter().map(|device| (device.hash, Arc::new(device))).collect())))
    }

    pub(crate) fn all(&self) -> Vec<Arc<ReplicaDevice>> {
        let mut all: Vec<_> = self.0.read().values().cloned().collect();
        all.sort_by_key(|device| device.number);
        all
    }

    pub(crate) fn of_number(&self, number: DeviceNumber) -> Option<Arc<ReplicaDevice>> {
        self.0.read().values().find(|device| device.number == number).cloned()
    }
}

/// The problem with the name of a device, if any.
pub(crate) fn name_problem(name: &str) -> Option<Problem> {
    let message = || format!("must be 1 to {NAME_CHARS_MAX} characters without control characters");
    match name.chars().count() {
        0 => Some(Problem::new(Code::Empty, "name", message())),
        given if given > NAME_CHARS_MAX => Some(
            Problem::new(Code::TooLong, "name", message())
                .param("given", given)
                .param("limit", NAME_CHARS_MAX)
                .param("unit", "characters"),
        ),
        _ if name.chars().any(char::is_control) => Some(Problem::new(Code::InvalidCharacters, "name", message())),
        _ => None,
    }
}

pub(crate) fn hash(token: &str) -> [u8; 32] {
    digest::digest(&digest::SHA256, token.as_bytes()).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// Random bytes in hexadecimal.
pub(crate) fn random<const N: usize>() -> Result<String, SyncError> {
    let mut bytes = [0; N];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| StoreError::unavailable("the system's random number generator failed"))?;
    Ok(hex::encode(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_problem_with_a_name_has_the_code_of_its_case() {
        let code_of = |name: &str| name_problem(name).map(|problem| problem.code);
        assert_eq!((code_of("phone"), code_of(&"é".repeat(NAME_CHARS_MAX))), (None, None));
        assert_eq!(code_of(""), Some(Code::Empty));
        assert_eq!(code_of(&"x".repeat(NAME_CHARS_MAX + 1)), Some(Code::TooLong));
        assert_eq!(code_of("a\nb"), Some(Code::InvalidCharacters));
    }
}
