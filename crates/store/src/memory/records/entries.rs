//! In-memory directory entries.

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

use super::{MemoryRecords, RecordsState};
use crate::{
    entries::{
        DiskCheck, ENTRY_CHANGES_KEPT, Entries, EntryChange, EntryFeed, EntryKey, EntryNode, EntryNumber, EntryReadJob,
        EntryReader, EntryState, EntryWatcher, EntryWriteJob, EntryWriter, IndexDiff, LoginNames, Object, Placement,
        PreparedAdd, PreparedEntry, PreparedModify, ROW_ATTRIBUTES, RowChange, StoredObject,
    },
    error::StoreError,
    records::{MergeRefusal, NewSubscriber, Precondition},
};

/// Data of the directory besides the subscribers.
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
    pending_changes: Vec<EntryChange>,
    /// Entries whose credentials changed since the last notification.
    pending_credentials: Vec<EntryNumber>,
    /// Changed entries by sequence; entry number 0 marks the start of a new log.
    changes: BTreeMap<u64, EntryNumber>,
}

impl Directory {
    /// Notifies the watcher of the changes since the last call.
    pub(super) fn notify_watcher(&mut self) {
        let changes = std::mem::take(&mut self.pending_changes);
        if let Some(watcher) = self.watcher.as_ref().filter(|_| !changes.is_empty()) {
            watcher.changed(changes);
        }
        let credentials = std::mem::take(&mut self.pending_credentials);
        if let Some(watcher) = self.watcher.as_ref().filter(|_| !credentials.is_empty()) {
            watcher.credentials_changed(&credentials);
        }
    }

    fn put_credential(&mut self, number: EntryNumber, credential: Option<String>) {
        self.pending_credentials.push(number);
        match credential {
            Some(credential) => self.credentials.insert(number, credential),
            None => self.credentials.remove(&number),
        };
    }

    /// A subscriber was created, changed or removed.
    pub(super) fn changed(&mut self, old: Option<&Subscriber>, new: Option<&Subscriber>) {
        let node = |subscriber: &Subscriber| self.node_of(subscriber);
        let (before, now) = (old.map(node), new.map(node));
        self.node_changed(before, now);
        if let (Some(old), None) = (old, new) {
            self.placements.remove(&old.number);
            self.put_credential(old.number.into(), None);
        }
    }

    /// Whether a subscriber has a placement.
    pub(super) fn is_placed(&self, number: SubscriberNumber) -> bool {
        self.placements.contains_key(&number)
    }

    /// Checks whether the first of two subscribers may be merged into the second.
    pub(super) fn may_merge(&self, from: SubscriberNumber, into: SubscriberNumber) -> Result<(), MergeRefusal> {
        if self.credentials.contains_key(&from.into()) {
            return Err(MergeRefusal::HasPassword);
        }
        let parent = |number| self.placements.get(&number).map(|placement| placement.parent);
        match parent(from) {
            Some(stands) if Some(stands) != parent(into) => Err(MergeRefusal::OtherContainer),
            _ => Ok(()),
        }
    }

    fn last_change(&self) -> u64 {
        self.changes.last_key_value().map_or(0, |(place, _)| *place)
    }

    /// Skips a sequence, so that no reader can continue from the last change.
    fn start_new_log(&mut self) {
        self.changes = BTreeMap::from([(self.last_change() + 2, EntryNumber(0))]);
    }

    fn node_of(&self, subscriber: &Subscriber) -> EntryNode {
        EntryNode::Subscriber(Box::new(subscriber.clone()), self.placements.get(&subscriber.number).cloned())
    }

    fn node_changed(&mut self, old: Option<EntryNode>, now: Option<EntryNode>) {
        let Some(watcher) = self.watcher.clone() else {
            if !std::mem::take(&mut self.indexes).is_empty() {
                self.start_new_log();
            }
            return;
        };
        if let Some(IndexDiff { gone, made, change }) = IndexDiff::of(&*watcher, old.as_ref(), now) {
            self.index_diff(gone, made, change);
        }
    }

    fn is_still_valid(&self, built: &PreparedEntry) -> bool {
        self.watcher.as_ref().is_some_and(|watcher| watcher.is_still_valid(built))
    }

    fn index_diff(&mut self, gone: Vec<EntryKey>, made: Vec<EntryKey>, change: EntryChange) {
        for EntryKey { index, key } in gone {
            self.keys.remove(&(index, key, change.number));
        }
        self.keys.extend(made.into_iter().map(|EntryKey { index, key }| (index, key, change.number)));
        let place = self.last_change() + 1;
        self.changes.insert(place, change.number);
        if self.changes.len() as u64 > ENTRY_CHANGES_KEPT {
            self.changes.pop_first();
        }
        self.pending_changes.push(change);
    }
}

#[async_trait]
impl Entries for MemoryRecords {
    fn watch(&self, watcher: Arc<dyn EntryWatcher>) {
        self.state.lock().directory.watcher.get_or_insert(watcher);
    }

    async fn read(&self, job: EntryReadJob) -> Result<(), StoreError> {
        job(&*self.state.lock())
    }

    async fn change(&self, _room: DiskCheck, job: EntryWriteJob) -> Result<(), StoreError> {
        MemoryRecords::change(self, |state| job(state))
    }

    async fn modify_prepared(&self, modify_prepared: PreparedModify) -> Result<bool, StoreError> {
        MemoryRecords::change(self, |state| state.modify_prepared(modify_prepared))
    }

    async fn add_prepared(&self, arrival: PreparedAdd) -> Result<bool, StoreError> {
        MemoryRecords::change(self, |state| state.add_prepared(arrival))
    }
}

impl RecordsState {
    fn modify_prepared(&mut self, modify_prepared: PreparedModify) -> Result<bool, StoreError> {
        let PreparedModify { number, revision, attributes, gone, made, now, built, .. } = modify_prepared;
        let is_valid = self.directory.is_still_valid(&built);
        let is_it = |found: &&Subscriber| found.number == number && found.revision == revision;
        let Some(old) = self.subscribers.values().find(is_it).filter(|_| is_valid).cloned() else { return Ok(false) };
        if self.may_conflict(Some(number.into()), &made)? {
            return Ok(false);
        }
        let damaged = |error: serde_json::Error| StoreError::Damaged(error.to_string());
        let attributes = serde_json::from_str(&attributes).map_err(damaged)?;
        self.touched.push(number);
        self.log_profile(&old);
        let profile = Profile { attributes, ..old.profile.clone() };
        let new = Subscriber { profile, updated_at: now, revision: revision + 1, ..old };
        self.subscribers.insert(new.id.clone(), new);
        let keys = [&gone[..], &made].concat();
        let change = EntryChange { number: number.into(), keys, renamed: false, now: EntryState::Prepared(built) };
        self.directory.index_diff(gone, made, change);
        Ok(true)
    }

    fn add_prepared(&mut self, arrival: PreparedAdd) -> Result<bool, StoreError> {
        let PreparedAdd { new, placement, credential, keys, now, built } = arrival;
        let is_free = self.child(Some(placement.parent), &placement.rdn_key)?.is_none();
        let stands = self.directory.objects.contains_key(&placement.parent) && is_free;
        if self.may_conflict(None, &keys)? {
            return Ok(false);
        }
        if !stands || self.subscribers.contains_key(&new.id) || !self.directory.is_still_valid(&built) {
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
        let change = EntryChange { number, keys: keys.clone(), renamed: false, now: EntryState::Prepared(built) };
        self.directory.index_diff(Vec::new(), keys, change);
        Ok(true)
    }
}

impl EntryReader for RecordsState {
    fn node(&self, number: EntryNumber) -> Result<Option<EntryNode>, StoreError> {
        Ok(match number.subscriber() {
            Some(number) => {
                let found = self.subscribers.values().find(|found| found.number == number);
                found.map(|found| self.directory.node_of(found))
            }
            None => self.directory.objects.get(&number).cloned().map(EntryNode::Object),
        })
    }

    fn subscriber(&self, id: &SubscriberId) -> Result<Option<EntryNode>, StoreError> {
        Ok(self.subscribers.get(id).map(|found| self.directory.node_of(found)))
    }

    fn child(&self, parent: Option<EntryNumber>, rdn_key: &str) -> Result<Option<EntryNode>, StoreError> {
        let is_it = |object: &&StoredObject| object.object.parent == parent && &*object.object.rdn_key == rdn_key;
        if let Some(object) = self.directory.objects.values().find(is_it) {
            return Ok(Some(EntryNode::Object(object.clone())));
        }
        let placed = |(_, at): &(&SubscriberNumber, &Placement)| Some(at.parent) == parent && &*at.rdn_key == rdn_key;
        match self.directory.placements.iter().find(placed) {
            Some((number, _)) => self.node((*number).into()),
            None => Ok(None),
        }
    }

    fn head(&self, number: EntryNumber) -> Result<Option<EntryNode>, StoreError> {
        Ok(self.node(number)?.map(without_rows))
    }

    fn child_head(&self, parent: Option<EntryNumber>, rdn_key: &str) -> Result<Option<EntryNode>, StoreError> {
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
        Ok(self.page(Some(parent), unplaced, after, limit)?.iter().map(EntryNode::number).collect())
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
    ) -> Result<Vec<EntryNode>, StoreError> {
        let is_selected = |node: &EntryNode| {
            parent.is_none()
                || match node {
                    EntryNode::Subscriber(_, None) => unplaced,
                    node => node.parent() == parent,
                }
        };
        let objects = self.directory.objects.values().cloned().map(EntryNode::Object);
        let mut subscribers: Vec<&Subscriber> = self.subscribers.values().collect();
        subscribers.sort_by_key(|found| found.number);
        let all = objects.chain(subscribers.into_iter().map(|found| self.directory.node_of(found)));
        let place = |number: EntryNumber| (number.0 < 0, number.0.unsigned_abs());
        let later = all.skip_while(|node| after.is_some_and(|after| place(node.number()) <= place(after)));
        Ok(later.filter(is_selected).take(limit).collect())
    }

    fn found(
        &self,
        index: &str,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        limit: usize,
    ) -> Result<Option<Vec<EntryNumber>>, StoreError> {
        let is_within = |key: &[u8]| {
            let later = match from {
                Bound::Included(from) => key >= from,
                Bound::Excluded(from) => key > from,
                Bound::Unbounded => true,
            };
            let before = match to {
                Bound::Included(to) => key <= to,
                Bound::Excluded(to) => key < to,
                Bound::Unbounded => true,
            };
            later && before
        };
        let selected = self.directory.keys.iter().filter(|(name, key, _)| &**name == index && is_within(key));
        let numbers: BTreeSet<EntryNumber> = selected.map(|(_, _, number)| *number).collect();
        Ok((numbers.len() <= limit).then(|| numbers.into_iter().collect()))
    }

    fn first(&self, index: &str, limit: usize) -> Result<Vec<EntryNumber>, StoreError> {
        let selected = self.directory.keys.iter().filter(|(name, key, _)| &**name == index && !key.is_empty());
        Ok(selected.map(|(_, _, number)| *number).take(limit).collect())
    }

    fn entry_feed(&self) -> Result<EntryFeed, StoreError> {
        let first = self.directory.changes.first_key_value().map_or(1, |(place, _)| *place);
        Ok(EntryFeed { since: first - 1, last: self.directory.last_change() })
    }

    fn entries_changed(&self, after: u64, limit: usize) -> Result<Vec<(u64, EntryNumber)>, StoreError> {
        let later = self.directory.changes.range(after.saturating_add(1)..).filter(|(_, number)| number.0 != 0);
        Ok(later.take(limit).map(|(place, number)| (*place, *number)).collect())
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

impl RecordsState {
    /// Updates the entries that reference a renamed or removed entry.
    pub(super) fn update_references(&mut self, old: &EntryNode, now: Option<&EntryNode>) -> Result<(), StoreError> {
        let is_renamed = now.is_none_or(|now| old.place() != now.place());
        match self.directory.watcher.clone().filter(|_| is_renamed) {
            Some(watcher) => watcher.update_references(self, old, now),
            None => Ok(()),
        }
    }

    /// Returns an error if another entry has one of the login names.
    pub(super) fn check_login(&self, entry: Option<EntryNumber>, names: LoginNames<'_>) -> Result<(), StoreError> {
        let Some(watcher) = &self.directory.watcher else { return Ok(()) };
        match watcher.find_login_conflict(self, entry, names)? {
            Some(name) => Err(StoreError::Taken(format!("another entry with the login name `{name}`"))),
            None => Ok(()),
        }
    }

    fn may_conflict(&self, entry: Option<EntryNumber>, made: &[EntryKey]) -> Result<bool, StoreError> {
        match &self.directory.watcher {
            Some(watcher) => watcher.may_conflict(self, entry, made),
            None => Ok(false),
        }
    }

    /// Entry of a subscriber.
    pub(super) fn entry_of(&self, subscriber: &Subscriber) -> EntryNode {
        self.directory.node_of(subscriber)
    }
}

impl EntryWriter for RecordsState {
    fn reader(&self) -> &dyn EntryReader {
        self
    }

    fn put_object(&mut self, new: Object, now: Timestamp) -> Result<EntryNumber, StoreError> {
        self.check_login(None, LoginNames::Attributes { before: None, now: &new.attributes })?;
        self.directory.last_object += 1;
        let number = EntryNumber(self.directory.last_object);
        let made = StoredObject { number, object: new, created_at: now, updated_at: now, revision: 1 };
        self.directory.objects.insert(number, made.clone());
        self.directory.node_changed(None, Some(EntryNode::Object(made)));
        Ok(number)
    }

    fn change_object(&mut self, old: &StoredObject, new: Object, now: Timestamp) -> Result<(), StoreError> {
        let names = LoginNames::Attributes { before: Some(&old.object.attributes), now: &new.attributes };
        self.check_login(Some(old.number), names)?;
        let changed = StoredObject { object: new, updated_at: now, revision: old.revision + 1, ..old.clone() };
        self.directory.objects.insert(old.number, changed.clone());
        let (old, now) = (EntryNode::Object(old.clone()), EntryNode::Object(changed));
        self.directory.node_changed(Some(old.clone()), Some(now.clone()));
        self.update_references(&old, Some(&now))
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
        let change = EntryChange { number: old.number, keys, renamed: false, now: EntryState::Unread };
        self.directory.index_diff(gone.clone(), made.clone(), change);
        Ok(())
    }

    fn put_subscriber(
        &mut self,
        new: NewSubscriber,
        placement: Option<Placement>,
        expect: Precondition,
        now: Timestamp,
    ) -> Result<EntryNumber, StoreError> {
        let number = match self.subscribers.get(&new.id) {
            Some(found) => found.number,
            None => SubscriberNumber(self.last_subscriber + 1),
        };
        let before = self.node(number.into())?;
        let was_placed = before.is_none();
        if let Some(placement) = placement.clone().filter(|_| was_placed) {
            // The placement must be known when the new entry is indexed.
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
                self.update_references(before, now.as_ref())?;
            }
        }
        Ok(number.into())
    }

    fn change_subscriber(
        &mut self,
        _old: &EntryNode,
        new: NewSubscriber,
        placement: Option<Placement>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        EntryWriter::put_subscriber(self, new, placement, Precondition::Present, now).map(|_| ())
    }

    fn remove(&mut self, number: EntryNumber, now: Timestamp) -> Result<(), StoreError> {
        match self.node(number)? {
            Some(EntryNode::Subscriber(subscriber, _)) => {
                self.remove_subscriber(&subscriber.id, Precondition::Present, now)
            }
            Some(EntryNode::Object(object)) => {
                self.directory.objects.remove(&number);
                self.directory.put_credential(number, None);
                let old = EntryNode::Object(object);
                self.directory.node_changed(Some(old.clone()), None);
                self.update_references(&old, None)
            }
            None => Ok(()),
        }
    }

    fn put_credential(&mut self, number: EntryNumber, credential: Option<&str>) -> Result<(), StoreError> {
        self.directory.put_credential(number, credential.map(str::to_owned));
        Ok(())
    }

    fn cut_entry_feed(&mut self) -> Result<(), StoreError> {
        self.directory.start_new_log();
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
        Ok(page.last().filter(|_| page.len() == limit).map(EntryNode::number))
    }

    fn set_indexes(&mut self, indexes: &[String]) -> Result<(), StoreError> {
        self.directory.indexes = indexes.iter().cloned().collect();
        let Directory { keys, indexes, .. } = &mut self.directory;
        keys.retain(|(index, ..)| indexes.contains(&**index));
        Ok(())
    }
}

/// Texts of a value or of its items.
fn texts(value: &Value) -> Vec<Box<str>> {
    match value {
        Value::List(items) => items.iter().filter_map(Value::as_text).map(Into::into).collect(),
        one => one.as_text().map(Into::into).into_iter().collect(),
    }
}

fn without_rows(mut node: EntryNode) -> EntryNode {
    if let EntryNode::Object(stored) = &mut node {
        stored.object.attributes.retain(|name, _| !ROW_ATTRIBUTES.contains(&name.as_str()));
    }
    node
}
