//! Conformance: identity, counts and the health check.

use super::*;

#[test]
fn a_probe_reaches_the_disk() {
    check(async |records| {
        records.probe().await.expect("the store answers");
        records.probe().await.expect("and answers again");
        assert!(!records.installation().is_empty());
        assert_ne!(*records.secret(), [0; 32]);
    });
}

#[test]
fn rows_are_counted() {
    check(async |records| {
        assert_eq!(records.counts(), RecordCounts::default());
        let ann = person("ann", &["home=mail", "work=mail"]);
        records.put_subscriber(ann, Precondition::Any, at(1)).await.expect("stored");
        let id = records.put_subscription(interest("ann", None), at(2)).await.expect("stored").id;
        assert_eq!(records.counts(), RecordCounts { subscribers: 1, devices: 2, subscriptions: 1 });
        records.remove_subscription(id, Precondition::Any, at(3)).await.expect("removed");
        records.remove_subscriber(&subscriber_id("ann"), Precondition::Any, at(4)).await.expect("removed");
        assert_eq!(records.counts(), RecordCounts::default());
        assert_eq!(records.installation().len(), 24, "96 bits in hexadecimal");
        assert_ne!(records.secret(), &[0; 32]);
    });
}
