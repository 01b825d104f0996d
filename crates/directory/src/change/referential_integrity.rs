//! Referential integrity: groups and roles that name an entry are updated whenever it is renamed or removed, by any
//! client. So no entry inherits a membership by taking the name of another.

use std::{collections::BTreeSet, ops::Bound, sync::Arc};

use tocsin_store::entries::{EntryKey, EntryNode, EntryNumber, EntryReader, EntryWriter, RowChange};

use super::{
    values::{classes_of, normal},
    write::store_attributes,
};
use crate::{
    access::is_below,
    dn::Dn,
    entry::{self, Attribute},
    groups::FINDING_MAX,
    ldap_error::LdapError,
    plan::{self, CANDIDATES_MAX},
    schema::{AttributeType, FINDING, MEMBERS, Schema},
    tree::{Inner, PEOPLE},
    url::{LdapUrlSearch, with_base},
};

/// Placeholder in a group that must have a member and lost its last one. It is outside the tree, so no entry has this
/// name.
const REMOVED_MEMBER: &str = "cn=removed-member";
/// Up to this many entries, those that name others are found without an index.
const FEW: usize = 2_000;
/// Entries read at a time if no index finds those that name others.
const PAGE: usize = 1_000;

/// A changed DN, including the DNs below it.
struct NameChange<'a> {
    /// The old normalized DN and its number of parts.
    key: &'a str,
    depth: usize,
    /// The new DN; `None`: the entry is removed.
    dn: Option<&'a str>,
    /// The new suffix of the DNs below, if there are any.
    below: Option<&'a str>,
}

impl Inner {
    /// Updates the groups and roles that name a renamed or removed entry.
    pub(crate) fn update_references(
        &self,
        tree: &mut dyn EntryWriter,
        old: &EntryNode,
        now: Option<&EntryNode>,
    ) -> Result<(), LdapError> {
        let schema = self.schema.load_full();
        let from = entry::place(old, self.above(tree.reader(), old)?.as_deref(), &schema);
        let to = match now {
            Some(now) => Some(entry::place(now, self.above(tree.reader(), now)?.as_deref(), &schema)),
            None => None,
        };
        if to.as_ref().is_some_and(|to| to.key == from.key) {
            return Ok(());
        }
        self.require_reference_lookup(tree.reader())?;
        let is_ready = self.require_group_index().is_ok();
        let has_below = !tree.reader().page(Some(from.number), false, None, 1)?.is_empty();
        let dn = to.map(|to| to.dn);
        let below = match (has_below, &dn) {
            (false, _) => None,
            (true, Some(dn)) => Some(dn.clone()),
            // Entries below a removed subscriber move to the container of unplaced subscribers.
            (true, None) => Some(format!("{},{}", PEOPLE, self.suffix_text)),
        };
        let depth = Dn::parse(&from.dn).map_or(0, |dn| dn.0.len());
        let change = NameChange { key: &from.key, depth, dn: dn.as_deref(), below: below.as_deref() };
        for number in self.entries_referencing(tree.reader(), &change)? {
            let by_row = is_ready && change.below.is_none() && number != from.number;
            if by_row && self.follow_row(tree, number, &change, &from.dn)? {
                continue;
            }
            let Some(node) = tree.reader().node(number)? else { continue };
            if now.is_none() && number == from.number {
                continue;
            }
            let before = entry::attributes(&node, &schema, &self.shape);
            let after = change.applied(&before, &schema);
            if before != after {
                store_attributes(&node, self, tree, (&before, after), None, &schema, (self.clock)())?;
            }
        }
        Ok(())
    }

    /// Updates a single member row, so that a large group is not read as a whole. False: the whole group is needed, and
    /// nothing was done.
    fn follow_row(
        &self,
        tree: &mut dyn EntryWriter,
        number: EntryNumber,
        change: &NameChange<'_>,
        from: &str,
    ) -> Result<bool, LdapError> {
        let schema = self.schema.load();
        let Some(EntryNode::Object(head)) = tree.reader().head(number)? else { return Ok(false) };
        let names_otherwise =
            |name: &String| MEMBERS.iter().chain([&FINDING]).any(|known| name.eq_ignore_ascii_case(known));
        if !plan::is_whole(change.key.as_bytes()) || head.object.attributes.keys().any(names_otherwise) {
            return Ok(false);
        }
        let mut changes = Vec::new();
        for index in MEMBERS {
            let kind = schema.attribute(index)?;
            let key = |normal: &[u8]| EntryKey { index: kind.key.clone(), key: normal.into() };
            let gone = key(change.key.as_bytes());
            if !tree.reader().is_found(&gone, number)? {
                continue;
            }
            if !tree.reader().has_row_value(number, kind.name(), from)? {
                return Ok(false);
            }
            let (mut added, mut made) = (Vec::new(), Vec::new());
            match change.dn {
                Some(dn) => {
                    let requested = normal(kind, dn.as_bytes(), &schema);
                    if !plan::is_whole(&requested) || tree.reader().is_found(&key(&requested), number)? {
                        return Ok(false);
                    }
                    added.push(dn.into());
                    made.push(key(&requested));
                }
                // The last member may need the placeholder.
                None if tree.reader().row_values(number, kind.name(), 2)?.len() < 2 => return Ok(false),
                None => {}
            }
            changes.push(RowChange {
                name: kind.name().into(),
                added,
                removed: vec![from.into()],
                gone: vec![gone],
                made,
            });
        }
        let mut stored = head;
        for change in changes {
            tree.change_rows(&stored, &change, (self.clock)())?;
            stored.revision += 1;
        }
        Ok(true)
    }

    /// Entries that may hold one of the changed DNs.
    fn entries_referencing(
        &self,
        branches: &dyn EntryReader,
        change: &NameChange<'_>,
    ) -> Result<BTreeSet<EntryNumber>, LdapError> {
        if self.require_group_index().is_err() {
            return self.all(branches);
        }
        let mut found = BTreeSet::new();
        for index in MEMBERS {
            let key = Bound::Included(plan::cut(change.key.as_bytes()));
            let (from, to) = if change.below.is_some() { (Bound::Unbounded, Bound::Unbounded) } else { (key, key) };
            match branches.found(index, from, to, CANDIDATES_MAX)? {
                Some(numbers) => found.extend(numbers),
                None => return self.all(branches),
            }
        }
        // With more dynamic groups than the maximum, none of them finds members; see `finding`.
        let finding = branches.found(FINDING, Bound::Unbounded, Bound::Unbounded, FINDING_MAX)?;
        found.extend(finding.into_iter().flatten());
        Ok(found)
    }

    /// Rejects a rename while the groups cannot be found quickly: their index is being built, and there are many
    /// entries.
    pub(super) fn require_reference_lookup(&self, branches: &dyn EntryReader) -> Result<(), LdapError> {
        let Err(busy) = self.require_group_index() else { return Ok(()) };
        match branches.page(None, true, None, FEW + 1)?.len() > FEW {
            true => Err(busy),
            false => Ok(()),
        }
    }

    fn all(&self, branches: &dyn EntryReader) -> Result<BTreeSet<EntryNumber>, LdapError> {
        let (mut all, mut after) = (BTreeSet::new(), None);
        loop {
            let page = branches.page(None, true, after, PAGE)?;
            all.extend(page.iter().map(EntryNode::number));
            match page.last() {
                Some(last) if page.len() == PAGE => after = Some(last.number()),
                _ => return Ok(all),
            }
        }
    }

    /// The DNs of all descendants changed, so persistent searches must restart.
    pub(super) fn cut_for_names(&self, tree: &mut dyn EntryWriter, number: EntryNumber) -> Result<(), LdapError> {
        match tree.reader().page(Some(number), false, None, 1)?.is_empty() {
            true => Ok(()),
            false => Ok(tree.cut_entry_feed()?),
        }
    }
}

impl NameChange<'_> {
    /// Attributes with the changed DNs applied.
    fn applied(&self, before: &[Attribute], schema: &Schema) -> Vec<Attribute> {
        let mut after: Vec<Attribute> = before.to_vec();
        for index in MEMBERS.iter().chain([&FINDING]) {
            let Some(at) = after.iter().position(|found| &*found.kind.key == *index) else { continue };
            let kind = after[at].kind.clone();
            let changed: Vec<_> = after[at].values.iter().map(|value| self.value(&kind, value, schema)).collect();
            if changed.iter().all(|changed| matches!(changed, Value::Stays)) {
                continue;
            }
            let mut known = BTreeSet::new();
            let values = after[at].values.iter().zip(changed).filter_map(|(value, changed)| match changed {
                Value::Stays => Some(value.clone()),
                Value::Becomes(text) => Some(text.into_bytes().into()),
                Value::Goes => None,
            });
            let values: Vec<Box<[u8]>> = values.filter(|value| known.insert(normal(&kind, value, schema))).collect();
            match values.is_empty() {
                false => after[at].values = Arc::new(values),
                true => {
                    let mut without = after.clone();
                    without.remove(at);
                    let has: Vec<_> = without.iter().map(|found| &found.kind).collect();
                    let touched = std::slice::from_ref(&kind);
                    let is_valid = schema.check(&classes_of(&without), &has, Some(touched)).is_ok();
                    match is_valid {
                        true => after = without,
                        false => after[at].values = Arc::new(vec![REMOVED_MEMBER.as_bytes().into()]),
                    }
                }
            }
        }
        after
    }

    fn value(&self, kind: &AttributeType, value: &[u8], schema: &Schema) -> Value {
        let Ok(text) = std::str::from_utf8(value) else { return Value::Stays };
        if &*kind.key != FINDING {
            return match std::str::from_utf8(&normal(kind, value, schema)) {
                Ok(key) => self.name(key, text),
                Err(_) => Value::Stays,
            };
        }
        let Ok(meant) = LdapUrlSearch::read(text) else { return Value::Stays };
        let base: Vec<_> = meant.base.0.iter().map(|rdn| rdn.text.as_str()).collect();
        match self.name(&schema.normal_dn(&meant.base), &base.join(",")) {
            Value::Becomes(dn) => Value::Becomes(with_base(text, &dn)),
            other => other,
        }
    }

    /// The change of a DN, given in normal form and as text.
    fn name(&self, key: &str, text: &str) -> Value {
        if key == self.key {
            return self.dn.map_or(Value::Goes, |dn| Value::Becomes(dn.to_owned()));
        }
        let (Some(end), true) = (self.below, is_below(key, self.key)) else { return Value::Stays };
        let Ok(dn) = Dn::parse(text) else { return Value::Stays };
        let own = dn.0.len().saturating_sub(self.depth);
        let parts: Vec<_> = dn.0[..own].iter().map(|rdn| rdn.text.as_str()).chain([end]).collect();
        Value::Becomes(parts.join(","))
    }
}

/// Change of a value.
enum Value {
    Stays,
    Becomes(String),
    Goes,
}
