//! Live streams over HTTP: states by topic, resumption, and the end of the credential.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

use crate::{
    inbox::Events,
    platform::{Platform, answer},
};

const JSON: &str = "application/json";

async fn open(platform: &Platform, key: &str, query: &str, after: Option<&str>) -> Events {
    let mut request = platform.client.get(format!("{}/v1/stream{query}", platform.address)).bearer_auth(key);
    if let Some(after) = after {
        request = request.header("last-event-id", after);
    }
    Events::of(request).await
}

async fn submit(platform: &Platform) {
    let event = r#"{"place": "Kobe", "magnitude": 6.1}"#;
    assert_eq!(platform.post("/v1/applications/quakes/events/quake", JSON, event).await.0, 202);
}

/// The next event of a topic that satisfies a test.
async fn until(events: &mut Events, topic: &str, is_so: impl Fn(&Json) -> bool) -> (String, Json) {
    loop {
        let (id, event, data) = events.next().await.expect("an event");
        if event == topic && is_so(&data) {
            return (id, data);
        }
    }
}

#[tokio::test]
async fn a_stream_begins_with_the_present_states_and_follows_changes() {
    let platform = Platform::with_quakes().await;
    submit(&platform).await;
    let mut events = open(&platform, &platform.key, "", None).await;
    let mut first = BTreeMap::new();
    while first.len() < 8 {
        let (_, topic, data) = events.next().await.expect("a state");
        first.insert(topic, data);
    }
    let topics: Vec<&str> = first.keys().map(String::as_str).collect();
    assert_eq!(
        topics,
        ["attention", "audit", "batches", "firings", "messages", "notifications", "status", "suspensions"]
    );
    assert_eq!(first["batches"], json!({"event_batches": 1, "events": 1, "newest": "eb-1"}));
    assert_eq!(first["status"]["events"], 1);
    submit(&platform).await;
    let (id, data) = until(&mut events, "batches", |data| data["event_batches"] == 2).await;
    assert_eq!(data["newest"], "eb-2");
    // Another stream shares the states; with an id it gets only newer ones.
    let mut resumed = open(&platform, &platform.key, "?topics=batches", Some(&id)).await;
    submit(&platform).await;
    let (_, topic, data) = resumed.next().await.expect("an event");
    assert_eq!((topic.as_str(), &data["newest"]), ("batches", &json!("eb-3")));
    let mut reset = open(&platform, &platform.key, "?topics=batches", Some("before-7")).await;
    assert_eq!(reset.next().await.expect("an event").1, "reset");
    assert_eq!(reset.next().await.expect("an event").1, "batches");
    drop((events, resumed, reset));
    platform.stop().await;
}

#[tokio::test]
async fn batches_are_filtered_by_application() {
    let platform = Platform::with_quakes().await;
    let other = crate::platform::QUAKES.replace("application: quakes", "application: other");
    assert_eq!(platform.put("/v1/applications/other", "application/yaml", &other).await.0, 201);
    let mut events = open(&platform, &platform.key, "?topics=batches&application=quakes", None).await;
    let event = r#"{"place": "Wien", "magnitude": 1.1}"#;
    assert_eq!(platform.post("/v1/applications/other/events/quake", JSON, event).await.0, 202);
    submit(&platform).await;
    let (_, topic, data) = events.next().await.expect("an event");
    assert_eq!((topic.as_str(), &data["newest"]), ("batches", &json!("eb-2")), "the batch of another is not shown");
    drop(events);
    platform.stop().await;
}

#[tokio::test]
async fn a_stream_ends_with_its_key() {
    let platform = Platform::with_quakes().await;
    let (id, key) = platform.make_key(&["operations:read"]).await;
    let mut events = open(&platform, &key, "?topics=status", None).await;
    assert_eq!(events.next().await.expect("a state").1, "status");
    platform.revoke(&id).await;
    assert_eq!(events.end().await, "revoked");
    for (query, status) in [("?topics=odd", 422), ("?topics=", 422), ("?topics=sync", 403)] {
        let (_, key) = platform.make_key(&["operations:read"]).await;
        let request = platform.client.get(format!("{}/v1/stream{query}", platform.address)).bearer_auth(key);
        assert_eq!(answer(request).await.0, status, "{query}");
    }
    platform.stop().await;
}
