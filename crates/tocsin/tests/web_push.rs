//! Messages to browsers: libraries that are not ours read what the binary sends and verify who sent it; a browser that has
//! gone is told no more.

mod support;

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

use axum::{
    Router,
    body::Bytes,
    extract::{Path as Segment, State},
    http::{HeaderMap, StatusCode},
    routing::post,
};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use parking_lot::Mutex;
use serde_json::{Value, json};
use support::Platform;
use tokio::sync::watch;

// The browser of RFC 8291, section 5.
const BROWSER: &str = "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4";
const BROWSER_PRIVATE: &str = "q1dXpw3UpT5VOmu_cf_v6ih07Aems3njxI-JWgLcM94";
const AUTH: &str = "BTBZMqHH6r4Tts7J_aSIgg";

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

/// A push service: `ok` takes everything, `gone` knows no such browser.
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
async fn libraries_that_are_not_ours_read_what_browsers_are_told() {
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
    let address = |browser: &str| {
        let keys = json!({"p256dh": BROWSER, "auth": AUTH});
        json!({"endpoint": format!("{origin}/{browser}"), "expirationTime": null, "keys": keys}).to_string()
    };
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
        tokio::time::timeout(support::PATIENCE, waiting).await.expect("it is sent").expect("a count");
    };
    send("one").await;
    wait(2).await;
    let switched_off = tokio::time::timeout(support::PATIENCE, async {
        while platform.get("/v1/subscribers/bob").await["devices"]["main"]["state"] != "bounced" {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    });
    switched_off.await.expect("a browser that has gone is told no more");
    send("two").await;
    wait(3).await;

    let seen = service.seen.lock().clone();
    let told: Vec<&(String, HeaderMap, Bytes)> = seen.iter().filter(|(browser, ..)| browser == "ok").collect();
    assert_eq!((seen.len(), told.len()), (3, 2), "one for bob, before it was known that he is gone");
    let header = |headers: &HeaderMap, name: &str| headers[name].to_str().expect("text").to_owned();
    let mut lines = String::new();
    for (_, headers, body) in &told {
        assert_eq!(header(headers, "urgency"), "high");
        assert!((1..=3_600).contains(&header(headers, "ttl").parse::<u64>().expect("seconds")));
        let request = json!({
            "body": BASE64_URL_SAFE_NO_PAD.encode(body), "authorization": header(headers, "authorization"),
            "audience": origin, "private": BROWSER_PRIVATE, "auth": AUTH,
        });
        lines.push_str(&format!("{request}\n"));
    }
    let read: Vec<Value> = read(&lines).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(read.len(), 2);
    for (request, token) in read.iter().zip(["one", "two"]) {
        assert_eq!((&request["subject"], &request["key"]), (&json!("mailto:ops@example.org"), &json!(public)));
        let text: Value = serde_json::from_str(request["text"].as_str().expect("a text")).expect("JSON");
        assert_eq!(text["title"], format!("Alert {token}"));
        assert_eq!(text["body"], format!("Zoë says “{token}”"));
        assert_eq!(text["data"], json!({"token": token}));
    }
}

/// What the libraries make of requests.
fn read(lines: &str) -> String {
    let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("/root"), PathBuf::from);
    let libraries = std::env::var_os("PUSH_LIBRARIES").map_or_else(|| home.join(".cache/tocsin/push"), PathBuf::from);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/push/read.js");
    let mut child = Command::new("node")
        .arg(script)
        .env("NODE_PATH", libraries.join("node_modules"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("node: {error}; `scripts/setup test` installs it"));
    let mut input = child.stdin.take().expect("a pipe");
    let written = lines.to_owned();
    let writer = std::thread::spawn(move || input.write_all(written.as_bytes()));
    let output = child.wait_with_output().expect("an end");
    let _ = writer.join();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}; `scripts/setup test` installs the libraries");
    String::from_utf8(output.stdout).expect("UTF-8")
}
