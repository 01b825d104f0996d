//! Differential test: random operations have the same results on every backend.

use tocsin_model::{
    consent::{ConsentMethod, ConsentState, Evidence},
    feedback::Class,
    lifecycle::LifecycleChange,
    notifybc::Collection,
};

use super::*;

/// Applies the same random operations to both backends, and compares each result and the final state.
#[test]
fn the_backends_agree() {
    let seed =
        std::env::var("TOCSIN_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("TOCSIN_SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let folder = tempfile::tempdir().expect("a folder");
    let memory = MemoryRecords::with_changes_kept(CHANGES_KEPT_IN_TESTS).expect("random numbers");
    let mut sqlite = Arc::new(open(folder.path()));
    let mut history: BTreeMap<ChangeSequence, Vec<IndexedSubscription>> = BTreeMap::new();
    for step in 0..600 {
        let saved = rng.clone();
        let expected = block_on(random_operation(&memory, &mut rng, step));
        let found = block_on(random_operation(&*sqlite, &mut saved.clone(), step));
        assert_eq!(found, expected, "step {step}");
        assert_eq!(sqlite.counts(), memory.counts(), "step {step}");
        assert_eq!(block_on(class_counts(&*sqlite)), block_on(class_counts(&memory)), "step {step}");
        assert_eq!(newest(&*sqlite), newest(&memory), "step {step}");
        // Snapshots equal the state recorded at the time.
        // A snapshot of the past has no `enabled_at`, which only scheduled rules read, from the present.
        let now = block_on(memory.indexed_subscriptions(&name("a"), None, usize::MAX)).expect("read");
        let now = now.into_iter().map(|indexed| IndexedSubscription { enabled_at: None, ..indexed }).collect();
        history.insert(newest(&memory), now);
        let (at, expected) = rng.choice(&history).expect("there is a past");
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
        let changes =
            records.changes(ChangeSequence(newest(records).0.saturating_sub(CHANGES_KEPT_IN_TESTS)), usize::MAX).await;
        let suppressions = records.suppressions(&SuppressionFilter::all(at(0)), None, usize::MAX).await;
        let (collection, filter) = (Collection::Subscription, KeyFilter::default());
        let documents = records.scan_documents(DocumentScan { collection, filter, after: None, limit: 99 }).await;
        format!(
            "{documents:#?}{subscribers:#?}{subscriptions:#?}{recipients:#?}{indexed:#?}{segments:#?}{suppressions:#?}{changes:#?}"
        )
    };
    assert!(block_on(everything(&*sqlite)) == block_on(everything(&memory)), "the backends differ in the end");
}

async fn random_operation(records: &dyn Records, rng: &mut fastrand::Rng, step: i64) -> String {
    fn pick(rng: &mut fastrand::Rng, names: &[&str]) -> Name {
        name(names[rng.usize(..names.len())])
    }
    fn pick_id(rng: &mut fastrand::Rng) -> SubscriberId {
        subscriber_id(&format!("p{}", rng.u32(..12)))
    }
    // About one subscription is created in three steps, so this hits old, new, removed and future ones.
    let numbers = 10 + step.unsigned_abs() / 3;
    let pick_subscription = |rng: &mut fastrand::Rng| SubscriptionId(rng.u64(..numbers));
    fn pick_expect(rng: &mut fastrand::Rng) -> Precondition {
        match rng.u32(..8) {
            0 => Precondition::Absent,
            1 => Precondition::Present,
            2 => Precondition::Revision(rng.u64(1..4)),
            _ => Precondition::Any,
        }
    }
    fn make_device(rng: &mut fastrand::Rng) -> Device {
        let state = rng.choice([DeviceState::Active, DeviceState::Disabled, DeviceState::Bounced]).expect("three");
        Device { channel: pick(rng, &["mail", "sms"]), address: format!("x{}", rng.u32(..5)), state }
    }
    fn make_subscriber(rng: &mut fastrand::Rng) -> NewSubscriber {
        let attributes = (0..rng.usize(..3)).map(|n| (format!("k{n}"), Value::Integer(rng.i64(..3))));
        let profile = Profile {
            attributes: attributes.collect(),
            enabled: rng.u32(..4) > 0,
            locale: rng.bool().then(|| "de".to_owned()),
            time_zone: None,
        };
        let count = rng.usize(..4);
        let devices = rng.bool().then(|| (0..count).map(|_| (pick(rng, &["a", "b", "c"]), make_device(rng))).collect());
        NewSubscriber { kept: Default::default(), id: pick_id(rng), profile, devices, preferences: None }
    }
    fn make_terms(rng: &mut fastrand::Rng) -> SubscriptionParams {
        let filter = || Filter { dialect: Dialect::Jmespath, text: "a == `1`".into() };
        let schedule = || "DTSTART;TZID=Europe/Vienna:20270104T080000\nRRULE:FREQ=DAILY".into();
        SubscriptionParams {
            filter: (rng.u32(..4) == 0).then(filter),
            schedule: (rng.u32(..4) == 0).then(schedule),
            snoozed_until: (rng.u32(..4) == 0).then(|| at(rng.i64(0..60))),
        }
    }
    fn make_subscription(rng: &mut fastrand::Rng) -> NewSubscription {
        NewSubscription {
            application: pick(rng, &["a", "b"]),
            class: pick(rng, &["one", "two"]),
            subscriber: pick_id(rng),
            key: rng.bool().then(|| format!("k{}", rng.u32(..3))),
            device: (rng.u32(..3) == 0).then(|| pick(rng, &["a", "b", "c"])),
            enabled: Some(rng.u32(..4) > 0),
            values: format!(r#"{{"n":{}}}"#, rng.u32(..3)).into(),
            terms: make_terms(rng),
        }
    }
    let now = at(step);
    match rng.u32(..30) {
        0 | 1 => format!("{:?}", records.put_subscriber(make_subscriber(rng), pick_expect(rng), now).await),
        2 => {
            let many = (0..rng.usize(..6)).map(|_| make_subscriber(rng)).collect();
            format!("{:?}", records.put_subscribers(many, now).await)
        }
        3 => format!("{:?}", records.remove_subscriber(&pick_id(rng), pick_expect(rng), now).await),
        4 | 5 => {
            let (id, name) = (pick_id(rng), pick(rng, &["a", "b", "c"]));
            let (device, keeps_state) = (make_device(rng), rng.u32(..2) == 0);
            let put = PutDevice { id: &id, name: &name, device, keeps_state, now };
            format!("{:?}", records.put_device(put).await)
        }
        6 => {
            let (id, device) = (pick_id(rng), pick(rng, &["a", "b", "c"]));
            format!("{:?}", records.remove_device(&id, &device, now).await)
        }
        7 => format!("{:?}", records.put_subscription(make_subscription(rng), now).await),
        8 | 9 => {
            let many = (0..rng.usize(..9)).map(|_| make_subscription(rng)).collect();
            format!("{:?}", records.put_subscriptions(many, now).await)
        }
        10 => {
            let new = make_subscription(rng);
            let (id, expect) = (pick_subscription(rng), pick_expect(rng));
            format!(
                "{:?}",
                records.update_subscription(UpdateSubscription { id, change: new.change(), expect, now }).await
            )
        }
        11 => format!("{:?}", records.remove_subscription(pick_subscription(rng), pick_expect(rng), now).await),
        12 => {
            let application = pick(rng, &["a", "b"]);
            if rng.u32(..10) == 0 {
                format!("{:?}", records.remove_application(&application, now).await)
            } else {
                format!(
                    "{:?}",
                    records
                        .put_application(NewApplicationVersion { name: &application, text: "text", author: "ann", now })
                        .await
                )
            }
        }
        13 => {
            let filter = SubscriberFilter {
                id_prefix: rng.bool().then(|| "p1".to_owned()),
                address: rng.bool().then(|| format!("x{}", rng.u32(..5))),
                locale: rng.bool().then(|| "de".to_owned()),
                enabled: rng.bool().then(|| rng.bool()),
                attribute: None,
            };
            let after = rng.bool().then(|| pick_id(rng));
            format!("{:?}", records.subscribers(&filter, after.as_ref(), rng.usize(..5)).await)
        }
        14 => {
            let filter = SubscriptionFilter {
                application: rng.bool().then(|| pick(rng, &["a", "b"])),
                class: rng.bool().then(|| pick(rng, &["one", "two"])),
                subscriber: (rng.u32(..4) == 0).then(|| pick_id(rng)),
                key: (rng.u32(..4) == 0).then(|| "k1".to_owned()),
                enabled: rng.bool().then(|| rng.bool()),
            };
            let after = rng.bool().then(|| pick_subscription(rng));
            format!("{:?}", records.subscriptions(&filter, after, rng.usize(..9)).await)
        }
        15 => {
            let application = pick(rng, &["a", "b"]);
            let after = rng.bool().then(|| pick_subscription(rng));
            format!("{:?}", records.indexed_subscriptions(&application, after, rng.usize(..50)).await)
        }
        16 => {
            let application = pick(rng, &["a", "b"]);
            let ranges: Vec<_> = (0..rng.usize(..4)).map(|_| pick_subscription(rng)..=pick_subscription(rng)).collect();
            let at = ChangeSequence(rng.u64(..=newest(records).0));
            let subscribers: Vec<_> = (0..rng.usize(..3)).map(|_| SubscriberNumber(rng.u64(1..15))).collect();
            let owned = records.subscriptions_of(&subscribers, at).await;
            format!("{:?} {owned:?}", records.indexed_at(&application, &ranges, at).await)
        }
        17 => {
            let filter = ["(k0=1)", "(!(k1>=1))", "(|(channel=sms)(locale=*))"][rng.usize(..3)].into();
            let new = NewSegment { name: pick(rng, &["a", "b"]), description: None, filter };
            format!("{:?}", records.put_segment(new, pick_expect(rng), now).await)
        }
        21 => {
            let text = rng.choice(["address/smtp/x1", "address/http/x2", "device/p1/a"]).expect("three");
            let cause = *rng.choice(&Cause::ALL).expect("some");
            let new = (0..rng.usize(..4)).map(|_| suppression_of(text, cause, rng.bool(), now)).collect();
            format!("{:?}", records.put_suppressions(new).await)
        }
        22 => match rng.u32(..7) {
            4 | 5 => change_feedback(records, rng, step).await,
            6 => format!("{:?}", records.prune_feedback(now, rng.usize(..3)).await),
            0 => format!("{:?}", records.prune_suppressions(now, rng.usize(..3)).await),
            3 => format!("{:?}", records.wake_subscriptions(now, rng.usize(..3)).await),
            1 => {
                let target = "address/smtp/x1".parse().expect("a target");
                format!("{:?}", records.remove_suppression(&target).await)
            }
            _ => {
                let protocol = rng.bool().then(|| name("smtp"));
                let filter = SuppressionFilter { protocol, ..SuppressionFilter::all(now) };
                format!("{:?}", records.suppressions(&filter, None, rng.usize(..4)).await)
            }
        },
        23 => format!("{:?}", records.merge_subscribers(&pick_id(rng), &pick_id(rng), now).await),
        18 => format!("{:?}", records.remove_segment(&pick(rng, &["a", "b"]), pick_expect(rng), now).await),
        19 => {
            let texts = ["(k0>=1)", "(!(k1=2))", "(channel=sms)", "(&(id=p1*)(locale=DE))", "(:integerMatch:=1)"];
            let filter = filter(texts[rng.usize(..texts.len())]);
            let after = rng.bool().then(|| pick_id(rng));
            let bounds = SegmentScanBounds { looks: rng.u64(1..9), members: rng.u64(1..9), kept: rng.usize(..3) };
            format!("{:?}", records.scan_matching(&filter, after.as_ref(), bounds).await)
        }
        20 => {
            let at = ChangeSequence(newest(records).0.saturating_sub(rng.u64(..100)));
            let subscribers: Vec<_> = (0..60).map(SubscriberNumber).collect();
            let profiles = records.profiles(&subscribers, at).await;
            format!("{:?} {profiles:?}", records.memberships(&[name("a"), name("b")], &subscribers, at).await)
        }
        25 => {
            let application = pick(rng, &["a", "b"]);
            let class = rng.bool().then(|| pick(rng, &["one", "two"]));
            let filters = LifecycleChange::ALL.into_iter().filter(|_| rng.bool());
            let filters = filters.map(|change| LifecycleFilter { change, class: class.clone() }).collect();
            format!("{:?}", records.set_lifecycle_filters(&application, filters).await)
        }
        26 => {
            let application = pick(rng, &["a", "b"]);
            let entries = records.lifecycle_entries(&application, rng.u64(..20), rng.usize(..9)).await;
            let (through, before, limit) = (rng.u64(..40), at(rng.i64(0..60)), rng.usize(..5));
            let trim = TrimLifecycle { application: &application, through, before, limit };
            let trimmed = records.trim_lifecycle(trim).await;
            format!("{entries:?} {trimmed:?} {:?}", records.last_lifecycle_position().await)
        }
        27 | 28 => {
            let many = (0..rng.usize(..5)).map(|_| make_document(rng)).collect();
            format!("{:?}", records.put_documents(many, now).await)
        }
        29 => change_documents(records, rng, step).await,
        _ => {
            let ids: Vec<_> = (0..rng.usize(..20)).map(|_| pick_subscription(rng)).collect();
            format!("{:?}", records.recipients(&ids).await)
        }
    }
}

fn make_document(rng: &mut fastrand::Rng) -> PutDocument {
    let number = rng.u32(..8);
    let state = *rng.choice(&ConsentState::ALL).expect("some");
    let mut new = notifybc_store::subscription(number, &format!("x{}", rng.u32(..5)), state);
    if rng.u32(..6) == 0 {
        new.native = None;
    }
    if rng.u32(..6) == 0 {
        new.keys.unique = Some(format!("u{}", rng.u32(..3)));
    }
    if rng.u32(..6) == 0 {
        new.expect = Precondition::Revision(rng.u64(1..6));
    }
    new
}

/// Removes documents, or changes one by another port.
async fn change_documents(records: &dyn Records, rng: &mut fastrand::Rng, step: i64) -> String {
    let id = notifybc_store::id(rng.u32(..8));
    let owner = tocsin_model::notifybc::subscriber_id(&id).expect("an id");
    let filter =
        SubscriptionFilter { application: Some(name("notifybc")), key: Some(id.clone()), ..Default::default() };
    let found = records.subscriptions(&filter, None, 9).await.expect("read");
    let evidence = || Evidence::new(ConsentMethod::Api, "ann");
    let number = found.first().map_or(SubscriptionId(1), |found| found.id);
    match rng.u32(..8) {
        0 => format!("{:?}", records.remove_documents(Collection::Subscription, vec![id], at(step)).await),
        1 => format!("{:?}", records.withdraw_consent(number, evidence(), at(step)).await),
        2 => format!("{:?}", records.restore_consent(number, evidence(), at(step)).await),
        3 => {
            let into = subscriber_id(&format!("p{}", rng.u32(..12)));
            format!("{:?}", records.merge_subscribers(&owner, &into, at(step)).await)
        }
        4 => format!("{:?}", records.documents_of(Collection::Subscription, &[id]).await),
        5 => format!("{:?}", records.remove_subscriber(&owner, Precondition::Any, at(step)).await),
        6 => {
            let device =
                Device { channel: name("email"), address: format!("y{}", rng.u32(..3)), state: DeviceState::Active };
            let put = PutDevice { id: &owner, name: &name("main"), device, keeps_state: false, now: at(step) };
            format!("{:?}", records.put_device(put).await)
        }
        _ => {
            let new = NewSubscription {
                application: name("notifybc"),
                class: name(tocsin_model::notifybc::CLASS),
                subscriber: owner,
                key: Some(id),
                device: Some(name("main")),
                enabled: Some(rng.bool()),
                values: "{}".into(),
                terms: SubscriptionParams::default(),
            };
            format!("{:?}", records.put_subscription(new, at(step)).await)
        }
    }
}

/// Adds an entry, from the present state or from a stale one.
async fn change_feedback(records: &dyn Records, rng: &mut fastrand::Rng, step: i64) -> String {
    let text = rng.choice(["address/smtp/x1", "device/p1/a"]).expect("two");
    let target: Target = text.parse().expect("a target");
    let mut before = records.feedback_states(std::slice::from_ref(&target)).await.expect("read").remove(0);
    if rng.u32(..4) == 0 {
        before.entries.pop();
    }
    let class = *rng.choice(&Class::ALL).expect("some");
    let entry = feedback_store::entry(text, class, &format!("k{}", rng.u32(..3)), step);
    let suppression = rng.bool().then(|| suppression_of(text, Cause::HardBounce, true, at(step)));
    let cleared = before.entries.first().map(|entry| (entry.class, entry.key.clone())).into_iter().collect();
    let change = FeedbackChange { target, before, added: vec![entry], cleared, suppression };
    let changed = records.change_feedback(vec![change]).await.map_err(|error| error.to_string());
    let page = records.scan_feedback(&FeedbackFilter::default(), None, rng.usize(1..4)).await;
    format!("{changed:?} {page:?} {:?}", records.counted_in_sessions().await)
}
