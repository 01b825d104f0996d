//! Saved capacity profiles.

use rusqlite::{Connection, Row};
use serde_json::json;
use tocsin_model::{id::Name, time::Timestamp};

use super::transaction::RecordsTransaction;
use crate::{
    audit::{Image, changed},
    error::StoreError,
    records::{CAPACITY_PROFILES_MAX, CapacityProfile, Precondition, profile_noun},
    sqlite::statements::{execute, name_at, query_all, query_one, signed},
};

const COLUMNS: &str = "name, text, author, created_at, updated_at, revision";

fn profile_of(row: &Row<'_>) -> rusqlite::Result<CapacityProfile> {
    Ok(CapacityProfile {
        name: name_at(row, 0)?,
        text: row.get(1)?,
        author: row.get(2)?,
        created_at: Timestamp(row.get(3)?),
        updated_at: Timestamp(row.get(4)?),
        revision: row.get::<_, i64>(5)?.unsigned_abs(),
    })
}

pub(super) fn all(connection: &Connection) -> Result<Vec<CapacityProfile>, StoreError> {
    query_all(connection, &format!("SELECT {COLUMNS} FROM capacity_profiles ORDER BY name"), (), profile_of)
}

pub(super) fn find(connection: &Connection, name: &Name) -> Result<Option<CapacityProfile>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM capacity_profiles WHERE name = ?1");
    query_one(connection, &sql, [name.as_str()], profile_of)
}

/// Records the change for the audit log.
fn image(name: &Name, before: Option<&CapacityProfile>, after: Option<&CapacityProfile>) {
    let shown = |profile: &CapacityProfile| json!({"profile": profile.text});
    changed(|| Image::of("capacity_profile", name, before.map(shown), after.map(shown)));
}

pub(super) fn put(
    tx: &mut RecordsTransaction<'_>,
    new: CapacityProfile,
    expect: Precondition,
) -> Result<CapacityProfile, StoreError> {
    let old = find(tx.connection, &new.name)?;
    expect.check(old.as_ref().map(|old| old.revision), || profile_noun(&new.name))?;
    let stored = match &old {
        Some(old) if old.text == new.text => return Ok(old.clone()),
        Some(old) => CapacityProfile { created_at: old.created_at, revision: old.revision + 1, ..new },
        None => new,
    };
    if old.is_none() {
        let sql = "SELECT count(*) FROM capacity_profiles";
        let count: Option<i64> = query_one(tx.connection, sql, (), |row| row.get(0))?;
        if count.unwrap_or_default().unsigned_abs() >= CAPACITY_PROFILES_MAX as u64 {
            return Err(StoreError::Full(format!("there are {CAPACITY_PROFILES_MAX} capacity profiles")));
        }
    }
    image(&stored.name, old.as_ref(), Some(&stored));
    execute(
        tx.connection,
        "INSERT INTO capacity_profiles (name, text, author, created_at, updated_at, revision)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (name) DO UPDATE SET text = excluded.text,
            author = excluded.author, updated_at = excluded.updated_at, revision = excluded.revision",
        (
            stored.name.as_str(),
            &stored.text,
            &stored.author,
            stored.created_at.0,
            stored.updated_at.0,
            signed(stored.revision),
        ),
    )?;
    Ok(stored)
}

pub(super) fn remove(tx: &mut RecordsTransaction<'_>, name: &Name, revision: Option<u64>) -> Result<(), StoreError> {
    let old = find(tx.connection, name)?;
    let expect = revision.map_or(Precondition::Present, Precondition::Revision);
    expect.check(old.as_ref().map(|old| old.revision), || profile_noun(name))?;
    image(name, old.as_ref(), None);
    execute(tx.connection, "DELETE FROM capacity_profiles WHERE name = ?1", [name.as_str()]).map(drop)
}
