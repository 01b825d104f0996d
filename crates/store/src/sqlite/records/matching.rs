//! Rows of the match index: enabled subscriptions with their channels, at present and at a snapshot sequence.

use std::{
    collections::{BTreeMap, HashMap},
    ops::RangeInclusive,
};

use rusqlite::{Connection, Row};
use tocsin_model::{
    id::{ChangeSequence, Name, SubscriberNumber, SubscriptionId},
    subscription::SubscriptionParams,
    time::Timestamp,
};

use super::{
    subscriptions::{MERGED_CLASSES_MAX, merged_by_class, optional_name_at, terms_at},
    transaction::{self, Snapshot},
};
use crate::{
    error::StoreError,
    records::IndexedSubscription,
    sqlite::{
        records::classes,
        statements::{name_at, number_at, signed},
        writer::store_error,
    },
};

/// Enabled subscriptions of an application from after one number, by number, with their channels.
pub(super) fn indexed(
    connection: &Connection,
    application: &Name,
    after: u64,
    limit: usize,
) -> Result<Vec<IndexedSubscription>, StoreError> {
    let classes = classes::classes(connection, Some(application), None)?;
    if classes.is_empty() || limit == 0 {
        return Ok(Vec::new());
    }
    let numbers: Vec<i64> = classes.iter().map(|(number, ..)| *number).collect();
    let condition = "enabled";
    let sql = if classes.len() <= MERGED_CLASSES_MAX {
        merged_by_class(&numbers, COLUMNS, condition)
    } else {
        format!(
            "SELECT {COLUMNS} FROM subscriptions WHERE id > ?1 AND {condition}
                AND class IN (SELECT number FROM classes WHERE application = '{application}') ORDER BY id"
        )
    };
    let names: HashMap<i64, Name> = classes.into_iter().map(|(number, _, name)| (number, name)).collect();
    let mut statement = connection.prepare_cached(&sql).map_err(store_error)?;
    let mut rows = statement.query([signed(after)]).map_err(store_error)?;
    let mut reaches = ReachReader::new(connection, None)?;
    let mut page = Vec::new();
    while page.len() < limit
        && let Some(row) = rows.next().map_err(store_error)?
    {
        let stored = stored_of(row).map_err(store_error)?;
        page.extend(stored.indexed(&names, &mut reaches)?);
    }
    Ok(page)
}

/// Enabled subscriptions of an application in some ranges of numbers, at a sequence of the change log. A subscription
/// changed since appears as in its first before-image after the sequence; one created since is left out.
pub(super) fn indexed_at(
    connection: &Connection,
    application: &Name,
    ranges: &[RangeInclusive<SubscriptionId>],
    at: ChangeSequence,
) -> Result<Vec<IndexedSubscription>, StoreError> {
    let snapshot = transaction::snapshot_at(connection, at)?;
    let classes = classes::classes(connection, Some(application), None)?;
    let names: HashMap<i64, Name> = classes.into_iter().map(|(number, _, name)| (number, name)).collect();
    let mut reaches = ReachReader::new(connection, snapshot.as_ref())?;
    let mut found = Vec::new();
    for range in ranges {
        let (first, last) = (range.start().0, range.end().0);
        let last = snapshot.as_ref().map_or(last, |snapshot| last.min(snapshot.subscription));
        let mut rows: BTreeMap<u64, StoredSubscription> = BTreeMap::new();
        let mut read = |sql: &str, parameters: &[i64]| {
            let mut statement = connection.prepare_cached(sql)?;
            let mut found = statement.query(rusqlite::params_from_iter(parameters))?;
            while let Some(row) = found.next()? {
                // The first image is the oldest; the row itself is newer than all images.
                let stored = stored_of(row)?;
                rows.entry(stored.id).or_insert(stored);
            }
            Ok(())
        };
        if let Some(snapshot) = &snapshot {
            let sql = "SELECT subscription, class, subscriber, device, parameters, filter, schedule, created_at, enabled,
                NULL FROM before_images WHERE subscription BETWEEN ?1 AND ?2 AND sequence > ?3 ORDER BY subscription, sequence";
            read(sql, &[signed(first), signed(last), signed(snapshot.at)]).map_err(store_error)?;
        }
        let sql = format!("SELECT {COLUMNS} FROM subscriptions WHERE id BETWEEN ?1 AND ?2");
        read(&sql, &[signed(first), signed(last)]).map_err(store_error)?;
        for stored in rows.into_values().filter(|stored| stored.enabled) {
            let indexed = stored.indexed(&names, &mut reaches)?;
            found.extend(indexed.map(|indexed| IndexedSubscription { enabled_at: None, ..indexed }));
        }
    }
    Ok(found)
}

/// Columns that [`stored_of`] reads.
pub(super) const COLUMNS: &str =
    "id, class, subscriber, device, parameters, filter, schedule, created_at, enabled, enabled_at";

/// Row or before-image, as needed by the index.
pub(super) struct StoredSubscription {
    id: u64,
    class: i64,
    subscriber: u64,
    device: Option<Name>,
    values: Box<str>,
    terms: SubscriptionParams,
    created_at: Timestamp,
    enabled: bool,
    enabled_at: Option<Timestamp>,
}

pub(super) fn stored_of(row: &Row<'_>) -> rusqlite::Result<StoredSubscription> {
    Ok(StoredSubscription {
        id: number_at(row, 0)?,
        class: row.get(1)?,
        subscriber: number_at(row, 2)?,
        device: optional_name_at(row, 3)?,
        values: row.get(4)?,
        terms: terms_at(row, 5)?,
        created_at: Timestamp(row.get(7)?),
        enabled: row.get(8)?,
        enabled_at: row.get::<_, Option<i64>>(9)?.map(Timestamp),
    })
}

impl StoredSubscription {
    /// `None` if its class is not among `classes`, or its subscriber is disabled.
    pub(super) fn indexed(
        self,
        classes: &HashMap<i64, Name>,
        reaches: &mut ReachReader<'_>,
    ) -> Result<Option<IndexedSubscription>, StoreError> {
        let Some(class) = classes.get(&self.class) else { return Ok(None) };
        let Some(channels) = reaches.of(self.subscriber)? else { return Ok(None) };
        let channel = match &self.device {
            Some(device) => channels.iter().find(|(name, _)| name == device),
            None => channels.first(),
        };
        let channel = channel.map(|(_, channel)| channel.clone());
        Ok(Some(IndexedSubscription {
            id: SubscriptionId(self.id),
            subscriber: SubscriberNumber(self.subscriber),
            class: class.clone(),
            values: self.values,
            terms: self.terms,
            created_at: self.created_at,
            enabled_at: self.enabled_at.max(reaches.enabled_at),
            channel,
        }))
    }
}

/// Active devices and their channels by name; `None` if the subscriber is disabled.
type Reach = Option<Vec<(Name, Name)>>;

/// Reads the active devices of subscribers, and caches the last: subscriptions of one subscriber are mostly
/// consecutive, since they were imported together.
pub(super) struct ReachReader<'c> {
    connection: &'c Connection,
    snapshot: Option<&'c Snapshot>,
    statement: rusqlite::CachedStatement<'c>,
    /// One `Name` per channel instead of one per row.
    channels: HashMap<String, Name>,
    last: Option<(u64, Reach)>,
    /// Latest time at which the last one was enabled again, as its row says.
    enabled_at: Option<Timestamp>,
}

impl<'c> ReachReader<'c> {
    pub(super) fn new(connection: &'c Connection, snapshot: Option<&'c Snapshot>) -> Result<Self, StoreError> {
        let sql = "SELECT u.enabled, d.name, d.channel, u.enabled_at FROM subscribers u
            LEFT JOIN devices d ON d.subscriber = u.number AND d.state = 0 WHERE u.number = ?1 ORDER BY d.name";
        let statement = connection.prepare_cached(sql).map_err(store_error)?;
        Ok(ReachReader { connection, snapshot, statement, channels: HashMap::new(), last: None, enabled_at: None })
    }

    pub(super) fn of(&mut self, subscriber: u64) -> Result<Option<&[(Name, Name)]>, StoreError> {
        if self.last.as_ref().is_none_or(|(known, _)| *known != subscriber) {
            let before = self
                .snapshot
                .map(|snapshot| transaction::reach_before(self.connection, subscriber, snapshot))
                .transpose()?
                .flatten();
            let reach = match before {
                Some(before) => before.map(|reach| reach.into_iter().collect()),
                None => self.look_up(subscriber).map_err(store_error)?,
            };
            self.last = Some((subscriber, reach));
        }
        Ok(self.last.as_ref().and_then(|(_, reach)| reach.as_deref()))
    }

    fn look_up(&mut self, subscriber: u64) -> rusqlite::Result<Reach> {
        self.enabled_at = None;
        let mut rows = self.statement.query([signed(subscriber)])?;
        let mut active = Vec::new();
        while let Some(row) = rows.next()? {
            self.enabled_at = row.get::<_, Option<i64>>(3)?.map(Timestamp);
            if !row.get::<_, bool>(0)? {
                return Ok(None);
            }
            let Some(name) = optional_name_at(row, 1)? else { continue };
            let channel = row.get_ref(2)?.as_str()?;
            let channel = match self.channels.get(channel) {
                Some(known) => known.clone(),
                None => {
                    let made = name_at(row, 2)?;
                    self.channels.insert(channel.to_owned(), made.clone());
                    made
                }
            };
            active.push((name, channel));
        }
        Ok(Some(active))
    }
}
