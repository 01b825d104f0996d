use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::Response};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, JsonBody},
    responses::{Failures, json},
    wire::explanations::{ExplainDraftBody, ExplanationBody},
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(explain))
}

/// Explains why a notification about an event was sent to a subscriber, or was not: each gate from the acceptance of the
/// event to the response of the remote server. Also needs the scope `subscribers:read`. Changes nothing.
#[utoipa::path(post, path = "/v1/explain", tag = "operations", request_body = ExplainDraftBody, responses((status = 200, body = ExplanationBody), Failures))]
async fn explain(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    JsonBody(draft): JsonBody<ExplainDraftBody>,
) -> Result<Response, Failure> {
    let found = app.service.explain(&caller, draft.into()).await?;
    Ok(json(StatusCode::OK, &ExplanationBody::from(found)))
}
