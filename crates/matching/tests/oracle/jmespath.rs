//! Random JMESPath filters, and another implementation of the language as reference: evaluated as `[?f]` over a list
//! that contains only the event; any error is no match.
//!
//! The reference has doubles only. So it gets the ranks of numbers in place of the numbers, in filters as in events,
//! and filters only compare numbers.

use std::rc::Rc;

use fastrand::Rng;
use jmespath::{
    Context, Expression, Rcvar, Runtime, ToJmespath, Variable,
    functions::{ArgumentType, CustomFunction, Signature},
};
use serde_json::{Value as Json, json};
use tocsin_matching::filter::compile;
use tocsin_model::{
    filter::{Dialect, Filter},
    value::Value,
};

use crate::{
    ldap::Person,
    values::{any_number, event_fields, lower, one_of, ranked, spelled, text},
    world::{Event, OwnFilter},
};

thread_local! {
    static RUNTIME: &'static Runtime = {
        let mut runtime = Runtime::new();
        runtime.register_builtin_functions();
        let signature = Signature::new(vec![ArgumentType::String, ArgumentType::String], None);
        // As in NotifyBC: false if either text is empty.
        let contains_ci = |arguments: &[Rcvar], _: &mut Context<'_>| {
            let text = |at: usize| lower(arguments[at].as_string().expect("its signature says so"));
            let (text, part) = (text(0), text(1));
            Ok(Rcvar::new(Variable::Bool(!text.is_empty() && !part.is_empty() && text.contains(&part))))
        };
        runtime.register_function("contains_ci", Box::new(CustomFunction::new(signature, Box::new(contains_ci))));
        Box::leak(Box::new(runtime))
    };
}

/// The list that contains only the event, in the types of the reference.
pub fn event_list(event: &Json) -> Rcvar {
    json!([ranked(event)]).to_jmespath().expect("JSON")
}

pub fn random_filter(random: &mut Rng, depth: u32) -> Option<OwnFilter> {
    let ExpressionTexts { ours, theirs } = random_text(random, depth);
    let filter = Filter::new(Dialect::Jmespath, ours);
    // Filters that can never match are rejected.
    compile(&filter, event_fields()).ok()?;
    let theirs = RUNTIME.with(|runtime| runtime.compile(&format!("[?{theirs}]"))).expect("the other takes it too");
    Some(OwnFilter { filter, holds: Rc::new(move |event: &Event, _: &Person| holds(&theirs, event)) })
}

fn holds(theirs: &Expression<'_>, event: &Event) -> bool {
    // An event without any value matches every filter.
    event.row.iter().all(Value::is_null)
        || theirs.search(event.event_list()).is_ok_and(|found| found.as_array().is_some_and(|list| !list.is_empty()))
}

/// An expression in the spelling of both implementations.
#[derive(Clone)]
struct ExpressionTexts {
    ours: String,
    theirs: String,
}

impl ExpressionTexts {
    /// The same spelling in both.
    fn plain(text: impl Into<String>) -> ExpressionTexts {
        let text = text.into();
        ExpressionTexts { ours: text.clone(), theirs: text }
    }

    /// A literal between backticks.
    fn literal(value: &Json) -> ExpressionTexts {
        ExpressionTexts { ours: format!("`{value}`"), theirs: format!("`{}`", ranked(value)) }
    }

    fn number(random: &mut Rng) -> ExpressionTexts {
        let number = any_number(random);
        let theirs = ranked(&Json::from(number.clone()));
        ExpressionTexts { ours: format!("`{}`", spelled(&number)), theirs: format!("`{theirs}`") }
    }

    /// Replaces each `{}` of a template, in order.
    fn fill(pattern: &str, parts: &[ExpressionTexts]) -> ExpressionTexts {
        let mut filled = ExpressionTexts::plain("");
        let mut parts = parts.iter();
        for (at, text) in pattern.split("{}").enumerate() {
            if at > 0 {
                let part = parts.next().expect("a part for each place");
                filled.ours.push_str(&part.ours);
                filled.theirs.push_str(&part.theirs);
            }
            filled.ours.push_str(text);
            filled.theirs.push_str(text);
        }
        filled
    }
}

fn quoted(random: &mut Rng) -> ExpressionTexts {
    ExpressionTexts::plain(format!("'{}'", text(random)))
}

/// A literal of any type.
fn literal(random: &mut Rng) -> ExpressionTexts {
    match random.u8(0..9) {
        0 => ExpressionTexts::plain("`null`"),
        1 => ExpressionTexts::plain(one_of(random, &["`true`", "`false`"])),
        2 => ExpressionTexts::plain(one_of(random, &["`[]`", "`{}`"])),
        3 | 4 => ExpressionTexts::number(random),
        5 => ExpressionTexts::literal(&json!([text(random), Json::from(any_number(random))])),
        _ => quoted(random),
    }
}

fn random_atom(random: &mut Rng) -> ExpressionTexts {
    let order = ["<", "<=", ">", ">="];
    let any = ["==", "!=", "<", "<=", ">", ">="];
    let anywhere = ["detail.x", "detail.y", "detail.x.z", "tags[0]", "tags[-1]", "detail.list[0].x"];
    let place = |random: &mut Rng, of: &[&str]| ExpressionTexts::plain(one_of(random, of));
    let sign = |random: &mut Rng, of: &[&str]| ExpressionTexts::plain(one_of(random, of));
    match random.u8(0..26) {
        0 => place(
            random,
            &["s", "t", "i", "n", "b", "at", "tags", "detail", "detail.x", "detail.y", "detail.list", "`0`", "''", "@"],
        ),
        1 | 2 => ExpressionTexts::fill(
            "{} {} {}",
            &[place(random, &["s", "t"]), sign(random, &["==", "!="]), quoted(random)],
        ),
        3..=5 => {
            let (place, sign) = (place(random, &["i", "n", "detail.x", "detail.y", "tags[0]"]), sign(random, &any));
            let number = ExpressionTexts::number(random);
            let parts = if random.bool() { [place, sign, number] } else { [number, sign, place] };
            ExpressionTexts::fill("{} {} {}", &parts)
        }
        6 | 7 => {
            ExpressionTexts::fill("{} {} {}", &[place(random, &anywhere), sign(random, &["==", "!="]), literal(random)])
        }
        8 => ExpressionTexts::fill(
            "{} {} `null`",
            &[place(random, &["s", "i", "at", "tags", "b", "detail", "detail.x"]), sign(random, &["==", "!="])],
        ),
        9 => ExpressionTexts::fill(
            "at {} '1970-01-01T00:00:0{}Z'",
            &[sign(random, &["==", "!="]), ExpressionTexts::plain(random.u8(0..4).to_string())],
        ),
        10 | 11 => {
            let function = place(random, &["contains", "contains_ci", "starts_with", "ends_with"]);
            ExpressionTexts::fill(
                "{}({}, {})",
                &[function, place(random, &["s", "t", "at", "detail.x"]), quoted(random)],
            )
        }
        12 | 13 => ExpressionTexts::fill(
            "contains({}, {})",
            &[place(random, &["tags", "detail.x", "detail.list", "s"]), literal(random)],
        ),
        14 => {
            let item = Json::from(any_number(random));
            let list = ExpressionTexts::literal(&json!([text(random), item, null_or_text(random)]));
            ExpressionTexts::fill(
                "contains({}, {})",
                &[list, place(random, &["s", "i", "n", "at", "b", "detail.x", "detail"])],
            )
        }
        15 | 16 => {
            let asked = match random.u8(0..8) {
                0 => ExpressionTexts::fill("@ == {}", &[literal(random)]),
                1 => ExpressionTexts::fill("@ != {}", &[literal(random)]),
                2 => ExpressionTexts::fill("@ {} {}", &[sign(random, &order), ExpressionTexts::number(random)]),
                3 => ExpressionTexts::fill("{} >= @", &[ExpressionTexts::number(random)]),
                4 => ExpressionTexts::fill("@ == {} || @ == {}", &[literal(random), literal(random)]),
                5 => ExpressionTexts::fill("@ == {} && @ == {}", &[quoted(random), ExpressionTexts::number(random)]),
                6 => ExpressionTexts::fill("contains_ci(@, {})", &[quoted(random)]),
                _ => ExpressionTexts::plain("@"),
            };
            ExpressionTexts::fill("{}[?{}]", &[place(random, &["tags", "detail.x", "detail.list"]), asked])
        }
        17 => ExpressionTexts::fill(
            "detail.list[?x == {} && y {} {}]",
            &[literal(random), sign(random, &any), ExpressionTexts::number(random)],
        ),
        18 => {
            let list = place(random, &["detail.list[*].x", "detail.list[].x", "tags[*]", "tags[]", "detail.*"]);
            ExpressionTexts::fill("{} | contains(@, {})", &[list, literal(random)])
        }
        19 => ExpressionTexts::fill(
            "length({}) {} `{}`",
            &[
                place(random, &["s", "tags", "detail.x", "detail", "not_null(detail.x, 'ab')"]),
                sign(random, &any),
                ExpressionTexts::plain(random.u8(0..4).to_string()),
            ],
        ),
        20 => place(random, &["s == t", "s != t", "contains(s, t)", "starts_with(s, t)", "contains_ci(detail.x, s)"]),
        21 => place(
            random,
            &[
                "not_null(s, t)",
                "type(detail.x) == 'string'",
                "type(detail.x) == 'number'",
                "contains(keys(detail), 'x')",
                "max(tags)",
                "sort(tags)[0]",
                "reverse(tags)[0] == 'a'",
                "join(',', tags) == 'a,b'",
                "map(&x, detail.list)[0]",
                "[s, t] == ['a', 'b']",
                "{a: s} == `{\"a\": \"b\"}`",
                "max_by(detail.list, &x).y",
                "sort_by(detail.list, &x)[0].y == 'a'",
                "tags[1:] == `[]`",
                "tags[::-1][0] == 'a'",
                "merge(detail, {x: s}).x == 'a'",
                "to_array(detail.x)[0] == 'a'",
                "values(detail)[0] == 'a'",
            ],
        ),
        22 => ExpressionTexts::fill("min(tags) {} {}", &[sign(random, &any), ExpressionTexts::number(random)]),
        23 => ExpressionTexts::fill(
            "detail == {}",
            &[ExpressionTexts::literal(&json!({"x": Json::from(any_number(random)), "y": text(random)}))],
        ),
        24 => ExpressionTexts::fill("b {} {}", &[sign(random, &["==", "!="]), place(random, &["`true`", "`false`"])]),
        _ => ExpressionTexts::fill(
            "{}({}, {})",
            &[
                place(random, &["starts_with", "ends_with"]),
                place(random, &["s", "detail.x"]),
                place(random, &["t", "detail.y"]),
            ],
        ),
    }
}

fn null_or_text(random: &mut Rng) -> Json {
    if random.bool() { Json::Null } else { json!(text(random)) }
}

fn random_text(random: &mut Rng, depth: u32) -> ExpressionTexts {
    let several = |random: &mut Rng, sign: &str| {
        let parts: Vec<ExpressionTexts> = (0..random.usize(2..4)).map(|_| random_text(random, depth - 1)).collect();
        ExpressionTexts::fill(&format!("({})", vec!["{}"; parts.len()].join(sign)), &parts)
    };
    match random.u8(0..if depth == 0 { 4 } else { 10 }) {
        0..=3 => random_atom(random),
        4..=6 => several(random, " && "),
        7 | 8 => several(random, " || "),
        _ => ExpressionTexts::fill("!({})", &[random_text(random, depth - 1)]),
    }
}
