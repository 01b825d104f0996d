//! What the platform knows of a subscriber, as rows: its profile, its devices, its subscriptions and its inbox.
//!
//! The records and the inbox stay where this is kept. When a device begins, and after it edited, the rows of its subscriber
//! follow them in one commit; so they are rows like all others, with versions, keys and what was removed. An edit of such a row
//! becomes a change of what it tells of, before the edit is noted as taken in: to do it twice changes nothing.

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
    hexadecimal::digits_of,
    id::{Name, SubscriberId, SubscriberNumber, SubscriptionId},
    inbox::{Item, ItemId, Mark, Standing},
    problem::Problem,
    replica::{Edit, SentEdit},
    subscriber::{Subscriber, check_profile},
};
use tocsin_store::{
    collections::{CollectionNumber, ReplicaDevice},
    error::StoreError,
    inbox::{FeedFilter, Inbox, Reader},
    records::{Expect, NewSubscriber, SubscriptionFilter},
    sqlite::collections::Ledger,
};

use crate::{
    Replicas, SyncError,
    catalogue::{Collections, Ready},
    partition,
    reconcile::{Fate, refused},
    rows::{RowChange, change_one},
    sessions::usable,
};

/// Items of a feed that a device has, the newest.
pub const ITEMS_MAX: usize = 500;
/// Subscriptions of a subscriber that a device has.
pub const SUBSCRIPTIONS_MAX: usize = 1_000;
/// How often a profile is read again that others change at the same time.
const TRIES: usize = 8;
const SHARDS: u64 = 256;

/// What the rows of subscribers followed last, as hashes. Who holds a shard lets the rows of its subscribers follow, so that an
/// older state never comes after a newer one.
pub(crate) struct BuiltIns {
    pub(crate) inbox: Arc<dyn Inbox>,
    desk: OnceLock<Arc<dyn Desk>>,
    followed: Vec<tokio::sync::Mutex<HashMap<(Name, SubscriberNumber), u64>>>,
}

/// What is changed of a subscriber by an edit of a built-in row; `null` empties a field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OwnChange<'a> {
    /// Fields of a device, by its name; it is made if it is not there.
    PutDevice(&'a str, &'a Map<String, Json>),
    /// A device goes.
    RemoveDevice(&'a str),
    /// A subscription is made; another of the key is replaced, if it says no other.
    AddSubscription(&'a str, &'a Map<String, Json>),
    /// Fields of a subscription.
    ChangeSubscription(SubscriptionId, &'a Map<String, Json>),
    /// A subscription goes.
    RemoveSubscription(SubscriptionId),
}

/// What became of such a change.
#[derive(Debug, Clone, PartialEq)]
pub enum Done {
    /// It is done, or was before.
    Done,
    /// The subscriber has nothing of the kind.
    Unseen,
    /// It cannot be.
    Refused(Vec<Problem>),
}

/// Changes what is known of a subscriber, with the checks that everybody else's changes go through.
#[async_trait]
pub trait Desk: Send + Sync {
    /// Makes a change, or fails for a reason of the platform's. To make it twice changes nothing.
    async fn change(
        &self,
        application: &Name,
        subscriber: &SubscriberId,
        change: OwnChange<'_>,
    ) -> Result<Done, StoreError>;
}

/// Rows of a collection, by their ids.
type Rows = Vec<(String, Map<String, Json>)>;

impl BuiltIns {
    pub(crate) fn new(inbox: Arc<dyn Inbox>) -> BuiltIns {
        BuiltIns {
            inbox,
            desk: OnceLock::new(),
            followed: (0..SHARDS).map(|_| tokio::sync::Mutex::default()).collect(),
        }
    }
}

impl Replicas {
    /// Lets the built-in rows of a device's subscriber say what the records and the inbox say.
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
        let Some(subscriber) = self.records.subscriber(&device.subscriber).await? else { return Ok(()) };
        let mut wanted = Vec::with_capacity(built_in.len());
        for (number, built_in) in built_in {
            wanted.push((number, self.told(&device.application, collections, built_in, &subscriber).await?));
        }
        let (key, print) = ((device.application.clone(), subscriber.number), fingerprint(&wanted));
        if followed.get(&key) == Some(&print) {
            return Ok(());
        }
        let (application, collections) = (device.application.clone(), collections.clone());
        let job =
            move |ledger: &mut Ledger<'_>| follow(ledger, &application, &collections, subscriber.id.as_str(), wanted);
        self.store.write(self.now(), job).await?;
        followed.insert(key, print);
        Ok(())
    }

    /// What a collection tells of a subscriber.
    async fn told(
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
                    FeedFilter { application: Some(application.clone()), ..FeedFilter::standing(Standing::All) };
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
        let found = self.records.subscriptions(&filter, None, SUBSCRIPTIONS_MAX).await?;
        let rows = found.into_iter().map(|subscription| {
            let fields = collections.class_fields(&subscription.class);
            let shown = fields.and_then(|fields| fields.stored_as_json(&subscription.values).ok());
            let values = shown.as_deref().unwrap_or(&subscription.values);
            let values: Json = serde_json::from_str(values).unwrap_or_default();
            let row = json!({
                "class": subscription.class, "key": subscription.key, "device": subscription.device,
                "enabled": subscription.is_wanted(), "values": values,
                "filter": subscription.terms.filter.as_ref().map(ToString::to_string),
                "schedule": subscription.terms.schedule,
                "snoozed_until": subscription.terms.snoozed_until.map(|until| until.to_string()),
            });
            (subscription.id.to_string(), row)
        });
        Ok(rows.collect())
    }

    /// Whose feed, with the broadcasts that belong to it.
    async fn reader(&self, subscriber: &Subscriber) -> Result<Reader, SyncError> {
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
        Ok(Reader { subscriber: subscriber.number, broadcasts })
    }

    /// Lets edits of built-in rows become changes of what they tell of. Gives what became of each.
    pub(crate) async fn edit_records(
        &self,
        device: &ReplicaDevice,
        collections: &Collections,
        edits: &[SentEdit],
        may_skip: bool,
    ) -> Result<HashMap<(Option<String>, u64), Fate>, SyncError> {
        let mut fates = HashMap::new();
        let built_in: HashMap<&Name, &Ready> = usable(device, collections)
            .filter(|ready| ready.definition.built_in.is_some() && ready.definition.direction.is_up())
            .map(|ready| (&ready.name, ready))
            .collect();
        let is_built_in =
            |sent: &SentEdit| matches!(sent, SentEdit::Edit(edit) if built_in.contains_key(&edit.collection));
        if !edits.iter().any(is_built_in) {
            return Ok(fates);
        }
        // For each batch, the last edit that was taken in; 0: none is known.
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
            // A gap refuses the block as a whole.
            if n != *upto + 1 && (sent.batch().is_none() || *upto > 0) {
                break;
            }
            *upto = n;
            let SentEdit::Edit(edit) = sent else { continue };
            let Some(ready) = built_in.get(&edit.collection) else { continue };
            let fate = match ready.definition.built_in {
                Some(BuiltIn::Inbox) => self.mark_item(device, edit).await?,
                Some(BuiltIn::Devices) => self.change_device(device, ready, edit).await?,
                Some(BuiltIn::Subscriptions) => self.change_subscription(device, ready, edit).await?,
                _ => self.change_profile(device, edit).await?,
            };
            fates.insert((edit.batch.clone(), n), fate);
        }
        Ok(fates)
    }

    /// An item is read, put aside, or removed.
    async fn mark_item(&self, device: &ReplicaDevice, edit: &Edit) -> Result<Fate, SyncError> {
        let truth = |fields: &Map<String, Json>, name: &str| fields.get(name).and_then(Json::as_bool);
        let marks: Vec<Mark> = match &edit.set {
            None => vec![Mark::Deleted],
            Some(set) => {
                let problems =
                    objections(BuiltIn::Inbox, set, |_, value| value.is_boolean(), "should be true or false");
                if !problems.is_empty() {
                    return Ok(Fate::Refused(problems));
                }
                let read = truth(set, "read").map(|read| if read { Mark::Read } else { Mark::Unread });
                let archived = truth(set, "archived").map(|put| if put { Mark::Archived } else { Mark::Unarchived });
                read.into_iter().chain(archived).collect()
            }
        };
        let unseen = || refused("id", "is of no row that this device sees");
        let Some(subscriber) = self.records.subscriber(&device.subscriber).await? else { return Ok(unseen()) };
        let id = edit.id.split('.').next().and_then(|id| id.parse::<ItemId>().ok());
        let Some(id) = id.filter(|id| row_of(*id, &subscriber.id) == edit.id) else { return Ok(unseen()) };
        let (reader, now) = (self.reader(&subscriber).await?, self.now());
        let found = self.built_ins.inbox.item(&reader, id, now).await?;
        if found.is_none_or(|item| item.content.application != device.application) {
            // It went by itself, and so does the row.
            return Ok(if edit.set.is_none() { Fate::Applied } else { unseen() });
        }
        for mark in marks {
            self.built_ins.inbox.mark(&reader, vec![id], mark, now).await?;
        }
        Ok(Fate::Applied)
    }

    async fn change_profile(&self, device: &ReplicaDevice, edit: &Edit) -> Result<Fate, SyncError> {
        let Some(set) = &edit.set else { return Ok(refused("", "a profile is not removed")) };
        let fits = |name: &str, value: &Json| match name {
            "enabled" => value.is_boolean(),
            _ => value.is_string() || value.is_null(),
        };
        let problems = objections(BuiltIn::Profile, set, fits, "is of another type");
        if !problems.is_empty() {
            return Ok(Fate::Refused(problems));
        }
        for _ in 0..TRIES {
            let found = self.records.subscriber(&device.subscriber).await?;
            let Some(subscriber) = found.filter(|subscriber| token_of(&subscriber.id) == edit.id) else {
                return Ok(refused("id", "is of no row that this device sees"));
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
                return Ok(Fate::Refused(problems));
            }
            let new = NewSubscriber { id: subscriber.id, profile, devices: None, preferences: None };
            match self.records.put_subscriber(new, Expect::Revision(subscriber.revision), self.now()).await {
                Err(StoreError::Changed(_)) => continue,
                stored => return Ok(stored.map(|_| Fate::Applied)?),
            }
        }
        Err(SyncError::Store(StoreError::unavailable("the profile changes all the time")))
    }

    /// A row of a device is called by its owner and its name. One that the device made has an id of its own; it is told again
    /// under the other.
    async fn change_device(&self, device: &ReplicaDevice, ready: &Ready, edit: &Edit) -> Result<Fate, SyncError> {
        let owner = token_of(&device.subscriber);
        let known = edit.id.split_once('.').filter(|(of, _)| *of == owner).map(|(_, name)| name);
        let Some(set) = &edit.set else {
            // A row that is not known here was never there.
            let Some(name) = known else { return Ok(Fate::Applied) };
            return self.ask_desk(device, OwnChange::RemoveDevice(name)).await;
        };
        let set = match own_fields(ready, device, set, known.is_none()) {
            Ok(set) => set,
            Err(problems) => return Ok(Fate::Refused(problems)),
        };
        match (known, set.get("name").and_then(Json::as_str)) {
            (Some(name), _) => self.ask_desk(device, OwnChange::PutDevice(name, &set)).await,
            (None, Some(name)) => {
                let mut rest = set.clone();
                rest.remove("name");
                self.ask_desk(device, OwnChange::PutDevice(name, &rest)).await
            }
            (None, None) => Ok(refused("name", "is required: give a string")),
        }
    }

    /// A row of a subscription is called like it. For one that the device made, the id of the row is its key.
    async fn change_subscription(&self, device: &ReplicaDevice, ready: &Ready, edit: &Edit) -> Result<Fate, SyncError> {
        let known = edit.id.parse::<SubscriptionId>().ok();
        let Some(set) = &edit.set else {
            let Some(id) = known else { return Ok(Fate::Applied) };
            return self.ask_desk(device, OwnChange::RemoveSubscription(id)).await;
        };
        let set = match own_fields(ready, device, set, known.is_none()) {
            Ok(set) => set,
            Err(problems) => return Ok(Fate::Refused(problems)),
        };
        let change = match known {
            Some(id) => OwnChange::ChangeSubscription(id, &set),
            None => OwnChange::AddSubscription(&edit.id, &set),
        };
        self.ask_desk(device, change).await
    }

    async fn ask_desk(&self, device: &ReplicaDevice, change: OwnChange<'_>) -> Result<Fate, SyncError> {
        let Some(desk) = self.built_ins.desk.get() else {
            return Ok(refused("", "is not changed by devices here"));
        };
        let removes = matches!(change, OwnChange::RemoveDevice(_) | OwnChange::RemoveSubscription(_));
        let found = self.records.subscriber(&device.subscriber).await?;
        if found.is_none_or(|subscriber| subscriber.number != device.subscriber_number) {
            return Ok(refused("id", "is of no row that this device sees"));
        }
        Ok(match desk.change(&device.application, &device.subscriber, change).await? {
            Done::Done => Fate::Applied,
            // It went by itself, and so does the row.
            Done::Unseen if removes => Fate::Applied,
            Done::Unseen => refused("id", "is of no row that this device sees"),
            Done::Refused(problems) => Fate::Refused(problems),
        })
    }

    /// Who changes what devices say of their subscribers. It is told once, at the start.
    pub fn set_desk(&self, desk: Arc<dyn Desk>) {
        let _ = self.built_ins.desk.set(desk);
    }
}

/// The fields that an edit of a device or subscription sets, each of its type; whose the row is goes without saying.
fn own_fields(
    ready: &Ready,
    device: &ReplicaDevice,
    set: &Map<String, Json>,
    is_new: bool,
) -> Result<Map<String, Json>, Vec<Problem>> {
    let (fields, built_in) = (&ready.definition.fields, ready.definition.built_in.expect("it is built in"));
    let (mut problems, mut own) = (Vec::new(), Map::new());
    for (name, value) in set {
        let may =
            built_in.editable().contains(&name.as_str()) || (is_new && built_in.said_once().contains(&name.as_str()));
        let is_owner = is_new && name == OWNER && (value.is_null() || *value == device.subscriber.as_str());
        match fields.position(name) {
            _ if is_owner => {}
            None => problems.push(fields.unknown(name)),
            Some(_) if !may => problems.push(Problem::at(name.as_str(), "is only for reading")),
            Some(at) => match fields[at].kind.accept(value.clone().into()) {
                Ok(_) => drop(own.insert(name.clone(), value.clone())),
                Err(message) => problems.push(Problem::at(name.as_str(), message)),
            },
        }
    }
    if problems.is_empty() { Ok(own) } else { Err(problems) }
}

/// What is wrong with an edit of a built-in row.
fn objections(of: BuiltIn, set: &Map<String, Json>, fits: fn(&str, &Json) -> bool, wanted: &str) -> Vec<Problem> {
    let problem = |(name, value): (&String, &Json)| match of.editable().contains(&name.as_str()) {
        false => Some(Problem::at(name.as_str(), "is only for reading")),
        true => (!fits(name, value)).then(|| Problem::at(name.as_str(), wanted)),
    };
    set.iter().filter_map(problem).collect()
}

/// What stands for a subscriber in the ids of its rows, which are shorter than its own may be.
fn token_of(subscriber: &SubscriberId) -> String {
    digits_of(&digest(&SHA256, subscriber.as_str().as_bytes()).as_ref()[..12])
}

/// The id of the row of an item. A broadcast has one for each who sees it.
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

fn fingerprint(wanted: &[(CollectionNumber, Rows)]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (number, rows) in wanted {
        (number, rows.len()).hash(&mut hasher);
        for (id, row) in rows {
            (id, Json::Object(row.clone()).to_string()).hash(&mut hasher);
        }
    }
    hasher.finish()
}

/// Puts rows in the place of those that a subscriber has.
fn follow(
    ledger: &mut Ledger<'_>,
    application: &Name,
    collections: &Collections,
    subscriber: &str,
    wanted: Vec<(CollectionNumber, Rows)>,
) -> Result<(), StoreError> {
    for (number, rows) in wanted {
        let Some(ready) = collections.of_number(number) else { continue };
        let fields = &ready.definition.fields;
        let owner = fields.row([(OWNER, subscriber.into())]).expect("nothing else is required");
        let keys = partition::own_keys(application, &ready.definition.partition, fields, &owner);
        let key = ledger.key(keys.first().expect("each is somebody's"))?;
        let stays: HashSet<&str> = rows.iter().map(|(id, _)| id.as_str()).collect();
        for gone in ledger.rows_of_key(number, key)?.into_iter().filter(|row| !stays.contains(&*row.id)) {
            note(&gone.id, change_one(ledger, application, collections, ready, &gone.id, RowChange::Remove)?);
        }
        for (id, row) in &rows {
            note(id, change_one(ledger, application, collections, ready, id, RowChange::Put(row.clone()))?);
        }
    }
    Ok(())
}

/// A row that does not fit is left out; the others are told.
fn note(id: &str, changed: Result<(), SyncError>) {
    if let Err(error) = changed {
        tracing::warn!(row = id, %error, "a row that is built in cannot be told");
    }
}
