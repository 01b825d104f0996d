//! Attention list: the problems that need an operator now, each with its cause and the action to take.
//!
//! Four delays that users notice come first: events wait to be matched, matching is slow, delivery is slow, storing
//! subscriptions is slow. Each has a few causes, and the figures of the last quarter of an hour separate them.

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value as Json;
use tocsin_capacity::saturation::Saturation;
use tocsin_model::{
    definition::write_duration, feedback::Class, id::Name, plural::plural, reason_code::ReasonCode, time::Timestamp,
};
use tocsin_pipeline::{DestinationState, HeldBackMail};
use tocsin_store::{
    error::StoreError,
    journal::{Activity, Count, FiringFilter, SuspensionFilter, Timing, Window},
};

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
};

/// Period whose activity is examined.
const LATELY: Duration = Duration::from_secs(15 * 60);
/// Period whose feedback is examined.
const FEEDBACK_LATELY: Duration = Duration::from_secs(24 * 3_600);
/// Messages refused because of the sender from which they are reported.
const BLOCKED_MIN: u64 = 10;
/// Mailbox providers that are listed.
const HELD_BACK_MAX: usize = 20;
/// Shortest delay that is reported.
const SLOW: Duration = Duration::from_secs(5);
/// A disk that takes longer for a few bytes holds up everything that is stored.
const DISK_SLOW: Duration = Duration::from_millis(50);
/// Response time from which a receiver is slow.
const ANSWER_SLOW: Duration = Duration::from_secs(1);
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

/// Share from which a resource is nearly full.
const NEARLY_FULL: f64 = 0.9;
/// Headroom factor below which a role is nearly full.
const HEADROOM_MIN: f64 = 1.1;
/// Time until full (in seconds) below which a resource is reported.
const SOON_SECONDS: f64 = 86_400.0;

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

/// A list of problems that grows.
struct AttentionList<'a>(&'a mut Vec<Attention>);

impl AttentionList<'_> {
    fn add(&mut self, urgency: Urgency, what: &'static str, text: String, advice: &str) -> &mut Attention {
        self.0.push(Attention::new(urgency, what, text, advice));
        self.0.last_mut().expect("it was just added")
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

fn sum(counts: &[(String, u64)]) -> u64 {
    counts.iter().map(|(_, count)| count).sum()
}

fn names(list: &[String]) -> Vec<&str> {
    list.iter().map(String::as_str).collect()
}

fn channels(counts: &[(String, u64)]) -> Vec<&str> {
    counts.iter().map(|(channel, _)| channel.as_str()).collect()
}

/// `1 batch waits`, `2 batches wait`.
fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", plural(count, one, many))
}

/// Diagnoses these figures: the problems, the most urgent first.
pub fn diagnose(figures: &Figures) -> Vec<Attention> {
    let mut found = Vec::new();
    found.extend(slow_pickup(figures));
    found.extend(slow_generation(figures));
    found.extend(slow_distribution(figures));
    found.extend(slow_records(figures));
    found.extend(saturation(&figures.saturation));
    others(figures, &mut found);
    found.sort_by_key(|attention| attention.urgency);
    found
}

fn p95(figures: &Figures, timing: Timing) -> Duration {
    figures.lately.timing(timing).percentile(0.95).unwrap_or_default()
}

/// Formats a duration with two significant digits or so.
fn shown(duration: Duration) -> String {
    let digits = if duration >= Duration::from_secs(1) { 100 } else { 1 };
    write_duration(Duration::from_millis(duration.as_millis() as u64 / digits * digits))
}

/// Kinds of problems, each with its meaning. A code is the kind with underscores.
pub const KINDS: &[(&str, &str)] = &[
    ("slow-pickup", "Events wait long for the matcher."),
    ("slow-generation", "Matching takes long."),
    ("slow-distribution", "Notifications wait long before they are sent."),
    ("slow-records", "Storing subscribers and subscriptions takes long."),
    ("saturation", "The node is nearly full, or will be soon."),
    ("disk-space", "The disk is nearly full."),
    ("unreadable-store", "A store cannot be read."),
    ("unwritable-store", "A store cannot be written."),
    ("not-running", "An application or exchange does not run."),
    ("failed-batches", "Event batches could not be matched."),
    ("suspended", "Notifications wait for an operator."),
    ("suspended-messages", "Exchange messages wait for an operator."),
    ("stopped-rules", "Rules are stopped."),
    ("failed-broadcasts", "Broadcasts have failed."),
    ("paused-broadcasts", "Broadcasts are paused."),
    ("missed-firings", "Rules did not fire for event batches."),
    ("paused-destinations", "Destinations are paused after failures."),
    ("undefined-channel", "Notifications are for devices on a channel that is not defined."),
    ("failing-endpoints", "Endpoints of devices fail."),
    ("expiring-key", "An API key expires soon."),
    ("mail-held-back", "A mailbox provider holds mail back."),
    ("stalled-destinations", "Messages wait for an open destination without being sent."),
    ("refused", "Many notifications were refused."),
    ("blocked-mail", "Servers refused mail because of the sender."),
    ("complaints", "Recipients reported messages as spam."),
    ("switched-off", "Components are switched off."),
];

/// Codes of the probable causes, each with its text.
pub const CAUSES: &[(&str, &str)] = &[
    ("matching_off", "matching is switched off"),
    ("slow_journal", "the disk of the journal is slow, and every acceptance waits for it"),
    ("busy_matcher", "the matcher is busy with earlier batches"),
    ("unused_cores", "the cores of the machine are not used"),
    ("expensive_rule", "a rule is expensive"),
    ("delivery_off", "delivery is switched off"),
    ("slow_rules", "rules take long, and their notifications wait for the rest of the quantum"),
    ("slow_receiver", "a channel cannot keep up: its receiver is slow or defers messages"),
    (
        "slow_formatting",
        "the receivers are fast: formatting, or the limit of notifications in flight, is the bottleneck",
    ),
    ("slow_records", "the disk of the records is slow"),
];

fn attention(urgency: Urgency, what: &'static str, text: String, cause: &str, advice: &str) -> Attention {
    let cause_code = CAUSES.iter().find(|(_, text)| *text == cause).map(|(code, _)| *code);
    Attention { cause: Some(cause.to_owned()), cause_code, ..Attention::new(urgency, what, text, advice) }
}

/// Event batches wait too long for the matcher.
fn slow_pickup(figures: &Figures) -> Option<Attention> {
    let (collection, pickup) = (p95(figures, Timing::Collection), p95(figures, Timing::Pickup));
    if collection < SLOW && pickup < SLOW && figures.oldest_event < SLOW {
        return None;
    }
    let text = format!(
        "events take {} to be accepted and {} to be picked up (95 of 100); {}, the oldest for {}",
        shown(collection),
        shown(pickup),
        counted(figures.event_batches_waiting, "batch waits", "batches wait"),
        shown(figures.oldest_event)
    );
    let (cause, advice) = if figures
        .switches
        .iter()
        .any(|off| off.starts_with("role:match") || off.starts_with("application:"))
    {
        ("matching is switched off", "see `tocsin switch list`; `tocsin switch enable` switches it on again")
    } else if figures.journal_probe >= DISK_SLOW || collection >= SLOW {
        (
            "the disk of the journal is slow, and every acceptance waits for it",
            "give the data folder a disk of its own with a fast fsync; `tocsin doctor` measures it; submit more events at a time",
        )
    } else {
        (
            "the matcher is busy with earlier batches",
            "see the report `quantum-list` for the duration of its turns, and `subscription-class` for the rules",
        )
    };
    Some(attention(Urgency::Now, "slow-pickup", text, cause, advice))
}

/// Matching is slow.
fn slow_generation(figures: &Figures) -> Option<Attention> {
    let generation = p95(figures, Timing::Generation);
    let own = generation.saturating_sub(p95(figures, Timing::Pickup));
    if own < SLOW {
        return None;
    }
    let text =
        format!("matching takes {} of the {} until notifications are made (95 of 100)", shown(own), shown(generation));
    let (cause, advice) = if figures.shards < figures.cores {
        (
            "the cores of the machine are not used",
            "set `pipeline.match_shards = 0`, so that each core matches a part of the subscriptions",
        )
    } else {
        ("a rule is expensive", "`tocsin rule explain APPLICATION` shows the index of each rule, and rules that scan")
    };
    Some(attention(Urgency::Soon, "slow-generation", text, cause, advice))
}

/// Delivery is slow.
fn slow_distribution(figures: &Figures) -> Option<Attention> {
    let (wait, answer) = (p95(figures, Timing::Wait), p95(figures, Timing::Answer));
    if wait < SLOW {
        return None;
    }
    let text = format!(
        "notifications wait {} before they are sent (95 of 100), the receivers answer in {}; {}",
        shown(wait),
        shown(answer),
        counted(figures.notifications_waiting, "notification waits", "notifications wait")
    );
    // Slow rules delay the notifications of their whole quantum, even where the delay is counted as waiting.
    let generation = p95(figures, Timing::Generation).saturating_sub(p95(figures, Timing::Pickup));
    let deferred = figures.lately.count(Count::Deferred) * 2 > figures.lately.attempts();
    let (cause, advice) = if figures
        .switches
        .iter()
        .any(|off| off.starts_with("role:deliver") || off.starts_with("channel:"))
    {
        ("delivery is switched off", "see `tocsin switch list`; `tocsin switch enable` switches it on again")
    } else if generation >= SLOW && generation >= wait / 2 {
        (
            "rules take long, and their notifications wait for the rest of the quantum",
            "`tocsin rule explain APPLICATION` shows rules that scan; see the report `quantum-list`",
        )
    } else if answer >= ANSWER_SLOW || deferred || !figures.destinations_paused.is_empty() {
        (
            "a channel cannot keep up: its receiver is slow or defers messages",
            "see the report `channel` and `tocsin destinations`; raise `concurrency` of the channel if the receiver can take \
             more",
        )
    } else {
        (
            "the receivers are fast: formatting, or the limit of notifications in flight, is the bottleneck",
            "simplify the templates, lower `batch_size` so that more batches are formatted at a time, or raise \
             `pipeline.in_flight_per_channel`",
        )
    };
    Some(attention(Urgency::Soon, "slow-distribution", text, cause, advice))
}

/// Storing subscribers and subscriptions is slow.
fn slow_records(figures: &Figures) -> Option<Attention> {
    (figures.records_probe >= DISK_SLOW).then(|| {
        let text = format!("storing a few bytes in the records takes {}", shown(figures.records_probe));
        let advice = "give the data folder a disk of its own with a fast fsync; import in bulk: many lines share one";
        attention(Urgency::Soon, "slow-records", text, "the disk of the records is slow", advice)
    })
}

/// The node is nearly full, or will be soon.
fn saturation(state: &Saturation) -> Option<Attention> {
    let whole = state.resources.iter().find(|found| found.used >= NEARLY_FULL);
    let role = state.roles.iter().find(|found| found.headroom.is_some_and(|headroom| headroom < HEADROOM_MIN));
    let soon = state.resources.iter().filter_map(|found| Some((found.full_in_seconds?, found.resource)));
    let soon = soon.filter(|(seconds, _)| *seconds < SOON_SECONDS).min_by(|one, other| one.0.total_cmp(&other.0));
    let percent = |share: f64| (share * 100.0).round();
    let busiest = state.roles.iter().max_by(|one, other| one.processor.total_cmp(&other.processor));
    let cause = busiest.filter(|found| found.processor > 0.0).map(|found| {
        format!("the role `{}` uses {} % of the processors by its costs", found.role, percent(found.processor))
    });
    let advice = "`tocsin capacity` computes the number of nodes for the load and the next bottleneck; see the guide on capacity";
    let found =
        |urgency, text| Attention { cause: cause.clone(), ..Attention::new(urgency, "saturation", text, advice) };
    match (whole, role, soon) {
        (Some(whole), _, _) => {
            let text = format!("{} % of the {} of this node is used", percent(whole.used), whole.resource.word());
            Some(found(Urgency::Soon, text))
        }
        (_, Some(role), _) => {
            let first = role.first.as_deref().unwrap_or_default();
            let text = format!(
                "the load of the role `{}` can grow by the factor {:.2}, then `{first}` is exhausted",
                role.role,
                role.headroom.unwrap_or_default()
            );
            Some(found(Urgency::Soon, text))
        }
        (_, _, Some((seconds, resource))) => {
            let text = format!(
                "if the load keeps growing as in the last hour, the {} of this node is full in {}",
                resource.word(),
                shown(Duration::from_secs((seconds / 60.0).round() as u64 * 60))
            );
            Some(found(Urgency::Note, text))
        }
        _ => None,
    }
}

fn others(figures: &Figures, found: &mut Vec<Attention>) {
    let mut found = AttentionList(found);
    if let Some((free, least)) = figures.free_bytes.filter(|(free, least)| *free < least.saturating_mul(4)) {
        let urgency = if free < least { Urgency::Now } else { Urgency::Soon };
        let text =
            format!("{} MiB of the disk is free; below {} MiB the server accepts nothing", free >> 20, least >> 20);
        found
            .add(
                urgency,
                "disk-space",
                text,
                "free disk space, or shorten `retention`; `tocsin retention` deletes expired data at once",
            )
            .param("free_bytes", free)
            .param("least_bytes", least);
    }
    for reason in &figures.unreadable {
        let text = format!("cannot be read: {reason}");
        found
            .add(Urgency::Now, "unreadable-store", text, "examine the disk; the log of the server has the error")
            .param("detail", reason.as_str());
    }
    for reason in &figures.unwritable {
        let text = format!("cannot be written: {reason}");
        found
            .add(
                Urgency::Now,
                "unwritable-store",
                text,
                "examine the disk and its free space; after a failed fsync, restart the server",
            )
            .param("detail", reason.as_str());
    }
    for reason in &figures.not_running {
        let text = format!("does not run: {reason}");
        let advice = "correct the cause, then apply the definition again or restart the server; until then events and \
                      messages are refused with 503, and waiting ones stay stored";
        found.add(Urgency::Now, "not-running", text, advice).param("detail", reason.as_str());
    }
    if figures.failed_batches > 0 {
        let count = counted(figures.failed_batches, "event batch", "event batches");
        let text = format!("{count} could not be matched");
        found
            .add(
                Urgency::Now,
                "failed-batches",
                text,
                "`tocsin report event-batch-list --status failed` lists the reasons",
            )
            .param("count", figures.failed_batches);
    }
    if figures.suspended > 0 {
        let waits = counted(figures.suspended, "notification waits", "notifications wait");
        let text = format!("{waits} for an operator");
        found
            .add(Urgency::Now, "suspended", text, "`tocsin suspended list` lists the reasons; resume or end each")
            .param("count", figures.suspended);
    }
    if figures.suspended_messages > 0 {
        let least = if figures.suspended_messages >= SUSPENDED_MESSAGES_MAX { "at least " } else { "" };
        let waits = counted(figures.suspended_messages, "exchange message waits", "exchange messages wait");
        let text = format!("{least}{waits} for an operator");
        let advice = "`tocsin messages list --state suspended` lists the reasons; `tocsin messages resume` sends \
                      messages again, `tocsin messages end` ends them";
        found.add(Urgency::Now, "suspended-messages", text, advice).param("count", figures.suspended_messages);
    }
    if !figures.stopped_rules.is_empty() {
        let count = figures.stopped_rules.len() as u64;
        let stopped = counted(count, "rule is stopped", "rules are stopped");
        found
            .add(
                Urgency::Now,
                "stopped-rules",
                format!("{stopped}: {}", figures.stopped_rules.join(", ")),
                "fix the rule, then `tocsin rule resume`; `tocsin firings list` lists missed firings",
            )
            .param("count", count)
            .param("names", figures.stopped_rules.clone())
            .only("rule", &names(&figures.stopped_rules));
    }
    if !figures.broadcasts_failed.is_empty() {
        let count = figures.broadcasts_failed.len() as u64;
        let failed = counted(count, "broadcast has failed", "broadcasts have failed");
        let text = format!("{failed}: {}", figures.broadcasts_failed.join(", "));
        found
            .add(
                Urgency::Now,
                "failed-broadcasts",
                text,
                "`tocsin broadcast show` names the reason; send it again corrected",
            )
            .param("count", count)
            .param("names", figures.broadcasts_failed.clone());
    }
    if !figures.broadcasts_paused.is_empty() {
        let count = figures.broadcasts_paused.len() as u64;
        let paused = counted(count, "broadcast is paused", "broadcasts are paused");
        let text = format!("{paused}: {}", figures.broadcasts_paused.join(", "));
        found
            .add(Urgency::Soon, "paused-broadcasts", text, "`tocsin broadcast resume` continues it, `cancel` ends it")
            .param("count", count)
            .param("names", figures.broadcasts_paused.clone());
    }
    if figures.firings_missed > 0 {
        let batches = counted(figures.firings_missed, "event batch", "event batches");
        let text = format!("rules did not fire for {batches}");
        found
            .add(
                Urgency::Soon,
                "missed-firings",
                text,
                "`tocsin firings list` lists them; fire them again or dismiss them",
            )
            .param("count", figures.firings_missed);
    }
    if !figures.destinations_paused.is_empty() {
        let paused = counted(sum(&figures.destinations_paused), "destination is paused", "destinations are paused");
        let text = format!("{paused} after failures: {}", each_channel(&figures.destinations_paused));
        found
            .add(Urgency::Soon, "paused-destinations", text, "`tocsin destinations` shows their last responses")
            .param("count", sum(&figures.destinations_paused))
            .only("channel", &channels(&figures.destinations_paused));
    }
    for (channel, count) in &figures.undefined_channels {
        let waits = counted(*count, "notification waits", "notifications wait");
        let text = format!("{waits} for devices on `{channel}`, which is not defined");
        let advice = "add the channel to the definition and resume the notifications, or change the devices";
        found.add(Urgency::Soon, "undefined-channel", text, advice).param("count", *count).only("channel", &[channel]);
    }
    if figures.endpoints_failing > 0 {
        let least = if figures.endpoints_failing >= ENDPOINTS_MAX as u64 { "at least " } else { "" };
        let fails = counted(figures.endpoints_failing, "endpoint of a device fails", "endpoints of devices fail");
        let advice = "`tocsin endpoints list` shows since when and why; each is disabled after `disable_after`";
        let text = format!("{least}{fails}");
        found.add(Urgency::Note, "failing-endpoints", text, advice).param("count", figures.endpoints_failing);
    }
    for (key, at) in &figures.keys_expiring {
        let text = format!("the API key `{key}` expires at {at}");
        let advice = "`tocsin keys create` makes a new one; replace it at its client before it expires";
        let item = found.add(Urgency::Soon, "expiring-key", text, advice);
        item.param("at", at.to_string()).only("key", &[key.split(' ').next().unwrap_or(key)]);
    }
    for (channel, provider) in figures.held_back.iter().take(HELD_BACK_MAX) {
        let HeldBackMail { provider, lasted, paused_for, interval, said, .. } = provider;
        let pace = match (paused_for, interval) {
            (Some(pause), _) => format!("no mail is sent to it for {}", shown(*pause)),
            (None, Some(interval)) => format!("it gets one mail in {}", shown(*interval)),
            (None, None) => "it gets fewer mails at a time".to_owned(),
        };
        let text =
            format!("{provider} has held mail of {channel} back for {}; {pace}; it said: {said}", shown(*lasted));
        let advice = "its mails wait and others are not delayed; `tocsin destinations` shows the pace; if it goes on, check \
                      the sender with `tocsin doctor --domain`, lower `pacing.rate` or begin a warm-up";
        let urgency = if paused_for.is_some() { Urgency::Soon } else { Urgency::Note };
        found
            .add(urgency, "mail-held-back", text, advice)
            .param("provider", provider.as_str())
            .param("detail", said.as_str())
            .only("channel", &[channel]);
    }
    if !figures.destinations_stalled.is_empty() {
        let text = format!(
            "messages wait for {} without being sent: {}",
            counted(sum(&figures.destinations_stalled), "open destination", "open destinations"),
            each_channel(&figures.destinations_stalled)
        );
        let advice = "raise `concurrency` of the channel if all its sessions are busy (`tocsin destinations`); otherwise \
                      restart the server, which sends them, and report a defect";
        found
            .add(Urgency::Now, "stalled-destinations", text, advice)
            .param("count", sum(&figures.destinations_stalled))
            .only("channel", &channels(&figures.destinations_stalled));
    }
    let (refused, delivered) = (figures.lately.count(Count::Refused), figures.lately.count(Count::Delivered));
    if refused > 20 && refused * 10 > delivered {
        let text = format!("{refused} notifications were refused in {}, {delivered} delivered", shown(LATELY));
        found
            .add(Urgency::Soon, "refused", text, "`tocsin report failed-notifications` shows the receiver's replies")
            .param("refused", refused)
            .param("delivered", delivered);
    }
    let (blocked, said) = &figures.blocked;
    if *blocked >= BLOCKED_MIN {
        let count = counted(*blocked, "message", "messages");
        let text = format!("servers refused {count} because of the sender in 24h; the newest: {said}");
        let advice = "`tocsin feedback list --class blocked` lists them; `tocsin doctor --domain` checks the sender";
        found.add(Urgency::Soon, "blocked-mail", text, advice).param("count", *blocked).param("detail", said.as_str());
    }
    let (complaints, said) = &figures.complaints;
    if *complaints > 0 {
        let count = counted(*complaints, "recipient", "recipients");
        let text = format!("{count} reported messages as spam in 24h; the newest: {said}");
        let advice = "`tocsin feedback list --class complaint` lists the notifications; examine who gets them and why";
        found.add(Urgency::Note, "complaints", text, advice).param("count", *complaints).param("detail", said.as_str());
    }
    if !figures.switches.is_empty() {
        let text = format!("switched off: {}", figures.switches.join(", "));
        found
            .add(Urgency::Note, "switched-off", text, "`tocsin switch enable` switches it on again")
            .param("count", figures.switches.len())
            .param("names", figures.switches.clone());
    }
}

#[cfg(test)]
mod tests {
    use tocsin_capacity::{
        saturation::{ResourceState, RoleState},
        vectors::Resource,
    };

    use super::*;

    /// The problems found, as `kind: cause`.
    fn check(figures: Figures, expected: &[&str]) {
        let found: Vec<String> = diagnose(&figures)
            .into_iter()
            .map(|found| match found.cause {
                Some(cause) => format!("{}: {cause}", found.what),
                None => found.what.to_owned(),
            })
            .collect();
        assert_eq!(found, expected);
    }

    fn timed(timings: &[(Timing, u64)]) -> Activity {
        let mut activity = Activity::default();
        for (timing, millis) in timings {
            activity.record(*timing, Duration::from_millis(*millis), 100);
        }
        activity
    }

    #[test]
    fn nothing_needs_attention_when_all_is_well() {
        check(Figures::default(), &[]);
        let well = timed(&[(Timing::Pickup, 3), (Timing::Generation, 8), (Timing::Wait, 20), (Timing::Answer, 300)]);
        check(Figures { lately: well, shards: 1, cores: 8, ..Figures::default() }, &[]);
    }

    #[test]
    fn each_problem_and_cause_has_a_code_and_its_figures() {
        let words = |list: &[(&str, &str)]| list.iter().map(|(word, _)| (*word).to_owned()).collect::<Vec<_>>();
        let kinds = words(KINDS);
        let figures = Figures {
            suspended: 3,
            stopped_rules: vec!["stock/near".to_owned()],
            undefined_channels: [("stock/pager".to_owned(), 2)].into(),
            endpoints_failing: 1,
            keys_expiring: vec![("k1 (loader)".to_owned(), Timestamp(0))],
            destinations_paused: vec![("stock/hook".to_owned(), 2)],
            ..timed_figures(&[(Timing::Pickup, 8_000), (Timing::Wait, 9_000)])
        };
        let found = diagnose(&figures);
        for item in &found {
            assert!(kinds.contains(&item.what.to_owned()), "{}", item.what);
            assert_eq!(item.cause.is_some(), item.cause_code.is_some(), "{}", item.what);
        }
        let of = |what: &str| found.iter().find(|item| item.what == what).expect("found");
        let stopped = of("stopped-rules");
        assert_eq!((stopped.code().as_str(), &stopped.parameters["count"]), ("stopped_rules", &Json::from(1)));
        let rule = AttentionObject { kind: "rule", id: "near".to_owned(), application: Some("stock".to_owned()) };
        assert_eq!(stopped.object, Some(rule));
        let undefined = of("undefined-channel");
        assert_eq!(undefined.text, "2 notifications wait for devices on `stock/pager`, which is not defined");
        assert_eq!(undefined.object.as_ref().map(|object| object.id.as_str()), Some("pager"));
        assert_eq!(of("failing-endpoints").text, "1 endpoint of a device fails");
        let key = of("expiring-key");
        assert_eq!(key.text, "the API key `k1 (loader)` expires at 1970-01-01T00:00:00Z");
        assert_eq!(key.object.as_ref().map(|object| (object.kind, object.id.as_str())), Some(("key", "k1")));
        assert_eq!(of("slow-pickup").cause_code, Some("busy_matcher"));
    }

    #[test]
    fn each_slow_part_is_reported_with_its_cause() {
        let slow =
            |timings: &[(Timing, u64)]| Figures { lately: timed(timings), shards: 4, cores: 4, ..Figures::default() };
        let wait = slow(&[(Timing::Wait, 9_000), (Timing::Answer, 3_000)]);
        check(wait, &["slow-distribution: a channel cannot keep up: its receiver is slow or defers messages"]);
        let format = slow(&[(Timing::Wait, 9_000), (Timing::Answer, 3)]);
        check(
            format,
            &[
                "slow-distribution: the receivers are fast: formatting, or the limit of notifications in flight, is the bottleneck",
            ],
        );
        // Time of a slow rule is not counted for templates.
        let matching =
            slow(&[(Timing::Pickup, 10), (Timing::Generation, 11_300), (Timing::Wait, 11_400), (Timing::Answer, 3)]);
        check(
            matching,
            &[
                "slow-generation: a rule is expensive",
                "slow-distribution: rules take long, and their notifications wait for the rest of the quantum",
            ],
        );
        let rule = slow(&[(Timing::Pickup, 10), (Timing::Generation, 8_000)]);
        check(rule.clone(), &["slow-generation: a rule is expensive"]);
        check(Figures { shards: 1, ..rule }, &["slow-generation: the cores of the machine are not used"]);
        let busy = slow(&[(Timing::Pickup, 8_000)]);
        check(busy.clone(), &["slow-pickup: the matcher is busy with earlier batches"]);
        let disk = Figures { journal_probe: Duration::from_millis(80), ..busy.clone() };
        check(disk, &["slow-pickup: the disk of the journal is slow, and every acceptance waits for it"]);
        let off = Figures { switches: vec!["role:match is paused by ann".to_owned()], ..busy };
        check(off, &["slow-pickup: matching is switched off", "switched-off"]);
        let records = Figures { records_probe: Duration::from_millis(70), ..Figures::default() };
        check(records, &["slow-records: the disk of the records is slow"]);
    }

    #[test]
    fn a_store_that_cannot_be_written_needs_attention_now() {
        let reason = "the journal: there is no room: the disk is full".to_owned();
        let full = Figures { unwritable: vec![reason], free_bytes: Some((0, 1 << 20)), ..Figures::default() };
        let found = diagnose(&full);
        let kinds: Vec<_> = found.iter().map(|found| (found.what, found.urgency)).collect();
        assert_eq!(kinds, [("disk-space", Urgency::Now), ("unwritable-store", Urgency::Now)]);
        assert_eq!(found[1].text, "cannot be written: the journal: there is no room: the disk is full");
        let spool = Figures { unreadable: vec!["the spool: gone".to_owned()], ..Figures::default() };
        let found = diagnose(&spool);
        assert_eq!(
            (found.len(), found[0].what, &*found[0].text),
            (1, "unreadable-store", "cannot be read: the spool: gone")
        );
    }

    #[test]
    fn a_definition_that_could_not_be_started_needs_attention_now() {
        let reason = "the application `shop`: needs the environment variable `PASSWORD`, which is not set".to_owned();
        let found = diagnose(&Figures { not_running: vec![reason.clone()], ..Figures::default() });
        assert_eq!((found.len(), found[0].what, found[0].urgency), (1, "not-running", Urgency::Now));
        assert_eq!(found[0].text, format!("does not run: {reason}"));
    }

    #[test]
    fn b1_a_destination_that_is_not_served_needs_attention_now() {
        let stalled = Figures { destinations_stalled: vec![("shop/hook".to_owned(), 1)], ..Figures::default() };
        let found = diagnose(&stalled);
        assert_eq!((found[0].what, found[0].urgency), ("stalled-destinations", Urgency::Now));
        assert!(found[0].text.ends_with("1 of shop/hook"), "{}", found[0].text);
    }

    #[test]
    fn a_nearly_full_node_is_reported_with_its_largest_consumer() {
        let resource = |used, full_in_seconds| ResourceState {
            resource: Resource::Processor,
            used,
            by_vectors: None,
            headroom: Some(1.0 / used),
            full_in_seconds,
        };
        let role = |headroom| RoleState {
            role: "deliver".to_owned(),
            headroom: Some(headroom),
            first: Some("processor".to_owned()),
            processor: 0.4,
            per_second: Default::default(),
        };
        let texts = |resources, roles| {
            let state = Saturation { seconds: 60.0, has_vectors: true, resources, roles };
            let found = diagnose(&Figures { saturation: state, ..Figures::default() });
            found.into_iter().map(|found| found.text).collect::<Vec<_>>().join("; ")
        };
        assert_eq!(texts(vec![resource(0.5, None)], vec![role(2.0)]), "");
        assert_eq!(texts(vec![resource(0.93, None)], vec![role(1.0)]), "93 % of the processor of this node is used");
        assert_eq!(
            texts(vec![resource(0.5, None)], vec![role(1.05)]),
            "the load of the role `deliver` can grow by the factor 1.05, then `processor` is exhausted"
        );
        assert_eq!(
            texts(vec![resource(0.5, Some(7_205.0))], vec![role(2.0)]),
            "if the load keeps growing as in the last hour, the processor of this node is full in 2h"
        );
        let full =
            Saturation { resources: vec![resource(0.95, None)], roles: vec![role(1.0)], ..Saturation::default() };
        let cause = "saturation: the role `deliver` uses 40 % of the processors by its costs";
        check(Figures { saturation: full, ..Figures::default() }, &[cause]);
    }

    #[test]
    fn the_verb_agrees_with_the_number() {
        let figures = |count: u64| {
            let destinations = vec![("shop/hook".to_owned(), count)];
            Figures {
                event_batches_waiting: count,
                oldest_event: SLOW,
                notifications_waiting: count,
                suspended: count,
                suspended_messages: count,
                failed_batches: count,
                firings_missed: count,
                stopped_rules: vec!["shop/near".to_owned(); count as usize],
                destinations_paused: destinations.clone(),
                destinations_stalled: destinations,
                ..timed_figures(&[(Timing::Wait, 9_000)])
            }
        };
        let texts = |count| diagnose(&figures(count)).into_iter().map(|found| found.text).collect::<Vec<_>>();
        assert_eq!(
            texts(1),
            [
                "events take 0s to be accepted and 0s to be picked up (95 of 100); 1 batch waits, the oldest for 5s",
                "1 event batch could not be matched",
                "1 notification waits for an operator",
                "1 exchange message waits for an operator",
                "1 rule is stopped: shop/near",
                "messages wait for 1 open destination without being sent: 1 of shop/hook",
                "notifications wait 9s400ms before they are sent (95 of 100), the receivers answer in 0s; 1 notification waits",
                "rules did not fire for 1 event batch",
                "1 destination is paused after failures: 1 of shop/hook",
            ]
        );
        assert_eq!(
            texts(2),
            [
                "events take 0s to be accepted and 0s to be picked up (95 of 100); 2 batches wait, the oldest for 5s",
                "2 event batches could not be matched",
                "2 notifications wait for an operator",
                "2 exchange messages wait for an operator",
                "2 rules are stopped: shop/near, shop/near",
                "messages wait for 2 open destinations without being sent: 2 of shop/hook",
                "notifications wait 9s400ms before they are sent (95 of 100), the receivers answer in 0s; 2 notifications wait",
                "rules did not fire for 2 event batches",
                "2 destinations are paused after failures: 2 of shop/hook",
            ]
        );
        let many = texts(SUSPENDED_MESSAGES_MAX).join("\n");
        assert!(many.contains("at least 100000 exchange messages wait for an operator"), "{many}");
    }

    fn timed_figures(timings: &[(Timing, u64)]) -> Figures {
        Figures { lately: timed(timings), shards: 1, cores: 1, ..Figures::default() }
    }

    #[test]
    fn refused_senders_and_complaints_are_reported_with_the_newest_text() {
        let of = |count: u64| (count, "554 5.7.1 blocked".to_owned());
        check(Figures { blocked: of(BLOCKED_MIN - 1), ..Figures::default() }, &[]);
        check(
            Figures { blocked: of(BLOCKED_MIN), complaints: of(1), ..Figures::default() },
            &["blocked-mail", "complaints"],
        );
        let figures = Figures { complaints: of(2), ..Figures::default() };
        let expected = "2 recipients reported messages as spam in 24h; the newest: 554 5.7.1 blocked";
        assert_eq!(diagnose(&figures)[0].text, expected);
    }

    #[test]
    fn a_provider_that_holds_mail_back_is_named_with_its_reply() {
        let provider = |paused_for, interval| HeldBackMail {
            provider: "google".to_owned(),
            lasted: Duration::from_secs(720),
            paused_for,
            interval,
            waiting: 3,
            said: "421 4.7.28 unusual rate".to_owned(),
        };
        let found =
            |provider| diagnose(&Figures { held_back: vec![("shop/mail".to_owned(), provider)], ..Figures::default() });
        let paused = found(provider(Some(Duration::from_secs(60)), None));
        assert_eq!((paused[0].what, paused[0].urgency), ("mail-held-back", Urgency::Soon));
        let text = "google has held mail of shop/mail back for 12m; no mail is sent to it for 1m; it said: 421 4.7.28 unusual \
                    rate";
        assert_eq!(paused[0].text, text);
        let slower = found(provider(None, Some(Duration::from_millis(500))));
        assert_eq!(slower[0].urgency, Urgency::Note);
        assert!(slower[0].text.contains("; it gets one mail in 500ms; "), "{}", slower[0].text);
    }

    #[test]
    fn lost_notifications_come_first() {
        let figures = Figures {
            suspended: 3,
            stopped_rules: vec!["stock/near".to_owned()],
            firings_missed: 9,
            switches: vec!["role:sources is paused by ann".to_owned()],
            destinations_paused: vec![("stock/hook".to_owned(), 2)],
            free_bytes: Some((1 << 30, 256 << 20)),
            ..Figures::default()
        };
        check(figures, &["suspended", "stopped-rules", "missed-firings", "paused-destinations", "switched-off"]);
        check(Figures { free_bytes: Some((1, 2)), ..Figures::default() }, &["disk-space"]);
    }
}
