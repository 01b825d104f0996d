//! Replicated rows of devices: their store, their service, and its maintenance.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::{Map, Value as Json};
use tocsin_connect::programs::{
    Programs,
    change::{Changed, Changer},
};
use tocsin_model::{
    application::row_source,
    collection::{Process, Stamp},
    event::EventPacker,
    id::{Name, SubscriberId, SubscriberNumber},
    problem::Problem,
    value::Value,
};
use tocsin_pipeline::{Pipeline, Submission};
use tocsin_service::{Service, ServiceError, own::Owner, persons::PersonRows};
use tocsin_store::{
    error::StoreError,
    inbox::Inbox,
    journal::{Checkpoints, Mark, PersonNames},
    records::Records,
    sqlite::collections::{CollectionsOptions, SqliteCollections},
};
use tocsin_sync::{
    Limits, Parts, Replicas, Sizing,
    built_in::{OwnChange, OwnChangeResult, SubscriberEditor},
    programs::{ConflictResolver, EditConflict, ResolverAnswer},
    raise_events::{Event, Intake, IntakeError, Round},
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::store_failure;
use crate::{
    configuration::{Configuration, PoolSizing},
    failure::{Failure, Outcome},
    local_change::now,
};

/// Interval of maintenance.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(60);

/// Back-off while an application does not accept row events: initial and maximum pause.
const EVENT_BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Checkpoint in the journal: stamp of the last change whose event it has.
const CHECKPOINT: &str = "stamp";

/// Opens `sync.db`, and the replica service over it.
///
/// # Errors
/// If the store does not open, or the records do not respond.
pub async fn open(
    configuration: &Configuration,
    records: Arc<dyn Records>,
    inbox: Arc<dyn Inbox>,
) -> Outcome<(Arc<Replicas>, Arc<SqliteCollections>)> {
    let (folder, options) = (configuration.data.folder.clone(), &configuration.sync);
    let places = |count: u32| count.max(1) as usize;
    let kept = CollectionsOptions { reserve_bytes: options.disk_reserve.0, readers: places(options.readers) };
    let limits = Limits {
        uploads: places(options.uploads),
        reconciles: places(options.reconciles),
        sizing: match options.reconciles_sizing {
            PoolSizing::Auto => Sizing::Auto,
            PoolSizing::Fixed => Sizing::Fixed,
        },
        downloads: places(options.downloads),
        waiting: options.waiting_max as usize,
        watchers: options.watchers_max as usize,
    };
    let opening = tokio::task::spawn_blocking(move || SqliteCollections::open(&folder, &kept)).await;
    let opened =
        opening.map_err(|error| Failure::failed("the task that opens the rows of devices panicked").because(&error))?;
    let store = Arc::new(opened.map_err(|error| store_failure("rows of devices", &error))?);
    let (clock, environment) = (Arc::new(now), Arc::new(|name: &str| std::env::var(name).ok()));
    let opened = Replicas::open(Parts { records, inbox, store: store.clone(), clock, environment, limits }).await;
    let replicas = opened.map_err(|error| Failure::failed("cannot read the sync devices").because(&error))?;
    Ok((replicas, store))
}

/// Deletes expired data at intervals, until the server ends.
pub fn run_maintenance(replicas: &Arc<Replicas>, stopping: CancellationToken) {
    let replicas = Arc::downgrade(replicas);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = tokio::time::sleep(MAINTENANCE_INTERVAL) => {}
                () = stopping.cancelled() => return,
            }
            let Some(replicas) = replicas.upgrade() else { return };
            if let Err(error) = replicas.prune().await {
                tracing::warn!(%error, "cannot delete expired sync data; will retry");
            }
        }
    });
}

/// Raises events of row changes, until the server ends.
pub fn raise_events(
    replicas: &Arc<Replicas>,
    pipeline: Arc<Pipeline>,
    checkpoints: Arc<dyn Checkpoints>,
    stopping: CancellationToken,
) -> JoinHandle<()> {
    let replicas = replicas.clone();
    let flow = JournalIntake { pipeline, checkpoints };
    tokio::spawn(async move {
        let mut pause = EVENT_BACKOFF.0;
        loop {
            let round = tokio::select! {
                round = replicas.raise_events(&flow) => round,
                () = stopping.cancelled() => return,
            };
            let wait = match round {
                Ok(Round::Done) => {
                    pause = EVENT_BACKOFF.0;
                    None
                }
                Ok(Round::Held) => Some(pause),
                Err(error) => {
                    tracing::warn!(%error, "cannot read row events; will retry");
                    Some(EVENT_BACKOFF.1)
                }
            };
            tokio::select! {
                () = replicas.wait_raised(), if wait.is_none() => {}
                () = tokio::time::sleep(wait.unwrap_or(EVENT_BACKOFF.1)), if wait.is_some() => pause = (pause * 2).min(EVENT_BACKOFF.1),
                () = stopping.cancelled() => return,
            }
        }
    })
}

/// Intake of row events into the pipeline: the journal stores them with their checkpoint in one commit.
struct JournalIntake {
    pipeline: Arc<Pipeline>,
    checkpoints: Arc<dyn Checkpoints>,
}

fn later(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> IntakeError {
    IntakeError(error.into())
}

fn mark(upto: Stamp) -> Vec<Mark> {
    vec![Mark::set(CHECKPOINT, upto.0.to_string())]
}

impl Intake for JournalIntake {
    async fn place(&self, application: &Name) -> Result<Option<Stamp>, IntakeError> {
        let marks = self.checkpoints.marks(&(application.clone(), row_source()), None, 1).await.map_err(later)?;
        let value = marks.into_iter().next().and_then(|mark| mark.value);
        let stamp = value.map(|value| std::str::from_utf8(&value).ok().and_then(|text| text.parse().ok().map(Stamp)));
        stamp.map(|stamp| stamp.ok_or_else(|| later("cannot parse the checkpoint of the row events"))).transpose()
    }

    async fn set_place(&self, application: &Name, upto: Stamp) -> Result<(), IntakeError> {
        self.checkpoints.record_marks(&(application.clone(), row_source()), mark(upto)).await.map_err(later)
    }

    async fn take(
        &self,
        application: &Name,
        class: &Name,
        events: Vec<Event>,
        upto: Stamp,
    ) -> Result<u64, IntakeError> {
        let compiled = self.pipeline.application(application);
        let compiled = compiled.ok_or_else(|| later(format!("the application `{application}` is not running")))?;
        let count = events.len() as u64;
        let mut packer = compiled.application.events.get(class).map(|class| EventPacker::new(class.fields.clone()));
        if let (Some(packer), Some(class)) = (&mut packer, compiled.application.events.get(class)) {
            for event in events {
                let values = event.into_iter().map(|(name, value)| (name, Value::from(value)));
                if let Ok(row) = class.fields.row(values) {
                    packer.push(&row);
                }
            }
        }
        let Some(packed) = packer.map(EventPacker::finish).filter(|packed| packed.count() > 0) else {
            self.set_place(application, upto).await?;
            return Ok(count);
        };
        let unfit = count - u64::from(packed.count());
        let submission = Submission {
            application: application.clone(),
            version: compiled.version,
            class: class.clone(),
            source: row_source(),
            received_at: now(),
            events: packed,
            idempotency: None,
            marks: mark(upto),
        };
        self.pipeline.accept(submission).await.map_err(later)?;
        Ok(unfit)
    }
}

/// Rows of persons in the collections. Weak, since the replicas hold the service that holds this.
pub struct CollectionRows(pub Weak<Replicas>);

impl CollectionRows {
    fn replicas(&self) -> Result<Arc<Replicas>, StoreError> {
        self.0.upgrade().ok_or_else(|| StoreError::unavailable("the server stops"))
    }
}

#[async_trait]
impl PersonRows for CollectionRows {
    async fn erase(&self, person: SubscriberNumber, names: &PersonNames) -> Result<(), StoreError> {
        self.replicas()?.erase_person(person, names).await.map_err(StoreError::unavailable)
    }

    async fn naming(&self, names: &PersonNames) -> Result<Vec<(String, String, String)>, StoreError> {
        self.replicas()?.rows_naming(names).await.map_err(StoreError::unavailable)
    }
}

/// Service that applies changes which devices make to their subscribers.
pub struct ServiceEditor(pub Arc<Service>);

#[async_trait]
impl SubscriberEditor for ServiceEditor {
    async fn change(
        &self,
        application: &Name,
        subscriber: &SubscriberId,
        change: OwnChange<'_>,
    ) -> Result<OwnChangeResult, StoreError> {
        let owner = Owner { application: application.clone(), subscriber: subscriber.clone() };
        let done = match change {
            OwnChange::PutDevice(name, set) => self.0.put_own_device(&owner, name, set).await,
            OwnChange::RemoveDevice(name) => self.0.remove_own_device(&owner, name).await,
            OwnChange::AddSubscription(key, set) => self.0.add_own_subscription(&owner, key, set).await,
            OwnChange::ChangeSubscription(id, set) => self.0.change_own_subscription(&owner, id, set).await,
            OwnChange::RemoveSubscription(id) => self.0.remove_own_subscription(&owner, id).await,
        };
        match done {
            Ok(()) => Ok(OwnChangeResult::Done),
            Err(ServiceError::Missing(_)) => Ok(OwnChangeResult::NotFound),
            Err(ServiceError::Invalid(problems)) => Ok(OwnChangeResult::Refused(problems)),
            Err(ServiceError::Malformed(problem)) => Ok(OwnChangeResult::Refused(vec![problem])),
            Err(ServiceError::Full { reason, .. }) => Err(StoreError::Full(reason)),
            Err(error) => Err(StoreError::unavailable(error)),
        }
    }
}

/// Conflict resolver programs that the operator permits, started on demand and reused.
pub struct AllowedPrograms {
    programs: Programs,
    started: Mutex<HashMap<(Name, Name), RunningProgram>>,
}

/// Running programs of one collection, with their definition.
type RunningProgram = (Process, Arc<Changer>);

impl AllowedPrograms {
    /// Creates an empty pool of these permitted programs.
    pub fn new(programs: Programs) -> AllowedPrograms {
        AllowedPrograms { programs, started: Mutex::default() }
    }

    /// Program of a collection as it is currently defined.
    fn changer(&self, application: &Name, collection: &Name, process: &Process) -> Result<Arc<Changer>, String> {
        let mut started = self.started.lock();
        let key = (application.clone(), collection.clone());
        if let Some((known, changer)) = started.get(&key)
            && known == process
        {
            return Ok(changer.clone());
        }
        let Process { command, timeout } = process;
        let opened = Changer::open(collection, command, &BTreeMap::new(), *timeout, &self.programs, "process");
        let shown = |problems: Vec<Problem>| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        let changer = Arc::new(opened.map_err(shown)?);
        started.insert(key, (process.clone(), changer.clone()));
        Ok(changer)
    }
}

#[async_trait]
impl ConflictResolver for AllowedPrograms {
    async fn resolve(
        &self,
        application: &Name,
        collection: &Name,
        process: &Process,
        question: &EditConflict,
    ) -> Result<ResolverAnswer, String> {
        let changer = self.changer(application, collection, process)?;
        let EditConflict { n, row, client, server, base, .. } = question;
        let properties = Map::from_iter([
            ("application".to_owned(), application.as_str().into()),
            ("collection".to_owned(), collection.as_str().into()),
            ("row".to_owned(), row.as_str().into()),
            ("client".to_owned(), client.clone()),
            ("server".to_owned(), server.clone()),
            ("base".to_owned(), base.clone()),
        ]);
        let asked = Changed { content_type: "application/json".to_owned(), properties, body: Vec::new() };
        let mut decision = changer.change(&format!("edit-{n}"), &asked).await?.properties;
        match (decision.remove("winner"), decision.remove("set")) {
            (Some(winner), None) if winner == "client" => Ok(ResolverAnswer::Client),
            (Some(winner), None) if winner == "server" => Ok(ResolverAnswer::Server),
            (None, Some(Json::Object(set))) => Ok(ResolverAnswer::Set(set)),
            _ => Err("the program returned neither `winner` (`client` or `server`) nor `set` (fields)".to_owned()),
        }
    }
}
