use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tocsin_exchange::{
    edit::Edit,
    receive::{IncomingMessage, ReceiveResult, ReplyStatus},
};
use tocsin_model::{
    exact_json::Exact,
    exchange::Mode,
    filter::{Dialect, Filter},
    id::{MessageId, Name},
    problem::{Code, Problem},
    time::Timestamp,
};
use tocsin_service::{
    Caller, ServiceError,
    exchanges::{ReceivePortHandle, WhichMessages},
};
use tocsin_store::spool::{AffectedCounts, HistoryEntry, Leg, LegState, MessageFilter, MessageStatus, StoredMessage};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::{Failure, MALFORMED_HEADER},
    request::{
        Authorized, BodyRoom, BufferedBody, DryRunParameters, JsonBody, Parameters, Segments, id, idempotency_key,
        parts, query_id, take_body,
    },
    responses::{Failures, json, located},
    wire::{List, TraceContextBody},
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
        .routes(routes!(edit))
        .routes(routes!(original))
}

const MESSAGE: HeaderName = HeaderName::from_static("tocsin-message");
const REPLY: HeaderName = HeaderName::from_static("tocsin-reply");
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// Bodies of messages up to this size have memory of their own.
const OWN_BYTES: usize = 8 * 1024;

/// Sends a message through a receive port. The body can have any type; the message is durable when the response is
/// sent. One-way: 202. Request: 200 with the reply, or 202 with the address of the reply if it takes longer than the
/// port or `Prefer: wait=SECONDS` allows. 502 if the request cannot be answered now, 504 if it has expired; its address
/// has the status. A repetition with the same `Idempotency-Key` and body is the same message, and returns the stored
/// reply.
#[utoipa::path(post, path = "/v1/exchanges/{exchange}/receive/{port}", tag = "exchanges",
    params(("exchange" = String, Path), ("port" = String, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "At most 255 characters"),
        ("Prefer" = Option<String>, Header, description = "`wait=5`: how many seconds to wait for a reply (RFC 7240)"),
        ("traceparent" = Option<String>, Header, description = "Where the message stands in a trace (W3C Trace Context); kept with it and sent on. One that is none is passed over"),
        ("tracestate" = Option<String>, Header, description = "What goes with it")),
    request_body(content = Vec<u8>, content_type = "*/*"),
    responses((status = 200, content_type = "*/*", description = "The reply, with its own media type"), (status = 202, body = AcceptedBody), Failures))]
async fn send(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments((exchange, port)): Segments<(String, String)>,
    request: Request,
) -> Result<Response, Failure> {
    let receive_port_handle = app.service.receive_port_handle(&caller, &id::<Name>(&exchange)?, id::<Name>(&port)?)?;
    let (incoming, _room) = incoming(&app, &receive_port_handle, &caller, request).await?;
    let received = app.while_good(&caller, app.service.receive(&receive_port_handle, incoming)).await?;
    answer(received, receive_port_handle.mode)
}

/// Reads a message; gives the room that it takes, too. Its sender may wait long: nothing else of the request is kept.
async fn incoming(
    app: &App,
    receive_port_handle: &ReceivePortHandle,
    caller: &Caller,
    request: Request,
) -> Result<(IncomingMessage, BodyRoom), Failure> {
    let (headers, body) = parts(request);
    let key = idempotency_key(&headers)?.map(str::to_owned);
    let wait = wait_of(&headers)?;
    let BufferedBody { bytes, room } = take_body(app, &headers, body, receive_port_handle.body_bytes_max).await?;
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let given = headers.iter().filter(|(name, _)| !is_secret(name));
    let given = given.filter_map(|(name, value)| Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned())));
    let content_type = content_type.to_owned();
    // A small body is a slice of the connection's read buffer; without a copy it would keep the whole buffer.
    let body = if bytes.len() <= OWN_BYTES { Bytes::copy_from_slice(&bytes) } else { bytes };
    Ok((IncomingMessage { content_type, headers: given.collect(), body, key, sender: caller.key().into(), wait }, room))
}

/// Whether a header carries credentials, which are not forwarded.
fn is_secret(name: &HeaderName) -> bool {
    [header::AUTHORIZATION, header::COOKIE, header::PROXY_AUTHORIZATION].contains(name) || name == "x-api-key"
}

/// The `wait` preference of the caller (RFC 7240).
fn wait_of(headers: &HeaderMap) -> Result<Option<Duration>, Failure> {
    let preferences = headers.get_all("prefer").into_iter().filter_map(|value| value.to_str().ok());
    // What follows a semicolon is a parameter of its preference; names have no letter case (RFC 7240, 2).
    let mut preferences = preferences.flat_map(|value| value.split(',')).filter_map(|one| one.split(';').next());
    let wait = preferences.find_map(|preference| {
        let (name, value) = preference.split_once('=')?;
        name.trim().eq_ignore_ascii_case("wait").then(|| value.trim())
    });
    let parse = |text: &str| text.trim_matches('"').parse().map(Duration::from_secs);
    wait.map(|text| {
        parse(text).map_err(|_| Failure::new(MALFORMED_HEADER, "`Prefer: wait=` takes a number of seconds"))
    })
    .transpose()
}

fn answer(received: ReceiveResult, mode: Mode) -> Result<Response, Failure> {
    let ReceiveResult { id, duplicate, reply_status } = received;
    let mut response = match (reply_status, mode) {
        (ReplyStatus::Stored, _) => accepted(id, "stored", None),
        (ReplyStatus::Suspended(reason), Mode::OneWay) => accepted(id, "suspended", Some(reason)),
        (reply_status, _) => reply_response(id, reply_status)?,
    };
    if duplicate {
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    }
    Ok(response)
}

/// The response for the reply status of a request.
fn reply_response(id: MessageId, reply_status: ReplyStatus) -> Result<Response, Failure> {
    let at = || format!("/v1/messages/{id}/reply");
    Ok(match reply_status {
        ReplyStatus::Replied { reply, head, body } => {
            // With room for what every answer has besides.
            let mut headers = HeaderMap::with_capacity(8);
            headers.extend(HeaderValue::try_from(head.content_type).ok().map(|value| (header::CONTENT_TYPE, value)));
            let packed = head.headers.iter().find(|(name, _)| name == "content-encoding");
            let packed = packed.and_then(|(_, coding)| HeaderValue::try_from(coding).ok());
            headers.extend(packed.map(|coding| (header::CONTENT_ENCODING, coding)));
            headers.insert(REPLY, number(reply));
            headers.insert(MESSAGE, number(id));
            let mut response = Response::new(body.into());
            *response.headers_mut() = headers;
            response
        }
        ReplyStatus::Pending => located(accepted(id, "pending", None), at()),
        ReplyStatus::Stored => accepted(id, "stored", None),
        ReplyStatus::Suspended(reason) => {
            return Err(Failure::not_answered(reason).with("message", id).with("reply", at()));
        }
        ReplyStatus::Ended => {
            return Err(Failure::not_answered("it was ended without an answer")
                .with("message", id)
                .with("reply", at()));
        }
        ReplyStatus::Expired => return Err(Failure::expired().with("message", id).with("reply", at())),
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
    /// Filter by exchange.
    exchange: Option<String>,
    /// Filter by receive port; for replies, by send port.
    port: Option<String>,
    /// Only the parts of this message, which was split or made of them.
    part_of: Option<String>,
    /// Filter by send port of a leg.
    to: Option<String>,
    /// `open`, `suspended` or `ended`.
    #[param(value_type = Option<String>)]
    standing: Option<MessageStatus>,
    /// Filter by text that the reason of the suspension contains.
    reason: Option<String>,
    /// Maximum number of results, 1 to 1,000; default 100.
    limit: Option<usize>,
    /// Cursor from the previous page.
    after: Option<String>,
}

/// Messages without their bodies, newest first. A request reads at most 10,000 messages of each partition, so a page
/// can have fewer than `limit`, or none, and still a `next`.
#[utoipa::path(get, path = "/v1/messages", tag = "exchanges", params(MessagesParameters), responses((status = 200, body = List<MessageBody>), Failures))]
async fn messages(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(parameters): Parameters<MessagesParameters>,
) -> Result<Response, Failure> {
    let limit = tocsin_service::page::limit(parameters.limit)?;
    let before = parameters.after.as_deref().map(query_id::<MessageId>).transpose()?;
    let filter = MessageFilter {
        exchange: parameters.exchange.as_deref().map(query_id).transpose()?,
        port: parameters.port.as_deref().map(query_id).transpose()?,
        part_of: parameters.part_of.as_deref().map(query_id).transpose()?,
        to: parameters.to.as_deref().map(query_id).transpose()?,
        standing: parameters.standing,
        reason: parameters.reason,
        ..MessageFilter::default()
    };
    let found = app.service.messages(&caller, filter, before, limit).await?;
    let next = found.next.map(|last| last.to_string());
    let items = found.items.into_iter().map(MessageBody::from).collect();
    Ok(json(StatusCode::OK, &List { items, next }))
}

/// One message without its body, with its legs and their state.
#[utoipa::path(get, path = "/v1/messages/{message}", tag = "exchanges", params(("message" = String, Path)), responses((status = 200, body = MessageBody), Failures))]
async fn message(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(message): Segments<String>,
) -> Result<Response, Failure> {
    let id = id(&message)?;
    let found = app.service.message(&caller, id).await?;
    let history = app.service.message_history(&caller, id).await?;
    let history = history.into_iter().map(|entry| {
        let by_name = app.service.key_name(&entry.by);
        HistoryEntryBody { by_name, ..entry.into() }
    });
    let history = Some(history.collect());
    Ok(json(StatusCode::OK, &MessageBody { history, ..MessageBody::from(found) }))
}

/// The body of a message, with its media type.
#[utoipa::path(get, path = "/v1/messages/{message}/body", tag = "exchanges", params(("message" = String, Path)), responses((status = 200, content_type = "*/*"), Failures))]
async fn body(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(message): Segments<String>,
) -> Result<Response, Failure> {
    let (content_type, body) = app.service.message_body(&caller, id(&message)?).await?;
    Ok(attached(content_type, body))
}

/// The reply to a request: 200 with it, 202 while there is none; waits as `Prefer: wait=SECONDS` asks. The key that sent the
/// request may ask, and keys with `operations:read`; to others there is no such message.
#[utoipa::path(get, path = "/v1/messages/{message}/reply", tag = "exchanges", params(("message" = String, Path)), responses((status = 200, content_type = "*/*", description = "The reply, with its own media type"), (status = 202, body = AcceptedBody), Failures))]
async fn reply(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(message): Segments<String>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let id = id::<MessageId>(&message)?;
    let wait = wait_of(&headers)?.unwrap_or_default();
    let reply_status = app.while_good(&caller, app.service.reply(&caller, id, wait)).await?;
    reply_response(id, reply_status)
}

/// Resumes suspended messages: unroutable ones are routed again, failed ones are sent again with a fresh retry
/// schedule.
#[utoipa::path(post, path = "/v1/messages/resume", tag = "exchanges", params(DryRunParameters), request_body = FilterBody, responses((status = 200, body = ActedBody), Failures))]
async fn resume(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<DryRunParameters>,
    JsonBody(filter): JsonBody<FilterBody>,
) -> Result<Response, Failure> {
    let acted = app.service.resume_messages(&caller, filter.read()?, asked.mode()).await?;
    Ok(json(StatusCode::OK, &ActedBody { dry_run: asked.dry_run, ..acted.into() }))
}

/// Cancels messages: no further leg is sent. Applies to suspended messages, unless `standing` is `open`.
#[utoipa::path(post, path = "/v1/messages/end", tag = "exchanges", params(DryRunParameters), request_body = FilterBody, responses((status = 200, body = ActedBody), Failures))]
async fn end(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<DryRunParameters>,
    JsonBody(filter): JsonBody<FilterBody>,
) -> Result<Response, Failure> {
    let acted = app.service.end_messages(&caller, filter.read()?, asked.mode()).await?;
    Ok(json(StatusCode::OK, &ActedBody { dry_run: asked.dry_run, ..acted.into() }))
}

/// Edits suspended messages: bodies or parts of them, media types, properties. Properties from the body are promoted
/// again. With `resume` they are resumed at once: unroutable ones are routed again, failed ones are sent to the same
/// send port. The original version is kept.
#[utoipa::path(post, path = "/v1/messages/edit", tag = "exchanges", params(DryRunParameters), request_body = EditMessagesBody, responses((status = 200, body = EditedMessagesBody), Failures))]
async fn edit(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<DryRunParameters>,
    JsonBody(EditMessagesBody { messages, edit, resume }): JsonBody<EditMessagesBody>,
) -> Result<Response, Failure> {
    let is_one = messages.id.is_some();
    let (which, edit) = (messages.read()?, edit.read(is_one)?);
    let (edited, resumed) = app.service.edit_messages(&caller, which, &edit, resume, asked.mode()).await?;
    let unchanged = edited.unchanged.into_iter().map(|(id, reason)| UnchangedBody { id, reason }).collect();
    let (messages, dry_run) = (edited.messages.len() as u64, asked.dry_run);
    let body = EditedMessagesBody { messages, unchanged, resumed: resumed.messages, dry_run };
    Ok(json(StatusCode::OK, &body))
}

/// The body of a message as it was before an operator edited it, with its media type.
#[utoipa::path(get, path = "/v1/messages/{message}/original", tag = "exchanges", params(("message" = String, Path)), responses((status = 200, content_type = "*/*"), Failures))]
async fn original(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(message): Segments<String>,
) -> Result<Response, Failure> {
    let original = app.service.original_message(&caller, id(&message)?).await?;
    Ok(attached(original.head.content_type, original.body))
}

/// The body is untrusted: browsers must not render it as a page of this server.
pub(super) fn attached(content_type: String, body: Bytes) -> Response {
    let content_type = HeaderValue::try_from(content_type).ok().filter(|value| !value.is_empty());
    let content_type = content_type.unwrap_or(HeaderValue::from_static("application/octet-stream"));
    let attachment = HeaderValue::from_static("attachment");
    ([(header::CONTENT_TYPE, content_type), (header::CONTENT_DISPOSITION, attachment)], body).into_response()
}

/// An edit of suspended messages.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct EditMessagesBody {
    messages: FilterBody,
    edit: EditBody,
    /// Whether they go on at once.
    #[serde(default)]
    resume: bool,
}

/// Changes of an edit.
#[derive(Deserialize, Default, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = MessageEdit)]
struct EditBody {
    /// Another body, of one message.
    body: Option<String>,
    /// Another body that is not text, in base64.
    body_base64: Option<String>,
    /// A merge patch (RFC 7396) of bodies of JSON. Other members keep their exact text, numbers digit by digit.
    #[schema(value_type = Option<serde_json::Value>)]
    patch: Option<Box<RawValue>>,
    content_type: Option<String>,
    /// Properties with other values; null takes one away.
    #[schema(value_type = Option<serde_json::Value>)]
    properties: serde_json::Map<String, serde_json::Value>,
}

impl EditBody {
    fn read(self, is_one: bool) -> Result<Edit, ServiceError> {
        let EditBody { body, body_base64, patch, content_type, properties } = self;
        let body = match (body, body_base64) {
            (Some(_), Some(_)) => {
                return Err(ServiceError::from(
                    Problem::new(Code::ConflictingMembers, "edit.body", "goes without `body_base64`")
                        .param("with", "body_base64"),
                ));
            }
            (Some(text), None) => Some(text.into_bytes()),
            (None, Some(text)) => Some(BASE64_STANDARD.decode(text).map_err(|error| {
                ServiceError::from(
                    Problem::new(Code::InvalidFormat, "edit.body_base64", format!("is not base64: {error}"))
                        .param("format", "base64"),
                )
            })?),
            (None, None) => None,
        };
        if body.is_some() && !is_one {
            let text = "is for one message: give its `id`, or change several with `patch`";
            return Err(ServiceError::invalid(Code::NotApplicable, "edit.body", text));
        }
        let named = properties.into_iter().map(|(name, value)| match name.parse::<Name>() {
            Ok(name) => Ok((name, value)),
            Err(_) => Err(ServiceError::from(
                Problem::new(Code::InvalidFormat, "edit.properties", format!("`{name}` is not a name"))
                    .param("format", "name")
                    .param("value", name.to_string()),
            )),
        });
        let properties = named.collect::<Result<Vec<_>, _>>()?;
        let read = |patch: Box<RawValue>| {
            Exact::read(patch.get().as_bytes())
                .map_err(|error| ServiceError::from(Problem::syntax("json", "edit.patch", error.to_string())))
        };
        let patch = patch.map(read).transpose()?;
        let edit = Edit { body: body.map(Into::into), patch, content_type, properties };
        if edit == Edit::default() {
            let text = "changes nothing: give `body`, `patch`, `content_type` or `properties`";
            return Err(ServiceError::invalid(Code::Empty, "edit", text));
        }
        Ok(edit)
    }
}

/// Result of an edit.
#[derive(Serialize, ToSchema)]
#[schema(as = EditedMessages)]
struct EditedMessagesBody {
    /// Number of edited messages.
    messages: u64,
    /// The first hundred that are as they were, and why.
    unchanged: Vec<UnchangedBody>,
    /// Number of them that were resumed.
    resumed: u64,
    /// Whether nothing was changed, as requested.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    dry_run: bool,
}

#[derive(Serialize, ToSchema)]
#[schema(as = UnchangedMessage)]
struct UnchangedBody {
    #[schema(value_type = String)]
    id: MessageId,
    reason: String,
}

/// Selects messages. At least one condition, or `all`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = MessageChoice)]
#[derive(Default)]
struct FilterBody {
    /// This one.
    #[schema(value_type = Option<String>)]
    id: Option<MessageId>,
    /// The exchange.
    #[schema(value_type = Option<String>)]
    exchange: Option<Name>,
    /// That came through this port.
    #[schema(value_type = Option<String>)]
    port: Option<Name>,
    /// That are parts of this message, which was split or made of them.
    #[schema(value_type = Option<String>)]
    part_of: Option<MessageId>,
    /// A send port to which the message has a leg.
    #[schema(value_type = Option<String>)]
    to: Option<Name>,
    /// `suspended` if not given; to end others, `open`.
    #[schema(value_type = Option<String>)]
    standing: Option<MessageStatus>,
    /// Text that the reason contains.
    reason: Option<String>,
    /// That came before.
    #[schema(value_type = Option<String>, format = DateTime)]
    before: Option<Timestamp>,
    /// That meet this predicate over the properties of `exchange`: `message.amount > 100.0`.
    when: Option<String>,
    /// The language of `when`; `cel` if not given.
    #[schema(value_type = Option<String>)]
    dialect: Option<Dialect>,
    /// All of them.
    all: bool,
}

impl FilterBody {
    fn read(self) -> Result<WhichMessages, ServiceError> {
        let FilterBody { id, exchange, port, part_of, to, standing, reason, before, when, dialect, all } = self;
        // Every reason contains the empty text, so it would select all messages; that requires `all`.
        if reason.as_deref() == Some("") {
            return Err(ServiceError::invalid(
                Code::Empty,
                "reason",
                "is empty: give a part of the reason, or `all: true`",
            ));
        }
        let filter = MessageFilter { id, exchange, port, part_of, to, reason, before, standing: None };
        let when = when.map(|text| Filter { dialect: dialect.unwrap_or(Dialect::Cel), text });
        match (filter == MessageFilter::default() && when.is_none(), all) {
            (true, false) => Err(ServiceError::invalid(
                Code::Required,
                "",
                "says not which messages: give a condition, or `all: true`",
            )),
            (false, true) => Err(ServiceError::invalid(Code::ConflictingMembers, "all", "goes without conditions")),
            _ => Ok(WhichMessages { filter: MessageFilter { standing, ..filter }, when }),
        }
    }
}

/// An accepted message.
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

/// Number of messages that an action changed.
#[derive(Serialize, ToSchema)]
#[schema(as = ActedMessages)]
struct ActedBody {
    messages: u64,
    /// Number of legs to send ports.
    legs: u64,
    /// Whether nothing was changed, as requested.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    dry_run: bool,
}

impl From<AffectedCounts> for ActedBody {
    fn from(AffectedCounts { messages, legs }: AffectedCounts) -> Self {
        ActedBody { messages, legs, dry_run: false }
    }
}

/// A message.
#[derive(Serialize, ToSchema)]
#[schema(as = Message)]
pub(super) struct MessageBody {
    #[schema(value_type = String)]
    id: MessageId,
    #[schema(value_type = String)]
    exchange: Name,
    /// The receive port it came through; of a reply the send port.
    #[schema(value_type = String)]
    port: Name,
    /// `one_way`, `request` or `reply`.
    kind: &'static str,
    /// For a reply: the message that it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    answers: Option<MessageId>,
    /// The message that it is a part of, which was split or made of its parts.
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
    /// When a request expires without a reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
    /// When it was completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    ended_at: Option<Timestamp>,
    /// `delivered`, `answered`, `expired`, `ended` by an operator, `split` into others, `assembled` into one with others, or of a reply `late` or `wrong`.
    #[serde(skip_serializing_if = "Option::is_none")]
    ending: Option<&'static str>,
    /// Why it is suspended as a whole: no route led it anywhere, or a step of its port's pipeline failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    suspended: Option<String>,
    /// Trace context of the message (W3C Trace Context).
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<TraceContextBody>,
    /// The id of the key that sent it, if it came through the API.
    #[serde(skip_serializing_if = "Option::is_none")]
    sender: Option<String>,
    legs: Vec<LegBody>,
    /// Attempts that failed and what was done to it, oldest first; not in lists. A first attempt that succeeds is in `legs`
    /// alone. The first 20 entries are kept, and the last 180.
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<Vec<HistoryEntryBody>>,
}

/// An attempt to send a message, or an act on it.
#[derive(Serialize, ToSchema)]
#[schema(as = HistoryEntry)]
struct HistoryEntryBody {
    /// Its number; where one is missing, entries were dropped.
    number: u32,
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    /// `sent`, `failed`, `backup`, `awaiting`, `suspended`, `resumed`, `edited`, `ended`, `expired`, `routed` or `replied`.
    act: &'static str,
    /// The send port.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    port: Option<Name>,
    /// The number of the attempt on its transport.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
    /// Whether the backup transport made it.
    on_backup: bool,
    /// The id of the key of the operator who did it.
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<String>,
    /// The description of that key.
    #[serde(skip_serializing_if = "Option::is_none")]
    by_name: Option<String>,
    /// The receiver's answer, or the reason.
    #[serde(skip_serializing_if = "String::is_empty")]
    text: String,
}

impl From<HistoryEntry> for HistoryEntryBody {
    fn from(entry: HistoryEntry) -> Self {
        let HistoryEntry { number, at, act, port, attempt, on_backup, by, text } = entry;
        let by = (!by.is_empty()).then(|| by.into());
        HistoryEntryBody { number, at, act: act.word(), port, attempt, on_backup, by, by_name: None, text: text.into() }
    }
}

/// A leg: delivery of a message to one send port.
#[derive(Serialize, ToSchema)]
#[schema(as = Leg)]
struct LegBody {
    /// The send port.
    #[schema(value_type = String)]
    port: Name,
    /// `waiting`, `awaiting` its later reply, `done`, `suspended` or `ended`.
    state: &'static str,
    /// Number of attempts on the present transport.
    attempts: u32,
    /// Whether it uses the backup transport.
    on_backup: bool,
    /// The receive port of the asynchronous reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    reply_through: Option<Name>,
    /// While waiting: the time of the next attempt. While awaiting: the timeout of the reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    due_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    tried_at: Option<Timestamp>,
    /// Last response of the receiver, or why there was none.
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
            context: stored.head.trace.map(|trace| TraceContextBody::from(*trace)),
            sender: (!stored.sender.is_empty()).then(|| stored.sender.into()),
            legs: stored.legs.into_iter().map(LegBody::from).collect(),
            history: None,
        }
    }
}

impl From<Leg> for LegBody {
    fn from(leg: Leg) -> Self {
        let is_due = matches!(leg.state, LegState::Waiting | LegState::Awaiting);
        LegBody {
            port: leg.port,
            state: leg.state.word(),
            attempts: leg.attempts,
            on_backup: leg.on_backup,
            reply_through: leg.through,
            due_at: is_due.then_some(leg.due_at),
            tried_at: leg.tried_at,
            said: leg.said,
        }
    }
}
