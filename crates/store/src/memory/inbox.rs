//! In-memory backend of the inbox port: lists that are scanned as a whole.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use tocsin_model::{
    id::{InboxBroadcastId, Name, NotificationId, SubscriberNumber},
    inbox::{InboxContent, Item, ItemId, Mark, NewItem},
    time::Timestamp,
};

use crate::{
    error::StoreError,
    inbox::{
        BROADCASTS_MAX, Broadcast, BroadcastHead, DeliveryCounts, FeedChange, FeedChanges, FeedFilter, FeedReader,
        Inbox, InboxCounts, Listener, ListenerRegistry, NewBroadcast, TOMBSTONES_KEPT, no_broadcast, no_changes_after,
        too_many_broadcasts,
    },
};

/// In-memory inbox.
#[derive(Default)]
pub struct MemoryInbox {
    state: Mutex<State>,
    listeners: Arc<ListenerRegistry>,
}

#[derive(Default)]
struct State {
    sequence: u64,
    forgotten: u64,
    /// Items by number.
    items: BTreeMap<u64, (SubscriberNumber, Item)>,
    /// Tombstones by the sequence of the removal.
    removed: BTreeMap<u64, Tombstone>,
    broadcasts: BTreeMap<InboxBroadcastId, StoredBroadcast>,
    reader_states: BTreeMap<(SubscriberNumber, InboxBroadcastId), ReaderState>,
}

struct Tombstone {
    subscriber: SubscriberNumber,
    number: u64,
    id: NotificationId,
    at: Timestamp,
}

struct StoredBroadcast {
    broadcast: Broadcast,
    changed: u64,
    withdrawn_at: Option<Timestamp>,
    gone: bool,
}

#[derive(Clone, Copy, Default)]
struct ReaderState {
    read_at: Option<Timestamp>,
    archived_at: Option<Timestamp>,
    deleted: bool,
    changed: u64,
}

impl State {
    fn next(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    fn is_known(&self, id: NotificationId) -> bool {
        self.items.values().any(|(_, item)| item.id == ItemId::Notification(id))
            || self.removed.values().any(|removed| removed.id == id)
    }

    fn remove(&mut self, number: u64, now: Timestamp) {
        let Some((subscriber, item)) = self.items.remove(&number) else { return };
        let ItemId::Notification(id) = item.id else { return };
        let place = self.next();
        self.removed.insert(place, Tombstone { subscriber, number, id, at: now });
    }

    /// Broadcast as a reader sees it, and whether the reader still has it.
    fn seen(&self, stored: &StoredBroadcast, subscriber: SubscriberNumber) -> (Item, bool) {
        let reader_state = self.reader_states.get(&(subscriber, stored.broadcast.id)).copied().unwrap_or_default();
        let item = Item {
            id: ItemId::Broadcast(stored.broadcast.id),
            number: stored.broadcast.id.0,
            changed: stored.changed.max(reader_state.changed),
            content: Arc::new(stored.broadcast.content.clone()),
            created_at: stored.broadcast.created_at,
            read_at: reader_state.read_at,
            archived_at: reader_state.archived_at,
            expires_at: stored.broadcast.expires_at,
        };
        (item, stored.withdrawn_at.is_none() && !reader_state.deleted)
    }

    fn broadcasts_of<'s>(&'s self, reader: &'s FeedReader) -> impl Iterator<Item = (Item, bool)> + 's {
        let stored = reader.broadcasts.iter().filter_map(|id| self.broadcasts.get(id)).filter(|stored| !stored.gone);
        stored.map(|stored| self.seen(stored, reader.subscriber))
    }

    /// All items of a reader, newest first.
    fn all(&self, reader: &FeedReader, now: Timestamp) -> Vec<Item> {
        let own = self.items.values().filter(|(subscriber, _)| *subscriber == reader.subscriber);
        let own = own.map(|(_, item)| item.clone());
        let mut all: Vec<Item> =
            own.chain(self.broadcasts_of(reader).filter(|(_, there)| *there).map(|(item, _)| item)).collect();
        all.retain(|item| item.expires_at > now);
        all.sort_by_key(|item| std::cmp::Reverse(item.number));
        all
    }

    fn find(&self, reader: &FeedReader, id: ItemId, now: Timestamp) -> Option<Item> {
        self.all(reader, now).into_iter().find(|item| item.id == id)
    }

    fn mark(&mut self, subscriber: SubscriberNumber, item: &Item, mark: Mark, now: Timestamp) -> bool {
        let applied = mark.applied(item.read_at, item.archived_at, now);
        if applied == Some((item.read_at, item.archived_at)) {
            return false;
        }
        match (item.id, applied) {
            (ItemId::Notification(_), None) => self.remove(item.number, now),
            (ItemId::Notification(_), Some((read_at, archived_at))) => {
                let changed = self.next();
                if let Some((_, stored)) = self.items.get_mut(&item.number) {
                    (stored.read_at, stored.archived_at, stored.changed) = (read_at, archived_at, changed);
                }
            }
            (ItemId::Broadcast(id), applied) => {
                let (read_at, archived_at) = applied.unwrap_or((item.read_at, item.archived_at));
                let reader_state =
                    ReaderState { read_at, archived_at, deleted: applied.is_none(), changed: self.next() };
                self.reader_states.insert((subscriber, id), reader_state);
                let readers = self
                    .reader_states
                    .iter()
                    .filter(|((_, of), reader_state)| *of == id && reader_state.read_at.is_some());
                let readers = readers.count() as u64;
                if let Some(stored) = self.broadcasts.get_mut(&id) {
                    stored.broadcast.readers = readers;
                }
            }
        }
        true
    }

    fn move_feed(&mut self, from: SubscriberNumber, into: SubscriberNumber) -> u64 {
        let numbers: Vec<u64> =
            self.items.iter().filter(|(_, (of, _))| *of == from).map(|(number, _)| *number).collect();
        for number in &numbers {
            let changed = self.next();
            if let Some((of, item)) = self.items.get_mut(number) {
                (*of, item.changed) = (into, changed);
            }
        }
        self.removed.values_mut().filter(|removed| removed.subscriber == from).for_each(|it| it.subscriber = into);
        let touched: Vec<InboxBroadcastId> =
            self.reader_states.keys().filter(|(of, _)| *of == from).map(|(_, broadcast)| *broadcast).collect();
        for broadcast in touched {
            let Some(old) = self.reader_states.remove(&(from, broadcast)) else { continue };
            let changed = self.next();
            let there = self.reader_states.entry((into, broadcast)).or_default();
            *there = ReaderState {
                read_at: there.read_at.or(old.read_at),
                archived_at: there.archived_at.or(old.archived_at),
                deleted: there.deleted || old.deleted,
                changed,
            };
            let readers = self
                .reader_states
                .iter()
                .filter(|((_, of), reader_state)| *of == broadcast && reader_state.read_at.is_some());
            let readers = readers.count() as u64;
            if let Some(stored) = self.broadcasts.get_mut(&broadcast) {
                stored.broadcast.readers = readers;
            }
        }
        numbers.len() as u64
    }

    fn find_broadcast(&self, application: &Name, name: &Name) -> Option<InboxBroadcastId> {
        let is_this = |stored: &&StoredBroadcast| {
            let Broadcast { name: own, content, .. } = &stored.broadcast;
            !stored.gone && stored.withdrawn_at.is_none() && own == name && content.application == *application
        };
        self.broadcasts.values().find(is_this).map(|stored| stored.broadcast.id)
    }
}

fn matches_filter(filter: &FeedFilter, item: &Item) -> bool {
    let InboxContent { application, class, channel, .. } = &*item.content;
    filter.item_filter.holds(item.read_at.is_some(), item.archived_at.is_some())
        && filter.application.as_ref().is_none_or(|requested| requested == application)
        && filter.class.as_ref().is_none_or(|requested| requested == class)
        && filter.channel.as_ref().is_none_or(|requested| Some(requested) == channel.as_ref())
}

#[async_trait]
impl Inbox for MemoryInbox {
    async fn put_items(
        &self,
        items: Vec<NewItem>,
        items_max: u32,
        now: Timestamp,
    ) -> Result<DeliveryCounts, StoreError> {
        let mut delivered = DeliveryCounts::default();
        let mut touched = Vec::new();
        {
            let mut state = self.state.lock();
            for NewItem { subscriber, id, content, expires_at } in items {
                if state.is_known(id) {
                    delivered.known += 1;
                    continue;
                }
                delivered.new += 1;
                let number = state.next();
                let item = Item {
                    id: ItemId::Notification(id),
                    number,
                    changed: number,
                    content,
                    created_at: now,
                    read_at: None,
                    archived_at: None,
                    expires_at,
                };
                state.items.insert(number, (subscriber, item));
                if !touched.contains(&subscriber) {
                    touched.push(subscriber);
                }
            }
            for subscriber in &touched {
                let own = state.items.iter().filter(|(_, (of, _))| of == subscriber);
                let numbers: Vec<u64> = own.map(|(number, _)| *number).collect();
                for number in &numbers[..numbers.len().saturating_sub(items_max as usize)] {
                    state.remove(*number, now);
                    delivered.evicted += 1;
                }
            }
        }
        self.listeners.notify(touched);
        Ok(delivered)
    }

    async fn feed(
        &self,
        reader: &FeedReader,
        filter: &FeedFilter,
        before: Option<u64>,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<Item>, StoreError> {
        let mut items = self.state.lock().all(reader, now);
        items.retain(|item| matches_filter(filter, item) && before.is_none_or(|before| item.number < before));
        items.truncate(limit);
        Ok(items)
    }

    async fn item(&self, reader: &FeedReader, id: ItemId, now: Timestamp) -> Result<Option<Item>, StoreError> {
        Ok(self.state.lock().find(reader, id, now))
    }

    async fn unread(&self, reader: &FeedReader, now: Timestamp) -> Result<u64, StoreError> {
        let items = self.state.lock().all(reader, now);
        Ok(items.iter().filter(|item| item.read_at.is_none() && item.archived_at.is_none()).count() as u64)
    }

    async fn changes(
        &self,
        reader: &FeedReader,
        after: u64,
        limit: usize,
        now: Timestamp,
    ) -> Result<FeedChanges, StoreError> {
        let state = self.state.lock();
        if after < state.forgotten || after > state.sequence {
            return Err(no_changes_after(after));
        }
        let to_change = |item: Item| match item.number > after {
            true => (item.changed, FeedChange::New(item)),
            false => (item.changed, FeedChange::Changed(item)),
        };
        let present = state.all(reader, now).into_iter().filter(|item| item.changed > after).map(to_change);
        let removed = state.removed.range(after + 1..);
        let removed = removed
            .filter(|(_, removed)| removed.subscriber == reader.subscriber && removed.number <= after)
            .map(|(place, removed)| (*place, FeedChange::Removed(ItemId::Notification(removed.id))));
        let withdrawn = state
            .broadcasts_of(reader)
            .filter(|(item, there)| !there && item.changed > after && item.number <= after && item.expires_at > now)
            .map(|(item, _)| (item.changed, FeedChange::Removed(item.id)));
        let mut changes: Vec<(u64, FeedChange)> = present.chain(removed).chain(withdrawn).collect();
        changes.sort_by_key(|(place, _)| *place);
        let more = changes.len() > limit;
        changes.truncate(limit);
        let upto = match changes.last() {
            Some((place, _)) if more => *place,
            _ => state.sequence,
        };
        Ok(FeedChanges { changes, upto, more })
    }

    fn newest(&self) -> u64 {
        self.state.lock().sequence
    }

    fn listen(&self, subscriber: SubscriberNumber) -> Listener {
        self.listeners.listen(subscriber)
    }

    async fn mark(
        &self,
        reader: &FeedReader,
        ids: Vec<ItemId>,
        mark: Mark,
        now: Timestamp,
    ) -> Result<Vec<ItemId>, StoreError> {
        let mut found = Vec::new();
        {
            let mut state = self.state.lock();
            for id in ids {
                let Some(item) = state.find(reader, id, now) else { continue };
                state.mark(reader.subscriber, &item, mark, now);
                found.push(id);
            }
        }
        self.listeners.notify([reader.subscriber]);
        Ok(found)
    }

    async fn mark_all(
        &self,
        reader: &FeedReader,
        filter: &FeedFilter,
        upto: u64,
        mark: Mark,
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        let mut changed = 0;
        {
            let mut state = self.state.lock();
            let mut items = state.all(reader, now);
            items.retain(|item| matches_filter(filter, item) && item.number <= upto);
            for item in items.iter().rev() {
                changed += u64::from(state.mark(reader.subscriber, item, mark, now));
            }
        }
        self.listeners.notify([reader.subscriber]);
        Ok(changed)
    }

    async fn move_feed(&self, from: SubscriberNumber, into: SubscriberNumber) -> Result<u64, StoreError> {
        let count = self.state.lock().move_feed(from, into);
        self.listeners.notify([from, into]);
        Ok(count)
    }

    async fn erase_feed(&self, subscriber: SubscriberNumber) -> Result<(), StoreError> {
        self.remove_feed(subscriber).await
    }

    async fn remove_feed(&self, subscriber: SubscriberNumber) -> Result<(), StoreError> {
        {
            let mut state = self.state.lock();
            state.items.retain(|_, (of, _)| *of != subscriber);
            state.removed.retain(|_, removed| removed.subscriber != subscriber);
            state.reader_states.retain(|(of, _), _| *of != subscriber);
        }
        self.listeners.notify([subscriber]);
        Ok(())
    }

    async fn put_broadcast(&self, new: NewBroadcast, now: Timestamp) -> Result<(Broadcast, bool), StoreError> {
        let (broadcast, is_new) = {
            let mut state = self.state.lock();
            let found = state.find_broadcast(&new.content.application, &new.name);
            let NewBroadcast { name, audience, content, expires_at } = new;
            let is_over = |id: &InboxBroadcastId| state.broadcasts[id].broadcast.expires_at <= now;
            match found.filter(|id| !is_over(id)) {
                Some(id) => {
                    let present = &state.broadcasts[&id].broadcast;
                    if present.audience == audience && present.expires_at == expires_at && present.content == content {
                        return Ok((present.clone(), false));
                    }
                    let changed = state.next();
                    let stored = state.broadcasts.get_mut(&id).expect("it was found");
                    let before = stored.broadcast.clone();
                    (stored.changed, stored.broadcast) =
                        (changed, Broadcast { audience, content, expires_at, ..before });
                    (stored.broadcast.clone(), false)
                }
                None => {
                    if let Some(stored) = found.and_then(|id| state.broadcasts.get_mut(&id)) {
                        stored.gone = true;
                    }
                    let is_live = |stored: &&StoredBroadcast| {
                        !stored.gone && stored.withdrawn_at.is_none() && stored.broadcast.expires_at > now
                    };
                    if state.broadcasts.values().filter(is_live).count() >= BROADCASTS_MAX {
                        return Err(too_many_broadcasts());
                    }
                    let changed = state.next();
                    let id = InboxBroadcastId(changed);
                    let broadcast = Broadcast { id, name, audience, content, created_at: now, expires_at, readers: 0 };
                    let stored =
                        StoredBroadcast { broadcast: broadcast.clone(), changed, withdrawn_at: None, gone: false };
                    state.broadcasts.insert(id, stored);
                    (broadcast, true)
                }
            }
        };
        self.listeners.notify_all();
        Ok((broadcast, is_new))
    }

    async fn broadcasts(&self, application: &Name, now: Timestamp) -> Result<Vec<Broadcast>, StoreError> {
        let state = self.state.lock();
        let is_theirs = |stored: &&StoredBroadcast| {
            let Broadcast { content, expires_at, .. } = &stored.broadcast;
            !stored.gone && stored.withdrawn_at.is_none() && *expires_at > now && content.application == *application
        };
        Ok(state.broadcasts.values().rev().filter(is_theirs).map(|stored| stored.broadcast.clone()).collect())
    }

    async fn withdraw_broadcast(&self, application: &Name, name: &Name, now: Timestamp) -> Result<(), StoreError> {
        {
            let mut state = self.state.lock();
            let found = state.find_broadcast(application, name);
            let id = found.filter(|id| state.broadcasts[id].broadcast.expires_at > now);
            let id = id.ok_or_else(|| no_broadcast(name))?;
            let changed = state.next();
            if let Some(stored) = state.broadcasts.get_mut(&id) {
                (stored.withdrawn_at, stored.changed) = (Some(now), changed);
            }
            let mut withdrawn: Vec<(u64, InboxBroadcastId)> = state
                .broadcasts
                .values()
                .filter(|stored| !stored.gone && stored.withdrawn_at.is_some())
                .map(|stored| (stored.changed, stored.broadcast.id))
                .collect();
            withdrawn.sort_unstable();
            for (changed, id) in &withdrawn[..withdrawn.len().saturating_sub(BROADCASTS_MAX)] {
                state.forgotten = state.forgotten.max(*changed);
                state.broadcasts.get_mut(id).expect("it is there").gone = true;
            }
        }
        self.listeners.notify_all();
        Ok(())
    }

    fn broadcast_heads(&self) -> Arc<Vec<BroadcastHead>> {
        let state = self.state.lock();
        let heads = state.broadcasts.values().filter(|stored| !stored.gone).map(|stored| BroadcastHead {
            id: stored.broadcast.id,
            audience: stored.broadcast.audience.clone(),
            expires_at: stored.broadcast.expires_at,
            withdrawn: stored.withdrawn_at.is_some(),
        });
        Arc::new(heads.collect())
    }

    async fn expire(&self, now: Timestamp, limit: usize) -> Result<(u64, bool), StoreError> {
        let mut state = self.state.lock();
        let mut expired: Vec<(Timestamp, SubscriberNumber, u64)> = state
            .items
            .iter()
            .filter(|(_, (_, item))| item.expires_at <= now)
            .map(|(number, (subscriber, item))| (item.expires_at, *subscriber, *number))
            .collect();
        expired.sort_unstable();
        expired.truncate(limit);
        for (_, _, number) in &expired {
            state.items.remove(number);
        }
        let mut old: Vec<(Timestamp, u64)> = state
            .removed
            .iter()
            .filter(|(_, removed)| removed.at <= now - TOMBSTONES_KEPT)
            .map(|(place, removed)| (removed.at, *place))
            .collect();
        old.sort_unstable();
        old.truncate(limit);
        for (_, place) in &old {
            state.removed.remove(place);
            state.forgotten = state.forgotten.max(*place);
        }
        let mut forgotten = state.forgotten;
        for stored in state.broadcasts.values_mut().filter(|stored| !stored.gone) {
            if stored.broadcast.expires_at <= now {
                stored.gone = true;
            } else if stored.withdrawn_at.is_some_and(|at| at <= now - TOMBSTONES_KEPT) {
                (stored.gone, forgotten) = (true, forgotten.max(stored.changed));
            }
        }
        state.forgotten = forgotten;
        let gone: Vec<InboxBroadcastId> =
            state.broadcasts.iter().filter(|(_, stored)| stored.gone).map(|(id, _)| *id).collect();
        for id in &gone {
            state.broadcasts.remove(id);
        }
        state.reader_states.retain(|(_, id), _| !gone.contains(id));
        Ok(((expired.len() + gone.len()) as u64, expired.len() == limit || old.len() == limit))
    }

    fn counts(&self) -> InboxCounts {
        let state = self.state.lock();
        let mut contents: Vec<&InboxContent> = Vec::new();
        for (_, item) in state.items.values() {
            if !contents.contains(&&*item.content) {
                contents.push(&item.content);
            }
        }
        let broadcasts = state.broadcasts.len() as u64;
        InboxCounts { items: state.items.len() as u64, contents: contents.len() as u64 + broadcasts }
    }

    async fn probe(&self) -> Result<Duration, StoreError> {
        Ok(Duration::ZERO)
    }
}
