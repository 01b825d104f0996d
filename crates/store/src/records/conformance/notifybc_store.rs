//! Documents of NotifyBC records, and the native paths that change their state.

use tocsin_model::{
    consent::{ConsentMethod, ConsentState, Evidence, InitialConsent},
    notifybc::{Collection, subscriber_id as native_subscriber},
};

use super::*;

/// Id of a record: 24 hexadecimal digits.
pub(super) fn id(number: u32) -> String {
    format!("{number:024x}")
}

pub(super) fn native(address: &str, state: ConsentState) -> NativeSubscription {
    NativeSubscription {
        channel: name("email"),
        address: address.to_owned(),
        values: r#"{"service":"news","channel":"email"}"#.into(),
        filter: Some(Filter::new(Dialect::Jmespath, "a == `1`")),
        state,
        enabled: true,
        evidence: Evidence::new(ConsentMethod::Api, "notifybc"),
    }
}

/// Subscription document of service `news`.
pub(super) fn subscription(number: u32, address: &str, state: ConsentState) -> PutDocument {
    let word = match state {
        ConsentState::Pending => "unconfirmed",
        ConsentState::Confirmed => "confirmed",
        ConsentState::Withdrawn => "deleted",
    };
    PutDocument {
        collection: Collection::Subscription,
        id: id(number),
        body: format!(r#"{{"userChannelId":"{address}","n":{number}}}"#).into(),
        keys: DocumentKeys {
            service: Some("news".to_owned()),
            channel: Some("email".to_owned()),
            address: Some(address.to_lowercase()),
            state: Some(word.to_owned()),
            ..DocumentKeys::default()
        },
        expect: Precondition::Any,
        native: Some(native(address, state)),
        created_at: at(1),
        updated_at: at(2),
    }
}

fn plain(collection: Collection, number: u32, unique: Option<&str>) -> PutDocument {
    PutDocument {
        collection,
        id: id(number),
        body: "{}".into(),
        keys: DocumentKeys { unique: unique.map(str::to_owned), ..DocumentKeys::default() },
        expect: Precondition::Absent,
        native: None,
        created_at: at(1),
        updated_at: at(1),
    }
}

async fn put(records: &dyn Records, new: PutDocument, now: i64) -> Written<DocumentVersion> {
    records.put_documents(vec![new], at(now)).await.expect("written").remove(0)
}

/// Stores a subscription document and returns its native subscription.
async fn subscribe(records: &dyn Records, number: u32, address: &str, state: ConsentState) -> SubscriptionId {
    let written = put(records, subscription(number, address, state), 1).await.expect("stored");
    written.number.expect("a native subscription")
}

async fn read(records: &dyn Records, number: u32) -> StoredDocument {
    records.document(Collection::Subscription, &id(number)).await.expect("read").expect("there")
}

/// State, revision and time of the last change of a subscription document.
async fn state(records: &dyn Records, number: u32) -> (String, u64, Timestamp) {
    let found = read(records, number).await;
    (found.keys.state.expect("a state"), found.revision, found.updated_at)
}

fn expect_state(word: &str, revision: u64, seconds: i64) -> (String, u64, Timestamp) {
    (word.to_owned(), revision, at(seconds))
}

async fn switch(records: &dyn Records, number: SubscriptionId, enabled: bool, now: i64) {
    let found = records.subscription(number).await.expect("read").expect("there");
    let change =
        SubscriptionChange { device: found.device, enabled: Some(enabled), values: found.values, terms: found.terms };
    let update = UpdateSubscription { id: number, change, expect: Precondition::Any, now: at(now) };
    records.update_subscription(update).await.expect("changed");
}

#[test]
fn a_document_is_stored_under_its_precondition() {
    check(async |records| {
        let first = DocumentVersion { revision: 1, number: None };
        let new = plain(Collection::Bounce, 1, None);
        assert_eq!(put(records, new.clone(), 1).await.expect("stored"), first);
        assert!(matches!(put(records, new.clone(), 2).await, Err(StoreError::Taken(_))));
        let stale = PutDocument { expect: Precondition::Revision(2), ..new.clone() };
        assert!(matches!(put(records, stale, 2).await, Err(StoreError::Changed(_))));
        let gone = PutDocument { id: id(2), expect: Precondition::Revision(1), ..new.clone() };
        assert!(is_missing(put(records, gone, 2).await));
        let keys = DocumentKeys {
            address: Some("a@b.example".to_owned()),
            user: Some(String::new()),
            state: Some("active".to_owned()),
            ..DocumentKeys::default()
        };
        let body = r#"{"n":2}"#;
        let changed = PutDocument {
            expect: Precondition::Revision(1),
            body: body.into(),
            keys: keys.clone(),
            updated_at: at(3),
            ..new
        };
        assert_eq!(put(records, changed, 3).await.expect("stored").revision, 2);
        let found = records.document(Collection::Bounce, &id(1)).await.expect("read").expect("there");
        let keys = DocumentKeys { user: None, ..keys };
        let (created_at, updated_at) = (at(1), at(3));
        let expected =
            StoredDocument { id: id(1), body: body.into(), keys, revision: 2, created_at, updated_at, number: None };
        assert_eq!(found, expected);
        assert_eq!(records.document(Collection::Notification, &id(1)).await.expect("read"), None);
        let ids = [id(2), id(1)];
        assert_eq!(records.documents_of(Collection::Bounce, &ids).await.expect("read"), [None, Some(found)]);
    });
}

#[test]
fn a_unique_key_belongs_to_one_document_of_a_collection() {
    check(async |records| {
        let puts = vec![
            plain(Collection::Administrator, 1, Some("ann@x.example")),
            plain(Collection::Administrator, 2, Some("ann@x.example")),
            plain(Collection::Configuration, 1, Some("ann@x.example")),
        ];
        let written = records.put_documents(puts, at(1)).await.expect("written");
        assert!(matches!(&written[..], [Ok(_), Err(StoreError::Taken(_)), Ok(_)]), "{written:?}");
        let found = records.document_by_unique(Collection::Administrator, "ann@x.example").await.expect("read");
        assert_eq!(found.map(|found| found.id), Some(id(1)));
        let again = PutDocument { expect: Precondition::Any, ..plain(Collection::Administrator, 1, Some("bob")) };
        assert_eq!(put(records, again, 2).await.expect("the key may change").revision, 2);
        let wrong = PutDocument { id: "a/b".to_owned(), ..subscription(9, "x@x.example", ConsentState::Confirmed) };
        let alone = records.put_documents(vec![wrong, plain(Collection::Bounce, 3, None)], at(2)).await;
        assert!(matches!(&alone.expect("written")[..], [Err(StoreError::Unavailable(_)), Ok(_)]), "no native id");
        let free = plain(Collection::Administrator, 2, Some("ann@x.example"));
        assert_eq!(put(records, free, 3).await.expect("the key is free").revision, 1);
    });
}

#[test]
fn a_subscription_document_has_native_rows_in_the_same_commit() {
    check(async |records| {
        let before = newest(records);
        let puts = vec![
            subscription(1, "Ann@x.example", ConsentState::Confirmed),
            subscription(2, "bob@x.example", ConsentState::Pending),
        ];
        let written = records.put_documents(puts, at(1)).await.expect("written");
        let numbers: Vec<_> = written.into_iter().map(|version| version.expect("stored").number).collect();
        assert_eq!(numbers, [Some(SubscriptionId(1)), Some(SubscriptionId(2))]);
        assert_eq!(news(records, before).await, ["s-1 to s-2"], "the run is one change");
        assert_eq!(records.counts(), RecordCounts { subscribers: 2, devices: 2, subscriptions: 2 });

        let found = records.subscription(SubscriptionId(1)).await.expect("read").expect("there");
        assert_eq!((found.application.as_str(), found.class.as_str()), ("notifybc", tocsin_model::notifybc::CLASS));
        assert_eq!((found.key, found.enabled, found.consent), (Some(id(1)), true, Some(ConsentState::Confirmed)));
        let owner = records.subscriber(&found.subscriber).await.expect("read").expect("there");
        assert_eq!(owner.id, native_subscriber(&id(1)).expect("an id"));
        let device = Device { channel: name("email"), address: "Ann@x.example".to_owned(), state: DeviceState::Active };
        assert_eq!(owner.devices, BTreeMap::from([(name("main"), device)]));
        let pending = records.subscription(SubscriptionId(2)).await.expect("read").expect("there");
        assert_eq!((pending.enabled, pending.consent), (false, Some(ConsentState::Pending)));

        let indexed = records.indexed_subscriptions(&name("notifybc"), None, 9).await.expect("read");
        assert_eq!(indexed.iter().map(|found| found.id.0).collect::<Vec<_>>(), [1]);
        assert_eq!(indexed[0].channel, Some(name("email")));
        let recipients = records.recipients(&[SubscriptionId(1), SubscriptionId(2)]).await.expect("read");
        let enabled: Vec<_> = recipients.iter().map(|found| found.as_ref().expect("there").interest.enabled).collect();
        assert_eq!(enabled, [true, false]);
        let evidence = records.evidence(&EvidenceOf::Subscription(SubscriptionId(1)), None, 9).await.expect("read");
        assert_eq!(evidence.iter().map(|found| found.act.word()).collect::<Vec<_>>(), ["confirmed"]);
        let ids = records.document_ids(&[SubscriptionId(2), SubscriptionId(9)]).await.expect("read");
        assert_eq!(ids, [Some(id(2)), None]);
    });
}

#[test]
fn a_changed_document_changes_its_native_rows() {
    check(async |records| {
        let number = subscribe(records, 1, "ann@x.example", ConsentState::Pending).await;
        let confirmed = subscription(1, "ann@x.example", ConsentState::Confirmed);
        let version = put(records, confirmed.clone(), 3).await.expect("stored");
        assert_eq!(version, DocumentVersion { revision: 2, number: Some(number) });
        assert!(records.subscription(number).await.expect("read").expect("there").enabled);

        // Another address with another state in one write is taken as given: nothing is requested anew.
        let moved = subscription(1, "Other@x.example", ConsentState::Confirmed);
        assert_eq!(put(records, moved, 4).await.expect("stored").number, Some(number));
        let found = records.subscription(number).await.expect("read").expect("there");
        assert_eq!((found.enabled, found.consent), (true, Some(ConsentState::Confirmed)));
        let owner = records.subscriber(&found.subscriber).await.expect("read").expect("there");
        let device = &owner.devices[&name("main")];
        assert_eq!((device.address.as_str(), device.state), ("Other@x.example", DeviceState::Active));
        assert_eq!(state(records, 1).await, expect_state("confirmed", 3, 2));
        let acts = records.evidence(&EvidenceOf::Subscription(number), None, 9).await.expect("read");
        assert_eq!(acts.iter().map(|found| found.act.word()).collect::<Vec<_>>(), ["requested", "confirmed"]);

        let mut values = subscription(1, "Other@x.example", ConsentState::Confirmed);
        values.native = Some(NativeSubscription {
            values: r#"{"service":"alarms"}"#.into(),
            filter: None,
            ..native("Other@x.example", ConsentState::Confirmed)
        });
        put(records, values, 5).await.expect("stored");
        let found = records.subscription(number).await.expect("read").expect("there");
        assert_eq!((&*found.values, found.terms.filter), (r#"{"service":"alarms"}"#, None));

        put(records, subscription(1, "Other@x.example", ConsentState::Withdrawn), 6).await.expect("stored");
        assert!(!records.subscription(number).await.expect("read").expect("there").enabled);
        assert_eq!(state(records, 1).await, expect_state("deleted", 5, 2));

        let no_channel = PutDocument { native: None, ..subscription(1, "Other@x.example", ConsentState::Confirmed) };
        assert_eq!(put(records, no_channel, 7).await.expect("stored").number, None);
        assert_eq!(records.counts(), RecordCounts { subscribers: 0, devices: 0, subscriptions: 0 });
        let again = put(records, subscription(1, "ann@x.example", ConsentState::Confirmed), 8).await.expect("stored");
        assert_ne!(again.number, Some(number), "numbers are not used again");
    });
}

#[test]
fn the_state_follows_a_native_switch_or_removal() {
    check(async |records| {
        let number = subscribe(records, 1, "ann@x.example", ConsentState::Confirmed).await;
        switch(records, number, false, 10).await;
        assert_eq!(state(records, 1).await, expect_state("deleted", 2, 10));
        switch(records, number, true, 11).await;
        assert_eq!(state(records, 1).await, expect_state("confirmed", 3, 11));

        let found = records.subscription(number).await.expect("read").expect("there");
        let terms = SubscriptionParams { snoozed_until: Some(at(20)), ..found.terms };
        let change = SubscriptionChange { device: found.device, enabled: Some(true), values: found.values, terms };
        let update = UpdateSubscription { id: number, change, expect: Precondition::Any, now: at(12) };
        records.update_subscription(update).await.expect("snoozed");
        assert_eq!(state(records, 1).await, expect_state("confirmed", 3, 11));
        assert_eq!(records.wake_subscriptions(at(20), 9).await.expect("woken"), 1);
        assert_eq!(state(records, 1).await, expect_state("confirmed", 3, 11));

        records.remove_subscription(number, Precondition::Any, at(30)).await.expect("removed");
        assert_eq!(state(records, 1).await, expect_state("deleted", 4, 30));
        assert_eq!(records.document_ids(&[number]).await.expect("read"), [Some(id(1))], "it stays known");
    });
}

#[test]
fn the_state_follows_a_native_consent() {
    check(async |records| {
        let number = subscribe(records, 1, "ann@x.example", ConsentState::Confirmed).await;
        let evidence = || Evidence::new(ConsentMethod::Link, "subscriber");
        assert!(records.withdraw_consent(number, evidence(), at(10)).await.expect("withdrawn"));
        assert_eq!(state(records, 1).await, expect_state("deleted", 2, 10));
        assert!(records.restore_consent(number, evidence(), at(11)).await.expect("restored"));
        assert_eq!(state(records, 1).await, expect_state("confirmed", 3, 11));

        // A withdrawn record is restored by its document as well.
        records.withdraw_consent(number, evidence(), at(12)).await.expect("withdrawn");
        put(records, subscription(1, "ann@x.example", ConsentState::Confirmed), 13).await.expect("stored");
        assert!(records.subscription(number).await.expect("read").expect("there").enabled);
        assert_eq!(state(records, 1).await, expect_state("confirmed", 5, 2));

        let pending = subscribe(records, 2, "bob@x.example", ConsentState::Pending).await;
        assert!(records.withdraw_consent(pending, evidence(), at(14)).await.expect("withdrawn"));
        assert_eq!(state(records, 2).await, expect_state("deleted", 2, 14));
    });
}

#[test]
fn the_state_follows_a_native_import() {
    check(async |records| {
        let number = subscribe(records, 1, "ann@x.example", ConsentState::Confirmed).await;
        let line = |enabled| NewSubscription {
            application: name("notifybc"),
            class: name(tocsin_model::notifybc::CLASS),
            subscriber: native_subscriber(&id(1)).expect("an id"),
            key: Some(id(1)),
            device: Some(name("main")),
            enabled: Some(enabled),
            values: r#"{"service":"news"}"#.into(),
            terms: SubscriptionParams::default(),
        };
        records.put_subscriptions(vec![line(false)], at(10)).await.expect("imported").remove(0).expect("stored");
        assert_eq!(state(records, 1).await, expect_state("deleted", 2, 10));
        let confirmed = NewConsented {
            subscription: line(true),
            consent: InitialConsent::Recorded(
                ConsentState::Confirmed,
                Evidence::new(ConsentMethod::Import, "operator"),
            ),
            keeps_confirmed: false,
            quiet: false,
        };
        records.put_consented(vec![confirmed], at(11)).await.expect("imported").remove(0).expect("stored");
        assert_eq!(state(records, 1).await, expect_state("confirmed", 3, 11));

        // An import after a removal makes another subscription for the same record.
        records.remove_subscription(number, Precondition::Any, at(12)).await.expect("removed");
        let again = records.put_subscriptions(vec![line(true)], at(13)).await.expect("imported").remove(0);
        let again = again.expect("stored");
        assert_ne!(again, number);
        assert_eq!(state(records, 1).await, expect_state("confirmed", 5, 13));
        assert_eq!(records.document_ids(&[number, again]).await.expect("read"), [None, Some(id(1))]);
    });
}

#[test]
fn the_state_follows_the_removal_of_the_subscriber_or_the_application() {
    check(async |records| {
        subscribe(records, 1, "ann@x.example", ConsentState::Confirmed).await;
        subscribe(records, 2, "bob@x.example", ConsentState::Pending).await;
        let owner = native_subscriber(&id(1)).expect("an id");
        records.remove_subscriber(&owner, Precondition::Any, at(10)).await.expect("removed");
        assert_eq!(state(records, 1).await, expect_state("deleted", 2, 10));
        let application = NewApplicationVersion { name: &name("notifybc"), text: "t", author: "ann", now: at(11) };
        records.put_application(application).await.expect("stored");
        records.remove_application(&name("notifybc"), at(12)).await.expect("removed");
        assert_eq!(state(records, 2).await, expect_state("deleted", 2, 12));
    });
}

#[test]
fn a_merged_subscription_keeps_its_document() {
    check(async |records| {
        records.put_subscriber(person("ann", &["phone=sms"]), Precondition::Any, at(1)).await.expect("stored");
        let number = subscribe(records, 1, "ann@x.example", ConsentState::Confirmed).await;
        let owner = native_subscriber(&id(1)).expect("an id");
        records.merge_subscribers(&owner, &subscriber_id("ann"), at(10)).await.expect("merged").expect("permitted");
        assert_eq!(state(records, 1).await, expect_state("confirmed", 1, 2));

        let moved = subscription(1, "new@x.example", ConsentState::Confirmed);
        assert_eq!(put(records, moved, 11).await.expect("stored").number, Some(number));
        let found = records.subscription(number).await.expect("read").expect("there");
        assert_eq!((found.subscriber.as_str(), found.enabled), ("ann", true));
        let ann = records.subscriber(&subscriber_id("ann")).await.expect("read").expect("there");
        let addresses: Vec<_> = ann.devices.values().map(|device| device.address.as_str()).collect();
        assert_eq!(addresses, ["new@x.example", "ann@sms.example"]);

        assert_eq!(records.remove_documents(Collection::Subscription, vec![id(1)], at(12)).await.expect("removed"), 1);
        assert_eq!(records.subscription(number).await.expect("read"), None);
        assert!(records.subscriber(&subscriber_id("ann")).await.expect("read").is_some(), "a person stays");
    });
}

#[test]
fn a_native_new_address_reaches_the_document() {
    check(async |records| {
        let number = subscribe(records, 1, "ann@x.example", ConsentState::Confirmed).await;
        let owner = native_subscriber(&id(1)).expect("an id");
        let device = Device { channel: name("email"), address: "New@X.example".to_owned(), state: DeviceState::Active };
        let (id_of, device_name) = (&owner, &name("main"));
        let put = PutDevice { id: id_of, name: device_name, device, keeps_state: false, now: at(10) };
        records.put_device(put).await.expect("stored");
        let found = read(records, 1).await;
        let body: serde_json::Value = serde_json::from_str(&found.body).expect("JSON");
        assert_eq!(body, serde_json::json!({ "userChannelId": "New@X.example", "n": 1 }));
        assert_eq!(found.keys.address.as_deref(), Some("new@x.example"));
        // The owner of the new address has not confirmed.
        assert_eq!(found.keys.state.as_deref(), Some("unconfirmed"));
        assert_eq!(records.consent(number).await.expect("read").expect("there").state, ConsentState::Pending);
        let filter = KeyFilter { addresses: Some(vec!["new@x.example".to_owned()]), ..KeyFilter::default() };
        assert_eq!(records.count_documents(Collection::Subscription, &filter).await.expect("counted"), 1);
    });
}

#[test]
fn an_erased_person_has_no_documents() {
    check(async |records| {
        subscribe(records, 1, "ann@x.example", ConsentState::Confirmed).await;
        subscribe(records, 2, "bob@x.example", ConsentState::Confirmed).await;
        subscribe(records, 3, "bob@x.example", ConsentState::Confirmed).await;
        let of_address = |collection, number, address: &str| PutDocument {
            keys: DocumentKeys { address: Some(address.to_owned()), ..DocumentKeys::default() },
            ..plain(collection, number, None)
        };
        for (number, address) in [(1, "ann@x.example"), (2, "bob@x.example")] {
            for collection in [Collection::Bounce, Collection::Notification] {
                put(records, of_address(collection, number, address), 1).await.expect("stored");
            }
        }
        for number in [1, 2] {
            let owner = native_subscriber(&id(number)).expect("an id");
            records.erase_subscriber(&owner, at(10)).await.expect("erased");
        }
        let mut left = Vec::new();
        for collection in Collection::ALL {
            let filter = KeyFilter::default();
            let scan = DocumentScan { collection, filter, after: None, limit: 9 };
            let page = records.scan_documents(scan).await.expect("read");
            left.extend(page.items.into_iter().map(|found| (collection.name(), found.id)));
        }
        // The other subscription of `bob` has the address still.
        assert_eq!(left, [("subscription", id(3)), ("notification", id(2)), ("bounce", id(2))]);
    });
}

#[test]
fn documents_are_removed_with_their_native_rows() {
    check(async |records| {
        let number = subscribe(records, 1, "ann@x.example", ConsentState::Confirmed).await;
        put(records, plain(Collection::Bounce, 1, None), 1).await.expect("stored");
        let before = newest(records);
        let ids = vec![id(1), id(7)];
        assert_eq!(records.remove_documents(Collection::Subscription, ids, at(10)).await.expect("removed"), 1);
        assert_eq!(records.document(Collection::Subscription, &id(1)).await.expect("read"), None);
        assert_eq!(records.subscription(number).await.expect("read"), None);
        assert_eq!(records.counts(), RecordCounts { subscribers: 0, devices: 0, subscriptions: 0 });
        assert!(news(records, before).await.contains(&"s-1 to s-1".to_owned()));
        assert!(records.document(Collection::Bounce, &id(1)).await.expect("read").is_some());
    });
}

#[test]
fn changes_make_lifecycle_entries() {
    check(async |records| {
        let changes = tocsin_model::lifecycle::LifecycleChange::ALL;
        let filters = changes.into_iter().map(|change| LifecycleFilter { change, class: None }).collect();
        records.set_lifecycle_filters(&name("notifybc"), filters).await.expect("stored");
        let number = subscribe(records, 1, "ann@x.example", ConsentState::Pending).await;
        put(records, subscription(1, "ann@x.example", ConsentState::Confirmed), 2).await.expect("stored");
        put(records, subscription(1, "ann@x.example", ConsentState::Withdrawn), 3).await.expect("stored");
        let entries = records.lifecycle_entries(&name("notifybc"), 0, 9).await.expect("read");
        let of_subscription = entries.iter().filter(|entry| entry.class.as_str() == tocsin_model::notifybc::CLASS);
        let words: Vec<_> = of_subscription.map(|entry| entry.change.word()).collect();
        assert_eq!(words, ["requested", "confirmed", "ended"], "of {number}");
    });
}

#[test]
fn pages_and_counts_equal_a_scan_of_all_documents() {
    let seed =
        std::env::var("TOCSIN_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("TOCSIN_SEED={seed}");
    check(async |records| {
        let mut rng = fastrand::Rng::with_seed(seed);
        let services = ["", "news", "alarms", "tides"];
        let channels = ["email", "sms", "inApp"];
        let addresses = ["", "a@x.example", "b@x.example", "c@x.example"];
        let users = ["", "ann", "bob"];
        let states = ["", "unconfirmed", "confirmed", "deleted"];
        let pick = |rng: &mut fastrand::Rng, values: &[&str]| Some(values[rng.usize(..values.len())].to_owned());
        let mut all = Vec::new();
        for number in 0..120 {
            let keys = DocumentKeys {
                service: pick(&mut rng, &services),
                channel: pick(&mut rng, &channels),
                address: pick(&mut rng, &addresses),
                user: pick(&mut rng, &users),
                state: pick(&mut rng, &states),
                unique: None,
            };
            // Ids need not grow with time.
            let number = number ^ 0x55;
            let new = PutDocument { keys: keys.clone(), ..plain(Collection::Notification, number, None) };
            put(records, new, 1).await.expect("stored");
            all.push((id(number), keys.normalized()));
        }
        put(records, plain(Collection::Bounce, 1, None), 1).await.expect("another collection");
        all.sort_by(|(one, _), (other, _)| one.cmp(other));
        for _ in 0..200 {
            let some = |rng: &mut fastrand::Rng, values: &[&str]| -> Option<Vec<String>> {
                let list = |rng: &mut fastrand::Rng| (0..rng.usize(..3)).filter_map(|_| pick(rng, values)).collect();
                (rng.u32(..3) == 0).then(|| list(rng))
            };
            let ids = |rng: &mut fastrand::Rng| (0..rng.usize(..9)).map(|_| id(rng.u32(..140))).collect();
            let filter = KeyFilter {
                ids: (rng.u32(..6) == 0).then(|| ids(&mut rng)),
                services: some(&mut rng, &services),
                channels: some(&mut rng, &channels),
                addresses: some(&mut rng, &addresses),
                users: some(&mut rng, &users),
                states: some(&mut rng, &states),
            };
            let expected: Vec<&String> =
                all.iter().filter(|(id, keys)| filter.permits(id, keys)).map(|(id, _)| id).collect();
            let count = records.count_documents(Collection::Notification, &filter).await.expect("counted");
            assert_eq!(count, expected.len() as u64, "{filter:?}");
            let (mut found, mut after, limit) = (Vec::new(), None, rng.usize(1..20));
            loop {
                let (collection, filter) = (Collection::Notification, filter.clone());
                let page =
                    records.scan_documents(DocumentScan { collection, filter, after, limit }).await.expect("read");
                assert!(page.items.len() <= limit);
                found.extend(page.items.into_iter().map(|found| found.id));
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{filter:?}");
        }
    });
}

#[test]
fn a_page_of_large_bodies_is_short() {
    check(async |records| {
        let body: Box<str> = format!(r#"{{"mail":"{}"}}"#, "x".repeat(PAGE_BODIES_BYTES_MAX / 3)).into();
        for number in 0..5 {
            let new = PutDocument { body: body.clone(), ..plain(Collection::Bounce, number, None) };
            put(records, new, 1).await.expect("stored");
        }
        let (mut pages, mut after) = (Vec::new(), None);
        loop {
            let (collection, filter) = (Collection::Bounce, KeyFilter::default());
            let page =
                records.scan_documents(DocumentScan { collection, filter, after, limit: 100 }).await.expect("read");
            pages.push(page.items.len());
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(pages, [3, 2]);
    });
}

#[test]
fn services_are_those_of_confirmed_subscriptions() {
    check(async |records| {
        let of = |number, service: &str, state| {
            let mut new = subscription(number, "ann@x.example", state);
            new.keys.service = Some(service.to_owned());
            new
        };
        let puts = vec![
            of(1, "tides", ConsentState::Confirmed),
            of(2, "alarms", ConsentState::Confirmed),
            of(3, "news", ConsentState::Pending),
            of(4, "tides", ConsentState::Withdrawn),
            of(5, "tides", ConsentState::Confirmed),
        ];
        records.put_documents(puts, at(1)).await.expect("written");
        assert_eq!(records.confirmed_services().await.expect("read"), ["alarms", "tides"]);
    });
}
