//! Devices that have replicas: their tokens, the generations of their keys, and their sessions.

use rusqlite::{Connection, Row};
use serde_json::json;
use tocsin_model::{
    id::{Name, SubscriberNumber},
    time::Timestamp,
};

use super::row_transaction::{RowTransaction, packed, unpacked};
use crate::{
    audit::{self, Image},
    collections::{
        DEVICES_MAX, DeviceNumber, DeviceState, GENERATIONS_KEPT, KeyNumber, PastSession, ReplicaDevice, SessionCounts,
    },
    error::StoreError,
    sqlite::statements::{self, execute, query_all, query_one},
};

const DEVICE: &str = "number, id, application, subscriber, subscriber_number, name, collections, may_write, hash, created_at, \
                      expires_at, wipe_at, wiped_at";

pub(super) fn put(connection: &Connection, device: &ReplicaDevice) -> Result<DeviceNumber, StoreError> {
    let count: usize = query_one(connection, "SELECT count(*) FROM devices", (), |row| row.get(0))?.unwrap_or(0);
    if count >= DEVICES_MAX {
        return Err(StoreError::Full(format!("{DEVICES_MAX} devices keep replicas already; remove some")));
    }
    let sql = "INSERT INTO devices (id, application, subscriber, subscriber_number, name, collections, may_write, hash, \
               created_at, expires_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
    let collections = device.collections.as_ref().map(|names| serde_json::to_string(names).expect("names are JSON"));
    let fields = (
        &device.id,
        device.application.as_str(),
        device.subscriber.as_str(),
        device.subscriber_number.0,
        &device.name,
        collections,
        device.may_write,
        &device.hash[..],
        device.created_at.0,
        device.expires_at.map(|at| at.0),
    );
    execute(connection, sql, fields)?;
    audit::changed(|| Image::of("sync_device", &device.id, None, Some(image(device))));
    Ok(u32::try_from(connection.last_insert_rowid()).unwrap_or(u32::MAX))
}

pub(super) fn list(connection: &Connection) -> Result<Vec<ReplicaDevice>, StoreError> {
    query_all(connection, &format!("SELECT {DEVICE} FROM devices ORDER BY number"), (), read)
}

fn image(device: &ReplicaDevice) -> serde_json::Value {
    json!({
        "application": device.application.as_str(),
        "subscriber": device.subscriber.as_str(),
        "name": device.name,
        "may_write": device.may_write,
        "expires_at": device.expires_at.map(|at| at.to_string()),
    })
}

fn find(connection: &Connection, number: DeviceNumber) -> Result<Option<ReplicaDevice>, StoreError> {
    query_one(connection, &format!("SELECT {DEVICE} FROM devices WHERE number = ?1"), (number,), read)
}

/// Removes a device and its state; what it wrote stays.
pub(super) fn remove(connection: &Connection, number: DeviceNumber) -> Result<(), StoreError> {
    if audit::is_recording()
        && let Some(device) = find(connection, number)?
    {
        audit::changed(|| Image::of("sync_device", &device.id, Some(image(&device)), None));
    }
    for table in ["generations", "sessions", "batches"] {
        execute(connection, &format!("DELETE FROM {table} WHERE device = ?1"), (number,))?;
    }
    match execute(connection, "DELETE FROM devices WHERE number = ?1", (number,))? {
        0 => Err(StoreError::Missing(format!("the device number {number}"))),
        _ => Ok(()),
    }
}

pub(super) fn set_wipe(
    connection: &Connection,
    number: DeviceNumber,
    asked: Option<Timestamp>,
    done: Option<Timestamp>,
) -> Result<(), StoreError> {
    if audit::is_recording()
        && let Some(device) = find(connection, number)?
    {
        let image = json!({ "wipe_at": asked.map(|at| at.to_string()) });
        audit::changed(|| Image::of("sync_device", &device.id, None, Some(image)));
    }
    let sql = "UPDATE devices SET wipe_at = ?2, wiped_at = ?3 WHERE number = ?1";
    execute(connection, sql, (number, asked.map(|at| at.0), done.map(|at| at.0))).map(drop)
}

pub(super) fn state(connection: &Connection, number: DeviceNumber) -> Result<DeviceState, StoreError> {
    let uploaded =
        query_one(connection, "SELECT uploaded FROM devices WHERE number = ?1", (number,), |row| row.get(0))?;
    let uploaded = uploaded.ok_or_else(|| StoreError::Missing(format!("the device number {number}")))?;
    let sql = "SELECT generation, keys FROM generations WHERE device = ?1 ORDER BY generation DESC LIMIT 1";
    let newest =
        query_one(connection, sql, (number,), |row| Ok((row.get::<_, u32>(0)?, unpacked(row.get_ref(1)?.as_blob()?))))?;
    let (generation, keys) = newest.unwrap_or_default();
    Ok(DeviceState { generation, keys, uploaded })
}

/// The remembered edit batches of a device, in order of arrival, each with its last edit.
pub(super) fn batches(connection: &Connection, number: DeviceNumber) -> Result<Vec<(String, u64)>, StoreError> {
    let sql = "SELECT batch, upto FROM batches WHERE device = ?1 ORDER BY place";
    query_all(connection, sql, (number,), |row| Ok((row.get(0)?, row.get(1)?)))
}

/// The keys of a generation, if they are still known.
pub(super) fn keys_of(
    connection: &Connection,
    number: DeviceNumber,
    generation: u32,
) -> Result<Option<Vec<KeyNumber>>, StoreError> {
    let sql = "SELECT keys FROM generations WHERE device = ?1 AND generation = ?2";
    query_one(connection, sql, (number, generation), |row| Ok(unpacked(row.get_ref(0)?.as_blob()?)))
}

/// Stores a new generation of keys of a device, unless the keys are the same. Returns its number.
///
/// The generation gets a stamp, so that a cursor with a generation that a restored server never had is recognized by
/// its stamp.
pub(super) fn put_keys(
    transaction: &mut RowTransaction<'_>,
    number: DeviceNumber,
    keys: &[KeyNumber],
) -> Result<u32, StoreError> {
    let connection = transaction.connection;
    let state = state(connection, number)?;
    if state.generation > 0 && state.keys == keys {
        return Ok(state.generation);
    }
    transaction.stamp();
    let generation = state.generation + 1;
    execute(connection, "INSERT INTO generations VALUES (?1, ?2, ?3)", (number, generation, packed(keys)))?;
    let sql = "DELETE FROM generations WHERE device = ?1 AND generation <= ?2";
    execute(connection, sql, (number, generation.saturating_sub(GENERATIONS_KEPT)))?;
    Ok(generation)
}

pub(super) fn put_session(connection: &Connection, session: &PastSession) -> Result<(), StoreError> {
    let sql = "INSERT INTO sessions (device, began_at, ended_at, outcome, tally) VALUES (?1, ?2, ?3, ?4, ?5)";
    let tally = serde_json::to_string(&session.tally).expect("numbers are JSON");
    let fields = (session.device, session.began_at.0, session.ended_at.0, &session.outcome, tally);
    execute(connection, sql, fields).map(drop)
}

/// The sessions of one or all devices, newest first.
pub(super) fn sessions(
    connection: &Connection,
    device: Option<DeviceNumber>,
    before: Option<u64>,
    limit: usize,
) -> Result<Vec<(u64, PastSession)>, StoreError> {
    let sql = "SELECT number, device, began_at, ended_at, outcome, tally FROM sessions \
               WHERE (?1 IS NULL OR device = ?1) AND number < ?2 ORDER BY number DESC LIMIT ?3";
    let before = before.map_or(i64::MAX, u64::cast_signed);
    query_all(connection, sql, (device, before, limit), |row| {
        let tally: SessionCounts = serde_json::from_str(row.get_ref(5)?.as_str()?).unwrap_or_default();
        let session = PastSession {
            device: row.get(1)?,
            began_at: Timestamp(row.get(2)?),
            ended_at: Timestamp(row.get(3)?),
            outcome: row.get::<_, String>(4)?.into(),
            tally,
        };
        Ok((row.get(0)?, session))
    })
}

fn read(row: &Row<'_>) -> rusqlite::Result<ReplicaDevice> {
    let name =
        |text: String, column| text.parse::<Name>().map_err(|error| statements::conversion_failed(column, error));
    let collections: Option<String> = row.get(6)?;
    let subscriber: String = row.get(3)?;
    let time = |column| row.get::<_, Option<i64>>(column).map(|at| at.map(Timestamp));
    Ok(ReplicaDevice {
        number: row.get(0)?,
        id: row.get::<_, String>(1)?.into(),
        application: name(row.get(2)?, 2)?,
        subscriber: subscriber.parse().map_err(|error| statements::conversion_failed(3, error))?,
        subscriber_number: SubscriberNumber(row.get(4)?),
        name: row.get(5)?,
        // Without a list the device may use all collections, so an unreadable list is an error.
        collections: collections
            .map(|text| serde_json::from_str(&text))
            .transpose()
            .map_err(|error| statements::conversion_failed(6, error))?,
        may_write: row.get(7)?,
        hash: row.get(8)?,
        created_at: Timestamp(row.get(9)?),
        expires_at: time(10)?,
        wipe_at: time(11)?,
        wiped_at: time(12)?,
    })
}
