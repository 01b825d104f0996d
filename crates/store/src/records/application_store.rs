//! Versions of application definitions.

use async_trait::async_trait;
use tocsin_model::{id::Name, time::Timestamp};

use crate::{error::StoreError, records::applications::ApplicationVersion};

/// Versions of application definitions. The service writes them; the pipeline reads the version that an event batch
/// names.
///
/// A write is durable when the call returns, and is logged as
/// [`ChangeKind::Application`](super::ChangeKind::Application). A version never changes.
#[async_trait]
pub trait ApplicationStore: Send + Sync + 'static {
    /// Stores the next version of an application's definition. Returns its number.
    async fn put_application(&self, new: NewApplicationVersion<'_>) -> Result<u32, StoreError>;

    /// Current version of every application, by name.
    async fn applications(&self) -> Result<Vec<ApplicationVersion>, StoreError>;

    /// One version of an application, or the current one.
    async fn application(&self, name: &Name, version: Option<u32>) -> Result<Option<ApplicationVersion>, StoreError>;

    /// All versions of an application, newest first.
    async fn application_history(&self, name: &Name) -> Result<Vec<ApplicationVersion>, StoreError>;

    /// Removes an application and its subscriptions, in several commits; the application itself goes with the last
    /// one. The history stays. After a crash in between, the application still exists and can be removed again.
    async fn remove_application(&self, name: &Name, now: Timestamp) -> Result<(), StoreError>;
}

/// Parameters of [`ApplicationStore::put_application`].
#[derive(Debug, Clone, Copy)]
pub struct NewApplicationVersion<'a> {
    /// Application.
    pub name: &'a Name,
    /// YAML text, with environment variables unresolved.
    pub text: &'a str,
    /// Caller that applies it.
    pub author: &'a str,
    /// Current time.
    pub now: Timestamp,
}
