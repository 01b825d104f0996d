//! Conformance: segments.

use super::*;

fn vienna(filter: &str) -> NewSegment {
    NewSegment { name: name("vienna"), description: None, filter: filter.into() }
}

#[test]
fn a_segment_is_stored_as_expected() {
    check(async |records| {
        let before = newest(records);
        assert!(is_missing(records.put_segment(vienna("(a=1)"), Precondition::Present, at(1)).await));
        let made = records.put_segment(vienna("(a=1)"), Precondition::Absent, at(1)).await.expect("made");
        assert_eq!((made.revision, made.created_at, made.updated_at), (1, at(1), at(1)));
        assert!(matches!(
            records.put_segment(vienna("(a=2)"), Precondition::Absent, at(2)).await,
            Err(StoreError::Taken(_))
        ));
        let stale = records.put_segment(vienna("(a=2)"), Precondition::Revision(2), at(2)).await;
        assert!(matches!(stale, Err(StoreError::Changed(_))));
        let described = NewSegment { description: Some("of the city".to_owned()), ..vienna("(a=2)") };
        let changed = records.put_segment(described.clone(), Precondition::Revision(1), at(2)).await.expect("changed");
        assert_eq!((changed.revision, changed.created_at, changed.updated_at), (2, at(1), at(2)));
        assert_eq!((&*changed.filter, changed.description.as_deref()), ("(a=2)", Some("of the city")));
        assert_eq!(records.put_segment(described, Precondition::Any, at(3)).await.expect("the same"), changed);
        assert_eq!(records.segment(&name("vienna")).await.expect("read"), Some(changed.clone()));
        assert_eq!(records.segment(&name("Vienna")).await.expect("read"), None);

        let graz = NewSegment { name: name("graz"), ..vienna("(a=3)") };
        let graz = records.put_segment(graz, Precondition::Any, at(3)).await.expect("made");
        assert_eq!(records.segments(None, 9).await.expect("read"), [graz.clone(), changed.clone()]);
        assert_eq!(records.segments(None, 1).await.expect("read"), [graz]);
        assert_eq!(records.segments(Some(&name("graz")), 9).await.expect("read"), [changed]);
        assert!(is_missing(records.remove_segment(&name("linz"), Precondition::Any, at(4)).await));
        let stale = records.remove_segment(&name("graz"), Precondition::Revision(2), at(4)).await;
        assert!(matches!(stale, Err(StoreError::Changed(_))));
        records.remove_segment(&name("graz"), Precondition::Revision(1), at(4)).await.expect("removed");
        assert_eq!(records.segment(&name("graz")).await.expect("read"), None);
        let logged = ["segment vienna", "segment vienna", "segment graz", "segment graz"];
        assert_eq!(news(records, before).await, logged);
    });
}

#[test]
fn a_segment_scan_stops_at_its_bounds() {
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
        let scan_matching = async |text: &str, after: Option<&str>, looks, members, kept| {
            let bounds = SegmentScanBounds { looks, members, kept };
            let scan_matching =
                records.scan_matching(&filter(text), after.map(subscriber_id).as_ref(), bounds).await.expect("scanned");
            let found: Vec<String> = scan_matching.found.iter().map(|found| found.id.to_string()).collect();
            (
                scan_matching.members,
                found.join(" "),
                scan_matching.looked_at,
                scan_matching.reached.map(|id| id.to_string()),
            )
        };
        let result = |members, found: &str, looked_at, reached: Option<&str>| {
            (members, found.to_owned(), looked_at, reached.map(str::to_owned))
        };
        const ALL: u64 = u64::MAX;
        assert_eq!(scan_matching("(number>=25)", None, ALL, ALL, 2).await, result(5, "p25 p26", 20, None));
        assert_eq!(scan_matching("(number>=25)", None, ALL, 2, 9).await, result(2, "p25 p26", 17, Some("p26")));
        assert_eq!(scan_matching("(number>=25)", Some("p26"), ALL, ALL, 0).await, result(3, "", 3, None));
        assert_eq!(scan_matching("(number>=25)", None, 16, ALL, 9).await, result(1, "p25", 16, Some("p25")));
        assert_eq!(scan_matching("(&(number>=25)(enabled=TRUE))", None, ALL, ALL, 9).await.0, 3);
        assert_eq!(scan_matching("(channel=sms)", None, ALL, ALL, 0).await.0, 5);
        assert_eq!(scan_matching("(:caseIgnoreMatch:=SMS)", None, ALL, ALL, 0).await.0, 5);
        assert_eq!(scan_matching("(created_at=19700101000001Z)", None, ALL, ALL, 0).await.0, 20);
        assert_eq!(scan_matching("(created_at>=19700101000002Z)", None, ALL, ALL, 0).await.0, 0);
        // Conditions on the id reduce the rows read.
        assert_eq!(scan_matching("(id=p1*)", None, ALL, ALL, 0).await, result(10, "", 10, None));
        assert_eq!(
            scan_matching("(&(id>=p15)(id<=p18)(number=16))", None, ALL, ALL, 9).await,
            result(1, "p16", 4, None)
        );
        assert_eq!(scan_matching("(id=p20)", Some("p15"), ALL, ALL, 9).await, result(1, "p20", 1, None));
        assert_eq!(scan_matching("(id=p20)", Some("p20"), ALL, ALL, 9).await, result(0, "", 0, None));
        // Members are returned complete.
        let bounds = SegmentScanBounds { looks: 99, members: 99, kept: 1 };
        let found = records.scan_matching(&filter("(number=13)"), None, bounds).await.expect("scanned").found;
        assert_eq!(found.into_iter().next(), records.subscriber(&subscriber_id("p13")).await.expect("read"));
    });
}
