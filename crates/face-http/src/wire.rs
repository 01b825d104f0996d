//! The JSON that goes out, and the small bodies that come in. Subscribers and subscriptions have their forms in the
//! service, because imports and exports share them.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize, ser::SerializeMap};
use tocsin_model::{
    definition::Difference,
    event::EventBatch,
    id::Name,
    notification::NotificationHead,
    problem::Problem,
    receipt::{Attempt, Outcome},
    time::Timestamp,
    value::Value,
};
use tocsin_service::{
    applications::{Applied, Checked, RuleExplanation},
    events::{Submitted, SubmittedLines},
    keys::MadeKey,
    operations, status, trace,
};
use tocsin_store::{
    journal::{EventBatchState, StoredSuspension, SuspensionFilter},
    records::{ApiKey, ApplicationVersion},
};
use utoipa::ToSchema;

use crate::routes::switches::SwitchBody;

pub(crate) mod sync; // rows of collections, devices that keep replicas
pub(crate) mod inbox; // items, their changes, broadcasts

/// A page of a list.
#[derive(Serialize, ToSchema)]
pub(crate) struct List<T> {
    /// The things, in the list's order.
    pub(crate) items: Vec<T>,
    /// Give this as `after` (or `before`, for lists that begin with the newest) for the next page; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<String>,
}

impl<T> From<tocsin_service::Page<T>> for List<T> {
    fn from(page: tocsin_service::Page<T>) -> Self {
        List { items: page.items, next: page.next }
    }
}

/// One thing that is wrong with the content.
#[derive(ToSchema)]
#[allow(dead_code)]
pub(crate) struct ProblemItem {
    /// Where, as a dotted path; empty for the whole.
    path: String,
    /// Line, from 1.
    line: Option<u32>,
    /// Column, from 1.
    column: Option<u32>,
    /// What is wrong.
    message: String,
    /// What would be right.
    hint: Option<String>,
}

/// An application that is stored.
#[derive(Serialize, ToSchema)]
pub(crate) struct ApplicationBody {
    name: String,
    version: u32,
    description: Option<String>,
    /// The id of the key that applied it.
    author: String,
    #[schema(value_type = String, format = DateTime)]
    applied_at: Timestamp,
    /// Whether it runs. One that does not is told of in the log, and by a check of its definition.
    running: bool,
    /// Its definition, as it was applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    definition: Option<String>,
}

impl ApplicationBody {
    pub(crate) fn new(
        stored: ApplicationVersion,
        running: Option<&tocsin_service::applications::Running>,
        whole: bool,
    ) -> Self {
        ApplicationBody {
            name: stored.name.to_string(),
            version: stored.version,
            description: running.and_then(|running| running.application.description.clone()),
            author: stored.author,
            applied_at: stored.applied_at,
            running: running.is_some_and(|running| running.version == stored.version),
            definition: whole.then_some(stored.text),
        }
    }
}

/// What an apply changes.
#[derive(Serialize, ToSchema)]
pub(crate) struct DifferenceBody {
    /// `added`, `changed` or `removed`.
    #[schema(value_type = String)]
    kind: tocsin_model::definition::DifferenceKind,
    path: String,
    /// What it means.
    text: String,
    /// Whether stored data would be lost from sight, so that it must be allowed by name.
    drops: bool,
    /// The name by which to allow it.
    #[serde(skip_serializing_if = "Option::is_none")]
    allow: Option<String>,
}

impl From<Difference> for DifferenceBody {
    fn from(found: Difference) -> Self {
        let drops = found.drops.is_some();
        DifferenceBody { kind: found.kind, path: found.path, text: found.sentence, drops, allow: found.drops }
    }
}

/// What an apply did, or would do.
#[derive(Serialize, ToSchema)]
pub(crate) struct AppliedBody {
    name: String,
    version: u32,
    /// Whether this version runs.
    running: bool,
    differences: Vec<DifferenceBody>,
    #[schema(value_type = Vec<ProblemItem>)]
    warnings: Vec<Problem>,
}

impl From<Applied> for AppliedBody {
    fn from(applied: Applied) -> Self {
        AppliedBody {
            name: applied.name.to_string(),
            version: applied.version,
            running: applied.running,
            differences: applied.differences.into_iter().map(DifferenceBody::from).collect(),
            warnings: applied.warnings,
        }
    }
}

/// What a definition would be.
#[derive(Serialize, ToSchema)]
pub(crate) struct CheckedBody {
    #[schema(value_type = Vec<ProblemItem>)]
    problems: Vec<Problem>,
    #[schema(value_type = Vec<ProblemItem>)]
    warnings: Vec<Problem>,
    rules: Vec<RuleBody>,
}

impl From<Checked> for CheckedBody {
    fn from(checked: Checked) -> Self {
        let rules = checked.rules.into_iter().map(RuleBody::from).collect();
        CheckedBody { problems: checked.problems, warnings: checked.warnings, rules }
    }
}

/// How a rule is answered.
#[derive(Serialize, ToSchema)]
pub(crate) struct RuleBody {
    rule: String,
    /// The segment to which a subscriber must belong to be told, if to any.
    #[serde(skip_serializing_if = "Option::is_none")]
    audience: Option<String>,
    /// Its alternatives; a subscription that several of them find is matched once.
    branches: Vec<BranchBody>,
    /// What it remembers, and so which matches are not told.
    remembers: Vec<String>,
    /// The own filters of its class's subscriptions, of a rule that runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    filters: Option<FilterFiguresBody>,
    /// How its query in SQL is run, in the store's words, if it has one.
    query: Vec<String>,
    /// What its author should know.
    warnings: Vec<String>,
}

/// How one alternative of a rule is answered.
#[derive(Serialize, ToSchema)]
pub(crate) struct BranchBody {
    /// Tested once per event.
    event_guards: Vec<String>,
    /// Tested once when a subscription is put.
    subscription_guards: Vec<String>,
    /// Answered by the hash.
    keys: Vec<String>,
    /// Answered by the sorted column.
    range: Vec<String>,
    /// Whether the subscriptions' own filters have a say: where no index answers, the candidates are those whose filter
    /// matches and those without one.
    filters: bool,
    /// Checked for each candidate that the index gives.
    residual: Vec<String>,
    /// How many subscriptions stand where the index leads an event, on average; a slice takes a part of them. Of rules
    /// that run.
    #[serde(skip_serializing_if = "Option::is_none")]
    candidates: Option<u64>,
}

/// The own filters of the subscriptions of a rule's class, and what they cost since the index was built.
#[derive(Serialize, ToSchema)]
pub(crate) struct FilterFiguresBody {
    /// Distinct filters; one that subscriptions of several shards have counts on each.
    distinct: u64,
    /// Those of them that are looked at for every event.
    unindexed: u64,
    /// Events that they were asked about.
    events: u64,
    /// Alternatives that were looked at, since their values were found.
    candidates: u64,
    /// Filters that were evaluated, since no index says all of them.
    evaluated: u64,
    /// Filters that matched.
    matched: u64,
}

impl From<RuleExplanation> for RuleBody {
    fn from(rule: RuleExplanation) -> Self {
        let branches = rule.branches.into_iter().map(|branch| BranchBody {
            event_guards: branch.event_guards,
            subscription_guards: branch.subscription_guards,
            keys: branch.keys,
            range: branch.range,
            filters: branch.filters,
            residual: branch.residual,
            candidates: branch.candidates,
        });
        let filters = rule.filters.map(|filters| FilterFiguresBody {
            distinct: filters.distinct,
            unindexed: filters.unindexed,
            events: filters.counts.events,
            candidates: filters.counts.candidates,
            evaluated: filters.counts.evaluated,
            matched: filters.counts.matched,
        });
        RuleBody {
            rule: rule.rule.to_string(),
            audience: rule.audience.as_ref().map(ToString::to_string),
            branches: branches.collect(),
            remembers: rule.remembers,
            filters,
            query: rule.query,
            warnings: rule.warnings,
        }
    }
}

/// A submission that is durable.
#[derive(Serialize, ToSchema)]
pub(crate) struct SubmittedBody {
    /// The batch that the events are in.
    batch: String,
    events: u32,
    /// Whether it came before; nothing was added.
    duplicate: bool,
}

/// The same by hand: this is the answer that is given most often.
pub(crate) fn submitted(submitted: Submitted) -> String {
    let Submitted { batch, events, duplicate } = submitted;
    format!(r#"{{"batch":"{batch}","events":{events},"duplicate":{duplicate}}}"#)
}

/// Submissions that are durable.
#[derive(Serialize, ToSchema)]
pub(crate) struct SubmittedLinesBody {
    pub(crate) batches: Vec<String>,
    pub(crate) events: u64,
    /// How many of them came before.
    pub(crate) duplicates: u64,
}

impl From<&SubmittedLines> for SubmittedLinesBody {
    fn from(lines: &SubmittedLines) -> Self {
        let batches = lines.batches.iter().map(ToString::to_string).collect();
        SubmittedLinesBody { batches, events: lines.events, duplicates: lines.duplicates }
    }
}

/// An event batch.
#[derive(Serialize, ToSchema)]
pub(crate) struct EventBatchBody {
    id: String,
    application: String,
    version: u32,
    class: String,
    source: String,
    #[schema(value_type = String, format = DateTime)]
    received_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    accepted_at: Timestamp,
    events: u32,
    /// `accepted`, `matched` or `failed`.
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    matched_at: Option<Timestamp>,
    /// Why matching failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl From<(EventBatch, EventBatchState)> for EventBatchBody {
    fn from((batch, state): (EventBatch, EventBatchState)) -> Self {
        let word = state.word();
        let (matched_at, reason) = match state {
            EventBatchState::Accepted => (None, None),
            EventBatchState::Matched(at) => (Some(at), None),
            EventBatchState::Failed(reason) => (None, Some(reason)),
        };
        EventBatchBody {
            id: batch.id.to_string(),
            application: batch.application.to_string(),
            version: batch.version,
            class: batch.class.to_string(),
            source: batch.source.to_string(),
            received_at: batch.received_at,
            accepted_at: batch.accepted_at,
            events: batch.events.count(),
            state: word,
            matched_at,
            reason,
        }
    }
}

/// Named values, in order.
#[derive(ToSchema)]
#[schema(value_type = std::collections::BTreeMap<String, serde_json::Value>)]
pub(crate) struct Named(pub(crate) Vec<(String, Value)>);

impl Serialize for Named {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

/// What the notifications of a batch have in common.
#[derive(Serialize, ToSchema)]
pub(crate) struct HeadBody {
    application: String,
    version: u32,
    rule: String,
    class: String,
    event_class: String,
    channel: String,
    #[schema(value_type = String, format = DateTime)]
    accepted_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    matched_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
}

impl From<NotificationHead> for HeadBody {
    fn from(head: NotificationHead) -> Self {
        HeadBody {
            application: head.application.to_string(),
            version: head.version,
            rule: head.rule.to_string(),
            class: head.class.to_string(),
            event_class: head.event_class.to_string(),
            channel: head.channel.to_string(),
            accepted_at: head.accepted_at,
            matched_at: head.matched_at,
            expires_at: head.expires_at,
        }
    }
}

/// A notification batch.
#[derive(Serialize, ToSchema)]
pub(crate) struct NotificationBatchBody {
    pub(crate) id: String,
    #[serde(flatten)]
    pub(crate) head: HeadBody,
    /// How many notifications.
    pub(crate) notifications: u32,
    /// How many came to which outcome by their last attempt; `waiting` for those not tried yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) outcomes: Option<BTreeMap<&'static str, u32>>,
}

impl From<operations::NotificationBatch> for NotificationBatchBody {
    fn from(batch: operations::NotificationBatch) -> Self {
        let mut outcomes: BTreeMap<&'static str, u32> = Outcome::ALL
            .iter()
            .map(|outcome| outcome.word())
            .zip(batch.outcomes)
            .filter(|(_, count)| *count > 0)
            .collect();
        if batch.untried > 0 {
            outcomes.insert("waiting", batch.untried);
        }
        NotificationBatchBody {
            id: batch.id.to_string(),
            head: batch.head.into(),
            notifications: batch.count,
            outcomes: Some(outcomes),
        }
    }
}

/// One attempt to deliver.
#[derive(Serialize, ToSchema)]
pub(crate) struct AttemptBody {
    number: u32,
    #[schema(value_type = String, format = DateTime)]
    formatted_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    sent_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    answered_at: Timestamp,
    /// `delivered`, `deferred`, `refused`, `expired`, `suspended` or `ended`.
    outcome: &'static str,
    /// The far side's words, or why it was not even asked.
    reply: String,
}

impl From<Attempt> for AttemptBody {
    fn from(attempt: Attempt) -> Self {
        AttemptBody {
            number: attempt.number,
            formatted_at: attempt.formatted_at,
            sent_at: attempt.sent_at,
            answered_at: attempt.answered_at,
            outcome: attempt.outcome.word(),
            reply: attempt.reply,
        }
    }
}

/// Whom a notification goes to.
#[derive(Serialize, ToSchema)]
pub(crate) struct RecipientBody {
    subscriber: String,
    locale: Option<String>,
    device: Option<String>,
    channel: Option<String>,
    address: Option<String>,
}

/// A notification.
#[derive(Serialize, ToSchema)]
pub(crate) struct NotificationBody {
    id: String,
    #[serde(flatten)]
    head: HeadBody,
    subscription: String,
    event_id: String,
    /// The event that it tells of.
    event: Option<Named>,
    /// Its fields, as its content shows them.
    fields: Named,
    recipient: Option<RecipientBody>,
    attempts: Vec<AttemptBody>,
    /// The last attempt's outcome; `waiting` before the first.
    state: &'static str,
}

impl From<operations::Notification> for NotificationBody {
    fn from(notification: operations::Notification) -> Self {
        let recipient = notification.recipient.map(|recipient| {
            let (device, channel, address) = match recipient.device() {
                Some((name, device)) => {
                    (Some(name.to_string()), Some(device.channel.to_string()), Some(device.address.clone()))
                }
                None => (None, None, None),
            };
            let (subscriber, locale) = (recipient.id.to_string(), recipient.profile.locale.clone());
            RecipientBody { subscriber, locale, device, channel, address }
        });
        NotificationBody {
            id: notification.id.to_string(),
            head: notification.head.into(),
            subscription: notification.subscription.to_string(),
            event_id: notification.event_id.to_string(),
            event: notification.event.map(Named),
            fields: Named(notification.fields),
            recipient,
            attempts: notification.attempts.into_iter().map(AttemptBody::from).collect(),
            state: notification.outcome.map_or("waiting", Outcome::word),
        }
    }
}

/// One thing's whole story.
#[derive(Serialize, ToSchema)]
pub(crate) struct TraceBody {
    id: String,
    /// `event`, `event batch`, `notification`, `notification batch` or `subscriber`.
    kind: &'static str,
    timeline: Vec<PointBody>,
    /// How many notifications it led to, by outcome of their last attempt.
    notifications: BTreeMap<&'static str, u64>,
    latencies: TraceLatenciesBody,
    /// Whether there was more than is told.
    truncated: bool,
}

/// What happened at one time.
#[derive(Serialize, ToSchema)]
pub(crate) struct PointBody {
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    what: &'static str,
    id: String,
    text: String,
}

/// How long the parts of the way took, in milliseconds.
#[derive(Serialize, ToSchema)]
pub(crate) struct TraceLatenciesBody {
    /// From acceptance to the match.
    generation_ms: Option<f64>,
    /// From the match to the first hand-over.
    wait_ms: Option<f64>,
    /// From the first hand-over to the last delivery.
    delivery_ms: Option<f64>,
}

impl TraceBody {
    pub(crate) fn new(id: String, trace: trace::Trace) -> Self {
        let point = |point: trace::Point| PointBody { at: point.at, what: point.what, id: point.id, text: point.text };
        let latencies = trace.latencies;
        TraceBody {
            id,
            kind: trace.subject.kind(),
            timeline: trace.timeline.into_iter().map(point).collect(),
            notifications: trace.notifications,
            latencies: TraceLatenciesBody {
                generation_ms: latencies.generation.map(millis),
                wait_ms: latencies.wait.map(millis),
                delivery_ms: latencies.delivery.map(millis),
            },
            truncated: trace.truncated,
        }
    }
}

pub(crate) fn millis(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1_000.0
}

/// How the platform does.
#[derive(Serialize, ToSchema)]
pub(crate) struct StatusBody {
    version: &'static str,
    #[schema(value_type = String, format = DateTime)]
    started_at: Timestamp,
    ready: bool,
    applications: Vec<ApplicationStatusBody>,
    counts: CountsBody,
    backlog: BacklogBody,
    totals: TotalsBody,
    latencies: LatenciesBody,
    /// Everything that is switched off.
    switches: Vec<SwitchBody>,
}

/// How one application does.
#[derive(Serialize, ToSchema)]
pub(crate) struct ApplicationStatusBody {
    name: String,
    version: u32,
    /// Subscriptions in the match index.
    indexed: u64,
    index_bytes: u64,
    /// Shards of the match index.
    shards: u64,
    /// Subscriptions that cannot be matched by this version; see `unusable-subscriptions`.
    unusable: u64,
    /// Changes of the records that the match index has not followed yet.
    changes_behind: u64,
    ready: bool,
}

/// How many there are.
#[derive(Serialize, ToSchema)]
pub(crate) struct CountsBody {
    subscribers: u64,
    devices: u64,
    subscriptions: u64,
    /// Items of all feeds, broadcasts not among them.
    inbox_items: u64,
}

/// What waits.
#[derive(Serialize, ToSchema)]
pub(crate) struct BacklogBody {
    event_batches: u64,
    events: u64,
    event_bytes: u64,
    failed_batches: u64,
    notifications: u64,
    work_items: u64,
    suspended: u64,
    #[schema(value_type = Option<String>, format = DateTime)]
    oldest_event: Option<Timestamp>,
}

/// Totals since the journal was made.
#[derive(Serialize, ToSchema)]
pub(crate) struct TotalsBody {
    event_batches: u64,
    events: u64,
    notification_batches: u64,
    notifications: u64,
    /// Attempts by outcome.
    attempts: BTreeMap<&'static str, u64>,
}

/// Latencies since the start of the process.
#[derive(Serialize, ToSchema)]
pub(crate) struct LatenciesBody {
    accept: PercentilesBody,
    #[serde(rename = "match")]
    matching: PercentilesBody,
    deliver: PercentilesBody,
    end_to_end: PercentilesBody,
}

/// Percentiles in milliseconds.
#[derive(Serialize, ToSchema)]
pub(crate) struct PercentilesBody {
    p50_ms: f64,
    p95_ms: f64,
    p99_ms: f64,
    count: u64,
}

impl From<tocsin_service::status::Percentiles> for PercentilesBody {
    fn from(found: tocsin_service::status::Percentiles) -> Self {
        PercentilesBody {
            p50_ms: millis(found.p50),
            p95_ms: millis(found.p95),
            p99_ms: millis(found.p99),
            count: found.count,
        }
    }
}

impl From<status::Status> for StatusBody {
    fn from(status: status::Status) -> Self {
        let application = |(name, status): (Name, status::ApplicationStatus)| ApplicationStatusBody {
            name: name.to_string(),
            version: status.version,
            indexed: status.indexed,
            index_bytes: status.index_bytes,
            shards: status.shards,
            unusable: status.unusable,
            changes_behind: status.changes_behind,
            ready: status.ready,
        };
        let (counts, backlog, totals, latencies) = (status.counts, status.backlog, status.totals, status.latencies);
        StatusBody {
            version: status.version,
            started_at: status.started_at,
            ready: status.ready,
            applications: status.applications.into_iter().map(application).collect(),
            counts: CountsBody {
                subscribers: counts.subscribers,
                devices: counts.devices,
                subscriptions: counts.subscriptions,
                inbox_items: status.inbox.items,
            },
            backlog: BacklogBody {
                event_batches: backlog.event_batches,
                events: backlog.events,
                event_bytes: backlog.event_bytes,
                failed_batches: backlog.failed_batches,
                notifications: backlog.notifications,
                work_items: backlog.work_items,
                suspended: backlog.suspended,
                oldest_event: backlog.oldest_event,
            },
            totals: TotalsBody {
                event_batches: totals.event_batches,
                events: totals.events,
                notification_batches: totals.notification_batches,
                notifications: totals.notifications,
                attempts: Outcome::ALL.iter().map(|outcome| outcome.word()).zip(totals.attempts).collect(),
            },
            switches: status.switches.into_iter().map(SwitchBody::from).collect(),
            latencies: LatenciesBody {
                accept: latencies.accept.into(),
                matching: latencies.matching.into(),
                deliver: latencies.deliver.into(),
                end_to_end: latencies.end_to_end.into(),
            },
        }
    }
}

/// Notifications of one batch that wait for an operator.
#[derive(Serialize, ToSchema)]
pub(crate) struct SuspensionBody {
    id: u64,
    batch: String,
    application: String,
    channel: String,
    notifications: usize,
    /// How many attempts each has had.
    attempts: u32,
    reason: String,
    #[schema(value_type = String, format = DateTime)]
    since: Timestamp,
    /// Whether somebody has edited what is sent when it is resumed.
    edited: bool,
}

impl From<StoredSuspension> for SuspensionBody {
    fn from(stored: StoredSuspension) -> Self {
        let suspension = stored.suspension;
        SuspensionBody {
            id: stored.id,
            batch: suspension.batch.to_string(),
            application: suspension.application.to_string(),
            channel: suspension.channel.to_string(),
            notifications: suspension.ordinals.len(),
            attempts: suspension.attempts,
            reason: suspension.reason,
            since: suspension.since,
            edited: suspension.course.edit.is_some(),
        }
    }
}

/// A suspension with its first notifications.
#[derive(Serialize, ToSchema)]
pub(crate) struct SuspendedBody {
    #[serde(flatten)]
    suspension: SuspensionBody,
    /// What is sent in place of what was to be sent: `fields`, `content`, `address`.
    #[schema(value_type = Option<serde_json::Value>)]
    edit: Option<serde_json::Value>,
    /// The first twenty.
    shown: Vec<SuspendedNotification>,
}

/// A suspended notification, and what it would say if it were resumed now.
#[derive(Serialize, ToSchema)]
pub(crate) struct SuspendedNotification {
    notification: NotificationBody,
    /// The device that it would go to.
    device: Option<String>,
    channel: Option<String>,
    address: Option<String>,
    subject: Option<String>,
    text: Option<String>,
    html: Option<String>,
    json: Option<String>,
    /// Why it could not be sent now.
    problem: Option<String>,
}

impl From<tocsin_service::suspensions::Suspended> for SuspendedBody {
    fn from(suspended: tocsin_service::suspensions::Suspended) -> Self {
        let edit = suspended.stored.suspension.course.edit.as_deref();
        let edit = edit.and_then(|edit| serde_json::from_str(edit).ok());
        let shown = |(notification, preview): (operations::Notification, Result<_, String>)| {
            let (preview, problem) = match preview {
                Ok(preview) => (Some(preview), None),
                Err(problem) => (None, Some(problem)),
            };
            let (place, content) = preview
                .map(|preview: tocsin_service::suspensions::Preview| {
                    ((preview.device.to_string(), preview.channel.to_string(), preview.address), preview.content)
                })
                .unzip();
            let content = content.unwrap_or_default();
            let (device, channel, address) = match place {
                Some((device, channel, address)) => (Some(device), Some(channel), Some(address)),
                None => (None, None, None),
            };
            SuspendedNotification {
                notification: notification.into(),
                device,
                channel,
                address,
                subject: content.subject,
                text: content.text,
                html: content.html,
                json: content.json,
                problem,
            }
        };
        let notifications = suspended.notifications.into_iter().map(shown).collect();
        SuspendedBody { suspension: suspended.stored.into(), edit, shown: notifications }
    }
}

/// What is changed of suspended notifications.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EditBody {
    /// Only these notifications of the suspension; they become a suspension of their own.
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>)]
    pub(crate) notifications: Option<Vec<tocsin_model::id::NotificationId>>,
    /// `fields` of the notification by name, the parts of the `content` (`subject`, `text`, `html`, `json`) in place of
    /// what the templates make, and the `address` in place of the device's. Null takes an edit away.
    #[serde(deserialize_with = "Option::deserialize")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(crate) edit: Option<tocsin_model::edit::Edit>,
}

/// Which suspension has the edit.
#[derive(Serialize, ToSchema)]
pub(crate) struct EditedBody {
    pub(crate) id: u64,
}

/// Which suspensions: all that meet every given condition. Without any condition `all` must be true.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FilterBody {
    #[serde(default)]
    id: Option<u64>,
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    application: Option<Name>,
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    channel: Option<Name>,
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    batch: Option<tocsin_model::id::NotificationBatchId>,
    /// Only those of this notification class.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    class: Option<Name>,
    /// Only those whose reason contains this text.
    #[serde(default)]
    reason: Option<String>,
    /// Only those that were suspended before this time.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    before: Option<Timestamp>,
    #[serde(default)]
    pub(crate) all: bool,
}

impl FilterBody {
    pub(crate) fn filter(self) -> SuspensionFilter {
        let FilterBody { id, application, channel, batch, class, reason, before, .. } = self;
        SuspensionFilter { id, application, channel, batch, class, reason, before }
    }
}

/// How many notifications were touched.
#[derive(Serialize, ToSchema)]
pub(crate) struct ResolvedBody {
    pub(crate) notifications: u64,
}

/// How many event batches are matched again.
#[derive(Serialize, ToSchema)]
pub(crate) struct RematchedBody {
    pub(crate) batches: u64,
}

/// A channel's sign of life.
#[derive(Serialize, ToSchema)]
pub(crate) struct ChannelProbeBody {
    pub(crate) channel: String,
    pub(crate) ok: bool,
    /// The far side's words, or what is wrong.
    pub(crate) text: String,
}

/// An API key, without its secret.
#[derive(Serialize, ToSchema)]
pub(crate) struct KeyBody {
    id: String,
    description: String,
    scopes: Vec<String>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
    /// The whole key, shown this once.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

impl From<ApiKey> for KeyBody {
    fn from(key: ApiKey) -> Self {
        KeyBody {
            id: key.id,
            description: key.description,
            scopes: key.scopes,
            created_at: key.created_at,
            expires_at: key.expires_at,
            key: None,
        }
    }
}

impl From<MadeKey> for KeyBody {
    fn from(made: MadeKey) -> Self {
        KeyBody { key: Some(made.text), ..made.kept.into() }
    }
}

/// A key that is asked for.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewKeyBody {
    /// What it is for.
    #[serde(default)]
    pub(crate) description: String,
    /// What it may do: `admin`, `applications:read`, `applications:write`, `subscribers:read`, `subscribers:write`,
    /// `events:write`, `operations:read`, `operations:write`, `keys:write`, `bounces:write`, `inbox:read`, `inbox:write`,
    /// `messages:write`, `sync:read`, `sync:write`.
    pub(crate) scopes: Vec<String>,
    /// When it stops working.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(crate) expires_at: Option<Timestamp>,
}

/// Whether the platform can serve, and why not.
#[derive(Serialize, ToSchema)]
pub(crate) struct ReadyBody {
    pub(crate) ready: bool,
    pub(crate) reasons: Vec<String>,
}
