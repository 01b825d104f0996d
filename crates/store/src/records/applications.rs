//! Versions of application definitions.

use tocsin_model::{id::Name, time::Timestamp};

use crate::error::StoreError;

/// One version of an application's definition.
#[derive(Debug, Clone, PartialEq)]
pub struct ApplicationVersion {
    /// Application.
    pub name: Name,
    /// Version number, from 1.
    pub version: u32,
    /// YAML text as applied, with environment variables unresolved.
    pub text: String,
    /// Caller that applied it.
    pub author: String,
    /// Time of the change.
    pub applied_at: Timestamp,
}

pub(crate) fn no_application(name: &Name) -> StoreError {
    StoreError::Missing(format!("application `{name}`"))
}
