//! Tests of trace contexts of messages: received, forwarded and exported.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

use async_nats::{
    HeaderMap,
    jetstream::{self, stream},
};
use tocsin_connect::spans::{Attribute, Span, SpanKind};
use tocsin_test_peers::{Peer, missing};
use tokio::sync::mpsc;

use super::*;

const CAME: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const UNSAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

/// An exchange whose spans somebody wants; of what comes without a trace `ratio` begins one.
async fn traced(ratio: f64) -> (Bed, mpsc::Receiver<Span>) {
    let folder = tempfile::tempdir().expect("a folder");
    let (a, b) = (FarSide::start().await, FarSide::start().await);
    let (spans, listener) = Spans::new(100, ratio);
    let exchanges = open_traced(folder.path(), spans).await;
    exchanges.operations.apply(&definition(&a, &b, ""), "test").await.expect("a good definition");
    (Bed { exchanges, a, b, folder }, listener)
}

impl Bed {
    /// Sends an order with these headers of a trace.
    async fn traced_order(&self, port: &str, trace: &[(&str, &str)]) -> MessageId {
        let running = self.exchanges.find(&name("orders")).expect("it runs");
        let own = [("x-sender", "a")];
        let incoming = IncomingMessage {
            content_type: "application/json".into(),
            headers: own.iter().chain(trace).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            body: Bytes::from_static(br#"{"type": "order", "order": 7}"#),
            ..IncomingMessage::default()
        };
        self.exchanges.intake.receive(&running, &name(port), incoming).await.expect("taken").id
    }
}

/// Applies an exchange that sends to `a` whatever comes through its receive ports.
async fn all_to(a: &FarSide, exchanges: &Arc<Exchanges>, exchange: &str, receive: &str) {
    let text = format!(
        r#"
exchange: {exchange}
receive:{receive}
send:
  a: {{ mode: one_way, protocol: http, options: {{ url: "{}/", allow_networks: [127.0.0.1] }}, retry: [] }}
routes:
  each: {{ when: "message.kind == 'one_way'", to: a }}
"#,
        a.url
    );
    exchanges.operations.apply(&text, "test").await.unwrap_or_else(|error| panic!("{error:?}"));
}

/// The trace headers that a receiver got.
fn trace_headers(asked: &Asked) -> (Option<&str>, Option<&str>) {
    let header = |name: &str| asked.headers.get(name).map(String::as_str);
    (header("traceparent"), header("tracestate"))
}

fn attribute<'s>(span: &'s Span, wanted: &str) -> &'s Attribute {
    let found = span.attributes.iter().find(|(name, _)| *name == wanted);
    &found.unwrap_or_else(|| panic!("{wanted}: {span:?}")).1
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_goes_by_b_back_to_a_and_each_step_is_told() {
    let (bed, mut listener) = traced(0.0).await;
    bed.b.failures.lock().push(503);
    // The second exports no span.
    let id =
        bed.traced_order("orders", &[("traceparent", CAME), ("tracestate", "rojo=1"), ("tracestate", "congo=2")]).await;
    bed.a.asked_times(1).await;
    bed.traced_order("orders", &[]).await;
    let at_a = bed.a.asked_times(2).await;
    let at_b = bed.b.asked_times(3).await;
    let mut spans = HashMap::<String, Vec<Span>>::new();
    for _ in 0..4 {
        let span = listener.recv().await.expect("a span");
        spans.entry(span.name.clone()).or_default().push(span);
    }
    assert!(listener.try_recv().is_err(), "a message without a trace exports no span");
    let [received] = &spans["receive orders"][..] else { panic!("{spans:?}") };
    let came = TraceContext::read(CAME, Some("rojo=1,congo=2")).expect("a context");
    assert_eq!((received.parent, received.kind), (came.parent(), SpanKind::Consumer));
    assert_eq!((received.context.trace, &*received.context.state), (came.trace, "rojo=1,congo=2"));
    assert_eq!(attribute(received, "tocsin.message"), &Attribute::Text(id.to_string()));
    // Both attempts come of the receipt, and each request names its own span.
    let [failed, done] = &spans["send b"][..] else { panic!("{spans:?}") };
    assert!(failed.failed.is_some() && done.failed.is_none(), "{spans:?}");
    assert_ne!(failed.context.span, done.context.span);
    for (span, asked) in [failed, done].into_iter().zip(&at_b) {
        assert_eq!((span.parent, span.kind), (Some(received.context.span), SpanKind::Producer));
        assert_eq!(trace_headers(asked), (Some(span.context.parent_text().as_str()), Some("rojo=1,congo=2")));
    }
    assert_eq!(attribute(done, "tocsin.attempt"), &Attribute::Number(2));
    // The reply comes of the attempt that brought it.
    let [back] = &spans["send a"][..] else { panic!("{spans:?}") };
    assert_eq!(back.parent, Some(done.context.span));
    assert_eq!(trace_headers(&at_a[0]), (Some(back.context.parent_text().as_str()), Some("rojo=1,congo=2")));
    assert_eq!([trace_headers(&at_a[1]), trace_headers(&at_b[2])], [(None, None); 2]);
    assert_eq!(bed.message(id).await.head.trace.as_deref(), Some(&received.context));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_listener_what_came_goes_out_unchanged_and_what_is_none_does_not() {
    let bed = Bed::start().await;
    for (trace, expected) in [
        (vec![("traceparent", CAME), ("tracestate", "rojo=1")], (Some(CAME), Some("rojo=1"))),
        (vec![("traceparent", UNSAMPLED)], (Some(UNSAMPLED), None)),
        (vec![("traceparent", "00-00000000000000000000000000000000-00f067aa0ba902b7-01")], (None, None)),
        (vec![("traceparent", "nonsense"), ("tracestate", "rojo=1")], (None, None)),
        (vec![("traceparent", CAME), ("traceparent", UNSAMPLED)], (None, None)),
        (vec![("tracestate", "rojo=1")], (None, None)),
        (vec![("traceparent", CAME), ("tracestate", "no member")], (Some(CAME), None)),
    ] {
        let times = bed.a.all().len() + 1;
        bed.traced_order("orders", &trace).await;
        let at_a = bed.a.asked_times(times).await;
        let at_b = bed.b.all();
        assert_eq!([trace_headers(&at_a[times - 1]), trace_headers(&at_b[times - 1])], [expected; 2], "{trace:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_is_kept_over_a_restart_and_a_trace_may_begin_here() {
    let (mut bed, mut listener) = traced(1.0).await;
    bed.exchanges.operations.set_port(&name("orders"), &name("b"), Some(PortState::Hold)).await.expect("set");
    let id = bed.traced_order("orders", &[("traceparent", CAME)]).await;
    let begun = bed.traced_order("orders", &[]).await;
    let mut place = async || listener.recv().await.expect("a span");
    let (received, began) = (place().await, place().await);
    assert_eq!((began.parent, began.context.is_sampled()), (None, true));
    assert_ne!(began.context.trace, received.context.trace);
    // The reopened exchange exports no spans.
    restart(&mut bed.exchanges, bed.folder.path()).await;
    assert_eq!(bed.message(begun).await.head.trace.as_deref(), Some(&began.context));
    assert_eq!(bed.message(id).await.head.trace.as_deref(), Some(&received.context));
    bed.exchanges.operations.set_port(&name("orders"), &name("b"), None).await.expect("set");
    let at_a = bed.a.asked_times(2).await;
    let mut parents: Vec<_> = at_a.iter().map(|asked| trace_headers(asked).0.expect("a place").to_owned()).collect();
    let mut expected = [received.context.parent_text(), began.context.parent_text()];
    parents.sort_unstable();
    expected.sort_unstable();
    assert_eq!(parents, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_stand_where_their_whole_does_and_one_of_many_if_all_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let a = FarSide::start().await;
    let exchanges = open(folder.path()).await;
    let ports = r#"
  many: { mode: one_way, pipeline: [ { split: { json: $.items, most: 10 } } ] }
  few: { mode: one_way, pipeline: [ { assemble: { as: json, count: 2, within: 60s } } ] }"#;
    all_to(&a, &exchanges, "parts", ports).await;
    let running = exchanges.find(&name("parts")).expect("it runs");
    let send = async |port: &str, trace: &str, body: &'static str| {
        let incoming = IncomingMessage {
            content_type: "application/json".into(),
            headers: vec![("traceparent".into(), trace.to_owned())],
            body: Bytes::from_static(body.as_bytes()),
            ..IncomingMessage::default()
        };
        exchanges.intake.receive(&running, &name(port), incoming).await.expect("taken");
    };
    send("many", CAME, r#"{"items": [1, 2]}"#).await;
    assert!(a.asked_times(2).await.iter().all(|asked| trace_headers(asked).0 == Some(CAME)));
    let same_trace = CAME.replace("00f067aa0ba902b7", "00f067aa0ba902b8");
    send("few", &same_trace, "3").await;
    send("few", CAME, "4").await;
    assert_eq!(trace_headers(&a.asked_times(3).await[2]).0, Some(CAME), "the last, if all are of one trace");
    send("few", &CAME.replace("4bf9", "4bf8"), "5").await;
    send("few", CAME, "6").await;
    assert_eq!(trace_headers(&a.asked_times(4).await[3]).0, None);
}

/// A nats-server of Debian that keeps streams.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(folder: &Path) -> Server {
        let mut child = Command::new(Peer::Nats.path())
            .args(["-a", "127.0.0.1", "-p", "-1", "-js", "-sd"])
            .arg(folder)
            .stderr(Stdio::piped())
            .spawn()
            .expect("nats-server starts");
        let mut log = BufReader::new(child.stderr.take().expect("it is piped")).lines().map_while(Result::ok);
        let mut port = None;
        for line in log.by_ref() {
            if let Some((_, found)) = line.split_once("Listening for client connections on 127.0.0.1:") {
                port = found.trim().parse().ok();
            }
            if line.contains("Server is ready") {
                break;
            }
        }
        // Whoever stops reading stops the server.
        std::thread::spawn(move || log.for_each(drop));
        Server { child, port: port.expect("it says where it listens") }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_a_broker_keep_their_trace_through_an_exchange() {
    if missing(&[Peer::Nats]) {
        return;
    }
    let (streams, folder) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let server = Server::start(streams.path());
    let address = format!("nats://127.0.0.1:{}", server.port);
    let context = jetstream::new(async_nats::connect(&address).await.expect("a connection"));
    let config = stream::Config { name: "ORDERS".into(), subjects: vec!["orders".into()], ..Default::default() };
    context.create_stream(config).await.expect("a stream");
    for (trace, body) in [(CAME, "1"), ("nonsense", "2")] {
        let mut headers = HeaderMap::new();
        headers.insert("Traceparent", trace);
        let sent = context.publish_with_headers("orders", headers, body.into()).await.expect("sent");
        sent.await.expect("kept");
    }
    let (spans, mut listener) = Spans::new(100, 0.0);
    let (a, exchanges) = (FarSide::start().await, open_traced(folder.path(), spans).await);
    let bus = format!(r#"{{ kind: nats, options: {{ servers: ["{address}"], stream: ORDERS }} }}"#);
    let port = format!("\n  intake: {{ mode: one_way, locations: {{ bus: {bus} }} }}");
    all_to(&a, &exchanges, "dock", &port).await;
    let asked = a.asked_times(2).await;
    let of = |body: &str| trace_headers(asked.iter().find(|asked| asked.body == body).expect("it came")).0;
    let (one, other) = (listener.recv().await.expect("a span"), listener.recv().await.expect("a span"));
    let (received, sent) = if one.name == "receive intake" { (one, other) } else { (other, one) };
    assert_eq!((&*received.name, &*sent.name), ("receive intake", "send a"));
    let came = TraceContext::read(CAME, None).expect("a context");
    assert_eq!((received.parent, sent.parent), (came.parent(), Some(received.context.span)));
    assert_eq!((of("1"), of("2")), (Some(sent.context.parent_text().as_str()), None));
    assert!(exchanges.stop(wait_timeout()).await);
}
