//! Conformance suite of the entries port. Each scenario runs on every backend.

use futures_util::FutureExt;
use parking_lot::Mutex;
use tocsin_model::subscriber::Profile;

use super::*;
use crate::{
    memory::records::MemoryRecords,
    records::{Records, SubscriberStore},
    sqlite::records::{RecordsOptions, SqliteRecords},
};

trait AllPorts: Entries + Records {}
impl<T: Entries + Records> AllPorts for T {}

fn check(scenario: impl AsyncFn(&dyn AllPorts)) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    println!("in memory");
    runtime.block_on(scenario(&MemoryRecords::new().expect("random numbers")));
    println!("on SQLite");
    let folder = tempfile::tempdir().expect("a folder");
    let options = RecordsOptions { reserve_bytes: 0, readers: 1, ..RecordsOptions::default() };
    runtime.block_on(scenario(&SqliteRecords::open(folder.path(), &options).expect("the records open")));
}

/// Watcher that indexes the attribute `cn` and records its notifications: changed entries, and entries with changed
/// credentials.
#[derive(Default)]
struct RecordingWatcher(Mutex<Vec<String>>, Mutex<Vec<i64>>);

impl EntryWatcher for RecordingWatcher {
    fn keys(&self, node: &EntryNode) -> Vec<EntryKey> {
        let attributes = match node {
            EntryNode::Subscriber(subscriber, _) => &subscriber.profile.attributes,
            EntryNode::Object(object) => &object.object.attributes,
        };
        let cn = attributes.get("cn").and_then(Value::as_text);
        cn.map(|cn| EntryKey { index: "cn".into(), key: cn.as_bytes().into() }).into_iter().collect()
    }

    fn is_still_valid(&self, built: &PreparedEntry) -> bool {
        built.downcast_ref::<&str>() != Some(&"of another time")
    }

    fn changed(&self, changes: Vec<EntryChange>) {
        for change in changes {
            let keys: Vec<_> = change.keys.iter().map(|key| String::from_utf8_lossy(&key.key).into_owned()).collect();
            let what = match (&change.now, change.renamed) {
                (EntryState::Gone, _) => "gone".to_owned(),
                (EntryState::Prepared(built), _) => format!("built {}", built.downcast_ref::<&str>().expect("a word")),
                (_, true) => "renamed".to_owned(),
                _ => "there".to_owned(),
            };
            self.0.lock().push(format!("{} {} {what}", change.number.0, keys.join(",")));
        }
    }

    fn credentials_changed(&self, entries: &[EntryNumber]) {
        self.1.lock().extend(entries.iter().map(|entry| entry.0));
    }
}

impl RecordingWatcher {
    fn notifications(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock())
    }
}

const NOW: Timestamp = Timestamp(1_000_000);

fn attributes(cn: &str) -> BTreeMap<String, Value> {
    BTreeMap::from([("cn".to_owned(), Value::from(cn))])
}

fn object(parent: Option<i64>, rdn: &str, cn: &str) -> Object {
    let parent = parent.map(EntryNumber);
    Object { parent, rdn: rdn.into(), rdn_key: rdn.to_lowercase().into(), attributes: attributes(cn) }
}

fn person(id: &str, cn: &str) -> NewSubscriber {
    let profile = Profile { attributes: attributes(cn), ..Profile::default() };
    NewSubscriber {
        kept: Default::default(),
        id: id.parse().expect("an id"),
        profile,
        devices: None,
        preferences: None,
    }
}

fn placed(rdn: &str) -> Placement {
    let (parent, classes) = (EntryNumber(2), "person".into());
    Placement { parent, rdn: rdn.into(), rdn_key: rdn.to_lowercase().into(), classes }
}

async fn change(
    store: &dyn AllPorts,
    job: impl FnOnce(&mut dyn EntryWriter) -> Result<(), StoreError> + Send + 'static,
) {
    Entries::change(store, DiskCheck::Required, Box::new(job)).await.expect("changed");
}

async fn read<T: Send + 'static>(
    store: &dyn AllPorts,
    job: impl FnOnce(&dyn EntryReader) -> Result<T, StoreError> + Send + 'static,
) -> T {
    let (answer, answered) = std::sync::mpsc::channel();
    let job = move |branches: &dyn EntryReader| job(branches).map(|found| answer.send(found).expect("somebody asked"));
    store.read(Box::new(job)).await.expect("looked");
    answered.recv().expect("an answer")
}

async fn numbers(store: &dyn AllPorts, key: &'static str) -> Vec<i64> {
    let key = key.as_bytes();
    read(store, move |branches| branches.found("cn", Bound::Included(key), Bound::Included(key), 9))
        .await
        .expect("few")
        .iter()
        .map(|number| number.0)
        .collect()
}

async fn tree(store: &dyn AllPorts) {
    change(store, |tree| {
        assert_eq!(tree.put_object(object(None, "o=Site", "site"), NOW)?, EntryNumber(1));
        assert_eq!(tree.put_object(object(Some(1), "ou=People", "people"), NOW)?, EntryNumber(2));
        tree.put_subscriber(person("ann", "ann"), Some(placed("cn=Ann")), Precondition::Absent, NOW)?;
        Ok(())
    })
    .await;
}

#[test]
fn entries_form_a_tree() {
    check(async |store| {
        tree(store).await;
        store.put_subscriber(person("bob", "bob"), Precondition::Any, NOW).await.expect("stored");
        let shown = |nodes: Vec<EntryNode>| nodes.iter().map(|node| node.number().0).collect::<Vec<_>>();
        let page = |parent: Option<i64>, unplaced, after: Option<i64>, limit| {
            read(store, move |branches| {
                branches.page(parent.map(EntryNumber), unplaced, after.map(EntryNumber), limit).map(shown)
            })
        };
        assert_eq!(page(None, true, None, 9).await, [1, 2, -1, -2]);
        assert_eq!(page(None, true, Some(1), 2).await, [2, -1]);
        assert_eq!(page(None, true, Some(-1), 9).await, [-2]);
        assert_eq!(page(Some(1), false, None, 9).await, [2]);
        assert_eq!(page(Some(2), false, None, 9).await, [-1]);
        assert_eq!(page(Some(2), true, None, 9).await, [-1, -2]);
        let child = |parent: Option<i64>, rdn: &'static str| {
            read(store, move |branches| {
                branches.child(parent.map(EntryNumber), rdn).map(|node| node.map(|it| it.number().0))
            })
        };
        assert_eq!(child(None, "o=site").await, Some(1));
        assert_eq!(child(Some(1), "ou=people").await, Some(2));
        assert_eq!(child(Some(2), "cn=ann").await, Some(-1));
        assert_eq!(child(Some(2), "cn=bob").await, None);
        let ann = read(store, |branches| branches.subscriber(&"ann".parse().expect("an id"))).await.expect("placed");
        assert_eq!(ann.parent(), Some(EntryNumber(2)));
    });
}

#[test]
fn index_keys_follow_every_change() {
    check(async |store| {
        let witness = Arc::new(RecordingWatcher::default());
        store.watch(witness.clone());
        tree(store).await;
        assert_eq!(witness.notifications(), ["1 site there", "2 people there", "-1 ann there"]);
        store.put_subscriber(person("ann", "anna"), Precondition::Any, NOW).await.expect("stored");
        assert_eq!(witness.notifications(), ["-1 ann,anna there"]);
        assert_eq!((numbers(store, "ann").await, numbers(store, "anna").await), (vec![], vec![-1]));
        change(store, |tree| {
            tree.put_subscriber(person("ann", "anna"), Some(placed("cn=Anna")), Precondition::Present, NOW).map(|_| ())
        })
        .await;
        assert_eq!(witness.notifications(), ["-1  renamed"]);
        store.put_subscribers(vec![person("bob", "bob"), person("cid", "bob")], NOW).await.expect("stored");
        assert_eq!(numbers(store, "bob").await, [-3, -2]);
        let first = |limit| read(store, move |branches| branches.first("cn", limit));
        assert_eq!(first(2).await, [EntryNumber(-1), EntryNumber(-3)]);
        assert_eq!(first(9).await.last(), Some(&EntryNumber(1)));
        witness.notifications();
        store.remove_subscriber(&"bob".parse().expect("an id"), Precondition::Any, NOW).await.expect("removed");
        change(store, |tree| tree.remove(EntryNumber(2), NOW)).await;
        assert_eq!(witness.notifications(), ["-2 bob gone", "2 people gone"]);
        assert_eq!((numbers(store, "bob").await, numbers(store, "people").await), (vec![-3], vec![]));
    });
}

#[test]
fn changes_without_a_watcher_invalidate_the_indexes() {
    check(async |store| {
        store.put_subscriber(person("ann", "ann"), Precondition::Any, NOW).await.expect("stored");
        store.watch(Arc::new(RecordingWatcher::default()));
        assert_eq!(numbers(store, "ann").await, [0_i64; 0]);
        change(store, |tree| {
            assert_eq!(tree.index_page(None, 1)?, Some(EntryNumber(-1)));
            assert_eq!(tree.index_page(Some(EntryNumber(-1)), 1)?, None);
            tree.set_indexes(&["cn".to_owned()])
        })
        .await;
        assert_eq!(numbers(store, "ann").await, [-1]);
        assert_eq!(read(store, |branches| branches.indexes()).await, ["cn"]);
        change(store, |tree| tree.set_indexes(&[])).await;
        assert_eq!(numbers(store, "ann").await, [0_i64; 0]);
    });
    // A process without a directory changes entries that one with a directory has indexed.
    let folder = tempfile::tempdir().expect("a folder");
    let open = || SqliteRecords::open(folder.path(), &RecordsOptions::default()).expect("the records open");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let store = open();
        store.watch(Arc::new(RecordingWatcher::default()));
        change(&store, |tree| tree.set_indexes(&["cn".to_owned()])).await;
        drop(store);
        let store = open();
        assert_eq!(read(&store, |branches| branches.indexes()).await, ["cn"]);
        store.put_subscriber(person("bob", "bob"), Precondition::Any, NOW).await.expect("stored");
        assert_eq!(read(&store, |branches| branches.indexes()).await, [""; 0]);
    });
}

#[test]
fn credentials_and_definitions_are_stored_and_removed() {
    check(async |store| {
        tree(store).await;
        change(store, |tree| {
            tree.put_credential(EntryNumber(-1), Some("one"))?;
            tree.put_credential(EntryNumber(-1), Some("two"))?;
            tree.put_definition("2.5.1", Some("first"))?;
            tree.put_definition("2.5.2", Some("second"))?;
            tree.put_definition("2.5.1", Some("first anew"))
        })
        .await;
        assert_eq!(read(store, |branches| branches.credential(EntryNumber(-1))).await.as_deref(), Some("two"));
        change(store, |tree| tree.put_credential(EntryNumber(2), Some("of an object"))).await;
        let all = read(store, |branches| branches.credentials(None, 10)).await;
        assert_eq!(all, [(EntryNumber(-1), "two".to_owned()), (EntryNumber(2), "of an object".to_owned())]);
        assert_eq!(read(store, |branches| branches.credentials(None, 1)).await, all[..1]);
        assert_eq!(read(store, |branches| branches.credentials(Some(EntryNumber(-1)), 1)).await, all[1..]);
        let definitions = read(store, |branches| branches.definitions()).await;
        let texts: Vec<&str> = definitions.iter().map(|(_, text)| &**text).collect();
        assert_eq!(texts, ["first anew", "second"]);
        let witness = Arc::new(RecordingWatcher::default());
        store.watch(witness.clone());
        change(store, |tree| tree.put_credential(EntryNumber(2), None)).await;
        change(store, |tree| tree.put_credential(EntryNumber(-1), Some("three"))).await;
        store.remove_subscriber(&"ann".parse().expect("an id"), Precondition::Any, NOW).await.expect("removed");
        assert_eq!(*witness.1.lock(), [2, -1, -1], "whoever keeps them forgets them");
        change(store, |tree| tree.put_definition("2.5.1", None)).await;
        assert_eq!(read(store, |branches| branches.credential(EntryNumber(-1))).await, None);
        assert_eq!(read(store, |branches| branches.definitions()).await.len(), 1);
    });
}

#[test]
fn entry_changes_are_logged_until_a_new_log_starts() {
    check(async |store| {
        let feed = || read(store, |branches| branches.entry_feed());
        let changed = |after: u64| {
            let numbers = move |branches: &dyn EntryReader| {
                let found = branches.entries_changed(after, 3)?;
                Ok(found.into_iter().map(|(place, number)| (place, number.0)).collect::<Vec<_>>())
            };
            read(store, numbers)
        };
        // Without a watcher, nothing is logged.
        tree(store).await;
        assert_eq!(feed().await, EntryFeed { since: 0, last: 0 });
        Entries::watch(store, Arc::new(RecordingWatcher::default()));
        store.put_subscriber(person("bob", "bob"), Precondition::Any, NOW).await.expect("stored");
        change(store, |tree| tree.put_object(object(Some(1), "ou=More", "more"), NOW).map(|_| ())).await;
        change(store, |tree| tree.remove(EntryNumber(-1), NOW)).await;
        store.remove_subscriber(&"bob".parse().expect("an id"), Precondition::Present, NOW).await.expect("removed");
        assert_eq!(feed().await, EntryFeed { since: 0, last: 4 });
        assert_eq!(changed(0).await, [(1, -2), (2, 3), (3, -1)]);
        assert_eq!(changed(3).await, [(4, -2)]);
        change(store, |tree| tree.cut_entry_feed()).await;
        let EntryFeed { since, last } = feed().await;
        assert!(since > 4 && last >= since, "{since} {last}");
        assert_eq!(changed(0).await, []);
        change(store, |tree| tree.remove(EntryNumber(3), NOW)).await;
        assert_eq!(changed(last).await, [(last + 1, 3)]);
        assert_eq!(feed().await, EntryFeed { since, last: last + 1 });
    });
}

/// Prepared change of Ann's `cn`.
fn modification(revision: u64, from: &str, to: &str, built: &'static str) -> PreparedModify {
    let keys = |cn: &str| vec![EntryKey { index: "cn".into(), key: cn.as_bytes().into() }];
    PreparedModify {
        number: SubscriberNumber(1),
        revision,
        enabled: true,
        attributes: format!(r#"{{"cn":"{to}"}}"#).into(),
        before: BTreeMap::from([("cn".to_owned(), Some(Value::from(from)))]),
        gone: keys(from),
        made: keys(to),
        now: Timestamp(2_000_000),
        built: Arc::new(built),
    }
}

#[test]
fn a_prepared_modify_commits_only_on_an_unchanged_revision() {
    check(async |store| {
        let fits = async |modification| store.modify_prepared(modification).await.expect("the store answers");
        let ann = async || store.subscriber(&"ann".parse().expect("an id")).await.expect("read");
        store.put_subscriber(person("ann", "ann"), Precondition::Any, NOW).await.expect("stored");
        assert!(!fits(modification(1, "ann", "anna", "unwatched")).await);
        let witness = Arc::new(RecordingWatcher::default());
        store.watch(witness.clone());
        change(store, |tree| tree.index_page(None, 9).map(|_| ())).await;
        let before = ann().await.expect("there");
        for (revision, built) in [(2, "early"), (0, "late"), (1, "of another time")] {
            assert!(!fits(modification(revision, "ann", "anna", built)).await, "{built}");
        }
        let unknown = PreparedModify { number: SubscriberNumber(9), ..modification(1, "ann", "anna", "of nobody") };
        assert!(!fits(unknown).await);
        assert_eq!((ann().await, witness.notifications()), (Some(before.clone()), vec![]));
        assert_eq!(read(store, |branches| branches.entry_feed()).await, EntryFeed { since: 0, last: 0 });

        let mut bell = store.listen(SubscriberNumber(1));
        assert!(bell.changed().now_or_never().is_none());
        assert!(fits(modification(1, "ann", "anna", "well")).await);
        let mut expected = Subscriber { revision: 2, updated_at: Timestamp(2_000_000), ..before };
        expected.profile.attributes = attributes("anna");
        assert_eq!(ann().await, Some(expected));
        assert_eq!(witness.notifications(), ["-1 ann,anna built well"]);
        assert_eq!((numbers(store, "ann").await, numbers(store, "anna").await), (vec![], vec![-1]));
        assert_eq!(read(store, |branches| branches.entries_changed(0, 9)).await, [(1, EntryNumber(-1))]);
        assert!(bell.changed().now_or_never().is_some());

        // Of several prepared on the same revision, one succeeds.
        let all = (0..9).map(|number| fits(modification(2, "anna", &format!("ann-{number}"), "at once")));
        let written = futures_util::future::join_all(all).await;
        assert_eq!(written.iter().filter(|is_written| **is_written).count(), 1, "{written:?}");
        let won = written.iter().position(|is_written| *is_written).expect("one");
        assert_eq!(numbers(store, ["ann-0", "ann-1", "ann-2"][won.min(2)]).await.len(), usize::from(won < 3));
        assert_eq!(
            ann().await.map(|ann| (ann.revision, ann.profile.attributes)),
            Some((3, attributes(&format!("ann-{won}"))))
        );

        let nothing = PreparedModify {
            attributes: "{}".into(),
            made: vec![],
            ..modification(3, &format!("ann-{won}"), "", "bare")
        };
        assert!(fits(nothing).await);
        assert_eq!(ann().await.map(|ann| ann.profile.attributes), Some(BTreeMap::new()));
        store.remove_subscriber(&"ann".parse().expect("an id"), Precondition::Any, NOW).await.expect("removed");
        assert!(!fits(modification(4, "ann", "anna", "too late")).await);
    });
}

#[test]
fn snapshots_include_prepared_changes() {
    check(async |store| {
        store.watch(Arc::new(RecordingWatcher::default()));
        store.put_subscriber(person("ann", "0"), Precondition::Any, NOW).await.expect("stored");
        let mut expectations = vec![(*store.newest_change().borrow(), attributes("0"))];
        // Enough changes that some are logged with the full before-image.
        for number in 1..60 {
            let (from, to) = ((number - 1).to_string(), number.to_string());
            assert!(
                store
                    .modify_prepared(modification(number, &from, &to, "one of many"))
                    .await
                    .expect("the store answers")
            );
            expectations.push((*store.newest_change().borrow(), attributes(&to)));
        }
        for (at, expected) in expectations {
            let image =
                store.profiles(&[SubscriberNumber(1)], at).await.expect("expectations").remove(0).expect("there");
            assert_eq!((&image.profile.attributes, image.profile.enabled), (&expected, true), "at {at:?}");
        }
    });
}

#[test]
fn a_full_disk_refuses_prepared_changes() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = RecordsOptions { reserve_bytes: u64::MAX, readers: 1, ..RecordsOptions::default() };
    let store = SqliteRecords::open(folder.path(), &options).expect("the records open");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let refused = runtime.block_on(store.modify_prepared(modification(1, "ann", "anna", "in vain")));
    assert!(matches!(refused, Err(StoreError::Full(_))), "{refused:?}");
}

/// Prepared subscriber below `ou=People`.
fn addition(id: &str, rdn: &str, built: &'static str) -> PreparedAdd {
    let key = EntryKey { index: "cn".into(), key: id.as_bytes().into() };
    PreparedAdd {
        new: person(id, id),
        placement: placed(rdn),
        credential: Some(format!("secret of {id}")),
        keys: vec![key],
        now: NOW,
        built: Arc::new(built),
    }
}

#[test]
fn a_prepared_add_commits_only_if_its_name_is_free() {
    check(async |store| {
        let fits = async |addition| store.add_prepared(addition).await.expect("the store answers");
        assert!(!fits(addition("bob", "cn=Bob", "unwatched")).await);
        let witness = Arc::new(RecordingWatcher::default());
        store.watch(witness.clone());
        tree(store).await;
        witness.notifications();
        change(store, |tree| tree.put_object(object(Some(2), "ou=Here", "here"), NOW).map(|_| ())).await;
        witness.notifications();
        let nowhere = PreparedAdd {
            placement: Placement { parent: EntryNumber(99), ..placed("cn=Bob") },
            ..addition("bob", "", "nowhere")
        };
        assert!(!fits(nowhere).await);
        assert!(!fits(addition("bob", "cn=Ann", "a name that is taken")).await);
        assert!(!fits(addition("bob", "ou=Here", "the name of an object")).await);
        assert!(!fits(addition("ann", "cn=Bob", "an id that is taken")).await);
        assert!(!fits(addition("bob", "cn=Bob", "of another time")).await);
        assert_eq!((witness.notifications(), store.counts().subscribers), (vec![], 1));

        let both = [fits(addition("bob", "cn=Bob", "first")), fits(addition("bob", "cn=Bob", "second"))];
        assert_eq!(futures_util::future::join_all(both).await, [true, false]);
        assert_eq!(witness.notifications(), ["-2 bob built first"]);
        assert_eq!((numbers(store, "bob").await, store.counts().subscribers), (vec![-2], 2));
        let bob = read(store, |branches| branches.child(Some(EntryNumber(2)), "cn=bob")).await.expect("placed");
        let EntryNode::Subscriber(subscriber, placement) = &bob else { panic!("bob is a subscriber") };
        assert_eq!(Some(&**subscriber), store.subscriber(&"bob".parse().expect("an id")).await.expect("read").as_ref());
        assert_eq!((subscriber.revision, subscriber.created_at, placement.as_ref()), (1, NOW, Some(&placed("cn=Bob"))));
        assert_eq!(
            read(store, |branches| branches.credential(EntryNumber(-2))).await.as_deref(),
            Some("secret of bob")
        );
        // Numbers stay consecutive across prepared and ordinary additions.
        let with_device = |mut addition: PreparedAdd| {
            let device = tocsin_model::subscriber::Device {
                channel: "mail".parse().expect("a name"),
                address: "cid@example.org".into(),
                state: Default::default(),
            };
            addition.new.devices = Some(vec![("home".parse().expect("a name"), device)]);
            addition
        };
        assert!(fits(with_device(addition("cid", "cn=Cid", "third"))).await);
        store.put_subscriber(person("dan", "dan"), Precondition::Absent, NOW).await.expect("stored");
        assert_eq!(witness.notifications(), ["-3 cid built third", "-4 dan there"]);
        assert_eq!((store.counts().subscribers, store.counts().devices), (4, 1));
    });
}

#[test]
fn b26_members_are_added_and_removed_one_by_one() {
    check(async |store| {
        let witness = Arc::new(RecordingWatcher::default());
        store.watch(witness.clone());
        let members = |names: &[&str]| Value::List(names.iter().map(|name| Value::from(*name)).collect());
        let mut group = object(None, "cn=g", "g");
        group.attributes.insert("member".to_owned(), members(&["cn=a", "cn=b"]));
        group.attributes.insert("roleOccupant".to_owned(), Value::from("cn=r"));
        let number = Arc::new(Mutex::new(EntryNumber(0)));
        change(store, {
            let number = number.clone();
            move |tree| {
                *number.lock() = tree.put_object(group, NOW)?;
                Ok(())
            }
        })
        .await;
        let number = *number.lock();
        let seen = async || {
            let (seen, found) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(0)));
            let job = {
                let (seen, found) = (seen.clone(), found.clone());
                move |branches: &dyn EntryReader| {
                    let Some(EntryNode::Object(whole)) = branches.node(number)? else { panic!("it is gone") };
                    let Some(EntryNode::Object(head)) = branches.child_head(None, "cn=g")? else {
                        panic!("it is gone")
                    };
                    assert!(!head.object.attributes.contains_key("member"), "{head:?}");
                    assert_eq!((head.revision, head.number), (whole.revision, number));
                    assert_eq!(whole.object.attributes["roleOccupant"], Value::from("cn=r"));
                    assert_eq!(whole.object.attributes["cn"], Value::from("g"));
                    let values = branches.row_values(number, "member", 9)?;
                    for value in &values {
                        assert!(branches.has_row_value(number, "member", value)?, "{value}");
                    }
                    let items = match whole.object.attributes.get("member") {
                        Some(Value::List(items)) => {
                            items.iter().map(|item| item.as_text().expect("text").into()).collect()
                        }
                        Some(one) => vec![one.as_text().expect("text").into()],
                        None => Vec::<Box<str>>::new(),
                    };
                    let sorted = |mut values: Vec<Box<str>>| {
                        values.sort();
                        values
                    };
                    assert_eq!(sorted(items), sorted(values.clone()));
                    (*seen.lock(), *found.lock()) = (sorted(values), whole.revision);
                    Ok(())
                }
            };
            store.read(Box::new(job)).await.expect("looked");
            (seen.lock().iter().map(|value| value.to_string()).collect::<Vec<_>>(), *found.lock())
        };
        assert_eq!(seen().await, (vec!["cn=a".to_owned(), "cn=b".to_owned()], 1));
        witness.notifications();
        let key = |name: &str| EntryKey { index: "cn".into(), key: name.as_bytes().into() };
        change(store, move |tree| {
            let Some(EntryNode::Object(head)) = tree.reader().head(number)? else { panic!("it is gone") };
            let change = RowChange {
                name: "member".into(),
                added: vec!["cn=c".into()],
                removed: vec!["cn=a".into()],
                gone: Vec::new(),
                made: vec![key("c")],
            };
            tree.change_rows(&head, &change, NOW)?;
            assert!(tree.reader().is_found(&key("c"), number)? && !tree.reader().is_found(&key("d"), number)?);
            Ok(())
        })
        .await;
        assert_eq!(seen().await, (vec!["cn=b".to_owned(), "cn=c".to_owned()], 2));
        assert_eq!(witness.notifications(), [format!("{} c there", number.0)]);
        // Replacing the whole object replaces its members; removing it removes them.
        change(store, move |tree| {
            let Some(EntryNode::Object(whole)) = tree.reader().node(number)? else { panic!("it is gone") };
            let mut new = whole.object.clone();
            new.attributes.insert("member".to_owned(), members(&["cn=c", "cn=d"]));
            tree.change_object(&whole, new, NOW)
        })
        .await;
        assert_eq!(seen().await, (vec!["cn=c".to_owned(), "cn=d".to_owned()], 3));
        change(store, move |tree| {
            tree.remove(number, NOW)?;
            assert_eq!(tree.reader().row_values(number, "member", 9)?, Vec::<Box<str>>::new());
            Ok(())
        })
        .await;
    });
}
