//! Keys limited to resources: what they can access, and that they disclose nothing else.

use reqwest::{Method, StatusCode};
use serde_json::{Value as Json, json};
use tocsin_face_http::openapi_document;
use tocsin_service::Scope;

use crate::platform::{Platform, QUAKES, answer};

/// All scopes but `admin`, which cannot be limited.
fn all_scopes() -> Vec<&'static str> {
    Scope::ALL.into_iter().filter(|scope| *scope != Scope::Admin).map(Scope::word).collect()
}

async fn make(platform: &Platform, asked: &Json) -> (StatusCode, Json) {
    platform.post("/v1/keys", "application/json", &asked.to_string()).await
}

async fn make_limited(platform: &Platform, resources: &[&str]) -> String {
    let (status, made) = make(platform, &json!({"scopes": all_scopes(), "resources": resources})).await;
    assert_eq!(status, 201, "{made}");
    assert_eq!(made["resources"].as_array().map(Vec::len), Some(resources.len()), "{made}");
    made["key"].as_str().expect("a key").to_owned()
}

async fn send_request(
    platform: &Platform,
    key: &str,
    method: &str,
    path: &str,
    body: Option<&str>,
) -> (StatusCode, Json) {
    let method: Method = method.parse().expect("a method");
    let request = platform.client.request(method, format!("{}{path}", platform.address)).bearer_auth(key);
    answer(match body {
        Some(body) => request.header("content-type", "application/json").body(body.to_owned()),
        None => request,
    })
    .await
}

/// A platform with an application, an event batch and a subscription of it.
async fn platform() -> Platform {
    let platform = Platform::with_quakes().await;
    let event = r#"{"magnitude": 6.1, "place": "Kobe"}"#;
    let (status, reply) = platform.post("/v1/applications/quakes/events/quake", "application/json", event).await;
    assert!(status.is_success(), "{reply}");
    platform
}

/// A path with ids of existing objects of another tenant, and one with ids that do not exist.
fn paths(path: &str) -> [String; 2] {
    let fill = |there: bool| {
        let parts: Vec<&str> = path.split('/').collect();
        let filled = parts.iter().enumerate().map(|(at, part)| {
            let before = at.checked_sub(1).map_or("", |before| parts[before]);
            match (*part, before, there) {
                ("{application}", _, true) => "quakes",
                ("{class}", _, true) => "quake",
                ("{subscriber}", _, true) | ("{id}", "subscribers", true) => "alice",
                ("{id}", "event-batches" | "trace", true) => "eb-1",
                ("{id}", "event-batches" | "trace", false) => "eb-99",
                ("{id}", "notification-batches", true) => "nb-1",
                ("{id}", "notification-batches", false) => "nb-99",
                ("{id}", "notifications", true) => "n-1-0",
                ("{id}", "notifications", false) => "n-99-0",
                ("{id}", "subscriptions", true) => "s-1",
                ("{id}", "subscriptions", false) => "s-99",
                ("{id}", "suspensions" | "resends", true) => "1",
                ("{id}", "suspensions" | "resends", false) => "99",
                ("{message}", _, true) => "m-1",
                ("{message}", _, false) => "m-99",
                (name, _, _) if name.starts_with('{') => "nowhere",
                (word, _, _) => word,
            }
        });
        filled.collect::<Vec<_>>().join("/")
    };
    [fill(true), fill(false)]
}

#[tokio::test]
async fn i2_a_limited_key_learns_nothing_of_other_resources_by_any_route() {
    let platform = platform().await;
    let keys = [
        make_limited(&platform, &["application:mine"]).await,
        make_limited(&platform, &["source:mine/web", "exchange:mine"]).await,
        make_limited(&platform, &["port:mine/in"]).await,
        make_limited(&platform, &["container:ou=other,dc=example,dc=org"]).await,
    ];
    let document: Json = serde_json::from_str(&openapi_document()).expect("JSON");
    let mut wrong = Vec::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("operations") {
            let takes_keys =
                operation["security"].as_array().expect("stated").iter().any(|way| way.get("key").is_some());
            if !takes_keys {
                continue;
            }
            let body = operation.get("requestBody").map(|_| "{}");
            for key in &keys {
                let [there, not_there] = paths(path);
                let (method, shown) = (method.to_uppercase(), format!("{} {there}", method.to_uppercase()));
                let (status, reply) = send_request(&platform, key, &method, &there, body).await;
                let (other_status, other) = send_request(&platform, key, &method, &not_there, body).await;
                let (told_there, told_not_there) = (reply.to_string().replace(&there, &not_there), other.to_string());
                let same = told_there == told_not_there;
                if there != not_there && (status != other_status || !same) {
                    wrong.push(format!("{shown} reveals what exists: {status} {reply}, {other_status} {other}"));
                }
                if reply.to_string().contains("quakes") && !reply.to_string().contains(&there) {
                    wrong.push(format!("{shown} reveals another application: {reply}"));
                }
                let may_be_good = [
                    "/v1/applications",
                    "/v1/exchanges",
                    "/v1/switches",
                    "/v1/keys",
                    "/v1/roles",
                    "/v1/reports",
                    "/v1/series/names",
                    "/v1/session",
                    "/v1/directory/schema",
                ];
                if status.is_success() && !may_be_good.contains(&path.as_str()) {
                    wrong.push(format!("{shown} is answered {status} {reply}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    platform.stop().await;
}

#[tokio::test]
async fn a_key_of_one_source_submits_without_naming_it() {
    let platform = Platform::start().await;
    let text =
        format!("{QUAKES}sources:\n  web: {{kind: http, events: [quake]}}\n  till: {{kind: http, events: [quake]}}\n");
    let (status, applied) = platform.put("/v1/applications/quakes", "application/yaml", &text).await;
    assert!(status.is_success(), "{applied}");
    let data = json!({"magnitude": 6.1, "place": "Kobe"});
    let event = data.to_string();
    let cloud = json!({"specversion": "1.0", "id": "1", "source": "/x", "type": "quake", "data": data}).to_string();
    for (resources, expected) in [
        (&["source:quakes/till"][..], 202),
        (&["source:quakes/till", "source:other/web"][..], 202),
        (&["source:quakes/till", "source:quakes/web"][..], 422),
        (&["source:quakes/till", "application:quakes"][..], 422),
    ] {
        let key = make_limited(&platform, resources).await;
        for (path, kind, body) in [
            ("/v1/applications/quakes/events/quake", "application/json", &event),
            ("/v1/applications/quakes/events", "application/cloudevents+json", &cloud),
        ] {
            let request = platform.client.post(format!("{}{path}", platform.address)).bearer_auth(&key);
            let (status, reply) = answer(request.header("content-type", kind).body(body.clone())).await;
            assert_eq!(status.as_u16(), expected, "{resources:?} {path}: {reply}");
        }
    }
    let (_, batches) = platform.get("/v1/event-batches").await;
    let sources: Vec<_> = batches["items"].as_array().expect("items").iter().map(|batch| &batch["source"]).collect();
    assert!(sources.len() >= 2 && sources.iter().all(|source| *source == "till"), "{batches}");
    platform.stop().await;
}

#[tokio::test]
async fn a8_a_key_limited_to_an_application_works_there_and_nowhere_else() {
    let platform = platform().await;
    let (status, other) = {
        let text = QUAKES.replace("application: quakes", "application: other");
        platform.put("/v1/applications/other", "application/yaml", &text).await
    };
    assert!(status.is_success(), "{other}");
    let key = make_limited(&platform, &["application:quakes"]).await;
    let event = Some(r#"{"magnitude": 6.1, "place": "Kobe"}"#);
    for (method, path, body, expected) in [
        ("GET", "/v1/applications/quakes", None, 200),
        ("GET", "/v1/applications/other", None, 404),
        ("POST", "/v1/applications/quakes/events/quake", event, 202),
        ("POST", "/v1/applications/other/events/quake", event, 404),
        ("GET", "/v1/event-batches/eb-1", None, 200),
        ("GET", "/v1/trace/eb-1", None, 200),
        ("GET", "/v1/trace/alice", None, 404),
        ("GET", "/v1/event-batches", None, 403),
        ("GET", "/v1/subscribers/alice", None, 404),
        ("GET", "/v1/subscribers", None, 403),
        ("GET", "/v1/subscriptions", None, 403),
        ("GET", "/v1/subscriptions?application=quakes", None, 200),
        ("GET", "/v1/subscriptions?application=other", None, 404),
        ("GET", "/v1/subscriptions?application=quakes&application=other", None, 400),
        ("GET", "/v1/subscriptions?applicatio%6e=other", None, 404),
        ("GET", "/v1/suspensions?application=quakes", None, 200),
        ("POST", "/v1/suspensions/resume", Some(r#"{"all": true}"#), 403),
        ("POST", "/v1/suspensions/end", Some(r#"{"application": "other"}"#), 403),
        ("POST", "/v1/suspensions/end", Some(r#"{"application": "quakes"}"#), 200),
        ("POST", "/v1/switches/off", Some(r#"{"component": "application:other", "state": "paused"}"#), 403),
        ("POST", "/v1/switches/off", Some(r#"{"component": "role:match", "state": "paused"}"#), 403),
        ("GET", "/v1/status", None, 403),
        ("POST", "/v1/retention/run", None, 403),
        ("POST", "/v1/backups", Some("{}"), 403),
        ("GET", "/scim/v2/Users", None, 403),
        ("GET", "/v1/export/subscribers", None, 403),
    ] {
        let (status, reply) = send_request(&platform, &key, method, path, body).await;
        assert_eq!(status.as_u16(), expected, "{method} {path}: {reply}");
    }
    let (_, listed) = send_request(&platform, &key, "GET", "/v1/applications", None).await;
    assert!(listed.to_string().contains("quakes") && !listed.to_string().contains("other"), "{listed}");
    let head = platform.client.head(format!("{}/v1/applications/other", platform.address)).bearer_auth(&key);
    assert_eq!(head.send().await.expect("an answer").status(), 404, "HEAD is limited as GET is");
    platform.stop().await;
}

#[tokio::test]
async fn a8_a_key_limited_to_a_container_reaches_the_subscribers_below_it() {
    let platform = platform().await;
    for (container, expected) in [
        ("ou=people,dc=example,dc=org", 200),
        ("OU = People , DC=Example,DC=ORG", 200),
        ("dc=example,dc=org", 200),
        ("ou=others,dc=example,dc=org", 404),
        ("ou=eople,dc=example,dc=org", 404),
    ] {
        let key = make_limited(&platform, &[&format!("container:{container}")]).await;
        for path in ["/v1/subscribers/alice", "/v1/subscribers/alice/inbox"] {
            let (status, reply) = send_request(&platform, &key, "GET", path, None).await;
            assert_eq!(status.as_u16(), expected, "{container} {path}: {reply}");
        }
        let (status, reply) = send_request(&platform, &key, "GET", "/v1/subscribers/nobody", None).await;
        assert_eq!(status, 404, "{reply}");
        let merge = Some(r#"{"into": "alice"}"#);
        assert_eq!(send_request(&platform, &key, "POST", "/v1/subscribers/alice/merge", merge).await.0, 403);
    }
    let (status, reply) = make(&platform, &json!({"scopes": ["inbox:read"], "resources": ["container:x"]})).await;
    assert_eq!((status.as_u16(), reply["problems"][0]["path"].as_str()), (422, Some("resources[0]")), "{reply}");
    platform.stop().await;
}

#[tokio::test]
async fn a8_nobody_makes_a_key_that_reaches_more_or_lasts_longer_than_the_own_one() {
    let platform = platform().await;
    let scopes = ["keys:write", "events:write"];
    let limits = ["application:quakes"];
    let (_, made) =
        make(&platform, &json!({"scopes": scopes, "resources": limits, "expires_at": "2099-01-01T00:00:00Z"})).await;
    let key = made["key"].as_str().expect("a key").to_owned();
    for (asked, expected) in [
        (json!({"scopes": ["events:write"], "resources": ["application:other"]}), 403),
        (json!({"scopes": ["events:write"], "resources": ["application:quakes", "exchange:e"]}), 403),
        (json!({"scopes": ["operations:read"]}), 403),
        (json!({"scopes": ["admin"]}), 422),
        (json!({"scopes": ["events:write"], "expires_at": "2099-01-02T00:00:00Z"}), 422),
        (json!({"scopes": ["events:write"], "resources": ["nothing"]}), 422),
        (json!({"scopes": ["events:write"], "resources": ["source:quakes/web"]}), 201),
        (json!({"scopes": ["events:write", "keys:write"]}), 201),
    ] {
        let (status, reply) = send_request(&platform, &key, "POST", "/v1/keys", Some(&asked.to_string())).await;
        // A limited key cannot grant `admin`, either: a key with resources and `admin` is invalid.
        let expected =
            if asked["scopes"][0] == "admin" { [403, 422].contains(&status.as_u16()) } else { status == expected };
        assert!(expected, "{asked}: {status} {reply}");
        if status == 201 {
            assert_eq!(reply["expires_at"], "2099-01-01T00:00:00Z", "{reply}");
            assert_ne!(reply["resources"], json!([]), "{reply}");
        }
    }
    let (status, reply) = make(&platform, &json!({"scopes": ["admin"], "resources": ["exchange:e"]})).await;
    assert_eq!(status, 422, "{reply}");
    platform.stop().await;
}

#[tokio::test]
async fn a22_a_key_revokes_itself_and_keys_without_more_rights() {
    let platform = platform().await;
    let id_of = |made: &Json| made["id"].as_str().expect("an id").to_owned();
    let (_, keeper) = make(&platform, &json!({"roles": ["key_admin"], "scopes": ["events:write"]})).await;
    let keeper_key = keeper["key"].as_str().expect("a key").to_owned();
    let (_, equal) = make(&platform, &json!({"scopes": ["events:write"]})).await;
    let (_, more) = make(&platform, &json!({"scopes": ["events:write", "operations:read"]})).await;
    let (_, listed) = platform.get("/v1/keys").await;
    let admin = listed["items"].as_array().expect("keys").iter().find(|key| key["scopes"][0] == "admin").expect("one");
    let limited = make(&platform, &json!({"roles": ["key_admin"], "resources": ["exchange:e"]})).await.1;
    let limited_key = limited["key"].as_str().expect("a key");
    let remove = async |key: &str, id: &str| {
        send_request(&platform, key, "DELETE", &format!("/v1/keys/{id}"), None).await.0.as_u16()
    };
    assert_eq!(remove(limited_key, &id_of(&equal)).await, 404, "a limited key does not see it");
    assert_eq!(remove(limited_key, "none").await, 404);
    let (_, seen) = send_request(&platform, limited_key, "GET", "/v1/keys", None).await;
    assert_eq!(seen["items"].as_array().map(Vec::len), Some(1), "only itself: {seen}");
    assert_eq!(remove(&keeper_key, &id_of(admin)).await, 403);
    assert_eq!(remove(&keeper_key, &id_of(&more)).await, 403);
    assert_eq!(remove(&keeper_key, &id_of(&equal)).await, 204);
    assert_eq!(remove(&keeper_key, &id_of(&keeper)).await, 204, "its own");
    assert_eq!(remove(&keeper_key, &id_of(&limited)).await, 401);
    platform.stop().await;
}

#[tokio::test]
async fn a22_no_address_takes_an_api_key() {
    let platform = platform().await;
    for path in
        ["/v1/subscribers/alice/inbox", "/v1/subscribers/alice/inbox/unread", "/v1/subscribers/alice/inbox/stream"]
    {
        let request = platform.client.get(format!("{}{path}?token={}", platform.address, platform.key));
        let (status, reply) = answer(request).await;
        assert_eq!(status, 401, "{path}: {reply}");
        assert!(reply.to_string().contains("Authorization"), "{reply}");
    }
    platform.stop().await;
}
