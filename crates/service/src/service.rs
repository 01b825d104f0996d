//! State that all operations share. Each area adds its operations in a file of its own.

use std::{
    collections::HashSet,
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use parking_lot::Mutex;
use tocsin_capacity::saturation::SaturationMonitor;
use tocsin_delivery::TokenSigner;
use tocsin_exchange::Exchanges;
use tocsin_model::{id::SubscriberNumber, time::Timestamp};
use tocsin_pipeline::{Clock, Pipeline};
use tocsin_store::{
    inbox::Inbox,
    journal::{
        ActivityLog, Broadcasts, Delays, Erasures, EventLog, Maintenance, NotificationLog, OpenWork, OperatorActions,
        RuleStore, Schedules,
    },
    records::{
        ApiKeyStore, ApplicationStore, CapacityProfileStore, ChangeLog, ConsentStore, FeedbackStore, Installation,
        MatchStore, RecipientStore, ScheduleStore, SegmentStore, SubscriberStore, SubscriptionStore, SuppressionStore,
    },
};

use crate::{
    audit::AuditLog,
    backtests::jobs::Backtests,
    backups::Drills,
    consent::ConsentKey,
    inbox::Audiences,
    keys::{Accounts, KeyUses, Keys},
    live::hub::LiveHub,
    persons::PersonRows,
    preview_html::PreviewHtml,
    series::SampleRing,
    server_host::ServerHost,
    sessions::logins::Logins,
    status::DiskProbe,
    turns::Turns,
};

/// A folder whose free space limits what can be accepted.
pub struct FreeSpace {
    /// The folder.
    pub folder: PathBuf,
    /// Returns the free bytes of the file system.
    pub bytes: Arc<dyn Fn() -> Option<u64> + Send + Sync>,
    /// Free space below which the service is not ready.
    pub bytes_min: u64,
}

/// The service. One instance per process, shared by all protocol front ends.
pub struct Service {
    pub(crate) installation: Arc<dyn Installation>,
    pub(crate) application_store: Arc<dyn ApplicationStore>,
    pub(crate) subscriber_store: Arc<dyn SubscriberStore>,
    pub(crate) segment_store: Arc<dyn SegmentStore>,
    pub(crate) subscription_store: Arc<dyn SubscriptionStore>,
    pub(crate) consent_key: OnceLock<Arc<ConsentKey>>,
    pub(crate) consent_store: Arc<dyn ConsentStore>,
    pub(crate) suppression_store: Arc<dyn SuppressionStore>,
    pub(crate) feedback_store: Arc<dyn FeedbackStore>,
    pub(crate) recipient_store: Arc<dyn RecipientStore>,
    pub(crate) change_log: Arc<dyn ChangeLog>,
    pub(crate) match_store: Arc<dyn MatchStore>,
    pub(crate) schedule_store: Arc<dyn ScheduleStore>,
    pub(crate) api_key_store: Arc<dyn ApiKeyStore>,
    pub(crate) event_log: Arc<dyn EventLog>,
    pub(crate) open_work: Arc<dyn OpenWork>,
    pub(crate) notification_log: Arc<dyn NotificationLog>,
    pub(crate) delays: Arc<dyn Delays>,
    pub(crate) rule_store: Arc<dyn RuleStore>,
    pub(crate) schedules: Arc<dyn Schedules>,
    pub(crate) operator_actions: Arc<dyn OperatorActions>,
    pub(crate) broadcasts: Arc<dyn Broadcasts>,
    pub(crate) activity_log: Arc<dyn ActivityLog>,
    pub(crate) maintenance: Arc<dyn Maintenance>,
    pub(crate) erasures: Arc<dyn Erasures>,
    pub(crate) inbox: Arc<dyn Inbox>,
    pub(crate) audit_log: OnceLock<Arc<AuditLog>>,
    pub(crate) person_rows: OnceLock<Arc<dyn PersonRows>>,
    /// Persons who are erased from all stores but the journal. Its lock serializes erasures.
    pub(crate) erasing: tokio::sync::Mutex<HashSet<SubscriberNumber>>,
    pub(crate) erasures_waiting: tokio::sync::Notify,
    pub(crate) key_uses: Arc<KeyUses>,
    pub(crate) capacity_profile_store: Arc<dyn CapacityProfileStore>,
    pub(crate) host: OnceLock<Arc<dyn ServerHost>>,
    pub(crate) drills: Mutex<Drills>,
    pub(crate) examinations: tokio::sync::Semaphore,
    pub(crate) plans: Arc<tokio::sync::Semaphore>,
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) exchanges: Option<Arc<Exchanges>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) free_space: Option<FreeSpace>,
    pub(crate) saturation: Option<Arc<Mutex<SaturationMonitor>>>,
    pub(crate) version: &'static str,
    pub(crate) started_at: Timestamp,
    pub(crate) keys: Arc<Keys>,
    pub(crate) accounts: Arc<Accounts>,
    pub(crate) logins: Logins,
    pub(crate) token_signer: Arc<TokenSigner>,
    /// Serializes changes of one application, so that a diff is against the version it replaces.
    pub(crate) applying: Arc<tokio::sync::Mutex<()>>,
    pub(crate) readiness: DiskProbe,
    pub(crate) imports: tokio::sync::Semaphore,
    pub(crate) audiences: Audiences,
    pub(crate) scan_permits: tokio::sync::Semaphore,
    pub(crate) rule_tests: tokio::sync::Semaphore,
    pub(crate) backtests: Backtests,
    pub(crate) searches: tokio::sync::Semaphore,
    pub(crate) samples: SampleRing,
    pub(crate) preview_html: PreviewHtml,
    pub(crate) live: LiveHub,
    /// Serializes writers that set no condition.
    pub(crate) turns: Turns,
}

impl Service {
    /// The version of the program.
    pub fn version(&self) -> &'static str {
        self.version
    }

    /// Random identity of the installation.
    pub fn instance(&self) -> &str {
        self.installation.installation()
    }

    /// Whether exchanges are enabled.
    pub fn has_exchanges(&self) -> bool {
        self.exchanges.is_some()
    }

    /// The clock of the process.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }
}
