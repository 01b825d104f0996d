//! The change log of entries.

use rusqlite::Connection;

use crate::{
    entries::{ENTRY_CHANGES_KEPT, EntryChange},
    error::StoreError,
    sqlite::statements::{execute, json, signed},
};

/// Number of logged changes removed per trim.
const TRIMMED_CHANGES: u64 = 1_024;

/// Appends a commit's changes to the entry change log by one statement. Old changes are trimmed in steps.
pub(super) fn append_change_log(connection: &Connection, changes: &[EntryChange]) -> Result<(), StoreError> {
    if changes.is_empty() {
        return Ok(());
    }
    let numbers: Vec<i64> = changes.iter().map(|change| change.number.0).collect();
    let sql = "INSERT INTO entry_changes (entry) SELECT value FROM json_each(?1) ORDER BY key";
    execute(connection, sql, [json(&numbers)])?;
    let place = connection.last_insert_rowid().unsigned_abs();
    let before = place.saturating_sub(numbers.len() as u64);
    if place / TRIMMED_CHANGES > before / TRIMMED_CHANGES && place > ENTRY_CHANGES_KEPT {
        execute(connection, "DELETE FROM entry_changes WHERE place <= ?1", [signed(place - ENTRY_CHANGES_KEPT)])?;
    }
    Ok(())
}

/// Skips a sequence, so that no reader can continue from the last change.
pub(crate) fn start_new_log(connection: &Connection) -> Result<(), StoreError> {
    let sql = "INSERT INTO entry_changes (place, entry) SELECT coalesce(max(place), 0) + 2, 0 FROM entry_changes";
    execute(connection, sql, ())?;
    execute(connection, "DELETE FROM entry_changes WHERE place < ?1", [connection.last_insert_rowid()]).map(|_| ())
}
