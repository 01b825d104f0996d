//! Saved capacity profiles.

use async_trait::async_trait;
use tocsin_model::{id::Name, time::Timestamp};

use crate::{error::StoreError, records::Precondition};

/// Maximum number of saved profiles.
pub const CAPACITY_PROFILES_MAX: usize = 1_000;

/// A saved capacity profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapacityProfile {
    /// Name.
    pub name: Name,
    /// The profile, as YAML.
    pub text: String,
    /// Id of the caller that saved it.
    pub author: String,
    /// Creation time.
    pub created_at: Timestamp,
    /// Time of the last change.
    pub updated_at: Timestamp,
    /// Revision, incremented by each change.
    pub revision: u64,
}

/// A profile to save.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewCapacityProfile {
    /// Name.
    pub name: Name,
    /// The profile, as YAML.
    pub text: String,
    /// Id of the caller.
    pub author: String,
}

impl NewCapacityProfile {
    /// The first revision of the profile.
    pub(crate) fn at(self, now: Timestamp) -> CapacityProfile {
        let NewCapacityProfile { name, text, author } = self;
        CapacityProfile { name, text, author, created_at: now, updated_at: now, revision: 1 }
    }
}

/// Name of a profile in errors.
pub(crate) fn profile_noun(name: &Name) -> String {
    format!("the capacity profile `{name}`")
}

/// Saved capacity profiles. They are not part of the change log.
#[async_trait]
pub trait CapacityProfileStore: Send + Sync + 'static {
    /// All profiles, by name.
    async fn capacity_profiles(&self) -> Result<Vec<CapacityProfile>, StoreError>;

    /// The profile of a name, if there is one.
    async fn capacity_profile(&self, name: &Name) -> Result<Option<CapacityProfile>, StoreError>;

    /// Stores a profile, and returns it as stored. `Full`: there are too many.
    async fn put_capacity_profile(
        &self,
        new: NewCapacityProfile,
        expect: Precondition,
        now: Timestamp,
    ) -> Result<CapacityProfile, StoreError>;

    /// Removes a profile. `revision`: the expected one. `Missing` if there is none.
    async fn remove_capacity_profile(&self, name: &Name, revision: Option<u64>) -> Result<(), StoreError>;
}
