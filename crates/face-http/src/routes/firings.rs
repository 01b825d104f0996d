use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::Response};
use serde::{Deserialize, Serialize};
use tocsin_model::{id::Name, time::Timestamp};
use tocsin_service::{Page, firings::SlowFiring, page};
use tocsin_store::journal::{Firing, FiringFilter, FiringStatus, RuleStop};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, DryRunParameters, JsonBody, Parameters, Segments, id},
    responses::{Failures, json},
    wire::{List, millis},
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(firings))
        .routes(routes!(slow))
        .routes(routes!(refire))
        .routes(routes!(dismiss))
        .routes(routes!(stopped))
        .routes(routes!(stop))
        .routes(routes!(resume_rule))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct FiringParameters {
    /// Maximum number of results, 1 to 1,000; default 100.
    #[serde(default)]
    limit: Option<usize>,
    /// The `next` of the page before.
    #[serde(default)]
    after: Option<u64>,
    /// Filter by application.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    application: Option<Name>,
    /// Filter by rule.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    rule: Option<Name>,
    /// Only `failed` or only `skipped` ones.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    status: Option<FiringStatus>,
}

/// Lists event batches for which rules did not fire, oldest first.
#[utoipa::path(get, path = "/v1/firings", tag = "operations", params(FiringParameters), responses((status = 200, body = List<FiringBody>), Failures))]
async fn firings(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<FiringParameters>,
) -> Result<Response, Failure> {
    let limit = page::limit(asked.limit)?;
    let FiringParameters { application, rule, status, after, .. } = asked;
    let filter = FiringFilter { id: None, application, rule, status };
    let found = app.service.firings(&caller, &filter, after, limit).await?;
    Ok(json(StatusCode::OK, &List::from(found.map(FiringBody::from))))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SlowParameters {
    /// Maximum number of results, 1 to 1,000; default 100.
    #[serde(default)]
    limit: Option<usize>,
    /// Filter by application.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    application: Option<Name>,
    /// Filter by rule.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    rule: Option<Name>,
}

/// Lists slow firings since the start of the process, newest first, with the query plans. The newest 500 are kept.
#[utoipa::path(get, path = "/v1/slow-firings", tag = "operations", params(SlowParameters), responses((status = 200, body = List<SlowFiringBody>), Failures))]
async fn slow(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<SlowParameters>,
) -> Result<Response, Failure> {
    let limit = page::limit(asked.limit)?;
    let found = app.service.slow_firings(&caller, asked.application.as_ref(), asked.rule.as_ref(), limit).await?;
    let items = found.into_iter().map(SlowFiringBody::from).collect();
    Ok(json(StatusCode::OK, &List { items, next: None }))
}

/// Fires rules for the event batches that they missed, with the present subscriptions.
#[utoipa::path(post, path = "/v1/firings/refire", tag = "operations", params(DryRunParameters), request_body = FiringFilterBody, responses((status = 200, body = RefiredBody), Failures))]
async fn refire(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<DryRunParameters>,
    JsonBody(body): JsonBody<FiringFilterBody>,
) -> Result<Response, Failure> {
    let (filter, all) = body.filter();
    let refired = app.service.refire(&caller, &filter, all, asked.mode()).await?;
    let failed = refired.failed.into_iter().map(|(id, reason)| FailedAgainBody { id, reason }).collect();
    Ok(json(StatusCode::OK, &RefiredBody { batches: refired.batches, failed, dry_run: asked.dry_run }))
}

/// Dismisses missed firings without running them.
#[utoipa::path(post, path = "/v1/firings/dismiss", tag = "operations", params(DryRunParameters), request_body = FiringFilterBody, responses((status = 200, body = DismissedBody), Failures))]
async fn dismiss(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<DryRunParameters>,
    JsonBody(body): JsonBody<FiringFilterBody>,
) -> Result<Response, Failure> {
    let (filter, all) = body.filter();
    let batches = app.service.dismiss_firings(&caller, &filter, all, asked.mode()).await?;
    Ok(json(StatusCode::OK, &DismissedBody { batches, dry_run: asked.dry_run }))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct StoppedParameters {
    /// Filter by application.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    application: Option<Name>,
    /// Maximum number of results, 1 to 1,000; default all.
    #[serde(default)]
    limit: Option<usize>,
    /// Cursor from the previous page.
    #[serde(default)]
    after: Option<String>,
}

/// The rules that are stopped, by application and name.
#[utoipa::path(get, path = "/v1/stopped-rules", tag = "operations", params(StoppedParameters), responses((status = 200, body = List<RuleStopBody>), Failures))]
async fn stopped(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<StoppedParameters>,
) -> Result<Response, Failure> {
    let mut found = app.service.stopped_rules(&caller)?;
    found.retain(|stop| asked.application.as_ref().is_none_or(|application| stop.application == *application));
    let rule = |stop: &RuleStop| format!("{} {}", stop.application, stop.rule);
    let page = Page::of_whole(found, asked.after.as_deref(), asked.limit, rule)?;
    let page = page.map(|stop| {
        let by_name = app.service.key_name(&stop.by);
        RuleStopBody { by_name, ..stop.into() }
    });
    Ok(json(StatusCode::OK, &List::from(page)))
}

/// Stops a rule until it is resumed. Missed firings are listed.
#[utoipa::path(post, path = "/v1/applications/{application}/rules/{rule}/stop", tag = "operations", params(("application" = String, Path), ("rule" = String, Path)), request_body = StopBody, responses((status = 204), Failures))]
async fn stop(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments((application, rule)): Segments<(String, String)>,
    JsonBody(asked): JsonBody<StopBody>,
) -> Result<Response, Failure> {
    let (application, rule) = (id::<Name>(&application)?, id::<Name>(&rule)?);
    app.service.stop_rule(&caller, &application, &rule, &asked.reason).await?;
    Ok(axum::response::IntoResponse::into_response(StatusCode::NO_CONTENT))
}

/// Resumes a stopped rule. Missed firings stay listed.
#[utoipa::path(post, path = "/v1/applications/{application}/rules/{rule}/resume", tag = "operations", params(("application" = String, Path), ("rule" = String, Path)), responses((status = 200, body = ResumedRuleBody), Failures))]
async fn resume_rule(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments((application, rule)): Segments<(String, String)>,
) -> Result<Response, Failure> {
    let (application, rule) = (id::<Name>(&application)?, id::<Name>(&rule)?);
    let was_stopped = app.service.resume_rule(&caller, &application, &rule).await?;
    Ok(json(StatusCode::OK, &ResumedRuleBody { was_stopped }))
}

/// A rule that did not fire for an event batch, or for a run of them.
#[derive(Serialize, ToSchema)]
#[schema(as = Firing)]
struct FiringBody {
    id: u64,
    application: String,
    rule: String,
    /// `failed` or `skipped`.
    status: &'static str,
    reason: String,
    /// The first event batch.
    first: String,
    /// The last; those between them that are of the application and the rule's event class belong to it.
    last: String,
    /// Number of batches.
    batches: u64,
    #[schema(value_type = String, format = DateTime)]
    since: Timestamp,
}

impl From<Firing> for FiringBody {
    fn from(firing: Firing) -> Self {
        FiringBody {
            id: firing.id,
            application: firing.application.to_string(),
            rule: firing.rule.to_string(),
            status: firing.status.name(),
            reason: firing.reason,
            first: firing.first.to_string(),
            last: firing.last.to_string(),
            batches: firing.batches,
            since: firing.since,
        }
    }
}

/// A rule that took long for an event batch.
#[derive(Serialize, ToSchema)]
#[schema(as = SlowFiring)]
struct SlowFiringBody {
    application: String,
    /// The version of the application that matched it.
    version: u32,
    rule: String,
    batch: String,
    /// Number of events in the batch.
    events: u32,
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    /// Duration in milliseconds; for an indexed rule, that of the slowest shard.
    took_ms: f64,
    /// Time limit in milliseconds.
    timeout_ms: f64,
    /// Query plan: the store's steps of the query, or the index paths, with hints for the author.
    plan: Vec<String>,
}

impl From<SlowFiring> for SlowFiringBody {
    fn from(firing: SlowFiring) -> Self {
        SlowFiringBody {
            application: firing.application.to_string(),
            version: firing.version,
            rule: firing.rule.to_string(),
            batch: firing.batch.to_string(),
            events: firing.events,
            at: firing.at,
            took_ms: millis(firing.took),
            timeout_ms: millis(firing.timeout),
            plan: firing.plan,
        }
    }
}

/// Selects the firings that match every given condition. Without any condition `all` must be true.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = FiringFilter)]
struct FiringFilterBody {
    #[serde(default)]
    id: Option<u64>,
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    application: Option<Name>,
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    rule: Option<Name>,
    /// `failed` or `skipped`.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    status: Option<FiringStatus>,
    #[serde(default)]
    all: bool,
}

impl FiringFilterBody {
    /// The filter, and whether all firings are selected.
    fn filter(self) -> (FiringFilter, bool) {
        let FiringFilterBody { id, application, rule, status, all } = self;
        (FiringFilter { id, application, rule, status }, all)
    }
}

/// Fired events.
#[derive(Serialize, ToSchema)]
#[schema(as = RefiredBatch)]
struct RefiredBody {
    /// Event batches for which rules have fired now.
    batches: u64,
    /// Firings that failed again. They stay listed.
    failed: Vec<FailedAgainBody>,
    /// Whether nothing was changed, as requested.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    dry_run: bool,
}

/// A firing that failed again.
#[derive(Serialize, ToSchema)]
#[schema(as = FailedAgain)]
struct FailedAgainBody {
    id: u64,
    reason: String,
}

/// Number of dismissed event batches.
#[derive(Serialize, ToSchema)]
#[schema(as = Dismissed)]
struct DismissedBody {
    batches: u64,
    /// Whether nothing was changed, as requested.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    dry_run: bool,
}

/// A rule that is stopped.
#[derive(Serialize, ToSchema)]
#[schema(as = StoppedRule)]
struct RuleStopBody {
    application: String,
    rule: String,
    /// The id of the key that stopped it, or `tocsin` itself.
    by: String,
    /// The description of that key.
    #[serde(skip_serializing_if = "Option::is_none")]
    by_name: Option<String>,
    reason: String,
    #[schema(value_type = String, format = DateTime)]
    since: Timestamp,
}

impl From<RuleStop> for RuleStopBody {
    fn from(stop: RuleStop) -> Self {
        RuleStopBody {
            application: stop.application.to_string(),
            rule: stop.rule.to_string(),
            by: stop.by,
            by_name: None,
            reason: stop.reason,
            since: stop.since,
        }
    }
}

/// Why a rule is stopped.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = StopRule)]
struct StopBody {
    /// In words; at most 500 characters.
    #[serde(default)]
    reason: String,
}

/// Whether a rule was stopped.
#[derive(Serialize, ToSchema)]
#[schema(as = ResumedRule)]
struct ResumedRuleBody {
    was_stopped: bool,
}
