//! Audit log in the real binary: every route that changes something leaves its entry, with the caller, and nothing else
//! does.

mod support;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, SystemTime},
};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use support::Platform;
use tocsin_model::time::Timestamp;
use tocsin_test_peers::reserved_port;

const APPLICATION: &str = r#"
application: doors
events: { door: { fields: { name: { type: string, required: true } } } }
subscriptions:
  watched: { fields: { name: string } }
  opted:
    fields: { name: string }
    consent: { skip: [import, api], text: I want to know. }
notifications:
  opened: { fields: { name: string }, content: { templates: { base: { subject: Door, text: "{{ name }}" } } } }
rules:
  always: { on: door, subscription: watched, notify: opened }
  later: { on: door, subscription: watched, notify: opened, after: 3d }
channels:
  out: { protocol: file, options: { path: out.ndjson } }
  bell: { protocol: inbox }
collections:
  visits:
    fields: { owner: { type: string, required: true } }
    partition: [ { match: { owner: subscriber.id } } ]
"#;

const EXCHANGE: &str = r#"
exchange: orders
receive: { inbound: { mode: one_way } }
send:
  outbound:
    mode: one_way
    protocol: http
    options: { url: "http://127.0.0.1:9/", allow_networks: [127.0.0.1] }
routes: { every: { when: "true", to: outbound } }
"#;

/// Request of the table: method, path, body, and the object of an entry. `{location}` in a path is the address of the
/// last object that was created.
type Row = (&'static str, &'static str, Value, &'static str);

fn table() -> Vec<Row> {
    let device = json!({"channel": "out", "address": "ada@example.org"});
    let tomorrow = Timestamp::from(SystemTime::now()) + Duration::from_secs(86_400);
    let broadcast = {
        json!({
            "application": "doors", "title": "Drill", "subscription": "watched", "starts_at": tomorrow.to_string(),
            "content": {"templates": {"base": {"subject": "Drill", "text": "now"}}},
        })
    };
    let watched = |name: &str| {
        let values = json!({ "name": name });
        json!({"application": "doors", "class": "watched", "subscriber": "ada", "key": "k", "values": values})
    };
    let user = json!({"name": "eve", "roles": ["reader"], "password": "correct horse battery"});
    vec![
        ("PUT", "/v1/applications/doors", json!(APPLICATION), "application:doors"),
        ("POST", "/v1/applications/doors/rules/always/stop", json!({"reason": "loud"}), "rule:doors/always"),
        ("POST", "/v1/applications/doors/rules/always/resume", Value::Null, "rule:doors/always"),
        ("POST", "/v1/subscribers", json!({"id": "ada", "devices": {"main": device}}), "subscriber:ada"),
        ("PUT", "/v1/subscribers/bob", json!({"locale": "de"}), "subscriber:bob"),
        ("PATCH", "/v1/subscribers/bob", json!({"locale": "en"}), "subscriber:bob"),
        ("PUT", "/v1/subscribers/bob/devices/main", device.clone(), "subscriber:bob"),
        ("DELETE", "/v1/subscribers/bob/devices/main", Value::Null, "subscriber:bob"),
        ("POST", "/v1/segments", json!({"name": "all", "filter": "(locale=de)"}), "segment:all"),
        ("PUT", "/v1/segments/all", json!({"filter": "(locale=en)"}), "segment:all"),
        ("DELETE", "/v1/segments/all", Value::Null, "segment:all"),
        ("POST", "/v1/subscriptions", watched("front"), "subscription:s-1"),
        ("PUT", "/v1/subscriptions/s-1", json!({"values": {"name": "back"}}), "subscription:s-1"),
        ("PATCH", "/v1/subscriptions/s-1", json!({"enabled": false}), "subscription:s-1"),
        ("PUT", "/v1/suppressions/addresses/smtp/a%40b.example", json!({"detail": "by hand"}), "suppression:"),
        ("DELETE", "/v1/suppressions/addresses/smtp/a%40b.example", Value::Null, "suppression:"),
        ("PUT", "/v1/suppressions/devices/ada/main", json!({"detail": "by hand"}), "suppression:"),
        ("DELETE", "/v1/suppressions/devices/ada/main", Value::Null, "suppression:"),
        ("POST", "/v1/import/subscribers", json!({"id": "cid"}), "subscriber:cid"),
        ("POST", "/v1/import/subscriptions", watched("side"), "subscription:s-1"),
        (
            "POST",
            "/v1/import/suppressions",
            json!({"protocol": "smtp", "address": "x@y.example", "cause": "manual"}),
            "suppression:",
        ),
        ("POST", "/v1/broadcasts", broadcast, "broadcast:bc-1"),
        ("POST", "/v1/broadcasts/bc-1/pause", json!({"reason": "later"}), "broadcast:bc-1"),
        ("POST", "/v1/broadcasts/bc-1/resume", json!({}), "broadcast:bc-1"),
        ("POST", "/v1/broadcasts/bc-1/cancel", json!({}), "broadcast:bc-1"),
        ("PUT", "/v1/applications/doors/broadcasts/news", json!({"subject": "News"}), "inbox_broadcast:doors/news"),
        ("DELETE", "/v1/applications/doors/broadcasts/news", Value::Null, "inbox_broadcast:doors/news"),
        ("POST", "/v1/switches/off", json!({"component": "role:match", "state": "paused"}), "switch:role:match"),
        ("POST", "/v1/switches/on", json!({"component": "role:match"}), "switch:role:match"),
        ("PUT", "/v1/drain", json!({"reason": "an update"}), "switch:role:"),
        ("DELETE", "/v1/drain", Value::Null, "switch:role:"),
        ("POST", "/v1/resends", json!({"all": true}), "resend:"),
        ("POST", "/v1/backups", json!({"name": "first"}), "backup:first"),
        ("POST", "/v1/keys", json!({"description": "of a test", "scopes": ["events:write"]}), "key:"),
        ("POST", "{location}/rotate", json!({}), "key:"),
        ("DELETE", "{location}", Value::Null, "key:"),
        ("POST", "/v1/users", user, "user:eve"),
        ("PATCH", "/v1/users/eve", json!({"display_name": "Eve"}), "user:eve"),
        ("POST", "/v1/users/eve/password", json!({"password": "another horse battery"}), "user:eve"),
        ("POST", "/v1/login-links", json!({"user": "eve"}), "login_link:eve"),
        ("DELETE", "/v1/users/eve", Value::Null, "user:eve"),
        ("PUT", "/v1/exchanges/orders", json!(EXCHANGE), "exchange:orders"),
        ("PUT", "/v1/exchanges/orders/send/outbound/state", json!({"state": "hold"}), "port:orders/outbound"),
        ("DELETE", "/v1/exchanges/orders", Value::Null, "exchange:orders"),
        (
            "POST",
            "/v1/sync/devices",
            json!({"application": "doors", "subscriber": "ada", "name": "phone"}),
            "sync_device:",
        ),
        ("POST", "{location}/wipe", Value::Null, "sync_device:"),
        ("DELETE", "{location}", Value::Null, "sync_device:"),
        (
            "PUT",
            "/v1/directory/entries/ou=staff,dc=example",
            json!({"attributes": {"objectClass": ["organizationalUnit"], "ou": "staff"}}),
            "entry:ou=staff,dc=example",
        ),
        (
            "PATCH",
            "/v1/directory/entries/ou=staff,dc=example",
            json!({"attributes": {"description": "us"}}),
            "entry:ou=staff,dc=example",
        ),
        (
            "POST",
            "/v1/directory/entries/ou=staff,dc=example/rename",
            json!({"rdn": "ou=guards"}),
            "entry:ou=guards,dc=example",
        ),
        ("DELETE", "/v1/directory/entries/ou=guards,dc=example", Value::Null, "entry:ou=guards,dc=example"),
        (
            "POST",
            "/scim/v2/Users",
            json!({"schemas": ["urn:ietf:params:scim:schemas:core:2.0:User"], "userName": "uma"}),
            "subscriber:",
        ),
        ("DELETE", "/v1/subscriptions/s-1", Value::Null, "subscription:s-1"),
        ("DELETE", "/v1/subscribers/ada", Value::Null, "subscriber:ada"),
        ("POST", "/v1/subscribers/cid/erase", Value::Null, "subscribers/erased/erase"),
        ("DELETE", "/v1/applications/doors?confirm=doors", Value::Null, "application:doors"),
    ]
}

/// Audited actions that the table does not call, with the reason. Their changes pass through the same writers.
const ELSEWHERE: &[(&str, &str)] = &[
    ("applications.rematch", "it needs a batch that cannot be matched"),
    ("applications.send-test", "it needs a receiver"),
    ("applications.backtests.create", "a backtest is kept in memory"),
    ("applications.backtests.delete", "a backtest is kept in memory"),
    ("applications.conflicts.revert", "it needs a conflict of replicas"),
    ("broadcasts.test", "it needs a receiver"),
    ("capacity.profiles.delete", "it needs a profile"),
    ("capacity.profiles.put", "it needs a profile"),
    ("consent.confirm", "it needs a message with a link"),
    ("consent.confirmations", "it needs a message with a code"),
    ("consent.requests", "it needs a channel that sends"),
    ("consent.resends", "it needs a channel that sends"),
    ("delayed-notifications.cancel", "it needs a delayed notification"),
    ("directory.entries.password", "it needs an entry with a password"),
    ("directory.import", "its changes are those of the other entries"),
    ("exchanges.flow.put", "it needs a rate"),
    ("exchanges.tracking.put", "it needs a tracking point"),
    ("firings.dismiss", "it needs a failed firing"),
    ("firings.refire", "it needs a failed firing"),
    ("messages.edit", "it needs a suspended message"),
    ("messages.end", "it needs a suspended message"),
    ("messages.resume", "it needs a suspended message"),
    ("preferences.put", "it needs a signed link"),
    ("retention.run", "expiry is not the change of a caller"),
    ("scim.Bulk", "its changes are those of the other resources"),
    ("scim.delete", "its changes are those of entries"),
    ("scim.patch", "its changes are those of entries"),
    ("scim.put", "its changes are those of entries"),
    ("session.create", "it needs a user who logs in"),
    ("session.delete", "it needs a user who logs in"),
    ("session.reauthenticate", "it needs a user who logs in"),
    ("session.token", "it needs a user who logs in"),
    ("sessions.delete", "it needs a user who logs in"),
    ("setup.create", "it needs a setup link"),
    ("subscriptions.consent.confirm", "it needs a request of consent"),
    ("subscribers.merge", "it needs a verified address"),
    ("subscriptions.consent.request", "it needs a channel that sends"),
    ("subscriptions.consent.withdraw", "it needs a consent"),
    ("suppressions.channels.delete", "it needs a suppression by a channel"),
    ("suspensions.edit.put", "it needs a suspended notification"),
    ("suspensions.end", "it needs a suspended notification"),
    ("suspensions.resume", "it needs a suspended notification"),
    ("unsubscriptions.create", "it needs an active subscription"),
    ("unsubscriptions.link", "it needs a signed link"),
    ("unsubscriptions.undo", "it needs an unsubscription"),
    ("applications.schedules.run", "it needs a schedule"),
    ("applications.schedules.skip", "it needs a schedule"),
];

async fn start() -> (Platform, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let port = reserved_port();
    let settings = format!("[ldap]\nsuffix = \"dc=example\"\nscim = true\nlisten = \"127.0.0.1:{port}\"\n");
    std::fs::write(folder.path().join("tocsin.toml"), settings).expect("written");
    (Platform::start_in(folder.path(), &[]).await, folder)
}

/// Path of a search.
fn search(text: &str) -> String {
    format!("/v1/search?q={}", tocsin_service::search::segment(text))
}

async fn entries(platform: &Platform, request: &str) -> Vec<Value> {
    let found = platform.get(&format!("/v1/audit?request_id={request}&limit=1000")).await;
    found["items"].as_array().cloned().expect("a list")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_state_changing_route_leaves_its_entry() {
    let (platform, _folder) = start().await;
    let key = platform.key().split('_').nth(1).expect("the id of a key").to_owned();
    let mut called = BTreeSet::new();
    let mut location = String::new();
    let mut missing = Vec::new();
    for (number, (method, path, body, object)) in table().into_iter().enumerate() {
        let path = path.replace("{location}", &location);
        let request = format!("t-{number}");
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        let sent = platform
            .request(method.clone(), &path)
            .header("x-request-id", &request)
            .header("x-tocsin-reason", "caf%C3%A9");
        let kind = match () {
            () if path.starts_with("/v1/import") => "application/x-ndjson",
            () if path.starts_with("/scim") => "application/scim+json",
            () if method == Method::PATCH && !path.starts_with("/v1/users") => "application/merge-patch+json",
            () if body.is_string() => "application/yaml",
            () => "application/json",
        };
        let sent = match &body {
            Value::Null => sent,
            Value::String(text) => sent.header("content-type", kind).body(text.clone()),
            body => sent.header("content-type", kind).body(body.to_string()),
        };
        let answer = sent.send().await.expect("an answer");
        let (status, place) = (answer.status(), answer.headers().get("location").cloned());
        let text = answer.text().await.expect("a body");
        assert!(status.is_success(), "{method} {path}: {status} {text}");
        if status == StatusCode::CREATED
            && let Some(place) = place
        {
            location = place.to_str().expect("text").to_owned();
        }
        let found = entries(&platform, &request).await;
        if !found.iter().any(|entry| entry["object"].as_str().unwrap_or_default().starts_with(object)) {
            missing.push(format!("{method} {path}: no entry of `{object}` among {found:?}"));
        }
        for entry in found {
            assert_eq!(entry["actor"], format!("key:{key}"), "{entry}");
            assert_eq!(entry["address"], "127.0.0.1", "{entry}");
            assert!(
                ["café", "loud", "later", "an update"].contains(&entry["reason"].as_str().unwrap_or("café")),
                "{entry}"
            );
            called.insert(entry["action"].as_str().expect("an action").to_owned());
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    let elsewhere: BTreeMap<&str, &str> = ELSEWHERE.iter().copied().collect();
    let all: BTreeSet<&str> = tocsin_face_http::audited_routes().into_iter().map(|(.., action)| action).collect();
    let untested: Vec<_> =
        all.iter().filter(|action| !called.contains(**action) && !elsewhere.contains_key(**action)).collect();
    assert!(untested.is_empty(), "call them in the table, or name the reason: {untested:?}");
    let stale: Vec<_> = elsewhere.keys().filter(|action| called.contains(**action)).collect();
    assert!(stale.is_empty(), "the table calls them: {stale:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn submissions_reads_and_refused_changes_leave_no_entry() {
    let (platform, _folder) = start().await;
    platform.apply("doors", APPLICATION).await;
    let before = platform.get("/v1/audit").await["items"].as_array().expect("a list").len();
    let requests = [
        ("/v1/applications/doors/events/door", json!({"name": "front"}), 202),
        ("/v1/segments/preview", json!({"filter": "(locale=de)"}), 200),
        ("/v1/segments", json!({"name": "all", "filter": "(("}), 422),
        ("/v1/switches/off", json!({"component": "role:nothing", "state": "paused"}), 422),
    ];
    for (path, body, expected) in requests {
        let (status, answer) = platform.post(path, &body).await;
        assert_eq!(status, expected, "{path}: {answer}");
    }
    platform.settled().await;
    let found = platform.get("/v1/audit").await;
    assert_eq!(found["items"].as_array().expect("a list").len(), before, "{found}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_is_for_auditors_and_is_exported_in_both_formats() {
    let (platform, _folder) = start().await;
    for (role, expected) in [("auditor", 200), ("reader", 403)] {
        let (status, made) = platform.post("/v1/keys", &json!({"description": role, "roles": [role]})).await;
        assert_eq!(status, 201, "{made}");
        let key = made["key"].as_str().expect("a key");
        for path in ["/v1/audit", "/v1/audit/export"] {
            let request = platform.client.get(format!("{}{path}", platform.url)).bearer_auth(key);
            assert_eq!(request.send().await.expect("an answer").status(), expected, "{role} {path}");
        }
    }
    let lines = platform.run(&["export", "audit"]);
    let exported: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let listed = platform.get("/v1/audit").await["items"].clone();
    assert_eq!(json!(exported), listed);
    // The first key was made by the start.
    assert_eq!(exported.len(), 3, "{lines}");
    assert_eq!(exported[2]["actor"], "local", "{lines}");
    assert!(!lines.contains("tocsin_"), "a secret: {lines}");
    let csv = platform.run(&["export", "audit", "--format", "csv", "--action", "keys.*"]);
    assert_eq!(csv.lines().count(), 4, "{csv}");
    assert!(csv.starts_with("id,at,actor,address,action,object,before,after,more,reason,request_id"), "{csv}");
    let table = platform.run(&["audit", "--object", "key:*"]);
    assert!(table.contains("keys.create") && table.contains("created"), "{table}");
    let page = platform.get("/v1/audit?limit=1").await;
    let next = page["next"].as_str().expect("a cursor");
    let rest = platform.get(&format!("/v1/audit?limit=1&after={next}")).await;
    assert_eq!(json!([page["items"][0], rest["items"][0]]), json!([listed[0], listed[1]]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_of_all_kinds_are_found() {
    let (platform, _folder) = start().await;
    platform.apply("doors", APPLICATION).await;
    platform.subscribe("doors", "watched", "ada", "out", "ada@example.org", json!({"name": "front"})).await;
    let (status, _) = platform.post("/v1/segments", &json!({"name": "dozen", "filter": "(locale=de)"})).await;
    assert_eq!(status, 201);
    let (status, answer) = platform.post("/v1/applications/doors/events/door", &json!({"name": "front"})).await;
    assert_eq!(status, 202, "{answer}");
    platform.settled().await;
    for (text, expected) in [
        ("eb-1", &["event_batch eb-1"][..]),
        ("e-1-0", &["event e-1-0"]),
        ("e-1-7", &[]),
        ("nb-1", &["notification_batch nb-1"]),
        ("n-1-0", &["notification n-1-0"]),
        ("s-1", &["subscription s-1"]),
        ("s-9", &[]),
        ("ad", &["subscriber ada"]),
        ("ada@example.org", &["device ada/main"]),
        ("do", &["segment dozen", "application doors"]),
        ("alw", &["rule doors/always"]),
        ("be", &["channel doors/bell"]),
        ("uid=ada,dc=example", &[]),
    ] {
        let answer = platform.request(Method::GET, &search(text)).send().await.expect("an answer");
        assert_eq!(answer.status(), 200, "{text}");
        let found: Value = answer.json().await.expect("JSON");
        let hits = found["items"].as_array().expect("hits").iter();
        let hits = hits.filter(|hit| hit["kind"] != "entry");
        let shown: Vec<_> = hits
            .map(|hit| format!("{} {}", hit["kind"].as_str().unwrap_or(""), hit["id"].as_str().unwrap_or("")))
            .collect();
        assert_eq!(shown, expected, "{text}: {found}");
        assert_eq!(found["complete"], true, "{text}");
    }
    // The caller's scopes decide what is found.
    let (_, made) = platform.post("/v1/keys", &json!({"description": "a program", "scopes": ["events:write"]})).await;
    let key = made["key"].as_str().expect("a key");
    for text in ["ada", "eb-1", "do", "s-1"] {
        let request = platform.client.get(format!("{}{}", platform.url, search(text))).bearer_auth(key);
        let found: Value = request.send().await.expect("an answer").json().await.expect("JSON");
        assert_eq!(found, json!({"items": [], "complete": true}), "{text}");
    }
    let request = platform.request(Method::GET, &search(" "));
    assert_eq!(request.send().await.expect("an answer").status(), 422);
    let found = platform.run(&["search", "ada"]);
    assert!(found.contains("subscriber") && found.contains("ada"), "{found}");
}

/// Files of the operations whose spawned tasks do the work of the server itself, with their number.
const OWN_TASKS: &[(&str, usize)] = &[
    ("directory/src/change/extend_schema.rs", 1), // index builds
    ("service/src/backtests.rs", 1),              // backtests, which store nothing
    ("service/src/backups.rs", 2),                // restore drills, in a folder of their own
    ("service/src/keys/accounts.rs", 1),          // changes of users, followed
    ("service/src/keys/known_keys.rs", 1),        // changes of keys, followed
    ("service/src/keys/uses.rs", 1),              // last uses of keys
    ("service/src/live.rs", 1),                   // state of the live stream
    ("service/src/notifybc/dispatch.rs", 1),      // results of a broadcast
    ("service/src/notifybc/jobs.rs", 1),          // scheduled jobs
    ("service/src/notifybc/rss.rs", 1),           // feeds
    ("exchange/src/after_commit.rs", 1),          // work that waits for a commit
    ("exchange/src/definitions.rs", 1),           // the index of tracking
    ("exchange/src/dispatch.rs", 4),              // legs
    ("exchange/src/lib.rs", 5),                   // the tasks of the exchanges
    ("exchange/src/locations.rs", 1),             // received batches
    ("sync/src/watch.rs", 1),                     // waiting sessions
];

/// A task that an operation starts would lose the caller, and its changes would have no entry.
#[test]
fn tasks_of_operations_keep_the_caller() {
    fn count(folder: &std::path::Path, crates: &std::path::Path, found: &mut BTreeMap<String, usize>) {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                if path.ends_with("tests") {
                    continue;
                }
                count(&path, crates, found);
            } else if path.extension().is_some_and(|ending| ending == "rs") && !path.ends_with("tests.rs") {
                let text = std::fs::read_to_string(&path).expect("a source");
                let code = text.split("#[cfg(test)]").next().unwrap_or_default();
                let lost = code.matches("spawn(").count() - code.matches("spawn(audit::inherit(").count();
                let name = path.strip_prefix(crates).expect("below the crates").display().to_string();
                if lost > 0 {
                    found.insert(name, lost);
                }
            }
        }
    }
    let crates = support::repository("crates");
    let mut found = BTreeMap::new();
    for room in ["service", "directory", "sync", "exchange"] {
        count(&crates.join(room).join("src"), &crates, &mut found);
    }
    let expected = OWN_TASKS.iter().map(|(file, count)| ((*file).to_owned(), *count)).collect();
    assert_eq!(found, expected, "use `spawn(audit::inherit(..))`, or name the task of the server");
}
