//! Add operation (RFC 4511, 4.7).

use std::sync::Arc;

use tocsin_model::time::Timestamp;
use tocsin_store::{
    entries::{DiskCheck, EntryNode, EntryReader, Object, Placement},
    records::Precondition,
};

use super::{
    dynamic_entries::check_place,
    preconditions::{Preconditions, ReadEntries},
    rights::NewPlace,
    subscriber_id::free_id,
    values::{RawAttribute, add_rdn, changeable, checked, classes_of, single_valued},
    write::EntryDraft,
};
use crate::{
    access::AuthzId,
    attribute_mapping::{new_object_attributes, subscriber_of},
    directory::Directory,
    dn::Dn,
    entry::{self, Attribute, EntryPosition},
    ldap_error::{Code, LdapError},
    password::{Credential, concerns_password},
    schema::{AttributeType, Schema},
    tree::{Inner, parse},
};

/// A new entry, checked against the schema.
pub(super) struct ValidatedEntry {
    pub(super) dn: Dn,
    pub(super) attributes: Vec<Attribute>,
    pub(super) credential: Option<Credential>,
    pub(super) schema: Arc<Schema>,
    pub(super) now: Timestamp,
}

impl Directory {
    /// Adds an entry. Durable on return.
    ///
    /// # Errors
    /// The name or an attribute is invalid; the entry exists; its parent is missing; the requester lacks access.
    pub async fn add(
        &self,
        requester: &AuthzId,
        dn: &str,
        given: Vec<RawAttribute>,
        terms: Preconditions,
    ) -> Result<ReadEntries, LdapError> {
        let new = self.validate_entry(requester, dn, given).await?;
        if !terms.dry_run && self.add_prepared(requester, &new, &terms).await? {
            return Ok(ReadEntries::default());
        }
        // Boxed, so that the common path does not carry the size of this future.
        Box::pin(self.add_in_writer(requester, new, terms)).await
    }

    /// Like `add`, but in call order: each change sees the ones before it.
    pub(crate) async fn add_in_turn(
        &self,
        requester: &AuthzId,
        dn: &str,
        given: Vec<RawAttribute>,
        terms: Preconditions,
    ) -> Result<ReadEntries, LdapError> {
        let new = self.validate_entry(requester, dn, given).await?;
        self.add_in_writer(requester, new, terms).await
    }

    async fn validate_entry(
        &self,
        requester: &AuthzId,
        dn: &str,
        given: Vec<RawAttribute>,
    ) -> Result<ValidatedEntry, LdapError> {
        let parsed = parse(dn)?;
        let schema = self.schema();
        if parsed.0.len() <= self.inner.suffix.0.len() {
            let is_first = schema.normal_dn(&parsed) == self.inner.suffix_key;
            return Err(match is_first {
                true => LdapError::new(Code::EntryAlreadyExists, "the suffix entry exists already"),
                false => LdapError::new(Code::UnwillingToPerform, format!("entries must be below {}", self.suffix())),
            });
        }
        let (mut attributes, password) = taken(given, &parsed, &schema)?;
        if !requester.manages {
            // Access is checked before hashing a password or checking the policy.
            let (inner, requester, dn, schema) =
                (self.inner.clone(), requester.clone(), parsed.clone(), schema.clone());
            let (kinds, has_password) = (kinds_of(&attributes), password.is_some());
            self.read(move |branches| {
                let above = inner.visible(branches, &requester, &Dn(dn.0[1..].to_vec()))?;
                inner.may_add(branches, &requester, (&above.0, above.1.as_deref()), &dn, &kinds, has_password, &schema)
            })
            .await?;
        }
        let credential = self.first_password(requester, &schema.normal_dn(&parsed), password).await?;
        let now = (self.clock)();
        attributes.extend(self.inner.first_end(&attributes, &schema, now)?);
        Ok(ValidatedEntry { dn: parsed, attributes, credential, schema, now })
    }

    async fn add_in_writer(
        &self,
        requester: &AuthzId,
        new: ValidatedEntry,
        terms: Preconditions,
    ) -> Result<ReadEntries, LdapError> {
        let (inner, requester) = (self.inner.clone(), requester.clone());
        let ValidatedEntry { dn, attributes, credential, schema, now } = new;
        self.change_or_check(&terms.clone(), DiskCheck::Required, move |tree| {
            let (parent, above) = inner.visible(tree.reader(), &requester, &Dn(dn.0[1..].to_vec()))?;
            let place = entry::place(&parent, above.as_deref(), &schema);
            let (kinds, has_password) = (kinds_of(&attributes), credential.is_some());
            let stands = (&parent, above.as_deref());
            inner.may_add(tree.reader(), &requester, stands, &dn, &kinds, has_password, &schema)?;
            check_place(&parent, &classes_of(&attributes), &schema)?;
            let rdn = &dn.0[0];
            if inner.child(tree.reader(), &place, rdn, &schema)?.is_some() {
                return Err(LdapError::new(Code::EntryAlreadyExists, "an entry with this name exists already"));
            }
            terms.unique(&inner, tree.reader(), &attributes, None, &schema)?;
            inner.check_login(tree.reader(), None, (&[], &attributes))?;
            let rdn_key = schema.normal_rdn(rdn).into();
            let draft = EntryDraft { parent: Some(place.number), rdn: rdn.text.as_str().into(), rdn_key, attributes };
            let number = if schema.is_subscriber(&classes_of(&draft.attributes)) {
                let id = free_id(tree, &draft.attributes, rdn, &draft.rdn_key, &place.key)?;
                let classes = draft.classes();
                let placement = Placement { parent: place.number, rdn: draft.rdn, rdn_key: draft.rdn_key, classes };
                let new = subscriber_of(id, None, &draft.attributes, Some(&placement), &inner.shape)?;
                tree.put_subscriber(new, Some(placement), Precondition::Absent, now)?
            } else {
                let attributes = new_object_attributes(&draft.attributes);
                tree.put_object(
                    Object { parent: draft.parent, rdn: draft.rdn, rdn_key: draft.rdn_key, attributes },
                    now,
                )?
            };
            if let Some(credential) = &credential {
                tree.put_credential(number, Some(&credential.to_text()))?;
            }
            Ok(ReadEntries { before: None, after: terms.after(&inner, tree.reader(), number, &schema)? })
        })
        .await
    }
}

impl Inner {
    /// Rejects an entry that the requester may not add: it needs `write` on the children of the parent, and on the new
    /// entry with all its attributes.
    #[expect(clippy::too_many_arguments, reason = "the parts of an entry that does not exist yet")]
    fn may_add(
        &self,
        branches: &dyn EntryReader,
        requester: &AuthzId,
        (parent, above): (&EntryNode, Option<&EntryPosition>),
        dn: &Dn,
        kinds: &[Arc<AttributeType>],
        has_password: bool,
        schema: &Schema,
    ) -> Result<(), LdapError> {
        if requester.manages {
            return Ok(());
        }
        let above = entry::view(parent, above, schema, &self.shape);
        let password = schema.attribute("userPassword")?;
        let kinds: Vec<_> = kinds.iter().chain(has_password.then_some(password)).map(|kind| &**kind).collect();
        let key = format!("{},{}", schema.normal_rdn(&dn.0[0]), above.key);
        self.check_access_to_name(
            branches,
            requester,
            &NewPlace { key: &key, above: Some(&above), number: None, kinds: &kinds },
        )
    }
}

fn kinds_of(attributes: &[Attribute]) -> Vec<Arc<AttributeType>> {
    attributes.iter().map(|attribute| attribute.kind.clone()).collect()
}

/// Checks the attributes of a client against the schema, and separates the password.
fn taken(given: Vec<RawAttribute>, dn: &Dn, schema: &Schema) -> Result<(Vec<Attribute>, Option<Vec<u8>>), LdapError> {
    let (mut attributes, mut password): (Vec<Attribute>, _) = (Vec::new(), None);
    for (name, values) in given {
        let kind = changeable(&name, schema)?;
        if values.is_empty() {
            return Err(LdapError::new(Code::InvalidAttributeSyntax, format!("{name}: no values for attribute type")));
        }
        if &*kind.key == "userpassword" {
            if values.len() > 1 || password.is_some() {
                return Err(LdapError::new(Code::ConstraintViolation, "an entry can have only one password"));
            }
            password = values.into_iter().next();
            continue;
        }
        if concerns_password(&name, schema) {
            let what = format!("{}: can only be set on an existing entry", kind.name());
            return Err(LdapError::new(Code::ConstraintViolation, what));
        }
        if attributes.iter().any(|known| known.kind.key == kind.key) {
            return Err(LdapError::new(
                Code::AttributeOrValueExists,
                format!("{name}: attribute provided more than once"),
            ));
        }
        let values = checked(&kind, &values, schema)?;
        attributes.push(Attribute { kind, values: values.into() });
    }
    add_rdn(&mut attributes, &dn.0[0], schema)?;
    single_valued(&attributes, None)?;
    let classes = classes_of(&attributes);
    if classes.is_empty() {
        return Err(LdapError::new(Code::ObjectClassViolation, "no objectClass attribute"));
    }
    let password_kind = schema.attribute("userPassword")?;
    let has: Vec<_> =
        attributes.iter().map(|found| &found.kind).chain(password.as_ref().map(|_| password_kind)).collect();
    schema.check(&classes, &has, None)?;
    Ok((attributes, password))
}
