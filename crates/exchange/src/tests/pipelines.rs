//! Steps at the ports of an exchange that runs: what is stored, what leaves, and what waits for an operator.

use super::*;

impl Bed {
    /// Applies the definition with more in the ports: each is the text before which something stands, and that.
    async fn change(&self, changes: &[(&str, &str)]) {
        let mut text = definition(&self.a, &self.b, "");
        for (before, more) in changes {
            assert!(text.contains(before), "{before}");
            text = text.replace(before, &format!("{before}{more}"));
        }
        self.exchanges.apply(&text, "test").await.expect("a good definition");
    }

    async fn parts(&self, id: MessageId) -> Vec<StoredMessage> {
        let filter = MessageFilter { part_of: Some(id), ..MessageFilter::default() };
        let mut parts = self.exchanges.messages(filter, None, 100).await.expect("read");
        parts.sort_by_key(|part| part.id);
        parts
    }

    async fn body(&self, id: MessageId) -> String {
        let body = self.exchanges.body(id).await.expect("read").expect("there");
        String::from_utf8(body.to_vec()).expect("text")
    }
}

const ORDERS: &str = "  orders: { mode: one_way";

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_split_and_each_part_goes_its_way() {
    let bed = Bed::start().await;
    bed.change(&[(ORDERS, ", pipeline: [promote: { type: $.type }, split: { json: $.orders }]")]).await;
    let body = r#"{"type": "note", "orders": [{"order": 1}, {"order": 2}, {"order": 3, "type": "odd"}]}"#;
    let sent = bed.post("orders", body, Some("k")).await.expect("taken");
    bed.a.asked_times(3).await;
    let whole = bed.message(sent.id).await;
    assert_eq!((whole.ending, whole.legs.len()), (Some(Ending::Split), 0));
    assert_eq!(bed.body(sent.id).await, body, "it is kept as it came");
    for (part, order) in bed.parts(sent.id).await.iter().zip(1..) {
        let ended = bed.ended(part.id).await;
        assert_eq!((ended.ending, ended.legs[0].port.as_str()), (Some(Ending::Delivered), "a"));
        assert!(bed.body(part.id).await.contains(&format!(r#""order": {order}"#)));
    }
    let again = bed.post("orders", body, Some("k")).await.expect("taken");
    assert_eq!((again.id, again.duplicate), (sent.id, true));
    assert_eq!((bed.a.all().len(), bed.exchanges.counts().open), (3, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_fails_suspends_and_the_resumed_message_goes_through_the_steps_that_run_then() {
    let bed = Bed::start().await;
    bed.change(&[(ORDERS, ", pipeline: [validate: { schema: { required: [customer] } }]")]).await;
    let sent = bed.post("orders", r#"{"type": "note", "order": 7}"#, None).await.expect("stored");
    let Course::Suspended(reason) = &sent.course else { panic!("{sent:?}") };
    assert!(reason.starts_with("step 1 of the pipeline (`validate`)"), "{reason}");
    let stuck = bed.message(sent.id).await;
    assert!(stuck.head.raw && stuck.legs.is_empty());
    assert_eq!(bed.exchanges.resume(MessageFilter::default()).await.expect("tried").messages, 0);
    assert_eq!(bed.suspended().await.len(), 1, "the steps are the same");

    bed.change(&[(ORDERS, ", pipeline: [transform: { jmespath: '{type: type, order: order, by: `op`}' }]")]).await;
    assert_eq!(bed.exchanges.resume(MessageFilter::default()).await.expect("resumed").messages, 1);
    assert_eq!(bed.ended(sent.id).await.ending, Some(Ending::Delivered));
    assert!(bed.a.all()[0].body.contains(r#""by":"op""#), "{:?}", bed.a.all());
    assert!(!bed.message(sent.id).await.head.raw);

    bed.change(&[(ORDERS, ", pipeline: [split: { json: $ }]")]).await;
    let odd = bed.post("orders", r#"{"type": "note", "order": 8}"#, None).await.expect("stored");
    bed.change(&[(ORDERS, ", pipeline: [transform: { jmespath: '[@, @]' }, split: { json: $ }]")]).await;
    bed.exchanges.resume(MessageFilter::default()).await.expect("resumed");
    assert_eq!(bed.message(odd.id).await.ending, Some(Ending::Split));
    assert_eq!(bed.parts(odd.id).await.len(), 2);
    for part in bed.parts(odd.id).await {
        bed.ended(part.id).await;
    }
    assert_eq!(bed.exchanges.counts().open, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_leaves_and_what_comes_back_goes_through_steps() {
    let bed = Bed::start().await;
    let out = r#"
    pipeline: [transform: { template: '{"order": {{ message.order }}, "asked": true}' }]
    reply_pipeline: [transform: { jmespath: '{order: order, reply: confirmed}' }]"#;
    bed.change(&[("correlate: [order]", out)]).await;
    let answered = bed.ask(ORDER).await;
    assert_eq!(reply_of(&answered), r#"{"order":7,"reply":true}"#);
    assert_eq!(bed.b.all()[0].body, r#"{"order": 7, "asked": true}"#);
    assert_eq!(bed.body(answered.id).await, ORDER, "the message itself is as it was");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_fails_on_the_way_out_or_back_suspends_the_leg() {
    let bed = Bed::start().await;
    let out = "\n    pipeline: [transform: { jmespath: missing }]";
    bed.change(&[("correlate: [order]", out)]).await;
    let asked = bed.ask(ORDER).await;
    let Course::Suspended(reason) = &asked.course else { panic!("{asked:?}") };
    assert!(reason.starts_with("b: step 1 of the pipeline (`transform`): the expression gives nothing"), "{reason}");
    assert_eq!(bed.b.all().len(), 0, "nothing left");

    let back = "\n    reply_pipeline: [validate: { schema: { required: [receipt] } }]";
    bed.change(&[("correlate: [order]", back)]).await;
    bed.exchanges.resume(MessageFilter::default()).await.expect("resumed");
    bed.b.asked_times(1).await;
    let course = bed.exchanges.wait_for(asked.id, PATIENCE).await.expect("read");
    let Some(Course::Suspended(reason)) = course else { panic!("{course:?}") };
    assert!(reason.contains("the reply cannot be used: step 1") && reason.contains("receipt"), "{reason}");
    let all = bed.exchanges.messages(MessageFilter::default(), None, 10).await.expect("read");
    assert_eq!(all[0].ending, Some(Ending::Wrong), "the reply is there to be looked at");

    bed.change(&[]).await;
    bed.exchanges.resume(MessageFilter::default()).await.expect("resumed");
    let course = bed.exchanges.wait_for(asked.id, PATIENCE).await.expect("read");
    assert!(matches!(course, Some(Course::Replied { .. })), "{course:?}");
}
