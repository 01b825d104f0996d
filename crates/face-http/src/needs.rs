//! What each route needs: one table, by which a request is let in before anything of its body is read, and from which
//! the description of the API and the page of scopes are made.
//!
//! The service asks for scopes as well, and for more than the table where it depends on what is asked: a dry run needs
//! less, a preview for a stored subscriber more.

use std::{collections::HashMap, fmt::Write, sync::LazyLock};

use axum::{
    extract::{MatchedPath, Request},
    http::Method,
    middleware::Next,
    response::{IntoResponse, Response},
};
use tocsin_service::{
    Caller,
    Scope::{self, *},
    ServiceError,
    roles::ROLES,
};
use utoipa::openapi::{path::Operation, security::SecurityRequirement};

use crate::{State, problems::Failure, request::shown, scim};

/// What a route needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nothing.
    Nothing,
    /// The token of a device.
    Device,
    /// A key, whatever it may do.
    AnyKey,
    /// A key with one of these scopes.
    Key(&'static [Scope]),
    /// A key with one of these scopes, or an inbox token of the subscriber. None of them: any key.
    Visitor(&'static [Scope]),
}

use Need::{AnyKey, Device, Key, Nothing, Visitor};

type Row = (&'static str, &'static str, Need);

const APPLICATION: &str = "/v1/applications/{application}";
const ROWS: &str = "/v1/applications/{application}/collections/{collection}/rows";
const ROW: &str = "/v1/applications/{application}/collections/{collection}/rows/{id}";

/// Every documented route, by area as the routes are.
#[rustfmt::skip]
const NEEDS: &[Row] = &[
    ("GET", "/livez", Nothing),
    ("GET", "/readyz", Nothing),
    ("GET", "/metrics", Nothing),
    ("GET", "/unsubscribe/{token}", Nothing),
    ("POST", "/unsubscribe/{token}", Nothing),

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
    ("POST", "/v1/applications/{application}/rules/{rule}/stop", Key(&[OperationsWrite])),
    ("POST", "/v1/applications/{application}/rules/{rule}/resume", Key(&[OperationsWrite])),
    ("GET", "/v1/applications/{application}/unusable-subscriptions", Key(&[OperationsRead])),
    ("GET", "/v1/applications/{application}/unindexed-subscriptions", Key(&[OperationsRead])),
    ("GET", "/v1/applications/{application}/chronicles", Key(&[OperationsRead])),
    ("GET", "/v1/applications/{application}/chronicles/{class}/{chronicle}", Key(&[OperationsRead])),
    ("GET", "/v1/applications/{application}/destinations", Key(&[OperationsRead])),
    ("GET", "/v1/applications/{application}/schedules", Key(&[OperationsRead])),
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
    ("POST", "/v1/subscribers/{id}/claim", Key(&[SubscribersWrite])),
    ("PUT", "/v1/subscribers/{id}/devices/{device}", Key(&[SubscribersWrite])),
    ("DELETE", "/v1/subscribers/{id}/devices/{device}", Key(&[SubscribersWrite])),
    ("POST", "/v1/subscribers/{id}/merge", Key(&[SubscribersWrite])),

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

    ("GET", "/v1/suppressions", Key(&[SubscribersRead])),
    ("POST", "/v1/suppressions/reports", Key(&[BouncesWrite])),
    ("GET", "/v1/suppressions/addresses/{protocol}/{address}", Key(&[SubscribersRead])),
    ("PUT", "/v1/suppressions/addresses/{protocol}/{address}", Key(&[SubscribersWrite])),
    ("DELETE", "/v1/suppressions/addresses/{protocol}/{address}", Key(&[SubscribersWrite])),
    ("GET", "/v1/suppressions/devices/{subscriber}/{device}", Key(&[SubscribersRead])),
    ("PUT", "/v1/suppressions/devices/{subscriber}/{device}", Key(&[SubscribersWrite])),
    ("DELETE", "/v1/suppressions/devices/{subscriber}/{device}", Key(&[SubscribersWrite])),

    ("POST", "/v1/import/subscribers", Key(&[SubscribersWrite])),
    ("POST", "/v1/import/subscriptions", Key(&[SubscribersWrite])),
    ("POST", "/v1/import/suppressions", Key(&[SubscribersWrite])),
    ("GET", "/v1/export/subscribers", Key(&[SubscribersRead])),
    ("GET", "/v1/export/subscriptions", Key(&[SubscribersRead])),
    ("GET", "/v1/export/suppressions", Key(&[SubscribersRead])),

    ("GET", "/v1/exchanges", Key(&[ApplicationsRead])),
    ("GET", "/v1/exchanges/{exchange}", Key(&[ApplicationsRead])),
    // A dry run reads only.
    ("PUT", "/v1/exchanges/{exchange}", Key(&[ApplicationsWrite, ApplicationsRead])),
    ("DELETE", "/v1/exchanges/{exchange}", Key(&[ApplicationsWrite])),
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
    ("GET", "/v1/digest", Key(&[OperationsRead])),
    ("GET", "/v1/reports", AnyKey),
    ("GET", "/v1/reports/{name}", Key(&[OperationsRead])),
    ("GET", "/v1/trace/{id}", Key(&[OperationsRead])),
    ("GET", "/v1/event-batches", Key(&[OperationsRead])),
    ("GET", "/v1/event-batches/{id}", Key(&[OperationsRead])),
    ("GET", "/v1/event-batches/{id}/events", Key(&[OperationsRead])),
    ("GET", "/v1/notification-batches", Key(&[OperationsRead])),
    ("GET", "/v1/notification-batches/{id}", Key(&[OperationsRead])),
    ("GET", "/v1/notifications/{id}", Key(&[OperationsRead])),
    ("GET", "/v1/suspensions", Key(&[OperationsRead])),
    ("GET", "/v1/suspensions/{id}", Key(&[OperationsRead])),
    ("PUT", "/v1/suspensions/{id}/edit", Key(&[OperationsWrite])),
    ("POST", "/v1/suspensions/resume", Key(&[OperationsWrite])),
    ("POST", "/v1/suspensions/end", Key(&[OperationsWrite])),
    ("GET", "/v1/endpoints", Key(&[OperationsRead])),
    ("GET", "/v1/firings", Key(&[OperationsRead])),
    ("POST", "/v1/firings/refire", Key(&[OperationsWrite])),
    ("POST", "/v1/firings/dismiss", Key(&[OperationsWrite])),
    ("GET", "/v1/slow-firings", Key(&[OperationsRead])),
    ("GET", "/v1/stopped-rules", Key(&[OperationsRead])),
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
    // A copy of everything holds everything.
    ("POST", "/v1/backups", Key(&[Admin])),

    ("GET", "/v1/keys", Key(&[KeysWrite])),
    ("POST", "/v1/keys", Key(&[KeysWrite])),
    ("DELETE", "/v1/keys/{id}", Key(&[KeysWrite])),
    ("GET", "/v1/roles", AnyKey),

    // Whoever may mark may look.
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

/// Lets a request in, or answers 401 or 403. The caller goes with the request, so that it is looked up once.
pub(crate) async fn needs(state: State, mut request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().cloned();
    let need = route.as_ref().and_then(|route| need(request.method(), route.as_str()));
    let let_in = match need {
        Some(AnyKey) => caller(&state, &request, &[]),
        Some(Key(scopes)) => caller(&state, &request, scopes),
        // Tokens are looked at where the route takes them; so is what else the service can say of the key.
        Some(Visitor(scopes)) => caller(&state, &request, scopes).or_else(|failure| match failure {
            ServiceError::Unauthenticated(_) => Ok(None),
            failure => Err(failure),
        }),
        Some(Nothing | Device) | None => Ok(None),
    };
    match let_in {
        Ok(Some(caller)) => _ = request.extensions_mut().insert(caller),
        Ok(None) => {}
        Err(error) if scim::is_here(request.uri().path()) => return scim::refused(error),
        Err(error) => return Failure::from(error).into_response(),
    }
    next.run(request).await
}

fn need(method: &Method, path: &str) -> Option<Need> {
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

/// Who asks, with one of these scopes; with no scopes, whoever it is.
fn caller(state: &State, request: &Request, scopes: &[Scope]) -> Result<Option<Caller>, ServiceError> {
    let key = shown(request.headers())?.ok_or(ServiceError::Unauthenticated("no key was given"))?;
    let caller = state.service.authenticate(key)?;
    match scopes.first() {
        Some(first) if scopes.iter().all(|scope| caller.needs(*scope).is_err()) => Err(ServiceError::Forbidden(*first)),
        _ => Ok(Some(caller)),
    }
}

/// Writes into the description of a route what it needs, if the table knows it.
pub(crate) fn describe(method: &Method, path: &str, operation: &mut Operation) {
    let Some(need) = need(method, path) else { return };
    let key = |scopes: &[&str]| SecurityRequirement::new("key", scopes.iter().copied());
    let with = |scopes: &[Scope]| match scopes {
        [] => vec![key(&[])],
        scopes => scopes.iter().map(|scope| key(&[scope.word()])).collect(),
    };
    operation.security = Some(match need {
        Nothing => vec![SecurityRequirement::default()],
        Device => vec![SecurityRequirement::new::<_, _, &str>("device", [])],
        AnyKey => with(&[]),
        Key(scopes) => with(scopes),
        Visitor(scopes) => {
            let mut all = with(scopes);
            all.push(SecurityRequirement::new::<_, _, &str>("inbox_token", []));
            all
        }
    });
}

/// `docs/reference/scopes.md`: the roles, the routes of each scope, and those that need none.
pub fn scopes_page() -> String {
    let mut page = "# Scopes and roles\n\n\
        <!-- Generated from crates/face-http/src/needs.rs and crates/service/src/roles.rs; `make docs` writes it anew. -->\n\n\
        A key has scopes. A request is answered 403 if its key has none of those that its route needs, before its body is \
        read, and 401 without a good key. `admin` may do everything that any scope may.\n\n\
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
        list(&mut page, |need| matches!(need, Key(scopes) | Visitor(scopes) if scopes.contains(&scope)));
    }
    page.push_str("\n## Any key\n\n");
    list(&mut page, |need| matches!(need, AnyKey | Visitor([])));
    page.push_str("\n## An inbox token of the subscriber, instead of a key\n\n");
    list(&mut page, |need| matches!(need, Visitor(_)));
    page.push_str("\n## The token of a device\n\n");
    list(&mut page, |need| need == Device);
    page.push_str("\n## Nothing\n\n");
    list(&mut page, |need| need == Nothing);
    page
}

fn list(page: &mut String, is_of: impl Fn(Need) -> bool) {
    for (method, path, need) in NEEDS.iter().filter(|row| is_of(row.2)) {
        let others = match need {
            Key(scopes) | Visitor(scopes) if scopes.len() > 1 => {
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
}
