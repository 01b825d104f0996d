//! Send queues under every order of events: each waiting message is sent in the end.
//!
//! A lost wake-up shows as a message that stays open although its port is active, its receiver answers and nothing is suspended.

use tocsin_model::application::Rate;
use tocsin_model::exchange::FlowSide;

use super::*;

/// An event of the send queue of the send port `b`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    /// A message comes, and its receiver takes it.
    Push,
    /// A request comes; its caller does not wait.
    Ask,
    /// A message comes, and its receiver fails once.
    Retry,
    /// A message comes; the first transport fails for good, and the backup sends it.
    Backup,
    /// A message comes, and both transports refuse it.
    Refused,
    /// The port holds what is routed to it.
    Hold,
    /// The port sends.
    Active,
    /// The port is off: what comes is routed nowhere.
    Off,
    /// An operator holds the port.
    Stop,
    /// An operator releases the port.
    Go,
    /// An operator resumes what is suspended.
    Resume,
    /// An operator ends what is open.
    End,
    /// The definition is applied again.
    Apply,
    /// The process restarts.
    Restart,
}

use Event::*;

const EVENTS: [Event; 13] = [Push, Ask, Retry, Backup, Refused, Hold, Active, Off, Stop, Go, Resume, End, Apply];

struct Lanes {
    bed: Bed,
    spare: FarSide,
    text: String,
    sent: Vec<MessageId>,
}

impl Lanes {
    async fn start(order: &str) -> Lanes {
        let spare = FarSide::start().await;
        let more = format!(
            "concurrency: 2\n    {order}\n    backup: {{ protocol: http, options: {{ url: '{}/b', allow_networks: [127.0.0.1] }}, retry: \
             {{ delays: [1ms], jitter: 0% }} }}",
            spare.url
        );
        let bed = Bed::with(&more).await;
        let text = definition(&bed.a, &bed.b, &more).replace("delays: [20ms, 20ms]", "delays: [1ms]");
        bed.define(&text).await;
        Lanes { bed, spare, text, sent: Vec::new() }
    }

    async fn push(&mut self, port: &str, first: &[u16], backup: &[u16]) {
        self.bed.b.failures.lock().extend(first);
        self.spare.failures.lock().extend(backup);
        let running = self.bed.exchanges.find(&name("orders")).expect("it runs");
        let incoming = IncomingMessage {
            content_type: "application/json".into(),
            headers: vec![("x-sender".into(), "a".into())],
            body: Bytes::from_static(ORDER.as_bytes()),
            wait: Some(Duration::ZERO),
            ..IncomingMessage::default()
        };
        let sent = self.bed.exchanges.intake.receive(&running, &name(port), incoming).await.expect("taken");
        self.sent.push(sent.id);
    }

    async fn set(&self, state: Option<PortState>) {
        self.bed.exchanges.operations.set_port(&name("orders"), &name("b"), state).await.expect("set");
    }

    async fn rate(&self, rate: Option<&str>) {
        let rate = rate.map(|rate| rate.parse::<Rate>().expect("a rate"));
        self.bed
            .exchanges
            .operations
            .set_rate(&name("orders"), FlowSide::Delivery, Some(&name("b")), rate)
            .await
            .expect("set");
    }

    async fn happen(&mut self, event: Event) {
        let of_b = MessageFilter { exchange: Some(name("orders")), ..MessageFilter::default() };
        match event {
            Push => self.push("orders", &[], &[]).await,
            Ask => self.push("questions", &[], &[]).await,
            Retry => self.push("orders", &[503], &[]).await,
            Backup => self.push("orders", &[503, 503], &[]).await,
            Refused => self.push("orders", &[400], &[400]).await,
            Hold => self.set(Some(PortState::Hold)).await,
            Active => self.set(None).await,
            Off => self.set(Some(PortState::Off)).await,
            Stop => self.rate(Some("0")).await,
            Go => self.rate(None).await,
            Resume => _ = self.bed.exchanges.operations.resume(of_b, "op").await.expect("resumed"),
            End => {
                let open = MessageFilter { standing: Some(MessageStatus::Open), ..of_b };
                self.bed.exchanges.operations.end(open, "op").await.expect("ended");
            }
            Apply => self.bed.define(&self.text).await,
            Restart => self.bed.restart().await,
        }
    }

    /// Everything is as it should be again: whatever waits is served.
    async fn all_is_served(&mut self, events: &[Event]) {
        self.bed.b.failures.lock().clear();
        self.spare.failures.lock().clear();
        self.set(None).await;
        self.rate(None).await;
        let serving = async {
            loop {
                let open = MessageFilter { standing: Some(MessageStatus::Open), ..MessageFilter::default() };
                let open = self.bed.found(open).await;
                if open.is_empty() {
                    return;
                }
                let stuck = |stored: &StoredMessage| {
                    stored.suspended.is_some() || stored.legs.iter().any(|leg| leg.state == LegState::Suspended)
                };
                if open.iter().any(stuck) {
                    self.bed.exchanges.operations.resume(MessageFilter::default(), "op").await.expect("resumed");
                }
                tokio::task::yield_now().await;
            }
        };
        if tokio::time::timeout(Duration::from_secs(20), serving).await.is_err() {
            let open = MessageFilter { standing: Some(MessageStatus::Open), ..MessageFilter::default() };
            panic!("after {events:?} nothing serves {:?}", self.bed.found(open).await);
        }
        for id in self.sent.drain(..) {
            let stored = self.bed.exchanges.operations.message(id).await.expect("read").expect("there");
            assert!(stored.ended_at.is_some(), "after {events:?}: {stored:?}");
        }
    }

    async fn check(&mut self, events: &[Event]) {
        for event in events {
            self.happen(*event).await;
        }
        self.all_is_served(events).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b1_every_pair_of_events_leaves_no_message_of_a_lane_behind() {
    check_pairs("").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_b1_every_pair_of_events_leaves_no_message_of_an_ordered_lane_behind() {
    check_pairs("priority: { by: order }").await;
    check_pairs("ordered: { by: [type] }").await;
    check_pairs("ordered: { by: [type], stop_on_failure: true }").await;
}

async fn check_pairs(order: &str) {
    let mut send_queues = Lanes::start(order).await;
    for first in EVENTS {
        for second in EVENTS {
            send_queues.check(&[first, second]).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_b1_every_three_events_leave_no_message_of_a_lane_behind() {
    let mut send_queues = Lanes::start("").await;
    for first in [Push, Retry, Backup, Refused] {
        for second in EVENTS {
            for third in EVENTS {
                send_queues.check(&[first, second, third, Push]).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b1_many_random_events_leave_no_message_of_a_lane_behind() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut send_queues = Lanes::start("").await;
    for _ in 0..12 {
        let events: Vec<Event> =
            (0..20).map(|at| if at == 10 { Restart } else { EVENTS[random.usize(..EVENTS.len())] }).collect();
        send_queues.check(&events).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b1_what_was_ended_while_it_waited_in_memory_does_not_leave() {
    let mut send_queues = Lanes::start("").await;
    send_queues.happen(Stop).await;
    for _ in 0..5 {
        send_queues.happen(Push).await;
    }
    let send_queue = send_queues.bed.exchanges.find(&name("orders")).expect("it runs").send_ports[&name("b")].clone();
    until(|| send_queue.load().1 == 5).await;
    send_queues.happen(End).await;
    send_queues.happen(Go).await;
    send_queues.happen(Push).await;
    send_queues.all_is_served(&[Stop, End, Go]).await;
    assert_eq!(send_queues.bed.b.all().len(), 1, "only what came after that left");
}
