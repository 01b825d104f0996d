//! State of everything at 22:00.

use super::*;

#[test]
fn snapshots_report_the_state_and_the_last_activity() {
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
            .check("snapshot-sources", &ReportRequest::default(), 0, vec![source("feed", 1, 250), source("hand", 1, 1)])
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
            .check("snapshot-events", &ReportRequest::default(), 0, vec![class("quote", 7, 0), class("trade", 7, 250)])
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
        platform.check("snapshot-subscriptions", &ReportRequest::default(), 0, vec![wish]).await;
        let of_channel = |channel: &str| {
            let shown = batches().into_iter().filter(|(_, _, shown)| shown.channel == channel);
            shown.flat_map(|(_, entry, shown)| shown.attempts(entry)).collect::<Vec<_>>()
        };
        let answered = |channel: &str| of_channel(channel).iter().map(|found| found.3).max().expect("some");
        let matched = DAY.iter().map(Entry::matched).max().expect("some");
        let counts = |counts: [u64; 9]| counts.map(Cell::Count).to_vec();
        let stock = [
            vec![text("stock"), text("enabled")],
            counts([1, 2, 2, 0, 2, 0, 0, 0, 0]),
            vec![Cell::At(at(matched)), Cell::At(at(answered("mail").max(answered("hook"))))],
        ];
        platform.check("snapshot-applications", &ReportRequest::default(), 0, vec![stock.concat()]).await;
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
                Cell::Count(0),
                Cell::At(at(last)),
                ago(last),
                in_last_minute(&|outcome| outcome == Outcome::Delivered),
                in_last_minute(&|outcome| matches!(outcome, Outcome::Deferred | Outcome::Refused)),
            ]
        };
        platform.check("snapshot-channels", &ReportRequest::default(), 0, vec![channel("hook"), channel("mail")]).await;
    });
}
