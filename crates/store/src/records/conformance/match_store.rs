//! Conformance: profiles and members at any sequence of the change log.

use super::*;

fn vienna(filter: &str) -> NewSegment {
    NewSegment { name: name("vienna"), description: None, filter: filter.into() }
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
