//! Table tests of single inputs and their actions.

use bytes::Bytes;
use tocsin_model::{exchange::MessageKind, id::Name};
use tocsin_store::spool::{Head, Leg, LegState};

use super::*;

/// A leg with an ordering key and a rank, in seconds.
pub(super) fn leg(message: u64, key: Option<&str>, rank: Option<i64>) -> WaitingLeg {
    let name: Name = "p".parse().expect("a name");
    WaitingLeg {
        message: MessageId(message),
        from: name.clone(),
        kind: MessageKind::OneWay,
        answers: None,
        head: Head::default(),
        body: Bytes::from_static(b"x"),
        accepted_at: Timestamp(0),
        expires_at: None,
        lane: key.map(str::to_owned),
        rank: rank.map(|seconds| Timestamp(0) + Duration::from_secs(seconds.unsigned_abs())),
        leg: Leg {
            number: 0,
            port: name,
            replies: false,
            through: None,
            state: LegState::Waiting,
            attempts: 0,
            on_backup: false,
            due_at: Timestamp(0),
            tried_at: None,
            said: None,
        },
    }
}

pub(super) fn settings(state: PortState, concurrency: u32, order: LegOrder) -> QueueSettings {
    QueueSettings { state, concurrency, order, window: None }
}

pub(super) fn conditions(instant: Instant, seconds: u64) -> Conditions {
    let after = Duration::from_secs(seconds);
    let (now, instant) = (Timestamp(0) + after, instant + after);
    Conditions { now, instant, memory_is_short: false, is_stopping: false }
}

/// A table row: the actions as text, with times in seconds after the start.
fn shown(actions: &Actions, start: Instant) -> String {
    let shown = actions.iter().map(|action| match action {
        Action::Start(leg) => format!("start {}", leg.message.0),
        Action::Refill(request) => {
            let mut skip: Vec<u64> = request.skip.iter().map(|(message, _)| message.0).collect();
            skip.sort_unstable();
            format!("refill {} without {skip:?}", request.legs_max)
        }
        Action::WakeAt(at) => format!("wake at {}", (*at - start).as_secs()),
    });
    shown.collect::<Vec<_>>().join(", ")
}

/// An active queue whose spool has no further legs.
fn empty(concurrency: u32, order: LegOrder, start: Instant) -> SendQueue {
    let mut queue = SendQueue::new(settings(PortState::Hold, concurrency, order));
    let now = conditions(start, 0);
    let actions = queue.configure(settings(PortState::Active, concurrency, order), &now);
    assert_eq!(shown(&actions, start), "refill 256 without []");
    assert!(queue.refilled(Page { is_all: true, ..Page::default() }, &now).is_empty());
    queue
}

/// Pushes a leg that was reserved.
fn push(queue: &mut SendQueue, message: u64, conditions: &Conditions) -> Actions {
    queue.reserve((MessageId(message), 0));
    queue.push(leg(message, None, None), conditions)
}

#[test]
fn each_input_has_its_actions() {
    let start = Instant::now();
    let (now, later) = (conditions(start, 0), conditions(start, 5));
    let mut queue = empty(1, LegOrder::Due, start);
    let check = |actions: Actions, expected: &str| assert_eq!(shown(&actions, start), expected);
    check(push(&mut queue, 1, &now), "start 1");
    check(push(&mut queue, 2, &now), "");
    let retried = FinishedLeg { retry_at: Some(later.now), ..FinishedLeg::of(&leg(1, None, None)) };
    check(queue.finished(retried, &now), "start 2, wake at 5");
    check(queue.finished(FinishedLeg::of(&leg(2, None, None)), &now), "");
    check(queue.woken(&later), "refill 256 without []");
    check(queue.refill_failed(&later), "wake at 6");
    check(queue.woken(&conditions(start, 6)), "refill 256 without []");
    let page = Page { legs: vec![leg(1, None, None)], is_all: true, next_due: Some(conditions(start, 60).now) };
    check(queue.refilled(page, &conditions(start, 6)), "start 1, wake at 60");
    check(queue.configure(settings(PortState::Hold, 1, LegOrder::Due), &later), "");
    check(push(&mut queue, 3, &later), "");
    check(queue.configure(settings(PortState::Active, 2, LegOrder::Due), &later), "refill 256 without [1]");
}

#[test]
fn a_rate_delays_the_next_leg_until_it_is_removed() {
    let start = Instant::now();
    let now = conditions(start, 0);
    let mut queue = empty(4, LegOrder::Due, start);
    queue.set_rate(Some("1/m".parse().expect("a rate")), &now);
    let check = |actions: Actions, expected: &str| assert_eq!(shown(&actions, start), expected);
    check(push(&mut queue, 1, &now), "start 1");
    check(push(&mut queue, 2, &now), "wake at 60");
    check(queue.set_rate(None, &now), "start 2");
}

#[test]
fn a_stopping_process_starts_nothing() {
    let start = Instant::now();
    let mut queue = empty(4, LegOrder::Due, start);
    let stopping = Conditions { is_stopping: true, ..conditions(start, 0) };
    assert!(push(&mut queue, 1, &stopping).is_empty());
    assert!(!queue.claim((MessageId(2), 0), &stopping));
}

#[test]
fn short_memory_reads_few_legs() {
    let start = Instant::now();
    let mut queue = SendQueue::new(settings(PortState::Active, 4, LegOrder::Due));
    let short = Conditions { memory_is_short: true, ..conditions(start, 0) };
    assert_eq!(shown(&queue.refill(&short), start), "refill 16 without []");
}

#[test]
fn a_message_that_is_cancelled_while_it_is_stored_is_not_sent() {
    let start = Instant::now();
    let now = conditions(start, 0);
    let mut queue = empty(1, LegOrder::Due, start);
    queue.reserve((MessageId(1), 0));
    queue.remove_cancelled(&HashSet::from([MessageId(1)]));
    assert_eq!(shown(&queue.push(leg(1, None, None), &now), start), "refill 256 without []");
    assert!(!queue.release((MessageId(1), 0)));
}

/// A port that is held during a read must read the legs again that it evicts: the read skips them.
#[test]
fn legs_evicted_during_a_read_are_read_again() {
    let start = Instant::now();
    let now = conditions(start, 0);
    let mut queue = empty(1, LegOrder::Due, start);
    push(&mut queue, 1, &now);
    push(&mut queue, 2, &now);
    assert_eq!(shown(&queue.refill(&now), start), "refill 256 without [1, 2]");
    queue.configure(settings(PortState::Hold, 1, LegOrder::Due), &now);
    assert_eq!(shown(&queue.configure(settings(PortState::Active, 1, LegOrder::Due), &now), start), "");
    let page = Page { is_all: true, ..Page::default() };
    assert_eq!(shown(&queue.refilled(page, &now), start), "refill 256 without [1]");
}

#[test]
fn a_slow_port_keeps_few_messages_in_memory() {
    let new = || SendQueue::new(settings(PortState::Active, 8, LegOrder::Due));
    let room = |took_ms: u64, busy: u32, failed: u32| {
        let mut queue = new();
        (0..200).for_each(|_| queue.throughput.note(Duration::from_millis(took_ms), busy, false));
        (0..failed).for_each(|_| queue.throughput.note(Duration::from_millis(took_ms), busy, true));
        queue.room()
    };
    assert_eq!(new().room(), LIMITS.ready_max, "nothing was sent yet");
    assert_eq!(room(10, 8, 0), LIMITS.ready_max);
    assert_eq!(room(8_000, 8, 0), 30);
    assert_eq!(room(60_000, 8, 0), LIMITS.room_min);
    assert_eq!(room(60_000, 8, 16), LIMITS.ready_max, "an unavailable receiver does not count as slow");
}

#[test]
fn a_count_ignores_differences_by_concurrent_moves() {
    let check = |due: u64, moves_before: u64, expected: u64| {
        let mut queue = SendQueue::new(settings(PortState::Active, 1, LegOrder::Due));
        (queue.throughput.waiting, queue.throughput.moves, queue.busy) = (3, 9, 1);
        queue.reserve((MessageId(1), 0));
        queue.counted(due, moves_before);
        assert_eq!(queue.throughput.waiting, expected, "{due} are due, after {moves_before} moves");
    };
    // One leg is in progress and one is being stored: either may be counted or not.
    check(2, 9, 3);
    check(6, 9, 3);
    check(7, 9, 6);
    check(1, 9, 0);
    // One leg was added or started as well.
    check(1, 8, 3);
    check(7, 8, 3);
    check(8, 8, 7);
}
