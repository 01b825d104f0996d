//! Conformance: segments, and their members at any sequence of the change log.

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
fn profiles_are_read_at_any_sequence() {
    check(async |records| {
        let put = async |id: &str, region: &str, devices: &[&str]| {
            let mut new = person(id, devices);
            new.profile.attributes = [("region".to_owned(), Value::from(region))].into();
            records.put_subscriber(new, Precondition::Any, at(1)).await.expect("stored");
        };
        let asked = [SubscriberNumber(1), SubscriberNumber(1), SubscriberNumber(2)];
        let then = async |place: u64| {
            let found = records.profiles(&asked, ChangeSequence(place)).await.expect("read");
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
        // Devices are not part of the profile.
        put("ann", "Vienna", &["d=mail"]).await;
        let second = newest(records).0;
        put("ann", "Graz", &["d=mail"]).await;
        let third = newest(records).0;
        records.remove_subscriber(&subscriber_id("ann"), Precondition::Any, at(2)).await.expect("removed");
        assert_eq!([then(first).await, then(second).await], [vienna.clone(), vienna.clone()]);
        assert_eq!(then(third).await, vienna.replace("Vienna", "Graz"));
        assert_eq!(then(u64::MAX).await, "nobody, nobody, nobody");
    });
}

#[test]
fn frequently_changed_profiles_are_read_at_any_sequence() {
    check(async |records| {
        let seed = std::env::var("TOCSIN_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| fastrand::u64(..));
        println!("TOCSIN_SEED={seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut known = Vec::new();
        let mut ann = person("ann", &[]);
        let changes = 60;
        for change in 0..=changes {
            let name = ["a", "b", "c", "d"][rng.usize(..4)].to_owned();
            match rng.u8(..6) {
                0 => drop(ann.profile.attributes.remove(&name)),
                1 => ann.profile.locale = [None, Some("de".to_owned()), Some("fr".to_owned())][rng.usize(..3)].clone(),
                2 => ann.profile.time_zone = [None, Some("Europe/Vienna".to_owned())][rng.usize(..2)].clone(),
                3 => drop(ann.profile.attributes.insert(name, Value::Null)),
                4 => drop(ann.profile.attributes.insert(name, Value::from("text \"1\""))),
                _ => drop(ann.profile.attributes.insert(name, Value::Integer(rng.i64(..)))),
            }
            records.put_subscriber(ann.clone(), Precondition::Any, at(change)).await.expect("stored");
            known.push((newest(records), Some(ann.profile.clone())));
        }
        records.remove_subscriber(&subscriber_id("ann"), Precondition::Any, at(changes + 1)).await.expect("removed");
        known.push((newest(records), None));
        for (place, profile) in &known {
            let found = records.profiles(&[SubscriberNumber(1)], *place).await.expect("read").remove(0);
            assert_eq!(found.as_ref().map(|image| &image.profile), profile.as_ref(), "at {place:?}");
        }
    });
}

#[test]
fn memberships_are_read_at_any_sequence() {
    check(async |records| {
        let put = async |id: &str, attributes: &[(&str, i64)], devices: &[&str], enabled| {
            let mut new = person(id, devices);
            new.profile.enabled = enabled;
            new.profile.attributes =
                attributes.iter().map(|(name, value)| (name.to_string(), Value::Integer(*value))).collect();
            records.put_subscriber(new, Precondition::Any, at(1)).await.expect("stored");
        };
        let segments = [name("vienna"), name("none"), name("texted")];
        let both = [SubscriberNumber(1), SubscriberNumber(2), SubscriberNumber(3), SubscriberNumber(1)];
        let then = async |place: u64| {
            let found = records.memberships(&segments, &both, ChangeSequence(place)).await.expect("read");
            found.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        let mut expectations: Vec<(u64, String)> = Vec::new();
        let mut now = async |expected: &str| {
            assert_eq!(then(u64::MAX).await, expected);
            expectations.push((newest(records).0, expected.to_owned()));
        };
        put("ann", &[("a", 1)], &["d=sms"], true).await;
        put("bob", &[("a", 2)], &["d=mail"], true).await;
        now("0 0 0 0").await;
        records.put_segment(vienna("(a=1)"), Precondition::Any, at(2)).await.expect("stored");
        now("1 0 0 1").await;
        let texted = NewSegment { name: name("texted"), ..vienna("(channel=sms)") };
        records.put_segment(texted, Precondition::Any, at(2)).await.expect("stored");
        now("5 0 0 5").await;
        put("bob", &[("a", 1)], &["d=mail"], true).await;
        now("5 1 0 5").await;
        put("bob", &[("a", 1)], &["d=sms"], true).await;
        now("5 5 0 5").await;
        put("ann", &[("a", 3)], &["d=mail"], true).await;
        now("0 5 0 0").await;
        records.put_segment(vienna("(&(a>=1)(enabled=TRUE))"), Precondition::Any, at(3)).await.expect("stored");
        now("1 5 0 1").await;
        put("ann", &[("a", 3)], &["d=mail"], false).await;
        now("0 5 0 0").await;
        records.remove_subscriber(&subscriber_id("bob"), Precondition::Any, at(4)).await.expect("removed");
        now("0 0 0 0").await;
        put("ann", &[], &["d=sms"], true).await;
        now("4 0 0 4").await;
        records.remove_segment(&name("texted"), Precondition::Any, at(5)).await.expect("removed");
        now("0 0 0 0").await;
        for (place, expected) in expectations.iter().rev() {
            assert_eq!(then(*place).await, *expected, "at {place}");
        }
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
