//! Every route with a key of every scope: access is granted exactly as the description of the API documents.

use std::collections::BTreeMap;

use reqwest::RequestBuilder;
use serde_json::{Value, json};
use tocsin_face_http::openapi_document;
use tocsin_service::Scope;

use crate::platform::{Platform, answer};

/// A documented route.
struct Route {
    method: String,
    /// With names of objects that do not exist.
    path: String,
    media_type: Option<String>,
    /// Alternatives: the kind of credential, and the scopes of a key.
    security: Vec<(String, Vec<String>)>,
}

fn routes() -> Vec<Route> {
    let document: Value = serde_json::from_str(&openapi_document()).expect("JSON");
    let paths = document["paths"].as_object().expect("paths");
    let operations = paths.iter().flat_map(|(path, item)| {
        item.as_object().expect("operations").iter().map(move |(method, operation)| (path, method, operation))
    });
    operations
        .map(|(path, method, operation)| Route {
            method: method.to_uppercase(),
            path: path
                .split('/')
                .map(|part| if part.starts_with('{') { "none" } else { part })
                .collect::<Vec<_>>()
                .join("/"),
            media_type: operation["requestBody"]["content"].as_object().map(|kinds| {
                let kind = kinds.keys().next().expect("a media type");
                kind.replace("*/*", "text/plain")
            }),
            security: alternatives(operation),
        })
        .collect()
}

fn alternatives(operation: &Value) -> Vec<(String, Vec<String>)> {
    let stated = operation["security"].as_array().expect("every operation says what it needs");
    let requirements = stated.iter().filter_map(|requirement| requirement.as_object()?.iter().next());
    requirements.map(|(kind, scopes)| (kind.clone(), serde_json::from_value(scopes.clone()).expect("words"))).collect()
}

impl Route {
    fn request(&self, platform: &Platform, key: Option<&str>) -> RequestBuilder {
        let method = self.method.parse().expect("a method");
        let request = platform.client.request(method, format!("{}{}", platform.address, self.path));
        let request = match key {
            Some(key) => request.bearer_auth(key),
            None => request,
        };
        match &self.media_type {
            Some(kind) => request.header("content-type", kind).body("{}"),
            None => request,
        }
    }

    /// Whether a key with this scope is accepted.
    fn admits(&self, scope: Scope) -> bool {
        let has = |needed: &Vec<String>| needed.is_empty() || needed.iter().any(|word| word == scope.word());
        scope == Scope::Admin || self.security.iter().any(|(kind, needed)| kind == "key" && has(needed))
    }

    fn takes_keys(&self) -> bool {
        self.security.iter().any(|(kind, _)| kind == "key")
    }
}

async fn make_key(platform: &Platform, asked: &Value) -> Value {
    let (status, made) = platform.post("/v1/keys", "application/json", &asked.to_string()).await;
    assert_eq!(status, 201, "{made}");
    made
}

#[tokio::test]
async fn a_key_of_each_scope_is_let_in_exactly_where_its_scope_says() {
    let platform = Platform::start().await;
    let mut keys = BTreeMap::new();
    for scope in Scope::ALL {
        let made = make_key(&platform, &json!({"scopes": [scope.word()]})).await;
        keys.insert(scope.word(), made["key"].as_str().expect("a key").to_owned());
    }
    let mut wrong = Vec::new();
    for route in routes().iter().filter(|route| route.takes_keys()) {
        for scope in Scope::ALL {
            let response = route.request(&platform, Some(&keys[scope.word()])).send().await.expect("an answer");
            // A dry run is allowed for readers; the service rejects changes. A setup link creates an administrator, and
            // an explanation reads subscribers too.
            let is_more = matches!(
                (route.method.as_str(), route.path.as_str(), scope),
                ("PUT", "/v1/exchanges/none", Scope::ApplicationsRead)
                    | ("POST", "/v1/login-links", Scope::UsersWrite)
                    | ("POST", "/v1/explain", Scope::OperationsRead)
            );
            if (response.status() != 403) != (route.admits(scope) && !is_more) {
                wrong.push(format!("{} {} with {}: {}", route.method, route.path, scope.word(), response.status()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    platform.stop().await;
}

#[tokio::test]
async fn without_a_good_key_only_what_needs_none_is_let_in() {
    let platform = Platform::start().await;
    for route in routes() {
        // There are no replicas here, so device tokens are not checked.
        let is_of_devices = route.security.iter().any(|(kind, _)| kind == "device");
        for key in [None, Some("tocsin_00000000_none")] {
            let status = route.request(&platform, key).send().await.expect("an answer").status();
            let is_refused = status == 401 || is_of_devices && !status.is_success();
            assert_eq!(
                is_refused,
                !route.security.is_empty(),
                "{} {} with {key:?}: {status}",
                route.method,
                route.path
            );
        }
    }
    platform.stop().await;
}

#[tokio::test]
async fn nothing_of_a_body_is_read_for_a_key_that_may_not() {
    let platform = Platform::with_quakes().await;
    let made = make_key(&platform, &json!({"roles": ["analyst"]})).await;
    let request = platform.client.post(format!("{}/v1/applications/quakes/events/quake", platform.address));
    let request = request.bearer_auth(made["key"].as_str().expect("a key")).header("content-type", "application/json");
    let (status, problem) = answer(request.body("not JSON")).await;
    assert_eq!((status.as_u16(), problem["type"].as_str()), (403, Some("/problems/forbidden")), "{problem}");
    assert!(problem.to_string().contains("events:write"), "{problem}");
    platform.stop().await;
}

#[tokio::test]
async fn a_role_is_a_word_for_its_scopes() {
    let platform = Platform::start().await;
    let (_, roles) = platform.get("/v1/roles").await;
    for role in roles["items"].as_array().expect("roles") {
        let made = make_key(&platform, &json!({"roles": [role["name"]]})).await;
        let sorted = |scopes: &Value| {
            let mut words: Vec<String> = serde_json::from_value(scopes.clone()).expect("words");
            words.sort();
            words
        };
        assert_eq!(sorted(&made["scopes"]), sorted(&role["scopes"]), "{role}");
    }
    let both = make_key(&platform, &json!({"roles": ["publisher", "analyst"], "scopes": ["events:write"]})).await;
    assert_eq!(both["scopes"], json!(["events:write", "operations:read"]));
    for (asked, path) in [
        (json!({"roles": ["king"]}), "roles[0]"),
        (json!({"roles": ["publisher"], "scopes": ["fly"]}), "scopes[0]"),
        (json!({}), "scopes"),
    ] {
        let (status, problem) = platform.post("/v1/keys", "application/json", &asked.to_string()).await;
        assert_eq!((status.as_u16(), problem["problems"][0]["path"].as_str()), (422, Some(path)), "{problem}");
        assert!(problem["problems"][0]["hint"].is_string(), "{problem}");
    }
    let keeper = make_key(&platform, &json!({"roles": ["key_admin"]})).await;
    let request = platform.client.post(format!("{}/v1/keys", platform.address));
    let request = request.bearer_auth(keeper["key"].as_str().expect("a key")).json(&json!({"roles": ["operator"]}));
    let (status, problem) = answer(request).await;
    assert_eq!(status, 403, "nobody gives what they do not hold: {problem}");
    platform.stop().await;
}
