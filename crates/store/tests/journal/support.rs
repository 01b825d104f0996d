//! Journals to test, and short constructors.

use std::{path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use tempfile::TempDir;
use tocsin_model::{
    delivery_policy::Priority,
    event::PackedEvents,
    id::{ChangeSequence, EventBatchId, EventId, Name, NotificationBatchId, SubscriptionId},
    notification::{EventRun, NotificationHead, Notifications},
    receipt::{Attempt, Outcome},
    time::Timestamp,
};
use tocsin_store::{
    journal::{
        Claim, ClaimEvents, ClaimWork, ClaimedEvents, EventAcceptance, Except, Idempotency, Journal, JournalOptions,
        NewEventBatch, NewNotificationBatch, ReceiptChunk, Retry, Step, Suspension, WorkItem, WorkState,
    },
    memory::journal::MemoryJournal,
    sqlite::journal::SqliteJournal,
};

/// Duration of the leases in the tests.
pub const LEASE: Duration = Duration::from_secs(60);

/// A journal and its folder.
pub struct JournalFixture {
    kind: &'static str,
    options: JournalOptions,
    folder: TempDir,
}

impl JournalFixture {
    pub fn sqlite() -> JournalFixture {
        JournalFixture::new("sqlite", options())
    }

    fn new(kind: &'static str, options: JournalOptions) -> JournalFixture {
        JournalFixture { kind, options, folder: tempfile::tempdir().expect("a folder") }
    }

    /// Opens the journal; a journal in a file has its earlier contents.
    pub async fn open(&self) -> Arc<dyn Journal> {
        match self.kind {
            "memory" => Arc::new(MemoryJournal::new(self.options.clone())),
            _ => open_at(self.folder.path(), self.options.clone()).await,
        }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

pub async fn open_at(folder: &Path, options: JournalOptions) -> Arc<dyn Journal> {
    Arc::new(SqliteJournal::open(folder.join("journal.sqlite"), options).await.expect("the journal opens"))
}

/// Limits that no test reaches by accident.
pub fn options() -> JournalOptions {
    JournalOptions { free_bytes_min: 0, ..JournalOptions::default() }
}

/// Runs a test with every backend.
pub fn on_each(test: impl AsyncFn(Arc<dyn Journal>)) {
    on_each_within(options(), test);
}

/// Runs a test with every backend and these options.
pub fn on_each_within(options: JournalOptions, test: impl AsyncFn(Arc<dyn Journal>)) {
    for kind in ["memory", "sqlite"] {
        let fixture = JournalFixture::new(kind, options.clone());
        println!("on {kind}");
        run(async { test(fixture.open().await).await });
    }
}

pub fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(test)
}

/// A time in seconds after the start of the test.
pub fn at(seconds: i64) -> Timestamp {
    Timestamp(1_800_000_000_000_000 + seconds * 1_000_000)
}

pub fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

pub fn app() -> Name {
    name("stock")
}

pub fn mail() -> Name {
    name("mail")
}

/// An event batch with this number of events.
pub fn events(count: u32, now: Timestamp) -> NewEventBatch {
    // The journal does not read the events.
    let body: Vec<u8> = (0..count * 40).map(|at| (at % 7) as u8).collect();
    NewEventBatch {
        application: app(),
        version: 3,
        class: name("trade"),
        source: name("api"),
        received_at: now,
        accepted_at: now,
        snapshot_sequence: ChangeSequence(0),
        events: PackedEvents::from_parts(count, body.into()),
        idempotency: None,
        marks: Vec::new(),
    }
}

pub fn keyed(key: u8, content: u8, until: Timestamp, now: Timestamp) -> NewEventBatch {
    let idempotency = Idempotency { key: [key; 16], content: [content; 16], until };
    NewEventBatch { idempotency: Some(idempotency), ..events(1, now) }
}

/// A notification batch for these events, distributed evenly.
pub fn notifications(of: &[EventBatchId], count: u32, now: Timestamp) -> NewNotificationBatch {
    let share = |at: usize| count / of.len() as u32 + u32::from((at as u32) < count % of.len() as u32);
    let run = |(at, batch): (usize, &EventBatchId)| EventRun {
        event: EventId { batch: *batch, ordinal: 0 },
        count: share(at),
    };
    let notifications = Notifications {
        events: of.iter().enumerate().map(run).collect(),
        subscriptions: (1..=u64::from(count)).map(SubscriptionId).collect(),
        captured: Vec::new(),
    };
    NewNotificationBatch {
        head: NotificationHead {
            application: app(),
            version: 3,
            rule: name("limit"),
            class: name("alert"),
            event_class: name("trade"),
            channel: mail(),
            matched_at: now,
            accepted_at: now,
            expires_at: Some(now + Duration::from_secs(86_400)),
        },
        count,
        packed: Bytes::from(notifications.pack()),
        priority: Priority::Normal,
        suspended: None,
        run: None,
    }
}

/// Attempts, all answered at the same time.
pub fn attempts(
    ordinals: impl IntoIterator<Item = u32>,
    number: u32,
    outcome: Outcome,
    now: Timestamp,
) -> Vec<Attempt> {
    let attempt = |ordinal| Attempt {
        ordinal,
        number,
        formatted_at: now,
        sent_at: now,
        answered_at: now,
        outcome,
        reply: "250 queued".to_owned(),
    };
    ordinals.into_iter().map(attempt).collect()
}

pub fn chunk(batch: NotificationBatchId, attempts: Vec<Attempt>) -> ReceiptChunk {
    ReceiptChunk { batch, channel: mail(), attempts: attempts.into() }
}

pub async fn accept(journal: &dyn Journal, count: u32, now: Timestamp) -> EventBatchId {
    match journal.accept(events(count, now)).await.expect("accepted") {
        EventAcceptance::New(id) => id,
        other => panic!("{other:?}"),
    }
}

pub async fn claim_events(journal: &dyn Journal, batches: usize, now: Timestamp) -> Vec<ClaimedEvents> {
    journal
        .claim_events(ClaimEvents { batches, bytes: usize::MAX, except: &Except::default(), lease: LEASE, now })
        .await
        .expect("claimed")
}

pub async fn claim_work(journal: &dyn Journal, limit: usize, now: Timestamp) -> Vec<WorkItem> {
    claim_with_priority(journal, Priority::Low, limit, now).await
}

/// Claims only work of this priority or a higher one.
pub async fn claim_with_priority(
    journal: &dyn Journal,
    least: Priority,
    limit: usize,
    now: Timestamp,
) -> Vec<WorkItem> {
    journal
        .claim_work(ClaimWork { application: &app(), channel: &mail(), least, limit, lease: LEASE, now })
        .await
        .expect("claimed")
}

/// Claims the next event batch and commits notification batches of these sizes for it.
pub async fn match_next(journal: &dyn Journal, counts: &[u32], now: Timestamp) -> Vec<NotificationBatchId> {
    let claimed = claim_events(journal, 1, now).await;
    let step = Step {
        matched: vec![claimed[0].claim],
        batches: counts.iter().map(|count| notifications(&[claimed[0].claim.id], *count, now)).collect(),
        ..Step::default()
    };
    journal.commit(step).await.expect("committed")
}

/// Accepts and matches an event batch, so that one work item with this number of notifications is due.
pub async fn queue(journal: &dyn Journal, count: u32, now: Timestamp) -> NotificationBatchId {
    accept(journal, 1, now).await;
    match_next(journal, &[count], now).await[0]
}

/// A step in which everything of an item was delivered.
pub fn delivered(item: &WorkItem, count: u32, now: Timestamp) -> Step {
    let ordinals = item.ordinals.clone().unwrap_or_else(|| (0..count).collect());
    Step {
        finished: vec![item.claim],
        receipts: vec![chunk(item.batch, attempts(ordinals, item.attempts + 1, Outcome::Delivered, now))],
        ..Step::default()
    }
}

/// A work item without the token of its claim, for comparisons.
pub fn without_token(item: WorkItem) -> WorkItem {
    WorkItem { claim: Claim { token: 0, ..item.claim }, ..item }
}

pub fn retry(batch: NotificationBatchId, ordinals: Vec<u32>, attempts: u32, due: i64) -> Retry {
    Retry {
        batch,
        application: app(),
        channel: mail(),
        ordinals,
        attempts,
        due_at: at(due),
        work_state: WorkState::default(),
    }
}

pub fn suspension(batch: NotificationBatchId, ordinals: Vec<u32>, channel: &str) -> Suspension {
    Suspension {
        batch,
        application: app(),
        channel: name(channel),
        ordinals,
        attempts: 4,
        reason: "attempts exhausted".to_owned(),
        since: at(7),
        work_state: WorkState::default(),
    }
}

/// Stores a batch for each of these priorities and due times.
pub async fn queue_all(journal: &dyn Journal, batches: &[(Priority, i64)]) {
    for (priority, due) in batches {
        accept(journal, 1, at(*due)).await;
        let claimed = claim_events(journal, 1, at(*due)).await;
        let new = NewNotificationBatch { priority: *priority, ..notifications(&[claimed[0].claim.id], 2, at(*due)) };
        let step = Step { matched: vec![claimed[0].claim], batches: vec![new], ..Step::default() };
        journal.commit(step).await.expect("committed");
    }
}
