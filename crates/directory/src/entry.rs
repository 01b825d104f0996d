//! Directory entries, in one form for subscribers and all other objects.

use std::sync::Arc;

use tocsin_model::{
    id::{Name, SubscriberId},
    ldap::Truth,
    problem::Problem,
    subscriber::{self, DeviceState, Subscriber},
    time::Timestamp,
    value::Value,
};
pub use tocsin_store::entries::EntryNumber;
use tocsin_store::entries::{EntryNode, Placement};

use crate::{
    dn::{Dn, escape},
    schema::{AttributeType, Schema},
    syntax::{Syntax, change_number, generalized_time},
};

/// An attribute and its values.
#[derive(Debug, Clone, PartialEq)]
pub struct Attribute {
    /// The type.
    pub kind: Arc<AttributeType>,
    /// The values, at least one. Shared between states of an entry, since most changes leave most attributes as they
    /// are.
    pub values: Arc<Vec<Box<[u8]>>>,
}

impl Attribute {
    /// An attribute with one value.
    pub fn of(kind: &Arc<AttributeType>, value: impl AsRef<[u8]>) -> Attribute {
        Attribute { kind: kind.clone(), values: Arc::new(vec![value.as_ref().into()]) }
    }
}

/// An entry.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Its number.
    pub number: EntryNumber,
    /// The entry above.
    pub parent: Option<EntryNumber>,
    /// Its distinguished name.
    pub dn: String,
    /// The same in normal form.
    pub key: String,
    /// The attributes, object classes first.
    pub attributes: Vec<Attribute>,
    /// Number of leading attributes that are user attributes (RFC 4511, `*`); the rest is operational.
    pub shown: usize,
    /// Time of creation.
    pub created_at: Timestamp,
    /// Time of the last change.
    pub updated_at: Timestamp,
    /// Revision, incremented by each change.
    pub revision: u64,
}

/// Position of an entry in the tree, without its attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryPosition {
    /// The number.
    pub number: EntryNumber,
    /// The parent entry.
    pub parent: Option<EntryNumber>,
    /// The distinguished name.
    pub dn: String,
    /// The same in normal form.
    pub key: String,
}

/// Mapping of subscriber data to directory attributes.
#[derive(Debug, Clone, Default)]
pub struct Shape {
    /// Attributes that hold device addresses: the key of the attribute and the channel.
    pub devices: Vec<(Arc<str>, Name)>,
    /// Validation and normalization of device addresses.
    pub check_address: AddressCheck,
}

/// Validates the address of a device for its channel, and returns the stored form.
#[derive(Clone)]
pub struct AddressCheck(Arc<AddressFunction>);

type AddressFunction = dyn Fn(&Name, &str) -> Result<String, Problem> + Send + Sync;

impl AddressCheck {
    /// Wraps a function.
    pub fn new(check: impl Fn(&Name, &str) -> Result<String, Problem> + Send + Sync + 'static) -> AddressCheck {
        AddressCheck(Arc::new(check))
    }

    /// The stored form of the address.
    ///
    /// # Errors
    /// The address is invalid for this channel.
    pub fn normalize(&self, channel: &Name, address: &str) -> Result<String, Problem> {
        (self.0)(channel, address)
    }
}

impl Default for AddressCheck {
    fn default() -> Self {
        AddressCheck::new(|_, address| subscriber::check_address(address).map(|()| address.trim().to_owned()))
    }
}

impl std::fmt::Debug for AddressCheck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AddressCheck")
    }
}

/// Object classes of a subscriber that was given none.
pub const DEFAULT_CLASSES: &str = "top account tocsinSubscriber";
/// The attribute of a subscriber's locale.
pub const LOCALE: &str = "preferredlanguage";

impl Entry {
    /// Reserved number for entries outside the tree, such as the root DSE.
    pub fn unassigned_number() -> EntryNumber {
        EntryNumber(0)
    }

    /// The values of a type and its subtypes.
    pub fn values<'a>(&'a self, kind: &'a AttributeType) -> impl Iterator<Item = &'a [u8]> {
        let meant = self.attributes.iter().filter(|attribute| attribute.kind.is(kind));
        meant.flat_map(|attribute| attribute.values.iter().map(|value| &**value))
    }

    /// The values of exactly this type.
    pub fn attribute(&self, key: &str) -> Option<&Attribute> {
        self.attributes.iter().find(|attribute| &*attribute.kind.key == key)
    }

    /// The names of its classes.
    pub fn classes(&self) -> Vec<&str> {
        let classes = self.attribute("objectclass");
        classes
            .into_iter()
            .flat_map(|found| &*found.values)
            .filter_map(|value| std::str::from_utf8(value).ok())
            .collect()
    }

    /// The value of a computed attribute that every entry has; `None` for any other attribute.
    pub fn own(&self, key: &str, schema: &Schema) -> Option<String> {
        Some(match key {
            "entrydn" => self.dn.clone(),
            "entryuuid" => self.uuid(),
            "entrycsn" => change_number(self.updated_at.0, self.revision),
            "createtimestamp" => generalized_time(self.created_at.0),
            "modifytimestamp" => generalized_time(self.updated_at.0),
            "subschemasubentry" => SUBSCHEMA.to_owned(),
            "structuralobjectclass" => schema.structural(&self.classes()).ok()?.names[0].clone(),
            _ => return None,
        })
    }

    /// The `entryUUID`, which survives a rename: version 8 of RFC 9562, derived from the entry number.
    pub fn uuid(&self) -> String {
        Entry::uuid_of(self.number)
    }

    /// The `entryUUID` of an entry number.
    pub fn uuid_of(number: EntryNumber) -> String {
        let kind = if number.0 < 0 { 0x50 } else { 0x0e };
        let number = number.0.unsigned_abs();
        let (high, low) = (number >> 48, number & 0xffff_ffff_ffff);
        format!("70c51e00-00{kind:02x}-8000-{:04x}-{low:012x}", 0x8000 | high)
    }

    /// The entry number of an `entryUUID`.
    pub fn number_of(uuid: &str) -> Option<EntryNumber> {
        let hex: String = uuid.chars().filter(|c| *c != '-').collect();
        let rest = hex.to_ascii_lowercase().strip_prefix("70c51e0000").map(str::to_owned)?;
        let (kind, rest) = rest.split_at_checked(2)?;
        let rest = rest.strip_prefix("8000")?;
        let number = u64::from_str_radix(rest, 16).ok()? & 0x7fff_ffff_ffff_ffff;
        let number = i64::try_from(number).ok()?;
        match kind {
            "50" => Some(EntryNumber(-number)),
            "0e" => Some(EntryNumber(number)),
            _ => None,
        }
    }

    /// Approximate size in memory, in bytes.
    pub fn bytes(&self) -> usize {
        let values =
            self.attributes.iter().map(|found| 48 + found.values.iter().map(|value| 16 + value.len()).sum::<usize>());
        256 + self.dn.len() + self.key.len() + values.sum::<usize>()
    }
}

/// Keys of the computed attributes of every entry.
pub const OWN: &[&str] = &[
    "structuralobjectclass",
    "entryuuid",
    "createtimestamp",
    "entrycsn",
    "modifytimestamp",
    "entrydn",
    "subschemasubentry",
];

/// Keys of the attributes that the server computes: a value stored by the API under such a name is not returned.
const COMPUTED: &[&str] =
    &["memberof", "entryttl", "pwdreset", "pwdchangedtime", "pwdaccountlockedtime", "pwdgraceusetime"];

/// Name of the subschema entry.
pub const SUBSCHEMA: &str = "cn=subschema";

/// The relative name of a subscriber without a placement, as text and in normal form.
pub fn unplaced_rdn(id: &SubscriberId, schema: &Schema) -> (String, String) {
    let mut text = "uid=".to_owned();
    escape(id.as_str(), &mut text);
    let rdn = crate::dn::Rdn { text: String::new(), assertions: vec![("uid".to_owned(), id.as_str().into())] };
    let key = schema.normal_rdn(&rdn);
    (text, key)
}

/// Position of a stored entry. `above`: the position of its parent; `None` for the suffix entry.
pub fn place(node: &EntryNode, above: Option<&EntryPosition>, schema: &Schema) -> EntryPosition {
    let (rdn, rdn_key) = match node {
        EntryNode::Object(stored) => (stored.object.rdn.to_string(), stored.object.rdn_key.to_string()),
        EntryNode::Subscriber(_, Some(placement)) => (placement.rdn.to_string(), placement.rdn_key.to_string()),
        EntryNode::Subscriber(subscriber, None) => unplaced_rdn(&subscriber.id, schema),
    };
    let below = |name: String, above: Option<&str>| match above {
        Some(above) => format!("{name},{above}"),
        None => name,
    };
    EntryPosition {
        number: node.number(),
        parent: above.map(|above| above.number),
        dn: below(rdn, above.map(|above| above.dn.as_str())),
        key: below(rdn_key, above.map(|above| above.key.as_str())),
    }
}

/// Attributes of a stored entry: object classes first, operational attributes last.
pub fn attributes(node: &EntryNode, schema: &Schema, shape: &Shape) -> Vec<Attribute> {
    let mut attributes = Vec::new();
    match node {
        EntryNode::Object(stored) => show_all(stored.object.attributes.iter(), schema, &mut attributes),
        EntryNode::Subscriber(subscriber, placement) => {
            show_subscriber(subscriber, placement.as_ref(), schema, shape, &mut attributes);
        }
    }
    attributes.sort_by_key(|attribute| match &*attribute.kind.key {
        "objectclass" => 0,
        _ => 1 + u8::from(attribute.kind.operational),
    });
    attributes
}

/// Builds the entry of a stored row. `above`: the position of its parent; `None` for the suffix entry.
pub fn view(node: &EntryNode, above: Option<&EntryPosition>, schema: &Schema, shape: &Shape) -> Entry {
    let attributes = attributes(node, schema, shape);
    let (created_at, updated_at, revision) = match node {
        EntryNode::Object(stored) => (stored.created_at, stored.updated_at, stored.revision),
        EntryNode::Subscriber(found, _) => (found.created_at, found.updated_at, found.revision),
    };
    let EntryPosition { number, parent, dn, key } = place(node, above, schema);
    let shown = attributes.iter().take_while(|attribute| !attribute.kind.operational).count();
    Entry { number, parent, dn, key, attributes, shown, created_at, updated_at, revision }
}

fn show_all<'a>(all: impl Iterator<Item = (&'a String, &'a Value)>, schema: &Schema, out: &mut Vec<Attribute>) {
    for (name, value) in all {
        let Some(kind) = schema.known_or_named(name) else { continue };
        let values = values(value, kind.syntax);
        if !values.is_empty() {
            out.push(Attribute { kind, values: values.into() });
        }
    }
}

/// Converts a stored value to attribute values.
pub(crate) fn values(value: &Value, syntax: Syntax) -> Vec<Box<[u8]>> {
    let mut values = Vec::with_capacity(if let Value::List(items) = value { items.len() } else { 1 });
    show(value, syntax, &mut values);
    values
}

/// Appends a stored value as bytes. Maps are skipped.
fn show(value: &Value, syntax: Syntax, out: &mut Vec<Box<[u8]>>) {
    let text = match value {
        Value::Null | Value::Map(_) => return,
        Value::List(items) => return items.iter().for_each(|item| show(item, syntax, out)),
        Value::Text(text) if syntax == Syntax::Octets => {
            use base64::Engine;
            let bytes = base64::engine::general_purpose::STANDARD.decode(text.as_bytes());
            return out.push(bytes.unwrap_or_else(|_| text.as_bytes().to_vec()).into());
        }
        Value::Text(text) => return out.push(text.as_bytes().into()),
        Value::Boolean(value) => (if *value { "TRUE" } else { "FALSE" }).to_owned(),
        Value::Integer(value) => value.to_string(),
        Value::Number(value) => value.to_string(),
        Value::Timestamp(time) => generalized_time(time.0),
    };
    out.push(text.into_bytes().into());
}

fn show_subscriber(
    subscriber: &Subscriber,
    placement: Option<&Placement>,
    schema: &Schema,
    shape: &Shape,
    out: &mut Vec<Attribute>,
) {
    let mut add = |key: &str, values: Vec<Box<[u8]>>| {
        if let (Ok(kind), false) = (schema.attribute(key), values.is_empty()) {
            out.push(Attribute { kind: kind.clone(), values: values.into() });
        }
    };
    let one = |text: &str| vec![text.as_bytes().into()];
    let classes = placement.map_or(DEFAULT_CLASSES, |placement| &placement.classes);
    add("objectclass", classes.split(' ').map(|class| class.as_bytes().into()).collect());
    let profile = &subscriber.profile;
    if placement.is_none() {
        add("uid", one(subscriber.id.as_str()));
    }
    for (key, channel) in &shape.devices {
        let devices = subscriber.devices.values().filter(|device| device.channel == *channel);
        add(key, devices.map(|device| device.address.as_bytes().into()).collect());
    }
    if let Some(locale) = &profile.locale {
        add(LOCALE, one(locale));
    }
    add("tocsinid", one(subscriber.id.as_str()));
    if !profile.enabled {
        add("tocsinenabled", one("FALSE"));
    }
    if let Some(zone) = &profile.time_zone {
        add("tocsintimezone", one(zone));
    }
    let device = |(name, device): (&Name, &tocsin_model::subscriber::Device)| {
        let text = format!("{name} {} {} {}", device.channel, state_word(device.state), device.address);
        text.into_bytes().into()
    };
    add("tocsindevice", subscriber.devices.iter().map(device).collect());
    let is_own = |name: &str| is_own_attribute(name, placement.is_some(), shape);
    let first = out.len();
    show_all(profile.attributes.iter().filter(|(name, _)| is_own(name)), schema, out);
    if let Some(placement) = placement {
        show_name(placement, &is_own, schema, out, first);
    }
}

/// Adds the values of the relative name (RFC 4512, 2.3.1), also if a change by the API removed them: a login name stays
/// reserved. Missing attributes are inserted at the given index.
fn show_name(
    placement: &Placement,
    is_own: &dyn Fn(&str) -> bool,
    schema: &Schema,
    out: &mut Vec<Attribute>,
    place: usize,
) {
    // A name that cannot be parsed is returned as it is, and adds no attributes.
    let Ok(Dn(rdns)) = Dn::parse(&placement.rdn) else { return };
    for (name, value) in rdns.iter().flat_map(|rdn| &rdn.assertions) {
        let Ok(kind) = schema.attribute(name) else { continue };
        if kind.operational || !kind.changeable || !is_own(&kind.key) {
            continue;
        }
        let normal = |value: &[u8]| kind.equality.and_then(|rule| rule.normal(value, schema));
        match out.iter_mut().find(|found| found.kind.key == kind.key) {
            Some(found) => {
                let asserted = normal(value);
                let is_there = |known: &[u8]| *known == **value || (asserted.is_some() && normal(known) == asserted);
                if !found.values.iter().any(|known| is_there(known)) {
                    Arc::make_mut(&mut found.values).push(value.as_slice().into());
                }
            }
            None => out.insert(place, Attribute::of(kind, value)),
        }
    }
}

/// Whether an attribute of the profile is returned under its own name; some names are reserved for mapped fields.
pub(crate) fn is_own_attribute(name: &str, is_placed: bool, shape: &Shape) -> bool {
    let is = |taken: &str| name.eq_ignore_ascii_case(taken);
    let is_taken = ["objectclass", LOCALE, "userpassword"].into_iter().any(is)
        || name.get(..6).is_some_and(|start| start.eq_ignore_ascii_case("tocsin"))
        || !is_placed && is("uid")
        || shape.devices.iter().any(|(key, _)| is(key))
        || OWN.iter().chain(COMPUTED).any(|own| is(own));
    !is_taken
}

pub(crate) fn state_word(state: DeviceState) -> &'static str {
    match state {
        DeviceState::Active => "active",
        DeviceState::Disabled => "disabled",
        DeviceState::Bounced => "bounced",
        DeviceState::Failed => "failed",
        DeviceState::Pending => "pending",
    }
}

/// The result of comparing one value by its normal form; `None`: undefined.
pub(crate) fn any_value<'a>(
    values: impl Iterator<Item = &'a [u8]>,
    mut test: impl FnMut(&[u8]) -> Option<bool>,
) -> Truth {
    let mut found = Truth::False;
    for value in values {
        found = found.max(test(value).map_or(Truth::Undefined, Truth::of));
        if found == Truth::True {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_uuid_converts_to_its_number_and_back() {
        for number in [1, -1, 77, -4_000_000_000, i64::MAX, -i64::MAX] {
            let place = EntryPosition { number: EntryNumber(1), parent: None, dn: "o=x".into(), key: "o=x".into() };
            let object = tocsin_store::entries::StoredObject {
                number: EntryNumber(number),
                object: tocsin_store::entries::Object {
                    parent: Some(EntryNumber(1)),
                    rdn: "ou=a".into(),
                    rdn_key: "ou=a".into(),
                    attributes: Default::default(),
                },
                created_at: Timestamp(0),
                updated_at: Timestamp(0),
                revision: 1,
            };
            let entry = view(&EntryNode::Object(object), Some(&place), &Schema::standard(), &Shape::default());
            assert_eq!(Entry::number_of(&entry.uuid()), Some(EntryNumber(number)), "{}", entry.uuid());
            assert_eq!(entry.dn, "ou=a,o=x");
        }
        assert_eq!(Entry::number_of("f81d4fae-7dec-11d0-a765-00a0c91e6bf6"), None);
    }
}
