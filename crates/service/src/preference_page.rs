//! The preference page of a subscriber. The signed link authorizes its holder for this subscriber only; no key is
//! needed.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tocsin_delivery::{Sealed, redact};
use tocsin_model::{
    application::{Application, NotificationClass},
    consent::{ConsentMethod, ConsentState},
    delivery_policy::DigestWindow,
    hours::Hours,
    id::{Name, SubscriberNumber, SubscriptionId},
    pages::{Branding, ClassTexts, title_of},
    preferences::{Preference, Preferences},
    problem::{Code, Problem},
    subscriber::{DeviceState, Subscriber, check_profile},
    subscription::Subscription,
    time::Timestamp,
};
use tocsin_store::{
    audit,
    error::StoreError,
    records::{NewSubscriber, Precondition},
};

use crate::{
    Service,
    error::ServiceError,
    unsubscribe::{DAILY, PAUSE, set_digest},
};

/// Lifetime of a form: time between reading a page and sending its form.
pub const FORM_LIFETIME: Duration = Duration::from_secs(24 * 3_600);
/// Most subscriptions of one application on the page; further ones are changed by their links.
pub const SHOWN_SUBSCRIPTIONS_MAX: usize = 200;
/// Longest shown value of a subscription, in characters.
const SHOWN_VALUES_CHARACTERS_MAX: usize = 120;

/// Permission to read and change the preferences of one subscriber. Only [`Service::open_preferences`] makes one.
#[derive(Debug, Clone)]
pub struct PreferenceOwner {
    number: SubscriberNumber,
}

impl PreferenceOwner {
    /// Number of the subscriber, by which requests are counted.
    pub fn number(&self) -> u64 {
        self.number.0
    }
}

/// Content of the preference page.
#[derive(Debug, Clone)]
pub struct PreferenceView {
    /// Revision of the subscriber, for a conditional change.
    pub revision: u64,
    /// Language tag.
    pub locale: Option<String>,
    /// IANA time zone.
    pub time_zone: Option<String>,
    /// Quiet hours.
    pub quiet_hours: Vec<Hours>,
    /// Whether critical notifications only are sent.
    pub only_critical: bool,
    /// End of a pause, if one lasts.
    pub paused_until: Option<Timestamp>,
    /// Applications with subscriptions or preferences of the subscriber, by name.
    pub applications: Vec<ApplicationView>,
    /// Devices, by name.
    pub devices: Vec<DeviceView>,
}

/// An application on the preference page.
#[derive(Debug, Clone)]
pub struct ApplicationView {
    /// Its name.
    pub name: Name,
    /// Its title.
    pub title: String,
    /// Its description.
    pub description: Option<String>,
    /// Notification types, by name.
    pub types: Vec<TypeView>,
    /// Subscriptions, by number.
    pub subscriptions: Vec<SubscriptionView>,
    /// Number of subscriptions beyond [`SHOWN_SUBSCRIPTIONS_MAX`].
    pub more: usize,
}

/// A notification type on the preference page.
#[derive(Debug, Clone)]
pub struct TypeView {
    /// Notification class.
    pub class: Name,
    /// Title and description by language.
    pub texts: ClassTexts,
    /// Title if it has no text.
    pub title: String,
    /// Description if it has no text.
    pub description: Option<String>,
    /// Whether it is sent in any case.
    pub critical: bool,
    /// Whether it is enabled.
    pub enabled: bool,
    /// The channels of the subscriber's devices, each with whether it may be used. Empty if there is only one.
    pub channels: Vec<(Name, bool)>,
    /// Whether the subscriber prefers a daily digest; `None`: its class cannot be sent as one, or always is.
    pub digest: Option<bool>,
}

/// A subscription on the preference page.
#[derive(Debug, Clone)]
pub struct SubscriptionView {
    /// Its id.
    pub id: SubscriptionId,
    /// Title and description by language.
    pub texts: ClassTexts,
    /// Title if it has no text.
    pub title: String,
    /// Its values, such as `magnitude: 5`.
    pub values: String,
    /// Whether it is enabled or snoozed.
    pub enabled: bool,
}

/// A device on the preference page.
#[derive(Debug, Clone)]
pub struct DeviceView {
    /// Its name.
    pub name: Name,
    /// Its channel.
    pub channel: Name,
    /// Its address, masked.
    pub address: String,
    /// Its state.
    pub state: DeviceState,
}

/// A change by the form of the preference page.
#[derive(Debug, Clone, Default)]
pub struct PreferenceChange {
    /// Language tag; `None`: none.
    pub locale: Option<String>,
    /// IANA time zone; `None`: none.
    pub time_zone: Option<String>,
    /// All quiet hours.
    pub quiet_hours: Vec<Hours>,
    /// Notification types of the form.
    pub types: Vec<TypeChange>,
    /// Subscriptions of the form, each with whether it is enabled.
    pub subscriptions: BTreeMap<SubscriptionId, bool>,
}

/// A change of a notification type.
#[derive(Debug, Clone)]
pub struct TypeChange {
    /// Application.
    pub application: Name,
    /// Notification class.
    pub class: Name,
    /// Whether it is enabled.
    pub enabled: bool,
    /// Channels, each with whether it may be used.
    pub channels: Vec<(Name, bool)>,
    /// Whether a daily digest is preferred, if the form has it.
    pub digest: Option<bool>,
}

/// An action of the preference page beside its form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreferenceAction {
    /// Pauses all notifications except critical ones for a week.
    Pause,
    /// Ends the pause.
    Resume,
    /// Ends all notifications except critical ones.
    OnlyCritical,
    /// Allows all notifications again, as the other preferences say.
    All,
}

impl PreferenceAction {
    /// Its name in forms and metrics.
    pub fn word(self) -> &'static str {
        match self {
            PreferenceAction::Pause => "pause",
            PreferenceAction::Resume => "resume",
            PreferenceAction::OnlyCritical => "only_critical",
            PreferenceAction::All => "all",
        }
    }

    /// The action of a name.
    pub fn named(word: &str) -> Option<PreferenceAction> {
        use PreferenceAction::{All, OnlyCritical, Pause, Resume};
        [Pause, Resume, OnlyCritical, All].into_iter().find(|action| action.word() == word)
    }
}

impl Service {
    /// Opens the preferences of a link.
    ///
    /// # Errors
    /// `Missing`: the link is invalid or has expired, or its subscriber was removed.
    pub async fn open_preferences(&self, token: &str) -> Result<PreferenceOwner, ServiceError> {
        let missing = || ServiceError::Missing("this link".into());
        let link = self.token_signer.pages().verify_preferences(token).ok_or_else(missing)?;
        if link.expires_at <= self.clock.now() || !self.subscriber_store.has_subscriber(link.subscriber).await? {
            return Err(missing());
        }
        if audit::current().is_some()
            && let Some(found) = self.subscriber_store.subscriber_numbered(link.subscriber).await?
        {
            audit::set_actor(|| format!("subscriber:{}", found.id));
        }
        Ok(PreferenceOwner { number: link.subscriber })
    }

    /// Branding of the hosted pages of a running application.
    pub fn application_branding(&self, name: &Name) -> Option<Branding> {
        Some(self.pipeline.application(name)?.application.pages.branding.clone())
    }

    /// The token of a form on the page with this link.
    pub fn form_token(&self, page: &str) -> String {
        self.token_signer.pages().seal(Sealed::Form, page, "form", self.clock.now() + FORM_LIFETIME)
    }

    /// Whether a form was made by the page with this link, and not too long ago.
    pub fn is_form(&self, page: &str, token: &str) -> bool {
        self.token_signer.pages().open(Sealed::Form, page, token, self.clock.now()).is_some()
    }

    /// Content of the page.
    ///
    /// # Errors
    /// `Missing`: the subscriber was removed. The records are unavailable.
    pub async fn preference_view(&self, owner: &PreferenceOwner) -> Result<PreferenceView, ServiceError> {
        let found = self.owner(owner).await?;
        let mut subscriptions: BTreeMap<Name, Vec<Subscription>> = BTreeMap::new();
        for subscription in self.subscriptions_of(&found.id, None).await? {
            // The owner confirms a pending one by its own link.
            if subscription.consent != Some(ConsentState::Pending) {
                subscriptions.entry(subscription.application.clone()).or_default().push(subscription);
            }
        }
        let named = found.preferences.notifications.keys().filter_map(|key| key.split('/').next()?.parse().ok());
        let names: BTreeSet<Name> = subscriptions.keys().cloned().chain(named).collect();
        let applications = names.into_iter().filter_map(|name| {
            let compiled = self.pipeline.application(&name)?;
            let shown = subscriptions.remove(&name).unwrap_or_default();
            Some(application_view(&compiled.application, &found, shown))
        });
        let applications: Vec<ApplicationView> = applications.collect();
        let device = |(name, device): (&Name, &tocsin_model::subscriber::Device)| DeviceView {
            name: name.clone(),
            channel: device.channel.clone(),
            address: masked(&device.address),
            state: device.state,
        };
        let now = self.clock.now();
        Ok(PreferenceView {
            revision: found.revision,
            locale: found.profile.locale.clone(),
            time_zone: found.profile.time_zone.clone(),
            quiet_hours: found.preferences.quiet_hours.clone(),
            only_critical: found.preferences.only_critical,
            paused_until: found.preferences.paused_until.filter(|end| now < *end),
            applications,
            devices: found.devices.iter().map(device).collect(),
        })
    }

    /// Stores the form of the page. It changes only what the form contains.
    ///
    /// # Errors
    /// `Invalid` with every problem, by field; `Changed`: the subscriber has another revision than the page showed.
    pub async fn change_preferences(
        &self,
        owner: &PreferenceOwner,
        change: PreferenceChange,
        revision: u64,
    ) -> Result<(), ServiceError> {
        let found = self.owner(owner).await?;
        if found.revision != revision {
            return Err(ServiceError::Changed("the subscriber".into()));
        }
        let mut profile = found.profile.clone();
        profile.locale.clone_from(&change.locale);
        profile.time_zone.clone_from(&change.time_zone);
        let mut preferences = found.preferences.clone();
        preferences.quiet_hours.clone_from(&change.quiet_hours);
        for change in &change.types {
            apply_type(&mut preferences, change);
        }
        let mut problems = check_profile(&profile);
        problems.extend(preferences.check());
        let own = self.subscriptions_of(&found.id, None).await?;
        let of_owner: BTreeMap<SubscriptionId, &Subscription> = own.iter().map(|found| (found.id, found)).collect();
        for id in change.subscriptions.keys().filter(|id| !of_owner.contains_key(id)) {
            let message = format!("`{id}` is not a subscription of this subscriber");
            problems.push(Problem::new(Code::UnknownReference, "subscriptions", message));
        }
        if !problems.is_empty() {
            return Err(ServiceError::Invalid(problems));
        }
        let new = NewSubscriber {
            kept: Default::default(),
            id: found.id.clone(),
            profile,
            devices: None,
            preferences: Some(preferences),
        };
        let now = self.clock.now();
        let turn = self.turns.take(&found.id).await;
        self.subscriber_store.put_subscriber(new, Precondition::Revision(revision), now).await?;
        drop(turn);
        let chosen = |on: bool| {
            let differs = move |(id, enabled): (&SubscriptionId, &bool)| {
                let is_on = of_owner.get(id).is_some_and(|found| found.is_active_or_snoozed());
                (*enabled == on && is_on != on).then_some(*id)
            };
            change.subscriptions.iter().filter_map(differs).collect::<Vec<_>>()
        };
        let (on, off) = (chosen.clone()(true), chosen(false));
        self.end_subscriptions(&off, ConsentMethod::Page, now).await?;
        self.enable_subscriptions(&on, ConsentMethod::Page).await?;
        self.page_changed(owner, "preferences");
        Ok(())
    }

    /// Applies an action of the page. A repetition changes nothing.
    ///
    /// # Errors
    /// The records are unavailable, or take no change now.
    pub async fn apply_preference_action(
        &self,
        owner: &PreferenceOwner,
        action: PreferenceAction,
    ) -> Result<(), ServiceError> {
        let end = self.clock.now() + PAUSE;
        let changed = self
            .change_stored_preferences(owner.number, |preferences| match action {
                PreferenceAction::Pause => preferences.paused_until.replace(end) != Some(end),
                PreferenceAction::Resume => preferences.paused_until.take().is_some(),
                PreferenceAction::OnlyCritical => !std::mem::replace(&mut preferences.only_critical, true),
                PreferenceAction::All => std::mem::replace(&mut preferences.only_critical, false),
            })
            .await?;
        if changed {
            self.page_changed(owner, action.word());
        }
        Ok(())
    }

    /// Removes a device. A repetition changes nothing.
    ///
    /// # Errors
    /// The records are unavailable, or take no change now.
    pub async fn remove_shown_device(&self, owner: &PreferenceOwner, device: &Name) -> Result<(), ServiceError> {
        let found = self.owner(owner).await?;
        match self.subscriber_store.remove_device(&found.id, device, self.clock.now()).await {
            Ok(_) => {
                self.page_changed(owner, "device_removed");
                Ok(())
            }
            Err(StoreError::Missing(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn owner(&self, owner: &PreferenceOwner) -> Result<Subscriber, ServiceError> {
        let found = self.subscriber_store.subscriber_numbered(owner.number).await?;
        found.ok_or_else(|| ServiceError::Missing("this link".into()))
    }

    fn page_changed(&self, owner: &PreferenceOwner, change: &'static str) {
        metrics::counter!("tocsin_page_changes_total", "change" => change).increment(1);
        tracing::info!(subscriber = owner.number.0, change, "changed by the preference page");
    }
}

fn application_view(
    application: &Application,
    owner: &Subscriber,
    subscriptions: Vec<Subscription>,
) -> ApplicationView {
    let classes: BTreeSet<&Name> = subscriptions.iter().map(|found| &found.class).collect();
    let wanted = |class: &&Name| {
        let is_made = |rule: &&tocsin_model::application::Rule| rule.notify == **class;
        let of_subscriptions =
            application.rules.values().filter(is_made).any(|rule| classes.contains(&rule.subscription));
        of_subscriptions || owner.preferences.notifications.contains_key(&format!("{}/{class}", application.name))
    };
    let types = application.notifications.iter().filter(|(class, _)| wanted(class));
    let types = types.map(|(class, definition)| type_view(application, owner, class, definition)).collect();
    let more = subscriptions.len().saturating_sub(SHOWN_SUBSCRIPTIONS_MAX);
    let shown = subscriptions.into_iter().take(SHOWN_SUBSCRIPTIONS_MAX);
    let shown = shown.map(|found| SubscriptionView {
        id: found.id,
        texts: application.pages.subscriptions.get(&found.class).cloned().unwrap_or_default(),
        title: title_of(&found.class),
        values: shown_values(&found.values),
        enabled: found.is_active_or_snoozed(),
    });
    ApplicationView {
        name: application.name.clone(),
        title: application.pages.branding.name.clone().unwrap_or_else(|| title_of(&application.name)),
        description: application.description.clone(),
        types,
        subscriptions: shown.collect(),
        more,
    }
}

fn type_view(application: &Application, owner: &Subscriber, class: &Name, definition: &NotificationClass) -> TypeView {
    let policy = &definition.delivery_policy;
    let choice = owner.preferences.of(&application.name, class);
    let used = owner.devices.values().map(|device| &device.channel);
    let channels: BTreeSet<&Name> = used.filter(|channel| application.channels.contains_key(*channel)).collect();
    let channels: Vec<(Name, bool)> =
        channels.into_iter().map(|channel| (channel.clone(), choice.allows(channel))).collect();
    let window = policy.digest.as_ref().map(|digest| digest.window);
    let digest = window.filter(|window| !policy.critical && !matches!(window, DigestWindow::Daily(_)));
    TypeView {
        class: class.clone(),
        texts: application.pages.notifications.get(class).cloned().unwrap_or_default(),
        title: title_of(class),
        description: definition.description.clone(),
        critical: policy.critical,
        enabled: policy.critical || choice.is_enabled(),
        channels: if policy.critical || channels.len() < 2 { Vec::new() } else { channels },
        digest: digest.map(|_| matches!(choice.digest(), Some(DigestWindow::Daily(_)))),
    }
}

/// Sets the preferences of a notification type where they differ from those that apply.
fn apply_type(preferences: &mut Preferences, change: &TypeChange) {
    let key = format!("{}/{}", change.application, change.class);
    let mut own = preferences.notifications.remove(&key).unwrap_or_default();
    let general = Preferences { notifications: preferences.notifications.clone(), ..Preferences::default() };
    let general = general.of(&change.application, &change.class);
    own.enabled = Some(change.enabled).filter(|enabled| *enabled != general.is_enabled());
    for (channel, allowed) in &change.channels {
        match general.allows(channel) == *allowed {
            true => drop(own.channels.remove(channel)),
            false => drop(own.channels.insert(channel.clone(), *allowed)),
        }
    }
    if own != Preference::default() {
        preferences.notifications.insert(key, own);
    }
    if let Some(daily) = change.digest {
        let is_daily =
            matches!(preferences.of(&change.application, &change.class).digest(), Some(DigestWindow::Daily(_)));
        if is_daily != daily {
            let classes = [change.class.clone()];
            set_digest(preferences, &change.application, &classes, daily.then_some(DAILY));
        }
    }
}

/// The values of a subscription as text.
fn shown_values(values: &str) -> String {
    let Ok(serde_json::Value::Object(values)) = serde_json::from_str(values) else { return String::new() };
    let shown = values.iter().map(|(name, value)| match value {
        serde_json::Value::String(text) => format!("{name}: {text}"),
        other => format!("{name}: {other}"),
    });
    let text = shown.collect::<Vec<_>>().join(", ");
    match text.char_indices().nth(SHOWN_VALUES_CHARACTERS_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

/// An address that its owner recognises. The subscription of a browser has nothing to show.
fn masked(address: &str) -> String {
    if address.starts_with('{') { String::new() } else { redact::address(address) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().expect("a name")
    }

    #[test]
    fn only_differences_are_stored() {
        let stored = r#"{"notifications": {"*": {"channels": {"sms": false}}, "quakes": {"enabled": false}}}"#;
        let mut preferences: Preferences = serde_json::from_str(stored).expect("preferences");
        let mut check = |enabled, sms, digest, expected: Option<&str>| {
            let channels = vec![(name("sms"), sms), (name("mail"), true)];
            let digest = Some(digest);
            let (application, class) = (name("quakes"), name("shaken"));
            apply_type(&mut preferences, &TypeChange { application, class, enabled, channels, digest });
            let own = preferences.notifications.get("quakes/shaken");
            let own = own.map(|own| serde_json::to_string(own).expect("JSON"));
            assert_eq!(own.as_deref(), expected);
            let choice = preferences.of(&name("quakes"), &name("shaken"));
            assert_eq!((choice.is_enabled(), choice.allows(&name("sms"))), (enabled, sms));
        };
        check(false, false, false, None);
        check(true, false, false, Some(r#"{"enabled":true}"#));
        check(true, true, true, Some(r#"{"enabled":true,"channels":{"sms":true},"digest":"daily 08:00"}"#));
        check(false, false, true, Some(r#"{"digest":"daily 08:00"}"#));
        check(false, false, false, None);
    }

    #[test]
    fn values_and_addresses_are_short() {
        assert_eq!(shown_values(r#"{"magnitude": 5, "place": "Kobe"}"#), "magnitude: 5, place: Kobe");
        assert_eq!(shown_values(&format!(r#"{{"note": "{}"}}"#, "ä".repeat(500))).chars().count(), 121);
        assert_eq!(masked("alice@example.org"), "a…@example.org");
        assert_eq!(masked(r#"{"endpoint":"https://push.example/secret"}"#), "");
    }
}
