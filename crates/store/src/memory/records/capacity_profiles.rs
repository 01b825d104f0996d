//! Saved capacity profiles, in memory.

use async_trait::async_trait;
use tocsin_model::{id::Name, time::Timestamp};

use super::MemoryRecords;
use crate::{
    error::StoreError,
    records::{
        CAPACITY_PROFILES_MAX, CapacityProfile, CapacityProfileStore, NewCapacityProfile, Precondition, profile_noun,
    },
};

#[async_trait]
impl CapacityProfileStore for MemoryRecords {
    async fn capacity_profiles(&self) -> Result<Vec<CapacityProfile>, StoreError> {
        Ok(self.state.lock().capacity_profiles.values().cloned().collect())
    }

    async fn capacity_profile(&self, name: &Name) -> Result<Option<CapacityProfile>, StoreError> {
        Ok(self.state.lock().capacity_profiles.get(name).cloned())
    }

    async fn put_capacity_profile(
        &self,
        new: NewCapacityProfile,
        expect: Precondition,
        now: Timestamp,
    ) -> Result<CapacityProfile, StoreError> {
        self.change(|state| {
            let profiles = &mut state.capacity_profiles;
            let new = new.at(now);
            let old = profiles.get(&new.name);
            expect.check(old.map(|old| old.revision), || profile_noun(&new.name))?;
            let stored = match old {
                Some(old) if old.text == new.text => return Ok(old.clone()),
                Some(old) => CapacityProfile { created_at: old.created_at, revision: old.revision + 1, ..new },
                None if profiles.len() >= CAPACITY_PROFILES_MAX => {
                    return Err(StoreError::Full(format!("there are {CAPACITY_PROFILES_MAX} capacity profiles")));
                }
                None => new,
            };
            profiles.insert(stored.name.clone(), stored.clone());
            Ok(stored)
        })
    }

    async fn remove_capacity_profile(&self, name: &Name, revision: Option<u64>) -> Result<(), StoreError> {
        self.change(|state| {
            let old = state.capacity_profiles.get(name);
            let expect = revision.map_or(Precondition::Present, Precondition::Revision);
            expect.check(old.map(|old| old.revision), || profile_noun(name))?;
            state.capacity_profiles.remove(name);
            Ok(())
        })
    }
}
