//! Built-in collections: profile, devices, subscriptions and inbox of a subscriber, as rows.
//!
//! The records and the inbox stay the source. When a session begins and after edits, the rows of the subscriber are
//! updated from them in one transaction; so they have versions, keys and removals like all rows. An edit of such a row
//! becomes a change of its source before the edit is acknowledged. The change is idempotent.

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, OnceLock},
};

use async_trait::async_trait;
use ring::digest::{SHA256, digest};
use serde_json::{Map, Value as Json, json};
use tocsin_model::{
    collection::{BuiltIn, OWNER},
    id::{Name, SubscriberId, SubscriberNumber, SubscriptionId},
    inbox::{InboxItemFilter, Item, ItemId, Mark},
    problem::{Code, Problem},
    replica::{Edit, SentEdit},
    subscriber::{Subscriber, check_profile},
};
use tocsin_store::{
    collections::{CollectionNumber, ReplicaDevice},
    error::StoreError,
    inbox::{FeedFilter, FeedReader, Inbox},
    records::{NewSubscriber, Precondition, SubscriptionFilter},
    sqlite::collections::RowTransaction,
};

use crate::{
    Replicas, SyncError,
    catalogue::{Collections, Ready},
    partition,
    reconcile::{EditOutcome, refused},
    rows::{RowChange, change_one},
    sessions::usable,
};

/// Inbox items on a device, the newest.
pub const ITEMS_MAX: usize = 500;
/// Maximum subscriptions of a subscriber on a device.
pub const SUBSCRIPTIONS_MAX: usize = 1_000;
/// Attempts to change a profile under concurrent changes (optimistic concurrency).
const TRIES: usize = 8;
const SHARDS: u64 = 256;

/// Hashes of the last states written to the rows. The rows of a subscriber are updated under the lock of its shard, so
/// an older state never overwrites a newer one.
pub(crate) struct BuiltIns {
    pub(crate) inbox: Arc<dyn Inbox>,
    editor: OnceLock<Arc<dyn SubscriberEditor>>,
    followed: Vec<tokio::sync::Mutex<HashMap<(Name, SubscriberNumber), u64>>>,
}

/// Change of a subscriber through an edit of a built-in row; `null` clears a field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OwnChange<'a> {
    /// Sets fields of a device, by its name; creates it if missing.
    PutDevice(&'a str, &'a Map<String, Json>),
    /// Removes a device.
    RemoveDevice(&'a str),
    /// Adds a subscription; replaces one with the same key, if the edit names no other.
    AddSubscription(&'a str, &'a Map<String, Json>),
    /// Sets fields of a subscription.
    ChangeSubscription(SubscriptionId, &'a Map<String, Json>),
    /// Removes a subscription.
    RemoveSubscription(SubscriptionId),
}

/// Result of such a change.
#[derive(Debug, Clone, PartialEq)]
pub enum OwnChangeResult {
    /// The change is done, now or earlier.
    Done,
    /// The subscriber has no such item.
    NotFound,
    /// The change is invalid.
    Refused(Vec<Problem>),
}

/// Changes a subscriber, with the same checks as for every other client.
#[async_trait]
pub trait SubscriberEditor: Send + Sync {
    /// Makes a change; an error is one of the platform. Idempotent.
    async fn change(
        &self,
        application: &Name,
        subscriber: &SubscriberId,
        change: OwnChange<'_>,
    ) -> Result<OwnChangeResult, StoreError>;
}

/// Rows of a collection, by id.
type Rows = Vec<(String, Map<String, Json>)>;

impl BuiltIns {
    pub(crate) fn new(inbox: Arc<dyn Inbox>) -> BuiltIns {
        BuiltIns {
            inbox,
            editor: OnceLock::new(),
            followed: (0..SHARDS).map(|_| tokio::sync::Mutex::default()).collect(),
        }
    }
}

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
    async fn reader(&self, subscriber: &Subscriber) -> Result<FeedReader, SyncError> {
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

    /// Applies edits of built-in rows to their source. Returns the outcome of each.
    pub(crate) async fn edit_records(
        &self,
        device: &ReplicaDevice,
        collections: &Collections,
        edits: &[SentEdit],
        may_skip: bool,
    ) -> Result<HashMap<(Option<String>, u64), EditOutcome>, SyncError> {
        let mut outcomes = HashMap::new();
        let built_in: HashMap<&Name, &Ready> = usable(device, collections)
            .filter(|ready| ready.definition.built_in.is_some() && ready.definition.direction.is_up())
            .map(|ready| (&ready.name, ready))
            .collect();
        let is_built_in =
            |sent: &SentEdit| matches!(sent, SentEdit::Edit(edit) if built_in.contains_key(&edit.collection));
        if !edits.iter().any(is_built_in) {
            return Ok(outcomes);
        }
        // The last edit received per batch; 0: unknown.
        let mut taken: HashMap<Option<&str>, u64> = HashMap::new();
        for sent in edits {
            let n = sent.n();
            let upto = match taken.entry(sent.batch()) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(match sent.batch() {
                    Some(batch) => self.store.batch_upto(device.number, batch).await?,
                    None => {
                        let uploaded = self.store.device_state(device.number).await?.uploaded;
                        if may_skip { uploaded.max(n.saturating_sub(1)) } else { uploaded }
                    }
                }),
            };
            if n <= *upto {
                continue;
            }
            // A gap rejects the whole block.
            if n != *upto + 1 && (sent.batch().is_none() || *upto > 0) {
                break;
            }
            *upto = n;
            let SentEdit::Edit(edit) = sent else { continue };
            let Some(ready) = built_in.get(&edit.collection) else { continue };
            let outcome = match ready.definition.built_in {
                Some(BuiltIn::Inbox) => self.mark_item(device, edit).await?,
                Some(BuiltIn::Devices) => self.change_device(device, ready, edit).await?,
                Some(BuiltIn::Subscriptions) => self.change_subscription(device, ready, edit).await?,
                _ => self.change_profile(device, edit).await?,
            };
            outcomes.insert((edit.batch.clone(), n), outcome);
        }
        Ok(outcomes)
    }

    /// Marks an inbox item as read or archived, or removes it.
    async fn mark_item(&self, device: &ReplicaDevice, edit: &Edit) -> Result<EditOutcome, SyncError> {
        let truth = |fields: &Map<String, Json>, name: &str| fields.get(name).and_then(Json::as_bool);
        let marks: Vec<Mark> = match &edit.set {
            None => vec![Mark::Deleted],
            Some(set) => {
                let problems =
                    edit_problems(BuiltIn::Inbox, set, |_, value| value.is_boolean(), "must be true or false");
                if !problems.is_empty() {
                    return Ok(EditOutcome::Refused(problems));
                }
                let read = truth(set, "read").map(|read| if read { Mark::Read } else { Mark::Unread });
                let archived = truth(set, "archived").map(|put| if put { Mark::Archived } else { Mark::Unarchived });
                read.into_iter().chain(archived).collect()
            }
        };
        let unseen = || refused(Code::UnknownReference, "id", "does not name a row that is visible to this device");
        let Some(subscriber) = self.subscriber_store.subscriber(&device.subscriber).await? else { return Ok(unseen()) };
        let id = edit.id.split('.').next().and_then(|id| id.parse::<ItemId>().ok());
        let Some(id) = id.filter(|id| row_of(*id, &subscriber.id) == edit.id) else { return Ok(unseen()) };
        let (reader, now) = (self.reader(&subscriber).await?, self.now());
        let found = self.built_ins.inbox.item(&reader, id, now).await?;
        if found.is_none_or(|item| item.content.application != device.application) {
            // The item expired, and so does the row.
            return Ok(if edit.set.is_none() { EditOutcome::Applied } else { unseen() });
        }
        for mark in marks {
            self.built_ins.inbox.mark(&reader, vec![id], mark, now).await?;
        }
        Ok(EditOutcome::Applied)
    }

    async fn change_profile(&self, device: &ReplicaDevice, edit: &Edit) -> Result<EditOutcome, SyncError> {
        let Some(set) = &edit.set else { return Ok(refused(Code::NotApplicable, "", "a profile cannot be removed")) };
        let fits = |name: &str, value: &Json| match name {
            "enabled" => value.is_boolean(),
            _ => value.is_string() || value.is_null(),
        };
        let problems = edit_problems(BuiltIn::Profile, set, fits, "has the wrong type");
        if !problems.is_empty() {
            return Ok(EditOutcome::Refused(problems));
        }
        for _ in 0..TRIES {
            let found = self.subscriber_store.subscriber(&device.subscriber).await?;
            let Some(subscriber) = found.filter(|subscriber| token_of(&subscriber.id) == edit.id) else {
                return Ok(refused(Code::UnknownReference, "id", "does not name a row that is visible to this device"));
            };
            let mut profile = subscriber.profile;
            for (name, value) in set {
                let text = value.as_str().map(str::to_owned);
                match name.as_str() {
                    "enabled" => profile.enabled = value.as_bool().unwrap_or(true),
                    "locale" => profile.locale = text,
                    _ => profile.time_zone = text,
                }
            }
            let problems = check_profile(&profile);
            if !problems.is_empty() {
                return Ok(EditOutcome::Refused(problems));
            }
            let new = NewSubscriber { id: subscriber.id, profile, devices: None, preferences: None };
            match self
                .subscriber_store
                .put_subscriber(new, Precondition::Revision(subscriber.revision), self.now())
                .await
            {
                Err(StoreError::Changed(_)) => continue,
                stored => return Ok(stored.map(|_| EditOutcome::Applied)?),
            }
        }
        Err(SyncError::Store(StoreError::unavailable("the profile is being changed concurrently")))
    }

    /// The id of a device row consists of owner and name. A row created by a client has its own id, and is sent again
    /// under the other.
    async fn change_device(
        &self,
        device: &ReplicaDevice,
        ready: &Ready,
        edit: &Edit,
    ) -> Result<EditOutcome, SyncError> {
        let owner = token_of(&device.subscriber);
        let known = edit.id.split_once('.').filter(|(of, _)| *of == owner).map(|(_, name)| name);
        let Some(set) = &edit.set else {
            // A row unknown here never existed.
            let Some(name) = known else { return Ok(EditOutcome::Applied) };
            return self.edit_subscriber(device, OwnChange::RemoveDevice(name)).await;
        };
        let set = match own_fields(ready, device, set, known.is_none()) {
            Ok(set) => set,
            Err(problems) => return Ok(EditOutcome::Refused(problems)),
        };
        match (known, set.get("name").and_then(Json::as_str)) {
            (Some(name), _) => self.edit_subscriber(device, OwnChange::PutDevice(name, &set)).await,
            (None, Some(name)) => {
                let mut rest = set.clone();
                rest.remove("name");
                self.edit_subscriber(device, OwnChange::PutDevice(name, &rest)).await
            }
            (None, None) => Ok(refused(Code::Required, "name", "is required: give a string")),
        }
    }

    /// The id of a subscription row is that of the subscription. For a row created by a client, the row id becomes the
    /// key.
    async fn change_subscription(
        &self,
        device: &ReplicaDevice,
        ready: &Ready,
        edit: &Edit,
    ) -> Result<EditOutcome, SyncError> {
        let known = edit.id.parse::<SubscriptionId>().ok();
        let Some(set) = &edit.set else {
            let Some(id) = known else { return Ok(EditOutcome::Applied) };
            return self.edit_subscriber(device, OwnChange::RemoveSubscription(id)).await;
        };
        let set = match own_fields(ready, device, set, known.is_none()) {
            Ok(set) => set,
            Err(problems) => return Ok(EditOutcome::Refused(problems)),
        };
        let change = match known {
            Some(id) => OwnChange::ChangeSubscription(id, &set),
            None => OwnChange::AddSubscription(&edit.id, &set),
        };
        self.edit_subscriber(device, change).await
    }

    async fn edit_subscriber(&self, device: &ReplicaDevice, change: OwnChange<'_>) -> Result<EditOutcome, SyncError> {
        let Some(editor) = self.built_ins.editor.get() else {
            return Ok(refused(Code::NotAllowed, "", "cannot be changed by devices on this server"));
        };
        let removes = matches!(change, OwnChange::RemoveDevice(_) | OwnChange::RemoveSubscription(_));
        let found = self.subscriber_store.subscriber(&device.subscriber).await?;
        if found.is_none_or(|subscriber| subscriber.number != device.subscriber_number) {
            return Ok(refused(Code::UnknownReference, "id", "does not name a row that is visible to this device"));
        }
        Ok(match editor.change(&device.application, &device.subscriber, change).await? {
            OwnChangeResult::Done => EditOutcome::Applied,
            // The item was already removed, so its row is removed too.
            OwnChangeResult::NotFound if removes => EditOutcome::Applied,
            OwnChangeResult::NotFound => {
                refused(Code::UnknownReference, "id", "does not name a row that is visible to this device")
            }
            OwnChangeResult::Refused(problems) => EditOutcome::Refused(problems),
        })
    }

    /// Sets the editor of subscribers, once at start.
    pub fn set_subscriber_editor(&self, editor: Arc<dyn SubscriberEditor>) {
        let _ = self.built_ins.editor.set(editor);
    }
}

/// The fields that an edit of a device or subscription sets, each checked for its type; the owner is implied.
fn own_fields(
    ready: &Ready,
    device: &ReplicaDevice,
    set: &Map<String, Json>,
    is_new: bool,
) -> Result<Map<String, Json>, Vec<Problem>> {
    let (fields, built_in) = (&ready.definition.fields, ready.definition.built_in.expect("it is built in"));
    let (mut problems, mut own) = (Vec::new(), Map::new());
    for (name, value) in set {
        let may = built_in.editable().contains(&name.as_str())
            || (is_new && built_in.insert_only_fields().contains(&name.as_str()));
        let is_owner = is_new && name == OWNER && (value.is_null() || *value == device.subscriber.as_str());
        match fields.position(name) {
            _ if is_owner => {}
            None => problems.push(fields.unknown(name)),
            Some(_) if !may => problems.push(Problem::new(Code::ReadOnly, name.as_str(), "is read-only")),
            Some(at) => match fields[at].kind.accept(value.clone().into()) {
                Ok(_) => drop(own.insert(name.clone(), value.clone())),
                Err(message) => problems.push(Problem::new(Code::WrongType, name.as_str(), message)),
            },
        }
    }
    if problems.is_empty() { Ok(own) } else { Err(problems) }
}

/// Problems of an edit of a built-in row.
fn edit_problems(of: BuiltIn, set: &Map<String, Json>, fits: fn(&str, &Json) -> bool, requested: &str) -> Vec<Problem> {
    let problem = |(name, value): (&String, &Json)| match of.editable().contains(&name.as_str()) {
        false => Some(Problem::new(Code::ReadOnly, name.as_str(), "is read-only")),
        true => (!fits(name, value)).then(|| Problem::new(Code::WrongType, name.as_str(), requested)),
    };
    set.iter().filter_map(problem).collect()
}

/// Short token of a subscriber for its row ids, which are shorter than subscriber ids may be.
fn token_of(subscriber: &SubscriberId) -> String {
    hex::encode(&digest(&SHA256, subscriber.as_str().as_bytes()).as_ref()[..12])
}

/// Row id of an inbox item. A broadcast has one row per recipient.
fn row_of(id: ItemId, subscriber: &SubscriberId) -> String {
    match id {
        ItemId::Notification(id) => id.to_string(),
        ItemId::Broadcast(id) => format!("{id}.{}", token_of(subscriber)),
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
