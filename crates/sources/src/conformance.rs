//! Conformance suite of sources: the promises of [`OpenSource`](crate::OpenSource), kept by every kind against its own
//! server.
//!
//! A kind's tests implement [`Subject`] and call [`exercise`]. Its cases use the contract only.

use std::{
    collections::BTreeMap,
    future::Future,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::Value as Json;
use tocsin_connect::{Clock, SystemClock};
use tocsin_model::{event::PackedEvents, mark::Mark, time::Timestamp};
use tokio_util::sync::CancellationToken;

use crate::{
    source::{BATCH_EVENTS_MAX, OpenSource, SourceBatch, SourceError},
    supervise::{Health, RunningSource, SourceHost, StoreOutcome},
    testing::{Harness, commit, shown, wait_timeout},
};

/// Pause between two looks at the unacknowledged items, in which the source may take redelivered ones.
const LOOK: Duration = Duration::from_millis(500);

/// A kind under test, with its server.
#[async_trait(?Send)]
pub(crate) trait Subject {
    /// A source of a new, empty place at the server: a folder, table, topic or page.
    async fn harness(&mut self) -> Harness;

    /// Puts items with these numbers into this place. Number 7 becomes the event `{"id": "q7"}`.
    async fn put(&mut self, numbers: Range<u32>);

    /// Puts an item that is larger than others, and returns its expected result.
    async fn put_oversize(&mut self, number: u32) -> Oversize;

    /// Removes the oversize item, where it stays.
    async fn remove_oversize(&mut self) {}

    /// The number of items that the server keeps until they are acknowledged. `None`: it keeps no account.
    async fn unacknowledged(&mut self) -> Option<usize> {
        None
    }

    /// Options of a source whose server accepts connections and never responds, with timeouts of about a second.
    /// `None`: the kind has no server that could be silent.
    async fn silent(&mut self) -> Option<Json>;

    /// Items of which a source takes several batches.
    fn many(&self) -> u32 {
        2_500
    }
}

/// The result of an oversize item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Oversize {
    /// It is an event, which ends its batch.
    Delivered,
    /// It is rejected, with a reason.
    Rejected,
    /// The source fails until it is removed.
    Fails,
    /// It is set aside at the server, or returned to its sender.
    SetAside,
}

/// Runs all cases.
pub(crate) async fn exercise(subject: &mut dyn Subject) {
    every_item_is_one_event(subject).await;
    a_dropped_acknowledgement_repeats_no_event(subject).await;
    an_uncommitted_batch_is_delivered_again_with_its_ids(subject).await;
    a_source_continues_at_its_marks(subject).await;
    an_oversize_item_delays_no_other(subject).await;
    a_panic_loses_and_repeats_nothing(subject).await;
    batches_are_bounded(subject).await;
    a_silent_server_is_an_error(subject).await;
}

/// Bounds a wait for the source.
async fn within<T>(case: &str, work: impl Future<Output = T>) -> T {
    let timeout = wait_timeout();
    match tokio::time::timeout(timeout, work).await {
        Ok(result) => result,
        Err(_) => panic!("{case}: not within {timeout:?}"),
    }
}

/// The ids of the events of a batch.
fn ids(events: &PackedEvents) -> Vec<String> {
    let id = |event: &String| {
        let event: Json = serde_json::from_str(event).expect("JSON");
        event["id"].as_str().expect("a text").to_owned()
    };
    shown(events).iter().map(id).collect()
}

fn expected(numbers: Range<u32>) -> Vec<String> {
    let mut ids: Vec<String> = numbers.map(|number| format!("q{number}")).collect();
    ids.sort_unstable();
    ids
}

/// The result of some batches.
#[derive(Default)]
struct AcceptedItems {
    ids: Vec<String>,
    refused: Vec<String>,
    largest: usize,
}

impl AcceptedItems {
    fn add(&mut self, batch: &SourceBatch) {
        let ids = ids(&batch.events);
        self.largest = self.largest.max(ids.len());
        self.ids.extend(ids);
        self.refused.extend(batch.refused.iter().map(|item| item.reason.clone()));
        self.ids.sort_unstable();
    }

    fn has(&self, last: u32) -> bool {
        self.ids.contains(&format!("q{last}"))
    }
}

/// Takes and accepts batches until there are so many events.
async fn take(case: &str, harness: &mut Harness, count: usize) -> AcceptedItems {
    let mut taken = AcceptedItems::default();
    while taken.ids.len() < count {
        let batch = harness.next().await;
        taken.add(&batch);
        accept(case, harness, batch).await;
    }
    taken
}

/// Commits a batch, and acknowledges it.
async fn accept(case: &str, harness: &mut Harness, batch: SourceBatch) {
    harness.commit(batch.marks);
    harness.source().accepted().await.unwrap_or_else(|error| panic!("{case}: {error}"));
}

/// The next batch with events. Others are accepted.
async fn next_events(case: &str, harness: &mut Harness) -> SourceBatch {
    loop {
        let batch = harness.next().await;
        if batch.events.count() > 0 {
            return batch;
        }
        accept(case, harness, batch).await;
    }
}

/// Waits until the server has no unacknowledged item. A server may redeliver some of them first: they are no events.
async fn check_acknowledged(case: &str, subject: &mut dyn Subject, harness: &mut Harness) {
    let acknowledged = async {
        while subject.unacknowledged().await.is_some_and(|left| left > 0) {
            if let Ok(batch) = tokio::time::timeout(LOOK, harness.source().next()).await {
                let batch = batch.unwrap_or_else(|error| panic!("{case}: {error}"));
                assert_eq!(ids(&batch.events), [""; 0], "{case}: an item is delivered twice");
                accept(case, harness, batch).await;
            }
        }
    };
    within(case, acknowledged).await;
}

async fn every_item_is_one_event(subject: &mut dyn Subject) {
    let case = "one acknowledgement each";
    let mut harness = subject.harness().await;
    subject.put(0..50).await;
    let taken = take(case, &mut harness, 50).await;
    assert_eq!((taken.ids, taken.refused), (expected(0..50), Vec::new()), "{case}");
    check_acknowledged(case, subject, &mut harness).await;
    subject.put(50..51).await;
    assert_eq!(take(case, &mut harness, 1).await.ids, expected(50..51), "{case}: an item is delivered twice");
    check_acknowledged(case, subject, &mut harness).await;
    harness.source().close().await;
}

async fn a_dropped_acknowledgement_repeats_no_event(subject: &mut dyn Subject) {
    let case = "dropped acknowledgement";
    let mut harness = subject.harness().await;
    subject.put(0..20).await;
    let mut taken = AcceptedItems::default();
    while taken.ids.len() < 20 {
        let batch = next_events(case, &mut harness).await;
        taken.add(&batch);
        harness.commit(batch.marks);
        // A crash after the commit, before the acknowledgement.
        harness.crash();
    }
    assert_eq!(taken.ids, expected(0..20), "{case}");
    subject.put(20..21).await;
    assert_eq!(take(case, &mut harness, 1).await.ids, expected(20..21), "{case}");
    check_acknowledged(case, subject, &mut harness).await;
    harness.source().close().await;
}

async fn an_uncommitted_batch_is_delivered_again_with_its_ids(subject: &mut dyn Subject) {
    let case = "id over redelivery";
    let mut harness = subject.harness().await;
    subject.put(0..20).await;
    let first = shown(&next_events(case, &mut harness).await.events);
    if let Some(left) = subject.unacknowledged().await {
        assert!(left >= first.len(), "{case}: an item is acknowledged before it is stored");
    }
    // A crash before the commit.
    harness.crash();
    let (mut taken, mut events) = (AcceptedItems::default(), Vec::new());
    while taken.ids.len() < 20 {
        let batch = next_events(case, &mut harness).await;
        taken.add(&batch);
        events.extend(shown(&batch.events));
        accept(case, &mut harness, batch).await;
    }
    assert_eq!(taken.ids, expected(0..20), "{case}");
    assert!(first.iter().all(|event| events.contains(event)), "{case}: an event changed: {first:?} {events:?}");
    harness.source().close().await;
}

async fn a_source_continues_at_its_marks(subject: &mut dyn Subject) {
    let case = "restart at the marks";
    let mut harness = subject.harness().await;
    subject.put(0..10).await;
    assert_eq!(take(case, &mut harness, 10).await.ids, expected(0..10), "{case}");
    harness.source().close().await;
    harness.crash();
    subject.put(10..20).await;
    assert_eq!(take(case, &mut harness, 10).await.ids, expected(10..20), "{case}");
    harness.source().close().await;
}

async fn an_oversize_item_delays_no_other(subject: &mut dyn Subject) {
    let case = "oversize item";
    let mut harness = subject.harness().await;
    subject.put(0..1).await;
    let mut taken = take(case, &mut harness, 1).await;
    let result = subject.put_oversize(1).await;
    if result == Oversize::Fails {
        let failed = async {
            loop {
                match harness.try_next().await {
                    Ok(batch) => taken.add(&batch),
                    Err(error) => break error,
                }
            }
        };
        let error = within(case, failed).await;
        assert!(!error.text.is_empty(), "{case}");
        subject.remove_oversize().await;
        harness.crash();
    }
    subject.put(2..3).await;
    // Concurrent senders have no order.
    let is_missing = |taken: &AcceptedItems| match result {
        Oversize::Delivered => !taken.has(1),
        Oversize::Rejected => taken.refused.is_empty(),
        Oversize::Fails | Oversize::SetAside => false,
    };
    while !taken.has(2) || is_missing(&taken) {
        let batch = harness.next().await;
        taken.add(&batch);
        accept(case, &mut harness, batch).await;
    }
    let delivered = if result == Oversize::Delivered { vec!["q0", "q1", "q2"] } else { vec!["q0", "q2"] };
    assert_eq!(taken.ids, delivered, "{case}: {:?}", taken.refused);
    assert_eq!(taken.refused.len(), usize::from(result == Oversize::Rejected), "{case}: {:?}", taken.refused);
    check_acknowledged(case, subject, &mut harness).await;
    harness.source().close().await;
}

async fn a_panic_loses_and_repeats_nothing(subject: &mut dyn Subject) {
    let case = "panic";
    let mut harness = subject.harness().await;
    harness.source().close().await;
    harness.crash();
    subject.put(0..20).await;
    let host = PanicHost::new(harness);
    let running = RunningSource::start(host);
    let host = running.host.clone();
    let is_done = async || host.state.lock().ids.len() >= 20;
    within(case, tocsin_test_peers::until("the source has continued", is_done)).await;
    RunningSource::end(vec![running]).await;
    let state = host.state.lock();
    let mut ids = state.ids.clone();
    ids.sort_unstable();
    assert_eq!(ids, expected(0..20), "{case}");
    assert!(state.errors.iter().any(|error| error.contains("it broke")), "{case}: {:?}", state.errors);
}

async fn batches_are_bounded(subject: &mut dyn Subject) {
    let case = "back-pressure";
    let mut harness = subject.harness().await;
    let many = subject.many();
    subject.put(0..many).await;
    let taken = take(case, &mut harness, many as usize).await;
    assert_eq!(taken.ids, expected(0..many), "{case}");
    assert!(taken.largest <= BATCH_EVENTS_MAX, "{case}: a batch has {} events", taken.largest);
    check_acknowledged(case, subject, &mut harness).await;
    harness.source().close().await;
}

async fn a_silent_server_is_an_error(subject: &mut dyn Subject) {
    let case = "deadline";
    let Some(options) = subject.silent().await else { return };
    let mut harness = subject.harness().await;
    harness.crash();
    harness.options = options;
    harness.marks.clear();
    let failed = async {
        loop {
            if let Err(error) = harness.try_next().await {
                break error;
            }
        }
    };
    let error = within(case, failed).await;
    assert!(!error.text.is_empty(), "{case}");
}

/// A host whose source panics once, with a batch that is not stored.
struct PanicHost {
    harness: Mutex<Harness>,
    health: Mutex<Health>,
    fails: Arc<AtomicBool>,
    state: Mutex<Stored>,
}

/// The journal of the host, and the reported errors.
#[derive(Default)]
struct Stored {
    marks: Vec<Mark>,
    ids: Vec<String>,
    errors: Vec<String>,
}

impl PanicHost {
    fn new(harness: Harness) -> PanicHost {
        let state = Stored { marks: harness.marks.clone(), ..Stored::default() };
        PanicHost {
            harness: Mutex::new(harness),
            health: Mutex::new(Health::new(SystemClock.now())),
            fails: Arc::new(AtomicBool::new(true)),
            state: Mutex::new(state),
        }
    }
}

#[async_trait]
impl SourceHost for PanicHost {
    fn health(&self) -> &Mutex<Health> {
        &self.health
    }

    fn now(&self) -> Timestamp {
        SystemClock.now()
    }

    fn jitter(&self) -> f64 {
        0.0
    }

    fn hold_reason(&self) -> Option<String> {
        None
    }

    async fn until(&self, may: bool) {
        if !may {
            std::future::pending::<()>().await;
        }
    }

    async fn open(&self) -> Result<Box<dyn OpenSource>, SourceError> {
        let marks = self.state.lock().marks.clone();
        let (kind, setting) = {
            let harness = self.harness.lock();
            (harness.kind, harness.setting())
        };
        let opened = crate::open(kind, setting, marks).map_err(|problems| SourceError::of(format!("{problems:?}")))?;
        Ok(Box::new(Panicking { source: opened, fails: self.fails.clone() }))
    }

    async fn take(&self, batch: SourceBatch, _: &CancellationToken) -> Result<StoreOutcome, SourceError> {
        let mut state = self.state.lock();
        state.ids.extend(ids(&batch.events));
        commit(&mut state.marks, batch.marks);
        Ok(StoreOutcome::Stored)
    }

    fn report_error(&self, error: &SourceError, _: u32) {
        self.state.lock().errors.push(error.text.clone());
    }
}

/// A source that panics once, after it has taken events.
struct Panicking {
    source: Box<dyn OpenSource>,
    fails: Arc<AtomicBool>,
}

#[async_trait]
impl OpenSource for Panicking {
    async fn next(&mut self) -> Result<SourceBatch, SourceError> {
        let batch = self.source.next().await?;
        assert!(batch.events.count() == 0 || !self.fails.swap(false, Ordering::SeqCst), "it fails once, on demand");
        Ok(batch)
    }

    async fn accepted(&mut self) -> Result<(), SourceError> {
        self.source.accepted().await
    }

    async fn close(&mut self) {
        self.source.close().await;
    }
}

/// The address of a server that accepts connections and never responds.
pub(crate) async fn silent_server() -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        let mut connections = Vec::new();
        while let Ok((connection, _)) = listener.accept().await {
            connections.push(connection);
        }
    });
    address
}

/// The kinds whose tests run the suite.
#[test]
fn every_kind_runs_the_suite() {
    let sources = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let runs = |file: &str| {
        let text = std::fs::read_to_string(sources.join(file)).unwrap_or_default();
        text.contains("exercise(&mut ")
    };
    let missing: BTreeMap<&str, String> = crate::kinds()
        .iter()
        .map(|kind| (kind.name, format!("{}/tests.rs", kind.name)))
        .filter(|(_, file)| !runs(file))
        .collect();
    assert!(missing.is_empty(), "these kinds do not run the conformance suite: {missing:?}");
}
