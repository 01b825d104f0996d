//! Searches of events and notifications, and the content of a notification, over HTTP.

use serde_json::{Value as Json, json};
use tocsin_testkit::ScriptedAnswer;

use crate::platform::{Platform, answer};

const JSON: &str = "application/json";

/// Two quakes, one of which notifies Alice, whose mail is refused.
async fn with_quakes() -> Platform {
    let platform = Platform::with_quakes().await;
    let interest = r#"{"application": "quakes", "class": "strong", "subscriber": "alice", "values": {"magnitude": 5}}"#;
    assert_eq!(platform.post("/v1/subscriptions", JSON, interest).await.0, 201);
    platform.far_ends.set("alice@example.org", ScriptedAnswer::Refuses);
    let events = r#"[{"place": "Kobe", "magnitude": 6.1}, {"place": "Wien", "magnitude": 2.5}]"#;
    assert_eq!(platform.post("/v1/applications/quakes/events/quake", JSON, events).await.0, 202);
    until(&platform, "/v1/notifications/n-1-0", |found| found["state"] == "refused").await;
    platform
}

/// Polls a path until its response is as expected.
async fn until(platform: &Platform, path: &str, is_so: impl Fn(&Json) -> bool) -> Json {
    loop {
        let (status, found) = platform.get(path).await;
        if status == 200 && is_so(&found) {
            return found;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn events_are_searched_and_counted() {
    let platform = with_quakes().await;
    let (status, found) = platform.get("/v1/events?limit=5").await;
    assert_eq!(status, 200, "{found}");
    let ids = |found: &Json| {
        let items = found["items"].as_array().expect("items").iter();
        items.map(|item| item["id"].as_str().expect("an id").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&found), ["e-1-1", "e-1-0"]);
    assert_eq!((&found["next"], &found["scanned"]), (&Json::Null, &json!({"batches": 1, "events": 2})), "{found}");
    assert_eq!(found["items"][1]["event"], json!({"place": "Kobe", "magnitude": 6.1}));
    let of_class = "application=quakes&class=quake";
    let (_, strong) = platform.get(&format!("/v1/events?{of_class}&where=event.magnitude%20%3E%205")).await;
    assert_eq!(ids(&strong), ["e-1-0"]);
    let (_, counted) = platform.get(&format!("/v1/events?{of_class}&count_by=place")).await;
    let values = json!([{"value": "Kobe", "count": 1}, {"value": "Wien", "count": 1}]);
    assert_eq!(counted["counts"], json!({"field": "place", "values": values, "other": 0}), "{counted}");
    let (_, first) = platform.get("/v1/events?limit=1").await;
    assert!(first["scanned_to"].is_string(), "{first}");
    let next = first["next"].as_str().expect("a cursor");
    let (_, rest) = platform.get(&format!("/v1/events?limit=5&after={next}")).await;
    assert_eq!(ids(&rest), ["e-1-0"]);

    let (status, wrong) = platform.get(&format!("/v1/events?{of_class}&where=event.magnitud%20%3E%205")).await;
    assert_eq!((status.as_u16(), wrong["problems"][0]["path"].as_str()), (422, Some("where")), "{wrong}");
    let (status, wrong) = platform.get("/v1/events?where=true").await;
    assert_eq!((status.as_u16(), wrong["problems"][0]["code"].as_str()), (422, Some("required")), "{wrong}");
    assert_eq!(platform.get("/v1/events?application=quaks").await.0, 404);
    platform.stop().await;
}

#[tokio::test]
async fn notifications_are_searched_and_rendered_again() {
    let platform = with_quakes().await;
    let search = "/v1/notifications?subscriber=alice&outcome=refused,expired&application=quakes&channel=mail";
    let (status, found) = platform.get(search).await;
    assert_eq!(status, 200, "{found}");
    let item = &found["items"][0];
    assert_eq!((item["id"].as_str(), item["event_id"].as_str()), (Some("n-1-0"), Some("e-1-0")), "{found}");
    assert_eq!((&item["state"], &item["attempts"]), (&json!("refused"), &json!(1)), "{item}");
    assert_eq!(item["recipient"]["address"], "alice@example.org", "{item}");
    for none in ["outcome=delivered", "address=bob@example.org", "to=2020-01-01T00:00:00Z", "reason=odd"] {
        let (status, found) = platform.get(&format!("/v1/notifications?{none}")).await;
        assert_eq!((status.as_u16(), &found["items"]), (200, &json!([])), "{none}: {found}");
    }
    assert_eq!(platform.get("/v1/notifications?outcome=sent").await.0, 422);
    assert_eq!(platform.get("/v1/notifications?subscriber=bob").await.0, 404);

    let (status, content) = platform.get("/v1/notifications/n-1-0/content").await;
    assert_eq!(status, 200, "{content}");
    assert_eq!(content["parts"], json!([{"part": "text", "content": "A quake at Kobe"}]), "{content}");
    assert_eq!((&content["address"], &content["html"]), (&json!("alice@example.org"), &Json::Null), "{content}");
    assert_eq!(platform.get("/v1/previews/n-1-0/html").await.0, 404, "it has no HTML part");
    assert_eq!(platform.get("/v1/notifications/n-1-7/content").await.0, 404);
    platform.stop().await;
}

#[tokio::test]
async fn html_is_served_for_a_sandboxed_frame() {
    let platform = Platform::start().await;
    let definition = crate::platform::QUAKES.replace(
        "base: {text: 'A quake at {{ place }}'}",
        "base: {text: 'A quake at {{ place }}', html: '<script>alert(1)</script><p>A quake at {{ place }}</p>'}",
    );
    assert_eq!(platform.put("/v1/applications/quakes", "application/yaml", &definition).await.0, 201);
    let alice = r#"{"id":"alice","devices":{"mail":{"channel":"mail","address":"alice@example.org"}}}"#;
    assert_eq!(platform.post("/v1/subscribers", JSON, alice).await.0, 201);
    let interest = r#"{"application": "quakes", "class": "strong", "subscriber": "alice", "values": {"magnitude": 5}}"#;
    assert_eq!(platform.post("/v1/subscriptions", JSON, interest).await.0, 201);
    let event = r#"{"place": "Kobe", "magnitude": 6.1}"#;
    assert_eq!(platform.post("/v1/applications/quakes/events/quake", JSON, event).await.0, 202);
    until(&platform, "/v1/notifications/n-1-0", |found| found["state"] == "delivered").await;
    // A later version and a disabled device do not matter.
    let changed = definition.replace("A quake at", "Shaken:");
    assert_eq!(platform.put("/v1/applications/quakes", "application/yaml", &changed).await.0, 200);
    let (_, content) = platform.get("/v1/notifications/n-1-0/content").await;
    assert_eq!((&content["version"], &content["html"]), (&json!(1), &json!("/v1/previews/n-1-0/html")), "{content}");
    let response = platform.request("GET", "/v1/previews/n-1-0/html").send().await.expect("an answer");
    assert_eq!(response.status(), 200);
    let header = |name: &str| response.headers()[name].to_str().expect("text").to_owned();
    assert_eq!(header("content-type"), "text/html; charset=utf-8");
    assert_eq!(
        header("content-security-policy"),
        "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'"
    );
    assert_eq!(header("cache-control"), "no-store");
    let html = response.text().await.expect("a body");
    assert!(html.contains("<p>A quake at Kobe</p>"), "{html}");
    // A preview of templates has its HTML at a path of its own, for the key that made it.
    let draft = json!({"event": {"place": "Wien", "magnitude": 6.0}, "channel": "mail"}).to_string();
    let (status, preview) = platform.post("/v1/applications/quakes/preview", JSON, &draft).await;
    assert_eq!(status, 200, "{preview}");
    let path = preview["html"].as_str().expect("a path");
    let response = platform.request("GET", path).send().await.expect("an answer");
    let policy = response.headers()["content-security-policy"].to_str().expect("text").to_owned();
    assert!(policy.starts_with("sandbox; default-src 'none'"), "{policy}");
    assert!(response.text().await.expect("a body").contains("<p>Shaken: Wien</p>"));
    let (_, other) = platform.make_key(&["operations:read"]).await;
    let request = platform.client.get(format!("{}{path}", platform.address)).bearer_auth(other);
    assert_eq!(answer(request).await.0, 404, "it belongs to another key");
    let anonymous = platform.client.get(format!("{}/v1/previews/n-1-0/html", platform.address));
    assert_eq!(answer(anonymous).await.0, 401);
    platform.stop().await;
}

#[tokio::test]
async fn a_limited_key_searches_its_application_only() {
    let platform = with_quakes().await;
    let asked = json!({"scopes": ["operations:read"], "resources": ["application:quakes"]}).to_string();
    let (_, made) = platform.post("/v1/keys", JSON, &asked).await;
    let key = made["key"].as_str().expect("a key");
    let get = async |path: &str| {
        let request = platform.client.get(format!("{}{path}", platform.address)).bearer_auth(key);
        answer(request).await.0.as_u16()
    };
    for path in ["/v1/events", "/v1/notifications", "/v1/series?names=events", "/v1/stream?topics=batches"] {
        assert_eq!(get(path).await, 403, "{path}");
    }
    for path in ["/v1/events?application=quakes", "/v1/notifications?application=quakes&subscriber=bob"] {
        assert_eq!(get(path).await, 200, "{path}");
    }
    assert_eq!(get("/v1/series?names=events&application=quakes").await, 200);
    assert_eq!(get("/v1/events?application=other").await, 404);
    assert_eq!(get("/v1/stream?topics=status&application=quakes").await, 403);
    assert_eq!(get("/v1/notifications/n-1-0/content").await, 200);
    platform.stop().await;
}

#[tokio::test]
async fn whole_lists_have_pages() {
    let platform = Platform::with_quakes().await;
    let changed = crate::platform::QUAKES.replace("A quake at", "Shaken:");
    assert_eq!(platform.put("/v1/applications/quakes", "application/yaml", &changed).await.0, 200);
    let other = crate::platform::QUAKES.replace("application: quakes", "application: other");
    assert_eq!(platform.put("/v1/applications/other", "application/yaml", &other).await.0, 201);
    platform.make_key(&["operations:read"]).await;
    let pages = async |path: &str, member: &str| {
        let (mut values, mut after) = (Vec::new(), String::new());
        loop {
            let (status, page) = platform.get(&format!("{path}?limit=1{after}")).await;
            assert_eq!(status, 200, "{path}: {page}");
            assert!(page["items"].as_array().is_some_and(|items| items.len() <= 1), "{page}");
            values.extend(page["items"].as_array().into_iter().flatten().map(|item| item[member].clone()));
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => return values,
            }
        }
    };
    assert_eq!(pages("/v1/applications", "name").await, ["other", "quakes"]);
    assert_eq!(pages("/v1/applications/quakes/history", "version").await, [2, 1]);
    assert_eq!(pages("/v1/keys", "id").await.len(), 2);
    let off = r#"{"component": "channel:quakes/mail", "state": "paused", "reason": "test"}"#;
    let (status, answered) = platform.post("/v1/switches/off", JSON, off).await;
    assert_eq!(status, 204, "{answered}");
    assert_eq!(pages("/v1/switches", "component").await.len(), 1);
    let (status, answered) =
        platform.post("/v1/applications/quakes/rules/strong_enough/stop", JSON, r#"{"reason": "test"}"#).await;
    assert!(status.is_success(), "{answered}");
    assert_eq!(pages("/v1/stopped-rules", "rule").await, ["strong_enough"]);
    let (_, none) = platform.get("/v1/stopped-rules?application=other").await;
    assert_eq!(none["items"], json!([]));
    platform.stop().await;
}
