//! What an entry has changes: RFC 4511, 4.6, with increment of RFC 4525.

use std::{collections::HashSet, sync::Arc};

use tocsin_model::time::Timestamp;
use tocsin_store::entries::{Node, Room, Tree};

use super::{
    Draft, Images, Terms, changeable, checked, classes_of,
    expire::is_dynamic,
    has_rdn,
    members::{Target, are_members},
    needs, normal,
    renew::{Renewal, is_of_password},
    replace, single_valued, valid,
};
use crate::{
    access::Asker,
    directory::{Directory, Inner, parse},
    dn::Rdn,
    entry::{self, Attribute, Place},
    policy::change_first,
    refusal::{Code, Refusal},
    schema::{AttributeType, Schema},
    syntax::Syntax,
};

/// What a modification does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Adds values.
    Add,
    /// Removes values, or all.
    Delete,
    /// Puts values in place of all.
    Replace,
    /// Adds to a whole number.
    Increment,
}

/// One of the changes of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Modification {
    /// What it does.
    pub act: Act,
    /// The name of the attribute.
    pub attribute: String,
    /// The values.
    pub values: Vec<Vec<u8>>,
}

impl Directory {
    /// Changes an entry: all modifications in their order, or none. Durable when the call returns.
    ///
    /// # Errors
    /// There is no such entry; a modification does not fit it; the result is at odds with the schema; whoever asks may not.
    pub async fn modify(
        &self,
        asker: &Asker,
        dn: &str,
        modifications: Vec<Modification>,
        terms: Terms,
    ) -> Result<Images, Refusal> {
        let named = || Ok(Target::Named(parse(dn)?));
        if let Some(images) = self.change_members(asker, named, &modifications, &terms).await? {
            return Ok(images);
        }
        let shown = match self.at_hand(dn) {
            Some(shown) => Some(shown),
            None if self.schema().normal_dn(&parse(dn)?) == entry::SUBSCHEMA => None,
            // Nearly always it is there; what comes behind others that are under way is looked for in turn.
            None => self.find(dn).await.ok(),
        };
        if let Some(shown) = shown
            && let Some(images) = self.retouch(asker, dn, shown, &modifications, &terms).await?
        {
            return Ok(images);
        }
        // Apart, so that the common way is not carried about with the room for this one.
        Box::pin(self.modify_in_turn(asker, dn, modifications, terms)).await
    }

    /// The same, where the order of the calls is that of the changes: each finds what those before it did.
    pub(crate) async fn modify_in_turn(
        &self,
        asker: &Asker,
        dn: &str,
        modifications: Vec<Modification>,
        terms: Terms,
    ) -> Result<Images, Refusal> {
        let parsed = parse(dn)?;
        if self.schema().normal_dn(&parsed) == entry::SUBSCHEMA {
            return self.grow(asker, modifications).await.map(|()| Images::default());
        }
        let schema = self.schema();
        let members = (are_members(asker, &modifications, &terms, &schema) && !terms.after)
            .then(|| (modifications.clone(), Target::Named(parsed.clone())));
        let task = self.task(asker, dn, modifications, None).await?;
        let (inner, asker, now) = (self.inner.clone(), asker.clone(), (self.clock)());
        self.change(Room::Needed, move |tree| {
            if let Some((members, target)) = members
                && inner.change_rows(tree, &asker, &target, &members, terms.revision, &schema, now)?.is_some()
            {
                return Ok(Images::default());
            }
            let (old, above) = inner.visible(tree.branches(), &asker, &parsed)?;
            task.run(&inner, &asker, tree, (&old, above.as_deref()), &terms, now)
        })
        .await
    }

    /// What is to be done to an entry, with its password hashed.
    pub(super) async fn task(
        &self,
        asker: &Asker,
        dn: &str,
        modifications: Vec<Modification>,
        rdn: Option<Rdn>,
    ) -> Result<Task, Refusal> {
        let schema = self.schema();
        let (of_password, rest): (Vec<_>, Vec<_>) =
            modifications.into_iter().partition(|found| is_of_password(&found.attribute, &schema));
        if asker.must_change && (!rest.is_empty() || rdn.is_some()) {
            return Err(change_first());
        }
        let renewal = self.renewal(asker, dn, of_password).await?;
        Ok(Task { rest, renewal, rdn, schema })
    }
}

/// What is to be done to an entry in one commit.
pub(super) struct Task {
    rest: Vec<Modification>,
    renewal: Renewal,
    /// The relative name that it is to have, if it changes.
    rdn: Option<Rdn>,
    schema: Arc<Schema>,
}

impl Task {
    /// Does it. Whatever is refused is refused before anything is changed.
    pub(super) fn run(
        self,
        inner: &Inner,
        asker: &Asker,
        tree: &mut dyn Tree,
        (old, above): (&Node, Option<&Place>),
        terms: &Terms,
        now: Timestamp,
    ) -> Result<Images, Refusal> {
        let schema = &*self.schema;
        let shown = entry::view(old, above, schema, &inner.shape);
        let mut kinds = touched(&self.rest, schema)?;
        let of_password = self.renewal.kinds(schema)?;
        let renews = !of_password.is_empty();
        kinds.extend(of_password);
        if let Some(rdn) = &self.rdn {
            kinds.extend(named_by(&[rdn, &parse(&shown.dn)?.0[0]], schema)?);
        }
        needs(inner, asker, &shown, &kinds.iter().map(|kind| &**kind).collect::<Vec<_>>())?;
        let mut images = terms.hold(inner, asker, &shown, schema)?;
        let (mut attributes, rdn) = (shown.attributes.clone(), self.rdn.as_ref());
        for modification in &self.rest {
            apply(&mut attributes, modification, schema)?;
        }
        // Asked of the store only where it matters: all that the entry has is held against its classes if these change.
        let is_asked = renews || classes_of(&shown.attributes) != classes_of(&attributes);
        let known = if is_asked { tree.branches().credential(old.number())? } else { None };
        let credential = self.renewal.apply(known.as_deref(), now)?;
        // Where nobody asked, it is as it was, and no matter of this change.
        let has_password = !is_asked || credential.as_ref().map_or(known.is_some(), Option::is_some);
        if let (Some(rdn), Some(above)) = (rdn, above) {
            inner.renamed(tree.branches(), &shown, above, rdn, &mut attributes, schema)?;
        }
        let present = parse(&shown.dn)?;
        check(&shown.attributes, &attributes, &kinds, has_password, rdn.unwrap_or(&present.0[0]), schema)?;
        terms.unique(inner, tree.branches(), &attributes, Some(shown.number), schema)?;
        let states = (&*shown.attributes, &*attributes);
        inner.check_login(tree.branches(), Some(shown.number), states)?;
        inner.check_addresses(tree.branches(), asker, shown.number, states, schema)?;
        keep(old, inner, tree, (&shown.attributes, attributes), rdn, schema, now)?;
        if self.rdn.is_some() {
            inner.cut_for_names(tree, old.number())?;
        }
        if let Some(credential) = credential {
            let itself = asker.standing.as_ref().filter(|_| asker.number == Some(old.number()));
            if let (Some(standing), Some(new)) = (itself, &credential) {
                standing.accept(&new.hash);
            }
            tree.put_credential(old.number(), credential.map(|credential| credential.to_text()).as_deref())?;
        }
        images.after = terms.after(inner, tree.branches(), old.number(), schema)?;
        Ok(images)
    }
}

/// Stores the result.
pub(super) fn keep(
    old: &Node,
    inner: &Inner,
    tree: &mut dyn Tree,
    (before, attributes): (&[Attribute], Vec<Attribute>),
    new_rdn: Option<&Rdn>,
    schema: &Schema,
    now: Timestamp,
) -> Result<(), Refusal> {
    if before == attributes && new_rdn.is_none() {
        return Ok(());
    }
    let placed = classes_of(before) != classes_of(&attributes) || new_rdn.is_some();
    let (parent, rdn, rdn_key) = match old {
        Node::Object(stored) => (stored.object.parent, stored.object.rdn.clone(), stored.object.rdn_key.clone()),
        Node::Subscriber(_, Some(placement)) => {
            (Some(placement.parent), placement.rdn.clone(), placement.rdn_key.clone())
        }
        Node::Subscriber(subscriber, None) => {
            let (rdn, rdn_key) = entry::unplaced_rdn(&subscriber.id, schema);
            (inner.above(tree.branches(), old)?.map(|above| above.number), rdn.into(), rdn_key.into())
        }
    };
    let (rdn, rdn_key) = match new_rdn {
        Some(new) => (new.text.as_str().into(), schema.normal_rdn(new).into()),
        None => (rdn, rdn_key),
    };
    replace(tree, inner, (old, before), Draft { parent, rdn, rdn_key, attributes }, placed, now)
}

fn touched(modifications: &[Modification], schema: &Schema) -> Result<Vec<Arc<AttributeType>>, Refusal> {
    modifications.iter().map(|modification| changeable(&modification.attribute, schema)).collect()
}

/// The types of the values in relative names.
pub(super) fn named_by(rdns: &[&Rdn], schema: &Schema) -> Result<Vec<Arc<AttributeType>>, Refusal> {
    let names = rdns.iter().flat_map(|rdn| &rdn.assertions);
    names.map(|(name, _)| schema.attribute(name).cloned()).collect()
}

pub(super) fn apply(
    attributes: &mut Vec<Attribute>,
    modification: &Modification,
    schema: &Schema,
) -> Result<(), Refusal> {
    let kind = changeable(&modification.attribute, schema)?;
    let at = attributes.iter().position(|attribute| attribute.kind.key == kind.key);
    let absent = || Refusal::new(Code::NoSuchAttribute, format!("modify: no such value of `{}`", kind.name()));
    let values = match modification.act {
        // What goes twice goes.
        Act::Delete => valid(&kind, &modification.values, schema)?,
        _ => checked(&kind, &modification.values, schema)?,
    };
    match modification.act {
        Act::Add if values.is_empty() => {
            return Err(Refusal::new(Code::ProtocolError, format!("{}: no values given", kind.name())));
        }
        Act::Add => match at {
            Some(at) => {
                let known: HashSet<_> =
                    attributes[at].values.iter().map(|value| normal(&kind, value, schema)).collect();
                if values.iter().any(|value| known.contains(&normal(&kind, value, schema))) {
                    let what = format!("modify/add: {}: value already exists", kind.name());
                    return Err(Refusal::new(Code::AttributeOrValueExists, what));
                }
                Arc::make_mut(&mut attributes[at].values).extend(values);
            }
            None => attributes.push(Attribute { kind, values: values.into() }),
        },
        Act::Delete => {
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
        Act::Replace => match (at, values.is_empty()) {
            (Some(at), true) => drop(attributes.remove(at)),
            (Some(at), false) => attributes[at].values = values.into(),
            (None, true) => {}
            (None, false) => attributes.push(Attribute { kind, values: values.into() }),
        },
        Act::Increment => {
            if kind.syntax != Syntax::Integer {
                return Err(Refusal::new(Code::ConstraintViolation, format!("{}: is no whole number", kind.name())));
            }
            let number = |value: &[u8]| std::str::from_utf8(value).ok()?.parse::<i64>().ok();
            let [by] = values.as_slice() else {
                return Err(Refusal::new(Code::ProtocolError, "increment takes exactly one value"));
            };
            let overflow =
                || Refusal::new(Code::ConstraintViolation, format!("{}: does not fit in 64 bits", kind.name()));
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
) -> Result<(), Refusal> {
    if !has_rdn(attributes, rdn, schema)? && has_rdn(before, rdn, schema)? {
        return Err(Refusal::new(Code::NotAllowedOnRdn, "the values of the entry's name cannot be removed; rename it"));
    }
    check_classes(&classes_of(before), attributes, touched, has_password, schema)
}

/// Holds what an entry of some classes became against its classes.
pub(super) fn check_classes(
    old: &[&str],
    attributes: &[Attribute],
    touched: &[Arc<AttributeType>],
    has_password: bool,
    schema: &Schema,
) -> Result<(), Refusal> {
    single_valued(attributes, Some(touched))?;
    let new = classes_of(attributes);
    if new.is_empty() {
        return Err(Refusal::new(Code::ObjectClassViolation, "no objectClass attribute"));
    }
    if old != new {
        check_turn(old, &new, schema)?;
    }
    let password = schema.attribute("userPassword")?;
    let has: Vec<_> = attributes.iter().map(|found| &found.kind).chain(has_password.then_some(password)).collect();
    // Where the classes change, all is asked anew.
    schema.check(&new, &has, (old == new).then_some(touched))
}

/// Refuses classes that an entry of others cannot get.
fn check_turn(old: &[&str], new: &[&str], schema: &Schema) -> Result<(), Refusal> {
    if schema.structural(old)?.oid != schema.structural(new)?.oid {
        let what = "the structural object class of an entry cannot change";
        return Err(Refusal::new(Code::ObjectClassModsProhibited, what));
    }
    if schema.is_subscriber(old) != schema.is_subscriber(new) {
        let what = "an entry cannot become a subscriber, or cease to be one; add it anew";
        return Err(Refusal::new(Code::ObjectClassModsProhibited, what));
    }
    if is_dynamic(old, schema) != is_dynamic(new, schema) {
        let what = "an entry cannot begin to end by itself, or cease to; add it anew";
        return Err(Refusal::new(Code::ObjectClassModsProhibited, what));
    }
    Ok(())
}
