//! Scenarios of broadcasts: audiences, filters of both sides, time, pause, cancellation, crashes.

use std::time::Duration;

use expect_test::expect;
use tocsin_model::problem::Code;
use tocsin_pipeline::PipelineOptions;
use tocsin_testkit::{CrashPoint, Scenario, check};

const SHOP: &str = r#"
application: shop
attributes: { tier: string }
events:
  release: { fields: { title: string, price: number } }
subscriptions:
  news: { fields: { region: string }, filter: cel }
  other: {}
notifications:
  offer:
    fields: { title: string }
    content: { templates: { base: { subject: "{{ title }}" } } }
rules:
  offer: { on: release, subscription: news, notify: offer }
channels:
  email: { protocol: smtp, options: { host: localhost, from: t@example.org } }
  sms: { protocol: http }
"#;

const PEOPLE: &str = r#"
    08:00 subscriber ann email=ann@example.org @tier=gold
    08:00 subscriber bob email=bob@example.org locale=de
    08:00 subscriber eve sms=+4366012345 @tier=gold
    08:00 subscriber joe email=joe@example.org
    08:00 subscribe ann news {"region": "east"}
    08:00 subscribe bob news {"region": "west"}
    08:00 subscribe eve news {"region": "east"}
    08:00 subscribe joe other"#;

fn script(rest: &str) -> String {
    format!("{PEOPLE}\n{rest}")
}

#[tokio::test(start_paused = true)]
async fn a_broadcast_reaches_its_class_by_channel_and_locale() {
    check(
        SHOP,
        &script(
            r#"08:10 broadcast {"subscription": "news", "data": {"day": "Sunday"}, "content": {"templates": {
                "base": {"subject": "Closed on {{ day }}, {{ subscriber.id }} of {{ sub.region }}"},
                "de": {"subject": "{{ day }} geschlossen"}, "sms": {"subject": "Closed {{ day }}"}}}}
            08:20 show bc-1"#,
        )
        .replace("{\n                \"base\"", "{\"base\"")
        .replace("},\n                \"de\"", "}, \"de\""),
        expect![[r#"
            08:10:00 bc-1 counts 3 of 3
            08:10:00 email ann@example.org n-1-0: Closed on Sunday, ann of east -> delivered
            08:10:00 email bob@example.org n-1-1: Sunday geschlossen -> delivered
            08:10:00 sms +4366012345 n-2-0: Closed Sunday -> delivered
            08:20:00 bc-1 running matched true recipients 3 open 0 delivered 3 failed 0 ended 0"#]],
    )
    .await;
}

const TEXT: &str = r#""subscription": "news", "content": {"templates": {"base": {"subject": "{{ subscriber.id }}"}}}"#;

#[tokio::test(start_paused = true)]
async fn filters_of_both_sides_and_segments_narrow_the_audience() {
    let script = script(
        r#"08:01 subscriber ida email=ida@example.org
        08:01 subscribe ida news {"region": "east"} if event.price < 10.0
        08:02 segment gold (tier=gold)
        08:10 broadcast {TEXT, "when": "sub.region == 'east'"}
        08:11 broadcast {TEXT, "when": "sub.region == 'east'", "event_class": "release", "data": {"price": 5}}
        08:12 broadcast {TEXT, "when": "sub.region == 'east'", "event_class": "release", "data": {"price": 50}}
        08:13 broadcast {TEXT, "segment": "gold"}
        08:14 broadcast {TEXT, "when": "subscriber.attributes.tier == 'gold' && sub.region == 'west'"}
        08:15 broadcast {TEXT, "data": {"cost": 5}}"#,
    );
    check(
        SHOP,
        &script.replace("TEXT", TEXT),
        expect![[r#"
            08:10:00 bc-1 counts 3 of 4
            08:10:00 email ann@example.org n-1-0: ann -> delivered
            08:10:00 email ida@example.org n-1-1: ida -> delivered
            08:10:00 sms +4366012345 n-2-0: eve -> delivered
            08:11:00 bc-2 counts 3 of 4
            08:11:00 email ann@example.org n-3-0: ann -> delivered
            08:11:00 email ida@example.org n-3-1: ida -> delivered
            08:11:00 sms +4366012345 n-4-0: eve -> delivered
            08:12:00 bc-3 counts 2 of 4
            08:12:00 email ann@example.org n-5-0: ann -> delivered
            08:12:00 sms +4366012345 n-6-0: eve -> delivered
            08:13:00 bc-4 counts 2 of 4
            08:13:00 email ann@example.org n-7-0: ann -> delivered
            08:13:00 sms +4366012345 n-8-0: eve -> delivered
            08:14:00 bc-5 counts 0 of 4
            08:15:00 bc-6 counts 3 of 4
            08:15:00 email ann@example.org n-9-0: ann -> delivered
            08:15:00 email bob@example.org n-9-1: bob -> delivered
            08:15:00 sms +4366012345 n-10-0: eve -> delivered"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_list_of_subscriptions_narrows_the_audience() {
    let options = PipelineOptions { run_subscriptions: 2, ..PipelineOptions::default() };
    let script = script(
        r#"08:10 broadcast {TEXT, "subscriptions": ["s-3", "s-1", "s-4", "s-99"]}
        08:11 broadcast {TEXT, "subscriptions": ["s-1", "s-2"], "when": "sub.region == 'west'"}
        08:12 broadcast {TEXT, "subscriptions": []}
        08:20 show bc-1
        08:20 show bc-3"#,
    );
    let mut scenario = Scenario::with(&[SHOP], options).await;
    let shown = scenario.run(&script.replace("TEXT", TEXT)).await;
    expect![[r#"
        08:10:00 bc-1 counts 2 of 2
        08:10:00 email ann@example.org n-1-0: ann -> delivered
        08:10:00 sms +4366012345 n-2-0: eve -> delivered
        08:11:00 bc-2 counts 1 of 2
        08:11:00 email bob@example.org n-3-0: bob -> delivered
        08:12:00 bc-3 counts 0 of 0
        08:20:00 bc-1 running matched true recipients 2 open 0 delivered 2 failed 0 ended 0
        08:20:00 bc-3 running matched true recipients 0 open 0 delivered 0 failed 0 ended 0"#]]
    .assert_eq(&shown);
}

const NOTIFYBC: &str = r#"
application: notifybc
events:
  note: { fields: { service: string, data: map } }
subscriptions:
  member: { fields: { service: string, data: map }, filter: notifybc }
notifications:
  message: { content: { templates: { base: { subject: "{{ sub.service }}" } } } }
channels:
  email: { protocol: smtp, options: { host: localhost, from: t@example.org } }
"#;

const SUBSCRIBERS: &str = r#"
    08:00 subscriber ann email=ann@example.org
    08:00 subscriber bob email=bob@example.org
    08:00 subscriber eve email=eve@example.org
    08:00 subscriber joe email=joe@example.org
    08:00 subscribe ann member {"service":"a","data":{"province":"BC","age":"9"}} if notifybc:contains_ci(title,'victoria')
    08:00 subscribe bob member {"service":"a","data":{"province":"AB","age":41}} if notifybc:title > 'T'
    08:00 subscribe eve member {"service":"a"} if notifybc:nope(title)
    08:00 subscribe joe member {"service":"b","data":{}}"#;

#[tokio::test(start_paused = true)]
async fn s7_2_filters_of_notifybc_narrow_the_audience_from_both_sides() {
    let script = r#"
        08:10 broadcast {BASE, "data": {"service": "a", "data": {"title": "North Victoria"}}}
        08:11 broadcast {BASE, "data": {"service": "a", "data": {}}}
        08:12 broadcast {BASE, "data": {"service": "a"}}
        08:13 broadcast {BASE, "data": {"service": "a"}, FILTER "province == 'BC'"}}
        08:14 broadcast {BASE, "data": {"service": "a"}, FILTER "age > `40`"}, "when": "sub.service == 'a'"}
        08:15 broadcast {BASE, "data": {"service": "a"}, FILTER "nope(province)"}}
        08:16 broadcast {BASE, "data": {"service": "a"}, "subscription_filter": {"dialect": "jmespath", "text": "data.province == 'BC' || service == 'b'"}}"#;
    let base = r#""per": "subscription", "event_class": "note", "class": "message""#;
    let filter = r#""subscription_filter": {"dialect": "notifybc", "text":"#;
    let script = format!("{SUBSCRIBERS}{}", script.replace("BASE", base).replace("FILTER", filter));
    check(
        NOTIFYBC,
        &script,
        expect![[r#"
            08:10:00 bc-1 counts 2 of 4
            08:10:00 email joe@example.org n-1-0: b -> delivered
            08:10:00 email ann@example.org n-1-1: a -> delivered
            08:11:00 bc-2 counts 4 of 4
            08:11:00 email joe@example.org n-2-0: b -> delivered
            08:11:00 email ann@example.org n-2-1: a -> delivered
            08:11:00 email bob@example.org n-2-2: a -> delivered
            08:11:00 email eve@example.org n-2-3: a -> delivered
            08:12:00 bc-3 counts 4 of 4
            08:12:00 email joe@example.org n-3-0: b -> delivered
            08:12:00 email ann@example.org n-3-1: a -> delivered
            08:12:00 email bob@example.org n-3-2: a -> delivered
            08:12:00 email eve@example.org n-3-3: a -> delivered
            08:13:00 bc-4 counts 3 of 4
            08:13:00 email joe@example.org n-4-0: b -> delivered
            08:13:00 email ann@example.org n-4-1: a -> delivered
            08:13:00 email eve@example.org n-4-2: a -> delivered
            08:14:00 bc-5 counts 2 of 4
            08:14:00 email bob@example.org n-5-0: a -> delivered
            08:14:00 email eve@example.org n-5-1: a -> delivered
            08:15:00 bc-6 counts 2 of 4
            08:15:00 email joe@example.org n-6-0: b -> delivered
            08:15:00 email eve@example.org n-6-1: a -> delivered
            08:16:00 bc-7 counts 2 of 4
            08:16:00 email joe@example.org n-7-0: b -> delivered
            08:16:00 email ann@example.org n-7-1: a -> delivered"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn problems_of_a_senders_filter_have_their_path() {
    let scenario = Scenario::with(&[NOTIFYBC], PipelineOptions::default()).await;
    let application = "notifybc".parse().expect("a name");
    let compiled = scenario.pipeline().application(&application).expect("it runs");
    let paths = |dialect: &str, text: &str| {
        let draft = serde_json::json!({
            "application": "notifybc", "class": "message",
            "subscription_filter": {"dialect": dialect, "text": text},
        });
        let draft = serde_json::from_value(draft).expect("a draft");
        match scenario.pipeline().compile_broadcast(draft, &compiled) {
            Ok(_) => Vec::new(),
            Err(problems) => problems.into_iter().map(|problem| (problem.path, problem.code)).collect(),
        }
    };
    let text = |code: Code| vec![("subscription_filter.text".to_owned(), code)];
    let dialect = || vec![("subscription_filter.dialect".to_owned(), Code::Unsupported)];
    assert_eq!(paths("notifybc", "anything(at, all)"), []);
    assert_eq!(paths("notifybc", "a =="), text(Code::InvalidSyntax));
    assert_eq!(paths("jmespath", "service == 'a'"), []);
    assert_eq!(paths("jmespath", "srvice == 'a'"), text(Code::UnknownName));
    assert_eq!(paths("cel", "true"), dialect());
    assert_eq!(paths("event_pattern", "{}"), dialect());
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_with_several_subscriptions_receives_one_message() {
    // One subscription per part, so that the subscriptions of a subscriber are in different parts.
    let options = PipelineOptions { run_subscriptions: 1, ..PipelineOptions::default() };
    let mut scenario = Scenario::with(&[SHOP], options).await;
    let script = script(
        r#"08:01 subscribe ann news {"region": "west"}
        08:01 subscribe bob news {"region": "east"}
        08:10 broadcast {TEXT}
        08:11 broadcast {TEXT, "when": "sub.region == 'east'"}
        08:12 broadcast {TEXT, "per": "subscription"}"#,
    );
    let transcript = scenario.run(&script.replace("TEXT", TEXT)).await;
    expect![[r#"
        08:10:00 bc-1 counts 3 of 5
        08:10:00 email ann@example.org n-1-0: ann -> delivered
        08:10:00 email bob@example.org n-2-0: bob -> delivered
        08:10:00 sms +4366012345 n-3-0: eve -> delivered
        08:11:00 bc-2 counts 3 of 5
        08:11:00 email ann@example.org n-4-0: ann -> delivered
        08:11:00 email bob@example.org n-6-0: bob -> delivered
        08:11:00 sms +4366012345 n-5-0: eve -> delivered
        08:12:00 bc-3 counts 5 of 5
        08:12:00 email ann@example.org n-7-0: ann -> delivered
        08:12:00 email bob@example.org n-8-0: bob -> delivered
        08:12:00 email ann@example.org n-10-0: ann -> delivered
        08:12:00 email bob@example.org n-11-0: bob -> delivered
        08:12:00 sms +4366012345 n-9-0: eve -> delivered"#]]
    .assert_eq(&transcript);
}

#[tokio::test(start_paused = true)]
async fn a_broadcast_starts_at_its_time_and_later_subscriptions_are_not_in_it() {
    let script = script(
        r#"08:10 broadcast {TEXT, "starts_at": "2026-03-01T09:30:00Z"}
        08:11 show bc-1
        09:00 subscriber ida email=ida@example.org
        09:00 subscribe ida news {"region": "east"}
        09:01 crash
        10:00 subscriber kim email=kim@example.org
        10:00 subscribe kim news {"region": "east"}
        10:01 show bc-1"#,
    );
    check(
        SHOP,
        &script.replace("TEXT", TEXT),
        expect![[r#"
            08:10:00 bc-1 counts 3 of 3
            08:11:00 bc-1 scheduled matched false recipients 0 open 0 delivered 0 failed 0 ended 0
            09:01:00 crash
            09:30:00 email ann@example.org n-1-0: ann -> delivered
            09:30:00 email bob@example.org n-1-1: bob -> delivered
            09:30:00 email ida@example.org n-1-2: ida -> delivered
            09:30:00 sms +4366012345 n-2-0: eve -> delivered
            10:01:00 bc-1 running matched true recipients 4 open 0 delivered 4 failed 0 ended 0"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_broadcast_ends_also_work_that_was_made() {
    let script = script(
        r#"08:05 bob@example.org defers
        08:10 broadcast {TEXT}
        08:10:30 cancel bc-1
        08:11 show bc-1
        08:12 cancel bc-1
        08:12 resume bc-1
        08:13 broadcast {TEXT, "starts_at": "2026-03-01T09:30:00Z"}
        08:14 cancel bc-2
        08:15 crash
        10:00 show bc-2
        10:00 attempts"#,
    );
    check(
        SHOP,
        &script.replace("TEXT", TEXT),
        expect![[r#"
            08:10:00 bc-1 counts 3 of 3
            08:10:00 email ann@example.org n-1-0: ann -> delivered
            08:10:00 email bob@example.org n-1-1: bob -> deferred
            08:10:00 sms +4366012345 n-2-0: eve -> delivered
            08:10:30 bc-1 cancelled
            08:11:00 bc-1 cancelled matched true recipients 3 open 0 delivered 2 failed 0 ended 1
            08:12:00 bc-1 cancelled
            08:12:00 bc-1 cancelled
            08:13:00 bc-2 counts 3 of 3
            08:14:00 bc-2 cancelled
            08:15:00 crash
            10:00:00 bc-2 cancelled matched false recipients 0 open 0 delivered 0 failed 0 ended 0
            10:00:00 n-2-0 attempt 1 08:10:00 delivered: ok
            10:00:00 n-1-0 attempt 1 08:10:00 delivered: ok
            10:00:00 n-1-1 attempt 1 08:10:00 deferred: not now
            10:00:00 n-1-1 attempt 2 08:10:30 ended: the broadcast was cancelled"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_paused_broadcast_waits_and_continues() {
    let script = script(
        r#"08:05 bob@example.org defers
        08:10 broadcast {TEXT}
        08:10:30 pause bc-1
        08:11 bob@example.org delivers
        +1d08:00 show bc-1
        +1d08:00 crash
        +1d09:00 show bc-1
        +1d10:00 resume bc-1
        +1d10:01 show bc-1
        +1d10:02 broadcast {TEXT, "starts_at": "2026-03-02T11:00:00Z"}
        +1d10:03 pause bc-2
        +1d12:00 resume bc-2"#,
    );
    check(
        SHOP,
        &script.replace("TEXT", TEXT),
        expect![[r#"
            08:10:00 bc-1 counts 3 of 3
            08:10:00 email ann@example.org n-1-0: ann -> delivered
            08:10:00 email bob@example.org n-1-1: bob -> deferred
            08:10:00 sms +4366012345 n-2-0: eve -> delivered
            08:10:30 bc-1 paused
            +1d 08:00:00 bc-1 paused matched true recipients 3 open 1 delivered 2 failed 0 ended 0
            +1d 08:00:00 crash
            +1d 09:00:00 bc-1 paused matched true recipients 3 open 1 delivered 2 failed 0 ended 0
            +1d 10:00:00 bc-1 running
            +1d 10:00:00 email bob@example.org n-1-1: bob -> delivered
            +1d 10:01:00 bc-1 running matched true recipients 3 open 0 delivered 3 failed 0 ended 0
            +1d 10:02:00 bc-2 counts 3 of 3
            +1d 10:03:00 bc-2 paused
            +1d 12:00:00 bc-2 scheduled
            +1d 12:00:00 email ann@example.org n-3-0: ann -> delivered
            +1d 12:00:00 email bob@example.org n-3-1: bob -> delivered
            +1d 12:00:00 sms +4366012345 n-4-0: eve -> delivered"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_after_the_expiry() {
    let script = script(
        r#"08:05 bob@example.org defers
        08:10 broadcast {TEXT, "expires_at": "2026-03-01T08:12:00Z"}
        08:10 broadcast {TEXT, "expires_at": "2026-03-01T09:00:00Z", "starts_at": "2026-03-01T08:50:00Z"}
        08:40 down 30
        12:00 show bc-1
        12:00 show bc-2"#,
    );
    check(
        SHOP,
        &script.replace("TEXT", TEXT),
        expect![[r#"
            08:10:00 bc-1 counts 3 of 3
            08:10:00 bc-2 counts 3 of 3
            08:10:00 email ann@example.org n-1-0: ann -> delivered
            08:10:00 email bob@example.org n-1-1: bob -> deferred
            08:10:00 sms +4366012345 n-2-0: eve -> delivered
            08:11:03 email bob@example.org n-1-1: bob -> deferred
            08:40:00 crash
            12:00:00 bc-1 running matched true recipients 3 open 0 delivered 2 failed 1 ended 0
            12:00:00 bc-2 running matched true recipients 0 open 0 delivered 0 failed 0 ended 0"#]],
    )
    .await;
}

/// Every crash at every write: each recipient is reached, and repetitions carry the id of the first message.
#[tokio::test(start_paused = true)]
async fn a_broadcast_survives_a_crash_at_each_write() {
    let options = PipelineOptions { run_subscriptions: 2, upkeep_seconds: 900, ..PipelineOptions::default() };
    let script = script("08:10 broadcast {TEXT}\n08:20 show bc-1").replace("TEXT", TEXT);
    let mut crashes = 0;
    for write in 1..40 {
        for moment in [CrashPoint::BeforeWrite, CrashPoint::AfterWrite] {
            let mut scenario = Scenario::with(&[SHOP], options.clone()).await;
            scenario.crash_at(write, moment);
            let transcript = scenario.run_and_wait(&script, Duration::from_secs(3_600)).await;
            crashes += usize::from(scenario.has_crashed());
            for id in ["ann@example.org", "bob@example.org", "+4366012345"] {
                assert!(transcript.contains(id), "{id} at {write} {moment:?}: {transcript}");
            }
            assert_eq!(scenario.messages(), 3, "at {write} {moment:?}: {transcript}");
            let end = "recipients 3 open 0 delivered 3 failed 0 ended 0";
            assert!(transcript.contains(end), "at {write} {moment:?}: {transcript}");
        }
    }
    assert!(crashes >= 10, "{crashes}");
}
