//! Query functions that SQLite lacks, or whose SQLite versions depend on the current time and the time zone.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use parking_lot::Mutex;
use rusqlite::{
    Connection, Error,
    functions::{Context, FunctionFlags},
    types::{Value as Sql, ValueRef},
};
use tocsin_model::{time::Timestamp, value::Value};

use super::values;

/// A function provided by the caller to queries: deterministic and fast.
#[derive(Debug, Clone, Copy)]
pub struct HostFunction {
    /// Its name, in lower case.
    pub name: &'static str,
    /// Number of arguments. If one of them is null, the result is null and the function is not called.
    pub arguments: i32,
    /// Returns the result, or the reason why there is none, which fails the query.
    pub call: fn(&[Value]) -> Result<Value, String>,
}

/// SQLite's functions of dates and times. `now` is a given time, so that a query returns the same result when it is
/// repeated, independently of the time zone of the machine.
const OF_TIME: [&str; 7] = ["date", "datetime", "julianday", "strftime", "time", "timediff", "unixepoch"];
const OF_THE_PRESENT: [(&str, &str); 3] =
    [("current_date", "date"), ("current_time", "time"), ("current_timestamp", "datetime")];

/// A function with its name in SQL.
type NamedFunction<F> = (&'static str, F);
type OfNumber = fn(f64) -> f64;
type OfNumbers = fn(f64, f64) -> f64;

/// Mathematical functions that return null if there is no result. SQLite may have been built without them.
const OF_NUMBERS: [NamedFunction<OfNumber>; 8] = [
    ("ceil", f64::ceil),
    ("exp", f64::exp),
    ("floor", f64::floor),
    ("ln", f64::ln),
    ("log10", f64::log10),
    ("log2", f64::log2),
    ("sqrt", f64::sqrt),
    ("trunc", f64::trunc),
];
const OF_TWO_NUMBERS: [NamedFunction<OfNumbers>; 2] = [("mod", |number, by| number % by), ("pow", f64::powf)];

pub(super) fn register(
    connection: &Connection,
    now: Arc<AtomicI64>,
    host: &'static [HostFunction],
) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    let time_functions =
        Arc::new(Mutex::new(TimeFunctions { connection: Connection::open_in_memory()?, sql: HashMap::new() }));
    for name in OF_TIME {
        let (time_functions, now) = (time_functions.clone(), now.clone());
        connection.create_scalar_function(name, -1, flags, move |context| {
            let arguments = (0..context.len()).map(|at| context.get::<Sql>(at)).collect::<Result<Vec<_>, _>>()?;
            time_functions.lock().call(name, arguments, Timestamp(now.load(Ordering::Relaxed)))
        })?;
    }
    for (name, same_as) in OF_THE_PRESENT {
        let (time_functions, now) = (time_functions.clone(), now.clone());
        connection.create_scalar_function(name, 0, flags, move |_| {
            time_functions.lock().call(same_as, Vec::new(), Timestamp(now.load(Ordering::Relaxed)))
        })?;
    }
    for (name, function) in OF_NUMBERS {
        connection.create_scalar_function(name, 1, flags, move |context| {
            Ok(number(context, 0).map(function).filter(|answer| answer.is_finite()))
        })?;
    }
    for (name, function) in OF_TWO_NUMBERS {
        connection.create_scalar_function(name, 2, flags, move |context| {
            let answer = number(context, 0).zip(number(context, 1)).map(|(first, second)| function(first, second));
            Ok(answer.filter(|answer| answer.is_finite()))
        })?;
    }
    for function in host {
        connection.create_scalar_function(function.name, function.arguments, flags, move |context| {
            call_host(function, context)
        })?;
    }
    Ok(())
}

fn number(context: &Context<'_>, at: usize) -> Option<f64> {
    match context.get_raw(at) {
        ValueRef::Integer(number) => Some(number as f64),
        ValueRef::Real(number) => Some(number),
        _ => None,
    }
}

fn call_host(function: &HostFunction, context: &Context<'_>) -> rusqlite::Result<Sql> {
    let mut arguments = Vec::with_capacity(context.len());
    for at in 0..context.len() {
        match values::plain(context.get_raw(at)) {
            Value::Null => return Ok(Sql::Null),
            value => arguments.push(value),
        }
    }
    let given = (function.call)(&arguments).map_err(|reason| failed(format!("{}: {reason}", function.name)))?;
    Ok(values::to_sql(&given))
}

fn failed(reason: String) -> Error {
    Error::UserFunctionError(reason.into())
}

/// SQLite's own time functions, on a connection where they are not replaced.
struct TimeFunctions {
    connection: Connection,
    sql: HashMap<(&'static str, usize), String>,
}

impl TimeFunctions {
    fn call(&mut self, name: &'static str, mut arguments: Vec<Sql>, now: Timestamp) -> rusqlite::Result<Sql> {
        let now = || Sql::Text(values::timestamp_text(now));
        let is = |value: &Sql, words: &[&str]| match value {
            Sql::Text(text) => words.iter().any(|word| text.trim().eq_ignore_ascii_case(word)),
            _ => false,
        };
        let first = usize::from(name == "strftime");
        if name != "timediff"
            && arguments.len() >= first
            && arguments.get(first).is_none_or(|value| is(value, &["subsec", "subsecond"]))
        {
            arguments.insert(first, now());
        }
        for argument in &mut arguments {
            if is(argument, &["now"]) {
                *argument = now();
            } else if is(argument, &["localtime", "utc"]) {
                let reason =
                    format!("{name}: the time zone of this machine is not available to rules; times are in UTC");
                return Err(failed(reason));
            }
        }
        let count = arguments.len();
        let sql = self.sql.entry((name, count)).or_insert_with(|| {
            let places: Vec<String> = (1..=count).map(|at| format!("?{at}")).collect();
            format!("SELECT {name}({})", places.join(", "))
        });
        let mut statement = self.connection.prepare_cached(sql)?;
        statement.query_row(rusqlite::params_from_iter(arguments), |row| row.get(0))
    }
}
