//! Priorities, digest windows, and edits.

use tocsin_model::{delivery_policy::Priority, id::WorkItemId, receipt::Outcome};
use tocsin_store::journal::{
    Journal, NewNotificationBatch, Resolution, Retry, Step, Suspension, SuspensionFilter, WorkState,
};

use crate::support::*;

/// Stores a batch for each of these priorities and due times.
async fn queue_all(journal: &dyn Journal, batches: &[(Priority, i64)]) {
    for (priority, due) in batches {
        accept(journal, 1, at(*due)).await;
        let claimed = claim_events(journal, 1, at(*due)).await;
        let new = NewNotificationBatch { priority: *priority, ..notifications(&[claimed[0].claim.id], 2, at(*due)) };
        let step = Step { matched: vec![claimed[0].claim], batches: vec![new], ..Step::default() };
        journal.commit(step).await.expect("committed");
    }
}

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
fn the_next_due_time_includes_all_priorities() {
    on_each(async |journal| {
        queue_all(&*journal, &[(Priority::Low, 50), (Priority::Urgent, 70)]).await;
        for (now, next) in [(0, Some(50)), (50, Some(70)), (70, None)] {
            assert_eq!(journal.next_due(&app(), &mail(), at(now)).await.expect("read"), next.map(at));
        }
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
        let gathering = journal.digest_window_work(&app(), &mail(), at(99), WorkItemId(0), 3).await.expect("read");
        assert_eq!(
            gathering.iter().map(|item| (item.batch, item.work_state.clone())).collect::<Vec<_>>(),
            windows[..3]
        );
        let rest = journal.digest_window_work(&app(), &mail(), at(99), gathering[2].claim.id, 3).await.expect("read");
        assert_eq!(rest.len(), 1);
        assert_eq!(
            journal.digest_window_work(&app(), &mail(), at(100), WorkItemId(0), 9).await.expect("read").len(),
            1
        );

        let claim = async |notifications, now| {
            let window = at(100);
            journal.claim_window(&app(), &mail(), window, notifications, LEASE, at(now)).await.expect("claimed")
        };
        assert!(claim(100, 99).await.is_empty(), "it is not due");
        let first = claim(8, 100).await;
        assert_eq!(first.iter().map(|item| item.batch).collect::<Vec<_>>(), [windows[0].0, windows[2].0]);
        assert_eq!(first[1].work_state, windows[2].1);
        assert_eq!(claim(1, 100).await.len(), 1, "at least one");
        assert!(claim(100, 100).await.is_empty(), "all are claimed");
        let other = journal.claim_window(&app(), &mail(), at(200), 9, LEASE, at(200)).await.expect("claimed");
        assert_eq!(other.iter().map(|item| item.batch).collect::<Vec<_>>(), [windows[1].0]);
    });
}

#[test]
fn edits_are_kept_when_work_is_resumed() {
    on_each(async |journal| {
        let batch = queue(&*journal, 5, at(0)).await;
        let item = claim_work(&*journal, 1, at(0)).await.remove(0);
        let work_state = WorkState { priority: Priority::Low, fallback: 1, ..WorkState::default() };
        let waits = Suspension {
            batch,
            application: app(),
            channel: mail(),
            ordinals: vec![0, 1, 2, 3, 4],
            attempts: 1,
            reason: "Template `base` failed".to_owned(),
            since: at(1),
            work_state: work_state.clone(),
        };
        let step = Step {
            finished: vec![item.claim],
            receipts: vec![chunk(batch, attempts(0..5, 1, Outcome::Suspended, at(1)))],
            suspensions: vec![waits],
            ..Step::default()
        };
        journal.commit(step).await.expect("committed");
        let edit = async |id, ordinals: Option<&[u32]>, text: &str| {
            journal.edit_suspension(id, ordinals, Some(text.into())).await.expect("edited")
        };
        assert_eq!(edit(7, None, "x").await, None);
        assert_eq!(edit(1, Some(&[9]), "x").await, None);
        assert_eq!(edit(1, None, "all").await, Some(1));
        assert_eq!(edit(1, Some(&[1, 3, 9]), "some").await, Some(2));
        assert_eq!(edit(2, Some(&[1, 3]), "both").await, Some(2), "all of them");
        assert_eq!(journal.edit_suspension(1, None, None).await.expect("edited"), Some(1), "removed again");
        assert_eq!(journal.backlog().suspended, 5);
        let listed = journal.suspensions(&SuspensionFilter::default(), 0, 9).await.expect("read");
        let entries: Vec<_> = listed
            .iter()
            .map(|stored| (stored.id, &stored.suspension.ordinals[..], stored.suspension.work_state.edit.as_deref()))
            .collect();
        assert_eq!(entries, [(1, &[0, 2, 4][..], None), (2, &[1, 3][..], Some("both"))]);

        let any = SuspensionFilter::default();
        let count = async |filter: SuspensionFilter| journal.suspensions(&filter, 0, 9).await.expect("read").len();
        assert_eq!(count(SuspensionFilter { reason: Some("TEMPLATE `b".into()), ..any.clone() }).await, 2);
        assert_eq!(count(SuspensionFilter { reason: Some("%".into()), ..any.clone() }).await, 0);
        assert_eq!(count(SuspensionFilter { class: Some(name("alert")), ..any.clone() }).await, 2);
        assert_eq!(count(SuspensionFilter { class: Some(name("mail")), ..any.clone() }).await, 0);
        assert_eq!(count(SuspensionFilter { before: Some(at(1)), ..any.clone() }).await, 0);
        assert_eq!(count(SuspensionFilter { before: Some(at(2)), ..any.clone() }).await, 2);

        let filter = SuspensionFilter { id: Some(2), ..any };
        assert_eq!(journal.resolve(&filter, Resolution::Resume, at(5)).await.expect("resumed"), 2);
        let item = claim_work(&*journal, 9, at(5)).await.remove(0);
        assert_eq!(item.ordinals, Some(vec![1, 3]));
        assert_eq!(item.work_state, WorkState { edit: Some("both".into()), ..work_state });
        assert_eq!(journal.backlog().suspended, 3);
    });
}
