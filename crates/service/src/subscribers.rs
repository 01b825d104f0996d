//! Subscribers and their devices.

mod drafts; // drafts and their checks
mod lines; // lines of exports and imports

use tocsin_model::{
    id::{Name, SubscriberId},
    mailbox::MailChannels,
    merge_patch::{TooDeep, merge_patch},
    problem::{Code, Problem},
    subscriber::{DEVICES_MAX, DeviceState, Subscriber},
};
use tocsin_store::{
    error::StoreError,
    records::{NewSubscriber, Precondition, PutDevice, SubscriberFilter},
};

pub use self::{
    drafts::{Draft, check, check_address},
    lines::{DeviceDraft, Document},
};
pub(crate) use self::{
    drafts::{check_device, check_export},
    lines::SubscriberLine,
};
use crate::{
    Service,
    error::{ServiceError, json_error},
    keys::{Caller, Scope},
    page::{Page, key_of},
};

/// Precondition for storing a subscriber.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// Only if it does not exist.
    Create,
    /// Whether it exists or not, or only with a given revision.
    Replace(Option<u64>),
}

impl Service {
    /// Lists subscribers in the order of their ids.
    ///
    /// # Errors
    /// The scope `subscribers:read` is missing, or `after` is no cursor.
    pub async fn subscribers(
        &self,
        caller: &Caller,
        filter: &SubscriberFilter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<Document>, ServiceError> {
        caller.needs(Scope::SubscribersRead)?;
        let after: Option<SubscriberId> = key_of(after)?;
        let found = self.subscriber_store.scan_subscribers(filter, after.as_ref(), limit).await?;
        Ok(Page::of(found).map(Document::from))
    }

    /// Returns a subscriber.
    ///
    /// # Errors
    /// It does not exist.
    pub async fn subscriber(&self, caller: &Caller, id: &SubscriberId) -> Result<Document, ServiceError> {
        caller.needs(Scope::SubscribersRead)?;
        Ok(self.find_subscriber(id).await?.into())
    }

    /// Stores a subscriber; with `id`, a draft of another id is rejected. Returns whether it is new.
    ///
    /// # Errors
    /// `Invalid` with every problem; `Taken` or `Changed` as `put` asks.
    pub async fn put_subscriber(
        &self,
        caller: &Caller,
        id: Option<&SubscriberId>,
        draft: Draft,
        put: Put,
    ) -> Result<(Document, bool), ServiceError> {
        caller.needs(Scope::SubscribersWrite)?;
        let named = id.cloned().or_else(|| draft.id.as_deref()?.parse().ok());
        let present = match (put, &named) {
            (Put::Replace(_), Some(id)) => self.subscriber_store.subscriber(id).await?,
            _ => None,
        };
        let is_new = present.is_none() && matches!(put, Put::Create | Put::Replace(None));
        let devices = present.map(|present| present.devices).unwrap_or_default();
        let new = check(draft, id, &devices, &self.mail_channels()).map_err(ServiceError::Invalid)?;
        let expect = match put {
            Put::Create => Precondition::Absent,
            Put::Replace(Some(revision)) => Precondition::Revision(revision),
            Put::Replace(None) => Precondition::Any,
        };
        let stored = self.subscriber_store.put_subscriber(new, expect, self.clock.now()).await?;
        Ok((self.subscriber_stored(stored), is_new))
    }

    /// A subscriber that was just stored, with warnings about unreachable devices.
    fn subscriber_stored(&self, stored: Subscriber) -> Document {
        let mut document = Document::from(stored);
        let channels = self.pipeline.channel_protocols();
        let is_known = |device: &DeviceDraft| channels.iter().any(|(_, channel, _)| channel.as_str() == device.channel);
        let unknown = document.devices.iter().filter(|(_, device)| !is_known(device)).map(|(name, device)| {
            format!(
                "no application has the channel `{}`: what is for the device `{name}` is suspended until one has it",
                device.channel
            )
        });
        document.warnings = unknown.collect();
        document
    }

    /// Changes a subscriber by a merge patch (RFC 7396). Devices are merged one by one.
    ///
    /// # Errors
    /// There is none; the result is not a subscriber; it has another revision than expected.
    pub async fn patch_subscriber(
        &self,
        caller: &Caller,
        id: &SubscriberId,
        patch: &serde_json::Value,
        revision: Option<u64>,
    ) -> Result<Document, ServiceError> {
        caller.needs(Scope::SubscribersWrite)?;
        let mut turn = self.turns.take(id).await;
        loop {
            let present = self.find_subscriber(id).await?;
            let (seen, stored) = (present.revision, present.devices.clone());
            if revision.is_some_and(|requested| requested != seen) {
                return Err(ServiceError::Changed(format!("the subscriber `{id}`")));
            }
            let mut merged = serde_json::to_value(Document::from(present)).expect("a document is always JSON");
            merge(&mut merged, patch)?;
            let line: SubscriberLine = serde_json::from_value(merged).map_err(|error| json_error(&error))?;
            let mut draft = Draft::from(line);
            // A patch that removes them does so on purpose.
            draft.devices.get_or_insert_default();
            draft.preferences.get_or_insert_default();
            // The stored states were merged, so an absent one was removed by the patch: it has its default again.
            draft.enabled.get_or_insert(true);
            for device in draft.devices.iter_mut().flat_map(|devices| devices.values_mut()) {
                device.state.get_or_insert(DeviceState::Active);
            }
            let new = check(draft, Some(id), &stored, &self.mail_channels()).map_err(ServiceError::Invalid)?;
            match self.subscriber_store.put_subscriber(new, Precondition::Revision(seen), self.clock.now()).await {
                // Another writer was faster: the patch is applied to its result, unless the caller set a condition.
                Err(StoreError::Changed(_)) if revision.is_none() => {
                    turn.repeat(format_args!("the subscriber `{id}`"))?
                }
                stored => return Ok(self.subscriber_stored(stored?)),
            }
        }
    }

    /// Removes a subscriber with its devices and subscriptions.
    ///
    /// # Errors
    /// There is none, or it has another revision than expected.
    pub async fn remove_subscriber(
        &self,
        caller: &Caller,
        id: &SubscriberId,
        revision: Option<u64>,
    ) -> Result<(), ServiceError> {
        caller.needs(Scope::SubscribersWrite)?;
        let expect = revision.map_or(Precondition::Present, Precondition::Revision);
        let number = self.subscriber_store.subscriber(id).await?.map(|found| found.number);
        self.subscriber_store.remove_subscriber(id, expect, self.clock.now()).await?;
        // Its number is never reused, so items left by a crash are unreachable; they expire.
        if let Some(number) = number {
            self.inbox.remove_feed(number).await?;
        }
        Ok(())
    }

    /// Stores a device. Returns whether it is new.
    ///
    /// # Errors
    /// The subscriber does not exist; the device is not valid; there are too many.
    pub async fn put_device(
        &self,
        caller: &Caller,
        id: &SubscriberId,
        name: &Name,
        device: DeviceDraft,
        revision: Option<u64>,
    ) -> Result<(Document, bool), ServiceError> {
        caller.needs(Scope::SubscribersWrite)?;
        let mut problems = Vec::new();
        let present = self.find_subscriber(id).await?;
        let stored = present.devices.get(name);
        let keeps_state = device.state.is_none();
        let device = check_device(device, stored, &self.mail_channels(), "", &mut problems).ok_or_else(|| {
            let named = |problem: Problem| Problem { path: problem.path.trim_start_matches('.').to_owned(), ..problem };
            ServiceError::Invalid(problems.into_iter().map(named).collect())
        })?;
        let is_new = !present.devices.contains_key(name);
        if is_new && present.devices.len() >= DEVICES_MAX {
            return Err(ServiceError::from(
                Problem::new(Code::TooMany, "devices", format!("has {DEVICES_MAX} entries already; no more fit"))
                    .param("limit", DEVICES_MAX),
            ));
        }
        let stored = match revision {
            None => {
                let put = PutDevice { id, name, device, keeps_state, now: self.clock.now() };
                self.subscriber_store.put_device(put).await?
            }
            Some(revision) => {
                let mut devices = present.devices;
                devices.insert(name.clone(), device);
                let devices = Some(devices.into_iter().collect());
                let whole = NewSubscriber {
                    kept: Default::default(),
                    id: id.clone(),
                    profile: present.profile,
                    devices,
                    preferences: None,
                };
                self.subscriber_store.put_subscriber(whole, Precondition::Revision(revision), self.clock.now()).await?
            }
        };
        Ok((self.subscriber_stored(stored), is_new))
    }

    /// Removes one device.
    ///
    /// # Errors
    /// There is no such subscriber or device.
    pub async fn remove_device(
        &self,
        caller: &Caller,
        id: &SubscriberId,
        name: &Name,
        revision: Option<u64>,
    ) -> Result<Document, ServiceError> {
        caller.needs(Scope::SubscribersWrite)?;
        let Some(revision) = revision else {
            return Ok(self.subscriber_store.remove_device(id, name, self.clock.now()).await?.into());
        };
        let present = self.find_subscriber(id).await?;
        let mut devices = present.devices;
        if devices.remove(name).is_none() {
            return Err(ServiceError::Missing(format!("the device `{name}` of `{id}`")));
        }
        let devices = Some(devices.into_iter().collect());
        let whole = NewSubscriber {
            kept: Default::default(),
            id: id.clone(),
            profile: present.profile,
            devices,
            preferences: None,
        };
        Ok(self
            .subscriber_store
            .put_subscriber(whole, Precondition::Revision(revision), self.clock.now())
            .await?
            .into())
    }

    /// Channels that send mail, of the running applications.
    pub(crate) fn mail_channels(&self) -> MailChannels {
        self.pipeline.mail_channels()
    }

    /// Returns the revision of a subscriber, for a conditional change.
    ///
    /// # Errors
    /// The subscriber does not exist.
    pub async fn subscriber_revision(&self, caller: &Caller, id: &SubscriberId) -> Result<u64, ServiceError> {
        caller.needs(Scope::SubscribersWrite)?;
        Ok(self.find_subscriber(id).await?.revision)
    }

    /// Revision of a subscriber, and whether it has a device of this name.
    ///
    /// # Errors
    /// The subscriber does not exist.
    pub async fn device_standing(
        &self,
        caller: &Caller,
        id: &SubscriberId,
        device: &Name,
    ) -> Result<(u64, bool), ServiceError> {
        caller.needs(Scope::SubscribersWrite)?;
        let present = self.find_subscriber(id).await?;
        Ok((present.revision, present.devices.contains_key(device)))
    }

    pub(crate) async fn find_subscriber(&self, id: &SubscriberId) -> Result<Subscriber, ServiceError> {
        self.subscriber_store
            .subscriber(id)
            .await?
            .ok_or_else(|| ServiceError::Missing(format!("the subscriber `{id}`")))
    }
}

/// Maximum nesting of objects in a patch.
const PATCH_DEPTH_MAX: usize = 64;

/// Applies a merge patch (RFC 7396) to the stored resource.
pub(crate) fn merge(target: &mut serde_json::Value, patch: &serde_json::Value) -> Result<(), ServiceError> {
    if !patch.is_object() {
        return Err(ServiceError::from(
            Problem::new(Code::WrongType, "", "a merge patch should be an object").param("expected", "object"),
        ));
    }
    merge_patch(target, patch, PATCH_DEPTH_MAX)
        .map_err(|TooDeep| ServiceError::invalid(Code::TooDeep, "", "is nested too deeply"))
}
