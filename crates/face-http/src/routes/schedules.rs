use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Deserialize;
use tocsin_model::id::{Name, SubscriptionId};
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, JsonBody, PageParameters, Parameters, Segments, id},
    responses::{Failures, json},
    wire::{
        List,
        schedules::{SchedulePreviewBody, SchedulePreviewDraft, ScheduleStatusBody, SubscriptionScheduleBody},
    },
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(preview)).routes(routes!(of_subscription)).routes(routes!(list))
}

/// Previews the runs of a schedule, and the policies that apply. Stores nothing.
#[utoipa::path(post, path = "/v1/schedules/preview", tag = "subscriptions", request_body = SchedulePreviewDraft, responses((status = 200, body = SchedulePreviewBody), Failures))]
async fn preview(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    JsonBody(draft): JsonBody<SchedulePreviewDraft>,
) -> Result<Response, Failure> {
    let preview = app.service.preview_schedule(&caller, &draft.into())?;
    Ok(json(StatusCode::OK, &SchedulePreviewBody::from(preview)))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct PreviewParameters {
    /// Number of runs, 1 to 100; default 10.
    #[serde(default)]
    count: Option<usize>,
}

/// The next runs of a subscription, and the progress of rules that follow its schedule.
#[utoipa::path(get, path = "/v1/subscriptions/{id}/schedule", tag = "subscriptions", params(("id" = String, Path), PreviewParameters), responses((status = 200, body = SubscriptionScheduleBody), Failures))]
async fn of_subscription(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(number): Segments<String>,
    Parameters(asked): Parameters<PreviewParameters>,
) -> Result<Response, Failure> {
    let found = app.service.schedule_of(&caller, id::<SubscriptionId>(&number)?, asked.count).await?;
    Ok(json(StatusCode::OK, &SubscriptionScheduleBody::from(found)))
}

/// Progress of the schedules of an application, by rule and schedule.
#[utoipa::path(get, path = "/v1/applications/{application}/schedules", tag = "operations", params(("application" = String, Path), PageParameters), responses((status = 200, body = List<ScheduleStatusBody>), Failures))]
async fn list(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
    Parameters(asked): Parameters<PageParameters>,
) -> Result<Response, Failure> {
    let limit = asked.limit()?;
    let found = app.service.schedules(&caller, &id::<Name>(&name)?, asked.after.as_deref(), limit).await?;
    Ok(json(StatusCode::OK, &List::from(found.map(ScheduleStatusBody::from))))
}
