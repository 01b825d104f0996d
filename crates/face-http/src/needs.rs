//! Access requirements of the routes, in one table. It decides before the body is read; the API description and the
//! page of scopes are generated from it.
//!
//! The service checks scopes as well, and more precisely where the request decides: a dry run needs fewer, a preview
//! for a stored subscriber more.

use std::{collections::HashMap, fmt::Write, sync::LazyLock};

use axum::{
    body::HttpBody,
    extract::{MatchedPath, Query, RawPathParams, Request},
    http::{HeaderValue, Method, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use tocsin_model::{
    id::{IdError, NotificationBatchId, StoredNumber, SubscriberId},
    problem::{CredentialError, Problem},
};
use tocsin_service::{
    Caller,
    Scope::{self, *},
    ServiceError,
    resources::{Resource, Thing},
    roles::ROLES,
    trace::Subject,
};
use utoipa::openapi::{path::Operation, security::SecurityRequirement};

use crate::{
    app::State,
    audit,
    credential::{bind_request, bind_response},
    pages,
    problems::Failure,
    rate_limits::{Left, Partition, Peer, address},
    request::{authenticate, query_token, shown, visitor},
    scim,
    session_cookie::Transport,
};

/// Access requirement of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AccessRequirement {
    /// Nothing.
    Nothing,
    /// The token of a device.
    Device,
    /// Any valid key.
    AnyKey,
    /// A key with one of these scopes.
    Key(&'static [Scope]),
    /// A key with one of these scopes, or the session of any user. None of them: a session.
    User(&'static [Scope]),
    /// A key with one of these scopes, or an inbox token of the subscriber. None of them: any key.
    Visitor(&'static [Scope]),
}

use AccessRequirement::{AnyKey, Device, Key, Nothing, User, Visitor};

pub(crate) type Row = (&'static str, &'static str, AccessRequirement);

const APPLICATION: &str = "/v1/applications/{application}";
const ROWS: &str = "/v1/applications/{application}/collections/{collection}/rows";
const ROW: &str = "/v1/applications/{application}/collections/{collection}/rows/{id}";

/// Every documented route, by area as the routes are.
#[rustfmt::skip]
pub(crate) const NEEDS: &[Row] = &[
    ("GET", "/livez", Nothing),
    ("GET", "/readyz", Nothing),
    ("GET", "/metrics", Nothing),
    ("GET", "/confirm/{token}", Nothing),
    ("POST", "/confirm/{token}", Nothing),
    ("GET", "/unsubscribe/{token}", Nothing),
    ("POST", "/unsubscribe/{token}", Nothing),
    ("GET", "/p/{token}", Nothing),
    ("POST", "/p/{token}", Nothing),
    ("GET", "/v1/feedback/{application}/{channel}", Nothing),
    ("POST", "/v1/feedback/{application}/{channel}", Nothing),

    ("GET", "/v1/applications", Key(&[ApplicationsRead])),
    ("POST", "/v1/applications/check", Key(&[ApplicationsRead])),
    ("GET", APPLICATION, Key(&[ApplicationsRead])),
    ("PUT", APPLICATION, Key(&[ApplicationsWrite])),
    ("DELETE", APPLICATION, Key(&[ApplicationsWrite])),
    ("GET", "/v1/applications/{application}/history", Key(&[ApplicationsRead])),
    ("POST", "/v1/applications/{application}/rematch", Key(&[OperationsWrite])),
    ("POST", "/v1/applications/{application}/channels/probe", Key(&[OperationsWrite])),
    ("GET", "/v1/applications/{application}/rules", Key(&[ApplicationsRead])),
    ("POST", "/v1/applications/{application}/rules/test", Key(&[OperationsRead])),
    ("POST", "/v1/applications/{application}/backtests", Key(&[OperationsRead])),
    ("GET", "/v1/applications/{application}/backtests", Key(&[OperationsRead])),
    ("GET", "/v1/applications/{application}/backtests/{backtest}", Key(&[OperationsRead])),
    ("DELETE", "/v1/applications/{application}/backtests/{backtest}", Key(&[OperationsRead])),
    ("POST", "/v1/applications/{application}/rules/{rule}/stop", Key(&[OperationsWrite])),
    ("POST", "/v1/applications/{application}/rules/{rule}/resume", Key(&[OperationsWrite])),
    ("GET", "/v1/applications/{application}/unusable-subscriptions", Key(&[OperationsRead])),
    ("GET", "/v1/applications/{application}/unindexed-subscriptions", Key(&[OperationsRead])),
    ("GET", "/v1/applications/{application}/chronicles", Key(&[OperationsRead])),
    ("GET", "/v1/applications/{application}/chronicles/{class}/{chronicle}", Key(&[OperationsRead])),
    ("GET", "/v1/applications/{application}/destinations", Key(&[OperationsRead])),
    ("GET", "/v1/applications/{application}/mail-senders", Key(&[OperationsRead])),
    ("GET", "/v1/applications/{application}/schedules", Key(&[OperationsRead])),
    ("POST", "/v1/applications/{application}/schedules/{rule}/{schedule}/run", Key(&[OperationsWrite])),
    ("POST", "/v1/applications/{application}/schedules/{rule}/{schedule}/skip", Key(&[OperationsWrite])),
    ("GET", "/v1/applications/{application}/sources/{source}/rejected", Key(&[OperationsRead])),
    ("POST", "/v1/applications/{application}/sources/test", Key(&[OperationsRead])),
    ("GET", "/v1/applications/{application}/sources", Key(&[OperationsRead])),
    ("POST", "/v1/applications/{application}/preview", Key(&[OperationsRead])),
    ("POST", "/v1/applications/{application}/send-test", Key(&[OperationsWrite])),
    ("GET", "/v1/applications/{application}/web-push", Visitor(&[])),
    ("POST", "/v1/schedules/preview", AnyKey),

    ("POST", "/v1/applications/{application}/events", Key(&[EventsWrite])),
    ("POST", "/v1/applications/{application}/events/{class}", Key(&[EventsWrite])),

    ("GET", "/v1/subscribers", Key(&[SubscribersRead])),
    ("POST", "/v1/subscribers", Key(&[SubscribersWrite])),
    ("GET", "/v1/subscribers/{id}", Key(&[SubscribersRead])),
    ("PUT", "/v1/subscribers/{id}", Key(&[SubscribersWrite])),
    ("PATCH", "/v1/subscribers/{id}", Key(&[SubscribersWrite])),
    ("DELETE", "/v1/subscribers/{id}", Key(&[SubscribersWrite])),
    ("POST", "/v1/subscribers/{id}/verification-token", Key(&[SubscribersWrite])),
    ("PUT", "/v1/subscribers/{id}/devices/{device}", Key(&[SubscribersWrite])),
    ("DELETE", "/v1/subscribers/{id}/devices/{device}", Key(&[SubscribersWrite])),
    ("POST", "/v1/subscribers/{id}/merge", Key(&[SubscribersWrite])),
    ("GET", "/v1/subscribers/{id}/export", Key(&[SubscribersRead])),
    ("POST", "/v1/subscribers/{id}/erase", Key(&[SubscribersWrite])),

    ("GET", "/scim/v2/ServiceProviderConfig", Key(&[SubscribersRead, SubscribersWrite])),
    ("GET", "/scim/v2/ResourceTypes", Key(&[SubscribersRead, SubscribersWrite])),
    ("GET", "/scim/v2/ResourceTypes/{name}", Key(&[SubscribersRead, SubscribersWrite])),
    ("GET", "/scim/v2/Schemas", Key(&[SubscribersRead, SubscribersWrite])),
    ("GET", "/scim/v2/Schemas/{id}", Key(&[SubscribersRead, SubscribersWrite])),
    ("POST", "/scim/v2/.search", Key(&[SubscribersRead])),
    ("POST", "/scim/v2/Bulk", Key(&[SubscribersWrite])),
    ("GET", "/scim/v2/{resources}", Key(&[SubscribersRead])),
    ("POST", "/scim/v2/{resources}", Key(&[SubscribersWrite])),
    ("POST", "/scim/v2/{resources}/.search", Key(&[SubscribersRead])),
    ("GET", "/scim/v2/{resources}/{id}", Key(&[SubscribersRead])),
    ("PUT", "/scim/v2/{resources}/{id}", Key(&[SubscribersWrite])),
    ("PATCH", "/scim/v2/{resources}/{id}", Key(&[SubscribersWrite])),
    ("DELETE", "/scim/v2/{resources}/{id}", Key(&[SubscribersWrite])),

    ("GET", "/v1/segments", Key(&[SubscribersRead])),
    ("POST", "/v1/segments", Key(&[SubscribersWrite])),
    ("POST", "/v1/segments/preview", Key(&[SubscribersRead])),
    ("GET", "/v1/segments/{name}", Key(&[SubscribersRead])),
    ("PUT", "/v1/segments/{name}", Key(&[SubscribersWrite])),
    ("DELETE", "/v1/segments/{name}", Key(&[SubscribersWrite])),
    ("GET", "/v1/segments/{name}/members", Key(&[SubscribersRead])),
    ("GET", "/v1/segments/{name}/members/{subscriber}", Key(&[SubscribersRead])),
    ("GET", "/v1/segments/{name}/preview", Key(&[SubscribersRead])),

    ("GET", "/v1/subscriptions", Key(&[SubscribersRead])),
    ("POST", "/v1/subscriptions", Key(&[SubscribersWrite])),
    ("GET", "/v1/subscriptions/{id}", Key(&[SubscribersRead])),
    ("PUT", "/v1/subscriptions/{id}", Key(&[SubscribersWrite])),
    ("PATCH", "/v1/subscriptions/{id}", Key(&[SubscribersWrite])),
    ("DELETE", "/v1/subscriptions/{id}", Key(&[SubscribersWrite])),
    ("GET", "/v1/subscriptions/{id}/schedule", Key(&[SubscribersRead])),

    ("POST", "/v1/unsubscriptions", Key(&[SubscribersWrite])),
    ("POST", "/v1/unsubscriptions/undo", Key(&[SubscribersWrite])),

    ("POST", "/v1/consent/requests", Key(&[ConsentRequest, SubscribersWrite])),
    ("POST", "/v1/consent/confirmations", Key(&[ConsentRequest, SubscribersWrite])),
    ("POST", "/v1/consent/resends", Key(&[ConsentRequest, SubscribersWrite])),
    ("GET", "/v1/consent/key", Key(&[ConsentWrite])),
    ("GET", "/v1/subscriptions/{id}/consent", Key(&[SubscribersRead, SubscribersWrite])),
    ("POST", "/v1/subscriptions/{id}/consent/request", Key(&[SubscribersWrite])),
    ("POST", "/v1/subscriptions/{id}/consent/confirm", Key(&[SubscribersWrite, ConsentWrite])),
    ("POST", "/v1/subscriptions/{id}/consent/withdraw", Key(&[SubscribersWrite])),
    ("GET", "/v1/subscribers/{id}/consent", Key(&[SubscribersRead])),

    ("GET", "/v1/suppressions", Key(&[SubscribersRead])),
    ("POST", "/v1/suppressions/reports", Key(&[BouncesWrite])),
    ("GET", "/v1/feedback", Key(&[SubscribersRead])),
    ("POST", "/v1/feedback-mails", Key(&[BouncesWrite])),
    ("GET", "/v1/suppressions/addresses/{protocol}/{address}", Key(&[SubscribersRead])),
    ("PUT", "/v1/suppressions/addresses/{protocol}/{address}", Key(&[SubscribersWrite])),
    ("DELETE", "/v1/suppressions/addresses/{protocol}/{address}", Key(&[SubscribersWrite])),
    ("GET", "/v1/suppressions/channels/{application}/{channel}/{address}", Key(&[SubscribersRead])),
    ("DELETE", "/v1/suppressions/channels/{application}/{channel}/{address}", Key(&[SubscribersWrite])),
    ("GET", "/v1/suppressions/devices/{subscriber}/{device}", Key(&[SubscribersRead])),
    ("PUT", "/v1/suppressions/devices/{subscriber}/{device}", Key(&[SubscribersWrite])),
    ("DELETE", "/v1/suppressions/devices/{subscriber}/{device}", Key(&[SubscribersWrite])),

    ("POST", "/v1/import/subscribers", Key(&[SubscribersWrite])),
    ("POST", "/v1/import/subscriptions", Key(&[SubscribersWrite])),
    ("POST", "/v1/import/suppressions", Key(&[SubscribersWrite])),
    ("GET", "/v1/export/subscribers", Key(&[SubscribersRead])),
    ("GET", "/v1/export/subscriptions", Key(&[SubscribersRead])),
    ("GET", "/v1/export/suppressions", Key(&[SubscribersRead])),
    ("GET", "/v1/directory/export", Key(&[SubscribersRead])),
    ("POST", "/v1/directory/import", Key(&[SubscribersWrite])),
    ("GET", "/v1/directory/entries", Key(&[SubscribersRead])),
    ("GET", "/v1/directory/entries/{dn}", Key(&[SubscribersRead])),
    ("PUT", "/v1/directory/entries/{dn}", Key(&[SubscribersWrite])),
    ("PATCH", "/v1/directory/entries/{dn}", Key(&[SubscribersWrite])),
    ("DELETE", "/v1/directory/entries/{dn}", Key(&[SubscribersWrite])),
    ("POST", "/v1/directory/entries/{dn}/rename", Key(&[SubscribersWrite])),
    ("POST", "/v1/directory/entries/{dn}/password", Key(&[SubscribersWrite])),
    ("GET", "/v1/directory/schema", Key(&[SubscribersRead])),
    ("POST", "/v1/directory/access", Key(&[SubscribersRead])),

    ("GET", "/v1/exchanges", Key(&[ApplicationsRead])),
    ("GET", "/v1/exchanges/{exchange}", Key(&[ApplicationsRead])),
    // A dry run reads only.
    ("PUT", "/v1/exchanges/{exchange}", Key(&[ApplicationsWrite, ApplicationsRead])),
    ("DELETE", "/v1/exchanges/{exchange}", Key(&[ApplicationsWrite])),
    ("POST", "/v1/exchanges/check", Key(&[ApplicationsRead])),
    ("POST", "/v1/exchanges/{exchange}/route-test", Key(&[OperationsRead])),
    ("GET", "/v1/exchanges/{exchange}/locations", Key(&[OperationsRead])),
    ("GET", "/v1/exchanges/{exchange}/messages", Key(&[OperationsRead])),
    ("GET", "/v1/exchanges/{exchange}/tracking", Key(&[OperationsRead])),
    ("PUT", "/v1/exchanges/{exchange}/tracking", Key(&[OperationsWrite])),
    ("GET", "/v1/exchanges/{exchange}/flow", Key(&[OperationsRead])),
    ("PUT", "/v1/exchanges/{exchange}/flow", Key(&[OperationsWrite])),
    ("GET", "/v1/exchanges/{exchange}/flow/changes", Key(&[OperationsRead])),
    ("GET", "/v1/exchanges/{exchange}/send", Key(&[OperationsRead])),
    ("PUT", "/v1/exchanges/{exchange}/send/{port}/state", Key(&[OperationsWrite])),
    ("POST", "/v1/exchanges/{exchange}/receive/{port}", Key(&[MessagesWrite])),
    ("GET", "/v1/messages", Key(&[OperationsRead])),
    ("GET", "/v1/messages/{message}", Key(&[OperationsRead])),
    ("GET", "/v1/messages/{message}/body", Key(&[OperationsRead])),
    ("GET", "/v1/messages/{message}/original", Key(&[OperationsRead])),
    ("GET", "/v1/messages/{message}/tracked", Key(&[OperationsRead])),
    ("GET", "/v1/messages/{message}/tracked/{number}", Key(&[OperationsRead])),
    ("GET", "/v1/messages/{message}/reply", Key(&[MessagesWrite, OperationsRead])),
    ("POST", "/v1/messages/edit", Key(&[OperationsWrite])),
    ("POST", "/v1/messages/resume", Key(&[OperationsWrite])),
    ("POST", "/v1/messages/end", Key(&[OperationsWrite])),

    ("GET", "/v1/status", Key(&[OperationsRead])),
    ("GET", "/v1/attention", Key(&[OperationsRead])),
    ("GET", "/v1/reports", AnyKey),
    ("GET", "/v1/reports/{name}", Key(&[OperationsRead])),
    ("GET", "/v1/trace/{id}", Key(&[OperationsRead])),
    ("POST", "/v1/explain", Key(&[OperationsRead])),
    ("GET", "/v1/event-batches", Key(&[OperationsRead])),
    ("GET", "/v1/event-batches/{id}", Key(&[OperationsRead])),
    ("GET", "/v1/event-batches/{id}/events", Key(&[OperationsRead])),
    ("GET", "/v1/notification-batches", Key(&[OperationsRead])),
    ("GET", "/v1/notification-batches/{id}", Key(&[OperationsRead])),
    ("GET", "/v1/stream", Key(&[OperationsRead, SyncRead, AuditRead])),
    ("GET", "/v1/series", Key(&[OperationsRead])),
    ("GET", "/v1/series/names", AnyKey),
    ("GET", "/v1/events", Key(&[OperationsRead])),
    ("GET", "/v1/notifications", Key(&[OperationsRead])),
    ("GET", "/v1/notifications/{id}", Key(&[OperationsRead])),
    ("GET", "/v1/notifications/{id}/content", Key(&[OperationsRead])),
    ("GET", "/v1/previews/{id}/html", Key(&[OperationsRead])),
    ("GET", "/v1/preview-html/{id}", Key(&[OperationsRead])),
    ("GET", "/v1/suspensions", Key(&[OperationsRead])),
    ("GET", "/v1/suspensions/groups", Key(&[OperationsRead])),
    ("GET", "/v1/suspensions/{id}", Key(&[OperationsRead])),
    ("PUT", "/v1/suspensions/{id}/edit", Key(&[OperationsWrite])),
    ("POST", "/v1/suspensions/resume", Key(&[OperationsWrite])),
    ("POST", "/v1/suspensions/end", Key(&[OperationsWrite])),
    ("GET", "/v1/endpoints", Key(&[OperationsRead])),
    ("GET", "/v1/delayed-notifications", Key(&[OperationsRead])),
    ("POST", "/v1/delayed-notifications/cancel", Key(&[OperationsWrite])),
    ("GET", "/v1/firings", Key(&[OperationsRead])),
    ("POST", "/v1/firings/refire", Key(&[OperationsWrite])),
    ("POST", "/v1/firings/dismiss", Key(&[OperationsWrite])),
    ("GET", "/v1/slow-firings", Key(&[OperationsRead])),
    ("GET", "/v1/stopped-rules", Key(&[OperationsRead])),
    ("GET", "/v1/broadcasts", Key(&[BroadcastsRead])),
    ("POST", "/v1/broadcasts", Key(&[BroadcastsWrite])),
    ("POST", "/v1/broadcasts/count", Key(&[BroadcastsRead])),
    ("POST", "/v1/broadcasts/preview", Key(&[BroadcastsRead])),
    ("POST", "/v1/broadcasts/test", Key(&[BroadcastsWrite])),
    ("GET", "/v1/broadcasts/{broadcast}", Key(&[BroadcastsRead])),
    ("POST", "/v1/broadcasts/{broadcast}/pause", Key(&[BroadcastsWrite])),
    ("POST", "/v1/broadcasts/{broadcast}/resume", Key(&[BroadcastsWrite])),
    ("POST", "/v1/broadcasts/{broadcast}/cancel", Key(&[BroadcastsWrite])),
    ("GET", "/v1/broadcasts/{broadcast}/recipients", Key(&[BroadcastsRead])),
    ("GET", "/v1/broadcasts/{broadcast}/recipients/export", Key(&[BroadcastsRead])),
    ("GET", "/v1/resends", Key(&[OperationsRead])),
    ("POST", "/v1/resends", Key(&[OperationsWrite])),
    ("POST", "/v1/resends/preview", Key(&[OperationsRead])),
    ("GET", "/v1/resends/{id}", Key(&[OperationsRead])),
    ("GET", "/v1/switches", Key(&[OperationsRead])),
    ("POST", "/v1/switches/off", Key(&[OperationsWrite])),
    ("POST", "/v1/switches/on", Key(&[OperationsWrite])),
    ("GET", "/v1/drain", Key(&[OperationsRead])),
    ("PUT", "/v1/drain", Key(&[OperationsWrite])),
    ("DELETE", "/v1/drain", Key(&[OperationsWrite])),
    ("POST", "/v1/retention/run", Key(&[OperationsWrite])),
    // A backup contains all data.
    ("POST", "/v1/backups", Key(&[Admin])),
    ("GET", "/v1/backups", Key(&[OperationsRead])),
    ("POST", "/v1/backups/{name}/verify", Key(&[Admin])),
    ("GET", "/v1/restore-drills", Key(&[Admin])),
    ("POST", "/v1/restore-drills", Key(&[Admin])),
    ("GET", "/v1/restore-drills/{id}", Key(&[Admin])),
    ("POST", "/v1/capacity/plan", Key(&[OperationsRead])),
    ("GET", "/v1/capacity/vectors", Key(&[OperationsRead])),
    ("GET", "/v1/capacity/papers", Key(&[OperationsRead])),
    ("GET", "/v1/capacity/profile", Key(&[OperationsRead])),
    ("GET", "/v1/capacity/profiles", Key(&[OperationsRead])),
    ("GET", "/v1/capacity/profiles/{name}", Key(&[OperationsRead])),
    ("PUT", "/v1/capacity/profiles/{name}", Key(&[OperationsWrite])),
    ("DELETE", "/v1/capacity/profiles/{name}", Key(&[OperationsWrite])),
    ("GET", "/v1/configuration", Key(&[Admin])),
    ("GET", "/v1/doctor", Key(&[OperationsRead])),
    ("GET", "/v1/log", Key(&[Admin])),

    ("GET", "/v1/keys", Key(&[KeysWrite])),
    ("POST", "/v1/keys", Key(&[KeysWrite])),
    ("DELETE", "/v1/keys/{id}", Key(&[KeysWrite])),
    ("POST", "/v1/keys/{id}/rotate", Key(&[KeysWrite])),
    ("GET", "/v1/roles", AnyKey),

    ("GET", "/v1/search", AnyKey),
    ("GET", "/v1/audit", Key(&[AuditRead])),
    ("GET", "/v1/audit/export", Key(&[AuditRead])),

    ("GET", "/v1/session/options", Nothing),
    ("GET", "/v1/session", AnyKey),
    ("POST", "/v1/session", Nothing),
    ("DELETE", "/v1/session", User(&[])),
    ("POST", "/v1/session/reauthenticate", User(&[])),
    ("POST", "/v1/session/token", Nothing),
    ("GET", "/v1/session/oidc", Nothing),
    ("GET", "/v1/session/oidc/callback", Nothing),
    ("POST", "/v1/setup", Nothing),
    // Users read and end their own sessions, and read and change themselves, without a scope.
    ("GET", "/v1/sessions", User(&[UsersRead])),
    ("DELETE", "/v1/sessions/{id}", User(&[UsersWrite])),
    ("POST", "/v1/login-links", Key(&[UsersWrite])),
    ("GET", "/v1/users", Key(&[UsersRead])),
    ("POST", "/v1/users", Key(&[UsersWrite])),
    ("GET", "/v1/users/{name}", User(&[UsersRead])),
    ("PATCH", "/v1/users/{name}", User(&[UsersWrite])),
    ("DELETE", "/v1/users/{name}", Key(&[UsersWrite])),
    ("POST", "/v1/users/{name}/password", User(&[UsersWrite])),

    // Permission to mark includes permission to read.
    ("GET", "/v1/subscribers/{id}/inbox", Visitor(&[InboxRead, InboxWrite])),
    ("GET", "/v1/subscribers/{id}/inbox/stream", Visitor(&[InboxRead, InboxWrite])),
    ("GET", "/v1/subscribers/{id}/inbox/unread", Visitor(&[InboxRead, InboxWrite])),
    ("GET", "/v1/subscribers/{id}/inbox/{item}", Visitor(&[InboxRead, InboxWrite])),
    ("DELETE", "/v1/subscribers/{id}/inbox/{item}", Visitor(&[InboxWrite])),
    ("PUT", "/v1/subscribers/{id}/inbox/{item}/archived", Visitor(&[InboxWrite])),
    ("DELETE", "/v1/subscribers/{id}/inbox/{item}/archived", Visitor(&[InboxWrite])),
    ("PUT", "/v1/subscribers/{id}/inbox/{item}/read", Visitor(&[InboxWrite])),
    ("DELETE", "/v1/subscribers/{id}/inbox/{item}/read", Visitor(&[InboxWrite])),
    ("POST", "/v1/subscribers/{id}/inbox/mark", Visitor(&[InboxWrite])),
    ("POST", "/v1/subscribers/{id}/inbox/token", Key(&[InboxWrite])),
    ("GET", "/v1/applications/{application}/broadcasts", Key(&[InboxRead])),
    ("GET", "/v1/applications/{application}/broadcasts/{name}", Key(&[InboxRead])),
    ("PUT", "/v1/applications/{application}/broadcasts/{name}", Key(&[InboxWrite])),
    ("DELETE", "/v1/applications/{application}/broadcasts/{name}", Key(&[InboxWrite])),

    ("GET", "/v1/applications/{application}/collections", Key(&[SyncRead])),
    ("GET", ROWS, Key(&[SyncRead])),
    ("POST", ROWS, Key(&[SyncWrite])),
    ("GET", ROW, Key(&[SyncRead])),
    ("PUT", ROW, Key(&[SyncWrite])),
    ("PATCH", ROW, Key(&[SyncWrite])),
    ("DELETE", ROW, Key(&[SyncWrite])),
    ("GET", "/v1/applications/{application}/conflicts", Key(&[SyncRead])),
    ("POST", "/v1/applications/{application}/conflicts/{number}/revert", Key(&[SyncWrite])),
    ("GET", "/v1/sync/status", Key(&[SyncRead])),
    ("GET", "/v1/sync/history", Key(&[SyncRead])),
    ("GET", "/v1/sync/devices", Key(&[SyncRead])),
    ("POST", "/v1/sync/devices", Key(&[SyncWrite])),
    ("DELETE", "/v1/sync/devices/{id}", Key(&[SyncWrite])),
    ("POST", "/v1/sync/devices/{id}/wipe", Key(&[SyncWrite])),
    ("GET", "/v1/sync/sessions", Key(&[SyncRead])),
    ("POST", "/v1/sync/sessions", Device),
    ("DELETE", "/v1/sync/sessions/{id}", Device),
    ("GET", "/v1/sync/sessions/{id}/changes", Device),
    ("POST", "/v1/sync/sessions/{id}/changes", Device),
    ("GET", "/v1/sync/wait", Device),
];

/// Authorizes a request, or answers 401 or 403. The caller is stored with the request, so that it is looked up once.
pub(crate) async fn needs(state: State, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().cloned();
    let need = route.as_ref().and_then(|route| need(request.method(), route.as_str()));
    let let_in = match need {
        Some(AnyKey) => caller(&state, &request, &[]),
        Some(Key(scopes)) => caller(&state, &request, scopes),
        // Tokens are looked at where the route takes them; so is what else the service can say of the key.
        Some(User(scopes)) => user(&state, &request, scopes),
        // A token in the query counts, not the session of the browser.
        Some(Visitor(_)) if has_query_token(&request) => Ok(None),
        Some(Visitor(scopes)) => caller(&state, &request, scopes).or_else(|failure| match failure {
            ServiceError::Unauthenticated(..) => Ok(None),
            failure => Err(failure),
        }),
        Some(Nothing | Device) | None => Ok(None),
    };
    let left = count(&state, &request, route.as_ref().map(MatchedPath::as_str), need, &let_in);
    let let_in = match left.map_or(Ok(()), |left| left.check()) {
        Ok(()) => let_in,
        Err(refused) => Err(refused),
    };
    let mut response = admit(state, request, next, route, let_in).await;
    if let Some(left) = left {
        left.write(response.headers_mut());
    }
    response
}

/// Counts a request for its caller, or for its address without a valid key. Health checks are not counted.
fn count(
    state: &State,
    request: &Request,
    route: Option<&str>,
    need: Option<AccessRequirement>,
    let_in: &Result<Option<Caller>, ServiceError>,
) -> Option<Left> {
    if matches!(route, Some("/livez" | "/readyz")) {
        return None;
    }
    let limits = &state.rate_limits;
    let partition = match (let_in, need) {
        (Ok(Some(caller)), _) => Some(Partition::of(caller)),
        (Ok(None), Some(Device)) => {
            let token = shown(request.headers()).ok().flatten()?;
            state
                .sync
                .as_ref()
                .and_then(|sync| sync.device(token).ok())
                .map(|device| Partition::Device(device.id().into()))
        }
        (Ok(None), Some(Visitor(_))) => {
            let subscriber = visitor(state, request).ok().and_then(|visitor| visitor.subscriber());
            subscriber.map(|number| Partition::Subscriber(number.0))
        }
        _ => None,
    };
    limits.count(partition.unwrap_or_else(|| address(request)))
}

/// Why a body is not taken as it is packed: none is, but blocks of replicas, and messages, which pass as they are.
fn refuse_coding(request: &Request, route: Option<&str>) -> Option<Failure> {
    const PACKED: [&str; 2] = ["/v1/sync/sessions/{id}/changes", "/v1/exchanges/{exchange}/receive/{port}"];
    let coding = request.headers().get(header::CONTENT_ENCODING)?;
    let is_none = coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity");
    let is_taken = is_none || route.is_some_and(|route| PACKED.contains(&route)) || request.body().is_end_stream();
    (!is_taken).then(|| Failure::packed(&String::from_utf8_lossy(coding.as_bytes())))
}

/// Replaces the cookie of a session whose user got other roles.
async fn renew_cookie(state: &State, caller: &Caller, transport: Transport, response: &mut Response) {
    if response.headers().contains_key(header::SET_COOKIE) {
        return;
    }
    match state.service.renew_session(caller).await {
        Ok(Some(token)) => {
            response.headers_mut().append(header::SET_COOKIE, transport.set_cookie(&token));
        }
        Ok(None) => {}
        Err(error) => tracing::warn!(%error, "could not renew the token of a session; it stays valid"),
    }
}

/// Forwards an authorized request; otherwise returns the error.
async fn admit(
    state: State,
    mut request: Request,
    next: Next,
    route: Option<MatchedPath>,
    let_in: Result<Option<Caller>, ServiceError>,
) -> Response {
    let path = route.as_ref().map(|route| route.as_str().to_owned());
    let let_in = match (let_in, route) {
        (Ok(Some(caller)), Some(route)) if caller.is_limited() => {
            let (reach, path) = (reach(request.method(), route.as_str()), request.uri().path().to_owned());
            limit(&state, &mut request, &caller, reach, &path).await.map(|()| Some(caller))
        }
        (let_in, _) => let_in,
    };
    if let (Ok(_), Some(failure)) = (&let_in, refuse_coding(&request, path.as_deref())) {
        let is_scim = scim::is_scim_path(request.uri().path());
        let mut response = if is_scim { scim::failed(failure) } else { failure.into_response() };
        response.headers_mut().insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        return response;
    }
    let caller = let_in.as_ref().ok().and_then(Option::as_ref);
    let context = match audit::context(&state, &request, path.as_deref(), caller) {
        Ok(context) => context,
        Err(failure) if scim::is_scim_path(request.uri().path()) => return scim::failed(failure),
        Err(failure) => return failure.into_response(),
    };
    match let_in {
        Ok(Some(caller)) => {
            let from = request.extensions().get::<Peer>().map(|peer| peer.0.to_string());
            state.service.mark_key_used(&caller, from);
            let mut request = bind_request(&state, &caller, request);
            request.extensions_mut().insert(caller.clone());
            let transport = caller.session().and_then(|_| Transport::of_cookie(request.headers()));
            let mut response = audit::run(context, next.run(request)).await;
            if let Some(transport) = transport {
                renew_cookie(&state, &caller, transport, &mut response).await;
            }
            return bind_response(&state, &caller, response);
        }
        Ok(None) => {}
        Err(error) => {
            // A body that is still to arrive is not read: the connection ends after the response (RFC 9112, 9.6).
            let ends = matches!(error, ServiceError::Unauthenticated(..)) && !request.body().is_end_stream();
            let mut response = match scim::is_scim_path(request.uri().path()) {
                true => scim::refused(error),
                false if path.as_deref().is_some_and(pages::is_page) => {
                    pages::layout::Page::of(&state, request.headers(), None).failed(error)
                }
                false => Failure::from(error).into_response(),
            };
            if ends {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            return response;
        }
    }
    audit::run(context, next.run(request)).await
}

fn need(method: &Method, path: &str) -> Option<AccessRequirement> {
    static BY_PATH: LazyLock<HashMap<&str, Vec<Row>>> = LazyLock::new(|| {
        let mut by_path: HashMap<&str, Vec<Row>> = HashMap::new();
        for row in NEEDS {
            by_path.entry(row.1).or_default().push(*row);
        }
        by_path
    });
    let method = if *method == Method::HEAD { "GET" } else { method.as_str() };
    BY_PATH.get(path)?.iter().find(|row| row.0 == method).map(|row| row.2)
}

/// Source of the resource of a route, for keys limited to resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// It concerns no resource.
    Open,
    /// The application in the path.
    Application,
    /// The application in the path, or one of its sources; the service checks the source.
    Source,
    /// The exchange in the path.
    Exchange,
    /// The exchange and the port in the path.
    Port,
    /// The resource of the object with the id in the path.
    Thing,
    /// The container of the subscriber in the path.
    Subscriber,
    /// The application that the query names.
    ApplicationQuery,
    /// The exchange that the query names, and the port if it does.
    ExchangeQuery,
    /// The service looks at what the body names, or leaves out of a list what is not within.
    Service,
    /// It concerns all resources: no limited key may use it.
    All,
}

/// The use of a route by a limited key. It may use no route that is not named here.
fn reach(method: &Method, path: &str) -> Reach {
    if let Some(rest) = path.strip_prefix(APPLICATION) {
        return if rest == "/events" || rest == "/events/{class}" { Reach::Source } else { Reach::Application };
    }
    if let Some(rest) = path.strip_prefix("/v1/exchanges/{exchange}") {
        return if rest.contains("/{port}") { Reach::Port } else { Reach::Exchange };
    }
    match (method.as_str(), path) {
        (_, "/v1/schedules/preview" | "/v1/reports" | "/v1/roles" | "/v1/session" | "/v1/series/names") => Reach::Open,
        (_, "/v1/applications" | "/v1/applications/check" | "/v1/exchanges" | "/v1/exchanges/check" | "/v1/search") => {
            Reach::Service
        }
        // The directory limits the key to its containers.
        (_, "/v1/directory/schema") => Reach::Service,
        (_, "/v1/capacity/papers") => Reach::Open,
        (_, path) if path.starts_with("/v1/directory/entries") => Reach::Service,
        // A preview belongs to the key that made it.
        (_, "/v1/preview-html/{id}") => Reach::Service,
        (_, "/v1/switches" | "/v1/switches/off" | "/v1/switches/on") => Reach::Service,
        (_, "/v1/messages/edit" | "/v1/messages/resume" | "/v1/messages/end") => Reach::Service,
        (_, "/v1/suspensions/resume" | "/v1/suspensions/end" | "/v1/suspensions/groups") => Reach::Service,
        (_, "/v1/firings/refire" | "/v1/firings/dismiss") => Reach::Service,
        ("POST", "/v1/delayed-notifications/cancel") => Reach::Service,
        ("GET", "/v1/delayed-notifications") => Reach::ApplicationQuery,
        (_, path) if path.starts_with("/v1/consent/") => Reach::Service,
        ("POST", "/v1/resends" | "/v1/resends/preview" | "/v1/subscriptions") => Reach::Service,
        ("GET", "/v1/broadcasts") => Reach::ApplicationQuery,
        (_, path) if path.starts_with("/v1/broadcasts") => Reach::Service,
        (_, "/v1/keys" | "/v1/keys/{id}" | "/v1/keys/{id}/rotate") => Reach::Service,
        (_, "/v1/messages") => Reach::ExchangeQuery,
        ("GET", "/v1/subscriptions" | "/v1/suspensions" | "/v1/firings" | "/v1/slow-firings" | "/v1/stopped-rules")
        | (_, "/v1/endpoints" | "/v1/export/subscriptions") => Reach::ApplicationQuery,
        ("GET", "/v1/events" | "/v1/notifications" | "/v1/series" | "/v1/stream") => Reach::ApplicationQuery,
        (_, path) if path.starts_with("/v1/messages/{message}") => Reach::Thing,
        (_, path) if path.starts_with("/v1/event-batches/{id}") || path.starts_with("/v1/notification") => {
            if path.ends_with("batches") { Reach::All } else { Reach::Thing }
        }
        (_, path) if path.starts_with("/v1/suspensions/{id}") || path.starts_with("/v1/subscriptions/{id}") => {
            Reach::Thing
        }
        (_, "/v1/trace/{id}" | "/v1/previews/{id}/html") => Reach::Thing,
        (_, "/v1/explain") => Reach::Service,
        // These name another subscriber in the body.
        (_, "/v1/subscribers/{id}/merge" | "/v1/subscribers/{id}/verification-token") => Reach::All,
        (_, "/v1/subscribers/{id}/export" | "/v1/subscribers/{id}/erase") => Reach::All,
        (_, path) if path.starts_with("/v1/subscribers/{id}") => Reach::Subscriber,
        (_, "/v1/suppressions/devices/{subscriber}/{device}") => Reach::Subscriber,
        (_, "/v1/suppressions/channels/{application}/{channel}/{address}") => Reach::Application,
        _ => Reach::All,
    }
}

/// Restricts a limited key to its own resources. Other resources are reported as not found.
async fn limit(
    state: &State,
    request: &mut Request,
    caller: &Caller,
    reach: Reach,
    path: &str,
) -> Result<(), ServiceError> {
    use axum::RequestExt as _;
    let missing = || ServiceError::Missing(format!("`{path}`"));
    let found = request.extract_parts::<RawPathParams>().await;
    let segments = found.map_err(|_| missing())?;
    let segment = |name: &str| segments.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_owned());
    // An invalid name or id belongs to no other key; the route reports the error.
    let named = |name: &str| segment(name).and_then(|text| text.parse().ok());
    let resource = match reach {
        Reach::Open | Reach::Service => return Ok(()),
        Reach::All => return Err(caller.limited("this concerns things of all applications and exchanges")),
        Reach::Application => named("application").map(Resource::Application),
        Reach::Source => {
            let Some(application) = named("application") else { return Ok(()) };
            let is_within = |own: &Resource| match own {
                Resource::Application(name) | Resource::Source(name, _) => *name == application,
                _ => false,
            };
            return if caller.resources().iter().any(is_within) { Ok(()) } else { Err(missing()) };
        }
        Reach::Exchange => named("exchange").map(Resource::Exchange),
        Reach::Port => named("exchange").zip(named("port")).map(|(exchange, port)| Resource::Port(exchange, port)),
        Reach::ApplicationQuery => match queried(request, "application")?.as_slice() {
            [] => return Err(caller.limited("give `application`")),
            [name] => name.parse().ok().map(Resource::Application),
            _ => return Ok(()), // refused by the route: it is given twice
        },
        Reach::ExchangeQuery => {
            let (exchange, port) = (queried(request, "exchange")?, queried(request, "port")?);
            match (exchange.as_slice(), port.as_slice()) {
                ([], _) => return Err(caller.limited("give `exchange`")),
                ([exchange], []) => exchange.parse().ok().map(Resource::Exchange),
                ([exchange], [port]) => {
                    exchange.parse().ok().zip(port.parse().ok()).map(|(exchange, port)| Resource::Port(exchange, port))
                }
                _ => return Ok(()), // refused by the route: one is given twice
            }
        }
        Reach::Thing => {
            let text = segment("message").or_else(|| segment("id")).unwrap_or_default();
            match thing(path, &text) {
                Err(_) => None,
                Ok(None) => return Err(missing()),
                Ok(Some(thing)) => Some(state.service.resource_of(thing).await?.ok_or_else(missing)?),
            }
        }
        Reach::Subscriber => {
            let text = segment("id").or_else(|| segment("subscriber")).unwrap_or_default();
            let Ok(id) = text.parse::<SubscriberId>() else { return Ok(()) };
            Some(Resource::Container(state.container_of(&id).await?.ok_or_else(missing)?))
        }
    };
    match resource {
        Some(resource) if !caller.reaches(&resource) => Err(missing()),
        _ => Ok(()),
    }
}

/// The values of a parameter of the query.
fn queried(request: &Request, name: &str) -> Result<Vec<String>, ServiceError> {
    let pairs = Query::<Vec<(String, String)>>::try_from_uri(request.uri());
    let Query(pairs) =
        pairs.map_err(|_| ServiceError::from(Problem::syntax("query", "", "the query cannot be read")))?;
    Ok(pairs.into_iter().filter(|(known, _)| known == name).map(|(_, value)| value).collect())
}

/// The thing with this id below a path; `None`: a thing that belongs to no resource.
fn thing(path: &str, id: &str) -> Result<Option<Thing>, IdError> {
    Ok(Some(match path.split('/').nth(2).unwrap_or_default() {
        "messages" => Thing::Message(id.parse()?),
        "event-batches" => Thing::EventBatch(id.parse()?),
        "notification-batches" => Thing::NotificationBatch(id.parse()?),
        "notifications" => Thing::NotificationBatch(batch_of(id)?),
        "subscriptions" => Thing::Subscription(id.parse()?),
        "suspensions" => Thing::Suspension(id.parse::<StoredNumber>()?.0),
        _ => match Subject::read(id) {
            Ok(Subject::Event(id)) => Thing::EventBatch(id.batch),
            Ok(Subject::EventBatch(id)) => Thing::EventBatch(id),
            Ok(Subject::Notification(id)) => Thing::NotificationBatch(id.batch),
            Ok(Subject::NotificationBatch(id)) => Thing::NotificationBatch(id),
            Ok(Subject::Message(id)) => Thing::Message(id),
            Ok(Subject::Subscriber(_)) | Err(_) => return Ok(None),
        },
    }))
}

fn batch_of(id: &str) -> Result<NotificationBatchId, IdError> {
    Ok(id.parse::<tocsin_model::id::NotificationId>()?.batch)
}

/// Whether a request without a key has an inbox token in its query.
fn has_query_token(request: &Request) -> bool {
    let queried = || query_token(request.uri()).is_some();
    matches!(shown(request.headers()), Ok(None)) && queried()
}

/// Authenticates the caller; it must have one of these scopes, unless the list is empty.
fn caller(state: &State, request: &Request, scopes: &[Scope]) -> Result<Option<Caller>, ServiceError> {
    let caller = authenticate(state, request.method(), request.headers())?;
    match scopes.first() {
        Some(first) if scopes.iter().all(|scope| caller.needs(*scope).is_err()) => Err(ServiceError::Forbidden(*first)),
        _ => Ok(Some(caller)),
    }
}

/// Authenticates a user by its session, or a key with one of these scopes.
fn user(state: &State, request: &Request, scopes: &[Scope]) -> Result<Option<Caller>, ServiceError> {
    let caller = authenticate(state, request.method(), request.headers())?;
    match scopes.first() {
        _ if caller.session().is_some() => Ok(Some(caller)),
        None => {
            Err(ServiceError::Unauthenticated(CredentialError::Required, "this needs the session of a user, not a key"))
        }
        Some(first) if scopes.iter().all(|scope| caller.needs(*scope).is_err()) => Err(ServiceError::Forbidden(*first)),
        Some(_) => Ok(Some(caller)),
    }
}

/// Adds the required scopes to the description of a route, if the table contains it.
pub(crate) fn describe(method: &Method, path: &str, operation: &mut Operation) {
    let Some(need) = need(method, path) else { return };
    // A session has the scopes of its user, as a key has its own.
    let key = |scopes: &[&str]| ["key", "session"].map(|name| SecurityRequirement::new(name, scopes.iter().copied()));
    let with = |scopes: &[Scope]| match scopes {
        [] => key(&[]).to_vec(),
        scopes => scopes.iter().flat_map(|scope| key(&[scope.word()])).collect(),
    };
    operation.security = Some(match need {
        Nothing => vec![SecurityRequirement::default()],
        Device => vec![SecurityRequirement::new::<_, _, &str>("device", [])],
        AnyKey => with(&[]),
        Key(scopes) => with(scopes),
        User(scopes) => {
            let keys = scopes.iter().map(|scope| SecurityRequirement::new("key", [scope.word()]));
            keys.chain([SecurityRequirement::new::<_, _, &str>("session", [])]).collect()
        }
        Visitor(scopes) => {
            let mut all = with(scopes);
            all.push(SecurityRequirement::new::<_, _, &str>("inbox_token", []));
            all
        }
    });
}

/// `docs/reference/scopes.md`: the roles, the routes of each scope, and those that need none.
pub fn scopes_page() -> String {
    let mut page = "# Scopes, roles and resources\n\n\
        <!-- Generated from crates/face-http/src/needs.rs and crates/service/src/roles.rs; `make docs` writes it anew. -->\n\n\
        A key has scopes, and a user of the console has those of its roles. A request is answered 403 if its key or user \
        has none of those that its route needs, before its body is read, and 401 without a good credential. `admin` may \
        do everything that any scope may.\n\n\
        ## Resources\n\nA key may be limited to resources, for `tocsin keys create --resource`: it uses its scopes on these alone. \
        A thing of another resource is answered 404, as one that does not exist; a route that concerns all resources is \
        answered 403.\n\n\
        | resource | what it reaches |\n|---|---|\n\
        | `application:NAME` | an application, its events, batches, notifications, suspensions and subscriptions |\n\
        | `source:APPLICATION/NAME` | events that are submitted in the name of this source |\n\
        | `exchange:NAME` | an exchange, its ports and messages |\n\
        | `port:EXCHANGE/NAME` | a port of an exchange, and the messages that came through it |\n\
        | `container:DN` | the subscribers below a container of the directory, with their devices and inboxes |\n\n\
        ## Roles\n\nA role is a short word for a set of scopes, for `tocsin keys create --role`. The key keeps the scopes: \
        an update does not change what it may do.\n\n| role | for | scopes |\n|---|---|---|\n"
        .to_owned();
    for role in &ROLES {
        let words: Vec<String> = role.scopes.iter().map(|scope| format!("`{}`", scope.word())).collect();
        let _ = writeln!(page, "| `{}` | {} | {} |", role.name, role.about, words.join(", "));
    }
    for scope in Scope::ALL {
        let _ = write!(page, "\n## `{}`\n\n", scope.word());
        if scope == Admin {
            page.push_str("All routes, and alone:\n\n");
        }
        list(&mut page, |need| matches!(need, Key(scopes) | User(scopes) | Visitor(scopes) if scopes.contains(&scope)));
    }
    page.push_str("\n## A limited key cannot use\n\n");
    for (method, path, need) in NEEDS.iter().filter(|row| matches!(row.2, AnyKey | Key(_) | User([_, ..]) | Visitor(_)))
    {
        let method_of_row = Method::from_bytes(method.as_bytes()).expect("a method");
        if *need != Key(&[Admin]) && reach(&method_of_row, path) == Reach::All {
            let _ = writeln!(page, "- `{method} {path}`");
        }
    }
    page.push_str("\n## Any key\n\n");
    list(&mut page, |need| matches!(need, AnyKey | Visitor([])));
    page.push_str("\n## The session of any user, for itself\n\n");
    list(&mut page, |need| matches!(need, User(_)));
    page.push_str("\n## An inbox token of the subscriber, instead of a key\n\n");
    list(&mut page, |need| matches!(need, Visitor(_)));
    page.push_str("\n## The token of a device\n\n");
    list(&mut page, |need| need == Device);
    page.push_str("\n## Nothing\n\n");
    list(&mut page, |need| need == Nothing);
    page
}

fn list(page: &mut String, is_of: impl Fn(AccessRequirement) -> bool) {
    for (method, path, need) in NEEDS.iter().filter(|row| is_of(row.2)) {
        let others = match need {
            Key(scopes) | User(scopes) | Visitor(scopes) if scopes.len() > 1 => {
                let words: Vec<String> = scopes.iter().map(|scope| format!("`{}`", scope.word())).collect();
                format!(" ({})", words.join(" or "))
            }
            _ => String::new(),
        };
        let _ = writeln!(page, "- `{method} {path}`{others}");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_documented_route_is_in_the_table_once_and_every_row_is_a_route() {
        let document: serde_json::Value = serde_json::from_str(&crate::openapi_document()).expect("JSON");
        let paths = document["paths"].as_object().expect("paths");
        let documented: BTreeSet<(String, String)> = paths
            .iter()
            .flat_map(|(path, item)| {
                let methods = item.as_object().expect("operations").keys();
                methods.map(|method| (path.clone(), method.to_uppercase()))
            })
            .collect();
        let listed: Vec<_> = NEEDS.iter().map(|(method, path, _)| ((*path).to_owned(), (*method).to_owned())).collect();
        let rows: BTreeSet<_> = listed.iter().cloned().collect();
        assert_eq!(rows.len(), listed.len(), "a route is in the table twice");
        let missing: Vec<_> = documented.difference(&rows).collect();
        let gone: Vec<_> = rows.difference(&documented).collect();
        assert!(
            missing.is_empty() && gone.is_empty(),
            "say in needs.rs what these need: {missing:?}; no routes: {gone:?}"
        );
    }

    #[test]
    fn a8_every_route_that_names_a_resource_is_limited_by_it() {
        for (method, path, need) in NEEDS {
            if matches!(need, Nothing | Device) {
                continue;
            }
            let method = Method::from_bytes(method.as_bytes()).expect("a method");
            let reach = reach(&method, path);
            let expected: &[Reach] = match path {
                path if path.contains("{application}") => &[Reach::Application, Reach::Source],
                path if path.contains("{exchange}") && path.contains("{port}") => &[Reach::Port],
                path if path.contains("{exchange}") => &[Reach::Exchange],
                path if path.contains("{message}") => &[Reach::Thing],
                path if path.contains("/subscribers/{id}") || path.contains("{subscriber}") => {
                    &[Reach::Subscriber, Reach::All]
                }
                path if path.contains("/{id}") => &[Reach::Thing, Reach::All, Reach::Service],
                _ => &[Reach::Open, Reach::Service, Reach::All, Reach::ApplicationQuery, Reach::ExchangeQuery],
            };
            assert!(expected.contains(&reach), "{method} {path} is limited by {reach:?}");
        }
    }
}
