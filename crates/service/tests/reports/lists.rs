//! Quanta, batches and subscriptions, one by one and in detail.

use super::*;

#[test]
fn quanta_are_listed_with_their_results() {
    on_each(async |platform| {
        let row = |(number, entry): (u64, &Entry)| {
            let made: u32 = entry.sent_batches.iter().map(|sent_batch| sent_batch.count).sum();
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
                Cell::Count(entry.sent_batches.len() as u64),
                Cell::Count(made.into()),
                Cell::Count(0),
                Cell::Count(0),
                Cell::Count(0),
            ]
        };
        let mut expected: Vec<_> = (1..).zip(DAY).map(row).collect();
        platform.check("quantum-details", &of("1"), 0, vec![expected[0].clone()]).await;
        platform.check("quantum-details", &of("1"), 1, vec![event_batch(1, &DAY[0])]).await;
        let sent_batch = batches()
            .into_iter()
            .take(2)
            .map(|(id, entry, sent_batch)| notification_batch(id, entry, sent_batch))
            .collect();
        platform.check("quantum-details", &of("1"), 3, sent_batch).await;
        expected.reverse();
        platform.check("quantum-list", &whole_day(), 0, expected.clone()).await;
        let morning = ReportRequest { to: Some(at(9 * HOUR)), limit: Some(1), ..whole_day() };
        platform.check("quantum-list", &morning, 0, vec![expected[1].clone()]).await;
        let next = platform.report("quantum-list", &morning).await.next;
        let rest = ReportRequest { before: next, limit: None, ..morning };
        platform.check("quantum-list", &rest, 0, expected[2..].to_vec()).await;
        let failed = ReportRequest { status: Some("failed".to_owned()), ..whole_day() };
        platform.check("quantum-list", &failed, 0, vec![]).await;
    });
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
        Cell::At(at(if entry.sent_batches.is_empty() { entry.picked_up() } else { entry.matched() })),
        took(if entry.sent_batches.is_empty() { entry.pickup } else { entry.pickup + entry.matching }),
        Cell::None,
    ]
}

fn notification_batch(id: NotificationBatchId, entry: &Entry, sent_batch: &SentBatch) -> Vec<Cell> {
    let (sent, answered) = (sent_batch.sent(entry), sent_batch.last_answered(entry));
    vec![
        text(id),
        text("stock"),
        text(entry.notification_class()),
        text(entry.rule()),
        text(entry.class),
        text(sent_batch.channel),
        Cell::Count(sent_batch.count.into()),
        text("closed"),
        Cell::At(at(entry.accepted())),
        Cell::At(at(entry.matched())),
        took(entry.pickup + entry.matching),
        Cell::None,
        Cell::At(at(sent)),
        took(sent_batch.wait),
        Cell::At(at(answered)),
        took(answered - sent),
        Cell::At(at(answered)),
        Cell::Count(sent_batch.attempts(entry).len() as u64),
        Cell::Count(sent_batch.count_of(entry, Outcome::Delivered)),
        Cell::Count(sent_batch.count_of(entry, Outcome::Refused)),
        Cell::Count(0),
    ]
}

#[test]
fn batches_are_listed_and_shown_in_detail() {
    on_each(async |platform| {
        let all: Vec<_> = (1..).zip(DAY).map(|(number, entry)| event_batch(number, entry)).collect();
        let newest: Vec<_> = all.iter().rev().cloned().collect();
        platform.check("event-batch-list", &ReportRequest::default(), 0, newest.clone()).await;
        let hand = ReportRequest { source: Some(name("hand")), class: Some(name("trade")), ..whole_day() };
        platform.check("event-batch-list", &hand, 0, vec![all[1].clone()]).await;
        let morning = ReportRequest { to: Some(at(9 * HOUR)), ..whole_day() };
        platform.check("event-batch-list", &morning, 0, newest[1..].to_vec()).await;

        let sent_batch: Vec<_> =
            batches().into_iter().map(|(id, entry, sent_batch)| notification_batch(id, entry, sent_batch)).collect();
        let newest: Vec<_> = sent_batch.iter().rev().cloned().collect();
        platform.check("notification-batch-list", &whole_day(), 0, newest).await;
        let mail = ReportRequest { channel: Some(name("mail")), rule: Some(name("near")), ..whole_day() };
        platform.check("notification-batch-list", &mail, 0, vec![sent_batch[0].clone()]).await;
        let open = ReportRequest { status: Some("open".to_owned()), ..whole_day() };
        platform.check("notification-batch-list", &open, 0, vec![]).await;

        platform.check("event-batch-details", &of("eb-1"), 0, vec![all[0].clone()]).await;
        platform.check("event-batch-details", &of("eb-1"), 1, sent_batch[..2].to_vec()).await;
        let event = |at: u32| {
            vec![text(format!("e-1-{at}")), Cell::Fields(vec![("price".to_owned(), Value::Number(at.into()))])]
        };
        platform.check("event-batch-details", &of("eb-1"), 2, (0..10).map(event).collect()).await;

        let first = ReportRequest { limit: Some(4), ..of("eb-1") };
        platform.check("event-batch-details", &first, 2, (0..4).map(event).collect()).await;
        let next = platform.report("event-batch-details", &first).await.next;
        let rest = ReportRequest { before: next, ..of("eb-1") };
        platform.check("event-batch-details", &rest, 2, (4..10).map(event).collect()).await;

        let (id, entry, of_hook) = batches()[1];
        let attempts = of_hook.attempts(entry);
        platform.check("notification-batch-details", &of("nb-2"), 0, vec![sent_batch[1].clone()]).await;
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

#[test]
fn a_subscription_is_reported_with_its_notifications() {
    on_each(async |platform| {
        let id = "ann".parse().expect("an id");
        let new = NewSubscriber {
            kept: Default::default(),
            id,
            profile: Default::default(),
            devices: None,
            preferences: None,
        };
        platform.records.put_subscriber(new, Precondition::Any, at(0)).await.expect("stored");
        let new = NewSubscription {
            application: name("stock"),
            class: name("wish"),
            subscriber: "ann".parse().expect("an id"),
            key: None,
            device: None,
            enabled: Some(true),
            values: "{}".into(),
            terms: Default::default(),
        };
        let id = platform.records.put_subscription(new, at(0)).await.expect("stored").id;
        assert_eq!(id, SubscriptionId(1), "every batch of the day has the first subscription");
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
        let sent_batch = batches().into_iter().rev().map(|(batch, entry, sent_batch)| {
            let attempts = sent_batch.attempts(entry);
            let last = attempts.iter().rfind(|found| found.0 == 0).expect("each is tried");
            vec![
                text(format!("n-{}-0", batch.0)),
                text(entry.rule()),
                text(entry.notification_class()),
                text(sent_batch.channel),
                text(format!("e-{}-0", DAY.iter().position(|found| found.at == entry.at).expect("there") + 1)),
                Cell::At(at(entry.matched())),
                text(last.4.word()),
                Cell::At(at(last.3)),
            ]
        });
        platform.check("subscription", &of("s-1"), 1, sent_batch.collect()).await;
        platform.check("subscription", &of("s-1"), 2, vec![]).await;
    });
}

/// Follows the pages of a report, each of at most two rows a list, and joins them.
async fn all_pages(platform: &Platform, report: &str, asked: &ReportRequest) -> Vec<Vec<Vec<Cell>>> {
    let mut asked = ReportRequest { limit: Some(2), ..asked.clone() };
    let mut joined: Vec<Vec<Vec<Cell>>> = Vec::new();
    for _ in 0..1_000 {
        let found = platform.report(report, &asked).await;
        joined.resize(found.tables.len(), Vec::new());
        let heads = usize::from(found.tables.len() > 1);
        for (at, (joined, table)) in joined.iter_mut().zip(found.tables).enumerate() {
            // What describes the thing itself is on each page.
            if at < heads || table.name == "channels" || table.name == "next_runs" {
                *joined = table.rows;
            } else {
                assert!(table.rows.len() <= 2, "{report}: {} rows of `{}`", table.rows.len(), table.name);
                joined.extend(table.rows);
            }
        }
        let Some(next) = found.next else { return joined };
        asked.before = Some(next);
    }
    panic!("{report} has pages without end");
}

#[test]
fn b12_pages_of_every_report_together_are_the_whole() {
    on_each(async |platform| {
        for description in CATALOGUE {
            let asked = match description.name {
                "quantum-details" => of("1"),
                "event-batch-details" => of("eb-1"),
                "notification-batch-details" => of("nb-2"),
                "subscription" => continue,
                _ => ReportRequest::default(),
            };
            let whole = platform.report(description.name, &ReportRequest { limit: Some(1_000), ..asked.clone() }).await;
            assert_eq!(whole.next, None, "{}", description.name);
            let whole: Vec<_> = whole.tables.into_iter().map(|table| table.rows).collect();
            let pages = all_pages(&platform, description.name, &asked).await;
            // What is listed with the thing itself, such as how many were looked through, differs by page.
            assert_eq!(pages.len(), whole.len(), "{}", description.name);
            assert_eq!(pages, whole, "{}", description.name);
        }
    });
}

#[test]
fn b10_a_time_is_widened_to_the_minutes_that_are_stored() {
    on_each(async |platform| {
        let asked =
            |from: i64, to: i64| ReportRequest { from: Some(at(from)), to: Some(at(to)), ..ReportRequest::default() };
        for report in ["event-class", "source", "notification-class", "channel", "administration-history", "timings"] {
            let minute = 60_000;
            let exact = platform.report(report, &asked(8 * HOUR, 12 * HOUR)).await;
            let within = platform.report(report, &asked(8 * HOUR + 1, 12 * HOUR - minute + 1)).await;
            assert_eq!(within.tables, exact.tables, "{report}: the rates are of the time that is counted");
            assert_eq!(within.window, Some((at(8 * HOUR), at(12 * HOUR))), "{report} says its time");
            if report != "timings" && report != "administration-history" {
                let interval = Some(Duration::from_secs(3_600));
                let last = ReportRequest { to: Some(at(12 * HOUR - minute + 1)), interval, ..ReportRequest::default() };
                let (from, to) = platform.report(report, &last).await.window.expect("a time");
                assert_eq!((from, to), (at(7 * HOUR), at(12 * HOUR)), "{report}: five whole intervals");
            }
        }
    });
}
