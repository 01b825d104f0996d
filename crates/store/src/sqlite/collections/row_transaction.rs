//! Changes of rows within a job: each change gets a stamp, and the index of each affected key is updated.

use rusqlite::{Connection, Row};
use tocsin_model::{collection::Stamp, id::Name, time::Timestamp};

use crate::{
    collections::{
        AuthorNumber, BATCHES_KEPT, BATCHES_OF_DEVICE_MAX, CollectionNumber, Conflict, DeviceNumber, EditBatch,
        FIRST_COPY_AUTHOR, KeyNumber, RowWrite, StoredRow,
    },
    error::StoreError,
    sqlite::statements::{execute, query_all, query_one},
};

/// A write transaction on the rows. The changes of a job are one commit.
pub struct RowTransaction<'c> {
    pub(super) connection: &'c Connection,
    pub(super) now: Timestamp,
    pub(super) sequence: Stamp,
    pub(super) rows: u64,
    pub(super) removed: u64,
    pub(super) raised: u64,
    /// The keys of changed rows.
    pub(super) touched: Vec<KeyNumber>,
}

pub(super) const ROW: &str = "number, collection, id, version, sequence, author, seen, body, columns, keys";

impl RowTransaction<'_> {
    /// The last assigned stamp.
    pub fn newest(&self) -> Stamp {
        self.sequence
    }

    /// The time of the job.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// The stamp of the next change.
    pub fn next_stamp(&self) -> Stamp {
        self.sequence.next(self.now)
    }

    pub(super) fn stamp(&mut self) -> Stamp {
        self.sequence = self.next_stamp();
        self.sequence
    }

    /// The number of a collection; assigned if missing.
    ///
    /// # Errors
    /// The store does not respond.
    pub fn collection(&mut self, application: &Name, name: &Name) -> Result<CollectionNumber, StoreError> {
        let of = (application.as_str(), name.as_str());
        let find = "SELECT number FROM collections WHERE application = ?1 AND name = ?2";
        if let Some(number) = query_one(self.connection, find, of, |row| row.get(0))? {
            return Ok(number);
        }
        execute(self.connection, "INSERT INTO collections (application, name, partition) VALUES (?1, ?2, '')", of)?;
        Ok(last(self.connection))
    }

    /// The number of a partition key; assigned if missing.
    ///
    /// # Errors
    /// The store does not respond.
    pub fn key(&mut self, text: &str) -> Result<KeyNumber, StoreError> {
        if let Some(number) =
            query_one(self.connection, "SELECT number FROM keys WHERE text = ?1", (text,), |row| row.get(0))?
        {
            return Ok(number);
        }
        execute(self.connection, "INSERT INTO keys (text) VALUES (?1)", (text,))?;
        Ok(last(self.connection))
    }

    /// A row, including removed ones.
    ///
    /// # Errors
    /// The store does not respond.
    pub fn row(&self, collection: CollectionNumber, id: &str) -> Result<Option<StoredRow>, StoreError> {
        find_row(self.connection, collection, id)
    }

    /// The rows whose keys depend on another row, in order of number.
    ///
    /// # Errors
    /// The store does not respond.
    pub fn shared_through(&self, collection: CollectionNumber, id: &str) -> Result<Vec<StoredRow>, StoreError> {
        let sql = format!(
            "SELECT {ROW} FROM rows WHERE number IN (SELECT row FROM joins WHERE collection = ?1 AND id = ?2) AND body IS NOT NULL"
        );
        query_all(self.connection, &sql, (collection, id), read_row)
    }

    /// The rows of a collection with a key, without removed ones.
    ///
    /// # Errors
    /// The store does not respond.
    pub fn rows_of_key(&self, collection: CollectionNumber, key: KeyNumber) -> Result<Vec<StoredRow>, StoreError> {
        let sql = format!(
            "SELECT {ROW} FROM rows WHERE number IN (SELECT row FROM present WHERE key = ?1) AND collection = ?2 AND body IS NOT NULL"
        );
        query_all(self.connection, &sql, (key, collection), read_row)
    }

    /// Rows of a collection after a number, in order, without removed ones.
    ///
    /// # Errors
    /// The store does not respond.
    pub fn rows_after(
        &self,
        collection: CollectionNumber,
        after: i64,
        limit: usize,
    ) -> Result<Vec<StoredRow>, StoreError> {
        let sql = format!(
            "SELECT {ROW} FROM rows WHERE collection = ?1 AND number > ?2 AND body IS NOT NULL ORDER BY number LIMIT ?3"
        );
        query_all(self.connection, &sql, (collection, after, limit), read_row)
    }

    /// Writes the new state of a row, replacing `old` if it exists. Returns its version.
    ///
    /// # Errors
    /// The store does not respond.
    pub fn write(&mut self, old: Option<&StoredRow>, new: &RowWrite) -> Result<Stamp, StoreError> {
        let version = self.stamp();
        let keys = packed(&new.keys);
        let number = match old {
            Some(old) => {
                let sql = "UPDATE rows SET version = ?2, sequence = ?2, author = ?3, seen = ?4, body = ?5, columns = ?6, keys = ?7 \
                           WHERE number = ?1";
                let fields = (old.number, version.0, new.author, new.seen.0, &new.body, &new.columns, &keys);
                execute(self.connection, sql, fields)?;
                old.number
            }
            None => {
                let sql = "INSERT INTO rows (collection, id, version, sequence, author, seen, body, columns, keys) \
                           VALUES (?1, ?2, ?3, ?3, ?4, ?5, ?6, ?7, ?8)";
                let fields =
                    (new.collection, &new.id, version.0, new.author, new.seen.0, &new.body, &new.columns, &keys);
                execute(self.connection, sql, fields)?;
                self.connection.last_insert_rowid()
            }
        };
        let (was_there, is_there) = (old.map(|old| old.body.is_some()), new.body.is_some());
        match was_there {
            Some(true) => self.rows -= 1,
            Some(false) => self.removed -= 1,
            None => {}
        }
        if is_there {
            self.rows += 1
        } else {
            self.removed += 1
        }
        self.join(number, old.is_some(), &new.joins)?;
        let (old_keys, old_sequence) = old.map_or((&[][..], Stamp(0)), |old| (&old.keys[..], old.sequence));
        self.update_keys(number, (old_keys, old_sequence), (&new.keys, version))?;
        Ok(version)
    }

    /// Changes the keys of a row; the content stays.
    ///
    /// # Errors
    /// The store does not respond.
    pub fn rekey(
        &mut self,
        row: &StoredRow,
        keys: &[KeyNumber],
        joins: &[(CollectionNumber, Box<str>)],
    ) -> Result<(), StoreError> {
        self.join(row.number, true, joins)?;
        if row.keys == keys {
            return Ok(());
        }
        let sequence = self.stamp();
        let sql = "UPDATE rows SET sequence = ?2, keys = ?3 WHERE number = ?1";
        execute(self.connection, sql, (row.number, sequence.0, packed(keys)))?;
        self.update_keys(row.number, (&row.keys, row.sequence), (keys, sequence))
    }

    fn join(&mut self, row: i64, may_have: bool, joins: &[(CollectionNumber, Box<str>)]) -> Result<(), StoreError> {
        if may_have {
            execute(self.connection, "DELETE FROM joins WHERE row = ?1", (row,))?;
        }
        for (collection, id) in joins {
            execute(self.connection, "INSERT OR IGNORE INTO joins VALUES (?1, ?2, ?3)", (collection, id, row))?;
        }
        Ok(())
    }

    /// Updates the index of each affected key: keys that stay, keys that are removed, and new keys.
    fn update_keys(
        &mut self,
        row: i64,
        (old, old_sequence): (&[KeyNumber], Stamp),
        (new, sequence): (&[KeyNumber], Stamp),
    ) -> Result<(), StoreError> {
        let (was, is) = (old_sequence.0, sequence.0);
        self.touched.extend(old.iter().chain(new));
        for key in old {
            if new.contains(key) {
                let sql = "UPDATE present SET sequence = ?3 WHERE key = ?1 AND sequence = ?2";
                execute(self.connection, sql, (key, was, is))?;
            } else {
                let sql = "INSERT INTO absent SELECT key, ?3, row, first FROM present WHERE key = ?1 AND sequence = ?2";
                execute(self.connection, sql, (key, was, is))?;
                execute(self.connection, "DELETE FROM present WHERE key = ?1 AND sequence = ?2", (key, was))?;
            }
        }
        for key in new.iter().filter(|key| !old.contains(key)) {
            // Devices that had the row before its removal may still have it.
            let find = "SELECT first FROM absent WHERE row = ?1 AND key = ?2";
            let first: Option<u64> = query_one(self.connection, find, (row, key), |row| row.get(0))?;
            if first.is_some() {
                execute(self.connection, "DELETE FROM absent WHERE row = ?1 AND key = ?2", (row, key))?;
            }
            let fields = (key, is, row, first.unwrap_or(is));
            execute(self.connection, "INSERT INTO present VALUES (?1, ?2, ?3, ?4)", fields)?;
        }
        Ok(())
    }

    /// The last edit of a device that was applied.
    ///
    /// # Errors
    /// `Missing` if the device does not exist.
    pub fn uploaded(&self, device: DeviceNumber) -> Result<u64, StoreError> {
        let found =
            query_one(self.connection, "SELECT uploaded FROM devices WHERE number = ?1", (device,), |row| row.get(0))?;
        found.ok_or_else(|| StoreError::Missing(format!("the device number {device}")))
    }

    /// Records the last edit of a device that was applied.
    ///
    /// # Errors
    /// The store does not respond.
    pub fn set_uploaded(&mut self, device: DeviceNumber, upto: u64) -> Result<(), StoreError> {
        execute(self.connection, "UPDATE devices SET uploaded = ?2 WHERE number = ?1", (device, upto)).map(drop)
    }

    /// An edit batch of a device; `None` if nothing of it was applied, or if it is no longer remembered.
    ///
    /// # Errors
    /// The store does not respond.
    pub fn batch(&self, device: DeviceNumber, batch: &str) -> Result<Option<EditBatch>, StoreError> {
        find_batch(self.connection, device, batch)
    }

    /// Whether any edit batch of a device is remembered.
    ///
    /// # Errors
    /// The store does not respond.
    pub fn has_batches(&self, device: DeviceNumber) -> Result<bool, StoreError> {
        let sql = "SELECT EXISTS (SELECT 1 FROM batches WHERE device = ?1)";
        Ok(query_one(self.connection, sql, (device,), |row| row.get(0))?.unwrap_or(false))
    }

    /// Creates an author for a further copy of a device's replica.
    ///
    /// # Errors
    /// `Full` if there are too many.
    pub fn make_author(&mut self, device: DeviceNumber) -> Result<AuthorNumber, StoreError> {
        execute(self.connection, "INSERT INTO authors (device) VALUES (?1)", (device,))?;
        let number = AuthorNumber::try_from(self.connection.last_insert_rowid()).ok();
        let author = number.filter(|number| *number < FIRST_COPY_AUTHOR).map(|number| FIRST_COPY_AUTHOR | number);
        // Only the newest is needed; the next number follows it.
        execute(self.connection, "DELETE FROM authors WHERE number < ?1", (self.connection.last_insert_rowid(),))?;
        author
            .ok_or_else(|| StoreError::Full("2,147,483,647 copies of replicas were made; no number is left".to_owned()))
    }

    /// Records the progress of a batch. Removes old batches of the device.
    ///
    /// # Errors
    /// The store does not respond.
    pub fn put_batch(
        &mut self,
        device: DeviceNumber,
        batch: &str,
        author: AuthorNumber,
        upto: u64,
    ) -> Result<(), StoreError> {
        let sql = "UPDATE batches SET upto = ?3 WHERE device = ?1 AND batch = ?2";
        if execute(self.connection, sql, (device, batch, upto))? > 0 {
            return Ok(());
        }
        let sql = "INSERT INTO batches (device, batch, place, author, upto) \
                   VALUES (?1, ?2, (SELECT coalesce(max(place), 0) + 1 FROM batches WHERE device = ?1), ?3, ?4)";
        execute(self.connection, sql, (device, batch, author, upto))?;
        let sql = "DELETE FROM batches WHERE device = ?1 AND author = ?2 AND place <= (SELECT place FROM batches \
                   WHERE device = ?1 AND author = ?2 ORDER BY place DESC LIMIT 1 OFFSET ?3)";
        execute(self.connection, sql, (device, author, BATCHES_KEPT))?;
        let sql = "DELETE FROM batches WHERE device = ?1 AND place <= (SELECT place FROM batches \
                   WHERE device = ?1 ORDER BY place DESC LIMIT 1 OFFSET ?2)";
        execute(self.connection, sql, (device, BATCHES_OF_DEVICE_MAX)).map(drop)
    }

    /// Records a conflict. Its number is assigned by the store.
    ///
    /// # Errors
    /// The store does not respond.
    pub fn log_conflict(&mut self, conflict: &Conflict) -> Result<(), StoreError> {
        let sql = "INSERT INTO conflicts (collection, row, at, device, resolver, winner, base, server, client) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
        let Conflict { collection, row, at, device, resolver, winner, base, server, client, .. } = conflict;
        execute(self.connection, sql, (collection, row, at.0, device, resolver, winner, base, server, client)).map(drop)
    }

    /// A conflict.
    ///
    /// # Errors
    /// The store does not respond.
    pub fn conflict(&self, number: u64) -> Result<Option<Conflict>, StoreError> {
        let sql = format!("SELECT {CONFLICT} FROM conflicts WHERE number = ?1");
        query_one(self.connection, &sql, (number,), read_conflict)
    }

    /// Records that the losing edit was applied after all.
    ///
    /// # Errors
    /// The store does not respond.
    pub fn revert_conflict(&mut self, number: u64) -> Result<(), StoreError> {
        let sql = "UPDATE conflicts SET reverted_at = ?2 WHERE number = ?1";
        execute(self.connection, sql, (number, self.now.0)).map(drop)
    }

    /// The partitioning that was last applied to the rows of a collection; empty if none was.
    ///
    /// # Errors
    /// The store does not respond.
    pub fn partition_of(&self, collection: CollectionNumber) -> Result<String, StoreError> {
        let sql = "SELECT partition FROM collections WHERE number = ?1";
        Ok(query_one(self.connection, sql, (collection,), |row| row.get(0))?.unwrap_or_default())
    }

    /// Records the partitioning that was applied to the rows of a collection.
    ///
    /// # Errors
    /// The store does not respond.
    pub fn set_partition(&mut self, collection: CollectionNumber, text: &str) -> Result<(), StoreError> {
        execute(self.connection, "UPDATE collections SET partition = ?2 WHERE number = ?1", (collection, text))
            .map(drop)
    }
}

pub(super) fn find_batch(
    connection: &Connection,
    device: DeviceNumber,
    batch: &str,
) -> Result<Option<EditBatch>, StoreError> {
    let sql = "SELECT author, upto, NOT EXISTS (SELECT 1 FROM batches l WHERE l.device = b.device AND l.author = b.author \
               AND l.place > b.place) FROM batches b WHERE device = ?1 AND batch = ?2";
    query_one(connection, sql, (device, batch), |row| {
        Ok(EditBatch { id: batch.into(), author: row.get(0)?, upto: row.get(1)?, is_last: row.get(2)? })
    })
}

pub(super) fn find_row(
    connection: &Connection,
    collection: CollectionNumber,
    id: &str,
) -> Result<Option<StoredRow>, StoreError> {
    let sql = format!("SELECT {ROW} FROM rows WHERE collection = ?1 AND id = ?2");
    query_one(connection, &sql, (collection, id), read_row)
}

/// Rows with content, in order of id.
pub(super) fn list_rows(
    connection: &Connection,
    collection: CollectionNumber,
    after: &str,
    limit: usize,
) -> Result<Vec<StoredRow>, StoreError> {
    let sql =
        format!("SELECT {ROW} FROM rows WHERE collection = ?1 AND id > ?2 AND body IS NOT NULL ORDER BY id LIMIT ?3");
    query_all(connection, &sql, (collection, after, limit), read_row)
}

pub(super) fn read_row(row: &Row<'_>) -> rusqlite::Result<StoredRow> {
    Ok(StoredRow {
        number: row.get(0)?,
        collection: row.get(1)?,
        id: row.get::<_, String>(2)?.into(),
        version: Stamp(row.get(3)?),
        sequence: Stamp(row.get(4)?),
        author: row.get(5)?,
        seen: Stamp(row.get(6)?),
        body: row.get::<_, Option<String>>(7)?.map(Into::into),
        columns: row.get::<_, Option<String>>(8)?.map(Into::into),
        keys: unpacked(row.get_ref(9)?.as_blob()?),
    })
}

pub(super) const CONFLICT: &str =
    "number, collection, row, at, device, resolver, winner, base, server, client, reverted_at";

pub(super) fn read_conflict(row: &Row<'_>) -> rusqlite::Result<Conflict> {
    let text = |column| row.get::<_, String>(column).map(Box::from);
    Ok(Conflict {
        number: row.get(0)?,
        collection: row.get(1)?,
        row: text(2)?,
        at: Timestamp(row.get(3)?),
        device: row.get(4)?,
        resolver: text(5)?,
        winner: text(6)?,
        base: text(7)?,
        server: text(8)?,
        client: text(9)?,
        reverted_at: row.get::<_, Option<i64>>(10)?.map(Timestamp),
    })
}

fn last(connection: &Connection) -> u32 {
    u32::try_from(connection.last_insert_rowid()).expect("far fewer than four billion collections and keys")
}

pub(super) fn packed(keys: &[KeyNumber]) -> Vec<u8> {
    keys.iter().flat_map(|key| key.to_be_bytes()).collect()
}

pub(super) fn unpacked(bytes: &[u8]) -> Vec<KeyNumber> {
    let (keys, _) = bytes.as_chunks::<4>();
    keys.iter().map(|key| KeyNumber::from_be_bytes(*key)).collect()
}
