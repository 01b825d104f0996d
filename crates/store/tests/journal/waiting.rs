//! Retries, suspensions, arrivals.

use tocsin_model::{id::NotificationBatchId, receipt::Outcome};
use tocsin_store::journal::{Course, Resolution, Retry, Step, Suspension, SuspensionFilter};

use crate::support::*;

fn retry(batch: NotificationBatchId, ordinals: Vec<u32>, attempts: u32, due: i64) -> Retry {
    Retry { batch, application: app(), channel: mail(), ordinals, attempts, due_at: at(due), course: Course::default() }
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
        course: Course::default(),
    }
}

/// What is put back unchanged leaves all counts as they were; its number must be in the file nevertheless.
#[test]
fn the_number_of_what_was_put_back_is_not_given_again_after_a_restart() {
    let place = Place::sqlite();
    run(async {
        let batch = {
            let journal = place.open().await;
            let batch = queue(&*journal, 5, at(0)).await;
            let item = claim_work(&*journal, 1, at(0)).await.remove(0);
            let retries = vec![retry(batch, vec![0, 1, 2, 3, 4], 0, 10)];
            let step = Step { finished: vec![item.claim], retries, ..Step::default() };
            journal.commit(step).await.expect("committed");
            batch
        };
        let journal = place.open().await;
        let other = queue(&*journal, 2, at(0)).await;
        let items = claim_work(&*journal, 9, at(10)).await;
        assert_eq!(items.iter().map(|item| item.batch).collect::<Vec<_>>(), [other, batch]);
        assert!(items[0].claim.id > items[1].claim.id);
    });
}

#[test]
fn what_failed_is_tried_again_when_it_is_due() {
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
        assert!(arrivals.work.has_changed().expect("open"), "whoever sleeps until something is due looks again");
        assert_eq!((journal.backlog().notifications, journal.backlog().work_items), (2, 2));
        assert!(claim_work(&*journal, 9, at(9)).await.is_empty());
        assert_eq!(journal.next_due(&app(), &mail(), at(9)).await.expect("read"), Some(at(10)));
        let items = claim_work(&*journal, 9, at(20)).await;
        let told: Vec<_> = items.iter().map(|item| (item.ordinals.clone(), item.attempts, item.due_at)).collect();
        assert_eq!(told, [(Some(vec![3]), 1, at(10)), (Some(vec![1]), 1, at(20))]);
    });
}

#[test]
fn the_suspended_wait_until_they_are_resumed() {
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
            "a fresh schedule"
        );

        // The numbers of its attempts begin anew, and its progress counts all the same.
        let receipts = vec![chunk(batch, attempts([3], 1, Outcome::Delivered, at(51)))];
        let step = Step { held: vec![item.claim], receipts, ..Step::default() };
        journal.commit(step).await.expect("committed");
        assert_eq!(claim_work(&*journal, 9, at(200)).await.remove(0).ordinals, Some(vec![1]));
    });
}

#[test]
fn the_suspended_may_be_ended() {
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
        let told: Vec<_> = ended.iter().map(|ended| (ended.ordinal, ended.number, ended.outcome)).collect();
        assert_eq!(told, [(0, 5, Outcome::Ended), (2, 5, Outcome::Ended)]);
        assert_eq!(ended[0].answered_at, at(60));
        assert_eq!(journal.totals().attempts[Outcome::Ended as usize], 2);
        assert_eq!(journal.backlog().suspended, 1);
    });
}

#[test]
fn filters_choose_suspensions() {
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
fn what_cannot_be_sent_at_all_is_suspended_from_the_start() {
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
fn arrivals_wake() {
    on_each(async |journal| {
        accept(&*journal, 1, at(0)).await;
        let mut arrivals = journal.arrivals();
        assert!(!arrivals.events.has_changed().expect("open"), "nothing from before");
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
        assert_eq!(open(0, 9).await.len(), 3, "what is claimed is open");
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
        assert_eq!(open(0, 9).await.len(), 3, "what is tried again is open");
        let item = claim_work(&*journal, 9, at(20)).await.into_iter().find(|item| item.batch == batches[0]);
        let done = chunk(batches[0], attempts([1], 2, Outcome::Delivered, at(21)));
        let finished = item.into_iter().map(|item| item.claim).collect();
        journal.commit(Step { finished, receipts: vec![done], ..Step::default() }).await.expect("committed");
        assert_eq!(open(0, 9).await, [(batches[1], mail()), (batches[2], mail())]);
    });
}
