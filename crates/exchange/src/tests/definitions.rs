//! Tests of definitions: what an interrupted apply, removal or start leaves.

use futures_util::FutureExt;

use super::*;

#[tokio::test]
async fn a_guard_is_held_until_the_change_ends_although_its_caller_has_disconnected() {
    let bed = Bed::start().await;
    let (operations, orders) = (&bed.exchanges.operations, name("orders"));
    let changing = Arc::new(tokio::sync::Mutex::new(()));
    let guard = || changing.clone().try_lock_owned().expect("no change is in progress");

    let earlier = operations.applying.lock().await;
    let text = definition(&bed.a, &bed.b, "state: hold");
    // Polled once and dropped, as the request of a caller that disconnects.
    let applied = operations.apply_holding(&text, "test", guard()).now_or_never();
    assert!(applied.is_none() && changing.try_lock().is_err(), "the apply waits, with its guard");
    drop(earlier);
    drop(changing.lock().await);
    let stored = operations.stored().await.expect("read");
    assert_eq!((stored[0].0.version, stored[0].1), (2, true));

    let earlier = operations.applying.lock().await;
    let removed = operations.remove_holding(&orders, guard()).now_or_never();
    assert!(removed.is_none() && changing.try_lock().is_err(), "the removal waits, with its guard");
    drop(earlier);
    drop(changing.lock().await);
    assert!(operations.stored().await.expect("read").is_empty() && bed.exchanges.find(&orders).is_none());
}

#[tokio::test]
async fn an_exchange_that_could_not_be_started_is_listed_until_it_runs() {
    let bed = Bed::start().await;
    let (operations, orders) = (&bed.exchanges.operations, name("orders"));
    let text = definition(&bed.a, &bed.b, "");
    bed.exchanges.core.registry.remove(&orders).expect("it runs");
    operations.failed.lock().insert(orders.clone(), "a variable is missing".into());
    let not_running = |found: Result<(), OperateError>| matches!(found, Err(OperateError::NotRunning(_)));
    assert!(not_running(operations.ports(&orders).await.map(drop)));
    assert!(not_running(operations.set_port(&orders, &name("b"), Some(PortState::Hold)).await));
    let unknown = operations.ports(&name("returns")).await;
    assert!(matches!(unknown, Err(OperateError::Missing(_))), "{unknown:?}");

    // Ends at its first read of the spool, as at one that fails.
    let compiled = operations.compile(&text).expect("a good definition");
    drop(operations.run(compiled, 1).now_or_never());
    let is_listed = operations.failed_exchanges().iter().any(|(failed, _)| *failed == orders);
    assert!(is_listed || bed.exchanges.find(&orders).is_some());

    bed.define(&text).await;
    assert!(operations.failed_exchanges().is_empty() && bed.exchanges.find(&orders).is_some());
}
