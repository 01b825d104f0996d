//! Rules that are evaluated by a schedule: scripts on a simulated clock that begins at midnight of 2026-03-01 UTC.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use expect_test::expect;
use tocsin_model::{
    id::{Name, NotificationId},
    time::Timestamp,
};
use tocsin_pipeline::{PipelineOptions, ScheduleAction, ScheduleMoveError};
use tocsin_store::journal::{ActivityLog, OpenWork, ScheduleKey, Schedules};
use tocsin_testkit::{CrashPoint, Scenario, check};

/// Rules: values above a limit at the subscription's schedule, the same at once, and an hourly one of another class.
const STOCK: &str = r#"
application: stock
events: { quote: { fields: { price: number } } }
subscriptions:
  limit: { fields: { price: { type: number, default: 0 } }, schedule: optional, filter: cel }
  hourly: {}
notifications:
  crossed: { fields: { price: number, limit: number }, content: { templates: { base: { subject: "{{ price }} crossed {{ limit }}" } } } }
  hello: { fields: { due_at: timestamp, skipped: integer }, content: { templates: { base: { subject: "it is {{ due_at }}, skipped {{ skipped }}" } } } }
rules:
  due: { on: quote, subscription: limit, when: event.price >= sub.price, notify: crossed, with: { limit: sub.price }, schedule: subscription }
  hours: { subscription: hourly, notify: hello, every: 1h, missed: once }
channels:
  email: { protocol: smtp, options: { host: localhost, from: t@example.org }, retry: [] }
"#;

const DAILY: &str = "DTSTART:20260301T080000|RRULE:FREQ=DAILY";

/// Runs a script for `days` days.
async fn run(definition: &str, script: &str, days: u64) -> String {
    let mut scenario = Scenario::new(&[definition]).await;
    scenario.run_and_wait(script, Duration::from_secs(days * 86_400)).await
}

#[tokio::test(start_paused = true)]
async fn a_due_rule_matches_events_since_its_last_run() {
    check(
        STOCK,
        &format!(
            r#"01:00 subscriber alice email=alice@example.org
               01:00 subscriber bob email=bob@example.org
               01:00 subscribe alice limit {{"price": 5}} at {DAILY}
               01:00 subscribe bob limit {{"price": 7}} at {DAILY}
               06:00 event quote {{"price": 6}} {{"price": 8}}
               07:00 event quote {{"price": 3}}
               07:30 crash
               09:00 event quote {{"price": 9}}
               10:00 report"#
        ),
        expect![[r#"
            07:30:00 crash
            08:00:00 email alice@example.org n-1-0: 6.0 crossed 5.0 -> delivered
            08:00:00 email alice@example.org n-1-1: 8.0 crossed 5.0 -> delivered
            08:00:00 email bob@example.org n-1-2: 8.0 crossed 7.0 -> delivered
            10:00:00 events 14 notifications 3 open 0 suspended 0
            +1d 08:00:00 email alice@example.org n-2-0: 9.0 crossed 5.0 -> delivered
            +1d 08:00:00 email bob@example.org n-2-1: 9.0 crossed 7.0 -> delivered"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_subscription_that_is_new_or_changed_between_runs_gets_its_events_once() {
    check(
        STOCK,
        &format!(
            r#"01:00 subscriber alice email=alice@example.org
               01:00 subscriber bob email=bob@example.org
               01:00 subscriber carol email=carol@example.org
               01:00 subscribe alice limit {{"price": 1}} at {DAILY}
               01:00 subscribe carol limit {{"price": 1}} at {DAILY}
               06:00 event quote {{"price": 6}}
               07:00 subscribe bob limit {{"price": 1}} at {DAILY}
               07:10 event quote {{"price": 7}}
               09:00 event quote {{"price": 9}}
               09:30 reschedule alice DTSTART:20260301T100000|RRULE:FREQ=WEEKLY
               09:30 disable carol
               11:00 event quote {{"price": 11}}
               +1d09:00 enable carol"#
        ),
        expect![[r#"
            08:00:00 email alice@example.org n-1-0: 6.0 crossed 1.0 -> delivered
            08:00:00 email carol@example.org n-1-1: 6.0 crossed 1.0 -> delivered
            08:00:00 email alice@example.org n-1-2: 7.0 crossed 1.0 -> delivered
            08:00:00 email carol@example.org n-1-3: 7.0 crossed 1.0 -> delivered
            08:00:00 email bob@example.org n-1-4: 7.0 crossed 1.0 -> delivered
            10:00:00 email alice@example.org n-2-0: 9.0 crossed 1.0 -> delivered
            +1d 08:00:00 email bob@example.org n-3-0: 9.0 crossed 1.0 -> delivered
            +1d 08:00:00 email bob@example.org n-3-1: 11.0 crossed 1.0 -> delivered
            +7d 10:00:00 email alice@example.org n-4-0: 11.0 crossed 1.0 -> delivered"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_run_for_the_class_skips_events_from_before_a_subscription_was_enabled() {
    check(
        &STOCK.replace("schedule: subscription }", "every: 6h }"),
        r#"01:00 subscriber alice email=alice@example.org
           01:00 subscriber bob email=bob@example.org
           01:00 subscriber carol email=carol@example.org
           01:00 subscribe alice limit {"price": 1}
           01:00 subscribe bob limit {"price": 1}
           01:00 subscribe carol limit {"price": 1}
           02:00 disable alice
           02:00 snooze bob 60
           02:30 event quote {"price": 3}
           04:00 enable alice
           05:00 event quote {"price": 4}"#,
        expect![[r#"
            06:00:00 email carol@example.org n-1-0: 3.0 crossed 1.0 -> delivered
            06:00:00 email carol@example.org n-1-1: 4.0 crossed 1.0 -> delivered
            06:00:00 email bob@example.org n-1-2: 4.0 crossed 1.0 -> delivered
            06:00:00 email alice@example.org n-1-3: 4.0 crossed 1.0 -> delivered"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn schedules_go_by_the_clock_of_the_subscriber() {
    // Vienna puts its clocks forward on 29 March at 02:00, Sydney puts them back on 5 April at 03:00.
    let definition = STOCK
        .replace("every: 1h, missed: once", "schedule: subscription")
        .replace("hourly: {}", "hourly: { schedule: required }");
    let seen = run(
        &definition,
        "+27d00:00 subscriber alice email=alice@example.org zone=Europe/Vienna
         +27d00:00 subscriber bob email=bob@example.org zone=Australia/Sydney
         +27d00:00 subscriber carol email=carol@example.org
         +27d00:00 subscribe alice hourly {} at DTSTART:20260327T023000|RRULE:FREQ=DAILY;UNTIL=20260331T000000
         +27d00:00 subscribe bob hourly {} at DTSTART:20260403T023000|RRULE:FREQ=DAILY;UNTIL=20260407T000000
         +27d00:00 subscribe carol hourly {} at DTSTART;TZID=Australia/Sydney:20260405T023000|X-TOCSIN-FOLD:BOTH|RRULE:FREQ=DAILY;COUNT=1",
        12,
    )
    .await;
    expect![[r#"
        +27d 01:30:00 email alice@example.org n-1-0: it is 2026-03-28T01:30:00Z, skipped 0 -> delivered
        +28d 01:30:00 email alice@example.org n-2-0: it is 2026-03-29T01:30:00Z, skipped 0 -> delivered
        +29d 00:30:00 email alice@example.org n-3-0: it is 2026-03-30T00:30:00Z, skipped 0 -> delivered
        +32d 15:30:00 email bob@example.org n-4-0: it is 2026-04-02T15:30:00Z, skipped 0 -> delivered
        +33d 15:30:00 email bob@example.org n-5-0: it is 2026-04-03T15:30:00Z, skipped 0 -> delivered
        +34d 15:30:00 email bob@example.org n-6-0: it is 2026-04-04T15:30:00Z, skipped 0 -> delivered
        +34d 15:30:00 email carol@example.org n-7-0: it is 2026-04-04T15:30:00Z, skipped 0 -> delivered
        +34d 16:30:00 email carol@example.org n-8-0: it is 2026-04-04T16:30:00Z, skipped 0 -> delivered
        +35d 16:30:00 email bob@example.org n-9-0: it is 2026-04-05T16:30:00Z, skipped 0 -> delivered"#]]
    .assert_eq(&seen);
}

/// Three hours are missed.
async fn missed(policy: &str) -> String {
    let definition = STOCK.replace("missed: once", policy);
    let script = "01:30 subscriber alice email=alice@example.org
         01:30 subscribe alice hourly
         02:30 down 220
         07:30 unsubscribe alice";
    run(&definition, script, 0).await
}

#[tokio::test(start_paused = true)]
async fn missed_runs_are_made_up_for_as_the_rule_says() {
    expect![[r#"
        02:00:00 email alice@example.org n-1-0: it is 2026-03-01T02:00:00Z, skipped 0 -> delivered
        02:30:00 crash
        06:10:00 email alice@example.org n-2-0: it is 2026-03-01T06:00:00Z, skipped 3 -> delivered
        07:00:00 email alice@example.org n-3-0: it is 2026-03-01T07:00:00Z, skipped 0 -> delivered"#]]
    .assert_eq(&missed("missed: once").await);
    expect![[r#"
        02:00:00 email alice@example.org n-1-0: it is 2026-03-01T02:00:00Z, skipped 0 -> delivered
        02:30:00 crash
        06:10:00 email alice@example.org n-2-0: it is 2026-03-01T03:00:00Z, skipped 0 -> delivered
        06:10:00 email alice@example.org n-3-0: it is 2026-03-01T04:00:00Z, skipped 0 -> delivered
        06:10:00 email alice@example.org n-4-0: it is 2026-03-01T05:00:00Z, skipped 0 -> delivered
        06:10:00 email alice@example.org n-5-0: it is 2026-03-01T06:00:00Z, skipped 0 -> delivered
        07:00:00 email alice@example.org n-6-0: it is 2026-03-01T07:00:00Z, skipped 0 -> delivered"#]]
    .assert_eq(&missed("missed: all").await);
    expect![[r#"
        02:00:00 email alice@example.org n-1-0: it is 2026-03-01T02:00:00Z, skipped 0 -> delivered
        02:30:00 crash
        07:00:00 email alice@example.org n-2-0: it is 2026-03-01T07:00:00Z, skipped 0 -> delivered"#]]
    .assert_eq(&missed("missed: skip").await);
    expect![[r#"
        02:00:00 email alice@example.org n-1-0: it is 2026-03-01T02:00:00Z, skipped 0 -> delivered
        02:30:00 crash
        06:10:00 email alice@example.org n-2-0: it is 2026-03-01T05:00:00Z, skipped 2 -> delivered
        06:10:00 email alice@example.org n-3-0: it is 2026-03-01T06:00:00Z, skipped 0 -> delivered
        07:00:00 email alice@example.org n-4-0: it is 2026-03-01T07:00:00Z, skipped 0 -> delivered"#]]
    .assert_eq(&missed("missed: all, skip_older_than: 2h").await);
}

#[tokio::test(start_paused = true)]
async fn a_missed_run_loses_no_events() {
    let definition = STOCK.replace("schedule: subscription", "schedule: subscription, missed: skip");
    let script = format!(
        r#"01:00 subscriber alice email=alice@example.org
           01:00 subscribe alice limit {{}} at {DAILY}
           06:00 event quote {{"price": 6}}
           07:30 down 60
           09:00 event quote {{"price": 9}}"#
    );
    expect![[r#"
        07:30:00 crash
        +1d 08:00:00 email alice@example.org n-1-0: 6.0 crossed 0.0 -> delivered
        +1d 08:00:00 email alice@example.org n-1-1: 9.0 crossed 0.0 -> delivered"#]]
    .assert_eq(&run(&definition, &script, 2).await);
}

#[tokio::test(start_paused = true)]
async fn a_stopped_rule_waits() {
    check(
        STOCK,
        &format!(
            r#"01:00 subscriber alice email=alice@example.org
               01:00 subscribe alice limit {{}} at {DAILY}
               06:00 event quote {{"price": 6}}
               07:00 stop due
               09:00 event quote {{"price": 9}}
               10:00 let due"#
        ),
        expect![[r#"
            10:00:00 due was stopped: true
            10:00:00 email alice@example.org n-1-0: 6.0 crossed 0.0 -> delivered
            10:00:00 email alice@example.org n-1-1: 9.0 crossed 0.0 -> delivered"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_update_goes_on_from_the_last_run() {
    let fixed = |at: &str| {
        STOCK.replace(
            "schedule: subscription",
            &format!("schedule: {{ start: 2026-03-01T{at}, time_zone: UTC, rule: FREQ=DAILY }}"),
        )
    };
    let without = STOCK
        .replace(", schedule: subscription", "")
        .replace("with: { limit: sub.price }", "with: { limit: sub.price + 100 }");
    let mut scenario = Scenario::new(&[&fixed("08:00"), &fixed("12:00"), &without]).await;
    let seen = scenario
        .run(
            r#"01:00 subscriber alice email=alice@example.org
               01:00 subscribe alice limit
               06:00 event quote {"price": 6}
               09:00 event quote {"price": 9}
               09:30 apply
               11:00 event quote {"price": 11}
               13:00 event quote {"price": 13}
               14:00 apply
               15:00 event quote {"price": 15}"#,
        )
        .await;
    expect![[r#"
        08:00:00 email alice@example.org n-1-0: 6.0 crossed 0.0 -> delivered
        12:00:00 email alice@example.org n-2-0: 9.0 crossed 0.0 -> delivered
        12:00:00 email alice@example.org n-2-1: 11.0 crossed 0.0 -> delivered
        15:00:00 email alice@example.org n-3-0: 15.0 crossed 100.0 -> delivered"#]]
    .assert_eq(&seen);
}

#[tokio::test(start_paused = true)]
async fn a_long_run_is_done_in_parts() {
    let options = PipelineOptions { run_subscriptions: 10, run_notifications: 15, ..PipelineOptions::default() };
    let mut scenario = Scenario::with(&[STOCK], options).await;
    let mut script = String::new();
    for number in 0..33 {
        script.push_str(&format!("01:00 subscriber s{number:02} email=s{number:02}@example.org\n"));
        script.push_str(&format!("01:00 subscribe s{number:02} limit {{}} at {DAILY}\n"));
    }
    for price in 1..=4 {
        script.push_str(&format!("06:00 event quote {{\"price\": {price}}}\n"));
    }
    script.push_str("09:00 event quote {\"price\": 9}\n09:30 report");
    let seen = scenario.run_and_wait(&script, Duration::from_secs(3_600)).await;
    let delivered: Vec<&str> = seen.lines().filter(|line| line.ends_with("delivered")).collect();
    let different: BTreeSet<(String, String)> = delivered.iter().map(|line| words(line)).collect();
    assert_eq!((delivered.len(), different.len()), (33 * 4, 33 * 4), "{seen}");
    assert!(scenario.journal().totals().event_batches > 8, "the rest of a run is a batch of its own");
}

/// The recipient and the content of a line.
fn words(line: &str) -> (String, String) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let address = words.iter().position(|word| word.contains('@')).expect("an address");
    (words[address].to_owned(), words[address + 2].to_owned())
}

/// A crash at any write may repeat a delivery under the same id, and must change nothing else.
const STORY: &str = r#"
    01:00 subscriber alice email=alice@example.org
    01:00 subscriber bob email=bob@example.org
    01:00 subscribe alice limit {} at DTSTART:20260301T020000|RRULE:FREQ=HOURLY
    01:00 subscribe bob limit {} at DTSTART:20260301T020000|RRULE:FREQ=HOURLY;INTERVAL=2
    01:10 event quote {"price": 1} {"price": 2}
    01:20 event quote {"price": 3}
    02:10 event quote {"price": 4}
    03:10 event quote {"price": 5}"#;

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_write_runs_a_due_rule_once() {
    let hours = STOCK.lines().find(|line| line.starts_with("  hours:")).expect("the rule of the hours");
    let definition = STOCK.replace(hours, "");
    for moment in [CrashPoint::BeforeWrite, CrashPoint::AfterWrite] {
        let mut writes = 0;
        loop {
            let options = PipelineOptions { run_notifications: 2, ..PipelineOptions::default() };
            let mut scenario = Scenario::with(&[&definition], options).await;
            scenario.crash_at(writes + 1, moment);
            let seen = scenario.run_and_wait(STORY, Duration::from_secs(3 * 3_600)).await;
            if !scenario.has_crashed() {
                break;
            }
            writes += 1;
            let context = format!("{moment:?} write {writes}\n{seen}");
            let mut ids: BTreeMap<(String, String), BTreeSet<NotificationId>> = BTreeMap::new();
            for line in seen.lines().filter(|line| line.ends_with("-> delivered")) {
                let id = line.split_whitespace().find_map(|word| word.strip_suffix(':')?.parse().ok()).expect("an id");
                ids.entry(words(line)).or_default().insert(id);
            }
            assert_eq!(ids.len(), 10, "too few or too many notifications: {context}");
            assert!(ids.values().all(|ids| ids.len() == 1), "sent under several ids: {context}");
            let backlog = scenario.journal().backlog();
            assert_eq!((backlog.event_batches, backlog.failed_batches, backlog.work_items), (0, 0, 0), "{context}");
        }
        assert!(writes >= 10, "the story has many writes, but the process died at {writes} only");
    }
}

/// Notifications of a run count for the throttle: the next events wait, and so does the next run.
#[tokio::test(start_paused = true)]
async fn a_throttle_defers_runs_and_later_events() {
    let limits = "limits: { throttle: { notifications: 2, per: 1h } }\nrules:";
    let hours = STOCK.lines().find(|line| line.starts_with("  hours:")).expect("the rule of the hours");
    check(
        &STOCK.replace(hours, "").replace("rules:", limits),
        r#"01:00 subscriber alice email=alice@example.org
           01:00 subscriber bob email=bob@example.org
           01:00 subscribe alice limit {"price": 1} at DTSTART:20260301T080000|RRULE:FREQ=DAILY;COUNT=1
           01:00 subscribe bob limit {"price": 100} at DTSTART:20260301T081000|RRULE:FREQ=DAILY;COUNT=1
           06:00 event quote {"price": 5} {"price": 6} {"price": 7} {"price": 101}
           08:05 report
           08:30 report
           12:00 report"#,
        expect![[r#"
            08:00:00 email alice@example.org n-1-0: 5.0 crossed 1.0 -> delivered
            08:00:00 email alice@example.org n-1-1: 6.0 crossed 1.0 -> delivered
            08:00:00 email alice@example.org n-1-2: 7.0 crossed 1.0 -> delivered
            08:00:00 email alice@example.org n-1-3: 101.0 crossed 1.0 -> delivered
            08:05:00 events 5 notifications 4 open 0 suspended 0
            08:30:00 events 6 notifications 4 open 0 suspended 0
            09:00:00 email bob@example.org n-2-0: 101.0 crossed 100.0 -> delivered
            12:00:00 events 6 notifications 5 open 0 suspended 0"#]],
    )
    .await;
}

/// Runs wait, and are done in parts as the throttle allows; events go on.
#[tokio::test(start_paused = true)]
async fn b13_a_throttle_of_schedules_holds_runs_alone() {
    let definition = STOCK
        .replace("channels:", "limits: { schedule_throttle: { notifications: 2, per: 10m } }\nchannels:")
        .replace("  hours:", "  now: { on: quote, subscription: limit, when: event.price >= sub.price, notify: crossed, with: { limit: sub.price } }\n  hours:");
    let mut script = String::new();
    for who in ["alice", "bob", "carol", "dave", "eve"] {
        script.push_str(&format!("00:10 subscriber {who} email={who}@example.org\n00:10 subscribe {who} hourly\n"));
    }
    script.push_str("00:20 subscriber zoe email=zoe@example.org\n00:20 subscribe zoe limit {\"price\": 5}\n");
    script.push_str("01:01 event quote {\"price\": 9}\n01:50 report");
    let mut scenario = Scenario::new(&[&definition]).await;
    let seen = scenario.run_and_wait(&script, Duration::from_secs(60)).await;
    expect![[r#"
        01:00:00 email alice@example.org n-1-0: it is 2026-03-01T01:00:00Z, skipped 0 -> delivered
        01:00:00 email bob@example.org n-1-1: it is 2026-03-01T01:00:00Z, skipped 0 -> delivered
        01:00:00 email carol@example.org n-2-0: it is 2026-03-01T01:00:00Z, skipped 0 -> delivered
        01:01:00 email zoe@example.org n-3-0: 9.0 crossed 5.0 -> delivered
        01:05:00 email dave@example.org n-4-0: it is 2026-03-01T01:00:00Z, skipped 0 -> delivered
        01:10:00 email eve@example.org n-5-0: it is 2026-03-01T01:00:00Z, skipped 0 -> delivered
        01:50:00 events 6 notifications 6 open 0 suspended 0"#]]
    .assert_eq(&seen);
}

#[tokio::test(start_paused = true)]
async fn an_operator_runs_a_schedule_now_and_skips_its_next_run() {
    let mut scenario = Scenario::new(&[STOCK]).await;
    let script = format!(
        r#"01:00 subscriber alice email=alice@example.org
           01:00 subscribe alice limit {{"price": 5}} at {DAILY}
           06:00 event quote {{"price": 6}}
           07:00 event quote {{"price": 7}}"#
    );
    scenario.run_and_wait(&script, Duration::from_secs(60)).await;
    let stock: Name = "stock".parse().expect("a name");
    let runs = scenario.journal().schedule_runs(&stock, None, 10).await.expect("the journal answers");
    let followed = runs.into_iter().find(|run| run.rule.as_str() == "due").expect("the schedule of alice");
    let key: ScheduleKey = (followed.rule, followed.schedule);
    let at = |text: &str| text.parse::<Timestamp>().expect("a time");

    let moved = scenario.pipeline().move_schedule(&stock, key.clone(), ScheduleAction::Run).await.expect("it runs");
    assert_eq!((moved.due_at, moved.next), (at("2026-03-01T07:01:00Z"), Some(at("2026-03-01T08:00:00Z"))));
    assert!(moved.batch.is_some());
    let moved = scenario.pipeline().move_schedule(&stock, key.clone(), ScheduleAction::Skip).await.expect("it skips");
    assert_eq!((moved.due_at, moved.next), (at("2026-03-01T08:00:00Z"), Some(at("2026-03-02T08:00:00Z"))));
    let unknown = (key.0.clone(), "DTSTART:20260301T090000|RRULE:FREQ=DAILY".into());
    let refused = scenario.pipeline().move_schedule(&stock, unknown, ScheduleAction::Run).await;
    assert!(matches!(refused, Err(ScheduleMoveError::Unknown)), "{refused:?}");

    // A skip is durable, and the events of the skipped run are part of the run after it.
    let later = "07:30 event quote {\"price\": 8}\n07:40 crash\n09:00 event quote {\"price\": 9}";
    let seen = scenario.run_and_wait(later, Duration::from_secs(2 * 86_400)).await;
    let mails: Vec<&str> = seen.lines().filter(|line| line.contains("email")).collect();
    let times: Vec<&str> = mails.iter().map(|line| line.split(" email").next().unwrap_or_default()).collect();
    assert_eq!(times, ["07:01:00", "07:01:00", "+1d 08:00:00", "+1d 08:00:00"], "{seen}");
    for (line, price) in mails.iter().zip(["6.0", "7.0", "8.0", "9.0"]) {
        assert!(line.contains(&format!("{price} crossed")), "{seen}");
    }
    let run = scenario.journal().schedule_run(&stock, &key).await.expect("the journal answers").expect("it is there");
    assert_eq!(run.skipped, 1);
}
