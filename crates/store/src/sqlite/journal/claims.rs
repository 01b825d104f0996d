//! Who works on what. Claims live in memory, for the file has one owner: a claim costs no fsync, and a restart voids all
//! of them.
//!
//! Nothing may be handed out after it was finished. So whoever hands out keeps the lock while it looks at the file, and
//! a step that is on its way to its commit keeps its claims from being handed out, even if their leases end meanwhile;
//! they are dropped after the commit.

use std::{fmt::Display, sync::Arc, time::Duration};

use hashbrown::HashMap;
use parking_lot::{Mutex, MutexGuard};
use tocsin_model::time::Timestamp;

use crate::{
    error::StoreError,
    journal::{Claim, Step},
};

/// Tokens of one opening: 2^40, which at a million claims per second last for twelve days and then borrow from the next.
const EPOCH_SHIFT: u32 = 40;

/// The claims of an open journal.
pub struct Claims(Mutex<Held>);

/// All that is claimed.
pub struct Held {
    token: u64,
    pub events: Lane,
    pub work: Lane,
}

/// What is claimed of one kind.
#[derive(Default)]
pub struct Lane(HashMap<u64, Lease>);

#[derive(Debug, Clone, Copy)]
struct Lease {
    token: u64,
    until: Timestamp,
    claimed_at: Timestamp,
    /// Steps with this claim that are on their way to their commit.
    committing: u32,
}

impl Claims {
    /// No claims yet. Each opening of a file must have a higher epoch than the one before.
    pub fn new(epoch: u64) -> Self {
        Claims(Mutex::new(Held { token: epoch << EPOCH_SHIFT, events: Lane::default(), work: Lane::default() }))
    }

    /// Keeps all claims as they are until the guard is dropped.
    pub fn lock(&self) -> MutexGuard<'_, Held> {
        self.0.lock()
    }

    /// Checks every claim of a step and keeps them from being handed out until the answer is dropped.
    ///
    /// # Errors
    /// `Fenced`: one of them is lost.
    pub fn begin(self: &Arc<Self>, step: &Step) -> Result<Committing, StoreError> {
        let mut begun = Committing {
            claims: self.clone(),
            claimed_at: Timestamp(i64::MIN),
            events: Vec::with_capacity(step.matched.len() + step.failed.len()),
            work: Vec::with_capacity(step.finished.len() + step.held.len()),
            finished: step.finished.len(),
        };
        // The lock is given back before an error drops what was begun, which takes it again.
        let checked = begun.check(&mut self.lock(), step);
        checked.map(|()| begun)
    }
}

impl Held {
    /// A token above all before it.
    pub fn next_token(&mut self) -> u64 {
        self.token += 1;
        self.token
    }
}

impl Lane {
    /// Whether it may be handed out: nobody has it, or its lease is over and no step of its holder is being committed.
    pub fn is_free(&self, id: u64, now: Timestamp) -> bool {
        self.0.get(&id).is_none_or(|lease| lease.until <= now && lease.committing == 0)
    }

    /// Hands it out.
    pub fn grant(&mut self, id: u64, token: u64, lease: Duration, now: Timestamp) {
        self.0.insert(id, Lease { token, until: now + lease, claimed_at: now, committing: 0 });
    }

    /// Prolongs a lease.
    pub fn extend(&mut self, id: u64, token: u64, until: Timestamp, what: impl Display) -> Result<(), StoreError> {
        self.find(id, token, what)?.until = until;
        Ok(())
    }

    /// Gives it back, unless a step of its holder is being committed.
    pub fn release(&mut self, id: u64, token: u64, what: impl Display) -> Result<(), StoreError> {
        if self.find(id, token, &what)?.committing > 0 {
            return Err(StoreError::Fenced(what.to_string()));
        }
        self.0.remove(&id);
        Ok(())
    }

    /// The token of the claim on it, or 0.
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

/// The claims of a step on its way to its commit.
pub struct Committing {
    claims: Arc<Claims>,
    /// When the last of them was claimed.
    pub claimed_at: Timestamp,
    events: Vec<(u64, u64)>,
    /// Finished ones first.
    work: Vec<(u64, u64)>,
    finished: usize,
}

impl Committing {
    fn check(&mut self, held: &mut Held, step: &Step) -> Result<(), StoreError> {
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

    /// The commit is durable: what it finished is nobody's any more.
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

impl Drop for Committing {
    /// What is left is as it was before, whether the commit failed or only held it.
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
