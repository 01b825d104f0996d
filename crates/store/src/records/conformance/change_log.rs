//! Conformance: the change log, and snapshots at its sequences.

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
        records.put_device(&subscriber_id("p0"), &name("a"), moved, at(3)).await.expect("stored");
        assert_eq!(newest(records), renaming, "an address does not matter to the index");

        let off = NewSubscriber { profile: Profile { enabled: false, ..renamed }, devices: None, ..person("p0", &[]) };
        records.put_subscriber(off, Precondition::Any, at(4)).await.expect("stored");
        let bounced = Device { state: DeviceState::Bounced, ..mailbox("p1@mail.example") };
        records.put_device(&subscriber_id("p1"), &name("a"), bounced, at(4)).await.expect("stored");
        records.put_application(&name("quakes"), "q", "ann", at(5)).await.expect("stored");
        records
            .update_subscription(SubscriptionId(7), change(None, false, "{}"), Precondition::Any, at(6))
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

#[test]
fn cached_recipients_get_their_present_address() {
    check(async |records| {
        records
            .put_subscribers(vec![person("ann", &["a=mail"]), person("bob", &["a=mail"])], at(1))
            .await
            .expect("stored");
        let mut requested = Vec::new();
        for subscriber in ["ann", "bob", "ann"] {
            let key = format!("{}", requested.len());
            requested.push(records.put_subscription(interest(subscriber, Some(&key)), at(2)).await.expect("stored").id);
        }
        let current = async || {
            let found = records.recipients(&requested).await.expect("read");
            let address = |recipient: Recipient| recipient.device().map(|(_, device)| device.address.clone());
            found.into_iter().map(|found| found.and_then(address)).collect::<Vec<_>>()
        };
        let [ann, bob] = ["ann@mail.example", "bob@mail.example"].map(|address| Some(address.to_owned()));
        for _ in 0..2 {
            assert_eq!(current().await, [ann.clone(), bob.clone(), ann.clone()]);
        }
        records.put_device(&subscriber_id("ann"), &name("a"), mailbox("ann@new.example"), at(3)).await.expect("stored");
        let moved = Some("ann@new.example".to_owned());
        assert_eq!(current().await, [moved.clone(), bob.clone(), moved.clone()]);
        let other = SubscriptionChange { device: Some(name("b")), ..interest("bob", None).change() };
        records.update_subscription(requested[1], other, Precondition::Any, at(3)).await.expect("stored");
        assert_eq!(current().await, [moved.clone(), None, moved.clone()], "it names a device that is not there");
        let again = interest("bob", None).change();
        records.update_subscription(requested[1], again, Precondition::Any, at(3)).await.expect("stored");
        assert_eq!(current().await, [moved.clone(), bob.clone(), moved.clone()]);
        let mut away = person("bob", &["a=mail"]);
        away.profile.locale = Some("de".into());
        records.put_subscriber(away, Precondition::Any, at(4)).await.expect("stored");
        let found = records.recipients(&requested[1..2]).await.expect("read").pop().flatten().expect("there");
        assert_eq!(found.profile.locale.as_deref(), Some("de"));
        records.remove_subscriber(&subscriber_id("bob"), Precondition::Any, at(5)).await.expect("removed");
        assert_eq!(current().await, [moved.clone(), None, moved.clone()]);
        records.put_subscriber(person("bob", &["a=mail"]), Precondition::Any, at(6)).await.expect("stored");
        assert_eq!(current().await, [moved.clone(), None, moved], "another of that name has other subscriptions");
    });
}

#[test]
fn the_channel_is_that_of_the_receiving_device() {
    check(async |records| {
        let off = |channel: &str, state| Device { channel: name(channel), address: "x".into(), state };
        let mut ann = person("ann", &["b=mail", "c=sms"]);
        ann.devices.as_mut().expect("given").push((name("a"), off("push", DeviceState::Bounced)));
        let mut bob = person("bob", &[]);
        bob.devices = Some(vec![(name("a"), off("push", DeviceState::Disabled))]);
        let mut eve = person("eve", &["a=mail"]);
        eve.profile.enabled = false;
        records.put_subscribers(vec![ann, bob, eve, person("joe", &[])], at(1)).await.expect("stored");
        let to = |subscriber: &str, device: Option<&str>| NewSubscription {
            device: device.map(name),
            ..interest(subscriber, None)
        };
        let lines = [
            to("ann", None),
            to("ann", Some("c")),
            to("ann", Some("a")),
            to("ann", Some("none")),
            NewSubscription { enabled: false, ..to("ann", None) },
            to("bob", None),
            to("eve", None),
            to("joe", None),
            NewSubscription { class: name("far"), ..to("ann", None) },
            NewSubscription { application: name("stock"), ..to("ann", None) },
        ];
        for line in lines {
            records.put_subscription(line, at(1)).await.expect("stored");
        }
        let show = |found: Vec<IndexedSubscription>| {
            let show = |found: IndexedSubscription| {
                let channel = found.channel.map_or("-".to_owned(), |channel| channel.to_string());
                format!("{} {} {channel}", found.id.0, found.class)
            };
            found.into_iter().map(show).collect::<Vec<_>>()
        };
        let all = records.indexed_subscriptions(&name("quakes"), None, 100).await.expect("read");
        assert!(all.iter().all(|found| &*found.values == r#"{"magnitude":5.5}"#));
        assert_eq!(
            show(all),
            ["1 near mail", "2 near sms", "3 near -", "4 near -", "6 near -", "8 near -", "9 far mail"]
        );
        let page = records.indexed_subscriptions(&name("quakes"), Some(SubscriptionId(2)), 2).await.expect("read");
        assert_eq!(show(page), ["3 near -", "4 near -"]);
        let between = async |first, last| {
            let range = SubscriptionId(first)..=SubscriptionId(last);
            show(records.indexed_at(&name("quakes"), &[range], newest(records)).await.expect("read"))
        };
        assert_eq!(between(4, 9).await, ["4 near -", "6 near -", "8 near -", "9 far mail"]);
        assert_eq!(between(2, 2).await, ["2 near sms"]);
        assert_eq!(between(0, u64::MAX).await.len(), 7);
        assert_eq!(between(5, 4).await, [""; 0]);
        let ranges = [SubscriptionId(1)..=SubscriptionId(2), SubscriptionId(6)..=SubscriptionId(7)];
        let some = records.indexed_at(&name("quakes"), &ranges, newest(records)).await.expect("read");
        assert_eq!(show(some), ["1 near mail", "2 near sms", "6 near -"]);
        assert!(records.indexed_subscriptions(&name("none"), None, 9).await.expect("read").is_empty());

        let requested: Vec<_> = [9, 2, 77, 3, 7, 2].map(SubscriptionId).to_vec();
        let found = records.recipients(&requested).await.expect("read");
        let device = |place: usize| {
            let device = found[place].as_ref().and_then(|found| found.device());
            device.map(|(name, device)| format!("{name} {} {}", device.channel, device.address))
        };
        assert_eq!(device(0).as_deref(), Some("b mail ann@mail.example"));
        assert_eq!(device(1).as_deref(), Some("c sms ann@sms.example"));
        assert_eq!(found[2], None);
        assert_eq!(device(3), None);
        assert_eq!(device(4).as_deref(), Some("a mail eve@mail.example"));
        assert!(found[4].as_ref().is_some_and(|eve| !eve.profile.enabled));
        assert_eq!(found[5], found[1]);
        for (found, id) in found.iter().zip(&requested) {
            let stored = records.subscription(*id).await.expect("read");
            let whose = |stored: &Subscription| (stored.id, stored.subscriber.clone(), stored.subscriber_number);
            let current = |found: &Recipient| (found.subscription, found.id.clone(), found.number);
            assert_eq!(found.as_ref().map(current), stored.as_ref().map(whose));
            let interest = |stored: Subscription| {
                let Subscription { class, subscriber_number: subscriber, device, enabled, values, .. } = stored;
                RecipientSubscription { class, subscriber, device, enabled, values }
            };
            assert_eq!(found.as_ref().map(|found| (*found.interest).clone()), stored.map(interest));
        }
        assert!(records.recipients(&[]).await.expect("read").is_empty());
    });
}
