//! SIGKILL at random times while clients post and mails are delivered: nothing acknowledged is lost, and a repeated
//! mail has the same Message-ID. A server that acknowledges too early must fail the same run.

mod support;

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use support::{Platform, mails::Mails};
use tokio::sync::watch;

const CLIENTS: usize = 16;

const APPLICATION: &str = r#"
application: pings
events: { ping: { fields: { token: { type: string, required: true } } } }
subscriptions: { every: { fields: {} } }
notifications:
  ping:
    fields: { token: string }
    content: { templates: { base: { subject: "ping", text: "token: {{ token }}\n" } } }
rules: { everyone: { on: ping, subscription: every, notify: ping } }
channels:
  email:
    protocol: smtp
    options:
      host: 127.0.0.1
      port: ${SINK}
      tls: off
      from: t@example.org
    retry: [1s, 1s, 5s]
"#;

/// Acknowledged tokens.
#[derive(Default)]
struct Acknowledged {
    tokens: Mutex<BTreeSet<String>>,
    count: watch::Sender<usize>,
}

/// Posts events until `stop`. After a failure it waits for the next start and repeats the event with the same
/// idempotency key.
async fn post_until_stopped(
    client: usize,
    platform: (String, String),
    acknowledged: Arc<Acknowledged>,
    mut starts: watch::Receiver<usize>,
    stop: Arc<AtomicUsize>,
) {
    let (url, key) = platform;
    // No connection is kept: one to a killed server would fail after the last start, and the client would wait forever.
    let http = reqwest::Client::builder().pool_max_idle_per_host(0).build().expect("a client");
    let mut number = 0;
    while stop.load(Ordering::SeqCst) == 0 {
        let token = format!("{client}-{number}");
        starts.mark_unchanged();
        let answer = http
            .post(format!("{url}/v1/applications/pings/events/ping"))
            .bearer_auth(&key)
            .header("idempotency-key", &token)
            .json(&serde_json::json!({ "token": token }))
            .send()
            .await;
        match answer {
            Ok(answer) if answer.status().as_u16() == 202 => {
                acknowledged.tokens.lock().insert(token);
                acknowledged.count.send_modify(|count| *count += 1);
                number += 1;
            }
            Ok(answer) if answer.status().as_u16() == 503 || answer.status().as_u16() == 429 => {}
            Ok(answer) => panic!("{}: {}", answer.status(), answer.text().await.unwrap_or_default()),
            // Killed during the request: stored or not is unknown.
            Err(_) => {
                if starts.changed().await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Runs the scenario. Returns the acknowledged tokens, the mail sink and the platform after the last kill.
async fn run(kills: usize, environment: &[(&str, &str)]) -> (Arc<Acknowledged>, Mails, Platform) {
    let mut random = fastrand::Rng::with_seed(support::seed());
    let mails = Mails::start().await;
    let sink = mails.port.to_string();
    let mut environment = environment.to_vec();
    environment.push(("SINK", &sink));
    let mut platform = Platform::start(&environment).await;
    platform.apply("pings", APPLICATION).await;
    platform.subscribe("pings", "every", "alice", "email", "alice@example.org", serde_json::json!({})).await;

    let acknowledged = Arc::new(Acknowledged::default());
    let (starts, _) = watch::channel(0);
    let stop = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let platform = (platform.url.clone(), platform.key());
            tokio::spawn(post_until_stopped(client, platform, acknowledged.clone(), starts.subscribe(), stop.clone()))
        })
        .collect();
    let mut count = acknowledged.count.subscribe();
    for _ in 0..kills {
        let until = *count.borrow() + random.usize(1..400);
        let waiting = count.wait_for(|count| *count >= until);
        tokio::time::timeout(support::wait_timeout(), waiting)
            .await
            .expect("events are acknowledged")
            .expect("a count");
        platform.kill();
        platform.restart().await;
        starts.send_modify(|starts| *starts += 1);
    }
    stop.store(1, Ordering::SeqCst);
    drop(starts);
    for client in clients {
        client.await.expect("the client task succeeds");
    }
    (acknowledged, mails, platform)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_by_fifty_kills() {
    let (acknowledged, mails, platform) =
        run(std::env::var("KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(50), &[]).await;
    let tokens = acknowledged.tokens.lock().clone();
    if !mails.wait_for_tokens(&tokens).await {
        let seen = mails_seen(&mails);
        let missing: Vec<_> = tokens.iter().filter(|token| !seen.contains(*token)).collect();
        panic!(
            "{} of {} acknowledged events are missing, such as {:?}",
            missing.len(),
            tokens.len(),
            &missing[..missing.len().min(5)]
        );
    }
    let mut twice = 0;
    for (token, ids) in mails.ids_by_token() {
        let distinct: BTreeSet<&String> = ids.iter().collect();
        assert_eq!(distinct.len(), 1, "{token} was sent under several ids: {ids:?}");
        twice += usize::from(ids.len() > 1);
    }
    let status = platform.get("/v1/status").await;
    println!("{} events acknowledged, {twice} mails came more than once; {}", tokens.len(), status["totals"]);
    assert!(tokens.len() > 1000, "{}", tokens.len());
}

fn mails_seen(mails: &Mails) -> BTreeSet<String> {
    mails.ids_by_token().into_keys().collect()
}

/// Runs the same kills against a server that acknowledges before the commit: the loss must be detected, otherwise the
/// test above proves nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kills_find_a_server_that_acknowledges_too_early() {
    let (acknowledged, mails, platform) = run(5, &[("TOCSIN_FAULT_EARLY_ANSWERS", "64")]).await;
    // Stored events are delivered before this last one.
    let path = "/v1/applications/pings/events/ping";
    for last in 0..64 {
        let (status, answer) = platform.post(path, &serde_json::json!({ "token": format!("last-{last}") })).await;
        assert_eq!(status, 202, "{answer}");
    }
    assert!(mails.wait_until(|| mails_seen(&mails).contains("last-0")).await, "the server delivers what it stored");
    let seen = mails_seen(&mails);
    let missing = acknowledged.tokens.lock().iter().filter(|token| !seen.contains(*token)).count();
    assert!(missing > 0, "the early acknowledgement lost nothing, so the kills prove nothing");
    println!("{missing} acknowledged events were lost, as expected");
}
