//! Documents of the collections: read, search, store.
//!
//! A list reads the pages of the store that the conditions on indexed properties select, and evaluates the rest of the
//! query over each document. Changes are compare-and-set on the revision.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use ring::rand::{SecureRandom, SystemRandom};
use serde_json::{Value, json};
use tocsin_model::{
    consent::{ConsentMethod, ConsentState, Evidence},
    filter::{Dialect, Filter as NativeFilter},
    id::SubscriptionId,
    notifybc::SubscriptionState,
    time::Timestamp,
};
use tocsin_notifybc::{
    query::{Filter, Where},
    record::{ChangeError, Collection, Document, RecordId, date_text, parse_date, text},
};
use tocsin_store::{
    error::StoreError,
    records::{DocumentKeys, DocumentScan, KeyFilter, NativeSubscription, Precondition, PutDocument, StoredDocument},
};
use tokio::sync::Mutex;

use super::{Notifybc, NotifybcError, RequestContext};

/// Documents of a page of the store.
const PAGE: usize = 1_000;
/// Longest evaluation of a query over one page.
const PAGE_TIME_MAX: Duration = Duration::from_secs(10);
/// Most bytes of the documents of one answer.
const ANSWER_BYTES_MAX: usize = 512 << 20;
/// Most bytes of a page that is evaluated by the thread of the request.
const INLINE_BYTES_MAX: usize = 64 << 10;
/// Attempts of a change whose document changes at the same time.
const ATTEMPTS_MAX: usize = 16;
/// Most levels of a value of a document. The parser takes 128, and native forms have some more around it.
const DEPTH_MAX: usize = 100;
/// Changes of a document that lost a race take turns, so that many at once do not use up their attempts.
static TURNS: Turns = [const { Mutex::const_new(()) }; 64];
/// Properties that the store has beside the body.
const COLUMNS: [&str; 4] = ["id", "state", "created", "updated"];

/// A document with its revision.
#[derive(Debug, Clone)]
pub struct Record {
    /// All properties, `id` first.
    pub document: Document,
    /// Revision for a change.
    pub revision: u64,
    /// Native subscription.
    pub number: Option<SubscriptionId>,
}

impl Record {
    /// The record of a stored document.
    ///
    /// # Errors
    /// Its body is not a JSON object.
    pub fn of(stored: StoredDocument) -> Result<Record, NotifybcError> {
        let mut document = Document::new();
        document.insert("id".to_owned(), Value::from(stored.id));
        let mut body: Document = serde_json::from_str(&stored.body)
            .map_err(|error| NotifybcError::Internal(format!("a stored document is malformed: {error}")))?;
        document.append(&mut body);
        if let Some(state) = stored.keys.state {
            document.insert("state".to_owned(), Value::from(state));
        }
        document.insert("created".to_owned(), Value::from(date_text(stored.created_at)));
        document.insert("updated".to_owned(), Value::from(date_text(stored.updated_at)));
        Ok(Record { document, revision: stored.revision, number: stored.number })
    }

    /// The id.
    pub fn id(&self) -> &str {
        text(&self.document, "id").unwrap_or_default()
    }
}

impl From<ChangeError> for NotifybcError {
    fn from(error: ChangeError) -> Self {
        NotifybcError::Invalid(error.to_string())
    }
}

impl Notifybc {
    /// A new id. Ids of one process increase, so lists without an order are in the order of creation.
    pub(crate) fn new_id(&self) -> RecordId {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let mut random = [0; 8];
        // The counter keeps ids distinct if there is no randomness.
        let _ = SystemRandom::new().fill(&mut random);
        let count = u64::from(COUNT.fetch_add(1, Ordering::Relaxed)) << 40;
        RecordId::new(self.now(), count | (u64::from_le_bytes(random) >> 24))
    }

    /// The `createdBy` or `updatedBy` of a request.
    pub(crate) fn author(context: &RequestContext) -> Value {
        context.identity.to_value()
    }

    /// A document, if it exists.
    pub(crate) async fn read(&self, collection: Collection, id: &str) -> Result<Option<Record>, NotifybcError> {
        self.store.document(collection, id).await?.map(Record::of).transpose()
    }

    /// A document that must exist.
    pub(crate) async fn require(&self, collection: Collection, id: &str) -> Result<Record, NotifybcError> {
        self.read(collection, id).await?.ok_or(NotifybcError::Missing)
    }

    /// Documents of a condition, in the order of their ids.
    pub(crate) async fn find(&self, collection: Collection, condition: Where) -> Result<Vec<Document>, NotifybcError> {
        let filter = Filter { where_: condition, ..Filter::default() };
        self.list(collection, filter, Where::default(), |document| document).await
    }

    /// The documents of a filter within a view. `project` is the view of the caller on each document; it precedes the
    /// selection of properties.
    pub(crate) async fn list(
        &self,
        collection: Collection,
        filter: Filter,
        view: Where,
        project: impl Fn(Document) -> Document,
    ) -> Result<Vec<Document>, NotifybcError> {
        let condition = Arc::new(view.and(filter.where_.clone()));
        let window = filter.limit.map(|limit| usize::try_from(filter.skip.saturating_add(limit)).unwrap_or(usize::MAX));
        let is_ordered = !filter.order.is_by_id();
        let (mut found, mut bytes) = (Vec::new(), 0);
        let first_page = window.filter(|_| !is_ordered).unwrap_or(PAGE);
        self.each_page(collection, &condition, first_page, &mut |documents, found_bytes| {
            found.extend(documents);
            bytes += found_bytes;
            if let Some(window) = window {
                if !is_ordered && found.len() >= window {
                    return Ok(false);
                }
                // An ordered window keeps its candidates only.
                if found.len() > window.saturating_mul(2).saturating_add(PAGE) {
                    filter.order.sort(&mut found);
                    found.truncate(window);
                    bytes = 0;
                }
            }
            if bytes > ANSWER_BYTES_MAX {
                let message = format!("the answer is larger than {} MiB: set a limit", ANSWER_BYTES_MAX >> 20);
                return Err(NotifybcError::Invalid(message));
            }
            Ok(true)
        })
        .await?;
        let order_and_window = Filter { fields: Default::default(), where_: Where::default(), ..filter.clone() };
        let page = match found.len() {
            0..=PAGE => order_and_window.page(found),
            _ => tokio::task::spawn_blocking(move || order_and_window.page(found))
                .await
                .map_err(|error| NotifybcError::Internal(format!("a query failed: {error}")))?,
        };
        Ok(page.into_iter().map(|document| filter.fields.apply(project(document))).collect())
    }

    /// Number of documents of a condition.
    pub(crate) async fn count(&self, collection: Collection, condition: Where) -> Result<u64, NotifybcError> {
        if is_everything(&condition) {
            return Ok(self.store.count_documents(collection, &KeyFilter::default()).await?);
        }
        let mut count = 0;
        self.each_page(collection, &Arc::new(condition), PAGE, &mut |documents, _| {
            count += documents.len() as u64;
            Ok(true)
        })
        .await?;
        Ok(count)
    }

    /// Passes the documents of a condition and the size of their bodies to a function, page by page in the order of
    /// their ids, until it returns `false`. The first page has at most `first_page` documents.
    async fn each_page(
        &self,
        collection: Collection,
        condition: &Arc<Where>,
        first_page: usize,
        take: &mut (dyn FnMut(Vec<Document>, usize) -> Result<bool, NotifybcError> + Send),
    ) -> Result<(), NotifybcError> {
        let filter = key_filter(condition);
        let ids = condition.index_hints().ids;
        // A scan begins after an id, and the last character is more than one that may be equal.
        let mut after = ids.from.map(|mut from| {
            from.pop();
            from
        });
        let mut limit = first_page.clamp(1, PAGE);
        loop {
            let scan = DocumentScan { collection, filter: filter.clone(), after, limit };
            limit = PAGE;
            let mut page = self.store.scan_documents(scan).await?;
            if let (Some(to), Some(last)) = (&ids.to, page.items.last())
                && last.id > *to
            {
                page.next = None;
            }
            let page_bytes: usize = page.items.iter().map(|item| item.body.len()).sum();
            let condition = condition.clone();
            let is_short = page_bytes < INLINE_BYTES_MAX && !condition.scans_texts();
            let evaluate = move || {
                let (began, mut documents, mut found_bytes) = (Instant::now(), Vec::new(), 0);
                for item in page.items {
                    if began.elapsed() > PAGE_TIME_MAX {
                        return Err(NotifybcError::Invalid("the query takes too long".to_owned()));
                    }
                    let body_bytes = item.body.len();
                    let record = Record::of(item)?;
                    if condition.matches(&record.document) {
                        documents.push(record.document);
                        found_bytes += body_bytes;
                    }
                }
                Ok::<_, NotifybcError>((documents, found_bytes))
            };
            // A page of large documents, or a search in texts, would delay other requests of the thread.
            let (documents, found_bytes) = match is_short {
                true => evaluate()?,
                false => tokio::task::spawn_blocking(evaluate)
                    .await
                    .map_err(|error| NotifybcError::Internal(format!("a query failed: {error}")))??,
            };
            if !take(documents, found_bytes)? {
                return Ok(());
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(()),
            }
        }
    }

    /// Stores a new document.
    pub(crate) async fn insert(&self, collection: Collection, document: &Document) -> Result<(), NotifybcError> {
        self.put(collection, document, Precondition::Absent).await
    }

    /// Stores a document if the precondition holds.
    pub(crate) async fn put(
        &self,
        collection: Collection,
        document: &Document,
        expect: Precondition,
    ) -> Result<(), NotifybcError> {
        let put = self.prepared(collection, document, expect)?;
        self.written(collection, self.store.put_documents(vec![put], self.now()).await?.pop())
    }

    /// Stores the result of a change of a document, by compare-and-set. Returns the new document. The function is
    /// called again if the document changes at the same time.
    pub(crate) async fn change(
        &self,
        collection: Collection,
        id: &str,
        mut change: impl FnMut(&Document) -> Result<Document, NotifybcError>,
    ) -> Result<Document, NotifybcError> {
        let mut turn = None;
        for _ in 0..ATTEMPTS_MAX {
            let record = self.require(collection, id).await?;
            let changed = change(&record.document)?;
            let put = self.prepared(collection, &changed, Precondition::Revision(record.revision))?;
            match self.store.put_documents(vec![put], self.now()).await?.pop() {
                Some(Err(StoreError::Changed(_))) if turn.is_none() => {
                    turn = Some(turn_of(&TURNS, id).lock().await);
                }
                Some(Err(StoreError::Changed(_))) => {}
                written => return self.written(collection, written).map(|()| changed),
            }
        }
        Err(NotifybcError::Internal("the record changes too often".to_owned()))
    }

    /// Removes documents. Returns their number.
    pub(crate) async fn remove(&self, collection: Collection, ids: Vec<String>) -> Result<u64, NotifybcError> {
        let removed = self.store.remove_documents(collection, ids, self.now()).await? as u64;
        self.configuration_cache.changed(collection);
        Ok(removed)
    }

    fn written<T>(&self, collection: Collection, written: Option<Result<T, StoreError>>) -> Result<(), NotifybcError> {
        self.configuration_cache.changed(collection);
        match written {
            Some(Ok(_)) => Ok(()),
            Some(Err(StoreError::Taken(what))) => Err(NotifybcError::Invalid(format!(
                "E11000 duplicate key error collection: {}: {what}",
                collection.name()
            ))),
            Some(Err(StoreError::Missing(_))) => Err(NotifybcError::Missing),
            Some(Err(error)) => Err(error.into()),
            None => Err(NotifybcError::Internal("the store returned no result".to_owned())),
        }
    }

    /// The write of a document, with its indexed properties and its native subscription.
    ///
    /// # Errors
    /// The document cannot be stored.
    pub(crate) fn prepared(
        &self,
        collection: Collection,
        document: &Document,
        expect: Precondition,
    ) -> Result<PutDocument, NotifybcError> {
        prepared(collection, document, expect, self.now())
    }
}

/// The write of a document, with its indexed properties and its native subscription.
///
/// # Errors
/// The document has no id, or its address or channel cannot be stored.
pub fn prepared(
    collection: Collection,
    document: &Document,
    expect: Precondition,
    now: Timestamp,
) -> Result<PutDocument, NotifybcError> {
    let id = text(document, "id").ok_or_else(|| NotifybcError::Internal("a document has no id".to_owned()))?;
    let owned = |name: &str| text(document, name).map(str::to_owned);
    let date = |name: &str| text(document, name).and_then(parse_date).unwrap_or(now);
    let keys = DocumentKeys {
        service: owned("serviceName"),
        channel: owned("channel"),
        address: owned("userChannelId").map(|address| address.to_lowercase()),
        user: owned("userId"),
        state: owned("state"),
        unique: unique_key(collection, document),
    };
    let native = match collection {
        Collection::Subscription => native_subscription(id, document)?,
        _ => None,
    };
    // A deeper body could not be read again.
    if document.values().any(|value| is_deeper(value, DEPTH_MAX)) {
        return Err(NotifybcError::Invalid(format!("the record has more than {DEPTH_MAX} levels")));
    }
    let mut body = document.clone();
    body.retain(|name, _| !COLUMNS.contains(&name.as_str()));
    let body = serde_json::to_string(&body).map_err(|error| NotifybcError::Internal(error.to_string()))?;
    Ok(PutDocument {
        collection,
        id: id.to_owned(),
        body: body.into(),
        keys,
        expect,
        native,
        created_at: date("created"),
        updated_at: date("updated"),
    })
}

/// Locks of keys. Some keys share one.
pub(super) type Turns = [Mutex<()>; 64];

/// The lock of a key.
pub(super) fn turn_of<'t>(turns: &'t Turns, key: &str) -> &'t Mutex<()> {
    let hash = key.bytes().fold(0_usize, |hash, byte| hash.wrapping_mul(31).wrapping_add(usize::from(byte)));
    &turns[hash % turns.len()]
}

/// Whether a value has more levels.
fn is_deeper(value: &Value, levels: usize) -> bool {
    let below = |value: &Value| levels == 0 || is_deeper(value, levels - 1);
    match value {
        Value::Array(items) => items.iter().any(below),
        Value::Object(members) => members.values().any(below),
        _ => false,
    }
}

/// The key of a document that is unique in its collection.
fn unique_key(collection: Collection, document: &Document) -> Option<String> {
    match collection {
        Collection::Configuration => Some(configuration_key(text(document, "name")?, text(document, "serviceName"))),
        Collection::Administrator => text(document, "email").map(str::to_lowercase),
        Collection::UserCredential => text(document, "userId").map(str::to_owned),
        Collection::Rss => text(document, "serviceName").map(str::to_owned),
        _ => None,
    }
}

/// The unique key of a configuration.
pub(crate) fn configuration_key(name: &str, service: Option<&str>) -> String {
    format!("{name}\n{}", service.unwrap_or_default())
}

/// The native form of a subscription that receives messages: by mail or SMS.
fn native_subscription(id: &str, document: &Document) -> Result<Option<NativeSubscription>, NotifybcError> {
    let channel = text(document, "channel").unwrap_or("email");
    if !matches!(channel, "email" | "sms") {
        return Ok(None);
    }
    let Some(address) = text(document, "userChannelId") else { return Ok(None) };
    let mut values = json!({ "id": id, "service": text(document, "serviceName"), "channel": channel });
    if let Some(code) = text(document, "unsubscriptionCode") {
        values["code"] = Value::from(code);
    }
    let confirmation = document.get("confirmationRequest").and_then(|request| request.get("confirmationCode"));
    if let Some(code) = confirmation.and_then(Value::as_str) {
        values["confirmation"] = Value::from(code);
    }
    if let Some(data) = document.get("data").filter(|data| !data.is_null()) {
        values["data"] = data.clone();
    }
    let filter = text(document, "broadcastPushNotificationFilter");
    let state = text(document, "state");
    let consent = match state {
        Some(state) if state == SubscriptionState::Confirmed.word() => ConsentState::Confirmed,
        Some(state) if state == SubscriptionState::Unconfirmed.word() => ConsentState::Pending,
        _ => ConsentState::Withdrawn,
    };
    let name = channel.parse().map_err(|error| NotifybcError::Internal(format!("channel `{channel}`: {error}")))?;
    Ok(Some(NativeSubscription {
        channel: name,
        address: address.to_owned(),
        values: values.to_string().into(),
        filter: filter.map(|filter| NativeFilter::new(Dialect::Notifybc, filter)),
        state: consent,
        enabled: consent == ConsentState::Confirmed,
        evidence: Evidence::new(ConsentMethod::Api, "notifybc"),
    }))
}

/// The conditions of a query on indexed properties.
fn key_filter(condition: &Where) -> KeyFilter {
    let hints = condition.index_hints();
    let lower = |texts: Vec<String>| texts.into_iter().map(|text| text.to_lowercase()).collect();
    KeyFilter {
        ids: hints.id,
        services: hints.service_name,
        channels: hints.channel,
        addresses: hints.user_channel_id.map(lower),
        users: hints.user_id,
        states: hints.state,
    }
}

fn is_everything(condition: &Where) -> bool {
    match condition {
        Where::All(parts) => parts.iter().all(is_everything),
        _ => false,
    }
}
