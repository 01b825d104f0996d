//! Documents of NotifyBC records, and the native rows of its subscriptions.

use async_trait::async_trait;
use tocsin_model::{
    consent::{ConsentState, Evidence},
    filter::Filter,
    id::{Name, SubscriptionId},
    notifybc::Collection,
    time::Timestamp,
};

use crate::{
    bounded_scan::ScanPage,
    error::StoreError,
    records::writes::{Precondition, Written},
};

/// Maximum size of the bodies of one page, in bytes. A page with more has fewer documents than its limit.
pub const PAGE_BODIES_BYTES_MAX: usize = 16 << 20;

/// Documents of NotifyBC records. The document of a mail or SMS subscription and its native rows are one commit.
///
/// A native subscription has a subscriber [`subscriber_id`](tocsin_model::notifybc::subscriber_id) with one device
/// `main`, and the id of the record as its key. When it is disabled, removed, confirmed or enabled by another port, the
/// state of its document follows in that commit: `deleted`, `confirmed`, or `unconfirmed` if its consent is pending.
/// Its revision and `updated_at` change with it. A new address of its device becomes the `userChannelId` of the body.
#[async_trait]
pub trait NotifybcStore: Send + Sync + 'static {
    /// Stores documents in one commit, in the given order. Each succeeds or fails on its own: `Taken` (id or unique
    /// key), `Changed` or `Missing`. Concurrent calls share one fsync.
    async fn put_documents(
        &self,
        puts: Vec<PutDocument>,
        now: Timestamp,
    ) -> Result<Vec<Written<DocumentVersion>>, StoreError>;

    /// A document.
    async fn document(&self, collection: Collection, id: &str) -> Result<Option<StoredDocument>, StoreError>;

    /// Documents by id, in the order of the ids; `None` for a missing one.
    async fn documents_of(
        &self,
        collection: Collection,
        ids: &[String],
    ) -> Result<Vec<Option<StoredDocument>>, StoreError>;

    /// Ids of the subscription documents of native subscriptions, also of removed ones; `None` where there is none.
    async fn document_ids(&self, numbers: &[SubscriptionId]) -> Result<Vec<Option<String>>, StoreError>;

    /// The document with a unique key.
    async fn document_by_unique(
        &self,
        collection: Collection,
        unique: &str,
    ) -> Result<Option<StoredDocument>, StoreError>;

    /// Finds up to `limit` documents in the order of their ids. Reads at most
    /// [`SCANNED_ROWS_MAX`](crate::bounded_scan::SCANNED_ROWS_MAX) rows and [`PAGE_BODIES_BYTES_MAX`] of bodies, so a
    /// page can be short or empty although `next` is present.
    async fn scan_documents(&self, scan: DocumentScan) -> Result<ScanPage<StoredDocument, String>, StoreError>;

    /// Number of documents.
    async fn count_documents(&self, collection: Collection, filter: &KeyFilter) -> Result<u64, StoreError>;

    /// Distinct services of confirmed subscriptions, in order.
    async fn confirmed_services(&self) -> Result<Vec<String>, StoreError>;

    /// Removes documents with their native rows in one commit; missing ones are skipped. Returns the number removed.
    async fn remove_documents(
        &self,
        collection: Collection,
        ids: Vec<String>,
        now: Timestamp,
    ) -> Result<usize, StoreError>;
}

/// Document to store.
#[derive(Debug, Clone, PartialEq)]
pub struct PutDocument {
    /// Collection.
    pub collection: Collection,
    /// Id, unique in the collection.
    pub id: String,
    /// JSON object without `id`, `state`, `created` and `updated`.
    pub body: Box<str>,
    /// Indexed properties.
    pub keys: DocumentKeys,
    /// Precondition on the stored revision.
    pub expect: Precondition,
    /// Native subscription of a mail or SMS subscription; `None` removes the native rows of earlier versions.
    pub native: Option<NativeSubscription>,
    /// Property `created`.
    pub created_at: Timestamp,
    /// Property `updated`.
    pub updated_at: Timestamp,
}

/// Indexed properties of a document. An empty text counts as absent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DocumentKeys {
    /// `serviceName`.
    pub service: Option<String>,
    /// `channel`.
    pub channel: Option<String>,
    /// Address in lower case (`userChannelId`).
    pub address: Option<String>,
    /// `userId`.
    pub user: Option<String>,
    /// `state`.
    pub state: Option<String>,
    /// Key that is unique in the collection.
    pub unique: Option<String>,
}

/// Native subscription of a mail or SMS subscription.
#[derive(Debug, Clone, PartialEq)]
pub struct NativeSubscription {
    /// Channel of the device.
    pub channel: Name,
    /// Address of the device (`userChannelId`).
    pub address: String,
    /// Parameters of the subscription, as a JSON object.
    pub values: Box<str>,
    /// Filter of the subscription.
    pub filter: Option<Filter>,
    /// State of its consent. A subscription that is not confirmed is disabled.
    pub state: ConsentState,
    /// Whether it is enabled if its consent permits.
    pub enabled: bool,
    /// Evidence of a change of the consent. It is stored if the state changes.
    pub evidence: Evidence,
}

/// Version of a document after a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DocumentVersion {
    /// Revision: 1 for a new document.
    pub revision: u64,
    /// Native subscription.
    pub number: Option<SubscriptionId>,
}

/// Stored document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredDocument {
    /// Id.
    pub id: String,
    /// JSON object without `id`, `state`, `created` and `updated`.
    pub body: Box<str>,
    /// Indexed properties.
    pub keys: DocumentKeys,
    /// Revision; it increases with each write.
    pub revision: u64,
    /// Property `created`.
    pub created_at: Timestamp,
    /// Property `updated`.
    pub updated_at: Timestamp,
    /// Native subscription, which may be removed.
    pub number: Option<SubscriptionId>,
}

/// Page of documents to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentScan {
    /// Collection.
    pub collection: Collection,
    /// Conditions on the indexed properties.
    pub filter: KeyFilter,
    /// Id after which the page begins.
    pub after: Option<String>,
    /// Maximum number of documents.
    pub limit: usize,
}

/// Conditions on indexed properties: each must have one of the given values. An empty list matches nothing; an empty
/// text matches an absent property.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeyFilter {
    /// Ids.
    pub ids: Option<Vec<String>>,
    /// Services.
    pub services: Option<Vec<String>>,
    /// Channels.
    pub channels: Option<Vec<String>>,
    /// Addresses in lower case.
    pub addresses: Option<Vec<String>>,
    /// Users.
    pub users: Option<Vec<String>>,
    /// States.
    pub states: Option<Vec<String>>,
}

impl KeyFilter {
    /// Whether a document satisfies all conditions.
    pub(crate) fn permits(&self, id: &str, keys: &DocumentKeys) -> bool {
        let DocumentKeys { service, channel, address, user, state, unique: _ } = keys;
        self.permits_keys(id, [service, channel, address, user, state].map(Option::as_deref))
    }

    /// The same for service, channel, address, user and state.
    pub(crate) fn permits_keys(&self, id: &str, keys: [Option<&str>; 5]) -> bool {
        let has = |values: &Option<Vec<String>>, key: Option<&str>| {
            values.as_ref().is_none_or(|values| values.iter().any(|value| value == key.unwrap_or_default()))
        };
        let KeyFilter { ids, services, channels, addresses, users, states } = self;
        let conditions = [services, channels, addresses, users, states];
        has(ids, Some(id)) && conditions.into_iter().zip(keys).all(|(values, key)| has(values, key))
    }

    /// Whether a list is empty, so that nothing satisfies the filter.
    pub(crate) fn is_void(&self) -> bool {
        let KeyFilter { ids, services, channels, addresses, users, states } = self;
        [ids, services, channels, addresses, users, states].into_iter().flatten().any(Vec::is_empty)
    }
}

impl DocumentKeys {
    /// The same with absent properties for empty texts.
    pub(crate) fn normalized(self) -> DocumentKeys {
        let present = |key: Option<String>| key.filter(|key| !key.is_empty());
        DocumentKeys {
            service: present(self.service),
            channel: present(self.channel),
            address: present(self.address),
            user: present(self.user),
            state: present(self.state),
            unique: present(self.unique),
        }
    }
}

/// Body with another `userChannelId`.
pub(crate) fn with_address(body: &str, address: &str) -> Result<Box<str>, StoreError> {
    let damaged = |_| StoreError::Damaged("the body of a document".to_owned());
    let mut body: serde_json::Map<String, serde_json::Value> = serde_json::from_str(body).map_err(damaged)?;
    body.insert("userChannelId".to_owned(), address.into());
    Ok(serde_json::to_string(&body).map_err(damaged)?.into())
}

pub(crate) fn document_noun(collection: Collection, id: &str) -> String {
    format!("{} `{id}`", collection.model())
}
