//! Injection by addresses and locales of subscribers.

use serde_json::{Value, json};

use crate::{
    strings,
    support::{Platform, mails::Mails},
};

const APPLICATION: &str = r#"
application: relay
events: { note: { fields: { token: { type: string, required: true } } } }
subscriptions: { every: { fields: {} } }
notifications:
  note:
    fields: { token: string }
    content:
      templates:
        base: { subject: "note", text: "token: {{ token }}\n{{ 3.5|number(1) }} {{ subscriber.locale }}\n" }
        de: { subject: "Notiz", text: "token: {{ token }}\n{{ 3.5|number(1) }} {{ subscriber.locale }}\n" }
rules: { everyone: { on: note, subscription: every, notify: note } }
channels: { email: { protocol: smtp, options: { host: 127.0.0.1, port: @SMTP@, tls: off, from: t@example.org }, retry: [] } }
"#;

/// Creates subscribers, each of which may be refused; returns how many exist.
async fn make(platform: &Platform, subscribers: impl Iterator<Item = (String, Value)>) -> usize {
    let mut made = 0;
    for (id, subscriber) in subscribers {
        let (status, answer) = platform.post("/v1/subscribers", &subscriber).await;
        assert!(matches!(status, 201 | 422), "{status}: {answer}");
        if status == 201 {
            let body = json!({"application": "relay", "class": "every", "subscriber": id, "values": {}});
            assert_eq!(platform.post("/v1/subscriptions", &body).await.0, 201);
            made += 1;
        }
    }
    made
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_an_address_adds_no_recipient() {
    let mails = Mails::start().await;
    let platform = Platform::start(&[]).await;
    platform.apply("relay", &APPLICATION.replace("@SMTP@", &mails.port.to_string())).await;
    let own = [
        "ann@example.org>\r\nRCPT TO:<eve@example.org",
        "ann@example.org, eve@example.org",
        "ann@example.org\u{0}eve@example.org",
        "\"ann eve@example.org\"@example.org",
        "<ann@example.org> <eve@example.org>",
        "eve@example.org\r\nRCPT TO:<ann@example.org>",
        "ann@example.org\r\nRCPT TO:<eve@example.org>",
        "-eve@-example.org",
        "ann@example.org\u{2028}Bcc: eve@example.org",
        "ann@example.org NOTIFY=SUCCESS",
        "zoe@example.org",
    ];
    // Each string as a whole address, and before and after the `@`.
    let strings = strings();
    let naughty = strings.iter().flat_map(|text| [format!("{text}@example.org"), format!("ann@{text}"), text.clone()]);
    let addresses: Vec<String> = own.iter().map(|&text| text.to_owned()).chain(naughty).collect();
    let subscriber = |(at, address): (usize, &String)| {
        let id = format!("s{at}");
        let device = json!({"channel": "email", "address": address});
        (id.clone(), json!({"id": id, "devices": {"main": device}}))
    };
    let made = make(&platform, addresses.iter().enumerate().map(subscriber)).await;
    assert!(made > 0);
    let (status, answer) = platform.post("/v1/applications/relay/events/note", &json!({"token": "t"})).await;
    assert_eq!(status, 202, "{answer}");
    platform.settled().await;
    let all = mails.all();
    let attempts = platform.get("/v1/status").await["totals"]["attempts"].clone();
    assert_eq!(attempts["delivered"], all.len(), "{attempts}");
    assert_eq!(attempts["refused"], made - all.len(), "{attempts}");
    assert!(all.iter().any(|mail| mail.to == ["zoe@example.org"]));
    assert!(all.len() > 100, "{} of {made} have a valid address", all.len());
    for mail in &all {
        let [to] = &mail.to[..] else { panic!("{:?}", mail.to) };
        // A comment is not part of an address (RFC 5322, 3.2.2).
        let local = |address: &str| address.split(['@', '(']).next().unwrap_or_default().trim().to_owned();
        let whole = addresses.iter().any(|address| local(address) == local(to));
        assert!(whole && !to.contains("eve"), "{to:?} is not an address of a subscriber");
        assert_eq!(mail.header("bcc"), None, "{}", mail.text);
        let shown = mail.header("to").expect("a recipient");
        assert!(shown == format!("<{to}>") || shown == *to, "{shown} is not {to}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_a_locale_selects_nothing_else() {
    let mails = Mails::start().await;
    let platform = Platform::start(&[]).await;
    platform.apply("relay", &APPLICATION.replace("@SMTP@", &mails.port.to_string())).await;
    let own = ["de", "de-AT", "../../../etc/passwd", "de/../en", "base/de", "de\0", "de\r\nBcc: eve@example.org"];
    let locales: Vec<String> = own.iter().map(|&text| text.to_owned()).chain(strings()).collect();
    let subscriber = |(at, locale): (usize, &String)| {
        let id = format!("s{at}");
        let device = json!({"channel": "email", "address": format!("{id}@example.org")});
        (id.clone(), json!({"id": id, "locale": locale, "devices": {"main": device}}))
    };
    let made = make(&platform, locales.iter().enumerate().map(subscriber)).await;
    let (status, answer) = platform.post("/v1/applications/relay/events/note", &json!({"token": "t"})).await;
    assert_eq!(status, 202, "{answer}");
    platform.settled().await;
    let all = mails.all();
    assert_eq!(all.len(), made, "every stored subscriber is notified");
    for mail in &all {
        let at: usize = mail.to[0][1..].split('@').next().and_then(|number| number.parse().ok()).expect("a number");
        let is_german = locales[at].to_ascii_lowercase().split(['-', '_']).next() == Some("de");
        let expected = if is_german { "Notiz" } else { "note" };
        assert_eq!(mail.header("subject").as_deref(), Some(expected), "{:?}", locales[at]);
        assert_eq!((mail.header("bcc"), mail.to.len()), (None, 1));
    }
}
