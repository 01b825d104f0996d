//! Injection: strings that break software, in every position of a message that a template, a channel or an address
//! fills, through the real server to third-party parsers in Python and Node. No user text may add a header field, a
//! recipient, an element, a key, a line or a path segment.

mod messages; // mails, requests and files
mod people; // addresses and locales
mod services; // SMS, chat, inbox and browser services

#[path = "../support/mod.rs"]
mod support;

use std::{
    fs,
    process::{Command, Stdio},
};

use serde_json::{Value, json};
use support::Platform;

/// Big List of Naughty Strings, plus strings that target our formats.
fn strings() -> Vec<String> {
    let list = fs::read_to_string(support::repository("testdata/naughty-strings.json")).expect("the list");
    let list: Vec<String> = serde_json::from_str(&list).expect("the list is JSON");
    assert!(list.len() > 500);
    let own = [
        "harmless",
        "a\r\nBcc: eve@example.org\r\n\r\nbody",
        "a\nX-Eve: 1",
        "a\r\n.\r\nMAIL FROM:<eve@example.org>\r\nRCPT TO:<eve@example.org>\r\nDATA\r\n",
        "=?utf-8?q?=0d=0aBcc:_eve@example.org?=",
        "a\u{2028}b\u{85}c\u{b}d\u{0}e\u{202e}f",
        "</p><script>alert(1)</script>",
        "\" onmouseover=\"alert(1)",
        "' onmouseover='alert(1)",
        "\"}, \"admin\": true, \"x\": {\"y\": \"",
        "{fields.token} {{ token }} {% if x %}",
        "..",
        ".",
        "%2e%2e",
        "../../../etc/passwd",
        "a/../../b?c=d#e&f",
        "@eve.example/",
        "a,\"b\"\r\nc;=1+1",
        "\\n\\",
        "http://eve.example/",
    ];
    own.into_iter().map(str::to_owned).chain(list).collect()
}

/// Publishes an event for each string: `token` is its number, `text` and `more.x` are the string.
async fn publish_all(platform: &Platform, path: &str, strings: &[String]) {
    let event = |(at, text): (usize, &String)| json!({"token": format!("t{at}"), "text": text, "more": {"x": text}});
    let events: Vec<Value> = strings.iter().enumerate().map(event).collect();
    for events in events.chunks(100) {
        let (status, answer) = platform.post(path, &events.into()).await;
        assert_eq!(status, 202, "{answer}");
    }
}

/// Attempts by outcome, once there are `count`.
async fn attempts(platform: &Platform, count: usize) -> Value {
    let waiting = async {
        loop {
            let attempts = platform.get("/v1/status").await["totals"]["attempts"].clone();
            let all: u64 = attempts.as_object().expect("counts").values().filter_map(Value::as_u64).sum();
            if all >= count as u64 {
                return attempts;
            }
            // Receipts have no signal to the outside.
            // Receipts have no external signal.
        }
    };
    tokio::time::timeout(support::wait_timeout(), waiting).await.expect("everything is attempted")
}

/// Significant characters of a text that may be wrapped, with control characters as spaces.
fn significant(text: &str) -> String {
    let is_nothing = |c: char| {
        c.is_whitespace()
            || c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' | '\u{ad}' | '\u{180e}')
    };
    text.chars().filter(|c| !is_nothing(*c)).collect()
}

/// Runs a Python program on lines of JSON; returns its output lines.
fn python(arguments: &[&str], lines: &[String]) -> Vec<Value> {
    let mut command = Command::new(tocsin_test_peers::Peer::Python.path());
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    command.env("PYTHONIOENCODING", "utf-8:surrogatepass");
    let mut child = command.spawn().expect("python3 starts");
    let (mut input, text) = (child.stdin.take().expect("a pipe"), lines.join("\n"));
    let writer = std::thread::spawn(move || std::io::Write::write_all(&mut input, text.as_bytes()));
    let output = child.wait_with_output().expect("an end");
    let _ = writer.join();
    assert!(output.status.success());
    let said = String::from_utf8(output.stdout).expect("UTF-8");
    said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}
