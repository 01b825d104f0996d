//! Messages that locations took, in one commit with how far these have come.

use bytes::Bytes;
use rusqlite::{Connection, Row};
use tocsin_model::{mark::Mark, time::Timestamp};

use super::{AfterCommit, SqliteSpool, intake::insert_taken};
use crate::{
    error::StoreError,
    spool::{LocationKey, TakenMessage},
    sqlite::records::{execute, query_all},
};

impl SqliteSpool {
    /// Stores messages that a location took with its marks, all in one commit: they are of the partition that
    /// [`Beside::Port`](crate::spool::Beside::Port) gives. Gives when the first of those that were
    /// gathered become one.
    ///
    /// # Errors
    /// Nothing was stored; `Full` where there is no room and there are messages.
    pub async fn accept_taken(
        &self,
        location: LocationKey,
        messages: Vec<TakenMessage>,
        marks: Vec<Mark>,
    ) -> Result<Option<Timestamp>, StoreError> {
        if !messages.is_empty() {
            self.free_space.check()?;
        }
        let home = self.at(self.home_of(&location.exchange, &location.port).await?);
        debug_assert!(messages.iter().all(|message| std::ptr::eq(self.of(message.whole.id), home)), "they are at home");
        let open = home.open.clone();
        let job = move |connection: &Connection, after: &mut AfterCommit| {
            let (mut change, mut due_at) = (0, None::<Timestamp>);
            for taken in &messages {
                let (opened, joined) = insert_taken(connection, taken)?;
                change += opened;
                due_at = due_at.into_iter().chain(joined).min();
            }
            remember(connection, &location, &marks)?;
            open.change_after(after, &location.exchange, change);
            Ok(due_at)
        };
        home.write_again(job).await
    }

    /// How far a location has come.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn location_marks(&self, location: LocationKey) -> Result<Vec<Mark>, StoreError> {
        let sql =
            "SELECT part, value FROM location_marks WHERE exchange = ?1 AND port = ?2 AND location = ?3 ORDER BY part";
        let read = |row: &Row<'_>| Ok(Mark::set(row.get::<_, String>(0)?, Bytes::from(row.get::<_, Vec<u8>>(1)?)));
        let Some(home) = self.spread.home(&location.exchange, &location.port) else { return Ok(Vec::new()) };
        self.at(home).read(move |connection| query_all(connection, sql, place(&location), read)).await
    }
}

fn place(location: &LocationKey) -> (&str, &str, &str) {
    (location.exchange.as_str(), location.port.as_str(), location.location.as_str())
}

/// Stores what a location remembers from now on.
fn remember(connection: &Connection, location: &LocationKey, marks: &[Mark]) -> Result<(), StoreError> {
    let (exchange, port, name) = place(location);
    for mark in marks {
        match &mark.value {
            Some(value) => {
                let sql = "INSERT OR REPLACE INTO location_marks VALUES (?1, ?2, ?3, ?4, ?5)";
                execute(connection, sql, (exchange, port, name, &mark.part, &value[..]))?;
            }
            None => {
                let sql =
                    "DELETE FROM location_marks WHERE exchange = ?1 AND port = ?2 AND location = ?3 AND part = ?4";
                execute(connection, sql, (exchange, port, name, &mark.part))?;
            }
        }
    }
    Ok(())
}
