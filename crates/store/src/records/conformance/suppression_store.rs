//! Conformance: suppressions.

use super::*;

#[test]
fn suppressions_are_kept_ranked_and_lifted() {
    check(async |records| {
        let (bob, phone) = ("address/smtp/bob@example.org", "device/ann/phone");
        assert_eq!(records.newest_suppression(), ChangeSequence(0));
        let before = newest(records);
        let put = async |to, cause, in_force, now| {
            records.put_suppressions(vec![suppression_of(to, cause, in_force, now)]).await.expect("stored");
            let found = records.suppression(&to.parse().expect("a target")).await.expect("read").expect("there");
            (found.in_force, found.cause)
        };
        assert_eq!(put(bob, Cause::SoftBounce, false, at(1)).await, (false, Cause::SoftBounce));
        assert_eq!(put(bob, Cause::SoftBounce, true, at(2)).await, (true, Cause::SoftBounce));
        assert_eq!(put(bob, Cause::Complaint, true, at(3)).await, (true, Cause::Complaint));
        let place = newest(records);
        assert_eq!(records.newest_suppression(), place);
        assert_eq!(put(bob, Cause::HardBounce, true, at(4)).await, (true, Cause::Complaint));
        assert_eq!(newest(records), place, "an unchanged suppression is not logged");
        assert_eq!(put(phone, Cause::HardBounce, true, at(4)).await, (true, Cause::HardBounce));
        let target = |text: &str| text.parse::<Target>().expect("a target");
        let found = records.suppression(&target(bob)).await.expect("read").expect("there");
        assert_eq!((found.since, found.updated_at, found.expires_at, found.bounces.len()), (at(3), at(3), None, 0));
        assert_eq!(records.suppression(&target("address/smtp/x")).await.expect("read"), None);

        let weaker = Suppression { cause: Cause::Manual, updated_at: at(5), ..found.clone() };
        let place = newest(records);
        records.put_suppressions(vec![weaker]).await.expect("stored");
        assert_eq!(records.suppression(&target(bob)).await.expect("read"), Some(found.clone()), "a complaint stays");
        assert_eq!(newest(records), place, "an unchanged suppression is not logged");
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
        assert_eq!(list(SuppressionFilter { subscriber: Some(subscriber_id("ann")), ..all.clone() }).await, [phone]);
        assert_eq!(
            list(SuppressionFilter { subscriber: Some(subscriber_id("an")), ..all.clone() }).await,
            Vec::<String>::new()
        );
        assert_eq!(list(SuppressionFilter { cause: Some(Cause::Complaint), ..all.clone() }).await, [bob]);
        assert_eq!(list(SuppressionFilter { in_force: Some(false), ..all.clone() }).await, Vec::<String>::new());
        assert_eq!(list(SuppressionFilter { contains: Some("EXAMPLE/h".to_owned()), ..all.clone() }).await, [hook]);
        assert_eq!(list(SuppressionFilter { contains: Some("address".to_owned()), ..all }).await, Vec::<String>::new());

        assert_eq!(records.prune_suppressions(at(9), 9).await.expect("pruned"), 1);
        records.remove_suppression(&target(bob)).await.expect("removed");
        assert!(is_missing(records.remove_suppression(&target(bob)).await));
        records.put_subscriber(person("ann", &["phone=sms"]), Precondition::Any, at(9)).await.expect("stored");
        records.remove_subscriber(&subscriber_id("ann"), Precondition::Any, at(9)).await.expect("removed");
        assert_eq!(list(SuppressionFilter::all(at(0))).await, Vec::<String>::new());
        let feed = records.suppression_changes(before, 99).await.expect("the feed");
        let last = feed.last().map(|change| change.sequence);
        assert_eq!(Some(records.newest_suppression()), last);
        let of = |targets: &str| format!("suppressions of {targets}");
        let expected = [of(bob), of(bob), of(bob), of(phone), of(hook), of(hook), of(bob), of(phone)];
        assert_eq!(describe_all(feed), expected);
    });
}
