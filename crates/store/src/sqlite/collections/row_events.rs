//! Events raised by changes of rows: stored with the change, and kept for some time after they were accepted.

use rusqlite::Connection;
use tocsin_model::{collection::Stamp, id::Name};

use super::RowTransaction;
use crate::{
    collections::{RAISED_MAX, RaisedEvent},
    error::StoreError,
    sqlite::statements::{execute, query_all, query_one},
};

impl RowTransaction<'_> {
    /// Stores the event of a change of this job; events are stored in the order of changes.
    ///
    /// # Errors
    /// `Full` if too many events were not accepted yet.
    pub fn raise(&mut self, application: &Name, event: &RaisedEvent) -> Result<(), StoreError> {
        if self.raised >= RAISED_MAX {
            let what = format!("{RAISED_MAX} events of rows wait to be accepted; rows that raise more wait for them");
            return Err(StoreError::Full(what));
        }
        let RaisedEvent { stamp, class, event } = event;
        let fields = (application.as_str(), stamp.0, class.as_str(), event);
        execute(self.connection, "INSERT INTO raised VALUES (?1, ?2, ?3, ?4)", fields)?;
        self.raised += 1;
        Ok(())
    }

    /// Records the stamp up to which events of an application were accepted.
    ///
    /// # Errors
    /// The store does not respond.
    pub fn set_raised_upto(&mut self, application: &Name, upto: Stamp) -> Result<(), StoreError> {
        let name = application.as_str();
        let before = upto_of(self.connection, name)?.unwrap_or_default();
        let sql = "SELECT count(*) FROM raised WHERE application = ?1 AND stamp > ?2 AND stamp <= ?3";
        let between = (name, before.min(upto).0, before.max(upto).0);
        let count: u64 = query_one(self.connection, sql, between, |row| row.get(0))?.unwrap_or_default();
        self.raised = if before <= upto { self.raised.saturating_sub(count) } else { self.raised + count };
        let sql = "INSERT INTO raisers VALUES (?1, ?2) ON CONFLICT DO UPDATE SET upto = ?2";
        execute(self.connection, sql, (name, upto.0)).map(drop)
    }

    /// Removes all events of a removed application.
    ///
    /// # Errors
    /// The store does not respond.
    pub fn drop_raised(&mut self, application: &Name) -> Result<(), StoreError> {
        let all = Stamp(i64::MAX.cast_unsigned());
        self.set_raised_upto(application, all)?;
        execute(self.connection, "DELETE FROM raised WHERE application = ?1", (application.as_str(),))?;
        execute(self.connection, "DELETE FROM raisers WHERE application = ?1", (application.as_str(),)).map(drop)
    }

    /// Removes accepted events that are older than a stamp, up to `limit`. Returns their number.
    ///
    /// # Errors
    /// The store does not respond.
    pub fn prune_raised(&mut self, before: Stamp, limit: usize) -> Result<usize, StoreError> {
        let sql = "DELETE FROM raised WHERE (application, stamp) IN (SELECT raised.application, stamp FROM raisers \
                   JOIN raised USING (application) WHERE stamp <= min(upto, ?1) LIMIT ?2)";
        execute(self.connection, sql, (before.0, limit))
    }
}

/// The applications that have stored events.
pub(super) fn applications(connection: &Connection) -> Result<Vec<Name>, StoreError> {
    let mut found: Vec<Name> = Vec::new();
    loop {
        let after = found.last().map_or("", Name::as_str);
        let sql = "SELECT min(application) FROM raised WHERE application > ?1";
        let next: Option<Option<String>> = query_one(connection, sql, (after,), |row| row.get(0))?;
        match next.flatten() {
            Some(name) => found.push(name.parse().map_err(|_| StoreError::Damaged(format!("the name `{name}`")))?),
            None => return Ok(found),
        }
    }
}

/// Events of an application after a stamp, oldest first: up to `limit`, and about `bytes_max` bytes.
pub(super) fn list(
    connection: &Connection,
    application: &Name,
    after: Stamp,
    limit: usize,
    bytes_max: usize,
) -> Result<Vec<RaisedEvent>, StoreError> {
    let sql = "SELECT stamp, class, event FROM raised WHERE application = ?1 AND stamp > ?2 ORDER BY stamp LIMIT ?3";
    let read = |row: &rusqlite::Row<'_>| {
        Ok((Stamp(row.get(0)?), row.get::<_, String>(1)?, row.get::<_, String>(2)?.into_boxed_str()))
    };
    let found = query_all(connection, sql, (application.as_str(), after.0, limit), read)?;
    let mut bytes = 0;
    let fitting = found.into_iter().take_while(|(_, _, event)| {
        let fits = bytes < bytes_max;
        bytes += event.len();
        fits
    });
    let event = |(stamp, class, event): (Stamp, String, Box<str>)| {
        let class = class.parse().map_err(|_| StoreError::Damaged(format!("the name `{class}`")))?;
        Ok(RaisedEvent { stamp, class, event })
    };
    fitting.map(event).collect()
}

/// The stamp up to which events of an application were accepted.
pub(super) fn upto_of(connection: &Connection, application: &str) -> Result<Option<Stamp>, StoreError> {
    let sql = "SELECT upto FROM raisers WHERE application = ?1";
    query_one(connection, sql, (application,), |row| row.get(0).map(Stamp))
}
