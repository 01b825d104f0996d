//! What only a file can do: last, fill up, and tell of the past. The rest is in the conformance suite.

use std::collections::BTreeMap;

use tocsin_model::{
    subscriber::{DeviceState, Profile},
    subscription::Terms,
    value::Value,
};

use super::*;
use crate::{
    entries::{Branches, Entries, EntryNumber, Node, Retouch},
    look::LOOKS_MAX,
};

const NOW: Timestamp = Timestamp(1);

/// Undoes the last steps of the schema: rows of entries, resources of keys, and indexes for lists. A new step is added here.
const LATER_STEPS_UNDONE: &str = "DROP INDEX subscriptions_by_key;
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

/// Whoever takes everything as it is.
struct Anyone;

impl EntryWatcher for Anyone {
    fn keys(&self, _: &crate::entries::Node) -> Vec<crate::entries::EntryKey> {
        Vec::new()
    }

    fn holds(&self, _: &crate::entries::Built) -> bool {
        true
    }

    fn changed(&self, _: Vec<crate::entries::EntryChange>) {}

    fn credentials_changed(&self, _: &[crate::entries::EntryNumber]) {}
}

/// Ann says so many bytes.
fn retouch(revision: u64, bytes: usize) -> Retouch {
    Retouch {
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
fn whoever_waits_for_a_writer_that_ends_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let records = open(folder.path());
    Entries::watch(&records, Arc::new(Anyone));
    block_on(async {
        records.put_subscriber(ann(), Expect::Any, NOW).await.expect("stored");
        let (let_go, held) = crossbeam_channel::bounded::<()>(0);
        let hold = move |_: &Connection, _: &mut AfterCommit| {
            let _ = held.recv();
            Ok(())
        };
        records.database.write_again_then(hold, drop);
        let breaks = records.database.write_one(|_, _| {
            let cause = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR_FSYNC);
            Err::<(), _>(store_error(rusqlite::Error::SqliteFailure(cause, None)))
        });
        let (broken, one, other, ()) =
            tokio::join!(breaks, records.retouch(retouch(1, 1)), records.retouch(retouch(1, 2)), async {
                let_go.send(()).expect("held");
            });
        assert!(matches!(broken, Err(StoreError::Unavailable(_))), "{broken:?}");
        for answer in [one, other, records.retouch(retouch(1, 3)).await, records.retouch(retouch(1, 4)).await] {
            assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
        }
    });
    drop(records);
    let records = open(folder.path());
    Entries::watch(&records, Arc::new(Anyone));
    assert!(block_on(records.retouch(retouch(1, 5))).expect("the store answers"), "nothing was stored before");
}

/// What Ann said at each place of the feed.
fn told(records: &SqliteRecords) -> Vec<Option<String>> {
    let newest = records.newest_change().borrow().0;
    let at = |place| {
        let found = block_on(records.profiles(&[SubscriberNumber(1)], ChangeSequence(place))).expect("read");
        Some(json(&found.into_iter().next()??.profile.attributes))
    };
    (0..=newest).map(at).collect()
}

#[test]
fn the_past_of_a_profile_is_found_by_steps() {
    let folder = tempfile::tempdir().expect("a folder");
    let records = open(folder.path());
    Entries::watch(&records, Arc::new(Anyone));
    let mut expected = Vec::new();
    block_on(async {
        records.put_subscriber(ann(), Expect::Any, NOW).await.expect("stored");
        let said = |bytes: usize| BTreeMap::from([("says".to_owned(), Value::from("x".repeat(bytes).as_str()))]);
        let profile = Profile { attributes: said(1), ..Profile::default() };
        records.put_subscriber(NewSubscriber { profile, ..ann() }, Expect::Any, NOW).await.expect("stored");
        expected.push(Some("{}".to_owned()));
        // By one way and by the other; some of these are told with all that there was.
        for bytes in 1..100_usize {
            expected.push(Some(json(&said(bytes))));
            let next = bytes + 1;
            if next.is_multiple_of(3) {
                let profile = Profile { attributes: said(next), ..Profile::default() };
                records.put_subscriber(NewSubscriber { profile, ..ann() }, Expect::Any, NOW).await.expect("stored");
            } else {
                let before = [("says".to_owned(), Some(said(bytes)["says"].clone()))].into();
                let retouch = Retouch { before, ..retouch(bytes as u64 + 1, next) };
                assert!(records.retouch(retouch).await.expect("stored"));
            }
        }
        expected.push(Some(json(&said(100))));
        records.remove_subscriber(&ann().id, Expect::Any, NOW).await.expect("removed");
    });
    // The removal has two places: of her profile, and of where she is reached.
    expected.extend([None, None]);
    assert_eq!(told(&records), expected);
    // The same of a file that was written before the steps named each other.
    let sql = "DROP INDEX changes_of_profiles; ALTER TABLE subscribers DROP COLUMN told;
        UPDATE changes SET kind = 6, last = NULL WHERE kind IN (6, 9);
        CREATE INDEX changes_of_profiles ON changes (first) WHERE kind = 6;
        DROP TABLE credentials; CREATE TABLE credentials (entry INTEGER PRIMARY KEY, credential TEXT NOT NULL) STRICT;";
    undo(records, "ADD COLUMN told", sql);
    assert_eq!(told(&open(folder.path())), expected);
}

/// Puts the file back to what it was before the step of migration with these words, and closes it.
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
fn credentials_of_before_are_found_by_their_holders() {
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
fn attributes_have_room_to_grow_in_their_place() {
    for (bytes, stored) in
        [(2, 2), (16, 16), (17, 18), (716, 768), (768, 768), (769, 832), (1_024, 1_024), (1_025, 1_152)]
    {
        assert_eq!(subscribers::with_room("x".repeat(bytes)).len(), stored);
    }
}

#[test]
fn what_was_worked_out_beforehand_waits_for_room() {
    let folder = tempfile::tempdir().expect("a folder");
    let records = open(folder.path());
    Entries::watch(&records, Arc::new(Anyone));
    let bound_pages = |pages: i64| {
        records.database.write_one(move |connection, _| {
            connection.query_row(&format!("PRAGMA max_page_count = {pages}"), (), |_| Ok(())).map_err(store_error)
        })
    };
    block_on(async {
        records.put_subscriber(ann(), Expect::Any, NOW).await.expect("stored");
        bound_pages(120).await.expect("bounded");
        let mut revision = 1;
        let full = loop {
            // What shares a job with one that finds no room finds none either; both wait until the writer is let go.
            let (go, held) = std::sync::mpsc::channel::<()>();
            let hold = records.database.write_one(move |_, _| {
                let _ = held.recv();
                Ok(())
            });
            let both = (records.retouch(retouch(revision, 9_000)), records.retouch(retouch(0, 1)));
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
        assert!(records.retouch(retouch(revision, 9_000)).await.expect("stored"));
    });
}

/// A group of so many members below nothing.
fn group(members: usize) -> crate::entries::Object {
    let members = (0..members).map(|number| Value::from(&*format!("uid=u{number},ou=people,o=site"))).collect();
    let attributes = BTreeMap::from([("cn".to_owned(), Value::from("g")), ("member".to_owned(), Value::List(members))]);
    crate::entries::Object { parent: None, rdn: "cn=g".into(), rdn_key: "cn=g".into(), attributes }
}

fn rows_written(records: &SqliteRecords) -> i64 {
    let (answer, answered) = std::sync::mpsc::channel();
    block_on(records.database.write_one(move |connection, _| {
        let count = connection.query_row("SELECT total_changes()", (), |row| row.get(0)).map_err(store_error)?;
        let _ = answer.send(count);
        Ok(())
    }))
    .expect("asked");
    answered.recv().expect("answered")
}

#[test]
fn b26_a_member_of_a_large_group_is_a_few_rows() {
    let folder = tempfile::tempdir().expect("a folder");
    let records = open(folder.path());
    Entries::watch(&records, Arc::new(Anyone));
    let change = |job: crate::entries::ChangeJob| {
        block_on(Entries::change(&records, crate::entries::Room::Needed, job)).expect("changed");
    };
    change(Box::new(|tree| tree.put_object(group(20_000), NOW).map(|_| ())));
    let before = rows_written(&records);
    change(Box::new(|tree| {
        let Some(Node::Object(head)) = tree.branches().child_head(None, "cn=g")? else { panic!("it is gone") };
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
    // The whole object with one member less writes no more.
    change(Box::new(|tree| {
        let Some(Node::Object(whole)) = tree.branches().child(None, "cn=g")? else { panic!("it is gone") };
        let mut new = whole.object.clone();
        let Some(Value::List(members)) = new.attributes.get("member") else { panic!("{new:?}") };
        let rest = members.iter().skip(1).cloned().collect();
        new.attributes.insert("member".to_owned(), Value::List(rest));
        tree.change_object(&whole, new, NOW)
    }));
    let written = rows_written(&records) - before;
    assert!(written <= 16, "{written} rows were written");
    block_on(records.look(Box::new(|branches| {
        let Some(Node::Object(whole)) = branches.child(None, "cn=g")? else { panic!("it is gone") };
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
    // As the step before wrote them: the values stood in the JSON of the entry.
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
    connection.pragma_update(None, "user_version", version - 3).expect("set");
    drop(connection);
    let records = open(folder.path());
    block_on(records.look(Box::new(|branches| {
        let Some(Node::Object(group)) = branches.child(None, "cn=g")? else { panic!("it is gone") };
        let list = |values: &[&str]| Value::List(values.iter().map(|value| Value::from(*value)).collect());
        let expected =
            [("cn", Value::from("g")), ("member", list(&["cn=a", "cn=b"])), ("uniqueMember", Value::from("cn=c"))];
        let expected: BTreeMap<_, _> = expected.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        assert_eq!(group.object.attributes, expected);
        let Some(Node::Object(other)) = branches.child(None, "cn=h")? else { panic!("it is gone") };
        assert_eq!(other.object.attributes["cn"], list(&["h", "i"]));
        assert_eq!(branches.row_values(group.number, "member", 1)?.len(), 1);
        Ok(())
    })))
    .expect("looked");
}

/// The plan of a query, step by step.
fn plan(connection: &Connection, sql: &str, values: &[&str]) -> String {
    let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).expect("it is SQL");
    let steps = statement.query_map(rusqlite::params_from_iter(values), |row| row.get::<_, String>(3)).expect("a plan");
    steps.map(|step| step.expect("a step")).collect::<Vec<_>>().join("; ")
}

#[test]
fn b34_filters_that_few_rows_meet_have_an_index() {
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
    /// A filter, the number of its subscriber, whether it names a class, the numbers of its classes, and a part of the plan.
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
fn b34_a_page_looks_at_a_bounded_number_of_rows() {
    const ROWS: usize = LOOKS_MAX + 500;
    let folder = tempfile::tempdir().expect("a folder");
    let records = open(folder.path());
    let id = |at: usize| format!("s{at:06}").parse::<SubscriberId>().expect("an id");
    block_on(async {
        records.put_application(&name("quakes"), "text", "ann", NOW).await.expect("stored");
        // The last of all is the one that meets what is rare.
        let last = ROWS - 1;
        let person = |at: usize| {
            let mut profile = Profile { enabled: at != last, ..Profile::default() };
            if at == last {
                profile.locale = Some("de".to_owned());
                profile.attributes.insert("city".to_owned(), Value::from("Wien"));
            }
            NewSubscriber { id: id(at), profile, devices: None, preferences: None }
        };
        records.put_subscribers((0..ROWS).map(person).collect(), NOW).await.expect("stored");
        let of = |at: usize| NewSubscription {
            subscriber: id(at),
            key: (at == last).then(|| "rare".to_owned()),
            enabled: at == last,
            ..interest("{}")
        };
        records.put_subscriptions((0..ROWS).map(of).collect(), NOW).await.expect("stored");

        let all = SubscriberFilter::default();
        let scanned = [
            SubscriberFilter { locale: Some("de".into()), ..all.clone() },
            SubscriberFilter { attribute: Some(("city".into(), "Wien".into())), ..all.clone() },
        ];
        for filter in scanned {
            let first = records.look_for_subscribers(&filter, None, 9).await.expect("looked");
            assert_eq!((first.items.len(), first.next.as_ref()), (0, Some(&id(LOOKS_MAX - 1))), "{filter:?}");
            let second = records.look_for_subscribers(&filter, first.next.as_ref(), 9).await.expect("looked");
            assert_eq!((second.items.len(), second.next), (1, None), "{filter:?}");
            assert_eq!(records.subscribers(&filter, None, 9).await.expect("all"), second.items);
        }
        let indexed = SubscriberFilter { enabled: Some(false), ..all.clone() };
        let found = records.look_for_subscribers(&indexed, None, 9).await.expect("looked");
        assert_eq!((found.items.len(), found.next), (1, None));
        let page = records.look_for_subscribers(&all, None, 9).await.expect("looked");
        assert_eq!((page.items.len(), page.next), (9, Some(id(8))));
        assert_eq!(records.subscribers(&all, None, usize::MAX).await.expect("all").len(), ROWS);

        let all = SubscriptionFilter { application: Some(name("quakes")), ..SubscriptionFilter::default() };
        let enabled = SubscriptionFilter { enabled: Some(true), ..all.clone() };
        let first = records.look_for_subscriptions(&enabled, None, 9).await.expect("looked");
        assert_eq!((first.items.len(), first.next), (0, Some(SubscriptionId(LOOKS_MAX as u64))));
        let second = records.look_for_subscriptions(&enabled, first.next, 9).await.expect("looked");
        assert_eq!((second.items.len(), second.next), (1, None));
        let key = SubscriptionFilter { key: Some("rare".into()), ..SubscriptionFilter::default() };
        for filter in [key.clone(), SubscriptionFilter { enabled: Some(true), ..key.clone() }] {
            let found = records.look_for_subscriptions(&filter, None, 9).await.expect("looked");
            assert_eq!((found.items.len(), found.next), (1, None), "{filter:?}");
        }
        let other = SubscriptionFilter { enabled: Some(false), ..key };
        assert_eq!(records.look_for_subscriptions(&other, None, 9).await.expect("looked").items, []);
        let disabled = SubscriptionFilter { enabled: Some(false), ..SubscriptionFilter::default() };
        assert_eq!(records.subscriptions(&disabled, None, usize::MAX).await.expect("all").len(), ROWS - 1);
        assert_eq!(records.subscriptions(&all, None, usize::MAX).await.expect("all").len(), ROWS);
    });
}
