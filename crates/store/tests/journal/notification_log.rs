//! Notification batches, their attempts and progress.

use tocsin_model::{id::NotificationBatchId, notification::NotificationHead, receipt::Outcome};
use tocsin_store::journal::{NewNotificationBatch, Step};

use crate::support::*;

#[test]
fn b11_a_due_batch_lists_the_notifications_of_its_run() {
    on_each(async |journal| {
        let events = accept(&*journal, 10, at(0)).await;
        let due = accept(&*journal, 1, at(1)).await;
        let claims: Vec<_> = claim_events(&*journal, 2, at(2)).await.into_iter().map(|claimed| claimed.claim).collect();
        let of_events = notifications(&[events], 3, at(3));
        let of_run = NewNotificationBatch { run: Some(due), ..notifications(&[events], 4, at(3)) };
        // A batch that contains the due event itself is linked by its events, and only once.
        let of_both = NewNotificationBatch { run: Some(due), ..notifications(&[events, due], 5, at(3)) };
        let batches = vec![of_events, of_run, of_both];
        journal.commit(Step { matched: claims, batches, ..Step::default() }).await.expect("committed");
        let counts = async |of, after, limit| {
            let found = journal.notification_batches_of(of, NotificationBatchId(after), limit).await.expect("read");
            found.into_iter().map(|(_, _, count)| count).collect::<Vec<_>>()
        };
        assert_eq!(counts(due, 0, 9).await, [4, 5]);
        assert_eq!(counts(due, 2, 9).await, [5]);
        assert_eq!(counts(due, 0, 1).await, [4]);
        assert_eq!(counts(events, 0, 9).await, [3, 4, 5]);
    });
}

#[test]
fn attempts_are_read_in_the_order_of_recording() {
    on_each(async |journal| {
        let one = queue(&*journal, 3, at(0)).await;
        let two = queue(&*journal, 3, at(0)).await;
        let mut expected = Vec::new();
        for number in 1..20 {
            for batch in [one, two] {
                let tried = attempts([number % 3, (number + 1) % 3], number, Outcome::Deferred, at(i64::from(number)));
                let step = Step { receipts: vec![chunk(batch, tried.clone())], ..Step::default() };
                journal.commit(step).await.expect("committed");
                if batch == one {
                    expected.extend(tried);
                }
            }
        }
        assert_eq!(journal.attempts(one).await.expect("read"), expected);
    });
}

#[test]
fn batches_are_listed_in_the_order_of_their_creation() {
    on_each(async |journal| {
        let first = queue(&*journal, 2, at(0)).await;
        let second = queue(&*journal, 1, at(1)).await;
        let ids = |page: Vec<(NotificationBatchId, NotificationHead, u32)>| {
            page.into_iter().map(|(id, _, count)| (id, count)).collect::<Vec<_>>()
        };
        assert_eq!(ids(journal.notification_batches(None, 9).await.expect("read")), [(second, 1), (first, 2)]);
        assert_eq!(ids(journal.notification_batches(Some(second), 9).await.expect("read")), [(first, 2)]);
        assert_eq!(ids(journal.notification_batches_after(first, 9).await.expect("read")), [(second, 1)]);
        let missing = NotificationBatchId(second.0 + 1);
        assert!(journal.notification_batch(missing).await.expect("read").is_none());

        let item = claim_work(&*journal, 1, at(2)).await.remove(0);
        assert_eq!(item.batch, first);
        let mut answers = attempts([0], 1, Outcome::Delivered, at(3));
        answers.extend(attempts([1], 1, Outcome::Refused, at(3)));
        let step = Step { finished: vec![item.claim], receipts: vec![chunk(first, answers)], ..Step::default() };
        journal.commit(step).await.expect("committed");
        let progress = journal.progress(&[second, missing, first]).await.expect("read");
        let counts: Vec<_> =
            progress.iter().map(|found| found.as_ref().map(|of| (of.open, of.delivered, of.failed))).collect();
        assert_eq!(counts, [Some((1, 0, 0)), None, Some((0, 1, 1))]);
        let failed = journal.failed_batches(None, 9).await.expect("read");
        assert_eq!(failed.into_iter().map(|(id, _)| id).collect::<Vec<_>>(), [first]);
    });
}
