//! Replicas over HTTP: the commands, and devices that converge while the server is killed repeatedly.

mod support;

use std::{path::Path, time::Duration};

use serde_json::{Value, json};
use support::Platform;
use tocsin_replica::{Replica, ReplicaError, ServerCredentials, WakeReason, http::HttpLink};
use tocsin_test_peers::{Peer, missing, until_listening};

const APPLICATION: &str = r#"
application: fieldwork
collections:
  visits:
    fields: { owner: { type: string, required: true }, what: string, count: integer }
    partition:
      - match: { owner: subscriber.id }
    schema: { properties: { what: { maxLength: 9 } } }
    conflicts: { fields: { count: sum } }
"#;

async fn start_fieldwork() -> Platform {
    let platform = Platform::start(&[]).await;
    platform.apply("fieldwork", APPLICATION).await;
    platform
}

/// Creates a subscriber with a sync device. Returns the device's token.
async fn device(platform: &Platform, subscriber: &str) -> String {
    platform.post("/v1/subscribers", &json!({"id": subscriber})).await;
    let new = json!({"application": "fieldwork", "subscriber": subscriber, "name": "phone"});
    let (status, made) = platform.post("/v1/sync/devices", &new).await;
    assert_eq!(status, 201, "{made}");
    made["token"].as_str().expect("a token").to_owned()
}

async fn rows(platform: &Platform) -> Vec<Value> {
    let mut rows = Vec::new();
    let mut next = String::new();
    loop {
        let page = platform.get(&format!("/v1/applications/fieldwork/collections/visits/rows?limit=1000{next}")).await;
        rows.extend(page["items"].as_array().expect("items").clone());
        match page["next"].as_str() {
            Some(cursor) => next = format!("&after={cursor}"),
            None => return rows,
        }
    }
}

#[tokio::test]
async fn a_replica_is_created_edited_and_synchronized_by_commands() {
    let platform = start_fieldwork().await;
    device(&platform, "ann").await;
    let added = platform.run(&["sync", "devices", "add", "fieldwork", "ann", "Ann's laptop"]);
    let token = added.split_whitespace().find(|word| word.starts_with("tocsin_device_")).expect("a token");
    let file = platform.folder.join("ann.db");
    let file = file.to_str().expect("text");
    let path = "/v1/applications/fieldwork/collections/visits/rows";
    let put =
        platform.request(reqwest::Method::PUT, &format!("{path}/v1")).json(&json!({"owner": "ann", "what": "well"}));
    assert!(put.send().await.expect("an answer").status().is_success());
    platform.run(&["replica", "init", file, "--token", token]);
    assert!(platform.run(&["replica", "sync", file]).contains("received 1 row,"));
    platform.run(&["replica", "edit", file, "visits", "v1", "what=pump", "count=3"]);
    platform.run(&["replica", "edit", file, "visits", "v2", "owner=ann"]);
    assert!(platform.run(&["replica", "status", file]).contains("2 edited rows"));
    assert!(platform.run(&["replica", "sync", file]).contains("sent 2 edits"));
    let found = platform.run(&["replica", "query", file, "SELECT id, what, count FROM visits ORDER BY id", "--json"]);
    let found: Vec<Value> =
        serde_json::Deserializer::from_str(&found).into_iter().map(|row| row.expect("JSON")).collect();
    assert_eq!(found[0], json!({"id": "v1", "what": "pump", "count": 3}));
    let row = platform.get(&format!("{path}/v1")).await;
    assert_eq!(row["row"], json!({"owner": "ann", "what": "pump", "count": 3}));
    // A stale version changes nothing.
    let stale =
        platform.request(reqwest::Method::PATCH, &format!("{path}/v1")).header("if-match", "\"7\"").json(&json!({}));
    assert_eq!(stale.send().await.expect("an answer").status().as_u16(), 412);
    let removed = platform.request(reqwest::Method::DELETE, &format!("{path}/v1")).send().await.expect("an answer");
    assert_eq!(removed.status().as_u16(), 204);
    platform.run(&["replica", "sync", file]);
    assert!(!platform.run(&["replica", "query", file, "SELECT id FROM visits"]).contains("v1"));
    assert!(platform.run(&["sync", "devices", "list"]).contains("Ann's laptop"));
    assert!(platform.run(&["sync", "sessions"]).contains("done"));
    assert!(platform.run(&["sync", "status"]).contains("reconcile"));
    let bad = platform.client.get(format!("{}/v1/sync/devices", platform.url)).bearer_auth(token).send().await;
    assert_eq!(bad.expect("an answer").status().as_u16(), 401, "a device token grants nothing else");
}

#[tokio::test]
async fn invalid_rows_are_reported_individually() {
    let platform = start_fieldwork().await;
    let lines = "{\"id\": \"a\", \"row\": {\"owner\": \"ann\", \"what\": \"well\"}}\n\
                 {\"id\": \"b\", \"row\": {\"owner\": \"ann\", \"what\": \"a long story\"}}\n\
                 {\"id\": \"c\", \"row\": {\"what\": \"pump\"}}\n";
    let put = async |query: &str| {
        let path = format!("/v1/applications/fieldwork/collections/visits/rows{query}");
        let request = platform.request(reqwest::Method::POST, &path).header("content-type", "application/x-ndjson");
        let answer = request.body(lines).send().await.expect("an answer");
        (answer.status().as_u16(), answer.json::<Value>().await.expect("JSON"))
    };
    let (status, answer) = put("").await;
    assert_eq!(status, 422, "{answer}");
    assert_eq!(
        (&answer["problems"][0]["path"], &answer["problems"][1]["path"]),
        (&json!("[1].what"), &json!("[2].owner"))
    );
    assert!(rows(&platform).await.is_empty());
    let (status, answer) = put("?partial=true").await;
    assert_eq!((status, &answer["put"]), (200, &json!(1)), "{answer}");
    assert_eq!((&answer["refused"][0]["line"], &answer["refused"][1]["id"]), (&json!(2), &json!("c")));
    assert_eq!(rows(&platform).await.len(), 1);
    // Unparsable lines are reported too, and do not affect others.
    let lines = "{\"id\": \"a\", \"row\": {\"owner\": \"ann\", \"what\": \"well\"}}\n\nnot JSON\n\
                 {\"id\": \"d\", \"row\": {\"owner\": \"ann\"}, \"more\": 1}\n{\"id\": \"b\", \"row\": {\"what\": \"x\"}}\n";
    let path = "/v1/applications/fieldwork/collections/visits/rows?partial=true";
    let request = platform.request(reqwest::Method::POST, path).header("content-type", "application/x-ndjson");
    let answer = request.body(lines).send().await.expect("an answer").json::<Value>().await.expect("JSON");
    assert_eq!(answer["put"], 1, "{answer}");
    let refused = answer["refused"].as_array().expect("a list").iter();
    let refused: Vec<_> = refused.map(|row| (row["line"].as_u64(), row["id"].as_str().unwrap_or_default())).collect();
    assert_eq!(refused, [(Some(3), ""), (Some(4), "d"), (Some(5), "b")], "{answer}");
    let token = device(&platform, "ann").await;
    let file = platform.folder.join("ann.db");
    let file = file.to_str().expect("text");
    platform.run(&["replica", "init", file, "--token", &token]);
    platform.run(&["replica", "sync", file]);
    platform.run(&["replica", "edit", file, "visits", "a", "what=a long story"]);
    assert!(platform.run(&["replica", "sync", file]).contains("1 refused"));
    let output = platform.run(&["replica", "status", file]);
    assert!(output.contains("refused: visits `a`: what: value is longer than 9 characters"), "{output}");
}

/// Longer than any test: the poll interval of a device that is not notified.
const NEVER: Duration = Duration::from_secs(3_600);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_device_is_notified_of_its_changes() {
    let mut platform = start_fieldwork().await;
    let home = ServerCredentials { url: platform.url.clone(), token: device(&platform, "ann").await };
    let mut replica = Replica::create(&platform.folder.join("ann.replica"), &home).expect("made");
    let link = HttpLink::new(reqwest::Client::new(), &home);
    sync(&mut replica, &link, port_of(&home)).await;
    let put = async |id: &str, owner: &str| {
        let path = format!("/v1/applications/fieldwork/collections/visits/rows/{id}");
        let request = platform.request(reqwest::Method::PUT, &path).json(&json!({"owner": owner}));
        assert!(request.send().await.expect("an answer").status().is_success());
    };
    // A change before the wait wakes it too.
    put("v1", "ann").await;
    assert_eq!(replica.wait_for_work(&link, NEVER).await.expect("it rests"), WakeReason::ServerChanges);
    sync(&mut replica, &link, port_of(&home)).await;
    // A row of another subscriber does not wake it; a row of its own does.
    put("v2", "bob").await;
    let resting = async { replica.wait_for_work(&link, NEVER).await.expect("it rests") };
    let bringing = async {
        while platform.get("/v1/sync/status").await["resting"] != 1 {
            tokio::task::yield_now().await;
        }
        put("v3", "ann").await;
    };
    let (woken, ()) = tokio::join!(resting, bringing);
    assert_eq!(woken, WakeReason::ServerChanges);
    sync(&mut replica, &link, port_of(&home)).await;
    let ids = replica.query("SELECT id FROM visits ORDER BY id").expect("queried").1;
    assert_eq!(ids, [[json!("v1")], [json!("v3")]]);
    // A local edit also ends the wait.
    replica.connection().execute_batch("UPDATE visits SET count = 1 WHERE id = 'v1'").expect("edited");
    assert_eq!(replica.wait_for_work(&link, NEVER).await.expect("it rests"), WakeReason::Edited);
    sync(&mut replica, &link, port_of(&home)).await;
    // A stopping server ends the wait: the device returns by itself.
    let ending = async {
        while platform.get("/v1/sync/status").await["resting"] != 1 {
            tokio::task::yield_now().await;
        }
        tokio::task::block_in_place(|| platform.terminate())
    };
    let (woken, ended) =
        tokio::join!(async { replica.wait_for_work(&link, Duration::ZERO).await.expect("it rests") }, ending);
    assert_eq!((woken, ended), (WakeReason::Later, Some(0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a9_a_long_poll_ends_when_its_token_is_revoked_or_expires() {
    let platform = start_fieldwork().await;
    device(&platform, "ann").await;
    let resting = async || {
        while platform.get("/v1/sync/status").await["resting"] != 1 {
            tokio::task::yield_now().await;
        }
    };
    for (lasts, said) in [(None, "is not known"), (Some(2), "expired")] {
        let new = json!({"application": "fieldwork", "subscriber": "ann", "name": "tablet", "expires_in": lasts});
        let (status, made) = platform.post("/v1/sync/devices", &new).await;
        assert_eq!(status, 201, "{made}");
        let token = made["token"].as_str().expect("a token");
        let home = ServerCredentials { url: platform.url.clone(), token: token.to_owned() };
        let file = platform.folder.join(format!("{said}.replica"));
        let mut replica = Replica::create(&file, &home).expect("made");
        let link = HttpLink::new(reqwest::Client::new(), &home);
        if let Err(error) = replica.sync(&link, &mut |_| ()).await {
            // On a slow machine the token has already expired.
            assert!(error.to_string().contains("expired"), "{error}");
            continue;
        }
        let waiting = async { replica.wait_for_work(&link, NEVER).await.expect("it rests") };
        let ending = async {
            if lasts.is_none() {
                resting().await;
                let id = made["id"].as_str().expect("an id");
                let removed = platform.request(reqwest::Method::DELETE, &format!("/v1/sync/devices/{id}")).send().await;
                assert_eq!(removed.expect("an answer").status().as_u16(), 204);
            }
        };
        let (woken, ()) = tokio::join!(waiting, ending);
        assert_eq!(woken, WakeReason::ServerChanges, "the wait ends early");
        let error = replica.sync(&link, &mut |_| ()).await.expect_err("its token is invalid").to_string();
        assert!(error.contains(said), "{said}: {error}");
    }
}

const RAISING: &str = r#"
application: fieldwork
events:
  visited: { fields: { visit: { type: string, required: true }, count: integer } }
subscriptions:
  watch: { fields: {} }
notifications:
  reported: { fields: { visit: string, count: integer }, content: { templates: { base: { text: '{{ visit }} {{ count }}' } } } }
rules:
  each: { on: visited, subscription: watch, notify: reported, with: { visit: event.visit, count: event.count } }
channels:
  log: { protocol: file, options: { path: visits.log } }
collections:
  visits:
    fields: { owner: { type: string, required: true }, what: string, count: integer }
    partition:
      - match: { owner: subscriber.id }
    raise:
      - { event: visited, fields: { visit: id, count: row.count } }
"#;

/// Number of row events in the journal.
async fn raised(platform: &Platform) -> u64 {
    let batches = platform.get("/v1/event-batches?limit=1000").await["items"].as_array().cloned().unwrap_or_default();
    batches.iter().filter(|batch| batch["source"] == "rows").filter_map(|batch| batch["events"].as_u64()).sum()
}

#[tokio::test]
async fn row_changes_raise_events_once_over_kills() {
    let mut platform = Platform::start(&[]).await;
    platform.apply("fieldwork", RAISING).await;
    let mut put = 0;
    for kill in 0..4 {
        for row in 0..25 {
            let path = format!("/v1/applications/fieldwork/collections/visits/rows/v-{kill}-{row}");
            let request = platform.request(reqwest::Method::PUT, &path).json(&json!({"owner": "ann", "count": row}));
            assert!(request.send().await.expect("an answer").status().is_success());
            put += 1;
        }
        platform.kill();
        platform.restart().await;
    }
    support::until("all events are raised", async || {
        platform.get("/v1/sync/status").await["events_waiting"] == 0 && raised(&platform).await >= put
    })
    .await;
    assert_eq!(raised(&platform).await, put);
}

const OWN: &str = r#"
application: fieldwork
events:
  quote: { fields: { symbol: string } }
subscriptions:
  watch: { fields: { symbol: { type: string, required: true }, most: integer }, filter: cel }
notifications:
  reported: { fields: { symbol: string }, content: { templates: { base: { text: '{{ symbol }}' } } } }
rules:
  each: { on: quote, subscription: watch, notify: reported, with: { symbol: event.symbol }, when: event.symbol == sub.symbol }
channels:
  log: { protocol: file, options: { path: quotes.log } }
collections:
  me: { built_in: profile }
  places: { built_in: devices, direction: both }
  wishes: { built_in: subscriptions, direction: both }
"#;

#[tokio::test]
async fn devices_edit_the_data_of_their_subscriber() {
    let platform = Platform::start(&[]).await;
    platform.apply("fieldwork", OWN).await;
    let token = device(&platform, "ann").await;
    platform.post("/v1/subscribers", &json!({"id": "bob"})).await;
    let bobs = json!({"application": "fieldwork", "class": "watch", "subscriber": "bob", "values": {"symbol": "BOB"}});
    let (_, bobs) = platform.post("/v1/subscriptions", &bobs).await;
    let file = platform.folder.join("ann.db");
    let file = file.to_str().expect("text").to_owned();
    platform.run(&["replica", "init", &file, "--token", &token]);
    platform.run(&["replica", "sync", &file]);
    let edit = |arguments: &[&str], outcome: &str| {
        let edit: Vec<&str> = ["replica", "edit", &file].iter().chain(arguments).copied().collect();
        platform.run(&edit);
        let output = platform.run(&["replica", "sync", &file]);
        assert!(output.contains(outcome), "{arguments:?}: {output}{}", platform.run(&["replica", "status", &file]));
    };
    let query = |sql: &str| platform.run(&["replica", "query", &file, sql]);
    edit(&["places", "p1", "name=phone", "channel=log", "address=ann"], "sent 1 edit (0 conflicts, 0 refused)");
    edit(&["wishes", "w1", "class=watch", r#"values={"symbol": "TOC"}"#, "device=phone"], "0 refused");
    let ann = platform.get("/v1/subscribers/ann").await;
    assert_eq!(ann["devices"]["phone"], json!({"channel": "log", "address": "ann", "state": "active"}));
    let wishes = platform.get("/v1/subscriptions?subscriber=ann").await;
    let wish = &wishes["items"][0];
    assert_eq!(
        (&wish["values"], &wish["key"], &wish["device"]),
        (&json!({"symbol": "TOC"}), &json!("w1"), &json!("phone"))
    );
    let id = wish["id"].as_str().expect("an id").to_owned();
    assert!(query("SELECT id FROM wishes").contains(&id), "the row has the id of the subscription");
    let place = query("SELECT id FROM places").lines().last().expect("a row").trim().to_owned();
    // Created rows are edited, with the checks of the API.
    edit(&["wishes", &id, r#"values={"symbol": "ABC", "most": 3}"#, "filter=cel:event.symbol != 'X'"], "0 refused");
    edit(&["wishes", &id, r#"values={"symbol": "ABC"}"#], "0 refused");
    edit(&["wishes", &id, r#"values={"smybol": "ABC"}"#], "1 refused");
    edit(&["wishes", &id, "filter=cel:event.smybol == 'X'"], "1 refused");
    edit(&["wishes", &id, "class=other"], "1 refused");
    edit(&["wishes", "w2", "class=watch"], "1 refused");
    edit(&["wishes", bobs["id"].as_str().expect("an id"), "enabled=false"], "1 refused");
    edit(&["places", &place, "address=ann@example.org", "state=disabled"], "0 refused");
    edit(&["places", &place, "name=laptop"], "1 refused");
    edit(&["me", query("SELECT id FROM me").lines().last().expect("a row").trim(), "enabled=false"], "0 refused");
    let ann = platform.get("/v1/subscribers/ann").await;
    assert_eq!(ann["devices"]["phone"], json!({"channel": "log", "address": "ann@example.org", "state": "disabled"}));
    assert_eq!(ann["enabled"], false);
    let wish = platform.get(&format!("/v1/subscriptions/{id}")).await;
    assert_eq!((&wish["values"], &wish["filter"]["text"]), (&json!({"symbol": "ABC"}), &json!("event.symbol != 'X'")));
    let output = platform.run(&["replica", "status", &file]);
    assert!(output.contains("values.smybol: is not a field") && output.contains("did you mean `symbol`?"), "{output}");
    // And removed.
    edit(&["wishes", &id, "--remove"], "0 refused");
    edit(&["places", &place, "--remove"], "0 refused");
    assert_eq!(platform.get("/v1/subscribers/ann").await["devices"], json!({}));
    assert_eq!(platform.get("/v1/subscriptions?subscriber=ann").await["items"], json!([]));
    assert_eq!(platform.get("/v1/subscriptions?subscriber=bob").await["items"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn a_conflict_resolver_program_decides() {
    if missing(&[Peer::Python]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("settle");
    let text = "#!/usr/bin/env python3\nimport sys, json\nfor line in sys.stdin:\n    q = json.loads(line)\n    p = q['properties']\n    \
                what = p['client']['what'] + '+' + p['server']['what']\n    \
                print(json.dumps({'id': q['id'], 'outcome': 'done', 'properties': {'set': {'what': what}}}), flush=True)\n";
    std::fs::write(&program, text).expect("written");
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("a program");
    let path = program.to_str().expect("text");
    let definition = APPLICATION.replace(
        "conflicts: { fields",
        &format!("conflicts: {{ resolver: {{ process: [{path}], timeout: 20s }}, fields"),
    );
    let forbidding = Platform::start(&[]).await;
    let text = definition.clone();
    let put = forbidding
        .request(reqwest::Method::PUT, "/v1/applications/fieldwork")
        .header("content-type", "application/yaml");
    let refused = put.body(text).send().await.expect("an answer");
    assert_eq!(refused.status().as_u16(), 422);
    let refused = refused.text().await.expect("text");
    assert!(
        refused.contains("collections.visits.conflicts.resolver.process") && refused.contains("allow_programs"),
        "{refused}"
    );
    let platform = Platform::start(&[("TOCSIN_DELIVERY_ALLOW_PROGRAMS", path)]).await;
    platform.apply("fieldwork", &definition).await;
    let file = |name: &str| platform.folder.join(name).to_str().expect("text").to_owned();
    let (one, two) = (file("one.db"), file("two.db"));
    for file in [&one, &two] {
        platform.run(&["replica", "init", file, "--token", &device(&platform, "ann").await]);
    }
    platform.run(&["replica", "sync", &one]);
    platform.run(&["replica", "edit", &one, "visits", "v1", "owner=ann", "what=well"]);
    platform.run(&["replica", "sync", &one]);
    platform.run(&["replica", "sync", &two]);
    platform.run(&["replica", "edit", &one, "visits", "v1", "what=pump"]);
    platform.run(&["replica", "edit", &two, "visits", "v1", "what=tree"]);
    platform.run(&["replica", "sync", &one]);
    assert!(platform.run(&["replica", "sync", &two]).contains("1 conflict"));
    assert_eq!(rows(&platform).await[0]["row"]["what"], "tree+pump");
}

/// Edits a replica repeatedly, and synchronizes when possible.
async fn work(folder: std::path::PathBuf, home: ServerCredentials, owner: String, edits: usize) -> Replica {
    let port = port_of(&home);
    let mut random = fastrand::Rng::new();
    let mut replica = Replica::create(&folder.join(format!("{owner}.replica")), &home).expect("made");
    let client = reqwest::Client::builder().timeout(Duration::from_secs(20)).build().expect("a client");
    let link = HttpLink::new(client, &home);
    sync(&mut replica, &link, port).await;
    for edit in 0..edits {
        let row = random.usize(0..10);
        let sql = format!(
            "INSERT INTO visits (id, owner, count) VALUES ('{owner}-{row}', '{owner}', 1) \
             ON CONFLICT (id) DO UPDATE SET count = coalesce(count, 0) + 1"
        );
        replica.connection().execute_batch(&sql).expect("edited");
        if edit % 20 == 19 {
            sync(&mut replica, &link, port).await;
        }
    }
    sync(&mut replica, &link, port).await;
    replica
}

/// The port of the server.
fn port_of(home: &ServerCredentials) -> u16 {
    home.url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a URL with a port")
}

/// Repeats the synchronization until it succeeds, each time when the server listens again.
async fn sync(replica: &mut Replica, link: &HttpLink, port: u16) {
    let deadline = std::time::Instant::now() + Duration::from_secs(120);
    while let Err(error) = replica.sync(link, &mut |_| ()).await {
        let is_down = matches!(error, ReplicaError::Link(_));
        assert!(is_down && std::time::Instant::now() < deadline, "{error}");
        let listening = tokio::task::spawn_blocking(move || until_listening("the server", port, || false));
        listening.await.expect("it listens again");
    }
}

async fn converge(devices: usize, edits: usize, kills: usize) {
    let mut platform = start_fieldwork().await;
    let begun = std::time::Instant::now();
    let folder = platform.folder.clone();
    let mut working = Vec::new();
    for at in 0..devices {
        let owner = format!("s{at}");
        let home = ServerCredentials { url: platform.url.clone(), token: device(&platform, &owner).await };
        working.push(tokio::spawn(work(folder.clone(), home, owner, edits)));
    }
    for kill in 0..kills {
        // A random time, not a wait for a condition.
        tokio::time::sleep(Duration::from_millis(200 + 37 * kill as u64)).await;
        platform.kill();
        platform.restart().await;
    }
    let mut here = Vec::new();
    for device in working {
        let replica = device.await.expect("it works");
        here.extend(replica.query("SELECT id, owner, count FROM visits ORDER BY id").expect("queried").1);
    }
    let there = rows(&platform).await;
    let counted: i64 = there.iter().map(|row| row["row"]["count"].as_i64().expect("a count")).sum();
    assert_eq!(counted, i64::try_from(devices * edits).expect("few"), "every edit counts once");
    let mut there: Vec<Vec<Value>> = there
        .into_iter()
        .map(|row| vec![row["id"].clone(), row["row"]["owner"].clone(), row["row"]["count"].clone()])
        .collect();
    let id = |row: &Vec<Value>| row[0].as_str().expect("text").to_owned();
    there.sort_by_key(id);
    here.sort_by_key(id);
    assert_eq!(here, there);
    let (rows, seconds) = (there.len(), begun.elapsed().as_secs_f64());
    println!(
        "{devices} devices, {edits} edits each, {kills} kills: the same {rows} rows everywhere after {seconds:.1} s"
    );
    assert!(Path::new(&folder.join("sync.db")).exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn devices_converge_while_the_server_is_killed() {
    converge(6, 60, 2).await;
}

/// `TOCSIN_DEVICES` sets the number of devices; 800 is a storm.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_a_storm_of_devices_converges_while_the_server_is_killed() {
    let devices = std::env::var("TOCSIN_DEVICES").ok().and_then(|text| text.parse().ok()).unwrap_or(80);
    converge(devices, 200, 20).await;
}

#[tokio::test]
async fn b3_a_replica_continues_after_the_server_was_restored() {
    let mut platform = start_fieldwork().await;
    let token = device(&platform, "ann").await;
    let folder = tempfile::tempdir().expect("a folder");
    let (file, backup) = (folder.path().join("ann.db"), folder.path().join("backup"));
    let (file, backup) = (file.to_str().expect("text"), backup.to_str().expect("text"));
    platform.run(&["replica", "init", file, "--token", &token]);
    platform.run(&["replica", "sync", file]);
    platform.run(&["replica", "edit", file, "visits", "v1", "owner=ann", "count=1"]);
    platform.run(&["replica", "sync", file]);
    platform.run(&["backup", backup]);
    for edit in [["v1", "count=2"], ["v1", "count=3"], ["v2", "owner=ann"]] {
        platform.run(&["replica", "edit", file, "visits", edit[0], edit[1]]);
        assert!(platform.run(&["replica", "sync", file]).contains("sent 1 edit"));
    }
    platform.terminate();
    platform.run(&["restore", backup, "--replace"]);
    platform.restart().await;
    let path = "/v1/applications/fieldwork/collections/visits/rows/v3";
    let put = platform.request(reqwest::Method::PUT, path).json(&json!({"owner": "ann", "what": "after"}));
    assert!(put.send().await.expect("an answer").status().is_success());
    platform.run(&["replica", "edit", file, "visits", "v1", "what=pump"]);
    let done = platform.run(&["replica", "sync", file]);
    assert!(done.contains("sent 4 edits (0 conflicts, 0 refused)"), "{done}");
    assert!(done.contains("3 edits were sent again"), "{done}");
    let found: Vec<Value> = rows(&platform).await.into_iter().map(|row| row["row"].clone()).collect();
    let expected = [
        json!({"owner": "ann", "what": "pump", "count": 3}),
        json!({"owner": "ann"}),
        json!({"owner": "ann", "what": "after"}),
    ];
    assert_eq!(found, expected);
    let query =
        "SELECT group_concat(id || coalesce(what, '') || coalesce(count, '')) AS all_rows FROM visits ORDER BY id";
    assert!(platform.run(&["replica", "query", file, query]).contains("v1pump3"));
    assert!(platform.run(&["replica", "sync", file]).contains("sent 0 edits"));
}

#[tokio::test]
async fn b4_b5_a_cell_with_an_invalid_value_is_refused_by_the_commands() {
    let platform = start_fieldwork().await;
    let token = device(&platform, "ann").await;
    let file = platform.folder.join("ann.db");
    let file = file.to_str().expect("text");
    platform.run(&["replica", "init", file, "--token", &token]);
    platform.run(&["replica", "sync", file]);
    platform.run(&["replica", "edit", file, "visits", "v1", "owner=ann", "what=well", "count=1"]);
    platform.run(&["replica", "sync", file]);
    // As another program that edits the file does.
    let other = rusqlite::Connection::open(file).expect("opens");
    other
        .execute_batch(
            "UPDATE visits SET count = 9e999, what = 'pump' WHERE id = 'v1'; \
             INSERT INTO visits (id, owner, what, count) VALUES ('v2', 'ann', x'00ff', -9e999)",
        )
        .expect("runs");
    drop(other);
    let done = platform.run(&["replica", "sync", file]);
    assert!(done.contains("3 refused"), "{done}");
    let status = platform.run(&["replica", "status", file]);
    for named in ["visits `v1`: count: is Infinity", "visits `v2`: count: is -Infinity", "visits `v2`: what: is a BLOB"]
    {
        assert!(status.contains(named), "{status}");
    }
    let found: Vec<Value> = rows(&platform).await.into_iter().map(|row| row["row"].clone()).collect();
    assert_eq!(found, [json!({"owner": "ann", "what": "pump", "count": 1}), json!({"owner": "ann"})]);
    platform.run(&["replica", "edit", file, "visits", "v1", "count=5"]);
    platform.run(&["replica", "edit", file, "visits", "v2", "--remove"]);
    platform.run(&["replica", "sync", file]);
    assert!(!platform.run(&["replica", "status", file]).contains("refused:"));
}

#[tokio::test]
async fn b8_rows_follow_the_present_fields_of_their_collection() {
    let platform = start_fieldwork().await;
    let path = "/v1/applications/fieldwork/collections/visits/rows/v1";
    let send = async |method: reqwest::Method, sent: Value| {
        let answer = platform.request(method, path).json(&sent).send().await.expect("an answer");
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap_or_default())
    };
    assert_eq!(send(reqwest::Method::PUT, json!({"owner": "ann", "what": "well", "count": 1})).await.0, 200);
    // `what` is removed, `depth` is required, and the schema refuses the present `count`.
    let newer = APPLICATION
        .replace("what: string, count", "depth: {type: integer, required: true}, count")
        .replace("{ properties: { what: { maxLength: 9 } } }", "{ properties: { count: { minimum: 5 } } }");
    platform.apply("fieldwork", &newer).await;
    assert_eq!(rows(&platform).await[0]["row"], json!({"owner": "ann", "count": 1}));
    let (status, body) = send(reqwest::Method::PATCH, json!({"owner": "bob"})).await;
    assert_eq!((status, &body["row"]), (200, &json!({"owner": "bob", "count": 1})), "{body}");
    let (status, body) = send(reqwest::Method::PUT, body["row"].clone()).await;
    assert_eq!(status, 200, "a shown row can be written: {body}");
    for refused in [json!({"what": "x"}), json!({"owner": null}), json!({"count": 2})] {
        assert_eq!(send(reqwest::Method::PATCH, refused.clone()).await.0, 422, "{refused}");
    }
    let (status, body) = send(reqwest::Method::PATCH, json!({"depth": 3, "count": 9})).await;
    assert_eq!((status, &body["row"]), (200, &json!({"owner": "bob", "depth": 3, "count": 9})), "{body}");
    assert_eq!(send(reqwest::Method::PATCH, json!({"depth": null})).await.0, 422);
}

#[tokio::test]
async fn lists_of_devices_and_sessions_have_pages() {
    let platform = start_fieldwork().await;
    let mut tokens = Vec::new();
    for at in 0..5 {
        tokens.push(device(&platform, &format!("s{at}")).await);
    }
    let paged = async |path: &str, key: &str| {
        let (mut found, mut next) = (Vec::new(), String::new());
        loop {
            let page = platform.get(&format!("{path}?limit=2{next}")).await;
            let items = page["items"].as_array().unwrap_or_else(|| panic!("{path}: {page}"));
            assert!(items.len() <= 2, "{page}");
            found.extend(items.iter().map(|item| item[key].as_str().expect("text").to_owned()));
            match page["next"].as_str() {
                Some(cursor) => next = format!("&after={cursor}"),
                None => return found,
            }
        }
    };
    assert_eq!(paged("/v1/sync/devices", "subscriber").await, ["s0", "s1", "s2", "s3", "s4"]);
    for token in &tokens {
        let begin = platform.client.post(format!("{}/v1/sync/sessions", platform.url)).bearer_auth(token);
        assert_eq!(begin.json(&json!({})).send().await.expect("an answer").status().as_u16(), 201);
    }
    let mut active = paged("/v1/sync/sessions", "device").await;
    active.sort();
    active.dedup();
    assert_eq!(active.len(), 5);
    // Each device begins again, so its first session has ended.
    for token in &tokens {
        let begin = platform.client.post(format!("{}/v1/sync/sessions", platform.url)).bearer_auth(token);
        assert_eq!(begin.json(&json!({})).send().await.expect("an answer").status().as_u16(), 201);
    }
    assert_eq!(paged("/v1/sync/history", "device").await.len(), 5, "the commands page by `after`");
    assert_eq!(paged("/v1/applications/fieldwork/conflicts", "row").await, [""; 0]);
    let bad = platform.request(reqwest::Method::GET, "/v1/sync/sessions?after=eA").send().await.expect("an answer");
    assert!(bad.status().is_client_error(), "{}", bad.status());
}

#[tokio::test]
async fn a_condition_on_a_row_that_does_not_exist_does_not_hold() {
    let platform = start_fieldwork().await;
    let path = "/v1/applications/fieldwork/collections/visits/rows/v9";
    let put = async |tag: &str| {
        let request = platform.request(reqwest::Method::PUT, path).header("if-match", tag);
        request.json(&json!({"owner": "ann", "what": "well"})).send().await.expect("an answer").status().as_u16()
    };
    for tag in ["*", "\"0\"", "\"7\""] {
        assert_eq!(put(tag).await, 412, "{tag}");
    }
    assert!(rows(&platform).await.is_empty());
}
