//! Write transaction of the records: id counters, row counts and the change log, stored with each change in one
//! commit. Also the snapshot reads that undo logged changes.

use std::{cell::Cell, collections::BTreeMap, sync::Arc};

use rusqlite::{Connection, Row, types::ValueRef};
use tocsin_model::{
    filter::Filter,
    id::{ChangeSequence, Name, SubscriberNumber, SubscriptionId},
    lifecycle::ChangeOrigin,
    subscriber::{Profile, Subscriber},
    subscription::SubscriptionParams,
    suppression::Target,
    time::Timestamp,
};

use crate::{
    entries::{EntryChange, EntryNumber, EntryWatcher},
    error::StoreError,
    records::{
        ChangeKind, LOGGED_TARGETS_MAX, LifecycleFilter, ProfileImage, ProfileStep, RecipientChange, RecordChange,
        RecordCounts, no_changes_after, trim_to,
    },
    sqlite::{
        records::{entry_log, subscriber_rows},
        statements::{conversion_failed, execute, json, json_at, name_at, number_at, query_all, query_one, signed},
    },
};

/// Filters of the outbox of lifecycle events, by application.
pub(super) type Filters = Arc<[(Name, LifecycleFilter)]>;

/// State of one write transaction. [`RecordsTransaction::finish`] stores it; it becomes visible with the commit.
pub(super) struct RecordsTransaction<'a> {
    pub(super) connection: &'a Connection,
    pub(super) subscriber: u64,
    pub(super) subscription: u64,
    pub(super) change: u64,
    pub(super) trimmed: u64,
    pub(super) counts: RecordCounts,
    /// Subscribers that changed in any way. Must be extended whenever a row of a subscriber or its devices is
    /// written.
    pub(super) touched: Vec<u64>,
    /// Changed subscriptions.
    pub(super) subscriptions_touched: Vec<u64>,
    /// Subscribers of changed subscriptions and suppressions, and suppressed addresses, for the hook of delivery.
    pub(super) recipients: RecipientChange,
    /// Last logged change of suppressions in this transaction.
    pub(super) suppressed: Option<u64>,
    /// Last logged change of API keys in this transaction.
    pub(super) key_changed: Option<u64>,
    /// Origin of the changes of subscriptions, for their lifecycle events.
    pub(super) origin: ChangeOrigin,
    /// Filters of the outbox of lifecycle events, once read.
    pub(super) lifecycle_filters: Option<Filters>,
    /// Run of new subscriptions that is not logged yet.
    made: Option<(u64, u64)>,
    /// Class of the subscriptions that have documents of NotifyBC, once read.
    pub(super) notifybc_class: Cell<Option<Option<i64>>>,
    /// Commit hook of the directory.
    pub(super) watcher: Option<Arc<dyn EntryWatcher>>,
    /// Whether any search index of the directory is complete.
    pub(super) indexed: bool,
    /// Changes of directory entries.
    pub(super) entry_changes: Vec<EntryChange>,
    /// Entries with changed credentials.
    pub(super) credentials_touched: Vec<EntryNumber>,
    /// Number of audit entries of grouped changes.
    pub(super) audit_entries: u64,
    /// Counters as read from the table.
    stored: [u64; 7],
}

/// Before-image of a profile for the change log, as JSON.
pub(super) enum LoggedProfile<'a> {
    /// The changed parts only.
    UndoStep(&'a str),
    /// The whole former profile.
    Full(&'a str),
}

impl LoggedProfile<'_> {
    fn kind(&self) -> i64 {
        match self {
            LoggedProfile::UndoStep(_) => 6,
            LoggedProfile::Full(_) => 9,
        }
    }

    fn before(&self) -> &str {
        match self {
            LoggedProfile::UndoStep(before) | LoggedProfile::Full(before) => before,
        }
    }
}

/// Before-image of a subscription.
pub(super) struct BeforeImage {
    pub(super) subscription: u64,
    pub(super) class: i64,
    pub(super) subscriber: u64,
    pub(super) device: Option<Name>,
    pub(super) enabled: bool,
    pub(super) parameters: Box<str>,
    pub(super) terms: SubscriptionParams,
    pub(super) created_at: Timestamp,
}

impl<'a> RecordsTransaction<'a> {
    pub(super) fn open(connection: &'a Connection) -> Result<RecordsTransaction<'a>, StoreError> {
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
                Ok(RecordsTransaction {
                    connection,
                    stored,
                    subscriber,
                    subscription,
                    change,
                    trimmed,
                    counts: RecordCounts { subscribers, devices, subscriptions },
                    touched: Vec::new(),
                    subscriptions_touched: Vec::new(),
                    recipients: RecipientChange::default(),
                    suppressed: None,
                    key_changed: None,
                    origin: ChangeOrigin::default(),
                    lifecycle_filters: None,
                    made: None,
                    notifybc_class: Cell::new(None),
                    watcher: None,
                    indexed: false,
                    entry_changes: Vec::new(),
                    credentials_touched: Vec::new(),
                    audit_entries: 0,
                })
            },
        )?
        .ok_or_else(|| StoreError::Damaged("the table of counters is empty".to_owned()))
    }

    /// Stores the counters and trims the change log. The log keeps at least `changes_kept` sequences, and longer
    /// those after `changes_needed`.
    pub(super) fn finish(&mut self, changes_kept: u64, changes_needed: u64) -> Result<(), StoreError> {
        self.log_made()?;
        self.trim(changes_kept, changes_needed)?;
        entry_log::append_change_log(self.connection, &self.entry_changes)?;
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

    /// `before`: former channels of the active devices by name; `None` if the subscriber was disabled.
    pub(super) fn subscriber_changed(&mut self, number: u64, before: Option<&str>) -> Result<(), StoreError> {
        self.change += 1;
        let sql = "INSERT INTO changes (sequence, kind, first, before) VALUES (?1, 1, ?2, ?3)";
        execute(self.connection, sql, (signed(self.change), signed(number), before)).map(|_| ())
    }

    pub(super) fn subscriptions_made(&mut self, first: u64, last: u64) -> Result<(), StoreError> {
        self.log_subscriptions(4, first, last, 1)
    }

    /// Adds a new subscription, whose number follows the last one, to a run that is logged as one change.
    pub(super) fn subscription_made(&mut self, id: u64) {
        self.made = Some((self.made.map_or(id, |(first, _)| first), id));
    }

    /// Logs the run of new subscriptions. Must be called before one of them changes.
    pub(super) fn log_made(&mut self) -> Result<(), StoreError> {
        match self.made.take() {
            Some((first, last)) => self.subscriptions_made(first, last),
            None => Ok(()),
        }
    }

    /// Logs the before-images of a run of numbers without gaps. The run takes one sequence per image, so the log's
    /// limit also bounds the images.
    pub(super) fn subscriptions_changed(&mut self, images: &[BeforeImage]) -> Result<(), StoreError> {
        let (Some(first), Some(last)) = (images.first(), images.last()) else { return Ok(()) };
        self.log_subscriptions(2, first.subscription, last.subscription, images.len() as u64)?;
        self.subscriptions_touched.extend(images.iter().map(|image| image.subscription));
        self.recipients.subscribers.extend(images.iter().map(|image| SubscriberNumber(image.subscriber)));
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

    /// Logs that a run of numbers without gaps moved to another subscriber.
    pub(super) fn subscriptions_moved(&mut self, first: u64, last: u64) -> Result<(), StoreError> {
        self.log_subscriptions(8, first, last, 1)
    }

    fn log_subscriptions(&mut self, kind: u64, first: u64, last: u64, places: u64) -> Result<(), StoreError> {
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

    /// `before`: the former filter; `None` if the segment is new.
    pub(super) fn segment_changed(&mut self, name: &Name, before: Option<&str>) -> Result<(), StoreError> {
        self.change += 1;
        let sql = "INSERT INTO changes (sequence, kind, name, before) VALUES (?1, 5, ?2, ?3)";
        execute(self.connection, sql, (signed(self.change), name.as_str(), before)).map(|_| ())
    }

    /// Logs a profile with its before-image; `now`: the new profile, if the subscriber remains. It is logged
    /// unconditionally, since later events may be matched by rules or segments that read it. Returns the sequence,
    /// which the caller stores in the subscriber's row.
    pub(super) fn profile_changed(&mut self, before: &Subscriber, now: Option<&Profile>) -> Result<u64, StoreError> {
        let sql = "SELECT told FROM subscribers WHERE number = ?1";
        let last = query_one(self.connection, sql, [signed(before.number.0)], |row| row.get(0))?.flatten();
        match now {
            Some(now) if !self.logs_full_image() => {
                let step = json(&ProfileStep::back(now, &before.profile));
                self.log_profile(before.number, last, LoggedProfile::UndoStep(&step))
            }
            _ => self.log_profile(before.number, last, LoggedProfile::Full(&json(&ProfileImage::of(before)))),
        }
    }

    /// Whether the next profile change is logged with the full before-image.
    pub(super) fn logs_full_image(&self) -> bool {
        is_whole(self.change + 1)
    }

    /// Like [`RecordsTransaction::profile_changed`]. `last`: the previous logged change of this profile.
    pub(super) fn log_profile(
        &mut self,
        number: SubscriberNumber,
        last: Option<i64>,
        logged: LoggedProfile<'_>,
    ) -> Result<u64, StoreError> {
        self.change += 1;
        let sql = "INSERT INTO changes (sequence, kind, first, last, before) VALUES (?1, ?2, ?3, ?4, ?5)";
        let row = (signed(self.change), logged.kind(), signed(number.0), last, logged.before());
        execute(self.connection, sql, row)?;
        Ok(self.change)
    }

    /// The same for a subscriber with an expected revision (compare-and-set); with another revision, nothing is
    /// logged.
    pub(super) fn log_profile_at_revision(
        &mut self,
        number: SubscriberNumber,
        revision: u64,
        logged: LoggedProfile<'_>,
    ) -> Result<Option<u64>, StoreError> {
        let sql = "INSERT INTO changes (sequence, kind, first, last, before)
            SELECT ?1, ?2, number, told, ?3 FROM subscribers WHERE number = ?4 AND revision = ?5";
        let row = (signed(self.change + 1), logged.kind(), logged.before(), signed(number.0), signed(revision));
        let is_told = execute(self.connection, sql, row)? > 0;
        self.change += u64::from(is_told);
        Ok(is_told.then_some(self.change))
    }

    pub(super) fn suppressions_changed(&mut self, targets: &[String]) -> Result<(), StoreError> {
        for target in targets {
            match target.parse() {
                Ok(Target::Device { subscriber, .. }) => {
                    let number = subscriber_rows::number(self.connection, &subscriber)?;
                    self.recipients.subscribers.extend(number.map(SubscriberNumber));
                }
                Ok(target) => self.recipients.addresses.push(target),
                Err(_) => return Err(StoreError::Damaged(format!("the target `{target}` of a suppression"))),
            }
        }
        for chunk in targets.chunks(LOGGED_TARGETS_MAX) {
            self.change += 1;
            let sql = "INSERT INTO changes (sequence, kind, before) VALUES (?1, 7, ?2)";
            execute(self.connection, sql, (signed(self.change), json(chunk)))?;
            self.suppressed = Some(self.change);
        }
        Ok(())
    }

    /// Removes old sequences. Each commit removes about as many as it adds, so that no single one pays for all.
    fn trim(&mut self, changes_kept: u64, changes_needed: u64) -> Result<(), StoreError> {
        if let Some(end) = trim_to(self.change, self.trimmed, changes_kept, changes_needed) {
            execute(self.connection, "DELETE FROM changes WHERE sequence <= ?1", [signed(end)])?;
            execute(self.connection, "DELETE FROM before_images WHERE sequence <= ?1", [signed(end)])?;
            self.trimmed = end;
        }
        Ok(())
    }
}

pub(super) fn changes(
    connection: &Connection,
    after: ChangeSequence,
    limit: usize,
) -> Result<Vec<RecordChange>, StoreError> {
    if after.0 < RecordsTransaction::open(connection)?.trimmed {
        return Err(no_changes_after(after));
    }
    let sql =
        "SELECT sequence, kind, name, first, last, before FROM changes WHERE sequence > ?1 ORDER BY sequence LIMIT ?2";
    query_all(connection, sql, (signed(after.0), signed(limit as u64)), change_of)
}

/// The same, for suppressions only.
pub(super) fn suppression_changes(
    connection: &Connection,
    after: ChangeSequence,
    limit: usize,
) -> Result<Vec<RecordChange>, StoreError> {
    if after.0 < RecordsTransaction::open(connection)?.trimmed {
        return Err(no_changes_after(after));
    }
    let sql = "SELECT sequence, kind, name, first, last, before FROM changes INDEXED BY changes_of_suppressions
        WHERE kind = 7 AND sequence > ?1 ORDER BY sequence LIMIT ?2";
    query_all(connection, sql, (signed(after.0), signed(limit as u64)), change_of)
}

/// Newest logged change of suppressions, or zero.
pub(super) fn newest_suppression(connection: &Connection) -> Result<ChangeSequence, StoreError> {
    let sql = "SELECT coalesce(max(sequence), 0) FROM changes INDEXED BY changes_of_suppressions WHERE kind = 7";
    Ok(ChangeSequence(query_one(connection, sql, (), |row| number_at(row, 0))?.unwrap_or(0)))
}

fn change_of(row: &Row<'_>) -> rusqlite::Result<RecordChange> {
    let sequence = ChangeSequence(number_at(row, 0)?);
    let what = match row.get(1)? {
        0 => ChangeKind::Application(name_at(row, 2)?),
        1 => ChangeKind::Subscriber(SubscriberNumber(number_at(row, 3)?)),
        2 | 4 => ChangeKind::Subscriptions(SubscriptionId(number_at(row, 3)?), SubscriptionId(number_at(row, 4)?)),
        3 => ChangeKind::ApiKey,
        5 => ChangeKind::Segment(name_at(row, 2)?),
        6 | 9 => ChangeKind::Profile(SubscriberNumber(number_at(row, 3)?)),
        8 => ChangeKind::Moved(SubscriptionId(number_at(row, 3)?), SubscriptionId(number_at(row, 4)?)),
        7 => {
            let targets: Vec<String> = json_at(row, 5)?;
            let targets = targets.iter().map(|target| target.parse().map_err(|error| conversion_failed(5, error)));
            ChangeKind::Suppressions(targets.collect::<rusqlite::Result<_>>()?)
        }
        kind => return Err(rusqlite::Error::IntegralValueOutOfRange(1, kind)),
    };
    Ok(RecordChange { sequence, what })
}

/// Sequence of the change log (snapshot), with the last numbers assigned then.
pub(super) struct Snapshot {
    pub(super) at: u64,
    /// Last subscription number.
    pub(super) subscription: u64,
}

/// Snapshot at a sequence; `None` is the present.
pub(super) fn snapshot_at(connection: &Connection, at: ChangeSequence) -> Result<Option<Snapshot>, StoreError> {
    let tx = RecordsTransaction::open(connection)?;
    if at.0 < tx.trimmed {
        return Err(no_changes_after(at));
    }
    if at.0 >= tx.change {
        return Ok(None);
    }
    // Numbers only grow, so the first one assigned later gives the last one of then.
    let sql = "SELECT first FROM changes WHERE kind = 4 AND sequence > ?1 ORDER BY sequence LIMIT 1";
    let next = query_one(connection, sql, [signed(at.0)], |row| number_at(row, 0))?;
    Ok(Some(Snapshot { at: at.0, subscription: next.map_or(tx.subscription, |next| next - 1) }))
}

/// Channels of a subscriber's active devices by name at a snapshot sequence; `None` if it was disabled. The outer `None`
/// means unchanged since.
pub(super) fn reach_before(
    connection: &Connection,
    subscriber: u64,
    snapshot: &Snapshot,
) -> Result<Option<Option<BTreeMap<Name, Name>>>, StoreError> {
    let sql = "SELECT before FROM changes WHERE kind = 1 AND first = ?1 AND sequence > ?2 ORDER BY sequence LIMIT 1";
    query_one(connection, sql, [signed(subscriber), signed(snapshot.at)], |row| match row.get_ref(0)? {
        ValueRef::Null => Ok(None),
        _ => json_at(row, 0).map(Some),
    })
}

/// Whether a profile change is logged with the full before-image: about one of sixteen, which bounds the number of
/// undo steps of a read. The choice is a hash, so a client cannot predict it by repeated changes.
fn is_whole(sequence: u64) -> bool {
    sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60 == 0
}

/// Profile of a subscriber at a snapshot sequence. `present`: its present image and the newest logged change of its
/// profile.
///
/// Each logged change links to the previous one, and full before-images have an index. The read starts at the first
/// full image after the sequence, or at the present, and undoes the changes in between.
pub(super) fn profile_at(
    connection: &Connection,
    subscriber: u64,
    snapshot: &Snapshot,
    present: impl FnOnce() -> Result<Option<(ProfileImage, Option<i64>)>, StoreError>,
) -> Result<Option<ProfileImage>, StoreError> {
    let sql = "SELECT before, last FROM changes INDEXED BY changes_of_profiles
        WHERE kind = 9 AND first = ?1 AND sequence > ?2 ORDER BY sequence LIMIT 1";
    let read = |row: &Row<'_>| Ok((json_at(row, 0)?, row.get(1)?));
    let whole = query_one(connection, sql, [signed(subscriber), signed(snapshot.at)], read)?;
    let Some((mut image, mut last)) = whole.map_or_else(present, |whole| Ok(Some(whole)))? else { return Ok(None) };
    while let Some(place) = last.filter(|place| *place > signed(snapshot.at)) {
        let sql = "SELECT before, last FROM changes WHERE sequence = ?1";
        let read = |row: &Row<'_>| Ok((json_at::<ProfileStep>(row, 0)?, row.get(1)?));
        let missing = || StoreError::Damaged(format!("the change {place} of the subscriber {subscriber} is missing"));
        let (step, next) = query_one(connection, sql, [place], read)?.ok_or_else(missing)?;
        image.undo(step);
        last = next;
    }
    Ok(Some(image))
}

/// Filter of a segment at a snapshot sequence; `None` if it did not exist. The outer `None` means unchanged since.
pub(super) fn filter_before(
    connection: &Connection,
    segment: &Name,
    snapshot: &Snapshot,
) -> Result<Option<Option<String>>, StoreError> {
    let sql = "SELECT before FROM changes WHERE kind = 5 AND name = ?1 AND sequence > ?2 ORDER BY sequence LIMIT 1";
    query_one(connection, sql, (segment.as_str(), signed(snapshot.at)), |row| row.get(0))
}
