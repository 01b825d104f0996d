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
    problem::{Code, CredentialError, Problem},
    time::Timestamp,
};
use tocsin_store::{
    collections::{DeviceNumber, ReplicaDevice},
    error::StoreError,
    sqlite::collections::SqliteCollections,
};

use crate::{Replicas, SyncError, no_collection};

/// Maximum length of a device name, in characters.
pub const NAME_CHARS_MAX: usize = 100;

/// An authenticated device. Only [`Replicas::device`] creates one.
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
pub(crate) struct Devices(RwLock<HashMap<[u8; 32], Arc<ReplicaDevice>>>);

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

impl Replicas {
    /// Authenticates a device.
    ///
    /// # Errors
    /// `Unauthenticated`: the token is unknown, revoked or expired.
    pub fn device(&self, token: &str) -> Result<Device, SyncError> {
        let found = self.devices.0.read().get(&hash(token)).cloned();
        let device =
            found.ok_or(SyncError::Unauthenticated(CredentialError::Unknown, "the device token is not known"))?;
        if device.expires_at.is_some_and(|end| end <= self.now()) {
            return Err(SyncError::Unauthenticated(CredentialError::Expired, "the device token has expired"));
        }
        Ok(Device(device))
    }

    /// Checks that the token of an authenticated device is still valid.
    ///
    /// # Errors
    /// `Unauthenticated`: it was revoked or has expired.
    pub fn check_device(&self, device: &Device) -> Result<(), SyncError> {
        if !self.devices.0.read().contains_key(&device.0.hash) {
            return Err(SyncError::Unauthenticated(
                CredentialError::Revoked,
                "the device token was revoked while it was in use",
            ));
        }
        match device.0.expires_at {
            Some(end) if end <= self.now() => Err(SyncError::Unauthenticated(
                CredentialError::Expired,
                "the device token expired while it was in use",
            )),
            _ => Ok(()),
        }
    }

    /// Creates a device. Returns it with its token, which is not stored.
    ///
    /// # Errors
    /// There is no such subscriber, application or collection; there are too many devices.
    pub async fn create_device(&self, new: NewDevice) -> Result<(Arc<ReplicaDevice>, String), SyncError> {
        if let Some(problem) = name_problem(&new.name) {
            return Err(problem.into());
        }
        let collections = self.collections_of(&new.application).await?;
        for name in new.collections.iter().flatten() {
            collections.get(name.as_str()).ok_or_else(|| no_collection(&new.application, name.as_str()))?;
        }
        let subscriber = self.subscriber_store.subscriber(&new.subscriber).await?;
        let subscriber =
            subscriber.ok_or_else(|| SyncError::Missing(format!("the subscriber `{}`", new.subscriber)))?;
        let (id, secret) = (random::<6>()?, random::<32>()?);
        let token = format!("tocsin_device_{id}_{secret}");
        let now = self.now();
        let mut device = ReplicaDevice {
            number: 0,
            id: format!("d-{id}").into(),
            application: new.application,
            subscriber: new.subscriber,
            subscriber_number: subscriber.number,
            name: new.name,
            collections: new.collections,
            may_write: new.may_write,
            hash: hash(&token),
            created_at: now,
            expires_at: new.lasts.map(|lasts| now + lasts),
            wipe_at: None,
            wiped_at: None,
        };
        device.number = self.store.put_device(device.clone()).await?;
        let device = Arc::new(device);
        self.devices.0.write().insert(device.hash, device.clone());
        tracing::info!(device = %device.id, subscriber = %device.subscriber, "device created");
        Ok((device, token))
    }

    /// All devices, oldest first.
    pub fn all_devices(&self) -> Vec<Arc<ReplicaDevice>> {
        self.devices.all()
    }

    /// Revokes the token of a device and removes it, from the next request on. Its rows stay.
    ///
    /// # Errors
    /// `Missing` if there is no such device.
    pub async fn remove_device(&self, id: &str) -> Result<(), SyncError> {
        let device = self.find_device(id)?;
        self.devices.0.write().remove(&device.hash);
        self.store.remove_device(device.number).await?;
        self.sessions.drop_of(device.number);
        self.watchers.ring(|Device(watching)| watching.number == device.number);
        tracing::info!(device = id, "device removed");
        Ok(())
    }

    /// Requests that a device drops all its data at its next session. From now on it receives no rows.
    ///
    /// # Errors
    /// `Missing` if there is no such device.
    pub async fn wipe_device(&self, id: &str) -> Result<Arc<ReplicaDevice>, SyncError> {
        let device = self.find_device(id)?;
        let wiped = self.set_wipe(&device, Some(self.now()), None).await?;
        self.sessions.drop_of(device.number);
        self.watchers.ring(|Device(watching)| watching.number == device.number);
        tracing::info!(device = id, "device wipe requested");
        Ok(wiped)
    }

    pub(crate) async fn set_wipe(
        &self,
        device: &ReplicaDevice,
        asked: Option<Timestamp>,
        done: Option<Timestamp>,
    ) -> Result<Arc<ReplicaDevice>, SyncError> {
        self.store.set_wipe(device.number, asked, done).await?;
        let changed = Arc::new(ReplicaDevice { wipe_at: asked, wiped_at: done, ..device.clone() });
        self.devices.0.write().insert(device.hash, changed.clone());
        Ok(changed)
    }

    pub(crate) fn find_device(&self, id: &str) -> Result<Arc<ReplicaDevice>, SyncError> {
        let found = self.devices.0.read().values().find(|device| &*device.id == id).cloned();
        found.ok_or_else(|| SyncError::Missing(format!("the device `{id}`")))
    }
}

/// The problem with the name of a device, if any.
fn name_problem(name: &str) -> Option<Problem> {
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

fn hash(token: &str) -> [u8; 32] {
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
