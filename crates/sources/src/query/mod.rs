//! Query source: a repeated SQL query with a high-water mark.
//!
//! It requires that rows become visible in the order of the mark. With overlapping transactions, a row with a smaller
//! number may be committed after a greater one was taken, and is then missed: use `outbox` for such tables.

mod options; // the options of an operator

#[cfg(test)]
mod tests;

use std::{collections::HashSet, sync::Arc};

use async_trait::async_trait;
pub use options::QueryOptions;
use serde::{Deserialize, Serialize};
use tocsin_connect::options::read;
use tocsin_model::{
    mark::Mark,
    problem::{Code, Problem},
    time::Timestamp,
};
use tokio::sync::Notify;

use crate::{
    batch_builder::BatchBuilder,
    description::{KindDescription, LocationDescription, Opened, SourceResource, check_of, not_allowed_of, schema_of},
    due::PollSchedule,
    mapping::Mapping,
    seen_items::hash,
    source::{BATCH_EVENTS_MAX, OpenSource, SourceBatch, SourceError, SourceSettings, stored},
    sql::{self, Database, QueryRequest, Rows, SqlValue, TIES_MAX},
};

/// The part of the marks with the high-water mark: a [`HighWaterMark`].
const POSITION: &str = "position";
/// The part in which older versions stored the high-water mark as text, whatever its type.
const REACHED: &str = "reached";
/// Most remembered rows without a mark, so that each is rejected once.
const UNMARKED_MAX: usize = 1_000;
/// The part with the time of the last query.
const ASKED: &str = "asked";

/// Its row in the table of kinds.
pub(crate) static KIND: KindDescription = KindDescription {
    name: "query",
    summary: "a repeated query of PostgreSQL, MySQL, MariaDB or SQLite with a high-water mark",
    schema: schema_of::<QueryOptions>,
    needs: &[SourceResource::NamedServers, SourceResource::DatabaseFiles],
    secrets: &[],
    location: Some(LocationDescription { event_options: &["fields"] }),
    check: check_of::<QueryOptions>,
    not_allowed: not_allowed_of::<QueryOptions>,
    open,
};

fn open(setting: SourceSettings, marks: Vec<Mark>) -> Opened {
    let options: QueryOptions = read(&setting.options, "")?;
    let value = |part: &str| marks.iter().find(|mark| &*mark.part == part)?.value.clone();
    let kept: Option<HighWaterMark> = stored(&marks, POSITION)?;
    // The mark of another column is meaningless for this one.
    let reached = match kept {
        Some(kept) if kept.column == options.mark => Some(kept.value),
        Some(kept) => {
            let (application, source) = (&setting.application, &setting.name);
            tracing::warn!(%application, %source, before = kept.column, now = options.mark, "the mark column has changed: the query restarts at `start`");
            None
        }
        None => value(REACHED).and_then(|text| String::from_utf8(text.to_vec()).ok()).map(SqlValue::Untyped),
    };
    Ok(Box::new(Query {
        due: PollSchedule::new(options.every.0, options.schedule.as_deref()),
        mapping: Mapping::new(&setting.output.fields(), &options.fields),
        // Rows accepted before a crash may not have had their `after` statement.
        after_due: reached.is_some() && options.after.is_some(),
        reached: reached.unwrap_or_else(|| SqlValue::of_option(options.start.as_deref())),
        is_untyped_stored: value(REACHED).is_some(),
        unmarked: HashSet::new(),
        asked: stored(&marks, ASKED)?,
        more: false,
        wakeup: Arc::default(),
        database: None,
        setting,
        options,
    }))
}

/// The state of the source.
struct Query {
    setting: SourceSettings,
    options: QueryOptions,
    mapping: Mapping,
    due: PollSchedule,
    database: Option<Box<dyn Database>>,
    wakeup: Arc<Notify>,
    reached: SqlValue,
    /// Whether the journal contains the mark of an older version, to be removed.
    is_untyped_stored: bool,
    /// Hashes of rejected rows whose mark is NULL.
    unmarked: HashSet<String>,
    asked: Option<Timestamp>,
    /// Whether the last query returned a full batch.
    more: bool,
    after_due: bool,
}

impl Query {
    async fn database(&mut self) -> Result<&mut Box<dyn Database>, SourceError> {
        if self.database.is_none() {
            let mut database =
                sql::connect(&self.options.database, self.options.timeout.0, &self.setting.context).await?;
            if let Some(channel) = &self.options.listen {
                database.listen(channel, self.wakeup.clone()).await?;
            }
            self.database = Some(database);
        }
        Ok(self.database.as_mut().expect("it is there now"))
    }

    async fn run_after(&mut self) -> Result<(), SourceError> {
        if let Some(after) = self.options.after.clone() {
            let reached = self.reached.clone();
            self.database().await?.run(&after, std::slice::from_ref(&reached)).await?;
        }
        self.after_due = false;
        Ok(())
    }

    async fn wait(&mut self) {
        if self.more {
            return;
        }
        let wakeup = self.wakeup.clone();
        tokio::select! {
            () = self.due.wait(self.asked, &self.setting.context.clock) => {}
            () = wakeup.notified() => {}
        }
    }

    async fn query_rows(&mut self, rows_max: usize) -> Result<Rows, SourceError> {
        let (query, column, mark) = (self.options.query.clone(), self.options.mark.clone(), self.reached.clone());
        let request = QueryRequest { query: &query, mark_column: Some(&column), mark: &mark, rows_max };
        self.database().await?.query(request).await
    }

    /// The rows beyond the mark, and how many of them are taken: rows with equal marks stay together.
    async fn rows(&mut self) -> Result<(Rows, usize), SourceError> {
        for rows_max in [BATCH_EVENTS_MAX, TIES_MAX] {
            let rows = self.query_rows(rows_max).await?;
            if let Some(count) = rows.whole_marks() {
                return Ok((rows, count));
            }
        }
        let column = &self.options.mark;
        Err(SourceError::of(format!(
            "more than {TIES_MAX} rows, or rows of more than 64 MiB, have one value in `{column}`, or none (NULL): use a mark \
             that is unique, or add `AND {column} IS NOT NULL` to the query"
        )))
    }

    fn batch(&mut self, rows: &Rows, count: usize) -> Result<SourceBatch, SourceError> {
        let mut builder = BatchBuilder::new(&self.setting.output);
        let mut reached = None;
        for at in 0..count {
            if rows.marks[at] == SqlValue::Null {
                self.reject_row(rows, at, &mut builder);
                continue;
            }
            rows.take_into(&mut builder, &self.mapping, at);
            reached = Some(&rows.marks[at]);
        }
        let mut batch = builder.finish();
        if let Some(reached) = reached {
            if self.reached == *reached {
                return Err(SourceError::of(format!(
                    "the query returns rows that are not beyond `{}`",
                    reached.shown()
                )));
            }
            let position = HighWaterMark { column: self.options.mark.clone(), value: reached.clone() };
            batch.marks.push(Mark::set(POSITION, serde_json::to_vec(&position).expect("it is JSON")));
            if std::mem::take(&mut self.is_untyped_stored) {
                batch.marks.push(Mark::delete(REACHED));
            }
            self.reached = reached.clone();
        }
        Ok(batch)
    }

    /// Rejects a row without a mark. Each query would return it, so it is rejected once.
    fn reject_row(&mut self, rows: &Rows, at: usize, builder: &mut BatchBuilder) {
        let shown = rows.item(at).shown();
        if self.unmarked.len() < UNMARKED_MAX && self.unmarked.insert(hash(&[&shown])) {
            let text = "is NULL, so the row has no mark and is not taken; give it a value, or exclude such rows";
            builder.reject(&[Problem::new(Code::Required, self.options.mark.as_str(), text)], shown);
        }
    }
}

/// The high-water mark, and its column.
#[derive(Debug, Serialize, Deserialize)]
struct HighWaterMark {
    column: String,
    value: SqlValue,
}

#[async_trait]
impl OpenSource for Query {
    async fn next(&mut self) -> Result<SourceBatch, SourceError> {
        if self.after_due {
            self.run_after().await?;
        }
        // Connects before waiting, so that errors are reported, and notifications are received.
        self.database().await?;
        self.wait().await;
        let now = self.setting.context.clock.now();
        let (rows, count) = self.rows().await?;
        let received_at = self.setting.context.clock.now();
        self.asked = Some(now);
        self.more = rows.more;
        let mut batch = self.batch(&rows, count)?;
        batch.received_at = Some(received_at);
        self.after_due = batch.marks.iter().any(|mark| &*mark.part == POSITION);
        batch.marks.push(Mark::set(ASKED, serde_json::to_vec(&now).expect("a time is JSON")));
        Ok(batch)
    }

    async fn accepted(&mut self) -> Result<(), SourceError> {
        if self.after_due { self.run_after().await } else { Ok(()) }
    }
}
