use bytes::Bytes;
use tocsin_model::exchange::TrackPoint;

use super::*;
use crate::tracking::{BodyChange, Packer, PlainBodies};

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}

fn open(folder: &Path, bytes_max: u64) -> SqliteTracking {
    SqliteTracking::open(folder, &TrackingOptions { reserve_bytes: 0, bytes_max }).expect("the file opens")
}

fn body(message: u64, point: TrackPoint, second: i64, text: &str) -> TrackedBody {
    TrackedBody {
        message: MessageId(message),
        point,
        port: name("intake"),
        attempt: (point == TrackPoint::Sent).then_some((0, 1)),
        at: Timestamp::from_millis(second * 1_000),
        content_type: "text/plain".into(),
        bytes: text.len() as u64,
        change: None,
        body: Bytes::copy_from_slice(text.as_bytes()),
    }
}

fn bodies(all: &[TrackedBody]) -> Entries {
    let mut plain = PlainBodies::default();
    for body in all {
        plain.push(body);
    }
    Entries::Bodies(plain.pack(&mut Packer::default()))
}

fn block(goes_at: i64, entries: Entries) -> NewBlock {
    NewBlock { exchange: name("orders"), goes_at: Timestamp(goes_at), entries }
}

fn findable(message: u64, at: i64, value: &str) -> IndexedProperties {
    IndexedProperties {
        message: MessageId(message),
        at: Timestamp(at),
        properties: vec![(name("order"), value.into())],
    }
}

/// Removes blocks whose retention ends at 100.
async fn remove_expired(tracking: &SqliteTracking) {
    let over = tracking.expired_blocks(Timestamp(100)).await.expect("read");
    tracking.replace(over.iter().map(|block| block.id).collect(), Vec::new()).await.expect("removed");
}

fn search(value: &str) -> PropertySearch {
    PropertySearch {
        exchange: name("orders"),
        property: name("order"),
        value: value.into(),
        since: Timestamp(0),
        until: Timestamp(i64::MAX),
        after: None,
    }
}

#[test]
fn bodies_are_found_by_message_until_their_retention_ends() {
    let folder = tempfile::tempdir().expect("a folder");
    let tracking = open(folder.path(), 1 << 20);
    block_on(async {
        let first = body(1, TrackPoint::Received, 1, "hello");
        let cut = TrackedBody { change: Some(BodyChange::Cut), ..body(1, TrackPoint::Sent, 2, "hel") };
        let (other, late) = (body(2, TrackPoint::Received, 1, ""), body(1, TrackPoint::Replied, 9, "bye"));
        let early = bodies(&[cut.clone(), other.clone(), first.clone()]);
        let blocks = vec![block(100, early), block(200, bodies(std::slice::from_ref(&late)))];
        assert_eq!(tracking.store_blocks(blocks).await.expect("kept"), 0);
        assert_eq!(tracking.bodies(MessageId(1)).await.expect("read"), [first, cut, late.clone()]);
        assert_eq!(tracking.bodies(MessageId(2)).await.expect("read"), [other]);
        let full = tracking.bytes();
        remove_expired(&tracking).await;
        assert!(tracking.bytes() < full && tracking.bytes() > 0);
        assert_eq!(tracking.bodies(MessageId(1)).await.expect("read"), [late]);
        assert!(tracking.bodies(MessageId(2)).await.expect("read").is_empty());
    });
    let bytes = tracking.bytes();
    drop(tracking);
    assert_eq!(open(folder.path(), 1 << 20).bytes(), bytes);
}

#[test]
fn a_repeated_body_of_a_message_is_stored_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let tracking = open(folder.path(), 1 << 20);
    let (order, answer) = ("o".repeat(1_000), "a".repeat(1_000));
    let all = [
        body(1, TrackPoint::Received, 1, &order),
        body(2, TrackPoint::Received, 2, &order),
        body(1, TrackPoint::Sent, 3, &order),
        TrackedBody { attempt: Some((0, 2)), ..body(1, TrackPoint::Sent, 4, &order) },
        body(1, TrackPoint::Replied, 5, &answer),
        body(2, TrackPoint::Sent, 6, ""),
        body(2, TrackPoint::Replied, 7, &order),
        body(1, TrackPoint::Returned, 8, &answer),
        body(2, TrackPoint::Returned, 9, "else"),
        body(2, TrackPoint::Returned, 10, "else"),
    ];
    let mut plain = PlainBodies::default();
    let mut packer = Packer::default();
    for _ in 0..2 {
        let new: Vec<bool> = all.iter().map(|body| plain.push(body) >= 1_000).collect();
        assert_eq!(new, [true, true, false, false, true, false, true, false, false, false]);
        let entries = Entries::Bodies(plain.pack(&mut packer));
        block_on(async {
            tracking.store_blocks(vec![block(100, entries)]).await.expect("kept");
            for message in [1, 2] {
                let mut expected = all.to_vec();
                expected.retain(|body| body.message == MessageId(message));
                assert_eq!(tracking.bodies(MessageId(message)).await.expect("read"), expected);
            }
            remove_expired(&tracking).await;
        });
    }
}

#[test]
fn a_reference_to_a_missing_body_is_damage() {
    for before in ["0", "1", "4294967295"] {
        let head = format!(r#"[1,"sent","intake",null,1,"text/plain",5,null,{before}]"#);
        let packed = packing::packed_head(&head);
        let found = packing::bodies(&packed);
        assert!(matches!(found, Err(StoreError::Damaged(_))), "{before}: {found:?}");
    }
}

#[test]
fn messages_are_found_by_value_and_time_page_by_page() {
    let folder = tempfile::tempdir().expect("a folder");
    let tracking = open(folder.path(), 1 << 20);
    block_on(async {
        let many = (1..=5).map(|message| findable(message, i64::try_from(message).expect("small") * 10, "7"));
        let entries = Entries::Properties(many.chain([findable(9, 30, "8")]).collect());
        tracking.store_blocks(vec![block(100, entries)]).await.expect("kept");
        let ids = |found: Vec<(Timestamp, MessageId)>| found.into_iter().map(|(_, id)| id.0).collect::<Vec<_>>();
        let first = tracking.find(search("7"), 2).await.expect("found");
        assert_eq!(ids(first.clone()), [5, 4]);
        let next = PropertySearch { after: first.last().copied(), ..search("7") };
        assert_eq!(ids(tracking.find(next, 9).await.expect("found")), [3, 2, 1]);
        let within = PropertySearch { since: Timestamp(20), until: Timestamp(40), ..search("7") };
        assert_eq!(ids(tracking.find(within, 9).await.expect("found")), [3, 2]);
        assert_eq!(tracking.progress(&name("orders")).await.expect("read"), Some(MessageId(9)));
        remove_expired(&tracking).await;
        assert!(tracking.find(search("7"), 9).await.expect("found").is_empty());
    });
}

#[test]
fn blocks_with_existing_messages_replace_expired_blocks() {
    let folder = tempfile::tempdir().expect("a folder");
    let tracking = open(folder.path(), 1 << 20);
    block_on(async {
        let one = block(100, Entries::Properties(vec![findable(1, 10, "7"), findable(2, 20, "7")]));
        let bodies = bodies(&[body(3, TrackPoint::Received, 1, "hello")]);
        tracking
            .store_blocks(vec![block(90, bodies), one, block(101, Entries::Properties(vec![findable(4, 30, "7")]))])
            .await
            .expect("kept");
        let over = tracking.expired_blocks(Timestamp(100)).await.expect("read");
        let messages: Vec<Vec<u64>> =
            over.iter().map(|block| block.findable.iter().map(|found| found.message.0).collect()).collect();
        assert_eq!(messages, [vec![], vec![1, 2]]);
        let ids = over.iter().map(|block| block.id).collect();
        tracking
            .replace(ids, vec![block(200, Entries::Properties(vec![findable(2, 20, "7")]))])
            .await
            .expect("replaced");
        let found = tracking.find(search("7"), 9).await.expect("found");
        assert_eq!(found.into_iter().map(|(_, id)| id.0).collect::<Vec<_>>(), [4, 2]);
        assert!(tracking.expired_blocks(Timestamp(100)).await.expect("read").is_empty());
        assert!(tracking.bodies(MessageId(3)).await.expect("read").is_empty());
    });
    let bytes = tracking.bytes();
    drop(tracking);
    assert_eq!(open(folder.path(), 1 << 20).bytes(), bytes);
}

#[test]
fn blocks_above_the_limit_are_removed_early() {
    let folder = tempfile::tempdir().expect("a folder");
    let tracking = open(folder.path(), 1_000);
    block_on(async {
        let noise = |message| {
            let text: String =
                (0..600).map(|at: u64| char::from(33 + ((at * 7919 + message * 104_729) % 90) as u8)).collect();
            block(message as i64, bodies(&[body(message, TrackPoint::Received, 1, &text)]))
        };
        let mut gone = 0;
        for message in 1..=20 {
            gone += tracking.store_blocks(vec![noise(message)]).await.expect("kept");
            assert!(tracking.bytes() <= 1_000, "{}", tracking.bytes());
        }
        assert!(gone > 0);
        assert!(tracking.bodies(MessageId(1)).await.expect("read").is_empty(), "the oldest was removed");
        assert_eq!(tracking.bodies(MessageId(20)).await.expect("read").len(), 1);
    });
}

#[test]
fn settings_are_stored() {
    let folder = tempfile::tempdir().expect("a folder");
    let tracking = open(folder.path(), 1 << 20);
    let switch = TrackSwitch { points: vec![TrackPoint::Sent], sample_percent: 5 };
    block_on(async {
        let places = [TrackPlace::Exchange, TrackPlace::Route(name("b")), TrackPlace::Ports(name("b"))];
        for place in &places {
            tracking.set(name("orders"), place.clone(), Some(switch.clone())).await.expect("stored");
        }
        tracking.set(name("orders"), TrackPlace::Ports(name("b")), None).await.expect("stored");
        let expected = [0, 1].map(|at: usize| SetTracking {
            exchange: name("orders"),
            place: places[at].clone(),
            switch: switch.clone(),
        });
        assert_eq!(tracking.switches().await.expect("read"), expected);
    });
}

#[test]
fn bodies_in_files_of_the_first_version_are_still_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let old = [body(20_000, TrackPoint::Received, 1, "hello"), body(20_016, TrackPoint::Received, 1, "bye")];
    {
        let file = Connection::open(folder.path().join("tracking.db")).expect("a new file");
        file.execute_batch(MIGRATIONS[0]).expect("the first schema");
        let packed = packing::packed_as_objects(&old);
        let row = (1, "orders", BODIES, 100, packed.len(), &packed);
        file.execute("INSERT INTO blocks VALUES (?1, ?2, ?3, ?4, ?5, ?6)", row).expect("a block");
        for body in &old {
            file.execute("INSERT INTO places VALUES (?1, 1)", [body.message.0]).expect("its place");
        }
        file.pragma_update(None, "user_version", 1).expect("its version");
    }
    let tracking = open(folder.path(), 1 << 20);
    block_on(async {
        for body in &old {
            assert_eq!(tracking.bodies(body.message).await.expect("read"), std::slice::from_ref(body));
        }
        assert!(tracking.bodies(MessageId(20_032)).await.expect("read").is_empty(), "its stretch has other messages");
        remove_expired(&tracking).await;
        assert_eq!(tracking.bytes(), 0);
        assert!(tracking.bodies(old[0].message).await.expect("read").is_empty());
    });
}

#[test]
fn a_damaged_file_is_set_aside_and_a_new_one_begins() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tracking.db");
    for text in ["no database at all, but a text", "damaged once more"] {
        std::fs::write(&file, text.repeat(200)).expect("written");
        let tracking = open(folder.path(), 1 << 20);
        assert_eq!(tracking.bytes(), 0);
        let bodies = bodies(&[body(1, TrackPoint::Received, 1, "kept")]);
        block_on(tracking.store_blocks(vec![block(100, bodies)])).expect("it can be written");
        drop(tracking);
        let kept = std::fs::read_to_string(folder.path().join("tracking.db.damaged")).expect("it is kept");
        assert!(kept.starts_with(text), "{kept}");
        for ending in ["", "-wal", "-shm"] {
            let leftover = folder.path().join(format!("tracking.db{ending}"));
            if leftover.exists() {
                std::fs::remove_file(leftover).expect("removed");
            }
        }
    }
}
