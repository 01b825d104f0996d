//! Paused and disabled components. They are rare, so names are stored as text.

use rusqlite::{Connection, Row};
use tocsin_model::time::Timestamp;

use super::views::collect;
use crate::{
    error::StoreError,
    journal::{Component, Switch, SwitchState},
    sqlite::writer::store_error,
};

/// Sets the switch of a component.
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

/// Removes a switch. Returns whether there was one.
pub fn remove(connection: &Connection, component: &Component) -> Result<bool, StoreError> {
    connection
        .prepare_cached("DELETE FROM switches WHERE component = ?1")
        .and_then(|mut statement| statement.execute([component.to_string()]))
        .map(|count| count > 0)
        .map_err(store_error)
}

/// All switches, by the text of their component.
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
