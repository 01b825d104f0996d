//! Modify operation (RFC 4511, 4.6), with increment (RFC 4525).

use std::{collections::HashSet, sync::Arc};

use tocsin_model::time::Timestamp;
use tocsin_store::entries::{DiskCheck, EntryNode, EntryWriter};

use super::{
    EntryDraft, Preconditions, ReadEntries, changeable, check_access, checked, classes_of,
    dynamic_entries::is_dynamic,
    has_rdn,
    members::{Target, are_members},
    normal,
    password_change::{CredentialChange, concerns_password},
    replace, single_valued, valid,
};
use crate::{
    access::AuthzId,
    directory::{Directory, Inner, parse},
    dn::Rdn,
    entry::{self, Attribute, EntryPosition},
    ldap_error::{Code, LdapError},
    policy::change_first,
    schema::{AttributeType, Schema},
    syntax::Syntax,
};

/// Type of a modification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModifyType {
    /// Add values.
    Add,
    /// Delete values, or all.
    Delete,
    /// Replace all values.
    Replace,
    /// Add to an integer.
    Increment,
}

/// One modification of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Modification {
    /// Type.
    pub act: ModifyType,
    /// Attribute name.
    pub attribute: String,
    /// Values.
    pub values: Vec<Vec<u8>>,
}

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
            return self.extend_schema(requester, modifications).await.map(|()| ReadEntries::default());
        }
        let schema = self.schema();
        let members = (are_members(requester, &modifications, &terms, &schema) && !terms.after)
            .then(|| (modifications.clone(), Target::Named(parsed.clone())));
        let task = self.task(requester, dn, modifications, None).await?;
        let (inner, requester, now) = (self.inner.clone(), requester.clone(), (self.clock)());
        self.change(DiskCheck::Required, move |tree| {
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
        let schema = &*self.schema;
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
        let (mut attributes, rdn) = (shown.attributes.clone(), self.rdn.as_ref());
        for modification in &self.rest {
            apply(&mut attributes, modification, schema)?;
        }
        // The store is asked for the credential only if needed: a change of classes checks the whole entry.
        let is_asked = renews || classes_of(&shown.attributes) != classes_of(&attributes);
        let known = if is_asked { tree.reader().credential(old.number())? } else { None };
        let credential = self.renewal.apply(known.as_deref(), now)?;
        // Not looked up means unchanged, and irrelevant to this change.
        let has_password = !is_asked || credential.as_ref().map_or(known.is_some(), Option::is_some);
        if let (Some(rdn), Some(above)) = (rdn, above) {
            inner.renamed(tree.reader(), &shown, above, rdn, &mut attributes, schema)?;
        }
        let present = parse(&shown.dn)?;
        check(&shown.attributes, &attributes, &kinds, has_password, rdn.unwrap_or(&present.0[0]), schema)?;
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

/// Stores the result.
pub(super) fn store_attributes(
    old: &EntryNode,
    inner: &Inner,
    tree: &mut dyn EntryWriter,
    (before, attributes): (&[Attribute], Vec<Attribute>),
    new_rdn: Option<&Rdn>,
    schema: &Schema,
    now: Timestamp,
) -> Result<(), LdapError> {
    if before == attributes && new_rdn.is_none() {
        return Ok(());
    }
    let placed = classes_of(before) != classes_of(&attributes) || new_rdn.is_some();
    let (parent, rdn, rdn_key) = match old {
        EntryNode::Object(stored) => (stored.object.parent, stored.object.rdn.clone(), stored.object.rdn_key.clone()),
        EntryNode::Subscriber(_, Some(placement)) => {
            (Some(placement.parent), placement.rdn.clone(), placement.rdn_key.clone())
        }
        EntryNode::Subscriber(subscriber, None) => {
            let (rdn, rdn_key) = entry::unplaced_rdn(&subscriber.id, schema);
            (inner.above(tree.reader(), old)?.map(|above| above.number), rdn.into(), rdn_key.into())
        }
    };
    let (rdn, rdn_key) = match new_rdn {
        Some(new) => (new.text.as_str().into(), schema.normal_rdn(new).into()),
        None => (rdn, rdn_key),
    };
    replace(tree, inner, (old, before), EntryDraft { parent, rdn, rdn_key, attributes }, placed, now)
}

fn touched(modifications: &[Modification], schema: &Schema) -> Result<Vec<Arc<AttributeType>>, LdapError> {
    modifications.iter().map(|modification| changeable(&modification.attribute, schema)).collect()
}

/// Types of the values in relative names.
pub(super) fn named_by(rdns: &[&Rdn], schema: &Schema) -> Result<Vec<Arc<AttributeType>>, LdapError> {
    let names = rdns.iter().flat_map(|rdn| &rdn.assertions);
    names.map(|(name, _)| schema.attribute(name).cloned()).collect()
}

pub(super) fn apply(
    attributes: &mut Vec<Attribute>,
    modification: &Modification,
    schema: &Schema,
) -> Result<(), LdapError> {
    let kind = changeable(&modification.attribute, schema)?;
    let at = attributes.iter().position(|attribute| attribute.kind.key == kind.key);
    let absent = || LdapError::new(Code::NoSuchAttribute, format!("modify: no such value of `{}`", kind.name()));
    let values = match modification.act {
        // A value deleted twice is deleted once.
        ModifyType::Delete => valid(&kind, &modification.values, schema)?,
        _ => checked(&kind, &modification.values, schema)?,
    };
    match modification.act {
        ModifyType::Add if values.is_empty() => {
            return Err(LdapError::new(Code::ProtocolError, format!("{}: no values given", kind.name())));
        }
        ModifyType::Add => match at {
            Some(at) => {
                let known: HashSet<_> =
                    attributes[at].values.iter().map(|value| normal(&kind, value, schema)).collect();
                if values.iter().any(|value| known.contains(&normal(&kind, value, schema))) {
                    let what = format!("modify/add: {}: value already exists", kind.name());
                    return Err(LdapError::new(Code::AttributeOrValueExists, what));
                }
                Arc::make_mut(&mut attributes[at].values).extend(values);
            }
            None => attributes.push(Attribute { kind, values: values.into() }),
        },
        ModifyType::Delete => {
            let at = at.ok_or_else(absent)?;
            let gone: HashSet<_> = values.iter().map(|value| normal(&kind, value, schema)).collect();
            let before = attributes[at].values.len();
            Arc::make_mut(&mut attributes[at].values).retain(|value| !gone.contains(&normal(&kind, value, schema)));
            if before - attributes[at].values.len() != gone.len() {
                return Err(absent());
            }
            if gone.is_empty() || attributes[at].values.is_empty() {
                attributes.remove(at);
            }
        }
        ModifyType::Replace => match (at, values.is_empty()) {
            (Some(at), true) => drop(attributes.remove(at)),
            (Some(at), false) => attributes[at].values = values.into(),
            (None, true) => {}
            (None, false) => attributes.push(Attribute { kind, values: values.into() }),
        },
        ModifyType::Increment => {
            if kind.syntax != Syntax::Integer {
                return Err(LdapError::new(
                    Code::ConstraintViolation,
                    format!("{}: the value is not a whole number", kind.name()),
                ));
            }
            let number = |value: &[u8]| std::str::from_utf8(value).ok()?.parse::<i64>().ok();
            let [by] = values.as_slice() else {
                return Err(LdapError::new(Code::ProtocolError, "increment takes exactly one value"));
            };
            let overflow =
                || LdapError::new(Code::ConstraintViolation, format!("{}: does not fit in 64 bits", kind.name()));
            let by = number(by).ok_or_else(overflow)?;
            let at = at.ok_or_else(absent)?;
            for value in Arc::make_mut(&mut attributes[at].values) {
                let sum = number(value).and_then(|value| value.checked_add(by)).ok_or_else(overflow)?;
                *value = sum.to_string().into_bytes().into();
            }
        }
    }
    Ok(())
}

fn check(
    before: &[Attribute],
    attributes: &[Attribute],
    touched: &[Arc<AttributeType>],
    has_password: bool,
    rdn: &Rdn,
    schema: &Schema,
) -> Result<(), LdapError> {
    if !has_rdn(attributes, rdn, schema)? && has_rdn(before, rdn, schema)? {
        return Err(LdapError::new(
            Code::NotAllowedOnRdn,
            "the values of the entry's name cannot be removed; rename it",
        ));
    }
    check_classes(&classes_of(before), attributes, touched, has_password, schema)
}

/// Checks a changed entry against its classes.
pub(super) fn check_classes(
    old: &[&str],
    attributes: &[Attribute],
    touched: &[Arc<AttributeType>],
    has_password: bool,
    schema: &Schema,
) -> Result<(), LdapError> {
    single_valued(attributes, Some(touched))?;
    let new = classes_of(attributes);
    if new.is_empty() {
        return Err(LdapError::new(Code::ObjectClassViolation, "no objectClass attribute"));
    }
    if old != new {
        check_class_change(old, &new, schema)?;
    }
    let password = schema.attribute("userPassword")?;
    let has: Vec<_> = attributes.iter().map(|found| &found.kind).chain(has_password.then_some(password)).collect();
    // If the classes change, all attributes are checked.
    schema.check(&new, &has, (old == new).then_some(touched))
}

/// Rejects a change of classes that would change the nature of the entry.
fn check_class_change(old: &[&str], new: &[&str], schema: &Schema) -> Result<(), LdapError> {
    if schema.structural(old)?.oid != schema.structural(new)?.oid {
        let what = "the structural object class of an entry cannot change";
        return Err(LdapError::new(Code::ObjectClassModsProhibited, what));
    }
    if schema.is_subscriber(old) != schema.is_subscriber(new) {
        let what = "an entry cannot become a subscriber or stop being one; delete it and add it again";
        return Err(LdapError::new(Code::ObjectClassModsProhibited, what));
    }
    if is_dynamic(old, schema) != is_dynamic(new, schema) {
        let what = "an entry cannot become dynamic or stop being dynamic; delete it and add it again";
        return Err(LdapError::new(Code::ObjectClassModsProhibited, what));
    }
    Ok(())
}
