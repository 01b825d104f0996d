//! Outbox of lifecycle events. An entry is written in the transaction of the change.

use std::sync::Arc;

use rusqlite::{Connection, Row};
use tocsin_model::{
    id::{Name, SubscriptionId},
    lifecycle::{ChangeOrigin, LifecycleChange, LifecycleSubject},
    subscriber::Subscriber,
    time::Timestamp,
};

use super::transaction::{Filters, RecordsTransaction};
use crate::{
    error::StoreError,
    records::{
        ChangedSubscription, LifecycleEntry, LifecycleFilter, lifecycle_event, lifecycle_row, person_events,
        subject_name,
    },
    sqlite::statements::{execute, name_at, number_at, query_all, query_one, signed},
};

/// Adds an entry for a change of a subscription, if a filter covers it. Must be called after its row is written, and
/// before it is deleted. `before`: the former parameters.
pub(super) fn record(
    tx: &mut RecordsTransaction<'_>,
    change: LifecycleChange,
    subscription: u64,
    before: Option<&str>,
    now: Timestamp,
) -> Result<(), StoreError> {
    // Most changes are covered by no filter, and imports make millions.
    if tx.origin.quiet || !filters_of(tx)?.iter().any(|(_, filter)| filter.change == change) {
        return Ok(());
    }
    let origin = tx.origin.clone();
    record_by(tx, change, subscription, before, &origin, now)
}

/// The filters, read once in a transaction.
fn filters_of<'a>(tx: &'a mut RecordsTransaction<'_>) -> Result<&'a Filters, StoreError> {
    if tx.lifecycle_filters.is_none() {
        tx.lifecycle_filters = Some(filters(tx.connection)?);
    }
    Ok(tx.lifecycle_filters.get_or_insert_with(|| Arc::new([])))
}

/// Like [`record`], by another origin than that of the transaction.
pub(super) fn record_by(
    tx: &mut RecordsTransaction<'_>,
    change: LifecycleChange,
    subscription: u64,
    before: Option<&str>,
    origin: &ChangeOrigin,
    now: Timestamp,
) -> Result<(), StoreError> {
    let filters = filters_of(tx)?.clone();
    if origin.quiet || !filters.iter().any(|(_, filter)| filter.change == change) {
        return Ok(());
    }
    let sql = "SELECT c.application, c.name, s.subscriber, u.id, s.key, s.device, s.parameters, u.locale, u.time_zone,
            u.attributes
        FROM subscriptions s JOIN classes c ON c.number = s.class JOIN subscribers u ON u.number = s.subscriber
        WHERE s.id = ?1";
    let entry = query_one(tx.connection, sql, [signed(subscription)], |row| {
        let (application, class) = (name_at(row, 0)?, name_at(row, 1)?);
        let covers = |(of, filter): &(Name, LifecycleFilter)| {
            *of == application && filter.change == change && filter.class.as_ref().is_none_or(|of| *of == class)
        };
        if !filters.iter().any(covers) {
            return Ok(None);
        }
        let text = |at: usize| row.get::<_, Option<String>>(at);
        let (subscriber, values) = (row.get::<_, String>(3)?, row.get::<_, String>(6)?);
        let (key, device, locale, time_zone, attributes) = (text(4)?, text(5)?, text(7)?, text(8)?, text(9)?);
        let changed = ChangedSubscription {
            id: SubscriptionId(subscription),
            subscriber: &subscriber,
            class: class.as_str(),
            key: key.as_deref(),
            device: device.as_deref(),
            values: &values,
            before,
            locale: locale.as_deref(),
            time_zone: time_zone.as_deref(),
            attributes: attributes.as_deref(),
        };
        let event = lifecycle_event(change, &changed, origin, now);
        Ok(Some((application, class, number_at(row, 2)?, event)))
    })?;
    let Some((application, class, subscriber, event)) = entry.flatten() else { return Ok(()) };
    execute(
        tx.connection,
        "INSERT INTO lifecycle_entries (application, class, change, subscriber, at, event)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        (application.as_str(), class.as_str(), change.stored(), signed(subscriber), now.0, event),
    )
    .map(|_| ())
}

/// Whether any filter covers changes of subscribers or devices.
pub(super) fn covers_persons(tx: &mut RecordsTransaction<'_>) -> Result<bool, StoreError> {
    let is_of_person = |filter: &LifecycleFilter| filter.change.subject() != LifecycleSubject::Subscription;
    Ok(!tx.origin.quiet && filters_of(tx)?.iter().any(|(_, filter)| is_of_person(filter)))
}

/// Adds entries for the changes of a subscriber and its devices, for each application with a filter.
pub(super) fn record_person(
    tx: &mut RecordsTransaction<'_>,
    old: Option<&Subscriber>,
    new: Option<&Subscriber>,
    now: Timestamp,
) -> Result<(), StoreError> {
    let Some(number) = new.or(old).map(|person| person.number) else { return Ok(()) };
    if !covers_persons(tx)? {
        return Ok(());
    }
    let filters = filters_of(tx)?.clone();
    for (change, event) in person_events(old, new, &tx.origin, now) {
        let class = subject_name(change);
        let mut applications: Vec<&Name> =
            filters.iter().filter(|(_, filter)| filter.change == change).map(|(of, _)| of).collect();
        applications.dedup();
        for application in applications {
            execute(
                tx.connection,
                "INSERT INTO lifecycle_entries (application, class, change, subscriber, at, event)
                    VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                (application.as_str(), class.as_str(), change.stored(), signed(number.0), now.0, &event),
            )?;
        }
    }
    Ok(())
}

/// Removes the entries of a removed subscriber: their events would have personal data.
pub(super) fn forget(connection: &Connection, subscriber: u64) -> Result<(), StoreError> {
    execute(connection, "DELETE FROM lifecycle_entries WHERE subscriber = ?1", [signed(subscriber)]).map(|_| ())
}

fn filters(connection: &Connection) -> Result<Filters, StoreError> {
    let sql = "SELECT application, change, class FROM lifecycle_filters ORDER BY application, change, class";
    let found = query_all(connection, sql, (), |row| {
        let class: String = row.get(2)?;
        let class = if class.is_empty() { None } else { Some(name_at(row, 2)?) };
        Ok((name_at(row, 0)?, LifecycleFilter { change: change_at(row, 1)?, class }))
    })?;
    Ok(found.into())
}

fn change_at(row: &Row<'_>, column: usize) -> rusqlite::Result<LifecycleChange> {
    let word: String = row.get(column)?;
    LifecycleChange::from_stored(&word).ok_or(rusqlite::Error::InvalidColumnType(
        column,
        word,
        rusqlite::types::Type::Text,
    ))
}

/// Replaces the filters of an application.
pub(super) fn set_filters(
    tx: &mut RecordsTransaction<'_>,
    application: &Name,
    new: &[LifecycleFilter],
) -> Result<(), StoreError> {
    execute(tx.connection, "DELETE FROM lifecycle_filters WHERE application = ?1", [application.as_str()])?;
    for filter in new {
        let class = filter.class.as_ref().map_or("", Name::as_str);
        execute(
            tx.connection,
            "INSERT INTO lifecycle_filters (application, change, class) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING",
            (application.as_str(), filter.change.stored(), class),
        )?;
    }
    tx.lifecycle_filters = None;
    Ok(())
}

pub(super) fn entries(
    connection: &Connection,
    application: &Name,
    after: u64,
    limit: usize,
) -> Result<Vec<LifecycleEntry>, StoreError> {
    let sql = "SELECT position, change, class, at, event FROM lifecycle_entries
        WHERE application = ?1 AND position > ?2 ORDER BY position LIMIT ?3";
    let found = query_all(connection, sql, (application.as_str(), signed(after), signed(limit as u64)), |row| {
        let event: String = row.get(4)?;
        Ok((number_at(row, 0)?, change_at(row, 1)?, name_at(row, 2)?, Timestamp(row.get(3)?), event))
    })?;
    let entry = |(position, change, class, at, event): (u64, _, _, _, String)| {
        Ok(LifecycleEntry { position, change, class, at, row: lifecycle_row(change, &event)? })
    };
    found.into_iter().map(entry).collect()
}

pub(super) fn last_position(connection: &Connection) -> Result<u64, StoreError> {
    let sql = "SELECT coalesce(max(position), 0) FROM lifecycle_entries";
    Ok(query_one(connection, sql, (), |row| number_at(row, 0))?.unwrap_or(0))
}

pub(super) fn trim(
    tx: &mut RecordsTransaction<'_>,
    application: &Name,
    through: u64,
    before: Timestamp,
    limit: usize,
) -> Result<usize, StoreError> {
    let sql = "DELETE FROM lifecycle_entries WHERE position IN
        (SELECT position FROM lifecycle_entries WHERE application = ?1 AND position <= ?2 AND at < ?3
            ORDER BY position LIMIT ?4)";
    execute(tx.connection, sql, (application.as_str(), signed(through), before.0, signed(limit as u64)))
}
