//! Optimistic add. The caller computes the stored form of a new subscriber; the store's writer only checks that the
//! name and the id are free.

use tocsin_model::{id::SubscriberNumber, subscriber::Subscriber};
use tocsin_store::{
    entries::{EntryNode, Placement, PreparedAdd},
    records::NewSubscriber,
};

use super::{
    add::ValidatedEntry, dynamic_entries::ENDS, preconditions::Preconditions, subscriber_id::requested_ids,
    values::classes_of,
};
use crate::{
    access::AuthzId,
    attribute_mapping::subscriber_of,
    directory::Directory,
    entry::{EntryPosition, view},
    entry_cache::{CachedEntry, PendingEntry},
    ldap_error::LdapError,
    plan,
    tree::Inner,
};

impl Directory {
    /// Adds an entry if an insert suffices. Otherwise returns false and changes nothing; the caller then repeats the
    /// add in the writer thread, which reports any error.
    pub(super) async fn add_prepared(
        &self,
        requester: &AuthzId,
        new: &ValidatedEntry,
        terms: &Preconditions,
    ) -> Result<bool, LdapError> {
        let above = new.dn.0[1..].iter().map(|rdn| rdn.text.as_str()).collect::<Vec<_>>().join(",");
        let shown = match self.cached_entry(&above) {
            Some(shown) => shown,
            None => match self.find(&above).await {
                Ok(shown) => shown,
                Err(_) => return Ok(false),
            },
        };
        match self.inner.prepare_insert(requester, new, terms, &shown) {
            Some(prepared) => Ok(self.entries.add_prepared(prepared).await?),
            None => Ok(false),
        }
    }
}

impl Inner {
    fn prepare_insert(
        &self,
        requester: &AuthzId,
        new: &ValidatedEntry,
        terms: &Preconditions,
        above: &CachedEntry,
    ) -> Option<PreparedAdd> {
        let ValidatedEntry { dn, attributes, credential, schema, now } = new;
        let (above, rdn, classes) = (&above.entry, &dn.0[0], classes_of(attributes));
        let is_plain = above.number.subscriber().is_none()
            && !self.is_people(above.number)
            && above.attribute(ENDS).is_none()
            && schema.is_subscriber(&classes)
            && !schema.is_dynamic(&classes)
            && terms.unique.is_empty()
            && !terms.after;
        // Access rights of non-operators depend on more than the parent.
        if !is_plain || !requester.manages {
            return None;
        }
        let placement = Placement {
            parent: above.number,
            rdn: rdn.text.as_str().into(),
            rdn_key: schema.normal_rdn(rdn).into(),
            classes: classes.join(" ").into(),
        };
        let id = requested_ids(attributes, rdn).next()?;
        let new = subscriber_of(id, None, attributes, Some(&placement), &self.shape).ok()?;
        let NewSubscriber { id, profile, devices, preferences, .. } = new;
        let subscriber = Subscriber {
            // Assigned by the commit.
            number: SubscriberNumber(0),
            id: id.clone(),
            profile,
            devices: devices.iter().flatten().cloned().collect(),
            preferences: preferences.clone().unwrap_or_default(),
            created_at: *now,
            updated_at: *now,
            revision: 1,
        };
        let node = EntryNode::Subscriber(Box::new(subscriber), Some(placement));
        let place =
            EntryPosition { number: above.number, parent: above.parent, dn: above.dn.clone(), key: above.key.clone() };
        let entry = view(&node, Some(&place), schema, &self.shape);
        let keys = plan::keys(&entry.attributes, schema);
        let built = PendingEntry::of(CachedEntry::stored(entry, &node), schema.clone());
        let EntryNode::Subscriber(subscriber, Some(placement)) = node else { return None };
        Some(PreparedAdd {
            new: NewSubscriber { kept: Default::default(), id, profile: subscriber.profile, devices, preferences },
            placement,
            credential: credential.as_ref().map(|credential| credential.to_text()),
            keys,
            now: *now,
            built,
        })
    }
}
