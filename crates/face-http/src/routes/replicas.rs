//! Administration of devices with replicas: devices, sessions and status.

use std::{str::FromStr, sync::Arc, time::Duration};

use axum::{
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use tocsin_model::id::StoredNumber;
use tocsin_service::{Page, Scope, page};
use tocsin_sync::{devices::NewDevice, sessions::Session};
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, JsonBody, PageParameters, Parameters, Segments},
    responses::{Failures, json, located},
    wire::{
        List,
        sync::{NewDeviceBody, PoolBody, ReplicaDeviceBody, SessionBody, SyncStatusBody},
    },
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(status))
        .routes(routes!(list, make))
        .routes(routes!(remove))
        .routes(routes!(wipe))
        .routes(routes!(sessions))
        .routes(routes!(history))
}

/// Status of sync: rows, devices, sessions and pools. Needs the scope `sync:read`.
#[utoipa::path(get, path = "/v1/sync/status", tag = "sync", responses((status = 200, body = SyncStatusBody), Failures))]
async fn status(State(app): State<Arc<App>>, Authorized(caller): Authorized) -> Result<Response, Failure> {
    caller.needs(Scope::SyncRead)?;
    let sync = app.sync()?;
    let counts = sync.counts();
    let body = SyncStatusBody {
        rows: counts.rows,
        removed: counts.removed,
        events_waiting: counts.raised,
        devices: sync.all_devices().len(),
        sessions: sync.active_sessions().len(),
        resting: sync.waiting_devices(),
        pools: sync.pools().into_iter().map(PoolBody::from).collect(),
    };
    Ok(json(StatusCode::OK, &body))
}

/// The devices that keep replicas, oldest first. Needs the scope `sync:read`.
#[utoipa::path(get, path = "/v1/sync/devices", tag = "sync", params(PageParameters), responses((status = 200, body = List<ReplicaDeviceBody>), Failures))]
async fn list(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<PageParameters>,
) -> Result<Response, Failure> {
    caller.needs(Scope::SyncRead)?;
    let limit = asked.limit()?;
    let after: Option<u32> = page::key_of(asked.after.as_deref())?;
    let devices =
        app.sync()?.all_devices().into_iter().filter(|device| after.is_none_or(|after| device.number > after));
    let page = Page::cut(devices.take(limit + 1).collect(), limit, |device| device.number.to_string());
    Ok(json(StatusCode::OK, &List::from(page.map(|device| ReplicaDeviceBody::new(&device, None)))))
}

/// Registers a device for a subscriber. Its token is returned only once. Needs the scope `sync:write`.
#[utoipa::path(post, path = "/v1/sync/devices", tag = "sync", request_body = NewDeviceBody, responses((status = 201, body = ReplicaDeviceBody), Failures))]
async fn make(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    JsonBody(asked): JsonBody<NewDeviceBody>,
) -> Result<Response, Failure> {
    caller.needs(Scope::SyncWrite)?;
    let NewDeviceBody { application, subscriber, name, collections, read_only, expires_in } = asked;
    let lasts = expires_in.map(Duration::from_secs);
    let new = NewDevice { application, subscriber, name, collections, may_write: !read_only, lasts };
    let (device, token) = app.sync()?.create_device(new).await?;
    let path = format!("/v1/sync/devices/{}", device.id);
    let body = ReplicaDeviceBody::new(&device, Some(token));
    let mut response = located(json(StatusCode::CREATED, &body), path);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Revokes the token of a device. Its edits remain. Needs the scope `sync:write`.
#[utoipa::path(delete, path = "/v1/sync/devices/{id}", tag = "sync", params(("id" = String, Path)), responses((status = 204), Failures))]
async fn remove(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(device): Segments<String>,
) -> Result<Response, Failure> {
    caller.needs(Scope::SyncWrite)?;
    app.sync()?.remove_device(&device).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Wipes a device: it deletes its replica at its next session, and gets no more rows. Needs the scope `sync:write`.
#[utoipa::path(post, path = "/v1/sync/devices/{id}/wipe", tag = "sync", params(("id" = String, Path)), responses((status = 200, body = ReplicaDeviceBody), Failures))]
async fn wipe(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(device): Segments<String>,
) -> Result<Response, Failure> {
    caller.needs(Scope::SyncWrite)?;
    let device = app.sync()?.wipe_device(&device).await?;
    Ok(json(StatusCode::OK, &ReplicaDeviceBody::new(&device, None)))
}

/// Lists active sessions, oldest first. Needs the scope `sync:read`.
#[utoipa::path(get, path = "/v1/sync/sessions", tag = "sync", params(PageParameters), responses((status = 200, body = List<SessionBody>), Failures))]
async fn sessions(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<PageParameters>,
) -> Result<Response, Failure> {
    caller.needs(Scope::SyncRead)?;
    let limit = asked.limit()?;
    let after: Option<SessionKey> = page::key_of(asked.after.as_deref())?;
    let active = app.sync()?.active_sessions().into_iter();
    let active = active.filter(|session| after.as_ref().is_none_or(|after| SessionKey::of(session) > *after));
    let page = Page::cut(active.take(limit + 1).collect(), limit, |session| {
        let SessionKey(began, device) = SessionKey::of(session);
        format!("{began}.{device}")
    });
    Ok(json(StatusCode::OK, &List::from(page.map(SessionBody::from))))
}

/// Position of a session in the list: start in microseconds, and device number.
#[derive(PartialEq, PartialOrd)]
struct SessionKey(i64, u32);

impl SessionKey {
    fn of(session: &Session) -> SessionKey {
        SessionKey(session.began_at.0, session.device.number)
    }
}

impl FromStr for SessionKey {
    type Err = ();

    fn from_str(text: &str) -> Result<SessionKey, ()> {
        let (began, device) = text.split_once('.').ok_or(())?;
        Ok(SessionKey(began.parse().map_err(drop)?, device.parse().map_err(drop)?))
    }
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct HistoryParameters {
    /// Filter by device.
    #[serde(default)]
    device: Option<String>,
    /// Maximum number of results, 1 to 1,000; default 100.
    #[serde(default)]
    limit: Option<usize>,
    /// Cursor from the previous page.
    #[serde(default, alias = "after")]
    before: Option<String>,
}

/// Sessions that have ended, newest first. Needs the scope `sync:read`.
#[utoipa::path(get, path = "/v1/sync/history", tag = "sync", params(HistoryParameters), responses((status = 200, body = List<SessionBody>), Failures))]
async fn history(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<HistoryParameters>,
) -> Result<Response, Failure> {
    caller.needs(Scope::SyncRead)?;
    let limit = page::limit(asked.limit)?;
    let before = page::key_of(asked.before.as_deref())?.map(|StoredNumber(number)| number);
    let found = app.sync()?.past_sessions(asked.device.as_deref(), before, limit + 1).await?;
    let page = Page::cut(found, limit, |(number, ..)| number.to_string());
    Ok(json(StatusCode::OK, &List::from(page.map(|(_, device, past)| SessionBody::past(device, past)))))
}
