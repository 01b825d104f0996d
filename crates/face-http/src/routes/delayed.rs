use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::Response};
use serde::{Deserialize, Serialize};
use tocsin_model::{
    id::{EventBatchId, Name, SubscriptionId},
    time::Timestamp,
};
use tocsin_service::page;
use tocsin_store::journal::{Delayed, DelayedFilter};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, JsonBody, Parameters, id},
    responses::{Failures, json},
    wire::List,
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(delayed)).routes(routes!(cancel))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct DelayedParameters {
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
    /// Filter by subscription.
    #[serde(default)]
    subscription: Option<String>,
    /// Filter by event batch.
    #[serde(default)]
    batch: Option<String>,
}

/// Lists delayed notifications that wait for their due time, oldest first.
#[utoipa::path(get, path = "/v1/delayed-notifications", tag = "operations", params(DelayedParameters), responses((status = 200, body = List<DelayedBody>), Failures))]
async fn delayed(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<DelayedParameters>,
) -> Result<Response, Failure> {
    let limit = page::limit(asked.limit)?;
    let DelayedParameters { application, rule, subscription, batch, after, .. } = asked;
    let filter = filter(None, application, rule, subscription.as_deref(), batch.as_deref())?;
    let found = app.service.delayed(&caller, &filter, after, limit).await?;
    Ok(json(StatusCode::OK, &List::from(found.map(DelayedBody::from))))
}

/// Cancels delayed notifications. One that is due is not cancelled.
#[utoipa::path(post, path = "/v1/delayed-notifications/cancel", tag = "operations", request_body = DelayedFilterBody, responses((status = 200, body = CancelledBody), Failures))]
async fn cancel(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    JsonBody(asked): JsonBody<DelayedFilterBody>,
) -> Result<Response, Failure> {
    let DelayedFilterBody { id, application, rule, subscription, batch, all } = asked;
    let filter = filter(id, application, rule, subscription.as_deref(), batch.as_deref())?;
    let cancelled = app.service.cancel_delayed(&caller, &filter, all).await?;
    Ok(json(StatusCode::OK, &CancelledBody { cancelled }))
}

fn filter(
    number: Option<u64>,
    application: Option<Name>,
    rule: Option<Name>,
    subscription: Option<&str>,
    batch: Option<&str>,
) -> Result<DelayedFilter, Failure> {
    Ok(DelayedFilter {
        id: number,
        application,
        rule,
        subscription: subscription.map(id::<SubscriptionId>).transpose()?,
        event_batch: batch.map(id::<EventBatchId>).transpose()?,
        due_before: None,
    })
}

/// A delayed notification that waits for its due time.
#[derive(Serialize, ToSchema)]
#[schema(as = DelayedNotification)]
struct DelayedBody {
    id: u64,
    application: String,
    rule: String,
    subscription: String,
    event: String,
    /// Due time. The rule is then evaluated again with the subscription as it is.
    #[schema(value_type = String, format = DateTime)]
    due_at: Timestamp,
    /// Correlation key, as JSON text: an event of `cancel_on` with an equal key cancels it.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// Event batch of the due time, once it is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<String>,
}

impl From<Delayed> for DelayedBody {
    fn from(delayed: Delayed) -> Self {
        DelayedBody {
            id: delayed.id,
            application: delayed.application.to_string(),
            rule: delayed.rule.to_string(),
            subscription: delayed.subscription.to_string(),
            event: delayed.event.to_string(),
            due_at: delayed.due_at,
            key: delayed.key.map(String::from),
            run: delayed.run.map(|run| run.to_string()),
        }
    }
}

/// Selects the delayed notifications that match every given condition. Without any condition `all` must be true.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DelayedFilter)]
struct DelayedFilterBody {
    #[serde(default)]
    id: Option<u64>,
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    application: Option<Name>,
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    rule: Option<Name>,
    #[serde(default)]
    subscription: Option<String>,
    /// Event batch.
    #[serde(default)]
    batch: Option<String>,
    #[serde(default)]
    all: bool,
}

/// Number of cancelled notifications.
#[derive(Serialize, ToSchema)]
#[schema(as = CancelledNotifications)]
struct CancelledBody {
    cancelled: u64,
}
