//! Conformance: subscribers, their devices and merges.

use super::*;

#[test]
fn a_subscriber_is_stored_as_expected() {
    check(async |records| {
        let put = async |expect, locale: &str, seconds| {
            let profile = Profile { locale: Some(locale.to_owned()), ..Profile::default() };
            let new = NewSubscriber {
                kept: Default::default(),
                id: subscriber_id("ann"),
                profile,
                devices: None,
                preferences: None,
            };
            records.put_subscriber(new, expect, at(seconds)).await
        };
        assert!(is_missing(put(Precondition::Present, "de", 1).await));
        assert!(is_missing(put(Precondition::Revision(1), "de", 1).await));
        let made = put(Precondition::Absent, "de", 1).await.expect("made");
        assert_eq!((made.number, made.revision, made.created_at), (SubscriberNumber(1), 1, at(1)));
        assert!(matches!(put(Precondition::Absent, "fr", 2).await, Err(StoreError::Taken(_))));
        assert!(matches!(put(Precondition::Revision(2), "fr", 2).await, Err(StoreError::Changed(_))));
        let changed = put(Precondition::Revision(1), "fr", 2).await.expect("changed");
        assert_eq!((changed.revision, changed.created_at, changed.updated_at), (2, at(1), at(2)));
        assert_eq!(put(Precondition::Present, "fr", 3).await.expect("the same"), changed);
        assert_eq!(records.subscriber(&subscriber_id("ann")).await.expect("read"), Some(changed));
        assert_eq!(records.subscriber(&subscriber_id("bob")).await.expect("read"), None);

        assert!(is_missing(records.remove_subscriber(&subscriber_id("bob"), Precondition::Any, at(4)).await));
        let stale = records.remove_subscriber(&subscriber_id("ann"), Precondition::Revision(1), at(4)).await;
        assert!(matches!(stale, Err(StoreError::Changed(_))));
        records.remove_subscriber(&subscriber_id("ann"), Precondition::Revision(2), at(4)).await.expect("removed");
        let again = put(Precondition::Absent, "de", 5).await.expect("made again");
        assert_eq!((again.number, again.revision), (SubscriberNumber(2), 1), "numbers are never used twice");
    });
}

#[test]
fn devices_are_added_and_removed() {
    check(async |records| {
        records.put_subscriber(person("ann", &["work=mail"]), Precondition::Any, at(1)).await.expect("stored");
        assert!(is_missing(
            records
                .put_device(PutDevice {
                    id: &subscriber_id("bob"),
                    name: &name("home"),
                    device: mailbox("b@x"),
                    keeps_state: false,
                    now: at(2)
                })
                .await
        ));
        let with_two = records
            .put_device(PutDevice {
                id: &subscriber_id("ann"),
                name: &name("home"),
                device: mailbox("a@x"),
                keeps_state: false,
                now: at(2),
            })
            .await
            .expect("stored");
        assert_eq!((with_two.devices.len(), with_two.revision, with_two.updated_at), (2, 2, at(2)));
        assert_eq!(records.counts(), RecordCounts { subscribers: 1, devices: 2, subscriptions: 0 });
        assert!(is_missing(records.remove_device(&subscriber_id("ann"), &name("none"), at(3)).await));
        let with_one = records.remove_device(&subscriber_id("ann"), &name("work"), at(3)).await.expect("removed");
        assert_eq!(with_one.devices, BTreeMap::from([(name("home"), mailbox("a@x"))]));
        assert_eq!(records.subscriber(&subscriber_id("ann")).await.expect("read"), Some(with_one));

        let keeps = NewSubscriber { devices: None, ..person("ann", &[]) };
        let kept = records.put_subscriber(keeps, Precondition::Any, at(4)).await.expect("stored");
        assert_eq!(kept.devices.len(), 1);
        let replaced = records.put_subscriber(person("ann", &["a=sms", "b=sms"]), Precondition::Any, at(5)).await;
        assert_eq!(replaced.expect("stored").devices.keys().map(Name::as_str).collect::<Vec<_>>(), ["a", "b"]);
        assert!(records.has_subscriber(kept.number).await.expect("read"));
        let numbered = records.subscriber_numbered(kept.number).await.expect("read").expect("there is one");
        assert_eq!((numbered.id, numbered.devices.len()), (subscriber_id("ann"), 2));
        records.remove_subscriber(&subscriber_id("ann"), Precondition::Any, at(6)).await.expect("removed");
        assert_eq!(records.counts(), RecordCounts::default());
        assert!(!records.has_subscriber(kept.number).await.expect("read"));
        assert_eq!(records.subscriber_numbered(kept.number).await.expect("read"), None);
    });
}

#[test]
fn b5_a_write_without_a_state_keeps_that_of_the_subscriber_and_its_devices() {
    check(async |records| {
        let silent = |address: &str| {
            let kept = KeptState { enabled: true, devices: [name("work"), name("home")].into() };
            let devices = vec![(name("work"), mailbox(address)), (name("home"), mailbox("a@x"))];
            NewSubscriber { kept, devices: Some(devices), ..person("ann", &[]) }
        };
        let state = |stored: tocsin_model::subscriber::Subscriber| {
            (stored.profile.enabled, stored.devices[&name("work")].state)
        };
        let made = records.put_subscriber(silent("w@x"), Precondition::Any, at(1)).await.expect("stored");
        let number = made.number;
        assert_eq!(state(made), (true, DeviceState::Active));
        let mut off = person("ann", &[]);
        off.profile.enabled = false;
        off.devices = Some(vec![(name("work"), Device { state: DeviceState::Bounced, ..mailbox("w@x") })]);
        records.put_subscriber(off, Precondition::Any, at(2)).await.expect("stored");
        let put = records.put_subscriber(silent("w@x"), Precondition::Any, at(3)).await.expect("stored");
        assert_eq!(put.devices[&name("home")].state, DeviceState::Active, "it is new");
        assert_eq!(state(put), (false, DeviceState::Bounced));
        let written = records.put_subscribers(vec![silent("w@x")], at(4)).await.expect("stored").pop();
        assert_eq!(written.expect("one").expect("stored"), number);
        let read = records.subscriber(&subscriber_id("ann")).await.expect("read").expect("there");
        assert_eq!((read.revision, state(read)), (3, (false, DeviceState::Bounced)), "nothing changed");
        let moved = records.put_subscriber(silent("other@x"), Precondition::Any, at(5)).await.expect("stored");
        assert_eq!(state(moved), (false, DeviceState::Active), "a state belongs to an address");

        // A device alone: decided in the commit, for a bounce may be stored after the caller read the device.
        let (id, work) = (subscriber_id("ann"), name("work"));
        let put = async |address: &str, state, keeps_state, seconds| {
            let device = Device { state, ..mailbox(address) };
            let put = PutDevice { id: &id, name: &work, device, keeps_state, now: at(seconds) };
            records.put_device(put).await.expect("stored").devices[&name("work")].clone()
        };
        put("other@x", DeviceState::Bounced, false, 6).await;
        let spelled = put("other@X", DeviceState::Active, true, 7).await;
        assert_eq!(spelled, Device { state: DeviceState::Bounced, ..mailbox("other@X") });
        assert_eq!(put("other@X", DeviceState::Active, false, 8).await.state, DeviceState::Active, "it is given");
        put("other@X", DeviceState::Bounced, false, 9).await;
        assert_eq!(put("third@x", DeviceState::Active, true, 10).await.state, DeviceState::Active);
    });
}

#[test]
fn preferences_stay_until_others_are_given() {
    check(async |records| {
        let preferences: Preferences =
            serde_json::from_str(r#"{"quiet_hours":["22:00-07:00 mo-fr"],"notifications":{"*":{"enabled":false}}}"#)
                .expect("preferences");
        let wants = NewSubscriber { preferences: Some(preferences.clone()), ..person("ann", &["work=mail"]) };
        let stored = records.put_subscriber(wants.clone(), Precondition::Any, at(1)).await.expect("stored");
        assert_eq!(stored.preferences, preferences);
        let same =
            records.put_subscriber(person("ann", &["work=mail"]), Precondition::Any, at(2)).await.expect("stored");
        assert_eq!((same.revision, &same.preferences), (1, &preferences), "nothing changed");
        let moved = records
            .put_device(PutDevice {
                id: &subscriber_id("ann"),
                name: &name("home"),
                device: mailbox("a@x"),
                keeps_state: false,
                now: at(3),
            })
            .await
            .expect("stored");
        assert_eq!((moved.revision, &moved.preferences), (2, &preferences));
        let subscription = records.put_subscription(interest("ann", None), at(4)).await.expect("stored");
        let found = records.recipients(&[subscription.id]).await.expect("read").pop().flatten().expect("there");
        assert_eq!((&found.preferences, found.devices.iter().count()), (&preferences, 2));
        let nothing = NewSubscriber { preferences: Some(Preferences::default()), ..person("ann", &["work=mail"]) };
        let cleared = records.put_subscriber(nothing, Precondition::Any, at(5)).await.expect("stored");
        assert!(cleared.preferences.is_empty());
        assert_eq!(records.subscriber(&subscriber_id("ann")).await.expect("read"), Some(cleared));
    });
}

#[test]
fn of_two_lines_for_one_subscriber_the_later_wins() {
    check(async |records| {
        let lines = vec![person("zoe", &[]), person("ann", &["a=mail"]), person("ann", &["b=mail"])];
        let numbers = records.put_subscribers(lines, at(1)).await.expect("stored");
        let numbers: Vec<u64> = numbers.into_iter().map(|written| written.expect("stored").0).collect();
        assert_eq!(numbers, [2, 1, 1], "numbers go by id, answers by line");
        let ann = records.subscriber(&subscriber_id("ann")).await.expect("read").expect("there");
        assert_eq!(ann.devices.keys().map(Name::as_str).collect::<Vec<_>>(), ["b"]);
        assert_eq!(records.counts(), RecordCounts { subscribers: 2, devices: 1, subscriptions: 0 });
    });
}

#[test]
fn subscribers_are_found() {
    check(async |records| {
        let tags = Value::List([Value::Text("red".into()), Value::Integer(7)].into());
        let attributes = BTreeMap::from([
            ("city".to_owned(), Value::Text("Wien".into())),
            ("tags".to_owned(), tags),
            ("n".to_owned(), Value::Integer(7)),
        ]);
        let profile = Profile { enabled: false, locale: Some("de".into()), time_zone: None, attributes };
        let mut ann = person("ann", &["a=mail", "b=mail"]);
        ann.profile = profile;
        let lines = vec![ann, person("anna", &["a=mail"]), person("bob", &[]), person("Émile", &["a=sms"])];
        records.put_subscribers(lines, at(1)).await.expect("stored");
        let list = async |filter: SubscriberFilter, after: Option<&str>, limit| {
            let found = records.subscribers(&filter, after.map(subscriber_id).as_ref(), limit).await.expect("read");
            found.into_iter().map(|found| found.id.to_string()).collect::<Vec<_>>()
        };
        let all = SubscriberFilter::default;
        assert_eq!(list(all(), None, 9).await, ["ann", "anna", "bob", "Émile"]);
        assert_eq!(list(all(), Some("anna"), 1).await, ["bob"]);
        assert_eq!(list(all(), None, 0).await, [""; 0]);
        assert_eq!(list(SubscriberFilter { id_prefix: Some("an".into()), ..all() }, None, 9).await, ["ann", "anna"]);
        assert_eq!(list(SubscriberFilter { id_prefix: Some("É".into()), ..all() }, Some("bob"), 9).await, ["Émile"]);
        assert_eq!(list(SubscriberFilter { id_prefix: Some("an".into()), ..all() }, Some("ann"), 9).await, ["anna"]);
        let address = |text: &str| SubscriberFilter { address: Some(text.to_owned()), ..all() };
        assert_eq!(list(address("ann@mail.example"), None, 9).await, ["ann"], "once, though two devices have it");
        assert_eq!(list(address("ann@mail.example"), Some("ann"), 9).await, [""; 0]);
        assert_eq!(list(address("nobody@mail.example"), None, 9).await, [""; 0]);
        assert_eq!(list(SubscriberFilter { locale: Some("de".into()), ..all() }, None, 9).await, ["ann"]);
        assert_eq!(list(SubscriberFilter { enabled: Some(true), ..all() }, None, 2).await, ["anna", "bob"]);
        let attribute =
            |name: &str, text: &str| SubscriberFilter { attribute: Some((name.into(), text.into())), ..all() };
        assert_eq!(list(attribute("city", "Wien"), None, 9).await, ["ann"]);
        assert_eq!(list(attribute("city", "Wie"), None, 9).await, [""; 0]);
        assert_eq!(list(attribute("tags", "red"), None, 9).await, ["ann"]);
        assert_eq!(list(attribute("n", "7"), None, 9).await, [""; 0], "a number is no text");
        let both = SubscriberFilter { enabled: Some(true), ..attribute("city", "Wien") };
        assert_eq!(list(both, None, 9).await, [""; 0]);
    });
}

#[test]
fn removing_a_subscriber_takes_its_subscriptions() {
    check(async |records| {
        records.put_subscribers(vec![person("ann", &["a=mail"]), person("bob", &[])], at(1)).await.expect("stored");
        for subscriber in ["ann", "ann", "bob", "ann"] {
            records.put_subscription(interest(subscriber, None), at(1)).await.expect("stored");
        }
        assert_eq!(owned(records, 1).await, [1, 2, 4]);
        let before = newest(records);
        records.remove_subscriber(&subscriber_id("ann"), Precondition::Any, at(2)).await.expect("removed");
        assert_eq!(news(records, before).await, ["s-1 to s-2", "s-4 to s-4", "profile 1", "subscriber 1"]);
        assert!(owned(records, 1).await.is_empty());
        let then = records.subscriptions_of(&[SubscriberNumber(2), SubscriberNumber(1)], before).await.expect("read");
        assert_eq!(then, [1, 2, 3, 4].map(SubscriptionId));
        assert_eq!(records.counts(), RecordCounts { subscribers: 1, devices: 0, subscriptions: 1 });
        let left = records.indexed_subscriptions(&name("quakes"), None, 9).await.expect("read");
        assert_eq!(left.iter().map(|found| found.id.0).collect::<Vec<_>>(), [3]);
    });
}

#[test]
fn any_text_is_stored_unchanged() {
    let naughty = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/naughty-strings.json"));
    let mut texts: Vec<String> = serde_json::from_str(&naughty.expect("the strings")).expect("a list of strings");
    texts.extend(["a\0b".to_owned(), "\0".to_owned(), "\u{10ffff}\u{fffd}\u{feff}".to_owned()]);
    let subscriber = |n: usize, text: &str| {
        let attributes = BTreeMap::from([
            (text.to_owned(), Value::Text(text.into())),
            ("list".to_owned(), Value::List([Value::Text(text.into())].into())),
        ]);
        let (locale, time_zone) = (Some(text.to_owned()), Some(text.to_owned()));
        let profile = Profile { locale, time_zone, attributes, ..Profile::default() };
        NewSubscriber {
            kept: Default::default(),
            id: id_like(text, n),
            profile,
            devices: Some(vec![(name("a"), mailbox(text))]),
            preferences: None,
        }
    };
    let subscription = |n: usize, text: &str| NewSubscription {
        key: Some(text.to_owned()),
        subscriber: id_like(text, n),
        values: serde_json::json!({ "text": text }).to_string().into(),
        ..interest("x", None)
    };
    check(async |records| {
        let subscribers = texts.iter().enumerate().map(|(n, text)| subscriber(n, text)).collect();
        records.put_subscribers(subscribers, at(1)).await.expect("stored");
        let lines: Vec<_> = texts.iter().enumerate().map(|(n, text)| subscription(n, text)).collect();
        let written = records.put_subscriptions(lines.clone(), at(1)).await.expect("stored");
        let again = records.put_subscriptions(lines, at(2)).await.expect("stored");
        for (n, text) in texts.iter().enumerate() {
            let expected = subscriber(n, text);
            let found = records.subscriber(&expected.id).await.expect("read").expect("there");
            assert_eq!((&found.id, &found.profile), (&expected.id, &expected.profile));
            assert_eq!(found.devices.into_iter().collect::<Vec<_>>(), expected.devices.expect("given"));
            let alone = SubscriberFilter { id_prefix: Some(found.id.to_string()), ..Default::default() };
            let filters = [
                SubscriberFilter { address: Some(text.clone()), ..Default::default() },
                SubscriberFilter { locale: Some(text.clone()), ..Default::default() },
                SubscriberFilter { attribute: Some((text.clone(), text.clone())), ..alone.clone() },
                SubscriberFilter { attribute: Some(("list".into(), text.clone())), ..alone },
            ];
            for filter in filters {
                let all = records.subscribers(&filter, None, 1_000).await.expect("read");
                assert!(all.iter().any(|one| one.id == found.id), "{filter:?}");
            }

            let expected = subscription(n, text);
            let (id, same) = (written[n].as_ref().expect("stored"), again[n].as_ref().expect("stored"));
            assert_eq!(id, same, "{text:?}");
            let filter =
                SubscriptionFilter { key: Some(text.clone()), subscriber: Some(found.id), ..Default::default() };
            let found = records.subscriptions(&filter, None, 9).await.expect("read");
            assert_eq!(found.iter().map(|found| (found.id, found.revision)).collect::<Vec<_>>(), [(*id, 1)]);
            assert_eq!((&found[0].key, &found[0].values), (&expected.key, &expected.values));
        }
        // Each version is a commit of its own, so a few dozen suffice.
        let texts: Vec<_> = texts.iter().rev().step_by(10).collect();
        for text in &texts {
            records
                .put_application(NewApplicationVersion { name: &name("naughty"), text, author: text, now: at(3) })
                .await
                .expect("stored");
        }
        let history = records.application_history(&name("naughty")).await.expect("read");
        assert!(history.iter().rev().map(|version| &version.text).eq(texts.iter().copied()));
        assert!(history.iter().rev().map(|version| &version.author).eq(texts.iter().copied()));
    });
}

/// Subscriber id as close to a text as the rules for ids allow.
fn id_like(text: &str, n: usize) -> SubscriberId {
    let text: String = text.chars().filter(|c| !c.is_control() && *c != '/').take(200).collect();
    subscriber_id(&format!("{text}#{n}"))
}

#[test]
fn a_subscriber_is_merged_into_another() {
    check(async |records| {
        let device =
            |address: &str| Device { channel: name("mail"), address: address.into(), state: DeviceState::Active };
        let anonymous = NewSubscriber {
            kept: Default::default(),
            id: subscriber_id("anon"),
            profile: Profile {
                locale: Some("de".into()),
                attributes: BTreeMap::from([("city".into(), Value::from("Wien")), ("age".into(), Value::Integer(3))]),
                ..Profile::default()
            },
            devices: Some(vec![(name("home"), device("new@x")), (name("work"), device("ann@x"))]),
            preferences: None,
        };
        let ann = NewSubscriber {
            kept: Default::default(),
            id: subscriber_id("ann"),
            profile: Profile {
                attributes: BTreeMap::from([("age".into(), Value::Integer(7))]),
                time_zone: Some("Europe/Vienna".into()),
                ..Profile::default()
            },
            devices: Some(vec![(name("home"), device("ann@x"))]),
            preferences: None,
        };
        records.put_subscribers(vec![anonymous, ann], at(1)).await.expect("stored");
        let on = |subscriber: &str, key: Option<&str>, to: &str, values: &str| NewSubscription {
            device: Some(name(to)),
            values: values.into(),
            ..interest(subscriber, key)
        };
        let (four, five) = (r#"{"magnitude":4}"#, r#"{"magnitude":5}"#);
        let new = vec![
            on("ann", Some("k"), "home", four),
            on("ann", None, "home", five),
            on("anon", Some("k"), "home", five),
            on("anon", None, "work", five),
            on("anon", None, "home", five),
            on("anon", Some("other"), "work", five),
        ];
        records.put_subscriptions(new, at(2)).await.expect("stored");
        let suppressed = |target, cause| suppression_of(target, cause, true, at(2));
        let new = vec![suppressed("device/anon/home", Cause::Complaint), suppressed("device/anon/work", Cause::Manual)];
        records.put_suppressions(new).await.expect("stored");
        let before = newest(records);
        let known = |subscriber: &str| SubscriptionFilter {
            subscriber: Some(subscriber_id(subscriber)),
            ..SubscriptionFilter::default()
        };
        let theirs: Vec<_> = records.subscriptions(&known("anon"), None, 9).await.expect("read");

        let merge = records
            .merge_subscribers(&subscriber_id("anon"), &subscriber_id("ann"), at(3))
            .await
            .expect("done")
            .expect("merged");
        let names = |pairs: &[(&str, &str)]| pairs.iter().map(|(old, new)| (name(old), name(new))).collect();
        assert_eq!(merge.report.devices, names(&[("home", "home_2")]));
        assert_eq!(merge.report.double_devices, names(&[("work", "home")]));
        assert_eq!(merge.report.attributes, ["city"]);
        assert_eq!((merge.report.subscriptions, merge.report.double_subscriptions), (2, 2));
        let now = records.subscriber(&subscriber_id("ann")).await.expect("read").expect("there");
        assert_eq!(now.profile.attributes["age"], Value::Integer(7), "what the account says counts");
        assert_eq!(
            (now.profile.locale.as_deref(), now.profile.time_zone.as_deref()),
            (Some("de"), Some("Europe/Vienna"))
        );
        assert_eq!(now.devices[&name("home_2")], device("new@x"));
        assert_eq!(records.subscriber(&subscriber_id("anon")).await.expect("read"), None);
        let counts = RecordCounts { subscribers: 1, devices: 2, subscriptions: 4 };
        assert_eq!(records.counts(), counts);

        let own = records.subscriptions(&known("ann"), None, 9).await.expect("read");
        let of = |key: Option<&str>, to: &str| {
            own.iter().find(|one| one.key.as_deref() == key && one.device == Some(name(to)))
        };
        let went = of(None, "home_2").expect("it went over");
        let was =
            theirs.iter().find(|one| one.key.is_none() && one.device == Some(name("home"))).expect("it was there");
        assert_eq!((went.id, went.subscriber_number, went.revision), (was.id, now.number, was.revision + 1));
        assert!(of(Some("other"), "home").is_some(), "its device is another's now, under another name");
        assert_eq!(&*of(Some("k"), "home").expect("kept").values, four, "the account's stays");
        let recipient = records.recipients(&[was.id]).await.expect("read").pop().flatten().expect("somebody");
        assert_eq!(recipient.person.id, subscriber_id("ann"));

        let target = |text: &str| text.parse::<Target>().expect("a target");
        for (device, there) in
            [("ann/home_2", Some(Cause::Complaint)), ("ann/home", Some(Cause::Manual)), ("anon/home", None)]
        {
            let found = records.suppression(&target(&format!("device/{device}"))).await.expect("read");
            assert_eq!(found.map(|found| found.cause), there, "{device}");
        }
        let logged = news(records, before).await;
        assert!(logged.iter().any(|line| line.ends_with("moved")), "{logged:?}");
        // A snapshot before the merge is unchanged.
        let past = records.indexed_at(&name("quakes"), &[was.id..=was.id], before).await.expect("the past");
        assert_eq!(past[0].subscriber, was.subscriber_number);
        let present = records.indexed_at(&name("quakes"), &[was.id..=was.id], newest(records)).await.expect("now");
        assert_eq!(present[0].subscriber, now.number);

        assert_eq!(records.merge_of(&subscriber_id("anon")).await.expect("read"), Some(merge.clone()));
        assert_eq!(records.unfinished_merges().await.expect("read"), std::slice::from_ref(&merge));
        records.finish_merge(merge.from_number).await.expect("finished");
        assert_eq!(records.unfinished_merges().await.expect("read"), []);
        assert!(is_missing(records.merge_subscribers(&subscriber_id("anon"), &subscriber_id("ann"), at(4)).await));
        assert!(is_missing(records.merge_subscribers(&subscriber_id("ann"), &subscriber_id("anon"), at(4)).await));
        let itself =
            records.merge_subscribers(&subscriber_id("ann"), &subscriber_id("ann"), at(4)).await.expect("read");
        assert_eq!(itself, Err(MergeRefusal::Itself));
    });
}

#[test]
fn merge_records_are_deleted_after_a_year() {
    check(async |records| {
        let days = |days: u32| at(0) + days * std::time::Duration::from_secs(86_400);
        let merge = async |number: u64, day: u32| {
            let anonymous = subscriber_id(&format!("anon-{number}"));
            records
                .put_subscriber(person(&format!("anon-{number}"), &[]), Precondition::Absent, days(day))
                .await
                .expect("stored");
            let done = records.merge_subscribers(&anonymous, &subscriber_id("ann"), days(day)).await.expect("done");
            done.expect("merged").from_number
        };
        let known = async || {
            let mut known = Vec::new();
            for number in 0..14 {
                let found = records.merge_of(&subscriber_id(&format!("anon-{number}"))).await.expect("read");
                known.extend(found.map(|_| number));
            }
            known
        };
        records.put_subscriber(person("ann", &[]), Precondition::Absent, at(0)).await.expect("stored");
        for number in 0..12 {
            let from = merge(number, u32::try_from(number).expect("few")).await;
            // The inbox feed of one of them has not been moved yet.
            if number != 3 {
                records.finish_merge(from).await.expect("finished");
            }
        }
        assert_eq!(known().await, (0..12).collect::<Vec<_>>());
        merge(12, 365 + 11).await;
        assert_eq!(known().await, [3, 9, 10, 11, 12], "a few at a time, the oldest first");
        merge(13, 365 + 11).await;
        assert_eq!(known().await, [3, 11, 12, 13], "nobody asks for a year");
    });
}
