//! Counts of the direct children of entries, for views of the tree.

use std::collections::HashSet;

use tocsin_store::entries::EntryNumber;

use crate::{directory::Directory, ldap_error::LdapError};

/// Number of direct children of an entry, counted up to a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChildCount {
    /// The number, at most the limit.
    pub count: usize,
    /// Whether it is exact: `false` at the limit.
    pub exact: bool,
}

impl Directory {
    /// Counts the direct children of these entries, up to `most` each.
    ///
    /// # Errors
    /// The store fails.
    pub async fn count_children(&self, numbers: Vec<EntryNumber>, most: usize) -> Result<Vec<ChildCount>, LdapError> {
        let inner = self.inner.clone();
        self.read(move |branches| {
            let parents: HashSet<EntryNumber> = branches.with_children(&numbers)?.into_iter().collect();
            let count = |number: &EntryNumber| {
                let is_people = inner.is_people(*number);
                if !is_people && !parents.contains(number) {
                    return Ok(ChildCount { count: 0, exact: true });
                }
                let found = branches.children(*number, is_people, None, most + 1)?.len();
                Ok(ChildCount { count: found.min(most), exact: found <= most })
            };
            numbers.iter().map(count).collect()
        })
        .await
    }
}
