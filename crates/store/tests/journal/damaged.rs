//! A worn disk: what cannot be read is set aside and seen, and the rest goes on.

use tocsin_store::journal::{EventBatchState, Except};

use crate::support::*;

#[tokio::test]
async fn an_unreadable_event_batch_is_set_aside_and_those_behind_it_are_handed_out() {
    let place = Place::sqlite();
    let journal = place.open().await;
    let damaged = accept(&*journal, 1, at(0)).await;
    let whole = accept(&*journal, 1, at(0)).await;
    drop(journal);
    let file = rusqlite::Connection::open(place.folder().join("journal.sqlite")).expect("the file");
    file.execute("UPDATE event_batches SET body = x'00', bytes = 1000 WHERE id = ?1", [damaged.0]).expect("a change");
    drop(file);

    let journal = place.open().await;
    let claimed =
        journal.claim_events(10, 1 << 20, &Except::default(), LEASE, at(1)).await.expect("the rest can be claimed");
    assert_eq!(claimed.iter().map(|events| events.batch.id).collect::<Vec<_>>(), [whole]);
    let backlog = journal.backlog();
    assert_eq!((backlog.event_batches, backlog.failed_batches), (1, 1));
    let listed = journal.event_batches(None, 10).await.expect("it is listed");
    assert!(matches!(&listed[1].1, EventBatchState::Failed(why) if why.contains("damaged")), "{:?}", listed[1].1);
}
