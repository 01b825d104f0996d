//! What happened in each minute: small rows, written in the commit of what they sum up.

use rusqlite::{Connection, OptionalExtension, Row};
use tocsin_model::{id::Name, time::Timestamp};

use super::{names::Names, reading::collect};
use crate::{
    error::StoreError,
    journal::{
        ActivityRow, Stream, Window,
        activity::{Activity, Ledger, Parts, minute_of},
    },
    sqlite::writer::store_error,
};

const EVENTS: i64 = 0;
const NOTIFICATIONS: i64 = 1;
const FIRINGS: i64 = 2;

/// A stream, in numbers: its kind and its names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamKey([i64; 6]);

impl StreamKey {
    pub fn events(application: i64, class: i64, source: i64) -> StreamKey {
        StreamKey([EVENTS, application, class, source, 0, 0])
    }

    /// The names as a notification batch has them: application, rule, class, event class and channel.
    pub fn notifications([application, rule, class, event_class, channel]: [i64; 5]) -> StreamKey {
        StreamKey([NOTIFICATIONS, application, rule, class, event_class, channel])
    }

    pub fn firings(application: i64, rule: i64) -> StreamKey {
        StreamKey([FIRINGS, application, rule, 0, 0, 0])
    }

    fn stream(self, names: &Names) -> Result<Stream, StoreError> {
        let [kind, application, b, c, d, e] = self.0;
        let application = names.name(application)?;
        Ok(match kind {
            EVENTS => Stream::Events { application, class: names.name(b)?, source: names.name(c)? },
            NOTIFICATIONS => Stream::Notifications {
                application,
                rule: names.name(b)?,
                class: names.name(c)?,
                event_class: names.name(d)?,
                channel: names.name(e)?,
            },
            FIRINGS => Stream::Firings { application, rule: names.name(b)? },
            _ => return Err(StoreError::Damaged(format!("a stream of the kind {kind}"))),
        })
    }
}

/// Adds what a commit sums up.
pub fn write(connection: &Connection, ledger: Ledger<StreamKey>) -> Result<(), StoreError> {
    for ((key, minute), mut activity) in ledger.into_entries() {
        let stream = number_of(connection, key)?;
        let known: Option<Vec<u8>> = connection
            .prepare_cached("SELECT body FROM activity WHERE stream = ?1 AND minute = ?2")
            .and_then(|mut statement| statement.query_row((stream, minute.0), |row| row.get(0)).optional())
            .map_err(store_error)?;
        if let Some(known) = known {
            activity.add(&Activity::unpack(&known)?);
        }
        connection
            .prepare_cached("INSERT OR REPLACE INTO activity (stream, minute, body) VALUES (?1, ?2, ?3)")
            .and_then(|mut statement| statement.execute((stream, minute.0, activity.pack())))
            .map_err(store_error)?;
    }
    Ok(())
}

fn number_of(connection: &Connection, StreamKey(key): StreamKey) -> Result<i64, StoreError> {
    let found = connection
        .prepare_cached(
            "SELECT id FROM streams WHERE kind = ?1 AND application = ?2 AND b = ?3 AND c = ?4 AND d = ?5 AND e = ?6",
        )
        .and_then(|mut statement| statement.query_row(key, |row| row.get(0)).optional())
        .map_err(store_error)?;
    match found {
        Some(number) => Ok(number),
        None => connection
            .prepare_cached(
                "INSERT INTO streams (kind, application, b, c, d, e) VALUES (?1, ?2, ?3, ?4, ?5, ?6) RETURNING id",
            )
            .and_then(|mut statement| statement.query_row(key, |row| row.get(0)))
            .map_err(store_error),
    }
}

fn key_of(row: &Row<'_>) -> Result<StreamKey, StoreError> {
    let mut key = [0; 6];
    for (at, number) in key.iter_mut().enumerate() {
        *number = row.get(at).map_err(store_error)?;
    }
    Ok(StreamKey(key))
}

fn read(row: &Row<'_>) -> Result<(StreamKey, Timestamp, Activity), StoreError> {
    let body = row.get_ref(7).and_then(|body| Ok(body.as_blob()?)).map_err(store_error)?;
    Ok((key_of(row)?, Timestamp(row.get(6).map_err(store_error)?), Activity::unpack(body)?))
}

/// What happened in a window. One look into the index for each stream.
pub fn window(
    connection: &Connection,
    names: &Names,
    window: &Window,
    application: Option<i64>,
) -> Result<Vec<ActivityRow>, StoreError> {
    let sql = "SELECT s.kind, s.application, s.b, s.c, s.d, s.e, a.minute, a.body
        FROM streams s CROSS JOIN activity a ON a.stream = s.id AND a.minute >= ?1 AND a.minute < ?2
        WHERE ?3 IS NULL OR s.application = ?3";
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    let mut rows = statement.query((window.from.0, window.to.0, application)).map_err(store_error)?;
    let mut parts = Parts::default();
    while let Some(row) = rows.next().map_err(store_error)? {
        let (key, minute, activity) = read(row)?;
        parts.add(window, key.stream(names)?, minute, &activity);
    }
    Ok(parts.rows())
}

/// The newest minute of each stream.
pub fn latest(
    connection: &Connection,
    names: &Names,
    application: Option<i64>,
) -> Result<Vec<ActivityRow>, StoreError> {
    let sql = "SELECT s.kind, s.application, s.b, s.c, s.d, s.e, a.minute, a.body
        FROM streams s CROSS JOIN activity a ON a.stream = s.id
            AND a.minute = (SELECT max(minute) FROM activity WHERE stream = s.id)
        WHERE ?1 IS NULL OR s.application = ?1";
    let mut found = collect(connection, sql, [application], |row| {
        let (key, from, activity) = read(row)?;
        Ok(ActivityRow { stream: key.stream(names)?, from, activity })
    })?;
    found.sort_by(|one, next| one.stream.cmp(&next.stream));
    Ok(found)
}

/// The applications and classes for which anything was ever counted, of events or of notifications, by name.
pub fn lanes(connection: &Connection, names: &Names, of: Of) -> Result<Vec<(LaneName, Lane)>, StoreError> {
    let sql = match of {
        Of::Events => "SELECT DISTINCT application, b FROM streams WHERE kind = 0",
        Of::Notifications => "SELECT DISTINCT application, c FROM streams WHERE kind = 1",
    };
    let mut lanes = collect(connection, sql, (), |row| {
        let (application, class): (i64, i64) = row.try_into().map_err(store_error)?;
        Ok(((names.name(application)?, names.name(class)?), (application, class)))
    })?;
    lanes.sort();
    Ok(lanes)
}

/// An application and a class.
pub type LaneName = (Name, Name);

/// The numbers that stand for them.
pub type Lane = (i64, i64);

/// Of which batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    Events,
    Notifications,
}

/// Removes the oldest minutes before a time, but the newest of each stream. Gives how many.
pub fn prune(connection: &Connection, before: Timestamp, limit: usize) -> Result<usize, StoreError> {
    connection
        .prepare_cached(
            "DELETE FROM activity WHERE (stream, minute) IN (
                 SELECT a.stream, a.minute FROM streams s CROSS JOIN activity a ON a.stream = s.id AND a.minute < ?1
                     AND a.minute < (SELECT max(minute) FROM activity WHERE stream = s.id)
                 LIMIT ?2)",
        )
        .and_then(|mut statement| statement.execute((minute_of(before).0, limit)))
        .map_err(store_error)
}
