//! The life of a subscription from its request to a complaint, against the real binary: by mail, with Postfix as the
//! mail server of the recipient, and by SMS, with a server that answers as Twilio does.

mod support;

use std::{collections::BTreeMap, sync::Arc};

use axum::{Json as JsonOf, Router, body::Bytes, extract::State, http::StatusCode, routing::post};
use base64::{Engine, prelude::BASE64_STANDARD};
use parking_lot::Mutex;
use reqwest::{Method, redirect::Policy};
use ring::hmac;
use serde_json::{Value, json};
use support::{Platform, mails::Mails, postfix::Postfix, socket_map::SocketMap, until};
use tocsin_test_peers::{Peer, missing, reserved_port};

const PUBLIC: &str = "https://news.example";
const ADA: &str = "ada@b.example";
const NUMBER: &str = "+436601234567";
const TOKEN: &str = "the auth token of the account";

/// The application `letters`: a class with double opt-in, its confirmation message, and one channel.
fn letters(channel: &str, text: &str) -> String {
    format!(
        r#"
application: letters
events:
  issue: {{ fields: {{ title: string }} }}
  requested: {{ on: subscription.requested, of: weekly }}
subscriptions:
  weekly: {{ fields: {{}}, consent: {{ resend_after: 1s, text: I want the weekly letter., version: 2026-11 }} }}
notifications:
  issue: {{ fields: {{ title: string }}, content: {{ templates: {{ base: {{ {issue} }} }} }} }}
  please_confirm: {{ critical: true, content: {{ templates: {{ base: {{ {text} }} }} }} }}
rules:
  each: {{ on: issue, subscription: weekly, notify: issue }}
  ask: {{ on: requested, subscription: weekly, notify: please_confirm }}
channels:
  out: {channel}
"#,
        issue = r#"subject: "{{ title }}", text: "{{ title }}""#,
    )
}

/// The subscriber of a sign-up form, and what it does with its links.
struct Life {
    platform: Platform,
    browser: reqwest::Client,
    published: u32,
    subscription: String,
    /// Handle of the request.
    request: String,
}

impl Life {
    async fn start(platform: Platform, definition: &str) -> Life {
        platform.apply("letters", definition).await;
        let browser = reqwest::Client::builder().redirect(Policy::none()).build().expect("a client");
        Life { platform, browser, published: 0, subscription: String::new(), request: String::new() }
    }

    /// The sign-up form.
    async fn request(&mut self, address: &str) {
        let form = json!({
            "application": "letters", "class": "weekly", "channel": "out", "address": address, "remote": "192.0.2.9",
        });
        let (status, receipt) = self.platform.post("/v1/consent/requests", &form).await;
        assert_eq!(status, 202, "{receipt}");
        self.request = receipt["request"].as_str().expect("a handle").to_owned();
        self.platform.settled().await;
        let listed = self.platform.get("/v1/subscriptions?application=letters").await;
        self.subscription = listed["items"][0]["id"].as_str().unwrap_or_else(|| panic!("{listed}")).to_owned();
        self.is("pending", false).await;
    }

    /// Publishes an event, and waits until its notification is handed over. Returns its title.
    async fn publish(&mut self) -> String {
        self.published += 1;
        let title = format!("issue {}", self.published);
        let (status, answer) =
            self.platform.post("/v1/applications/letters/events/issue", &json!({ "title": title })).await;
        assert_eq!(status, 202, "{answer}");
        self.platform.settled().await;
        title
    }

    /// Asserts the state of the consent, and whether the subscription is enabled.
    async fn is(&self, consent: &str, enabled: bool) {
        let found = self.platform.get(&format!("/v1/subscriptions/{}", self.subscription)).await;
        assert_eq!((&found["consent"]["state"], &found["enabled"]), (&json!(consent), &json!(enabled)), "{found}");
    }

    /// A request of a browser or a scanner to a link with the public address.
    async fn open(&self, method: Method, link: &str, fields: &[(&str, &str)]) -> (u16, String) {
        let path = link.strip_prefix(PUBLIC).unwrap_or(link);
        let body = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let request = self.browser.request(method, format!("{}{path}", self.platform.url));
        let request = request.header("content-type", "application/x-www-form-urlencoded").body(body);
        let response = request.send().await.expect("an answer");
        let status = response.status().as_u16();
        let location = response.headers().get("location").map(|found| found.to_str().expect("text").to_owned());
        (status, location.unwrap_or(response.text().await.expect("text")))
    }

    /// The requests of link scanners: none of them confirms or ends anything.
    async fn scan(&self, link: &str) {
        for (method, link) in [
            (Method::GET, link.to_owned()),
            (Method::HEAD, link.to_owned()),
            (Method::GET, format!("{link}?utm_source=scanner")),
            (Method::OPTIONS, link.to_owned()),
        ] {
            let (status, _) = self.open(method.clone(), &link, &[]).await;
            assert!(matches!(status, 200 | 204 | 405), "{method} {link}: {status}");
        }
    }

    async fn confirm_by_link(&self, link: &str) {
        let (status, page) = self.open(Method::GET, link, &[]).await;
        assert!(status == 200 && page.contains("I want the weekly letter."), "{status} {page}");
        let (status, page) = self.open(Method::POST, link, &[]).await;
        assert_eq!(status, 200, "{page}");
        self.is("confirmed", true).await;
    }

    async fn suppression(&self, path: &str) -> Value {
        let answer = self.platform.request(Method::GET, path).send().await.expect("an answer");
        answer.json().await.expect("JSON")
    }

    /// Waits for a suppression in force.
    async fn suppressed(&self, path: &str, cause: &str, origin: &str) {
        until(&format!("{path} is suppressed by {cause}"), async || {
            let found = self.suppression(path).await;
            (&found["cause"], &found["in_force"], &found["origin"]) == (&json!(cause), &json!(true), &json!(origin))
        })
        .await;
    }

    /// An operator lifts a suppression.
    async fn lift(&self, path: &str) {
        let answer = self.platform.request(Method::DELETE, path).send().await.expect("an answer");
        assert_eq!(answer.status().as_u16(), 204);
    }

    /// The evidence as `act way`, oldest first.
    async fn evidence(&self) -> Vec<String> {
        let found = self.platform.get(&format!("/v1/subscriptions/{}/consent", self.subscription)).await;
        let text = |one: &Value, name: &str| one[name].as_str().unwrap_or_default().to_owned();
        let all = found["evidence"].as_array().unwrap_or_else(|| panic!("{found}"));
        all.iter().map(|one| format!("{} {}", text(one, "act"), text(one, "way"))).collect()
    }
}

/// The token of a link in a text, from its path to the first character that no token has.
fn link(text: &str, path: &str) -> String {
    let text = text.replace("=\r\n", "");
    let start = format!("{PUBLIC}{path}");
    let rest = text.split_once(&start).unwrap_or_else(|| panic!("no {start} in {text}")).1;
    let is_token = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_' || c == '.';
    format!("{start}{}", rest.split(|c: char| !is_token(c)).next().expect("a token").trim_end_matches('.'))
}

/// The value of a hidden field of a page.
fn field(page: &str, name: &str) -> String {
    let start = format!("name=\"{name}\" value=\"");
    let rest = page.split_once(&start).unwrap_or_else(|| panic!("no field {name} in {page}")).1;
    rest.split('"').next().expect("a value").to_owned()
}

/// A complaint in the abuse reporting format (RFC 5965).
const COMPLAINT: &str = "From: feedback@provider.example\nSubject: FW: news\nMIME-Version: 1.0\n\
    Content-Type: multipart/report; report-type=feedback-report; boundary=b\n\n--b\nContent-Type: text/plain\n\n\
    A recipient reported this as spam.\n--b\nContent-Type: message/feedback-report\n\nFeedback-Type: abuse\n\
    User-Agent: Provider/1.0\nVersion: 1\n\n--b\nContent-Type: message/rfc822\n\n\
    From: news@news.example\nTo: ada@b.example\nSubject: news\nMessage-ID: <n@news.example>\n\nNews\n--b--\n";

fn titles(mails: &Mails) -> Vec<String> {
    mails.all().iter().filter_map(|mail| mail.header("subject")).collect()
}

async fn arrived(mails: &Mails, title: &str) {
    let found = mails.wait_until(|| titles(mails).iter().any(|found| found == title)).await;
    assert!(found, "no mail `{title}`; there are {:?}", titles(mails));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_a_subscription_lives_by_mail_through_postfix() {
    if missing(&[Peer::Postfix, Peer::Root]) {
        return;
    }
    let (feedback, mails, refusals) = (reserved_port(), Mails::start().await, SocketMap::start());
    let postfix = Postfix::start(&format!(
        "relay_domains = b.example, bounces.example\n\
         smtpd_recipient_restrictions = permit_mynetworks, reject\n\
         smtpd_data_restrictions = check_recipient_access {}\n\
         refusals = permit_mynetworks, reject\n\
         transport_maps = inline:{{\n {{b.example = smtp:[127.0.0.1]:{}}}\n \
         {{bounces.example = smtp:[127.0.0.1]:{feedback}}} }}\n",
        refusals.name(),
        mails.port
    ));
    let listen = format!("127.0.0.1:{feedback}");
    let platform = Platform::start(&[
        ("TOCSIN_FEEDBACK_DOMAIN", "bounces.example"),
        ("TOCSIN_FEEDBACK_LISTEN", &listen),
        ("TOCSIN_HTTP_PUBLIC_URL", PUBLIC),
    ])
    .await;
    let channel = format!(
        "{{ protocol: smtp, retry: [], options: {{ host: 127.0.0.1, port: {}, tls: off, from: news@news.example, \
         recipients_max: 1 }} }}",
        postfix.port
    );
    let text = r#"subject: Please confirm, text: "Open {{ confirm_link }} to confirm.""#;
    let mut life = Life::start(platform, &letters(&channel, text)).await;

    // Request, mail, and a scanner that fetches the link before the person does.
    life.request(ADA).await;
    arrived(&mails, "Please confirm").await;
    life.publish().await;
    let confirm = link(&mails.all()[0].text, "/confirm/");
    life.scan(&confirm).await;
    life.is("pending", false).await;
    life.confirm_by_link(&confirm).await;
    assert_eq!(titles(&mails), ["Please confirm"], "nothing was sent before the confirmation");
    let title = life.publish().await;
    arrived(&mails, &title).await;

    // A refusal at DATA; then nothing is sent, until an operator lifts the suppression.
    let address = format!("/v1/suppressions/addresses/smtp/{ADA}");
    refusals.set(ADA, Some("550 5.1.1 no such user here"));
    life.publish().await;
    life.suppressed(&address, "hard_bounce", "session").await;
    assert!(postfix.log().contains("reject: DATA"), "the refusal is one at DATA: {}", postfix.log());
    refusals.set(ADA, None);
    let sent = titles(&mails);
    life.publish().await;
    assert_eq!(titles(&mails), sent);
    life.lift(&address).await;
    let title = life.publish().await;
    arrived(&mails, &title).await;

    // A later server refuses the mail: Postfix sends a delivery status notification to the signed return address.
    mails.set_refused(ADA, true);
    life.publish().await;
    life.suppressed(&address, "hard_bounce", "mail").await;
    mails.set_refused(ADA, false);
    let sent = titles(&mails);
    life.publish().await;
    assert_eq!(titles(&mails), sent);
    life.lift(&address).await;
    let title = life.publish().await;
    arrived(&mails, &title).await;

    // One click of a mail program, and its undo on the page.
    let last = mails.all().pop().expect("a mail");
    assert_eq!(last.header("list-unsubscribe-post").as_deref(), Some("List-Unsubscribe=One-Click"));
    let leave = link(&last.header("list-unsubscribe").expect("the field"), "/unsubscribe/");
    life.scan(&leave).await;
    life.is("confirmed", true).await;
    let (status, page) = life.open(Method::POST, &leave, &[("List-Unsubscribe", "One-Click")]).await;
    assert_eq!(status, 200, "{page}");
    life.is("withdrawn", false).await;
    let sent = titles(&mails);
    life.publish().await;
    assert_eq!(titles(&mails), sent, "it is unsubscribed");
    let undo = [("action", "undo"), ("form", &field(&page, "form")), ("undo", &field(&page, "undo"))];
    let (status, answer) = life.open(Method::POST, &leave, &undo).await;
    assert_eq!(status, 303, "{answer}");
    life.is("confirmed", true).await;
    let (status, page) = life.open(Method::POST, &confirm, &[]).await;
    assert_eq!(status, 200, "the former link changes nothing: {page}");
    let title = life.publish().await;
    arrived(&mails, &title).await;

    // A complaint about the last mail.
    until("Postfix logs the delivery", async || postfix.senders(ADA).len() >= mails.count()).await;
    let sender = postfix.senders(ADA).pop().expect("a delivery");
    let mut command = life.platform.command();
    command.args(["feedback", "mail", "--recipient", &sender]).stdin(std::process::Stdio::piped());
    let mut child = command.stdout(std::process::Stdio::null()).spawn().expect("it starts");
    std::io::Write::write_all(&mut child.stdin.take().expect("piped"), COMPLAINT.as_bytes()).expect("it reads");
    assert!(child.wait().expect("it ends").success());
    life.suppressed(&address, "complaint", "mail").await;
    let sent = titles(&mails);
    life.publish().await;
    assert_eq!(titles(&mails), sent, "it complained");
    assert_eq!(titles(&mails), ["Please confirm", "issue 2", "issue 5", "issue 8", "issue 10"]);
    assert_eq!(life.evidence().await, ["requested api", "confirmed link", "withdrawn link", "restored page"]);
}

/// A server with the API of Twilio for sending.
#[derive(Clone, Default)]
struct Twilio {
    sent: Arc<Mutex<Vec<BTreeMap<String, String>>>>,
    /// Error code of the next answers.
    error: Arc<Mutex<Option<u32>>>,
}

impl Twilio {
    async fn start() -> (Twilio, u16) {
        let (twilio, socket) =
            (Twilio::default(), tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port"));
        let port = socket.local_addr().expect("an address").port();
        let path = "/2010-04-01/Accounts/AC1/Messages.json";
        let router = Router::new().route(path, post(take)).with_state(twilio.clone());
        tokio::spawn(async move { axum::serve(socket, router).await });
        (twilio, port)
    }

    fn texts(&self) -> Vec<String> {
        self.sent.lock().iter().map(|form| form["Body"].clone()).collect()
    }

    /// The path of the callback of the last message, with its query.
    fn callback(&self) -> String {
        let url = self.sent.lock().last().expect("a message")["StatusCallback"].clone();
        url.strip_prefix(PUBLIC).expect("the public address").to_owned()
    }
}

async fn take(State(twilio): State<Twilio>, body: Bytes) -> (StatusCode, JsonOf<Value>) {
    let form = url::form_urlencoded::parse(&body).into_owned().collect();
    if let Some(code) = *twilio.error.lock() {
        return (StatusCode::BAD_REQUEST, JsonOf(json!({ "code": code, "message": "not sent", "status": 400 })));
    }
    let mut sent = twilio.sent.lock();
    sent.push(form);
    (StatusCode::CREATED, JsonOf(json!({ "sid": format!("SM{}", sent.len()), "status": "queued" })))
}

/// A callback of Twilio, signed with the token of the account.
async fn callback(life: &Life, path: &str, parameters: &[(&str, &str)]) -> (u16, String) {
    let mut sorted = parameters.to_vec();
    sorted.sort_unstable();
    let signed = sorted.iter().fold(format!("{PUBLIC}{path}"), |text, (name, value)| text + name + value);
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, TOKEN.as_bytes());
    let signature = BASE64_STANDARD.encode(hmac::sign(&key, signed.as_bytes()));
    let body = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(parameters).finish();
    let request = life.browser.post(format!("{}{path}", life.platform.url)).header("x-twilio-signature", signature);
    let request = request.header("content-type", "application/x-www-form-urlencoded").body(body);
    let response = request.send().await.expect("an answer");
    (response.status().as_u16(), response.text().await.expect("text"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_a_subscription_lives_by_sms_through_the_recipe_of_twilio() {
    let (twilio, port) = Twilio::start().await;
    let platform = Platform::start(&[("TOCSIN_HTTP_PUBLIC_URL", PUBLIC)]).await;
    let channel = format!(
        "{{ protocol: http, retry: [], options: {{ recipe: twilio, allow_networks: [127.0.0.1], with: {{ account: AC1, \
         token: t, from: '+4930123456', server: 'http://127.0.0.1:{port}' }}, feedback: {{ provider: twilio, \
         key: {TOKEN} }} }} }}"
    );
    let text = r#"text: "Confirm: {{ confirm_code }} or {{ confirm_link }}", sms: "Confirm: {{ confirm_code }} or {{ confirm_link }}""#;
    let mut life = Life::start(platform, &letters(&channel, text)).await;

    // Request, message, a scanner, a wrong code, the right one.
    life.request(NUMBER).await;
    until("the request is sent", async || !twilio.texts().is_empty()).await;
    let asked = twilio.texts();
    life.publish().await;
    life.scan(&link(&asked[0], "/confirm/")).await;
    life.is("pending", false).await;
    let code = asked[0].split(' ').nth(1).expect("a code").to_owned();
    let wrong = if code == "000000" { "000001" } else { "000000" };
    for (code, expected) in [(wrong, 422), (code.as_str(), 204)] {
        let body = json!({ "request": life.request, "code": code, "remote": "192.0.2.9" });
        assert_eq!(life.platform.post("/v1/consent/confirmations", &body).await.0, expected);
    }
    life.is("confirmed", true).await;
    let title = life.publish().await;
    assert_eq!(twilio.texts()[1..], [title]);

    // A receipt says later that the number does not exist; an operator lifts the suppression.
    let address = format!("/v1/suppressions/addresses/http/{NUMBER}");
    let receipt = [("MessageSid", "SM2"), ("MessageStatus", "undelivered"), ("ErrorCode", "30005"), ("To", NUMBER)];
    assert_eq!(callback(&life, &twilio.callback(), &receipt).await.0, 200);
    life.suppressed(&address, "hard_bounce", "twilio").await;
    life.publish().await;
    assert_eq!(twilio.texts().len(), 2, "nothing is sent to it");
    life.lift(&address).await;
    assert_eq!(callback(&life, &twilio.callback(), &receipt).await.0, 200);
    let title = life.publish().await;
    assert_eq!(twilio.texts()[2..], [title], "the receipt counted before");

    // The service refuses the number in its answer; an operator activates the device again.
    *twilio.error.lock() = Some(21_211);
    life.publish().await;
    *twilio.error.lock() = None;
    let owner = life.platform.get(&format!("/v1/subscriptions/{}", life.subscription)).await["subscriber"].clone();
    let device = format!("/v1/subscribers/{}/devices/out", owner.as_str().expect("an id"));
    let path = format!("/v1/subscribers/{}", owner.as_str().expect("an id"));
    let state = async || life.platform.get(&path).await["devices"]["out"]["state"].clone();
    until("the device is marked", async || state().await == "bounced").await;
    let active = json!({ "channel": "out", "address": NUMBER, "state": "active" });
    let put = life.platform.request(Method::PUT, &device).json(&active).send().await.expect("an answer");
    assert!(put.status().is_success(), "{}", put.text().await.unwrap_or_default());
    life.is("confirmed", true).await;
    let title = life.publish().await;
    assert_eq!(twilio.texts()[3..], [title]);

    // STOP ends the messages of the channel, START undoes it, also if the former replies arrive again.
    let path = "/v1/feedback/letters/out";
    let reply = |id: &'static str, text: &'static str| {
        [("MessageSid", id), ("SmsStatus", "received"), ("From", NUMBER), ("To", "+4930123456"), ("Body", text)]
    };
    let stopped = format!("/v1/suppressions/channels/letters/out/{NUMBER}");
    for repeated in [false, true] {
        let sent = twilio.texts().len();
        if !repeated {
            assert_eq!(callback(&life, path, &reply("SM-stop", "Stop")).await.0, 200);
            life.suppressed(&stopped, "unsubscribed", "twilio").await;
            life.publish().await;
            assert_eq!(twilio.texts().len(), sent);
            assert_eq!(callback(&life, path, &reply("SM-start", "START")).await.0, 200);
        } else {
            life.platform.kill();
            life.platform.restart().await;
            assert_eq!(callback(&life, path, &reply("SM-stop", "Stop")).await.0, 200);
        }
        assert_eq!(life.suppression(&stopped).await["status"], 404);
        let title = life.publish().await;
        assert_eq!(twilio.texts()[sent..], [title]);
    }

    // A complaint that the operator of the service passes on.
    let report = json!({ "reports": [{ "kind": "complaint", "protocol": "http", "address": NUMBER }] });
    let (status, answer) = life.platform.post("/v1/suppressions/reports", &report).await;
    assert_eq!(status, 200, "{answer}");
    let found = life.suppression(&address).await;
    assert_eq!((&found["cause"], &found["in_force"]), (&json!("complaint"), &json!(true)), "{found}");
    let sent = twilio.texts();
    life.publish().await;
    assert_eq!(twilio.texts(), sent, "it complained");
    assert_eq!(life.evidence().await, ["requested api", "confirmed code"]);
}

/// The writer of a change does not matter: an import recalls what waits for its turn in the channel.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_a_message_that_waits_for_its_turn_is_not_sent_after_an_import_ends_its_subscription() {
    let mails = Mails::start().await;
    let platform = Platform::start(&[]).await;
    let application = format!(
        r#"
application: news
events: {{ issue: {{ fields: {{ title: string }} }} }}
subscriptions: {{ every: {{ fields: {{}} }} }}
notifications:
  issue: {{ fields: {{ title: string }}, content: {{ templates: {{ base: {{ subject: "{{{{ title }}}}", text: x }} }} }} }}
rules: {{ each: {{ on: issue, subscription: every, notify: issue }} }}
channels:
  email:
    protocol: smtp
    retry: []
    flow: {{ rate: {{ messages: 1, per: 2s }} }}
    options: {{ host: 127.0.0.1, port: {}, tls: off, from: news@news.example, recipients_max: 1 }}
"#,
        mails.port
    );
    platform.apply("news", &application).await;
    for id in ["ann", "bob", "eve"] {
        let subscriber =
            json!({"id": id, "devices": {"main": {"channel": "email", "address": format!("{id}@b.example")}}});
        assert_eq!(platform.post("/v1/subscribers", &subscriber).await.0, 201);
    }
    let import = async |enabled: bool| {
        let lines = ["ann", "bob", "eve"].map(|id| {
            let enabled = enabled || id != "eve";
            json!({"application": "news", "class": "every", "subscriber": id, "key": "k", "values": {}, "enabled": enabled})
        });
        let body = lines.map(|line| line.to_string()).join("\n");
        let request = platform.request(Method::POST, "/v1/import/subscriptions");
        let answer = request.header("content-type", "application/x-ndjson").body(body).send().await.expect("an answer");
        assert_eq!(answer.status().as_u16(), 200, "{}", answer.text().await.unwrap_or_default());
    };
    let got = |id: &str, title: &str| {
        let is_it = |mail: &support::mails::Mail| {
            mail.header("subject").as_deref() == Some(title) && mail.to.iter().any(|to| to.starts_with(id))
        };
        mails.all().iter().any(is_it)
    };
    // A slow machine may send the last message before the import is stored: then the round proves nothing.
    for round in 1.. {
        assert!(round < 20, "the import is always slower than three messages at one in two seconds");
        import(true).await;
        let title = format!("issue {round}");
        let (status, answer) = platform.post("/v1/applications/news/events/issue", &json!({ "title": title })).await;
        assert_eq!(status, 202, "{answer}");
        assert!(mails.wait_until(|| got("ann", &title)).await, "the first message is sent");
        import(false).await;
        let was_late = got("eve", &title);
        platform.settled().await;
        if !was_late {
            assert!(got("bob", &title), "others get it");
            assert!(!got("eve", &title), "it was sent after the import was answered");
            return;
        }
    }
}
