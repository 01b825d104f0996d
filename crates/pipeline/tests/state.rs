//! Scenarios of stateful rules: no notification is repeated, across crashes.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use expect_test::expect;
use tocsin_store::journal::RuleStore;
use tocsin_testkit::{CrashPoint, Scenario, check};

const PRICES: &str = r#"
application: prices
events:
  price: { fields: { symbol: string, price: number, rating: string } }
subscriptions:
  limit: { fields: { symbol: string, limit: number } }
notifications:
  alert:
    fields: { symbol: string, price: number }
    content: { templates: { base: { subject: "{{ symbol }} {{ price }}" } } }
rules:
  above:
    on: price
    subscription: limit
    when: event.symbol == sub.symbol && event.price >= sub.limit
    notify: alert
    STATE
channels:
  email: { protocol: smtp, options: { host: localhost, from: t@example.org } }
"#;

fn prices(state: &str) -> String {
    PRICES.replace("STATE", state)
}

#[tokio::test(start_paused = true)]
async fn a_cooldown_lets_one_through_in_a_day() {
    check(
        &prices("cooldown: 24h"),
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscriber bob email=bob@example.org
           08:00 subscribe alice limit {"symbol": "A", "limit": 10}
           09:00 event price {"symbol": "A", "price": 11} {"symbol": "A", "price": 12}
           10:00 subscribe bob limit {"symbol": "A", "limit": 10}
           11:00 event price {"symbol": "A", "price": 13}
           12:00 crash
           13:00 event price {"symbol": "A", "price": 14}
           +1d08:59:59 event price {"symbol": "A", "price": 15}
           +1d09:00 event price {"symbol": "A", "price": 16}
           +1d10:00 disable alice
           +1d10:15 event price {"symbol": "A", "price": 16.5}
           +1d10:30 enable alice
           +1d11:00 event price {"symbol": "A", "price": 17}"#,
        expect![[r#"
            09:00:00 email alice@example.org n-1-0: A 11.0 -> delivered
            11:00:00 email bob@example.org n-2-0: A 13.0 -> delivered
            12:00:00 crash
            +1d 09:00:00 email alice@example.org n-3-0: A 16.0 -> delivered
            +1d 11:00:00 email bob@example.org n-4-0: A 17.0 -> delivered
            +1d 11:00:00 email alice@example.org n-4-1: A 17.0 -> delivered"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_notified_subscriber_waits_until_the_price_has_fallen() {
    check(
        &prices("rearm: event.symbol == sub.symbol && event.price < sub.limit * 0.95"),
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscribe alice limit {"symbol": "A", "limit": 100}
           09:00 event price {"symbol": "A", "price": 101} {"symbol": "A", "price": 99} {"symbol": "A", "price": 102}
           10:00 event price {"symbol": "B", "price": 1} {"symbol": "A", "price": 103}
           11:00 event price {"symbol": "A", "price": 94}
           12:00 drain
           13:00 event price {"symbol": "A", "price": 104} {"symbol": "A", "price": 105}"#,
        expect![[r#"
            09:00:00 email alice@example.org n-1-0: A 101.0 -> delivered
            12:00:00 drained: true
            13:00:00 email alice@example.org n-2-0: A 104.0 -> delivered"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn only_changes_are_notified_per_key() {
    check(
        &prices("changed: event.rating\n    per: event.symbol").replace("event.symbol == sub.symbol && ", ""),
        r#"08:00 subscriber alice email=alice@example.org
           08:00 subscribe alice limit {"limit": 0}
           09:00 event price {"symbol": "A", "price": 1, "rating": "buy"} {"symbol": "B", "price": 2, "rating": "buy"}
           10:00 event price {"symbol": "A", "price": 3, "rating": "buy"} {"symbol": "B", "price": 4, "rating": "sell"}
           11:00 event price {"symbol": "A", "price": 5} {"symbol": "A", "price": 6}
           12:00 event price {"symbol": "A", "price": 7, "rating": "buy"}"#,
        expect![[r#"
            09:00:00 email alice@example.org n-1-0: A 1.0 -> delivered
            09:00:00 email alice@example.org n-1-1: B 2.0 -> delivered
            10:00:00 email alice@example.org n-2-0: B 4.0 -> delivered
            11:00:00 email alice@example.org n-3-0: A 5.0 -> delivered
            12:00:00 email alice@example.org n-4-0: A 7.0 -> delivered"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_new_version_keeps_the_state_of_unchanged_rules() {
    let (old, new) = (prices("cooldown: 24h"), prices("cooldown: 2h"));
    let without = prices("timeout: 9s");
    let mut scenario = Scenario::new(&[&old, &new, &without]).await;
    let seen = scenario
        .run(
            r#"08:00 subscriber alice email=alice@example.org
               08:00 subscribe alice limit {"symbol": "A", "limit": 10}
               09:00 event price {"symbol": "A", "price": 11}
               10:00 apply
               10:30 event price {"symbol": "A", "price": 12}
               11:00 event price {"symbol": "A", "price": 13}
               11:30 apply
               12:00 event price {"symbol": "A", "price": 14}"#,
        )
        .await;
    expect![[r#"
        09:00:00 email alice@example.org n-1-0: A 11.0 -> delivered
        11:00:00 email alice@example.org n-2-0: A 13.0 -> delivered
        12:00:00 email alice@example.org n-3-0: A 14.0 -> delivered"#]]
    .assert_eq(&seen);
    // State that no shard holds any more is removed from the journal.
    let application = "prices".parse().expect("a name");
    assert_eq!(scenario.journal().state_pages(&application, None, 9).await.expect("read"), []);
}

const STORY: &str = r#"
    08:00 subscriber alice email=alice@example.org
    08:00 subscriber bob email=bob@example.org
    08:00 subscribe alice limit {"symbol": "A", "limit": 10}
    08:00 subscribe bob limit {"symbol": "A", "limit": 20}
    09:00:00 event price {"symbol": "A", "price": 11} {"symbol": "A", "price": 21}
    09:00:01 event price {"symbol": "A", "price": 22}
    09:00:02 event price {"symbol": "A", "price": 12}
    09:10:00 event price {"symbol": "A", "price": 23} {"symbol": "A", "price": 9}
    09:30:00 event price {"symbol": "A", "price": 24} {"symbol": "A", "price": 24}"#;

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_write_does_not_change_the_recipients() {
    let definition = prices("cooldown: 5m\n    rearm: event.symbol == sub.symbol && event.price < sub.limit");
    let expected = BTreeSet::from([
        ("alice@example.org", "A 11.0"),
        ("bob@example.org", "A 21.0"),
        ("bob@example.org", "A 23.0"),
        ("alice@example.org", "A 24.0"),
        ("bob@example.org", "A 24.0"),
    ]);
    for moment in [CrashPoint::BeforeWrite, CrashPoint::AfterWrite] {
        let mut writes = 0;
        loop {
            let mut scenario = Scenario::new(&[&definition]).await;
            scenario.crash_at(writes + 1, moment);
            let seen = scenario.run_and_wait(STORY, Duration::from_secs(3600)).await;
            let mut sent: BTreeMap<(&str, String), BTreeSet<&str>> = BTreeMap::new();
            for line in seen.lines().filter(|line| line.contains("-> delivered")) {
                let words: Vec<&str> = line.split_whitespace().collect();
                sent.entry((words[2], format!("{} {}", words[4], words[5]))).or_default().insert(words[3]);
            }
            let context = format!("{moment:?} write {writes}\n{seen}");
            let found: BTreeSet<(&str, &str)> = sent.keys().map(|(who, what)| (*who, what.as_str())).collect();
            assert_eq!(found, expected, "{context}");
            assert!(sent.values().all(|ids| ids.len() == 1), "sent under several ids: {context}");
            if !scenario.has_crashed() {
                break;
            }
            writes += 1;
        }
        assert!(writes >= 10, "the story has many writes, but the process died at {writes} only");
    }
}
