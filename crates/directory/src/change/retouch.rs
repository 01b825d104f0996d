//! What most modifications do: attributes of one subscriber change, and nothing else of it. What comes of that is worked out by
//! whoever asks, on the entry that is kept at hand. The one writer of the store only looks whether it is still the same entry.

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
use tocsin_store::entries::Retouch;

use super::{
    Images, Terms, changeable,
    modify::{Modification, apply, check_classes},
    needs,
};
use crate::{
    access::Asker,
    directory::{Directory, Inner},
    entry::{Attribute, Entry, is_own_attribute, values},
    kept::{Prebuilt, Shown, Source},
    person::value_of,
    plan,
    refusal::Refusal,
    schema::{AttributeType, Schema},
};

/// How often it is worked out anew for an entry that others change. Then it is done in their midst.
const TRIES: usize = 2;

/// What comes of modifications.
enum Outcome {
    /// They want more than can be worked out beforehand, or want it in the words of those who do it.
    Unfit,
    /// They say what is there.
    Nothing(Images),
    Retouch(Box<Retouch>, Images),
}

/// The attributes of a subscriber as they are stored, by name.
type Members<'a> = BTreeMap<MemberName<'a>, &'a RawValue>;

#[derive(PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
struct MemberName<'a>(#[serde(borrow)] Cow<'a, str>);

impl Directory {
    /// Changes an entry that was just found by its name, if no more is to be done than to write down what comes of it.
    /// `None`: nothing was done.
    pub(super) async fn retouch(
        &self,
        asker: &Asker,
        dn: &str,
        mut shown: Arc<Shown>,
        modifications: &[Modification],
        terms: &Terms,
    ) -> Result<Option<Images>, Refusal> {
        for _ in 0..TRIES {
            let outcome = self.inner.outcome(asker, &shown, modifications, terms, self.schema(), (self.clock)())?;
            let (retouch, images) = match outcome {
                Outcome::Unfit => return Ok(None),
                Outcome::Nothing(images) => return Ok(Some(images)),
                Outcome::Retouch(retouch, images) => (retouch, images),
            };
            if self.entries.retouch(*retouch).await? {
                return Ok(Some(images));
            }
            shown = match self.at_hand(dn) {
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
        asker: &Asker,
        shown: &Shown,
        modifications: &[Modification],
        terms: &Terms,
        schema: Arc<Schema>,
        now: Timestamp,
    ) -> Result<Outcome, Refusal> {
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
        if kinds.is_empty() || asker.must_change || !terms.unique.is_empty() {
            return Ok(Outcome::Unfit);
        }
        if !asker.manages && !self.access.grant(asker, entry).sees() {
            return Ok(Outcome::Unfit);
        }
        needs(self, asker, entry, &kinds.iter().map(|kind| &**kind).collect::<Vec<_>>())?;
        let mut images = terms.hold(self, asker, entry, &schema)?;
        let mut attributes = entry.attributes.clone();
        for modification in modifications {
            apply(&mut attributes, modification, &schema)?;
        }
        // The password stays as it is, whether its class wants one or not.
        check_classes(&entry.classes(), &attributes, &kinds, true, &schema)?;
        let Ok(mut members) = serde_json::from_str::<Members<'_>>(&source.attributes) else {
            return Ok(Outcome::Unfit);
        };
        let Some(changes) = changes(&members, &entry.attributes, &mut attributes, &kinds) else {
            return Ok(Outcome::Unfit);
        };
        if changes.is_empty() {
            images.after = terms.after.then(|| Shown::of(entry.clone()));
            return Ok(Outcome::Nothing(images));
        }
        let Some(json) = joined(&mut members, &changes) else { return Ok(Outcome::Unfit) };
        if !self.seat(&mut attributes, &entry.attributes, &kinds, (&members, source.is_placed), &schema) {
            return Ok(Outcome::Unfit);
        }
        let source = Source { attributes: json, is_placed: source.is_placed, enabled: source.enabled };
        let (gone, made) = plan::turned(&entry.attributes, &attributes, &kinds, &schema);
        let new = Entry {
            shown: attributes.iter().take_while(|attribute| !attribute.kind.operational).count(),
            attributes,
            dn: entry.dn.clone(),
            key: entry.key.clone(),
            updated_at: now,
            revision: entry.revision + 1,
            ..*entry
        };
        images.after = terms.after.then(|| Shown::of(new.clone()));
        let Some(number) = entry.number.subscriber() else { return Ok(Outcome::Unfit) };
        let retouch = Retouch {
            number,
            revision: entry.revision,
            enabled: source.enabled,
            attributes: source.attributes.clone(),
            before: changes.into_iter().map(|change| (change.name, change.before)).collect(),
            gone,
            made,
            now,
            built: Prebuilt::of(Shown { source: Some(source), ..Shown::of(new) }, schema),
        };
        Ok(Outcome::Retouch(Box::new(retouch), images))
    }

    /// Whether an attribute of a name is stored under it.
    fn is_own(&self, name: &str, is_placed: bool) -> bool {
        is_own_attribute(name, is_placed, &self.shape)
    }

    /// Puts attributes of some types where they stand in an entry that is read anew: in the order of their names in the store.
    /// False where two of those names stand for one type, so that it cannot be told from the entry which is which.
    fn seat(
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

/// An attribute that changes, as it is stored.
struct Change {
    name: String,
    before: Option<Value>,
    after: Option<Box<RawValue>>,
}

/// What changes of the stored attributes; `None`: it cannot be told here. A name that is there already is kept as it is spelled,
/// and a list stays a list. `after` gets the values as they are shown once they are stored.
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

/// Changes the attributes, and gives them as JSON; `None`: they are too large, or too many.
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
