use std::{
    collections::HashMap,
    io,
    net::IpAddr,
    path::PathBuf,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use async_trait::async_trait;
use parking_lot::Mutex;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::{ServerConfig, pki_types::PrivateKeyDer};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::mpsc,
};
use tokio_rustls::TlsAcceptor;

use super::{options::SmtpOptions, session::Dial};
use crate::{
    channel::{Answer, OpenChannel, Outgoing},
    options::read,
    testing::{channel, context, multicast, outgoing, show},
    tls::{self, Stream},
};

/// What the scripted server does with a command.
#[derive(Clone, Copy)]
enum Act {
    /// Replies; the line end is added.
    Say(&'static str),
    /// Replies and closes the connection.
    Last(&'static str),
    /// Closes the connection.
    Close,
    /// Does not reply, ever.
    Silence,
}
use Act::*;

/// What the server does, by the number of the connection, of the mail over all connections, and what it hears: a
/// command, `.` for the end of a content, or nothing for a fresh connection.
type Script = fn(u32, u32, &str) -> Act;

/// A server with everything, where nothing goes wrong.
fn fine(_: u32, _: u32, heard: &str) -> Act {
    match heard.split([' ', ':']).next().unwrap_or_default() {
        "" => Say("220 far.example ready"),
        "EHLO" => Say("250-far.example\r\n250-PIPELINING\r\n250-SIZE 200000\r\n250 SMTPUTF8"),
        "DATA" => Say("354 go on"),
        "QUIT" => Last("221 bye"),
        _ => Say("250 ok"),
    }
}

/// What the server saw.
#[derive(Default)]
struct Seen {
    /// Everything that was heard, a line for each command, `CONTENT` for a content.
    heard: Vec<String>,
    /// The commands of each read.
    flights: Vec<String>,
    /// Contents whose end was heard, as they came over the wire.
    contents: Vec<String>,
}

struct Scripted {
    script: Script,
    tls: Option<TlsAcceptor>,
    connections: AtomicU32,
    mails: Arc<AtomicU32>,
    seen: Arc<Mutex<Seen>>,
}

#[async_trait]
impl Dial for Scripted {
    async fn dial(&self) -> io::Result<(Box<dyn Stream>, Option<IpAddr>)> {
        let connection = self.connections.fetch_add(1, Ordering::SeqCst) + 1;
        let greeting = (self.script)(connection, 0, "");
        if matches!(greeting, Close) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let (near, far) = tokio::io::duplex(1 << 20);
        let (script, mails, seen, tls) = (self.script, self.mails.clone(), self.seen.clone(), self.tls.clone());
        tokio::spawn(async move { serve(Box::new(far), connection, script, mails, seen, tls).await });
        Ok((Box::new(near), Some(IpAddr::from([127, 0, 0, 1]))))
    }
}

async fn serve(
    mut stream: Box<dyn Stream>,
    connection: u32,
    script: Script,
    mails: Arc<AtomicU32>,
    seen: Arc<Mutex<Seen>>,
    mut tls: Option<TlsAcceptor>,
) {
    let (mut unread, mut content, mut awaited) = (Vec::with_capacity(1 << 20), None::<String>, vec![String::new()]);
    loop {
        for heard in std::mem::take(&mut awaited) {
            let mut mail = mails.load(Ordering::SeqCst);
            if heard.starts_with("MAIL") {
                mail = mails.fetch_add(1, Ordering::SeqCst) + 1;
            }
            match script(connection, mail, &heard) {
                Say(reply) => {
                    stream.write_all(format!("{reply}\r\n").as_bytes()).await.ok();
                    if heard == "DATA" && reply.starts_with("354") {
                        content = Some(String::new());
                    }
                    if heard == "STARTTLS" && reply == "220 go" {
                        let Ok(encrypted) = tls.take().expect("a script with TLS").accept(stream).await else { return };
                        stream = Box::new(encrypted);
                    }
                }
                Last(reply) => {
                    stream.write_all(format!("{reply}\r\n").as_bytes()).await.ok();
                    return;
                }
                Close => return,
                Silence => std::future::pending().await,
            }
        }
        if !unread.contains(&b'\n') {
            match stream.read_buf(&mut unread).await {
                Ok(0) | Err(_) => return,
                Ok(_) => seen.lock().flights.push(flight(&unread)),
            }
        }
        // One line at a time: what it is depends on the reply to the one before.
        let Some(end) = unread.iter().position(|byte| *byte == b'\n') else { continue };
        let line = String::from_utf8(unread.drain(..=end).collect()).expect("UTF-8");
        assert!(line.ends_with("\r\n") && !line[..line.len() - 2].contains(['\r', '\n']), "{line:?}");
        match &mut content {
            Some(text) if line == ".\r\n" => {
                let mut seen = seen.lock();
                seen.contents.push(std::mem::take(text));
                seen.heard.push("CONTENT".into());
                content = None;
                awaited.push(".".into());
            }
            Some(text) => text.push_str(&line),
            None => {
                seen.lock().heard.push(line.trim_end().to_owned());
                awaited.push(line.trim_end().to_owned());
            }
        }
    }
}

/// The commands in some bytes, by their first letters.
fn flight(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let known = |line: &str| {
        ["EHLO", "MAIL", "RCPT", "DATA", "RSET", "QUIT", "From"]
            .into_iter()
            .find(|word| line.starts_with(word))
            .or((line == ".").then_some("."))
    };
    text.lines().filter_map(known).collect::<Vec<_>>().join(" ")
}

fn start(
    script: Script,
    options: serde_json::Value,
    tls: Option<TlsAcceptor>,
) -> (Box<dyn OpenChannel>, Arc<Scripted>) {
    let mut given = json!({ "host": "far.example", "from": "Tocsin <bells@near.example>" });
    given.as_object_mut().expect("an object").extend(options.as_object().expect("an object").clone());
    let options: SmtpOptions =
        read(given.as_object().expect("an object"), "").unwrap_or_else(|problems| panic!("{problems:?}"));
    let trust = tls::trust(options.ca_file.as_deref(), "ca_file").expect("a readable file");
    let seen = Arc::new(Mutex::new(Seen::default()));
    let dial = Arc::new(Scripted { script, tls, connections: AtomicU32::new(0), mails: Arc::default(), seen });
    let name = "mail".parse().expect("a name");
    (super::start(&name, 1, &context(), options, trust, dial.clone()), dial)
}

async fn deliver(open: &dyn OpenChannel, addresses: &[&str]) -> Vec<String> {
    deliver_all(open, addresses.iter().enumerate().map(|(number, address)| outgoing(number as u32, address)).collect())
        .await
}

async fn deliver_all(open: &dyn OpenChannel, mails: Vec<Outgoing>) -> Vec<String> {
    let (answers, mut answered) = mpsc::channel(16);
    let count = mails.len();
    open.send_all(mails, &answers).await;
    drop(answers);
    let mut all: Vec<Answer> = Vec::new();
    while let Some(answer) = answered.recv().await {
        all.push(answer);
    }
    open.settle().await;
    assert_eq!(all.len(), count, "one answer each");
    all.sort_by_key(|answer| answer.ticket.ordinal);
    all.iter().map(|answer| show(&answer.disposition)).collect()
}

/// Three mails through one session; what becomes of them, and how often the server was called.
async fn check(script: Script, expected: [&str; 3], connections: u32) -> Arc<Scripted> {
    check_with(script, json!({}), expected, connections).await
}

async fn check_with(
    script: Script,
    options: serde_json::Value,
    expected: [&str; 3],
    connections: u32,
) -> Arc<Scripted> {
    let (open, server) = start(script, options, None);
    let shown = deliver(&*open, &["a@b.example", "c@d.example", "e@f.example"]).await;
    assert_eq!(shown, expected);
    assert_eq!(server.connections.load(Ordering::SeqCst), connections, "connections");
    open.close().await;
    server
}

const OK: &str = "delivered 250 ok";

#[tokio::test(start_paused = true)]
async fn content_and_the_next_envelope_travel_in_one_flight() {
    let server = check(fine, [OK, OK, OK], 1).await;
    let flights = server.seen.lock().flights.join(" | ");
    let ahead = "MAIL RCPT DATA | From . MAIL RCPT DATA | From . MAIL RCPT DATA | From .";
    assert_eq!(flights, format!("EHLO | {ahead} | QUIT"));
}

#[tokio::test(start_paused = true)]
async fn a_server_without_pipelining_is_asked_one_by_one() {
    let script: Script = |connection, mail, heard| match heard {
        "EHLO [127.0.0.1]" => Say("250 far.example"),
        _ => fine(connection, mail, heard),
    };
    let server = check(script, [OK, OK, OK], 1).await;
    let one = "MAIL | RCPT | DATA | From .";
    assert_eq!(server.seen.lock().flights.join(" | "), format!("EHLO | {one} | {one} | {one} | QUIT"));
    let server = check_with(fine, json!({ "pipelining": false }), [OK, OK, OK], 1).await;
    assert_eq!(server.seen.lock().flights.join(" | "), format!("EHLO | {one} | {one} | {one} | QUIT"));
}

#[tokio::test(start_paused = true)]
async fn an_old_server_is_greeted_the_old_way() {
    let script: Script = |connection, mail, heard| match heard.split(' ').next() {
        Some("EHLO") => Say("502 what?"),
        _ => fine(connection, mail, heard),
    };
    check(script, [OK, OK, OK], 1).await;
}

#[tokio::test(start_paused = true)]
async fn each_recipient_gets_its_own_answer() {
    let script: Script = |connection, mail, heard| match (mail, heard.split(':').next()) {
        (1, Some("RCPT TO")) => Say("550 5.1.1 no such user"),
        (1, Some("DATA")) => Say("503 no recipient"),
        (2, Some("RCPT TO")) => Say("450 4.2.1 mailbox busy"),
        (2, Some("DATA")) => Say("554 no valid recipients"),
        _ => fine(connection, mail, heard),
    };
    let server =
        check(script, ["refused Answer 550 5.1.1 no such user", "deferred Answer 450 4.2.1 mailbox busy", OK], 1).await;
    assert_eq!(server.seen.lock().contents.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn data_accepted_without_a_recipient_gets_a_single_dot() {
    let script: Script = |connection, mail, heard| match (mail, heard.split(':').next()) {
        (2, Some("RCPT TO")) => Say("550 no such user"),
        (2, Some(".")) => Say("554 no valid recipients"),
        _ => fine(connection, mail, heard),
    };
    let server = check(script, [OK, "refused Answer 550 no such user", OK], 1).await;
    let seen = server.seen.lock();
    assert!(seen.contents[1].is_empty() && seen.contents.len() == 3, "nothing of the second mail is sent");
}

#[tokio::test(start_paused = true)]
async fn a_refused_sender_never_sends_an_empty_mail() {
    let script: Script = |connection, mail, heard| match (mail, heard.split(' ').next()) {
        (1, Some("MAIL")) => Say("451 try later"),
        _ => fine(connection, mail, heard),
    };
    // RCPT and DATA are accepted all the same, so the only safe thing is another connection.
    let server = check(script, ["deferred Answer 451 try later", OK, OK], 2).await;
    assert_eq!(server.seen.lock().contents.len(), 2);
    let script: Script = |connection, mail, heard| match (mail, heard.split(' ').next()) {
        (1, Some("MAIL")) => Say("553 no such sender"),
        (1, Some("RCPT" | "DATA")) => Say("503 MAIL first"),
        _ => fine(connection, mail, heard),
    };
    check(script, ["refused Answer 553 no such sender", OK, OK], 1).await;
}

/// One content for several recipients: what becomes of each, and the commands of each flight.
async fn check_multicast(
    script: Script,
    options: serde_json::Value,
    addresses: &[&str],
    expected: &[&str],
    flights: &str,
) {
    let (open, server) = start(script, options, None);
    assert_eq!(deliver_all(&*open, multicast(addresses)).await, expected);
    open.close().await;
    let seen = server.seen.lock();
    assert_eq!(seen.flights.join(" | "), flights);
    for content in &seen.contents {
        let shown = addresses.iter().filter(|address| content.contains(**address)).count();
        assert!(shown == 0 && content.contains("To: undisclosed-recipients:;\r\n"), "{content}");
    }
}

const FOUR: [&str; 4] = ["a@b.example", "c@d.example", "e@f.example", "g@h.example"];

#[tokio::test(start_paused = true)]
async fn a_multicast_is_one_mail_and_shows_no_address() {
    let four = "EHLO | MAIL RCPT RCPT RCPT RCPT DATA | From . | QUIT";
    check_multicast(fine, json!({}), &FOUR, &[OK; 4], four).await;
    let halves = "EHLO | MAIL RCPT RCPT DATA | From . MAIL RCPT RCPT DATA | From . | QUIT";
    check_multicast(fine, json!({ "recipients_max": 2 }), &FOUR, &[OK; 4], halves).await;
    let one_by_one = "EHLO | MAIL | RCPT | RCPT | RCPT | RCPT | DATA | From . | QUIT";
    check_multicast(fine, json!({ "pipelining": false }), &FOUR, &[OK; 4], one_by_one).await;
}

#[tokio::test(start_paused = true)]
async fn each_recipient_of_a_multicast_gets_its_own_answer() {
    let script: Script = |connection, mail, heard| match heard {
        "RCPT TO:<a@b.example>" => Say("550 5.1.1 no such user"),
        "RCPT TO:<e@f.example>" => Say("450 4.2.1 mailbox busy"),
        _ => fine(connection, mail, heard),
    };
    let expected = ["refused Answer 550 5.1.1 no such user", OK, "deferred Answer 450 4.2.1 mailbox busy", OK];
    for (options, flights) in [
        (json!({}), "EHLO | MAIL RCPT RCPT RCPT RCPT DATA | From . | QUIT"),
        (json!({ "pipelining": false }), "EHLO | MAIL | RCPT | RCPT | RCPT | RCPT | DATA | From . | QUIT"),
    ] {
        check_multicast(script, options, &FOUR, &expected, flights).await;
    }
    // The content is refused for those whose envelope was taken.
    let script: Script = |connection, mail, heard| match heard {
        "RCPT TO:<a@b.example>" => Say("550 5.1.1 no such user"),
        "." => Say("452 4.3.1 disk full"),
        _ => fine(connection, mail, heard),
    };
    let later = "deferred Answer 452 4.3.1 disk full";
    let expected = ["refused Answer 550 5.1.1 no such user", later, later, later];
    let flights = "EHLO | MAIL RCPT RCPT RCPT RCPT DATA | From . | QUIT";
    check_multicast(script, json!({}), &FOUR, &expected, flights).await;
}

#[tokio::test(start_paused = true)]
async fn recipients_who_are_too_many_for_one_mail_get_the_next() {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let script: Script = |connection, mail, heard| match heard.split(' ').next().unwrap_or_default() {
        "MAIL" => {
            TAKEN.store(0, Ordering::SeqCst);
            Say("250 ok")
        }
        "RCPT" if TAKEN.fetch_add(1, Ordering::SeqCst) >= 3 => Say("452 4.5.3 too many recipients"),
        _ => fine(connection, mail, heard),
    };
    // The second mail asks for no more than the first was given.
    let flights = "EHLO | MAIL RCPT RCPT RCPT RCPT RCPT RCPT RCPT DATA | From . MAIL RCPT RCPT RCPT DATA | From . MAIL RCPT DATA \
                   | From . | QUIT";
    let seven = [&FOUR[..], &["i@j.example", "k@l.example", "m@n.example"]].concat();
    let (open, server) = start(script, json!({}), None);
    assert_eq!(deliver_all(&*open, multicast(&seven)).await, [OK; 7]);
    open.close().await;
    assert_eq!(server.seen.lock().flights.join(" | "), flights);
}

#[tokio::test(start_paused = true)]
async fn a_multicast_whose_session_ends_goes_on_with_those_not_decided() {
    let script: Script = |connection, mail, heard| match (connection, heard) {
        (1, "RCPT TO:<a@b.example>") => Say("550 5.1.1 no such user"),
        (1, "RCPT TO:<e@f.example>") => Last("421 enough"),
        _ => fine(connection, mail, heard),
    };
    let flights = "EHLO | MAIL RCPT RCPT RCPT RCPT DATA | EHLO | MAIL RCPT RCPT RCPT DATA | From . | QUIT";
    check_multicast(script, json!({}), &FOUR, &["refused Answer 550 5.1.1 no such user", OK, OK, OK], flights).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_to_a_multicast_defers_those_whom_it_concerns() {
    let script: Script = |connection, mail, heard| match (connection, heard) {
        (_, "RCPT TO:<a@b.example>") => Say("550 5.1.1 no such user"),
        (1, ".") => Close,
        _ => fine(connection, mail, heard),
    };
    let lost = "deferred Connection the server closed the connection";
    let flights = "EHLO | MAIL RCPT RCPT RCPT RCPT DATA | From .";
    check_multicast(script, json!({}), &FOUR, &["refused Answer 550 5.1.1 no such user", lost, lost, lost], flights)
        .await;
}

#[tokio::test(start_paused = true)]
async fn refusals_after_the_envelope() {
    let script: Script = |connection, mail, heard| match (mail, heard) {
        (1, "DATA") => Say("451 no room"),
        (2, ".") => Say("554 5.7.1 spam"),
        (3, ".") => Say("452 4.3.1 disk full"),
        _ => fine(connection, mail, heard),
    };
    check(
        script,
        ["deferred Answer 451 no room", "refused Answer 554 5.7.1 spam", "deferred Answer 452 4.3.1 disk full"],
        1,
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn too_many_recipients_is_not_for_good() {
    let script: Script = |connection, mail, heard| match heard.split(' ').next() {
        Some("RCPT") => Say("552 too many recipients"),
        Some("DATA") => Say("503 no"),
        _ => fine(connection, mail, heard),
    };
    check(script, ["deferred Answer 552 too many recipients"; 3], 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_session_ended_between_mails_costs_nothing() {
    // 421 in place of the reply to the second MAIL; then on the third mail the connection just closes.
    let script: Script = |connection, mail, heard| match (connection, mail, heard.split(' ').next()) {
        (1, 2, Some("MAIL")) => Last("421 enough mails for one session"),
        (2, 4, Some("MAIL")) => Close,
        _ => fine(connection, mail, heard),
    };
    let server = check(script, [OK, OK, OK], 3).await;
    assert_eq!(server.seen.lock().contents.len(), 3, "nothing is sent twice");
}

#[tokio::test(start_paused = true)]
async fn a_closing_server_says_so_after_the_content() {
    let script: Script = |connection, mail, heard| match (connection, heard) {
        (1, ".") => Last("421 shutting down"),
        _ => fine(connection, mail, heard),
    };
    check(script, ["deferred Answer 421 shutting down", OK, OK], 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_defers_under_the_same_id() {
    let script: Script = |connection, mail, heard| match (connection, heard) {
        (1, ".") => Close,
        _ => fine(connection, mail, heard),
    };
    let (open, server) = start(script, json!({}), None);
    let first = deliver(&*open, &["a@b.example", "c@d.example"]).await;
    assert_eq!(first, ["deferred Connection the server closed the connection", OK]);
    assert_eq!(deliver(&*open, &["a@b.example"]).await, [OK]);
    let ids = |content: &String| content.lines().find(|line| line.starts_with("Message-ID:")).map(str::to_owned);
    let seen = server.seen.lock();
    let ids: Vec<_> = seen.contents.iter().map(ids).collect();
    assert_eq!(ids[0].as_deref(), Some("Message-ID: <n-7-0.test@near.example>"));
    assert_eq!(ids[0], ids[2], "the mail that may have been taken comes again under its id");
    assert_eq!(ids.len(), 3, "and the other one came once");
}

#[tokio::test(start_paused = true)]
async fn silence_is_bounded() {
    let script: Script = |connection, mail, heard| match (connection, heard) {
        (1, ".") => Silence,
        _ => fine(connection, mail, heard),
    };
    check(script, ["deferred Timeout no reply within 120 s", OK, OK], 2).await;
    let script: Script = |connection, mail, heard| match heard.split(' ').next() {
        Some("MAIL") => Silence,
        _ => fine(connection, mail, heard),
    };
    check(script, ["deferred Timeout no reply within 60 s"; 3], 6).await;
}

#[tokio::test(start_paused = true)]
async fn a_reply_without_end_is_no_reply() {
    static ENDLESS: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| format!("250-{}", "x".repeat(70_000)));
    let script: Script = |connection, mail, heard| match (connection, heard) {
        (1, ".") => Say(&ENDLESS),
        (2, ".") => Say("hello"),
        _ => fine(connection, mail, heard),
    };
    let (open, _) = start(script, json!({}), None);
    let shown = deliver(&*open, &["a@b.example", "c@d.example", "e@f.example"]).await;
    assert_eq!(shown[0], "deferred Connection the server's reply has no end");
    assert_eq!(shown[1..], ["deferred Connection this is no reply: hello", OK]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_away_for_a_moment_is_waited_for() {
    let script: Script = |connection, mail, heard| if connection < 3 { Close } else { fine(connection, mail, heard) };
    check(script, [OK, OK, OK], 3).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_stays_away_defers_everything_in_time() {
    let script: Script = |_, _, _| Close;
    let (open, server) = start(script, json!({}), None);
    let before = tokio::time::Instant::now();
    let shown = deliver(&*open, &["a@b.example"; 100]).await;
    assert!(before.elapsed() <= std::time::Duration::from_secs(16), "{:?}", before.elapsed());
    assert!(
        shown.iter().all(|shown| shown == "deferred Connection no connection to far.example:25: connection refused"),
        "{shown:?}"
    );
    assert!(server.connections.load(Ordering::SeqCst) < 10, "it is left in peace");
    assert!(open.down().is_some());
}

#[tokio::test(start_paused = true)]
async fn wrong_credentials_refuse_nobody() {
    let script: Script = |connection, mail, heard| match heard.split(' ').next() {
        Some("EHLO") => Say("250-far.example\r\n250 AUTH LOGIN PLAIN"),
        Some("AUTH") => Say("535 5.7.8 no"),
        _ => fine(connection, mail, heard),
    };
    let options = json!({ "username": "me", "password": "secret", "allow_plain_auth": true });
    let expected = ["deferred Authentication our credentials are not accepted: 535 5.7.8 no"; 3];
    let server = check_with(script, options, expected, 1).await;
    assert!(server.seen.lock().heard.contains(&"AUTH PLAIN AG1lAHNlY3JldA==".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn credentials_in_both_ways_and_never_in_the_open() {
    let script: Script = |connection, mail, heard| match heard {
        "EHLO [127.0.0.1]" => Say("250-far.example\r\n250 AUTH LOGIN"),
        "AUTH LOGIN" => Say("334 VXNlcm5hbWU6"),
        "bWU=" => Say("334 UGFzc3dvcmQ6"),
        "c2VjcmV0" => Say("235 welcome"),
        _ => fine(connection, mail, heard),
    };
    let options = json!({ "username": "me", "password": "secret", "allow_plain_auth": true });
    check_with(script, options, [OK, OK, OK], 1).await;
    let (open, server) = start(script, json!({ "username": "me", "password": "secret" }), None);
    let expected =
        "deferred Authentication the server offers no encryption, and the password does not travel in clear text";
    assert_eq!(deliver(&*open, &["a@b.example"]).await, [expected]);
    assert!(!server.seen.lock().heard.iter().any(|heard| heard.contains("AUTH")));
}

#[tokio::test(start_paused = true)]
async fn wide_addresses_need_the_extension() {
    let wide = "jürgen@exämple.org";
    let (open, server) = start(fine, json!({}), None);
    assert_eq!(deliver(&*open, &[wide]).await, [OK]);
    assert!(
        server
            .seen
            .lock()
            .heard
            .iter()
            .any(|heard| heard.starts_with("MAIL") && heard.ends_with("BODY=8BITMIME SMTPUTF8"))
    );
    let script: Script = |connection, mail, heard| match heard {
        "EHLO [127.0.0.1]" => Say("250-far.example\r\n250 PIPELINING"),
        _ => fine(connection, mail, heard),
    };
    let (open, server) = start(script, json!({}), None);
    let expected = "refused Address the address needs SMTPUTF8, which the server does not offer";
    assert_eq!(deliver(&*open, &[wide, "a@b.example"]).await, [expected, OK]);
    assert_eq!(server.seen.lock().contents.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_size_is_told_and_its_limit_kept() {
    let (open, server) = start(fine, json!({}), None);
    let (answers, mut answered) = mpsc::channel(4);
    let mut large = outgoing(0, "a@b.example");
    Arc::make_mut(&mut large.message).content.text = Some("x".repeat(300_000));
    open.send(large, &answers).await;
    let shown = show(&answered.recv().await.expect("an answer").disposition);
    assert!(
        shown.starts_with("refused Format the mail has 3") && shown.ends_with("the server takes 200000"),
        "{shown}"
    );
    assert_eq!(deliver(&*open, &["a@b.example"]).await, [OK]);
    assert!(server.seen.lock().heard.iter().any(|heard| heard.contains(" SIZE=")));
}

#[tokio::test(start_paused = true)]
async fn what_is_late_or_goes_nowhere_is_not_sent() {
    let (open, server) = start(fine, json!({}), None);
    let (answers, mut answered) = mpsc::channel(4);
    let mut late = outgoing(0, "a@b.example");
    Arc::make_mut(&mut late.message).expires_at = Some(late.message.formatted_at);
    open.send(late, &answers).await;
    assert_eq!(
        show(&answered.recv().await.expect("an answer").disposition),
        "refused Expired its time was over before it was sent"
    );
    let shown = deliver(&*open, &["a@b.example>\r\nRCPT TO:<x@y.example", "nobody"]).await;
    assert_eq!(shown[0], "refused Address `a@b.example>\\r\\nRCPT TO:<x@y.example` is not a mail address");
    assert_eq!(shown[1], "refused Address `nobody` is not a mail address");
    assert!(server.seen.lock().contents.is_empty());
}

#[tokio::test(start_paused = true)]
async fn sessions_make_room_and_do_not_sit_idle() {
    check_with(fine, json!({ "messages_per_session": 2 }), [OK, OK, OK], 2).await;
    let (open, server) = start(fine, json!({ "idle_timeout": "5s" }), None);
    deliver(&*open, &["a@b.example"]).await;
    // The clock is simulated: this moves it on as soon as everyone waits.
    tokio::time::sleep(std::time::Duration::from_secs(6)).await;
    deliver(&*open, &["a@b.example"]).await;
    assert_eq!(server.connections.load(Ordering::SeqCst), 2);
    assert!(server.seen.lock().heard.contains(&"QUIT".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn closing_and_dropping_answer_what_waits() {
    let script: Script = |connection, mail, heard| if heard == "." { Silence } else { fine(connection, mail, heard) };
    for close in [true, false] {
        let (open, _) = start(script, json!({}), None);
        let (answers, mut answered) = mpsc::channel(1);
        open.send_all((0..10).map(|number| outgoing(number, "a@b.example")).collect(), &answers).await;
        drop(answers);
        if close {
            open.close().await;
        } else {
            drop(open);
        }
        // Whether one was begun decides whether it counts as an attempt.
        let (mut begun, mut untried) = (0, 0);
        while let Some(answer) = answered.recv().await {
            match show(&answer.disposition).as_str() {
                "deferred Connection the channel was closed before there was an answer" => begun += 1,
                "deferred Untried the channel was closed before it was sent" => untried += 1,
                other => panic!("{other}"),
            }
        }
        assert_eq!(begun + untried, 10);
        assert!(untried > 0);
    }
}

/// A certificate for a host, the acceptor that shows it, and a file that trusts it.
fn certificate(host: &str, folder: &tempfile::TempDir) -> (TlsAcceptor, PathBuf) {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed([host.to_owned()]).expect("a certificate");
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, cert.pem()).expect("a file");
    let key = PrivateKeyDer::Pkcs8(signing_key.serialize_der().into());
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider's versions")
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .expect("a pair");
    (TlsAcceptor::from(Arc::new(config)), file)
}

fn with_tls(connection: u32, mail: u32, heard: &str) -> Act {
    match heard.split(' ').next() {
        Some("EHLO") => Say("250-far.example\r\n250-STARTTLS\r\n250-PIPELINING\r\n250 AUTH PLAIN"),
        Some("STARTTLS") => Say("220 go"),
        Some("AUTH") => Say("235 welcome"),
        _ => fine(connection, mail, heard),
    }
}

#[tokio::test(start_paused = true)]
async fn encryption_is_verified() {
    let folder = tempfile::tempdir().expect("a folder");
    let (acceptor, file) = certificate("far.example", &folder);
    for tls in ["if_offered", "required"] {
        let options = json!({ "tls": tls, "ca_file": file, "username": "me", "password": "secret" });
        let (open, server) = start(with_tls, options, Some(acceptor.clone()));
        assert_eq!(deliver(&*open, &["a@b.example"]).await, [OK]);
        assert!(open.probe().await.is_ok_and(|text| text.contains("(encrypted, pipelining)")));
        assert!(server.seen.lock().heard.iter().any(|heard| heard.starts_with("AUTH PLAIN")));
    }
    // A certificate that nobody vouches for, one for another host, and no offer at all.
    let (stranger, _) = certificate("far.example", &tempfile::tempdir().expect("a folder"));
    let (other, other_file) = certificate("other.example", &tempfile::tempdir().expect("a folder"));
    let _ = other_file;
    for (acceptor, script) in [(stranger, with_tls as Script), (other, with_tls), (acceptor, fine)] {
        let (open, server) = start(script, json!({ "tls": "required", "ca_file": file }), Some(acceptor));
        let shown = deliver(&*open, &["a@b.example"]).await;
        assert!(shown[0].starts_with("deferred Tls"), "{shown:?}");
        assert!(server.seen.lock().contents.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_said_before_encryption_counts_after_it() {
    let script: Script = |connection, mail, heard| match heard {
        "STARTTLS" => Say("220 go\r\n250 injected"),
        _ => with_tls(connection, mail, heard),
    };
    let (open, _) = start(script, json!({ "tls": "required" }), None);
    assert_eq!(
        deliver(&*open, &["a@b.example"]).await,
        ["deferred Tls the server sent more than its reply to STARTTLS"]
    );
}

#[tokio::test(start_paused = true)]
async fn no_string_makes_a_header_or_ends_a_mail() {
    let text = include_str!("../../../../testdata/naughty-strings.json");
    let mut strings: Vec<String> = serde_json::from_str(text).expect("a list of strings");
    let breaks = ["\r\n", "\n", "\r", "\0", "\u{85}", "\u{2028}", "\u{b}", "\r\n\r\n", "\n.\n", "\r\n.\r\n", "\r.\r"];
    strings.extend(breaks.map(|line_end| format!("a{line_end}Bcc: x@y.example{line_end}")));
    strings.extend(
        breaks.map(|line_end| format!("ü{line_end}Bcc: x@y.example{line_end}MAIL FROM:<x@y.example>{line_end}")),
    );
    strings.push("=?utf-8?b?DQpCY2M6IHhAeS5leGFtcGxl?=".into());
    strings.push("x".repeat(3000));
    strings.push("ü ".repeat(3000));
    let (open, server) = start(fine, json!({ "headers": { "X-Note": "a\r\nBcc: x@y.example" } }), None);
    let (answers, mut answered) = mpsc::channel(strings.len());
    for (number, string) in strings.iter().enumerate() {
        let mut mail = outgoing(number as u32, "a@b.example");
        Arc::make_mut(&mut mail.message).message_id = string.chars().take(100).collect();
        Arc::make_mut(&mut mail.message).content.subject = Some(string.clone());
        Arc::make_mut(&mut mail.message).content.text = Some(string.clone());
        Arc::make_mut(&mut mail.message).content.html = (number % 2 == 0).then(|| string.clone());
        open.send(mail, &answers).await;
    }
    for string in &strings {
        let answer = answered.recv().await.expect("an answer");
        assert_eq!(show(&answer.disposition), OK, "{string:?}");
    }
    let seen = server.seen.lock();
    assert_eq!(seen.contents.len(), strings.len());
    let known = [
        "from",
        "to",
        "subject",
        "date",
        "message-id",
        "auto-submitted",
        "x-note",
        "mime-version",
        "content-type",
        "content-transfer-encoding",
    ];
    for (content, string) in seen.contents.iter().zip(&strings) {
        let (head, _) = content.split_once("\r\n\r\n").expect("a head and a body");
        let mut count = HashMap::new();
        for line in head.split("\r\n").filter(|line| !line.starts_with([' ', '\t'])) {
            let name = line.split(':').next().unwrap_or_default().to_ascii_lowercase();
            assert!(known.contains(&name.as_str()), "{line:?} from {string:?}");
            *count.entry(name).or_insert(0) += 1;
        }
        assert!(count.values().all(|count| *count == 1), "{count:?} from {string:?}");
        assert!(content.split("\r\n").all(|line| line.len() <= 998 && !line.contains('\0')), "{string:?}");
    }
}

/// Postfix's own sink takes our mails: a peer that nobody here wrote.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sink_of_postfix_takes_them() {
    let program = ["/usr/sbin/smtp-sink", "/usr/lib/postfix/sbin/smtp-sink", "/usr/local/sbin/smtp-sink"]
        .into_iter()
        .find(|path| std::path::Path::new(path).exists())
        .expect("smtp-sink is installed: it comes with the package postfix");
    let folder = tempfile::tempdir().expect("a folder");
    // Opening the socket for it would need its cooperation, so a free port is taken and given.
    let port =
        std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port").port();
    let mut command = tokio::process::Command::new(program);
    if std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0) {
        command.args(["-u", "root"]);
    }
    let dump = folder.path().join("mails");
    let mut sink = command
        .args(["-c", "-D"])
        .arg(&dump)
        .arg(format!("127.0.0.1:{port}"))
        .arg("100")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("smtp-sink starts");
    let options = json!({ "host": "127.0.0.1", "port": port, "from": "bells@near.example" });
    let name = "mail".parse().expect("a name");
    let open =
        crate::open(&name, &channel("smtp", options, 4), &context()).unwrap_or_else(|problems| panic!("{problems:?}"));
    let shown = deliver(&*open, &["a@b.example"; 200]).await;
    assert!(shown.iter().all(|shown| shown.starts_with("delivered 250 ")), "{shown:?}");
    open.close().await;
    sink.kill().await.expect("smtp-sink ends");
    let mails: String = std::fs::read_dir(folder.path())
        .expect("a folder")
        .map(|file| std::fs::read_to_string(file.expect("a file").path()).expect("text"))
        .collect();
    assert_eq!(mails.matches("Message-ID: <n-7-").count(), 200);
}
