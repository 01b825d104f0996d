//! Tests of notification preferences, and of edits of suspended notifications.

use serde_json::{Value as Json, json};

use crate::platform::Platform;

const JSON: &str = "application/json";

#[tokio::test]
async fn preferences_are_kept_until_they_are_taken_away() {
    let platform = Platform::with_quakes().await;
    let wants =
        r#"{"preferences": {"quiet_hours": ["22:00-7:00"], "notifications": {"quakes/shaken": {"enabled": false}}}}"#;
    let (status, body) = platform.put("/v1/subscribers/alice", JSON, wants).await;
    assert_eq!(status, 200, "{body}");
    let expected = json!({"quiet_hours": ["22:00-07:00"], "notifications": {"quakes/shaken": {"enabled": false}}});
    assert_eq!(body["preferences"], expected);
    let (_, body) = platform.put("/v1/subscribers/alice", JSON, r#"{"locale": "de"}"#).await;
    assert_eq!((&body["locale"], &body["preferences"]), (&json!("de"), &expected));
    let (status, body) = platform
        .put("/v1/subscribers/alice", JSON, r#"{"preferences": {"notifications": {"a/b/c": {}, "*": {}}}}"#)
        .await;
    assert_eq!(status, 422, "{body}");
    assert!(body.to_string().contains("a/b/c"), "{body}");
    let (status, _) =
        platform.put("/v1/subscribers/alice", JSON, r#"{"preferences": {"quiet_hours": ["late"]}}"#).await;
    assert!(status == 400 || status == 422, "{status}");
    let patch = platform.request("PATCH", "/v1/subscribers/alice").header("content-type", JSON);
    let (status, body) = crate::platform::answer(patch.body(r#"{"preferences": null}"#)).await;
    assert_eq!((status.as_u16(), &body["preferences"]), (200, &json!({})));
    platform.stop().await;
}

#[tokio::test]
async fn what_is_suspended_is_shown_edited_and_resumed() {
    let platform = Platform::with_quakes().await;
    let (status, body) = platform.post("/v1/subscribers", JSON, r#"{"id": "bob"}"#).await;
    assert_eq!(status, 201, "{body}");
    let interest = r#"{"application": "quakes", "class": "strong", "subscriber": "bob", "values": {"magnitude": 5}}"#;
    let (status, body) = platform.post("/v1/subscriptions", JSON, interest).await;
    assert_eq!(status, 201, "{body}");
    let event = r#"{"place": "Kobe", "magnitude": 6.1}"#;
    let (status, body) = platform.post("/v1/applications/quakes/events/quake", JSON, event).await;
    assert_eq!(status, 202, "{body}");
    let listed = loop {
        let (_, listed) = platform.get("/v1/suspensions?reason=ACTIVE%20device&class=shaken").await;
        if listed["items"].as_array().is_some_and(|items| !items.is_empty()) {
            break listed;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!((&listed["items"][0]["id"], &listed["items"][0]["edited"]), (&json!(1), &json!(false)));
    let (_, none) = platform.get("/v1/suspensions?before=2020-01-01T00:00:00Z").await;
    assert_eq!(none["items"], json!([]));

    let (status, found) = platform.get("/v1/suspensions/1").await;
    assert_eq!(status, 200, "{found}");
    assert_eq!(found["shown"][0]["problem"], "the subscriber has no active device");
    assert_eq!(found["shown"][0]["notification"]["fields"], json!({"place": "Kobe"}));
    assert_eq!(platform.get("/v1/suspensions/7").await.0, 404);
    assert_eq!(platform.get("/v1/suspensions/x").await.0, 404);

    for (edit, path) in [
        (r#"{"edit": {"fields": {"plaec": "Lima"}}}"#, "edit.fields.plaec"),
        (r#"{"edit": {"content": {"subject": "a\nb"}}}"#, "edit.content.subject"),
        (r#"{"edit": {}}"#, "edit"),
        (r#"{"edit": {"address": "x"}, "notifications": ["n-1-9"]}"#, "notifications"),
    ] {
        let (status, body) = platform.put("/v1/suspensions/1/edit", JSON, edit).await;
        assert_eq!(status, 422, "{edit}: {body}");
        assert!(body.to_string().contains(path), "{edit}: {body}");
    }
    let missing = platform.put("/v1/suspensions/1/edit", JSON, "{}").await;
    assert!(missing.0.is_client_error(), "{missing:?}");

    let device = r#"{"channel": "mail", "address": "bob@example.org"}"#;
    assert_eq!(platform.put("/v1/subscribers/bob/devices/mail", JSON, device).await.0, 201);
    let edit = r#"{"edit": {"fields": {"place": "Lima"}, "address": "ops@example.org"}, "notifications": ["n-1-0"]}"#;
    let (status, body) = platform.put("/v1/suspensions/1/edit", JSON, edit).await;
    assert_eq!((status.as_u16(), body), (200, json!({"id": 1, "notifications": 1})));
    let (_, found) = platform.get("/v1/suspensions/1").await;
    let shown: &Json = &found["shown"][0];
    assert_eq!((&shown["text"], &shown["address"]), (&json!("A quake at Lima"), &json!("ops@example.org")));
    assert_eq!((&found["edited"], &found["edit"]["fields"]), (&json!(true), &json!({"place": "Lima"})));

    // An empty filter would select all.
    for act in ["resume", "end"] {
        let (status, body) = platform.post(&format!("/v1/suspensions/{act}"), JSON, r#"{"reason": ""}"#).await;
        assert_eq!((status.as_u16(), &body["problems"][0]["path"]), (422, &json!("reason")), "{body}");
    }
    let (status, body) = platform.post("/v1/suspensions/resume", JSON, r#"{"reason": "active device"}"#).await;
    assert_eq!((status.as_u16(), body), (200, json!({"notifications": 1})));
    while !platform.far_ends.seen().iter().any(|line| line.contains("ops@example.org n-1-0")) {
        tokio::task::yield_now().await;
    }
    platform.stop().await;
}
