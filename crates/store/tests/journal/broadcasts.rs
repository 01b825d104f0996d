//! Broadcasts: state, progress, and the work that they hold.

use tocsin_model::{
    id::{BroadcastId, Name, NotificationBatchId, SubscriptionId},
    notification::NotificationHead,
    receipt::Outcome,
};
use tocsin_store::journal::{
    Broadcast, BroadcastChange, BroadcastFilter, BroadcastState, BroadcastStep, BroadcastTotals, Cutoffs, HELD,
    Journal, NewBroadcast, NewEventBatch, NewNotificationBatch, NextPart, RequestedState, Retry, Step,
};

use crate::support::*;

fn new(key: &str, starts: i64) -> NewBroadcast {
    NewBroadcast {
        key: key.to_owned(),
        application: app(),
        draft: r#"{"application":"stock"}"#.to_owned(),
        by: "ann".to_owned(),
        created_at: at(0),
        starts_at: at(starts),
    }
}

fn part(now: i64) -> NewEventBatch {
    NewEventBatch { class: name("broadcast"), source: name("broadcasts"), ..events(1, at(now)) }
}

fn change(to: RequestedState, now: i64) -> BroadcastChange {
    BroadcastChange { to, by: "bob".to_owned(), reason: Some("typo".to_owned()), now: at(now) }
}

async fn put(journal: &dyn Journal, key: &str, starts: i64) -> Broadcast {
    let (stored, is_new) = journal.put_broadcast(new(key, starts)).await.expect("stored");
    assert!(is_new);
    stored
}

async fn find(journal: &dyn Journal, id: BroadcastId) -> Broadcast {
    journal.broadcast(id).await.expect("read").expect("a broadcast")
}

/// Matches the waiting event of a broadcast with this number of notifications.
async fn match_part(
    journal: &dyn Journal,
    id: BroadcastId,
    count: u32,
    next: NextPart,
    now: i64,
) -> NotificationBatchId {
    let claimed = claim_events(journal, 1, at(now)).await.remove(0);
    let made = notifications(&[claimed.claim.id], count, at(now));
    let rule: Name = id.to_string().parse().expect("a name");
    let made = NewNotificationBatch { head: NotificationHead { rule, ..made.head }, ..made };
    let continued = if next == NextPart::Continued { vec![part(now)] } else { Vec::new() };
    let progress = BroadcastStep { id, reached: SubscriptionId(u64::from(count)), examined: 7, next, now: at(now) };
    let step = Step {
        matched: vec![claimed.claim],
        batches: vec![made],
        continued,
        broadcasts: vec![progress],
        ..Step::default()
    };
    journal.commit(step).await.expect("committed").remove(0)
}

#[test]
fn a_broadcast_is_stored_once_and_listed() {
    on_each(async |journal| {
        let (first, second) = (put(&*journal, "a", 5).await, put(&*journal, "b", 3).await);
        assert_eq!(journal.put_broadcast(new("a", 9)).await.expect("known"), (first.clone(), false));
        assert_eq!(first.state, BroadcastState::Scheduled);
        let list = async |filter: BroadcastFilter, before: Option<BroadcastId>| {
            let found = journal.broadcasts(&filter, before, 9).await.expect("read");
            found.into_iter().map(|found| found.id).collect::<Vec<_>>()
        };
        assert_eq!(list(BroadcastFilter::default(), None).await, [second.id, first.id]);
        assert_eq!(list(BroadcastFilter::default(), Some(second.id)).await, [first.id]);
        let filter = BroadcastFilter { application: Some(name("other")), ..BroadcastFilter::default() };
        assert!(list(filter, None).await.is_empty());
        let filter = BroadcastFilter { key: Some("a".to_owned()), ..BroadcastFilter::default() };
        assert_eq!(list(filter, None).await, [first.id]);
        let filter = BroadcastFilter { state: Some(BroadcastState::Paused), ..BroadcastFilter::default() };
        assert!(list(filter, None).await.is_empty());
        let startable = journal.startable_broadcasts(9).await.expect("read");
        assert_eq!(startable, [second, first], "by start time");
        assert_eq!(journal.broadcast(BroadcastId(99)).await.expect("read"), None);
    });
}

#[test]
fn a_broadcast_has_one_event_at_a_time_and_its_progress_is_in_the_commit() {
    on_each(async |journal| {
        let id = put(&*journal, "a", 0).await.id;
        let begun = journal.begin_broadcast(id, part(1)).await.expect("begun");
        assert!(begun.is_some());
        assert_eq!(journal.begin_broadcast(id, part(2)).await.expect("known"), None, "it has an event");
        let running = find(&*journal, id).await;
        assert_eq!((running.state, running.is_queued), (BroadcastState::Running, true));
        assert_eq!((running.version, running.started_at), (Some(3), Some(at(1))));

        let first = match_part(&*journal, id, 3, NextPart::Continued, 2).await;
        let after = find(&*journal, id).await;
        assert_eq!((after.is_queued, after.examined, after.reached), (true, 7, SubscriptionId(3)));
        let second = match_part(&*journal, id, 2, NextPart::Matched, 3).await;
        let after = find(&*journal, id).await;
        assert_eq!((after.is_queued, after.examined, after.matched_at), (false, 14, Some(at(3))));
        assert_eq!(journal.begin_broadcast(id, part(4)).await.expect("matched"), None);
        assert!(journal.startable_broadcasts(9).await.expect("read").is_empty());

        let batches = journal.broadcast_batches(id, NotificationBatchId(0), 9).await.expect("read");
        assert_eq!(batches, [first, second]);
        assert_eq!(journal.broadcast_batches(id, first, 9).await.expect("read"), [second]);
        let totals = BroadcastTotals { recipients: 5, open: 5, ..BroadcastTotals::default() };
        assert_eq!(journal.broadcast_totals(id).await.expect("read"), totals);
    });
}

#[test]
fn a_paused_broadcast_holds_its_work_until_it_is_resumed() {
    on_each(async |journal| {
        let id = put(&*journal, "a", 0).await.id;
        journal.begin_broadcast(id, part(1)).await.expect("begun");
        let batch = match_part(&*journal, id, 2, NextPart::Parked, 2).await;
        let paused = journal.change_broadcast(id, change(RequestedState::Paused, 3)).await.expect("paused");
        assert_eq!((paused.state, paused.changed_by.as_str()), (BroadcastState::Paused, "bob"));
        assert_eq!(journal.begin_broadcast(id, part(4)).await.expect("paused"), None);

        let held = claim_work(&*journal, 9, at(5)).await.remove(0);
        let step = Step {
            finished: vec![held.claim],
            retries: vec![Retry { due_at: HELD, ..retry(batch, vec![0, 1], 0, 0) }],
            ..Step::default()
        };
        journal.commit(step).await.expect("held");
        assert!(claim_work(&*journal, 9, at(1_000_000)).await.is_empty(), "it is held");
        let resumed = journal.change_broadcast(id, change(RequestedState::Resumed, 6)).await.expect("resumed");
        assert_eq!(resumed.state, BroadcastState::Running);
        let due = claim_work(&*journal, 9, at(7)).await;
        assert_eq!(due.len(), 1, "it is due again");
        // A worker that saw the pause commits after the resumption.
        let step = Step {
            finished: vec![due[0].claim],
            retries: vec![Retry { due_at: HELD, ..retry(batch, vec![0, 1], 0, 0) }],
            ..Step::default()
        };
        journal.commit(step).await.expect("committed");
        assert_eq!(claim_work(&*journal, 9, at(1_000)).await.len(), 1, "no work is held without a pause");
        assert!(journal.begin_broadcast(id, part(8)).await.expect("begun").is_some(), "the next part follows");
    });
}

#[test]
fn a_cancelled_broadcast_has_all_its_work_due_and_stays_cancelled() {
    on_each(async |journal| {
        let id = put(&*journal, "a", 0).await.id;
        journal.begin_broadcast(id, part(1)).await.expect("begun");
        let batch = match_part(&*journal, id, 2, NextPart::Matched, 2).await;
        let item = claim_work(&*journal, 9, at(3)).await.remove(0);
        let step =
            Step { finished: vec![item.claim], retries: vec![retry(batch, vec![0, 1], 1, 9_000)], ..Step::default() };
        journal.commit(step).await.expect("retried later");
        assert!(claim_work(&*journal, 9, at(10)).await.is_empty());
        let cancelled = journal.change_broadcast(id, change(RequestedState::Cancelled, 10)).await.expect("cancelled");
        assert_eq!((cancelled.state, cancelled.reason.as_deref()), (BroadcastState::Cancelled, Some("typo")));
        let due = claim_work(&*journal, 9, at(10)).await.remove(0);
        let resumed = journal.change_broadcast(id, change(RequestedState::Resumed, 11)).await.expect("read");
        assert_eq!(resumed.state, BroadcastState::Cancelled);

        let closing = [(0, Outcome::Delivered), (1, Outcome::Ended)];
        let closing = closing.map(|(ordinal, outcome)| attempts([ordinal], 2, outcome, at(12)));
        let closing = chunk(batch, closing.concat());
        journal
            .commit(Step { finished: vec![due.claim], receipts: vec![closing], ..Step::default() })
            .await
            .expect("closed");
        let totals = journal.broadcast_totals(id).await.expect("read");
        assert_eq!((totals.recipients, totals.open, totals.delivered, totals.ended()), (2, 0, 1, 1));

        // The sums stay when the batches are deleted; then the broadcast is deleted.
        journal.prune(&Cutoffs::all(at(13)), at(13), 1).await.expect("pruned");
        assert!(journal.broadcast_batches(id, NotificationBatchId(0), 9).await.expect("read").is_empty());
        assert_eq!(journal.broadcast_totals(id).await.expect("read"), totals);
        journal.prune(&Cutoffs::all(at(13)), at(13), 9).await.expect("pruned");
        assert_eq!(journal.broadcast(id).await.expect("read"), None);
    });
}

#[test]
fn the_removal_of_an_application_cancels_its_broadcasts() {
    on_each(async |journal| {
        let (running, scheduled) = (put(&*journal, "a", 0).await.id, put(&*journal, "b", 9_000).await.id);
        journal.begin_broadcast(running, part(1)).await.expect("begun");
        journal.end_application(&app(), at(5)).await.expect("ended");
        for id in [running, scheduled] {
            let found = find(&*journal, id).await;
            assert_eq!((found.state, found.is_queued), (BroadcastState::Cancelled, false), "{id}");
        }
    });
}
