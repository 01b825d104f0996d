//! What an operator has switched off. Rare, so it stands as text.

use rusqlite::{Connection, Row};
use tocsin_model::time::Timestamp;

use super::reading::collect;
use crate::{
    error::StoreError,
    journal::{Component, Switch, SwitchState},
    sqlite::writer::store_error,
};

/// Switches something off, or otherwise.
pub fn set(connection: &Connection, switch: &Switch) -> Result<(), StoreError> {
    let Switch { component, state, by, reason, since } = switch;
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO switches (component, state, \"by\", reason, since) VALUES (?1, ?2, ?3, ?4, ?5)",
        )
        .and_then(|mut statement| statement.execute((component.to_string(), state.word(), by, reason, since.0)))
        .map(|_| ())
        .map_err(store_error)
}

/// Switches something on. Gives whether it was off.
pub fn remove(connection: &Connection, component: &Component) -> Result<bool, StoreError> {
    connection
        .prepare_cached("DELETE FROM switches WHERE component = ?1")
        .and_then(|mut statement| statement.execute([component.to_string()]))
        .map(|count| count > 0)
        .map_err(store_error)
}

/// All of them, by their text.
pub fn list(connection: &Connection) -> Result<Vec<Switch>, StoreError> {
    let sql = "SELECT component, state, \"by\", reason, since FROM switches ORDER BY component";
    collect(connection, sql, (), read)
}

fn read(row: &Row<'_>) -> Result<Switch, StoreError> {
    type Columns = (String, String, String, String, i64);
    let (component, state, by, reason, since): Columns = row.try_into().map_err(store_error)?;
    let damaged = |what: &str| StoreError::Damaged(format!("the switch `{what}`"));
    let state = [SwitchState::Paused, SwitchState::Disabled].into_iter().find(|found| found.word() == state);
    Ok(Switch {
        state: state.ok_or_else(|| damaged(&component))?,
        component: component.parse().map_err(|_| damaged(&component))?,
        by,
        reason,
        since: Timestamp(since),
    })
}
