//! An erased person leaves nothing in the files of the records and the inbox, except the evidence without the person.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use tocsin_model::{
    consent::{ConsentMethod, ConsentPolicy, ConsentRequest, Evidence, EvidenceAddress, InitialConsent, Proof},
    id::{Name, NotificationBatchId, NotificationId, SubscriberId},
    inbox::{InboxContent, NewItem, Wording},
    subscriber::{Device, DeviceState, Profile},
    suppression::{Cause, Suppression, Target},
    time::Timestamp,
    value::Value,
};
use tocsin_store::{
    inbox::Inbox,
    records::{
        ChangeLog, ConfirmConsent, ConsentStore, EndpointKey, EvidenceOf, FailingEndpoint, NewConsented, NewSegment,
        NewSubscriber, NewSubscription, Precondition, PutDevice, RecipientStore, SegmentStore, SubscriberStore,
        SubscriptionChange, SubscriptionStore, SuppressionStore, UpdateSubscription,
    },
    sqlite::{
        inbox::{InboxOptions, SqliteInbox},
        records::{RecordsOptions, SqliteRecords},
    },
};

/// Texts that name the person: its id, addresses, attributes, values and the text of its inbox.
const NEEDLES: [&str; 8] = [
    "ann-7f3a91",
    "ann.7f3a91@example.org",
    "ann.old7f3a91@example.org",
    "Needle Street 7f3a91",
    "Former Street 7f3a91",
    "topic7f3a91",
    "inbox text 7f3a91",
    "192.0.2.191",
];

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

const fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(1_800_000_000_000 + seconds * 1_000)
}

/// Needles found in the files of a folder, with the file.
fn found(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let bytes = std::fs::read(&path).expect("a file");
        for needle in NEEDLES {
            if bytes.windows(needle.len()).any(|window| window == needle.as_bytes()) {
                found.push(format!("{needle} in {}", path.file_name().expect("a name").display()));
            }
        }
    }
    found.sort();
    found
}

fn person(id: &str, address: &str, street: &str) -> NewSubscriber {
    let device = Device { channel: name("email"), address: address.to_owned(), state: DeviceState::Active };
    let attributes = BTreeMap::from([("street".to_owned(), Value::from(street))]);
    NewSubscriber {
        id: id.parse().expect("an id"),
        profile: Profile { attributes, ..Profile::default() },
        devices: Some(vec![(name("email"), device)]),
        preferences: None,
        kept: Default::default(),
    }
}

/// A life of the person: changed profile and address, a consent, suppressions, a failing endpoint.
async fn live(records: &SqliteRecords) -> SubscriberId {
    let ann: SubscriberId = NEEDLES[0].parse().expect("an id");
    let segment = NewSegment { name: name("all"), description: None, filter: "(street=*)".into() };
    records.put_segment(segment, Precondition::Any, at(0)).await.expect("stored");
    records.put_subscriber(person(NEEDLES[0], NEEDLES[2], NEEDLES[4]), Precondition::Any, at(1)).await.expect("stored");
    records.put_subscriber(person(NEEDLES[0], NEEDLES[2], NEEDLES[3]), Precondition::Any, at(2)).await.expect("stored");
    let (device, email) = (name("email"), name("email"));
    let moved = Device { channel: email, address: NEEDLES[1].to_owned(), state: DeviceState::Active };
    let put = PutDevice { id: &ann, name: &device, device: moved, keeps_state: false, now: at(3) };
    records.put_device(put).await.expect("stored");

    let address = EvidenceAddress { channel: name("email"), address: NEEDLES[1].to_owned(), hash: "h1".to_owned() };
    let evidence = Evidence {
        address: Some(address),
        remote: Some(NEEDLES[7].to_owned()),
        proof: Some(format!("call of {}", NEEDLES[1])),
        text: Some("I agree.".to_owned()),
        ..Evidence::new(ConsentMethod::Link, "subscriber")
    };
    let request =
        ConsentRequest { policy: ConsentPolicy::default(), code: None, repeats: true, evidence: evidence.clone() };
    let subscription = NewSubscription {
        application: name("letters"),
        class: name("weekly"),
        subscriber: ann.clone(),
        key: Some(format!("key of {}", NEEDLES[0])),
        device: Some(name("email")),
        enabled: None,
        values: format!(r#"{{"topic":"{}"}}"#, NEEDLES[5]).into(),
        terms: Default::default(),
    };
    let consent = InitialConsent::Requested(request);
    let new = NewConsented { subscription, consent, keeps_confirmed: true, quiet: false };
    let (id, _) = records.put_consented(vec![new], at(4)).await.expect("stored").remove(0).expect("stored");
    let confirm = ConfirmConsent { id, proof: Proof::Link { request: 1 }, attempts_max: 5, evidence, now: at(5) };
    records.confirm_consent(confirm).await.expect("confirmed");
    let change = SubscriptionChange {
        device: Some(name("email")),
        enabled: Some(true),
        values: format!(r#"{{"topic":"{} again"}}"#, NEEDLES[5]).into(),
        terms: Default::default(),
    };
    let update = UpdateSubscription { id, change, expect: Precondition::Any, now: at(6) };
    records.update_subscription(update).await.expect("stored");

    let suppression = |target: Target| Suppression {
        target,
        address: None,
        cause: Cause::Complaint,
        in_force: true,
        origin: "test".to_owned(),
        detail: format!("550 <{}>", NEEDLES[1]),
        notification: None,
        bounces: Vec::new(),
        since: at(7),
        updated_at: at(7),
        expires_at: None,
    };
    let device = Target::Device { subscriber: ann.clone(), device: name("email") };
    let suppressions = vec![suppression(Target::address(&name("smtp"), NEEDLES[1])), suppression(device)];
    records.put_suppressions(suppressions).await.expect("stored");
    let endpoint = FailingEndpoint {
        key: EndpointKey { application: name("letters"), channel: name("email"), address: NEEDLES[1].to_owned() },
        subscriber: Some(ann.clone()),
        device: Some(name("email")),
        since: at(7),
        last: at(7),
        failures: 1,
        reason: "refused".to_owned(),
        warned_at: None,
        disabled_at: None,
    };
    records.put_failing_endpoints(vec![endpoint]).await.expect("stored");
    ann
}

#[tokio::test]
async fn an_erased_person_leaves_only_the_evidence() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = RecordsOptions { reserve_bytes: 0, ..RecordsOptions::default() };
    let records = SqliteRecords::open(folder.path(), &options).expect("records");
    let inbox = SqliteInbox::open(folder.path(), &InboxOptions { reserve_bytes: 0, ..InboxOptions::default() });
    let inbox = inbox.expect("an inbox");
    let ann = live(&records).await;
    let bob = records.put_subscriber(person("bob", "bob@example.org", "Elm Street"), Precondition::Any, at(8)).await;
    bob.expect("stored");
    let number = records.subscriber(&ann).await.expect("read").expect("ann").number;
    let content = InboxContent {
        application: name("letters"),
        class: name("mail"),
        channel: None,
        event: None,
        wording: Wording { text: Some(NEEDLES[6].to_owned()), ..Wording::default() },
        translations: BTreeMap::new(),
    };
    let notification = NotificationId { batch: NotificationBatchId(1), ordinal: 0 };
    let item = NewItem { subscriber: number, id: notification, content: Arc::new(content), expires_at: at(900_000) };
    inbox.put_items(vec![item], 100, at(9)).await.expect("stored");
    let before = found(folder.path());
    for needle in NEEDLES {
        assert!(before.iter().any(|found| found.starts_with(needle)), "{needle} is in no file: {before:?}");
    }

    inbox.erase_feed(number).await.expect("erased");
    records.erase_subscriber(&ann, at(10)).await.expect("erased");
    assert_eq!(found(folder.path()), Vec::<String>::new());
    let again = records.erase_subscriber(&ann, at(11)).await;
    assert!(matches!(again, Err(tocsin_store::error::StoreError::Missing(_))));

    // The evidence is left, without the person.
    let of = EvidenceOf::Subscription(tocsin_model::id::SubscriptionId(1));
    let evidence = records.evidence(&of, None, 9).await.expect("read");
    assert_eq!(evidence.len(), 2);
    for record in evidence {
        assert_eq!((record.subscriber, record.address, record.remote, record.proof), (None, None, None, None));
        assert_eq!((record.address_hash.as_deref(), record.text.as_deref()), (Some("h1"), Some("I agree.")));
    }
    // Readers of the log go on; others are not concerned.
    records.changes(tocsin_model::id::ChangeSequence(0), 1_000).await.expect("the log is readable");
    assert!(records.subscriber(&"bob".parse().expect("an id")).await.expect("read").is_some());
    drop((records, inbox));
    let records = SqliteRecords::open(folder.path(), &options).expect("they open again");
    assert_eq!(found(folder.path()), Vec::<String>::new());
    assert!(records.subscriber(&ann).await.expect("read").is_none());
}
