//! Attributes that a search requests (RFC 4511, 4.5.1.8), and those of them that the requester may read.

use std::sync::Arc;

use crate::{
    access::{AuthzId, Grant, Level},
    directory::Directory,
    entry::{Attribute, Entry, OWN},
    ldap_error::LdapError,
    password::is_password_state,
    schema::{AttributeType, MEMBER_OF, Schema},
};

/// Requested attributes of a search.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    all: bool,
    operational: bool,
    named: Vec<Arc<AttributeType>>,
    types_only: bool,
    /// Whether `memberOf` is requested, which must be computed.
    groups: bool,
    /// Whether password state is requested.
    password: bool,
    /// Whether the remaining lifetime is requested.
    time_left: bool,
}

impl Selection {
    /// Parses an attribute list: `*` or an empty list means all user attributes, `+` all operational ones, `1.1` none.
    /// Unknown names are ignored.
    pub fn read(names: &[String], types_only: bool, schema: &Schema) -> Selection {
        let mut selection = Selection { all: names.is_empty(), types_only, ..Selection::default() };
        for name in names {
            match name.as_str() {
                "*" => selection.all = true,
                "+" => selection.operational = true,
                "1.1" => {}
                name => selection.named.extend(schema.known_or_named(name)),
            }
        }
        selection.groups = schema.attribute(MEMBER_OF).is_ok_and(|kind| selection.wants(kind));
        selection.password = selection.operational || selection.named.iter().any(|kind| is_password_state(kind));
        selection.time_left = schema.attribute("entryTtl").is_ok_and(|kind| selection.wants(kind));
        selection
    }

    /// Whether the selection needs data outside the entry.
    pub fn needs_other_records(&self) -> bool {
        self.groups || self.password || self.time_left
    }

    /// Whether an attribute is requested.
    pub fn wants(&self, kind: &AttributeType) -> bool {
        let generally = if kind.operational { self.operational } else { self.all };
        generally || self.named.iter().any(|named| kind.is(named))
    }

    /// Whether the names of the attributes are requested without their values.
    pub fn types_only(&self) -> bool {
        self.types_only
    }

    /// Whether exactly all user attributes are requested, with values.
    pub fn is_plain(&self) -> bool {
        self.all && !self.operational && self.named.is_empty() && !self.types_only
    }

    /// The requested attributes of an entry that a grant opens. `computed`: those of
    /// [`Directory::computed_attributes`].
    pub fn of(&self, entry: &Entry, computed: Vec<Attribute>, grant: &Grant, schema: &Schema) -> Vec<Attribute> {
        let may = |kind: &AttributeType| self.wants(kind) && grant.level(Some(kind)) >= Level::Read;
        let stored = entry.attributes.iter().filter(|found| may(&found.kind)).cloned();
        let own = OWN.iter().filter_map(|key| schema.attribute(key).ok()).filter(|kind| may(kind));
        let own = own.filter_map(|kind| Some(Attribute::of(kind, entry.own(&kind.key, schema)?)));
        stored.chain(own).chain(computed.into_iter().filter(|found| may(&found.kind))).collect()
    }
}

impl Directory {
    /// Computed attributes of an entry that a selection requests: its groups, password state and remaining lifetime.
    ///
    /// # Errors
    /// The store fails, or the index of groups is still being built.
    pub async fn computed_attributes(
        &self,
        requester: &AuthzId,
        entry: &Entry,
        selection: &Selection,
    ) -> Result<Vec<Attribute>, LdapError> {
        let mut computed = Vec::new();
        if selection.groups {
            computed.extend(self.member_of(requester, entry).await?);
        }
        if selection.password {
            computed.extend(self.password_state(entry.number).await?);
        }
        if selection.time_left {
            computed.extend(self.time_left(entry));
        }
        Ok(computed)
    }
}
