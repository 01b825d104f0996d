//! What costs too much, as people meet it: a rule that scans is warned of with its cost when it is applied, a filter that no
//! index answers is refused beyond its quota, a bomb is refused with its place or stopped and counted; by the commands and
//! by the API.

mod support;

use std::fs;

use serde_json::json;
use support::Platform;

const APPLICATION: &str = r#"
application: papers
limits: { unindexed_filters: 0 }
events: { paper: { fields: { title: string, pages: integer, tags: list } } }
attributes: { topic: string }
subscriptions:
  reader: { fields: { pages: integer }, filter: [cel, jmespath, event_pattern] }
  counter: { fields: { pages: integer } }
notifications:
  told: { fields: { title: string }, content: { templates: { base: { text: "{{ title }}" } } } }
rules:
  all: { on: paper, subscription: reader, notify: told }
  odd: { on: paper, subscription: counter, when: size(event.title) % 7 == sub.pages % event.pages, notify: told }
  joined:
    on: paper
    subscription: counter
    notify: told
    sql: SELECT e._event, c._subscription FROM events e, counter c WHERE c.pages * 2 < e.pages
channels: { log: { protocol: file, options: { path: told.ndjson } } }
"#;

/// What a command says, whether it fails or not.
fn said(platform: &Platform, arguments: &[&str]) -> (bool, String) {
    let done = platform.command().args(arguments).stdin(std::process::Stdio::null()).output().expect("it starts");
    let said = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    (done.status.success(), said)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_costs_too_much_is_told_or_refused() {
    let platform = Platform::start(&[]).await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("papers.yaml");
    fs::write(&file, APPLICATION).expect("written");
    let file = file.to_str().expect("a path");

    // Before it is applied and when it is, with what it costs.
    for command in [vec!["check", file], vec!["apply", file, "--yes"]] {
        let (done, said) = said(&platform, &command);
        assert!(done, "{said}");
        let scan = "rules.odd: no index answers: each event is checked against every subscription of `counter`, about a tenth of a second for a million; compare";
        assert!(said.contains(scan), "{said}");
        let query = "rules.joined: no index answers: the query reads every subscription of `counter`";
        assert!(said.contains(query), "{said}");
        assert!(!said.contains("rules.all: no index"), "{said}");
    }

    for subscriber in ["ann", "bob"] {
        platform.subscribe("papers", "reader", subscriber, "log", subscriber, json!({})).await;
    }
    // A filter that no index answers says why it is refused, and what to do.
    let put = |filter: serde_json::Value| {
        let body = json!({"application": "papers", "class": "reader", "subscriber": "ann", "filter": filter});
        let platform = &platform;
        async move { platform.post("/v1/subscriptions", &body).await }
    };
    let (status, answer) = put(json!("size(event.title) > 41")).await;
    assert_eq!(status, 422, "{answer}");
    let problem = &answer["problems"][0];
    assert_eq!(
        (problem["path"].as_str(), problem["message"].as_str(), problem["hint"].as_str()),
        (
            Some("filter"),
            Some(
                "no index answers it: only evaluating it tells whether it matches; and `papers` may have at most 0 such filters"
            ),
            Some("ask for a value that the event must have, or raise `limits.unindexed_filters`")
        ),
        "{answer}"
    );
    // The index answers what is the subscriber's.
    let (status, answer) = put(json!("event.title == subscriber.attributes.topic")).await;
    assert_eq!(status, 201, "{answer}");

    // Bombs, by the line of a file.
    let bombs = [
        (json!("(".repeat(5_000)), "the expression nests deeper than 64 levels"),
        (json!("event.title.matches('(((a{100}){100}){100}){100}')"), "the regular expression is too large"),
        (json!({"dialect": "jmespath", "text": "[?".repeat(1_000)}), "nested more than 64 deep"),
        (json!({"dialect": "event_pattern", "text": r#"{"a":"#.repeat(1_000)}), "nested deeper than 32 levels"),
    ];
    let lines: Vec<String> = bombs
        .iter()
        .map(|(filter, _)| json!({"subscriber": "ann", "class": "reader", "filter": filter}).to_string())
        .collect();
    let list = folder.path().join("bombs.ndjson");
    fs::write(&list, lines.join("\n")).expect("written");
    let import = ["import", "subscriptions", list.to_str().expect("a path"), "--application", "papers"];
    let (done, told) = said(&platform, &import);
    assert!(!done, "{told}");
    for (_, expected) in &bombs {
        assert!(told.contains(expected), "{expected} is missing in {told}");
    }

    // One that is only known when it runs is stopped, counted, and harms nobody else.
    let (status, answer) = put(
        json!({"dialect": "jmespath", "text": format!("title == 'x' && (tags{} | @ == @)", " | [@, @]".repeat(60))}),
    )
    .await;
    assert_eq!(status, 201, "{answer}");
    let tags: Vec<usize> = (0..1_000).collect();
    let (status, answer) =
        platform.post("/v1/applications/papers/events/paper", &json!({"title": "x", "pages": 1, "tags": tags})).await;
    assert_eq!(status, 202, "{answer}");
    let waiting = async {
        loop {
            let status = platform.get("/v1/status").await;
            // Those without a filter are told: both.
            if status["totals"]["attempts"]["delivered"].as_u64() >= Some(2) {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(support::PATIENCE, waiting).await.expect("the others are told");
    let (done, told) = said(&platform, &["rule", "explain", "papers", "odd"]);
    assert!(done && told.contains("looks at every subscription"), "{told}");
}
