//! Test fixture: an in-process server with replicas, and links that fail on request.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use serde_json::{Map, Value as Json, json};
use tocsin_model::{
    id::Name,
    replica::{Begin, BeginResponse, RowLine, Uploaded, read_edits},
    subscriber::Profile,
    time::Timestamp,
};
use tocsin_replica::{Link, LinkError, Replica, ReplicaError, ServerCredentials, Summary};
use tocsin_store::{
    memory::{inbox::MemoryInbox, records::MemoryRecords},
    records::{ApplicationStore, NewApplicationVersion, NewSubscriber, Precondition, SubscriberStore},
    sqlite::collections::{CollectionsOptions, SqliteCollections},
};
use tocsin_sync::{Device, Limits, Parts, Replicas, SyncError, devices::NewDevice, rows::RowChange};

/// Maximum devices that wait for changes.
pub const WATCHERS: usize = 3;

/// The server: persistent records and rows in a file, so that it can be restarted.
pub struct SyncFixture {
    pub records: Arc<MemoryRecords>,
    pub inbox: Arc<MemoryInbox>,
    pub sync: Arc<Replicas>,
    pub clock: Arc<AtomicI64>,
    pub folder: tempfile::TempDir,
}

pub fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

pub fn object(json: Json) -> Map<String, Json> {
    match json {
        Json::Object(object) => object,
        other => panic!("{other} is no object"),
    }
}

async fn open(
    records: &Arc<MemoryRecords>,
    inbox: &Arc<MemoryInbox>,
    clock: &Arc<AtomicI64>,
    folder: &tempfile::TempDir,
) -> Arc<Replicas> {
    let options = CollectionsOptions { reserve_bytes: 0, readers: 1 };
    let store = Arc::new(SqliteCollections::open(folder.path(), &options).expect("the store opens"));
    let clock = clock.clone();
    let parts = Parts {
        records: records.clone(),
        inbox: inbox.clone(),
        store,
        clock: Arc::new(move || Timestamp::from_millis(clock.load(Ordering::Relaxed))),
        environment: Arc::new(|_| None),
        limits: Limits { watchers: WATCHERS, ..Limits::default() },
    };
    Replicas::open(parts).await.expect("sync opens")
}

impl SyncFixture {
    pub async fn new(definition: &str) -> SyncFixture {
        let records = Arc::new(MemoryRecords::new().expect("records"));
        let clock = Arc::new(AtomicI64::new(1_700_000_000_000));
        let folder = tempfile::tempdir().expect("a folder");
        let inbox = Arc::new(MemoryInbox::default());
        let sync = open(&records, &inbox, &clock, &folder).await;
        let fixture = SyncFixture { records, inbox, sync, clock, folder };
        fixture.apply(definition).await;
        fixture
    }

    pub async fn apply(&self, definition: &str) {
        self.records
            .put_application(NewApplicationVersion {
                name: &name("shop"),
                text: definition,
                author: "test",
                now: self.now(),
            })
            .await
            .expect("applied");
    }

    pub fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.clock.load(Ordering::Relaxed))
    }

    pub fn pass(&self, time: Duration) {
        self.clock.fetch_add(i64::try_from(time.as_millis()).expect("short"), Ordering::Relaxed);
    }

    /// Stops the server, and starts it over its stored state.
    pub async fn restart(self) -> SyncFixture {
        let SyncFixture { records, inbox, sync, clock, folder } = self;
        drop(Arc::into_inner(sync).expect("nobody uses it"));
        let sync = open(&records, &inbox, &clock, &folder).await;
        SyncFixture { records, inbox, sync, clock, folder }
    }

    /// Stops the server, changes its folder, and starts it again.
    pub async fn between(self, work: impl FnOnce(&std::path::Path)) -> SyncFixture {
        let SyncFixture { records, inbox, sync, clock, folder } = self;
        drop(Arc::into_inner(sync).expect("nobody uses it"));
        work(folder.path());
        let sync = open(&records, &inbox, &clock, &folder).await;
        SyncFixture { records, inbox, sync, clock, folder }
    }

    pub async fn subscriber(&self, id: &str, attributes: Json) {
        let attributes = serde_json::from_value(attributes).expect("attributes");
        let profile = Profile { attributes, ..Profile::default() };
        let new = NewSubscriber {
            kept: Default::default(),
            id: id.parse().expect("an id"),
            profile,
            devices: None,
            preferences: None,
        };
        self.records.put_subscriber(new, Precondition::Any, self.now()).await.expect("stored");
    }

    /// Creates a device. Returns its token.
    pub async fn device(&self, subscriber: &str) -> String {
        let subscriber = subscriber.parse().expect("an id");
        let (application, name) = (name("shop"), "phone".to_owned());
        let new = NewDevice { application, subscriber, name, collections: None, may_write: true, lasts: None };
        self.sync.create_device(new).await.expect("made").1
    }

    pub async fn put(&self, collection: &str, id: &str, row: Json) {
        self.change(collection, id, RowChange::Put(object(row))).await;
    }

    pub async fn change(&self, collection: &str, id: &str, change: RowChange) {
        self.sync.change_row(&name("shop"), collection, id, change, None).await.expect("changed");
    }

    pub async fn row(&self, collection: &str, id: &str) -> Option<Json> {
        let row = self.sync.row(&name("shop"), collection, id).await.ok()?;
        Some(serde_json::from_str(&row.body).expect("JSON"))
    }

    /// All rows of a collection.
    pub async fn rows(&self, collection: &str) -> BTreeMap<String, Json> {
        let rows = self.sync.rows(&name("shop"), collection, None, 100_000).await.expect("listed");
        rows.into_iter().map(|row| (row.id, serde_json::from_str(&row.body).expect("JSON"))).collect()
    }

    pub fn link(&self, token: &str) -> InProcessLink {
        InProcessLink {
            sync: self.sync.clone(),
            token: token.to_owned(),
            faults: Mutex::default(),
            sent: Mutex::default(),
        }
    }
}

/// Failure of a link: at which call, and whether before the request or after the response.
#[derive(Default)]
pub struct Faults {
    pub chance: f64,
    pub random: Option<fastrand::Rng>,
}

/// In-process link with the same messages as over HTTP.
pub struct InProcessLink {
    sync: Arc<Replicas>,
    token: String,
    pub faults: Mutex<Faults>,
    /// All rows downloaded.
    pub sent: Mutex<Vec<RowLine>>,
}

impl InProcessLink {
    fn device(&self) -> Result<Device, LinkError> {
        self.sync.device(&self.token).map_err(refused)
    }

    fn fail_randomly(&self) -> Result<(), LinkError> {
        let mut faults = self.faults.lock().expect("not poisoned");
        let chance = faults.chance;
        match faults.random.as_mut().map(fastrand::Rng::f64) {
            Some(drawn) if drawn < chance => Err(LinkError::Broken("on purpose".to_owned())),
            _ => Ok(()),
        }
    }
}

fn refused(error: SyncError) -> LinkError {
    match error {
        SyncError::Busy { retry_after, .. } => LinkError::Busy(retry_after),
        SyncError::Missing(_) | SyncError::Expired(_) => LinkError::SessionEnded(error.to_string()),
        SyncError::Invalid(problems) => {
            LinkError::Refused(problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
        }
        error => LinkError::Refused(error.to_string()),
    }
}

impl Link for InProcessLink {
    async fn begin(&self, begin: &Begin) -> Result<BeginResponse, LinkError> {
        self.fail_randomly()?;
        let begun = self.sync.begin(&self.device()?, begin.clone()).await.map_err(refused)?;
        self.fail_randomly()?;
        Ok(begun)
    }

    async fn upload(&self, session: &str, lines: Vec<u8>) -> Result<Uploaded, LinkError> {
        self.fail_randomly()?;
        let read = || read_edits(&lines).map(|edits| (edits, lines.len() as u64));
        let taken = self.sync.upload(&self.device()?, session, read).await.map_err(refused)?;
        self.fail_randomly()?;
        Ok(taken)
    }

    async fn download(&self, session: &str, cursor: &str) -> Result<Vec<u8>, LinkError> {
        self.fail_randomly()?;
        let pack = |mut lines: Vec<u8>, end| {
            let rows =
                serde_json::Deserializer::from_slice(&lines).into_iter::<RowLine>().map(|row| row.expect("a row"));
            self.sent.lock().expect("not poisoned").extend(rows);
            serde_json::to_writer(&mut lines, &end).expect("JSON");
            let bytes = lines.len() as u64;
            (lines, bytes)
        };
        let block = self.sync.download(&self.device()?, session, cursor, pack).await.map_err(refused)?;
        self.fail_randomly()?;
        Ok(block)
    }

    async fn wait(&self, cursor: &str, longest: Duration) -> Result<bool, LinkError> {
        self.fail_randomly()?;
        self.sync.wait_for_news(&self.device()?, cursor, longest).await.map_err(refused)
    }

    async fn end(&self, session: &str) -> Result<(), LinkError> {
        self.sync.end(&self.device()?, session).await.map(drop).map_err(refused)
    }
}

/// A device with its file.
pub struct Phone {
    pub replica: Replica,
    pub path: PathBuf,
    pub token: String,
}

impl Phone {
    pub async fn new(fixture: &SyncFixture, subscriber: &str) -> Phone {
        let token = fixture.device(subscriber).await;
        let path = fixture.folder.path().join(format!("{}.replica", &token[14..26]));
        let home = ServerCredentials { url: "http://localhost".to_owned(), token: token.clone() };
        Phone { replica: Replica::create(&path, &home).expect("made"), path, token }
    }

    /// Synchronizes over a working link.
    pub async fn sync(&mut self, fixture: &SyncFixture) -> Summary {
        self.try_sync(fixture).await.expect("synchronised")
    }

    pub async fn try_sync(&mut self, fixture: &SyncFixture) -> Result<Summary, ReplicaError> {
        self.replica.sync(&fixture.link(&self.token), &mut |_| ()).await
    }

    pub fn run(&self, sql: &str) {
        self.replica.connection().execute_batch(sql).expect("runs");
    }

    /// All rows of a table, in the form of the API.
    pub fn rows(&self, collection: &str) -> BTreeMap<String, Json> {
        let (names, rows) = self.replica.query(&format!("SELECT * FROM {collection}")).expect("queried");
        let row = |cells: Vec<Json>| {
            let mut named: Map<String, Json> = names.iter().cloned().zip(cells).collect();
            named.retain(|name, value| !value.is_null() && name != "_version");
            let id = named.remove("id").expect("an id").as_str().expect("text").to_owned();
            (id, Json::Object(named))
        };
        rows.into_iter().map(row).collect()
    }

    pub fn ids(&self, collection: &str) -> BTreeSet<String> {
        self.rows(collection).into_keys().collect()
    }
}

pub fn rows<const N: usize>(expected: [(&str, Json); N]) -> BTreeMap<String, Json> {
    expected.into_iter().map(|(id, row)| (id.to_owned(), row)).collect()
}

/// A shop with one collection of notes; `more` is appended to its fields.
pub fn notes(more: &str) -> String {
    format!(
        "application: shop\ncollections:\n  notes:\n    fields: {{ owner: {{ type: string, required: true }}, text: string, \
         count: integer, done: boolean, tags: list }}\n    partition:\n      - match: {{ owner: subscriber.id }}\n{more}"
    )
}

pub fn note(owner: &str, text: &str) -> Json {
    json!({ "owner": owner, "text": text })
}

impl SyncFixture {
    pub async fn records_remove(&self, id: &str) {
        let id = id.parse().expect("an id");
        self.records.remove_subscriber(&id, Precondition::Any, self.now()).await.expect("removed");
    }
}

impl SyncFixture {
    pub async fn records_remove_application(&self) {
        self.records.remove_application(&name("shop"), self.now()).await.expect("removed");
    }
}
