//! Schema extension at run time: values are added to `cn=subschema`.

use std::sync::Arc;

use tocsin_store::entries::DiskCheck;

use super::prepare::{Modification, ModifyType};
use crate::{
    access::AuthzId,
    directory::{Directory, identifier_of},
    ldap_error::{Code, LdapError},
    schema::{Description, Kind, Schema},
};

impl Directory {
    /// Adds definitions to the schema. [`Directory::build_indexes`] builds the indexes that they require.
    pub(super) async fn extend_schema(
        &self,
        requester: &AuthzId,
        modifications: Vec<Modification>,
    ) -> Result<(), LdapError> {
        if !requester.manages {
            return Err(LdapError::new(Code::InsufficientAccessRights, "only operators may extend the schema"));
        }
        let mut texts = Vec::new();
        for modification in &modifications {
            let kinds = [Kind::Attribute, Kind::Class];
            let kind = kinds.into_iter().find(|kind| kind.attribute().eq_ignore_ascii_case(&modification.attribute));
            let (Some(kind), ModifyType::Add) = (kind, modification.act) else {
                let what =
                    "definitions can only be added, to attributeTypes and objectClasses; existing ones may be in use";
                return Err(LdapError::new(Code::UnwillingToPerform, what));
            };
            for value in &modification.values {
                let text = String::from_utf8(value.clone())
                    .map_err(|_| LdapError::new(Code::InvalidAttributeSyntax, "a definition must be UTF-8 text"))?;
                Description::check_new(&text)
                    .map_err(|why| LdapError::new(Code::InvalidAttributeSyntax, format!("the definition {why}")))?;
                texts.push((kind, text));
            }
        }
        let inner = self.inner.clone();
        self.change(DiskCheck::Required, move |tree| {
            // The current schema: an earlier request may have extended it.
            let mut schema = Schema::clone(&inner.schema.load());
            let mut made = Vec::new();
            for (kind, text) in texts {
                let oid = schema.define(kind, &text)?;
                made.push((identifier_of(kind, &oid), text));
            }
            for (identifier, text) in &made {
                tree.put_definition(identifier, Some(text))?;
            }
            // Within the transaction, so that later commits use the new schema for their keys.
            inner.schema.store(Arc::new(schema));
            Ok(())
        })
        .await?;
        self.inner.cache.clear(self.inner.cache.next_generation());
        let directory = self.clone();
        tokio::spawn(async move {
            if let Err(error) = directory.build_indexes().await {
                tracing::error!(%error, "an index of the directory could not be built");
            }
        });
        Ok(())
    }
}
