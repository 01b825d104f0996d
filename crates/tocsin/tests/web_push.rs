//! Web push: third-party libraries decrypt the messages and verify the sender; an unsubscribed browser gets no further
//! messages.

mod support;

use std::{process::Command, sync::Arc};

use axum::{
    Router,
    body::Bytes,
    extract::{Path as Segment, State},
    http::{HeaderMap, StatusCode},
    routing::post,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use support::{Platform, push};
use tocsin_test_peers::{Peer, missing};
use tokio::sync::watch;

const APPLICATION: &str = r#"
application: alerts
events: { alert: { fields: { token: { type: string, required: true } } } }
subscriptions: { every: { fields: {} } }
notifications:
  alert:
    fields: { token: string }
    priority: high
    expires_after: 1h
    content: { templates: { base: { subject: "Alert {{ token }}", text: "Zoë says “{{ token }}”", headers: { Topic: "{{ token }}" } } } }
rules: { everyone: { on: alert, subscription: every, notify: alert } }
channels:
  push:
    protocol: webpush
    options:
      public_key: ${VAPID_PUBLIC_KEY}
      private_key: ${VAPID_PRIVATE_KEY}
      subject: mailto:ops@example.org
      allow_networks: [127.0.0.1]
    retry: [1s, 1s]
"#;

/// Push service: `ok` accepts everything, `gone` does not know the browser.
#[derive(Clone)]
struct Service {
    seen: Arc<Mutex<Vec<(String, HeaderMap, Bytes)>>>,
    count: watch::Sender<usize>,
}

async fn take(
    State(service): State<Service>,
    Segment(browser): Segment<String>,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    let status = if browser == "gone" { StatusCode::GONE } else { StatusCode::CREATED };
    service.seen.lock().push((browser, headers, body));
    service.count.send_modify(|count| *count += 1);
    status
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn third_party_libraries_read_web_push_messages() {
    if missing(&[Peer::PushLibraries]) {
        return;
    }
    let made = Command::new(env!("CARGO_BIN_EXE_tocsin")).args(["vapid-key", "--json"]).output().expect("it runs");
    let made: Value = serde_json::from_slice(&made.stdout).expect("JSON");
    let (public, private) = (made["public_key"].as_str().expect("a key"), made["private_key"].as_str().expect("a key"));
    let service = Service { seen: Arc::default(), count: watch::Sender::new(0) };
    let router = Router::new().route("/{browser}", post(take)).with_state(service.clone());
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let origin = format!("http://{}", socket.local_addr().expect("an address"));
    tokio::spawn(async move { axum::serve(socket, router).await });

    let platform = Platform::start(&[("VAPID_PUBLIC_KEY", public), ("VAPID_PRIVATE_KEY", private)]).await;
    platform.apply("alerts", APPLICATION).await;
    let keys = platform.get("/v1/applications/alerts/web-push").await;
    assert_eq!(keys, json!({"keys": {"push": public}}));
    let address = |browser: &str| push::address(&format!("{origin}/{browser}"));
    platform.subscribe("alerts", "every", "alice", "push", &address("ok"), json!({})).await;
    platform.subscribe("alerts", "every", "bob", "push", &address("gone"), json!({})).await;
    let device = json!({"channel": "push", "address": r#"{"endpoint": "https://push.example"}"#});
    let (status, answer) = platform.post("/v1/subscribers", &json!({"id": "eve", "devices": {"a": device}})).await;
    assert!(status == 422 && answer.to_string().contains("push subscription"), "{status}: {answer}");

    let send = async |token: &str| {
        let (status, answer) = platform.post("/v1/applications/alerts/events/alert", &json!({"token": token})).await;
        assert_eq!(status, 202, "{answer}");
    };
    let wait = async |count: usize| {
        let mut counted = service.count.subscribe();
        let waiting = counted.wait_for(|seen| *seen >= count);
        tokio::time::timeout(support::wait_timeout(), waiting).await.expect("the message is sent").expect("a count");
    };
    send("one").await;
    wait(2).await;
    support::until("an unsubscribed browser gets no further messages", async || {
        platform.get("/v1/subscribers/bob").await["devices"]["main"]["state"] == "bounced"
    })
    .await;
    send("two").await;
    wait(3).await;

    let seen = service.seen.lock().clone();
    let delivered: Vec<&(String, HeaderMap, Bytes)> = seen.iter().filter(|(browser, ..)| browser == "ok").collect();
    assert_eq!((seen.len(), delivered.len()), (3, 2), "one for bob, before his unsubscription was known");
    let header = |headers: &HeaderMap, name: &str| headers[name].to_str().expect("text").to_owned();
    let mut requests = Vec::new();
    for (_, headers, body) in &delivered {
        assert_eq!(header(headers, "urgency"), "high");
        assert!((1..=3_600).contains(&header(headers, "ttl").parse::<u64>().expect("seconds")));
        requests.push(push::request(body, &header(headers, "authorization"), &origin));
    }
    let read = push::read(&requests);
    assert_eq!(read.len(), 2);
    for (request, token) in read.iter().zip(["one", "two"]) {
        assert_eq!((&request["subject"], &request["key"]), (&json!("mailto:ops@example.org"), &json!(public)));
        let text: Value = serde_json::from_str(request["text"].as_str().expect("a text")).expect("JSON");
        assert_eq!(text["title"], format!("Alert {token}"));
        assert_eq!(text["body"], format!("Zoë says “{token}”"));
        assert_eq!(text["data"], json!({"token": token}));
    }
}
