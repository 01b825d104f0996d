//! State of a search, and paged searches that wait for their next page.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
};

use tocsin_directory::{
    CachedEntry, Search,
    entry::EntryNumber,
    ldap_error::{Code, LdapError},
};

/// Maximum paged searches of one connection that wait for their next page; the oldest is dropped.
pub(crate) const WAITING_MAX: usize = 8;

/// Paged searches that wait for their next page.
#[derive(Default)]
pub(crate) struct PagedSearches(VecDeque<WaitingPage>);

/// A paged search that waits for its next page.
pub(crate) struct WaitingPage {
    pub(crate) cookie: [u8; 8],
    pub(crate) state: Box<SearchState>,
}

impl PagedSearches {
    pub(crate) fn put(&mut self, waiting: WaitingPage) {
        if self.0.len() >= WAITING_MAX {
            self.0.pop_front();
        }
        self.0.push_back(waiting);
    }

    pub(crate) fn take(&mut self, cookie: &[u8]) -> Option<Box<SearchState>> {
        let at = self.0.iter().position(|waiting| waiting.cookie == cookie)?;
        self.0.remove(at).map(|waiting| waiting.state)
    }
}

/// State of a search, with entries found and not yet sent.
pub(crate) struct SearchState {
    pub(crate) search: Search,
    pub(crate) found: VecDeque<Arc<CachedEntry>>,
    pub(crate) sent: u32,
    /// Whether the refresh stage of a persistent search is complete.
    pub(crate) refreshed: bool,
    /// Entries sent to the client of a persistent search, if access rules may hide some; `None`: it sees all.
    pub(crate) content: Option<HashSet<EntryNumber>>,
    /// Whether entries changed of which it is unknown if the client has them.
    pub(crate) is_uncertain: bool,
}

/// Maximum entries of a persistent search whose content access rules may restrict.
pub(crate) const CONTENT_MAX: usize = 1_000_000;

impl SearchState {
    /// Records that an entry is sent to the client of a persistent search.
    pub(crate) fn record_sent(&mut self, number: EntryNumber) -> Result<(), LdapError> {
        let Some(content) = &mut self.content else { return Ok(()) };
        content.insert(number);
        match content.len() > CONTENT_MAX {
            true => {
                let what = format!("a persistent search under access rules is limited to {CONTENT_MAX} entries");
                Err(LdapError::new(Code::AdminLimitExceeded, what))
            }
            false => Ok(()),
        }
    }
}
