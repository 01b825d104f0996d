//! Expensive definitions are reported before they delay others: rules that scan all subscriptions, filters without
//! index support, and filters that are too large.

mod support;

use std::{fs, process::Stdio};

use serde_json::{Value, json};
use support::Platform;

const APPLICATION: &str = r"
application: quakes
events:
  quake: {fields: {place: string, magnitude: number, tags: list}}
subscriptions:
  asked: {fields: {least: number}, filter: cel}
  others: {fields: {place: string}}
notifications:
  strong_wind: {fields: {place: string}, content: {templates: {base: {text: '{{ place }}'}}}}
rules:
  strong: {on: quake, subscription: asked, notify: strong_wind, when: event.magnitude >= sub.least}
  elsewhere: {on: quake, subscription: others, notify: strong_wind, when: event.place != sub.place}
channels:
  file: {protocol: file, options: {path: notifications.ndjson}}
";

/// Output of a command, successful or not.
fn run_command(platform: &Platform, arguments: &[&str]) -> (bool, String) {
    let done = platform.command().args(arguments).stdin(Stdio::null()).output().expect("the binary starts");
    let text = [done.stdout, done.stderr].map(|bytes| String::from_utf8(bytes).expect("output is UTF-8")).concat();
    (done.status.success(), text)
}

async fn subscribe(platform: &Platform, filter: &str) -> (u16, Value) {
    let subscription = json!({
        "application": "quakes", "class": "asked", "subscriber": "ann", "values": {"least": 5}, "filter": filter,
    });
    platform.post("/v1/subscriptions", &subscription).await
}

/// Problems of a refusal, one per line.
fn problems((status, answer): (u16, Value)) -> String {
    assert_eq!(status, 422, "{answer}");
    let line = |problem: &Value| {
        let text = |key: &str| problem[key].as_str().unwrap_or_default().to_owned();
        let position = problem["line"].as_u64().zip(problem["column"].as_u64());
        let position = position.map(|(line, column)| format!("{line}:{column} ")).unwrap_or_default();
        format!("{position}{}: {} ({})", text("path"), text("message"), text("hint"))
    };
    answer["problems"].as_array().expect("problems").iter().map(line).collect::<Vec<_>>().join("\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expensive_rules_and_filters_are_reported_with_the_reason() {
    let platform = Platform::start(&[]).await;
    let file = platform.folder.join("quakes.yaml");
    fs::write(&file, APPLICATION).expect("a definition");
    let path = file.to_str().expect("a path");

    // A rule that scans is reported with its cost, before it is applied and afterwards.
    for arguments in [vec!["check", path], vec!["apply", path, "--yes"], vec!["rule", "explain", "quakes"]] {
        let (done, text) = run_command(&platform, &arguments);
        assert!(done && text.contains("each event is checked against every subscription of `others`"), "{text}");
        assert!(text.contains("for a million") && text.contains("compare a field of the event"), "{text}");
        assert!(!text.contains("subscription of `asked`"), "{text}");
    }

    let (status, answer) = platform.post("/v1/subscribers", &json!({"id": "ann"})).await;
    assert_eq!(status, 201, "{answer}");
    // A filter without index support is accepted up to the limit, and listed.
    let (status, answer) = subscribe(&platform, "size(event.tags) > 3").await;
    assert_eq!(status, 201, "{answer}");
    let (done, text) = run_command(&platform, &["rule", "unindexed", "quakes"]);
    assert!(done && text.contains("only evaluating it decides"), "{text}");
    assert!(text.contains("cel:size(event.tags) > 3"), "{text}");

    // Above the limit it is refused, single or in an import.
    fs::write(&file, APPLICATION.replace("events:\n", "limits: {unindexed_filters: 0}\nevents:\n"))
        .expect("a definition");
    platform.run(&["apply", path, "--yes"]);
    assert_eq!(
        problems(subscribe(&platform, "event.magnitude * 2.0 > 9.0").await),
        "filter: no index answers it: only evaluating it decides whether it matches; and `quakes` may have at most 0 such \
         filters (ask for a value that the event must have, or raise `limits.unindexed_filters`)"
    );
    let lines = platform.folder.join("subscriptions.ndjson");
    let line = |filter: &str| json!({"subscriber": "ann", "values": {"least": 1}, "filter": filter}).to_string();
    let two = [line("event.place != 'Lima'"), line("event.place == 'Kobe'")].join("\n");
    fs::write(&lines, two).expect("subscriptions");
    let lines = lines.to_str().expect("a path");
    let (done, text) =
        run_command(&platform, &["import", "subscriptions", lines, "--application", "quakes", "--class", "asked"]);
    assert!(!done && text.contains("2 lines: 1 stored, 1 refused"), "{text}");
    assert!(text.contains(":1: ") && text.contains("it requires no value of an event"), "{text}");

    // A filter that is too large is reported with its position.
    assert_eq!(
        problems(subscribe(&platform, "event.place.matches('(((a{100}){100}){100}){100}')").await),
        "1:21 filter: the regular expression is too large ()"
    );
}

/// Path with numbers in place of ids, in every spelling of ids.
fn filled(path: &str, number: &str) -> Vec<String> {
    let spellings = ["{n}", "eb-{n}", "e-{n}-0", "nb-{n}", "n-{n}-0", "w-{n}", "s-{n}", "b-{n}", "m-{n}"];
    let ids = ["{id}", "{message}", "{item}", "{number}", "{subscriber}"];
    if !ids.iter().any(|id| path.contains(id)) {
        return Vec::new();
    }
    let fill = |spelling: &&str| {
        let id = spelling.replace("{n}", number);
        let named = ids.iter().fold(path.to_owned(), |path, part| path.replace(part, &id));
        named.replace("{application}", "quakes").replace("{resources}", "Users").replace(['{', '}'], "")
    };
    spellings.iter().map(fill).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c6_no_number_in_a_path_causes_a_server_error() {
    let platform = Platform::start(&[("TOCSIN_LDAP_SCIM", "true")]).await;
    let file = platform.folder.join("quakes.yaml");
    fs::write(&file, APPLICATION).expect("a definition");
    platform.run(&["apply", file.to_str().expect("a path"), "--yes"]);
    let key = fs::read_to_string(platform.folder.join("admin.key")).expect("a key");
    let send_request = async |method: &str, path: &str| {
        let method = reqwest::Method::from_bytes(method.to_uppercase().as_bytes()).expect("a method");
        let request = platform.client.request(method, format!("{}{path}", platform.url)).bearer_auth(key.trim());
        request.header("content-type", "application/json").body("{}").send().await.expect("an answer").status()
    };
    let document = platform.client.get(format!("{}/openapi.json", platform.url)).send().await.expect("an answer");
    let document: Value = serde_json::from_slice(&document.bytes().await.expect("a body")).expect("JSON");
    let (mut asked, mut failed) = (0, Vec::new());
    for (path, item) in document["paths"].as_object().expect("paths") {
        for number in ["9223372036854775807", "9223372036854775808", "18446744073709551615", "36893488147419103232"] {
            for path in filled(path, number) {
                for method in item.as_object().expect("methods").keys() {
                    asked += 1;
                    let status = send_request(method, &path).await;
                    if status.is_server_error() {
                        failed.push(format!("{method} {path}: {status}"));
                    }
                }
            }
        }
    }
    assert!(asked > 1_000, "{asked}");
    // Cursors are numbers too.
    for number in ["9223372036854775807", "9223372036854775808", "18446744073709551615"] {
        for path in [
            "/v1/event-batches?before={n}",
            "/v1/event-batches?before=eb-{n}",
            "/v1/notification-batches?before=nb-{n}",
            "/v1/firings?after={n}",
            "/v1/suspensions?after={n}",
            "/v1/suspensions?id={n}",
            "/v1/reports/quantum-list?before={n}",
            "/v1/reports/quantum-details?id={n}",
            "/v1/reports/event-batch-list?before=eb-{n}",
            "/v1/reports/failed-notifications?before={n}.0",
            "/v1/reports/subscription?id=s-{n}",
            "/v1/sync/history?before={n}",
            "/v1/messages?after={n}",
        ] {
            let path = path.replace("{n}", number);
            let status = send_request("GET", &path).await;
            if status.is_server_error() {
                failed.push(format!("GET {path}: {status}"));
            }
        }
    }
    assert_eq!(failed, Vec::<String>::new());
}
