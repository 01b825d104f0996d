//! Group commit of prepared changes (optimistic concurrency): one writer job applies all that are queued in a single
//! transaction. It only checks whether each is still valid and writes its rows.

use std::collections::BTreeMap;

use rusqlite::Connection;
use tocsin_model::id::SubscriberNumber;

use crate::{
    audit,
    entries::{EntryChange, EntryState, PreparedAdd, PreparedModify},
    error::StoreError,
    records::{ProfileImage, ProfileStep},
    sqlite::{
        records::{
            entry_changes, images, lifecycle, segments, subscribers,
            transaction::{LoggedProfile, RecordsTransaction},
        },
        statements::{execute, json, query_one, signed},
    },
};

/// Prepared change with its rows encoded.
pub(super) enum PreparedChange {
    /// With the attributes and the before-image for the change log, as JSON.
    PreparedModify(Box<PreparedModify>, Option<String>, String),
    /// With the attributes and preferences, as JSON.
    PreparedAdd(Box<PreparedAdd>, Option<String>, Option<String>),
}

impl PreparedChange {
    pub(super) fn of_modify(retouch: PreparedModify) -> PreparedChange {
        let step = json(&ProfileStep::to_attributes(retouch.enabled, &retouch.before));
        let attributes = (&*retouch.attributes != "{}").then(|| subscribers::padded(retouch.attributes.to_string()));
        PreparedChange::PreparedModify(Box::new(retouch), attributes, step)
    }

    pub(super) fn of_add(arrival: PreparedAdd) -> PreparedChange {
        let attributes = subscribers::attributes_json(&arrival.new.profile);
        let preferences = arrival.new.preferences.as_ref().and_then(subscribers::preferences_json);
        PreparedChange::PreparedAdd(Box::new(arrival), attributes, preferences)
    }

    /// Applies the change. Returns `false`, before anything is written, if it is no longer valid.
    pub(crate) fn write(&self, tx: &mut RecordsTransaction<'_>) -> Result<bool, StoreError> {
        let built = match self {
            PreparedChange::PreparedModify(retouch, ..) => &retouch.built,
            PreparedChange::PreparedAdd(arrival, ..) => &arrival.built,
        };
        if !tx.watcher.as_ref().is_some_and(|watcher| watcher.is_still_valid(built)) {
            return Ok(false);
        }
        match self {
            PreparedChange::PreparedModify(retouch, attributes, step) => {
                write_modify(tx, retouch, attributes.as_deref(), step)
            }
            PreparedChange::PreparedAdd(arrival, attributes, preferences) => {
                write_add(tx, arrival, attributes.as_deref(), preferences.as_deref())
            }
        }
    }
}

fn write_modify(
    tx: &mut RecordsTransaction<'_>,
    retouch: &PreparedModify,
    attributes: Option<&str>,
    step: &str,
) -> Result<bool, StoreError> {
    let PreparedModify { number, revision, gone, made, now, built, .. } = retouch;
    // The event of the change needs the former attributes, which the ordinary modify reads.
    if lifecycle::covers_persons(tx)? || entry_changes::may_conflict(tx, Some((*number).into()), made)? {
        return Ok(false);
    }
    let whole = match tx.logs_full_image() {
        true => match before_image(tx.connection, *number) {
            Ok(before_image) => before_image.map(|before_image| json(&before_image)),
            // The ordinary modify then reports the damage.
            Err(StoreError::Damaged(_)) => return Ok(false),
            Err(error) => return Err(error),
        },
        false => None,
    };
    let logged = whole.as_deref().map_or(LoggedProfile::UndoStep(step), LoggedProfile::Full);
    let Some(sequence) = tx.log_profile_at_revision(*number, *revision, logged)? else { return Ok(false) };
    let place = [number.0, *revision].map(signed);
    let sql = "UPDATE subscribers SET attributes = ?3, updated_at = ?4, revision = ?2 + 1, told = ?5 WHERE number = ?1";
    execute(tx.connection, sql, (place[0], place[1], attributes, now.0, signed(sequence)))?;
    let former = || serde_json::to_value(&retouch.before).unwrap_or_default();
    if audit::is_recording() {
        images::attributes(tx.connection, number.0, former(), &retouch.attributes)?;
    }
    tx.touched.push(number.0);
    let keys = [&gone[..], made].concat();
    let change =
        EntryChange { number: (*number).into(), keys, renamed: false, now: EntryState::Prepared(built.clone()) };
    entry_changes::index_diff(tx, gone, made, change)?;
    Ok(true)
}

fn write_add(
    tx: &mut RecordsTransaction<'_>,
    arrival: &PreparedAdd,
    attributes: Option<&str>,
    preferences: Option<&str>,
) -> Result<bool, StoreError> {
    let PreparedAdd { new, placement, credential, keys, now, built } = arrival;
    if lifecycle::covers_persons(tx)? || entry_changes::may_conflict(tx, None, keys)? {
        return Ok(false);
    }
    let parent = placement.parent.0;
    let sql = "SELECT 1 FROM entries WHERE number = ?1
        AND NOT EXISTS (SELECT 1 FROM entries WHERE parent = ?1 AND rdn_key = ?2)";
    if query_one(tx.connection, sql, (parent, &*placement.rdn_key), |_| Ok(()))?.is_none() {
        return Ok(false);
    }
    let number = SubscriberNumber(tx.subscriber + 1);
    let profile = &new.profile;
    let sql =
        "INSERT INTO subscribers (number, id, enabled, locale, time_zone, attributes, created_at, updated_at, revision,
            preferences, parent, rdn, rdn_key, classes)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7, 1, ?8, ?9, ?10, ?11, ?12) ON CONFLICT DO NOTHING";
    let row = (
        signed(number.0),
        new.id.as_str(),
        profile.enabled,
        &profile.locale,
        &profile.time_zone,
        attributes,
        now.0,
        preferences,
        parent,
        &*placement.rdn,
        &*placement.rdn_key,
        &*placement.classes,
    );
    if execute(tx.connection, sql, row)? == 0 {
        return Ok(false);
    }
    tx.subscriber = number.0;
    tx.counts.subscribers += 1;
    let devices: BTreeMap<_, _> = new.devices.iter().flatten().map(|(name, device)| (name, device)).collect();
    for (name, device) in devices {
        subscribers::put_row(tx, number, name, device)?;
    }
    images::made_subscriber(tx.connection, number.0)?;
    if credential.is_some() {
        entry_changes::put_credential(tx, number.into(), credential.as_deref())?;
    }
    let change = EntryChange {
        number: number.into(),
        keys: keys.clone(),
        renamed: false,
        now: EntryState::Prepared(built.clone()),
    };
    entry_changes::index_diff(tx, &[], keys, change)?;
    Ok(true)
}

/// Full before-image of a subscriber.
fn before_image(connection: &Connection, number: SubscriberNumber) -> Result<Option<ProfileImage>, StoreError> {
    Ok(segments::present(connection, number.0)?.map(|(before_image, _)| before_image))
}
