//! API keys, stored as hashes.

use rusqlite::Connection;
use tocsin_model::time::Timestamp;

use super::{images, transaction::RecordsTransaction};
use crate::{
    audit,
    error::StoreError,
    records::{ApiKey, ApiKeyUse, REMOVED_API_KEYS_MAX},
    sqlite::statements::{execute, json, json_at, query_all, signed},
};

pub(super) fn put(tx: &mut RecordsTransaction<'_>, key: &ApiKey) -> Result<(), StoreError> {
    let added = execute(
        tx.connection,
        "INSERT INTO api_keys (id, hash, description, scopes, created_at, expires_at, resources)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO NOTHING",
        (
            &key.id,
            &key.hash,
            &key.description,
            json(&key.scopes),
            key.created_at.0,
            key.expires_at.map(|time| time.0),
            json(&key.resources),
        ),
    )?;
    if added == 0 {
        return Err(StoreError::Taken(format!("API key `{}`", key.id)));
    }
    images::api_key(None, Some(key));
    tx.api_keys_changed()
}

pub(super) fn all(connection: &Connection) -> Result<Vec<ApiKey>, StoreError> {
    query_all(
        connection,
        "SELECT id, hash, description, scopes, created_at, expires_at, resources FROM api_keys ORDER BY created_at, id",
        (),
        |row| {
            Ok(ApiKey {
                id: row.get(0)?,
                hash: row.get(1)?,
                description: row.get(2)?,
                scopes: json_at(row, 3)?,
                resources: json_at(row, 6)?,
                created_at: Timestamp(row.get(4)?),
                expires_at: row.get::<_, Option<i64>>(5)?.map(Timestamp),
            })
        },
    )
}

/// Descriptions of removed keys, by id.
pub(super) fn removed(connection: &Connection) -> Result<Vec<(String, String)>, StoreError> {
    let sql = "SELECT id, description FROM removed_api_keys ORDER BY id";
    query_all(connection, sql, (), |row| Ok((row.get(0)?, row.get(1)?)))
}

pub(super) fn remove(tx: &mut RecordsTransaction<'_>, id: &str) -> Result<(), StoreError> {
    if audit::is_recording() {
        images::api_key(all(tx.connection)?.iter().find(|key| key.id == id), None);
    }
    tx.api_keys_changed()?;
    execute(
        tx.connection,
        "INSERT INTO removed_api_keys (id, description, sequence) SELECT id, description, ?2 FROM api_keys WHERE id = ?1
            ON CONFLICT (id) DO UPDATE SET description = excluded.description, sequence = excluded.sequence",
        (id, signed(tx.change)),
    )?;
    execute(tx.connection, "DELETE FROM api_key_uses WHERE id = ?1", [id])?;
    if execute(tx.connection, "DELETE FROM api_keys WHERE id = ?1", [id])? == 0 {
        return Err(StoreError::Missing(format!("API key `{id}`")));
    }
    execute(
        tx.connection,
        "DELETE FROM removed_api_keys WHERE id NOT IN
            (SELECT id FROM removed_api_keys ORDER BY sequence DESC, id LIMIT ?1)",
        [signed(REMOVED_API_KEYS_MAX as u64)],
    )
    .map(drop)
}

pub(super) fn put_uses(tx: &mut RecordsTransaction<'_>, uses: &[ApiKeyUse]) -> Result<(), StoreError> {
    for one in uses {
        execute(
            tx.connection,
            "INSERT INTO api_key_uses (id, used_at, used_from) SELECT id, ?2, ?3 FROM api_keys WHERE id = ?1
                ON CONFLICT (id) DO UPDATE SET used_at = excluded.used_at, used_from = excluded.used_from",
            (&one.id, one.at.0, &one.from),
        )?;
    }
    Ok(())
}

pub(super) fn uses(connection: &Connection) -> Result<Vec<ApiKeyUse>, StoreError> {
    let sql = "SELECT id, used_at, used_from FROM api_key_uses ORDER BY id";
    query_all(connection, sql, (), |row| {
        Ok(ApiKeyUse { id: row.get(0)?, at: Timestamp(row.get(1)?), from: row.get(2)? })
    })
}

pub(super) fn set_expiry(
    tx: &mut RecordsTransaction<'_>,
    id: &str,
    expires_at: Option<Timestamp>,
) -> Result<(), StoreError> {
    let before = all(tx.connection)?.into_iter().find(|key| key.id == id);
    let before = before.ok_or_else(|| StoreError::Missing(format!("API key `{id}`")))?;
    images::api_key(Some(&before), Some(&ApiKey { expires_at, ..before.clone() }));
    let sql = "UPDATE api_keys SET expires_at = ?2 WHERE id = ?1";
    execute(tx.connection, sql, (id, expires_at.map(|time| time.0)))?;
    tx.api_keys_changed()
}
