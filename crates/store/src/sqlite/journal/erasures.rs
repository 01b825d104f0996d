//! Erasure of a person: rewrites the batches that hold its data, some per commit.

use async_trait::async_trait;
use rusqlite::{Connection, Row};
use serde::{Deserialize, Serialize};
use tocsin_model::{
    id::{EventBatchId, NotificationBatchId, SubscriberId, SubscriberNumber, SubscriptionId},
    notification::Notifications,
    receipt::{pack_attempts, unpack_attempts},
    time::Timestamp,
};

use super::{
    SqliteJournal,
    context::{JournalContext, off_the_runtime},
    delays,
    packing::{Body, pack_body, unpack_body, unpack_ordinals},
    views::{CHUNK_BITS, collect},
};
use crate::{
    error::StoreError,
    journal::{DelayedFilter, ErasedEvents, ErasedNotifications, ErasedPerson, Erasure, Erasures, PersonNames},
    sqlite::{
        statements::{execute, query_one, signed},
        writer::{AfterCommit, store_error},
    },
};

/// Batches examined per read.
const EXAMINED_MAX: usize = 256;
/// Uncompressed bytes examined per read; at least one batch is examined.
const EXAMINED_BYTES_MAX: usize = 32 << 20;
/// Notification batches rewritten per commit.
const BATCHES_MAX: usize = 16;
/// Delayed notifications removed per commit.
const DELAYED_MAX: usize = 1_000;

/// A person as stored.
#[derive(Serialize, Deserialize)]
struct StoredPerson(SubscriberId, PersonNames, Vec<SubscriptionId>);

/// A notification batch with data of a person.
struct Concerned {
    id: NotificationBatchId,
    /// Notifications of the person.
    ordinals: Vec<u32>,
    /// Body without the data, if it had any.
    body: Option<Body>,
    /// Whether receipts, work items or suspensions have data of the person.
    has_texts: bool,
}

#[async_trait]
impl Erasures for SqliteJournal {
    async fn begin_erasure(&self, person: ErasedPerson, now: Timestamp) -> Result<(), StoreError> {
        let number = signed(person.number.0);
        let stored = StoredPerson(person.id, person.names, person.subscriptions);
        let stored = serde_json::to_string(&stored).expect("texts and numbers are JSON");
        let begin = move |connection: &Connection, _: &mut AfterCommit| {
            // Tests may begin an erasure before the first batch.
            let sql = "INSERT INTO erasures
                    SELECT ?1, ?2, ?3, coalesce((SELECT max(id) FROM event_batches), 0), 0, 0
                ON CONFLICT (subscriber) DO UPDATE SET person = excluded.person, asked_at = excluded.asked_at,
                    last_event = excluded.last_event, events = 0, notifications = 0";
            execute(connection, sql, (number, stored, now.0)).map(drop)
        };
        self.database.write(begin).await
    }

    async fn erasures(&self) -> Result<Vec<Erasure>, StoreError> {
        self.read(|connection, _| {
            let sql = "SELECT subscriber, person, asked_at, last_event, events, notifications FROM erasures
                ORDER BY subscriber";
            collect(connection, sql, (), read_erasure)
        })
        .await
    }

    async fn event_batches_naming(
        &self,
        erasure: &Erasure,
        limit: usize,
    ) -> Result<(Vec<EventBatchId>, EventBatchId), StoreError> {
        let Some(names) = erasure.person.as_ref().map(|person| person.names.clone()) else {
            return Ok((Vec::new(), erasure.last_event));
        };
        let (after, last) = (signed(erasure.events.0), signed(erasure.last_event.0));
        self.read(move |connection, _| {
            let sql = "SELECT b.id, b.bytes, b.body, c.bytes, c.body FROM event_batches b
                    LEFT JOIN event_chronicles c ON c.id = b.id
                WHERE b.id > ?1 AND b.id <= ?2 ORDER BY b.id LIMIT ?3";
            let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
            let mut rows = statement.query((after, last, EXAMINED_MAX)).map_err(store_error)?;
            let (mut found, mut examined, mut bytes, mut count) = (Vec::new(), EventBatchId(last as u64), 0, 0);
            while let Some(row) = rows.next().map_err(store_error)? {
                let id = EventBatchId(row.get(0).map_err(store_error)?);
                let body = body_at(row, 1)?.unwrap_or_default();
                let chronicled = body_at(row, 3)?.unwrap_or_default();
                if names.may_be_in(&body) || names.may_be_in(&chronicled) {
                    found.push(id);
                }
                bytes += body.len();
                count += 1;
                if count == EXAMINED_MAX || bytes > EXAMINED_BYTES_MAX || found.len() == limit {
                    examined = id;
                    break;
                }
            }
            Ok((found, examined))
        })
        .await
    }

    async fn erase_events(
        &self,
        person: SubscriberNumber,
        events: Vec<ErasedEvents>,
        examined: EventBatchId,
    ) -> Result<(), StoreError> {
        let mut packed = Vec::with_capacity(events.len());
        for ErasedEvents { batch, events, chronicled } in events {
            let bytes = events.bytes().len() + chronicled.len();
            let pack = move || (pack_body(events.bytes().clone()), pack_body(chronicled));
            packed.push((batch, off_the_runtime(bytes, pack).await?));
        }
        let erase = move |connection: &Connection, _: &mut AfterCommit| {
            for (batch, (body, chronicled)) in &packed {
                let sql = "UPDATE event_batches SET bytes = ?2, body = ?3 WHERE id = ?1";
                execute(connection, sql, (batch.0, body.bytes, &body.stored[..]))?;
                let sql = "UPDATE event_chronicles SET bytes = ?2, body = ?3 WHERE id = ?1";
                execute(connection, sql, (batch.0, chronicled.bytes, &chronicled.stored[..]))?;
            }
            let sql = "UPDATE erasures SET events = max(events, ?2) WHERE subscriber = ?1";
            execute(connection, sql, (signed(person.0), signed(examined.0))).map(drop)
        };
        self.database.write(erase).await
    }

    async fn erase_notifications(&self, erasure: &Erasure, now: Timestamp) -> Result<ErasedNotifications, StoreError> {
        let Some(person) = erasure.person.clone() else {
            return Ok(ErasedNotifications::All(erasure.notifications));
        };
        let (last_event, after) = (erasure.last_event, erasure.notifications);
        // Before the batches are read: a batch that is made meanwhile belongs to an event that is still waiting.
        let is_waiting = self.is_any_waiting(last_event, now).await?;
        let examined = person.clone();
        let (concerned, reached, is_last) =
            self.read(move |connection, _| examine(connection, &examined, after)).await?;
        let shared = self.shared.clone();
        let rewrite = move |connection: &Connection, _: &mut AfterCommit| {
            let mut reached = reached;
            let mut is_busy = false;
            for batch in &concerned {
                // A worker may still record what a receiver answers. The batch is examined again after that.
                if is_delivering(connection, &shared, batch, now)? {
                    is_busy = true;
                    reached = reached.min(NotificationBatchId(batch.id.0 - 1));
                }
                rewrite(connection, &person, batch)?;
            }
            let sql = "UPDATE erasures SET notifications = max(notifications, ?2) WHERE subscriber = ?1";
            execute(connection, sql, (signed(person.number.0), signed(reached.0)))?;
            Ok(match (is_busy, is_last, is_waiting) {
                (false, false, _) => ErasedNotifications::Some(reached),
                (false, true, false) => ErasedNotifications::All(reached),
                _ => ErasedNotifications::Waiting(reached),
            })
        };
        self.database.write(rewrite).await
    }

    async fn erase_texts(&self, erasure: &Erasure, now: Timestamp) -> Result<(), StoreError> {
        let Some(person) = erasure.person.clone() else { return Ok(()) };
        for subscription in person.subscriptions.clone() {
            let filter = DelayedFilter { subscription: Some(subscription), ..DelayedFilter::default() };
            let shared = self.shared.clone();
            let any = "SELECT 1 FROM delayed WHERE subscription = ?1 AND run = 0 LIMIT 1";
            let find = move |connection: &Connection, _: &JournalContext| {
                Ok(query_one(connection, any, [signed(subscription.0)], |_| Ok(()))?.is_some())
            };
            if !self.read(find).await? {
                continue;
            }
            let cancel = move |connection: &Connection, after: &mut AfterCommit| {
                delays::cancel(connection, after, &shared, &filter, now, DELAYED_MAX)
            };
            // A subscription has one for each event.
            while self.database.write(cancel.clone()).await? == DELAYED_MAX {}
        }
        let erase = move |connection: &Connection, _: &mut AfterCommit| {
            TEXTS.iter().try_for_each(|text| erase_column(connection, &person.names, text))
        };
        self.database.write(erase).await
    }

    async fn finish_erasure(&self, person: SubscriberNumber) -> Result<(), StoreError> {
        let number = signed(person.0);
        let forget = "UPDATE erasures SET person = NULL WHERE subscriber = ?1";
        self.database.write(move |connection, _| execute(connection, forget, [number])).await?;
        self.database.overwrite_free_pages().await?;
        self.database.truncate_log().await?;
        let remove = "DELETE FROM erasures WHERE subscriber = ?1";
        self.database.write(move |connection, _| execute(connection, remove, [number]).map(drop)).await
    }
}

impl SqliteJournal {
    /// Whether an event batch up to one is not matched, or a step that matched one is being committed.
    async fn is_any_waiting(&self, last: EventBatchId, now: Timestamp) -> Result<bool, StoreError> {
        self.read(move |connection, shared| {
            let sql = "SELECT min(id) FROM event_waiting";
            let oldest = query_one(connection, sql, (), |row| row.get::<_, Option<u64>>(0))?.flatten();
            let is_claimed = shared.claims.lock().events.is_any_held(last.0, now);
            Ok(is_claimed || oldest.is_some_and(|oldest| oldest <= last.0))
        })
        .await
    }
}

fn read_erasure(row: &Row<'_>) -> Result<Erasure, StoreError> {
    type Columns = (u64, Option<String>, i64, u64, u64, u64);
    let (number, person, asked_at, last_event, events, notifications): Columns = row.try_into().map_err(store_error)?;
    let number = SubscriberNumber(number);
    let person = person.map(|stored| serde_json::from_str::<StoredPerson>(&stored)).transpose();
    let person = person.map_err(|_| StoreError::Damaged("an erasure".to_owned()))?;
    Ok(Erasure {
        person: person.map(|StoredPerson(id, names, subscriptions)| ErasedPerson { number, id, names, subscriptions }),
        number,
        asked_at: Timestamp(asked_at),
        last_event: EventBatchId(last_event),
        events: EventBatchId(events),
        notifications: NotificationBatchId(notifications),
    })
}

/// A body after its length.
fn body_at(row: &Row<'_>, column: usize) -> Result<Option<bytes::Bytes>, StoreError> {
    let Some(bytes) = row.get::<_, Option<i64>>(column).map_err(store_error)? else { return Ok(None) };
    let body = row.get_ref(column + 1).and_then(|body| Ok(body.as_blob()?)).map_err(store_error)?;
    unpack_body(body, bytes).map(Some)
}

/// Examines notification batches after one. Returns those with data of the person, at most as many as a commit
/// rewrites, the last one examined, and whether there are no more.
fn examine(
    connection: &Connection,
    person: &ErasedPerson,
    after: NotificationBatchId,
) -> Result<(Vec<Concerned>, NotificationBatchId, bool), StoreError> {
    let subscriptions = person.subscription_set();
    let sql = "SELECT id, bytes, body FROM notification_batches WHERE id > ?1 ORDER BY id LIMIT ?2";
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    let mut rows = statement.query((signed(after.0), EXAMINED_MAX)).map_err(store_error)?;
    let (mut found, mut reached, mut bytes, mut count) = (Vec::new(), after, 0, 0);
    while let Some(row) = rows.next().map_err(store_error)? {
        let id = NotificationBatchId(row.get(0).map_err(store_error)?);
        let body = body_at(row, 1)?.unwrap_or_default();
        (reached, bytes, count) = (id, bytes + body.len(), count + 1);
        // A damaged batch cannot be read by any other part either.
        if let Ok(mut notifications) = Notifications::unpack(&body) {
            let (is_erased, ordinals) = person.erase_captured(&subscriptions, &mut notifications);
            let has_texts = !ordinals.is_empty() || has_texts(connection, person, id)?;
            if is_erased || has_texts {
                let body = is_erased.then(|| pack_body(notifications.pack().into()));
                found.push(Concerned { id, ordinals, body, has_texts });
            }
        }
        if found.len() == BATCHES_MAX || bytes > EXAMINED_BYTES_MAX {
            return Ok((found, reached, false));
        }
    }
    Ok((found, reached, count < EXAMINED_MAX))
}

fn chunks_of(batch: NotificationBatchId) -> (u64, u64) {
    (batch.0 << CHUNK_BITS, (batch.0 + 1) << CHUNK_BITS)
}

/// Whether receipts or edits of a batch can have a name of the person.
fn has_texts(connection: &Connection, person: &ErasedPerson, batch: NotificationBatchId) -> Result<bool, StoreError> {
    let sql = "SELECT bytes, body FROM receipts WHERE id > ?1 AND id < ?2";
    let chunks = collect(connection, sql, chunks_of(batch), |row| body_at(row, 0))?;
    if chunks.into_iter().flatten().any(|chunk| person.names.may_be_in(&chunk)) {
        return Ok(true);
    }
    let sql = "SELECT edit FROM work WHERE batch = ?1 AND edit IS NOT NULL
        UNION ALL SELECT edit FROM suspensions WHERE batch = ?1 AND edit IS NOT NULL";
    let edits = collect(connection, sql, [batch.0], |row| row.get::<_, String>(0).map_err(store_error))?;
    Ok(edits.iter().any(|edit| person.names.may_be_in(edit.as_bytes())))
}

/// Whether a worker has notifications of the person.
fn is_delivering(
    connection: &Connection,
    shared: &JournalContext,
    batch: &Concerned,
    now: Timestamp,
) -> Result<bool, StoreError> {
    if batch.ordinals.is_empty() {
        return Ok(false);
    }
    let sql = "SELECT id FROM work WHERE batch = ?1";
    let items = collect(connection, sql, [batch.id.0], |row| row.get::<_, u64>(0).map_err(store_error))?;
    let claims = shared.claims.lock();
    Ok(items.into_iter().any(|id| !claims.work.is_free(id, now)))
}

fn rewrite(connection: &Connection, person: &ErasedPerson, batch: &Concerned) -> Result<(), StoreError> {
    if let Some(body) = &batch.body {
        let sql = "UPDATE notification_batches SET bytes = ?2, body = ?3 WHERE id = ?1";
        execute(connection, sql, (batch.id.0, body.bytes, &body.stored[..]))?;
    }
    if !batch.has_texts {
        return Ok(());
    }
    let sql = "SELECT id, bytes, body FROM receipts WHERE id > ?1 AND id < ?2";
    let chunks = collect(connection, sql, chunks_of(batch.id), |row| {
        Ok((row.get::<_, u64>(0).map_err(store_error)?, body_at(row, 1)?.unwrap_or_default()))
    })?;
    for (id, body) in chunks {
        let Ok(mut attempts) = unpack_attempts(&body) else { continue };
        if person.erase_replies(&batch.ordinals, &mut attempts) {
            let body = pack_body(pack_attempts(&attempts).into());
            let sql = "UPDATE receipts SET bytes = ?2, body = ?3 WHERE id = ?1";
            execute(connection, sql, (id, body.bytes, &body.stored[..]))?;
        }
    }
    for table in ["work", "suspensions"] {
        erase_edits(connection, person, batch, table)?;
    }
    Ok(())
}

/// Erases contents that an operator put in place: those for the person alone as a whole, names in others.
fn erase_edits(
    connection: &Connection,
    person: &ErasedPerson,
    batch: &Concerned,
    table: &str,
) -> Result<(), StoreError> {
    let sql = format!("SELECT id, ordinals, edit FROM {table} WHERE batch = ?1 AND edit IS NOT NULL");
    let edited: Vec<(u64, Option<Vec<u8>>, String)> =
        collect(connection, &sql, [batch.id.0], |row| row.try_into().map_err(store_error))?;
    for (id, ordinals, edit) in edited {
        let ordinals = ordinals.map(|packed| unpack_ordinals(&packed)).transpose()?;
        let is_own = ordinals
            .is_some_and(|ordinals| ordinals.iter().all(|ordinal| batch.ordinals.binary_search(ordinal).is_ok()));
        let erased = if is_own { None } else { Some(person.names.erased_json(&edit)) };
        match erased {
            Some(None) => {}
            Some(Some(edit)) => {
                execute(connection, &format!("UPDATE {table} SET edit = ?2 WHERE id = ?1"), (id, edit))?;
            }
            None => {
                execute(connection, &format!("UPDATE {table} SET edit = NULL WHERE id = ?1"), [id])?;
            }
        }
    }
    Ok(())
}

/// A column of texts that can name a person. The tables are small, or the column is null in most rows.
struct TextColumn {
    table: &'static str,
    column: &'static str,
    is_json: bool,
}

const TEXTS: [TextColumn; 9] = [
    TextColumn { table: "event_failed", column: "reason", is_json: false },
    TextColumn { table: "suspensions", column: "reason", is_json: false },
    TextColumn { table: "firings", column: "reason", is_json: false },
    TextColumn { table: "resends", column: "request", is_json: true },
    TextColumn { table: "resends", column: "key", is_json: false },
    TextColumn { table: "broadcasts", column: "draft", is_json: true },
    TextColumn { table: "broadcasts", column: "reason", is_json: false },
    TextColumn { table: "broadcasts", column: "key", is_json: false },
    TextColumn { table: "delayed", column: "key", is_json: false },
];

fn erase_column(connection: &Connection, names: &PersonNames, text: &TextColumn) -> Result<(), StoreError> {
    let TextColumn { table, column, is_json } = text;
    let sql = format!("SELECT id, \"{column}\" FROM {table} WHERE \"{column}\" IS NOT NULL");
    let mut statement = connection.prepare_cached(&sql).map_err(store_error)?;
    let mut rows = statement.query(()).map_err(store_error)?;
    let mut erased = Vec::new();
    while let Some(row) = rows.next().map_err(store_error)? {
        let found = row.get_ref(1).and_then(|found| Ok(found.as_str()?)).map_err(store_error)?;
        if !names.may_be_in(found.as_bytes()) {
            continue;
        }
        let without = if *is_json { names.erased_json(found) } else { names.erased(found) };
        if let Some(without) = without {
            erased.push((row.get::<_, u64>(0).map_err(store_error)?, without));
        }
    }
    drop(rows);
    for (id, without) in erased {
        // A key is unique.
        let without = if *column == "key" && *table != "delayed" { format!("{without} {table} {id}") } else { without };
        execute(connection, &format!("UPDATE {table} SET \"{column}\" = ?2 WHERE id = ?1"), (id, without))?;
    }
    Ok(())
}
