//! Feedback by mail against the real binary, with Postfix as the mail server of the recipients: refusals in the
//! session, bounces at signed return addresses, complaints, replies, unsubscriptions, and their counts over a kill.

mod support;

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    process::Stdio,
};

use serde_json::{Value, json};
use support::{Platform, mails::Mails, postfix::Postfix, until};
use tocsin_test_peers::{Peer, missing, reserved_port};

/// Reply of the server for feedback to each command of one mail; the last one is the decisive one.
fn send(port: u16, from: &str, to: &str, mail: &str) -> String {
    let stream = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
    let mut replies = BufReader::new(stream.try_clone().expect("a socket"));
    let mut writer = stream;
    let mut reply = move || {
        let mut line = String::new();
        loop {
            line.clear();
            replies.read_line(&mut line).expect("a reply");
            if line.as_bytes().get(3) != Some(&b'-') {
                return line.trim_end().to_owned();
            }
        }
    };
    assert!(reply().starts_with("220 "));
    let data = format!("{}\r\n.", mail.replace('\n', "\r\n"));
    let commands =
        ["EHLO mx.example", &format!("MAIL FROM:<{from}>"), &format!("RCPT TO:<{to}>"), "DATA", data.as_str()];
    let mut last = String::new();
    for command in commands {
        writer.write_all(format!("{command}\r\n").as_bytes()).expect("written");
        last = reply();
        if !last.starts_with(['2', '3']) {
            break;
        }
    }
    let _ = writer.write_all(b"QUIT\r\n");
    last
}

/// A delivery status notification.
fn delivery_status(recipient: &str, action: &str, status: &str) -> String {
    format!(
        "From: MAILER-DAEMON@mta.example\nSubject: Delivery report\nMIME-Version: 1.0\n\
         Content-Type: multipart/report; report-type=delivery-status; boundary=b\n\n--b\nContent-Type: text/plain\n\n\
         Report\n--b\nContent-Type: message/delivery-status\n\nReporting-MTA: dns; mta.example\n\n\
         Final-Recipient: rfc822; {recipient}\nAction: {action}\nStatus: {status}\n\n--b--\n"
    )
}

/// A feedback report of a mail provider (RFC 5965).
const COMPLAINT: &str = "From: feedback@provider.example\nSubject: FW: news\nMIME-Version: 1.0\n\
    Content-Type: multipart/report; report-type=feedback-report; boundary=b\n\n--b\nContent-Type: text/plain\n\n\
    A recipient reported this as spam.\n--b\nContent-Type: message/feedback-report\n\nFeedback-Type: abuse\n\
    User-Agent: Provider/1.0\nVersion: 1\nOriginal-Rcpt-To: <angry@b.example>\n\n--b\nContent-Type: message/rfc822\n\n\
    From: news@news.example\nTo: angry@b.example\nSubject: news\nMessage-ID: <n@news.example>\n\nNews\n--b--\n";

const AWAY: &str = "From: ok@b.example\nSubject: Out of office\nAuto-Submitted: auto-replied\n\nI am away.\n";

const RECIPIENTS: [&str; 6] = ["rcpt", "data", "gone", "full", "ok", "angry"];

struct World {
    platform: Platform,
    postfix: Postfix,
    mails: Mails,
    feedback: u16,
    published: u32,
}

impl World {
    async fn start() -> World {
        let (feedback, mails) = (reserved_port(), Mails::start().await);
        let sink = mails.port;
        let postfix = Postfix::start(&format!(
            "relay_domains = b.example, bounces.example\n\
             smtpd_recipient_restrictions =\n check_recipient_access inline:{{ {{rcpt@b.example = 550 5.1.1 no such user}} }}\n\
             smtpd_data_restrictions =\n check_recipient_access inline:{{ {{data@b.example = 550 5.1.1 no such user here}} }}\n\
             refusals = check_recipient_access inline:{{\n {{gone@b.example = 550 5.1.1 the mailbox does not exist}}\n \
             {{full@b.example = 552 5.2.2 mailbox full}} }}\n\
             transport_maps = inline:{{\n {{gone@b.example = smtp:[127.0.0.1]:REFUSING}}\n \
             {{full@b.example = smtp:[127.0.0.1]:REFUSING}}\n {{b.example = smtp:[127.0.0.1]:{sink}}}\n \
             {{bounces.example = smtp:[127.0.0.1]:{feedback}}} }}\n"
        ));
        let listen = format!("127.0.0.1:{feedback}");
        let platform = Platform::start(&[
            ("TOCSIN_FEEDBACK_DOMAIN", "bounces.example"),
            ("TOCSIN_FEEDBACK_LISTEN", &listen),
            ("TOCSIN_SUPPRESSION_SOFT_BOUNCES", "3"),
            ("TOCSIN_HTTP_PUBLIC_URL", "https://news.example"),
        ])
        .await;
        let port = postfix.port;
        let application = format!(
            r#"
application: news
events: {{ issue: {{ fields: {{ title: string }} }} }}
subscriptions: {{ every: {{}} }}
notifications:
  issue: {{ fields: {{ title: string }}, content: {{ templates: {{ base: {{ subject: "{{{{ title }}}}", text: "{{{{ title }}}}" }} }} }} }}
rules: {{ each: {{ on: issue, subscription: every, notify: issue }} }}
channels:
  email: {{ protocol: smtp, options: {{ host: 127.0.0.1, port: {port}, tls: off, from: news@news.example, recipients_max: 1 }}, retry: [] }}
"#
        );
        platform.apply("news", &application).await;
        for id in RECIPIENTS {
            platform.subscribe("news", "every", id, "email", &format!("{id}@b.example"), json!({})).await;
        }
        World { platform, postfix, mails, feedback, published: 0 }
    }

    /// Publishes an event, and waits until all its mails are handed over.
    async fn publish(&mut self) {
        self.published += 1;
        let body = json!({"title": format!("issue {}", self.published)});
        let (status, answer) = self.platform.post("/v1/applications/news/events/issue", &body).await;
        assert_eq!(status, 202, "{answer}");
        self.platform.settled().await;
    }

    async fn suppression(&self, id: &str) -> Value {
        let path = format!("/v1/suppressions/addresses/smtp/{id}@b.example");
        let answer = self.platform.request(reqwest::Method::GET, &path).send().await.expect("an answer");
        answer.json().await.unwrap_or_default()
    }

    /// Waits until the suppression of an address is that: cause, in force, bounces.
    async fn suppressed(&self, id: &str, expected: (&str, bool, u64)) -> Value {
        let mut found = Value::Null;
        until(&format!("{id} is {expected:?}; Postfix: {}", self.postfix.log()), async || {
            found = self.suppression(id).await;
            let shown = (found["cause"].as_str(), found["in_force"].as_bool(), found["bounces"].as_u64());
            shown == (Some(expected.0), Some(expected.1), Some(expected.2))
        })
        .await;
        found
    }

    /// Titles of the mails that a recipient got.
    fn titles(&self, id: &str) -> Vec<String> {
        let to = format!("{id}@b.example");
        let its = self.mails.all().into_iter().filter(|mail| mail.to.iter().any(|found| found.contains(&to)));
        its.filter_map(|mail| mail.header("subject")).collect()
    }

    /// The envelope sender of the last mail to a recipient, once Postfix has logged its delivery.
    async fn sender(&self, id: &str) -> String {
        let to = format!("{id}@b.example");
        until(&format!("Postfix delivered to {to}"), async || !self.postfix.senders(&to).is_empty()).await;
        self.postfix.senders(&to).pop().expect("there is one")
    }

    /// Waits until a recipient got every mail published so far.
    async fn got_all(&self, id: &str) {
        let published = usize::try_from(self.published).expect("a few");
        until(&format!("{id} got {published} mails"), async || self.titles(id).len() == published).await;
    }

    async fn count(&self, series: &str) -> bool {
        let page = self.platform.client.get(format!("{}/metrics", self.platform.url)).send().await.expect("an answer");
        page.text().await.expect("a page").lines().any(|line| line.starts_with(series))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_bounces_complaints_and_replies_at_postfix_live_their_whole_life() {
    if missing(&[Peer::Postfix, Peer::Root]) {
        return;
    }
    let mut world = World::start().await;

    // A refusal at RCPT and one at DATA, a bounce of Postfix itself, and a soft one.
    world.publish().await;
    let refused = world.suppressed("rcpt", ("hard_bounce", true, 0)).await;
    assert!(refused["detail"].as_str().is_some_and(|detail| detail.contains("no such user")), "{refused}");
    assert_eq!(refused["origin"], "session");
    world.suppressed("data", ("hard_bounce", true, 0)).await;
    let bounced = world.suppressed("gone", ("hard_bounce", true, 0)).await;
    assert_eq!(bounced["origin"], "mail");
    assert!(bounced["detail"].as_str().is_some_and(|detail| detail.contains("does not exist")), "{bounced}");
    let notification = bounced["notification"].as_str().expect("the return address names it").to_owned();
    world.suppressed("full", ("soft_bounce", false, 1)).await;

    // The trace of the notification has the bounce, and the log names the device.
    let trace = world.platform.get(&format!("/v1/trace/{notification}")).await;
    let points = trace["timeline"].as_array().expect("points");
    let point = points.iter().find(|point| point["what"] == "feedback").unwrap_or_else(|| panic!("{trace}"));
    let text = point["text"].as_str().expect("a text");
    assert!(text.starts_with("hard of device `main` of gone by mail, suppressed: "), "{text}");
    let log = world.platform.get("/v1/feedback?target=address/smtp/gone@b.example").await;
    assert_eq!(
        (&log["items"][0]["subscriber"], &log["items"][0]["status"]),
        (&json!("gone"), &json!("5.1.1")),
        "{log}"
    );

    // Counts survive a kill.
    world.platform.kill();
    world.platform.restart().await;
    world.publish().await;
    world.suppressed("full", ("soft_bounce", false, 2)).await;
    assert_eq!(world.postfix.senders("gone@b.example").len(), 1, "nothing more was sent to it");

    // A success of a later server clears them; then three suppress.
    let sender = world.sender("full").await;
    let delivered = delivery_status("full@b.example", "delivered", "2.0.0");
    assert!(send(world.feedback, "", &sender, &delivered).starts_with("250 "));
    let cleared = world.suppression("full").await;
    assert_eq!(cleared["status"], 404, "{cleared}");
    for count in 1..=2 {
        world.publish().await;
        world.suppressed("full", ("soft_bounce", false, count)).await;
    }
    world.publish().await;
    let full = world.suppressed("full", ("soft_bounce", true, 3)).await;
    assert!(full["expires_at"].is_string(), "{full}");

    // An operator lifts a suppression. A copy of the old bounce changes nothing; a new one suppresses again.
    let old = world.sender("gone").await;
    world.platform.run(&["suppressions", "remove", "gone@b.example"]);
    let bounce = delivery_status("gone@b.example", "failed", "5.1.1");
    assert!(send(world.feedback, "", &old, &bounce).starts_with("250 "));
    assert_eq!(world.suppression("gone").await["status"], 404, "the notification was counted before");
    world.publish().await;
    let again = world.suppressed("gone", ("hard_bounce", true, 0)).await;
    assert_ne!(again["notification"], json!(notification));

    world.got_all("ok").await;
    world.got_all("angry").await;

    // Forged, foreign and other addresses are refused at RCPT: no relay, no suppression.
    let own = world.sender("ok").await;
    let mut forged = own.clone().into_bytes();
    forged[5] = if forged[5] == b'a' { b'b' } else { b'a' };
    let forged = String::from_utf8(forged).expect("letters");
    for to in [forged.as_str(), "postmaster@bounces.example", "someone@other.example", "ok@b.example"] {
        let reply = send(world.feedback, "", to, &bounce);
        assert!(reply.starts_with("550 5.1.1 "), "{to}: {reply}");
    }
    assert_eq!(world.suppression("ok").await["status"], 404);

    // An automatic reply is dropped and counted.
    assert!(send(world.feedback, "ok@b.example", &own, AWAY).starts_with("250 "));
    assert_eq!(world.suppression("ok").await["status"], 404);
    let series = "tocsin_feedback_reports_total{class=\"out_of_office\",origin=\"mail\",effect=\"not_counted\"} 1";
    assert!(world.count(series).await, "it is counted");

    // A mail to the address of List-Unsubscribe ends the subscription, and nothing else.
    let mail = world.mails.all().into_iter().find(|mail| mail.to.iter().any(|to| to.contains("ok@b.example")));
    let field = mail.expect("a mail").header("list-unsubscribe").expect("the field");
    let address = field.split("mailto:").nth(1).and_then(|rest| rest.split('?').next()).expect("an address").to_owned();
    assert!(field.contains("<https://news.example/unsubscribe/"), "{field}");
    assert!(send(world.feedback, "", &address, AWAY).starts_with("250 "), "a program that answers ends nothing");
    let goodbye = "From: ok@b.example\nSubject: unsubscribe\n\n\n";
    assert!(send(world.feedback, "ok@b.example", &address, goodbye).starts_with("250 "));
    let subscriptions = world.platform.get("/v1/subscriptions?subscriber=ok").await;
    assert_eq!(subscriptions["items"][0]["enabled"], false, "{subscriptions}");

    // A complaint, through a pipe.
    let angry = world.sender("angry").await;
    let pipe = |recipient: &str, mail: &str| {
        let mut command = world.platform.command();
        command.args(["feedback", "mail", "--recipient", recipient]);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
        child.stdin.take().expect("piped").write_all(mail.as_bytes()).expect("it reads");
        let done = child.wait_with_output().expect("it ends");
        (done.status.code(), String::from_utf8_lossy(&done.stdout).into_owned())
    };
    let (code, said) = pipe(&angry, COMPLAINT);
    assert_eq!((code, said.as_str()), (Some(0), "complaint: suppressed address/smtp/angry@b.example\n"));
    assert_eq!(pipe(&forged, COMPLAINT).0, Some(67), "the recipient does not exist");
    world.suppressed("angry", ("complaint", true, 0)).await;
    let attention = world.platform.get("/v1/attention").await;
    assert!(attention.to_string().contains("1 recipient reported messages as spam"), "{attention}");

    let before = (world.titles("ok").len(), world.titles("angry").len());
    world.publish().await;
    assert_eq!((world.titles("ok").len(), world.titles("angry").len()), before, "neither gets more");
    world.platform.terminate();
    let mut stopped = world.platform.command();
    stopped.args(["feedback", "mail", "--recipient", &own]).stdin(Stdio::null()).stderr(Stdio::null());
    assert_eq!(stopped.status().expect("it ends").code(), Some(75), "the mail server tries again later");
}
