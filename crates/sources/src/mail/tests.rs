use std::{
    net::TcpListener,
    ops::Range,
    path::PathBuf,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use serde_json::{Value, json};
use tocsin_test_peers::{Peer, missing, reserved_port};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    process::{Child, Command},
};

use crate::{
    conformance::{Oversize, Subject, exercise},
    source::{Message, SourceOutput},
    testing::{Harness, shown},
};

/// A source on a free port, whose events have the subject of a mail as `id`.
fn mailbox(more: Value) -> (Harness, u16) {
    let port = reserved_port();
    let mut options = json!({
        "listen": format!("127.0.0.1:{port}"),
        "recipients": ["*@alarms.example"],
        "fields": {"id": "subject", "magnitude": "headers.x-magnitude", "tags": "recipients"},
    });
    let given = more.as_object().expect("an object").clone();
    options.as_object_mut().expect("an object").extend(given);
    (Harness::new("mail", options), port)
}

/// The mail of an earthquake.
const QUAKE: &str = "From: Meter <meter@example.org>\r\nTo: quakes@alarms.example\r\nSubject: =?utf-8?Q?K=C5=8Dbe?=\r\n\
    Message-ID: <1@example.org>\r\nDate: Sun, 22 Nov 2026 10:00:00 +0000\r\nX-Magnitude: 6.1\r\n\r\nIt shook.\r\n";

/// The event of this mail.
const KOBE: &str = r#"{"id":"Kōbe","magnitude":6.1,"tags":["quakes@alarms.example"]}"#;

impl Harness {
    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.data.path().join(name);
        std::fs::write(&path, text).expect("written");
        path
    }

    /// curl, which sends a mail. It retries the connection until the server listens.
    fn curl(&self, port: u16, to: &str, mail: &str, more: &[&str]) -> Child {
        let file = self.file("mail", mail);
        Command::new(Peer::Curl.path())
            .args(["-sv", "--retry", "20", "--retry-connrefused", "--retry-delay", "1", "--max-time", "50"])
            .args(["--mail-from", "meter@example.org", "--mail-rcpt", to, "--upload-file"])
            .arg(file)
            .arg(format!("smtp://127.0.0.1:{port}/meter.example.org"))
            .args(more)
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("curl starts")
    }
}

/// Whether a client succeeded, and the protocol output.
async fn ended(client: Child) -> (bool, String) {
    let output = client.wait_with_output().await.expect("it ends");
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The response to a client whose mail is rejected.
async fn refused(harness: &mut Harness, client: Child) -> String {
    let client = tokio::spawn(ended(client));
    while !client.is_finished() {
        if let Ok(batch) = tokio::time::timeout(std::time::Duration::from_millis(5), harness.source().next()).await {
            assert_eq!(batch.expect("a batch").events.count(), 0);
            harness.source().accepted().await.expect("confirmed");
        }
    }
    let (content, reply) = client.await.expect("it ended");
    assert!(!content, "{reply}");
    reply
}

#[tokio::test]
async fn curl_succeeds_when_its_event_is_accepted() {
    if missing(&[Peer::Curl]) {
        return;
    }
    let (mut harness, port) = mailbox(json!({}));
    let mut curl = harness.curl(port, "Quakes@Alarms.example", QUAKE, &[]);
    let batch = harness.next().await;
    assert_eq!(shown(&batch.events), [KOBE.replace("quakes@a", "Quakes@A")]);
    assert!(batch.since.is_some() && batch.refused.is_empty());
    assert!(curl.try_wait().expect("it runs").is_none(), "it waits for its answer");
    harness.commit(batch.marks);
    harness.source().accepted().await.expect("confirmed");
    let (content, reply) = ended(curl).await;
    assert!(content && reply.contains("250 2.0.0 accepted"), "{reply}");
    harness.source().close().await;
}

#[tokio::test]
async fn a_mail_is_an_event_once_despite_crashes() {
    if missing(&[Peer::Curl]) {
        return;
    }
    let (mut harness, port) = mailbox(json!({}));
    let first = harness.curl(port, "quakes@alarms.example", QUAKE, &[]);
    assert_eq!(harness.next().await.events.count(), 1);
    harness.crash();
    assert!(!ended(first).await.0, "nothing was accepted");

    let second = harness.curl(port, "quakes@alarms.example", QUAKE, &[]);
    let batch = harness.next().await;
    assert_eq!(shown(&batch.events), [KOBE], "so it is still an event");
    harness.commit(batch.marks);
    harness.crash();
    assert!(!ended(second).await.0, "it was not acknowledged");

    // A relay adds a header.
    let third = harness.curl(port, "quakes@alarms.example", &format!("Received: from a by b\r\n{QUAKE}"), &[]);
    assert_eq!(harness.take().await, [""; 0], "a repeated mail gives no event");
    assert!(ended(third).await.0);
    for other in [
        QUAKE.replace("<1@", "<2@"),
        QUAKE.replace("It shook", "It shook again"),
        QUAKE.replace("10:00:00", "10:00:01"),
        QUAKE.replace("Message-ID: <1@example.org>\r\n", ""),
        QUAKE.replace("Message-ID: <1@example.org>\r\n", ""),
    ] {
        let curl = harness.curl(port, "quakes@alarms.example", &other, &[]);
        assert_eq!(harness.take().await, [KOBE], "{other}");
        assert!(ended(curl).await.0);
    }
    let elsewhere = harness.curl(port, "others@alarms.example", QUAKE, &[]);
    assert_eq!(harness.take().await.len(), 1, "the same mail to another recipient is an event");
    assert!(ended(elsewhere).await.0);
}

#[tokio::test]
async fn rejections_have_a_response() {
    if missing(&[Peer::Curl]) {
        return;
    }
    let (mut harness, port) = mailbox(json!({"automatic": "refuse", "mail_bytes_max": 2_000, "item_bytes_max": 1_000}));
    let mut check = async |to: &str, mail: &str, expected: &str| {
        let curl = harness.curl(port, to, mail, &[]);
        let reply = refused(&mut harness, curl).await;
        assert!(reply.contains(expected), "{reply}");
    };
    check("quakes@elsewhere.example", QUAKE, "550 5.1.1 this address does not accept mail").await;
    let no_id = QUAKE.replace("Subject", "X-Subject");
    check("a@alarms.example", &no_id, "554 5.6.0 this mail is no event: id: ").await;
    check("a@alarms.example", &QUAKE.replace("6.1", "much"), "magnitude: should be a number, not a string").await;
    check(
        "a@alarms.example",
        &format!("Auto-Submitted: auto-replied\r\n{QUAKE}"),
        "550 5.7.1 automatic mail is not accepted",
    )
    .await;
    check("a@alarms.example", &format!("{QUAKE}{}", "x".repeat(3_000)), "552 5.3.4 too large").await;
    check("a@alarms.example", &format!("{QUAKE}{}", "x".repeat(1_200)), "552 5.3.4 the texts of this mail").await;
    check("a@alarms.example", &format!("{}{QUAKE}", "Received: x\r\n".repeat(51)), "554 5.4.6 mail loop").await;
}

#[tokio::test]
async fn automatic_mail_can_be_dropped() {
    if missing(&[Peer::Curl]) {
        return;
    }
    let (mut harness, port) = mailbox(json!({"automatic": "drop"}));
    let bulk = harness.curl(port, "a@alarms.example", &format!("Precedence: bulk\r\n{QUAKE}"), &[]);
    let bulk = tokio::spawn(ended(bulk));
    while !bulk.is_finished() {
        let next = tokio::time::timeout(std::time::Duration::from_millis(5), harness.source().next()).await;
        assert!(next.is_err(), "nothing comes of it");
    }
    assert!(bulk.await.expect("it ended").0);
}

#[tokio::test]
async fn the_user_sends_over_an_encrypted_connection() {
    if missing(&[Peer::Curl]) {
        return;
    }
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
    let (mut harness, port) = mailbox(json!({"require_tls": true, "username": "meters", "password": "pass"}));
    let certificate = harness.file("certificate.pem", &made.cert.pem());
    let key = harness.file("key.pem", &made.signing_key.serialize_pem());
    harness.options["certificate_file"] = certificate.to_str().into();
    harness.options["key_file"] = key.to_str().into();
    let trust = ["--ssl-reqd", "--cacert", certificate.to_str().expect("text")];
    let place = format!("smtp://localhost:{port}/meter.example.org");
    let there = ["--resolve", &format!("localhost:{port}:127.0.0.1")].map(str::to_owned);
    let send = |harness: &Harness, more: &[&str]| {
        let file = harness.file("mail", QUAKE);
        let mut curl = Command::new(Peer::Curl.path());
        curl.args(["-sv", "--retry", "20", "--retry-connrefused", "--retry-delay", "1", "--max-time", "50"])
            .args(&there);
        curl.args(["--mail-from", "meter@example.org", "--mail-rcpt", "quakes@alarms.example", "--upload-file"]);
        curl.arg(file).arg(&place).args(more).stderr(Stdio::piped()).kill_on_drop(true).spawn().expect("curl")
    };
    let curl = send(&harness, &[&trust[..], &["--user", "meters:pass"]].concat());
    assert_eq!(harness.take().await, [KOBE]);
    let (content, reply) = ended(curl).await;
    assert!(content, "{reply}");
    let plain = send(&harness, &[]);
    assert!(refused(&mut harness, plain).await.contains("530 5.7.0 mail is accepted over encrypted connections only"));
    let wrong = send(&harness, &[&trust[..], &["--user", "meters:guess"]].concat());
    assert!(refused(&mut harness, wrong).await.contains("535 5.7.8"));
}

/// Postfix's load generator, with many mails over many connections, by SMTP and by LMTP.
#[tokio::test]
async fn the_mails_of_postfix_are_taken_in_batches() {
    if missing(&[Peer::SmtpSource]) {
        return;
    }
    for lmtp in [false, true] {
        let (mut harness, port) = mailbox(json!({"fields": {"id": "message_id", "tags": "to"}}));
        // It does not retry, so the source listens first.
        let opened = tokio::time::timeout(std::time::Duration::from_millis(1), harness.source().next()).await;
        assert!(opened.is_err(), "nothing has come");
        let mut source = Command::new(Peer::SmtpSource.path());
        source.args(["-s", "8", "-m", "200", "-l", "4000", "-f", "a@example.org", "-t", "b@alarms.example"]);
        let source = source.args(lmtp.then_some("-L")).arg(format!("127.0.0.1:{port}")).kill_on_drop(true);
        let mut source = source.spawn().expect("smtp-source starts");
        let mut events = harness.take_events(200).await;
        assert!(source.wait().await.expect("it ends").success());
        events.sort();
        events.dedup();
        assert_eq!(events.len(), 200, "each has an identity of its own");
        harness.source().close().await;
    }
}

#[tokio::test]
async fn a_listen_address_in_use_is_an_error() {
    let (mut harness, port) = mailbox(json!({}));
    let _other = TcpListener::bind(("127.0.0.1", port)).expect("it is free");
    let error = harness.try_next().await.expect_err("it is taken");
    assert!(error.text.starts_with(&format!("cannot listen at 127.0.0.1:{port}: ")), "{error}");
}

#[test]
fn problems_of_options_are_reported() {
    let check = |options: Value, expected: &[&str]| {
        let source = tocsin_model::application::Source {
            kind: "mail".parse().expect("a name"),
            options: options.as_object().expect("an object").clone(),
            events: vec!["quake".parse().expect("a name")],
        };
        let shown: Vec<String> =
            crate::check(&source, &crate::testing::fields(), "sources.in").iter().map(ToString::to_string).collect();
        assert_eq!(shown.len(), expected.len(), "{shown:?}");
        for (shown, expected) in shown.iter().zip(expected) {
            assert!(shown.starts_with(expected), "{shown}");
        }
    };
    check(json!({}), &["sources.in.options.listen: is missing", "sources.in.options.recipients: are missing"]);
    let good = json!({"listen": "127.0.0.1:2525", "recipients": ["*"]});
    check(good.clone(), &[]);
    let with = |more: Value| {
        let mut options = good.clone();
        options.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        options
    };
    check(with(json!({"listen": "localhost"})), &["sources.in.options.listen: `localhost` is not an address"]);
    check(with(json!({"recipients": ["alarms"]})), &["sources.in.options.recipients[0]: `alarms` is not a pattern"]);
    check(with(json!({"require_tls": true})), &["sources.in.options.certificate_file: is missing"]);
    check(
        with(json!({"password": "x", "key_file": "x"})),
        &["sources.in.options.certificate_file: is missing", "sources.in.options.username: is missing"],
    );
    check(with(json!({"mail_bytes_max": 1})), &["sources.in.options.mail_bytes_max: should be from 1024"]);
    check(with(json!({"fields": {"id": "titel"}})), &["sources.in.options.fields.id: a mail has no `titel`"]);
}

#[tokio::test]
async fn a_location_takes_whole_mails_exactly_once() {
    if missing(&[Peer::Curl]) {
        return;
    }
    let (mut harness, port) = mailbox(json!({"fields": {}}));
    harness.options.as_object_mut().expect("an object").remove("fields");
    harness.output = SourceOutput::Messages { bytes_max: 1_000 };
    let first = harness.curl(port, "quakes@alarms.example", QUAKE, &[]);
    let batch = harness.next().await;
    let Message { content_type, headers, body } = &batch.messages[0];
    assert_eq!((&**content_type, &**body), ("message/rfc822", QUAKE.as_bytes()));
    for (name, value) in [
        ("mail-sender", "meter@example.org"),
        ("mail-recipients", "quakes@alarms.example"),
        ("mail-automatic", "false"),
        ("subject", "Kōbe"),
        ("x-magnitude", "6.1"),
    ] {
        assert!(headers.contains(&(name.to_owned(), value.to_owned())), "{headers:?}");
    }
    // Stored, but not acknowledged to the client.
    harness.commit(batch.marks);
    harness.crash();
    assert!(!ended(first).await.0);
    let again = harness.curl(port, "quakes@alarms.example", QUAKE, &[]);
    assert_eq!(harness.take_messages().await, [], "it is known");
    assert!(ended(again).await.0);

    let long = harness.curl(port, "quakes@alarms.example", &format!("{QUAKE}{}", "x".repeat(1_000)), &[]);
    let reply = refused(&mut harness, long).await;
    assert!(reply.contains("552"), "a mail above the size limit is rejected by the server: {reply}");
}

#[tokio::test]
async fn a_location_can_take_the_members_of_a_mail() {
    if missing(&[Peer::Curl]) {
        return;
    }
    let (mut harness, port) = mailbox(json!({"body": "json"}));
    harness.options.as_object_mut().expect("an object").remove("fields");
    harness.output = SourceOutput::Messages { bytes_max: 2_000 };
    let curl = harness.curl(port, "quakes@alarms.example", QUAKE, &[]);
    let message = harness.take_messages().await.remove(0);
    assert!(ended(curl).await.0);
    let members: Value = serde_json::from_slice(&message.body).expect("JSON");
    assert_eq!((&*message.content_type, &members["subject"]), ("application/json", &json!("Kōbe")));
    assert_eq!(members["text"], "It shook.\r\n");
}

/// The port of the present source, and the number of mails without a final reply.
#[derive(Default)]
struct Conforming {
    port: u16,
    open: Arc<AtomicUsize>,
}

/// Sends a mail; returns whether it is accepted, or permanently refused. An error is temporary.
async fn send(port: u16, mail: &str) -> std::io::Result<bool> {
    let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", port)).await?);
    let commands = [
        (String::new(), "220"),
        ("EHLO meter.example.org\r\n".to_owned(), "250"),
        ("MAIL FROM:<meter@example.org>\r\n".to_owned(), "250"),
        ("RCPT TO:<quakes@alarms.example>\r\n".to_owned(), "250"),
        ("DATA\r\n".to_owned(), "354"),
        (format!("{mail}\r\n.\r\n"), "250"),
    ];
    for (command, expected) in commands {
        stream.write_all(command.as_bytes()).await?;
        let mut line = String::new();
        while line.as_bytes().get(3) != Some(&b' ') {
            line.clear();
            if stream.read_line(&mut line).await? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
        }
        if line.starts_with('5') {
            return Ok(false);
        }
        if !line.starts_with(expected) {
            return Err(std::io::Error::other(line));
        }
    }
    Ok(true)
}

impl Conforming {
    /// Sends a mail until it is accepted or permanently refused, as mail servers do.
    fn queue(&self, mail: String) {
        let (port, open) = (self.port, self.open.clone());
        open.fetch_add(1, Ordering::SeqCst);
        tokio::spawn(async move {
            while send(port, &mail).await.is_err() {
                tokio::task::yield_now().await;
            }
            open.fetch_sub(1, Ordering::SeqCst);
        });
    }
}

fn numbered(number: u32, text: &str) -> String {
    format!(
        "From: meter@example.org\r\nTo: quakes@alarms.example\r\nSubject: q{number}\r\n\
         Message-ID: <{number}@example.org>\r\nDate: Sun, 22 Nov 2026 10:00:00 +0000\r\n\r\n{text}"
    )
}

#[async_trait(?Send)]
impl Subject for Conforming {
    async fn harness(&mut self) -> Harness {
        let more = json!({"fields": {"id": "subject"}, "item_bytes_max": 10_000, "connections_max": 400});
        let (harness, port) = mailbox(more);
        *self = Conforming { port, open: Arc::default() };
        harness
    }

    async fn put(&mut self, numbers: Range<u32>) {
        numbers.for_each(|number| self.queue(numbered(number, "It shook.")));
    }

    async fn put_oversize(&mut self, number: u32) -> Oversize {
        let line = format!("{}\r\n", "x".repeat(70));
        self.queue(numbered(number, &line.repeat(300)));
        Oversize::SetAside
    }

    async fn unacknowledged(&mut self) -> Option<usize> {
        Some(self.open.load(Ordering::SeqCst))
    }

    async fn silent(&mut self) -> Option<Value> {
        None
    }

    fn many(&self) -> u32 {
        150
    }
}

#[tokio::test]
async fn it_conforms() {
    exercise(&mut Conforming::default()).await;
}
