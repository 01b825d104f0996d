//! Pure part of a modify: from an entry and its modifications to the modified entry, checked against the schema.
//!
//! Both ways of a modify use it, the one prepared by the caller and the one in the writer thread, so they cannot
//! differ; only what they read before and how they commit does.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use serde_json::value::{RawValue, to_raw_value};
use tocsin_model::{
    subscriber::{ATTRIBUTE_BYTES_MAX, ATTRIBUTE_NAME_MAX, ATTRIBUTES_MAX},
    time::Timestamp,
    value::Value,
};
use tocsin_store::entries::PreparedModify;

use super::values::{add_rdn, changeable, check_classes, checked, has_rdn, normal, valid};
use crate::{
    attribute_mapping::stored_change,
    dn::Rdn,
    entry::{Attribute, Entry, Shape, is_own_attribute, values},
    entry_cache::{CachedEntry, PendingEntry, Source},
    ldap_error::{Code, LdapError},
    plan,
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

/// A modify of one entry, with all that its result depends on.
pub(super) struct Modify<'a> {
    pub(super) entry: &'a Entry,
    pub(super) modifications: &'a [Modification],
    /// Types of all attributes that the request changes, the password included.
    pub(super) touched: &'a [Arc<AttributeType>],
    pub(super) rdn: RdnChange<'a>,
    /// Whether the entry has a password after the change.
    pub(super) has_password: bool,
    pub(super) schema: &'a Arc<Schema>,
}

/// The relative name of an entry in a modify.
pub(super) enum RdnChange<'a> {
    /// The request touches none of its attributes.
    Untouched,
    /// Its values must stay.
    Stays(&'a Rdn),
    /// It becomes this one, whose values are added.
    Becomes(&'a Rdn),
}

/// The attributes of an entry after a modify.
pub(super) struct ModifiedEntry<'a> {
    modify: Modify<'a>,
    pub(super) attributes: Vec<Attribute>,
}

/// The stored form of a modified entry.
pub(super) enum StoredForm {
    /// Nothing stored changes.
    Unchanged,
    /// The new state of a subscriber, for a commit that compares its revision.
    Changed(Box<PreparedModify>, Option<Box<CachedEntry>>),
}

/// Types of the attributes that modifications concern.
///
/// # Errors
/// There is no such attribute, or clients must not change it.
pub(super) fn touched(modifications: &[Modification], schema: &Schema) -> Result<Vec<Arc<AttributeType>>, LdapError> {
    modifications.iter().map(|modification| changeable(&modification.attribute, schema)).collect()
}

/// Applies the modifications of a request in order, and checks the result against the schema.
///
/// # Errors
/// A modification does not apply to the entry; the result violates the schema.
pub(super) fn prepare(modify: Modify<'_>) -> Result<ModifiedEntry<'_>, LdapError> {
    let Modify { entry, touched, has_password, schema, .. } = modify;
    let mut attributes = entry.attributes.clone();
    for modification in modify.modifications {
        apply(&mut attributes, modification, schema)?;
    }
    match modify.rdn {
        RdnChange::Untouched => {}
        RdnChange::Stays(rdn) => {
            if !has_rdn(&attributes, rdn, schema)? && has_rdn(&entry.attributes, rdn, schema)? {
                let what = "the values of the entry's name cannot be removed; rename it";
                return Err(LdapError::new(Code::NotAllowedOnRdn, what));
            }
        }
        RdnChange::Becomes(rdn) => add_rdn(&mut attributes, rdn, schema)?,
    }
    check_classes(&entry.classes(), &attributes, touched, has_password, schema)?;
    Ok(ModifiedEntry { modify, attributes })
}

impl ModifiedEntry<'_> {
    /// The stored form of a subscriber whose own attributes changed, with the difference of its index keys. `None`:
    /// it depends on more than the stored attributes. With `has_image`, the result includes the new entry.
    pub(super) fn stored(self, source: &Source, shape: &Shape, now: Timestamp, has_image: bool) -> Option<StoredForm> {
        let ModifiedEntry { modify: Modify { entry, touched, schema, .. }, mut attributes } = self;
        let mut members = serde_json::from_str::<Members<'_>>(&source.attributes).ok()?;
        let changes = changes(&members, &entry.attributes, &mut attributes, touched)?;
        if changes.is_empty() {
            return Some(StoredForm::Unchanged);
        }
        let json = joined(&mut members, &changes)?;
        let sorted =
            sort_as_stored(&mut attributes, &entry.attributes, touched, (&members, source.is_placed), schema, shape);
        let number = entry.number.subscriber().filter(|_| sorted)?;
        let source = Source { attributes: json, is_placed: source.is_placed, enabled: source.enabled };
        let (gone, made) = plan::index_diff(&entry.attributes, &attributes, touched, schema);
        let new = Entry {
            shown: attributes.iter().take_while(|attribute| !attribute.kind.operational).count(),
            attributes,
            dn: entry.dn.clone(),
            key: entry.key.clone(),
            updated_at: now,
            revision: entry.revision + 1,
            ..*entry
        };
        let image = has_image.then(|| Box::new(CachedEntry::of(new.clone())));
        let prepared = PreparedModify {
            number,
            revision: entry.revision,
            enabled: source.enabled,
            attributes: source.attributes.clone(),
            before: changes.into_iter().map(|change| (change.name, change.before)).collect(),
            gone,
            made,
            now,
            built: PendingEntry::of(CachedEntry { source: Some(source), ..CachedEntry::of(new) }, schema.clone()),
        };
        Some(StoredForm::Changed(Box::new(prepared), image))
    }
}

/// Applies one modification.
fn apply(attributes: &mut Vec<Attribute>, modification: &Modification, schema: &Schema) -> Result<(), LdapError> {
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

/// Stored attributes of a subscriber, by name.
type Members<'a> = BTreeMap<MemberName<'a>, &'a RawValue>;

#[derive(PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
struct MemberName<'a>(#[serde(borrow)] Cow<'a, str>);

/// Sorts attributes of some types into the order of a freshly read entry, which is that of their stored names.
/// False if two stored names map to one type, so the order is ambiguous.
fn sort_as_stored(
    attributes: &mut Vec<Attribute>,
    before: &[Attribute],
    kinds: &[Arc<AttributeType>],
    (members, is_placed): (&Members<'_>, bool),
    schema: &Schema,
    shape: &Shape,
) -> bool {
    let place = |all: &[Attribute], key: &str| all.iter().position(|found| &*found.kind.key == key);
    if kinds.iter().all(|kind| place(before, &kind.key) == place(attributes, &kind.key)) {
        return true;
    }
    let keys: Vec<(Arc<str>, bool)> = members
        .keys()
        .map(|MemberName(name)| {
            let key = schema.attribute(name).map_or_else(|_| name.to_ascii_lowercase().into(), |kind| kind.key.clone());
            (key, is_own_attribute(name, is_placed, shape))
        })
        .collect();
    let mut seen = HashSet::new();
    if keys.iter().any(|(key, is_own)| *is_own && !seen.insert(key)) {
        return false;
    }
    let mut moved = Vec::new();
    for kind in kinds {
        moved.extend(place(attributes, &kind.key).map(|at| attributes.remove(at)));
    }
    for attribute in moved {
        let own = keys.iter().position(|(key, _)| *key == attribute.kind.key).unwrap_or(keys.len());
        let behind = keys.iter().skip(own + 1).filter(|(_, is_own)| *is_own);
        let next = behind.filter_map(|(key, _)| place(attributes, key)).find(|at| !attributes[*at].kind.operational);
        let end = || attributes.iter().take_while(|found| !found.kind.operational).count();
        let at = next.unwrap_or_else(end);
        attributes.insert(at, attribute);
    }
    true
}

/// Change of a stored attribute, with its new value in JSON.
struct JsonChange {
    name: String,
    before: Option<Value>,
    after: Option<Box<RawValue>>,
}

/// The changes of stored attributes; `None`: ambiguous. An existing name keeps its spelling and a list stays a list.
/// `after` receives the values as they are returned once stored.
fn changes(
    members: &Members<'_>,
    before: &[Attribute],
    after: &mut [Attribute],
    kinds: &[Arc<AttributeType>],
) -> Option<Vec<JsonChange>> {
    let mut changes = Vec::new();
    let mut seen = HashSet::new();
    for kind in kinds.iter().filter(|kind| seen.insert(&kind.key)) {
        let was = before.iter().find(|found| found.kind.key == kind.key);
        let is = after.iter_mut().find(|found| found.kind.key == kind.key);
        if was == is.as_deref() {
            continue;
        }
        let mut spelled =
            members.iter().filter(|(name, _)| kind.names.iter().any(|known| known.eq_ignore_ascii_case(&name.0)));
        let (known, another) = (spelled.next(), spelled.next());
        if another.is_some() {
            return None;
        }
        let known = match known {
            Some((name, raw)) => Some((&*name.0, serde_json::from_str::<Value>(raw.get()).ok()?)),
            None => None,
        };
        let change = stored_change(kind, is.as_deref(), known);
        if let (Some(attribute), Some(value)) = (is, &change.after) {
            attribute.values = values(value, kind.syntax).into();
        }
        if change.before != change.after {
            let json = change.after.as_ref().map(to_raw_value).transpose().ok()?;
            changes.push(JsonChange { name: change.name, before: change.before, after: json });
        }
    }
    Some(changes)
}

/// Applies changes and returns the JSON; `None`: the attributes are too large, or too many.
fn joined<'a>(members: &mut Members<'a>, changes: &'a [JsonChange]) -> Option<Arc<str>> {
    for JsonChange { name, after, .. } in changes {
        match after {
            Some(value) => members.insert(MemberName(name.into()), value),
            None => members.remove(&MemberName(name.into())),
        };
    }
    let json = serde_json::to_string(members).ok()?;
    let fits = changes.iter().all(|change| change.name.chars().count() <= ATTRIBUTE_NAME_MAX)
        && members.len() <= ATTRIBUTES_MAX
        && json.len() <= ATTRIBUTE_BYTES_MAX;
    fits.then(|| json.into())
}
