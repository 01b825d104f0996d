//! Conformance: applications and their versions.

use super::*;

#[test]
fn an_application_keeps_its_history() {
    check(async |records| {
        let (quakes, stock) = (name("quakes"), name("stock"));
        assert_eq!(
            records
                .put_application(NewApplicationVersion { name: &stock, text: "s1", author: "ann", now: at(1) })
                .await
                .expect("stored"),
            1
        );
        assert_eq!(
            records
                .put_application(NewApplicationVersion { name: &quakes, text: "q1", author: "ann", now: at(2) })
                .await
                .expect("stored"),
            1
        );
        assert_eq!(
            records
                .put_application(NewApplicationVersion { name: &quakes, text: "q2", author: "bob", now: at(3) })
                .await
                .expect("stored"),
            2
        );
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
        assert_eq!(
            records
                .put_application(NewApplicationVersion { name: &quakes, text: "q3", author: "ann", now: at(7) })
                .await
                .expect("stored"),
            3
        );
    });
}

#[test]
fn a_large_application_is_removed_in_steps() {
    check(async |records| {
        records
            .put_application(NewApplicationVersion { name: &name("quakes"), text: "q", author: "ann", now: at(1) })
            .await
            .expect("stored");
        records.put_subscriber(person("ann", &[]), Precondition::Any, at(1)).await.expect("stored");
        let many = 2 * REMOVED_SUBSCRIPTIONS_MAX + 1;
        records.put_subscriptions(vec![interest("ann", None); many], at(1)).await.expect("stored");
        assert_eq!(records.counts().subscriptions, many as u64);
        records.remove_application(&name("quakes"), at(2)).await.expect("removed");
        assert_eq!(records.counts().subscriptions, 0);
        assert!(owned(records, 1).await.is_empty());
    });
}
