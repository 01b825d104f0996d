//! A day of batches whose every moment is written down, and each report of it beside a calculation of its own. Both
//! journals tell the same.

mod schedules; // the same of a day of schedules

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use tocsin_delivery::{Clock, Context, Signet, networks::Networks};
use tocsin_model::{
    conduct::Priority,
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
    reports::{CATALOGUE, Cell, Question, Report},
};
use tocsin_store::{
    journal::{
        Journal, JournalOptions, NewEventBatch, NewNotificationBatch, NewQuantum, ReceiptChunk, Retry, Step, TakenUp,
    },
    memory::{inbox::MemoryInbox, journal::MemoryJournal, records::MemoryRecords},
    records::{Expect, NewSubscriber, NewSubscription, Records},
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

/// An event batch, from its first byte to the last answer. Times are in milliseconds after midnight, each after the one
/// before it.
struct Entry {
    at: i64,
    class: &'static str,
    source: &'static str,
    events: u32,
    collection: i64,
    pickup: i64,
    matching: i64,
    told: &'static [Told],
}

/// A notification batch of it.
struct Told {
    channel: &'static str,
    count: u32,
    wait: i64,
    /// How long the far side took for each in its turn, and what it said.
    answers: &'static [(u32, i64, Outcome)],
    /// What was deferred is delivered so much later, in as long an answer as it took.
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
        told: &[
            Told { channel: "mail", count: 3, wait: 30, answers: &[(3, 12, Outcome::Delivered)], later: 0 },
            Told {
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
        told: &[],
    },
    Entry {
        at: 8 * HOUR + MINUTE - 10,
        class: "quote",
        source: "feed",
        events: 7,
        collection: 2,
        pickup: 30,
        matching: 50,
        told: &[Told {
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
        told: &[Told { channel: "hook", count: 100, wait: 10, answers: &[(100, 5, Outcome::Delivered)], later: 0 }],
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

impl Told {
    fn sent(&self, entry: &Entry) -> i64 {
        entry.matched() + self.wait
    }

    /// Every attempt: its ordinal, number, hand-over, answer and outcome.
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

/// All notification batches of the day, in the order of their numbers.
fn batches() -> Vec<(NotificationBatchId, &'static Entry, &'static Told)> {
    let told = DAY.iter().flat_map(|entry| entry.told.iter().map(move |told| (entry, told)));
    (1..).zip(told).map(|(id, (entry, told))| (NotificationBatchId(id), entry, told)).collect()
}

/// Lives the day in a journal.
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
            sees: Default::default(),
            events: packer.finish(),
            idempotency: None,
            marks: Vec::new(),
        };
        journal.accept(new).await.expect("accepted");
        let now = at(entry.picked_up());
        let claimed = journal.claim_events(9, usize::MAX, &[], lease, now).await.expect("claimed").remove(0);
        let id = claimed.claim.id;
        let new_batch = |told: &Told| {
            let notifications = Notifications {
                events: vec![EventRun { event: EventId { batch: id, ordinal: 0 }, count: told.count }],
                subscriptions: (1..=u64::from(told.count)).map(SubscriptionId).collect(),
                captured: Vec::new(),
            };
            NewNotificationBatch {
                head: NotificationHead {
                    application: name("stock"),
                    version: 1,
                    rule: name(entry.rule()),
                    class: name(entry.notification_class()),
                    event_class: class.clone(),
                    channel: name(told.channel),
                    matched_at: at(entry.matched()),
                    accepted_at: at(entry.accepted()),
                    expires_at: None,
                },
                count: told.count,
                packed: Bytes::from(notifications.pack()),
                priority: Priority::Normal,
                suspended: None,
            }
        };
        let taken_up = TakenUp {
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
        let batches = entry.told.iter().map(new_batch).collect();
        let step = Step { matched: vec![claimed.claim], batches, quantum: Some(quantum), ..Step::default() };
        let ids = journal.commit(step).await.expect("committed");
        for (batch, told) in ids.into_iter().zip(entry.told) {
            deliver(journal, batch, entry, told).await;
        }
    }
}

async fn deliver(journal: &dyn Journal, batch: NotificationBatchId, entry: &Entry, told: &Told) {
    let channel = name(told.channel);
    for number in [1, 2] {
        let of_number: Vec<_> = told.attempts(entry).into_iter().filter(|found| found.1 == number).collect();
        let Some((_, _, sent, _, _)) = of_number.first() else { return };
        let work =
            journal.claim_work(&name("stock"), &channel, Priority::Low, 9, Duration::from_secs(600), at(*sent)).await;
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
            due_at: at(sent + told.later),
            course: Default::default(),
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

/// Ten in the evening.
struct Evening;

impl Clock for Evening {
    fn now(&self) -> Timestamp {
        at(22 * HOUR)
    }
}

/// A platform on a journal that has lived the day.
struct Platform {
    records: Arc<dyn Records>,
    service: Arc<Service>,
    caller: Caller,
}

impl Platform {
    /// On a journal that has lived a day of this application.
    async fn on(journal: Arc<dyn Journal>, definition: &str) -> Platform {
        let records: Arc<dyn Records> = Arc::new(MemoryRecords::new().expect("records"));
        records.put_application(&name("stock"), definition, "ann", at(0)).await.expect("stored");
        assert!(compile_text(definition, 1, &|_| None).is_ok());
        let key = keys::first_key::<ServiceError>(&*records, Timestamp(0), |_| Ok(())).await;
        let key = key.expect("a key").expect("the first");
        let inbox = Arc::new(MemoryInbox::default());
        let ends = tocsin_testkit::FarEnds::new(tocsin_testkit::SimulatedClock::midnight());
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
                signet: Arc::new(Signet::new(records.secret())),
                feeds: None,
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

    async fn report(&self, name: &str, asked: &Question) -> Report {
        self.service.report(&self.caller, name, asked).await.unwrap_or_else(|error| panic!("{name}: {error:?}"))
    }

    /// The rows of the only table, or of one by its place, must be these, cell by cell.
    async fn check(&self, report: &str, asked: &Question, table: usize, expected: Vec<Vec<Cell>>) {
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

/// Tells a story on each journal that has lived the day.
fn on_each(story: impl AsyncFn(Platform)) {
    on_each_after(DEFINITION, live, story);
}

/// Tells a story on each journal that has lived a day of an application.
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

fn whole_day() -> Question {
    Question { from: Some(midnight()), to: Some(at(24 * HOUR)), ..Question::default() }
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

#[test]
fn quanta_are_listed_with_what_they_made() {
    on_each(async |platform| {
        let row = |(number, entry): (u64, &Entry)| {
            let made: u32 = entry.told.iter().map(|told| told.count).sum();
            vec![
                Cell::Count(number),
                Cell::At(at(entry.accepted())),
                Cell::At(at(entry.accepted())),
                text("succeeded"),
                Cell::At(at(entry.picked_up())),
                Cell::At(at(entry.matched())),
                took(entry.matching),
                Cell::Count(1),
                Cell::Count(entry.events.into()),
                Cell::Count(0),
                Cell::Count(entry.told.len() as u64),
                Cell::Count(made.into()),
                Cell::Count(0),
                Cell::Count(0),
                Cell::Count(0),
            ]
        };
        let mut expected: Vec<_> = (1..).zip(DAY).map(row).collect();
        platform.check("quantum-details", &of("1"), 0, vec![expected[0].clone()]).await;
        platform.check("quantum-details", &of("1"), 1, vec![event_batch(1, &DAY[0])]).await;
        let told = batches().into_iter().take(2).map(|(id, entry, told)| notification_batch(id, entry, told)).collect();
        platform.check("quantum-details", &of("1"), 3, told).await;
        expected.reverse();
        platform.check("quantum-list", &whole_day(), 0, expected.clone()).await;
        let morning = Question { to: Some(at(9 * HOUR)), limit: Some(1), ..whole_day() };
        platform.check("quantum-list", &morning, 0, vec![expected[1].clone()]).await;
        let next = platform.report("quantum-list", &morning).await.next;
        let rest = Question { before: next, limit: None, ..morning };
        platform.check("quantum-list", &rest, 0, expected[2..].to_vec()).await;
        let failed = Question { status: Some("failed".to_owned()), ..whole_day() };
        platform.check("quantum-list", &failed, 0, vec![]).await;
    });
}

fn of(id: &str) -> Question {
    Question { id: Some(id.to_owned()), ..Question::default() }
}

fn event_batch(number: u64, entry: &Entry) -> Vec<Cell> {
    vec![
        text(format!("eb-{number}")),
        text("stock"),
        text(entry.class),
        text(entry.source),
        Cell::Count(1),
        text("matched"),
        Cell::Count(entry.events.into()),
        Cell::At(at(entry.at)),
        Cell::At(at(entry.accepted())),
        took(entry.collection),
        Cell::At(at(if entry.told.is_empty() { entry.picked_up() } else { entry.matched() })),
        took(if entry.told.is_empty() { entry.pickup } else { entry.pickup + entry.matching }),
        Cell::None,
    ]
}

fn notification_batch(id: NotificationBatchId, entry: &Entry, told: &Told) -> Vec<Cell> {
    let (sent, answered) = (told.sent(entry), told.last_answered(entry));
    vec![
        text(id),
        text("stock"),
        text(entry.notification_class()),
        text(entry.rule()),
        text(entry.class),
        text(told.channel),
        Cell::Count(told.count.into()),
        text("closed"),
        Cell::At(at(entry.accepted())),
        Cell::At(at(entry.matched())),
        took(entry.pickup + entry.matching),
        Cell::None,
        Cell::At(at(sent)),
        took(told.wait),
        Cell::At(at(answered)),
        took(answered - sent),
        Cell::At(at(answered)),
        Cell::Count(told.attempts(entry).len() as u64),
        Cell::Count(told.count_of(entry, Outcome::Delivered)),
        Cell::Count(told.count_of(entry, Outcome::Refused)),
        Cell::Count(0),
    ]
}

#[test]
fn batches_are_listed_and_told_in_detail() {
    on_each(async |platform| {
        let all: Vec<_> = (1..).zip(DAY).map(|(number, entry)| event_batch(number, entry)).collect();
        let newest: Vec<_> = all.iter().rev().cloned().collect();
        platform.check("event-batch-list", &Question::default(), 0, newest.clone()).await;
        let hand = Question { source: Some(name("hand")), class: Some(name("trade")), ..whole_day() };
        platform.check("event-batch-list", &hand, 0, vec![all[1].clone()]).await;
        let morning = Question { to: Some(at(9 * HOUR)), ..whole_day() };
        platform.check("event-batch-list", &morning, 0, newest[1..].to_vec()).await;

        let told: Vec<_> = batches().into_iter().map(|(id, entry, told)| notification_batch(id, entry, told)).collect();
        let newest: Vec<_> = told.iter().rev().cloned().collect();
        platform.check("notification-batch-list", &whole_day(), 0, newest).await;
        let mail = Question { channel: Some(name("mail")), rule: Some(name("near")), ..whole_day() };
        platform.check("notification-batch-list", &mail, 0, vec![told[0].clone()]).await;
        let open = Question { status: Some("open".to_owned()), ..whole_day() };
        platform.check("notification-batch-list", &open, 0, vec![]).await;

        platform.check("event-batch-details", &of("eb-1"), 0, vec![all[0].clone()]).await;
        platform.check("event-batch-details", &of("eb-1"), 1, told[..2].to_vec()).await;
        let event = |at: u32| {
            vec![text(format!("e-1-{at}")), Cell::Fields(vec![("price".to_owned(), Value::Number(at.into()))])]
        };
        platform.check("event-batch-details", &of("eb-1"), 2, (0..10).map(event).collect()).await;

        let first = Question { limit: Some(4), ..of("eb-1") };
        platform.check("event-batch-details", &first, 2, (0..4).map(event).collect()).await;
        let next = platform.report("event-batch-details", &first).await.next;
        let rest = Question { before: next, ..of("eb-1") };
        platform.check("event-batch-details", &rest, 2, (4..10).map(event).collect()).await;

        let (id, entry, of_hook) = batches()[1];
        let attempts = of_hook.attempts(entry);
        platform.check("notification-batch-details", &of("nb-2"), 0, vec![told[1].clone()]).await;
        let last_sent = attempts.iter().map(|found| found.2).max().expect("some");
        let channel = vec![
            text("hook"),
            Cell::At(at(last_sent)),
            Cell::Count(0),
            Cell::Count(2),
            Cell::Count(2),
            Cell::Count(0),
            Cell::Count(0),
        ];
        platform.check("notification-batch-details", &of("nb-2"), 1, vec![channel]).await;
        let each = attempts.iter().map(|(ordinal, _, sent, answered, outcome)| {
            vec![
                text(format!("n-{}-{ordinal}", id.0)),
                text(SubscriptionId(u64::from(*ordinal) + 1)),
                text("e-1-0"),
                text(outcome.word()),
                Cell::Count(1),
                Cell::At(at(*sent)),
                Cell::At(at(*answered)),
                took(answered - sent),
                text(format!("{} {ordinal}", outcome.word())),
            ]
        });
        platform.check("notification-batch-details", &of("nb-2"), 2, each.collect()).await;

        let failed = attempts.iter().filter(|found| found.4 == Outcome::Refused).map(|(ordinal, _, _, answered, _)| {
            vec![
                text(format!("n-{}-{ordinal}", id.0)),
                text("stock"),
                text("alert"),
                text("near"),
                text("hook"),
                text(SubscriptionId(u64::from(*ordinal) + 1)),
                text("refused"),
                Cell::Count(1),
                Cell::At(at(*answered)),
                text(format!("refused {ordinal}")),
            ]
        });
        platform.check("failed-notifications", &whole_day(), 0, failed.collect()).await;
    });
}

/// The beginning of the hour of a time.
fn hour(millis: i64) -> i64 {
    millis / HOUR * HOUR
}

fn hourly() -> Question {
    Question { interval: Some(Duration::from_secs(3_600)), ..whole_day() }
}

/// What was timed in an hour, if something of the names happened in it at all.
type Hours<'a> = BTreeMap<(&'a str, i64), Vec<(&'static str, i64)>>;

#[test]
fn diagnostics_add_up_hour_by_hour() {
    on_each(async |platform| {
        let mut classes: Hours = BTreeMap::new();
        let mut note = |class: &'static str, at: i64, what, value| {
            classes.entry((class, hour(at))).or_default().push((what, value))
        };
        for entry in DAY {
            note(entry.class, entry.accepted(), "events", entry.events.into());
            note(entry.class, entry.accepted(), "collection", entry.collection);
            note(entry.class, entry.matched(), "pickup", entry.pickup);
            for told in entry.told {
                note(entry.class, entry.matched(), "generation", entry.pickup + entry.matching);
                note(entry.class, told.sent(entry), "wait", told.wait);
                let answered = told.last_answered(entry);
                note(entry.class, answered, "delivery", answered - told.sent(entry));
            }
        }
        let of = |values: &[(&str, i64)], wanted: &str| -> Vec<i64> {
            values.iter().filter(|(what, _)| *what == wanted).map(|(_, value)| *value).collect()
        };
        let expected = classes.iter().map(|((class, from), values)| {
            let (batches, events) =
                (of(values, "events").len() as f64, of(values, "events").iter().sum::<i64>() as f64);
            let mut row = vec![
                Cell::At(at(*from)),
                Cell::At(at(from + HOUR)),
                text("stock"),
                text(class),
                Cell::Count(batches as u64),
                Cell::Count(events as u64),
                Cell::Count(0),
                if batches > 0.0 { Cell::Number(events / batches) } else { Cell::None },
                Cell::Number(events / 3_600.0),
            ];
            row.extend(
                ["collection", "pickup", "generation", "wait", "delivery"].map(|what| average(of(values, what))),
            );
            row
        });
        platform.check("event-class", &hourly(), 0, expected.collect()).await;

        let hours = |channel: &'static str| -> BTreeMap<i64, ()> {
            let told = batches().into_iter().filter(move |(_, _, told)| told.channel == channel);
            told.flat_map(|(_, entry, told)| [entry.matched(), told.last_answered(entry)])
                .map(|at| (hour(at), ()))
                .collect()
        };
        let mut expected = Vec::new();
        for channel in ["hook", "mail"] {
            for from in hours(channel).into_keys() {
                let within = |at: i64| hour(at) == from;
                let told: Vec<_> = batches().into_iter().filter(|(_, _, told)| told.channel == channel).collect();
                let attempts: Vec<_> = told
                    .iter()
                    .flat_map(|(_, entry, told)| told.attempts(entry))
                    .filter(|found| within(found.3))
                    .collect();
                let count = |outcome: Outcome| attempts.iter().filter(|found| found.4 == outcome).count() as u64;
                let mut answers: Vec<i64> = attempts.iter().map(|found| found.3 - found.2).collect();
                answers.sort_unstable();
                let p95 = answers[(answers.len() as f64 * 0.95).ceil() as usize - 1];
                let delivered = count(Outcome::Delivered);
                let waits =
                    told.iter().filter(|(_, entry, told)| within(told.sent(entry))).map(|(_, _, told)| told.wait);
                let closed = told.iter().filter(|(_, entry, told)| within(told.last_answered(entry))).count();
                expected.push(vec![
                    Cell::At(at(from)),
                    Cell::At(at(from + HOUR)),
                    text("stock"),
                    text(channel),
                    Cell::Count(closed as u64),
                    Cell::Count(attempts.len() as u64),
                    Cell::Count(delivered),
                    Cell::Count(attempts.len() as u64 - delivered),
                    Cell::Count(count(Outcome::Deferred)),
                    Cell::Count(count(Outcome::Refused)),
                    Cell::Count(0),
                    Cell::Count(0),
                    Cell::Number(delivered as f64 * 100.0 / attempts.len() as f64),
                    Cell::Number(delivered as f64 / 3_600.0),
                    average(waits),
                    average(answers.clone()),
                    took(p95),
                ]);
            }
        }
        platform.check("channel", &hourly(), 0, expected).await;

        let class_rows = ["alert", "note"].into_iter().flat_map(|class| {
            let of_class: Vec<_> =
                batches().into_iter().filter(|(_, entry, _)| entry.notification_class() == class).collect();
            let hours: BTreeMap<i64, ()> = of_class.iter().map(|(_, entry, _)| (hour(entry.matched()), ())).collect();
            hours.into_keys().map(move |from| {
                let told: Vec<_> = of_class.iter().filter(|(_, entry, _)| hour(entry.matched()) == from).collect();
                let made: u32 = told.iter().map(|(_, _, told)| told.count).sum();
                let count = |outcome| told.iter().map(|(_, entry, told)| told.count_of(entry, outcome)).sum::<u64>();
                let (delivered, refused) = (count(Outcome::Delivered), count(Outcome::Refused));
                vec![
                    Cell::At(at(from)),
                    Cell::At(at(from + HOUR)),
                    text("stock"),
                    text(class),
                    Cell::Count(told.len() as u64),
                    Cell::Count(made.into()),
                    Cell::Number(f64::from(made) / told.len() as f64),
                    Cell::Count(told.len() as u64),
                    Cell::Count(delivered),
                    Cell::Count(refused),
                    Cell::Count(0),
                    Cell::Count(0),
                    Cell::Number(delivered as f64 * 100.0 / (delivered + refused) as f64),
                    average(told.iter().map(|(_, entry, _)| entry.pickup + entry.matching)),
                    average(told.iter().map(|(_, _, told)| told.wait)),
                    average(told.iter().map(|(_, entry, told)| told.last_answered(entry) - told.sent(entry))),
                ]
            })
        });
        platform.check("notification-class", &hourly(), 0, class_rows.collect()).await;

        let rule_rows = ["far", "near"].into_iter().flat_map(|rule| {
            let of_rule: Vec<_> = batches().into_iter().filter(|(_, entry, _)| entry.rule() == rule).collect();
            let hours: BTreeMap<i64, ()> = of_rule.iter().map(|(_, entry, _)| (hour(entry.matched()), ())).collect();
            hours.into_keys().map(move |from| {
                let told: Vec<_> = of_rule.iter().filter(|(_, entry, _)| hour(entry.matched()) == from).collect();
                let count = |outcome| told.iter().map(|(_, entry, told)| told.count_of(entry, outcome)).sum::<u64>();
                let took_longest = told.iter().map(|(_, entry, _)| entry.pickup + entry.matching).max().expect("some");
                vec![
                    Cell::At(at(from)),
                    Cell::At(at(from + HOUR)),
                    text("stock"),
                    text("wish"),
                    text(rule),
                    Cell::Count(told.len() as u64),
                    Cell::Count(0),
                    Cell::Count(0),
                    Cell::Count(told.iter().map(|(_, _, told)| u64::from(told.count)).sum()),
                    average(told.iter().map(|(_, entry, _)| entry.pickup + entry.matching)),
                    took(took_longest),
                    Cell::Count(count(Outcome::Delivered)),
                    Cell::Count(count(Outcome::Refused)),
                ]
            })
        });
        platform.check("subscription-class", &hourly(), 0, rule_rows.collect()).await;
    });
}

#[test]
fn sources_add_up_hour_by_hour() {
    on_each(async |platform| {
        let mut hours: BTreeMap<(&str, &str, i64), Vec<&Entry>> = BTreeMap::new();
        for entry in DAY {
            hours.entry((entry.source, entry.class, hour(entry.accepted()))).or_default().push(entry);
            // What is told of one hour alone is easier to calculate.
            assert_eq!(hour(entry.accepted()), hour(entry.matched()));
        }
        let found = platform.report("source", &hourly()).await;
        let row = |((source, class, from), entries): (&(&str, &str, i64), &Vec<&Entry>)| {
            let events: u32 = entries.iter().map(|entry| entry.events).sum();
            vec![
                Cell::At(at(*from)),
                Cell::At(at(from + HOUR)),
                text("stock"),
                text(source),
                text(class),
                Cell::Count(entries.len() as u64),
                Cell::Count(events.into()),
                Cell::None,
                Cell::Number(f64::from(events) / entries.len() as f64),
                Cell::Number(f64::from(events) / 3_600.0),
                average(entries.iter().map(|entry| entry.collection)),
                Cell::Count(0),
                Cell::At(at(entries.iter().map(|entry| entry.matched()).max().expect("some"))),
            ]
        };
        let mut expected: Vec<_> = hours.iter().map(row).collect();
        for (expected, found) in expected.iter_mut().zip(&found.tables[0].rows) {
            // How long an event is when it is packed is the packer's affair.
            assert!(matches!(found[7], Cell::Count(1..)), "{found:?}");
            expected[7] = found[7].clone();
        }
        platform.check("source", &hourly(), 0, expected.clone()).await;
        let hand = Question { source: Some(name("hand")), ..hourly() };
        expected.retain(|row| row[3] == text("hand"));
        platform.check("source", &hand, 0, expected).await;
    });
}

#[test]
fn a_subscription_is_told_with_what_it_was_told() {
    on_each(async |platform| {
        let id = "ann".parse().expect("an id");
        let new = NewSubscriber { id, profile: Default::default(), devices: None, preferences: None };
        platform.records.put_subscriber(new, Expect::Any, at(0)).await.expect("stored");
        let new = NewSubscription {
            application: name("stock"),
            class: name("wish"),
            subscriber: "ann".parse().expect("an id"),
            key: None,
            device: None,
            enabled: true,
            values: "{}".into(),
            terms: Default::default(),
        };
        let id = platform.records.put_subscription(new, at(0)).await.expect("stored").id;
        assert_eq!(id, SubscriptionId(1), "every batch of the day tells the first subscription");
        let itself = vec![
            text("s-1"),
            text("stock"),
            text("wish"),
            text("ann"),
            Cell::Flag(true),
            Cell::At(at(0)),
            Cell::At(at(0)),
            Cell::None,
            Cell::None,
            Cell::Count(batches().len() as u64),
        ];
        platform.check("subscription", &of("s-1"), 0, vec![itself]).await;
        let told = batches().into_iter().rev().map(|(batch, entry, told)| {
            let attempts = told.attempts(entry);
            let last = attempts.iter().rfind(|found| found.0 == 0).expect("each is tried");
            vec![
                text(format!("n-{}-0", batch.0)),
                text(entry.rule()),
                text(entry.notification_class()),
                text(told.channel),
                text(format!("e-{}-0", DAY.iter().position(|found| found.at == entry.at).expect("there") + 1)),
                Cell::At(at(entry.matched())),
                text(last.4.word()),
                Cell::At(at(last.3)),
            ]
        });
        platform.check("subscription", &of("s-1"), 1, told.collect()).await;
        platform.check("subscription", &of("s-1"), 2, vec![]).await;
    });
}

#[test]
fn the_history_of_a_day_is_one_row() {
    on_each(async |platform| {
        let events: u32 = DAY.iter().map(|entry| entry.events).sum();
        let made: u32 = batches().iter().map(|(_, _, told)| told.count).sum();
        let attempts: Vec<_> = batches()
            .into_iter()
            .flat_map(|(_, entry, told)| {
                told.attempts(entry).into_iter().map(move |attempt| (entry.accepted(), attempt))
            })
            .collect();
        let delivered: Vec<i64> = attempts
            .iter()
            .filter(|(_, found)| found.4 == Outcome::Delivered)
            .map(|(accepted, found)| found.3 - accepted)
            .collect();
        let refused = attempts.iter().filter(|(_, found)| found.4 == Outcome::Refused).count() as u64;
        let row = vec![
            Cell::At(midnight()),
            Cell::At(at(24 * HOUR)),
            Cell::Count(DAY.len() as u64),
            Cell::Count(events.into()),
            Cell::Number(f64::from(events) / 86_400.0),
            Cell::Count(batches().len() as u64),
            Cell::Count(made.into()),
            Cell::Number(f64::from(made) / f64::from(events)),
            Cell::Count(attempts.len() as u64),
            Cell::Count(delivered.len() as u64),
            Cell::Count(refused),
            Cell::Count(0),
            Cell::Count(0),
            average(delivered.clone()),
        ];
        platform.check("administration-history", &whole_day(), 0, vec![row]).await;

        let exact = |name: &str, mut values: Vec<i64>| {
            values.sort_unstable();
            let at = |fraction: f64| took(values[(values.len() as f64 * fraction).ceil() as usize - 1]);
            let mut row = vec![text("stock"), text(name), Cell::Count(values.len() as u64), average(values.clone())];
            row.extend([0.5, 0.9, 0.95, 0.99, 1.0].map(at));
            row
        };
        let timed = vec![
            exact("collection", DAY.iter().map(|entry| entry.collection).collect()),
            exact("pickup", DAY.iter().map(|entry| entry.pickup).collect()),
            exact("generation", batches().iter().map(|(_, entry, _)| entry.pickup + entry.matching).collect()),
            exact("wait", batches().iter().map(|(_, _, told)| told.wait).collect()),
            exact(
                "delivery",
                batches().iter().map(|(_, entry, told)| told.last_answered(entry) - told.sent(entry)).collect(),
            ),
            exact("answer", attempts.iter().map(|(_, found)| found.3 - found.2).collect()),
            exact("end_to_end", delivered),
        ];
        platform.check("timings", &whole_day(), 0, timed).await;
    });
}

#[test]
fn snapshots_tell_the_state_and_what_happened_last() {
    on_each(async |platform| {
        let ago = |last: i64| Cell::Number((22 * HOUR - last) as f64 / 1_000.0);
        let last = |of: &dyn Fn(&&Entry) -> bool| DAY.iter().filter(of).map(Entry::matched).max().expect("some");
        let source = |source: &str, batches: u64, events: u64| {
            let last = last(&|entry| entry.source == source);
            vec![
                text("stock"),
                text(source),
                text("enabled"),
                Cell::Flag(true),
                Cell::At(at(last)),
                ago(last),
                Cell::Count(batches),
                Cell::Count(events),
            ]
        };
        platform
            .check("snapshot-sources", &Question::default(), 0, vec![source("feed", 1, 250), source("hand", 1, 1)])
            .await;
        let class = |class: &str, kept: i64, events: u64| {
            let last = last(&|entry| entry.class == class);
            vec![
                text("stock"),
                text(class),
                text("enabled"),
                Cell::Count(1),
                took(kept * 24 * HOUR),
                Cell::At(at(last)),
                ago(last),
                Cell::Count(events),
            ]
        };
        platform
            .check("snapshot-events", &Question::default(), 0, vec![class("quote", 7, 0), class("trade", 7, 250)])
            .await;
        let wish = vec![
            text("stock"),
            text("wish"),
            text("enabled"),
            Cell::Count(2),
            Cell::Count(0),
            Cell::Count(0),
            Cell::None,
            Cell::None,
        ];
        platform.check("snapshot-subscriptions", &Question::default(), 0, vec![wish]).await;
        let of_channel = |channel: &str| {
            let told = batches().into_iter().filter(|(_, _, told)| told.channel == channel);
            told.flat_map(|(_, entry, told)| told.attempts(entry)).collect::<Vec<_>>()
        };
        let answered = |channel: &str| of_channel(channel).iter().map(|found| found.3).max().expect("some");
        let matched = DAY.iter().map(Entry::matched).max().expect("some");
        let counts = |counts: [u64; 9]| counts.map(Cell::Count).to_vec();
        let stock = [
            vec![text("stock"), text("enabled")],
            counts([1, 2, 2, 0, 2, 0, 0, 0, 0]),
            vec![Cell::At(at(matched)), Cell::At(at(answered("mail").max(answered("hook"))))],
        ];
        platform.check("snapshot-applications", &Question::default(), 0, vec![stock.concat()]).await;
        let channel = |channel: &str| {
            let last = answered(channel);
            let in_last_minute = |of: &dyn Fn(Outcome) -> bool| {
                let found = of_channel(channel).into_iter().filter(|found| found.3 / MINUTE == last / MINUTE);
                Cell::Count(found.filter(|found| of(found.4)).count() as u64)
            };
            vec![
                text("stock"),
                text(channel),
                text("file"),
                text("enabled"),
                Cell::Count(0),
                Cell::Count(0),
                Cell::Count(0),
                Cell::At(at(last)),
                ago(last),
                in_last_minute(&|outcome| outcome == Outcome::Delivered),
                in_last_minute(&|outcome| matches!(outcome, Outcome::Deferred | Outcome::Refused)),
            ]
        };
        platform.check("snapshot-channels", &Question::default(), 0, vec![channel("hook"), channel("mail")]).await;
    });
}

#[test]
fn every_report_answers_and_says_what_it_does_not_know() {
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
            let asked = if id.is_empty() { Question::default() } else { of(id) };
            let found = platform.report(description.name, &asked).await;
            assert_eq!(found.tables.len(), description.tables.len(), "{}", description.name);
            for (table, (name, columns)) in found.tables.iter().zip(description.tables) {
                assert_eq!((table.name, table.columns), (*name, *columns), "{}", description.name);
            }
        }
        let check = async |name: &str, asked: Question, expected: &str| {
            let error = platform.service.report(&platform.caller, name, &asked).await.expect_err(expected);
            let text = format!("{error:?}");
            assert!(text.contains(expected), "{name}: {text}");
        };
        check("quantum", Question::default(), "the report `quantum`").await;
        check("quantum-details", Question::default(), "is missing").await;
        check("quantum-details", of("seven"), "is not the number of a quantum").await;
        check("quantum-details", of("77"), "the quantum 77").await;
        check(
            "quantum-list",
            Question { channel: Some(name("mail")), ..Question::default() },
            "it knows from, to, status",
        )
        .await;
        check(
            "quantum-list",
            Question { status: Some("odd".to_owned()), ..Question::default() },
            "neither `failed` nor",
        )
        .await;
        check("channel", Question { interval: Some(Duration::from_secs(90)), ..Question::default() }, "whole minutes")
            .await;
        check("channel", Question { from: Some(at(HOUR)), to: Some(at(0)), ..Question::default() }, "not before `to`")
            .await;
        check("channel", Question { from: Some(Timestamp(0)), ..Question::default() }, "1500 are allowed").await;
        check(
            "snapshot-events",
            Question { application: Some(name("other")), ..Question::default() },
            "the application `other`",
        )
        .await;
    });
}
