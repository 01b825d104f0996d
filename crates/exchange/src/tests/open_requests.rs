//! Many requests that wait for their replies at the same time.

use std::collections::HashSet;

use futures_util::{StreamExt, stream};

use super::*;

/// Asks so many requests whose port holds them, and gives their ids once the port sends and each has its reply.
async fn ask_many(many: usize) {
    let bed = Bed::start().await;
    let held = bed.exchanges.operations.set_port(&name("orders"), &name("b"), Some(PortState::Hold)).await;
    held.expect("held");
    let running = bed.exchanges.find(&name("orders")).expect("it runs");
    let ask = |order: usize| {
        let incoming = IncomingMessage {
            content_type: "application/json".into(),
            body: format!(r#"{{"type": "order", "order": {order}}}"#).into(),
            wait: Some(Duration::ZERO),
            ..IncomingMessage::default()
        };
        let (exchanges, running) = (bed.exchanges.clone(), running.clone());
        async move { exchanges.intake.receive(&running, &name("questions"), incoming).await.expect("taken") }
    };
    let asked: Vec<ReceiveResult> = stream::iter(0..many).map(ask).buffered(256).collect().await;
    assert!(asked.iter().all(|received| received.reply_status == ReplyStatus::Pending));
    let ids: HashSet<MessageId> = asked.iter().map(|received| received.id).collect();
    assert_eq!((ids.len(), bed.b.all().len()), (many, 0), "each is stored, and none left");
    bed.open_is(many as u64).await;
    bed.exchanges.operations.set_port(&name("orders"), &name("b"), None).await.expect("active");
    let waits = asked.iter().map(|received| bed.exchanges.intake.reply_to(received.id, wait_timeout()));
    let replies: Vec<_> = stream::iter(waits).buffered(1_024).collect().await;
    for (order, reply) in replies.into_iter().enumerate() {
        let Some(ReplyStatus::Replied { body, .. }) = reply.expect("read") else { panic!("{order} has no reply") };
        assert_eq!(std::str::from_utf8(&body).expect("text"), format!(r#"{{"confirmed":true,"order":{order}}}"#));
    }
    assert_eq!(bed.b.all().len(), many, "each was sent once");
    bed.open_is(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn j6_each_of_many_open_requests_gets_its_own_reply() {
    ask_many(500).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_j6_each_of_10_000_open_requests_gets_its_own_reply() {
    ask_many(10_000).await;
}
