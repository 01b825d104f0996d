//! Random CEL filters. The interpreter, checked by the conformance tests, is the reference; the index works with
//! conditions instead.

use std::rc::Rc;

use fastrand::Rng;
use tocsin_matching::filter::compile;
use tocsin_model::{
    field::Row,
    filter::{Dialect, Filter},
};

use crate::{
    ldap::Person,
    surroundings::Surroundings,
    values::{any_number, one_of, spelled, text},
    world::{Event, OwnFilter},
};

pub fn random_filter(random: &mut Rng, depth: u32, around: &Surroundings) -> Option<OwnFilter> {
    let text = random_text(random, depth, around);
    let theirs = compile(&Filter::new(Dialect::Cel, around.spelled_as_fields(&text)), &around.as_fields()).ok()?;
    let of_person = around.clone();
    let holds = move |event: &Event, person: &Person| {
        let row: Row = event.row.iter().chain(&event.chronicled).cloned().chain(of_person.of(person)).collect();
        theirs.holds(&row).expect("few steps")
    };
    Some(OwnFilter { filter: Filter::new(Dialect::Cel, text), holds: Rc::new(holds) })
}

fn random_atom(random: &mut Rng, around: &Surroundings) -> String {
    if random.u8(0..3) == 0
        && let Some(atom) = around.random_atom(random, false)
    {
        return atom;
    }
    let order = ["<", "<=", ">", ">="];
    let any = ["<", "<=", ">", ">=", "==", "!="];
    let number = |random: &mut Rng| spelled(&any_number(random));
    match random.u8(0..20) {
        0 | 1 => format!("event.{} {} '{}'", one_of(random, &["s", "t"]), one_of(random, &["==", "!="]), text(random)),
        2 | 3 => format!("event.{} {} {}", one_of(random, &["i", "n"]), one_of(random, &any), number(random)),
        4 => format!("{} {} event.{}", number(random), one_of(random, &any), one_of(random, &["i", "n"])),
        5 | 6 => {
            let value_test = one_of(random, &["startsWith", "endsWith", "contains", "contains_ci"]);
            format!("event.{}.{value_test}('{}')", one_of(random, &["s", "t", "detail.x"]), text(random))
        }
        7 => format!("event.t in ['{}', '{}', '{}']", text(random), text(random), text(random)),
        8 => format!("'{}' in event.tags", text(random)),
        9 => one_of(random, &["has(event.s)", "!has(event.n)", "event.b", "event.t != null", "event.at == null"])
            .to_owned(),
        10 => {
            let (low, high) = (number(random), number(random));
            format!("event.{0} > {low} && event.{0} <= {high}", one_of(random, &["i", "n"]))
        }
        11 => format!(
            "event.s.matches('{}')",
            one_of(random, &["^a", "b$", "a.*b", "[ab]+", "(a|é)", "(?i)abc", "^10[.]", "ß"])
        ),
        // Ranges of text, with one end and with two.
        12 => format!("event.{} {} '{}'", one_of(random, &["s", "t"]), one_of(random, &order), text(random)),
        13 => format!(
            "event.s {} '{}' && event.s {} '{}'",
            one_of(random, &[">", ">="]),
            text(random),
            one_of(random, &["<", "<="]),
            text(random)
        ),
        14 => format!("event.at {} timestamp('1970-01-01T00:00:0{}Z')", one_of(random, &any), random.u8(0..4)),
        15 => {
            let value = if random.bool() { number(random) } else { format!("'{}'", text(random)) };
            format!("event.detail.{} {} {value}", one_of(random, &["x", "y", "x.z"]), one_of(random, &any))
        }
        16 => one_of(
            random,
            &[
                "has(event.detail.x)",
                "!has(event.detail.x)",
                "has(event.detail.x.z)",
                "!has(event.detail.x.z)",
                "'x' in event.detail",
                "event.detail.x in ['a', 1, 2.5]",
                "event.detail.x == null",
                "event.detail.list.exists(item, item.x == 'a')",
                "event.detail.list.all(item, has(item.x))",
                "event.detail.x",
            ],
        )
        .to_owned(),
        17 => format!(
            "event.tags.exists(t, {})",
            one_of(
                random,
                &[
                    "t == 'a'",
                    "t > 1",
                    "t == 'a' || t == 2",
                    "t != 'a'",
                    "t == null",
                    "t >= 'ab'",
                    "t == 'a' && t != 1"
                ]
            )
        ),
        18 => one_of(
            random,
            &["event.s.lowerAscii() == 'ab'", "event.s.lowerAscii().startsWith('a')", "event.s.upperAscii() == 'A'"],
        )
        .to_owned(),
        _ => one_of(
            random,
            &[
                "event.i + 1 > 2",
                "event.n * 2.0 < event.lat",
                "1 / event.i > 0",
                "size(event.tags) == 2",
                "event.tags[0] == 'a'",
                "event.s == event.t",
                "(event.b ? event.s : event.t) == 'a'",
                "int(event.s) == 1",
                "true",
                "false",
            ],
        )
        .to_owned(),
    }
}

fn random_text(random: &mut Rng, depth: u32, around: &Surroundings) -> String {
    let several = |random: &mut Rng| {
        (0..random.usize(2..4)).map(|_| random_text(random, depth - 1, around)).collect::<Vec<String>>()
    };
    match random.u8(0..if depth == 0 { 4 } else { 10 }) {
        0..=3 => random_atom(random, around),
        4..=6 => format!("({})", several(random).join(" && ")),
        7 | 8 => format!("({})", several(random).join(" || ")),
        _ => format!("!({})", random_text(random, depth - 1, around)),
    }
}
