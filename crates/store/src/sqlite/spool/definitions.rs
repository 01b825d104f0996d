//! Exchanges and the states of their ports; the health check.

use std::time::Duration;

use rusqlite::Connection;
use serde_json::json;
use tocsin_model::{exchange::PortState, id::Name, time::Timestamp};

use crate::{
    audit::{self, Image},
    error::StoreError,
    spool::{SetPort, StoredExchange},
    sqlite::{
        spool::{columns, partitions::Partition, spool_files::SqliteSpool, views},
        statements::{execute, query_all, query_one},
        writer::AfterCommit,
    },
};

impl SqliteSpool {
    /// Stores a definition as the next version.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn put_exchange(
        &self,
        name: Name,
        text: String,
        author: String,
        now: Timestamp,
    ) -> Result<StoredExchange, StoreError> {
        let sealed = self.keys.seal(&text)?;
        let job = move |connection: &Connection, _: &mut AfterCommit| {
            let sql = "INSERT INTO exchanges SELECT ?1, coalesce(max(version), 0) + 1, ?2, ?3, ?4 FROM exchanges WHERE \
                       name = ?1 RETURNING version";
            let read = |row: &rusqlite::Row<'_>| row.get(0);
            let version = query_one(connection, sql, (name.as_str(), &sealed, &author, now.0), read)?;
            let version: u32 = version.ok_or_else(|| StoreError::Damaged("the versions of exchanges".into()))?;
            // The definition can contain passwords; its versions are kept.
            audit::changed(|| {
                let image = |version: u32| (version > 0).then(|| json!({ "version": version }));
                Image::of("exchange", &name, image(version - 1), image(version))
            });
            Ok(StoredExchange { name, version, text, author, applied_at: now })
        };
        self.first().write(job).await
    }

    /// Current versions of all definitions, by name.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn exchanges(&self) -> Result<Vec<StoredExchange>, StoreError> {
        let stored = self.first().read(views::exchanges).await?;
        let open = |stored: StoredExchange| {
            Ok::<_, StoreError>(StoredExchange { text: self.keys.open(stored.text)?, ..stored })
        };
        stored.into_iter().map(open).collect()
    }

    /// Removes the definition of an exchange with its versions and port states. Returns whether it existed.
    ///
    /// # Errors
    /// Nothing was removed.
    pub async fn remove_exchange(&self, name: Name) -> Result<bool, StoreError> {
        let exchange = name.clone();
        let job = move |connection: &Connection, _: &mut AfterCommit| {
            execute(connection, "DELETE FROM ports WHERE exchange = ?1", [name.as_str()])?;
            execute(connection, "DELETE FROM rates WHERE exchange = ?1", [name.as_str()])?;
            let was_there = execute(connection, "DELETE FROM exchanges WHERE name = ?1", [name.as_str()])? > 0;
            if was_there {
                audit::changed(|| Image::of("exchange", &name, Some(json!({})), None));
            }
            Ok(was_there)
        };
        let was_there = self.first().write(job).await?;
        // If a crash prevents this, the next start removes them.
        self.of_all(|partition| {
            let exchange = exchange.clone();
            partition.write(move |connection, _| {
                execute(connection, "DELETE FROM location_marks WHERE exchange = ?1", [exchange.as_str()])
            })
        })
        .await?;
        Ok(was_there)
    }

    /// Sets the state of a send port; `None`: as defined.
    ///
    /// # Errors
    /// Nothing was stored.
    pub async fn set_port(&self, exchange: Name, port: Name, state: Option<PortState>) -> Result<(), StoreError> {
        let job = move |connection: &Connection, _: &mut AfterCommit| {
            let place = (exchange.as_str(), port.as_str());
            if audit::is_recording() {
                let sql = "SELECT state FROM ports WHERE exchange = ?1 AND port = ?2";
                let before: Option<String> = query_one(connection, sql, place, |row| row.get(0))?;
                let image = |state: &str| json!({ "state": state });
                let after = state.map(|state| image(state.word()));
                let before = before.as_deref().map(image);
                audit::changed(|| Image::of("port", format_args!("{exchange}/{port}"), before, after));
            }
            execute(connection, "DELETE FROM ports WHERE exchange = ?1 AND port = ?2", place)?;
            if let Some(state) = state {
                let row = (exchange.as_str(), port.as_str(), state.word());
                execute(connection, "INSERT INTO ports VALUES (?1, ?2, ?3)", row)?;
            }
            Ok(())
        };
        self.first().write(job).await
    }

    /// Send ports whose state was set by an operator.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn set_ports(&self) -> Result<Vec<SetPort>, StoreError> {
        let sql = "SELECT exchange, port, state FROM ports ORDER BY exchange, port";
        let job = move |connection: &Connection| {
            query_all(connection, sql, (), |row| {
                Ok(SetPort {
                    exchange: columns::parsed(row, 0)?,
                    port: columns::parsed(row, 1)?,
                    state: columns::parsed(row, 2)?,
                })
            })
        };
        self.first().read(job).await
    }

    /// Writes and syncs a few bytes in every partition; returns the time of the slowest.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn probe(&self) -> Result<Duration, StoreError> {
        Ok(self.of_all(Partition::probe).await?.into_iter().max().unwrap_or_default())
    }
}
