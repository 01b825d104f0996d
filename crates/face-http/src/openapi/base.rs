//! Title, tags and security schemes of the API description.

use utoipa::{
    Modify, OpenApi,
    openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme},
};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Tocsin",
        description = "Notification platform: applications, subscribers, subscriptions, events and deliveries.\n\nEvery error is a problem of RFC 9457, whose `type` is the address of a page that explains it.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    modifiers(&Keys),
    security(("key" = [])),
    tags(
        (name = "applications", description = "Definitions of applications, with their versions"),
        (name = "events", description = "Event submission"),
        (name = "subscribers", description = "Recipients and their devices"),
        (name = "scim", description = "SCIM 2.0: the same subscribers, and groups, for provisioning clients. Errors have the form of RFC 7644"),
        (name = "segments", description = "Saved filters over subscribers"),
        (name = "subscriptions", description = "Subscriptions of subscribers, by application and class"),
        (name = "consent", description = "Consent of subscriptions: double opt-in, withdrawals, evidence"),
        (name = "suppressions", description = "Suppressed addresses and devices: bounces, complaints, manual entries"),
        (name = "feedback", description = "Bounces, complaints, receipts and replies: webhooks of providers"),
        (name = "pages", description = "Hosted pages that subscribers see, by signed links; no key needed"),
        (name = "capacity", description = "Capacity plans from load profiles and measured costs"),
        (name = "maintenance", description = "Backups, restore drills, effective configuration, examination and log of the server"),
        (name = "directory", description = "Entries of the directory, its schema and its access rules; the same operations as over LDAP"),
        (name = "import and export", description = "Subscribers, subscriptions and suppressions in bulk, as streams of lines"),
        (name = "exchanges", description = "Messages between systems: ports, messages, replies"),
        (name = "broadcasts", description = "Messages of people to an audience: count, test, send, pause, cancel, results"),
        (name = "operations", description = "Status, batches, traces, suspended work, switches"),
        (name = "inbox", description = "In-app notifications of subscribers, and broadcasts. Each route takes an API key, or an inbox token of the subscriber as `Bearer` or `?token=`"),
        (name = "sync", description = "Rows that devices keep replicas of. Sessions take the token of a device, all else an API key"),
        (name = "keys", description = "API keys, scopes and roles"),
        (name = "audit", description = "Log of the changes that callers make"),
        (name = "session", description = "Logins of users of the console, their sessions and one-time links"),
        (name = "users", description = "Users of the console and their roles"),
        (name = "health", description = "Liveness, readiness and metrics; no key needed"),
    )
)]
struct Base;

struct Keys;

impl Modify for Keys {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_default();
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("An API key: `tocsin_<id>_<secret>`; the scopes of a requirement are those it needs"));
        components.add_security_scheme("key", SecurityScheme::Http(scheme.build()));
        let about = "The session of a user of the console; over TLS the cookie is `__Host-tocsin`. Every request that is \
            not a GET also needs the header `X-Tocsin-CSRF`";
        let cookie = ApiKey::Cookie(ApiKeyValue::with_description("tocsin", about));
        components.add_security_scheme("session", SecurityScheme::ApiKey(cookie));
        for (name, about) in [
            ("inbox_token", "A token for the inbox of one subscriber"),
            ("device", "The token of a device that keeps a replica"),
        ] {
            let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(about));
            components.add_security_scheme(name, SecurityScheme::Http(scheme.build()));
        }
    }
}

pub(crate) fn base() -> utoipa::openapi::OpenApi {
    Base::openapi()
}
