//! Flow control: rate limits set by operators, counts of due legs, and the log of throttling.

use rusqlite::{Connection, Row};
use serde_json::json;
use tocsin_model::{application::Rate, exchange::FlowSide, id::Name, time::Timestamp};

use crate::{
    audit::{self, Image},
    error::StoreError,
    spool::{SetRate, ThrottleChange},
    sqlite::{
        spool::{columns::parsed, spool_files::SqliteSpool},
        statements::{execute, query_all, query_one},
        writer::AfterCommit,
    },
};

/// Maximum number of throttle changes kept, the newest.
const CHANGES_MAX: i64 = 10_000;
const CHANGE: &str = "at, exchange, side, port, reason, begins, detail";

impl SqliteSpool {
    /// Checks whether there is disk space for new messages.
    ///
    /// # Errors
    /// `Full` if there is not.
    pub fn check_room(&self) -> Result<(), StoreError> {
        self.free_space.check()
    }

    /// Number of due legs of a send port, including those being sent, counted up to `most`.
    ///
    /// # Errors
    /// The store does not respond.
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

    /// Stores a rate limit, which also applies after a restart; `None` removes it.
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
            if audit::is_recording() {
                let sql = "SELECT rate FROM rates WHERE exchange = ?1 AND side = ?2 AND port = ?3";
                let before: Option<String> = query_one(connection, sql, (exchange, side, port), |row| row.get(0))?;
                let image = |rate: String| json!({ "side": side, "rate": rate });
                let (before, after) = (before.map(image), rate.map(|rate| image(rate.to_string())));
                audit::changed(|| Image::of("port", format_args!("{exchange}/{port}"), before, after));
            }
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

    /// Rate limits set by operators.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn rates(&self) -> Result<Vec<SetRate>, StoreError> {
        let sql = "SELECT exchange, side, port, rate FROM rates ORDER BY exchange, side, port";
        let read = |row: &Row<'_>| {
            Ok(SetRate { exchange: parsed(row, 0)?, side: parsed(row, 1)?, port: port(row, 2)?, rate: parsed(row, 3)? })
        };
        self.first().read(move |connection| query_all(connection, sql, (), read)).await
    }

    /// Appends starts and ends of throttling to the log. Beyond the limit, the oldest are deleted.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn record_throttles(&self, changes: Vec<ThrottleChange>) -> Result<(), StoreError> {
        self.first().write(move |connection, _| changes.iter().try_for_each(|change| insert(connection, change))).await
    }

    /// Starts and ends of throttling of an exchange, newest first.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn throttles(&self, exchange: &Name, limit: usize) -> Result<Vec<ThrottleChange>, StoreError> {
        let exchange = exchange.clone();
        let sql = format!("SELECT {CHANGE} FROM throttles WHERE exchange = ?1 ORDER BY id DESC LIMIT ?2");
        self.first().read(move |connection| query_all(connection, &sql, (exchange.as_str(), limit), read)).await
    }

    /// Ends all throttling that began before the process started; a condition that still holds begins again.
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
                let detail = "the server was restarted".to_owned();
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
