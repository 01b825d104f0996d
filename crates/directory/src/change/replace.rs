//! Replacement of all user attributes of an entry, for protocols that write an entry as a whole.

use std::sync::Arc;

use super::{
    preconditions::{Preconditions, ReadEntries},
    prepare::{Modification, ModifyType},
    values::{RawAttribute, changeable, normal},
};
use crate::{
    access::AuthzId,
    directory::Directory,
    dn::Rdn,
    entry::Entry,
    ldap_error::{Code, LdapError},
    schema::{AttributeType, PASSWORD, Schema},
    tree::parse,
};

/// Attempts while other requests change the entry.
const TRIES: usize = 5;

impl Directory {
    /// Replaces the user attributes of an entry: attributes that are not given are removed, except the password. The
    /// values of the relative name are added if they are missing. Durable on return.
    ///
    /// # Errors
    /// As for [`Directory::modify`].
    pub async fn replace(
        &self,
        requester: &AuthzId,
        dn: &str,
        attributes: Vec<RawAttribute>,
        terms: Preconditions,
    ) -> Result<ReadEntries, LdapError> {
        let mut tries = 0;
        loop {
            let shown = self.find_for(requester, dn).await?;
            let modifications = replacement(&shown.entry, attributes.clone(), &self.schema())?;
            let expected = Some(terms.revision.unwrap_or(shown.entry.revision));
            let done = self.modify(requester, dn, modifications, Preconditions { revision: expected, ..terms.clone() });
            match done.await {
                Err(refusal) if refusal.code == Code::AssertionFailed && terms.revision.is_none() && tries < TRIES => {
                    tries += 1;
                }
                done => return done,
            }
        }
    }
}

/// The modifications that turn the user attributes of an entry into these. Unchanged attributes are not among them.
fn replacement(entry: &Entry, given: Vec<RawAttribute>, schema: &Schema) -> Result<Vec<Modification>, LdapError> {
    let mut wanted: Vec<(Arc<AttributeType>, Vec<Vec<u8>>)> = Vec::with_capacity(given.len());
    for (name, values) in given {
        // Operational attributes that a client read and returns unchanged are not changed.
        let known = schema.attribute(&name)?;
        let is_same = |kind: &AttributeType| {
            entry.attribute(&kind.key).is_some_and(|found| have_same_values(&found.values, &values))
        };
        let kind = if is_same(known) { known.clone() } else { changeable(&name, schema)? };
        if wanted.iter().any(|(other, _)| other.key == kind.key) {
            let what = format!("{name}: attribute provided more than once");
            return Err(LdapError::new(Code::AttributeOrValueExists, what));
        }
        wanted.push((kind, values));
    }
    keep_name(&mut wanted, &parse(&entry.dn)?.0[0], schema)?;
    let goes = |kind: &AttributeType| {
        kind.changeable && &*kind.key != PASSWORD && !wanted.iter().any(|(other, _)| other.key == kind.key)
    };
    let removed = entry.attributes[..entry.shown].iter().filter(|found| goes(&found.kind));
    let replace = |kind: &AttributeType, values| Modification {
        act: ModifyType::Replace,
        attribute: kind.name().to_owned(),
        values,
    };
    let mut modifications: Vec<_> = removed.map(|found| replace(&found.kind, Vec::new())).collect();
    for (kind, values) in wanted {
        let present = entry.attribute(&kind.key);
        let is_same = present.is_some_and(|found| have_same_values(&found.values, &values));
        if !is_same && (present.is_some() || !values.is_empty()) {
            modifications.push(replace(&kind, values));
        }
    }
    Ok(modifications)
}

/// Adds the values of the relative name that are missing.
fn keep_name(
    wanted: &mut Vec<(Arc<AttributeType>, Vec<Vec<u8>>)>,
    rdn: &Rdn,
    schema: &Schema,
) -> Result<(), LdapError> {
    for (name, value) in &rdn.assertions {
        let kind = schema.attribute(name)?;
        let requested = normal(kind, value, schema);
        match wanted.iter_mut().find(|(other, _)| other.key == kind.key) {
            Some((_, values)) if values.iter().any(|known| normal(kind, known, schema) == requested) => {}
            Some((_, values)) => values.push(value.clone()),
            None => wanted.push((kind.clone(), vec![value.clone()])),
        }
    }
    Ok(())
}

/// Whether two lists have the same values, in any order. Compared byte by byte, so that a new spelling is a change.
fn have_same_values(present: &[Box<[u8]>], given: &[Vec<u8>]) -> bool {
    let mut present: Vec<&[u8]> = present.iter().map(|value| &**value).collect();
    let mut given: Vec<&[u8]> = given.iter().map(Vec::as_slice).collect();
    present.sort_unstable();
    given.sort_unstable();
    present == given
}
