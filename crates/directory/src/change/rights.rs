//! Access rights that a change needs.

use tocsin_store::entries::{EntryNumber, EntryReader};

use crate::{
    access::{AuthzId, Level},
    entry::Entry,
    ldap_error::{Code, LdapError},
    schema::{AttributeType, MEMBERS},
    tree::Inner,
};

/// Rejects a change of attributes that the requester may not write; an empty list means the entry itself. The requester
/// can see the entry.
pub(super) fn check_access(
    inner: &Inner,
    requester: &AuthzId,
    entry: &Entry,
    kinds: &[&AttributeType],
) -> Result<(), LdapError> {
    if requester.manages {
        return Ok(());
    }
    let grant = inner.access.grant(requester, entry);
    let denied = |kind: Option<&AttributeType>| grant.level(kind) < Level::Write;
    match if kinds.is_empty() { denied(None) } else { kinds.iter().any(|kind| denied(Some(kind))) } {
        true => Err(not_allowed("the access rules do not allow this")),
        false => Ok(()),
    }
}

fn not_allowed(what: &str) -> LdapError {
    LdapError::new(Code::InsufficientAccessRights, what)
}

/// Target of an add or rename: the new name in normal form, and the attributes that come with it.
pub(super) struct NewPlace<'a> {
    pub(super) key: &'a str,
    /// New parent entry, if the parent changes.
    pub(super) above: Option<&'a Entry>,
    /// Number of the entry, if it exists already.
    pub(super) number: Option<EntryNumber>,
    pub(super) kinds: &'a [&'a AttributeType],
}

impl Inner {
    /// Rejects a new name that the requester may not give. The requester needs `write` on the children of the parent
    /// and on all attributes of the entry under its new name, and an access rule must not grant rights to that name.
    pub(super) fn check_access_to_name(
        &self,
        branches: &dyn EntryReader,
        requester: &AuthzId,
        new: &NewPlace<'_>,
    ) -> Result<(), LdapError> {
        if requester.manages {
            return Ok(());
        }
        if new.above.is_some_and(|above| !self.access.grant(requester, above).allows_new_children()) {
            return Err(not_allowed("the access rules do not allow adding entries here"));
        }
        let grant = self.access.grant_at(requester, new.key, new.number);
        let denied = |kind: Option<&AttributeType>| grant.level(kind) < Level::Write;
        if denied(None) || new.kinds.iter().any(|kind| denied(Some(kind))) {
            return Err(not_allowed("the access rules do not allow writing all attributes of the entry"));
        }
        // Rights granted to `self` under that name would apply to the moved entry.
        if self.access.gives_to(new.key) || new.number.is_some() && self.access.names_place(new.key) {
            return Err(not_allowed(
                "an access rule grants rights to this name, so only an operator may give it to an entry",
            ));
        }
        self.joins(branches, requester, new.key)
    }

    /// Rejects a name that is already a member of a group, unless the requester may write the members of that group.
    fn joins(&self, branches: &dyn EntryReader, requester: &AuthzId, key: &str) -> Result<(), LdapError> {
        self.require_group_index()?;
        let is_closed =
            |group: &Entry, kind: &AttributeType| self.access.grant(requester, group).level(Some(kind)) < Level::Write;
        match self.groups_listing(branches, MEMBERS, key, &is_closed)?.is_empty() {
            true => Ok(()),
            false => Err(not_allowed(
                "this name is a member of a group or role; to use it, you need `write` on the members of that group",
            )),
        }
    }
}
