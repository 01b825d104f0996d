//! Audit context of requests: actor, address, action, object, reason and request id of a change. The stores write the
//! entry, in the commit of the change.

use std::{
    borrow::Cow,
    collections::HashMap,
    fmt::Write as _,
    sync::{Arc, LazyLock},
};

use axum::{
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, Method},
    response::Response,
};
use percent_encoding::percent_decode_str;
use tocsin_service::Caller;
use tocsin_store::audit::{ChangeContext, scope};

use crate::{
    app::State,
    needs::NEEDS,
    problems::{Failure, MALFORMED_HEADER},
    rate_limits::Peer,
};

/// Reason of a change, percent-encoded.
pub(crate) const REASON: HeaderName = HeaderName::from_static("x-tocsin-reason");
/// Maximum length of a reason, in characters.
const REASON_MAX: usize = 500;

/// Id of a request, for its audit entries.
#[derive(Clone)]
pub(crate) struct RequestId(pub(crate) HeaderValue);

const ROWS: &str = "/v1/applications/{application}/collections/{collection}/rows";
const ROW: &str = "/v1/applications/{application}/collections/{collection}/rows/{id}";
const READS: &str = "it changes nothing";
const TOKEN: &str = "the token is signed, not stored";
const EVENTS: &str = "the event log has the submission, with its source";
const SESSIONS: &str = "sync has its own history of sessions and conflicts";
const DATA: &str = "rows are data of programs; sync has a history of their conflicts";
const FEEDBACK: &str = "the feedback log has the report";
const FEED: &str = "the state of an item belongs to the feed of its subscriber";

/// Routes without audit entries, with the reason.
#[rustfmt::skip]
const UNAUDITED: &[(&str, &str, &str)] = &[
    ("POST", "/v1/applications/check", READS),
    ("POST", "/v1/applications/{application}/rules/test", READS),
    ("POST", "/v1/applications/{application}/preview", READS),
    ("POST", "/v1/schedules/preview", READS),
    ("POST", "/v1/segments/preview", READS),
    ("POST", "/v1/broadcasts/count", READS),
    ("POST", "/v1/broadcasts/preview", READS),
    ("POST", "/v1/resends/preview", READS),
    ("POST", "/v1/explain", READS),
    ("POST", "/v1/applications/{application}/channels/probe", READS),
    ("POST", "/v1/exchanges/check", READS),
    ("POST", "/v1/backups/{name}/verify", READS),
    ("POST", "/v1/restore-drills", "the list of drills has it, and the server stays unchanged"),
    ("POST", "/v1/exchanges/{exchange}/route-test", READS),
    ("POST", "/v1/applications/{application}/sources/test", READS),
    ("POST", "/v1/capacity/plan", READS),
    ("POST", "/v1/directory/access", READS),
    ("POST", "/scim/v2/.search", READS),
    ("POST", "/scim/v2/{resources}/.search", READS),
    ("POST", "/v1/subscribers/{id}/inbox/token", TOKEN),
    ("POST", "/v1/subscribers/{id}/verification-token", TOKEN),
    ("POST", "/v1/applications/{application}/events", EVENTS),
    ("POST", "/v1/applications/{application}/events/{class}", EVENTS),
    ("POST", "/v1/exchanges/{exchange}/receive/{port}", "the spool has the message, with its sender"),
    ("POST", ROWS, DATA),
    ("PUT", ROW, DATA),
    ("PATCH", ROW, DATA),
    ("DELETE", ROW, DATA),
    ("POST", "/v1/sync/sessions", SESSIONS),
    ("DELETE", "/v1/sync/sessions/{id}", SESSIONS),
    ("POST", "/v1/sync/sessions/{id}/changes", SESSIONS),
    ("POST", "/v1/suppressions/reports", FEEDBACK),
    ("POST", "/v1/feedback-mails", FEEDBACK),
    ("POST", "/v1/feedback/{application}/{channel}", FEEDBACK),
    ("DELETE", "/v1/subscribers/{id}/inbox/{item}", FEED),
    ("PUT", "/v1/subscribers/{id}/inbox/{item}/archived", FEED),
    ("DELETE", "/v1/subscribers/{id}/inbox/{item}/archived", FEED),
    ("PUT", "/v1/subscribers/{id}/inbox/{item}/read", FEED),
    ("DELETE", "/v1/subscribers/{id}/inbox/{item}/read", FEED),
    ("POST", "/v1/subscribers/{id}/inbox/mark", FEED),
];

/// Routes whose path has no word of the operation.
const NAMED: [(&str, &str, &str); 3] = [
    ("POST", "/confirm/{token}", "consent.confirm"),
    ("POST", "/unsubscribe/{token}", "unsubscriptions.link"),
    ("POST", "/p/{token}", "preferences.put"),
];

/// Actions of the audited routes, by path and method.
static ACTIONS: LazyLock<HashMap<&str, Vec<(&str, String)>>> = LazyLock::new(|| {
    let mut actions: HashMap<&str, Vec<(&str, String)>> = HashMap::new();
    for (method, path, _) in NEEDS {
        let is_unaudited = UNAUDITED.iter().any(|row| (row.0, row.1) == (*method, *path));
        if *method != "GET" && !is_unaudited {
            actions.entry(path).or_default().push((method, action(method, path)));
        }
    }
    actions
});

/// Name of the operation of a route: the words of its path and, where they do not name it, the method.
fn action(method: &str, path: &str) -> String {
    if let Some((.., name)) = NAMED.iter().find(|row| (row.0, row.1) == (method, path)) {
        return (*name).to_owned();
    }
    let is_word = |part: &&str| !part.is_empty() && !part.starts_with('{') && !matches!(*part, "v1" | "v2");
    let mut words: Vec<&str> = path.split('/').filter(is_word).collect();
    let is_collection = NEEDS.iter().any(|row| (row.0, row.1) == ("GET", path));
    match method {
        "PUT" => words.push("put"),
        "PATCH" => words.push("patch"),
        "DELETE" => words.push("delete"),
        _ if is_collection || words.len() == 1 => words.push("create"),
        _ => {}
    }
    words.join(".")
}

fn action_of(method: &Method, path: &str) -> Option<&'static str> {
    let found = ACTIONS.get(path)?.iter().find(|(known, _)| *known == method.as_str());
    found.map(|(_, action)| action.as_str())
}

/// The context of a request, if its changes are audited.
///
/// # Errors
/// The reason in the header is no text, or too long.
pub(crate) fn context(
    state: &State,
    request: &Request,
    route: Option<&str>,
    caller: Option<&Caller>,
) -> Result<Option<Arc<ChangeContext>>, Failure> {
    let Some(action) = route.and_then(|route| action_of(request.method(), route)) else { return Ok(None) };
    let service = state.service.clone();
    let clock = Arc::new(move || service.now());
    let actor = caller.map_or_else(|| "anonymous".to_owned(), |caller| caller.actor().to_string());
    let path = request.uri().path();
    let object = path.strip_prefix("/v1/").or_else(|| path.strip_prefix('/')).unwrap_or(path);
    // The token of a link is a credential.
    let object = if NAMED.iter().any(|row| Some(row.1) == route) { action } else { object };
    let request_id = request.extensions().get::<RequestId>().and_then(|id| id.0.to_str().ok()).map(str::to_owned);
    let context = ChangeContext::new(actor, Cow::Borrowed(action), clock)
        .at_address(request.extensions().get::<Peer>().map(|peer| peer.0.to_string()))
        .on_object(&percent_decode_str(object).decode_utf8_lossy())
        .of_request(request_id);
    Ok(Some(Arc::new(context.because(reason(request.headers())?))))
}

/// Runs the handler of a request within its context.
pub(crate) async fn run(context: Option<Arc<ChangeContext>>, handler: impl Future<Output = Response>) -> Response {
    match context {
        Some(context) => scope(context, handler).await,
        None => handler.await,
    }
}

/// The reason in the header, if any.
fn reason(headers: &HeaderMap) -> Result<Option<String>, Failure> {
    let Some(given) = headers.get(REASON) else { return Ok(None) };
    let malformed = || Failure::new(MALFORMED_HEADER, "`X-Tocsin-Reason` is not percent-encoded UTF-8");
    let text = percent_decode_str(given.to_str().map_err(|_| malformed())?).decode_utf8().map_err(|_| malformed())?;
    let text = text.trim();
    if text.chars().count() > REASON_MAX {
        return Err(Failure::new(MALFORMED_HEADER, format!("`X-Tocsin-Reason` has more than {REASON_MAX} characters")));
    }
    Ok((!text.is_empty()).then(|| text.to_owned()))
}

/// Audited routes: method, path and action.
pub fn audited_routes() -> Vec<(&'static str, &'static str, &'static str)> {
    let rows = NEEDS.iter().filter_map(|(method, path, _)| {
        let (_, action) = ACTIONS.get(path)?.iter().find(|(known, _)| known == method)?;
        Some((*method, *path, action.as_str()))
    });
    rows.collect()
}

/// `docs/reference/audit.md`: the actions of the audit log, and the routes without entries.
pub fn audit_page() -> String {
    let mut page = "# Actions of the audit log\n\n\
        <!-- Generated from crates/face-http/src/audit.rs; `make docs` writes it anew. -->\n\n\
        A change through one of these routes has an entry in the audit log, in the commit of the change. \
        The [guide](../guide/audit.md) describes the entries.\n\n| action | route |\n|---|---|\n"
        .to_owned();
    for (method, path, action) in audited_routes() {
        let _ = writeln!(page, "| `{action}` | `{method} {path}` |");
    }
    page.push_str("\n## Routes without entries\n\n| route | reason |\n|---|---|\n");
    for (method, path, reason) in
        UNAUDITED.iter().filter(|row| NEEDS.iter().any(|need| (need.0, need.1) == (row.0, row.1)))
    {
        let _ = writeln!(page, "| `{method} {path}` | {reason} |");
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_action_is_named_by_its_route() {
        for (method, path, expected) in [
            ("PUT", "/v1/subscribers/{id}", "subscribers.put"),
            ("PATCH", "/v1/subscriptions/{id}", "subscriptions.patch"),
            ("DELETE", "/v1/subscribers/{id}/devices/{device}", "subscribers.devices.delete"),
            ("POST", "/v1/keys", "keys.create"),
            ("POST", "/v1/backups", "backups.create"),
            ("POST", "/v1/switches/off", "switches.off"),
            ("POST", "/v1/applications/{application}/rules/{rule}/stop", "applications.rules.stop"),
            ("POST", "/scim/v2/{resources}", "scim.create"),
            ("POST", "/confirm/{token}", "consent.confirm"),
        ] {
            assert_eq!(action(method, path), expected, "{method} {path}");
        }
    }

    #[test]
    fn each_action_names_one_operation() {
        let mut actions: Vec<_> = audited_routes().into_iter().map(|(.., action)| action).collect();
        actions.sort_unstable();
        let count = actions.len();
        actions.dedup();
        assert_eq!(actions.len(), count, "two routes have the same action");
        assert!(actions.contains(&"subscribers.put"), "{actions:?}");
    }

    #[test]
    fn a_reason_is_percent_encoded_text() {
        let read = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(REASON, HeaderValue::from_static(text));
            reason(&headers).map_err(drop)
        };
        assert_eq!(reason(&HeaderMap::new()).map_err(drop), Ok(None));
        assert_eq!(read("caf%C3%A9 "), Ok(Some("café".to_owned())));
        assert_eq!(read(" "), Ok(None));
        assert_eq!(read("%FF"), Err(()));
    }
}
