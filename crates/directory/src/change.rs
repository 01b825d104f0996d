//! Changes of entries: add, modify, delete and rename. Each change is one transaction.

mod add; // add (RFC 4511, 4.7)
mod add_prepared; // add, prepared outside the writer thread
mod modify; // modify (RFC 4511, 4.6)
mod members; // modify of group members, without reading the whole group
mod modify_prepared; // modify, prepared outside the writer thread (optimistic concurrency)
mod password_change; // password changes, by owner or administrator (RFC 3062, policy of the subtree)
mod rename; // modify DN (RFC 4511, 4.9)
mod remove; // delete (RFC 4511, 4.8)
mod extend_schema; // schema extension through `cn=subschema`
mod modify_and_rename; // modify and rename in one transaction
mod referential_integrity; // referential integrity of groups and roles
mod dynamic_entries; // dynamic entries (RFC 2589)

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

pub use dynamic_entries::Lifetimes;
pub(crate) use dynamic_entries::NEVER;
pub use modify::{Modification, ModifyType};
pub use modify_and_rename::Revision;
use password_change::PASSWORD;
pub use password_change::is_password_state;
use tocsin_model::{id::SubscriberId, mailbox, time::Timestamp, value::Value};
use tocsin_store::entries::{EntryNode, EntryNumber, EntryReader, EntryWriter, LoginNames, Object, Placement};

use crate::{
    access::{AuthzId, Level},
    attribute_mapping,
    directory::Inner,
    dn::Rdn,
    entry::{self, Attribute, Entry},
    entry_cache::CachedEntry,
    filter::{Filter, Test},
    groups::{FINDING, MEMBERS},
    ldap_error::{Code, LdapError},
    plan,
    schema::{AttributeType, Schema},
    url::LdapUrlSearch,
};

/// Maximum values of one attribute.
pub const VALUES_MAX: usize = 100_000;

/// Name and values of an attribute, as a client sends them.
pub type RawAttribute = (String, Vec<Vec<u8>>);

/// Preconditions of a change, and the entry states the client wants returned.
#[derive(Debug, Clone, Default)]
pub struct Preconditions {
    /// Assertion control (RFC 4528): the entry must match this filter.
    pub assertion: Option<Filter>,
    /// Whether the entry before the change is returned (pre-read control, RFC 4527).
    pub before: bool,
    /// Whether the entry after the change is returned (post-read control, RFC 4527).
    pub after: bool,
    /// The entry must have this revision.
    pub revision: Option<u64>,
    /// Indexed attributes whose values must be unique: no other entry may share a value of this one.
    pub unique: Vec<String>,
}

/// Entry states read before and after a change (RFC 4527).
#[derive(Debug, Default)]
pub struct ReadEntries {
    /// Entry before the change.
    pub before: Option<CachedEntry>,
    /// Entry after the change.
    pub after: Option<CachedEntry>,
}

impl Preconditions {
    /// Checks the preconditions, and returns the entry as it is if the client wants it.
    fn check(
        &self,
        inner: &Inner,
        requester: &AuthzId,
        entry: &Entry,
        schema: &Schema,
    ) -> Result<ReadEntries, LdapError> {
        if self.revision.is_some_and(|revision| revision != entry.revision) {
            return Err(LdapError::new(
                Code::AssertionFailed,
                "the entry was changed by another request; read it again and repeat the change",
            ));
        }
        if let Some(filter) = &self.assertion {
            let grant = inner.access.grant(requester, entry);
            if !Test::compile(filter, schema).is_met_by(entry, schema, &grant)? {
                return Err(LdapError::new(Code::AssertionFailed, "the entry does not match the assertion filter"));
            }
        }
        let before = self.before.then(|| CachedEntry::of(entry.clone()));
        Ok(ReadEntries { before, after: None })
    }

    /// Rejects values that another entry has already.
    fn unique(
        &self,
        inner: &Inner,
        branches: &dyn EntryReader,
        attributes: &[Attribute],
        own: Option<EntryNumber>,
        schema: &Schema,
    ) -> Result<(), LdapError> {
        for name in &self.unique {
            let kind = schema.attribute(name)?;
            if !inner.ready.load().contains(&*kind.key) {
                let what = format!("the index of {name} is being built; try again in a moment");
                return Err(LdapError::new(Code::Busy, what));
            }
            let values = attributes.iter().filter(|found| found.kind.key == kind.key).flat_map(|found| &*found.values);
            for requested in values.map(|value| normal(kind, value, schema)) {
                if inner.is_used_by_another(branches, kind, &requested, own, schema)? {
                    let what = format!("another entry has this value of {name}");
                    return Err(LdapError::new(Code::EntryAlreadyExists, what));
                }
            }
        }
        Ok(())
    }

    /// Returns the entry after the change if the client wants it.
    fn after(
        &self,
        inner: &Inner,
        tree: &dyn EntryReader,
        number: EntryNumber,
        schema: &Schema,
    ) -> Result<Option<CachedEntry>, LdapError> {
        if !self.after {
            return Ok(None);
        }
        let Some(node) = tree.node(number)? else { return Ok(None) };
        let above = inner.above(tree, &node)?;
        let entry = crate::entry::view(&node, above.as_deref(), schema, &inner.shape);
        Ok(Some(CachedEntry::of(entry)))
    }
}

impl Inner {
    /// Whether an entry other than `own` has this normalized value.
    fn is_used_by_another(
        &self,
        branches: &dyn EntryReader,
        kind: &AttributeType,
        requested: &[u8],
        own: Option<EntryNumber>,
        schema: &Schema,
    ) -> Result<bool, LdapError> {
        // If too many entries share the key for the index to list them, at least one of them is another entry.
        let Some(found) = plan::equal(branches, &kind.key, requested)? else { return Ok(true) };
        for number in found.into_iter().filter(|number| Some(*number) != own) {
            let Some(node) = branches.node(number)? else { continue };
            let attributes = crate::entry::attributes(&node, schema, &self.shape);
            let same = attributes.iter().filter(|other| other.kind.key == kind.key).flat_map(|other| &*other.values);
            if same.into_iter().any(|value| normal(kind, value, schema) == requested) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Index of login names, which are unique in the directory.
pub(crate) const LOGIN: &str = "uid";

impl Inner {
    /// Finds a login name that another entry uses already. Names that the entry had before the change are not checked
    /// again.
    pub(crate) fn find_login_conflict(
        &self,
        branches: &dyn EntryReader,
        entry: Option<EntryNumber>,
        names: LoginNames<'_>,
    ) -> Result<Option<String>, LdapError> {
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
            let requested = normal(kind, &name, &schema);
            if !before.contains(&requested) && self.is_used_by_another(branches, kind, &requested, entry, &schema)? {
                return Ok(Some(String::from_utf8_lossy(&name).into_owned()));
            }
        }
        Ok(None)
    }

    /// Rejects attributes with a login name that another entry uses already.
    fn check_login(
        &self,
        branches: &dyn EntryReader,
        entry: Option<EntryNumber>,
        (before, now): (&[Attribute], &[Attribute]),
    ) -> Result<(), LdapError> {
        let of = |attributes: &[Attribute]| {
            let login: Vec<_> = attributes.iter().filter(|found| &*found.kind.key == LOGIN).cloned().collect();
            stored_object(&login)
        };
        let (before, now) = (of(before), of(now));
        if before == now {
            return Ok(());
        }
        match self.find_login_conflict(branches, entry, LoginNames::Attributes { before: Some(&before), now: &now })? {
            Some(name) => {
                let what = format!("another entry has the login name `{name}` (uid); give another one");
                Err(LdapError::new(Code::ConstraintViolation, what))
            }
            None => Ok(()),
        }
    }
}

impl Inner {
    /// Rejects a subscriber's own change that gives it the device address of another subscriber. Other writers are
    /// trusted.
    fn check_addresses(
        &self,
        branches: &dyn EntryReader,
        requester: &AuthzId,
        own: EntryNumber,
        (before, now): (&[Attribute], &[Attribute]),
        schema: &Schema,
    ) -> Result<(), LdapError> {
        if requester.manages || requester.number != Some(own) {
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
                let is_selected = words.next() == Some(channel.as_str().as_bytes());
                words.nth(1).filter(|_| is_selected).map(Box::from)
            };
            let named = devices.iter().filter(|device| !known.contains(device)).filter_map(|device| address(device));
            let known = of(before, key);
            for given in of(now, key).into_iter().chain(named).filter(|given| !known.contains(given)) {
                // The stored form of the address.
                let text = std::str::from_utf8(&given).ok();
                let stored = text.and_then(|text| self.shape.check_address.normalize(channel, text).ok());
                // All forms of the same mailbox: without display name, quotes and brackets; the domain in ASCII and in
                // Unicode.
                let bare = text.map(mailbox::comparable);
                let unicode = bare.as_deref().and_then(mailbox::unicode_form);
                let forms = [stored.as_deref(), bare.as_deref(), unicode.as_deref()].into_iter().flatten();
                let requested: BTreeSet<_> = match text {
                    Some(_) => forms.map(|form| normal(kind, form.as_bytes(), schema)).collect(),
                    None => [normal(kind, &given, schema)].into(),
                };
                for requested in &requested {
                    if self.is_used_by_another(branches, kind, requested, Some(own), schema)? {
                        let what = format!(
                            "{}: another subscriber has this address; only an operator may assign it",
                            kind.name()
                        );
                        return Err(LdapError::new(Code::ConstraintViolation, what));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Looks up an attribute by name, and rejects one that clients must not change.
fn changeable(name: &str, schema: &Schema) -> Result<Arc<AttributeType>, LdapError> {
    let kind = schema.attribute(name)?;
    if kind.changeable {
        return Ok(kind.clone());
    }
    Err(LdapError::new(Code::ConstraintViolation, format!("{}: no user modification allowed", kind.name())))
}

/// Validates values against the attribute type and rejects duplicates.
fn checked(kind: &AttributeType, values: &[Vec<u8>], schema: &Schema) -> Result<Vec<Box<[u8]>>, LdapError> {
    let valid = valid(kind, values, schema)?;
    if valid.len() < 2 {
        return Ok(valid);
    }
    let mut seen = std::collections::HashSet::new();
    match values.iter().position(|value| !seen.insert(normal(kind, value, schema))) {
        Some(at) => Err(LdapError::new(
            Code::AttributeOrValueExists,
            format!("{}: value #{at} provided more than once", kind.name()),
        )),
        None => Ok(valid),
    }
}

/// Validates values against the attribute type.
fn valid(kind: &AttributeType, values: &[Vec<u8>], schema: &Schema) -> Result<Vec<Box<[u8]>>, LdapError> {
    if values.len() > VALUES_MAX {
        return Err(LdapError::new(
            Code::AdminLimitExceeded,
            format!("{}: an attribute has at most {VALUES_MAX} values", kind.name()),
        ));
    }
    let wrong = |what: String| LdapError::new(Code::InvalidAttributeSyntax, format!("{}: value {what}", kind.name()));
    for (at, value) in values.iter().enumerate() {
        if !kind.syntax.allows(value, schema) {
            return Err(wrong(format!("#{at} invalid per syntax")));
        }
        if &*kind.key == FINDING {
            LdapUrlSearch::read(&String::from_utf8_lossy(value)).map_err(|why| wrong(format!("#{at} {why}")))?;
        }
    }
    Ok(values.iter().map(|value| value.as_slice().into()).collect())
}

/// Normal form of a value, under the attribute's equality rule.
fn normal(kind: &AttributeType, value: &[u8], schema: &Schema) -> Vec<u8> {
    kind.equality.and_then(|rule| rule.normal(value, schema)).unwrap_or_else(|| value.to_vec())
}

/// Names of the object classes among the attributes.
fn classes_of(attributes: &[Attribute]) -> Vec<&str> {
    let classes = attributes.iter().filter(|attribute| &*attribute.kind.key == "objectclass");
    classes.flat_map(|found| &*found.values).filter_map(|value| std::str::from_utf8(value).ok()).collect()
}

/// Rejects several values of a single-valued attribute. With `touched`, only these attributes are checked, since the
/// schema may have changed after others were stored.
fn single_valued(attributes: &[Attribute], touched: Option<&[Arc<AttributeType>]>) -> Result<(), LdapError> {
    let is_asked = |kind: &AttributeType| touched.is_none_or(|touched| touched.iter().any(|one| one.key == kind.key));
    let is_wrong = |found: &&Attribute| found.kind.single && found.values.len() > 1 && is_asked(&found.kind);
    match attributes.iter().find(is_wrong) {
        Some(attribute) => {
            let what = format!("{}: multiple values provided", attribute.kind.name());
            Err(LdapError::new(Code::ConstraintViolation, what))
        }
        None => Ok(()),
    }
}

/// Whether the attributes contain the values of the relative name.
fn has_rdn(attributes: &[Attribute], rdn: &Rdn, schema: &Schema) -> Result<bool, LdapError> {
    for (name, value) in &rdn.assertions {
        let kind = schema.attribute(name)?;
        let requested = normal(kind, value, schema);
        let found =
            attributes.iter().filter(|attribute| attribute.kind.key == kind.key).flat_map(|found| &*found.values);
        if !found.into_iter().any(|value| normal(kind, value, schema) == requested) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Adds the values of the relative name to the attributes if they are missing.
fn add_rdn(attributes: &mut Vec<Attribute>, rdn: &Rdn, schema: &Schema) -> Result<(), LdapError> {
    for (name, value) in &rdn.assertions {
        let kind = schema.attribute(name)?.clone();
        can_name(&kind)?;
        if !kind.syntax.allows(value, schema) {
            return Err(LdapError::new(
                Code::InvalidAttributeSyntax,
                format!("{}: the name's value is invalid per syntax", kind.name()),
            ));
        }
        let requested = normal(&kind, value, schema);
        match attributes.iter_mut().find(|attribute| attribute.kind.key == kind.key) {
            Some(found) if found.values.iter().any(|known| normal(&kind, known, schema) == requested) => {}
            Some(found) => Arc::make_mut(&mut found.values).push(value.as_slice().into()),
            None => attributes.push(Attribute::of(&kind, value)),
        }
    }
    Ok(())
}

/// Rejects attributes that cannot name an entry (X.501, 9.3; RFC 4512, 2.3.1): operational ones, since only the server
/// writes them; passwords, since names are readable; those without an equality rule.
fn can_name(kind: &AttributeType) -> Result<(), LdapError> {
    let why = match () {
        () if !kind.changeable || kind.operational => "it is operational",
        () if &*kind.key == PASSWORD || kind.kinds.iter().any(|of| &**of == PASSWORD) => "it is a password",
        () if kind.equality.is_none() => "it has no equality matching rule",
        () => return Ok(()),
    };
    let name = kind.name();
    let what = format!("`{name}` cannot name an entry: {why}; name it by another attribute, such as `cn` or `uid`");
    Err(LdapError::new(Code::NamingViolation, what))
}

/// Rejects a change of attributes that the requester may not write; an empty list means the entry itself. The requester
/// can see the entry.
fn check_access(inner: &Inner, requester: &AuthzId, entry: &Entry, kinds: &[&AttributeType]) -> Result<(), LdapError> {
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
struct NewPlace<'a> {
    key: &'a str,
    /// New parent entry, if the parent changes.
    above: Option<&'a Entry>,
    /// Number of the entry, if it exists already.
    number: Option<EntryNumber>,
    kinds: &'a [&'a AttributeType],
}

impl Inner {
    /// Rejects a new name that the requester may not give. The requester needs `write` on the children of the parent
    /// and on all attributes of the entry under its new name, and an access rule must not grant rights to that name.
    fn check_access_to_name(
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

/// State of an entry after the change, before it is stored.
struct EntryDraft {
    parent: Option<EntryNumber>,
    rdn: Box<str>,
    rdn_key: Box<str>,
    attributes: Vec<Attribute>,
}

impl EntryDraft {
    fn classes(&self) -> Box<str> {
        classes_of(&self.attributes).join(" ").into()
    }
}

/// Stores an entry in place of its previous state. `placed`: its name, parent or classes changed.
fn replace(
    tree: &mut dyn EntryWriter,
    inner: &Inner,
    (old_node, before): (&EntryNode, &[Attribute]),
    draft: EntryDraft,
    placed: bool,
    now: Timestamp,
) -> Result<(), LdapError> {
    match old_node {
        EntryNode::Object(stored) => {
            let attributes = attribute_mapping::object_attributes(&stored.object.attributes, before, &draft.attributes);
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
            let new =
                attribute_mapping::subscriber_of(subscriber.id.clone(), old, &draft.attributes, stands, &inner.shape)?;
            Ok(tree.change_subscriber(old_node, new, new_placement, now)?)
        }
    }
}

/// Chooses the id of a new subscriber: its `uid`, else the value of its name if that is free, else a random one.
fn free_id(
    tree: &dyn EntryWriter,
    attributes: &[Attribute],
    rdn: &Rdn,
    rdn_key: &str,
    above: &str,
) -> Result<SubscriberId, LdapError> {
    let is_free = |id: &SubscriberId| Ok::<_, LdapError>(tree.reader().subscriber(id)?.is_none());
    for id in requested_ids(attributes, rdn) {
        if is_free(&id)? {
            return Ok(id);
        }
    }
    // A renamed subscriber keeps its id, so even the id made of the full name may be in use.
    let own = crate::password::generate()?;
    let short = rdn_key.chars().take(100).collect::<String>();
    let last = [rdn_key.to_owned(), format!("{rdn_key},{above}"), format!("{short} {own}")];
    for id in last.iter().filter_map(|candidate| id_of(candidate)) {
        if is_free(&id)? {
            return Ok(id);
        }
    }
    Err(LdapError::new(Code::EntryAlreadyExists, "every id that this entry could get is in use"))
}

/// Candidate ids of a new subscriber, most preferred first.
fn requested_ids(attributes: &[Attribute], rdn: &Rdn) -> impl Iterator<Item = SubscriberId> {
    let uid = attributes.iter().find(|attribute| &*attribute.kind.key == "uid").map(|found| found.values[0].to_vec());
    let value = rdn.assertions.first().map(|(_, value)| value.clone());
    let texts = [uid, value].into_iter().flatten().filter_map(|value| String::from_utf8(value).ok());
    texts.filter_map(|text| id_of(&text))
}

/// Number of characters that an id keeps of a name that is too long.
const ID_HEAD: usize = 200;

/// Makes a subscriber id of a name. An id has neither `/` nor control characters, is not `.` or `..`, and has at most
/// 255 characters. These characters are percent-encoded, and a longer name is cut and ends with its hash. `None`: the
/// name is empty.
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

/// Converts the values of undeclared attributes to their stored form.
fn stored_object(attributes: &[Attribute]) -> BTreeMap<String, Value> {
    attribute_mapping::object_attributes(&Default::default(), &[], attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b28_an_id_can_be_made_of_any_entry_name() {
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
