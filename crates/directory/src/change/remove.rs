//! Delete operation (RFC 4511, 4.8).

use tocsin_store::entries::DiskCheck;

use super::{
    preconditions::{Preconditions, ReadEntries},
    rights::check_access,
};
use crate::{
    access::AuthzId,
    directory::Directory,
    entry,
    ldap_error::{Code, LdapError},
    tree::parse,
};

impl Directory {
    /// Removes an entry; a subscriber with its devices and subscriptions. It also leaves its groups and roles. Durable
    /// on return.
    ///
    /// # Errors
    /// There is no such entry; it has children; the requester lacks access.
    pub async fn remove(&self, requester: &AuthzId, dn: &str, terms: Preconditions) -> Result<ReadEntries, LdapError> {
        let parsed = parse(dn)?;
        let (inner, requester, now, schema) = (self.inner.clone(), requester.clone(), (self.clock)(), self.schema());
        self.change_or_check(&terms.clone(), DiskCheck::Skipped, move |tree| {
            let (old, above) = inner.visible(tree.reader(), &requester, &parsed)?;
            let number = old.number();
            let shown = entry::view(&old, above.as_deref(), &schema, &inner.shape);
            check_access(&inner, &requester, &shown, &[])?;
            let images = terms.check(&inner, &requester, &shown, &schema)?;
            if above.is_none() || inner.is_people(number) {
                return Err(LdapError::new(
                    Code::UnwillingToPerform,
                    "this entry is required by the directory and cannot be removed",
                ));
            }
            if !tree.reader().page(Some(number), false, None, 1)?.is_empty() {
                return Err(LdapError::new(Code::NotAllowedOnNonLeaf, "there are entries below it; remove them first"));
            }
            inner.require_reference_lookup(tree.reader())?;
            tree.remove(number, now)?;
            Ok(images)
        })
        .await
    }
}
