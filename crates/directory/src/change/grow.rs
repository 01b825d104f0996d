//! The schema gets more, while it is in use: values are added to `cn=subschema`.

use std::sync::Arc;

use tocsin_store::entries::Room;

use super::modify::{Act, Modification};
use crate::{
    access::Asker,
    directory::{Directory, identifier_of},
    refusal::{Code, Refusal},
    schema::{Kind, Schema},
};

impl Directory {
    /// Adds definitions to the schema. Indexes that they ask for are built by [`Directory::build_indexes`].
    pub(super) async fn grow(&self, asker: &Asker, modifications: Vec<Modification>) -> Result<(), Refusal> {
        if !asker.manages {
            return Err(Refusal::new(Code::InsufficientAccessRights, "only operators add to the schema"));
        }
        let mut texts = Vec::new();
        for modification in &modifications {
            let kinds = [Kind::Attribute, Kind::Class];
            let kind = kinds.into_iter().find(|kind| kind.attribute().eq_ignore_ascii_case(&modification.attribute));
            let (Some(kind), Act::Add) = (kind, modification.act) else {
                let what = "definitions are only added, to attributeTypes and objectClasses; entries may use those that are there";
                return Err(Refusal::new(Code::UnwillingToPerform, what));
            };
            for value in &modification.values {
                let text = String::from_utf8(value.clone())
                    .map_err(|_| Refusal::new(Code::InvalidAttributeSyntax, "a definition is text"))?;
                texts.push((kind, text));
            }
        }
        let inner = self.inner.clone();
        self.change(Room::Needed, move |tree| {
            // As it is now: whoever came before may have added to it.
            let mut schema = Schema::clone(&inner.schema.load());
            let mut made = Vec::new();
            for (kind, text) in texts {
                let oid = schema.define(kind, &text)?;
                made.push((identifier_of(kind, &oid), text));
            }
            for (identifier, text) in &made {
                tree.put_definition(identifier, Some(text))?;
            }
            // Within the commit, so that no key is written by the old schema after it.
            inner.schema.store(Arc::new(schema));
            Ok(())
        })
        .await?;
        self.inner.kept.forget_all(self.inner.kept.next_moment());
        let directory = self.clone();
        tokio::spawn(async move {
            if let Err(error) = directory.build_indexes().await {
                tracing::error!(%error, "an index of the directory could not be built");
            }
        });
        Ok(())
    }
}
