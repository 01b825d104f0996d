//! Counters of backlog and totals: a table row, updated in the commit of what it counts, and a copy in memory,
//! updated after the commit.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rusqlite::{Connection, params_from_iter};
use tocsin_model::{receipt::Outcome, time::Timestamp};

use crate::{
    error::StoreError,
    journal::{Backlog, Totals},
    sqlite::writer::store_error,
};

/// Counter values, or differences of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CounterValues {
    /// Accepted in total.
    pub event_batches: i64,
    pub events: i64,
    /// Created in total.
    pub notification_batches: i64,
    pub notifications: i64,
    /// Attempts by outcome.
    pub attempts: [i64; Outcome::ALL.len()],
    /// Unmatched.
    pub waiting_batches: i64,
    pub waiting_events: i64,
    pub waiting_bytes: i64,
    pub failed_batches: i64,
    /// Unfinished notifications of open work items.
    pub waiting_notifications: i64,
    pub work_items: i64,
    pub suspended_notifications: i64,
}

const COUNTS: usize = 17;
const LASTS: usize = 4;

const ADD: &str = "UPDATE tally SET
    event_batches = event_batches + ?1, events = events + ?2,
    notification_batches = notification_batches + ?3, notifications = notifications + ?4,
    delivered = delivered + ?5, deferred = deferred + ?6, refused = refused + ?7, expired = expired + ?8,
    suspended = suspended + ?9, ended = ended + ?10,
    waiting_batches = waiting_batches + ?11, waiting_events = waiting_events + ?12,
    waiting_bytes = waiting_bytes + ?13, failed_batches = failed_batches + ?14,
    waiting_notifications = waiting_notifications + ?15, work_items = work_items + ?16,
    suspended_notifications = suspended_notifications + ?17,
    last_event_batch = ?18, last_notification_batch = ?19, last_work = ?20, last_suspension = ?21";

const READ: &str = "SELECT event_batches, events, notification_batches, notifications,
    delivered, deferred, refused, expired, suspended, ended,
    waiting_batches, waiting_events, waiting_bytes, failed_batches,
    waiting_notifications, work_items, suspended_notifications,
    last_event_batch, last_notification_batch, last_work, last_suspension FROM tally";

impl CounterValues {
    fn to_array(self) -> [i64; COUNTS] {
        let [delivered, deferred, refused, expired, suspended, ended] = self.attempts;
        [
            self.event_batches,
            self.events,
            self.notification_batches,
            self.notifications,
            delivered,
            deferred,
            refused,
            expired,
            suspended,
            ended,
            self.waiting_batches,
            self.waiting_events,
            self.waiting_bytes,
            self.failed_batches,
            self.waiting_notifications,
            self.work_items,
            self.suspended_notifications,
        ]
    }

    fn from_array(counts: [i64; COUNTS]) -> CounterValues {
        let [
            event_batches,
            events,
            notification_batches,
            notifications,
            delivered,
            deferred,
            refused,
            expired,
            suspended,
            ended,
            waiting_batches,
            waiting_events,
            waiting_bytes,
            failed_batches,
            waiting_notifications,
            work_items,
            suspended_notifications,
        ] = counts;
        CounterValues {
            event_batches,
            events,
            notification_batches,
            notifications,
            attempts: [delivered, deferred, refused, expired, suspended, ended],
            waiting_batches,
            waiting_events,
            waiting_bytes,
            failed_batches,
            waiting_notifications,
            work_items,
            suspended_notifications,
        }
    }
}

/// Last assigned row numbers. A number taken by a transaction that fails is skipped forever.
#[derive(Debug, Default)]
pub struct Last {
    pub event_batch: AtomicU64,
    pub notification_batch: AtomicU64,
    pub work: AtomicU64,
    pub suspension: AtomicU64,
}

impl Last {
    /// Assigns the next number.
    pub fn next(last: &AtomicU64) -> u64 {
        // Numbers are assigned by the writer thread only, in the order of its jobs.
        last.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// Counters of an open journal.
pub struct Counters {
    pub last: Last,
    current: Mutex<CurrentCounters>,
}

struct CurrentCounters {
    tally: CounterValues,
    oldest_event: Option<Timestamp>,
}

impl Counters {
    /// Loads the counters of a file.
    pub fn load(connection: &Connection) -> Result<Counters, StoreError> {
        let numbers: [i64; COUNTS + LASTS] = connection
            .query_row(READ, (), |row| {
                let mut numbers = [0; COUNTS + LASTS];
                for (at, number) in numbers.iter_mut().enumerate() {
                    *number = row.get(at)?;
                }
                Ok(numbers)
            })
            .map_err(store_error)?;
        let (counts, lasts) = numbers.split_at(COUNTS);
        // A number in use is never assigned again, even if the row is wrong.
        let last = |at: usize, table: &str| {
            let used: i64 = connection
                .query_row(&format!("SELECT coalesce(max(id), 0) FROM {table}"), (), |row| row.get(0))
                .map_err(store_error)?;
            Ok::<_, StoreError>(AtomicU64::new(lasts[at].max(used).max(0) as u64))
        };
        Ok(Counters {
            last: Last {
                event_batch: last(0, "event_batches")?,
                notification_batch: last(1, "notification_batches")?,
                work: last(2, "work")?,
                suspension: last(3, "suspensions")?,
            },
            current: Mutex::new(CurrentCounters {
                tally: CounterValues::from_array(counts.try_into().expect("split there")),
                oldest_event: oldest_event(connection)?,
            }),
        })
    }

    /// Adds differences to the row, within the transaction that causes them, and stores the last assigned numbers.
    pub fn store(&self, connection: &Connection, difference: CounterValues) -> Result<(), StoreError> {
        let last = &self.last;
        let lasts = [&last.event_batch, &last.notification_batch, &last.work, &last.suspension];
        let lasts = lasts.map(|last| last.load(Ordering::Relaxed) as i64);
        let numbers = difference.to_array().into_iter().chain(lasts);
        let mut statement = connection.prepare_cached(ADD).map_err(store_error)?;
        statement.execute(params_from_iter(numbers)).map_err(store_error)?;
        Ok(())
    }

    /// Adds the differences of a durable commit that accepted a batch.
    pub fn add_accepted(&self, difference: CounterValues, accepted_at: Timestamp) {
        let mut current = self.current.lock();
        current.oldest_event.get_or_insert(accepted_at);
        current.add(difference);
    }

    /// Adds the differences of a durable commit, with the oldest waiting batch if it may have changed.
    pub fn add(&self, difference: CounterValues, oldest_event: Option<Option<Timestamp>>) {
        let mut current = self.current.lock();
        current.add(difference);
        if let Some(oldest_event) = oldest_event {
            current.oldest_event = oldest_event;
        }
    }

    /// Current backlog.
    pub fn backlog(&self) -> Backlog {
        let current = self.current.lock();
        let tally = &current.tally;
        Backlog {
            event_batches: count(tally.waiting_batches),
            events: count(tally.waiting_events),
            event_bytes: count(tally.waiting_bytes),
            failed_batches: count(tally.failed_batches),
            notifications: count(tally.waiting_notifications),
            work_items: count(tally.work_items),
            suspended: count(tally.suspended_notifications),
            oldest_event: current.oldest_event,
        }
    }

    /// Totals.
    pub fn totals(&self) -> Totals {
        let tally = self.current.lock().tally;
        Totals {
            event_batches: count(tally.event_batches),
            events: count(tally.events),
            notification_batches: count(tally.notification_batches),
            notifications: count(tally.notifications),
            attempts: tally.attempts.map(count),
        }
    }
}

impl CurrentCounters {
    fn add(&mut self, difference: CounterValues) {
        let (mut sums, differences) = (self.tally.to_array(), difference.to_array());
        sums.iter_mut().zip(differences).for_each(|(sum, difference)| *sum += difference);
        self.tally = CounterValues::from_array(sums);
    }
}

fn count(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// Acceptance time of the first waiting event batch, as this connection sees it.
pub fn oldest_event(connection: &Connection) -> Result<Option<Timestamp>, StoreError> {
    let mut statement =
        connection.prepare_cached("SELECT accepted_at FROM event_waiting ORDER BY id LIMIT 1").map_err(store_error)?;
    let mut rows = statement.query(()).map_err(store_error)?;
    let row = rows.next().map_err(store_error)?;
    row.map(|row| row.get(0).map(Timestamp)).transpose().map_err(store_error)
}
