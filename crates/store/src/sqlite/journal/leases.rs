//! Leases of the journal, in memory. The file has one owner, so a claim costs no fsync, and a restart voids all
//! claims.
//!
//! Finished items must not be claimed again. The claiming code therefore keeps the lock while it reads the file, and
//! a step that is being committed protects its claims, even if their leases expire meanwhile; they are dropped after
//! the commit.

use std::{fmt::Display, sync::Arc, time::Duration};

use hashbrown::HashMap;
use parking_lot::{Mutex, MutexGuard};
use tocsin_model::time::Timestamp;

use crate::{
    error::StoreError,
    journal::{Claim, Step},
};

/// Bits of a fencing token below the epoch: 2^40 tokens per opening. At a million claims per second they last for
/// twelve days, then continue into the next epoch's range.
const EPOCH_SHIFT: u32 = 40;

/// Claims of an open journal.
pub struct Claims(Mutex<LeaseTables>);

/// Leases of both kinds of items, and the last token.
pub struct LeaseTables {
    token: u64,
    pub events: LeaseTable,
    pub work: LeaseTable,
}

/// Leases of one kind of item, by number.
#[derive(Default)]
pub struct LeaseTable(HashMap<u64, Lease>);

#[derive(Debug, Clone, Copy)]
struct Lease {
    token: u64,
    until: Timestamp,
    claimed_at: Timestamp,
    /// Number of steps with this claim that are being committed.
    committing: u32,
}

impl Claims {
    /// Creates empty lease tables. Each opening of a file must have a higher epoch than the one before.
    pub fn new(epoch: u64) -> Self {
        Claims(Mutex::new(LeaseTables {
            token: epoch << EPOCH_SHIFT,
            events: LeaseTable::default(),
            work: LeaseTable::default(),
        }))
    }

    /// Locks the leases until the guard is dropped.
    pub fn lock(&self) -> MutexGuard<'_, LeaseTables> {
        self.0.lock()
    }

    /// Checks every claim of a step and protects it from being claimed again until the result is dropped.
    ///
    /// # Errors
    /// `Fenced`: a claim is lost.
    pub fn begin(self: &Arc<Self>, step: &Step) -> Result<CommittingClaims, StoreError> {
        let mut begun = CommittingClaims {
            claims: self.clone(),
            claimed_at: Timestamp(i64::MIN),
            events: Vec::with_capacity(step.matched.len() + step.failed.len()),
            work: Vec::with_capacity(step.finished.len() + step.held.len()),
            finished: step.finished.len(),
        };
        // The lock is released before an error drops `begun`, whose destructor takes it again.
        let checked = begun.check(&mut self.lock(), step);
        checked.map(|()| begun)
    }
}

impl LeaseTables {
    /// Next fencing token, above all before it.
    pub fn next_token(&mut self) -> u64 {
        self.token += 1;
        self.token
    }
}

impl LeaseTable {
    /// Whether the item can be claimed: it has no lease, or the lease has expired and no step of its holder is being
    /// committed.
    pub fn is_free(&self, id: u64, now: Timestamp) -> bool {
        self.0.get(&id).is_none_or(|lease| lease.until <= now && lease.committing == 0)
    }

    /// Whether any item up to a number cannot be claimed.
    pub fn is_any_held(&self, last: u64, now: Timestamp) -> bool {
        self.0.keys().any(|id| *id <= last && !self.is_free(*id, now))
    }

    /// Grants a lease.
    pub fn grant(&mut self, id: u64, token: u64, lease: Duration, now: Timestamp) {
        self.0.insert(id, Lease { token, until: now + lease, claimed_at: now, committing: 0 });
    }

    /// Extends a lease.
    pub fn extend(&mut self, id: u64, token: u64, until: Timestamp, what: impl Display) -> Result<(), StoreError> {
        self.find(id, token, what)?.until = until;
        Ok(())
    }

    /// Releases a lease, unless a step of its holder is being committed.
    pub fn release(&mut self, id: u64, token: u64, what: impl Display) -> Result<(), StoreError> {
        if self.find(id, token, &what)?.committing > 0 {
            return Err(StoreError::Fenced(what.to_string()));
        }
        self.0.remove(&id);
        Ok(())
    }

    /// Drops the lease of an item that is gone.
    pub fn drop_lease(&mut self, id: u64) {
        self.0.remove(&id);
    }

    /// Token of the item's claim, or 0.
    pub fn token(&self, id: u64) -> u64 {
        self.0.get(&id).map_or(0, |lease| lease.token)
    }

    fn find(&mut self, id: u64, token: u64, what: impl Display) -> Result<&mut Lease, StoreError> {
        self.0.get_mut(&id).filter(|lease| lease.token == token).ok_or_else(|| StoreError::Fenced(what.to_string()))
    }

    fn begin(&mut self, id: u64, token: u64, what: impl Display) -> Result<Timestamp, StoreError> {
        let lease = self.find(id, token, what)?;
        lease.committing += 1;
        Ok(lease.claimed_at)
    }

    fn end(&mut self, id: u64, token: u64) {
        if let Some(lease) = self.0.get_mut(&id).filter(|lease| lease.token == token) {
            lease.committing -= 1;
        }
    }
}

/// Claims of a step that is being committed.
pub struct CommittingClaims {
    claims: Arc<Claims>,
    /// Time of its latest claim.
    pub claimed_at: Timestamp,
    events: Vec<(u64, u64)>,
    /// Claims of finished items come first.
    work: Vec<(u64, u64)>,
    finished: usize,
}

impl CommittingClaims {
    fn check(&mut self, held: &mut LeaseTables, step: &Step) -> Result<(), StoreError> {
        for claim in step.matched.iter().chain(step.failed.iter().map(|(claim, _)| claim)) {
            let Claim { id, token } = *claim;
            self.claimed_at = self.claimed_at.max(held.events.begin(id.0, token, id)?);
            self.events.push((id.0, token));
        }
        for claim in step.finished.iter().chain(&step.held) {
            let Claim { id, token } = *claim;
            self.claimed_at = self.claimed_at.max(held.work.begin(id.0, token, id)?);
            self.work.push((id.0, token));
        }
        Ok(())
    }

    /// Call after the commit is durable: drops the claims of finished items.
    pub fn finish(mut self) {
        let claims = self.claims.clone();
        let mut held = claims.lock();
        for (id, _) in self.events.drain(..) {
            held.events.0.remove(&id);
        }
        for (id, _) in self.work.drain(..self.finished) {
            held.work.0.remove(&id);
        }
        drop(held);
    }
}

impl Drop for CommittingClaims {
    /// The remaining claims stay as they were before, whether the commit failed or only required them.
    fn drop(&mut self) {
        if self.events.is_empty() && self.work.is_empty() {
            return;
        }
        let mut held = self.claims.lock();
        for (id, token) in &self.events {
            held.events.end(*id, *token);
        }
        for (id, token) in &self.work {
            held.work.end(*id, *token);
        }
    }
}
