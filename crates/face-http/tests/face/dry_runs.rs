//! Dry runs of operations on many objects, and groups of suspensions.

use serde_json::{Value as Json, json};

use crate::platform::Platform;

const JSON: &str = "application/json";

/// A platform with notifications of one event for two subscribers without a device.
async fn suspended() -> Platform {
    let platform = Platform::with_quakes().await;
    for id in ["bob", "carl"] {
        let (status, body) = platform.post("/v1/subscribers", JSON, &json!({"id": id}).to_string()).await;
        assert_eq!(status, 201, "{body}");
        let draft = json!({"application": "quakes", "class": "strong", "subscriber": id, "values": {"magnitude": 5}});
        let (status, body) = platform.post("/v1/subscriptions", JSON, &draft.to_string()).await;
        assert_eq!(status, 201, "{body}");
    }
    let event = r#"{"place": "Kobe", "magnitude": 6.1}"#;
    let (status, body) = platform.post("/v1/applications/quakes/events/quake", JSON, event).await;
    assert_eq!(status, 202, "{body}");
    let settled = async {
        while platform.get("/v1/suspensions/groups").await.1["items"][0]["notifications"] != 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(tocsin_test_peers::wait_timeout(), settled).await.expect("both are suspended");
    platform
}

#[tokio::test]
async fn a_dry_run_on_suspensions_counts_and_changes_nothing() {
    let platform = suspended().await;
    let (_, before) = platform.get("/v1/suspensions").await;
    let post = async |path: &str, body: &str| platform.post(path, JSON, body).await;
    for act in ["resume", "end"] {
        let path = format!("/v1/suspensions/{act}?dry_run=true");
        let (status, body) = post(&path, r#"{"reason": "active device"}"#).await;
        assert_eq!((status.as_u16(), body), (200, json!({"notifications": 2, "dry_run": true})), "{act}");
        let (_, body) = post(&path, r#"{"reason": "timeout"}"#).await;
        assert_eq!(body, json!({"notifications": 0, "dry_run": true}), "{act}");
        // As strict as the operation itself.
        assert_eq!(post(&path, "{}").await.0, 422, "{act}");
        assert_eq!(post(&path, r#"{"application": "quaks"}"#).await.0, 404, "{act}");
    }
    let id = before["items"][0]["id"].as_u64().expect("an id");
    let path = format!("/v1/suspensions/{id}/edit?dry_run=true");
    let (status, body) = platform.put(&path, JSON, r#"{"edit": {"fields": {"place": "Lima"}}}"#).await;
    let notifications = &before["items"][0]["notifications"];
    assert_eq!((status.as_u16(), &body), (200, &json!({"id": id, "notifications": notifications, "dry_run": true})));
    assert_eq!(platform.put(&path, JSON, r#"{"edit": {"fields": {"plaec": "Lima"}}}"#).await.0, 422);
    assert_eq!(platform.get("/v1/suspensions").await.1, before, "nothing was changed");
    let (_, body) = post("/v1/suspensions/end", r#"{"all": true}"#).await;
    assert_eq!(body, json!({"notifications": 2}));
    platform.stop().await;
}

#[tokio::test]
async fn suspensions_are_counted_by_groups_with_the_code_of_their_reason() {
    let platform = suspended().await;
    let (status, found) = platform.get("/v1/suspensions/groups?by=reason,channel,application&class=shaken").await;
    assert_eq!((status.as_u16(), &found["exact"]), (200, &json!(true)), "{found}");
    let group = &found["items"][0];
    let reason = "the subscriber has no active device, or not the one that its subscription names";
    let expected = json!(["quakes", reason, "no_device_at_match", 2]);
    let shown = json!([group["application"], group["reason"], group["code"], group["notifications"]]);
    assert_eq!(shown, expected, "{found}");
    assert!(group["since_first"].is_string() && group["channel"].is_string(), "{found}");
    let (_, found) = platform.get("/v1/suspensions/groups?by=application").await;
    let group = found["items"][0].as_object().expect("a group");
    assert!(group.contains_key("application"), "{found}");
    assert!(["channel", "reason", "code"].iter().all(|name| !group.contains_key(*name)), "{found}");
    let (_, none) = platform.get("/v1/suspensions/groups?before=2020-01-01T00:00:00Z").await;
    assert_eq!(none, json!({"items": [], "exact": true}));
    let (status, problem) = platform.get("/v1/suspensions/groups?by=chanel").await;
    assert_eq!((status.as_u16(), &problem["problems"][0]["path"]), (422, &json!("by")), "{problem}");
    // The code stands beside the reason of each suspension, too.
    let (_, listed) = platform.get("/v1/suspensions").await;
    assert_eq!(listed["items"][0]["code"], "no_device_at_match", "{listed}");
    platform.stop().await;
}

#[tokio::test]
async fn a_dry_run_of_an_import_checks_the_lines_and_stores_none() {
    let platform = Platform::with_quakes().await;
    let import = async |path: &str, body: &str| -> Vec<Json> {
        let request = platform.request("POST", path).header("content-type", "application/x-ndjson");
        let text = request.body(body.to_owned()).send().await.expect("an answer").text().await.expect("a body");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    let people = "{\"id\":\"bob\"}\n{\"id\":\"carl\",\"locale\":7}\n";
    let answer = import("/v1/import/subscribers?dry_run=true", people).await;
    assert_eq!(answer[0]["line"], 2, "{answer:?}");
    assert_eq!(answer[1], json!({"lines": 2, "stored": 1, "failed": 1, "dry_run": true}));
    assert_eq!(platform.get("/v1/subscribers/bob").await.0, 404, "nothing was stored");
    let subscription = r#"{"subscriber":"alice","values":{"magnitude":5}}"#;
    let path = "/v1/import/subscriptions?application=quakes&class=strong&dry_run=true";
    assert_eq!(import(path, subscription).await, [json!({"lines": 1, "stored": 1, "failed": 0, "dry_run": true})]);
    assert_eq!(platform.get("/v1/subscriptions").await.1["items"], json!([]));
    let suppression = r#"{"protocol":"smtp","address":"a@b.example","cause":"manual"}"#;
    let answer = import("/v1/import/suppressions?dry_run=true", suppression).await;
    assert_eq!(answer, [json!({"lines": 1, "stored": 1, "failed": 0, "dry_run": true})]);
    assert_eq!(platform.get("/v1/suppressions").await.1["items"], json!([]));
    platform.stop().await;
}
