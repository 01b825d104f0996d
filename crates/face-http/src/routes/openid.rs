use std::sync::Arc;

use axum::{
    Extension,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use tocsin_http_server::host::own_address;
use tocsin_openid::{FinishedLogin, LoginRequest, OpenidError};
use tocsin_service::{
    ServiceError,
    sessions::{OpenedSession, OpenidUser, Proof},
};
use tocsin_store::audit::{ChangeContext, scope};
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::session::client;
use crate::{
    app::App,
    options::OpenidOptions,
    problems::Failure,
    rate_limits::Peer,
    request::Parameters,
    responses::Failures,
    session_cookie::{self, Transport},
};

/// Address that starts a login.
pub(super) const START: &str = "/v1/session/oidc";
const CALLBACK: &str = "/v1/session/oidc/callback";
const HOME: &str = "/console/";
const LOGIN: &str = "/console/login";

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(start)).routes(routes!(finish))
}

/// Query of the start of a login.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct StartParameters {
    /// Page of the console to open afterwards; default `/console/`.
    #[serde(default)]
    return_to: Option<String>,
    /// Whether the user of the present session authenticates again.
    #[serde(default)]
    reauthenticate: bool,
}

/// Query that the OpenID provider adds to the address of the callback.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct CallbackParameters {
    /// State of the login.
    #[serde(default)]
    state: String,
    /// Code to exchange for the ID token.
    #[serde(default)]
    code: Option<String>,
    /// Error of the provider.
    #[serde(default)]
    error: Option<String>,
}

/// Sends the browser to the OpenID provider for a login. A failure opens the login page with its code in `error`.
#[utoipa::path(get, path = "/v1/session/oidc", tag = "session", params(StartParameters), responses((status = 303, description = "To the provider"), Failures))]
async fn start(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    Parameters(asked): Parameters<StartParameters>,
) -> Result<Response, Failure> {
    let openid = openid(&app)?;
    let transport = Transport::of(&app, &headers)?;
    let request = LoginRequest {
        redirect_uri: format!("{}{CALLBACK}", base(&app, &headers)),
        return_to: asked.return_to.filter(|path| is_page(path)).unwrap_or_else(|| HOME.to_owned()),
        reauthenticates: asked.reauthenticate,
    };
    match openid.provider.start(request, app.service.now()).await {
        Ok(started) => Ok(redirect(&started.url, vec![transport.set_state(&started.state)])),
        Err(error) => Ok(failed(&openid_code(&error), Vec::new())),
    }
}

/// Finishes a login at the OpenID provider, and sets the cookie of the session. A failure opens the login page with its
/// code in `error`: `no_role`, `login_failed`, `openid_rejected`, `openid_unavailable` or `openid_invalid`.
#[utoipa::path(get, path = "/v1/session/oidc/callback", tag = "session", params(CallbackParameters), responses((status = 303, description = "To the console"), Failures))]
async fn finish(
    State(app): State<Arc<App>>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    Parameters(given): Parameters<CallbackParameters>,
) -> Result<Response, Failure> {
    let openid = openid(&app)?;
    let transport = Transport::of(&app, &headers)?;
    let now = app.service.now();
    // The login must have been started in this browser.
    if !transport.has_state(&headers, &given.state) {
        return Ok(failed(&openid_code(&OpenidError::UnknownState), Vec::new()));
    }
    let finished = match (given.code, given.error) {
        (Some(code), None) => openid.provider.finish(&given.state, &code, now).await,
        (_, error) => {
            openid.provider.cancel(&given.state, now);
            Err(OpenidError::Rejected(error.unwrap_or_default().chars().take(100).collect()))
        }
    };
    let opened = match finished {
        Ok(FinishedLogin { identity, request }) => {
            let client = client(peer, &headers);
            let opened = if request.reauthenticates {
                let token = session_cookie::token(&headers);
                let caller = token.ok_or(NO_SESSION).and_then(|token| app.service.authenticate_session(token));
                match caller {
                    Ok(caller) => app.service.reauthenticate(&caller, Proof::Openid(identity.subject), client).await,
                    Err(error) => Err(error),
                }
            } else {
                let roles = openid.provider.maps_roles().then_some(identity.roles);
                let user = OpenidUser {
                    subject: identity.subject,
                    name: identity.name,
                    display_name: identity.display_name,
                    email: identity.email,
                    roles,
                };
                let clock = app.service.clone();
                let context = ChangeContext::new("system", "session.oidc", Arc::new(move || clock.now()));
                scope(Arc::new(context), app.service.log_in_by_openid(user, client)).await
            };
            opened.map(|opened| (opened, request.return_to)).map_err(|error| Failure::from(error).code().to_owned())
        }
        Err(error) => {
            tracing::info!(%error, "a login through the OpenID provider failed");
            Err(openid_code(&error))
        }
    };
    let forget = transport.remove_state();
    Ok(match opened {
        Ok((OpenedSession { token, .. }, return_to)) => {
            redirect(&return_to, vec![forget, transport.set_cookie(&token)])
        }
        Err(code) => failed(&code, vec![forget]),
    })
}

const NO_SESSION: ServiceError = ServiceError::LoginFailed("there is no session");

fn openid(app: &App) -> Result<&OpenidOptions, ServiceError> {
    app.openid.as_ref().ok_or_else(|| ServiceError::Missing("an OpenID provider".to_owned()))
}

/// Address that ends the session at the provider.
pub(super) fn logout_url(app: &App) -> Option<String> {
    let base = app.public_origin.as_deref()?;
    app.openid.as_ref()?.provider.logout_url(&format!("{base}{LOGIN}"))
}

/// Origin under which the browser reaches this server.
fn base(app: &App, headers: &HeaderMap) -> String {
    let own = own_address(headers);
    if own.is_empty() { app.public_origin.clone().unwrap_or_default() } else { own }
}

/// Whether a path is a page of the console: no address of another server.
fn is_page(path: &str) -> bool {
    path.starts_with(HOME)
        && path.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'\\' | b'"' | b'<' | b'>'))
}

/// Code of a failure, for the login page.
fn openid_code(error: &OpenidError) -> String {
    let code = match error {
        OpenidError::Unavailable(_) => "openid_unavailable",
        OpenidError::Rejected(_) => "openid_rejected",
        OpenidError::UnknownState | OpenidError::InvalidToken(_) => "openid_invalid",
    };
    if let OpenidError::Unavailable(reason) = error {
        tracing::warn!(reason, "the OpenID provider cannot be used");
    }
    code.to_owned()
}

fn failed(code: &str, cookies: Vec<HeaderValue>) -> Response {
    redirect(&format!("{LOGIN}?error={code}"), cookies)
}

fn redirect(location: &str, cookies: Vec<HeaderValue>) -> Response {
    let Ok(location) = HeaderValue::try_from(location) else { return Failure::internal().into_response() };
    let mut response = StatusCode::SEE_OTHER.into_response();
    let headers = response.headers_mut();
    headers.insert(header::LOCATION, location);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    for cookie in cookies {
        headers.append(header::SET_COOKIE, cookie);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_returns_to_pages_of_the_console_only() {
        for page in ["/console/", "/console/events?x=1&y=%C3%A4", "/console/login#a"] {
            assert!(is_page(page), "{page}");
        }
        for other in [
            "",
            "/",
            "//evil.example",
            "/console",
            "https://evil.example/console/",
            "/\\evil.example",
            "/console/\r\nx",
        ] {
            assert!(!is_page(other), "{other}");
        }
    }
}
