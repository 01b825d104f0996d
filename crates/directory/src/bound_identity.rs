//! Bound identities and their invalidation. A bind stays valid while its entry exists, is enabled, is not locked by an
//! operator, and keeps the password. Groups and roles are looked up again after each change.
//!
//! Each bind registers a [`BoundIdentity`]. A commit that touches the entry marks it as stale before the commit is
//! acknowledged; the server renews a stale identity before it processes the next request.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::{Mutex, RwLock};
use tocsin_store::entries::EntryNumber;
use tokio::sync::Notify;

use crate::password::Credential;

/// Accepted password hashes of one identity: that of its bind and that of its own password change.
const ACCEPTED_MAX: usize = 2;

/// The state of one bound identity.
#[derive(Debug)]
pub struct BoundIdentity {
    number: EntryNumber,
    is_stale: AtomicBool,
    changed: Notify,
    /// Accepted password hashes; empty if the bind used a certificate.
    accepted: Mutex<Vec<String>>,
    register: Weak<Register>,
}

impl PartialEq for BoundIdentity {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for BoundIdentity {}

impl BoundIdentity {
    /// Whether the entry changed after the last renewal.
    pub fn is_stale(&self) -> bool {
        self.is_stale.load(Ordering::SeqCst)
    }

    /// Waits until the entry changes.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Keeps the identity bound across a password change of its own.
    pub(crate) fn accept(&self, hash: &str) {
        let mut accepted = self.accepted.lock();
        accepted.push(hash.to_owned());
        if accepted.len() > ACCEPTED_MAX {
            accepted.remove(0);
        }
    }

    /// The entry.
    pub(crate) fn number(&self) -> EntryNumber {
        self.number
    }

    /// Clears the mark at the start of a renewal, or sets it again after one that failed.
    pub(crate) fn set_stale(&self, is_stale: bool) {
        self.is_stale.store(is_stale, Ordering::SeqCst);
    }

    fn mark_stale(&self) {
        self.is_stale.store(true, Ordering::SeqCst);
        self.changed.notify_one();
    }

    /// Whether the bind is still valid with the current credential.
    pub(crate) fn is_proven_by(&self, credential: Option<&Credential>) -> bool {
        let accepted = self.accepted.lock();
        match credential {
            Some(credential) if credential.is_locked_by_others() => false,
            Some(credential) => accepted.is_empty() || accepted.contains(&credential.hash),
            None => accepted.is_empty(),
        }
    }
}

impl Drop for BoundIdentity {
    fn drop(&mut self) {
        if let Some(register) = self.register.upgrade() {
            register.unregister(self.number);
        }
    }
}

/// Registry of bound identities, by entry.
#[derive(Debug, Default)]
pub(crate) struct Register(RwLock<HashMap<EntryNumber, Vec<Weak<BoundIdentity>>>>);

impl Register {
    pub(crate) fn add(self: &Arc<Self>, number: EntryNumber) -> Arc<BoundIdentity> {
        let bound = Arc::new(BoundIdentity {
            number,
            is_stale: AtomicBool::new(false),
            changed: Notify::new(),
            accepted: Mutex::default(),
            register: Arc::downgrade(self),
        });
        self.0.write().entry(number).or_default().push(Arc::downgrade(&bound));
        bound
    }

    fn unregister(&self, number: EntryNumber) {
        let mut all = self.0.write();
        if let Some(own) = all.get_mut(&number) {
            own.retain(|bound| bound.strong_count() > 0);
            if own.is_empty() {
                all.remove(&number);
            }
        }
    }

    pub(crate) fn mark_stale(&self, number: EntryNumber) {
        // Dropping the last clone takes the write lock, so it must not happen under the read lock.
        let own: Vec<Arc<BoundIdentity>> = match self.0.read().get(&number) {
            Some(own) => own.iter().filter_map(Weak::upgrade).collect(),
            None => return,
        };
        own.iter().for_each(|bound| bound.mark_stale());
    }

    pub(crate) fn mark_all(&self) {
        let all: Vec<Arc<BoundIdentity>> = self.0.read().values().flatten().filter_map(Weak::upgrade).collect();
        all.iter().for_each(|bound| bound.mark_stale());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.read().is_empty()
    }
}
