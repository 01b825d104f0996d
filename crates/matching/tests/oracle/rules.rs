//! Random rule predicates in CEL: conditions that the compiler splits, residuals, and errors.

use fastrand::Rng;

use crate::{surroundings::Surroundings, values::one_of};

fn random_atom(random: &mut Rng, around: &Surroundings) -> String {
    if random.u8(0..3) == 0
        && let Some(atom) = around.random_atom(random, true)
    {
        return atom;
    }
    let order = ["<", "<=", ">", ">="];
    let any = ["<", "<=", ">", ">=", "==", "!="];
    match random.u8(0..25) {
        0 | 1 => format!("event.{0} == sub.{0}", one_of(random, &["s", "t"])),
        2 => format!("sub.{} == event.{}", one_of(random, &["i", "j", "n", "m"]), one_of(random, &["i", "n"])),
        3 => "event.b == sub.b".to_owned(),
        4 | 5 => {
            let (left, right) = (one_of(random, &["i", "n"]), one_of(random, &["i", "j", "n", "m"]));
            format!("event.{left} {} sub.{right}", one_of(random, &order))
        }
        6 | 7 => {
            let (left, right) = (one_of(random, &["i", "j", "n", "m"]), one_of(random, &["i", "n"]));
            format!("sub.{left} {} event.{right}", one_of(random, &order))
        }
        8 => format!(
            "sub.at {} event.at && event.at {} sub.until",
            one_of(random, &["<", "<="]),
            one_of(random, &["<", "<="])
        ),
        9 => {
            let (event, low, high) =
                (one_of(random, &["i", "n"]), one_of(random, &["i", "n"]), one_of(random, &["j", "m"]));
            format!("sub.{low} <= event.{event} && event.{event} < sub.{high}")
        }
        10 => format!("event.{} {} {}", one_of(random, &["i", "n"]), one_of(random, &any), random.i32(-2..3)),
        11 => {
            format!(
                "sub.{} {} {}",
                one_of(random, &["i", "n"]),
                one_of(random, &any),
                one_of(random, &["0", "1.5", "2"])
            )
        }
        12 => format!("sub.s == '{}'", one_of(random, &["a", "b", "ab"])),
        13 => one_of(random, &["has(event.s)", "!has(sub.n)", "has(sub.tags)", "event.n == null", "sub.s != null"])
            .to_owned(),
        14 => one_of(
            random,
            &["event.s in sub.tags", "event.n in sub.tags", "sub.s in event.tags", "event.t in ['a', 'b']"],
        )
        .to_owned(),
        15 => format!("event.s.contains_ci(sub.{})", one_of(random, &["s", "t"])),
        16 => format!("distance_km(event.lat, event.lon, sub.lat, sub.lon) {} sub.radius", one_of(random, &order)),
        17 => "5000 >= distance_km(event.lat, event.lon, sub.lat, sub.lon)".to_owned(),
        18 => format!("event.i + sub.i {} event.n", one_of(random, &order)),
        19 => "sub.tags.exists(tag, tag == event.s || tag > 1)".to_owned(),
        20 => format!("event.n {} sub.n * 2.0 + sub.m", one_of(random, &order)),
        21 => format!("event.s {} sub.{}", one_of(random, &order), one_of(random, &["s", "t"])),
        // Expressions that mostly fail.
        22 => format!("event.i / sub.i {} 1", one_of(random, &any)),
        23 => one_of(
            random,
            &[
                "event.detail.x == sub.s",
                "event.tags[sub.i] == sub.s",
                "sub.tags[0] == event.tags[0]",
                "int(event.s) > sub.i",
                "event.detail.list.exists(item, item.x == sub.s)",
            ],
        )
        .to_owned(),
        _ => format!("(sub.b ? sub.i : sub.n) {} event.n", one_of(random, &any)),
    }
}

pub fn random_predicate(random: &mut Rng, depth: u32, around: &Surroundings) -> String {
    let several = |random: &mut Rng| {
        (0..random.usize(2..4)).map(|_| random_predicate(random, depth - 1, around)).collect::<Vec<String>>()
    };
    match random.u8(0..if depth == 0 { 4 } else { 10 }) {
        0..=3 => random_atom(random, around),
        4..=6 => format!("({})", several(random).join(" && ")),
        7 | 8 => format!("({})", several(random).join(" || ")),
        _ => format!("!({})", random_predicate(random, depth - 1, around)),
    }
}
