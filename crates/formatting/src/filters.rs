//! Filters for people: `number`, `date`, `time`. And bounds for those of the engine whose arguments are a size.

use std::sync::Arc;

use jiff::{Zoned, tz::TimeZone};
use minijinja::{
    Environment, Error, ErrorKind, State, filters,
    functions::Function,
    value::{FunctionArgs, FunctionResult, Rest, Value as Jinja, ValueOrKwargs},
};
use tocsin_model::{problem::closest, time::Timestamp};

use crate::{
    language::Customs,
    scope::{Moment, READER, Reader},
};

/// The longest `range`. Steps are bounded as well, but a filter goes through a whole list in one step.
const RANGE_MAX: i64 = 1_000;
/// The largest number that a filter takes as a size: a width, a count of columns.
const SIZE_MAX: i64 = 1_000;
/// The longest pattern of a date or time, in bytes.
const PATTERN_BYTES_MAX: usize = 100;

/// The filters that templates can use.
pub const NAMES: [&str; 50] = [
    "abs",
    "attr",
    "batch",
    "bool",
    "capitalize",
    "chain",
    "count",
    "d",
    "date",
    "default",
    "dictsort",
    "e",
    "escape",
    "first",
    "float",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "lines",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "number",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "split",
    "string",
    "sum",
    "time",
    "title",
    "tojson",
    "trim",
    "unique",
    "upper",
    "urlencode",
    "zip",
];

/// What was meant by the filter of which the engine complains: `filter rund is unknown`.
pub fn hint(complaint: &str) -> String {
    let wrong = complaint.split(' ').nth(1).unwrap_or_default();
    match closest(wrong, NAMES) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => format!("filters are {}", NAMES.join(", ")),
    }
}

/// Adds our filters and takes away what has no bound or shows too much.
pub fn install(environment: &mut Environment<'static>) {
    environment.add_filter("number", number);
    environment.add_filter("date", date);
    environment.add_filter("time", time);
    environment.add_function("range", range);
    bound(environment, "indent", "\u{0}indent", filters::indent);
    bound(environment, "round", "\u{0}round", filters::round);
    bound(environment, "batch", "\u{0}batch", filters::batch);
    bound(environment, "slice", "\u{0}slice", filters::slice);
    bound(environment, "tojson", "\u{0}tojson", filters::tojson);
    // `format` pads to any width and `pprint` shows insides; the filters above do what people need.
    environment.remove_filter("format");
    environment.remove_filter("pprint");
    environment.remove_global("debug");
    // Without namespaces nothing outlives a turn of a loop, so no text doubles with each turn.
    environment.remove_global("namespace");
}

/// Puts a filter of the engine, kept under a name that no template can spell, behind a check of its arguments: no number
/// among them is out of bounds.
fn bound<F, Rv, Args>(environment: &mut Environment<'static>, name: &'static str, hidden: &'static str, filter: F)
where
    F: Function<Rv, Args>,
    Rv: FunctionResult,
    Args: for<'a> FunctionArgs<'a>,
{
    environment.add_filter(hidden, filter);
    environment.add_filter(name, move |state: &mut State<'_, '_>, value: Jinja, rest: Rest<ValueOrKwargs>| {
        let mut arguments = vec![value];
        arguments.extend(rest.into_values());
        let too_large = |argument: &Jinja| argument.as_i64().is_some_and(|size| size.abs() > SIZE_MAX);
        let holds_too_large = |argument: &Jinja| {
            argument.is_kwargs()
                && argument
                    .try_iter()
                    .is_ok_and(|mut keys| keys.any(|key| argument.get_item(&key).is_ok_and(|size| too_large(&size))))
        };
        if arguments[1..].iter().any(|argument| too_large(argument) || holds_too_large(argument)) {
            return Err(invalid(format!("an argument of `{name}` is beyond {SIZE_MAX}")));
        }
        state.apply_filter(hidden, &arguments)
    });
}

fn range(lower: i64, upper: Option<i64>, step: Option<i64>) -> Result<Jinja, Error> {
    let (from, to) = upper.map_or((0, lower), |upper| (lower, upper));
    let step = step.unwrap_or(1);
    let length = match step {
        0 => return Err(invalid("a range cannot have steps of 0")),
        1.. => i128::from(to) - i128::from(from),
        _ => i128::from(from) - i128::from(to),
    };
    let steps =
        length.max(0).div_euclid(i128::from(step).abs()) + i128::from(length.max(0) % i128::from(step).abs() != 0);
    match i64::try_from(steps) {
        Ok(steps) if steps <= RANGE_MAX => {
            Ok((0..steps).map(|at| Jinja::from(from.saturating_add(at.saturating_mul(step)))).collect())
        }
        _ => Err(invalid(format!("a range has at most {RANGE_MAX} elements"))),
    }
}

/// `{{ magnitude|number(1) }}`: a number as the reader writes it, with this many digits after the mark; without digits,
/// up to three as needed.
fn number(state: &State<'_, '_>, value: Jinja, digits: Option<u32>) -> Result<Jinja, Error> {
    if value.is_none() {
        return Ok(value);
    }
    if !value.is_number() {
        return Err(invalid(format!("`number` takes a number, not {}", value.kind())));
    }
    let digits = match digits {
        Some(digits) if digits > 20 => return Err(invalid("`number` writes at most 20 digits after the mark")),
        digits => digits.map(|digits| digits as usize),
    };
    let plain = match (value.as_i64(), digits) {
        (Some(integer), None) if value.is_integer() => integer.to_string(),
        (Some(integer), Some(0)) if value.is_integer() => integer.to_string(),
        // As text, so that no digit of a large integer is lost.
        (Some(integer), Some(digits)) if value.is_integer() => format!("{integer}.{}", "0".repeat(digits)),
        _ => {
            let number = f64::try_from(value)?;
            match digits {
                Some(digits) => format!("{number:.digits$}"),
                None => {
                    let rounded = format!("{number:.3}");
                    rounded.trim_end_matches('0').trim_end_matches('.').to_owned()
                }
            }
        }
    };
    // A number that was rounded to nothing has no sign.
    let is_zero = plain.bytes().all(|byte| matches!(byte, b'-' | b'0' | b'.'));
    let plain = if is_zero { plain.trim_start_matches('-') } else { &plain };
    Ok(Jinja::from(customs(state).number(plain)))
}

/// `{{ at|date }}`: the day in the reader's zone and language. Forms: `long` (the default), `short`, `iso`, or a pattern
/// of strftime such as `%d.%m.`.
fn date(state: &State<'_, '_>, value: Jinja, form: Option<&str>) -> Result<Jinja, Error> {
    let Some(moment) = moment(state, &value, "date")? else { return Ok(value) };
    let written = match form.unwrap_or("long") {
        "long" => customs(state).long_date(moment.date()),
        "short" => customs(state).short_date(moment.date()),
        "iso" => moment.date().to_string(),
        pattern => by_pattern(pattern, &moment, "`long`, `short`, `iso`")?,
    };
    Ok(Jinja::from(written))
}

/// `{{ at|time }}`: hours and minutes in the reader's zone and language. Forms: `short` (the default), `seconds`,
/// `zone`, which adds the zone's abbreviation, or a pattern of strftime.
fn time(state: &State<'_, '_>, value: Jinja, form: Option<&str>) -> Result<Jinja, Error> {
    let Some(moment) = moment(state, &value, "time")? else { return Ok(value) };
    let written = match form.unwrap_or("short") {
        "short" => customs(state).time(moment.time()),
        "seconds" => moment.strftime("%H:%M:%S").to_string(),
        "zone" => format!("{} {}", customs(state).time(moment.time()), moment.strftime("%Z")),
        pattern => by_pattern(pattern, &moment, "`short`, `seconds`, `zone`")?,
    };
    Ok(Jinja::from(written))
}

fn by_pattern(pattern: &str, moment: &Zoned, forms: &str) -> Result<String, Error> {
    if !pattern.contains('%') {
        return Err(invalid(format!("`{pattern}` is not a form; give {forms} or a pattern such as `%d.%m.%Y`")));
    }
    // Digits in a pattern are widths, which have no use here and no small bound.
    if pattern.len() > PATTERN_BYTES_MAX
        || pattern.split('%').skip(1).any(|directive| directive.starts_with(|c: char| c.is_ascii_digit()))
    {
        return Err(invalid(format!("a pattern has at most {PATTERN_BYTES_MAX} bytes and no widths")));
    }
    jiff::fmt::strtime::format(pattern, moment)
        .map_err(|error| invalid(format!("the pattern `{pattern}` is wrong: {error}")))
}

/// The instant in the reader's zone; `None` for none.
fn moment(state: &State<'_, '_>, value: &Jinja, filter: &str) -> Result<Option<Zoned>, Error> {
    if value.is_none() {
        return Ok(None);
    }
    let timestamp = match (value.downcast_object_ref::<Moment>(), value.as_str(), value.as_i64()) {
        (Some(Moment(time)), ..) => *time,
        (_, Some(text), _) => {
            text.parse().map_err(|error: tocsin_model::time::TimestampError| invalid(error.to_string()))?
        }
        (_, _, Some(millis)) if value.is_integer() => Timestamp::from_millis(millis),
        _ => return Err(invalid(format!("`{filter}` takes a timestamp, not {}", value.kind()))),
    };
    let instant =
        jiff::Timestamp::from_microsecond(timestamp.0).map_err(|_| invalid("the timestamp is beyond the calendar"))?;
    let reader = reader(state);
    let zone = reader.as_ref().and_then(|reader| reader.time_zone.as_deref()).and_then(|zone| TimeZone::get(zone).ok());
    Ok(Some(instant.to_zoned(zone.unwrap_or(TimeZone::UTC))))
}

fn reader(state: &State<'_, '_>) -> Option<Arc<Reader>> {
    state.lookup(READER)?.downcast_object::<Reader>()
}

fn customs(state: &State<'_, '_>) -> Customs {
    reader(state).map_or_else(|| Customs::of(None), |reader| reader.customs)
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}
