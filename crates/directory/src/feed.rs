//! What became of entries, for those who follow them.

use std::sync::Arc;

use tocsin_store::entries::EntryNumber;
use tokio::sync::watch;

use crate::{directory::Directory, kept::Shown, refusal::Refusal};

/// An entry that changed, as it is now.
#[derive(Debug, Clone)]
pub enum Followed {
    /// It is there.
    Present(Arc<Shown>),
    /// It is gone.
    Gone(EntryNumber),
}

/// A portion of the feed.
#[derive(Debug)]
pub struct Changes {
    /// What changed, in the order of the last change of each within the portion.
    pub entries: Vec<Followed>,
    /// The place up to which this is all.
    pub place: u64,
    /// Whether there is more behind it.
    pub is_more: bool,
}

impl Directory {
    /// The place of the newest change.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn place(&self) -> Result<u64, Refusal> {
        self.look(|branches| Ok(branches.entry_feed()?.last)).await
    }

    /// Rings with each commit that changed entries.
    pub fn bell(&self) -> watch::Receiver<()> {
        self.inner.bell.subscribe()
    }

    /// Up to `limit` changes after a place. `None`: what changed since is not known any more, and
    /// whoever follows begins anew.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn changes_after(&self, place: u64, limit: usize) -> Result<Option<Changes>, Refusal> {
        let (inner, since) = (self.inner.clone(), self.inner.kept.moment());
        self.look(move |branches| {
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
                        Followed::Present(inner.show(&node, above.as_deref(), since))
                    }
                    None if is_last => Followed::Gone(*number),
                    _ => continue,
                });
            }
            Ok(Some(Changes { entries, place: end, is_more: !is_all }))
        })
        .await
    }
}
