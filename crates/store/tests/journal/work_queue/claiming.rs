//! Claims and leases.

use std::{collections::HashSet, sync::Arc};

use tocsin_model::{delivery_policy::Priority, time::Timestamp};
use tocsin_store::{
    error::StoreError,
    journal::{Claim, ClaimEvents, ClaimWork, Except, Journal, NewEventBatch, Step, WorkCounts},
};

use crate::support::*;

#[test]
fn event_batches_are_claimed_in_order_of_acceptance() {
    on_each(async |journal| {
        for count in [1, 2, 3, 4] {
            accept(&*journal, count, at(0)).await;
        }
        let first = claim_events(&*journal, 2, at(1)).await;
        assert_eq!(first.iter().map(|claimed| claimed.batch.id.0).collect::<Vec<_>>(), [1, 2]);
        assert!(
            journal
                .claim_events(ClaimEvents {
                    batches: 0,
                    bytes: usize::MAX,
                    except: &Except::default(),
                    lease: LEASE,
                    now: at(1)
                })
                .await
                .expect("claimed")
                .is_empty()
        );
        let third = journal
            .claim_events(ClaimEvents { batches: 9, bytes: 0, except: &Except::default(), lease: LEASE, now: at(1) })
            .await
            .expect("at least one, however large");
        assert_eq!(third.iter().map(|claimed| claimed.batch.events.count()).collect::<Vec<_>>(), [3]);
        journal.release_events(first[0].claim).await.expect("released");
        let rest = claim_events(&*journal, 9, at(1)).await;
        assert_eq!(rest.iter().map(|claimed| claimed.batch.id.0).collect::<Vec<_>>(), [1, 4]);
        assert!(claim_events(&*journal, 9, at(2)).await.is_empty());
    });
}

#[test]
fn claims_are_limited_in_bytes() {
    on_each(async |journal| {
        for _ in 0..4 {
            accept(&*journal, 1, at(0)).await;
        }
        assert_eq!(
            journal
                .claim_events(ClaimEvents {
                    batches: 9,
                    bytes: 100,
                    except: &Except::default(),
                    lease: LEASE,
                    now: at(1)
                })
                .await
                .expect("claimed")
                .len(),
            2
        );
        assert_eq!(
            journal
                .claim_events(ClaimEvents {
                    batches: 9,
                    bytes: 80,
                    except: &Except::default(),
                    lease: LEASE,
                    now: at(1)
                })
                .await
                .expect("claimed")
                .len(),
            2
        );
    });
}

#[test]
fn work_is_claimed_in_order_of_due_time() {
    on_each(async |journal| {
        for due in [30, 10, 20] {
            queue(&*journal, 1, at(due)).await;
        }
        let other = name("sms");
        assert!(
            journal
                .claim_work(ClaimWork {
                    application: &app(),
                    channel: &other,
                    least: Priority::Low,
                    limit: 9,
                    lease: LEASE,
                    now: at(99)
                })
                .await
                .expect("claimed")
                .is_empty()
        );
        let due: Vec<Timestamp> = claim_work(&*journal, 9, at(25)).await.iter().map(|item| item.due_at).collect();
        assert_eq!(due, [at(10), at(20)]);
        assert_eq!(journal.next_due(&app(), &mail(), at(25)).await.expect("read"), Some(at(30)));
        assert_eq!(journal.next_due(&app(), &mail(), at(30)).await.expect("read"), None);
        let ahead = async |second: i64| journal.work_counts(at(second)).await.expect("read");
        let all = ahead(1_000).await.due;
        assert!(all > 0 && ahead(1_000).await == WorkCounts { due: all, later: 0, next: None });
        let (early, before) = (ahead(29).await, ahead(30).await);
        assert_eq!((early.due + early.later, early.next), (all, Some(at(30))));
        assert!(before.due > early.due, "{before:?} {early:?}");
        assert_eq!(journal.next_due(&app(), &other, at(0)).await.expect("read"), None);
    });
}

#[test]
fn a_commit_with_a_lost_lease_is_refused() {
    on_each(async |journal| {
        let batch = queue(&*journal, 3, at(0)).await;
        let late = claim_work(&*journal, 1, at(0)).await.remove(0);
        assert!(claim_work(&*journal, 1, at(59)).await.is_empty(), "the lease holds");
        let next = claim_work(&*journal, 1, at(60)).await.remove(0);
        assert_eq!(late.claim.id, next.claim.id);
        assert!(next.claim.token > late.claim.token);

        let before = (journal.backlog(), journal.totals());
        let mut step = delivered(&late, 3, at(61));
        step.batches.push(notifications(&[tocsin_model::id::EventBatchId(1)], 5, at(61)));
        for lost in [step, Step { held: vec![late.claim], ..Step::default() }] {
            assert!(matches!(journal.commit(lost).await, Err(StoreError::Fenced(_))));
        }
        for lost in [journal.extend(late.claim, LEASE, at(61)).await, journal.release(late.claim, None).await] {
            assert!(matches!(lost, Err(StoreError::Fenced(_))));
        }
        assert_eq!((journal.backlog(), journal.totals()), before);
        assert!(journal.attempts(batch).await.expect("read").is_empty());

        journal.commit(delivered(&next, 3, at(62))).await.expect("the holder commits");
        assert!(
            matches!(journal.commit(delivered(&next, 3, at(62))).await, Err(StoreError::Fenced(_))),
            "exactly once"
        );
        assert_eq!(journal.attempts(batch).await.expect("read").len(), 3);
    });
}

#[test]
fn an_expired_lease_is_valid_until_it_is_claimed_again() {
    on_each(async |journal| {
        queue(&*journal, 3, at(0)).await;
        let late = claim_work(&*journal, 1, at(0)).await.remove(0);
        journal.commit(delivered(&late, 3, at(500))).await.expect("committed");
    });
}

#[test]
fn leases_can_be_extended() {
    on_each(async |journal| {
        queue(&*journal, 1, at(0)).await;
        let item = claim_work(&*journal, 1, at(0)).await.remove(0);
        journal.extend(item.claim, LEASE, at(50)).await.expect("extended");
        assert!(claim_work(&*journal, 1, at(109)).await.is_empty());
        assert_eq!(claim_work(&*journal, 1, at(110)).await.len(), 1);
    });
}

#[test]
fn event_claims_are_also_fenced() {
    on_each(async |journal| {
        accept(&*journal, 1, at(0)).await;
        let late = claim_events(&*journal, 1, at(0)).await.remove(0);
        let next = claim_events(&*journal, 1, at(60)).await.remove(0);
        let step = |claim: Claim<_>| Step {
            matched: vec![claim],
            batches: vec![notifications(&[claim.id], 7, at(61))],
            ..Step::default()
        };
        assert!(matches!(journal.commit(step(late.claim)).await, Err(StoreError::Fenced(_))));
        let failed = Step { failed: vec![(late.claim, "late".to_owned())], ..Step::default() };
        assert!(matches!(journal.commit(failed).await, Err(StoreError::Fenced(_))));
        assert!(matches!(journal.release_events(late.claim).await, Err(StoreError::Fenced(_))));
        journal.commit(step(next.claim)).await.expect("committed");
        assert_eq!(journal.totals().notifications, 7);
        assert!(claim_events(&*journal, 1, at(999)).await.is_empty());
    });
}

#[test]
fn released_work_is_due_immediately_or_at_the_given_time() {
    on_each(async |journal| {
        queue(&*journal, 1, at(0)).await;
        let mut arrivals = journal.arrivals();
        let item = claim_work(&*journal, 1, at(1)).await.remove(0);
        assert!(!arrivals.work.has_changed().expect("open"));
        journal.release(item.claim, None).await.expect("released");
        assert!(arrivals.work.has_changed().expect("open"));
        arrivals.work.mark_unchanged();

        let item = claim_work(&*journal, 1, at(1)).await.remove(0);
        assert_eq!((item.due_at, item.attempts), (at(0), 0));
        journal.release(item.claim, Some(at(9))).await.expect("released");
        assert!(arrivals.work.has_changed().expect("open"));
        assert!(claim_work(&*journal, 1, at(8)).await.is_empty());
        assert_eq!(journal.next_due(&app(), &mail(), at(8)).await.expect("read"), Some(at(9)));
        assert_eq!(claim_work(&*journal, 1, at(9)).await.remove(0).due_at, at(9));
    });
}

#[test]
fn concurrent_claims_are_disjoint() {
    on_each(async |journal| {
        const BATCHES: usize = 60;
        for _ in 0..BATCHES {
            accept(&*journal, 1, at(0)).await;
        }
        let workers: Vec<_> = (0..8).map(|_| tokio::spawn(work_until_nothing_is_left(journal.clone()))).collect();
        let (mut matched, mut finished) = (HashSet::new(), HashSet::new());
        for worker in workers {
            let (events, items) = worker.await.expect("worked");
            assert!(events.into_iter().all(|id| matched.insert(id)), "an event batch was claimed twice");
            assert!(items.into_iter().all(|id| finished.insert(id)), "a work item was claimed twice");
        }
        assert_eq!(matched.len(), BATCHES);
        // The last worker may have finished before the others.
        let left = claim_work(&*journal, 1_000, at(1)).await;
        assert!(left.iter().all(|item| finished.insert(item.claim.id.0)));
        assert_eq!(finished.len(), BATCHES * 3);
    });
}

async fn work_until_nothing_is_left(journal: Arc<dyn Journal>) -> (Vec<u64>, Vec<u64>) {
    let (mut matched, mut finished) = (Vec::new(), Vec::new());
    loop {
        let claimed = claim_events(&*journal, 2, at(1)).await;
        let items = claim_work(&*journal, 3, at(1)).await;
        if claimed.is_empty() && items.is_empty() {
            return (matched, finished);
        }
        let mut step = Step::default();
        for claimed in claimed {
            matched.push(claimed.claim.id.0);
            step.matched.push(claimed.claim);
            step.batches.extend((0..3).map(|_| notifications(&[claimed.claim.id], 2, at(0))));
        }
        journal.commit(step).await.expect("the claim is valid");
        for item in items {
            finished.push(item.claim.id.0);
            // All leases have expired at this time, but work that is being finished must not be claimed.
            let (step, later) = (delivered(&item, 2, at(1)), journal.clone());
            journal.commit(step).await.expect("the claim is valid");
            let again = later
                .claim_work(ClaimWork {
                    application: &app(),
                    channel: &name("nowhere"),
                    least: Priority::Low,
                    limit: 1,
                    lease: LEASE,
                    now: at(1),
                })
                .await
                .expect("claimed");
            assert!(again.is_empty());
        }
    }
}

#[test]
fn a_restart_invalidates_claims_and_tokens_still_rise() {
    let fixture = JournalFixture::sqlite();
    run(async {
        let before = {
            let journal = fixture.open().await;
            queue(&*journal, 2, at(0)).await;
            claim_work(&*journal, 1, at(0)).await.remove(0)
        };
        let journal = fixture.open().await;
        assert!(matches!(journal.commit(delivered(&before, 2, at(1))).await, Err(StoreError::Fenced(_))));
        let after = claim_work(&*journal, 1, at(1)).await.remove(0);
        assert!(after.claim.token > before.claim.token);
        assert!(matches!(journal.commit(delivered(&before, 2, at(1))).await, Err(StoreError::Fenced(_))));
        journal.commit(delivered(&after, 2, at(1))).await.expect("committed");
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
            let claimed = journal
                .claim_events(ClaimEvents { batches, bytes: usize::MAX, except: &except, lease: LEASE, now: at(1) })
                .await
                .expect("claimed");
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
