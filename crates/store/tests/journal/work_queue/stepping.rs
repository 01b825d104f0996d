//! Steps: atomic and exactly once.

use tocsin_model::{id::NotificationBatchId, receipt::Outcome};
use tocsin_store::{
    error::StoreError,
    journal::{Backlog, EventBatchState, Step},
};

use crate::support::*;

#[test]
fn a_match_is_one_commit() {
    on_each(async |journal| {
        let first = accept(&*journal, 10, at(0)).await;
        let second = accept(&*journal, 10, at(1)).await;
        let claims: Vec<_> = claim_events(&*journal, 2, at(2)).await.into_iter().map(|claimed| claimed.claim).collect();
        let batches = vec![notifications(&[first], 2_500, at(3)), notifications(&[first, second], 4, at(3))];
        let step = Step { matched: claims, batches: batches.clone(), ..Step::default() };
        let ids = journal.commit(step).await.expect("committed");
        assert_eq!(ids, [NotificationBatchId(1), NotificationBatchId(2)]);

        for (id, new) in ids.iter().zip(&batches) {
            let stored = journal.notification_batch(*id).await.expect("read").expect("there");
            assert_eq!((stored.id, &stored.head), (*id, &new.head));
            assert_eq!(stored.notifications.pack(), new.packed);
        }
        let of_first = journal.notification_batches_of(first, NotificationBatchId(0), 9).await.expect("read");
        let heads = [0, 1].map(|at| (ids[at], batches[at].head.clone(), batches[at].count));
        assert_eq!(of_first, heads);
        assert_eq!(journal.notification_batches_of(first, NotificationBatchId(0), 1).await.expect("read"), heads[..1]);
        let after = journal.notification_batches_of(first, heads[0].0, 9).await.expect("read");
        assert!(after.iter().all(|(id, ..)| *id > heads[0].0) && after.len() + 1 == of_first.len());
        assert_eq!(journal.notification_batches_of(second, NotificationBatchId(0), 9).await.expect("read"), heads[1..]);
        let (_, state) = journal.event_batch(second).await.expect("read").expect("there");
        assert_eq!(state, EventBatchState::Matched(at(3)));
        let listed = journal.notification_batches(None, 1).await.expect("read");
        assert_eq!(listed.iter().map(|(id, _, count)| (*id, *count)).collect::<Vec<_>>(), [(ids[1], 4)]);
        let backlog = Backlog { notifications: 2_504, work_items: 2, ..Backlog::default() };
        assert_eq!(journal.backlog(), backlog);

        let items = claim_work(&*journal, 9, at(3)).await;
        assert_eq!(
            items.iter().map(|item| (item.batch, item.ordinals.clone())).collect::<Vec<_>>(),
            [(ids[0], None), (ids[1], None)]
        );
        for nowhere in [NotificationBatchId(9), NotificationBatchId(u64::MAX)] {
            assert!(journal.notification_batch(nowhere).await.expect("read").is_none());
            assert!(journal.attempts(nowhere).await.expect("read").is_empty());
            assert!(journal.open_work(nowhere).await.expect("read").is_empty());
        }
    });
}

#[test]
fn progress_is_kept_when_a_lease_is_lost() {
    on_each(async |journal| {
        let batch = queue(&*journal, 10, at(0)).await;
        let item = claim_work(&*journal, 1, at(0)).await.remove(0);
        let progress = |ordinals: Vec<u32>, number, outcome| Step {
            held: vec![item.claim],
            receipts: vec![chunk(batch, attempts(ordinals, number, outcome, at(1)))],
            ..Step::default()
        };
        journal.commit(progress(vec![0, 1, 2, 7], 1, Outcome::Delivered)).await.expect("committed");
        assert_eq!(journal.backlog().notifications, 6);
        // Deferred notifications belong to another item, of the same step or an earlier one.
        journal.commit(progress(vec![8], 1, Outcome::Deferred)).await.expect("committed");
        // A second attempt, an older one or an unknown ordinal does not change the progress.
        journal.commit(progress(vec![8, 11], 2, Outcome::Deferred)).await.expect("committed");
        journal.commit(progress(vec![9], 0, Outcome::Deferred)).await.expect("committed");
        assert_eq!(journal.backlog().notifications, 5);

        let again = claim_work(&*journal, 1, at(60)).await.remove(0);
        assert_eq!(again.ordinals, Some(vec![3, 4, 5, 6, 9]));
        assert_eq!(again.attempts, 0);
        assert_eq!(journal.open_work(batch).await.expect("read"), std::slice::from_ref(&again));
        journal.commit(delivered(&again, 10, at(61))).await.expect("committed");
        assert_eq!(journal.backlog(), Backlog::default());
        assert_eq!(journal.attempts(batch).await.expect("read").len(), 4 + 1 + 2 + 1 + 5);
        assert_eq!(journal.totals().attempts, [9, 4, 0, 0, 0, 0]);
    });
}

#[test]
fn progress_survives_a_restart() {
    let fixture = JournalFixture::sqlite();
    run(async {
        let batch = {
            let journal = fixture.open().await;
            let batch = queue(&*journal, 2_500, at(0)).await;
            let item = claim_work(&*journal, 1, at(0)).await.remove(0);
            let receipts = vec![chunk(batch, attempts(0..1_000, 1, Outcome::Delivered, at(1)))];
            let step = Step { held: vec![item.claim], receipts, ..Step::default() };
            journal.commit(step).await.expect("committed");
            batch
        };
        let journal = fixture.open().await;
        assert_eq!(journal.backlog().notifications, 1_500);
        let item = claim_work(&*journal, 1, at(2)).await.remove(0);
        assert_eq!(item.ordinals, Some((1_000..2_500).collect()));
        let rest = chunk(batch, attempts(1_000..2_500, 1, Outcome::Refused, at(3)));
        let step = Step { held: vec![item.claim], receipts: vec![rest], ..Step::default() };
        journal.commit(step).await.expect("committed");
        drop(journal);
        // Everything was settled, only the item was not finished.
        let journal = fixture.open().await;
        let item = claim_work(&*journal, 1, at(4)).await.remove(0);
        assert_eq!(item.ordinals, Some(Vec::new()));
        journal.commit(Step { finished: vec![item.claim], ..Step::default() }).await.expect("committed");
        assert_eq!(journal.backlog(), Backlog::default());
        assert_eq!(journal.totals().attempts, [1_000, 0, 1_500, 0, 0, 0]);
    });
}

#[test]
fn a_damaged_batch_stores_nothing() {
    on_each(async |journal| {
        accept(&*journal, 1, at(0)).await;
        let claim = claim_events(&*journal, 1, at(1)).await[0].claim;
        let mut damaged = notifications(&[claim.id], 3, at(1));
        damaged.packed = bytes::Bytes::from_static(&[3, 200]);
        let step = Step { matched: vec![claim], batches: vec![damaged], ..Step::default() };
        assert!(journal.commit(step).await.is_err());
        assert_eq!(journal.totals().notification_batches, 0);
        let step = Step { matched: vec![claim], ..Step::default() };
        journal.commit(step).await.expect("the claim still holds");
    });
}

#[test]
fn continued_batches_wait_for_matching() {
    on_each(async |journal| {
        let first = accept(&*journal, 1, at(0)).await;
        let claim = claim_events(&*journal, 1, at(0)).await[0].claim;
        let arrivals = journal.arrivals();
        let step = Step { matched: vec![claim], continued: vec![events(2, at(1))], ..Step::default() };
        journal.commit(step.clone()).await.expect("committed");
        assert!(arrivals.events.has_changed().expect("open"));
        assert_eq!((journal.backlog().event_batches, journal.backlog().events), (1, 2));
        assert_eq!(journal.backlog().oldest_event, Some(at(1)));
        assert!(matches!(journal.commit(step).await, Err(StoreError::Fenced(_))), "exactly once");
        assert_eq!(journal.totals().event_batches, 2);
        assert!(claim_events(&*journal, 9, at(2)).await[0].claim.id > first);
    });
}

#[test]
fn retries_are_claimed_when_they_are_due() {
    on_each(async |journal| {
        let batch = queue(&*journal, 5, at(0)).await;
        let item = claim_work(&*journal, 1, at(0)).await.remove(0);
        let arrivals = journal.arrivals();
        let step = Step {
            finished: vec![item.claim],
            receipts: vec![
                chunk(batch, attempts([0, 2, 4], 1, Outcome::Delivered, at(1))),
                chunk(batch, attempts([1, 3], 1, Outcome::Deferred, at(1))),
            ],
            retries: vec![retry(batch, vec![1], 1, 20), retry(batch, vec![3], 1, 10)],
            ..Step::default()
        };
        journal.commit(step).await.expect("committed");
        assert!(arrivals.work.has_changed().expect("open"), "waiting workers are woken");
        assert_eq!((journal.backlog().notifications, journal.backlog().work_items), (2, 2));
        assert!(claim_work(&*journal, 9, at(9)).await.is_empty());
        assert_eq!(journal.next_due(&app(), &mail(), at(9)).await.expect("read"), Some(at(10)));
        let items = claim_work(&*journal, 9, at(20)).await;
        let claimed: Vec<_> = items.iter().map(|item| (item.ordinals.clone(), item.attempts, item.due_at)).collect();
        assert_eq!(claimed, [(Some(vec![3]), 1, at(10)), (Some(vec![1]), 1, at(20))]);
    });
}

/// Work that is stored again unchanged does not change the counts; its number must be in the file nevertheless.
#[test]
fn numbers_of_returned_work_are_not_reused_after_a_restart() {
    let fixture = JournalFixture::sqlite();
    run(async {
        let batch = {
            let journal = fixture.open().await;
            let batch = queue(&*journal, 5, at(0)).await;
            let item = claim_work(&*journal, 1, at(0)).await.remove(0);
            let retries = vec![retry(batch, vec![0, 1, 2, 3, 4], 0, 10)];
            let step = Step { finished: vec![item.claim], retries, ..Step::default() };
            journal.commit(step).await.expect("committed");
            batch
        };
        let journal = fixture.open().await;
        let other = queue(&*journal, 2, at(0)).await;
        let items = claim_work(&*journal, 9, at(10)).await;
        assert_eq!(items.iter().map(|item| item.batch).collect::<Vec<_>>(), [other, batch]);
        assert!(items[0].claim.id > items[1].claim.id);
    });
}
