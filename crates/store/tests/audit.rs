//! Audit log: an entry is in the commit of its change, with the caller of each change, also after a crash.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
};

use serde_json::{Value, json};
use tocsin_model::{
    notifybc::Collection,
    subscriber::{Device, DeviceState, Profile},
    time::Timestamp,
};
use tocsin_store::{
    audit::{self, AuditEntry, AuditFilter, AuditTrail, ChangeContext, Image, Match},
    error::StoreError,
    journal::PersonNames,
    records::{
        ApiKey, ApiKeyStore, ConsentStore, DocumentKeys, KeptState, NewSegment, NewSubscriber, NotifybcStore,
        Precondition, PutDocument, SegmentStore, SubscriberFilter, SubscriberStore,
    },
    sqlite::records::{RecordsOptions, SqliteRecords},
};

/// Folder of the child process that is killed.
const VARIABLE: &str = "TOCSIN_AUDIT_CRASH_FOLDER";

fn open(folder: &Path) -> SqliteRecords {
    SqliteRecords::open(folder, &RecordsOptions { reserve_bytes: 0, ..RecordsOptions::default() }).expect("it opens")
}

fn run<T>(story: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(story)
}

fn context(actor: &str, at: i64) -> Arc<ChangeContext> {
    let context = ChangeContext::new(actor, "test.change", Arc::new(move || Timestamp(at)))
        .at_address(Some("192.0.2.1".to_owned()))
        .on_object("the/path")
        .of_request(Some(format!("r{at}")));
    Arc::new(context.because(Some("a reason".to_owned())))
}

fn person(id: &str, locale: &str) -> NewSubscriber {
    let device = Device {
        channel: "email".parse().expect("a name"),
        address: format!("{id}@example.org"),
        state: DeviceState::Active,
    };
    NewSubscriber {
        id: id.parse().expect("an id"),
        profile: Profile { locale: Some(locale.to_owned()), ..Profile::default() },
        devices: Some(vec![("mail".parse().expect("a name"), device)]),
        preferences: None,
        kept: KeptState::default(),
    }
}

async fn all(trail: &dyn AuditTrail, filter: AuditFilter) -> Vec<AuditEntry> {
    let found = trail.entries(&filter, None, 1_000).await.expect("entries");
    assert_eq!(found.next, None);
    found.items
}

fn image(text: Option<&String>) -> Value {
    text.map(|text| serde_json::from_str(text).expect("JSON")).unwrap_or_default()
}

#[test]
fn a_change_has_its_entry_and_no_change_has_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let records = open(folder.path());
    run(async {
        let now = Timestamp(5);
        let put = |person| records.put_subscriber(person, Precondition::Any, now);
        put(person("bob", "de")).await.expect("stored"); // without a context
        audit::scope(context("key:a", 1), put(person("ada", "de"))).await.expect("stored");
        audit::scope(context("user:x", 2), put(person("ada", "en"))).await.expect("stored");
        // The same again changes nothing.
        audit::scope(context("user:x", 3), put(person("ada", "en"))).await.expect("stored");
        // A refused change is not stored.
        let refused = records.put_subscriber(person("ada", "fr"), Precondition::Absent, now);
        audit::scope(context("user:x", 4), refused).await.expect_err("it exists");
        let ada = "ada".parse().expect("an id");
        let removed = records.remove_subscriber(&ada, Precondition::Any, now);
        audit::scope(context("user:y", 5), removed).await.expect("removed");
        audit::scope(context("user:y", 6), audit::unaudited(put(person("eve", "en")))).await.expect("stored");

        let found = all(&records, AuditFilter::default()).await;
        let shown: Vec<_> = found
            .iter()
            .map(|entry| {
                let locale = |text| image(text)["locale"].clone();
                let locales = (locale(entry.before.as_ref()), locale(entry.after.as_ref()));
                (entry.at.0, entry.actor.as_str(), entry.object.as_deref().expect("an object"), locales)
            })
            .collect();
        let ada = "subscriber:ada";
        assert_eq!(
            shown,
            [
                (5, "user:y", ada, (json!("en"), Value::Null)),
                (2, "user:x", ada, (json!("de"), json!("en"))),
                (1, "key:a", ada, (Value::Null, json!("de"))),
            ]
        );
        let first = found.last().expect("an entry");
        let texts = [&first.address, &first.reason, &first.request_id].map(|text| text.as_deref().expect("a text"));
        assert_eq!(texts, ["192.0.2.1", "a reason", "r1"]);
        assert_eq!(image(first.after.as_ref())["devices"]["mail"]["address"], "ada@example.org");
    });
}

#[test]
fn entries_are_found_by_each_condition_and_expire() {
    let folder = tempfile::tempdir().expect("a folder");
    let records = open(folder.path());
    run(async {
        for number in 0..10i64 {
            let segment = NewSegment {
                name: format!("s{number}").parse().expect("a name"),
                description: None,
                filter: "(cn=a)".into(),
            };
            let actor = if number % 2 == 0 { "key:even" } else { "user:odd" };
            let put = records.put_segment(segment, Precondition::Any, Timestamp(1));
            audit::scope(context(actor, number), put).await.expect("stored");
        }
        let exactly = |text: &str| Some(Match::read(text));
        let filter = AuditFilter::default;
        let cases: [(AuditFilter, &[i64]); 9] = [
            (filter(), &[9, 8, 7, 6, 5, 4, 3, 2, 1, 0]),
            (AuditFilter { actor: exactly("key:even"), ..filter() }, &[8, 6, 4, 2, 0]),
            (AuditFilter { actor: exactly("user:*"), ..filter() }, &[9, 7, 5, 3, 1]),
            (AuditFilter { object: exactly("segment:s3"), ..filter() }, &[3]),
            (AuditFilter { object: exactly("segment:*"), actor: exactly("key:even"), ..filter() }, &[8, 6, 4, 2, 0]),
            (AuditFilter { action: exactly("test.change"), from: Some(Timestamp(8)), ..filter() }, &[9, 8]),
            (AuditFilter { to: Some(Timestamp(2)), ..filter() }, &[1, 0]),
            (AuditFilter { request_id: Some("r4".to_owned()), ..filter() }, &[4]),
            (AuditFilter { action: exactly("other"), ..filter() }, &[]),
        ];
        for (filter, expected) in cases {
            let whole: Vec<i64> = all(&records, filter.clone()).await.iter().map(|entry| entry.at.0).collect();
            assert_eq!(whole, expected, "{filter:?}");
            let (mut paged, mut before) = (Vec::new(), None);
            loop {
                let page = records.entries(&filter, before, 2).await.expect("a page");
                paged.extend(page.items.iter().map(|entry| entry.at.0));
                before = page.next;
                if before.is_none() {
                    break;
                }
            }
            assert_eq!(paged, expected, "{filter:?} by pages");
        }
        assert_eq!(records.prune_entries(Timestamp(4), 3).await.expect("pruned"), 3);
        assert_eq!(records.prune_entries(Timestamp(4), 3).await.expect("pruned"), 1);
        assert_eq!(records.prune_entries(Timestamp(4), 3).await.expect("pruned"), 0);
        let left: Vec<i64> = all(&records, AuditFilter::default()).await.iter().map(|entry| entry.at.0).collect();
        assert_eq!(left, [9, 8, 7, 6, 5, 4]);
    });
}

#[test]
fn changes_of_one_group_commit_have_their_own_callers() {
    let folder = tempfile::tempdir().expect("a folder");
    let records = open(folder.path());
    run(async {
        let put = |number: i64| {
            let document = PutDocument {
                collection: Collection::Notification,
                id: format!("{number:024x}"),
                body: "{}".into(),
                keys: DocumentKeys::default(),
                expect: Precondition::Any,
                native: None,
                created_at: Timestamp(1),
                updated_at: Timestamp(1),
            };
            let stored = records.put_documents(vec![document], Timestamp(1));
            async move { audit::scope(context(&format!("user:u{number}"), number), stored).await.expect("stored") }
        };
        futures_util::future::join_all((0..64).map(put)).await;
        let found = all(&records, AuditFilter::default()).await;
        let actors: BTreeSet<(String, i64)> = found.iter().map(|entry| (entry.actor.clone(), entry.at.0)).collect();
        assert_eq!(actors, (0..64).map(|number| (format!("user:u{number}"), number)).collect());
        assert_eq!(found.len(), 64);
    });
}

#[test]
fn secrets_are_not_in_the_file_and_operations_without_rows_are_recorded() {
    let folder = tempfile::tempdir().expect("a folder");
    let records = open(folder.path());
    run(async {
        let key = ApiKey {
            id: "0a".to_owned(),
            hash: [7; 32],
            description: "of a test".to_owned(),
            scopes: vec!["admin".to_owned()],
            resources: Vec::new(),
            created_at: Timestamp(1),
            expires_at: None,
        };
        audit::scope(context("key:a", 1), records.put_api_key(key)).await.expect("stored");
        audit::scope(context("key:a", 2), records.remove_api_key("0a")).await.expect("removed");
        let backup = Image::of("backup", "b1", None, Some(json!({ "token": "s3cret" })));
        audit::scope(context("key:a", 3), records.record(backup)).await.expect("recorded");
        let found = all(&records, AuditFilter::default()).await;
        let objects: Vec<_> = found.iter().map(|entry| entry.object.as_deref().expect("an object")).collect();
        assert_eq!(objects, ["backup:b1", "key:0a", "key:0a"]);
        assert_eq!(image(found[0].after.as_ref()), json!({ "token": "***" }));
        assert_eq!(image(found[1].before.as_ref())["description"], "of a test");
        assert!(found.iter().all(|entry| !format!("{entry:?}").contains("hash")));
    });
}

#[test]
fn an_erased_person_is_not_in_the_log() {
    let folder = tempfile::tempdir().expect("a folder");
    let records = open(folder.path());
    run(async {
        let put = |id: &str| records.put_subscriber(person(id, "de"), Precondition::Any, Timestamp(1));
        audit::scope(context("subscriber:ann-needle", 1), put("ann-needle")).await.expect("stored");
        audit::scope(context("key:a", 2), put("al")).await.expect("stored");
        audit::scope(context("key:a", 3), put("albert")).await.expect("stored");
        let id = "ann-needle".parse().expect("an id");
        audit::scope(context("key:a", 4), records.erase_subscriber(&id, Timestamp(2))).await.expect("erased");
        for (names, left) in [
            (&["ann-needle", "ann-needle@example.org"][..], &["subscriber:albert", "subscriber:al"][..]),
            // A short id is erased as a whole value only.
            (&["al"], &["subscriber:albert"]),
        ] {
            let names = PersonNames::new(names.iter().map(|name| (*name).to_owned()));
            records.erase_entries(&names).await.expect("erased");
            let found = all(&records, AuditFilter::default()).await;
            assert_eq!(found.len(), 4, "the entries stay");
            let named: Vec<_> = found
                .iter()
                .filter(|entry| entry.object.as_deref() != Some("subscriber:erased"))
                .map(|entry| entry.object.as_deref().expect("an object"))
                .collect();
            assert_eq!(named, left);
            assert!(found.iter().all(|entry| !format!("{entry:?}").contains("needle")), "{found:?}");
            let first = found.last().expect("an entry");
            assert_eq!((first.actor.as_str(), &first.address), ("subscriber:erased", &None));
        }
    });
}

/// Child process: changes subscribers until it is killed, and reports the acknowledged ones.
#[test]
fn the_child_changes_subscribers() {
    let Some(folder) = std::env::var_os(VARIABLE) else { return };
    let records = open(Path::new(&folder));
    run(async {
        let put = |number: i64| {
            let records = &records;
            async move {
                let put = records.put_subscriber(person(&format!("p{number}"), "de"), Precondition::Any, Timestamp(1));
                audit::scope(context("key:child", number), put).await.expect("stored");
                println!("stored {number}");
            }
        };
        for round in 0..1_000_000 {
            futures_util::future::join_all((0..16).map(|number| put(round * 16 + number))).await;
        }
    });
}

#[test]
fn after_a_crash_the_entries_are_those_of_the_changes() {
    let folder = tempfile::tempdir().expect("a folder");
    for kills in 1..=3 {
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "the_child_changes_subscribers", "--nocapture"])
            .env(VARIABLE, folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a process");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let acknowledged = lines.map_while(Result::ok).filter(|line| line.contains("stored")).take(40 * kills).count();
        child.kill().expect("it can be killed");
        child.wait().expect("it ended");
        assert_eq!(acknowledged, 40 * kills);

        let records = open(folder.path());
        run(async {
            let ids = async {
                let (mut ids, mut after) = (BTreeSet::new(), None);
                loop {
                    let page = records.scan_subscribers(&SubscriberFilter::default(), after.as_ref(), 1_000).await?;
                    ids.extend(page.items.into_iter().map(|found| format!("subscriber:{}", found.id)));
                    match page.next {
                        Some(next) => after = Some(next),
                        None => return Ok::<_, StoreError>(ids),
                    }
                }
            };
            let ids = ids.await.expect("subscribers");
            let (mut audited, mut before) = (Vec::new(), None);
            loop {
                let page = records.entries(&AuditFilter::default(), before, 1_000).await.expect("entries");
                audited.extend(page.items.into_iter().filter_map(|entry| entry.object));
                before = page.next;
                if before.is_none() {
                    break;
                }
            }
            assert!(ids.len() >= 40, "{}", ids.len());
            assert_eq!(audited.len(), ids.len(), "one entry for each change");
            assert_eq!(audited.into_iter().collect::<BTreeSet<_>>(), ids);
        });
        // The next child begins with an empty folder.
        drop(records);
        for entry in std::fs::read_dir(folder.path()).expect("a folder") {
            std::fs::remove_file(entry.expect("an entry").path()).expect("removed");
        }
    }
}
