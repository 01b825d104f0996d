//! Conformance: subscriptions, their keys, changes and pages.

use super::*;

#[test]
fn a_key_finds_its_subscription_again() {
    check(async |records| {
        records.put_subscriber(person("ann", &[]), Precondition::Any, at(1)).await.expect("stored");
        records.put_subscriber(person("bob", &[]), Precondition::Any, at(1)).await.expect("stored");
        let first = records.put_subscription(interest("ann", Some("home")), at(2)).await.expect("stored");
        let changed = NewSubscription {
            enabled: Some(false),
            values: "{}".into(),
            device: Some(name("work")),
            ..interest("ann", Some("home"))
        };
        let second = records.put_subscription(changed, at(3)).await.expect("replaced");
        assert_eq!((second.id, second.revision), (first.id, 2));
        assert_eq!((second.created_at, second.updated_at), (at(2), at(3)));
        assert_eq!((second.enabled, &*second.values, second.device), (false, "{}", Some(name("work"))));
        // Another subscriber, class or application, or no key, makes another subscription.
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
fn snoozed_subscriptions_wake_on_time() {
    check(async |records| {
        records.put_subscriber(person("ann", &[]), Precondition::Any, at(1)).await.expect("stored");
        let snoozed = |until| {
            let terms = SubscriptionParams { snoozed_until: Some(at(until)), ..SubscriptionParams::default() };
            NewSubscription { terms, ..interest("ann", None) }
        };
        let made = records.put_subscription(snoozed(9), at(2)).await.expect("stored");
        assert_eq!((made.enabled, made.terms.snoozed_until), (false, Some(at(9))));
        // A time in the past is ignored, and so is any time for a disabled subscription.
        let past = records.put_subscription(snoozed(2), at(2)).await.expect("stored");
        let disabled = NewSubscription { enabled: Some(false), ..snoozed(9) };
        let disabled = records.put_subscription(disabled, at(2)).await.expect("stored");
        let shown = [past, disabled].map(|stored| (stored.enabled, stored.terms.snoozed_until));
        assert_eq!(shown, [(true, None), (false, None)]);
        assert_eq!(records.wake_subscriptions(at(8), 9).await.expect("none"), 0);
        let before = newest(records);
        assert_eq!(records.wake_subscriptions(at(9), 9).await.expect("one"), 1);
        let woken = records.subscription(made.id).await.expect("read").expect("there");
        assert_eq!((woken.enabled, woken.terms.snoozed_until), (true, None));
        assert_eq!((woken.revision, woken.updated_at), (2, at(9)));
        assert_eq!(news(records, before).await, ["s-1 to s-1"]);
        assert_eq!(records.wake_subscriptions(at(9), 9).await.expect("none"), 0);
    });
}

#[test]
fn b5_a_write_without_a_state_keeps_the_stored_one() {
    check(async |records| {
        records.put_subscriber(person("ann", &[]), Precondition::Any, at(1)).await.expect("stored");
        let silent =
            |values: &str| NewSubscription { enabled: None, values: values.into(), ..interest("ann", Some("home")) };
        let state = |stored: Subscription| (stored.enabled, stored.terms.snoozed_until, stored.values.to_string());
        let made = records.put_subscription(silent("{}"), at(2)).await.expect("stored");
        let id = made.id;
        assert_eq!(state(made), (true, None, "{}".to_owned()), "a new subscription is enabled");
        // One that its recipient ended.
        let end =
            UpdateSubscription { id, change: change(None, false, "{}"), expect: Precondition::Present, now: at(3) };
        records.update_subscription(end).await.expect("ended");
        let put = records.put_subscription(silent(r#"{"magnitude":1}"#), at(4)).await.expect("stored");
        assert_eq!(state(put), (false, None, r#"{"magnitude":1}"#.to_owned()));
        let twice = vec![silent(r#"{"magnitude":2}"#), silent(r#"{"magnitude":3}"#)];
        records.put_subscriptions(twice, at(5)).await.expect("stored");
        let read = records.subscription(id).await.expect("read").expect("there");
        assert_eq!(state(read), (false, None, r#"{"magnitude":3}"#.to_owned()));
        // A snooze has no effect on a disabled subscription; an enabled one keeps its snooze until its end.
        let terms = |until| SubscriptionParams { snoozed_until: Some(at(until)), ..SubscriptionParams::default() };
        let put = records.put_subscription(NewSubscription { terms: terms(9), ..silent("{}") }, at(6)).await;
        assert_eq!(state(put.expect("stored")), (false, None, "{}".to_owned()));
        let snoozed = NewSubscription { enabled: Some(true), terms: terms(9), ..silent("{}") };
        records.put_subscription(snoozed, at(6)).await.expect("stored");
        let change = SubscriptionChange { enabled: None, ..change(None, true, "{}") };
        let update = UpdateSubscription { id, change, expect: Precondition::Present, now: at(7) };
        let kept = records.update_subscription(update).await.expect("stored");
        assert_eq!(state(kept), (false, Some(at(9)), "{}".to_owned()));
        let later = records.put_subscription(NewSubscription { terms: terms(20), ..silent("{}") }, at(8)).await;
        assert_eq!(state(later.expect("stored")), (false, Some(at(20)), "{}".to_owned()));
        let woken = records.put_subscription(NewSubscription { terms: terms(0), ..silent("{}") }, at(8)).await;
        assert_eq!(state(woken.expect("stored")), (true, None, "{}".to_owned()), "a time in the past ends it");
    });
}

#[test]
fn one_bad_item_does_not_stop_the_others() {
    check(async |records| {
        records.put_subscriber(person("ann", &[]), Precondition::Any, at(1)).await.expect("stored");
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
        records.put_subscriber(person("ann", &[]), Precondition::Any, at(1)).await.expect("stored");
        let made = records.put_subscription(interest("ann", None), at(1)).await.expect("stored");
        let update = async |id, expect, values: &str| {
            records
                .update_subscription(UpdateSubscription {
                    id,
                    change: change(Some(name("work")), false, values),
                    expect,
                    now: at(2),
                })
                .await
        };
        assert!(is_missing(update(SubscriptionId(9), Precondition::Any, "{}").await));
        assert!(matches!(update(made.id, Precondition::Revision(2), "{}").await, Err(StoreError::Changed(_))));
        let changed = update(made.id, Precondition::Revision(1), "{}").await.expect("changed");
        assert_eq!((changed.revision, changed.updated_at, changed.created_at), (2, at(2), at(1)));
        let before = newest(records);
        assert_eq!(update(made.id, Precondition::Any, "{}").await.expect("the same"), changed);
        assert_eq!(newest(records), before, "an unchanged value is not logged");
        assert_eq!(records.subscription(made.id).await.expect("read"), Some(changed));
        let stale = records.remove_subscription(made.id, Precondition::Revision(1), at(3)).await;
        assert!(matches!(stale, Err(StoreError::Changed(_))));
        records.remove_subscription(made.id, Precondition::Revision(2), at(3)).await.expect("removed");
        assert!(is_missing(records.remove_subscription(made.id, Precondition::Any, at(3)).await));
        let next = records.put_subscription(interest("ann", None), at(4)).await.expect("stored");
        assert_eq!(next.id, SubscriptionId(2), "numbers are never used twice");
    });
}

#[test]
fn pages_are_consistent_under_writes() {
    check(async |records| {
        let people = (0..10).map(|n| person(&format!("p{n}"), &[])).collect();
        records.put_subscribers(people, at(1)).await.expect("stored");
        let lines = (0..10).map(|n| {
            let class = name(["near", "far", "deep"][n % 3]);
            NewSubscription { class, enabled: Some(n != 4), ..interest(&format!("p{n}"), Some("k")) }
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
        assert_eq!(pages(SubscriptionFilter { subscriber: Some(subscriber_id("p3")), ..all() }).await, [4]);
        assert_eq!(pages(SubscriptionFilter { subscriber: Some(subscriber_id("nobody")), ..all() }).await, [0; 0]);
        let key = SubscriptionFilter { key: Some("k".into()), class: Some(name("deep")), ..all() };
        assert_eq!(pages(key.clone()).await, [3, 6, 9]);
        assert_eq!(pages(SubscriptionFilter { subscriber: Some(subscriber_id("p0")), ..key }).await, [0; 0]);

        let first = records.subscriptions(&all(), None, 4).await.expect("a page");
        records.remove_subscription(SubscriptionId(4), Precondition::Any, at(2)).await.expect("removed");
        records.remove_subscription(SubscriptionId(6), Precondition::Any, at(2)).await.expect("removed");
        records.put_subscription(interest("p1", None), at(2)).await.expect("stored");
        let after = first.last().map(|last| last.id);
        let rest = records.subscriptions(&all(), after, 100).await.expect("a page");
        assert_eq!(rest.iter().map(|found| found.id.0).collect::<Vec<_>>(), [5, 7, 8, 9, 10, 11]);
        let beyond = records.subscriptions(&all(), Some(SubscriptionId(u64::MAX)), 9).await.expect("a page");
        assert!(beyond.is_empty());
    });
}
