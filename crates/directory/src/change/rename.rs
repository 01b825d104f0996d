//! An entry gets another name, or another place: RFC 4511, 4.9.

use std::sync::Arc;

use tocsin_store::entries::Room;

use super::{Draft, Images, NewPlace, Terms, add_rdn, expire::check_place, modify::named_by, needs, normal, replace};
use crate::{
    access::{Asker, is_below},
    directory::{Directory, parse},
    dn::Rdn,
    entry::{self, Attribute},
    refusal::{Code, Refusal},
    schema::Schema,
};

impl Directory {
    /// Renames an entry, with all below it. Groups and roles that name one of them follow. Durable when the call returns.
    ///
    /// # Errors
    /// There is none; there is another of the new name; there is no new place; whoever asks may not.
    pub async fn rename(
        &self,
        asker: &Asker,
        dn: &str,
        new_rdn: &str,
        delete_old: bool,
        new_superior: Option<&str>,
        terms: Terms,
    ) -> Result<Images, Refusal> {
        let parsed = parse(dn)?;
        let new = parse(new_rdn)?;
        let [rdn] = new.0.as_slice() else {
            return Err(Refusal::new(Code::InvalidDnSyntax, "the new name has exactly one part"));
        };
        let (rdn, superior) = (rdn.clone(), new_superior.map(parse).transpose()?);
        let (inner, asker, now, schema) = (self.inner.clone(), asker.clone(), (self.clock)(), self.schema());
        self.change(Room::NotNeeded, move |tree| {
            let (old, above) = inner.visible(tree.branches(), &asker, &parsed)?;
            let shown = entry::view(&old, above.as_deref(), &schema, &inner.shape);
            needs(&inner, &asker, &shown, &[])?;
            let named = named_by(&[&rdn, &parsed.0[0]], &schema)?;
            needs(&inner, &asker, &shown, &named.iter().map(|kind| &**kind).collect::<Vec<_>>())?;
            let mut images = terms.hold(&inner, &asker, &shown, &schema)?;
            let Some(above) = above else {
                return Err(Refusal::new(Code::UnwillingToPerform, "the first entry keeps its name"));
            };
            let (place, new_above) = match &superior {
                Some(dn) => {
                    let (node, over) = inner.visible(tree.branches(), &asker, dn)?;
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
                inner.needs_place(tree.branches(), &asker, &new)?;
            }
            if place.number == shown.number || is_below(&place.key, &shown.key) {
                return Err(Refusal::new(Code::UnwillingToPerform, "an entry cannot stand below itself"));
            }
            if inner.is_people(shown.number) {
                return Err(Refusal::new(Code::UnwillingToPerform, "subscribers stand here; its name is fixed"));
            }
            if let Some(other) = inner.child(tree.branches(), &place, &rdn, &schema)?
                && other.number() != shown.number
            {
                return Err(Refusal::new(Code::EntryAlreadyExists, "there is such an entry already"));
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
            super::single_valued(&attributes, Some(&touched))?;
            let classes = super::classes_of(&attributes);
            schema.check(&classes, &has, Some(&touched))?;
            let rdn_key = schema.normal_rdn(&rdn).into();
            let draft = Draft { parent: Some(place.number), rdn: rdn.text.as_str().into(), rdn_key, attributes };
            inner.check_login(tree.branches(), Some(shown.number), (&before, &draft.attributes))?;
            inner.can_follow(tree.branches())?;
            replace(tree, &inner, (&old, &before), draft, true, now)?;
            inner.cut_for_names(tree, old.number())?;
            images.after = terms.after(&inner, tree.branches(), old.number(), &schema)?;
            Ok(images)
        })
        .await
    }
}

/// Takes away the values of the old name that the new one does not have.
fn remove_rdn(attributes: &mut Vec<Attribute>, old: &Rdn, new: &Rdn, schema: &Schema) -> Result<(), Refusal> {
    for (name, value) in &old.assertions {
        let kind = schema.attribute(name)?.clone();
        let gone = normal(&kind, value, schema);
        let stays = new.assertions.iter().any(|(name, value)| {
            schema.attribute(name).is_ok_and(|other| other.key == kind.key) && normal(&kind, value, schema) == gone
        });
        if stays {
            continue;
        }
        for attribute in attributes.iter_mut().filter(|attribute| attribute.kind.key == kind.key) {
            Arc::make_mut(&mut attribute.values).retain(|value| normal(&kind, value, schema) != gone);
        }
        attributes.retain(|attribute| !attribute.values.is_empty());
    }
    Ok(())
}
