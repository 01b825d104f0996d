//! Checks of exchanges that change nothing: of a definition, and of the routing of a message.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    extract::{Request, State},
    http::StatusCode,
    response::Response,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use tocsin_exchange::{
    receive::IncomingMessage,
    route_tests::{RouteTest, RoutedPart, RoutedPort},
};
use tocsin_model::{
    exchange::PortState,
    id::Name,
    problem::{Code, Problem, first_of},
};
use tocsin_service::{ServiceError, exchanges::CheckedExchange};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::applications::yaml;
use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, JsonBody, Segments, id},
    responses::{Failures, json},
    wire::DifferenceBody,
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(check)).routes(routes!(route_test))
}

/// Checks a definition and reports all its problems and changes, without applying it.
#[utoipa::path(post, path = "/v1/exchanges/check", tag = "exchanges", request_body(content = String, content_type = "application/yaml"), responses((status = 200, body = CheckedExchangeBody), Failures))]
async fn check(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    request: Request,
) -> Result<Response, Failure> {
    let text = yaml(&app, request).await?;
    let checked = app.service.check_exchange(&caller, &text).await?;
    Ok(json(StatusCode::OK, &CheckedExchangeBody::from(checked)))
}

/// Tests where a message of a receive port would go: runs the steps of the port and evaluates the routes. Stores and
/// sends nothing; steps that call a program call it.
#[utoipa::path(post, path = "/v1/exchanges/{exchange}/route-test", tag = "exchanges", params(("exchange" = String, Path)), request_body = RouteTestRequestBody, responses((status = 200, body = RouteTestBody), Failures))]
async fn route_test(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(exchange): Segments<String>,
    JsonBody(asked): JsonBody<RouteTestRequestBody>,
) -> Result<Response, Failure> {
    let exchange = id::<Name>(&exchange)?;
    let body = match (asked.body, asked.body_base64) {
        (Some(text), None) => text.into_bytes(),
        (None, Some(text)) => STANDARD.decode(text).map_err(|_| {
            ServiceError::from(
                Problem::new(Code::InvalidFormat, "body_base64", "is not base64").param("format", "base64"),
            )
        })?,
        (None, None) => Vec::new(),
        (Some(_), Some(_)) => {
            let problem = Problem::new(Code::ConflictingMembers, "body_base64", "cannot stand beside `body`");
            return Err(ServiceError::from(problem.param("with", "body")).into());
        }
    };
    let headers = asked.headers.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)).collect();
    let content_type = asked.content_type.unwrap_or_else(|| "application/json".to_owned());
    let incoming = IncomingMessage { content_type, headers, body: body.into(), ..IncomingMessage::default() };
    let tested = app.service.test_route(&caller, &exchange, &asked.port, incoming).await?;
    Ok(json(StatusCode::OK, &RouteTestBody::from(tested)))
}

/// Result of a check.
#[derive(Serialize, ToSchema)]
#[schema(as = CheckedExchange)]
struct CheckedExchangeBody {
    /// Name of the exchange.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    exchange: Option<Name>,
    /// Stored version; 0: it is new.
    version: u32,
    #[schema(value_type = Vec<crate::wire::ProblemItem>)]
    problems: Vec<Problem>,
    /// Locations that the server's configuration does not allow, which would not run.
    #[schema(value_type = Vec<crate::wire::ProblemItem>)]
    warnings: Vec<Problem>,
    /// Parts that differ from the stored definition.
    differences: Vec<DifferenceBody>,
}

impl From<CheckedExchange> for CheckedExchangeBody {
    fn from(checked: CheckedExchange) -> Self {
        let (version, warnings, differences) = match checked.applied {
            Some(applied) => (applied.version, applied.warnings, applied.differences),
            None => (0, Vec::new(), Vec::new()),
        };
        CheckedExchangeBody {
            exchange: checked.name,
            version,
            problems: first_of(checked.problems),
            warnings: first_of(warnings),
            differences: differences.into_iter().map(DifferenceBody::from).collect(),
        }
    }
}

/// A message to test.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RouteTestRequest)]
struct RouteTestRequestBody {
    /// The receive port.
    #[schema(value_type = String)]
    port: Name,
    /// Media type of the body; default `application/json`.
    #[serde(default)]
    content_type: Option<String>,
    /// Headers.
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// Body as text.
    #[serde(default)]
    body: Option<String>,
    /// Body as bytes in base64, instead of `body`.
    #[serde(default)]
    body_base64: Option<String>,
}

/// Result of a route test.
#[derive(Serialize, ToSchema)]
#[schema(as = RouteTestResult)]
struct RouteTestBody {
    /// Error of a step of the port: the message would be suspended.
    #[serde(skip_serializing_if = "Option::is_none")]
    step_error: Option<String>,
    /// Whether it would wait for aggregation with others; its routes are those of the aggregate.
    gathers: bool,
    /// The message after the steps of the port; several parts if a step splits it.
    parts: Vec<RoutedPartBody>,
}

/// A message after the steps of its port, with its routing.
#[derive(Serialize, ToSchema)]
#[schema(as = RoutedPart)]
struct RoutedPartBody {
    content_type: String,
    /// Body, if it is UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    /// Body in base64, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
    /// Promoted properties.
    #[schema(value_type = BTreeMap<String, serde_json::Value>)]
    properties: BTreeMap<String, Json>,
    /// Routes that match.
    #[schema(value_type = Vec<String>)]
    routes: Vec<Name>,
    /// Send ports of these routes.
    ports: Vec<RoutedPortBody>,
    /// Reason of the suspension.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// A send port of a matching route.
#[derive(Serialize, ToSchema)]
#[schema(as = RoutedPort)]
struct RoutedPortBody {
    #[schema(value_type = String)]
    port: Name,
    /// `off`, `hold` or `active`; absent: it does not exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    state: Option<PortState>,
    /// Whether the message would be sent there.
    takes: bool,
}

impl From<RouteTest> for RouteTestBody {
    fn from(tested: RouteTest) -> Self {
        let parts = tested.parts.into_iter().map(RoutedPartBody::from).collect();
        RouteTestBody { step_error: tested.step_error, gathers: tested.gathers, parts }
    }
}

impl From<RoutedPart> for RoutedPartBody {
    fn from(part: RoutedPart) -> Self {
        let (body, body_base64) = match String::from_utf8(part.body.to_vec()) {
            Ok(text) => (Some(text), None),
            Err(_) => (None, Some(STANDARD.encode(&part.body))),
        };
        let property = |(name, value): (Name, tocsin_model::value::Value)| {
            (name.to_string(), serde_json::to_value(value).unwrap_or_default())
        };
        let port = |RoutedPort { port, state, takes }: RoutedPort| RoutedPortBody { port, state, takes };
        RoutedPartBody {
            content_type: part.content_type,
            body,
            body_base64,
            properties: part.properties.into_iter().map(property).collect(),
            routes: part.routes,
            ports: part.ports.into_iter().map(port).collect(),
            reason: part.reason,
        }
    }
}
