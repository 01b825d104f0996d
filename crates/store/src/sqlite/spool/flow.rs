//! What slows messages down: rates that operators have set, how much is due, and when it was so.

use rusqlite::{Connection, Row};
use tocsin_model::{application::Rate, exchange::FlowSide, id::Name, time::Timestamp};

use super::{AfterCommit, SqliteSpool, reading::parsed};
use crate::{
    error::StoreError,
    spool::{SetRate, ThrottleChange},
    sqlite::records::{execute, query_all, query_one},
};

/// Changes that are kept, the newest.
const CHANGES_MAX: i64 = 10_000;

const CHANGE: &str = "at, exchange, side, port, reason, begins, detail";

impl SqliteSpool {
    /// Whether there is room for new messages.
    ///
    /// # Errors
    /// `Full` if there is not.
    pub fn check_room(&self) -> Result<(), StoreError> {
        self.free_space.check()
    }

    /// How many legs of a send port are due, those under way among them; counts no further than `most`.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn count_due(&self, exchange: &Name, port: &Name, now: Timestamp, most: u64) -> Result<u64, StoreError> {
        let (exchange, port) = (exchange.clone(), port.clone());
        let sql = "SELECT count(*) FROM (SELECT 1 FROM legs WHERE exchange = ?1 AND port = ?2 AND state = 0 AND due_at <= ?3 \
                   LIMIT ?4)";
        let counts = self.of_all(|partition| {
            let (exchange, port) = (exchange.clone(), port.clone());
            partition.read(move |connection| {
                let place = (exchange.as_str(), port.as_str(), now.0, most);
                query_one(connection, sql, place, |row| row.get::<_, u64>(0))
            })
        });
        Ok(counts.await?.into_iter().flatten().sum::<u64>().min(most))
    }

    /// Sets a rate for restarts as well; `None`: there is none.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn set_rate(
        &self,
        exchange: Name,
        side: FlowSide,
        port: Option<Name>,
        rate: Option<Rate>,
    ) -> Result<(), StoreError> {
        let job = move |connection: &Connection, _: &mut AfterCommit| {
            let (exchange, side, port) = (exchange.as_str(), side.word(), port_text(port.as_ref()));
            let sql = "DELETE FROM rates WHERE exchange = ?1 AND side = ?2 AND port = ?3";
            execute(connection, sql, (exchange, side, port))?;
            if let Some(rate) = rate {
                let row = (exchange, side, port, rate.to_string());
                execute(connection, "INSERT INTO rates VALUES (?1, ?2, ?3, ?4)", row)?;
            }
            Ok(())
        };
        self.first().write(job).await
    }

    /// The rates that are set.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn rates(&self) -> Result<Vec<SetRate>, StoreError> {
        let sql = "SELECT exchange, side, port, rate FROM rates ORDER BY exchange, side, port";
        let read = |row: &Row<'_>| {
            Ok(SetRate { exchange: parsed(row, 0)?, side: parsed(row, 1)?, port: port(row, 2)?, rate: parsed(row, 3)? })
        };
        self.first().read(move |connection| query_all(connection, sql, (), read)).await
    }

    /// Stores what began or ended. The oldest go when there are too many.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn record_throttles(&self, changes: Vec<ThrottleChange>) -> Result<(), StoreError> {
        self.first().write(move |connection, _| changes.iter().try_for_each(|change| insert(connection, change))).await
    }

    /// What began and ended of an exchange, newest first.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn throttles(&self, exchange: &Name, limit: usize) -> Result<Vec<ThrottleChange>, StoreError> {
        let exchange = exchange.clone();
        let sql = format!("SELECT {CHANGE} FROM throttles WHERE exchange = ?1 ORDER BY id DESC LIMIT ?2");
        self.first().read(move |connection| query_all(connection, &sql, (exchange.as_str(), limit), read)).await
    }

    /// Ends what began before the process did: whatever still holds begins anew.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn end_throttles(&self, now: Timestamp) -> Result<(), StoreError> {
        let job = move |connection: &Connection, _: &mut AfterCommit| {
            let sql = format!(
                "SELECT {CHANGE} FROM throttles WHERE begins AND id IN (SELECT max(id) FROM throttles GROUP BY exchange, \
                 side, port, reason)"
            );
            for begun in query_all(connection, &sql, (), read)? {
                let detail = "the server started anew".to_owned();
                insert(connection, &ThrottleChange { at: now, begins: false, detail, ..begun })?;
            }
            Ok(())
        };
        self.first().write(job).await
    }
}

fn insert(connection: &Connection, change: &ThrottleChange) -> Result<(), StoreError> {
    let row = (
        change.at.0,
        change.exchange.as_str(),
        change.side.word(),
        port_text(change.port.as_ref()),
        change.reason.word(),
        change.begins,
        &change.detail,
    );
    execute(connection, &format!("INSERT INTO throttles ({CHANGE}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)"), row)?;
    execute(connection, "DELETE FROM throttles WHERE id <= last_insert_rowid() - ?1", [CHANGES_MAX])?;
    Ok(())
}

fn read(row: &Row<'_>) -> rusqlite::Result<ThrottleChange> {
    Ok(ThrottleChange {
        at: Timestamp(row.get(0)?),
        exchange: parsed(row, 1)?,
        side: parsed(row, 2)?,
        port: port(row, 3)?,
        reason: parsed(row, 4)?,
        begins: row.get(5)?,
        detail: row.get(6)?,
    })
}

fn port_text(port: Option<&Name>) -> &str {
    port.map_or("", Name::as_str)
}

fn port(row: &Row<'_>, at: usize) -> rusqlite::Result<Option<Name>> {
    if row.get_ref(at)?.as_str()?.is_empty() { Ok(None) } else { parsed(row, at).map(Some) }
}
