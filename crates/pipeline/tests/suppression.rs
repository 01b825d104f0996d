//! Scenarios of suppressed addresses.

use expect_test::expect;
use tocsin_testkit::check;

/// Quakes by mail and short message, with options of the notification class.
fn quakes(delivery_policy: &str) -> String {
    let subject = if delivery_policy.contains("digest") { "{{ digest.count }} quakes" } else { "{{ place }}" };
    format!(
        r#"
application: quakes
events:
  quake: {{ fields: {{ place: string }} }}
subscriptions:
  any: {{}}
notifications:
  alert:
    fields: {{ place: string }}
    {delivery_policy}
    content: {{ templates: {{ base: {{ subject: "{subject}" }} }} }}
rules:
  every: {{ on: quake, subscription: any, notify: alert }}
channels:
  email: {{ protocol: smtp, options: {{ host: localhost, from: t@example.org }}, retry: {{ delays: [1m, 1h], jitter: 0% }} }}
  sms: {{ protocol: http, retry: [] }}
"#
    )
}

const PEOPLE: &str = r"08:00 subscriber alice email=Alice@example.org sms=+431
           08:00 subscriber bob email=bob@example.org
           08:00 subscribe alice any
           08:00 subscribe bob any";

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_to_an_address_that_complained() {
    check(
        &quakes(""),
        &format!(
            r#"{PEOPLE}
           08:10 event quake {{"place": "Kobe"}}
           08:20 suppress smtp alice@example.org complaint
           08:30 event quake {{"place": "Lima"}}
           08:31 crash
           08:40 event quake {{"place": "Rome"}}
           08:50 lift smtp alice@example.org
           09:00 event quake {{"place": "Oslo"}}
           09:01 report"#
        ),
        expect![[r#"
            08:10:00 email Alice@example.org n-1-0: Kobe -> delivered
            08:10:00 email bob@example.org n-1-1: Kobe -> delivered
            08:30:00 email bob@example.org n-2-1: Lima -> delivered
            08:31:00 crash
            08:40:00 email bob@example.org n-3-1: Rome -> delivered
            09:00:00 email Alice@example.org n-4-0: Oslo -> delivered
            09:00:00 email bob@example.org n-4-1: Oslo -> delivered
            09:01:00 events 4 notifications 8 open 0 suspended 0"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_retry_is_not_sent_either() {
    check(
        &quakes(""),
        &format!(
            r#"{PEOPLE}
           08:09 Alice@example.org defers
           08:10 event quake {{"place": "Kobe"}}
           08:10:30 suppress smtp alice@example.org hard_bounce
           08:20 report"#
        ),
        expect![[r#"
            08:10:00 email Alice@example.org n-1-0: Kobe -> deferred
            08:10:00 email bob@example.org n-1-1: Kobe -> delivered
            08:20:00 events 1 notifications 2 open 0 suspended 0"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_next_channel_of_the_chain_takes_over_at_once() {
    check(
        &quakes("fallback: [{ channel: sms }]"),
        &format!(
            r#"{PEOPLE}
           08:05 suppress smtp alice@example.org hard_bounce
           08:06 suppress smtp bob@example.org hard_bounce
           08:10 event quake {{"place": "Kobe"}}
           08:20 suppress http +431 manual
           08:30 event quake {{"place": "Lima"}}
           08:31 report"#
        ),
        expect![[r#"
            08:10:00 sms +431 n-1-0: Kobe -> delivered
            08:31:00 events 2 notifications 4 open 0 suspended 0"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_digest_is_not_sent_to_a_subscriber_who_complained_before_it_closes() {
    check(
        &quakes("digest: { window: 10m }"),
        &format!(
            r#"{PEOPLE}
           08:10 event quake {{"place": "Kobe"}}
           08:11 event quake {{"place": "Lima"}}
           08:15 suppress smtp alice@example.org complaint
           08:30 report"#
        ),
        expect![[r#"
            08:20:00 email bob@example.org n-1-1: 2 quakes -> delivered
            08:30:00 events 2 notifications 4 open 0 suspended 0"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_multicast_leaves_them_out() {
    check(
        &quakes("multicast: {}"),
        &format!(
            r#"{PEOPLE}
           08:05 suppress smtp alice@example.org complaint
           08:10 event quake {{"place": "Kobe"}}
           08:11 report"#
        ),
        expect![[r#"
            08:10:00 email bob@example.org n-1-1: Kobe -> delivered
            08:11:00 events 1 notifications 2 open 0 suspended 0"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn critical_notifications_bypass_soft_bounces_only() {
    check(
        &quakes("critical: true"),
        &format!(
            r#"{PEOPLE}
           08:01 suppress smtp alice@example.org soft_bounce
           08:02 suppress smtp alice@example.org soft_bounce
           08:03 suppress smtp alice@example.org soft_bounce
           08:04 suppress smtp alice@example.org soft_bounce
           08:05 suppress smtp alice@example.org soft_bounce
           08:06 suppress smtp bob@example.org manual
           08:07 suppressions
           08:10 event quake {{"place": "Kobe"}}
           08:11 report"#
        ),
        expect![[r#"
            08:07:00 address/smtp/alice@example.org soft_bounce in force true
            08:07:00 address/smtp/bob@example.org manual in force true
            08:10:00 email Alice@example.org n-1-0: Kobe -> delivered
            08:11:00 events 1 notifications 2 open 0 suspended 0"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_address_is_gone_where_it_was_tried_only() {
    check(
        &quakes(""),
        r#"08:00 subscriber alice email=+431 sms=+431
           08:00 subscribe alice any
           08:00 alice prefers {"notifications": {"*": {"prefer": ["sms"]}}}
           08:09 +431 gone
           08:10 event quake {"place": "Kobe"}
           08:15 +431 delivers
           08:20 event quake {"place": "Lima"}"#,
        expect![[r#"
            08:10:00 sms +431 n-1-0: Kobe -> gone
            08:20:00 email +431 n-2-0: Lima -> delivered"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_unknown_mailbox_is_suppressed() {
    check(
        &quakes(""),
        &format!(
            r#"{PEOPLE}
           08:09 Alice@example.org unknown
           08:10 event quake {{"place": "Kobe"}}
           08:20 event quake {{"place": "Lima"}}
           08:21 suppressions
           08:21 report"#
        ),
        expect![[r#"
            08:10:00 email Alice@example.org n-1-0: Kobe -> unknown
            08:10:00 email bob@example.org n-1-1: Kobe -> delivered
            08:20:00 email bob@example.org n-2-1: Lima -> delivered
            08:21:00 address/smtp/alice@example.org hard_bounce in force true 550 5.1.1 no such user
            08:21:00 events 2 notifications 4 open 0 suspended 0"#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_mailbox_that_stays_full_over_all_attempts_counts_as_a_soft_bounce() {
    check(
        &quakes(""),
        &format!(
            r#"{PEOPLE}
           08:09 Alice@example.org full
           08:10 event quake {{"place": "Kobe"}}
           08:30 suppressions
           09:12 suppressions
           09:12 report"#
        ),
        expect![[r#"
            08:10:00 email Alice@example.org n-1-0: Kobe -> full
            08:10:00 email bob@example.org n-1-1: Kobe -> delivered
            08:11:00 email Alice@example.org n-1-0: Kobe -> full
            09:11:00 email Alice@example.org n-1-0: Kobe -> full
            09:12:00 address/smtp/alice@example.org soft_bounce in force false 452 4.2.2 mailbox full
            09:12:00 events 1 notifications 2 open 0 suspended 1"#]],
    )
    .await;
}
