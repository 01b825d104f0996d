//! Overload (E2) and sustained load (E12).

mod support;

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::json;
use support::{Platform, mails::Mails};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const APPLICATION: &str = r#"
application: notes
events: { note: { fields: { token: { type: string, required: true }, padding: string } } }
subscriptions: { every: { fields: {} } }
notifications:
  note:
    fields: { token: string }
    content: { templates: { base: { subject: "note", text: "token: {{ token }}\n" } } }
rules: { everyone: { on: note, subscription: every, notify: note } }
channels:
  email:
    protocol: smtp
    options: { host: 127.0.0.1, port: "${SINK}", tls: off, from: t@example.org }
    retry: [1s, 1s, 5s]
"#;

const PATH: &str = "/v1/applications/notes/events/note";

/// Value of a line of the server's process status, in bytes.
fn memory(platform: &Platform, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", platform.pid())).expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).expect("a figure");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

fn descriptors(platform: &Platform) -> u64 {
    std::fs::read_dir(format!("/proc/{}/fd", platform.pid())).expect("Linux").count() as u64
}

/// Submits an event on a new connection. Returns the response; `None` if the connection broke before it, as can happen
/// when a request is refused before its body was read.
async fn post(address: &str, key: &str, token: &str, body: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\nidempotency-key: {token}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    let mut answer = Vec::new();
    let (mut reader, mut writer) = stream.split();
    let writing = async {
        writer.write_all(head.as_bytes()).await?;
        writer.write_all(body.as_bytes()).await
    };
    let (_, read) =
        tokio::join!(writing, tokio::time::timeout(support::wait_timeout(), reader.read_to_end(&mut answer)));
    let _ = read.expect("each connection ends");
    let answer = String::from_utf8(answer).expect("text");
    answer.contains("\r\n\r\n").then_some(answer)
}

/// Responses that clients received.
#[derive(Default)]
struct StatusCounts {
    accepted: Mutex<BTreeSet<String>>,
    refused: AtomicUsize,
    broken: AtomicUsize,
}

/// Ten times as many clients as the server has capacity for, each request with a large body on a new connection: some
/// are always accepted, all others get `Retry-After`, memory is bounded, and afterwards everything is as before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e2_an_overload_is_refused_and_the_rest_is_served() {
    const CAPACITY: usize = 12;
    const ACCEPTED: usize = 300;
    let mails = Mails::start().await;
    let (sink, seats) = (mails.port.to_string(), CAPACITY.to_string());
    let platform = Platform::start(&[
        ("SINK", &sink),
        ("TOCSIN_HTTP_CONNECTIONS_MAX", &seats),
        ("TOCSIN_HTTP_CONNECTIONS_PER_ADDRESS_MAX", &seats),
        ("TOCSIN_JOURNAL_WAITING_BATCHES_MAX", "40"),
    ])
    .await;
    platform.apply("notes", APPLICATION).await;
    platform.subscribe("notes", "every", "alice", "email", "alice@example.org", json!({})).await;
    let before = memory(&platform, "VmRSS");

    let (seen, stop) = (Arc::new(StatusCounts::default()), Arc::new(AtomicBool::new(false)));
    let padding = "x".repeat(100_000);
    let clients: Vec<_> = (0..10 * CAPACITY)
        .map(|client| {
            let (address, key) = (platform.url.trim_start_matches("http://").to_owned(), platform.key());
            let (seen, stop, padding) = (seen.clone(), stop.clone(), padding.clone());
            tokio::spawn(async move {
                for number in 0.. {
                    if stop.load(Ordering::SeqCst) {
                        return;
                    }
                    let token = format!("{client}-{number}");
                    let body = json!({ "token": token, "padding": padding }).to_string();
                    let Some(answer) = post(&address, &key, &token, &body).await else {
                        seen.broken.fetch_add(1, Ordering::SeqCst);
                        continue;
                    };
                    match answer.split(' ').nth(1) {
                        Some("202") => drop(seen.accepted.lock().insert(token)),
                        Some("429" | "503") => {
                            let mut lines = answer.lines().filter_map(|line| line.split_once(": "));
                            let wait = lines.find(|(name, _)| name.eq_ignore_ascii_case("retry-after"));
                            let wait = wait.unwrap_or_else(|| panic!("without Retry-After: {answer}")).1;
                            assert!((1..=3_600).contains(&wait.parse::<u32>().expect("seconds")), "{wait}");
                            seen.refused.fetch_add(1, Ordering::SeqCst);
                        }
                        _ => panic!("{answer}"),
                    }
                }
            })
        })
        .collect();
    // Most of what the clients send is refused, so this takes longer than other waits.
    let timeout = support::wait_timeout() * 6;
    let is_enough = async || seen.accepted.lock().len() >= ACCEPTED;
    support::until_within(timeout, "some are accepted all the time", is_enough).await;
    let peak = memory(&platform, "VmHWM");
    stop.store(true, Ordering::SeqCst);
    for client in clients {
        client.await.expect("each answer is one of those");
    }
    let (accepted, refused) = (seen.accepted.lock().clone(), seen.refused.load(Ordering::SeqCst));
    let broken = seen.broken.load(Ordering::SeqCst);
    println!(
        "{} accepted, {refused} refused, {broken} broken; memory {before} at rest, {peak} at most",
        accepted.len()
    );
    assert!(refused > 0, "there was no overload");
    assert!(peak < before + (256 << 20), "{before} {peak}");

    // All accepted events are delivered, and the next one is accepted at once.
    assert!(mails.wait_for_tokens(&accepted).await, "{} of {} came", mails.count(), accepted.len());
    platform.settled().await;
    for number in 0..50 {
        let (status, answer) = platform.post(PATH, &json!({ "token": format!("after-{number}") })).await;
        assert_eq!(status, 202, "{answer}");
    }
    assert_eq!(platform.client.get(format!("{}/readyz", platform.url)).send().await.expect("an answer").status(), 200);
}

/// `TOCSIN_SOAK_SECONDS` sets the duration. Memory and descriptors of the last part must be about those of the part
/// after the first third.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_e12_memory_and_descriptors_stay_flat_under_load() {
    const GROWTH_MAX: u64 = 32 << 20;
    let seconds = std::env::var("TOCSIN_SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(75);
    let mails = Mails::start().await;
    let sink = mails.port.to_string();
    // Long retention would grow by design.
    let definition = APPLICATION.replacen("events:", "retention: { finished: 1m, idempotency: 1m }\nevents:", 1);
    let platform = Arc::new(Platform::start(&[("SINK", &sink)]).await);
    platform.apply("notes", &definition).await;
    platform.subscribe("notes", "every", "alice", "email", "alice@example.org", json!({})).await;
    let stop = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = (0..4)
        .map(|client| {
            let (platform, stop, done) = (platform.clone(), stop.clone(), done.clone());
            tokio::spawn(async move {
                let mut pace = tokio::time::interval(Duration::from_millis(20));
                for number in 0.. {
                    pace.tick().await;
                    if stop.load(Ordering::SeqCst) {
                        return;
                    }
                    let token = format!("{client}-{number}");
                    let (status, answer) = platform.post(PATH, &json!({ "token": token })).await;
                    assert_eq!(status, 202, "{answer}");
                    // A subscriber that is created and removed, sometimes on a new connection.
                    if number % 10 == client {
                        let id = format!("s{client}");
                        let (status, answer) = platform.post("/v1/subscribers", &json!({ "id": id })).await;
                        assert_eq!(status, 201, "{answer}");
                        let path = format!("/v1/subscribers/{id}");
                        let gone = platform.request(reqwest::Method::DELETE, &path).send().await.expect("an answer");
                        assert!(gone.status().is_success(), "{}", gone.status());
                        let fresh = reqwest::Client::new();
                        let page = fresh.get(format!("{}/status", platform.url)).send().await.expect("an answer");
                        assert!(page.status().is_success(), "{}", page.status());
                    }
                    done.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    let mut samples = Vec::new();
    let mut pace = tokio::time::interval(Duration::from_secs(1));
    for _ in 0..seconds {
        pace.tick().await;
        samples.push((memory(&platform, "VmRSS"), descriptors(&platform)));
    }
    stop.store(true, Ordering::SeqCst);
    for client in clients {
        client.await.expect("the client task succeeds");
    }
    let part = (samples.len() / 6).max(1);
    let begin = samples.len() / 3;
    let median = |samples: &[(u64, u64)], of: fn(&(u64, u64)) -> u64| {
        let mut values: Vec<u64> = samples.iter().map(of).collect();
        values.sort_unstable();
        values[values.len() / 2]
    };
    let (early, late) = (&samples[begin..begin + part], &samples[samples.len() - part..]);
    let (memory_early, memory_late) = (median(early, |sample| sample.0), median(late, |sample| sample.0));
    let (open_early, open_late) = (median(early, |sample| sample.1), median(late, |sample| sample.1));
    println!(
        "{seconds} s, {} events: memory {memory_early} then {memory_late}, descriptors {open_early} then {open_late}",
        done.load(Ordering::SeqCst)
    );
    assert!(memory_late < memory_early + GROWTH_MAX, "memory grows: {memory_early} then {memory_late}");
    assert!(open_late <= open_early + 4, "descriptors grow: {open_early} then {open_late}");
}
