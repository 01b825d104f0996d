//! Modify of group members. Each member is a row, so a large group is neither read nor written as a whole.
//!
//! Changes that need the whole entry are left to `modify`: assertions, pre- and post-reads, values too long for an
//! index key, and values spelled differently from the stored ones.

use std::sync::Arc;

use tocsin_model::time::Timestamp;
use tocsin_store::entries::{
    DiskCheck, EntryKey, EntryNode, EntryNumber, EntryReader, EntryWriter, ROW_ATTRIBUTES, RowChange, StoredObject,
};

use super::{
    preconditions::{Preconditions, ReadEntries},
    prepare::{Modification, ModifyType},
    rights::check_access,
    values::{changeable, checked, classes_of, normal, valid},
};
use crate::{
    access::AuthzId,
    directory::Directory,
    dn::Dn,
    entry::{self, Attribute},
    entry_cache::CachedEntry,
    ldap_error::{Code, LdapError},
    plan,
    schema::{AttributeType, Schema},
    tree::{Inner, parse},
};

/// The entry to modify.
pub(super) enum Target {
    Named(Dn),
    Numbered(EntryNumber),
}

/// Change of one attribute, checked against the entry.
struct Prepared {
    kind: Arc<AttributeType>,
    added: Vec<Box<[u8]>>,
    removed: Vec<Box<[u8]>>,
}

impl Directory {
    /// Adds and removes members of a group. `None`: nothing was done, and the whole entry is needed.
    pub(super) async fn change_members(
        &self,
        requester: &AuthzId,
        target: impl FnOnce() -> Result<Target, LdapError>,
        modifications: &[Modification],
        terms: &Preconditions,
    ) -> Result<Option<ReadEntries>, LdapError> {
        let schema = self.schema();
        if !are_members(requester, modifications, terms, &schema) {
            return Ok(None);
        }
        let (target, inner, requester, now) = (target()?, self.inner.clone(), requester.clone(), (self.clock)());
        let (modifications, revision, after) = (modifications.to_vec(), terms.revision, terms.after);
        let changed = self
            .change(DiskCheck::Required, move |tree| {
                inner.change_rows(tree, &requester, &target, &modifications, revision, &schema, now)
            })
            .await?;
        let Some(number) = changed else { return Ok(None) };
        let shown = if after { self.numbered(vec![number]).await?.pop() } else { None };
        Ok(Some(ReadEntries { before: None, after: shown.map(|shown| CachedEntry::of(shown.entry.clone())) }))
    }
}

/// Whether the modifications concern members only, as far as visible without the entry.
pub(super) fn are_members(
    requester: &AuthzId,
    modifications: &[Modification],
    terms: &Preconditions,
    schema: &Schema,
) -> bool {
    let is_plain = !terms.dry_run
        && terms.assertion.is_none()
        && !terms.before
        && terms.unique.is_empty()
        && !requester.must_change;
    let comes_or_goes = |found: &Modification| {
        matches!(found.act, ModifyType::Add | ModifyType::Delete)
            && !found.values.is_empty()
            && is_row(&found.attribute, schema)
    };
    is_plain && !modifications.is_empty() && modifications.iter().all(comes_or_goes)
}

/// Whether the values of an attribute are stored as rows.
fn is_row(name: &str, schema: &Schema) -> bool {
    schema.attribute(name).is_ok_and(|kind| ROW_ATTRIBUTES.contains(&kind.name()))
}

impl Inner {
    /// Changes members, in the writer thread; `None`: nothing was done, and the whole entry is needed.
    #[expect(clippy::too_many_arguments, reason = "the preconditions of a change, and the change")]
    pub(super) fn change_rows(
        &self,
        tree: &mut dyn EntryWriter,
        requester: &AuthzId,
        target: &Target,
        modifications: &[Modification],
        revision: Option<u64>,
        schema: &Schema,
        now: Timestamp,
    ) -> Result<Option<EntryNumber>, LdapError> {
        let prepared = self.prepared_members(tree.reader(), requester, target, modifications, revision, schema)?;
        let Some((mut stored, changes)) = prepared else { return Ok(None) };
        for change in changes {
            tree.change_rows(&stored, &change, now)?;
            stored.revision += 1;
        }
        Ok(Some(stored.number))
    }

    /// Checks a change of members against the current rows; `None`: the whole entry is needed.
    fn prepared_members(
        &self,
        branches: &dyn EntryReader,
        requester: &AuthzId,
        target: &Target,
        modifications: &[Modification],
        revision: Option<u64>,
        schema: &Schema,
    ) -> Result<Option<(StoredObject, Vec<RowChange>)>, LdapError> {
        let node = match target {
            Target::Named(dn) => match self.walk_head(branches, dn) {
                Ok((node, _)) => Some(node),
                // With the nearest existing ancestor, as for every change.
                Err(refusal) if refusal.code == Code::NoSuchObject => None,
                Err(refusal) => return Err(refusal),
            },
            Target::Numbered(number) => branches.head(*number)?,
        };
        let Some(EntryNode::Object(head)) = node else { return Ok(None) };
        let above = self.above(branches, &EntryNode::Object(head.clone()))?;
        let shown = entry::view(&EntryNode::Object(head.clone()), above.as_deref(), schema, &self.shape);
        if !requester.manages && !self.access.grant(requester, &shown).may_disclose() {
            return Ok(None);
        }
        let kinds =
            modifications.iter().map(|found| changeable(&found.attribute, schema)).collect::<Result<Vec<_>, _>>()?;
        check_access(self, requester, &shown, &kinds.iter().map(|kind| &**kind).collect::<Vec<_>>())?;
        if revision.is_some_and(|revision| revision != head.revision) {
            return Err(LdapError::new(
                Code::AssertionFailed,
                "the entry was changed by another request; read it again and repeat the change",
            ));
        }
        let names = parse(&shown.dn)?;
        let is_of_name = |kind: &AttributeType| {
            let mut named = names.0[0].assertions.iter().filter_map(|(name, _)| schema.attribute(name).ok());
            named.any(|named| named.key == kind.key)
        };
        let is_spelled_otherwise =
            |kind: &AttributeType| head.object.attributes.keys().any(|name| name.eq_ignore_ascii_case(kind.name()));
        let is_indexed_above = |kind: &AttributeType| {
            let mut above = kind.kinds.iter().filter_map(|key| schema.attribute(key).ok());
            above.any(|above| above.indexed != (false, false))
        };
        let ready = self.ready.load();
        if kinds.iter().any(|kind| {
            !ready.contains(&*kind.key) || is_of_name(kind) || is_spelled_otherwise(kind) || is_indexed_above(kind)
        }) {
            return Ok(None);
        }
        let mut changes: Vec<Prepared> = Vec::new();
        for (modification, kind) in modifications.iter().zip(kinds) {
            let at = changes.iter().position(|known| known.kind.key == kind.key);
            let at = at.unwrap_or_else(|| {
                changes.push(Prepared { kind: kind.clone(), added: Vec::new(), removed: Vec::new() });
                changes.len() - 1
            });
            if !add_to_change(branches, head.number, &mut changes[at], modification, schema)? {
                return Ok(None);
            }
        }
        for Prepared { kind, added, removed } in &changes {
            let stays = !added.is_empty()
                || branches.row_values(head.number, kind.name(), removed.len() + 1)?.len() > removed.len();
            let has: Vec<_> = shown.attributes.iter().map(|found| &found.kind).chain(stays.then_some(kind)).collect();
            let others = changes.iter().filter(|other| other.kind.key != kind.key).map(|other| &other.kind);
            let has: Vec<_> = has.into_iter().chain(others).collect();
            schema.check(&classes_of(&shown.attributes), &has, Some(std::slice::from_ref(kind)))?;
        }
        let of = |change: Prepared| {
            let keys = |values: &[Box<[u8]>]| -> Vec<EntryKey> {
                let attribute = Attribute { kind: change.kind.clone(), values: Arc::new(values.to_vec()) };
                plan::keys([&attribute], schema)
            };
            let texts = |values: &[Box<[u8]>]| -> Vec<Box<str>> {
                values.iter().map(|value| String::from_utf8_lossy(value).into()).collect()
            };
            RowChange {
                name: change.kind.name().into(),
                added: texts(&change.added),
                removed: texts(&change.removed),
                gone: keys(&change.removed),
                made: keys(&change.added),
            }
        };
        Ok(Some((head, changes.into_iter().map(of).collect())))
    }
}

/// Adds a modification to the change of its attribute. False: the whole entry is needed.
fn add_to_change(
    branches: &dyn EntryReader,
    number: EntryNumber,
    change: &mut Prepared,
    modification: &Modification,
    schema: &Schema,
) -> Result<bool, LdapError> {
    let kind = change.kind.clone();
    let values = match modification.act {
        ModifyType::Delete => valid(&kind, &modification.values, schema)?,
        _ => checked(&kind, &modification.values, schema)?,
    };
    let is_same =
        |known: &[Box<[u8]>], requested: &[u8]| known.iter().any(|known| normal(&kind, known, schema) == requested);
    for value in values {
        let requested = normal(&kind, &value, schema);
        let Ok(text) = std::str::from_utf8(&value) else { return Ok(false) };
        // A value both added and removed in one request needs the whole entry.
        if !plan::is_whole(&requested) || is_same(&change.removed, &requested) || is_same(&change.added, &requested) {
            return Ok(false);
        }
        let key = EntryKey { index: kind.key.clone(), key: requested.into() };
        let is_there = branches.is_found(&key, number)?;
        match (modification.act, is_there) {
            (ModifyType::Add, true) => {
                let what = format!("modify/add: {}: value already exists", kind.name());
                return Err(LdapError::new(Code::AttributeOrValueExists, what));
            }
            (ModifyType::Add, false) => change.added.push(value),
            (_, false) => {
                let what = format!("modify: no such value of `{}`", kind.name());
                return Err(LdapError::new(Code::NoSuchAttribute, what));
            }
            (_, true) if branches.has_row_value(number, kind.name(), text)? => change.removed.push(value),
            (_, true) => return Ok(false),
        }
    }
    Ok(true)
}
