//! A submission becomes an event batch, or is found to have become one before.

use rusqlite::{Connection, OptionalExtension};
use tocsin_model::{id::EventBatchId, time::Timestamp};

use super::{
    Shared,
    packing::{Body, pack_body},
    tally::{Last, Tally},
};
use crate::{
    error::StoreError,
    journal::{Accepted, Idempotency, NewEventBatch},
    sqlite::writer::{AfterCommit, Database, store_error},
};

/// A submission as its row wants it.
struct NewRow {
    application: i64,
    version: u32,
    class: i64,
    source: i64,
    received_at: Timestamp,
    accepted_at: Timestamp,
    events: u32,
    body: Body,
    idempotency: Option<Idempotency>,
}

/// Stores a submission together with others that arrive at the same time.
pub async fn accept(database: &Database, shared: &Shared, new: NewEventBatch) -> Result<Accepted, StoreError> {
    let [application, class, source] =
        shared.names.numbers(database, [&new.application, &new.class, &new.source]).await?;
    let events = new.events.count();
    let row = NewRow {
        application,
        version: new.version,
        class,
        source,
        received_at: new.received_at,
        accepted_at: new.accepted_at,
        events,
        body: super::off_the_runtime(new.events.bytes().len(), move || pack_body(new.events.bytes().clone())).await?,
        idempotency: new.idempotency,
    };
    #[cfg(debug_assertions)]
    let row = match super::faults::answer_early(database, shared, row, store_as).await {
        Ok(answer) => return answer,
        Err(row) => row,
    };
    let shared = shared.clone();
    database.write(move |connection, after| store(connection, after, &shared, row)).await
}

fn store(
    connection: &Connection,
    after: &mut AfterCommit,
    shared: &Shared,
    row: NewRow,
) -> Result<Accepted, StoreError> {
    if let Some(idempotency) = &row.idempotency
        && let Some(before) = find_before(connection, idempotency, row.accepted_at)?
    {
        return Ok(before);
    }
    let id = Last::next(&shared.counters.last.event_batch);
    store_as(connection, after, shared, row, id)
}

fn store_as(
    connection: &Connection,
    after: &mut AfterCommit,
    shared: &Shared,
    row: NewRow,
    id: u64,
) -> Result<Accepted, StoreError> {
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
        .prepare_cached("INSERT INTO event_waiting (id, events, bytes, accepted_at) VALUES (?1, ?2, ?3, ?4)")
        .and_then(|mut statement| statement.execute((id, row.events, row.body.bytes, row.accepted_at.0)))
        .map_err(store_error)?;
    let difference = Tally {
        event_batches: 1,
        events: i64::from(row.events),
        waiting_batches: 1,
        waiting_events: i64::from(row.events),
        waiting_bytes: row.body.bytes as i64,
        ..Tally::default()
    };
    shared.counters.store(connection, difference)?;
    let shared = shared.clone();
    after.run(move || {
        shared.counters.add_accepted(difference, row.accepted_at);
        shared.arrivals.events();
    });
    Ok(Accepted::New(EventBatchId(id)))
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
