//! A day of batches with known times; each report is compared with a separate calculation, on both journals.

mod lists; // what there was, one by one, and each in detail
mod rates; // what came of each hour and of the day
mod schedules; // the same of a day of schedules
mod searches; // searches of events and notifications
mod snapshots; // how things stand in the evening

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use tocsin_connect::{Clock, networks::Networks};
use tocsin_delivery::{Context, TokenSigner};
use tocsin_model::{
    delivery_policy::Priority,
    event::EventPacker,
    id::{EventId, Name, NotificationBatchId, SubscriptionId},
    notification::{EventRun, NotificationHead, Notifications},
    receipt::{Attempt, Outcome},
    time::Timestamp,
    value::Value,
};
use tocsin_pipeline::{Pipeline, compile_text};
use tocsin_service::{
    Caller, Parts, Service, ServiceError, keys,
    reports::{CATALOGUE, Cell, Report, ReportRequest},
};
use tocsin_store::{
    journal::{
        ClaimEvents, ClaimWork, Except, Journal, JournalOptions, NewEventBatch, NewNotificationBatch, NewQuantum,
        QuantumInput, ReceiptChunk, Retry, Step,
    },
    memory::{inbox::MemoryInbox, journal::MemoryJournal, records::MemoryRecords},
    records::{NewApplicationVersion, NewSubscriber, NewSubscription, Precondition, Records},
    sqlite::journal::SqliteJournal,
};

const DEFINITION: &str = "
application: stock
events: { trade: { fields: { price: number } }, quote: { fields: { price: number }, retention: 1h } }
subscriptions: { wish: {} }
notifications:
  alert: { retention: 3d, content: { templates: { base: { text: x } } } }
  note: { content: { templates: { base: { text: x } } } }
rules:
  near: { on: trade, subscription: wish, notify: alert }
  far: { on: quote, subscription: wish, notify: note }
sources: { feed: { kind: http }, hand: { kind: http } }
channels:
  mail: { protocol: file, options: { path: mail.ndjson } }
  hook: { protocol: file, options: { path: hook.ndjson } }
";

/// An event batch, from its first byte to the last answer. Times are in milliseconds after midnight, each relative to
/// the previous one.
struct Entry {
    at: i64,
    class: &'static str,
    source: &'static str,
    events: u32,
    collection: i64,
    pickup: i64,
    matching: i64,
    sent_batches: &'static [SentBatch],
}

/// A notification batch of an event batch.
struct SentBatch {
    channel: &'static str,
    count: u32,
    wait: i64,
    /// Response times and outcomes of the receiver, per notification.
    answers: &'static [(u32, i64, Outcome)],
    /// Deferred notifications are delivered this much later, with the same response time.
    later: i64,
}

const MINUTE: i64 = 60_000;
const HOUR: i64 = 60 * MINUTE;

const DAY: &[Entry] = &[
    Entry {
        at: 8 * HOUR,
        class: "trade",
        source: "feed",
        events: 10,
        collection: 40,
        pickup: 5,
        matching: 20,
        sent_batches: &[
            SentBatch { channel: "mail", count: 3, wait: 30, answers: &[(3, 12, Outcome::Delivered)], later: 0 },
            SentBatch {
                channel: "hook",
                count: 4,
                wait: 90,
                answers: &[(2, 7, Outcome::Delivered), (2, 8, Outcome::Refused)],
                later: 0,
            },
        ],
    },
    Entry {
        at: 8 * HOUR + 2_000,
        class: "trade",
        source: "hand",
        events: 1,
        collection: 3,
        pickup: 11,
        matching: 4,
        sent_batches: &[],
    },
    Entry {
        at: 8 * HOUR + MINUTE - 10,
        class: "quote",
        source: "feed",
        events: 7,
        collection: 2,
        pickup: 30,
        matching: 50,
        sent_batches: &[SentBatch {
            channel: "mail",
            count: 5,
            wait: 1_000,
            answers: &[(2, 25, Outcome::Delivered), (3, 40, Outcome::Deferred)],
            later: 2 * MINUTE,
        }],
    },
    Entry {
        at: 20 * HOUR,
        class: "trade",
        source: "feed",
        events: 250,
        collection: 900,
        pickup: 100,
        matching: 300,
        sent_batches: &[SentBatch {
            channel: "hook",
            count: 100,
            wait: 10,
            answers: &[(100, 5, Outcome::Delivered)],
            later: 0,
        }],
    },
];

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn midnight() -> Timestamp {
    "2026-03-01T00:00:00Z".parse().expect("a timestamp")
}

fn at(millis: i64) -> Timestamp {
    Timestamp(midnight().0 + millis * 1_000)
}

fn took(millis: i64) -> Cell {
    Cell::Took(Duration::from_millis(millis as u64))
}

impl Entry {
    fn accepted(&self) -> i64 {
        self.at + self.collection
    }

    fn picked_up(&self) -> i64 {
        self.accepted() + self.pickup
    }

    fn matched(&self) -> i64 {
        self.picked_up() + self.matching
    }

    fn rule(&self) -> &'static str {
        if self.class == "trade" { "near" } else { "far" }
    }

    fn notification_class(&self) -> &'static str {
        if self.class == "trade" { "alert" } else { "note" }
    }
}

impl SentBatch {
    fn sent(&self, entry: &Entry) -> i64 {
        entry.matched() + self.wait
    }

    /// All attempts: ordinal, number, hand-over, answer and outcome.
    fn attempts(&self, entry: &Entry) -> Vec<(u32, u32, i64, i64, Outcome)> {
        let mut attempts = Vec::new();
        let (mut ordinal, mut sent) = (0, self.sent(entry));
        for (count, answer, outcome) in self.answers {
            for _ in 0..*count {
                attempts.push((ordinal, 1, sent, sent + answer, *outcome));
                sent += answer;
                ordinal += 1;
            }
        }
        let deferred: Vec<_> = attempts.iter().filter(|found| found.4 == Outcome::Deferred).copied().collect();
        for (ordinal, _, sent, answered, _) in deferred {
            attempts.push((ordinal, 2, sent + self.later, answered + self.later, Outcome::Delivered));
        }
        attempts
    }

    fn last_answered(&self, entry: &Entry) -> i64 {
        self.attempts(entry).iter().map(|found| found.3).max().expect("some")
    }

    fn count_of(&self, entry: &Entry, outcome: Outcome) -> u64 {
        self.attempts(entry).iter().filter(|found| found.4 == outcome).count() as u64
    }
}

/// All notification batches of the day, in the order of their ids.
fn batches() -> Vec<(NotificationBatchId, &'static Entry, &'static SentBatch)> {
    let sent_batch = DAY.iter().flat_map(|entry| entry.sent_batches.iter().map(move |sent_batch| (entry, sent_batch)));
    (1..).zip(sent_batch).map(|(id, (entry, sent_batch))| (NotificationBatchId(id), entry, sent_batch)).collect()
}

/// Writes the day into a journal.
async fn live(journal: &dyn Journal) {
    let application = tocsin_model::definition::read(DEFINITION, &|_| None).expect("a definition");
    let lease = Duration::from_secs(60);
    for entry in DAY {
        let class = name(entry.class);
        let mut packer = EventPacker::new(application.events[&class].fields.clone());
        (0..entry.events).for_each(|at| packer.push(&[Value::Number(f64::from(at))]));
        let new = NewEventBatch {
            application: name("stock"),
            version: 1,
            class: class.clone(),
            source: name(entry.source),
            received_at: at(entry.at),
            accepted_at: at(entry.accepted()),
            snapshot_sequence: Default::default(),
            events: packer.finish(),
            idempotency: None,
            marks: Vec::new(),
        };
        journal.accept(new).await.expect("accepted");
        let now = at(entry.picked_up());
        let claimed = journal
            .claim_events(ClaimEvents { batches: 9, bytes: usize::MAX, except: &Except::default(), lease, now })
            .await
            .expect("claimed")
            .remove(0);
        let id = claimed.claim.id;
        let new_batch = |sent_batch: &SentBatch| {
            let notifications = Notifications {
                events: vec![EventRun { event: EventId { batch: id, ordinal: 0 }, count: sent_batch.count }],
                subscriptions: (1..=u64::from(sent_batch.count)).map(SubscriptionId).collect(),
                captured: Vec::new(),
            };
            NewNotificationBatch {
                head: NotificationHead {
                    application: name("stock"),
                    version: 1,
                    rule: name(entry.rule()),
                    class: name(entry.notification_class()),
                    event_class: class.clone(),
                    channel: name(sent_batch.channel),
                    matched_at: at(entry.matched()),
                    accepted_at: at(entry.accepted()),
                    expires_at: None,
                },
                count: sent_batch.count,
                packed: Bytes::from(notifications.pack()),
                priority: Priority::Normal,
                suspended: None,
                run: None,
            }
        };
        let taken_up = QuantumInput {
            id,
            application: name("stock"),
            class: class.clone(),
            source: name(entry.source),
            accepted_at: at(entry.accepted()),
            events: entry.events,
        };
        let quantum = NewQuantum {
            started_at: at(entry.picked_up()),
            ended_at: at(entry.matched()),
            batches: vec![taken_up],
            scheduled_notifications: 0,
        };
        let batches = entry.sent_batches.iter().map(new_batch).collect();
        let step = Step { matched: vec![claimed.claim], batches, quantum: Some(quantum), ..Step::default() };
        let ids = journal.commit(step).await.expect("committed");
        for (batch, sent_batch) in ids.into_iter().zip(entry.sent_batches) {
            deliver(journal, batch, entry, sent_batch).await;
        }
    }
}

async fn deliver(journal: &dyn Journal, batch: NotificationBatchId, entry: &Entry, sent_batch: &SentBatch) {
    let channel = name(sent_batch.channel);
    for number in [1, 2] {
        let of_number: Vec<_> = sent_batch.attempts(entry).into_iter().filter(|found| found.1 == number).collect();
        let Some((_, _, sent, _, _)) = of_number.first() else { return };
        let work = journal
            .claim_work(ClaimWork {
                application: &name("stock"),
                channel: &channel,
                least: Priority::Low,
                limit: 9,
                lease: Duration::from_secs(600),
                now: at(*sent),
            })
            .await;
        let item = work.expect("claimed").into_iter().find(|item| item.batch == batch).expect("it is due");
        let attempt = |(ordinal, number, sent, answered, outcome): (u32, u32, i64, i64, Outcome)| Attempt {
            ordinal,
            number,
            formatted_at: at(sent),
            sent_at: at(sent),
            answered_at: at(answered),
            outcome,
            reply: format!("{} {ordinal}", outcome.word()),
        };
        let deferred: Vec<u32> =
            of_number.iter().filter(|found| found.4 == Outcome::Deferred).map(|found| found.0).collect();
        let retry = Retry {
            batch,
            application: name("stock"),
            channel: channel.clone(),
            ordinals: deferred.clone(),
            attempts: 1,
            due_at: at(sent + sent_batch.later),
            work_state: Default::default(),
        };
        let attempts: Vec<Attempt> = of_number.into_iter().map(attempt).collect();
        let step = Step {
            finished: vec![item.claim],
            receipts: vec![ReceiptChunk { batch, channel: channel.clone(), attempts: attempts.into() }],
            retries: if deferred.is_empty() { Vec::new() } else { vec![retry] },
            ..Step::default()
        };
        journal.commit(step).await.expect("committed");
    }
}

/// 22:00.
struct Evening;

impl Clock for Evening {
    fn now(&self) -> Timestamp {
        at(22 * HOUR)
    }
}

/// A platform on a journal with the day.
struct Platform {
    records: Arc<dyn Records>,
    service: Arc<Service>,
    caller: Caller,
}

impl Platform {
    /// A platform on a journal with the day of this application.
    async fn on(journal: Arc<dyn Journal>, definition: &str) -> Platform {
        let records: Arc<dyn Records> = Arc::new(MemoryRecords::new().expect("records"));
        records
            .put_application(NewApplicationVersion {
                name: &name("stock"),
                text: definition,
                author: "ann",
                now: at(0),
            })
            .await
            .expect("stored");
        assert!(compile_text(definition, 1, &|_| None).is_ok());
        let key = keys::first_key::<ServiceError>(&*records, Timestamp(0), |_| Ok(())).await;
        let key = key.expect("a key").expect("the first");
        let inbox = Arc::new(MemoryInbox::default());
        let ends = tocsin_testkit::ScriptedChannels::new(tocsin_testkit::SimulatedClock::midnight());
        let parts = tocsin_pipeline::Parts {
            journal: journal.clone(),
            records: records.clone(),
            inbox: inbox.clone(),
            environment: Arc::new(|_| None),
            context: Context {
                clock: Arc::new(Evening),
                installation: "test".to_owned(),
                data_folder: std::path::PathBuf::new(),
                networks: Networks::default(),
                programs: Default::default(),
                files: Default::default(),
                application: String::new(),
                token_signer: Arc::new(TokenSigner::new(records.secret())),
                feeds: None,
                provider_days: None,
                public_url: None,
            },
            opener: Arc::new(move |name, _, _| Ok(ends.channel(name.as_str()))),
            options: Default::default(),
            seed: 7,
            spans: Default::default(),
        };
        let pipeline = Pipeline::start(parts).await.expect("a pipeline");
        let parts = Parts {
            records: records.clone(),
            journal,
            inbox,
            pipeline,
            exchanges: None,
            free_space: None,
            saturation: None,
            version: "0.0.0-test",
        };
        let service = Service::open(parts).await.expect("a service");
        let caller = service.authenticate(&key).expect("a good key");
        Platform { records, service, caller }
    }

    async fn report(&self, name: &str, asked: &ReportRequest) -> Report {
        self.service.report(&self.caller, name, asked).await.unwrap_or_else(|error| panic!("{name}: {error:?}"))
    }

    /// Checks the rows of the only table, or of one by its index, cell by cell.
    async fn check(&self, report: &str, asked: &ReportRequest, table: usize, expected: Vec<Vec<Cell>>) {
        let found = self.report(report, asked).await;
        let table = &found.tables[table];
        assert_eq!(table.rows.len(), expected.len(), "{report}: {:?}", table.rows);
        for (row, expected) in table.rows.iter().zip(&expected) {
            assert_eq!(row.len(), expected.len(), "{report}");
            for ((column, found), expected) in table.columns.iter().zip(row).zip(expected) {
                match (found, expected) {
                    // Percentiles are the upper ends of buckets of about 6 %.
                    (Cell::Took(found), Cell::Took(exact))
                        if column.name.contains("_p") || column.name.starts_with('p') || column.name == "max_ms" =>
                    {
                        let ratio = found.as_secs_f64() / exact.as_secs_f64().max(1e-9);
                        assert!((1.0..1.07).contains(&ratio), "{report} {}: {found:?} {exact:?}", column.name);
                    }
                    (Cell::Number(found), Cell::Number(exact)) => {
                        assert!((found - exact).abs() < 1e-9, "{report} {}: {found} {exact}", column.name);
                    }
                    _ => assert_eq!(found, expected, "{report} {}", column.name),
                }
            }
        }
    }
}

/// Runs a test on each journal with the day.
fn on_each(story: impl AsyncFn(Platform)) {
    on_each_after(DEFINITION, live, story);
}

/// Runs a test on each journal with the day of an application.
fn on_each_after(definition: &str, live: impl AsyncFn(&dyn Journal), story: impl AsyncFn(Platform)) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let folder = tempfile::tempdir().expect("a folder");
    runtime.expect("a runtime").block_on(async {
        let options = JournalOptions { free_bytes_min: 0, ..JournalOptions::default() };
        let journal = MemoryJournal::new(options.clone());
        live(&journal).await;
        story(Platform::on(Arc::new(journal), definition).await).await;
        let journal = SqliteJournal::open(folder.path().join("journal.sqlite"), options).await.expect("it opens");
        live(&journal).await;
        story(Platform::on(Arc::new(journal), definition).await).await;
    });
}

fn whole_day() -> ReportRequest {
    ReportRequest { from: Some(midnight()), to: Some(at(24 * HOUR)), ..ReportRequest::default() }
}

fn average(of: impl IntoIterator<Item = i64>) -> Cell {
    let all: Vec<i64> = of.into_iter().collect();
    if all.is_empty() {
        return Cell::None;
    }
    Cell::Took(Duration::from_micros(all.iter().sum::<i64>() as u64 * 1_000 / all.len() as u64))
}

fn text(text: impl ToString) -> Cell {
    Cell::Text(text.to_string())
}

fn of(id: &str) -> ReportRequest {
    ReportRequest { id: Some(id.to_owned()), ..ReportRequest::default() }
}

#[test]
fn every_report_answers_and_rejects_unsupported_parameters() {
    on_each(async |platform| {
        for description in CATALOGUE {
            let id = match description.name {
                "quantum-details" => Some("1"),
                "event-batch-details" => Some("eb-1"),
                "notification-batch-details" => Some("nb-1"),
                "subscription" => None,
                _ => Some(""),
            };
            let Some(id) = id else { continue };
            let asked = if id.is_empty() { ReportRequest::default() } else { of(id) };
            let found = platform.report(description.name, &asked).await;
            assert_eq!(found.tables.len(), description.tables.len(), "{}", description.name);
            for (table, (name, columns)) in found.tables.iter().zip(description.tables) {
                assert_eq!((table.name, table.columns), (*name, *columns), "{}", description.name);
            }
        }
        let check = async |name: &str, asked: ReportRequest, expected: &str| {
            let error = platform.service.report(&platform.caller, name, &asked).await.expect_err(expected);
            let text = format!("{error:?}");
            assert!(text.contains(expected), "{name}: {text}");
        };
        check("quantum", ReportRequest::default(), "the report `quantum`").await;
        check("quantum-details", ReportRequest::default(), "is missing").await;
        check("quantum-details", of("seven"), "is not the number of a quantum").await;
        check("quantum-details", of("77"), "the quantum 77").await;
        check(
            "quantum-list",
            ReportRequest { channel: Some(name("mail")), ..ReportRequest::default() },
            "it knows from, to, status",
        )
        .await;
        check(
            "quantum-list",
            ReportRequest { status: Some("odd".to_owned()), ..ReportRequest::default() },
            "neither `failed` nor",
        )
        .await;
        check(
            "channel",
            ReportRequest { interval: Some(Duration::from_secs(90)), ..ReportRequest::default() },
            "whole minutes",
        )
        .await;
        check(
            "channel",
            ReportRequest { from: Some(at(HOUR)), to: Some(at(0)), ..ReportRequest::default() },
            "not before `to`",
        )
        .await;
        check("channel", ReportRequest { from: Some(Timestamp(0)), ..ReportRequest::default() }, "1500 are allowed")
            .await;
        check(
            "snapshot-events",
            ReportRequest { application: Some(name("other")), ..ReportRequest::default() },
            "the application `other`",
        )
        .await;
    });
}
