//! Progress of schedules.

use tocsin_model::id::{ChangeSequence, EventBatchId};
use tocsin_store::{
    error::StoreError,
    journal::{JournalOptions, NewEventBatch, ScheduleKey, ScheduleRun},
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
