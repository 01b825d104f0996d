//! Failing endpoints.

use rusqlite::{Connection, Row};
use tocsin_model::{id::SubscriberId, time::Timestamp};

use crate::{
    error::StoreError,
    records::{EndpointKey, FailingEndpoint, MergedSubscriber},
    sqlite::statements::{conversion_failed, execute, name_at, number_at, query_all, signed},
};

pub(super) fn put(connection: &Connection, endpoints: &[FailingEndpoint]) -> Result<(), StoreError> {
    for endpoint in endpoints {
        execute(
            connection,
            "INSERT OR REPLACE INTO failing_endpoints (application, channel, address, subscriber, device, since, last,
                    failures, reason, warned_at, disabled_at)
                VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
            (
                endpoint.key.application.as_str(),
                endpoint.key.channel.as_str(),
                &endpoint.key.address,
                endpoint.subscriber.as_ref().map(|subscriber| subscriber.as_str()),
                endpoint.device.as_ref().map(|device| device.as_str()),
                endpoint.since.0,
                endpoint.last.0,
                signed(endpoint.failures),
                &endpoint.reason,
                endpoint.warned_at.map(|at| at.0),
                endpoint.disabled_at.map(|at| at.0),
            ),
        )?;
    }
    Ok(())
}

/// Renames failing endpoints of a merged subscriber's devices to those of the account.
pub(super) fn move_to_account(
    connection: &Connection,
    (from, into): (&SubscriberId, &SubscriberId),
    merged: &MergedSubscriber,
) -> Result<(), StoreError> {
    for (old, new) in merged.moved.iter().chain(&merged.doubles) {
        let sql = "UPDATE failing_endpoints SET subscriber = ?3, device = ?4 WHERE subscriber = ?1 AND device = ?2";
        execute(connection, sql, (from.as_str(), old.as_str(), into.as_str(), new.as_str()))?;
    }
    Ok(())
}

pub(super) fn remove(connection: &Connection, endpoints: &[EndpointKey]) -> Result<(), StoreError> {
    for EndpointKey { application, channel, address } in endpoints {
        let sql = "DELETE FROM failing_endpoints WHERE application = ?1 AND channel = ?2 AND address = ?3";
        execute(connection, sql, (application.as_str(), channel.as_str(), address))?;
    }
    Ok(())
}

pub(super) fn list(
    connection: &Connection,
    after: Option<&EndpointKey>,
    limit: usize,
) -> Result<Vec<FailingEndpoint>, StoreError> {
    let sql = "SELECT application, channel, address, subscriber, device, since, last, failures, reason, warned_at, disabled_at
        FROM failing_endpoints WHERE (application, channel, address) > (?1, ?2, ?3)
        ORDER BY application, channel, address LIMIT ?4";
    let (application, channel, address) = match after {
        Some(key) => (key.application.as_str(), key.channel.as_str(), key.address.as_str()),
        None => ("", "", ""),
    };
    query_all(connection, sql, (application, channel, address, signed(limit as u64)), endpoint_of)
}

fn endpoint_of(row: &Row<'_>) -> rusqlite::Result<FailingEndpoint> {
    let (subscriber, device): (Option<String>, Option<String>) = (row.get(3)?, row.get(4)?);
    let time = |column| Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(column)?.map(Timestamp));
    Ok(FailingEndpoint {
        key: EndpointKey { application: name_at(row, 0)?, channel: name_at(row, 1)?, address: row.get(2)? },
        subscriber: subscriber.map(|id| id.parse().map_err(|error| conversion_failed(3, error))).transpose()?,
        device: device.map(|name| name.parse().map_err(|error| conversion_failed(4, error))).transpose()?,
        since: Timestamp(row.get(5)?),
        last: Timestamp(row.get(6)?),
        failures: number_at(row, 7)?,
        reason: row.get(8)?,
        warned_at: time(9)?,
        disabled_at: time(10)?,
    })
}
