//! A table that others write events into, in the transactions in which these happen. Its rows are taken and then deleted, or
//! marked.
//!
//! What is taken is remembered by the keys of the rows until they are deleted, so a row that is there is either new or one
//! of these, whatever order transactions were committed in.

mod options; // what an operator may set

#[cfg(test)]
mod tests;

use std::sync::Arc;

use async_trait::async_trait;
pub use options::OutboxOptions;
use tocsin_delivery::options::read;
use tocsin_model::{mark::Mark, problem::Problem};
use tokio::sync::Notify;

use crate::{
    mapping::Mapping,
    source::{OpenSource, PORTION_EVENTS_MAX, Portion, Setting, Trouble, stored},
    sql::{self, Ask, Database, PARAMETER, Rows, SqlValue, TIES_MAX},
    tray::Tray,
};

/// The part with the keys of rows that are accepted and may not be deleted yet.
const TAKEN: &str = "taken";
/// Most rows without a key that are set aside each time that the source is opened.
const UNKEYED_MAX: usize = 100;

pub(crate) fn open(setting: Setting, marks: Vec<Mark>) -> Result<Box<dyn OpenSource>, Vec<Problem>> {
    let options: OutboxOptions = read(&setting.options, "")?;
    Ok(Box::new(Outbox {
        taken: stored(&marks, TAKEN)?.unwrap_or_default(),
        is_searched: false,
        empty: false,
        bell: Arc::default(),
        database: None,
        setting,
        options,
    }))
}

/// A table that is emptied.
struct Outbox {
    setting: Setting,
    options: OutboxOptions,
    database: Option<Box<dyn Database>>,
    bell: Arc<Notify>,
    /// Keys of rows that are accepted and may be there still.
    taken: Vec<SqlValue>,
    /// Whether rows without a key were looked for.
    is_searched: bool,
    /// Whether the last look found less than is taken at once.
    empty: bool,
}

impl Outbox {
    async fn connect(&mut self) -> Result<(), Trouble> {
        if self.database.is_some() {
            return Ok(());
        }
        let OutboxOptions { database, table, timeout, listen, .. } = &self.options;
        let mut database = sql::connect(database, timeout.0, &self.setting.context).await?;
        database.lock(&format!("tocsin outbox {table}")).await?;
        if let Some(channel) = listen {
            database.listen(channel, self.bell.clone()).await?;
        }
        self.database = Some(database);
        Ok(())
    }

    fn database(&mut self) -> Result<&mut Box<dyn Database>, Trouble> {
        self.database.as_mut().ok_or_else(|| Trouble::of("the database is not connected"))
    }

    /// The table and its columns as they stand in a statement.
    fn names(&mut self) -> Result<(String, String, Option<String>), Trouble> {
        let OutboxOptions { table, key, taken, .. } = self.options.clone();
        let database = self.database()?;
        let table: Vec<String> = table.split('.').map(|name| database.quoted(name)).collect();
        Ok((table.join("."), database.quoted(&key), taken.map(|column| database.quoted(&column))))
    }

    /// Deletes or marks what is accepted.
    async fn take_away(&mut self) -> Result<(), Trouble> {
        let (table, key, taken) = self.names()?;
        let statement = match taken {
            Some(column) => format!(
                "UPDATE {table} SET {column} = CURRENT_TIMESTAMP WHERE {key} = {PARAMETER} AND {column} IS NULL"
            ),
            None => format!("DELETE FROM {table} WHERE {key} = {PARAMETER}"),
        };
        let keys = std::mem::take(&mut self.taken);
        let done = self.database()?.run(&statement, &keys).await;
        if done.is_err() {
            self.taken = keys;
        }
        done?;
        Ok(())
    }

    /// The next rows, and how many of them are taken: none of which another one with the same key is left, since rows are
    /// taken away by their keys.
    async fn look(&mut self) -> Result<(Rows, usize), Trouble> {
        let (table, key, taken) = self.names()?;
        let condition = taken.map_or(String::new(), |column| format!(" AND {column} IS NULL"));
        for rows_max in [PORTION_EVENTS_MAX, TIES_MAX] {
            let limit = rows_max + 1;
            let query =
                format!("SELECT * FROM {table} WHERE {key} IS NOT NULL{condition} ORDER BY {key} LIMIT {limit}");
            let rows = self.ask(&query, rows_max).await?;
            if let Some(count) = rows.whole_marks() {
                return Ok((rows, count));
            }
        }
        let column = &self.options.key;
        Err(Trouble::of(format!(
            "more than {TIES_MAX} rows, or rows of more than 64 MiB, have one value in `{column}`: use a key that is unique"
        )))
    }

    /// Rows that have no key. They can neither be known again nor be taken away, so they are set aside and stay.
    async fn look_for_rows_without_key(&mut self) -> Result<Portion, Trouble> {
        let (table, key, taken) = self.names()?;
        let condition = taken.map_or(String::new(), |column| format!(" AND {column} IS NULL"));
        let query = format!("SELECT * FROM {table} WHERE {key} IS NULL{condition} LIMIT {UNKEYED_MAX}");
        let rows = self.ask(&query, UNKEYED_MAX).await?;
        let mut tray = Tray::new(&self.setting.gives);
        for at in 0..rows.rows.len() {
            let text = "is NULL, so the row cannot be taken away and is not taken; give it a key";
            tray.refuse(&[Problem::at(self.options.key.as_str(), text)], rows.item(at).shown());
        }
        Ok(tray.finish())
    }

    async fn ask(&mut self, query: &str, rows_max: usize) -> Result<Rows, Trouble> {
        let key = self.options.key.clone();
        let ask = Ask { query, mark_column: Some(&key), mark: &SqlValue::Null, rows_max };
        self.database()?.query(ask).await
    }

    /// By the columns of an operator, or by those with the names of fields: a table has columns that a class does not need,
    /// and a class fields that a table does not have.
    fn mapping(&self, columns: &[String]) -> Mapping {
        let fields = &self.setting.gives.fields();
        if !self.options.fields.is_empty() {
            return Mapping::new(fields, &self.options.fields);
        }
        let common = columns.iter().filter(|column| fields.position(column).is_some());
        Mapping::new(fields, &common.map(|column| (column.clone(), column.clone())).collect())
    }

    fn portion(&mut self, rows: &Rows, count: usize) -> Portion {
        let mapping = self.mapping(&rows.names);
        let mut tray = Tray::new(&self.setting.gives);
        for at in 0..count {
            let key = rows.marks[at].clone();
            if self.taken.last() != Some(&key) {
                self.taken.push(key);
            }
            rows.take_into(&mut tray, &mapping, at);
        }
        let mut portion = tray.finish();
        portion.received_at = Some(self.setting.context.clock.now());
        portion.marks = vec![Mark::set(TAKEN, serde_json::to_vec(&self.taken).expect("keys are JSON"))];
        portion
    }
}

#[async_trait]
impl OpenSource for Outbox {
    async fn next(&mut self) -> Result<Portion, Trouble> {
        self.connect().await?;
        if !self.taken.is_empty() {
            self.take_away().await?;
            return Ok(Portion { marks: vec![Mark::forget(TAKEN)], ..Portion::default() });
        }
        loop {
            if self.empty {
                let bell = self.bell.clone();
                let _ = tokio::time::timeout(self.options.every.0, bell.notified()).await;
            }
            if !std::mem::replace(&mut self.is_searched, true) {
                let portion = self.look_for_rows_without_key().await?;
                if !portion.refused.is_empty() {
                    return Ok(portion);
                }
            }
            let (rows, count) = self.look().await?;
            self.empty = !rows.more;
            if count > 0 {
                return Ok(self.portion(&rows, count));
            }
        }
    }

    /// The keys are remembered until the next portion, which has none of them: forgetting them costs no commit.
    async fn accepted(&mut self) -> Result<(), Trouble> {
        if self.taken.is_empty() { Ok(()) } else { self.take_away().await }
    }
}
