//! Recipients of notifications. Subscriptions are read by number, neighbors by one scan; subscribers come mostly from
//! the recipient cache.

use std::sync::Arc;

use hashbrown::HashMap;
use rusqlite::{Connection, Row};
use tocsin_model::{
    id::{Name, SubscriberNumber, SubscriptionId},
    subscriber::Device,
};

use super::recipient_cache::RecipientCache;
use crate::{
    error::StoreError,
    records::{Recipient, RecipientSubscriber, RecipientSubscription},
    sqlite::{
        records::{classes, subscriber_rows},
        statements::{name_at, number_at, parsed_at, query_one, signed},
        writer::store_error,
    },
};

/// Numbers with gaps up to this are read by one scan: skipping a row costs less than a lookup.
const GAP_MAX: u64 = 4;

const SUBSCRIPTIONS: &str = "SELECT id, class, subscriber, device, enabled, parameters, \
                             CASE WHEN consent = 0 THEN \
                             (SELECT request FROM consents WHERE subscription = id) END FROM subscriptions \
                             WHERE id BETWEEN ?1 AND ?2 ORDER BY id";

const SUBSCRIBERS: &str = "SELECT number, id, enabled, locale, time_zone, attributes, preferences FROM subscribers \
                           WHERE number BETWEEN ?1 AND ?2 ORDER BY number";

const DEVICES: &str = "SELECT subscriber, name, channel, address, state FROM devices \
                       WHERE subscriber BETWEEN ?1 AND ?2 ORDER BY subscriber, name";

/// Recipients of subscriptions, in the order asked. They are cached.
pub(super) fn find(
    connection: &Connection,
    recipient_cache: &RecipientCache,
    subscriptions: &[SubscriptionId],
) -> Result<Vec<Option<Recipient>>, StoreError> {
    // Taken before the first read: rows changed after this are not cached.
    let generation = recipient_cache.generation();
    let classes = classes::classes(connection, None, None)?;
    let classes: Classes = classes.into_iter().map(|(number, _, class)| (number, class)).collect();
    let mut names = Names::default();
    let mut positions: Vec<(u64, usize)> =
        subscriptions.iter().enumerate().map(|(position, id)| (id.0, position)).collect();
    positions.sort_unstable();
    let mut requested: Vec<u64> = positions.iter().map(|(id, _)| *id).collect();
    requested.dedup();
    let mut found: Vec<(u64, Arc<RecipientSubscription>)> = Vec::with_capacity(requested.len());
    scan(connection, SUBSCRIPTIONS, &requested, |row, id| {
        found.push((id, Arc::new(subscription_of(row, &classes, &mut names)?)));
        Ok(())
    })?;

    let mut known = recipient_cache.subscribers(found.iter().map(|(_, interest)| interest.subscriber));
    let without = found.iter().zip(&known).filter(|(_, known)| known.is_none());
    let mut unknown: Vec<u64> = without.map(|((_, interest), _)| interest.subscriber.0).collect();
    if !unknown.is_empty() {
        unknown.sort_unstable();
        unknown.dedup();
        let read = read_subscribers(connection, &unknown, &mut names)?;
        for ((_, interest), person) in found.iter().zip(&mut known).filter(|(_, person)| person.is_none()) {
            *person = read.get(&interest.subscriber.0).cloned();
        }
    }

    let mut recipients = vec![None; subscriptions.len()];
    let mut positions = positions.into_iter().peekable();
    for ((id, interest), person) in found.into_iter().zip(known) {
        let Some(person) = person else { continue };
        let recipient = Recipient { subscription: SubscriptionId(id), interest, person };
        while positions.next_if(|(requested, _)| *requested < id).is_some() {}
        while let Some((_, position)) = positions.next_if(|(requested, _)| *requested == id) {
            recipients[position] = Some(recipient.clone());
        }
    }
    recipient_cache.insert(generation, recipients.iter().flatten());
    Ok(recipients)
}

/// Recipients of removed subscriptions, by the last before-image of each. They are not cached.
pub(super) fn find_former(
    connection: &Connection,
    subscriptions: &[SubscriptionId],
) -> Result<Vec<Option<Recipient>>, StoreError> {
    let classes = classes::classes(connection, None, None)?;
    let classes: Classes = classes.into_iter().map(|(number, _, class)| (number, class)).collect();
    let mut names = Names::default();
    let sql = "SELECT subscription, class, subscriber, device, 0, parameters, NULL FROM before_images
        WHERE subscription = ?1 AND NOT EXISTS (SELECT 1 FROM subscriptions WHERE id = ?1)
        ORDER BY sequence DESC LIMIT 1";
    let mut found = Vec::with_capacity(subscriptions.len());
    for id in subscriptions {
        let image = query_one(connection, sql, [signed(id.0)], |row| subscription_of(row, &classes, &mut names))?;
        let Some(interest) = image else {
            found.push(None);
            continue;
        };
        let mut people = read_subscribers(connection, &[interest.subscriber.0], &mut names)?;
        let person = people.remove(&interest.subscriber.0);
        found.push(person.map(|person| Recipient { subscription: *id, interest: Arc::new(interest), person }));
    }
    Ok(found)
}

/// Calls `take` with the rows whose first column is one of these ascending numbers. The statement returns the rows
/// between two numbers, in order.
fn scan(
    connection: &Connection,
    sql: &str,
    numbers: &[u64],
    mut take: impl FnMut(&Row<'_>, u64) -> rusqlite::Result<()>,
) -> Result<(), StoreError> {
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    for run in numbers.chunk_by(|one, next| next - one <= GAP_MAX) {
        let (first, last) = (signed(run[0]), signed(run[run.len() - 1]));
        let mut requested = run.iter().copied().peekable();
        let mut rows = statement.query([first, last]).map_err(store_error)?;
        while let Some(row) = rows.next().map_err(store_error)? {
            let number = number_at(row, 0).map_err(store_error)?;
            while requested.next_if(|requested| *requested < number).is_some() {}
            if requested.peek() == Some(&number) {
                take(row, number).map_err(store_error)?;
            }
        }
    }
    Ok(())
}

type Classes = HashMap<i64, Name>;

fn subscription_of(row: &Row<'_>, classes: &Classes, names: &mut Names) -> rusqlite::Result<RecipientSubscription> {
    let class: i64 = row.get(1)?;
    let class = classes.get(&class).cloned().ok_or(rusqlite::Error::IntegralValueOutOfRange(1, class))?;
    Ok(RecipientSubscription {
        class,
        subscriber: SubscriberNumber(number_at(row, 2)?),
        device: match row.get_ref(3)? {
            rusqlite::types::ValueRef::Null => None,
            _ => Some(names.at(row, 3)?),
        },
        enabled: row.get(4)?,
        values: row.get(5)?,
        consent_request: row.get::<_, Option<i64>>(6)?.map(i64::cast_unsigned),
    })
}

fn read_subscribers(
    connection: &Connection,
    numbers: &[u64],
    names: &mut Names,
) -> Result<HashMap<u64, Arc<RecipientSubscriber>>, StoreError> {
    let mut devices: HashMap<u64, Vec<(Name, Device)>> = HashMap::with_capacity(numbers.len());
    scan(connection, DEVICES, numbers, |row, subscriber| {
        let device =
            Device { channel: names.at(row, 2)?, address: row.get(3)?, state: subscriber_rows::state_at(row, 4)? };
        devices.entry(subscriber).or_default().push((names.at(row, 1)?, device));
        Ok(())
    })?;
    let mut subscribers = HashMap::with_capacity(numbers.len());
    scan(connection, SUBSCRIBERS, numbers, |row, number| {
        let person = RecipientSubscriber {
            id: parsed_at(row, 1)?,
            number: SubscriberNumber(number),
            profile: subscriber_rows::profile_at(row, 2)?,
            preferences: subscriber_rows::preferences_at(row, 6)?,
            devices: devices.remove(&number).unwrap_or_default().into_iter().collect(),
        };
        subscribers.insert(number, Arc::new(person));
        Ok(())
    })?;
    Ok(subscribers)
}

/// One `Name` per text instead of one per row.
#[derive(Default)]
struct Names(HashMap<Box<str>, Name>);

impl Names {
    fn at(&mut self, row: &Row<'_>, column: usize) -> rusqlite::Result<Name> {
        let text = row.get_ref(column)?.as_str()?;
        if let Some(known) = self.0.get(text) {
            return Ok(known.clone());
        }
        let made = name_at(row, column)?;
        self.0.insert(text.into(), made.clone());
        Ok(made)
    }
}
