//! Partitions: their number, and the messages in them.

use super::*;

/// Accepts a message with an idempotency key and one waiting leg, and returns its id and the result.
async fn keyed(spool: &SqliteSpool, key: &str) -> (MessageId, MessageAcceptance) {
    let (exchange, port) = (name("orders"), name("intake"));
    let partition = spool.partition_for(&exchange, &port, PartitionAffinity::Key(key)).await.expect("known");
    let key = Some(IdempotencyKey { key: key.into(), digest: [7; 32] });
    let new = NewMessage { id: spool.next_id(partition), key, ..message(spool, MessageKind::OneWay, &["notify"]) };
    (new.id, spool.accept(new).await.expect("stored"))
}

/// Accepts a message received by a location of a port, with a checkpoint.
async fn accept_received(spool: &SqliteSpool, port: &str, mark: &'static [u8]) -> MessageId {
    let home = spool.partition_for(&name("orders"), &name(port), PartitionAffinity::Port).await.expect("known");
    let whole =
        NewMessage { id: spool.next_id(home), port: name(port), ..message(spool, MessageKind::OneWay, &["notify"]) };
    let id = whole.id;
    let messages = vec![ReceivedMessage { whole, parts: None, gather: None }];
    spool.accept_received(location(port), messages, vec![Mark::set("at", mark)]).await.expect("stored");
    id
}

fn location(port: &str) -> LocationKey {
    LocationKey { exchange: name("orders"), port: name(port), location: name("drop") }
}

async fn mark_of(spool: &SqliteSpool, port: &str) -> Option<Bytes> {
    spool.location_marks(location(port)).await.expect("read").pop().and_then(|mark| mark.value)
}

#[test]
fn after_more_partitions_existing_messages_are_still_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let keys: Vec<String> = (0..20).map(|number| format!("k{number}")).collect();
    let mut known = HashMap::new();
    for (turn, count) in [1, 3, 5, 16].into_iter().enumerate() {
        let spool = open_with(folder.path(), count).expect("the files open");
        let mut last = known.values().copied().max().unwrap_or(MessageId(0));
        block_on(async {
            spool.put_exchange(name("orders"), "text".into(), "ann".into(), at(0)).await.expect("stored");
            for (at, key) in keys.iter().enumerate() {
                let (id, accepted) = keyed(&spool, key).await;
                assert!(id > last, "ids rise");
                last = id;
                match known.get(key) {
                    Some(known) => {
                        assert_eq!(accepted, MessageAcceptance::Known(*known), "{key} with {count} partitions")
                    }
                    None if at % 4 == turn => {
                        assert_eq!(accepted, MessageAcceptance::New);
                        known.insert(key.clone(), id);
                    }
                    None => assert_eq!(accepted, MessageAcceptance::New),
                }
                if !known.contains_key(key) {
                    // Its turn comes later: remove it completely.
                    spool.end(vec![id], "op", Timestamp(0)).await.expect("ended");
                    assert_eq!(spool.prune(Timestamp(0) + Duration::from_secs(100), 10).await.expect("removed"), 1);
                }
            }
            for port in ["one", "two", "three"] {
                let before = mark_of(&spool, port).await;
                assert_eq!(before.is_some(), turn > 0, "{port} with {count} partitions");
                known.insert(format!("{port} {turn}"), accept_received(&spool, port, b"here").await);
            }
            let mut ids: Vec<MessageId> = known.values().copied().collect();
            ids.sort_unstable();
            for id in &ids {
                assert_eq!(spool.message(*id).await.expect("read").expect("it stays in its partition").id, *id);
            }
            assert_eq!(due(&spool, "notify", 0).await, ids, "all are due, in order");
            assert_eq!(spool.counts().open, ids.len() as u64);
            let newest = spool.messages(MessageFilter::default(), None, 5).await.expect("read");
            let newest: Vec<MessageId> = newest.into_iter().map(|message| message.id).collect();
            assert_eq!(newest, ids.iter().rev().take(5).copied().collect::<Vec<_>>());
            let open = spool.load_by_partition().into_iter().filter(|(_, load)| load.open > 0).count();
            assert!(turn == 0 || open > 1, "{open} of {count} partitions have messages");
        });
    }
    assert!(FILES.iter().all(|file| folder.path().join(file).exists()));
}

#[test]
fn ids_removed_before_a_migration_are_not_reused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = Connection::open(folder.path().join("spool.db")).expect("a file");
    const BEFORE: usize = 8;
    for migration in &MIGRATIONS[..BEFORE] {
        file.execute_batch(migration).expect("a schema");
    }
    file.pragma_update(None, "user_version", BEFORE as i64).expect("a version");
    file.execute_batch(
        "CREATE TABLE probe (one INTEGER PRIMARY KEY, count INTEGER NOT NULL) STRICT;
         INSERT INTO messages (id, exchange, port, kind, head, bytes, accepted_at, open, kept)
         VALUES (40, 'orders', 'in', 0, '{}', 0, 0, 0, 0), (41, 'orders', 'in', 0, '{}', 0, 0, 0, 0);
         INSERT INTO bodies VALUES (40, x''), (41, x'');
         DELETE FROM messages WHERE id = 41",
    )
    .expect("messages");
    drop(file);
    let spool = open(folder.path());
    assert_eq!(spool.next_id(PartitionNumber(0)), MessageId(42));
    block_on(async {
        let new = message(&spool, MessageKind::OneWay, &["notify"]);
        spool.accept(new.clone()).await.expect("stored");
        spool.settle(outcome(new.id, 0, 1, LegTransition::Done(None))).await.expect("stored");
        let message = spool.message(MessageId(40)).await.expect("read").expect("it is there");
        assert_eq!(message.exchange, name("orders"));
        while spool.prune(at(200), 10).await.expect("removed") > 0 {}
        assert_eq!(spool.message(new.id).await.expect("read"), None);
    });
    drop(spool);
    assert_eq!(open(folder.path()).next_id(PartitionNumber(0)), MessageId(44), "43 was removed");
    let file = Connection::open(folder.path().join("spool.db")).expect("the file");
    let sound: String = file.query_row("PRAGMA integrity_check", (), |row| row.get(0)).expect("looked");
    assert_eq!(sound, "ok");
    let sql = "SELECT count(*) FROM sqlite_schema WHERE name = 'messages' AND sql LIKE '%AUTOINCREMENT%'";
    assert_eq!(file.query_row(sql, (), |row| row.get::<_, i64>(0)).expect("looked"), 0);
}

#[test]
fn empty_partitions_are_removed_and_ids_are_not_reused() {
    let folder = tempfile::tempdir().expect("a folder");
    let spool = open_with(folder.path(), 3).expect("the files open");
    let id = block_on(async {
        spool.put_exchange(name("orders"), "text".into(), "ann".into(), at(0)).await.expect("stored");
        for port in ["one", "two", "three", "four"] {
            let id = accept_received(&spool, port, b"there").await;
            spool.settle(outcome(id, 0, 1, LegTransition::Done(None))).await.expect("stored");
        }
        let new = message(&spool, MessageKind::OneWay, &["notify"]);
        let new = NewMessage { id: spool.next_id(PartitionNumber(2)), ..new };
        spool.accept(new.clone()).await.expect("stored");
        new.id
    });
    drop(spool);
    let refused = open_with(folder.path(), 2).err().expect("it is not empty").to_string();
    assert!(refused.contains("spool-2.db has") && refused.contains("1 of them open"), "{refused}");
    assert!(refused.contains("start with 3 partitions or more"), "{refused}");
    let spool = open_with(folder.path(), 3).expect("nothing was changed");
    let last = block_on(async {
        spool.settle(outcome(id, 0, 1, LegTransition::Done(None))).await.expect("stored");
        while spool.prune(at(200), 10).await.expect("removed") > 0 {}
        spool.next_id(PartitionNumber(2))
    });
    drop(spool);
    let spool = open_with(folder.path(), 1).expect("they are empty");
    assert!(!folder.path().join("spool-1.db").exists() && !folder.path().join("spool-2.db").exists());
    block_on(async {
        for port in ["one", "two", "three", "four"] {
            assert_eq!(
                mark_of(&spool, port).await.as_deref(),
                Some(&b"there"[..]),
                "the checkpoint of {port} is unchanged"
            );
            accept_received(&spool, port, b"further").await;
        }
        assert!(spool.next_id(PartitionNumber(0)) > id);
        assert_eq!(spool.message(last).await.expect("read"), None, "the partition was removed");
    });
    drop(spool);
    let spool = open_with(folder.path(), 3).expect("there is room again");
    block_on(async { assert_eq!(mark_of(&spool, "two").await.as_deref(), Some(&b"further"[..])) });
}

#[test]
fn missing_files_and_invalid_partition_counts_are_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    for wrong in [0, 17] {
        let error = open_with(folder.path(), wrong).err().expect("refused").to_string();
        assert!(error.contains("1 to 16 partitions"), "{error}");
    }
    drop(open_with(folder.path(), 2).expect("the files open"));
    std::fs::remove_file(folder.path().join("spool-1.db")).expect("removed");
    for count in [1, 2, 3] {
        let error = open_with(folder.path(), count).err().expect("refused");
        assert!(matches!(&error, StoreError::Damaged(text) if text.contains("spool-1.db")), "{error}");
    }
}

/// After a crash at any step of a change of the partition count, the next start completes or repeats it, and no
/// checkpoint goes back.
#[test]
fn an_interrupted_change_of_partitions_is_completed_or_repeated() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |file: &str| folder.path().join(file);
    let copy = |from: &str, to: &str| {
        for ending in ["", "-wal"] {
            let _ = std::fs::remove_file(path(&format!("{to}{ending}")));
            if path(&format!("{from}{ending}")).exists() {
                std::fs::copy(path(&format!("{from}{ending}")), path(&format!("{to}{ending}"))).expect("copied");
            }
        }
    };
    let ports = ["one", "two", "three", "four", "five"];
    let all_say = |spool: &SqliteSpool, expected: &[u8]| {
        for port in ports {
            assert_eq!(block_on(mark_of(spool, port)).as_deref(), Some(expected), "{port}");
        }
    };
    // A partition file exists that the layout does not list.
    drop(open(folder.path()));
    copy("spool.db", "spool-1.db");
    let spool = open(folder.path());
    assert!(!path("spool-1.db").exists());
    drop(spool);
    copy("spool.db", "spool-1.db");
    let spool = open_with(folder.path(), 2).expect("the files open");
    block_on(async {
        spool.put_exchange(name("orders"), "text".into(), "ann".into(), at(0)).await.expect("stored");
        for port in ports {
            let id = accept_received(&spool, port, b"there").await;
            spool.settle(outcome(id, 0, 1, LegTransition::Done(None))).await.expect("stored");
        }
        while spool.prune(at(200), 10).await.expect("removed") > 0 {}
    });
    drop(spool);
    // A partition was removed from the layout, but its file still exists.
    copy("spool-1.db", "kept");
    let spool = open(folder.path());
    all_say(&spool, b"there");
    block_on(async {
        for port in ports {
            let id = accept_received(&spool, port, b"further").await;
            spool.settle(outcome(id, 0, 1, LegTransition::Done(None))).await.expect("stored");
        }
    });
    drop(spool);
    for count in [2, 1, 3] {
        copy("kept", "spool-1.db");
        all_say(&open_with(folder.path(), count).expect("the files open"), b"further");
    }
}

/// A spool without partitions becomes the first partition; its messages stay there.
#[test]
fn a_spool_with_one_file_becomes_the_first_partition() {
    let folder = tempfile::tempdir().expect("a folder");
    let ports = ["one", "two", "three", "four", "five"];
    let spool = open(folder.path());
    let (ids, key) = block_on(async {
        spool.put_exchange(name("orders"), "text".into(), "ann".into(), at(0)).await.expect("stored");
        let mut ids = Vec::new();
        for port in ports {
            ids.push(accept_received(&spool, port, b"there").await);
        }
        (ids, keyed(&spool, "k").await.0)
    });
    drop(spool);
    let file = Connection::open(folder.path().join("spool.db")).expect("a file");
    let before = "DROP TABLE audit; DROP TABLE layout; DROP TABLE layouts_before; DROP TABLE homes; DROP TABLE taken_ids; DROP INDEX \
                  legs_that_await; DROP INDEX legs_awaiting; ALTER TABLE legs DROP COLUMN through; ALTER TABLE legs DROP \
                  COLUMN awaits; DROP TABLE history; DROP INDEX messages_by_key; ALTER TABLE messages DROP COLUMN sender; \
                  CREATE UNIQUE INDEX messages_by_key ON messages (exchange, port, key) WHERE key IS NOT NULL";
    file.execute_batch(before).expect("the earlier schema");
    file.pragma_update(None, "user_version", 7).expect("the earlier version");
    drop(file);
    let spool = open_with(folder.path(), 4).expect("it is migrated");
    block_on(async {
        for (port, id) in ports.into_iter().zip(ids) {
            assert_eq!(mark_of(&spool, port).await.as_deref(), Some(&b"there"[..]), "{port}");
            assert_eq!(spool.partition_of(id), PartitionNumber(0));
            assert_eq!(spool.message(id).await.expect("read").expect("there").port, name(port));
        }
        assert_eq!(keyed(&spool, "k").await.1, MessageAcceptance::Known(key));
    });
}

#[test]
fn aggregated_messages_stay_in_one_partition_and_replies_are_stored_with_their_requests() {
    let folder = tempfile::tempdir().expect("a folder");
    let spool = open_with(folder.path(), 4).expect("the files open");
    block_on(async {
        let gather = AggregationRule {
            key: "k".into(),
            form: "f".into(),
            count_max: 3,
            bytes_max: 1_000,
            within: Duration::from_secs(60),
            closes: false,
        };
        let mut members = Vec::new();
        for _ in 0..3 {
            let home =
                spool.partition_for(&name("orders"), &name("intake"), PartitionAffinity::Port).await.expect("known");
            let new = NewMessage { id: spool.next_id(home), ..message(&spool, MessageKind::OneWay, &[]) };
            members.push(new.id);
            let taken = ReceivedMessage { whole: new, parts: None, gather: Some(gather.clone()) };
            spool.accept(taken).await.expect("stored");
        }
        let (groups, next) = spool.due_groups(&[name("orders")], at(0), 10).await.expect("read");
        assert_eq!((groups.len(), next), (1, None), "they are one group");
        let gathered = spool.group_messages(&groups[0]).await.expect("read");
        assert_eq!(gathered.iter().map(|(id, ..)| *id).collect::<Vec<_>>(), members);
        let whole = message(&spool, MessageKind::OneWay, &["notify"]);
        let whole = NewMessage { id: spool.next_id(groups[0].partition), ..whole };
        assert!(spool.assemble(&groups[0], members, whole).await.expect("stored"));
        assert_eq!(spool.counts().open, 1);
        for number in 0..4 {
            let request = message(&spool, MessageKind::Request, &["ask"]);
            let request = NewMessage { id: spool.next_id(PartitionNumber(number)), ..request };
            spool.accept(request.clone()).await.expect("stored");
            let partition = spool.partition_of(request.id);
            let answer = reply(&spool, request.id).map(|reply| NewMessage { id: spool.next_id(partition), ..*reply });
            let done = LegTransition::Done(answer.map(Box::new));
            assert_eq!(spool.settle(outcome(request.id, 0, 1, done)).await.expect("stored"), SettleResult::Answered);
        }
        // Each partition ends its expired messages; the result contains all of them.
        let mut waiting = Vec::new();
        for number in 0..4 {
            let request = message(&spool, MessageKind::Request, &["ask"]);
            let request = NewMessage { id: spool.next_id(PartitionNumber(number)), ..request };
            waiting.push(request.id);
            spool.accept(request).await.expect("stored");
        }
        let mut expired = spool.expire(at(60), 10).await.expect("ended").expired;
        expired.sort_unstable();
        assert_eq!(expired, waiting);
    });
}

/// For random outcomes of legs, several partitions return legs in the same order as one.
#[test]
fn legs_of_several_partitions_are_read_in_the_order_of_one() {
    let seed = std::env::var("SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    let cases = std::env::var("CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(4);
    println!("SEED={seed} CASES={cases}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..cases {
        let (one, several) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let spools = [open(one.path()), open_with(several.path(), random.u8(2..6)).expect("the files open")];
        block_on(compare(&spools, &mut random));
    }
}

async fn compare(spools: &[SqliteSpool; 2], random: &mut fastrand::Rng) {
    let (exchange, port) = (name("orders"), name("notify"));
    // The ids of each message in both spools.
    let mut ids: Vec<[MessageId; 2]> = Vec::new();
    for turn in 0..120 {
        for _ in 0..random.usize(1..4) {
            let (lane, ahead) = match random.u8(0..8) {
                0 => (None, None),
                1 => (None, Some(Duration::from_secs(random.u64(0..9)))),
                lane => (Some(format!("lane {lane}")), None),
            };
            let (received_at, body) = (at(turn), Bytes::from(vec![b'x'; random.usize(1..40)]));
            let mut pair = [MessageId(0); 2];
            for (spool, id) in spools.iter().zip(&mut pair) {
                *id = spool
                    .next_id(spool.partition_for(&exchange, &port, PartitionAffinity::Nothing).await.expect("known"));
                let mut new = message(spool, MessageKind::OneWay, &["notify"]);
                (new.id, new.body, new.accepted_at) = (*id, body.clone(), received_at);
                (new.legs[0].lane, new.legs[0].ahead) = (lane.clone(), ahead);
                spool.accept(new).await.expect("stored");
            }
            ids.push(pair);
        }
        let (chosen, kind, later) = (random.usize(..ids.len()), random.u8(0..4), random.i64(0..60));
        for (at_spool, spool) in spools.iter().enumerate() {
            let id = ids[chosen][at_spool];
            let then = match kind {
                0 => LegTransition::Done(None),
                1 => LegTransition::Retry(at(turn + later)),
                2 => LegTransition::Suspend(None),
                _ => {
                    spool.resume_legs(vec![(id, 0)], "op", at(turn)).await.expect("stored");
                    continue;
                }
            };
            spool.settle(outcome(id, 0, turn, then)).await.expect("stored");
        }
        let order = *random.choice(&ORDERS).expect("some");
        let bound = (random.usize(1..80), random.usize(1..3_000));
        let in_hand: Vec<usize> = (0..ids.len()).filter(|_| random.u8(0..6) == 0).collect();
        let mut read = Vec::new();
        for (at_spool, spool) in spools.iter().enumerate() {
            let not = Arc::new(in_hand.iter().map(|number| (ids[*number][at_spool], 0)).collect::<HashSet<_>>());
            let found = spool.due_legs(&exchange, &port, order, at(turn), not, bound).await.expect("read");
            let number = |id: MessageId| ids.iter().position(|pair| pair[at_spool] == id).expect("known");
            read.push(found.into_iter().map(|leg| number(leg.message)).collect::<Vec<_>>());
            let next = spool.next_due(&exchange, &port, at(turn)).await.expect("read");
            read.push(next.map(|next| next.0 as usize).into_iter().collect());
            let due = spool.count_due(&exchange, &port, at(turn), 50).await.expect("read");
            read.push(vec![due as usize]);
        }
        assert_eq!(read[..3], read[3..], "{order:?} {bound:?} in turn {turn}");
    }
}

const ORDERS: [LegOrder; 4] =
    [LegOrder::Due, LegOrder::Rank, LegOrder::Lanes { stops: true }, LegOrder::Lanes { stops: false }];

/// A message may be sent under its id before it is stored; after a crash, such an id must not be assigned again.
#[tokio::test]
async fn reserved_ids_are_not_assigned_after_a_restart() {
    for partitions in [1, 3] {
        let folder = tempfile::tempdir().expect("a folder");
        let spool = open_with(folder.path(), partitions).expect("the files open");
        let taking = async {
            while !spool.is_reserved(MessageId(1)) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), taking).await.expect("in time");
        // More ids are reserved meanwhile, but more slowly than they are used here.
        let mut ids = (0..1 << 20).map(|_| spool.next_id(PartitionNumber(partitions - 1)));
        let mut known = None;
        let unknown = ids.find(|id| {
            let is_reserved = spool.is_reserved(*id);
            known = is_reserved.then_some(*id).or(known);
            !is_reserved
        });
        let (known, unknown) = (known.expect("some are reserved"), unknown.expect("not all are reserved"));
        assert!(known < unknown);
        drop(ids);
        drop(spool);
        let spool = open_with(folder.path(), partitions).expect("the files open");
        assert!(spool.next_id(PartitionNumber(0)) > known, "{partitions}");
    }
}
