//! Tests of exchanges with real HTTP servers as receivers, whose responses each test chooses.

use std::{
    collections::HashMap,
    path::Path,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
};

use axum::{
    Router,
    body::Bytes as Body,
    extract::State,
    http::{HeaderMap, StatusCode, Uri, header},
    response::IntoResponse,
};
use bytes::Bytes;
use parking_lot::Mutex;
use tocsin_connect::{SystemClock, networks::Networks, programs::Programs, spans::Spans};
use tocsin_model::{
    exchange::{PortState, ThrottleReason},
    id::MessageId,
    trace_context::TraceContext,
};
use tocsin_sources::{Folders, Listeners};
use tocsin_store::{
    spool::{Ending, LegState, MessageFilter, MessageStatus, StoredMessage},
    sqlite::{
        spool::{SpoolOptions, SqliteSpool},
        tracking::{SqliteTracking, TrackingOptions},
    },
};
use tokio::sync::{Notify, watch};

mod definitions;
mod edits;
mod flow_control;
mod history;
mod intake;
mod send_queues;
mod reply_correlation;
mod sent_before_commit;
mod locations;
mod open_requests;
mod order;
mod partitions;
mod pipelines;
mod scenario;
mod scenarios;
mod traces;
mod tracking;

use tocsin_test_peers::wait_timeout;

use super::*;
use crate::{
    error::{OperateError, ReceiveError},
    groups::WorkerLimits,
    receive::{IncomingMessage, ReceiveResult, ReplyStatus},
};

/// One partition is the simplest case, which tests of the binary use.
const PARTITIONS: u8 = 3;
/// An HTTP server that records requests; the path selects its response.
#[derive(Clone)]
struct FarSide {
    url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
    count: watch::Sender<usize>,
    /// Statuses that the next requests get, before it does its work again.
    failures: Arc<Mutex<Vec<u16>>>,
    /// Requests to `/slow` wait for it.
    gate: Arc<Notify>,
    /// Whether requests wait until this is false, and how many do.
    waits: watch::Sender<bool>,
    held: Arc<AtomicUsize>,
}

#[derive(Debug, Clone)]
struct Asked {
    path: String,
    headers: HashMap<String, String>,
    body: String,
}

impl FarSide {
    async fn start() -> FarSide {
        let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", socket.local_addr().expect("an address"));
        let far = FarSide {
            url,
            asked: Arc::default(),
            count: watch::Sender::new(0),
            failures: Arc::default(),
            gate: Arc::default(),
            waits: watch::Sender::new(false),
            held: Arc::default(),
        };
        let router = Router::new().fallback(answer).with_state(far.clone());
        tokio::spawn(async move { axum::serve(socket, router).await });
        far
    }

    fn all(&self) -> Vec<Asked> {
        self.asked.lock().clone()
    }

    /// Waits until it was asked so often.
    async fn asked_times(&self, times: usize) -> Vec<Asked> {
        let mut count = self.count.subscribe();
        let waiting = count.wait_for(|count| *count >= times);
        tokio::time::timeout(wait_timeout(), waiting).await.expect("in time").expect("the receiver runs");
        self.all()
    }
}

async fn answer(State(far): State<FarSide>, uri: Uri, headers: HeaderMap, body: Body) -> axum::response::Response {
    let body = String::from_utf8_lossy(&body).into_owned();
    let headers = headers.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap_or_default().to_owned()));
    far.asked.lock().push(Asked { path: uri.path().to_owned(), headers: headers.collect(), body: body.clone() });
    far.count.send_modify(|count| *count += 1);
    let failure = {
        let mut failures = far.failures.lock();
        (!failures.is_empty()).then(|| failures.remove(0))
    };
    if let Some(status) = failure {
        return StatusCode::from_u16(status).expect("a status").into_response();
    }
    if uri.path() == "/slow" {
        far.gate.notified().await;
    }
    if *far.waits.borrow() {
        far.held.fetch_add(1, Ordering::SeqCst);
        far.waits.subscribe().wait_for(|waits| !waits).await.expect("the receiver runs");
        far.held.fetch_sub(1, Ordering::SeqCst);
    }
    let asked: serde_json::Value = serde_json::from_str(&body).unwrap_or_default();
    let order = if uri.path() == "/wrong" { serde_json::json!(999) } else { asked["order"].clone() };
    let reply = serde_json::json!({"confirmed": true, "order": order});
    ([(header::CONTENT_TYPE, "application/json")], reply.to_string()).into_response()
}

/// The paper's round trip and the synchronous form, with B at `b` and A at `a`.
fn definition(a: &FarSide, b: &FarSide, more_of_b: &str) -> String {
    let (a, b) = (&a.url, &b.url);
    format!(
        r#"
exchange: orders
properties:
  type: $.type
  order: {{ type: integer, json: $.order }}
  sender: {{ header: X-Sender }}
receive:
  orders: {{ mode: one_way }}
  questions: {{ mode: request, wait: 20s, expires_after: 60s }}
  hurried: {{ mode: request, wait: 20s, expires_after: 1s }}
send:
  b:
    mode: request
    protocol: http
    options: {{ url: "{b}/b", allow_networks: [127.0.0.1] }}
    retry: {{ delays: [20ms, 20ms], jitter: 0% }}
    correlate: [order]
    {more_of_b}
  slow:
    mode: request
    protocol: http
    options: {{ url: "{b}/slow", allow_networks: [127.0.0.1] }}
  a:
    mode: one_way
    protocol: http
    options: {{ url: "{a}/replies/{{order}}", allow_networks: [127.0.0.1] }}
    retry: []
routes:
  to_b: {{ when: "message.kind != 'reply' && message.type == 'order'", to: b }}
  to_slow: {{ when: "message.kind != 'reply' && message.type == 'slow'", to: slow }}
  only_told: {{ when: "message.type == 'note'", to: a }}
  back_to_a: {{ when: "message.kind == 'reply' && message.sender == 'a'", to: a }}
"#
    )
}

async fn open(folder: &Path) -> Arc<Exchanges> {
    open_with_memory(folder, Arc::default()).await
}

/// The process has as much memory as `used` says, and may have 1,000 bytes.
async fn open_with_memory(folder: &Path, used: Arc<AtomicU64>) -> Arc<Exchanges> {
    open_with(folder, used, PARTITIONS).await
}

async fn open_with(folder: &Path, used: Arc<AtomicU64>, partitions: u8) -> Arc<Exchanges> {
    open_as(folder, used, partitions, Spans::default()).await
}

/// Somebody wants the spans.
async fn open_traced(folder: &Path, spans: Spans) -> Arc<Exchanges> {
    open_as(folder, Arc::default(), PARTITIONS, spans).await
}

async fn open_as(folder: &Path, used: Arc<AtomicU64>, partitions: u8, spans: Spans) -> Arc<Exchanges> {
    let options = SpoolOptions { partitions, ..SpoolOptions::default() };
    let spool = Arc::new(SqliteSpool::open(folder, &options).expect("the spool opens"));
    let tracking = SqliteTracking::open(folder, &TrackingOptions::default()).expect("the tracking opens");
    let parts = ExchangeDependencies {
        spool,
        tracking: Arc::new(tracking),
        clock: Arc::new(SystemClock),
        networks: Networks::default(),
        programs: Programs::default(),
        files: Default::default(),
        environment: Arc::new(|_| None),
        memory: flow::Memory { used: Arc::new(move || Some(used.load(Ordering::SeqCst))), most: 1_000 },
        data_folder: folder.to_owned(),
        folders: Folders::default(),
        listeners: Listeners::default(),
        workers: WorkerLimits::default(),
        spans,
        intake: Default::default(),
    };
    Exchanges::start(parts).await.expect("started")
}

/// Ends what is under way, and opens the same again.
async fn restart(exchanges: &mut Arc<Exchanges>, folder: &Path) {
    restart_with(exchanges, folder, PARTITIONS).await;
}

/// The same, with so many partitions from then on.
async fn restart_with(exchanges: &mut Arc<Exchanges>, folder: &Path, partitions: u8) {
    let _elsewhere = close(exchanges).await;
    *exchanges = open_with(folder, Arc::default(), partitions).await;
}

/// Ends what is under way and closes the files. What is there instead is of the folder that it gives.
async fn close(exchanges: &mut Arc<Exchanges>) -> tempfile::TempDir {
    assert!(exchanges.stop(wait_timeout()).await, "all work in progress ends");
    let elsewhere = tempfile::tempdir().expect("a folder");
    let before = Arc::downgrade(&exchanges.core);
    *exchanges = open(elsewhere.path()).await;
    // The spool is closed with its last holder.
    until(|| before.upgrade().is_none()).await;
    elsewhere
}

/// An exchange between A and B.
struct Bed {
    exchanges: Arc<Exchanges>,
    a: FarSide,
    b: FarSide,
    folder: tempfile::TempDir,
}

impl Bed {
    async fn start() -> Bed {
        Bed::with("").await
    }

    async fn with(more_of_b: &str) -> Bed {
        let folder = tempfile::tempdir().expect("a folder");
        let (a, b) = (FarSide::start().await, FarSide::start().await);
        let exchanges = open(folder.path()).await;
        exchanges.operations.apply(&definition(&a, &b, more_of_b), "test").await.expect("a good definition");
        Bed { exchanges, a, b, folder }
    }

    async fn define(&self, definition: &str) {
        self.exchanges.operations.apply(definition, "test").await.expect("a good definition");
    }

    async fn post(&self, port: &str, body: &str, key: Option<&str>) -> Result<ReceiveResult, ReceiveError> {
        self.post_waiting(port, body, key, None).await
    }

    async fn post_waiting(
        &self,
        port: &str,
        body: &str,
        key: Option<&str>,
        wait: Option<Duration>,
    ) -> Result<ReceiveResult, ReceiveError> {
        let running = self.exchanges.find(&name("orders")).expect("it runs");
        let incoming = IncomingMessage {
            content_type: "application/json".into(),
            headers: vec![("x-sender".into(), "a".into())],
            body: Bytes::copy_from_slice(body.as_bytes()),
            key: key.map(str::to_owned),
            wait,
            ..IncomingMessage::default()
        };
        self.exchanges.intake.receive(&running, &name(port), incoming).await
    }

    async fn ask(&self, body: &str) -> ReceiveResult {
        self.post("questions", body, None).await.expect("taken")
    }

    async fn message(&self, id: MessageId) -> StoredMessage {
        self.exchanges.operations.message(id).await.expect("read").expect("there")
    }

    /// Waits until a message is over. Each look is a read behind the writes so far.
    async fn ended(&self, id: MessageId) -> StoredMessage {
        let ending = async {
            loop {
                let stored = self.message(id).await;
                if stored.ended_at.is_some() {
                    return stored;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(wait_timeout(), ending).await.expect("in time")
    }

    async fn found(&self, filter: MessageFilter) -> Vec<StoredMessage> {
        self.exchanges.operations.messages(filter, None, 10).await.expect("read")
    }

    async fn suspended(&self) -> Vec<StoredMessage> {
        self.found(suspended()).await
    }

    /// Waits until so many messages are found.
    async fn found_times(&self, filter: MessageFilter, times: usize) -> Vec<StoredMessage> {
        let finding = async {
            loop {
                let found = self.found(filter.clone()).await;
                if found.len() == times {
                    return found;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(wait_timeout(), finding).await.expect("in time")
    }

    /// Waits until so many messages are suspended.
    async fn suspended_times(&self, times: usize) -> Vec<StoredMessage> {
        self.found_times(suspended(), times).await
    }

    /// Waits until so many messages are open: they are counted a moment after it is stored.
    async fn open_is(&self, many: u64) {
        until(|| self.exchanges.operations.counts().open == many).await;
    }

    async fn restart(&mut self) {
        restart(&mut self.exchanges, self.folder.path()).await;
    }

    /// A copy of the spool as a crash at this moment would leave it.
    fn copy_spool(&self, to: &Path) {
        copy_spool(self.folder.path(), to);
    }
}

fn copy_spool(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).expect("a folder") {
        let name = entry.expect("an entry").file_name();
        if name.to_string_lossy().starts_with("spool") && !name.to_string_lossy().ends_with("-shm") {
            std::fs::copy(from.join(&name), to.join(&name)).expect("copied");
        }
    }
}

fn suspended() -> MessageFilter {
    MessageFilter { standing: Some(MessageStatus::Suspended), ..MessageFilter::default() }
}

/// Waits until this is so.
async fn until(mut is_so: impl FnMut() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(wait_timeout(), waiting).await.expect("in time");
}

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn reply_of(received: &ReceiveResult) -> String {
    match &received.reply_status {
        ReplyStatus::Replied { body, .. } => String::from_utf8(body.to_vec()).expect("text"),
        other => panic!("{other:?}"),
    }
}

const ORDER: &str = r#"{"type": "order", "order": 7}"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_round_trip_goes_to_b_and_back_to_a() {
    let bed = Bed::start().await;
    let sent = bed.post("orders", ORDER, None).await.expect("taken");
    assert_eq!(sent.reply_status, ReplyStatus::Stored);
    let request = &bed.a.asked_times(1).await[0];
    assert_eq!((&*request.path, &*request.body), ("/replies/7", r#"{"confirmed":true,"order":7}"#));
    let stored = bed.ended(sent.id).await;
    assert_eq!((stored.ending, stored.legs[0].state), (Some(Ending::Delivered), LegState::Done));
    let reply = bed.ended(stored.reply.expect("B replied")).await;
    assert_eq!((reply.answers, reply.port, reply.legs[0].port.as_str()), (Some(sent.id), name("b"), "a"));
    assert_eq!(request.headers["tocsin-answers"], sent.id.to_string());
    assert_eq!(bed.exchanges.operations.counts().open, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_is_held_open_until_b_replies() {
    let bed = Bed::start().await;
    let answered = bed.ask(ORDER).await;
    assert_eq!(reply_of(&answered), r#"{"confirmed":true,"order":7}"#);
    let asked = &bed.b.all()[0];
    assert_eq!((&*asked.path, &*asked.body), ("/b", ORDER));
    assert_eq!(asked.headers["webhook-id"], format!("{}-0", answered.id));
    assert_eq!(bed.message(answered.id).await.ending, Some(Ending::Answered));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_key_gets_the_stored_reply_also_after_a_restart() {
    let mut bed = Bed::start().await;
    let first = bed.post("questions", ORDER, Some("k")).await.expect("taken");
    bed.restart().await;
    let again = bed.post("questions", ORDER, Some("k")).await.expect("taken");
    assert_eq!((again.id, again.duplicate, &again.reply_status), (first.id, true, &first.reply_status));
    assert_eq!(bed.b.all().len(), 1, "B is asked once");
    let other = bed.post("questions", r#"{"type": "order", "order": 8}"#, Some("k")).await;
    assert!(matches!(other, Err(ReceiveError::KeyReused(id)) if id == first.id));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_repeats_while_b_works_waits_for_the_same_reply() {
    let bed = Bed::start().await;
    let body = r#"{"type": "slow", "order": 1}"#;
    let ask = || bed.post("questions", body, Some("k"));
    let (first, again, ()) = tokio::join!(ask(), ask(), async {
        bed.b.asked_times(1).await;
        bed.b.gate.notify_one();
    });
    let (first, again) = (first.expect("taken"), again.expect("taken"));
    assert_eq!((first.id, reply_of(&first)), (again.id, reply_of(&again)));
    assert_eq!(bed.b.all().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_b_answers_behind_the_status_address() {
    let bed = Bed::start().await;
    let running = bed.exchanges.find(&name("orders")).expect("it runs");
    let incoming = IncomingMessage {
        body: Bytes::from_static(br#"{"type": "slow", "order": 1}"#),
        wait: Some(Duration::ZERO),
        ..IncomingMessage::default()
    };
    let pending = bed.exchanges.intake.receive(&running, &name("questions"), incoming).await.expect("taken");
    assert_eq!(pending.reply_status, ReplyStatus::Pending);
    bed.b.asked_times(1).await;
    bed.b.gate.notify_one();
    let reply_status = bed.exchanges.intake.reply_to(pending.id, wait_timeout()).await.expect("read").expect("there");
    assert!(matches!(reply_status, ReplyStatus::Replied { .. }), "{reply_status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_takes_over_where_the_first_way_has_failed() {
    let spare = FarSide::start().await;
    let backup = format!(
        r#"backup: {{ protocol: http, options: {{ url: "{}/b", allow_networks: [127.0.0.1] }}, retry: [] }}"#,
        spare.url
    );
    let bed = Bed::with(&backup).await;
    bed.b.failures.lock().extend([503; 3]);
    let answered = bed.ask(ORDER).await;
    assert_eq!(reply_of(&answered), r#"{"confirmed":true,"order":7}"#);
    assert_eq!((bed.b.all().len(), spare.all().len()), (3, 1));
    assert!(bed.message(answered.id).await.legs[0].on_backup);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_nobody_answers_expires_and_its_late_reply_is_kept() {
    let bed = Bed::start().await;
    let asked = bed.post("hurried", r#"{"type": "slow", "order": 1}"#, None).await.expect("taken");
    assert_eq!(asked.reply_status, ReplyStatus::Expired);
    bed.b.gate.notify_one();
    let late = async {
        loop {
            let all = bed.exchanges.operations.messages(MessageFilter::default(), None, 10).await.expect("read");
            if all.iter().any(|message| message.ending == Some(Ending::Late)) {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(wait_timeout(), late).await.expect("in time");
    let reply_status = bed.exchanges.intake.reply_to(asked.id, Duration::ZERO).await.expect("read");
    assert_eq!(reply_status, Some(ReplyStatus::Expired), "a late reply changes nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_beyond_memory_is_sent_once_each() {
    let bed = Bed::start().await;
    bed.exchanges.operations.set_port(&name("orders"), &name("a"), Some(PortState::Hold)).await.expect("held");
    const MANY: usize = 700;
    let next = AtomicUsize::new(0);
    let post = || async {
        loop {
            let order = next.fetch_add(1, Ordering::Relaxed);
            if order >= MANY {
                return;
            }
            bed.post("orders", &format!(r#"{{"type": "note", "order": {order}}}"#), None).await.expect("taken");
        }
    };
    tokio::join!(post(), post(), post(), post(), post(), post(), post(), post());
    bed.exchanges.operations.set_port(&name("orders"), &name("a"), None).await.expect("active");
    let asked = bed.a.asked_times(MANY).await;
    let ending = async {
        while bed.exchanges.operations.counts().open > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(wait_timeout(), ending).await.expect("all end");
    let paths: std::collections::HashSet<String> = asked.into_iter().map(|asked| asked.path).collect();
    assert_eq!((paths.len(), bed.a.all().len()), (MANY, MANY));
}

#[tokio::test(flavor = "multi_thread")]
async fn bounds_and_bad_input_are_told() {
    let bed = Bed::start().await;
    let tight = definition(&bed.a, &bed.b, "state: hold").replace("\nreceive:", "\nopen_messages: 1\nreceive:");
    let tight = tight.replace("orders: { mode: one_way }", "orders: { mode: one_way, body_bytes: 40 }");
    bed.define(&tight).await;
    let long = format!("{{\"type\": \"{}\"}}", "x".repeat(50));
    assert!(matches!(bed.post("orders", &long, None).await, Err(ReceiveError::TooLarge(40))));
    assert!(matches!(bed.post("orders", ORDER, Some("")).await, Err(ReceiveError::Key)));
    assert!(matches!(bed.post("nowhere", ORDER, None).await, Err(ReceiveError::Missing(_))));
    let first = bed.post("orders", ORDER, Some("k")).await.expect("the first");
    let full = bed.post("orders", ORDER, None).await;
    assert!(matches!(full, Err(ReceiveError::Full { code: ThrottleReason::StoreGrowth, .. })), "{full:?}");
    // Who asks again takes no room.
    let again = bed.post("orders", ORDER, Some("k")).await.expect("it is there");
    assert_eq!(again, ReceiveResult { duplicate: true, ..first });
    assert!(matches!(bed.post("orders", "{}", Some("k")).await, Err(ReceiveError::KeyReused(_))));
    assert!(matches!(bed.exchanges.operations.remove(&name("orders")).await, Err(OperateError::InUse(_))));
    let open = MessageFilter { standing: Some(MessageStatus::Open), ..MessageFilter::default() };
    bed.exchanges.operations.end(open, "op").await.expect("ended");
    bed.exchanges.operations.remove(&name("orders")).await.expect("nothing is open");
    assert!(bed.exchanges.find(&name("orders")).is_none());

    let wrong = definition(&bed.a, &bed.b, "")
        .replace("&& message.type == 'slow'", "&& message.typ == 'slow'")
        .replace("{order}", "{ordr}");
    let Err(OperateError::Invalid(problems)) = bed.exchanges.operations.apply(&wrong, "test").await else {
        panic!("not good")
    };
    let found: Vec<String> = problems.iter().map(|problem| format!("{}: {}", problem.path, problem.message)).collect();
    assert_eq!(
        found,
        ["send.a.options: `{ordr}` names no property", "routes.to_slow.when: a message has no property `typ` here",]
    );
    assert!(problems.iter().all(|problem| problem.line.is_some() && problem.hint.is_some()), "{problems:?}");
}

/// A request to two send ports, of which one has no good answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_waits_for_the_port_that_answers() {
    let bed = Bed::start().await;
    let both = definition(&bed.a, &bed.b, "").replace("message.type == 'slow'", "message.type in ['slow', 'order']");
    bed.define(&both.replace("/b\"", "/wrong\"")).await;
    let answered = async {
        // Only when the other has failed.
        bed.suspended_times(1).await;
        bed.b.gate.notify_one();
    };
    let (asked, ()) = tokio::join!(bed.ask(ORDER), answered);
    assert!(matches!(asked.reply_status, ReplyStatus::Replied { .. }), "{asked:?}");
}

/// The caller disconnects before the action begins.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_operator_began_is_done_to_the_end() {
    let bed = Bed::start().await;
    bed.define(&definition(&bed.a, &bed.b, "state: off")).await;
    let sent = bed.post("orders", ORDER, None).await.expect("taken");
    bed.suspended_times(1).await;
    let definition = definition(&bed.a, &bed.b, "");
    let again = bed.exchanges.operations.apply(&definition, "test");
    tokio::select! { biased; _ = again => {} () = std::future::ready(()) => {} }
    until(|| bed.exchanges.find(&name("orders")).is_some_and(|running| running.version >= 3)).await;
    let resumed = bed.exchanges.operations.resume(MessageFilter::default(), "op");
    tokio::select! { biased; _ = resumed => {} () = std::future::ready(()) => {} }
    assert_eq!(bed.ended(sent.id).await.ending, Some(Ending::Delivered));
}

/// Two messages to a port that was renamed: one is under way, and one is behind it.
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_a_port_that_is_gone_is_suspended_and_resumed_by_the_routes() {
    let bed = Bed::start().await;
    let as_it_was = definition(&bed.a, &bed.b, "");
    let wider = as_it_was.replace("to: slow }", "to: [slow, a] }");
    let held = wider.replace("  slow:\n", "  slow:\n    concurrency: 1\n");
    bed.define(&held).await;
    let body = r#"{"type": "slow", "order": 1}"#;
    let under_way = bed.post("orders", body, None).await.expect("taken");
    bed.b.asked_times(1).await;
    let behind = bed.post("orders", body, None).await.expect("taken");
    let gone = held.replace("slow:\n", "other:\n").replace("/slow", "/other").replace("to_slow: {", "to_other: {");
    let none = gone.replace("to: [slow, a] }", "to: a }");
    bed.define(&none).await;
    let suspended = bed.suspended_times(1).await;
    let said = |stored: &StoredMessage| {
        stored.legs.iter().find_map(|leg| leg.said.clone().filter(|_| leg.port == name("slow")))
    };
    assert_eq!(suspended[0].id, behind.id);
    assert_eq!(said(&suspended[0]).as_deref(), Some("the send port `slow` does not exist any more"));
    bed.b.gate.notify_one();
    assert_eq!(bed.ended(under_way.id).await.ending, Some(Ending::Delivered));

    assert_eq!(bed.exchanges.operations.resume(MessageFilter::default(), "op").await.expect("tried").legs, 0);
    let still = &bed.suspended_times(1).await[0];
    assert!(
        said(still).is_some_and(|said| said.ends_with("any more; no route leads it to another send port")),
        "{still:?}"
    );

    bed.define(&gone.replace("to: [slow, a] }", "to: [other, a] }")).await;
    let acted = bed.exchanges.operations.resume(MessageFilter::default(), "op").await.expect("resumed");
    assert_eq!((acted.messages, acted.legs), (1, 1), "it has been at the other port of the route");
    let ended = bed.ended(behind.id).await;
    let legs: Vec<_> = ended.legs.iter().map(|leg| (leg.port.as_str(), leg.state)).collect();
    assert_eq!(legs, [("slow", LegState::Ended), ("a", LegState::Done), ("other", LegState::Done)]);
    let asked = bed.b.all();
    assert_eq!(asked.iter().map(|asked| &*asked.path).collect::<Vec<_>>(), ["/slow", "/other"]);
    assert_eq!(asked[1].headers["idempotency-key"], format!("{}-2", behind.id));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_comes_back_knows_what_is_under_way_in_it() {
    let bed = Bed::start().await;
    let slow = |order: i64| format!(r#"{{"type": "slow", "order": {order}}}"#);
    bed.post("orders", &slow(1), None).await.expect("taken");
    bed.b.asked_times(1).await;
    let with = definition(&bed.a, &bed.b, "");
    let without = with.replace("  slow:\n", "  other:\n").replace("to: slow }", "to: other }");
    bed.define(&without).await;
    bed.define(&with).await;
    bed.post("orders", &slow(2), None).await.expect("taken");
    let asked = bed.b.asked_times(2).await;
    // What is due the longest leaves first.
    assert_eq!(asked.iter().map(|asked| asked.body.clone()).collect::<Vec<_>>(), [slow(1), slow(2)]);
    assert_eq!(bed.suspended().await, []);
    bed.b.gate.notify_waiters();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_hears_that_the_port_of_its_request_is_gone() {
    let mut bed = Bed::start().await;
    bed.exchanges.operations.set_port(&name("orders"), &name("b"), Some(PortState::Hold)).await.expect("held");
    let without = definition(&bed.a, &bed.b, "").replace("  b:\n", "  c:\n").replace("to: b }", "to: c }");
    let applied = async {
        bed.open_is(1).await;
        bed.define(&without).await;
    };
    let (asked, ()) = tokio::join!(bed.ask(ORDER), applied);
    let ReplyStatus::Suspended(reason) = &asked.reply_status else { panic!("{asked:?}") };
    assert_eq!(reason, "b: the send port `b` does not exist any more");
    bed.restart().await;
    bed.exchanges.operations.resume(MessageFilter::default(), "op").await.expect("resumed");
    let reply_status = bed.exchanges.intake.reply_to(asked.id, wait_timeout()).await.expect("read");
    assert!(matches!(reply_status, Some(ReplyStatus::Replied { .. })), "{reply_status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_that_go_round_are_stopped() {
    let bed = Bed::start().await;
    let round = definition(&bed.a, &bed.b, "").replace("message.kind != 'reply' && message.type == 'order'", "true");
    bed.define(&round).await;
    bed.post("orders", ORDER, None).await.expect("taken");
    let stopped = &bed.suspended_times(1).await[0];
    assert!(
        stopped.suspended.as_deref().is_some_and(|reason| reason.contains("form a loop of replies")),
        "{stopped:?}"
    );
    assert_eq!(bed.b.all().len(), 17);
}
