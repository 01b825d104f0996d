//! Documents of NotifyBC in files: concurrent writes, restart, backup, erasure and sealed secrets.

use std::{path::Path, sync::Arc};

use tocsin_model::{
    consent::{ConsentMethod, ConsentState, Evidence, EvidenceAddress},
    notifybc::{Collection, subscriber_id},
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    keyring::Keyring,
    records::{
        ConsentStore, DocumentKeys, Installation, MatchStore, NativeSubscription, NotifybcStore, Precondition,
        PutDocument, StoredDocument, SubscriptionStore,
    },
    sqlite::records::{RecordsOptions, SqliteRecords},
};

fn open(folder: &Path, keys: Keyring) -> SqliteRecords {
    let options = RecordsOptions { reserve_bytes: 0, keys, ..RecordsOptions::default() };
    SqliteRecords::open(folder, &options).expect("it opens")
}

fn run<T>(story: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(story)
}

const fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(1_800_000_000_000 + seconds * 1_000)
}

fn id(number: usize) -> String {
    format!("{number:024x}")
}

fn subscription(number: usize, address: &str) -> PutDocument {
    let channel = "email".parse().expect("a name");
    let of = EvidenceAddress { channel, address: address.to_owned(), hash: "h1".to_owned() };
    let evidence = Evidence { address: Some(of), ..Evidence::new(ConsentMethod::Api, "notifybc") };
    PutDocument {
        collection: Collection::Subscription,
        id: id(number),
        body: format!(r#"{{"userChannelId":"{address}","data":{{"street":"{address} street"}}}}"#).into(),
        keys: DocumentKeys {
            service: Some("news".to_owned()),
            channel: Some("email".to_owned()),
            address: Some(address.to_lowercase()),
            state: Some("confirmed".to_owned()),
            ..DocumentKeys::default()
        },
        expect: Precondition::Absent,
        native: Some(NativeSubscription {
            channel: "email".parse().expect("a name"),
            address: address.to_owned(),
            values: format!(r#"{{"id":"{}","data":{{"street":"{address} street"}}}}"#, id(number)).into(),
            filter: None,
            state: ConsentState::Confirmed,
            enabled: true,
            evidence,
        }),
        created_at: at(0),
        updated_at: at(0),
    }
}

fn plain(collection: Collection, body: &str, address: Option<&str>) -> PutDocument {
    PutDocument {
        collection,
        id: id(1),
        body: body.into(),
        keys: DocumentKeys { address: address.map(str::to_owned), ..DocumentKeys::default() },
        expect: Precondition::Any,
        native: None,
        created_at: at(0),
        updated_at: at(0),
    }
}

/// Whether any file of a folder contains a text.
fn is_found(folder: &Path, text: &str) -> bool {
    std::fs::read_dir(folder).expect("a folder").any(|entry| {
        let bytes = std::fs::read(entry.expect("an entry").path()).expect("read");
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    })
}

async fn read(records: &SqliteRecords, collection: Collection, number: usize) -> StoredDocument {
    records.document(collection, &id(number)).await.expect("read").expect("there")
}

#[test]
fn concurrent_writes_of_one_document_have_one_winner_each() {
    let folder = tempfile::tempdir().expect("a folder");
    run(async {
        let records = Arc::new(open(folder.path(), Keyring::default()));
        let write = |number: usize, caller: usize| {
            let records = records.clone();
            tokio::spawn(async move {
                let address = format!("caller{caller}@x.example");
                records.put_documents(vec![subscription(number, &address)], at(0)).await.expect("written").remove(0)
            })
        };
        let writes: Vec<_> = (0..200).map(|call| (call % 50, write(call % 50, call))).collect();
        let mut winners = [0; 50];
        for (number, written) in writes {
            match written.await.expect("it ran") {
                Ok(version) => {
                    winners[number] += 1;
                    let native = records.subscription(version.number.expect("native")).await.expect("read");
                    assert_eq!(native.expect("there").key, Some(id(number)));
                }
                Err(refused) => assert!(matches!(refused, StoreError::Taken(_)), "{refused}"),
            }
        }
        assert_eq!(winners, [1; 50]);
        assert_eq!(records.counts().subscriptions, 50);
        drop(records);

        // After a restart, each document and its native rows are there, with the same address.
        let records = open(folder.path(), Keyring::default());
        let application = "notifybc".parse().expect("a name");
        let indexed = records.indexed_subscriptions(&application, None, 99).await.expect("read");
        assert_eq!(indexed.len(), 50);
        for indexed in indexed {
            let document = records.document_ids(&[indexed.id]).await.expect("read").remove(0).expect("a document");
            let found = records.document(Collection::Subscription, &document).await.expect("read").expect("there");
            let address = found.keys.address.expect("an address");
            let street = format!("{address} street");
            assert!(indexed.values.contains(&street), "{} of {address}", indexed.values);
        }
    });
}

#[test]
fn an_erased_person_is_in_no_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let marker = "ann.9c41e7";
    let address = format!("{marker}@x.example");
    run(async {
        let records = open(folder.path(), Keyring::default());
        let body = format!(r#"{{"userChannelId":"{address}","message":"{}"}}"#, "x".repeat(9_000));
        let puts = vec![
            subscription(1, &address),
            plain(Collection::Notification, &body, Some(&address)),
            plain(Collection::Bounce, &body, Some(&address)),
            subscription(2, "bob@x.example"),
        ];
        records.put_documents(puts, at(0)).await.expect("written").into_iter().for_each(|put| {
            put.expect("stored");
        });
        // A former version of the document.
        let changed = PutDocument { expect: Precondition::Any, ..subscription(1, &address) };
        let changed = PutDocument { body: format!(r#"{{"userChannelId":"{address}"}}"#).into(), ..changed };
        records.put_documents(vec![changed], at(1)).await.expect("written").remove(0).expect("stored");
        assert!(is_found(folder.path(), marker));
        records.erase_subscriber(&subscriber_id(&id(1)).expect("an id"), at(2)).await.expect("erased");
        read(&records, Collection::Subscription, 2).await;
        drop(records);
    });
    assert!(!is_found(folder.path(), marker));
    assert!(is_found(folder.path(), "bob@x.example"));
}

#[test]
fn configurations_are_sealed_in_all_files_and_keys_can_be_rotated() {
    let folder = tempfile::tempdir().expect("a folder");
    let key = |name: &str, digit: &str| format!("{name} {}\n", digit.repeat(64));
    let keys = |texts: &[String]| Keyring::read(&texts.concat()).expect("keys");
    let body = r#"{"name":"rsa","value":{"private":"canary-51d0"}}"#;
    let read_with =
        |keys: Keyring| run(async { read(&open(folder.path(), keys), Collection::Configuration, 1).await.body });
    run(async {
        let records = open(folder.path(), Keyring::default());
        let put = records.put_documents(vec![plain(Collection::Configuration, body, None)], at(0)).await;
        put.expect("written").remove(0).expect("stored");
    });
    assert!(is_found(folder.path(), "canary-51d0"));
    // Sealed once there are keys, and with the newer key after a rotation.
    assert_eq!(&*read_with(keys(&[key("one", "1")])), body);
    assert!(!is_found(folder.path(), "canary-51d0"));
    assert_eq!(&*read_with(keys(&[key("two", "2"), key("one", "1")])), body);
    assert_eq!(&*read_with(keys(&[key("two", "2")])), body);
    run(async {
        let records = open(folder.path(), keys(&[key("two", "2")]));
        let changed = PutDocument { id: id(2), ..plain(Collection::Configuration, r#"{"value":"canary-62e1"}"#, None) };
        records.put_documents(vec![changed], at(1)).await.expect("written").remove(0).expect("stored");
        assert_eq!(&*read(&records, Collection::Configuration, 2).await.body, r#"{"value":"canary-62e1"}"#);
    });
    assert!(!is_found(folder.path(), "canary-62e1"));
}
