//! Section 8: mails of recipients that unsubscribe, and of servers that report failures.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
};

use serde_json::{Value, json};

use crate::target::{Caller::*, INBOUND_DOMAIN, Target, id, lean, shared, text};

/// An SMTP session.
struct Session {
    replies: BufReader<TcpStream>,
    writer: TcpStream,
}

impl Session {
    fn open(port: u16) -> Session {
        let writer = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
        let replies = BufReader::new(writer.try_clone().expect("a socket"));
        let mut session = Session { replies, writer };
        assert!(session.reply().starts_with("220"));
        assert!(session.command("EHLO mx.example").starts_with("250"));
        session
    }

    fn reply(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.replies.read_line(&mut line).expect("a reply") > 0, "the connection ended");
            if line.as_bytes().get(3) != Some(&b'-') {
                return line.trim_end().to_owned();
            }
        }
    }

    fn command(&mut self, line: &str) -> String {
        self.writer.write_all(format!("{line}\r\n").as_bytes()).expect("written");
        self.reply()
    }

    /// Sends a mail to recipients that are all accepted; returns the last reply.
    fn mail(&mut self, from: &str, recipients: &[String], text: &str) -> String {
        assert!(self.command(&format!("MAIL FROM:<{from}>")).starts_with("250"));
        for recipient in recipients {
            let reply = self.command(&format!("RCPT TO:<{recipient}>"));
            assert!(reply.starts_with("250"), "{recipient}: {reply}");
        }
        assert!(self.command("DATA").starts_with("354"));
        let text = text.replace('\n', "\r\n");
        self.command(&format!("{text}\r\n."))
    }
}

/// Sends one mail to one address of a record with this prefix.
fn send(target: &Target, prefix: &str, record: &Value, from: &str, text: &str) -> String {
    Session::open(target.inbound).mail(from, &[address(prefix, record)], text)
}

/// The address of a record.
fn address(prefix: &str, record: &Value) -> String {
    format!("{prefix}-{}-{}@{INBOUND_DOMAIN}", id(record), text(record, "/unsubscriptionCode"))
}

/// A delivery status notification.
fn report(recipient: &str, status: &str) -> String {
    format!(
        "From: MAILER-DAEMON@mta.example\nSubject: Delivery report\nMIME-Version: 1.0\n\
         Content-Type: multipart/report; report-type=delivery-status; boundary=b\n\n--b\nContent-Type: text/plain\n\n\
         Report\n--b\nContent-Type: message/delivery-status\n\nReporting-MTA: dns; mta.example\n\n\
         Final-Recipient: rfc822; {recipient}\nAction: failed\nStatus: {status}\n\n--b--\n"
    )
}

/// The bounce records of an address.
async fn bounces(target: &Target, address: &str) -> Vec<Value> {
    let found = target.get(&format!("/bounces?filter={{\"where\":{{\"userChannelId\":\"{address}\"}}}}")).await;
    found.as_array().expect("a list").clone()
}

async fn state(target: &Target, record: &Value) -> Value {
    target.subscription(&id(record)).await["state"].clone()
}

#[tokio::test]
async fn s8_recipients_of_other_forms_and_domains_are_refused() {
    let target = shared().await;
    let record = target.subscribe("s8.rcpt", "s8.rcpt@example.org", json!({})).await;
    let valid = address("un", &record);
    let mut session = Session::open(target.inbound);
    assert!(session.command("MAIL FROM:<a@example.org>").starts_with("250"));
    for (recipient, code) in [
        (format!("postmaster@{INBOUND_DOMAIN}"), "550"),
        (format!("xx-{}-1@{INBOUND_DOMAIN}", id(&record)), "550"),
        (format!("un@{INBOUND_DOMAIN}"), "550"),
        (valid.replace(INBOUND_DOMAIN, "elsewhere.example.org"), "550"),
        (valid.clone(), "250"),
        (valid.replace(INBOUND_DOMAIN, "IN.Example.ORG"), "250"),
        (valid.replace(INBOUND_DOMAIN, "second.example.org"), "250"),
        (valid.replacen("un-", "bn-", 1), "250"),
    ] {
        let reply = session.command(&format!("RCPT TO:<{recipient}>"));
        assert!(reply.starts_with(code), "{recipient}: {reply}");
    }
    assert_eq!(state(target, &record).await, "confirmed");
}

#[tokio::test]
async fn s8_un_unsubscribes_the_sender() {
    let target = shared().await;
    let address = "s8.un@example.org";
    let record = target.subscribe("s8.un", address, json!({})).await;
    let mail = format!("From: {address}\nSubject: unsubscribe\n\nbye\n");
    let reply = send(target, "un", &record, "other@example.org", &mail);
    assert!(reply.starts_with(['4', '5']), "{reply}");
    assert_eq!(state(target, &record).await, "confirmed");
    let reply = send(target, "un", &record, &address.to_uppercase(), &mail);
    assert!(reply.starts_with("250"), "{reply}");
    assert_eq!(state(target, &record).await, "deleted");
    assert_eq!(target.mail_to(address).subject(), "Un-subscription acknowledgement");
    let reply = send(target, "un", &record, address, &mail);
    assert!(reply.starts_with(['4', '5']), "{reply}");
}

#[tokio::test]
async fn s8_un_needs_the_code() {
    let target = shared().await;
    let mut record = target.subscribe("s8.code", "s8.code@example.org", json!({})).await;
    record["unsubscriptionCode"] = json!("99999x");
    let reply = send(target, "un", &record, "s8.code@example.org", "Subject: x\n\nx\n");
    assert!(reply.starts_with(['4', '5']), "{reply}");
    assert_eq!(state(target, &record).await, "confirmed");
}

#[tokio::test]
async fn s8_several_recipients_are_handled_each() {
    let target = shared().await;
    let from = "s8.several@example.org";
    let first = target.subscribe("s8.several.1", from, json!({})).await;
    let second = target.subscribe("s8.several.2", from, json!({})).await;
    let recipients = [address("un", &first), address("un", &second)];
    let reply = Session::open(target.inbound).mail(from, &recipients, "Subject: x\n\nx\n");
    assert!(reply.starts_with("250"), "{reply}");
    assert_eq!((state(target, &first).await, state(target, &second).await), (json!("deleted"), json!("deleted")));
}

#[tokio::test]
async fn s8_bn_counts_hard_bounces_and_unsubscribes_beyond_the_threshold() {
    let target = shared().await;
    let address = "s8.bn@example.org";
    let record = target.subscribe("s8.bn", address, json!({})).await;
    let other = target.subscribe("s8.bn.other", address, json!({})).await;
    // The threshold is 2.
    for count in 1..=2 {
        let reply = send(target, "bn", &record, "", &report(address, "5.1.1"));
        assert!(reply.starts_with("250"), "{reply}");
        let found = bounces(target, address).await;
        assert_eq!(found.len(), 1);
        assert_eq!((&found[0]["hardBounceCount"], &found[0]["state"]), (&json!(count), &json!("active")));
        assert_eq!(found[0]["bounceMessages"].as_array().map(Vec::len), Some(count));
        assert!(text(&found[0], "/bounceMessages/0/message").contains("Status: 5.1.1"));
        assert_eq!(state(target, &record).await, "confirmed");
    }
    send(target, "bn", &record, "", &report(address, "5.1.1"));
    let found = bounces(target, address).await;
    assert_eq!((&found[0]["hardBounceCount"], &found[0]["state"]), (&json!(3), &json!("deleted")));
    assert_eq!((state(target, &record).await, state(target, &other).await), (json!("deleted"), json!("deleted")));
}

#[tokio::test]
async fn s8_bn_mails_that_do_not_count_are_kept_in_front() {
    let target = shared().await;
    let address = "s8.soft@example.org";
    let record = target.subscribe("s8.soft", address, json!({})).await;
    let cases = [
        ("first", report(address, "5.2.2"), 1),
        ("soft", report(address, "4.2.2"), 1),
        ("foreign", report("someone.else@example.org", "5.1.1"), 1),
        ("plain", format!("Subject: x\n\nplain: {address} failed with 5.1.1\n"), 2),
        ("plain without a code", format!("Subject: x\n\nplain: {address} failed\n"), 2),
    ];
    for (index, (what, mail, count)) in cases.iter().enumerate() {
        let mail = format!("X-Case: {what}\n{mail}");
        assert!(send(target, "bn", &record, "", &mail).starts_with("250"), "{what}");
        let found = bounces(target, address).await;
        assert_eq!(found[0]["hardBounceCount"], *count, "{what}");
        assert_eq!(found[0]["bounceMessages"].as_array().map(Vec::len), Some(index + 1), "{what}");
        assert!(text(&found[0], "/bounceMessages/0/message").contains(&format!("X-Case: {what}")), "{what}");
    }
    assert_eq!(state(target, &record).await, "confirmed");
}

#[tokio::test]
async fn s8_bn_the_header_names_the_failed_recipient() {
    let target = shared().await;
    let address = "s8.header@example.org";
    let record = target.subscribe("s8.header", address, json!({})).await;
    let mail = format!("X-Failed-Recipients: {address}\n{}", report("other@example.org", "5.1.1"));
    send(target, "bn", &record, "", &mail);
    assert_eq!(bounces(target, address).await[0]["hardBounceCount"], 1);
    let mail = format!("X-Failed-Recipients: other@example.org\n{}", report(address, "5.1.1"));
    send(target, "bn", &record, "", &mail);
    assert_eq!(bounces(target, address).await[0]["hardBounceCount"], 1);
}

#[tokio::test]
async fn s8_bn_for_other_subscriptions_does_nothing() {
    let target = shared().await;
    let address = "s8.other@example.org";
    let record = target.subscribe("s8.other", address, json!({"state": "unconfirmed"})).await;
    assert!(send(target, "bn", &record, "", &report(address, "5.1.1")).starts_with("250"));
    let mut record = target.subscribe("s8.other", address, json!({})).await;
    record["unsubscriptionCode"] = json!("88888x");
    assert!(send(target, "bn", &record, "", &report(address, "5.1.1")).starts_with("250"));
    record["id"] = json!("000000000000000000000000");
    assert!(send(target, "bn", &record, "", &report(address, "5.1.1")).starts_with("250"));
    assert_eq!(bounces(target, address).await.len(), 0);
}

#[tokio::test]
async fn s8_bn_a_deleted_bounce_record_is_not_used_again() {
    let target = shared().await;
    let address = "s8.deleted@example.org";
    let record = target.subscribe("s8.deleted", address, json!({})).await;
    let bounce = json!({"channel": "email", "userChannelId": address, "state": "deleted", "hardBounceCount": 9});
    target.post("/bounces", bounce).await;
    send(target, "bn", &record, "", &report(address, "5.1.1"));
    let mut found: Vec<(Value, Value)> = bounces(target, address)
        .await
        .iter()
        .map(|bounce| (bounce["state"].clone(), bounce["hardBounceCount"].clone()))
        .collect();
    found.sort_by_key(|(state, _)| state.to_string());
    assert_eq!(found, [(json!("active"), json!(1)), (json!("deleted"), json!(9))]);
}

#[tokio::test]
async fn s8_without_a_domain_nothing_is_taken() {
    let target = lean().await;
    let record = target.subscribe("s8.lean", "s8.lean@example.org", json!({})).await;
    if let Ok(socket) = TcpStream::connect(("127.0.0.1", target.inbound)) {
        drop(socket);
        let mut session = Session::open(target.inbound);
        session.command("MAIL FROM:<s8.lean@example.org>");
        let reply = session.command(&format!("RCPT TO:<{}>", address("un", &record)));
        assert!(reply.starts_with("550"), "{reply}");
    }
    target.call(Anonymous, "GET", "/health", None).await.expect(200);
    assert_eq!(state(target, &record).await, "confirmed");
}
