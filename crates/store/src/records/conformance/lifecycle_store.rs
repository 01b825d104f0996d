//! Conformance: the outbox of lifecycle events.

use tocsin_model::{
    consent::{ConsentMethod, Evidence},
    lifecycle::{ChangeOrigin, ChangeWay, LifecycleChange, LifecycleSubject, fields_of, lifecycle_fields},
};

use super::*;

/// Watches changes of subscriptions.
async fn watch(records: &dyn Records) {
    watch_if(records, |change| change.subject() == LifecycleSubject::Subscription).await;
}

async fn watch_if(records: &dyn Records, is_watched: impl Fn(LifecycleChange) -> bool) {
    let filter = |change| LifecycleFilter { change, class: None };
    let filters = LifecycleChange::ALL.into_iter().filter(|change| is_watched(*change)).map(filter).collect();
    records.set_lifecycle_filters(&name("quakes"), filters).await.expect("stored");
}

async fn entries(records: &dyn Records, after: u64) -> Vec<LifecycleEntry> {
    records.lifecycle_entries(&name("quakes"), after, 100).await.expect("listed")
}

/// Changes as short texts.
async fn changes(records: &dyn Records, after: u64) -> Vec<String> {
    let show = |entry: LifecycleEntry| {
        let text = |at: usize| serde_json::to_string(&entry.row[at]).expect("JSON").replace('"', "");
        format!("{} {} {} by {}", text(0), text(1), entry.change.word(), text(6))
    };
    entries(records, after).await.into_iter().map(show).collect()
}

#[test]
fn changes_in_the_life_of_a_subscription_add_entries() {
    check(async |records| {
        records.put_subscriber(person("ann", &["a=mail"]), Precondition::Any, at(1)).await.expect("stored");
        records.put_subscription(interest("ann", Some("before")), at(1)).await.expect("stored");
        watch(records).await;
        let by = ChangeOrigin::by(ChangeWay::Api, Some("key-1"));
        let put = records.put_subscription_as(interest("ann", Some("k")), by.clone(), at(2)).await.expect("stored");
        let entry = entries(records, 0).await.remove(0);
        assert_eq!((entry.change, entry.at, entry.class), (LifecycleChange::Requested, at(2), name("near")));
        let event: serde_json::Value = serde_json::from_str(&lifecycle_fields().to_json(&entry.row)).expect("JSON");
        let expected = serde_json::json!({
            "subscription_id": "s-2", "subscriber_id": "ann", "class": "near", "change": "requested",
            "changed_at": "1970-01-01T00:00:02Z", "actor": "key-1", "way": "api", "key": "k",
            "values": {"magnitude": 5.5},
        });
        assert_eq!(event, expected);

        let change = change(None, true, r#"{"magnitude":7}"#);
        let update = UpdateSubscription { id: put.id, change: change.clone(), expect: Precondition::Any, now: at(3) };
        records.update_subscription_as(update.clone(), by.clone()).await.expect("changed");
        let again = UpdateSubscription { now: at(4), ..update.clone() };
        records.update_subscription_as(again, by.clone()).await.expect("unchanged");
        let last = entries(records, 2).await.remove(0);
        assert_eq!(serde_json::to_value(&last.row[10]).expect("JSON"), serde_json::json!({"magnitude": 5.5}));
        let off = SubscriptionChange { enabled: Some(false), ..change.clone() };
        records
            .update_subscription(UpdateSubscription { change: off, now: at(5), ..update.clone() })
            .await
            .expect("off");
        let on = UpdateSubscription { now: at(6), ..update };
        records.update_subscription(on).await.expect("on");
        let removal = RemoveSubscription { id: put.id, expect: Precondition::Any, now: at(7) };
        records.remove_subscription_as(removal, by).await.expect("removed");
        assert_eq!(
            changes(records, 0).await,
            [
                "s-2 ann requested by api",
                "s-2 ann confirmed by api",
                "s-2 ann changed by api",
                "s-2 ann ended by unknown",
                "s-2 ann changed by unknown",
                "s-2 ann ended by api",
            ]
        );
    });
}

#[test]
fn disabled_quiet_and_unwatched_changes_add_none() {
    check(async |records| {
        records.put_subscriber(person("ann", &["a=mail"]), Precondition::Any, at(1)).await.expect("stored");
        records.put_subscription(interest("ann", None), at(1)).await.expect("no filter covers it");
        let filters = vec![
            LifecycleFilter { change: LifecycleChange::Confirmed, class: Some(name("near")) },
            LifecycleFilter { change: LifecycleChange::Requested, class: Some(name("near")) },
        ];
        records.set_lifecycle_filters(&name("quakes"), filters).await.expect("stored");
        let disabled = NewSubscription { enabled: Some(false), ..interest("ann", None) };
        records.put_subscription(disabled, at(2)).await.expect("stored");
        let far = NewSubscription { class: name("far"), ..interest("ann", None) };
        records.put_subscription(far, at(2)).await.expect("stored");
        let other = NewSubscription { application: name("stock"), ..interest("ann", None) };
        records.put_subscription(other, at(2)).await.expect("stored");
        let quiet = ChangeOrigin { quiet: true, ..ChangeOrigin::default() };
        records.put_subscriptions_as(vec![interest("ann", None)], quiet, at(2)).await.expect("stored");
        assert_eq!(changes(records, 0).await, ["s-2 ann requested by unknown"]);
        records.set_lifecycle_filters(&name("quakes"), Vec::new()).await.expect("stored");
        records.put_subscription(interest("ann", None), at(3)).await.expect("stored");
        assert_eq!(entries(records, 0).await.len(), 1);
    });
}

#[test]
fn a_removed_subscriber_ends_its_subscriptions_without_personal_data() {
    check(async |records| {
        records.put_subscriber(person("ann", &["a=mail"]), Precondition::Any, at(1)).await.expect("stored");
        watch(records).await;
        records.put_subscription(interest("ann", Some("private")), at(1)).await.expect("stored");
        records.remove_subscriber(&subscriber_id("ann"), Precondition::Any, at(2)).await.expect("removed");
        assert_eq!(changes(records, 0).await, ["s-1 ann ended by subscriber_removed"]);
        let entry = entries(records, 0).await.remove(0);
        assert!(entry.row[7..].iter().all(|value| *value == Value::Null), "{:?}", entry.row);
    });
}

#[test]
fn a_withdrawal_ends_and_its_undoing_is_a_change() {
    check(async |records| {
        records.put_subscriber(person("ann", &["a=mail"]), Precondition::Any, at(1)).await.expect("stored");
        let put = records.put_subscription(interest("ann", None), at(1)).await.expect("stored");
        watch(records).await;
        let evidence = || Evidence::new(ConsentMethod::Link, "subscriber");
        assert!(records.withdraw_consent(put.id, evidence(), at(2)).await.expect("withdrawn"));
        assert!(records.restore_consent(put.id, evidence(), at(3)).await.expect("restored"));
        assert_eq!(changes(records, 0).await, ["s-1 ann ended by link", "s-1 ann changed by link"]);
    });
}

#[test]
fn positions_are_in_order_and_old_entries_are_trimmed() {
    check(async |records| {
        assert_eq!(records.last_lifecycle_position().await.expect("read"), 0);
        records.put_subscriber(person("ann", &["a=mail"]), Precondition::Any, at(1)).await.expect("stored");
        watch(records).await;
        for second in 2..5 {
            records.put_subscription(interest("ann", None), at(second)).await.expect("stored");
        }
        let positions: Vec<u64> = entries(records, 0).await.iter().map(|entry| entry.position).collect();
        assert_eq!(positions, [1, 2, 3, 4, 5, 6]);
        let page = records.lifecycle_entries(&name("quakes"), 2, 3).await.expect("listed");
        assert_eq!(page.iter().map(|entry| entry.position).collect::<Vec<_>>(), [3, 4, 5]);
        let trim = async |through, before, limit| {
            records
                .trim_lifecycle(TrimLifecycle { application: &name("quakes"), through, before: at(before), limit })
                .await
                .expect("trimmed")
        };
        assert_eq!(trim(6, 2, 9).await, 0, "too new");
        assert_eq!(trim(1, 9, 9).await, 1);
        assert_eq!(trim(6, 4, 2).await, 2);
        assert_eq!(trim(6, 9, 9).await, 3);
        assert!(entries(records, 0).await.is_empty());
        records.put_subscription(interest("ann", None), at(9)).await.expect("stored");
        assert_eq!(entries(records, 0).await[0].position, 7, "positions are not reused");
        assert_eq!(records.last_lifecycle_position().await.expect("read"), 8);
    });
}

#[test]
fn a_removed_subscription_has_a_former_recipient() {
    check(async |records| {
        records.put_subscriber(person("ann", &["a=mail"]), Precondition::Any, at(1)).await.expect("stored");
        let first = records.put_subscription(interest("ann", Some("a")), at(1)).await.expect("stored").id;
        let second = records.put_subscription(interest("ann", Some("b")), at(1)).await.expect("stored").id;
        let changed = change(Some(name("a")), true, r#"{"magnitude":7}"#);
        let update = UpdateSubscription { id: first, change: changed, expect: Precondition::Any, now: at(2) };
        records.update_subscription(update).await.expect("changed");
        records.remove_subscription(first, Precondition::Any, at(3)).await.expect("removed");
        let ids = [first, second, SubscriptionId(99)];
        let mut found = records.former_recipients(&ids).await.expect("read");
        assert_eq!(found.split_off(1), [None, None], "one that exists, and an unknown one");
        let former = found.remove(0).expect("a recipient");
        assert_eq!((&*former.interest.values, former.interest.enabled), (r#"{"magnitude":7}"#, false));
        assert_eq!(former.device().map(|(_, device)| &*device.address), Some("ann@mail.example"));
        records.remove_subscriber(&subscriber_id("ann"), Precondition::Any, at(4)).await.expect("removed");
        assert_eq!(records.former_recipients(&ids[..1]).await.expect("read"), [None]);
    });
}

#[test]
fn changes_of_subscribers_and_devices_add_entries() {
    check(async |records| {
        watch_if(records, |change| change.subject() != LifecycleSubject::Subscription).await;
        let ann = subscriber_id("ann");
        records.put_subscriber(person("ann", &["a=mail"]), Precondition::Any, at(1)).await.expect("stored");
        records.put_subscriber(person("ann", &["a=mail"]), Precondition::Any, at(2)).await.expect("unchanged");
        records.put_subscription(interest("ann", None), at(2)).await.expect("stored");
        let mut changed = person("ann", &["a=mail"]);
        changed.profile.attributes.insert("city".to_owned(), Value::from("Rome"));
        records.put_subscriber(changed, Precondition::Any, at(3)).await.expect("stored");
        let device = |address: &str, state| Device { channel: name("mail"), address: address.to_owned(), state };
        let put = async |of: &str, address: &str, state, now| {
            let device =
                PutDevice { id: &ann, name: &name(of), device: device(address, state), keeps_state: false, now };
            records.put_device(device).await.expect("stored");
        };
        put("b", "new@mail.example", DeviceState::Pending, at(4)).await;
        put("b", "new@mail.example", DeviceState::Active, at(5)).await;
        put("b", "other@mail.example", DeviceState::Active, at(6)).await;
        records.remove_device(&ann, &name("b"), at(7)).await.expect("removed");
        let show = |entry: &LifecycleEntry| {
            let fields = fields_of(entry.change);
            let event: serde_json::Value = serde_json::from_str(&fields.to_json(&entry.row)).expect("JSON");
            let text = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
            format!("{} {} {}{}", entry.change.name(), text("subscriber_id"), text("device"), text("address"))
        };
        let found = entries(records, 0).await;
        assert_eq!(
            found.iter().map(show).collect::<Vec<_>>(),
            [
                "subscriber.created ann ",
                "device.added ann aann@mail.example",
                "subscriber.changed ann ",
                "device.added ann bnew@mail.example",
                "device.confirmed ann bnew@mail.example",
                "device.added ann bother@mail.example",
                "device.removed ann bother@mail.example",
            ]
        );
        let changed: serde_json::Value =
            serde_json::from_str(&fields_of(found[2].change).to_json(&found[2].row)).expect("JSON");
        assert_eq!((&changed["attributes"], &changed["enabled"]), (&serde_json::json!({"city": "Rome"}), &true.into()));

        // A removal leaves no event with personal data, not even one that waits.
        records.remove_subscriber(&ann, Precondition::Any, at(8)).await.expect("removed");
        let left = entries(records, 0).await;
        assert_eq!(left.iter().map(show).collect::<Vec<_>>(), ["subscriber.removed ann "]);
        assert!(left[0].row[5..].iter().all(|value| *value == Value::Null), "{:?}", left[0].row);
        records.put_subscriber(person("ben", &["a=mail"]), Precondition::Any, at(9)).await.expect("stored");
        records.erase_subscriber(&subscriber_id("ben"), at(9)).await.expect("erased");
        assert_eq!(entries(records, left[0].position).await, [], "an erasure leaves none");
    });
}
