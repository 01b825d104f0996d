//! Notifications: create, change, find, and send to one recipient or to all.

use std::{collections::HashSet, sync::Arc};

use serde_json::Value;
use tocsin_matching::filter::jmespath::NotifybcFilter;
use tocsin_notifybc::{
    configuration::MessageTemplate,
    merge::Context,
    notifications::{self, Change, Check, Dispatch, NotificationError, Recipient, Sending},
    query::{Filter, Where},
    record::{self, Collection, Document, HIDDEN_OF_NOTIFICATIONS, RecordId, date_text, notification_for_user, text},
};
use tocsin_store::{
    audit,
    records::{DocumentScan, KeyFilter, Precondition},
};

use super::{
    Notifybc, NotifybcError, RequestContext,
    dispatch::{HOST, channel_of, service_of, visible},
    documents::Record,
    sending::{MessageKind, is_push},
};

/// Subscriptions of a recipient read at a time.
const PAGE: usize = 1_000;

impl From<NotificationError> for NotifybcError {
    fn from(refusal: NotificationError) -> Self {
        match refusal {
            NotificationError::InvalidUser => NotifybcError::Refused(Some(refusal.to_string())),
            NotificationError::InvalidFilter => NotifybcError::Invalid(refusal.to_string()),
        }
    }
}

impl Notifybc {
    /// Creates a notification, and sends it unless it is in-app or its time has not come. Returns the record; that of a
    /// synchronous broadcast after its end.
    ///
    /// # Errors
    /// `Invalid`, or `Refused` without a recipient.
    pub async fn create_notification(
        self: &Arc<Self>,
        context: &RequestContext,
        body: Document,
    ) -> Result<Document, NotifybcError> {
        let body = visible(body);
        let id = self.new_id().to_string();
        let author = Self::author(context);
        let created = record::create(Collection::Notification, &id, body.clone(), self.now(), Some(&author));
        let record = self.checked(created.map_err(NotifybcError::from), body).await?;
        self.store_and_send(with_host(record, context), Precondition::Absent).await
    }

    /// Replaces a notification, and sends it like a new one.
    ///
    /// # Errors
    /// `Missing`; as [`create_notification`](Self::create_notification).
    pub async fn put_notification(
        self: &Arc<Self>,
        context: &RequestContext,
        id: &RecordId,
        body: Document,
    ) -> Result<(), NotifybcError> {
        let body = visible(body);
        let present = self.require(Collection::Notification, &id.to_string()).await?;
        let author = Self::author(context);
        let replaced =
            record::replace(Collection::Notification, &present.document, body.clone(), self.now(), Some(&author));
        let mut record = with_host(self.checked(replaced.map_err(NotifybcError::from), body).await?, context);
        keep_hidden(&present.document, &mut record);
        self.store_and_send(record, Precondition::Revision(present.revision)).await.map(|_| ())
    }

    /// Changes properties of a notification; a user changes the state of an in-app message.
    ///
    /// # Errors
    /// `Refused`, `Missing`, `Invalid`.
    pub async fn patch_notification(
        &self,
        context: &RequestContext,
        id: &RecordId,
        body: Document,
    ) -> Result<(), NotifybcError> {
        let (id, body) = (id.to_string(), visible(body));
        let present = self.read(Collection::Notification, &id).await?.map(|record| record.document);
        let decided = notifications::change(present.as_ref(), body.clone(), &context.identity, self.now());
        self.apply_change(context, &id, decided, |present| {
            notifications::change(Some(present), body.clone(), &context.identity, self.now())
        })
        .await
    }

    /// Marks a notification as deleted. A broadcast that is not done is cancelled.
    ///
    /// # Errors
    /// `Missing`, `Refused`.
    pub async fn delete_notification(&self, context: &RequestContext, id: &RecordId) -> Result<(), NotifybcError> {
        let id = id.to_string();
        let present = self.read(Collection::Notification, &id).await?.map(|record| record.document);
        let decided = notifications::deletion(present.as_ref(), &context.identity, self.now());
        self.apply_change(context, &id, decided, |present| {
            notifications::deletion(Some(present), &context.identity, self.now())
        })
        .await?;
        match present {
            Some(record) if context.identity.role.is_admin() && text(&record, "state") == Some("sending") => {
                self.cancel_broadcast(&record).await
            }
            _ => Ok(()),
        }
    }

    /// A notification in the view of the caller.
    ///
    /// # Errors
    /// The store is unavailable.
    pub async fn notification(
        &self,
        context: &RequestContext,
        id: &RecordId,
    ) -> Result<Option<Document>, NotifybcError> {
        let Some(found) = self.read(Collection::Notification, &id.to_string()).await? else { return Ok(None) };
        match context.identity.user() {
            None => Ok(Some(self.with_dispatch(found.document).await?)),
            Some(user) => {
                let is_theirs = record::is_user_notification(&found.document, user, &date_text(self.now()));
                Ok(is_theirs.then(|| visible(notification_for_user(found.document, user))))
            }
        }
    }

    /// The notifications of a filter in the view of the caller. The dispatch record of a very large broadcast is left
    /// out.
    ///
    /// # Errors
    /// The answer is too large, or the store is unavailable.
    pub async fn find_notifications(
        &self,
        context: &RequestContext,
        filter: Filter,
    ) -> Result<Vec<Document>, NotifybcError> {
        let view = self.notification_view(context)?;
        match context.identity.user() {
            None => self.list(Collection::Notification, filter, view, visible).await,
            Some(user) => {
                let project = |record| visible(notification_for_user(record, user));
                self.list(Collection::Notification, filter.without(&HIDDEN_OF_NOTIFICATIONS), view, project).await
            }
        }
    }

    /// Number of notifications of a condition in the view of the caller.
    ///
    /// # Errors
    /// The store is unavailable.
    pub async fn count_notifications(&self, context: &RequestContext, condition: Where) -> Result<u64, NotifybcError> {
        let view = self.notification_view(context)?;
        let condition = match context.identity.user() {
            None => condition,
            Some(_) => condition.without(&HIDDEN_OF_NOTIFICATIONS),
        };
        self.count(Collection::Notification, view.and(condition)).await
    }

    /// The condition of the notifications that the caller sees.
    fn notification_view(&self, context: &RequestContext) -> Result<Where, NotifybcError> {
        let Some(user) = context.identity.user() else { return Ok(Where::default()) };
        let now = date_text(self.now());
        let view = serde_json::json!({"$and": [
            {"channel": "inApp"},
            {"$or": [{"isBroadcast": true}, {"userId": user}, {"userChannelId": user}]},
            {"$or": [{"validTill": null}, {"validTill": {"$gte": now}}]},
            {"$or": [{"invalidBefore": null}, {"invalidBefore": {"$lte": now}}]},
            {"$or": [{"isBroadcast": {"$ne": true}}, {"deletedBy": {"$ne": user}}]},
        ]});
        Where::parse(Collection::Notification, &view).map_err(|error| NotifybcError::Internal(error.to_string()))
    }

    /// Sends a stored notification, as of now. For jobs: `record` is the stored one with changes.
    ///
    /// # Errors
    /// The record changes at the same time, or the store is unavailable.
    pub async fn send_stored(self: &Arc<Self>, record: Document) -> Result<Document, NotifybcError> {
        let id = text(&record, "id").unwrap_or_default().to_owned();
        let present = self.require(Collection::Notification, &id).await?;
        self.store_and_send(record, Precondition::Revision(present.revision)).await
    }

    /// The record after the checks that precede its storage, with the address of its recipient.
    async fn checked(
        &self,
        record: Result<Document, NotifybcError>,
        body: Document,
    ) -> Result<Document, NotifybcError> {
        let mut record = match record {
            Ok(record) => record,
            Err(invalid) => {
                // The recipient is checked before the properties.
                notifications::check(&record::with_defaults(Collection::Notification, body))?;
                return Err(invalid);
            }
        };
        match notifications::check(&record)? {
            Check::None => {}
            Check::Filter(filter) => {
                NotifybcFilter::compile(&filter).map_err(|_| NotificationError::InvalidFilter)?;
            }
            Check::Recipient(recipient) => {
                let found = self.subscription_of(&recipient).await?.ok_or(NotificationError::InvalidUser)?;
                if let Some(address) = found.get("userChannelId") {
                    record.insert("userChannelId".to_owned(), address.clone());
                }
            }
        }
        Ok(record)
    }

    /// The first confirmed subscription of a recipient.
    async fn subscription_of(&self, recipient: &Recipient) -> Result<Option<Document>, NotifybcError> {
        let filter = KeyFilter {
            services: Some(vec![recipient.service.clone()]),
            channels: Some(vec![recipient.channel.clone()]),
            states: Some(vec!["confirmed".to_owned()]),
            addresses: recipient.address.as_ref().map(|address| vec![address.to_lowercase()]),
            users: recipient.user.as_ref().map(|user| vec![user.clone()]),
            ..KeyFilter::default()
        };
        let mut after = None;
        loop {
            let scan =
                DocumentScan { collection: Collection::Subscription, filter: filter.clone(), after, limit: PAGE };
            let page = self.store.scan_documents(scan).await?;
            for stored in page.items {
                let found = Record::of(stored)?.document;
                if recipient.matches(&found) {
                    return Ok(Some(found));
                }
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(None),
            }
        }
    }

    /// Stores a record and sends it, also if the caller stops waiting.
    async fn store_and_send(
        self: &Arc<Self>,
        record: Document,
        expect: Precondition,
    ) -> Result<Document, NotifybcError> {
        let notifybc = self.clone();
        let sent = tokio::spawn(audit::inherit(async move {
            match notifications::sending(&record, notifybc.now()) {
                Sending::Later => {
                    notifybc.put(Collection::Notification, &record, expect).await?;
                    Ok(visible(record))
                }
                Sending::Unicast => notifybc.send_to_one(record, expect).await,
                sending => notifybc.send_to_all(record, expect, sending == Sending::BroadcastLater).await,
            }
        }));
        sent.await.map_err(|error| NotifybcError::Internal(format!("sending a notification failed: {error}")))?
    }

    async fn send_to_one(&self, mut record: Document, expect: Precondition) -> Result<Document, NotifybcError> {
        record.insert("state".to_owned(), "sending".into());
        self.put(Collection::Notification, &record, expect).await?;
        let address = text(&record, "userChannelId").unwrap_or_default().to_owned();
        let recipient = Recipient {
            service: service_of(&record).to_owned(),
            channel: channel_of(&record).to_owned(),
            address: Some(address.clone()),
            user: text(&record, "userId").map(str::to_owned),
        };
        let skips = record.get("skipSubscriptionConfirmationCheck").is_some_and(record::truthy);
        let subscription = if skips { None } else { self.subscription_of(&recipient).await? };
        let texts = record.get("message").and_then(Value::as_object).map(MessageTemplate::of).unwrap_or_default();
        let host = self.link_base(&record, "");
        let context = Context {
            subscription: subscription.as_ref(),
            notification: Some(&record),
            http_host: &host,
            rest_api_root: &self.configuration.rest_api_root,
            ignores_subscription_data: false,
        };
        let sent = self
            .send_message(MessageKind::Notification, channel_of(&record), &address, &texts, &context)
            .await
            .inspect_err(|error| {
                tracing::warn!(notification = text(&record, "id"), %error, "a notification was not sent");
            });
        let (id, now) = (text(&record, "id").unwrap_or_default().to_owned(), date_text(self.now()));
        let state = if sent.is_ok() { "sent" } else { "error" };
        let changed = self
            .change(Collection::Notification, &id, |present| {
                let mut changed = present.clone();
                changed.insert("state".to_owned(), state.into());
                changed.insert("updated".to_owned(), now.as_str().into());
                Ok(changed)
            })
            .await?;
        if sent.is_ok()
            && let Some(id) = subscription.as_ref().and_then(|subscription| text(subscription, "id"))
        {
            self.note_reached(&record, &HashSet::from([id])).await?;
        }
        Ok(visible(changed))
    }

    async fn send_to_all(
        self: &Arc<Self>,
        mut record: Document,
        expect: Precondition,
        is_later: bool,
    ) -> Result<Document, NotifybcError> {
        let given = Dispatch::of(&record);
        self.prepare_broadcast(&mut record).await?;
        self.put(Collection::Notification, &record, expect).await?;
        let id = text(&record, "id").unwrap_or_default().to_owned();
        if let Err(error) = self.start_broadcast(&record, &given).await {
            self.change(Collection::Notification, &id, |present| {
                let mut changed = present.clone();
                changed.insert("state".to_owned(), "error".into());
                Ok(changed)
            })
            .await?;
            return Err(error);
        }
        let finishing = self.finish_later(id);
        if is_later {
            return Ok(visible(record));
        }
        let finished = finishing.await;
        let finished = finished.map_err(|error| NotifybcError::Internal(format!("a broadcast failed: {error}")))??;
        Ok(visible(finished))
    }

    /// Applies a decided change. The decision is made again if the record changes at the same time.
    async fn apply_change(
        &self,
        context: &RequestContext,
        id: &str,
        decided: Change,
        decide: impl Fn(&Document) -> Change,
    ) -> Result<(), NotifybcError> {
        match decided {
            Change::Refused => return Err(NotifybcError::Refused(None)),
            Change::Missing => return Err(NotifybcError::Missing),
            Change::Nothing => return Ok(()),
            Change::Set(_) => {}
        }
        let author = Self::author(context);
        self.change(Collection::Notification, id, |present| match decide(present) {
            Change::Set(changes) => {
                Ok(record::patch(Collection::Notification, present, changes, self.now(), Some(&author))?)
            }
            Change::Nothing => Ok(present.clone()),
            Change::Refused => Err(NotifybcError::Refused(None)),
            Change::Missing => Err(NotifybcError::Missing),
        })
        .await
        .map(|_| ())
    }
}

/// Keeps the base of the links of a request, for messages that are sent later.
fn with_host(mut record: Document, context: &RequestContext) -> Document {
    if is_push(channel_of(&record)) {
        record.insert(HOST.to_owned(), context.base_url.as_str().into());
    }
    record
}

/// Takes hidden properties over that the new record lacks.
fn keep_hidden(present: &Document, record: &mut Document) {
    for (name, value) in present {
        if name.starts_with(notifications::INTERNAL_PREFIX) && !record.contains_key(name) {
            record.insert(name.clone(), value.clone());
        }
    }
}
