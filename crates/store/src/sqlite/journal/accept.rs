//! Stores submissions as event batches: group commit, with idempotency keys.

use std::sync::Arc;

use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension};
use tocsin_model::{
    id::{ChangeSequence, EventBatchId},
    time::Timestamp,
};
use tokio::sync::oneshot;

use crate::{
    error::StoreError,
    journal::{EventAcceptance, Idempotency, NewEventBatch, activity::MinuteSums},
    sqlite::{
        journal::{
            activity::{self, StreamKey},
            checkpoints,
            context::JournalContext,
            counters::{CounterValues, Last},
            packing::pack_body,
            submission_queue::{Answer, NewRow},
        },
        writer::{AfterCommit, Database, store_error},
    },
};

/// Stores a submission. Submissions that arrive during a commit share the next one.
pub async fn accept(
    database: &Database,
    shared: &JournalContext,
    new: NewEventBatch,
) -> Result<EventAcceptance, StoreError> {
    let row = row(database, shared, new).await?;
    #[cfg(debug_assertions)]
    let row = match super::faults::answer_early(database, shared, row, store_as).await {
        Ok(answer) => return answer,
        Err(row) => row,
    };
    let (answer, answered) = oneshot::channel();
    if shared.submissions.join(row, answer)? {
        store_queued(database, shared);
    }
    answered.await.unwrap_or_else(|_| Err(StoreError::unavailable("the writer has ended")))
}

/// Prepares the row of a submission outside of the writer thread: packing needs no database.
pub async fn row(database: &Database, shared: &JournalContext, new: NewEventBatch) -> Result<NewRow, StoreError> {
    let [application, class, source] =
        shared.names.numbers(database, [&new.application, &new.class, &new.source]).await?;
    let events = new.events.count();
    Ok(NewRow {
        application,
        version: new.version,
        class,
        source,
        received_at: new.received_at,
        accepted_at: new.accepted_at,
        snapshot_sequence: new.snapshot_sequence,
        events,
        traces: new.events.traces().pack(),
        body: super::context::off_the_runtime(new.events.bytes().len(), move || pack_body(new.events.bytes().clone()))
            .await?,
        idempotency: new.idempotency,
        marks: new.marks,
    })
}

/// Submits a writer job that stores all submissions queued by the time it runs.
fn store_queued(database: &Database, shared: &JournalContext) {
    let taken: Arc<Mutex<(Vec<NewRow>, Vec<Answer>)>> = Arc::default();
    let job = {
        let (shared, taken) = (shared.clone(), taken.clone());
        move |connection: &Connection, after: &mut AfterCommit| {
            let mut taken = taken.lock();
            // On a retry of the job, the submissions of the first run are stored again.
            if taken.0.is_empty() {
                *taken = shared.submissions.take();
            }
            store_all(connection, after, &shared, &taken.0)
        }
    };
    let submissions = shared.submissions.clone();
    database.write_retryable_then(job, move |stored| {
        let mut waiting = std::mem::take(&mut taken.lock().1);
        match stored {
            Ok(accepted) => waiting.into_iter().zip(accepted).for_each(|(answer, accepted)| {
                // A caller that stopped waiting has its events stored nevertheless.
                let _ = answer.send(Ok(accepted));
            }),
            Err(error) => {
                if waiting.is_empty() {
                    // The job did not start, so its submissions are still queued.
                    waiting = submissions.take().1;
                }
                fail_all(waiting, &error);
            }
        }
    });
}

/// Returns the same error to all waiting callers.
fn fail_all(waiting: Vec<Answer>, error: &StoreError) {
    for answer in waiting {
        let _ = answer.send(Err(match error {
            StoreError::Full(why) => StoreError::Full(why.clone()),
            error => StoreError::unavailable(error.to_string()),
        }));
    }
}

/// Stores the rows that are not duplicates, in order.
pub fn store_all(
    connection: &Connection,
    after: &mut AfterCommit,
    shared: &JournalContext,
    rows: &[NewRow],
) -> Result<Vec<EventAcceptance>, StoreError> {
    let mut new = Vec::with_capacity(rows.len());
    let mut accepted = Vec::with_capacity(rows.len());
    let mut sequence = last_sequence(connection)?;
    for row in rows {
        let before = match &row.idempotency {
            Some(idempotency) => find_duplicate(connection, idempotency, row.accepted_at)?,
            None => None,
        };
        if !matches!(before, Some(EventAcceptance::KeyReused(_))) {
            checkpoints::store(connection, row.application, row.source, &row.marks)?;
        }
        accepted.push(match before {
            Some(before) => before,
            None => {
                let id = Last::next(&shared.counters.last.event_batch);
                insert(connection, row, id, &mut sequence)?;
                new.push(row);
                EventAcceptance::New(EventBatchId(id))
            }
        });
    }
    count(connection, after, shared, &new)?;
    Ok(accepted)
}

/// Stores a submission under a number assigned before.
#[cfg(debug_assertions)]
fn store_as(
    connection: &Connection,
    after: &mut AfterCommit,
    shared: &JournalContext,
    row: NewRow,
    id: u64,
) -> Result<EventAcceptance, StoreError> {
    insert(connection, &row, id, &mut last_sequence(connection)?)?;
    count(connection, after, shared, &[&row])?;
    Ok(EventAcceptance::New(EventBatchId(id)))
}

/// Updates the counters, and wakes the matcher after the commit.
fn count(
    connection: &Connection,
    after: &mut AfterCommit,
    shared: &JournalContext,
    new: &[&NewRow],
) -> Result<(), StoreError> {
    let Some(oldest) = new.iter().map(|row| row.accepted_at).min() else {
        return Ok(());
    };
    let events = new.iter().map(|row| i64::from(row.events)).sum();
    let difference = CounterValues {
        event_batches: new.len() as i64,
        events,
        waiting_batches: new.len() as i64,
        waiting_events: events,
        waiting_bytes: new.iter().map(|row| row.body.bytes as i64).sum(),
        ..CounterValues::default()
    };
    let mut sums = MinuteSums::default();
    for row in new {
        let stream = StreamKey::events(row.application, row.class, row.source);
        sums.add_accepted(&stream, row.received_at, row.accepted_at, row.events, row.body.bytes as u64);
    }
    activity::write(connection, sums)?;
    shared.counters.store(connection, difference)?;
    let shared = shared.clone();
    after.run(move || {
        shared.counters.add_accepted(difference, oldest);
        shared.arrivals.events();
    });
    Ok(())
}

/// Snapshot sequence of the newest batch.
fn last_sequence(connection: &Connection) -> Result<Option<ChangeSequence>, StoreError> {
    connection
        .prepare_cached("SELECT sees FROM places ORDER BY first DESC LIMIT 1")
        .and_then(|mut statement| statement.query_row((), |row| row.get(0)).optional())
        .map(|sequence| sequence.map(ChangeSequence))
        .map_err(store_error)
}

/// Inserts a row. `sequence` is the snapshot sequence of the batch before, and is updated.
fn insert(
    connection: &Connection,
    row: &NewRow,
    id: u64,
    sequence: &mut Option<ChangeSequence>,
) -> Result<(), StoreError> {
    if sequence.is_none_or(|sequence| sequence < row.snapshot_sequence) {
        connection
            .prepare_cached("INSERT INTO places (first, sees) VALUES (?1, ?2)")
            .and_then(|mut statement| statement.execute((id, row.snapshot_sequence.0)))
            .map_err(store_error)?;
        *sequence = Some(row.snapshot_sequence);
    }
    if let Some(Idempotency { key, content, until }) = &row.idempotency {
        // An existing row with this key is expired.
        connection
            .prepare_cached("INSERT OR REPLACE INTO idempotency (key, content, batch, until) VALUES (?1, ?2, ?3, ?4)")
            .and_then(|mut statement| statement.execute((key, content, id, until.0)))
            .map_err(store_error)?;
    }
    connection
        .prepare_cached(
            "INSERT INTO event_batches
                 (id, application, version, class, source, received_at, accepted_at, events, bytes, body)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        )
        .and_then(|mut statement| {
            statement.execute((
                id,
                row.application,
                row.version,
                row.class,
                row.source,
                row.received_at.0,
                row.accepted_at.0,
                row.events,
                row.body.bytes,
                &row.body.stored[..],
            ))
        })
        .map_err(store_error)?;
    connection
        .prepare_cached(
            "INSERT INTO event_waiting (id, events, bytes, accepted_at, application, class)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )
        .and_then(|mut statement| {
            statement.execute((id, row.events, row.body.bytes, row.accepted_at.0, row.application, row.class))
        })
        .map_err(store_error)?;
    if !row.traces.is_empty() {
        connection
            .prepare_cached("INSERT INTO event_traces (id, body) VALUES (?1, ?2)")
            .and_then(|mut statement| statement.execute((id, &row.traces[..])))
            .map_err(store_error)?;
    }
    Ok(())
}

/// Earlier submission under the same key, if the key has not expired.
fn find_duplicate(
    connection: &Connection,
    idempotency: &Idempotency,
    accepted_at: Timestamp,
) -> Result<Option<EventAcceptance>, StoreError> {
    let before: Option<(u64, [u8; 16])> = connection
        .prepare_cached("SELECT batch, content FROM idempotency WHERE key = ?1 AND until > ?2")
        .and_then(|mut statement| {
            statement.query_row((idempotency.key, accepted_at.0), |row| Ok((row.get(0)?, row.get(1)?))).optional()
        })
        .map_err(store_error)?;
    Ok(before.map(|(batch, content)| {
        let batch = EventBatchId(batch);
        if content == idempotency.content {
            EventAcceptance::Duplicate(batch)
        } else {
            EventAcceptance::KeyReused(batch)
        }
    }))
}
