//! Replies that come later, through a receive port.

use tocsin_model::exchange::MessageKind;

use super::*;
use crate::{edit::Edit, operate::MessageSelection};

/// B takes what it is asked, and replies through `results`.
pub(super) fn later(a: &FarSide, b: &FarSide, within: &str) -> String {
    let with = definition(a, b, &format!("reply_through: results\n    reply_within: {within}"));
    with.replace("  hurried:", "  results: { mode: one_way }\n  hurried:")
}

impl Bed {
    async fn with_later() -> Bed {
        Bed::with_later_within("1h").await
    }

    async fn with_later_within(within: &str) -> Bed {
        let bed = Bed::start().await;
        bed.define(&later(&bed.a, &bed.b, within)).await;
        bed
    }

    /// B replies. Gives the message that says so.
    async fn result(&self, body: &str) -> MessageId {
        self.post("results", body, None).await.expect("taken").id
    }

    /// Waits until the receiver has accepted a message whose reply comes later.
    async fn awaiting(&self, id: MessageId) -> StoredMessage {
        let awaiting = async {
            loop {
                let stored = self.message(id).await;
                if stored.legs[0].state == LegState::Awaiting {
                    return stored;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(wait_timeout(), awaiting).await.expect("in time")
    }

    async fn waits_for(&self, id: MessageId) -> ReplyStatus {
        self.exchanges.intake.reply_to(id, wait_timeout()).await.expect("read").expect("there")
    }
}

const RESULT: &str = r#"{"order": 7, "said": "yes"}"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_gets_the_reply_that_comes_through_a_receive_port() {
    let bed = Bed::with_later().await;
    let (answered, result) = tokio::join!(bed.ask(ORDER), async {
        bed.b.asked_times(1).await;
        bed.result(RESULT).await
    });
    assert_eq!(reply_of(&answered), RESULT, "and not what B said to the request");
    let (asked, reply) = (bed.ended(answered.id).await, bed.ended(result).await);
    assert_eq!((asked.ending, asked.reply), (Some(Ending::Answered), Some(result)));
    let came = (reply.kind, reply.port.as_str(), reply.answers, reply.ending);
    assert_eq!(came, (MessageKind::Reply, "results", Some(answered.id), Some(Ending::Delivered)));
    assert!(bed.a.all().is_empty(), "the reply to a request goes to who waits for it");

    let again = bed.ended(bed.result(RESULT).await).await;
    assert_eq!((again.answers, again.ending), (Some(answered.id), Some(Ending::Late)), "once");
    bed.open_is(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_later_reply_to_a_one_way_message_is_routed_and_its_message_is_open_until_then() {
    let bed = Bed::with_later().await;
    let sent = bed.post("orders", ORDER, None).await.expect("taken");
    let waits = bed.awaiting(sent.id).await;
    assert_eq!((waits.ended_at, waits.legs[0].through.as_ref()), (None, Some(&name("results"))));
    assert_eq!(waits.legs[0].said.as_deref(), Some("200"));
    bed.open_is(1).await;
    let reply = bed.result(RESULT).await;
    let request = &bed.a.asked_times(1).await[0];
    assert_eq!((&*request.path, &*request.body), ("/replies/7", RESULT));
    assert_eq!(request.headers["tocsin-answers"], sent.id.to_string());
    let stored = bed.ended(sent.id).await;
    assert_eq!((stored.ending, stored.reply), (Some(Ending::Delivered), Some(reply)));
    bed.ended(reply).await;
    bed.open_is(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_may_be_quicker_than_the_answer_to_the_attempt() {
    let bed = Bed::start().await;
    bed.define(&later(&bed.a, &bed.b, "1h").replace("/b\"", "/slow\"")).await;
    let (answered, ()) = tokio::join!(bed.ask(ORDER), async {
        bed.b.asked_times(1).await;
        bed.result(RESULT).await;
    });
    assert_eq!(reply_of(&answered), RESULT);
    assert_eq!(bed.message(answered.id).await.legs[0].said, None, "B has not answered yet");
    bed.b.gate.notify_one();
    let said = async {
        while bed.message(answered.id).await.legs[0].said.as_deref() != Some("200") {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(wait_timeout(), said).await.expect("what it answers is kept nevertheless");
    let leg = &bed.message(answered.id).await.legs[0];
    assert_eq!((leg.state, leg.attempts), (LegState::Done, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_waits_for_its_reply_over_a_restart_and_for_so_long() {
    let mut bed = Bed::with_later().await;
    let sent = bed.post("orders", ORDER, None).await.expect("taken");
    bed.awaiting(sent.id).await;
    bed.restart().await;
    bed.open_is(1).await;
    bed.result(RESULT).await;
    assert_eq!(bed.ended(sent.id).await.ending, Some(Ending::Delivered));

    bed.define(&later(&bed.a, &bed.b, "1s")).await;
    let asked = bed.ask(r#"{"type": "order", "order": 8}"#).await;
    assert_eq!(asked.reply_status, ReplyStatus::Suspended("b: no reply came through `results` in time".into()));
    let acted = bed.exchanges.operations.resume(MessageFilter::default(), "op").await.expect("resumed");
    assert_eq!((acted.messages, acted.legs), (1, 1));
    bed.b.asked_times(3).await;
    bed.result(r#"{"order": 8}"#).await;
    assert!(matches!(bed.waits_for(asked.id).await, ReplyStatus::Replied { .. }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_comes_when_nobody_hoped_any_more_is_still_the_reply() {
    let bed = Bed::with_later_within("1s").await;
    let sent = bed.post("orders", ORDER, None).await.expect("taken");
    assert_eq!(bed.suspended_times(1).await[0].id, sent.id);
    bed.result(RESULT).await;
    assert_eq!(bed.ended(sent.id).await.ending, Some(Ending::Delivered));
    assert!(bed.suspended().await.is_empty());

    bed.define(&later(&bed.a, &bed.b, "1h")).await;
    let hurried = bed.post("hurried", r#"{"type": "order", "order": 9}"#, None).await.expect("taken");
    assert_eq!(hurried.reply_status, ReplyStatus::Expired);
    let late = bed.ended(bed.result(r#"{"order": 9}"#).await).await;
    assert_eq!((late.answers, late.ending), (Some(hurried.id), Some(Ending::Late)), "of what is over nobody wants it");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_waits_for_is_routed_or_suspended_and_edited_it_finds_its_message() {
    let bed = Bed::with_later().await;
    let sent = bed.post("orders", ORDER, None).await.expect("taken");
    bed.awaiting(sent.id).await;
    let note = bed.post("results", r#"{"type": "note", "order": 5}"#, None).await.expect("taken");
    assert_eq!(note.reply_status, ReplyStatus::Stored);
    assert_eq!(bed.ended(note.id).await.kind, MessageKind::OneWay, "a route leads it");

    let odd = bed.post("results", r#"{"order": 70}"#, None).await.expect("taken");
    let ReplyStatus::Suspended(reason) = &odd.reply_status else { panic!("{odd:?}") };
    assert!(reason.starts_with("no message waits for it as its reply, and no route leads it"), "{reason}");
    let only = || MessageFilter { id: Some(odd.id), ..MessageFilter::default() };
    let edit = Edit { body: Some(Bytes::from_static(RESULT.as_bytes())), ..Edit::default() };
    let edited = bed.exchanges.operations.edit(&MessageSelection::from(only()), &edit, "test").await.expect("edited");
    assert_eq!(edited.messages, [odd.id]);
    assert_eq!(bed.exchanges.operations.resume(only(), "op").await.expect("resumed").messages, 1);
    assert_eq!(bed.ended(sent.id).await.reply, Some(odd.id));
    bed.ended(odd.id).await;
    assert_eq!(bed.a.asked_times(2).await[1].body, RESULT);
    bed.open_is(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_come_many_together_as_files_or_packed_by_steps() {
    let bed = Bed::start().await;
    let drop = bed.folder.path().join("drop/results");
    std::fs::create_dir_all(&drop).expect("made");
    let port = "results: { mode: one_way, pipeline: [{ split: { lines: true } }], locations: { files: { kind: directory, \
                options: { folder: results, settle: 1ms, rescan: 1ms } } } }";
    bed.define(&later(&bed.a, &bed.b, "1h").replace("results: { mode: one_way }", port)).await;
    let mut sent = Vec::new();
    for order in 0..6 {
        let body = format!(r#"{{"type": "order", "order": {order}}}"#);
        let id = bed.post("orders", &body, Some(&format!("k{order}"))).await.expect("taken").id;
        bed.awaiting(id).await;
        sent.push(id);
    }
    let lines =
        |orders: std::ops::Range<u32>| orders.map(|order| format!("{{\"order\": {order}}}\n")).collect::<String>();
    bed.result(&lines(0..3)).await;
    std::fs::write(drop.join("later.tmp"), lines(3..6)).expect("written");
    std::fs::rename(drop.join("later.tmp"), drop.join("later.ndjson")).expect("moved");
    for id in &sent {
        assert_eq!(bed.ended(*id).await.ending, Some(Ending::Delivered));
    }
    assert_eq!(bed.a.asked_times(6).await.len(), 6, "each is led back");
}
