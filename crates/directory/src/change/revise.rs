//! What an entry has and its name change together, in one commit: for faces that speak of things by their numbers and give
//! them whole.

use tocsin_store::entries::{EntryNumber, Room};

use super::{Images, Terms, add_rdn, members::Target, modify::Modification};
use crate::{
    access::Asker,
    directory::{Directory, Inner, parse},
    dn::Rdn,
    entry::{Attribute, Entry, Place},
    refusal::{Code, Refusal},
    schema::Schema,
};

/// What an entry is to be, as far as it changes.
#[derive(Debug, Clone, Default)]
pub struct Revision {
    /// What its attributes become.
    pub modifications: Vec<Modification>,
    /// The relative name that it is to have, such as `uid=vera`; `None`: the present one.
    pub rdn: Option<String>,
}

impl Directory {
    /// Changes an entry and its name. Durable when the call returns.
    ///
    /// # Errors
    /// As for [`Directory::modify`] and [`Directory::rename`].
    pub async fn revise(
        &self,
        asker: &Asker,
        number: EntryNumber,
        revision: Revision,
        terms: Terms,
    ) -> Result<Images, Refusal> {
        let missing = || Refusal::new(Code::NoSuchObject, "there is no such entry");
        if revision.rdn.is_none() {
            let numbered = || Ok(Target::Numbered(number));
            let changed = self.change_members(asker, numbered, &revision.modifications, &terms).await?;
            if let Some(images) = changed {
                return Ok(images);
            }
        }
        let shown = self.numbered(vec![number]).await?.pop().ok_or_else(missing)?;
        let rdn = revision.rdn.as_deref().map(relative).transpose()?;
        let task = self.task(asker, &shown.entry.dn, revision.modifications, rdn).await?;
        let (inner, asker, now) = (self.inner.clone(), asker.clone(), (self.clock)());
        self.change(Room::Needed, move |tree| {
            let node = tree.branches().node(number)?.ok_or_else(missing)?;
            let above = inner.above(tree.branches(), &node)?;
            task.run(&inner, &asker, tree, (&node, above.as_deref()), &terms, now)
        })
        .await
    }
}

fn relative(text: &str) -> Result<Rdn, Refusal> {
    let mut parsed = parse(text)?.0;
    match (parsed.pop(), parsed.is_empty()) {
        (Some(rdn), true) => Ok(rdn),
        _ => Err(Refusal::new(Code::InvalidDnSyntax, "the new name has exactly one part")),
    }
}

impl Inner {
    /// Holds a new relative name against what is there, and puts its values among the attributes.
    pub(super) fn renamed(
        &self,
        branches: &dyn tocsin_store::entries::Branches,
        shown: &Entry,
        above: &Place,
        rdn: &Rdn,
        attributes: &mut Vec<Attribute>,
        schema: &Schema,
    ) -> Result<(), Refusal> {
        if self.is_people(shown.number) {
            return Err(Refusal::new(Code::UnwillingToPerform, "subscribers stand here; its name is fixed"));
        }
        match self.child(branches, above, rdn, schema)? {
            Some(other) if other.number() != shown.number => {
                return Err(Refusal::new(Code::EntryAlreadyExists, "there is such an entry already"));
            }
            _ => {}
        }
        self.can_follow(branches)?;
        add_rdn(attributes, rdn, schema)
    }
}
