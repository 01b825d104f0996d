//! Pruning, and the health check.

use std::time::Duration;

use tocsin_model::{
    id::{EventBatchId, NotificationBatchId},
    receipt::Outcome,
};
use tocsin_store::journal::{Cutoffs, Resolution, Retry, Step, Suspension, SuspensionFilter, Window, WorkState};

use crate::support::*;

#[test]
fn only_finished_batches_are_pruned() {
    on_each(async |journal| {
        // 1 is delivered, 2 is not, 3 is suspended, 4 failed, 5 waits for matching, 6 matched nothing.
        let done = queue(&*journal, 3, at(0)).await;
        let item = claim_work(&*journal, 1, at(0)).await.remove(0);
        journal.commit(delivered(&item, 3, at(1))).await.expect("committed");
        let unsent = queue(&*journal, 3, at(0)).await;
        let _holding = claim_work(&*journal, 1, at(1)).await;
        let suspended = queue(&*journal, 3, at(0)).await;
        let item = claim_work(&*journal, 1, at(0)).await.remove(0);
        let mut step = delivered(&item, 3, at(1));
        step.receipts = vec![
            chunk(suspended, attempts([0, 2], 1, Outcome::Delivered, at(1))),
            chunk(suspended, attempts([1], 1, Outcome::Suspended, at(1))),
        ];
        step.suspensions.push(Suspension {
            batch: suspended,
            application: app(),
            channel: mail(),
            ordinals: vec![1],
            attempts: 1,
            reason: "no".to_owned(),
            since: at(1),
            work_state: WorkState::default(),
        });
        journal.commit(step).await.expect("committed");
        accept(&*journal, 1, at(0)).await;
        let claim = claim_events(&*journal, 1, at(0)).await[0].claim;
        let step = Step { failed: vec![(claim, "no".to_owned())], ..Step::default() };
        journal.commit(step).await.expect("committed");
        accept(&*journal, 1, at(0)).await;
        let _holding = claim_events(&*journal, 1, at(0)).await;
        accept(&*journal, 1, at(0)).await;
        match_next(&*journal, &[], at(1)).await;

        let before = (journal.backlog(), journal.totals());
        assert_eq!(
            journal.prune(&Cutoffs::all(at(1)), at(9), 100).await.expect("pruned"),
            0,
            "nothing was finished before"
        );
        assert_eq!(journal.prune(&Cutoffs::all(at(2)), at(9), 100).await.expect("pruned"), 3);
        assert_eq!((journal.backlog(), journal.totals()), before, "finished work was no longer counted");
        let left: Vec<u64> = journal.event_batches(None, 99).await.expect("read").iter().map(|(b, _)| b.id.0).collect();
        assert_eq!(left, [5, 4, 3, 2]);
        let left = journal.notification_batches(None, 99).await.expect("read");
        assert_eq!(left.iter().map(|(id, _, _)| *id).collect::<Vec<_>>(), [suspended, unsent]);
        assert!(journal.attempts(done).await.expect("read").is_empty());
        assert!(
            journal.notification_batches_of(EventBatchId(1), NotificationBatchId(0), 9).await.expect("read").is_empty()
        );

        // After the suspension is ended, the batch is finished as well.
        journal.resolve(&SuspensionFilter::default(), Resolution::End, at(20)).await.expect("resolved");
        assert_eq!(journal.prune(&Cutoffs::all(at(20)), at(20), 100).await.expect("pruned"), 0);
        assert_eq!(journal.prune(&Cutoffs::all(at(21)), at(21), 100).await.expect("pruned"), 2);
    });
}

#[test]
fn an_event_batch_stays_while_notifications_refer_to_it() {
    on_each(async |journal| {
        let (one, two) = (accept(&*journal, 1, at(0)).await, accept(&*journal, 1, at(0)).await);
        let claims = claim_events(&*journal, 2, at(0)).await;
        let step = Step {
            matched: claims.iter().map(|claimed| claimed.claim).collect(),
            batches: vec![notifications(&[one, two], 2, at(0)), notifications(&[two], 1, at(0))],
            ..Step::default()
        };
        journal.commit(step).await.expect("committed");
        let items = claim_work(&*journal, 2, at(0)).await;
        journal.commit(delivered(&items[0], 2, at(1))).await.expect("committed");
        assert_eq!(journal.prune(&Cutoffs::all(at(2)), at(2), 100).await.expect("pruned"), 2);
        assert!(journal.event_batch(one).await.expect("read").is_none());
        assert!(journal.event_batch(two).await.expect("read").is_some());
        // With a new notification before pruning, it stays until that is finished too.
        let step = Step { batches: vec![notifications(&[two], 1, at(2))], ..delivered(&items[1], 1, at(2)) };
        journal.commit(step).await.expect("committed");
        assert_eq!(journal.prune(&Cutoffs::all(at(9)), at(9), 100).await.expect("pruned"), 1);
        assert!(journal.event_batch(two).await.expect("read").is_some());
    });
}

#[test]
fn a_batch_with_a_retry_is_not_pruned() {
    on_each(async |journal| {
        let batch = queue(&*journal, 2, at(0)).await;
        let item = claim_work(&*journal, 1, at(0)).await.remove(0);
        let step = Step {
            finished: vec![item.claim],
            receipts: vec![
                chunk(batch, attempts([0], 1, Outcome::Delivered, at(1))),
                chunk(batch, attempts([1], 1, Outcome::Deferred, at(1))),
            ],
            retries: vec![Retry {
                batch,
                application: app(),
                channel: mail(),
                ordinals: vec![1],
                attempts: 1,
                due_at: at(5),
                work_state: WorkState::default(),
            }],
            ..Step::default()
        };
        journal.commit(step).await.expect("committed");
        assert_eq!(journal.prune(&Cutoffs::all(at(99)), at(99), 100).await.expect("pruned"), 0);
        let item = claim_work(&*journal, 1, at(5)).await.remove(0);
        journal.commit(delivered(&item, 2, at(6))).await.expect("committed");
        assert_eq!(journal.prune(&Cutoffs::all(at(99)), at(99), 100).await.expect("pruned"), 2);
    });
}

#[test]
fn pruning_stops_at_its_limit_and_ids_are_not_reused() {
    on_each(async |journal| {
        for _ in 0..100 {
            accept(&*journal, 1, at(0)).await;
        }
        let claims = claim_events(&*journal, 100, at(0)).await;
        let matched = claims.iter().map(|claimed| claimed.claim).collect();
        journal.commit(Step { matched, ..Step::default() }).await.expect("committed");
        assert_eq!(journal.prune(&Cutoffs::all(at(1)), at(1), 70).await.expect("pruned"), 70);
        assert_eq!(journal.prune(&Cutoffs::all(at(1)), at(1), 70).await.expect("pruned"), 30);
        assert_eq!(accept(&*journal, 1, at(2)).await, EventBatchId(101));
    });
    let fixture = JournalFixture::sqlite();
    run(async {
        let journal = fixture.open().await;
        queue(&*journal, 1, at(0)).await;
        let item = claim_work(&*journal, 1, at(0)).await.remove(0);
        journal.commit(delivered(&item, 1, at(0))).await.expect("committed");
        assert_eq!(journal.prune(&Cutoffs::all(at(1)), at(1), 9).await.expect("pruned"), 2);
        drop(journal);
        let journal = fixture.open().await;
        assert_eq!(accept(&*journal, 1, at(2)).await, EventBatchId(2), "not even after a restart");
    });
}

#[test]
fn each_class_has_its_own_retention() {
    on_each(async |journal| {
        queue(&*journal, 1, at(0)).await;
        let item = claim_work(&*journal, 1, at(0)).await.remove(0);
        journal.commit(delivered(&item, 1, at(1))).await.expect("committed");
        let class = |class: &str| (app(), name(class));
        let long = Cutoffs { notifications: [(class("alert"), at(0))].into(), ..Cutoffs::all(at(50)) };
        // The event batch has reached the retention of its class, the notification batch has not.
        assert_eq!(journal.prune(&long, at(50), 100).await.expect("pruned"), 1);
        assert!(journal.event_batches(None, 9).await.expect("read").is_empty());
        assert_eq!(journal.notification_batches(None, 9).await.expect("read").len(), 1);
        let other = Cutoffs { notifications: [(class("other"), at(0))].into(), ..Cutoffs::all(at(50)) };
        assert_eq!(journal.prune(&other, at(50), 100).await.expect("pruned"), 1);
        let whole = Window { from: at(-120), to: at(120), interval: Duration::from_secs(60) };
        let rows = journal.activity(&whole, None).await.expect("read");
        assert!(!rows.is_empty(), "the newest minute of each stream stays");
        assert_eq!(journal.latest_activity(None).await.expect("read").len(), rows.len());
    });
}

#[test]
fn a_probe_answers() {
    on_each(async |journal| {
        journal.probe().await.expect("probed");
        journal.commit(Step::default()).await.expect("nothing is stored");
        assert_eq!(journal.totals(), Default::default());
    });
}
