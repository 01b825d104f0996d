//! A day of schedules: due times, delays, results and next runs.

use tocsin_model::{
    application::{due_class, due_fields},
    id::{ChangeSequence, EventBatchId},
    schedule::Schedule,
};
use tocsin_store::journal::{ClaimEvents, RuleStop, ScheduleRun};

use super::*;

const SCHEDULED: &str = "
application: stock
events: { trade: { fields: { price: number } } }
subscriptions: { wish: {} }
notifications: { alert: { content: { templates: { base: { text: x } } } } }
rules:
  morning: { on: trade, subscription: wish, notify: alert, missed: all, schedule: \"DTSTART;TZID=Europe/Vienna:20260227T090000\\nRRULE:FREQ=DAILY\" }
  often: { on: trade, subscription: wish, notify: alert, missed: skip, schedule: \"DTSTART;TZID=UTC:20260227T001500\\nRRULE:FREQ=HOURLY;INTERVAL=6\" }
channels: { mail: { protocol: file, options: { path: mail.ndjson } } }
";
const MORNING: &str = "DTSTART;TZID=Europe/Vienna:20260227T090000\nRRULE:FREQ=DAILY";
const OFTEN: &str = "DTSTART;TZID=UTC:20260227T001500\nRRULE:FREQ=HOURLY;INTERVAL=6";

/// A run. Times are in milliseconds after midnight.
struct Run {
    rule: &'static str,
    due: i64,
    late: i64,
    matching: i64,
    /// Runs before it that were missed.
    skipped: u64,
    /// Sizes of its notification batches.
    sent_batches: &'static [u32],
}

/// 09:00 in Vienna is 08:00 UTC in winter.
const RUNS: &[Run] = &[
    Run { rule: "often", due: HOUR / 4, late: 40, matching: 7, skipped: 2, sent_batches: &[3] },
    Run { rule: "often", due: 6 * HOUR + HOUR / 4, late: 15, matching: 2, skipped: 0, sent_batches: &[] },
    Run { rule: "morning", due: 8 * HOUR, late: 120, matching: 90, skipped: 0, sent_batches: &[4, 1] },
    Run { rule: "often", due: 12 * HOUR + HOUR / 4, late: 1, matching: 5, skipped: 0, sent_batches: &[1] },
    Run { rule: "often", due: 18 * HOUR + HOUR / 4, late: 61_000, matching: 9, skipped: 0, sent_batches: &[] },
];

impl Run {
    fn schedule(&self) -> Box<str> {
        let text = if self.rule == "morning" { MORNING } else { OFTEN };
        Schedule::parse(text).expect("a schedule").to_string().into()
    }

    fn accepted(&self) -> i64 {
        self.due + self.late
    }

    /// Its row in the report, as the run of this event batch.
    fn row(&self, number: usize) -> Vec<Cell> {
        vec![
            text(format!("eb-{number}")),
            text("stock"),
            text(self.rule),
            text(self.schedule()),
            Cell::At(at(self.due)),
            Cell::At(at(self.accepted())),
            took(self.late),
            text("matched"),
            Cell::Count(self.skipped),
            Cell::Count(self.sent_batches.len() as u64),
            Cell::Count(self.sent_batches.iter().map(|count| u64::from(*count)).sum()),
        ]
    }
}

/// Last due time of a rule before the day.
fn before(rule: &str) -> i64 {
    if rule == "morning" { -16 * HOUR } else { -6 * HOUR + HOUR / 4 }
}

/// Writes the day into a journal.
async fn live(journal: &dyn Journal) {
    let mut state: BTreeMap<&str, (i64, u64)> = BTreeMap::new();
    for run in RUNS {
        let (last, skipped) = state.get(run.rule).copied().unwrap_or((before(run.rule), 0));
        state.insert(run.rule, (run.due, skipped + run.skipped));
        let now = at(run.accepted());
        let mut row = vec![Value::Null; due_fields().len()];
        row[0] = Value::from(run.rule);
        row[1] = Value::from(&*run.schedule());
        row[2] = Value::Timestamp(at(run.due));
        row[3] = Value::Timestamp(at(last));
        row[4] = Value::Integer(run.skipped as i64);
        let mut packer = EventPacker::new(due_fields());
        packer.push(&row);
        let due = NewEventBatch {
            application: name("stock"),
            version: 1,
            class: due_class(),
            source: name("schedule"),
            received_at: now,
            accepted_at: now,
            snapshot_sequence: ChangeSequence(0),
            events: packer.finish(),
            idempotency: None,
            marks: Vec::new(),
        };
        let come_to = ScheduleRun {
            application: name("stock"),
            rule: name(run.rule),
            schedule: run.schedule(),
            due_at: at(run.due),
            after: EventBatchId(0),
            seen: ChangeSequence(0),
            skipped: skipped + run.skipped,
            // The two that were missed were those of noon and of the evening before.
            skipped_at: (skipped + run.skipped > 0).then(|| at(before(run.rule))),
        };
        journal.record_runs(Some(due), vec![come_to]).await.expect("stored");
        match_run(journal, run).await;
    }
    let stop = RuleStop {
        application: name("stock"),
        rule: name("morning"),
        by: "ann".to_owned(),
        reason: "enough".to_owned(),
        since: at(21 * HOUR),
    };
    journal.commit(Step { stops: vec![stop], ..Step::default() }).await.expect("stored");
}

async fn match_run(journal: &dyn Journal, run: &Run) {
    let (lease, now) = (Duration::from_secs(60), at(run.accepted()));
    let claimed = journal
        .claim_events(ClaimEvents { batches: 9, bytes: usize::MAX, except: &Except::default(), lease, now })
        .await
        .expect("claimed")
        .remove(0);
    let event = EventId { batch: claimed.claim.id, ordinal: 0 };
    let sent_batch = |count: &u32| {
        let notifications = Notifications {
            events: vec![EventRun { event, count: *count }],
            subscriptions: (1..=u64::from(*count)).map(SubscriptionId).collect(),
            captured: Vec::new(),
        };
        NewNotificationBatch {
            head: NotificationHead {
                application: name("stock"),
                version: 1,
                rule: name(run.rule),
                class: name("alert"),
                event_class: name("trade"),
                channel: name("mail"),
                matched_at: at(run.accepted() + run.matching),
                accepted_at: now,
                expires_at: None,
            },
            count: *count,
            packed: Bytes::from(notifications.pack()),
            priority: Priority::Normal,
            // What waits for an operator is not delivered while the reports are read.
            suspended: Some("held".to_owned()),
            run: None,
        }
    };
    let batches = run.sent_batches.iter().map(sent_batch).collect();
    let step = Step { matched: vec![claimed.claim], batches, ..Step::default() };
    journal.commit(step).await.expect("committed");
}

#[test]
fn schedules_report_their_progress_and_next_due_time() {
    on_each_after(SCHEDULED, live, async |platform| {
        let of = |rule: &'static str, next: i64, stopped: bool, missed: &str| {
            let last = RUNS.iter().rfind(|run| run.rule == rule).expect("it ran");
            let skipped: u64 = RUNS.iter().filter(|run| run.rule == rule).map(|run| run.skipped).sum();
            vec![
                text("stock"),
                text(rule),
                text(last.schedule()),
                Cell::At(at(last.due)),
                Cell::At(at(next)),
                Cell::Flag(stopped),
                Cell::Count(skipped),
                if skipped > 0 { Cell::At(at(before(rule))) } else { Cell::None },
                text(missed),
            ]
        };
        let morning = of("morning", 32 * HOUR, true, "all: each is made up for, at most 1000");
        let often = of("often", 24 * HOUR + HOUR / 4, false, "skip: one that is later than 5m is not made up for");
        platform.check("schedules", &ReportRequest::default(), 0, vec![morning.clone(), often.clone()]).await;
        let stock =
            ReportRequest { application: Some(name("stock")), rule: Some(name("often")), ..ReportRequest::default() };
        platform.check("schedules", &stock, 0, vec![often]).await;
        let none = ReportRequest { rule: Some(name("never")), ..ReportRequest::default() };
        let unknown = platform.service.report(&platform.caller, "schedules", &none).await;
        assert!(matches!(unknown, Err(ServiceError::Missing(_))), "B39: there never was such a rule");
    });
}

#[test]
fn runs_are_listed_with_their_results() {
    on_each_after(SCHEDULED, live, async |platform| {
        let mut newest: Vec<Vec<Cell>> = (1..).zip(RUNS).map(|(number, run)| run.row(number)).collect();
        newest.reverse();
        platform.check("scheduled-runs", &whole_day(), 0, newest.clone()).await;
        let morning = ReportRequest { from: Some(at(HOUR)), to: Some(at(12 * HOUR)), ..ReportRequest::default() };
        platform.check("scheduled-runs", &morning, 0, newest[2..4].to_vec()).await;
        let first = ReportRequest { limit: Some(2), ..whole_day() };
        platform.check("scheduled-runs", &first, 0, newest[..2].to_vec()).await;
        let next = platform.report("scheduled-runs", &first).await.next;
        let rest = ReportRequest { before: next, ..whole_day() };
        platform.check("scheduled-runs", &rest, 0, newest[2..].to_vec()).await;
        let stock = ReportRequest { application: Some(name("stock")), ..whole_day() };
        platform.check("scheduled-runs", &stock, 0, newest).await;
        let wrong = ReportRequest { id: Some("eb-1".to_owned()), ..whole_day() };
        let refused = platform.service.report(&platform.caller, "scheduled-runs", &wrong).await;
        assert!(matches!(refused, Err(ServiceError::Invalid(_))), "it has no parameter `id`");
    });
}

const OVER_EVENTS: &str = "
application: stock
events: { trade: { fields: { price: number } } }
subscriptions: { wish: { fields: { price: number } }, nudge: {} }
notifications:
  alert: { fields: { price: number }, content: { templates: { base: { text: x } } } }
  hello: { content: { templates: { base: { text: x } } } }
rules:
  morning: { on: trade, subscription: wish, when: event.price >= sub.price, notify: alert, schedule: \"DTSTART;TZID=UTC:20260301T080000\\nRRULE:FREQ=DAILY\" }
  evening: { subscription: nudge, notify: hello, schedule: \"DTSTART;TZID=UTC:20260301T200000\\nRRULE:FREQ=DAILY\" }
channels: { email: { protocol: smtp, options: { host: localhost, from: t@example.org } } }
";

/// The service over a scenario, whose runs the real matcher made.
async fn service_of(scenario: &tocsin_testkit::Scenario) -> (Arc<Service>, Caller) {
    let records: Arc<dyn Records> = scenario.records().clone();
    let key = keys::first_key::<ServiceError>(&*records, Timestamp(0), |_| Ok(())).await;
    let key = key.expect("a key").expect("the first");
    let parts = Parts {
        records,
        journal: scenario.journal().clone(),
        inbox: scenario.inbox().clone(),
        pipeline: scenario.pipeline().clone(),
        exchanges: None,
        free_space: None,
        saturation: None,
        version: "0.0.0-test",
    };
    let service = Service::open(parts).await.expect("a service");
    let caller = service.authenticate(&key).expect("a good key");
    (service, caller)
}

#[tokio::test(start_paused = true)]
async fn b11_runs_over_events_are_listed_with_the_results_of_the_matcher() {
    // Runs are done in parts of two notifications, each a batch of due times of its own.
    let options = tocsin_pipeline::PipelineOptions {
        run_notifications: 2,
        run_subscriptions: 1,
        upkeep_seconds: 900,
        ..Default::default()
    };
    for (options, parts) in [(Default::default(), 1), (options, 3)] {
        let mut scenario = tocsin_testkit::Scenario::with(&[OVER_EVENTS], options).await;
        let script = r#"01:00 subscriber ann email=ann@example.org
                        01:00 subscriber bob email=bob@example.org
                        01:00 subscribe ann wish {"price": 5}
                        01:00 subscribe bob wish {"price": 7}
                        01:00 subscribe bob nudge
                        06:00 event trade {"price": 6} {"price": 8}
                        07:00 event trade {"price": 9}"#;
        scenario.run_and_wait(script, Duration::from_secs(18 * 3_600)).await;
        let (service, caller) = service_of(&scenario).await;
        let found = service.report(&caller, "scheduled-runs", &ReportRequest::default()).await.expect("a report");
        let table = &found.tables[0];
        let at = |name: &str| table.columns.iter().position(|column| column.name == name).expect("a column");
        let sum_of = |rule: &str| {
            let rows: Vec<_> = table.rows.iter().filter(|row| row[at("rule")] == text(rule)).collect();
            let sum = |column: &str| {
                let counts = rows.iter().map(|row| match row[at(column)] {
                    Cell::Count(count) => count,
                    ref other => panic!("{column}: {other:?}"),
                });
                counts.sum::<u64>()
            };
            (rows.len(), sum("notification_batches"), sum("notifications"))
        };
        // Ann has three, Bob two; and one notification is of the due time itself.
        let (runs, batches, notifications) = sum_of("morning");
        assert!(runs >= parts && batches > 0, "{runs} {batches}");
        assert_eq!(notifications, 5, "{table:?}");
        assert_eq!((sum_of("evening").1, sum_of("evening").2), (1, 1), "{table:?}");

        // The details of the batch by which it was due list the same.
        let of_morning = table.rows.iter().rfind(|row| row[at("rule")] == text("morning")).expect("the first part");
        let Cell::Text(id) = &of_morning[at("event_batch")] else { panic!("{of_morning:?}") };
        let asked = ReportRequest { id: Some(id.clone()), ..ReportRequest::default() };
        let details = service.report(&caller, "event-batch-details", &asked).await.expect("a report");
        let Cell::Count(made) = of_morning[at("notification_batches")] else { panic!("{of_morning:?}") };
        assert!(
            details.tables.iter().any(|table| table.name == "notification_batches" && table.rows.len() as u64 == made),
            "{details:?}"
        );
    }
}
