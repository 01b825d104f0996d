//! Broadcasts of notifications. Each is a native broadcast, which is matched, sent, retried and resumed by the
//! platform. Its results by recipient are the dispatch record of the notification.
//!
//! The key of the native broadcast derives from the notification, so a repeated start after a crash finds it.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use serde_json::{Map, Value, json};
use tocsin_model::{
    broadcast::{BroadcastDraft, LISTED_MAX},
    id::{BroadcastId, NotificationBatchId, SubscriptionId},
    notifybc::{APPLICATION, CLASS, name},
    receipt::{Attempt, Outcome},
};
use tocsin_notifybc::{
    configuration::MessageTemplate,
    notifications::{Dispatch, callback_url},
    record::{Collection, Document, date_text, text},
};
use tocsin_store::{
    error::StoreError,
    journal::{BroadcastChange, BroadcastFilter, BroadcastState, NewBroadcast, RequestedState},
    records::{DocumentScan, KeyFilter},
};

use super::{
    Notifybc, NotifybcError,
    definition::{EVENT_CLASS, MESSAGE_CLASS},
    sending::Undelivered,
};

/// Number of the native broadcasts of a notification. A hidden property.
const RUN: &str = "tocsinRun";
/// Base of the links of a notification that gives none. A hidden property.
pub(super) const HOST: &str = "tocsinHost";
/// Whether the dispatch record is not part of the document, but read from the results. A hidden property.
const READ_RESULTS: &str = "tocsinReadsResults";
/// Most candidates whose dispatch record is part of the document. It is rewritten with each change.
const STORED_MAX: usize = 10_000;
/// Documents read at a time.
const PAGE: usize = 10_000;
/// Notification batches read at a time.
const BATCHES: usize = 16;
/// Addresses read at a time.
const ADDRESSES: usize = 1_000;

/// Results of a native broadcast.
#[derive(Default)]
struct Results {
    delivered: Vec<SubscriptionId>,
    failed: Vec<(SubscriptionId, String)>,
}

impl Notifybc {
    /// Prepares a record for its broadcast: state, number and candidates.
    pub(super) async fn prepare_broadcast(&self, record: &mut Document) -> Result<(), NotifybcError> {
        let run = record.get(RUN).and_then(Value::as_u64).unwrap_or(0) + 1;
        record.insert(RUN.to_owned(), run.into());
        record.insert("state".to_owned(), "sending".into());
        record.shift_remove(READ_RESULTS);
        let given = Dispatch::of(record);
        if !given.candidates.is_empty() {
            return Ok(());
        }
        let candidates = self.confirmed_ids(record, STORED_MAX + 1).await?;
        if candidates.len() > STORED_MAX {
            record.insert(READ_RESULTS.to_owned(), true.into());
            return Ok(());
        }
        let dispatch = record.entry("dispatch").or_insert_with(|| Value::Object(Map::new()));
        match dispatch {
            Value::Object(dispatch) => drop(dispatch.insert("candidates".to_owned(), json!(candidates))),
            other => *other = json!({"candidates": candidates}),
        }
        Ok(())
    }

    /// Starts the native broadcast of a stored record, unless it exists. `given` is the dispatch record before
    /// [`prepare_broadcast`](Self::prepare_broadcast).
    pub(super) async fn start_broadcast(&self, record: &Document, given: &Dispatch) -> Result<(), NotifybcError> {
        let mut draft = self.broadcast_draft(record, given)?;
        draft.subscriptions = self.candidate_numbers(record).await?;
        let running = self.service.running(&name(APPLICATION))?;
        self.service.pipeline.compile_broadcast(draft.clone(), &running).map_err(|problems| {
            let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
            NotifybcError::Invalid(problems.join("; "))
        })?;
        let now = self.now();
        let new = NewBroadcast {
            key: broadcast_key(record),
            application: name(APPLICATION),
            draft: serde_json::to_string(&draft).map_err(|error| NotifybcError::Internal(error.to_string()))?,
            by: APPLICATION.to_owned(),
            created_at: now,
            starts_at: now,
        };
        self.service.pipeline.put_broadcast(new).await?;
        metrics::counter!("tocsin_notifybc_broadcasts_total").increment(1);
        Ok(())
    }

    /// The native subscriptions of the candidates, so that a small audience is read without all others. `None` if the
    /// record lists no candidates, or too many.
    async fn candidate_numbers(&self, record: &Document) -> Result<Option<BTreeSet<SubscriptionId>>, NotifybcError> {
        let is_listed = record.get("dispatch").and_then(|dispatch| dispatch.get("candidates")).is_some();
        let candidates = Dispatch::of(record).candidates;
        if !is_listed || candidates.len() > LISTED_MAX {
            return Ok(None);
        }
        let mut numbers = BTreeSet::new();
        for ids in candidates.chunks(ADDRESSES) {
            let found = self.store.documents_of(Collection::Subscription, ids).await?;
            numbers.extend(found.into_iter().flatten().filter_map(|stored| stored.number));
        }
        Ok(Some(numbers))
    }

    fn broadcast_draft(&self, record: &Document, given: &Dispatch) -> Result<BroadcastDraft, NotifybcError> {
        let (service, channel) = (service_of(record), channel_of(record));
        let host = self.link_base(record, "");
        let texts = record.get("message").and_then(Value::as_object).map(MessageTemplate::of).unwrap_or_default();
        let mut data = json!({
            "id": text(record, "id"),
            "service": service,
            "http_host": host,
            "rest_api_root": self.configuration.rest_api_root,
        });
        if let Some(own @ Value::Object(_)) = record.get("data") {
            data["data"] = own.clone();
        }
        let mut conditions =
            vec![format!("sub.service == {}", json!(service)), format!("sub.channel == {}", json!(channel))];
        let members = |ids: &mut dyn Iterator<Item = &str>| {
            Value::Object(ids.map(|id| (id.to_owned(), Value::Bool(true))).collect())
        };
        let done = given.done();
        if !done.is_empty() {
            data["without"] = members(&mut done.iter().copied());
            conditions.push("!(sub.id in event.without)".to_owned());
        }
        if !given.candidates.is_empty() {
            data["only"] = members(&mut given.candidates.iter().map(String::as_str));
            conditions.push("sub.id in event.only".to_owned());
        }
        let mut draft = json!({
            "application": APPLICATION,
            "title": service,
            "subscription": CLASS,
            "when": conditions.join(" && "),
            "per": "subscription",
            "event_class": EVENT_CLASS,
            "data": data,
            "class": MESSAGE_CLASS,
            "content": self.broadcast_content(channel, &texts, &host, service),
        });
        if let Some(filter) = text(record, "broadcastPushNotificationSubscriptionFilter") {
            draft["subscription_filter"] = json!({"dialect": "notifybc", "text": filter});
        }
        serde_json::from_value(draft).map_err(|error| NotifybcError::Internal(error.to_string()))
    }

    /// The base of the links of a notification.
    pub(super) fn link_base(&self, record: &Document, request: &str) -> String {
        let stored = text(record, HOST).unwrap_or(request);
        tocsin_notifybc::merge::http_host(Some(record), self.configuration.http_host.as_deref(), stored)
    }

    /// Waits for the end of the broadcast of a record, and stores its results. Returns the record with its whole
    /// dispatch record.
    pub(super) async fn finish_broadcast(&self, id: &str) -> Result<Document, NotifybcError> {
        let started = self.require(Collection::Notification, id).await?.document;
        let Some(broadcast) = self.native_broadcast(&started).await? else {
            return Err(NotifybcError::Internal(format!("the notification {id} has no broadcast")));
        };
        let ended = self.service.pipeline.ended_broadcast(broadcast).await?;
        let state = ended.as_ref().map(|(ended, _)| ended.state);
        if let Some((ended, _)) = ended.as_ref().filter(|(ended, _)| ended.state == BroadcastState::Failed) {
            tracing::error!(notification = id, broadcast = %broadcast, reason = ended.reason, "a broadcast failed");
        }
        let dispatch = self.dispatch_of(&started, broadcast, state == Some(BroadcastState::Running)).await?;
        let email = &self.configuration.email;
        let options = &self.configuration.notification;
        let value = dispatch
            .to_value(options.is_guaranteed || email.bounce.is_enabled, options.is_guaranteed && options.logs_skipped);
        let now = date_text(self.now());
        let finished = self
            .change(Collection::Notification, id, |present| {
                let mut record = present.clone();
                // A notification that was deleted or sent again meanwhile keeps its state.
                let is_same = present.get(RUN) == started.get(RUN);
                if is_same && matches!(text(present, "state"), Some("new" | "sending")) {
                    let word = if state == Some(BroadcastState::Failed) { "error" } else { "sent" };
                    record.insert("state".to_owned(), word.into());
                    record.insert("updated".to_owned(), now.as_str().into());
                }
                if is_same {
                    if !present.contains_key(READ_RESULTS) && dispatch.candidates.len() <= STORED_MAX {
                        record.insert("dispatch".to_owned(), value.clone());
                    } else {
                        record.insert(READ_RESULTS.to_owned(), true.into());
                        record.shift_remove("dispatch");
                    }
                }
                Ok(record)
            })
            .await?;
        let reached: HashSet<&str> = dispatch.successful.iter().map(String::as_str).collect();
        self.note_reached(&started, &reached).await?;
        let mut finished = finished;
        finished.insert("dispatch".to_owned(), value);
        Ok(finished)
    }

    /// Finishes a broadcast in the background of the caller, and calls its URL.
    pub(super) fn finish_later(
        self: &Arc<Self>,
        id: String,
    ) -> tokio::task::JoinHandle<Result<Document, NotifybcError>> {
        let notifybc = self.clone();
        tokio::spawn(async move {
            let finished = notifybc.finish_broadcast(&id).await;
            match &finished {
                Ok(record) => {
                    if let Some(url) = callback_url(record) {
                        let body = Value::Object(visible(record.clone()));
                        if let Err(error) = notifybc.call_back(url, &body).await {
                            tracing::warn!(notification = id, %error, "the URL of a notification was not called");
                        }
                    }
                }
                Err(error) => tracing::error!(notification = id, %error, "the results of a broadcast are not stored"),
            }
            finished
        })
    }

    /// Continues broadcasts whose end the process did not see, for example because it ended before.
    pub async fn resume_broadcasts(self: &Arc<Self>) -> Result<usize, NotifybcError> {
        let filter = KeyFilter { states: Some(vec!["sending".to_owned()]), ..KeyFilter::default() };
        let mut after = None;
        let mut count = 0;
        loop {
            let scan =
                DocumentScan { collection: Collection::Notification, filter: filter.clone(), after, limit: PAGE };
            let page = self.store.scan_documents(scan).await?;
            for stored in page.items {
                let record = super::documents::Record::of(stored)?.document;
                let Some(id) = text(&record, "id").map(str::to_owned) else { continue };
                match record.contains_key(RUN) {
                    true => {
                        // The process may have ended before the native broadcast was stored.
                        if self.native_broadcast(&record).await?.is_none() {
                            let stored = Dispatch { candidates: Vec::new(), ..Dispatch::of(&record) };
                            self.start_broadcast(&record, &stored).await?;
                        }
                        drop(self.finish_later(id));
                        count += 1;
                    }
                    // The answer to a message to one recipient is unknown.
                    false if record.get("isBroadcast") != Some(&Value::Bool(true)) => {
                        self.change(Collection::Notification, &id, |present| {
                            let mut record = present.clone();
                            record.insert("state".to_owned(), "error".into());
                            Ok(record)
                        })
                        .await?;
                    }
                    // A record of another installation is sent by the job that sends them again.
                    false => {}
                }
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(count),
            }
        }
    }

    /// Cancels the broadcast of a record, if it has one that is not done.
    pub(super) async fn cancel_broadcast(&self, record: &Document) -> Result<(), NotifybcError> {
        let Some(broadcast) = self.native_broadcast(record).await? else { return Ok(()) };
        let change = BroadcastChange {
            to: RequestedState::Cancelled,
            by: APPLICATION.to_owned(),
            reason: Some("the notification was deleted".to_owned()),
            now: self.now(),
        };
        match self.service.pipeline.change_broadcast(broadcast, change).await {
            Ok(_) | Err(StoreError::Missing(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The record of an answer: hidden properties are left out, and a dispatch record that is not part of the document
    /// is read from the results.
    pub(super) async fn with_dispatch(&self, record: Document) -> Result<Document, NotifybcError> {
        let reads_results = record.get(READ_RESULTS) == Some(&Value::Bool(true));
        let mut record = record;
        if reads_results && let Some(broadcast) = self.native_broadcast(&record).await? {
            let dispatch = self.dispatch_of(&record, broadcast, text(&record, "state") == Some("sent")).await?;
            let options = &self.configuration.notification;
            let keeps = options.is_guaranteed || self.configuration.email.bounce.is_enabled;
            let value = dispatch.to_value(keeps, options.is_guaranteed && options.logs_skipped);
            record.insert("dispatch".to_owned(), value);
        }
        Ok(visible(record))
    }

    /// The native broadcast of a record, found by its key.
    async fn native_broadcast(&self, record: &Document) -> Result<Option<BroadcastId>, NotifybcError> {
        if !record.contains_key(RUN) {
            return Ok(None);
        }
        let filter = BroadcastFilter { key: Some(broadcast_key(record)), ..BroadcastFilter::default() };
        let found = self.service.broadcasts.broadcasts(&filter, None, 1).await?;
        Ok(found.first().map(|found| found.id))
    }

    /// The dispatch record: lists of earlier runs, and the results of the native broadcast. Candidates without a result
    /// were skipped if the broadcast is complete.
    async fn dispatch_of(
        &self,
        record: &Document,
        broadcast: BroadcastId,
        is_complete: bool,
    ) -> Result<Dispatch, NotifybcError> {
        let mut dispatch = Dispatch::of(record);
        let results = self.results_of(broadcast).await?;
        let known: HashSet<String> = dispatch.done().into_iter().map(str::to_owned).collect();
        for id in self.record_ids(&results.delivered).await? {
            dispatch.successful.extend(id.filter(|id| !known.contains(id)));
        }
        let numbers: Vec<SubscriptionId> = results.failed.iter().map(|(number, _)| *number).collect();
        let ids = self.record_ids(&numbers).await?;
        let mut failed: Vec<(String, String)> =
            ids.into_iter().zip(results.failed).filter_map(|(id, (_, reply))| Some((id?, reply))).collect();
        failed.retain(|(id, _)| !known.contains(id));
        for part in failed.chunks(ADDRESSES) {
            let ids: Vec<String> = part.iter().map(|(id, _)| id.clone()).collect();
            let documents = self.store.documents_of(Collection::Subscription, &ids).await?;
            for ((id, reply), document) in part.iter().zip(documents) {
                let record = document.map(super::documents::Record::of).transpose()?;
                let address = record.as_ref().and_then(|record| text(&record.document, "userChannelId"));
                let error = Undelivered::of(reply).to_value();
                dispatch
                    .failed
                    .push(json!({"subscriptionId": id, "userChannelId": address.unwrap_or_default(), "error": error}));
            }
        }
        if dispatch.candidates.is_empty() {
            dispatch.candidates = self.confirmed_ids(record, usize::MAX).await?;
        }
        let candidates: HashSet<&str> = dispatch.candidates.iter().map(String::as_str).collect();
        let done: HashSet<&str> = dispatch.done();
        // A subscription may be confirmed between the reading of the candidates and the start.
        let late: Vec<String> = done.difference(&candidates).map(|id| (*id).to_owned()).collect();
        let without_result = dispatch.candidates.iter().filter(|id| is_complete && !done.contains(id.as_str()));
        let skipped: Vec<String> = without_result.cloned().collect();
        dispatch.candidates.extend(late);
        dispatch.skipped.extend(skipped);
        Ok(dispatch)
    }

    /// The results of a native broadcast by subscription. A suspended notification has failed.
    async fn results_of(&self, broadcast: BroadcastId) -> Result<Results, NotifybcError> {
        let mut results = Results::default();
        let mut reached = NotificationBatchId(0);
        loop {
            let batches = self.service.broadcasts.broadcast_batches(broadcast, reached, BATCHES).await?;
            let is_last = batches.len() < BATCHES;
            for batch in batches {
                reached = batch;
                let stored = match self.service.notification_log.notification_batch(batch).await {
                    Ok(Some(stored)) => stored,
                    Ok(None) | Err(StoreError::Damaged(_)) => continue,
                    Err(error) => return Err(error.into()),
                };
                let mut last: Vec<Option<Attempt>> = vec![None; stored.notifications.count()];
                for attempt in self.service.notification_log.attempts(batch).await? {
                    if let Some(place) = last.get_mut(attempt.ordinal as usize) {
                        *place = Some(attempt);
                    }
                }
                for (number, attempt) in stored.notifications.subscriptions.iter().zip(last) {
                    let Some(attempt) = attempt else { continue };
                    match attempt.outcome {
                        Outcome::Delivered => results.delivered.push(*number),
                        Outcome::Refused | Outcome::Expired | Outcome::Suspended => {
                            results.failed.push((*number, attempt.reply));
                        }
                        Outcome::Deferred | Outcome::Ended => {}
                    }
                }
            }
            if is_last {
                return Ok(results);
            }
        }
    }

    /// Ids of the records of native subscriptions.
    async fn record_ids(&self, numbers: &[SubscriptionId]) -> Result<Vec<Option<String>>, NotifybcError> {
        let mut ids = Vec::with_capacity(numbers.len());
        for part in numbers.chunks(PAGE) {
            ids.extend(self.store.document_ids(part).await?);
        }
        Ok(ids)
    }

    /// Ids of the confirmed subscriptions of a notification's service and channel, in order, at most about `limit`.
    async fn confirmed_ids(&self, record: &Document, limit: usize) -> Result<Vec<String>, NotifybcError> {
        let filter = KeyFilter {
            services: Some(vec![service_of(record).to_owned()]),
            channels: Some(vec![channel_of(record).to_owned()]),
            states: Some(vec!["confirmed".to_owned()]),
            ..KeyFilter::default()
        };
        let (mut ids, mut after) = (Vec::new(), None);
        loop {
            let limit_of_page = PAGE.min(limit - ids.len()).max(1);
            let scan = DocumentScan {
                collection: Collection::Subscription,
                filter: filter.clone(),
                after,
                limit: limit_of_page,
            };
            let page = self.store.scan_documents(scan).await?;
            ids.extend(page.items.into_iter().map(|stored| stored.id));
            match page.next {
                Some(next) if ids.len() < limit => after = Some(next),
                _ => return Ok(ids),
            }
        }
    }

    /// Records in the bounce records that their addresses were reached. `reached` has ids of subscriptions.
    pub(super) async fn note_reached(&self, started: &Document, reached: &HashSet<&str>) -> Result<(), NotifybcError> {
        if reached.is_empty() {
            return Ok(());
        }
        let channel = channel_of(started).to_owned();
        let filter = KeyFilter {
            channels: Some(vec![channel.clone()]),
            states: Some(vec!["active".to_owned()]),
            ..KeyFilter::default()
        };
        let (mut addresses, mut after) = (BTreeSet::new(), None);
        loop {
            let scan = DocumentScan { collection: Collection::Bounce, filter: filter.clone(), after, limit: PAGE };
            let page = self.store.scan_documents(scan).await?;
            addresses.extend(page.items.into_iter().filter_map(|stored| Some((stored.keys.address?, stored.id))));
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        for (address, bounce) in addresses {
            let filter = KeyFilter {
                services: Some(vec![service_of(started).to_owned()]),
                channels: Some(vec![channel.clone()]),
                addresses: Some(vec![address]),
                ..KeyFilter::default()
            };
            let scan = DocumentScan { collection: Collection::Subscription, filter, after: None, limit: PAGE };
            let found = self.store.scan_documents(scan).await?.items;
            if found.iter().any(|stored| reached.contains(stored.id.as_str())) {
                self.note_bounce(&bounce, started).await?;
            }
        }
        Ok(())
    }

    /// Records in a bounce record the begin and the end of a notification, unless it has later ones.
    async fn note_bounce(&self, bounce: &str, started: &Document) -> Result<(), NotifybcError> {
        let now = date_text(self.now());
        let begin = text(started, "updated").unwrap_or(&now);
        self.change(Collection::Bounce, bounce, |present| {
            let mut record = present.clone();
            for (property, date) in [("latestNotificationStarted", begin), ("latestNotificationEnded", now.as_str())] {
                if text(present, property).is_none_or(|known| known < date) {
                    record.insert(property.to_owned(), date.into());
                }
            }
            Ok(record)
        })
        .await
        .map(|_| ())
    }
}

/// The record without hidden properties.
pub(super) fn visible(mut record: Document) -> Document {
    record.retain(|name, _| !name.starts_with(tocsin_notifybc::notifications::INTERNAL_PREFIX));
    record
}

pub(super) fn service_of(record: &Document) -> &str {
    text(record, "serviceName").unwrap_or_default()
}

pub(super) fn channel_of(record: &Document) -> &str {
    text(record, "channel").unwrap_or_default()
}

/// The key of the native broadcast of a record.
fn broadcast_key(record: &Document) -> String {
    let run = record.get(RUN).and_then(Value::as_u64).unwrap_or(0);
    format!("notifybc/{}/{run}", text(record, "id").unwrap_or_default())
}
