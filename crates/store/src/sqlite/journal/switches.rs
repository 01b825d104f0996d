//! Paused and disabled components. They are rare, so names are stored as text.

use rusqlite::{Connection, Row};
use serde_json::json;
use tocsin_model::time::Timestamp;

use super::views::collect;
use crate::{
    audit::{self, Image},
    error::StoreError,
    journal::{Component, Switch, SwitchState},
    sqlite::writer::store_error,
};

/// Sets the switch of a component.
pub fn set(connection: &Connection, switch: &Switch) -> Result<(), StoreError> {
    let Switch { component, state, by, reason, since } = switch;
    if audit::is_recording() {
        let before = find(connection, component)?;
        audit::changed(|| Image::of("switch", component, before.as_ref().map(image), Some(image(switch))));
    }
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
    if audit::is_recording()
        && let Some(before) = find(connection, component)?
    {
        audit::changed(|| Image::of("switch", component, Some(image(&before)), None));
    }
    connection
        .prepare_cached("DELETE FROM switches WHERE component = ?1")
        .and_then(|mut statement| statement.execute([component.to_string()]))
        .map(|count| count > 0)
        .map_err(store_error)
}

fn find(connection: &Connection, component: &Component) -> Result<Option<Switch>, StoreError> {
    Ok(list(connection)?.into_iter().find(|found| found.component == *component))
}

fn image(switch: &Switch) -> serde_json::Value {
    json!({ "state": switch.state.word(), "reason": switch.reason })
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
