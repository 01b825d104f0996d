//! Input of rule tests, and the conditions of their results.

use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, value::RawValue};
use tocsin_model::{
    id::Name,
    problem::{Code, Problem},
};
use tocsin_service::{
    ServiceError,
    rules::{Condition, Junction, RuleChoice, RuleDraft, SubjectChoice, SubjectDraft, TestDraft},
    subscriptions::FilterDraft,
};
use utoipa::ToSchema;

use super::subscriptions::FilterDraftBody;

/// Input of a rule test.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RuleTest)]
pub(crate) struct RuleTestDraft {
    /// Name of a rule of the running version, or an inline rule: `on`, `subscription`, `when`.
    #[schema(value_type = RuleDraftBody)]
    rule: Option<serde_json::Value>,
    /// Events to test, each an object with the class's fields; at most 1,000.
    #[serde(default)]
    #[schema(value_type = Vec<std::collections::BTreeMap<String, serde_json::Value>>)]
    events: Vec<Box<RawValue>>,
    /// Number of newest stored events of the class to use instead of `events`; at most 1,000.
    #[serde(default)]
    last: Option<usize>,
    /// Explain for this subscription only, condition by condition: an id such as `s-15`, or an inline subscription.
    #[serde(default)]
    #[schema(value_type = Option<SubjectDraftBody>)]
    subscription: Option<serde_json::Value>,
    /// Number of stored subscriptions of the class to test, by number; 1 to 1,000,000, default 100,000.
    #[serde(default)]
    subscriptions: Option<usize>,
    /// Number of matching subscriptions listed per event; 0 to 100, default 10.
    #[serde(default)]
    show: Option<usize>,
    /// Whether to measure the rule as well, against a baseline: a rule on the same event class that matches nothing.
    /// Takes two seconds.
    #[serde(default)]
    measure: bool,
}

/// An inline rule of a test.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RuleDraft)]
pub(crate) struct RuleDraftBody {
    /// The event class.
    #[schema(value_type = String)]
    on: Name,
    /// The subscription class.
    #[schema(value_type = String)]
    subscription: Name,
    /// The predicate over `event` and `sub`, in CEL; without one every pair matches.
    #[serde(default)]
    when: Option<String>,
}

/// An inline subscription.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SubjectDraft)]
pub(crate) struct SubjectDraftBody {
    /// The fields of its class.
    #[serde(default)]
    #[schema(value_type = Option<std::collections::BTreeMap<String, serde_json::Value>>)]
    values: Option<serde_json::Value>,
    /// Own filter over the event.
    #[serde(default)]
    filter: Option<FilterDraftBody>,
}

impl TryFrom<RuleTestDraft> for TestDraft {
    type Error = ServiceError;

    fn try_from(draft: RuleTestDraft) -> Result<Self, ServiceError> {
        Ok(TestDraft {
            rule: draft.rule.map(rule).transpose()?,
            events: draft.events,
            last: draft.last,
            subscription: draft.subscription.map(subject).transpose()?,
            subscriptions: draft.subscriptions,
            show: draft.show,
            measure: draft.measure,
        })
    }
}

fn rule(given: Json) -> Result<RuleChoice, ServiceError> {
    if let Json::String(name) = given {
        return Ok(RuleChoice::Named(name));
    }
    let RuleDraftBody { on, subscription, when } = serde_json::from_value(given).map_err(|error| {
        let problem = Problem::new(Code::WrongType, "rule", error.to_string());
        ServiceError::Invalid(vec![problem.hint("give a rule's name, or `on`, `subscription` and `when`")])
    })?;
    Ok(RuleChoice::Inline(RuleDraft { on, subscription, when }))
}

fn subject(given: Json) -> Result<SubjectChoice, ServiceError> {
    if let Json::String(id) = given {
        return id.parse().map(SubjectChoice::Stored).map_err(|_| {
            ServiceError::from(
                Problem::new(Code::InvalidFormat, "subscription", format!("`{id}` is no id, such as `s-15`"))
                    .param("format", "id")
                    .param("value", id.to_string()),
            )
        });
    }
    let SubjectDraftBody { values, filter } = serde_json::from_value(given).map_err(|error| {
        let problem = Problem::new(Code::WrongType, "subscription", error.to_string());
        ServiceError::Invalid(vec![problem.hint("give an id such as `s-15`, or `values` and `filter`")])
    })?;
    Ok(SubjectChoice::Inline(SubjectDraft { values, filter: filter.map(FilterDraft::from) }))
}

/// One condition.
#[derive(Serialize, ToSchema)]
#[schema(as = Condition)]
pub(crate) struct ConditionBody {
    /// As it is written, or in words.
    text: String,
    /// `holds`, `fails`, `error` or `unknown`.
    verdict: &'static str,
    /// Why it has no value, if it is an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    trouble: Option<String>,
    /// The fields that it reads.
    values: Vec<ReadBody>,
    /// Whether the result of the rule or filter follows from it. Of a tree, the leaves decide.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    decides: bool,
    /// Operator that joins `parts`: `all`, `any` or `not`; none for a leaf.
    #[serde(skip_serializing_if = "Option::is_none")]
    operator: Option<&'static str>,
    /// Its operands.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(no_recursion)]
    parts: Vec<ConditionBody>,
}

/// A field that a condition reads.
#[derive(Serialize, ToSchema)]
#[schema(as = ReadValue)]
pub(crate) struct ReadBody {
    /// Such as `event.price`.
    pub(crate) field: String,
    /// Its value as JSON, truncated to 120 characters.
    pub(crate) value: String,
}

impl From<Condition> for ConditionBody {
    fn from(condition: Condition) -> Self {
        let read = |(field, value): (String, String)| ReadBody { field, value };
        ConditionBody {
            text: condition.text,
            verdict: condition.verdict.word(),
            trouble: condition.error,
            values: condition.values.into_iter().map(read).collect(),
            decides: condition.decides,
            operator: condition.operator.map(Junction::word),
            parts: condition.parts.into_iter().map(ConditionBody::from).collect(),
        }
    }
}
