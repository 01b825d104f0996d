use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Serialize;
use tocsin_model::{id::Name, problem::Problem};
use tocsin_service::{
    indexed::{Unindexed, Unusable},
    rules::{Condition, Cost, RuleTest, TestDraft, TestedEvent, Trial, Verdict},
};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{Failures, json};
use crate::{
    App,
    problems::Failure,
    request::{Authorized, JsonBody, PageParameters, Parameters, Segments, id},
    wire::{List, ProblemItem, RuleBody},
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(rules))
        .routes(routes!(test))
        .routes(routes!(unusable))
        .routes(routes!(unindexed))
}

/// How each rule of the running version is answered.
#[utoipa::path(get, path = "/v1/applications/{application}/rules", tag = "applications", params(("application" = String, Path)), responses((status = 200, body = List<RuleBody>), Failures))]
async fn rules(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
) -> Result<Response, Failure> {
    let rules = app.service.application_rules(&caller, &id::<Name>(&name)?)?;
    let items = rules.into_iter().map(RuleBody::from).collect();
    Ok(json(StatusCode::OK, &List { items, next: None }))
}

/// Tries a rule, applied or not, on events: who would be told, or what it says of one subscription. Tells nobody.
#[utoipa::path(post, path = "/v1/applications/{application}/rules/test", tag = "applications", params(("application" = String, Path)), request_body = TestDraft, responses((status = 200, body = RuleTestBody), Failures))]
async fn test(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
    JsonBody(draft): JsonBody<TestDraft>,
) -> Result<Response, Failure> {
    let found = app.service.test_rule(&caller, &id::<Name>(&name)?, draft).await?;
    Ok(json(StatusCode::OK, &RuleTestBody::from(found)))
}

/// The subscriptions of an application that its running version cannot match, and why. A page may be empty and another
/// follow.
#[utoipa::path(get, path = "/v1/applications/{application}/unusable-subscriptions", tag = "operations", params(("application" = String, Path), PageParameters), responses((status = 200, body = List<UnusableBody>), Failures))]
async fn unusable(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
    Parameters(asked): Parameters<PageParameters>,
) -> Result<Response, Failure> {
    let (name, limit) = (id::<Name>(&name)?, asked.limit()?);
    let found = app.service.unusable_subscriptions(&caller, &name, asked.after.as_deref(), limit).await?;
    Ok(json(StatusCode::OK, &List::from(found.map(UnusableBody::from))))
}

/// The subscriptions of an application whose filter no index answers, so that each event pays for it, and why. A page may be
/// empty and another follow.
#[utoipa::path(get, path = "/v1/applications/{application}/unindexed-subscriptions", tag = "operations", params(("application" = String, Path), PageParameters), responses((status = 200, body = List<UnindexedBody>), Failures))]
async fn unindexed(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
    Parameters(asked): Parameters<PageParameters>,
) -> Result<Response, Failure> {
    let (name, limit) = (id::<Name>(&name)?, asked.limit()?);
    let found = app.service.unindexed_subscriptions(&caller, &name, asked.after.as_deref(), limit).await?;
    Ok(json(StatusCode::OK, &List::from(found.map(UnindexedBody::from))))
}

/// A subscription that cannot be matched.
#[derive(Serialize, ToSchema)]
#[schema(as = UnusableSubscription)]
struct UnusableBody {
    id: String,
    class: String,
    /// Why.
    #[schema(value_type = ProblemItem)]
    problem: Problem,
}

impl From<Unusable> for UnusableBody {
    fn from(found: Unusable) -> Self {
        UnusableBody { id: found.id.to_string(), class: found.class.to_string(), problem: found.problem }
    }
}

/// A subscription whose filter is looked at for every event.
#[derive(Serialize, ToSchema)]
#[schema(as = UnindexedSubscription)]
struct UnindexedBody {
    id: String,
    class: String,
    /// The dialect of its filter.
    dialect: String,
    /// The text of its filter.
    text: String,
    /// Why no index answers it.
    reason: String,
}

impl From<Unindexed> for UnindexedBody {
    fn from(found: Unindexed) -> Self {
        UnindexedBody {
            id: found.id.to_string(),
            class: found.class.to_string(),
            dialect: found.filter.dialect.to_string(),
            text: found.filter.text,
            reason: found.reason,
        }
    }
}

/// What a test of a rule found.
#[derive(Serialize, ToSchema)]
#[schema(as = RuleTestResult)]
struct RuleTestBody {
    /// How the rule is answered.
    rule: RuleBody,
    /// Which subscriptions were tried; null if one was asked for.
    subscriptions: Option<TriedBody>,
    /// What it found for each event, in order.
    events: Vec<TestedEventBody>,
    /// What an event costs, if it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<CostBody>,
}

/// What an event costs, in microseconds: medians over rounds in which the rule and the baseline took turns.
#[derive(Serialize, ToSchema)]
#[schema(as = RuleCost)]
struct CostBody {
    /// How often each was measured.
    rounds: usize,
    /// What the rule takes for one event.
    rule_us: f64,
    /// What a rule takes that matches nothing.
    baseline_us: f64,
    /// What is the rule's own: what it takes beyond the baseline.
    own_us: f64,
}

impl From<Cost> for CostBody {
    fn from(cost: Cost) -> Self {
        let micros = |time: std::time::Duration| time.as_nanos() as f64 / 1_000.0;
        let own_us = micros(cost.rule.saturating_sub(cost.baseline));
        CostBody { rounds: cost.rounds, rule_us: micros(cost.rule), baseline_us: micros(cost.baseline), own_us }
    }
}

/// The subscriptions of a test.
#[derive(Serialize, ToSchema)]
struct TriedBody {
    /// How many were tried.
    tried: usize,
    /// Whether these were all enabled ones of the class.
    all: bool,
    /// How many cannot be matched, since their filter or values do not fit this version.
    unusable: usize,
}

/// What a test found for one event.
#[derive(Serialize, ToSchema)]
struct TestedEventBody {
    /// Its id, if it is stored.
    event: Option<String>,
    /// How many of the tried subscriptions match.
    matches: u64,
    /// Some of them.
    subscriptions: Vec<String>,
    /// What the rule says of the subscription that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    trial: Option<TrialBody>,
    /// Why it could not be decided, for all subscriptions or for some.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    failures: Vec<String>,
}

/// What a rule says of an event and a subscription.
#[derive(Serialize, ToSchema)]
struct TrialBody {
    matches: bool,
    /// The conditions that the predicate joins by `&&`.
    conditions: Vec<ConditionBody>,
    /// What the subscription's own filter says, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    filter: Option<FilterTrialBody>,
}

/// What a subscription's own filter says of an event.
#[derive(Serialize, ToSchema)]
struct FilterTrialBody {
    /// `holds`, `fails` or `error`.
    verdict: &'static str,
    /// What it asks of the event, one by one, in words.
    conditions: Vec<ConditionBody>,
}

/// One condition.
#[derive(Serialize, ToSchema)]
struct ConditionBody {
    /// As it is written, or in words.
    text: String,
    /// `holds`, `fails` or `error`.
    verdict: &'static str,
    /// Why it has no value, if it is an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    trouble: Option<String>,
    /// The fields that it reads.
    values: Vec<ReadBody>,
}

/// A field that a condition reads.
#[derive(Serialize, ToSchema)]
struct ReadBody {
    /// Such as `event.price`.
    field: String,
    /// Its value as it stands in JSON, cut at 120 characters.
    value: String,
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Holds => "holds",
        Verdict::Fails => "fails",
        Verdict::Error => "error",
    }
}

impl From<Condition> for ConditionBody {
    fn from(condition: Condition) -> Self {
        let read = |(field, value): (String, String)| ReadBody { field, value };
        ConditionBody {
            text: condition.text,
            verdict: word(condition.verdict),
            trouble: condition.trouble,
            values: condition.values.into_iter().map(read).collect(),
        }
    }
}

impl From<Trial> for TrialBody {
    fn from(trial: Trial) -> Self {
        let bodies = |conditions: Vec<Condition>| conditions.into_iter().map(ConditionBody::from).collect();
        TrialBody {
            matches: trial.matches,
            conditions: bodies(trial.conditions),
            filter: trial
                .filter
                .map(|filter| FilterTrialBody { verdict: word(filter.verdict), conditions: bodies(filter.conditions) }),
        }
    }
}

impl From<RuleTest> for RuleTestBody {
    fn from(test: RuleTest) -> Self {
        let event = |event: TestedEvent| TestedEventBody {
            event: event.event.map(|id| id.to_string()),
            matches: event.matches,
            subscriptions: event.subscriptions.iter().map(ToString::to_string).collect(),
            trial: event.trial.map(TrialBody::from),
            failures: event.failures,
        };
        let RuleTest { explanation, tried, all, unusable, events, cost } = test;
        RuleTestBody {
            rule: explanation.into(),
            subscriptions: tried.map(|tried| TriedBody { tried, all, unusable }),
            events: events.into_iter().map(event).collect(),
            cost: cost.map(CostBody::from),
        }
    }
}
