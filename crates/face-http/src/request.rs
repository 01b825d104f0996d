//! Extraction of request data: caller, body, path, query and conditions.

use std::{str::FromStr, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    extract::{FromRequest, FromRequestParts, Path, Query, Request},
    http::{HeaderMap, Method, StatusCode, Uri, header, request::Parts},
};
use bytes::BytesMut;
use futures_util::{Stream, StreamExt};
use serde::{Deserialize, de::DeserializeOwned};
use tocsin_directory::dn::Dn;
use tocsin_model::{
    id::{IdError, StoredNumber, SubscriberId},
    json::{VALUE_BYTES, check, without_mark},
    media_type,
    problem::{Code, CredentialError, Problem},
    trace_context::TraceContext,
};
use tocsin_service::{
    BoxError, Caller, RunMode, ServiceError, error::CredentialMisuse, inbox::InboxCaller, page, subscribers::Put,
};
use tocsin_sync::{Device, Replicas};
use tokio::{sync::OwnedSemaphorePermit, time::Instant};
use utoipa::IntoParams;

use crate::{
    app::App,
    body_errors::BODY_RATE_MIN,
    problems::{
        Failure, INCOMPLETE_BODY, MALFORMED_HEADER, MALFORMED_PATH, MALFORMED_QUERY, UNSUPPORTED_HEADER, body_failure,
    },
    session_cookie,
};

/// Maximum body of a single object.
pub(crate) const SINGLE_BYTES_MAX: usize = 1024 * 1024;
/// Maximum values and keys in the JSON body of a single object: a SCIM group has four for each member.
const SINGLE_VALUES_MAX: usize = 300_000;
/// Maximum body of an event batch.
pub(crate) const BATCH_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Bodies up to this size in memory do not count against the room for bodies.
const FREE_BYTES: usize = 64 * 1024;

/// A caller with a valid key.
pub(crate) struct Authorized(pub(crate) Caller);

impl FromRequestParts<Arc<App>> for Authorized {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Failure> {
        if let Some(caller) = parts.extensions.remove() {
            return Ok(Authorized(caller));
        }
        Ok(Authorized(authenticate(app, &parts.method, &parts.headers)?))
    }
}

/// The caller of a request, by its key or by the session in its cookie.
///
/// # Errors
/// `Unauthenticated`: there is no valid credential; `Misused`: there are two, or the request may be forged.
pub(crate) fn authenticate(app: &App, method: &Method, headers: &HeaderMap) -> Result<Caller, ServiceError> {
    match (shown(headers)?, session_cookie::token(headers)) {
        (Some(_), Some(_)) => Err(ServiceError::Misused(
            CredentialMisuse::Several,
            "the request has a key and the cookie of a session: send one of them",
        )),
        (Some(key), None) => app.service.authenticate(key),
        (None, Some(token)) => session_cookie::authenticate(app, method, headers, token),
        (None, None) => {
            Err(ServiceError::Unauthenticated(CredentialError::Required, "no key and no session was given"))
        }
    }
}

/// The `Idempotency-Key` header, if any.
pub(crate) fn idempotency_key(headers: &HeaderMap) -> Result<Option<&str>, Failure> {
    let mut keys = headers.get_all("idempotency-key").iter();
    match (keys.next(), keys.next()) {
        (None, _) => Ok(None),
        (Some(_), Some(_)) => {
            Err(Failure::new(MALFORMED_HEADER, "`Idempotency-Key` is given more than once: send one"))
        }
        (Some(key), None) => {
            key.to_str().map(Some).map_err(|_| Failure::new(MALFORMED_HEADER, "`Idempotency-Key` is not visible ASCII"))
        }
    }
}

/// The trace context of the request headers, if any.
pub(crate) fn trace_context(headers: &HeaderMap) -> Option<TraceContext> {
    let mut parents = headers.get_all("traceparent").iter();
    let parent = parents.next().filter(|_| parents.next().is_none())?.to_str().ok()?;
    // Several are one list (W3C, 3.3.1).
    let states: Vec<&str> = headers.get_all("tracestate").iter().filter_map(|state| state.to_str().ok()).collect();
    TraceContext::read(parent, Some(&states.join(",")))
}

/// The key in the headers, if any.
pub(crate) fn shown(headers: &HeaderMap) -> Result<Option<&str>, ServiceError> {
    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    if let Some(value) = given.next() {
        if given.next().is_some() {
            return Err(ServiceError::Unauthenticated(
                CredentialError::Malformed,
                "`Authorization` is given more than once: send it once",
            ));
        }
        let text = value.to_str().unwrap_or_default();
        return match text.split_at_checked(7) {
            Some((scheme, key)) if scheme.eq_ignore_ascii_case("bearer ") => Ok(Some(key.trim())),
            _ => Err(ServiceError::Unauthenticated(
                CredentialError::Malformed,
                "`Authorization` should be `Bearer` and a key",
            )),
        };
    }
    let mut keys = headers.get_all("x-api-key").iter();
    let key = keys.next().map(|key| key.to_str().unwrap_or_default().trim());
    match keys.next() {
        Some(_) => Err(ServiceError::Unauthenticated(
            CredentialError::Malformed,
            "`X-Api-Key` is given more than once: send it once",
        )),
        None => Ok(key),
    }
}

/// A caller with a valid key or inbox token: in the header, or the token as `?token=` where no header can be set.
pub(crate) struct InboxAccess(pub(crate) InboxCaller);

impl FromRequestParts<Arc<App>> for InboxAccess {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Failure> {
        Ok(InboxAccess(visitor_of(app, &parts.method, &parts.headers, &parts.uri)?))
    }
}

/// The inbox caller of a request.
///
/// # Errors
/// `Unauthenticated`: no valid key and no valid inbox token.
pub(crate) fn visitor(app: &App, request: &Request) -> Result<InboxCaller, ServiceError> {
    visitor_of(app, request.method(), request.headers(), request.uri())
}

fn visitor_of(app: &App, method: &Method, headers: &HeaderMap, uri: &Uri) -> Result<InboxCaller, ServiceError> {
    match (shown(headers)?, query_token(uri)) {
        // A session beside a key is an error.
        (Some(_), _) if session_cookie::token(headers).is_some() => {
            authenticate(app, method, headers).map(|caller| app.service.visitor_with_session(caller))
        }
        (Some(shown), _) => app.service.visitor(shown),
        // Proxies log URLs, so a key, which may never expire, is not accepted there.
        (None, Some(queried)) => app.service.visitor_of_address(queried),
        (None, None) if session_cookie::token(headers).is_some() => {
            authenticate(app, method, headers).map(|caller| app.service.visitor_with_session(caller))
        }
        (None, None) => {
            Err(ServiceError::Unauthenticated(CredentialError::Required, "no key and no inbox token was given"))
        }
    }
}

/// The inbox token in a query.
pub(crate) fn query_token(uri: &Uri) -> Option<&str> {
    let mut pairs = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(name, _)| *name == "token").map(|(_, token)| token)
}

/// A device, authenticated by its token.
pub(crate) struct DeviceCaller(pub(crate) Device);

impl FromRequestParts<Arc<App>> for DeviceCaller {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Failure> {
        let token = shown(&parts.headers)?
            .ok_or(ServiceError::Unauthenticated(CredentialError::Required, "no device token was given"))?;
        Ok(DeviceCaller(app.sync()?.device(token)?))
    }
}

impl App {
    /// Normalized DN of a subscriber's entry; `None`: no entry, or no directory in this process.
    pub(crate) async fn container_of(&self, id: &SubscriberId) -> Result<Option<String>, ServiceError> {
        let Some(options) = &self.scim else { return Ok(None) };
        let Some(number) = self.service.subscriber_number(id).await? else { return Ok(None) };
        let found = options.directory.numbered(vec![number.into()]).await;
        let found = found.map_err(|refusal| ServiceError::Unavailable(refusal.message.into()))?;
        Ok(found.first().map(|shown| shown.entry.key.clone()))
    }

    /// Resources that a key is to be limited to, with the names of containers in normal form.
    pub(crate) fn normal_resources(&self, resources: Vec<String>) -> Result<Vec<String>, ServiceError> {
        let normal = |(at, text): (usize, String)| {
            let Some(name) = text.strip_prefix("container:") else { return Ok(text) };
            let wrong = |message: String| {
                ServiceError::from(
                    Problem::new(Code::InvalidFormat, format!("resources[{at}]"), message).param("format", "resource"),
                )
            };
            let options = self.scim.as_ref();
            let directory =
                &options.ok_or_else(|| wrong("needs the directory: set `ldap.scim = true`".to_owned()))?.directory;
            let dn = Dn::parse(name).map_err(|error| wrong(format!("is no distinguished name: {error}")))?;
            Ok(format!("container:{}", directory.schema().normal_dn(&dn)))
        };
        resources.into_iter().enumerate().map(normal).collect()
    }

    /// The rows of devices.
    pub(crate) fn sync(&self) -> Result<&Arc<Replicas>, Failure> {
        let missing = || ServiceError::Missing("what devices keep replicas of".to_owned()).into();
        self.sync.as_ref().ok_or_else(missing)
    }
}

/// The parts of the path.
pub(crate) struct Segments<T>(pub(crate) T);

impl<T: DeserializeOwned + Send> FromRequestParts<Arc<App>> for Segments<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Failure> {
        match Path::<T>::from_request_parts(parts, app).await {
            Ok(Path(segments)) => Ok(Segments(segments)),
            Err(rejection) => {
                Err(Failure::new(MALFORMED_PATH, format!("the address cannot be read: {}", rejection.body_text())))
            }
        }
    }
}

/// The query.
pub(crate) struct Parameters<T>(pub(crate) T);

impl<T: DeserializeOwned + Send> FromRequestParts<Arc<App>> for Parameters<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Failure> {
        match Query::<T>::from_request_parts(parts, app).await {
            Ok(Query(parameters)) => Ok(Parameters(parameters)),
            Err(rejection) => {
                let text = rejection.body_text();
                let text = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(&text);
                Err(Failure::new(MALFORMED_QUERY, format!("the query cannot be read: {text}")))
            }
        }
    }
}

/// Parameter of an operation that can be counted before it is carried out.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DryRunParameters {
    /// Whether the operation is only checked and counted; default false.
    #[serde(default)]
    pub(crate) dry_run: bool,
}

impl DryRunParameters {
    /// The mode of the operation.
    pub(crate) fn mode(&self) -> RunMode {
        RunMode::of(self.dry_run)
    }
}

/// Page parameters of a list that is short as a whole.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WholeListParameters {
    /// Maximum number of results, 1 to 1,000; default all.
    #[serde(default)]
    pub(crate) limit: Option<usize>,
    /// Cursor from the previous page.
    #[serde(default)]
    pub(crate) after: Option<String>,
}

/// Page parameters of a list without other parameters.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct PageParameters {
    /// Maximum number of results, 1 to 1,000; default 100.
    #[serde(default)]
    pub(crate) limit: Option<usize>,
    /// Cursor from the previous page.
    #[serde(default)]
    pub(crate) after: Option<String>,
}

impl PageParameters {
    /// The validated limit.
    pub(crate) fn limit(&self) -> Result<usize, ServiceError> {
        page::limit(self.limit)
    }
}

/// Reads an id in the path.
pub(crate) fn id<T: FromStr<Err = IdError>>(text: &str) -> Result<T, Failure> {
    text.parse().map_err(|error: IdError| Failure::new(MALFORMED_PATH, error.to_string()))
}

/// Reads an id in the query.
pub(crate) fn query_id<T: FromStr<Err = IdError>>(text: &str) -> Result<T, Failure> {
    text.parse().map_err(|error: IdError| Failure::new(MALFORMED_QUERY, error.to_string()))
}

/// Reads an id in a member of the body.
pub(crate) fn member_id<T: FromStr<Err = IdError>>(member: &str, text: &str) -> Result<T, Failure> {
    text.parse().map_err(|error: IdError| {
        ServiceError::from(Problem::not(Code::InvalidFormat, member, error.expected).param("format", "id")).into()
    })
}

/// A body in memory, with its share of the memory for bodies.
pub(crate) struct BufferedBody {
    pub(crate) bytes: Bytes,
    pub(crate) room: BodyRoom,
}

/// Share of the memory for bodies; none for a small body.
pub(crate) type BodyRoom = Option<OwnedSemaphorePermit>;

/// Reads a whole body of at most `bytes_max`.
pub(crate) async fn take_body(
    app: &App,
    headers: &HeaderMap,
    body: Body,
    bytes_max: usize,
) -> Result<BufferedBody, Failure> {
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|length| length > bytes_max) {
        return Err(Failure::too_large(bytes_max));
    }
    let mut room = None;
    if let Some(length) = announced {
        reserve_room(app, &mut room, length)?;
    }
    let mut chunks = body.into_data_stream();
    let broken = |error: axum::Error| {
        body_failure(&error).unwrap_or_else(|| Failure::new(INCOMPLETE_BODY, "the body broke off"))
    };
    let first = match chunks.next().await {
        Some(chunk) => chunk.map_err(broken)?,
        None => Bytes::new(),
    };
    if announced == Some(first.len()) {
        return Ok(BufferedBody { bytes: first, room });
    }
    let arrival = BodyArrival { began: Instant::now(), pause_max: app.body_idle_timeout };
    let mut whole = BytesMut::with_capacity(announced.unwrap_or(first.len()).min(bytes_max));
    whole.extend_from_slice(&first);
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(broken)?;
        if whole.len() + chunk.len() > bytes_max {
            return Err(Failure::too_large(bytes_max));
        }
        arrival.check(whole.len() + chunk.len())?;
        reserve_room(app, &mut room, whole.len() + chunk.len())?;
        whole.extend_from_slice(&chunk);
    }
    if whole.len() > bytes_max {
        return Err(Failure::too_large(bytes_max));
    }
    Ok(BufferedBody { bytes: whole.freeze(), room })
}

/// Enforces the minimum rate of a body. Otherwise a client that sends a byte now and then would hold its connection and
/// memory for ever.
struct BodyArrival {
    began: Instant,
    pause_max: Duration,
}

impl BodyArrival {
    fn check(&self, bytes: usize) -> Result<(), Failure> {
        let allowed = self.pause_max + Duration::from_millis(bytes as u64 * 1000 / BODY_RATE_MIN);
        if self.began.elapsed() <= allowed {
            return Ok(());
        }
        Err(Failure::timeout(format!("the body arrives with less than {BODY_RATE_MIN} bytes a second: send it faster")))
    }
}

/// The body as a stream of its chunks.
pub(crate) fn stream_body(body: Body) -> impl Stream<Item = Result<Bytes, BoxError>> + Unpin {
    body.into_data_stream().map(|chunk| chunk.map_err(BoxError::from))
}

/// The media type without its parameters, in lower case; empty if none is given.
pub(crate) fn media_type(headers: &HeaderMap) -> String {
    let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    media_type::essence(given)
}

/// Reads a JSON body of one resource. Returns its bytes, so that the parsed value can borrow from them.
pub(crate) async fn json_body(app: &App, headers: &HeaderMap, body: Body) -> Result<BufferedBody, Failure> {
    json_body_of(app, headers, body, &["application/json"]).await
}

/// Like `json_body`, with other media types of JSON.
pub(crate) async fn json_body_of(
    app: &App,
    headers: &HeaderMap,
    body: Body,
    known: &[&str],
) -> Result<BufferedBody, Failure> {
    let given = media_type(headers);
    if !known.contains(&given.as_str()) {
        return Err(Failure::unsupported(&given, known));
    }
    let taken = take_body(app, headers, body, SINGLE_BYTES_MAX).await?;
    let mark = taken.bytes.len() - without_mark(&taken.bytes).len();
    let BufferedBody { bytes, room } = taken;
    let mut taken = BufferedBody { bytes: bytes.slice(mark..), room };
    taken.reserve_values(app, SINGLE_VALUES_MAX)?;
    Ok(taken)
}

impl BufferedBody {
    /// Reserves memory for a JSON body as a tree, before it is parsed. Small bodies need none.
    ///
    /// # Errors
    /// The body is nested too deeply, holds more than `values_max` values and keys, or there is no room now.
    pub(crate) fn reserve_values(&mut self, app: &App, values_max: usize) -> Result<(), Failure> {
        let values = check(&self.bytes, values_max).map_err(|problem| ServiceError::Invalid(vec![problem]))?;
        let bytes = self.bytes.len().saturating_add(values.saturating_mul(VALUE_BYTES));
        reserve_room(app, &mut self.room, bytes)
    }
}

/// Raises the reserved memory of a body to this number of bytes.
fn reserve_room(app: &App, room: &mut BodyRoom, bytes: usize) -> Result<(), Failure> {
    let requested = if bytes <= FREE_BYTES { 0 } else { bytes.div_ceil(1024) };
    let has = room.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
    if requested > has {
        let more = u32::try_from(requested - has).unwrap_or(u32::MAX);
        let more = app.body_room.clone().try_acquire_many_owned(more).map_err(|_| Failure::no_body_room())?;
        match room {
            Some(room) => room.merge(more),
            None => *room = Some(more),
        }
    }
    Ok(())
}

/// Reads a JSON object.
pub(crate) fn read_json<'de, T: serde::Deserialize<'de>>(bytes: &'de [u8]) -> Result<T, Failure> {
    if bytes.trim_ascii_start().starts_with(b"[") {
        return Err(ServiceError::from(
            Problem::new(Code::WrongType, "", "should be a JSON object with named members").param("expected", "object"),
        )
        .into());
    }
    serde_json::from_slice(bytes).map_err(|error| tocsin_service::error::json_error(&error).into())
}

/// A JSON body of one resource, buffered as a whole.
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Arc<App>> for JsonBody<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Failure> {
        let (headers, body) = parts(request);
        let taken = json_body(app, &headers, body).await?;
        read_json(&taken.bytes).map(JsonBody)
    }
}

/// A merge patch (RFC 7396), which may also be sent as `application/json`.
pub(crate) struct MergePatch(pub(crate) serde_json::Value);

impl FromRequest<Arc<App>> for MergePatch {
    type Rejection = Failure;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Failure> {
        let (headers, body) = parts(request);
        let taken = json_body_of(app, &headers, body, &["application/merge-patch+json", "application/json"]).await?;
        read_json(&taken.bytes).map(MergePatch)
    }
}

/// Takes headers and body apart.
pub(crate) fn parts(request: Request) -> (HeaderMap, Body) {
    let (parts, body) = request.into_parts();
    (parts.headers, body)
}

/// Precondition of `If-Match` and `If-None-Match` (RFC 9110, 13.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Condition {
    /// Nothing.
    None,
    /// `If-Match: *`: it must exist.
    Exists,
    /// `If-None-Match: *`: it must not exist.
    Absent,
    /// `If-Match: "<revision>"`.
    Revision(u64),
}

impl Condition {
    /// The precondition of a request; `present` returns the current revision, and is awaited only for several tags.
    pub(crate) async fn of<E: Into<Failure>>(
        headers: &HeaderMap,
        present: impl Future<Output = Result<u64, E>>,
    ) -> Result<Condition, Failure> {
        let (tags, others) = (tags_of(headers, &header::IF_MATCH), tags_of(headers, &header::IF_NONE_MATCH));
        let Some(tags) = tags else {
            return match others.as_deref().map(str::trim) {
                None => Ok(Condition::None),
                Some("*") => Ok(Condition::Absent),
                Some(_) => Err(Failure::new(UNSUPPORTED_HEADER, "`If-None-Match` knows only `*` here")),
            };
        };
        if others.is_some() {
            return Err(Failure::precondition("`If-Match` and `If-None-Match` do not hold together: give one of them"));
        }
        let tags = tags.trim();
        if tags == "*" {
            return Ok(Condition::Exists);
        }
        // A weak or foreign tag matches nothing (RFC 9110, 13.1.1).
        let revision = |tag: &str| {
            let digits = tag.trim().strip_prefix('"')?.strip_suffix('"')?;
            // Revisions begin at 1; 0 would mean that the resource must not exist.
            digits.parse::<StoredNumber>().ok().map(|StoredNumber(revision)| revision).filter(|revision| *revision > 0)
        };
        let revisions: Vec<u64> = tags.split(',').filter_map(revision).collect();
        let unmet = || Failure::precondition(format!("`{tags}` is not its tag"));
        match revisions.as_slice() {
            [] => Err(unmet()),
            [one] => Ok(Condition::Revision(*one)),
            several => match present.await.map_err(Into::<Failure>::into) {
                Ok(revision) if several.contains(&revision) => Ok(Condition::Revision(revision)),
                Ok(_) => Err(unmet()),
                Err(failure) if failure.status() == StatusCode::NOT_FOUND => Err(unmet()),
                Err(failure) => Err(failure),
            },
        }
    }

    /// The required revision, for routes where `If-None-Match` does not apply.
    pub(crate) async fn revision<E: Into<Failure>>(
        headers: &HeaderMap,
        present: impl Future<Output = Result<u64, E>>,
    ) -> Result<Option<u64>, Failure> {
        match Condition::of(headers, present).await? {
            Condition::None | Condition::Exists => Ok(None),
            Condition::Revision(revision) => Ok(Some(revision)),
            Condition::Absent => Err(Failure::precondition("it exists")),
        }
    }

    /// The write mode for a resource that may exist; `present` returns its current revision.
    pub(crate) async fn put(self, present: impl Future<Output = Result<u64, ServiceError>>) -> Result<Put, Failure> {
        Ok(match self {
            Condition::None => Put::Replace(None),
            Condition::Exists => Put::Replace(Some(present.await.map_err(|error| self.unmet(error))?)),
            Condition::Absent => Put::Create,
            Condition::Revision(revision) => Put::Replace(Some(revision)),
        })
    }

    /// Failure of a conditional change: the precondition failed, or an error of the service.
    pub(crate) fn unmet(self, error: ServiceError) -> Failure {
        match (self, error) {
            (Condition::Absent, ServiceError::Taken(what)) => Failure::precondition(format!("{what} exists")),
            (Condition::Exists | Condition::Revision(_), ServiceError::Missing(what)) => {
                Failure::precondition(format!("{what} does not exist"))
            }
            (_, error) => error.into(),
        }
    }
}

/// The tags of a header, which may stand in several lines.
pub(crate) fn tags_of(headers: &HeaderMap, name: &header::HeaderName) -> Option<String> {
    let lines: Vec<&str> = headers.get_all(name).iter().map(|line| line.to_str().unwrap_or_default()).collect();
    (!lines.is_empty()).then(|| lines.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_condition_is_met_by_one_of_its_tags() {
        let of = async |lines: &[(&'static str, &'static str)], present: Result<u64, ServiceError>| {
            let mut headers = HeaderMap::new();
            for (name, value) in lines {
                headers.append(*name, axum::http::HeaderValue::from_static(value));
            }
            let condition = Condition::of(&headers, std::future::ready(present)).await;
            condition.map_err(|failure| failure.status().as_u16())
        };
        let is = |value: &'static str| [("if-match", value)];
        assert_eq!(of(&[], Ok(7)).await, Ok(Condition::None));
        assert_eq!(of(&is("*"), Ok(7)).await, Ok(Condition::Exists));
        assert_eq!(of(&is("\"5\""), Ok(7)).await, Ok(Condition::Revision(5)), "what is stored decides");
        assert_eq!(of(&is("\"5\", \"7\" , \"none of ours\""), Ok(7)).await, Ok(Condition::Revision(7)));
        assert_eq!(of(&[("if-match", "\"5\""), ("if-match", "\"7\"")], Ok(7)).await, Ok(Condition::Revision(7)));
        assert_eq!(of(&is("\"5\", \"6\""), Ok(7)).await, Err(412));
        assert_eq!(of(&is("\"5\", \"6\""), Err(ServiceError::Missing("it".to_owned()))).await, Err(412));
        assert_eq!(of(&is("W/\"7\""), Ok(7)).await, Err(412), "weak tags match nothing");
        assert_eq!(of(&is("\"0\""), Ok(7)).await, Err(412), "nothing has the revision 0");
        assert_eq!(of(&[("if-none-match", "*")], Ok(7)).await, Ok(Condition::Absent));
        assert_eq!(of(&[("if-none-match", "\"7\"")], Ok(7)).await, Err(400));
        assert_eq!(of(&[("if-match", "*"), ("if-none-match", "*")], Ok(7)).await, Err(412));
    }

    #[test]
    fn a_key_is_given_once() {
        let key_of = |lines: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in lines {
                headers.append(*name, axum::http::HeaderValue::from_static(value));
            }
            shown(&headers).map(|key| key.map(str::to_owned)).map_err(drop)
        };
        assert_eq!(key_of(&[]), Ok(None));
        assert_eq!(key_of(&[("x-api-key", " k ")]), Ok(Some("k".to_owned())));
        assert_eq!(key_of(&[("x-api-key", "a"), ("x-api-key", "b")]), Err(()));
        assert_eq!(key_of(&[("authorization", "Bearer a")]), Ok(Some("a".to_owned())));
        assert_eq!(key_of(&[("authorization", "Bearer a"), ("authorization", "Bearer b")]), Err(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a20_a_body_that_drips_is_given_up() {
        let arrival = BodyArrival { began: Instant::now(), pause_max: Duration::from_secs(30) };
        for second in 1..=30 {
            tokio::time::advance(Duration::from_secs(1)).await;
            assert!(arrival.check(second).is_ok(), "the pause is not over after {second} s");
        }
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(arrival.check(31).is_err(), "a byte a second is too slow");
        assert!(arrival.check(1024).is_ok(), "a kilobyte earns a second more");
        tokio::time::advance(Duration::from_secs(600)).await;
        assert!(arrival.check(1024 * 600).is_err());
        assert!(arrival.check(1024 * 601).is_ok());
    }
}
