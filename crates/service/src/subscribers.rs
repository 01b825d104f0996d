//! Subscribers and their devices.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tocsin_model::{
    id::{Name, SubscriberId},
    mailbox::MailChannels,
    merge_patch::{TooDeep, merge_patch},
    preferences::Preferences,
    problem::{Code, Problem},
    subscriber::{self, DEVICES_MAX, Device, Profile, Subscriber, check_attributes, check_profile},
    time::Timestamp,
    value::Value,
};
use tocsin_store::{
    error::StoreError,
    records::{NewSubscriber, Precondition, PutDevice, SubscriberFilter},
};
use utoipa::ToSchema;

use crate::{
    Service,
    error::{ServiceError, json_error},
    keys::{Caller, Scope},
    page::{Page, key_of},
};

/// Input of a subscriber. Properties that the platform adds (`created_at`, `updated_at`, `revision`) may be present,
/// as in an export, and are ignored.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SubscriberDraft)]
pub struct Draft {
    /// Its id: 1 to 255 characters without control characters or `/`.
    #[serde(default)]
    pub id: Option<String>,
    /// Whether the subscriber receives notifications; default true.
    #[serde(default)]
    pub enabled: Option<bool>,
    /// BCP 47 language tag, such as `de-AT`.
    #[serde(default)]
    pub locale: Option<String>,
    /// IANA time zone, such as `Europe/Vienna`.
    #[serde(default)]
    pub time_zone: Option<String>,
    /// Any JSON values by name.
    #[serde(default)]
    #[schema(value_type = Option<std::collections::BTreeMap<String, serde_json::Value>>)]
    pub attributes: Option<BTreeMap<String, Value>>,
    /// Devices by name. If absent, stored devices are kept.
    #[serde(default)]
    #[schema(value_type = Option<std::collections::BTreeMap<String, DeviceDraft>>)]
    pub devices: Option<BTreeMap<String, DeviceDraft>>,
    /// Preferences: `quiet_hours`, such as `["22:00-07:00"]`, and `notifications`, by
    /// `<application>/<class>`, `<application>` or `*`, each with `enabled`, `channels` and `prefer`. When left out, what
    /// it said stays.
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    pub preferences: Option<Preferences>,
    #[serde(default, rename = "created_at")]
    #[schema(ignore)]
    _created_at: serde::de::IgnoredAny,
    #[serde(default, rename = "updated_at")]
    #[schema(ignore)]
    _updated_at: serde::de::IgnoredAny,
    /// Marks a line of an export.
    #[serde(default)]
    #[schema(ignore)]
    pub(crate) revision: Option<serde::de::IgnoredAny>,
    #[serde(default, rename = "warnings")]
    #[schema(ignore)]
    _warnings: serde::de::IgnoredAny,
}

/// Input of a device.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceDraft {
    /// Channel of an application through which the device is reached.
    pub channel: String,
    /// Address on the channel: a mailbox, a URL, ...
    pub address: String,
    /// `active`, `disabled`, `bounced` or `failed`; default `active`.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub state: tocsin_model::subscriber::DeviceState,
}

/// A stored subscriber. A [`Draft`] can parse it.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = Subscriber)]
pub struct Document {
    /// Its id.
    pub id: String,
    /// Whether the subscriber receives notifications.
    pub enabled: bool,
    /// BCP 47 language tag.
    pub locale: Option<String>,
    /// IANA time zone.
    pub time_zone: Option<String>,
    /// Attributes by name.
    #[schema(value_type = std::collections::BTreeMap<String, serde_json::Value>)]
    pub attributes: BTreeMap<String, Value>,
    /// Devices by name.
    pub devices: BTreeMap<String, DeviceDraft>,
    /// Preferences: quiet hours, and settings by notification class.
    #[schema(value_type = serde_json::Value)]
    pub preferences: Preferences,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When it or one of its devices last changed.
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
    /// Grows with each change.
    pub revision: u64,
    /// Warnings about devices that cannot be reached, in the answer to a request that stored them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl From<Subscriber> for Document {
    fn from(subscriber: Subscriber) -> Self {
        let device = |(name, device): (Name, Device)| {
            let Device { channel, address, state } = device;
            (name.to_string(), DeviceDraft { channel: channel.to_string(), address, state })
        };
        Document {
            id: subscriber.id.to_string(),
            enabled: subscriber.profile.enabled,
            locale: subscriber.profile.locale,
            time_zone: subscriber.profile.time_zone,
            attributes: subscriber.profile.attributes,
            devices: subscriber.devices.into_iter().map(device).collect(),
            preferences: subscriber.preferences,
            created_at: subscriber.created_at,
            updated_at: subscriber.updated_at,
            revision: subscriber.revision,
            warnings: Vec::new(),
        }
    }
}

/// Checks a draft and returns all problems. `stored`: the devices that the subscriber already has.
///
/// # Errors
/// Every problem found.
pub fn check(
    draft: Draft,
    id: Option<&SubscriberId>,
    stored: &BTreeMap<Name, Device>,
    mail: &MailChannels,
) -> Result<NewSubscriber, Vec<Problem>> {
    let mut problems = Vec::new();
    let id = match (&draft.id, id) {
        (Some(written), Some(id)) if written != id.as_str() => {
            problems.push(Problem::address_mismatch("id", written, id));
            None
        }
        (_, Some(id)) => Some(id.clone()),
        (Some(written), None) => match written.parse::<SubscriberId>() {
            Ok(id) => Some(id),
            Err(error) => {
                problems.push(Problem::not(Code::InvalidFormat, "id", error.expected).param("format", "id"));
                None
            }
        },
        (None, None) => {
            problems.push(Problem::new(Code::Required, "id", "is required: give a string"));
            None
        }
    };
    let profile = Profile {
        enabled: draft.enabled.unwrap_or(true),
        locale: draft.locale,
        time_zone: draft.time_zone,
        attributes: draft.attributes.unwrap_or_default(),
    };
    problems.extend(check_profile(&profile));
    problems.extend(check_attributes(&profile.attributes));
    problems.extend(draft.preferences.iter().flat_map(Preferences::check));
    let devices = draft.devices.map(|devices| {
        if devices.len() > DEVICES_MAX {
            problems.push(Problem::too_many("devices", devices.len(), DEVICES_MAX));
        }
        let checked = devices.into_iter().filter_map(|(name, device)| {
            let path = format!("devices.{name}");
            let parsed = name.parse::<Name>().map_err(|error| {
                problems.push(Problem::not(Code::InvalidFormat, &path, error.expected).param("format", "name"))
            });
            let parsed = parsed.ok();
            let stored = parsed.as_ref().and_then(|name| stored.get(name));
            let device = check_device(device, stored, mail, &path, &mut problems);
            Some((parsed?, device?))
        });
        checked.collect::<Vec<_>>()
    });
    match id {
        Some(id) if problems.is_empty() => Ok(NewSubscriber { id, profile, devices, preferences: draft.preferences }),
        _ => Err(problems),
    }
}

/// Checks a line of an export. An address that its channel rejects now is stored with a warning: it was valid in an
/// earlier version of the application.
///
/// # Errors
/// Every other problem found.
pub(crate) fn check_export(draft: Draft, mail: &MailChannels) -> Result<(NewSubscriber, Vec<Problem>), Vec<Problem>> {
    let problems = match check(draft.clone(), None, &BTreeMap::new(), mail) {
        Ok(new) => return Ok((new, Vec::new())),
        Err(problems) => problems,
    };
    let as_exported = |(name, device): (&String, &DeviceDraft)| {
        subscriber::check_address(&device.address).ok()?;
        let channel = device.channel.parse().ok()?;
        Some((name.parse().ok()?, Device { channel, address: device.address.clone(), state: device.state }))
    };
    let stored = draft.devices.iter().flatten().filter_map(as_exported).collect();
    Ok((check(draft, None, &stored, mail)?, problems))
}

/// Problem of a device address, if any.
///
/// # Errors
/// It is no valid address, or no push subscription where one is required.
pub fn check_address(mail: &MailChannels, channel: &Name, address: &str) -> Result<String, Problem> {
    let address = mail.normalize(channel, address)?;
    subscriber::check_address(&address)?;
    // No other kind of address begins like this.
    if address.starts_with('{') {
        tocsin_delivery::webpush::check_subscription(&address).map_err(|wrong| {
            Problem::new(Code::InvalidFormat, "address", wrong)
                .param("format", "push_subscription")
                .hint("give what the browser's `JSON.stringify(subscription)` writes")
        })?;
    }
    Ok(address)
}

/// Checks a device. An unchanged stored device is accepted, even if an earlier version accepted what is now rejected.
pub(crate) fn check_device(
    device: DeviceDraft,
    stored: Option<&Device>,
    mail: &MailChannels,
    path: &str,
    problems: &mut Vec<Problem>,
) -> Option<Device> {
    let DeviceDraft { channel, address, state } = device;
    if let Some(stored) = stored
        && (stored.channel.as_str(), &stored.address) == (channel.as_str(), &address)
    {
        return Some(Device { state, ..stored.clone() });
    }
    let channel = channel.parse::<Name>();
    if let Err(error) = &channel {
        problems
            .push(Problem::not(Code::InvalidFormat, format!("{path}.channel"), error.expected).param("format", "name"));
    }
    // Without a channel, the address can still be checked in part.
    let address = match &channel {
        Ok(channel) => check_address(mail, channel, &address),
        Err(_) => subscriber::check_address(&address).map(|()| address),
    };
    let address = address.map_err(|problem| {
        problems.push(Problem { path: format!("{path}.address"), ..problem });
    });
    Some(Device { channel: channel.ok()?, address: address.ok()?, state })
}

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
            let mut draft: Draft = serde_json::from_value(merged).map_err(|error| json_error(&error))?;
            // A patch that removes them does so on purpose.
            draft.devices.get_or_insert_default();
            draft.preferences.get_or_insert_default();
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
            None => self.subscriber_store.put_device(PutDevice { id, name, device, now: self.clock.now() }).await?,
            Some(revision) => {
                let mut devices = present.devices;
                devices.insert(name.clone(), device);
                let devices = Some(devices.into_iter().collect());
                let whole = NewSubscriber { id: id.clone(), profile: present.profile, devices, preferences: None };
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
        let whole = NewSubscriber { id: id.clone(), profile: present.profile, devices, preferences: None };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_of_a_draft_is_reported() {
        let draft: Draft = serde_json::from_str(
            r#"{"id": "a/b", "locale": "!", "time_zone": "Mars", "attributes": {"": 1},
                "devices": {"1": {"channel": "mail", "address": "a"}, "mail": {"channel": "a b", "address": "x\r\ny"}}}"#,
        )
        .expect("a draft");
        let found: Vec<String> = check(draft, None, &BTreeMap::new(), &MailChannels::default())
            .expect_err("problems")
            .into_iter()
            .map(|problem| problem.path)
            .collect();
        assert_eq!(
            found,
            ["id", "locale", "time_zone", "attributes", "devices.1", "devices.mail.channel", "devices.mail.address"]
        );
    }
}
