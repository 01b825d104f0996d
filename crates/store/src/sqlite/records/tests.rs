//! Tests of the SQLite records that need a file: durability, full disks, old schema versions, snapshots. Everything
//! else is in the conformance suite.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use rusqlite::Connection;
use tocsin_model::{
    id::{ChangeSequence, Name, SubscriberId, SubscriberNumber, SubscriptionId},
    subscriber::{Device, DeviceState, Profile},
    subscription::SubscriptionParams,
    time::Timestamp,
    value::Value,
};

use super::*;
use crate::{
    bounded_scan::SCANNED_ROWS_MAX,
    entries::{Entries, EntryNode, EntryNumber, EntryReader, EntryWatcher, PreparedModify},
    error::StoreError,
    records::{
        ApiKey, ApiKeyStore, ApplicationStore, ChangeLog, Installation, MatchStore, NewApplicationVersion,
        NewSubscriber, NewSubscription, Precondition, REMOVED_API_KEYS_MAX, RecordCounts, SubscriberFilter,
        SubscriberStore, SubscriptionFilter, SubscriptionStore,
    },
    sqlite::{
        records::database::{RecordsOptions, SqliteRecords},
        statements::{execute, json},
        writer::{AfterCommit, store_error},
    },
};

const NOW: Timestamp = Timestamp(1);
/// Undoes the last migrations: row values of entries, resources of keys, indexes for lists, and removed keys. Extend it
/// with each new migration.
const LATER_STEPS_UNDONE: &str = "DROP TABLE capacity_profiles;
    DROP TABLE api_key_uses;
    DROP TABLE audit;
    DROP TABLE users;
    DROP TABLE sessions;
    DROP TABLE lifecycle_entries;
    DROP TABLE lifecycle_filters;
    DROP TABLE feedback;
    DROP TABLE consent_evidence;
    DROP TABLE consent_texts;
    DROP TABLE notifybc_documents;
    DROP TABLE consents;
    ALTER TABLE subscriptions DROP COLUMN consent;
    DROP TABLE removed_api_keys;

    ALTER TABLE subscriptions DROP COLUMN enabled_at;
    ALTER TABLE subscribers DROP COLUMN enabled_at;

    DROP INDEX subscriptions_by_key;
    DROP INDEX subscriptions_disabled;

    DROP INDEX subscribers_disabled;
    ALTER TABLE api_keys DROP COLUMN resources;

    DROP TABLE entry_values;
    DROP INDEX subscribers_by_parent;

    DROP INDEX entries_by_parent;";

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
        kept: Default::default(),
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
        enabled: Some(true),
        values: values.into(),
        terms: SubscriptionParams::default(),
    }
}

#[test]
fn everything_survives_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let records = open(folder.path());
    let (installation, secret) = (records.installation().to_owned(), *records.secret());
    let (subscriber, subscription) = block_on(async {
        let subscriber = records.put_subscriber(ann(), Precondition::Absent, NOW).await.expect("stored");
        let gone = records.put_subscription(interest("{}"), NOW).await.expect("stored");
        let kept = records.put_subscription(interest("{}"), NOW).await.expect("stored");
        records.remove_subscription(gone.id, Precondition::Any, NOW).await.expect("removed");
        records
            .put_application(NewApplicationVersion { name: &name("quakes"), text: "q", author: "ann", now: NOW })
            .await
            .expect("stored");
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
        records.remove_subscription(SubscriptionId(2), Precondition::Any, NOW).await.expect("removed");
        let next = records.put_subscription(interest("{}"), NOW).await.expect("stored");
        assert_eq!(next.id, SubscriptionId(3), "numbers are never used twice");
        assert_eq!(records.changes(ChangeSequence(0), 9).await.expect("read").len(), 6);
    });
}

#[test]
fn a_full_disk_stores_no_partial_write() {
    let folder = tempfile::tempdir().expect("a folder");
    let records = open(folder.path());
    let bound_pages = |pages: i64| {
        records.database.write_statement(move |connection, _| {
            connection.query_row(&format!("PRAGMA max_page_count = {pages}"), (), |_| Ok(())).map_err(store_error)
        })
    };
    let lines = || vec![interest(&format!(r#"{{"text":"{}"}}"#, "x".repeat(500))); 100];
    block_on(async {
        records.put_subscriber(ann(), Precondition::Any, NOW).await.expect("stored");
        bound_pages(140).await.expect("bounded");
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
        records.remove_subscription(SubscriptionId(1), Precondition::Any, NOW).await.expect("removing needs no room");
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
    block_on(made.put_subscriber(ann(), Precondition::Any, NOW)).expect("stored");
    drop(made);
    let options = RecordsOptions { reserve_bytes: u64::MAX, ..RecordsOptions::default() };
    let records = SqliteRecords::open(folder.path(), &options).expect("opens");
    block_on(async {
        let refused = records.put_subscription(interest("{}"), NOW).await;
        assert!(matches!(refused, Err(StoreError::Full(_))));
        assert!(matches!(records.put_subscribers(vec![ann()], NOW).await, Err(StoreError::Full(_))));
        records
            .put_application(NewApplicationVersion { name: &name("quakes"), text: "q", author: "ann", now: NOW })
            .await
            .expect("stored");
        records.remove_subscriber(&ann().id, Precondition::Any, NOW).await.expect("removed");
    });
}

/// Watcher that accepts every prepared change.
struct AcceptingWatcher;

impl EntryWatcher for AcceptingWatcher {
    fn keys(&self, _: &crate::entries::EntryNode) -> Vec<crate::entries::EntryKey> {
        Vec::new()
    }

    fn is_still_valid(&self, _: &crate::entries::PreparedEntry) -> bool {
        true
    }

    fn changed(&self, _: Vec<crate::entries::EntryChange>) {}

    fn credentials_changed(&self, _: &[crate::entries::EntryNumber]) {}
}

/// Prepared change of Ann's attributes to this many bytes.
fn modification(revision: u64, bytes: usize) -> PreparedModify {
    PreparedModify {
        number: SubscriberNumber(1),
        revision,
        enabled: true,
        attributes: format!(r#"{{"says":"{}"}}"#, "x".repeat(bytes)).into(),
        before: [("says".to_owned(), Some("y".repeat(bytes).as_str().into()))].into(),
        gone: Vec::new(),
        made: Vec::new(),
        now: NOW,
        built: Arc::new(()),
    }
}

#[test]
fn waiting_callers_get_an_error_when_the_writer_ends() {
    let folder = tempfile::tempdir().expect("a folder");
    let records = open(folder.path());
    Entries::watch(&records, Arc::new(AcceptingWatcher));
    block_on(async {
        records.put_subscriber(ann(), Precondition::Any, NOW).await.expect("stored");
        let (release, held) = crossbeam_channel::bounded::<()>(0);
        let hold = move |_: &Connection, _: &mut AfterCommit| {
            let _ = held.recv();
            Ok(())
        };
        records.database.write_retryable_then(hold, drop);
        let breaks = records.database.write_statement(|_, _| {
            let cause = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR_FSYNC);
            Err::<(), _>(store_error(rusqlite::Error::SqliteFailure(cause, None)))
        });
        let (broken, one, other, ()) = tokio::join!(
            breaks,
            records.modify_prepared(modification(1, 1)),
            records.modify_prepared(modification(1, 2)),
            async {
                release.send(()).expect("held");
            }
        );
        assert!(matches!(broken, Err(StoreError::Unavailable(_))), "{broken:?}");
        for answer in [
            one,
            other,
            records.modify_prepared(modification(1, 3)).await,
            records.modify_prepared(modification(1, 4)).await,
        ] {
            assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
        }
    });
    drop(records);
    let records = open(folder.path());
    Entries::watch(&records, Arc::new(AcceptingWatcher));
    assert!(
        block_on(records.modify_prepared(modification(1, 5))).expect("the store answers"),
        "nothing was stored before"
    );
}

#[test]
fn the_oldest_removed_keys_are_deleted() {
    let folder = tempfile::tempdir().expect("a folder");
    let records = open(folder.path());
    let key = ApiKey {
        id: "new".to_owned(),
        hash: [7; 32],
        description: "the last".to_owned(),
        scopes: Vec::new(),
        resources: Vec::new(),
        created_at: NOW,
        expires_at: None,
    };
    block_on(async {
        let fill = records.database.write(|connection, _| {
            let sql = "WITH RECURSIVE counted (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < ?1) \
                       INSERT INTO removed_api_keys SELECT 'k' || n, 'old', n - ?1 FROM counted";
            execute(connection, sql, [REMOVED_API_KEYS_MAX as i64])
        });
        assert_eq!(fill.await.expect("stored"), REMOVED_API_KEYS_MAX);
        records.put_api_key(key).await.expect("stored");
        records.remove_api_key("new").await.expect("removed");
        let removed = records.removed_api_keys().await.expect("read");
        let has = |id: &str| removed.iter().any(|(known, _)| known == id);
        assert_eq!(removed.len(), REMOVED_API_KEYS_MAX);
        assert_eq!([has("new"), has("k1"), has("k2")], [true, false, true]);
    });
}

/// Attributes of Ann at each sequence of the change log.
fn attributes_by_sequence(records: &SqliteRecords) -> Vec<Option<String>> {
    let newest = records.newest_change().borrow().0;
    let at = |place| {
        let found = block_on(records.profiles(&[SubscriberNumber(1)], ChangeSequence(place))).expect("read");
        Some(json(&found.into_iter().next()??.profile.attributes))
    };
    (0..=newest).map(at).collect()
}

#[test]
fn past_profiles_are_reconstructed_from_undo_steps() {
    let folder = tempfile::tempdir().expect("a folder");
    let records = open(folder.path());
    Entries::watch(&records, Arc::new(AcceptingWatcher));
    let mut expected = Vec::new();
    block_on(async {
        records.put_subscriber(ann(), Precondition::Any, NOW).await.expect("stored");
        let said = |bytes: usize| BTreeMap::from([("says".to_owned(), Value::from("x".repeat(bytes).as_str()))]);
        let profile = Profile { attributes: said(1), ..Profile::default() };
        records.put_subscriber(NewSubscriber { profile, ..ann() }, Precondition::Any, NOW).await.expect("stored");
        expected.push(Some("{}".to_owned()));
        // By ordinary and by prepared changes; some are logged with the full before-image.
        for bytes in 1..100_usize {
            expected.push(Some(json(&said(bytes))));
            let next = bytes + 1;
            if next.is_multiple_of(3) {
                let profile = Profile { attributes: said(next), ..Profile::default() };
                records
                    .put_subscriber(NewSubscriber { profile, ..ann() }, Precondition::Any, NOW)
                    .await
                    .expect("stored");
            } else {
                let before = [("says".to_owned(), Some(said(bytes)["says"].clone()))].into();
                let modification = PreparedModify { before, ..modification(bytes as u64 + 1, next) };
                assert!(records.modify_prepared(modification).await.expect("stored"));
            }
        }
        expected.push(Some(json(&said(100))));
        records.remove_subscriber(&ann().id, Precondition::Any, NOW).await.expect("removed");
    });
    // The removal takes two sequences: profile and reach.
    expected.extend([None, None]);
    assert_eq!(attributes_by_sequence(&records), expected);
    // The same with a file written before logged changes were linked.
    let sql = "DROP INDEX changes_of_profiles; ALTER TABLE subscribers DROP COLUMN told;
        UPDATE changes SET kind = 6, last = NULL WHERE kind IN (6, 9);
        CREATE INDEX changes_of_profiles ON changes (first) WHERE kind = 6;
        DROP TABLE credentials; CREATE TABLE credentials (entry INTEGER PRIMARY KEY, credential TEXT NOT NULL) STRICT;";
    undo(records, "ADD COLUMN told", sql);
    assert_eq!(attributes_by_sequence(&open(folder.path())), expected);
}

/// Reverts the file to the schema before the migration with this text, and closes it.
fn undo(records: SqliteRecords, step: &str, sql: &'static str) {
    let step = MIGRATIONS.iter().position(|text| text.contains(step)).expect("a step");
    let undo = records.database.write(move |connection, _| {
        connection.execute_batch(sql).map_err(store_error)?;
        connection.execute_batch(LATER_STEPS_UNDONE).map_err(store_error)?;
        connection.pragma_update(None, "user_version", step as i64).map_err(store_error)
    });
    block_on(undo).expect("undone");
}

#[test]
fn credentials_survive_the_change_of_their_key() {
    let folder = tempfile::tempdir().expect("a folder");
    let records = open(folder.path());
    let sql =
        "DROP TABLE credentials; CREATE TABLE credentials (entry INTEGER PRIMARY KEY, credential TEXT NOT NULL) STRICT;
        INSERT INTO credentials VALUES (-2, 'of bob'), (-1, 'of ann'), (7, 'of an object');";
    undo(records, "credentials_by_entry", sql);
    let records = open(folder.path());
    let all = block_on(records.database.read(|connection| connection.credentials(None, 9))).expect("read");
    assert_eq!(
        all,
        [(-2, "of bob"), (-1, "of ann"), (7, "of an object")].map(|(n, text)| (EntryNumber(n), text.to_owned()))
    );
}

#[test]
fn attributes_are_padded_to_grow_in_place() {
    for (bytes, stored) in
        [(2, 2), (16, 16), (17, 18), (716, 768), (768, 768), (769, 832), (1_024, 1_024), (1_025, 1_152)]
    {
        assert_eq!(subscribers::padded("x".repeat(bytes)).len(), stored);
    }
}

#[test]
fn prepared_changes_wait_for_disk_space() {
    let folder = tempfile::tempdir().expect("a folder");
    let records = open(folder.path());
    Entries::watch(&records, Arc::new(AcceptingWatcher));
    let bound_pages = |pages: i64| {
        records.database.write_statement(move |connection, _| {
            connection.query_row(&format!("PRAGMA max_page_count = {pages}"), (), |_| Ok(())).map_err(store_error)
        })
    };
    block_on(async {
        records.put_subscriber(ann(), Precondition::Any, NOW).await.expect("stored");
        bound_pages(120).await.expect("bounded");
        let mut revision = 1;
        let full = loop {
            // A change that shares a job with one that fails on a full disk fails too; both wait until the writer is
            // released.
            let (go, held) = std::sync::mpsc::channel::<()>();
            let hold = records.database.write_statement(move |_, _| {
                let _ = held.recv();
                Ok(())
            });
            let both =
                (records.modify_prepared(modification(revision, 9_000)), records.modify_prepared(modification(0, 1)));
            let (held, one, late, ()) = tokio::join!(hold, both.0, both.1, async move { drop(go) });
            held.expect("let go");
            match (one, late) {
                (Ok(is_written), Ok(is_late_written)) => assert!(is_written && !is_late_written),
                (Err(one), Err(StoreError::Full(_))) => break one,
                other => panic!("{other:?}"),
            }
            revision += 1;
        };
        assert!(matches!(full, StoreError::Full(_)), "{full}");
        let found = records.subscriber(&ann().id).await.expect("read").expect("there");
        assert_eq!(found.revision, revision);
        bound_pages(10_000).await.expect("there is room again");
        assert!(records.modify_prepared(modification(revision, 9_000)).await.expect("stored"));
    });
}

/// Group with this many members, at the root.
fn group(members: usize) -> crate::entries::Object {
    let members = (0..members).map(|number| Value::from(&*format!("uid=u{number},ou=people,o=site"))).collect();
    let attributes = BTreeMap::from([("cn".to_owned(), Value::from("g")), ("member".to_owned(), Value::List(members))]);
    crate::entries::Object { parent: None, rdn: "cn=g".into(), rdn_key: "cn=g".into(), attributes }
}

fn rows_written(records: &SqliteRecords) -> i64 {
    let (answer, answered) = std::sync::mpsc::channel();
    block_on(records.database.write_statement(move |connection, _| {
        let count = connection.query_row("SELECT total_changes()", (), |row| row.get(0)).map_err(store_error)?;
        let _ = answer.send(count);
        Ok(())
    }))
    .expect("asked");
    answered.recv().expect("answered")
}

#[test]
fn b26_changing_a_member_of_a_large_group_writes_few_rows() {
    let folder = tempfile::tempdir().expect("a folder");
    let records = open(folder.path());
    Entries::watch(&records, Arc::new(AcceptingWatcher));
    let change = |job: crate::entries::EntryWriteJob| {
        block_on(Entries::change(&records, crate::entries::DiskCheck::Required, job)).expect("changed");
    };
    change(Box::new(|tree| tree.put_object(group(20_000), NOW).map(|_| ())));
    let before = rows_written(&records);
    change(Box::new(|tree| {
        let Some(EntryNode::Object(head)) = tree.reader().child_head(None, "cn=g")? else { panic!("it is gone") };
        assert_eq!(head.object.attributes.len(), 1, "its members are not read");
        let change = crate::entries::RowChange {
            name: "member".into(),
            added: vec!["uid=new,ou=people,o=site".into()],
            removed: vec!["uid=u7,ou=people,o=site".into()],
            ..Default::default()
        };
        tree.change_rows(&head, &change, NOW)
    }));
    let written = rows_written(&records) - before;
    assert!(written <= 8, "{written} rows were written");
    // Replacing the whole object with one member less writes as few rows.
    change(Box::new(|tree| {
        let Some(EntryNode::Object(whole)) = tree.reader().child(None, "cn=g")? else { panic!("it is gone") };
        let mut new = whole.object.clone();
        let Some(Value::List(members)) = new.attributes.get("member") else { panic!("{new:?}") };
        let rest = members.iter().skip(1).cloned().collect();
        new.attributes.insert("member".to_owned(), Value::List(rest));
        tree.change_object(&whole, new, NOW)
    }));
    let written = rows_written(&records) - before;
    assert!(written <= 16, "{written} rows were written");
    block_on(records.read(Box::new(|branches| {
        let Some(EntryNode::Object(whole)) = branches.child(None, "cn=g")? else { panic!("it is gone") };
        let Some(Value::List(members)) = whole.object.attributes.get("member") else { panic!("no members") };
        assert_eq!((members.len(), whole.revision), (19_999, 3));
        Ok(())
    })))
    .expect("looked");
}

#[test]
fn b26_groups_of_an_old_folder_keep_their_members() {
    let folder = tempfile::tempdir().expect("a folder");
    drop(open(folder.path()));
    // As written by the previous schema version: values in the JSON of the entry.
    let path = folder.path().join("records.db");
    let connection = Connection::open(&path).expect("opens");
    let old = r#"
        INSERT INTO entries (parent, rdn, rdn_key, attributes, created_at, updated_at, revision) VALUES
            (0, 'cn=g', 'cn=g', '{"cn":"g","member":["cn=a","cn=b","cn=a"],"uniqueMember":"cn=c"}', 1, 1, 1),
            (0, 'cn=h', 'cn=h', '{"cn":["h","i"],"description":"member"}', 1, 1, 1);
    "#;
    connection.execute_batch(LATER_STEPS_UNDONE).and_then(|()| connection.execute_batch(old)).expect("as it was");
    let version: i64 = connection.query_row("PRAGMA user_version", (), |row| row.get(0)).expect("read");
    assert_eq!(version, super::schema::MIGRATIONS.len() as i64);
    let step = super::schema::MIGRATIONS.iter().position(|text| text.contains("CREATE TABLE entry_values"));
    let step = step.expect("the step that made the rows") as i64;
    connection.pragma_update(None, "user_version", step).expect("set");
    drop(connection);
    let records = open(folder.path());
    block_on(records.read(Box::new(|branches| {
        let Some(EntryNode::Object(group)) = branches.child(None, "cn=g")? else { panic!("it is gone") };
        let list = |values: &[&str]| Value::List(values.iter().map(|value| Value::from(*value)).collect());
        let expected =
            [("cn", Value::from("g")), ("member", list(&["cn=a", "cn=b"])), ("uniqueMember", Value::from("cn=c"))];
        let expected: BTreeMap<_, _> = expected.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        assert_eq!(group.object.attributes, expected);
        let Some(EntryNode::Object(other)) = branches.child(None, "cn=h")? else { panic!("it is gone") };
        assert_eq!(other.object.attributes["cn"], list(&["h", "i"]));
        assert_eq!(branches.row_values(group.number, "member", 1)?.len(), 1);
        Ok(())
    })))
    .expect("looked");
}

/// Query plan as text.
fn plan(connection: &Connection, sql: &str, values: &[&str]) -> String {
    let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).expect("it is SQL");
    let steps = statement.query_map(rusqlite::params_from_iter(values), |row| row.get::<_, String>(3)).expect("a plan");
    steps.map(|step| step.expect("a step")).collect::<Vec<_>>().join("; ")
}

#[test]
fn b34_selective_filters_use_an_index() {
    let folder = tempfile::tempdir().expect("a folder");
    drop(open(folder.path()));
    let connection = Connection::open(folder.path().join("records.db")).expect("opens");
    let all = SubscriberFilter::default();
    let subscribers = [
        (all.clone(), "sqlite_autoindex_subscribers_1"),
        (SubscriberFilter { locale: Some("de".into()), ..all.clone() }, "sqlite_autoindex_subscribers_1"),
        (SubscriberFilter { enabled: Some(true), ..all.clone() }, "sqlite_autoindex_subscribers_1"),
        (SubscriberFilter { enabled: Some(false), ..all.clone() }, "subscribers_disabled"),
        (SubscriberFilter { address: Some("a@x".into()), ..all.clone() }, "devices_by_address"),
        (SubscriberFilter { id_prefix: Some("a".into()), ..all }, "sqlite_autoindex_subscribers_1"),
    ];
    for (filter, index) in subscribers {
        let values: &[&str] = if filter.address.is_some() { &["", "", "1", "1"] } else { &["", ""] };
        let found = plan(&connection, &subscribers::listing(&filter), values);
        assert!(found.contains(&format!("INDEX {index}")), "{filter:?}: {found}");
        assert!(!found.contains("SCAN s"), "{filter:?}: {found}");
    }
    let all = SubscriptionFilter::default();
    let key = SubscriptionFilter { key: Some("k".into()), ..all.clone() };
    let disabled = SubscriptionFilter { enabled: Some(false), ..all.clone() };
    let enabled = SubscriptionFilter { enabled: Some(true), ..all.clone() };
    let (some, many): (&[i64], Vec<i64>) = (&[1, 2], (1..=200).collect());
    /// Filter, subscriber number, whether it names a class, class numbers, and a part of the expected plan.
    type Case<'c> = (&'c SubscriptionFilter, Option<u64>, bool, &'c [i64], &'static str);
    let subscriptions: [Case<'_>; 11] = [
        (&all, None, false, &[], "INTEGER PRIMARY KEY"),
        (&all, None, true, some, "INDEX subscriptions_by_class"),
        (&all, None, true, &many, "INTEGER PRIMARY KEY"),
        (&all, Some(7), false, &[], "INDEX subscriptions_by_subscriber"),
        (&key, None, false, &[], "INDEX subscriptions_by_key"),
        (&key, None, true, some, "INDEX subscriptions_by_key"),
        (&key, Some(7), true, &[3], "subscriptions_by_subscriber (subscriber=? AND class=? AND key=?"),
        (&disabled, None, true, some, "INDEX subscriptions_disabled"),
        (&disabled, None, false, some, "INDEX subscriptions_disabled"),
        (&enabled, None, true, some, "INDEX subscriptions_by_class"),
        (&enabled, None, false, &[], "INTEGER PRIMARY KEY"),
    ];
    for (filter, subscriber, is_of_class, classes, way) in subscriptions {
        let listing = subscriptions::Listing::of(filter, subscriber, is_of_class, classes);
        let values: &[&str] = if filter.key.is_some() { &["0", "k"] } else { &["0"] };
        let found = plan(&connection, &listing.candidates, values);
        assert!(found.contains(way), "{filter:?} {subscriber:?} {classes:?}: {found}");
        assert!(!found.contains("SCAN subscriptions"), "{filter:?} {subscriber:?} {classes:?}: {found}");
    }
}

#[test]
fn b34_a_page_reads_a_bounded_number_of_rows() {
    const ROWS: usize = SCANNED_ROWS_MAX + 500;
    let folder = tempfile::tempdir().expect("a folder");
    let records = open(folder.path());
    let id = |at: usize| format!("s{at:06}").parse::<SubscriberId>().expect("an id");
    block_on(async {
        records
            .put_application(NewApplicationVersion { name: &name("quakes"), text: "text", author: "ann", now: NOW })
            .await
            .expect("stored");
        // Only the last row matches the selective filters.
        let last = ROWS - 1;
        let person = |at: usize| {
            let mut profile = Profile { enabled: at != last, ..Profile::default() };
            if at == last {
                profile.locale = Some("de".to_owned());
                profile.attributes.insert("city".to_owned(), Value::from("Wien"));
            }
            NewSubscriber { kept: Default::default(), id: id(at), profile, devices: None, preferences: None }
        };
        records.put_subscribers((0..ROWS).map(person).collect(), NOW).await.expect("stored");
        let of = |at: usize| NewSubscription {
            subscriber: id(at),
            key: (at == last).then(|| "rare".to_owned()),
            enabled: Some(at == last),
            ..interest("{}")
        };
        records.put_subscriptions((0..ROWS).map(of).collect(), NOW).await.expect("stored");

        let all = SubscriberFilter::default();
        let scanned = [
            SubscriberFilter { locale: Some("de".into()), ..all.clone() },
            SubscriberFilter { attribute: Some(("city".into(), "Wien".into())), ..all.clone() },
        ];
        for filter in scanned {
            let first = records.scan_subscribers(&filter, None, 9).await.expect("looked");
            assert_eq!((first.items.len(), first.next.as_ref()), (0, Some(&id(SCANNED_ROWS_MAX - 1))), "{filter:?}");
            let second = records.scan_subscribers(&filter, first.next.as_ref(), 9).await.expect("looked");
            assert_eq!((second.items.len(), second.next), (1, None), "{filter:?}");
            assert_eq!(records.subscribers(&filter, None, 9).await.expect("all"), second.items);
        }
        let indexed = SubscriberFilter { enabled: Some(false), ..all.clone() };
        let found = records.scan_subscribers(&indexed, None, 9).await.expect("looked");
        assert_eq!((found.items.len(), found.next), (1, None));
        let page = records.scan_subscribers(&all, None, 9).await.expect("looked");
        assert_eq!((page.items.len(), page.next), (9, Some(id(8))));
        assert_eq!(records.subscribers(&all, None, usize::MAX).await.expect("all").len(), ROWS);

        let all = SubscriptionFilter { application: Some(name("quakes")), ..SubscriptionFilter::default() };
        let enabled = SubscriptionFilter { enabled: Some(true), ..all.clone() };
        let first = records.scan_subscriptions(&enabled, None, 9).await.expect("looked");
        assert_eq!((first.items.len(), first.next), (0, Some(SubscriptionId(SCANNED_ROWS_MAX as u64))));
        let second = records.scan_subscriptions(&enabled, first.next, 9).await.expect("looked");
        assert_eq!((second.items.len(), second.next), (1, None));
        let key = SubscriptionFilter { key: Some("rare".into()), ..SubscriptionFilter::default() };
        for filter in [key.clone(), SubscriptionFilter { enabled: Some(true), ..key.clone() }] {
            let found = records.scan_subscriptions(&filter, None, 9).await.expect("looked");
            assert_eq!((found.items.len(), found.next), (1, None), "{filter:?}");
        }
        let other = SubscriptionFilter { enabled: Some(false), ..key };
        assert_eq!(records.scan_subscriptions(&other, None, 9).await.expect("looked").items, []);
        let disabled = SubscriptionFilter { enabled: Some(false), ..SubscriptionFilter::default() };
        assert_eq!(records.subscriptions(&disabled, None, usize::MAX).await.expect("all").len(), ROWS - 1);
        assert_eq!(records.subscriptions(&all, None, usize::MAX).await.expect("all").len(), ROWS);
    });
}
