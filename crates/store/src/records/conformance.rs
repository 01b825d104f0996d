//! What every backend of the records does. Each story runs on each of them.

use std::{collections::BTreeMap, sync::Arc};

use tocsin_model::{
    filter::{Dialect, Filter},
    id::{ChangeSequence, Name, SubscriberId, SubscriberNumber, SubscriptionId},
    subscriber::{Device, DeviceState, Profile},
    suppression::{Cause, Policy, Report, Suppression, Target},
    time::Timestamp,
    value::Value,
};

use super::*;
use crate::{
    memory::records::MemoryRecords,
    sqlite::records::{RecordsOptions, SqliteRecords},
};

/// Runs a story on each backend, which keeps few places of its feed.
fn check(story: impl AsyncFn(&dyn Records)) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    println!("in memory");
    runtime.block_on(story(&MemoryRecords::with_feed_kept(FEW).expect("random numbers")));
    println!("on SQLite");
    let folder = tempfile::tempdir().expect("a folder");
    runtime.block_on(story(&open(folder.path())));
}

const FEW: u64 = 2_000;

fn open(folder: &std::path::Path) -> SqliteRecords {
    let options = RecordsOptions { reserve_bytes: 0, readers: 1, feed_kept: FEW, ..RecordsOptions::default() };
    SqliteRecords::open(folder, &options).expect("the records open")
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn who(text: &str) -> SubscriberId {
    text.parse().expect("a subscriber id")
}

const fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(seconds * 1_000)
}

fn mailbox(address: &str) -> Device {
    Device { channel: name("mail"), address: address.to_owned(), state: DeviceState::Active }
}

/// A subscriber with active devices, each as `name=channel`.
fn person(id: &str, devices: &[&str]) -> NewSubscriber {
    let device = |text: &&str| {
        let (device, channel) = text.split_once('=').expect("name=channel");
        let address = format!("{id}@{channel}.example");
        (name(device), Device { channel: name(channel), address, state: DeviceState::Active })
    };
    NewSubscriber {
        id: who(id),
        profile: Profile::default(),
        devices: Some(devices.iter().map(device).collect()),
        preferences: None,
    }
}

fn interest(subscriber: &str, key: Option<&str>) -> NewSubscription {
    NewSubscription {
        application: name("quakes"),
        class: name("near"),
        subscriber: who(subscriber),
        key: key.map(str::to_owned),
        device: None,
        enabled: true,
        values: r#"{"magnitude":5.5}"#.into(),
        terms: Terms::default(),
    }
}

fn change(device: Option<Name>, enabled: bool, values: &str) -> SubscriptionChange {
    SubscriptionChange { device, enabled, values: values.into(), terms: Terms::default() }
}

/// What the feed tells, in short.
fn told(changes: Vec<Change>) -> Vec<String> {
    let tell = |change: Change| match change.what {
        Changed::Application(name) => format!("application {name}"),
        Changed::Subscriber(number) => format!("subscriber {}", number.0),
        Changed::Subscriptions(first, last) => format!("{first} to {last}"),
        Changed::ApiKey => "API key".to_owned(),
        Changed::Segment(name) => format!("segment {name}"),
        Changed::Profile(number) => format!("profile {}", number.0),
        Changed::Suppressions(targets) => {
            let targets: Vec<String> = targets.iter().map(ToString::to_string).collect();
            format!("suppressions of {}", targets.join(" "))
        }
    };
    changes.into_iter().map(tell).collect()
}

async fn news(records: &dyn Records, after: ChangeSequence) -> Vec<String> {
    told(records.changes(after, 1_000).await.expect("the feed"))
}

/// The classes that have subscriptions: how many are enabled, and how many are not.
async fn class_counts(records: &dyn Records) -> Vec<(Name, Name, u64, u64)> {
    let counts = records.subscription_counts().await.expect("counted").into_iter();
    let counts = counts.map(|found| (found.application, found.class, found.enabled, found.disabled));
    counts.filter(|(_, _, enabled, disabled)| enabled + disabled > 0).collect()
}

async fn owned(records: &dyn Records, subscriber: u64) -> Vec<u64> {
    let found = records.subscriptions_of(&[SubscriberNumber(subscriber)], newest(records)).await;
    found.expect("read").into_iter().map(|id| id.0).collect()
}

fn newest(records: &dyn Records) -> ChangeSequence {
    *records.newest_change().borrow()
}

fn is_missing<T>(result: Result<T, StoreError>) -> bool {
    matches!(result, Err(StoreError::Missing(_)))
}

#[test]
fn an_application_keeps_its_history() {
    check(async |records| {
        let (quakes, stock) = (name("quakes"), name("stock"));
        assert_eq!(records.put_application(&stock, "s1", "ann", at(1)).await.expect("stored"), 1);
        assert_eq!(records.put_application(&quakes, "q1", "ann", at(2)).await.expect("stored"), 1);
        assert_eq!(records.put_application(&quakes, "q2", "bob", at(3)).await.expect("stored"), 2);
        let current = records.applications().await.expect("read");
        assert_eq!(current.iter().map(|found| found.text.as_str()).collect::<Vec<_>>(), ["q2", "s1"]);
        let first = ApplicationVersion {
            name: quakes.clone(),
            version: 1,
            text: "q1".to_owned(),
            author: "ann".to_owned(),
            applied_at: at(2),
        };
        assert_eq!(records.application(&quakes, Some(1)).await.expect("read"), Some(first));
        assert_eq!(records.application(&quakes, Some(3)).await.expect("read"), None);
        assert_eq!(records.application(&name("none"), None).await.expect("read"), None);

        records.put_subscriber(person("ann", &[]), Expect::Any, at(4)).await.expect("stored");
        records.put_subscription(interest("ann", None), at(4)).await.expect("stored");
        let other = NewSubscription { application: stock.clone(), ..interest("ann", None) };
        records.put_subscription(other, at(4)).await.expect("stored");
        let before = newest(records);
        records.remove_application(&quakes, at(5)).await.expect("removed");
        assert_eq!(news(records, before).await, ["s-1 to s-1", "application quakes"]);
        assert_eq!(records.application(&quakes, None).await.expect("read"), None);
        assert_eq!(records.applications().await.expect("read").len(), 1);
        assert_eq!(records.subscription(SubscriptionId(1)).await.expect("read"), None);
        assert_eq!(records.counts().subscriptions, 1);
        assert!(is_missing(records.remove_application(&quakes, at(6)).await));
        assert_eq!(records.application_history(&quakes).await.expect("read").len(), 2);
        assert_eq!(records.put_application(&quakes, "q3", "ann", at(7)).await.expect("stored"), 3);
    });
}

#[test]
fn a_large_application_goes_in_steps() {
    check(async |records| {
        records.put_application(&name("quakes"), "q", "ann", at(1)).await.expect("stored");
        records.put_subscriber(person("ann", &[]), Expect::Any, at(1)).await.expect("stored");
        let many = 2 * REMOVED_AT_ONCE + 1;
        records.put_subscriptions(vec![interest("ann", None); many], at(1)).await.expect("stored");
        assert_eq!(records.counts().subscriptions, many as u64);
        records.remove_application(&name("quakes"), at(2)).await.expect("removed");
        assert_eq!(records.counts().subscriptions, 0);
        assert!(owned(records, 1).await.is_empty());
    });
}

#[test]
fn a_subscriber_is_stored_as_expected() {
    check(async |records| {
        let put = async |expect, locale: &str, seconds| {
            let profile = Profile { locale: Some(locale.to_owned()), ..Profile::default() };
            let new = NewSubscriber { id: who("ann"), profile, devices: None, preferences: None };
            records.put_subscriber(new, expect, at(seconds)).await
        };
        assert!(is_missing(put(Expect::Present, "de", 1).await));
        assert!(is_missing(put(Expect::Revision(1), "de", 1).await));
        let made = put(Expect::Absent, "de", 1).await.expect("made");
        assert_eq!((made.number, made.revision, made.created_at), (SubscriberNumber(1), 1, at(1)));
        assert!(matches!(put(Expect::Absent, "fr", 2).await, Err(StoreError::Taken(_))));
        assert!(matches!(put(Expect::Revision(2), "fr", 2).await, Err(StoreError::Changed(_))));
        let changed = put(Expect::Revision(1), "fr", 2).await.expect("changed");
        assert_eq!((changed.revision, changed.created_at, changed.updated_at), (2, at(1), at(2)));
        assert_eq!(put(Expect::Present, "fr", 3).await.expect("the same"), changed);
        assert_eq!(records.subscriber(&who("ann")).await.expect("read"), Some(changed));
        assert_eq!(records.subscriber(&who("bob")).await.expect("read"), None);

        assert!(is_missing(records.remove_subscriber(&who("bob"), Expect::Any, at(4)).await));
        let stale = records.remove_subscriber(&who("ann"), Expect::Revision(1), at(4)).await;
        assert!(matches!(stale, Err(StoreError::Changed(_))));
        records.remove_subscriber(&who("ann"), Expect::Revision(2), at(4)).await.expect("removed");
        let again = put(Expect::Absent, "de", 5).await.expect("made again");
        assert_eq!((again.number, again.revision), (SubscriberNumber(2), 1), "numbers are never used twice");
    });
}

#[test]
fn devices_come_and_go() {
    check(async |records| {
        records.put_subscriber(person("ann", &["work=mail"]), Expect::Any, at(1)).await.expect("stored");
        assert!(is_missing(records.put_device(&who("bob"), &name("home"), mailbox("b@x"), at(2)).await));
        let with_two = records.put_device(&who("ann"), &name("home"), mailbox("a@x"), at(2)).await.expect("stored");
        assert_eq!((with_two.devices.len(), with_two.revision, with_two.updated_at), (2, 2, at(2)));
        assert_eq!(records.counts(), RecordCounts { subscribers: 1, devices: 2, subscriptions: 0 });
        assert!(is_missing(records.remove_device(&who("ann"), &name("none"), at(3)).await));
        let with_one = records.remove_device(&who("ann"), &name("work"), at(3)).await.expect("removed");
        assert_eq!(with_one.devices, BTreeMap::from([(name("home"), mailbox("a@x"))]));
        assert_eq!(records.subscriber(&who("ann")).await.expect("read"), Some(with_one));

        let keeps = NewSubscriber { devices: None, ..person("ann", &[]) };
        let kept = records.put_subscriber(keeps, Expect::Any, at(4)).await.expect("stored");
        assert_eq!(kept.devices.len(), 1);
        let replaced = records.put_subscriber(person("ann", &["a=sms", "b=sms"]), Expect::Any, at(5)).await;
        assert_eq!(replaced.expect("stored").devices.keys().map(Name::as_str).collect::<Vec<_>>(), ["a", "b"]);
        records.remove_subscriber(&who("ann"), Expect::Any, at(6)).await.expect("removed");
        assert_eq!(records.counts(), RecordCounts::default());
    });
}

#[test]
fn preferences_stay_until_others_are_given() {
    check(async |records| {
        let preferences: Preferences =
            serde_json::from_str(r#"{"quiet_hours":["22:00-07:00 mo-fr"],"notifications":{"*":{"enabled":false}}}"#)
                .expect("preferences");
        let wants = NewSubscriber { preferences: Some(preferences.clone()), ..person("ann", &["work=mail"]) };
        let stored = records.put_subscriber(wants.clone(), Expect::Any, at(1)).await.expect("stored");
        assert_eq!(stored.preferences, preferences);
        let same = records.put_subscriber(person("ann", &["work=mail"]), Expect::Any, at(2)).await.expect("stored");
        assert_eq!((same.revision, &same.preferences), (1, &preferences), "nothing changed");
        let moved = records.put_device(&who("ann"), &name("home"), mailbox("a@x"), at(3)).await.expect("stored");
        assert_eq!((moved.revision, &moved.preferences), (2, &preferences));
        let subscription = records.put_subscription(interest("ann", None), at(4)).await.expect("stored");
        let found = records.recipients(&[subscription.id]).await.expect("read").pop().flatten().expect("there");
        assert_eq!((&found.preferences, found.devices.iter().count()), (&preferences, 2));
        let nothing = NewSubscriber { preferences: Some(Preferences::default()), ..person("ann", &["work=mail"]) };
        let cleared = records.put_subscriber(nothing, Expect::Any, at(5)).await.expect("stored");
        assert!(cleared.preferences.is_empty());
        assert_eq!(records.subscriber(&who("ann")).await.expect("read"), Some(cleared));
    });
}

#[test]
fn of_two_lines_for_one_subscriber_the_later_wins() {
    check(async |records| {
        let lines = vec![person("zoe", &[]), person("ann", &["a=mail"]), person("ann", &["b=mail"])];
        let numbers = records.put_subscribers(lines, at(1)).await.expect("stored");
        let numbers: Vec<u64> = numbers.into_iter().map(|written| written.expect("stored").0).collect();
        assert_eq!(numbers, [2, 1, 1], "numbers go by id, answers by line");
        let ann = records.subscriber(&who("ann")).await.expect("read").expect("there");
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
            let found = records.subscribers(&filter, after.map(who).as_ref(), limit).await.expect("read");
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

fn vienna(filter: &str) -> NewSegment {
    NewSegment { name: name("vienna"), description: None, filter: filter.into() }
}

#[test]
fn a_segment_is_stored_as_expected() {
    check(async |records| {
        let before = newest(records);
        assert!(is_missing(records.put_segment(vienna("(a=1)"), Expect::Present, at(1)).await));
        let made = records.put_segment(vienna("(a=1)"), Expect::Absent, at(1)).await.expect("made");
        assert_eq!((made.revision, made.created_at, made.updated_at), (1, at(1), at(1)));
        assert!(matches!(records.put_segment(vienna("(a=2)"), Expect::Absent, at(2)).await, Err(StoreError::Taken(_))));
        let stale = records.put_segment(vienna("(a=2)"), Expect::Revision(2), at(2)).await;
        assert!(matches!(stale, Err(StoreError::Changed(_))));
        let described = NewSegment { description: Some("of the city".to_owned()), ..vienna("(a=2)") };
        let changed = records.put_segment(described.clone(), Expect::Revision(1), at(2)).await.expect("changed");
        assert_eq!((changed.revision, changed.created_at, changed.updated_at), (2, at(1), at(2)));
        assert_eq!((&*changed.filter, changed.description.as_deref()), ("(a=2)", Some("of the city")));
        assert_eq!(records.put_segment(described, Expect::Any, at(3)).await.expect("the same"), changed);
        assert_eq!(records.segment(&name("vienna")).await.expect("read"), Some(changed.clone()));
        assert_eq!(records.segment(&name("Vienna")).await.expect("read"), None);

        let graz = NewSegment { name: name("graz"), ..vienna("(a=3)") };
        let graz = records.put_segment(graz, Expect::Any, at(3)).await.expect("made");
        assert_eq!(records.segments(None, 9).await.expect("read"), [graz.clone(), changed.clone()]);
        assert_eq!(records.segments(None, 1).await.expect("read"), [graz]);
        assert_eq!(records.segments(Some(&name("graz")), 9).await.expect("read"), [changed]);
        assert!(is_missing(records.remove_segment(&name("linz"), Expect::Any, at(4)).await));
        let stale = records.remove_segment(&name("graz"), Expect::Revision(2), at(4)).await;
        assert!(matches!(stale, Err(StoreError::Changed(_))));
        records.remove_segment(&name("graz"), Expect::Revision(1), at(4)).await.expect("removed");
        assert_eq!(records.segment(&name("graz")).await.expect("read"), None);
        let told = ["segment vienna", "segment vienna", "segment graz", "segment graz"];
        assert_eq!(news(records, before).await, told);
    });
}

fn told_of(target: &str, cause: Cause) -> Report {
    let target: Target = target.parse().expect("a target");
    Report { target, address: None, cause, origin: "t".to_owned(), detail: "d".to_owned(), notification: None }
}

#[test]
fn suppressions_are_kept_counted_and_lifted() {
    check(async |records| {
        let policy = Policy { soft_bounces: 2, ..Policy::default() };
        let (bob, phone) = ("address/smtp/bob@example.org", "device/ann/phone");
        assert_eq!(records.newest_suppression(), ChangeSequence(0));
        let before = newest(records);
        let report = async |target, cause, now| {
            let known =
                records.report_suppressions(vec![told_of(target, cause)], &policy, now).await.expect("reported");
            (known[0].in_force, known[0].cause)
        };
        assert_eq!(report(bob, Cause::SoftBounce, at(1)).await, (false, Cause::SoftBounce));
        assert_eq!(report(bob, Cause::SoftBounce, at(2)).await, (true, Cause::SoftBounce));
        assert_eq!(report(bob, Cause::Complaint, at(3)).await, (true, Cause::Complaint));
        let place = newest(records);
        assert_eq!(records.newest_suppression(), place);
        assert_eq!(report(bob, Cause::HardBounce, at(4)).await, (true, Cause::Complaint));
        assert_eq!(newest(records), place, "what says nothing new is not told");
        assert_eq!(report(phone, Cause::HardBounce, at(4)).await, (true, Cause::HardBounce));
        let target = |text: &str| text.parse::<Target>().expect("a target");
        let found = records.suppression(&target(bob)).await.expect("read").expect("there");
        assert_eq!((found.since, found.updated_at, found.expires_at, found.bounces.len()), (at(3), at(3), None, 2));
        assert_eq!(records.suppression(&target("address/smtp/x")).await.expect("read"), None);

        let eve = Suppression {
            target: target("address/http/https://eve.example/Hook"),
            cause: Cause::Manual,
            expires_at: Some(at(9)),
            ..found
        };
        records.put_suppressions(vec![eve.clone(), eve.clone()]).await.expect("stored");
        let names = |found: Vec<Suppression>| found.iter().map(|one| one.target.to_string()).collect::<Vec<_>>();
        let all = SuppressionFilter::all(at(5));
        let list = async |filter: SuppressionFilter| names(records.suppressions(&filter, None, 9).await.expect("read"));
        let hook = "address/http/https://eve.example/Hook";
        assert_eq!(list(all.clone()).await, [hook, bob, phone]);
        let page = records.suppressions(&all, Some(&eve.target), 1).await.expect("read");
        assert_eq!(names(page), [bob]);
        assert_eq!(list(SuppressionFilter::all(at(9))).await, [bob, phone]);
        assert_eq!(list(SuppressionFilter { protocol: Some(name("smtp")), ..all.clone() }).await, [bob]);
        assert_eq!(list(SuppressionFilter { subscriber: Some(who("ann")), ..all.clone() }).await, [phone]);
        assert_eq!(list(SuppressionFilter { subscriber: Some(who("an")), ..all.clone() }).await, Vec::<String>::new());
        assert_eq!(list(SuppressionFilter { cause: Some(Cause::Complaint), ..all.clone() }).await, [bob]);
        assert_eq!(list(SuppressionFilter { in_force: Some(false), ..all.clone() }).await, Vec::<String>::new());
        assert_eq!(list(SuppressionFilter { contains: Some("EXAMPLE/h".to_owned()), ..all.clone() }).await, [hook]);
        assert_eq!(list(SuppressionFilter { contains: Some("address".to_owned()), ..all }).await, Vec::<String>::new());

        assert_eq!(records.prune_suppressions(at(9), 9).await.expect("pruned"), 1);
        records.remove_suppression(&target(bob)).await.expect("removed");
        assert!(is_missing(records.remove_suppression(&target(bob)).await));
        records.put_subscriber(person("ann", &["phone=sms"]), Expect::Any, at(9)).await.expect("stored");
        records.remove_subscriber(&who("ann"), Expect::Any, at(9)).await.expect("removed");
        assert_eq!(list(SuppressionFilter::all(at(0))).await, Vec::<String>::new());
        let feed = records.suppression_changes(before, 99).await.expect("the feed");
        let last = feed.last().map(|change| change.sequence);
        assert_eq!(Some(records.newest_suppression()), last);
        let of = |targets: &str| format!("suppressions of {targets}");
        let expected = [of(bob), of(bob), of(bob), of(phone), of(hook), of(hook), of(bob), of(phone)];
        assert_eq!(told(feed), expected);
    });
}

#[test]
fn failing_endpoints_are_remembered_until_they_are_well() {
    check(async |records| {
        let endpoint = |address: &str, failures| FailingEndpoint {
            key: EndpointKey { application: name("quakes"), channel: name("hook"), address: address.to_owned() },
            subscriber: Some(who("ann")),
            device: None,
            since: at(1),
            last: at(2),
            failures,
            reason: "500".to_owned(),
            warned_at: Some(at(2)),
            disabled_at: None,
        };
        let before = newest(records);
        records.keep_endpoints(vec![endpoint("b", 1), endpoint("a", 1)]).await.expect("kept");
        records.keep_endpoints(vec![endpoint("b", 2)]).await.expect("kept");
        let list =
            async |after: Option<&EndpointKey>, limit| records.failing_endpoints(after, limit).await.expect("read");
        assert_eq!(list(None, 9).await, [endpoint("a", 1), endpoint("b", 2)]);
        assert_eq!(list(None, 1).await, [endpoint("a", 1)]);
        assert_eq!(list(Some(&endpoint("a", 1).key), 9).await, [endpoint("b", 2)]);
        records.forget_endpoints(vec![endpoint("a", 1).key, endpoint("c", 1).key]).await.expect("forgotten");
        assert_eq!(list(None, 9).await, [endpoint("b", 2)]);
        assert_eq!(newest(records), before);
    });
}

#[test]
fn profiles_are_told_as_of_any_place() {
    check(async |records| {
        let put = async |id: &str, region: &str, devices: &[&str]| {
            let mut new = person(id, devices);
            new.profile.attributes = [("region".to_owned(), Value::from(region))].into();
            records.put_subscriber(new, Expect::Any, at(1)).await.expect("stored");
        };
        let asked = [SubscriberNumber(1), SubscriberNumber(1), SubscriberNumber(2)];
        let then = async |place: u64| {
            let found = records.profiles(&asked, ChangeSequence(place)).await.expect("told");
            let shown = found.iter().map(|image| match image {
                Some(image) => format!("{} {:?}", image.id, image.profile.attributes["region"]),
                None => "nobody".to_owned(),
            });
            shown.collect::<Vec<_>>().join(", ")
        };
        put("ann", "Vienna", &["d=sms"]).await;
        let vienna = then(u64::MAX).await;
        assert!(vienna.starts_with("ann Text(\"Vienna\"), ann Text(\"Vienna\"), nobody"), "{vienna}");
        let first = newest(records).0;
        // A device is no matter of the profile.
        put("ann", "Vienna", &["d=mail"]).await;
        let second = newest(records).0;
        put("ann", "Graz", &["d=mail"]).await;
        let third = newest(records).0;
        records.remove_subscriber(&who("ann"), Expect::Any, at(2)).await.expect("removed");
        assert_eq!([then(first).await, then(second).await], [vienna.clone(), vienna.clone()]);
        assert_eq!(then(third).await, vienna.replace("Vienna", "Graz"));
        assert_eq!(then(u64::MAX).await, "nobody, nobody, nobody");
    });
}

#[test]
fn memberships_are_told_as_of_any_place() {
    check(async |records| {
        let put = async |id: &str, attributes: &[(&str, i64)], devices: &[&str], enabled| {
            let mut new = person(id, devices);
            new.profile.enabled = enabled;
            new.profile.attributes =
                attributes.iter().map(|(name, value)| (name.to_string(), Value::Integer(*value))).collect();
            records.put_subscriber(new, Expect::Any, at(1)).await.expect("stored");
        };
        let segments = [name("vienna"), name("none"), name("texted")];
        let both = [SubscriberNumber(1), SubscriberNumber(2), SubscriberNumber(3), SubscriberNumber(1)];
        let then = async |place: u64| {
            let found = records.memberships(&segments, &both, ChangeSequence(place)).await.expect("told");
            found.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        let mut told: Vec<(u64, String)> = Vec::new();
        let mut now = async |expected: &str| {
            assert_eq!(then(u64::MAX).await, expected);
            told.push((newest(records).0, expected.to_owned()));
        };
        put("ann", &[("a", 1)], &["d=sms"], true).await;
        put("bob", &[("a", 2)], &["d=mail"], true).await;
        now("0 0 0 0").await;
        records.put_segment(vienna("(a=1)"), Expect::Any, at(2)).await.expect("stored");
        now("1 0 0 1").await;
        let texted = NewSegment { name: name("texted"), ..vienna("(channel=sms)") };
        records.put_segment(texted, Expect::Any, at(2)).await.expect("stored");
        now("5 0 0 5").await;
        put("bob", &[("a", 1)], &["d=mail"], true).await;
        now("5 1 0 5").await;
        put("bob", &[("a", 1)], &["d=sms"], true).await;
        now("5 5 0 5").await;
        put("ann", &[("a", 3)], &["d=mail"], true).await;
        now("0 5 0 0").await;
        records.put_segment(vienna("(&(a>=1)(enabled=TRUE))"), Expect::Any, at(3)).await.expect("stored");
        now("1 5 0 1").await;
        put("ann", &[("a", 3)], &["d=mail"], false).await;
        now("0 5 0 0").await;
        records.remove_subscriber(&who("bob"), Expect::Any, at(4)).await.expect("removed");
        now("0 0 0 0").await;
        put("ann", &[], &["d=sms"], true).await;
        now("4 0 0 4").await;
        records.remove_segment(&name("texted"), Expect::Any, at(5)).await.expect("removed");
        now("0 0 0 0").await;
        for (place, expected) in told.iter().rev() {
            assert_eq!(then(*place).await, *expected, "at {place}");
        }
    });
}

fn filter(text: &str) -> LdapFilter {
    LdapFilter::parse(text).expect("a filter")
}

#[test]
fn a_survey_goes_to_its_bounds() {
    check(async |records| {
        let lines: Vec<_> = (10..30)
            .map(|number| {
                let mut new = person(&format!("p{number}"), if number % 4 == 0 { &["a=sms"] } else { &["a=mail"] });
                new.profile.attributes.insert("Number".to_owned(), Value::Integer(number));
                new.profile.attributes.insert("other".to_owned(), Value::Text("x".into()));
                new.profile.enabled = number < 28;
                new
            })
            .collect();
        records.put_subscribers(lines, at(1)).await.expect("stored");
        let survey = async |text: &str, after: Option<&str>, looks, members, kept| {
            let bounds = SurveyBounds { looks, members, kept };
            let survey = records.survey(&filter(text), after.map(who).as_ref(), bounds).await.expect("surveyed");
            let found: Vec<String> = survey.found.iter().map(|found| found.id.to_string()).collect();
            (survey.members, found.join(" "), survey.looked_at, survey.reached.map(|id| id.to_string()))
        };
        let told = |members, found: &str, looked_at, reached: Option<&str>| {
            (members, found.to_owned(), looked_at, reached.map(str::to_owned))
        };
        const ALL: u64 = u64::MAX;
        assert_eq!(survey("(number>=25)", None, ALL, ALL, 2).await, told(5, "p25 p26", 20, None));
        assert_eq!(survey("(number>=25)", None, ALL, 2, 9).await, told(2, "p25 p26", 17, Some("p26")));
        assert_eq!(survey("(number>=25)", Some("p26"), ALL, ALL, 0).await, told(3, "", 3, None));
        assert_eq!(survey("(number>=25)", None, 16, ALL, 9).await, told(1, "p25", 16, Some("p25")));
        assert_eq!(survey("(&(number>=25)(enabled=TRUE))", None, ALL, ALL, 9).await.0, 3);
        assert_eq!(survey("(channel=sms)", None, ALL, ALL, 0).await.0, 5);
        assert_eq!(survey("(:caseIgnoreMatch:=SMS)", None, ALL, ALL, 0).await.0, 5);
        assert_eq!(survey("(created_at=19700101000001Z)", None, ALL, ALL, 0).await.0, 20);
        assert_eq!(survey("(created_at>=19700101000002Z)", None, ALL, ALL, 0).await.0, 0);
        // Conditions on the id spare looks.
        assert_eq!(survey("(id=p1*)", None, ALL, ALL, 0).await, told(10, "", 10, None));
        assert_eq!(survey("(&(id>=p15)(id<=p18)(number=16))", None, ALL, ALL, 9).await, told(1, "p16", 4, None));
        assert_eq!(survey("(id=p20)", Some("p15"), ALL, ALL, 9).await, told(1, "p20", 1, None));
        assert_eq!(survey("(id=p20)", Some("p20"), ALL, ALL, 9).await, told(0, "", 0, None));
        // Who is found is given whole.
        let bounds = SurveyBounds { looks: 99, members: 99, kept: 1 };
        let found = records.survey(&filter("(number=13)"), None, bounds).await.expect("surveyed").found;
        assert_eq!(found.into_iter().next(), records.subscriber(&who("p13")).await.expect("read"));
    });
}

#[test]
fn a_key_finds_its_subscription_again() {
    check(async |records| {
        records.put_subscriber(person("ann", &[]), Expect::Any, at(1)).await.expect("stored");
        records.put_subscriber(person("bob", &[]), Expect::Any, at(1)).await.expect("stored");
        let first = records.put_subscription(interest("ann", Some("home")), at(2)).await.expect("stored");
        let changed = NewSubscription {
            enabled: false,
            values: "{}".into(),
            device: Some(name("work")),
            ..interest("ann", Some("home"))
        };
        let second = records.put_subscription(changed, at(3)).await.expect("replaced");
        assert_eq!((second.id, second.revision), (first.id, 2));
        assert_eq!((second.created_at, second.updated_at), (at(2), at(3)));
        assert_eq!((second.enabled, &*second.values, second.device), (false, "{}", Some(name("work"))));
        // Another subscriber, class or application makes another subscription, and so does no key.
        let other_class = NewSubscription { class: name("far"), ..interest("ann", Some("home")) };
        let other_application = NewSubscription { application: name("stock"), ..interest("ann", Some("home")) };
        let lines = vec![
            interest("bob", Some("home")),
            other_class,
            other_application,
            interest("ann", None),
            interest("ann", None),
        ];
        let ids = records.put_subscriptions(lines, at(4)).await.expect("stored");
        let ids: std::collections::BTreeSet<u64> = ids.into_iter().map(|written| written.expect("stored").0).collect();
        assert_eq!(ids, (2..=6).collect());
        assert_eq!(records.counts().subscriptions, 6);
    });
}

#[test]
fn one_bad_line_does_not_stop_the_others() {
    check(async |records| {
        records.put_subscriber(person("ann", &[]), Expect::Any, at(1)).await.expect("stored");
        assert!(is_missing(records.put_subscription(interest("bob", None), at(1)).await));
        let before = newest(records);
        let again = NewSubscription { values: r#"{"magnitude":7}"#.into(), ..interest("ann", Some("k")) };
        let lines = vec![interest("ann", Some("k")), interest("bob", None), interest("ann", None), again];
        let written = records.put_subscriptions(lines, at(2)).await.expect("stored");
        assert!(matches!(&written[1], Err(StoreError::Missing(what)) if what.contains("bob")));
        let id = |line: usize| *written[line].as_ref().expect("stored");
        assert_eq!((id(0), id(2), id(3)), (SubscriptionId(1), SubscriptionId(2), SubscriptionId(1)));
        let replaced = records.subscription(id(0)).await.expect("read").expect("there");
        assert_eq!((replaced.revision, &*replaced.values), (2, r#"{"magnitude":7}"#));
        assert_eq!(news(records, before).await, ["s-1 to s-2", "s-1 to s-1"]);
        assert!(records.put_subscriptions(Vec::new(), at(3)).await.expect("nothing").is_empty());
    });
}

#[test]
fn a_subscription_is_changed_as_expected() {
    check(async |records| {
        records.put_subscriber(person("ann", &[]), Expect::Any, at(1)).await.expect("stored");
        let made = records.put_subscription(interest("ann", None), at(1)).await.expect("stored");
        let update = async |id, expect, values: &str| {
            records.update_subscription(id, change(Some(name("work")), false, values), expect, at(2)).await
        };
        assert!(is_missing(update(SubscriptionId(9), Expect::Any, "{}").await));
        assert!(matches!(update(made.id, Expect::Revision(2), "{}").await, Err(StoreError::Changed(_))));
        let changed = update(made.id, Expect::Revision(1), "{}").await.expect("changed");
        assert_eq!((changed.revision, changed.updated_at, changed.created_at), (2, at(2), at(1)));
        let before = newest(records);
        assert_eq!(update(made.id, Expect::Any, "{}").await.expect("the same"), changed);
        assert_eq!(newest(records), before, "the feed does not tell of what is there already");
        assert_eq!(records.subscription(made.id).await.expect("read"), Some(changed));
        let stale = records.remove_subscription(made.id, Expect::Revision(1), at(3)).await;
        assert!(matches!(stale, Err(StoreError::Changed(_))));
        records.remove_subscription(made.id, Expect::Revision(2), at(3)).await.expect("removed");
        assert!(is_missing(records.remove_subscription(made.id, Expect::Any, at(3)).await));
        let next = records.put_subscription(interest("ann", None), at(4)).await.expect("stored");
        assert_eq!(next.id, SubscriptionId(2), "numbers are never used twice");
    });
}

#[test]
fn pages_follow_each_other_under_writes() {
    check(async |records| {
        let people = (0..10).map(|n| person(&format!("p{n}"), &[])).collect();
        records.put_subscribers(people, at(1)).await.expect("stored");
        let lines = (0..10).map(|n| {
            let class = name(["near", "far", "deep"][n % 3]);
            NewSubscription { class, enabled: n != 4, ..interest(&format!("p{n}"), Some("k")) }
        });
        records.put_subscriptions(lines.collect(), at(1)).await.expect("stored");
        let pages = async |filter: SubscriptionFilter| {
            let mut seen = Vec::new();
            loop {
                let after = seen.last().copied();
                let page = records.subscriptions(&filter, after, 2).await.expect("a page");
                seen.extend(page.iter().map(|found| found.id));
                if page.len() < 2 {
                    return seen.into_iter().map(|id| id.0).collect::<Vec<_>>();
                }
            }
        };
        let all = SubscriptionFilter::default;
        assert_eq!(pages(all()).await, (1..=10).collect::<Vec<_>>());
        assert_eq!(pages(SubscriptionFilter { application: Some(name("quakes")), ..all() }).await.len(), 10);
        assert_eq!(pages(SubscriptionFilter { application: Some(name("none")), ..all() }).await, [0; 0]);
        assert_eq!(pages(SubscriptionFilter { class: Some(name("far")), ..all() }).await, [2, 5, 8]);
        assert_eq!(pages(SubscriptionFilter { enabled: Some(false), ..all() }).await, [5]);
        assert_eq!(pages(SubscriptionFilter { subscriber: Some(who("p3")), ..all() }).await, [4]);
        assert_eq!(pages(SubscriptionFilter { subscriber: Some(who("nobody")), ..all() }).await, [0; 0]);
        let key = SubscriptionFilter { key: Some("k".into()), class: Some(name("deep")), ..all() };
        assert_eq!(pages(key.clone()).await, [3, 6, 9]);
        assert_eq!(pages(SubscriptionFilter { subscriber: Some(who("p0")), ..key }).await, [0; 0]);

        let first = records.subscriptions(&all(), None, 4).await.expect("a page");
        records.remove_subscription(SubscriptionId(4), Expect::Any, at(2)).await.expect("removed");
        records.remove_subscription(SubscriptionId(6), Expect::Any, at(2)).await.expect("removed");
        records.put_subscription(interest("p1", None), at(2)).await.expect("stored");
        let after = first.last().map(|last| last.id);
        let rest = records.subscriptions(&all(), after, 100).await.expect("a page");
        assert_eq!(rest.iter().map(|found| found.id.0).collect::<Vec<_>>(), [5, 7, 8, 9, 10, 11]);
        let beyond = records.subscriptions(&all(), Some(SubscriptionId(u64::MAX)), 9).await.expect("a page");
        assert!(beyond.is_empty());
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
        records.remove_subscriber(&who("ann"), Expect::Any, at(2)).await.expect("removed");
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
fn the_feed_tells_in_order() {
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
        records.put_subscriber(quiet, Expect::Any, at(3)).await.expect("stored");
        assert_eq!(news(records, after_import).await, ["profile 1"], "a rule may read the locale");
        let renaming = newest(records);
        let moved = Device { address: "elsewhere@mail.example".into(), ..mailbox("") };
        records.put_device(&who("p0"), &name("a"), moved, at(3)).await.expect("stored");
        assert_eq!(newest(records), renaming, "an address does not matter to the index");

        let off = NewSubscriber { profile: Profile { enabled: false, ..renamed }, devices: None, ..person("p0", &[]) };
        records.put_subscriber(off, Expect::Any, at(4)).await.expect("stored");
        let bounced = Device { state: DeviceState::Bounced, ..mailbox("p1@mail.example") };
        records.put_device(&who("p1"), &name("a"), bounced, at(4)).await.expect("stored");
        records.put_application(&name("quakes"), "q", "ann", at(5)).await.expect("stored");
        records
            .update_subscription(SubscriptionId(7), change(None, false, "{}"), Expect::Any, at(6))
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
fn a_follower_that_was_away_too_long_is_told_so() {
    check(async |records| {
        records.put_subscriber(person("ann", &[]), Expect::Any, at(1)).await.expect("stored");
        // Each time a thousand are replaced, they take up a thousand places.
        for time in 0..=(FEW + FEED_TRIMMED_AT_ONCE) / 1_000 {
            let line = |n| NewSubscription {
                values: format!(r#"{{"time":{time}}}"#).into(),
                ..interest("ann", Some(&format!("{n}")))
            };
            records.put_subscriptions((0..1_000).map(line).collect(), at(1)).await.expect("stored");
        }
        let newest = newest(records);
        assert_eq!(newest.0, 1 + FEW + FEED_TRIMMED_AT_ONCE);
        let kept = ChangeSequence(newest.0 - FEW);
        for trimmed in [0, 1, kept.0 - 1] {
            assert!(is_missing(records.changes(ChangeSequence(trimmed), 10).await), "{trimmed}");
        }
        assert_eq!(news(records, kept).await, ["s-1 to s-1000"; 2]);
        assert!(news(records, newest).await.is_empty());
    });
}

#[test]
fn who_was_told_before_is_told_at_the_address_of_now() {
    check(async |records| {
        records
            .put_subscribers(vec![person("ann", &["a=mail"]), person("bob", &["a=mail"])], at(1))
            .await
            .expect("stored");
        let mut wanted = Vec::new();
        for subscriber in ["ann", "bob", "ann"] {
            let key = format!("{}", wanted.len());
            wanted.push(records.put_subscription(interest(subscriber, Some(&key)), at(2)).await.expect("stored").id);
        }
        let told = async || {
            let found = records.recipients(&wanted).await.expect("read");
            let address = |recipient: Recipient| recipient.device().map(|(_, device)| device.address.clone());
            found.into_iter().map(|found| found.and_then(address)).collect::<Vec<_>>()
        };
        let [ann, bob] = ["ann@mail.example", "bob@mail.example"].map(|address| Some(address.to_owned()));
        for _ in 0..2 {
            assert_eq!(told().await, [ann.clone(), bob.clone(), ann.clone()]);
        }
        records.put_device(&who("ann"), &name("a"), mailbox("ann@new.example"), at(3)).await.expect("stored");
        let moved = Some("ann@new.example".to_owned());
        assert_eq!(told().await, [moved.clone(), bob.clone(), moved.clone()]);
        let mut away = person("bob", &["a=mail"]);
        away.profile.locale = Some("de".into());
        records.put_subscriber(away, Expect::Any, at(4)).await.expect("stored");
        let found = records.recipients(&wanted[1..2]).await.expect("read").pop().flatten().expect("there");
        assert_eq!(found.profile.locale.as_deref(), Some("de"));
        records.remove_subscriber(&who("bob"), Expect::Any, at(5)).await.expect("removed");
        assert_eq!(told().await, [moved.clone(), None, moved.clone()]);
        records.put_subscriber(person("bob", &["a=mail"]), Expect::Any, at(6)).await.expect("stored");
        assert_eq!(told().await, [moved.clone(), None, moved], "another of that name has other subscriptions");
    });
}

#[test]
fn the_channel_is_that_of_the_device_that_is_told() {
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

        let wanted: Vec<_> = [9, 2, 77, 3, 7, 2].map(SubscriptionId).to_vec();
        let found = records.recipients(&wanted).await.expect("read");
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
        for (found, id) in found.iter().zip(&wanted) {
            let stored = records.subscription(*id).await.expect("read");
            assert_eq!(found.as_ref().map(|found| &found.subscription), stored.as_ref());
        }
        assert!(records.recipients(&[]).await.expect("read").is_empty());
    });
}

#[test]
fn any_text_is_kept_as_it_is() {
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
        // Each version is a commit of its own, so a few dozen will do.
        let texts: Vec<_> = texts.iter().rev().step_by(10).collect();
        for text in &texts {
            records.put_application(&name("naughty"), text, text, at(3)).await.expect("stored");
        }
        let history = records.application_history(&name("naughty")).await.expect("read");
        assert!(history.iter().rev().map(|version| &version.text).eq(texts.iter().copied()));
        assert!(history.iter().rev().map(|version| &version.author).eq(texts.iter().copied()));
    });
}

/// A subscriber id as near to a text as the rules for ids allow.
fn id_like(text: &str, n: usize) -> SubscriberId {
    let text: String = text.chars().filter(|c| !c.is_control() && *c != '/').take(200).collect();
    who(&format!("{text}#{n}"))
}

#[test]
fn api_keys_are_kept_as_hashes() {
    check(async |records| {
        let key = |id: &str, seconds| ApiKey {
            id: id.to_owned(),
            hash: [7; 32],
            description: "for \"ann\"".to_owned(),
            scopes: vec!["events:write".to_owned(), "records:read".to_owned()],
            created_at: at(seconds),
            expires_at: (seconds > 1).then(|| at(99)),
        };
        records.put_api_key(key("b", 1)).await.expect("stored");
        records.put_api_key(key("a", 2)).await.expect("stored");
        assert!(matches!(records.put_api_key(key("a", 3)).await, Err(StoreError::Taken(_))));
        assert_eq!(records.api_keys().await.expect("read"), [key("b", 1), key("a", 2)]);
        records.remove_api_key("b").await.expect("removed");
        assert!(is_missing(records.remove_api_key("b").await));
        assert_eq!(records.api_keys().await.expect("read"), [key("a", 2)]);
        assert_eq!(news(records, ChangeSequence(0)).await, ["API key"; 3]);
    });
}

#[test]
fn a_probe_reaches_the_disk() {
    check(async |records| {
        records.probe().await.expect("the store answers");
        records.probe().await.expect("and answers again");
        assert!(!records.installation().is_empty());
        assert_ne!(*records.secret(), [0; 32]);
    });
}

/// Does the same random things to both backends, and compares each answer and in the end everything.
#[test]
fn the_backends_agree() {
    let seed =
        std::env::var("TOCSIN_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("TOCSIN_SEED={seed}");
    let mut luck = fastrand::Rng::with_seed(seed);
    let folder = tempfile::tempdir().expect("a folder");
    let memory = MemoryRecords::with_feed_kept(FEW).expect("random numbers");
    let mut sqlite = Arc::new(open(folder.path()));
    let mut history: BTreeMap<ChangeSequence, Vec<IndexedSubscription>> = BTreeMap::new();
    for step in 0..600 {
        let saved = luck.clone();
        let expected = block_on(random_act(&memory, &mut luck, step));
        let found = block_on(random_act(&*sqlite, &mut saved.clone(), step));
        assert_eq!(found, expected, "step {step}");
        assert_eq!(sqlite.counts(), memory.counts(), "step {step}");
        assert_eq!(block_on(class_counts(&*sqlite)), block_on(class_counts(&memory)), "step {step}");
        assert_eq!(newest(&*sqlite), newest(&memory), "step {step}");
        // The past is what the present was once.
        let now = block_on(memory.indexed_subscriptions(&name("a"), None, usize::MAX)).expect("read");
        history.insert(newest(&memory), now);
        let (at, expected) = luck.choice(&history).expect("there is a past");
        let everything = [SubscriptionId(0)..=SubscriptionId(u64::MAX)];
        let found = block_on(sqlite.indexed_at(&name("a"), &everything, *at)).expect("read");
        assert!(found == *expected, "step {step} as of {at:?}: {found:#?} instead of {expected:#?}");
        let found = block_on(memory.indexed_at(&name("a"), &everything, *at)).expect("read");
        assert!(found == *expected, "step {step} as of {at:?} in memory: {found:#?} instead of {expected:#?}");
        if step % 200 == 199 {
            drop(sqlite);
            sqlite = Arc::new(open(folder.path()));
        }
    }
    let everything = async |records: &dyn Records| {
        let subscribers = records.subscribers(&SubscriberFilter::default(), None, usize::MAX).await;
        let subscriptions = records.subscriptions(&SubscriptionFilter::default(), None, usize::MAX).await;
        let ids: Vec<_> = (0..1_000).map(SubscriptionId).collect();
        let recipients = records.recipients(&ids).await;
        let indexed = records.indexed_subscriptions(&name("a"), None, usize::MAX).await;
        let segments = records.segments(None, usize::MAX).await;
        let changes = records.changes(ChangeSequence(newest(records).0.saturating_sub(FEW)), usize::MAX).await;
        let suppressions = records.suppressions(&SuppressionFilter::all(at(0)), None, usize::MAX).await;
        format!(
            "{subscribers:#?}{subscriptions:#?}{recipients:#?}{indexed:#?}{segments:#?}{suppressions:#?}{changes:#?}"
        )
    };
    assert!(block_on(everything(&*sqlite)) == block_on(everything(&memory)), "the backends differ in the end");
}

async fn random_act(records: &dyn Records, luck: &mut fastrand::Rng, step: i64) -> String {
    fn pick(luck: &mut fastrand::Rng, names: &[&str]) -> Name {
        name(names[luck.usize(..names.len())])
    }
    fn pick_id(luck: &mut fastrand::Rng) -> SubscriberId {
        who(&format!("p{}", luck.u32(..12)))
    }
    // About one subscription is made in three steps, so this finds old, new and removed ones, and some to come.
    let numbers = 10 + step.unsigned_abs() / 3;
    let pick_subscription = |luck: &mut fastrand::Rng| SubscriptionId(luck.u64(..numbers));
    fn pick_expect(luck: &mut fastrand::Rng) -> Expect {
        match luck.u32(..8) {
            0 => Expect::Absent,
            1 => Expect::Present,
            2 => Expect::Revision(luck.u64(1..4)),
            _ => Expect::Any,
        }
    }
    fn make_device(luck: &mut fastrand::Rng) -> Device {
        let state = luck.choice([DeviceState::Active, DeviceState::Disabled, DeviceState::Bounced]).expect("three");
        Device { channel: pick(luck, &["mail", "sms"]), address: format!("x{}", luck.u32(..5)), state }
    }
    fn make_subscriber(luck: &mut fastrand::Rng) -> NewSubscriber {
        let attributes = (0..luck.usize(..3)).map(|n| (format!("k{n}"), Value::Integer(luck.i64(..3))));
        let profile = Profile {
            attributes: attributes.collect(),
            enabled: luck.u32(..4) > 0,
            locale: luck.bool().then(|| "de".to_owned()),
            time_zone: None,
        };
        let count = luck.usize(..4);
        let devices =
            luck.bool().then(|| (0..count).map(|_| (pick(luck, &["a", "b", "c"]), make_device(luck))).collect());
        NewSubscriber { id: pick_id(luck), profile, devices, preferences: None }
    }
    fn make_terms(luck: &mut fastrand::Rng) -> Terms {
        let filter = || Filter { dialect: Dialect::Jmespath, text: "a == `1`".into() };
        let schedule = || "DTSTART;TZID=Europe/Vienna:20270104T080000\nRRULE:FREQ=DAILY".into();
        Terms { filter: (luck.u32(..4) == 0).then(filter), schedule: (luck.u32(..4) == 0).then(schedule) }
    }
    fn make_subscription(luck: &mut fastrand::Rng) -> NewSubscription {
        NewSubscription {
            application: pick(luck, &["a", "b"]),
            class: pick(luck, &["one", "two"]),
            subscriber: pick_id(luck),
            key: luck.bool().then(|| format!("k{}", luck.u32(..3))),
            device: (luck.u32(..3) == 0).then(|| pick(luck, &["a", "b", "c"])),
            enabled: luck.u32(..4) > 0,
            values: format!(r#"{{"n":{}}}"#, luck.u32(..3)).into(),
            terms: make_terms(luck),
        }
    }
    let now = at(step);
    match luck.u32(..24) {
        0 | 1 => format!("{:?}", records.put_subscriber(make_subscriber(luck), pick_expect(luck), now).await),
        2 => {
            let many = (0..luck.usize(..6)).map(|_| make_subscriber(luck)).collect();
            format!("{:?}", records.put_subscribers(many, now).await)
        }
        3 => format!("{:?}", records.remove_subscriber(&pick_id(luck), pick_expect(luck), now).await),
        4 | 5 => {
            let (id, device) = (pick_id(luck), pick(luck, &["a", "b", "c"]));
            format!("{:?}", records.put_device(&id, &device, make_device(luck), now).await)
        }
        6 => {
            let (id, device) = (pick_id(luck), pick(luck, &["a", "b", "c"]));
            format!("{:?}", records.remove_device(&id, &device, now).await)
        }
        7 => format!("{:?}", records.put_subscription(make_subscription(luck), now).await),
        8 | 9 => {
            let many = (0..luck.usize(..9)).map(|_| make_subscription(luck)).collect();
            format!("{:?}", records.put_subscriptions(many, now).await)
        }
        10 => {
            let new = make_subscription(luck);
            let (id, expect) = (pick_subscription(luck), pick_expect(luck));
            format!("{:?}", records.update_subscription(id, new.change(), expect, now).await)
        }
        11 => format!("{:?}", records.remove_subscription(pick_subscription(luck), pick_expect(luck), now).await),
        12 => {
            let application = pick(luck, &["a", "b"]);
            if luck.u32(..10) == 0 {
                format!("{:?}", records.remove_application(&application, now).await)
            } else {
                format!("{:?}", records.put_application(&application, "text", "ann", now).await)
            }
        }
        13 => {
            let filter = SubscriberFilter {
                id_prefix: luck.bool().then(|| "p1".to_owned()),
                address: luck.bool().then(|| format!("x{}", luck.u32(..5))),
                locale: luck.bool().then(|| "de".to_owned()),
                enabled: luck.bool().then(|| luck.bool()),
                attribute: None,
            };
            let after = luck.bool().then(|| pick_id(luck));
            format!("{:?}", records.subscribers(&filter, after.as_ref(), luck.usize(..5)).await)
        }
        14 => {
            let filter = SubscriptionFilter {
                application: luck.bool().then(|| pick(luck, &["a", "b"])),
                class: luck.bool().then(|| pick(luck, &["one", "two"])),
                subscriber: (luck.u32(..4) == 0).then(|| pick_id(luck)),
                key: (luck.u32(..4) == 0).then(|| "k1".to_owned()),
                enabled: luck.bool().then(|| luck.bool()),
            };
            let after = luck.bool().then(|| pick_subscription(luck));
            format!("{:?}", records.subscriptions(&filter, after, luck.usize(..9)).await)
        }
        15 => {
            let application = pick(luck, &["a", "b"]);
            let after = luck.bool().then(|| pick_subscription(luck));
            format!("{:?}", records.indexed_subscriptions(&application, after, luck.usize(..50)).await)
        }
        16 => {
            let application = pick(luck, &["a", "b"]);
            let ranges: Vec<_> =
                (0..luck.usize(..4)).map(|_| pick_subscription(luck)..=pick_subscription(luck)).collect();
            let at = ChangeSequence(luck.u64(..=newest(records).0));
            let subscribers: Vec<_> = (0..luck.usize(..3)).map(|_| SubscriberNumber(luck.u64(1..15))).collect();
            let owned = records.subscriptions_of(&subscribers, at).await;
            format!("{:?} {owned:?}", records.indexed_at(&application, &ranges, at).await)
        }
        17 => {
            let filter = ["(k0=1)", "(!(k1>=1))", "(|(channel=sms)(locale=*))"][luck.usize(..3)].into();
            let new = NewSegment { name: pick(luck, &["a", "b"]), description: None, filter };
            format!("{:?}", records.put_segment(new, pick_expect(luck), now).await)
        }
        21 => {
            let target = luck.choice(["address/smtp/x1", "address/http/x2", "device/p1/a"]).expect("three");
            let cause = *luck.choice(&Cause::ALL).expect("some");
            let reports = (0..luck.usize(..4)).map(|_| told_of(target, cause)).collect();
            let policy = Policy { soft_bounces: 3, soft_bounce_lasts: None, ..Policy::default() };
            format!("{:?}", records.report_suppressions(reports, &policy, now).await)
        }
        22 => match luck.u32(..3) {
            0 => format!("{:?}", records.prune_suppressions(now, luck.usize(..3)).await),
            1 => {
                let target = "address/smtp/x1".parse().expect("a target");
                format!("{:?}", records.remove_suppression(&target).await)
            }
            _ => {
                let protocol = luck.bool().then(|| name("smtp"));
                let filter = SuppressionFilter { protocol, ..SuppressionFilter::all(now) };
                format!("{:?}", records.suppressions(&filter, None, luck.usize(..4)).await)
            }
        },
        18 => format!("{:?}", records.remove_segment(&pick(luck, &["a", "b"]), pick_expect(luck), now).await),
        19 => {
            let texts = ["(k0>=1)", "(!(k1=2))", "(channel=sms)", "(&(id=p1*)(locale=DE))", "(:integerMatch:=1)"];
            let filter = filter(texts[luck.usize(..texts.len())]);
            let after = luck.bool().then(|| pick_id(luck));
            let bounds = SurveyBounds { looks: luck.u64(1..9), members: luck.u64(1..9), kept: luck.usize(..3) };
            format!("{:?}", records.survey(&filter, after.as_ref(), bounds).await)
        }
        20 => {
            let at = ChangeSequence(newest(records).0.saturating_sub(luck.u64(..100)));
            let subscribers: Vec<_> = (0..60).map(SubscriberNumber).collect();
            let profiles = records.profiles(&subscribers, at).await;
            format!("{:?} {profiles:?}", records.memberships(&[name("a"), name("b")], &subscribers, at).await)
        }
        _ => {
            let ids: Vec<_> = (0..luck.usize(..20)).map(|_| pick_subscription(luck)).collect();
            format!("{:?}", records.recipients(&ids).await)
        }
    }
}

/// A subscription with a schedule.
fn scheduled(subscriber: &str, key: &str, schedule: Option<&str>) -> NewSubscription {
    let terms = Terms { schedule: schedule.map(Box::from), ..Terms::default() };
    NewSubscription { terms, ..interest(subscriber, Some(key)) }
}

const FLOATING: &str = "DTSTART:20270104T080000\nRRULE:FREQ=DAILY";
const VIENNA: &str = "DTSTART;TZID=Europe/Vienna:20270104T080000\nRRULE:FREQ=DAILY";
const WEEKLY: &str = "DTSTART:20270104T080000Z\nRRULE:FREQ=WEEKLY";

async fn members(records: &dyn Records, schedule: &str) -> Vec<(u64, String)> {
    let found =
        records.scheduled_subscriptions(&name("quakes"), &name("near"), schedule, None, 99).await.expect("read");
    found.into_iter().map(|found| (found.subscription.id.0, found.since.to_string())).collect()
}

fn at_time(text: &str) -> Timestamp {
    text.parse().expect("a time")
}

#[test]
fn subscriptions_with_the_same_due_times_are_together() {
    check(async |records| {
        let in_zone = |id: &str, zone: Option<&str>| {
            let profile = Profile { time_zone: zone.map(str::to_owned), ..Profile::default() };
            NewSubscriber { profile, ..person(id, &["post=mail"]) }
        };
        let morning = at_time("2027-01-05T06:30:00Z");
        for (id, zone) in [("ann", Some("Europe/Vienna")), ("bob", None), ("eve", None)] {
            records.put_subscriber(in_zone(id, zone), Expect::Any, at(1)).await.expect("stored");
        }
        let lines = vec![
            scheduled("ann", "1", Some(FLOATING)),
            scheduled("bob", "1", Some(VIENNA)),
            scheduled("bob", "2", Some(FLOATING)),
            scheduled("eve", "1", None),
            scheduled("eve", "2", Some(WEEKLY)),
        ];
        let ids: Vec<u64> = records
            .put_subscriptions(lines, morning)
            .await
            .expect("stored")
            .into_iter()
            .map(|written| written.expect("stored").0)
            .collect();
        let since = morning.to_string();
        assert_eq!(members(records, VIENNA).await, [(ids[0], since.clone()), (ids[1], since.clone())]);
        let utc = "DTSTART:20270104T080000Z\nRRULE:FREQ=DAILY";
        assert_eq!(members(records, utc).await, [(ids[2], since.clone())]);
        let all = records.schedules(&name("quakes"), 0, 99).await.expect("read");
        assert_eq!(all.iter().map(|found| &*found.schedule).collect::<Vec<_>>(), [VIENNA, utc, WEEKLY]);
        assert!(all.iter().all(|found| found.class == name("near") && found.made_at == morning));
        let later = records.schedules(&name("quakes"), all[0].number, 1).await.expect("read");
        assert_eq!(later, all[1..2]);
        let (application, class, first) = (name("quakes"), name("near"), Some(SubscriptionId(ids[0])));
        let page = records.scheduled_subscriptions(&application, &class, VIENNA, first, 9).await.expect("read");
        assert_eq!(page.iter().map(|found| found.subscription.id.0).collect::<Vec<_>>(), [ids[1]]);
        assert_eq!(page[0].subscription.channel, Some(name("mail")));
        assert!(page[0].joined > ChangeSequence(0) && page[0].joined <= newest(records));
        let of = records.schedule_of(SubscriptionId(ids[0])).await.expect("read");
        assert_eq!(of, Some((VIENNA.into(), morning)));
        assert_eq!(records.schedule_of(SubscriptionId(ids[3])).await.expect("read"), None);

        // Whoever moves takes along what the last run has told: at 07:00 UTC it is 08:00 in Vienna.
        let noon = at_time("2027-01-05T12:00:00Z");
        records.put_subscription(scheduled("bob", "1", Some(WEEKLY)), noon).await.expect("stored");
        assert_eq!(members(records, VIENNA).await, [(ids[0], since.clone())]);
        assert_eq!(
            members(records, WEEKLY).await,
            [(ids[1], "2027-01-05T07:00:00Z".to_owned()), (ids[4], since.clone())]
        );
        let before = newest(records);
        records.put_subscriber(in_zone("ann", Some("Asia/Tokyo")), Expect::Any, noon).await.expect("stored");
        assert_eq!(news(records, before).await, ["profile 1", "subscriber 1"], "it matters to her schedule");
        let tokyo = VIENNA.replace("Europe/Vienna", "Asia/Tokyo");
        let moved = records.scheduled_subscriptions(&application, &class, &tokyo, None, 9).await.expect("read");
        assert!(moved[0].joined > before);
        assert_eq!(members(records, &tokyo).await, [(ids[0], "2027-01-05T07:00:00Z".to_owned())]);

        // Who is disabled is not due, and begins anew later.
        let disabled =
            SubscriptionChange { terms: scheduled("x", "x", Some(FLOATING)).terms, ..change(None, false, "{}") };
        let enabled = SubscriptionChange { enabled: true, ..disabled.clone() };
        let third = SubscriptionId(ids[2]);
        records.update_subscription(third, disabled, Expect::Any, noon).await.expect("stored");
        assert!(members(records, utc).await.is_empty());
        assert!(
            !records.forget_schedule(&name("quakes"), &name("near"), utc).await.expect("asked"),
            "it may come back"
        );
        let evening = at_time("2027-01-05T20:00:00Z");
        records.update_subscription(third, enabled, Expect::Any, evening).await.expect("stored");
        assert_eq!(members(records, utc).await, [(ids[2], evening.to_string())]);

        records.remove_subscriber(&who("bob"), Expect::Any, evening).await.expect("removed");
        assert!(members(records, utc).await.is_empty());
        let newest = records.schedules(&name("quakes"), 0, 99).await.expect("read").pop().expect("some").number;
        assert!(records.forget_schedule(&name("quakes"), &name("near"), utc).await.expect("asked"));
        records.put_subscription(scheduled("eve", "1", Some(utc)), evening).await.expect("stored");
        let back = records.schedules(&name("quakes"), newest, 99).await.expect("read");
        assert_eq!(back.iter().map(|found| &*found.schedule).collect::<Vec<_>>(), [utc], "it is new again");
        records.put_subscription(scheduled("eve", "1", None), evening).await.expect("stored");
        assert!(members(records, utc).await.is_empty());
    });
}
