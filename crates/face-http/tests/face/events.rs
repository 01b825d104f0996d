//! Events by every way they can come, and what becomes of them.

use crate::platform::{Platform, answer};

const EVENTS: &str = "/v1/applications/quakes/events";
const QUAKE: &str = "/v1/applications/quakes/events/quake";
const KOBE: &str = r#"{"place": "Kobe", "magnitude": 6.1}"#;

#[tokio::test]
async fn one_many_and_lines() {
    let platform = Platform::with_quakes().await;
    let (status, one) = platform.post(QUAKE, "application/json", KOBE).await;
    assert_eq!(
        (status.as_u16(), one["events"].as_u64(), one["duplicate"].as_bool()),
        (202, Some(1), Some(false)),
        "{one}"
    );
    let many = format!("[{}]", vec![KOBE; 2_500].join(","));
    let (status, many) = platform.post(QUAKE, "application/json", &many).await;
    assert_eq!((status.as_u16(), many["events"].as_u64()), (202, Some(2_500)), "{many}");
    let lines = vec![KOBE; 2_500].join("\n");
    let (status, lines) = platform.post(QUAKE, "application/x-ndjson", &lines).await;
    assert_eq!((status.as_u16(), lines["events"].as_u64()), (202, Some(2_500)), "{lines}");
    assert_eq!(lines["batches"].as_array().map(Vec::len), Some(3), "{lines}");
    let id = one["batch"].as_str().expect("an id");
    let (_, batch) = platform.get(&format!("/v1/event-batches/{id}")).await;
    assert_eq!((batch["class"].as_str(), batch["source"].as_str()), (Some("quake"), Some("api")), "{batch}");
    let (_, events) = platform.get(&format!("/v1/event-batches/{id}/events")).await;
    assert_eq!(events["items"][0]["place"], "Kobe", "{events}");
    let (_, newest) = platform.get("/v1/event-batches?limit=2").await;
    let (_, older) =
        platform.get(&format!("/v1/event-batches?before={}", newest["next"].as_str().expect("more"))).await;
    assert_eq!(older["items"].as_array().map(Vec::len), Some(3), "{older}");
    platform.stop().await;
}

#[tokio::test]
async fn a_key_makes_a_submission_repeatable() {
    let platform = Platform::with_quakes().await;
    let send = async |kind: &str, key: &str, body: &str| {
        let request = platform.request("POST", QUAKE).header("content-type", kind).header("idempotency-key", key);
        answer(request.body(body.to_owned())).await
    };
    let (_, first) = send("application/json", "a", KOBE).await;
    let (status, again) = send("application/json", "a", KOBE).await;
    assert_eq!((status.as_u16(), &again["batch"], again["duplicate"].as_bool()), (202, &first["batch"], Some(true)));
    let (status, other) = send("application/json", "a", &KOBE.replace("Kobe", "Lima")).await;
    assert_eq!((status.as_u16(), other["type"].as_str()), (409, Some("/problems/idempotency-key-reused")), "{other}");
    assert_eq!(other["batch"], first["batch"]);
    let (status, _) = send("application/json", &"x".repeat(256), KOBE).await;
    assert_eq!(status, 422);
    // Each batch of a stream has its own place under the key.
    let lines = vec![KOBE; 1_500].join("\n");
    let (_, first) = send("application/x-ndjson", "lines", &lines).await;
    assert_eq!((first["duplicates"].as_u64(), first["events"].as_u64()), (Some(0), Some(1_500)), "{first}");
    let (_, again) = send("application/x-ndjson", "lines", &lines).await;
    assert_eq!((again["duplicates"].as_u64(), &again["batches"]), (Some(1_500), &first["batches"]), "{again}");
    platform.stop().await;
}

#[tokio::test]
async fn cloud_events_in_three_modes_are_known_by_source_and_id() {
    let platform = Platform::with_quakes().await;
    let event = |id: &str| {
        format!(
            r#"{{"specversion":"1.0","id":"{id}","source":"/usgs","type":"gov.usgs.quake","time":"2026-11-21T00:00:00Z","data":{KOBE}}}"#
        )
    };
    let structured = "application/cloudevents+json; charset=utf-8";
    let (status, one) = platform.post(EVENTS, structured, &event("1")).await;
    assert_eq!((status.as_u16(), one["duplicate"].as_bool()), (202, Some(false)), "{one}");
    let batch = format!("[{},{},{}]", event("1"), event("2"), event("3"));
    let (status, many) = platform.post(EVENTS, "application/cloudevents-batch+json", &batch).await;
    assert_eq!(
        (status.as_u16(), many["events"].as_u64(), many["duplicates"].as_u64()),
        (202, Some(3), Some(1)),
        "{many}"
    );
    let binary = |id: &str| {
        let request = platform.request("POST", EVENTS).header("content-type", "application/json");
        let request = request.header("ce-specversion", "1.0").header("ce-type", "quake").header("ce-source", "%2Fusgs");
        request.header("ce-id", id).body(KOBE)
    };
    let (status, same) = answer(binary("2")).await;
    assert_eq!((status.as_u16(), same["duplicate"].as_bool()), (202, Some(true)), "{same}");
    let (_, new) = answer(binary("4")).await;
    assert_eq!(new["duplicate"], false, "{new}");
    let (_, batch) = platform.get(&format!("/v1/event-batches/{}", new["batch"].as_str().expect("an id"))).await;
    assert_eq!(batch["class"], "quake", "{batch}");
    platform.stop().await;
}

#[tokio::test]
async fn an_event_can_be_followed_to_its_receipt() {
    let platform = Platform::with_quakes().await;
    let subscription = r#"{"application":"quakes","class":"strong","subscriber":"alice","values":{"magnitude":5}}"#;
    let (status, body) = platform.post("/v1/subscriptions", "application/json", subscription).await;
    assert_eq!(status, 201, "{body}");
    // The match index follows the change feed: until it has, the event meets nobody, and another is sent.
    let (trace, event) = loop {
        let (_, one) = platform.post(QUAKE, "application/json", KOBE).await;
        let event = format!("e-{}-0", one["batch"].as_str().and_then(|id| id.strip_prefix("eb-")).expect("an id"));
        let matched = loop {
            let (_, trace) = platform.get(&format!("/v1/trace/{event}")).await;
            let points = trace["timeline"].as_array().expect("points").clone();
            if trace["notifications"]["delivered"] == 1 {
                break Some(trace);
            }
            let is_matched = points.iter().any(|point| point["what"] == "matched");
            if is_matched && trace["notifications"].as_object().is_some_and(serde_json::Map::is_empty) {
                break None;
            }
            tokio::task::yield_now().await;
        };
        if let Some(trace) = matched {
            break (trace, event);
        }
    };
    let told: Vec<&str> =
        trace["timeline"].as_array().expect("points").iter().filter_map(|point| point["what"].as_str()).collect();
    for what in ["received", "accepted", "matched", "formatted", "sent", "delivered"] {
        assert!(told.contains(&what), "{event}: {trace}");
    }
    let id = trace["timeline"]
        .as_array()
        .expect("points")
        .iter()
        .rev()
        .find_map(|point| point["id"].as_str())
        .expect("an id");
    let (status, notification) = platform.get(&format!("/v1/notifications/{id}")).await;
    assert_eq!(status, 200, "{notification}");
    assert_eq!(notification["fields"]["place"], "Kobe", "{notification}");
    assert_eq!(notification["recipient"]["subscriber"], "alice", "{notification}");
    assert_eq!(notification["state"], "delivered", "{notification}");
    let (_, of_alice) = platform.get("/v1/trace/alice").await;
    assert_eq!(
        (of_alice["kind"].as_str(), of_alice["notifications"]["delivered"].as_u64()),
        (Some("subscriber"), Some(1))
    );
    let (_, batches) = platform.get("/v1/notification-batches").await;
    let batch = batches["items"][0]["id"].as_str().expect("a batch").to_owned();
    let (_, batch) = platform.get(&format!("/v1/notification-batches/{batch}")).await;
    assert_eq!(batch["outcomes"]["delivered"], 1, "{batch}");
    assert_eq!(platform.far_ends.seen().len(), 1, "{:?}", platform.far_ends.seen());
    platform.stop().await;
}
