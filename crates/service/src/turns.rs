//! Optimistic concurrency without a condition of the caller: read, change, compare-and-set, and retry if another
//! writer was faster. Writers of one resource take turns, so that they do not force each other to retry.

use std::{
    hash::{BuildHasher, Hash},
    time::Duration,
};

use tokio::sync::{Mutex, MutexGuard};

use crate::error::ServiceError;

/// Maximum number of retries of one change. Only writers that take no turn, such as LDAP, force a retry.
const REPEATS_MAX: u32 = 100;
const STRIPES: usize = 256;

/// The turns of the writers of this process, striped by resource.
pub struct Turns {
    stripes: Box<[Mutex<()>]>,
    hasher: std::hash::RandomState,
}

impl Default for Turns {
    fn default() -> Self {
        Turns { stripes: (0..STRIPES).map(|_| Mutex::default()).collect(), hasher: std::hash::RandomState::new() }
    }
}

impl Turns {
    /// Waits for the turn of a resource. Unrelated resources may share a turn, so a writer must hold only one.
    pub async fn take(&self, resource: &impl Hash) -> Turn<'_> {
        let stripe = self.hasher.hash_one(resource) as usize % STRIPES;
        Turn { _held: self.stripes[stripe].lock().await, repeats: 0 }
    }
}

/// The turn of one writer, until it is dropped.
pub struct Turn<'a> {
    _held: MutexGuard<'a, ()>,
    repeats: u32,
}

impl Turn<'_> {
    /// Counts a retry.
    ///
    /// # Errors
    /// [`ServiceError::Full`] after 100 repetitions: the caller may try again later. It set no condition, so none failed.
    pub fn repeat(&mut self, resource: impl std::fmt::Display) -> Result<(), ServiceError> {
        self.repeats += 1;
        if self.repeats <= REPEATS_MAX {
            return Ok(());
        }
        Err(ServiceError::Full {
            reason: format!("{resource} is changed by others all the time"),
            retry_after: Duration::from_secs(1),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn b15_a_change_without_a_condition_never_fails_on_one() {
        let turns = Turns::default();
        let mut turn = turns.take(&"a").await;
        for _ in 0..REPEATS_MAX {
            turn.repeat("`a`").expect("another try");
        }
        assert!(matches!(turn.repeat("`a`"), Err(ServiceError::Full { .. })));
    }
}
