//! SIGKILL during deliveries into inboxes: each inbox has each item once, and a reopened stream has missed nothing. A
//! stopping server closes its streams.

mod support;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use support::Platform;

const SUBSCRIBERS: usize = 40;
const EVENTS: usize = 60;

const APPLICATION: &str = r#"
application: pings
events: { ping: { fields: { token: { type: string, required: true } } } }
subscriptions: { every: { fields: {} } }
notifications:
  ping:
    fields: { token: string }
    multicast: { recipient_limit: 10 }
    content: { templates: { base: { subject: "ping {{ token }}" } } }
rules: { everyone: { on: ping, subscription: every, notify: ping } }
channels: { bell: { protocol: inbox, options: { retention: 1h }, retry: [1s, 1s, 5s] } }
"#;

/// Stream with the position up to which it was read.
#[derive(Default)]
struct StreamReader {
    last: Option<String>,
    items: BTreeSet<String>,
}

impl StreamReader {
    /// Reads until the stream breaks, or `until` items are known.
    async fn read(&mut self, platform: &Platform, until: usize) {
        let mut request = platform.request(reqwest::Method::GET, "/v1/subscribers/s0/inbox/stream");
        if let Some(last) = &self.last {
            request = request.header("last-event-id", last);
        }
        let Ok(mut answer) = request.send().await else { return };
        assert_eq!(answer.status(), 200);
        let mut text = String::new();
        while self.items.len() < until {
            let Ok(Some(chunk)) = answer.chunk().await else { return };
            text.push_str(std::str::from_utf8(&chunk).expect("UTF-8"));
            while let Some((block, rest)) = text.split_once("\n\n") {
                let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name));
                if let (Some(id), Some(event), Some(data)) = (field("id: "), field("event: "), field("data: ")) {
                    assert_ne!(event, "reset", "the stream must not lose events");
                    self.last = Some(id.to_owned());
                    if event == "new" {
                        let item: Value = serde_json::from_str(data).expect("JSON");
                        let subject = item["subject"].as_str().expect("a subject").to_owned();
                        assert!(self.items.insert(subject), "received twice: {item}");
                    }
                }
                text = rest.to_owned();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_cause_no_duplicate_item_and_no_gap_in_streams() {
    let mut random = fastrand::Rng::with_seed(support::seed());
    let mut platform = Platform::start(&[]).await;
    platform.apply("pings", APPLICATION).await;
    for number in 0..SUBSCRIBERS {
        platform.subscribe("pings", "every", &format!("s{number}"), "bell", "its feed", json!({})).await;
    }
    let mut reader = StreamReader { last: Some("0".into()), ..StreamReader::default() };
    // From the beginning, regardless of earlier events.
    let mut sent = 0;
    for _ in 0..6 {
        let events: Vec<Value> = (0..EVENTS / 6).map(|index| json!({"token": (sent + index).to_string()})).collect();
        sent += events.len();
        let (status, answer) = platform.post("/v1/applications/pings/events/ping", &Value::from(events)).await;
        assert_eq!(status, 202, "{answer}");
        // At a random time during matching, delivering and recording.
        reader.read(&platform, reader.items.len() + random.usize(0..EVENTS / 6)).await;
        platform.kill();
        platform.restart().await;
    }
    let all = tokio::time::timeout(support::wait_timeout(), async {
        while reader.items.len() < EVENTS {
            reader.read(&platform, EVENTS).await;
        }
    });
    all.await.expect("the stream contains every item");
    let expected: BTreeSet<String> = (0..EVENTS).map(|number| format!("ping {number}")).collect();
    assert_eq!(reader.items, expected);
    // Suspended or queued items would be missing below, so wait for all.
    platform.settled().await;
    for number in 0..SUBSCRIBERS {
        let page = platform.get(&format!("/v1/subscribers/s{number}/inbox?limit=1000")).await;
        let mut seen: BTreeMap<String, u32> = BTreeMap::new();
        for item in page["items"].as_array().expect("a list") {
            *seen.entry(item["subject"].as_str().expect("a subject").to_owned()).or_default() += 1;
        }
        assert_eq!(seen.len(), EVENTS, "s{number}");
        assert!(seen.values().all(|times| *times == 1), "s{number} has an item twice: {seen:?}");
    }
    let (code, ended) = {
        let request = platform.request(reqwest::Method::GET, "/v1/subscribers/s0/inbox/stream");
        let answer = request.send().await.expect("an answer");
        let ended = tokio::spawn(answer.text());
        (tokio::task::spawn_blocking(move || platform.terminate()).await.expect("it ends"), ended)
    };
    assert_eq!(code, Some(0));
    tokio::time::timeout(support::wait_timeout(), ended)
        .await
        .expect("the stream ends")
        .expect("no panic")
        .expect("well");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commands_of_the_example_have_the_documented_effects() {
    let platform = Platform::start(&[]).await;
    let readme = std::fs::read_to_string(support::repository("examples/bell/README.md")).expect("the README");
    let block = readme.split("```").nth(1).expect("a block of code");
    let mut said = String::new();
    for line in block.lines().filter_map(|line| line.strip_prefix("tocsin ")) {
        let path = |word: &str| match word.strip_prefix("examples/") {
            Some(rest) => support::repository("examples").join(rest).to_str().expect("a path").to_owned(),
            None => word.to_owned(),
        };
        let words: Vec<String> = line.split_whitespace().map(path).collect();
        let run = tokio::task::block_in_place(|| platform.run(&words.iter().map(String::as_str).collect::<Vec<_>>()));
        said.push_str(&run);
        // Users type more slowly: the effects of a command are visible before the next one runs.
        platform.settled().await;
    }
    for expected in ["Order A-1 is on its way", "1 unread\n", "1 item marked; 0 unread"] {
        assert!(said.contains(expected), "`{expected}` is missing in\n{said}");
    }
    let item = &platform.get("/v1/subscribers/alice/inbox?state=read").await["items"][0];
    assert_eq!((&item["link"], &item["actions"][0]["label"]), (&json!("/orders/A-1"), &json!("Track")));
    assert_eq!(item["data"], json!({"order": "A-1", "carrier": "Post"}));
    assert_eq!(platform.get("/v1/subscribers/bob/inbox").await["items"], json!([]));
    // A broadcast is visible at once, in each recipient's language.
    let request = platform.request(reqwest::Method::PUT, "/v1/applications/shop/broadcasts/sunday");
    let body = json!({"subject": "Closed on Sunday", "translations": {"de": {"subject": "Sonntag geschlossen"}}});
    let answer = request.json(&body).send().await.expect("an answer");
    assert_eq!(answer.status(), 201);
    for (who, subject) in [("alice", "Closed on Sunday"), ("bob", "Sonntag geschlossen")] {
        let page = platform.get(&format!("/v1/subscribers/{who}/inbox?state=unread")).await;
        assert_eq!(page["items"][0]["subject"], subject);
    }
}
