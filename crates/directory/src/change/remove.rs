//! An entry goes.

use tocsin_store::entries::Room;

use super::{Images, Terms, needs};
use crate::{
    access::Asker,
    directory::{Directory, parse},
    entry,
    refusal::{Code, Refusal},
};

impl Directory {
    /// Removes an entry; a subscriber with its devices and subscriptions. Groups and roles that name it let it go. Durable when the call returns.
    ///
    /// # Errors
    /// There is none; there are entries below it; whoever asks may not.
    pub async fn remove(&self, asker: &Asker, dn: &str, terms: Terms) -> Result<Images, Refusal> {
        let parsed = parse(dn)?;
        let (inner, asker, now, schema) = (self.inner.clone(), asker.clone(), (self.clock)(), self.schema());
        self.change(Room::NotNeeded, move |tree| {
            let (old, above) = inner.visible(tree.branches(), &asker, &parsed)?;
            let number = old.number();
            let shown = entry::view(&old, above.as_deref(), &schema, &inner.shape);
            needs(&inner, &asker, &shown, &[])?;
            let images = terms.hold(&inner, &asker, &shown, &schema)?;
            if above.is_none() || inner.is_people(number) {
                return Err(Refusal::new(Code::UnwillingToPerform, "this entry is needed by the directory itself"));
            }
            if !tree.branches().page(Some(number), false, None, 1)?.is_empty() {
                return Err(Refusal::new(Code::NotAllowedOnNonLeaf, "there are entries below it; remove them first"));
            }
            inner.can_follow(tree.branches())?;
            tree.remove(number, now)?;
            Ok(images)
        })
        .await
    }
}
