//! Injection by texts in SMS, chat, inbox and browser messages.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tocsin_test_peers::{Peer, missing};

use crate::{
    attempts, publish_all, significant, strings,
    support::{Platform, hooks::Hooks, push},
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
          subject: "{{ token }} {{ text }}"
          text: "token: {{ token }} [{{ text }}]"
          sms: "token: {{ token }} [{{ text }}]"
rules: { everyone: { on: note, subscription: every, notify: note } }
channels:
  bell: { protocol: inbox, options: { retention: 1h } }
  push:
    protocol: webpush
    options:
      public_key: ${VAPID_PUBLIC_KEY}
      private_key: ${VAPID_PRIVATE_KEY}
      subject: mailto:ops@example.org
      allow_networks: [127.0.0.1]
"#;

/// Recipes with their parameters, and the address of a device.
fn recipes(origin: &str) -> [(&'static str, Value, String); 8] {
    let server = json!(origin);
    [
        (
            "twilio",
            json!({"account": "AC1", "token": "t", "from": "+15005550006", "server": server}),
            "+43660".to_owned(),
        ),
        ("vonage", json!({"key": "k", "secret": "s", "from": "Us", "server": server}), "43660".to_owned()),
        ("slack", json!({}), format!("{origin}/slack")),
        ("slack_bot", json!({"token": "t", "server": server}), "C1".to_owned()),
        ("teams", json!({}), format!("{origin}/teams")),
        ("discord", json!({}), format!("{origin}/discord")),
        ("telegram", json!({"token": "1:t", "server": server}), "@news".to_owned()),
        ("apprise", json!({"server": server}), "matrix://u:p@h/!r".to_owned()),
    ]
}

/// Response that every recipe takes for a successful delivery.
const ACCEPTED: &str =
    r#"{"ok": true, "sid": "SM1", "status": "queued", "messages": [{"status": "0", "message-id": "1"}]}"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_no_string_breaks_out_of_sms_chat_inbox_and_browser_messages() {
    if missing(&[Peer::PushLibraries]) {
        return;
    }
    let hooks = Hooks::start(ACCEPTED).await;
    let origin = format!("http://127.0.0.1:{}", hooks.port);
    let made = std::process::Command::new(env!("CARGO_BIN_EXE_tocsin")).args(["vapid-key", "--json"]).output();
    let keys: Value = serde_json::from_slice(&made.expect("it runs").stdout).expect("JSON");
    let key = |name: &str| keys[name].as_str().expect("a key").to_owned();
    let (public, private) = (key("public_key"), key("private_key"));
    let platform = Platform::start(&[("VAPID_PUBLIC_KEY", &public), ("VAPID_PRIVATE_KEY", &private)]).await;
    let mut definition = APPLICATION.to_owned();
    for (recipe, with, _) in recipes(&origin) {
        let options = json!({"recipe": recipe, "with": with, "allow_networks": ["127.0.0.0/8"]});
        let channel = json!({"protocol": "http", "options": options, "retry": []});
        definition.push_str(&format!("  {recipe}: {channel}\n"));
    }
    platform.apply("relay", &definition).await;
    for (recipe, _, address) in recipes(&origin) {
        platform.subscribe("relay", "every", recipe, recipe, &address, json!({})).await;
    }
    platform.subscribe("relay", "every", "gil", "bell", "gil", json!({})).await;
    platform.subscribe("relay", "every", "hal", "push", &push::address(&format!("{origin}/push")), json!({})).await;

    let strings = strings();
    publish_all(&platform, "/v1/applications/relay/events/note", &strings).await;
    let channels = recipes(&origin).len() + 2;
    let attempts = attempts(&platform, channels * strings.len()).await;
    assert_eq!(attempts["delivered"], channels * strings.len(), "{attempts}");

    let received = hooks.all();
    let of = |path: &str| received.iter().filter(|(uri, ..)| uri == path).collect::<Vec<_>>();
    for (path, pointer) in [
        ("/slack", "/text"),
        ("/api/chat.postMessage", "/text"),
        ("/teams", "/attachments/0/content/body/1/text"),
        ("/discord", "/content"),
        ("/bot1:t/sendMessage", "/text"),
        ("/notify", "/body"),
    ] {
        let bodies = of(path).into_iter().map(|(_, _, body)| serde_json::from_slice(body).expect("JSON")).collect();
        check_json(path, pointer, bodies, &strings);
    }
    for (path, field) in [("/2010-04-01/Accounts/AC1/Messages.json", "Body"), ("/sms/json", "text")] {
        let bodies: Vec<Value> = of(path).into_iter().map(|(_, _, body)| form(body)).collect();
        check_json(path, &format!("/{field}"), bodies, &strings);
    }
    check_browser(&of("/push"), &origin, &strings);
    check_feed(&platform, &strings).await;
}

/// Form as an object; a repeated name would be lost and fail the test.
fn form(body: &[u8]) -> Value {
    let entries: Vec<(String, String)> = url::form_urlencoded::parse(body).into_owned().collect();
    let object: BTreeMap<String, String> = entries.iter().cloned().collect();
    assert_eq!(object.len(), entries.len(), "{entries:?}");
    json!(object)
}

/// Index of the string in a text.
fn index_in(text: &str) -> usize {
    let token = text.split("token: t").nth(1).unwrap_or_else(|| panic!("no token in {text:?}"));
    token.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no number in {text:?}"))
}

/// Document without its texts.
fn shape(value: &Value) -> Value {
    match value {
        Value::Object(object) => object.iter().map(|(key, value)| (key.clone(), shape(value))).collect(),
        Value::Array(items) => items.iter().map(shape).collect(),
        Value::String(_) => json!("text"),
        other => other.clone(),
    }
}

/// Checks that documents have the shape of the harmless one, and contain the string only at `pointer`.
fn check_json(path: &str, pointer: &str, documents: Vec<Value>, strings: &[String]) {
    let text = |document: &Value| document.pointer(pointer).and_then(Value::as_str).expect("a text").to_owned();
    let documents: BTreeMap<usize, Value> =
        documents.into_iter().map(|document| (index_in(&text(&document)), document)).collect();
    assert_eq!(documents.len(), strings.len(), "{path}");
    let harmless = shape(&documents[&0]);
    for (at, document) in &documents {
        assert_eq!(shape(document), harmless, "{path}: {:?}", strings[*at]);
        // Slack reads three characters as markup, so they are sent as entities.
        let said = match path {
            "/slack" | "/api/chat.postMessage" => {
                let text = text(document);
                assert!(!text.contains(['<', '>']), "{text}");
                text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
            }
            _ => text(document),
        };
        assert_eq!(significant(&said), significant(&format!("token: t{at} [{}]", strings[*at])), "{path}");
    }
}

fn check_browser(requests: &[&crate::support::hooks::Request], origin: &str, strings: &[String]) {
    let field = |headers: &axum::http::HeaderMap| headers["authorization"].to_str().expect("text").to_owned();
    let requests: Vec<Value> =
        requests.iter().map(|(_, headers, body)| push::request(body, &field(headers), origin)).collect();
    let read = push::read(&requests);
    assert_eq!(read.len(), strings.len());
    for message in read {
        let message: Value = serde_json::from_str(message["text"].as_str().expect("a text")).expect("JSON");
        let keys: Vec<&String> = message.as_object().expect("an object").keys().collect();
        assert_eq!(keys, ["id", "title", "body", "data"], "{message}");
        let at = index_in(message["body"].as_str().expect("a text"));
        let text = &strings[at];
        assert_eq!(message["data"], json!({"token": format!("t{at}"), "text": text, "more": {"x": text}}));
        assert_eq!(significant(message["title"].as_str().expect("a text")), significant(&format!("t{at} {text}")));
    }
}

async fn check_feed(platform: &Platform, strings: &[String]) {
    let (mut after, mut seen) = (String::new(), 0);
    loop {
        let page = platform.get(&format!("/v1/subscribers/gil/inbox?state=all&limit=100{after}")).await;
        for item in page["items"].as_array().expect("items") {
            let at = index_in(item["text"].as_str().expect("a text"));
            let text = &strings[at];
            assert_eq!(item["data"], json!({"token": format!("t{at}"), "text": text, "more": {"x": text}}));
            assert_eq!(significant(item["subject"].as_str().expect("a text")), significant(&format!("t{at} {text}")));
            assert!(item["actions"] == json!([]) && item.get("link").is_none() && item.get("html").is_none(), "{item}");
            seen += 1;
        }
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(seen, strings.len());
}
