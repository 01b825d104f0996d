//! Modify operation (RFC 4511, 4.6), with increment (RFC 4525).

use std::sync::Arc;

use tocsin_model::time::Timestamp;
use tocsin_store::entries::{DiskCheck, EntryNode, EntryWriter};

use super::{
    members::{Target, are_members},
    password_change::CredentialChange,
    preconditions::{Preconditions, ReadEntries},
    prepare::{Modification, Modify, RdnChange, prepare, touched},
    rights::check_access,
    values::named_by,
    write::store_attributes,
};
use crate::{
    access::AuthzId,
    directory::Directory,
    dn::Rdn,
    entry::{self, EntryPosition},
    ldap_error::{Code, LdapError},
    password::concerns_password,
    policy::change_first,
    schema::Schema,
    tree::{Inner, parse},
};

impl Directory {
    /// Modifies an entry: all modifications in order, or none. Durable on return.
    ///
    /// # Errors
    /// There is no such entry; a modification does not apply to it; the result violates the schema; the requester lacks
    /// access.
    pub async fn modify(
        &self,
        requester: &AuthzId,
        dn: &str,
        modifications: Vec<Modification>,
        terms: Preconditions,
    ) -> Result<ReadEntries, LdapError> {
        if terms.dry_run {
            return Box::pin(self.modify_in_turn(requester, dn, modifications, terms)).await;
        }
        let named = || Ok(Target::Named(parse(dn)?));
        if let Some(images) = self.change_members(requester, named, &modifications, &terms).await? {
            return Ok(images);
        }
        let shown = match self.cached_entry(dn) {
            Some(shown) => Some(shown),
            None if self.schema().normal_dn(&parse(dn)?) == entry::SUBSCHEMA => None,
            // Usually the entry exists; one that a pending change creates is found later, in the writer thread.
            None => self.find(dn).await.ok(),
        };
        if let Some(shown) = shown
            && let Some(images) = self.modify_prepared(requester, dn, shown, &modifications, &terms).await?
        {
            return Ok(images);
        }
        // Boxed, so that the common path does not carry the size of this future.
        Box::pin(self.modify_in_turn(requester, dn, modifications, terms)).await
    }

    /// Like `modify`, but in call order: each change sees the ones before it.
    pub(crate) async fn modify_in_turn(
        &self,
        requester: &AuthzId,
        dn: &str,
        modifications: Vec<Modification>,
        terms: Preconditions,
    ) -> Result<ReadEntries, LdapError> {
        let parsed = parse(dn)?;
        if self.schema().normal_dn(&parsed) == entry::SUBSCHEMA {
            if terms.dry_run {
                let what = "a change of the schema has no dry run; the records after it depend on it";
                return Err(LdapError::new(Code::UnwillingToPerform, what));
            }
            return self.extend_schema(requester, modifications).await.map(|()| ReadEntries::default());
        }
        let schema = self.schema();
        let members = (are_members(requester, &modifications, &terms, &schema) && !terms.after)
            .then(|| (modifications.clone(), Target::Named(parsed.clone())));
        let task = self.task(requester, dn, modifications, None).await?;
        let (inner, requester, now) = (self.inner.clone(), requester.clone(), (self.clock)());
        self.change_or_check(&terms.clone(), DiskCheck::Required, move |tree| {
            if let Some((members, target)) = members
                && inner.change_rows(tree, &requester, &target, &members, terms.revision, &schema, now)?.is_some()
            {
                return Ok(ReadEntries::default());
            }
            let (old, above) = inner.visible(tree.reader(), &requester, &parsed)?;
            task.run(&inner, &requester, tree, (&old, above.as_deref()), &terms, now)
        })
        .await
    }

    /// Prepares the modification of an entry, with its password hashed.
    pub(super) async fn task(
        &self,
        requester: &AuthzId,
        dn: &str,
        modifications: Vec<Modification>,
        rdn: Option<Rdn>,
    ) -> Result<Task, LdapError> {
        let schema = self.schema();
        let (of_password, rest): (Vec<_>, Vec<_>) =
            modifications.into_iter().partition(|found| concerns_password(&found.attribute, &schema));
        if requester.must_change && (!rest.is_empty() || rdn.is_some()) {
            return Err(change_first());
        }
        let renewal = self.credential_change(requester, dn, of_password).await?;
        Ok(Task { rest, renewal, rdn, schema })
    }
}

/// Modification of an entry in one transaction.
pub(super) struct Task {
    rest: Vec<Modification>,
    renewal: CredentialChange,
    /// The new relative name, if it changes.
    rdn: Option<Rdn>,
    schema: Arc<Schema>,
}

impl Task {
    /// Applies it. All checks precede the first change.
    pub(super) fn run(
        self,
        inner: &Inner,
        requester: &AuthzId,
        tree: &mut dyn EntryWriter,
        (old, above): (&EntryNode, Option<&EntryPosition>),
        terms: &Preconditions,
        now: Timestamp,
    ) -> Result<ReadEntries, LdapError> {
        let schema = &self.schema;
        let shown = entry::view(old, above, schema, &inner.shape);
        let mut kinds = touched(&self.rest, schema)?;
        let of_password = self.renewal.kinds(schema)?;
        let renews = !of_password.is_empty();
        kinds.extend(of_password);
        if let Some(rdn) = &self.rdn {
            kinds.extend(named_by(&[rdn, &parse(&shown.dn)?.0[0]], schema)?);
        }
        check_access(inner, requester, &shown, &kinds.iter().map(|kind| &**kind).collect::<Vec<_>>())?;
        let mut images = terms.check(inner, requester, &shown, schema)?;
        let (rdn, present) = (self.rdn.as_ref(), parse(&shown.dn)?);
        if let (Some(rdn), Some(above)) = (rdn, above) {
            inner.check_new_rdn(tree.reader(), &shown, above, rdn, schema)?;
        }
        // The store is asked for the credential only if needed: a change of classes checks the whole entry.
        let is_asked = renews || kinds.iter().any(|kind| &*kind.key == "objectclass");
        let known = if is_asked { tree.reader().credential(old.number())? } else { None };
        let credential = self.renewal.apply(known.as_deref(), now)?;
        // Not looked up means unchanged, and irrelevant to this change.
        let has_password = !is_asked || credential.as_ref().map_or(known.is_some(), Option::is_some);
        let attributes = prepare(Modify {
            entry: &shown,
            modifications: &self.rest,
            touched: &kinds,
            rdn: rdn.map_or(RdnChange::Stays(&present.0[0]), RdnChange::Becomes),
            has_password,
            schema,
        })?
        .attributes;
        terms.unique(inner, tree.reader(), &attributes, Some(shown.number), schema)?;
        let states = (&*shown.attributes, &*attributes);
        inner.check_login(tree.reader(), Some(shown.number), states)?;
        inner.check_addresses(tree.reader(), requester, shown.number, states, schema)?;
        store_attributes(old, inner, tree, (&shown.attributes, attributes), rdn, schema, now)?;
        if self.rdn.is_some() {
            inner.cut_for_names(tree, old.number())?;
        }
        if let Some(credential) = credential {
            let itself = requester.bound_identity.as_ref().filter(|_| requester.number == Some(old.number()));
            if let (Some(bound_identity), Some(new)) = (itself, &credential) {
                bound_identity.accept(&new.hash);
            }
            tree.put_credential(old.number(), credential.map(|credential| credential.to_text()).as_deref())?;
        }
        images.after = terms.after(inner, tree.reader(), old.number(), schema)?;
        Ok(images)
    }
}
