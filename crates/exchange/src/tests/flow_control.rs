//! Tests of flow control: what throttles messages, and how it is reported.

use tocsin_model::{
    application::Rate,
    exchange::FlowSide::{self, Delivery, Publishing},
};

use super::*;

fn rate(text: &str) -> Option<Rate> {
    Some(text.parse().expect("a rate"))
}

impl Bed {
    async fn set_rate(&self, side: FlowSide, port: Option<&str>, rate: Option<Rate>) {
        let port = port.map(name);
        self.exchanges.operations.set_rate(&name("orders"), side, port.as_ref(), rate).await.expect("set");
    }

    /// Why a message is refused.
    async fn refused(&self, port: &str, body: &str) -> ThrottleReason {
        match self.post(port, body, None).await {
            Err(ReceiveError::Full { code, retry_after, .. }) => {
                assert!(retry_after >= Duration::from_secs(1) && retry_after <= Duration::from_secs(60));
                code
            }
            other => panic!("{other:?}"),
        }
    }

    async fn throttled(&self) -> Vec<(FlowSide, Option<Name>, ThrottleReason)> {
        let report = self.exchanges.operations.flow(&name("orders")).await.expect("there");
        report.throttled.into_iter().map(|found| (found.side, found.port, found.reason)).collect()
    }

    /// Looks until it is so.
    async fn looks_until(&self, side: FlowSide, port: Option<&str>, reason: ThrottleReason, is_so: bool) {
        let looking = async {
            while self.throttled().await.contains(&(side, port.map(name), reason)) != is_so {
                flow_monitor::check(&self.exchanges.core).await;
            }
        };
        tokio::time::timeout(wait_timeout(), looking).await.expect("in time");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b1_a_rate_that_is_raised_counts_for_what_waits_already() {
    let bed = Bed::with("concurrency: 2").await;
    bed.set_rate(Delivery, Some("b"), rate("1/h")).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(bed.post("orders", ORDER, None).await.expect("taken").id);
    }
    bed.ended(ids[0]).await;
    // The first of them leaves at once, and the others wait by the rate before until the rate now is asked.
    bed.set_rate(Delivery, Some("b"), rate("100/s")).await;
    for id in ids {
        bed.ended(id).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_sends_faster_than_messages_leave_is_slowed_down_and_nobody_else() {
    let bed = Bed::with("concurrency: 2").await;
    bed.set_rate(Delivery, Some("b"), rate("1/h")).await;
    // One leaves, two are as many as may leave at once, and behind the next one nobody comes any more.
    let first = bed.post("orders", ORDER, None).await.expect("taken").id;
    bed.ended(first).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(bed.post("orders", ORDER, None).await.expect("taken").id);
    }
    assert_eq!(bed.refused("orders", ORDER).await, ThrottleReason::RateImbalance);
    assert!(bed.exchanges.operations.counts().open <= 4, "nothing of the refused one is stored");
    let note = bed.post("orders", r#"{"type": "note", "order": 1}"#, None).await.expect("taken: it goes elsewhere");
    bed.ended(note.id).await;
    bed.looks_until(Delivery, Some("b"), ThrottleReason::Operator, true).await;
    let throttled = bed.throttled().await;
    assert!(throttled.contains(&(Publishing, Some(name("b")), ThrottleReason::RateImbalance)), "{throttled:?}");

    bed.set_rate(Delivery, Some("b"), None).await;
    for id in ids {
        bed.ended(id).await;
    }
    bed.looks_until(Publishing, Some("b"), ThrottleReason::RateImbalance, false).await;
    bed.post("orders", ORDER, None).await.expect("taken");
    let changes = bed.exchanges.operations.flow_changes(&name("orders"), 100).await.expect("read");
    let of = |begins| {
        let change = |change: &&tocsin_store::spool::ThrottleChange| {
            change.reason == ThrottleReason::RateImbalance && change.begins == begins
        };
        changes.iter().filter(change).count()
    };
    assert_eq!((of(true), of(false)), (1, 1), "{changes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_lets_few_in_also_after_a_restart() {
    let mut bed = Bed::start().await;
    bed.set_rate(Publishing, None, rate("0")).await;
    assert_eq!(bed.refused("orders", ORDER).await, ThrottleReason::Operator);
    bed.restart().await;
    assert_eq!(bed.refused("questions", ORDER).await, ThrottleReason::Operator);
    bed.set_rate(Publishing, None, None).await;
    bed.set_rate(Publishing, Some("orders"), rate("1/h")).await;
    bed.post("orders", ORDER, None).await.expect("the first of the hour");
    assert_eq!(bed.refused("orders", ORDER).await, ThrottleReason::Operator);
    bed.ask(ORDER).await;
    bed.set_rate(Publishing, Some("orders"), None).await;
    bed.looks_until(Publishing, None, ThrottleReason::Operator, false).await;
    bed.looks_until(Publishing, Some("orders"), ThrottleReason::Operator, false).await;
    let missing = bed.exchanges.operations.set_rate(&name("orders"), Delivery, Some(&name("questions")), None).await;
    assert!(matches!(missing, Err(OperateError::Missing(_))), "a receive port sends nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn so_many_senders_are_held_open_and_no_more() {
    let bed = Bed::start().await;
    let text = definition(&bed.a, &bed.b, "") + "flow: { in_flight: 1 }\n";
    bed.define(&text).await;
    let slow = bed.post("questions", r#"{"type": "slow", "order": 1}"#, None);
    let others = async {
        bed.b.asked_times(1).await;
        assert_eq!(bed.refused("questions", ORDER).await, ThrottleReason::InFlight);
        bed.b.gate.notify_one();
    };
    let (slow, ()) = tokio::join!(slow, others);
    slow.expect("taken");
    bed.ask(ORDER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn short_of_memory_nothing_comes_in_and_what_is_there_leaves() {
    let (a, b) = (FarSide::start().await, FarSide::start().await);
    let (folder, used) = (tempfile::tempdir().expect("a folder"), Arc::<AtomicU64>::default());
    let exchanges = open_with_memory(folder.path(), used.clone()).await;
    exchanges.operations.apply(&definition(&a, &b, ""), "test").await.expect("a good definition");
    let bed = Bed { exchanges, a, b, folder };
    bed.exchanges.operations.set_port(&name("orders"), &name("b"), Some(PortState::Hold)).await.expect("set");
    let mut ids = Vec::new();
    for _ in 0..40 {
        ids.push(bed.post("orders", ORDER, None).await.expect("taken").id);
    }
    used.store(1_001, Ordering::SeqCst);
    flow_monitor::check(&bed.exchanges.core).await;
    assert_eq!(bed.refused("orders", ORDER).await, ThrottleReason::Memory);
    bed.exchanges.operations.set_port(&name("orders"), &name("b"), None).await.expect("set");
    for id in ids {
        bed.ended(id).await;
    }
    used.store(1_000, Ordering::SeqCst);
    flow_monitor::check(&bed.exchanges.core).await;
    bed.post("orders", ORDER, None).await.expect("taken");
    bed.looks_until(Publishing, None, ThrottleReason::Memory, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_is_slower_than_what_comes_says_so_and_reads_less_ahead() {
    let bed = Bed::start().await;
    let text = definition(&bed.a, &bed.b, "") + "flow: { wait: 7d }\n";
    bed.define(&text).await;
    bed.set_rate(Delivery, Some("b"), rate("1/m")).await;
    let mut ids = Vec::new();
    for _ in 0..60 {
        ids.push(bed.post("orders", ORDER, None).await.expect("taken").id);
    }
    bed.looks_until(Delivery, Some("b"), ThrottleReason::RateImbalance, true).await;
    let ports = bed.exchanges.operations.ports(&name("orders")).await.expect("it runs");
    let ready = ports.iter().find(|load| load.port == name("b")).expect("it is there").ready;
    assert!(ready < 60, "{ready} are in memory");
    bed.set_rate(Delivery, Some("b"), None).await;
    for id in ids {
        bed.ended(id).await;
    }
    bed.looks_until(Delivery, Some("b"), ThrottleReason::RateImbalance, false).await;
}
