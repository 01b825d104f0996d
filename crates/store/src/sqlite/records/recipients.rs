//! Whom notifications go to. Their subscriptions are read in the order of the numbers, neighbours by one scan; their
//! subscribers are mostly at hand.

use std::sync::Arc;

use hashbrown::HashMap;
use rusqlite::{Connection, Row};
use tocsin_model::{
    id::{Name, SubscriberNumber, SubscriptionId},
    subscriber::Device,
    subscription::{Subscription, Terms},
    time::Timestamp,
};

use super::{
    applications, name_at, number_at, parsed_at, people::People, signed, store_error, subscribers,
    subscriptions::whole_terms_at,
};
use crate::{
    error::StoreError,
    records::{Person, Recipient},
};

/// Numbers that are no further apart are read by one scan: passing over a row costs less than looking one up.
const GAP_MAX: u64 = 4;

const SUBSCRIPTIONS: &str = "SELECT id, class, subscriber, key, device, enabled, parameters, created_at, updated_at, revision, \
                             filter, schedule, snoozed_until FROM subscriptions WHERE id BETWEEN ?1 AND ?2 ORDER BY id";
const SUBSCRIBERS: &str = "SELECT number, id, enabled, locale, time_zone, attributes, preferences FROM subscribers \
                           WHERE number BETWEEN ?1 AND ?2 ORDER BY number";
const DEVICES: &str = "SELECT subscriber, name, channel, address, state FROM devices \
                       WHERE subscriber BETWEEN ?1 AND ?2 ORDER BY subscriber, name";

/// The recipients of these subscriptions, in their order.
pub(super) fn find(
    connection: &Connection,
    people: &People,
    subscriptions: &[SubscriptionId],
) -> Result<Vec<Option<Recipient>>, StoreError> {
    // Before anything is read: what changes from now on is not kept.
    let epoch = people.epoch();
    let classes = applications::classes(connection, None, None)?;
    let classes: Classes =
        classes.into_iter().map(|(number, application, class)| (number, (application, class))).collect();
    let mut names = Names::default();
    let mut wanted: Vec<u64> = subscriptions.iter().map(|id| id.0).collect();
    wanted.sort_unstable();
    wanted.dedup();
    let mut found: Vec<(u64, Stored)> = Vec::with_capacity(wanted.len());
    scan(connection, SUBSCRIPTIONS, &wanted, |row, id| {
        found.push((id, stored_of(row, &classes, &mut names)?));
        Ok(())
    })?;

    let mut known = people.find(found.iter().map(|(_, stored)| stored.subscriber));
    let mut unknown: Vec<u64> = found
        .iter()
        .zip(&known)
        .filter(|(_, known)| known.is_none())
        .map(|((_, stored), _)| stored.subscriber)
        .collect();
    if !unknown.is_empty() {
        unknown.sort_unstable();
        unknown.dedup();
        let read = read_people(connection, &unknown, &mut names)?;
        for ((_, stored), person) in found.iter().zip(&mut known).filter(|(_, person)| person.is_none()) {
            *person = read.get(&stored.subscriber).cloned();
        }
        people.keep(epoch, read);
    }

    let recipients = found.into_iter().zip(known).filter_map(|((id, stored), person)| {
        let person = person?;
        Some((id, Recipient { subscription: stored.with(SubscriptionId(id), &person), person }))
    });
    let mut recipients: HashMap<u64, Recipient> = recipients.collect();
    if wanted.len() == subscriptions.len() {
        return Ok(subscriptions.iter().map(|id| recipients.remove(&id.0)).collect());
    }
    Ok(subscriptions.iter().map(|id| recipients.get(&id.0).cloned()).collect())
}

/// Hands the rows of a statement over whose first column is one of these ascending numbers. The statement gives those
/// between two numbers, in their order.
fn scan(
    connection: &Connection,
    sql: &str,
    numbers: &[u64],
    mut take: impl FnMut(&Row<'_>, u64) -> rusqlite::Result<()>,
) -> Result<(), StoreError> {
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    for run in numbers.chunk_by(|one, next| next - one <= GAP_MAX) {
        let (first, last) = (signed(run[0]), signed(run[run.len() - 1]));
        let mut wanted = run.iter().copied().peekable();
        let mut rows = statement.query([first, last]).map_err(store_error)?;
        while let Some(row) = rows.next().map_err(store_error)? {
            let number = number_at(row, 0).map_err(store_error)?;
            while wanted.next_if(|wanted| *wanted < number).is_some() {}
            if wanted.peek() == Some(&number) {
                take(row, number).map_err(store_error)?;
            }
        }
    }
    Ok(())
}

type Classes = HashMap<i64, (Name, Name)>;

/// A subscription without what its subscriber says.
struct Stored {
    application: Name,
    class: Name,
    subscriber: u64,
    key: Option<String>,
    device: Option<Name>,
    enabled: bool,
    values: Box<str>,
    terms: Terms,
    created_at: Timestamp,
    updated_at: Timestamp,
    revision: u64,
}

fn stored_of(row: &Row<'_>, classes: &Classes, names: &mut Names) -> rusqlite::Result<Stored> {
    let class: i64 = row.get(1)?;
    let (application, class) =
        classes.get(&class).cloned().ok_or(rusqlite::Error::IntegralValueOutOfRange(1, class))?;
    Ok(Stored {
        application,
        class,
        subscriber: number_at(row, 2)?,
        key: row.get(3)?,
        device: match row.get_ref(4)? {
            rusqlite::types::ValueRef::Null => None,
            _ => Some(names.at(row, 4)?),
        },
        enabled: row.get(5)?,
        values: row.get(6)?,
        terms: whole_terms_at(row, 10)?,
        created_at: Timestamp(row.get(7)?),
        updated_at: Timestamp(row.get(8)?),
        revision: number_at(row, 9)?,
    })
}

impl Stored {
    fn with(self, id: SubscriptionId, person: &Person) -> Subscription {
        Subscription {
            id,
            application: self.application,
            class: self.class,
            subscriber: person.id.clone(),
            subscriber_number: SubscriberNumber(self.subscriber),
            key: self.key,
            device: self.device,
            enabled: self.enabled,
            values: self.values,
            terms: self.terms,
            created_at: self.created_at,
            updated_at: self.updated_at,
            revision: self.revision,
        }
    }
}

fn read_people(
    connection: &Connection,
    numbers: &[u64],
    names: &mut Names,
) -> Result<HashMap<u64, Arc<Person>>, StoreError> {
    let mut devices: HashMap<u64, Vec<(Name, Device)>> = HashMap::with_capacity(numbers.len());
    scan(connection, DEVICES, numbers, |row, subscriber| {
        let device = Device { channel: names.at(row, 2)?, address: row.get(3)?, state: subscribers::state_at(row, 4)? };
        devices.entry(subscriber).or_default().push((names.at(row, 1)?, device));
        Ok(())
    })?;
    let mut people = HashMap::with_capacity(numbers.len());
    scan(connection, SUBSCRIBERS, numbers, |row, number| {
        let person = Person {
            id: parsed_at(row, 1)?,
            profile: subscribers::profile_at(row, 2)?,
            preferences: subscribers::preferences_at(row, 6)?,
            devices: devices.remove(&number).unwrap_or_default().into_iter().collect(),
        };
        people.insert(number, Arc::new(person));
        Ok(())
    })?;
    Ok(people)
}

/// One `Name` for each text, instead of one for each row.
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
