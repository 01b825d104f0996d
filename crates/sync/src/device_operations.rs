//! Authenticates, creates, removes and wipes devices.

use std::sync::Arc;

use tocsin_model::{id::SubscriberNumber, problem::CredentialError, time::Timestamp};
use tocsin_store::{
    collections::ReplicaDevice,
    journal::{ERASED, PersonNames},
};

use crate::{
    devices::{Device, NewDevice, hash, name_problem, random},
    error::{SyncError, no_collection},
    replicas::Replicas,
};

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

    /// Erases a person from all rows: after its removal from the records. Its devices get the order to drop their data at
    /// their next session.
    ///
    /// # Errors
    /// The store fails; a backup is running.
    pub async fn erase_person(&self, person: SubscriberNumber, names: &PersonNames) -> Result<(), SyncError> {
        let devices: Vec<_> =
            self.devices.all().into_iter().filter(|device| device.subscriber_number == person).collect();
        self.store.erase(person, names, self.now()).await?;
        for device in devices {
            let erased = ReplicaDevice {
                subscriber: ERASED.parse().expect("an id"),
                name: ERASED.to_owned(),
                collections: None,
                may_write: false,
                wipe_at: device.wipe_at.or(Some(self.now())),
                ..(*device).clone()
            };
            self.devices.0.write().insert(device.hash, Arc::new(erased));
            self.sessions.drop_of(device.number);
            self.watchers.ring(|Device(watching)| watching.number == device.number);
        }
        Ok(())
    }

    /// The rows that a person can see by its id, or that name it: application, collection and body.
    ///
    /// # Errors
    /// The store fails.
    pub async fn rows_naming(&self, names: &PersonNames) -> Result<Vec<(String, String, String)>, SyncError> {
        Ok(self.store.rows_naming(names).await?)
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
