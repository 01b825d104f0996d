//! Checkpoints of schedules, and the events of their runs.

use tocsin_model::id::{ChangeSequence, EventBatchId};
use tocsin_store::{
    error::StoreError,
    journal::{JournalOptions, NewEventBatch, ScheduleKey, ScheduleRun, Step},
};

use crate::support::*;

fn run_of(rule: &str, schedule: &str, due: i64, after: u64) -> ScheduleRun {
    ScheduleRun {
        application: app(),
        rule: name(rule),
        schedule: schedule.into(),
        due_at: at(due),
        after: EventBatchId(after),
        seen: ChangeSequence(3),
        skipped: 0,
        skipped_at: None,
    }
}

#[test]
fn a_due_event_and_the_state_of_its_schedules_are_one_commit() {
    on_each(async |journal| {
        let (daily, weekly) = (run_of("morning", "daily", 0, 0), run_of("morning", "weekly", 0, 0));
        assert_eq!(journal.record_runs(None, vec![daily.clone(), weekly.clone()]).await.expect("recorded"), None);
        let first = accept(&*journal, 1, at(0)).await;
        let arrivals = journal.arrivals();

        let due = NewEventBatch { class: name("due"), ..events(1, at(5)) };
        let later = ScheduleRun { due_at: at(5), ..daily };
        let tick = journal.record_runs(Some(due), vec![later.clone()]).await.expect("recorded").expect("a batch");
        assert!(tick > first && arrivals.events.has_changed().expect("open"), "the matcher is woken");
        let later = ScheduleRun { after: tick, ..later };
        assert_eq!(journal.schedule_runs(&app(), None, 9).await.expect("read"), [later.clone(), weekly.clone()]);
        let key: ScheduleKey = (name("morning"), "daily".into());
        assert_eq!(journal.schedule_runs(&app(), Some(&key), 9).await.expect("read"), [weekly]);
        assert_eq!(journal.schedule_runs(&app(), None, 1).await.expect("read"), [later]);
        assert!(journal.schedule_runs(&name("other"), None, 9).await.expect("read").is_empty());

        let claimed = claim_events(&*journal, 9, at(6)).await;
        assert_eq!(claimed.iter().map(|claimed| claimed.claim.id).collect::<Vec<_>>(), [first, tick]);
        assert!(journal.schedule_run(&app(), &key).await.expect("read").is_some_and(|run| run.after == tick));
        journal.delete_schedule(&app(), &key).await.expect("forgotten");
        assert_eq!(journal.schedule_run(&app(), &key).await.expect("read"), None);
        assert_eq!(journal.schedule_runs(&app(), None, 9).await.expect("read").len(), 1);
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
fn due_events_are_refused_while_the_journal_is_full() {
    let options = JournalOptions { event_batches_waiting_max: 1, ..options() };
    on_each_within(options, async |journal| {
        accept(&*journal, 1, at(0)).await;
        let refused = journal.record_runs(Some(events(1, at(1))), vec![run_of("morning", "daily", 1, 0)]).await;
        assert!(matches!(refused, Err(StoreError::Full(_))), "{refused:?}");
        assert!(journal.schedule_runs(&app(), None, 9).await.expect("read").is_empty(), "nothing of it is stored");
        journal.record_runs(None, vec![run_of("morning", "daily", 1, 0)]).await.expect("this needs no room");
    });
}

#[test]
fn events_between_two_batches_can_be_read() {
    on_each(async |journal| {
        for second in 0..4 {
            accept(&*journal, 2, at(second)).await;
            let other = NewEventBatch { class: name("quote"), ..events(1, at(second)) };
            journal.accept(other).await.expect("accepted");
        }
        let between = async |after: u64, before: u64, bytes: usize| {
            let (after, before) = (EventBatchId(after), EventBatchId(before));
            let page = journal.events_between(&app(), &name("trade"), after, before, bytes).await.expect("read");
            let ids: Vec<u64> = page.batches.iter().map(|batch| batch.id.0).collect();
            (ids, page.next.map(|id| id.0))
        };
        assert_eq!(between(0, 99, usize::MAX).await, (vec![1, 3, 5, 7], None));
        assert_eq!(between(1, 7, usize::MAX).await, (vec![3, 5], None));
        assert_eq!(between(0, 99, 1).await, (vec![1], Some(1)));
        assert_eq!(between(1, 99, 160).await, (vec![3, 5], Some(5)));
        assert_eq!(between(5, 99, 1).await, (vec![7], None));
        assert_eq!(between(7, 7, 1).await, (vec![], None));
        assert_eq!(between(9, 3, 1).await, (vec![], None));
        let position = async |second: i64| journal.position_at(at(second)).await.expect("read").0;
        assert_eq!(
            [position(-9).await, position(1).await, position(2).await, position(4).await, position(99).await],
            [0, 0, 2, 6, 8]
        );
        let none = journal.events_between(&app(), &name("news"), EventBatchId(0), EventBatchId(99), 9).await;
        assert!(none.expect("read").batches.is_empty());
    });
}
