//! Backlog, open work items and wake-ups.

use tocsin_model::{delivery_policy::Priority, id::NotificationBatchId, receipt::Outcome};
use tocsin_store::journal::{Step, WorkCounts};

use crate::support::*;

#[test]
fn arrivals_wake_waiting_tasks() {
    on_each(async |journal| {
        accept(&*journal, 1, at(0)).await;
        let mut arrivals = journal.arrivals();
        assert!(!arrivals.events.has_changed().expect("open"), "earlier arrivals are not reported");
        let waiting = tokio::spawn(async move {
            arrivals.events.changed().await.expect("open");
            arrivals.work.changed().await.expect("open");
        });
        accept(&*journal, 1, at(0)).await;
        match_next(&*journal, &[1], at(1)).await;
        waiting.await.expect("woken");
    });
}

#[test]
fn open_batches_are_those_with_work_by_number() {
    on_each(async |journal| {
        let batches =
            [queue(&*journal, 2, at(0)).await, queue(&*journal, 1, at(1)).await, queue(&*journal, 3, at(2)).await];
        let open = async |after: u64, limit: usize| {
            let found = journal.open_batches(&app(), NotificationBatchId(after), limit).await.expect("read");
            found.into_iter().map(|(id, head)| (id, head.channel)).collect::<Vec<_>>()
        };
        assert_eq!(open(0, 9).await, batches.map(|id| (id, mail())));
        assert_eq!(open(batches[0].0, 1).await, [(batches[1], mail())]);
        assert!(open(batches[2].0, 9).await.is_empty());
        assert!(journal.open_batches(&name("other"), NotificationBatchId(0), 9).await.expect("read").is_empty());
        let item = claim_work(&*journal, 1, at(2)).await.remove(0);
        assert_eq!(open(0, 9).await.len(), 3, "a claimed batch is open");
        let step = Step {
            finished: vec![item.claim],
            receipts: vec![
                chunk(batches[0], attempts([0], 1, Outcome::Delivered, at(3))),
                chunk(batches[0], attempts([1], 1, Outcome::Deferred, at(3))),
            ],
            retries: vec![retry(batches[0], vec![1], 1, 20)],
            ..Step::default()
        };
        journal.commit(step).await.expect("committed");
        assert_eq!(open(0, 9).await.len(), 3, "a batch with a retry is open");
        let item = claim_work(&*journal, 9, at(20)).await.into_iter().find(|item| item.batch == batches[0]);
        let done = chunk(batches[0], attempts([1], 2, Outcome::Delivered, at(21)));
        let finished = item.into_iter().map(|item| item.claim).collect();
        journal.commit(Step { finished, receipts: vec![done], ..Step::default() }).await.expect("committed");
        assert_eq!(open(0, 9).await, [(batches[1], mail()), (batches[2], mail())]);
    });
}

#[test]
fn the_next_due_time_includes_all_priorities() {
    on_each(async |journal| {
        queue_all(&*journal, &[(Priority::Low, 50), (Priority::Urgent, 70)]).await;
        for (now, next) in [(0, Some(50)), (50, Some(70)), (70, None)] {
            assert_eq!(journal.next_due(&app(), &mail(), at(now)).await.expect("read"), next.map(at));
        }
    });
}

#[test]
fn work_is_counted_by_its_due_time() {
    on_each(async |journal| {
        assert_eq!(journal.work_counts(at(0)).await.expect("counted"), WorkCounts::default());
        queue(&*journal, 2, at(0)).await;
        queue(&*journal, 1, at(1)).await;
        let item = claim_work(&*journal, 1, at(1)).await.remove(0);
        assert_eq!(journal.work_counts(at(1)).await.expect("counted").due, 2, "a claimed item is due");
        journal.release(item.claim, Some(at(50))).await.expect("released");
        let counts = journal.work_counts(at(1)).await.expect("counted");
        assert_eq!(counts, WorkCounts { due: 1, later: 1, next: Some(at(50)) });
        assert_eq!((journal.backlog().work_items, journal.backlog().notifications), (2, 3));
        assert_eq!(journal.open_channels(&app()).await.expect("read"), [mail()]);
        assert_eq!(journal.open_applications().await.expect("read"), [app()]);
        assert!(journal.open_channels(&name("other")).await.expect("read").is_empty());
    });
}
