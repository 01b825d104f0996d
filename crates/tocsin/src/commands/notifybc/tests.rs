//! Tests of the import.

use std::{fs, io::Write, path::Path};

use flate2::{Compression, write::GzEncoder};
use serde_json::{Value, json};
use tocsin_store::records::NotifybcStore;

use super::*;
use crate::commands::fake_server::FakeServer;

#[derive(clap::Parser)]
struct TestCli {
    #[command(flatten)]
    configuration: ConfigurationArgs,
    #[command(flatten)]
    args: Args,
}

/// Runs the import with a data folder, and returns its report and failure.
async fn import(data: &Path, from: &str, more: &[&str]) -> (Value, Option<String>) {
    let data = data.to_str().expect("a path");
    let words = [&["notifybc", "--data", data, "import", from, "--json"], more].concat();
    let cli = <TestCli as clap::Parser>::parse_from(words);
    let (terminal, captured) = Terminal::captured();
    let outcome = cli.args.run(&terminal, &cli.configuration).await;
    let report = serde_json::from_str(&captured.text()).unwrap_or(Value::Null);
    (report, outcome.err().map(|failure| failure.to_string()))
}

async fn stored(data: &Path) -> Arc<dyn NotifybcStore> {
    let words = ["notifybc", "--data", data.to_str().expect("a path"), "import", "x"];
    let cli = <TestCli as clap::Parser>::parse_from(words);
    let configuration = configuration::load(&cli.configuration, &[]).expect("valid").configuration;
    platform::open_records(&configuration).await.expect("records")
}

fn counts(report: &Value, collection: &str) -> [u64; 4] {
    let of = &report["collections"][collection];
    let refused = of["not_imported"].as_array().map(|reasons| reasons.iter().filter_map(|r| r["count"].as_u64()).sum());
    let count = |name: &str| of[name].as_u64().unwrap_or_default();
    [count("imported"), count("replaced"), count("present"), refused.unwrap_or_default()]
}

/// A document of strings and an id, as `mongodump` writes it.
fn bson(id: [u8; 12], texts: &[(&str, &str)]) -> Vec<u8> {
    let mut body = [&b"\x07_id\0"[..], &id].concat();
    for (name, text) in texts {
        body.extend(
            [&[2], name.as_bytes(), &[0], &(text.len() as i32 + 1).to_le_bytes(), text.as_bytes(), &[0]].concat(),
        );
    }
    [&(body.len() as i32 + 5).to_le_bytes()[..], &body, &[0]].concat()
}

const ONE: [u8; 12] = [0x65, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const TWO: [u8; 12] = [0x65, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];

#[tokio::test]
async fn s14_a_dump_is_imported_once_and_resumed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (data, dump) = (folder.path().join("data"), folder.path().join("dump"));
    let database = dump.join("notifyBC");
    fs::create_dir_all(&database).expect("a folder");
    let subscription = [("serviceName", "news"), ("channel", "email"), ("userChannelId", "Ann@example.org")];
    let confirmed = [&subscription[..], &[("state", "confirmed"), ("unsubscriptionCode", "54321")]].concat();
    fs::write(database.join("subscription.bson"), [bson(ONE, &confirmed), bson(TWO, &subscription[..2])].concat())
        .expect("written");
    fs::write(database.join("subscription.metadata.json"), "{}").expect("written");
    let mut tokens = GzEncoder::new(Vec::new(), Compression::fast());
    tokens.write_all(b"{\"_id\":\"aToken\",\"userId\":{\"$oid\":\"650a00000000000000000009\"}}\n").expect("written");
    fs::write(database.join("AccessToken.json.gz"), tokens.finish().expect("compressed")).expect("written");
    let from = dump.to_str().expect("a path");

    let (report, failure) = import(&data, from, &["--dry-run"]).await;
    assert_eq!(failure, None);
    assert_eq!(report["dry_run"], json!(true));
    assert_eq!(report["collections"]["subscription"]["read"], json!(2));
    assert_eq!(counts(&report, "subscription"), [0, 0, 0, 1]);
    assert!(!data.exists(), "a dry run stores nothing");

    let (report, failure) = import(&data, from, &[]).await;
    assert_eq!(counts(&report, "subscription"), [1, 0, 0, 1]);
    assert_eq!(counts(&report, "AccessToken"), [1, 0, 0, 0]);
    let refused = &report["collections"]["subscription"]["not_imported"][0];
    assert_eq!(refused["examples"], json!(["650a00000000000000000002"]));
    assert!(refused["reason"].as_str().is_some_and(|reason| reason.contains("Path `userChannelId` is required.")));
    assert_eq!(failure.as_deref(), Some("1 record was not imported; the others are stored"));

    let (report, _) = import(&data, from, &[]).await;
    assert_eq!(counts(&report, "subscription"), [0, 0, 1, 1]);
    let store = stored(&data).await;
    let found =
        store.document(Collection::Subscription, "650a00000000000000000001").await.expect("read").expect("there");
    assert_eq!((found.keys.state.as_deref(), found.keys.service.as_deref()), (Some("confirmed"), Some("news")));
    assert!(found.number.is_some(), "it has a native subscription");
    assert!(store.document(Collection::AccessToken, "aToken").await.expect("read").is_some());
}

#[tokio::test]
async fn s14_a_running_installation_is_read_by_rest() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let id = |number: u32| format!("650a000000000000{number:08x}");
    let configuration = json!([{"id": id(1), "name": "dbSchemaVersion", "value": "1"}]);
    let administrators = json!([{"id": id(2), "email": "a@example.org"}]);
    let tokens = json!([{"id": "token", "userId": id(2), "ttl": 60}]);
    let subscriptions: Value = (0..500)
        .map(|number| json!({"id": id(10 + number), "serviceName": "s", "channel": "sms", "userChannelId": "+1604"}))
        .collect();
    let rest = json!([{"id": id(900), "serviceName": "s", "channel": "sms", "userChannelId": "+1604"}]);
    let answers = [configuration, administrators, tokens, subscriptions, rest, json!([]), json!([])];
    let server = FakeServer::start(answers.map(|answer| (200, answer)).to_vec()).await;
    let from = format!("{}/api/", server.client().server());
    let (report, failure) = import(&data, &from, &[]).await;
    assert_eq!(failure, None);
    assert_eq!(counts(&report, "subscription"), [501, 0, 0, 0]);
    assert_eq!(counts(&report, "AccessToken"), [1, 0, 0, 0]);
    assert_eq!(report["notes"].as_array().map(Vec::len), Some(2));
    let requests = server.requests();
    assert!(requests[2].contains(&format!("/api/administrators/{}/access-tokens", id(2))), "{requests:?}");
    assert!(requests[4].contains(&id(509)), "the second page begins after the last id: {requests:?}");

    let server = FakeServer::start(vec![(403, json!({"statusCode": 403}))]).await;
    let (_, failure) = import(&data, &format!("{}/api", server.client().server()), &["--dry-run"]).await;
    assert!(failure.is_some_and(|failure| failure.contains("adminIps")));
}

#[test]
fn files_are_found_by_the_names_of_their_collections() {
    let folder = tempfile::tempdir().expect("a folder");
    let failure = |path: &Path| dump_files::find(path).expect_err("no dump").to_string();
    assert!(failure(folder.path()).contains("has no file of a collection"));
    assert!(failure(&folder.path().join("nothing")).contains("cannot read the dump"));
    for name in
        ["rss.json", "subscription.bson.gz", "configuration.json", "subscription.metadata.json.gz", "other.bson"]
    {
        fs::write(folder.path().join(name), "").expect("written");
    }
    assert_eq!(dump_files::find(folder.path()).expect("a dump").len(), 3);
    assert!(failure(&folder.path().join("other.bson")).contains("is not named after a collection"));
}
