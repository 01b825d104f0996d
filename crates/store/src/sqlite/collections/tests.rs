use std::collections::HashMap;

use super::*;
use tocsin_model::field::{Field, FieldType, Fields};

use crate::collections::{ReadCollection, ReplicaCursor, RowWrite};

const NOON: Timestamp = Timestamp::from_millis(1_700_000_000_000);

fn fields() -> Fields {
    Fields::new(vec![Field::new("n".parse().expect("a name"), FieldType::Integer)])
}

struct Fixture {
    store: SqliteCollections,
    _folder: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Fixture {
        let folder = tempfile::tempdir().expect("a folder");
        let options = CollectionsOptions { reserve_bytes: 0, readers: 1 };
        Fixture { store: SqliteCollections::open(folder.path(), &options).expect("opens"), _folder: folder }
    }

    /// Writes a row of collection 1 with some keys, or removes it if there is no body.
    async fn write(&self, id: &str, body: Option<&str>, keys: &[KeyNumber]) {
        let (id, body, keys) = (Box::<str>::from(id), body.map(Box::<str>::from), keys.to_vec());
        let job = move |transaction: &mut RowTransaction<'_>| {
            let old = transaction.row(1, &id)?;
            let (author, seen, columns, joins) = (0, Stamp(0), None, Vec::new());
            transaction.write(old.as_ref(), &RowWrite { collection: 1, id, body, author, seen, columns, keys, joins })
        };
        self.store.write(NOON, job).await.expect("written");
    }

    /// All changes for a device that changes from some keys to others, read block by block.
    async fn read_changes(
        &self,
        mut cursor: ReplicaCursor,
        before: &[KeyNumber],
        held: &[KeyNumber],
        rows_max: usize,
    ) -> (String, ReplicaCursor) {
        let mut lines = String::new();
        loop {
            let request = BlockRequest {
                cursor,
                collections: HashMap::from([(1, ReadCollection { name: "notes".into(), fields: fields() })]),
                held: held.to_vec(),
                held_before: if cursor.moving.is_some() { before.to_vec() } else { Vec::new() },
                rows_max,
                bytes_max: 1 << 20,
            };
            let block = self.store.read_block(request).await.expect("read");
            for line in String::from_utf8(block.lines).expect("text").lines() {
                let (_, id, _, body): (String, String, Stamp, Option<serde_json::Value>) =
                    serde_json::from_str(line).expect("a line");
                let body = body.map_or("removed".to_owned(), |body| body["n"].to_string());
                lines.push_str(&format!("{id}={body} "));
            }
            cursor = block.cursor;
            if !block.more {
                return (lines.trim_end().to_owned(), cursor);
            }
        }
    }

    fn newest(&self) -> Stamp {
        *self.store.newest().borrow()
    }
}

#[tokio::test]
async fn a_device_reads_only_changes_of_its_keys() {
    let fixture = Fixture::new();
    for (id, key) in [("a", 1), ("b", 2), ("c", 1), ("d", 3)] {
        fixture.write(id, Some(r#"{"n":1}"#), &[key]).await;
    }
    for rows_max in [1, 2, 100] {
        let start = ReplicaCursor::START.begin_move(1, fixture.newest());
        let (changes, cursor) = fixture.read_changes(start, &[], &[1, 3], rows_max).await;
        assert_eq!(changes, "a=1 c=1 d=1");
        assert_eq!((cursor.generation, cursor.sequence, cursor.moving), (1, fixture.newest(), None));
    }
    let (_, cursor) =
        fixture.read_changes(ReplicaCursor::START.begin_move(1, fixture.newest()), &[], &[1, 3], 100).await;
    fixture.write("a", Some(r#"{"n":2}"#), &[2]).await;
    fixture.write("b", Some(r#"{"n":2}"#), &[1]).await;
    fixture.write("c", Some(r#"{"n":2}"#), &[2, 3]).await;
    fixture.write("d", None, &[]).await;
    fixture.write("e", Some(r#"{"n":2}"#), &[1]).await;
    fixture.write("e", None, &[]).await;
    for rows_max in [1, 2, 100] {
        // The removal of `e` is not sent, since the device cannot know it; `c` stays with the other key.
        assert_eq!(fixture.read_changes(cursor, &[], &[1, 3], rows_max).await.0, "a=removed b=2 c=2 d=removed");
    }
}

#[tokio::test]
async fn rows_of_lost_keys_are_removed() {
    let fixture = Fixture::new();
    for (id, keys) in [("a", &[1][..]), ("b", &[1, 2]), ("c", &[2]), ("d", &[3])] {
        fixture.write(id, Some(r#"{"n":1}"#), keys).await;
    }
    let (_, cursor) =
        fixture.read_changes(ReplicaCursor::START.begin_move(1, fixture.newest()), &[], &[1, 2], 100).await;
    fixture.write("late", Some(r#"{"n":1}"#), &[1]).await;
    fixture.write("c", Some(r#"{"n":2}"#), &[2]).await;
    for rows_max in [1, 3, 100] {
        let moving = cursor.begin_move(2, fixture.newest());
        let (changes, after) = fixture.read_changes(moving, &[1, 2], &[2, 3], rows_max).await;
        assert_eq!(changes, "a=removed c=2 d=1", "`b` stays with another key, `late` was never sent");
        assert_eq!(after.generation, 2);
        assert_eq!(fixture.read_changes(after, &[], &[2, 3], rows_max).await.0, "");
    }
}

#[tokio::test]
async fn removals_of_recreated_rows_are_sent_to_devices_that_had_them() {
    let fixture = Fixture::new();
    fixture.write("a", Some(r#"{"n":1}"#), &[1]).await;
    let (_, cursor) = fixture.read_changes(ReplicaCursor::START.begin_move(1, fixture.newest()), &[], &[1], 100).await;
    fixture.write("a", None, &[]).await;
    fixture.write("a", Some(r#"{"n":2}"#), &[1]).await;
    assert_eq!(fixture.read_changes(cursor, &[], &[1], 100).await.0, "a=2");
    fixture.write("a", None, &[]).await;
    assert_eq!(fixture.read_changes(cursor, &[], &[1], 100).await.0, "a=removed");
    assert_eq!(fixture.store.counts(), CollectionCounts { rows: 0, removed: 1, raised: 0 });
    let later = NOON + std::time::Duration::from_secs(60);
    let (_, after) = fixture.read_changes(cursor, &[], &[1], 100).await;
    assert!(!fixture.store.prune(later, later, 100).await.expect("pruned"));
    assert!(after.is_known_since(fixture.store.forgotten()), "it has read all removals that were pruned");
    assert_eq!(fixture.store.counts(), CollectionCounts { rows: 0, removed: 0, raised: 0 });
    assert!(!cursor.is_known_since(fixture.store.forgotten()));
}

#[tokio::test]
async fn no_device_starts_again_if_nothing_was_removed() {
    let fixture = Fixture::new();
    let cursor = ReplicaCursor::START.begin_move(1, fixture.newest());
    let later = NOON + std::time::Duration::from_secs(60);
    assert!(!fixture.store.prune(later, later, 100).await.expect("pruned"));
    assert!(cursor.is_known_since(fixture.store.forgotten()), "a first read continues");
}

#[tokio::test]
async fn old_generations_are_removed_and_equal_keys_create_none() {
    let fixture = Fixture::new();
    let device = ReplicaDevice {
        number: 0,
        id: "d1".into(),
        application: "shop".parse().expect("a name"),
        subscriber: "ann".parse().expect("an id"),
        subscriber_number: tocsin_model::id::SubscriberNumber(7),
        name: "phone".into(),
        collections: None,
        may_write: true,
        hash: [1; 32],
        created_at: NOON,
        expires_at: None,
        wipe_at: None,
        wiped_at: None,
    };
    let number = fixture.store.put_device(device.clone()).await.expect("made");
    assert_eq!(fixture.store.devices().await.expect("listed"), [ReplicaDevice { number, ..device }]);
    for key in 1..=10 {
        assert_eq!(fixture.store.put_keys(Timestamp::from_millis(1), number, vec![key]).await.expect("put"), key);
        assert_eq!(fixture.store.put_keys(Timestamp::from_millis(1), number, vec![key]).await.expect("put"), key);
    }
    assert_eq!(fixture.store.keys_of(number, 2).await.expect("read"), None);
    assert_eq!(fixture.store.keys_of(number, 3).await.expect("read"), Some(vec![3]));
    assert_eq!(fixture.store.device_state(number).await.expect("read").keys, [10]);
    fixture.store.remove_device(number).await.expect("removed");
    assert!(matches!(fixture.store.device_state(number).await, Err(StoreError::Missing(_))));
}

#[tokio::test]
async fn an_erased_person_leaves_nothing_but_the_order_to_its_devices() {
    let fixture = Fixture::new();
    let folder = fixture._folder.path().to_owned();
    let key = |id: &str| format!(r#"["shop",[["id","{id}"]],null]"#);
    let texts = vec![key("ann-7f3a91"), key("bob-1"), r#"["shop",[["attributes.region","north"]],null]"#.to_owned()];
    let mut keys = Vec::new();
    for text in texts {
        keys.push(fixture.store.key_numbers(vec![text]).await.expect("made")[0]);
    }
    let [ann, bob, north] = keys[..] else { panic!("three keys") };
    let collections = vec!["notes".parse().expect("a name")];
    fixture.store.collection_numbers("shop".parse().expect("a name"), collections).await.expect("made");
    let own = r#"{"n":1,"owner":"ann-7f3a91","note":"needle 7f3a91"}"#;
    fixture.write("own-7f3a91", Some(own), &[ann]).await;
    fixture.write("gone-7f3a91", Some(own), &[ann]).await;
    fixture.write("gone-7f3a91", None, &[]).await;
    fixture.write("shared", Some(r#"{"n":2,"to":["ann-7f3a91","bob-1"]}"#), &[ann, bob]).await;
    fixture.write("team", Some(r#"{"n":3,"by":"ann-7f3a91"}"#), &[north]).await;
    fixture.write("other", Some(r#"{"n":4,"by":"bob-1"}"#), &[bob, north]).await;
    let (_, cursor) =
        fixture.read_changes(ReplicaCursor::START.begin_move(1, fixture.newest()), &[], &[bob, north], 100).await;
    let device = ReplicaDevice {
        number: 0,
        id: "d1".into(),
        application: "shop".parse().expect("a name"),
        subscriber: "ann-7f3a91".parse().expect("an id"),
        subscriber_number: tocsin_model::id::SubscriberNumber(7),
        name: "phone 7f3a91".into(),
        collections: None,
        may_write: true,
        hash: [1; 32],
        created_at: NOON,
        expires_at: None,
        wipe_at: None,
        wiped_at: None,
    };
    let number = fixture.store.put_device(device).await.expect("made");
    fixture.store.put_keys(NOON, number, vec![ann]).await.expect("put");
    let session = PastSession {
        device: number,
        began_at: NOON,
        ended_at: NOON,
        outcome: "done".into(),
        tally: Default::default(),
    };
    fixture.store.put_session(session).await.expect("stored");
    let conflict = Conflict {
        number: 0,
        collection: 1,
        row: "own-7f3a91".into(),
        at: NOON,
        device: number,
        resolver: "server".into(),
        winner: "server".into(),
        base: r#"{"note":"needle 7f3a91"}"#.into(),
        server: own.into(),
        client: "null".into(),
        reverted_at: None,
    };
    let raised = RaisedEvent {
        stamp: fixture.newest(),
        class: "changed".parse().expect("a name"),
        event: r#"{"owner":"ann-7f3a91"}"#.into(),
    };
    let log = move |transaction: &mut RowTransaction<'_>| {
        transaction.raise(&"shop".parse().expect("a name"), &raised)?;
        transaction.log_conflict(&conflict)
    };
    fixture.store.write(NOON, log).await.expect("written");
    let holds = |needle: &str| {
        let files = std::fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry").path());
        let has = |bytes: Vec<u8>| bytes.windows(needle.len()).any(|window| window == needle.as_bytes());
        files.filter(|file| has(std::fs::read(file).expect("a file"))).count()
    };
    assert!(holds("7f3a91") > 0);
    let names = crate::journal::PersonNames::new(["ann-7f3a91".to_owned()]);
    let found = fixture.store.rows_naming(&names).await.expect("read");
    assert_eq!(found.len(), 3, "{found:?}");

    for _ in 0..2 {
        fixture.store.erase(tocsin_model::id::SubscriberNumber(7), &names, NOON).await.expect("erased");
        assert_eq!(holds("7f3a91"), 0);
    }
    let body = async |id: &str| fixture.store.row(1, id).await.expect("read").and_then(|row| row.body);
    assert_eq!(body("shared").await.as_deref(), Some(r#"{"n":2,"to":["erased","bob-1"]}"#));
    assert_eq!(body("other").await.as_deref(), Some(r#"{"n":4,"by":"bob-1"}"#));
    assert_eq!(fixture.store.row(1, "own-7f3a91").await.expect("read"), None);
    // Devices of others receive the rows without the names.
    assert_eq!(fixture.read_changes(cursor, &[], &[bob, north], 100).await.0, "shared=2 team=3");
    let left = fixture.store.devices().await.expect("listed").remove(0);
    assert_eq!(
        (left.subscriber.as_str(), &*left.name, left.wipe_at, left.may_write),
        ("erased", "erased", Some(NOON), false)
    );
    assert_eq!(fixture.store.counts(), CollectionCounts { rows: 3, removed: 0, raised: 0 });
}
