//! Bodies on their way, and messages by their properties.

use tocsin_model::exchange::{TrackPlace, TrackPoint, TrackSwitch};
use tocsin_store::tracking::{BodyChange, TrackedBody};

use super::*;
use crate::tracking_queries::{MessagePage, MessageQuery};

fn tracked(text: &str, tracking: &str) -> String {
    let text = text.replace("\nreceive:", &format!("\ntracking: {{ {tracking} }}\nreceive:"));
    text.replace("json: $.order }", "json: $.order, search: true }")
}

impl Bed {
    async fn track(&self, tracking: &str) {
        let text = tracked(&definition(&self.a, &self.b, ""), tracking);
        self.exchanges.operations.apply(&text, "test").await.expect("a good definition");
    }

    async fn bodies(&self, id: MessageId) -> Vec<TrackedBody> {
        self.exchanges.operations.tracked(id).await.expect("read")
    }

    async fn find(&self, value: &str, limit: usize, after: Option<&MessagePage>) -> MessagePage {
        let sought = MessageQuery {
            exchange: name("orders"),
            property: name("order"),
            value: value.into(),
            since: None,
            until: None,
            after: after.and_then(|found| found.next),
        };
        self.exchanges.operations.find_messages(sought, limit).await.expect("found")
    }
}

fn summary(bodies: &[TrackedBody]) -> Vec<(TrackPoint, String, String)> {
    let text = |body: &TrackedBody| String::from_utf8(body.body.to_vec()).expect("text");
    bodies.iter().map(|body| (body.point, body.port.to_string(), text(body))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_is_kept_at_four_points() {
    let bed = Bed::start().await;
    bed.track("bodies: [received, sent, replied, returned]").await;
    bed.b.failures.lock().push(503);
    let answered = bed.ask(ORDER).await;
    let bodies = bed.bodies(answered.id).await;
    let reply = r#"{"confirmed":true,"order":7}"#;
    let expected = [
        (TrackPoint::Received, "questions", ORDER),
        (TrackPoint::Sent, "b", ORDER),
        (TrackPoint::Sent, "b", ORDER),
        (TrackPoint::Replied, "b", reply),
        (TrackPoint::Returned, "questions", reply),
    ];
    let expected = expected.map(|(point, port, body)| (point, port.to_owned(), body.to_owned()));
    assert_eq!(summary(&bodies), expected);
    assert_eq!(bodies.iter().filter_map(|body| body.attempt).collect::<Vec<_>>(), [(0, 1), (0, 2), (0, 2)]);
    let again = bed.exchanges.intake.reply_to(answered.id, Duration::ZERO).await.expect("read");
    assert!(matches!(again, Some(ReplyStatus::Replied { .. })));
    assert_eq!(bed.bodies(answered.id).await.len(), 6, "who asks for the reply again is given it again");
    assert_eq!(bed.exchanges.operations.tracking_counts().dropped, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_tracked_is_switched_while_it_runs_and_over_restarts() {
    let mut bed = Bed::start().await;
    bed.track("bodies: [received], redact: [$.type], sample: 0%").await;
    assert!(bed.bodies(bed.ask(ORDER).await.id).await.is_empty(), "none is in the sample");
    let all = TrackSwitch { points: TrackPoint::ALL.to_vec(), sample_percent: 100 };
    let only_sent = TrackSwitch { points: vec![TrackPoint::Sent], sample_percent: 100 };
    bed.exchanges
        .operations
        .set_tracking(&name("orders"), TrackPlace::Ports(name("b")), Some(only_sent))
        .await
        .expect("set");
    bed.exchanges.operations.set_tracking(&name("orders"), TrackPlace::Exchange, Some(all)).await.expect("set");
    let check = async |bed: &Bed| {
        let bodies = bed.bodies(bed.ask(ORDER).await.id).await;
        let points: Vec<TrackPoint> = bodies.iter().map(|body| body.point).collect();
        assert_eq!(points, [TrackPoint::Received, TrackPoint::Sent, TrackPoint::Returned]);
        assert_eq!(bodies[0].body, r#"{"type":"***","order":7}"#, "what is struck out is as defined");
        assert_eq!((bodies[0].change, bodies[2].change), (Some(BodyChange::Redacted), None));
    };
    check(&bed).await;
    bed.restart().await;
    check(&bed).await;
    let ports = bed.exchanges.operations.tracking(&name("orders")).expect("it runs");
    assert!(ports.iter().all(|port| port.is_set), "{ports:?}");
    for place in [TrackPlace::Exchange, TrackPlace::Ports(name("b"))] {
        bed.exchanges.operations.set_tracking(&name("orders"), place, None).await.expect("set");
    }
    assert!(bed.bodies(bed.ask(ORDER).await.id).await.is_empty());
    let missing = bed.exchanges.operations.set_tracking(&name("orders"), TrackPlace::Ports(name("nobody")), None).await;
    assert!(matches!(missing, Err(OperateError::Missing(_))), "{missing:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_route_leads_is_tracked_and_nothing_else() {
    let mut bed = Bed::start().await;
    let text = definition(&bed.a, &bed.b, "");
    let to_b = "message.type == 'order'\", to: b";
    let text = text.replace(to_b, &format!("{to_b}, tracking: {{ bodies: [sent, returned] }}"));
    bed.define(&text).await;
    let points = async |bed: &Bed, id| {
        let bodies = bed.bodies(id).await;
        bodies.iter().map(|body| (body.point, body.port.to_string())).collect::<Vec<_>>()
    };
    let led = vec![(TrackPoint::Sent, "b".to_owned()), (TrackPoint::Returned, "questions".to_owned())];
    let answered = bed.ask(ORDER).await;
    assert_eq!(points(&bed, answered.id).await, led);
    let note = bed.post("orders", r#"{"type": "note", "order": 7}"#, None).await.expect("taken");
    bed.ended(note.id).await;
    assert!(points(&bed, note.id).await.is_empty(), "another route led it");

    let received = TrackSwitch { points: vec![TrackPoint::Received], sample_percent: 100 };
    let route = |text: &str| TrackPlace::Route(name(text));
    bed.exchanges
        .operations
        .set_tracking(&name("orders"), route("only_told"), Some(received.clone()))
        .await
        .expect("set");
    bed.exchanges.operations.set_tracking(&name("orders"), route("to_b"), Some(received)).await.expect("set");
    bed.restart().await;
    for (port, kind) in [("questions", "order"), ("orders", "note")] {
        let sent = bed.post(port, &format!(r#"{{"type": "{kind}", "order": 7}}"#), None).await.expect("taken");
        assert_eq!(points(&bed, sent.id).await, [(TrackPoint::Received, port.to_owned())]);
    }
    bed.exchanges.operations.set_tracking(&name("orders"), route("to_b"), None).await.expect("set");
    assert_eq!(points(&bed, bed.ask(ORDER).await.id).await, led);
    let missing = bed.exchanges.operations.set_tracking(&name("orders"), route("b"), None).await;
    assert!(matches!(missing, Err(OperateError::Missing(_))), "{missing:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_found_by_a_property_also_those_that_a_crash_left_out() {
    let mut bed = Bed::start().await;
    bed.track("").await;
    let ids: Vec<MessageId> = [bed.ask(ORDER).await.id, bed.ask(ORDER).await.id].into();
    bed.ask(r#"{"type": "order", "order": 8}"#).await;
    let check = async |bed: &Bed| {
        let first = bed.find("7", 3, None).await;
        let rest = bed.find("7", 3, Some(&first)).await;
        assert_eq!((first.messages.len(), rest.messages.len(), rest.next), (3, 1, None), "requests and their replies");
        let found: Vec<MessageId> = first.messages.iter().chain(&rest.messages).map(|found| found.id).collect();
        assert!(ids.iter().all(|id| found.contains(id)), "{found:?}");
    };
    check(&bed).await;
    // As if the process had crashed before anything was written.
    assert!(bed.exchanges.stop(wait_timeout()).await);
    let elsewhere = tempfile::tempdir().expect("a folder");
    bed.copy_spool(elsewhere.path());
    bed.folder = elsewhere;
    bed.exchanges = open(bed.folder.path()).await;
    let reading = async { while bed.find("7", 9, None).await.messages.len() < 4 {} };
    tokio::time::timeout(wait_timeout(), reading).await.expect("in time");
    check(&bed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_suspended_for_longer_than_messages_are_kept_is_still_found() {
    let bed = Bed::start().await;
    bed.track("").await;
    let answered = bed.ask(ORDER).await;
    bed.ended(answered.id).await;
    let nowhere = bed.post("orders", r#"{"type": "nothing known", "order": 7}"#, None).await.expect("taken");
    bed.suspended_times(1).await;
    assert_eq!(bed.find("7", 9, None).await.messages.len(), 3, "the request, its reply and what leads nowhere");
    for years in 1..=2 {
        let much_later = bed.exchanges.core.parts.clock.now() + Duration::from_secs(years * 366 * 86_400);
        bed.exchanges.core.parts.spool.prune(much_later, 500).await.expect("pruned");
        crate::upkeep::prune_tracking(&bed.exchanges.core, much_later).await;
        let found: Vec<MessageId> = bed.find("7", 9, None).await.messages.iter().map(|found| found.id).collect();
        assert_eq!(found, [nowhere.id]);
    }
    let over = bed.exchanges.core.parts.clock.now() + Duration::from_secs(366 * 86_400);
    let entries = bed.exchanges.core.parts.tracking.expired_blocks(over).await.expect("read");
    assert!(entries.is_empty(), "nothing leads to what is not there any more: {entries:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_looks_for_what_cannot_be_found_is_told_why() {
    let bed = Bed::start().await;
    bed.track("").await;
    for (property, value, message) in [
        ("ordr", "7", "did you mean `order`?"),
        ("type", "7", "`search: true`"),
        ("order", "x", "value: of the property `order`"),
    ] {
        let sought = MessageQuery {
            exchange: name("orders"),
            property: name(property),
            value: value.into(),
            since: None,
            until: None,
            after: None,
        };
        let Err(OperateError::Invalid(problems)) = bed.exchanges.operations.find_messages(sought, 9).await else {
            panic!("{property}")
        };
        assert!(problems[0].to_string().contains(message), "{problems:?}");
    }
}
