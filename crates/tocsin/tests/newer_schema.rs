//! A data folder that a newer version has used, while this version writes to it and after that died: it is refused in
//! clear words, for each of its databases, and nothing that was accepted is harmed.

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
/// Clients that post at the same time.
const CLIENTS: usize = 8;
/// Events that are accepted before something happens.
const EVENTS: usize = 200;

/// The databases of a data folder.
fn databases(folder: &Path) -> Vec<PathBuf> {
    let names = std::fs::read_dir(folder).expect("it is there").map(|entry| entry.expect("an entry").path());
    let mut found: Vec<PathBuf> = names.filter(|path| path.extension().is_some_and(|ending| ending == "db")).collect();
    found.sort();
    assert!(found.len() >= 3, "{found:?}");
    found
}

/// Changes the number of a schema by so much, as a step of a newer version does.
fn change_schema(database: &Path, by: i64) {
    let connection = Connection::open(database).expect("it opens");
    connection.busy_timeout(Duration::from_secs(30)).expect("a time");
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0)).expect("a number");
    connection.pragma_update(None, "user_version", version + by).expect("written");
}

/// Starts the server a second time, or when it should not; it ends by itself.
fn refused(platform: &Platform) -> String {
    let Output { status, stderr, .. } =
        platform.command().arg("serve").stdin(Stdio::null()).output().expect("the binary starts");
    assert!(!status.success());
    String::from_utf8_lossy(&stderr).into_owned()
}

/// Posts events until the server is gone; each that is acknowledged is put down.
async fn post_for_ever(client: usize, request: impl Fn(&Value) -> reqwest::RequestBuilder, done: Arc<Acknowledged>) {
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

/// Tokens whose event was acknowledged.
#[derive(Default)]
struct Acknowledged {
    tokens: Mutex<BTreeSet<String>>,
    count: watch::Sender<usize>,
}

impl Acknowledged {
    /// Waits for so many more.
    async fn more(&self, events: usize) {
        let mut counts = self.count.subscribe();
        let wanted = *counts.borrow() + events;
        let waited = tokio::time::timeout(support::PATIENCE, counts.wait_for(|count| *count >= wanted)).await;
        waited.expect("in time").expect("the sender lives");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_schema_is_refused_under_load_and_harms_nothing() {
    let mut platform = Platform::start(&[]).await;
    platform.apply("pings", APPLICATION).await;
    let done = Arc::new(Acknowledged::default());
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let (http, url, key) = (reqwest::Client::new(), platform.url.clone(), platform.key());
            let post = move |body: &Value| {
                http.post(format!("{url}/v1/applications/pings/events/ping")).bearer_auth(&key).json(body)
            };
            tokio::spawn(post_for_ever(client, post, done.clone()))
        })
        .collect();
    done.more(EVENTS).await;

    // Somebody's newer version changes the schema while this one writes; a second one of this version is refused.
    let files = databases(&platform.folder);
    files.iter().for_each(|file| change_schema(file, 1));
    let said = refused(&platform);
    assert!(said.contains("another Tocsin uses"), "{said}");
    done.more(EVENTS).await;
    platform.kill();
    for client in clients {
        client.await.expect("it ends with the server");
    }

    // The one at load is gone: each file is refused by its name as long as it is newer.
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
    // Whatever was acknowledged is there: the same event with the same key is known.
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
