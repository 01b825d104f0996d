//! Clients that perform every acknowledged kind of write, and record the acknowledgements.

use std::{
    collections::BTreeSet,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinHandle};

use crate::{
    shim::Disk,
    support::{self, Platform, hooks::Hooks, mails::Mails},
};

const APPLICATION: &str = r#"
application: notes
events: { note: { fields: { token: { type: string, required: true } } } }
subscriptions: { every: { fields: {} } }
notifications:
  note:
    fields: { token: string }
    content: { templates: { base: { subject: "note {{ token }}", text: "token: {{ token }}\n" } } }
rules: { everyone: { on: note, subscription: every, notify: note } }
channels:
  email:
    protocol: smtp
    options: { host: 127.0.0.1, port: "${SINK}", tls: off, from: t@example.org }
    retry: [1s, 1s, 1s, 1s, 1s, 5s, 5s]
  log: { protocol: file, options: { path: deep/er/notes.ndjson }, retry: [1s, 1s, 1s, 1s, 1s, 5s, 5s] }
"#;

const EXCHANGE: &str = r#"
exchange: relay
receive: { orders: { mode: one_way } }
send:
  receiver:
    mode: one_way
    protocol: http
    options: { url: "${RECEIVER}/x", allow_networks: [127.0.0.1] }
    retry: [1s, 1s, 1s, 1s, 5s, 5s]
routes: { every: { when: "true", to: receiver } }
"#;

/// Acknowledged writes.
#[derive(Default)]
pub struct Acknowledged {
    pub events: Mutex<BTreeSet<String>>,
    pub subscribers: Mutex<BTreeSet<String>>,
    pub messages: Mutex<BTreeSet<String>>,
    count: watch::Sender<usize>,
}

impl Acknowledged {
    fn add(&self, to: &Mutex<BTreeSet<String>>, token: String) {
        to.lock().insert(token);
        self.count.send_modify(|count| *count += 1);
    }

    pub fn count(&self) -> usize {
        *self.count.borrow()
    }

    /// Waits for `count` more acknowledgements, or until the server is gone or refuses all writes.
    pub async fn more(&self, count: usize, clients: &Clients) {
        let mut counted = self.count.subscribe();
        let until = self.count() + count;
        let waiting = async {
            tokio::select! {
                _ = counted.wait_for(|count| *count >= until) => {}
                () = clients.all_refused() => {}
            }
        };
        tokio::time::timeout(support::wait_timeout(), waiting).await.expect("writes are acknowledged");
    }
}

/// Server on a fault-injecting disk, with receivers that outlive it.
pub struct FaultSetup {
    pub disk: Disk,
    pub mails: Mails,
    pub hooks: Hooks,
    pub platform: Platform,
    pub acknowledged: Arc<Acknowledged>,
    number: usize,
    receivers: Vec<(String, String)>,
}

impl FaultSetup {
    /// Creates the receivers and an empty disk; the server is not started.
    pub async fn prepare() -> FaultSetup {
        FaultSetup::prepare_with(&[]).await
    }

    /// As `prepare`, with additional environment variables.
    pub async fn prepare_with(more: &[(&str, &str)]) -> FaultSetup {
        let (disk, mails, hooks) = (Disk::new(), Mails::start().await, Hooks::start("{}").await);
        let mut environment = disk.environment();
        environment.push(("SINK".to_owned(), mails.port.to_string()));
        environment.push(("RECEIVER".to_owned(), format!("http://127.0.0.1:{}", hooks.port)));
        let own = environment.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let borrowed: Vec<_> = own.chain(more.iter().copied()).collect();
        // Two folders that do not exist yet.
        let platform = Platform::prepare(disk.root().join("site/data"), &borrowed);
        let receivers = environment.split_off(environment.len() - 2);
        FaultSetup { disk, mails, hooks, platform, acknowledged: Arc::default(), number: 0, receivers }
    }

    /// Environment variables with the addresses of the receivers, for another server.
    pub fn environment(&self) -> Vec<(&str, &str)> {
        self.receivers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
    }

    /// Starts a server with an application and an exchange.
    pub async fn start() -> FaultSetup {
        let mut site = FaultSetup::prepare().await;
        site.platform.restart().await;
        site.define().await;
        site
    }

    /// Applies the definitions and creates the subscriber of all notes.
    pub async fn define(&self) {
        self.platform.apply("notes", APPLICATION).await;
        let request = self.platform.request(reqwest::Method::PUT, "/v1/exchanges/relay");
        let answer = request.header("content-type", "application/yaml").body(EXCHANGE).send().await.expect("an answer");
        let status = answer.status();
        assert!(status.is_success(), "{status} {}", answer.text().await.unwrap_or_default());
        self.platform.subscribe("notes", "every", "alice", "email", "alice@example.org", json!({})).await;
        self.platform.subscribe("notes", "every", "larry", "log", "larry", json!({})).await;
    }

    /// Starts clients that write until they are stopped or the server is gone.
    pub fn write(&mut self) -> Clients {
        self.number += 1;
        let stop = Arc::new(AtomicBool::new(false));
        let idle = watch::Sender::new(0);
        let tasks = (0..6).map(|client| {
            let client = Client {
                http: self.platform.client.clone(),
                url: self.platform.url.clone(),
                key: self.platform.key(),
                name: format!("{}-{client}", self.number),
                acknowledged: self.acknowledged.clone(),
                stop: stop.clone(),
                idle: idle.clone(),
            };
            tokio::spawn(async move {
                match client.name.as_bytes().last().expect("a name") % 3 {
                    0 => client.submit_events().await,
                    1 => client.make_subscribers().await,
                    _ => client.send_messages().await,
                }
                client.idle.send_modify(|idle| *idle += 1);
            })
        });
        Clients { tasks: tasks.collect(), stop, idle: idle.clone() }
    }

    /// Kills the server while clients write, and stops these.
    pub async fn kill(&mut self, clients: Clients) {
        self.platform.kill();
        clients.end().await;
    }

    /// Checks that every acknowledged subscriber exists.
    pub async fn check_subscribers(&self) {
        let mut found = BTreeSet::new();
        let mut path = "/v1/subscribers?limit=1000".to_owned();
        loop {
            let page = self.platform.get(&path).await;
            let items = page["items"].as_array().expect("items");
            found.extend(items.iter().map(|item| item["id"].as_str().expect("an id").to_owned()));
            match page["next"].as_str() {
                Some(next) => path = format!("/v1/subscribers?limit=1000&after={next}"),
                None => break,
            }
        }
        let acknowledged = self.acknowledged.subscribers.lock();
        let missing: Vec<&String> = acknowledged.difference(&found).collect();
        assert!(missing.is_empty(), "{} of {} subscribers are missing: {missing:?}", missing.len(), acknowledged.len());
    }

    /// Checks that every event arrives as a mail and in the other channel's file, and every message at its receiver.
    /// Repeats carry the same id.
    pub async fn check_delivered(&self) {
        let events = self.acknowledged.events.lock().clone();
        // A suspended event fails the test at once, not as missing after a timeout.
        self.platform.settled().await;
        let status = self.platform.get("/v1/status").await;
        assert_eq!(status["backlog"]["suspended"], 0, "{}", self.platform.get("/v1/suspensions").await);
        let came = self.mails.wait_for_tokens(&events).await;
        let ids = self.mails.ids_by_token();
        let missing: Vec<&String> = events.iter().filter(|token| !ids.contains_key(*token)).collect();
        assert!(came, "{} of {} events are missing: {missing:?}", missing.len(), events.len());
        for (token, ids) in ids {
            let distinct: BTreeSet<&String> = ids.iter().collect();
            assert_eq!(distinct.len(), 1, "{token} was sent under several ids: {ids:?}");
        }
        let recorded = records(&self.platform.folder);
        let missing: Vec<&String> = events.difference(&recorded).collect();
        assert!(missing.is_empty(), "{} of {} records are missing: {missing:?}", missing.len(), events.len());

        let messages = self.acknowledged.messages.lock().clone();
        // The receiver has no signal.
        support::until("each message is at its receiver", async || {
            let bodies = self.hooks.all().into_iter().map(|(_, _, body)| String::from_utf8_lossy(&body).into_owned());
            let tokens: BTreeSet<String> = bodies
                .filter_map(|body| serde_json::from_str::<Value>(&body).ok()?["token"].as_str().map(str::to_owned))
                .collect();
            messages.is_subset(&tokens)
        })
        .await;
    }

    /// Checks the integrity of each database in a copy of the folder.
    pub fn check_integrity(&self) {
        let copy = tempfile::tempdir().expect("a folder");
        for entry in std::fs::read_dir(&self.platform.folder).expect("the data folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_str().expect("text").to_owned();
            if path.is_file() && name.contains(".db") && !name.ends_with("-shm") {
                std::fs::copy(&path, copy.path().join(name)).expect("copied");
            }
        }
        for entry in std::fs::read_dir(copy.path()).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.extension().is_some_and(|extension| extension == "db") {
                let database = rusqlite::Connection::open(&path).expect("a database");
                let sound: String =
                    database.query_row("pragma integrity_check", [], |row| row.get(0)).expect("an answer");
                assert_eq!(sound, "ok", "{}", path.display());
            }
        }
    }
}

/// Tokens in the files of channel `log`.
fn records(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(records(&path));
        } else if path.extension().is_some_and(|extension| extension == "ndjson") {
            let text = std::fs::read_to_string(&path).expect("text");
            found.extend(text.lines().map(|line| {
                let record: Value = serde_json::from_str(line).expect("each line is a record");
                let subject = record["content"]["subject"].as_str().or(record["subject"].as_str()).expect("a subject");
                subject.trim_start_matches("note ").to_owned()
            }));
        }
    }
    found
}

/// Running clients.
pub struct Clients {
    tasks: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    idle: watch::Sender<usize>,
}

impl Clients {
    async fn all_refused(&self) {
        let _ = self.idle.subscribe().wait_for(|idle| *idle == self.tasks.len()).await;
    }

    /// Stops the clients and waits for their ends.
    pub async fn end(self) {
        self.stop.store(true, Ordering::SeqCst);
        for task in self.tasks {
            task.await.expect("the client task succeeds");
        }
    }
}

struct Client {
    http: reqwest::Client,
    url: String,
    key: String,
    name: String,
    acknowledged: Arc<Acknowledged>,
    stop: Arc<AtomicBool>,
    idle: watch::Sender<usize>,
}

impl Client {
    /// Whether a request was acknowledged; `None` if the server is gone or stores nothing any more, which ends the
    /// client.
    async fn send_request(&self, path: &str, token: &str, body: Value) -> Option<()> {
        if self.stop.load(Ordering::SeqCst) {
            return None;
        }
        let request = self.http.post(format!("{}{path}", self.url)).bearer_auth(&self.key);
        let request = match path {
            "/v1/subscribers" => request.json(&body),
            _ => request.header("idempotency-key", token).json(&body),
        };
        let answer = request.send().await.ok()?;
        let status = answer.status().as_u16();
        assert!(
            matches!(status, 201 | 202 | 500 | 503),
            "{path}: {status} {}",
            answer.text().await.unwrap_or_default()
        );
        (status < 300).then_some(())
    }

    async fn submit_events(&self) {
        for number in 0.. {
            let token = format!("e{}-{number}", self.name);
            let body = json!({ "token": token });
            if self.send_request("/v1/applications/notes/events/note", &token, body).await.is_none() {
                return;
            }
            self.acknowledged.add(&self.acknowledged.events, token);
        }
    }

    async fn make_subscribers(&self) {
        for number in 0.. {
            let token = format!("s{}-{number}", self.name);
            let body = json!({ "id": token, "devices": {} });
            if self.send_request("/v1/subscribers", &token, body).await.is_none() {
                return;
            }
            self.acknowledged.add(&self.acknowledged.subscribers, token);
        }
    }

    async fn send_messages(&self) {
        for number in 0.. {
            let token = format!("m{}-{number}", self.name);
            if self
                .send_request("/v1/exchanges/relay/receive/orders", &token, json!({ "token": token }))
                .await
                .is_none()
            {
                return;
            }
            self.acknowledged.add(&self.acknowledged.messages, token);
        }
    }
}
