//! Port of the directory: the system of record as a tree of LDAP entries.
//!
//! A subscriber is stored once, as a record. Its position in the tree ([`Placement`]) is stored beside it; a
//! subscriber without a placement appears in the default container of the directory. All other entries, such as
//! containers and groups, are [`Object`]s. Any change of a subscriber changes its entry in the same commit.

use std::{
    any::Any,
    collections::{BTreeMap, HashSet},
    ops::Bound,
    sync::Arc,
};

use async_trait::async_trait;
use tocsin_model::{
    id::{SubscriberId, SubscriberNumber},
    subscriber::Subscriber,
    time::Timestamp,
    value::Value,
};

use crate::{
    error::StoreError,
    records::{NewSubscriber, Precondition},
};

/// Entry number, never reused. Objects have positive numbers, subscribers negative ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryNumber(pub i64);

impl EntryNumber {
    /// Number of the subscriber, if the entry is one.
    pub fn subscriber(self) -> Option<SubscriberNumber> {
        (self.0 < 0).then(|| SubscriberNumber(self.0.unsigned_abs()))
    }
}

impl From<SubscriberNumber> for EntryNumber {
    fn from(number: SubscriberNumber) -> Self {
        EntryNumber(-i64::try_from(number.0).unwrap_or(i64::MAX))
    }
}

/// Position of a subscriber in the tree, and its object classes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// Parent entry.
    pub parent: EntryNumber,
    /// Relative distinguished name (RDN), as written.
    pub rdn: Box<str>,
    /// Normalized RDN; unique below the parent.
    pub rdn_key: Box<str>,
    /// Object classes, separated by spaces.
    pub classes: Box<str>,
}

/// Entry that is not a subscriber.
#[derive(Debug, Clone, PartialEq)]
pub struct Object {
    /// Parent entry; none for the root.
    pub parent: Option<EntryNumber>,
    /// Relative distinguished name (RDN), as written; for the root, its whole name.
    pub rdn: Box<str>,
    /// Normalized RDN; unique below the parent.
    pub rdn_key: Box<str>,
    /// Attributes, including the object classes; a list holds several values.
    pub attributes: BTreeMap<String, Value>,
}

/// Multi-valued attributes with one row per value, so that members can be added and removed one by one.
pub const ROW_ATTRIBUTES: [&str; 3] = ["member", "roleOccupant", "uniqueMember"];

/// Added and removed rows of a row attribute; the rest of the object stays unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RowChange {
    /// Attribute, one of [`ROW_ATTRIBUTES`].
    pub name: Box<str>,
    /// Values to add.
    pub added: Vec<Box<str>>,
    /// Values to remove.
    pub removed: Vec<Box<str>>,
    /// Index keys to remove.
    pub gone: Vec<EntryKey>,
    /// Index keys to add.
    pub made: Vec<EntryKey>,
}

/// Object as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredObject {
    /// Entry number, positive.
    pub number: EntryNumber,
    /// Object.
    pub object: Object,
    /// Time of creation, and of the last change.
    pub created_at: Timestamp,
    /// See `created_at`.
    pub updated_at: Timestamp,
    /// Revision, incremented by each change.
    pub revision: u64,
}

/// Entry as stored.
#[derive(Debug, Clone, PartialEq)]
pub enum EntryNode {
    /// Subscriber with its placement; `None`: in the default container.
    Subscriber(Box<Subscriber>, Option<Placement>),
    /// Any other entry.
    Object(StoredObject),
}

impl EntryNode {
    /// Entry number.
    pub fn number(&self) -> EntryNumber {
        match self {
            EntryNode::Subscriber(subscriber, _) => subscriber.number.into(),
            EntryNode::Object(object) => object.number,
        }
    }

    /// Parent entry; `None` for the root and for a subscriber without a placement.
    pub fn parent(&self) -> Option<EntryNumber> {
        match self {
            EntryNode::Subscriber(_, placement) => placement.as_ref().map(|placement| placement.parent),
            EntryNode::Object(object) => object.object.parent,
        }
    }

    /// Parent and RDN; `None` for a subscriber without a placement.
    pub(crate) fn place(&self) -> (Option<EntryNumber>, Option<&str>) {
        match self {
            EntryNode::Subscriber(_, placement) => (self.parent(), placement.as_ref().map(|placement| &*placement.rdn)),
            EntryNode::Object(object) => (object.object.parent, Some(&*object.object.rdn)),
        }
    }
}

/// Key of an entry in a search index.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryKey {
    /// Name of the index.
    pub index: Arc<str>,
    /// Key value; keys are ordered by their bytes.
    pub key: Box<[u8]>,
}

/// Change of an entry by a commit.
#[derive(Debug, Clone)]
pub struct EntryChange {
    /// Entry.
    pub number: EntryNumber,
    /// Index keys removed or added.
    pub keys: Vec<EntryKey>,
    /// Whether its name changed, and with it the names of the entries below.
    pub renamed: bool,
    /// State after the commit.
    pub now: EntryState,
}

/// State of an entry after a commit.
#[derive(Debug, Clone)]
pub enum EntryState {
    /// Removed.
    Gone,
    /// Stored.
    Stored(EntryNode),
    /// Prepared by the watcher in advance.
    Prepared(PreparedEntry),
    /// Partly changed; the store did not read the rest.
    Unread,
}

impl EntryState {
    /// The entry, if the store has read it.
    pub fn node(&self) -> Option<&EntryNode> {
        match self {
            EntryState::Stored(node) => Some(node),
            EntryState::Gone | EntryState::Prepared(_) | EntryState::Unread => None,
        }
    }
}

/// Watcher data of a prepared change; opaque to the store, which passes it back after the commit.
pub type PreparedEntry = Arc<dyn Any + Send + Sync>;

/// Prepared modify (optimistic concurrency): attribute changes of a subscriber, computed on one of its revisions, so
/// that the writer only stores the result. Name, placement, devices, locale, time zone, preferences and the enabled
/// flag stay the same.
#[derive(Debug)]
pub struct PreparedModify {
    /// Subscriber.
    pub number: SubscriberNumber,
    /// Revision on which the change was computed.
    pub revision: u64,
    /// Whether it is enabled, before and after.
    pub enabled: bool,
    /// All attributes after the change, as JSON.
    pub attributes: Arc<str>,
    /// Former values of the changed attributes; `None`: the attribute did not exist.
    pub before: BTreeMap<String, Option<Value>>,
    /// Index keys to remove.
    pub gone: Vec<EntryKey>,
    /// Index keys to add.
    pub made: Vec<EntryKey>,
    /// Time of the change.
    pub now: Timestamp,
    /// Passed to the watcher after the commit.
    pub built: PreparedEntry,
}

/// Prepared add: a new subscriber below an object, computed in advance.
#[derive(Debug)]
pub struct PreparedAdd {
    /// Subscriber. Its id must be free.
    pub new: NewSubscriber,
    /// Placement. Its name must be free.
    pub placement: Placement,
    /// Credential of the entry's owner.
    pub credential: Option<String>,
    /// Index keys of the entry.
    pub keys: Vec<EntryKey>,
    /// Time of the addition.
    pub now: Timestamp,
    /// Passed to the watcher after the commit.
    pub built: PreparedEntry,
}

/// Range of the logged entry changes, by sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryFeed {
    /// All changes after this sequence are logged.
    pub since: u64,
    /// Newest sequence.
    pub last: u64,
}

/// Maximum number of entry changes in the log.
pub const ENTRY_CHANGES_KEPT: u64 = 1_000_000;

/// Login names of an entry.
#[derive(Debug, Clone, Copy)]
pub enum LoginNames<'a> {
    /// Id of a subscriber without a placement.
    Id(&'a SubscriberId),
    /// Names among these attributes.
    Attributes {
        /// Former attributes; names among them are not checked again.
        before: Option<&'a BTreeMap<String, Value>>,
        /// Present attributes.
        now: &'a BTreeMap<String, Value>,
    },
}

/// Commit hook of the directory: computes index keys and is notified of changes of entries.
pub trait EntryWatcher: Send + Sync + 'static {
    /// Index keys of an entry: a function of the entry and of the configured indexes.
    fn keys(&self, node: &EntryNode) -> Vec<EntryKey>;
    /// Whether two states of an entry certainly have the same keys, without computing them; `false`: perhaps not.
    fn have_same_keys(&self, _old: &EntryNode, _now: &EntryNode) -> bool {
        false
    }
    /// Whether prepared data is still valid, apart from the entry's revision: whether it would have the same keys.
    /// Called by the writer, in commit order.
    fn is_still_valid(&self, _built: &PreparedEntry) -> bool {
        false
    }
    /// Referential integrity: called within a transaction after an entry was renamed or removed, to update the
    /// entries that reference it. `now`: its new state; `None`: it is being removed and can still be found.
    fn update_references(
        &self,
        _tree: &mut dyn EntryWriter,
        _old: &EntryNode,
        _now: Option<&EntryNode>,
    ) -> Result<(), StoreError> {
        Ok(())
    }
    /// Login name of an entry that another entry already has, if any. Called before a change is written. `entry`: its
    /// number; `None`: it is being added.
    fn find_login_conflict(
        &self,
        _branches: &dyn EntryReader,
        _entry: Option<EntryNumber>,
        _names: LoginNames<'_>,
    ) -> Result<Option<String>, StoreError> {
        Ok(None)
    }
    /// Whether a login name among the keys may belong to another entry; the prepared change is then made the ordinary
    /// way.
    fn may_conflict(
        &self,
        _branches: &dyn EntryReader,
        _entry: Option<EntryNumber>,
        _made: &[EntryKey],
    ) -> Result<bool, StoreError> {
        Ok(false)
    }
    /// Called after each commit, in commit order, before the call that made it returns. Must be quick.
    fn changed(&self, changes: Vec<EntryChange>);
    /// The same for entries whose credentials changed or were removed.
    fn credentials_changed(&self, entries: &[EntryNumber]);
}

/// Reads entries from one snapshot.
pub trait EntryReader {
    /// Entry by number.
    fn node(&self, number: EntryNumber) -> Result<Option<EntryNode>, StoreError>;
    /// Entry of a subscriber.
    fn subscriber(&self, id: &SubscriberId) -> Result<Option<EntryNode>, StoreError>;
    /// Child of an entry by its normalized RDN; without a parent, the root.
    fn child(&self, parent: Option<EntryNumber>, rdn_key: &str) -> Result<Option<EntryNode>, StoreError>;
    /// Like [`EntryReader::node`], without the row values of an object.
    fn head(&self, number: EntryNumber) -> Result<Option<EntryNode>, StoreError>;
    /// Like [`EntryReader::child`], without the row values of an object.
    fn child_head(&self, parent: Option<EntryNumber>, rdn_key: &str) -> Result<Option<EntryNode>, StoreError>;
    /// Up to `limit` row values of an object's attribute.
    fn row_values(&self, number: EntryNumber, name: &str, limit: usize) -> Result<Vec<Box<str>>, StoreError>;
    /// Whether an object's attribute has this row value.
    fn has_row_value(&self, number: EntryNumber, name: &str, value: &str) -> Result<bool, StoreError>;
    /// Numbers of up to `limit` direct children of an entry, in the order of [`EntryReader::page`].
    fn children(
        &self,
        parent: EntryNumber,
        unplaced: bool,
        after: Option<EntryNumber>,
        limit: usize,
    ) -> Result<Vec<EntryNumber>, StoreError>;
    /// Entries among `numbers` that have children.
    fn with_children(&self, numbers: &[EntryNumber]) -> Result<Vec<EntryNumber>, StoreError>;
    /// Whether an index key leads to an entry.
    fn is_found(&self, key: &EntryKey, number: EntryNumber) -> Result<bool, StoreError>;
    /// Up to `limit` children of an entry, or all entries, after `after`: first the objects, then the subscribers,
    /// each in order of creation. `unplaced`: includes the subscribers without a placement.
    fn page(
        &self,
        parent: Option<EntryNumber>,
        unplaced: bool,
        after: Option<EntryNumber>,
        limit: usize,
    ) -> Result<Vec<EntryNode>, StoreError>;
    /// Entries with keys in a range, each once, by number; `None` if there are more than `limit`.
    fn found(
        &self,
        index: &str,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        limit: usize,
    ) -> Result<Option<Vec<EntryNumber>>, StoreError>;
    /// Up to `limit` entries of the first keys of an index, in key order. Empty keys are skipped.
    fn first(&self, index: &str, limit: usize) -> Result<Vec<EntryNumber>, StoreError>;
    /// Range of the logged entry changes. Changes without a watcher are not logged.
    fn entry_feed(&self) -> Result<EntryFeed, StoreError>;
    /// Up to `limit` logged changes after a sequence: each with its sequence and entry, which may have been removed
    /// since.
    fn entries_changed(&self, after: u64, limit: usize) -> Result<Vec<(u64, EntryNumber)>, StoreError>;
    /// Credential of an entry, in a form private to the directory.
    fn credential(&self, number: EntryNumber) -> Result<Option<String>, StoreError>;
    /// Up to `limit` credentials after an entry, by entry number.
    fn credentials(&self, after: Option<EntryNumber>, limit: usize) -> Result<Vec<(EntryNumber, String)>, StoreError>;
    /// Schema definitions added to the built-in ones: identifier and text, in order of creation.
    fn definitions(&self) -> Result<Vec<(String, String)>, StoreError>;
    /// Indexes that are complete.
    fn indexes(&self) -> Result<Vec<String>, StoreError>;
}

/// Changes entries in one transaction. A job must return errors before it changes anything: the in-memory store
/// cannot roll back.
pub trait EntryWriter {
    /// Reads entries, including the changes of this job.
    fn reader(&self) -> &dyn EntryReader;
    /// Stores a new object.
    fn put_object(&mut self, new: Object, now: Timestamp) -> Result<EntryNumber, StoreError>;
    /// Replaces an object.
    fn change_object(&mut self, old: &StoredObject, new: Object, now: Timestamp) -> Result<(), StoreError>;
    /// Adds and removes row values of an object. `old`: the object, with or without its rows.
    fn change_rows(&mut self, old: &StoredObject, change: &RowChange, now: Timestamp) -> Result<(), StoreError>;
    /// Stores a subscriber with its placement.
    fn put_subscriber(
        &mut self,
        new: NewSubscriber,
        placement: Option<Placement>,
        expect: Precondition,
        now: Timestamp,
    ) -> Result<EntryNumber, StoreError>;
    /// Replaces a subscriber that this job has just read; `placement` moves it. `old`: the subscriber; an object
    /// stays unchanged.
    fn change_subscriber(
        &mut self,
        old: &EntryNode,
        new: NewSubscriber,
        placement: Option<Placement>,
        now: Timestamp,
    ) -> Result<(), StoreError>;
    /// Removes an entry with its dependent rows. The caller handles its children.
    fn remove(&mut self, number: EntryNumber, now: Timestamp) -> Result<(), StoreError>;
    /// Stores or removes a credential.
    fn put_credential(&mut self, number: EntryNumber, credential: Option<&str>) -> Result<(), StoreError>;
    /// Starts a new log of entry changes: readers must reload everything.
    fn cut_entry_feed(&mut self) -> Result<(), StoreError>;
    /// Stores or removes a schema definition.
    fn put_definition(&mut self, identifier: &str, text: Option<&str>) -> Result<(), StoreError>;
    /// Writes the index keys of up to `limit` entries after `after`. Returns the last of them; `None` at the end.
    fn index_page(&mut self, after: Option<EntryNumber>, limit: usize) -> Result<Option<EntryNumber>, StoreError>;
    /// Declares which indexes are complete. Keys of other indexes are deleted.
    fn set_indexes(&mut self, indexes: &[String]) -> Result<(), StoreError>;
}

/// Read-only job.
pub type EntryReadJob = Box<dyn FnOnce(&dyn EntryReader) -> Result<(), StoreError> + Send>;
/// Writing job.
pub type EntryWriteJob = Box<dyn FnOnce(&mut dyn EntryWriter) -> Result<(), StoreError> + Send>;

/// Whether a change is checked against the free disk space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskCheck {
    /// Refused with `Full` while the disk is nearly full.
    Required,
    /// Allowed on a nearly full disk, since it needs no space.
    Skipped,
}

/// Port of the directory's entries, stored with the records.
#[async_trait]
pub trait Entries: Send + Sync + 'static {
    /// Registers the watcher, and starts indexing and change notification. Without a watcher, indexes are not
    /// maintained, and [`EntryReader::indexes`] reports them as incomplete. Only the first watcher counts.
    fn watch(&self, watcher: Arc<dyn EntryWatcher>);
    /// Runs a read-only job. It sees every change acknowledged before.
    async fn read(&self, job: EntryReadJob) -> Result<(), StoreError>;
    /// Runs a writing job; durable when the call returns. Concurrent jobs share one fsync.
    async fn change(&self, room: DiskCheck, job: EntryWriteJob) -> Result<(), StoreError>;
    /// Commits a prepared modify if the subscriber's revision is unchanged (compare-and-set) and the watcher's data
    /// is valid. Durable when the call returns. `false`: nothing was written.
    async fn modify_prepared(&self, retouch: PreparedModify) -> Result<bool, StoreError>;
    /// Commits a prepared add if the id and the name are free, the parent exists and the watcher's data is valid.
    /// `false`: nothing was written.
    async fn add_prepared(&self, arrival: PreparedAdd) -> Result<bool, StoreError>;
}

/// Index changes of an entry, and the notification of its change.
pub(crate) struct IndexDiff {
    pub(crate) gone: Vec<EntryKey>,
    pub(crate) made: Vec<EntryKey>,
    pub(crate) change: EntryChange,
}

impl IndexDiff {
    /// Difference between two states of an entry; `None` if it never existed.
    pub(crate) fn of(watcher: &dyn EntryWatcher, old: Option<&EntryNode>, now: Option<EntryNode>) -> Option<IndexDiff> {
        let number = now.as_ref().or(old).map(EntryNode::number)?;
        let both = old.zip(now.as_ref());
        let (gone, made) = match both.is_some_and(|(old, now)| watcher.have_same_keys(old, now)) {
            true => (Vec::new(), Vec::new()),
            false => {
                let keys = |node: Option<&EntryNode>| node.map(|node| watcher.keys(node)).unwrap_or_default();
                index_diff(&keys(old), &keys(now.as_ref()))
            }
        };
        let renamed = both.is_some_and(|(old, now)| old.place() != now.place());
        let now = now.map_or(EntryState::Gone, EntryState::Stored);
        let change = EntryChange { number, keys: [&gone[..], &made].concat(), renamed, now };
        Some(IndexDiff { gone, made, change })
    }
}

/// Index keys removed and added between two states of an entry.
pub fn index_diff(before: &[EntryKey], after: &[EntryKey]) -> (Vec<EntryKey>, Vec<EntryKey>) {
    (difference(before, after), difference(after, before))
}

/// Keys that only the first list has.
fn difference(one: &[EntryKey], other: &[EntryKey]) -> Vec<EntryKey> {
    let known: HashSet<&EntryKey> = other.iter().collect();
    one.iter().filter(|key| !known.contains(key)).cloned().collect()
}

#[cfg(test)]
mod conformance;
