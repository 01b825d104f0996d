use std::collections::HashMap;

use super::*;
use crate::collections::{Place, RowWrite};

const NOON: Timestamp = Timestamp::from_millis(1_700_000_000_000);

struct Bed {
    store: SqliteCollections,
    _folder: tempfile::TempDir,
}

impl Bed {
    fn new() -> Bed {
        let folder = tempfile::tempdir().expect("a folder");
        let options = CollectionsOptions { reserve_bytes: 0, readers: 1 };
        Bed { store: SqliteCollections::open(folder.path(), &options).expect("opens"), _folder: folder }
    }

    /// Writes a row of collection 1 for some keys; without a body it is removed.
    async fn write(&self, id: &str, body: Option<&str>, keys: &[KeyNumber]) {
        let (id, body, keys) = (Box::<str>::from(id), body.map(Box::<str>::from), keys.to_vec());
        let job = move |ledger: &mut Ledger<'_>| {
            let old = ledger.row(1, &id)?;
            let (author, seen, columns, joins) = (0, Stamp(0), None, Vec::new());
            ledger.write(old.as_ref(), &RowWrite { collection: 1, id, body, author, seen, columns, keys, joins })
        };
        self.store.write(NOON, job).await.expect("written");
    }

    /// What a device that goes from some keys to others is told, block by block.
    async fn told(
        &self,
        mut place: Place,
        before: &[KeyNumber],
        held: &[KeyNumber],
        rows_max: usize,
    ) -> (String, Place) {
        let mut lines = String::new();
        loop {
            let wanted = Wanted {
                place,
                collections: HashMap::from([(1, "notes".into())]),
                held: held.to_vec(),
                held_before: if place.moving.is_some() { before.to_vec() } else { Vec::new() },
                rows_max,
                bytes_max: 1 << 20,
            };
            let block = self.store.read_block(wanted).await.expect("read");
            for line in String::from_utf8(block.lines).expect("text").lines() {
                let (_, id, _, body): (String, String, Stamp, Option<serde_json::Value>) =
                    serde_json::from_str(line).expect("a line");
                let body = body.map_or("gone".to_owned(), |body| body["n"].to_string());
                lines.push_str(&format!("{id}={body} "));
            }
            place = block.place;
            if !block.more {
                return (lines.trim_end().to_owned(), place);
            }
        }
    }

    fn newest(&self) -> Stamp {
        *self.store.newest().borrow()
    }
}

#[tokio::test]
async fn a_device_reads_what_changed_for_its_keys_and_nothing_else() {
    let bed = Bed::new();
    for (id, key) in [("a", 1), ("b", 2), ("c", 1), ("d", 3)] {
        bed.write(id, Some(r#"{"n":1}"#), &[key]).await;
    }
    for rows_max in [1, 2, 100] {
        let start = Place::NOWHERE.begin_move(1, bed.newest());
        let (told, place) = bed.told(start, &[], &[1, 3], rows_max).await;
        assert_eq!(told, "a=1 c=1 d=1");
        assert_eq!((place.generation, place.sequence, place.moving), (1, bed.newest(), None));
    }
    let (_, place) = bed.told(Place::NOWHERE.begin_move(1, bed.newest()), &[], &[1, 3], 100).await;
    bed.write("a", Some(r#"{"n":2}"#), &[2]).await;
    bed.write("b", Some(r#"{"n":2}"#), &[1]).await;
    bed.write("c", Some(r#"{"n":2}"#), &[2, 3]).await;
    bed.write("d", None, &[]).await;
    bed.write("e", Some(r#"{"n":2}"#), &[1]).await;
    bed.write("e", None, &[]).await;
    for rows_max in [1, 2, 100] {
        // Nobody learns of `e` who could not have seen it; `c` stays with the other key.
        assert_eq!(bed.told(place, &[], &[1, 3], rows_max).await.0, "a=gone b=2 c=2 d=gone");
    }
}

#[tokio::test]
async fn keys_that_are_lost_take_their_rows_with_them() {
    let bed = Bed::new();
    for (id, keys) in [("a", &[1][..]), ("b", &[1, 2]), ("c", &[2]), ("d", &[3])] {
        bed.write(id, Some(r#"{"n":1}"#), keys).await;
    }
    let (_, place) = bed.told(Place::NOWHERE.begin_move(1, bed.newest()), &[], &[1, 2], 100).await;
    bed.write("late", Some(r#"{"n":1}"#), &[1]).await;
    bed.write("c", Some(r#"{"n":2}"#), &[2]).await;
    for rows_max in [1, 3, 100] {
        let moving = place.begin_move(2, bed.newest());
        let (told, after) = bed.told(moving, &[1, 2], &[2, 3], rows_max).await;
        assert_eq!(told, "a=gone c=2 d=1", "`b` stays by another key, `late` was never known");
        assert_eq!(after.generation, 2);
        assert_eq!(bed.told(after, &[], &[2, 3], rows_max).await.0, "");
    }
}

#[tokio::test]
async fn what_came_back_is_known_to_those_who_had_it() {
    let bed = Bed::new();
    bed.write("a", Some(r#"{"n":1}"#), &[1]).await;
    let (_, place) = bed.told(Place::NOWHERE.begin_move(1, bed.newest()), &[], &[1], 100).await;
    bed.write("a", None, &[]).await;
    bed.write("a", Some(r#"{"n":2}"#), &[1]).await;
    assert_eq!(bed.told(place, &[], &[1], 100).await.0, "a=2");
    bed.write("a", None, &[]).await;
    assert_eq!(bed.told(place, &[], &[1], 100).await.0, "a=gone");
    assert_eq!(bed.store.counts(), CollectionCounts { rows: 0, removed: 1, raised: 0 });
    let later = NOON + std::time::Duration::from_secs(60);
    let (_, after) = bed.told(place, &[], &[1], 100).await;
    assert!(!bed.store.prune(later, later, 100).await.expect("pruned"));
    assert!(after.is_known_since(bed.store.forgotten()), "it was told of all that is forgotten");
    assert_eq!(bed.store.counts(), CollectionCounts { rows: 0, removed: 0, raised: 0 });
    assert!(!place.is_known_since(bed.store.forgotten()));
}

#[tokio::test]
async fn nobody_begins_anew_where_nothing_was_removed() {
    let bed = Bed::new();
    let place = Place::NOWHERE.begin_move(1, bed.newest());
    let later = NOON + std::time::Duration::from_secs(60);
    assert!(!bed.store.prune(later, later, 100).await.expect("pruned"));
    assert!(place.is_known_since(bed.store.forgotten()), "a reading of nothing goes on");
}

#[tokio::test]
async fn generations_are_few_and_the_same_keys_make_none() {
    let bed = Bed::new();
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
    let number = bed.store.put_device(device.clone()).await.expect("made");
    assert_eq!(bed.store.devices().await.expect("listed"), [ReplicaDevice { number, ..device }]);
    for key in 1..=10 {
        assert_eq!(bed.store.put_keys(Timestamp::from_millis(1), number, vec![key]).await.expect("put"), key);
        assert_eq!(bed.store.put_keys(Timestamp::from_millis(1), number, vec![key]).await.expect("put"), key);
    }
    assert_eq!(bed.store.keys_of(number, 2).await.expect("read"), None);
    assert_eq!(bed.store.keys_of(number, 3).await.expect("read"), Some(vec![3]));
    assert_eq!(bed.store.device_state(number).await.expect("read").keys, [10]);
    bed.store.remove_device(number).await.expect("removed");
    assert!(matches!(bed.store.device_state(number).await, Err(StoreError::Missing(_))));
}
