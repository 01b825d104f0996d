//! Notifications of delayed rules that wait.

use tocsin_model::id::{EventBatchId, EventId, SubscriptionId};
use tocsin_store::{
    error::StoreError,
    journal::{
        CancelDelayed, Correlation, Cutoffs, Delayed, DelayedFilter, DueDelays, Journal, JournalOptions, NewDelayed,
        NewEventBatch, Step,
    },
};

use crate::support::*;

fn event(batch: EventBatchId, ordinal: u32) -> EventId {
    EventId { batch, ordinal }
}

fn delayed(rule: &str, event: EventId, subscription: u64, due: i64, key: Option<&str>) -> NewDelayed {
    NewDelayed {
        application: app(),
        rule: name(rule),
        event,
        subscription: SubscriptionId(subscription),
        due_at: at(due),
        key: key.map(Into::into),
    }
}

fn cancel(rule: &str, by: EventId, correlation: Correlation) -> CancelDelayed {
    CancelDelayed { application: app(), rule: name(rule), by, correlation }
}

/// Matches the next event batch with these delays.
async fn match_with(journal: &dyn Journal, now: i64, step: impl FnOnce(EventBatchId) -> Step) -> EventBatchId {
    let claimed = claim_events(journal, 1, at(now)).await;
    let claim = claimed[0].claim;
    journal.commit(Step { matched: vec![claim], ..step(claim.id) }).await.expect("committed");
    claim.id
}

fn due(rule: &str, now: i64, limit: usize) -> DueDelays {
    let batch = NewEventBatch { class: name("due"), source: name("delay"), ..events(1, at(now)) };
    DueDelays { batch, rule: name(rule), now: at(now), limit }
}

async fn waiting(journal: &dyn Journal) -> Vec<String> {
    let show = |found: Delayed| {
        let run = found.run.map_or(String::new(), |run| format!(" in {run}"));
        format!("{} {} {}{run}", found.rule, found.event, found.subscription)
    };
    let found = journal.delayed(&DelayedFilter::default(), 0, 100).await.expect("listed");
    assert_eq!(journal.delayed_count(&app()).await.expect("counted"), found.len() as u64);
    found.into_iter().map(show).collect()
}

#[test]
fn events_cancel_what_began_before_them_by_key_or_subscription() {
    on_each(async |journal| {
        accept(&*journal, 3, at(0)).await;
        accept(&*journal, 3, at(1)).await;
        let journal = &*journal;
        let first = match_with(journal, 2, |batch| Step {
            delayed: vec![
                delayed("reminder", event(batch, 0), 1, 100, Some("a")),
                delayed("reminder", event(batch, 1), 2, 100, Some("b")),
                delayed("reminder", event(batch, 2), 1, 100, Some("b")),
                delayed("other", event(batch, 0), 1, 100, Some("a")),
                // One for each rule, event and subscription.
                delayed("reminder", event(batch, 0), 1, 500, Some("z")),
            ],
            // Those of the same step that began before: not the last one.
            cancelled: vec![cancel("reminder", event(batch, 2), Correlation::Key("b".into()))],
            ..Step::default()
        })
        .await;
        assert_eq!(first, EventBatchId(1));
        assert_eq!(waiting(journal).await, ["reminder e-1-0 s-1", "reminder e-1-2 s-1", "other e-1-0 s-1"]);
        match_with(journal, 3, |batch| Step {
            cancelled: vec![
                cancel("reminder", event(batch, 0), Correlation::Subscription(SubscriptionId(1))),
                cancel("reminder", event(batch, 0), Correlation::Subscription(SubscriptionId(9))),
            ],
            ..Step::default()
        })
        .await;
        assert_eq!(waiting(journal).await, ["other e-1-0 s-1"]);
    });
}

#[test]
fn due_notifications_are_assigned_to_one_event_batch_in_one_commit() {
    on_each(async |journal| {
        accept(&*journal, 4, at(0)).await;
        let journal = &*journal;
        match_with(journal, 1, |batch| Step {
            delayed: vec![
                delayed("reminder", event(batch, 0), 1, 30, None),
                delayed("reminder", event(batch, 1), 1, 10, None),
                delayed("reminder", event(batch, 2), 1, 20, None),
                delayed("other", event(batch, 3), 1, 5, None),
            ],
            ..Step::default()
        })
        .await;
        let next = async |except: &[_]| journal.next_delayed(&app(), except).await.expect("read");
        assert_eq!(next(&[]).await, Some((at(5), name("other"))));
        assert_eq!(next(&[name("other")]).await, Some((at(10), name("reminder"))));
        assert_eq!(next(&[name("other"), name("reminder")]).await, None);
        assert_eq!(journal.next_delayed(&name("unknown"), &[]).await.expect("read"), None);
        assert_eq!(journal.assign_due(due("reminder", 9, 10)).await.expect("nothing is due"), None);
        let run = journal.assign_due(due("reminder", 30, 2)).await.expect("due").expect("a batch");
        let found = journal.delayed_of(run).await.expect("read");
        assert_eq!(found.iter().map(|found| found.event.ordinal).collect::<Vec<_>>(), [1, 2], "the earliest");
        assert_eq!(next(&[]).await, Some((at(5), name("other"))));
        assert_eq!(next(&[name("other")]).await, Some((at(30), name("reminder"))));

        // An event before the due time cancels, one after it does not.
        assert!(found.iter().all(|found| {
            cancel("reminder", event(EventBatchId(run.0 - 1), 9), Correlation::Subscription(SubscriptionId(1)))
                .cancels(found)
        }));
        accept(journal, 1, at(31)).await;
        let claimed = claim_events(journal, 2, at(32)).await;
        assert_eq!(claimed[0].claim.id, run, "it is an event batch like any other");
        let later = cancel("reminder", event(claimed[1].claim.id, 0), Correlation::Subscription(SubscriptionId(1)));
        let step = Step { matched: vec![claimed[1].claim], cancelled: vec![later], ..Step::default() };
        journal.commit(step).await.expect("committed");
        assert_eq!(
            waiting(journal).await,
            ["reminder e-1-1 s-1 in eb-2", "reminder e-1-2 s-1 in eb-2", "other e-1-3 s-1"]
        );
        let step = Step { matched: vec![claimed[0].claim], released: vec![run], ..Step::default() };
        journal.commit(step).await.expect("committed");
        assert_eq!(waiting(journal).await, ["other e-1-3 s-1"]);
    });
}

#[test]
fn an_event_batch_is_kept_while_a_notification_waits_for_it() {
    on_each(async |journal| {
        accept(&*journal, 2, at(0)).await;
        let journal = &*journal;
        let batch = match_with(journal, 1, |batch| Step {
            delayed: vec![
                delayed("reminder", event(batch, 0), 1, 100, None),
                delayed("reminder", event(batch, 1), 1, 100, None),
            ],
            ..Step::default()
        })
        .await;
        let cutoffs = Cutoffs::all(at(1_000));
        journal.prune(&cutoffs, at(1_000), 100).await.expect("pruned");
        assert!(journal.event_batch(batch).await.expect("read").is_some());
        let one = DelayedFilter { id: Some(1), ..DelayedFilter::default() };
        assert_eq!(journal.cancel_delayed(&one, at(50), 9).await.expect("cancelled"), 1);
        journal.prune(&cutoffs, at(1_000), 100).await.expect("pruned");
        assert!(journal.event_batch(batch).await.expect("read").is_some());
        let of_batch = DelayedFilter { event_batch: Some(batch), application: Some(app()), ..DelayedFilter::default() };
        assert_eq!(journal.cancel_delayed(&of_batch, at(60), 9).await.expect("cancelled"), 1);
        journal.prune(&cutoffs, at(1_000), 100).await.expect("pruned");
        assert!(journal.event_batch(batch).await.expect("read").is_none());
    });
}

#[test]
fn filters_select_waiting_notifications_and_an_assigned_one_is_not_cancelled() {
    on_each(async |journal| {
        accept(&*journal, 3, at(0)).await;
        let journal = &*journal;
        match_with(journal, 1, |batch| Step {
            delayed: vec![
                delayed("reminder", event(batch, 0), 1, 10, None),
                delayed("reminder", event(batch, 1), 2, 20, None),
                delayed("other", event(batch, 2), 2, 30, None),
            ],
            ..Step::default()
        })
        .await;
        let list = async |filter: DelayedFilter| -> Vec<u64> {
            let found = journal.delayed(&filter, 0, 10).await.expect("listed");
            found.into_iter().map(|found| found.id).collect()
        };
        let all = DelayedFilter::default;
        assert_eq!(list(DelayedFilter { rule: Some(name("other")), ..all() }).await, [3]);
        assert!(list(DelayedFilter { rule: Some(name("unknown")), ..all() }).await.is_empty());
        assert_eq!(list(DelayedFilter { subscription: Some(SubscriptionId(2)), ..all() }).await, [2, 3]);
        assert_eq!(list(DelayedFilter { due_before: Some(at(20)), ..all() }).await, [1]);
        assert!(list(DelayedFilter { application: Some(name("unknown")), ..all() }).await.is_empty());
        let page = journal.delayed(&all(), 1, 1).await.expect("listed");
        assert_eq!(page.iter().map(|found| found.id).collect::<Vec<_>>(), [2]);

        journal.assign_due(due("reminder", 10, 9)).await.expect("due").expect("a batch");
        assert_eq!(journal.cancel_delayed(&all(), at(11), 1).await.expect("cancelled"), 1);
        assert_eq!(list(all()).await, [1, 3]);
        assert_eq!(journal.cancel_delayed(&all(), at(11), 9).await.expect("cancelled"), 1);
        assert_eq!(list(all()).await, [1], "it is due");
        journal.end_application(&app(), at(12)).await.expect("ended");
        assert!(list(all()).await.is_empty());
    });
}

#[test]
fn due_times_are_refused_while_the_journal_is_full() {
    let options = JournalOptions { event_batches_waiting_max: 1, ..options() };
    on_each_within(options, async |journal| {
        accept(&*journal, 1, at(0)).await;
        let journal = &*journal;
        match_with(journal, 1, |batch| Step {
            delayed: vec![delayed("reminder", event(batch, 0), 1, 10, None)],
            ..Step::default()
        })
        .await;
        accept(journal, 1, at(2)).await;
        let refused = journal.assign_due(due("reminder", 10, 9)).await;
        assert!(matches!(refused, Err(StoreError::Full(_))), "{refused:?}");
        assert_eq!(waiting(journal).await, ["reminder e-1-0 s-1"], "it is not assigned");
    });
}
