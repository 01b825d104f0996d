//! Devices wait until there is something new for them. They may be woken for nothing, but never sleep over anything.
//!
//! Whoever waits listens first and looks then: at the keys that it holds, at what the platform knows of its subscriber, and
//! whether rows of its keys changed behind its cursor. What happens after that wakes it.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tocsin_model::{
    collection::BuiltIn,
    id::{ChangeSequence, Name, SubscriptionId},
};
use tocsin_store::{
    collections::{DeviceNumber, HistoryPoint},
    records::{Change, Changed},
};
use tokio::sync::Notify;

use crate::{Device, Replicas, SyncError, catalogue::Collections};

/// Changes of the records that are looked at together.
const CHANGES_AT_ONCE: usize = 1_000;
/// Subscriptions that are looked up to find whom a change concerns; a change of more wakes all.
const LOOKED_UP_MAX: u64 = 100;

/// Those who wait, one for a device.
pub(crate) struct Watchers {
    waiting: Mutex<HashMap<DeviceNumber, Arc<Watcher>>>,
    most: usize,
}

struct Watcher {
    device: Device,
    rung: Notify,
}

/// Keeps a place among those who wait.
struct Seat<'a> {
    watchers: &'a Watchers,
    watcher: Arc<Watcher>,
}

impl Watchers {
    pub(crate) fn new(most: usize) -> Watchers {
        Watchers { waiting: Mutex::default(), most }
    }

    fn enter(&self, device: &Device) -> Result<Seat<'_>, SyncError> {
        let watcher = Arc::new(Watcher { device: device.clone(), rung: Notify::new() });
        let mut waiting = self.waiting.lock();
        if waiting.len() >= self.most && !waiting.contains_key(&device.0.number) {
            metrics::counter!("sync_refused_total", "pool" => "watch").increment(1);
            let (reason, position) = (format!("{} devices wait already", self.most), waiting.len());
            let retry_after = Duration::from_secs(30).mul_f64(1.0 + fastrand::f64());
            return Err(SyncError::Busy { reason, retry_after, position });
        }
        // A device that waits anew has given up on the time before.
        if let Some(before) = waiting.insert(device.0.number, watcher.clone()) {
            before.rung.notify_one();
        }
        metrics::gauge!("sync_watchers").set(waiting.len() as f64);
        Ok(Seat { watchers: self, watcher })
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting.lock().len()
    }

    /// Wakes those whom something concerns.
    pub(crate) fn ring(&self, concerns: impl Fn(&Device) -> bool) {
        let waiting = self.waiting.lock();
        waiting.values().filter(|watcher| concerns(&watcher.device)).for_each(|watcher| watcher.rung.notify_one());
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut waiting = self.watchers.waiting.lock();
        let number = self.watcher.device.0.number;
        if waiting.get(&number).is_some_and(|watcher| Arc::ptr_eq(watcher, &self.watcher)) {
            waiting.remove(&number);
        }
        metrics::gauge!("sync_watchers").set(waiting.len() as f64);
    }
}

impl Replicas {
    /// Devices that rest until there is something new for them.
    pub fn resting(&self) -> usize {
        self.watchers.len()
    }

    /// Waits until there may be something new for a device that stands at a cursor, but no longer than `longest` and than its
    /// token is good. Gives whether there may be.
    ///
    /// # Errors
    /// `Unauthenticated`: its token was revoked or has expired meanwhile; `Busy` if too many wait; the cursor is none of this device's; its subscriber is gone.
    pub async fn wait_for_news(&self, device: &Device, cursor: &str, longest: Duration) -> Result<bool, SyncError> {
        let kept = &device.0;
        let longest = kept.expires_at.map_or(longest, |end| end.since(self.now()).min(longest));
        let (place, period) = self.seal.place(kept.number, cursor)?;
        let seat = self.watchers.enter(device)?;
        let collections = self.collections_of(&kept.application).await?;
        let mut of_subscriber = self.records.listen(kept.subscriber_number);
        let has_inbox = has(&collections, BuiltIn::Inbox);
        let mut of_inbox = has_inbox.then(|| self.built_ins.inbox.listen(kept.subscriber_number));
        let (_, held) = self.held(kept, &collections).await?;
        let of_rows = self.store.listen(&held);
        self.follow_records(kept, &collections).await?;
        let state = self.store.device_state(kept.number).await?;
        let is_elsewhere = place.moving.is_some() || place.generation != state.generation || state.keys != held;
        self.check_device(device)?;
        // A wipe may have been asked for since it was looked up.
        let is_known = self.devices.of_number(kept.number).is_some_and(|now| now.wipe_at.is_none());
        if is_elsewhere
            || !is_known
            || !place.is_known_since(self.store.forgotten())
            || !self.is_of_history(&HistoryPoint { period, stamp: place.newest() })
            || self.store.has_news(held, place.sequence).await?
        {
            return Ok(true);
        }
        let inbox = async {
            match &mut of_inbox {
                Some(of_inbox) => of_inbox.changed().await,
                None => std::future::pending().await,
            }
        };
        let is_news = tokio::select! {
            () = of_rows.changed() => true,
            () = of_subscriber.changed() => true,
            () = inbox => true,
            () = seat.watcher.rung.notified() => true,
            () = tokio::time::sleep(longest) => false,
        };
        self.check_device(device)?;
        Ok(is_news)
    }

    /// Wakes those whom changes of applications, segments and subscriptions concern, until nobody has the room any more.
    pub(crate) fn follow_changes(self: &Arc<Self>) {
        let (replicas, mut newest) = (Arc::downgrade(self), self.records.newest_change());
        let mut after = *newest.borrow_and_update();
        tokio::spawn(async move {
            while newest.changed().await.is_ok() {
                let upto = *newest.borrow_and_update();
                let Some(replicas) = Weak::upgrade(&replicas) else { return };
                if replicas.watchers.len() > 0 {
                    replicas.tell_watchers(after).await;
                }
                after = upto;
            }
        });
    }

    async fn tell_watchers(&self, mut after: ChangeSequence) {
        loop {
            let Ok(changes) = self.records.changes(after, CHANGES_AT_ONCE).await else {
                // What it was is not known any more.
                return self.watchers.ring(|_| true);
            };
            for change in &changes {
                self.tell_of(change).await;
            }
            match changes.last() {
                Some(last) if changes.len() == CHANGES_AT_ONCE => after = last.sequence,
                _ => return,
            }
        }
    }

    async fn tell_of(&self, change: &Change) {
        match &change.what {
            Changed::Application(name) => self.watchers.ring(|device| device.0.application == *name),
            Changed::Segment(_) => self.watchers.ring(|_| true),
            Changed::Subscriptions(first, last) if last.0 - first.0 >= LOOKED_UP_MAX => self.watchers.ring(|_| true),
            Changed::Subscriptions(first, last) => {
                for id in (first.0..=last.0).map(SubscriptionId) {
                    let found = self.records.subscription(id).await.ok().flatten();
                    // Nobody knows whose one was that is gone.
                    let of: Option<(Name, _)> = found.map(|found| (found.application, found.subscriber));
                    self.watchers.ring(|Device(device)| {
                        of.as_ref().is_none_or(|of| (&of.0, &of.1) == (&device.application, &device.subscriber))
                    });
                }
            }
            // Of subscribers those hear who listen to them.
            // It is told of as a change of them too.
            Changed::Moved(..) => {}
            Changed::Subscriber(_) | Changed::Profile(_) | Changed::ApiKey | Changed::Suppressions(_) => {}
        }
    }
}

fn has(collections: &Collections, built_in: BuiltIn) -> bool {
    collections.iter().any(|ready| ready.definition.built_in == Some(built_in))
}
