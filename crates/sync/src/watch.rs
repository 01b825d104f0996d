//! Long polling: devices wait for changes. Spurious wake-ups are possible, missed ones are not.
//!
//! A waiter first subscribes and then checks its keys, its built-in rows, and rows after its cursor. Any later change
//! wakes it.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tocsin_model::{
    collection::BuiltIn,
    id::{ChangeSequence, Name, SubscriptionId},
};
use tocsin_store::{
    collections::HistoryPoint,
    records::{ChangeKind, RecordChange},
};

use crate::{catalogue::Collections, devices::Device, error::SyncError, replicas::Replicas};

/// Changes of the records processed together.
const CHANGES_AT_ONCE: usize = 1_000;
/// Maximum subscriptions looked up to find the affected subscribers; a larger change wakes all.
const LOOKED_UP_MAX: u64 = 100;

impl Replicas {
    /// Number of waiting devices.
    pub fn waiting_devices(&self) -> usize {
        self.watchers.len()
    }

    /// Waits for possible changes after a cursor, up to `longest` and the expiry of the token. Returns whether there
    /// may be changes.
    ///
    /// # Errors
    /// `Unauthenticated`: the token was revoked or has expired; `Busy` if too many devices wait; the cursor was not
    /// issued to this device; its subscriber is gone.
    pub async fn wait_for_news(&self, device: &Device, cursor: &str, longest: Duration) -> Result<bool, SyncError> {
        let news = self.news(device, cursor, longest).await;
        // A device that was removed meanwhile has an invalid token; that its data is missing follows from it.
        self.check_device(device)?;
        news
    }

    async fn news(&self, device: &Device, cursor: &str, longest: Duration) -> Result<bool, SyncError> {
        let kept = &device.0;
        let longest = kept.expires_at.map_or(longest, |end| end.since(self.now()).min(longest));
        let (place, period) = self.seal.place(kept.number, cursor)?;
        let slot = self.watchers.acquire(device)?;
        let collections = self.collections_of(&kept.application).await?;
        let mut of_subscriber = self.change_log.listen(kept.subscriber_number);
        let has_inbox = has(&collections, BuiltIn::Inbox);
        let mut of_inbox = has_inbox.then(|| self.built_ins.inbox.listen(kept.subscriber_number));
        let (_, held) = self.held(kept, &collections).await?;
        let of_rows = self.store.listen(&held);
        self.follow_records(kept, &collections).await?;
        let state = self.store.device_state(kept.number).await?;
        let is_elsewhere = place.moving.is_some() || place.generation != state.generation || state.keys != held;
        self.check_device(device)?;
        // A wipe may have been requested since the lookup.
        let is_known = self.devices.of_number(kept.number).is_some_and(|now| now.wipe_at.is_none());
        if is_elsewhere
            || !is_known
            || !place.is_known_since(self.store.forgotten())
            || !self.is_of_history(&HistoryPoint { period, stamp: place.newest() })
            || self.store.has_changes(held, place.sequence).await?
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
            () = slot.watcher.rung.notified() => true,
            () = tokio::time::sleep(longest) => false,
        };
        Ok(is_news)
    }

    /// Wakes devices affected by changes of applications, segments and subscriptions, until the server is dropped.
    pub(crate) fn follow_changes(self: &Arc<Self>) {
        let (replicas, mut newest) = (Arc::downgrade(self), self.change_log.newest_change());
        let mut after = *newest.borrow_and_update();
        tokio::spawn(async move {
            while newest.changed().await.is_ok() {
                let upto = *newest.borrow_and_update();
                let Some(replicas) = Weak::upgrade(&replicas) else { return };
                if replicas.watchers.len() > 0 {
                    replicas.wake_watchers(after).await;
                }
                after = upto;
            }
        });
    }

    async fn wake_watchers(&self, mut after: ChangeSequence) {
        loop {
            let Ok(changes) = self.change_log.changes(after, CHANGES_AT_ONCE).await else {
                // The changes are no longer known.
                return self.watchers.ring(|_| true);
            };
            for change in &changes {
                self.wake_for(change).await;
            }
            match changes.last() {
                Some(last) if changes.len() == CHANGES_AT_ONCE => after = last.sequence,
                _ => return,
            }
        }
    }

    async fn wake_for(&self, change: &RecordChange) {
        match &change.what {
            ChangeKind::Application(name) => self.watchers.ring(|device| device.0.application == *name),
            ChangeKind::Segment(_) => self.watchers.ring(|_| true),
            ChangeKind::Subscriptions(first, last) if last.0 - first.0 >= LOOKED_UP_MAX => self.watchers.ring(|_| true),
            ChangeKind::Subscriptions(first, last) => {
                for id in (first.0..=last.0).map(SubscriptionId) {
                    let found = self.subscription_store.subscription(id).await.ok().flatten();
                    // The owner of a removed one is unknown.
                    let of: Option<(Name, _)> = found.map(|found| (found.application, found.subscriber));
                    self.watchers.ring(|Device(device)| {
                        of.as_ref().is_none_or(|of| (&of.0, &of.1) == (&device.application, &device.subscriber))
                    });
                }
            }
            // Subscribers have their own notification; this is reported as a change of them too.
            ChangeKind::Moved(..) => {}
            ChangeKind::Subscriber(_) | ChangeKind::Profile(_) | ChangeKind::ApiKey | ChangeKind::Suppressions(_) => {}
        }
    }
}

fn has(collections: &Collections, built_in: BuiltIn) -> bool {
    collections.iter().any(|ready| ready.definition.built_in == Some(built_in))
}
