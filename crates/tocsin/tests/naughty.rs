//! Strings that break software, in every place of a message that a template or a channel fills, through the real server to
//! far ends that are not ours: what comes out is read by Python's libraries for mail, HTML and CSV. Nothing that somebody
//! wrote may add a header field, a recipient, an element, a key or a line.

mod support;

use std::{
    collections::BTreeMap,
    fs,
    process::{Command, Stdio},
    sync::Arc,
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode, Uri},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use support::{Platform, mails::Mails};
use tokio::sync::watch;

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
      url: "http://127.0.0.1:@HTTP@/hook/{fields.text}/end?q={fields.text}&token={fields.token}"
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
  rows: { protocol: file, options: { path: notes.csv, format: csv, columns: [token, text, subject, data] } }
  words: { protocol: file, options: { path: notes.txt, format: text } }
"#;

/// The Big List of Naughty Strings, and some that aim at what we make.
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

#[derive(Clone)]
struct Hooks {
    /// Address, header fields, body.
    received: Arc<Mutex<Vec<(String, HeaderMap, Bytes)>>>,
    count: watch::Sender<usize>,
}

async fn receive(State(hooks): State<Hooks>, uri: Uri, headers: HeaderMap, body: Bytes) -> StatusCode {
    hooks.received.lock().push((uri.to_string(), headers, body));
    hooks.count.send_modify(|count| *count += 1);
    StatusCode::NO_CONTENT
}

/// What counts of a text that may have been broken into lines, and whose control characters became spaces.
fn essence(text: &str) -> String {
    let is_nothing = |c: char| {
        c.is_whitespace()
            || c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' | '\u{ad}' | '\u{180e}')
    };
    text.chars().filter(|c| !is_nothing(*c)).collect()
}

/// What a program of Python says to lines of JSON.
fn python(arguments: &[&str], lines: &[String]) -> Vec<Value> {
    let mut command = Command::new("python3");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    command.env("PYTHONIOENCODING", "utf-8:surrogatepass");
    let mut child = command.spawn().expect("`make setup` installs Python");
    let (mut input, text) = (child.stdin.take().expect("a pipe"), lines.join("\n"));
    let writer = std::thread::spawn(move || std::io::Write::write_all(&mut input, text.as_bytes()));
    let output = child.wait_with_output().expect("an end");
    let _ = writer.join();
    assert!(output.status.success());
    let said = String::from_utf8(output.stdout).expect("UTF-8");
    said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_breaks_out_of_a_message() {
    let mails = Mails::start().await;
    let hooks = Hooks { received: Arc::default(), count: watch::Sender::new(0) };
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = socket.local_addr().expect("an address").port();
    let router = Router::new().fallback(receive).with_state(hooks.clone());
    tokio::spawn(async move { axum::serve(socket, router).await });
    let platform = Platform::start(&[]).await;
    let definition = APPLICATION.replace("@SMTP@", &mails.port.to_string()).replace("@HTTP@", &port.to_string());
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
    let events: Vec<Value> = strings
        .iter()
        .enumerate()
        .map(|(at, text)| json!({"token": format!("t{at}"), "text": text, "more": {"x": text}}))
        .collect();
    for events in events.chunks(100) {
        let (status, answer) = platform.post("/v1/applications/relay/events/note", &events.into()).await;
        assert_eq!(status, 202, "{answer}");
    }
    let waiting = async {
        loop {
            let attempts = platform.get("/v1/status").await["totals"]["attempts"].clone();
            let all: u64 = attempts.as_object().expect("counts").values().filter_map(Value::as_u64).sum();
            if all >= 6 * strings.len() as u64 {
                return attempts;
            }
            // Receipts have no signal to the outside.
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let attempts = tokio::time::timeout(support::PATIENCE, waiting).await.expect("everything is delivered");
    assert_eq!(attempts["delivered"], 6 * strings.len(), "{attempts}");
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
    // A header without text is left out.
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
        assert_eq!(essence(subject), essence(&format!("note {text}")), "{text:?}");
        let body = mail["parts"][0]["content"].as_str().expect("text");
        assert_eq!(essence(body), essence(&format!("token: t{at}[{text}]")), "{text:?}");
        let page = mail["parts"][1]["content"].as_str().expect("text");
        assert_eq!(essence(page), essence(&format!("[{text}]{text}")), "{text:?}");
    }
}

fn check_requests(hooks: &Hooks, strings: &[String]) {
    let received = hooks.received.lock();
    let names = |headers: &HeaderMap| {
        let mut names: Vec<String> = headers.keys().map(ToString::to_string).collect();
        // One without text is left out.
        names.retain(|name| !matches!(name.as_str(), "x-field" | "x-note"));
        names.sort();
        (names, headers.len() - headers.keys_len())
    };
    let (hooks, forms): (Vec<_>, Vec<_>) = received.iter().partition(|(uri, ..)| uri.starts_with("/hook"));
    assert_eq!((hooks.len(), forms.len()), (strings.len(), strings.len()), "{:?}", received.first());
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
        let wanted = [("q".to_owned(), text.clone()), ("token".to_owned(), format!("t{at}"))];
        assert_eq!(pairs, wanted, "{uri}");
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
        assert_eq!(row[1], written.as_str());
    }
    assert_eq!(read("notes.txt").lines().count(), strings.len());
    // Nothing made a file of its own.
    let mut names: Vec<String> = fs::read_dir(&platform.folder)
        .expect("the folder")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("notes") || name.contains("dan") || name.contains("passwd"))
        .collect();
    names.sort();
    assert_eq!(names, ["notes.csv", "notes.ndjson", "notes.txt"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_adds_no_recipient() {
    let mails = Mails::start().await;
    let platform = Platform::start(&[]).await;
    let definition = APPLICATION.replace("@SMTP@", &mails.port.to_string()).replace("@HTTP@", "1");
    platform.apply("relay", &definition).await;
    let addresses = [
        "ann@example.org>\r\nRCPT TO:<eve@example.org",
        "ann@example.org, eve@example.org",
        "ann@example.org\u{0}eve@example.org",
        "\"ann eve@example.org\"@example.org",
        "<eve@example.org>",
        "-eve@-example.org",
        "ann@example.org\u{2028}Bcc: eve@example.org",
    ];
    for (at, address) in addresses.iter().enumerate() {
        let body = json!({"id": format!("s{at}"), "devices": {"main": {"channel": "email", "address": address}}});
        let (status, answer) = platform.post("/v1/subscribers", &body).await;
        assert!(matches!(status, 201 | 422), "{answer}");
        let body = json!({"application": "relay", "class": "every", "subscriber": format!("s{at}"), "values": {}});
        platform.post("/v1/subscriptions", &body).await;
    }
    platform.subscribe("relay", "every", "zoe", "email", "zoe@example.org", json!({})).await;
    let (status, answer) =
        platform.post("/v1/applications/relay/events/note", &json!({"token": "t", "text": "x"})).await;
    assert_eq!(status, 202, "{answer}");
    assert!(mails.wait_until(|| mails.count() >= 1).await);
    let waiting = async {
        while platform.get("/v1/status").await["backlog"]["notifications"].as_u64().unwrap_or(0) > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(support::PATIENCE, waiting).await.expect("nothing is open");
    let all = mails.all();
    assert_eq!(all.iter().map(|mail| mail.to.clone()).collect::<Vec<_>>(), [["zoe@example.org"]]);
    assert!(all.iter().all(|mail| !mail.text.contains("eve@")));
}
