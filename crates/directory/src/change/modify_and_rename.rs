//! Modify and rename in one transaction, for protocols that identify entries by id and replace them as a whole (SCIM).

use tocsin_store::entries::{DiskCheck, EntryNumber, EntryReader};

use super::{
    members::Target,
    preconditions::{Preconditions, ReadEntries},
    prepare::Modification,
};
use crate::{
    access::AuthzId,
    directory::Directory,
    dn::Rdn,
    entry::{Entry, EntryPosition},
    ldap_error::{Code, LdapError},
    schema::Schema,
    tree::{Inner, parse},
};

/// Changes of the attributes and the name of an entry.
#[derive(Debug, Clone, Default)]
pub struct Revision {
    /// Modifications of the attributes.
    pub modifications: Vec<Modification>,
    /// The new relative name, such as `uid=vera`; `None`: unchanged.
    pub rdn: Option<String>,
}

impl Directory {
    /// Modifies and renames an entry. Durable on return.
    ///
    /// # Errors
    /// As for [`Directory::modify`] and [`Directory::rename`].
    pub async fn revise(
        &self,
        requester: &AuthzId,
        number: EntryNumber,
        revision: Revision,
        terms: Preconditions,
    ) -> Result<ReadEntries, LdapError> {
        let missing = || LdapError::new(Code::NoSuchObject, "there is no such entry");
        if revision.rdn.is_none() {
            let numbered = || Ok(Target::Numbered(number));
            let changed = self.change_members(requester, numbered, &revision.modifications, &terms).await?;
            if let Some(images) = changed {
                return Ok(images);
            }
        }
        let shown = self.numbered(vec![number]).await?.pop().ok_or_else(missing)?;
        let rdn = revision.rdn.as_deref().map(relative).transpose()?;
        let task = self.task(requester, &shown.entry.dn, revision.modifications, rdn).await?;
        let (inner, requester, now) = (self.inner.clone(), requester.clone(), (self.clock)());
        self.change_or_check(&terms.clone(), DiskCheck::Required, move |tree| {
            let node = tree.reader().node(number)?.ok_or_else(missing)?;
            let above = inner.above(tree.reader(), &node)?;
            task.run(&inner, &requester, tree, (&node, above.as_deref()), &terms, now)
        })
        .await
    }
}

fn relative(text: &str) -> Result<Rdn, LdapError> {
    let mut parsed = parse(text)?.0;
    match (parsed.pop(), parsed.is_empty()) {
        (Some(rdn), true) => Ok(rdn),
        _ => Err(LdapError::new(Code::InvalidDnSyntax, "the new relative name must have exactly one part")),
    }
}

impl Inner {
    /// Rejects a new relative name that an entry cannot take here.
    pub(super) fn check_new_rdn(
        &self,
        branches: &dyn EntryReader,
        shown: &Entry,
        above: &EntryPosition,
        rdn: &Rdn,
        schema: &Schema,
    ) -> Result<(), LdapError> {
        if self.is_people(shown.number) {
            return Err(LdapError::new(
                Code::UnwillingToPerform,
                "this is the container of subscribers; its name is fixed",
            ));
        }
        match self.child(branches, above, rdn, schema)? {
            Some(other) if other.number() != shown.number => {
                return Err(LdapError::new(Code::EntryAlreadyExists, "an entry with the new name exists already"));
            }
            _ => {}
        }
        self.require_reference_lookup(branches)
    }
}
