//! A connection that may be asked what somebody else wrote: it only reads the tables it is meant to read, calls only
//! functions whose answers depend on nothing but what they are given, and stops at a deadline.

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

use super::{
    functions::{self, HostFunction},
    texts,
};

/// Steps of SQLite's machine between two looks at the clock: microseconds, but where each of them makes a text of a
/// megabyte.
const STEPS_BETWEEN_LOOKS: i32 = 100;
/// Longest text or JSON of a query, in bytes.
pub(super) const VALUE_BYTES_MAX: usize = 2 << 20;
/// Statements that stay prepared.
const STATEMENTS_MAX: usize = 1_100;
/// Page cache, in KiB. What the tables need beyond it is spilled to a temporary file.
const CACHE_KIB: i64 = 64 << 10;

/// Bounds of what one statement may be. SQLite names what exceeds one.
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

/// Functions that a query may call, in the order of the alphabet. Each gives the same for the same, and none reaches out
/// of the query; those of dates and times are replaced by [`functions::register`], and some of texts by
/// [`texts::register`]. `json_patch` is none of them: its time grows with the product of what it is given.
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

/// A guarded connection to a database of its own, which is gone with it.
pub(super) struct Guarded {
    pub connection: Connection,
    guard: Arc<Guard>,
}

/// What the hooks of a connection share with its owner.
struct Guard {
    /// Whether what is prepared or run now was written by somebody else.
    strict: AtomicBool,
    deadline: Mutex<Option<Instant>>,
    /// What `now` means, in microseconds since 1970.
    now: Arc<AtomicI64>,
    said: Mutex<Said>,
}

impl Guard {
    fn is_over(&self) -> bool {
        self.deadline.lock().is_some_and(|deadline| Instant::now() >= deadline)
    }
}

/// What the authorizer has seen of a statement.
#[derive(Default)]
struct Said {
    refused: Option<String>,
    reads: BTreeSet<(String, String)>,
}

/// Lifts what bounds the connection when it goes.
struct Bounds<'a>(&'a Guard);

impl Drop for Bounds<'_> {
    fn drop(&mut self) {
        self.0.strict.store(false, Ordering::Relaxed);
        *self.0.deadline.lock() = None;
    }
}

impl Guarded {
    /// Opens an empty database. `tables` are those that queries may read.
    pub fn open(tables: impl IntoIterator<Item = String>, host: &'static [HostFunction]) -> rusqlite::Result<Guarded> {
        // A database without a name lives in its page cache and in a temporary file that nobody else can open.
        let mut connection = Connection::open("")?;
        connection.pragma_update(None, "journal_mode", "MEMORY")?;
        connection.pragma_update(None, "synchronous", "OFF")?;
        connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
        // A misspelt column in double quotes is an error, not a text.
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
            said: Mutex::default(),
        });
        functions::register(&connection, guard.now.clone(), host)?;
        texts::register(&connection, {
            let guard = guard.clone();
            move || guard.is_over()
        })?;
        let judge = Judge { tables: tables.into_iter().collect(), modules, host };
        connection.authorizer(Some({
            let guard = guard.clone();
            move |context: AuthContext<'_>| {
                if !guard.strict.load(Ordering::Relaxed) {
                    return Authorization::Allow;
                }
                judge.decide(&context, &mut guard.said.lock())
            }
        }))?;
        connection.progress_handler(
            STEPS_BETWEEN_LOOKS,
            Some({
                let guard = guard.clone();
                move || guard.is_over()
            }),
        )?;
        Ok(Guarded { connection, guard })
    }

    /// Says what `now` means from here on.
    pub fn set_now(&self, now: Timestamp) {
        self.guard.now.store(now.0, Ordering::Relaxed);
    }

    /// Does something with a statement that somebody else wrote, for at most this long.
    pub fn strictly<T>(&self, longest: Duration, act: impl FnOnce(&Connection) -> T) -> T {
        *self.guard.said.lock() = Said::default();
        self.guard.strict.store(true, Ordering::Relaxed);
        self.briefly(longest, act)
    }

    /// Does something of ours for at most this long.
    pub fn briefly<T>(&self, longest: Duration, act: impl FnOnce(&Connection) -> T) -> T {
        *self.guard.deadline.lock() = Instant::now().checked_add(longest);
        let _until_done = Bounds(&self.guard);
        act(&self.connection)
    }

    /// What was refused in the last `strictly`, in words.
    pub fn refused(&self) -> Option<String> {
        self.guard.said.lock().refused.clone()
    }

    /// The tables and columns read by what was prepared in the last `strictly`. The column is empty where only rows count.
    pub fn reads(&self) -> BTreeSet<(String, String)> {
        self.guard.said.lock().reads.clone()
    }
}

/// Decides what a query may do.
struct Judge {
    tables: BTreeSet<String>,
    modules: BTreeSet<String>,
    host: &'static [HostFunction],
}

impl Judge {
    fn decide(&self, context: &AuthContext<'_>, said: &mut Said) -> Authorization {
        let refusal = match context.action {
            AuthAction::Select | AuthAction::Recursive => None,
            AuthAction::Read { table_name, column_name } => {
                if self.may_read(table_name, column_name) {
                    said.reads.insert((table_name.to_owned(), column_name.to_owned()));
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
            _ => Some("may not make, alter or drop anything".to_owned()),
        };
        match refusal {
            None => Authorization::Allow,
            Some(refusal) => {
                said.refused.get_or_insert(refusal);
                Authorization::Deny
            }
        }
    }

    fn may_read(&self, table: &str, column: &str) -> bool {
        if self.tables.contains(table) || TABLE_FUNCTIONS.contains(&table) {
            return true;
        }
        let lower = table.to_ascii_lowercase();
        // Without a column it may be a table expression of the query itself, of which nothing was read.
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
    fn functions_are_listed_once_and_in_order() {
        assert!(FUNCTIONS.windows(2).all(|pair| pair[0] < pair[1]), "{FUNCTIONS:?}");
    }

    #[test]
    fn every_listed_function_exists() {
        let guarded = Guarded::open([], &[]).expect("a database");
        let sql = "SELECT DISTINCT name FROM pragma_function_list";
        let mut statement = guarded.connection.prepare(sql).expect("a statement");
        let known = statement.query_map([], |row| row.get(0)).expect("rows").collect::<Result<BTreeSet<String>, _>>();
        let known = known.expect("names");
        let missing: Vec<_> = FUNCTIONS.iter().filter(|name| !known.contains(**name)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
