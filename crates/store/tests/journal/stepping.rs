//! Steps: atomic and exactly once.

use tocsin_model::{
    id::{EventBatchId, NotificationBatchId},
    receipt::Outcome,
    state::StatePage,
};
use tocsin_store::journal::{
    Backlog, Cutoffs, EventBatchState, Except, FiringFilter, FiringStatus, Journal, NewEventBatch, NewFiring,
    NewNotificationBatch, RefiredBatch, RuleStop, Step,
};

use crate::support::*;

#[test]
fn a_match_is_one_commit() {
    on_each(async |journal| {
        let first = accept(&*journal, 10, at(0)).await;
        let second = accept(&*journal, 10, at(1)).await;
        let claims: Vec<_> = claim_events(&*journal, 2, at(2)).await.into_iter().map(|claimed| claimed.claim).collect();
        let batches = vec![notifications(&[first], 2_500, at(3)), notifications(&[first, second], 4, at(3))];
        let step = Step { matched: claims, batches: batches.clone(), ..Step::default() };
        let ids = journal.commit(step).await.expect("committed");
        assert_eq!(ids, [NotificationBatchId(1), NotificationBatchId(2)]);

        for (id, new) in ids.iter().zip(&batches) {
            let stored = journal.notification_batch(*id).await.expect("read").expect("there");
            assert_eq!((stored.id, &stored.head), (*id, &new.head));
            assert_eq!(stored.notifications.pack(), new.packed);
        }
        let of_first = journal.notification_batches_of(first, NotificationBatchId(0), 9).await.expect("read");
        let heads = [0, 1].map(|at| (ids[at], batches[at].head.clone(), batches[at].count));
        assert_eq!(of_first, heads);
        assert_eq!(journal.notification_batches_of(first, NotificationBatchId(0), 1).await.expect("read"), heads[..1]);
        let after = journal.notification_batches_of(first, heads[0].0, 9).await.expect("read");
        assert!(after.iter().all(|(id, ..)| *id > heads[0].0) && after.len() + 1 == of_first.len());
        assert_eq!(journal.notification_batches_of(second, NotificationBatchId(0), 9).await.expect("read"), heads[1..]);
        let (_, state) = journal.event_batch(second).await.expect("read").expect("there");
        assert_eq!(state, EventBatchState::Matched(at(3)));
        let listed = journal.notification_batches(None, 1).await.expect("read");
        assert_eq!(listed.iter().map(|(id, _, count)| (*id, *count)).collect::<Vec<_>>(), [(ids[1], 4)]);
        let backlog = Backlog { notifications: 2_504, work_items: 2, ..Backlog::default() };
        assert_eq!(journal.backlog(), backlog);

        let items = claim_work(&*journal, 9, at(3)).await;
        assert_eq!(
            items.iter().map(|item| (item.batch, item.ordinals.clone())).collect::<Vec<_>>(),
            [(ids[0], None), (ids[1], None)]
        );
        for nowhere in [NotificationBatchId(9), NotificationBatchId(u64::MAX)] {
            assert!(journal.notification_batch(nowhere).await.expect("read").is_none());
            assert!(journal.attempts(nowhere).await.expect("read").is_empty());
            assert!(journal.open_work(nowhere).await.expect("read").is_empty());
        }
    });
}

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
fn failed_event_batches_can_be_matched_again() {
    on_each(async |journal| {
        let id = accept(&*journal, 2, at(0)).await;
        accept(&*journal, 3, at(1)).await;
        let claim = claim_events(&*journal, 1, at(2)).await[0].claim;
        let step = Step { failed: vec![(claim, "no such class".to_owned())], ..Step::default() };
        journal.commit(step).await.expect("committed");
        let (_, state) = journal.event_batch(id).await.expect("read").expect("there");
        assert_eq!(state, EventBatchState::Failed("no such class".to_owned()));
        let backlog = journal.backlog();
        assert_eq!((backlog.event_batches, backlog.events, backlog.failed_batches), (1, 3, 1));
        assert_eq!(backlog.oldest_event, Some(at(1)));

        let arrivals = journal.arrivals();
        assert_eq!(journal.rematch(&name("other")).await.expect("answered"), 0);
        assert_eq!(journal.rematch(&app()).await.expect("answered"), 1);
        assert!(arrivals.events.has_changed().expect("open"));
        assert_eq!(journal.backlog().oldest_event, Some(at(0)));
        assert_eq!(claim_events(&*journal, 1, at(3)).await[0].batch.id, id);
    });
}

#[test]
fn progress_is_kept_when_a_lease_is_lost() {
    on_each(async |journal| {
        let batch = queue(&*journal, 10, at(0)).await;
        let item = claim_work(&*journal, 1, at(0)).await.remove(0);
        let progress = |ordinals: Vec<u32>, number, outcome| Step {
            held: vec![item.claim],
            receipts: vec![chunk(batch, attempts(ordinals, number, outcome, at(1)))],
            ..Step::default()
        };
        journal.commit(progress(vec![0, 1, 2, 7], 1, Outcome::Delivered)).await.expect("committed");
        assert_eq!(journal.backlog().notifications, 6);
        // Deferred notifications belong to another item, of the same step or an earlier one.
        journal.commit(progress(vec![8], 1, Outcome::Deferred)).await.expect("committed");
        // A second attempt, an older one or an unknown ordinal does not change the progress.
        journal.commit(progress(vec![8, 11], 2, Outcome::Deferred)).await.expect("committed");
        journal.commit(progress(vec![9], 0, Outcome::Deferred)).await.expect("committed");
        assert_eq!(journal.backlog().notifications, 5);

        let again = claim_work(&*journal, 1, at(60)).await.remove(0);
        assert_eq!(again.ordinals, Some(vec![3, 4, 5, 6, 9]));
        assert_eq!(again.attempts, 0);
        assert_eq!(journal.open_work(batch).await.expect("read"), std::slice::from_ref(&again));
        journal.commit(delivered(&again, 10, at(61))).await.expect("committed");
        assert_eq!(journal.backlog(), Backlog::default());
        assert_eq!(journal.attempts(batch).await.expect("read").len(), 4 + 1 + 2 + 1 + 5);
        assert_eq!(journal.totals().attempts, [9, 4, 0, 0, 0, 0]);
    });
}

#[test]
fn progress_survives_a_restart() {
    let fixture = JournalFixture::sqlite();
    run(async {
        let batch = {
            let journal = fixture.open().await;
            let batch = queue(&*journal, 2_500, at(0)).await;
            let item = claim_work(&*journal, 1, at(0)).await.remove(0);
            let receipts = vec![chunk(batch, attempts(0..1_000, 1, Outcome::Delivered, at(1)))];
            let step = Step { held: vec![item.claim], receipts, ..Step::default() };
            journal.commit(step).await.expect("committed");
            batch
        };
        let journal = fixture.open().await;
        assert_eq!(journal.backlog().notifications, 1_500);
        let item = claim_work(&*journal, 1, at(2)).await.remove(0);
        assert_eq!(item.ordinals, Some((1_000..2_500).collect()));
        let rest = chunk(batch, attempts(1_000..2_500, 1, Outcome::Refused, at(3)));
        let step = Step { held: vec![item.claim], receipts: vec![rest], ..Step::default() };
        journal.commit(step).await.expect("committed");
        drop(journal);
        // Everything was settled, only the item was not finished.
        let journal = fixture.open().await;
        let item = claim_work(&*journal, 1, at(4)).await.remove(0);
        assert_eq!(item.ordinals, Some(Vec::new()));
        journal.commit(Step { finished: vec![item.claim], ..Step::default() }).await.expect("committed");
        assert_eq!(journal.backlog(), Backlog::default());
        assert_eq!(journal.totals().attempts, [1_000, 0, 1_500, 0, 0, 0]);
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
fn a_damaged_batch_stores_nothing() {
    on_each(async |journal| {
        accept(&*journal, 1, at(0)).await;
        let claim = claim_events(&*journal, 1, at(1)).await[0].claim;
        let mut damaged = notifications(&[claim.id], 3, at(1));
        damaged.packed = bytes::Bytes::from_static(&[3, 200]);
        let step = Step { matched: vec![claim], batches: vec![damaged], ..Step::default() };
        assert!(journal.commit(step).await.is_err());
        assert_eq!(journal.totals().notification_batches, 0);
        let step = Step { matched: vec![claim], ..Step::default() };
        journal.commit(step).await.expect("the claim still holds");
    });
}

#[test]
fn failed_and_skipped_firings_are_listed_until_they_are_repeated() {
    on_each(async |journal| {
        let mut ids = Vec::new();
        for second in 0..4 {
            ids.push(accept(&*journal, 1, at(second)).await);
        }
        let claims: Vec<_> = claim_events(&*journal, 4, at(5)).await.into_iter().map(|claimed| claimed.claim).collect();
        let firing = |batch: usize, status, run| NewFiring {
            application: app(),
            rule: name("near"),
            batch: ids[batch],
            status,
            reason: "because".to_owned(),
            run,
            at: at(5),
        };
        let skipped = |batch| firing(batch, FiringStatus::Skipped, Some(ids[1]));
        let stop = RuleStop {
            application: app(),
            rule: name("near"),
            by: "tocsin".to_owned(),
            reason: "it failed".to_owned(),
            since: at(5),
        };
        let step = Step {
            matched: claims,
            firings: vec![firing(0, FiringStatus::Failed, None), skipped(1), skipped(2), skipped(3)],
            stops: vec![stop.clone()],
            ..Step::default()
        };
        journal.commit(step).await.expect("committed");
        assert_eq!(journal.rule_stops().await.expect("read"), std::slice::from_ref(&stop));
        journal.stop_rule(RuleStop { reason: "again".to_owned(), ..stop.clone() }).await.expect("stopped already");
        assert_eq!(journal.rule_stops().await.expect("read"), [stop], "the first stop stays");

        let all = FiringFilter::default();
        let listed = journal.firings(&all, 0, 10).await.expect("read");
        let entries: Vec<_> = listed.iter().map(|one| (one.status, one.first, one.last, one.batches)).collect();
        assert_eq!(
            entries,
            [(FiringStatus::Failed, ids[0], ids[0], 1), (FiringStatus::Skipped, ids[1], ids[3], 3)],
            "a run is listed as one"
        );
        let run = listed[1].id;
        let again = |batch| Step { refired: vec![RefiredBatch { id: run, batch }], ..Step::default() };
        journal.commit(again(ids[1])).await.expect("committed");
        let left = journal.firings(&FiringFilter { id: Some(run), ..all.clone() }, 0, 10).await.expect("read");
        assert_eq!((left[0].first.0, left[0].batches), (ids[1].0 + 1, 2), "repeated batches are removed");
        journal.commit(again(ids[3])).await.expect("committed");
        assert_eq!(journal.firings(&all, 0, 10).await.expect("read").len(), 1, "the last batch ends the run");
        let failed = FiringFilter { status: Some(FiringStatus::Failed), ..all.clone() };
        assert_eq!(journal.dismiss_firings(&failed).await.expect("dismissed"), 1);
        assert!(journal.firings(&all, 0, 10).await.expect("read").is_empty());
        assert!(journal.resume_rule(&app(), &name("near")).await.expect("resumed"));
        assert!(!journal.resume_rule(&app(), &name("near")).await.expect("answered"));
    });
}

#[test]
fn b7_applications_and_classes_can_be_excluded_from_claims() {
    on_each(async |journal| {
        let mut accepted = Vec::new();
        for (application, class) in [("quakes", "quake"), ("quakes", "tide"), ("other", "quake"), ("quakes", "quake")] {
            let batch = NewEventBatch { application: name(application), class: name(class), ..events(1, at(0)) };
            accepted.push(journal.accept(batch).await.expect("accepted").id());
        }
        let except = |applications: &[&str], classes: &[(&str, &str)]| Except {
            applications: applications.iter().map(|one| name(one)).collect(),
            classes: classes.iter().map(|(one, class)| (name(one), name(class))).collect(),
        };
        // Claims are released each time.
        let claim = async |batches: usize, except: Except| {
            let claimed = journal.claim_events(batches, usize::MAX, &except, LEASE, at(1)).await.expect("claimed");
            for events in &claimed {
                journal.release_events(events.claim).await.expect("released");
            }
            claimed.iter().map(|events| accepted.iter().position(|id| *id == events.batch.id)).collect::<Vec<_>>()
        };
        let all = |places: &[usize]| places.iter().copied().map(Some).collect::<Vec<_>>();
        assert_eq!(claim(9, except(&["quakes"], &[])).await, all(&[2]));
        assert_eq!(claim(9, except(&["nobody"], &[])).await, all(&[0, 1, 2, 3]));
        assert_eq!(claim(9, except(&["other"], &[("quakes", "quake")])).await, all(&[1]));
        assert_eq!(claim(9, except(&[], &[("quakes", "tide")])).await, all(&[0, 2, 3]));
        assert_eq!(claim(2, except(&[], &[("quakes", "tide")])).await, all(&[0, 2]), "the oldest first");
        assert_eq!(claim(9, except(&["quakes", "other"], &[])).await, all(&[]));
    });
}

#[test]
fn rule_state_is_committed_with_the_match() {
    on_each(async |journal| {
        let page = |name: &str, number: u64, body: &'static str| StatePage {
            name: name.into(),
            number,
            body: body.as_bytes().into(),
        };
        let remember = |journal: std::sync::Arc<dyn Journal>, pages: Vec<StatePage>, now| async move {
            accept(&*journal, 1, now).await;
            let claim = claim_events(&*journal, 1, now).await[0].claim;
            let states = pages.into_iter().map(|page| (app(), page)).collect();
            (claim, Step { matched: vec![claim], states, ..Step::default() })
        };
        let pages = vec![page("rules.a", 7, "one"), page("rules.a", u64::MAX, "two"), page("rules.b", 7, "three")];
        let (claim, step) = remember(journal.clone(), pages.clone(), at(0)).await;
        let mut lost = step.clone();
        lost.matched[0].token += 1;
        journal.commit(lost).await.expect_err("the token is wrong");
        assert!(journal.state_pages(&app(), None, 9).await.expect("read").is_empty());
        journal.commit(step).await.expect("committed");
        assert_eq!(claim.id.0, 1);
        assert_eq!(sorted(journal.state_pages(&app(), None, 9).await.expect("read")), pages);
        assert!(journal.state_pages(&name("other"), None, 9).await.expect("read").is_empty());

        let changes = vec![page("rules.a", 7, ""), page("rules.b", 7, "four"), page("rules.c", 1, "")];
        let (_, step) = remember(journal.clone(), changes, at(1)).await;
        journal.commit(step).await.expect("committed");
        let mut listed = Vec::new();
        while let [page] = &journal.state_pages(&app(), listed.last(), 1).await.expect("read")[..] {
            listed.push(page.clone());
        }
        assert_eq!(sorted(listed), [page("rules.a", u64::MAX, "two"), page("rules.b", 7, "four")]);
    });
}

#[test]
fn chronicle_values_are_stored_and_removed_with_the_batch() {
    on_each(async |journal| {
        let batch = accept(&*journal, 1, at(0)).await;
        let claim = claim_events(&*journal, 1, at(0)).await[0].claim;
        let said = bytes::Bytes::from(vec![7; 5_000]);
        let step = Step { matched: vec![claim], chronicled: vec![(batch, said.clone())], ..Step::default() };
        let mut lost = step.clone();
        lost.matched[0].token += 1;
        journal.commit(lost).await.expect_err("the token is wrong");
        let found = journal.event_batch(batch).await.expect("read").expect("it is there").0;
        assert!(found.chronicled.is_empty());
        journal.commit(step).await.expect("committed");
        let found = journal.event_batch(batch).await.expect("read").expect("it is there").0;
        assert_eq!(found.chronicled, said);
        let page = journal.events_between(&app(), &found.class, EventBatchId(0), EventBatchId(9), 9_999).await;
        assert_eq!(page.expect("read").batches[0].chronicled, said);
        let listed = journal.event_batches(None, 9).await.expect("read");
        assert!(listed[0].0.chronicled.is_empty(), "lists contain no bodies");
        journal.prune(&Cutoffs::all(at(9)), at(9), 9).await.expect("pruned");
        assert!(journal.event_batch(batch).await.expect("read").is_none());
    });
}

fn sorted(mut pages: Vec<StatePage>) -> Vec<StatePage> {
    pages.sort();
    pages
}
