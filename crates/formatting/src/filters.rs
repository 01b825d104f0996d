//! Template filters: locale-aware numbers, money, dates, times and plurals; URLs and SMS. And bounded versions of
//! engine filters whose arguments are sizes.

use std::sync::Arc;

use jiff::{civil::DateTime, tz::TimeZone};
use minijinja::{
    Environment, Error, ErrorKind, State, filters,
    functions::{self, Function},
    value::{FunctionArgs, FunctionResult, Kwargs, Rest, Value as Jinja, ValueOrKwargs},
};
use tocsin_model::{length, problem::closest, time::Timestamp};

use crate::{
    limits::OUTPUT_BYTES_MAX,
    locale_data::{LocaleData, fraction_digits},
    plural::CATEGORIES,
    sandbox,
    scope::{READER, ReaderFormat, TemplateTimestamp, whole},
    sms,
};

/// The longest `range`. Steps are bounded as well, but a filter processes a whole list in one step.
const RANGE_MAX: i64 = 1_000;
/// The largest size argument of a filter: a width, a number of columns.
const SIZE_MAX: i64 = 1_000;
/// The longest text that a filter splits into a list.
const LIST_BYTES_MAX: usize = 64 << 10;
/// Most lines that are indented at once: four million spaces.
const LINES_MAX: usize = 4_000;
/// The longest date or time pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 100;

/// The filters that templates can use.
pub const NAMES: [&str; 60] = [
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
    "gsm",
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
    "money",
    "number",
    "ordinal",
    "percent",
    "plural",
    "reject",
    "rejectattr",
    "relative",
    "replace",
    "reverse",
    "round",
    "safe",
    "segments",
    "select",
    "selectattr",
    "slice",
    "sms",
    "sort",
    "split",
    "string",
    "sum",
    "time",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "url",
    "urlencode",
    "zip",
];

/// The tests that templates can use, by name.
const TESTS: [&str; 36] = [
    "boolean",
    "defined",
    "divisibleby",
    "endingwith",
    "eq",
    "equalto",
    "escaped",
    "even",
    "false",
    "filter",
    "float",
    "ge",
    "greaterthan",
    "gt",
    "in",
    "int",
    "integer",
    "iterable",
    "le",
    "lessthan",
    "lower",
    "lt",
    "mapping",
    "ne",
    "none",
    "number",
    "odd",
    "safe",
    "sameas",
    "sequence",
    "startingwith",
    "string",
    "test",
    "true",
    "undefined",
    "upper",
];

/// The hint for an unknown test.
pub fn test_hint(wrong: &str) -> String {
    match closest(wrong, TESTS) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => format!("tests are {}", TESTS.join(", ")),
    }
}

/// The hint for an unknown filter.
pub fn filter_hint(wrong: &str) -> String {
    match closest(wrong, NAMES) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => format!("filters are {}", NAMES.join(", ")),
    }
}

/// The hint for an engine error such as `filter rund is unknown`.
pub fn hint(complaint: &str) -> String {
    filter_hint(complaint.split(' ').nth(1).unwrap_or_default())
}

/// Installs our filters and removes those without a bound or that expose internals.
pub fn install(environment: &mut Environment<'static>) {
    environment.add_filter("number", number);
    environment.add_filter("money", money);
    environment.add_filter("percent", percent);
    environment.add_filter("plural", |state: &State<'_, '_>, value: Jinja, words: Kwargs| {
        plural_form(state, &value, &words, "plural", LocaleData::plural)
    });
    environment.add_filter("ordinal", |state: &State<'_, '_>, value: Jinja, words: Kwargs| {
        plural_form(state, &value, &words, "ordinal", LocaleData::ordinal)
    });
    environment.add_filter("date", date);
    environment.add_filter("time", time);
    environment.add_filter("relative", relative);
    environment.add_filter("url", url);
    environment.add_filter("\u{0}gsm", |text: &str| pass(text).map(|()| sms::to_gsm(text)));
    environment.add_filter("\u{0}segments", |text: &str| pass(text).map(|()| sms::measure(text).segments));
    environment.add_filter("\u{0}sms", shorten);
    environment.add_filter("\u{0}replace", replace);
    environment.add_filter("\u{0}truncate", truncate);
    for (name, hidden) in [
        ("gsm", "\u{0}gsm"),
        ("segments", "\u{0}segments"),
        ("sms", "\u{0}sms"),
        ("replace", "\u{0}replace"),
        ("truncate", "\u{0}truncate"),
    ] {
        nullable(environment, name, hidden);
    }
    environment.add_filter("\u{0}abs", filters::abs);
    environment.add_filter("\u{0}attr", filters::attr);
    environment.add_filter("\u{0}first", filters::first);
    environment.add_filter("\u{0}last", filters::last);
    environment.add_filter("\u{0}safe", filters::safe);
    environment.add_filter("\u{0}string", filters::string);
    for (name, hidden) in [
        ("abs", "\u{0}abs"),
        ("attr", "\u{0}attr"),
        ("first", "\u{0}first"),
        ("last", "\u{0}last"),
        ("safe", "\u{0}safe"),
        ("string", "\u{0}string"),
    ] {
        nullable(environment, name, hidden);
    }
    environment.add_filter("join", join);
    charged(environment, "capitalize", "\u{0}capitalize", filters::capitalize);
    charged(environment, "count", "\u{0}count", filters::length);
    charged(environment, "dictsort", "\u{0}dictsort", filters::dictsort);
    charged(environment, "e", "\u{0}e", filters::escape);
    charged(environment, "escape", "\u{0}escape", filters::escape);
    charged(environment, "float", "\u{0}float", filters::float);
    charged(environment, "int", "\u{0}int", filters::int);
    charged(environment, "items", "\u{0}items", filters::items);
    charged(environment, "length", "\u{0}length", filters::length);
    charged(environment, "lower", "\u{0}lower", filters::lower);
    charged(environment, "map", "\u{0}map", filters::map);
    charged(environment, "max", "\u{0}max", filters::max);
    charged(environment, "min", "\u{0}min", filters::min);
    charged(environment, "reject", "\u{0}reject", filters::reject);
    charged(environment, "rejectattr", "\u{0}rejectattr", filters::rejectattr);
    charged(environment, "reverse", "\u{0}reverse", filters::reverse);
    charged(environment, "select", "\u{0}select", filters::select);
    charged(environment, "selectattr", "\u{0}selectattr", filters::selectattr);
    charged(environment, "sum", "\u{0}sum", filters::sum);
    charged(environment, "title", "\u{0}title", filters::title);
    charged(environment, "trim", "\u{0}trim", filters::trim);
    charged(environment, "upper", "\u{0}upper", filters::upper);
    charged(environment, "urlencode", "\u{0}urlencode", filters::urlencode);
    bound(environment, "indent", "\u{0}indent", filters::indent);
    environment.add_function("range", range);
    environment.add_function("dict", |value: Option<Jinja>, update: Kwargs| {
        functions::dict(value.filter(|value| !value.is_none()), update)
    });
    environment.add_test("startingwith", |value: &Jinja, start: &Jinja| {
        pair(value, start, |text, start| text.starts_with(start))
    });
    environment.add_test("endingwith", |value: &Jinja, end: &Jinja| pair(value, end, |text, end| text.ends_with(end)));
    bound(environment, "round", "\u{0}round", filters::round);
    bound(environment, "batch", "\u{0}batch", filters::batch);
    bound(environment, "slice", "\u{0}slice", filters::slice);
    bound(environment, "tojson", "\u{0}tojson", filters::tojson);
    bound(environment, "list", "\u{0}list", filters::list);
    bound(environment, "lines", "\u{0}lines", filters::lines);
    bound(environment, "split", "\u{0}split", filters::split);
    bound(environment, "unique", "\u{0}unique", filters::unique);
    bound(environment, "sort", "\u{0}sort", filters::sort);
    bound(environment, "zip", "\u{0}zip", filters::zip);
    bound(environment, "chain", "\u{0}chain", filters::chain);
    bound(environment, "groupby", "\u{0}groupby", filters::groupby);
    // `format` pads to any width and `pprint` shows internals; the filters above replace them.
    environment.remove_filter("format");
    environment.remove_filter("pprint");
    environment.remove_global("debug");
    // Without namespaces no value survives a loop iteration, so no text doubles with each iteration.
    environment.remove_global("namespace");
}

/// The handling of null by a filter: a field without a value is empty in each.
enum NullRule {
    /// The filter handles it.
    AskFilter,
    /// The result is an empty list.
    EmptyList,
    /// The result is 0.
    Zero,
    /// The result is null.
    PassOn,
}

fn null_rule(name: &str) -> NullRule {
    match name {
        "default" | "d" | "bool" | "int" | "float" | "join" | "tojson" => NullRule::AskFilter,
        "batch" | "chain" | "dictsort" | "groupby" | "items" | "lines" | "list" | "map" | "reject" | "rejectattr"
        | "select" | "selectattr" | "slice" | "sort" | "split" | "unique" | "zip" => NullRule::EmptyList,
        "count" | "length" | "segments" | "sum" => NullRule::Zero,
        _ => NullRule::PassOn,
    }
}

/// Applies the rule for null; returns the result, unless the filter must handle it.
fn take_null(name: &str, arguments: &mut [Jinja]) -> Option<Jinja> {
    // Lists are combined with lists.
    if matches!(name, "chain" | "zip") {
        arguments.iter_mut().filter(|argument| argument.is_none()).for_each(|argument| *argument = empty_list());
    }
    // A missing value does not count.
    if name == "sum"
        && let Ok(items) = arguments[0].try_iter()
        && !arguments[0].is_none()
    {
        let items: Vec<Jinja> = items.collect();
        if items.iter().any(Jinja::is_none) {
            arguments[0] = items.into_iter().filter(|item| !item.is_none()).collect();
        }
    }
    if !arguments[0].is_none() {
        return None;
    }
    match null_rule(name) {
        NullRule::AskFilter => None,
        NullRule::EmptyList => Some(empty_list()),
        NullRule::Zero => Some(Jinja::from(0)),
        NullRule::PassOn => Some(Jinja::from(())),
    }
}

fn empty_list() -> Jinja {
    Jinja::from(Vec::<Jinja>::new())
}

/// Adds the handling of null to a filter, which stays available under a name that templates cannot spell.
fn nullable(environment: &mut Environment<'static>, name: &'static str, hidden: &'static str) {
    environment.add_filter(name, move |state: &mut State<'_, '_>, value: Jinja, rest: Rest<ValueOrKwargs>| {
        let mut arguments = vec![value];
        arguments.extend(rest.into_values());
        match take_null(name, &mut arguments) {
            Some(result) => Ok(result),
            None => state.apply_filter(hidden, &arguments),
        }
    });
}

/// A test of two texts. Null passes none.
fn pair(value: &Jinja, other: &Jinja, test: fn(&str, &str) -> bool) -> Result<bool, Error> {
    match (value.as_str(), other.as_str()) {
        (Some(value), Some(other)) => Ok(test(value, other)),
        _ if value.is_none() || other.is_none() => Ok(false),
        _ => Err(invalid(format!("the test takes two texts, not {} and {}", value.kind(), other.kind()))),
    }
}

/// Wraps an engine filter, which stays available under a name that templates cannot spell: charges for the size of its
/// input. The engine counts one step, however long a text is.
fn charged<F, Rv, Args>(environment: &mut Environment<'static>, name: &'static str, hidden: &'static str, filter: F)
where
    F: Function<Rv, Args>,
    Rv: FunctionResult,
    Args: for<'a> FunctionArgs<'a>,
{
    environment.add_filter(hidden, filter);
    environment.add_filter(name, move |state: &mut State<'_, '_>, value: Jinja, rest: Rest<ValueOrKwargs>| {
        match value.as_str() {
            Some(text) => pass(text)?,
            // The length of a list is known.
            None if matches!(name, "length" | "count") => {}
            None => sandbox::charge(value.len().unwrap_or_default())?,
        }
        let mut arguments = vec![value];
        arguments.extend(rest.into_values());
        match take_null(name, &mut arguments) {
            Some(result) => Ok(result),
            None => state.apply_filter(hidden, &arguments),
        }
    });
}

/// Charges for one pass over a text.
fn pass(text: &str) -> Result<(), Error> {
    sandbox::charge(text.len() / 4)
}

/// Wraps an engine filter, which stays available under a name that templates cannot spell: checks that numeric
/// arguments are within bounds and texts are not too long to be split, and charges for the result.
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
        if let Some(result) = take_null(name, &mut arguments) {
            return Ok(result);
        }
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
        // Each line of a text may grow by this much.
        if name == "indent" && arguments[0].as_str().is_some_and(|text| text.matches('\n').count() > LINES_MAX) {
            return Err(invalid(format!("`indent` takes texts of at most {LINES_MAX} lines")));
        }
        if !matches!(name, "tojson" | "indent") && arguments[0].as_str().is_some_and(|text| text.len() > LIST_BYTES_MAX)
        {
            return Err(invalid(format!("`{name}` takes texts of at most {LIST_BYTES_MAX} bytes apart")));
        }
        let made = state.apply_filter(hidden, &arguments)?;
        sandbox::charged(made)
    });
}

fn range(lower: Jinja, rest: Rest<Jinja>) -> Result<Jinja, Error> {
    // A missing value gives an empty range.
    if lower.is_none() || rest.iter().any(Jinja::is_none) {
        return Ok(empty_list());
    }
    if rest.len() > 2 {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let number = |at: usize| rest.get(at).cloned().map(i64::try_from).transpose();
    let (lower, upper, step) = (i64::try_from(lower)?, number(0)?, number(1)?);
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

/// The digits of a number, such as `-1234.5`: with a fixed number of fraction digits, or up to three as needed.
fn plain(value: &Jinja, digits: Option<u32>, filter: &str) -> Result<String, Error> {
    if !value.is_number() {
        return Err(invalid(format!("`{filter}` takes a number, not {}", value.kind())));
    }
    let digits = match digits {
        Some(digits) if digits > 20 => {
            return Err(invalid(format!("`{filter}` writes at most 20 digits after the mark")));
        }
        digits => digits.map(|digits| digits as usize),
    };
    let plain = match (whole(value), digits) {
        (Some(integer), None | Some(0)) => integer.to_string(),
        // As text, so that no digit of a large integer is lost.
        (Some(integer), Some(digits)) => format!("{integer}.{}", "0".repeat(digits)),
        _ => {
            let number = f64::try_from(value.clone())?;
            if !number.is_finite() {
                return Err(invalid(format!("`{filter}` takes a number that is finite")));
            }
            match digits {
                Some(digits) => rounded(number, digits).unwrap_or_else(|| format!("{number:.digits$}")),
                None => {
                    let rounded = rounded(number, 3).unwrap_or_else(|| format!("{number:.3}"));
                    rounded.trim_end_matches('0').trim_end_matches('.').to_owned()
                }
            }
        }
    };
    // A number rounded to zero has no sign.
    let is_zero = plain.bytes().all(|byte| matches!(byte, b'-' | b'0' | b'.'));
    Ok(if is_zero { plain.trim_start_matches('-').to_owned() } else { plain })
}

/// Rounds a number without its exact decimal expansion, which is slow; `None` if it is too large or about halfway
/// between two results.
fn rounded(number: f64, digits: usize) -> Option<String> {
    const SCALES: [u32; 4] = [1, 10, 100, 1_000];
    let scale = *SCALES.get(digits)?;
    let scaled = number.abs() * f64::from(scale);
    // Below this, the error of the product is far less than the margin around the half.
    let is_certain = scaled < 1e9 && (scaled.fract() - 0.5).abs() >= 1e-6;
    if !is_certain {
        return None;
    }
    let units = scaled.round() as u64;
    let mut written = String::with_capacity(24);
    if number.is_sign_negative() {
        written.push('-');
    }
    written.push_str(&(units / u64::from(scale)).to_string());
    if digits > 0 {
        written.push('.');
        let places = (0..digits).rev().map(|place| units / 10_u64.pow(place as u32) % 10);
        written.extend(places.map(|digit| char::from(b'0' + digit as u8)));
    }
    Some(written)
}

/// `{{ magnitude|number(1) }}`: a number in the reader's locale, with this many fraction digits; without the argument,
/// up to three as needed.
fn number(state: &State<'_, '_>, value: Jinja, digits: Option<u32>) -> Result<Jinja, Error> {
    if value.is_none() {
        return Ok(value);
    }
    Ok(Jinja::from(locale_data(state).number(plain(&value, digits, "number")?)))
}

/// `{{ price|money("EUR") }}`: an amount of a currency by its ISO 4217 code, in the reader's locale, with the fraction
/// digits of the currency, or this many.
fn money(state: &State<'_, '_>, value: Jinja, code: Option<&str>, digits: Option<u32>) -> Result<Jinja, Error> {
    if value.is_none() {
        return Ok(value);
    }
    // An amount without a currency is formatted as a number.
    let Some(code) = code else { return number(state, value, Some(digits.unwrap_or(2))) };
    let code = code.to_ascii_uppercase();
    if code.len() != 3 || !code.bytes().all(|byte| byte.is_ascii_uppercase()) {
        return Err(invalid(format!("`{code}` is not a currency; give an ISO 4217 code, such as `EUR`")));
    }
    let digits = digits.unwrap_or(fraction_digits(&code) as u32);
    Ok(Jinja::from(locale_data(state).money(&plain(&value, Some(digits), "money")?, &code)))
}

/// `{{ share|percent(1) }}`: 0.123 as 12.3%, in the reader's locale.
fn percent(state: &State<'_, '_>, value: Jinja, digits: Option<u32>) -> Result<Jinja, Error> {
    if value.is_none() {
        return Ok(value);
    }
    if !value.is_number() {
        return Err(invalid(format!("`percent` takes a number, not {}", value.kind())));
    }
    let share = Jinja::from(f64::try_from(value)? * 100.0);
    Ok(Jinja::from(locale_data(state).percent(&plain(&share, digits.or(Some(0)), "percent")?)))
}

/// `{{ count|plural(one="day", other="days") }}`: the word for a number in the reader's language. Categories that the
/// language does not have are ignored; a missing category falls back to `other`.
fn plural_form(
    state: &State<'_, '_>,
    value: &Jinja,
    words: &Kwargs,
    filter: &str,
    category: for<'a> fn(&'a LocaleData, &str) -> &'a str,
) -> Result<Jinja, Error> {
    let forms = CATEGORIES.join("`, `");
    if let Some(wrong) = words.args().find(|word| !CATEGORIES.contains(word)) {
        return Err(Error::new(
            ErrorKind::TooManyArguments,
            format!("`{filter}` has no form `{wrong}`; forms are `{forms}`"),
        ));
    }
    let Ok(Some(other)) = words.get::<Option<Jinja>>("other") else {
        let message = format!("`{filter}` needs the form `other`, which every language has");
        return Err(Error::new(ErrorKind::MissingArgument, message));
    };
    if value.is_none() {
        words.assert_all_used().ok();
        return Ok(Jinja::from(()));
    }
    let category = category(locale_data(state), &plain(value, None, filter)?).to_owned();
    let word = words.get::<Option<Jinja>>(&category).ok().flatten();
    words.assert_all_used().ok();
    Ok(word.unwrap_or(other))
}

/// `{{ at|date }}`: the date in the reader's time zone and language. Forms: `full`, `long` (the default), `medium`,
/// `short`, `iso`, or a strftime pattern such as `%d.%m.`.
fn date(state: &State<'_, '_>, value: Jinja, form: Option<&str>) -> Result<Jinja, Error> {
    let Some(moment) = moment(state, &value, "date")? else { return Ok(value) };
    let form = form.unwrap_or("long");
    let written = match locale_data(state).date(moment.local.date(), form) {
        Some(written) => written,
        None if form == "iso" => moment.local.date().to_string(),
        None => by_pattern(form, &moment, "`full`, `long`, `medium`, `short`, `iso`")?,
    };
    Ok(Jinja::from(written))
}

/// `{{ at|time }}`: hours and minutes in the reader's time zone and language. Forms: `short` (the default), `seconds`,
/// `zone`, which adds the zone's abbreviation, or a strftime pattern.
fn time(state: &State<'_, '_>, value: Jinja, form: Option<&str>) -> Result<Jinja, Error> {
    let Some(moment) = moment(state, &value, "time")? else { return Ok(value) };
    let written = match form.unwrap_or("short") {
        "short" => locale_data(state).time(moment.local.time(), false),
        "seconds" => locale_data(state).time(moment.local.time(), true),
        "zone" => format!("{} {}", locale_data(state).time(moment.local.time(), false), strftime("%Z", &moment)?),
        pattern => by_pattern(pattern, &moment, "`short`, `seconds`, `zone`")?,
    };
    Ok(Jinja::from(written))
}

/// `{{ at|relative }}`: the time difference from now, or from another time, in words.
fn relative(state: &State<'_, '_>, value: Jinja, from: Option<Jinja>) -> Result<Jinja, Error> {
    let Some(then) = moment(state, &value, "relative")? else { return Ok(value) };
    let from = match from {
        Some(from) => moment(state, &from, "relative")?.map(|from| from.instant),
        None => reader(state).map(|reader| reader.now),
    };
    let Some(from) = from else { return Ok(value) };
    let second = |instant: Timestamp| instant.0.div_euclid(1_000_000);
    Ok(Jinja::from(locale_data(state).relative(second(then.instant) - second(from))))
}

/// `{{ link|url }}`: only safe URLs: web, mail and phone. Any other becomes `about:invalid`.
fn url(value: Jinja) -> Result<Jinja, Error> {
    if value.is_none() {
        return Ok(value);
    }
    let text = value.as_str().ok_or_else(|| invalid(format!("`url` takes a text, not {}", value.kind())))?;
    pass(text)?;
    // Characters that browsers remove before parsing must not hide the scheme.
    let text = text.trim_matches(|c: char| c.is_whitespace() || c.is_control());
    let scheme = text.split(':').next().unwrap_or_default().to_ascii_lowercase();
    let harmless = matches!(scheme.as_str(), "http" | "https" | "mailto" | "tel" | "sms")
        && text.len() > scheme.len()
        && !text.contains(|c: char| c.is_control() || c.is_whitespace() || "\"'<>`{}|\\^".contains(c));
    Ok(Jinja::from(if harmless { text } else { "about:invalid" }))
}

/// `{{ text|truncate(80) }}`: at most this many characters, ending in `end` if the text was cut. Grapheme clusters are
/// not divided.
fn truncate(text: &str, length: Option<usize>, end: Option<&str>) -> Result<String, Error> {
    let end = end.unwrap_or("…");
    let length = length.unwrap_or(usize::MAX);
    pass(&text[..text.floor_char_boundary(length.saturating_mul(4))])?;
    let kept = length.saturating_sub(end.chars().count());
    if text.chars().nth(length).is_none() {
        return Ok(text.to_owned());
    }
    let cut = length::cut(text, kept, length::Unit::Characters, "");
    Ok(format!("{}{end}", cut.trim_end()))
}

/// `{% filter sms(2) %}...{% endfilter %}`: cuts a text to fit into this many SMS segments.
fn shorten(text: &str, segments: Option<usize>) -> Result<String, Error> {
    pass(text)?;
    match segments.unwrap_or(1) {
        segments @ 1..=10 => Ok(sms::shorten(text, segments)),
        _ => Err(invalid("`sms` takes 1 to 10 segments")),
    }
}

/// As the engine's, with a bounded result.
fn replace(text: &str, from: Option<&str>, to: Option<&str>) -> Result<String, Error> {
    pass(text)?;
    let (Some(from), to) = (from, to.unwrap_or_default()) else { return Ok(text.to_owned()) };
    let count = if from.is_empty() { text.chars().count() + 1 } else { text.matches(from).count() };
    within(text.len().saturating_add(count.saturating_mul(to.len())), "replace")?;
    Ok(text.replace(from, to))
}

/// As the engine's, with a bounded result.
fn join(value: Jinja, between: Option<&str>) -> Result<String, Error> {
    if value.is_none() || value.is_undefined() {
        return Ok(String::new());
    }
    let between = between.unwrap_or_default();
    let mut joined = String::new();
    for (at, item) in value.try_iter()?.enumerate() {
        if at > 0 {
            joined.push_str(between);
        }
        match item.as_str() {
            Some(text) => joined.push_str(text),
            None if item.is_none() => {}
            None => joined.push_str(&item.to_string()),
        }
        within(joined.len(), "join")?;
    }
    sandbox::charge(joined.len())?;
    Ok(joined)
}

fn within(bytes: usize, filter: &str) -> Result<(), Error> {
    if bytes > OUTPUT_BYTES_MAX {
        return Err(invalid(format!("`{filter}` would make a text of more than {OUTPUT_BYTES_MAX} bytes")));
    }
    sandbox::charge(bytes / 64)
}

fn by_pattern(pattern: &str, moment: &LocalTime, forms: &str) -> Result<String, Error> {
    if !pattern.contains('%') {
        return Err(invalid(format!("`{pattern}` is not a form; give {forms} or a pattern such as `%d.%m.%Y`")));
    }
    // Digits in a pattern are widths, which are useless here and unbounded.
    if pattern.len() > PATTERN_BYTES_MAX
        || pattern.split('%').skip(1).any(|directive| directive.starts_with(|c: char| c.is_ascii_digit()))
    {
        return Err(invalid(format!("a pattern has at most {PATTERN_BYTES_MAX} bytes and no widths")));
    }
    strftime(pattern, moment)
}

fn strftime(pattern: &str, moment: &LocalTime) -> Result<String, Error> {
    let written = match jiff::Timestamp::from_microsecond(moment.instant.0) {
        Ok(instant) => jiff::fmt::strtime::format(pattern, &instant.to_zoned(moment.zone.clone())),
        // The library's instants end before the last day of the calendar: the zone is written as at their end.
        Err(_) => {
            let end = jiff::Timestamp::MAX.to_zoned(moment.zone.clone());
            let of_zone = |pattern: String, directive: &str| match jiff::fmt::strtime::format(directive, &end) {
                Ok(written) => pattern.replace(directive, &written.replace('%', "%%")),
                Err(_) => pattern,
            };
            let pattern = ["%Z", "%z", "%:z"].into_iter().fold(pattern.to_owned(), of_zone);
            jiff::fmt::strtime::format(&pattern, moment.local)
        }
    };
    written.map_err(|error| invalid(format!("the pattern `{pattern}` is wrong: {error}")))
}

/// A timestamp in the reader's time zone.
struct LocalTime {
    instant: Timestamp,
    local: DateTime,
    zone: TimeZone,
}

/// Converts to the reader's time zone; `None` for a missing value. In UTC where the local year would have five digits.
fn moment(state: &State<'_, '_>, value: &Jinja, filter: &str) -> Result<Option<LocalTime>, Error> {
    if value.is_none() {
        return Ok(None);
    }
    let instant = match (value.downcast_object_ref::<TemplateTimestamp>(), value.as_str(), whole(value)) {
        (Some(TemplateTimestamp(time)), ..) => *time,
        (_, Some(text), _) => {
            text.parse().map_err(|error: tocsin_model::time::TimestampError| invalid(error.to_string()))?
        }
        (_, _, Some(millis)) => Timestamp::from_millis(millis),
        _ => return Err(invalid(format!("`{filter}` takes a timestamp, not {}", value.kind()))),
    };
    let reader = reader(state);
    let zone = reader.as_ref().and_then(|reader| reader.time_zone.as_deref()).and_then(|zone| TimeZone::get(zone).ok());
    let zone = zone.filter(|zone| instant.in_zone(zone).is_some()).unwrap_or(TimeZone::UTC);
    let local = instant.in_zone(&zone).ok_or_else(|| invalid("the timestamp is beyond the calendar"))?;
    Ok(Some(LocalTime { instant, local, zone }))
}

fn reader(state: &State<'_, '_>) -> Option<Arc<ReaderFormat>> {
    state.lookup(READER)?.downcast_object::<ReaderFormat>()
}

fn locale_data(state: &State<'_, '_>) -> &'static LocaleData {
    reader(state).map_or_else(|| LocaleData::of(None), |reader| reader.locale_data)
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::rounded;

    #[test]
    fn values_near_a_half_use_the_exact_expansion() {
        // As decimals: 0.125 is exact, 1.005 is slightly less than written.
        for (number, digits) in [(0.125, 2), (1.005, 2), (2.5, 0), (1e300, 1), (0.1, 4), (f64::NAN, 1)] {
            assert_eq!(rounded(number, digits), None, "{number} with {digits} digits");
        }
        assert_eq!(rounded(-5.45, 0).as_deref(), Some("-5"));
        assert_eq!(rounded(0.05, 3).as_deref(), Some("0.050"));
    }

    proptest! {
        #[test]
        fn the_fast_path_rounds_like_the_exact_expansion(number in prop_oneof![-1e6..1e6_f64, -2.0..2.0_f64, any::<f64>()], digits in 0..5_usize) {
            if let Some(rounded) = rounded(number, digits) {
                prop_assert_eq!(rounded, format!("{number:.digits$}"));
            }
        }
    }
}
