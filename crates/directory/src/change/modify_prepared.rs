//! Optimistic modify. The caller computes the change from the cached entry; the store's writer commits it only if the
//! entry's revision is unchanged (compare-and-set). Covers changes to the attributes of a single subscriber; `modify`
//! does the rest.

use std::sync::Arc;

use tocsin_model::time::Timestamp;
use tocsin_store::entries::PreparedModify;

use super::{
    preconditions::{Preconditions, ReadEntries},
    prepare::{Modification, Modify, RdnChange, StoredForm, prepare, touched},
    rights::check_access,
};
use crate::{
    access::AuthzId,
    directory::Directory,
    entry::is_own_attribute,
    entry_cache::CachedEntry,
    ldap_error::LdapError,
    schema::{AttributeType, Schema},
    tree::Inner,
};

/// Attempts before the change is computed in the writer thread instead.
const TRIES: usize = 2;

/// Result of computing the modifications.
enum Outcome {
    /// The change cannot be prepared, or its error must come from the writer thread.
    Unfit,
    /// The modifications change nothing.
    Nothing(ReadEntries),
    PreparedModify(Box<PreparedModify>, ReadEntries),
}

impl Directory {
    /// Modifies an entry just found by its name, if a prepared write suffices. `None`: nothing was done.
    pub(super) async fn modify_prepared(
        &self,
        requester: &AuthzId,
        dn: &str,
        mut shown: Arc<CachedEntry>,
        modifications: &[Modification],
        terms: &Preconditions,
    ) -> Result<Option<ReadEntries>, LdapError> {
        for _ in 0..TRIES {
            let (schema, now) = (self.schema(), (self.clock)());
            let outcome = self.inner.prepare_modify(requester, &shown, modifications, terms, &schema, now)?;
            let (prepared, images) = match outcome {
                Outcome::Unfit => return Ok(None),
                Outcome::Nothing(images) => return Ok(Some(images)),
                Outcome::PreparedModify(prepared, images) => (prepared, images),
            };
            if self.entries.modify_prepared(*prepared).await? {
                return Ok(Some(images));
            }
            shown = match self.cached_entry(dn) {
                Some(shown) => shown,
                None => self.find(dn).await?,
            };
        }
        Ok(None)
    }
}

impl Inner {
    /// Checks whether a prepared write suffices, and the access of the requester; then prepares it.
    fn prepare_modify(
        &self,
        requester: &AuthzId,
        shown: &CachedEntry,
        modifications: &[Modification],
        terms: &Preconditions,
        schema: &Arc<Schema>,
        now: Timestamp,
    ) -> Result<Outcome, LdapError> {
        let (entry, Some(source)) = (&shown.entry, &shown.source) else { return Ok(Outcome::Unfit) };
        let is_plain = |kind: &Arc<AttributeType>| {
            let is_of_name =
                entry.key.match_indices(&*kind.key).any(|(at, _)| entry.key[at + kind.key.len()..].starts_with('='));
            !kind.operational && is_own_attribute(&kind.key, source.is_placed, &self.shape) && !is_of_name
        };
        // Errors must come from the writer thread, in order.
        let touched = touched(modifications, schema).ok().filter(|touched| touched.iter().all(is_plain));
        let Some(touched) = touched.filter(|touched| !touched.is_empty()) else { return Ok(Outcome::Unfit) };
        if requester.must_change || !terms.unique.is_empty() {
            return Ok(Outcome::Unfit);
        }
        if !requester.manages && !self.access.grant(requester, entry).may_disclose() {
            return Ok(Outcome::Unfit);
        }
        check_access(self, requester, entry, &touched.iter().map(|kind| &**kind).collect::<Vec<_>>())?;
        let mut images = terms.check(self, requester, entry, schema)?;
        // The password is unchanged, so whether its class requires one is irrelevant.
        let has_password = true;
        let rdn = RdnChange::Untouched;
        let modified = prepare(Modify { entry, modifications, touched: &touched, rdn, has_password, schema })?;
        match modified.stored(source, &self.shape, now, terms.after) {
            None => Ok(Outcome::Unfit),
            Some(StoredForm::Unchanged) => {
                images.after = terms.after.then(|| CachedEntry::of(entry.clone()));
                Ok(Outcome::Nothing(images))
            }
            Some(StoredForm::Changed(prepared, image)) => {
                images.after = image.map(|image| *image);
                Ok(Outcome::PreparedModify(prepared, images))
            }
        }
    }
}
