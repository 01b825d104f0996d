//! Rows, and the devices that keep replicas of them, as JSON.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json, value::RawValue};
use tocsin_model::{
    id::{Name, SubscriberId},
    problem::Problem,
    time::Timestamp,
};
use tocsin_store::collections::{PastSession, ReplicaDevice, Tally};
use tocsin_sync::{
    PoolStatus, Replicas,
    catalogue::Ready,
    rows::{ConflictShown, RefusedRow, RowShown},
    sessions::Session,
};
use utoipa::ToSchema;

/// A collection.
#[derive(Serialize, ToSchema)]
pub(crate) struct CollectionBody {
    /// Its name.
    #[schema(value_type = String)]
    name: Name,
    /// What it is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// As the application defines it.
    #[schema(value_type = Object)]
    definition: Json,
}

impl From<&Ready> for CollectionBody {
    fn from(ready: &Ready) -> Self {
        let definition = serde_json::to_value(&ready.definition).expect("a definition is JSON");
        CollectionBody { name: ready.name.clone(), description: ready.definition.description.clone(), definition }
    }
}

/// A row.
#[derive(Serialize, ToSchema)]
pub(crate) struct RowBody {
    /// Its id in the collection.
    id: String,
    /// Grows with each change of what it says; also its ETag.
    version: String,
    /// When it was written last.
    #[schema(value_type = String)]
    written_at: Timestamp,
    /// What it says.
    #[schema(value_type = Object)]
    row: Box<RawValue>,
}

impl From<RowShown> for RowBody {
    fn from(shown: RowShown) -> Self {
        let row = RawValue::from_string(shown.body.into()).expect("what is stored is JSON");
        let written_at = Replicas::written_at(shown.version);
        RowBody { id: shown.id, version: shown.version.0.to_string(), written_at, row }
    }
}

/// A line of rows that are put together.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RowLine {
    /// Its id.
    pub(crate) id: String,
    /// What it says.
    #[schema(value_type = Object)]
    pub(crate) row: Map<String, Json>,
}

/// What became of rows that were put together.
#[derive(Serialize, ToSchema)]
pub(crate) struct PutBody {
    /// So many were put.
    put: usize,
    /// Those that were not, where the others are put nevertheless.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    refused: Vec<RefusedRowBody>,
}

impl PutBody {
    pub(crate) fn new(given: usize, refused: Vec<RefusedRow>) -> Self {
        let body = |RefusedRow { at, id, problems }| RefusedRowBody { line: at + 1, id, problems };
        PutBody { put: given - refused.len(), refused: refused.into_iter().map(body).collect() }
    }
}

/// A row that cannot be.
#[derive(Serialize, ToSchema)]
pub(crate) struct RefusedRowBody {
    /// Its place among the rows, from 1.
    line: usize,
    /// Its id.
    id: String,
    /// What is wrong with it.
    #[schema(value_type = Vec<super::ProblemItem>)]
    problems: Vec<Problem>,
}

/// Edits that met.
#[derive(Serialize, ToSchema)]
pub(crate) struct ConflictBody {
    /// Its number.
    number: u64,
    /// The collection.
    #[schema(value_type = String)]
    collection: Name,
    /// The row.
    row: String,
    /// When.
    #[schema(value_type = String)]
    at: Timestamp,
    /// The device whose edit came second; absent if it is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    /// What decided.
    resolver: String,
    /// Whose edit stayed: `client`, `server` or `both`.
    winner: String,
    /// What the fields were when the device edited them.
    #[schema(value_type = Object)]
    base: Json,
    /// What the row said; null if it was gone.
    #[schema(value_type = Object)]
    server: Json,
    /// What the device wanted; null if it removed the row.
    #[schema(value_type = Object)]
    client: Json,
    /// When what had lost was put in place.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    reverted_at: Option<Timestamp>,
}

impl From<ConflictShown> for ConflictBody {
    fn from(shown: ConflictShown) -> Self {
        let ConflictShown { collection, device, conflict } = shown;
        let read = |text: &str| serde_json::from_str(text).unwrap_or(Json::Null);
        ConflictBody {
            number: conflict.number,
            collection,
            row: conflict.row.into(),
            at: conflict.at,
            device,
            resolver: conflict.resolver.into(),
            winner: conflict.winner.into(),
            base: read(&conflict.base),
            server: read(&conflict.server),
            client: read(&conflict.client),
            reverted_at: conflict.reverted_at,
        }
    }
}

/// A device that is asked for.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewDeviceBody {
    /// The application whose collections it reads.
    #[schema(value_type = String)]
    pub(crate) application: Name,
    /// Whose it is.
    #[schema(value_type = String)]
    pub(crate) subscriber: SubscriberId,
    /// What its owner calls it.
    pub(crate) name: String,
    /// The collections that it may use; all if not given.
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>)]
    pub(crate) collections: Option<Vec<Name>>,
    /// Whether it only reads.
    #[serde(default)]
    pub(crate) read_only: bool,
    /// How long its token lasts, in seconds; until it is revoked if not given.
    #[serde(default)]
    pub(crate) expires_in: Option<u64>,
}

/// A device that keeps a replica.
#[derive(Serialize, ToSchema)]
pub(crate) struct ReplicaDeviceBody {
    /// Its id.
    id: String,
    /// The application whose collections it reads.
    #[schema(value_type = String)]
    application: Name,
    /// Whose it is.
    #[schema(value_type = String)]
    subscriber: SubscriberId,
    /// What its owner calls it.
    name: String,
    /// The collections that it may use; all if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>)]
    collections: Option<Vec<Name>>,
    /// Whether it only reads.
    read_only: bool,
    /// When it was made.
    #[schema(value_type = String)]
    created_at: Timestamp,
    /// When its token ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    expires_at: Option<Timestamp>,
    /// Since when it is to drop all that it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    wipe_at: Option<Timestamp>,
    /// When it said that it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    wiped_at: Option<Timestamp>,
    /// Its token; only in the answer that made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
}

impl ReplicaDeviceBody {
    pub(crate) fn new(device: &Arc<ReplicaDevice>, token: Option<String>) -> Self {
        let ReplicaDevice { application, subscriber, name, collections, .. } = &**device;
        ReplicaDeviceBody {
            id: device.id.to_string(),
            application: application.clone(),
            subscriber: subscriber.clone(),
            name: name.clone(),
            collections: collections.clone(),
            read_only: !device.may_write,
            created_at: device.created_at,
            expires_at: device.expires_at,
            wipe_at: device.wipe_at,
            wiped_at: device.wiped_at,
            token,
        }
    }
}

/// What a session carried.
#[derive(Serialize, ToSchema)]
pub(crate) struct TallyBody {
    /// Edits that were taken in.
    edits: u64,
    /// Those that met others.
    conflicts: u64,
    /// Those that were refused.
    refused: u64,
    /// Rows that were sent.
    rows: u64,
    /// Those that were told to be gone.
    removed: u64,
    /// Bytes that came, packed.
    bytes_up: u64,
    /// Bytes that were sent, packed.
    bytes_down: u64,
    /// Milliseconds in queues.
    waited_ms: u64,
}

impl From<Tally> for TallyBody {
    fn from(tally: Tally) -> Self {
        let Tally { edits, conflicts, refused, rows, removed, bytes_up, bytes_down, waited_ms } = tally;
        TallyBody { edits, conflicts, refused, rows, removed, bytes_up, bytes_down, waited_ms }
    }
}

/// Whether a device should come.
#[derive(Serialize, ToSchema)]
pub(crate) struct NewsBody {
    /// There may be something new for it.
    pub(crate) news: bool,
}

/// A session of a device.
#[derive(Serialize, ToSchema)]
pub(crate) struct SessionBody {
    /// Its device; empty if that is gone.
    device: String,
    /// When it began.
    #[schema(value_type = String)]
    began_at: Timestamp,
    /// When it ended; absent while it lasts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    ended_at: Option<Timestamp>,
    /// `active`, `done`, or `lost` when the device did not come back.
    outcome: String,
    /// What it carried.
    #[serde(flatten)]
    tally: TallyBody,
}

impl From<Session> for SessionBody {
    fn from(session: Session) -> Self {
        SessionBody {
            device: session.device.id.to_string(),
            began_at: session.began_at,
            ended_at: None,
            outcome: "active".to_owned(),
            tally: session.tally.into(),
        }
    }
}

impl SessionBody {
    pub(crate) fn past(device: String, past: PastSession) -> Self {
        SessionBody {
            device,
            began_at: past.began_at,
            ended_at: Some(past.ended_at),
            outcome: past.outcome.into(),
            tally: past.tally.into(),
        }
    }
}

/// How sync does.
#[derive(Serialize, ToSchema)]
pub(crate) struct SyncStatusBody {
    /// Rows that are there.
    pub(crate) rows: u64,
    /// Rows of which is only known that they are gone.
    pub(crate) removed: u64,
    /// Events of changes of rows that wait to be accepted.
    pub(crate) events_waiting: u64,
    /// Devices that may keep replicas.
    pub(crate) devices: usize,
    /// Sessions that last.
    pub(crate) sessions: usize,
    /// Devices that rest until there is something new for them.
    pub(crate) resting: usize,
    /// The pools.
    pub(crate) pools: Vec<PoolBody>,
}

/// A pool.
#[derive(Serialize, ToSchema)]
pub(crate) struct PoolBody {
    /// `upload`, `reconcile` or `download`.
    name: &'static str,
    /// Its places.
    size: usize,
    /// Those that it may have; where it finds by itself how many help, it has fewer.
    size_max: usize,
    /// Those that are taken.
    busy: usize,
    /// Requests that wait.
    waiting: usize,
}

impl From<PoolStatus> for PoolBody {
    fn from(PoolStatus { name, size, size_max, busy, waiting }: PoolStatus) -> Self {
        PoolBody { name, size, size_max, busy, waiting }
    }
}
