//! Identity of a request: gathers the facts that the rules of `tocsin-notifybc` decide on.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderValue, Uri, header};
use tocsin_model::time::Timestamp;
use tocsin_notifybc::{
    identity::{ANONYMOUS_HEADER, Facts, SITE_MINDER_HEADERS, bearer_token, client_address, identify, request_origin},
    query::Params,
};
use tocsin_service::notifybc::{Notifybc, NotifybcError, RequestContext};

use crate::oidc::KeySet;

/// Facts of a connection.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    /// Address of the peer.
    pub(crate) address: IpAddr,
    /// Common name of a client certificate that verifies.
    pub(crate) certificate_name: Option<String>,
    /// Whether the connection uses TLS.
    pub(crate) is_tls: bool,
}

/// The context of a request: identity, client address, and base URL.
pub(crate) async fn context(
    notifybc: &Notifybc,
    keys: Option<&KeySet>,
    peer: &Peer,
    headers: &HeaderMap,
    uri: &Uri,
    now: Timestamp,
) -> Result<RequestContext, NotifybcError> {
    let configuration = notifybc.configuration();
    let forwarded = joined(headers, "x-forwarded-for");
    let address = client_address(&configuration.trusted_proxies, peer.address, forwarded.as_deref());
    let authorization = text(headers, header::AUTHORIZATION.as_str());
    let claims = match (keys, authorization.and_then(bearer_token)) {
        (Some(keys), Some(token)) => keys.claims(token, now),
        _ => None,
    };
    let administrator = match access_token(authorization, uri) {
        Some(token) => notifybc.administrator_of_token(&token).await?,
        None => None,
    };
    let site_minder = SITE_MINDER_HEADERS.map(|name| joined(headers, name));
    let anonymous = joined(headers, ANONYMOUS_HEADER);
    let facts = Facts {
        address,
        certificate_name: peer.certificate_name.as_deref(),
        administrator: administrator.as_deref(),
        claims: claims.as_ref(),
        site_minder: site_minder.each_ref().map(Option::as_deref),
        is_anonymous: anonymous.as_deref(),
    };
    let protocol = if peer.is_tls { "https" } else { "http" };
    let host = text(headers, header::HOST.as_str()).unwrap_or_default();
    let base_url = request_origin(
        &configuration.trusted_proxies,
        peer.address,
        (protocol, host),
        joined(headers, "x-forwarded-proto").as_deref(),
        joined(headers, "x-forwarded-host").as_deref(),
    );
    Ok(RequestContext { identity: identify(configuration, &facts), address, base_url })
}

/// The access token of a request: the whole header, or the query parameter.
fn access_token(authorization: Option<&str>, uri: &Uri) -> Option<String> {
    if let Some(token) = authorization.map(str::trim).filter(|token| !token.is_empty()) {
        return Some(token.to_owned()).filter(|token| !token.contains(' '));
    }
    let query = uri.query().filter(|query| query.contains("access_token"))?;
    let params = Params::parse(query).ok()?;
    params.text("access_token").filter(|token| !token.is_empty()).map(str::to_owned)
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

/// The values of a header field in their order, each byte as a character. A value that is not ASCII counts too: a
/// client can prepend such bytes to the list that a proxy extends.
fn joined(headers: &HeaderMap, name: &str) -> Option<String> {
    let latin = |value: &HeaderValue| value.as_bytes().iter().copied().map(char::from).collect::<String>();
    let values: Vec<String> = headers.get_all(name).iter().map(latin).collect();
    if values.is_empty() { None } else { Some(values.join(",")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s3_an_access_token_is_the_bare_header_or_a_parameter() {
        let uri = |text: &'static str| Uri::from_static(text);
        assert_eq!(access_token(Some("abc"), &uri("/x")).as_deref(), Some("abc"));
        assert_eq!(access_token(Some("Bearer a.b.c"), &uri("/x")), None);
        assert_eq!(access_token(None, &uri("/x?access_token=abc")).as_deref(), Some("abc"));
        assert_eq!(access_token(Some(""), &uri("/x?a=1")), None);
    }

    #[test]
    fn s3_a_list_of_a_proxy_counts_whatever_a_client_prepends() {
        let mut headers = HeaderMap::new();
        let value = HeaderValue::from_bytes(b"\xe9, 198.51.100.1").expect("a value");
        headers.append("x-forwarded-for", value);
        headers.append("x-forwarded-for", HeaderValue::from_static("10.0.0.8"));
        assert_eq!(joined(&headers, "x-forwarded-for").as_deref(), Some("\u{e9}, 198.51.100.1,10.0.0.8"));
        assert_eq!(joined(&headers, "sm_user"), None);
    }
}
