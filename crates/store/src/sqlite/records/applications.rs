//! Application definitions, by version.

use rusqlite::{Connection, Row};
use serde_json::json;
use tocsin_model::{id::Name, time::Timestamp};

use crate::{
    audit::{self, Image},
    error::StoreError,
    records::{ApplicationVersion, REMOVED_SUBSCRIPTIONS_MAX, no_application},
    sqlite::{
        records::{subscriptions, transaction::RecordsTransaction},
        statements::{execute, name_at, query_all, query_one},
    },
};

const COLUMNS: &str = "v.name, v.version, v.text, v.author, v.applied_at";

fn version_of(row: &Row<'_>) -> rusqlite::Result<ApplicationVersion> {
    Ok(ApplicationVersion {
        name: name_at(row, 0)?,
        version: row.get(1)?,
        text: row.get(2)?,
        author: row.get(3)?,
        applied_at: Timestamp(row.get(4)?),
    })
}

pub(super) fn put(
    tx: &mut RecordsTransaction<'_>,
    name: &Name,
    text: &str,
    author: &str,
    now: Timestamp,
) -> Result<u32, StoreError> {
    let sql = "SELECT coalesce(max(version), 0) + 1 FROM application_versions WHERE name = ?1";
    let version: u32 = query_one(tx.connection, sql, [name.as_str()], |row| row.get(0))?.unwrap_or(1);
    execute(
        tx.connection,
        "INSERT INTO application_versions (name, version, text, author, applied_at) VALUES (?1, ?2, ?3, ?4, ?5)",
        (name.as_str(), version, text, author, now.0),
    )?;
    execute(
        tx.connection,
        "INSERT INTO applications (name, version) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET version = ?2",
        (name.as_str(), version),
    )?;
    // The definition can contain passwords; its versions are kept.
    audit::changed(|| {
        let image = |version: u32| (version > 0).then(|| json!({ "version": version }));
        Image::of("application", name, image(version - 1), image(version))
    });
    tx.application_changed(name)?;
    Ok(version)
}

pub(super) fn all(connection: &Connection) -> Result<Vec<ApplicationVersion>, StoreError> {
    let sql =
        format!("SELECT {COLUMNS} FROM applications a JOIN application_versions v USING (name, version) ORDER BY name");
    query_all(connection, &sql, (), version_of)
}

pub(super) fn one(
    connection: &Connection,
    name: &Name,
    version: Option<u32>,
) -> Result<Option<ApplicationVersion>, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM application_versions v
            WHERE name = ?1 AND version = coalesce(?2, (SELECT version FROM applications WHERE name = ?1))"
    );
    query_one(connection, &sql, (name.as_str(), version), version_of)
}

pub(super) fn history(connection: &Connection, name: &Name) -> Result<Vec<ApplicationVersion>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM application_versions v WHERE name = ?1 ORDER BY version DESC");
    query_all(connection, &sql, [name.as_str()], version_of)
}

/// Removes data of an application, up to the limit of one transaction. Returns whether all was removed.
pub(super) fn remove_step(tx: &mut RecordsTransaction<'_>, name: &Name, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "SELECT 1 FROM applications WHERE name = ?1";
    query_one(tx.connection, sql, [name.as_str()], |_| Ok(()))?.ok_or_else(|| no_application(name))?;
    let removed = subscriptions::remove_some_of_application(tx, name, REMOVED_SUBSCRIPTIONS_MAX, now)?;
    if removed == REMOVED_SUBSCRIPTIONS_MAX {
        return Ok(false);
    }
    if audit::is_recording() {
        let version = one(tx.connection, name, None)?.map(|found| json!({ "version": found.version }));
        audit::changed(|| Image::of("application", name, version, None));
    }
    execute(tx.connection, "DELETE FROM applications WHERE name = ?1", [name.as_str()])?;
    tx.application_changed(name)?;
    Ok(true)
}
