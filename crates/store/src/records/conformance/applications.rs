//! Conformance: applications, their versions, API keys, and the probe.

use super::*;

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

        records.put_subscriber(person("ann", &[]), Precondition::Any, at(4)).await.expect("stored");
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
fn a_large_application_is_removed_in_steps() {
    check(async |records| {
        records.put_application(&name("quakes"), "q", "ann", at(1)).await.expect("stored");
        records.put_subscriber(person("ann", &[]), Precondition::Any, at(1)).await.expect("stored");
        let many = 2 * REMOVED_SUBSCRIPTIONS_MAX + 1;
        records.put_subscriptions(vec![interest("ann", None); many], at(1)).await.expect("stored");
        assert_eq!(records.counts().subscriptions, many as u64);
        records.remove_application(&name("quakes"), at(2)).await.expect("removed");
        assert_eq!(records.counts().subscriptions, 0);
        assert!(owned(records, 1).await.is_empty());
    });
}

#[test]
fn api_keys_are_stored_as_hashes() {
    check(async |records| {
        let key = |id: &str, seconds| ApiKey {
            id: id.to_owned(),
            hash: [7; 32],
            description: "for \"ann\"".to_owned(),
            scopes: vec!["events:write".to_owned(), "records:read".to_owned()],
            resources: if seconds > 1 { vec!["exchange:orders".to_owned()] } else { Vec::new() },
            created_at: at(seconds),
            expires_at: (seconds > 1).then(|| at(99)),
        };
        let mut key_changes = records.newest_key_change();
        let mut is_notified =
            || key_changes.has_changed().expect("it is open") && *key_changes.borrow_and_update() == newest(records);
        records.put_api_key(key("b", 1)).await.expect("stored");
        assert!(is_notified());
        records.put_api_key(key("a", 2)).await.expect("stored");
        assert!(matches!(records.put_api_key(key("a", 3)).await, Err(StoreError::Taken(_))));
        assert_eq!(records.api_keys().await.expect("read"), [key("b", 1), key("a", 2)]);
        assert!(is_notified());
        records.put_subscriber(person("ann", &[]), Precondition::Any, at(3)).await.expect("stored");
        assert!(!is_notified());
        records.remove_api_key("b").await.expect("removed");
        assert!(is_notified());
        assert!(is_missing(records.remove_api_key("b").await));
        let removed = ("b".to_owned(), "for \"ann\"".to_owned());
        assert_eq!(records.removed_api_keys().await.expect("read"), [removed], "its description stays");
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
