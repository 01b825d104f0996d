//! Subscription workflow: create, change, verify, unsubscribe, undo.
//!
//! The decisions are those of `tocsin_notifybc::subscriptions`. Codes that a caller gives are counted as attempts until
//! they prove right.

use std::sync::Arc;

use ring::rand::{SecureRandom, SystemRandom};
use serde_json::Value;
use tocsin_matching::filter::jmespath::NotifybcFilter;
use tocsin_notifybc::{
    configuration::SubscriptionConfiguration,
    identity::Role,
    merge::{Context, http_host},
    query::{Filter, Where},
    record::{self, CastError, Collection, Document, HIDDEN_OF_SUBSCRIPTIONS, RecordId, subscription_for_user, text},
    subscriptions::{self, Additional, Answer, CreateError, Request, SwiftTarget, UnsubscribeQuery},
};
use tocsin_store::{
    error::StoreError,
    records::{DocumentScan, KeyFilter, Precondition},
};

use super::{
    Notifybc, NotifybcError, RequestContext,
    documents::Record,
    sending::{MessageKind, Undelivered},
};

/// Documents of a page of the store.
const PAGE: usize = 1_000;
/// Most subscriptions of one address that an unsubscription or replacement changes.
const SAME_ADDRESS_MAX: usize = 10_000;

impl From<CreateError> for NotifybcError {
    fn from(error: CreateError) -> Self {
        match error {
            CreateError::Code(_) => NotifybcError::Internal(error.to_string()),
            other => NotifybcError::Invalid(other.to_string()),
        }
    }
}

impl From<CastError> for NotifybcError {
    fn from(error: CastError) -> Self {
        NotifybcError::Invalid(error.to_string())
    }
}

impl From<Undelivered> for NotifybcError {
    fn from(error: Undelivered) -> Self {
        NotifybcError::Internal(format!("the message was not delivered: {error}"))
    }
}

impl Notifybc {
    /// Creates a subscription, and sends its confirmation request.
    ///
    /// # Errors
    /// The body is invalid, or the message is refused; then the record exists.
    pub async fn create_subscription(
        &self,
        context: &RequestContext,
        body: Document,
    ) -> Result<Document, NotifybcError> {
        check_filter(&body)?;
        let configuration = self.subscription_configuration(service_of(&body)).await?;
        let decrypted = self.decrypted(&body).await?;
        let decrypted = decrypted.as_ref().map(|(address, code)| (address.as_str(), code.as_str()));
        let request = self.request(context, &configuration, decrypted);
        let id = self.new_id().to_string();
        let created = subscriptions::create(body, &id, &request)?;
        self.insert(Collection::Subscription, &created).await?;
        self.send_confirmation(context, &configuration, &created).await?;
        Ok(shown(context, created))
    }

    /// Changes the address and the data of a subscription. A new address is confirmed first.
    ///
    /// # Errors
    /// The caller does not see it, a value is invalid, or the message is refused; then the record is changed.
    pub async fn patch_subscription(
        &self,
        context: &RequestContext,
        id: &RecordId,
        body: Document,
    ) -> Result<Document, NotifybcError> {
        check_filter(&body)?;
        let id = id.to_string();
        let visible = self.visible(context, &id).await?;
        let configuration = self.subscription_configuration(service_of(&visible.document)).await?;
        let changed = self
            .change(Collection::Subscription, &id, |document| {
                // It may have been unsubscribed since.
                if !subscriptions::is_visible(document, &context.identity) {
                    return Err(NotifybcError::Missing);
                }
                let request = self.request(context, &configuration, None);
                Ok(subscriptions::patch(document, &body, &request)?)
            })
            .await?;
        self.send_confirmation(context, &configuration, &changed).await?;
        Ok(shown(context, changed))
    }

    /// Replaces a subscription. No message is sent.
    ///
    /// # Errors
    /// It does not exist, or the body is invalid.
    pub async fn put_subscription(
        &self,
        context: &RequestContext,
        id: &RecordId,
        body: Document,
    ) -> Result<Document, NotifybcError> {
        check_filter(&body)?;
        let author = Self::author(context);
        let collection = Collection::Subscription;
        self.change(collection, &id.to_string(), |document| {
            Ok(record::replace(collection, document, body.clone(), self.now(), Some(&author))?)
        })
        .await
    }

    /// Subscriptions of a filter that the caller sees.
    ///
    /// # Errors
    /// The store is unavailable, or the answer is too large.
    pub async fn find_subscriptions(
        &self,
        context: &RequestContext,
        filter: Filter,
    ) -> Result<Vec<Document>, NotifybcError> {
        let filter = match context.identity.role.is_admin() {
            true => filter,
            false => filter.without(&HIDDEN_OF_SUBSCRIPTIONS),
        };
        self.list(Collection::Subscription, filter, view(context), |document| shown(context, document)).await
    }

    /// Number of subscriptions of a condition that the caller sees.
    ///
    /// # Errors
    /// The store is unavailable.
    pub async fn count_subscriptions(&self, context: &RequestContext, condition: Where) -> Result<u64, NotifybcError> {
        let condition = match context.identity.role.is_admin() {
            true => condition,
            false => condition.without(&HIDDEN_OF_SUBSCRIPTIONS),
        };
        self.count(Collection::Subscription, view(context).and(condition)).await
    }

    /// Services of confirmed subscriptions.
    ///
    /// # Errors
    /// The store is unavailable.
    pub async fn subscription_services(&self, _: &RequestContext) -> Result<Vec<String>, NotifybcError> {
        Ok(self.store.confirmed_services().await?)
    }

    /// Confirms a subscription by its code. With `replace`, it replaces confirmed ones of the same address and service.
    ///
    /// # Errors
    /// The caller does not see it, or gave too many wrong codes.
    pub async fn verify_subscription(
        &self,
        context: &RequestContext,
        id: &RecordId,
        code: Option<&str>,
        replace: bool,
    ) -> Result<Answer, NotifybcError> {
        let id = id.to_string();
        let record = self.visible(context, &id).await?.document;
        let configuration = self.subscription_configuration(service_of(&record)).await?;
        let is_permitted = self.attempt(context, &id, || subscriptions::may_verify(&record, code))?;
        if is_permitted {
            let (now, author) = (self.now(), Self::author(context));
            if replace {
                let states = Some(vec!["confirmed".to_owned()]);
                let services = Some(vec![service_of(&record).to_owned()]);
                for other in self.of_same_address(&record, services, states).await? {
                    if subscriptions::is_duplicate(&record, &other.document) {
                        self.set_deleted(other.id(), &author).await?;
                    }
                }
            }
            let verified = self.change(Collection::Subscription, &id, |document| {
                match subscriptions::may_verify(document, code) {
                    true => Ok(subscriptions::confirmed(document.clone(), now, Some(&author))),
                    false => Err(NotifybcError::Refused(None)),
                }
            });
            verified.await?;
        }
        Ok(subscriptions::verification_answer(&configuration, &record, is_permitted))
    }

    /// Unsubscribes, also from additional services of the same address, and sends the acknowledgement.
    ///
    /// # Errors
    /// The caller does not see the record, or gave too many wrong codes.
    pub async fn unsubscribe(
        &self,
        context: &RequestContext,
        id: &RecordId,
        query: &UnsubscribeQuery,
    ) -> Result<Answer, NotifybcError> {
        let (is_permitted, record, configuration) = self.try_unsubscribe(context, id, query).await?;
        Ok(subscriptions::unsubscription_answer(&configuration, &record, is_permitted))
    }

    /// Unsubscribes if the caller may. Returns whether it did, the former record, and the configuration of its service.
    pub(super) async fn try_unsubscribe(
        &self,
        context: &RequestContext,
        id: &RecordId,
        query: &UnsubscribeQuery,
    ) -> Result<(bool, Document, Arc<SubscriptionConfiguration>), NotifybcError> {
        let id = id.to_string();
        let record = self.visible(context, &id).await?;
        let configuration = self.subscription_configuration(service_of(&record.document)).await?;
        let (code, address) = (query.code.as_deref(), query.address.as_deref());
        let is_permitted = self.attempt(context, &id, || {
            subscriptions::may_unsubscribe(&record.document, &context.identity, code, address)
        })?;
        if is_permitted {
            let unsubscribed = self.set_unsubscribed(context, &record, &query.additional).await?;
            self.acknowledge(context, &configuration, &unsubscribed).await;
        }
        Ok((is_permitted, record.document, configuration))
    }

    /// Whether a GET of an unsubscription link shows a page first, by the configuration of the record's service.
    ///
    /// # Errors
    /// The caller does not see the record.
    pub async fn confirms_get(&self, context: &RequestContext, id: &RecordId) -> Result<bool, NotifybcError> {
        let record = self.visible(context, &id.to_string()).await?.document;
        Ok(self.subscription_configuration(service_of(&record)).await?.confirms_get)
    }

    /// Undoes an unsubscription, with its additional services.
    ///
    /// # Errors
    /// The caller does not see the record, or gave too many wrong codes.
    pub async fn undo_unsubscription(
        &self,
        context: &RequestContext,
        id: &RecordId,
        code: Option<&str>,
    ) -> Result<Answer, NotifybcError> {
        let id = id.to_string();
        let record = self.require(Collection::Subscription, &id).await?.document;
        if !subscriptions::is_owned(&record, &context.identity) {
            return Err(NotifybcError::Missing);
        }
        let configuration = self.subscription_configuration(service_of(&record)).await?;
        let is_permitted = self.attempt(context, &id, || subscriptions::may_undo(&record, &context.identity, code))?;
        if is_permitted {
            let (now, author) = (self.now(), Self::author(context));
            let others = subscriptions::undone_ids(&record);
            let undone = |document: &Document| Ok(subscriptions::undone(document.clone(), now, Some(&author)));
            self.change(Collection::Subscription, &id, undone).await?;
            for other in others {
                let confirmed =
                    |document: &Document| Ok(subscriptions::confirmed(document.clone(), now, Some(&author)));
                match self.change(Collection::Subscription, &other, confirmed).await {
                    // A purged record stays gone.
                    Ok(_) | Err(NotifybcError::Missing) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(subscriptions::undo_answer(&configuration, &record, is_permitted))
    }

    /// Unsubscribes by the keyword of an SMS, which the gateway Swift posts.
    ///
    /// # Errors
    /// Swift is not the provider, or the key is wrong.
    pub async fn swift(&self, context: &RequestContext, body: Document) -> Result<Answer, NotifybcError> {
        let target = subscriptions::swift_target(&self.configuration.sms, &body)?;
        let target = target.ok_or(NotifybcError::Refused(None))?;
        let Some(record) = self.swift_subscription(&target).await? else {
            return Ok(Answer::Text { status: 200, text: "ok".to_owned() });
        };
        let id = RecordId::parse(record.id(), Collection::Subscription)?;
        let query = UnsubscribeQuery {
            code: text(&record.document, "unsubscriptionCode").map(str::to_owned),
            address: None,
            additional: Additional::None,
        };
        self.unsubscribe(context, &id, &query).await
    }

    async fn swift_subscription(&self, target: &SwiftTarget) -> Result<Option<Record>, NotifybcError> {
        let digits = match target {
            SwiftTarget::Reference(id) => {
                let record = self.read(Collection::Subscription, &id.to_string()).await?;
                return Ok(record.filter(|record| target.matches(&record.document)));
            }
            SwiftTarget::Phone(digits) => digits,
        };
        let filter = |addresses: Option<Vec<String>>| KeyFilter {
            channels: Some(vec!["sms".to_owned()]),
            states: Some(vec!["confirmed".to_owned()]),
            addresses,
            ..KeyFilter::default()
        };
        // Usual spellings are found by the index, others by reading all.
        let mut spellings = vec![digits.clone(), format!("1{digits}"), format!("+1{digits}"), format!("+{digits}")];
        if let (Some(area), Some(exchange), Some(line)) = (digits.get(..3), digits.get(3..6), digits.get(6..)) {
            spellings.extend(["", "1-", "+1-"].map(|country| format!("{country}{area}-{exchange}-{line}")));
        }
        for filter in [filter(Some(spellings)), filter(None)] {
            let mut found = None;
            self.scan(filter, |record| {
                let matches = target.matches(&record.document);
                if matches {
                    found = Some(record);
                }
                !matches
            })
            .await?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Passes subscriptions to a function until it returns `false`.
    async fn scan(&self, filter: KeyFilter, mut take: impl FnMut(Record) -> bool) -> Result<(), NotifybcError> {
        let mut after = None;
        loop {
            let scan =
                DocumentScan { collection: Collection::Subscription, filter: filter.clone(), after, limit: PAGE };
            let page = self.store.scan_documents(scan).await?;
            for stored in page.items {
                if !take(Record::of(stored)?) {
                    return Ok(());
                }
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(()),
            }
        }
    }

    /// Subscriptions of the channel and address of a record, letter case aside.
    async fn of_same_address(
        &self,
        record: &Document,
        services: Option<Vec<String>>,
        states: Option<Vec<String>>,
    ) -> Result<Vec<Record>, NotifybcError> {
        let Some(address) = text(record, "userChannelId") else { return Ok(Vec::new()) };
        let filter = KeyFilter {
            addresses: Some(vec![address.to_lowercase()]),
            channels: Some(vec![text(record, "channel").unwrap_or_default().to_owned()]),
            services,
            states,
            ..KeyFilter::default()
        };
        let mut found = Vec::new();
        self.scan(filter, |record| {
            found.push(record);
            found.len() < SAME_ADDRESS_MAX
        })
        .await?;
        Ok(found)
    }

    /// Stores an unsubscription and those of the additional services in one commit. Returns the unsubscribed record.
    pub(super) async fn set_unsubscribed(
        &self,
        context: &RequestContext,
        record: &Record,
        additional: &Additional,
    ) -> Result<Document, NotifybcError> {
        let (now, author) = (self.now(), Self::author(context));
        let services = match additional {
            Additional::Services(names) => Some(names.clone()),
            Additional::None | Additional::All => None,
        };
        let others = match additional {
            Additional::None => Vec::new(),
            _ => self.of_same_address(&record.document, services, None).await?,
        };
        let others: Vec<Record> = others
            .into_iter()
            .filter(|other| additional.includes(&record.document, &other.document, &context.identity))
            .collect();
        let documents: Vec<Document> = others.iter().map(|other| other.document.clone()).collect();
        let unsubscribed = |document: &Document| {
            subscriptions::unsubscribed(document.clone(), additional, &documents, now, Some(&author))
        };
        let changed = unsubscribed(&record.document);
        let mut puts =
            vec![self.prepared(Collection::Subscription, &changed, Precondition::Revision(record.revision))?];
        let others: Vec<&Record> = others.iter().filter(|other| other.id() != record.id()).collect();
        for other in &others {
            let deleted = subscriptions::deleted(other.document.clone(), now, Some(&author));
            puts.push(self.prepared(Collection::Subscription, &deleted, Precondition::Revision(other.revision))?);
        }
        let ids = std::iter::once(record).chain(others).map(Record::id);
        let written = self.store.put_documents(puts, now).await?;
        let mut stored = changed;
        for (place, (id, written)) in ids.zip(written).enumerate() {
            match written {
                Ok(_) => {}
                // Another request changed it after it was read.
                Err(StoreError::Changed(_)) if place == 0 => {
                    stored = self
                        .change(Collection::Subscription, id, |document| match text(document, "state") {
                            Some("confirmed") => Ok(unsubscribed(document)),
                            _ => Err(NotifybcError::Refused(None)),
                        })
                        .await?;
                }
                Err(StoreError::Changed(_)) => self.set_deleted(id, &author).await?,
                Err(StoreError::Missing(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(stored)
    }

    async fn set_deleted(&self, id: &str, author: &Value) -> Result<(), NotifybcError> {
        let deleted = |document: &Document| Ok(subscriptions::deleted(document.clone(), self.now(), Some(author)));
        match self.change(Collection::Subscription, id, deleted).await {
            Ok(_) | Err(NotifybcError::Missing) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Sends the message after a POST or PATCH, if there is one.
    async fn send_confirmation(
        &self,
        context: &RequestContext,
        configuration: &SubscriptionConfiguration,
        record: &Document,
    ) -> Result<(), NotifybcError> {
        if !subscriptions::is_confirmation_sent(record) {
            return Ok(());
        }
        let mut is_duplicate = false;
        if configuration.detects_duplicates {
            let services = Some(vec![service_of(record).to_owned()]);
            let states = Some(vec!["confirmed".to_owned()]);
            let others = self.of_same_address(record, services, states).await?;
            is_duplicate = others.iter().any(|other| subscriptions::is_duplicate(record, &other.document));
        }
        let Some(texts) = subscriptions::confirmation(configuration, record, is_duplicate) else { return Ok(()) };
        let host = http_host(None, self.configuration.http_host.as_deref(), &context.base_url);
        let values = Context {
            subscription: Some(record),
            notification: None,
            http_host: &host,
            rest_api_root: &self.configuration.rest_api_root,
            ignores_subscription_data: true,
        };
        let (channel, address) = recipient(record);
        Ok(self.send_message(MessageKind::Confirmation, channel, address, &texts, &values).await?)
    }

    /// Sends the acknowledgement of an unsubscription, if there is one. A failure is logged only.
    pub(super) async fn acknowledge(
        &self,
        context: &RequestContext,
        configuration: &SubscriptionConfiguration,
        record: &Document,
    ) {
        let Some(texts) = subscriptions::unsubscription_acknowledgement(configuration, record) else { return };
        let host = http_host(None, self.configuration.http_host.as_deref(), &context.base_url);
        let values = Context {
            subscription: Some(record),
            notification: None,
            http_host: &host,
            rest_api_root: &self.configuration.rest_api_root,
            ignores_subscription_data: false,
        };
        let (channel, address) = recipient(record);
        let sent = self.send_message(MessageKind::Acknowledgement, channel, address, texts, &values).await;
        if let Err(error) = sent {
            let id = text(record, "id").unwrap_or_default();
            tracing::warn!(subscription = id, %error, "the acknowledgement of an unsubscription was not delivered");
        }
    }

    /// A record that the caller sees.
    async fn visible(&self, context: &RequestContext, id: &str) -> Result<Record, NotifybcError> {
        let record = self.require(Collection::Subscription, id).await?;
        match subscriptions::is_visible(&record.document, &context.identity) {
            true => Ok(record),
            false => Err(NotifybcError::Missing),
        }
    }

    /// Compares a code that the caller gives. A wrong one counts, except those of admins.
    fn attempt(
        &self,
        context: &RequestContext,
        id: &str,
        is_right: impl FnOnce() -> bool,
    ) -> Result<bool, NotifybcError> {
        if context.identity.role != Role::Anonymous {
            return Ok(is_right());
        }
        self.guesses.count(id, context.address, self.now())?;
        let is_right = is_right();
        if is_right {
            self.guesses.forgive(id, context.address);
        }
        Ok(is_right)
    }

    /// Address and code of an encrypted confirmation.
    async fn decrypted(&self, body: &Document) -> Result<Option<(String, String)>, NotifybcError> {
        let Some(encrypted) = subscriptions::encrypted_code(body) else { return Ok(None) };
        let (key, encrypted) = (self.private_key().await?, encrypted.to_owned());
        let decrypted = tokio::task::spawn_blocking(move || key.decrypt(&encrypted)).await;
        let decrypted = decrypted.map_err(|error| NotifybcError::Internal(format!("decryption failed: {error}")))?;
        let decrypted = decrypted
            .map_err(|problem| NotifybcError::Invalid(format!("confirmationCodeEncrypted: {}", problem.message)))?;
        Ok(Some((decrypted.address, decrypted.code)))
    }

    fn request<'r>(
        &self,
        context: &'r RequestContext,
        configuration: &'r SubscriptionConfiguration,
        decrypted: Option<(&'r str, &'r str)>,
    ) -> Request<'r> {
        Request { identity: &context.identity, configuration, now: self.now(), decrypted, random: &random }
    }
}

/// A random number for codes.
fn random() -> u64 {
    let mut bytes = [0; 8];
    SystemRandom::new().fill(&mut bytes).expect("the system has randomness");
    u64::from_le_bytes(bytes)
}

/// The view of a caller.
fn view(context: &RequestContext) -> Where {
    context.identity.user().map(Where::subscriptions_of).unwrap_or_default()
}

/// A record as the caller sees it.
fn shown(context: &RequestContext, document: Document) -> Document {
    match context.identity.role.is_admin() {
        true => document,
        false => subscription_for_user(document),
    }
}

fn service_of(record: &Document) -> &str {
    text(record, "serviceName").unwrap_or_default()
}

/// Channel and address of a record. An unknown channel is mail.
fn recipient(record: &Document) -> (&str, &str) {
    let channel = if text(record, "channel") == Some("sms") { "sms" } else { "email" };
    (channel, text(record, "userChannelId").unwrap_or_default())
}

fn check_filter(body: &Document) -> Result<(), NotifybcError> {
    match subscriptions::broadcast_filter(body, "broadcastPushNotificationFilter")? {
        Some(filter) if NotifybcFilter::compile(filter).is_err() => Err(CreateError::Filter.into()),
        _ => Ok(()),
    }
}
