//! Secrets in definitions: they cannot be read, and a masked definition can be applied again.

mod support;

use std::path::Path;

use support::{Platform, hooks::Hooks};

const APPLICATION: &str = r#"application: pings
events: { ping: { fields: { token: string } } }
subscriptions: { every: { fields: {} } }
notifications: { ping: { fields: { token: string }, content: { templates: { base: { text: "{{ token }}" } } } } }
rules: { everyone: { on: ping, subscription: every, notify: ping } }
channels:
  web:
    protocol: http
    options:
      allow_networks: [127.0.0.0/8]
      headers: { Authorization: Bearer hunter2 } # theirs
"#;

fn write(file: &Path, text: &str) -> String {
    std::fs::write(file, text).expect("written");
    file.to_str().expect("a path").to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_application_that_is_exported_and_applied_keeps_its_secrets() {
    let hooks = Hooks::start("{}").await;
    let platform = Platform::start(&[]).await;
    let file = platform.folder.join("pings.yaml");
    platform.run(&["apply", "--yes", &write(&file, APPLICATION)]);
    let address = format!("http://127.0.0.1:{}/hook", hooks.port);
    platform.subscribe("pings", "every", "alice", "web", &address, serde_json::json!({})).await;

    let shown = platform.run(&["export", "definition", "pings"]);
    assert_eq!(shown, APPLICATION.replace("Bearer hunter2", "\"***\""));
    for path in ["/v1/applications/pings", "/v1/applications/pings/history", "/v1/applications"] {
        let answer = platform.get(path).await.to_string();
        assert!(!answer.contains("hunter2"), "{path}: {answer}");
    }
    let same = platform.run(&["apply", "--yes", &write(&file, &shown)]);
    assert!(same.contains("nothing to change, version 1 runs"), "{same}");

    let edited = shown.replace("application: pings", "application: pings\ndescription: of tokens");
    let applied = platform.run(&["apply", "--yes", &write(&file, &edited)]);
    assert!(applied.contains("pings runs as version 2"), "{applied}");
    let (status, _) = platform.post("/v1/applications/pings/events/ping", &serde_json::json!({"token": "a"})).await;
    assert_eq!(status, 202);
    platform.settled().await;
    let (_, headers, _) = hooks.all().pop().expect("a request");
    assert_eq!(headers["authorization"], "Bearer hunter2");

    // A mask without a stored secret.
    let moved = write(&file, &edited.replace("  web:", "  net:"));
    let refused = platform.command().args(["apply", "--yes", &moved]).output().expect("it runs");
    let output = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success());
    assert!(
        output.contains("pings.yaml:12:33: channels.net.options.headers.Authorization: holds `***`")
            && output.contains("${NAME}"),
        "{output}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_key_cannot_learn_environment_values_through_an_exchange() {
    let platform = Platform::start(&[("ERP_SECRET", "hunter2")]).await;
    let new = serde_json::json!({"description": "reader", "scopes": ["applications:read"]});
    let (status, made) = platform.post("/v1/keys", &new).await;
    assert_eq!(status, 201, "{made}");
    let definition = "
exchange: orders
receive: { orders: { mode: one_way } }
send: { erp: { mode: one_way, protocol: http, options: { url: 'https://a.example/', timeout: '${ERP_SECRET}' } } }
routes: { every: { when: 'true', to: erp } }
";
    let send_request = async |key: &str, definition: String| {
        let request = platform.client.put(format!("{}/v1/exchanges/orders?dry_run=true", platform.url));
        let request = request.header("content-type", "application/yaml").bearer_auth(key).body(definition);
        let answer = request.send().await.expect("an answer");
        (answer.status().as_u16(), answer.text().await.expect("a body"))
    };
    let reader = made["key"].as_str().expect("a key");
    let (status, answer) = send_request(reader, definition.to_owned()).await;
    assert_eq!(status, 200, "{answer}");
    let (status, answer) = send_request(reader, definition.replace("when: 'true'", "when: 'message.odd'")).await;
    assert!(status == 422 && answer.contains("routes.every.when") && !answer.contains("hunter2"), "{status} {answer}");
    let (status, answer) = send_request(&platform.key(), definition.to_owned()).await;
    assert!(
        status == 422 && answer.contains("what the environment gives") && !answer.contains("hunter2"),
        "{status} {answer}"
    );
}

/// The routes of the application `pings` and the exchange `orders` that need a running definition.
async fn other_routes_answer_503(platform: &Platform) {
    use reqwest::Method;
    let (application, exchange) = ("/v1/applications/pings", "/v1/exchanges/orders");
    let line = serde_json::json!({"application": "pings", "class": "every", "subscriber": "alice", "values": {}});
    let imports = "/v1/import/subscriptions";
    let import = |path: &str, line: &serde_json::Value| {
        let request = platform.request(Method::POST, path).header("content-type", "application/x-ndjson");
        request.body(line.to_string()).send()
    };
    let mut answers = Vec::new();
    for path in ["/web-push", "/schedules"].map(|path| format!("{application}{path}")) {
        answers.push(platform.request(Method::GET, &path).send().await);
    }
    answers.push(platform.request(Method::GET, &format!("{exchange}/send")).send().await);
    let state = platform.request(Method::PUT, &format!("{exchange}/send/shop/state"));
    answers.push(state.json(&serde_json::json!({"state": "hold"})).send().await);
    answers.push(platform.request(Method::POST, "/v1/subscriptions").json(&line).send().await);
    answers.push(import(&format!("{imports}?application=pings"), &line).await);
    answers.push(import(&format!("{imports}?application=pings&class=every"), &line).await);
    for answer in answers {
        let answer = answer.expect("an answer");
        assert!(answer.status() == 503 && answer.headers().contains_key("retry-after"), "{answer:?}");
    }
    // The other lines of an import are stored, and these can be repeated.
    for (application, code) in [("pings", "unavailable"), ("pongs", "unknown_reference")] {
        let mut line = line.clone();
        line["application"] = application.into();
        let answer = import(imports, &line).await.expect("an answer").text().await.expect("a body");
        assert!(answer.contains(&format!("\"{code}\"")), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_definition_that_does_not_run_is_reported_and_its_clients_repeat() {
    let folder = tempfile::tempdir().expect("a folder");
    let hooks = Hooks::start("{}").await;
    let address = format!("http://127.0.0.1:{}/hook", hooks.port);
    let application = APPLICATION.replace("Bearer hunter2", "\"${TOKEN}\"");
    let exchange = format!(
        "exchange: orders\nreceive: {{ shop: {{ mode: one_way }} }}\nsend:\n  shop:\n    mode: one_way\n    protocol: http\n    \
         options: {{ url: \"{address}\", headers: {{ A: \"${{TOKEN}}\" }}, allow_networks: [127.0.0.1] }}\n\
         routes: {{ every: {{ when: \"true\", to: shop }} }}\n"
    );
    let event = serde_json::json!({"token": "a"});
    let send = async |platform: &Platform| {
        let mut statuses = Vec::new();
        for path in ["/v1/applications/pings/events/ping", "/v1/exchanges/orders/receive/shop"] {
            statuses.push(platform.post(path, &event).await.0);
        }
        statuses
    };
    let environment = [("TOKEN", "Bearer hunter2")];
    let mut platform = Platform::start_in(folder.path(), &environment).await;
    platform.run(&["apply", "--yes", &write(&folder.path().join("pings.yaml"), &application)]);
    platform.run(&["exchange", "apply", "--yes", &write(&folder.path().join("orders.yaml"), &exchange)]);
    platform.subscribe("pings", "every", "alice", "web", &address, serde_json::json!({})).await;
    assert_eq!(send(&platform).await, [202, 202]);
    platform.kill();

    let mut without = Platform::start_in(folder.path(), &[]).await;
    assert_eq!(send(&without).await, [503, 503]);
    let refused = without.request(reqwest::Method::POST, "/v1/applications/pings/events/ping").json(&event);
    let refused = refused.send().await.expect("an answer");
    assert!(refused.headers().contains_key("retry-after"), "{refused:?}");
    assert_eq!(without.post("/v1/applications/pongs/events/ping", &event).await.0, 404);
    other_routes_answer_503(&without).await;
    let warnings = without.get("/readyz").await["warnings"].to_string();
    assert!(warnings.contains("`pings` does not run") && warnings.contains("`orders` does not run"), "{warnings}");
    let attention = without.get("/v1/attention").await;
    let items = attention["items"].as_array().expect("items").iter();
    let texts = items.filter(|item| item["text"].to_string().contains("needs the environment variable `TOKEN`"));
    assert_eq!(texts.count(), 2, "{attention}");
    without.kill();

    let platform = Platform::start_in(folder.path(), &environment).await;
    assert_eq!(platform.get("/readyz").await["warnings"], serde_json::Value::Null);
    assert_eq!(send(&platform).await, [202, 202]);
    platform.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_survives_a_crash_and_the_data_folder_has_neither_its_token_nor_the_password() {
    let mut platform = Platform::start(&[]).await;
    let setup = platform.run(&["console", "open"]);
    assert!(setup.contains("/console/setup#") && setup.contains("creates the first user"), "{setup}");
    let elsewhere = tempfile::tempdir().expect("a folder");
    let password = "correct horse battery staple";
    let file = write(&elsewhere.path().join("password"), &format!("{password}\n"));
    let made = platform.run(&["users", "create", "Ada", "--role", "admin", "--password-file", &file]);
    assert!(made.contains("the user ada is created, with the roles: admin"), "{made}");
    let link = platform.run(&["console", "open"]);
    let link = link.lines().next().and_then(|line| line.split_once("/console/login#")).expect("a login link");
    let body = serde_json::json!({ "token": link.1 });
    let request = platform.client.post(format!("{}/v1/session/token", platform.url)).json(&body);
    let answer = request.send().await.expect("an answer");
    assert_eq!(answer.status(), 200);
    let cookie = answer.headers()["set-cookie"].to_str().expect("text").to_owned();
    let cookie = cookie.split(';').next().expect("a cookie");

    platform.kill();
    platform.restart().await;
    let read = platform.client.get(format!("{}/v1/session", platform.url)).header("cookie", cookie);
    let session: serde_json::Value = read.send().await.expect("an answer").json().await.expect("JSON");
    assert_eq!(session["name"], "ada", "{session}");
    let (_, token) = cookie.split_once('=').expect("a value");
    for entry in std::fs::read_dir(&platform.folder).expect("the folder").map(|entry| entry.expect("an entry").path()) {
        let bytes = std::fs::read(&entry).unwrap_or_default();
        for secret in [token, password, link.1] {
            let found = bytes.windows(secret.len()).any(|part| part == secret.as_bytes());
            assert!(!found, "{} has a secret", entry.display());
        }
    }
    let listed = platform.run(&["users", "sessions", "ada"]);
    let id = session["session_id"].as_str().expect("an id");
    assert!(listed.contains(id), "{listed}");
    platform.run(&["users", "sessions", "--end", id]);
    let read = platform.client.get(format!("{}/v1/session", platform.url)).header("cookie", cookie);
    assert_eq!(read.send().await.expect("an answer").status(), 401);
    let refused = platform.command().args(["users", "disable", "ada"]).output().expect("it runs");
    let output = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && output.contains("last enabled user with the role `admin`"), "{output}");
}
