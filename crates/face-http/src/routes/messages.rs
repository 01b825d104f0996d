use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use tocsin_exchange::receive::{Course, Incoming, Received};
use tocsin_model::{
    exchange::Mode,
    id::{MessageId, Name},
    time::Timestamp,
};
use tocsin_service::ServiceError;
use tocsin_store::spool::{Acted, Leg, MessageFilter, Standing, StoredMessage};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{Failures, json, located};
use crate::{
    App,
    problems::Failure,
    request::{Authorized, JsonBody, Parameters, Segments, id, idempotency_key, parts, take_body},
    wire::List,
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(send))
        .routes(routes!(messages))
        .routes(routes!(message))
        .routes(routes!(body))
        .routes(routes!(reply))
        .routes(routes!(resume))
        .routes(routes!(end))
}

const MESSAGE: HeaderName = HeaderName::from_static("tocsin-message");
const REPLY: HeaderName = HeaderName::from_static("tocsin-reply");
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// Sends a message through a receive port. The body may be anything; when an answer comes, it is durable. One-way: 202.
/// A request: 200 with the reply, or 202 with the address of the reply if that takes longer than the port or
/// `Prefer: wait=SECONDS` allows. A request that cannot be answered now is told with 502, one that nobody answered in
/// time with 504; what became of it is at its address. The same `Idempotency-Key` with the same body is the same
/// message, and gets the stored reply.
#[utoipa::path(post, path = "/v1/exchanges/{exchange}/receive/{port}", tag = "exchanges",
    params(("exchange" = String, Path), ("port" = String, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "At most 255 characters"),
        ("Prefer" = Option<String>, Header, description = "`wait=5`: how many seconds to wait for a reply (RFC 7240)")),
    request_body(content = Vec<u8>, content_type = "*/*"),
    responses((status = 200, content_type = "*/*", description = "The reply, with its own media type"), (status = 202, body = AcceptedBody), Failures))]
async fn send(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments((exchange, port)): Segments<(String, String)>,
    request: Request,
) -> Result<Response, Failure> {
    let entrance = app.service.entrance(&caller, &id::<Name>(&exchange)?, id::<Name>(&port)?)?;
    let (headers, body) = parts(request);
    let key = idempotency_key(&headers)?.map(str::to_owned);
    let wait = wait_of(&headers)?;
    let taken = take_body(&app, &headers, body, entrance.body_bytes_max).await?;
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let given = headers.iter().filter(|(name, _)| !is_secret(name));
    let given = given.filter_map(|(name, value)| Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned())));
    let incoming = Incoming {
        content_type: content_type.to_owned(),
        headers: given.collect(),
        body: taken.bytes.clone(),
        key,
        wait,
    };
    let received = app.service.receive(&entrance, incoming).await?;
    answer(received, entrance.mode)
}

/// What is ours to read and nobody else's.
fn is_secret(name: &HeaderName) -> bool {
    [header::AUTHORIZATION, header::COOKIE, header::PROXY_AUTHORIZATION].contains(name) || name == "x-api-key"
}

/// How long the caller would wait (RFC 7240).
fn wait_of(headers: &HeaderMap) -> Result<Option<Duration>, Failure> {
    let preferences = headers.get_all("prefer").into_iter().filter_map(|value| value.to_str().ok());
    let mut preferences = preferences.flat_map(|value| value.split([',', ';'])).map(str::trim);
    let wait = preferences.find_map(|preference| preference.strip_prefix("wait="));
    let parse = |text: &str| text.trim_matches('"').parse().map(Duration::from_secs);
    wait.map(|text| parse(text).map_err(|_| Failure::malformed("`Prefer: wait=` takes a number of seconds")))
        .transpose()
}

fn answer(received: Received, mode: Mode) -> Result<Response, Failure> {
    let Received { id, duplicate, course } = received;
    let mut response = match (course, mode) {
        (Course::Stored, _) => accepted(id, "stored", None),
        (Course::Suspended(reason), Mode::OneWay) => accepted(id, "suspended", Some(reason)),
        (course, _) => told(id, course)?,
    };
    if duplicate {
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    }
    Ok(response)
}

/// What is told of a request.
fn told(id: MessageId, course: Course) -> Result<Response, Failure> {
    let at = format!("/v1/messages/{id}/reply");
    Ok(match course {
        Course::Replied { reply, head, body } => {
            let mut response = (StatusCode::OK, body).into_response();
            let headers = response.headers_mut();
            headers.remove(header::CONTENT_TYPE);
            headers.extend(HeaderValue::try_from(head.content_type).ok().map(|value| (header::CONTENT_TYPE, value)));
            headers.insert(REPLY, number(reply));
            headers.insert(MESSAGE, number(id));
            response
        }
        Course::Pending => located(accepted(id, "pending", None), at),
        Course::Stored => accepted(id, "stored", None),
        Course::Suspended(reason) => return Err(Failure::not_answered(reason).with("message", id).with("reply", at)),
        Course::Ended => {
            return Err(Failure::not_answered("it was ended without an answer").with("message", id).with("reply", at));
        }
        Course::Expired => return Err(Failure::expired().with("message", id).with("reply", at)),
    })
}

fn accepted(id: MessageId, state: &'static str, reason: Option<String>) -> Response {
    let mut response = json(StatusCode::ACCEPTED, &AcceptedBody { message: id, state, reason });
    response.headers_mut().insert(MESSAGE, number(id));
    located(response, format!("/v1/messages/{id}"))
}

fn number(id: MessageId) -> HeaderValue {
    HeaderValue::try_from(id.to_string()).expect("an id is a header value")
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct MessagesParameters {
    /// Only of this exchange.
    exchange: Option<String>,
    /// Only those that came through this port; of replies the send port.
    port: Option<String>,
    /// Only the parts of this message, which was split.
    part_of: Option<String>,
    /// Only those that go to this send port.
    to: Option<String>,
    /// `open`, `suspended` or `ended`.
    #[param(value_type = Option<String>)]
    standing: Option<Standing>,
    /// Only those whose reason to be suspended contains this text.
    reason: Option<String>,
    /// How many; 1 to 1,000, default 100.
    limit: Option<usize>,
    /// The cursor of the page before.
    after: Option<String>,
}

/// Messages without their bodies, newest first.
#[utoipa::path(get, path = "/v1/messages", tag = "exchanges", params(MessagesParameters), responses((status = 200, body = List<MessageBody>), Failures))]
async fn messages(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(parameters): Parameters<MessagesParameters>,
) -> Result<Response, Failure> {
    let limit = tocsin_service::page::limit(parameters.limit)?;
    let before = parameters.after.as_deref().map(id::<MessageId>).transpose()?;
    let filter = MessageFilter {
        exchange: parameters.exchange.as_deref().map(id).transpose()?,
        port: parameters.port.as_deref().map(id).transpose()?,
        part_of: parameters.part_of.as_deref().map(id).transpose()?,
        to: parameters.to.as_deref().map(id).transpose()?,
        standing: parameters.standing,
        reason: parameters.reason,
        ..MessageFilter::default()
    };
    let mut found = app.service.messages(&caller, filter, before, limit + 1).await?;
    let has_more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| has_more).map(|last| last.id.to_string());
    let items = found.into_iter().map(MessageBody::from).collect();
    Ok(json(StatusCode::OK, &List { items, next }))
}

/// One message without its body: where it goes, and what became of it.
#[utoipa::path(get, path = "/v1/messages/{message}", tag = "exchanges", params(("message" = String, Path)), responses((status = 200, body = MessageBody), Failures))]
async fn message(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(message): Segments<String>,
) -> Result<Response, Failure> {
    let found = app.service.message(&caller, id(&message)?).await?;
    Ok(json(StatusCode::OK, &MessageBody::from(found)))
}

/// The body of a message, with its media type.
#[utoipa::path(get, path = "/v1/messages/{message}/body", tag = "exchanges", params(("message" = String, Path)), responses((status = 200, content_type = "*/*"), Failures))]
async fn body(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(message): Segments<String>,
) -> Result<Response, Failure> {
    let (content_type, body) = app.service.message_body(&caller, id(&message)?).await?;
    let content_type = HeaderValue::try_from(content_type).ok().filter(|value| !value.is_empty());
    let content_type = content_type.unwrap_or(HeaderValue::from_static("application/octet-stream"));
    // Somebody else wrote it: no browser should show it as a page of ours.
    let attachment = HeaderValue::from_static("attachment");
    Ok(([(header::CONTENT_TYPE, content_type), (header::CONTENT_DISPOSITION, attachment)], body).into_response())
}

/// The reply to a request: 200 with it, 202 while there is none; waits as `Prefer: wait=SECONDS` asks.
#[utoipa::path(get, path = "/v1/messages/{message}/reply", tag = "exchanges", params(("message" = String, Path)), responses((status = 200, content_type = "*/*", description = "The reply, with its own media type"), (status = 202, body = AcceptedBody), Failures))]
async fn reply(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(message): Segments<String>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let id = id::<MessageId>(&message)?;
    let course = app.service.reply(&caller, id, wait_of(&headers)?.unwrap_or_default()).await?;
    told(id, course)
}

/// Lets suspended messages go on: what went nowhere is routed anew, what failed is sent again with a fresh schedule.
#[utoipa::path(post, path = "/v1/messages/resume", tag = "exchanges", request_body = FilterBody, responses((status = 200, body = ActedBody), Failures))]
async fn resume(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    JsonBody(filter): JsonBody<FilterBody>,
) -> Result<Response, Failure> {
    let acted = app.service.resume_messages(&caller, filter.read()?).await?;
    Ok(json(StatusCode::OK, &ActedBody::from(acted)))
}

/// Ends messages: nothing more of them leaves. Those that are suspended, unless `standing` says `open`.
#[utoipa::path(post, path = "/v1/messages/end", tag = "exchanges", request_body = FilterBody, responses((status = 200, body = ActedBody), Failures))]
async fn end(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    JsonBody(filter): JsonBody<FilterBody>,
) -> Result<Response, Failure> {
    let acted = app.service.end_messages(&caller, filter.read()?).await?;
    Ok(json(StatusCode::OK, &ActedBody::from(acted)))
}

/// Which messages. At least one condition, or `all`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = MessageChoice)]
#[derive(Default)]
struct FilterBody {
    /// This one.
    #[schema(value_type = Option<String>)]
    id: Option<MessageId>,
    /// Of this exchange.
    #[schema(value_type = Option<String>)]
    exchange: Option<Name>,
    /// That came through this port.
    #[schema(value_type = Option<String>)]
    port: Option<Name>,
    /// That are parts of this message, which was split.
    #[schema(value_type = Option<String>)]
    part_of: Option<MessageId>,
    /// Of which something goes to this send port.
    #[schema(value_type = Option<String>)]
    to: Option<Name>,
    /// `suspended` if not given; to end others, `open`.
    #[schema(value_type = Option<String>)]
    standing: Option<Standing>,
    /// Whose reason contains this text.
    reason: Option<String>,
    /// That came before.
    #[schema(value_type = Option<String>, format = DateTime)]
    before: Option<Timestamp>,
    /// All of them.
    all: bool,
}

impl FilterBody {
    fn read(self) -> Result<MessageFilter, ServiceError> {
        let FilterBody { id, exchange, port, part_of, to, standing, reason, before, all } = self;
        let filter = MessageFilter { id, exchange, port, part_of, to, reason, before, standing: None };
        match (filter == MessageFilter::default(), all) {
            (true, false) => {
                Err(ServiceError::invalid("", "says not which messages: give a condition, or `all: true`"))
            }
            (false, true) => Err(ServiceError::invalid("all", "goes without conditions")),
            _ => Ok(MessageFilter { standing, ..filter }),
        }
    }
}

/// A message that was taken.
#[derive(Serialize, ToSchema)]
#[schema(as = AcceptedMessage)]
struct AcceptedBody {
    #[schema(value_type = String)]
    message: MessageId,
    /// `stored`, `pending` for a request without a reply so far, or `suspended`.
    state: &'static str,
    /// Why it is suspended.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// How many messages an act changed.
#[derive(Serialize, ToSchema)]
#[schema(as = ActedMessages)]
struct ActedBody {
    messages: u64,
    /// Ways to send ports.
    legs: u64,
}

impl From<Acted> for ActedBody {
    fn from(Acted { messages, legs }: Acted) -> Self {
        ActedBody { messages, legs }
    }
}

/// A message.
#[derive(Serialize, ToSchema)]
#[schema(as = Message)]
struct MessageBody {
    #[schema(value_type = String)]
    id: MessageId,
    #[schema(value_type = String)]
    exchange: Name,
    /// The receive port it came through; of a reply the send port.
    #[schema(value_type = String)]
    port: Name,
    /// `one_way`, `request` or `reply`.
    kind: &'static str,
    /// Of a reply: what it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    answers: Option<MessageId>,
    /// The message that it is a part of, which was split.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    part_of: Option<MessageId>,
    /// Its reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    reply: Option<MessageId>,
    content_type: String,
    bytes: u64,
    /// Its promoted properties.
    properties: serde_json::Map<String, serde_json::Value>,
    #[schema(value_type = String, format = DateTime)]
    accepted_at: Timestamp,
    /// When a request is over without an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
    /// When nothing was left to be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    ended_at: Option<Timestamp>,
    /// `delivered`, `answered`, `expired`, `ended` by an operator, `split` into others, or of a reply `late` or `wrong`.
    #[serde(skip_serializing_if = "Option::is_none")]
    ending: Option<&'static str>,
    /// Why it is suspended as a whole: no route led it anywhere, or a step of its port's pipeline failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    suspended: Option<String>,
    legs: Vec<LegBody>,
}

/// One way of a message, to one send port.
#[derive(Serialize, ToSchema)]
#[schema(as = Leg)]
struct LegBody {
    /// The send port.
    #[schema(value_type = String)]
    port: Name,
    /// `waiting`, `done`, `suspended` or `ended`.
    state: &'static str,
    /// How often it was tried, on the present transport.
    attempts: u32,
    /// Whether the backup transport is at it.
    on_backup: bool,
    /// When it is tried, while it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    due_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    tried_at: Option<Timestamp>,
    /// What the far side said last, or why there was no answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    said: Option<String>,
}

impl From<StoredMessage> for MessageBody {
    fn from(stored: StoredMessage) -> Self {
        let properties = stored.head.properties.into_iter();
        MessageBody {
            id: stored.id,
            exchange: stored.exchange,
            port: stored.port,
            kind: stored.kind.word(),
            answers: stored.answers,
            part_of: stored.part_of,
            reply: stored.reply,
            content_type: stored.head.content_type,
            bytes: stored.bytes,
            properties: properties.map(|(name, value)| (name.to_string(), value.into())).collect(),
            accepted_at: stored.accepted_at,
            expires_at: stored.expires_at,
            ended_at: stored.ended_at,
            ending: stored.ending.map(|ending| ending.word()),
            suspended: stored.suspended,
            legs: stored.legs.into_iter().map(LegBody::from).collect(),
        }
    }
}

impl From<Leg> for LegBody {
    fn from(leg: Leg) -> Self {
        let waits = leg.state == tocsin_store::spool::LegState::Waiting;
        LegBody {
            port: leg.port,
            state: leg.state.word(),
            attempts: leg.attempts,
            on_backup: leg.on_backup,
            due_at: waits.then_some(leg.due_at),
            tried_at: leg.tried_at,
            said: leg.said,
        }
    }
}
