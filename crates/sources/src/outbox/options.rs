use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_connect::options::{Options, Wait};
use tocsin_model::{
    field::Fields,
    problem::{Code, Problem},
};

use crate::{description::SourceOptions, mapping::Mapping, source::Context, sql};

/// Options of a source of the kind `outbox`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["database", "table"]))]
pub struct OutboxOptions {
    /// Database: `postgres://user:${PASSWORD}@host/name`, `mysql://user:${PASSWORD}@host/name`, or
    /// `sqlite:/path/file.db` in a folder allowed by the configuration.
    pub database: String,
    /// Table; with a schema `schema.table`.
    pub table: String,
    /// Key column, which identifies a row and determines the order.
    pub key: String,
    /// Column that is NULL until a row is taken, then set to the time. Default: rows are deleted.
    pub taken: Option<String>,
    /// Column for each field of the event class. Default: the names of the fields.
    pub fields: BTreeMap<String, String>,
    /// Polling interval after the table was empty.
    pub every: Wait,
    /// A PostgreSQL channel; a `NOTIFY` on it triggers the next poll.
    pub listen: Option<String>,
    /// Time limit of a statement, and for connecting.
    pub timeout: Wait,
}

impl Default for OutboxOptions {
    fn default() -> Self {
        OutboxOptions {
            database: String::new(),
            table: String::new(),
            key: "id".to_owned(),
            taken: None,
            fields: BTreeMap::new(),
            every: Wait::seconds(5),
            listen: None,
            timeout: Wait::seconds(30),
        }
    }
}

impl Options for OutboxOptions {
    fn problems(&self) -> Vec<Problem> {
        let mut problems = sql::problems(&self.database);
        let names = [("table", Some(&self.table)), ("key", Some(&self.key)), ("taken", self.taken.as_ref())];
        for (option, name) in names {
            if name.is_some_and(|name| name.is_empty() || name.contains('\0') || name.contains(sql::PARAMETER)) {
                let code = if name.is_some_and(String::is_empty) { Code::Required } else { Code::InvalidFormat };
                problems.push(Problem::new(code, option, "is missing, or not a name"));
            }
        }
        problems
    }
}

impl SourceOptions for OutboxOptions {
    fn not_allowed(&self, context: &Context) -> Vec<Problem> {
        sql::not_allowed(&self.database, context)
    }

    fn mapping_problems(&self, fields: &Fields) -> Vec<Problem> {
        Mapping::problems(fields, &self.fields)
    }
}
