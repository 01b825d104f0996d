//! The rows that devices keep replicas of: their store, their room, and its upkeep.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::{Map, Value as Json};
use tocsin_delivery::{
    process::change::{Changed, Changer},
    programs::Programs,
};
use tocsin_model::{
    application::row_source,
    collection::{Process, Stamp},
    event::EventPacker,
    id::{Name, SubscriberId},
    problem::Problem,
    value::Value,
};
use tocsin_pipeline::{Pipeline, Submission};
use tocsin_service::{Service, ServiceError, own::Owner};
use tocsin_store::{
    error::StoreError,
    inbox::Inbox,
    journal::{Journal, Mark},
    records::Records,
    sqlite::collections::{CollectionsOptions, SqliteCollections},
};
use tocsin_sync::{
    Limits, Parts, Replicas, Sizing,
    built_in::{Desk, Done, OwnChange},
    programs::{Answer, Arbiter, Question},
    raise_events::{Event, Intake, IntakeError, Round},
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{now, store_failure};
use crate::{
    configuration::{Configuration, PoolSizing},
    failure::{Failure, Outcome},
};

/// Time between two rounds of upkeep.
const TIDY_EVERY: Duration = Duration::from_secs(60);

/// How long events of rows wait for an application that takes none, at first and at most.
const HELD: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// What the journal remembers of events of rows: the stamp of the last change whose event it has.
const PLACE: &str = "stamp";

/// Opens `sync.db`, and the room over it.
///
/// # Errors
/// The store does not open, or the records do not answer.
pub async fn open(
    configuration: &Configuration,
    records: Arc<dyn Records>,
    inbox: Arc<dyn Inbox>,
) -> Outcome<Arc<Replicas>> {
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
    let opened = opening.map_err(|error| Failure::failed("opening the rows of devices broke").because(&error))?;
    let store = Arc::new(opened.map_err(|error| store_failure("rows of devices", &error))?);
    let (clock, environment) = (Arc::new(now), Arc::new(|name: &str| std::env::var(name).ok()));
    let opened = Replicas::open(Parts { records, inbox, store, clock, environment, limits }).await;
    opened.map_err(|error| Failure::failed("the devices that keep replicas cannot be read").because(&error))
}

/// Forgets what is past its time, until the server ends.
pub fn tidy_now_and_then(replicas: &Arc<Replicas>, stopping: CancellationToken) {
    let replicas = Arc::downgrade(replicas);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = tokio::time::sleep(TIDY_EVERY) => {}
                () = stopping.cancelled() => return,
            }
            let Some(replicas) = replicas.upgrade() else { return };
            if let Err(error) = replicas.tidy().await {
                tracing::warn!(%error, "what is past its time could not be forgotten; will try again");
            }
        }
    });
}

/// Lets changes of rows raise events, until the server ends.
pub fn raise_events(
    replicas: &Arc<Replicas>,
    pipeline: Arc<Pipeline>,
    journal: Arc<dyn Journal>,
    stopping: CancellationToken,
) -> JoinHandle<()> {
    let replicas = replicas.clone();
    let flow = Flow { pipeline, journal };
    tokio::spawn(async move {
        let mut pause = HELD.0;
        loop {
            let round = tokio::select! {
                round = replicas.raise_events(&flow) => round,
                () = stopping.cancelled() => return,
            };
            let wait = match round {
                Ok(Round::Done) => {
                    pause = HELD.0;
                    None
                }
                Ok(Round::Held) => Some(pause),
                Err(error) => {
                    tracing::warn!(%error, "events of rows could not be read; will try again");
                    Some(HELD.1)
                }
            };
            tokio::select! {
                () = replicas.wait_raised(), if wait.is_none() => {}
                () = tokio::time::sleep(wait.unwrap_or(HELD.1)), if wait.is_some() => pause = (pause * 2).min(HELD.1),
                () = stopping.cancelled() => return,
            }
        }
    })
}

/// The flow, which events of rows go into like those of a source: the journal has them and their place in one commit.
struct Flow {
    pipeline: Arc<Pipeline>,
    journal: Arc<dyn Journal>,
}

fn later(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> IntakeError {
    IntakeError(error.into())
}

fn mark(upto: Stamp) -> Vec<Mark> {
    vec![Mark::set(PLACE, upto.0.to_string())]
}

impl Intake for Flow {
    async fn place(&self, application: &Name) -> Result<Option<Stamp>, IntakeError> {
        let marks = self.journal.marks(&(application.clone(), row_source()), None, 1).await.map_err(later)?;
        let value = marks.into_iter().next().and_then(|mark| mark.value);
        let stamp = value.map(|value| std::str::from_utf8(&value).ok().and_then(|text| text.parse().ok().map(Stamp)));
        stamp.map(|stamp| stamp.ok_or_else(|| later("the mark of the events of rows cannot be read"))).transpose()
    }

    async fn set_place(&self, application: &Name, upto: Stamp) -> Result<(), IntakeError> {
        self.journal.record_marks(&(application.clone(), row_source()), mark(upto)).await.map_err(later)
    }

    async fn take(
        &self,
        application: &Name,
        class: &Name,
        events: Vec<Event>,
        upto: Stamp,
    ) -> Result<u64, IntakeError> {
        let compiled = self.pipeline.application(application);
        let compiled = compiled.ok_or_else(|| later(format!("the application `{application}` does not run")))?;
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

/// The service, which changes what devices say of their subscribers.
pub struct ServiceDesk(pub Arc<Service>);

#[async_trait]
impl Desk for ServiceDesk {
    async fn change(
        &self,
        application: &Name,
        subscriber: &SubscriberId,
        change: OwnChange<'_>,
    ) -> Result<Done, StoreError> {
        let owner = Owner { application: application.clone(), subscriber: subscriber.clone() };
        let done = match change {
            OwnChange::PutDevice(name, set) => self.0.put_own_device(&owner, name, set).await,
            OwnChange::RemoveDevice(name) => self.0.remove_own_device(&owner, name).await,
            OwnChange::AddSubscription(key, set) => self.0.add_own_subscription(&owner, key, set).await,
            OwnChange::ChangeSubscription(id, set) => self.0.change_own_subscription(&owner, id, set).await,
            OwnChange::RemoveSubscription(id) => self.0.remove_own_subscription(&owner, id).await,
        };
        match done {
            Ok(()) => Ok(Done::Done),
            Err(ServiceError::Missing(_)) => Ok(Done::Unseen),
            Err(ServiceError::Invalid(problems)) => Ok(Done::Refused(problems)),
            Err(ServiceError::Malformed(problem)) => Ok(Done::Refused(vec![problem])),
            Err(ServiceError::Full { reason, .. }) => Err(StoreError::Full(reason)),
            Err(error) => Err(StoreError::unavailable(error)),
        }
    }
}

/// Programs that decide between edits that meet: those that the operator allows, started when they are needed and kept.
pub struct AllowedPrograms {
    programs: Programs,
    started: Mutex<HashMap<(Name, Name), Started>>,
}

/// Programs of one kind, and how they were defined.
type Started = (Process, Arc<Changer>);

impl AllowedPrograms {
    /// Those that may be started.
    pub fn new(programs: Programs) -> AllowedPrograms {
        AllowedPrograms { programs, started: Mutex::default() }
    }

    /// That of a collection as it is defined now.
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
impl Arbiter for AllowedPrograms {
    async fn ask(
        &self,
        application: &Name,
        collection: &Name,
        process: &Process,
        question: &Question,
    ) -> Result<Answer, String> {
        let changer = self.changer(application, collection, process)?;
        let Question { n, row, client, server, base, .. } = question;
        let properties = Map::from_iter([
            ("application".to_owned(), application.as_str().into()),
            ("collection".to_owned(), collection.as_str().into()),
            ("row".to_owned(), row.as_str().into()),
            ("client".to_owned(), client.clone()),
            ("server".to_owned(), server.clone()),
            ("base".to_owned(), base.clone()),
        ]);
        let asked = Changed { content_type: "application/json".to_owned(), properties, body: Vec::new() };
        let mut told = changer.change(&format!("edit-{n}"), &asked).await?.properties;
        match (told.remove("winner"), told.remove("set")) {
            (Some(winner), None) if winner == "client" => Ok(Answer::Client),
            (Some(winner), None) if winner == "server" => Ok(Answer::Server),
            (None, Some(Json::Object(set))) => Ok(Answer::Set(set)),
            _ => Err("the program says neither `winner` (`client` or `server`) nor `set` (fields)".to_owned()),
        }
    }
}
