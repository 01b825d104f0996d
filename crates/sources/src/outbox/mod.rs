//! Outbox source: a table into which applications write events in their own transactions (transactional outbox). Rows
//! are taken and then deleted, or marked.
//!
//! The keys of taken rows are remembered until the rows are deleted. So a row in the table is either new or one of
//! these, whatever the order of commits.

mod options; // the options of an operator

#[cfg(test)]
mod tests;

use std::sync::Arc;

use async_trait::async_trait;
pub use options::OutboxOptions;
use tocsin_connect::options::read;
use tocsin_model::{
    mark::Mark,
    problem::{Code, Problem},
};
use tokio::sync::Notify;

use crate::{
    batch_builder::BatchBuilder,
    description::{KindDescription, LocationDescription, Opened, SourceResource, check_of, not_allowed_of, schema_of},
    mapping::Mapping,
    source::{BATCH_EVENTS_MAX, OpenSource, SourceBatch, SourceError, SourceSettings, stored},
    sql::{self, Database, PARAMETER, QueryRequest, Rows, SqlValue, TIES_MAX},
};

/// The part of the marks with the keys of accepted rows that may not be deleted yet.
const TAKEN: &str = "taken";
/// Most rows without a key that are rejected each time the source is opened.
const UNKEYED_MAX: usize = 100;

/// Its row in the table of kinds.
pub(crate) static KIND: KindDescription = KindDescription {
    name: "outbox",
    summary: "an outbox table of PostgreSQL, MySQL, MariaDB or SQLite, whose rows are taken and deleted, or marked",
    schema: schema_of::<OutboxOptions>,
    needs: &[SourceResource::NamedServers, SourceResource::DatabaseFiles],
    secrets: &[],
    location: Some(LocationDescription { event_options: &["fields"] }),
    check: check_of::<OutboxOptions>,
    not_allowed: not_allowed_of::<OutboxOptions>,
    open,
};

fn open(setting: SourceSettings, marks: Vec<Mark>) -> Opened {
    let options: OutboxOptions = read(&setting.options, "")?;
    Ok(Box::new(Outbox {
        accepted_keys: stored(&marks, TAKEN)?.unwrap_or_default(),
        is_searched: false,
        empty: false,
        wakeup: Arc::default(),
        database: None,
        setting,
        options,
    }))
}

/// The state of the source.
struct Outbox {
    setting: SourceSettings,
    options: OutboxOptions,
    database: Option<Box<dyn Database>>,
    wakeup: Arc<Notify>,
    /// Keys of accepted rows that may still be in the table.
    accepted_keys: Vec<SqlValue>,
    /// Whether rows without a key were searched for.
    is_searched: bool,
    /// Whether the last query returned less than a full batch.
    empty: bool,
}

impl Outbox {
    async fn connect(&mut self) -> Result<(), SourceError> {
        if self.database.is_some() {
            return Ok(());
        }
        let OutboxOptions { database, table, timeout, listen, .. } = &self.options;
        let mut database = sql::connect(database, timeout.0, &self.setting.context).await?;
        database.lock(&format!("tocsin outbox {table}")).await?;
        if let Some(channel) = listen {
            database.listen(channel, self.wakeup.clone()).await?;
        }
        self.database = Some(database);
        Ok(())
    }

    fn database(&mut self) -> Result<&mut Box<dyn Database>, SourceError> {
        self.database.as_mut().ok_or_else(|| SourceError::of("the database is not connected"))
    }

    /// The quoted names of the table and its columns.
    fn names(&mut self) -> Result<(String, String, Option<String>), SourceError> {
        let OutboxOptions { table, key, taken, .. } = self.options.clone();
        let database = self.database()?;
        let table: Vec<String> = table.split('.').map(|name| database.quoted(name)).collect();
        Ok((table.join("."), database.quoted(&key), taken.map(|column| database.quoted(&column))))
    }

    /// Deletes or marks the accepted rows.
    async fn delete_accepted(&mut self) -> Result<(), SourceError> {
        let (table, key, taken) = self.names()?;
        let statement = match taken {
            Some(column) => format!(
                "UPDATE {table} SET {column} = CURRENT_TIMESTAMP WHERE {key} = {PARAMETER} AND {column} IS NULL"
            ),
            None => format!("DELETE FROM {table} WHERE {key} = {PARAMETER}"),
        };
        let keys = std::mem::take(&mut self.accepted_keys);
        let done = self.database()?.run(&statement, &keys).await;
        if done.is_err() {
            self.accepted_keys = keys;
        }
        done?;
        Ok(())
    }

    /// The next rows, and how many of them are taken: rows with equal keys stay together, since rows are deleted by
    /// their keys.
    async fn next_rows(&mut self) -> Result<(Rows, usize), SourceError> {
        let (table, key, taken) = self.names()?;
        let condition = taken.map_or(String::new(), |column| format!(" AND {column} IS NULL"));
        for rows_max in [BATCH_EVENTS_MAX, TIES_MAX] {
            let limit = rows_max + 1;
            let query =
                format!("SELECT * FROM {table} WHERE {key} IS NOT NULL{condition} ORDER BY {key} LIMIT {limit}");
            let rows = self.query_rows(&query, rows_max).await?;
            if let Some(count) = rows.whole_marks() {
                return Ok((rows, count));
            }
        }
        let column = &self.options.key;
        Err(SourceError::of(format!(
            "more than {TIES_MAX} rows, or rows of more than 64 MiB, have one value in `{column}`: use a key that is unique"
        )))
    }

    /// Rejects rows without a key. They can neither be identified nor be deleted, so they stay in the table.
    async fn reject_rows_without_key(&mut self) -> Result<SourceBatch, SourceError> {
        let (table, key, taken) = self.names()?;
        let condition = taken.map_or(String::new(), |column| format!(" AND {column} IS NULL"));
        let query = format!("SELECT * FROM {table} WHERE {key} IS NULL{condition} LIMIT {UNKEYED_MAX}");
        let rows = self.query_rows(&query, UNKEYED_MAX).await?;
        let mut builder = BatchBuilder::new(&self.setting.output);
        for at in 0..rows.rows.len() {
            let text = "is NULL, so the row cannot be deleted and is not taken; give it a key";
            builder.reject(&[Problem::new(Code::Required, self.options.key.as_str(), text)], rows.item(at).shown());
        }
        Ok(builder.finish())
    }

    async fn query_rows(&mut self, query: &str, rows_max: usize) -> Result<Rows, SourceError> {
        let key = self.options.key.clone();
        let request = QueryRequest { query, mark_column: Some(&key), mark: &SqlValue::Null, rows_max };
        self.database()?.query(request).await
    }

    /// With the configured columns, or those with the names of fields: a table may have further columns, and a class
    /// further fields.
    fn mapping(&self, columns: &[String]) -> Mapping {
        let fields = &self.setting.output.fields();
        if !self.options.fields.is_empty() {
            return Mapping::new(fields, &self.options.fields);
        }
        let common = columns.iter().filter(|column| fields.position(column).is_some());
        Mapping::new(fields, &common.map(|column| (column.clone(), column.clone())).collect())
    }

    fn batch(&mut self, rows: &Rows, count: usize) -> SourceBatch {
        let mapping = self.mapping(&rows.names);
        let mut builder = BatchBuilder::new(&self.setting.output);
        for at in 0..count {
            let key = rows.marks[at].clone();
            if self.accepted_keys.last() != Some(&key) {
                self.accepted_keys.push(key);
            }
            rows.take_into(&mut builder, &mapping, at);
        }
        let mut batch = builder.finish();
        batch.received_at = Some(self.setting.context.clock.now());
        batch.marks = vec![Mark::set(TAKEN, serde_json::to_vec(&self.accepted_keys).expect("keys are JSON"))];
        batch
    }
}

#[async_trait]
impl OpenSource for Outbox {
    async fn next(&mut self) -> Result<SourceBatch, SourceError> {
        self.connect().await?;
        if !self.accepted_keys.is_empty() {
            self.delete_accepted().await?;
            return Ok(SourceBatch { marks: vec![Mark::delete(TAKEN)], ..SourceBatch::default() });
        }
        loop {
            if self.empty {
                let wakeup = self.wakeup.clone();
                let _ = tokio::time::timeout(self.options.every.0, wakeup.notified()).await;
            }
            if !std::mem::replace(&mut self.is_searched, true) {
                let batch = self.reject_rows_without_key().await?;
                if !batch.refused.is_empty() {
                    return Ok(batch);
                }
            }
            let (rows, count) = self.next_rows().await?;
            self.empty = !rows.more;
            if count > 0 {
                return Ok(self.batch(&rows, count));
            }
        }
    }

    /// The keys are dropped with the next batch, which does not contain them: that saves a commit.
    async fn accepted(&mut self) -> Result<(), SourceError> {
        if self.accepted_keys.is_empty() { Ok(()) } else { self.delete_accepted().await }
    }
}
