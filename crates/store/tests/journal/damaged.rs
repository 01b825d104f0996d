//! Damaged files: unreadable batches are marked as failed, and the others are processed.

use tocsin_store::journal::{ClaimEvents, EventBatchState, Except};

use crate::support::*;

#[tokio::test]
async fn an_unreadable_event_batch_is_marked_failed_and_later_ones_are_claimed() {
    let fixture = JournalFixture::sqlite();
    let journal = fixture.open().await;
    let damaged = accept(&*journal, 1, at(0)).await;
    let whole = accept(&*journal, 1, at(0)).await;
    drop(journal);
    let file = rusqlite::Connection::open(fixture.folder().join("journal.sqlite")).expect("the file");
    file.execute("UPDATE event_batches SET body = x'00', bytes = 1000 WHERE id = ?1", [damaged.0]).expect("a change");
    drop(file);

    let journal = fixture.open().await;
    let claimed = journal
        .claim_events(ClaimEvents { batches: 10, bytes: 1 << 20, except: &Except::default(), lease: LEASE, now: at(1) })
        .await
        .expect("the rest can be claimed");
    assert_eq!(claimed.iter().map(|events| events.batch.id).collect::<Vec<_>>(), [whole]);
    let backlog = journal.backlog();
    assert_eq!((backlog.event_batches, backlog.failed_batches), (1, 1));
    let listed = journal.event_batches(None, 10).await.expect("it is listed");
    assert!(matches!(&listed[1].1, EventBatchState::Failed(why) if why.contains("damaged")), "{:?}", listed[1].1);
}
