//! A connection for untrusted statements: it reads only the allowed tables, calls only deterministic functions, and
//! stops at a deadline.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rusqlite::{
    Connection,
    config::DbConfig,
    hooks::{AuthAction, AuthContext, Authorization},
    limits::Limit,
};
use tocsin_model::time::Timestamp;

use crate::queries::{
    functions::{self, HostFunction},
    texts::{self, VALUE_BYTES_MAX},
};

/// Instructions of SQLite between two checks of the deadline: microseconds, unless each of them creates a text of a
/// megabyte.
const STEPS_BETWEEN_CHECKS: i32 = 100;
/// Number of cached prepared statements.
const STATEMENTS_MAX: usize = 1_100;
/// Page cache, in KiB. Tables beyond this size are spilled to a temporary file.
const CACHE_KIB: i64 = 64 << 10;

/// Limits of one statement. SQLite reports which one was exceeded.
const LIMITS: [(Limit, i32); 8] = [
    (Limit::SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX as i32),
    (Limit::SQLITE_LIMIT_SQL_LENGTH, 64 << 10),
    (Limit::SQLITE_LIMIT_EXPR_DEPTH, 200),
    (Limit::SQLITE_LIMIT_COMPOUND_SELECT, 50),
    (Limit::SQLITE_LIMIT_VDBE_OP, 100_000),
    (Limit::SQLITE_LIMIT_ATTACHED, 0),
    (Limit::SQLITE_LIMIT_TRIGGER_DEPTH, 1),
    (Limit::SQLITE_LIMIT_WORKER_THREADS, 0),
];

/// Functions that a query may call, in alphabetical order. All are deterministic and without side effects; those of
/// dates and times are replaced by [`functions::register`], and some of texts by [`texts::register`]. `json_patch` is
/// missing since its time is proportional to the product of its argument lengths.
const FUNCTIONS: &[&str] = &[
    "->",
    "->>",
    "abs",
    "avg",
    "ceil",
    "char",
    "coalesce",
    "concat",
    "concat_ws",
    "count",
    "cume_dist",
    "current_date",
    "current_time",
    "current_timestamp",
    "date",
    "datetime",
    "dense_rank",
    "exp",
    "first_value",
    "floor",
    "format",
    "glob",
    "group_concat",
    "hex",
    "if",
    "ifnull",
    "iif",
    "instr",
    "json",
    "json_array",
    "json_array_length",
    "json_error_position",
    "json_extract",
    "json_group_array",
    "json_group_object",
    "json_insert",
    "json_object",
    "json_quote",
    "json_remove",
    "json_replace",
    "json_set",
    "json_type",
    "json_valid",
    "julianday",
    "lag",
    "last_value",
    "lead",
    "length",
    "like",
    "likelihood",
    "likely",
    "ln",
    "log10",
    "log2",
    "lower",
    "ltrim",
    "max",
    "min",
    "mod",
    "nth_value",
    "ntile",
    "nullif",
    "octet_length",
    "percent_rank",
    "pow",
    "printf",
    "quote",
    "rank",
    "replace",
    "round",
    "row_number",
    "rtrim",
    "sign",
    "sqrt",
    "strftime",
    "string_agg",
    "substr",
    "substring",
    "subtype",
    "sum",
    "time",
    "timediff",
    "total",
    "trim",
    "trunc",
    "typeof",
    "unhex",
    "unicode",
    "unixepoch",
    "unlikely",
    "upper",
];

/// Table-valued functions that a query may read.
const TABLE_FUNCTIONS: [&str; 2] = ["json_each", "json_tree"];

/// A guarded connection to a separate temporary database.
pub(super) struct GuardedConnection {
    pub connection: Connection,
    guard: Arc<Guard>,
}

/// State shared by the hooks of a connection and its owner.
struct Guard {
    /// Whether the current statement is untrusted.
    strict: AtomicBool,
    deadline: Mutex<Option<Instant>>,
    /// The value of `now`, in microseconds since 1970.
    now: Arc<AtomicI64>,
    log: Mutex<StatementLog>,
}

impl Guard {
    fn is_past_deadline(&self) -> bool {
        self.deadline.lock().is_some_and(|deadline| Instant::now() >= deadline)
    }
}

/// Record of the authorizer about a statement.
#[derive(Default)]
struct StatementLog {
    refused: Option<String>,
    reads: BTreeSet<(String, String)>,
}

/// Removes the restrictions when it is dropped.
struct ResetOnDrop<'a>(&'a Guard);

impl Drop for ResetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.strict.store(false, Ordering::Relaxed);
        *self.0.deadline.lock() = None;
    }
}

impl GuardedConnection {
    /// Opens an empty database. `tables` are those that queries may read.
    pub fn open(
        tables: impl IntoIterator<Item = String>,
        host: &'static [HostFunction],
    ) -> rusqlite::Result<GuardedConnection> {
        // A database without a name is kept in the page cache and in a temporary file that nobody else can open.
        let mut connection = Connection::open("")?;
        connection.pragma_update(None, "journal_mode", "MEMORY")?;
        connection.pragma_update(None, "synchronous", "OFF")?;
        connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
        // A misspelled column in double quotes is an error, not a text.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DML, false)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
        for (limit, most) in LIMITS {
            connection.set_limit(limit, most)?;
        }
        let modules = module_names(&connection)?;
        let guard = Arc::new(Guard {
            strict: AtomicBool::new(false),
            deadline: Mutex::default(),
            now: Arc::default(),
            log: Mutex::default(),
        });
        functions::register(&connection, guard.now.clone(), host)?;
        texts::register(&connection, {
            let guard = guard.clone();
            move || guard.is_past_deadline()
        })?;
        let authorizer = Authorizer { tables: tables.into_iter().collect(), modules, host };
        connection.authorizer(Some({
            let guard = guard.clone();
            move |context: AuthContext<'_>| {
                if !guard.strict.load(Ordering::Relaxed) {
                    return Authorization::Allow;
                }
                authorizer.decide(&context, &mut guard.log.lock())
            }
        }))?;
        connection.progress_handler(
            STEPS_BETWEEN_CHECKS,
            Some({
                let guard = guard.clone();
                move || guard.is_past_deadline()
            }),
        )?;
        Ok(GuardedConnection { connection, guard })
    }

    /// Sets the value of `now`.
    pub fn set_now(&self, now: Timestamp) {
        self.guard.now.store(now.0, Ordering::Relaxed);
    }

    /// Runs an untrusted statement with a time limit.
    pub fn run_untrusted<T>(&self, longest: Duration, act: impl FnOnce(&Connection) -> T) -> T {
        *self.guard.log.lock() = StatementLog::default();
        self.guard.strict.store(true, Ordering::Relaxed);
        self.run_with_deadline(longest, act)
    }

    /// Runs a trusted statement with a time limit.
    pub fn run_with_deadline<T>(&self, longest: Duration, act: impl FnOnce(&Connection) -> T) -> T {
        *self.guard.deadline.lock() = Instant::now().checked_add(longest);
        let _until_done = ResetOnDrop(&self.guard);
        act(&self.connection)
    }

    /// The refusal of the last untrusted statement, as text.
    pub fn refused(&self) -> Option<String> {
        self.guard.log.lock().refused.clone()
    }

    /// The tables and columns read by the last untrusted statement. The column is empty where only rows are counted.
    pub fn reads(&self) -> BTreeSet<(String, String)> {
        self.guard.log.lock().reads.clone()
    }
}

/// Decides whether an operation of a query is allowed.
struct Authorizer {
    tables: BTreeSet<String>,
    modules: BTreeSet<String>,
    host: &'static [HostFunction],
}

impl Authorizer {
    fn decide(&self, context: &AuthContext<'_>, log: &mut StatementLog) -> Authorization {
        let refusal = match context.action {
            AuthAction::Select | AuthAction::Recursive => None,
            AuthAction::Read { table_name, column_name } => {
                if self.may_read(table_name, column_name) {
                    log.reads.insert((table_name.to_owned(), column_name.to_owned()));
                    None
                } else {
                    Some(format!("may not read `{table_name}`"))
                }
            }
            AuthAction::Function { function_name } => {
                let name = function_name.to_ascii_lowercase();
                let known =
                    FUNCTIONS.contains(&name.as_str()) || self.host.iter().any(|function| function.name == name);
                (!known).then(|| format!("may not call `{function_name}`"))
            }
            AuthAction::Insert { .. } | AuthAction::Update { .. } | AuthAction::Delete { .. } => {
                Some("may not change anything".to_owned())
            }
            AuthAction::Pragma { pragma_name, .. } => Some(format!("may not use the pragma `{pragma_name}`")),
            AuthAction::Attach { .. } | AuthAction::Detach { .. } => Some("may not use other databases".to_owned()),
            AuthAction::Transaction { .. } | AuthAction::Savepoint { .. } => {
                Some("may not begin or end transactions".to_owned())
            }
            _ => Some("may not create, alter or drop anything".to_owned()),
        };
        match refusal {
            None => Authorization::Allow,
            Some(refusal) => {
                log.refused.get_or_insert(refusal);
                Authorization::Deny
            }
        }
    }

    fn may_read(&self, table: &str, column: &str) -> bool {
        if self.tables.contains(table) || TABLE_FUNCTIONS.contains(&table) {
            return true;
        }
        let lower = table.to_ascii_lowercase();
        // Without a column it may be a table expression of the query itself, of which nothing is read.
        column.is_empty()
            && !lower.starts_with("sqlite_")
            && !lower.starts_with("pragma_")
            && !self.modules.contains(&lower)
    }
}

fn module_names(connection: &Connection) -> rusqlite::Result<BTreeSet<String>> {
    let mut statement = connection.prepare("SELECT lower(name) FROM pragma_module_list")?;
    let names = statement.query_map([], |row| row.get(0))?;
    names.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_unique_and_in_order() {
        assert!(FUNCTIONS.windows(2).all(|pair| pair[0] < pair[1]), "{FUNCTIONS:?}");
    }

    #[test]
    fn every_listed_function_exists() {
        let guarded = GuardedConnection::open([], &[]).expect("a database");
        let sql = "SELECT DISTINCT name FROM pragma_function_list";
        let mut statement = guarded.connection.prepare(sql).expect("a statement");
        let known = statement.query_map([], |row| row.get(0)).expect("rows").collect::<Result<BTreeSet<String>, _>>();
        let known = known.expect("names");
        let missing: Vec<_> = FUNCTIONS.iter().filter(|name| !known.contains(**name)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
