//! Subscriptions. What changes or removes one leaves its before-image in the feed.

use std::collections::HashMap;

use rusqlite::{
    Connection, Row, params_from_iter,
    types::{Value, ValueRef},
};
use tocsin_model::{
    filter::Filter,
    id::{ChangeSequence, Name, SubscriberNumber, SubscriptionId},
    subscription::{Subscription, Terms},
    time::Timestamp,
};

use super::{
    applications, execute,
    feed::{self, BeforeImage, Books},
    name_at, number_at, parsed_at, query_all, query_one,
    schedules::{self, Follower},
    signed, subscribers,
};
use crate::{
    error::StoreError,
    look::{LOOKS_MAX, Looked},
    records::{
        Expect, NewSubscription, SubscriptionChange, SubscriptionCounts, SubscriptionFilter, United, Written,
        no_subscriber, no_subscription, runs, snooze,
    },
};

const COLUMNS: &str = "s.id, c.application, c.name, u.id, s.subscriber, s.key, s.device, s.enabled, s.parameters,
    s.created_at, s.updated_at, s.revision, s.filter, s.schedule, s.snoozed_until";
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
        created_at: Timestamp(row.get(9)?),
        updated_at: Timestamp(row.get(10)?),
        revision: number_at(row, 11)?,
    })
}

/// Two columns: the filter and the schedule.
pub(super) fn terms_at(row: &Row<'_>, first: usize) -> rusqlite::Result<Terms> {
    let filter = match row.get_ref(first)? {
        ValueRef::Null => None,
        _ => Some(parsed_at(row, first)?),
    };
    Ok(Terms { filter, schedule: row.get(first + 1)?, snoozed_until: None })
}

/// Three columns: the same, and until when it is snoozed.
pub(super) fn whole_terms_at(row: &Row<'_>, first: usize) -> rusqlite::Result<Terms> {
    let snoozed_until = row.get::<_, Option<i64>>(first + 2)?.map(Timestamp);
    Ok(Terms { snoozed_until, ..terms_at(row, first)? })
}

pub(super) fn optional_name_at(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Name>> {
    match row.get_ref(column)? {
        ValueRef::Null => Ok(None),
        _ => name_at(row, column).map(Some),
    }
}

pub(super) fn find(connection: &Connection, id: SubscriptionId) -> Result<Option<Subscription>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM {SOURCE} WHERE s.id = ?1");
    query_one(connection, &sql, [signed(id.0)], subscription_of)
}

/// What of a row decides about its change: enough to compare and to leave an image.
struct Found {
    id: u64,
    class: i64,
    subscriber: u64,
    device: Option<Name>,
    enabled: bool,
    parameters: Box<str>,
    revision: u64,
    terms: Terms,
    created_at: Timestamp,
}

const FOUND_COLUMNS: &str =
    "id, class, subscriber, device, enabled, parameters, revision, filter, schedule, snoozed_until, created_at";

fn found_of(row: &Row<'_>) -> rusqlite::Result<Found> {
    Ok(Found {
        id: number_at(row, 0)?,
        class: row.get(1)?,
        subscriber: number_at(row, 2)?,
        device: optional_name_at(row, 3)?,
        enabled: row.get(4)?,
        parameters: row.get(5)?,
        revision: number_at(row, 6)?,
        terms: whole_terms_at(row, 7)?,
        created_at: Timestamp(row.get(10)?),
    })
}

impl Found {
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

/// Stores many. Those of one subscriber are stored side by side, because that is the order of the index; new ones get
/// their numbers in that order, all without gaps, so the feed tells of them at once.
pub(super) fn put_many(
    books: &mut Books<'_>,
    new: &[NewSubscription],
    now: Timestamp,
) -> Result<Vec<Written<SubscriptionId>>, StoreError> {
    let mut order = subscribers_of(books.connection, new)?;
    // Must stay a stable sort: of two lines with one key the later one wins.
    order.sort_by_key(|(_, subscriber)| *subscriber);
    let mut classes = HashMap::new();
    let mut images: Vec<BeforeImage> = Vec::new();
    let mut written: Vec<Written<SubscriptionId>> =
        new.iter().map(|line| Err(no_subscriber(&line.subscriber))).collect();
    let first_new = books.subscription + 1;
    for (place, subscriber) in order {
        let Some(subscriber) = subscriber else { continue };
        let line = &new[place];
        let class = match classes.get(&(&line.application, &line.class)) {
            Some(class) => *class,
            None => {
                let class = applications::class_number(books.connection, &line.application, &line.class)?;
                classes.insert((&line.application, &line.class), class);
                class
            }
        };
        let id = match insert(books, line, class, subscriber, now)? {
            Some(id) => id,
            None => {
                let found = find_by_key(books.connection, subscriber, class, line.key.as_deref())?;
                let id = found.id;
                images.extend(change(books, found, &line.change(), now)?);
                id
            }
        };
        written[place] = Ok(SubscriptionId(id));
    }
    if books.subscription >= first_new {
        books.subscriptions_made(first_new, books.subscription)?;
    }
    // Must stay a stable sort: of one that was replaced twice, the first image is the one from before.
    images.sort_by_key(|image| image.subscription);
    images.dedup_by_key(|image| image.subscription);
    tell_changed(books, &images)?;
    Ok(written)
}

/// The number of each line's subscriber, if there is one.
fn subscribers_of(connection: &Connection, new: &[NewSubscription]) -> Result<Vec<(usize, Option<u64>)>, StoreError> {
    let mut numbers: Vec<(usize, Option<u64>)> = (0..new.len()).map(|place| (place, None)).collect();
    numbers.sort_by(|(one, _), (other, _)| new[*one].subscriber.cmp(&new[*other].subscriber));
    let mut last = None;
    for (place, number) in &mut numbers {
        let id = &new[*place].subscriber;
        *number = match last {
            Some((known, number)) if known == id => number,
            _ => subscribers::number(connection, id)?,
        };
        last = Some((id, *number));
    }
    numbers.sort_by_key(|(place, _)| *place);
    Ok(numbers)
}

/// Stores a new row, unless there is one with its key.
fn insert(
    books: &mut Books<'_>,
    new: &NewSubscription,
    class: i64,
    subscriber: u64,
    now: Timestamp,
) -> Result<Option<u64>, StoreError> {
    let id = books.subscription + 1;
    let (mut enabled, mut terms) = (new.enabled, new.terms.clone());
    snooze(&mut enabled, &mut terms, now);
    let added = execute(
        books.connection,
        "INSERT INTO subscriptions
            (id, class, subscriber, key, device, enabled, parameters, filter, schedule, created_at, updated_at, revision,
             snoozed_until)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?9, ?10, ?8, ?8, 1, ?11) ON CONFLICT (subscriber, class, key) DO NOTHING",
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
        ),
    )?;
    if added == 0 {
        return Ok(None);
    }
    books.subscription = id;
    books.counts.subscriptions += 1;
    if let Some(schedule) = new.terms.schedule.as_deref() {
        let follower = Follower { subscription: id, class, subscriber, schedule: Some(schedule) };
        schedules::follow(books, &follower, false, now)?;
    }
    Ok(Some(id))
}

fn find_by_key(connection: &Connection, subscriber: u64, class: i64, key: Option<&str>) -> Result<Found, StoreError> {
    let sql = format!("SELECT {FOUND_COLUMNS} FROM subscriptions WHERE subscriber = ?1 AND class = ?2 AND key = ?3");
    query_one(connection, &sql, (signed(subscriber), class, key), found_of)?
        .ok_or_else(|| StoreError::Damaged("an index of subscriptions names a row that is not there".to_owned()))
}

/// Writes what differs; gives the image from before if anything does.
fn change(
    books: &Books<'_>,
    old: Found,
    new: &SubscriptionChange,
    now: Timestamp,
) -> Result<Option<BeforeImage>, StoreError> {
    let (mut enabled, mut terms) = (new.enabled, new.terms.clone());
    snooze(&mut enabled, &mut terms, now);
    if (&old.device, old.enabled, &old.parameters, &old.terms) == (&new.device, enabled, &new.values, &terms) {
        return Ok(None);
    }
    execute(
        books.connection,
        "UPDATE subscriptions SET device = ?2, enabled = ?3, parameters = ?4, updated_at = ?5, revision = ?6,
            filter = ?7, schedule = ?8, snoozed_until = ?9 WHERE id = ?1",
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
        ),
    )?;
    let resumed = enabled && !old.enabled;
    if old.terms.schedule != terms.schedule || (resumed && terms.schedule.is_some()) {
        let Found { id, class, subscriber, .. } = old;
        let follower = Follower { subscription: id, class, subscriber, schedule: terms.schedule.as_deref() };
        schedules::follow(books, &follower, resumed, now)?;
    }
    Ok(Some(old.image()))
}

/// Tells the feed of changed or removed ones, ascending, a run at a time.
fn tell_changed(books: &mut Books<'_>, images: &[BeforeImage]) -> Result<(), StoreError> {
    runs(images, |image| image.subscription).try_for_each(|run| books.subscriptions_changed(run))
}

pub(super) fn update(
    books: &mut Books<'_>,
    id: SubscriptionId,
    new: &SubscriptionChange,
    expect: Expect,
    now: Timestamp,
) -> Result<Subscription, StoreError> {
    let old = find_expected(books.connection, id, expect)?;
    let image = change(books, old, new, now)?;
    tell_changed(books, image.as_slice())?;
    find(books.connection, id)?.ok_or_else(|| no_subscription(id))
}

/// Whether one is snoozed no longer than to this time.
pub(super) fn is_any_to_wake(connection: &Connection, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "SELECT 1 FROM subscriptions WHERE snoozed_until <= ?1 LIMIT 1";
    Ok(query_one(connection, sql, [now.0], |_| Ok(()))?.is_some())
}

/// Enables some that were snoozed until now.
pub(super) fn wake(books: &mut Books<'_>, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
    let sql = format!("SELECT {FOUND_COLUMNS} FROM subscriptions WHERE snoozed_until <= ?1 ORDER BY id LIMIT ?2");
    let found = query_all(books.connection, &sql, (now.0, signed(limit as u64)), found_of)?;
    let count = found.len();
    let mut images = Vec::with_capacity(count);
    for old in found {
        let new = SubscriptionChange {
            device: old.device.clone(),
            enabled: true,
            values: old.parameters.clone(),
            terms: old.terms.clone(),
        };
        images.extend(change(books, old, &new, now)?);
    }
    tell_changed(books, &images)?;
    Ok(count)
}

pub(super) fn remove(books: &mut Books<'_>, id: SubscriptionId, expect: Expect) -> Result<(), StoreError> {
    let old = find_expected(books.connection, id, expect)?;
    remove_rows(books, vec![old])
}

fn find_expected(connection: &Connection, id: SubscriptionId, expect: Expect) -> Result<Found, StoreError> {
    let sql = format!("SELECT {FOUND_COLUMNS} FROM subscriptions WHERE id = ?1");
    let found = query_one(connection, &sql, [signed(id.0)], found_of)?;
    expect.check(found.as_ref().map(|found| found.revision), || format!("subscription `{id}`"))?;
    found.ok_or_else(|| no_subscription(id))
}

/// Removes rows that are given in the order of their numbers.
fn remove_rows(books: &mut Books<'_>, rows: Vec<Found>) -> Result<(), StoreError> {
    let mut images = Vec::with_capacity(rows.len());
    for row in rows {
        execute(books.connection, "DELETE FROM subscriptions WHERE id = ?1", [signed(row.id)])?;
        books.counts.subscriptions -= 1;
        if row.terms.schedule.is_some() {
            schedules::leave(books, row.id)?;
        }
        images.push(row.image());
    }
    tell_changed(books, &images)
}

pub(super) fn remove_all_of_subscriber(books: &mut Books<'_>, subscriber: u64) -> Result<(), StoreError> {
    let sql = format!("SELECT {FOUND_COLUMNS} FROM subscriptions WHERE subscriber = ?1 ORDER BY id");
    let rows = query_all(books.connection, &sql, [signed(subscriber)], found_of)?;
    remove_rows(books, rows)
}

/// Gives the subscriptions of one subscriber to another. What the other has already, by its key or by all that it says, is
/// removed. Gives how many went over and how many were removed.
pub(super) fn move_over(
    books: &mut Books<'_>,
    from: u64,
    into: u64,
    united: &United,
    now: Timestamp,
) -> Result<(u64, u64), StoreError> {
    let sql = format!("SELECT {FOUND_COLUMNS}, key FROM subscriptions WHERE subscriber = ?1 ORDER BY id");
    let keyed = |row: &Row<'_>| Ok((found_of(row)?, row.get::<_, Option<String>>(11)?));
    let own = query_all(books.connection, &sql, [signed(into)], keyed)?;
    let device = |old: &Found| old.device.as_ref().map(|name| united.device(name).unwrap_or(name).clone());
    let is_known = |old: &Found, key: &Option<String>| {
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
    for (old, key) in query_all(books.connection, &sql, [signed(from)], keyed)? {
        if is_known(&old, &key) { doubles.push(old) } else { moved.push(old) }
    }
    let counts = (moved.len() as u64, doubles.len() as u64);
    remove_rows(books, doubles)?;
    let mut images = Vec::with_capacity(moved.len());
    for old in moved {
        execute(
            books.connection,
            "UPDATE subscriptions SET subscriber = ?2, device = ?3, updated_at = ?4, revision = ?5 WHERE id = ?1",
            (signed(old.id), signed(into), device(&old).as_ref().map(Name::as_str), now.0, signed(old.revision + 1)),
        )?;
        if let Some(schedule) = old.terms.schedule.as_deref() {
            let follower =
                Follower { subscription: old.id, class: old.class, subscriber: into, schedule: Some(schedule) };
            schedules::follow(books, &follower, false, now)?;
        }
        images.push(old.image());
    }
    for run in runs(&images, |image| image.subscription) {
        books.subscriptions_moved(run[0].subscription, run[run.len() - 1].subscription)?;
    }
    tell_changed(books, &images)?;
    Ok(counts)
}

/// Removes up to `limit` of an application, class by class. Gives how many it removed.
pub(super) fn remove_some_of_application(
    books: &mut Books<'_>,
    application: &Name,
    limit: usize,
) -> Result<usize, StoreError> {
    let sql = format!("SELECT {FOUND_COLUMNS} FROM subscriptions WHERE class = ?1 ORDER BY id LIMIT ?2");
    let mut removed = 0;
    for (class, ..) in applications::classes(books.connection, Some(application), None)? {
        let rows = query_all(books.connection, &sql, (class, signed((limit - removed) as u64)), found_of)?;
        removed += rows.len();
        remove_rows(books, rows)?;
    }
    Ok(removed)
}

/// All that some subscribers have, or had at a place of the feed or later.
pub(super) fn all_of_subscribers(
    connection: &Connection,
    subscribers: &[SubscriberNumber],
    at: ChangeSequence,
) -> Result<Vec<SubscriptionId>, StoreError> {
    let past = feed::past(connection, at)?;
    let id = |row: &Row<'_>| number_at(row, 0).map(SubscriptionId);
    let mut all = Vec::new();
    for SubscriberNumber(number) in subscribers {
        let sql = "SELECT id FROM subscriptions WHERE subscriber = ?1";
        all.extend(query_all(connection, sql, [signed(*number)], id)?);
        if let Some(past) = &past {
            let sql = "SELECT subscription FROM before_images WHERE subscriber = ?1 AND sequence > ?2";
            all.extend(query_all(connection, sql, [signed(*number), signed(past.at)], id)?);
        }
    }
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

/// The rows of some classes in the order of their numbers: a merge of one index scan for each class.
///
/// Each class's scan is already in order, so SQLite merges them row by row and sorts nothing. `?1` is the number after
/// which it begins.
pub(super) fn merged_by_class(classes: &[i64], columns: &str, condition: &str) -> String {
    let scan = |class: &i64| {
        format!("SELECT {columns} FROM subscriptions WHERE class = {class} AND id > ?1 AND ({condition})")
    };
    classes.iter().map(scan).collect::<Vec<_>>().join(" UNION ALL ") + " ORDER BY id"
}

/// Most classes whose scans are merged; SQLite allows 500 parts. Beyond it all subscriptions are scanned.
pub(super) const MERGED_CLASSES_MAX: usize = 100;

/// A page of subscriptions. The index by subscriber leads, else that of keys, else that by class, else the numbers.
pub(super) fn list(
    connection: &Connection,
    filter: &SubscriptionFilter,
    after: Option<SubscriptionId>,
    limit: usize,
) -> Result<Looked<Subscription, SubscriptionId>, StoreError> {
    let nothing = Looked { items: Vec::new(), next: None };
    let classes = if filter.application.is_some() || filter.class.is_some() {
        applications::classes(connection, filter.application.as_ref(), filter.class.as_ref())?
    } else if filter.enabled == Some(false) {
        // Each is in an index of its class.
        applications::classes(connection, None, None)?
    } else {
        Vec::new()
    };
    let is_of_class = filter.application.is_some() || filter.class.is_some();
    if is_of_class && classes.is_empty() {
        return Ok(nothing);
    }
    let classes: Vec<i64> = classes.into_iter().map(|(number, ..)| number).collect();
    let subscriber = match &filter.subscriber {
        Some(id) => match subscribers::number(connection, id)? {
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
    let (candidates, place) = (&listing.candidates, values(None).len() + 1);
    // CROSS JOIN keeps the order of the join, and with it that of the numbers.
    let sql = format!(
        "SELECT {COLUMNS} FROM (SELECT id FROM ({candidates} LIMIT {LOOKS_MAX}) WHERE {} LIMIT ?{place}) found
            CROSS JOIN {SOURCE} WHERE s.id = found.id ORDER BY found.id",
        listing.rest
    );
    let most = signed(limit.saturating_add(1) as u64);
    let found: Vec<Subscription> = query_all(connection, &sql, params_from_iter(values(Some(most))), subscription_of)?;
    let mut reached = None;
    if found.len() <= limit {
        let sql = format!("SELECT count(*), max(id) FROM ({candidates} LIMIT {LOOKS_MAX})");
        let looked = query_one(connection, &sql, params_from_iter(values(None)), |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, Option<i64>>(1)?))
        })?;
        reached = looked.filter(|(looks, _)| *looks == LOOKS_MAX as i64).and_then(|(_, last)| last);
    }
    let reached = reached.map(|last| SubscriptionId(last.cast_unsigned()));
    Ok(Looked::cut(found, limit, reached, |found: &Subscription| found.id))
}

/// The query for a page of subscriptions.
pub(super) struct Listing {
    /// The rows to look at in the order of their numbers, those after `?1`.
    pub candidates: String,
    /// The part of the filter that is tested row by row.
    rest: String,
    /// Whether `?2` is the key.
    binds_key: bool,
}

impl Listing {
    /// `classes` are those of the filter; where it asks for disabled ones of any class, all.
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
            // Of a subscriber the index knows the class and the key.
            match (is_of_class, subscriber) {
                (true, Some(_)) => leads.push(of_classes),
                (true, None) => rest.push(of_classes),
                (false, _) => {}
            }
            let leads = leads.join(" AND ");
            format!("SELECT {columns} FROM subscriptions WHERE {leads} AND id > ?1 ORDER BY id")
        } else if !classes.is_empty() && classes.len() <= MERGED_CLASSES_MAX {
            // Most are enabled, so that no index is worth its cost for them.
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

/// How many subscriptions each class has.
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
