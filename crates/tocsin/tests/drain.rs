//! SIGTERM under load: the server stops cleanly and soon, loses nothing, and sends nothing twice.

mod support;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{Router, body::Bytes, extract::State, http::HeaderMap, http::StatusCode, routing::post};
use parking_lot::Mutex;
use support::{Platform, mails::Mails};
use tokio::sync::watch;

const CLIENTS: usize = 8;
const STOPS: usize = 6;

const APPLICATION: &str = r#"
application: pings
events: { ping: { fields: { token: { type: string, required: true } } } }
subscriptions: { every: { fields: {} } }
notifications:
  ping: { fields: { token: string }, content: { templates: { base: { subject: "ping", text: "token: {{ token }}\n" } } } }
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
  web: { protocol: http, options: { allow_networks: [127.0.0.0/8] }, retry: [1s, 1s, 5s] }
"#;

/// Webhook receiver that counts requests by id.
#[derive(Clone)]
struct Hooks {
    seen: Arc<Mutex<BTreeMap<String, Vec<String>>>>,
    count: watch::Sender<usize>,
}

async fn receive(State(hooks): State<Hooks>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let id = headers["webhook-id"].to_str().expect("text").to_owned();
    let body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
    let token = body["data"]["token"].as_str().expect("a token").to_owned();
    hooks.seen.lock().entry(token).or_default().push(id);
    hooks.count.send_modify(|count| *count += 1);
    StatusCode::NO_CONTENT
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminated_server_loses_and_repeats_nothing() {
    let mut random = fastrand::Rng::with_seed(support::seed());
    let mails = Mails::start().await;
    let hooks = Hooks { seen: Arc::default(), count: watch::Sender::new(0) };
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = format!("http://{}/hook", socket.local_addr().expect("an address"));
    let router = Router::new().route("/hook", post(receive)).with_state(hooks.clone());
    tokio::spawn(async move { axum::serve(socket, router).await });

    let sink = mails.port.to_string();
    let mut platform = Platform::start(&[("SINK", &sink)]).await;
    platform.apply("pings", APPLICATION).await;
    platform.subscribe("pings", "every", "alice", "email", "alice@example.org", serde_json::json!({})).await;
    platform.subscribe("pings", "every", "bob", "web", &address, serde_json::json!({})).await;

    let acknowledged: Arc<Mutex<Vec<String>>> = Arc::default();
    let count = watch::Sender::new(0usize);
    let (starts, started) = watch::channel(0usize);
    let over = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let (acknowledged, count, over, mut started) =
                (acknowledged.clone(), count.clone(), over.clone(), started.clone());
            let (url, key) = (platform.url.clone(), platform.key());
            tokio::spawn(async move {
                // No connection is kept: one to a stopped server would fail after the last start.
                let http = reqwest::Client::builder().timeout(support::wait_timeout()).pool_max_idle_per_host(0);
                let http = http.build().expect("a client");
                let mut number = 0;
                while !over.load(Ordering::SeqCst) {
                    started.mark_unchanged();
                    let tokens: Vec<String> = (0..20).map(|index| format!("{client}-{number}-{index}")).collect();
                    let body: Vec<_> = tokens.iter().map(|token| serde_json::json!({ "token": token })).collect();
                    let answer = http
                        .post(format!("{url}/v1/applications/pings/events/ping"))
                        .bearer_auth(&key)
                        .header("idempotency-key", format!("{client}-{number}"))
                        .json(&body)
                        .send()
                        .await;
                    match answer.map(|answer| answer.status().as_u16()) {
                        Ok(202) => {
                            acknowledged.lock().extend(tokens);
                            count.send_modify(|count| *count += 20);
                            number += 1;
                        }
                        Ok(429 | 503) => tokio::task::yield_now().await,
                        Ok(status) => panic!("{status}"),
                        Err(_) if started.changed().await.is_err() => return,
                        Err(_) => {}
                    }
                }
            })
        })
        .collect();

    let mut counted = count.subscribe();
    for _ in 0..STOPS {
        let until = *counted.borrow() + random.usize(100..600);
        let waiting = counted.wait_for(|count| *count >= until);
        tokio::time::timeout(support::wait_timeout(), waiting)
            .await
            .expect("events are acknowledged")
            .expect("a count");
        let asked = Instant::now();
        let (code, returned) =
            tokio::task::spawn_blocking(move || (platform.terminate(), platform)).await.expect("it ends");
        platform = returned;
        assert_eq!(code, Some(0));
        assert!(asked.elapsed() < Duration::from_secs(30), "it took {:?}", asked.elapsed());
        platform.restart().await;
        starts.send_modify(|starts| *starts += 1);
    }
    over.store(true, Ordering::SeqCst);
    for client in clients {
        tokio::time::timeout(support::wait_timeout(), client)
            .await
            .expect("a client ends")
            .expect("the client task succeeds");
    }

    let tokens = acknowledged.lock().clone();
    assert!(mails.wait_for_tokens(&tokens.iter().cloned().collect()).await, "a mail is missing");
    let mut hooked = hooks.count.subscribe();
    let all_hooks = hooked.wait_for(|count| {
        *count >= tokens.len() && {
            let seen = hooks.seen.lock();
            tokens.iter().all(|token| seen.contains_key(token))
        }
    });
    tokio::time::timeout(support::wait_timeout(), all_hooks).await.expect("a webhook is missing").expect("a count");
    // The drain finishes deliveries that are in flight when their token is seen.
    assert_eq!(platform.terminate(), Some(0));
    for (token, ids) in mails.ids_by_token() {
        assert_eq!(ids.len(), 1, "the mail of {token} came {} times", ids.len());
    }
    for (token, ids) in hooks.seen.lock().iter() {
        assert_eq!(ids.len(), 1, "the webhook of {token} came {} times", ids.len());
    }
    println!("{} events, each delivered once by mail and once by webhook, over {STOPS} stops", tokens.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_ends_when_due_work_is_delivered() {
    let hooks = Hooks { seen: Arc::default(), count: watch::Sender::new(0) };
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = format!("http://{}/hook", socket.local_addr().expect("an address"));
    let router = Router::new().route("/hook", post(receive)).with_state(hooks.clone());
    tokio::spawn(async move { axum::serve(socket, router).await });
    let mut platform = Platform::start(&[("SINK", "1")]).await;
    platform.apply("pings", APPLICATION).await;
    platform.subscribe("pings", "every", "bob", "web", &address, serde_json::json!({})).await;
    let publish = async |platform: &Platform, token: &str| {
        let body = serde_json::json!({ "token": token });
        platform.post("/v1/applications/pings/events/ping", &body).await.0
    };
    for number in 0..50 {
        assert_eq!(publish(&platform, &format!("t{number}")).await, 202);
    }
    let exchange = format!(
        "exchange: desk\nreceive: {{ orders: {{ mode: one_way }} }}\nroutes: {{ each: {{ when: 'true', to: out }} }}\nsend: {{ out: \
         {{ mode: one_way, protocol: http, options: {{ url: '{address}', allow_networks: [127.0.0.1] }} }} }}\n"
    );
    let request =
        platform.request(reqwest::Method::PUT, "/v1/exchanges/desk").header("content-type", "application/yaml");
    let answer = request.body(exchange).send().await.expect("an answer");
    assert!(answer.status().is_success(), "{}", answer.text().await.unwrap_or_default());
    let send = async |platform: &Platform, token: &str| {
        let request = platform.request(reqwest::Method::POST, "/v1/exchanges/desk/receive/orders");
        let body = serde_json::json!({ "data": { "token": token } });
        let answer = request.json(&body).send().await.expect("an answer");
        (answer.status().as_u16(), answer.headers().contains_key("retry-after"))
    };
    assert!((200..300).contains(&send(&platform, "message").await.0));
    let output = platform.run(&["drain", "--timeout", "60s", "--reason", "a new disk"]);
    assert!(output.starts_with("drained"), "{output}");
    assert_eq!(hooks.seen.lock().len(), 51, "all is delivered before the command ends");
    assert_eq!(publish(&platform, "late").await, 503);
    assert_eq!(send(&platform, "late").await, (503, true));
    // The intake stays closed over a restart, until the drain is ended.
    assert_eq!(platform.terminate(), Some(0));
    platform.restart().await;
    assert_eq!(publish(&platform, "late").await, 503);
    assert_eq!(send(&platform, "late").await, (503, true));
    let state = platform.get("/v1/drain").await;
    assert_eq!(
        (&state["drained"], &state["due"], &state["closed"]),
        (&true.into(), &0.into(), &true.into()),
        "{state}"
    );
    assert!(platform.run(&["drain", "--end"]).contains("open again"));
    assert_eq!(publish(&platform, "late").await, 202);
}
