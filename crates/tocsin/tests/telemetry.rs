//! Trace propagation through the server: the caller's context is continued in sent requests, and a collector receives a
//! span per step by OTLP. An unresponsive collector delays nothing.

mod support;

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicBool, atomic::Ordering},
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    routing::post,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use support::{Platform, wait_timeout};
use tocsin_test_peers::{Peer, missing};
use tokio::{net::TcpListener, sync::Notify, time::timeout};

const APPLICATION: &str = r#"
application: pings
events: { ping: { fields: { token: { type: string, required: true } } } }
subscriptions: { every: { fields: {} } }
notifications:
  ping: { fields: { token: string }, content: { templates: { base: { text: "{{ token }}" } } } }
rules: { everyone: { on: ping, subscription: every, notify: ping } }
channels:
  web: { protocol: http, options: { allow_networks: [127.0.0.0/8] }, retry: [1s, 1s] }
"#;
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

/// Requests received by the webhook receiver and the collector.
#[derive(Clone, Default)]
struct TelemetryReceivers(Arc<ReceivedRequests>);

#[derive(Default)]
struct ReceivedRequests {
    hooks: Mutex<Vec<HeaderMap>>,
    asked: Mutex<Vec<HeaderMap>>,
    spans: Mutex<Vec<Value>>,
    /// Resource of the spans.
    resource: Mutex<Value>,
    /// Requests in Protocol Buffers, unparsed.
    packed: Mutex<Vec<Bytes>>,
    /// Whether the first webhook and the first spans were refused with a retry.
    refused: [AtomicBool; 2],
    news: Notify,
}

/// Application B: confirms each request.
async fn answer(State(world): State<TelemetryReceivers>, headers: HeaderMap) -> axum::Json<Value> {
    world.0.asked.lock().push(headers);
    axum::Json(json!({"confirmed": true}))
}

async fn hook(State(world): State<TelemetryReceivers>, headers: HeaderMap) -> StatusCode {
    world.0.hooks.lock().push(headers);
    world.0.news.notify_waiters();
    match world.0.refused[0].swap(true, Ordering::Relaxed) {
        false => StatusCode::SERVICE_UNAVAILABLE,
        true => StatusCode::NO_CONTENT,
    }
}

async fn collect(State(world): State<TelemetryReceivers>, headers: HeaderMap, body: Bytes) -> StatusCode {
    assert_eq!(
        (&headers["content-type"], &headers["api-key"]),
        (&"application/json".parse().expect("a value"), &"k".parse().expect("a value"))
    );
    if !world.0.refused[1].swap(true, Ordering::Relaxed) {
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    let body: Value = serde_json::from_slice(&body).expect("JSON");
    let spans = body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().expect("spans");
    world.0.spans.lock().extend(spans.iter().cloned());
    *world.0.resource.lock() = body["resourceSpans"][0]["resource"].clone();
    world.0.news.notify_waiters();
    StatusCode::OK
}

async fn collect_packed(State(world): State<TelemetryReceivers>, headers: HeaderMap, body: Bytes) -> StatusCode {
    assert_eq!(headers["content-type"], "application/x-protobuf");
    world.0.packed.lock().push(body);
    world.0.news.notify_waiters();
    StatusCode::OK
}

/// Parses a request with the published OpenTelemetry classes.
fn decoded(request: &Bytes) -> Value {
    let mut reader = std::process::Command::new(Peer::Python.path())
        .arg(support::repository("crates/tocsin/tests/readers/spans.py"))
        .arg(Peer::Opentelemetry.path().join("python"))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("python3 starts");
    std::io::Write::write_all(&mut reader.stdin.take().expect("it is piped"), request).expect("it reads");
    let read = reader.wait_with_output().expect("it ends");
    assert!(read.status.success(), "the library reads it");
    serde_json::from_slice(&read.stdout).expect("JSON")
}

impl TelemetryReceivers {
    async fn start() -> (TelemetryReceivers, String) {
        let world = TelemetryReceivers::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let routes =
            Router::new().route("/hook", post(hook)).route("/b", post(answer)).route("/v1/traces", post(collect));
        let routes = routes.route("/packed/v1/traces", post(collect_packed));
        let routes = routes.with_state(world.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        (world, address)
    }

    async fn wait(&self, what: &str, is_there: impl Fn(&ReceivedRequests) -> bool) {
        let waiting = async {
            loop {
                let mut news = std::pin::pin!(self.0.news.notified());
                news.as_mut().enable();
                if is_there(&self.0) {
                    return;
                }
                news.await;
            }
        };
        if timeout(wait_timeout(), waiting).await.is_err() {
            panic!("{what}: {:#?}", self.0.spans.lock());
        }
    }
}

async fn prepare(platform: &Platform, hook: &str) {
    platform.apply("pings", APPLICATION).await;
    platform.subscribe("pings", "every", "ann", "web", hook, json!({})).await;
}

async fn publish(platform: &Platform, parent: Option<String>) -> String {
    let request = platform.client.post(format!("{}/v1/applications/pings/events/ping", platform.url));
    let request = request.bearer_auth(platform.key()).json(&json!({"token": "t"}));
    let request = match parent {
        Some(parent) => {
            request.header("traceparent", parent).header("tracestate", "rojo=1").header("tracestate", "congo=2")
        }
        None => request,
    };
    let answer = request.send().await.expect("an answer");
    assert_eq!(answer.status(), 202);
    let answer: Value = answer.json().await.expect("JSON");
    answer["batch"].as_str().expect("a batch").to_owned()
}

fn attribute<'s>(span: &'s Value, name: &str) -> &'s Value {
    let attributes = span["attributes"].as_array().expect("attributes");
    let found = attributes.iter().find(|attribute| attribute["key"] == name);
    &found.unwrap_or_else(|| panic!("{name}: {span}"))["value"]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trace_is_propagated_and_each_step_is_exported() {
    let (world, address) = TelemetryReceivers::start().await;
    let platform = Platform::start(&[
        ("TOCSIN_TELEMETRY_ENDPOINT", &address),
        ("TOCSIN_TELEMETRY_HEADERS", "api-key=k"),
        ("TOCSIN_TELEMETRY_DELAY", "10ms"),
        ("TOCSIN_TELEMETRY_SAMPLE_RATIO", "0"),
    ])
    .await;
    prepare(&platform, &format!("{address}/hook")).await;
    // These two are not sampled: one has no trace, the other's caller does not sample it.
    publish(&platform, None).await;
    publish(&platform, Some(format!("00-{}-{SPAN}-00", "1".repeat(32)))).await;
    let batch = publish(&platform, Some(format!("00-{TRACE}-{SPAN}-01"))).await;

    let is_of_trace = |span: &&Value| span["traceId"] == TRACE;
    let delivered = |seen: &ReceivedRequests| {
        let spans = seen.spans.lock();
        spans.iter().filter(is_of_trace).any(|span| span["name"] == "deliver web" && span["status"].is_null())
    };
    world.wait("a span of the delivery", delivered).await;
    let spans: Vec<Value> = world.0.spans.lock().clone();
    assert!(spans.iter().all(|span| span["traceId"] == TRACE), "{spans:#?}");
    let by_name: BTreeMap<&str, Vec<&Value>> = spans.iter().fold(BTreeMap::new(), |mut by_name, span| {
        by_name.entry(span["name"].as_str().expect("a name")).or_insert_with(Vec::new).push(span);
        by_name
    });
    let ([accept], [matched]) = (&by_name["accept ping"][..], &by_name["match ping"][..]) else { panic!("{spans:#?}") };
    assert_eq!((&accept["parentSpanId"], &accept["traceState"]), (&SPAN.into(), &"rojo=1,congo=2".into()));
    assert_eq!(attribute(accept, "tocsin.event_batch")["stringValue"], *batch);
    assert_eq!(matched["parentSpanId"], accept["spanId"]);
    let deliveries = &by_name["deliver web"];
    assert!(deliveries.iter().all(|span| span["parentSpanId"] == matched["spanId"]), "{spans:#?}");
    let number = |span: &Value| span["startTimeUnixNano"].as_str().expect("text").parse::<u64>().expect("a number");
    assert!(number(accept) <= number(matched) && number(matched) <= number(deliveries[0]));

    // Sent requests have the span of their attempt as the parent, or pass the received context on.
    let hooks: Vec<(String, String)> = world
        .0
        .hooks
        .lock()
        .iter()
        .filter_map(|headers| {
            let text = |name: &str| headers.get(name).map(|value| value.to_str().expect("text").to_owned());
            Some((text("traceparent")?, text("tracestate")?))
        })
        .collect();
    for span in deliveries {
        let parent = format!("00-{TRACE}-{}-01", span["spanId"].as_str().expect("an id"));
        assert!(hooks.contains(&(parent.clone(), "rojo=1,congo=2".to_owned())), "{parent}: {hooks:?}");
    }
    let unsampled = format!("00-{}-{SPAN}-00", "1".repeat(32));
    assert!(hooks.iter().any(|(parent, _)| *parent == unsampled), "{hooks:?}");

    let output = platform.run(&["trace", &batch]);
    assert!(output.contains(&format!("trace {TRACE}, from span {SPAN}")), "{output}");
    let event = format!("{}-0", batch.replacen("eb-", "e-", 1));
    let trace = platform.get(&format!("/v1/trace/{event}")).await;
    assert_eq!(trace["context"]["tracestate"], "rojo=1,congo=2", "{trace}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trace_is_propagated_through_an_exchange_to_b_and_back_to_a() {
    let (world, address) = TelemetryReceivers::start().await;
    let mut platform = Platform::start(&[
        ("TOCSIN_TELEMETRY_ENDPOINT", &address),
        ("TOCSIN_TELEMETRY_HEADERS", "api-key=k"),
        ("TOCSIN_TELEMETRY_DELAY", "10ms"),
        ("TOCSIN_TELEMETRY_SAMPLE_RATIO", "0"),
    ])
    .await;
    let exchange = format!(
        r#"
exchange: orders
receive: {{ intake: {{ mode: one_way }} }}
send:
  b: {{ mode: request, protocol: http, options: {{ url: "{address}/b", allow_networks: [127.0.0.1] }} }}
  a: {{ mode: one_way, protocol: http, options: {{ url: "{address}/hook", allow_networks: [127.0.0.1] }}, retry: {{ delays: [10ms] }} }}
routes:
  there: {{ when: "message.kind != 'reply'", to: b }}
  back: {{ when: "message.kind == 'reply'", to: a }}
"#
    );
    let put = platform.request(reqwest::Method::PUT, "/v1/exchanges/orders").header("content-type", "application/yaml");
    let answer = put.body(exchange).send().await.expect("an answer");
    assert!(answer.status().is_success(), "{}", answer.text().await.unwrap_or_default());
    let send = async |parent: &str| {
        let request = platform.request(reqwest::Method::POST, "/v1/exchanges/orders/receive/intake");
        let request = request.header("traceparent", parent).header("tracestate", "rojo=1").body("{}");
        let answer = request.send().await.expect("an answer");
        assert_eq!(answer.status(), 202);
        let answer: Value = answer.json().await.expect("JSON");
        answer["message"].as_str().expect("a message").to_owned()
    };
    send("00-no-trace-01").await;
    let id = send(&format!("00-{TRACE}-{SPAN}-01")).await;
    // A responds to the first request with 503.
    world.wait("all spans", |seen| seen.hooks.lock().len() == 3 && seen.spans.lock().len() >= 3).await;
    assert_eq!(platform.terminate(), Some(0));
    let spans: Vec<Value> = world.0.spans.lock().clone();
    assert!(spans.iter().all(|span| span["traceId"] == TRACE && span["traceState"] == "rojo=1"), "{spans:#?}");
    let named = |name: &str| spans.iter().filter(|span| span["name"] == name).collect::<Vec<_>>();
    let ([received], [asked]) = (&named("receive intake")[..], &named("send b")[..]) else { panic!("{spans:#?}") };
    assert_eq!((&received["parentSpanId"], &asked["parentSpanId"]), (&SPAN.into(), &received["spanId"]));
    assert_eq!(attribute(received, "tocsin.message")["stringValue"], *id);
    let back = named("send a");
    assert!(back.iter().all(|span| span["parentSpanId"] == asked["spanId"]), "{spans:#?}");
    let parent = |span: &Value| Some(format!("00-{TRACE}-{}-01", span["spanId"].as_str().expect("an id")));
    let parent_of =
        |headers: &HeaderMap| headers.get("traceparent").map(|value| value.to_str().expect("text").to_owned());
    let (at_b, at_a) = (world.0.asked.lock().clone(), world.0.hooks.lock().clone());
    let sorted = |mut parents: Vec<Option<String>>| {
        parents.sort_unstable();
        parents
    };
    assert_eq!(sorted(at_b.iter().map(parent_of).collect()), sorted(vec![None, parent(asked)]));
    let mut expected: Vec<_> = back.iter().map(|span| parent(span)).collect();
    expected.resize(3, None);
    assert_eq!(sorted(at_a.iter().map(parent_of).collect()), sorted(expected));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opentelemetry_variables_are_supported() {
    let (world, address) = TelemetryReceivers::start().await;
    let platform = Platform::start(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &address),
        ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=%6B"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("OTEL_BSP_SCHEDULE_DELAY", "10"),
        ("OTEL_RESOURCE_ATTRIBUTES", "service.name=bells,deployment.environment.name=test%20one"),
    ])
    .await;
    platform.apply("pings", APPLICATION).await;
    publish(&platform, None).await;
    world.wait("a span", |seen| !seen.spans.lock().is_empty()).await;
    let resource = world.0.resource.lock().clone();
    assert_eq!(attribute(&resource, "service.name")["stringValue"], "bells");
    assert_eq!(attribute(&resource, "deployment.environment.name")["stringValue"], "test one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_opentelemetry_classes_parse_our_protocol_buffers() {
    if missing(&[Peer::Opentelemetry]) {
        return;
    }
    let (world, address) = TelemetryReceivers::start().await;
    let endpoint = format!("{address}/packed");
    let platform = Platform::start(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ("OTEL_BSP_SCHEDULE_DELAY", "10"),
        ("OTEL_SERVICE_NAME", "bells"),
    ])
    .await;
    prepare(&platform, &format!("{address}/hook")).await;
    let batch = publish(&platform, Some(format!("00-{TRACE}-{SPAN}-01"))).await;
    // They show ids as JSON shows bytes: TRACE and SPAN in base64.
    let (trace, parent) = (base64_of(TRACE), base64_of(SPAN));
    let spans = |seen: &ReceivedRequests| -> Vec<Value> {
        let requests: Vec<Value> = seen.packed.lock().iter().map(decoded).collect();
        let resources = requests.iter().flat_map(|request| request["resourceSpans"].as_array().expect("a list"));
        let attributes = resources.flat_map(|one| {
            assert_eq!(attribute(&one["resource"], "service.name")["stringValue"], "bells");
            one["scopeSpans"][0]["spans"].as_array().expect("spans").clone()
        });
        attributes.collect()
    };
    world.wait("spans of all steps", |seen| seen.packed.lock().iter().any(|body| contains(body, b"deliver web"))).await;
    let spans = spans(&world.0);
    let accept = spans.iter().find(|span| span["name"] == "accept ping").expect("an acceptance");
    assert_eq!((&accept["traceId"], &accept["parentSpanId"]), (&trace.as_str().into(), &parent.as_str().into()));
    assert_eq!(accept["traceState"], "rojo=1,congo=2");
    assert_eq!(attribute(accept, "tocsin.event_batch")["stringValue"], *batch);
    let matched = spans.iter().find(|span| span["name"] == "match ping").expect("a match");
    assert_eq!(matched["parentSpanId"], accept["spanId"]);
    assert!(spans.iter().any(|span| span["name"] == "deliver web" && span["parentSpanId"] == matched["spanId"]));
}

fn contains(body: &[u8], text: &[u8]) -> bool {
    body.windows(text.len()).any(|window| window == text)
}

/// Converts hexadecimal digits to base64.
fn base64_of(digits: &str) -> String {
    use base64::{Engine, engine::general_purpose::STANDARD};
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("digits");
    STANDARD.encode((0..digits.len()).step_by(2).map(byte).collect::<Vec<u8>>())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unresponsive_collector_delays_nothing() {
    let (world, address) = TelemetryReceivers::start().await;
    // A bound port that never responds.
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let endpoint = format!("http://{}", silent.local_addr().expect("an address"));
    let mut platform = Platform::start(&[
        ("TOCSIN_TELEMETRY_ENDPOINT", &endpoint),
        ("TOCSIN_TELEMETRY_QUEUE_SPANS", "4"),
        ("TOCSIN_TELEMETRY_DELAY", "1ms"),
        ("TOCSIN_TELEMETRY_TIMEOUT", "1s"),
    ])
    .await;
    prepare(&platform, &format!("{address}/hook")).await;
    for _ in 0..40 {
        publish(&platform, None).await;
    }
    // The first webhook is refused with a retry.
    world.wait("all webhooks", |seen| seen.hooks.lock().len() >= 41).await;
    let page = platform.client.get(format!("{}/metrics", platform.url)).send().await.expect("an answer");
    let page = page.text().await.expect("text");
    assert!(page.contains("tocsin_telemetry_spans_total{result=\"dropped\"}"), "{page}");
    assert_eq!(platform.terminate(), Some(0));
}
