use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::Response};
use serde::{Deserialize, Serialize};
use tocsin_exchange::tracking_queries::MessageQuery;
use tocsin_model::{
    id::{MessageId, Name},
    problem::{Code, Problem},
    time::Timestamp,
};
use tocsin_service::ServiceError;
use tocsin_store::tracking::TrackedBody;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::messages::{MessageBody, attached};
use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, Parameters, Segments, id, query_id},
    responses::{Failures, json},
    wire::List,
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(found)).routes(routes!(tracked)).routes(routes!(body))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct FoundParameters {
    /// A property that is declared with `search: true`.
    property: String,
    /// Its value.
    value: String,
    /// Filter by time: at or after this time.
    #[param(value_type = Option<String>, format = DateTime)]
    since: Option<Timestamp>,
    /// Filter by time: before this time.
    #[param(value_type = Option<String>, format = DateTime)]
    until: Option<Timestamp>,
    /// Maximum number of results, 1 to 1,000; default 100.
    limit: Option<usize>,
    /// Cursor from the previous page.
    after: Option<String>,
}

/// Messages of an exchange that have a value of a property, newest first. Their bodies are not among it.
#[utoipa::path(get, path = "/v1/exchanges/{exchange}/messages", tag = "exchanges", params(("exchange" = String, Path), FoundParameters), responses((status = 200, body = List<MessageBody>), Failures))]
async fn found(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(exchange): Segments<String>,
    Parameters(parameters): Parameters<FoundParameters>,
) -> Result<Response, Failure> {
    let limit = tocsin_service::page::limit(parameters.limit)?;
    let FoundParameters { property, value, since, until, after, .. } = parameters;
    let after = after.as_deref().map(cursor).transpose()?;
    let sought = MessageQuery { exchange: id(&exchange)?, property: query_id(&property)?, value, since, until, after };
    let found = app.service.find_messages(&caller, sought, limit).await?;
    let items = found.messages.into_iter().map(MessageBody::from).collect();
    let next = found.next.map(|(at, message)| format!("{}.{message}", at.0));
    Ok(json(StatusCode::OK, &List { items, next }))
}

/// A place between messages: when one came, and its id.
fn cursor(text: &str) -> Result<(Timestamp, MessageId), Failure> {
    let parts = text.split_once('.').and_then(|(at, id)| Some((Timestamp(at.parse().ok()?), id.parse().ok()?)));
    Ok(parts.ok_or_else(|| {
        ServiceError::from(
            Problem::new(Code::InvalidFormat, "after", "is not the `next` of a page before").param("format", "cursor"),
        )
    })?)
}

/// Lists the tracked bodies of a message by time; those of a reply are listed with its request.
#[utoipa::path(get, path = "/v1/messages/{message}/tracked", tag = "exchanges", params(("message" = String, Path)), responses((status = 200, body = List<TrackedItem>), Failures))]
async fn tracked(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(message): Segments<String>,
) -> Result<Response, Failure> {
    let bodies = app.service.tracked_bodies(&caller, id(&message)?).await?;
    let items = (1..).zip(bodies).map(TrackedItem::from).collect();
    Ok(json(StatusCode::OK, &List { items, next: None }))
}

/// One of these bodies, by its number, with its media type.
#[utoipa::path(get, path = "/v1/messages/{message}/tracked/{number}", tag = "exchanges", params(("message" = String, Path), ("number" = u32, Path)), responses((status = 200, content_type = "*/*"), Failures))]
async fn body(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments((message, number)): Segments<(String, usize)>,
) -> Result<Response, Failure> {
    let bodies = app.service.tracked_bodies(&caller, id(&message)?).await?;
    let found = number.checked_sub(1).and_then(|at| bodies.into_iter().nth(at));
    let missing = || ServiceError::Missing(format!("a tracked body {number} of the message {message}"));
    let found = found.ok_or_else(missing)?;
    Ok(attached(found.content_type, found.body))
}

/// A tracked body of a message.
#[derive(Serialize, ToSchema)]
#[schema(as = TrackedBody)]
struct TrackedItem {
    /// Number by which the body is read.
    number: u32,
    /// `received`, `sent`, `replied` or `returned`.
    point: &'static str,
    /// The port.
    #[schema(value_type = String)]
    port: Name,
    /// At a send port: number of the attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    content_type: String,
    /// Size of the body in bytes.
    bytes: u64,
    /// Stored bytes of the body.
    kept: u64,
    /// `cut`, `redacted`, or `withheld` if the body could not be parsed for redaction and so is not stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<&'static str>,
}

impl From<(u32, TrackedBody)> for TrackedItem {
    fn from((number, tracked): (u32, TrackedBody)) -> Self {
        TrackedItem {
            number,
            point: tracked.point.word(),
            port: tracked.port,
            attempt: tracked.attempt.map(|(_, attempt)| attempt),
            at: tracked.at,
            content_type: tracked.content_type,
            bytes: tracked.bytes,
            kept: tracked.body.len() as u64,
            change: tracked.change.map(|change| change.word()),
        }
    }
}
