//! A query that is made again and again, each time for what is beyond a high-water mark.
//!
//! It suits tables whose rows become visible in the order of the mark. Where transactions overlap, a row with a smaller
//! number may be committed after one with a greater was taken, and is then never seen: for those there is `outbox`.

mod options; // what an operator may set

#[cfg(test)]
mod tests;

use std::{collections::HashSet, sync::Arc};

use async_trait::async_trait;
pub use options::QueryOptions;
use serde::{Deserialize, Serialize};
use tocsin_delivery::options::read;
use tocsin_model::{mark::Mark, problem::Problem, time::Timestamp};
use tokio::sync::Notify;

use crate::{
    due::Due,
    known::hash,
    mapping::Mapping,
    source::{OpenSource, PORTION_EVENTS_MAX, Portion, Setting, Trouble, stored},
    sql::{self, Ask, Database, Rows, SqlValue, TIES_MAX},
    tray::Tray,
};

/// The part with the high-water mark: a [`Reached`].
const POSITION: &str = "position";
/// The part in which versions before kept the high-water mark as a text, whatever type it had.
const REACHED: &str = "reached";
/// Most rows without a mark that are remembered, so that each is set aside once.
const UNMARKED_MAX: usize = 1_000;
/// The part with the time of the last query.
const ASKED: &str = "asked";

pub(crate) fn open(setting: Setting, marks: Vec<Mark>) -> Result<Box<dyn OpenSource>, Vec<Problem>> {
    let options: QueryOptions = read(&setting.options, "")?;
    let value = |part: &str| marks.iter().find(|mark| &*mark.part == part)?.value.clone();
    let kept: Option<Reached> = stored(&marks, POSITION)?;
    // The mark of another column says nothing of this one.
    let reached = match kept {
        Some(kept) if kept.column == options.mark => Some(kept.value),
        Some(kept) => {
            let (application, source) = (&setting.application, &setting.name);
            tracing::warn!(%application, %source, before = kept.column, now = options.mark, "the mark column is another: the query begins anew at `start`");
            None
        }
        None => value(REACHED).and_then(|text| String::from_utf8(text.to_vec()).ok()).map(SqlValue::Untyped),
    };
    Ok(Box::new(Query {
        due: Due::new(options.every.0, options.schedule.as_deref()),
        mapping: Mapping::new(&setting.gives.fields(), &options.fields),
        // Rows that were accepted before a crash may not have had their statement.
        after_due: reached.is_some() && options.after.is_some(),
        reached: reached.unwrap_or_else(|| SqlValue::of_option(options.start.as_deref())),
        is_untyped_stored: value(REACHED).is_some(),
        unmarked: HashSet::new(),
        asked: stored(&marks, ASKED)?,
        more: false,
        bell: Arc::default(),
        database: None,
        setting,
        options,
    }))
}

/// A query that is made again and again.
struct Query {
    setting: Setting,
    options: QueryOptions,
    mapping: Mapping,
    due: Due,
    database: Option<Box<dyn Database>>,
    bell: Arc<Notify>,
    reached: SqlValue,
    /// Whether the journal has the mark of a version before, which is to be forgotten.
    is_untyped_stored: bool,
    /// Hashes of rows whose mark is NULL, which are set aside already.
    unmarked: HashSet<String>,
    asked: Option<Timestamp>,
    /// Whether the last query gave as many rows as are taken at once.
    more: bool,
    after_due: bool,
}

impl Query {
    async fn database(&mut self) -> Result<&mut Box<dyn Database>, Trouble> {
        if self.database.is_none() {
            let mut database =
                sql::connect(&self.options.database, self.options.timeout.0, &self.setting.context).await?;
            if let Some(channel) = &self.options.listen {
                database.listen(channel, self.bell.clone()).await?;
            }
            self.database = Some(database);
        }
        Ok(self.database.as_mut().expect("it is there now"))
    }

    async fn run_after(&mut self) -> Result<(), Trouble> {
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
        let bell = self.bell.clone();
        tokio::select! {
            () = self.due.wait(self.asked, &self.setting.context.clock) => {}
            () = bell.notified() => {}
        }
    }

    async fn ask(&mut self, rows_max: usize) -> Result<Rows, Trouble> {
        let (query, column, mark) = (self.options.query.clone(), self.options.mark.clone(), self.reached.clone());
        let ask = Ask { query: &query, mark_column: Some(&column), mark: &mark, rows_max };
        self.database().await?.query(ask).await
    }

    /// The rows beyond the mark, and how many of them are taken: none of which another one with the same mark is left.
    async fn rows(&mut self) -> Result<(Rows, usize), Trouble> {
        for rows_max in [PORTION_EVENTS_MAX, TIES_MAX] {
            let rows = self.ask(rows_max).await?;
            if let Some(count) = rows.whole_marks() {
                return Ok((rows, count));
            }
        }
        let column = &self.options.mark;
        Err(Trouble::of(format!(
            "more than {TIES_MAX} rows, or rows of more than 64 MiB, have one value in `{column}`, or none (NULL): use a mark \
             that is unique, or add `AND {column} IS NOT NULL` to the query"
        )))
    }

    fn portion(&mut self, rows: &Rows, count: usize) -> Result<Portion, Trouble> {
        let mut tray = Tray::new(&self.setting.gives);
        let mut reached = None;
        for at in 0..count {
            if rows.marks[at] == SqlValue::Null {
                self.set_aside(rows, at, &mut tray);
                continue;
            }
            rows.take_into(&mut tray, &self.mapping, at);
            reached = Some(&rows.marks[at]);
        }
        let mut portion = tray.finish();
        if let Some(reached) = reached {
            if self.reached == *reached {
                return Err(Trouble::of(format!("the query gives rows that are not beyond `{}`", reached.shown())));
            }
            let position = Reached { column: self.options.mark.clone(), value: reached.clone() };
            portion.marks.push(Mark::set(POSITION, serde_json::to_vec(&position).expect("it is JSON")));
            if std::mem::take(&mut self.is_untyped_stored) {
                portion.marks.push(Mark::forget(REACHED));
            }
            self.reached = reached.clone();
        }
        Ok(portion)
    }

    /// A row without a mark would be given with each query, so it is no event. It is set aside once.
    fn set_aside(&mut self, rows: &Rows, at: usize, tray: &mut Tray) {
        let shown = rows.item(at).shown();
        if self.unmarked.len() < UNMARKED_MAX && self.unmarked.insert(hash(&[&shown])) {
            let text = "is NULL, so the row has no mark and is not taken; give it a value, or leave such rows out";
            tray.refuse(&[Problem::at(self.options.mark.as_str(), text)], shown);
        }
    }
}

/// The high-water mark, and the column that it is of.
#[derive(Debug, Serialize, Deserialize)]
struct Reached {
    column: String,
    value: SqlValue,
}

#[async_trait]
impl OpenSource for Query {
    async fn next(&mut self) -> Result<Portion, Trouble> {
        if self.after_due {
            self.run_after().await?;
        }
        // Connected before it waits, so that trouble is known, and notifications are heard.
        self.database().await?;
        self.wait().await;
        let now = self.setting.context.clock.now();
        let (rows, count) = self.rows().await?;
        let received_at = self.setting.context.clock.now();
        self.asked = Some(now);
        self.more = rows.more;
        let mut portion = self.portion(&rows, count)?;
        portion.received_at = Some(received_at);
        self.after_due = portion.marks.iter().any(|mark| &*mark.part == POSITION);
        portion.marks.push(Mark::set(ASKED, serde_json::to_vec(&now).expect("a time is JSON")));
        Ok(portion)
    }

    async fn accepted(&mut self) -> Result<(), Trouble> {
        if self.after_due { self.run_after().await } else { Ok(()) }
    }
}
