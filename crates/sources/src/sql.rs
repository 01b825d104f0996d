//! SQL databases: SQLite, PostgreSQL, MySQL and MariaDB. Rows are names and texts, which the mapping parses as the
//! types of the event class. Marks and keys keep the type of the database ([`SqlValue`]).
//!
//! A statement is a single statement; its mark or key is its parameter. Queries run in a read-only transaction, with a
//! time limit enforced by the database.

mod value; // marks and keys, with their database types
mod statement; // statements of an operator, with one parameter
mod rows; // a query, and its rows within the bounds of a batch
mod database; // the interface of all databases
mod mysql; // MySQL and MariaDB
mod postgres; // PostgreSQL
mod sqlite; // SQLite

#[cfg(test)]
pub(crate) mod servers;

use std::time::Duration;

use tocsin_model::problem::{Code, Problem};
use url::Url;

pub(crate) use self::{
    database::Database,
    rows::{QueryRequest, Rows, TIES_MAX},
    statement::{PARAMETER, statement_problem},
    value::SqlValue,
};
use crate::source::{Context, SourceError};

/// Problems of a database address.
pub(crate) fn problems(address: &str) -> Vec<Problem> {
    if address.is_empty() {
        return vec![Problem::new(Code::Required, "database", "is missing: the address of the database")];
    }
    let hint = "such as `postgres://user:${PASSWORD}@host/name`, `mysql://user:${PASSWORD}@host/name` or `sqlite:/path/file.db`";
    match Url::parse(address) {
        Ok(url) if matches!(url.scheme(), "postgres" | "postgresql" | "mysql" | "mariadb") && url.has_host() => {
            Vec::new()
        }
        Ok(url) if url.scheme() == "sqlite" && !url.path().is_empty() => Vec::new(),
        _ => vec![
            Problem::new(Code::InvalidFormat, "database", "is not the address of a database")
                .param("format", "url")
                .hint(hint),
        ],
    }
}

/// Connects to the database.
///
/// # Errors
/// The server does not respond or refuses, with its message. The address is not included, since it may contain a
/// password.
pub(crate) async fn connect(
    address: &str,
    timeout: Duration,
    context: &Context,
) -> Result<Box<dyn Database>, SourceError> {
    let url =
        Url::parse(address).map_err(|error| SourceError::new("the address of the database cannot be read", error))?;
    let connecting = async {
        Ok::<Box<dyn Database>, SourceError>(match url.scheme() {
            "sqlite" => Box::new(sqlite::Sqlite::open(url.path(), timeout, context)?),
            "mysql" | "mariadb" => Box::new(mysql::Mysql::connect(&url, timeout).await?),
            _ => Box::new(postgres::Postgres::connect(&url, timeout).await?),
        })
    };
    match tokio::time::timeout(timeout, connecting).await {
        Ok(connected) => connected,
        Err(_) => Err(SourceError::of("the database does not answer in time")),
    }
}

/// Parts of a database address that the configuration does not allow: the folder of a file. Servers are checked at
/// connection time.
pub(crate) fn not_allowed(address: &str, context: &Context) -> Vec<Problem> {
    let file = Url::parse(address).ok().filter(|url| url.scheme() == "sqlite");
    let checked = file.map(|url| sqlite::check_path(url.path(), context));
    checked.and_then(Result::err).map(|text| Problem::new(Code::NotAllowed, "database", text)).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_must_be_of_databases() {
        for good in ["postgres://a:b@c/d", "mysql://a@c:3307/d", "sqlite:/a/b.db", "mariadb://c/d"] {
            assert!(problems(good).is_empty(), "{good}");
        }
        for wrong in ["", "a", "http://a/b", "postgres:", "oracle://a/b"] {
            assert_eq!(problems(wrong).len(), 1, "{wrong}");
        }
    }
}
