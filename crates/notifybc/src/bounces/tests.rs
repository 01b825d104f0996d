//! Statements of section 8 of the specification.

use serde_json::{Value, json};

use super::*;
use crate::{configuration::Configuration, record::parse_date};

fn document(value: Value) -> Document {
    value.as_object().expect("an object").clone()
}

fn now() -> Timestamp {
    parse_date("2026-11-29T08:00:00Z").expect("a date")
}

fn options(more: Value) -> BounceOptions {
    Configuration::parse(&document(json!({"email": {"bounce": more}}))).email.bounce
}

#[test]
fn s8_recipients_of_inbound_mail() {
    let domains = ["inbound.ca".to_owned()];
    let parse = |address: &str| InboundRecipient::parse(address, &domains);
    let expected = InboundRecipient { kind: InboundKind::Unsubscription, id: "5f".into(), code: "12-345".into() };
    assert_eq!(parse("un-5F-12-345@INBOUND.ca"), Some(expected));
    assert_eq!(
        parse("bn-5f-@inbound.ca").map(|recipient| (recipient.kind, recipient.code)),
        Some((InboundKind::Bounce, String::new()))
    );
    for address in
        ["un-5f-1@other.ca", "xx-5f-1@inbound.ca", "un-5f@inbound.ca", "un--1@inbound.ca", "un", "é-@inbound.ca"]
    {
        assert_eq!(parse(address), None, "{address}");
    }
    assert!(InboundRecipient::parse("un-5f-1@any.ca", &[]).is_some());
}

const NDR: &str = "From: mailer@x.ca\r\nTo: bn-5f-1@inbound.ca\r\nSubject: Delivery failed\r\nMIME-Version: 1.0\r\n\
    Content-Type: multipart/report; report-type=delivery-status; boundary=b\r\n\r\n--b\r\n\
    Content-Type: text/plain\r\n\r\n\
    to someone@else.ca\r\n--b\r\nContent-Type: message/delivery-status\r\n\r\nReporting-MTA: dns; x\r\n\r\n\
    Final-Recipient: rfc822; ann@x.ca\r\nStatus: 5.1.1\r\n\r\n--b--\r\n";

#[test]
fn s8_parts_of_a_bounce() {
    let mail = BounceMail::parse(NDR.as_bytes()).expect("a mail");
    assert_eq!(mail.subject.as_deref(), Some("Delivery failed"));
    assert!(mail.body().contains("Final-Recipient"), "{mail:?}");
    assert!(mail.plain.as_deref().is_some_and(|text| text.contains("someone@else.ca")));
    let html =
        BounceMail::parse(b"Subject: s\r\nX-Failed-Recipients: a@x.ca\r\nContent-Type: text/html\r\n\r\n<b>5.0.0</b>")
            .expect("a mail");
    assert_eq!(
        (html.body().trim(), html.failed_recipients.as_deref(), html.plain.as_deref()),
        ("<b>5.0.0</b>", Some("a@x.ca"), None)
    );
}

#[test]
fn s8_counted_bounces() {
    let mail = BounceMail::parse(NDR.as_bytes()).expect("a mail");
    assert!(counts(&options(json!({})), &mail, "ann@x.ca"));
    assert!(!counts(&options(json!({})), &mail, "bob@x.ca"), "another recipient failed");
    assert!(counts(&options(json!({"failedRecipientRegex": ""})), &mail, "bob@x.ca"), "the recipient cannot be known");
    assert!(counts(&options(json!({"subjectRegex": "fail"})), &mail, "ann@x.ca"));
    assert!(!counts(&options(json!({"subjectRegex": "^Undeliverable"})), &mail, "ann@x.ca"));
    assert!(!counts(&options(json!({"smtpStatusCodeRegex": "4\\.\\d\\.\\d"})), &mail, "ann@x.ca"));
    let header = BounceMail { failed_recipients: Some("bob@x.ca".into()), ..mail };
    assert!(!counts(&options(json!({})), &header, "ann@x.ca"), "the header precedes the body");
}

#[test]
fn s8_bounces_go_to_the_front_and_count() {
    let options = options(json!({"unsubThreshold": 1}));
    let first = bounced(&options, None, "ann@x.ca", "mail 1", true, now());
    assert_eq!(
        Value::Object(first.changes.clone()),
        json!({"hardBounceCount": 1, "channel": "email", "userChannelId": "ann@x.ca",
        "bounceMessages": [{"date": "2026-11-29T08:00:00.000Z", "message": "mail 1"}]})
    );
    assert!(!first.unsubscribes);
    let second = bounced(&options, Some(&first.changes), "ann@x.ca", "mail 2", false, now());
    assert_eq!((&second.changes["hardBounceCount"], second.unsubscribes), (&json!(1), false));
    assert_eq!(second.changes["bounceMessages"][0]["message"], "mail 2");
    assert_eq!(second.changes.get("channel"), None);
    let third = bounced(&options, Some(&second.changes), "ann@x.ca", "mail 3", true, now());
    assert!(third.unsubscribes, "greater than the threshold");
    let large = "x".repeat(MESSAGE_BYTES_MAX);
    let fourth = bounced(&options, Some(&third.changes), "ann@x.ca", &large, true, now());
    assert_eq!(fourth.changes["bounceMessages"].as_array().map(Vec::len), Some(1));
    let subscription = |more: Value| {
        let mut record = document(json!({"channel": "email", "state": "confirmed", "unsubscriptionCode": "1"}));
        record.extend(document(more));
        takes_bounce(&record, "1")
    };
    assert!(subscription(json!({})));
    for more in [json!({"state": "deleted"}), json!({"channel": "sms"}), json!({"unsubscriptionCode": "2"})] {
        assert!(!subscription(more.clone()), "{more}");
    }
}

#[test]
fn s9_1_cleared_bounces() {
    let cleared = |more: Value| {
        let mut record = document(json!({"state": "active", "latestNotificationStarted": "2026-11-29T06:00:00.000Z",
            "latestNotificationEnded": "2026-11-29T06:30:00.000Z",
                "bounceMessages": [{"date": "2026-11-28T00:00:00.000Z"}]}));
        record.extend(document(more));
        is_cleared(&record, 1.0, now())
    };
    assert!(cleared(json!({})));
    for more in [
        json!({"state": "deleted"}),
        json!({"latestNotificationEnded": "2026-11-29T07:30:00.000Z"}),
        json!({"latestNotificationEnded": null}),
        json!({"latestNotificationStarted": null}),
        json!({"bounceMessages": [{"date": "2026-11-29T06:10:00.000Z"}]}),
        json!({"bounceMessages": []}),
    ] {
        assert!(!cleared(more.clone()), "{more}");
    }
}
