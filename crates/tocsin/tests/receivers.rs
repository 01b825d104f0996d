//! Deliveries to third-party receivers: Postfix's smtp-sink, a webhook receiver with the Standard Webhooks library, and
//! an NDJSON parser for files.

mod support;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
};

use axum::{Router, body::Bytes, extract::State, http::HeaderMap, http::StatusCode, routing::post};
use base64::{Engine, prelude::BASE64_STANDARD};
use parking_lot::Mutex;
use support::Platform;
use tocsin_test_peers::{Peer, missing, reserved_port};
use tokio::sync::watch;

const EVENTS: usize = 300;
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// Application whose subscribers get every event through this channel.
fn application(channel: &str) -> String {
    format!(
        r#"
application: relay
events: {{ note: {{ fields: {{ token: {{ type: string, required: true }}, text: string }} }} }}
subscriptions: {{ every: {{ fields: {{}} }} }}
notifications:
  note:
    fields: {{ token: string, text: string }}
    content: {{ templates: {{ base: {{ subject: "note {{{{ token }}}}", text: "token: {{{{ token }}}}\n{{{{ text }}}}\n" }} }} }}
rules: {{ everyone: {{ on: note, subscription: every, notify: note }} }}
channels:
  out: {channel}
"#
    )
}

/// Posts the events in batches of 100 and returns their tokens.
async fn publish(platform: &Platform) -> BTreeSet<String> {
    let tokens: Vec<String> = (0..EVENTS).map(|number| format!("t{number}")).collect();
    for tokens in tokens.chunks(100) {
        let batch: Vec<_> = tokens
            .iter()
            .map(|token| serde_json::json!({"token": token, "text": format!("Zoë says \"{token}\"\n.\n..two dots")}))
            .collect();
        let (status, answer) = platform.post("/v1/applications/relay/events/note", &batch.into()).await;
        assert_eq!(status, 202, "{answer}");
    }
    tokens.into_iter().collect()
}

struct SmtpSink(Child);

impl SmtpSink {
    /// Postfix's sink, which writes each mail into a file of this folder.
    fn start(port: u16, folder: &Path) -> SmtpSink {
        let mut command = Command::new(Peer::SmtpSink.path());
        // Started by root, it requires a user to switch to.
        let id = Command::new("id").arg("-u").output().expect("id runs").stdout;
        if id == b"0\n" {
            command.args(["-u", "nobody"]);
            let mode = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o777);
            fs::set_permissions(folder, mode).expect("the folder can be opened to all users");
        }
        let child = command
            .args(["-d", "mail.%H%M%S."])
            .args([format!("127.0.0.1:{port}"), "100".to_owned()])
            .current_dir(folder)
            .stdin(Stdio::null())
            .spawn()
            .expect("smtp-sink starts");
        SmtpSink(child)
    }
}

impl Drop for SmtpSink {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postfix_receives_the_mails() {
    if missing(&[Peer::SmtpSink]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mode = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
    fs::set_permissions(folder.path(), mode).expect("the folder can be opened");
    let port = reserved_port();
    let inbox = folder.path().join("mails");
    fs::create_dir(&inbox).expect("a folder");
    let _sink = SmtpSink::start(port, &inbox);
    let platform = Platform::start(&[]).await;
    let channel = format!(
        "{{ protocol: smtp, options: {{ host: 127.0.0.1, port: {port}, tls: off, from: t@example.org }}, retry: [1s, 1s, 1s] }}"
    );
    platform.apply("relay", &application(&channel)).await;
    platform.subscribe("relay", "every", "zoë", "out", "zoe@example.org", serde_json::json!({})).await;
    let tokens = publish(&platform).await;
    wait_until_delivered(&platform, EVENTS).await;

    let mut seen = BTreeSet::new();
    let mut ids = BTreeSet::new();
    for entry in fs::read_dir(&inbox).expect("the folder") {
        let mail = fs::read_to_string(entry.expect("an entry").path()).expect("a mail");
        assert!(mail.contains("zoe@example.org"), "{mail}");
        let id = mail.lines().find(|line| line.to_ascii_lowercase().starts_with("message-id:")).expect("a message id");
        ids.insert(id.to_owned());
        let subject = mail.lines().find_map(|line| line.strip_prefix("Subject: note ")).expect("a subject");
        seen.insert(subject.trim().to_owned());
    }
    assert_eq!(seen, tokens);
    assert_eq!(ids.len(), EVENTS);
}

/// Waits until the server has `count` delivery receipts.
async fn wait_until_delivered(platform: &Platform, count: usize) {
    // Receipts have no external signal.
    support::until("everything is delivered", async || {
        let status = platform.get("/v1/status").await;
        status["totals"]["attempts"]["delivered"].as_u64().expect("a count of deliveries") >= count as u64
    })
    .await;
}

#[derive(Clone)]
struct Hooks {
    received: Arc<Mutex<Vec<(String, serde_json::Value)>>>,
    refused: Arc<Mutex<Vec<String>>>,
    count: watch::Sender<usize>,
}

async fn receive(State(hooks): State<Hooks>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let verifier = standardwebhooks::Webhook::new(SECRET).expect("a secret");
    if let Err(error) = verifier.verify(&body, &headers) {
        hooks.refused.lock().push(error.to_string());
        return StatusCode::BAD_REQUEST;
    }
    let id = headers["webhook-id"].to_str().expect("text").to_owned();
    hooks.received.lock().push((id, serde_json::from_slice(&body).expect("JSON")));
    hooks.count.send_modify(|count| *count += 1);
    StatusCode::NO_CONTENT
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_published_library_verifies_the_webhooks() {
    let hooks = Hooks { received: Arc::default(), refused: Arc::default(), count: watch::Sender::new(0) };
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = format!("http://{}/hook", socket.local_addr().expect("an address"));
    let router = Router::new().route("/hook", post(receive)).with_state(hooks.clone());
    tokio::spawn(async move { axum::serve(socket, router).await });

    let platform = Platform::start(&[("HOOK_SECRET", SECRET)]).await;
    let channel =
        "{ protocol: http, options: { secret: \"${HOOK_SECRET}\", allow_networks: [127.0.0.0/8] }, retry: [1s] }";
    platform.apply("relay", &application(channel)).await;
    platform.subscribe("relay", "every", "alice", "out", &address, serde_json::json!({})).await;
    let tokens = publish(&platform).await;
    let mut count = hooks.count.subscribe();
    let waiting = count.wait_for(|count| *count >= EVENTS);
    let all = tokio::time::timeout(support::wait_timeout(), waiting).await;
    assert_eq!(*hooks.refused.lock(), Vec::<String>::new());
    all.expect("all hooks come").expect("a count");
    let received = hooks.received.lock();
    let ids: BTreeSet<&String> = received.iter().map(|(id, _)| id).collect();
    assert_eq!(ids.len(), EVENTS);
    let seen: BTreeSet<String> =
        received.iter().map(|(_, body)| body["data"]["token"].as_str().expect("a token").to_owned()).collect();
    assert_eq!(seen, tokens);
    assert_eq!(received[0].1["type"], "note");
}

/// Accepts any post and stores it for later verification.
async fn store_post(State(stored): State<StoredPosts>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let headers: serde_json::Map<String, serde_json::Value> = headers
        .iter()
        .filter(|(name, _)| name.as_str().starts_with("webhook-"))
        .map(|(name, value)| (name.to_string(), value.to_str().expect("text").into()))
        .collect();
    let body = BASE64_STANDARD.encode(&body);
    for secret in SECRETS {
        stored.lines.lock().push(serde_json::json!({"secret": secret, "headers": headers, "body": body}).to_string());
    }
    stored.count.send_modify(|count| *count += 1);
    StatusCode::NO_CONTENT
}

/// Both secrets are valid: one is being replaced by the other.
const SECRETS: [&str; 2] = [SECRET, "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"];

#[derive(Clone)]
struct StoredPosts {
    lines: Arc<Mutex<Vec<String>>>,
    count: watch::Sender<usize>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_libraries_of_python_and_javascript_verify_the_webhooks() {
    if missing(&[Peer::WebhookLibraries]) {
        return;
    }
    let stored = StoredPosts { lines: Arc::default(), count: watch::Sender::new(0) };
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = format!("http://{}/hook", socket.local_addr().expect("an address"));
    let router = Router::new().route("/hook", post(store_post)).with_state(stored.clone());
    tokio::spawn(async move { axum::serve(socket, router).await });

    let secrets = SECRETS.join(" ");
    let platform = Platform::start(&[("HOOK_SECRET", &secrets)]).await;
    let channel =
        "{ protocol: http, options: { secret: \"${HOOK_SECRET}\", allow_networks: [127.0.0.0/8] }, retry: [] }";
    platform.apply("relay", &application(channel)).await;
    platform.subscribe("relay", "every", "alice", "out", &address, serde_json::json!({})).await;
    publish(&platform).await;
    let mut count = stored.count.subscribe();
    let all = tokio::time::timeout(support::wait_timeout(), count.wait_for(|count| *count >= EVENTS)).await;
    all.expect("all hooks come").expect("a count");
    let lines = stored.lines.lock().join("\n");
    let expected = format!("{}\n", EVENTS * SECRETS.len());
    let libraries = Peer::WebhookLibraries.path();
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/webhooks");
    for (program, script, variable, folder) in
        [("python3", "verify.py", "PYTHONPATH", "python"), ("node", "verify.js", "NODE_PATH", "node_modules")]
    {
        let mut command = Command::new(program);
        command.arg(scripts.join(script)).env(variable, libraries.join(folder));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{program}: {error}"));
        let mut input = child.stdin.take().expect("a pipe");
        let written = lines.clone();
        let writer = std::thread::spawn(move || std::io::Write::write_all(&mut input, written.as_bytes()));
        let output = child.wait_with_output().expect("an end");
        let _ = writer.join();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{program}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_private_address_is_refused_without_permission() {
    let platform = Platform::start(&[]).await;
    platform.apply("relay", &application("{ protocol: http, options: {}, retry: [] }")).await;
    platform.subscribe("relay", "every", "alice", "out", "http://127.0.0.1:1/hook", serde_json::json!({})).await;
    let (status, answer) =
        platform.post("/v1/applications/relay/events/note", &serde_json::json!({"token": "t"})).await;
    assert_eq!(status, 202, "{answer}");
    support::until("the delivery is refused", async || {
        platform.get("/v1/status").await["totals"]["attempts"]["refused"] == 1
    })
    .await;
    let trace = platform.get("/v1/trace/n-1-0").await.to_string();
    assert!(trace.contains("private") || trace.contains("loopback"), "{trace}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_records_of_a_file_parse() {
    let platform = Platform::start(&[]).await;
    platform.apply("relay", &application("{ protocol: file, options: { path: notes.ndjson } }")).await;
    platform.subscribe("relay", "every", "alice", "out", "alice", serde_json::json!({})).await;
    let tokens = publish(&platform).await;
    wait_until_delivered(&platform, EVENTS).await;
    let file = find(&platform.folder, "notes.ndjson").expect("the file");
    let text = fs::read_to_string(file).expect("the file");
    assert!(text.ends_with('\n'));
    let records: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("each line is a record")).collect();
    assert_eq!(records.len(), EVENTS);
    let seen: BTreeSet<String> = records
        .iter()
        .map(|record| {
            let text = record.to_string();
            let subject = record["content"]["subject"].as_str().or(record["subject"].as_str());
            subject.unwrap_or_else(|| panic!("{text}")).trim_start_matches("note ").to_owned()
        })
        .collect();
    assert_eq!(seen, tokens);
}

fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    fs::read_dir(folder).ok()?.flatten().find_map(|entry| {
        let path = entry.path();
        if path.is_dir() { find(&path, name) } else { path.ends_with(name).then_some(path) }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_gets_many_recipients_in_one_request() {
    let service = support::hooks::Hooks::start(r#"{"results": ["ok", "ok", "unknown", "ok"]}"#).await;
    let platform = Platform::start(&[("SERVICE", &format!("http://127.0.0.1:{}/batch", service.port))]).await;
    let channel = r#"{ protocol: http, retry: [], options: { url: "${SERVICE}", allow_networks: [127.0.0.1],
        body: { json: { to: "{recipients}", text: "{subject}" } },
        recipients: { most: 4, each: { id: "{address}" }, results: /results },
        answers: [{ json: "", is: [unknown], means: refused }] } }"#;
    let multicast = "  note:\n    multicast: { recipient_limit: 4 }\n";
    platform.apply("relay", &application(channel).replacen("  note:\n", multicast, 1)).await;
    for person in ["ann", "bob", "cy", "dee", "eve", "fay"] {
        platform.subscribe("relay", "every", person, "out", person, serde_json::json!({})).await;
    }
    let (status, answer) =
        platform.post("/v1/applications/relay/events/note", &serde_json::json!({"token": "t"})).await;
    assert_eq!(status, 202, "{answer}");
    // Four recipients together, one of them unknown; for two the response has no individual results.
    wait_until_delivered(&platform, 5).await;
    let totals = platform.get("/v1/status").await["totals"]["attempts"].clone();
    assert_eq!((&totals["delivered"], &totals["refused"]), (&5.into(), &1.into()), "{totals}");
    let requests = service.all();
    let bodies: Vec<serde_json::Value> =
        requests.iter().map(|(_, _, body)| serde_json::from_slice(body).expect("JSON")).collect();
    let mut sizes: Vec<usize> = bodies.iter().filter_map(|body| Some(body["to"].as_array()?.len())).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [2, 4]);
    let recipients: BTreeSet<&str> =
        bodies.iter().flat_map(|body| body["to"].as_array()).flatten().filter_map(|to| to["id"].as_str()).collect();
    assert_eq!(recipients.len(), 6, "{recipients:?}");
    assert!(bodies.iter().all(|body| body["text"] == "note t"), "{bodies:?}");
}
