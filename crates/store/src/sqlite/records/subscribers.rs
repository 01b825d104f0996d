//! Subscribers and their devices.

use std::collections::BTreeMap;

use rusqlite::{Connection, params_from_iter, types::Value};
use tocsin_model::{
    id::{Name, SubscriberId, SubscriberNumber},
    mailbox,
    preferences::Preferences,
    subscriber::{Device, DeviceState, Profile, Subscriber},
    time::Timestamp,
};

use crate::{
    bounded_scan::{SCANNED_ROWS_MAX, ScanPage},
    entries::{EntryNode, LoginNames, Placement},
    error::StoreError,
    records::{
        NewSubscriber, Precondition, SubscriberFilter, Written, has_attribute, keep_state, moved_devices, no_device,
        no_subscriber, reach,
    },
    sqlite::{
        records::{
            consent_rows, entry_changes, feedback, images, lifecycle, notifybc_rows, schedule_rows,
            subscriber_rows::{COLUMNS, devices, find, spelling_hash, subscriber_of},
            subscriptions, suppressions,
            transaction::RecordsTransaction,
        },
        statements::{execute, json, signed},
        writer::store_error,
    },
};

pub(super) fn preferences_json(preferences: &Preferences) -> Option<String> {
    (!preferences.is_empty()).then(|| json(preferences))
}

pub(super) fn attributes_json(profile: &Profile) -> Option<String> {
    (!profile.attributes.is_empty()).then(|| padded(json(&profile.attributes)))
}

/// JSON padded with spaces, four percent on average, so that it can grow in position. A row that keeps its size is
/// overwritten; one that grows on a full page splits the page, and most pages are full after an import.
pub(super) fn padded(mut json: String) -> String {
    let step = (json.len().next_power_of_two() / 16).max(1);
    json.extend(std::iter::repeat_n(' ', json.len().next_multiple_of(step) - json.len()));
    json
}

const fn state_number(state: DeviceState) -> i64 {
    match state {
        DeviceState::Active => 0,
        DeviceState::Disabled => 1,
        DeviceState::Bounced => 2,
        DeviceState::Failed => 3,
        DeviceState::Pending => 4,
    }
}

/// Equal for all spellings of a mailbox.
pub(super) fn address_hash(address: &str) -> i64 {
    spelling_hash(&mailbox::comparable(address))
}

pub(super) fn put(
    tx: &mut RecordsTransaction<'_>,
    new: NewSubscriber,
    expect: Precondition,
    now: Timestamp,
) -> Result<Subscriber, StoreError> {
    put_placed(tx, new, None, expect, now)
}

/// The same, with a new placement in the directory, if any.
pub(super) fn put_placed(
    tx: &mut RecordsTransaction<'_>,
    new: NewSubscriber,
    placement: Option<Placement>,
    expect: Precondition,
    now: Timestamp,
) -> Result<Subscriber, StoreError> {
    let old = find(tx.connection, &new.id)?;
    expect.check(old.as_ref().map(|old| old.revision), || format!("subscriber `{}`", new.id))?;
    let mut devices = new.devices.map(BTreeMap::from_iter);
    let Some(old) = old else {
        let names = match &placement {
            None => LoginNames::Id(&new.id),
            Some(_) => LoginNames::Attributes { before: None, now: &new.profile.attributes },
        };
        entry_changes::check_login(tx, None, names)?;
        tx.subscriber += 1;
        tx.counts.subscribers += 1;
        let made = Subscriber {
            number: SubscriberNumber(tx.subscriber),
            id: new.id,
            profile: new.profile,
            devices: devices.unwrap_or_default(),
            preferences: new.preferences.unwrap_or_default(),
            created_at: now,
            updated_at: now,
            revision: 1,
        };
        execute(
            tx.connection,
            "INSERT INTO subscribers (number, id, enabled, locale, time_zone, attributes, created_at, updated_at, revision,
                    preferences)
                VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7, 1, ?8)",
            (
                signed(made.number.0),
                made.id.as_str(),
                made.profile.enabled,
                &made.profile.locale,
                &made.profile.time_zone,
                attributes_json(&made.profile),
                now.0,
                preferences_json(&made.preferences),
            ),
        )?;
        for (name, device) in &made.devices {
            put_row(tx, made.number, name, device)?;
        }
        if let Some(placement) = &placement {
            entry_changes::set_placement(tx.connection, made.number, placement)?;
        }
        images::subscriber(None, Some(&made));
        entry_changes::made(tx, &made, placement)?;
        lifecycle::record_person(tx, None, Some(&made), now)?;
        return Ok(made);
    };
    let mut profile = new.profile;
    new.kept.apply(&mut profile, devices.as_mut(), &old);
    let devices = devices.unwrap_or_else(|| old.devices.clone());
    let preferences = new.preferences.unwrap_or_else(|| old.preferences.clone());
    replace(tx, old, profile, devices, preferences, placement, now)
}

/// Replaces a subscriber that was just read.
pub(super) fn change_placed(
    tx: &mut RecordsTransaction<'_>,
    node: &EntryNode,
    new: NewSubscriber,
    placement: Option<Placement>,
    now: Timestamp,
) -> Result<(), StoreError> {
    let EntryNode::Subscriber(old, _) = node else { return Ok(()) };
    let devices = new.devices.map_or_else(|| old.devices.clone(), BTreeMap::from_iter);
    let preferences = new.preferences.unwrap_or_else(|| old.preferences.clone());
    let Some(new) = rewrite(tx, old, new.profile, devices, preferences, placement.as_ref(), now)? else {
        return Ok(());
    };
    entry_changes::changed(tx, node, new, placement)
}

/// Stores many subscribers in the order of their ids, which is the order of the index.
pub(super) fn put_many(
    tx: &mut RecordsTransaction<'_>,
    new: Vec<NewSubscriber>,
    now: Timestamp,
) -> Result<Vec<Written<SubscriberNumber>>, StoreError> {
    let mut numbers: Vec<_> = new.iter().map(|_| Ok(SubscriberNumber(0))).collect();
    let mut new: Vec<_> = new.into_iter().enumerate().collect();
    // Must stay a stable sort: of two items for one subscriber, the later one wins.
    new.sort_by(|(_, one), (_, other)| one.id.cmp(&other.id));
    for (position, new) in new {
        numbers[position] = match put(tx, new, Precondition::Any, now) {
            Ok(put) => Ok(put.number),
            // Detected before anything is written, so the other items proceed.
            Err(StoreError::Taken(what)) => Err(StoreError::Taken(what)),
            Err(error) => return Err(error),
        };
    }
    Ok(numbers)
}

/// Writes a change, if there is any.
pub(super) fn replace(
    tx: &mut RecordsTransaction<'_>,
    old: Subscriber,
    profile: Profile,
    devices: BTreeMap<Name, Device>,
    preferences: Preferences,
    placement: Option<Placement>,
    now: Timestamp,
) -> Result<Subscriber, StoreError> {
    let placement_before = entry_changes::placement_of(tx, old.number)?;
    let Some(new) = rewrite(tx, &old, profile, devices, preferences, placement.as_ref(), now)? else {
        return Ok(old);
    };
    entry_changes::replaced(tx, (old, placement_before), &new, placement)?;
    Ok(new)
}

/// The same, without a notification of the directory; `None` if nothing changed.
fn rewrite(
    tx: &mut RecordsTransaction<'_>,
    old: &Subscriber,
    profile: Profile,
    devices: BTreeMap<Name, Device>,
    preferences: Preferences,
    placement: Option<&Placement>,
    now: Timestamp,
) -> Result<Option<Subscriber>, StoreError> {
    let mut devices = devices;
    for (name, is_new) in moved_devices(&old.devices, &devices) {
        if subscriptions::address_changed(tx, old.number.0, (&name, &devices[&name]), is_new, now)?
            && let Some(device) = devices.get_mut(&name)
        {
            device.state = DeviceState::Pending;
        }
    }
    let same_devices = old.devices == devices;
    if old.profile == profile && same_devices && old.preferences == preferences && placement.is_none() {
        return Ok(None);
    }
    // Without a placement, the login name is the id, which stays.
    if old.profile.attributes != profile.attributes && entry_changes::is_placed(tx, old.number, placement)? {
        let names = LoginNames::Attributes { before: Some(&old.profile.attributes), now: &profile.attributes };
        entry_changes::check_login(tx, Some(old.number.into()), names)?;
    }
    tx.touched.push(old.number.0);
    let before = reach(&old.profile, &old.devices);
    let same_reach = same_devices && old.profile.enabled == profile.enabled;
    let reach_changed = !same_reach && before != reach(&profile, &devices);
    let zone_changed = old.profile.time_zone != profile.time_zone;
    for name in old.devices.keys().filter(|name| !devices.contains_key(*name)) {
        let sql = "DELETE FROM devices WHERE subscriber = ?1 AND name = ?2";
        execute(tx.connection, sql, (signed(old.number.0), name.as_str()))?;
        tx.counts.devices -= 1;
    }
    for (name, device) in &devices {
        match old.devices.get(name) {
            Some(same) if same == device => {}
            Some(held) => {
                update_row(tx, old.number, name, device)?;
                if held.address != device.address {
                    notifybc_rows::address_changed(tx, old.number.0, (name, &device.address), now)?;
                }
            }
            None => put_row(tx, old.number, name, device)?,
        }
    }
    // The enabled flag is part of the reach.
    let logged = match old.profile.has_same_content(&profile) {
        true => None,
        false => Some(signed(tx.profile_changed(old, Some(&profile))?)),
    };
    let new = Subscriber {
        number: old.number,
        id: old.id.clone(),
        profile,
        devices,
        preferences,
        created_at: old.created_at,
        updated_at: now,
        revision: old.revision + 1,
    };
    execute(
        tx.connection,
        "UPDATE subscribers SET enabled = ?2, locale = ?3, time_zone = ?4, attributes = ?5, updated_at = ?6, revision = ?7,
                preferences = ?8, told = coalesce(?9, told), enabled_at = coalesce(?10, enabled_at)
            WHERE number = ?1",
        (
            signed(new.number.0),
            new.profile.enabled,
            &new.profile.locale,
            &new.profile.time_zone,
            attributes_json(&new.profile),
            now.0,
            signed(new.revision),
            preferences_json(&new.preferences),
            logged,
            (new.profile.enabled && !old.profile.enabled).then_some(now.0),
        ),
    )?;
    images::subscriber(Some(old), Some(&new));
    lifecycle::record_person(tx, Some(old), Some(&new), now)?;
    let rescheduled = zone_changed && schedule_rows::change_zone(tx, new.number.0, now)?;
    if reach_changed || rescheduled {
        tx.subscriber_changed(new.number.0, before.map(|before| json(&before)).as_deref())?;
    }
    if let Some(placement) = placement {
        entry_changes::set_placement(tx.connection, new.number, placement)?;
    }
    Ok(Some(new))
}

pub(super) fn put_row(
    tx: &mut RecordsTransaction<'_>,
    subscriber: SubscriberNumber,
    name: &Name,
    device: &Device,
) -> Result<(), StoreError> {
    let sql =
        "INSERT INTO devices (subscriber, name, channel, address, address_hash, state) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    tx.counts.devices += 1;
    write_row(tx, sql, subscriber, name, device)
}

fn update_row(
    tx: &mut RecordsTransaction<'_>,
    subscriber: SubscriberNumber,
    name: &Name,
    device: &Device,
) -> Result<(), StoreError> {
    let sql = "UPDATE devices SET channel = ?3, address = ?4, address_hash = ?5, state = ?6 WHERE subscriber = ?1 AND name = ?2";
    write_row(tx, sql, subscriber, name, device)
}

fn write_row(
    tx: &RecordsTransaction<'_>,
    sql: &str,
    subscriber: SubscriberNumber,
    name: &Name,
    device: &Device,
) -> Result<(), StoreError> {
    let row = (
        signed(subscriber.0),
        name.as_str(),
        device.channel.as_str(),
        &device.address,
        address_hash(&device.address),
        state_number(device.state),
    );
    execute(tx.connection, sql, row).map(|_| ())
}

pub(super) fn put_device(
    tx: &mut RecordsTransaction<'_>,
    id: &SubscriberId,
    name: Name,
    mut device: Device,
    keeps_state: bool,
    now: Timestamp,
) -> Result<Subscriber, StoreError> {
    let old = find(tx.connection, id)?.ok_or_else(|| no_subscriber(id))?;
    let mut devices = old.devices.clone();
    if keeps_state {
        keep_state(&mut device, devices.get(&name));
    }
    devices.insert(name, device);
    let (profile, preferences) = (old.profile.clone(), old.preferences.clone());
    replace(tx, old, profile, devices, preferences, None, now)
}

pub(super) fn remove_device(
    tx: &mut RecordsTransaction<'_>,
    id: &SubscriberId,
    name: &Name,
    now: Timestamp,
) -> Result<Subscriber, StoreError> {
    let old = find(tx.connection, id)?.ok_or_else(|| no_subscriber(id))?;
    let mut devices = old.devices.clone();
    devices.remove(name).ok_or_else(|| no_device(id, name))?;
    let (profile, preferences) = (old.profile.clone(), old.preferences.clone());
    replace(tx, old, profile, devices, preferences, None, now)
}

pub(super) fn remove(
    tx: &mut RecordsTransaction<'_>,
    id: &SubscriberId,
    expect: Precondition,
    now: Timestamp,
) -> Result<(), StoreError> {
    let old = find(tx.connection, id)?;
    expect.check(old.as_ref().map(|old| old.revision), || format!("subscriber `{id}`"))?;
    let old = old.ok_or_else(|| no_subscriber(id))?;
    let number = signed(old.number.0);
    tx.touched.push(old.number.0);
    images::subscriber(Some(&old), None);
    entry_changes::removed(tx, &old)?;
    subscriptions::remove_all_of_subscriber(tx, old.number.0, now)?;
    suppressions::remove_all_of_subscriber(tx, id)?;
    feedback::remove_all_of_subscriber(tx, id)?;
    consent_rows::erase(tx.connection, old.number.0, now)?;
    lifecycle::record_person(tx, Some(&old), None, now)?;
    execute(tx.connection, "DELETE FROM devices WHERE subscriber = ?1", [number])?;
    tx.profile_changed(&old, None)?;
    execute(tx.connection, "DELETE FROM subscribers WHERE number = ?1", [number])?;
    tx.counts.devices -= old.devices.len() as u64;
    tx.counts.subscribers -= 1;
    let before = reach(&old.profile, &old.devices).map(|before| json(&before));
    tx.subscriber_changed(old.number.0, before.as_deref())
}

/// Page of subscribers. Uses the index by address, or else of disabled ones, or else by id; the rest of the filter is
/// tested row by row.
pub(super) fn list(
    connection: &Connection,
    filter: &SubscriberFilter,
    after: Option<&SubscriberId>,
    limit: usize,
) -> Result<ScanPage<Subscriber, SubscriberId>, StoreError> {
    let mut statement = connection.prepare_cached(&listing(filter)).map_err(store_error)?;
    let prefix = filter.id_prefix.as_deref().unwrap_or_default();
    let mut values =
        vec![Value::Text(after.map_or_else(String::new, ToString::to_string)), Value::Text(prefix.to_owned())];
    if let Some(address) = &filter.address {
        // Earlier versions hashed the address as spelled.
        values.extend([address_hash(address), spelling_hash(address)].map(Value::Integer));
    }
    let mut rows = statement.query(params_from_iter(values)).map_err(store_error)?;
    let (mut page, mut scanned, mut reached) = (Vec::new(), 0, None);
    while page.len() <= limit
        && let Some(row) = rows.next().map_err(store_error)?
    {
        if scanned == SCANNED_ROWS_MAX {
            return Ok(ScanPage::cut(page, limit, reached, |found: &Subscriber| found.id.clone()));
        }
        scanned += 1;
        let mut found = subscriber_of(row).map_err(store_error)?;
        if !found.id.as_str().starts_with(prefix) {
            break;
        }
        reached = Some(found.id.clone());
        let profile = &found.profile;
        let fits = filter.locale.as_ref().is_none_or(|locale| profile.locale.as_ref() == Some(locale))
            && filter.enabled.is_none_or(|enabled| profile.enabled == enabled)
            && filter.attribute.as_ref().is_none_or(|(name, text)| has_attribute(&profile.attributes, name, text));
        if !fits {
            continue;
        }
        found.devices = devices(connection, found.number.0)?;
        if let Some(address) = &filter.address
            && !found.devices.values().any(|device| mailbox::is_same(&device.address, address))
        {
            continue;
        }
        page.push(found);
    }
    Ok(ScanPage::cut(page, limit, None, |found: &Subscriber| found.id.clone()))
}

/// Query for the candidate rows by id: after `?1`, from `?2` on.
pub(super) fn listing(filter: &SubscriberFilter) -> String {
    // CROSS JOIN fixes the join order: the few devices with the address come first.
    let source = match filter.address {
        Some(_) => {
            "(SELECT DISTINCT subscriber FROM devices WHERE address_hash IN (?3, ?4)) d
                CROSS JOIN subscribers s ON s.number = d.subscriber"
        }
        None => "subscribers s",
    };
    // Most subscribers are enabled, so an index of those would not pay.
    let disabled = if filter.enabled == Some(false) { "AND s.enabled = 0" } else { "" };
    format!("SELECT {COLUMNS} FROM {source} WHERE s.id > ?1 AND s.id >= ?2 {disabled} ORDER BY s.id")
}
