use std::{net::IpAddr, sync::Arc};

use axum::{
    Extension,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use tocsin_model::problem::Problem;
use tocsin_service::{
    Caller, ServiceError,
    error::CredentialMisuse,
    sessions::{LoginClient, OpenedSession, Proof},
    users::NewUser,
};
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    rate_limits::Peer,
    request::{Authorized, JsonBody, Parameters, Segments},
    responses::{Failures, json},
    session_cookie::{self, Transport},
    wire::{
        List,
        users::{
            LoginBody, LoginLinkBody, LoginTokenBody, NewLoginLinkBody, OidcOptionsBody, ReauthenticationBody,
            ServerBody, SessionBody, SessionOptionsBody, SetupBody, UserSessionBody,
        },
    },
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(options))
        .routes(routes!(read, log_in, log_out))
        .routes(routes!(reauthenticate))
        .routes(routes!(log_in_by_link))
        .routes(routes!(set_up))
        .routes(routes!(list))
        .routes(routes!(end))
        .routes(routes!(make_link))
}

/// Possible logins, and whether the first user must be created.
#[utoipa::path(get, path = "/v1/session/options", tag = "session", responses((status = 200, body = SessionOptionsBody), Failures))]
async fn options(State(app): State<Arc<App>>) -> Response {
    let is_only = app.openid.as_ref().is_some_and(|openid| openid.only);
    let body = SessionOptionsBody {
        setup_required: app.service.is_setup_required() && !is_only,
        password: !is_only,
        oidc: app
            .openid
            .as_ref()
            .map(|openid| OidcOptionsBody { name: openid.name.clone(), start_url: super::openid::START.to_owned() }),
    };
    private(json(StatusCode::OK, &body))
}

/// The caller: a user with a session, or a key.
#[utoipa::path(get, path = "/v1/session", tag = "session", responses((status = 200, body = SessionBody), Failures))]
async fn read(State(app): State<Arc<App>>, Authorized(caller): Authorized) -> Response {
    let body = session_body(&app, &caller);
    private(json(StatusCode::OK, &body))
}

/// Logs in with name and password, and sets the cookie of the session. Ten failures within 15 minutes lock the name for
/// the network of the client (429 `login_locked`).
#[utoipa::path(post, path = "/v1/session", tag = "session", request_body = LoginBody, responses((status = 200, body = SessionBody), Failures))]
async fn log_in(
    State(app): State<Arc<App>>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    JsonBody(login): JsonBody<LoginBody>,
) -> Result<Response, Failure> {
    let transport = login_transport(&app, &headers)?;
    reject_passwords(&app)?;
    let opened = app.service.log_in(&login.name, login.password, client(peer, &headers)).await?;
    Ok(opened_session(&app, StatusCode::OK, transport, opened))
}

/// Ends the session of the caller, and removes its cookie.
#[utoipa::path(delete, path = "/v1/session", tag = "session", responses((status = 204), Failures))]
async fn log_out(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    app.service.log_out(&caller).await?;
    let mut response = StatusCode::NO_CONTENT.into_response();
    for removal in session_cookie::removals(&headers) {
        response.headers_mut().append(header::SET_COOKIE, removal);
    }
    Ok(response)
}

/// Proves the identity of the user again, by the password or by the token of a login link. Creating keys and users,
/// removing an application and other operations demand a proof from the last ten minutes (403
/// `reauthentication_required`). The session has another token afterwards.
#[utoipa::path(post, path = "/v1/session/reauthenticate", tag = "session", request_body = ReauthenticationBody, responses((status = 200, body = SessionBody), Failures))]
async fn reauthenticate(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    JsonBody(given): JsonBody<ReauthenticationBody>,
) -> Result<Response, Failure> {
    let transport = login_transport(&app, &headers)?;
    let proof = match (given.password, given.token) {
        (Some(password), None) => {
            reject_passwords(&app)?;
            Proof::Password(password)
        }
        (None, Some(token)) => Proof::Link(token),
        _ => return Err(ServiceError::from(Problem::required("password").hint("give `password` or `token`")).into()),
    };
    let renewed = app.service.reauthenticate(&caller, proof, client(peer, &headers)).await?;
    Ok(opened_session(&app, StatusCode::OK, transport, renewed))
}

/// Logs in with the token of a login link, once, and sets the cookie of the session.
#[utoipa::path(post, path = "/v1/session/token", tag = "session", request_body = LoginTokenBody, responses((status = 200, body = SessionBody), Failures))]
async fn log_in_by_link(
    State(app): State<Arc<App>>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    JsonBody(given): JsonBody<LoginTokenBody>,
) -> Result<Response, Failure> {
    let transport = login_transport(&app, &headers)?;
    let opened = app.service.log_in_by_link(&given.token, client(peer, &headers)).await?;
    Ok(opened_session(&app, StatusCode::OK, transport, opened))
}

/// Creates the first user with the role `admin`, by the token that `tocsin serve` prints, and logs it in. A rejected
/// request leaves the token in force.
#[utoipa::path(post, path = "/v1/setup", tag = "session", request_body = SetupBody, responses((status = 201, body = SessionBody), Failures))]
async fn set_up(
    State(app): State<Arc<App>>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    JsonBody(setup): JsonBody<SetupBody>,
) -> Result<Response, Failure> {
    let transport = login_transport(&app, &headers)?;
    let SetupBody { token, name, password, display_name, email, language, time_zone } = setup;
    let password = Some(password);
    let new = NewUser { name, display_name, email, password, language, time_zone, ..NewUser::default() };
    let opened = app.service.set_up(&token, new, client(peer, &headers)).await?;
    Ok(opened_session(&app, StatusCode::CREATED, transport, opened))
}

/// Query of the list of sessions.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SessionFilter {
    /// Login name; default: all users with the scope `users:read`, otherwise the user of the caller.
    #[serde(default)]
    user: Option<String>,
}

/// Sessions that have not ended, oldest first. Users list their own without a scope.
#[utoipa::path(get, path = "/v1/sessions", tag = "session", params(SessionFilter), responses((status = 200, body = List<UserSessionBody>), Failures))]
async fn list(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(filter): Parameters<SessionFilter>,
) -> Result<Response, Failure> {
    let current = caller.session().map(|session| &*session.id);
    let sessions = app.service.sessions(&caller, filter.user.as_deref())?;
    let items = sessions.into_iter().map(|session| UserSessionBody::of(session, current)).collect();
    Ok(json(StatusCode::OK, &List { items, next: None }))
}

/// Ends a session at once. Users end their own without a scope.
#[utoipa::path(delete, path = "/v1/sessions/{id}", tag = "session", params(("id" = String, Path)), responses((status = 204), Failures))]
async fn end(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(id): Segments<String>,
) -> Result<Response, Failure> {
    app.service.end_session(&caller, &id).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Makes a one-time link: a login link for a user, or a setup link while there is no user. A caller makes links for users
/// whose scopes it has. A new link replaces the earlier one of its user.
#[utoipa::path(post, path = "/v1/login-links", tag = "session", request_body = NewLoginLinkBody, responses((status = 201, body = LoginLinkBody), Failures))]
async fn make_link(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    JsonBody(asked): JsonBody<NewLoginLinkBody>,
) -> Result<Response, Failure> {
    let link = app.service.make_login_link(&caller, asked.user.as_deref())?;
    app.service.record_login_link(asked.user.as_deref()).await?;
    Ok(private(json(StatusCode::CREATED, &LoginLinkBody::from(link))))
}

/// Checks that a login comes from a page of this server, over a transport that can carry its cookie.
fn login_transport(app: &App, headers: &HeaderMap) -> Result<Transport, Failure> {
    session_cookie::check_login(app, headers)?;
    Ok(Transport::of(app, headers)?)
}

/// Rejects passwords where users log in through the OpenID provider only.
fn reject_passwords(app: &App) -> Result<(), ServiceError> {
    match &app.openid {
        Some(openid) if openid.only => Err(ServiceError::Misused(
            CredentialMisuse::PasswordsDisabled,
            "users log in through the OpenID provider; `tocsin console open` prints a link for an emergency",
        )),
        _ => Ok(()),
    }
}

pub(super) fn client(peer: Option<Extension<Peer>>, headers: &HeaderMap) -> LoginClient {
    let agent = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok()).map(str::to_owned);
    let address: Option<IpAddr> = peer.map(|Extension(Peer(address))| address);
    LoginClient { address, user_agent: agent }
}

fn opened_session(app: &App, status: StatusCode, transport: Transport, opened: OpenedSession) -> Response {
    let mut response = json(status, &session_body(app, &opened.caller));
    response.headers_mut().insert(header::SET_COOKIE, transport.set_cookie(&opened.token));
    private(response)
}

fn session_body(app: &App, caller: &Caller) -> SessionBody {
    let service = &app.service;
    let own = service.own_session(caller);
    let user = own.as_ref().map(|own| &own.user);
    let name = user.map_or_else(|| caller.key().to_owned(), |user| user.name.clone());
    SessionBody {
        kind: if own.is_some() { "user" } else { "key" },
        display_name: service.key_name(caller.key()).unwrap_or_else(|| name.clone()),
        name,
        roles: user.map(|user| user.roles.clone()).unwrap_or_default(),
        scopes: caller.scope_words(),
        resources: caller.resources().iter().map(ToString::to_string).collect(),
        csrf: caller.session().map(|session| service.csrf_text(session)),
        language: user.and_then(|user| user.language.clone()),
        time_zone: user.and_then(|user| user.time_zone.clone()),
        has_password: user.is_some_and(|user| user.password.is_some()),
        reauthenticated_until: own.as_ref().map(|own| own.reauthenticated_until),
        expires_at: own.as_ref().map_or_else(|| caller.expires_at(), |own| Some(own.expires_at)),
        logout_url: user.filter(|user| user.oidc_subject.is_some()).and_then(|_| super::openid::logout_url(app)),
        session_id: own.as_ref().map(|own| own.id.clone()),
        server: ServerBody {
            version: service.version(),
            instance: service.instance().to_owned(),
            directory: app.scim.is_some() || app.directory.is_some(),
            exchange: service.has_exchanges(),
            sync: app.sync.is_some(),
            notifybc: app.has_notifybc,
        },
    }
}

/// A response that no cache stores.
fn private(mut response: Response) -> Response {
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
