//! Conformance: the change log.

use super::{super::changes::TRIMMED_CHANGES_MIN, *};

#[test]
fn changes_are_logged_in_order() {
    check(async |records| {
        let mut watch = records.newest_change();
        assert_eq!(*watch.borrow_and_update(), ChangeSequence(0));
        let people: Vec<_> = (0..3).map(|n| person(&format!("p{n}"), &["a=mail"])).collect();
        records.put_subscribers(people, at(1)).await.expect("stored");
        assert!(!watch.has_changed().expect("open"), "a new subscriber has no subscriptions to which it could matter");
        let lines = (0..1_000).map(|n| interest(&format!("p{}", n % 3), None)).collect();
        records.put_subscriptions(lines, at(2)).await.expect("stored");
        assert!(watch.has_changed().expect("open"));
        let after_import = *watch.borrow_and_update();
        assert_eq!(news(records, ChangeSequence(0)).await, ["s-1 to s-1000"]);

        let renamed = Profile { locale: Some("de".into()), ..Profile::default() };
        let quiet = NewSubscriber { profile: renamed.clone(), devices: None, ..person("p0", &[]) };
        records.put_subscriber(quiet, Precondition::Any, at(3)).await.expect("stored");
        assert_eq!(news(records, after_import).await, ["profile 1"], "a rule may read the locale");
        let renaming = newest(records);
        let moved = Device { address: "elsewhere@mail.example".into(), ..mailbox("") };
        records
            .put_device(PutDevice {
                id: &subscriber_id("p0"),
                name: &name("a"),
                device: moved,
                keeps_state: false,
                now: at(3),
            })
            .await
            .expect("stored");
        assert_eq!(newest(records), renaming, "an address does not matter to the index");

        let off = NewSubscriber { profile: Profile { enabled: false, ..renamed }, devices: None, ..person("p0", &[]) };
        records.put_subscriber(off, Precondition::Any, at(4)).await.expect("stored");
        let bounced = Device { state: DeviceState::Bounced, ..mailbox("p1@mail.example") };
        records
            .put_device(PutDevice {
                id: &subscriber_id("p1"),
                name: &name("a"),
                device: bounced,
                keeps_state: false,
                now: at(4),
            })
            .await
            .expect("stored");
        records
            .put_application(NewApplicationVersion { name: &name("quakes"), text: "q", author: "ann", now: at(5) })
            .await
            .expect("stored");
        records
            .update_subscription(UpdateSubscription {
                id: SubscriptionId(7),
                change: change(None, false, "{}"),
                expect: Precondition::Any,
                now: at(6),
            })
            .await
            .expect("ok");
        let expected = ["subscriber 1", "subscriber 2", "application quakes", "s-7 to s-7"];
        assert_eq!(news(records, renaming).await, expected);
        let page = records.changes(renaming, 2).await.expect("a page");
        assert!(page[0].sequence > renaming && page[1].sequence > page[0].sequence);
        assert_eq!(news(records, page[1].sequence).await, expected[2..]);
        assert!(watch.has_changed().expect("open"));
        assert!(news(records, *watch.borrow_and_update()).await.is_empty());
        assert!(is_missing(records.put_subscription(interest("nobody", None), at(7)).await));
        assert!(!watch.has_changed().expect("open"), "what failed did not happen");
    });
}

#[test]
fn a_reader_behind_the_log_gets_an_error() {
    check(async |records| {
        records.put_subscriber(person("ann", &[]), Precondition::Any, at(1)).await.expect("stored");
        // Each replacement of a thousand takes a thousand sequences.
        for time in 0..=(CHANGES_KEPT_IN_TESTS + TRIMMED_CHANGES_MIN) / 1_000 {
            let line = |n| NewSubscription {
                values: format!(r#"{{"time":{time}}}"#).into(),
                ..interest("ann", Some(&format!("{n}")))
            };
            records.put_subscriptions((0..1_000).map(line).collect(), at(1)).await.expect("stored");
        }
        let newest = newest(records);
        assert_eq!(newest.0, 1 + CHANGES_KEPT_IN_TESTS + TRIMMED_CHANGES_MIN);
        let kept = ChangeSequence(newest.0 - CHANGES_KEPT_IN_TESTS);
        for trimmed in [0, 1, kept.0 - 1] {
            assert!(is_missing(records.changes(ChangeSequence(trimmed), 10).await), "{trimmed}");
        }
        assert_eq!(news(records, kept).await, ["s-1 to s-1000"; 2]);
        assert!(news(records, newest).await.is_empty());
    });
}
