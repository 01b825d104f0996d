mod later_replies;
mod partitions;

use std::{
    collections::{HashMap, HashSet},
    path::Path,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use rusqlite::Connection;
use tocsin_model::{
    exchange::{MessageKind, PortState},
    id::{MessageId, Name},
    mark::Mark,
    time::Timestamp,
};
use tokio::sync::oneshot;

use super::*;
use crate::{
    error::StoreError,
    spool::{
        AffectedCounts, AggregationRule, CorrelationKey, Ending, ExpiredMessages, Head, IdempotencyKey, LegOrder,
        LegOutcome, LegState, LegTransition, LocationKey, MessageAcceptance, MessageFilter, MessageStatus, NewLeg,
        NewMessage, PartitionAffinity, PartitionNumber, ReceivedMessage, SettleResult,
    },
    sqlite::spool::{options::SpoolOptions, spool_files::SqliteSpool},
};

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}

fn open(folder: &Path) -> SqliteSpool {
    open_with(folder, 1).expect("the file opens")
}

fn open_with(folder: &Path, partitions: u8) -> Result<SqliteSpool, StoreError> {
    SqliteSpool::open(folder, &SpoolOptions { partitions, ..SpoolOptions::default() })
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_millis(second * 1_000)
}

/// A message accepted at second 0, with a leg to each of these ports. Ports whose names begin with `ask` reply.
fn message(spool: &SqliteSpool, kind: MessageKind, ports: &[&str]) -> NewMessage {
    NewMessage {
        id: spool.next_id(PartitionNumber(0)),
        exchange: name("orders"),
        port: name("intake"),
        kind,
        answers: None,
        settles: None,
        part_of: None,
        key: None,
        sender: "".into(),
        head: Head { content_type: "text/plain".into(), ..Head::default() },
        body: Bytes::from_static(b"hello"),
        legs: ports.iter().map(|port| leg(port)).collect(),
        suspended: None,
        accepted_at: at(0),
        expires_at: (kind == MessageKind::Request).then(|| at(60)),
        kept: Duration::from_secs(100),
    }
}

fn outcome(message: MessageId, leg: u32, second: i64, then: LegTransition) -> LegOutcome {
    let exchange = name("orders");
    LegOutcome {
        message,
        exchange,
        leg,
        attempts: 1,
        is_first: true,
        on_backup: false,
        said: "200".into(),
        tried_at: at(second),
        then,
    }
}

fn reply(spool: &SqliteSpool, to: MessageId) -> Option<Box<NewMessage>> {
    Some(Box::new(NewMessage { answers: Some(to), ..message(spool, MessageKind::Reply, &[]) }))
}

async fn due(spool: &SqliteSpool, port: &str, second: i64) -> Vec<MessageId> {
    let found =
        spool.due_legs(&name("orders"), &name(port), LegOrder::Due, at(second), Arc::default(), (100, 1 << 20)).await;
    found.expect("read").into_iter().map(|leg| leg.message).collect()
}

#[test]
fn accept_settled_is_equivalent_to_accept_and_settle() {
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let spools = [&folders[0], &folders[1]].map(|folder| open(folder.path()));
    let [apart, together] = &spools;
    let waits = || NewLeg { awaits: Some(CorrelationKey { through: name("back"), key: "7".into() }), ..leg("ask") };
    let ahead = || NewLeg { lane: Some("k".into()), ahead: Some(Duration::from_secs(5)), ..leg("ask") };
    let request = |legs: Vec<NewLeg>| NewMessage { legs, ..message(apart, MessageKind::Request, &[]) };
    let answer = |to: &NewMessage| LegTransition::Done(reply(apart, to.id));
    let answered_on = |to: &NewMessage| {
        let with_legs = NewMessage { legs: vec![leg("notify")], ..*reply(apart, to.id).expect("made") };
        LegTransition::Done(Some(Box::new(with_legs)))
    };
    let wrong = |to: &NewMessage| LegTransition::Suspend(reply(apart, to.id));
    type NextState<'a> = &'a dyn Fn(&NewMessage) -> LegTransition;
    let cases: [(NewMessage, NextState<'_>); 10] = [
        (request(vec![leg("ask")]), &answer),
        (request(vec![leg("ask")]), &answered_on),
        (request(vec![ahead()]), &answer),
        (request(vec![waits()]), &|_| LegTransition::Await(at(9))),
        (request(vec![leg("ask")]), &wrong),
        (request(vec![leg("ask")]), &|_| LegTransition::Suspend(None)),
        (request(vec![leg("notify")]), &|_| LegTransition::Done(None)),
        (request(vec![leg("ask")]), &|_| LegTransition::Retry(at(7))),
        (message(apart, MessageKind::OneWay, &["ask"]), &answer),
        (message(apart, MessageKind::OneWay, &["ask"]), &answered_on),
    ];
    block_on(async {
        for (whole, then) in cases {
            let tried = LegOutcome { attempts: 3, on_backup: true, ..outcome(whole.id, 0, 2, then(&whole)) };
            apart.accept(whole.clone()).await.expect("stored");
            let expected = apart.settle(tried.clone()).await.expect("stored");
            let taken = Arc::new(ReceivedMessage::from(whole));
            let (sender, settled) = oneshot::channel();
            together.accept_settled_then(taken, Arc::new(tried), move |settled| _ = sender.send(settled));
            assert_eq!(settled.await.expect("settled").expect("stored"), expected);
            assert_eq!(together.counts().open, apart.counts().open);
        }
    });
    drop(spools);
    let [apart, together] = folders.map(|folder| rows(folder.path()));
    assert!(apart.len() > 30, "{apart:?}");
    assert_eq!(together, apart);
}

fn leg(port: &str) -> NewLeg {
    NewLeg { port: name(port), replies: port.starts_with("ask"), awaits: None, lane: None, ahead: None }
}

/// All rows of messages in a closed spool.
fn rows(folder: &Path) -> Vec<String> {
    let file = Connection::open(folder.join("spool.db")).expect("the file");
    let dump = |table| {
        let mut all = file.prepare(&format!("SELECT * FROM {table}")).expect("a query");
        let columns = all.column_count();
        let row = |row: &rusqlite::Row<'_>| {
            (0..columns).map(|at| row.get::<_, rusqlite::types::Value>(at)).collect::<Result<Vec<_>, _>>()
        };
        let rows = all.query_map((), row).expect("rows");
        rows.map(|row| format!("{table} {:?}", row.expect("a row"))).collect::<Vec<_>>()
    };
    ["messages", "bodies", "legs"].into_iter().flat_map(dump).collect()
}

#[test]
fn a_request_is_answered_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let spool = open(folder.path());
    block_on(async {
        let request = message(&spool, MessageKind::Request, &["ask", "ask_too", "notify"]);
        assert_eq!(spool.accept(request.clone()).await.expect("stored"), MessageAcceptance::New);
        assert_eq!(due(&spool, "ask", 0).await, [request.id]);
        let first = spool.settle(outcome(request.id, 0, 1, LegTransition::Done(reply(&spool, request.id)))).await;
        assert_eq!(first.expect("stored"), SettleResult::Answered);
        let second = reply(&spool, request.id);
        let second_id = second.as_ref().expect("made").id;
        let late = spool.settle(outcome(request.id, 1, 2, LegTransition::Done(second))).await.expect("stored");
        assert_eq!(late, SettleResult::Late);
        let again = spool.settle(outcome(request.id, 0, 3, LegTransition::Done(None))).await.expect("stored");
        assert_eq!(again, SettleResult::Gone, "a leg is settled once");
        let stored = spool.message(request.id).await.expect("read").expect("there");
        assert_eq!((stored.ending, stored.ended_at), (Some(Ending::Answered), None), "one leg is still open");
        assert_eq!(spool.counts().open, 1);
        spool.settle(outcome(request.id, 2, 4, LegTransition::Done(None))).await.expect("stored");
        let stored = spool.message(request.id).await.expect("read").expect("there");
        assert_eq!((stored.ending, stored.ended_at), (Some(Ending::Answered), Some(at(4))));
        let late = spool.message(second_id).await.expect("read").expect("there");
        assert_eq!(late.ending, Some(Ending::Late));
        assert_eq!(spool.counts().open, 0);
        assert_eq!(&*spool.body(stored.reply.expect("answered")).await.expect("read").expect("there"), b"hello");
    });
}

#[test]
fn a_reply_is_kept_as_long_as_its_request() {
    let folder = tempfile::tempdir().expect("a folder");
    let spool = open(folder.path());
    block_on(async {
        let request = message(&spool, MessageKind::Request, &["ask", "notify"]);
        spool.accept(request.clone()).await.expect("stored");
        spool.settle(outcome(request.id, 0, 1, LegTransition::Done(reply(&spool, request.id)))).await.expect("stored");
        assert_eq!(spool.prune(at(1000), 10).await.expect("looked"), 0, "a leg is still open");
        spool.settle(outcome(request.id, 1, 1000, LegTransition::Done(None))).await.expect("stored");
        assert_eq!(spool.prune(at(1099), 10).await.expect("looked"), 0);
        assert_eq!(spool.prune(at(1100), 10).await.expect("removed"), 2);
    });
}

#[test]
fn unanswered_requests_expire_and_later_replies_are_late() {
    let folder = tempfile::tempdir().expect("a folder");
    let spool = open(folder.path());
    block_on(async {
        let request = message(&spool, MessageKind::Request, &["ask", "notify"]);
        spool.accept(request.clone()).await.expect("stored");
        let none_yet = ExpiredMessages { next: Some(at(60)), ..ExpiredMessages::default() };
        assert_eq!(spool.expire(at(59), 10).await.expect("looked"), none_yet);
        let over = ExpiredMessages { expired: vec![request.id], ..ExpiredMessages::default() };
        assert_eq!(spool.expire(at(60), 10).await.expect("looked"), over);
        assert_eq!(due(&spool, "ask", 61).await, []);
        assert_eq!(due(&spool, "notify", 61).await, [request.id], "legs without a reply are still sent");
        let late = spool.settle(outcome(request.id, 0, 62, LegTransition::Done(reply(&spool, request.id)))).await;
        assert_eq!(late.expect("stored"), SettleResult::Late);
        spool.settle(outcome(request.id, 1, 63, LegTransition::Done(None))).await.expect("stored");
        let stored = spool.message(request.id).await.expect("read").expect("there");
        assert_eq!((stored.ending, stored.ended_at, stored.reply), (Some(Ending::Expired), Some(at(63)), None));
        assert_eq!(spool.counts().open, 0);
    });
}

#[test]
fn an_idempotency_key_identifies_one_message() {
    let folder = tempfile::tempdir().expect("a folder");
    let spool = open(folder.path());
    block_on(async {
        let keyed = |digest: u8| NewMessage {
            key: Some(IdempotencyKey { key: "k".into(), digest: [digest; 32] }),
            ..message(&spool, MessageKind::OneWay, &["notify"])
        };
        let first = keyed(1);
        assert_eq!(spool.accept(first.clone()).await.expect("stored"), MessageAcceptance::New);
        assert_eq!(spool.accept(keyed(1)).await.expect("looked"), MessageAcceptance::Known(first.id));
        assert_eq!(spool.accept(keyed(2)).await.expect("looked"), MessageAcceptance::Reused(first.id));
        let elsewhere = NewMessage { port: name("other"), ..keyed(2) };
        assert_eq!(spool.accept(elsewhere).await.expect("stored"), MessageAcceptance::New);
    });
}

#[test]
fn retries_suspensions_and_ends_are_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let spool = open(folder.path());
    let id = block_on(async {
        let new = message(&spool, MessageKind::OneWay, &["notify"]);
        spool.accept(new.clone()).await.expect("stored");
        spool.settle(outcome(new.id, 0, 1, LegTransition::Retry(at(5)))).await.expect("stored");
        assert_eq!(due(&spool, "notify", 4).await, []);
        let next = spool.next_due(&name("orders"), &name("notify"), at(4)).await.expect("read");
        assert_eq!(next, Some(at(5)));
        new.id
    });
    drop(spool);
    let spool = open(folder.path());
    assert!(spool.next_id(PartitionNumber(0)) > id, "an id is never used twice");
    block_on(async {
        assert_eq!(spool.counts().open, 1);
        assert_eq!(due(&spool, "notify", 5).await, [id]);
        let in_hand = Arc::new(HashSet::from([(id, 0)]));
        let found = spool
            .due_legs(&name("orders"), &name("notify"), LegOrder::Due, at(5), in_hand, (10, 1))
            .await
            .expect("read");
        assert_eq!(found, []);
        spool.settle(outcome(id, 0, 6, LegTransition::Suspend(reply(&spool, id)))).await.expect("stored");
        let filter = MessageFilter { standing: Some(MessageStatus::Suspended), ..MessageFilter::default() };
        let suspended = spool.messages(filter.clone(), None, 10).await.expect("read");
        assert_eq!((suspended[0].id, suspended[0].legs[0].state), (id, LegState::Suspended));
        assert_eq!(spool.suspended(10).await.expect("read"), 1);
        assert_eq!(spool.suspended(0).await.expect("read"), 0, "the count ends at its limit");
        let other = MessageFilter { reason: Some("500".into()), ..filter.clone() };
        assert_eq!(spool.messages(other, None, 10).await.expect("read"), []);
        assert_eq!(
            spool.resume_legs(vec![(id, 0)], "op", at(7)).await.expect("stored"),
            AffectedCounts { messages: 1, legs: 1 }
        );
        assert_eq!(spool.suspended(10).await.expect("read"), 0);
        assert_eq!(due(&spool, "notify", 7).await, [id]);
        assert_eq!(spool.end(vec![id], "op", at(8)).await.expect("stored"), AffectedCounts { messages: 1, legs: 1 });
        assert_eq!(due(&spool, "notify", 9).await, []);
        assert_eq!(spool.counts().open, 0);
        assert_eq!(spool.prune(at(107), 10).await.expect("removed"), 1, "the wrong reply ended earlier");
        assert_eq!(spool.prune(at(108), 10).await.expect("removed"), 1);
        assert_eq!(spool.message(id).await.expect("read"), None);
        assert_eq!(spool.body(id).await.expect("read"), None);
    });
}

#[test]
fn messages_without_a_route_can_be_rerouted() {
    let folder = tempfile::tempdir().expect("a folder");
    let spool = open(folder.path());
    block_on(async {
        let new = NewMessage { suspended: Some("no route".into()), ..message(&spool, MessageKind::OneWay, &[]) };
        spool.accept(new.clone()).await.expect("stored");
        assert_eq!(spool.counts().open, 1);
        assert!(spool.reroute(new.id, Err("still no route".into()), "op", at(1)).await.expect("stored"));
        let legs = vec![leg("notify")];
        assert!(spool.reroute(new.id, Ok(legs.clone()), "op", at(2)).await.expect("stored"));
        assert!(!spool.reroute(new.id, Ok(legs), "op", at(3)).await.expect("looked"), "once");
        assert_eq!(due(&spool, "notify", 2).await, [new.id]);
        spool.settle(outcome(new.id, 0, 4, LegTransition::Done(None))).await.expect("stored");
        let stored = spool.message(new.id).await.expect("read").expect("there");
        assert_eq!(stored.ending, Some(Ending::Delivered));
    });
}

#[test]
fn legs_of_removed_ports_are_suspended_and_can_be_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let spool = open_with(folder.path(), 3).expect("the files open");
    let orders = name("orders");
    block_on(async {
        let mut ids = Vec::new();
        for number in [0, 1, 2, 2, 2] {
            let id = spool.next_id(PartitionNumber(number));
            spool
                .accept(NewMessage { id, ..message(&spool, MessageKind::OneWay, &["notify", "gone"]) })
                .await
                .expect("stored");
            ids.push(id);
        }
        let suspend = async |known: &[&str], not: &[MessageId]| {
            let known = known.iter().map(|port| name(port)).collect();
            let not = Arc::new(not.iter().map(|id| (*id, 1)).collect());
            spool.suspend_orphaned_legs(&orders, known, not, 2, at(1)).await.expect("stored")
        };
        assert_eq!(suspend(&["gone", "other", "notify"], &[]).await, []);
        assert_eq!(
            suspend(&["notify"], &ids[3..4]).await,
            [ids[0], ids[1], ids[2], ids[4]],
            "at most two per partition"
        );
        assert_eq!(suspend(&["notify"], &ids[3..4]).await, [], "one is being sent");
        assert_eq!((due(&spool, "gone", 1).await, due(&spool, "notify", 1).await), (vec![ids[3]], ids.clone()));
        let replace =
            async |legs| spool.replace_legs(&orders, ids[0], vec![1], legs, "op", at(2)).await.expect("stored");
        assert_eq!(replace(Err("there is no other".to_owned())).await, 0);
        let stored = spool.message(ids[0]).await.expect("read").expect("there");
        assert_eq!(
            (stored.legs[1].state, stored.legs[1].said.as_deref()),
            (LegState::Suspended, Some("there is no other"))
        );
        assert_eq!(replace(Ok(vec![leg("one"), leg("two")])).await, 2);
        assert_eq!(replace(Ok(vec![leg("one")])).await, 0, "once");
        for number in [0, 2, 3] {
            assert_eq!(spool.message(ids[0]).await.expect("read").expect("there").ended_at, None);
            spool.settle(outcome(ids[0], number, 3, LegTransition::Done(None))).await.expect("stored");
        }
        let stored = spool.message(ids[0]).await.expect("read").expect("there");
        assert_eq!((stored.ending, stored.legs[1].state), (Some(Ending::Delivered), LegState::Ended));
    });
}

/// Number of messages and form of the first due group.
#[test]
fn messages_of_different_forms_are_not_aggregated_and_exchanges_are_independent() {
    let folder = tempfile::tempdir().expect("a folder");
    let spool = open(folder.path());
    block_on(async {
        let join = async |exchange: &str, form: &str| {
            let gather = AggregationRule {
                key: "k".into(),
                form: form.into(),
                count_max: 10,
                bytes_max: 1_000,
                within: Duration::from_secs(60),
                closes: false,
            };
            let whole = NewMessage { exchange: name(exchange), ..message(&spool, MessageKind::OneWay, &[]) };
            spool.accept(ReceivedMessage { whole, parts: None, gather: Some(gather) }).await.expect("stored");
        };
        for (exchange, form) in
            [("idle", "json"), ("orders", "json"), ("orders", "json"), ("orders", "lines"), ("orders", "lines")]
        {
            join(exchange, form).await;
        }
        let due = async |exchange: &str, second: i64| {
            let (groups, _) = spool.due_groups(&[name(exchange)], at(second), 1).await.expect("read");
            let group = groups.first()?;
            Some((group.form.clone(), spool.group_messages(group).await.expect("read").len()))
        };
        assert_eq!(due("orders", 0).await, Some(("json".to_owned(), 2)), "a message of another form closed the group");
        assert_eq!(due("idle", 0).await, None);
        assert_eq!(due("idle", 60).await, Some(("json".to_owned(), 1)));
        let (groups, _) = spool.due_groups(&[name("orders")], at(60), 10).await.expect("read");
        assert_eq!(groups.iter().map(|group| &*group.form).collect::<Vec<_>>(), ["json", "lines"]);
    });
}

#[test]
fn definitions_and_port_states_are_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let spool = open(folder.path());
    block_on(async {
        for text in ["one", "two"] {
            spool.put_exchange(name("orders"), text.into(), "me".into(), at(1)).await.expect("stored");
        }
        let found = spool.exchanges().await.expect("read");
        assert_eq!((found.len(), found[0].version, &*found[0].text), (1, 2, "two"));
        spool.set_port(name("orders"), name("shop"), Some(PortState::Hold)).await.expect("stored");
        assert_eq!(spool.set_ports().await.expect("read")[0].state, PortState::Hold);
        spool.set_port(name("orders"), name("shop"), None).await.expect("stored");
        assert_eq!(spool.set_ports().await.expect("read"), []);
        assert!(spool.remove_exchange(name("orders")).await.expect("removed"));
        assert!(!spool.remove_exchange(name("orders")).await.expect("looked"));
    });
}

#[test]
fn legs_are_read_in_lanes_and_by_rank() {
    let folder = tempfile::tempdir().expect("a folder");
    let spool = open(folder.path());
    block_on(async {
        let mut ids = Vec::new();
        for (lane, ahead) in [(Some("x"), None), (Some("x"), None), (Some("y"), None), (None, None), (None, Some(5))] {
            let mut new = message(&spool, MessageKind::OneWay, &["notify"]);
            new.legs[0].lane = lane.map(str::to_owned);
            new.legs[0].ahead = ahead.map(Duration::from_secs);
            ids.push(new.id);
            spool.accept(new).await.expect("stored");
        }
        let (exchange, port) = (name("orders"), name("notify"));
        let read = async |order: LegOrder, second: i64, limit: usize| {
            let found = spool.due_legs(&exchange, &port, order, at(second), Arc::default(), (limit, 1 << 20)).await;
            found.expect("read").into_iter().map(|leg| leg.message).collect::<Vec<_>>()
        };
        let lanes = |stops| LegOrder::Lanes { stops };
        assert_eq!(read(lanes(false), 0, 9).await, [ids[3], ids[4], ids[0], ids[1], ids[2]], "without a key first");
        assert_eq!(read(LegOrder::Rank, 0, 5).await, [ids[0], ids[1], ids[2], ids[3], ids[4]], "without a rank first");
        spool.settle(outcome(ids[0], 0, 1, LegTransition::Retry(at(60)))).await.expect("stored");
        assert_eq!(read(lanes(false), 2, 9).await, [ids[3], ids[4], ids[2]], "later legs of the lane wait");
        assert_eq!(read(lanes(false), 60, 9).await, [ids[3], ids[4], ids[0], ids[1], ids[2]]);
        spool.settle(outcome(ids[0], 0, 61, LegTransition::Suspend(None))).await.expect("stored");
        assert_eq!(read(lanes(false), 62, 9).await, [ids[3], ids[4], ids[1], ids[2]]);
        assert_eq!(read(lanes(true), 62, 9).await, [ids[3], ids[4], ids[2]]);
    });
}

#[test]
fn rates_and_throttle_changes_are_stored() {
    use tocsin_model::exchange::{FlowSide::Publishing, ThrottleReason};

    use crate::spool::ThrottleChange;
    let folder = tempfile::tempdir().expect("a folder");
    let orders = name("orders");
    let change = |second, port: Option<&str>, begins| ThrottleChange {
        at: at(second),
        exchange: name("orders"),
        side: Publishing,
        port: port.map(name),
        reason: ThrottleReason::RateImbalance,
        begins,
        detail: "busy".into(),
    };
    let spool = open(folder.path());
    block_on(async {
        let rate = Some("6/m".parse().expect("a rate"));
        spool.set_rate(orders.clone(), Publishing, Some(name("a")), rate).await.expect("set");
        spool.set_rate(orders.clone(), Publishing, None, rate).await.expect("set");
        spool.set_rate(orders.clone(), Publishing, None, None).await.expect("unset");
        let changes = vec![change(1, Some("a"), true), change(2, None, true), change(3, None, false)];
        spool.record_throttles(changes).await.expect("stored");
    });
    drop(spool);
    let spool = open(folder.path());
    block_on(async {
        let rates = spool.rates().await.expect("read");
        assert_eq!(rates.len(), 1);
        assert_eq!((rates[0].port.clone(), rates[0].rate.to_string()), (Some(name("a")), "6/m".to_owned()));
        spool.end_throttles(at(9)).await.expect("ended");
        spool.end_throttles(at(10)).await.expect("nothing to end");
        let changes = spool.throttles(&orders, 10).await.expect("read");
        let detail = "the server was restarted".to_owned();
        assert_eq!(changes.len(), 4);
        assert_eq!(changes[0], ThrottleChange { detail, ..change(9, Some("a"), false) });
        assert_eq!(changes[3], change(1, Some("a"), true));
        assert!(spool.throttles(&name("others"), 10).await.expect("read").is_empty());
        let held = message(&spool, MessageKind::OneWay, &["out"]);
        spool.accept(held).await.expect("stored");
        assert_eq!(spool.count_due(&orders, &name("out"), at(0), 10).await.expect("read"), 1);
        assert_eq!(spool.count_due(&orders, &name("out"), at(-1), 10).await.expect("read"), 0);
    });
}

#[test]
fn a_page_of_messages_reads_a_bounded_number_of_rows() {
    let folder = tempfile::tempdir().expect("a folder");
    let spool = SqliteSpool::open(folder.path(), &SpoolOptions { partitions: 2, ..SpoolOptions::default() });
    let spool = spool.expect("it opens");
    block_on(async {
        let (mut ids, mut bills) = (Vec::new(), Vec::new());
        for at in 0..40 {
            let is_bill = at % 10 == 0;
            let id = spool.next_id(PartitionNumber(at % 2));
            let new = message(&spool, MessageKind::OneWay, &[if is_bill { "bill" } else { "notify" }]);
            spool.accept(NewMessage { id, ..new }).await.expect("stored");
            ids.push(id);
            bills.extend(is_bill.then_some(id));
        }
        bills.sort_unstable_by_key(|id| std::cmp::Reverse(*id));
        let of = |filter: MessageFilter, limit: usize, rows_max: usize| {
            let spool = &spool;
            async move {
                let (mut found, mut pages, mut before) = (Vec::new(), 0, None);
                loop {
                    let page = spool.scan(filter.clone(), before, limit, rows_max).await.expect("read");
                    assert!(page.items.len() <= limit && pages < 100);
                    assert!(page.next.is_none_or(|next| before.is_none_or(|before| next < before)), "it goes on");
                    found.extend(page.items.iter().map(|message| message.id));
                    (pages, before) = (pages + 1, page.next);
                    if before.is_none() {
                        return (found, pages);
                    }
                }
            }
        };
        let mut newest_first = ids.clone();
        newest_first.sort_unstable_by_key(|id| std::cmp::Reverse(*id));
        let to = |port: &str| MessageFilter { to: Some(name(port)), ..MessageFilter::default() };
        let status = |standing| MessageFilter { standing: Some(standing), ..MessageFilter::default() };
        for (limit, rows_max) in [(1, 1), (1, 3), (3, 3), (3, 7), (7, 3), (100, 5), (100, 1_000)] {
            let (found, pages) = of(MessageFilter::default(), limit, rows_max).await;
            assert_eq!((found, pages > 1), (newest_first.clone(), limit.min(rows_max) < 40), "{limit} {rows_max}");
            assert_eq!(of(to("bill"), limit, rows_max).await.0, bills, "{limit} {rows_max}");
            assert_eq!(of(status(MessageStatus::Open), limit, rows_max).await.0, newest_first, "{limit} {rows_max}");
            assert_eq!(of(status(MessageStatus::Ended), limit, rows_max).await.0, [], "{limit} {rows_max}");
            // An index has the suspended ones.
            assert_eq!(of(status(MessageStatus::Suspended), limit, rows_max).await, (vec![], 1), "{limit} {rows_max}");
            let one = MessageFilter { id: Some(ids[7]), ..MessageFilter::default() };
            assert_eq!(of(one, limit, rows_max).await.0, [ids[7]]);
        }
        spool.settle(outcome(ids[4], 0, 1, LegTransition::Suspend(None))).await.expect("stored");
        let why = |text: &str| MessageFilter { reason: Some(text.into()), ..status(MessageStatus::Suspended) };
        assert_eq!(of(status(MessageStatus::Suspended), 5, 2).await.0, [ids[4]]);
        assert_eq!(of(why("none of it"), 5, 2).await.0, []);
        assert_eq!(of(why("200"), 5, 2).await.0, [ids[4]]);
    });
}
