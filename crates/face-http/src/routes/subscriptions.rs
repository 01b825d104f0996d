use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use tocsin_model::id::{Name, SubscriberId, SubscriptionId};
use tocsin_service::page;
use tocsin_store::records::SubscriptionFilter;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, Condition, MergePatch, Parameters, Segments, id, json_body, parts, read_json},
    responses::{Failures, created, json, located, tagged},
    wire::{
        List,
        subscriptions::{SubscriptionBody, SubscriptionDraft},
    },
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(read, replace, patch, remove))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParameters {
    /// Maximum number of results, 1 to 1,000; default 100.
    #[serde(default)]
    limit: Option<usize>,
    /// Cursor from the previous page.
    #[serde(default)]
    after: Option<String>,
    /// Filter by application.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    application: Option<Name>,
    /// Filter by class.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    class: Option<Name>,
    /// Filter by subscriber.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    subscriber: Option<SubscriberId>,
    /// Filter by key.
    #[serde(default)]
    key: Option<String>,
    /// Filter by state: enabled or disabled.
    #[serde(default)]
    enabled: Option<bool>,
}

/// Subscriptions, in the order of their numbers. A page looks at 10,000 rows at most where no index
/// answers the filter; one that is not full may have a `next`.
#[utoipa::path(get, path = "/v1/subscriptions", tag = "subscriptions", params(ListParameters), responses((status = 200, body = List<SubscriptionBody>), Failures))]
async fn list(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<ListParameters>,
) -> Result<Response, Failure> {
    let limit = page::limit(asked.limit)?;
    let ListParameters { application, class, subscriber, key, enabled, .. } = asked;
    let filter = SubscriptionFilter { application, class, subscriber, key, enabled };
    let found = app.service.subscriptions(&caller, &filter, asked.after.as_deref(), limit).await?;
    Ok(json(StatusCode::OK, &List::from(found.map(SubscriptionBody::from))))
}

/// Makes a subscription, or replaces the one of its subscriber, class and key.
#[utoipa::path(post, path = "/v1/subscriptions", tag = "subscriptions", request_body = SubscriptionDraft, responses((status = 201, body = SubscriptionBody), (status = 200, body = SubscriptionBody, description = "There was one of its key"), Failures))]
async fn create(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    request: Request,
) -> Result<Response, Failure> {
    let (headers, body) = parts(request);
    let taken = json_body(&app, &headers, body).await?;
    let draft: SubscriptionDraft<'_> = read_json(&taken.bytes)?;
    let (stored, is_new) = app.service.add_subscription(&caller, draft.into()).await?;
    let path = format!("/v1/subscriptions/{}", stored.id);
    Ok(located(tagged(created(is_new), stored.revision, &SubscriptionBody::from(stored)), path))
}

/// One subscription. Its tag is its revision.
#[utoipa::path(get, path = "/v1/subscriptions/{id}", tag = "subscriptions", params(("id" = String, Path)), responses((status = 200, body = SubscriptionBody), Failures))]
async fn read(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(number): Segments<String>,
) -> Result<Response, Failure> {
    let found = app.service.subscription(&caller, id::<SubscriptionId>(&number)?).await?;
    Ok(tagged(StatusCode::OK, found.revision, &SubscriptionBody::from(found)))
}

/// Replaces device, enabled flag and values of a subscription; all else must stay.
#[utoipa::path(put, path = "/v1/subscriptions/{id}", tag = "subscriptions", params(("id" = String, Path), ("If-Match" = Option<String>, Header)), request_body = SubscriptionDraft, responses((status = 200, body = SubscriptionBody), Failures))]
async fn replace(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(number): Segments<String>,
    request: Request,
) -> Result<Response, Failure> {
    let number = id::<SubscriptionId>(&number)?;
    let (headers, body) = parts(request);
    let revision = Condition::revision(&headers, app.service.subscription_revision(&caller, number)).await?;
    let taken = json_body(&app, &headers, body).await?;
    let draft: SubscriptionDraft<'_> = read_json(&taken.bytes)?;
    let stored = app.service.replace_subscription(&caller, number, draft.into(), revision).await?;
    Ok(tagged(StatusCode::OK, stored.revision, &SubscriptionBody::from(stored)))
}

/// Changes a subscription by a merge patch (RFC 7396).
#[utoipa::path(patch, path = "/v1/subscriptions/{id}", tag = "subscriptions", params(("id" = String, Path), ("If-Match" = Option<String>, Header)), request_body(content = serde_json::Value, content_type = "application/merge-patch+json"), responses((status = 200, body = SubscriptionBody), Failures))]
async fn patch(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(number): Segments<String>,
    headers: HeaderMap,
    MergePatch(patch): MergePatch,
) -> Result<Response, Failure> {
    let number = id::<SubscriptionId>(&number)?;
    let revision = Condition::revision(&headers, app.service.subscription_revision(&caller, number)).await?;
    let stored = app.service.patch_subscription(&caller, number, &patch, revision).await?;
    Ok(tagged(StatusCode::OK, stored.revision, &SubscriptionBody::from(stored)))
}

/// Removes a subscription.
#[utoipa::path(delete, path = "/v1/subscriptions/{id}", tag = "subscriptions", params(("id" = String, Path), ("If-Match" = Option<String>, Header)), responses((status = 204), Failures))]
async fn remove(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(number): Segments<String>,
    request: Request,
) -> Result<Response, Failure> {
    let number = id::<SubscriptionId>(&number)?;
    let present = app.service.subscription_revision(&caller, number);
    let revision = Condition::revision(request.headers(), present).await?;
    app.service.remove_subscription(&caller, number, revision).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
