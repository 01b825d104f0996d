use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Deserialize;
use tocsin_model::id::{Name, SubscriptionId};
use tocsin_service::schedules::ScheduleAction;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, JsonBody, PageParameters, Parameters, Segments, id},
    responses::{Failures, json},
    wire::{
        List,
        schedules::{
            MovedScheduleBody, SchedulePreviewBody, SchedulePreviewDraft, ScheduleStatusBody, SubscriptionScheduleBody,
        },
    },
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(preview))
        .routes(routes!(of_subscription))
        .routes(routes!(list))
        .routes(routes!(run))
        .routes(routes!(skip))
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

/// Runs a schedule of a rule now, over the events since its last run. The next run is the next due time after now.
/// `schedule` is the text of the list of schedules.
#[utoipa::path(post, path = "/v1/applications/{application}/schedules/{rule}/{schedule}/run", tag = "operations", params(("application" = String, Path), ("rule" = String, Path), ("schedule" = String, Path)), responses((status = 202, body = MovedScheduleBody), Failures))]
async fn run(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments((application, rule, schedule)): Segments<(String, String, String)>,
) -> Result<Response, Failure> {
    let (application, rule) = (id::<Name>(&application)?, id::<Name>(&rule)?);
    let key = (&rule, schedule.as_str());
    let moved = app.service.move_schedule(&caller, &application, key, ScheduleAction::Run).await?;
    Ok(json(StatusCode::ACCEPTED, &MovedScheduleBody::from(moved)))
}

/// Skips the next run of a schedule. The events of that run are part of the run after it.
#[utoipa::path(post, path = "/v1/applications/{application}/schedules/{rule}/{schedule}/skip", tag = "operations", params(("application" = String, Path), ("rule" = String, Path), ("schedule" = String, Path)), responses((status = 200, body = MovedScheduleBody), Failures))]
async fn skip(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments((application, rule, schedule)): Segments<(String, String, String)>,
) -> Result<Response, Failure> {
    let (application, rule) = (id::<Name>(&application)?, id::<Name>(&rule)?);
    let key = (&rule, schedule.as_str());
    let moved = app.service.move_schedule(&caller, &application, key, ScheduleAction::Skip).await?;
    Ok(json(StatusCode::OK, &MovedScheduleBody::from(moved)))
}
