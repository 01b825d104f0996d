//! Subscriptions. Changes and removals leave a before-image in the change log.

use std::collections::HashMap;

use rusqlite::{
    Connection, Row, params_from_iter,
    types::{Value, ValueRef},
};
use tocsin_model::{
    consent::{Consent, ConsentAct, ConsentChange, ConsentState},
    filter::Filter,
    id::{ChangeSequence, Name, SubscriberNumber, SubscriptionId},
    lifecycle::{ChangeOrigin, ChangeWay, LifecycleChange},
    notifybc::{self, SubscriptionState},
    subscriber::Device,
    subscription::{Subscription, SubscriptionParams},
    time::Timestamp,
};

use super::transaction::{self, BeforeImage, RecordsTransaction};
use crate::{
    audit,
    bounded_scan::{SCANNED_ROWS_MAX, ScanPage},
    error::StoreError,
    records::{
        MergedSubscriber, NewSubscription, Precondition, StoredState, SubscriptionChange, SubscriptionCounts,
        SubscriptionFilter, Written, effective_state, is_of_other_address, moved_evidence, no_subscriber,
        no_subscription, runs,
    },
    sqlite::{
        records::{
            classes, consent_rows, images, lifecycle, notifybc_rows,
            schedule_rows::{self, ScheduledRow},
            subscriber_rows,
        },
        statements::{execute, name_at, number_at, parsed_at, query_all, query_one, signed},
    },
};

const COLUMNS: &str = "s.id, c.application, c.name, u.id, s.subscriber, s.key, s.device, s.enabled, s.parameters,
    s.created_at, s.updated_at, s.revision, s.filter, s.schedule, s.snoozed_until, s.consent";

const SOURCE: &str =
    "subscriptions s JOIN classes c ON c.number = s.class JOIN subscribers u ON u.number = s.subscriber";

fn subscription_of(row: &Row<'_>) -> rusqlite::Result<Subscription> {
    Ok(Subscription {
        id: SubscriptionId(number_at(row, 0)?),
        application: name_at(row, 1)?,
        class: name_at(row, 2)?,
        subscriber: parsed_at(row, 3)?,
        subscriber_number: SubscriberNumber(number_at(row, 4)?),
        key: row.get(5)?,
        device: optional_name_at(row, 6)?,
        enabled: row.get(7)?,
        values: row.get(8)?,
        terms: whole_terms_at(row, 12)?,
        consent: consent_rows::state_at(row, 15)?,
        created_at: Timestamp(row.get(9)?),
        updated_at: Timestamp(row.get(10)?),
        revision: number_at(row, 11)?,
    })
}

/// Reads two columns: filter and schedule.
pub(super) fn terms_at(row: &Row<'_>, first: usize) -> rusqlite::Result<SubscriptionParams> {
    let filter = match row.get_ref(first)? {
        ValueRef::Null => None,
        _ => Some(parsed_at(row, first)?),
    };
    Ok(SubscriptionParams { filter, schedule: row.get(first + 1)?, snoozed_until: None })
}

/// Reads three columns: filter, schedule and end of the snooze.
pub(super) fn whole_terms_at(row: &Row<'_>, first: usize) -> rusqlite::Result<SubscriptionParams> {
    let snoozed_until = row.get::<_, Option<i64>>(first + 2)?.map(Timestamp);
    Ok(SubscriptionParams { snoozed_until, ..terms_at(row, first)? })
}

pub(super) fn optional_name_at(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Name>> {
    match row.get_ref(column)? {
        ValueRef::Null => Ok(None),
        _ => name_at(row, column).map(Some),
    }
}

/// A subscription before a change, if the change is audited.
fn before_change(connection: &Connection, id: u64) -> Result<Option<Subscription>, StoreError> {
    if audit::is_recording() { find(connection, SubscriptionId(id)) } else { Ok(None) }
}

/// Adds the image of a changed subscription, with what was read before.
fn add_image(connection: &Connection, id: u64, before: Option<&Subscription>) -> Result<(), StoreError> {
    let after = before_change(connection, id)?;
    images::subscription(SubscriptionId(id), before, after.as_ref());
    Ok(())
}

/// Runs a change of a subscription, with its image.
fn with_image<T>(
    tx: &mut RecordsTransaction<'_>,
    id: SubscriptionId,
    change: impl FnOnce(&mut RecordsTransaction<'_>) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let before = before_change(tx.connection, id.0)?;
    let result = change(tx)?;
    add_image(tx.connection, id.0, before.as_ref())?;
    Ok(result)
}

pub(super) fn find(connection: &Connection, id: SubscriptionId) -> Result<Option<Subscription>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM {SOURCE} WHERE s.id = ?1");
    query_one(connection, &sql, [signed(id.0)], subscription_of)
}

/// Row before a change: enough to compare, and to write a before-image.
struct SubscriptionRow {
    id: u64,
    class: i64,
    subscriber: u64,
    device: Option<Name>,
    enabled: bool,
    parameters: Box<str>,
    revision: u64,
    terms: SubscriptionParams,
    consent: Option<ConsentState>,
    created_at: Timestamp,
}

const FOUND_COLUMNS: &str = "id, class, subscriber, device, enabled, parameters, revision, filter, schedule,
    snoozed_until, created_at, consent";

fn found_of(row: &Row<'_>) -> rusqlite::Result<SubscriptionRow> {
    Ok(SubscriptionRow {
        id: number_at(row, 0)?,
        class: row.get(1)?,
        subscriber: number_at(row, 2)?,
        device: optional_name_at(row, 3)?,
        enabled: row.get(4)?,
        parameters: row.get(5)?,
        revision: number_at(row, 6)?,
        terms: whole_terms_at(row, 7)?,
        created_at: Timestamp(row.get(10)?),
        consent: consent_rows::state_at(row, 11)?,
    })
}

impl SubscriptionRow {
    /// Whether it is enabled, or will be when its snooze ends.
    fn is_active(&self) -> bool {
        self.enabled || self.terms.snoozed_until.is_some()
    }

    fn image(self) -> BeforeImage {
        BeforeImage {
            subscription: self.id,
            class: self.class,
            subscriber: self.subscriber,
            device: self.device,
            enabled: self.enabled,
            parameters: self.parameters,
            terms: self.terms,
            created_at: self.created_at,
        }
    }
}

/// Stores many subscriptions, ordered by subscriber, which is the order of the index. New ones get consecutive
/// numbers in that order, so they are logged as one change.
pub(super) fn put_many(
    tx: &mut RecordsTransaction<'_>,
    new: &[NewSubscription],
    now: Timestamp,
) -> Result<Vec<Written<SubscriptionId>>, StoreError> {
    let mut order = subscribers_of(tx.connection, new)?;
    // Must stay a stable sort: of two items with one key, the later one wins.
    order.sort_by_key(|(_, subscriber)| *subscriber);
    let mut classes = HashMap::new();
    let mut changed: Vec<BeforeImage> = Vec::new();
    let mut written: Vec<Written<SubscriptionId>> =
        new.iter().map(|line| Err(no_subscriber(&line.subscriber))).collect();
    let first_new = tx.subscription + 1;
    for (position, subscriber) in order {
        let Some(subscriber) = subscriber else { continue };
        let line = &new[position];
        let class = match classes.get(&(&line.application, &line.class)) {
            Some(class) => *class,
            None => {
                let class = classes::class_number(tx.connection, &line.application, &line.class)?;
                classes.insert((&line.application, &line.class), class);
                class
            }
        };
        let id = match insert(tx, line, (class, subscriber), None, now)? {
            Some(id) => {
                if line.application.as_str() == notifybc::APPLICATION {
                    let is_active = line.enabled.unwrap_or(true);
                    notifybc_rows::subscription_made(tx, (id, class), line.key.as_deref(), is_active, now)?;
                }
                id
            }
            None => {
                let found = find_by_key(tx.connection, subscriber, class, line.key.as_deref())?;
                let id = found.id;
                let before = before_change(tx.connection, id)?;
                changed.extend(recorded_change(tx, found, &line.change(), now)?);
                add_image(tx.connection, id, before.as_ref())?;
                id
            }
        };
        written[position] = Ok(SubscriptionId(id));
    }
    if tx.subscription >= first_new {
        tx.subscriptions_made(first_new, tx.subscription)?;
    }
    // Must stay a stable sort: if one is replaced twice, the first image is the original.
    changed.sort_by_key(|image| image.subscription);
    changed.dedup_by_key(|image| image.subscription);
    log_changes(tx, &changed)?;
    Ok(written)
}

/// Number of each item's subscriber, if it exists.
fn subscribers_of(connection: &Connection, new: &[NewSubscription]) -> Result<Vec<(usize, Option<u64>)>, StoreError> {
    let mut numbers: Vec<(usize, Option<u64>)> = (0..new.len()).map(|position| (position, None)).collect();
    numbers.sort_by(|(one, _), (other, _)| new[*one].subscriber.cmp(&new[*other].subscriber));
    let mut last = None;
    for (position, number) in &mut numbers {
        let id = &new[*position].subscriber;
        *number = match last {
            Some((known, number)) if known == id => number,
            _ => subscriber_rows::number(connection, id)?,
        };
        last = Some((id, *number));
    }
    numbers.sort_by_key(|(position, _)| *position);
    Ok(numbers)
}

/// Inserts a row, unless one with its key exists.
fn insert(
    tx: &mut RecordsTransaction<'_>,
    new: &NewSubscription,
    (class, subscriber): (i64, u64),
    consent: Option<ConsentState>,
    now: Timestamp,
) -> Result<Option<u64>, StoreError> {
    let id = tx.subscription + 1;
    let (enabled, terms) = effective_state(new.enabled, &new.terms, None, now);
    let added = execute(
        tx.connection,
        "INSERT INTO subscriptions
            (id, class, subscriber, key, device, enabled, parameters, filter, schedule, created_at, updated_at, revision,
             snoozed_until, consent)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?9, ?10, ?8, ?8, 1, ?11, ?12) ON CONFLICT (subscriber, class, key) DO NOTHING",
        (
            signed(id),
            class,
            signed(subscriber),
            new.key.as_deref(),
            new.device.as_ref().map(Name::as_str),
            enabled,
            &*new.values,
            now.0,
            terms.filter.as_ref().map(Filter::to_string),
            terms.schedule.as_deref(),
            terms.snoozed_until.map(|until| until.0),
            consent.map(consent_rows::state_number),
        ),
    )?;
    if added == 0 {
        return Ok(None);
    }
    tx.subscription = id;
    tx.counts.subscriptions += 1;
    if let Some(schedule) = new.terms.schedule.as_deref() {
        let scheduled = ScheduledRow { subscription: id, class, subscriber, schedule: Some(schedule) };
        schedule_rows::update(tx, &scheduled, false, now)?;
    }
    add_image(tx.connection, id, None)?;
    lifecycle::record(tx, LifecycleChange::Requested, id, None, now)?;
    if enabled || terms.snoozed_until.is_some() {
        lifecycle::record(tx, LifecycleChange::Confirmed, id, None, now)?;
    }
    Ok(Some(id))
}

/// Inserts the subscription of a document of NotifyBC, whose key is new, with the state of its consent. The caller logs
/// it.
pub(super) fn insert_of_document(
    tx: &mut RecordsTransaction<'_>,
    new: &NewSubscription,
    subscriber: SubscriberNumber,
    consent: ConsentState,
    now: Timestamp,
) -> Result<SubscriptionId, StoreError> {
    let class = match tx.notifybc_class.get().flatten() {
        Some(class) => class,
        None => classes::class_number(tx.connection, &new.application, &new.class)?,
    };
    tx.notifybc_class.set(Some(Some(class)));
    let id = insert(tx, new, (class, subscriber.0), Some(consent), now)?;
    id.map(SubscriptionId).ok_or_else(|| StoreError::Damaged("a subscription has the key of a new one".to_owned()))
}

fn find_by_key(
    connection: &Connection,
    subscriber: u64,
    class: i64,
    key: Option<&str>,
) -> Result<SubscriptionRow, StoreError> {
    let sql = format!("SELECT {FOUND_COLUMNS} FROM subscriptions WHERE subscriber = ?1 AND class = ?2 AND key = ?3");
    query_one(connection, &sql, (signed(subscriber), class, key), found_of)?
        .ok_or_else(|| StoreError::Damaged("an index of subscriptions names a row that is not there".to_owned()))
}

/// Like [`change`], and records it for lifecycle events: a change of an active subscription, or its end. A subscription
/// is active if it is enabled or snoozed.
fn recorded_change(
    tx: &mut RecordsTransaction<'_>,
    old: SubscriptionRow,
    new: &SubscriptionChange,
    now: Timestamp,
) -> Result<Option<BeforeImage>, StoreError> {
    let stored = StoredState { enabled: old.enabled, snoozed_until: old.terms.snoozed_until, consent: old.consent };
    let (enabled, terms) = effective_state(new.enabled, &new.terms, Some(stored), now);
    let (was_active, is_active) = (old.is_active(), enabled || terms.snoozed_until.is_some());
    let image = change(tx, old, new, now)?;
    if let Some(image) = &image {
        let change = match (was_active, is_active) {
            (true, false) => Some(LifecycleChange::Ended),
            (_, true) => Some(LifecycleChange::Changed),
            (false, false) => None,
        };
        if let Some(change) = change {
            lifecycle::record(tx, change, image.subscription, Some(&image.parameters), now)?;
        }
    }
    Ok(image)
}

/// Writes a change; returns the before-image if anything changed.
fn change(
    tx: &RecordsTransaction<'_>,
    old: SubscriptionRow,
    new: &SubscriptionChange,
    now: Timestamp,
) -> Result<Option<BeforeImage>, StoreError> {
    let stored = StoredState { enabled: old.enabled, snoozed_until: old.terms.snoozed_until, consent: old.consent };
    let (enabled, terms) = effective_state(new.enabled, &new.terms, Some(stored), now);
    if (&old.device, old.enabled, &old.parameters, &old.terms) == (&new.device, enabled, &new.values, &terms) {
        return Ok(None);
    }
    let resumed = enabled && !old.enabled;
    execute(
        tx.connection,
        "UPDATE subscriptions SET device = ?2, enabled = ?3, parameters = ?4, updated_at = ?5, revision = ?6,
            filter = ?7, schedule = ?8, snoozed_until = ?9, enabled_at = coalesce(?10, enabled_at) WHERE id = ?1",
        (
            signed(old.id),
            new.device.as_ref().map(Name::as_str),
            enabled,
            &*new.values,
            now.0,
            signed(old.revision + 1),
            terms.filter.as_ref().map(Filter::to_string),
            terms.schedule.as_deref(),
            terms.snoozed_until.map(|until| until.0),
            resumed.then_some(now.0),
        ),
    )?;
    if old.terms.schedule != terms.schedule || (resumed && terms.schedule.is_some()) {
        let SubscriptionRow { id, class, subscriber, .. } = old;
        let scheduled = ScheduledRow { subscription: id, class, subscriber, schedule: terms.schedule.as_deref() };
        schedule_rows::update(tx, &scheduled, resumed, now)?;
    }
    let is_active = enabled || terms.snoozed_until.is_some();
    if old.is_active() != is_active {
        notifybc_rows::state_changed(tx, (old.id, old.class), notifybc_rows::state_of(is_active, old.consent), now)?;
    }
    Ok(Some(old.image()))
}

/// Subscription that a new one of the same key replaces.
pub(super) fn find_same_key(
    connection: &Connection,
    new: &NewSubscription,
) -> Result<Option<Subscription>, StoreError> {
    let Some(key) = &new.key else { return Ok(None) };
    let sql =
        format!("SELECT {COLUMNS} FROM {SOURCE} WHERE u.id = ?1 AND c.application = ?2 AND c.name = ?3 AND s.key = ?4");
    let values = (new.subscriber.as_str(), new.application.as_str(), new.class.as_str(), key);
    query_one(connection, &sql, values, subscription_of)
}

/// Stores the state of a subscription's consent. It is enabled if the state permits.
pub(super) fn set_consent(
    tx: &mut RecordsTransaction<'_>,
    id: SubscriptionId,
    state: ConsentState,
    now: Timestamp,
) -> Result<(), StoreError> {
    with_image(tx, id, |tx| record_consent(tx, id, state, state.permits(), now))
}

/// Stores the state of a subscription's consent, and whether it is enabled.
pub(super) fn record_consent(
    tx: &mut RecordsTransaction<'_>,
    id: SubscriptionId,
    state: ConsentState,
    enabled: bool,
    now: Timestamp,
) -> Result<(), StoreError> {
    // Recipients have the number of the open request, which may have changed even if the state did not.
    tx.subscriptions_touched.push(id.0);
    let old = find_expected(tx.connection, id, Precondition::Any)?;
    if old.consent == Some(state) {
        return Ok(());
    }
    let sql = "UPDATE subscriptions SET consent = ?2, updated_at = ?3, revision = ?4 WHERE id = ?1";
    let revision = old.revision + 1;
    execute(tx.connection, sql, (signed(id.0), consent_rows::state_number(state), now.0, signed(revision)))?;
    let class = old.class;
    switch_row(tx, SubscriptionRow { consent: Some(state), revision, ..old }, enabled, now)?;
    notifybc_rows::state_changed(tx, (id.0, class), notifybc_rows::state_of(enabled, Some(state)), now)
}

/// Requests the consent of confirmed subscriptions anew whose device has another address. `is_new`: there was no device
/// of this name. Returns whether there are subscriptions whose consent is not for this address.
pub(super) fn address_changed(
    tx: &mut RecordsTransaction<'_>,
    subscriber: u64,
    (name, device): (&Name, &Device),
    is_new: bool,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let sql = "SELECT id, consent FROM subscriptions
        WHERE subscriber = ?1 AND device = ?2 AND consent IS NOT NULL AND consent <> 2 ORDER BY id";
    let read = |row: &Row<'_>| Ok((number_at(row, 0)?, consent_rows::state_at(row, 1)?));
    let (mut is_any, sent) = (false, (device.channel.clone(), device.address.clone()));
    for (id, before) in query_all(tx.connection, sql, (signed(subscriber), name.as_str()), read)? {
        let id = SubscriptionId(id);
        let Some(consent) = consent_rows::find(tx.connection, id)? else { continue };
        if is_of_other_address(&consent, device, is_new) {
            request_anew(tx, id, consent, before, sent.clone(), now)?;
            is_any = true;
        }
    }
    Ok(is_any)
}

/// Requests a confirmed consent anew if the subscription names a device with another address now.
pub(super) fn device_changed(
    tx: &mut RecordsTransaction<'_>,
    id: SubscriptionId,
    now: Timestamp,
) -> Result<(), StoreError> {
    let found = find(tx.connection, id)?.filter(|found| found.consent.is_some_and(ConsentState::permits));
    let Some(found) = found else { return Ok(()) };
    let Some(consent) = consent_rows::find(tx.connection, id)? else { return Ok(()) };
    let owner = subscriber_rows::find(tx.connection, &found.subscriber)?;
    let device = owner.as_ref().zip(found.device.as_ref()).and_then(|(owner, name)| owner.devices.get(name));
    if let Some(device) = device.filter(|device| is_of_other_address(&consent, device, true)) {
        let address = (device.channel.clone(), device.address.clone());
        request_anew(tx, id, consent, found.consent, address, now)?;
    }
    Ok(())
}

fn request_anew(
    tx: &mut RecordsTransaction<'_>,
    id: SubscriptionId,
    mut consent: Consent,
    before: Option<ConsentState>,
    address: (Name, String),
    now: Timestamp,
) -> Result<(), StoreError> {
    if !consent.moved(address, now) {
        return Ok(());
    }
    consent_rows::write(tx.connection, id, &consent)?;
    record_consent(tx, id, consent.state, false, now)?;
    let (after, act, evidence) = (Some(consent.state), ConsentAct::Requested, moved_evidence());
    let change = ConsentChange { subscription: id, before, after, act, is_new: false, evidence };
    consent_rows::consent_changed(tx, &change, now)
}

/// Enables or disables a subscription.
pub(super) fn switch(
    tx: &mut RecordsTransaction<'_>,
    id: SubscriptionId,
    enabled: bool,
    now: Timestamp,
) -> Result<(), StoreError> {
    let old = find_expected(tx.connection, id, Precondition::Any)?;
    with_image(tx, id, |tx| switch_row(tx, old, enabled, now))
}

fn switch_row(
    tx: &mut RecordsTransaction<'_>,
    old: SubscriptionRow,
    enabled: bool,
    now: Timestamp,
) -> Result<(), StoreError> {
    let new = SubscriptionChange {
        device: old.device.clone(),
        enabled: Some(enabled),
        values: old.parameters.clone(),
        terms: old.terms.clone(),
    };
    let image = change(tx, old, &new, now)?;
    log_changes(tx, image.as_slice())
}

/// Logs changed or removed subscriptions, ascending, by run.
fn log_changes(tx: &mut RecordsTransaction<'_>, images: &[BeforeImage]) -> Result<(), StoreError> {
    runs(images, |image| image.subscription).try_for_each(|run| tx.subscriptions_changed(run))
}

pub(super) fn update(
    tx: &mut RecordsTransaction<'_>,
    id: SubscriptionId,
    new: &SubscriptionChange,
    expect: Precondition,
    now: Timestamp,
) -> Result<Subscription, StoreError> {
    let old = find_expected(tx.connection, id, expect)?;
    with_image(tx, id, |tx| {
        let image = recorded_change(tx, old, new, now)?;
        log_changes(tx, image.as_slice())?;
        device_changed(tx, id, now)
    })?;
    find(tx.connection, id)?.ok_or_else(|| no_subscription(id))
}

/// Whether the snooze of any subscription has ended.
pub(super) fn is_any_to_wake(connection: &Connection, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "SELECT 1 FROM subscriptions WHERE snoozed_until <= ?1 LIMIT 1";
    Ok(query_one(connection, sql, [now.0], |_| Ok(()))?.is_some())
}

/// Enables subscriptions whose snooze has ended.
pub(super) fn wake(tx: &mut RecordsTransaction<'_>, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
    let sql = format!("SELECT {FOUND_COLUMNS} FROM subscriptions WHERE snoozed_until <= ?1 ORDER BY id LIMIT ?2");
    let found = query_all(tx.connection, &sql, (now.0, signed(limit as u64)), found_of)?;
    let count = found.len();
    let mut images = Vec::with_capacity(count);
    for old in found {
        let new = SubscriptionChange {
            device: old.device.clone(),
            enabled: Some(true),
            values: old.parameters.clone(),
            terms: old.terms.clone(),
        };
        images.extend(change(tx, old, &new, now)?);
    }
    log_changes(tx, &images)?;
    Ok(count)
}

pub(super) fn remove(
    tx: &mut RecordsTransaction<'_>,
    id: SubscriptionId,
    expect: Precondition,
    now: Timestamp,
) -> Result<(), StoreError> {
    let old = find_expected(tx.connection, id, expect)?;
    remove_rows(tx, vec![old], now)
}

/// Removes a subscription, and records the end of an active one.
pub(super) fn end(
    tx: &mut RecordsTransaction<'_>,
    id: SubscriptionId,
    expect: Precondition,
    now: Timestamp,
) -> Result<(), StoreError> {
    let old = find_expected(tx.connection, id, expect)?;
    if old.is_active() {
        lifecycle::record(tx, LifecycleChange::Ended, old.id, None, now)?;
    }
    remove_rows(tx, vec![old], now)
}

fn find_expected(
    connection: &Connection,
    id: SubscriptionId,
    expect: Precondition,
) -> Result<SubscriptionRow, StoreError> {
    let sql = format!("SELECT {FOUND_COLUMNS} FROM subscriptions WHERE id = ?1");
    let found = query_one(connection, &sql, [signed(id.0)], found_of)?;
    expect.check(found.as_ref().map(|found| found.revision), || format!("subscription `{id}`"))?;
    found.ok_or_else(|| no_subscription(id))
}

/// Removes rows, given in order of their numbers.
fn remove_rows(tx: &mut RecordsTransaction<'_>, rows: Vec<SubscriptionRow>, now: Timestamp) -> Result<(), StoreError> {
    let mut images = Vec::with_capacity(rows.len());
    for row in rows {
        let before = before_change(tx.connection, row.id)?;
        execute(tx.connection, "DELETE FROM subscriptions WHERE id = ?1", [signed(row.id)])?;
        add_image(tx.connection, row.id, before.as_ref())?;
        tx.counts.subscriptions -= 1;
        if row.terms.schedule.is_some() {
            schedule_rows::unschedule(tx, row.id)?;
        }
        if row.consent.is_some() {
            consent_rows::forget(tx.connection, row.id)?;
        }
        notifybc_rows::state_changed(tx, (row.id, row.class), SubscriptionState::Deleted, now)?;
        images.push(row.image());
    }
    log_changes(tx, &images)
}

pub(super) fn remove_all_of_subscriber(
    tx: &mut RecordsTransaction<'_>,
    subscriber: u64,
    now: Timestamp,
) -> Result<(), StoreError> {
    let sql = format!("SELECT {FOUND_COLUMNS} FROM subscriptions WHERE subscriber = ?1 ORDER BY id");
    let rows = query_all(tx.connection, &sql, [signed(subscriber)], found_of)?;
    lifecycle::forget(tx.connection, subscriber)?;
    let origin = ChangeOrigin { way: ChangeWay::SubscriberRemoved, ..tx.origin.clone() };
    for row in rows.iter().filter(|row| row.is_active()) {
        lifecycle::record_by(tx, LifecycleChange::Ended, row.id, None, &origin, now)?;
    }
    remove_rows(tx, rows, now)
}

/// Moves the subscriptions of one subscriber to another. One that the other has already, by key or by equal contents,
/// is removed. Returns the numbers moved and removed.
pub(super) fn move_to_account(
    tx: &mut RecordsTransaction<'_>,
    from: u64,
    into: u64,
    merged: &MergedSubscriber,
    now: Timestamp,
) -> Result<(u64, u64), StoreError> {
    let sql = format!("SELECT {FOUND_COLUMNS}, key FROM subscriptions WHERE subscriber = ?1 ORDER BY id");
    let keyed = |row: &Row<'_>| Ok((found_of(row)?, row.get::<_, Option<String>>(12)?));
    let own = query_all(tx.connection, &sql, [signed(into)], keyed)?;
    let device = |old: &SubscriptionRow| old.device.as_ref().map(|name| merged.device(name).unwrap_or(name).clone());
    let is_known = |old: &SubscriptionRow, key: &Option<String>| {
        own.iter().any(|(known, other)| {
            known.class == old.class
                && match key {
                    Some(_) => key == other,
                    None => {
                        other.is_none()
                            && (&known.parameters, &known.terms) == (&old.parameters, &old.terms)
                            && known.device == device(old)
                    }
                }
        })
    };
    let (mut moved, mut doubles) = (Vec::new(), Vec::new());
    for (old, key) in query_all(tx.connection, &sql, [signed(from)], keyed)? {
        if is_known(&old, &key) { doubles.push(old) } else { moved.push(old) }
    }
    let counts = (moved.len() as u64, doubles.len() as u64);
    remove_rows(tx, doubles, now)?;
    // The move enables those of a disabled subscriber.
    let sql = "SELECT enabled, enabled_at FROM subscribers WHERE number = ?1";
    let enabled_at = query_one(tx.connection, sql, [signed(from)], |row| {
        Ok(if row.get(0)? { row.get::<_, Option<i64>>(1)? } else { Some(now.0) })
    })?;
    let enabled_at = enabled_at.flatten();
    let mut images = Vec::with_capacity(moved.len());
    for old in moved {
        execute(
            tx.connection,
            "UPDATE subscriptions SET subscriber = ?2, device = ?3, updated_at = ?4, revision = ?5,
                enabled_at = CASE WHEN enabled_at > ?6 THEN enabled_at ELSE coalesce(?6, enabled_at) END WHERE id = ?1",
            (
                signed(old.id),
                signed(into),
                device(&old).as_ref().map(Name::as_str),
                now.0,
                signed(old.revision + 1),
                enabled_at,
            ),
        )?;
        if let Some(schedule) = old.terms.schedule.as_deref() {
            let scheduled =
                ScheduledRow { subscription: old.id, class: old.class, subscriber: into, schedule: Some(schedule) };
            schedule_rows::update(tx, &scheduled, false, now)?;
        }
        images.push(old.image());
    }
    for run in runs(&images, |image| image.subscription) {
        tx.subscriptions_moved(run[0].subscription, run[run.len() - 1].subscription)?;
    }
    log_changes(tx, &images)?;
    Ok(counts)
}

/// Removes up to `limit` subscriptions of an application, class by class. Returns their number.
pub(super) fn remove_some_of_application(
    tx: &mut RecordsTransaction<'_>,
    application: &Name,
    limit: usize,
    now: Timestamp,
) -> Result<usize, StoreError> {
    let sql = format!("SELECT {FOUND_COLUMNS} FROM subscriptions WHERE class = ?1 ORDER BY id LIMIT ?2");
    let mut removed = 0;
    for (class, ..) in classes::classes(tx.connection, Some(application), None)? {
        let rows = query_all(tx.connection, &sql, (class, signed((limit - removed) as u64)), found_of)?;
        removed += rows.len();
        remove_rows(tx, rows, now)?;
    }
    Ok(removed)
}

/// All subscriptions that some subscribers have had at a sequence of the change log or later.
pub(super) fn all_of_subscribers(
    connection: &Connection,
    subscribers: &[SubscriberNumber],
    at: ChangeSequence,
) -> Result<Vec<SubscriptionId>, StoreError> {
    let snapshot = transaction::snapshot_at(connection, at)?;
    let id = |row: &Row<'_>| number_at(row, 0).map(SubscriptionId);
    let mut all = Vec::new();
    for SubscriberNumber(number) in subscribers {
        let sql = "SELECT id FROM subscriptions WHERE subscriber = ?1";
        all.extend(query_all(connection, sql, [signed(*number)], id)?);
        if let Some(snapshot) = &snapshot {
            let sql = "SELECT subscription FROM before_images WHERE subscriber = ?1 AND sequence > ?2";
            all.extend(query_all(connection, sql, [signed(*number), signed(snapshot.at)], id)?);
        }
    }
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

/// Rows of some classes by number: a merge of one index scan per class.
///
/// Each scan is already in order, so SQLite merges them row by row without sorting. `?1` is the number after which it
/// begins.
pub(super) fn merged_by_class(classes: &[i64], columns: &str, condition: &str) -> String {
    let scan = |class: &i64| {
        format!("SELECT {columns} FROM subscriptions WHERE class = {class} AND id > ?1 AND ({condition})")
    };
    classes.iter().map(scan).collect::<Vec<_>>().join(" UNION ALL ") + " ORDER BY id"
}

/// Maximum number of classes whose scans are merged; SQLite allows 500 terms. With more, all subscriptions are
/// scanned.
pub(super) const MERGED_CLASSES_MAX: usize = 100;

/// Page of subscriptions. Uses the index by subscriber, or else by key, or else by class, or else the primary key.
pub(super) fn list(
    connection: &Connection,
    filter: &SubscriptionFilter,
    after: Option<SubscriptionId>,
    limit: usize,
) -> Result<ScanPage<Subscription, SubscriptionId>, StoreError> {
    let nothing = ScanPage { items: Vec::new(), next: None };
    let classes = if filter.application.is_some() || filter.class.is_some() {
        classes::classes(connection, filter.application.as_ref(), filter.class.as_ref())?
    } else if filter.enabled == Some(false) {
        // Each disabled one is in the index of its class.
        classes::classes(connection, None, None)?
    } else {
        Vec::new()
    };
    let is_of_class = filter.application.is_some() || filter.class.is_some();
    if is_of_class && classes.is_empty() {
        return Ok(nothing);
    }
    let classes: Vec<i64> = classes.into_iter().map(|(number, ..)| number).collect();
    let subscriber = match &filter.subscriber {
        Some(id) => match subscriber_rows::number(connection, id)? {
            Some(number) => Some(number),
            None => return Ok(nothing),
        },
        None => None,
    };
    let after = Value::Integer(after.map_or(0, |after| signed(after.0)));
    let listing = Listing::of(filter, subscriber, is_of_class, &classes);
    let values = |more: Option<i64>| {
        let key = filter.key.clone().filter(|_| listing.binds_key).map(Value::Text);
        std::iter::once(after.clone()).chain(key).chain(more.map(Value::Integer)).collect::<Vec<_>>()
    };
    let (candidates, position) = (&listing.candidates, values(None).len() + 1);
    // CROSS JOIN fixes the join order, and with it the order by number.
    let sql = format!(
        "SELECT {COLUMNS} FROM (SELECT id FROM ({candidates} LIMIT {SCANNED_ROWS_MAX}) WHERE {} LIMIT ?{position}) found
            CROSS JOIN {SOURCE} WHERE s.id = found.id ORDER BY found.id",
        listing.rest
    );
    let most = signed(limit.saturating_add(1) as u64);
    let found: Vec<Subscription> = query_all(connection, &sql, params_from_iter(values(Some(most))), subscription_of)?;
    let mut reached = None;
    if found.len() <= limit {
        let sql = format!("SELECT count(*), max(id) FROM ({candidates} LIMIT {SCANNED_ROWS_MAX})");
        let scan = query_one(connection, &sql, params_from_iter(values(None)), |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, Option<i64>>(1)?))
        })?;
        reached = scan.filter(|(scanned, _)| *scanned == SCANNED_ROWS_MAX as i64).and_then(|(_, last)| last);
    }
    let reached = reached.map(|last| SubscriptionId(last.cast_unsigned()));
    Ok(ScanPage::cut(found, limit, reached, |found: &Subscription| found.id))
}

/// Query for a page of subscriptions.
pub(super) struct Listing {
    /// Candidate rows by number, after `?1`.
    pub candidates: String,
    /// Remaining filter, tested row by row.
    rest: String,
    /// Whether `?2` is the key.
    binds_key: bool,
}

impl Listing {
    /// `classes` are those of the filter; for disabled ones of any class, all classes.
    pub fn of(filter: &SubscriptionFilter, subscriber: Option<u64>, is_of_class: bool, classes: &[i64]) -> Listing {
        let columns = "id, class, enabled";
        let mut leads = Vec::new();
        let mut rest = Vec::new();
        if let Some(number) = subscriber {
            leads.push(format!("subscriber = {number}"));
        }
        if filter.key.is_some() {
            leads.push("key = ?2".to_owned());
        }
        let numbers: Vec<String> = classes.iter().map(i64::to_string).collect();
        let of_classes = format!("class IN ({})", numbers.join(", "));
        if let Some(enabled) = filter.enabled {
            rest.push(format!("enabled = {}", i64::from(enabled)));
        }
        let candidates = if !leads.is_empty() {
            // The index by subscriber also has the class and the key.
            match (is_of_class, subscriber) {
                (true, Some(_)) => leads.push(of_classes),
                (true, None) => rest.push(of_classes),
                (false, _) => {}
            }
            let leads = leads.join(" AND ");
            format!("SELECT {columns} FROM subscriptions WHERE {leads} AND id > ?1 ORDER BY id")
        } else if !classes.is_empty() && classes.len() <= MERGED_CLASSES_MAX {
            // Most subscriptions are enabled, so an index of those would not pay.
            let condition = if filter.enabled == Some(false) { "enabled = 0" } else { "1" };
            merged_by_class(classes, columns, condition)
        } else {
            rest.extend(is_of_class.then_some(of_classes));
            format!("SELECT {columns} FROM subscriptions WHERE id > ?1 ORDER BY id")
        };
        let rest = if rest.is_empty() { "1".to_owned() } else { rest.join(" AND ") };
        Listing { candidates, rest, binds_key: filter.key.is_some() }
    }
}

/// Number of subscriptions of each class.
pub(super) fn counts(connection: &Connection) -> Result<Vec<SubscriptionCounts>, StoreError> {
    let sql = "SELECT c.application, c.name, n.enabled, n.disabled, n.added, n.last_added_at
        FROM subscription_counts n JOIN classes c ON c.number = n.class ORDER BY c.application, c.name";
    query_all(connection, sql, (), |row| {
        Ok(SubscriptionCounts {
            application: name_at(row, 0)?,
            class: name_at(row, 1)?,
            enabled: number_at(row, 2)?,
            disabled: number_at(row, 3)?,
            added: number_at(row, 4)?,
            last_added_at: Some(Timestamp(row.get(5)?)),
        })
    })
}
