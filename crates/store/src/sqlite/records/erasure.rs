//! Erasure of a person: the subscriber, and everything that names it.

use rusqlite::Connection;
use tocsin_model::{
    id::{SubscriberId, SubscriberNumber, SubscriptionId},
    suppression::bound,
    time::Timestamp,
};

use super::{subscribers, suppressions, transaction::RecordsTransaction};
use crate::{
    error::StoreError,
    records::{Precondition, ProfileImage, no_subscriber},
    sqlite::{
        records::{lifecycle, notifybc_rows, subscriber_rows},
        statements::{execute, json, number_at, query_all, query_one, signed},
    },
};

/// Id of an erased subscriber in the change log.
const ERASED: &str = "erased";

pub(super) fn erase(tx: &mut RecordsTransaction<'_>, id: &SubscriberId, now: Timestamp) -> Result<(), StoreError> {
    let person = subscriber_rows::find(tx.connection, id)?.ok_or_else(|| no_subscriber(id))?;
    let number = person.number;
    let mut addresses = Vec::new();
    for device in person.devices.values() {
        if !has_other_owner(tx.connection, number, &device.address)? {
            addresses.extend([device.address.trim().to_owned(), bound(&device.address)]);
        }
    }
    addresses.sort();
    addresses.dedup();
    for address in &addresses {
        suppressions::remove_all_of_address(tx, address)?;
        execute(tx.connection, "DELETE FROM failing_endpoints WHERE address = ?1", [address])?;
        let sql = "DELETE FROM feedback WHERE substr(target, 1, 7) <> 'device/'
            AND substr(target, -length(?1) - 1) = '/' || ?1";
        execute(tx.connection, sql, [address])?;
    }
    execute(tx.connection, "DELETE FROM failing_endpoints WHERE subscriber = ?1", [id.as_str()])?;
    execute(tx.connection, "DELETE FROM feedback WHERE subscriber = ?1", [id.as_str()])?;
    notifybc_rows::erase(tx.connection, (id, number.0), &addresses)?;
    // The removal logs its own before-images, so the log is cleaned after it.
    subscribers::remove(tx, id, Precondition::Present, now)?;
    lifecycle::forget(tx.connection, number.0)?;
    let number = signed(number.0);
    execute(
        tx.connection,
        "DELETE FROM merges WHERE finished = 1 AND (from_number = ?1 OR into_number = ?1)",
        [number],
    )?;
    let sql = "UPDATE changes SET before = NULL WHERE kind = 1 AND first = ?1";
    execute(tx.connection, sql, [number])?;
    // Readers of earlier sequences find a disabled subscriber without attributes. Each image is complete, so that no
    // undo step of a deleted value is needed.
    let erased = ProfileImage::erased(ERASED.parse().expect("an id"));
    let sql = "UPDATE changes SET kind = 9, before = ?2 WHERE sequence IN
        (SELECT sequence FROM changes WHERE kind = 9 AND first = ?1
            UNION ALL SELECT sequence FROM changes WHERE kind = 6 AND first = ?1)";
    execute(tx.connection, sql, (number, json(&erased)))?;
    let sql = "UPDATE before_images
        SET enabled = 0, parameters = '{}', filter = NULL, device = NULL WHERE subscriber = ?1";
    execute(tx.connection, sql, [number])?;
    forget_targets(tx.connection, id, &addresses)
}

fn has_other_owner(connection: &Connection, number: SubscriberNumber, address: &str) -> Result<bool, StoreError> {
    let sql = "SELECT 1 FROM devices WHERE address_hash = ?1 AND subscriber <> ?2 LIMIT 1";
    let hash = subscribers::address_hash(address);
    Ok(query_one(connection, sql, (hash, signed(number.0)), |_| Ok(()))?.is_some())
}

/// Removes targets from the log of suppressions. Delivery has followed the changes before, or loads the list anew.
fn forget_targets(connection: &Connection, id: &SubscriberId, addresses: &[String]) -> Result<(), StoreError> {
    let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?));
    let device = format!("device/{id}/");
    let is_named = |target: &str| {
        target.starts_with(&device) || addresses.iter().any(|address| target.ends_with(&format!("/{address}")))
    };
    let logged = query_all(connection, "SELECT sequence, before FROM changes WHERE kind = 7", (), read)?;
    for (sequence, targets) in logged {
        let damaged = |_| StoreError::Damaged("a logged suppression".to_owned());
        let mut targets: Vec<String> = serde_json::from_str(&targets).map_err(damaged)?;
        let before = targets.len();
        targets.retain(|target| !is_named(target));
        if targets.len() < before {
            let sql = "UPDATE changes SET before = ?2 WHERE sequence = ?1";
            execute(connection, sql, (sequence, json(&targets)))?;
        }
    }
    Ok(())
}

/// Subscriptions of a subscriber that the change log knows.
pub(super) fn former_subscriptions(
    connection: &Connection,
    subscriber: SubscriberNumber,
) -> Result<Vec<SubscriptionId>, StoreError> {
    let sql = "SELECT DISTINCT subscription FROM before_images WHERE subscriber = ?1 ORDER BY subscription";
    query_all(connection, sql, [signed(subscriber.0)], |row| Ok(SubscriptionId(number_at(row, 0)?)))
}
