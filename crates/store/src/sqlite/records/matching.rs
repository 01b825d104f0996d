//! What matching and delivery read: the rows of the index, and whom notifications go to.

use std::collections::HashMap;

use rusqlite::{Connection, Row, Statement};
use tocsin_model::{
    id::{Name, SubscriberNumber, SubscriptionId},
    subscriber::{Device, DeviceState},
    subscription::Subscription,
    time::Timestamp,
};

use super::{
    applications, name_at, number_at, parsed_at, signed, store_error, subscribers,
    subscriptions::{MERGED_CLASSES_MAX, merged_by_class, optional_name_at, terms_at},
};
use crate::{
    error::StoreError,
    records::{IndexedSubscription, Recipient},
};

/// Enabled subscriptions of an application from after one number to another, in order, with their channels.
pub(super) fn indexed(
    connection: &Connection,
    application: &Name,
    after: u64,
    last: u64,
    limit: usize,
) -> Result<Vec<IndexedSubscription>, StoreError> {
    let classes = applications::classes(connection, Some(application), None)?;
    if classes.is_empty() || limit == 0 {
        return Ok(Vec::new());
    }
    let numbers: Vec<i64> = classes.iter().map(|(number, ..)| *number).collect();
    let columns = INDEXED_COLUMNS;
    let condition = "enabled AND id <= ?2";
    let sql = if classes.len() <= MERGED_CLASSES_MAX {
        merged_by_class(&numbers, columns, condition)
    } else {
        format!(
            "SELECT {columns} FROM subscriptions WHERE id > ?1 AND {condition}
                AND class IN (SELECT number FROM classes WHERE application = '{application}') ORDER BY id"
        )
    };
    let names: HashMap<i64, Name> = classes.into_iter().map(|(number, _, name)| (number, name)).collect();
    let mut statement = connection.prepare_cached(&sql).map_err(store_error)?;
    let rows = statement.query([signed(after), signed(last)]).map_err(store_error)?;
    let mut rows = IndexedRows::new(connection, rows, names)?;
    let mut page = Vec::new();
    while page.len() < limit
        && let Some(subscription) = rows.next(|subscription, _| Ok(subscription))?
    {
        page.push(subscription);
    }
    Ok(page)
}

/// What [`IndexedRows`] reads, in this order.
pub(super) const INDEXED_COLUMNS: &str =
    "id, class, subscriber, device, parameters, filter, subscriptions.schedule, created_at";

/// Reads rows of [`INDEXED_COLUMNS`], and passes over those whose subscriber is disabled.
pub(super) struct IndexedRows<'c> {
    rows: rusqlite::Rows<'c>,
    reaches: Reaches<'c>,
    classes: HashMap<i64, Name>,
}

impl<'c> IndexedRows<'c> {
    /// The names are those of the classes by their numbers.
    pub(super) fn new(
        connection: &'c Connection,
        rows: rusqlite::Rows<'c>,
        classes: HashMap<i64, Name>,
    ) -> Result<Self, StoreError> {
        Ok(IndexedRows { rows, reaches: Reaches::new(connection)?, classes })
    }

    /// The next one, as `read` wants it with its row.
    pub(super) fn next<T>(
        &mut self,
        read: impl FnOnce(IndexedSubscription, &Row<'_>) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        while let Some(row) = self.rows.next().map_err(store_error)? {
            let subscriber = number_at(row, 2).map_err(store_error)?;
            let Some(channels) = self.reaches.of(subscriber)? else { continue };
            let channel = match optional_name_at(row, 3).map_err(store_error)? {
                Some(device) => channels.iter().find(|(name, _)| *name == device),
                None => channels.first(),
            };
            let class: i64 = row.get(1).map_err(store_error)?;
            let no_name = || StoreError::Damaged(format!("class {class} has no name"));
            let subscription = IndexedSubscription {
                id: SubscriptionId(number_at(row, 0).map_err(store_error)?),
                class: self.classes.get(&class).cloned().ok_or_else(no_name)?,
                values: row.get(4).map_err(store_error)?,
                terms: terms_at(row, 5).map_err(store_error)?,
                created_at: Timestamp(row.get(7).map_err(store_error)?),
                channel: channel.map(|(_, channel)| channel.clone()),
            };
            return read(subscription, row).map(Some);
        }
        Ok(None)
    }
}

/// The active devices and their channels by name; `None` if the subscriber is disabled.
type Reach = Option<Vec<(Name, Name)>>;

/// Looks up the active devices of subscribers, and remembers the last: a subscriber's subscriptions are mostly
/// neighbours, since they were imported together.
struct Reaches<'c> {
    statement: rusqlite::CachedStatement<'c>,
    /// One `Name` for each channel, instead of one for each row.
    channels: HashMap<String, Name>,
    last: Option<(u64, Reach)>,
}

impl<'c> Reaches<'c> {
    fn new(connection: &'c Connection) -> Result<Self, StoreError> {
        let sql = "SELECT u.enabled, d.name, d.channel FROM subscribers u
            LEFT JOIN devices d ON d.subscriber = u.number AND d.state = 0 WHERE u.number = ?1 ORDER BY d.name";
        let statement = connection.prepare_cached(sql).map_err(store_error)?;
        Ok(Reaches { statement, channels: HashMap::new(), last: None })
    }

    fn of(&mut self, subscriber: u64) -> Result<Option<&[(Name, Name)]>, StoreError> {
        if self.last.as_ref().is_none_or(|(known, _)| *known != subscriber) {
            self.last = Some((subscriber, self.look_up(subscriber).map_err(store_error)?));
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

/// One statement for each subscription, so that a batch of any size is one read.
const RECIPIENT: &str = "SELECT s.class, u.id, s.subscriber, s.key, s.device, s.enabled, s.parameters,
        s.created_at, s.updated_at, s.revision, u.enabled, u.locale, u.time_zone, u.attributes,
        d.name, d.channel, d.address, s.filter, s.schedule
    FROM subscriptions s
    JOIN subscribers u ON u.number = s.subscriber
    LEFT JOIN devices d ON d.subscriber = s.subscriber AND d.state = 0 AND d.name = coalesce(s.device,
        (SELECT f.name FROM devices f WHERE f.subscriber = s.subscriber AND f.state = 0 ORDER BY f.name LIMIT 1))
    WHERE s.id = ?1";

pub(super) fn recipients(
    connection: &Connection,
    subscriptions: &[SubscriptionId],
) -> Result<Vec<Option<Recipient>>, StoreError> {
    let mut statement = connection.prepare_cached(RECIPIENT).map_err(store_error)?;
    let classes = applications::classes(connection, None, None)?;
    let classes = classes.into_iter().map(|(number, application, class)| (number, (application, class))).collect();
    // In the order of the numbers neighbours are found on one page.
    let mut order: Vec<usize> = (0..subscriptions.len()).collect();
    order.sort_unstable_by_key(|place| subscriptions[*place]);
    let mut found = vec![None; subscriptions.len()];
    for place in order {
        found[place] = recipient(&mut statement, &classes, subscriptions[place]).map_err(store_error)?;
    }
    Ok(found)
}

type Classes = HashMap<i64, (Name, Name)>;

fn recipient(
    statement: &mut Statement<'_>,
    classes: &Classes,
    id: SubscriptionId,
) -> rusqlite::Result<Option<Recipient>> {
    let mut rows = statement.query([signed(id.0)])?;
    rows.next()?.map(|row| recipient_of(row, classes, id)).transpose()
}

fn recipient_of(row: &Row<'_>, classes: &Classes, id: SubscriptionId) -> rusqlite::Result<Recipient> {
    let class: i64 = row.get(0)?;
    let (application, class) =
        classes.get(&class).cloned().ok_or(rusqlite::Error::IntegralValueOutOfRange(0, class))?;
    let device = match optional_name_at(row, 14)? {
        Some(name) => {
            Some((name, Device { channel: name_at(row, 15)?, address: row.get(16)?, state: DeviceState::Active }))
        }
        None => None,
    };
    Ok(Recipient {
        subscription: Subscription {
            id,
            application,
            class,
            subscriber: parsed_at(row, 1)?,
            subscriber_number: SubscriberNumber(number_at(row, 2)?),
            key: row.get(3)?,
            device: optional_name_at(row, 4)?,
            enabled: row.get(5)?,
            values: row.get(6)?,
            terms: terms_at(row, 17)?,
            created_at: Timestamp(row.get(7)?),
            updated_at: Timestamp(row.get(8)?),
            revision: number_at(row, 9)?,
        },
        profile: subscribers::profile_at(row, 10)?,
        device,
    })
}
