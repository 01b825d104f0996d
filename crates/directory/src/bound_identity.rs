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
use tocsin_store::entries::{EntryChange, EntryNumber, EntryState};
use tokio::sync::Notify;

use crate::{
    access::AuthzId,
    directory::{Directory, Inner},
    entry::Entry,
    groups::{FINDING, MEMBERS},
    ldap_error::{Code, LdapError},
    password::Credential,
};

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

    fn mark_stale(&self) {
        self.is_stale.store(true, Ordering::SeqCst);
        self.changed.notify_one();
    }

    /// Whether the bind is still valid with the current credential.
    fn is_proven_by(&self, credential: Option<&Credential>) -> bool {
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

/// Identities that a commit affects.
pub(crate) enum Touched {
    /// All identities.
    All,
    /// Identities of these entries.
    Some(Vec<EntryNumber>),
}

/// Registry of bound identities, by entry.
#[derive(Debug, Default)]
pub(crate) struct Register(RwLock<HashMap<EntryNumber, Vec<Weak<BoundIdentity>>>>);

impl Register {
    fn add(self: &Arc<Self>, number: EntryNumber) -> Arc<BoundIdentity> {
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

    fn mark_stale(&self, number: EntryNumber) {
        // Dropping the last clone takes the write lock, so it must not happen under the read lock.
        let own: Vec<Arc<BoundIdentity>> = match self.0.read().get(&number) {
            Some(own) => own.iter().filter_map(Weak::upgrade).collect(),
            None => return,
        };
        own.iter().for_each(|bound| bound.mark_stale());
    }

    fn mark_all(&self) {
        let all: Vec<Arc<BoundIdentity>> = self.0.read().values().flatten().filter_map(Weak::upgrade).collect();
        all.iter().for_each(|bound| bound.mark_stale());
    }

    fn is_empty(&self) -> bool {
        self.0.read().is_empty()
    }
}

/// Whether a subscriber entry is disabled.
pub(crate) fn is_disabled(entry: &Entry) -> bool {
    let values = entry.attribute("tocsinenabled").into_iter().flat_map(|found| &*found.values);
    values.into_iter().any(|value| value.eq_ignore_ascii_case(b"false"))
}

impl Inner {
    /// Registers an identity before it authenticates.
    pub(crate) fn register_identity(&self, number: EntryNumber) -> Arc<BoundIdentity> {
        self.bound.add(number)
    }

    /// The identities that a commit affects. `moved`: the DNs of entries outside the changes changed too.
    pub(crate) fn touched_identities(&self, changes: &[EntryChange], moved: bool) -> Touched {
        let of_groups = self.access.names_groups();
        let is_of_groups = |change: &EntryChange| {
            change.keys.iter().any(|key| MEMBERS.contains(&&*key.index) || FINDING == &*key.index)
        };
        if moved || of_groups && changes.iter().any(is_of_groups) {
            return Touched::All;
        }
        // A prepared change touches attributes only, which can affect memberships of dynamic groups.
        let counts = |change: &&EntryChange| of_groups || !matches!(change.now, EntryState::Prepared(_));
        Touched::Some(changes.iter().filter(counts).map(|change| change.number).collect())
    }

    /// Marks identities as stale.
    pub(crate) fn mark_bound(&self, touched: Touched) {
        match touched {
            _ if self.bound.is_empty() => {}
            Touched::All => self.bound.mark_all(),
            Touched::Some(numbers) => numbers.into_iter().for_each(|number| self.bound.mark_stale(number)),
        }
    }

    pub(crate) fn mark_credentials(&self, entries: &[EntryNumber]) {
        if !self.bound.is_empty() {
            entries.iter().for_each(|entry| self.bound.mark_stale(*entry));
        }
    }
}

impl Directory {
    /// Renews a bound identity. `None`: its entry is gone, disabled, locked by an operator, not allowed to bind, or has
    /// another password.
    ///
    /// # Errors
    /// The store fails, or the index of groups is still being built.
    pub async fn renewed(&self, requester: &AuthzId) -> Result<Option<AuthzId>, LdapError> {
        let Some(bound) = &requester.bound_identity else { return Ok(Some(requester.clone())) };
        // Before anything is read, so that a concurrent change marks it again.
        bound.is_stale.store(false, Ordering::SeqCst);
        let renewed = self.reauthenticate(requester, bound).await;
        if renewed.is_err() {
            bound.is_stale.store(true, Ordering::SeqCst);
        }
        renewed
    }

    async fn reauthenticate(
        &self,
        requester: &AuthzId,
        bound: &Arc<BoundIdentity>,
    ) -> Result<Option<AuthzId>, LdapError> {
        let Some(shown) = self.numbered(vec![bound.number]).await?.pop() else { return Ok(None) };
        let credential = self.credential(bound.number).await?;
        if is_disabled(&shown.entry) || !bound.is_proven_by(credential.as_ref()) {
            return Ok(None);
        }
        match self.requester(&shown.entry).await {
            Ok(now) => Ok(Some(AuthzId {
                must_change: requester.must_change,
                bound_identity: requester.bound_identity.clone(),
                ..now
            })),
            Err(refusal) if refusal.code == Code::InvalidCredentials => Ok(None),
            Err(refusal) => Err(refusal),
        }
    }
}
