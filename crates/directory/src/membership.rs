//! Members of a group, as a filter tests them: listed by name, or found by the search of a dynamic group.

use std::collections::HashSet;

use tocsin_store::entries::EntryNumber;

use crate::{
    access::{Grant, Rights, is_below},
    dn::Dn,
    entry::Entry,
    filter::{Budget, Scope, Test},
    ldap_error::LdapError,
    schema::Schema,
};

/// Members of a group.
#[derive(Debug, Clone, Default)]
pub struct Members {
    /// Normalized DNs of the static members.
    pub(crate) named: HashSet<Vec<u8>>,
    /// Entry numbers of the static members, if they were looked up.
    pub(crate) numbers: Option<Vec<EntryNumber>>,
    pub(crate) found: Vec<MemberSearch>,
}

/// Members found by the search of a dynamic group.
#[derive(Debug, Clone)]
pub(crate) struct MemberSearch {
    pub(crate) base: String,
    pub(crate) scope: Scope,
    pub(crate) test: Test,
}

impl Members {
    /// Whether an entry is a member, as far as the attributes in the group's search are open to the requester.
    ///
    /// # Errors
    /// A dynamic group's filter exceeds the evaluation limit on this entry.
    pub(crate) fn has(
        &self,
        entry: &Entry,
        schema: &Schema,
        rights: Rights<'_>,
        budget: &Budget,
    ) -> Result<bool, LdapError> {
        if self.named.contains(entry.key.as_bytes()) {
            return Ok(true);
        }
        let mut found = self.found.iter();
        found.try_fold(false, |is, found| Ok(is || found.has(entry, schema, rights.grant(), budget)?))
    }
}

impl MemberSearch {
    pub(crate) fn has(
        &self,
        entry: &Entry,
        schema: &Schema,
        grant: &Grant,
        budget: &Budget,
    ) -> Result<bool, LdapError> {
        let is_within = match self.scope {
            Scope::Base => entry.key == self.base,
            Scope::One => is_below(&entry.key, &self.base) && is_child(&entry.key, &self.base),
            Scope::Subtree => entry.key == self.base || is_below(&entry.key, &self.base),
        };
        Ok(is_within && self.test.is_met_within(entry, schema, grant, budget)?)
    }
}

/// Whether a normalized DN is a direct child of another.
fn is_child(key: &str, above: &str) -> bool {
    let own = key.strip_suffix(above).and_then(|own| own.strip_suffix(',')).unwrap_or(key);
    Dn::parse(own).is_ok_and(|dn| dn.0.len() == 1)
}
