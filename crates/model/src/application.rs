//! An application: a named, versioned definition of classes, rules, channels and sources. `crate::definition` parses
//! it from YAML.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;

use crate::{
    chronicle::Chronicle,
    collection::Collection,
    consent::ConsentPolicy,
    content::MailField,
    delivery_policy::DeliveryPolicy,
    field::{Field, FieldType, Fields},
    filter::Dialect,
    id::Name,
    lifecycle::Lifecycle,
    pages::Pages,
    schedule::{CATCH_UP_MAX, MissedPolicy, Schedule},
};

/// An application, complete and consistent: every name it mentions exists. Expressions, templates and channel options
/// are still text here; other crates compile them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Application {
    /// Its name.
    pub name: Name,
    /// Its purpose.
    pub description: Option<String>,
    /// Event classes.
    pub events: BTreeMap<Name, EventClass>,
    /// Attributes of subscribers that its rules may read, with their types. The directory is shared and untyped: a
    /// value of another type counts as missing, and a missing value takes the default.
    #[serde(skip_serializing_if = "Fields::is_empty")]
    pub attributes: Fields,
    /// Subscription classes.
    pub subscriptions: BTreeMap<Name, SubscriptionClass>,
    /// Notification classes.
    pub notifications: BTreeMap<Name, NotificationClass>,
    /// Partials that templates include, extend or import: layouts, fragments, stylesheets.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub partials: BTreeMap<Name, TemplateText>,
    /// Functions of the application, for rules and filters.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub functions: BTreeMap<Name, Function>,
    /// Rules that match events with subscriptions.
    pub rules: BTreeMap<Name, Rule>,
    /// Channels through which notifications leave.
    pub channels: BTreeMap<Name, Channel>,
    /// Sources of events. Without one of the kind `http`, the source `api` may submit all classes.
    pub sources: BTreeMap<Name, Source>,
    /// Collections of rows that devices replicate.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub collections: BTreeMap<Name, Collection>,
    /// Retention of finished work.
    pub retention: Retention,
    /// Limits of the application.
    pub limits: Limits,
    /// Hosted pages that subscribers see.
    #[serde(skip_serializing_if = "Pages::is_empty")]
    pub pages: Pages,
}

/// An event class.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct EventClass {
    /// Its fields.
    pub fields: Fields,
    /// A description for readers.
    pub description: Option<String>,
    /// Chronicles: per-key aggregates of its events.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub chronicles: BTreeMap<Name, Chronicle>,
    /// Ordered mode: notifications about events of one key leave in the order of the events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ordered: Option<Ordered>,
    /// Retention of its finished batches; default: that of the application.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention: Option<Duration>,
    /// Limit on the rate of notifications that its events make. Further events of the class wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttle: Option<Throttle>,
    /// Binding to a change in the life of subscriptions, subscribers or devices: each such change is an event of this
    /// class, with the fields of [`fields_of`](crate::lifecycle::fields_of). Its events cannot be submitted.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<Lifecycle>,
}

impl EventClass {
    /// Whether rules on it are evaluated for the subscription of each event only.
    pub fn is_targeted(&self) -> bool {
        self.lifecycle.as_ref().is_some_and(Lifecycle::is_targeted)
    }
}

/// Ordering key of an event class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ordered {
    /// Fields of the key. Empty: all events of the class are in one order.
    pub by: Vec<Name>,
}

/// A subscription class.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct SubscriptionClass {
    /// Its parameters.
    pub fields: Fields,
    /// A description for readers.
    pub description: Option<String>,
    /// Dialects of its subscriptions' filters; the first is the default. Empty: no filters.
    pub filter: Vec<Dialect>,
    /// Whether its subscriptions have a schedule of their own.
    pub schedule: Presence,
    /// Double opt-in. `None`: its subscriptions need no consent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consent: Option<ConsentPolicy>,
}

/// Whether a value may be given.
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

/// A notification class.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NotificationClass {
    /// Its fields; filled by the rule's `with` expressions.
    pub fields: Fields,
    /// A description for readers.
    pub description: Option<String>,
    /// Most notifications of one batch; further ones make more batches.
    pub batch_size: u32,
    /// Lifetime from the match; expired notifications are not sent.
    pub expires_after: Option<Duration>,
    /// Delivery policy.
    #[serde(flatten)]
    pub delivery_policy: DeliveryPolicy,
    /// Fields that are computed at formatting, each an expression over the template context.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub computed: BTreeMap<Name, String>,
    /// Retention of its finished batches; default: that of the application.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention: Option<Duration>,
    /// Templates, in fall-back order.
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
    /// MJML with Jinja placeholders, rendered to HTML.
    Mjml,
    /// Stylesheets of XSLT 1.0.
    Xslt,
    /// Texts with the tokens of NotifyBC, `{unsubscription_url}`.
    Notifybc,
}

/// A template with its language.
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
    /// In the form of a definition: a text, or `{ xslt: ... }`.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let key = match self.engine {
            TemplateEngine::Jinja => return serializer.serialize_str(&self.text),
            TemplateEngine::Mjml => "mjml",
            TemplateEngine::Xslt => "xslt",
            TemplateEngine::Notifybc => "notifybc",
        };
        serializer.collect_map([(key, &self.text)])
    }
}

/// Templates of one content. A missing part is taken from the next in the fall-back order.
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
    /// A short text for SMS.
    pub sms: Option<TemplateText>,
    /// Headers by name, each one line. Each falls back separately.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Fields of a mail in place of the channel's, each one line. Each falls back separately.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub mail: BTreeMap<MailField, String>,
}

/// A function that expressions of the application may call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Function {
    /// A description for readers.
    pub description: Option<String>,
    /// Parameter names, in order.
    pub parameters: Vec<Name>,
    /// The result, a CEL expression over its parameters.
    pub expression: String,
}

/// A rule: joins an event class with a subscription class.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rule {
    /// The event class. For a scheduled rule without one it is that of [`due_class`].
    pub on: Name,
    /// The subscription class.
    pub subscription: Name,
    /// Segment of the subscribers that are notified; `None`: all.
    pub audience: Option<Name>,
    /// The predicate over `event` and `sub`, in CEL. Without one every pair matches.
    pub when: Option<String>,
    /// In place of a predicate, an SQL query over the event batch and the subscriptions that returns the matches.
    pub sql: Option<String>,
    /// The notification class.
    pub notify: Name,
    /// CEL expressions of the notification's fields. A field without an expression takes the event's field of the
    /// same name.
    pub with: BTreeMap<Name, String>,
    /// A description for readers.
    pub description: Option<String>,
    /// Whether it is active.
    pub enabled: bool,
    /// Timeout of the evaluation of one event batch.
    pub timeout: Duration,
    /// Consecutive failures after which the rule is stopped; 0: never.
    pub stop_after: u32,
    /// Its schedule; `None`: evaluated at each event.
    pub schedule: Option<RuleSchedule>,
    /// State for each subscription.
    #[serde(flatten)]
    pub state: RuleState,
    /// Delay of its notifications; `None`: they are sent at once.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub delay: Option<RuleDelay>,
}

/// Delay of a rule's notifications, and the events that cancel one that waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RuleDelay {
    /// Time from the acceptance of the event to the notification.
    pub after: Duration,
    /// Correlation key, an expression over `event`: an event of `cancel_on` cancels a notification with an equal key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Event classes that cancel, each with its correlation.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub cancel_on: BTreeMap<Name, CancelKey>,
}

/// Correlation of a cancelling event with the notifications that wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum CancelKey {
    /// A lifecycle event cancels those of its subscription.
    Subscription,
    /// The expression over the cancelling event must equal the key.
    Expression(String),
}

/// Suppression of repeated matches by state for each subscription. Expressions are in CEL.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct RuleState {
    /// State key, over `event`: one state for each subscription and value. Without it one for each subscription.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per: Option<String>,
    /// Cool-down: time after a notification in which none is made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cooldown: Option<Duration>,
    /// A predicate over `event` and `sub`: after a notification none is made until an event has satisfied it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rearm: Option<String>,
    /// Change detection, an expression over `event`: none is made while its value equals that of the last
    /// notification.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changed: Option<String>,
}

impl RuleState {
    /// Whether the rule has state.
    pub fn is_kept(&self) -> bool {
        self.cooldown.is_some() || self.rearm.is_some() || self.changed.is_some()
    }
}

/// Schedule of a rule: it is evaluated at due times, over the events accepted since the previous one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RuleSchedule {
    /// The due times.
    pub recurs: Recurs,
    /// Policy for missed runs.
    pub missed: Missed,
    /// Runs that are later than this are skipped and counted.
    pub skip_older_than: Option<Duration>,
}

/// Recurrence of a scheduled rule.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Recurs {
    /// A fixed schedule for all subscriptions of its class.
    Fixed(Schedule),
    /// The schedule of each subscription. Subscriptions without one are not matched.
    Subscription,
}

/// Policy for runs that were missed while the server was down or delayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Missed {
    /// Missed runs are skipped; the next run covers their events.
    Skip,
    /// One run replaces all missed ones.
    #[default]
    Once,
    /// Each is run, at most [`CATCH_UP_MAX`].
    All,
}

/// A run under [`Missed::Skip`] with at most this delay counts as on time.
pub const GRACE: Duration = Duration::from_secs(300);

impl RuleSchedule {
    /// The schedule's policy for missed runs.
    pub fn policy(&self) -> MissedPolicy {
        match self.missed {
            Missed::Skip => MissedPolicy::Skip { grace: self.skip_older_than.unwrap_or(GRACE) },
            Missed::Once => MissedPolicy::Once,
            Missed::All => MissedPolicy::All { limit: CATCH_UP_MAX },
        }
    }
}

/// The event class of due times: a due scheduled rule is an event of this class. An application with scheduled rules
/// has it in addition to its own; events of it cannot be submitted.
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

/// Available fields of an event of [`Channel::endpoint_event`]; the class declares the ones it needs. No name has
/// another meaning in templates, so a notification can use them unchanged.
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

/// A field of a predefined class.
fn described(name: &str, kind: FieldType, about: &str) -> Field {
    Field { description: Some(about.to_owned()), ..Field::new(name.parse().expect("a field's name"), kind) }
}

/// A configured instance of a protocol.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Channel {
    /// The protocol: `smtp`, `http`, `file`.
    pub protocol: Name,
    /// Options of the protocol, with environment variables filled in. Not serialized: they may hold secrets.
    #[serde(skip)]
    pub options: serde_json::Map<String, serde_json::Value>,
    /// Retry policy.
    pub retry: RetrySchedule,
    /// Most concurrent sessions, connections or calls.
    pub concurrency: u32,
    /// Flow control per destination.
    #[serde(skip_serializing_if = "Flow::is_default")]
    pub flow: Flow,
    /// Lease of a work item: a worker that does not renew it in this time loses the item.
    pub lease: Duration,
    /// Time after which a device whose endpoint only fails is disabled; zero: never. `None`: 5 days where the
    /// device's address is the receiving server, else never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disable_after: Option<Duration>,
    /// Event class for failing endpoints: one event when a device is about to be disabled, and one when it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint_event: Option<Name>,
    /// Logging of its deliveries besides their outcomes.
    #[serde(skip_serializing_if = "DeliveryLog::is_default")]
    pub log: DeliveryLog,
}

/// Logging of deliveries besides their outcomes. The text of a refusal or deferral is always kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct DeliveryLog {
    /// Keeps the receiver's text with the receipt of a delivered notification.
    pub status: bool,
    /// Logs each attempt, without personal data.
    pub attempts: bool,
    /// Logs the sent text, shortened and without personal data.
    pub text: bool,
    /// Logging of failures.
    pub failures: FailureLog,
}

/// When failing deliveries of a channel are logged: after consecutive failures, then at intervals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct FailureLog {
    /// Consecutive failures; 0: never.
    pub after: u32,
    /// Interval of repeated log lines.
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

/// Flow control of a channel's destinations. Messages above a limit wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Flow {
    /// Concurrency limit of one destination.
    pub per_destination: u32,
    /// Whether the concurrency adapts.
    pub pace: Pace,
    /// Rate limit of the channel.
    pub rate: Option<Rate>,
    /// Rate limit of each destination.
    pub rate_per_destination: Option<Rate>,
    /// Consecutive failures after which a destination is paused (circuit breaker); 0: never.
    pub failures_before_pause: u32,
}

/// Concurrency of a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pace {
    /// Adaptive: the channel finds the useful concurrency.
    #[default]
    Auto,
    /// Fixed at the limit.
    Fixed,
}

/// A rate of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Rate {
    /// Number of messages.
    pub messages: u32,
    /// Time span.
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
    /// Jitter: each delay varies by up to this fraction, in percent, so that retries do not coincide.
    pub jitter_percent: u8,
}

impl RetrySchedule {
    /// The delay after attempt number `attempts` (from 1) has failed; `None` when it was the last.
    ///
    /// A longer `retry_after` of the receiver is respected, up to a day. `jitter` is from 0 to 1.
    pub fn delay_after(&self, attempts: u32, retry_after: Option<Duration>, jitter: f64) -> Option<Duration> {
        let planned = *self.delays.get(attempts.checked_sub(1)? as usize)?;
        let spread = f64::from(self.jitter_percent.min(100)) / 100.0 * (jitter.clamp(0.0, 1.0) * 2.0 - 1.0);
        let planned = planned.mul_f64(1.0 + spread);
        Some(planned.max(retry_after.unwrap_or_default().min(Duration::from_secs(86_400))))
    }
}

/// A source of events.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Source {
    /// `http` if clients submit events to the API, else a kind of source that the platform runs.
    pub kind: Name,
    /// Event classes that it may submit; empty means all. A source that the platform runs has exactly one.
    pub events: Vec<Name>,
    /// Options of the kind; checked by its implementation.
    #[serde(skip_serializing_if = "serde_json::Map::is_empty")]
    pub options: serde_json::Map<String, serde_json::Value>,
}

impl Source {
    /// Whether clients submit its events, so that the platform runs nothing for it.
    pub fn is_submitted(&self) -> bool {
        self.kind.as_str() == "http"
    }
}

/// Limits of an application. Work above them waits or is suspended; none is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Most subscriptions. Further ones are refused.
    pub subscriptions: u64,
    /// Most distinct filters. Subscriptions with further ones are refused.
    pub distinct_filters: u64,
    /// Most filters that the index does not support, so that each is evaluated for each event. Subscriptions with
    /// further ones are refused.
    pub unindexed_filters: u64,
    /// Most notifications of one event. Further ones are suspended.
    pub notifications_per_event: u64,
    /// Most notifications of delayed rules that wait.
    pub delayed_notifications: u64,
    /// Rate limit of notifications. Events above it wait.
    pub throttle: Option<Throttle>,
    /// Rate limit of notifications by scheduled rules. Further runs wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule_throttle: Option<Throttle>,
    /// Event batches that waited longer than this are skipped by event rules; chronicles and rule state still process
    /// them.
    pub skip_older_than: Option<Duration>,
    /// Shortest interval of a subscription's schedule.
    pub schedule_interval: Duration,
}

/// A rate of notifications.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Throttle {
    /// Number of notifications.
    pub notifications: u64,
    /// Time span.
    pub per: Duration,
}

impl Application {
    /// The throttle of an event class. Events of due times have the class `due`.
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
            delayed_notifications: 1_000_000,
            throttle: None,
            schedule_throttle: None,
            skip_older_than: None,
            schedule_interval: Duration::from_secs(60),
        }
    }
}

/// Retention of finished work. Unsent or suspended work is never removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Retention {
    /// Event batches, notification batches and receipts, counted from the end of their last notification.
    pub finished: Duration,
    /// Answers stored for `Idempotency-Key` and CloudEvents ids.
    pub idempotency: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Retention { finished: Duration::from_secs(7 * 86_400), idempotency: Duration::from_secs(2 * 86_400) }
    }
}

/// The source of submissions if the application defines none.
pub fn api_source() -> Name {
    "api".parse().expect("`api` is a name")
}

/// The source of events raised by row changes. The name is reserved in applications with such events.
pub fn row_source() -> Name {
    "rows".parse().expect("`rows` is a name")
}

/// The source of due times of delayed rules.
pub fn delay_source() -> Name {
    "delay".parse().expect("`delay` is a name")
}

/// The source of lifecycle events. The name is reserved in applications with such events.
pub fn lifecycle_source() -> Name {
    "lifecycle".parse().expect("`lifecycle` is a name")
}

/// The source of endpoint events. The name is reserved in applications with such events.
pub fn endpoint_source() -> Name {
    "endpoints".parse().expect("`endpoints` is a name")
}

impl Rule {
    /// A rule that matches every pair, with default limits.
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
            delay: None,
        }
    }
}

impl Application {
    /// An empty application.
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
            pages: Pages::default(),
        }
    }

    /// Retention of finished event batches of a class: at least that of the notifications about its events.
    pub fn events_kept(&self, class: &Name) -> Duration {
        let own = self.events.get(class).and_then(|class| class.retention).unwrap_or(self.retention.finished);
        let longest =
            self.rules.values().filter(|rule| rule.on == *class).map(|rule| self.notifications_kept(&rule.notify));
        longest.fold(own, Duration::max)
    }

    /// Retention of finished notification batches of a class.
    pub fn notifications_kept(&self, class: &Name) -> Duration {
        let own = self.notifications.get(class).and_then(|class| class.retention);
        own.unwrap_or(self.retention.finished)
    }

    /// Whether any of its rules is scheduled or delayed, so that it has the class of [`due_class`].
    pub fn has_schedules(&self) -> bool {
        self.rules.values().any(|rule| rule.schedule.is_some() || rule.delay.is_some())
    }

    /// Whether a class is bound to the life of subscriptions, so that its rules are evaluated for the subscription of
    /// each event only.
    pub fn is_lifecycle(&self, class: &Name) -> bool {
        self.events.get(class).is_some_and(EventClass::is_targeted)
    }

    /// Whether a class is bound to the life of subscriptions, subscribers or devices.
    pub fn is_bound(&self, class: &Name) -> bool {
        self.events.get(class).is_some_and(|class| class.lifecycle.is_some())
    }

    /// Whether events of a class may be submitted under this source. Due times and lifecycle events cannot be
    /// submitted.
    pub fn may_submit(&self, source: &Name, class: &Name) -> bool {
        if *class == due_class() && self.has_schedules() || self.is_bound(class) {
            return false;
        }
        match self.sources.get(source) {
            Some(source) => source.is_submitted() && (source.events.is_empty() || source.events.contains(class)),
            None => self.submitted_sources().next().is_none() && *source == api_source(),
        }
    }

    /// Sources with events submitted by clients.
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
