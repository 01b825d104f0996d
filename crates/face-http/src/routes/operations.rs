use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Deserialize;
use tocsin_model::{
    id::{EventBatchId, Name, NotificationBatchId, NotificationId, StoredNumber},
    problem::{Code, Problem},
};
use tocsin_service::{Caller, ServiceError, page, suspensions::GroupBy, trace::Subject};
use tocsin_store::journal::{Resolution, SuspensionFilter};
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::{Failure, MALFORMED_PATH},
    request::{Authorized, DryRunParameters, JsonBody, Parameters, Segments, id},
    responses::{Failures, json},
    wire::{
        EditBody, EditedBody, EventBatchBody, FilterBody, List, Named, NotificationBatchBody, NotificationBody,
        ResolvedBody, StatusBody, SuspendedBody, SuspensionBody, SuspensionGroupsBody, TraceBody,
    },
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(status))
        .routes(routes!(event_batches))
        .routes(routes!(event_batch))
        .routes(routes!(events_of))
        .routes(routes!(notification_batches))
        .routes(routes!(notification_batch))
        .routes(routes!(notification))
        .routes(routes!(trace))
        .routes(routes!(suspensions))
        .routes(routes!(suspension_groups))
        .routes(routes!(suspension))
        .routes(routes!(edit))
        .routes(routes!(resume))
        .routes(routes!(end))
}

/// Status of the platform.
#[utoipa::path(get, path = "/v1/status", tag = "operations", responses((status = 200, body = StatusBody), Failures))]
async fn status(State(app): State<Arc<App>>, Authorized(caller): Authorized) -> Result<Response, Failure> {
    Ok(json(StatusCode::OK, &StatusBody::from(app.service.status(&caller).await?).named(&app)))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct BeforeParameters {
    /// Maximum number of results, 1 to 1,000; default 100.
    #[serde(default)]
    limit: Option<usize>,
    /// The `next` of the page before, or any id: only older ones.
    #[serde(default, alias = "after")]
    before: Option<String>,
}

impl BeforeParameters {
    fn before<T: std::str::FromStr<Err = tocsin_model::id::IdError>>(&self) -> Result<Option<T>, Failure> {
        let read = |text: &String| {
            text.parse::<T>().map_err(|error| {
                ServiceError::from(Problem::not(Code::InvalidFormat, "before", error.expected).param("format", "id"))
            })
        };
        Ok(self.before.as_ref().map(read).transpose()?)
    }
}

/// Event batches, newest first.
#[utoipa::path(get, path = "/v1/event-batches", tag = "operations", params(BeforeParameters), responses((status = 200, body = List<EventBatchBody>), Failures))]
async fn event_batches(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<BeforeParameters>,
) -> Result<Response, Failure> {
    let limit = page::limit(asked.limit)?;
    let found = app.service.event_batches(&caller, asked.before::<EventBatchId>()?, limit).await?;
    Ok(json(StatusCode::OK, &List::from(found.map(EventBatchBody::from))))
}

/// One event batch, with its state.
#[utoipa::path(get, path = "/v1/event-batches/{id}", tag = "operations", params(("id" = String, Path)), responses((status = 200, body = EventBatchBody), Failures))]
async fn event_batch(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(number): Segments<String>,
) -> Result<Response, Failure> {
    let found = app.service.event_batch(&caller, id(&number)?).await?;
    Ok(json(StatusCode::OK, &EventBatchBody::from(found)))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct EventsParameters {
    /// Maximum number of results, 1 to 1,000; default 100.
    #[serde(default)]
    limit: Option<usize>,
    /// The `next` of the page before.
    #[serde(default)]
    after: Option<u32>,
}

/// The events of a batch, in order.
#[utoipa::path(get, path = "/v1/event-batches/{id}/events", tag = "operations", params(("id" = String, Path), EventsParameters), responses((status = 200, body = List<Named>), Failures))]
async fn events_of(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(number): Segments<String>,
    Parameters(asked): Parameters<EventsParameters>,
) -> Result<Response, Failure> {
    let limit = page::limit(asked.limit)?;
    let (events, next) = app.service.events_of(&caller, id(&number)?, asked.after.unwrap_or(0), limit).await?;
    let items = events.into_iter().map(Named).collect();
    Ok(json(StatusCode::OK, &List { items, next: next.map(|next| next.to_string()) }))
}

/// Notification batches, newest first: heads and counts.
#[utoipa::path(get, path = "/v1/notification-batches", tag = "operations", params(BeforeParameters), responses((status = 200, body = List<NotificationBatchBody>), Failures))]
async fn notification_batches(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<BeforeParameters>,
) -> Result<Response, Failure> {
    let limit = page::limit(asked.limit)?;
    let found = app.service.notification_batches(&caller, asked.before::<NotificationBatchId>()?, limit).await?;
    let found = found.map(|(id, head, notifications)| NotificationBatchBody {
        id: id.to_string(),
        head: head.into(),
        notifications,
        outcomes: None,
    });
    Ok(json(StatusCode::OK, &List::from(found)))
}

/// One notification batch, with the outcomes of its notifications.
#[utoipa::path(get, path = "/v1/notification-batches/{id}", tag = "operations", params(("id" = String, Path)), responses((status = 200, body = NotificationBatchBody), Failures))]
async fn notification_batch(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(number): Segments<String>,
) -> Result<Response, Failure> {
    let found = app.service.notification_batch(&caller, id(&number)?).await?;
    Ok(json(StatusCode::OK, &NotificationBatchBody::from(found)))
}

/// One notification: its event, fields, recipient, and every attempt with the server's response.
#[utoipa::path(get, path = "/v1/notifications/{id}", tag = "operations", params(("id" = String, Path)), responses((status = 200, body = NotificationBody), Failures))]
async fn notification(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(number): Segments<String>,
) -> Result<Response, Failure> {
    let found = app.service.notification(&caller, id::<NotificationId>(&number)?).await?;
    Ok(json(StatusCode::OK, &NotificationBody::from(found)))
}

/// The whole story of an event (`e-`), event batch (`eb-`), notification (`n-`), notification batch (`nb-`), message (`m-`)
/// or subscriber.
#[utoipa::path(get, path = "/v1/trace/{id}", tag = "operations", params(("id" = String, Path)), responses((status = 200, body = TraceBody), Failures))]
async fn trace(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(text): Segments<String>,
) -> Result<Response, Failure> {
    let subject = Subject::read(&text).map_err(|error| Failure::new(MALFORMED_PATH, error.to_string()))?;
    let found = app.service.trace(&caller, subject).await?;
    Ok(json(StatusCode::OK, &TraceBody::new(text, found)))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SuspensionParameters {
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
    /// Filter by channel.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    channel: Option<Name>,
    /// Filter by notification batch.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    batch: Option<NotificationBatchId>,
    /// Filter by notification class.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    class: Option<Name>,
    /// Filter by text that the reason contains.
    #[serde(default)]
    reason: Option<String>,
    /// Filter by time of suspension: before this time.
    #[serde(default)]
    #[param(value_type = Option<String>, format = DateTime)]
    before: Option<tocsin_model::time::Timestamp>,
}

/// Lists suspensions, oldest first.
#[utoipa::path(get, path = "/v1/suspensions", tag = "operations", params(SuspensionParameters), responses((status = 200, body = List<SuspensionBody>), Failures))]
async fn suspensions(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<SuspensionParameters>,
) -> Result<Response, Failure> {
    let limit = page::limit(asked.limit)?;
    let SuspensionParameters { application, channel, batch, class, reason, before, after, .. } = asked;
    let filter = SuspensionFilter { id: None, application, channel, batch, class, reason, before };
    let found = app.service.suspensions(&caller, &filter, after, limit).await?;
    Ok(json(StatusCode::OK, &List::from(found.map(SuspensionBody::from))))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct GroupParameters {
    /// Members by which suspensions are grouped, separated by commas: `application`, `channel`, `reason`. Default:
    /// `reason,channel`.
    #[serde(default)]
    by: Option<String>,
    /// Filter by application.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    application: Option<Name>,
    /// Filter by channel.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    channel: Option<Name>,
    /// Filter by notification class.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    class: Option<Name>,
    /// Filter by text that the reason contains.
    #[serde(default)]
    reason: Option<String>,
    /// Filter by time of suspension: before this time.
    #[serde(default)]
    #[param(value_type = Option<String>, format = DateTime)]
    before: Option<tocsin_model::time::Timestamp>,
}

/// Counts suspensions by groups, those with the most notifications first.
#[utoipa::path(get, path = "/v1/suspensions/groups", tag = "operations", params(GroupParameters), responses((status = 200, body = SuspensionGroupsBody), Failures))]
async fn suspension_groups(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<GroupParameters>,
) -> Result<Response, Failure> {
    let GroupParameters { by, application, channel, class, reason, before } = asked;
    let by = GroupBy::read(by.as_deref().unwrap_or("reason,channel"))?;
    let filter = SuspensionFilter { id: None, application, channel, batch: None, class, reason, before };
    let found = app.service.suspension_groups(&caller, &filter, by).await?;
    Ok(json(StatusCode::OK, &SuspensionGroupsBody::from(found)))
}

/// A suspension with its first notifications: their fields, attempts and recipients, and what they would say if they were
/// resumed now.
#[utoipa::path(get, path = "/v1/suspensions/{id}", tag = "operations", params(("id" = u64, Path)), responses((status = 200, body = SuspendedBody), Failures))]
async fn suspension(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(number): Segments<String>,
) -> Result<Response, Failure> {
    let found = app.service.suspension(&caller, suspension_number(&number)?).await?;
    Ok(json(StatusCode::OK, &SuspendedBody::from(found)))
}

/// Changes what suspended notifications say or where they go, once they are resumed.
#[utoipa::path(put, path = "/v1/suspensions/{id}/edit", tag = "operations", params(("id" = u64, Path), DryRunParameters), request_body = EditBody, responses((status = 200, body = EditedBody), Failures))]
async fn edit(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(number): Segments<String>,
    Parameters(asked): Parameters<DryRunParameters>,
    JsonBody(EditBody { notifications, edit }): JsonBody<EditBody>,
) -> Result<Response, Failure> {
    let number = suspension_number(&number)?;
    let only = notifications.as_deref();
    let edited = app.service.edit_suspension(&caller, number, only, edit, asked.mode()).await?;
    let (id, notifications) = (edited.id, edited.notifications);
    Ok(json(StatusCode::OK, &EditedBody { id, notifications, dry_run: asked.dry_run }))
}

fn suspension_number(text: &str) -> Result<u64, Failure> {
    let number: Result<StoredNumber, _> = text.parse();
    number.map(|number| number.0).map_err(|_| ServiceError::Missing(format!("the suspension `{text}`")).into())
}

/// Makes suspended notifications due again, with a fresh retry schedule.
#[utoipa::path(post, path = "/v1/suspensions/resume", tag = "operations", params(DryRunParameters), request_body = FilterBody, responses((status = 200, body = ResolvedBody), Failures))]
async fn resume(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<DryRunParameters>,
    JsonBody(filter): JsonBody<FilterBody>,
) -> Result<Response, Failure> {
    resolve(&app, &caller, (filter, asked), Resolution::Resume).await
}

/// Closes suspended notifications without sending them.
#[utoipa::path(post, path = "/v1/suspensions/end", tag = "operations", params(DryRunParameters), request_body = FilterBody, responses((status = 200, body = ResolvedBody), Failures))]
async fn end(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<DryRunParameters>,
    JsonBody(filter): JsonBody<FilterBody>,
) -> Result<Response, Failure> {
    resolve(&app, &caller, (filter, asked), Resolution::End).await
}

async fn resolve(
    app: &App,
    caller: &Caller,
    (filter, asked): (FilterBody, DryRunParameters),
    resolution: Resolution,
) -> Result<Response, Failure> {
    let (all, mode) = (filter.all, asked.mode());
    let notifications = app.service.resolve_suspensions(caller, &filter.filter(), all, resolution, mode).await?;
    Ok(json(StatusCode::OK, &ResolvedBody { notifications, dry_run: asked.dry_run }))
}
