//! Text functions for which SQLite needs time proportional to the product of the argument lengths: one call could
//! take minutes without a check of the deadline. The results here are the same, and the time is proportional to the
//! sum of the lengths. Where that is not possible, the deadline is checked.

use std::{borrow::Cow, sync::Arc};

use parking_lot::Mutex;

use rusqlite::{
    Connection, Error, ffi,
    functions::{Context, FunctionFlags},
    types::{Value as Sql, ValueRef},
};

use crate::queries::wildcards::Wildcards;

/// Maximum length of a text or JSON value of a query, in bytes.
pub(super) const VALUE_BYTES_MAX: usize = 2 << 20;
/// Maximum length of a pattern of `LIKE` and `GLOB`, in bytes.
const PATTERN_BYTES_MAX: usize = 1_000;

type OfTexts = fn(&[Cow<'_, str>]) -> rusqlite::Result<Sql>;

/// By name and number of arguments.
const OF_TEXTS: [(&str, i32, OfTexts); 8] = [
    ("replace", 3, |given| replace(&given[0], &given[1], &given[2])),
    ("trim", 1, |given| Ok(Sql::Text(given[0].trim_matches(' ').to_owned()))),
    ("ltrim", 1, |given| Ok(Sql::Text(given[0].trim_start_matches(' ').to_owned()))),
    ("rtrim", 1, |given| Ok(Sql::Text(given[0].trim_end_matches(' ').to_owned()))),
    ("trim", 2, |given| Ok(trim(&given[0], &given[1], true, true))),
    ("ltrim", 2, |given| Ok(trim(&given[0], &given[1], true, false))),
    ("rtrim", 2, |given| Ok(trim(&given[0], &given[1], false, true))),
    ("unhex", 2, |given| Ok(unhex(&given[0], &given[1]))),
];

/// `is_past_deadline` returns whether the deadline has passed.
pub(super) fn register(
    connection: &Connection,
    is_past_deadline: impl Fn() -> bool + Clone + Send + 'static,
) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    let formatter = Arc::new(NumberFormatter(Mutex::new(Connection::open_in_memory()?)));
    for (name, arguments, function) in OF_TEXTS {
        let formatter = formatter.clone();
        connection.create_scalar_function(name, arguments, flags, move |context| {
            match formatter.texts(context)? {
                Some(given) => function(&given),
                None => Ok(Sql::Null),
            }
        })?;
    }
    connection.create_scalar_function("instr", 2, flags, {
        let formatter = formatter.clone();
        move |context| place(context, &formatter)
    })?;
    for (name, arguments) in [("like", 2), ("like", 3), ("glob", 2)] {
        let (is_past_deadline, formatter) = (is_past_deadline.clone(), formatter.clone());
        connection.create_scalar_function(name, arguments, flags, move |context| {
            let Some(given) = formatter.texts(context)? else { return Ok(None) };
            let wildcards = wildcards(name, context, &given)?;
            match wildcards.matches(&given[1], &is_past_deadline) {
                Some(matches) => Ok(Some(matches)),
                None => Err(Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_INTERRUPT), None)),
            }
        })?;
    }
    Ok(())
}

/// Formats numbers as SQLite does.
struct NumberFormatter(Mutex<Connection>);

impl NumberFormatter {
    /// All arguments as text; `None` if one of them is null.
    fn texts<'a>(&self, context: &'a Context<'_>) -> rusqlite::Result<Option<Vec<Cow<'a, str>>>> {
        let text = |at| {
            Ok(match context.get_raw(at) {
                ValueRef::Null => None,
                ValueRef::Integer(number) => Some(Cow::Owned(number.to_string())),
                ValueRef::Real(number) => Some(Cow::Owned(self.format(number)?)),
                ValueRef::Text(text) | ValueRef::Blob(text) => Some(String::from_utf8_lossy(text)),
            })
        };
        (0..context.len()).map(text).collect()
    }

    fn format(&self, number: f64) -> rusqlite::Result<String> {
        let connection = self.0.lock();
        let mut statement = connection.prepare_cached("SELECT CAST(?1 AS TEXT)")?;
        statement.query_row([number], |row| row.get(0))
    }
}

/// Position of the second value in the first, counted from 1; 0 if it does not occur.
fn place(context: &Context<'_>, formatter: &NumberFormatter) -> rusqlite::Result<Option<i64>> {
    // If both are blobs, positions are counted in bytes.
    let of_bytes = |at| match context.get_raw(at) {
        ValueRef::Blob(bytes) => Some(bytes.iter().copied().map(char::from).collect::<String>()),
        _ => None,
    };
    let count = |text: &str, part: &str| {
        let letters = text.find(part).map(|at| text[..at].chars().count() + 1);
        Some(letters.unwrap_or(0) as i64)
    };
    if let (Some(text), Some(part)) = (of_bytes(0), of_bytes(1)) {
        return Ok(count(&text, &part));
    }
    Ok(formatter.texts(context)?.and_then(|given| count(&given[0], &given[1])))
}

fn replace(text: &str, part: &str, by: &str) -> rusqlite::Result<Sql> {
    if part.is_empty() {
        return Ok(Sql::Text(text.to_owned()));
    }
    let count = text.matches(part).count();
    if text.len() - count * part.len() + count * by.len() > VALUE_BYTES_MAX {
        return Err(Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_TOOBIG), None));
    }
    Ok(Sql::Text(text.replace(part, by)))
}

/// The characters in order, for fast lookup.
fn sorted(letters: &str) -> Vec<char> {
    let mut letters: Vec<char> = letters.chars().collect();
    letters.sort_unstable();
    letters.dedup();
    letters
}

fn trim(text: &str, letters: &str, at_start: bool, at_end: bool) -> Sql {
    let letters = sorted(letters);
    let goes = |letter: char| letters.binary_search(&letter).is_ok();
    let text = if at_start { text.trim_start_matches(goes) } else { text };
    let text = if at_end { text.trim_end_matches(goes) } else { text };
    Sql::Text(text.to_owned())
}

/// Decodes pairs of hexadecimal digits, with these separators between pairs; null if the text has another format.
fn unhex(text: &str, between: &str) -> Sql {
    let between = sorted(between);
    let mut bytes = Vec::with_capacity(text.len() / 2);
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter.to_digit(16) {
            Some(high) => match letters.next().and_then(|letter| letter.to_digit(16)) {
                Some(low) => bytes.push((high << 4 | low) as u8),
                None => return Sql::Null,
            },
            None if between.binary_search(&letter).is_ok() => {}
            None => return Sql::Null,
        }
    }
    Sql::Blob(bytes)
}

/// The parsed pattern of a call, cached while the pattern and the escape character stay the same.
fn wildcards(name: &str, context: &Context<'_>, given: &[Cow<'_, str>]) -> rusqlite::Result<Arc<Wildcards>> {
    let failed = |reason: &str| Error::UserFunctionError(reason.into());
    let pattern = &given[0];
    if pattern.len() > PATTERN_BYTES_MAX {
        return Err(failed("LIKE or GLOB pattern too complex"));
    }
    if name == "glob" {
        return context.get_or_create_aux(0, |_| Ok::<_, Error>(Wildcards::glob(pattern)));
    }
    let no_letter = || failed("ESCAPE expression must be a single character");
    let escape = given.get(2).map(|escape| sole_letter(escape).ok_or_else(no_letter)).transpose()?;
    // SQLite caches data for constant patterns; the escape character may differ.
    match context.get_aux::<Wildcards>(0)? {
        Some(read) if read.escape == escape => Ok(read),
        _ => context.set_aux(0, Wildcards::like(pattern, escape)),
    }
}

fn sole_letter(text: &str) -> Option<char> {
    let mut letters = text.chars();
    letters.next().filter(|_| letters.next().is_none())
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;

    const CALLS: [&str; 13] = [
        "instr(?1, ?2)",
        "replace(?1, ?2, ?3)",
        "trim(?1)",
        "ltrim(?1)",
        "rtrim(?1)",
        "trim(?1, ?2)",
        "ltrim(?1, ?2)",
        "rtrim(?1, ?2)",
        "unhex(?1, ?2)",
        "?1 LIKE ?2",
        "?1 LIKE ?2 ESCAPE ?3",
        "?1 GLOB ?2",
        "?1 || ?2 NOT LIKE ?3",
    ];

    fn random_value(random: &mut Rng) -> Sql {
        match random.u8(0..16) {
            0 => Sql::Null,
            1 => Sql::Integer(random.i64(-12..120)),
            2 => Sql::Real(
                [0.0, -0.5, 1.0, 1e15, 123_456_789_012_345_680.0, 1e-5, 0.1, 2.5e-4, 1e300][random.usize(0..9)],
            ),
            3 => Sql::Blob((0..random.usize(0..4)).map(|_| random.u8(b'a'..b'd')).collect()),
            4 => Sql::Text(["a", "%", "_", "\\"][random.usize(0..4)].to_owned()),
            _ => {
                let letters: Vec<char> = "aabbAé %%__**??[[]]^--\\1f".chars().collect();
                Sql::Text((0..random.usize(0..9)).map(|_| letters[random.usize(0..letters.len())]).collect())
            }
        }
    }

    #[test]
    fn results_are_equal_to_those_of_sqlite() {
        let plain = Connection::open_in_memory().expect("a database");
        let ours = Connection::open_in_memory().expect("a database");
        register(&ours, || false).expect("functions");
        let seed = std::env::var("TOCSIN_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
        let mut random = Rng::with_seed(seed);
        let mut wrong = Vec::new();
        for _ in 0..2_000 {
            let given: [Sql; 3] = std::array::from_fn(|_| random_value(&mut random));
            for call in CALLS {
                // SQLite checks the escape character, and the text to replace, before it checks for null.
                if (call.contains("ESCAPE") || call.contains("replace")) && given.contains(&Sql::Null) {
                    continue;
                }
                let needed = 1 + usize::from(call.contains("?2")) + usize::from(call.contains("?3"));
                let answer = |connection: &Connection| {
                    let mut statement = connection.prepare_cached(&format!("SELECT {call}")).expect("a statement");
                    let given = rusqlite::params_from_iter(&given[..needed]);
                    statement.query_row(given, |row| row.get::<_, Sql>(0)).map_err(|error| match error {
                        Error::SqliteFailure(_, said) => said.unwrap_or_default(),
                        error => error.to_string(),
                    })
                };
                let (found, expected) = (answer(&ours), answer(&plain));
                if found != expected {
                    wrong.push(format!("{call} of {given:?}: {found:?}, not {expected:?}"));
                }
            }
        }
        assert!(wrong.is_empty(), "TOCSIN_SEED={seed}\n{}", wrong.join("\n"));
    }
}
