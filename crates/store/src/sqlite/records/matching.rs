//! What matching reads: the rows of the index.

use std::{
    collections::{BTreeMap, HashMap},
    ops::RangeInclusive,
};

use rusqlite::{Connection, Row};
use tocsin_model::{
    id::{ChangeSequence, Name, SubscriberNumber, SubscriptionId},
    subscription::Terms,
    time::Timestamp,
};

use super::{
    applications,
    feed::{self, Past},
    name_at, number_at, signed, store_error,
    subscriptions::{MERGED_CLASSES_MAX, merged_by_class, optional_name_at, terms_at},
};
use crate::{error::StoreError, records::IndexedSubscription};

/// Enabled subscriptions of an application from after one number, in order, with their channels.
pub(super) fn indexed(
    connection: &Connection,
    application: &Name,
    after: u64,
    limit: usize,
) -> Result<Vec<IndexedSubscription>, StoreError> {
    let classes = applications::classes(connection, Some(application), None)?;
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
    let mut reaches = Reaches::new(connection, None)?;
    let mut page = Vec::new();
    while page.len() < limit
        && let Some(row) = rows.next().map_err(store_error)?
    {
        let stored = stored_of(row).map_err(store_error)?;
        page.extend(stored.indexed(&names, &mut reaches)?);
    }
    Ok(page)
}

/// Enabled subscriptions of an application in some ranges of numbers, as they were at a place of the feed: what has
/// changed since is as its first image after the place, what was made since was not there.
pub(super) fn indexed_at(
    connection: &Connection,
    application: &Name,
    ranges: &[RangeInclusive<SubscriptionId>],
    at: ChangeSequence,
) -> Result<Vec<IndexedSubscription>, StoreError> {
    let past = feed::past(connection, at)?;
    let classes = applications::classes(connection, Some(application), None)?;
    let names: HashMap<i64, Name> = classes.into_iter().map(|(number, _, name)| (number, name)).collect();
    let mut reaches = Reaches::new(connection, past.as_ref())?;
    let mut found = Vec::new();
    for range in ranges {
        let (first, last) = (range.start().0, range.end().0);
        let last = past.as_ref().map_or(last, |past| last.min(past.subscription));
        let mut rows: BTreeMap<u64, Stored> = BTreeMap::new();
        let mut read = |sql: &str, parameters: &[i64]| {
            let mut statement = connection.prepare_cached(sql)?;
            let mut found = statement.query(rusqlite::params_from_iter(parameters))?;
            while let Some(row) = found.next()? {
                // The first image is the oldest, and the row itself is newer than all images.
                let stored = stored_of(row)?;
                rows.entry(stored.id).or_insert(stored);
            }
            Ok(())
        };
        if let Some(past) = &past {
            let sql = "SELECT subscription, class, subscriber, device, parameters, filter, schedule, created_at, enabled
                FROM before_images WHERE subscription BETWEEN ?1 AND ?2 AND sequence > ?3 ORDER BY subscription, sequence";
            read(sql, &[signed(first), signed(last), signed(past.at)]).map_err(store_error)?;
        }
        let sql = format!("SELECT {COLUMNS} FROM subscriptions WHERE id BETWEEN ?1 AND ?2");
        read(&sql, &[signed(first), signed(last)]).map_err(store_error)?;
        for stored in rows.into_values().filter(|stored| stored.enabled) {
            found.extend(stored.indexed(&names, &mut reaches)?);
        }
    }
    Ok(found)
}

/// What [`stored_of`] reads.
pub(super) const COLUMNS: &str = "id, class, subscriber, device, parameters, filter, schedule, created_at, enabled";

/// A row or an image, as far as the index wants it.
pub(super) struct Stored {
    id: u64,
    class: i64,
    subscriber: u64,
    device: Option<Name>,
    values: Box<str>,
    terms: Terms,
    created_at: Timestamp,
    enabled: bool,
}

pub(super) fn stored_of(row: &Row<'_>) -> rusqlite::Result<Stored> {
    Ok(Stored {
        id: number_at(row, 0)?,
        class: row.get(1)?,
        subscriber: number_at(row, 2)?,
        device: optional_name_at(row, 3)?,
        values: row.get(4)?,
        terms: terms_at(row, 5)?,
        created_at: Timestamp(row.get(7)?),
        enabled: row.get(8)?,
    })
}

impl Stored {
    /// `None` if its class is not among these, or its subscriber is disabled.
    pub(super) fn indexed(
        self,
        classes: &HashMap<i64, Name>,
        reaches: &mut Reaches<'_>,
    ) -> Result<Option<IndexedSubscription>, StoreError> {
        let Some(class) = classes.get(&self.class) else { return Ok(None) };
        let Some(channels) = reaches.of(self.subscriber)? else { return Ok(None) };
        let channel = match &self.device {
            Some(device) => channels.iter().find(|(name, _)| name == device),
            None => channels.first(),
        };
        Ok(Some(IndexedSubscription {
            id: SubscriptionId(self.id),
            subscriber: SubscriberNumber(self.subscriber),
            class: class.clone(),
            values: self.values,
            terms: self.terms,
            created_at: self.created_at,
            channel: channel.map(|(_, channel)| channel.clone()),
        }))
    }
}

/// The active devices and their channels by name; `None` if the subscriber is disabled.
type Reach = Option<Vec<(Name, Name)>>;

/// Looks up the active devices of subscribers, and remembers the last: a subscriber's subscriptions are mostly
/// neighbours, since they were imported together.
pub(super) struct Reaches<'c> {
    connection: &'c Connection,
    past: Option<&'c Past>,
    statement: rusqlite::CachedStatement<'c>,
    /// One `Name` for each channel, instead of one for each row.
    channels: HashMap<String, Name>,
    last: Option<(u64, Reach)>,
}

impl<'c> Reaches<'c> {
    pub(super) fn new(connection: &'c Connection, past: Option<&'c Past>) -> Result<Self, StoreError> {
        let sql = "SELECT u.enabled, d.name, d.channel FROM subscribers u
            LEFT JOIN devices d ON d.subscriber = u.number AND d.state = 0 WHERE u.number = ?1 ORDER BY d.name";
        let statement = connection.prepare_cached(sql).map_err(store_error)?;
        Ok(Reaches { connection, past, statement, channels: HashMap::new(), last: None })
    }

    pub(super) fn of(&mut self, subscriber: u64) -> Result<Option<&[(Name, Name)]>, StoreError> {
        if self.last.as_ref().is_none_or(|(known, _)| *known != subscriber) {
            let before =
                self.past.map(|past| feed::reach_before(self.connection, subscriber, past)).transpose()?.flatten();
            let reach = match before {
                Some(before) => before.map(|reach| reach.into_iter().collect()),
                None => self.look_up(subscriber).map_err(store_error)?,
            };
            self.last = Some((subscriber, reach));
        }
        Ok(self.last.as_ref().and_then(|(_, reach)| reach.as_deref()))
    }

    fn look_up(&mut self, subscriber: u64) -> rusqlite::Result<Reach> {
        let mut rows = self.statement.query([signed(subscriber)])?;
        let mut active = Vec::new();
        while let Some(row) = rows.next()? {
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
