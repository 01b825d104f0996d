//! Subscriptions, checked against the running version of their class.

mod checks; // checks of drafts against their class
mod drafts; // drafts, as their creators write them
mod lines; // lines of exports and imports

use tocsin_model::{
    consent::ConsentMethod,
    id::{Name, SubscriptionId},
    lifecycle::ChangeOrigin,
    problem::{Code, Problem},
    schedule::Schedule,
    subscription::Subscription,
};
use tocsin_store::records::{
    Precondition, RemoveSubscription, SubscriptionChange, SubscriptionFilter, UpdateSubscription,
};

use self::checks::{check_without_class, of_key};
pub(crate) use self::{
    checks::{Basis, Checked, Class, Used, check, check_off_thread, check_subject, class_fields},
    lines::SubscriptionLine,
};
pub use self::{
    checks::{KEY_MAX, VALUE_BYTES_MAX},
    drafts::{Draft, FilterDraft, ScheduleDraft, ScheduleFields, WholeFilterDraft, read_snooze},
    lines::{ConsentSummary, Document},
};
use crate::{
    Service,
    consent_actor::ConsentActor,
    error::{ServiceError, json_error},
    keys::{Caller, Scope},
    known::Part,
    page::{Page, key_of},
    schedules::over,
    subscribers::merge,
};

impl Service {
    /// Some subscriptions in the order of their numbers.
    ///
    /// # Errors
    /// The scope `subscribers:read` is missing, or `after` is no cursor.
    pub async fn subscriptions(
        &self,
        caller: &Caller,
        filter: &SubscriptionFilter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<Document>, ServiceError> {
        caller.needs(Scope::SubscribersRead)?;
        let after: Option<SubscriptionId> = key_of(after)?;
        let found = self.subscription_store.scan_subscriptions(filter, after, limit).await?;
        if found.items.is_empty() && after.is_none() {
            self.check_known_class(filter).await?;
        }
        Ok(Page::of(found).map(|found| self.shown(found)))
    }

    pub(crate) async fn check_known_class(&self, filter: &SubscriptionFilter) -> Result<(), ServiceError> {
        self.check_known(filter.application.as_ref(), &[(Part::SubscriptionClass, filter.class.as_ref())]).await
    }

    /// A subscription as the running version of its class shows it.
    pub(crate) fn shown(&self, subscription: Subscription) -> Document {
        let fields = class_fields(&self.pipeline, &subscription.application, &subscription.class);
        Document::of(subscription, fields.as_ref())
    }

    /// One subscription.
    ///
    /// # Errors
    /// It does not exist.
    pub async fn subscription(&self, caller: &Caller, id: SubscriptionId) -> Result<Document, ServiceError> {
        caller.needs(Scope::SubscribersRead)?;
        Ok(self.shown(self.find_subscription(id).await?))
    }

    /// Makes a subscription, or replaces the one of its key. The answer says whether it is new.
    ///
    /// # Errors
    /// `Invalid` with every problem, an unknown subscriber among them.
    pub async fn add_subscription(&self, caller: &Caller, draft: Draft<'_>) -> Result<(Document, bool), ServiceError> {
        caller.needs(Scope::SubscribersWrite)?;
        let named = draft.application.as_deref().and_then(|name| name.parse().ok());
        caller.check_application(named.as_ref())?;
        self.make_subscription(draft, &ConsentActor::of(caller, ConsentMethod::Api)).await
    }

    pub(crate) async fn make_subscription(
        &self,
        draft: Draft<'_>,
        actor: &ConsentActor,
    ) -> Result<(Document, bool), ServiceError> {
        let class = self.class_of(&draft)?;
        let one = |problem| ServiceError::Invalid(vec![problem]);
        let replaced = match (draft.subscriber.as_deref().map(str::parse), &draft.key) {
            (Some(Ok(subscriber)), Some(key)) => {
                of_key(&*self.subscription_store, (&class.application, &class.name), &subscriber, key).await?
            }
            _ => None,
        };
        let basis = match &replaced {
            Some(stored) => Basis::of(stored, &class.fields)?,
            None => Basis::New,
        };
        let checked = check_off_thread(draft, &class, &basis).await?.map_err(ServiceError::Invalid)?;
        let consent = checked.consent();
        let new = checked.within_limits(replaced.as_ref()).map_err(one)?;
        let is_new = replaced.is_none();
        if is_new {
            class.check_room().map_err(one)?;
        }
        let now = self.clock.now();
        let stored = match consent {
            (Some(policy), given) => self.put_consented(new, &policy, given, actor, now).await,
            (None, _) => {
                let stored = self.subscription_store.put_subscription_as(new, actor.origin(), now);
                stored.await.map_err(ServiceError::from)
            }
        };
        let stored = stored.map_err(|error| match error {
            ServiceError::Missing(what) => {
                ServiceError::invalid(Code::UnknownReference, "subscriber", format!("{what} does not exist"))
            }
            error => error,
        })?;
        // Of several requests of one key at the same time, one made the subscription.
        let is_new = is_new && stored.created_at == now;
        Ok((self.subscription_stored(stored).await?, is_new))
    }

    /// A subscription as it was just stored, with what keeps its notifications from being sent.
    async fn subscription_stored(&self, stored: Subscription) -> Result<Document, ServiceError> {
        let mut document = self.shown(stored.clone());
        if let Some(device) = &stored.device {
            let subscriber = self.subscriber_store.subscriber(&stored.subscriber).await?;
            if subscriber.is_some_and(|subscriber| !subscriber.devices.contains_key(device)) {
                document.warnings.push(format!(
                    "the subscriber `{}` has no device `{device}`: what it would get is suspended until it has one",
                    stored.subscriber
                ));
            }
        }
        if let Some((schedule, since)) = self.schedule_store.schedule_of(stored.id).await? {
            let now = self.clock.now();
            let schedule = Schedule::parse(&schedule).map_err(ServiceError::Invalid)?;
            document.warnings.extend(over(&schedule, now.max(since)).map(|found| format!("its schedule {found}")));
        }
        Ok(document)
    }

    /// Replaces device, enabled flag, values, filter, schedule and snooze of a subscription. Its application, class, subscriber and key stay:
    /// where the draft names them, they must be the same.
    ///
    /// # Errors
    /// There is none; the draft is not valid; it has another revision than expected.
    pub async fn replace_subscription(
        &self,
        caller: &Caller,
        id: SubscriptionId,
        draft: Draft<'_>,
        revision: Option<u64>,
    ) -> Result<Document, ServiceError> {
        caller.needs(Scope::SubscribersWrite)?;
        let present = self.find_subscription(id).await?;
        let expect = revision.map_or(Precondition::Present, Precondition::Revision);
        let origin = ConsentActor::of(caller, ConsentMethod::Api).origin();
        self.subscription_stored(self.update_subscription(&present, draft, expect, origin).await?).await
    }

    /// Changes a subscription by a merge patch (RFC 7396).
    ///
    /// # Errors
    /// There is none; the result is not valid; it has another revision than expected.
    pub async fn patch_subscription(
        &self,
        caller: &Caller,
        id: SubscriptionId,
        patch: &serde_json::Value,
        revision: Option<u64>,
    ) -> Result<Document, ServiceError> {
        caller.needs(Scope::SubscribersWrite)?;
        let mut turn = self.turns.take(&id).await;
        loop {
            let present = self.find_subscription(id).await?;
            if revision.is_some_and(|requested| requested != present.revision) {
                return Err(ServiceError::Changed(format!("the subscription `{id}`")));
            }
            let mut merged = serde_json::to_value(self.shown(present.clone())).expect("a document is always JSON");
            merge(&mut merged, patch)?;
            let text = merged.to_string();
            let line: SubscriptionLine<'_> = serde_json::from_str(&text).map_err(|error| json_error(&error))?;
            let mut draft = Draft::from(line);
            // The stored state was merged, so an absent one was removed by the patch: it has its default again.
            draft.enabled.get_or_insert(true);
            let origin = ConsentActor::of(caller, ConsentMethod::Api).origin();
            match self.update_subscription(&present, draft, Precondition::Revision(present.revision), origin).await {
                Err(ServiceError::Changed(_)) if revision.is_none() => {
                    turn.repeat(format_args!("the subscription `{id}`"))?
                }
                updated => return self.subscription_stored(updated?).await,
            }
        }
    }

    /// Removes a subscription.
    ///
    /// # Errors
    /// There is none, or it has another revision than expected.
    pub async fn remove_subscription(
        &self,
        caller: &Caller,
        id: SubscriptionId,
        revision: Option<u64>,
    ) -> Result<(), ServiceError> {
        caller.needs(Scope::SubscribersWrite)?;
        let expect = revision.map_or(Precondition::Present, Precondition::Revision);
        let origin = ConsentActor::of(caller, ConsentMethod::Api).origin();
        let removal = RemoveSubscription { id, expect, now: self.clock.now() };
        self.subscription_store.remove_subscription_as(removal, origin).await?;
        Ok(())
    }

    pub(crate) async fn update_subscription(
        &self,
        present: &Subscription,
        draft: Draft<'_>,
        expect: Precondition,
        origin: ChangeOrigin,
    ) -> Result<Subscription, ServiceError> {
        let fixed = [
            ("application", draft.application.as_deref(), present.application.as_str()),
            ("class", draft.class.as_deref(), present.class.as_str()),
            ("subscriber", draft.subscriber.as_deref(), present.subscriber.as_str()),
        ];
        let mut problems: Vec<Problem> = fixed
            .iter()
            .filter(|(_, written, is)| written.is_some_and(|written| written != *is))
            .map(|(path, _, is)| {
                Problem::new(Code::ReadOnly, *path, "cannot change")
                    .hint(format!("it is `{is}`; make another subscription"))
            })
            .collect();
        if draft.key.is_some() && draft.key != present.key {
            problems.push(Problem::new(Code::ReadOnly, "key", "cannot change").hint("make another subscription"));
        }
        if let Some(given) = &draft.consent
            && Some(given.state) != present.consent
        {
            let hint = "request, confirm or withdraw it at `/v1/subscriptions/{id}/consent`";
            problems.push(Problem::new(Code::ReadOnly, "consent", "cannot change here").hint(hint));
        }
        if draft.enabled == Some(true) && present.consent.is_some_and(|state| !state.permits()) {
            let message = "needs the consent of the subscriber, which is not confirmed";
            let problem = Problem::new(Code::ConsentRequired, "enabled", message);
            problems.push(problem.hint("request the consent; its confirmation enables the subscription"));
        }
        if !problems.is_empty() {
            return Err(ServiceError::Invalid(problems));
        }
        let draft = Draft { consent: None, ..draft };
        let compiled = self.running(&present.application)?;
        let now = self.clock.now();
        let class = match Class::of(&compiled, present.class.as_str()) {
            Ok(class) => class.within(Used::of(&self.pipeline, &present.application)),
            Err(gone) => {
                let change = check_without_class(draft, present, gone).map_err(ServiceError::Invalid)?;
                let update = UpdateSubscription { id: present.id, change, expect, now };
                return self.store_change(update, origin).await;
            }
        };
        let draft = Draft { subscriber: Some(present.subscriber.as_str().to_owned().into()), key: None, ..draft };
        let basis = Basis::of(present, &class.fields)?;
        let checked = check_off_thread(draft, &class, &basis).await?.map_err(ServiceError::Invalid)?;
        // What it has counts already; only another filter needs room.
        let new = checked.within_limits(Some(present)).map_err(|problem| ServiceError::Invalid(vec![problem]))?;
        let change =
            SubscriptionChange { device: new.device, enabled: new.enabled, values: new.values, terms: new.terms };
        self.store_change(UpdateSubscription { id: present.id, change, expect, now }, origin).await
    }

    async fn store_change(
        &self,
        update: UpdateSubscription,
        origin: ChangeOrigin,
    ) -> Result<Subscription, ServiceError> {
        Ok(self.subscription_store.update_subscription_as(update, origin).await?)
    }

    fn class_of(&self, draft: &Draft<'_>) -> Result<Class, ServiceError> {
        let mut problems = Vec::new();
        let mut required = |path: &str, given: &Option<std::borrow::Cow<'_, str>>| match given {
            Some(given) => given.to_string(),
            None => {
                problems.push(Problem::new(Code::Required, path, "is required: give a string"));
                String::new()
            }
        };
        let application = required("application", &draft.application);
        let class = required("class", &draft.class);
        if !problems.is_empty() {
            return Err(ServiceError::Invalid(problems));
        }
        self.named_class(&application, &class)
    }

    /// The class of an application, both given in the body or query of a request.
    pub(crate) fn named_class(&self, application: &str, class: &str) -> Result<Class, ServiceError> {
        let compiled = match application.parse::<Name>().map(|name| self.running(&name)) {
            Ok(Ok(compiled)) => compiled,
            Ok(Err(error @ ServiceError::Full { .. })) => return Err(error),
            Ok(Err(_)) | Err(_) => {
                return Err(ServiceError::from(
                    Problem::new(Code::UnknownReference, "application", format!("`{application}` does not run here"))
                        .param("kind", "application")
                        .param("value", application.to_string()),
                ));
            }
        };
        let used = Used::of(&self.pipeline, &compiled.application.name);
        let class = Class::of(&compiled, class).map_err(|problem| ServiceError::Invalid(vec![problem]))?;
        Ok(class.within(used))
    }

    /// Returns the revision of a subscription, for a conditional change.
    ///
    /// # Errors
    /// The subscription does not exist.
    pub async fn subscription_revision(&self, caller: &Caller, id: SubscriptionId) -> Result<u64, ServiceError> {
        caller.needs(Scope::SubscribersWrite)?;
        Ok(self.find_subscription(id).await?.revision)
    }

    pub(crate) async fn find_subscription(&self, id: SubscriptionId) -> Result<Subscription, ServiceError> {
        self.subscription_store
            .subscription(id)
            .await?
            .ok_or_else(|| ServiceError::Missing(format!("the subscription `{id}`")))
    }
}
