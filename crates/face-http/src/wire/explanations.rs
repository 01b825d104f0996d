//! Explanations: why a notification about an event was sent to a subscriber, or was not.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tocsin_model::{
    id::{EventId, Name, SubscriberId, SubscriptionId},
    time::Timestamp,
};
use tocsin_service::explain::{ExplainDraft, Explanation, Gate, Path};
use utoipa::ToSchema;

use super::rule_tests::{ConditionBody, ReadBody};

/// An event, stored or given by its fields, and a subscription or subscriber.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ExplainDraft)]
pub(crate) struct ExplainDraftBody {
    /// Id of a stored event, such as `e-12-7`. It excludes `application`, `class`, `fields` and `time`.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    event: Option<EventId>,
    /// Application of an event that is not stored.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    application: Option<Name>,
    /// Class of an event that is not stored.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    class: Option<Name>,
    /// Fields of an event that is not stored.
    #[serde(default)]
    #[schema(value_type = Option<std::collections::BTreeMap<String, serde_json::Value>>)]
    fields: Option<Box<RawValue>>,
    /// Time of acceptance of an event that is not stored; default: now.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    time: Option<Timestamp>,
    /// Id of a subscription, such as `s-15`.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    subscription: Option<SubscriptionId>,
    /// Id of a subscriber, instead of a subscription: all its subscriptions of the application.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    subscriber: Option<SubscriberId>,
    /// Only this rule. A rule in SQL is evaluated only if it is named.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    rule: Option<Name>,
}

impl From<ExplainDraftBody> for ExplainDraft {
    fn from(body: ExplainDraftBody) -> Self {
        let ExplainDraftBody { event, application, class, fields, time, subscription, subscriber, rule } = body;
        ExplainDraft { event, application, class, fields, time, subscription, subscriber, rule }
    }
}

/// An explanation.
#[derive(Serialize, ToSchema)]
#[schema(as = Explanation)]
pub(crate) struct ExplanationBody {
    application: String,
    /// The event class.
    class: String,
    event: ExplainedEventBody,
    subscriber: Option<String>,
    /// `snapshot`: subscriptions and subscribers are read as of the event. `now`: that history is no longer kept.
    basis: &'static str,
    /// Whether subscriptions, rules or notification batches were left out.
    truncated: bool,
    /// Gates before a rule and a subscription.
    gates: Vec<GateBody>,
    /// Each pair of a rule on the event class and a subscription of its class.
    paths: Vec<PathBody>,
}

/// The explained event.
#[derive(Serialize, ToSchema)]
#[schema(as = ExplainedEvent)]
pub(crate) struct ExplainedEventBody {
    /// Its id, if it is stored.
    id: Option<String>,
    /// Time of acceptance.
    #[schema(value_type = String, format = DateTime)]
    time: Timestamp,
    /// `accepted`, `matched`, `failed`, or `given` if it is not stored.
    state: &'static str,
    /// Version of the definition by which it is explained.
    version: u32,
    #[schema(value_type = std::collections::BTreeMap<String, serde_json::Value>)]
    fields: Box<RawValue>,
}

/// A rule and a subscription.
#[derive(Serialize, ToSchema)]
#[schema(as = ExplainedPath)]
pub(crate) struct PathBody {
    rule: String,
    /// The notification class.
    class: String,
    subscription: String,
    /// `sent`, `not_sent`, `waiting`, `would_send` (for an event that is not stored) or `unknown`.
    decision: &'static str,
    /// The gate from which the decision follows.
    deciding: Option<&'static str>,
    /// The stored notification.
    notification: Option<String>,
    /// Outcome of its last attempt.
    outcome: Option<&'static str>,
    /// All gates in order.
    gates: Vec<GateBody>,
}

/// A gate between an event and a notification.
#[derive(Serialize, ToSchema)]
#[schema(as = Gate)]
pub(crate) struct GateBody {
    /// `event`, `rule`, `subscription`, `consent`, `audience`, `condition`, `filter`, `state`, `delay`, `notification`,
    /// `recipient`, `preferences`, `device`, `suppression`, `hours`, `digest`, `limits` or `dispatch`.
    gate: &'static str,
    /// `passed`, `blocked` or `unknown`.
    verdict: &'static str,
    /// Whether the decision follows from it.
    deciding: bool,
    /// Time of its data: `event` (snapshot of the event), `recorded` (in the journal) or `now`.
    as_of: &'static str,
    /// Code of the reason, unless it passed; see `docs/reference/errors.md`.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    /// Parameters of the text by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    parameters: BTreeMap<String, serde_json::Value>,
    /// The reason as text.
    text: String,
    /// Values that it read.
    values: Vec<ReadBody>,
    /// The time until which it blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    until: Option<Timestamp>,
    /// Conditions of the rule or of the filter of the subscription.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    conditions: Vec<ConditionBody>,
    /// The object that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<ObjectBody>,
}

/// A reference to an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ObjectReference)]
pub(crate) struct ObjectBody {
    /// Kind, such as `rule`, `subscription`, `subscriber`, `segment`, `notification`, `channel`, `application`.
    pub(crate) kind: &'static str,
    /// Id or name.
    pub(crate) id: String,
    /// Application of a rule or channel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) application: Option<String>,
}

impl GateBody {
    fn new(gate: Gate, application: &Name) -> Self {
        let read = |(field, value): (String, String)| ReadBody { field, value };
        let parameters = gate.values.iter().filter(|_| gate.code.is_some());
        let parameters = parameters.filter_map(|(name, json)| Some((name.clone(), serde_json::from_str(json).ok()?)));
        GateBody {
            gate: gate.kind.word(),
            verdict: gate.verdict.word(),
            deciding: gate.deciding,
            as_of: gate.as_of.word(),
            code: gate.code.map(|code| code.word()),
            parameters: parameters.collect(),
            text: gate.text,
            values: gate.values.into_iter().map(read).collect(),
            until: gate.until,
            conditions: gate.conditions.into_iter().map(ConditionBody::from).collect(),
            object: gate.object.map(|object| ObjectBody {
                kind: object.kind,
                id: object.id,
                application: matches!(object.kind, "rule" | "channel").then(|| application.to_string()),
            }),
        }
    }
}

impl PathBody {
    fn new(path: Path, application: &Name) -> Self {
        PathBody {
            rule: path.rule.to_string(),
            class: path.class.to_string(),
            subscription: path.subscription.to_string(),
            decision: path.decision.word(),
            deciding: path.deciding.map(|gate| gate.word()),
            notification: path.notification.map(|id| id.to_string()),
            outcome: path.outcome.map(|outcome| outcome.word()),
            gates: path.gates.into_iter().map(|gate| GateBody::new(gate, application)).collect(),
        }
    }
}

impl From<Explanation> for ExplanationBody {
    fn from(found: Explanation) -> Self {
        let application = found.application;
        let fields = RawValue::from_string(found.fields).unwrap_or_default();
        ExplanationBody {
            class: found.class.to_string(),
            event: ExplainedEventBody {
                id: found.event.map(|id| id.to_string()),
                time: found.time,
                state: found.state.word(),
                version: found.version,
                fields,
            },
            subscriber: found.subscriber.map(|id| id.to_string()),
            basis: if found.is_snapshot { "snapshot" } else { "now" },
            truncated: found.truncated,
            gates: found.gates.into_iter().map(|gate| GateBody::new(gate, &application)).collect(),
            paths: found.paths.into_iter().map(|path| PathBody::new(path, &application)).collect(),
            application: application.to_string(),
        }
    }
}
