//! A query that is made again and again, each time for what is beyond a high-water mark.
//!
//! It suits tables whose rows become visible in the order of the mark. Where transactions overlap, a row with a smaller
//! number may be committed after one with a greater was taken, and is then never seen: for those there is `outbox`.

mod options; // what an operator may set

#[cfg(test)]
mod tests;

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
pub use options::QueryOptions;
use tocsin_delivery::options::read;
use tocsin_model::{mark::Mark, problem::Problem, time::Timestamp};
use tokio::sync::Notify;

use crate::{
    due::Due,
    mapping::Mapping,
    source::{OpenSource, Portion, Setting, Trouble},
    sql::{self, Database, Rows},
    tray::Tray,
};

/// The part with the high-water mark.
const REACHED: &str = "reached";
/// The part with the time of the last query.
const ASKED: &str = "asked";

pub(crate) fn open(setting: Setting, marks: Vec<Mark>) -> Result<Box<dyn OpenSource>, Vec<Problem>> {
    let options: QueryOptions = read(&setting.options, "")?;
    let value = |part: &str| marks.iter().find(|mark| &*mark.part == part)?.value.clone();
    let reached = value(REACHED).and_then(|text| String::from_utf8(text.to_vec()).ok());
    Ok(Box::new(Query {
        due: Due::new(options.every.0, options.schedule.as_deref()),
        mapping: Mapping::new(&setting.gives.fields(), &options.fields),
        // Whatever was accepted before a crash may not have had its statement.
        after_due: reached.is_some() && options.after.is_some(),
        reached: reached.or_else(|| options.start.clone()),
        asked: value(ASKED).and_then(|text| serde_json::from_slice(&text).ok()),
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
    reached: Option<String>,
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
            self.database().await?.run(&after, &[reached]).await?;
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

    fn portion(&mut self, rows: &Rows) -> Result<Portion, Trouble> {
        let column = rows.column(&self.options.mark)?;
        let mut tray = Tray::new(&self.setting.gives);
        for at in 0..rows.rows.len() {
            tray.take(&self.mapping, || rows.item(at), || rows.message(at), None);
        }
        let mut portion = tray.finish();
        if let Some(last) = rows.rows.last() {
            let Some(reached) = last[column].clone() else {
                return Err(Trouble::of(format!("the column `{}` of the last row is NULL", self.options.mark)));
            };
            if self.reached.as_ref() == Some(&reached) {
                return Err(Trouble::of(format!("the query gives rows that are not beyond `{reached}`")));
            }
            portion.marks.push(Mark::set(REACHED, Bytes::from(reached.clone())));
            self.reached = Some(reached);
        }
        Ok(portion)
    }
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
        let (query, reached) = (self.options.query.clone(), self.reached.clone());
        let rows = self.database().await?.query(&query, reached.as_deref()).await?;
        self.asked = Some(now);
        self.more = rows.more;
        let mut portion = self.portion(&rows)?;
        portion.marks.push(Mark::set(ASKED, serde_json::to_vec(&now).expect("a time is JSON")));
        self.after_due = !rows.rows.is_empty();
        Ok(portion)
    }

    async fn accepted(&mut self) -> Result<(), Trouble> {
        if self.after_due { self.run_after().await } else { Ok(()) }
    }
}
