use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_delivery::options::{Options, Wait};
use tocsin_model::{field::Fields, problem::Problem};

use crate::{due::Due, kind::SourceOptions, mapping::Mapping, source::Context, sql};

/// Options of a source of the kind `query`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["database", "query", "mark"]))]
pub struct QueryOptions {
    /// The database: `postgres://user:${PASSWORD}@host/name`, `mysql://user:${PASSWORD}@host/name`, or
    /// `sqlite:/path/file.db` in a folder that the configuration opens.
    pub database: String,
    /// One query, with `:mark` where the high-water mark stands, in the order of the mark:
    /// `SELECT id, place FROM quakes WHERE id > :mark ORDER BY id`. It cannot write.
    pub query: String,
    /// The column whose value in the last row is the next high-water mark. No two rows may have the same, and it must grow.
    pub mark: String,
    /// The first high-water mark; without it NULL.
    pub start: Option<String>,
    /// A statement that is run when rows are accepted, such as `UPDATE quakes SET told = TRUE WHERE id <= :mark`. After a crash
    /// it may run once more.
    pub after: Option<String>,
    /// Which column each field of the event class comes from. Without it columns have the names of the fields.
    pub fields: BTreeMap<String, String>,
    /// How long after a query that gave all there was the next is made.
    pub every: Wait,
    /// When queries are made, in place of `every`: a schedule as rules have it. What was missed is made up for once.
    pub schedule: Option<String>,
    /// A channel of PostgreSQL; a `NOTIFY` on it brings the next query forward.
    pub listen: Option<String>,
    /// Time for a statement, and to connect.
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
        problems.extend(Due::problems(self.schedule.as_deref()));
        match self.query.is_empty() {
            true => problems.push(Problem::at("query", "is missing: what is asked?")),
            false => problems.extend(sql::statement_problem("query", &self.query)),
        }
        if self.mark.is_empty() {
            problems.push(Problem::at("mark", "is missing: which column grows?").hint("such as `id`"));
        }
        problems
    }
}

impl SourceOptions for QueryOptions {
    fn closed(&self, context: &Context) -> Vec<Problem> {
        sql::closed(&self.database, context)
    }

    fn misfits(&self, fields: &Fields) -> Vec<Problem> {
        Mapping::problems(fields, &self.fields)
    }
}
