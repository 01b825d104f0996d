//! Changes for a device, in blocks. The cost depends on the number of changes for its keys, not on the number of
//! rows.

use rusqlite::Connection;
use tocsin_model::{collection::Stamp, field::Damaged};

use super::row_transaction::unpacked;
use crate::{
    collections::{BlockRequest, CollectionNumber, GenerationMove, KeyNumber, MoveStage, ReplicaBlock, ReplicaCursor},
    error::StoreError,
    sqlite::statements::{query_all, query_one},
};

/// A row that belongs or belonged to a key.
#[derive(Clone, Copy)]
struct Entry {
    sequence: Stamp,
    row: i64,
    first: Stamp,
    is_present: bool,
}

pub(super) fn block(connection: &Connection, request: &BlockRequest) -> Result<ReplicaBlock, StoreError> {
    let newest = query_one(connection, "SELECT sequence FROM books", (), |row| row.get(0))?.map_or(Stamp(0), Stamp);
    let block = ReplicaBlock { lines: Vec::new(), rows: 0, removed: 0, cursor: request.cursor, more: true };
    let mut builder = BlockBuilder { connection, request, newest, block, room: request.rows_max };
    while builder.block.more && builder.room > 0 && builder.block.lines.len() < request.bytes_max {
        builder.step()?;
    }
    Ok(builder.block)
}

/// Whether rows of these keys changed after a stamp.
pub(super) fn has_changes(connection: &Connection, keys: &[KeyNumber], after: Stamp) -> Result<bool, StoreError> {
    for key in keys {
        for sql in [
            "SELECT 1 FROM present WHERE key = ?1 AND sequence > ?2 LIMIT 1",
            "SELECT 1 FROM absent WHERE key = ?1 AND sequence > ?2 LIMIT 1",
        ] {
            if query_one(connection, sql, (key, after.0), |_| Ok(()))?.is_some() {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

struct BlockBuilder<'a> {
    connection: &'a Connection,
    request: &'a BlockRequest,
    /// The last stamp that this read sees.
    newest: Stamp,
    block: ReplicaBlock,
    /// Number of rows that may still be read.
    room: usize,
}

impl BlockBuilder<'_> {
    /// Writes the next changes, as far as there is room.
    fn step(&mut self) -> Result<(), StoreError> {
        let cursor = self.block.cursor;
        let Some(moving) = cursor.moving else {
            let (after, is_done) = self.add_changes(&self.request.held, cursor.sequence, self.newest)?;
            self.block.cursor.sequence = after;
            self.block.more = !is_done;
            return Ok(());
        };
        let (held, before) = (&self.request.held, &self.request.held_before);
        match moving.stage {
            MoveStage::Lost => {
                let lost = before.iter().copied().filter(|key| held.binary_search(key).is_err());
                self.add_key(moving, lost.collect(), MoveStage::Kept)
            }
            MoveStage::Kept => {
                let kept: Vec<KeyNumber> =
                    before.iter().copied().filter(|key| held.binary_search(key).is_ok()).collect();
                let after = moving.after.max(cursor.sequence);
                let (after, is_done) = self.add_changes(&kept, after, moving.upto)?;
                self.advance(if is_done {
                    next(moving, MoveStage::Gained)
                } else {
                    GenerationMove { after, ..moving }
                });
                Ok(())
            }
            MoveStage::Gained => {
                let gained: Vec<KeyNumber> =
                    held.iter().copied().filter(|key| before.binary_search(key).is_err()).collect();
                if gained.iter().all(|key| *key < moving.key) {
                    self.block.cursor = ReplicaCursor { generation: moving.to, sequence: moving.upto, moving: None };
                    return Ok(());
                }
                self.add_key(moving, gained, MoveStage::Gained)
            }
        }
    }

    fn advance(&mut self, moving: GenerationMove) {
        self.block.cursor.moving = Some(moving);
    }

    /// Writes the rows or removals of the first key in order.
    fn add_key(&mut self, moving: GenerationMove, keys: Vec<KeyNumber>, then: MoveStage) -> Result<(), StoreError> {
        let Some(key) = keys.into_iter().find(|key| *key >= moving.key) else {
            self.advance(next(moving, then));
            return Ok(());
        };
        let after = if key == moving.key { moving.after } else { Stamp(0) };
        let (entries, upto) = match moving.stage {
            MoveStage::Gained => (self.entries("present", key, after, moving.upto)?, moving.upto),
            _ => (self.all_entries(key, after, self.newest)?, self.newest),
        };
        let is_done = entries.len() < self.room;
        let mut after = after;
        for entry in entries.into_iter().take(self.room) {
            after = entry.sequence;
            match moving.stage {
                MoveStage::Gained => self.write_row(entry, upto)?,
                _ => {
                    // The device does not have rows that were removed before its last read.
                    if entry.is_present || entry.sequence > self.block.cursor.sequence {
                        self.write_row(Entry { is_present: false, ..entry }, self.block.cursor.sequence)?;
                    }
                }
            }
            self.room -= 1;
        }
        self.advance(if is_done {
            GenerationMove { key: key + 1, after: Stamp(0), ..moving }
        } else {
            GenerationMove { key, after, ..moving }
        });
        Ok(())
    }

    /// Writes the changes of some keys after a stamp. Returns the last stamp written, and whether these were all
    /// changes.
    fn add_changes(&mut self, keys: &[KeyNumber], after: Stamp, upto: Stamp) -> Result<(Stamp, bool), StoreError> {
        let mut entries = Vec::new();
        for key in keys {
            entries.extend(self.all_entries(*key, after, upto)?);
        }
        // Entries of one change of a row are adjacent; that it was added to one key has priority over its removal from
        // another.
        entries.sort_by_key(|entry| (entry.sequence, !entry.is_present, entry.first));
        entries.dedup_by_key(|entry| entry.sequence);
        let is_done = entries.len() < self.room;
        let mut last = after;
        for entry in entries.into_iter().take(self.room) {
            last = entry.sequence;
            self.write_row(entry, after)?;
            self.room -= 1;
        }
        Ok((if is_done { upto.max(after) } else { last }, is_done))
    }

    fn all_entries(&self, key: KeyNumber, after: Stamp, upto: Stamp) -> Result<Vec<Entry>, StoreError> {
        let mut entries = self.entries("present", key, after, upto)?;
        let absent = self.entries("absent", key, after, upto)?;
        if !absent.is_empty() {
            entries.extend(absent);
            entries.sort_by_key(|entry| entry.sequence);
            entries.truncate(self.room);
        }
        Ok(entries)
    }

    fn entries(&self, table: &str, key: KeyNumber, after: Stamp, upto: Stamp) -> Result<Vec<Entry>, StoreError> {
        let is_present = table == "present";
        let sql = format!(
            "SELECT sequence, row, first FROM {table} WHERE key = ?1 AND sequence > ?2 AND sequence <= ?3 \
             ORDER BY sequence LIMIT ?4"
        );
        query_all(self.connection, &sql, (key, after.0, upto.0, self.room), |row| {
            Ok(Entry { sequence: Stamp(row.get(0)?), row: row.get(1)?, first: Stamp(row.get(2)?), is_present })
        })
    }

    /// Writes a row, or its removal if the device may know the row from before `known`.
    fn write_row(&mut self, entry: Entry, known: Stamp) -> Result<(), StoreError> {
        if !entry.is_present && entry.first > known {
            return Ok(());
        }
        let (held, collections) = (&self.request.held, &self.request.collections);
        let block = &mut self.block;
        let sql = "SELECT collection, id, version, body, keys FROM rows WHERE number = ?1";
        let written = query_one(self.connection, sql, (entry.row,), |row| {
            let Some(collection) = collections.get(&row.get::<_, CollectionNumber>(0)?) else { return Ok(Ok(())) };
            let is_held = || -> rusqlite::Result<bool> {
                Ok(unpacked(row.get_ref(4)?.as_blob()?).iter().any(|key| held.binary_search(key).is_ok()))
            };
            // A row that was removed from one key but belongs to another key of the device is sent, or stays, with that
            // key.
            if !entry.is_present && is_held()? {
                return Ok(Ok(()));
            }
            let id = row.get_ref(1)?.as_str()?;
            let version: u64 = row.get(2)?;
            let body = if entry.is_present {
                match collection.fields.stored_as_json(row.get_ref(3)?.as_str()?) {
                    Ok(body) => body,
                    Err(Damaged) => return Ok(Err(StoreError::Damaged(format!("the row `{id}`")))),
                }
            } else {
                "null".to_owned()
            };
            write_line(&mut block.lines, &collection.name, id, version, &body);
            if entry.is_present {
                block.rows += 1
            } else {
                block.removed += 1
            }
            Ok(Ok(()))
        })?;
        written.unwrap_or(Ok(()))
    }
}

fn next(moving: GenerationMove, stage: MoveStage) -> GenerationMove {
    GenerationMove { stage, key: 0, after: Stamp(0), ..moving }
}

fn write_line(out: &mut Vec<u8>, collection: &str, id: &str, version: u64, body: &str) {
    out.extend_from_slice(b"[\"");
    // The name of a collection contains no characters that JSON escapes.
    out.extend_from_slice(collection.as_bytes());
    out.extend_from_slice(b"\",");
    serde_json::to_writer(&mut *out, id).expect("text is valid JSON");
    out.extend_from_slice(format!(",\"{version}\",").as_bytes());
    out.extend_from_slice(body.as_bytes());
    out.extend_from_slice(b"]\n");
}
