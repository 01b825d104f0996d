//! Self-service: changes that subscribers make through their own devices, with the same checks as all other changes.

use serde_json::{Map, Value as Json};
use tocsin_model::{
    consent::ConsentMethod,
    id::{Name, SubscriberId, SubscriptionId},
    mailbox::MailChannels,
    problem::{Code, Problem},
    subscriber::{DEVICES_MAX, Device, DeviceState, Subscriber},
    subscription::Subscription,
};
use tocsin_store::{
    error::StoreError,
    records::{NewSubscriber, Precondition, RemoveSubscription, SubscriptionFilter},
};

use crate::{
    Service,
    consent_actor::ConsentActor,
    error::{ServiceError, json_error},
    subscribers::{DeviceDraft, check_device},
    subscriptions::{Draft, SubscriptionLine},
};

/// Maximum number of subscriptions that a subscriber creates itself; operators may create more for it.
pub const OWN_SUBSCRIPTIONS_MAX: usize = 1_000;

/// A subscriber authenticated by its own device, for one application. The code that makes one is responsible for the
/// check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// Application of the device.
    pub application: Name,
    /// The subscriber.
    pub subscriber: SubscriberId,
}

/// Named fields to set; null clears one.
pub type Set = Map<String, Json>;

impl Service {
    /// Sets fields of a device (`channel`, `address`, `state`); creates it if it is missing. A device with a new
    /// address or channel becomes active, unless `state` says otherwise.
    ///
    /// # Errors
    /// `Invalid` with every problem; the subscriber does not exist.
    pub async fn put_own_device(&self, owner: &Owner, name: &str, set: &Set) -> Result<(), ServiceError> {
        let name = named("name", name)?;
        self.change_devices(owner, |subscriber| {
            let present = subscriber.devices.get(&name);
            if present.is_none() && subscriber.devices.len() >= DEVICES_MAX {
                let message = format!("there are {DEVICES_MAX} devices already; no more fit");
                return Err(ServiceError::from(
                    Problem::new(Code::LimitReached, "name", message).param("limit", DEVICES_MAX),
                ));
            }
            let device = changed_device(present, set, &self.mail_channels())?;
            let mut devices = subscriber.devices.clone();
            devices.insert(name.clone(), device);
            Ok(Some(devices.into_iter().collect()))
        })
        .await
    }

    /// Removes a device. Idempotent.
    ///
    /// # Errors
    /// The subscriber does not exist.
    pub async fn remove_own_device(&self, owner: &Owner, name: &str) -> Result<(), ServiceError> {
        let name = named("name", name)?;
        self.change_devices(owner, |subscriber| {
            let mut devices = subscriber.devices.clone();
            Ok(devices.remove(&name).map(|_| devices.into_iter().collect()))
        })
        .await
    }

    async fn change_devices(
        &self,
        owner: &Owner,
        change: impl Fn(&Subscriber) -> Result<Option<Vec<(Name, Device)>>, ServiceError>,
    ) -> Result<(), ServiceError> {
        let mut turn = self.turns.take(&owner.subscriber).await;
        loop {
            let present = self.find_subscriber(&owner.subscriber).await?;
            let Some(devices) = change(&present)? else { return Ok(()) };
            let (id, profile) = (present.id, present.profile);
            let new =
                NewSubscriber { kept: Default::default(), id, profile, devices: Some(devices), preferences: None };
            match self
                .subscriber_store
                .put_subscriber(new, Precondition::Revision(present.revision), self.clock.now())
                .await
            {
                Err(StoreError::Changed(_)) => turn.repeat(format_args!("the subscriber `{}`", owner.subscriber))?,
                stored => return Ok(stored.map(drop)?),
            }
        }
    }

    /// Makes a subscription of the owner's application, or replaces the one of its key.
    ///
    /// # Errors
    /// `Invalid` with every problem.
    pub async fn add_own_subscription(&self, owner: &Owner, key: &str, set: &Set) -> Result<(), ServiceError> {
        let mut draft = set.clone();
        // Null ends the snooze of a subscription that is replaced; other members that are null are as if absent.
        draft.retain(|name, value| !value.is_null() || name == "snoozed_until");
        draft.insert("application".to_owned(), owner.application.as_str().into());
        draft.insert("subscriber".to_owned(), owner.subscriber.as_str().into());
        draft.entry("key").or_insert_with(|| key.into());
        let text = Json::Object(draft).to_string();
        let line: SubscriptionLine<'_> = serde_json::from_str(&text).map_err(|error| json_error(&error))?;
        let draft = Draft::from(line);
        let own = SubscriptionFilter {
            application: Some(owner.application.clone()),
            subscriber: Some(owner.subscriber.clone()),
            ..SubscriptionFilter::default()
        };
        let found = self.subscription_store.subscriptions(&own, None, OWN_SUBSCRIPTIONS_MAX).await?;
        let replaces = |found: &Subscription| {
            found.key.as_deref() == draft.key.as_deref() && draft.class.as_deref() == Some(found.class.as_str())
        };
        if found.len() >= OWN_SUBSCRIPTIONS_MAX && !found.iter().any(replaces) {
            let message = format!("there are {OWN_SUBSCRIPTIONS_MAX} subscriptions already");
            return Err(ServiceError::from(
                Problem::new(Code::LimitReached, "", message).param("limit", OWN_SUBSCRIPTIONS_MAX),
            ));
        }
        self.make_subscription(draft, &ConsentActor::subscriber(ConsentMethod::Page)).await.map(drop)
    }

    /// Sets fields of a subscription of the owner's application: `device`, `enabled`, `values` as a whole, `filter`,
    /// `schedule`, `snoozed_until`.
    ///
    /// # Errors
    /// `Invalid` with every problem; `Missing` if the owner has no such subscription.
    pub async fn change_own_subscription(
        &self,
        owner: &Owner,
        id: SubscriptionId,
        set: &Set,
    ) -> Result<(), ServiceError> {
        let mut turn = self.turns.take(&id).await;
        loop {
            let present = self.own_subscription(owner, id).await?;
            let written = serde_json::to_value(self.shown(present.clone())).expect("a document is always JSON");
            let Json::Object(mut merged) = written else { unreachable!("a document is an object") };
            merged.extend(set.clone());
            let text = Json::Object(merged).to_string();
            let line: SubscriptionLine<'_> = serde_json::from_str(&text).map_err(|error| json_error(&error))?;
            let mut draft = Draft::from(line);
            draft.enabled.get_or_insert(true);
            let origin = ConsentActor::subscriber(ConsentMethod::Page).origin();
            match self.update_subscription(&present, draft, Precondition::Revision(present.revision), origin).await {
                Err(ServiceError::Changed(_)) => turn.repeat(format_args!("the subscription `{id}`"))?,
                updated => return updated.map(drop),
            }
        }
    }

    /// Removes a subscription of the owner's application.
    ///
    /// # Errors
    /// `Missing` if the owner has no such subscription.
    pub async fn remove_own_subscription(&self, owner: &Owner, id: SubscriptionId) -> Result<(), ServiceError> {
        self.own_subscription(owner, id).await?;
        let removal = RemoveSubscription { id, expect: Precondition::Present, now: self.clock.now() };
        let origin = ConsentActor::subscriber(ConsentMethod::Page).origin();
        Ok(self.subscription_store.remove_subscription_as(removal, origin).await?)
    }

    async fn own_subscription(&self, owner: &Owner, id: SubscriptionId) -> Result<Subscription, ServiceError> {
        let found = self.subscription_store.subscription(id).await?;
        let own = found.filter(|found| found.subscriber == owner.subscriber && found.application == owner.application);
        own.ok_or_else(|| ServiceError::Missing(format!("the subscription `{id}`")))
    }
}

fn named(path: &str, text: &str) -> Result<Name, ServiceError> {
    text.parse().map_err(|error: tocsin_model::id::IdError| {
        ServiceError::from(Problem::not(Code::InvalidFormat, path, error.expected).param("format", "name"))
    })
}

fn changed_device(present: Option<&Device>, set: &Set, mail: &MailChannels) -> Result<Device, ServiceError> {
    let mut merged = Map::new();
    if let Some(present) = present {
        merged.insert("channel".to_owned(), present.channel.as_str().into());
        merged.insert("address".to_owned(), present.address.as_str().into());
    }
    for (name, value) in set {
        match value {
            Json::Null => drop(merged.remove(name)),
            value => drop(merged.insert(name.clone(), value.clone())),
        }
    }
    let mut draft: DeviceDraft = serde_json::from_value(Json::Object(merged)).map_err(|error| json_error(&error))?;
    // Null resets it; an absent one is that of the stored device if the address stays.
    if set.get("state").is_some_and(Json::is_null) {
        draft.state = Some(DeviceState::Active);
    }
    let mut problems = Vec::new();
    let checked = check_device(draft, present, mail, "", &mut problems);
    let bare = |problem: Problem| Problem { path: problem.path.trim_start_matches('.').to_owned(), ..problem };
    checked.ok_or_else(|| ServiceError::Invalid(problems.into_iter().map(bare).collect()))
}
