//! Unsubscription: by the link of a mail, by its page, and by operators. The link itself authorizes its holder; no key
//! is needed.
//!
//! All subscriptions that one action ends get the same time of change. An undo names that time: it restores those that
//! were not changed since.

mod bulk; // many addresses, subscribers or subscriptions in one request

use std::time::Duration;

use futures_util::future::try_join_all;
use tocsin_delivery::Sealed;
use tocsin_model::{
    consent::{ConsentMethod, ConsentState, Evidence},
    delivery_policy::DigestWindow,
    id::{Name, SubscriberId, SubscriberNumber, SubscriptionId},
    pages::{ClassTexts, title_of},
    preferences::Preferences,
    subscriber::Subscriber,
    subscription::Subscription,
    time::Timestamp,
};
use tocsin_store::{
    audit,
    error::StoreError,
    records::{NewSubscriber, Precondition, SubscriptionChange, SubscriptionFilter, UpdateSubscription},
};

pub use self::bulk::{UNSUBSCRIPTIONS_MAX, Undone, Unsubscribed, UnsubscriptionDraft};
use crate::{Service, error::ServiceError};

/// Time in which the holder of a link can undo an unsubscription.
pub const UNDO_LIFETIME: Duration = Duration::from_secs(12 * 3_600);
/// Length of a pause.
pub const PAUSE: Duration = Duration::from_secs(7 * 86_400);
/// Digest window of a subscriber who prefers a daily digest.
pub const DAILY: DigestWindow = DigestWindow::Daily(8 * 60);
/// Most subscriptions that one action ends.
const ENDED_MAX: usize = 100_000;
/// Subscriptions that an action changes at the same time; they share commits.
const CONCURRENT: usize = 64;

/// Permission to end one subscription, which only its link gives.
#[derive(Debug, Clone)]
pub struct Unsubscribing {
    token: String,
    id: SubscriptionId,
    subscription: Option<Subscription>,
}

impl Unsubscribing {
    /// Application and class of the subscription, if it still exists.
    pub fn of(&self) -> Option<(&Name, &Name)> {
        self.subscription.as_ref().map(|found| (&found.application, &found.class))
    }

    /// Whether the subscription exists and is enabled or snoozed.
    pub fn is_active(&self) -> bool {
        self.subscription.as_ref().is_some_and(Subscription::is_active_or_snoozed)
    }
}

/// An action of the unsubscribe page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnsubscribeAction {
    /// Ends this subscription.
    This,
    /// Ends all subscriptions of its subscriber in its application.
    Application,
    /// Ends all notifications except critical ones, of all applications.
    OnlyCritical,
    /// Keeps the subscription, and sends its notifications as a daily digest.
    Digest,
    /// Keeps the subscription, and pauses all notifications for a week.
    Pause,
}

impl UnsubscribeAction {
    /// All actions.
    pub const ALL: [UnsubscribeAction; 5] = [
        UnsubscribeAction::This,
        UnsubscribeAction::Application,
        UnsubscribeAction::OnlyCritical,
        UnsubscribeAction::Digest,
        UnsubscribeAction::Pause,
    ];

    /// Its name in forms, texts and metrics.
    pub fn word(self) -> &'static str {
        match self {
            UnsubscribeAction::This => "this",
            UnsubscribeAction::Application => "application",
            UnsubscribeAction::OnlyCritical => "only_critical",
            UnsubscribeAction::Digest => "digest",
            UnsubscribeAction::Pause => "pause",
        }
    }

    /// The action of a name.
    pub fn named(word: &str) -> Option<UnsubscribeAction> {
        UnsubscribeAction::ALL.into_iter().find(|action| action.word() == word)
    }
}

/// Content of the unsubscribe page.
#[derive(Debug, Clone)]
pub struct UnsubscribeView {
    /// Title and description of the subscription class, by language.
    pub texts: ClassTexts,
    /// Title of the class if it has no text.
    pub title: String,
    /// Title of the application.
    pub application: String,
    /// Whether the subscription is enabled or snoozed.
    pub active: bool,
    /// Whether its notifications can be sent as a digest.
    pub digest: bool,
    /// Whether critical notifications only are sent already.
    pub only_critical: bool,
    /// End of a pause.
    pub paused_until: Option<Timestamp>,
}

impl Service {
    /// Returns the target of a link. Changes nothing.
    ///
    /// # Errors
    /// `Missing` for a link that we did not make.
    pub async fn unsubscribing(&self, token: &str) -> Result<Unsubscribing, ServiceError> {
        let id = self.token_signer.subscription(token).ok_or_else(|| ServiceError::Missing("this link".into()))?;
        let subscription = self.subscription_store.subscription(id).await?;
        if let Some(found) = &subscription {
            audit::set_actor(|| format!("subscriber:{}", found.subscriber));
        }
        Ok(Unsubscribing { token: token.to_owned(), id, subscription })
    }

    /// Content of the page of a link; `None`: the subscription was removed.
    ///
    /// # Errors
    /// The records are unavailable.
    pub async fn unsubscribe_view(&self, leave: &Unsubscribing) -> Result<Option<UnsubscribeView>, ServiceError> {
        let Some(found) = &leave.subscription else { return Ok(None) };
        let preferences = self.owner_of(found).await?.map(|owner| owner.preferences).unwrap_or_default();
        let compiled = self.pipeline.application(&found.application);
        let pages = compiled.as_ref().map(|compiled| &compiled.application.pages);
        let now = self.clock.now();
        Ok(Some(UnsubscribeView {
            texts: pages.and_then(|pages| pages.subscriptions.get(&found.class)).cloned().unwrap_or_default(),
            title: title_of(&found.class),
            application: pages
                .and_then(|pages| pages.branding.name.clone())
                .unwrap_or_else(|| title_of(&found.application)),
            active: found.is_active_or_snoozed(),
            digest: !self.digest_classes(found).is_empty(),
            only_critical: preferences.only_critical,
            paused_until: preferences.paused_until.filter(|end| now < *end),
        }))
    }

    /// Ends the subscription of a link: no notifications are sent any more, including waiting ones. Doing it again, or
    /// after the subscription was removed, changes nothing. Returns the token of its undo, also for a subscription that
    /// was ended a short time ago.
    ///
    /// # Errors
    /// The records are unavailable, or take no change now.
    pub async fn unsubscribe(&self, leave: &Unsubscribing) -> Result<Option<String>, ServiceError> {
        let now = self.clock.now();
        let ended = self.end_subscriptions(&[leave.id], ConsentMethod::Link, now).await?;
        if !ended.is_empty() {
            return Ok(Some(self.seal_undo(leave, UnsubscribeAction::This, now)));
        }
        let found = self.subscription_store.subscription(leave.id).await?;
        let recent = found.filter(|found| !found.is_active_or_snoozed() && now < found.updated_at + UNDO_LIFETIME);
        Ok(recent.map(|found| self.seal_undo(leave, UnsubscribeAction::This, found.updated_at)))
    }

    /// Applies an action of the unsubscribe page. `undo` is the token of an earlier one, which a digest or a pause
    /// replaces. Returns the token of its undo, if anything changed.
    ///
    /// # Errors
    /// The records are unavailable, or take no change now.
    pub async fn apply_unsubscribe_action(
        &self,
        leave: &Unsubscribing,
        action: UnsubscribeAction,
        undo: Option<&str>,
    ) -> Result<Option<String>, ServiceError> {
        let now = self.clock.now();
        let Some(found) = leave.subscription.clone() else { return Ok(None) };
        let changed = match action {
            UnsubscribeAction::This => return self.unsubscribe(leave).await,
            UnsubscribeAction::Application => {
                let all = self.subscriptions_of(&found.subscriber, Some(&found.application)).await?;
                let ids: Vec<SubscriptionId> = all.iter().map(|found| found.id).collect();
                let ended = self.end_subscriptions(&ids, ConsentMethod::Page, now).await?;
                !ended.is_empty()
            }
            UnsubscribeAction::OnlyCritical => {
                self.change_preferences_of(&found, |preferences| {
                    !std::mem::replace(&mut preferences.only_critical, true)
                })
                .await?
            }
            UnsubscribeAction::Digest | UnsubscribeAction::Pause => {
                // Instead of the unsubscription that was just made.
                if let Some(undo) = undo {
                    self.undo_unsubscription(leave, undo).await?;
                }
                let classes = self.digest_classes(&found);
                self.change_preferences_of(&found, |preferences| match action {
                    UnsubscribeAction::Pause => {
                        let end = now + PAUSE;
                        preferences.paused_until.replace(end) != Some(end)
                    }
                    _ => set_digest(preferences, &found.application, &classes, Some(DAILY)),
                })
                .await?
            }
        };
        if changed {
            metrics::counter!("tocsin_page_changes_total", "change" => action.word()).increment(1);
            tracing::info!(subscription = %leave.id, action = action.word(), "changed by the unsubscribe page");
            return Ok(Some(self.seal_undo(leave, action, now)));
        }
        Ok(None)
    }

    /// Undoes an action by its token. Returns whether the token is valid and anything changed.
    ///
    /// # Errors
    /// The records are unavailable, or take no change now.
    pub async fn undo_unsubscription(&self, leave: &Unsubscribing, undo: &str) -> Result<bool, ServiceError> {
        let Some((action, at)) = self.open_undo(leave, undo) else { return Ok(false) };
        let Some(found) = leave.subscription.clone() else { return Ok(false) };
        let changed = match action {
            UnsubscribeAction::This => self.restore_subscriptions(&[leave.id], at, ConsentMethod::Page).await? > 0,
            UnsubscribeAction::Application => {
                let all = self.subscriptions_of(&found.subscriber, Some(&found.application)).await?;
                let ids: Vec<SubscriptionId> = all.iter().map(|found| found.id).collect();
                self.restore_subscriptions(&ids, at, ConsentMethod::Page).await? > 0
            }
            UnsubscribeAction::OnlyCritical => {
                self.change_preferences_of(&found, |preferences| {
                    std::mem::replace(&mut preferences.only_critical, false)
                })
                .await?
            }
            UnsubscribeAction::Pause => {
                self.change_preferences_of(&found, |preferences| preferences.paused_until.take().is_some()).await?
            }
            UnsubscribeAction::Digest => {
                let classes = self.digest_classes(&found);
                self.change_preferences_of(&found, |preferences| {
                    set_digest(preferences, &found.application, &classes, None)
                })
                .await?
            }
        };
        if changed {
            metrics::counter!("tocsin_page_changes_total", "change" => "undo").increment(1);
            tracing::info!(subscription = %leave.id, action = action.word(), "undone by the unsubscribe page");
        }
        Ok(changed)
    }

    /// Whether a token undoes an action of this link and has not expired.
    pub fn is_undo(&self, leave: &Unsubscribing, undo: &str) -> bool {
        self.open_undo(leave, undo).is_some()
    }

    fn seal_undo(&self, leave: &Unsubscribing, action: UnsubscribeAction, at: Timestamp) -> String {
        let payload = format!("{}~{}", action.word(), at.0);
        self.token_signer.pages().seal(Sealed::Undo, &leave.token, &payload, at + UNDO_LIFETIME)
    }

    fn open_undo(&self, leave: &Unsubscribing, undo: &str) -> Option<(UnsubscribeAction, Timestamp)> {
        let payload = self.token_signer.pages().open(Sealed::Undo, &leave.token, undo, self.clock.now())?;
        let (word, at) = payload.split_once('~')?;
        Some((UnsubscribeAction::named(word)?, Timestamp(at.parse().ok()?)))
    }

    /// Ends subscriptions: none of their notifications is sent any more, including waiting ones. `at` becomes the time of
    /// their change, by which [`Self::restore_subscriptions`] finds them. Returns those that were enabled or snoozed; a
    /// repetition changes nothing.
    ///
    /// # Errors
    /// The records are unavailable, or take no change now; some may be ended.
    pub async fn end_subscriptions(
        &self,
        ids: &[SubscriptionId],
        way: ConsentMethod,
        at: Timestamp,
    ) -> Result<Vec<SubscriptionId>, ServiceError> {
        let ended = self.switch_all(ids, Switch { enables: false, way, now: at, changed_at: None }).await?;
        if !ended.is_empty() {
            metrics::counter!("tocsin_unsubscribe_total", "way" => way.word()).increment(ended.len() as u64);
            for id in &ended {
                tracing::info!(subscription = %id, way = way.word(), "ended");
            }
        }
        Ok(ended)
    }

    /// Enables the subscriptions that were ended at this time and not changed since. Returns their number.
    ///
    /// # Errors
    /// The records are unavailable, or take no change now; some may be enabled.
    pub async fn restore_subscriptions(
        &self,
        ids: &[SubscriptionId],
        ended_at: Timestamp,
        way: ConsentMethod,
    ) -> Result<usize, ServiceError> {
        let now = self.clock.now();
        let switch = Switch { enables: true, way, now, changed_at: Some(ended_at) };
        let count = self.switch_all(ids, switch).await?.len();
        if count > 0 {
            tracing::info!(count, way = way.word(), "ended subscriptions were enabled again");
        }
        Ok(count)
    }

    /// Enables subscriptions at the request of their owner. Returns their number.
    ///
    /// # Errors
    /// The records are unavailable, or take no change now; some may be enabled.
    pub(crate) async fn enable_subscriptions(
        &self,
        ids: &[SubscriptionId],
        way: ConsentMethod,
    ) -> Result<usize, ServiceError> {
        let switch = Switch { enables: true, way, now: self.clock.now(), changed_at: None };
        let count = self.switch_all(ids, switch).await?.len();
        if count > 0 {
            tracing::info!(count, way = way.word(), "subscriptions were enabled");
        }
        Ok(count)
    }

    /// Disables a subscription that is enabled, snoozed or pending, and withdraws its consent, if one is given; or
    /// enables one that is not, and restores its consent, in the latter case only one that was last changed at
    /// `changed_at`, if given. Returns whether it did.
    async fn switch(&self, id: SubscriptionId, switch: &Switch) -> Result<bool, ServiceError> {
        let mut turn = self.turns.take(&id).await;
        loop {
            let Some(found) = self.subscription_store.subscription(id).await? else { return Ok(false) };
            let by = if switch.way == ConsentMethod::Operator { "operator" } else { "subscriber" };
            let evidence = async || {
                let address = self.address_of(&found).await?;
                Ok::<_, ServiceError>(Evidence { address, ..Evidence::new(switch.way, by) })
            };
            let is_pending = found.consent == Some(ConsentState::Pending);
            if !switch.enables {
                // A confirmed one that is disabled is withdrawn too: else an operator could enable it again.
                let is_given = found.consent.is_some_and(|state| state != ConsentState::Withdrawn);
                if !found.is_active_or_snoozed() && !is_given {
                    return Ok(false);
                }
                return Ok(self.consent_store.withdraw_consent(id, evidence().await?, switch.now).await?);
            }
            let is_other = switch.changed_at.is_some_and(|at| found.updated_at != at);
            if found.is_active_or_snoozed() || is_pending || is_other {
                return Ok(false);
            }
            if found.consent != Some(ConsentState::Confirmed) {
                return Ok(self.consent_store.restore_consent(id, evidence().await?, switch.now).await?);
            }
            let change = SubscriptionChange {
                device: found.device,
                enabled: Some(true),
                values: found.values,
                terms: found.terms,
            };
            let update =
                UpdateSubscription { id, change, expect: Precondition::Revision(found.revision), now: switch.now };
            match self.subscription_store.update_subscription(update).await {
                Ok(_) => return Ok(true),
                Err(StoreError::Missing(_)) => return Ok(false),
                Err(StoreError::Changed(_)) => turn.repeat(format_args!("the subscription `{id}`"))?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Switches subscriptions. Returns those that changed.
    async fn switch_all(&self, ids: &[SubscriptionId], switch: Switch) -> Result<Vec<SubscriptionId>, ServiceError> {
        let mut switched = Vec::new();
        for chunk in ids.chunks(CONCURRENT) {
            let changed = try_join_all(chunk.iter().map(|id| self.switch(*id, &switch))).await?;
            switched.extend(chunk.iter().zip(changed).filter(|(_, changed)| *changed).map(|(id, _)| *id));
        }
        Ok(switched)
    }

    /// All subscriptions of a subscriber, in one application or in all.
    pub(crate) async fn subscriptions_of(
        &self,
        subscriber: &SubscriberId,
        application: Option<&Name>,
    ) -> Result<Vec<Subscription>, ServiceError> {
        let filter = SubscriptionFilter {
            application: application.cloned(),
            subscriber: Some(subscriber.clone()),
            ..SubscriptionFilter::default()
        };
        Ok(self.subscription_store.subscriptions(&filter, None, ENDED_MAX).await?)
    }

    async fn owner_of(&self, subscription: &Subscription) -> Result<Option<Subscriber>, ServiceError> {
        Ok(self.subscriber_store.subscriber_numbered(subscription.subscriber_number).await?)
    }

    async fn change_preferences_of(
        &self,
        subscription: &Subscription,
        change: impl Fn(&mut Preferences) -> bool,
    ) -> Result<bool, ServiceError> {
        self.change_stored_preferences(subscription.subscriber_number, change).await
    }

    /// Changes the preferences of a subscriber. The change returns whether there is anything to store.
    pub(crate) async fn change_stored_preferences(
        &self,
        number: SubscriberNumber,
        change: impl Fn(&mut Preferences) -> bool,
    ) -> Result<bool, ServiceError> {
        let Some(found) = self.subscriber_store.subscriber_numbered(number).await? else { return Ok(false) };
        let mut turn = self.turns.take(&found.id).await;
        loop {
            let Some(found) = self.subscriber_store.subscriber_numbered(number).await? else { return Ok(false) };
            let mut preferences = found.preferences;
            if !change(&mut preferences) {
                return Ok(false);
            }
            let new = NewSubscriber {
                kept: Default::default(),
                id: found.id.clone(),
                profile: found.profile,
                devices: None,
                preferences: Some(preferences),
            };
            let expect = Precondition::Revision(found.revision);
            match self.subscriber_store.put_subscriber(new, expect, self.clock.now()).await {
                Err(StoreError::Changed(_)) => turn.repeat(format_args!("the subscriber `{}`", found.id))?,
                stored => return Ok(stored.map(|_| true)?),
            }
        }
    }

    /// Notification classes of a subscription with digests that are sent more often than daily. Critical ones ignore
    /// preferences.
    fn digest_classes(&self, subscription: &Subscription) -> Vec<Name> {
        let Some(compiled) = self.pipeline.application(&subscription.application) else { return Vec::new() };
        let application = &compiled.application;
        let mut classes: Vec<Name> = application
            .rules
            .values()
            .filter(|rule| rule.subscription == subscription.class)
            .filter(|rule| {
                application.notifications.get(&rule.notify).is_some_and(|class| {
                    let policy = &class.delivery_policy;
                    let digest = policy.digest.as_ref().map(|digest| digest.window);
                    !policy.critical && digest.is_some_and(|window| !matches!(window, DigestWindow::Daily(_)))
                })
            })
            .map(|rule| rule.notify.clone())
            .collect();
        classes.sort();
        classes.dedup();
        classes
    }
}

/// Sets the digest window of classes. Returns whether anything changed.
pub(crate) fn set_digest(
    preferences: &mut Preferences,
    application: &Name,
    classes: &[Name],
    window: Option<DigestWindow>,
) -> bool {
    let mut changed = false;
    for class in classes {
        let key = format!("{application}/{class}");
        let preference = preferences.notifications.entry(key.clone()).or_default();
        changed |= std::mem::replace(&mut preference.digest, window) != window;
        if *preference == Default::default() {
            preferences.notifications.remove(&key);
        }
    }
    changed
}

/// A switch of subscriptions.
struct Switch {
    enables: bool,
    way: ConsentMethod,
    now: Timestamp,
    /// Only those that were last changed at this time.
    changed_at: Option<Timestamp>,
}
