//! Edits of built-in rows: each becomes a change of its source before the edit is acknowledged. The change is
//! idempotent.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use serde_json::{Map, Value as Json};
use tocsin_model::{
    collection::{BuiltIn, OWNER},
    id::{Name, SubscriptionId},
    inbox::{ItemId, Mark},
    problem::{Code, Problem},
    replica::{Edit, SentEdit},
    subscriber::check_profile,
};
use tocsin_store::{
    collections::ReplicaDevice,
    error::StoreError,
    records::{NewSubscriber, Precondition},
};

use crate::{
    built_in::{OwnChange, OwnChangeResult, SubscriberEditor, row_of, token_of},
    catalogue::{Collections, Ready, usable},
    error::SyncError,
    reconcile::{EditOutcome, refused},
    replicas::Replicas,
};

/// Attempts to change a profile under concurrent changes (optimistic concurrency).
const TRIES: usize = 8;

impl Replicas {
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
        let mut due = Vec::new();
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
            // A gap rejects the whole block, so nothing of it is applied.
            if n != *upto + 1 && (sent.batch().is_none() || *upto > 0) {
                return Ok(outcomes);
            }
            *upto = n;
            if let SentEdit::Edit(edit) = sent
                && let Some(ready) = built_in.get(&edit.collection)
            {
                due.push((*ready, edit, n));
            }
        }
        for (ready, edit, n) in due {
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
            let new = NewSubscriber {
                kept: Default::default(),
                id: subscriber.id,
                profile,
                devices: None,
                preferences: None,
            };
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
