//! I4, secrets do not leak: unique values are used wherever there is a secret. A run with failures of every kind writes
//! the most verbose log, queries everything, exports traces and makes a backup; none of these contains a value.

mod support;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use axum::{Router, body::Bytes, http::HeaderMap, http::StatusCode};
use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::json;
use support::{Platform, hooks::Hooks};
use tocsin_test_peers::{Peer, missing, reserved_port};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

const APPLICATION: &str = r#"application: vault
events: { ping: { fields: { token: { type: string, required: true } } } }
collections:
  notes: { fields: { owner: string, what: string }, partition: [ { match: { owner: subscriber.id } } ] }
subscriptions: { every: { fields: {} } }
notifications: { ping: { fields: { token: string }, content: { templates: { base: { subject: ping, text: "{{ token }}" } } } } }
rules: { everyone: { on: ping, subscription: every, notify: ping } }
channels:
  mail:
    protocol: smtp
    options: { host: 127.0.0.1, port: "${SINK}", tls: off, from: t@example.org, username: u, password: "<smtp>", allow_plain_auth: true, dkim: [ { selector: s, domain: example.org, key: "${DKIM}" } ] }
    retry: []
  hook:
    protocol: http
    options: { allow_networks: [127.0.0.1], headers: { Authorization: "Bearer <header>" }, secret: "<webhook>" }
    retry: []
  basic: { protocol: http, options: { allow_networks: [127.0.0.1], username: u, password: "<basic>" }, retry: [] }
  environment: { protocol: http, options: { allow_networks: [127.0.0.1], headers: { X-Api-Key: "${API_KEY}" } }, retry: [] }
  broker: { protocol: nats, options: { servers: ["nats://127.0.0.1:9"], token: "<nats>", timeout: 1s }, retry: [] }
sources:
  rows: { kind: outbox, events: [ping], options: { database: "postgres://u:<database>@127.0.0.1:9/x", table: outbox, timeout: 1s } }
  meters: { kind: mqtt, events: [ping], options: { host: 127.0.0.1, port: 9, topics: [a], username: u, password: "<mqtt>", timeout: 1s } }
"#;

const EXCHANGE: &str = r#"exchange: relay
receive: { orders: { mode: one_way } }
send:
  echo:
    mode: one_way
    protocol: http
    options: { url: "${FAR}/x", allow_networks: [127.0.0.1], headers: { Authorization: "Bearer <exchange>" } }
    retry: []
routes: { every: { when: "true", to: echo } }
"#;

/// Canary values by the kind of secret.
#[derive(Default)]
struct Canaries(BTreeMap<String, String>);

impl Canaries {
    fn new(names: &[&str]) -> Canaries {
        let mut random = fastrand::Rng::with_seed(support::seed());
        let make = |name: &&str| {
            let letters: String = std::iter::repeat_with(|| random.lowercase()).take(24).collect();
            let value = match *name {
                "webhook" => format!("whsec_{}", BASE64_STANDARD.encode(format!("canary{letters}xx"))),
                _ => format!("canary{letters}"),
            };
            ((*name).to_owned(), value)
        };
        Canaries(names.iter().map(make).collect())
    }

    fn get(&self, name: &str) -> &str {
        &self.0[name]
    }

    fn add(&mut self, name: &str, value: &str) {
        assert!(value.len() > 12, "{name}");
        self.0.insert(name.to_owned(), value.to_owned());
    }

    /// Replaces `<name>` in a text by the value.
    fn fill(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (name, value)| text.replace(&format!("<{name}>"), value))
    }

    /// Names of the secrets that some bytes contain: verbatim, or in base64 at any offset.
    fn found_in(&self, bytes: &[u8]) -> Vec<&str> {
        let holds = |needle: &[u8]| bytes.windows(needle.len()).any(|part| part == needle);
        let is_held = |value: &str| {
            let value = value.strip_prefix("whsec_").unwrap_or(value);
            holds(value.as_bytes())
                || (0..3).any(|before| {
                    let text = BASE64_STANDARD.encode([&vec![b' '; before][..], value.as_bytes()].concat());
                    // The first and last letters depend on the neighbouring bytes.
                    holds(&text.as_bytes()[4..text.len() - 4])
                })
        };
        self.0.iter().filter(|(_, value)| is_held(value)).map(|(name, _)| &**name).collect()
    }
}

/// Mail server that refuses every login and repeats it in the reply.
async fn refusing_mail_server() -> u16 {
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = socket.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = socket.accept().await {
            tokio::spawn(async move {
                let (reader, mut writer) = stream.into_split();
                let mut lines = BufReader::new(reader).lines();
                let _ = writer.write_all(b"220 sink\r\n").await;
                while let Ok(Some(line)) = lines.next_line().await {
                    let answer = match line.split(' ').next().unwrap_or_default().to_ascii_uppercase().as_str() {
                        "EHLO" => "250-sink\r\n250 AUTH PLAIN\r\n".to_owned(),
                        "AUTH" => format!("535 5.7.8 wrong: {line}\r\n"),
                        "QUIT" => return,
                        _ => "530 5.7.0 log in\r\n".to_owned(),
                    };
                    if writer.write_all(answer.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

/// Server that fails and repeats the request headers in the response.
async fn echoing_server() -> String {
    async fn echo(headers: HeaderMap, _: Bytes) -> (StatusCode, String) {
        (StatusCode::INTERNAL_SERVER_ERROR, format!("wrong: {headers:?}"))
    }
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", socket.local_addr().expect("an address"));
    tokio::spawn(async move { axum::serve(socket, Router::new().fallback(echo)).await });
    url
}

/// Private key in PEM form.
fn dkim_key() -> String {
    let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("a key");
    pair.serialize_pem()
}

fn every_file(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { every_file(&path) } else { vec![path] }).collect()
}

/// Runs an OpenLDAP client; returns whether it succeeded.
fn ldap(program: &str, port: u16, dn: &str, password: &str, input: &str) -> bool {
    use std::io::Write;
    let mut command = Command::new(program);
    command.args(["-x", "-H", &format!("ldap://127.0.0.1:{port}"), "-D", dn, "-w", password]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("it reads");
    child.wait().expect("it ends").success()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i4_no_output_of_the_server_contains_a_secret() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let mut canaries = Canaries::new(&[
        "smtp",
        "header",
        "webhook",
        "basic",
        "environment",
        "nats",
        "database",
        "mqtt",
        "exchange",
        "userPassword",
        "guessed password",
        "collector",
        "wrong key",
        "unsubscribe token",
    ]);
    let (sink, echo, collector) = (refusing_mail_server().await, echoing_server().await, Hooks::start("{}").await);
    let (dkim, ldap_port) = (dkim_key(), reserved_port());
    // One line of the key's base64.
    canaries.add("dkim", dkim.lines().nth(1).expect("a line"));
    let environment = [
        ("SINK", sink.to_string()),
        ("FAR", echo.clone()),
        ("DKIM", dkim.clone()),
        ("API_KEY", canaries.get("environment").to_owned()),
        ("TOCSIN_LOG_LEVEL", "trace".to_owned()),
        ("TOCSIN_RECORDS_KEYS", format!("2026 {}", "0123456789abcdef".repeat(4))),
        ("TOCSIN_LDAP_LISTEN", format!("127.0.0.1:{ldap_port}")),
        ("TOCSIN_LDAP_SUFFIX", "o=site".to_owned()),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://127.0.0.1:{}", collector.port)),
        ("OTEL_EXPORTER_OTLP_HEADERS", format!("authorization=Bearer%20{}", canaries.get("collector"))),
        ("OTEL_TRACES_SAMPLER", "always_on".to_owned()),
    ];
    let borrowed: Vec<(&str, &str)> = environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let scratch = tempfile::tempdir().expect("a folder");
    let folder = scratch.path().join("data");
    let mut platform = Platform::prepare(folder.clone(), &borrowed);
    let log = scratch.path().join("log");
    platform.log = Some(log.clone());
    platform.restart().await;
    canaries.add("admin key", &platform.key());

    // Valid and invalid definitions with secrets.
    let definition = canaries.fill(APPLICATION);
    platform.apply("vault", &definition).await;
    let put = async |path: &str, text: String| {
        let request = platform.request(reqwest::Method::PUT, path).header("content-type", "application/yaml");
        let answer = request.body(text).send().await.expect("an answer");
        (answer.status().as_u16(), answer.text().await.expect("a body"))
    };
    let mut answers = String::new();
    let (status, said) = put("/v1/exchanges/relay", canaries.fill(EXCHANGE)).await;
    assert!(status < 300, "{status} {said}");
    for (part, wrong) in [
        ("tls: off", "tls: canarytls"),
        ("timeout: 1s }, retry", "timeout: soon }, retry"),
        ("events: [ping], options: { database", "events: [pong], options: { database"),
        ("secret: \"", "secret: \"whsec_"),
        ("postgres://", "nosuch://"),
        ("username: u, password: \"<basic>\"", "password: [\"<basic>\"]"),
    ] {
        let wrong = definition.replace(&canaries.fill(part), &canaries.fill(wrong));
        assert_ne!(wrong, definition, "{part}");
        let (status, said) = put("/v1/applications/vault?dry_run=true", wrong).await;
        assert_eq!(status, 422, "{part}: {said}");
        answers.push_str(&said);
    }
    let (_, said) = put(
        "/v1/applications/vault",
        definition.replacen("application: vault", "application: vault\ndescription: 2", 1),
    )
    .await;
    answers.push_str(&said);

    // Keys and tokens.
    let (status, made) =
        platform.post("/v1/keys", &json!({"description": "reader", "scopes": ["applications:read"]})).await;
    assert_eq!(status, 201, "{made}");
    canaries.add("key", made["key"].as_str().expect("a key"));
    for key in [canaries.get("key"), &format!("tocsin_00000000_{}", canaries.get("wrong key"))] {
        for path in ["/v1/applications/vault", "/v1/keys", "/v1/status"] {
            let answer = platform.client.get(format!("{}{path}", platform.url)).bearer_auth(key).send().await;
            answers.push_str(&answer.expect("an answer").text().await.expect("a body"));
        }
    }
    let address = format!("{echo}/hook");
    for (subscriber, channel, address) in [
        ("mary", "mail", "mary@example.org"),
        ("hugo", "hook", &*address),
        ("bob", "basic", &*address),
        ("eve", "environment", &*address),
        ("nat", "broker", "subject"),
    ] {
        platform.subscribe("vault", "every", subscriber, channel, address, json!({})).await;
    }
    let (status, made) = platform.post("/v1/subscribers/mary/inbox/token", &json!({})).await;
    assert!(status < 300, "{status} {made}");
    canaries.add("inbox token", made["token"].as_str().expect("a token"));
    let (status, made) = platform
        .post("/v1/sync/devices", &json!({"application": "vault", "subscriber": "mary", "name": "phone"}))
        .await;
    assert_eq!(status, 201, "{made}");
    canaries.add("device token", made["token"].as_str().expect("a token"));
    let by_address = [
        format!("/v1/subscribers/mary/inbox?token={}", canaries.get("inbox token")),
        format!("/v1/subscribers/hugo/inbox?token={}", canaries.get("inbox token")),
        format!("/unsubscribe/1-{}", canaries.get("unsubscribe token")),
    ];
    for path in by_address {
        let answer = platform.client.get(format!("{}{path}", platform.url)).send().await.expect("an answer");
        answers.push_str(&answer.text().await.expect("a body"));
    }
    for token in [canaries.get("device token"), "tocsin_device_0_0"] {
        let request = platform.client.post(format!("{}/v1/sync/sessions", platform.url)).bearer_auth(token);
        answers.push_str(&request.json(&json!({})).send().await.expect("an answer").text().await.expect("a body"));
    }

    // Passwords of the directory, right and wrong.
    let person = format!(
        "dn: uid=ann,ou=people,o=site\nobjectClass: inetOrgPerson\nuid: ann\ncn: ann\nsn: x\nuserPassword: {}\n",
        canaries.get("userPassword")
    );
    assert!(ldap("ldapadd", ldap_port, "cn=admin,o=site", &platform.key(), &person));
    assert!(ldap("ldapwhoami", ldap_port, "uid=ann,ou=people,o=site", canaries.get("userPassword"), ""));
    assert!(!ldap("ldapwhoami", ldap_port, "uid=ann,ou=people,o=site", canaries.get("guessed password"), ""));
    assert!(!ldap("ldapwhoami", ldap_port, "cn=admin,o=site", canaries.get("guessed password"), ""));

    // All deliveries fail.
    for number in 0..3 {
        let path = "/v1/applications/vault/events/ping";
        let (status, answer) = platform.post(path, &json!({"token": format!("t{number}")})).await;
        assert_eq!(status, 202, "{answer}");
        let path = "/v1/exchanges/relay/receive/orders";
        let (status, answer) = platform.post(path, &json!({"token": number})).await;
        assert!(status < 300, "{status} {answer}");
    }
    platform.settled().await;
    let mut messages = serde_json::Value::Null;
    support::until("the messages are suspended", async || {
        messages = platform.get("/v1/messages").await;
        messages.to_string().matches("suspended").count() >= 3
    })
    .await;
    answers.push_str(&messages.to_string());
    for item in messages["items"].as_array().expect("items") {
        answers.push_str(
            &platform.get(&format!("/v1/messages/{}", item["id"].as_str().expect("an id"))).await.to_string(),
        );
    }
    let (_, probes) = platform.post("/v1/applications/vault/channels/probe", &json!({})).await;
    answers.push_str(&probes.to_string());

    // Status and other queries.
    for path in [
        "/",
        "/readyz",
        "/metrics",
        "/v1/status",
        "/v1/attention",
        "/v1/applications",
        "/v1/applications/vault",
        "/v1/applications/vault/history",
        "/v1/exchanges",
        "/v1/exchanges/relay",
        "/v1/keys",
        "/v1/suspensions",
        "/v1/sources",
        "/v1/destinations",
        "/v1/endpoints",
        "/v1/subscribers",
        "/v1/subscriptions",
        "/v1/sync/devices",
        "/v1/export/subscribers",
        "/v1/batches",
        "/v1/messages",
    ] {
        let answer = platform.request(reqwest::Method::GET, path).send().await.expect("an answer");
        answers.push_str(&format!("\n{path}: {}\n", answer.text().await.expect("a body")));
    }
    for arguments in [
        &["status"][..],
        &["digest"],
        &["suspended", "list"],
        &["sources", "list"],
        &["destinations"],
        &["export", "definition", "vault"],
        &["exchange", "show", "relay"],
        &["keys", "list"],
        &["doctor"],
    ] {
        let output = platform.command().args(arguments).stdin(Stdio::null()).output().expect("it runs");
        answers.push_str(&String::from_utf8_lossy(&output.stdout));
        answers.push_str(&String::from_utf8_lossy(&output.stderr));
    }
    assert!(answers.contains("wrong:") || answers.contains("500"), "the answers name the failures");
    let backup = scratch.path().join("backup");
    platform.run(&["backup", backup.to_str().expect("a path")]);
    assert_eq!(platform.terminate(), Some(0));

    let mut found = Vec::new();
    let mut search = |source: &str, bytes: &[u8]| {
        found.extend(canaries.found_in(bytes).into_iter().map(|name| format!("{name} in {source}")));
    };
    search("answers and commands", answers.as_bytes());
    let logged = fs::read(&log).expect("a log");
    assert!(logged.len() > 10_000, "the log is verbose");
    search("the log", &logged);
    let traces = collector.all();
    assert!(!traces.is_empty(), "traces are exported");
    for (_, _, body) in &traces {
        search("a trace", body);
    }
    for file in every_file(&folder).into_iter().chain(every_file(&backup)) {
        // The file whose purpose is to hold the first key.
        if !file.ends_with("admin.key") {
            search(&file.display().to_string(), &fs::read(&file).expect("a file"));
        }
    }
    assert!(found.is_empty(), "{found:#?}\n{}", excerpt(&answers, &canaries));

    // The search finds a secret in a response, also in SMTP's encoding.
    let sent = BASE64_STANDARD.encode(format!("\0u\0{}", canaries.get("smtp")));
    assert_eq!(canaries.found_in(format!("535 wrong: AUTH PLAIN {sent}").as_bytes()), ["smtp"]);
    assert_eq!(canaries.found_in(canaries.fill("x <header>").as_bytes()), ["header"]);
}

/// Text around the first secret.
fn excerpt(text: &str, canaries: &Canaries) -> String {
    let at = canaries.0.values().filter_map(|value| text.find(value.as_str())).min();
    at.map(|at| text[at.saturating_sub(300)..].chars().take(500).collect()).unwrap_or_default()
}
