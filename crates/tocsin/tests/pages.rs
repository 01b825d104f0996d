//! Hosted pages in Chromium: axe finds nothing at 390 and 1280 px, light and dark; they work by keyboard alone and without
//! scripts.

mod support;

use std::{
    io::Write,
    process::{Command, Stdio},
};

use serde_json::{Value, json};
use support::{Platform, mails::Mails};
use tocsin_test_peers::{Peer, missing};

fn application(port: u16) -> String {
    format!(
        r##"
application: rescue
description: Alerts for hikers and climbers
events:
  quake: {{fields: {{place: string, magnitude: number}}}}
subscriptions:
  strong: {{fields: {{magnitude: number}}}}
notifications:
  shaken:
    fields: {{place: string}}
    digest: {{window: batch}}
    content: {{templates: {{base: {{subject: 'A quake', text: '{{{{ preferences_link }}}}'}}}}}}
  tsunami:
    critical: true
    fields: {{place: string}}
    content: {{templates: {{base: {{text: '{{{{ place }}}}'}}}}}}
rules:
  near: {{on: quake, subscription: strong, when: event.magnitude >= sub.magnitude, notify: shaken}}
  wave: {{on: quake, subscription: strong, when: event.magnitude >= 9, notify: tsunami}}
channels:
  email: {{protocol: smtp, options: {{host: 127.0.0.1, port: {port}, tls: 'off', from: alerts@example.org}}}}
  sms: {{protocol: file, options: {{path: sms.ndjson}}}}
pages:
  name: Mountain Rescue
  accent: "#c2410c"
  footer: "Mountain Rescue\n1 Summit Road, 6020 Innsbruck"
  imprint: https://rescue.example.org/imprint
  notifications:
    shaken: {{title: Earthquakes, description: Quakes near the places that you chose}}
    tsunami: {{title: Tsunami warnings}}
  subscriptions:
    strong: {{title: Strong quakes, description: As soon as a quake exceeds your limit}}
"##
    )
}

/// The path of the first link in a text.
fn path_of(text: &str, start: &str) -> String {
    let text = text.replace("=\r\n", "");
    let rest = &text[text.find(start).unwrap_or_else(|| panic!("no {start}: {text}"))..];
    rest.split([' ', '\r', '\n', '>']).next().expect("a first part").to_owned()
}

#[tokio::test]
async fn hosted_pages_are_accessible_and_need_no_scripts() {
    if missing(&[Peer::Browser]) {
        return;
    }
    let mails = Mails::start().await;
    let platform = Platform::start(&[("TOCSIN_HTTP_PUBLIC_URL", "https://tocsin.example")]).await;
    platform.apply("rescue", &application(mails.port)).await;
    let ann = json!({"id": "ann", "locale": "en", "time_zone": "Europe/Vienna",
        "preferences": {"quiet_hours": ["22:00-07:00", "12:00-13:30 mo-fr"]},
        "devices": {"home": {"channel": "email", "address": "ann@example.org"}, "phone": {"channel": "sms", "address": "+4366012345678"}}});
    let (status, body) = platform.post("/v1/subscribers", &ann).await;
    assert_eq!(status, 201, "{body}");
    for (key, magnitude) in [("a", 5), ("b", 7)] {
        let strong = json!({"application": "rescue", "class": "strong", "subscriber": "ann", "key": key, "values": {"magnitude": magnitude}});
        let (status, body) = platform.post("/v1/subscriptions", &strong).await;
        assert_eq!(status, 201, "{body}");
    }
    let (status, body) =
        platform.post("/v1/applications/rescue/events/quake", &json!({"place": "Kobe", "magnitude": 6})).await;
    assert_eq!(status, 202, "{body}");
    support::until("the mail has arrived", async || !mails.all().is_empty()).await;
    let mail = mails.all().remove(0);
    let preferences = path_of(mail.body(), "/p/");
    let unsubscribe = path_of(&mail.header("List-Unsubscribe").expect("a link"), "/unsubscribe/");
    // Pages in several states; the last one shows errors.
    let ended = platform.client.post(format!("{}{unsubscribe}", platform.url)).send().await.expect("an answer");
    assert_eq!(ended.status().as_u16(), 200);
    let page = ended.text().await.expect("a page");
    let undo = page.split("name=\"undo\" value=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("an undo");
    let after = format!("{unsubscribe}?done=this&undo={undo}");
    let pages = json!({
        "preferences": preferences,
        "saved": format!("{preferences}?done=save"),
        "unsubscribed": after,
        "unknown": "/p/no-link",
    });
    let result = browse(&platform, &pages, &preferences, &after, &unsubscribe);
    assert_eq!(result["problems"], json!([]), "{result:#}");
    assert_eq!(result["keyboard"], json!([]), "{result:#}");
    assert_eq!(result["inspected"], json!(20));
    let undone = "The change was undone.";
    let steps = ["Your settings were saved.", undone, "You are unsubscribed from “Strong quakes”.", undone];
    assert_eq!(result["steps"], json!(steps));
    let stored = platform.get("/v1/subscribers/ann").await;
    assert_eq!(stored["preferences"]["notifications"], json!({"rescue/shaken": {"enabled": false}}));
    assert_eq!(platform.get("/v1/subscriptions/s-1").await["enabled"], json!(true));
}

fn browse(platform: &Platform, pages: &Value, preferences: &str, ended: &str, unsubscribe: &str) -> Value {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/pages/browser.js");
    let libraries = Peer::Browser.path();
    let input = json!({
        "browser": Peer::Chromium.path(),
        "url": platform.url,
        "pages": pages,
        "preferences": preferences,
        "ended": ended,
        "later": { "unsubscribe": unsubscribe },
        "screenshots": std::env::var("TOCSIN_SCREENSHOTS").ok(),
    });
    let mut child = Command::new(Peer::Node.path())
        .arg(script)
        .env("NODE_PATH", libraries.join("node_modules"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("node starts");
    child.stdin.take().expect("piped").write_all(input.to_string().as_bytes()).expect("written");
    let done = child.wait_with_output().expect("it ends");
    let error = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "node: {}\n{error}", done.status);
    serde_json::from_slice(&done.stdout).expect("a result")
}
