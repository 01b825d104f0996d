//! Segments: saved filters over subscribers.

use crate::{id::Name, time::Timestamp};

/// A saved filter over subscribers. Membership follows every change of a subscriber.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Its name, used by rules.
    pub name: Name,
    /// A description for readers.
    pub description: Option<String>,
    /// The text of an [`LdapFilter`](crate::ldap::LdapFilter), as its author wrote it.
    pub filter: Box<str>,
    /// Creation time.
    pub created_at: Timestamp,
    /// Time of the last change.
    pub updated_at: Timestamp,
    /// Grows with each change; the basis of its ETag.
    pub revision: u64,
}
