//! What only a file can do: last, fill up, and tell of the past. The rest is in the conformance suite.

use tocsin_model::{
    subscriber::{DeviceState, Profile},
    subscription::Terms,
};

use super::*;

const NOW: Timestamp = Timestamp(1);

fn open(folder: &Path) -> SqliteRecords {
    SqliteRecords::open(folder, &RecordsOptions { reserve_bytes: 0, ..RecordsOptions::default() }).expect("opens")
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn ann() -> NewSubscriber {
    let device = Device { channel: name("mail"), address: "ann@example.org".into(), state: DeviceState::Active };
    NewSubscriber {
        id: "ann".parse().expect("an id"),
        profile: Profile::default(),
        devices: Some(vec![(name("work"), device)]),
        preferences: None,
    }
}

fn interest(values: &str) -> NewSubscription {
    NewSubscription {
        application: name("quakes"),
        class: name("near"),
        subscriber: ann().id,
        key: None,
        device: None,
        enabled: true,
        values: values.into(),
        terms: Terms::default(),
    }
}

#[test]
fn everything_lasts() {
    let folder = tempfile::tempdir().expect("a folder");
    let records = open(folder.path());
    let (installation, secret) = (records.installation().to_owned(), *records.secret());
    let (subscriber, subscription) = block_on(async {
        let subscriber = records.put_subscriber(ann(), Expect::Absent, NOW).await.expect("stored");
        let gone = records.put_subscription(interest("{}"), NOW).await.expect("stored");
        let kept = records.put_subscription(interest("{}"), NOW).await.expect("stored");
        records.remove_subscription(gone.id, Expect::Any, NOW).await.expect("removed");
        records.put_application(&name("quakes"), "q", "ann", NOW).await.expect("stored");
        (subscriber, kept)
    });
    let (counts, newest) = (records.counts(), *records.newest_change().borrow());
    drop(records);

    let records = open(folder.path());
    assert_eq!((records.installation(), *records.secret()), (installation.as_str(), secret));
    assert_eq!((records.counts(), *records.newest_change().borrow()), (counts, newest));
    assert_eq!(counts, RecordCounts { subscribers: 1, devices: 1, subscriptions: 1 });
    block_on(async {
        assert_eq!(records.subscriber(&ann().id).await.expect("read"), Some(subscriber));
        assert_eq!(records.subscription(subscription.id).await.expect("read"), Some(subscription));
        records.remove_subscription(SubscriptionId(2), Expect::Any, NOW).await.expect("removed");
        let next = records.put_subscription(interest("{}"), NOW).await.expect("stored");
        assert_eq!(next.id, SubscriptionId(3), "numbers are never used twice");
        assert_eq!(records.changes(ChangeSequence(0), 9).await.expect("read").len(), 6);
    });
}

#[test]
fn a_full_disk_stores_nothing_by_halves() {
    let folder = tempfile::tempdir().expect("a folder");
    let records = open(folder.path());
    let bound_pages = |pages: i64| {
        records.database.write_one(move |connection, _| {
            connection.query_row(&format!("PRAGMA max_page_count = {pages}"), (), |_| Ok(())).map_err(store_error)
        })
    };
    let lines = || vec![interest(&format!(r#"{{"text":"{}"}}"#, "x".repeat(500))); 100];
    block_on(async {
        records.put_subscriber(ann(), Expect::Any, NOW).await.expect("stored");
        bound_pages(100).await.expect("bounded");
        let full = loop {
            if let Err(error) = records.put_subscriptions(lines(), NOW).await {
                break error;
            }
        };
        assert!(matches!(full, StoreError::Full(_)), "{full}");
        let counts = records.counts();
        assert!(counts.subscriptions > 0 && counts.subscriptions.is_multiple_of(100), "{counts:?}");
        let stored = records.subscriptions(&SubscriptionFilter::default(), None, usize::MAX).await.expect("read");
        assert_eq!(stored.len() as u64, counts.subscriptions);
        let newest = *records.newest_change().borrow();
        assert_eq!(
            records.changes(ChangeSequence(0), usize::MAX).await.expect("read").last().expect("one").sequence,
            newest
        );
        records.remove_subscription(SubscriptionId(1), Expect::Any, NOW).await.expect("removing needs no room");
        bound_pages(10_000).await.expect("there is room again");
        records.put_subscriptions(lines(), NOW).await.expect("stored");
        assert_eq!(records.counts().subscriptions, counts.subscriptions + 99);
    });
    drop(records);
    block_on(open(folder.path()).database.read(|connection| {
        let answer: String =
            connection.query_row("PRAGMA integrity_check", (), |row| row.get(0)).map_err(store_error)?;
        assert_eq!(answer, "ok");
        Ok(())
    }))
    .expect("checked");
}

#[test]
fn below_the_reserve_only_intake_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let made = open(folder.path());
    block_on(made.put_subscriber(ann(), Expect::Any, NOW)).expect("stored");
    drop(made);
    let options = RecordsOptions { reserve_bytes: u64::MAX, ..RecordsOptions::default() };
    let records = SqliteRecords::open(folder.path(), &options).expect("opens");
    block_on(async {
        let refused = records.put_subscription(interest("{}"), NOW).await;
        assert!(matches!(refused, Err(StoreError::Full(_))));
        assert!(matches!(records.put_subscribers(vec![ann()], NOW).await, Err(StoreError::Full(_))));
        records.put_application(&name("quakes"), "q", "ann", NOW).await.expect("stored");
        records.remove_subscriber(&ann().id, Expect::Any, NOW).await.expect("removed");
    });
}
