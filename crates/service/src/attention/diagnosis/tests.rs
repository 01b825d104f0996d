//! Problems and causes by figures.

use tocsin_capacity::{
    saturation::{ResourceState, RoleState},
    vectors::Resource,
};

use serde_json::Value as Json;
use tocsin_model::time::Timestamp;
use tocsin_store::journal::Activity;

use super::{super::AttentionObject, *};

/// The problems found, as `kind: cause`.
fn check(figures: Figures, expected: &[&str]) {
    let found: Vec<String> = diagnose(&figures)
        .into_iter()
        .map(|found| match found.cause {
            Some(cause) => format!("{}: {cause}", found.what),
            None => found.what.to_owned(),
        })
        .collect();
    assert_eq!(found, expected);
}

fn timed(timings: &[(Timing, u64)]) -> Activity {
    let mut activity = Activity::default();
    for (timing, millis) in timings {
        activity.record(*timing, Duration::from_millis(*millis), 100);
    }
    activity
}

#[test]
fn nothing_needs_attention_when_all_is_well() {
    check(Figures::default(), &[]);
    let well = timed(&[(Timing::Pickup, 3), (Timing::Generation, 8), (Timing::Wait, 20), (Timing::Answer, 300)]);
    check(Figures { lately: well, shards: 1, cores: 8, ..Figures::default() }, &[]);
}

#[test]
fn each_problem_and_cause_has_a_code_and_its_figures() {
    let words = |list: &[(&str, &str)]| list.iter().map(|(word, _)| (*word).to_owned()).collect::<Vec<_>>();
    let kinds = words(KINDS);
    let figures = Figures {
        suspended: 3,
        stopped_rules: vec!["stock/near".to_owned()],
        undefined_channels: [("stock/pager".to_owned(), 2)].into(),
        endpoints_failing: 1,
        keys_expiring: vec![("k1 (loader)".to_owned(), Timestamp(0))],
        destinations_paused: vec![("stock/hook".to_owned(), 2)],
        ..timed_figures(&[(Timing::Pickup, 8_000), (Timing::Wait, 9_000)])
    };
    let found = diagnose(&figures);
    for item in &found {
        assert!(kinds.contains(&item.what.to_owned()), "{}", item.what);
        assert_eq!(item.cause.is_some(), item.cause_code.is_some(), "{}", item.what);
    }
    let of = |what: &str| found.iter().find(|item| item.what == what).expect("found");
    let stopped = of("stopped-rules");
    assert_eq!((stopped.code().as_str(), &stopped.parameters["count"]), ("stopped_rules", &Json::from(1)));
    let rule = AttentionObject { kind: "rule", id: "near".to_owned(), application: Some("stock".to_owned()) };
    assert_eq!(stopped.object, Some(rule));
    let undefined = of("undefined-channel");
    assert_eq!(undefined.text, "2 notifications wait for devices on `stock/pager`, which is not defined");
    assert_eq!(undefined.object.as_ref().map(|object| object.id.as_str()), Some("pager"));
    assert_eq!(of("failing-endpoints").text, "1 endpoint of a device fails");
    let key = of("expiring-key");
    assert_eq!(key.text, "the API key `k1 (loader)` expires at 1970-01-01T00:00:00Z");
    assert_eq!(key.object.as_ref().map(|object| (object.kind, object.id.as_str())), Some(("key", "k1")));
    assert_eq!(of("slow-pickup").cause_code, Some("busy_matcher"));
}

#[test]
fn each_slow_part_is_reported_with_its_cause() {
    let slow =
        |timings: &[(Timing, u64)]| Figures { lately: timed(timings), shards: 4, cores: 4, ..Figures::default() };
    let wait = slow(&[(Timing::Wait, 9_000), (Timing::Answer, 3_000)]);
    check(wait, &["slow-distribution: a channel cannot keep up: its receiver is slow or defers messages"]);
    let format = slow(&[(Timing::Wait, 9_000), (Timing::Answer, 3)]);
    check(
        format,
        &[
            "slow-distribution: the receivers are fast: formatting, or the limit of notifications in flight, is the bottleneck",
        ],
    );
    // Time of a slow rule is not counted for templates.
    let matching =
        slow(&[(Timing::Pickup, 10), (Timing::Generation, 11_300), (Timing::Wait, 11_400), (Timing::Answer, 3)]);
    check(
        matching,
        &[
            "slow-generation: a rule is expensive",
            "slow-distribution: rules take long, and their notifications wait for the rest of the quantum",
        ],
    );
    let rule = slow(&[(Timing::Pickup, 10), (Timing::Generation, 8_000)]);
    check(rule.clone(), &["slow-generation: a rule is expensive"]);
    check(Figures { shards: 1, ..rule }, &["slow-generation: the cores of the machine are not used"]);
    let busy = slow(&[(Timing::Pickup, 8_000)]);
    check(busy.clone(), &["slow-pickup: the matcher is busy with earlier batches"]);
    let disk = Figures { journal_probe: Duration::from_millis(80), ..busy.clone() };
    check(disk, &["slow-pickup: the disk of the journal is slow, and every acceptance waits for it"]);
    let off = Figures { switches: vec!["role:match is paused by ann".to_owned()], ..busy };
    check(off, &["slow-pickup: matching is switched off", "switched-off"]);
    let records = Figures { records_probe: Duration::from_millis(70), ..Figures::default() };
    check(records, &["slow-records: the disk of the records is slow"]);
}

#[test]
fn a_store_that_cannot_be_written_needs_attention_now() {
    let reason = "the journal: there is no room: the disk is full".to_owned();
    let full = Figures { unwritable: vec![reason], free_bytes: Some((0, 1 << 20)), ..Figures::default() };
    let found = diagnose(&full);
    let kinds: Vec<_> = found.iter().map(|found| (found.what, found.urgency)).collect();
    assert_eq!(kinds, [("disk-space", Urgency::Now), ("unwritable-store", Urgency::Now)]);
    assert_eq!(found[1].text, "cannot be written: the journal: there is no room: the disk is full");
    let spool = Figures { unreadable: vec!["the spool: gone".to_owned()], ..Figures::default() };
    let found = diagnose(&spool);
    assert_eq!(
        (found.len(), found[0].what, &*found[0].text),
        (1, "unreadable-store", "cannot be read: the spool: gone")
    );
}

#[test]
fn a_definition_that_could_not_be_started_needs_attention_now() {
    let reason = "the application `shop`: needs the environment variable `PASSWORD`, which is not set".to_owned();
    let found = diagnose(&Figures { not_running: vec![reason.clone()], ..Figures::default() });
    assert_eq!((found.len(), found[0].what, found[0].urgency), (1, "not-running", Urgency::Now));
    assert_eq!(found[0].text, format!("does not run: {reason}"));
}

#[test]
fn b1_a_destination_that_is_not_served_needs_attention_now() {
    let stalled = Figures { destinations_stalled: vec![("shop/hook".to_owned(), 1)], ..Figures::default() };
    let found = diagnose(&stalled);
    assert_eq!((found[0].what, found[0].urgency), ("stalled-destinations", Urgency::Now));
    assert!(found[0].text.ends_with("1 of shop/hook"), "{}", found[0].text);
}

#[test]
fn a_nearly_full_node_is_reported_with_its_largest_consumer() {
    let resource = |used, full_in_seconds| ResourceState {
        resource: Resource::Processor,
        used,
        by_vectors: None,
        headroom: Some(1.0 / used),
        full_in_seconds,
    };
    let role = |headroom| RoleState {
        role: "deliver".to_owned(),
        headroom: Some(headroom),
        first: Some("processor".to_owned()),
        processor: 0.4,
        per_second: Default::default(),
    };
    let texts = |resources, roles| {
        let state = Saturation { seconds: 60.0, has_vectors: true, resources, roles };
        let found = diagnose(&Figures { saturation: state, ..Figures::default() });
        found.into_iter().map(|found| found.text).collect::<Vec<_>>().join("; ")
    };
    assert_eq!(texts(vec![resource(0.5, None)], vec![role(2.0)]), "");
    assert_eq!(texts(vec![resource(0.93, None)], vec![role(1.0)]), "93 % of the processor of this node is used");
    assert_eq!(
        texts(vec![resource(0.5, None)], vec![role(1.05)]),
        "the load of the role `deliver` can grow by the factor 1.05, then `processor` is exhausted"
    );
    assert_eq!(
        texts(vec![resource(0.5, Some(7_205.0))], vec![role(2.0)]),
        "if the load keeps growing as in the last hour, the processor of this node is full in 2h"
    );
    let full = Saturation { resources: vec![resource(0.95, None)], roles: vec![role(1.0)], ..Saturation::default() };
    let cause = "saturation: the role `deliver` uses 40 % of the processors by its costs";
    check(Figures { saturation: full, ..Figures::default() }, &[cause]);
}

#[test]
fn the_verb_agrees_with_the_number() {
    let figures = |count: u64| {
        let destinations = vec![("shop/hook".to_owned(), count)];
        Figures {
            event_batches_waiting: count,
            oldest_event: SLOW,
            notifications_waiting: count,
            suspended: count,
            suspended_messages: count,
            failed_batches: count,
            firings_missed: count,
            stopped_rules: vec!["shop/near".to_owned(); count as usize],
            destinations_paused: destinations.clone(),
            destinations_stalled: destinations,
            ..timed_figures(&[(Timing::Wait, 9_000)])
        }
    };
    let texts = |count| diagnose(&figures(count)).into_iter().map(|found| found.text).collect::<Vec<_>>();
    assert_eq!(
        texts(1),
        [
            "events take 0s to be accepted and 0s to be picked up (95 of 100); 1 batch waits, the oldest for 5s",
            "1 event batch could not be matched",
            "1 notification waits for an operator",
            "1 exchange message waits for an operator",
            "1 rule is stopped: shop/near",
            "messages wait for 1 open destination without being sent: 1 of shop/hook",
            "notifications wait 9s400ms before they are sent (95 of 100), the receivers answer in 0s; 1 notification waits",
            "rules did not fire for 1 event batch",
            "1 destination is paused after failures: 1 of shop/hook",
        ]
    );
    assert_eq!(
        texts(2),
        [
            "events take 0s to be accepted and 0s to be picked up (95 of 100); 2 batches wait, the oldest for 5s",
            "2 event batches could not be matched",
            "2 notifications wait for an operator",
            "2 exchange messages wait for an operator",
            "2 rules are stopped: shop/near, shop/near",
            "messages wait for 2 open destinations without being sent: 2 of shop/hook",
            "notifications wait 9s400ms before they are sent (95 of 100), the receivers answer in 0s; 2 notifications wait",
            "rules did not fire for 2 event batches",
            "2 destinations are paused after failures: 2 of shop/hook",
        ]
    );
    let many = texts(SUSPENDED_MESSAGES_MAX).join("\n");
    assert!(many.contains("at least 100000 exchange messages wait for an operator"), "{many}");
}

fn timed_figures(timings: &[(Timing, u64)]) -> Figures {
    Figures { lately: timed(timings), shards: 1, cores: 1, ..Figures::default() }
}

#[test]
fn refused_senders_and_complaints_are_reported_with_the_newest_text() {
    let of = |count: u64| (count, "554 5.7.1 blocked".to_owned());
    check(Figures { blocked: of(BLOCKED_MIN - 1), ..Figures::default() }, &[]);
    check(
        Figures { blocked: of(BLOCKED_MIN), complaints: of(1), ..Figures::default() },
        &["blocked-mail", "complaints"],
    );
    let figures = Figures { complaints: of(2), ..Figures::default() };
    let expected = "2 recipients reported messages as spam in 24h; the newest: 554 5.7.1 blocked";
    assert_eq!(diagnose(&figures)[0].text, expected);
}

#[test]
fn a_provider_that_holds_mail_back_is_named_with_its_reply() {
    let provider = |paused_for, interval| HeldBackMail {
        provider: "google".to_owned(),
        lasted: Duration::from_secs(720),
        paused_for,
        interval,
        waiting: 3,
        said: "421 4.7.28 unusual rate".to_owned(),
    };
    let found =
        |provider| diagnose(&Figures { held_back: vec![("shop/mail".to_owned(), provider)], ..Figures::default() });
    let paused = found(provider(Some(Duration::from_secs(60)), None));
    assert_eq!((paused[0].what, paused[0].urgency), ("mail-held-back", Urgency::Soon));
    let text = "google has held mail of shop/mail back for 12m; no mail is sent to it for 1m; it said: 421 4.7.28 unusual \
                rate";
    assert_eq!(paused[0].text, text);
    let slower = found(provider(None, Some(Duration::from_millis(500))));
    assert_eq!(slower[0].urgency, Urgency::Note);
    assert!(slower[0].text.contains("; it gets one mail in 500ms; "), "{}", slower[0].text);
}

#[test]
fn lost_notifications_come_first() {
    let figures = Figures {
        suspended: 3,
        stopped_rules: vec!["stock/near".to_owned()],
        firings_missed: 9,
        switches: vec!["role:sources is paused by ann".to_owned()],
        destinations_paused: vec![("stock/hook".to_owned(), 2)],
        free_bytes: Some((1 << 30, 256 << 20)),
        ..Figures::default()
    };
    check(figures, &["suspended", "stopped-rules", "missed-firings", "paused-destinations", "switched-off"]);
    check(Figures { free_bytes: Some((1, 2)), ..Figures::default() }, &["disk-space"]);
}
