//! Segments, and the subscribers that satisfy a filter.

use std::{
    collections::BTreeMap,
    fmt,
    ops::{Bound, RangeBounds},
    sync::Arc,
};

use rusqlite::{Connection, Row};
use serde::{
    Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};
use tocsin_model::{
    id::{ChangeSequence, Name, SubscriberId, SubscriberNumber},
    ldap::{Entry, LdapFilter},
    segment::Segment,
    subscriber::Profile,
    time::Timestamp,
    value::Value,
};

use super::{
    images,
    matching::ReachReader,
    transaction::{self, RecordsTransaction, Snapshot},
};
use crate::{
    error::StoreError,
    records::{NewSegment, Precondition, ProfileImage, SegmentScan, SegmentScanBounds, no_segment, read_filter},
    sqlite::{
        records::subscriber_rows,
        statements::{conversion_failed, execute, name_at, number_at, parsed_at, query_all, query_one, signed},
        writer::store_error,
    },
};

const COLUMNS: &str = "name, description, filter, created_at, updated_at, revision";

fn segment_of(row: &Row<'_>) -> rusqlite::Result<Segment> {
    Ok(Segment {
        name: name_at(row, 0)?,
        description: row.get(1)?,
        filter: row.get(2)?,
        created_at: Timestamp(row.get(3)?),
        updated_at: Timestamp(row.get(4)?),
        revision: number_at(row, 5)?,
    })
}

pub(super) fn find(connection: &Connection, name: &Name) -> Result<Option<Segment>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM segments WHERE name = ?1");
    query_one(connection, &sql, [name.as_str()], segment_of)
}

pub(super) fn list(connection: &Connection, after: Option<&Name>, limit: usize) -> Result<Vec<Segment>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM segments WHERE name > ?1 ORDER BY name LIMIT ?2");
    query_all(connection, &sql, (after.map_or("", Name::as_str), signed(limit as u64)), segment_of)
}

pub(super) fn put(
    tx: &mut RecordsTransaction<'_>,
    new: NewSegment,
    expect: Precondition,
    now: Timestamp,
) -> Result<Segment, StoreError> {
    let old = find(tx.connection, &new.name)?;
    expect.check(old.as_ref().map(|old| old.revision), || format!("segment `{}`", new.name))?;
    let before = old.as_ref().map(|old| old.filter.clone());
    let stored = match &old {
        Some(old) if old.description == new.description && old.filter == new.filter => return Ok(old.clone()),
        Some(old) => new.over(old, now),
        None => new.first(now),
    };
    execute(
        tx.connection,
        "INSERT INTO segments (name, description, filter, created_at, updated_at, revision)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6)
            ON CONFLICT (name) DO UPDATE SET description = ?2, filter = ?3, updated_at = ?5, revision = ?6",
        (
            stored.name.as_str(),
            &stored.description,
            &*stored.filter,
            stored.created_at.0,
            stored.updated_at.0,
            signed(stored.revision),
        ),
    )?;
    images::segment(old.as_ref(), Some(&stored));
    tx.segment_changed(&stored.name, before.as_deref())?;
    Ok(stored)
}

pub(super) fn remove(tx: &mut RecordsTransaction<'_>, name: &Name, expect: Precondition) -> Result<(), StoreError> {
    let old = find(tx.connection, name)?;
    expect.check(old.as_ref().map(|old| old.revision), || format!("segment `{name}`"))?;
    let old = old.ok_or_else(|| no_segment(name))?;
    execute(tx.connection, "DELETE FROM segments WHERE name = ?1", [name.as_str()])?;
    images::segment(Some(&old), None);
    tx.segment_changed(name, Some(&old.filter))
}

/// Memberships of subscribers in segments at a sequence of the change log.
pub(super) fn memberships(
    connection: &Connection,
    segments: &[Name],
    subscribers: &[SubscriberNumber],
    at: ChangeSequence,
) -> Result<Vec<u64>, StoreError> {
    let snapshot = transaction::snapshot_at(connection, at)?;
    let mut filters = Vec::with_capacity(segments.len());
    for segment in segments {
        let before = snapshot
            .as_ref()
            .map(|snapshot| transaction::filter_before(connection, segment, snapshot))
            .transpose()?
            .flatten();
        let text = match before {
            Some(before) => before,
            None => find(connection, segment)?.map(|found| found.filter.into()),
        };
        filters.push(text.and_then(|text| read_filter(segment, &text)));
    }
    let mut reaches = ReachReader::new(connection, snapshot.as_ref())?;
    each(subscribers, |number| {
        let reach = reaches.of(number.0)?.map(|reach| reach.iter().map(|(_, channel)| channel).collect());
        Ok(image(connection, number.0, snapshot.as_ref())?.map_or(0, |image| image.memberships(&filters, reach)))
    })
}

/// Profiles of subscribers at a sequence of the change log.
pub(super) fn profiles(
    connection: &Connection,
    subscribers: &[SubscriberNumber],
    at: ChangeSequence,
) -> Result<Vec<Option<Arc<ProfileImage>>>, StoreError> {
    let snapshot = transaction::snapshot_at(connection, at)?;
    each(subscribers, |number| Ok(image(connection, number.0, snapshot.as_ref())?.map(Arc::new)))
}

/// Looks up each subscriber once if it repeats in a row, as those of subscriptions do.
fn each<T: Clone>(
    subscribers: &[SubscriberNumber],
    mut look_up: impl FnMut(SubscriberNumber) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    let mut found: Vec<T> = Vec::with_capacity(subscribers.len());
    for (at, number) in subscribers.iter().enumerate() {
        let known = at.checked_sub(1).filter(|before| subscribers[*before] == *number);
        found.push(match known {
            Some(before) => found[before].clone(),
            None => look_up(*number)?,
        });
    }
    Ok(found)
}

fn image(
    connection: &Connection,
    subscriber: u64,
    snapshot: Option<&Snapshot>,
) -> Result<Option<ProfileImage>, StoreError> {
    match snapshot {
        Some(snapshot) => transaction::profile_at(connection, subscriber, snapshot, || present(connection, subscriber)),
        None => Ok(present(connection, subscriber)?.map(|(image, _)| image)),
    }
}

/// Present profile of a subscriber, and the newest logged change of it.
pub(super) fn present(
    connection: &Connection,
    subscriber: u64,
) -> Result<Option<(ProfileImage, Option<i64>)>, StoreError> {
    let sql = "SELECT id, created_at, enabled, locale, time_zone, attributes, told FROM subscribers WHERE number = ?1";
    query_one(connection, sql, [signed(subscriber)], |row| {
        let image = ProfileImage {
            id: parsed_at(row, 0)?,
            created_at: Timestamp(row.get(1)?),
            profile: subscriber_rows::profile_at(row, 2)?,
        };
        Ok((image, row.get(6)?))
    })
}

/// Tests subscribers against a filter, within the range of ids that can satisfy it. Only attributes used by the
/// filter are parsed.
pub(super) fn scan_matching(
    connection: &Connection,
    filter: &LdapFilter,
    after: Option<&SubscriberId>,
    bounds: SegmentScanBounds,
) -> Result<SegmentScan, StoreError> {
    let ids = filter.ids();
    let low = match ids.0 {
        Bound::Included(low) | Bound::Excluded(low) => low,
        Bound::Unbounded => "",
    };
    let sql = "SELECT id, number, enabled, locale, time_zone, attributes, created_at FROM subscribers
        WHERE id > ?1 AND id >= ?2 ORDER BY id";
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    let mut rows = statement.query((after.map_or("", SubscriberId::as_str), low)).map_err(store_error)?;
    let mut scan = SegmentScan::default();
    loop {
        let Some(row) = rows.next().map_err(store_error)? else { return Ok(scan) };
        let id: SubscriberId = parsed_at(row, 0).map_err(store_error)?;
        if !RangeBounds::<str>::contains(&ids, id.as_str()) {
            return Ok(scan);
        }
        scan.looked_at += 1;
        let number = number_at(row, 1).map_err(store_error)?;
        let channels = if filter.references_channels() { active_channels(connection, number)? } else { Vec::new() };
        let profile = profile_at(row, filter).map_err(store_error)?;
        let entry = Entry {
            id: &id,
            profile: &profile,
            channels: channels.iter().collect(),
            created_at: Timestamp(row.get(6).map_err(store_error)?),
        };
        if filter.matches(&entry) {
            scan.members += 1;
            if scan.found.len() < bounds.kept {
                scan.found.extend(subscriber_rows::find(connection, &id)?);
            }
        }
        if bounds.are_reached(&scan) {
            scan.reached = Some(id);
            return Ok(scan);
        }
    }
}

fn active_channels(connection: &Connection, subscriber: u64) -> Result<Vec<Name>, StoreError> {
    let sql = "SELECT channel FROM devices WHERE subscriber = ?1 AND state = 0";
    query_all(connection, sql, [signed(subscriber)], |row| name_at(row, 0))
}

/// Profile with the attributes that a filter uses.
fn profile_at(row: &Row<'_>, filter: &LdapFilter) -> rusqlite::Result<Profile> {
    let attributes = match row.get_ref(5)?.as_str_or_null()? {
        None => BTreeMap::new(),
        Some(json) => serde_json::Deserializer::from_str(json)
            .deserialize_map(SelectedAttributes(filter))
            .map_err(|error| conversion_failed(5, error))?,
    };
    Ok(Profile { enabled: row.get(2)?, locale: row.get(3)?, time_zone: row.get(4)?, attributes })
}

struct SelectedAttributes<'a>(&'a LdapFilter);

impl<'de> Visitor<'de> for SelectedAttributes<'_> {
    type Value = BTreeMap<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of attributes")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut attributes = BTreeMap::new();
        while let Some(name) = entries.next_key::<std::borrow::Cow<'de, str>>()? {
            if self.0.references(&name) {
                attributes.insert(name.into_owned(), entries.next_value()?);
            } else {
                entries.next_value::<IgnoredAny>()?;
            }
        }
        Ok(attributes)
    }
}
