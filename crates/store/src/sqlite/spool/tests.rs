use std::collections::HashSet;

use tocsin_model::exchange::MessageKind;

use super::*;
use crate::spool::{Ending, Head, IdempotencyKey, LegState, Standing, Then};

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}

fn open(folder: &Path) -> SqliteSpool {
    SqliteSpool::open(folder, &SpoolOptions::default()).expect("the file opens")
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_millis(second * 1_000)
}

/// A message that came at second 0, with a leg to each of these ports; those that begin with `ask` reply.
fn message(spool: &SqliteSpool, kind: MessageKind, ports: &[&str]) -> NewMessage {
    NewMessage {
        id: spool.next_id(),
        exchange: name("orders"),
        port: name("intake"),
        kind,
        answers: None,
        part_of: None,
        key: None,
        head: Head { content_type: "text/plain".into(), ..Head::default() },
        body: Bytes::from_static(b"hello"),
        legs: ports
            .iter()
            .map(|port| NewLeg { port: name(port), replies: port.starts_with("ask"), lane: None, ahead: None })
            .collect(),
        suspended: None,
        accepted_at: at(0),
        expires_at: (kind == MessageKind::Request).then(|| at(60)),
        kept: Duration::from_secs(100),
    }
}

fn outcome(message: MessageId, leg: u32, second: i64, then: Then) -> LegOutcome {
    let exchange = name("orders");
    LegOutcome { message, exchange, leg, attempts: 1, on_backup: false, said: "200".into(), tried_at: at(second), then }
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
fn a_request_is_answered_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let spool = open(folder.path());
    block_on(async {
        let request = message(&spool, MessageKind::Request, &["ask", "ask_too", "tell"]);
        assert_eq!(spool.accept(request.clone()).await.expect("stored"), Accepted::New);
        assert_eq!(due(&spool, "ask", 0).await, [request.id]);
        let first = spool.settle(outcome(request.id, 0, 1, Then::Done(reply(&spool, request.id)))).await;
        assert_eq!(first.expect("stored"), Settled::Answered);
        let second = reply(&spool, request.id);
        let second_id = second.as_ref().expect("made").id;
        let late = spool.settle(outcome(request.id, 1, 2, Then::Done(second))).await.expect("stored");
        assert_eq!(late, Settled::Late);
        let again = spool.settle(outcome(request.id, 0, 3, Then::Done(None))).await.expect("stored");
        assert_eq!(again, Settled::Gone, "a leg is done once");
        let stored = spool.message(request.id).await.expect("read").expect("there");
        assert_eq!((stored.ending, stored.ended_at), (Some(Ending::Answered), None), "a leg is still to be sent");
        assert_eq!(spool.counts().open, 1);
        spool.settle(outcome(request.id, 2, 4, Then::Done(None))).await.expect("stored");
        let stored = spool.message(request.id).await.expect("read").expect("there");
        assert_eq!((stored.ending, stored.ended_at), (Some(Ending::Answered), Some(at(4))));
        let late = spool.message(second_id).await.expect("read").expect("there");
        assert_eq!(late.ending, Some(Ending::Late));
        assert_eq!(spool.counts().open, 0);
        assert_eq!(&*spool.body(stored.reply.expect("answered")).await.expect("read").expect("there"), b"hello");
    });
}

#[test]
fn what_nobody_answers_expires_and_what_comes_then_is_late() {
    let folder = tempfile::tempdir().expect("a folder");
    let spool = open(folder.path());
    block_on(async {
        let request = message(&spool, MessageKind::Request, &["ask", "tell"]);
        spool.accept(request.clone()).await.expect("stored");
        assert_eq!(spool.expire(at(59), 10).await.expect("looked"), (vec![], Some(at(60))));
        assert_eq!(spool.expire(at(60), 10).await.expect("looked"), (vec![request.id], None));
        assert_eq!(due(&spool, "ask", 61).await, []);
        assert_eq!(due(&spool, "tell", 61).await, [request.id], "who waits for no answer is told all the same");
        let late = spool.settle(outcome(request.id, 0, 62, Then::Done(reply(&spool, request.id)))).await;
        assert_eq!(late.expect("stored"), Settled::Late);
        spool.settle(outcome(request.id, 1, 63, Then::Done(None))).await.expect("stored");
        let stored = spool.message(request.id).await.expect("read").expect("there");
        assert_eq!((stored.ending, stored.ended_at, stored.reply), (Some(Ending::Expired), Some(at(63)), None));
        assert_eq!(spool.counts().open, 0);
    });
}

#[test]
fn a_key_stands_for_one_message() {
    let folder = tempfile::tempdir().expect("a folder");
    let spool = open(folder.path());
    block_on(async {
        let keyed = |digest: u8| NewMessage {
            key: Some(IdempotencyKey { key: "k".into(), digest: [digest; 32] }),
            ..message(&spool, MessageKind::OneWay, &["tell"])
        };
        let first = keyed(1);
        assert_eq!(spool.accept(first.clone()).await.expect("stored"), Accepted::New);
        assert_eq!(spool.accept(keyed(1)).await.expect("looked"), Accepted::Known(first.id));
        assert_eq!(spool.accept(keyed(2)).await.expect("looked"), Accepted::Reused(first.id));
        let elsewhere = NewMessage { port: name("other"), ..keyed(2) };
        assert_eq!(spool.accept(elsewhere).await.expect("stored"), Accepted::New);
    });
}

#[test]
fn retries_suspensions_and_ends_are_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let spool = open(folder.path());
    let id = block_on(async {
        let new = message(&spool, MessageKind::OneWay, &["tell"]);
        spool.accept(new.clone()).await.expect("stored");
        spool.settle(outcome(new.id, 0, 1, Then::Retry(at(5)))).await.expect("stored");
        assert_eq!(due(&spool, "tell", 4).await, []);
        let next = spool.next_due(&name("orders"), &name("tell"), at(4)).await.expect("read");
        assert_eq!(next, Some(at(5)));
        new.id
    });
    drop(spool);
    let spool = open(folder.path());
    assert!(spool.next_id() > id, "an id is never used twice");
    block_on(async {
        assert_eq!(spool.counts().open, 1);
        assert_eq!(due(&spool, "tell", 5).await, [id]);
        let in_hand = Arc::new(HashSet::from([(id, 0)]));
        let found =
            spool.due_legs(&name("orders"), &name("tell"), LegOrder::Due, at(5), in_hand, (10, 1)).await.expect("read");
        assert_eq!(found, []);
        spool.settle(outcome(id, 0, 6, Then::Suspend(reply(&spool, id)))).await.expect("stored");
        let filter = MessageFilter { standing: Some(Standing::Suspended), ..MessageFilter::default() };
        let suspended = spool.messages(filter.clone(), None, 10).await.expect("read");
        assert_eq!((suspended[0].id, suspended[0].legs[0].state), (id, LegState::Suspended));
        let other = MessageFilter { reason: Some("500".into()), ..filter.clone() };
        assert_eq!(spool.messages(other, None, 10).await.expect("read"), []);
        assert_eq!(spool.resume_legs(vec![id], at(7)).await.expect("stored"), Acted { messages: 1, legs: 1 });
        assert_eq!(due(&spool, "tell", 7).await, [id]);
        assert_eq!(spool.end(vec![id], at(8)).await.expect("stored"), Acted { messages: 1, legs: 1 });
        assert_eq!(due(&spool, "tell", 9).await, []);
        assert_eq!(spool.counts().open, 0);
        assert_eq!(spool.prune(at(107), 10).await.expect("removed"), 1, "the wrong reply was over before");
        assert_eq!(spool.prune(at(108), 10).await.expect("removed"), 1);
        assert_eq!(spool.message(id).await.expect("read"), None);
        assert_eq!(spool.body(id).await.expect("read"), None);
    });
}

#[test]
fn what_goes_nowhere_is_routed_anew() {
    let folder = tempfile::tempdir().expect("a folder");
    let spool = open(folder.path());
    block_on(async {
        let new = NewMessage { suspended: Some("no route".into()), ..message(&spool, MessageKind::OneWay, &[]) };
        spool.accept(new.clone()).await.expect("stored");
        assert_eq!(spool.counts().open, 1);
        assert!(spool.route_anew(new.id, Err("still no route".into()), at(1)).await.expect("stored"));
        let legs = vec![NewLeg { port: name("tell"), replies: false, lane: None, ahead: None }];
        assert!(spool.route_anew(new.id, Ok(legs.clone()), at(2)).await.expect("stored"));
        assert!(!spool.route_anew(new.id, Ok(legs), at(3)).await.expect("looked"), "once");
        assert_eq!(due(&spool, "tell", 2).await, [new.id]);
        spool.settle(outcome(new.id, 0, 4, Then::Done(None))).await.expect("stored");
        let stored = spool.message(new.id).await.expect("read").expect("there");
        assert_eq!(stored.ending, Some(Ending::Delivered));
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
            let mut new = message(&spool, MessageKind::OneWay, &["tell"]);
            new.legs[0].lane = lane.map(str::to_owned);
            new.legs[0].ahead = ahead.map(Duration::from_secs);
            ids.push(new.id);
            spool.accept(new).await.expect("stored");
        }
        let (exchange, port) = (name("orders"), name("tell"));
        let read = async |order: LegOrder, second: i64, limit: usize| {
            let found = spool.due_legs(&exchange, &port, order, at(second), Arc::default(), (limit, 1 << 20)).await;
            found.expect("read").into_iter().map(|leg| leg.message).collect::<Vec<_>>()
        };
        let lanes = |stops| LegOrder::Lanes { stops };
        assert_eq!(read(lanes(false), 0, 9).await, [ids[3], ids[4], ids[0], ids[1], ids[2]], "without a key first");
        assert_eq!(read(LegOrder::Rank, 0, 5).await, [ids[0], ids[1], ids[2], ids[3], ids[4]], "without a rank first");
        spool.settle(outcome(ids[0], 0, 1, Then::Retry(at(60)))).await.expect("stored");
        assert_eq!(read(lanes(false), 2, 9).await, [ids[3], ids[4], ids[2]], "what is behind it waits");
        assert_eq!(read(lanes(false), 60, 9).await, [ids[3], ids[4], ids[0], ids[1], ids[2]]);
        spool.settle(outcome(ids[0], 0, 61, Then::Suspend(None))).await.expect("stored");
        assert_eq!(read(lanes(false), 62, 9).await, [ids[3], ids[4], ids[1], ids[2]]);
        assert_eq!(read(lanes(true), 62, 9).await, [ids[3], ids[4], ids[2]]);
    });
}

#[test]
fn rates_are_kept_and_so_is_when_messages_were_slowed_down() {
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
        let detail = "the server started anew".to_owned();
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
