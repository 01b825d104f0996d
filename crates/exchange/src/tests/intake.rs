//! Tests of the intake: refusals and holds while it is closed, and the count of messages that are still to leave.

use tocsin_connect::Clock;

use super::*;
use crate::intake::{IntakeState, WaitingMessages};

const ORDER: &str = r#"{"type": "order", "order": 7}"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_intake_refuses_messages_and_answers_repetitions() {
    let bed = Bed::start().await;
    let first = bed.post("orders", ORDER, Some("k")).await.expect("taken");
    bed.exchanges.intake.set_state(IntakeState { refusal: Some("`role:accept` is disabled".to_owned()), hold: None });
    let refused = bed.post("orders", ORDER, None).await;
    assert!(
        matches!(&refused, Err(ReceiveError::IntakeClosed(reason)) if reason.contains("role:accept")),
        "{refused:?}"
    );
    assert!(matches!(bed.post("orders", ORDER, Some("other")).await, Err(ReceiveError::IntakeClosed(_))));
    let again = bed.post("orders", ORDER, Some("k")).await.expect("answered");
    assert_eq!((again.id, again.duplicate), (first.id, true));
    bed.exchanges.intake.set_state(IntakeState::default());
    bed.post("orders", ORDER, None).await.expect("taken");
}

#[tokio::test(flavor = "multi_thread")]
async fn due_messages_are_counted_until_they_have_left() {
    let bed = Bed::start().await;
    let waiting = async || bed.exchanges.operations.waiting_messages(SystemClock.now()).await.expect("counted");
    let nothing = WaitingMessages::default();
    assert_eq!(waiting().await, nothing);
    bed.post("orders", r#"{"type": "slow", "order": 1}"#, None).await.expect("taken");
    bed.b.asked_times(1).await;
    assert_eq!(waiting().await, WaitingMessages { due: 1, ..nothing }, "it is on its way");
    bed.b.gate.notify_one();
    let leaves = async {
        while waiting().await.due > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(wait_timeout(), leaves).await.expect("in time");

    bed.exchanges.operations.set_port(&name("orders"), &name("b"), Some(PortState::Hold)).await.expect("held");
    bed.post("orders", ORDER, None).await.expect("taken");
    let held = waiting().await;
    assert_eq!((held.due, held.held), (0, 1), "{held:?}");
}
