//! Tests of the order of sending: groups, service windows, keys and priorities.

use tocsin_connect::Clock;
use tocsin_model::{exchange::MessageKind, value::Value};
use tocsin_store::spool::{Head, NewMessage, PartitionNumber};

use super::*;

/// The order that a message had, by its body.
fn order_of(asked: &Asked) -> i64 {
    let body: serde_json::Value = serde_json::from_str(&asked.body).expect("JSON");
    body["order"].as_i64().expect("a number")
}

fn with_key(text: &str) -> String {
    text.replace("  type: $.type\n", "  type: $.type\n  key: $.key\n  urgency: { type: integer, json: $.urgency }\n")
}

impl Bed {
    async fn apply(&self, more_of_b: &str, change: impl Fn(String) -> String) {
        let text = change(with_key(&definition(&self.a, &self.b, more_of_b)));
        self.exchanges.operations.apply(&text, "test").await.expect("a good definition");
    }

    async fn hold(&self, state: Option<PortState>) {
        self.exchanges.operations.set_port(&name("orders"), &name("b"), state).await.expect("set");
    }

    /// Waits until one message to B is under way and so many are ready in memory.
    async fn has_ready(&self, many: usize) {
        let filling = async {
            loop {
                let ports = self.exchanges.operations.ports(&name("orders")).await.expect("known");
                let b = ports.iter().find(|port| port.port == name("b")).expect("there");
                if (b.under_way, b.ready) == (1, many) {
                    return;
                }
            }
        };
        tokio::time::timeout(wait_timeout(), filling).await.expect("in time");
    }

    async fn order(&self, order: i64, more: &str) -> MessageId {
        let body = format!(r#"{{"type": "order", "order": {order}{more}}}"#);
        self.post("orders", &body, None).await.expect("taken").id
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_all_its_ports() {
    let bed = Bed::start().await;
    let grouped = |text: String| {
        let text = text.replace("routes:\n", "groups: { both: [a, slow] }\nroutes:\n");
        text.replace("message.type == 'note'\", to: a", "message.type == 'note'\", to: [both, a]")
    };
    bed.apply("", grouped).await;
    let sent = bed.post("orders", r#"{"type": "note", "order": 1}"#, None).await.expect("taken");
    bed.b.asked_times(1).await;
    bed.b.gate.notify_one();
    let stored = bed.ended(sent.id).await;
    let ports: Vec<&str> = stored.legs.iter().map(|leg| leg.port.as_str()).collect();
    assert_eq!(ports, ["a", "slow"], "each once");
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_a_key_leave_as_they_came_over_failures_and_a_restart() {
    let mut bed = Bed::start().await;
    let patient = |text: String| text.replace("delays: [20ms, 20ms]", &format!("delays: [{}]", ["1ms"; 50].join(", ")));
    bed.apply("ordered: { by: key }", patient).await;
    bed.hold(Some(PortState::Hold)).await;
    const MANY: i64 = 120;
    let mut ids = Vec::new();
    for order in 0..MANY / 2 {
        ids.push(bed.order(order, &format!(r#", "key": "k{}""#, order % 3)).await);
    }
    bed.restart().await;
    bed.b.failures.lock().extend([503; 40]);
    bed.hold(None).await;
    for order in MANY / 2..MANY {
        ids.push(bed.order(order, &format!(r#", "key": "k{}""#, order % 3)).await);
    }
    for id in ids {
        bed.ended(id).await;
    }
    for key in 0..3 {
        let seen: Vec<i64> = bed.b.all().iter().map(order_of).filter(|order| order % 3 == key).collect();
        assert!(seen.is_sorted(), "{seen:?}");
        let mut once = seen;
        once.dedup();
        assert_eq!(once.len() as i64, MANY / 3);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_message_keeps_those_behind_it_if_so_asked() {
    let bed = Bed::start().await;
    bed.apply("ordered: { by: [key], stop_on_failure: true }", |text| text).await;
    bed.b.failures.lock().push(400);
    let first = bed.order(1, r#", "key": "x""#).await;
    bed.suspended_times(1).await;
    let second = bed.order(2, r#", "key": "x""#).await;
    let other = bed.order(3, r#", "key": "y""#).await;
    bed.ended(other).await;
    assert_eq!(bed.message(second).await.legs[0].state, LegState::Waiting);
    let only = MessageFilter { id: Some(first), ..MessageFilter::default() };
    bed.exchanges.operations.end(only, "op").await.expect("ended");
    bed.ended(second).await;
    assert_eq!(bed.b.all().iter().map(order_of).collect::<Vec<_>>(), [1, 3, 2]);

    bed.apply("ordered: { by: [key] }", |text| text).await;
    bed.b.failures.lock().push(400);
    bed.order(4, r#", "key": "x""#).await;
    let passes = bed.order(5, r#", "key": "x""#).await;
    bed.ended(passes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_highest_priority_leaves_first() {
    let bed = Bed::start().await;
    bed.apply("priority: { by: urgency, ageing: 1h }\n    concurrency: 1", |text| text).await;
    bed.hold(Some(PortState::Hold)).await;
    let mut ids = Vec::new();
    for (order, urgency) in [(1, 0), (2, 5), (3, 0), (4, 9), (5, 99), (6, 5)] {
        ids.push(bed.order(order, &format!(r#", "urgency": {urgency}"#)).await);
    }
    ids.push(bed.order(7, "").await);
    bed.hold(None).await;
    for id in ids {
        bed.ended(id).await;
    }
    assert_eq!(bed.b.all().iter().map(order_of).collect::<Vec<_>>(), [4, 5, 2, 6, 1, 3, 7]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_urgent_overtakes_what_is_ready() {
    let bed = Bed::start().await;
    let slow = |text: String| {
        let text = text.replace("/b\"", "/slow\"");
        text.replace("correlate: [order]", "correlate: []")
    };
    bed.apply("priority: { by: urgency }\n    concurrency: 1", slow).await;
    let mut ids = vec![bed.order(1, "").await];
    bed.b.asked_times(1).await;
    for (order, urgency) in [(2, 0), (3, 0), (4, 3)] {
        ids.push(bed.order(order, &format!(r#", "urgency": {urgency}"#)).await);
    }
    bed.has_ready(3).await;
    for asked in 1..=4 {
        bed.b.asked_times(asked).await;
        bed.b.gate.notify_one();
    }
    for id in ids {
        bed.ended(id).await;
    }
    assert_eq!(bed.b.all().iter().map(order_of).collect::<Vec<_>>(), [1, 4, 2, 3]);
}

/// A message as `accept` stores it, with a leg to A.
fn note(bed: &Bed) -> NewMessage {
    let running = bed.exchanges.find(&name("orders")).expect("it runs");
    let head = Head { properties: vec![(name("order"), Value::Integer(1))], ..Head::default() };
    NewMessage {
        id: bed.exchanges.core.parts.spool.next_id(PartitionNumber(0)),
        exchange: name("orders"),
        port: name("orders"),
        kind: MessageKind::OneWay,
        answers: None,
        settles: None,
        part_of: None,
        key: None,
        sender: Box::default(),
        legs: vec![running.send_ports[&name("a")].new_leg(&head).expect("no reply comes later")],
        head,
        body: Bytes::from_static(b"{}"),
        suspended: None,
        accepted_at: SystemClock.now(),
        expires_at: None,
        kept: Duration::from_secs(60),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_spool_shows_before_it_is_pushed_is_sent_once() {
    let bed = Bed::start().await;
    let running = bed.exchanges.find(&name("orders")).expect("it runs");
    let (announced, beside, given_up) = (note(&bed), note(&bed), note(&bed));
    let announcing = bed.exchanges.core.reserve_legs(&running, [&announced, &given_up]);
    for message in [&announced, &beside, &given_up] {
        bed.exchanges.core.parts.spool.accept(message.clone()).await.expect("stored");
    }
    // All are committed when the lane looks: it reads the one that nobody is about to push, and no other.
    bed.exchanges.intake.dispatch.refill(&running.send_ports[&name("a")]);
    bed.ended(beside.id).await;
    assert_eq!(bed.a.all().len(), 1);
    bed.exchanges.intake.dispatch.dispatch(&running, &announced);
    bed.ended(announced.id).await;
    // Who announces and does not push leaves it to the spool.
    drop(announcing);
    bed.ended(given_up.id).await;
    assert!(bed.exchanges.stop(wait_timeout()).await, "nothing more is in progress");
    assert_eq!(bed.a.all().len(), 3);
}

/// A window of an hour that opens in two hours.
fn later() -> String {
    let minutes = SystemClock.now().as_millis().div_euclid(60_000).rem_euclid(1_440);
    let shown = |minutes: i64| format!("{:02}:{:02}", minutes / 60 % 24, minutes % 60);
    format!("service_window: {{ hours: '{}-{}' }}", shown(minutes + 120), shown(minutes + 180))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_window_defers_what_is_sent_and_refuses_what_comes() {
    let bed = Bed::start().await;
    bed.apply(&later(), |text| text).await;
    let sent = bed.order(1, "").await;
    let ports = bed.exchanges.operations.ports(&name("orders")).await.expect("known");
    let opens_at = ports.iter().find(|port| port.port == name("b")).and_then(|port| port.opens_at).expect("closed");
    assert!(opens_at.since(SystemClock.now()) > Duration::from_secs(3_600));
    assert_eq!(bed.message(sent).await.legs[0].state, LegState::Waiting);
    let closed =
        |text: String| text.replace("orders: { mode: one_way }", &format!("orders: {{ mode: one_way, {} }}", later()));
    bed.apply("service_window: { hours: ['00:00-12:00', '12:00-24:00'], time_zone: Europe/Vienna }", closed).await;
    assert_eq!(bed.ended(sent).await.ending, Some(Ending::Delivered));
    let refused = bed.post("orders", ORDER, None).await;
    assert!(matches!(refused, Err(ReceiveError::Closed { .. })), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_windows_keys_and_groups_are_reported() {
    let bed = Bed::start().await;
    for (more, message) in [
        ("ordered: { by: [nobody] }", "`nobody` is not among the properties"),
        ("priority: { by: key }", "`key` is not an integer"),
        ("priority: { by: urgency }\n    ordered: { by: key }", "together with `ordered`"),
        ("service_window: { hours: '8-9' }", "is not a time of the day"),
        ("service_window: { hours: [] }", "are empty"),
        ("service_window: { hours: '08:00-09:00', time_zone: Vienna }", "`Vienna` is not a time zone"),
    ] {
        let text = with_key(&definition(&bed.a, &bed.b, more));
        let Err(OperateError::Invalid(problems)) = bed.exchanges.operations.apply(&text, "test").await else {
            panic!("{more}")
        };
        assert!(problems.len() == 1 && problems[0].message.contains(message), "{more}: {problems:?}");
    }
    for (group, message) in
        [("b: [a]", "the name of a send port"), ("g: []", "no send port"), ("g: [x]", "`x` is not among")]
    {
        let text = definition(&bed.a, &bed.b, "").replace("routes:\n", &format!("groups: {{ {group} }}\nroutes:\n"));
        let Err(OperateError::Invalid(problems)) = bed.exchanges.operations.apply(&text, "test").await else {
            panic!("{group}")
        };
        assert!(problems[0].message.contains(message), "{group}: {problems:?}");
    }
}
