//! Inbox items through the pipeline: crashes make no duplicates, a digest is one item, and expired items are removed.

use std::{collections::BTreeMap, time::Duration};

use tocsin_model::{
    id::SubscriberId,
    inbox::{InboxItemFilter, Item},
    time::Timestamp,
};
use tocsin_store::{
    inbox::{FeedFilter, FeedReader, Inbox},
    records::SubscriberStore,
};
use tocsin_testkit::{CrashPoint, Scenario};

const QUAKES: &str = r#"
application: quakes
events:
  quake: { fields: { place: { type: string, required: true }, magnitude: { type: number, required: true } } }
subscriptions:
  nearby: { fields: { least: { type: number, default: 0 } } }
notifications:
  alert:
    fields: { place: string }
    multicast: { recipient_limit: 50 }
    content: { templates: { base: { subject: "{{ place }}" } } }
  summary:
    fields: { place: string }
    digest: { window: 10m }
    expires_after: 2h
    content: { templates: { base: { subject: "{{ digest.count }} quakes" } } }
rules:
  strong: { on: quake, subscription: nearby, when: event.magnitude >= sub.least, notify: alert }
  weak: { on: quake, subscription: nearby, when: event.magnitude < sub.least, notify: summary }
channels:
  bell: { protocol: inbox, options: { retention: 1d, items_max: 5 }, retry: [10s, 1m] }
"#;

async fn feed(scenario: &Scenario, id: &str, now: Timestamp) -> Vec<Item> {
    let id: SubscriberId = id.parse().expect("an id");
    let found = scenario.records().subscriber(&id).await.expect("records answer").expect("a subscriber");
    let reader = FeedReader { subscriber: found.number, broadcasts: Vec::new() };
    let filter = FeedFilter::of_items(InboxItemFilter::All);
    scenario.inbox().feed(&reader, &filter, None, 100, now).await.expect("a feed")
}

fn subjects(items: &[Item]) -> Vec<&str> {
    items.iter().map(|item| item.content.wording.subject.as_deref().expect("a subject")).collect()
}

/// The day of scenarios, at this hour.
fn at(hour: u32) -> Timestamp {
    format!("2026-03-01T{hour:02}:00:00Z").parse().expect("a time")
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_write_makes_no_second_item() {
    const STORY: &str = r#"
        08:00 subscriber alice bell=a
        08:00 subscriber bob bell=b
        08:00 subscribe alice nearby
        08:00 subscribe bob nearby
        08:30:00 event quake {"magnitude": 6, "place": "one"} {"magnitude": 7, "place": "two"}
        08:40 event quake {"magnitude": 9, "place": "three"}"#;
    for moment in [CrashPoint::BeforeWrite, CrashPoint::AfterWrite] {
        let mut writes = 0;
        loop {
            let mut scenario = Scenario::new(&[QUAKES]).await;
            scenario.crash_at(writes + 1, moment);
            scenario.run_and_wait(STORY, Duration::from_secs(3_600)).await;
            if !scenario.has_crashed() {
                break;
            }
            writes += 1;
            for who in ["alice", "bob"] {
                let items = feed(&scenario, who, at(10)).await;
                let mut times: BTreeMap<&str, u32> = BTreeMap::new();
                subjects(&items).into_iter().for_each(|subject| *times.entry(subject).or_default() += 1);
                let expected = BTreeMap::from([("one", 1), ("three", 1), ("two", 1)]);
                assert_eq!(times, expected, "{who}, {moment:?} write {writes}");
            }
        }
        assert!(writes >= 4, "the process died at {writes} writes only");
    }
}

#[tokio::test(start_paused = true)]
async fn a_digest_is_one_item_and_expired_items_are_removed() {
    let mut scenario = Scenario::new(&[QUAKES]).await;
    let story = r#"
        08:00 subscriber alice bell=a
        08:00 subscribe alice nearby {"least": 5}
        08:30 event quake {"magnitude": 1, "place": "one"}
        08:35 event quake {"magnitude": 2, "place": "two"}
        08:36 event quake {"magnitude": 6, "place": "three"}"#;
    scenario.run_and_wait(story, Duration::from_secs(30 * 60)).await;
    let items = feed(&scenario, "alice", at(9)).await;
    assert_eq!(subjects(&items), ["2 quakes", "three"]);
    assert_eq!(subjects(&feed(&scenario, "alice", at(12)).await), ["three"], "the class says when it is over");
    assert_eq!(scenario.inbox().counts().items, 2, "nobody has looked yet");
    scenario.run_and_wait("", Duration::from_secs(3 * 3_600)).await;
    assert_eq!(scenario.inbox().counts().items, 1);
    scenario.run_and_wait("", Duration::from_secs(24 * 3_600)).await;
    assert_eq!(scenario.inbox().counts().items, 0);
}

#[tokio::test(start_paused = true)]
async fn a_full_feed_loses_its_oldest() {
    let mut scenario = Scenario::new(&[QUAKES]).await;
    let mut story = "08:00 subscriber alice bell=a\n08:00 subscribe alice nearby\n".to_owned();
    for number in 0..8 {
        story.push_str(&format!("08:1{number} event quake {{\"magnitude\": 6, \"place\": \"p{number}\"}}\n"));
    }
    let seen = scenario.run_and_wait(&format!("{story}08:30 report"), Duration::from_secs(60)).await;
    assert!(seen.ends_with("events 8 notifications 8 open 0 suspended 0"), "{seen}");
    assert_eq!(subjects(&feed(&scenario, "alice", at(9)).await), ["p7", "p6", "p5", "p4", "p3"]);
}
