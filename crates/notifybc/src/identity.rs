//! The identity of a request and its permissions.
//!
//! The facts of a request are arguments: the caller verifies certificates and signatures, and looks tokens up. The
//! order of evaluation is that of [`identify`].

use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde_json::{Value, json};

use crate::{
    configuration::{ClaimCondition, Configuration, Networks, any_holds},
    record::Document,
};

/// Most entries of a forwarded header that are read, from the right.
const FORWARDED_MAX: usize = 50;
/// Headers of SiteMinder in their order, in lower case.
pub const SITE_MINDER_HEADERS: [&str; 3] = ["sm_universalid", "sm_user", "smgov_userdisplayname"];
/// The header that makes a request anonymous.
pub const ANONYMOUS_HEADER: &str = "is_anonymous";

/// The role of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// A super-admin.
    SuperAdmin,
    /// An admin.
    Admin,
    /// A logged-in user.
    AuthenticatedUser,
    /// An anonymous caller.
    Anonymous,
}

impl Role {
    /// The role as answers write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::SuperAdmin => "SuperAdmin",
            Role::Admin => "Admin",
            Role::AuthenticatedUser => "AuthenticatedUser",
            Role::Anonymous => "Anonymous",
        }
    }

    /// Whether the role is super-admin or admin.
    pub fn is_admin(self) -> bool {
        matches!(self, Role::SuperAdmin | Role::Admin)
    }
}

/// The way in which an identity was established.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// A client certificate.
    ClientCertificate,
    /// An access token.
    AccessToken,
    /// A token of OpenID Connect.
    Oidc,
    /// Headers of SiteMinder.
    SiteMinder,
    /// The address.
    Ip,
}

impl Strategy {
    /// The strategy as answers write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Strategy::ClientCertificate => "clientCertificate",
            Strategy::AccessToken => "accessToken",
            Strategy::Oidc => "oidc",
            Strategy::SiteMinder => "siteMinder",
            Strategy::Ip => "ip",
        }
    }
}

/// The identity of a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The name: user, administrator id or address.
    pub security_id: String,
    /// The way in which it was established.
    pub strategy: Strategy,
    /// The role.
    pub role: Role,
}

impl Identity {
    /// The object of `createdBy`, `updatedBy` and `whoami`.
    pub fn to_value(&self) -> Value {
        json!({
            "securityId": self.security_id,
            "authnStrategy": self.strategy.as_str(),
            "role": self.role.as_str(),
        })
    }

    /// The user whose records a logged-in user sees. `None` for other roles.
    pub fn user(&self) -> Option<&str> {
        (self.role == Role::AuthenticatedUser).then_some(self.security_id.as_str())
    }
}

/// Facts of a request. The caller has verified what they assert.
#[derive(Debug, Clone)]
pub struct Facts<'f> {
    /// The address of the client; see [`client_address`].
    pub address: IpAddr,
    /// The common name of a client certificate that verifies against the configured authority.
    pub certificate_name: Option<&'f str>,
    /// The administrator of a known access token that has not expired; see [`is_expired`].
    pub administrator: Option<&'f str>,
    /// The claims of a bearer token whose signature and times are valid.
    pub claims: Option<&'f Value>,
    /// The headers of [`SITE_MINDER_HEADERS`], in that order.
    pub site_minder: [Option<&'f str>; 3],
    /// The header `is_anonymous`.
    pub is_anonymous: Option<&'f str>,
}

impl Facts<'_> {
    /// A request without credentials.
    pub fn of_address(address: IpAddr) -> Self {
        Facts {
            address,
            certificate_name: None,
            administrator: None,
            claims: None,
            site_minder: [None; 3],
            is_anonymous: None,
        }
    }
}

/// The identity of a request. The first of certificate, access token, bearer token and SiteMinder headers counts; an
/// address of a super-admin overrides it; `is_anonymous` with any value that is not empty overrides everything.
pub fn identify(configuration: &Configuration, facts: &Facts<'_>) -> Identity {
    let address = facts.address.to_canonical();
    let by_address = |role| Identity { security_id: address.to_string(), strategy: Strategy::Ip, role };
    if facts.is_anonymous.is_some_and(|value| !value.is_empty()) {
        return by_address(Role::Anonymous);
    }
    if configuration.admin_ips.contains(address) {
        return by_address(Role::SuperAdmin);
    }
    let of = |name: &str, strategy, role| Identity { security_id: name.to_owned(), strategy, role };
    if let Some(name) = facts.certificate_name {
        return of(name, Strategy::ClientCertificate, Role::SuperAdmin);
    }
    if let Some(id) = facts.administrator {
        return of(id, Strategy::AccessToken, Role::Admin);
    }
    if let (Some(oidc), Some(claims)) = (&configuration.oidc, facts.claims)
        && let Some((name, role)) = of_claims(&oidc.admin, &oidc.refused, claims)
    {
        return of(name, Strategy::Oidc, role);
    }
    let user = facts.site_minder.iter().flatten().find(|user| !user.is_empty());
    if let Some(user) = user.filter(|_| configuration.site_minder_proxies.contains(address)) {
        return of(user, Strategy::SiteMinder, Role::AuthenticatedUser);
    }
    by_address(Role::Anonymous)
}

/// Name and role of the claims of a token. `None`: the token is no identity.
fn of_claims<'c>(admin: &[ClaimCondition], refused: &[ClaimCondition], claims: &'c Value) -> Option<(&'c str, Role)> {
    let role = match any_holds(admin, claims) {
        true => Role::Admin,
        false if any_holds(refused, claims) => return None,
        false => Role::AuthenticatedUser,
    };
    let text = |name: &str| claims.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    Some((text("email").or_else(|| text("preferred_username"))?, role))
}

/// Whether an access token has expired: `ttl` seconds after `created`. A token without `ttl` never expires.
pub fn is_expired(token: &Document, now: tocsin_model::time::Timestamp) -> bool {
    match expiry_millis(token) {
        Some(expiry) => expiry <= now.as_millis() as f64,
        None => false,
    }
}

/// The expiry of an access token in milliseconds since 1970.
pub(crate) fn expiry_millis(token: &Document) -> Option<f64> {
    let ttl = token.get("ttl").and_then(Value::as_f64)?;
    let created = crate::record::parse_date(crate::record::text(token, "created")?)?;
    Some(created.as_millis() as f64 + ttl * 1_000.0)
}

/// The bearer token of an `Authorization` header, if it has the form of a JWT.
pub fn bearer_token(header: &str) -> Option<&str> {
    let (scheme, token) = header.trim().split_once(' ')?;
    let token = token.trim();
    let is_jwt = token.split('.').count() == 3 && !token.contains(' ');
    (scheme.eq_ignore_ascii_case("bearer") && is_jwt).then_some(token)
}

/// The address of the client: that of the peer, or of a trusted proxy the right-most forwarded address that is not
/// itself trusted. `forwarded` is the value of `X-Forwarded-For`, several header fields joined by commas. An entry that
/// is not an address ends the search with the unspecified address: the client is unknown, and is not the proxy.
pub fn client_address(trusted: &Networks, peer: IpAddr, forwarded: Option<&str>) -> IpAddr {
    let mut address = peer.to_canonical();
    for entry in forwarded.unwrap_or_default().rsplit(',').take(FORWARDED_MAX) {
        if !trusted.contains(address) {
            break;
        }
        let entry = entry.trim();
        if entry.is_empty() {
            continue;
        }
        // An entry may have a port, and brackets around an IPv6 address.
        let parsed = entry.parse::<IpAddr>().ok().or_else(|| {
            let socket = entry.parse::<SocketAddr>().ok().map(|socket| socket.ip());
            socket.or_else(|| entry.strip_prefix('[')?.strip_suffix(']')?.parse().ok())
        });
        match parsed {
            Some(next) => address = next.to_canonical(),
            None => return IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        }
    }
    address
}

/// Protocol and host of a request: the first entry of `X-Forwarded-Proto` and `X-Forwarded-Host` from a trusted proxy,
/// else those of the connection and the `Host` header.
pub fn request_origin(
    trusted: &Networks,
    peer: IpAddr,
    own: (&str, &str),
    forwarded_protocol: Option<&str>,
    forwarded_host: Option<&str>,
) -> String {
    let is_trusted = trusted.contains(peer);
    let first = |header: Option<&str>| {
        let entry = header?.split(',').next()?.trim().to_owned();
        Some(entry).filter(|entry| is_trusted && !entry.is_empty())
    };
    let protocol = first(forwarded_protocol).filter(|protocol| protocol == "http" || protocol == "https");
    let protocol = protocol.unwrap_or_else(|| own.0.to_owned());
    // The host is part of links in texts and in HTML.
    let is_host = |host: &String| host.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_:[]".contains(&b));
    let host = first(forwarded_host).filter(is_host).unwrap_or_else(|| own.1.to_owned());
    format!("{protocol}://{host}")
}

/// Routes by their permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Route {
    /// GET `/subscriptions`, `/count`, `/services`; PATCH `/subscriptions/{id}`.
    ReadSubscriptions,
    /// PUT `/subscriptions/{id}`.
    ReplaceSubscription,
    /// POST and DELETE of subscriptions, `verify`, `unsubscribe`, `undo`, `swift`.
    SubscriptionWorkflow,
    /// GET, PATCH and DELETE of notifications.
    ReadNotifications,
    /// POST and PUT of notifications.
    SendNotification,
    /// All of `/configurations`.
    Configurations,
    /// All of `/bounces`.
    Bounces,
    /// GET `/memory`.
    Memory,
    /// POST `/administrators`.
    CreateAdministrator,
    /// GET `/administrators`, `/count` and all of `/administrators/{id}`. An admin sees the own id only.
    Administrators,
    /// POST `/administrators/login`.
    Login,
    /// `/health`, `/explorer`, `/explorer-json`, `/administrators/whoami`.
    Public,
}

/// Whether a role may call a route. Otherwise the answer is the 403 `Forbidden resource`.
pub fn permits(role: Role, route: Route) -> bool {
    match route {
        Route::SubscriptionWorkflow | Route::Login | Route::Public => true,
        Route::ReadSubscriptions | Route::ReadNotifications => role != Role::Anonymous,
        Route::ReplaceSubscription | Route::SendNotification | Route::Administrators => role.is_admin(),
        Route::Configurations | Route::Bounces | Route::Memory | Route::CreateAdministrator => role == Role::SuperAdmin,
    }
}

#[cfg(test)]
mod tests;
