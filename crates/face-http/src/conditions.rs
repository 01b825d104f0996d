//! `If-Match` and `If-None-Match` by route (RFC 9110, 13.1). A route evaluates them, or refuses them: a condition that is ignored would
//! let a client overwrite what it never saw.

use axum::{
    extract::Request,
    http::{Method, header},
};

use crate::problems::{Failure, UNSUPPORTED_HEADER};

/// The routes that evaluate the conditions of a change.
#[rustfmt::skip]
const EVALUATED: &[(Method, &str)] = &[
    (Method::PUT, "/scim/v2/{resources}/{id}"),
    (Method::PATCH, "/scim/v2/{resources}/{id}"),
    (Method::DELETE, "/scim/v2/{resources}/{id}"),
    (Method::PUT, "/v1/applications/{application}"),
    (Method::PUT, "/v1/applications/{application}/collections/{collection}/rows/{id}"),
    (Method::PATCH, "/v1/applications/{application}/collections/{collection}/rows/{id}"),
    (Method::DELETE, "/v1/applications/{application}/collections/{collection}/rows/{id}"),
    (Method::PUT, "/v1/capacity/profiles/{name}"),
    (Method::DELETE, "/v1/capacity/profiles/{name}"),
    (Method::PUT, "/v1/directory/entries/{dn}"),
    (Method::PATCH, "/v1/directory/entries/{dn}"),
    (Method::DELETE, "/v1/directory/entries/{dn}"),
    (Method::POST, "/v1/directory/entries/{dn}/rename"),
    (Method::PUT, "/v1/exchanges/{exchange}"),
    (Method::PUT, "/v1/segments/{name}"),
    (Method::DELETE, "/v1/segments/{name}"),
    (Method::PUT, "/v1/subscribers/{id}"),
    (Method::PATCH, "/v1/subscribers/{id}"),
    (Method::DELETE, "/v1/subscribers/{id}"),
    (Method::PUT, "/v1/subscribers/{id}/devices/{device}"),
    (Method::DELETE, "/v1/subscribers/{id}/devices/{device}"),
    (Method::PATCH, "/v1/users/{name}"),
    (Method::PUT, "/v1/subscriptions/{id}"),
    (Method::PATCH, "/v1/subscriptions/{id}"),
    (Method::DELETE, "/v1/subscriptions/{id}"),
];

/// Refuses a conditional request to a route that would ignore the condition.
pub(crate) fn refuse(request: &Request, route: Option<&str>) -> Option<Failure> {
    let (route, method, headers) = (route?, request.method(), request.headers());
    if !matches!(*method, Method::PUT | Method::POST | Method::PATCH | Method::DELETE)
        || EVALUATED.iter().any(|(known, path)| known == method && *path == route)
    {
        return None;
    }
    let names = [(header::IF_MATCH, "If-Match"), (header::IF_NONE_MATCH, "If-None-Match")];
    let (_, given) = names.into_iter().find(|(name, _)| headers.contains_key(name))?;
    Some(Failure::new(UNSUPPORTED_HEADER, format!("this route evaluates no `{given}`: leave it out")))
}

/// Whether a list of tags names one, or is `*`. Tags are compared as weak ones (RFC 9110, 13.1.2).
pub(crate) fn names(list: &[u8], tag: &[u8]) -> bool {
    let tag = opaque(tag);
    list.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).any(|given| given == b"*" || opaque(given) == tag)
}

/// Whether a list of tags names exactly this one, or is `*`. Tags are compared as strong ones (RFC 9110, 13.1.1), but a
/// weak tag of this server names itself: SCIM has weak tags only, and uses them in `If-Match` (RFC 7644, 3.14).
pub(crate) fn is_same(list: &[u8], tag: &[u8]) -> bool {
    let mut given = list.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    given.any(|given| given == b"*" || (!tag.is_empty() && given == tag))
}

fn opaque(tag: &[u8]) -> &[u8] {
    tag.strip_prefix(b"W/").unwrap_or(tag)
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, http};

    use super::*;

    #[test]
    fn every_documented_condition_is_evaluated() {
        let document: serde_json::Value = serde_json::from_str(&crate::openapi_document()).expect("JSON");
        for (path, item) in document["paths"].as_object().expect("paths") {
            for (method, operation) in item.as_object().expect("operations") {
                let parameters = operation["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
                let is_documented = parameters.iter().any(|parameter| parameter["name"] == "If-Match");
                let method = Method::from_bytes(method.to_ascii_uppercase().as_bytes()).expect("a method");
                let is_evaluated = EVALUATED.iter().any(|(known, route)| *known == method && route == path);
                // Conditions of reads are evaluated for all routes.
                assert!(is_evaluated || !is_documented || method == Method::GET, "{method} {path}");
            }
        }
        let paths = document["paths"].as_object().expect("paths");
        for (method, route) in EVALUATED {
            assert!(paths[*route].get(method.as_str().to_ascii_lowercase()).is_some(), "{method} {route}");
        }
    }

    #[test]
    fn a_condition_that_would_be_ignored_is_refused() {
        let status = |method: &str, route: &str, name: &str, value: &str| {
            let request = http::Request::builder().method(method).header(name, value).body(Body::empty());
            refuse(&request.expect("a request"), Some(route)).map(|failure| failure.status().as_u16())
        };
        let broadcast = "/v1/applications/{application}/broadcasts/{name}";
        assert_eq!(status("PUT", broadcast, "if-match", "\"7\""), Some(400));
        assert_eq!(status("PUT", broadcast, "if-match", "*"), Some(400));
        assert_eq!(status("PUT", broadcast, "if-none-match", "*"), Some(400));
        assert_eq!(status("POST", "/v1/subscriptions", "if-none-match", "*"), Some(400));
        assert_eq!(status("DELETE", broadcast, "if-match", "\"7\""), Some(400));
        assert_eq!(status("PUT", "/v1/segments/{name}", "if-match", "\"7\""), None);
        assert_eq!(status("GET", broadcast, "if-match", "\"7\""), None);
        assert_eq!(status("PUT", broadcast, "if-range", "\"7\""), None);
    }

    #[test]
    fn a_strong_comparison_takes_no_weak_tag_for_a_strong_one() {
        for list in ["\"7\"", "\"5\", \"7\"", "*"] {
            assert!(is_same(list.as_bytes(), b"\"7\""), "{list}");
        }
        for list in ["", "W/\"7\"", "\"5\"", "7"] {
            assert!(!is_same(list.as_bytes(), b"\"7\""), "{list}");
        }
        assert!(is_same(b"W/\"7\"", b"W/\"7\""), "a tag of SCIM");
        assert!(is_same(b"*", b"") && !is_same(b"", b"") && !is_same(b"\"7\"", b""), "a response without a tag");
    }

    #[test]
    fn a_list_names_a_tag_weak_or_strong() {
        for list in ["\"7\"", "W/\"7\"", "\"5\", W/\"7\"", "*", " \"7\" ,\"8\""] {
            assert!(names(list.as_bytes(), b"\"7\"") && names(list.as_bytes(), b"W/\"7\""), "{list}");
        }
        for list in ["", "\"5\"", "7", "W/7", "\"77\""] {
            assert!(!names(list.as_bytes(), b"\"7\""), "{list}");
        }
    }
}
