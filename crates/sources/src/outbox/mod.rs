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
    source::{OpenSource, PORTION_EVENTS_MAX, Portion, Setting, Trouble},
    sql::{self, Database, PARAMETER, Rows},
    tray::Tray,
};

/// The part with the keys of rows that are accepted and may not be deleted yet.
const TAKEN: &str = "taken";

pub(crate) fn open(setting: Setting, marks: Vec<Mark>) -> Result<Box<dyn OpenSource>, Vec<Problem>> {
    let options: OutboxOptions = read(&setting.options, "")?;
    let taken = marks.iter().find(|mark| &*mark.part == TAKEN).and_then(|mark| mark.value.clone());
    Ok(Box::new(Outbox {
        taken: taken.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default(),
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
    taken: Vec<String>,
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
        let keys: Vec<Option<String>> = self.taken.iter().cloned().map(Some).collect();
        self.database()?.run(&statement, &keys).await?;
        self.taken.clear();
        Ok(())
    }

    async fn look(&mut self) -> Result<Rows, Trouble> {
        let (table, key, taken) = self.names()?;
        let condition = taken.map_or(String::new(), |column| format!(" WHERE {column} IS NULL"));
        let query = format!("SELECT * FROM {table}{condition} ORDER BY {key} LIMIT {PORTION_EVENTS_MAX}");
        self.database()?.query(&query, None).await
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

    fn portion(&mut self, rows: &Rows) -> Result<Portion, Trouble> {
        let column = rows.column(&self.options.key)?;
        let mapping = self.mapping(&rows.names);
        let mut tray = Tray::new(&self.setting.gives);
        for at in 0..rows.rows.len() {
            let Some(key) = rows.rows[at][column].clone() else {
                return Err(Trouble::of(format!("the column `{}` of a row is NULL", self.options.key)));
            };
            self.taken.push(key);
            tray.take(&mapping, || rows.item(at), || rows.message(at), None);
        }
        let mut portion = tray.finish();
        portion.marks = vec![Mark::set(TAKEN, serde_json::to_vec(&self.taken).expect("texts are JSON"))];
        Ok(portion)
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
            let rows = self.look().await?;
            self.empty = !rows.more;
            if !rows.rows.is_empty() {
                return self.portion(&rows);
            }
        }
    }

    /// The keys are remembered until the next portion, which has none of them: forgetting them costs no commit.
    async fn accepted(&mut self) -> Result<(), Trouble> {
        if self.taken.is_empty() { Ok(()) } else { self.take_away().await }
    }
}
