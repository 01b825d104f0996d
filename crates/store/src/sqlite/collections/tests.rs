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
