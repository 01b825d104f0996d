//! Operators change what is suspended, and let it go on.

use serde_json::json;
use tocsin_model::{
    exact_json::Exact,
    filter::{Dialect, Filter},
};

use super::*;
use crate::{edit::Edit, operate::MessageSelection, promote};

fn one(id: MessageId) -> MessageSelection {
    MessageFilter { id: Some(id), ..MessageFilter::default() }.into()
}

fn exact(json: &serde_json::Value) -> Exact {
    Exact::read(json.to_string().as_bytes()).expect("JSON")
}

fn patch(patch: serde_json::Value) -> Edit {
    Edit { patch: Some(exact(&patch)), ..Edit::default() }
}

impl Bed {
    fn of_exchange(&self, when: &str) -> Result<MessageSelection, OperateError> {
        let filter = MessageFilter { exchange: Some(name("orders")), ..MessageFilter::default() };
        self.exchanges.operations.selection(filter, Some(&Filter { dialect: Dialect::Cel, text: when.to_owned() }))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unroutable_message_is_edited_and_goes_on() {
    let bed = Bed::start().await;
    let wrong =
        bed.post("questions", r#"{"type": "ordr", "order": 7, "x": {"y": 1}}"#, Some("k")).await.expect("stored");
    let edit = patch(json!({"type": "order", "x": {"y": null, "z": [1]}}));
    let edited = bed.exchanges.operations.edit(&one(wrong.id), &edit, "ann").await.expect("edited");
    assert_eq!((edited.messages, edited.unchanged), (vec![wrong.id], vec![]));
    assert_eq!(bed.suspended().await.len(), 1, "it waits to be resumed");
    bed.exchanges.operations.resume(one(wrong.id), "op").await.expect("resumed");
    let reply_status = bed.exchanges.intake.reply_to(wrong.id, wait_timeout()).await.expect("read");
    assert!(matches!(reply_status, Some(ReplyStatus::Replied { .. })), "{reply_status:?}");
    assert_eq!(bed.b.all()[0].body, r#"{"type":"order","order":7,"x":{"z":[1]}}"#);
    let original = bed.exchanges.operations.original(wrong.id).await.expect("read").expect("kept");
    assert_eq!((&*original.body, &*original.by), (&br#"{"type": "ordr", "order": 7, "x": {"y": 1}}"#[..], "ann"));
    let late = bed.exchanges.operations.edit(&one(wrong.id), &edit, "ann").await.expect("tried");
    assert_eq!(late.messages, [], "it is not suspended any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_failed_on_its_way_is_edited_unless_something_of_it_waits() {
    let bed = Bed::start().await;
    let both = definition(&bed.a, &bed.b, "")
        .replace("message.type == 'order'\", to: b", "message.type == 'order'\", to: [b, a]");
    bed.define(&both).await;
    bed.exchanges.operations.set_port(&name("orders"), &name("a"), Some(PortState::Hold)).await.expect("held");
    bed.b.failures.lock().push(400);
    let sent = bed.post("orders", ORDER, None).await.expect("taken");
    bed.suspended_times(1).await;
    let edit = Edit { properties: vec![(name("order"), json!(8))], body: Some("{}".into()), ..Edit::default() };
    let edited = bed.exchanges.operations.edit(&one(sent.id), &edit, "ann").await.expect("tried");
    assert!(edited.unchanged[0].1.contains("still waits"), "{edited:?}");
    bed.exchanges.operations.set_port(&name("orders"), &name("a"), None).await.expect("active");
    bed.a.asked_times(1).await;
    let delivering = async {
        while bed.message(sent.id).await.legs.iter().any(|leg| leg.state == LegState::Waiting) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(wait_timeout(), delivering).await.expect("in time");
    for (edit, why) in [
        (Edit { properties: vec![(name("nobody"), json!(1))], ..Edit::default() }, "no property `nobody`"),
        (Edit { properties: vec![(name("order"), json!("x"))], ..Edit::default() }, "the property `order`"),
        (Edit { body: Some("x".into()), patch: Some(exact(&json!({}))), ..Edit::default() }, "not JSON"),
    ] {
        let edited = bed.exchanges.operations.edit(&one(sent.id), &edit, "ann").await.expect("tried");
        assert!(edited.unchanged[0].1.contains(why), "{edited:?}");
    }
    let edited = bed.exchanges.operations.edit(&one(sent.id), &edit, "ann").await.expect("edited");
    assert_eq!(edited.messages, [sent.id]);
    assert_eq!(promote::text_of(&bed.message(sent.id).await.head, "order").as_deref(), Some("8"));
    bed.exchanges.operations.resume(one(sent.id), "op").await.expect("resumed");
    bed.b.asked_times(2).await;
    assert_eq!(bed.b.all()[1].body, "{}");
    let ids: Vec<String> = bed.b.all().iter().map(|asked| asked.headers["idempotency-key"].clone()).collect();
    assert_eq!(ids[1], format!("{}-e1", ids[0]), "it is another message");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_counts_messages_and_checks_their_edit() {
    let bed = Bed::start().await;
    bed.a.failures.lock().push(400);
    let sent = bed.post("orders", r#"{"type": "note", "order": 7}"#, None).await.expect("taken");
    bed.suspended_times(1).await;
    let before = bed.message(sent.id).await;
    let operations = &bed.exchanges.operations;
    for counted in [operations.count_resumable(&one(sent.id)).await, operations.count_endable(&one(sent.id)).await] {
        let counted = counted.expect("counted");
        assert_eq!((counted.messages, counted.legs), (1, 1));
    }
    let good = patch(json!({"order": 8}));
    let checked = operations.check_edit(&one(sent.id), &good).await.expect("checked");
    assert_eq!((checked.messages, checked.unchanged), (vec![sent.id], vec![]));
    let wrong = Edit { properties: vec![(name("unknown"), json!(1))], ..Edit::default() };
    let checked = operations.check_edit(&one(sent.id), &wrong).await.expect("checked");
    assert!(checked.messages.is_empty() && checked.unchanged[0].1.contains("no property `unknown`"), "{checked:?}");
    assert_eq!(bed.message(sent.id).await, before, "nothing was changed");
    operations.end(one(sent.id), "op").await.expect("ended");
    assert_eq!(operations.count_endable(&one(sent.id)).await.expect("counted").messages, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_property_makes_another_message_for_the_far_side_too() {
    let bed = Bed::start().await;
    bed.a.failures.lock().push(400);
    let sent = bed.post("orders", r#"{"type": "note", "order": 7}"#, None).await.expect("taken");
    bed.suspended_times(1).await;
    let edit = Edit { properties: vec![(name("order"), json!(8))], ..Edit::default() };
    assert_eq!(bed.exchanges.operations.edit(&one(sent.id), &edit, "ann").await.expect("edited").messages, [sent.id]);
    bed.exchanges.operations.resume(one(sent.id), "op").await.expect("resumed");
    let asked = bed.a.asked_times(2).await;
    let (paths, ids): (Vec<_>, Vec<_>) =
        asked.into_iter().map(|mut asked| (asked.path, asked.headers.remove("idempotency-key").expect("one"))).unzip();
    assert_eq!(paths, ["/replies/7", "/replies/8"]);
    assert_eq!(ids[1], format!("{}-e1", ids[0]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_predicate_chooses_among_them() {
    let bed = Bed::start().await;
    for order in 1..=4 {
        bed.post("orders", &format!(r#"{{"type": "ordr", "order": {order}}}"#), None).await.expect("stored");
    }
    let high = bed.of_exchange("message.order > 2").expect("good");
    assert_eq!(
        bed.exchanges
            .operations
            .edit(&high, &patch(json!({"type": "note"})), "ann")
            .await
            .expect("edited")
            .messages
            .len(),
        2
    );
    assert_eq!(bed.exchanges.operations.resume(high.clone(), "op").await.expect("resumed").messages, 2);
    bed.a.asked_times(2).await;
    let ended =
        bed.exchanges.operations.end(bed.of_exchange("message.order == 1").expect("good"), "op").await.expect("ended");
    assert_eq!((ended.messages, bed.suspended().await.len()), (1, 1));
    assert!(matches!(bed.of_exchange("message.ordr > 2"), Err(OperateError::Invalid(_))));
    let nowhere = Filter { dialect: Dialect::Cel, text: "true".to_owned() };
    let unnamed = bed.exchanges.operations.selection(MessageFilter::default(), Some(&nowhere));
    assert!(matches!(unnamed, Err(OperateError::Invalid(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn open_messages_are_counted_for_each_exchange() {
    let bed = Bed::start().await;
    let other = definition(&bed.a, &bed.b, "").replace("exchange: orders", "exchange: other\nopen_messages: 1");
    bed.define(&other).await;
    for _ in 0..3 {
        bed.post("orders", r#"{"type": "ordr"}"#, None).await.expect("stored");
    }
    let running = bed.exchanges.find(&name("other")).expect("it runs");
    let post = || IncomingMessage { body: Bytes::from_static(b"{}"), ..IncomingMessage::default() };
    bed.exchanges.intake.receive(&running, &name("orders"), post()).await.expect("it has room");
    let full = bed.exchanges.intake.receive(&running, &name("orders"), post()).await;
    assert!(matches!(full, Err(ReceiveError::Full { code: ThrottleReason::StoreGrowth, .. })), "{full:?}");
    let ended = MessageFilter { exchange: Some(name("other")), ..MessageFilter::default() };
    bed.exchanges.operations.end(ended, "op").await.expect("ended");
    bed.exchanges.intake.receive(&running, &name("orders"), post()).await.expect("it has room again");
    assert_eq!(bed.exchanges.operations.counts().open, 4);
}
