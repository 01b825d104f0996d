//! Messages received by locations, stored in one commit with the locations' checkpoints.

use bytes::Bytes;
use rusqlite::{Connection, Row};
use tocsin_model::{mark::Mark, time::Timestamp};

use super::intake::insert_received;
use crate::{
    error::StoreError,
    spool::{LocationKey, ReceivedMessage},
    sqlite::{
        spool::spool_files::SqliteSpool,
        statements::{execute, query_all},
        writer::AfterCommit,
    },
};

impl SqliteSpool {
    /// Stores messages received by a location with its checkpoints, in one commit. All are of the partition for
    /// [`PartitionAffinity::Port`](crate::spool::PartitionAffinity::Port). Returns the earliest due time of the
    /// groups that they joined.
    ///
    /// # Errors
    /// Nothing was stored; `Full` if the disk is full and there are messages.
    pub async fn accept_received(
        &self,
        location: LocationKey,
        messages: Vec<ReceivedMessage>,
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
                let (opened, joined) = insert_received(connection, taken)?;
                change += opened;
                due_at = due_at.into_iter().chain(joined).min();
            }
            store_checkpoints(connection, &location, &marks)?;
            open.change_after(after, &location.exchange, change);
            Ok(due_at)
        };
        home.write_retryable(job).await
    }

    /// Checkpoints of a location.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn location_marks(&self, location: LocationKey) -> Result<Vec<Mark>, StoreError> {
        let sql =
            "SELECT part, value FROM location_marks WHERE exchange = ?1 AND port = ?2 AND location = ?3 ORDER BY part";
        let read = |row: &Row<'_>| Ok(Mark::set(row.get::<_, String>(0)?, Bytes::from(row.get::<_, Vec<u8>>(1)?)));
        let Some(home) = self.assignment.home(&location.exchange, &location.port) else { return Ok(Vec::new()) };
        self.at(home).read(move |connection| query_all(connection, sql, place(&location), read)).await
    }
}

fn place(location: &LocationKey) -> (&str, &str, &str) {
    (location.exchange.as_str(), location.port.as_str(), location.location.as_str())
}

/// Stores checkpoints of a location; one without a value is deleted.
fn store_checkpoints(connection: &Connection, location: &LocationKey, marks: &[Mark]) -> Result<(), StoreError> {
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
