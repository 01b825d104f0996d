//! Idempotency: the same submission a thousand times at once, and again after a restart, is one event with one
//! response.

mod support;

use std::collections::BTreeSet;

use serde_json::{Value, json};
use support::Platform;

const TIMES: usize = 1000;
const EVENTS: &str = "/v1/applications/pings/events/ping";
const CLOUD_EVENTS: &str = "/v1/applications/pings/events";

const APPLICATION: &str = r#"
application: pings
events: { ping: { fields: { token: { type: string, required: true } } } }
subscriptions: { every: { fields: {} } }
notifications:
  ping: { fields: { token: string }, content: { templates: { base: { subject: "ping {{ token }}" } } } }
rules: { everyone: { on: ping, subscription: every, notify: ping } }
channels: { out: { protocol: file, options: { path: pings.ndjson } } }
"#;

/// Sends the same request many times, up to 64 at once, and returns the batch ids of the responses.
async fn submit(platform: &Platform, path: &str, headers: &[(&str, &str)], body: &Value) -> BTreeSet<String> {
    let turns = std::sync::Arc::new(tokio::sync::Semaphore::new(64));
    let sent: Vec<_> = (0..TIMES)
        .map(|_| {
            let mut request = platform.request(reqwest::Method::POST, path);
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            let (request, turns) = (request.body(body.to_string()), turns.clone());
            tokio::spawn(async move {
                let _turn = turns.acquire().await.expect("never closed");
                let answer = request.send().await.expect("an answer");
                let status = answer.status().as_u16();
                let body: Value = answer.json().await.expect("JSON");
                assert!(status == 202 || status == 200, "{status}: {body}");
                body["batch"].as_str().unwrap_or_else(|| panic!("no batch in {body}")).to_owned()
            })
        })
        .collect();
    let mut batches = BTreeSet::new();
    for sent in sent {
        batches.insert(sent.await.expect("it gets a response"));
    }
    batches
}

async fn events(platform: &Platform) -> u64 {
    platform.get("/v1/status").await["totals"]["events"].as_u64().expect("a count of events")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_times_the_same_is_one_event() {
    let mut platform = Platform::start(&[]).await;
    platform.apply("pings", APPLICATION).await;
    let keyed = [("content-type", "application/json"), ("idempotency-key", "k-1")];
    let ping = json!({ "token": "one" });
    let cloud = [("content-type", "application/cloudevents+json")];
    let cloud_event = json!({
        "specversion": "1.0", "id": "e-1", "source": "/sensors/7", "type": "ping",
        "data": { "token": "two" },
    });

    let first = submit(&platform, EVENTS, &keyed, &ping).await;
    assert_eq!((first.len(), events(&platform).await), (1, 1));
    let second = submit(&platform, CLOUD_EVENTS, &cloud, &cloud_event).await;
    assert_eq!((second.len(), events(&platform).await), (1, 2));
    assert_ne!(first, second);

    platform.kill();
    platform.restart().await;
    assert_eq!(submit(&platform, EVENTS, &keyed, &ping).await, first);
    assert_eq!(submit(&platform, CLOUD_EVENTS, &cloud, &cloud_event).await, second);
    assert_eq!(events(&platform).await, 2);

    assert_eq!(platform.terminate(), Some(0));
    platform.restart().await;
    assert_eq!(submit(&platform, EVENTS, &keyed, &ping).await, first);
    assert_eq!(events(&platform).await, 2);
    let other = platform.request(reqwest::Method::POST, EVENTS);
    let other = other.header("idempotency-key", "k-1").json(&json!({ "token": "other" })).send().await;
    let status = other.expect("an answer").status().as_u16();
    assert!(status == 409 || status == 422, "another body under the same key is refused: {status}");
    assert_eq!(events(&platform).await, 2);
}
