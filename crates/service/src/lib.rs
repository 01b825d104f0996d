//! What a caller may ask of the platform, whatever face it comes through.
//!
//! Every function takes the [`Caller`] whose permission it needs, which only [`keys`] can make, and checks one scope in
//! its first line. What is wrong with a request is told completely, as [`Problem`](tocsin_model::problem::Problem)s;
//! what a caller can do about a failure is told by [`ServiceError`]. Knows nothing of HTTP or SQL.

pub mod applications; // definitions: check, apply, history, remove
pub mod events; // what happened
pub mod exports; // many of them, as lines, out
pub mod imports; // many of them, as lines, in
pub mod keys; // who is calling, and what that caller may do
pub mod roles; // named sets of that
pub mod resources; // where a limited key may do it
mod known; // whether names that a question is limited to stand for anything
pub mod operations; // batches and notifications, suspensions
pub mod suspensions; // what waits for an operator, looked at and edited
pub mod resends; // what had failed is sent again
pub mod firings; // rules that did not fire, and those that are stopped
pub mod preview; // templates tried on events
pub mod rules; // rules tried on events
pub mod indexed; // subscriptions that the match index cannot take, or takes at a price
pub mod endpoints; // those of devices that have only failed of late
pub mod sources; // where events come from, and how each source does
pub mod destinations; // where messages go, and how each destination does
pub mod chronicles; // what is kept of events
pub mod schedules; // when what is due
pub mod status; // how it all does; whether it is ready
pub mod subscribers; // whom to tell
pub mod merges; // two of them who are one
pub mod segments; // some of them, by a saved filter
pub mod subscriptions; // what they care about
pub mod own; // what subscribers change of all that by devices of their own
pub mod suppressions; // addresses that are not written to
pub mod unsubscribe; // ending that by the link of a mail
pub mod inbox; // what is there to read, and for whom
pub mod broadcasts; // what is there for everybody
pub mod push_keys; // who we are to browsers
pub mod exchanges; // messages between systems, and the ports they pass
pub mod switches; // what is switched off and on, and done at once
pub mod drain; // nothing comes in, and what is due leaves
pub mod digest; // what needs attention now
pub mod reports; // what happened, and what the state is
pub mod trace; // one thing's whole story

pub mod error; // why not, and what to do about it
pub mod page; // lists in portions
mod text_or_object; // members of bodies that are a text or an object

mod csv_cells; // cells that no spreadsheet runs
mod lines; // a stream of bytes, cut into blocks of whole lines
mod turns; // optimistic concurrency of writers without a condition

use std::{path::PathBuf, sync::Arc};

use parking_lot::Mutex;
use tocsin_capacity::saturation::Watch;
use tocsin_delivery::Signet;
use tocsin_exchange::Exchanges;
use tocsin_model::time::Timestamp;
use tocsin_pipeline::{Clock, Pipeline};
use tocsin_store::{inbox::Inbox, journal::Journal, records::Records};

pub use error::ServiceError;
pub use keys::{Caller, CredentialEnd, Scope};
pub use lines::BoxError;
pub use page::Page;

/// Everything the service works with.
pub struct Parts {
    /// The system of record.
    pub records: Arc<dyn Records>,
    /// The flow.
    pub journal: Arc<dyn Journal>,
    /// The feeds that subscribers read.
    pub inbox: Arc<dyn Inbox>,
    /// The running applications.
    pub pipeline: Arc<Pipeline>,
    /// The running exchanges, if there is a spool.
    pub exchanges: Option<Arc<Exchanges>>,
    /// Where the data lives, and how many free bytes are left there, if that can be told.
    pub free_space: Option<FreeSpace>,
    /// How far this node is from its bounds, if anybody watches.
    pub saturation: Option<Arc<Mutex<Watch>>>,
    /// The version of the program.
    pub version: &'static str,
}

/// A folder whose free space bounds what can be accepted.
pub struct FreeSpace {
    /// The folder.
    pub folder: PathBuf,
    /// Tells the free bytes there.
    pub bytes: Arc<dyn Fn() -> Option<u64> + Send + Sync>,
    /// Below this the service is not ready.
    pub bytes_min: u64,
}

/// The door to the platform. One for the process, shared by its faces.
pub struct Service {
    records: Arc<dyn Records>,
    journal: Arc<dyn Journal>,
    inbox: Arc<dyn Inbox>,
    pipeline: Arc<Pipeline>,
    exchanges: Option<Arc<Exchanges>>,
    clock: Arc<dyn Clock>,
    free_space: Option<FreeSpace>,
    saturation: Option<Arc<Mutex<Watch>>>,
    version: &'static str,
    started_at: Timestamp,
    keys: Arc<keys::Keys>,
    signet: Signet,
    /// One change of an application at a time, so that a difference is against what is replaced.
    applying: tokio::sync::Mutex<()>,
    readiness: status::Probe,
    imports: tokio::sync::Semaphore,
    audiences: inbox::Audiences,
    surveys: tokio::sync::Semaphore,
    rule_tests: tokio::sync::Semaphore,
    /// Writers that set no condition.
    turns: turns::Turns,
}

impl Service {
    /// Opens the door. Loads the API keys and follows their changes until the service is dropped.
    ///
    /// # Errors
    /// The records do not answer.
    pub async fn open(parts: Parts) -> Result<Arc<Service>, ServiceError> {
        let keys = keys::Keys::load(parts.records.clone()).await?;
        keys::follow_changes(&keys);
        let clock = parts.pipeline.clock().clone();
        let started_at = clock.now();
        Ok(Arc::new(Service {
            signet: Signet::new(parts.records.secret()),
            records: parts.records,
            journal: parts.journal,
            inbox: parts.inbox,
            pipeline: parts.pipeline,
            exchanges: parts.exchanges,
            clock,
            free_space: parts.free_space,
            saturation: parts.saturation,
            version: parts.version,
            started_at,
            keys,
            applying: tokio::sync::Mutex::new(()),
            readiness: status::Probe::default(),
            imports: tokio::sync::Semaphore::new(imports::CONCURRENT_MAX),
            audiences: inbox::Audiences::default(),
            surveys: tokio::sync::Semaphore::new(segments::SURVEYS_MAX),
            rule_tests: tokio::sync::Semaphore::new(rules::CONCURRENT_MAX),
            turns: turns::Turns::default(),
        }))
    }

    /// The clock of the process.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }
}
