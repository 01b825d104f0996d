//! Per-minute activity counters: small rows, written in the commit of what they count.

use rusqlite::{Connection, OptionalExtension, Row};
use tocsin_model::{id::Name, time::Timestamp};

use super::{names::Names, views::collect};
use crate::{
    error::StoreError,
    journal::{
        ActivityRow, Stream, Window,
        activity::{Activity, MinuteSums, WindowSums, minute_of},
    },
    sqlite::writer::store_error,
};

const EVENTS: i64 = 0;
const NOTIFICATIONS: i64 = 1;
const FIRINGS: i64 = 2;

/// Stream as numbers: its kind and its names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamKey([i64; 6]);

impl StreamKey {
    pub fn events(application: i64, class: i64, source: i64) -> StreamKey {
        StreamKey([EVENTS, application, class, source, 0, 0])
    }

    /// Names in the order of a notification batch: application, rule, class, event class, channel.
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

/// Adds the sums of a commit.
pub fn write(connection: &Connection, sums: MinuteSums<StreamKey>) -> Result<(), StoreError> {
    for ((key, minute), mut activity) in sums.into_entries() {
        let stream = number_of(connection, key)?;
        let stored: Option<Vec<u8>> = connection
            .prepare_cached("SELECT body FROM activity WHERE stream = ?1 AND minute = ?2")
            .and_then(|mut statement| statement.query_row((stream, minute.0), |row| row.get(0)).optional())
            .map_err(store_error)?;
        if let Some(stored) = stored {
            activity.add(&Activity::unpack(&stored)?);
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

/// Activity in a window. One index search per stream.
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
    let mut parts = WindowSums::default();
    while let Some(row) = rows.next().map_err(store_error)? {
        let (key, minute, activity) = read(row)?;
        parts.add(window, key.stream(names)?, minute, &activity);
    }
    Ok(parts.rows())
}

/// Newest minute of each stream.
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

/// Applications and classes with any events or notifications so far, by name.
pub fn classes(
    connection: &Connection,
    names: &Names,
    of: BatchKind,
) -> Result<Vec<(ClassName, ClassKey)>, StoreError> {
    let sql = match of {
        BatchKind::Events => "SELECT DISTINCT application, b FROM streams WHERE kind = 0",
        BatchKind::Notifications => "SELECT DISTINCT application, c FROM streams WHERE kind = 1",
    };
    let mut classes = collect(connection, sql, (), |row| {
        let (application, class): (i64, i64) = row.try_into().map_err(store_error)?;
        Ok(((names.name(application)?, names.name(class)?), (application, class)))
    })?;
    classes.sort();
    Ok(classes)
}

/// Names of an application and a class.
pub type ClassName = (Name, Name);

/// Numbers of an application and a class.
pub type ClassKey = (i64, i64);

/// Kind of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchKind {
    Events,
    Notifications,
}

/// Deletes the oldest minutes before a time, except the newest minute of each stream. Returns their number.
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
