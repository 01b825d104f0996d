use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use tocsin_exchange::{flow::FlowReport, operate::PortLoad, track::TrackingCounts, tracking_queries::PortTracking};
use tocsin_model::{
    application::Rate,
    exchange::{FlowSide, PortState, ThrottleReason, TrackPlace, TrackPoint, TrackSwitch},
    id::Name,
    problem::{Code, Problem},
    time::Timestamp,
};
use tocsin_service::{Page, ServiceError, exchanges::AppliedExchange, page};
use tocsin_store::spool::{StoredExchange, ThrottleChange};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::applications::{expected_version, yaml};
use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, JsonBody, Parameters, Segments, WholeListParameters, id},
    responses::{Failures, json, tagged},
    wire::{
        DifferenceBody, List,
        exchanges::{LocationBody, ThrottledBody},
    },
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(exchanges))
        .routes(routes!(exchange, apply, remove))
        .routes(routes!(ports))
        .routes(routes!(set_port))
        .routes(routes!(locations))
        .routes(routes!(tracking, set_tracking))
        .routes(routes!(flow, set_rate))
        .routes(routes!(flow_changes))
}

/// The exchanges, by name.
#[utoipa::path(get, path = "/v1/exchanges", tag = "exchanges", params(WholeListParameters), responses((status = 200, body = List<ExchangeBody>), Failures))]
async fn exchanges(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<WholeListParameters>,
) -> Result<Response, Failure> {
    let found = app.service.stored_exchanges(&caller).await?;
    let page = Page::of_whole(found, asked.after.as_deref(), asked.limit, |(stored, _)| stored.name.to_string())?;
    let page = page.map(|(stored, running)| ExchangeBody::new(&app, stored, running, false));
    Ok(json(StatusCode::OK, &List::from(page)))
}

/// One exchange, with its definition. Its tag is its version.
#[utoipa::path(get, path = "/v1/exchanges/{exchange}", tag = "exchanges", params(("exchange" = String, Path)), responses((status = 200, body = ExchangeBody), Failures))]
async fn exchange(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(exchange): Segments<String>,
) -> Result<Response, Failure> {
    let (stored, running) = app.service.stored_exchange(&caller, &id(&exchange)?).await?;
    Ok(tagged(StatusCode::OK, stored.version.into(), &ExchangeBody::new(&app, stored, running, true)))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ApplyParameters {
    /// Only checks it.
    #[serde(default)]
    #[param(required = false)]
    dry_run: bool,
}

/// Applies a definition. Attempts in progress go on unchanged; waiting messages use the new definition.
#[utoipa::path(put, path = "/v1/exchanges/{exchange}", tag = "exchanges", params(("exchange" = String, Path), ApplyParameters), request_body(content = String, content_type = "application/yaml"), responses((status = 200, body = AppliedBody), Failures))]
async fn apply(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(exchange): Segments<String>,
    Parameters(parameters): Parameters<ApplyParameters>,
    request: Request,
) -> Result<Response, Failure> {
    let name = id::<Name>(&exchange)?;
    let expected = expected_version(request.headers(), app.service.exchange_version(&caller, &name)).await?;
    let text = yaml(&app, request).await?;
    let applied = app.service.apply_exchange(&caller, &name, &text, expected, parameters.dry_run).await?;
    Ok(tagged(StatusCode::OK, applied.version.into(), &AppliedBody::from(applied)))
}

/// Removes an exchange that has no open messages. Its ended messages remain until their retention ends.
#[utoipa::path(delete, path = "/v1/exchanges/{exchange}", tag = "exchanges", params(("exchange" = String, Path)), responses((status = 204), Failures))]
async fn remove(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(exchange): Segments<String>,
) -> Result<Response, Failure> {
    app.service.remove_exchange(&caller, &id(&exchange)?).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// The send ports of an exchange, as they are at this moment.
#[utoipa::path(get, path = "/v1/exchanges/{exchange}/send", tag = "exchanges", params(("exchange" = String, Path)), responses((status = 200, body = List<PortBody>), Failures))]
async fn ports(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(exchange): Segments<String>,
) -> Result<Response, Failure> {
    let ports = app.service.exchange_ports(&caller, &id(&exchange)?).await?;
    Ok(json(StatusCode::OK, &List { items: ports.into_iter().map(PortBody::from).collect(), next: None }))
}

/// Sets the state of a send port; kept across restarts and new definitions.
#[utoipa::path(put, path = "/v1/exchanges/{exchange}/send/{port}/state", tag = "exchanges", params(("exchange" = String, Path), ("port" = String, Path)), request_body = StateBody, responses((status = 204), Failures))]
async fn set_port(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments((exchange, port)): Segments<(String, String)>,
    JsonBody(StateBody { state }): JsonBody<StateBody>,
) -> Result<Response, Failure> {
    app.service.set_exchange_port(&caller, &id(&exchange)?, &id(&port)?, state).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Lists the receive locations of an exchange with their health. One page.
#[utoipa::path(get, path = "/v1/exchanges/{exchange}/locations", tag = "exchanges", params(("exchange" = String, Path)), responses((status = 200, body = List<LocationBody>), Failures))]
async fn locations(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(exchange): Segments<String>,
) -> Result<Response, Failure> {
    let found = app.service.exchange_locations(&caller, &id(&exchange)?)?;
    Ok(json(StatusCode::OK, &List { items: found.into_iter().map(LocationBody::from).collect(), next: None }))
}

/// Lists the tracking settings of the ports of an exchange, and the size of all tracked data.
#[utoipa::path(get, path = "/v1/exchanges/{exchange}/tracking", tag = "exchanges", params(("exchange" = String, Path)), responses((status = 200, body = TrackingBody), Failures))]
async fn tracking(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(exchange): Segments<String>,
) -> Result<Response, Failure> {
    let (ports, counts) = app.service.exchange_tracking(&caller, &id(&exchange)?)?;
    let TrackingCounts { waiting, dropped, bytes } = counts;
    let ports = ports.into_iter().map(PortTrackingBody::from).collect();
    Ok(json(StatusCode::OK, &TrackingBody { ports, waiting, dropped, bytes }))
}

/// Overrides the tracking; kept across restarts and new definitions. Redaction, truncation and retention always follow
/// the definition.
#[utoipa::path(put, path = "/v1/exchanges/{exchange}/tracking", tag = "exchanges", params(("exchange" = String, Path)), request_body = SetTrackingBody, responses((status = 204), Failures))]
async fn set_tracking(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(exchange): Segments<String>,
    JsonBody(SetTrackingBody { port, route, bodies, sample }): JsonBody<SetTrackingBody>,
) -> Result<Response, Failure> {
    if sample > 100 {
        return Err(ServiceError::from(
            Problem::new(Code::OutOfRange, "sample", "is a percentage: give 0 to 100")
                .param("least", 0)
                .param("most", 100),
        )
        .into());
    }
    let place = match (port, route) {
        (Some(_), Some(_)) => {
            return Err(ServiceError::from(
                Problem::new(Code::ConflictingMembers, "route", "cannot stand beside `port`: give one")
                    .param("with", "port"),
            )
            .into());
        }
        (Some(port), None) => TrackPlace::Ports(port),
        (None, Some(route)) => TrackPlace::Route(route),
        (None, None) => TrackPlace::Exchange,
    };
    let switch = bodies.map(|points| TrackSwitch { points, sample_percent: sample });
    app.service.set_exchange_tracking(&caller, &id(&exchange)?, place, switch).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Reports the flow of an exchange: throttling, configured rates, and the send queues.
#[utoipa::path(get, path = "/v1/exchanges/{exchange}/flow", tag = "exchanges", params(("exchange" = String, Path)), responses((status = 200, body = FlowBody), Failures))]
async fn flow(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(exchange): Segments<String>,
) -> Result<Response, Failure> {
    let report = app.service.exchange_flow(&caller, &id(&exchange)?).await?;
    Ok(json(StatusCode::OK, &FlowBody::from(report)))
}

/// Limits the rate of receiving or sending; kept across restarts and new definitions.
#[utoipa::path(put, path = "/v1/exchanges/{exchange}/flow", tag = "exchanges", params(("exchange" = String, Path)), request_body = SetRateBody, responses((status = 204), Failures))]
async fn set_rate(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(exchange): Segments<String>,
    JsonBody(SetRateBody { side, port, rate }): JsonBody<SetRateBody>,
) -> Result<Response, Failure> {
    let read = |text: String| {
        text.parse::<Rate>().map_err(|error| {
            ServiceError::from(Problem::new(Code::InvalidFormat, "rate", error.to_string()).param("format", "rate"))
        })
    };
    let rate = rate.map(read).transpose()?;
    app.service.set_exchange_rate(&caller, &id(&exchange)?, side, port.as_ref(), rate).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ChangesParameters {
    /// Maximum number of results, 1 to 1,000; default 100.
    #[serde(default)]
    limit: Option<usize>,
}

/// Lists throttling changes, newest first. The last 10,000 changes of all exchanges are kept.
#[utoipa::path(get, path = "/v1/exchanges/{exchange}/flow/changes", tag = "exchanges", params(("exchange" = String, Path), ChangesParameters), responses((status = 200, body = List<ThrottleChangeBody>), Failures))]
async fn flow_changes(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(exchange): Segments<String>,
    Parameters(asked): Parameters<ChangesParameters>,
) -> Result<Response, Failure> {
    let changes = app.service.exchange_flow_changes(&caller, &id(&exchange)?, page::limit(asked.limit)?).await?;
    let items = changes.into_iter().map(ThrottleChangeBody::from).collect();
    Ok(json(StatusCode::OK, &List { items, next: None }))
}

/// Flow report of an exchange.
#[derive(Serialize, ToSchema)]
#[schema(as = ExchangeFlow)]
struct FlowBody {
    /// Messages whose senders wait for a response.
    in_flight: usize,
    throttled: Vec<ThrottledBody>,
    /// Rates that an operator has set.
    rates: Vec<RateBody>,
    queues: Vec<QueueBody>,
}

impl From<FlowReport> for FlowBody {
    fn from(FlowReport { in_flight, throttled, rates, queues }: FlowReport) -> Self {
        let rate =
            |set: tocsin_store::spool::SetRate| RateBody { side: set.side, port: set.port, rate: set.rate.to_string() };
        let queue = |(port, waiting, wait): (Name, u64, Option<std::time::Duration>)| QueueBody {
            port,
            waiting,
            wait_seconds: wait.map(|wait| wait.as_secs_f64()),
        };
        FlowBody {
            in_flight,
            throttled: throttled.into_iter().map(ThrottledBody::from).collect(),
            rates: rates.into_iter().map(rate).collect(),
            queues: queues.into_iter().map(queue).collect(),
        }
    }
}

/// A rate that an operator has set.
#[derive(Serialize, ToSchema)]
#[schema(as = ExchangeRate)]
struct RateBody {
    #[schema(value_type = String)]
    side: FlowSide,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    port: Option<Name>,
    /// Such as `20/s`, `6/m` or `1/h`; `0` for none at all.
    rate: String,
}

/// Load of a send queue.
#[derive(Serialize, ToSchema)]
#[schema(as = ExchangeQueue)]
struct QueueBody {
    #[schema(value_type = String)]
    port: Name,
    /// Messages that are due, about.
    waiting: u64,
    /// Expected wait of a new message, in seconds; absent if unknown, because the port does not send or its receiver is
    /// unavailable.
    #[serde(skip_serializing_if = "Option::is_none")]
    wait_seconds: Option<f64>,
}

/// Rate limit of receiving or sending.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SetExchangeRate)]
struct SetRateBody {
    /// `publishing`: where messages come in; `delivery`: where they leave.
    #[schema(value_type = String)]
    side: FlowSide,
    /// A receive or send port; if not given, all receive ports together.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    port: Option<Name>,
    /// Such as `20/s`, `6/m` or `1/h`; `0` for none at all; null: as fast as they can.
    rate: Option<String>,
}

/// Start or end of throttling.
#[derive(Serialize, ToSchema)]
#[schema(as = ThrottleChange)]
struct ThrottleChangeBody {
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    #[schema(value_type = String)]
    side: FlowSide,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    port: Option<Name>,
    #[schema(value_type = String)]
    reason: ThrottleReason,
    /// Whether it begins; otherwise it ends.
    begins: bool,
    detail: String,
}

impl From<ThrottleChange> for ThrottleChangeBody {
    fn from(ThrottleChange { at, side, port, reason, begins, detail, .. }: ThrottleChange) -> Self {
        ThrottleChangeBody { at, side, port, reason, begins, detail }
    }
}

/// An exchange that is stored.
#[derive(Serialize, ToSchema)]
#[schema(as = Exchange)]
struct ExchangeBody {
    #[schema(value_type = String)]
    name: Name,
    version: u32,
    /// The id of the key that applied it.
    author: String,
    /// The description of that key.
    #[serde(skip_serializing_if = "Option::is_none")]
    author_name: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    applied_at: Timestamp,
    /// Whether the exchange runs. If not, the log has the reason.
    running: bool,
    /// Its definition as it was applied, with `***` for secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    definition: Option<String>,
}

impl ExchangeBody {
    fn new(app: &App, stored: StoredExchange, running: bool, whole: bool) -> Self {
        let author_name = app.service.key_name(&stored.author);
        let StoredExchange { name, version, text, author, applied_at } = stored;
        ExchangeBody { name, version, author, author_name, applied_at, running, definition: whole.then_some(text) }
    }
}

/// A definition that was applied.
#[derive(Serialize, ToSchema)]
#[schema(as = AppliedExchange)]
struct AppliedBody {
    /// Its version; of a dry run the stored one, 0 if there is none.
    version: u32,
    /// Whether the exchange is new.
    created: bool,
    /// Parts that differ from the stored definition.
    differences: Vec<DifferenceBody>,
    /// Locations that the server's configuration does not allow, which do not run.
    #[schema(value_type = Vec<crate::wire::ProblemItem>)]
    warnings: Vec<Problem>,
}

impl From<AppliedExchange> for AppliedBody {
    fn from(AppliedExchange { version, created, differences, warnings }: AppliedExchange) -> Self {
        let differences = differences.into_iter().map(DifferenceBody::from).collect();
        AppliedBody { version, created, differences, warnings }
    }
}

/// A send port.
#[derive(Serialize, ToSchema)]
#[schema(as = SendPort)]
struct PortBody {
    #[schema(value_type = String)]
    port: Name,
    /// `off`, `hold` or `active`.
    #[schema(value_type = String)]
    state: PortState,
    /// Whether an operator has set that, against the definition.
    is_set: bool,
    /// Requests that are under way.
    under_way: u32,
    /// Messages that are ready in memory; more may wait in the spool.
    ready: usize,
    /// When its service window opens, if it is closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    opens_at: Option<Timestamp>,
}

impl From<PortLoad> for PortBody {
    fn from(PortLoad { port, state, is_set, under_way, ready, opens_at }: PortLoad) -> Self {
        PortBody { port, state, is_set, under_way, ready, opens_at }
    }
}

/// The state of a send port.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SendPortState)]
struct StateBody {
    /// `off`: excluded from routing; `hold`: messages wait; `active`; null: as in the definition.
    #[schema(value_type = Option<String>)]
    state: Option<PortState>,
}

/// Tracking settings and counters.
#[derive(Serialize, ToSchema)]
#[schema(as = Tracking)]
struct TrackingBody {
    ports: Vec<PortTrackingBody>,
    /// Entries of all exchanges that wait to be stored.
    waiting: u64,
    /// Entries dropped since the start.
    dropped: u64,
    /// Stored bytes, compressed.
    bytes: u64,
}

/// Tracking settings of a port or route.
#[derive(Serialize, ToSchema)]
#[schema(as = PortTracking)]
struct PortTrackingBody {
    #[schema(value_type = String)]
    port: Name,
    /// `receive` or `send` of a port, `route` of a route.
    side: &'static str,
    /// `received`, `sent`, `replied`, `returned`.
    #[schema(value_type = Vec<String>)]
    bodies: Vec<TrackPoint>,
    /// Percentage of messages that are tracked.
    sample: u8,
    /// Whether an operator has set that, against the definition.
    is_set: bool,
}

impl From<PortTracking> for PortTrackingBody {
    fn from(PortTracking { port, side, points, sample_percent, is_set }: PortTracking) -> Self {
        PortTrackingBody { port, side: side.word(), bodies: points, sample: sample_percent, is_set }
    }
}

/// New tracking settings.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SetTracking)]
struct SetTrackingBody {
    /// At the ports of this name; if not given, at all for which nothing is set.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    port: Option<Name>,
    /// Instead: of the messages that this route leads, beside what their ports ask for.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    route: Option<Name>,
    /// Points at which bodies are tracked: `received`, `sent`, `replied`, `returned`; null: as in the definition.
    #[schema(value_type = Option<Vec<String>>)]
    bodies: Option<Vec<TrackPoint>>,
    /// Percentage of messages that are tracked.
    #[serde(default = "all")]
    sample: u8,
}

fn all() -> u8 {
    100
}
