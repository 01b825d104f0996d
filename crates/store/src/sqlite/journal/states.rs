//! Pages of rule state: opaque bytes, each page replaced as a whole.

use rusqlite::Connection;
use tocsin_model::{id::Name, state::StatePage};

use super::views::collect;
use crate::{error::StoreError, sqlite::writer::store_error};

/// Replaces pages; an empty page deletes the stored one.
pub fn write(connection: &Connection, pages: &[(Name, StatePage)]) -> Result<(), StoreError> {
    let put = "INSERT INTO states (application, name, number, body) VALUES (?1, ?2, ?3, ?4)
        ON CONFLICT (application, name, number) DO UPDATE SET body = excluded.body";
    let remove = "DELETE FROM states WHERE application = ?1 AND name = ?2 AND number = ?3";
    for (application, StatePage { name, number, body }) in pages {
        let number = *number as i64;
        let done = match body.is_empty() {
            true => {
                connection.prepare_cached(remove).and_then(|mut sql| sql.execute((application.as_str(), name, number)))
            }
            false => connection
                .prepare_cached(put)
                .and_then(|mut sql| sql.execute((application.as_str(), name, number, &body[..]))),
        };
        done.map_err(store_error)?;
    }
    Ok(())
}

/// Pages of an application after one of them, by name and number.
pub fn list(
    connection: &Connection,
    application: &Name,
    after: Option<(Box<str>, u64)>,
    limit: usize,
) -> Result<Vec<StatePage>, StoreError> {
    let (name, number) = after.map_or((String::new(), i64::MIN), |(name, number)| (name.into(), number as i64));
    let sql = "SELECT name, number, body FROM states
        WHERE application = ?1 AND (name, number) > (?2, ?3) ORDER BY name, number LIMIT ?4";
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    collect(connection, sql, (application.as_str(), name, number, limit), |row| {
        let (name, number, body): (String, i64, Vec<u8>) = row.try_into().map_err(store_error)?;
        Ok(StatePage { name: name.into(), number: number as u64, body: body.into() })
    })
}
