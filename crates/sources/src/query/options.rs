use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_connect::options::{Options, Wait};
use tocsin_model::{
    field::Fields,
    problem::{Code, Problem},
};

use crate::{description::SourceOptions, due::PollSchedule, mapping::Mapping, source::Context, sql};

/// Options of a source of the kind `query`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["database", "query", "mark"]))]
pub struct QueryOptions {
    /// Database: `postgres://user:${PASSWORD}@host/name`, `mysql://user:${PASSWORD}@host/name`, or
    /// `sqlite:/path/file.db` in a folder allowed by the configuration.
    pub database: String,
    /// Read-only query, with `:mark` for the high-water mark, ordered by it: `SELECT id, place FROM quakes WHERE id >
    /// :mark ORDER BY id`.
    pub query: String,
    /// Column of the high-water mark: its value in the last row is the next mark. It must be unique and increasing.
    pub mark: String,
    /// Initial high-water mark; default NULL.
    pub start: Option<String>,
    /// Statement that is executed after rows are accepted, such as `UPDATE quakes SET done = TRUE WHERE id <= :mark`.
    /// After a crash it may be repeated.
    pub after: Option<String>,
    /// Column for each field of the event class. Default: the names of the fields.
    pub fields: BTreeMap<String, String>,
    /// Polling interval after a query that returned all available rows.
    pub every: Wait,
    /// Schedule of queries, instead of `every`: in the form of rule schedules. Missed times are made up for once.
    pub schedule: Option<String>,
    /// A PostgreSQL channel; a `NOTIFY` on it triggers the next query.
    pub listen: Option<String>,
    /// Time limit of a statement, and for connecting.
    pub timeout: Wait,
}

impl Default for QueryOptions {
    fn default() -> Self {
        QueryOptions {
            database: String::new(),
            query: String::new(),
            mark: String::new(),
            start: None,
            after: None,
            fields: BTreeMap::new(),
            every: Wait::seconds(60),
            schedule: None,
            listen: None,
            timeout: Wait::seconds(30),
        }
    }
}

impl Options for QueryOptions {
    fn problems(&self) -> Vec<Problem> {
        let mut problems = sql::problems(&self.database);
        problems.extend(PollSchedule::problems(self.schedule.as_deref()));
        match self.query.is_empty() {
            true => problems.push(Problem::new(Code::Required, "query", "is missing")),
            false => problems.extend(sql::statement_problem("query", &self.query)),
        }
        if self.mark.is_empty() {
            problems.push(
                Problem::new(Code::Required, "mark", "is missing: the column of the high-water mark")
                    .hint("such as `id`"),
            );
        }
        problems
    }
}

impl SourceOptions for QueryOptions {
    fn not_allowed(&self, context: &Context) -> Vec<Problem> {
        sql::not_allowed(&self.database, context)
    }

    fn mapping_problems(&self, fields: &Fields) -> Vec<Problem> {
        Mapping::problems(fields, &self.fields)
    }
}
