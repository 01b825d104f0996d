//! Tests of resends: count, request once, poll until done.

use serde_json::{Value as Json, json};
use tocsin_testkit::ScriptedAnswer;

use crate::platform::{Platform, answer};

const JSON: &str = "application/json";

/// Mail to Alice is rejected this many times and then accepted.
async fn with_refusals(count: usize) -> Platform {
    let platform = Platform::with_quakes().await;
    let interest = r#"{"application": "quakes", "class": "strong", "subscriber": "alice", "values": {"magnitude": 5}}"#;
    let (status, body) = platform.post("/v1/subscriptions", JSON, interest).await;
    assert_eq!(status, 201, "{body}");
    platform.far_ends.set("alice@example.org", ScriptedAnswer::Refuses);
    for _ in 0..count {
        let event = r#"{"place": "Kobe", "magnitude": 6.1}"#;
        let (status, body) = platform.post("/v1/applications/quakes/events/quake", JSON, event).await;
        assert_eq!(status, 202, "{body}");
    }
    for batch in 1..=count {
        until(&platform, &format!("/v1/notifications/n-{batch}-0"), |found| found["state"] == "refused").await;
    }
    platform.far_ends.set("alice@example.org", ScriptedAnswer::Delivers);
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

async fn send_request(platform: &Platform, key: &str, body: &Json) -> (u16, Json, Option<String>) {
    let request = platform.request("POST", "/v1/resends").header("content-type", JSON);
    let request = if key.is_empty() { request } else { request.header("idempotency-key", key) };
    let response = request.body(body.to_string()).send().await.expect("an answer");
    let location = response.headers().get("location").map(|place| place.to_str().expect("text").to_owned());
    (response.status().as_u16(), crate::platform::json(response).await, location)
}

#[tokio::test]
async fn it_is_counted_asked_for_once_and_followed() {
    let platform = with_refusals(2).await;
    let draft = json!({"subscriber": "alice", "device": "mail", "reason": "NEVER"});
    let (status, unknown) =
        platform.post("/v1/resends", JSON, r#"{"application": "quakes", "channel": "maill"}"#).await;
    assert!(status == 404 && unknown["detail"].as_str().is_some_and(|why| why.contains("maill")), "{unknown}");
    let (status, preview) = platform.post("/v1/resends/preview", JSON, &draft.to_string()).await;
    assert_eq!((status.as_u16(), preview), (200, json!({"notifications": 2, "batches": 2})));
    let (_, none) = platform.post("/v1/resends/preview", JSON, r#"{"reason": "full"}"#).await;
    assert_eq!(none["notifications"], 0);
    assert_eq!(platform.get("/v1/resends").await.1["items"], json!([]), "a preview asks for nothing");

    let (status, asked, location) = send_request(&platform, "monday", &draft).await;
    assert_eq!((status, location.as_deref()), (202, Some("/v1/resends/1")), "{asked}");
    let request = &asked["request"];
    assert_eq!((&request["channel"], &request["outcomes"]), (&json!("mail"), &json!(["refused", "suspended"])));
    let done = until(&platform, "/v1/resends/1", |found| found["done_at"].is_string()).await;
    assert_eq!((&done["notifications"], &done["last"]), (&json!(2), &json!("nb-2")), "{done}");
    for batch in [1, 2] {
        let path = format!("/v1/notifications/n-{batch}-0");
        let found = until(&platform, &path, |found| found["state"] == "delivered").await;
        let attempts = found["attempts"].as_array().expect("attempts").iter();
        let outcomes: Vec<&str> = attempts.map(|attempt| attempt["outcome"].as_str().expect("an outcome")).collect();
        assert_eq!(outcomes, ["refused", "deferred", "delivered"], "under its own id: {found}");
    }
    // A repeated key returns the progress; a repeated key with other content is an error.
    let (status, again, _) = send_request(&platform, "monday", &draft).await;
    assert_eq!((status, &again["id"], &again["done_at"]), (200, &json!(1), &done["done_at"]));
    let (status, body, _) = send_request(&platform, "monday", &json!({"all": true})).await;
    assert_eq!((status, body["type"].as_str()), (409, Some("/problems/exists")), "{body}");

    let (status, _, location) = send_request(&platform, "", &json!({"all": true})).await;
    assert_eq!((status, location.as_deref()), (202, Some("/v1/resends/2")));
    let ids = async |query: &str| {
        let (status, body) = platform.get(&format!("/v1/resends{query}")).await;
        assert_eq!(status, 200, "{body}");
        body["items"].as_array().expect("a list").iter().map(|item| item["id"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(ids("").await, [1, 2]);
    assert_eq!(ids("?limit=1").await, [1]);
    assert_eq!(ids("?after=1").await, [2]);
    platform.stop().await;
}

#[tokio::test]
async fn as_new_it_has_another_id() {
    let platform = with_refusals(1).await;
    let (status, asked, _) = send_request(&platform, "", &json!({"notification": "n-1-0", "as_new": true})).await;
    assert_eq!((status, &asked["request"]["outcomes"]), (202, &json!(["refused", "expired"])), "{asked}");
    until(&platform, "/v1/notifications/n-2-0", |found| found["state"] == "delivered").await;
    assert_eq!(platform.get("/v1/notifications/n-1-0").await.1["state"], "ended");
    platform.stop().await;
}

#[tokio::test]
async fn each_route_wants_its_scope() {
    let platform = Platform::start().await;
    for (scope, reads, writes) in [("events:write", 403, 403), ("operations:read", 200, 403)] {
        let (_, made) = platform.post("/v1/keys", JSON, &json!({"scopes": [scope]}).to_string()).await;
        let key = made["key"].as_str().expect("a key");
        let request = |method: reqwest::Method, path: &str| {
            let request = platform.client.request(method, format!("{}{path}", platform.address)).bearer_auth(key);
            request.header("content-type", JSON).body(r#"{"all": true}"#)
        };
        assert_eq!(answer(request(reqwest::Method::GET, "/v1/resends")).await.0, reads, "{scope}");
        assert_eq!(answer(request(reqwest::Method::POST, "/v1/resends/preview")).await.0, reads, "{scope}");
        assert_eq!(answer(request(reqwest::Method::POST, "/v1/resends")).await.0, writes, "{scope}");
    }
    platform.stop().await;
}
