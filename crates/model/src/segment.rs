//! Some of the subscribers, told by what they are: saved filters.

use crate::{id::Name, time::Timestamp};

/// A saved filter over subscribers. Who meets it belongs to it, from the change of the subscriber on that makes it so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Its name, by which rules ask for it.
    pub name: Name,
    /// What it is for, for people.
    pub description: Option<String>,
    /// The text of an [`LdapFilter`](crate::ldap::LdapFilter), as its author wrote it.
    pub filter: Box<str>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// Grows with each change; the basis of its ETag.
    pub revision: u64,
}
