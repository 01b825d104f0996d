//! Overwrites free pages: a table takes them all, filled with zeros, and is emptied again.

use rusqlite::Connection;

use crate::{error::StoreError, sqlite::writer::store_error};

/// Pages of a commit.
pub(crate) const PAGES_PER_COMMIT: u64 = 256;
/// Overflow pages of a row.
const PAGES_PER_ROW: u64 = 32;
/// Rows released per commit.
const ROWS_PER_COMMIT: usize = 64;

/// Number of free pages.
pub(super) fn count(connection: &Connection) -> Result<u64, StoreError> {
    connection.pragma_query_value(None, "freelist_count", |row| row.get(0)).map_err(store_error)
}

/// Takes some free pages. Returns whether there are more.
pub(super) fn fill(connection: &Connection) -> Result<bool, StoreError> {
    let page_bytes: u64 = connection.pragma_query_value(None, "page_size", |row| row.get(0)).map_err(store_error)?;
    // What SQLite keeps of a long row in the page of the table, if the rest fills its overflow pages. A part of an
    // overflow page that a row does not fill would keep its former content.
    let local = (page_bytes - 12) * 32 / 255 - 23 + 16;
    let mut insert = connection.prepare_cached("INSERT INTO fill (body) VALUES (zeroblob(?1))").map_err(store_error)?;
    let mut taken = 0;
    while taken < PAGES_PER_COMMIT {
        let free = count(connection)?;
        if free == 0 {
            return Ok(false);
        }
        let pages = free.min(PAGES_PER_ROW);
        insert.execute([local + pages * (page_bytes - 4)]).map_err(store_error)?;
        taken += pages;
    }
    Ok(true)
}

/// Frees some of the filled pages. Returns whether there are more.
pub(super) fn release(connection: &Connection) -> Result<bool, StoreError> {
    let sql = "DELETE FROM fill WHERE number IN (SELECT number FROM fill LIMIT ?1)";
    let released = connection
        .prepare_cached(sql)
        .and_then(|mut statement| statement.execute([ROWS_PER_COMMIT]))
        .map_err(store_error)?;
    Ok(released == ROWS_PER_COMMIT)
}
