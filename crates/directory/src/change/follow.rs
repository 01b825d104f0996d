//! Referential integrity: groups and roles that name an entry follow it to its new name, and let it go when it goes, whoever
//! changes it. So no entry inherits a membership by taking a name that another had.

use std::{collections::BTreeSet, ops::Bound, sync::Arc};

use tocsin_store::entries::{Branches, EntryKey, EntryNumber, Node, RowChange, Tree};

use super::{classes_of, modify::keep, normal};
use crate::{
    access::is_below,
    directory::Inner,
    dn::Dn,
    entry::{self, Attribute},
    groups::{FINDING, FINDING_MAX, MEMBERS},
    plan::{self, CANDIDATES_MAX},
    refusal::Refusal,
    schema::{AttributeType, Schema},
    url::Meant,
};

/// Stands in a group that must have a member and lost its last one. Outside of the tree, so no entry has this name.
const REMOVED_MEMBER: &str = "cn=removed-member";
/// With so few entries, those that name others are found without an index.
const FEW: usize = 2_000;
/// Entries that are read at a time where no index finds those that name others.
const PAGE: usize = 1_000;

/// A name that changes, with those below it.
struct NameChange<'a> {
    /// The old name in normal form, and how many parts it has.
    key: &'a str,
    depth: usize,
    /// The new name; `None`: the entry goes.
    dn: Option<&'a str>,
    /// The new end of the names below, if there are any.
    below: Option<&'a str>,
}

impl Inner {
    /// Lets groups and roles follow an entry that got another name or went.
    pub(crate) fn follow_name(&self, tree: &mut dyn Tree, old: &Node, now: Option<&Node>) -> Result<(), Refusal> {
        let schema = self.schema.load_full();
        let from = entry::place(old, self.above(tree.branches(), old)?.as_deref(), &schema);
        let to = match now {
            Some(now) => Some(entry::place(now, self.above(tree.branches(), now)?.as_deref(), &schema)),
            None => None,
        };
        if to.as_ref().is_some_and(|to| to.key == from.key) {
            return Ok(());
        }
        self.can_follow(tree.branches())?;
        let is_ready = self.knows_groups().is_ok();
        let has_below = !tree.branches().page(Some(from.number), false, None, 1)?.is_empty();
        let dn = to.map(|to| to.dn);
        let below = match (has_below, &dn) {
            (false, _) => None,
            (true, Some(dn)) => Some(dn.clone()),
            // Entries below a subscriber that goes stand among the subscribers that were not placed.
            (true, None) => Some(format!("{},{}", crate::directory::PEOPLE, self.suffix_text)),
        };
        let depth = Dn::parse(&from.dn).map_or(0, |dn| dn.0.len());
        let change = NameChange { key: &from.key, depth, dn: dn.as_deref(), below: below.as_deref() };
        for number in self.naming(tree.branches(), &change)? {
            let by_row = is_ready && change.below.is_none() && number != from.number;
            if by_row && self.follow_row(tree, number, &change, &from.dn)? {
                continue;
            }
            let Some(node) = tree.branches().node(number)? else { continue };
            if now.is_none() && number == from.number {
                continue;
            }
            let before = entry::attributes(&node, &schema, &self.shape);
            let after = change.applied(&before, &schema);
            if before != after {
                keep(&node, self, tree, (&before, after), None, &schema, (self.clock)())?;
            }
        }
        Ok(())
    }

    /// Lets a group follow a name by its row, so that a group of many is not read as a whole. False: the whole group is needed, and
    /// nothing was done.
    fn follow_row(
        &self,
        tree: &mut dyn Tree,
        number: EntryNumber,
        change: &NameChange<'_>,
        from: &str,
    ) -> Result<bool, Refusal> {
        let schema = self.schema.load();
        let Some(Node::Object(head)) = tree.branches().head(number)? else { return Ok(false) };
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
            if !tree.branches().is_found(&gone, number)? {
                continue;
            }
            if !tree.branches().has_row_value(number, kind.name(), from)? {
                return Ok(false);
            }
            let (mut added, mut made) = (Vec::new(), Vec::new());
            match change.dn {
                Some(dn) => {
                    let wanted = normal(kind, dn.as_bytes(), &schema);
                    if !plan::is_whole(&wanted) || tree.branches().is_found(&key(&wanted), number)? {
                        return Ok(false);
                    }
                    added.push(dn.into());
                    made.push(key(&wanted));
                }
                // Something may have to stand in the place of the last one.
                None if tree.branches().row_values(number, kind.name(), 2)?.len() < 2 => return Ok(false),
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

    /// The entries that may hold one of the names that change.
    fn naming(&self, branches: &dyn Branches, change: &NameChange<'_>) -> Result<BTreeSet<EntryNumber>, Refusal> {
        if self.knows_groups().is_err() {
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
        // With more groups that search for their members, no group finds any; see `finding`.
        let finding = branches.found(FINDING, Bound::Unbounded, Bound::Unbounded, FINDING_MAX)?;
        found.extend(finding.into_iter().flatten());
        Ok(found)
    }

    /// Refuses a change of names while it would take too long to find the groups that follow: their index is being built, and there are
    /// more than a few entries to look at.
    pub(super) fn can_follow(&self, branches: &dyn Branches) -> Result<(), Refusal> {
        let Err(busy) = self.knows_groups() else { return Ok(()) };
        match branches.page(None, true, None, FEW + 1)?.len() > FEW {
            true => Err(busy),
            false => Ok(()),
        }
    }

    fn all(&self, branches: &dyn Branches) -> Result<BTreeSet<EntryNumber>, Refusal> {
        let (mut all, mut after) = (BTreeSet::new(), None);
        loop {
            let page = branches.page(None, true, after, PAGE)?;
            all.extend(page.iter().map(Node::number));
            match page.last() {
                Some(last) if page.len() == PAGE => after = Some(last.number()),
                _ => return Ok(all),
            }
        }
    }

    /// The names of all below an entry changed with its own: followers, who know nothing of that, begin anew.
    pub(super) fn cut_for_names(&self, tree: &mut dyn Tree, number: EntryNumber) -> Result<(), Refusal> {
        match tree.branches().page(Some(number), false, None, 1)?.is_empty() {
            true => Ok(()),
            false => Ok(tree.cut_entry_feed()?),
        }
    }
}

impl NameChange<'_> {
    /// Attributes with the names changed that they hold.
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
        let Ok(meant) = Meant::read(text) else { return Value::Stays };
        let base: Vec<_> = meant.base.0.iter().map(|rdn| rdn.text.as_str()).collect();
        match self.name(&schema.normal_dn(&meant.base), &base.join(",")) {
            Value::Becomes(dn) => Value::Becomes(crate::url::with_base(text, &dn)),
            other => other,
        }
    }

    /// The change of a name, given in normal form and as it is written.
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

/// The change of a value.
enum Value {
    Stays,
    Becomes(String),
    Goes,
}
