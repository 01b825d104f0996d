//! Acceptance of event batches, idempotency keys, limits, and reads of the log.

use std::collections::HashSet;

use tocsin_model::{
    id::{ChangeSequence, EventBatchId},
    trace_context::{TraceContext, Traces},
};
use tocsin_store::{
    error::StoreError,
    journal::{Cutoffs, EventAcceptance, EventBatchState, EventRange, JournalOptions, NewEventBatch, Step},
};

use crate::support::*;

#[test]
fn accepted_batches_are_stored_unchanged() {
    on_each(async |journal| {
        for count in [1, 1_000] {
            let new = events(count, at(5));
            let id = accept(&*journal, count, at(5)).await;
            let (batch, state) = journal.event_batch(id).await.expect("read").expect("there");
            assert_eq!(state, EventBatchState::Accepted);
            assert_eq!((batch.id, batch.application, batch.version), (id, new.application, 3));
            assert_eq!((batch.class, batch.source, batch.events), (new.class, new.source, new.events));
            assert_eq!((batch.received_at, batch.accepted_at), (at(5), at(5)));
        }
        let listed = journal.event_batches(None, 10).await.expect("read");
        let listed: Vec<_> = listed.iter().map(|(batch, _)| (batch.id.0, batch.events.count())).collect();
        assert_eq!(listed, [(2, 1_000), (1, 1)]);
        assert_eq!(journal.event_batches(Some(EventBatchId(2)), 10).await.expect("read").len(), 1);
        for nowhere in [EventBatchId(3), EventBatchId(u64::MAX)] {
            assert!(journal.event_batch(nowhere).await.expect("read").is_none());
        }
    });
}

#[test]
fn change_sequences_rise_with_the_batch_numbers() {
    on_each(async |journal| {
        assert_eq!(journal.oldest_waiting_sequence().await.expect("read"), None);
        for sequence in [5, 5, 9, 7, 9, 12] {
            let new = NewEventBatch { snapshot_sequence: ChangeSequence(sequence), ..events(1, at(0)) };
            journal.accept(new).await.expect("accepted");
        }
        // A batch that was accepted later sees at least the changes that the one before it sees.
        let expected = [5, 5, 9, 9, 9, 12].map(|sequence| Some(ChangeSequence(sequence)));
        let listed = journal.event_batches(None, 10).await.expect("read");
        assert_eq!(listed.iter().rev().map(|(batch, _)| batch.snapshot_sequence).collect::<Vec<_>>(), expected);
        for (expected, id) in expected.iter().zip(1..) {
            let (batch, _) = journal.event_batch(EventBatchId(id)).await.expect("read").expect("there");
            assert_eq!(batch.snapshot_sequence, *expected);
        }
        let claimed = claim_events(&*journal, 3, at(1)).await;
        assert_eq!(claimed.iter().map(|claimed| claimed.batch.snapshot_sequence).collect::<Vec<_>>(), expected[..3]);
        assert_eq!(journal.oldest_waiting_sequence().await.expect("read"), expected[0]);
        let matched = claimed[..2].iter().map(|claimed| claimed.claim).collect();
        journal.commit(Step { matched, ..Step::default() }).await.expect("stored");
        assert_eq!(journal.oldest_waiting_sequence().await.expect("read"), expected[2]);
        // Their sequences are removed with the batches, and those of the others stay.
        journal.prune(&Cutoffs::all(at(100)), at(100), 10).await.expect("pruned");
        let listed = journal.event_batches(None, 10).await.expect("read");
        assert_eq!(listed.iter().rev().map(|(batch, _)| batch.snapshot_sequence).collect::<Vec<_>>(), expected[2..]);
    });
}

#[test]
fn events_keep_their_trace_contexts() {
    on_each(async |journal| {
        let context = TraceContext::read("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", Some("a=b"));
        let mut traces = Traces::default();
        traces.push(1, context.as_ref());
        let plain = events(3, at(0));
        let traced = NewEventBatch { events: plain.events.clone().with_traces(traces.clone()), ..plain.clone() };
        journal.accept(plain).await.expect("accepted");
        journal.accept(traced).await.expect("accepted");
        let expected = [Traces::default(), traces];
        let listed = journal.event_batches(None, 10).await.expect("read");
        assert_eq!(listed.iter().rev().map(|(batch, _)| batch.events.traces().clone()).collect::<Vec<_>>(), expected);
        let claimed = claim_events(&*journal, 2, at(1)).await;
        assert_eq!(claimed.iter().map(|claimed| claimed.batch.events.traces().clone()).collect::<Vec<_>>(), expected);
        let matched = claimed.iter().map(|claimed| claimed.claim).collect();
        journal.commit(Step { matched, ..Step::default() }).await.expect("stored");
        journal.prune(&Cutoffs::all(at(100)), at(100), 10).await.expect("pruned");
        assert!(journal.event_batches(None, 10).await.expect("read").is_empty());
    });
}

#[test]
fn ids_rise_and_are_unique() {
    on_each(async |journal| {
        let accepting = (0..200).map(|_| {
            let journal = journal.clone();
            tokio::spawn(async move { accept(&*journal, 1, at(0)).await })
        });
        let mut ids = HashSet::new();
        for task in accepting.collect::<Vec<_>>() {
            assert!(ids.insert(task.await.expect("accepted")));
        }
        let claimed = claim_events(&*journal, 500, at(1)).await;
        assert!(claimed.is_sorted_by_key(|claimed| claimed.batch.id));
        assert_eq!(claimed.len(), 200);
    });
}

#[test]
fn concurrent_requests_with_one_key_are_one_batch() {
    on_each(async |journal| {
        let accepting = (0..1_000).map(|_| {
            let journal = journal.clone();
            tokio::spawn(async move { journal.accept(keyed(1, 1, at(100), at(0))).await.expect("answered") })
        });
        let mut answers = Vec::new();
        for task in accepting.collect::<Vec<_>>() {
            answers.push(task.await.expect("answered"));
        }
        let new: Vec<_> = answers.iter().filter(|answer| matches!(answer, EventAcceptance::New(_))).collect();
        let [EventAcceptance::New(id)] = new[..] else { panic!("{new:?}") };
        assert_eq!(answers.iter().filter(|answer| **answer == EventAcceptance::Duplicate(*id)).count(), 999);
        assert_eq!(journal.backlog().event_batches, 1);
        assert_eq!(journal.totals().event_batches, 1);
    });
}

#[test]
fn a_key_identifies_its_content_until_it_expires() {
    on_each(async |journal| {
        let first = journal.accept(keyed(1, 1, at(100), at(0))).await.expect("accepted");
        let EventAcceptance::New(id) = first else { panic!("{first:?}") };
        for (content, now, expected) in [
            (1, 50, EventAcceptance::Duplicate(id)),
            (2, 50, EventAcceptance::KeyReused(id)),
            (1, 99, EventAcceptance::Duplicate(id)),
            (2, 100, EventAcceptance::New(EventBatchId(id.0 + 1))),
            (1, 150, EventAcceptance::KeyReused(EventBatchId(id.0 + 1))),
        ] {
            let answer = journal.accept(keyed(1, content, at(200), at(now))).await.expect("answered");
            assert_eq!(answer, expected, "content {content} at {now}");
        }
        journal.prune(&Cutoffs::all(at(0)), at(200), 10).await.expect("pruned");
        let answer = journal.accept(keyed(1, 9, at(300), at(150))).await.expect("answered");
        assert!(matches!(answer, EventAcceptance::New(_)), "pruned after its expiry: {answer:?}");
    });
}

#[test]
fn keys_survive_a_restart() {
    let fixture = JournalFixture::sqlite();
    run(async {
        let first = fixture.open().await.accept(keyed(1, 1, at(100), at(0))).await.expect("accepted");
        let EventAcceptance::New(id) = first else { panic!("{first:?}") };
        let again = fixture.open().await.accept(keyed(1, 1, at(100), at(1))).await.expect("answered");
        assert_eq!(again, EventAcceptance::Duplicate(id));
    });
}

#[test]
fn a_full_journal_refuses_until_batches_are_matched() {
    for (bound, options) in [
        ("batches", JournalOptions { event_batches_waiting_max: 2, ..options() }),
        ("bytes", JournalOptions { event_bytes_waiting_max: 100, ..options() }),
    ] {
        println!("bound: {bound}");
        on_each_within(options, async |journal| {
            accept(&*journal, 1, at(0)).await;
            accept(&*journal, 1, at(0)).await;
            let before = journal.totals();
            let refused = journal.accept(events(1, at(0))).await;
            assert!(matches!(refused, Err(StoreError::Full(_))), "{refused:?}");
            assert_eq!(journal.totals(), before);
            match_next(&*journal, &[], at(1)).await;
            accept(&*journal, 1, at(2)).await;
        });
    }
}

#[test]
fn a_batch_above_the_limit_is_accepted_by_an_empty_journal() {
    on_each_within(JournalOptions { event_bytes_waiting_max: 100, ..options() }, async |journal| {
        accept(&*journal, 1_000, at(0)).await;
        assert!(matches!(journal.accept(events(1, at(0))).await, Err(StoreError::Full(_))));
    });
}

#[test]
fn too_many_unsent_notifications_stop_intake_but_not_steps() {
    on_each_within(JournalOptions { notifications_waiting_max: 10, ..options() }, async |journal| {
        accept(&*journal, 1, at(0)).await;
        accept(&*journal, 1, at(0)).await;
        match_next(&*journal, &[10], at(1)).await;
        assert!(matches!(journal.accept(events(1, at(2))).await, Err(StoreError::Full(_))));
        match_next(&*journal, &[10], at(2)).await;
        for item in claim_work(&*journal, 9, at(3)).await {
            journal.commit(delivered(&item, 10, at(3))).await.expect("committed");
        }
        accept(&*journal, 1, at(4)).await;
    });
}

#[test]
fn a_full_disk_stops_intake_but_not_steps() {
    let fixture = JournalFixture::sqlite();
    run(async {
        accept(&*fixture.open().await, 1, at(0)).await;
        let journal = open_at(fixture.folder(), JournalOptions { free_bytes_min: u64::MAX, ..options() }).await;
        assert!(matches!(journal.accept(events(1, at(0))).await, Err(StoreError::Full(_))));
        assert_eq!(match_next(&*journal, &[5], at(1)).await.len(), 1);
    });
}

#[test]
fn the_file_has_one_owner() {
    let fixture = JournalFixture::sqlite();
    run(async {
        let _journal = fixture.open().await;
        let second =
            tocsin_store::sqlite::journal::SqliteJournal::open(fixture.folder().join("journal.sqlite"), options());
        assert!(matches!(second.await.err(), Some(StoreError::Unavailable(_))));
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
            let page = journal
                .events_between(EventRange { application: &app(), class: &name("trade"), after, before, bytes })
                .await
                .expect("read");
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
        let none = journal
            .events_between(EventRange {
                application: &app(),
                class: &name("news"),
                after: EventBatchId(0),
                before: EventBatchId(99),
                bytes: 9,
            })
            .await;
        assert!(none.expect("read").batches.is_empty());
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
        let page = journal
            .events_between(EventRange {
                application: &app(),
                class: &found.class,
                after: EventBatchId(0),
                before: EventBatchId(9),
                bytes: 9_999,
            })
            .await;
        assert_eq!(page.expect("read").batches[0].chronicled, said);
        let listed = journal.event_batches(None, 9).await.expect("read");
        assert!(listed[0].0.chronicled.is_empty(), "lists contain no bodies");
        journal.prune(&Cutoffs::all(at(9)), at(9), 9).await.expect("pruned");
        assert!(journal.event_batch(batch).await.expect("read").is_none());
    });
}
