use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::Response};
use serde::{Deserialize, Serialize};
use tocsin_model::time::Timestamp;
use tocsin_service::drain::Drain;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, JsonBody},
    responses::{Failures, json},
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(look, close, open))
}

/// Progress of a drain: work that waits, is due, or is left for later.
#[utoipa::path(get, path = "/v1/drain", tag = "operations", responses((status = 200, body = DrainBody), Failures))]
async fn look(State(app): State<Arc<App>>, Authorized(caller): Authorized) -> Result<Response, Failure> {
    Ok(json(StatusCode::OK, &DrainBody::from(app.service.drain(&caller).await?)))
}

/// Closes the intake; kept across restarts. Events and messages are refused (503), sources and receive locations are
/// held. Accepted work continues; poll until it is delivered.
#[utoipa::path(put, path = "/v1/drain", tag = "operations", request_body = CloseBody, responses((status = 200, body = DrainBody), Failures))]
async fn close(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    JsonBody(CloseBody { reason }): JsonBody<CloseBody>,
) -> Result<Response, Failure> {
    Ok(json(StatusCode::OK, &DrainBody::from(app.service.close_intake(&caller, &reason).await?)))
}

/// Opens the intake again.
#[utoipa::path(delete, path = "/v1/drain", tag = "operations", responses((status = 200, body = OpenedBody), Failures))]
async fn open(State(app): State<Arc<App>>, Authorized(caller): Authorized) -> Result<Response, Failure> {
    let was_closed = app.service.open_intake(&caller).await?;
    Ok(json(StatusCode::OK, &OpenedBody { was_closed }))
}

/// Why the intake is closed.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CloseBody {
    /// For others.
    #[serde(default)]
    reason: String,
}

/// Result of opening the intake.
#[derive(Serialize, ToSchema)]
struct OpenedBody {
    /// Whether any part of the intake was closed.
    was_closed: bool,
}

/// Progress of a drain.
#[derive(Serialize, ToSchema)]
#[schema(as = Drain)]
struct DrainBody {
    /// Whether the intake is closed and all due work is delivered.
    drained: bool,
    /// Whether the intake is closed.
    closed: bool,
    /// Whether work of a source or submission is still in progress.
    closing: bool,
    /// Event batches that wait to be matched.
    event_batches: u64,
    /// Work items that are due, including those in flight.
    due: u64,
    /// Work items that wait for a time to come: retries, quiet hours, digests.
    later: u64,
    /// Earliest of these times.
    #[schema(value_type = Option<String>, format = DateTime)]
    next_due_at: Option<Timestamp>,
    /// Notifications that wait for an operator.
    suspended: u64,
    /// Event batches that could not be matched and were set aside.
    failed_batches: u64,
    /// Due deliveries of exchange messages, including those in flight.
    messages_due: u64,
    /// Deliveries of exchange messages that are due later: retries, closed service windows.
    messages_later: u64,
    /// Deliveries of exchange messages through send ports on hold or off.
    messages_held: u64,
    /// Components that are switched off, so that their work is not processed.
    held: Vec<String>,
}

impl From<Drain> for DrainBody {
    fn from(drain: Drain) -> Self {
        DrainBody {
            drained: drain.is_drained(),
            closed: drain.closed,
            closing: drain.closing,
            event_batches: drain.event_batches,
            due: drain.due,
            later: drain.later,
            next_due_at: drain.next_due_at,
            suspended: drain.suspended,
            failed_batches: drain.failed_batches,
            messages_due: drain.messages_due,
            messages_later: drain.messages_later,
            messages_held: drain.messages_held,
            held: drain.held,
        }
    }
}
