//! All backends do the same, whatever is asked of them in whatever order.

use super::*;

/// Does the same random things to both backends, and compares each answer and in the end everything.
#[test]
fn the_backends_agree() {
    let seed =
        std::env::var("TOCSIN_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("TOCSIN_SEED={seed}");
    let mut luck = fastrand::Rng::with_seed(seed);
    let folder = tempfile::tempdir().expect("a folder");
    let memory = MemoryRecords::with_feed_kept(FEW).expect("random numbers");
    let mut sqlite = Arc::new(open(folder.path()));
    let mut history: BTreeMap<ChangeSequence, Vec<IndexedSubscription>> = BTreeMap::new();
    for step in 0..600 {
        let saved = luck.clone();
        let expected = block_on(random_act(&memory, &mut luck, step));
        let found = block_on(random_act(&*sqlite, &mut saved.clone(), step));
        assert_eq!(found, expected, "step {step}");
        assert_eq!(sqlite.counts(), memory.counts(), "step {step}");
        assert_eq!(block_on(class_counts(&*sqlite)), block_on(class_counts(&memory)), "step {step}");
        assert_eq!(newest(&*sqlite), newest(&memory), "step {step}");
        // The past is what the present was once.
        let now = block_on(memory.indexed_subscriptions(&name("a"), None, usize::MAX)).expect("read");
        history.insert(newest(&memory), now);
        let (at, expected) = luck.choice(&history).expect("there is a past");
        let everything = [SubscriptionId(0)..=SubscriptionId(u64::MAX)];
        let found = block_on(sqlite.indexed_at(&name("a"), &everything, *at)).expect("read");
        assert!(found == *expected, "step {step} as of {at:?}: {found:#?} instead of {expected:#?}");
        let found = block_on(memory.indexed_at(&name("a"), &everything, *at)).expect("read");
        assert!(found == *expected, "step {step} as of {at:?} in memory: {found:#?} instead of {expected:#?}");
        if step % 200 == 199 {
            drop(sqlite);
            sqlite = Arc::new(open(folder.path()));
        }
    }
    let everything = async |records: &dyn Records| {
        let subscribers = records.subscribers(&SubscriberFilter::default(), None, usize::MAX).await;
        let subscriptions = records.subscriptions(&SubscriptionFilter::default(), None, usize::MAX).await;
        let ids: Vec<_> = (0..1_000).map(SubscriptionId).collect();
        let recipients = records.recipients(&ids).await;
        let indexed = records.indexed_subscriptions(&name("a"), None, usize::MAX).await;
        let segments = records.segments(None, usize::MAX).await;
        let changes = records.changes(ChangeSequence(newest(records).0.saturating_sub(FEW)), usize::MAX).await;
        let suppressions = records.suppressions(&SuppressionFilter::all(at(0)), None, usize::MAX).await;
        format!(
            "{subscribers:#?}{subscriptions:#?}{recipients:#?}{indexed:#?}{segments:#?}{suppressions:#?}{changes:#?}"
        )
    };
    assert!(block_on(everything(&*sqlite)) == block_on(everything(&memory)), "the backends differ in the end");
}

async fn random_act(records: &dyn Records, luck: &mut fastrand::Rng, step: i64) -> String {
    fn pick(luck: &mut fastrand::Rng, names: &[&str]) -> Name {
        name(names[luck.usize(..names.len())])
    }
    fn pick_id(luck: &mut fastrand::Rng) -> SubscriberId {
        who(&format!("p{}", luck.u32(..12)))
    }
    // About one subscription is made in three steps, so this finds old, new and removed ones, and some to come.
    let numbers = 10 + step.unsigned_abs() / 3;
    let pick_subscription = |luck: &mut fastrand::Rng| SubscriptionId(luck.u64(..numbers));
    fn pick_expect(luck: &mut fastrand::Rng) -> Expect {
        match luck.u32(..8) {
            0 => Expect::Absent,
            1 => Expect::Present,
            2 => Expect::Revision(luck.u64(1..4)),
            _ => Expect::Any,
        }
    }
    fn make_device(luck: &mut fastrand::Rng) -> Device {
        let state = luck.choice([DeviceState::Active, DeviceState::Disabled, DeviceState::Bounced]).expect("three");
        Device { channel: pick(luck, &["mail", "sms"]), address: format!("x{}", luck.u32(..5)), state }
    }
    fn make_subscriber(luck: &mut fastrand::Rng) -> NewSubscriber {
        let attributes = (0..luck.usize(..3)).map(|n| (format!("k{n}"), Value::Integer(luck.i64(..3))));
        let profile = Profile {
            attributes: attributes.collect(),
            enabled: luck.u32(..4) > 0,
            locale: luck.bool().then(|| "de".to_owned()),
            time_zone: None,
        };
        let count = luck.usize(..4);
        let devices =
            luck.bool().then(|| (0..count).map(|_| (pick(luck, &["a", "b", "c"]), make_device(luck))).collect());
        NewSubscriber { id: pick_id(luck), profile, devices, preferences: None }
    }
    fn make_terms(luck: &mut fastrand::Rng) -> Terms {
        let filter = || Filter { dialect: Dialect::Jmespath, text: "a == `1`".into() };
        let schedule = || "DTSTART;TZID=Europe/Vienna:20270104T080000\nRRULE:FREQ=DAILY".into();
        Terms {
            filter: (luck.u32(..4) == 0).then(filter),
            schedule: (luck.u32(..4) == 0).then(schedule),
            snoozed_until: (luck.u32(..4) == 0).then(|| at(luck.i64(0..60))),
        }
    }
    fn make_subscription(luck: &mut fastrand::Rng) -> NewSubscription {
        NewSubscription {
            application: pick(luck, &["a", "b"]),
            class: pick(luck, &["one", "two"]),
            subscriber: pick_id(luck),
            key: luck.bool().then(|| format!("k{}", luck.u32(..3))),
            device: (luck.u32(..3) == 0).then(|| pick(luck, &["a", "b", "c"])),
            enabled: luck.u32(..4) > 0,
            values: format!(r#"{{"n":{}}}"#, luck.u32(..3)).into(),
            terms: make_terms(luck),
        }
    }
    let now = at(step);
    match luck.u32(..25) {
        0 | 1 => format!("{:?}", records.put_subscriber(make_subscriber(luck), pick_expect(luck), now).await),
        2 => {
            let many = (0..luck.usize(..6)).map(|_| make_subscriber(luck)).collect();
            format!("{:?}", records.put_subscribers(many, now).await)
        }
        3 => format!("{:?}", records.remove_subscriber(&pick_id(luck), pick_expect(luck), now).await),
        4 | 5 => {
            let (id, device) = (pick_id(luck), pick(luck, &["a", "b", "c"]));
            format!("{:?}", records.put_device(&id, &device, make_device(luck), now).await)
        }
        6 => {
            let (id, device) = (pick_id(luck), pick(luck, &["a", "b", "c"]));
            format!("{:?}", records.remove_device(&id, &device, now).await)
        }
        7 => format!("{:?}", records.put_subscription(make_subscription(luck), now).await),
        8 | 9 => {
            let many = (0..luck.usize(..9)).map(|_| make_subscription(luck)).collect();
            format!("{:?}", records.put_subscriptions(many, now).await)
        }
        10 => {
            let new = make_subscription(luck);
            let (id, expect) = (pick_subscription(luck), pick_expect(luck));
            format!("{:?}", records.update_subscription(id, new.change(), expect, now).await)
        }
        11 => format!("{:?}", records.remove_subscription(pick_subscription(luck), pick_expect(luck), now).await),
        12 => {
            let application = pick(luck, &["a", "b"]);
            if luck.u32(..10) == 0 {
                format!("{:?}", records.remove_application(&application, now).await)
            } else {
                format!("{:?}", records.put_application(&application, "text", "ann", now).await)
            }
        }
        13 => {
            let filter = SubscriberFilter {
                id_prefix: luck.bool().then(|| "p1".to_owned()),
                address: luck.bool().then(|| format!("x{}", luck.u32(..5))),
                locale: luck.bool().then(|| "de".to_owned()),
                enabled: luck.bool().then(|| luck.bool()),
                attribute: None,
            };
            let after = luck.bool().then(|| pick_id(luck));
            format!("{:?}", records.subscribers(&filter, after.as_ref(), luck.usize(..5)).await)
        }
        14 => {
            let filter = SubscriptionFilter {
                application: luck.bool().then(|| pick(luck, &["a", "b"])),
                class: luck.bool().then(|| pick(luck, &["one", "two"])),
                subscriber: (luck.u32(..4) == 0).then(|| pick_id(luck)),
                key: (luck.u32(..4) == 0).then(|| "k1".to_owned()),
                enabled: luck.bool().then(|| luck.bool()),
            };
            let after = luck.bool().then(|| pick_subscription(luck));
            format!("{:?}", records.subscriptions(&filter, after, luck.usize(..9)).await)
        }
        15 => {
            let application = pick(luck, &["a", "b"]);
            let after = luck.bool().then(|| pick_subscription(luck));
            format!("{:?}", records.indexed_subscriptions(&application, after, luck.usize(..50)).await)
        }
        16 => {
            let application = pick(luck, &["a", "b"]);
            let ranges: Vec<_> =
                (0..luck.usize(..4)).map(|_| pick_subscription(luck)..=pick_subscription(luck)).collect();
            let at = ChangeSequence(luck.u64(..=newest(records).0));
            let subscribers: Vec<_> = (0..luck.usize(..3)).map(|_| SubscriberNumber(luck.u64(1..15))).collect();
            let owned = records.subscriptions_of(&subscribers, at).await;
            format!("{:?} {owned:?}", records.indexed_at(&application, &ranges, at).await)
        }
        17 => {
            let filter = ["(k0=1)", "(!(k1>=1))", "(|(channel=sms)(locale=*))"][luck.usize(..3)].into();
            let new = NewSegment { name: pick(luck, &["a", "b"]), description: None, filter };
            format!("{:?}", records.put_segment(new, pick_expect(luck), now).await)
        }
        21 => {
            let target = luck.choice(["address/smtp/x1", "address/http/x2", "device/p1/a"]).expect("three");
            let cause = *luck.choice(&Cause::ALL).expect("some");
            let reports = (0..luck.usize(..4)).map(|_| told_of(target, cause)).collect();
            let policy = Policy { soft_bounces: 3, soft_bounce_lasts: None, ..Policy::default() };
            format!("{:?}", records.report_suppressions(reports, &policy, now).await)
        }
        22 => match luck.u32(..4) {
            0 => format!("{:?}", records.prune_suppressions(now, luck.usize(..3)).await),
            3 => format!("{:?}", records.wake_subscriptions(now, luck.usize(..3)).await),
            1 => {
                let target = "address/smtp/x1".parse().expect("a target");
                format!("{:?}", records.remove_suppression(&target).await)
            }
            _ => {
                let protocol = luck.bool().then(|| name("smtp"));
                let filter = SuppressionFilter { protocol, ..SuppressionFilter::all(now) };
                format!("{:?}", records.suppressions(&filter, None, luck.usize(..4)).await)
            }
        },
        23 => format!("{:?}", records.merge_subscribers(&pick_id(luck), &pick_id(luck), now).await),
        18 => format!("{:?}", records.remove_segment(&pick(luck, &["a", "b"]), pick_expect(luck), now).await),
        19 => {
            let texts = ["(k0>=1)", "(!(k1=2))", "(channel=sms)", "(&(id=p1*)(locale=DE))", "(:integerMatch:=1)"];
            let filter = filter(texts[luck.usize(..texts.len())]);
            let after = luck.bool().then(|| pick_id(luck));
            let bounds = SurveyBounds { looks: luck.u64(1..9), members: luck.u64(1..9), kept: luck.usize(..3) };
            format!("{:?}", records.survey(&filter, after.as_ref(), bounds).await)
        }
        20 => {
            let at = ChangeSequence(newest(records).0.saturating_sub(luck.u64(..100)));
            let subscribers: Vec<_> = (0..60).map(SubscriberNumber).collect();
            let profiles = records.profiles(&subscribers, at).await;
            format!("{:?} {profiles:?}", records.memberships(&[name("a"), name("b")], &subscribers, at).await)
        }
        _ => {
            let ids: Vec<_> = (0..luck.usize(..20)).map(|_| pick_subscription(luck)).collect();
            format!("{:?}", records.recipients(&ids).await)
        }
    }
}
