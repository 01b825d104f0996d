//! Built-in collections: profile, devices, subscriptions and inbox of a subscriber, as rows.
//!
//! The records and the inbox stay the source. When a session begins and after edits, the rows of the subscriber are
//! updated from them in one transaction; so they have versions, keys and removals like all rows.

use std::{
    collections::{HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use serde_json::{Map, Value as Json, json};
use tocsin_model::{
    collection::{BuiltIn, OWNER},
    id::Name,
    inbox::{InboxItemFilter, Item},
    subscriber::Subscriber,
};
use tocsin_store::{
    collections::{CollectionNumber, ReplicaDevice},
    error::StoreError,
    inbox::{FeedFilter, FeedReader},
    records::SubscriptionFilter,
    sqlite::collections::RowTransaction,
};

use crate::{
    built_in::{SHARDS, row_of, token_of},
    catalogue::Collections,
    error::SyncError,
    partition,
    replicas::Replicas,
    rows::{RowChange, change_one},
};

/// Inbox items on a device, the newest.
pub const ITEMS_MAX: usize = 500;
/// Maximum subscriptions of a subscriber on a device.
pub const SUBSCRIPTIONS_MAX: usize = 1_000;

/// Rows of a collection, by id.
type Rows = Vec<(String, Map<String, Json>)>;

impl Replicas {
    /// Updates the built-in rows of a device's subscriber from the records and the inbox.
    pub(crate) async fn follow_records(
        &self,
        device: &ReplicaDevice,
        collections: &Arc<Collections>,
    ) -> Result<(), SyncError> {
        let built_in: Vec<(CollectionNumber, BuiltIn)> =
            collections.iter().filter_map(|ready| Some((ready.number, ready.definition.built_in?))).collect();
        if built_in.is_empty() {
            return Ok(());
        }
        let shard = (device.subscriber_number.0 % SHARDS) as usize;
        let mut followed = self.built_ins.followed[shard].lock().await;
        let Some(subscriber) = self.subscriber_store.subscriber(&device.subscriber).await? else { return Ok(()) };
        let mut requested = Vec::with_capacity(built_in.len());
        for (number, built_in) in built_in {
            requested.push((number, self.source_rows(&device.application, collections, built_in, &subscriber).await?));
        }
        let (key, print) = ((device.application.clone(), subscriber.number), fingerprint(&requested));
        if followed.get(&key) == Some(&print) {
            return Ok(());
        }
        let (application, collections) = (device.application.clone(), collections.clone());
        let job = move |ledger: &mut RowTransaction<'_>| {
            replace_rows(ledger, &application, &collections, subscriber.id.as_str(), requested)
        };
        self.store.write(self.now(), job).await?;
        followed.insert(key, print);
        Ok(())
    }

    /// The rows of a built-in collection for a subscriber.
    async fn source_rows(
        &self,
        application: &Name,
        collections: &Collections,
        what: BuiltIn,
        subscriber: &Subscriber,
    ) -> Result<Rows, SyncError> {
        let owner = token_of(&subscriber.id);
        let rows: Vec<(String, Json)> = match what {
            BuiltIn::Profile => {
                let profile = &subscriber.profile;
                let row = json!({
                    "enabled": profile.enabled, "locale": profile.locale, "time_zone": profile.time_zone,
                    "attributes": profile.attributes,
                });
                vec![(owner, row)]
            }
            BuiltIn::Devices => {
                let row = |(name, device): (&Name, &tocsin_model::subscriber::Device)| {
                    let row = json!({
                        "name": name, "channel": device.channel, "address": device.address, "state": device.state,
                    });
                    (format!("{owner}.{name}"), row)
                };
                subscriber.devices.iter().map(row).collect()
            }
            BuiltIn::Subscriptions => self.subscriptions_of(application, collections, subscriber).await?,
            BuiltIn::Inbox => {
                let reader = self.reader(subscriber).await?;
                let filter =
                    FeedFilter { application: Some(application.clone()), ..FeedFilter::of_items(InboxItemFilter::All) };
                let items = self.built_ins.inbox.feed(&reader, &filter, None, ITEMS_MAX, self.now()).await?;
                let locale = subscriber.profile.locale.as_deref();
                items.iter().map(|item| (row_of(item.id, &subscriber.id), shown(item, locale))).collect()
            }
        };
        let owned = rows.into_iter().map(|(id, row)| {
            let Json::Object(mut row) = row else { unreachable!("each row is an object") };
            row.insert(OWNER.to_owned(), subscriber.id.as_str().into());
            (id, row)
        });
        Ok(owned.collect())
    }

    async fn subscriptions_of(
        &self,
        application: &Name,
        collections: &Collections,
        subscriber: &Subscriber,
    ) -> Result<Vec<(String, Json)>, SyncError> {
        let (application, id) = (Some(application.clone()), Some(subscriber.id.clone()));
        let filter = SubscriptionFilter { application, subscriber: id, ..SubscriptionFilter::default() };
        let found = self.subscription_store.subscriptions(&filter, None, SUBSCRIPTIONS_MAX).await?;
        let rows = found.into_iter().map(|subscription| {
            let fields = collections.class_fields(&subscription.class);
            let shown = fields.and_then(|fields| fields.stored_as_json(&subscription.values).ok());
            let values = shown.as_deref().unwrap_or(&subscription.values);
            let values: Json = serde_json::from_str(values).unwrap_or_default();
            let row = json!({
                "class": subscription.class, "key": subscription.key, "device": subscription.device,
                "enabled": subscription.is_active_or_snoozed(), "values": values,
                "filter": subscription.terms.filter.as_ref().map(ToString::to_string),
                "schedule": subscription.terms.schedule,
                "snoozed_until": subscription.terms.snoozed_until.map(|until| until.to_string()),
            });
            (subscription.id.to_string(), row)
        });
        Ok(rows.collect())
    }

    /// Feed reader of a subscriber, with the broadcasts addressed to it.
    pub(crate) async fn reader(&self, subscriber: &Subscriber) -> Result<FeedReader, SyncError> {
        let (now, mut broadcasts, mut members) = (self.now(), Vec::new(), HashMap::new());
        for head in self.built_ins.inbox.broadcast_heads().iter().filter(|head| head.expires_at > now) {
            let belongs = match &head.audience {
                None => true,
                Some(segment) => match members.get(segment) {
                    Some(belongs) => *belongs,
                    None => {
                        let belongs = self.is_member(segment, subscriber).await?;
                        members.insert(segment.clone(), belongs);
                        belongs
                    }
                },
            };
            if belongs {
                broadcasts.push(head.id);
            }
        }
        Ok(FeedReader { subscriber: subscriber.number, broadcasts })
    }
}

fn shown(item: &Item, locale: Option<&str>) -> Json {
    let (content, words) = (&item.content, item.content.wording(locale));
    json!({
        "class": content.class, "channel": content.channel, "subject": words.subject, "text": words.text,
        "data": words.data, "link": words.link, "actions": words.actions,
        "created_at": item.created_at.to_string(), "expires_at": item.expires_at.to_string(),
        "read": item.read_at.is_some(), "archived": item.archived_at.is_some(),
    })
}

fn fingerprint(requested: &[(CollectionNumber, Rows)]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (number, rows) in requested {
        (number, rows.len()).hash(&mut hasher);
        for (id, row) in rows {
            (id, Json::Object(row.clone()).to_string()).hash(&mut hasher);
        }
    }
    hasher.finish()
}

/// Replaces the rows of a subscriber.
fn replace_rows(
    ledger: &mut RowTransaction<'_>,
    application: &Name,
    collections: &Collections,
    subscriber: &str,
    requested: Vec<(CollectionNumber, Rows)>,
) -> Result<(), StoreError> {
    for (number, rows) in requested {
        let Some(ready) = collections.of_number(number) else { continue };
        let fields = &ready.definition.fields;
        let owner = fields.row([(OWNER, subscriber.into())]).expect("nothing else is required");
        let keys = partition::own_keys(application, &ready.definition.partition, fields, &owner);
        let key = ledger.key(keys.first().expect("each row has an owner"))?;
        let stays: HashSet<&str> = rows.iter().map(|(id, _)| id.as_str()).collect();
        for gone in ledger.rows_of_key(number, key)?.into_iter().filter(|row| !stays.contains(&*row.id)) {
            log_rejected_row(
                &gone.id,
                change_one(ledger, application, collections, ready, &gone.id, RowChange::Remove)?,
            );
        }
        for (id, row) in &rows {
            log_rejected_row(id, change_one(ledger, application, collections, ready, id, RowChange::Put(row.clone()))?);
        }
    }
    Ok(())
}

/// Logs a row that does not fit its collection and is left out.
fn log_rejected_row(id: &str, changed: Result<(), SyncError>) {
    if let Err(error) = changed {
        tracing::warn!(row = id, %error, "a built-in row cannot be stored");
    }
}
