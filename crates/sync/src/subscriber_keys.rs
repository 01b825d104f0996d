//! Partition keys of a subscriber, by its properties and segments.

use std::collections::{BTreeMap, BTreeSet};

use tocsin_model::{
    collection::{Identity, Share},
    id::Name,
    ldap::{Entry, LdapFilter},
    problem::{Code, Problem},
    subscriber::Subscriber,
};
use tocsin_store::error::StoreError;

use crate::{
    catalogue::Collections,
    error::SyncError,
    partition::{KEYS_MAX, combinations, key_text},
    replicas::Replicas,
};

/// Subscriber properties of a share, and its segment.
type ShareCriterion = (Vec<Identity>, Option<Name>);

impl Replicas {
    /// Keys of a subscriber in an application.
    pub(crate) async fn keys_of_subscriber(
        &self,
        application: &Name,
        collections: &Collections,
        subscriber: &Subscriber,
    ) -> Result<Vec<String>, SyncError> {
        let mut asked: BTreeSet<ShareCriterion> = BTreeSet::new();
        for ready in collections.iter() {
            for share in &ready.definition.partition {
                if let Share::Identity { fields, audience, .. } = share {
                    let mut identities: Vec<Identity> = fields.values().cloned().collect();
                    identities.sort();
                    asked.insert((identities, audience.clone()));
                }
            }
        }
        let mut members: BTreeMap<Name, bool> = BTreeMap::new();
        let mut keys = Vec::new();
        for (identities, audience) in asked {
            if let Some(segment) = &audience {
                if !members.contains_key(segment) {
                    let is_member = self.is_member(segment, subscriber).await?;
                    members.insert(segment.clone(), is_member);
                }
                if !members[segment] {
                    continue;
                }
            }
            for values in combinations(&identities, subscriber) {
                keys.push(key_text(application, &values, audience.as_ref()));
                if keys.len() > KEYS_MAX {
                    return Err(SyncError::from(
                        Problem::new(
                            Code::TooMany,
                            "attributes",
                            format!(
                                "the partition properties of `{}` have more than {KEYS_MAX} combinations of values",
                                subscriber.id
                            ),
                        )
                        .param("limit", KEYS_MAX),
                    ));
                }
            }
        }
        Ok(keys)
    }

    pub(crate) async fn is_member(&self, segment: &Name, subscriber: &Subscriber) -> Result<bool, SyncError> {
        let Some(stored) = self.segment_store.segment(segment).await? else { return Ok(false) };
        // A device without keys would drop its rows, so an unreadable filter is an error.
        let filter = LdapFilter::parse(&stored.filter)
            .map_err(|_| StoreError::Damaged(format!("the filter of the segment `{segment}`")))?;
        Ok(filter.matches(&Entry::from(subscriber)))
    }
}
