//! Reference pages match the code; pages and health checks need no key; connections are limited.

use std::path::PathBuf;

use tocsin_face_http::{
    ConnectionOptions, HttpOptions, audit_page, error_codes_module, errors_page, openapi_document, scopes_page,
};
use tocsin_store::journal::JournalOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::platform::Platform;

/// Compares a committed file with the generated one; `UPDATE=1` writes it.
fn check_reference(name: &str, expected: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference").join(name);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, expected).expect("the file can be written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == expected, "docs/reference/{name} is not what the code makes; run the tests with UPDATE=1");
}

#[test]
fn the_committed_description_of_the_api_is_the_generated_one() {
    check_reference("openapi.json", &openapi_document());
}

#[test]
fn the_committed_page_of_scopes_is_the_generated_one() {
    check_reference("scopes.md", &scopes_page());
}

#[test]
fn the_committed_page_of_audited_actions_is_the_generated_one() {
    check_reference("audit.md", &audit_page());
}

#[test]
fn the_committed_page_of_error_codes_is_the_generated_one() {
    check_reference("errors.md", &errors_page());
    check_reference("../../clients/typescript/src/error_codes.ts", &error_codes_module());
}

#[test]
fn every_operation_names_its_failures() {
    let document: serde_json::Value = serde_json::from_str(&openapi_document()).expect("JSON");
    let statuses = |path: &str, method: &str| -> Vec<String> {
        let responses = document["paths"][path][method]["responses"].as_object();
        responses.unwrap_or_else(|| panic!("{method} {path}")).keys().cloned().collect()
    };
    let all = ["200", "400", "401", "403", "404", "408", "412", "413", "415", "422", "429", "500", "503"];
    assert_eq!(statuses("/v1/subscribers/{id}", "patch"), all);
    assert_eq!(statuses("/v1/status", "get"), ["200", "400", "401", "403", "429", "500", "503"]);
    assert!(statuses("/v1/applications/{application}/events/{class}", "post").contains(&"409".to_owned()));
    assert_eq!(statuses("/livez", "get"), ["200"]);
    let full = &document["paths"]["/v1/import/subscribers"]["post"]["responses"]["429"];
    assert_eq!(full["$ref"], "#/components/responses/too-many");
    let shared = &document["components"]["responses"]["too-many"];
    assert!(shared["headers"]["Retry-After"].is_object(), "{shared}");
    // Client generators create a function for each.
    let operations =
        document["paths"].as_object().expect("paths").values().flat_map(|item| item.as_object().expect("one").values());
    let ids: Vec<&str> = operations.map(|operation| operation["operationId"].as_str().expect("an id")).collect();
    let unique: std::collections::BTreeSet<&&str> = ids.iter().collect();
    assert_eq!(unique.len(), ids.len(), "{ids:?}");
}

#[tokio::test]
async fn large_answers_are_compressed_for_those_that_accept_it() {
    let platform = Platform::with_quakes().await;
    let send_request = async |path: &str, accepts: &str| {
        let request = platform.client.get(format!("{}{path}", platform.address)).bearer_auth(&platform.key);
        let answer = request.header("accept-encoding", accepts).send().await.expect("an answer");
        let coding = answer.headers().get("content-encoding").map(|value| value.to_str().expect("text").to_owned());
        let varies = answer.headers().get("vary").is_some_and(|value| value == "accept-encoding");
        (coding, varies, answer.bytes().await.expect("a body"))
    };
    let (coding, varies, packed) = send_request("/openapi.json", "gzip, br, zstd").await;
    assert_eq!((coding.as_deref(), varies), (Some("zstd"), true));
    let unpacked = zstd::stream::decode_all(&packed[..]).expect("zstd");
    assert_eq!(unpacked, send_request("/openapi.json", "identity").await.2);
    let (coding, varies, packed) = send_request("/openapi.json", "gzip, br").await;
    assert_eq!((coding.as_deref(), varies), (Some("gzip"), true));
    let (coding, _, plain) = send_request("/openapi.json", "identity").await;
    assert_eq!(coding, None);
    assert!(packed.len() * 4 < plain.len() && plain.len() < 650_000, "{} of {}", packed.len(), plain.len());
    let mut unpacked = String::new();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&packed[..]), &mut unpacked).expect("gzip");
    assert_eq!(unpacked.as_bytes(), plain);
    // Small responses, and those with an entity tag.
    assert_eq!(send_request("/livez", "gzip").await.0, None);
    let large = serde_json::json!({"id": "large", "attributes": {"a": "x".repeat(5_000)}}).to_string();
    assert_eq!(platform.post("/v1/subscribers", "application/json", &large).await.0, 201);
    assert_eq!(send_request("/v1/subscribers/large", "gzip").await.0, None);
    assert_eq!(send_request("/v1/subscribers", "gzip").await.0.as_deref(), Some("gzip"));
    platform.stop().await;
}

#[tokio::test]
async fn pages_and_health_need_no_key() {
    let platform = Platform::with_quakes().await;
    let pages = [
        ("/status", 200, "text/html"),
        ("/style.css", 200, "text/css"),
        ("/favicon.svg", 200, "image/svg+xml"),
        ("/livez", 200, "text/plain"),
        ("/readyz", 200, "application/json"),
        ("/openapi.json", 200, "application/json"),
        ("/explorer/", 200, "text/html"),
        ("/explorer/explorer.js", 200, "text/javascript"),
        ("/problems/invalid", 200, "text/html"),
        ("/problems/unheard-of", 404, "application/problem+json"),
        ("/explorer/nothing.js", 404, "application/problem+json"),
        ("/metrics", 404, "application/problem+json"),
    ];
    for (path, status, kind) in pages {
        let response = platform.client.get(format!("{}{path}", platform.address)).send().await.expect("an answer");
        let headers = response.headers();
        assert_eq!(response.status(), status, "{path}");
        let found = headers["content-type"].to_str().expect("text");
        assert!(found.starts_with(kind), "{path}: {found}");
        assert_eq!(headers["x-content-type-options"], "nosniff", "{path}");
        let policy = headers["content-security-policy"].to_str().expect("text");
        assert!(policy.contains("default-src 'self'") && policy.contains("frame-ancestors 'none'"), "{path}: {policy}");
        assert!(!headers.contains_key("access-control-allow-origin"), "{path}");
        assert!(headers.contains_key("x-request-id"), "{path}");
        assert!(
            policy == "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
            "{path}: {policy}"
        );
    }
    let page = platform
        .client
        .get(format!("{}/status", platform.address))
        .send()
        .await
        .expect("a page")
        .text()
        .await
        .expect("text");
    assert!(
        page.contains("quakes") && ["alice", "style=", "<script", "http-equiv"].iter().all(|text| !page.contains(text)),
        "{page}"
    );
    let (_, status) = platform.get("/v1/status").await;
    assert_eq!(
        (status["ready"].as_bool(), status["counts"]["subscribers"].as_u64()),
        (Some(true), Some(1)),
        "{status}"
    );
    let echoed =
        platform.client.get(format!("{}/livez", platform.address)).header("x-request-id", "my-id_1").send().await;
    assert_eq!(echoed.expect("an answer").headers()["x-request-id"], "my-id_1");
    let replaced =
        platform.client.get(format!("{}/livez", platform.address)).header("x-request-id", "<b>").send().await;
    assert_ne!(replaced.expect("an answer").headers()["x-request-id"], "<b>");
    platform.stop().await;
}

/// Sends the text on a new connection, and reads until the server closes it.
async fn exchange_raw(address: &str, text: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(address).await.expect("a connection");
    stream.write_all(text.as_bytes()).await.expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    answer
}

fn connections(connections: ConnectionOptions) -> HttpOptions {
    HttpOptions { connections, ..HttpOptions::default() }
}

#[tokio::test]
async fn a20_a_connection_beyond_the_limit_is_refused_and_health_checks_are_answered() {
    let options = connections(ConnectionOptions { connections_max: 1, ..ConnectionOptions::default() });
    let platform = Platform::with(options, JournalOptions::default()).await;
    let address = platform.address.trim_start_matches("http://").to_owned();
    let mut first = tokio::net::TcpStream::connect(&address).await.expect("a connection");
    first.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("a request");
    let mut answer = [0; 12];
    first.read_exact(&mut answer).await.expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 200");
    let refusal = exchange_raw(&address, "GET /v1/status HTTP/1.1\r\nhost: x\r\n\r\n").await;
    let lower = refusal.to_ascii_lowercase();
    assert!(refusal.starts_with("HTTP/1.1 503") && lower.contains("retry-after: 1"), "{refusal}");
    assert!(lower.contains("connection: close") && refusal.contains("/problems/busy"), "{refusal}");
    for path in ["/livez", "/readyz"] {
        let health = exchange_raw(&address, &format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n")).await;
        assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    }
    drop(first);
    platform.stop().await;
}

#[tokio::test]
async fn a20_a_connection_without_any_seat_is_refused_before_it_says_anything() {
    let limits = ConnectionOptions { connections_max: 1, health_connections: 0, ..ConnectionOptions::default() };
    let options = connections(limits);
    let platform = Platform::with(options, JournalOptions::default()).await;
    let address = platform.address.trim_start_matches("http://").to_owned();
    let mut first = tokio::net::TcpStream::connect(&address).await.expect("a connection");
    first.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("a request");
    let mut answer = [0; 12];
    first.read_exact(&mut answer).await.expect("an answer");
    let refusal = exchange_raw(&address, "").await;
    assert!(refusal.starts_with("HTTP/1.1 503") && refusal.contains("Retry-After"), "{refusal}");
    let body = refusal.split("\r\n\r\n").nth(1).expect("a body");
    assert!(refusal.contains(&format!("Content-Length: {}\r\n", body.len())), "{refusal}");
    drop(first);
    platform.stop().await;
}

#[tokio::test]
async fn a20_clients_that_ask_and_never_read_are_cut_off() {
    let options = connections(ConnectionOptions {
        write_timeout: std::time::Duration::from_millis(20),
        header_timeout: std::time::Duration::from_millis(200),
        ..ConnectionOptions::default()
    });
    let platform = Platform::with(options, JournalOptions::default()).await;
    let address = platform.address.trim_start_matches("http://").to_owned();
    let mut greedy = tokio::net::TcpStream::connect(&address).await.expect("a connection");
    // Endless requests, until the server closes the connection: a write fails or blocks permanently.
    let asked = async {
        let request = b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n".repeat(16);
        while greedy.write_all(&request).await.is_ok() {}
    };
    tokio::time::timeout(tocsin_test_peers::wait_timeout(), asked).await.expect("the server closes the connection");
    platform.stop().await;
}

#[tokio::test]
async fn c7_a_request_without_one_valid_host_is_refused() {
    let platform = Platform::start().await;
    let address = platform.address.trim_start_matches("http://").to_owned();
    for hosts in ["", "host: a\r\nhost: a\r\n", "host: a b\r\n", "host: user@a\r\n", "host: a:b\r\n"] {
        let request = format!("GET /livez HTTP/1.1\r\n{hosts}connection: close\r\n\r\n");
        let answer = exchange_raw(&address, &request).await;
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("/problems/malformed"), "{hosts}: {answer}");
    }
    let old = exchange_raw(&address, "GET /livez HTTP/1.0\r\n\r\n").await;
    assert!(old.starts_with("HTTP/1.0 200") || old.starts_with("HTTP/1.1 200"), "{old}");
    platform.stop().await;
}

#[tokio::test]
async fn a_body_that_pauses_is_given_up() {
    let idle = std::time::Duration::from_millis(1);
    let options = connections(ConnectionOptions { body_idle_timeout: idle, ..ConnectionOptions::default() });
    let platform = Platform::with(options, JournalOptions::default()).await;
    let address = platform.address.trim_start_matches("http://").to_owned();
    let mut slow = tokio::net::TcpStream::connect(&address).await.expect("a connection");
    let head = format!(
        "POST /v1/subscribers HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\ncontent-length: 10\r\n\r\n{{",
        platform.key
    );
    slow.write_all(head.as_bytes()).await.expect("the head");
    let mut answer = String::new();
    slow.read_to_string(&mut answer).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("/problems/timeout"), "{answer}");
    platform.stop().await;
}

#[tokio::test]
async fn a_full_journal_asks_to_come_again() {
    let journal = JournalOptions { event_batches_waiting_max: 0, ..JournalOptions::default() };
    let platform = Platform::with(HttpOptions::default(), journal).await;
    platform.apply_quakes().await;
    let request =
        platform.request("POST", "/v1/applications/quakes/events/quake").header("content-type", "application/json");
    let response = request.body(r#"{"place":"Kobe","magnitude":6}"#).send().await.expect("an answer");
    assert_eq!((response.status().as_u16(), response.headers().contains_key("retry-after")), (503, true));
    platform.stop().await;
}

/// The description documents which operations respond with 404 to an unknown name; the service decides it.
#[tokio::test]
async fn unknown_names_are_not_found_where_the_description_says_so() {
    const NAMES: [&str; 3] = ["application", "exchange", "channel"];
    let platform = Platform::with_quakes().await;
    let document: serde_json::Value = serde_json::from_str(&openapi_document()).expect("JSON");
    let resolved = |schema: &serde_json::Value| match schema["$ref"].as_str() {
        Some(reference) => document.pointer(reference.trim_start_matches('#')).expect("it is there").clone(),
        None => schema.clone(),
    };
    let mut checked = 0;
    for (path, item) in document["paths"].as_object().expect("paths") {
        // Without sync, its paths respond with 404.
        if !path.starts_with("/v1/") || path.contains('{') || path.starts_with("/v1/sync/") {
            continue;
        }
        for (method, operation) in item.as_object().expect("operations") {
            let queried = operation["parameters"].as_array().into_iter().flatten();
            let queried: Vec<&str> = queried.filter_map(|parameter| parameter["name"].as_str()).collect();
            let content = operation["requestBody"]["content"].as_object();
            let body = content.and_then(|content| content.get("application/json"));
            let body = body.map(|body| resolved(&body["schema"])["properties"].clone());
            let media_type = content.and_then(|content| content.keys().next()).cloned();
            let in_body = NAMES.iter().find(|name| body.as_ref().is_some_and(|body| body.get(**name).is_some()));
            let in_query = NAMES.iter().find(|name| queried.contains(*name));
            let query = in_query.map_or_else(String::new, |name| format!("?{name}=nowhere&class=nowhere"));
            let query = if queried.contains(&"class") { query } else { query.replace("&class=nowhere", "") };
            let given = match in_body {
                Some(name) if path == "/v1/subscriptions" => {
                    serde_json::json!({*name: "nowhere", "class": "near", "subscriber": "alice"}).to_string()
                }
                Some(name) => serde_json::json!({*name: "nowhere"}).to_string(),
                None => "{}".to_owned(),
            };
            if in_body.is_none() && in_query.is_none() {
                continue;
            }
            let request = platform.request(&method.to_uppercase(), &format!("{path}{query}"));
            let request = match media_type {
                Some(media_type) => request.header("content-type", media_type).body(given),
                None => request,
            };
            let status = request.send().await.expect("an answer").status();
            let is_described = operation["responses"].get("404").is_some();
            assert_eq!(status == 404, is_described, "{method} {path}{query} answers {status}");
            checked += 1;
        }
    }
    assert!(checked >= 15, "{checked}");
    platform.stop().await;
}
