use serde_json::json;

use crate::testing::{Harness, taken};

/// Counts from its position, and reports its position after every second line.
const COUNTER: &str = r#"
n=${TOCSIN_POSITION:-0}
while [ $n -lt 10 ]; do
  n=$((n + 1)); echo "{\"id\": \"q$n\"}"
  n=$((n + 1)); echo "{\"id\": \"q$n\"}"; echo "{\"\$position\": \"$n\"}"
done
cat > /dev/null
"#;

fn program(script: &str) -> Harness {
    Harness::new("process", json!({"command": ["/bin/sh", "-c", script], "grace": "1s"}))
}

#[tokio::test]
async fn a_program_continues_at_its_position() {
    let mut harness = program(COUNTER);
    let mut events = harness.take_events(4).await;
    // Not committed, so it is delivered again.
    assert_eq!(harness.next().await.events.count(), 2);
    harness.crash();
    events.extend(harness.take_events(6).await);
    let expected: Vec<String> = (1..=10).map(|number| taken(&format!("{{\"id\": \"q{number}\"}}"))).collect();
    assert_eq!(events, expected);
    harness.source().close().await;
}

#[tokio::test]
async fn the_program_is_notified_of_acceptance() {
    let mut harness = program(
        r#"echo '{"id": "1"}'; echo '{"$position": "a b"}'; read answer; echo "{\"id\": \"heard\", \"tags\": [$answer]}"; cat"#,
    );
    assert_eq!(harness.take().await, [r#"{"id":"1"}"#]);
    assert_eq!(harness.take().await, [r#"{"id":"heard","tags":[{"accepted":"a b"}]}"#]);
    harness.source().close().await;
}

#[tokio::test]
async fn invalid_events_are_rejected_and_a_failing_program_is_an_error() {
    let mut harness = program("echo nonsense; echo '{\"id\": 7}'; cat");
    let batch = harness.next().await;
    assert_eq!((batch.events.count(), batch.refused.len()), (0, 2));
    assert_eq!(batch.refused[1].reason, "id: should be a string, not an integer");
    harness.source().close().await;

    let mut harness = program("exit 3");
    assert!(harness.try_next().await.expect_err("it failed").text.contains("exit status: 3"));
}
