//! A submission becomes an event batch, or is found to have become one before.

use std::sync::Arc;

use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension};
use tocsin_model::{
    id::{ChangeSequence, EventBatchId},
    time::Timestamp,
};
use tokio::sync::oneshot;

use super::{
    Shared,
    activity::{self, StreamKey},
    marks,
    packing::{Body, pack_body},
    tally::{Last, Tally},
};
use crate::{
    error::StoreError,
    journal::{Accepted, Idempotency, Mark, NewEventBatch, activity::Ledger},
    sqlite::writer::{AfterCommit, Database, WAITING_WRITES_MAX, store_error},
};

/// A submission as its row wants it.
pub struct NewRow {
    application: i64,
    version: u32,
    class: i64,
    source: i64,
    received_at: Timestamp,
    accepted_at: Timestamp,
    sees: ChangeSequence,
    events: u32,
    body: Body,
    /// Packed; empty if there are none.
    traces: Vec<u8>,
    idempotency: Option<Idempotency>,
    marks: Vec<Mark>,
}

/// Stores a submission together with others that arrive at the same time.
pub async fn accept(database: &Database, shared: &Shared, new: NewEventBatch) -> Result<Accepted, StoreError> {
    let row = row(database, shared, new).await?;
    #[cfg(debug_assertions)]
    let row = match super::faults::answer_early(database, shared, row, store_as).await {
        Ok(answer) => return answer,
        Err(row) => row,
    };
    let (answer, answered) = oneshot::channel();
    if shared.gathering.join(row, answer)? {
        store_gathered(database, shared);
    }
    answered.await.unwrap_or_else(|_| Err(StoreError::unavailable("the writer has ended")))
}

/// Makes the row of a submission: what needs no file is done before the writer sees it.
pub async fn row(database: &Database, shared: &Shared, new: NewEventBatch) -> Result<NewRow, StoreError> {
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
        sees: new.sees,
        events,
        traces: new.events.traces().pack(),
        body: super::off_the_runtime(new.events.bytes().len(), move || pack_body(new.events.bytes().clone())).await?,
        idempotency: new.idempotency,
        marks: new.marks,
    })
}

/// Submissions that wait for the writer. Those that gather while a commit is on its way are stored by one job, which
/// changes the counters once.
#[derive(Default)]
pub struct Gathering(Mutex<Vec<Waiting>>);

type Waiting = (NewRow, Answer);
type Answer = oneshot::Sender<Result<Accepted, StoreError>>;

impl Gathering {
    /// Adds one; whether it is the first, for which nobody has asked the writer yet.
    fn join(&self, row: NewRow, answer: Answer) -> Result<bool, StoreError> {
        let mut waiting = self.0.lock();
        if waiting.len() >= WAITING_WRITES_MAX {
            return Err(StoreError::Full(format!("{WAITING_WRITES_MAX} submissions wait already")));
        }
        waiting.push((row, answer));
        Ok(waiting.len() == 1)
    }

    fn take(&self) -> (Vec<NewRow>, Vec<Answer>) {
        std::mem::take(&mut *self.0.lock()).into_iter().unzip()
    }
}

/// Asks the writer to store whatever has gathered when its turn comes.
fn store_gathered(database: &Database, shared: &Shared) {
    let taken: Arc<Mutex<(Vec<NewRow>, Vec<Answer>)>> = Arc::default();
    let job = {
        let (shared, taken) = (shared.clone(), taken.clone());
        move |connection: &Connection, after: &mut AfterCommit| {
            let mut taken = taken.lock();
            // Otherwise it has run before, with these.
            if taken.0.is_empty() {
                *taken = shared.gathering.take();
            }
            store_all(connection, after, &shared, &taken.0)
        }
    };
    let gathering = shared.gathering.clone();
    database.write_again_then(job, move |stored| {
        let mut waiting = std::mem::take(&mut taken.lock().1);
        match stored {
            Ok(accepted) => waiting.into_iter().zip(accepted).for_each(|(answer, accepted)| {
                // A caller that stopped waiting has its events stored nevertheless.
                let _ = answer.send(Ok(accepted));
            }),
            Err(error) => {
                if waiting.is_empty() {
                    // The job did not even begin, so those who gathered for it still wait.
                    waiting = gathering.take().1;
                }
                refuse(waiting, &error);
            }
        }
    });
}

/// Gives the same trouble to all.
fn refuse(waiting: Vec<Answer>, error: &StoreError) {
    for answer in waiting {
        let _ = answer.send(Err(match error {
            StoreError::Full(why) => StoreError::Full(why.clone()),
            error => StoreError::unavailable(error.to_string()),
        }));
    }
}

/// Stores what is new of these, in order.
pub fn store_all(
    connection: &Connection,
    after: &mut AfterCommit,
    shared: &Shared,
    rows: &[NewRow],
) -> Result<Vec<Accepted>, StoreError> {
    let mut new = Vec::with_capacity(rows.len());
    let mut accepted = Vec::with_capacity(rows.len());
    let mut place = last_place(connection)?;
    for row in rows {
        let before = match &row.idempotency {
            Some(idempotency) => find_before(connection, idempotency, row.accepted_at)?,
            None => None,
        };
        if !matches!(before, Some(Accepted::KeyReused(_))) {
            marks::store(connection, row.application, row.source, &row.marks)?;
        }
        accepted.push(match before {
            Some(before) => before,
            None => {
                let id = Last::next(&shared.counters.last.event_batch);
                insert(connection, row, id, &mut place)?;
                new.push(row);
                Accepted::New(EventBatchId(id))
            }
        });
    }
    count(connection, after, shared, &new)?;
    Ok(accepted)
}

/// Stores a submission under a number that it has already.
#[cfg(debug_assertions)]
fn store_as(
    connection: &Connection,
    after: &mut AfterCommit,
    shared: &Shared,
    row: NewRow,
    id: u64,
) -> Result<Accepted, StoreError> {
    insert(connection, &row, id, &mut last_place(connection)?)?;
    count(connection, after, shared, &[&row])?;
    Ok(Accepted::New(EventBatchId(id)))
}

/// Counts what was stored, and wakes the matcher once it is durable.
fn count(connection: &Connection, after: &mut AfterCommit, shared: &Shared, new: &[&NewRow]) -> Result<(), StoreError> {
    let Some(oldest) = new.iter().map(|row| row.accepted_at).min() else {
        return Ok(());
    };
    let events = new.iter().map(|row| i64::from(row.events)).sum();
    let difference = Tally {
        event_batches: new.len() as i64,
        events,
        waiting_batches: new.len() as i64,
        waiting_events: events,
        waiting_bytes: new.iter().map(|row| row.body.bytes as i64).sum(),
        ..Tally::default()
    };
    let mut ledger = Ledger::default();
    for row in new {
        let stream = StreamKey::events(row.application, row.class, row.source);
        ledger.accepted(&stream, row.received_at, row.accepted_at, row.events, row.body.bytes as u64);
    }
    activity::write(connection, ledger)?;
    shared.counters.store(connection, difference)?;
    let shared = shared.clone();
    after.run(move || {
        shared.counters.add_accepted(difference, oldest);
        shared.arrivals.events();
    });
    Ok(())
}

/// What the newest batch sees.
fn last_place(connection: &Connection) -> Result<Option<ChangeSequence>, StoreError> {
    connection
        .prepare_cached("SELECT sees FROM places ORDER BY first DESC LIMIT 1")
        .and_then(|mut statement| statement.query_row((), |row| row.get(0)).optional())
        .map(|place| place.map(ChangeSequence))
        .map_err(store_error)
}

/// `place` is what the batch before sees, and becomes what this one sees.
fn insert(
    connection: &Connection,
    row: &NewRow,
    id: u64,
    place: &mut Option<ChangeSequence>,
) -> Result<(), StoreError> {
    if place.is_none_or(|place| place < row.sees) {
        connection
            .prepare_cached("INSERT INTO places (first, sees) VALUES (?1, ?2)")
            .and_then(|mut statement| statement.execute((id, row.sees.0)))
            .map_err(store_error)?;
        *place = Some(row.sees);
    }
    if let Some(Idempotency { key, content, until }) = &row.idempotency {
        // A key that is there is one that is over.
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

/// What became of an earlier submission under the same key, if the key is still remembered.
fn find_before(
    connection: &Connection,
    idempotency: &Idempotency,
    accepted_at: Timestamp,
) -> Result<Option<Accepted>, StoreError> {
    let before: Option<(u64, [u8; 16])> = connection
        .prepare_cached("SELECT batch, content FROM idempotency WHERE key = ?1 AND until > ?2")
        .and_then(|mut statement| {
            statement.query_row((idempotency.key, accepted_at.0), |row| Ok((row.get(0)?, row.get(1)?))).optional()
        })
        .map_err(store_error)?;
    Ok(before.map(|(batch, content)| {
        let batch = EventBatchId(batch);
        if content == idempotency.content { Accepted::Duplicate(batch) } else { Accepted::KeyReused(batch) }
    }))
}
