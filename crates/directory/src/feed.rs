//! Change feed of entries, for persistent searches (RFC 4533).

use std::sync::Arc;

use tocsin_store::entries::EntryNumber;
use tokio::sync::watch;

use crate::{directory::Directory, entry_cache::CachedEntry, ldap_error::LdapError};

/// Change of an entry, with its current state.
#[derive(Debug, Clone)]
pub enum ChangedEntry {
    /// The entry exists, with this state.
    Present(Arc<CachedEntry>),
    /// The entry was deleted.
    Gone(EntryNumber),
}

/// A page of the change feed.
#[derive(Debug)]
pub struct Changes {
    /// Changed entries, ordered by the last change of each within the page.
    pub entries: Vec<ChangedEntry>,
    /// Feed position up to which the page is complete.
    pub place: u64,
    /// Whether more changes follow.
    pub is_more: bool,
}

impl Directory {
    /// The position of the newest change.
    ///
    /// # Errors
    /// The store fails.
    pub async fn feed_position(&self) -> Result<u64, LdapError> {
        self.read(|branches| Ok(branches.entry_feed()?.last)).await
    }

    /// Notifies on each commit that changes entries.
    pub fn subscribe_changes(&self) -> watch::Receiver<()> {
        self.inner.bell.subscribe()
    }

    /// Returns up to `limit` changes after a position. `None`: the feed no longer reaches back to `place`, and the
    /// client must refresh completely.
    ///
    /// # Errors
    /// The store fails.
    pub async fn changes_after(&self, place: u64, limit: usize) -> Result<Option<Changes>, LdapError> {
        let (inner, since) = (self.inner.clone(), self.inner.cache.generation());
        self.read(move |branches| {
            let feed = branches.entry_feed()?;
            if place < feed.since || place > feed.last {
                return Ok(None);
            }
            let found = branches.entries_changed(place, limit)?;
            let is_all = found.len() < limit;
            let end = if is_all { feed.last } else { found.last().map_or(place, |(place, _)| *place) };
            let mut entries = Vec::with_capacity(found.len());
            for (at, (_, number)) in found.iter().enumerate() {
                let is_last = !found[at + 1..].iter().any(|(_, other)| other == number);
                entries.push(match branches.node(*number)? {
                    Some(node) if is_last => {
                        let above = inner.above(branches, &node)?;
                        ChangedEntry::Present(inner.build_entry(&node, above.as_deref(), since))
                    }
                    None if is_last => ChangedEntry::Gone(*number),
                    _ => continue,
                });
            }
            Ok(Some(Changes { entries, place: end, is_more: !is_all }))
        })
        .await
    }
}
