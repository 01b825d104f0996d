use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_delivery::options::{Options, Wait};
use tocsin_model::{field::Fields, problem::Problem};

use crate::{kind::SourceOptions, mapping::Mapping, source::Context, sql};

/// Options of a source of the kind `outbox`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["database", "table"]))]
pub struct OutboxOptions {
    /// The database: `postgres://user:${PASSWORD}@host/name`, `mysql://user:${PASSWORD}@host/name`, or
    /// `sqlite:/path/file.db` in a folder that the configuration opens.
    pub database: String,
    /// The table; with its schema `schema.table`.
    pub table: String,
    /// The column by which a row is known, and in whose order rows are taken.
    pub key: String,
    /// A column that is NULL until a row is taken, and gets the time then. Without it rows are deleted.
    pub taken: Option<String>,
    /// Which column each field of the event class comes from. Without it fields come from the columns of their names.
    pub fields: BTreeMap<String, String>,
    /// How long after the table was empty it is looked into again.
    pub every: Wait,
    /// A channel of PostgreSQL; a `NOTIFY` on it brings the next look forward.
    pub listen: Option<String>,
    /// Time for a statement, and to connect.
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
                problems.push(Problem::at(option, "is missing, or not a name"));
            }
        }
        problems
    }
}

impl SourceOptions for OutboxOptions {
    fn closed(&self, context: &Context) -> Vec<Problem> {
        sql::closed(&self.database, context)
    }

    fn misfits(&self, fields: &Fields) -> Vec<Problem> {
        Mapping::problems(fields, &self.fields)
    }
}
