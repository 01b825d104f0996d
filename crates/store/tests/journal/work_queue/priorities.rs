//! Priorities and digest windows.

use tocsin_model::{delivery_policy::Priority, id::WorkItemId};
use tocsin_store::journal::{ClaimWindow, Retry, Step, WindowWorkQuery, WorkState};

use crate::support::*;

#[test]
fn urgent_work_is_first_and_low_work_is_not_delayed_forever() {
    on_each(async |journal| {
        let queued = [
            (Priority::Low, 0),
            (Priority::Normal, 0),
            (Priority::Normal, 10),
            (Priority::High, 20),
            (Priority::Urgent, 30),
            (Priority::Urgent, 1_801),
        ];
        queue_all(&*journal, &queued).await;
        let mut order = Vec::new();
        while let Some(item) = claim_work(&*journal, 1, at(2_000)).await.pop() {
            order.push((item.batch.0, item.work_state.priority));
        }
        // Work that becomes due more than half an hour later does not overtake low priority.
        let expected = [
            (5, Priority::Urgent),
            (4, Priority::High),
            (2, Priority::Normal),
            (3, Priority::Normal),
            (1, Priority::Low),
            (6, Priority::Urgent),
        ];
        assert_eq!(order, expected);
    });
}

#[test]
fn claims_can_require_a_minimum_priority() {
    on_each(async |journal| {
        let queued = [(Priority::Low, 0), (Priority::Normal, 0), (Priority::High, 20), (Priority::Urgent, 30)];
        queue_all(&*journal, &queued).await;
        let order = async |least| {
            let claimed = claim_with_priority(&*journal, least, 9, at(2_000)).await;
            claimed.iter().map(|item| item.batch.0).collect::<Vec<_>>()
        };
        assert_eq!(order(Priority::Urgent).await, [4]);
        assert_eq!(order(Priority::High).await, [3]);
        assert_eq!(order(Priority::High).await, Vec::<u64>::new());
        assert_eq!(order(Priority::Low).await, [2, 1]);
    });
}

#[test]
fn work_of_a_digest_window_is_claimed_together() {
    on_each(async |journal| {
        let mut windows = Vec::new();
        for (window, count) in [(100, 3), (200, 2), (100, 4), (100, 5)] {
            let batch = queue(&*journal, count, at(0)).await;
            let item = claim_work(&*journal, 1, at(0)).await.remove(0);
            let work_state = WorkState {
                priority: Priority::High,
                window: Some(at(window)),
                fallback: 2,
                since: Some(at(3)),
                edit: Some("{}".into()),
            };
            let retry = Retry {
                batch,
                application: app(),
                channel: mail(),
                ordinals: (0..count).collect(),
                attempts: 0,
                due_at: at(window),
                work_state: work_state.clone(),
            };
            journal
                .commit(Step { finished: vec![item.claim], retries: vec![retry], ..Step::default() })
                .await
                .expect("committed");
            windows.push((batch, work_state));
        }
        let gathering = journal
            .digest_window_work(WindowWorkQuery {
                application: &app(),
                channel: &mail(),
                now: at(99),
                after: WorkItemId(0),
                limit: 3,
            })
            .await
            .expect("read");
        assert_eq!(
            gathering.iter().map(|item| (item.batch, item.work_state.clone())).collect::<Vec<_>>(),
            windows[..3]
        );
        let rest = journal
            .digest_window_work(WindowWorkQuery {
                application: &app(),
                channel: &mail(),
                now: at(99),
                after: gathering[2].claim.id,
                limit: 3,
            })
            .await
            .expect("read");
        assert_eq!(rest.len(), 1);
        assert_eq!(
            journal
                .digest_window_work(WindowWorkQuery {
                    application: &app(),
                    channel: &mail(),
                    now: at(100),
                    after: WorkItemId(0),
                    limit: 9
                })
                .await
                .expect("read")
                .len(),
            1
        );

        let claim = async |notifications, now| {
            let window = at(100);
            journal
                .claim_window(ClaimWindow {
                    application: &app(),
                    channel: &mail(),
                    window,
                    notifications,
                    lease: LEASE,
                    now: at(now),
                })
                .await
                .expect("claimed")
        };
        assert!(claim(100, 99).await.is_empty(), "it is not due");
        let first = claim(8, 100).await;
        assert_eq!(first.iter().map(|item| item.batch).collect::<Vec<_>>(), [windows[0].0, windows[2].0]);
        assert_eq!(first[1].work_state, windows[2].1);
        assert_eq!(claim(1, 100).await.len(), 1, "at least one");
        assert!(claim(100, 100).await.is_empty(), "all are claimed");
        let other = journal
            .claim_window(ClaimWindow {
                application: &app(),
                channel: &mail(),
                window: at(200),
                notifications: 9,
                lease: LEASE,
                now: at(200),
            })
            .await
            .expect("claimed");
        assert_eq!(other.iter().map(|item| item.batch).collect::<Vec<_>>(), [windows[1].0]);
    });
}
