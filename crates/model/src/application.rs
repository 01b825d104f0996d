//! What a deployment does: a named, versioned definition. `crate::definition` makes it from YAML.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;

use crate::{
    chronicle::Chronicle,
    collection::Collection,
    conduct::Conduct,
    field::{Field, FieldType, Fields},
    filter::Dialect,
    id::Name,
    schedule::{CATCH_UP_MAX, MissedPolicy, Schedule},
};

/// An application as its definition gives it, complete and consistent: every name it mentions exists. Expressions,
/// templates and channel options are still text here; the rooms that understand them compile them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Application {
    /// Its name.
    pub name: Name,
    /// What it is for.
    pub description: Option<String>,
    /// What can happen.
    pub events: BTreeMap<Name, EventClass>,
    /// The attributes of subscribers that its rules may read, with the types in which they read them. The directory is
    /// shared and knows no types: a value of another type counts as missing, and what is missing takes the default.
    #[serde(skip_serializing_if = "Fields::is_empty")]
    pub attributes: Fields,
    /// What subscribers can care about.
    pub subscriptions: BTreeMap<Name, SubscriptionClass>,
    /// What can be told.
    pub notifications: BTreeMap<Name, NotificationClass>,
    /// What templates include, extend or import: layouts, fragments, stylesheets.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub partials: BTreeMap<Name, TemplateText>,
    /// Functions of its own, for rules and filters.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub functions: BTreeMap<Name, Function>,
    /// Who cares about what.
    pub rules: BTreeMap<Name, Rule>,
    /// How it leaves.
    pub channels: BTreeMap<Name, Channel>,
    /// Where events come from. Without one of the kind `http`, the source `api` may submit all classes.
    pub sources: BTreeMap<Name, Source>,
    /// Rows that devices keep replicas of.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub collections: BTreeMap<Name, Collection>,
    /// How long finished work is kept.
    pub retention: Retention,
    /// How much of everything it may have.
    pub limits: Limits,
}

/// A kind of event.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct EventClass {
    /// Its fields.
    pub fields: Fields,
    /// What it means.
    pub description: Option<String>,
    /// What is kept of its events, key by key.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub chronicles: BTreeMap<Name, Chronicle>,
    /// In ordered mode: what a subscription is told of events of one key leaves in their order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ordered: Option<Ordered>,
    /// How long its batches are kept when nothing of them is open any more. That of the application if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention: Option<Duration>,
    /// The rate at which its events may make notifications. Further events of the class wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttle: Option<Throttle>,
}

/// Which events of a class have an order among them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ordered {
    /// The fields that make the key. None: all events of the class have one order.
    pub by: Vec<Name>,
}

/// A kind of interest.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct SubscriptionClass {
    /// Its parameters.
    pub fields: Fields,
    /// What it means.
    pub description: Option<String>,
    /// The dialects in which its subscriptions may have a filter of their own, the first for those that name none. Empty:
    /// they may have none.
    pub filter: Vec<Dialect>,
    /// Whether its subscriptions have a schedule of their own.
    pub schedule: Presence,
}

/// Whether something may be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Presence {
    /// It is refused.
    #[default]
    Forbidden,
    /// It may be given.
    Optional,
    /// It must be given.
    Required,
}

/// A kind of notification.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NotificationClass {
    /// What it tells; filled by the rule's `with` expressions.
    pub fields: Fields,
    /// What it means.
    pub description: Option<String>,
    /// Most notifications of one batch; more make more batches.
    pub batch_size: u32,
    /// After this time from the match they are not worth sending.
    pub expires_after: Option<Duration>,
    /// How they are told.
    #[serde(flatten)]
    pub conduct: Conduct,
    /// Fields that are computed when it is formatted, each an expression over all that templates see.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub computed: BTreeMap<Name, String>,
    /// How long its batches are kept when nothing of them is open any more. That of the application if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention: Option<Duration>,
    /// Templates, by their place in the fallback order.
    pub content: ContentTemplates,
}

/// The templates of a notification class. Keys are `""` for the base, `<locale>`, `<device>` or `<locale>/<device>`,
/// where device is a channel's name.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct ContentTemplates {
    /// The language of parts that name none.
    pub engine: TemplateEngine,
    /// The templates by key.
    pub templates: BTreeMap<String, TemplateParts>,
}

/// A template language.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TemplateEngine {
    /// Jinja-like templates.
    #[default]
    Jinja,
    /// MJML, in which Jinja fills the gaps; it gives HTML.
    Mjml,
    /// Stylesheets of XSLT 1.0.
    Xslt,
}

/// The text of a template, and the language it is written in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateText {
    /// Its language.
    pub engine: TemplateEngine,
    /// Its text.
    pub text: String,
}

impl From<&str> for TemplateText {
    /// A text in Jinja.
    fn from(text: &str) -> Self {
        TemplateText { engine: TemplateEngine::Jinja, text: text.to_owned() }
    }
}

impl Serialize for TemplateText {
    /// As a definition writes it: a text, or `{ xslt: ... }`.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let key = match self.engine {
            TemplateEngine::Jinja => return serializer.serialize_str(&self.text),
            TemplateEngine::Mjml => "mjml",
            TemplateEngine::Xslt => "xslt",
        };
        serializer.collect_map([(key, &self.text)])
    }
}

/// The parts of one content. What a part is missing, it takes from the next in the fallback order.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct TemplateParts {
    /// One line.
    pub subject: Option<String>,
    /// Plain text.
    pub text: Option<TemplateText>,
    /// HTML.
    pub html: Option<TemplateText>,
    /// JSON, for machines.
    pub json: Option<TemplateText>,
    /// A text of a few short messages.
    pub sms: Option<TemplateText>,
    /// Headers by name, each one line. Each is looked for by itself.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
}

/// A function that expressions of the application may call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Function {
    /// What it computes.
    pub description: Option<String>,
    /// The names of what it takes, in order.
    pub parameters: Vec<Name>,
    /// What it gives, in CEL over its parameters.
    pub expression: String,
}

/// Joins an event class to a subscription class.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rule {
    /// The event class whose events it looks at. For a scheduled rule that looks at none it is that of [`due_class`].
    pub on: Name,
    /// The subscription class that it looks through.
    pub subscription: Name,
    /// The segment to which a subscriber must belong to be told; `None`: anybody is told.
    pub audience: Option<Name>,
    /// The predicate over `event` and `sub`, in CEL. Without one every pair matches.
    pub when: Option<String>,
    /// In place of a predicate, a query over the event batch and the subscriptions that gives the matches, in SQL.
    pub sql: Option<String>,
    /// The notification class that it makes.
    pub notify: Name,
    /// How each of the notification's fields is computed, in CEL. A field without an expression takes the value of the
    /// event's field of the same name.
    pub with: BTreeMap<Name, String>,
    /// What it means.
    pub description: Option<String>,
    /// Whether it fires at all.
    pub enabled: bool,
    /// How long it may take over one event batch. A firing that takes longer fails.
    pub timeout: Duration,
    /// After so many failed firings in a row it is stopped; 0: never.
    pub stop_after: u32,
    /// When it is evaluated; `None`: at each event.
    pub schedule: Option<RuleSchedule>,
    /// What it remembers for each subscription.
    #[serde(flatten)]
    pub state: RuleState,
}

/// What a rule remembers for each subscription, and so when a match is not told. Expressions are in CEL.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct RuleState {
    /// What it is remembered for, over `event`: a state for each subscription and value. Without it one for each
    /// subscription.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per: Option<String>,
    /// So long after a notification none is made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cooldown: Option<Duration>,
    /// A predicate over `event` and `sub`: after a notification none is made until an event has satisfied it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rearm: Option<String>,
    /// An expression over `event`: while it gives what it gave at the last notification, none is made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changed: Option<String>,
}

impl RuleState {
    /// Whether anything is remembered.
    pub fn is_kept(&self) -> bool {
        self.cooldown.is_some() || self.rearm.is_some() || self.changed.is_some()
    }
}

/// When a rule is evaluated, if not at each event: at due times, over the events accepted since the one before.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RuleSchedule {
    /// The due times.
    pub recurs: Recurs,
    /// What becomes of runs that were missed.
    pub missed: Missed,
    /// Runs that are later than this are not made up for: they are skipped and counted.
    pub skip_older_than: Option<Duration>,
}

/// Whose recurrence a rule follows.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Recurs {
    /// Its own, for all subscriptions of its class.
    Fixed(Schedule),
    /// That of each subscription. Those that have none are not told.
    Subscription,
}

/// What becomes of runs that were missed while the server was down or held up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Missed {
    /// None is made up for; the next run covers their events.
    Skip,
    /// One run makes up for all of them.
    #[default]
    Once,
    /// Each is made up for, at most [`CATCH_UP_MAX`].
    All,
}

/// A run under [`Missed::Skip`] that is no later than this is on time.
pub const GRACE: Duration = Duration::from_secs(300);

impl RuleSchedule {
    /// The policy for missed runs.
    pub fn policy(&self) -> MissedPolicy {
        match self.missed {
            Missed::Skip => MissedPolicy::Skip { grace: self.skip_older_than.unwrap_or(GRACE) },
            Missed::Once => MissedPolicy::Once,
            Missed::All => MissedPolicy::All { limit: CATCH_UP_MAX },
        }
    }
}

/// The event class of due times: a scheduled rule that becomes due is an event of it. An application with scheduled
/// rules has it beside its own; nobody can submit events of it.
pub fn due_class() -> Name {
    "due".parse().expect("`due` is a name")
}

/// The fields of the class of [`due_class`], in this order.
pub fn due_fields() -> Fields {
    Fields::new(vec![
        described("rule", FieldType::String, "The rule that is due."),
        described("schedule", FieldType::String, "The schedule that it follows, as text of RFC 5545."),
        described("due_at", FieldType::Timestamp, "When it was due."),
        described("last_run", FieldType::Timestamp, "When it was due before."),
        described("skipped", FieldType::Integer, "How many runs before this one were missed and are not made up for."),
        described("after", FieldType::Integer, "The event batch of the last run: what came after it is for this one."),
        described(
            "from",
            FieldType::Integer,
            "The event batch after which a part of a run goes on; null where it begins.",
        ),
        described("before", FieldType::Integer, "The event batch before which its events end; null for this one."),
        described("seen", FieldType::Integer, "The last change of the records that the last run saw."),
        described("sees", FieldType::Integer, "The last change of the records that this run sees."),
        described("subscriptions_after", FieldType::Integer, "The subscription after which this part of a run begins."),
        described(
            "subscriptions_through",
            FieldType::Integer,
            "The last subscription of this part; null if it has no end.",
        ),
    ])
}

/// What an event of [`Channel::endpoint_event`] says. The class has those of these fields that its application wants. None has
/// a name that means something else in templates, so that a notification can take them over as they are.
pub fn endpoint_fields() -> Fields {
    Fields::new(vec![
        described("owner", FieldType::String, "The id of the subscriber whose endpoint it is."),
        described("endpoint", FieldType::String, "The name of the device whose address it is."),
        described("via", FieldType::String, "The channel by which it was tried."),
        described("disabled", FieldType::Boolean, "Whether the device was switched off; if not, it will be."),
        described("since", FieldType::Timestamp, "Since when it has only failed."),
        described("until", FieldType::Timestamp, "When it is switched off if it goes on to fail."),
        described("failures", FieldType::Integer, "How many attempts have failed since."),
        described("reason", FieldType::String, "Why the last one failed."),
    ])
}

/// A field of a class of ours.
fn described(name: &str, kind: FieldType, about: &str) -> Field {
    Field { description: Some(about.to_owned()), ..Field::new(name.parse().expect("a field's name"), kind) }
}

/// A configured instance of a protocol.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Channel {
    /// The protocol: `smtp`, `http`, `file`.
    pub protocol: Name,
    /// Options of the protocol, environment variables already filled in. Not shown: they may hold secrets.
    #[serde(skip)]
    pub options: serde_json::Map<String, serde_json::Value>,
    /// What happens after a failed attempt.
    pub retry: RetrySchedule,
    /// Most sessions, connections or calls at the same time.
    pub concurrency: u32,
    /// How much goes where at a time.
    #[serde(skip_serializing_if = "Flow::is_default")]
    pub flow: Flow,
    /// How long a worker may hold a work item without a sign of life.
    pub lease: Duration,
    /// How long the endpoint of a device may only fail before the device is switched off; zero: for ever, `None`: 5 days where
    /// the address of a device is the far side itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disable_after: Option<Duration>,
    /// The class of events that tell of an endpoint that is about to be switched off, and of one that was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint_event: Option<Name>,
    /// What is told of its deliveries beside what became of them.
    #[serde(skip_serializing_if = "DeliveryLog::is_default")]
    pub log: DeliveryLog,
}

/// What is told of deliveries beside what became of them. What a far side said to refuse or to defer is always kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct DeliveryLog {
    /// What far sides said when they took something is kept with the receipt.
    pub status: bool,
    /// A line in the log before each attempt, without personal data.
    pub attempts: bool,
    /// What is sent goes into the log, cut and without personal data.
    pub text: bool,
    /// When the log tells that deliveries fail.
    pub failures: FailureLog,
}

/// When the log tells that the deliveries of a channel fail: not of each, but of many in a row, and now and then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct FailureLog {
    /// After so many in a row; 0: never.
    pub after: u32,
    /// How long until the same is told again.
    pub every: Duration,
}

impl Default for FailureLog {
    fn default() -> Self {
        FailureLog { after: 20, every: Duration::from_secs(15 * 60) }
    }
}

impl Default for DeliveryLog {
    fn default() -> Self {
        DeliveryLog { status: true, attempts: false, text: false, failures: FailureLog::default() }
    }
}

impl DeliveryLog {
    fn is_default(&self) -> bool {
        *self == DeliveryLog::default()
    }
}

/// How a channel treats its destinations. What is beyond a bound waits; nothing of it is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Flow {
    /// Most at the same time to one destination.
    pub per_destination: u32,
    /// Whether there are always so many.
    pub pace: Pace,
    /// How fast messages may leave, all together.
    pub rate: Option<Rate>,
    /// How fast they may go to one destination.
    pub rate_per_destination: Option<Rate>,
    /// After so many failures in a row a destination is left alone for a while; 0: never.
    pub failures_before_pause: u32,
}

/// How many messages a destination gets at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pace {
    /// As many as help: the channel finds out.
    #[default]
    Auto,
    /// Always as many as allowed.
    Fixed,
}

/// So many messages in a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Rate {
    /// How many.
    pub messages: u32,
    /// In which time.
    pub per: Duration,
}

impl Default for Flow {
    fn default() -> Self {
        Flow {
            per_destination: 20,
            pace: Pace::Auto,
            rate: None,
            rate_per_destination: None,
            failures_before_pause: 20,
        }
    }
}

impl Flow {
    fn is_default(&self) -> bool {
        *self == Flow::default()
    }
}

/// Delays between attempts, each counted from the attempt before. Empty: no retry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RetrySchedule {
    /// The delays in order.
    pub delays: Vec<Duration>,
    /// Each delay varies by up to this fraction, in percent, so that retries do not come all at once.
    pub jitter_percent: u8,
}

impl RetrySchedule {
    /// The delay after attempt number `attempts` (from 1) has failed; `None` when it was the last.
    ///
    /// A far side that asked to wait longer is obeyed, up to a day. `luck` is from 0 to 1.
    pub fn delay_after(&self, attempts: u32, retry_after: Option<Duration>, luck: f64) -> Option<Duration> {
        let planned = *self.delays.get(attempts.checked_sub(1)? as usize)?;
        let spread = f64::from(self.jitter_percent.min(100)) / 100.0 * (luck.clamp(0.0, 1.0) * 2.0 - 1.0);
        let planned = planned.mul_f64(1.0 + spread);
        Some(planned.max(retry_after.unwrap_or_default().min(Duration::from_secs(86_400))))
    }
}

/// Where events come from.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Source {
    /// How events come: `http` if others submit them at the events endpoint, else a kind that the platform runs itself.
    pub kind: Name,
    /// The event classes that it may submit; empty means all. One that the platform runs itself has exactly one.
    pub events: Vec<Name>,
    /// What the kind needs to know; checked where the kind is known.
    #[serde(skip_serializing_if = "serde_json::Map::is_empty")]
    pub options: serde_json::Map<String, serde_json::Value>,
}

impl Source {
    /// Whether others submit its events, so that nothing runs for it.
    pub fn is_submitted(&self) -> bool {
        self.kind.as_str() == "http"
    }
}

/// How much of everything an application may have, and what becomes of the rest. Nothing of it is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Subscriptions. More are refused.
    pub subscriptions: u64,
    /// Filters that differ. Subscriptions with further ones are refused.
    pub distinct_filters: u64,
    /// Filters that no index answers, so that each event is put to each of them. Subscriptions with further ones are
    /// refused.
    pub unindexed_filters: u64,
    /// Notifications of one event. Those beyond it are suspended.
    pub notifications_per_event: u64,
    /// How fast it may make notifications. Events beyond it wait.
    pub throttle: Option<Throttle>,
    /// The rate at which its rules with a schedule may make notifications. Further runs wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule_throttle: Option<Throttle>,
    /// Event batches that waited longer than this are not matched by event rules, which skip them; state sees them.
    pub skip_older_than: Option<Duration>,
    /// The least time between two due times of a subscription's schedule.
    pub schedule_interval: Duration,
}

/// A rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Throttle {
    /// How many.
    pub notifications: u64,
    /// In which time.
    pub per: Duration,
}

impl Application {
    /// The throttle of an event class. The events of due times are of the class `due`.
    pub fn throttle_of(&self, class: &Name) -> Option<Throttle> {
        self.events.get(class)?.throttle
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            subscriptions: 100_000_000,
            distinct_filters: 10_000_000,
            unindexed_filters: 1_000,
            notifications_per_event: 100_000_000,
            throttle: None,
            schedule_throttle: None,
            skip_older_than: None,
            schedule_interval: Duration::from_secs(60),
        }
    }
}

/// How long finished work is kept. What is unsent or suspended is never removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Retention {
    /// Event batches, notification batches and receipts, counted from when their last notification was closed.
    pub finished: Duration,
    /// Answers kept for `Idempotency-Key` and CloudEvents ids.
    pub idempotency: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Retention { finished: Duration::from_secs(7 * 86_400), idempotency: Duration::from_secs(2 * 86_400) }
    }
}

/// The source of submissions where the application defines none.
pub fn api_source() -> Name {
    "api".parse().expect("`api` is a name")
}

/// The source of the events that changes of rows raise. No source of an application that has such is called so.
pub fn row_source() -> Name {
    "rows".parse().expect("`rows` is a name")
}

/// The source of the events that tell of endpoints. No source of an application that has such is called so.
pub fn endpoint_source() -> Name {
    "endpoints".parse().expect("`endpoints` is a name")
}

impl Rule {
    /// A rule by which every pair matches, with the usual bounds.
    pub fn new(on: Name, subscription: Name, notify: Name) -> Rule {
        Rule {
            on,
            subscription,
            audience: None,
            when: None,
            sql: None,
            notify,
            with: BTreeMap::new(),
            description: None,
            enabled: true,
            timeout: Duration::from_secs(10),
            stop_after: 10,
            state: RuleState::default(),
            schedule: None,
        }
    }
}

impl Application {
    /// An application with nothing in it.
    pub fn new(name: Name) -> Application {
        Application {
            name,
            description: None,
            events: BTreeMap::new(),
            attributes: Fields::default(),
            subscriptions: BTreeMap::new(),
            notifications: BTreeMap::new(),
            partials: BTreeMap::new(),
            functions: BTreeMap::new(),
            rules: BTreeMap::new(),
            channels: BTreeMap::new(),
            sources: BTreeMap::new(),
            collections: BTreeMap::new(),
            retention: Retention::default(),
            limits: Limits::default(),
        }
    }

    /// How long finished batches of an event class are kept: no shorter than those that tell of its events.
    pub fn events_kept(&self, class: &Name) -> Duration {
        let own = self.events.get(class).and_then(|class| class.retention).unwrap_or(self.retention.finished);
        let told =
            self.rules.values().filter(|rule| rule.on == *class).map(|rule| self.notifications_kept(&rule.notify));
        told.fold(own, Duration::max)
    }

    /// How long finished batches of a notification class are kept.
    pub fn notifications_kept(&self, class: &Name) -> Duration {
        let own = self.notifications.get(class).and_then(|class| class.retention);
        own.unwrap_or(self.retention.finished)
    }

    /// Whether any of its rules is scheduled, so that it has the class of [`due_class`].
    pub fn has_schedules(&self) -> bool {
        self.rules.values().any(|rule| rule.schedule.is_some())
    }

    /// Whether somebody may submit events of a class under the name of this source. Nobody may say what is due.
    pub fn may_submit(&self, source: &Name, class: &Name) -> bool {
        if *class == due_class() && self.has_schedules() {
            return false;
        }
        match self.sources.get(source) {
            Some(source) => source.is_submitted() && (source.events.is_empty() || source.events.contains(class)),
            None => self.submitted_sources().next().is_none() && *source == api_source(),
        }
    }

    /// The sources that others submit events for.
    pub fn submitted_sources(&self) -> impl Iterator<Item = &Name> {
        self.sources.iter().filter(|(_, source)| source.is_submitted()).map(|(name, _)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_delay_follows_the_attempt_before() {
        let seconds = Duration::from_secs;
        let schedule = RetrySchedule { delays: vec![seconds(60), seconds(300)], jitter_percent: 10 };
        assert_eq!(schedule.delay_after(1, None, 0.5), Some(seconds(60)));
        assert_eq!(schedule.delay_after(1, None, 1.0), Some(seconds(66)));
        assert_eq!(schedule.delay_after(2, Some(seconds(900)), 0.0), Some(seconds(900)));
        assert_eq!(schedule.delay_after(2, Some(seconds(1)), 0.5), Some(seconds(300)));
        assert_eq!(schedule.delay_after(3, None, 0.5), None);
        assert_eq!(schedule.delay_after(1, Some(seconds(1_000_000)), 0.5), Some(seconds(86_400)));
    }
}
