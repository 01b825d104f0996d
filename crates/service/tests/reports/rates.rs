//! Reports of sums by hour, and over the day.

use super::*;

/// Beginning of the hour of a time.
fn hour(millis: i64) -> i64 {
    millis / HOUR * HOUR
}

fn hourly() -> ReportRequest {
    ReportRequest { interval: Some(Duration::from_secs(3_600)), ..whole_day() }
}

/// Timings within an hour, if there is any activity of the names.
type Hours<'a> = BTreeMap<(&'a str, i64), Vec<(&'static str, i64)>>;

#[test]
fn diagnostics_add_up_hour_by_hour() {
    on_each(async |platform| {
        let mut classes: Hours = BTreeMap::new();
        let mut add_stage = |class: &'static str, at: i64, what, value| {
            classes.entry((class, hour(at))).or_default().push((what, value))
        };
        for entry in DAY {
            add_stage(entry.class, entry.accepted(), "events", entry.events.into());
            add_stage(entry.class, entry.accepted(), "collection", entry.collection);
            add_stage(entry.class, entry.matched(), "pickup", entry.pickup);
            for sent_batch in entry.sent_batches {
                add_stage(entry.class, entry.matched(), "generation", entry.pickup + entry.matching);
                add_stage(entry.class, sent_batch.sent(entry), "wait", sent_batch.wait);
                let answered = sent_batch.last_answered(entry);
                add_stage(entry.class, answered, "delivery", answered - sent_batch.sent(entry));
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
            let sent_batch = batches().into_iter().filter(move |(_, _, sent_batch)| sent_batch.channel == channel);
            sent_batch
                .flat_map(|(_, entry, sent_batch)| [entry.matched(), sent_batch.last_answered(entry)])
                .map(|at| (hour(at), ()))
                .collect()
        };
        let mut expected = Vec::new();
        for channel in ["hook", "mail"] {
            for from in hours(channel).into_keys() {
                let within = |at: i64| hour(at) == from;
                let sent_batch: Vec<_> =
                    batches().into_iter().filter(|(_, _, sent_batch)| sent_batch.channel == channel).collect();
                let attempts: Vec<_> = sent_batch
                    .iter()
                    .flat_map(|(_, entry, sent_batch)| sent_batch.attempts(entry))
                    .filter(|found| within(found.3))
                    .collect();
                let count = |outcome: Outcome| attempts.iter().filter(|found| found.4 == outcome).count() as u64;
                let mut answers: Vec<i64> = attempts.iter().map(|found| found.3 - found.2).collect();
                answers.sort_unstable();
                let p95 = answers[(answers.len() as f64 * 0.95).ceil() as usize - 1];
                let delivered = count(Outcome::Delivered);
                let waits = sent_batch
                    .iter()
                    .filter(|(_, entry, sent_batch)| within(sent_batch.sent(entry)))
                    .map(|(_, _, sent_batch)| sent_batch.wait);
                let closed =
                    sent_batch.iter().filter(|(_, entry, sent_batch)| within(sent_batch.last_answered(entry))).count();
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
                let sent_batch: Vec<_> =
                    of_class.iter().filter(|(_, entry, _)| hour(entry.matched()) == from).collect();
                let made: u32 = sent_batch.iter().map(|(_, _, sent_batch)| sent_batch.count).sum();
                let count = |outcome| {
                    sent_batch.iter().map(|(_, entry, sent_batch)| sent_batch.count_of(entry, outcome)).sum::<u64>()
                };
                let (delivered, refused) = (count(Outcome::Delivered), count(Outcome::Refused));
                vec![
                    Cell::At(at(from)),
                    Cell::At(at(from + HOUR)),
                    text("stock"),
                    text(class),
                    Cell::Count(sent_batch.len() as u64),
                    Cell::Count(made.into()),
                    Cell::Number(f64::from(made) / sent_batch.len() as f64),
                    Cell::Count(sent_batch.len() as u64),
                    Cell::Count(delivered),
                    Cell::Count(refused),
                    Cell::Count(0),
                    Cell::Count(0),
                    Cell::Number(delivered as f64 * 100.0 / (delivered + refused) as f64),
                    average(sent_batch.iter().map(|(_, entry, _)| entry.pickup + entry.matching)),
                    average(sent_batch.iter().map(|(_, _, sent_batch)| sent_batch.wait)),
                    average(
                        sent_batch
                            .iter()
                            .map(|(_, entry, sent_batch)| sent_batch.last_answered(entry) - sent_batch.sent(entry)),
                    ),
                ]
            })
        });
        platform.check("notification-class", &hourly(), 0, class_rows.collect()).await;

        let rule_rows = ["far", "near"].into_iter().flat_map(|rule| {
            let of_rule: Vec<_> = batches().into_iter().filter(|(_, entry, _)| entry.rule() == rule).collect();
            let hours: BTreeMap<i64, ()> = of_rule.iter().map(|(_, entry, _)| (hour(entry.matched()), ())).collect();
            hours.into_keys().map(move |from| {
                let sent_batch: Vec<_> = of_rule.iter().filter(|(_, entry, _)| hour(entry.matched()) == from).collect();
                let count = |outcome| {
                    sent_batch.iter().map(|(_, entry, sent_batch)| sent_batch.count_of(entry, outcome)).sum::<u64>()
                };
                let took_longest =
                    sent_batch.iter().map(|(_, entry, _)| entry.pickup + entry.matching).max().expect("some");
                vec![
                    Cell::At(at(from)),
                    Cell::At(at(from + HOUR)),
                    text("stock"),
                    text("wish"),
                    text(rule),
                    Cell::Count(sent_batch.len() as u64),
                    Cell::Count(0),
                    Cell::Count(0),
                    Cell::Count(sent_batch.iter().map(|(_, _, sent_batch)| u64::from(sent_batch.count)).sum()),
                    average(sent_batch.iter().map(|(_, entry, _)| entry.pickup + entry.matching)),
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
            // A single hour is easier to calculate.
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
        let hand = ReportRequest { source: Some(name("hand")), ..hourly() };
        expected.retain(|row| row[3] == text("hand"));
        platform.check("source", &hand, 0, expected).await;
    });
}

#[test]
fn the_history_of_a_day_is_one_row() {
    on_each(async |platform| {
        let events: u32 = DAY.iter().map(|entry| entry.events).sum();
        let made: u32 = batches().iter().map(|(_, _, sent_batch)| sent_batch.count).sum();
        let attempts: Vec<_> = batches()
            .into_iter()
            .flat_map(|(_, entry, sent_batch)| {
                sent_batch.attempts(entry).into_iter().map(move |attempt| (entry.accepted(), attempt))
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
            exact("wait", batches().iter().map(|(_, _, sent_batch)| sent_batch.wait).collect()),
            exact(
                "delivery",
                batches()
                    .iter()
                    .map(|(_, entry, sent_batch)| sent_batch.last_answered(entry) - sent_batch.sent(entry))
                    .collect(),
            ),
            exact("answer", attempts.iter().map(|(_, found)| found.3 - found.2).collect()),
            exact("end_to_end", delivered),
        ];
        platform.check("timings", &whole_day(), 0, timed).await;
    });
}
