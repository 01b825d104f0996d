//! An entry is made.

use std::sync::Arc;

use tocsin_model::time::Timestamp;
use tocsin_store::{
    entries::{Branches, Node, Object, Placement, Room},
    records::Expect,
};

use super::{
    Draft, Given, Images, NewPlace, Terms, add_rdn, changeable, checked, classes_of, expire::check_place, free_id,
    renew::is_of_password, single_valued, stored_object,
};
use crate::{
    access::Asker,
    directory::{Directory, Inner, parse},
    dn::Dn,
    entry::{self, Attribute, Place},
    password::Credential,
    person::subscriber_of,
    refusal::{Code, Refusal},
    schema::{AttributeType, Schema},
};

/// An entry that is to be made, held against the schema.
pub(super) struct Newcomer {
    pub(super) dn: Dn,
    pub(super) attributes: Vec<Attribute>,
    pub(super) credential: Option<Credential>,
    pub(super) schema: Arc<Schema>,
    pub(super) now: Timestamp,
}

impl Directory {
    /// Makes an entry. Durable when the call returns.
    ///
    /// # Errors
    /// The name or an attribute is not valid; there is one already; there is none above; whoever asks may not.
    pub async fn add(&self, asker: &Asker, dn: &str, given: Vec<Given>, terms: Terms) -> Result<Images, Refusal> {
        let new = self.newcomer(asker, dn, given).await?;
        if self.arrive(asker, &new, &terms).await? {
            return Ok(Images::default());
        }
        // Apart, so that the common way is not carried about with the room for this one.
        Box::pin(self.take_in(asker, new, terms)).await
    }

    /// The same, where the order of the calls is that of the changes: each finds what those before it did.
    pub(crate) async fn add_in_turn(
        &self,
        asker: &Asker,
        dn: &str,
        given: Vec<Given>,
        terms: Terms,
    ) -> Result<Images, Refusal> {
        let new = self.newcomer(asker, dn, given).await?;
        self.take_in(asker, new, terms).await
    }

    async fn newcomer(&self, asker: &Asker, dn: &str, given: Vec<Given>) -> Result<Newcomer, Refusal> {
        let parsed = parse(dn)?;
        let schema = self.schema();
        if parsed.0.len() <= self.inner.suffix.0.len() {
            let is_first = schema.normal_dn(&parsed) == self.inner.suffix_key;
            return Err(match is_first {
                true => Refusal::new(Code::EntryAlreadyExists, "the first entry is there already"),
                false => Refusal::new(Code::UnwillingToPerform, format!("entries stand below {}", self.suffix())),
            });
        }
        let (mut attributes, password) = taken(given, &parsed, &schema)?;
        if !asker.manages {
            // Before anything is hashed, or held against the policy of the place.
            let (inner, asker, dn, schema) = (self.inner.clone(), asker.clone(), parsed.clone(), schema.clone());
            let (kinds, has_password) = (kinds_of(&attributes), password.is_some());
            self.look(move |branches| {
                let above = inner.visible(branches, &asker, &Dn(dn.0[1..].to_vec()))?;
                inner.may_add(branches, &asker, (&above.0, above.1.as_deref()), &dn, &kinds, has_password, &schema)
            })
            .await?;
        }
        let credential = self.first_password(asker, &schema.normal_dn(&parsed), password).await?;
        let now = (self.clock)();
        attributes.extend(self.inner.first_end(&attributes, &schema, now)?);
        Ok(Newcomer { dn: parsed, attributes, credential, schema, now })
    }

    async fn take_in(&self, asker: &Asker, new: Newcomer, terms: Terms) -> Result<Images, Refusal> {
        let (inner, asker) = (self.inner.clone(), asker.clone());
        let Newcomer { dn, attributes, credential, schema, now } = new;
        self.change(Room::Needed, move |tree| {
            let (parent, above) = inner.visible(tree.branches(), &asker, &Dn(dn.0[1..].to_vec()))?;
            let place = entry::place(&parent, above.as_deref(), &schema);
            let (kinds, has_password) = (kinds_of(&attributes), credential.is_some());
            let stands = (&parent, above.as_deref());
            inner.may_add(tree.branches(), &asker, stands, &dn, &kinds, has_password, &schema)?;
            check_place(&parent, &classes_of(&attributes), &schema)?;
            let rdn = &dn.0[0];
            if inner.child(tree.branches(), &place, rdn, &schema)?.is_some() {
                return Err(Refusal::new(Code::EntryAlreadyExists, "there is such an entry already"));
            }
            terms.unique(&inner, tree.branches(), &attributes, None, &schema)?;
            inner.check_login(tree.branches(), None, (&[], &attributes))?;
            let rdn_key = schema.normal_rdn(rdn).into();
            let draft = Draft { parent: Some(place.number), rdn: rdn.text.as_str().into(), rdn_key, attributes };
            let number = if schema.is_subscriber(&classes_of(&draft.attributes)) {
                let id = free_id(tree, &draft.attributes, rdn, &draft.rdn_key, &place.key)?;
                let classes = draft.classes();
                let placement = Placement { parent: place.number, rdn: draft.rdn, rdn_key: draft.rdn_key, classes };
                let new = subscriber_of(id, None, &draft.attributes, Some(&placement), &inner.shape)?;
                tree.put_subscriber(new, Some(placement), Expect::Absent, now)?
            } else {
                let attributes = stored_object(&draft.attributes);
                tree.put_object(
                    Object { parent: draft.parent, rdn: draft.rdn, rdn_key: draft.rdn_key, attributes },
                    now,
                )?
            };
            if let Some(credential) = &credential {
                tree.put_credential(number, Some(&credential.to_text()))?;
            }
            Ok(Images { before: None, after: terms.after(&inner, tree.branches(), number, &schema)? })
        })
        .await
    }
}

impl Inner {
    /// Refuses an entry that the asker may not make: it needs `write` on the place below the entry above, and on the new entry with
    /// each of its attributes.
    #[expect(clippy::too_many_arguments, reason = "an entry that is not there yet, piece by piece")]
    fn may_add(
        &self,
        branches: &dyn Branches,
        asker: &Asker,
        (parent, above): (&Node, Option<&Place>),
        dn: &Dn,
        kinds: &[Arc<AttributeType>],
        has_password: bool,
        schema: &Schema,
    ) -> Result<(), Refusal> {
        if asker.manages {
            return Ok(());
        }
        let above = entry::view(parent, above, schema, &self.shape);
        let password = schema.attribute("userPassword")?;
        let kinds: Vec<_> = kinds.iter().chain(has_password.then_some(password)).map(|kind| &**kind).collect();
        let key = format!("{},{}", schema.normal_rdn(&dn.0[0]), above.key);
        self.needs_place(branches, asker, &NewPlace { key: &key, above: Some(&above), number: None, kinds: &kinds })
    }
}

fn kinds_of(attributes: &[Attribute]) -> Vec<Arc<AttributeType>> {
    attributes.iter().map(|attribute| attribute.kind.clone()).collect()
}

/// What a client gave, held against the schema; the password apart.
fn taken(given: Vec<Given>, dn: &Dn, schema: &Schema) -> Result<(Vec<Attribute>, Option<Vec<u8>>), Refusal> {
    let (mut attributes, mut password): (Vec<Attribute>, _) = (Vec::new(), None);
    for (name, values) in given {
        let kind = changeable(&name, schema)?;
        if values.is_empty() {
            return Err(Refusal::new(Code::InvalidAttributeSyntax, format!("{name}: no values for attribute type")));
        }
        if &*kind.key == "userpassword" {
            if values.len() > 1 || password.is_some() {
                return Err(Refusal::new(Code::ConstraintViolation, "an entry has one password"));
            }
            password = values.into_iter().next();
            continue;
        }
        if is_of_password(&name, schema) {
            let what = format!("{}: is decided about entries that are there", kind.name());
            return Err(Refusal::new(Code::ConstraintViolation, what));
        }
        if attributes.iter().any(|known| known.kind.key == kind.key) {
            return Err(Refusal::new(
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
        return Err(Refusal::new(Code::ObjectClassViolation, "no objectClass attribute"));
    }
    let password_kind = schema.attribute("userPassword")?;
    let has: Vec<_> =
        attributes.iter().map(|found| &found.kind).chain(password.as_ref().map(|_| password_kind)).collect();
    schema.check(&classes, &has, None)?;
    Ok((attributes, password))
}
