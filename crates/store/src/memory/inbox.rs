//! The inbox in memory: lists that are looked through from end to end.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use tocsin_model::{
    id::{BroadcastId, Name, NotificationId, SubscriberNumber},
    inbox::{InboxContent, Item, ItemId, Mark, NewItem},
    time::Timestamp,
};

use crate::{
    error::StoreError,
    inbox::{
        BROADCASTS_MAX, Bell, Broadcast, BroadcastHead, Delivered, FeedChange, FeedChanges, FeedFilter, Inbox,
        InboxCounts, Listener, NewBroadcast, REMOVED_KEPT, Reader, no_broadcast, no_changes_after, too_many_broadcasts,
    },
};

/// The inbox in memory.
#[derive(Default)]
pub struct MemoryInbox {
    state: Mutex<State>,
    bell: Arc<Bell>,
}

#[derive(Default)]
struct State {
    sequence: u64,
    forgotten: u64,
    /// By number.
    items: BTreeMap<u64, (SubscriberNumber, Item)>,
    /// By the place of the removal.
    removed: BTreeMap<u64, Removed>,
    broadcasts: BTreeMap<BroadcastId, Kept>,
    touches: BTreeMap<(SubscriberNumber, BroadcastId), Touch>,
}

struct Removed {
    subscriber: SubscriberNumber,
    number: u64,
    id: NotificationId,
    at: Timestamp,
}

struct Kept {
    broadcast: Broadcast,
    changed: u64,
    withdrawn_at: Option<Timestamp>,
    gone: bool,
}

#[derive(Clone, Copy, Default)]
struct Touch {
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
        self.removed.insert(place, Removed { subscriber, number, id, at: now });
    }

    /// A broadcast as a reader sees it, and whether it is there for it.
    fn seen(&self, kept: &Kept, subscriber: SubscriberNumber) -> (Item, bool) {
        let touch = self.touches.get(&(subscriber, kept.broadcast.id)).copied().unwrap_or_default();
        let item = Item {
            id: ItemId::Broadcast(kept.broadcast.id),
            number: kept.broadcast.id.0,
            changed: kept.changed.max(touch.changed),
            content: Arc::new(kept.broadcast.content.clone()),
            created_at: kept.broadcast.created_at,
            read_at: touch.read_at,
            archived_at: touch.archived_at,
            expires_at: kept.broadcast.expires_at,
        };
        (item, kept.withdrawn_at.is_none() && !touch.deleted)
    }

    fn broadcasts_of<'s>(&'s self, reader: &'s Reader) -> impl Iterator<Item = (Item, bool)> + 's {
        let kept = reader.broadcasts.iter().filter_map(|id| self.broadcasts.get(id)).filter(|kept| !kept.gone);
        kept.map(|kept| self.seen(kept, reader.subscriber))
    }

    /// All that a reader has, newest first.
    fn all(&self, reader: &Reader, now: Timestamp) -> Vec<Item> {
        let own = self.items.values().filter(|(subscriber, _)| *subscriber == reader.subscriber);
        let own = own.map(|(_, item)| item.clone());
        let mut all: Vec<Item> =
            own.chain(self.broadcasts_of(reader).filter(|(_, there)| *there).map(|(item, _)| item)).collect();
        all.retain(|item| item.expires_at > now);
        all.sort_by_key(|item| std::cmp::Reverse(item.number));
        all
    }

    fn find(&self, reader: &Reader, id: ItemId, now: Timestamp) -> Option<Item> {
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
                if let Some((_, kept)) = self.items.get_mut(&item.number) {
                    (kept.read_at, kept.archived_at, kept.changed) = (read_at, archived_at, changed);
                }
            }
            (ItemId::Broadcast(id), applied) => {
                let (read_at, archived_at) = applied.unwrap_or((item.read_at, item.archived_at));
                let touch = Touch { read_at, archived_at, deleted: applied.is_none(), changed: self.next() };
                self.touches.insert((subscriber, id), touch);
                let readers = self.touches.iter().filter(|((_, of), touch)| *of == id && touch.read_at.is_some());
                let readers = readers.count() as u64;
                if let Some(kept) = self.broadcasts.get_mut(&id) {
                    kept.broadcast.readers = readers;
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
        let touched: Vec<BroadcastId> =
            self.touches.keys().filter(|(of, _)| *of == from).map(|(_, broadcast)| *broadcast).collect();
        for broadcast in touched {
            let Some(old) = self.touches.remove(&(from, broadcast)) else { continue };
            let changed = self.next();
            let there = self.touches.entry((into, broadcast)).or_default();
            *there = Touch {
                read_at: there.read_at.or(old.read_at),
                archived_at: there.archived_at.or(old.archived_at),
                deleted: there.deleted || old.deleted,
                changed,
            };
            let readers = self.touches.iter().filter(|((_, of), touch)| *of == broadcast && touch.read_at.is_some());
            let readers = readers.count() as u64;
            if let Some(kept) = self.broadcasts.get_mut(&broadcast) {
                kept.broadcast.readers = readers;
            }
        }
        numbers.len() as u64
    }

    fn live(&self, application: &Name, name: &Name) -> Option<BroadcastId> {
        let is_this = |kept: &&Kept| {
            let Broadcast { name: own, content, .. } = &kept.broadcast;
            !kept.gone && kept.withdrawn_at.is_none() && own == name && content.application == *application
        };
        self.broadcasts.values().find(is_this).map(|kept| kept.broadcast.id)
    }
}

fn chosen(filter: &FeedFilter, item: &Item) -> bool {
    let InboxContent { application, class, channel, .. } = &*item.content;
    filter.standing.holds(item.read_at.is_some(), item.archived_at.is_some())
        && filter.application.as_ref().is_none_or(|wanted| wanted == application)
        && filter.class.as_ref().is_none_or(|wanted| wanted == class)
        && filter.channel.as_ref().is_none_or(|wanted| Some(wanted) == channel.as_ref())
}

#[async_trait]
impl Inbox for MemoryInbox {
    async fn put_items(&self, items: Vec<NewItem>, items_max: u32, now: Timestamp) -> Result<Delivered, StoreError> {
        let mut delivered = Delivered::default();
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
        self.bell.ring(touched);
        Ok(delivered)
    }

    async fn feed(
        &self,
        reader: &Reader,
        filter: &FeedFilter,
        before: Option<u64>,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<Item>, StoreError> {
        let mut items = self.state.lock().all(reader, now);
        items.retain(|item| chosen(filter, item) && before.is_none_or(|before| item.number < before));
        items.truncate(limit);
        Ok(items)
    }

    async fn item(&self, reader: &Reader, id: ItemId, now: Timestamp) -> Result<Option<Item>, StoreError> {
        Ok(self.state.lock().find(reader, id, now))
    }

    async fn unread(&self, reader: &Reader, now: Timestamp) -> Result<u64, StoreError> {
        let items = self.state.lock().all(reader, now);
        Ok(items.iter().filter(|item| item.read_at.is_none() && item.archived_at.is_none()).count() as u64)
    }

    async fn changes(
        &self,
        reader: &Reader,
        after: u64,
        limit: usize,
        now: Timestamp,
    ) -> Result<FeedChanges, StoreError> {
        let state = self.state.lock();
        if after < state.forgotten || after > state.sequence {
            return Err(no_changes_after(after));
        }
        let told = |item: Item| match item.number > after {
            true => (item.changed, FeedChange::New(item)),
            false => (item.changed, FeedChange::Changed(item)),
        };
        let present = state.all(reader, now).into_iter().filter(|item| item.changed > after).map(told);
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
        self.bell.listen(subscriber)
    }

    async fn mark(
        &self,
        reader: &Reader,
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
        self.bell.ring([reader.subscriber]);
        Ok(found)
    }

    async fn mark_all(
        &self,
        reader: &Reader,
        filter: &FeedFilter,
        upto: u64,
        mark: Mark,
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        let mut changed = 0;
        {
            let mut state = self.state.lock();
            let mut items = state.all(reader, now);
            items.retain(|item| chosen(filter, item) && item.number <= upto);
            for item in items.iter().rev() {
                changed += u64::from(state.mark(reader.subscriber, item, mark, now));
            }
        }
        self.bell.ring([reader.subscriber]);
        Ok(changed)
    }

    async fn move_feed(&self, from: SubscriberNumber, into: SubscriberNumber) -> Result<u64, StoreError> {
        let count = self.state.lock().move_feed(from, into);
        self.bell.ring([from, into]);
        Ok(count)
    }

    async fn remove_feed(&self, subscriber: SubscriberNumber) -> Result<(), StoreError> {
        {
            let mut state = self.state.lock();
            state.items.retain(|_, (of, _)| *of != subscriber);
            state.removed.retain(|_, removed| removed.subscriber != subscriber);
            state.touches.retain(|(of, _), _| *of != subscriber);
        }
        self.bell.ring([subscriber]);
        Ok(())
    }

    async fn put_broadcast(&self, new: NewBroadcast, now: Timestamp) -> Result<(Broadcast, bool), StoreError> {
        let (broadcast, is_new) = {
            let mut state = self.state.lock();
            let found = state.live(&new.content.application, &new.name);
            let NewBroadcast { name, audience, content, expires_at } = new;
            let is_over = |id: &BroadcastId| state.broadcasts[id].broadcast.expires_at <= now;
            match found.filter(|id| !is_over(id)) {
                Some(id) => {
                    let present = &state.broadcasts[&id].broadcast;
                    if present.audience == audience && present.expires_at == expires_at && present.content == content {
                        return Ok((present.clone(), false));
                    }
                    let changed = state.next();
                    let kept = state.broadcasts.get_mut(&id).expect("it was found");
                    let before = kept.broadcast.clone();
                    (kept.changed, kept.broadcast) = (changed, Broadcast { audience, content, expires_at, ..before });
                    (kept.broadcast.clone(), false)
                }
                None => {
                    if let Some(kept) = found.and_then(|id| state.broadcasts.get_mut(&id)) {
                        kept.gone = true;
                    }
                    let is_live =
                        |kept: &&Kept| !kept.gone && kept.withdrawn_at.is_none() && kept.broadcast.expires_at > now;
                    if state.broadcasts.values().filter(is_live).count() >= BROADCASTS_MAX {
                        return Err(too_many_broadcasts());
                    }
                    let changed = state.next();
                    let id = BroadcastId(changed);
                    let broadcast = Broadcast { id, name, audience, content, created_at: now, expires_at, readers: 0 };
                    let kept = Kept { broadcast: broadcast.clone(), changed, withdrawn_at: None, gone: false };
                    state.broadcasts.insert(id, kept);
                    (broadcast, true)
                }
            }
        };
        self.bell.ring_all();
        Ok((broadcast, is_new))
    }

    async fn broadcasts(&self, application: &Name, now: Timestamp) -> Result<Vec<Broadcast>, StoreError> {
        let state = self.state.lock();
        let is_theirs = |kept: &&Kept| {
            let Broadcast { content, expires_at, .. } = &kept.broadcast;
            !kept.gone && kept.withdrawn_at.is_none() && *expires_at > now && content.application == *application
        };
        Ok(state.broadcasts.values().rev().filter(is_theirs).map(|kept| kept.broadcast.clone()).collect())
    }

    async fn withdraw_broadcast(&self, application: &Name, name: &Name, now: Timestamp) -> Result<(), StoreError> {
        {
            let mut state = self.state.lock();
            let found = state.live(application, name);
            let id = found.filter(|id| state.broadcasts[id].broadcast.expires_at > now);
            let id = id.ok_or_else(|| no_broadcast(name))?;
            let changed = state.next();
            if let Some(kept) = state.broadcasts.get_mut(&id) {
                (kept.withdrawn_at, kept.changed) = (Some(now), changed);
            }
            let mut withdrawn: Vec<(u64, BroadcastId)> = state
                .broadcasts
                .values()
                .filter(|kept| !kept.gone && kept.withdrawn_at.is_some())
                .map(|kept| (kept.changed, kept.broadcast.id))
                .collect();
            withdrawn.sort_unstable();
            for (changed, id) in &withdrawn[..withdrawn.len().saturating_sub(BROADCASTS_MAX)] {
                state.forgotten = state.forgotten.max(*changed);
                state.broadcasts.get_mut(id).expect("it is there").gone = true;
            }
        }
        self.bell.ring_all();
        Ok(())
    }

    fn broadcast_heads(&self) -> Arc<Vec<BroadcastHead>> {
        let state = self.state.lock();
        let heads = state.broadcasts.values().filter(|kept| !kept.gone).map(|kept| BroadcastHead {
            id: kept.broadcast.id,
            audience: kept.broadcast.audience.clone(),
            expires_at: kept.broadcast.expires_at,
            withdrawn: kept.withdrawn_at.is_some(),
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
            .filter(|(_, removed)| removed.at <= now - REMOVED_KEPT)
            .map(|(place, removed)| (removed.at, *place))
            .collect();
        old.sort_unstable();
        old.truncate(limit);
        for (_, place) in &old {
            state.removed.remove(place);
            state.forgotten = state.forgotten.max(*place);
        }
        let mut forgotten = state.forgotten;
        for kept in state.broadcasts.values_mut().filter(|kept| !kept.gone) {
            if kept.broadcast.expires_at <= now {
                kept.gone = true;
            } else if kept.withdrawn_at.is_some_and(|at| at <= now - REMOVED_KEPT) {
                (kept.gone, forgotten) = (true, forgotten.max(kept.changed));
            }
        }
        state.forgotten = forgotten;
        let gone: Vec<BroadcastId> = state.broadcasts.iter().filter(|(_, kept)| kept.gone).map(|(id, _)| *id).collect();
        for id in &gone {
            state.broadcasts.remove(id);
        }
        state.touches.retain(|(_, id), _| !gone.contains(id));
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
