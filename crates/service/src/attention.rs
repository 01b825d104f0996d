//! Attention list: the problems that need an operator now, each with its cause and the action to take.
//!
//! Four delays that users notice come first: events wait to be matched, matching is slow, delivery is slow, storing
//! subscriptions is slow. Each has a few causes, and the figures of the last quarter of an hour separate them.

mod diagnosis; // problems and causes by figures

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value as Json;
use tocsin_capacity::saturation::Saturation;
use tocsin_model::{feedback::Class, id::Name, reason_code::ReasonCode, time::Timestamp};
use tocsin_pipeline::{DestinationState, HeldBackMail};
use tocsin_store::{
    error::StoreError,
    journal::{Activity, FiringFilter, SuspensionFilter, Window},
};

pub use self::diagnosis::{CAUSES, Cause, KINDS, diagnose};
use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
};

/// Period whose activity is examined.
const LATELY: Duration = Duration::from_secs(15 * 60);
/// Period whose feedback is examined.
const FEEDBACK_LATELY: Duration = Duration::from_secs(24 * 3_600);
/// Suspended exchange messages that are counted in each partition of the spool.
pub const SUSPENDED_MESSAGES_MAX: u64 = 100_000;
/// Failing endpoints that are counted.
const ENDPOINTS_MAX: usize = 1_000;
/// Suspensions at undefined channels that are counted.
const UNDEFINED_MAX: usize = 1_000;
/// Time before the expiry of a key from which it is reported.
const EXPIRES_SOON: Duration = Duration::from_secs(14 * 86_400);
/// Firings that are counted.
const FIRINGS_MAX: usize = 1_000;

/// Urgency of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// Notifications are lost, or will be soon.
    Now,
    /// Degraded operation.
    Soon,
    /// For information.
    Note,
}

/// A problem that needs attention.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attention {
    /// Urgency.
    pub urgency: Urgency,
    /// Kind of the problem, in words with hyphens: `slow-distribution`, `suspended`, ...
    pub what: &'static str,
    /// Figures of the problem, as text.
    pub text: String,
    /// Probable cause.
    pub cause: Option<String>,
    /// Recommended action.
    pub advice: String,
    /// Code of the probable cause, for translation.
    pub cause_code: Option<&'static str>,
    /// Figures and names in the text, for translation.
    pub parameters: BTreeMap<&'static str, Json>,
    /// The object to look at, if it is one.
    pub object: Option<AttentionObject>,
}

/// The object of a problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttentionObject {
    /// Its kind, such as `rule`, `channel`, `application`.
    pub kind: &'static str,
    /// Its id or name.
    pub id: String,
    /// The application of a rule or channel.
    pub application: Option<String>,
}

impl Attention {
    fn new(urgency: Urgency, what: &'static str, text: String, advice: &str) -> Attention {
        Attention {
            urgency,
            what,
            text,
            cause: None,
            advice: advice.to_owned(),
            cause_code: None,
            parameters: BTreeMap::new(),
            object: None,
        }
    }

    /// Code of the problem: `what` in the form of other codes, such as `slow_pickup`.
    pub fn code(&self) -> String {
        self.what.replace('-', "_")
    }

    /// Adds a parameter.
    fn param(&mut self, name: &'static str, value: impl Into<Json>) -> &mut Self {
        self.parameters.insert(name, value.into());
        self
    }

    /// Adds the object, if the problem is about one only: `application/name`.
    fn only(&mut self, kind: &'static str, names: &[&str]) -> &mut Self {
        if let [name] = names {
            let (application, id) = match name.split_once('/') {
                Some((application, id)) => (Some(application.to_owned()), id.to_owned()),
                None => (None, (*name).to_owned()),
            };
            self.object = Some(AttentionObject { kind, id, application });
        }
        self
    }
}

/// Input of the diagnosis.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    /// Activity of the recent period.
    pub lately: Activity,
    /// Event batches waiting to be matched.
    pub event_batches_waiting: u64,
    /// Age of the oldest of them.
    pub oldest_event: Duration,
    /// Notifications waiting to be sent.
    pub notifications_waiting: u64,
    /// Notifications waiting for an operator.
    pub suspended: u64,
    /// Exchange messages waiting for an operator, counted up to [`SUSPENDED_MESSAGES_MAX`].
    pub suspended_messages: u64,
    /// Event batches that could not be matched.
    pub failed_batches: u64,
    /// Write latency of the journal.
    pub journal_probe: Duration,
    /// Write latency of the records.
    pub records_probe: Duration,
    /// Stores that cannot be written, each with the reason.
    pub unwritable: Vec<String>,
    /// Stores that cannot be read, each with the reason.
    pub unreadable: Vec<String>,
    /// Shards of the match indexes.
    pub shards: u64,
    /// Cores of the machine.
    pub cores: u64,
    /// Applications and exchanges that could not be started, each with the reason.
    pub not_running: Vec<String>,
    /// Stopped rules, as `application/rule`.
    pub stopped_rules: Vec<String>,
    /// Broadcasts that failed in the last day, each with its reason.
    pub broadcasts_failed: Vec<String>,
    /// Paused broadcasts.
    pub broadcasts_paused: Vec<String>,
    /// Missed firings.
    pub firings_missed: u64,
    /// Switched-off components, with their states.
    pub switches: Vec<String>,
    /// Paused destinations, by `application/channel`.
    pub destinations_paused: Vec<(String, u64)>,
    /// Stalled destinations, by `application/channel`: messages wait although the destination is not paused.
    pub destinations_stalled: Vec<(String, u64)>,
    /// Number of failing endpoints of devices, counted up to [`ENDPOINTS_MAX`].
    pub endpoints_failing: u64,
    /// Suspended notifications to channels that their application does not define.
    pub undefined_channels: BTreeMap<String, u64>,
    /// Keys that expire soon: name or id, and time.
    pub keys_expiring: Vec<(String, Timestamp)>,
    /// Mailbox providers that hold mail back, each with its channel as `application/channel`.
    pub held_back: Vec<(String, HeldBackMail)>,
    /// Complaints of the last day, and the text of the newest.
    pub complaints: (u64, String),
    /// Messages of the last day that later servers refused because of the sender, and the text of the newest.
    pub blocked: (u64, String),
    /// Free bytes on the disk, and the minimum.
    pub free_bytes: Option<(u64, u64)>,
    /// Saturation of the node.
    pub saturation: Saturation,
}

impl Service {
    /// Lists the problems that need an operator now, the most urgent first.
    ///
    /// # Errors
    /// The scope `operations:read` is missing, or a store is unavailable.
    pub async fn attention(&self, caller: &Caller) -> Result<Vec<Attention>, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        self.problems().await
    }

    pub(crate) async fn problems(&self) -> Result<Vec<Attention>, ServiceError> {
        Ok(diagnose(&self.figures().await?))
    }

    async fn figures(&self) -> Result<Figures, ServiceError> {
        let now = self.clock.now();
        let window = Window { from: now - LATELY, to: Timestamp(i64::MAX), interval: LATELY * 2 };
        let mut lately = Activity::default();
        for row in self.activity_log.activity(&window, None).await? {
            lately.add(&row.activity);
        }
        let backlog = self.open_work.backlog();
        let status = self.pipeline.status();
        let stops = self.pipeline.stopped_rules();
        let firings = self.rule_store.firings(&FiringFilter::default(), 0, FIRINGS_MAX).await?;
        // A store that cannot be written is a problem to list, and the others are listed as well.
        let (mut unwritable, mut unreadable) = (Vec::new(), Vec::new());
        let mut latency = |store: &str, probed: Result<Duration, StoreError>| {
            probed.unwrap_or_else(|error| {
                unwritable.push(format!("the {store}: {error}"));
                Duration::ZERO
            })
        };
        let journal_probe = latency("journal", self.maintenance.probe().await);
        let records_probe = latency("records", self.installation.probe().await);
        let suspended_messages = self.suspended_messages().await.unwrap_or_else(|error| {
            unreadable.push(format!("the spool: {error}"));
            0
        });
        let switches = self.pipeline.switches().into_iter().map(|found| {
            let by = self.key_name(&found.switch.by).unwrap_or(found.switch.by);
            format!("{} is {} by {by}", found.switch.component, found.switch.state.word())
        });
        Ok(Figures {
            lately,
            event_batches_waiting: backlog.event_batches,
            oldest_event: backlog.oldest_event.map_or(Duration::ZERO, |oldest| now.since(oldest)),
            notifications_waiting: backlog.notifications,
            suspended: backlog.suspended,
            suspended_messages,
            failed_batches: backlog.failed_batches,
            journal_probe,
            records_probe,
            unwritable,
            unreadable,
            shards: status.iter().map(|(_, status)| status.shards).max().unwrap_or(0),
            cores: std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64),
            not_running: self.not_running(),
            stopped_rules: stops.iter().map(|stop| format!("{}/{}", stop.application, stop.rule)).collect(),
            broadcasts_failed: self.failed_broadcasts(now - FEEDBACK_LATELY).await?,
            broadcasts_paused: self.paused_broadcasts().await?,
            firings_missed: firings.iter().map(|firing| firing.batches).sum(),
            switches: switches.collect(),
            destinations_paused: self.paused_destinations(),
            held_back: self.held_back_mail(),
            endpoints_failing: self.recipient_store.failing_endpoints(None, ENDPOINTS_MAX).await?.len() as u64,
            undefined_channels: self.undefined_channels().await?,
            keys_expiring: self.keys.expiring(now, now + EXPIRES_SOON),
            destinations_stalled: self.destinations_in(DestinationState::Stalled),
            complaints: self.recent_feedback(Class::Complaint, now - FEEDBACK_LATELY).await?,
            blocked: self.recent_feedback(Class::Blocked, now - FEEDBACK_LATELY).await?,
            free_bytes: self.free_space.as_ref().and_then(|space| Some(((space.bytes)()?, space.bytes_min))),
            saturation: self.saturation.as_ref().map(|watch| watch.lock().state()).unwrap_or_default(),
        })
    }
}

impl Service {
    /// Number of exchange messages that wait for an operator, counted up to [`SUSPENDED_MESSAGES_MAX`].
    pub(crate) async fn suspended_messages(&self) -> Result<u64, ServiceError> {
        match &self.exchanges {
            Some(exchanges) => Ok(exchanges.operations.suspended(SUSPENDED_MESSAGES_MAX).await?),
            None => Ok(0),
        }
    }

    /// Suspended notifications to channels that their application does not define, by `application/channel`.
    async fn undefined_channels(&self) -> Result<BTreeMap<String, u64>, ServiceError> {
        let text = ReasonCode::UndefinedChannel.text();
        let reason = text.split("{}").next().map(str::to_owned);
        let filter = SuspensionFilter { reason, ..SuspensionFilter::default() };
        let mut found = BTreeMap::new();
        for stored in self.operator_actions.scan_suspensions(&filter, 0, UNDEFINED_MAX).await?.items {
            let suspension = stored.suspension;
            if let (ReasonCode::UndefinedChannel, Some(channel)) = ReasonCode::of(&suspension.reason) {
                let count = suspension.ordinals.len() as u64;
                *found.entry(format!("{}/{channel}", suspension.application)).or_default() += count;
            }
        }
        Ok(found)
    }

    /// Applications and exchanges that could not be started, each with the reason.
    pub(crate) fn not_running(&self) -> Vec<String> {
        let applications = self.pipeline.failed_applications().into_iter();
        let exchanges = self.exchanges.as_ref().map(|all| all.operations.failed_exchanges()).unwrap_or_default();
        let text = |kind: &str, (name, reason): (Name, String)| format!("the {kind} `{name}`: {reason}");
        let applications = applications.map(|failed| text("application", failed));
        applications.chain(exchanges.into_iter().map(|failed| text("exchange", failed))).collect()
    }

    /// Mailbox providers that hold mail back, by `application/channel`.
    pub(crate) fn held_back_mail(&self) -> Vec<(String, HeldBackMail)> {
        let found = self.pipeline.held_back().into_iter().flat_map(|(application, channel, providers)| {
            let channel = format!("{application}/{channel}");
            providers.into_iter().map(move |provider| (channel.clone(), provider))
        });
        found.collect()
    }

    /// Number of paused destinations without the mailbox providers, which are listed one by one.
    fn paused_destinations(&self) -> Vec<(String, u64)> {
        let mut paused = self.destinations_in(DestinationState::Paused);
        for (channel, _) in self.held_back_mail().iter().filter(|(_, provider)| provider.paused_for.is_some()) {
            if let Some((_, count)) = paused.iter_mut().find(|(name, _)| name == channel) {
                *count = count.saturating_sub(1);
            }
        }
        paused.retain(|(_, count)| *count > 0);
        paused
    }

    /// Number of destinations in this state, by `application/channel`; zeros are left out.
    pub(crate) fn destinations_in(&self, state: DestinationState) -> Vec<(String, u64)> {
        let counts = self.pipeline.destination_counts().into_iter();
        let in_state = counts.map(|(application, channel, counts)| {
            let count = DestinationState::ALL.iter().zip(counts).find(|(found, _)| **found == state);
            (format!("{application}/{channel}"), count.map_or(0, |(_, count)| count as u64))
        });
        in_state.filter(|(_, count)| *count > 0).collect()
    }
}

/// Destinations of each channel, as text.
pub(crate) fn each_channel(counts: &[(String, u64)]) -> String {
    counts.iter().map(|(channel, count)| format!("{count} of {channel}")).collect::<Vec<_>>().join(", ")
}
