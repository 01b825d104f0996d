//! Rows, and the devices that keep replicas of them, as JSON.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json, value::RawValue};
use tocsin_model::{
    id::{Name, SubscriberId},
    problem::Problem,
    time::Timestamp,
};
use tocsin_store::collections::{PastSession, ReplicaDevice, SessionCounts};
use tocsin_sync::{
    PoolStatus, Replicas,
    catalogue::Ready,
    rows::{ConflictView, RefusedRow, RowView},
    sessions::Session,
};
use utoipa::ToSchema;

/// A collection.
#[derive(Serialize, ToSchema)]
pub(crate) struct CollectionBody {
    /// Its name.
    #[schema(value_type = String)]
    name: Name,
    /// Purpose.
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
    /// Version, increased by each change; also the ETag.
    version: String,
    /// When it was written last.
    #[schema(value_type = String)]
    written_at: Timestamp,
    /// Content of the row.
    #[schema(value_type = Object)]
    row: Box<RawValue>,
}

impl From<RowView> for RowBody {
    fn from(shown: RowView) -> Self {
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
    /// Content of the row.
    #[schema(value_type = Object)]
    pub(crate) row: Map<String, Json>,
}

/// Result of storing several rows.
#[derive(Serialize, ToSchema)]
pub(crate) struct PutBody {
    /// So many were put.
    put: usize,
    /// Rows that were refused while the others were stored.
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
    /// Its line, from 1.
    line: usize,
    /// Its id; empty if the line has none that can be read.
    id: String,
    /// Its errors.
    #[schema(value_type = Vec<super::ProblemItem>)]
    problems: Vec<Problem>,
}

/// An edit conflict.
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
    /// The device whose edit was applied second; absent if it was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    /// The conflict resolver that decided.
    resolver: String,
    /// The winning side: `client`, `server` or `both`.
    winner: String,
    /// Fields of the row that the device edited.
    #[schema(value_type = Object)]
    base: Json,
    /// Fields of the row on the server; null if it was deleted.
    #[schema(value_type = Object)]
    server: Json,
    /// Fields of the device's edit; null for a deletion.
    #[schema(value_type = Object)]
    client: Json,
    /// When what had lost was put in place.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    reverted_at: Option<Timestamp>,
}

impl From<ConflictView> for ConflictBody {
    fn from(shown: ConflictView) -> Self {
        let ConflictView { collection, device, conflict } = shown;
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
    /// The owner.
    #[schema(value_type = String)]
    pub(crate) subscriber: SubscriberId,
    /// Name given by its owner.
    pub(crate) name: String,
    /// The collections that it may use; all if not given.
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>)]
    pub(crate) collections: Option<Vec<Name>>,
    /// Whether it only reads.
    #[serde(default)]
    pub(crate) read_only: bool,
    /// Lifetime of its token in seconds; default: until it is revoked.
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
    /// The owner.
    #[schema(value_type = String)]
    subscriber: SubscriberId,
    /// Name given by its owner.
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
    /// Time at which the device confirmed the wipe.
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

/// Totals of a session.
#[derive(Serialize, ToSchema)]
pub(crate) struct TallyBody {
    /// Edits that were taken in.
    edits: u64,
    /// Number of conflicts.
    conflicts: u64,
    /// Number of refused edits.
    refused: u64,
    /// Rows that were sent.
    rows: u64,
    /// Number of deletions sent.
    removed: u64,
    /// Bytes that came, packed.
    bytes_up: u64,
    /// Bytes that were sent, packed.
    bytes_down: u64,
    /// Milliseconds in queues.
    waited_ms: u64,
}

impl From<SessionCounts> for TallyBody {
    fn from(tally: SessionCounts) -> Self {
        let SessionCounts { edits, conflicts, refused, rows, removed, bytes_up, bytes_down, waited_ms } = tally;
        TallyBody { edits, conflicts, refused, rows, removed, bytes_up, bytes_down, waited_ms }
    }
}

/// Whether a device should come.
#[derive(Serialize, ToSchema)]
pub(crate) struct NewsBody {
    /// There may be new data for the device.
    pub(crate) news: bool,
}

/// A session of a device.
#[derive(Serialize, ToSchema)]
pub(crate) struct SessionBody {
    /// Its device; empty if it was removed.
    device: String,
    /// When it began.
    #[schema(value_type = String)]
    began_at: Timestamp,
    /// When it ended; absent while it lasts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    ended_at: Option<Timestamp>,
    /// `active`, `done`, or `lost` if the device did not return.
    outcome: String,
    /// Its totals.
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

/// Status of sync.
#[derive(Serialize, ToSchema)]
pub(crate) struct SyncStatusBody {
    /// Existing rows.
    pub(crate) rows: u64,
    /// Tombstones of removed rows.
    pub(crate) removed: u64,
    /// Events of changes of rows that wait to be accepted.
    pub(crate) events_waiting: u64,
    /// Devices that may keep replicas.
    pub(crate) devices: usize,
    /// Sessions that last.
    pub(crate) sessions: usize,
    /// Devices that wait in a long poll.
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
    /// Maximum size; an adaptive pool can have fewer.
    size_max: usize,
    /// Workers in use.
    busy: usize,
    /// Requests that wait.
    waiting: usize,
}

impl From<PoolStatus> for PoolBody {
    fn from(PoolStatus { name, size, size_max, busy, waiting }: PoolStatus) -> Self {
        PoolBody { name, size, size_max, busy, waiting }
    }
}
