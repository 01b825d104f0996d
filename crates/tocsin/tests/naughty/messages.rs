//! Injection by texts in mails, HTTP requests and files.

use std::{collections::BTreeMap, fs};

use axum::http::HeaderMap;
use serde_json::{Value, json};
use tocsin_test_peers::{Peer, missing};

use crate::{
    attempts, publish_all, python, significant, strings,
    support::{Platform, hooks::Hooks, mails::Mails},
};

const APPLICATION: &str = r#"
application: relay
events: { note: { fields: { token: { type: string, required: true }, text: string, more: map } } }
subscriptions: { every: { fields: {} } }
notifications:
  note:
    fields: { token: string, text: string, more: map }
    content:
      templates:
        base:
          subject: "note {{ text }}"
          text: "token: {{ token }}\n[{{ text }}]\n"
          html: "<p title=\"{{ text }}\" class='{{ more.x }}'>[{{ text }}]</p><a href=\"{{ text|url }}\">{{ more.x }}</a>"
          headers: { X-Note: "{{ text }}", X-Token: "{{ token }}" }
rules: { everyone: { on: note, subscription: every, notify: note } }
channels:
  email: { protocol: smtp, options: { host: 127.0.0.1, port: @SMTP@, tls: off, from: t@example.org }, retry: [] }
  web:
    protocol: http
    options:
      url: "http://127.0.0.1:@HTTP@/hook/{fields.text}/end?q={fields.text|100}&token={fields.token}"
      headers: { X-Field: "{fields.text}", X-Address: "{address}" }
      body: { json: { token: "{fields.token}", text: "{fields.text}", within: "<{fields.text}>", more: "{fields.more}" } }
      allow_networks: [127.0.0.0/8]
    retry: []
  form:
    protocol: http
    options:
      url: "http://127.0.0.1:@HTTP@/form"
      body: { form: { token: "{fields.token}", text: "{fields.text}" } }
      allow_networks: [127.0.0.0/8]
    retry: []
  lines: { protocol: file, options: { path: notes.ndjson } }
  rows: { protocol: file, options: { path: notes.csv, format: csv, columns: [token, data.text, subject, data] } }
  words: { protocol: file, options: { path: notes.txt, format: text } }
"#;

/// Whether a text in place of a path segment would leave it, so that no request is made.
fn is_relative_segment(text: &str) -> bool {
    matches!(text, "." | "..")
}

/// Whether a text is truncated as by `{text|100}`: to at most this many characters, between grapheme clusters.
fn is_cut(found: &str, text: &str, characters: usize) -> bool {
    if text.chars().count() <= characters {
        return found == text;
    }
    found.chars().count() <= characters && found.strip_suffix('…').is_some_and(|begin| text.starts_with(begin))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_string_breaks_out_of_a_mail_a_request_or_a_line() {
    if missing(&[Peer::Python]) {
        return;
    }
    let mails = Mails::start().await;
    let hooks = Hooks::start("").await;
    let platform = Platform::start(&[]).await;
    let definition = APPLICATION.replace("@SMTP@", &mails.port.to_string()).replace("@HTTP@", &hooks.port.to_string());
    platform.apply("relay", &definition).await;
    for (subscriber, channel, address) in [
        ("ann", "email", "ann@example.org"),
        ("bob", "web", "bob"),
        ("cem", "form", "cem"),
        ("dan", "lines", "../dan.txt"),
        ("eva", "rows", "eva"),
        ("fay", "words", "fay"),
    ] {
        platform.subscribe("relay", "every", subscriber, channel, address, json!({})).await;
    }
    let strings = strings();
    publish_all(&platform, "/v1/applications/relay/events/note", &strings).await;
    let attempts = attempts(&platform, 6 * strings.len()).await;
    let climbing = strings.iter().filter(|text| is_relative_segment(text)).count();
    assert_eq!(attempts["refused"], climbing, "{attempts}");
    assert_eq!(attempts["delivered"], 6 * strings.len() - climbing, "{attempts}");
    check_mails(&mails, &strings);
    check_requests(&hooks, &strings);
    check_files(&platform, &strings);
}

fn check_mails(mails: &Mails, strings: &[String]) {
    let raw: Vec<String> = mails.all().iter().map(|mail| json!(mail.text).to_string()).collect();
    assert_eq!(raw.len(), strings.len());
    for mail in mails.all() {
        assert_eq!(mail.to, ["ann@example.org"], "{}", mail.text);
        let head = mail.text.split("\r\n\r\n").next().unwrap_or_default();
        assert!(head.lines().all(|line| line.len() <= 998) && !mail.text.replace("\r\n", "").contains('\r'), "{head}");
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/readers/mails.py");
    let read = python(&[script], &raw);
    assert_eq!(read.len(), strings.len());
    let token = |mail: &Value| -> usize {
        let text = mail["parts"][0]["content"].as_str().expect("text");
        let token = text.lines().find_map(|line| line.strip_prefix("token: t")).unwrap_or_else(|| panic!("{mail}"));
        token.trim().parse().expect("a number")
    };
    let mails: BTreeMap<usize, Value> = read.into_iter().map(|mail| (token(&mail), mail)).collect();
    assert_eq!(mails.len(), strings.len());
    let structure = |mail: &Value| {
        let parts = mail["parts"].as_array().expect("parts");
        let shape = |part: &Value| json!([part["type"], part["name"], part["elements"]]);
        json!([mail["to"], mail["defects"], parts.iter().map(shape).collect::<Vec<_>>()])
    };
    // A header without text is omitted.
    let fields = |mail: &Value| {
        let fields = mail["fields"].as_array().expect("fields").iter();
        fields.filter(|name| *name != "x-note").cloned().collect::<Vec<_>>()
    };
    for (at, mail) in &mails {
        let text = &strings[*at];
        assert_eq!(structure(mail), structure(&mails[&0]), "{text:?}");
        assert_eq!(fields(mail), fields(&mails[&0]), "{text:?}");
        let subject = mail["subject"].as_str().expect("a subject");
        assert!(!subject.contains(['\r', '\n']), "{subject:?}");
        assert_eq!(significant(subject), significant(&format!("note {text}")), "{text:?}");
        let body = mail["parts"][0]["content"].as_str().expect("text");
        assert_eq!(significant(body), significant(&format!("token: t{at}[{text}]")), "{text:?}");
        let page = mail["parts"][1]["content"].as_str().expect("text");
        assert_eq!(significant(page), significant(&format!("[{text}]{text}")), "{text:?}");
    }
}

fn check_requests(hooks: &Hooks, strings: &[String]) {
    let received = hooks.all();
    let names = |headers: &HeaderMap| {
        let mut names: Vec<String> = headers.keys().map(ToString::to_string).collect();
        // A header without text is omitted.
        names.retain(|name| !matches!(name.as_str(), "x-field" | "x-note"));
        names.sort();
        (names, headers.len() - headers.keys_len())
    };
    let (hooks, forms): (Vec<_>, Vec<_>) = received.iter().partition(|(uri, ..)| uri.starts_with("/hook"));
    let sent = strings.iter().filter(|text| !is_relative_segment(text)).count();
    assert_eq!((hooks.len(), forms.len()), (sent, strings.len()), "{:?}", received.first());
    for (uri, headers, body) in &hooks {
        let body: Value = serde_json::from_slice(body).expect("JSON");
        let at: usize = body["token"].as_str().and_then(|token| token[1..].parse().ok()).expect("a token");
        let text = &strings[at];
        let expected =
            json!({"token": format!("t{at}"), "text": text, "within": format!("<{text}>"), "more": {"x": text}});
        assert_eq!(body, expected);
        assert_eq!(names(headers), names(&hooks[0].1), "{text:?}");
        assert_eq!(headers["x-address"], "bob");
        let (path, query) = uri.split_once('?').unwrap_or_else(|| panic!("{uri}"));
        let segments: Vec<&str> = path.split('/').collect();
        assert!(matches!(segments[..], ["", "hook", _, "end"]), "{text:?} in {uri}");
        let pairs: Vec<(String, String)> = url::form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        let [(q, value), token] = &pairs[..] else { panic!("{pairs:?} in {uri}") };
        assert!(q == "q" && is_cut(value, text, 100), "{value:?} of {text:?} in {uri}");
        assert_eq!(*token, ("token".to_owned(), format!("t{at}")), "{uri}");
    }
    for (uri, _, body) in &forms {
        assert_eq!(uri, "/form");
        let pairs: BTreeMap<String, String> = url::form_urlencoded::parse(body).into_owned().collect();
        let at: usize = pairs["token"][1..].parse().expect("a token");
        assert_eq!((pairs.len(), &pairs["text"]), (2, &strings[at]));
    }
}

fn check_files(platform: &Platform, strings: &[String]) {
    let at = |token: &str| -> usize { token[1..].parse().expect("a token") };
    let read = |name: &str| fs::read_to_string(platform.folder.join(name)).expect(name);
    let lines = read("notes.ndjson");
    assert_eq!(lines.lines().count(), strings.len());
    for line in lines.lines() {
        let record: Value = serde_json::from_str(line).expect("JSON");
        let data = &record["data"];
        assert_eq!(data["text"], strings[at(data["token"].as_str().expect("a token"))].as_str());
    }
    let rows = read("notes.csv");
    let script = "import csv, json, sys; csv.field_size_limit(1 << 24)\n\
                  for line in sys.stdin: print(json.dumps(next(csv.reader([json.loads(line)], strict=True), [])))";
    let lines: Vec<String> =
        rows.split("\r\n").filter(|row| !row.is_empty()).map(|row| json!(row).to_string()).collect();
    let rows = python(&["-c", script], &lines);
    assert_eq!(rows.len(), strings.len() + 1);
    for row in &rows[1..] {
        assert_eq!(row.as_array().map(Vec::len), Some(4), "{row}");
        let text = &strings[at(row[0].as_str().expect("a token"))];
        let written = text.replace('\\', "\\\\").replace('\n', "\\n").replace('\r', "\\r");
        // Spreadsheets must not take it for a formula.
        let guard = if text.starts_with(['=', '+', '-', '@', '\t', '\r', '\'']) { "'" } else { "" };
        assert_eq!(row[1], format!("{guard}{written}").as_str());
    }
    assert_eq!(read("notes.txt").lines().count(), strings.len());
    // No string created a file.
    let mut names: Vec<String> = fs::read_dir(&platform.folder)
        .expect("the folder")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("notes") || name.contains("dan") || name.contains("passwd"))
        .collect();
    names.sort();
    assert_eq!(names, ["notes.csv", "notes.ndjson", "notes.txt"]);
}
