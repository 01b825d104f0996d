//! Retries, suspensions, arrivals.

use tocsin_model::{id::NotificationBatchId, receipt::Outcome};
use tocsin_store::{
    error::StoreError,
    journal::{Cutoffs, EndedWork, EventBatchState, Resolution, Retry, Step, Suspension, SuspensionFilter, WorkState},
};

use crate::support::*;

fn retry(batch: NotificationBatchId, ordinals: Vec<u32>, attempts: u32, due: i64) -> Retry {
    Retry {
        batch,
        application: app(),
        channel: mail(),
        ordinals,
        attempts,
        due_at: at(due),
        work_state: WorkState::default(),
    }
}

fn suspension(batch: NotificationBatchId, ordinals: Vec<u32>, channel: &str) -> Suspension {
    Suspension {
        batch,
        application: app(),
        channel: name(channel),
        ordinals,
        attempts: 4,
        reason: "attempts exhausted".to_owned(),
        since: at(7),
        work_state: WorkState::default(),
    }
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

#[test]
fn the_removal_of_an_application_ends_its_open_work() {
    on_each(async |journal| {
        let finished = queue(&*journal, 1, at(0)).await;
        let item = claim_work(&*journal, 1, at(0)).await.remove(0);
        let receipts = vec![chunk(finished, attempts([0], 1, Outcome::Delivered, at(1)))];
        journal.commit(Step { finished: vec![item.claim], receipts, ..Step::default() }).await.expect("committed");
        // One is suspended, one is retried later, one is claimed.
        let batch = queue(&*journal, 3, at(1)).await;
        let item = claim_work(&*journal, 1, at(1)).await.remove(0);
        let step = Step {
            finished: vec![item.claim],
            receipts: vec![chunk(batch, attempts([0], 1, Outcome::Deferred, at(2)))],
            retries: vec![retry(batch, vec![0], 1, 900), retry(batch, vec![1], 0, 3)],
            suspensions: vec![suspension(batch, vec![2], "mail")],
            ..Step::default()
        };
        journal.commit(step).await.expect("committed");
        let claimed = claim_work(&*journal, 1, at(3)).await.remove(0);
        // One event batch waits, one failed.
        let failed = accept(&*journal, 1, at(3)).await;
        let claim = claim_events(&*journal, 1, at(3)).await.remove(0).claim;
        let step = Step { failed: vec![(claim, "too deep".to_owned())], ..Step::default() };
        journal.commit(step).await.expect("committed");
        let waiting = accept(&*journal, 2, at(4)).await;
        assert_eq!(journal.open_applications().await.expect("listed"), [app()]);
        assert_eq!(journal.end_application(&name("other"), at(5)).await.expect("ended"), EndedWork::default());

        let ended = journal.end_application(&app(), at(5)).await.expect("ended");
        assert_eq!(ended, EndedWork { notifications: 3, event_batches: 2 });
        assert_eq!(journal.end_application(&app(), at(6)).await.expect("ended"), EndedWork::default());
        assert!(journal.open_applications().await.expect("listed").is_empty());
        let backlog = journal.backlog();
        assert_eq!((backlog.event_batches, backlog.failed_batches, backlog.events, backlog.event_bytes), (0, 0, 0, 0));
        assert_eq!((backlog.work_items, backlog.notifications, backlog.suspended), (0, 0, 0));
        assert_eq!(backlog.oldest_event, None);
        let closing = journal.attempts(batch).await.expect("read").split_off(1);
        assert!(closing.iter().all(|attempt| attempt.outcome == Outcome::Ended), "{closing:?}");
        assert!(closing.iter().all(|attempt| attempt.reply == "the application was removed"), "{closing:?}");
        let step = Step { finished: vec![claimed.claim], ..Step::default() };
        assert!(matches!(journal.commit(step).await, Err(StoreError::Fenced(_))));
        for id in [failed, waiting] {
            let (_, state) = journal.event_batch(id).await.expect("read").expect("it is there");
            assert_eq!(state, EventBatchState::Matched(at(5)));
        }
        // All of it is finished: retention removes it.
        journal.prune(&Cutoffs::all(at(100)), at(100), 100).await.expect("pruned");
        assert!(journal.event_batches(None, 9).await.expect("listed").is_empty());
        assert!(journal.notification_batches(None, 9).await.expect("listed").is_empty());
    });
}

#[test]
fn suspensions_can_be_resumed() {
    on_each(async |journal| {
        let batch = queue(&*journal, 5, at(0)).await;
        let item = claim_work(&*journal, 1, at(0)).await.remove(0);
        let waits = suspension(batch, vec![1, 3], "mail");
        let step = Step {
            finished: vec![item.claim],
            receipts: vec![
                chunk(batch, attempts([0, 2, 4], 1, Outcome::Delivered, at(1))),
                chunk(batch, attempts([1, 3], 4, Outcome::Suspended, at(1))),
            ],
            suspensions: vec![waits.clone()],
            ..Step::default()
        };
        journal.commit(step).await.expect("committed");
        assert_eq!((journal.backlog().suspended, journal.backlog().work_items), (2, 0));
        let all = SuspensionFilter::default();
        let listed = journal.suspensions(&all, 0, 9).await.expect("read");
        assert_eq!(listed.iter().map(|stored| &stored.suspension).collect::<Vec<_>>(), [&waits]);
        assert!(journal.suspensions(&all, listed[0].id, 9).await.expect("read").is_empty());

        let arrivals = journal.arrivals();
        assert_eq!(journal.resolve(&all, Resolution::Resume, at(50)).await.expect("resolved"), 2);
        assert!(arrivals.work.has_changed().expect("open"));
        assert_eq!(journal.resolve(&all, Resolution::Resume, at(50)).await.expect("resolved"), 0);
        assert_eq!(journal.backlog().suspended, 0);
        let item = claim_work(&*journal, 9, at(50)).await.remove(0);
        assert_eq!(
            (item.batch, item.ordinals.clone(), item.attempts),
            (batch, Some(vec![1, 3]), 0),
            "a new retry schedule"
        );

        // The numbers of its attempts start again, and its progress counts nevertheless.
        let receipts = vec![chunk(batch, attempts([3], 1, Outcome::Delivered, at(51)))];
        let step = Step { held: vec![item.claim], receipts, ..Step::default() };
        journal.commit(step).await.expect("committed");
        assert_eq!(claim_work(&*journal, 9, at(200)).await.remove(0).ordinals, Some(vec![1]));
    });
}

#[test]
fn suspensions_can_be_ended() {
    on_each(async |journal| {
        let batch = queue(&*journal, 3, at(0)).await;
        let item = claim_work(&*journal, 1, at(0)).await.remove(0);
        let step = Step {
            finished: vec![item.claim],
            suspensions: vec![suspension(batch, vec![0, 2], "mail"), suspension(batch, vec![1], "mail")],
            ..Step::default()
        };
        journal.commit(step).await.expect("committed");
        let filter = SuspensionFilter { id: Some(1), ..SuspensionFilter::default() };
        assert_eq!(journal.resolve(&filter, Resolution::End, at(60)).await.expect("resolved"), 2);
        let ended = journal.attempts(batch).await.expect("read");
        let outcomes: Vec<_> = ended.iter().map(|ended| (ended.ordinal, ended.number, ended.outcome)).collect();
        assert_eq!(outcomes, [(0, 5, Outcome::Ended), (2, 5, Outcome::Ended)]);
        assert_eq!(ended[0].answered_at, at(60));
        assert_eq!(journal.totals().attempts[Outcome::Ended as usize], 2);
        assert_eq!(journal.backlog().suspended, 1);
    });
}

#[test]
fn filters_select_suspensions() {
    on_each(async |journal| {
        let one = queue(&*journal, 3, at(0)).await;
        let two = queue(&*journal, 3, at(0)).await;
        let suspensions = vec![
            suspension(one, vec![0], "mail"),
            suspension(one, vec![1], "sms"),
            suspension(two, vec![0, 1, 2], "mail"),
        ];
        journal.commit(Step { suspensions, ..Step::default() }).await.expect("committed");
        let any = SuspensionFilter::default();
        for (filter, expected) in [
            (SuspensionFilter { batch: Some(one), ..any.clone() }, vec![1, 2]),
            (SuspensionFilter { channel: Some(mail()), ..any.clone() }, vec![1, 3]),
            (SuspensionFilter { channel: Some(name("sms")), batch: Some(two), ..any.clone() }, vec![]),
            (SuspensionFilter { application: Some(app()), ..any.clone() }, vec![1, 2, 3]),
            (SuspensionFilter { application: Some(name("never")), ..any.clone() }, vec![]),
            (SuspensionFilter { id: Some(2), ..any.clone() }, vec![2]),
            (SuspensionFilter { id: Some(u64::MAX), ..any.clone() }, vec![]),
        ] {
            let listed = journal.suspensions(&filter, 0, 9).await.expect("read");
            assert_eq!(listed.iter().map(|stored| stored.id).collect::<Vec<_>>(), expected, "{filter:?}");
        }
        let page = journal.suspensions(&any, 1, 1).await.expect("read");
        assert_eq!(page.iter().map(|stored| stored.id).collect::<Vec<_>>(), [2]);
        let filter = SuspensionFilter { channel: Some(mail()), ..any };
        assert_eq!(journal.resolve(&filter, Resolution::End, at(9)).await.expect("resolved"), 4);
        assert_eq!(journal.backlog().suspended, 1);
    });
}

#[test]
fn many_suspensions_are_resolved_in_one_call() {
    on_each(async |journal| {
        let batch = queue(&*journal, 20_000, at(0)).await;
        let mut suspensions: Vec<_> = (0..600).map(|ordinal| suspension(batch, vec![ordinal], "mail")).collect();
        suspensions.push(suspension(batch, (600..20_000).collect(), "mail"));
        journal.commit(Step { suspensions, ..Step::default() }).await.expect("committed");
        let touched = journal.resolve(&SuspensionFilter::default(), Resolution::Resume, at(9)).await.expect("resolved");
        assert_eq!(touched, 20_000);
        assert_eq!(journal.backlog().suspended, 0);
        assert_eq!(journal.backlog().work_items, 602);
    });
}

#[test]
fn batches_can_be_suspended_from_the_start() {
    on_each(async |journal| {
        let id = accept(&*journal, 1, at(0)).await;
        let claim = claim_events(&*journal, 1, at(1)).await[0].claim;
        let mut new = notifications(&[id], 4, at(2));
        new.suspended = Some("no such channel".to_owned());
        let step = Step { matched: vec![claim], batches: vec![new], ..Step::default() };
        let batch = journal.commit(step).await.expect("committed")[0];
        assert!(claim_work(&*journal, 9, at(9)).await.is_empty());
        let listed = journal.suspensions(&SuspensionFilter::default(), 0, 9).await.expect("read");
        let Suspension { reason, ordinals, attempts, since, .. } = &listed[0].suspension;
        assert_eq!(
            (reason.as_str(), &ordinals[..], *attempts, *since),
            ("no such channel", &[0, 1, 2, 3][..], 0, at(2))
        );
        assert_eq!(listed[0].suspension.batch, batch);
    });
}

#[test]
fn arrivals_wake_waiting_tasks() {
    on_each(async |journal| {
        accept(&*journal, 1, at(0)).await;
        let mut arrivals = journal.arrivals();
        assert!(!arrivals.events.has_changed().expect("open"), "earlier arrivals are not reported");
        let waiting = tokio::spawn(async move {
            arrivals.events.changed().await.expect("open");
            arrivals.work.changed().await.expect("open");
        });
        accept(&*journal, 1, at(0)).await;
        match_next(&*journal, &[1], at(1)).await;
        waiting.await.expect("woken");
    });
}

#[test]
fn open_batches_are_those_with_work_by_number() {
    on_each(async |journal| {
        let batches =
            [queue(&*journal, 2, at(0)).await, queue(&*journal, 1, at(1)).await, queue(&*journal, 3, at(2)).await];
        let open = async |after: u64, limit: usize| {
            let found = journal.open_batches(&app(), NotificationBatchId(after), limit).await.expect("read");
            found.into_iter().map(|(id, head)| (id, head.channel)).collect::<Vec<_>>()
        };
        assert_eq!(open(0, 9).await, batches.map(|id| (id, mail())));
        assert_eq!(open(batches[0].0, 1).await, [(batches[1], mail())]);
        assert!(open(batches[2].0, 9).await.is_empty());
        assert!(journal.open_batches(&name("other"), NotificationBatchId(0), 9).await.expect("read").is_empty());
        let item = claim_work(&*journal, 1, at(2)).await.remove(0);
        assert_eq!(open(0, 9).await.len(), 3, "a claimed batch is open");
        let step = Step {
            finished: vec![item.claim],
            receipts: vec![
                chunk(batches[0], attempts([0], 1, Outcome::Delivered, at(3))),
                chunk(batches[0], attempts([1], 1, Outcome::Deferred, at(3))),
            ],
            retries: vec![retry(batches[0], vec![1], 1, 20)],
            ..Step::default()
        };
        journal.commit(step).await.expect("committed");
        assert_eq!(open(0, 9).await.len(), 3, "a batch with a retry is open");
        let item = claim_work(&*journal, 9, at(20)).await.into_iter().find(|item| item.batch == batches[0]);
        let done = chunk(batches[0], attempts([1], 2, Outcome::Delivered, at(21)));
        let finished = item.into_iter().map(|item| item.claim).collect();
        journal.commit(Step { finished, receipts: vec![done], ..Step::default() }).await.expect("committed");
        assert_eq!(open(0, 9).await, [(batches[1], mail()), (batches[2], mail())]);
    });
}
