//! Exchanges in the real binary: the commands of the example's README, and SIGKILL while callers wait.

mod support;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use axum::{Router, body::Bytes, extract::State, http::HeaderMap, response::IntoResponse};
use parking_lot::Mutex;
use reqwest::Method;
use support::Platform;
use tocsin_test_peers::{Peer, missing, reserved_port};
use tokio::sync::watch;

/// Receiver that confirms every order, and counts requests by id.
#[derive(Clone, Default)]
struct OrderReceiver {
    seen: Arc<Mutex<HashMap<String, Vec<String>>>>,
    /// Orders in order of arrival.
    order: Arc<Mutex<Vec<i64>>>,
    count: watch::Sender<usize>,
    url: String,
}

impl OrderReceiver {
    async fn start() -> OrderReceiver {
        let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", socket.local_addr().expect("an address"));
        let receiver = OrderReceiver { url, ..OrderReceiver::default() };
        let router = Router::new().fallback(confirm).with_state(receiver.clone());
        tokio::spawn(async move { axum::serve(socket, router).await });
        receiver
    }
}

async fn confirm(State(receiver): State<OrderReceiver>, headers: HeaderMap, body: Bytes) -> impl IntoResponse {
    let asked: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    let id = headers.get("webhook-id").and_then(|id| id.to_str().ok()).unwrap_or_default().to_owned();
    receiver.seen.lock().entry(id).or_default().push(asked["order"].to_string());
    receiver.order.lock().extend(asked["order"].as_i64());
    receiver.count.send_modify(|count| *count += 1);
    let reply = serde_json::json!({"confirmed": true, "order": asked["order"], "nonce": fastrand::u64(..)});
    ([("content-type", "application/json")], reply.to_string())
}

async fn apply(platform: &Platform, yaml: String) {
    let request =
        platform.request(Method::PUT, "/v1/exchanges/confirmation").header("content-type", "application/yaml");
    let answer = request.body(yaml).send().await.expect("an answer");
    let status = answer.status();
    assert!(status.is_success(), "{status} {}", answer.text().await.unwrap_or_default());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commands_of_the_readme_have_the_documented_effects() {
    let (shop, warehouse) = (OrderReceiver::start().await, OrderReceiver::start().await);
    let variables = [("SHOP", &*shop.url), ("WAREHOUSE", &warehouse.url), ("BANK", &warehouse.url)];
    let platform = Platform::start(&variables).await;
    let readme = std::fs::read_to_string(support::repository("examples/confirmation/README.md")).expect("the README");
    let commands = readme.lines().filter_map(|line| line.strip_prefix("tocsin "));
    let mut printed = Vec::new();
    for command in commands {
        let arguments = words(command);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        printed.push(platform.run(&arguments));
        if arguments.starts_with(&["messages", "send", "confirmation", "orders"]) {
            let mut count = shop.count.subscribe();
            tokio::time::timeout(support::wait_timeout(), count.wait_for(|count| *count > 0))
                .await
                .expect("A receives the confirmation")
                .expect("lives");
        }
    }
    let printed = printed.join("\n");
    for expected in [
        "confirmation runs as version 1",
        r#""confirmed":true"#,
        r#""order":null"#,
        "is stored",
        "is pending",
        "warehouse done",
        "directory",
        "payments runs as version 1",
        "bank done",
    ] {
        assert!(printed.contains(expected), "`{expected}` is missing in\n{printed}");
    }
    let pending: Vec<&str> =
        printed.split("`tocsin messages reply ").skip(1).filter_map(|rest| rest.split(' ').next()).collect();
    assert_eq!(pending.len(), 2, "{printed}");
    for (pending, expected) in pending.into_iter().zip([r#""order":4711"#, r#""paid": true"#]) {
        let reply = platform.run(&["messages", "reply", pending, "--wait", "60"]);
        assert!(reply.contains(expected), "{reply}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_throttles_an_exchange_and_senders_get_the_reason() {
    let receiver = OrderReceiver::start().await;
    let platform = Platform::start(&[("SHOP", &receiver.url), ("WAREHOUSE", &receiver.url)]).await;
    let definition = support::repository("examples/confirmation/exchange.yaml");
    platform.run(&["exchange", "apply", definition.to_str().expect("a path"), "--yes"]);
    let shown = platform.run(&["exchange", "throttle", "confirmation", "publishing", "0"]);
    assert!(shown.contains("set: publishing, 0"), "{shown}");
    let post = || {
        let request = platform.request(Method::POST, "/v1/exchanges/confirmation/receive/orders");
        request.header("content-type", "application/json").body(r#"{"type": "order", "order": 1}"#).send()
    };
    let refused = post().await.expect("an answer");
    assert_eq!((refused.status().as_u16(), &refused.headers()["retry-after"]), (503, &"60".parse().expect("a value")));
    let problem: serde_json::Value = refused.json().await.expect("a problem");
    assert_eq!(problem["reason"], "operator", "{problem}");
    let status = platform.run(&["status"]);
    assert!(
        status.contains("throttled confirmation, publishing, operator: an operator limits receiving to 0"),
        "{status}"
    );
    platform.run(&["exchange", "throttle", "confirmation", "publishing", "off"]);
    assert!(post().await.expect("an answer").status().is_success());
    let flow = platform.run(&["exchange", "flow", "confirmation"]);
    assert!(flow.contains("warehouse") && flow.contains("callers wait"), "{flow}");
    platform.run(&["exchange", "flow", "confirmation", "--changes"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a8_a_reply_belongs_to_the_key_that_sent_the_request() {
    let receiver = OrderReceiver::start().await;
    let mut platform = Platform::start(&[("SHOP", &receiver.url), ("WAREHOUSE", &receiver.url)]).await;
    let definition = support::repository("examples/confirmation/exchange.yaml");
    platform.run(&["exchange", "apply", definition.to_str().expect("a path"), "--yes"]);
    let make = |platform: &Platform, arguments: &[&str]| {
        let made = platform.run(&[&["keys", "create", "x", "--json"], arguments].concat());
        let made: serde_json::Value = serde_json::from_str(&made).expect("JSON");
        made["key"].as_str().expect("a key").to_owned()
    };
    let partner = ["--role", "partner"];
    let (owner, other) = (make(&platform, &partner), make(&platform, &partner));
    let limited = make(&platform, &["--role", "partner", "--resource", "port:confirmation/questions"]);
    let reader = make(&platform, &["--role", "analyst"]);
    let elsewhere = make(&platform, &["--role", "analyst", "--resource", "exchange:another"]);
    let post = async |platform: &Platform, key: &str, port: &str| {
        let path = format!("/v1/exchanges/confirmation/receive/{port}");
        let request = platform.client.post(format!("{}{path}", platform.url)).bearer_auth(key);
        let request = request.header("content-type", "application/json").body(r#"{"type": "order", "order": 7}"#);
        let answer = request.send().await.expect("an answer");
        let id = answer.headers().get("tocsin-message").map(|id| id.to_str().expect("text").to_owned());
        (answer.status().as_u16(), id.unwrap_or_default())
    };
    let get = async |platform: &Platform, key: &str, path: &str| {
        let request = platform.client.get(format!("{}{path}", platform.url)).bearer_auth(key);
        let answer = request.send().await.expect("an answer");
        (answer.status().as_u16(), answer.text().await.expect("a body"))
    };
    let (status, id) = post(&platform, &owner, "questions").await;
    assert_eq!(status, 200);
    for _ in 0..2 {
        let reply = format!("/v1/messages/{id}/reply");
        let (status, body) = get(&platform, &owner, &reply).await;
        assert!(status == 200 && body.contains(r#""confirmed":true"#), "{status} {body}");
        assert_eq!(get(&platform, &reader, &reply).await.0, 200, "an operator may read");
        let (status, refused) = get(&platform, &other, &reply).await;
        let (_, none) = get(&platform, &other, "/v1/messages/m-999999/reply").await;
        assert_eq!((status, refused.replace(&id, "m-999999")), (404, none), "sequential ids reveal nothing");
        for path in ["", "/body", "/tracked", "/original", "/reply"] {
            assert_eq!(get(&platform, &elsewhere, &format!("/v1/messages/{id}{path}")).await.0, 404, "{path}");
        }
        assert_eq!(get(&platform, &other, &format!("/v1/messages/{id}")).await.0, 403);
        platform.kill();
        platform.restart().await;
    }
    assert_eq!(post(&platform, &limited, "questions").await.0, 200);
    assert_eq!(post(&platform, &limited, "orders").await.0, 404, "another port of the exchange");
    let (status, found) = get(&platform, &elsewhere, "/v1/messages?exchange=confirmation").await;
    assert_eq!(status, 404, "{found}");
    assert_eq!(get(&platform, &elsewhere, "/v1/messages").await.0, 403);
    let (_, shown) = get(&platform, &platform.key(), &format!("/v1/messages/{id}")).await;
    assert!(shown.contains(r#""sender""#) && shown.contains(r#""history":[]"#), "{shown}");
    // B39: a misspelt name is an error, not an empty list.
    for (query, status) in [
        ("exchange=confirmation&port=questions", 200),
        ("exchange=confirmaton", 404),
        ("exchange=confirmation&port=question", 404),
        ("port=nowhere", 404),
        ("to=nowhere", 404),
    ] {
        let (found, body) = get(&platform, &platform.key(), &format!("/v1/messages?{query}")).await;
        assert_eq!(found, status, "{query}: {body}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a9_a_wait_for_a_reply_ends_with_its_key() {
    // A server that accepts requests and never responds.
    let (asked, mut count) = watch::channel(0);
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", socket.local_addr().expect("an address"));
    let silent = Router::new().fallback(async move || {
        asked.send_modify(|count| *count += 1);
        std::future::pending::<()>().await
    });
    tokio::spawn(async move { axum::serve(socket, silent).await });
    let platform = Platform::start(&[("SHOP", &url), ("WAREHOUSE", &url), ("SPARE", &url)]).await;
    let definition = support::repository("examples/confirmation/exchange.yaml");
    platform.run(&["exchange", "apply", definition.to_str().expect("a path"), "--yes"]);
    let made = platform.run(&["keys", "create", "x", "--json", "--role", "partner"]);
    let made: serde_json::Value = serde_json::from_str(&made).expect("JSON");
    let (id, key) = (made["id"].as_str().expect("an id"), made["key"].as_str().expect("a key"));
    let at = format!("{}/v1/exchanges/confirmation/receive/questions", platform.url);
    let post = platform.client.post(at).bearer_auth(key).json(&serde_json::json!({"type": "order", "order": 7}));
    let revoke = async {
        count.wait_for(|count| *count > 0).await.expect("the server lives");
        let removed = platform.request(Method::DELETE, &format!("/v1/keys/{id}")).send().await.expect("an answer");
        assert_eq!(removed.status().as_u16(), 204);
    };
    let (answer, ()) = tokio::join!(post.send(), revoke);
    let answer = answer.expect("an answer");
    let status = answer.status().as_u16();
    let problem: serde_json::Value = answer.json().await.expect("a problem");
    assert_eq!((status, problem["type"].as_str()), (401, Some("/problems/unauthenticated")), "{problem}");
    assert!(
        problem["detail"].as_str().is_some_and(|detail| detail.contains("was revoked while it was in use")),
        "{problem}"
    );
    // The sent request is stored, and its reply is still awaited.
    let stored = platform.get("/v1/messages?exchange=confirmation").await;
    assert_eq!(stored["items"].as_array().map(Vec::len), Some(1), "{stored}");
}

/// Splits a command line of the README into words; quoted text is one word.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            c => words.last_mut().expect("there is one").push(c),
        }
    }
    let path = |word: String| match word.strip_prefix("examples/") {
        Some(rest) => support::repository("examples").join(rest).to_str().expect("a path").to_owned(),
        None => word,
    };
    words.into_iter().filter(|word| !word.is_empty()).map(path).collect()
}

/// Results of callers: message id and reply, by order.
type Results = Arc<Mutex<BTreeMap<String, (String, String)>>>;

/// Retry behaviour of callers.
#[derive(Clone, Copy, PartialEq)]
enum CallerMode {
    /// With idempotency keys: failed requests are repeated.
    Keyed,
    /// Without keys: failed requests are abandoned, and requests are sent before they are stored.
    SendFirst,
}

/// Sends requests until `stop`. After a failure it waits for the next start.
async fn ask_until_stopped(
    caller: usize,
    asking: CallerMode,
    platform: (String, String),
    results: Results,
    mut starts: watch::Receiver<usize>,
    stop: Arc<AtomicBool>,
) {
    let (url, key) = platform;
    // No connection is kept: one to a killed server would fail after the last start, and the caller would wait forever.
    let http = reqwest::Client::builder().pool_max_idle_per_host(0).build().expect("a client");
    let mut number = 0;
    while !stop.load(Ordering::SeqCst) {
        let order = caller * 1_000_000 + number;
        starts.mark_unchanged();
        let request = http
            .post(format!("{url}/v1/exchanges/confirmation/receive/questions"))
            .bearer_auth(&key)
            .json(&serde_json::json!({"type": "order", "order": order, "amount": 1.5}));
        let request = match asking {
            CallerMode::Keyed => request.header("idempotency-key", order.to_string()),
            CallerMode::SendFirst => request,
        };
        let reply = match request.send().await {
            Ok(answer) if answer.status().as_u16() == 200 => {
                let id = answer.headers()["tocsin-message"].to_str().expect("text").to_owned();
                answer.text().await.map(|reply| (id, reply))
            }
            Ok(answer) if matches!(answer.status().as_u16(), 202 | 429 | 503) => continue,
            Ok(answer) => panic!("{}: {}", answer.status(), answer.text().await.unwrap_or_default()),
            Err(error) => Err(error),
        };
        match reply {
            Ok(reply) => {
                let before = results.lock().insert(order.to_string(), reply.clone());
                assert_eq!(before.unwrap_or(reply.clone()), reply);
                number += 1;
            }
            // Killed during the request: stored or not is unknown.
            Err(_) => {
                number += usize::from(asking == CallerMode::SendFirst);
                if starts.changed().await.is_err() {
                    return;
                }
            }
        }
    }
}

async fn kill_under_callers(asking: CallerMode, kills: usize, callers: usize, partitions: u8) {
    let warehouse = OrderReceiver::start().await;
    let spread = partitions.to_string();
    let variables = [("WAREHOUSE", &*warehouse.url), ("TOCSIN_SPOOL_PARTITIONS", &*spread)];
    let mut platform = Platform::start(&variables).await;
    let definition = std::fs::read_to_string(support::repository("examples/confirmation/exchange.yaml")).expect("read");
    let definition = match asking {
        CallerMode::Keyed => definition,
        CallerMode::SendFirst => {
            let send_first = definition.replace("wait: 20s, expires_after: 2m }", "wait: 20s, store_first: false }");
            assert_ne!(send_first, definition);
            send_first
        }
    };
    apply(&platform, definition).await;
    let (started, starts) = watch::channel(0);
    let (results, stop) = (Results::default(), Arc::new(AtomicBool::new(false)));
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let reach = (platform.url.clone(), platform.key());
            tokio::spawn(ask_until_stopped(caller, asking, reach, results.clone(), starts.clone(), stop.clone()))
        })
        .collect();
    let mut count = warehouse.count.subscribe();
    for kill in 0..kills {
        // At a random time during the traffic.
        let enough = *count.borrow_and_update() + fastrand::usize(5..200);
        tokio::time::timeout(support::wait_timeout(), count.wait_for(|count| *count >= enough))
            .await
            .expect("goes on")
            .expect("lives");
        platform.kill();
        platform.restart().await;
        started.send_replace(kill + 1);
    }
    stop.store(true, Ordering::SeqCst);
    for caller in tasks {
        tokio::time::timeout(support::wait_timeout(), caller)
            .await
            .expect("in time")
            .expect("all callers get consistent replies");
    }

    // The stored reply is the one that the caller received, and a retry returns the same.
    let results = results.lock().clone();
    for (key, (id, reply)) in results.iter().take(500) {
        let kept = platform.request(Method::GET, &format!("/v1/messages/{id}/reply")).send().await.expect("an answer");
        assert_eq!((kept.status().as_u16(), kept.text().await.expect("a body")), (200, reply.clone()), "{id}");
        if asking == CallerMode::SendFirst {
            continue;
        }
        let order: u64 = key.parse().expect("a number");
        let request = platform.request(Method::POST, "/v1/exchanges/confirmation/receive/questions");
        let request = request.header("idempotency-key", key);
        let answer = request.json(&serde_json::json!({"type": "order", "order": order, "amount": 1.5})).send().await;
        let answer = answer.expect("an answer");
        assert_eq!((answer.status().as_u16(), answer.headers()["idempotent-replayed"].as_bytes()), (200, &b"true"[..]));
        assert_eq!(answer.text().await.expect("a body"), *reply, "{key}");
    }
    // B sees repeats only under the same id: one id per order, and one order per id.
    let seen = warehouse.seen.lock().clone();
    let mut ids_by_order: HashMap<String, Vec<String>> = HashMap::new();
    for (id, orders) in &seen {
        assert!(orders.iter().all(|order| *order == orders[0]), "{id}: {orders:?}");
        ids_by_order.entry(orders[0].clone()).or_default().push(id.clone());
    }
    for (order, ids) in &ids_by_order {
        assert_eq!(ids.len(), 1, "order {order} left under {ids:?}");
    }
    // Every accepted request has exactly one outcome.
    let ended = async {
        loop {
            let open = platform.get("/v1/messages?standing=open").await;
            if open["items"].as_array().is_some_and(Vec::is_empty) {
                return;
            }
        }
    };
    tokio::time::timeout(support::wait_timeout(), ended).await.expect("all end");
    let repeats = seen.values().filter(|orders| orders.len() > 1).count();
    println!("{} requests answered over {kills} kills, {repeats} of them sent more than once", results.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_accepted_request_ends_in_one_outcome_over_kills() {
    kill_under_callers(CallerMode::Keyed, 5, 16, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_accepted_request_ends_in_one_outcome_over_kills_and_partitions() {
    kill_under_callers(CallerMode::Keyed, 5, 16, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_to_a_request_sent_before_its_commit_is_stored_over_kills() {
    kill_under_callers(CallerMode::SendFirst, 5, 16, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_every_accepted_request_ends_in_one_outcome_over_50_kills() {
    kill_under_callers(CallerMode::Keyed, 50, 64, 1).await;
    kill_under_callers(CallerMode::Keyed, 25, 64, 3).await;
    kill_under_callers(CallerMode::SendFirst, 25, 64, 1).await;
}

/// Sends mails as a mail server does: repeats each until it is accepted.
const MAILER: &str = r#"
for order in $(seq $2 $3); do
  printf 'Message-ID: <%s@example.org>\r\nX-Order: %s\r\nSubject: order\r\n\r\nan order\r\n' $order $order > "$4/$order.mail"
  until curl -s --mail-from a@example.org --mail-rcpt b@example.org --upload-file "$4/$order.mail" "smtp://127.0.0.1:$1"
  do [ -d "$4" ] || exit 1; sleep 0.02; done
done"#;

/// Files, rows and mails are received while the process is killed repeatedly: each becomes one message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receive_locations_receive_each_item_once_over_kills() {
    if missing(&[Peer::Curl]) {
        return;
    }
    const FILES: usize = 60;
    const ROWS: usize = 3_000;
    const MAILS: usize = 60;
    const ALL: usize = FILES + ROWS + MAILS;
    let warehouse = OrderReceiver::start().await;
    let elsewhere = tempfile::tempdir().expect("a folder");
    let opened = elsewhere.path().to_str().expect("a path");
    let variables = [("TOCSIN_SOURCES_ALLOW_FOLDERS", opened), ("TOCSIN_SPOOL_PARTITIONS", "3")];
    let mut platform = Platform::start(&variables).await;
    let drop = platform.folder.join("drop");
    std::fs::create_dir_all(drop.join("orders")).expect("made");
    let file = elsewhere.path().join("shop.db");
    let mut shop = rusqlite::Connection::open(&file).expect("a file");
    let post = reserved_port();
    let table = "PRAGMA journal_mode = WAL; CREATE TABLE box (id INTEGER PRIMARY KEY, \"order\" INTEGER, type TEXT)";
    shop.execute_batch(table).expect("made");
    let definition = format!(
        r#"
exchange: confirmation
properties:
  type: $.type
  order: {{ type: integer, json: $.order, search: true }}
receive:
  orders:
    mode: one_way
    locations:
      files: {{ kind: directory, options: {{ folder: orders, settle: 1ms, rescan: 10ms }} }}
      shop: {{ kind: outbox, options: {{ database: "sqlite:{}", table: box, every: 1ms }} }}
  mails:
    mode: one_way
    pipeline:
      - transform: {{ jmespath: "{{type: subject, order: to_number(headers.\"x-order\")}}" }}
    locations:
      post: {{ kind: mail, options: {{ listen: "127.0.0.1:{}", recipients: ["*"], body: json }} }}
send:
  warehouse:
    mode: one_way
    protocol: http
    options: {{ url: "{}/", allow_networks: [127.0.0.1] }}
    retry: {{ delays: [10ms, 100ms, 1s], jitter: 0% }}
routes:
  orders: {{ when: "message.type == 'order'", to: warehouse }}
"#,
        file.display(),
        post,
        warehouse.url
    );
    apply(&platform, definition).await;
    let order = |order: usize| serde_json::json!({"type": "order", "order": order}).to_string();
    for number in 0..FILES {
        std::fs::write(drop.join("half"), order(number)).expect("written");
        std::fs::rename(drop.join("half"), drop.join("orders").join(format!("{number}.json"))).expect("moved");
    }
    let rows = shop.transaction().expect("begun");
    for number in FILES..FILES + ROWS {
        rows.execute("INSERT INTO box VALUES (?1, ?1, 'order')", [number]).expect("filled");
    }
    rows.commit().expect("filled");
    let (first, last) = ((FILES + ROWS).to_string(), (ALL - 1).to_string());
    let mut mailer = std::process::Command::new("sh")
        .args(["-c", MAILER, "mailer", &post.to_string(), &first, &last, opened])
        .spawn()
        .expect("a shell");
    let mut count = warehouse.count.subscribe();
    for _ in 0..6 {
        let enough = *count.borrow_and_update() + fastrand::usize(1..400);
        let some = tokio::time::timeout(support::wait_timeout(), count.wait_for(|count| *count >= enough.min(ALL)));
        some.await.expect("goes on").expect("lives");
        platform.kill();
        platform.restart().await;
    }
    let all = async {
        loop {
            let orders: std::collections::BTreeSet<i64> = warehouse.order.lock().iter().copied().collect();
            let open = platform.get("/v1/messages?standing=open").await;
            if orders.len() == ALL && open["items"].as_array().is_some_and(Vec::is_empty) {
                return;
            }
            count.borrow_and_update();
            let _ = tokio::time::timeout(std::time::Duration::from_millis(100), count.changed()).await;
        }
    };
    tokio::time::timeout(support::wait_timeout(), all).await.expect("all arrive");
    let status = tokio::task::spawn_blocking(move || mailer.wait()).await.expect("waited").expect("it ended");
    assert!(status.success(), "each mail was accepted");
    // One id per order, and one order per id.
    let mut ids = HashMap::<String, Vec<String>>::new();
    for (id, orders) in warehouse.seen.lock().iter() {
        assert!(orders.iter().all(|order| *order == orders[0]), "{id}: {orders:?}");
        ids.entry(orders[0].clone()).or_default().push(id.clone());
    }
    assert!(ids.values().all(|ids| ids.len() == 1), "{:?}", ids.values().find(|ids| ids.len() > 1));
    let left: u64 = shop.query_row("SELECT count(*) FROM box", [], |row| row.get(0)).expect("counted");
    assert_eq!(left, 0, "rows are deleted");
    let shown = platform.run(&["exchange", "locations", "confirmation"]);
    assert!(shown.contains("outbox") && shown.contains("running"), "{shown}");
}

/// Sends a request to the receive port; returns status, headers and body.
async fn send(
    platform: &Platform,
    port: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (u16, HeaderMap, serde_json::Value) {
    let mut request = platform.request(Method::POST, &format!("/v1/exchanges/confirmation/receive/{port}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let answer =
        request.header("content-type", "application/json").body(body.to_owned()).send().await.expect("an answer");
    let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
    (status, headers, answer.json().await.unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_response_states_the_outcome_of_the_message() {
    let (shop, warehouse) = (OrderReceiver::start().await, OrderReceiver::start().await);
    let platform = Platform::start(&[("SHOP", &shop.url), ("WAREHOUSE", &warehouse.url)]).await;
    let definition = std::fs::read_to_string(support::repository("examples/confirmation/exchange.yaml")).expect("read");
    apply(&platform, definition.replace("wait: 20s", "wait: 20s, body_bytes: 200")).await;
    let order = r#"{"type": "order", "order": 1, "amount": 2}"#;

    let (status, first, reply) = send(&platform, "questions", &[("idempotency-key", "k")], order).await;
    assert_eq!((status, &reply["confirmed"]), (200, &serde_json::json!(true)), "{reply}");
    let (status, again, same) = send(&platform, "questions", &[("idempotency-key", "k")], order).await;
    assert_eq!((status, &same, &again["tocsin-message"]), (200, &reply, &first["tocsin-message"]));
    assert_eq!(again["idempotent-replayed"], "true");
    let (status, _, problem) = send(&platform, "questions", &[("idempotency-key", "k")], "{}").await;
    assert_eq!((status, &problem["type"]), (409, &"/problems/idempotency-key-reused".into()), "{problem}");

    let (status, _, accepted) = send(&platform, "orders", &[], r#"{"type": "ordr"}"#).await;
    assert_eq!((status, &accepted["state"]), (202, &"suspended".into()), "{accepted}");
    let (status, _, problem) = send(&platform, "questions", &[], r#"{"type": "ordr"}"#).await;
    assert_eq!((status, &problem["type"]), (502, &"/problems/not-answered".into()), "{problem}");
    assert!(problem["detail"].as_str().is_some_and(|why| why.contains("`to_warehouse` lacks")), "{problem}");

    platform.run(&["exchange", "port", "confirmation", "warehouse", "hold"]);
    let (status, headers, accepted) = send(&platform, "questions", &[("prefer", "wait=0")], order).await;
    let id = accepted["message"].as_str().expect("an id");
    assert_eq!(
        (status, headers["location"].to_str().ok()),
        (202, Some(&*format!("/v1/messages/{id}/reply"))),
        "{accepted}"
    );
    platform.run(&["exchange", "port", "confirmation", "warehouse", "as-defined"]);
    let reply =
        platform.request(Method::GET, &format!("/v1/messages/{id}/reply")).header("prefer", "wait=60").send().await;
    assert_eq!(reply.expect("an answer").status().as_u16(), 200);

    let (status, _, problem) = send(&platform, "questions", &[], &" ".repeat(201)).await;
    assert_eq!((status, &problem["bytes_max"]), (413, &200.into()), "{problem}");
    assert_eq!(send(&platform, "questions", &[("prefer", "wait=soon")], order).await.0, 400);
    assert_eq!(send(&platform, "nowhere", &[], order).await.0, 404);
    let (status, answer) = platform.post("/v1/messages/end", &serde_json::json!({})).await;
    assert_eq!(status, 422, "{answer}");
    // Every reason contains the empty text.
    let (status, answer) = platform.post("/v1/messages/end", &serde_json::json!({"reason": ""})).await;
    assert_eq!((status, &answer["problems"][0]["path"]), (422, &"reason".into()), "{answer}");
    let (status, answer) = platform.post("/v1/messages/end", &serde_json::json!({"all": true})).await;
    assert_eq!((status, &answer["messages"]), (200, &2.into()), "{answer}");
    let (_, answer) =
        platform.post("/v1/keys", &serde_json::json!({"description": "shop", "scopes": ["messages:write"]})).await;
    let key = answer["key"].as_str().expect("a key");
    let as_shop = |path: &str| platform.client.get(format!("{}{path}", platform.url)).bearer_auth(key).send();
    assert_eq!(as_shop("/v1/messages").await.expect("an answer").status().as_u16(), 403);
    // Another key sent the request, so its reply is not visible to this one.
    assert_eq!(as_shop(&format!("/v1/messages/{id}/reply")).await.expect("an answer").status().as_u16(), 404);
}

/// Order lists are split and checked, sent in order by key after a template, and tracked completely.
const PIPELINES: &str = r#"
exchange: confirmation
properties:
  customer: $.customer
  order: { type: integer, json: $.order, search: true }
tracking: { bodies: [received, sent], redact: [$.pin] }
receive:
  orders:
    mode: one_way
    pipeline:
      - split: { json: $.orders }
      - validate: { schema: { type: object, required: [order] } }
send:
  warehouse:
    mode: one_way
    protocol: http
    options: { url: "${WAREHOUSE}/orders", allow_networks: [127.0.0.1] }
    ordered: { by: customer }
    pipeline:
      - transform: { template: '{"order": {{ body.order }}, "pin": 1}' }
routes:
  rest: { when: "true", to: warehouse }
"#;

async fn all_end(platform: &Platform) {
    let ended = async {
        while !platform.get("/v1/messages?standing=open").await["items"].as_array().is_some_and(Vec::is_empty) {}
    };
    tokio::time::timeout(support::wait_timeout(), ended).await.expect("all end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_is_split_and_sent_in_order_over_a_kill_and_tracked() {
    let warehouse = OrderReceiver::start().await;
    let variables = [("WAREHOUSE", &*warehouse.url), ("TOCSIN_SPOOL_PARTITIONS", "3")];
    let mut platform = Platform::start(&variables).await;
    apply(&platform, PIPELINES.to_owned()).await;
    platform.run(&["exchange", "port", "confirmation", "warehouse", "hold"]);
    for list in 0..10 {
        let orders: Vec<serde_json::Value> = (0..4)
            .map(|part| serde_json::json!({"order": list * 4 + part, "customer": format!("c{}", part % 2)}))
            .collect();
        let body = serde_json::json!({ "orders": orders, "pin": 4711 }).to_string();
        let (status, _, accepted) = send(&platform, "orders", &[], &body).await;
        assert_eq!(status, 202, "{accepted}");
    }
    platform.kill();
    platform.restart().await;
    platform.run(&["exchange", "port", "confirmation", "warehouse", "as-defined"]);
    all_end(&platform).await;
    let seen = warehouse.seen.lock().clone();
    assert_eq!(seen.len(), 40, "each once");
    let in_order: Vec<i64> = warehouse.order.lock().clone();
    for customer in 0..2 {
        let of_one: Vec<i64> = in_order.iter().copied().filter(|order| order % 2 == customer).collect();
        assert!(of_one.is_sorted() && of_one.len() == 20, "{of_one:?}");
    }

    let found = platform.run(&["messages", "find", "confirmation", "order=39"]);
    let id = found.lines().find_map(|line| line.split_whitespace().find(|word| word.starts_with("m-"))).expect(&found);
    let bodies = platform.run(&["messages", "tracked", id]);
    assert!(bodies.contains("sent") && bodies.contains("redacted"), "{bodies}");
    assert_eq!(platform.run(&["messages", "tracked", id, "1"]).trim(), r#"{"order":39,"pin":"***"}"#);
    let journey = platform.run(&["trace", id]);
    for expected in
        ["received", "of `confirmation`", "delivered", "to `warehouse`, attempt 1", "body sent at `warehouse`", "split"]
    {
        assert!(journey.contains(expected), "`{expected}` is missing in\n{journey}");
    }
    let set = platform.run(&["exchange", "track", "confirmation", "none"]);
    assert!(set.contains("none (set)"), "{set}");
    let shown = platform.run(&["exchange", "tracking", "confirmation"]);
    assert!(shown.contains("0 entries dropped"), "{shown}");
}

/// The status failed as a whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_is_readable_while_the_spool_is_not() {
    let platform = Platform::start(&[]).await;
    assert_eq!(platform.get("/v1/status").await["backlog"]["suspended_messages"], 0);
    let spool = rusqlite::Connection::open(platform.folder.join("spool.db")).expect("a file");
    spool.execute_batch("ALTER TABLE legs RENAME TO elsewhere").expect("renamed");
    let status = platform.get("/v1/status").await;
    let unread = status["backlog"].get("suspended_messages");
    assert_eq!((&status["ready"], unread), (&true.into(), Some(&serde_json::Value::Null)), "{status}");
    let attention = platform.run(&["attention"]);
    assert!(attention.contains("cannot be read: the spool"), "{attention}");
    spool.execute_batch("ALTER TABLE elsewhere RENAME TO legs").expect("renamed");
    assert_eq!(platform.get("/v1/status").await["backlog"]["suspended_messages"], 0);
}

/// The second of two concurrent operators replaced the version of the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exchange_is_applied_to_the_expected_version_only() {
    let platform = Platform::start(&[("WAREHOUSE", "http://127.0.0.1:9")]).await;
    let put = async |query: &str, condition: (&str, &str)| {
        let path = format!("/v1/exchanges/confirmation{query}");
        let request = platform.request(Method::PUT, &path).header("content-type", "application/yaml");
        let answer = request.header(condition.0, condition.1).body(PIPELINES).send().await.expect("an answer");
        let status = answer.status().as_u16();
        (status, answer.json::<serde_json::Value>().await.expect("JSON")["version"].as_u64())
    };
    assert_eq!(put("?dry_run=true", ("if-none-match", "*")).await, (200, Some(0)));
    assert_eq!(put("", ("if-match", "\"1\"")).await.0, 412);
    assert_eq!(put("", ("if-none-match", "*")).await, (200, Some(1)));
    assert_eq!(put("", ("if-none-match", "*")).await.0, 412);
    assert_eq!(put("?dry_run=true", ("if-match", "\"2\"")).await.0, 412);
    assert_eq!(put("?dry_run=true", ("if-match", "\"1\"")).await, (200, Some(1)));
    assert_eq!(put("", ("if-match", "\"1\"")).await.0, 200);
}
