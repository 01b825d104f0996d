//! Journals to try, and short ways to say what happens.

use std::{path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use tempfile::TempDir;
use tocsin_model::{
    conduct::Priority,
    event::PackedEvents,
    id::{ChangeSequence, EventBatchId, EventId, Name, NotificationBatchId, SubscriptionId},
    notification::{EventRun, NotificationHead, Notifications},
    receipt::{Attempt, Outcome},
    time::Timestamp,
};
use tocsin_store::{
    journal::{
        Accepted, Claim, ClaimedEvents, Except, Idempotency, Journal, JournalOptions, NewEventBatch,
        NewNotificationBatch, ReceiptChunk, Step, WorkItem,
    },
    memory::journal::MemoryJournal,
    sqlite::journal::SqliteJournal,
};

/// How long the tests hold what they claim.
pub const LEASE: Duration = Duration::from_secs(60);

/// A journal and the folder that it may live in.
pub struct Place {
    kind: &'static str,
    options: JournalOptions,
    folder: TempDir,
}

impl Place {
    pub fn sqlite() -> Place {
        Place::new("sqlite", options())
    }

    fn new(kind: &'static str, options: JournalOptions) -> Place {
        Place { kind, options, folder: tempfile::tempdir().expect("a folder") }
    }

    /// Opens it; a journal of files has what it had before.
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

/// Bounds that no test reaches by accident.
pub fn options() -> JournalOptions {
    JournalOptions { free_bytes_min: 0, ..JournalOptions::default() }
}

/// Tells a story to every backend.
pub fn on_each(story: impl AsyncFn(Arc<dyn Journal>)) {
    on_each_within(options(), story);
}

/// The same, within other bounds.
pub fn on_each_within(options: JournalOptions, story: impl AsyncFn(Arc<dyn Journal>)) {
    for kind in ["memory", "sqlite"] {
        let place = Place::new(kind, options.clone());
        println!("on {kind}");
        run(async { story(place.open().await).await });
    }
}

pub fn run<T>(story: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(story)
}

/// Seconds after the story begins.
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

/// A submission of so many events.
pub fn events(count: u32, now: Timestamp) -> NewEventBatch {
    // The journal never looks into the events.
    let body: Vec<u8> = (0..count * 40).map(|at| (at % 7) as u8).collect();
    NewEventBatch {
        application: app(),
        version: 3,
        class: name("trade"),
        source: name("api"),
        received_at: now,
        accepted_at: now,
        sees: ChangeSequence(0),
        events: PackedEvents::from_parts(count, body.into()),
        idempotency: None,
        marks: Vec::new(),
    }
}

pub fn keyed(key: u8, content: u8, until: Timestamp, now: Timestamp) -> NewEventBatch {
    let idempotency = Idempotency { key: [key; 16], content: [content; 16], until };
    NewEventBatch { idempotency: Some(idempotency), ..events(1, now) }
}

/// A notification batch about these events, one notification after the other taking turns.
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
        Accepted::New(id) => id,
        other => panic!("{other:?}"),
    }
}

pub async fn claim_events(journal: &dyn Journal, batches: usize, now: Timestamp) -> Vec<ClaimedEvents> {
    journal.claim_events(batches, usize::MAX, &Except::default(), LEASE, now).await.expect("claimed")
}

pub async fn claim_work(journal: &dyn Journal, limit: usize, now: Timestamp) -> Vec<WorkItem> {
    claim_pressing(journal, Priority::Low, limit, now).await
}

/// Only what is of this priority or presses more.
pub async fn claim_pressing(journal: &dyn Journal, least: Priority, limit: usize, now: Timestamp) -> Vec<WorkItem> {
    journal.claim_work(&app(), &mail(), least, limit, LEASE, now).await.expect("claimed")
}

/// Claims the next event batch and matches it into batches of so many notifications.
pub async fn match_next(journal: &dyn Journal, counts: &[u32], now: Timestamp) -> Vec<NotificationBatchId> {
    let claimed = claim_events(journal, 1, now).await;
    let step = Step {
        matched: vec![claimed[0].claim],
        batches: counts.iter().map(|count| notifications(&[claimed[0].claim.id], *count, now)).collect(),
        ..Step::default()
    };
    journal.commit(step).await.expect("committed")
}

/// Accepts and matches: so many notifications are due as one work item.
pub async fn queue(journal: &dyn Journal, count: u32, now: Timestamp) -> NotificationBatchId {
    accept(journal, 1, now).await;
    match_next(journal, &[count], now).await[0]
}

/// Everything of an item went well.
pub fn delivered(item: &WorkItem, count: u32, now: Timestamp) -> Step {
    let ordinals = item.ordinals.clone().unwrap_or_else(|| (0..count).collect());
    Step {
        finished: vec![item.claim],
        receipts: vec![chunk(item.batch, attempts(ordinals, item.attempts + 1, Outcome::Delivered, now))],
        ..Step::default()
    }
}

/// A claim that says nothing of its token, for comparisons.
pub fn untold(item: WorkItem) -> WorkItem {
    WorkItem { claim: Claim { token: 0, ..item.claim }, ..item }
}
