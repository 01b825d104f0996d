//! Groups: entries that hold others by their names, and groups of groups.

use std::collections::BTreeSet;

use tocsin_store::entries::Branches;

use crate::{
    directory::{Directory, Inner},
    entry, plan,
    refusal::{Code, Refusal},
};

/// Most groups that one asker is in.
const GROUPS_MAX: usize = 10_000;
/// The attributes by which groups hold their members.
const MEMBERS: &[&str] = &["member", "uniquemember"];

impl Directory {
    /// The names in normal form of the groups that an entry is in, also of groups in groups; none if no rule asks for them.
    ///
    /// # Errors
    /// Who is in which group cannot be told yet, since the index is being built; there are too many.
    pub(crate) async fn groups_of(&self, key: &str) -> Result<Vec<String>, Refusal> {
        if !self.inner.access.names_groups() {
            return Ok(Vec::new());
        }
        let (inner, key) = (self.inner.clone(), key.to_owned());
        self.look(move |branches| inner.groups_above(branches, key)).await
    }
}

impl Inner {
    fn groups_above(&self, branches: &dyn Branches, key: String) -> Result<Vec<String>, Refusal> {
        let ready = self.ready.load();
        if !MEMBERS.iter().all(|index| ready.contains(*index)) {
            // Without its groups an asker would be refused some things, and allowed others that a rule denies to a group.
            let what = "the index of groups is being built; try again in a moment";
            return Err(Refusal::new(Code::Busy, what));
        }
        let (mut known, mut open) = (BTreeSet::new(), vec![key]);
        while let Some(member) = open.pop() {
            for group in self.groups_with(branches, &member)? {
                // A group in itself, by whatever way, is looked at once.
                if known.insert(group.clone()) {
                    open.push(group);
                }
            }
            if known.len() > GROUPS_MAX {
                return Err(too_many());
            }
        }
        Ok(known.into_iter().collect())
    }

    /// The names of the groups that hold exactly this name.
    fn groups_with(&self, branches: &dyn Branches, member: &str) -> Result<Vec<String>, Refusal> {
        let schema = self.schema.load();
        let mut groups = Vec::new();
        for index in MEMBERS {
            let kind = schema.attribute(index)?;
            for number in plan::equal(branches, index, member.as_bytes())?.ok_or_else(too_many)? {
                let Some(node) = branches.node(number)? else { continue };
                let above = self.above(branches, &node)?;
                let group = entry::view(&node, above.as_deref(), &schema, &self.shape);
                let normal = |value: &[u8]| kind.equality.and_then(|rule| rule.normal(value, &schema));
                // Long names share a key.
                if group.values(kind).any(|value| normal(value).as_deref() == Some(member.as_bytes())) {
                    groups.push(group.key);
                }
            }
        }
        Ok(groups)
    }
}

fn too_many() -> Refusal {
    Refusal::new(Code::AdminLimitExceeded, format!("an entry is in at most {GROUPS_MAX} groups that rules ask for"))
}
