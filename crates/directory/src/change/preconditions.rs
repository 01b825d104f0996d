//! Preconditions of a change, and the entry states it returns.

use tocsin_store::entries::{EntryNumber, EntryReader};

use super::values::normal;
use crate::{
    access::AuthzId,
    entry::{self, Attribute, Entry},
    entry_cache::CachedEntry,
    filter::{Filter, Test},
    ldap_error::{Code, LdapError},
    schema::Schema,
    tree::Inner,
};

/// Preconditions of a change, and the entry states the client wants returned.
#[derive(Debug, Clone, Default)]
pub struct Preconditions {
    /// Assertion control (RFC 4528): the entry must match this filter.
    pub assertion: Option<Filter>,
    /// Whether the entry before the change is returned (pre-read control, RFC 4527).
    pub before: bool,
    /// Whether the entry after the change is returned (post-read control, RFC 4527).
    pub after: bool,
    /// The entry must have this revision.
    pub revision: Option<u64>,
    /// Whether only the checks are made: nothing is changed, and no entry state is returned.
    pub dry_run: bool,
    /// Indexed attributes whose values must be unique: no other entry may share a value of this one.
    pub unique: Vec<String>,
}

/// Entry states read before and after a change (RFC 4527).
#[derive(Debug, Default)]
pub struct ReadEntries {
    /// Entry before the change.
    pub before: Option<CachedEntry>,
    /// Entry after the change.
    pub after: Option<CachedEntry>,
}

impl Preconditions {
    /// Checks the preconditions, and returns the entry as it is if the client wants it.
    pub(super) fn check(
        &self,
        inner: &Inner,
        requester: &AuthzId,
        entry: &Entry,
        schema: &Schema,
    ) -> Result<ReadEntries, LdapError> {
        if self.revision.is_some_and(|revision| revision != entry.revision) {
            return Err(LdapError::new(
                Code::AssertionFailed,
                "the entry was changed by another request; read it again and repeat the change",
            ));
        }
        if let Some(filter) = &self.assertion {
            let grant = inner.access.grant(requester, entry);
            if !Test::compile(filter, schema).is_met_by(entry, schema, &grant)? {
                return Err(LdapError::new(Code::AssertionFailed, "the entry does not match the assertion filter"));
            }
        }
        let before = self.before.then(|| CachedEntry::of(entry.clone()));
        Ok(ReadEntries { before, after: None })
    }

    /// Rejects values that another entry has already.
    pub(super) fn unique(
        &self,
        inner: &Inner,
        branches: &dyn EntryReader,
        attributes: &[Attribute],
        own: Option<EntryNumber>,
        schema: &Schema,
    ) -> Result<(), LdapError> {
        for name in &self.unique {
            let kind = schema.attribute(name)?;
            if !inner.ready.load().contains(&*kind.key) {
                let what = format!("the index of {name} is being built; try again in a moment");
                return Err(LdapError::new(Code::Busy, what));
            }
            let values = attributes.iter().filter(|found| found.kind.key == kind.key).flat_map(|found| &*found.values);
            for requested in values.map(|value| normal(kind, value, schema)) {
                if inner.is_used_by_another(branches, kind, &requested, own, schema)? {
                    let what = format!("another entry has this value of {name}");
                    return Err(LdapError::new(Code::EntryAlreadyExists, what));
                }
            }
        }
        Ok(())
    }

    /// Returns the entry after the change if the client wants it.
    pub(super) fn after(
        &self,
        inner: &Inner,
        tree: &dyn EntryReader,
        number: EntryNumber,
        schema: &Schema,
    ) -> Result<Option<CachedEntry>, LdapError> {
        if !self.after {
            return Ok(None);
        }
        let Some(node) = tree.node(number)? else { return Ok(None) };
        let above = inner.above(tree, &node)?;
        let entry = entry::view(&node, above.as_deref(), schema, &inner.shape);
        Ok(Some(CachedEntry::of(entry)))
    }
}
