//! Quick runs of figures that are otherwise measured on request only or with external targets: they run, and their
//! result lines describe them.

// Shared with the tests of the server; these use a part of it.
#[allow(dead_code)]
#[path = "../../tocsin/tests/support"]
mod support {
    /// Bound of each wait.
    pub fn wait_timeout() -> std::time::Duration {
        std::time::Duration::from_secs(60)
    }

    pub mod hooks;
    pub mod mails;
}

use std::collections::BTreeSet;

use serde_json::Value;
use support::{hooks::Hooks, mails::Mails};

/// Measures these figures quickly and returns their lines, sorted by name.
async fn measured(figures: &[&str], words: &[&str]) -> Vec<Value> {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("lines.ndjson");
    let run = tokio::process::Command::new(env!("CARGO_BIN_EXE_tocsin-bench"))
        .args(["--quick", "--only", &figures.join(",")])
        .args(words)
        .arg("--folder")
        .arg(folder.path())
        .arg("--out")
        .arg(&out)
        .output()
        .await
        .expect("it runs");
    let log = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{log}");
    // Standard error is not a terminal: each figure and each turn has a plain line.
    for (at, figure) in figures.iter().enumerate() {
        assert!(log.contains(&format!("== {figure} (")), "{}: {log}", at + 1);
    }
    assert!(log.contains("\n   turn 1 of 1\n") && !log.contains('\x1b'), "{log}");
    let lines = std::fs::read_to_string(out).expect("the lines");
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let mut expected = figures.to_vec();
    expected.sort_unstable();
    assert_eq!(lines.iter().map(|line| line["name"].as_str().expect("a name")).collect::<Vec<_>>(), expected);
    for line in &lines {
        assert!(line["value"].as_f64().is_some_and(|value| value > 0.0), "{line}");
        assert!(conditions(line).contains("quick"), "{line}");
    }
    lines
}

fn conditions(line: &Value) -> &str {
    line["conditions"].as_str().expect("conditions")
}

#[tokio::test]
async fn slow_events_are_accepted_by_every_path_of_the_papers() {
    let figures = [
        "intake.file.2000",
        "intake.file.by1",
        "intake.sql.25",
        "intake.sql.2000",
        "intake.sql.by1",
        "intake.sql.by1000",
        "intake.api.5000",
        "intake.api.by10",
    ];
    for line in measured(&figures, &[]).await {
        assert_eq!(line["unit"], "events/s", "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_mails_go_to_an_external_server() {
    let mails = Mails::start().await;
    let server = format!("127.0.0.1:{}", mails.port);
    let lines = measured(&["deliver.smtp", "case.broadcast.10"], &["--smtp", &server]).await;
    for line in &lines {
        let expected = format!("mails to {server}, an external target: arrivals are counted by receipts");
        assert!(conditions(line).contains(&expected) && !conditions(line).contains("smtp-sink"), "{line}");
        assert_eq!(
            line["run"]["settings"].as_str().expect("settings").split(", ").last(),
            Some(&*format!("mails to {server}"))
        );
    }
    let all = mails.all();
    let to = |name: &str| all.iter().flat_map(|mail| &mail.to).filter(|to| to.starts_with(name)).count();
    let recipients: BTreeSet<&String> =
        all.iter().flat_map(|mail| &mail.to).filter(|to| to.starts_with("reader")).collect();
    assert!(
        (0..2_000).all(|number| recipients.contains(&format!("reader{number}@example.org"))),
        "{}",
        recipients.len()
    );
    assert_eq!(to("person"), 10 * 20, "ten people receive twenty broadcasts");
    if lines[1]["peer"] == "smtp-source" {
        assert_eq!(to("reader@"), 2_000 + 1_000, "the peer sends to the same server");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_notifybc_clients_subscribe_and_send() {
    let mails = Mails::start().await;
    let server = format!("127.0.0.1:{}", mails.port);
    let lines = measured(&["notifybc.1k.guaranteed", "notifybc.subscribe"], &["--smtp", &server]).await;
    assert_eq!(mails.all().len(), 2_000, "two broadcasts to a thousand");
    assert_eq!(lines[0]["unit"], "messages/s");
    assert_eq!(lines[0]["peer_value"].as_f64(), Some(371.0), "{}", lines[0]);
    assert_eq!(lines[1]["unit"], "subscriptions/s");
    assert_eq!(measured(&["notifybc.import"], &[]).await[0]["unit"], "subscriptions/s");
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_posts_go_to_an_external_url() {
    let hooks = Hooks::start("").await;
    let url = format!("http://127.0.0.1:{}/hook?key=secret", hooks.port);
    let lines = measured(&["deliver.http"], &["--http", &url]).await;
    let expected = format!("posts to http://127.0.0.1:{}/hook, an external target", hooks.port);
    assert!(conditions(&lines[0]).contains(&expected), "{}", lines[0]);
    assert!(!lines[0].to_string().contains("secret"), "{}", lines[0]);
    let all = hooks.all();
    assert!(all.iter().all(|(address, ..)| address == "/hook?key=secret"));
    let ids: BTreeSet<_> = all.iter().filter_map(|(_, headers, _)| headers.get("webhook-id")?.to_str().ok()).collect();
    // The peer repeats one body, if it is installed.
    assert_eq!(ids.iter().filter(|id| **id != "n-12-3456").count(), 2_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_requests_are_answered_by_an_external_application() {
    let hooks = Hooks::start("{\"type\":\"answer\"}").await;
    let url = format!("http://127.0.0.1:{}/ask", hooks.port);
    let lines = measured(&["exchange.roundtrip", "exchange.tracking1"], &["--application", &url]).await;
    for line in &lines {
        let expected = format!("B is {url}, an external target: responses are counted by the callers");
        assert!(conditions(line).contains(&expected), "{line}");
    }
    assert_eq!(lines[0].get("peer"), None, "brokers use their own applications");
    assert!(hooks.all().iter().all(|(address, ..)| address == "/ask"));
}
