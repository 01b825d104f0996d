//! The books (numbers given out, counts) and the change feed, written with each change in one commit.

use std::{collections::BTreeMap, sync::Arc};

use rusqlite::{Connection, Row, types::ValueRef};
use tocsin_model::{
    filter::Filter,
    id::{ChangeSequence, Name, SubscriberNumber, SubscriptionId},
    subscriber::{Profile, Subscriber},
    subscription::Terms,
    time::Timestamp,
};

use super::{conversion_failed, entries, execute, json, json_at, name_at, number_at, query_all, query_one, signed};
use crate::{
    entries::{EntryChange, EntryNumber, EntryWatcher},
    error::StoreError,
    records::{Change, Changed, ProfileImage, ProfileStep, RecordCounts, TARGETS_TOLD, no_changes_after, trim_to},
};

/// The books during one write. What is changed here becomes true with [`Books::close`] and its commit.
pub(super) struct Books<'a> {
    pub(super) connection: &'a Connection,
    pub(super) subscriber: u64,
    pub(super) subscription: u64,
    pub(super) change: u64,
    pub(super) trimmed: u64,
    pub(super) counts: RecordCounts,
    /// Subscribers that are not as they were, in whatever way: whoever writes a row of one or of its devices says so.
    pub(super) touched: Vec<u64>,
    /// Subscriptions that are not as they were.
    pub(super) subscriptions_touched: Vec<u64>,
    /// The last change of suppressions by this write, if there is one.
    pub(super) suppressed: Option<u64>,
    /// The last change of API keys by this write, if there is one.
    pub(super) key_changed: Option<u64>,
    /// Knows how entries of the directory are found.
    pub(super) watcher: Option<Arc<dyn EntryWatcher>>,
    /// Whether there are indexes of the directory that hold all entries.
    pub(super) indexed: bool,
    /// What was done to entries of the directory.
    pub(super) entry_changes: Vec<EntryChange>,
    /// Entries whose credentials are not as they were.
    pub(super) credentials_touched: Vec<EntryNumber>,
    /// The numbers as they are stored.
    stored: [u64; 7],
}

/// What is told of a profile, as JSON.
pub(super) enum Telling<'a> {
    /// What a change took away.
    Step(&'a str),
    /// All that there was.
    Whole(&'a str),
}

impl Telling<'_> {
    fn kind(&self) -> i64 {
        match self {
            Telling::Step(_) => 6,
            Telling::Whole(_) => 9,
        }
    }

    fn before(&self) -> &str {
        match self {
            Telling::Step(before) | Telling::Whole(before) => before,
        }
    }
}

/// A subscription as it was before a change.
pub(super) struct BeforeImage {
    pub(super) subscription: u64,
    pub(super) class: i64,
    pub(super) subscriber: u64,
    pub(super) device: Option<Name>,
    pub(super) enabled: bool,
    pub(super) parameters: Box<str>,
    pub(super) terms: Terms,
    pub(super) created_at: Timestamp,
}

impl<'a> Books<'a> {
    pub(super) fn open(connection: &'a Connection) -> Result<Books<'a>, StoreError> {
        query_one(
            connection,
            "SELECT subscriber, subscription, change, trimmed, subscribers, devices, subscriptions FROM books",
            (),
            |row| {
                let mut stored = [0; 7];
                for (at, number) in stored.iter_mut().enumerate() {
                    *number = number_at(row, at)?;
                }
                let [subscriber, subscription, change, trimmed, subscribers, devices, subscriptions] = stored;
                Ok(Books {
                    connection,
                    stored,
                    subscriber,
                    subscription,
                    change,
                    trimmed,
                    counts: RecordCounts { subscribers, devices, subscriptions },
                    touched: Vec::new(),
                    subscriptions_touched: Vec::new(),
                    suppressed: None,
                    key_changed: None,
                    watcher: None,
                    indexed: false,
                    entry_changes: Vec::new(),
                    credentials_touched: Vec::new(),
                })
            },
        )?
        .ok_or_else(|| StoreError::Damaged("the books are empty".to_owned()))
    }

    /// The feed keeps at least `feed_kept` places, and those after `feed_needed` longer.
    pub(super) fn close(&mut self, feed_kept: u64, feed_needed: u64) -> Result<(), StoreError> {
        self.trim(feed_kept, feed_needed)?;
        entries::followed(self.connection, &self.entry_changes)?;
        let numbers = [
            self.subscriber,
            self.subscription,
            self.change,
            self.trimmed,
            self.counts.subscribers,
            self.counts.devices,
            self.counts.subscriptions,
        ];
        if numbers == self.stored {
            return Ok(());
        }
        execute(
            self.connection,
            "UPDATE books SET subscriber = ?1, subscription = ?2, change = ?3, trimmed = ?4,
                subscribers = ?5, devices = ?6, subscriptions = ?7",
            numbers.map(signed),
        )?;
        Ok(())
    }

    pub(super) fn application_changed(&mut self, name: &Name) -> Result<(), StoreError> {
        self.change += 1;
        let sql = "INSERT INTO changes (sequence, kind, name) VALUES (?1, 0, ?2)";
        execute(self.connection, sql, (signed(self.change), name.as_str())).map(|_| ())
    }

    /// `before`: the channels of its active devices by name as they were, `None` if it was disabled.
    pub(super) fn subscriber_changed(&mut self, number: u64, before: Option<&str>) -> Result<(), StoreError> {
        self.change += 1;
        let sql = "INSERT INTO changes (sequence, kind, first, before) VALUES (?1, 1, ?2, ?3)";
        execute(self.connection, sql, (signed(self.change), signed(number), before)).map(|_| ())
    }

    pub(super) fn subscriptions_made(&mut self, first: u64, last: u64) -> Result<(), StoreError> {
        self.subscriptions_told(4, first, last, 1)
    }

    /// The images of one run of numbers without gaps, not empty. It takes up a place for each of them, so that the
    /// bound of the feed is one of the images too.
    pub(super) fn subscriptions_changed(&mut self, images: &[BeforeImage]) -> Result<(), StoreError> {
        let (Some(first), Some(last)) = (images.first(), images.last()) else { return Ok(()) };
        self.subscriptions_told(2, first.subscription, last.subscription, images.len() as u64)?;
        self.subscriptions_touched.extend(images.iter().map(|image| image.subscription));
        for image in images {
            execute(
                self.connection,
                "INSERT INTO before_images
                    (sequence, subscription, class, subscriber, device, enabled, parameters, filter, schedule, created_at)
                    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
                (
                    signed(self.change),
                    signed(image.subscription),
                    image.class,
                    signed(image.subscriber),
                    image.device.as_ref().map(Name::as_str),
                    image.enabled,
                    &*image.parameters,
                    image.terms.filter.as_ref().map(Filter::to_string),
                    image.terms.schedule.as_deref(),
                    image.created_at.0,
                ),
            )?;
        }
        Ok(())
    }

    /// A run of numbers without gaps that have another subscriber.
    pub(super) fn subscriptions_moved(&mut self, first: u64, last: u64) -> Result<(), StoreError> {
        self.subscriptions_told(8, first, last, 1)
    }

    fn subscriptions_told(&mut self, kind: u64, first: u64, last: u64, places: u64) -> Result<(), StoreError> {
        self.change += places;
        let sql = "INSERT INTO changes (sequence, kind, first, last) VALUES (?1, ?2, ?3, ?4)";
        execute(self.connection, sql, [self.change, kind, first, last].map(signed)).map(|_| ())
    }

    pub(super) fn api_keys_changed(&mut self) -> Result<(), StoreError> {
        self.change += 1;
        self.key_changed = Some(self.change);
        execute(self.connection, "INSERT INTO changes (sequence, kind) VALUES (?1, 3)", [signed(self.change)])
            .map(|_| ())
    }

    /// `before`: its filter as it was, `None` if it is new.
    pub(super) fn segment_changed(&mut self, name: &Name, before: Option<&str>) -> Result<(), StoreError> {
        self.change += 1;
        let sql = "INSERT INTO changes (sequence, kind, name, before) VALUES (?1, 5, ?2, ?3)";
        execute(self.connection, sql, (signed(self.change), name.as_str(), before)).map(|_| ())
    }

    /// Tells of a subscriber with what it was before; `now`: its new profile, if it has one. Whether a segment or a rule asks for
    /// it is not known here, nor which will ask before the events of now are matched. Gives the place, which whoever writes its
    /// row writes down there.
    pub(super) fn profile_changed(&mut self, before: &Subscriber, now: Option<&Profile>) -> Result<u64, StoreError> {
        let sql = "SELECT told FROM subscribers WHERE number = ?1";
        let last = query_one(self.connection, sql, [signed(before.number.0)], |row| row.get(0))?.flatten();
        match now {
            Some(now) if !self.tells_whole() => {
                let step = json(&ProfileStep::back(now, &before.profile));
                self.profile_told(before.number, last, Telling::Step(&step))
            }
            _ => self.profile_told(before.number, last, Telling::Whole(&json(&ProfileImage::of(before)))),
        }
    }

    /// Whether the next change of a profile is told with all that there was.
    pub(super) fn tells_whole(&self) -> bool {
        is_whole(self.change + 1)
    }

    /// The same as [`Books::profile_changed`]. `last`: where it was told of before.
    pub(super) fn profile_told(
        &mut self,
        number: SubscriberNumber,
        last: Option<i64>,
        telling: Telling<'_>,
    ) -> Result<u64, StoreError> {
        self.change += 1;
        let sql = "INSERT INTO changes (sequence, kind, first, last, before) VALUES (?1, ?2, ?3, ?4, ?5)";
        let row = (signed(self.change), telling.kind(), signed(number.0), last, telling.before());
        execute(self.connection, sql, row)?;
        Ok(self.change)
    }

    /// The same of a subscriber at a revision, if it is at that; otherwise nothing is told.
    pub(super) fn profile_told_of(
        &mut self,
        number: SubscriberNumber,
        revision: u64,
        telling: Telling<'_>,
    ) -> Result<Option<u64>, StoreError> {
        let sql = "INSERT INTO changes (sequence, kind, first, last, before)
            SELECT ?1, ?2, number, told, ?3 FROM subscribers WHERE number = ?4 AND revision = ?5";
        let row = (signed(self.change + 1), telling.kind(), telling.before(), signed(number.0), signed(revision));
        let is_told = execute(self.connection, sql, row)? > 0;
        self.change += u64::from(is_told);
        Ok(is_told.then_some(self.change))
    }

    pub(super) fn suppressions_changed(&mut self, targets: &[String]) -> Result<(), StoreError> {
        for told in targets.chunks(TARGETS_TOLD) {
            self.change += 1;
            let sql = "INSERT INTO changes (sequence, kind, before) VALUES (?1, 7, ?2)";
            execute(self.connection, sql, (signed(self.change), json(told)))?;
            self.suppressed = Some(self.change);
        }
        Ok(())
    }

    /// Removes old places. Each commit removes about as many as it adds, so no single one pays for all.
    fn trim(&mut self, feed_kept: u64, feed_needed: u64) -> Result<(), StoreError> {
        if let Some(end) = trim_to(self.change, self.trimmed, feed_kept, feed_needed) {
            execute(self.connection, "DELETE FROM changes WHERE sequence <= ?1", [signed(end)])?;
            execute(self.connection, "DELETE FROM before_images WHERE sequence <= ?1", [signed(end)])?;
            self.trimmed = end;
        }
        Ok(())
    }
}

pub(super) fn changes(connection: &Connection, after: ChangeSequence, limit: usize) -> Result<Vec<Change>, StoreError> {
    if after.0 < Books::open(connection)?.trimmed {
        return Err(no_changes_after(after));
    }
    let sql =
        "SELECT sequence, kind, name, first, last, before FROM changes WHERE sequence > ?1 ORDER BY sequence LIMIT ?2";
    query_all(connection, sql, (signed(after.0), signed(limit as u64)), change_of)
}

/// The same, only of suppressions.
pub(super) fn suppression_changes(
    connection: &Connection,
    after: ChangeSequence,
    limit: usize,
) -> Result<Vec<Change>, StoreError> {
    if after.0 < Books::open(connection)?.trimmed {
        return Err(no_changes_after(after));
    }
    let sql = "SELECT sequence, kind, name, first, last, before FROM changes INDEXED BY changes_of_suppressions
        WHERE kind = 7 AND sequence > ?1 ORDER BY sequence LIMIT ?2";
    query_all(connection, sql, (signed(after.0), signed(limit as u64)), change_of)
}

/// The newest change of suppressions that is kept, or the beginning.
pub(super) fn newest_suppression(connection: &Connection) -> Result<ChangeSequence, StoreError> {
    let sql = "SELECT coalesce(max(sequence), 0) FROM changes INDEXED BY changes_of_suppressions WHERE kind = 7";
    Ok(ChangeSequence(query_one(connection, sql, (), |row| number_at(row, 0))?.unwrap_or(0)))
}

fn change_of(row: &Row<'_>) -> rusqlite::Result<Change> {
    let sequence = ChangeSequence(number_at(row, 0)?);
    let what = match row.get(1)? {
        0 => Changed::Application(name_at(row, 2)?),
        1 => Changed::Subscriber(SubscriberNumber(number_at(row, 3)?)),
        2 | 4 => Changed::Subscriptions(SubscriptionId(number_at(row, 3)?), SubscriptionId(number_at(row, 4)?)),
        3 => Changed::ApiKey,
        5 => Changed::Segment(name_at(row, 2)?),
        6 | 9 => Changed::Profile(SubscriberNumber(number_at(row, 3)?)),
        8 => Changed::Moved(SubscriptionId(number_at(row, 3)?), SubscriptionId(number_at(row, 4)?)),
        7 => {
            let targets: Vec<String> = json_at(row, 5)?;
            let targets = targets.iter().map(|target| target.parse().map_err(|error| conversion_failed(5, error)));
            Changed::Suppressions(targets.collect::<rusqlite::Result<_>>()?)
        }
        kind => return Err(rusqlite::Error::IntegralValueOutOfRange(1, kind)),
    };
    Ok(Change { sequence, what })
}

/// A place of the feed in the past, with what was given out by then.
pub(super) struct Past {
    pub(super) at: u64,
    /// The last number of a subscription.
    pub(super) subscription: u64,
}

/// The past as of a place; `None` is the present.
pub(super) fn past(connection: &Connection, at: ChangeSequence) -> Result<Option<Past>, StoreError> {
    let books = Books::open(connection)?;
    if at.0 < books.trimmed {
        return Err(no_changes_after(at));
    }
    if at.0 >= books.change {
        return Ok(None);
    }
    // Numbers only grow, so the first that was given out later tells the last of then.
    let sql = "SELECT first FROM changes WHERE kind = 4 AND sequence > ?1 ORDER BY sequence LIMIT 1";
    let next = query_one(connection, sql, [signed(at.0)], |row| number_at(row, 0))?;
    Ok(Some(Past { at: at.0, subscription: next.map_or(books.subscription, |next| next - 1) }))
}

/// The channels of a subscriber's active devices by name as they were at a place in the past, `None` if it was disabled;
/// the outer `None` if they have not changed since.
pub(super) fn reach_before(
    connection: &Connection,
    subscriber: u64,
    past: &Past,
) -> Result<Option<Option<BTreeMap<Name, Name>>>, StoreError> {
    let sql = "SELECT before FROM changes WHERE kind = 1 AND first = ?1 AND sequence > ?2 ORDER BY sequence LIMIT 1";
    query_one(connection, sql, [signed(subscriber), signed(past.at)], |row| match row.get_ref(0)? {
        ValueRef::Null => Ok(None),
        _ => json_at(row, 0).map(Some),
    })
}

/// Whether a change of a profile is told with all that there was: one of sixteen, so that nobody reads many to know how one was.
/// Which ones, nobody can foresee who changes a subscriber again and again.
fn is_whole(sequence: u64) -> bool {
    sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60 == 0
}

/// A subscriber as segments and rules saw it at a place in the past. `present`: as it is, and the newest change that tells of its
/// profile.
///
/// Each such change names the one before it, and those that tell all that there was have an index. So one goes back from the
/// first of these behind the place, or from the present, over as many steps as are between.
pub(super) fn profile_at(
    connection: &Connection,
    subscriber: u64,
    past: &Past,
    present: impl FnOnce() -> Result<Option<(ProfileImage, Option<i64>)>, StoreError>,
) -> Result<Option<ProfileImage>, StoreError> {
    let sql = "SELECT before, last FROM changes INDEXED BY changes_of_profiles
        WHERE kind = 9 AND first = ?1 AND sequence > ?2 ORDER BY sequence LIMIT 1";
    let read = |row: &Row<'_>| Ok((json_at(row, 0)?, row.get(1)?));
    let whole = query_one(connection, sql, [signed(subscriber), signed(past.at)], read)?;
    let Some((mut image, mut last)) = whole.map_or_else(present, |whole| Ok(Some(whole)))? else { return Ok(None) };
    while let Some(place) = last.filter(|place| *place > signed(past.at)) {
        let sql = "SELECT before, last FROM changes WHERE sequence = ?1";
        let read = |row: &Row<'_>| Ok((json_at::<ProfileStep>(row, 0)?, row.get(1)?));
        let missing = || StoreError::Damaged(format!("the change {place} of the subscriber {subscriber} is missing"));
        let (step, next) = query_one(connection, sql, [place], read)?.ok_or_else(missing)?;
        image.undo(step);
        last = next;
    }
    Ok(Some(image))
}

/// The filter of a segment as it was at a place in the past, `None` if there was none; the outer `None` if it has not
/// changed since.
pub(super) fn filter_before(
    connection: &Connection,
    segment: &Name,
    past: &Past,
) -> Result<Option<Option<String>>, StoreError> {
    let sql = "SELECT before FROM changes WHERE kind = 5 AND name = ?1 AND sequence > ?2 ORDER BY sequence LIMIT 1";
    query_one(connection, sql, (segment.as_str(), signed(past.at)), |row| row.get(0))
}
