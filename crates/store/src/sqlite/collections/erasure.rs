//! Erasure of a person: its rows, its partition keys, and what names it in the rows of others.

use rusqlite::Connection;
use tocsin_model::{collection::Stamp, id::SubscriberNumber, time::Timestamp};

use super::{
    SqliteCollections,
    row_transaction::{ROW, RowTransaction, read_row},
};
use crate::{
    collections::{CollectionNumber, KeyNumber, RowWrite, StoredRow},
    error::StoreError,
    journal::{ERASED, PersonNames},
    sqlite::statements::{execute, query_all, query_one},
};

/// Rows examined per read.
const EXAMINED_MAX: usize = 1_000;
/// Rows changed per commit.
const CHANGED_MAX: usize = 200;

impl SqliteCollections {
    /// Erases a person. Rows of its own partitions are deleted; a row that others can see loses the names, as a change
    /// that their devices receive. Conflicts and events that name the person are deleted. Its devices keep no identity,
    /// only the order to drop their data. Works in small commits and can be repeated.
    ///
    /// # Errors
    /// `Unavailable` while a backup reads the file; otherwise as [`SqliteCollections::write`].
    pub async fn erase(&self, person: SubscriberNumber, names: &PersonNames, now: Timestamp) -> Result<(), StoreError> {
        self.commit(now, move |tx| erase_devices(tx, person)).await?;
        let of = names.clone();
        let keys = self.database.read(move |connection| keys_naming(connection, &of)).await?;
        let mut after = 0;
        loop {
            let (of, held) = (names.clone(), keys.clone());
            let find = move |connection: &Connection| rows_of(connection, &of, &held, after);
            let (found, reached) = self.database.read(find).await?;
            for some in found.chunks(CHANGED_MAX) {
                let (of, held, some) = (names.clone(), keys.clone(), some.to_vec());
                self.commit(now, move |tx| some.into_iter().try_for_each(|row| erase_row(tx, &of, &held, row))).await?;
            }
            match reached {
                Some(last) => after = last,
                None => break,
            }
        }
        let of = names.clone();
        self.commit(now, move |tx| {
            erase_history(tx, &of)?;
            for key in &keys {
                // The number stays in use, so that no other key gets it.
                execute(
                    tx.connection,
                    "UPDATE keys SET text = ?2 WHERE number = ?1",
                    (key, format!("{ERASED} {key}")),
                )?;
            }
            Ok(())
        })
        .await?;
        self.database.truncate_log().await
    }

    /// Rows that a person can see by its id, or that name it: application, collection and body.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn rows_naming(&self, names: &PersonNames) -> Result<Vec<(String, String, String)>, StoreError> {
        let names = names.clone();
        self.database
            .read(move |connection| {
                let keys = keys_naming(connection, &names)?;
                let (mut after, mut all) = (0, Vec::new());
                loop {
                    let (found, reached) = rows_of(connection, &names, &keys, after)?;
                    for row in found {
                        let sql = "SELECT application, name FROM collections WHERE number = ?1";
                        let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
                        let of: Option<(String, String)> = query_one(connection, sql, (row.collection,), read)?;
                        if let (Some((application, collection)), Some(body)) = (of, row.body) {
                            all.push((application, collection, body.into()));
                        }
                    }
                    match reached {
                        Some(last) => after = last,
                        None => return Ok(all),
                    }
                }
            })
            .await
    }
}

/// Partition keys with a value that names a person.
fn keys_naming(connection: &Connection, names: &PersonNames) -> Result<Vec<KeyNumber>, StoreError> {
    let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, KeyNumber>(0)?, row.get::<_, String>(1)?));
    let all = query_all(connection, "SELECT number, text FROM keys ORDER BY number", (), read)?;
    let is_named = |text: &str| {
        let key = serde_json::from_str::<(String, Vec<(String, String)>, Option<String>)>(text);
        key.is_ok_and(|(_, pairs, _)| pairs.iter().any(|(_, value)| names.is_in(value)))
    };
    Ok(all.into_iter().filter(|(_, text)| is_named(text)).map(|(number, _)| number).collect())
}

/// Rows after a number with one of the keys or a name of the person. Also the last number examined, if there may be
/// more.
fn rows_of(
    connection: &Connection,
    names: &PersonNames,
    keys: &[KeyNumber],
    after: i64,
) -> Result<(Vec<StoredRow>, Option<i64>), StoreError> {
    let sql = format!("SELECT {ROW} FROM rows WHERE number > ?1 ORDER BY number LIMIT ?2");
    let rows = query_all(connection, &sql, (after, EXAMINED_MAX), read_row)?;
    let reached = rows.last().filter(|_| rows.len() == EXAMINED_MAX).map(|row| row.number);
    let mut found = Vec::new();
    for mut row in rows {
        if row.body.is_none() {
            // A removed row has no keys; those that it had count.
            let sql = "SELECT key FROM absent WHERE row = ?1 ORDER BY key";
            row.keys = query_all(connection, sql, [row.number], |row| row.get(0))?;
        }
        let body = row.body.as_deref().unwrap_or_default();
        let is_named = row.keys.iter().any(|key| keys.binary_search(key).is_ok())
            || (names.may_be_in(body.as_bytes()) && names.erased_json(body).is_some())
            || names.is_in(&row.id);
        if is_named {
            found.push(row);
        }
    }
    Ok((found, reached))
}

fn erase_devices(tx: &mut RowTransaction<'_>, person: SubscriberNumber) -> Result<(), StoreError> {
    let sql = "SELECT number FROM devices WHERE subscriber_number = ?1";
    let devices: Vec<u32> = query_all(tx.connection, sql, (person.0,), |row| row.get(0))?;
    for device in devices {
        for table in ["generations", "sessions", "batches"] {
            execute(tx.connection, &format!("DELETE FROM {table} WHERE device = ?1"), (device,))?;
        }
        let sql = "UPDATE devices SET subscriber = ?2, name = ?2, collections = NULL, may_write = 0,
                wipe_at = coalesce(wipe_at, ?3) WHERE number = ?1";
        execute(tx.connection, sql, (device, ERASED, tx.now.0))?;
    }
    Ok(())
}

fn erase_row(
    tx: &mut RowTransaction<'_>,
    names: &PersonNames,
    keys: &[KeyNumber],
    found: StoredRow,
) -> Result<(), StoreError> {
    let Some(row) = tx.row(found.collection, &found.id)? else { return Ok(()) };
    let is_own = |key: &KeyNumber| keys.binary_search(key).is_ok();
    let sql = "SELECT key FROM absent WHERE row = ?1";
    let lost: Vec<KeyNumber> = query_all(tx.connection, sql, [row.number], |row| row.get(0))?;
    let has_keys = !row.keys.is_empty() || !lost.is_empty();
    if has_keys && row.keys.iter().chain(&lost).all(is_own) {
        for sql in [
            "DELETE FROM rows WHERE number = ?1",
            "DELETE FROM present WHERE row = ?1",
            "DELETE FROM absent WHERE row = ?1",
            "DELETE FROM joins WHERE row = ?1",
        ] {
            execute(tx.connection, sql, [row.number])?;
        }
        for sql in [
            "DELETE FROM joins WHERE collection = ?1 AND id = ?2",
            "DELETE FROM conflicts WHERE collection = ?1 AND row = ?2",
        ] {
            execute(tx.connection, sql, (row.collection, &row.id))?;
        }
        match row.body {
            Some(_) => tx.rows = tx.rows.saturating_sub(1),
            None => tx.removed = tx.removed.saturating_sub(1),
        }
        // So that the counts are stored.
        tx.stamp();
        return Ok(());
    }
    let left: Vec<KeyNumber> = row.keys.iter().copied().filter(|key| !is_own(key)).collect();
    let body = match (&row.body, left.is_empty() && !row.keys.is_empty()) {
        // Only its removal is known to others.
        (_, true) => None,
        (Some(body), false) => Some(names.erased_json(body).map_or_else(|| body.clone(), Into::into)),
        (None, false) => None,
    };
    if body != row.body || left != row.keys {
        let sql = "SELECT collection, id FROM joins WHERE row = ?1";
        let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, CollectionNumber>(0)?, row.get::<_, String>(1)?.into()));
        let joins = if body.is_some() { query_all(tx.connection, sql, [row.number], read)? } else { Vec::new() };
        let new = RowWrite {
            collection: row.collection,
            id: row.id.clone(),
            columns: body.as_ref().and(row.columns.clone()),
            body,
            author: 0,
            seen: tx.newest(),
            keys: left,
            joins,
        };
        tx.write(Some(&row), &new)?;
    }
    // Devices with these keys have only the order to drop their data.
    for key in keys {
        execute(tx.connection, "DELETE FROM absent WHERE row = ?1 AND key = ?2", (row.number, key))?;
    }
    Ok(())
}

/// Removes conflicts and events that name a person.
fn erase_history(tx: &mut RowTransaction<'_>, names: &PersonNames) -> Result<(), StoreError> {
    let sql = "SELECT number, row, base, server, client FROM conflicts";
    let read = |row: &rusqlite::Row<'_>| {
        let texts = [row.get::<_, String>(1)?, row.get(2)?, row.get(3)?, row.get(4)?];
        let is_named = names.is_in(&texts[0]) || texts[1..].iter().any(|text| names.erased_json(text).is_some());
        Ok((row.get::<_, u64>(0)?, is_named))
    };
    for (number, is_named) in query_all(tx.connection, sql, (), read)? {
        if is_named {
            execute(tx.connection, "DELETE FROM conflicts WHERE number = ?1", [number])?;
        }
    }
    let sql = "SELECT application, stamp, event, stamp > coalesce((SELECT upto FROM raisers
            WHERE raisers.application = raised.application), 0) FROM raised";
    let read = |row: &rusqlite::Row<'_>| {
        let event: String = row.get(2)?;
        let is_named = names.may_be_in(event.as_bytes()) && names.erased_json(&event).is_some();
        Ok((row.get::<_, String>(0)?, Stamp(row.get(1)?), row.get::<_, bool>(3)?, is_named))
    };
    for (application, stamp, is_waiting, is_named) in query_all(tx.connection, sql, (), read)? {
        if is_named {
            execute(tx.connection, "DELETE FROM raised WHERE application = ?1 AND stamp = ?2", (application, stamp.0))?;
            tx.raised = tx.raised.saturating_sub(u64::from(is_waiting));
        }
    }
    Ok(())
}
