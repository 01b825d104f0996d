use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{self, Poll},
    time::Duration,
};

use async_trait::async_trait;
use axum::{Router, body::Bytes, extract::State, http::HeaderMap, routing::post};
use base64::{Engine, prelude::BASE64_STANDARD};
use parking_lot::Mutex;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use serde_json::{Value, json};
use standardwebhooks::Webhook;
use tocsin_connect::{options::read, tls::Stream};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf, duplex},
    sync::mpsc,
};

mod conformance;
mod faults;
mod recipes;
mod recipients;

use super::{classify::Answers, connect::Dial, options::HttpOptions, response::Response, sign::Signer};
use crate::{
    channel::{Answer, OpenChannel, Outgoing},
    testing::{NOW, channel, content_of, context, outgoing, show},
};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const OTHER_SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

async fn collect(mut answered: mpsc::Receiver<Answer>) -> Vec<Answer> {
    let mut all = Vec::new();
    while let Some(answer) = answered.recv().await {
        all.extend(answer.into_each());
    }
    all.sort_by_key(|answer| answer.ticket.ordinal);
    all
}

async fn deliver_all(open: &dyn OpenChannel, messages: Vec<Outgoing>) -> Vec<Answer> {
    let (answers, answered) = mpsc::channel(16);
    let count = messages.len();
    let sending = async move { open.send_all(messages, &answers).await };
    let ((), all) = tokio::join!(sending, collect(answered));
    assert_eq!(all.len(), count, "one answer each");
    all
}

async fn deliver(open: &dyn OpenChannel, addresses: &[&str]) -> Vec<String> {
    let messages = addresses.iter().enumerate().map(|(number, address)| outgoing(number as u32, address)).collect();
    let all = deliver_all(open, messages).await;
    all.iter().map(|answer| show(&answer.disposition)).collect()
}

/// Action of the scripted server for a request.
#[derive(Clone)]
enum Act {
    /// Responds with these bytes.
    Say(&'static str),
    /// The same with a text made at run time.
    Said(String),
    /// Responds and closes.
    Last(&'static str),
    /// For request 0: every read from the connection fails.
    Reset,
    /// Closes.
    Close,
    /// Never responds.
    Silence,
    /// Sends a body without an end.
    Endless,
    /// Sends a byte a second.
    Drip,
}
use Act::*;

/// Chooses an action by the numbers of the connection and of the request on it, and the server's address.
type Script = fn(u32, u32, SocketAddr) -> Act;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

struct Scripted {
    script: Arc<dyn Fn(u32, u32, SocketAddr) -> Act + Send + Sync>,
    connections: AtomicU32,
    heads: Arc<Mutex<Vec<String>>>,
}

#[async_trait]
impl Dial for Scripted {
    async fn dial(&self, address: SocketAddr) -> io::Result<Box<dyn Stream>> {
        let connection = self.connections.fetch_add(1, Ordering::SeqCst) + 1;
        match (self.script)(connection, 0, address) {
            Close => return Err(io::ErrorKind::ConnectionRefused.into()),
            Reset => return Ok(Box::new(Torn)),
            _ => {}
        }
        let (near, mut far) = duplex(1 << 16);
        let (script, heads) = (self.script.clone(), self.heads.clone());
        tokio::spawn(async move {
            let (mut unread, mut request) = (Vec::with_capacity(1 << 16), 0);
            loop {
                while !is_whole(&unread) {
                    if !matches!(far.read_buf(&mut unread).await, Ok(1..)) {
                        return;
                    }
                }
                heads.lock().push(String::from_utf8_lossy(&unread).into_owned());
                unread.clear();
                request += 1;
                match script(connection, request, address) {
                    Said(text) => far.write_all(text.as_bytes()).await.expect("an open connection"),
                    Reset => return,
                    Say(text) => far.write_all(text.as_bytes()).await.expect("an open connection"),
                    Last(text) => return far.write_all(text.as_bytes()).await.expect("an open connection"),
                    Close => return,
                    Silence => std::future::pending().await,
                    Endless => {
                        far.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await.ok();
                        while far.write_all(b"3e8\r\n").await.is_ok() && far.write_all(&[b'x'; 1000]).await.is_ok() {
                            far.write_all(b"\r\n").await.ok();
                        }
                    }
                    Drip => {
                        for byte in OK.bytes() {
                            tokio::time::sleep(Duration::from_secs(1)).await;
                            far.write_all(&[byte]).await.ok();
                        }
                    }
                }
            }
        });
        Ok(Box::new(near))
    }
}

/// Whether these bytes are a request with all of its body.
fn is_whole(bytes: &[u8]) -> bool {
    let Some(end) = bytes.windows(4).position(|end| end == b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    bytes.len() >= end + 4 + length.unwrap_or(0usize)
}

/// A connection that fails at the first read.
struct Torn;

impl AsyncRead for Torn {
    fn poll_read(self: Pin<&mut Self>, _: &mut task::Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
    }
}

impl AsyncWrite for Torn {
    fn poll_write(self: Pin<&mut Self>, _: &mut task::Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut task::Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut task::Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn start(script: Script, options: Value, concurrency: u32) -> (Box<dyn OpenChannel>, Arc<Scripted>) {
    start_with(Arc::new(script), options, concurrency)
}

fn start_with(
    script: Arc<dyn Fn(u32, u32, SocketAddr) -> Act + Send + Sync>,
    options: Value,
    concurrency: u32,
) -> (Box<dyn OpenChannel>, Arc<Scripted>) {
    let options: HttpOptions =
        read(options.as_object().expect("an object"), "").unwrap_or_else(|problems| panic!("{problems:?}"));
    let dial = Arc::new(Scripted { script, connections: AtomicU32::new(0), heads: Arc::default() });
    let trust = options.client.certificates.client_config(&context().files).expect("readable files");
    let channel = channel("http", json!({}), concurrency);
    (super::start(&"hook".parse().expect("a name"), &channel, &context(), options, trust, dial.clone()), dial)
}

const HOOK: &str = "http://1.1.1.1/hook?a=b";

/// Sends three requests, one after the other; compares their results and the number of connections.
async fn check(script: Script, expected: [&str; 3], connections: u32) -> Arc<Scripted> {
    let (open, far) = start(script, json!({}), 1);
    assert_eq!(deliver(&*open, &[HOOK; 3]).await, expected);
    assert_eq!(far.connections.load(Ordering::SeqCst), connections, "connections");
    far
}

#[tokio::test(start_paused = true)]
async fn connections_are_kept() {
    let far = check(|_, _, _| Say(OK), ["delivered 200"; 3], 1).await;
    let heads = far.heads.lock();
    assert!(heads[0].starts_with("POST /hook?a=b HTTP/1.1\r\nhost: 1.1.1.1\r\n"), "{}", heads[0]);
    assert!(heads[0].ends_with(r#"{"id":"n-7-0.test","type":"quake","timestamp":"2026-11-21T09:30:00Z","data":{"magnitude":6.1,"place":"Kobe"}}"#), "{}", heads[0]);
}

#[tokio::test(start_paused = true)]
async fn a_connection_closed_while_idle_costs_nothing() {
    check(|_, _, _| Last(OK), ["delivered 200"; 3], 3).await;
    check(|_, _, _| Say("HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"), ["delivered 204"; 3], 3).await;
}

#[tokio::test(start_paused = true)]
async fn responses_that_are_none() {
    let script: Script = |connection, request, _| match (connection, request) {
        (1, 1) => Close,
        (2, 1) => Say("what?\r\n\r\n"),
        (_, 0) => Say(""),
        _ => Silence,
    };
    let (open, _) = start(script, json!({}), 1);
    let before = tokio::time::Instant::now();
    let shown = deliver(&*open, &[HOOK; 3]).await;
    assert!(shown[0].starts_with("deferred Connection no response: "), "{shown:?}");
    assert!(shown[1].starts_with("deferred Connection no response: "), "{shown:?}");
    assert_eq!(shown[2], "deferred Timeout no complete response within 15s");
    assert!(before.elapsed() < Duration::from_secs(16));
}

#[tokio::test(start_paused = true)]
async fn endless_and_slow_responses_are_bounded() {
    check(|_, _, _| Endless, ["delivered 200"; 3], 3).await;
    check(|_, _, _| Drip, ["deferred Timeout no complete response within 15s"; 3], 3).await;
    static LONG_HEAD: std::sync::LazyLock<String> =
        std::sync::LazyLock::new(|| format!("HTTP/1.1 200 OK\r\na: {}\r\n\r\n", "x".repeat(100_000)));
    let (open, _) = start(|_, _, _| Say(&LONG_HEAD), json!({}), 1);
    let shown = deliver(&*open, &[HOOK]).await;
    assert!(shown[0].starts_with("deferred Connection no response: "), "{shown:?}");
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_server_defers_messages() {
    let expected = "deferred Connection no connection to 1.1.1.1:80: connection refused";
    check(|_, _, _| Close, [expected; 3], 3).await;
}

#[tokio::test(start_paused = true)]
async fn redirects_are_not_followed() {
    let script: Script =
        |_, _, _| Say("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n");
    let expected = "refused Answer 302: redirects are not followed; the device's address must be the final URL";
    check(script, [expected; 3], 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_dead_destination_does_not_hold_up_the_others() {
    let script: Script = |_, request, address| match (request, address.ip().to_string().as_str()) {
        (1.., "9.9.9.9") => Silence,
        _ => Say(OK),
    };
    let (open, _) = start(script, json!({}), 4);
    let (answers, mut answered) = mpsc::channel(64);
    // The dead destination has all its messages in flight before the first of the others comes.
    open.send_all((0..20).map(|number| outgoing(number, "http://9.9.9.9/")).collect(), &answers).await;
    tokio::task::yield_now().await;
    let before = tokio::time::Instant::now();
    open.send_all((100..150).map(|number| outgoing(number, HOOK)).collect(), &answers).await;
    for _ in 0..50 {
        let answer = answered.recv().await.expect("an answer");
        assert!(answer.ticket.ordinal >= 100 && show(&answer.disposition) == "delivered 200", "{answer:?}");
    }
    assert!(before.elapsed() < Duration::from_secs(1), "{:?}", before.elapsed());
    drop(open);
    drop(answers);
    assert_eq!(collect(answered).await.len(), 20);
}

#[tokio::test]
async fn no_spelling_reaches_a_non_public_address() {
    let (open, far) = start(|_, _, _| Say(OK), json!({}), 1);
    let spellings = [
        "http://127.0.0.1/",
        "http://127.1/",
        "http://127.0.1/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0x7f.1/",
        "http://0177.0.0.1/",
        "http://017700000001/",
        "http://0/",
        "http://0.0.0.0/",
        "http://[::]/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:7f00:1]/",
        "http://[::127.0.0.1]/",
        "http://[64:ff9b::127.0.0.1]/",
        "http://[64:ff9b:1::1]/",
        "http://[2002:7f00:1::]/",
        "http://[fe80::1]/",
        "http://[fc00::1]/",
        "http://[fd00:ec2::254]/",
        "http://[ff02::1]/",
        "http://10.0.0.1/",
        "http://172.16.0.1/",
        "http://192.168.0.1/",
        "http://100.64.0.1/",
        "http://169.254.169.254/latest/meta-data/",
        "http://198.18.0.1/",
        "http://224.0.0.1/",
        "http://255.255.255.255/",
        "http://localhost/",
        "http://LOCALHOST./",
        "http://①②⑦.⓪.⓪.①/",
        "http://127。0。0。1/",
        "http://127.0.0.1:80/",
        "http:127.0.0.1",
        "http:\\\\127.0.0.1\\",
        "https://127.0.0.1/",
        "http://%31%32%37.0.0.1/",
        "http://127.0.0.1%2f@1.1.1.1/",
        "http://1.1.1.1@127.0.0.1/",
        "http://user:password@1.1.1.1/",
        "ftp://1.1.1.1/",
        "file:///etc/passwd",
        "gopher://1.1.1.1/",
        "//1.1.1.1/",
        "1.1.1.1",
        "",
        "http://",
        "http://1.1.1.1:0/",
        "http://1.1.1.1:99999/",
        "javascript:alert(1)",
        "unix:/run/docker.sock",
        "http://1.1.1.1 /",
        "http://[::1%25lo]/",
    ];
    for address in spellings {
        let shown = deliver(&*open, &[address]).await;
        // A name that the resolver does not know is unreachable.
        assert!(
            shown[0].starts_with("refused Address ") || shown[0].contains(" is not found: "),
            "{address}: {shown:?}"
        );
    }
    assert_eq!(far.connections.load(Ordering::SeqCst), 0, "nobody was called");
}

#[tokio::test]
async fn allowed_private_networks_are_reached() {
    let (open, far) =
        start(|_, _, _| Say(OK), json!({ "allow_networks": ["127.0.0.0/8"], "allow_hosts": ["localhost"] }), 1);
    assert_eq!(
        deliver(&*open, &["http://127.0.0.1/", "http://0x7f.1/", "http://localhost/"]).await,
        ["delivered 200"; 3]
    );
    assert!(
        deliver(&*open, &["http://10.0.0.1/"]).await[0]
            .starts_with("refused Address 10.0.0.1 leads to 10.0.0.1, a private address")
    );
    assert!(far.connections.load(Ordering::SeqCst) > 0);
}

#[tokio::test(start_paused = true)]
async fn strangers_are_not_trusted() {
    let (open, _) = start(|_, _, _| Say(OK), json!({}), 1);
    // The server does not support TLS.
    let shown = deliver(&*open, &["https://1.1.1.1/"]).await;
    assert!(shown[0].starts_with("deferred T"), "{shown:?}");
}

#[test]
fn responses_by_status() {
    let (answers, now) = (Answers::default(), NOW.parse().expect("a time"));
    let shown = |status, body: &str| {
        let response =
            Response { status, retry_after: Some("7".into()), body: body.into(), whole: true, ..Response::default() };
        show(&answers.classify(&response, now, Duration::from_secs(60)).disposition)
    };
    for status in [200, 201, 202, 204, 299] {
        assert_eq!(shown(status, "fine"), format!("delivered {status}"));
    }
    for status in [408, 425, 429, 500, 502, 503, 504, 599, 600, 999] {
        assert_eq!(shown(status, "not\r\n  now"), format!("deferred Answer {status} not now"));
    }
    for status in [400, 401, 403, 404, 405, 413, 415, 422] {
        assert_eq!(shown(status, ""), format!("refused Answer {status}"));
    }
    for status in [300, 301, 302, 303, 307, 308] {
        assert!(shown(status, "").starts_with("refused"));
    }
    assert!(shown(410, "").ends_with("gone for good"));
    assert!(shown(500, &"ü".repeat(5000)).chars().count() < 250);
}

#[test]
fn an_incomplete_body_has_no_outcome() {
    let rules = json!([
        {"status": "2xx", "json": "/status", "is": ["1"], "means": "refused"},
        {"status": "200", "means": "delivered"},
    ]);
    let rules: Vec<super::options::AnswerRule> = serde_json::from_value(rules).expect("rules");
    let (answers, now) = (Answers::read(&rules).expect("good rules"), NOW.parse().expect("a time"));
    let shown = |answers: &Answers, status, body: &str, cut| {
        let response = Response { status, body: body.into(), cut, ..Response::default() };
        show(&answers.classify(&response, now, Duration::from_secs(60)).disposition)
    };
    let lost = "the body decides what this response means, and it broke off or is too long";
    assert_eq!(shown(&answers, 200, r#"{"status": 1"#, true), format!("deferred Answer 200: {lost}"));
    assert_eq!(shown(&answers, 200, r#"{"status": 1"#, false), "delivered 200 {\"status\": 1");
    assert_eq!(shown(&answers, 400, "{", true), "refused Answer 400 {", "no rule looks into it");
    assert_eq!(shown(&Answers::default(), 200, "{", true), "delivered 200", "the status decides");
    let marked = "\u{feff}{\"status\": \"1\"}";
    assert_eq!(shown(&answers, 200, marked, false), format!("refused Answer 200 {marked}"), "after a byte-order mark");
}

#[tokio::test(start_paused = true)]
async fn a_value_cannot_leave_its_path_segment() {
    let options = json!({"url": "http://1.1.1.1/v1/send/{address}/now?to={address}"});
    let (open, far) = start_with(Arc::new(|_, _, _| Say(OK)), options, 1);
    let seen = deliver(&*open, &["..", ".", "%2e%2E", "a/../..", "x?y#z"]).await;
    let elsewhere = |dots: &str| {
        format!(
            "refused Address `http://1.1.1.1/v1/send/{dots}/now` would lead elsewhere: what fills in a part of a path is \
             `.` or `..`"
        )
    };
    assert_eq!(seen[..2], [elsewhere(".."), elsewhere(".")]);
    assert_eq!(seen[2..], ["delivered 200"; 3]);
    let heads = far.heads.lock();
    let lines: Vec<&str> = heads.iter().filter_map(|head| head.lines().next()).collect();
    assert_eq!(
        lines,
        [
            "POST /v1/send/%252e%252E/now?to=%252e%252E HTTP/1.1",
            "POST /v1/send/a%2F..%2F../now?to=a%2F..%2F.. HTTP/1.1",
            "POST /v1/send/x%3Fy%23z/now?to=x%3Fy%23z HTTP/1.1",
        ]
    );
}

#[test]
fn retry_after_is_honoured() {
    let now = NOW.parse().expect("a time");
    let most = Duration::from_secs(3600);
    for (value, seconds) in [
        ("120", Some(120)),
        (" 5 ", Some(5)),
        ("0", Some(0)),
        ("999999", Some(3600)),
        ("99999999999999999999999999", Some(3600)),
        ("Sat, 21 Nov 2026 09:31:00 GMT", Some(60)),
        ("Sat, 21 Nov 2026 08:00:00 GMT", Some(0)),
        ("Fri, 21 Nov 2036 08:00:00 GMT", Some(3600)),
        ("soon", None),
        ("-5", None),
        ("", None),
    ] {
        let found = tocsin_model::http_date::retry_after([value], now, most);
        assert_eq!(found, seconds.map(Duration::from_secs), "{value}");
    }
}

#[test]
fn the_signature_of_the_specification() {
    let signer = Signer::new(SECRET).expect("a secret");
    let signature = signer.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
    assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    // The same, signed by a key pair: the private key is 32 bytes of 7.
    let seed = BASE64_STANDARD.encode([7u8; 32]);
    let signature = Signer::new(&format!("{SECRET} whsk_{seed}")).expect("secrets").sign("id", 5, b"body");
    let (symmetric, asymmetric) = signature.split_once(' ').expect("two signatures");
    assert!(symmetric.starts_with("v1,"));
    let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).expect("a key");
    let bytes = BASE64_STANDARD.decode(asymmetric.strip_prefix("v1a,").expect("a version")).expect("base64");
    let public = UnparsedPublicKey::new(&ED25519, pair.public_key().as_ref());
    public.verify(b"id.5.body", &bytes).expect("a good signature");
    let long_key = BASE64_STANDARD.encode([&[7u8; 32], pair.public_key().as_ref()].concat());
    let again = Signer::new(&format!("whsk_{long_key}")).expect("a key").sign("id", 5, b"body");
    assert_eq!(again, asymmetric, "with its public key behind it");
    let longer = format!("whsec_{}", "A".repeat(88));
    for wrong in [
        "",
        "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "whsec_",
        "whsec_c2hvcnQ=",
        "whsec_?",
        "whsk_c2hvcnQ=",
        "whpk_AAAA",
        &longer,
        &format!("{SECRET} whsec_x"),
    ] {
        assert!(Signer::new(wrong).err().is_some_and(|text| !text.contains("c2hv")), "{wrong}");
    }
}

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<(HeaderMap, Bytes)>>>);

/// A receiver that verifies with the published library.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_published_library_verifies_the_signatures() {
    async fn take(State(sink): State<Sink>, headers: HeaderMap, body: Bytes) -> &'static str {
        sink.0.lock().push((headers, body));
        "thanks"
    }
    let sink = Sink::default();
    let router = Router::new().route("/hook", post(take)).with_state(sink.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = format!("http://{}/hook", listener.local_addr().expect("an address"));
    tokio::spawn(async move { axum::serve(listener, router).await });

    let options = json!({ "secret": format!("{SECRET} {OTHER_SECRET}"), "allow_networks": ["127.0.0.1"], "headers": { "x-from": "tocsin" } });
    // The library compares the time of the request with the system clock.
    let context = crate::Context { clock: Arc::new(tocsin_connect::SystemClock), ..context() };
    let name = "hook".parse().expect("a name");
    let open =
        crate::open(&name, &channel("http", options, 4), &context).unwrap_or_else(|problems| panic!("{problems:?}"));
    let (answers, answered) = mpsc::channel(64);
    for number in 0..20 {
        let mut message = outgoing(number, &address);
        content_of(&mut message).json =
            (number % 2 == 0).then(|| "{ \"text\":\t\"Ünïcödé \\r\\n 神戸\" }\r\n".to_owned());
        open.send(message.clone(), &answers).await;
        open.send(message, &answers).await;
    }
    drop(answers);
    let all = collect(answered).await;
    assert!(all.len() == 40 && all.iter().all(|answer| show(&answer.disposition) == "delivered 200"), "{all:?}");
    open.wait_until_answered().await;
    open.close().await;

    let received = sink.0.lock();
    let header = |headers: &HeaderMap, name: &str| headers[name].to_str().expect("text").to_owned();
    for (headers, body) in received.iter() {
        for secret in [SECRET, OTHER_SECRET] {
            Webhook::new(secret).expect("a secret").verify(body, headers).expect("a good signature");
        }
        assert!(
            Webhook::new("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA").expect("a secret").verify(body, headers).is_err()
        );
        assert_eq!(
            (header(headers, "x-from"), header(headers, "content-type")),
            ("tocsin".into(), "application/json".into())
        );
        let json: Value = serde_json::from_slice(body).expect("JSON");
        assert!(json["text"] == "Ünïcödé \r\n 神戸" || json["id"] == header(headers, "webhook-id"));
    }
    let ids: std::collections::HashSet<String> =
        received.iter().map(|(headers, _)| header(headers, "webhook-id")).collect();
    assert_eq!(ids.len(), 20, "the same id at every attempt");
}
