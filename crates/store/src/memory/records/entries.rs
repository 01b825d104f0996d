//! The directory in memory.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::Arc,
};

use async_trait::async_trait;
use tocsin_model::{
    id::{SubscriberId, SubscriberNumber},
    subscriber::{Profile, Subscriber},
    time::Timestamp,
    value::Value,
};

use super::{MemoryRecords, Shelf};
use crate::{
    entries::{
        Arrival, Branches, Built, ChangeJob, ENTRY_FEED_KEPT, Entries, EntryChange, EntryFeed, EntryKey, EntryNumber,
        EntryWatcher, LoginNames, LookJob, Node, Now, Object, Placement, ROW_ATTRIBUTES, Retouch, Room, RowChange,
        StoredObject, Tree, Turn,
    },
    error::StoreError,
    records::{Expect, NewSubscriber, NotMerged},
};

/// What the directory has beside the subscribers.
#[derive(Default)]
pub(super) struct Directory {
    objects: BTreeMap<EntryNumber, StoredObject>,
    last_object: i64,
    placements: BTreeMap<SubscriberNumber, Placement>,
    keys: BTreeSet<(Arc<str>, Box<[u8]>, EntryNumber)>,
    indexes: BTreeSet<String>,
    credentials: BTreeMap<EntryNumber, String>,
    definitions: Vec<(String, String)>,
    watcher: Option<Arc<dyn EntryWatcher>>,
    untold: Vec<EntryChange>,
    /// Entries whose credentials changed since it was last told.
    credentials_untold: Vec<EntryNumber>,
    /// What changed, by its place; the number 0 stands where the feed was cut.
    changes: BTreeMap<u64, EntryNumber>,
}

impl Directory {
    /// Tells what was changed since it was last told.
    pub(super) fn tell(&mut self) {
        let changes = std::mem::take(&mut self.untold);
        if let Some(watcher) = self.watcher.as_ref().filter(|_| !changes.is_empty()) {
            watcher.changed(changes);
        }
        let credentials = std::mem::take(&mut self.credentials_untold);
        if let Some(watcher) = self.watcher.as_ref().filter(|_| !credentials.is_empty()) {
            watcher.credentials_changed(&credentials);
        }
    }

    fn put_credential(&mut self, number: EntryNumber, credential: Option<String>) {
        self.credentials_untold.push(number);
        match credential {
            Some(credential) => self.credentials.insert(number, credential),
            None => self.credentials.remove(&number),
        };
    }

    /// A subscriber was made, changed or removed.
    pub(super) fn changed(&mut self, old: Option<&Subscriber>, new: Option<&Subscriber>) {
        let node = |subscriber: &Subscriber| self.node_of(subscriber);
        let (before, now) = (old.map(node), new.map(node));
        self.node_changed(before, now);
        if let (Some(old), None) = (old, new) {
            self.placements.remove(&old.number);
            self.put_credential(old.number.into(), None);
        }
    }

    /// Whether a subscriber has a place in the tree.
    pub(super) fn is_placed(&self, number: SubscriberNumber) -> bool {
        self.placements.contains_key(&number)
    }

    /// Whether the first of two may become a part of the second.
    pub(super) fn may_merge(&self, from: SubscriberNumber, into: SubscriberNumber) -> Result<(), NotMerged> {
        if self.credentials.contains_key(&from.into()) {
            return Err(NotMerged::HasPassword);
        }
        let parent = |number| self.placements.get(&number).map(|placement| placement.parent);
        match parent(from) {
            Some(stands) if Some(stands) != parent(into) => Err(NotMerged::OtherContainer),
            _ => Ok(()),
        }
    }

    fn last_change(&self) -> u64 {
        self.changes.last_key_value().map_or(0, |(place, _)| *place)
    }

    /// One place is left out, so that nobody who was told of the last change goes on.
    fn cut_feed(&mut self) {
        self.changes = BTreeMap::from([(self.last_change() + 2, EntryNumber(0))]);
    }

    fn node_of(&self, subscriber: &Subscriber) -> Node {
        Node::Subscriber(Box::new(subscriber.clone()), self.placements.get(&subscriber.number).cloned())
    }

    fn node_changed(&mut self, old: Option<Node>, now: Option<Node>) {
        let Some(watcher) = self.watcher.clone() else {
            if !std::mem::take(&mut self.indexes).is_empty() {
                self.cut_feed();
            }
            return;
        };
        if let Some(Turn { gone, made, told }) = Turn::of(&*watcher, old.as_ref(), now) {
            self.turned(gone, made, told);
        }
    }

    fn holds(&self, built: &Built) -> bool {
        self.watcher.as_ref().is_some_and(|watcher| watcher.holds(built))
    }

    fn turned(&mut self, gone: Vec<EntryKey>, made: Vec<EntryKey>, told: EntryChange) {
        for EntryKey { index, key } in gone {
            self.keys.remove(&(index, key, told.number));
        }
        self.keys.extend(made.into_iter().map(|EntryKey { index, key }| (index, key, told.number)));
        let place = self.last_change() + 1;
        self.changes.insert(place, told.number);
        if self.changes.len() as u64 > ENTRY_FEED_KEPT {
            self.changes.pop_first();
        }
        self.untold.push(told);
    }
}

#[async_trait]
impl Entries for MemoryRecords {
    fn watch(&self, watcher: Arc<dyn EntryWatcher>) {
        self.shelf.lock().directory.watcher.get_or_insert(watcher);
    }

    async fn look(&self, job: LookJob) -> Result<(), StoreError> {
        job(&*self.shelf.lock())
    }

    async fn change(&self, _room: Room, job: ChangeJob) -> Result<(), StoreError> {
        MemoryRecords::change(self, |shelf| job(shelf))
    }

    async fn retouch(&self, retouch: Retouch) -> Result<bool, StoreError> {
        MemoryRecords::change(self, |shelf| shelf.retouch(retouch))
    }

    async fn arrive(&self, arrival: Arrival) -> Result<bool, StoreError> {
        MemoryRecords::change(self, |shelf| shelf.arrive(arrival))
    }
}

impl Shelf {
    fn retouch(&mut self, retouch: Retouch) -> Result<bool, StoreError> {
        let Retouch { number, revision, attributes, gone, made, now, built, .. } = retouch;
        let holds = self.directory.holds(&built);
        let is_it = |found: &&Subscriber| found.number == number && found.revision == revision;
        let Some(old) = self.subscribers.values().find(is_it).filter(|_| holds).cloned() else { return Ok(false) };
        if self.may_be_taken(Some(number.into()), &made)? {
            return Ok(false);
        }
        let damaged = |error: serde_json::Error| StoreError::Damaged(error.to_string());
        let attributes = serde_json::from_str(&attributes).map_err(damaged)?;
        self.touched.push(number);
        self.tell_profile(&old);
        let profile = Profile { attributes, ..old.profile.clone() };
        let new = Subscriber { profile, updated_at: now, revision: revision + 1, ..old };
        self.subscribers.insert(new.id.clone(), new);
        let keys = [&gone[..], &made].concat();
        let told = EntryChange { number: number.into(), keys, renamed: false, now: Now::Built(built) };
        self.directory.turned(gone, made, told);
        Ok(true)
    }

    fn arrive(&mut self, arrival: Arrival) -> Result<bool, StoreError> {
        let Arrival { new, placement, credential, keys, now, built } = arrival;
        let is_free = self.child(Some(placement.parent), &placement.rdn_key)?.is_none();
        let stands = self.directory.objects.contains_key(&placement.parent) && is_free;
        if self.may_be_taken(None, &keys)? {
            return Ok(false);
        }
        if !stands || self.subscribers.contains_key(&new.id) || !self.directory.holds(&built) {
            return Ok(false);
        }
        self.last_subscriber += 1;
        let made = Subscriber {
            number: SubscriberNumber(self.last_subscriber),
            id: new.id,
            profile: new.profile,
            devices: new.devices.unwrap_or_default().into_iter().collect(),
            preferences: new.preferences.unwrap_or_default(),
            created_at: now,
            updated_at: now,
            revision: 1,
        };
        let number = EntryNumber::from(made.number);
        self.directory.placements.insert(made.number, placement);
        if credential.is_some() {
            self.directory.put_credential(number, credential);
        }
        self.subscribers.insert(made.id.clone(), made);
        let told = EntryChange { number, keys: keys.clone(), renamed: false, now: Now::Built(built) };
        self.directory.turned(Vec::new(), keys, told);
        Ok(true)
    }
}

impl Branches for Shelf {
    fn node(&self, number: EntryNumber) -> Result<Option<Node>, StoreError> {
        Ok(match number.subscriber() {
            Some(number) => {
                let found = self.subscribers.values().find(|found| found.number == number);
                found.map(|found| self.directory.node_of(found))
            }
            None => self.directory.objects.get(&number).cloned().map(Node::Object),
        })
    }

    fn subscriber(&self, id: &SubscriberId) -> Result<Option<Node>, StoreError> {
        Ok(self.subscribers.get(id).map(|found| self.directory.node_of(found)))
    }

    fn child(&self, parent: Option<EntryNumber>, rdn_key: &str) -> Result<Option<Node>, StoreError> {
        let is_it = |object: &&StoredObject| object.object.parent == parent && &*object.object.rdn_key == rdn_key;
        if let Some(object) = self.directory.objects.values().find(is_it) {
            return Ok(Some(Node::Object(object.clone())));
        }
        let placed = |(_, at): &(&SubscriberNumber, &Placement)| Some(at.parent) == parent && &*at.rdn_key == rdn_key;
        match self.directory.placements.iter().find(placed) {
            Some((number, _)) => self.node((*number).into()),
            None => Ok(None),
        }
    }

    fn head(&self, number: EntryNumber) -> Result<Option<Node>, StoreError> {
        Ok(self.node(number)?.map(without_rows))
    }

    fn child_head(&self, parent: Option<EntryNumber>, rdn_key: &str) -> Result<Option<Node>, StoreError> {
        Ok(self.child(parent, rdn_key)?.map(without_rows))
    }

    fn row_values(&self, number: EntryNumber, name: &str, limit: usize) -> Result<Vec<Box<str>>, StoreError> {
        let object = self.directory.objects.get(&number);
        let value = object.and_then(|object| object.object.attributes.get(name));
        Ok(value.map(texts).unwrap_or_default().into_iter().take(limit).collect())
    }

    fn has_row_value(&self, number: EntryNumber, name: &str, value: &str) -> Result<bool, StoreError> {
        Ok(self.row_values(number, name, usize::MAX)?.iter().any(|known| **known == *value))
    }

    fn children(
        &self,
        parent: EntryNumber,
        unplaced: bool,
        after: Option<EntryNumber>,
        limit: usize,
    ) -> Result<Vec<EntryNumber>, StoreError> {
        Ok(self.page(Some(parent), unplaced, after, limit)?.iter().map(Node::number).collect())
    }

    fn with_children(&self, numbers: &[EntryNumber]) -> Result<Vec<EntryNumber>, StoreError> {
        let objects = self.directory.objects.values().filter_map(|object| object.object.parent);
        let parents: BTreeSet<_> = objects.chain(self.directory.placements.values().map(|at| at.parent)).collect();
        Ok(numbers.iter().copied().filter(|number| parents.contains(number)).collect())
    }

    fn is_found(&self, key: &EntryKey, number: EntryNumber) -> Result<bool, StoreError> {
        Ok(self.directory.keys.contains(&(key.index.clone(), key.key.clone(), number)))
    }

    fn page(
        &self,
        parent: Option<EntryNumber>,
        unplaced: bool,
        after: Option<EntryNumber>,
        limit: usize,
    ) -> Result<Vec<Node>, StoreError> {
        let is_meant = |node: &Node| {
            parent.is_none()
                || match node {
                    Node::Subscriber(_, None) => unplaced,
                    node => node.parent() == parent,
                }
        };
        let objects = self.directory.objects.values().cloned().map(Node::Object);
        let mut subscribers: Vec<&Subscriber> = self.subscribers.values().collect();
        subscribers.sort_by_key(|found| found.number);
        let all = objects.chain(subscribers.into_iter().map(|found| self.directory.node_of(found)));
        let place = |number: EntryNumber| (number.0 < 0, number.0.unsigned_abs());
        let behind = all.skip_while(|node| after.is_some_and(|after| place(node.number()) <= place(after)));
        Ok(behind.filter(is_meant).take(limit).collect())
    }

    fn found(
        &self,
        index: &str,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        limit: usize,
    ) -> Result<Option<Vec<EntryNumber>>, StoreError> {
        let is_within = |key: &[u8]| {
            let behind = match from {
                Bound::Included(from) => key >= from,
                Bound::Excluded(from) => key > from,
                Bound::Unbounded => true,
            };
            let before = match to {
                Bound::Included(to) => key <= to,
                Bound::Excluded(to) => key < to,
                Bound::Unbounded => true,
            };
            behind && before
        };
        let meant = self.directory.keys.iter().filter(|(name, key, _)| &**name == index && is_within(key));
        let numbers: BTreeSet<EntryNumber> = meant.map(|(_, _, number)| *number).collect();
        Ok((numbers.len() <= limit).then(|| numbers.into_iter().collect()))
    }

    fn first(&self, index: &str, limit: usize) -> Result<Vec<EntryNumber>, StoreError> {
        let meant = self.directory.keys.iter().filter(|(name, key, _)| &**name == index && !key.is_empty());
        Ok(meant.map(|(_, _, number)| *number).take(limit).collect())
    }

    fn entry_feed(&self) -> Result<EntryFeed, StoreError> {
        let first = self.directory.changes.first_key_value().map_or(1, |(place, _)| *place);
        Ok(EntryFeed { since: first - 1, last: self.directory.last_change() })
    }

    fn entries_changed(&self, after: u64, limit: usize) -> Result<Vec<(u64, EntryNumber)>, StoreError> {
        let behind = self.directory.changes.range(after.saturating_add(1)..).filter(|(_, number)| number.0 != 0);
        Ok(behind.take(limit).map(|(place, number)| (*place, *number)).collect())
    }

    fn credential(&self, number: EntryNumber) -> Result<Option<String>, StoreError> {
        Ok(self.directory.credentials.get(&number).cloned())
    }

    fn credentials(&self, after: Option<EntryNumber>, limit: usize) -> Result<Vec<(EntryNumber, String)>, StoreError> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = self.directory.credentials.range((from, Bound::Unbounded));
        Ok(rest.take(limit).map(|(number, text)| (*number, text.clone())).collect())
    }

    fn definitions(&self) -> Result<Vec<(String, String)>, StoreError> {
        Ok(self.directory.definitions.clone())
    }

    fn indexes(&self) -> Result<Vec<String>, StoreError> {
        Ok(self.directory.indexes.iter().cloned().collect())
    }
}

impl Shelf {
    /// Lets the entries follow that name one which got another name or went.
    pub(super) fn follow(&mut self, old: &Node, now: Option<&Node>) -> Result<(), StoreError> {
        let is_renamed = now.is_none_or(|now| old.place() != now.place());
        match self.directory.watcher.clone().filter(|_| is_renamed) {
            Some(watcher) => watcher.follow(self, old, now),
            None => Ok(()),
        }
    }

    /// Refuses a login name that another entry has.
    pub(super) fn check_login(&self, entry: Option<EntryNumber>, names: LoginNames<'_>) -> Result<(), StoreError> {
        let Some(watcher) = &self.directory.watcher else { return Ok(()) };
        match watcher.taken_login(self, entry, names)? {
            Some(name) => Err(StoreError::Taken(format!("another entry with the login name `{name}`"))),
            None => Ok(()),
        }
    }

    fn may_be_taken(&self, entry: Option<EntryNumber>, made: &[EntryKey]) -> Result<bool, StoreError> {
        match &self.directory.watcher {
            Some(watcher) => watcher.may_be_taken(self, entry, made),
            None => Ok(false),
        }
    }

    /// The entry of a subscriber.
    pub(super) fn entry_of(&self, subscriber: &Subscriber) -> Node {
        self.directory.node_of(subscriber)
    }
}

impl Tree for Shelf {
    fn branches(&self) -> &dyn Branches {
        self
    }

    fn put_object(&mut self, new: Object, now: Timestamp) -> Result<EntryNumber, StoreError> {
        self.check_login(None, LoginNames::Attributes { before: None, now: &new.attributes })?;
        self.directory.last_object += 1;
        let number = EntryNumber(self.directory.last_object);
        let made = StoredObject { number, object: new, created_at: now, updated_at: now, revision: 1 };
        self.directory.objects.insert(number, made.clone());
        self.directory.node_changed(None, Some(Node::Object(made)));
        Ok(number)
    }

    fn change_object(&mut self, old: &StoredObject, new: Object, now: Timestamp) -> Result<(), StoreError> {
        let names = LoginNames::Attributes { before: Some(&old.object.attributes), now: &new.attributes };
        self.check_login(Some(old.number), names)?;
        let changed = StoredObject { object: new, updated_at: now, revision: old.revision + 1, ..old.clone() };
        self.directory.objects.insert(old.number, changed.clone());
        let (old, now) = (Node::Object(old.clone()), Node::Object(changed));
        self.directory.node_changed(Some(old.clone()), Some(now.clone()));
        self.follow(&old, Some(&now))
    }

    fn change_rows(&mut self, old: &StoredObject, change: &RowChange, now: Timestamp) -> Result<(), StoreError> {
        let RowChange { name, added, removed, gone, made } = change;
        let Some(stored) = self.directory.objects.get_mut(&old.number) else { return Ok(()) };
        let mut values = stored.object.attributes.get(&**name).map(texts).unwrap_or_default();
        values.retain(|value| !removed.contains(value));
        values.extend(added.iter().cloned());
        stored.object.attributes.remove(&**name);
        if !values.is_empty() {
            let values = values.iter().map(|value| Value::from(&**value)).collect();
            stored.object.attributes.insert(name.to_string(), Value::List(values));
        }
        (stored.updated_at, stored.revision) = (now, stored.revision + 1);
        let keys = [&gone[..], made].concat();
        let told = EntryChange { number: old.number, keys, renamed: false, now: Now::Unread };
        self.directory.turned(gone.clone(), made.clone(), told);
        Ok(())
    }

    fn put_subscriber(
        &mut self,
        new: NewSubscriber,
        placement: Option<Placement>,
        expect: Expect,
        now: Timestamp,
    ) -> Result<EntryNumber, StoreError> {
        let number = match self.subscribers.get(&new.id) {
            Some(found) => found.number,
            None => SubscriberNumber(self.last_subscriber + 1),
        };
        let before = self.node(number.into())?;
        let was_placed = before.is_none();
        if let Some(placement) = placement.clone().filter(|_| was_placed) {
            // Its place must be known when its making is told.
            self.directory.placements.insert(number, placement);
        }
        let revision = self.subscribers.get(&new.id).map(|found| found.revision);
        let made = self.put_subscriber(new, expect, now)?;
        if let Some(placement) = placement.filter(|_| !was_placed) {
            let before = self.node(number.into())?;
            self.directory.placements.insert(number, placement);
            if let Some(found) = self.subscribers.get_mut(&made.id).filter(|found| Some(found.revision) == revision) {
                (found.revision, found.updated_at) = (found.revision + 1, now);
            }
            let now = self.node(number.into())?;
            self.directory.node_changed(before.clone(), now.clone());
            if let Some(before) = &before {
                self.follow(before, now.as_ref())?;
            }
        }
        Ok(number.into())
    }

    fn change_subscriber(
        &mut self,
        _old: &Node,
        new: NewSubscriber,
        placement: Option<Placement>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        Tree::put_subscriber(self, new, placement, Expect::Present, now).map(|_| ())
    }

    fn remove(&mut self, number: EntryNumber, _now: Timestamp) -> Result<(), StoreError> {
        match self.node(number)? {
            Some(Node::Subscriber(subscriber, _)) => self.remove_subscriber(&subscriber.id, Expect::Present),
            Some(Node::Object(object)) => {
                self.directory.objects.remove(&number);
                self.directory.put_credential(number, None);
                let old = Node::Object(object);
                self.directory.node_changed(Some(old.clone()), None);
                self.follow(&old, None)
            }
            None => Ok(()),
        }
    }

    fn put_credential(&mut self, number: EntryNumber, credential: Option<&str>) -> Result<(), StoreError> {
        self.directory.put_credential(number, credential.map(str::to_owned));
        Ok(())
    }

    fn cut_entry_feed(&mut self) -> Result<(), StoreError> {
        self.directory.cut_feed();
        Ok(())
    }

    fn put_definition(&mut self, identifier: &str, text: Option<&str>) -> Result<(), StoreError> {
        let definitions = &mut self.directory.definitions;
        let known = definitions.iter().position(|(known, _)| known == identifier);
        match (known, text) {
            (Some(at), Some(text)) => definitions[at].1 = text.to_owned(),
            (None, Some(text)) => definitions.push((identifier.to_owned(), text.to_owned())),
            (Some(at), None) => drop(definitions.remove(at)),
            (None, None) => {}
        }
        Ok(())
    }

    fn index_page(&mut self, after: Option<EntryNumber>, limit: usize) -> Result<Option<EntryNumber>, StoreError> {
        let Some(watcher) = self.directory.watcher.clone() else { return Ok(None) };
        let page = self.page(None, true, after, limit)?;
        for node in &page {
            let keys = watcher.keys(node).into_iter().map(|EntryKey { index, key }| (index, key, node.number()));
            self.directory.keys.extend(keys);
        }
        Ok(page.last().filter(|_| page.len() == limit).map(Node::number))
    }

    fn set_indexes(&mut self, indexes: &[String]) -> Result<(), StoreError> {
        self.directory.indexes = indexes.iter().cloned().collect();
        let Directory { keys, indexes, .. } = &mut self.directory;
        keys.retain(|(index, ..)| indexes.contains(&**index));
        Ok(())
    }
}

/// The texts of a value, or of its items.
fn texts(value: &Value) -> Vec<Box<str>> {
    match value {
        Value::List(items) => items.iter().filter_map(Value::as_text).map(Into::into).collect(),
        one => one.as_text().map(Into::into).into_iter().collect(),
    }
}

fn without_rows(mut node: Node) -> Node {
    if let Node::Object(stored) = &mut node {
        stored.object.attributes.retain(|name, _| !ROW_ATTRIBUTES.contains(&name.as_str()));
    }
    node
}
