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

use std::{path::Path, time::Duration};

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
    for path in local_paths(&url) {
        check_path(&path, context).map_err(SourceError::of)?;
    }
    let connecting = async {
        Ok::<Box<dyn Database>, SourceError>(match url.scheme() {
            "sqlite" => Box::new(sqlite::Sqlite::open(url.path(), timeout)?),
            "mysql" | "mariadb" => Box::new(mysql::Mysql::connect(&url, timeout).await?),
            _ => Box::new(postgres::Postgres::connect(&url, timeout).await?),
        })
    };
    match tokio::time::timeout(timeout, connecting).await {
        Ok(connected) => connected,
        Err(_) => Err(SourceError::of("the database does not answer in time")),
    }
}

/// Parts of a database address that the configuration does not allow: the folders of files and of local sockets.
pub(crate) fn not_allowed(address: &str, context: &Context) -> Vec<Problem> {
    let Ok(url) = Url::parse(address) else { return Vec::new() };
    let refused = local_paths(&url).into_iter().filter_map(|path| check_path(&path, context).err());
    refused.map(|text| Problem::new(Code::NotAllowed, "database", text)).collect()
}

/// Files and local sockets that an address names: a SQLite file, `socket` of MySQL, a `host` of PostgreSQL that is a
/// path, in the place of the host or as a parameter.
fn local_paths(url: &Url) -> Vec<String> {
    let parameter = |name: &str| {
        let named = url.query_pairs().filter(|(given, _)| given == name).map(|(_, value)| value.into_owned());
        named.collect::<Vec<_>>()
    };
    match url.scheme() {
        "sqlite" => vec![url.path().to_owned()],
        "mysql" | "mariadb" => parameter("socket"),
        _ => {
            let decode = |host: &str| percent_encoding::percent_decode_str(host).decode_utf8_lossy().into_owned();
            let host = url.host_str().map(decode);
            // PostgreSQL names the folder of its socket.
            let hosts = host.into_iter().chain(parameter("host"));
            let listed = hosts.flat_map(|hosts| hosts.split(',').map(str::to_owned).collect::<Vec<_>>());
            listed.filter(|host| host.starts_with('/')).map(|folder| format!("{folder}/.s.PGSQL")).collect()
        }
    }
}

/// Checks whether a file or a local socket may be used: its folder must be open to sources. The error is the reason.
fn check_path(path: &str, context: &Context) -> Result<(), String> {
    let folder = Path::new(path).parent().unwrap_or(Path::new("/"));
    context.folders.resolve_allowed(folder, &context.data_folder).map(|_| ())
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

    #[test]
    fn files_and_local_sockets_need_an_open_folder() {
        for (address, paths) in [
            ("sqlite:/a/b.db", vec!["/a/b.db"]),
            ("mysql://a@c/d?socket=/run/mysqld/mysqld.sock", vec!["/run/mysqld/mysqld.sock"]),
            ("mariadb://a@c/d?prefer_socket=true&socket=%2Frun%2Fm.sock", vec!["/run/m.sock"]),
            ("postgres://a@%2Frun%2Fpostgresql/d", vec!["/run/postgresql/.s.PGSQL"]),
            ("postgres://a@b/d?host=c,/tmp", vec!["/tmp/.s.PGSQL"]),
            ("postgres://a@b/d", vec![]),
            ("mysql://a@c/d", vec![]),
        ] {
            assert_eq!(local_paths(&Url::parse(address).expect("a URL")), paths, "{address}");
        }
    }
}
