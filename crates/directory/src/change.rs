//! Changes of entries: add, modify, delete, rename. Each is one commit, all of it or nothing.

mod add; // an entry is made
mod arrive; // nearly always without waiting for others
mod modify; // what it has changes
mod members; // members of groups come and go one by one
mod retouch; // without waiting for others too
mod renew; // its password too
mod rename; // it gets another name, or another place
mod remove; // it goes
mod grow; // the schema gets more
mod revise; // what it has and its name change together
mod follow; // groups and roles that name it: referential integrity
mod expire; // or it ends by itself

use std::{collections::BTreeMap, sync::Arc};

pub use expire::Lifetimes;
pub(crate) use expire::NEVER;
pub use modify::{Act, Modification};
pub use renew::tells_of_password;
pub use revise::Revision;
use tocsin_model::{id::SubscriberId, time::Timestamp, value::Value};
use tocsin_store::entries::{Branches, EntryNumber, LoginNames, Node, Object, Placement, Tree};

use crate::{
    access::{Asker, Level},
    directory::Inner,
    dn::Rdn,
    entry::{self, Attribute, Entry},
    filter::{Filter, Test},
    groups::{FINDING, MEMBERS},
    kept::Shown,
    person, plan,
    refusal::{Code, Refusal},
    schema::{AttributeType, Schema},
    url::Meant,
};

/// Most values of one attribute.
pub const VALUES_MAX: usize = 100_000;

/// Values of an attribute as a client gives them.
pub type Given = (String, Vec<Vec<u8>>);

/// What a change must find, and what of its entry is wanted.
#[derive(Debug, Clone, Default)]
pub struct Terms {
    /// The entry must meet this: RFC 4528.
    pub assertion: Option<Filter>,
    /// The entry as it was before is wanted, or as it is after: RFC 4527.
    pub before: bool,
    /// See `before`.
    pub after: bool,
    /// The entry must be at this revision.
    pub revision: Option<u64>,
    /// No other entry may have a value that this one has of these attributes, which are indexed.
    pub unique: Vec<String>,
}

/// What was wanted of a changed entry.
#[derive(Debug, Default)]
pub struct Images {
    /// As it was.
    pub before: Option<Shown>,
    /// As it is.
    pub after: Option<Shown>,
}

impl Terms {
    /// Holds an entry against the assertion; gives how it is, if that is wanted.
    fn hold(&self, inner: &Inner, asker: &Asker, entry: &Entry, schema: &Schema) -> Result<Images, Refusal> {
        if self.revision.is_some_and(|revision| revision != entry.revision) {
            return Err(Refusal::new(Code::AssertionFailed, "the entry has changed in the meantime"));
        }
        if let Some(filter) = &self.assertion {
            let grant = inner.access.grant(asker, entry);
            if !Test::compile(filter, schema).is_met_by(entry, schema, &grant)? {
                return Err(Refusal::new(Code::AssertionFailed, "the entry does not meet the assertion"));
            }
        }
        let before = self.before.then(|| Shown::of(entry.clone()));
        Ok(Images { before, after: None })
    }

    /// Refuses values that another entry has.
    fn unique(
        &self,
        inner: &Inner,
        branches: &dyn Branches,
        attributes: &[Attribute],
        own: Option<EntryNumber>,
        schema: &Schema,
    ) -> Result<(), Refusal> {
        for name in &self.unique {
            let kind = schema.attribute(name)?;
            if !inner.ready.load().contains(&*kind.key) {
                let what = format!("the index of {name} is being built; try again in a moment");
                return Err(Refusal::new(Code::Busy, what));
            }
            let values = attributes.iter().filter(|found| found.kind.key == kind.key).flat_map(|found| &*found.values);
            for wanted in values.map(|value| normal(kind, value, schema)) {
                if inner.has_another(branches, kind, &wanted, own, schema)? {
                    let what = format!("another entry has this value of {name}");
                    return Err(Refusal::new(Code::EntryAlreadyExists, what));
                }
            }
        }
        Ok(())
    }

    /// The entry after the change, if that is wanted.
    fn after(
        &self,
        inner: &Inner,
        tree: &dyn Branches,
        number: EntryNumber,
        schema: &Schema,
    ) -> Result<Option<Shown>, Refusal> {
        if !self.after {
            return Ok(None);
        }
        let Some(node) = tree.node(number)? else { return Ok(None) };
        let above = inner.above(tree, &node)?;
        let entry = crate::entry::view(&node, above.as_deref(), schema, &inner.shape);
        Ok(Some(Shown::of(entry)))
    }
}

impl Inner {
    /// Whether an entry other than `own` has a value of this normal form.
    fn has_another(
        &self,
        branches: &dyn Branches,
        kind: &AttributeType,
        wanted: &[u8],
        own: Option<EntryNumber>,
        schema: &Schema,
    ) -> Result<bool, Refusal> {
        // Where so many share a key that they are not told, one of them is another.
        let Some(found) = plan::equal(branches, &kind.key, wanted)? else { return Ok(true) };
        for number in found.into_iter().filter(|number| Some(*number) != own) {
            let Some(node) = branches.node(number)? else { continue };
            let attributes = crate::entry::attributes(&node, schema, &self.shape);
            let same = attributes.iter().filter(|other| other.kind.key == kind.key).flat_map(|other| &*other.values);
            if same.into_iter().any(|value| normal(kind, value, schema) == wanted) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The index of login names: no two entries have the same.
pub(crate) const LOGIN: &str = "uid";

impl Inner {
    /// A login name that another entry has already. Names that the entry had before are not asked again.
    pub(crate) fn login_of_another(
        &self,
        branches: &dyn Branches,
        entry: Option<EntryNumber>,
        names: LoginNames<'_>,
    ) -> Result<Option<String>, Refusal> {
        let schema = self.schema.load();
        let kind = schema.attribute(LOGIN)?;
        let of = |attributes: &BTreeMap<String, Value>| {
            let is_login = |name: &&String| kind.names.iter().any(|known| known.eq_ignore_ascii_case(name));
            let named = attributes.keys().filter(is_login).filter_map(|name| attributes.get(name));
            named.flat_map(|value| entry::values(value, kind.syntax)).collect::<Vec<_>>()
        };
        let (before, now) = match names {
            LoginNames::Id(id) => (Vec::new(), vec![id.as_str().as_bytes().into()]),
            LoginNames::Attributes { before, now } => (before.map(of).unwrap_or_default(), of(now)),
        };
        let before: Vec<_> = before.iter().map(|value| normal(kind, value, &schema)).collect();
        for name in now {
            let wanted = normal(kind, &name, &schema);
            if !before.contains(&wanted) && self.has_another(branches, kind, &wanted, entry, &schema)? {
                return Ok(Some(String::from_utf8_lossy(&name).into_owned()));
            }
        }
        Ok(None)
    }

    /// Refuses a login name among attributes that another entry has already.
    fn check_login(
        &self,
        branches: &dyn Branches,
        entry: Option<EntryNumber>,
        (before, now): (&[Attribute], &[Attribute]),
    ) -> Result<(), Refusal> {
        let of = |attributes: &[Attribute]| {
            let login: Vec<_> = attributes.iter().filter(|found| &*found.kind.key == LOGIN).cloned().collect();
            stored_object(&login)
        };
        let (before, now) = (of(before), of(now));
        if before == now {
            return Ok(());
        }
        match self.login_of_another(branches, entry, LoginNames::Attributes { before: Some(&before), now: &now })? {
            Some(name) => {
                let what = format!("another entry has the login name `{name}` (uid); give another one");
                Err(Refusal::new(Code::ConstraintViolation, what))
            }
            None => Ok(()),
        }
    }
}

impl Inner {
    /// Refuses that a subscriber gives itself the address of a device of another one. Others who may write the entry are trusted.
    fn check_addresses(
        &self,
        branches: &dyn Branches,
        asker: &Asker,
        own: EntryNumber,
        (before, now): (&[Attribute], &[Attribute]),
        schema: &Schema,
    ) -> Result<(), Refusal> {
        if asker.manages || asker.number != Some(own) {
            return Ok(());
        }
        let of = |attributes: &[Attribute], key: &str| {
            let meant = attributes.iter().filter(|found| &*found.kind.key == key);
            meant.flat_map(|found| found.values.to_vec()).collect::<Vec<_>>()
        };
        let (devices, known) = (of(now, "tocsindevice"), of(before, "tocsindevice"));
        for (key, channel) in &self.shape.devices {
            let kind = schema.attribute(key)?;
            // `name channel state address`.
            let address = |text: &[u8]| {
                let mut words = text.splitn(4, |byte| *byte == b' ').skip(1);
                let is_meant = words.next() == Some(channel.as_str().as_bytes());
                words.nth(1).filter(|_| is_meant).map(Box::from)
            };
            let named = devices.iter().filter(|device| !known.contains(device)).filter_map(|device| address(device));
            let known = of(before, key);
            for given in of(now, key).into_iter().chain(named).filter(|given| !known.contains(given)) {
                // In the form in which devices are stored.
                let text = std::str::from_utf8(&given).ok();
                let stored = text.and_then(|text| self.shape.check_address.normalize(channel, text).ok());
                let wanted = match &stored {
                    Some(stored) => normal(kind, stored.as_bytes(), schema),
                    None => normal(kind, &given, schema),
                };
                if self.has_another(branches, kind, &wanted, Some(own), schema)? {
                    let what = format!("{}: another subscriber has this address; an operator may give it", kind.name());
                    return Err(Refusal::new(Code::ConstraintViolation, what));
                }
            }
        }
        Ok(())
    }
}

/// The attribute of a name, if clients may change it.
fn changeable(name: &str, schema: &Schema) -> Result<Arc<AttributeType>, Refusal> {
    let kind = schema.attribute(name)?;
    if kind.changeable {
        return Ok(kind.clone());
    }
    Err(Refusal::new(Code::ConstraintViolation, format!("{}: no user modification allowed", kind.name())))
}

/// Values held against their type; no two are equal.
fn checked(kind: &AttributeType, values: &[Vec<u8>], schema: &Schema) -> Result<Vec<Box<[u8]>>, Refusal> {
    let valid = valid(kind, values, schema)?;
    if valid.len() < 2 {
        return Ok(valid);
    }
    let mut seen = std::collections::HashSet::new();
    match values.iter().position(|value| !seen.insert(normal(kind, value, schema))) {
        Some(at) => Err(Refusal::new(
            Code::AttributeOrValueExists,
            format!("{}: value #{at} provided more than once", kind.name()),
        )),
        None => Ok(valid),
    }
}

/// Values held against their type.
fn valid(kind: &AttributeType, values: &[Vec<u8>], schema: &Schema) -> Result<Vec<Box<[u8]>>, Refusal> {
    if values.len() > VALUES_MAX {
        return Err(Refusal::new(
            Code::AdminLimitExceeded,
            format!("{}: an attribute has at most {VALUES_MAX} values", kind.name()),
        ));
    }
    let wrong = |what: String| Refusal::new(Code::InvalidAttributeSyntax, format!("{}: value {what}", kind.name()));
    for (at, value) in values.iter().enumerate() {
        if !kind.syntax.allows(value, schema) {
            return Err(wrong(format!("#{at} invalid per syntax")));
        }
        if &*kind.key == FINDING {
            Meant::read(&String::from_utf8_lossy(value)).map_err(|why| wrong(format!("#{at} {why}")))?;
        }
    }
    Ok(values.iter().map(|value| value.as_slice().into()).collect())
}

/// What of a value counts.
fn normal(kind: &AttributeType, value: &[u8], schema: &Schema) -> Vec<u8> {
    kind.equality.and_then(|rule| rule.normal(value, schema)).unwrap_or_else(|| value.to_vec())
}

/// The names of classes among attributes.
fn classes_of(attributes: &[Attribute]) -> Vec<&str> {
    let classes = attributes.iter().filter(|attribute| &*attribute.kind.key == "objectclass");
    classes.flat_map(|found| &*found.values).filter_map(|value| std::str::from_utf8(value).ok()).collect()
}

/// Refuses several values of an attribute that has one. `touched`: only these; the schema may have changed since others were
/// stored.
fn single_valued(attributes: &[Attribute], touched: Option<&[Arc<AttributeType>]>) -> Result<(), Refusal> {
    let is_asked = |kind: &AttributeType| touched.is_none_or(|touched| touched.iter().any(|one| one.key == kind.key));
    let is_wrong = |found: &&Attribute| found.kind.single && found.values.len() > 1 && is_asked(&found.kind);
    match attributes.iter().find(is_wrong) {
        Some(attribute) => {
            let what = format!("{}: multiple values provided", attribute.kind.name());
            Err(Refusal::new(Code::ConstraintViolation, what))
        }
        None => Ok(()),
    }
}

/// Whether a relative name's values are among the attributes.
fn has_rdn(attributes: &[Attribute], rdn: &Rdn, schema: &Schema) -> Result<bool, Refusal> {
    for (name, value) in &rdn.assertions {
        let kind = schema.attribute(name)?;
        let wanted = normal(kind, value, schema);
        let found =
            attributes.iter().filter(|attribute| attribute.kind.key == kind.key).flat_map(|found| &*found.values);
        if !found.into_iter().any(|value| normal(kind, value, schema) == wanted) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Puts the values of a relative name among the attributes, where they are missing.
fn add_rdn(attributes: &mut Vec<Attribute>, rdn: &Rdn, schema: &Schema) -> Result<(), Refusal> {
    for (name, value) in &rdn.assertions {
        let kind = schema.attribute(name)?.clone();
        if !kind.syntax.allows(value, schema) {
            return Err(Refusal::new(
                Code::InvalidAttributeSyntax,
                format!("{}: the name's value is invalid per syntax", kind.name()),
            ));
        }
        let wanted = normal(&kind, value, schema);
        match attributes.iter_mut().find(|attribute| attribute.kind.key == kind.key) {
            Some(found) if found.values.iter().any(|known| normal(&kind, known, schema) == wanted) => {}
            Some(found) => Arc::make_mut(&mut found.values).push(value.as_slice().into()),
            None => attributes.push(Attribute::of(&kind, value)),
        }
    }
    Ok(())
}

/// Refuses a change of attributes that the asker may not write; of none: of the entry itself. The asker sees the entry.
fn needs(inner: &Inner, asker: &Asker, entry: &Entry, kinds: &[&AttributeType]) -> Result<(), Refusal> {
    if asker.manages {
        return Ok(());
    }
    let grant = inner.access.grant(asker, entry);
    let denied = |kind: Option<&AttributeType>| grant.level(kind) < Level::Write;
    match if kinds.is_empty() { denied(None) } else { kinds.iter().any(|kind| denied(Some(kind))) } {
        true => Err(not_allowed("the access rules do not allow this")),
        false => Ok(()),
    }
}

fn not_allowed(what: &str) -> Refusal {
    Refusal::new(Code::InsufficientAccessRights, what)
}

/// A name that an entry is to get, in normal form, and the attributes that it brings there.
struct NewPlace<'a> {
    key: &'a str,
    /// The entry above, if it is another than before.
    above: Option<&'a Entry>,
    /// The entry, if it is there already.
    number: Option<EntryNumber>,
    kinds: &'a [&'a AttributeType],
}

impl Inner {
    /// Refuses a new name that the asker may not give: the entry above must take children, all of the entry must be writable under
    /// its new name, and no rights may come with the name.
    fn needs_place(&self, branches: &dyn Branches, asker: &Asker, new: &NewPlace<'_>) -> Result<(), Refusal> {
        if asker.manages {
            return Ok(());
        }
        if new.above.is_some_and(|above| !self.access.grant(asker, above).takes_children()) {
            return Err(not_allowed("the access rules do not allow to make entries here"));
        }
        let grant = self.access.grant_at(asker, new.key, new.number);
        let denied = |kind: Option<&AttributeType>| grant.level(kind) < Level::Write;
        if denied(None) || new.kinds.iter().any(|kind| denied(Some(kind))) {
            return Err(not_allowed("the access rules do not allow all attributes of the entry"));
        }
        // The rights of `self` at that place would hold for the entry that comes.
        if self.access.gives_to(new.key) || new.number.is_some() && self.access.names_place(new.key) {
            return Err(not_allowed(
                "an access rule gives rights to this name, so only an operator gives it to an entry",
            ));
        }
        self.joins(branches, asker, new.key)
    }

    /// Refuses a name that a group holds already, unless the asker may write the members of the group.
    fn joins(&self, branches: &dyn Branches, asker: &Asker, key: &str) -> Result<(), Refusal> {
        self.knows_groups()?;
        let is_closed =
            |group: &Entry, kind: &AttributeType| self.access.grant(asker, group).level(Some(kind)) < Level::Write;
        match self.holding(branches, MEMBERS, key, &is_closed)?.is_empty() {
            true => Ok(()),
            false => Err(not_allowed(
                "a group or role holds this name; giving it to an entry needs `write` on the members of that group",
            )),
        }
    }
}

/// What an entry is to be.
struct Draft {
    parent: Option<EntryNumber>,
    rdn: Box<str>,
    rdn_key: Box<str>,
    attributes: Vec<Attribute>,
}

impl Draft {
    fn classes(&self) -> Box<str> {
        classes_of(&self.attributes).join(" ").into()
    }
}

/// Stores an entry in place of another. `placed`: its name, place or classes changed.
fn replace(
    tree: &mut dyn Tree,
    inner: &Inner,
    (old_node, before): (&Node, &[Attribute]),
    draft: Draft,
    placed: bool,
    now: Timestamp,
) -> Result<(), Refusal> {
    match old_node {
        Node::Object(stored) => {
            let attributes = person::object_attributes(&stored.object.attributes, before, &draft.attributes);
            let object = Object { parent: draft.parent, rdn: draft.rdn, rdn_key: draft.rdn_key, attributes };
            Ok(tree.change_object(stored, object, now)?)
        }
        Node::Subscriber(subscriber, placement) => {
            let new_placement = match (draft.parent, placed) {
                (Some(parent), true) => {
                    let classes = draft.classes();
                    Some(Placement { parent, rdn: draft.rdn.clone(), rdn_key: draft.rdn_key.clone(), classes })
                }
                _ => None,
            };
            let stands = new_placement.as_ref().or(placement.as_ref());
            let old = Some((&**subscriber, before));
            let new = person::subscriber_of(subscriber.id.clone(), old, &draft.attributes, stands, &inner.shape)?;
            Ok(tree.change_subscriber(old_node, new, new_placement, now)?)
        }
    }
}

/// An id for a subscriber that is made here: its `uid`, else the value of its name, if nobody has it; else what is only its.
fn free_id(
    tree: &dyn Tree,
    attributes: &[Attribute],
    rdn: &Rdn,
    rdn_key: &str,
    above: &str,
) -> Result<SubscriberId, Refusal> {
    let is_free = |id: &SubscriberId| Ok::<_, Refusal>(tree.branches().subscriber(id)?.is_none());
    for id in wanted_ids(attributes, rdn) {
        if is_free(&id)? {
            return Ok(id);
        }
    }
    // One that was renamed keeps its id, so that even the whole name may be taken.
    let own = crate::password::made_up()?;
    let short = rdn_key.chars().take(100).collect::<String>();
    let last = [rdn_key.to_owned(), format!("{rdn_key},{above}"), format!("{short} {own}")];
    for id in last.iter().filter_map(|candidate| id_of(candidate)) {
        if is_free(&id)? {
            return Ok(id);
        }
    }
    Err(Refusal::new(Code::EntryAlreadyExists, "there are subscribers of all ids that this entry could have"))
}

/// The ids that a subscriber is to have, the dearest first.
fn wanted_ids(attributes: &[Attribute], rdn: &Rdn) -> impl Iterator<Item = SubscriberId> {
    let uid = attributes.iter().find(|attribute| &*attribute.kind.key == "uid").map(|found| found.values[0].to_vec());
    let value = rdn.assertions.first().map(|(_, value)| value.clone());
    let texts = [uid, value].into_iter().flatten().filter_map(|value| String::from_utf8(value).ok());
    texts.filter_map(|text| id_of(&text))
}

/// Characters of a name that an id keeps where the name is too long for one.
const ID_HEAD: usize = 200;

/// A name as an id of a subscriber. An id has neither `/` nor control characters, is not `.` or `..`, and has at most 255 characters:
/// these characters are percent-encoded, and a name that is longer ends with its hash. `None`: the name is empty.
fn id_of(name: &str) -> Option<SubscriberId> {
    if let Ok(id) = name.parse() {
        return Some(id);
    }
    let mut text = String::with_capacity(name.len() + 8);
    for c in name.chars() {
        match c {
            '.' if matches!(name, "." | "..") => text.push_str("%2E"),
            '/' => text.push_str("%2F"),
            c if c.is_control() => {
                c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| text.push_str(&format!("%{byte:02X}")));
            }
            c => text.push(c),
        }
    }
    if text.chars().count() > 255 {
        use base64::Engine;
        let hash = ring::digest::digest(&ring::digest::SHA256, name.as_bytes());
        let hash = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(&hash.as_ref()[..18]);
        text = format!("{}~{hash}", text.chars().take(ID_HEAD).collect::<String>());
    }
    text.parse().ok()
}

/// A value for storage of attributes that nobody has yet.
fn stored_object(attributes: &[Attribute]) -> BTreeMap<String, Value> {
    person::object_attributes(&Default::default(), &[], attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b28_any_name_of_an_entry_gives_an_id() {
        for (name, id) in [
            ("vera", "vera"),
            ("a b.c%d@e", "a b.c%d@e"),
            ("a/b", "a%2Fb"),
            ("/", "%2F"),
            (".", "%2E"),
            ("..", "%2E%2E"),
            ("Jörg/Ö", "Jörg%2FÖ"),
            ("a\nb\u{85}", "a%0Ab%C2%85"),
        ] {
            assert_eq!(id_of(name).expect(name).as_str(), id);
        }
        let long = |end: &str| id_of(&format!("{}/{end}", "ü".repeat(300))).expect("an id");
        assert_eq!(long("a").as_str().chars().count(), ID_HEAD + 25);
        assert!(long("a") == long("a") && long("a") != long("b"));
        assert_eq!(id_of(""), None);
    }
}
