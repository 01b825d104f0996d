//! Modify DN operation (RFC 4511, 4.9): rename or move.

use std::sync::Arc;

use tocsin_store::entries::DiskCheck;

use super::{
    dynamic_entries::check_place,
    preconditions::{Preconditions, ReadEntries},
    rights::{NewPlace, check_access},
    values::{add_rdn, classes_of, named_by, normal, single_valued},
    write::{EntryDraft, replace},
};
use crate::{
    access::{AuthzId, is_below},
    directory::Directory,
    dn::Rdn,
    entry::{self, Attribute},
    ldap_error::{Code, LdapError},
    schema::Schema,
    tree::parse,
};

impl Directory {
    /// Renames or moves an entry with all entries below it. Groups and roles are updated. Durable on return.
    ///
    /// # Errors
    /// There is no such entry; the new name exists; the new parent is missing; the requester lacks access.
    pub async fn rename(
        &self,
        requester: &AuthzId,
        dn: &str,
        new_rdn: &str,
        delete_old: bool,
        new_superior: Option<&str>,
        terms: Preconditions,
    ) -> Result<ReadEntries, LdapError> {
        let parsed = parse(dn)?;
        let new = parse(new_rdn)?;
        let [rdn] = new.0.as_slice() else {
            return Err(LdapError::new(Code::InvalidDnSyntax, "the new relative name must have exactly one part"));
        };
        let (rdn, superior) = (rdn.clone(), new_superior.map(parse).transpose()?);
        let (inner, requester, now, schema) = (self.inner.clone(), requester.clone(), (self.clock)(), self.schema());
        self.change_or_check(&terms.clone(), DiskCheck::Skipped, move |tree| {
            let (old, above) = inner.visible(tree.reader(), &requester, &parsed)?;
            let shown = entry::view(&old, above.as_deref(), &schema, &inner.shape);
            check_access(&inner, &requester, &shown, &[])?;
            let named = named_by(&[&rdn, &parsed.0[0]], &schema)?;
            check_access(&inner, &requester, &shown, &named.iter().map(|kind| &**kind).collect::<Vec<_>>())?;
            let mut images = terms.check(&inner, &requester, &shown, &schema)?;
            let Some(above) = above else {
                return Err(LdapError::new(Code::UnwillingToPerform, "the suffix entry cannot be renamed"));
            };
            let (place, new_above) = match &superior {
                Some(dn) => {
                    let (node, over) = inner.visible(tree.reader(), &requester, dn)?;
                    check_place(&node, &shown.classes(), &schema)?;
                    let view = entry::view(&node, over.as_deref(), &schema, &inner.shape);
                    (entry::place(&node, over.as_deref(), &schema), Some(view))
                }
                None => ((*above).clone(), None),
            };
            let key = format!("{},{}", schema.normal_rdn(&rdn), place.key);
            if key != shown.key {
                let new_above = new_above.as_ref().filter(|view| view.number != above.number);
                let kinds: Vec<_> = match new_above {
                    Some(_) => shown
                        .attributes
                        .iter()
                        .map(|found| &*found.kind)
                        .chain(named.iter().map(|kind| &**kind))
                        .collect(),
                    None => named.iter().map(|kind| &**kind).collect(),
                };
                let new = NewPlace { key: &key, above: new_above, number: Some(shown.number), kinds: &kinds };
                inner.check_access_to_name(tree.reader(), &requester, &new)?;
            }
            if place.number == shown.number || is_below(&place.key, &shown.key) {
                return Err(LdapError::new(Code::UnwillingToPerform, "an entry cannot be moved below itself"));
            }
            if inner.is_people(shown.number) {
                return Err(LdapError::new(
                    Code::UnwillingToPerform,
                    "this is the container of subscribers; its name is fixed",
                ));
            }
            if let Some(other) = inner.child(tree.reader(), &place, &rdn, &schema)?
                && other.number() != shown.number
            {
                return Err(LdapError::new(Code::EntryAlreadyExists, "an entry with the new name exists already"));
            }
            let before = shown.attributes.clone();
            let mut attributes = shown.attributes;
            if delete_old {
                remove_rdn(&mut attributes, &parsed.0[0], &rdn, &schema)?;
            }
            add_rdn(&mut attributes, &rdn, &schema)?;
            let has: Vec<_> = attributes.iter().map(|found| &found.kind).collect();
            let kinds: Vec<_> = rdn.assertions.iter().filter_map(|(name, _)| schema.attribute(name).ok()).collect();
            // The attributes of the old name lose values.
            let old_kinds = parsed.0[0].assertions.iter().filter_map(|(name, _)| schema.attribute(name).ok());
            let touched: Vec<_> = kinds.into_iter().chain(old_kinds).cloned().collect();
            single_valued(&attributes, Some(&touched))?;
            let classes = classes_of(&attributes);
            schema.check(&classes, &has, Some(&touched))?;
            let rdn_key = schema.normal_rdn(&rdn).into();
            let draft = EntryDraft { parent: Some(place.number), rdn: rdn.text.as_str().into(), rdn_key, attributes };
            inner.check_login(tree.reader(), Some(shown.number), (&before, &draft.attributes))?;
            inner.require_reference_lookup(tree.reader())?;
            replace(tree, &inner, (&old, &before), draft, true, now)?;
            inner.cut_for_names(tree, old.number())?;
            images.after = terms.after(&inner, tree.reader(), old.number(), &schema)?;
            Ok(images)
        })
        .await
    }
}

/// Removes the values of the old name. A value that the new name spells differently takes the new spelling.
fn remove_rdn(attributes: &mut Vec<Attribute>, old: &Rdn, new: &Rdn, schema: &Schema) -> Result<(), LdapError> {
    for (name, value) in &old.assertions {
        let kind = schema.attribute(name)?.clone();
        let gone = normal(&kind, value, schema);
        let stays = new.assertions.iter().find(|(name, value)| {
            schema.attribute(name).is_ok_and(|other| other.key == kind.key) && normal(&kind, value, schema) == gone
        });
        if let Some((_, spelled)) = stays {
            let meant = attributes.iter_mut().filter(|attribute| attribute.kind.key == kind.key);
            for attribute in meant.filter(|attribute| !attribute.values.iter().any(|value| **value == **spelled)) {
                for value in Arc::make_mut(&mut attribute.values) {
                    if normal(&kind, value, schema) == gone {
                        *value = spelled.as_slice().into();
                    }
                }
            }
            continue;
        }
        for attribute in attributes.iter_mut().filter(|attribute| attribute.kind.key == kind.key) {
            Arc::make_mut(&mut attribute.values).retain(|value| normal(&kind, value, schema) != gone);
        }
        attributes.retain(|attribute| !attribute.values.is_empty());
    }
    Ok(())
}
