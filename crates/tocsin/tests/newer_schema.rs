//! Data folder of a newer version, detected at run time and at start: it is refused with a clear message for each
//! database, and accepted data is unharmed.

mod support;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::{Output, Stdio},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use rusqlite::Connection;
use serde_json::{Value, json};
use support::Platform;
use tokio::sync::watch;

const APPLICATION: &str = r#"
application: pings
events: { ping: { fields: { token: { type: string, required: true } } } }
"#;
/// Concurrent clients.
const CLIENTS: usize = 8;
/// Number of accepted events before the fault.
const EVENTS: usize = 200;

/// Databases of a data folder.
fn databases(folder: &Path) -> Vec<PathBuf> {
    let names = std::fs::read_dir(folder).expect("it is there").map(|entry| entry.expect("an entry").path());
    let mut found: Vec<PathBuf> = names.filter(|path| path.extension().is_some_and(|ending| ending == "db")).collect();
    found.sort();
    assert!(found.len() >= 3, "{found:?}");
    found
}

/// Changes the schema version by `by`, as a migration of a newer version does.
fn change_schema(database: &Path, by: i64) {
    let connection = Connection::open(database).expect("it opens");
    connection.busy_timeout(Duration::from_secs(30)).expect("a time");
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0)).expect("a number");
    connection.pragma_update(None, "user_version", version + by).expect("written");
}

/// Starts a second server, or one that must refuse; it ends by itself.
fn refused(platform: &Platform) -> String {
    let Output { status, stderr, .. } =
        platform.command().arg("serve").stdin(Stdio::null()).output().expect("the binary starts");
    assert!(!status.success());
    String::from_utf8_lossy(&stderr).into_owned()
}

/// Posts events until the server is gone; records the acknowledged ones.
async fn post_until_gone(client: usize, request: impl Fn(&Value) -> reqwest::RequestBuilder, done: Arc<Acknowledged>) {
    for number in 0.. {
        let token = format!("{client}-{number}");
        match request(&json!({ "token": token })).header("idempotency-key", &token).send().await {
            Ok(answer) if answer.status().as_u16() == 202 => {
                done.tokens.lock().insert(token);
                done.count.send_modify(|count| *count += 1);
            }
            Ok(answer) => panic!("{}: {}", answer.status(), answer.text().await.unwrap_or_default()),
            Err(_) => return,
        }
    }
}

/// Acknowledged tokens.
#[derive(Default)]
struct Acknowledged {
    tokens: Mutex<BTreeSet<String>>,
    count: watch::Sender<usize>,
}

impl Acknowledged {
    /// Waits for `events` more.
    async fn more(&self, events: usize) {
        let mut counts = self.count.subscribe();
        let wanted = *counts.borrow() + events;
        let waited = tokio::time::timeout(support::wait_timeout(), counts.wait_for(|count| *count >= wanted)).await;
        waited.expect("in time").expect("the sender lives");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_schema_is_refused_under_load_without_data_loss() {
    let mut platform = Platform::start(&[]).await;
    platform.apply("pings", APPLICATION).await;
    let done = Arc::new(Acknowledged::default());
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let (http, url, key) = (reqwest::Client::new(), platform.url.clone(), platform.key());
            let post = move |body: &Value| {
                http.post(format!("{url}/v1/applications/pings/events/ping")).bearer_auth(&key).json(body)
            };
            tokio::spawn(post_until_gone(client, post, done.clone()))
        })
        .collect();
    done.more(EVENTS).await;

    // A newer version changes the schema while this one writes; a second server of this version is refused.
    let files = databases(&platform.folder);
    files.iter().for_each(|file| change_schema(file, 1));
    let said = refused(&platform);
    assert!(said.contains("another Tocsin uses"), "{said}");
    done.more(EVENTS).await;
    platform.kill();
    for client in clients {
        client.await.expect("it ends with the server");
    }

    // The loaded server is gone: each file is refused by its name as long as it is newer.
    for file in &files {
        let said = refused(&platform);
        let name = file.file_name().and_then(|name| name.to_str()).expect("text");
        assert!(said.contains("was written by a newer version of Tocsin"), "{name}: {said}");
        assert!(said.contains("use that version, or restore a backup made before it"), "{said}");
        change_schema(file, -1);
    }

    platform.restart().await;
    platform.settled().await;
    let tokens = std::mem::take(&mut *done.tokens.lock());
    assert!(tokens.len() >= 2 * EVENTS);
    // All acknowledged events are stored: a repetition with the same key is a duplicate.
    for token in &tokens {
        let request = platform.request(reqwest::Method::POST, "/v1/applications/pings/events/ping");
        let request = request.header("idempotency-key", token).json(&json!({ "token": token }));
        let answer = request.send().await.expect("an answer");
        let status = answer.status();
        let text = answer.text().await.expect("a body");
        assert!(status.is_success() && text.contains("\"duplicate\":true"), "{token}: {status} {text}");
    }
    platform.terminate();
    for file in &files {
        let connection = Connection::open(file).expect("it opens");
        let sound: String = connection.pragma_query_value(None, "integrity_check", |row| row.get(0)).expect("checked");
        assert_eq!(sound, "ok", "{}", file.display());
    }
}
