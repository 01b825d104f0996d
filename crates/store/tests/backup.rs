//! Backups under load are consistent snapshots and restore completely; damaged or foreign ones are refused.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use tocsin_model::{
    consent::{ConsentMethod, ConsentState, Evidence},
    event::PackedEvents,
    id::{Name, SubscriberNumber},
    notifybc::Collection,
    subscriber::Profile,
    subscription::SubscriptionParams,
    time::Timestamp,
};
use tocsin_store::{
    collections::ReplicaDevice,
    entries::{DiskCheck, Entries, EntryReader, EntryWriter, Object},
    error::StoreError,
    journal::{ActivityLog, EventLog, JournalOptions, NewEventBatch, OpenWork},
    records::{
        ApplicationStore, ChangeLog, DocumentKeys, NativeSubscription, NewApplicationVersion, NewSubscriber,
        NewSubscription, NotifybcStore, Precondition, PutDocument, SubscriberStore, SubscriptionStore,
    },
    spool::PartitionNumber,
    sqlite::{
        backup::{FILES, MANIFEST, Manifest, UNFINISHED, back_up, verify},
        collections::{CollectionsOptions, SqliteCollections},
        inbox::{InboxOptions, SqliteInbox},
        journal::SqliteJournal,
        records::{RecordsOptions, SqliteRecords},
        spool::{SpoolOptions, SqliteSpool},
    },
};

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

struct Stores {
    journal: SqliteJournal,
    records: SqliteRecords,
    _inbox: SqliteInbox,
}

async fn open(folder: &Path) -> Stores {
    let options = JournalOptions { free_bytes_min: 0, ..JournalOptions::default() };
    let journal = SqliteJournal::open(folder.join("journal.db"), options).await.expect("it opens");
    let folder = folder.to_owned();
    let opening = tokio::task::spawn_blocking(move || {
        let records = SqliteRecords::open(&folder, &RecordsOptions { reserve_bytes: 0, ..RecordsOptions::default() });
        let inbox = SqliteInbox::open(&folder, &InboxOptions { reserve_bytes: 0, ..InboxOptions::default() });
        (records.expect("it opens"), inbox.expect("it opens"))
    });
    let (records, _inbox) = opening.await.expect("opened");
    Stores { journal, records, _inbox }
}

/// Changes the records and accepts a batch whose snapshot sequence includes the change.
async fn write(stores: &Stores, number: u64) {
    let now = Timestamp(1_800_000_000_000_000 + number as i64);
    stores
        .records
        .put_application(NewApplicationVersion { name: &name("stock"), text: "application: stock", author: "ann", now })
        .await
        .expect("stored");
    let snapshot_sequence = *stores.records.newest_change().borrow();
    let new = NewEventBatch {
        application: name("stock"),
        version: 1,
        class: name("trade"),
        source: name("api"),
        received_at: now,
        accepted_at: now,
        snapshot_sequence,
        events: PackedEvents::from_parts(1, vec![7; 400].into()),
        idempotency: None,
        marks: Vec::new(),
    };
    stores.journal.accept(new).await.expect("accepted");
}

/// Verifies a backup and restores it into a folder.
fn restore(copy: &Path, folder: &Path) -> Result<Manifest, StoreError> {
    verify(copy)?.put(folder)
}

fn run<T>(story: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(story)
}

#[test]
fn a_backup_under_load_is_a_consistent_snapshot() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let (data, copies) = (folder.path().join("data"), folder.path().join("copies"));
        let stores = Arc::new(open(&data).await);
        let (stopped, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let load = tokio::spawn({
            let (stores, stopped, written) = (stores.clone(), stopped.clone(), written.clone());
            async move {
                while !stopped.load(Ordering::Relaxed) {
                    write(&stores, written.load(Ordering::Relaxed)).await;
                    written.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        for turn in 0..4 {
            // Something is written before each backup, so that there is a WAL.
            let wanted = written.load(Ordering::Relaxed) + 20;
            while written.load(Ordering::Relaxed) < wanted {
                tokio::task::yield_now().await;
            }
            let before = written.load(Ordering::Relaxed);
            let (from, to) = (data.clone(), copies.join(turn.to_string()));
            let taken = tokio::task::spawn_blocking(move || back_up(&from, &to, "test", Timestamp(5), 0)).await;
            let manifest = taken.expect("it ran").expect("it was taken");
            let after = written.load(Ordering::Relaxed) + 1;
            let copy = copies.join(turn.to_string());
            assert_eq!(verify(&copy).expect("whole").manifest, manifest);

            let back = folder.path().join(format!("back-{turn}"));
            restore(&copy, &back).expect("restored");
            let restored = open(&back).await;
            let batches = restored.journal.totals().event_batches;
            assert!((before..=after).contains(&batches), "{before} {batches} {after}");
            assert_eq!(restored.journal.backlog().event_batches, batches);
            assert_eq!(restored.journal.event_batches(None, 100_000).await.expect("read").len() as u64, batches);
            let snapshot_sequence = restored.journal.event_batches(None, 1).await.expect("read")[0].0.snapshot_sequence;
            assert!(snapshot_sequence <= Some(*restored.records.newest_change().borrow()));
            // The restored stores can be written.
            write(&restored, 7_000_000).await;
        }
        stopped.store(true, Ordering::Relaxed);
        load.await.expect("it ran");
    });
}

#[test]
fn a_restored_backup_has_documents_of_notifybc_with_their_native_rows() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let (data, copy, back) = (folder.path().join("data"), folder.path().join("copy"), folder.path().join("back"));
        let stores = open(&data).await;
        let id = "00000000000000000000000a".to_owned();
        let now = Timestamp(1_800_000_000_000_000);
        let put = PutDocument {
            collection: Collection::Subscription,
            id: id.clone(),
            body: r#"{"userChannelId":"ann@x.example"}"#.into(),
            keys: DocumentKeys { state: Some("confirmed".to_owned()), ..DocumentKeys::default() },
            expect: Precondition::Absent,
            native: Some(NativeSubscription {
                channel: name("email"),
                address: "ann@x.example".to_owned(),
                values: "{}".into(),
                filter: None,
                state: ConsentState::Confirmed,
                enabled: true,
                evidence: Evidence::new(ConsentMethod::Api, "notifybc"),
            }),
            created_at: now,
            updated_at: now,
        };
        let written = stores.records.put_documents(vec![put], now).await.expect("written").remove(0);
        let number = written.expect("stored").number.expect("native");
        let before = stores.records.document(Collection::Subscription, &id).await.expect("read");
        let (from, to) = (data.clone(), copy.clone());
        let taken = tokio::task::spawn_blocking(move || back_up(&from, &to, "test", Timestamp(5), 0)).await;
        taken.expect("it ran").expect("it was taken");
        stores.records.remove_documents(Collection::Subscription, vec![id.clone()], now).await.expect("removed");

        restore(&copy, &back).expect("restored");
        let restored = open(&back).await;
        assert_eq!(restored.records.document(Collection::Subscription, &id).await.expect("read"), before);
        assert!(before.is_some_and(|before| before.number == Some(number)));
        assert!(restored.records.subscription(number).await.expect("read").expect("there").enabled);
    });
}

#[test]
fn damaged_or_foreign_backups_are_refused() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let stores = open(&at("data")).await;
        write(&stores, 1).await;
        back_up(&at("data"), &at("copy"), "test", Timestamp(5), 0).expect("taken");
        let again = back_up(&at("data"), &at("copy"), "test", Timestamp(5), 0);
        assert!(matches!(again, Err(StoreError::Taken(_))), "{again:?}");
        assert!(matches!(
            back_up(&at("nowhere"), &at("other"), "test", Timestamp(5), 0),
            Err(StoreError::Unavailable(_))
        ));
        assert!(matches!(restore(&at("data"), &at("back")), Err(StoreError::Missing(_))), "a data folder is no backup");
        assert!(matches!(restore(&at("copy"), &at("data")), Err(StoreError::Taken(_))));

        // Without room nothing is left behind that would take it.
        let full = back_up(&at("data"), &at("full"), "test", Timestamp(5), u64::MAX);
        assert!(matches!(full, Err(StoreError::Full(_))), "{full:?}");
        assert!(!at("full").exists() && !at("full.part").exists());

        // An interrupted restore is repeated.
        std::fs::create_dir(at("half")).expect("made");
        std::fs::write(at("half").join(UNFINISHED), "").expect("written");
        std::fs::write(at("half").join("journal.db"), "half of it").expect("written");
        std::fs::write(at("half").join("tracking.db"), "of messages with these ids that were others").expect("written");
        restore(&at("copy"), &at("half")).expect("restored");
        assert!(!at("half").join(UNFINISHED).exists() && !at("half").join("tracking.db").exists());

        let newer = std::fs::read_to_string(at("copy").join(MANIFEST)).expect("read");
        let edited = newer.replacen("\"schema\": ", "\"schema\": 9", 1);
        std::fs::write(at("copy").join(MANIFEST), edited).expect("written");
        let error = restore(&at("copy"), &at("back")).expect_err("it is newer");
        assert!(error.to_string().contains("not available"), "{error}");
        std::fs::write(at("copy").join(MANIFEST), newer).expect("written");

        let file = at("copy").join(FILES[0]);
        let mut bytes = std::fs::read(&file).expect("read");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&file, bytes).expect("written");
        assert!(matches!(restore(&at("copy"), &at("back")), Err(StoreError::Damaged(_))));
        assert!(!at("back").exists(), "nothing is written of a copy that is damaged");
    });
}

#[test]
fn all_partitions_of_a_spool_are_in_a_backup() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    run(async {
        let stores = open(&at("data")).await;
        write(&stores, 1).await;
    });
    let spool =
        |folder: &Path, partitions| SqliteSpool::open(folder, &SpoolOptions { partitions, ..SpoolOptions::default() });
    drop(spool(&at("data"), 3).expect("it opens"));
    let manifest = back_up(&at("data"), &at("copy"), "test", Timestamp(5), 0).expect("taken");
    let names: Vec<&str> =
        manifest.files.iter().map(|file| &*file.name).filter(|name| name.starts_with("spool")).collect();
    assert_eq!(names, ["spool-2.db", "spool-1.db", "spool.db"]);
    restore(&at("copy"), &at("back")).expect("restored");
    drop(spool(&at("back"), 3).expect("it opens"));
    // A file beside the backup, which the manifest does not name, is not restored.
    std::fs::copy(at("copy").join("spool-2.db"), at("copy").join("spool-3.db")).expect("copied");
    restore(&at("copy"), &at("with_more")).expect("restored");
    assert!(at("with_more").join("spool-2.db").exists() && !at("with_more").join("spool-3.db").exists());
    std::fs::remove_file(at("copy").join("spool-1.db")).expect("removed");
    assert!(restore(&at("copy"), &at("other")).is_err());
    std::fs::remove_file(at("data").join("spool-2.db")).expect("removed");
    let error = back_up(&at("data"), &at("again"), "test", Timestamp(5), 0).expect_err("a part is gone");
    assert!(error.to_string().contains("spool-2.db"), "{error}");
}

#[test]
fn a_restored_folder_assigns_no_id_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let spool = |folder: &Path| {
        SqliteSpool::open(folder, &SpoolOptions { partitions: 2, ..SpoolOptions::default() }).expect("it opens")
    };
    let written = |folder: &Path, number: u64| {
        run(async {
            let stores = open(folder).await;
            let before = stores.journal.event_batches(None, 1).await.expect("read").pop().map(|(batch, _)| batch.id);
            write(&stores, number).await;
            (before, stores.journal.event_batches(None, 1).await.expect("read")[0].0.id)
        })
    };
    let (_, kept) = written(&at("data"), 1);
    drop(spool(&at("data")));
    back_up(&at("data"), &at("copy"), "test", Timestamp(5), 0).expect("taken");
    // After the backup; lost with the folder.
    let (_, lost_batch) = written(&at("data"), 2);
    let lost_message = spool(&at("data")).next_id(PartitionNumber(1));
    restore(&at("copy"), &at("back")).expect("restored");
    let (before, made) = written(&at("back"), 2);
    assert_eq!(before, Some(kept), "what was stored keeps its id");
    assert!(made.0 > lost_batch.0 + 1_000_000, "{made}");
    let made = spool(&at("back")).next_id(PartitionNumber(0));
    assert!(made.0 > lost_message.0 + 1_000_000, "{made:?}");
}

/// Stores a subscriber, a subscription, an object of the directory and a device. Returns their numbers, and the
/// position in the change log of entries.
async fn number_everything(folder: &Path, name_of_all: &str) -> [u64; 5] {
    let now = Timestamp(1_800_000_000_000_000);
    let stores = open(folder).await;
    let id: tocsin_model::id::SubscriberId = name_of_all.parse().expect("an id");
    let new = NewSubscriber {
        kept: Default::default(),
        id: id.clone(),
        profile: Profile::default(),
        devices: None,
        preferences: None,
    };
    let subscriber = stores.records.put_subscriber(new, Precondition::Any, now).await.expect("stored");
    let new = NewSubscription {
        application: name("stock"),
        class: name("near"),
        subscriber: id.clone(),
        key: None,
        device: None,
        enabled: Some(true),
        values: "{}".into(),
        terms: SubscriptionParams::default(),
    };
    let subscription = stores.records.put_subscription(new, now).await.expect("stored");
    let (answer, answered) = std::sync::mpsc::channel();
    let rdn = format!("o={name_of_all}").into_boxed_str();
    let object = Object { parent: None, rdn: rdn.clone(), rdn_key: rdn, attributes: Default::default() };
    let job = move |tree: &mut dyn EntryWriter| {
        tree.cut_entry_feed()?;
        tree.put_object(object, now).map(|number| answer.send(number.0).expect("awaited"))
    };
    Entries::change(&stores.records, DiskCheck::Required, Box::new(job)).await.expect("stored");
    let object = answered.recv().expect("stored");
    let (answer, answered) = std::sync::mpsc::channel();
    let job = move |tree: &dyn EntryReader| tree.entry_feed().map(|feed| answer.send(feed.last).expect("awaited"));
    stores.records.read(Box::new(job)).await.expect("read");
    let place = answered.recv().expect("read");
    drop(stores);
    let folder = folder.to_owned();
    let options = CollectionsOptions { reserve_bytes: 0, readers: 1 };
    let opening = tokio::task::spawn_blocking(move || SqliteCollections::open(&folder, &options));
    let sync = opening.await.expect("it ran").expect("it opens");
    let device = ReplicaDevice {
        number: 0,
        id: format!("d-{name_of_all}").into(),
        application: name("stock"),
        subscriber: id,
        subscriber_number: SubscriberNumber(1),
        name: "phone".to_owned(),
        collections: None,
        may_write: true,
        hash: [name_of_all.as_bytes()[0]; 32],
        created_at: now,
        expires_at: None,
        wipe_at: None,
        wiped_at: None,
    };
    let device = sync.put_device(device).await.expect("stored");
    [subscriber.number.0, subscription.id.0, object.unsigned_abs(), place, device.into()]
}

/// Signed links name subscriptions and subscribers by their numbers, and SCIM and LDAP name entries so.
#[test]
fn a_restored_folder_gives_no_number_of_the_records_again() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        number_everything(&at("data"), "ann").await;
        let from = at("data");
        back_up(&from, &at("copy"), "test", Timestamp(5), 0).expect("taken");
        let lost = number_everything(&at("data"), "bob").await;
        restore(&at("copy"), &at("back")).expect("restored");
        let made = number_everything(&at("back"), "cid").await;
        for (which, (lost, made)) in lost.into_iter().zip(made).enumerate() {
            assert!(made > lost + 900_000, "{which}: {lost} {made}");
        }
        // A restored folder can be saved and restored again.
        back_up(&at("back"), &at("second"), "test", Timestamp(5), 0).expect("taken");
        restore(&at("second"), &at("third")).expect("restored");
        let again = number_everything(&at("third"), "dan").await;
        assert!(again.into_iter().zip(made).all(|(again, made)| again > made + 900_000), "{again:?} {made:?}");
    });
}
