use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Serialize;
use tocsin_model::{id::Name, problem::Problem};
use tocsin_service::{
    indexed::{Unindexed, Unusable},
    rules::{Condition, Cost, RuleTest, TestedEvent, Trial},
};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, JsonBody, PageParameters, Parameters, Segments, id},
    responses::{Failures, json},
    wire::{
        List, ProblemItem, RuleBody,
        rule_tests::{ConditionBody, RuleTestDraft},
    },
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(rules))
        .routes(routes!(test))
        .routes(routes!(unusable))
        .routes(routes!(unindexed))
}

/// Lists how each rule of the running version is evaluated.
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

/// Tests a rule, applied or not, on events: the subscriptions it matches, or its result for one subscription. Sends
/// nothing.
#[utoipa::path(post, path = "/v1/applications/{application}/rules/test", tag = "applications", params(("application" = String, Path)), request_body = RuleTestDraft, responses((status = 200, body = RuleTestBody), Failures))]
async fn test(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
    JsonBody(draft): JsonBody<RuleTestDraft>,
) -> Result<Response, Failure> {
    let found = app.service.test_rule(&caller, &id::<Name>(&name)?, draft.try_into()?).await?;
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

/// A subscription whose filter is evaluated for every event.
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

/// Result of a rule test.
#[derive(Serialize, ToSchema)]
#[schema(as = RuleTestResult)]
struct RuleTestBody {
    /// Evaluation plan of the rule.
    rule: RuleBody,
    /// The tested subscriptions; null if a single one was requested.
    subscriptions: Option<TriedBody>,
    /// Results for each event, in order.
    events: Vec<TestedEventBody>,
    /// Cost per event, if measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<CostBody>,
}

/// Cost per event in microseconds: medians over alternating rounds of the rule and the baseline.
#[derive(Serialize, ToSchema)]
#[schema(as = RuleCost)]
struct CostBody {
    /// Number of rounds.
    rounds: usize,
    /// Time of the rule.
    rule_us: f64,
    /// Time of a rule that matches nothing.
    baseline_us: f64,
    /// Net time of the rule: the difference to the baseline.
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
    /// Number of tested subscriptions.
    tried: usize,
    /// Whether these were all enabled ones of the class.
    all: bool,
    /// Number of subscriptions whose filter or values are invalid in this version.
    unusable: usize,
}

/// Result for one event.
#[derive(Serialize, ToSchema)]
struct TestedEventBody {
    /// Its id, if it is stored.
    event: Option<String>,
    /// Number of tested subscriptions that match.
    matches: u64,
    /// Some of them.
    subscriptions: Vec<String>,
    /// Result for the requested subscription.
    #[serde(skip_serializing_if = "Option::is_none")]
    trial: Option<TrialBody>,
    /// Why it could not be decided, for all subscriptions or for some.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    failures: Vec<String>,
}

/// Result of a rule for one event and subscription.
#[derive(Serialize, ToSchema)]
struct TrialBody {
    matches: bool,
    /// The conditions that the predicate joins by `&&`.
    conditions: Vec<ConditionBody>,
    /// Result of the subscription's own filter, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    filter: Option<FilterTrialBody>,
}

/// Result of a subscription's own filter for one event.
#[derive(Serialize, ToSchema)]
struct FilterTrialBody {
    /// `holds`, `fails`, `error` or `unknown`.
    verdict: &'static str,
    /// Its conditions, as text.
    conditions: Vec<ConditionBody>,
}

impl From<Trial> for TrialBody {
    fn from(trial: Trial) -> Self {
        let bodies = |conditions: Vec<Condition>| conditions.into_iter().map(ConditionBody::from).collect();
        TrialBody {
            matches: trial.matches,
            conditions: bodies(trial.conditions),
            filter: trial.filter.map(|filter| FilterTrialBody {
                verdict: filter.verdict.word(),
                conditions: bodies(filter.conditions),
            }),
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
