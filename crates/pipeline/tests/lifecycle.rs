//! Lifecycle events: scripts on a simulated clock that begins at midnight of 2026-03-01 UTC.

use std::time::Duration;

use expect_test::expect;
use tocsin_model::{
    id::Name,
    lifecycle::{ChangeOrigin, ChangeWay},
};
use tocsin_store::{
    journal::{Delays, OpenWork},
    records::{LifecycleStore, NewSubscription, SubscriptionStore},
};
use tocsin_testkit::{CrashPoint, Scenario, check};

/// A welcome at once and tips three days after, a note of changes, and a farewell.
const CLUB: &str = r#"
application: club
events:
  joined: { on: subscription.confirmed, of: news }
  changed: { on: subscription.changed }
  left: { on: subscription.ended }
  issue: { fields: { number: integer } }
subscriptions:
  news: { fields: { topic: { type: string, default: all } } }
  jobs: { fields: { city: string } }
notifications:
  welcome: { fields: { topic: string, who: string }, content: { templates: { base: { subject: "welcome {{ who }} to {{ topic }}" } } } }
  tips: { content: { templates: { base: { subject: "three tips" } } } }
  note: { fields: { was: string, now: string }, content: { templates: { base: { subject: "{{ was }} is now {{ now }}" } } } }
  farewell: { fields: { topic: string }, content: { templates: { base: { subject: "no more {{ topic }}" } } } }
  latest: { fields: { number: integer }, content: { templates: { base: { subject: "issue {{ number }}" } } } }
rules:
  greet: { on: joined, subscription: news, notify: welcome, with: { topic: sub.topic, who: event.subscriber_id } }
  help: { on: joined, subscription: news, notify: tips, after: 72h, cancel_on: subscription.ended }
  noted: { on: changed, subscription: news, notify: note, when: event.before != null, with: { was: string(event.before.topic), now: sub.topic } }
  goodbye: { on: left, subscription: news, notify: farewell, with: { topic: sub.topic } }
  publish: { on: issue, subscription: news, notify: latest }
channels:
  email: { protocol: smtp, options: { host: localhost, from: t@example.org }, retry: [] }
"#;

#[tokio::test(start_paused = true)]
async fn a_welcome_series_reaches_exactly_the_subscription_of_its_event() {
    check(
        CLUB,
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscriber bob email=bob@example.org
           08:00 subscribe alice news {"topic": "cats"}
           08:05 subscribe bob news {}
           08:06 subscribe bob jobs {"city": "Graz"}
           08:30 change alice {"topic": "dogs"}
           10:00 unsubscribe bob
           10:30 event issue {"number": 2}
           10:40 delayed"#,
        expect![[r#"
            08:00:00 email alice@example.org n-1-0: welcome alice to cats -> delivered
            08:05:00 email bob@example.org n-2-0: welcome bob to all -> delivered
            08:30:00 email alice@example.org n-3-0: cats is now dogs -> delivered
            10:00:00 email bob@example.org n-4-0: no more all -> delivered
            10:30:00 email alice@example.org n-5-0: issue 2 -> delivered
            10:40:00 delayed 1: help s-1 e-1-0 due +3d 08:00:00
            +3d 08:00:00 email alice@example.org n-6-0: three tips -> delivered"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_removed_subscriber_receives_nothing_more() {
    check(
        CLUB,
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscribe alice news {}
           09:00 delete alice
           09:30 delayed
           09:30 report"#,
        expect![[r#"
            08:00:00 email alice@example.org n-1-0: welcome alice to all -> delivered
            09:30:00 events 2 notifications 1 open 0 suspended 0"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn changes_during_an_outage_make_their_events_after_it() {
    // The changes are made by another process of the operator, such as an import, while the pipeline is down.
    let mut scenario = Scenario::new(&[CLUB]).await;
    scenario.run_and_wait("08:00 subscriber alice email=alice@example.org", Duration::ZERO).await;
    let new = |topic: &str| NewSubscription {
        application: name("club"),
        class: name("news"),
        subscriber: "alice".parse().expect("an id"),
        key: None,
        device: None,
        enabled: Some(true),
        values: format!(r#"{{"topic":"{topic}"}}"#).into(),
        terms: Default::default(),
    };
    scenario.pipeline().abort().await;
    let many = (0..2_500).map(|at| new(&format!("t{at}"))).collect();
    let by = ChangeOrigin::by(ChangeWay::Import, None);
    let records = scenario.records().clone();
    records.put_subscriptions_as(many, by.clone(), Default::default()).await.expect("stored");
    let quiet = ChangeOrigin { quiet: true, ..by };
    records.put_subscriptions_as(vec![new("quiet")], quiet, Default::default()).await.expect("stored");
    let transcript = scenario.run_and_wait("08:10 crash", Duration::from_secs(3_600)).await;
    assert_eq!(transcript.matches("welcome alice to t").count(), 2_500);
    assert_eq!(transcript.matches("quiet").count(), 0);
    let left = records.lifecycle_entries(&name("club"), 0, 10_000).await.expect("listed");
    assert!(!left.is_empty(), "entries are kept for a time");
    scenario.run_and_wait("10:00 subscriber bob email=bob@example.org", Duration::from_secs(7_200)).await;
    let left = records.lifecycle_entries(&name("club"), 0, 10_000).await.expect("listed");
    assert!(left.is_empty(), "{} entries", left.len());
    assert_eq!(scenario.journal().delayed_count(&name("club")).await.expect("counted"), 2_500);
}

#[tokio::test(start_paused = true)]
async fn a_class_that_is_bound_later_begins_with_the_changes_after_that() {
    let before = CLUB.replace(
        "  joined: { on: subscription.confirmed, of: news }\n",
        "  joined: { fields: { subscriber_id: string } }\n",
    );
    let before = before.replace(
        "  help: { on: joined, subscription: news, notify: tips, after: 72h, cancel_on: subscription.ended }\n",
        "",
    );
    let mut scenario = Scenario::new(&[&before, CLUB]).await;
    let transcript = scenario
        .run_and_wait(
            r#"08:00 subscriber alice email=alice@example.org
               08:00 subscribe alice news {"topic": "one"}
               08:10 apply
               08:20 subscribe alice news {"topic": "two"}"#,
            Duration::from_secs(3_600),
        )
        .await;
    expect!["08:20:00 email alice@example.org n-1-0: welcome alice to two -> delivered"].assert_eq(&transcript);
}

#[tokio::test(start_paused = true)]
async fn a_stopped_lifecycle_rule_is_listed_and_can_be_fired_again() {
    check(
        CLUB,
        r#"08:00 subscriber alice email=alice@example.org
           08:00 stop greet
           08:10 subscribe alice news {}
           08:20 let greet
           08:20 firings
           08:30 refire
           08:40 firings"#,
        expect![[r#"
            08:20:00 greet was stopped: true
            08:20:00 greet skipped eb-1..eb-1 (1): it is stopped: maintenance
            08:30:00 email alice@example.org n-1-0: welcome alice to all -> delivered
            08:30:00 greet fired for 1 batches
            +3d 08:10:00 email alice@example.org n-2-0: three tips -> delivered"#]],
    )
    .await;
}

/// A crash at each write of the journal: each change has its event exactly once.
#[tokio::test(start_paused = true)]
async fn a_crash_between_a_change_and_its_event_neither_loses_nor_repeats_it() {
    let acts = r#"
        08:00 subscriber alice email=alice@example.org
        08:00 subscriber bob email=bob@example.org
        08:01 subscribe alice news {"topic": "cats"}
        08:02 subscribe bob news {"topic": "dogs"}
        08:03 unsubscribe bob"#;
    for moment in [CrashPoint::BeforeWrite, CrashPoint::AfterWrite] {
        for write in 1.. {
            let mut scenario = Scenario::new(&[&CLUB.replace("after: 72h", "after: 3h")]).await;
            scenario.crash_at(write, moment);
            let transcript = scenario.run_and_wait(acts, Duration::from_secs(5 * 3_600)).await;
            assert_eq!(scenario.messages(), 4, "a crash at write {write}, {moment:?}:\n{transcript}");
            for text in ["welcome alice to cats", "welcome bob to dogs", "no more dogs", "three tips"] {
                assert!(transcript.contains(text), "{text}: a crash at write {write}, {moment:?}:\n{transcript}");
            }
            assert_eq!(scenario.journal().backlog().notifications, 0);
            if !scenario.has_crashed() {
                break;
            }
        }
    }
}

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

#[tokio::test(start_paused = true)]
async fn while_a_class_is_switched_off_its_changes_wait_and_those_of_others_do_not() {
    check(
        CLUB,
        r#"08:00 subscriber alice email=alice@example.org
           08:00 switch off event-class:club/joined disabled
           08:10 subscribe alice news {"topic": "cats"}
           08:20 change alice {"topic": "dogs"}
           08:30 switch on event-class:club/joined
           09:00 unsubscribe alice"#,
        expect![[r#"
            08:20:00 email alice@example.org n-1-0: cats is now dogs -> delivered
            08:30:00 email alice@example.org n-2-0: welcome alice to dogs -> delivered
            09:00:00 email alice@example.org n-3-0: no more dogs -> delivered"#]],
    )
    .await;
}

/// A security notice to a person whose devices change, and a note to operators.
const ACCOUNTS: &str = r#"
application: accounts
events:
  added: { on: device.added }
  gone: { on: subscriber.removed }
subscriptions: { account: {}, operations: {} }
notifications:
  notice: { fields: { address: string }, content: { templates: { base: { subject: "new address {{ address }}" } } } }
  left: { fields: { who: string }, content: { templates: { base: { subject: "{{ who }} has left" } } } }
rules:
  warn: { on: added, subscription: account, when: event.subscriber_id == subscriber.id, notify: notice }
  report: { on: gone, subscription: operations, notify: left, with: { who: event.subscriber_id } }
channels:
  email: { protocol: smtp, options: { host: localhost, from: t@example.org }, retry: [] }
"#;

#[tokio::test(start_paused = true)]
async fn changes_of_subscribers_and_devices_are_matched_like_other_events() {
    check(
        ACCOUNTS,
        r#"07:00 subscriber alice email=alice@example.org
           07:00 subscriber bob email=bob@example.org
           08:00 subscribe alice account {}
           08:00 subscribe bob account {}
           08:00 subscribe bob operations {}
           09:00 subscriber alice email=new@example.org
           10:00 delete alice"#,
        expect![[r#"
            09:00:00 email new@example.org n-1-0: new address new@example.org -> delivered
            10:00:00 email bob@example.org n-2-0: alice has left -> delivered"#]],
    )
    .await;
}
