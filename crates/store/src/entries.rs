//! The port of the directory: entries in a tree, of which subscribers are some.
//!
//! A subscriber is kept once, as the records keep it. Beside its row the directory has where it stands in the tree
//! ([`Placement`]); one without a placement stands where the directory lets all such stand. What is no subscriber is an
//! [`Object`]: a container, a group. Whoever changes a subscriber, by whatever way, changes its entry in the same commit.

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
    records::{Expect, NewSubscriber},
};

/// The number of an entry, never used twice: that of an object, or that of a subscriber below zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryNumber(pub i64);

impl EntryNumber {
    /// The subscriber of this number, if it is one.
    pub fn subscriber(self) -> Option<SubscriberNumber> {
        (self.0 < 0).then(|| SubscriberNumber(self.0.unsigned_abs()))
    }
}

impl From<SubscriberNumber> for EntryNumber {
    fn from(number: SubscriberNumber) -> Self {
        EntryNumber(-i64::try_from(number.0).unwrap_or(i64::MAX))
    }
}

/// Where a subscriber stands in the tree, and what it is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The entry above.
    pub parent: EntryNumber,
    /// Its relative distinguished name, as it was written.
    pub rdn: Box<str>,
    /// The same in normal form; unique below the parent.
    pub rdn_key: Box<str>,
    /// Its object classes, separated by spaces.
    pub classes: Box<str>,
}

/// An entry that is no subscriber.
#[derive(Debug, Clone, PartialEq)]
pub struct Object {
    /// The entry above; none above the first.
    pub parent: Option<EntryNumber>,
    /// Its relative distinguished name, as it was written; the whole name of the first.
    pub rdn: Box<str>,
    /// The same in normal form; unique below the parent.
    pub rdn_key: Box<str>,
    /// Its attributes with its object classes; a list has several values.
    pub attributes: BTreeMap<String, Value>,
}

/// Attributes of objects of which each value is a row of its own, so that a member comes and goes without the others.
pub const ROW_ATTRIBUTES: [&str; 3] = ["member", "roleOccupant", "uniqueMember"];

/// Values of an object's attribute that are rows, which come and go while all else of the object stays.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RowChange {
    /// The attribute, one of [`ROW_ATTRIBUTES`].
    pub name: Box<str>,
    /// Values that it gets.
    pub added: Vec<Box<str>>,
    /// Values that it loses.
    pub removed: Vec<Box<str>>,
    /// Keys under which the entry is no longer found.
    pub gone: Vec<EntryKey>,
    /// Keys under which it is found from now on.
    pub made: Vec<EntryKey>,
}

/// An object as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredObject {
    /// Above zero.
    pub number: EntryNumber,
    /// What it is.
    pub object: Object,
    /// When it was made, and when it last changed.
    pub created_at: Timestamp,
    /// See `created_at`.
    pub updated_at: Timestamp,
    /// Grows with each change.
    pub revision: u64,
}

/// An entry as the store has it.
#[derive(Debug, Clone, PartialEq)]
pub enum Node {
    /// A subscriber, and where it stands; `None`: where all stand that were not placed.
    Subscriber(Box<Subscriber>, Option<Placement>),
    /// Anything else.
    Object(StoredObject),
}

impl Node {
    /// Its number.
    pub fn number(&self) -> EntryNumber {
        match self {
            Node::Subscriber(subscriber, _) => subscriber.number.into(),
            Node::Object(object) => object.number,
        }
    }

    /// The entry above; `None` for the first, and for a subscriber that was not placed.
    pub fn parent(&self) -> Option<EntryNumber> {
        match self {
            Node::Subscriber(_, placement) => placement.as_ref().map(|placement| placement.parent),
            Node::Object(object) => object.object.parent,
        }
    }

    /// Where it was put, and under which name; nothing of a subscriber that was not placed.
    pub(crate) fn place(&self) -> (Option<EntryNumber>, Option<&str>) {
        match self {
            Node::Subscriber(_, placement) => (self.parent(), placement.as_ref().map(|placement| &*placement.rdn)),
            Node::Object(object) => (object.object.parent, Some(&*object.object.rdn)),
        }
    }
}

/// Under what an entry is found: an index, and a key in it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryKey {
    /// The index.
    pub index: Arc<str>,
    /// What is looked for; keys are in the order of their bytes.
    pub key: Box<[u8]>,
}

/// What a commit did to an entry.
#[derive(Debug, Clone)]
pub struct EntryChange {
    /// Which.
    pub number: EntryNumber,
    /// Keys under which it is no longer found, or is found from now on.
    pub keys: Vec<EntryKey>,
    /// Whether its name changed, and with it those of the entries below.
    pub renamed: bool,
    /// What it is now.
    pub now: Now,
}

/// What an entry is after a commit.
#[derive(Debug, Clone)]
pub enum Now {
    /// It is gone.
    Gone,
    /// This.
    Stored(Node),
    /// What its watcher built beforehand.
    Built(Built),
    /// A part of it changed, and the store did not read the rest.
    Unread,
}

impl Now {
    /// The entry, where the store had it at hand.
    pub fn node(&self) -> Option<&Node> {
        match self {
            Now::Stored(node) => Some(node),
            Now::Gone | Now::Built(_) | Now::Unread => None,
        }
    }
}

/// What a watcher keeps of a change that it worked out beforehand; the store gives it back unread.
pub type Built = Arc<dyn Any + Send + Sync>;

/// A change of the attributes of a subscriber, worked out beforehand on one of its revisions, so that the one writer only writes it
/// down. All else of the subscriber stays: its name and place, devices, locale, time zone and preferences, whether it is enabled.
#[derive(Debug)]
pub struct Retouch {
    /// Whose.
    pub number: SubscriberNumber,
    /// The revision on which it was worked out.
    pub revision: u64,
    /// Whether it is enabled, before and after.
    pub enabled: bool,
    /// All its attributes from now on, as JSON. They differ from those of before.
    pub attributes: Arc<str>,
    /// Those that differ, as they were; `None`: there was none of this name.
    pub before: BTreeMap<String, Option<Value>>,
    /// Keys under which its entry is no longer found.
    pub gone: Vec<EntryKey>,
    /// Keys under which it is found from now on.
    pub made: Vec<EntryKey>,
    /// When.
    pub now: Timestamp,
    /// Told when it is done.
    pub built: Built,
}

/// A subscriber that stands below an object, worked out beforehand as a whole.
#[derive(Debug)]
pub struct Arrival {
    /// What it is. Nobody has its id yet.
    pub new: NewSubscriber,
    /// Where it stands. No other entry has this name yet.
    pub placement: Placement,
    /// What its holder proves itself with.
    pub credential: Option<String>,
    /// Keys under which its entry is found.
    pub keys: Vec<EntryKey>,
    /// When.
    pub now: Timestamp,
    /// Told when it is done.
    pub built: Built,
}

/// The changes of entries that are known: those after one place, up to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryFeed {
    /// After this place all changes are known.
    pub since: u64,
    /// The newest.
    pub last: u64,
}

/// Changes of entries that the feed keeps.
pub const ENTRY_FEED_KEPT: u64 = 1_000_000;

/// The login names of an entry.
#[derive(Debug, Clone, Copy)]
pub enum LoginNames<'a> {
    /// The id of a subscriber that was not placed.
    Id(&'a SubscriberId),
    /// Among these attributes.
    Attributes {
        /// The former attributes; names among them are not asked again.
        before: Option<&'a BTreeMap<String, Value>>,
        /// The present attributes.
        now: &'a BTreeMap<String, Value>,
    },
}

/// Tells the store how entries are found, and hears of their changes.
pub trait EntryWatcher: Send + Sync + 'static {
    /// The keys of an entry. A function of the entry and of the indexes that are set.
    fn keys(&self, node: &Node) -> Vec<EntryKey>;
    /// Whether two states of an entry have the same keys, as far as can be told without making them; `false`: perhaps not.
    fn have_same_keys(&self, _old: &Node, _now: &Node) -> bool {
        false
    }
    /// Whether what was built beforehand still holds, but for the entry's own revision: whether its keys would be the same. Asked
    /// at the place of the change among all others.
    fn holds(&self, _built: &Built) -> bool {
        false
    }
    /// Called within a commit after an entry got another name or went, so that the entries which name it follow. `now`: what it is;
    /// `None`: it is going, and may still be found.
    fn follow(&self, _tree: &mut dyn Tree, _old: &Node, _now: Option<&Node>) -> Result<(), StoreError> {
        Ok(())
    }
    /// A login name of an entry that another entry has already. Asked before anything of a change is written. `entry`: its number;
    /// `None`: it is about to be made.
    fn taken_login(
        &self,
        _branches: &dyn Branches,
        _entry: Option<EntryNumber>,
        _names: LoginNames<'_>,
    ) -> Result<Option<String>, StoreError> {
        Ok(None)
    }
    /// Whether keys stand for a login name that another entry may have; then the change is made in the usual way.
    fn may_be_taken(
        &self,
        _branches: &dyn Branches,
        _entry: Option<EntryNumber>,
        _made: &[EntryKey],
    ) -> Result<bool, StoreError> {
        Ok(false)
    }
    /// Called after each commit, in their order, before the call that made it returns. Must be quick.
    fn changed(&self, changes: Vec<EntryChange>);
    /// The same of entries whose holders prove themselves in another way from now on, or not at all.
    fn credentials_changed(&self, entries: &[EntryNumber]);
}

/// Looks at entries, all as of one moment.
pub trait Branches {
    /// An entry.
    fn node(&self, number: EntryNumber) -> Result<Option<Node>, StoreError>;
    /// A subscriber's entry.
    fn subscriber(&self, id: &SubscriberId) -> Result<Option<Node>, StoreError>;
    /// The entry of this name in normal form that was placed below another; below none, the first.
    fn child(&self, parent: Option<EntryNumber>, rdn_key: &str) -> Result<Option<Node>, StoreError>;
    /// The same as [`Branches::node`]; of an object without the values that are rows.
    fn head(&self, number: EntryNumber) -> Result<Option<Node>, StoreError>;
    /// The same as [`Branches::child`]; of an object without the values that are rows.
    fn child_head(&self, parent: Option<EntryNumber>, rdn_key: &str) -> Result<Option<Node>, StoreError>;
    /// Up to `limit` values of an object's attribute that are rows.
    fn row_values(&self, number: EntryNumber, name: &str, limit: usize) -> Result<Vec<Box<str>>, StoreError>;
    /// Whether an object's attribute has this value as a row.
    fn has_row_value(&self, number: EntryNumber, name: &str, value: &str) -> Result<bool, StoreError>;
    /// The numbers of up to `limit` entries directly below another, in the order of [`Branches::page`].
    fn children(
        &self,
        parent: EntryNumber,
        unplaced: bool,
        after: Option<EntryNumber>,
        limit: usize,
    ) -> Result<Vec<EntryNumber>, StoreError>;
    /// Those of some entries that have others placed below them.
    fn with_children(&self, numbers: &[EntryNumber]) -> Result<Vec<EntryNumber>, StoreError>;
    /// Whether an entry is found under a key.
    fn is_found(&self, key: &EntryKey, number: EntryNumber) -> Result<bool, StoreError>;
    /// Up to `limit` entries below another, or all: first the objects and then the subscribers, each in the order of
    /// their making, after `after`. `unplaced`: with the subscribers that were not placed.
    fn page(
        &self,
        parent: Option<EntryNumber>,
        unplaced: bool,
        after: Option<EntryNumber>,
        limit: usize,
    ) -> Result<Vec<Node>, StoreError>;
    /// The entries with keys within bounds, each once, in the order of their numbers; `None` if there are more than
    /// `limit`.
    fn found(
        &self,
        index: &str,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        limit: usize,
    ) -> Result<Option<Vec<EntryNumber>>, StoreError>;
    /// The entries of the first keys of an index, in the order of the keys; up to `limit`. Empty keys do not count.
    fn first(&self, index: &str, limit: usize) -> Result<Vec<EntryNumber>, StoreError>;
    /// Which changes of entries are known. There are none of the time before the first watcher, nor of one without any.
    fn entry_feed(&self) -> Result<EntryFeed, StoreError>;
    /// Up to `limit` changes after a place, in their order: each with its place and its entry, which may be gone.
    fn entries_changed(&self, after: u64, limit: usize) -> Result<Vec<(u64, EntryNumber)>, StoreError>;
    /// What its holder proves itself with, in a form that only the directory knows.
    fn credential(&self, number: EntryNumber) -> Result<Option<String>, StoreError>;
    /// Up to `limit` of the same after an entry, in the order of their entries.
    fn credentials(&self, after: Option<EntryNumber>, limit: usize) -> Result<Vec<(EntryNumber, String)>, StoreError>;
    /// What the schema has beside what is built in: identifier and text, in the order of their making.
    fn definitions(&self) -> Result<Vec<(String, String)>, StoreError>;
    /// The indexes that hold all entries.
    fn indexes(&self) -> Result<Vec<String>, StoreError>;
}

/// Changes entries; all in one commit. A job that refuses must do so before it changes anything: only a store that lies on a
/// disk can take back what was done.
pub trait Tree {
    /// What is there, with what the job has changed so far.
    fn branches(&self) -> &dyn Branches;
    /// Stores an object.
    fn put_object(&mut self, new: Object, now: Timestamp) -> Result<EntryNumber, StoreError>;
    /// Replaces an object.
    fn change_object(&mut self, old: &StoredObject, new: Object, now: Timestamp) -> Result<(), StoreError>;
    /// Changes values of an object that are rows. `old`: the object, with or without them.
    fn change_rows(&mut self, old: &StoredObject, change: &RowChange, now: Timestamp) -> Result<(), StoreError>;
    /// Stores a subscriber and its place.
    fn put_subscriber(
        &mut self,
        new: NewSubscriber,
        placement: Option<Placement>,
        expect: Expect,
        now: Timestamp,
    ) -> Result<EntryNumber, StoreError>;
    /// Replaces a subscriber that this job has just read, and gives it another place if one is given. `old`: the subscriber; an
    /// object stays as it is.
    fn change_subscriber(
        &mut self,
        old: &Node,
        new: NewSubscriber,
        placement: Option<Placement>,
        now: Timestamp,
    ) -> Result<(), StoreError>;
    /// Removes an entry with all that hangs on it. Entries below are not looked at.
    fn remove(&mut self, number: EntryNumber, now: Timestamp) -> Result<(), StoreError>;
    /// Stores a credential, or forgets it.
    fn put_credential(&mut self, number: EntryNumber, credential: Option<&str>) -> Result<(), StoreError>;
    /// Whoever follows the changes of entries begins anew: what was before is not known any more.
    fn cut_entry_feed(&mut self) -> Result<(), StoreError>;
    /// Stores a definition of the schema, or forgets it.
    fn put_definition(&mut self, identifier: &str, text: Option<&str>) -> Result<(), StoreError>;
    /// Writes the keys of up to `limit` entries after `after`. Gives the last of them; `None`: there are no more.
    fn index_page(&mut self, after: Option<EntryNumber>, limit: usize) -> Result<Option<EntryNumber>, StoreError>;
    /// Says which indexes hold all entries. Keys of others are removed.
    fn set_indexes(&mut self, indexes: &[String]) -> Result<(), StoreError>;
}

/// A job that looks.
pub type LookJob = Box<dyn FnOnce(&dyn Branches) -> Result<(), StoreError> + Send>;
/// A job that changes.
pub type ChangeJob = Box<dyn FnOnce(&mut dyn Tree) -> Result<(), StoreError> + Send>;

/// Whether a change takes up room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// It is refused with `Full` while the disk is nearly full.
    Needed,
    /// It goes on.
    NotNeeded,
}

/// The entries of the directory, kept with the records.
#[async_trait]
pub trait Entries: Send + Sync + 'static {
    /// Begins to keep indexes, and to tell of changes. Without a watcher indexes are not kept, and [`Branches::indexes`]
    /// tells so from then on. Only the first watcher counts.
    fn watch(&self, watcher: Arc<dyn EntryWatcher>);
    /// Runs a job that looks. It sees every change that was acknowledged before.
    async fn look(&self, job: LookJob) -> Result<(), StoreError>;
    /// Runs a job that changes; durable when the call returns. Concurrent ones share one fsync.
    async fn change(&self, room: Room, job: ChangeJob) -> Result<(), StoreError>;
    /// Writes down a change that was worked out beforehand, which takes up room; durable when the call returns. `false`: nothing was
    /// written, for the subscriber is at another revision or gone, or its watcher says that it does not hold any more.
    async fn retouch(&self, retouch: Retouch) -> Result<bool, StoreError>;
    /// The same for a subscriber that is made. `false`: nothing was written, for its id or its name is taken, the object above is
    /// gone, or its watcher says that it does not hold any more.
    async fn arrive(&self, arrival: Arrival) -> Result<bool, StoreError>;
}

/// What becomes of an entry: the keys that it loses and gets, and what is told.
pub(crate) struct Turn {
    pub(crate) gone: Vec<EntryKey>,
    pub(crate) made: Vec<EntryKey>,
    pub(crate) told: EntryChange,
}

impl Turn {
    /// From what an entry was to what it is; `None`: it never was one.
    pub(crate) fn of(watcher: &dyn EntryWatcher, old: Option<&Node>, now: Option<Node>) -> Option<Turn> {
        let number = now.as_ref().or(old).map(Node::number)?;
        let both = old.zip(now.as_ref());
        let (gone, made) = match both.is_some_and(|(old, now)| watcher.have_same_keys(old, now)) {
            true => (Vec::new(), Vec::new()),
            false => {
                let keys = |node: Option<&Node>| node.map(|node| watcher.keys(node)).unwrap_or_default();
                turned(&keys(old), &keys(now.as_ref()))
            }
        };
        let renamed = both.is_some_and(|(old, now)| old.place() != now.place());
        let now = now.map_or(Now::Gone, Now::Stored);
        let told = EntryChange { number, keys: [&gone[..], &made].concat(), renamed, now };
        Some(Turn { gone, made, told })
    }
}

/// The keys that an entry loses and those that it gets, from what it had and what it has.
pub fn turned(before: &[EntryKey], after: &[EntryKey]) -> (Vec<EntryKey>, Vec<EntryKey>) {
    (difference(before, after), difference(after, before))
}

/// Keys that only one of two has.
fn difference(one: &[EntryKey], other: &[EntryKey]) -> Vec<EntryKey> {
    let known: HashSet<&EntryKey> = other.iter().collect();
    one.iter().filter(|key| !known.contains(key)).cloned().collect()
}

#[cfg(test)]
mod conformance;
