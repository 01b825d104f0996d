//! An erased person leaves nothing in the journal, not even after a crash in the middle.

use std::path::Path;

use bytes::Bytes;
use tocsin_model::{
    event::PackedEvents,
    field::FieldType,
    id::{EventBatchId, EventId, NotificationBatchId, SubscriberNumber, SubscriptionId},
    notification::{Column, EventRun, Notifications},
    receipt::{Attempt, Outcome},
    value::Value,
};
use tocsin_store::journal::{
    Cutoffs, DelayedFilter, ERASED, ErasedEvents, ErasedNotifications, ErasedPerson, Erasure, EventBatchState, Journal,
    NewDelayed, NewEventBatch, NewNotificationBatch, NewResend, PersonNames, Step, SuspensionFilter, WorkState,
};

use crate::{crash::crash_image, support::*};

/// Id, address, and a value that only notifications of the person have.
const NEEDLES: [&str; 3] = ["ann-7f3a91", "ann.7f3a91@example.org", "needle street 7f3a91"];
const ANN: SubscriptionId = SubscriptionId(2);

fn person() -> ErasedPerson {
    ErasedPerson {
        number: SubscriberNumber(7),
        id: NEEDLES[0].parse().expect("an id"),
        names: PersonNames::new([NEEDLES[0].to_owned(), NEEDLES[1].to_owned()]),
        subscriptions: vec![ANN],
    }
}

/// An event batch with a text.
fn events_with(text: &str, now: i64) -> NewEventBatch {
    let body = [&[text.len() as u8], text.as_bytes()].concat();
    NewEventBatch { events: PackedEvents::from_parts(1, body.into()), ..events(1, at(now)) }
}

/// Notifications to the person and to others, with values of each.
fn notifications_of(event: EventBatchId, count: u32, now: i64) -> NewNotificationBatch {
    let value = |ordinal: u32| match SubscriptionId(u64::from(ordinal) + 1) == ANN {
        true => Value::from(NEEDLES[2]),
        false => Value::from(&*format!("street {ordinal}")),
    };
    let notifications = Notifications {
        events: vec![EventRun { event: EventId { batch: event, ordinal: 0 }, count }],
        subscriptions: (1..=u64::from(count)).map(SubscriptionId).collect(),
        captured: vec![
            (name("street"), Column::Values(FieldType::String, (0..count).map(value).collect())),
            (name("number"), Column::Integers((0..i64::from(count)).collect())),
        ],
    };
    NewNotificationBatch { packed: Bytes::from(notifications.pack()), ..notifications_batch(event, count, now) }
}

fn notifications_batch(event: EventBatchId, count: u32, now: i64) -> NewNotificationBatch {
    notifications(&[event], count, at(now))
}

fn answered(ordinals: std::ops::Range<u32>, outcome: Outcome, now: i64) -> Vec<Attempt> {
    let reply = |attempt: Attempt| match attempt.ordinal {
        1 => Attempt { reply: format!("250 <{}>, {}", NEEDLES[1], NEEDLES[2]), ..attempt },
        3 => Attempt { reply: format!("550 not {}", NEEDLES[1]), ..attempt },
        _ => attempt,
    };
    attempts(ordinals, 1, outcome, at(now)).into_iter().map(reply).collect()
}

/// A life of the person among others: events, notifications that are delivered, suspended and delayed.
async fn live(journal: &dyn Journal, count: u32) {
    for (turn, text) in [NEEDLES[0], "nothing", &format!("to {}", NEEDLES[1])].into_iter().enumerate() {
        let now = turn as i64 * 10;
        journal.accept(events_with(text, now)).await.expect("accepted");
        let claimed = claim_events(journal, 1, at(now)).await;
        let event = EventId { batch: claimed[0].claim.id, ordinal: 0 };
        let delayed = |subscription, key: Option<&str>| NewDelayed {
            application: app(),
            rule: name("later"),
            event,
            subscription,
            due_at: at(900),
            key: key.map(Into::into),
        };
        let step = Step {
            matched: vec![claimed[0].claim],
            batches: vec![notifications_of(event.batch, count, now)],
            delayed: vec![delayed(ANN, None), delayed(SubscriptionId(9), Some(NEEDLES[0]))],
            ..Step::default()
        };
        journal.commit(step).await.expect("committed");
        let item = claim_work(journal, 1, at(now)).await.remove(0);
        let mut suspended = suspension(item.batch, vec![1], "mail");
        suspended.reason = format!("refused <{}>", NEEDLES[1]);
        suspended.work_state =
            WorkState { edit: Some(format!(r#"{{"text":"{}"}}"#, NEEDLES[2]).into()), ..Default::default() };
        let has_suspension = turn == 1;
        let outcome = if has_suspension { Outcome::Suspended } else { Outcome::Delivered };
        let mut answers = answered(0..count, Outcome::Delivered, now + 1);
        answers[1].outcome = outcome;
        let step = Step {
            finished: vec![item.claim],
            receipts: vec![chunk(item.batch, answers)],
            suspensions: if has_suspension { vec![suspended] } else { Vec::new() },
            ..Step::default()
        };
        journal.commit(step).await.expect("committed");
    }
    let new = NewResend {
        key: format!("again {}", NEEDLES[0]),
        request: format!(r#"{{"subscriber":"{}"}}"#, NEEDLES[0]),
        by: "k".to_owned(),
        asked_at: at(40),
    };
    journal.begin_resend(new).await.expect("stored");
    // A batch that retention has deleted leaves its contents in free pages.
    journal.accept(events_with(NEEDLES[0], 41)).await.expect("accepted");
    let claimed = claim_events(journal, 1, at(41)).await;
    let step = Step { matched: vec![claimed[0].claim], ..Step::default() };
    journal.commit(step).await.expect("committed");
}

async fn find(journal: &dyn Journal) -> Option<Erasure> {
    journal.erasures().await.expect("read").into_iter().next()
}

/// Continues the erasure, for at most so many steps. Returns whether it ended.
async fn drive(journal: &dyn Journal, mut steps: usize) -> bool {
    let mut step = || {
        steps = steps.saturating_sub(1);
        steps > 0
    };
    let Some(erasure) = find(journal).await else { return true };
    if erasure.person.is_some() {
        journal.erase_texts(&erasure, at(100)).await.expect("erased");
        loop {
            let erasure = find(journal).await.expect("there");
            if erasure.events >= erasure.last_event {
                break;
            }
            if !step() {
                return false;
            }
            let (found, examined) = journal.event_batches_naming(&erasure, 1).await.expect("read");
            let mut erased = Vec::new();
            for batch in found {
                let (stored, state) = journal.event_batch(batch).await.expect("read").expect("there");
                assert_ne!(state, EventBatchState::Accepted);
                let events =
                    PackedEvents::from_parts(stored.events.count(), vec![0; stored.events.bytes().len()].into());
                erased.push(ErasedEvents { batch, events, chronicled: stored.chronicled });
            }
            journal.erase_events(erasure.number, erased, examined).await.expect("erased");
        }
        loop {
            if !step() {
                return false;
            }
            let erasure = find(journal).await.expect("there");
            match journal.erase_notifications(&erasure, at(100)).await.expect("erased") {
                ErasedNotifications::Some(_) => {}
                ErasedNotifications::All(_) => break,
                ErasedNotifications::Waiting(_) => panic!("nothing is in progress"),
            }
        }
    }
    if !step() {
        return false;
    }
    journal.finish_erasure(SubscriberNumber(7)).await.expect("erased");
    true
}

#[test]
fn erasures_overwrite_what_a_person_has_and_nothing_of_others() {
    on_each(async |journal| {
        live(&*journal, 5).await;
        let before = journal.backlog();
        journal.begin_erasure(person(), at(50)).await.expect("begun");
        journal.begin_erasure(person(), at(51)).await.expect("begun again");
        assert_eq!(journal.erasures().await.expect("read").len(), 1);
        assert!(drive(&*journal, usize::MAX).await);
        assert_eq!(find(&*journal).await, None);
        assert_eq!(journal.backlog(), before, "no count changes");

        let stored = journal.notification_batch(NotificationBatchId(2)).await.expect("read").expect("there");
        let (_, streets) = &stored.notifications.captured[0];
        assert_eq!(streets.value(1), Some(Value::Null));
        assert_eq!(streets.value(2), Some(Value::from("street 2")));
        assert_eq!(stored.notifications.captured[1].1.value(1), Some(Value::Null));
        let attempts = journal.attempts(NotificationBatchId(2)).await.expect("read");
        let replies: Vec<&str> = attempts.iter().map(|attempt| &*attempt.reply).collect();
        assert_eq!(replies, ["250 queued", ERASED, "250 queued", "550 not erased", "250 queued"]);
        let suspended = journal.suspensions(&SuspensionFilter::default(), 0, 9).await.expect("read").remove(0);
        assert_eq!(suspended.suspension.reason, "refused <erased>");
        assert_eq!(suspended.suspension.work_state.edit, None);
        let waiting = journal.delayed(&DelayedFilter::default(), 0, 9).await.expect("read");
        let keys: Vec<_> = waiting.iter().map(|delayed| (delayed.subscription.0, delayed.key.as_deref())).collect();
        assert_eq!(keys, [(9, Some(ERASED)); 3]);
        let resend = journal.resends(false, 0, 9).await.expect("read").remove(0);
        assert_eq!(resend.request, r#"{"subscriber":"erased"}"#);
    });
}

#[test]
fn an_erasure_waits_for_events_and_deliveries_in_progress() {
    on_each(async |journal| {
        accept(&*journal, 1, at(0)).await;
        let batch = match_next(&*journal, &[3], at(0)).await[0];
        let item = claim_work(&*journal, 1, at(0)).await.remove(0);
        accept(&*journal, 1, at(1)).await;
        journal.begin_erasure(person(), at(2)).await.expect("begun");
        accept(&*journal, 1, at(3)).await;
        let next = async || {
            let erasure = find(&*journal).await.expect("there");
            journal.erase_notifications(&erasure, at(3)).await.expect("erased")
        };
        let waiting = ErasedNotifications::Waiting(NotificationBatchId(batch.0 - 1));
        assert_eq!(next().await, waiting, "a message is being delivered");
        journal.commit(delivered(&item, 3, at(3))).await.expect("committed");
        assert_eq!(next().await, ErasedNotifications::Waiting(batch), "an event is not matched");
        let replies = journal.attempts(batch).await.expect("read");
        assert_eq!(replies[1].reply, ERASED, "the reply of the last delivery too");
        match_next(&*journal, &[], at(4)).await;
        assert_eq!(next().await, ErasedNotifications::All(batch), "later events do not belong to it");
    });
}

/// Needles in the files of a folder, and in their compressed contents.
fn found_in(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut search = |place: &str, bytes: &[u8]| {
        for needle in NEEDLES {
            if bytes.windows(needle.len()).any(|window| window.eq_ignore_ascii_case(needle.as_bytes())) {
                found.push(format!("{needle} in {place}"));
            }
        }
    };
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        search(&path.display().to_string(), &std::fs::read(&path).expect("a file"));
    }
    let file = rusqlite::Connection::open(folder.join("journal.sqlite")).expect("a database");
    let sql = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'";
    let mut tables = file.prepare(sql).expect("SQL");
    let tables: Vec<String> = tables.query_map((), |row| row.get(0)).expect("read").map(Result::unwrap).collect();
    for table in tables {
        let mut all = file.prepare(&format!("SELECT * FROM {table}")).expect("SQL");
        let columns = all.column_count();
        let mut rows = all.query(()).expect("read");
        while let Some(row) = rows.next().expect("a row") {
            for column in 0..columns {
                let value = row.get_ref(column).expect("a value");
                let Ok(bytes) = value.as_bytes() else { continue };
                let whole = zstd::bulk::decompress(bytes, 1 << 24).unwrap_or_default();
                search(&format!("{table}, column {column}"), &whole);
            }
        }
    }
    found
}

#[test]
fn no_file_holds_anything_of_an_erased_person_wherever_a_crash_came() {
    let fixture = JournalFixture::sqlite();
    run(async {
        let journal = fixture.open().await;
        // Large batches are compressed and have pages of their own.
        live(&*journal, 3_000).await;
        let cutoffs = Cutoffs::all(at(2));
        journal.prune(&cutoffs, at(2_000_000), 1).await.expect("pruned");
        assert!(!found_in(fixture.folder()).is_empty());
        journal.begin_erasure(person(), at(50)).await.expect("begun");
        for steps in 1.. {
            let image = crash_image(fixture.folder());
            {
                let copy = open_at(image.path(), options()).await;
                let ended = drive(&*copy, steps).await;
                if !ended {
                    drop(copy);
                    let again = open_at(image.path(), options()).await;
                    assert!(drive(&*again, usize::MAX).await);
                    assert_eq!(found_in(image.path()), Vec::<String>::new(), "after {steps} steps");
                    continue;
                }
                assert_eq!(found_in(image.path()), Vec::<String>::new());
            }
            assert!(steps > 3, "{steps} steps");
            break;
        }
    });
}
