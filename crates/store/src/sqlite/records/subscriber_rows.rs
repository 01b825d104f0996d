//! Rows of subscribers and their devices, as read.

use std::collections::BTreeMap;

use rusqlite::{Connection, Row};
use tocsin_model::{
    id::{Name, SubscriberId, SubscriberNumber},
    preferences::Preferences,
    subscriber::{Device, DeviceState, Profile, Subscriber},
    time::Timestamp,
};

use crate::{
    error::StoreError,
    sqlite::statements::{json_at, name_at, number_at, parsed_at, query_all, query_one, signed},
};

pub(super) const COLUMNS: &str = "s.number, s.id, s.enabled, s.locale, s.time_zone, s.attributes, s.created_at, s.updated_at, s.revision, s.preferences";

/// Reads everything but the devices.
pub(super) fn subscriber_of(row: &Row<'_>) -> rusqlite::Result<Subscriber> {
    Ok(Subscriber {
        number: SubscriberNumber(number_at(row, 0)?),
        id: parsed_at(row, 1)?,
        profile: profile_at(row, 2)?,
        devices: BTreeMap::new(),
        preferences: preferences_at(row, 9)?,
        created_at: Timestamp(row.get(6)?),
        updated_at: Timestamp(row.get(7)?),
        revision: number_at(row, 8)?,
    })
}

/// Reads a profile from four columns: enabled, locale, time zone, attributes.
pub(super) fn profile_at(row: &Row<'_>, first: usize) -> rusqlite::Result<Profile> {
    Ok(Profile {
        enabled: row.get(first)?,
        locale: row.get(first + 1)?,
        time_zone: row.get(first + 2)?,
        attributes: match row.get_ref(first + 3)? {
            rusqlite::types::ValueRef::Null => BTreeMap::new(),
            _ => json_at(row, first + 3)?,
        },
    })
}

/// Reads the preferences; null means none.
pub(super) fn preferences_at(row: &Row<'_>, at: usize) -> rusqlite::Result<Preferences> {
    match row.get_ref(at)? {
        rusqlite::types::ValueRef::Null => Ok(Preferences::default()),
        _ => json_at(row, at),
    }
}

/// FNV-1a. It only has to distribute well; addresses of matching rows are compared.
pub(super) fn spelling_hash(address: &str) -> i64 {
    let hash = address
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    hash.cast_signed()
}

/// Whether there is a subscriber with a number.
pub(super) fn exists(connection: &Connection, number: SubscriberNumber) -> Result<bool, StoreError> {
    let sql = "SELECT 1 FROM subscribers WHERE number = ?1";
    Ok(query_one(connection, sql, [signed(number.0)], |_| Ok(()))?.is_some())
}

/// Devices of a subscriber.
pub(super) fn devices(connection: &Connection, subscriber: u64) -> Result<BTreeMap<Name, Device>, StoreError> {
    Ok(query_all(connection, DEVICES, [signed(subscriber)], device_at)?.into_iter().collect())
}

/// Devices of the subscriber with the number `?1`.
const DEVICES: &str = "SELECT name, channel, address, state FROM devices WHERE subscriber = ?1";

/// Reads a row of [`DEVICES`].
fn device_at(row: &Row<'_>) -> rusqlite::Result<(Name, Device)> {
    Ok((name_at(row, 0)?, Device { channel: name_at(row, 1)?, address: row.get(2)?, state: state_at(row, 3)? }))
}

pub(super) fn state_at(row: &Row<'_>, column: usize) -> rusqlite::Result<DeviceState> {
    match row.get(column)? {
        0 => Ok(DeviceState::Active),
        1 => Ok(DeviceState::Disabled),
        2 => Ok(DeviceState::Bounced),
        3 => Ok(DeviceState::Failed),
        4 => Ok(DeviceState::Pending),
        state => Err(rusqlite::Error::IntegralValueOutOfRange(column, state)),
    }
}

pub(super) fn find(connection: &Connection, id: &SubscriberId) -> Result<Option<Subscriber>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM subscribers s WHERE id = ?1");
    let Some(mut found) = query_one(connection, &sql, [id.as_str()], subscriber_of)? else { return Ok(None) };
    found.devices = devices(connection, found.number.0)?;
    Ok(Some(found))
}

/// Subscriber by number.
pub(super) fn find_numbered(
    connection: &Connection,
    number: SubscriberNumber,
) -> Result<Option<Subscriber>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM subscribers s WHERE number = ?1");
    let Some(mut found) = query_one(connection, &sql, [signed(number.0)], subscriber_of)? else { return Ok(None) };
    found.devices = devices(connection, found.number.0)?;
    Ok(Some(found))
}

/// Number of a subscriber.
pub(super) fn number(connection: &Connection, id: &SubscriberId) -> Result<Option<u64>, StoreError> {
    query_one(connection, "SELECT number FROM subscribers WHERE id = ?1", [id.as_str()], |row| number_at(row, 0))
}
