//! Writes a changed entry in the transaction of the store, as an object or as a subscriber.

use tocsin_model::time::Timestamp;
use tocsin_store::entries::{EntryNode, EntryNumber, EntryWriter, Object, Placement};

use super::values::classes_of;
use crate::{
    attribute_mapping::{object_attributes, subscriber_of},
    dn::Rdn,
    entry::{self, Attribute},
    ldap_error::LdapError,
    schema::Schema,
    tree::Inner,
};

/// State of an entry after the change, before it is stored.
pub(super) struct EntryDraft {
    pub(super) parent: Option<EntryNumber>,
    pub(super) rdn: Box<str>,
    pub(super) rdn_key: Box<str>,
    pub(super) attributes: Vec<Attribute>,
}

impl EntryDraft {
    pub(super) fn classes(&self) -> Box<str> {
        classes_of(&self.attributes).join(" ").into()
    }
}

/// Stores an entry in place of its previous state. `placed`: its name, parent or classes changed.
pub(super) fn replace(
    tree: &mut dyn EntryWriter,
    inner: &Inner,
    (old_node, before): (&EntryNode, &[Attribute]),
    draft: EntryDraft,
    placed: bool,
    now: Timestamp,
) -> Result<(), LdapError> {
    match old_node {
        EntryNode::Object(stored) => {
            let attributes = object_attributes(&stored.object.attributes, before, &draft.attributes);
            let object = Object { parent: draft.parent, rdn: draft.rdn, rdn_key: draft.rdn_key, attributes };
            Ok(tree.change_object(stored, object, now)?)
        }
        EntryNode::Subscriber(subscriber, placement) => {
            let new_placement = match (draft.parent, placed) {
                (Some(parent), true) => {
                    let classes = draft.classes();
                    Some(Placement { parent, rdn: draft.rdn.clone(), rdn_key: draft.rdn_key.clone(), classes })
                }
                _ => None,
            };
            let stands = new_placement.as_ref().or(placement.as_ref());
            let old = Some((&**subscriber, before));
            let new = subscriber_of(subscriber.id.clone(), old, &draft.attributes, stands, &inner.shape)?;
            Ok(tree.change_subscriber(old_node, new, new_placement, now)?)
        }
    }
}

/// Stores the attributes of an entry after a change, and its new relative name.
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
