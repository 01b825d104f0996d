//! The session of a user in a cookie: its name and attributes by transport, and the protection against cross-site
//! request forgery (CSRF). Every request with a cookie is checked here, whatever its route.
//!
//! Over TLS the cookie is `__Host-tocsin`, which browsers accept and send over TLS only. On a loopback host it is
//! `tocsin`. The server has no TLS of its own: it knows the transport by the `Origin` of the browser, by its public URL
//! and by the `Host`.

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header};
use tocsin_http_server::host::own_address;
use tocsin_service::{Caller, ServiceError, error::CredentialMisuse};

use crate::app::App;

/// Cookie over TLS.
const TLS_COOKIE: &str = "__Host-tocsin";
/// Cookie on a loopback host.
const LOOPBACK_COOKIE: &str = "tocsin";
/// Cookie that binds a login at the OpenID provider to its browser.
const STATE_COOKIES: [&str; 2] = ["__Host-tocsin-oidc", "tocsin-oidc"];
/// Lifetime of that cookie, in seconds.
const STATE_SECONDS: u32 = 600;
/// Header that every change with a cookie has.
const CSRF_HEADER: HeaderName = HeaderName::from_static("x-tocsin-csrf");
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Transport between the browser and this server, or a proxy before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Tls,
    /// Plain HTTP that does not leave the machine of the browser.
    Loopback,
}

impl Transport {
    /// The transport of a request that receives a cookie.
    ///
    /// # Errors
    /// Plain HTTP over a network, on which the cookie could be read.
    pub(crate) fn of(app: &App, headers: &HeaderMap) -> Result<Transport, ServiceError> {
        let is_https = match text(headers, header::ORIGIN) {
            Some(origin) => origin.to_ascii_lowercase().starts_with("https://"),
            None => app.is_https && own_address(headers).is_empty(),
        };
        if is_https {
            return Ok(Transport::Tls);
        }
        if own_address(headers).is_empty() {
            return Err(ServiceError::Misused(
                CredentialMisuse::InsecureTransport,
                "a login over plain HTTP is possible on this machine only: use https, or http://127.0.0.1",
            ));
        }
        Ok(Transport::Loopback)
    }

    /// The transport of the cookie that a request has.
    pub(crate) fn of_cookie(headers: &HeaderMap) -> Option<Transport> {
        [Transport::Tls, Transport::Loopback].into_iter().find(|transport| value(headers, transport.cookie()).is_some())
    }

    fn cookie(self) -> &'static str {
        match self {
            Transport::Tls => TLS_COOKIE,
            Transport::Loopback => LOOPBACK_COOKIE,
        }
    }

    /// `Set-Cookie` of a session.
    pub(crate) fn set_cookie(self, token: &str) -> HeaderValue {
        self.header(token, "")
    }

    /// `Set-Cookie` of a login at the OpenID provider. It is sent with the navigation back from there.
    pub(crate) fn set_state(self, state: &str) -> HeaderValue {
        self.cookie_of(self.state_cookie(), state, &format!("; Max-Age={STATE_SECONDS}"))
    }

    /// `Set-Cookie` that removes it.
    pub(crate) fn remove_state(self) -> HeaderValue {
        self.cookie_of(self.state_cookie(), "", "; Max-Age=0")
    }

    /// Whether the browser of a request started the login with this state.
    pub(crate) fn has_state(self, headers: &HeaderMap, state: &str) -> bool {
        value(headers, self.state_cookie()) == Some(state)
    }

    fn state_cookie(self) -> &'static str {
        match self {
            Transport::Tls => STATE_COOKIES[0],
            Transport::Loopback => STATE_COOKIES[1],
        }
    }

    fn header(self, token: &str, more: &str) -> HeaderValue {
        self.cookie_of(self.cookie(), token, more)
    }

    fn cookie_of(self, name: &str, value: &str, more: &str) -> HeaderValue {
        let secure = if self == Transport::Tls { "; Secure" } else { "" };
        let text = format!("{name}={value}; Path=/{secure}; HttpOnly; SameSite=Lax{more}");
        HeaderValue::try_from(text).expect("a token is a header value")
    }
}

/// `Set-Cookie` that removes the cookies which the request has.
pub(crate) fn removals(headers: &HeaderMap) -> Vec<HeaderValue> {
    let both = [Transport::Tls, Transport::Loopback];
    let present = both.into_iter().filter(|transport| value(headers, transport.cookie()).is_some());
    present.map(|transport| transport.header("", "; Max-Age=0")).collect()
}

/// The token of a session in the cookies. The cookie of plain HTTP counts on a loopback host only.
pub(crate) fn token(headers: &HeaderMap) -> Option<&str> {
    let on_loopback = || value(headers, LOOPBACK_COOKIE).filter(|_| !own_address(headers).is_empty());
    value(headers, TLS_COOKIE).or_else(on_loopback)
}

/// Authenticates the session of a cookie. A request that can change something must come from a page of this server.
///
/// # Errors
/// `Unauthenticated`: the session has ended; `Misused`: the request may be forged by another site.
pub(crate) fn authenticate(
    app: &App,
    method: &Method,
    headers: &HeaderMap,
    token: &str,
) -> Result<Caller, ServiceError> {
    let caller = app.service.authenticate_session(token)?;
    if !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) {
        if !is_same_origin(app, headers) {
            return Err(CROSS_ORIGIN);
        }
        let is_right = text(headers, CSRF_HEADER)
            .zip(caller.session())
            .is_some_and(|(given, session)| app.service.is_csrf_text(session, given));
        if !is_right {
            return Err(ServiceError::Misused(
                CredentialMisuse::CsrfToken,
                "a change with a session needs the header `X-Tocsin-CSRF` with `csrf` of `GET /v1/session`",
            ));
        }
    }
    Ok(caller)
}

/// Rejects a login that a page of another site sends (login CSRF). Programs other than browsers send neither header.
///
/// # Errors
/// `Misused`.
pub(crate) fn check_login(app: &App, headers: &HeaderMap) -> Result<(), ServiceError> {
    let is_browser = headers.contains_key(FETCH_SITE) || headers.contains_key(header::ORIGIN);
    if is_browser && !is_same_origin(app, headers) { Err(CROSS_ORIGIN) } else { Ok(()) }
}

const CROSS_ORIGIN: ServiceError = ServiceError::Misused(
    CredentialMisuse::CrossOrigin,
    "the request does not come from a page of this server; behind a proxy, set `http.public_url`",
);

/// Whether a page of this server sent the request.
fn is_same_origin(app: &App, headers: &HeaderMap) -> bool {
    if let Some(site) = headers.get(FETCH_SITE) {
        return site == "same-origin";
    }
    let Some(origin) = text(headers, header::ORIGIN).map(str::to_ascii_lowercase) else { return false };
    if app.public_origin.as_deref() == Some(origin.as_str()) {
        return true;
    }
    let authority = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
    let host = text(headers, header::HOST).map(str::to_ascii_lowercase);
    authority.is_some_and(|authority| !authority.is_empty() && host.as_deref() == Some(authority))
}

/// The origin of a URL, in lower case: scheme, host and port.
pub(crate) fn origin_of(url: &str) -> Option<String> {
    let url: Uri = url.parse().ok()?;
    Some(format!("{}://{}", url.scheme_str()?, url.authority()?.as_str()).to_ascii_lowercase())
}

/// The value of a cookie (RFC 6265, 5.4). A second one of the same name is not looked at.
fn value<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let fields = headers.get_all(header::COOKIE).into_iter().filter_map(|field| field.to_str().ok());
    let mut pairs = fields.flat_map(|field| field.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(found, value)| *found == name && !value.is_empty()).map(|(_, value)| value)
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().expect("a value"))).collect()
    }

    #[test]
    fn a_cookie_has_the_attributes_of_its_transport() {
        assert_eq!(Transport::Tls.set_cookie("t"), "__Host-tocsin=t; Path=/; Secure; HttpOnly; SameSite=Lax");
        assert_eq!(Transport::Loopback.set_cookie("t"), "tocsin=t; Path=/; HttpOnly; SameSite=Lax");
        let both = headers(&[("cookie", "a=b; tocsin=t"), ("host", "example.org")]);
        assert_eq!(removals(&both), ["tocsin=; Path=/; HttpOnly; SameSite=Lax; Max-Age=0"]);
    }

    #[test]
    fn the_cookie_of_plain_http_counts_on_a_loopback_host_only() {
        for (host, cookie, expected) in [
            ("127.0.0.1:8480", "tocsin=t", Some("t")),
            ("localhost", "a=b; tocsin=t; c", Some("t")),
            ("example.org", "tocsin=t", None),
            ("192.0.2.1:8480", "tocsin=t", None),
            ("example.org", "__Host-tocsin=t; tocsin=u", Some("t")),
            ("example.org", "__Host-tocsin=; x=tocsin", None),
            ("localhost", "xtocsin=t", None),
        ] {
            assert_eq!(token(&headers(&[("host", host), ("cookie", cookie)])), expected, "{host} {cookie}");
        }
    }

    #[test]
    fn an_origin_has_scheme_host_and_port() {
        assert_eq!(origin_of("https://Tocsin.Example:8443/x"), Some("https://tocsin.example:8443".to_owned()));
        assert_eq!(origin_of("tocsin"), None);
    }
}
