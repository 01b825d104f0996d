use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use tocsin_model::id::{Name, SubscriberId};
use tocsin_service::subscribers::Put;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, Condition, JsonBody, PageParameters, Parameters, Segments, id},
    responses::{Failures, created, json, located, tagged},
    wire::{
        List,
        segments::{SegmentBody, SegmentDraft, SegmentMembershipBody, SegmentPreviewBody, SegmentPreviewDraft},
        subscribers::SubscriberBody,
    },
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(preview_filter))
        .routes(routes!(read, replace, remove))
        .routes(routes!(preview))
        .routes(routes!(members))
        .routes(routes!(membership))
}

/// Segments, in the order of their names.
#[utoipa::path(get, path = "/v1/segments", tag = "segments", params(PageParameters), responses((status = 200, body = List<SegmentBody>), Failures))]
async fn list(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<PageParameters>,
) -> Result<Response, Failure> {
    let found = app.service.segments(&caller, asked.after.as_deref(), asked.limit()?).await?;
    Ok(json(StatusCode::OK, &List::from(found.map(SegmentBody::from))))
}

/// Makes a segment.
#[utoipa::path(post, path = "/v1/segments", tag = "segments", request_body(content = SegmentDraft, example = json!({"name": "vienna", "filter": "(&(region=Vienna)(age>=18))"})), responses((status = 201, body = SegmentBody), Failures))]
async fn create(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    JsonBody(draft): JsonBody<SegmentDraft>,
) -> Result<Response, Failure> {
    let (stored, _) = app.service.put_segment(&caller, None, draft.into(), Put::Create).await?;
    let path = format!("/v1/segments/{}", stored.name);
    Ok(located(tagged(StatusCode::CREATED, stored.revision, &SegmentBody::from(stored)), path))
}

/// One segment. Its tag is its revision.
#[utoipa::path(get, path = "/v1/segments/{name}", tag = "segments", params(("name" = String, Path)), responses((status = 200, body = SegmentBody), Failures))]
async fn read(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
) -> Result<Response, Failure> {
    let found = app.service.segment(&caller, &id::<Name>(&name)?).await?;
    Ok(tagged(StatusCode::OK, found.revision, &SegmentBody::from(found)))
}

/// Stores a segment, whether there is one or not.
#[utoipa::path(put, path = "/v1/segments/{name}", tag = "segments", params(("name" = String, Path), ("If-Match" = Option<String>, Header), ("If-None-Match" = Option<String>, Header)), request_body(content = SegmentDraft, example = json!({"filter": "(&(region=Vienna)(age>=18))"})), responses((status = 200, body = SegmentBody), (status = 201, body = SegmentBody), Failures))]
async fn replace(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
    headers: HeaderMap,
    JsonBody(draft): JsonBody<SegmentDraft>,
) -> Result<Response, Failure> {
    let name = id::<Name>(&name)?;
    let present = || app.service.segment_revision(&caller, &name);
    let condition = Condition::of(&headers, present()).await?;
    let put = condition.put(present()).await?;
    let stored = app.service.put_segment(&caller, Some(&name), draft.into(), put).await;
    let (stored, is_new) = stored.map_err(|error| condition.unmet(error))?;
    Ok(tagged(created(is_new), stored.revision, &SegmentBody::from(stored)))
}

/// Removes a segment. Its members stay as they are.
#[utoipa::path(delete, path = "/v1/segments/{name}", tag = "segments", params(("name" = String, Path), ("If-Match" = Option<String>, Header)), responses((status = 204), Failures))]
async fn remove(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
    request: Request,
) -> Result<Response, Failure> {
    let name = id::<Name>(&name)?;
    let revision = Condition::revision(request.headers(), app.service.segment_revision(&caller, &name)).await?;
    app.service.remove_segment(&caller, &name, revision).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Members of a segment, in the order of their ids. Where they are few, a page may hold less than `limit`, or nothing, and
/// still have a next one: a request looks at 1,000,000 subscribers at most.
#[utoipa::path(get, path = "/v1/segments/{name}/members", tag = "segments", params(("name" = String, Path), PageParameters), responses((status = 200, body = List<SubscriberBody>), Failures))]
async fn members(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
    Parameters(asked): Parameters<PageParameters>,
) -> Result<Response, Failure> {
    let (name, limit) = (id::<Name>(&name)?, asked.limit()?);
    let found = app.service.segment_members(&caller, &name, asked.after.as_deref(), limit).await?;
    Ok(json(StatusCode::OK, &List::from(found.map(SubscriberBody::from))))
}

/// Membership of a subscriber in a segment, with the truth value of each part of the filter.
#[utoipa::path(get, path = "/v1/segments/{name}/members/{subscriber}", tag = "segments", params(("name" = String, Path), ("subscriber" = String, Path)), responses((status = 200, body = SegmentMembershipBody), Failures))]
async fn membership(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments((name, subscriber)): Segments<(String, String)>,
) -> Result<Response, Failure> {
    let (name, subscriber) = (id::<Name>(&name)?, id::<SubscriberId>(&subscriber)?);
    let found = app.service.segment_membership(&caller, &name, &subscriber).await?;
    Ok(json(StatusCode::OK, &SegmentMembershipBody::from(found)))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct PreviewParameters {
    /// Number of members to return, 0 to 100; default 10.
    #[serde(default)]
    sample: Option<usize>,
    /// The cursor of the preview before, to go on counting.
    #[serde(default)]
    after: Option<String>,
}

/// Counts the members of a segment, and shows some.
#[utoipa::path(get, path = "/v1/segments/{name}/preview", tag = "segments", params(("name" = String, Path), PreviewParameters), responses((status = 200, body = SegmentPreviewBody), Failures))]
async fn preview(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
    Parameters(asked): Parameters<PreviewParameters>,
) -> Result<Response, Failure> {
    let preview = app.service.preview_segment(&caller, &id::<Name>(&name)?, asked.sample, asked.after).await?;
    Ok(json(StatusCode::OK, &SegmentPreviewBody::from(preview)))
}

/// Counts the subscribers that match an unsaved filter, and returns some. Stores nothing.
#[utoipa::path(post, path = "/v1/segments/preview", tag = "segments", request_body(content = SegmentPreviewDraft, example = json!({"filter": "(&(region=Vienna)(age>=18))", "sample": 3})), responses((status = 200, body = SegmentPreviewBody), Failures))]
async fn preview_filter(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    JsonBody(asked): JsonBody<SegmentPreviewDraft>,
) -> Result<Response, Failure> {
    let preview = app.service.preview_filter(&caller, asked.into()).await?;
    Ok(json(StatusCode::OK, &SegmentPreviewBody::from(preview)))
}
