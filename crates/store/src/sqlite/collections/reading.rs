//! What is new for a device, a block at a time. It costs what changed for its keys, not what there is.

use rusqlite::Connection;
use tocsin_model::collection::Stamp;

use super::{
    super::records::{query_all, query_one},
    ledger::unpacked,
};
use crate::{
    collections::{Block, CollectionNumber, KeyNumber, Moving, Place, Stage, Wanted},
    error::StoreError,
};

/// A row that a key has, or had.
#[derive(Clone, Copy)]
struct Entry {
    sequence: Stamp,
    row: i64,
    first: Stamp,
    is_present: bool,
}

pub(super) fn block(connection: &Connection, wanted: &Wanted) -> Result<Block, StoreError> {
    let newest = query_one(connection, "SELECT sequence FROM books", (), |row| row.get(0))?.map_or(Stamp(0), Stamp);
    let block = Block { lines: Vec::new(), rows: 0, removed: 0, place: wanted.place, more: true };
    let mut filling = Filling { connection, wanted, newest, block, room: wanted.rows_max };
    while filling.block.more && filling.room > 0 && filling.block.lines.len() < wanted.bytes_max {
        filling.step()?;
    }
    Ok(filling.block)
}

/// Whether rows of these keys changed behind a stamp.
pub(super) fn has_news(connection: &Connection, keys: &[KeyNumber], after: Stamp) -> Result<bool, StoreError> {
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

struct Filling<'a> {
    connection: &'a Connection,
    wanted: &'a Wanted,
    /// The last stamp that this reading sees.
    newest: Stamp,
    block: Block,
    /// Rows that may still be looked at.
    room: usize,
}

impl Filling<'_> {
    /// Tells what comes next, as far as there is room.
    fn step(&mut self) -> Result<(), StoreError> {
        let place = self.block.place;
        let Some(moving) = place.moving else {
            let (after, is_done) = self.tell_changes(&self.wanted.held, place.sequence, self.newest)?;
            self.block.place.sequence = after;
            self.block.more = !is_done;
            return Ok(());
        };
        let (held, before) = (&self.wanted.held, &self.wanted.held_before);
        match moving.stage {
            Stage::Lost => {
                let lost = before.iter().copied().filter(|key| held.binary_search(key).is_err());
                self.tell_key(moving, lost.collect(), Stage::Kept)
            }
            Stage::Kept => {
                let kept: Vec<KeyNumber> =
                    before.iter().copied().filter(|key| held.binary_search(key).is_ok()).collect();
                let after = moving.after.max(place.sequence);
                let (after, is_done) = self.tell_changes(&kept, after, moving.upto)?;
                self.advance(if is_done { next(moving, Stage::Gained) } else { Moving { after, ..moving } });
                Ok(())
            }
            Stage::Gained => {
                let gained: Vec<KeyNumber> =
                    held.iter().copied().filter(|key| before.binary_search(key).is_err()).collect();
                if gained.iter().all(|key| *key < moving.key) {
                    self.block.place = Place { generation: moving.to, sequence: moving.upto, moving: None };
                    return Ok(());
                }
                self.tell_key(moving, gained, Stage::Gained)
            }
        }
    }

    fn advance(&mut self, moving: Moving) {
        self.block.place.moving = Some(moving);
    }

    /// Tells one of some keys, the first that is not behind: its rows, or that they are gone.
    fn tell_key(&mut self, moving: Moving, keys: Vec<KeyNumber>, then: Stage) -> Result<(), StoreError> {
        let Some(key) = keys.into_iter().find(|key| *key >= moving.key) else {
            self.advance(next(moving, then));
            return Ok(());
        };
        let after = if key == moving.key { moving.after } else { Stamp(0) };
        let (entries, upto) = match moving.stage {
            Stage::Gained => (self.entries("present", key, after, moving.upto)?, moving.upto),
            _ => (self.all_entries(key, after, self.newest)?, self.newest),
        };
        let is_done = entries.len() < self.room;
        let mut after = after;
        for entry in entries.into_iter().take(self.room) {
            after = entry.sequence;
            match moving.stage {
                Stage::Gained => self.tell(entry, upto)?,
                _ => {
                    // What went before the device looked last, it does not have.
                    if entry.is_present || entry.sequence > self.block.place.sequence {
                        self.tell(Entry { is_present: false, ..entry }, self.block.place.sequence)?;
                    }
                }
            }
            self.room -= 1;
        }
        self.advance(if is_done {
            Moving { key: key + 1, after: Stamp(0), ..moving }
        } else {
            Moving { key, after, ..moving }
        });
        Ok(())
    }

    /// Tells what changed for some keys behind a place. Gives up to where, and whether that was all.
    fn tell_changes(&mut self, keys: &[KeyNumber], after: Stamp, upto: Stamp) -> Result<(Stamp, bool), StoreError> {
        let mut entries = Vec::new();
        for key in keys {
            entries.extend(self.all_entries(*key, after, upto)?);
        }
        // Those of one change of a row stand together; that it came to one key counts more than that another lost it.
        entries.sort_by_key(|entry| (entry.sequence, !entry.is_present, entry.first));
        entries.dedup_by_key(|entry| entry.sequence);
        let is_done = entries.len() < self.room;
        let mut told = after;
        for entry in entries.into_iter().take(self.room) {
            told = entry.sequence;
            self.tell(entry, after)?;
            self.room -= 1;
        }
        Ok((if is_done { upto.max(after) } else { told }, is_done))
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

    /// Writes a row, or that it is gone if the device can know it from before `known`.
    fn tell(&mut self, entry: Entry, known: Stamp) -> Result<(), StoreError> {
        if !entry.is_present && entry.first > known {
            return Ok(());
        }
        let (held, collections) = (&self.wanted.held, &self.wanted.collections);
        let block = &mut self.block;
        let sql = "SELECT collection, id, version, body, keys FROM rows WHERE number = ?1";
        query_one(self.connection, sql, (entry.row,), |row| {
            let Some(collection) = collections.get(&row.get::<_, CollectionNumber>(0)?) else { return Ok(()) };
            let is_held = || -> rusqlite::Result<bool> {
                Ok(unpacked(row.get_ref(4)?.as_blob()?).iter().any(|key| held.binary_search(key).is_ok()))
            };
            // A row that left one key and belongs to another that is held comes, or stays, with that one.
            if !entry.is_present && is_held()? {
                return Ok(());
            }
            let id = row.get_ref(1)?.as_str()?;
            let version: u64 = row.get(2)?;
            let body = if entry.is_present { row.get_ref(3)?.as_str()? } else { "null" };
            write_line(&mut block.lines, collection, id, version, body);
            if entry.is_present {
                block.rows += 1
            } else {
                block.removed += 1
            }
            Ok(())
        })?;
        Ok(())
    }
}

fn next(moving: Moving, stage: Stage) -> Moving {
    Moving { stage, key: 0, after: Stamp(0), ..moving }
}

fn write_line(out: &mut Vec<u8>, collection: &str, id: &str, version: u64, body: &str) {
    out.extend_from_slice(b"[\"");
    // The name of a collection has no character that JSON escapes.
    out.extend_from_slice(collection.as_bytes());
    out.extend_from_slice(b"\",");
    serde_json::to_writer(&mut *out, id).expect("text becomes JSON");
    out.extend_from_slice(format!(",\"{version}\",").as_bytes());
    out.extend_from_slice(body.as_bytes());
    out.extend_from_slice(b"]\n");
}
