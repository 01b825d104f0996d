//! Requests that leave before they are stored.

use std::collections::HashSet;

use super::*;

const SLOW: &str = r#"{"type": "slow", "order": 1}"#;

/// Requests through `questions` are not stored first.
fn leaving_first(a: &FarSide, b: &FarSide, more_of_b: &str) -> String {
    definition(a, b, more_of_b).replace("wait: 20s, expires_after: 60s", "store_first: false")
}

impl Bed {
    async fn leaving_first(more_of_b: &str) -> Bed {
        let bed = Bed::start().await;
        bed.leave_first(&leaving_first(&bed.a, &bed.b, more_of_b)).await;
        bed
    }

    /// Puts a definition into force, and waits until what comes may leave: nothing is left to be looked for in the spool, and
    /// ids are there.
    async fn leave_first(&self, definition: &str) {
        self.define(definition).await;
        let running = self.exchanges.find(&name("orders")).expect("it runs");
        for port in running.send_ports.values().filter(|port| port.state() == PortState::Active) {
            until(|| port.with(|queue| queue.moves_if_truncated()).is_none()).await;
        }
        until(|| self.exchanges.core.parts.spool.is_reserved(MessageId(1))).await;
    }

    /// Waits until so many messages are stored.
    async fn stored_times(&self, times: usize) -> Vec<StoredMessage> {
        self.found_times(MessageFilter::default(), times).await
    }

    fn ids_of_b(&self) -> Vec<String> {
        self.b.all().iter().map(|asked| asked.headers["webhook-id"].clone()).collect()
    }

    /// Nothing can be stored as long as this is there, as on a disk that fails for a while.
    fn break_spool(&self) -> Vec<rusqlite::Connection> {
        let files =
            std::fs::read_dir(self.folder.path()).expect("a folder").map(|entry| entry.expect("an entry").path());
        let spools = files.filter(|path| {
            let name = path.file_name().expect("a name").to_string_lossy();
            name.starts_with("spool") && name.ends_with(".db")
        });
        let refuse = "CREATE TRIGGER broken BEFORE INSERT ON messages BEGIN SELECT RAISE(ABORT, 'broken'); END";
        let broken = spools.map(|path| {
            let connection = rusqlite::Connection::open(path).expect("a file");
            connection.execute_batch(refuse).expect("made");
            connection
        });
        let broken: Vec<rusqlite::Connection> = broken.collect();
        assert_eq!(broken.len(), usize::from(PARTITIONS));
        broken
    }
}

/// A definition with which B works on one slow request at a time.
fn one_slow_at_a_time(bed: &Bed) -> String {
    let options = "/slow\", allow_networks: [127.0.0.1] }";
    leaving_first(&bed.a, &bed.b, "").replace(options, &format!("{options}\n    concurrency: 1"))
}

fn mend(broken: &[rusqlite::Connection]) {
    broken.iter().for_each(|spool| spool.execute_batch("DROP TRIGGER broken").expect("dropped"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_stored_with_its_reply() {
    let mut bed = Bed::leaving_first("").await;
    let answered = bed.ask(ORDER).await;
    assert_eq!((reply_of(&answered), answered.duplicate), (r#"{"confirmed":true,"order":7}"#.to_owned(), false));
    let check = async |bed: &Bed| {
        let stored = bed.message(answered.id).await;
        assert_eq!((stored.ending, stored.legs.len()), (Some(Ending::Answered), 1));
        assert_eq!((stored.legs[0].state, stored.legs[0].attempts), (LegState::Done, 1));
        let reply = bed.message(stored.reply.expect("it is answered")).await;
        assert_eq!((reply.answers, reply.ending), (Some(answered.id), Some(Ending::Delivered)));
        assert_eq!(bed.exchanges.operations.counts().open, 0);
    };
    check(&bed).await;
    bed.restart().await;
    check(&bed).await;
    assert_eq!(bed.ids_of_b(), [format!("{}-0", answered.id)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_b_takes_long_the_request_is_stored() {
    let mut bed = Bed::leaving_first("").await;
    let copy = tempfile::tempdir().expect("a folder");
    let (answered, waiting) = tokio::join!(bed.ask(SLOW), async {
        bed.b.asked_times(1).await;
        let waiting = bed.stored_times(1).await.remove(0);
        bed.copy_spool(copy.path());
        bed.b.gate.notify_one();
        waiting
    });
    assert_eq!((waiting.id, waiting.legs[0].state, waiting.ending), (answered.id, LegState::Waiting, None));
    assert_eq!(bed.message(answered.id).await.ending, Some(Ending::Answered));
    assert_eq!(bed.b.all().len(), 1);

    // Had the process died meanwhile, B would be asked again, under the same id.
    let elsewhere = close(&mut bed.exchanges).await;
    bed.folder = copy;
    bed.exchanges = open(bed.folder.path()).await;
    bed.b.asked_times(2).await;
    bed.b.gate.notify_one();
    assert_eq!(bed.ended(answered.id).await.ending, Some(Ending::Answered));
    let ids = bed.ids_of_b();
    assert_eq!((ids.len(), &ids[0]), (2, &ids[1]));
    drop(elsewhere);
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_of_what_left_first_are_retried_and_suspended() {
    let bed = Bed::leaving_first("").await;
    bed.b.failures.lock().push(503);
    let answered = bed.ask(ORDER).await;
    assert_eq!(reply_of(&answered), r#"{"confirmed":true,"order":7}"#);
    assert_eq!(bed.message(answered.id).await.legs[0].attempts, 2);
    let ids = bed.ids_of_b();
    assert_eq!((ids.len(), &ids[0]), (2, &ids[1]));
    bed.b.failures.lock().push(400);
    let refused = bed.ask(ORDER).await;
    assert!(matches!(&refused.reply_status, ReplyStatus::Suspended(reason) if reason.contains("400")), "{refused:?}");
    assert_eq!(bed.suspended_times(1).await[0].id, refused.id);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_leave_first_than_may_be_under_way() {
    let bed = Bed::leaving_first("").await;
    bed.leave_first(&one_slow_at_a_time(&bed)).await;
    let (first, second, ()) = tokio::join!(bed.ask(SLOW), bed.ask(SLOW), async {
        bed.stored_times(2).await;
        assert_eq!(bed.b.all().len(), 1);
        bed.b.gate.notify_one();
        bed.b.asked_times(2).await;
        bed.b.gate.notify_one();
    });
    assert!(reply_of(&first).contains("true") && reply_of(&second).contains("true"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_port_on_hold_gets_waits_in_the_spool() {
    let bed = Bed::leaving_first("state: hold").await;
    let (answered, ()) = tokio::join!(bed.ask(ORDER), async {
        bed.stored_times(1).await;
        assert_eq!(bed.b.all().len(), 0);
        bed.exchanges.operations.set_port(&name("orders"), &name("b"), Some(PortState::Active)).await.expect("set");
    });
    assert_eq!(reply_of(&answered), r#"{"confirmed":true,"order":7}"#);
}

/// A caller with an idempotency key gets the stored reply, and B commits it under one id, so the id must be stored
/// first.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_with_a_key_is_stored_first() {
    let bed = Bed::leaving_first("").await;
    let broken = bed.break_spool();
    let refused = bed.post("questions", ORDER, Some("k")).await;
    assert!(matches!(refused, Err(ReceiveError::Store(_))), "{refused:?}");
    assert_eq!(bed.b.all().len(), 0);
    mend(&broken);
    let (first, again) = (bed.post("questions", ORDER, Some("k")).await, bed.post("questions", ORDER, Some("k")).await);
    let (first, again) = (first.expect("taken"), again.expect("taken"));
    assert_eq!((first.id, reply_of(&first), true), (again.id, reply_of(&again), again.duplicate));
    assert_eq!(bed.b.all().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_cannot_be_stored_after_it_left_is_told_so() {
    let bed = Bed::leaving_first("concurrency: 1").await;
    let broken = bed.break_spool();
    let refused = bed.post("questions", ORDER, None).await;
    assert!(matches!(refused, Err(ReceiveError::Store(_))), "{refused:?}");
    assert_eq!((bed.b.all().len(), bed.exchanges.operations.counts().open), (1, 0));
    mend(&broken);
    // Its place is free again.
    assert_eq!(reply_of(&bed.ask(ORDER).await), r#"{"confirmed":true,"order":7}"#);
    assert_eq!((bed.b.all().len(), bed.stored_times(2).await.len()), (2, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_cannot_be_stored_while_b_works_leaves_its_place_when_b_answers() {
    let bed = Bed::leaving_first("").await;
    bed.leave_first(&one_slow_at_a_time(&bed)).await;
    let broken = bed.break_spool();
    let refused = bed.post("questions", SLOW, None).await;
    assert!(matches!(refused, Err(ReceiveError::Store(_))), "{refused:?}");
    let slow = bed.exchanges.find(&name("orders")).expect("it runs").send_ports[&name("slow")].clone();
    assert_eq!(slow.load().0, 1);
    bed.b.asked_times(1).await;
    bed.b.gate.notify_one();
    until(|| slow.load().0 == 0).await;
    mend(&broken);
    let (answered, ()) = tokio::join!(bed.ask(SLOW), async {
        bed.b.asked_times(2).await;
        bed.b.gate.notify_one();
    });
    assert!(reply_of(&answered).contains("true"));
    assert_eq!(bed.stored_times(2).await.len(), 2);
}

/// Each request and each reply is stored, whichever way it went.
#[tokio::test(flavor = "multi_thread")]
async fn many_leave_first_and_each_is_answered_once() {
    let bed = Arc::new(Bed::leaving_first("concurrency: 4").await);
    let asking = (0..16).map(|caller| {
        let bed = bed.clone();
        tokio::spawn(async move {
            for number in 0..20 {
                let order = caller * 100 + number;
                let answered = bed.ask(&format!(r#"{{"type": "order", "order": {order}}}"#)).await;
                assert_eq!(reply_of(&answered), format!(r#"{{"confirmed":true,"order":{order}}}"#));
            }
        })
    });
    for asked in asking.collect::<Vec<_>>() {
        asked.await.expect("all are answered");
    }
    let ids: HashSet<String> = bed.ids_of_b().into_iter().collect();
    assert_eq!((bed.b.all().len(), ids.len()), (320, 320));
    bed.open_is(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_where_callers_wait_for_replies() {
    let bed = Bed::start().await;
    let wrong = definition(&bed.a, &bed.b, "").replace("{ mode: one_way }", "{ mode: one_way, store_first: false }");
    let Err(OperateError::Invalid(problems)) = bed.exchanges.operations.apply(&wrong, "test").await else {
        panic!("not good")
    };
    let found: Vec<String> = problems.iter().map(|problem| format!("{}: {}", problem.path, problem.message)).collect();
    assert_eq!(found, ["receive.orders.store_first: can be false only where callers wait for replies"]);
    assert!(
        problems[0].line.is_some() && problems[0].hint.as_deref().is_some_and(|hint| hint.contains("mode: request"))
    );
}
