//! Resend requests.

use tocsin_model::{
    id::NotificationBatchId,
    receipt::{Attempt, Outcome},
};
use tocsin_store::{
    error::StoreError,
    journal::{
        Cutoffs, Journal, NewResend, ReopenedNotifications, Resend, ResendProgress, Resolution, Retry, Step,
        Suspension, SuspensionFilter, WorkState,
    },
};

use crate::support::*;

fn request(key: &str, requested_at: i64) -> NewResend {
    NewResend { key: key.to_owned(), request: "{}".to_owned(), by: "op".to_owned(), asked_at: at(requested_at) }
}

fn resent(id: u64, from: NotificationBatchId, reached: NotificationBatchId, now: i64) -> ResendProgress {
    ResendProgress { id, from, reached, done_at: None, reopened: Vec::new(), resumed: Vec::new(), now: at(now) }
}

fn due(batch: NotificationBatchId, ordinals: Vec<u32>, now: i64) -> Retry {
    let work_state = WorkState::default();
    Retry { batch, application: app(), channel: mail(), ordinals, attempts: 0, due_at: at(now), work_state }
}

/// A batch of four: one delivered, two refused, one suspended.
async fn failed(journal: &dyn Journal) -> NotificationBatchId {
    let batch = queue(journal, 4, at(0)).await;
    let item = claim_work(journal, 1, at(0)).await.remove(0);
    let ended: Vec<Attempt> = attempts([0], 1, Outcome::Delivered, at(1))
        .into_iter()
        .chain(attempts([1, 2], 1, Outcome::Refused, at(1)))
        .chain(attempts([3], 1, Outcome::Suspended, at(1)))
        .collect();
    let suspension = Suspension {
        batch,
        application: app(),
        channel: mail(),
        ordinals: vec![3],
        attempts: 1,
        reason: "no".to_owned(),
        since: at(1),
        work_state: WorkState::default(),
    };
    let step = Step {
        finished: vec![item.claim],
        receipts: vec![chunk(batch, ended)],
        suspensions: vec![suspension],
        ..Step::default()
    };
    journal.commit(step).await.expect("committed");
    batch
}

async fn the_request(journal: &dyn Journal) -> Resend {
    journal.resends(false, 0, 9).await.expect("listed").remove(0)
}

#[test]
fn a_request_is_identified_by_its_key() {
    on_each(async |journal| {
        let batch = failed(&*journal).await;
        let (first, is_new) = journal.begin_resend(request("a", 5)).await.expect("stored");
        assert_eq!((is_new, first.reached, first.last), (true, NotificationBatchId(0), batch));
        let (same, is_new) = journal.begin_resend(request("a", 6)).await.expect("known");
        assert_eq!((is_new, &same), (false, &first));
        let (other, is_new) = journal.begin_resend(request("b", 7)).await.expect("stored");
        assert!(is_new && other.id > first.id);
        assert_eq!(journal.resends(true, 0, 9).await.expect("listed"), [first.clone(), other.clone()]);
        let done = ResendProgress { done_at: Some(at(8)), ..resent(first.id, first.reached, batch, 8) };
        journal.commit(Step { resent: Some(done), ..Step::default() }).await.expect("committed");
        assert_eq!(journal.resends(true, 0, 9).await.expect("listed"), std::slice::from_ref(&other));
        assert_eq!(journal.resends(false, first.id, 9).await.expect("listed"), [other]);
        journal.prune(&Cutoffs::all(at(9)), at(9), 100).await.expect("pruned");
        assert_eq!(journal.resends(false, 0, 9).await.expect("listed").len(), 1);
    });
}

#[test]
fn closed_notifications_can_be_reopened_and_closed_again() {
    on_each(async |journal| {
        let batch = failed(&*journal).await;
        journal.resolve(&SuspensionFilter::default(), Resolution::End, at(2)).await.expect("ended");
        let (requested_at, _) = journal.begin_resend(request("a", 5)).await.expect("stored");
        let step = || Step {
            resent: Some(ResendProgress {
                reopened: vec![ReopenedNotifications { batch, ordinals: vec![1, 2], failed: 1 }],
                ..resent(requested_at.id, requested_at.reached, batch, 6)
            }),
            receipts: vec![chunk(batch, attempts([1, 2], 1, Outcome::Deferred, at(6)))],
            retries: vec![due(batch, vec![1, 2], 6)],
            ..Step::default()
        };
        let mut arrivals = journal.arrivals();
        journal.commit(step()).await.expect("committed");
        assert!(arrivals.work.has_changed().expect("the journal lives"));
        arrivals.work.mark_unchanged();
        assert!(matches!(journal.commit(step()).await, Err(StoreError::Fenced(_))), "it has progressed");
        let now = the_request(&*journal).await;
        assert_eq!((now.reached, now.notifications, now.done_at), (batch, 2, None));
        assert_eq!(journal.backlog().notifications, 2);
        assert_eq!(
            journal.prune(&Cutoffs::all(at(100)), at(100), 100).await.expect("pruned"),
            0,
            "an open batch stays"
        );
        let item = claim_work(&*journal, 1, at(6)).await.remove(0);
        assert_eq!((item.ordinals.clone(), item.attempts), (Some(vec![1, 2]), 0));
        journal.commit(delivered(&item, 4, at(7))).await.expect("committed");
        assert_eq!(journal.prune(&Cutoffs::all(at(100)), at(100), 100).await.expect("pruned"), 2);
        let gone = Step {
            resent: Some(ResendProgress {
                reopened: vec![ReopenedNotifications { batch, ordinals: vec![1], failed: 1 }],
                ..resent(requested_at.id, batch, batch, 8)
            }),
            ..Step::default()
        };
        assert!(journal.commit(gone).await.is_err());
    });
}

#[test]
fn suspended_notifications_are_resumed_if_they_still_exist() {
    on_each(async |journal| {
        let batch = failed(&*journal).await;
        let (requested_at, _) = journal.begin_resend(request("a", 5)).await.expect("stored");
        let step = Step {
            resent: Some(ResendProgress {
                resumed: vec![(batch, vec![1, 3])],
                done_at: Some(at(6)),
                ..resent(requested_at.id, requested_at.reached, batch, 6)
            }),
            ..Step::default()
        };
        journal.commit(step).await.expect("committed");
        let now = the_request(&*journal).await;
        assert_eq!((now.notifications, now.done_at), (1, Some(at(6))));
        assert_eq!((journal.backlog().suspended, journal.backlog().notifications), (0, 1));
        let item = claim_work(&*journal, 1, at(6)).await.remove(0);
        assert_eq!(item.ordinals, Some(vec![3]));
        let batches = journal.notification_batches_after(NotificationBatchId(0), 9).await.expect("listed");
        assert_eq!(batches.iter().map(|(id, _, count)| (*id, *count)).collect::<Vec<_>>(), [(batch, 4)]);
        assert!(journal.notification_batches_after(batch, 9).await.expect("listed").is_empty());
    });
}
