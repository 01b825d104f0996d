//! Conformance: recipients and failing endpoints.

use super::*;

/// Collects the changes that its hook reports.
#[derive(Default)]
struct RecordingWatcher(parking_lot::Mutex<RecipientChange>);

impl RecipientWatcher for RecordingWatcher {
    fn recipients_changed(&self, change: &RecipientChange) {
        let mut seen = self.0.lock();
        seen.subscribers.extend(&change.subscribers);
        seen.addresses.extend(change.addresses.iter().cloned());
    }
}

#[test]
fn every_change_of_a_recipient_reaches_the_hook_of_delivery_before_its_acknowledgement() {
    check(async |records| {
        let watcher = std::sync::Arc::new(RecordingWatcher::default());
        records.watch_recipients(watcher.clone());
        let ann = subscriber_id("ann");
        let put = records.put_subscriber(person("ann", &["a=mail", "b=mail"]), Precondition::Any, at(1)).await;
        let number = put.expect("stored").number;
        let made = records.put_subscription(interest("ann", Some("k")), at(1)).await.expect("stored").id;
        std::mem::take(&mut *watcher.0.lock());
        let reported = || {
            let seen = std::mem::take(&mut *watcher.0.lock());
            (seen.subscribers.contains(&number), seen.addresses)
        };
        assert_eq!(reported(), (false, Vec::new()), "nothing changed");

        let off =
            UpdateSubscription { id: made, change: change(None, false, "{}"), expect: Precondition::Any, now: at(2) };
        records.update_subscription(off).await.expect("stored");
        assert!(reported().0, "a subscription");
        let line = NewSubscription { enabled: Some(true), ..interest("ann", Some("k")) };
        records.put_subscriptions(vec![line], at(3)).await.expect("stored").remove(0).expect("stored");
        assert!(reported().0, "an import of subscriptions");
        records.put_subscribers(vec![person("ann", &["a=mail", "c=mail"])], at(4)).await.expect("stored");
        assert!(reported().0, "an import of subscribers");
        records.remove_device(&ann, &name("c"), at(5)).await.expect("removed");
        assert!(reported().0, "a device");
        let evidence = tocsin_model::consent::Evidence::new(tocsin_model::consent::ConsentMethod::Link, "ann");
        records.withdraw_consent(made, evidence, at(6)).await.expect("withdrawn");
        assert!(reported().0, "a consent");
        records.remove_subscription(made, Precondition::Any, at(7)).await.expect("removed");
        assert!(reported().0, "a removed subscription");

        let suppression = |target: Target| Suppression {
            target,
            address: None,
            cause: Cause::HardBounce,
            in_force: true,
            origin: "session".to_owned(),
            detail: String::new(),
            notification: None,
            bounces: Vec::new(),
            since: at(8),
            updated_at: at(8),
            expires_at: None,
        };
        let target = Target::address(&name("smtp"), "ann@mail.example");
        records.put_suppressions(vec![suppression(target.clone())]).await.expect("stored");
        assert_eq!(reported(), (false, vec![target.clone()]), "an address");
        let before = records.feedback_states(std::slice::from_ref(&target)).await.expect("read").remove(0);
        let complaint = Suppression { cause: Cause::Complaint, ..suppression(target.clone()) };
        let change = FeedbackChange {
            target: target.clone(),
            before,
            added: Vec::new(),
            cleared: Vec::new(),
            suppression: Some(complaint),
        };
        records.change_feedback(vec![change]).await.expect("stored");
        assert_eq!(reported().1, [target], "feedback of any origin");
        let of_device = Target::Device { subscriber: ann.clone(), device: name("a") };
        records.put_suppressions(vec![suppression(of_device)]).await.expect("stored");
        assert_eq!(reported(), (true, Vec::new()), "a device");
        records.remove_subscriber(&ann, Precondition::Any, at(9)).await.expect("removed");
        assert!(reported().0, "a removed subscriber");
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
        records
            .put_device(PutDevice {
                id: &subscriber_id("ann"),
                name: &name("a"),
                device: mailbox("ann@new.example"),
                keeps_state: false,
                now: at(3),
            })
            .await
            .expect("stored");
        let moved = Some("ann@new.example".to_owned());
        assert_eq!(current().await, [moved.clone(), bob.clone(), moved.clone()]);
        let other = SubscriptionChange { device: Some(name("b")), ..interest("bob", None).change() };
        records
            .update_subscription(UpdateSubscription {
                id: requested[1],
                change: other,
                expect: Precondition::Any,
                now: at(3),
            })
            .await
            .expect("stored");
        assert_eq!(current().await, [moved.clone(), None, moved.clone()], "it names a device that is not there");
        let again = interest("bob", None).change();
        records
            .update_subscription(UpdateSubscription {
                id: requested[1],
                change: again,
                expect: Precondition::Any,
                now: at(3),
            })
            .await
            .expect("stored");
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
            NewSubscription { enabled: Some(false), ..to("ann", None) },
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
                RecipientSubscription { class, subscriber, device, enabled, values, consent_request: None }
            };
            assert_eq!(found.as_ref().map(|found| (*found.interest).clone()), stored.map(interest));
        }
        assert!(records.recipients(&[]).await.expect("read").is_empty());
    });
}

#[test]
fn failing_endpoints_are_stored_until_removed() {
    check(async |records| {
        let endpoint = |address: &str, failures| FailingEndpoint {
            key: EndpointKey { application: name("quakes"), channel: name("hook"), address: address.to_owned() },
            subscriber: Some(subscriber_id("ann")),
            device: None,
            since: at(1),
            last: at(2),
            failures,
            reason: "500".to_owned(),
            warned_at: Some(at(2)),
            disabled_at: None,
        };
        let before = newest(records);
        records.put_failing_endpoints(vec![endpoint("b", 1), endpoint("a", 1)]).await.expect("kept");
        records.put_failing_endpoints(vec![endpoint("b", 2)]).await.expect("kept");
        let list =
            async |after: Option<&EndpointKey>, limit| records.failing_endpoints(after, limit).await.expect("read");
        assert_eq!(list(None, 9).await, [endpoint("a", 1), endpoint("b", 2)]);
        assert_eq!(list(None, 1).await, [endpoint("a", 1)]);
        assert_eq!(list(Some(&endpoint("a", 1).key), 9).await, [endpoint("b", 2)]);
        records.remove_failing_endpoints(vec![endpoint("a", 1).key, endpoint("c", 1).key]).await.expect("forgotten");
        assert_eq!(list(None, 9).await, [endpoint("b", 2)]);
        assert_eq!(newest(records), before);
    });
}
