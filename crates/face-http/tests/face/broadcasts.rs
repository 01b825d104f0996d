//! Tests of broadcasts: count, preview, test, send once, cancel, results.

use std::time::Duration;

use serde_json::{Value as Json, json};
use tocsin_testkit::ScriptedAnswer;

use crate::platform::{Platform, answer, json};

const JSON: &str = "application/json";

/// Alice and Bob, with a subscription each; mail to Bob is refused.
async fn with_people() -> Platform {
    let platform = Platform::with_quakes().await;
    let bob =
        r#"{"id": "bob", "locale": "de", "devices": {"mail": {"channel": "mail", "address": "bob@example.org"}}}"#;
    let (status, body) = platform.post("/v1/subscribers", JSON, bob).await;
    assert_eq!(status, 201, "{body}");
    for (subscriber, magnitude) in [("alice", 5), ("bob", 7)] {
        let values = json!({"magnitude": magnitude});
        let interest = json!({"application": "quakes", "class": "strong", "subscriber": subscriber, "values": values});
        let (status, body) = platform.post("/v1/subscriptions", JSON, &interest.to_string()).await;
        assert_eq!(status, 201, "{body}");
    }
    platform.far_ends.set("bob@example.org", ScriptedAnswer::Refuses);
    platform
}

fn draft() -> Json {
    let base = json!({"subject": "Drill on {{ day }}", "text": "Dear {{ subscriber.id }}, {{ sub.magnitude }}."});
    let templates = json!({"base": base, "de": {"subject": "Probe am {{ day }}"}});
    json!({
        "application": "quakes", "title": "Drill", "subscription": "strong", "data": {"day": "Monday"},
        "content": {"templates": templates},
    })
}

fn with(member: &str, value: Json) -> Json {
    let mut draft = draft();
    draft[member] = value;
    draft
}

/// A time in a day.
fn tomorrow(platform: &Platform) -> Json {
    json!((platform.service.now() + Duration::from_secs(86_400)).to_string())
}

async fn send(platform: &Platform, key: &str, body: &Json) -> (u16, Json, Option<String>) {
    let request = platform.request("POST", "/v1/broadcasts").header("content-type", JSON);
    let response = request.header("idempotency-key", key).body(body.to_string()).send().await.expect("an answer");
    let location = response.headers().get("location").map(|place| place.to_str().expect("text").to_owned());
    (response.status().as_u16(), json(response).await, location)
}

/// Polls a broadcast until it has a state.
async fn until(platform: &Platform, id: &str, state: &str) -> Json {
    loop {
        let (status, found) = platform.get(&format!("/v1/broadcasts/{id}")).await;
        assert_eq!(status, 200, "{found}");
        if found["state"] == state {
            return found;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn it_is_counted_tested_sent_once_and_followed() {
    let platform = with_people().await;
    let counted = platform.post("/v1/broadcasts/count", JSON, &json!({"broadcast": draft()}).to_string()).await;
    assert_eq!(counted.0, 200, "{}", counted.1);
    assert_eq!((&counted.1["recipients"], &counted.1["channels"]), (&json!(2), &json!({"mail": 2})), "{}", counted.1);
    assert_eq!(counted.1["sample"][0]["subscriber"], "alice");
    let narrow = json!({"broadcast": with("when", json!("sub.magnitude > 6.0")), "sample": 0});
    let (_, counted) = platform.post("/v1/broadcasts/count", JSON, &narrow.to_string()).await;
    assert_eq!((&counted["recipients"], &counted["sample"]), (&json!(1), &json!([])), "{counted}");

    let asked = json!({"broadcast": draft(), "to": {"subscriber": "bob"}});
    let (status, shown) = platform.post("/v1/broadcasts/preview", JSON, &asked.to_string()).await;
    assert_eq!(status, 200, "{shown}");
    assert!(shown.to_string().contains("Probe am Monday"), "{shown}");
    let asked = json!({"broadcast": draft(), "to": {"subscriber": "alice"}});
    let (status, tested) = platform.post("/v1/broadcasts/test", JSON, &asked.to_string()).await;
    assert_eq!((status.as_u16(), &tested["outcome"]), (200, &json!("delivered")), "{tested}");
    assert_eq!(platform.get("/v1/broadcasts").await.1["items"], json!([]), "nothing is stored so far");

    let (status, sent, location) = send(&platform, "monday", &draft()).await;
    assert_eq!((status, location.as_deref()), (202, Some("/v1/broadcasts/bc-1")), "{sent}");
    let done = until(&platform, "bc-1", "done").await;
    let counts = ["recipients", "delivered", "failed", "ended", "waiting", "suspended"].map(|name| done[name].clone());
    assert_eq!(counts, [json!(2), json!(1), json!(1), json!(0), json!(0), json!(0)], "{done}");
    assert_eq!(done["broadcast"], with("per", json!("subscriber")));
    let (status, again, _) = send(&platform, "monday", &draft()).await;
    assert_eq!((status, &again["id"], &again["state"]), (200, &json!("bc-1"), &json!("done")));
    let (status, other, _) = send(&platform, "monday", &with("title", json!("Other"))).await;
    assert_eq!((status, other["type"].as_str()), (409, Some("/problems/exists")), "{other}");

    let recipients = async |query: &str| {
        let (status, found) = platform.get(&format!("/v1/broadcasts/bc-1/recipients{query}")).await;
        assert_eq!(status, 200, "{found}");
        let items = found["items"].as_array().expect("a list").clone();
        let shown = |item: &Json| format!("{} {}", item["subscriber"], item["outcome"]).replace('"', "");
        (items.iter().map(shown).collect::<Vec<_>>(), found["next"].as_str().map(str::to_owned))
    };
    assert_eq!(recipients("").await.0, ["alice delivered", "bob refused"]);
    assert_eq!(recipients("?outcome=refused").await.0, ["bob refused"]);
    assert_eq!(recipients("?subscriber=alice").await.0, ["alice delivered"]);
    let (first, next) = recipients("?limit=1").await;
    assert_eq!(first, ["alice delivered"]);
    let next = next.expect("a next page");
    assert_eq!(recipients(&format!("?limit=1&after={next}")).await.0, ["bob refused"]);
    let request = platform.request("GET", "/v1/broadcasts/bc-1/recipients/export?format=csv");
    let lines = request.send().await.expect("an answer").text().await.expect("text");
    assert!(lines.starts_with("notification,subscriber,") && lines.contains(",bob,"), "{lines}");
    let (_, notification) = platform.get("/v1/notifications/n-1-0").await;
    assert_eq!(notification["event"]["day"], "Monday", "{notification}");
    platform.stop().await;
}

#[tokio::test]
async fn it_waits_for_its_time_and_is_paused_and_cancelled() {
    let platform = with_people().await;
    let (status, sent, _) = send(&platform, "later", &with("starts_at", tomorrow(&platform))).await;
    assert_eq!((status, &sent["state"]), (202, &json!("scheduled")), "{sent}");
    let change = async |what: &str, id: &str| {
        let path = format!("/v1/broadcasts/{id}/{what}");
        let (status, found) = platform.post(&path, JSON, r#"{"reason": "typo"}"#).await;
        (status.as_u16(), found["state"].clone(), found["reason"].clone())
    };
    assert_eq!(change("pause", "bc-1").await, (200, json!("paused"), json!("typo")));
    assert_eq!(change("pause", "bc-1").await.0, 200, "a repetition changes nothing");
    assert_eq!(change("resume", "bc-1").await.1, json!("scheduled"));
    assert_eq!(change("cancel", "bc-1").await.1, json!("cancelled"));
    assert_eq!(change("cancel", "bc-1").await.0, 200);
    assert_eq!(change("resume", "bc-1").await.0, 422);
    assert_eq!(change("cancel", "bc-9").await.0, 404);
    let (_, list) = platform.get("/v1/broadcasts?application=quakes&state=cancelled").await;
    assert_eq!(list["items"][0]["id"], "bc-1", "{list}");
    platform.stop().await;
}

#[tokio::test]
async fn problems_name_members_of_the_draft() {
    let platform = with_people().await;
    for (member, value, path) in [
        ("subscription", json!("weak"), "subscription"),
        ("segment", json!("gold"), "segment"),
        ("when", json!("sub.size > 1"), "when"),
        ("class", json!("news"), "class"),
        ("content", json!({"templates": {"base": {"text": "{{ nothing }}"}}}), "content.templates"),
        ("data", json!({"event": 1}), "data.event"),
        ("expires_at", json!("2000-01-01T00:00:00Z"), "expires_at"),
    ] {
        let (status, body, _) = send(&platform, member, &with(member, value)).await;
        assert_eq!(status, 422, "{member}: {body}");
        let paths: Vec<&str> =
            body["problems"].as_array().expect("problems").iter().filter_map(|e| e["path"].as_str()).collect();
        assert!(paths.iter().any(|found| found.starts_with(path)), "{member}: {body}");
    }
    platform.stop().await;
}

#[tokio::test]
async fn a_segment_of_a_scheduled_broadcast_cannot_be_removed() {
    let platform = with_people().await;
    let (status, body) = platform.put("/v1/segments/german", JSON, r#"{"filter": "(locale=de)"}"#).await;
    assert_eq!(status, 201, "{body}");
    let mut draft = with("segment", json!("german"));
    let (_, counted) = platform.post("/v1/broadcasts/count", JSON, &json!({"broadcast": draft}).to_string()).await;
    assert_eq!(counted["sample"][0]["subscriber"], "bob", "{counted}");
    draft["starts_at"] = tomorrow(&platform);
    assert_eq!(send(&platform, "later", &draft).await.0, 202);
    let (status, body) = answer(platform.request("DELETE", "/v1/segments/german")).await;
    assert_eq!((status.as_u16(), body["type"].as_str()), (409, Some("/problems/in-use")), "{body}");
    let (status, _) = platform.post("/v1/broadcasts/bc-1/cancel", JSON, "{}").await;
    assert_eq!(status, 200);
    assert_eq!(answer(platform.request("DELETE", "/v1/segments/german")).await.0, 204);
    platform.stop().await;
}
