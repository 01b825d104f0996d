//! Groups that name an entry go with it to its new name, and let it go when it goes.

use std::{ops::Bound, sync::Arc};

use tocsin_model::time::Timestamp;
use tocsin_store::entries::{Branches, EntryNumber, Node, Tree};

use super::{classes_of, modify::keep, normal};
use crate::{
    directory::Inner,
    entry::{self, Attribute},
    groups::{GROUPS_MAX, MEMBERS, too_many},
    plan,
    refusal::Refusal,
    schema::{AttributeType, Schema},
};

/// An entry that names another, as it is and as it is to be.
pub(super) struct Following {
    node: Node,
    before: Vec<Attribute>,
    after: Vec<Attribute>,
}

impl Inner {
    /// What becomes of the groups that name an entry by `key`. `dn`: its new name; `None`: it goes.
    ///
    /// A group that must have a member keeps the name of its last one.
    pub(super) fn following(
        &self,
        branches: &dyn Branches,
        key: &str,
        dn: Option<&str>,
        schema: &Schema,
    ) -> Result<Vec<Following>, Refusal> {
        self.knows_groups()?;
        let mut all: Vec<Following> = Vec::new();
        for index in MEMBERS {
            let kind = schema.attribute(index)?;
            for number in self.naming(branches, index, key)? {
                let known = all.iter().position(|known| known.node.number() == number);
                let mut following = match known {
                    Some(at) => all.swap_remove(at),
                    None => {
                        let Some(node) = branches.node(number)? else { continue };
                        let before = entry::attributes(&node, schema, &self.shape);
                        Following { node, after: before.clone(), before }
                    }
                };
                following.follow(kind, key, dn, schema);
                all.push(following);
            }
        }
        all.retain(|following| following.before != following.after);
        Ok(all)
    }

    fn naming(&self, branches: &dyn Branches, index: &str, key: &str) -> Result<Vec<EntryNumber>, Refusal> {
        let key = Bound::Included(plan::cut(key.as_bytes()));
        branches.found(index, key, key, GROUPS_MAX)?.ok_or_else(too_many)
    }

    /// The names of all below an entry changed with its own: followers, who know nothing of that, begin anew.
    pub(super) fn cut_for_names(&self, tree: &mut dyn Tree, number: EntryNumber) -> Result<(), Refusal> {
        match tree.branches().page(Some(number), false, None, 1)?.is_empty() {
            true => Ok(()),
            false => Ok(tree.cut_entry_feed()?),
        }
    }

    /// Writes what [`Inner::following`] found.
    pub(super) fn follow(
        &self,
        tree: &mut dyn Tree,
        following: Vec<Following>,
        schema: &Schema,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        following.into_iter().try_for_each(|Following { node, before, after }| {
            keep(&node, self, tree, (&before, after), None, schema, now)
        })
    }
}

impl Following {
    fn follow(&mut self, kind: &AttributeType, key: &str, dn: Option<&str>, schema: &Schema) {
        let Some(at) = self.after.iter().position(|found| found.kind.key == kind.key) else { return };
        let mut after = self.after.clone();
        let names = |value: &[u8]| normal(kind, value, schema) == key.as_bytes();
        match dn {
            Some(dn) => {
                let named = Arc::make_mut(&mut after[at].values).iter_mut().filter(|value| names(value));
                named.for_each(|value| *value = dn.as_bytes().into());
            }
            None => Arc::make_mut(&mut after[at].values).retain(|value| !names(value)),
        }
        if after[at].values.is_empty() {
            after.remove(at);
        }
        let has: Vec<_> = after.iter().map(|found| &found.kind).collect();
        if schema.check(&classes_of(&after), &has, Some(std::slice::from_ref(&kind.key))).is_ok() {
            self.after = after;
        }
    }
}
