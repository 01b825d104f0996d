//! The service layer: all operations of the platform, independent of the protocol by which a caller comes.
//!
//! Every function takes the [`Caller`] whose permission it needs, which only [`keys`] can make, and checks one scope
//! first. All problems of a request are returned together, as [`Problem`](tocsin_model::problem::Problem)s;
//! [`ServiceError`] lists what a caller can do about a failure. The crate knows nothing of HTTP or SQL.

pub mod applications; // application definitions: check, apply, history, remove
pub mod events; // event intake: JSON, lines, CloudEvents
pub mod exports; // bulk export as NDJSON or CSV
pub mod imports; // bulk import from NDJSON or CSV
pub mod keys; // API keys: authentication and authorization
pub mod roles; // named sets of scopes
pub mod users; // users of the console
pub mod sessions; // sessions of users: login, setup, one-time links
pub mod resources; // resources that an API key is limited to
mod resource_checks; // access of limited keys to objects
mod service; // state that all operations share
mod known; // detection of unknown names in filters
pub mod operations; // event batches, notification batches, notifications and suspensions
pub mod suspensions; // details and edits of suspended work
pub mod scanned; // results and extent of bounded searches
pub mod event_search; // search of events by a condition in CEL
pub mod notification_search; // search of notifications by recipient, outcome, time and more
pub mod resends; // failed notifications are sent again
pub mod delayed; // delayed notifications that wait
pub mod firings; // missed and slow firings, stopped rules
pub mod preview; // preview of templates, and test messages
mod preview_html; // HTML of recent previews
pub mod content; // content of sent notifications, rendered again
pub mod rules; // rule tests on events
pub mod backtests; // two versions of a rule over stored events
pub mod indexed; // subscriptions that the match index rejects or scans
pub mod endpoints; // device endpoints whose recent attempts have all failed
pub mod sources; // event sources and their status
pub mod destinations; // destinations of channels and their state
mod mail_senders; // identities of mail channels
pub mod chronicles; // per-key aggregates of events
pub mod schedules; // explanation and progress of schedules
pub mod status; // status and readiness of the platform
pub mod subscribers; // subscribers and their devices
pub mod persons; // export and erasure of a person
pub mod merges; // merges of two subscribers
pub mod segments; // saved filters over subscribers
pub mod subscriptions; // subscriptions, checked against their class
pub mod own; // self-service of subscribers through their own devices
pub mod consent; // consent of subscriptions: requests, confirmations, evidence
mod consent_actor; // acting parties of consents, and the consent that a subscription begins with
pub mod suppressions; // addresses that get no messages
pub mod feedback; // bounces, complaints and replies to sent messages
pub mod receivers; // receivers of webhooks of mail and SMS providers
pub mod unsubscribe; // unsubscription: by links in mails, by their page, and by operators
pub mod preference_page; // the preference page of a subscriber
pub mod inbox; // feeds of subscribers
pub mod inbox_broadcasts; // inbox items for all subscribers or a segment
pub mod notifybc; // operations of the NotifyBC interface
pub mod broadcasts; // messages of people to an audience: count, test, send, cancel, results
pub mod push_keys; // VAPID public keys for web push
pub mod exchanges; // exchanges: messages, ports and definitions
pub mod search; // objects by id, name or address
pub mod audit; // audit log: merge of the files, export, retention
pub mod switches; // components switched off and on, and backups
pub mod backups; // backups in the data folder, and restore drills
pub mod capacity; // capacity plans, and a load profile derived from recorded activity
pub mod maintenance; // effective configuration, examination and log of the server
pub mod server_host; // the process that runs the service, as maintenance needs it
pub mod server_log; // the newest lines of the server's log
pub mod drain; // graceful drain: closed intake, due work is delivered
pub mod attention; // list of problems that need an operator now
pub mod reports; // reports on activity and state
pub mod series; // time series for charts
pub mod live; // live summaries by topic
pub mod trace; // trace of a thing, step by step
pub mod explain; // why a notification about an event was sent to a subscriber, or was not

pub mod error; // service errors by what the caller can do about them
pub mod page; // pagination by cursor
pub mod run_mode; // dry runs of operations on many objects
pub mod text_or_object; // JSON members that are a text or an object

mod csv_cells; // CSV cells safe against formula injection
mod lines; // splits a byte stream into blocks of whole lines
pub mod turns; // optimistic concurrency for writers without a condition

use std::sync::Arc;

use parking_lot::Mutex;
use tocsin_capacity::saturation::SaturationMonitor;
use tocsin_delivery::TokenSigner;
use tocsin_exchange::Exchanges;
use tocsin_pipeline::Pipeline;
use tocsin_store::{inbox::Inbox, journal::Journal, records::Records};

pub use consent_actor::ConsentDraft;
pub use error::ServiceError;
pub use keys::{Caller, CredentialEnd, Scope};
pub use lines::BoxError;
pub use page::Page;
pub use run_mode::RunMode;
pub use service::{FreeSpace, Service};
pub use tocsin_pipeline::{MailKey, MailSender};

/// The parts a service is built from.
pub struct Parts {
    /// The system of record.
    pub records: Arc<dyn Records>,
    /// Journal: the store of the flow.
    pub journal: Arc<dyn Journal>,
    /// The feeds that subscribers read.
    pub inbox: Arc<dyn Inbox>,
    /// The running pipeline.
    pub pipeline: Arc<Pipeline>,
    /// The running exchanges, if there is a spool.
    pub exchanges: Option<Arc<Exchanges>>,
    /// Data folder, with its free space if the system reports it.
    pub free_space: Option<FreeSpace>,
    /// Saturation monitor of this node, if enabled.
    pub saturation: Option<Arc<Mutex<SaturationMonitor>>>,
    /// The version of the program.
    pub version: &'static str,
}

impl Service {
    /// Creates the service. Loads the API keys and follows their changes until the service is dropped.
    ///
    /// # Errors
    /// The records are unavailable.
    pub async fn open(parts: Parts) -> Result<Arc<Service>, ServiceError> {
        let (records, journal) = (parts.records, parts.journal);
        let keys = keys::Keys::load(records.clone()).await?;
        keys::follow_changes(&keys);
        let key_uses = keys::KeyUses::load(records.clone()).await?;
        keys::keep_storing(&key_uses);
        let accounts = keys::Accounts::load(records.clone()).await?;
        let clock = parts.pipeline.clock().clone();
        keys::keep_up(&accounts, clock.clone());
        let started_at = clock.now();
        Ok(Arc::new(Service {
            token_signer: Arc::new(TokenSigner::new(records.secret())),
            installation: records.clone(),
            capacity_profile_store: records.clone(),
            application_store: records.clone(),
            subscriber_store: records.clone(),
            segment_store: records.clone(),
            subscription_store: records.clone(),
            consent_key: Default::default(),
            consent_store: records.clone(),
            suppression_store: records.clone(),
            feedback_store: records.clone(),
            recipient_store: records.clone(),
            change_log: records.clone(),
            match_store: records.clone(),
            schedule_store: records.clone(),
            api_key_store: records,
            event_log: journal.clone(),
            open_work: journal.clone(),
            notification_log: journal.clone(),
            delays: journal.clone(),
            rule_store: journal.clone(),
            schedules: journal.clone(),
            operator_actions: journal.clone(),
            broadcasts: journal.clone(),
            activity_log: journal.clone(),
            maintenance: journal.clone(),
            erasures: journal,
            audit_log: Default::default(),
            person_rows: Default::default(),
            erasing: Default::default(),
            erasures_waiting: Default::default(),
            key_uses,
            host: Default::default(),
            drills: Default::default(),
            examinations: tokio::sync::Semaphore::new(1),
            plans: Arc::new(tokio::sync::Semaphore::new(capacity::PLANS_MAX)),
            inbox: parts.inbox,
            pipeline: parts.pipeline,
            exchanges: parts.exchanges,
            clock,
            free_space: parts.free_space,
            saturation: parts.saturation,
            version: parts.version,
            started_at,
            keys,
            accounts,
            logins: Default::default(),
            applying: Arc::default(),
            readiness: status::DiskProbe::default(),
            imports: tokio::sync::Semaphore::new(imports::CONCURRENT_MAX),
            audiences: inbox::Audiences::default(),
            scan_permits: tokio::sync::Semaphore::new(segments::SEGMENT_SCANS_MAX),
            rule_tests: tokio::sync::Semaphore::new(rules::CONCURRENT_MAX),
            backtests: backtests::jobs::Backtests::default(),
            searches: tokio::sync::Semaphore::new(scanned::CONCURRENT_MAX),
            samples: series::SampleRing::default(),
            preview_html: preview_html::PreviewHtml::default(),
            live: live::hub::LiveHub::new(format!("{:x}", started_at.0)),
            turns: turns::Turns::default(),
        }))
    }
}
