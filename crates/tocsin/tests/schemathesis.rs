//! OpenAPI conformance of the real binary: schemathesis generates valid and invalid requests, and checks the responses.
//! No response may be a server error, have an undocumented status, or violate its schema.

mod support;

use std::{
    path::Path,
    process::{Command, Stdio},
};

use reqwest::Method;
use serde_json::json;
use support::Platform;
use tocsin_test_peers::{Peer, missing};

/// Seed of the requests. Another one finds other things: `SCHEMATHESIS_SEED=7 cargo test ...`.
const SEED: u64 = 20_261_127;
/// Maximum number of requests per operation and phase.
const EXAMPLES: u32 = 15;
/// Minimum number of requests of all phases.
const CASES_MIN: u64 = 2_000;

const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
    response_headers_conformance,response_schema_conformance";

/// Excluded: endless or waiting responses, backups of all data, the switch that makes all others respond 503, and the
/// rotation of the key that all requests have.
const LEFT_OUT: [&str; 8] = [
    "/v1/keys/{id}/rotate",
    "/v1/stream",
    "/v1/subscribers/{id}/inbox/stream",
    "/v1/sync/wait",
    "/v1/backups",
    "/v1/restore-drills",
    "/v1/doctor",
    "/v1/drain",
];

/// Existing objects, so that responses other than 404 occur.
const CONFIGURATION: &str = r#"
[parameters]
"path.application" = "quakes"
"path.class" = "quake"
"path.collection" = "visits"
"path.exchange" = "confirmation"
"path.protocol" = "smtp"
"path.resources" = "Users"
"path.subscriber" = "alice"
"#;

const QUAKES: &str = "
application: quakes
events: { quake: { fields: { place: { type: string, required: true }, magnitude: { type: number, required: true } } } }
subscriptions: { strong: { fields: { magnitude: { type: number, required: true } } } }
notifications:
  shaken: { fields: { place: string }, content: { templates: { base: { text: '{{ place }}' } } } }
rules:
  strong_enough: { on: quake, subscription: strong, when: event.magnitude >= sub.magnitude, notify: shaken }
channels: { mail: { protocol: file, options: { path: out.ndjson } }, inbox: { protocol: inbox } }
collections:
  visits:
    fields: { owner: { type: string, required: true }, what: string, count: integer }
    partition: [ { match: { owner: subscriber.id } } ]
";

/// Starts a platform with one object of most kinds.
async fn platform() -> Platform {
    let platform = Platform::start(&[
        ("TOCSIN_LDAP_SCIM", "true"),
        ("TOCSIN_LDAP_SUFFIX", "dc=example,dc=org"),
        ("TOCSIN_HTTP_REQUESTS_PER_ADDRESS_MAX", "0"),
    ])
    .await;
    platform.apply("quakes", QUAKES).await;
    let exchange = support::repository("examples/confirmation/exchange.yaml");
    platform.run(&["exchange", "apply", exchange.to_str().expect("a path"), "--yes"]);
    let device = json!({"channel": "mail", "address": "alice@example.org"});
    let alice = json!({"id": "alice", "devices": {"mail": device, "bell": {"channel": "inbox", "address": "alice"}}});
    let (status, body) = platform.post("/v1/subscribers", &alice).await;
    assert_eq!(status, 201, "{body}");
    let interest =
        json!({"application": "quakes", "class": "strong", "subscriber": "alice", "values": {"magnitude": 5}});
    let (status, body) = platform.post("/v1/subscriptions", &interest).await;
    assert_eq!(status, 201, "{body}");
    for magnitude in [4, 5, 6] {
        let event = json!({"place": "Kobe", "magnitude": magnitude});
        let (status, body) = platform.post("/v1/applications/quakes/events/quake", &event).await;
        assert_eq!(status, 202, "{body}");
    }
    let row = platform.request(Method::PUT, "/v1/applications/quakes/collections/visits/rows/v1");
    assert!(row.json(&json!({"owner": "alice"})).send().await.expect("an answer").status().is_success());
    platform
}

/// Runs phases of schemathesis. Returns the number of requests.
fn run(platform: &Platform, folder: &Path, phases: &str, more: &[&str]) -> u64 {
    let seed = std::env::var("SCHEMATHESIS_SEED").unwrap_or_else(|_| SEED.to_string());
    println!("SCHEMATHESIS_SEED={seed}, {phases}");
    let configuration = folder.join("schemathesis.toml");
    std::fs::write(&configuration, CONFIGURATION).expect("written");
    let mut command = Command::new(Peer::Python.path());
    command
        .args(["-m", "schemathesis.cli", "--config-file"])
        .arg(&configuration)
        .args(["run", &format!("{}/openapi.json", platform.url), "--checks", CHECKS, "--phases", phases])
        .args(["--mode", "all", "--max-examples", &EXAMPLES.to_string(), "--seed", &seed, "--workers", "1"])
        .args(["--continue-on-failure", "--no-shrink", "--suppress-health-check", "all", "--no-color"])
        .args(["--request-timeout", "60", "--header", &format!("Authorization: Bearer {}", platform.key())])
        .args(LEFT_OUT.iter().flat_map(|path| ["--exclude-path", *path]))
        .args(more)
        .current_dir(folder)
        .env("PYTHONPATH", Peer::Schemathesis.path().join("python"))
        .env("SCHEMATHESIS_HOOKS", support::repository("crates/tocsin/tests/schemathesis/hooks.py"))
        .stdin(Stdio::null());
    let done = command.output().expect("python3 starts");
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    let errors = String::from_utf8_lossy(&done.stderr);
    // The part before the warnings has the failures, each with a request to reproduce it.
    let failures = said.split("= WARNINGS =").next().unwrap_or_default();
    assert!(done.status.success(), "{}\n{failures}\n{errors}", done.status);
    let generated = said.lines().find_map(|line| line.trim().split_once(" generated,")).map(|(count, _)| count);
    generated.and_then(|count| count.replace(',', "").parse().ok()).unwrap_or_else(|| panic!("no count in\n{said}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_e8_every_response_conforms_to_the_openapi_document() {
    if missing(&[Peer::Schemathesis]) {
        return;
    }
    let platform = platform().await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let each = run(&platform, folder.path(), "examples,coverage,fuzzing", &[]);
    // Its heuristic which response has the id of which request fails where lists of several kinds have the same form.
    let one_kind = ["--exclude-path-regex", "^/scim/|^/v1/segments$"];
    let together = run(&platform, folder.path(), "stateful", &one_kind);
    println!("{each} requests one by one, {together} in sequences");
    assert!(each + together >= CASES_MIN, "only {each} and {together} requests were made");
    assert_eq!(platform.get("/v1/status").await["ready"], true);
}
