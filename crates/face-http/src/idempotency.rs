//! `Idempotency-Key` by route. Each POST honours the key, needs none, or refuses it: if a route ignored the key, a
//! repetition would have its effect twice.

use axum::{extract::Request, http::Method};

use crate::problems::{Failure, UNSUPPORTED_HEADER};

/// The effect of a repeated POST.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Repeat {
    /// The route honours the key: a repetition has the result of the first request.
    Honoured,
    /// A repetition has no further effect, so the key is ignored.
    Idempotent,
    /// A repetition has another effect, and the route stores no keys. The text says what to use instead.
    Refused(&'static str),
}

use Repeat::{Honoured, Idempotent, Refused};

const READ_FIRST: &str = "read first whether the request before had its effect";

#[rustfmt::skip]
const POSTS: &[(&str, Repeat)] = &[
    ("/confirm/{token}", Idempotent),
    ("/unsubscribe/{token}", Idempotent),
    ("/p/{token}", Idempotent),
    ("/v1/unsubscriptions", Idempotent),
    ("/v1/unsubscriptions/undo", Idempotent),
    ("/v1/applications/check", Idempotent),
    ("/v1/applications/{application}/rematch", Refused(READ_FIRST)),
    ("/v1/applications/{application}/channels/probe", Idempotent),
    ("/v1/applications/{application}/rules/test", Idempotent),
    ("/v1/applications/{application}/backtests", Refused(READ_FIRST)),
    ("/v1/applications/{application}/rules/{rule}/stop", Idempotent),
    ("/v1/applications/{application}/rules/{rule}/resume", Idempotent),
    ("/v1/applications/{application}/preview", Idempotent),
    ("/v1/applications/{application}/send-test", Refused(READ_FIRST)),
    ("/v1/schedules/preview", Idempotent),
    ("/v1/explain", Idempotent),
    ("/v1/applications/{application}/events", Honoured),
    ("/v1/applications/{application}/events/{class}", Honoured),
    ("/v1/subscribers", Refused("the `id` of the body makes a repetition known: it is answered 409")),
    ("/v1/subscribers/{id}/verification-token", Refused(READ_FIRST)),
    ("/v1/subscribers/{id}/erase", Idempotent),
    ("/v1/subscribers/{id}/merge", Refused(READ_FIRST)),
    ("/scim/v2/.search", Idempotent),
    ("/scim/v2/Bulk", Refused("`userName` and `displayName` make a repetition known: it is answered 409")),
    ("/scim/v2/{resources}", Refused("`userName` and `displayName` make a repetition known: it is answered 409")),
    ("/scim/v2/{resources}/.search", Idempotent),
    ("/v1/segments", Refused("the `name` of the body makes a repetition known: it is answered 409")),
    ("/v1/segments/preview", Idempotent),
    ("/v1/subscriptions", Refused("give `key` in the body: a request with the same key replaces the subscription")),
    ("/v1/consent/requests", Idempotent),
    ("/v1/consent/confirmations", Idempotent),
    ("/v1/consent/resends", Idempotent),
    ("/v1/subscriptions/{id}/consent/request", Idempotent),
    ("/v1/subscriptions/{id}/consent/confirm", Idempotent),
    ("/v1/subscriptions/{id}/consent/withdraw", Idempotent),
    ("/v1/suppressions/reports", Refused(READ_FIRST)),
    ("/v1/feedback-mails", Idempotent),
    ("/v1/feedback/{application}/{channel}", Idempotent),
    ("/v1/import/subscribers", Idempotent),
    ("/v1/import/subscriptions", Refused("give each line a `key`: a line with the same key replaces the subscription")),
    ("/v1/import/suppressions", Idempotent),
    ("/v1/exchanges/{exchange}/receive/{port}", Honoured),
    ("/v1/messages/edit", Idempotent),
    ("/v1/messages/resume", Idempotent),
    ("/v1/messages/end", Idempotent),
    ("/v1/suspensions/resume", Idempotent),
    ("/v1/suspensions/end", Idempotent),
    ("/v1/firings/refire", Refused(READ_FIRST)),
    ("/v1/firings/dismiss", Idempotent),
    ("/v1/delayed-notifications/cancel", Idempotent),
    ("/v1/broadcasts", Honoured),
    ("/v1/broadcasts/count", Idempotent),
    ("/v1/broadcasts/preview", Idempotent),
    ("/v1/broadcasts/test", Refused(READ_FIRST)),
    ("/v1/broadcasts/{broadcast}/pause", Idempotent),
    ("/v1/broadcasts/{broadcast}/resume", Idempotent),
    ("/v1/broadcasts/{broadcast}/cancel", Idempotent),
    ("/v1/resends", Honoured),
    ("/v1/resends/preview", Idempotent),
    ("/v1/switches/off", Idempotent),
    ("/v1/switches/on", Idempotent),
    ("/v1/retention/run", Idempotent),
    ("/v1/backups", Refused(READ_FIRST)),
    ("/v1/keys", Refused("list the keys, and remove the one whose text was lost")),
    ("/v1/session", Refused("a repetition opens another session; list the sessions, and end the one that is not used")),
    ("/v1/session/reauthenticate", Idempotent),
    ("/v1/session/token", Refused("a login link works once; request another one")),
    ("/v1/setup", Refused("log in: a repetition is answered 409")),
    ("/v1/login-links", Idempotent),
    ("/v1/users", Refused("the `name` of the body makes a repetition known: it is answered 409")),
    ("/v1/users/{name}/password", Idempotent),
    ("/v1/subscribers/{id}/inbox/mark", Idempotent),
    ("/v1/subscribers/{id}/inbox/token", Idempotent),
    ("/v1/applications/{application}/collections/{collection}/rows", Idempotent),
    ("/v1/applications/{application}/conflicts/{number}/revert", Idempotent),
    ("/v1/keys/{id}/rotate", Refused("list the keys, and rotate the one whose text was lost again")),
    ("/v1/applications/{application}/schedules/{rule}/{schedule}/run", Refused(READ_FIRST)),
    ("/v1/applications/{application}/schedules/{rule}/{schedule}/skip", Refused(READ_FIRST)),
    ("/v1/applications/{application}/sources/test", Idempotent),
    ("/v1/backups/{name}/verify", Idempotent),
    ("/v1/restore-drills", Idempotent),
    ("/v1/capacity/plan", Idempotent),
    ("/v1/directory/access", Idempotent),
    ("/v1/directory/import", Idempotent),
    ("/v1/directory/entries/{dn}/password", Idempotent),
    ("/v1/directory/entries/{dn}/rename", Refused(READ_FIRST)),
    ("/v1/exchanges/check", Idempotent),
    ("/v1/exchanges/{exchange}/route-test", Idempotent),
    ("/v1/sync/devices", Refused("list the devices, and remove the one whose token was lost")),
    ("/v1/sync/devices/{id}/wipe", Idempotent),
    ("/v1/sync/sessions", Idempotent),
    ("/v1/sync/sessions/{id}/changes", Idempotent),
];

/// Refuses an `Idempotency-Key` that its route would ignore although a repetition has an effect.
pub(crate) fn refuse(request: &Request, route: Option<&str>) -> Option<Failure> {
    if *request.method() != Method::POST || !request.headers().contains_key("idempotency-key") {
        return None;
    }
    match POSTS.iter().find(|(path, _)| Some(*path) == route)?.1 {
        Honoured | Idempotent => None,
        Refused(instead) => Some(Failure::new(
            UNSUPPORTED_HEADER,
            format!("this route keeps no `Idempotency-Key`: leave it out; {instead}"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use axum::{body::Body, http};

    use super::*;

    #[test]
    fn b14_every_documented_post_says_how_it_repeats() {
        let document: serde_json::Value = serde_json::from_str(&crate::openapi_document()).expect("JSON");
        let paths = document["paths"].as_object().expect("paths");
        let documented: BTreeSet<&str> =
            paths.iter().filter(|(_, item)| item.get("post").is_some()).map(|(path, _)| path.as_str()).collect();
        let listed: BTreeSet<&str> = POSTS.iter().map(|(path, _)| *path).collect();
        assert_eq!(listed.len(), POSTS.len(), "a route is in the table twice");
        assert_eq!(listed, documented);
    }

    #[test]
    fn b14_a_key_that_would_be_ignored_is_refused() {
        let request = |method: &str| {
            let builder = http::Request::builder().method(method).header("Idempotency-Key", "k");
            builder.body(Body::empty()).expect("a request")
        };
        let refused = |method: &str, route: &str| refuse(&request(method), Some(route)).is_some();
        assert!(refused("POST", "/v1/subscriptions"));
        assert!(!refused("POST", "/v1/resends"));
        assert!(!refused("POST", "/v1/schedules/preview"));
        assert!(!refused("PUT", "/v1/subscriptions"));
        let without = http::Request::builder().method("POST").body(Body::empty()).expect("a request");
        assert!(refuse(&without, Some("/v1/subscriptions")).is_none());
    }
}
