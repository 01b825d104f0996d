//! Optimistic modify. The caller computes the change from the cached entry; the store's writer commits it only if the
//! entry's revision is unchanged (compare-and-set). Covers changes to the attributes of a single subscriber; `modify`
//! does the rest.

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

use super::{
    Preconditions, ReadEntries, changeable, check_access,
    modify::{Modification, apply, check_classes},
};
use crate::{
    access::AuthzId,
    attribute_mapping::value_of,
    directory::{Directory, Inner},
    entry::{Attribute, Entry, is_own_attribute, values},
    entry_cache::{CachedEntry, PendingEntry, Source},
    ldap_error::LdapError,
    plan,
    schema::{AttributeType, Schema},
};

/// Attempts before the change is computed in the writer thread instead.
const TRIES: usize = 2;

/// Result of computing the modifications.
enum Outcome {
    /// The change cannot be prepared, or its error must come from the writer thread.
    Unfit,
    /// The modifications change nothing.
    Nothing(ReadEntries),
    PreparedModify(Box<PreparedModify>, ReadEntries),
}

/// Stored attributes of a subscriber, by name.
type Members<'a> = BTreeMap<MemberName<'a>, &'a RawValue>;

#[derive(PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
struct MemberName<'a>(#[serde(borrow)] Cow<'a, str>);

impl Directory {
    /// Modifies an entry just found by its name, if a prepared write suffices. `None`: nothing was done.
    pub(super) async fn modify_prepared(
        &self,
        requester: &AuthzId,
        dn: &str,
        mut shown: Arc<CachedEntry>,
        modifications: &[Modification],
        terms: &Preconditions,
    ) -> Result<Option<ReadEntries>, LdapError> {
        for _ in 0..TRIES {
            let outcome = self.inner.outcome(requester, &shown, modifications, terms, self.schema(), (self.clock)())?;
            let (retouch, images) = match outcome {
                Outcome::Unfit => return Ok(None),
                Outcome::Nothing(images) => return Ok(Some(images)),
                Outcome::PreparedModify(retouch, images) => (retouch, images),
            };
            if self.entries.modify_prepared(*retouch).await? {
                return Ok(Some(images));
            }
            shown = match self.cached_entry(dn) {
                Some(shown) => shown,
                None => self.find(dn).await?,
            };
        }
        Ok(None)
    }
}

impl Inner {
    fn outcome(
        &self,
        requester: &AuthzId,
        shown: &CachedEntry,
        modifications: &[Modification],
        terms: &Preconditions,
        schema: Arc<Schema>,
        now: Timestamp,
    ) -> Result<Outcome, LdapError> {
        let (entry, Some(source)) = (&shown.entry, &shown.source) else { return Ok(Outcome::Unfit) };
        let is_plain = |kind: &Arc<AttributeType>| {
            let is_of_name =
                entry.key.match_indices(&*kind.key).any(|(at, _)| entry.key[at + kind.key.len()..].starts_with('='));
            !kind.operational && self.is_own(&kind.key, source.is_placed) && !is_of_name
        };
        let kinds = modifications.iter().map(|modification| changeable(&modification.attribute, &schema).ok());
        let Some(kinds) = kinds.map(|kind| kind.filter(is_plain)).collect::<Option<Vec<_>>>() else {
            return Ok(Outcome::Unfit);
        };
        if kinds.is_empty() || requester.must_change || !terms.unique.is_empty() {
            return Ok(Outcome::Unfit);
        }
        if !requester.manages && !self.access.grant(requester, entry).may_disclose() {
            return Ok(Outcome::Unfit);
        }
        check_access(self, requester, entry, &kinds.iter().map(|kind| &**kind).collect::<Vec<_>>())?;
        let mut images = terms.check(self, requester, entry, &schema)?;
        let mut attributes = entry.attributes.clone();
        for modification in modifications {
            apply(&mut attributes, modification, &schema)?;
        }
        // The password is unchanged, so whether its class requires one is irrelevant.
        check_classes(&entry.classes(), &attributes, &kinds, true, &schema)?;
        let Ok(mut members) = serde_json::from_str::<Members<'_>>(&source.attributes) else {
            return Ok(Outcome::Unfit);
        };
        let Some(changes) = changes(&members, &entry.attributes, &mut attributes, &kinds) else {
            return Ok(Outcome::Unfit);
        };
        if changes.is_empty() {
            images.after = terms.after.then(|| CachedEntry::of(entry.clone()));
            return Ok(Outcome::Nothing(images));
        }
        let Some(json) = joined(&mut members, &changes) else { return Ok(Outcome::Unfit) };
        if !self.sort_as_stored(&mut attributes, &entry.attributes, &kinds, (&members, source.is_placed), &schema) {
            return Ok(Outcome::Unfit);
        }
        let source = Source { attributes: json, is_placed: source.is_placed, enabled: source.enabled };
        let (gone, made) = plan::index_diff(&entry.attributes, &attributes, &kinds, &schema);
        let new = Entry {
            shown: attributes.iter().take_while(|attribute| !attribute.kind.operational).count(),
            attributes,
            dn: entry.dn.clone(),
            key: entry.key.clone(),
            updated_at: now,
            revision: entry.revision + 1,
            ..*entry
        };
        images.after = terms.after.then(|| CachedEntry::of(new.clone()));
        let Some(number) = entry.number.subscriber() else { return Ok(Outcome::Unfit) };
        let retouch = PreparedModify {
            number,
            revision: entry.revision,
            enabled: source.enabled,
            attributes: source.attributes.clone(),
            before: changes.into_iter().map(|change| (change.name, change.before)).collect(),
            gone,
            made,
            now,
            built: PendingEntry::of(CachedEntry { source: Some(source), ..CachedEntry::of(new) }, schema),
        };
        Ok(Outcome::PreparedModify(Box::new(retouch), images))
    }

    /// Whether an attribute is stored under its own name.
    fn is_own(&self, name: &str, is_placed: bool) -> bool {
        is_own_attribute(name, is_placed, &self.shape)
    }

    /// Sorts attributes of some types into the order of a freshly read entry, which is that of their stored names.
    /// False if two stored names map to one type, so the order is ambiguous.
    fn sort_as_stored(
        &self,
        attributes: &mut Vec<Attribute>,
        before: &[Attribute],
        kinds: &[Arc<AttributeType>],
        (members, is_placed): (&Members<'_>, bool),
        schema: &Schema,
    ) -> bool {
        let place = |all: &[Attribute], key: &str| all.iter().position(|found| &*found.kind.key == key);
        if kinds.iter().all(|kind| place(before, &kind.key) == place(attributes, &kind.key)) {
            return true;
        }
        let keys: Vec<(Arc<str>, bool)> = members
            .keys()
            .map(|MemberName(name)| {
                let key =
                    schema.attribute(name).map_or_else(|_| name.to_ascii_lowercase().into(), |kind| kind.key.clone());
                (key, self.is_own(name, is_placed))
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
            let next =
                behind.filter_map(|(key, _)| place(attributes, key)).find(|at| !attributes[*at].kind.operational);
            let end = || attributes.iter().take_while(|found| !found.kind.operational).count();
            let at = next.unwrap_or_else(end);
            attributes.insert(at, attribute);
        }
        true
    }
}

/// Change of a stored attribute.
struct Change {
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
) -> Option<Vec<Change>> {
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
        let old = known.map(|(_, raw)| serde_json::from_str::<Value>(raw.get())).transpose().ok()?;
        let new = is.map(|attribute| {
            let value = value_of(attribute, matches!(old, Some(Value::List(_))));
            attribute.values = values(&value, kind.syntax).into();
            value
        });
        if old == new {
            continue;
        }
        let name = known.map_or(kind.name(), |(name, _)| &*name.0).to_owned();
        let after = new.map(|value| to_raw_value(&value)).transpose().ok()?;
        changes.push(Change { name, before: old, after });
    }
    Some(changes)
}

/// Applies changes and returns the JSON; `None`: the attributes are too large, or too many.
fn joined<'a>(members: &mut Members<'a>, changes: &'a [Change]) -> Option<Arc<str>> {
    for Change { name, after, .. } in changes {
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
