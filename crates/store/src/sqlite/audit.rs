//! Audit entries of one file, written in the commit of their change.

use std::sync::Arc;

use rusqlite::{Connection, Row, types::Value};
use tocsin_model::time::Timestamp;

use crate::{
    audit::{self, AuditEntry, AuditFilter, AuditPosition, ChangeContext, Image, Match, NewEntry},
    bounded_scan::{SCANNED_ROWS_MAX, ScanPage},
    error::StoreError,
    journal::{ERASED, PersonNames},
    sqlite::{
        statements::{execute, number_at, query_all, query_one, signed},
        writer::{Database, store_error},
    },
};

/// Table of the entries, a migration of each file that has an audit log.
pub(super) const SCHEMA: &str = r"
-- Audit log: changes by callers, each written in the commit of its change. Images are JSON.
CREATE TABLE audit (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    actor TEXT NOT NULL,
    address TEXT,
    action TEXT NOT NULL,
    object TEXT,
    before TEXT,
    after TEXT,
    more INTEGER NOT NULL,
    reason TEXT,
    request_id TEXT
) STRICT;
CREATE INDEX audit_by_time ON audit (at, sequence);
CREATE INDEX audit_by_actor ON audit (actor, at, sequence);
CREATE INDEX audit_by_action ON audit (action, at, sequence);
CREATE INDEX audit_by_object ON audit (object, at, sequence) WHERE object IS NOT NULL;
CREATE INDEX audit_by_request ON audit (request_id, at, sequence) WHERE request_id IS NOT NULL;
";

/// Entries that one commit of an erasure overwrites.
const ERASED_MAX: usize = 1_000;

/// Whether a file has an audit log.
pub(super) fn is_there(connection: &Connection) -> Result<bool, StoreError> {
    let sql = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'audit'";
    Ok(query_one(connection, sql, (), |_| Ok(()))?.is_some())
}

/// Runs a job within a transaction; if it changed rows, writes its entries there. Returns their number too.
pub(super) fn audited<T>(
    connection: &Connection,
    context: Option<&Arc<ChangeContext>>,
    job: impl FnOnce() -> Result<T, StoreError>,
) -> Result<(T, u64), StoreError> {
    let Some(context) = context else { return Ok((job()?, 0)) };
    let before = connection.total_changes();
    let (result, images) = audit::with_images(job);
    let result = result?;
    if connection.total_changes() == before && images.is_empty() {
        return Ok((result, 0));
    }
    let entries = audit::entries(context, images);
    entries.iter().try_for_each(|entry| insert(connection, entry))?;
    Ok((result, entries.len() as u64))
}

fn insert(connection: &Connection, entry: &NewEntry<'_>) -> Result<(), StoreError> {
    let NewEntry { at, actor, reason, context, object, before, after, more } = entry;
    execute(
        connection,
        "INSERT INTO audit (at, actor, address, action, object, before, after, more, reason, request_id)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        (
            at.0,
            actor,
            &context.address,
            &*context.action,
            object,
            before,
            after,
            signed(*more),
            reason,
            &context.request_id,
        ),
    )
    .map(drop)
}

const COLUMNS: &str = "sequence, at, actor, address, action, object, before, after, more, reason, request_id";

fn entry_of(row: &Row<'_>) -> rusqlite::Result<AuditEntry> {
    Ok(AuditEntry {
        sequence: number_at(row, 0)?,
        at: Timestamp(row.get(1)?),
        actor: row.get(2)?,
        address: row.get(3)?,
        action: row.get(4)?,
        object: row.get(5)?,
        before: row.get(6)?,
        after: row.get(7)?,
        more: number_at(row, 8)?,
        reason: row.get(9)?,
        request_id: row.get(10)?,
    })
}

/// The column whose index answers a filter best, with its value.
fn indexed(filter: &AuditFilter) -> Option<(&'static str, &str)> {
    if let Some(id) = &filter.request_id {
        return Some(("request_id", id));
    }
    let columns = [("object", &filter.object), ("actor", &filter.actor), ("action", &filter.action)];
    columns.into_iter().find_map(|(column, condition)| match condition {
        Some(Match::Exactly(text)) => Some((column, text.as_str())),
        _ => None,
    })
}

/// Statement of a page; its parameters are the earliest time, the place, the number of rows, and the value of the
/// indexed column.
fn page_sql(column: Option<&str>) -> String {
    let condition = column.map_or_else(String::new, |column| format!("{column} = ?5 AND "));
    format!(
        "SELECT {COLUMNS} FROM audit WHERE {condition}at >= ?1 AND (at, sequence) < (?2, ?3)
            ORDER BY at DESC, sequence DESC LIMIT ?4"
    )
}

pub(super) fn list(
    connection: &Connection,
    filter: &AuditFilter,
    before: Option<AuditPosition>,
    limit: usize,
) -> Result<ScanPage<AuditEntry, AuditPosition>, StoreError> {
    let end = AuditPosition { at: filter.to.unwrap_or(Timestamp(i64::MAX)), sequence: 0 };
    let before = before.map_or(end, |before| before.min(end));
    let indexed = indexed(filter);
    let is_whole = |filter: &AuditFilter| {
        let conditions = [filter.actor.is_some(), filter.action.is_some(), filter.object.is_some()];
        let given = conditions.iter().filter(|given| **given).count() + usize::from(filter.request_id.is_some());
        given == usize::from(indexed.is_some())
    };
    let rows = if is_whole(filter) { limit.saturating_add(1) } else { SCANNED_ROWS_MAX };
    let mut values = vec![
        Value::Integer(filter.from.map_or(i64::MIN, |from| from.0)),
        Value::Integer(before.at.0),
        Value::Integer(signed(before.sequence)),
        Value::Integer(signed(rows as u64)),
    ];
    values.extend(indexed.map(|(_, text)| Value::Text(text.to_owned())));
    let sql = page_sql(indexed.map(|(column, _)| column));
    let mut statement = connection.prepare_cached(&sql).map_err(store_error)?;
    let mut found = statement.query(rusqlite::params_from_iter(values)).map_err(store_error)?;
    let (mut items, mut read, mut last) = (Vec::new(), 0, None);
    while let Some(row) = found.next().map_err(store_error)? {
        let entry = entry_of(row).map_err(store_error)?;
        (read, last) = (read + 1, Some(entry.position()));
        if filter.holds(&entry) {
            items.push(entry);
        }
        if items.len() > limit {
            break;
        }
    }
    let reached = last.filter(|_| read == rows);
    Ok(ScanPage::cut(items, limit, reached, AuditEntry::position))
}

pub(super) fn prune(connection: &Connection, before: Timestamp, limit: usize) -> Result<usize, StoreError> {
    let sql = "DELETE FROM audit WHERE sequence IN (SELECT sequence FROM audit WHERE at < ?1 ORDER BY at LIMIT ?2)";
    execute(connection, sql, (before.0, signed(limit as u64)))
}

fn is_any_expired(connection: &Connection, before: Timestamp) -> Result<bool, StoreError> {
    let sql = "SELECT EXISTS (SELECT 1 FROM audit WHERE at < ?1)";
    Ok(query_one(connection, sql, [before.0], |row| row.get(0))?.unwrap_or(false))
}

/// Entries after a number that name a person, among the next ones, and the last number read; `None` at the end.
fn naming(
    connection: &Connection,
    names: &PersonNames,
    after: u64,
) -> Result<(Vec<AuditEntry>, Option<u64>), StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM audit WHERE sequence > ?1 ORDER BY sequence LIMIT ?2");
    let mut found = query_all(connection, &sql, (signed(after), signed(ERASED_MAX as u64)), entry_of)?;
    let last = found.last().map(|entry| entry.sequence);
    found.retain(|entry| {
        let images = [&entry.before, &entry.after, &entry.reason];
        is_named(names, &entry.actor)
            || entry.object.as_deref().is_some_and(|object| is_named(names, object))
            || images.into_iter().flatten().any(|text| {
                // A quick test before the text is parsed.
                names.may_be_in(text.as_bytes()) && names.erased_json(text).is_some()
            })
    });
    Ok((found, last))
}

/// All entries.
pub(super) fn all(connection: &Connection) -> Result<Vec<AuditEntry>, StoreError> {
    query_all(connection, &format!("SELECT {COLUMNS} FROM audit ORDER BY sequence"), (), entry_of)
}

/// Adds entries of a file that is removed. Can be repeated.
pub(super) fn take_over(connection: &Connection, entries: &[AuditEntry]) -> Result<(), StoreError> {
    for entry in entries {
        execute(
            connection,
            "INSERT INTO audit (at, actor, address, action, object, before, after, more, reason, request_id)
                SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10 WHERE NOT EXISTS (SELECT 1 FROM audit
                    WHERE at = ?1 AND actor = ?2 AND action = ?4 AND object IS NOT DISTINCT FROM ?5
                    AND request_id IS NOT DISTINCT FROM ?10)",
            (
                entry.at.0,
                &entry.actor,
                &entry.address,
                &entry.action,
                &entry.object,
                &entry.before,
                &entry.after,
                signed(entry.more),
                &entry.reason,
                &entry.request_id,
            ),
        )?;
    }
    Ok(())
}

/// Whether a part of the text of an actor or object, such as `device:ada/phone`, is a name.
fn is_named(names: &PersonNames, text: &str) -> bool {
    text.split([':', '/']).skip(1).any(|part| names.is_in(part)) || names.is_in(text)
}

/// Overwrites entries that name a person.
fn erase(connection: &Connection, names: &PersonNames, entries: &[AuditEntry]) -> Result<(), StoreError> {
    for entry in entries {
        let erased = |text: &str| match text.split_once(':') {
            Some((kind, _)) if is_named(names, text) => format!("{kind}:{ERASED}"),
            None if is_named(names, text) => {
                let part = |part| if names.is_in(part) { ERASED } else { part };
                text.split('/').map(part).collect::<Vec<_>>().join("/")
            }
            _ => text.to_owned(),
        };
        let actor = erased(&entry.actor);
        let address = entry.address.as_ref().filter(|_| actor == entry.actor);
        execute(
            connection,
            "UPDATE audit SET actor = ?2, address = ?3, object = ?4, before = NULL, after = NULL, reason = NULL
                WHERE sequence = ?1",
            (signed(entry.sequence), &actor, address, entry.object.as_deref().map(erased)),
        )?;
    }
    Ok(())
}

impl Database {
    /// Entries of this file, newest first.
    pub(super) async fn audit_entries(
        &self,
        filter: &AuditFilter,
        before: Option<AuditPosition>,
        limit: usize,
    ) -> Result<ScanPage<AuditEntry, AuditPosition>, StoreError> {
        let filter = filter.clone();
        self.read(move |connection| list(connection, &filter, before, limit)).await
    }

    /// Writes an entry of the running operation.
    pub(super) async fn record_audit(&self, image: Image) -> Result<(), StoreError> {
        self.write(move |_, _| {
            audit::changed(|| image);
            Ok(())
        })
        .await
    }

    /// Removes old entries.
    pub(super) async fn prune_audit(&self, before: Timestamp, limit: usize) -> Result<usize, StoreError> {
        // Usually no entry is past its retention, and then nothing is written.
        if !self.read(move |connection| is_any_expired(connection, before)).await? {
            return Ok(0);
        }
        audit::unaudited(self.write(move |connection, _| prune(connection, before, limit))).await
    }

    /// Overwrites what names a person, in bounded commits.
    pub(super) async fn erase_audit(&self, names: &PersonNames) -> Result<usize, StoreError> {
        let (mut after, mut erased) = (0, 0);
        loop {
            let searched = names.clone();
            let (found, last) = self.read(move |connection| naming(connection, &searched, after)).await?;
            erased += found.len();
            if !found.is_empty() {
                let names = names.clone();
                audit::unaudited(self.write(move |connection, _| erase(connection, &names, &found))).await?;
            }
            match last {
                Some(last) => after = last,
                None => return Ok(erased),
            }
        }
    }
}

/// Makes a store with a field `database` a trail.
macro_rules! trail {
    ($store:ty, $name:literal) => {
        #[async_trait::async_trait]
        impl $crate::audit::AuditTrail for $store {
            fn trail(&self) -> &'static str {
                $name
            }

            async fn entries(
                &self,
                filter: &$crate::audit::AuditFilter,
                before: Option<$crate::audit::AuditPosition>,
                limit: usize,
            ) -> Result<
                $crate::bounded_scan::ScanPage<$crate::audit::AuditEntry, $crate::audit::AuditPosition>,
                $crate::error::StoreError,
            > {
                self.database.audit_entries(filter, before, limit).await
            }

            async fn record(&self, image: $crate::audit::Image) -> Result<(), $crate::error::StoreError> {
                self.database.record_audit(image).await
            }

            async fn prune_entries(
                &self,
                before: tocsin_model::time::Timestamp,
                limit: usize,
            ) -> Result<usize, $crate::error::StoreError> {
                self.database.prune_audit(before, limit).await
            }

            async fn erase_entries(
                &self,
                names: &$crate::journal::PersonNames,
            ) -> Result<usize, $crate::error::StoreError> {
                self.database.erase_audit(names).await
            }
        }
    };
}

pub(super) use trail;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_and_retention_are_answered_by_an_index() {
        let connection = Connection::open_in_memory().expect("memory");
        connection.execute_batch(SCHEMA).expect("a table");
        let plan = |sql: &str| {
            let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).expect("a statement");
            let values: Vec<i64> = vec![1; statement.parameter_count()];
            let rows = statement.query_map(rusqlite::params_from_iter(values), |row| row.get::<_, String>(3));
            rows.and_then(Iterator::collect::<Result<Vec<_>, _>>).expect("a plan").join("; ")
        };
        for (column, index) in [
            (None, "audit_by_time"),
            (Some("actor"), "audit_by_actor"),
            (Some("action"), "audit_by_action"),
            (Some("object"), "audit_by_object"),
            (Some("request_id"), "audit_by_request"),
        ] {
            let found = plan(&page_sql(column));
            assert!(found.contains(&format!("USING INDEX {index} ")), "{column:?}: {found}");
            assert!(!found.contains("TEMP B-TREE"), "{column:?}: {found}");
        }
        let found = plan("SELECT sequence FROM audit WHERE at < ?1 ORDER BY at LIMIT ?2");
        assert!(found.contains("audit_by_time") && !found.contains("TEMP B-TREE"), "{found}");
    }
}
