//! The normal form of conditions: equivalent conditions become equal, where that is cheap to detect.
//!
//! Nested `All` and `Any` are flattened, their parts sorted and de-duplicated. Equalities of one path under `Any`
//! become one set, two ends of one range under `All` become one range. Sets are sorted, and constant conditions are
//! folded away.

use tocsin_model::value::Value;

use crate::{
    eval_value::{EvalValue, write_key},
    filter::condition::{Case, Condition, Limit, Path, Range, Reach, Test, ValueTest},
};

/// Most conjunctions in a disjunctive normal form.
pub const CONJUNCTIONS_MAX: usize = 16;

/// Brings a condition to its normal form.
pub fn normalise(condition: Condition) -> Condition {
    match condition {
        Condition::All(parts) => {
            let mut all = Vec::with_capacity(parts.len());
            for part in parts {
                match normalise(part) {
                    Condition::All(inner) => all.extend(inner),
                    // An unknown condition adds nothing to known ones.
                    Condition::Always | Condition::Unknown => {}
                    Condition::Any(none) if none.is_empty() => return Condition::never(),
                    part => all.push(part),
                }
            }
            join_ranges(&mut all);
            sort(&mut all);
            match all.len() {
                0 => Condition::Always,
                1 => all.remove(0),
                _ => Condition::All(all),
            }
        }
        Condition::Any(parts) => {
            let (mut any, mut unknown) = (Vec::with_capacity(parts.len()), false);
            for part in parts {
                match normalise(part) {
                    Condition::Any(inner) => any.extend(inner),
                    Condition::Always => return Condition::Always,
                    Condition::Unknown => unknown = true,
                    part => any.push(part),
                }
            }
            if unknown {
                return Condition::Unknown;
            }
            join_sets(&mut any);
            sort(&mut any);
            if any.len() == 1 { any.remove(0) } else { Condition::Any(any) }
        }
        Condition::Test(Test { path, value_test }) => match normal_how(value_test) {
            ValueTest::In(values) if values.is_empty() => Condition::never(),
            value_test => Condition::Test(Test { path, value_test }),
        },
        condition => condition,
    }
}

fn normal_how(value_test: ValueTest) -> ValueTest {
    match value_test {
        ValueTest::In(values) => ValueTest::In(normal_values(values)),
        ValueTest::But(inner) => match normal_how(*inner) {
            ValueTest::But(value_test) => *value_test,
            value_test => ValueTest::But(Box::new(value_test)),
        },
        ValueTest::Range(Range { low, high }) => {
            let number = |limit: Limit| Limit { value: normal_value(limit.value), ..limit };
            ValueTest::Range(Range { low: low.map(number), high: high.map(number) })
        }
        value_test => value_test,
    }
}

/// One representation per number: an integer, where the value is integral.
fn normal_value(value: Value) -> Value {
    match value {
        Value::Number(number)
            if number.fract() == 0.0
                && (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&number) =>
        {
            Value::Integer(number as i64)
        }
        value => value,
    }
}

fn normal_values(values: Vec<Value>) -> Vec<Value> {
    // A value without a key, such as NaN, equals nothing.
    let mut keyed: Vec<(Vec<u8>, Value)> = values
        .into_iter()
        .filter_map(|value| {
            let mut key = Vec::new();
            write_key(&EvalValue::of(&value), &mut key).ok()?;
            Some((key, normal_value(value)))
        })
        .collect();
    keyed.sort_unstable_by(|left, right| left.0.cmp(&right.0));
    keyed.dedup_by(|left, right| left.0 == right.0);
    keyed.into_iter().map(|(_, value)| value).collect()
}

/// Joins the two ends of a range of one value, given as separate tests, into one test.
fn join_ranges(parts: &mut Vec<Condition>) {
    let is_half = |part: &Condition| match part {
        Condition::Test(Test { path, value_test: ValueTest::Range(range) }) => {
            path.reach == Reach::One && (range.low.is_none() || range.high.is_none())
        }
        _ => false,
    };
    if parts.iter().filter(|part| is_half(part)).count() < 2 {
        return;
    }
    let (mut halves, others): (Vec<_>, Vec<_>) = std::mem::take(parts).into_iter().partition(is_half);
    *parts = others;
    // Sorted first, so that the order of the source does not matter.
    sort(&mut halves);
    for half in halves {
        let Condition::Test(Test { path, value_test: ValueTest::Range(range) }) = half else { continue };
        let fits = |part: &&mut Condition| match part {
            Condition::Test(Test { path: other, value_test: ValueTest::Range(other_range) }) => {
                *other == path
                    && (other_range.low.is_none() && range.high.is_none()
                        || other_range.high.is_none() && range.low.is_none())
            }
            _ => false,
        };
        match parts.iter_mut().find(fits) {
            Some(Condition::Test(Test { value_test: ValueTest::Range(other), .. })) => {
                other.low = other.low.take().or(range.low);
                other.high = other.high.take().or(range.high);
            }
            _ => parts.push(Condition::Test(Test { path, value_test: ValueTest::Range(range) })),
        }
    }
}

/// Joins equalities of one path into one set.
fn join_sets(parts: &mut Vec<Condition>) {
    let is_set = |part: &Condition| matches!(part, Condition::Test(Test { value_test: ValueTest::In(_), .. }));
    if parts.iter().filter(|part| is_set(part)).count() < 2 {
        return;
    }
    let (sets, others): (Vec<_>, Vec<_>) = std::mem::take(parts).into_iter().partition(is_set);
    *parts = others;
    let mut sets: Vec<(Path, Vec<Value>)> = sets
        .into_iter()
        .filter_map(|set| match set {
            Condition::Test(Test { path, value_test: ValueTest::In(values) }) => Some((path, values)),
            _ => None,
        })
        .collect();
    sets.sort_by(|left, right| left.0.cmp(&right.0));
    let mut sets = sets.into_iter().peekable();
    while let Some((path, mut values)) = sets.next() {
        while let Some((_, more)) = sets.next_if(|(other, _)| *other == path) {
            values.extend(more);
        }
        parts.push(Condition::test(path, ValueTest::In(normal_values(values))));
    }
}

fn sort(parts: &mut Vec<Condition>) {
    if parts.len() < 2 {
        return;
    }
    let mut keyed: Vec<(Vec<u8>, Condition)> = std::mem::take(parts)
        .into_iter()
        .map(|part| {
            let mut key = Vec::new();
            write_condition(&part, &mut key);
            (key, part)
        })
        .collect();
    keyed.sort_unstable_by(|left, right| left.0.cmp(&right.0));
    keyed.dedup_by(|left, right| left.0 == right.0);
    *parts = keyed.into_iter().map(|(_, part)| part).collect();
}

/// Appends an encoding that differs for different conditions in normal form.
pub fn write_condition(condition: &Condition, out: &mut Vec<u8>) {
    let mut list = |tag: u8, parts: &[Condition]| {
        out.push(tag);
        write_number(parts.len(), out);
        parts.iter().for_each(|part| write_condition(part, out));
    };
    match condition {
        Condition::All(parts) => list(b'&', parts),
        Condition::Any(parts) => list(b'|', parts),
        Condition::Test(test) => write_test(test, out),
        Condition::Always => out.push(b'+'),
        Condition::Unknown => out.push(b'?'),
    }
}

/// Appends an encoding that differs for different tests.
pub fn write_test(test: &Test, out: &mut Vec<u8>) {
    let Path { field, keys, reach } = &test.path;
    out.push(*reach as u8);
    write_number(*field, out);
    write_number(keys.len(), out);
    keys.iter().for_each(|key| write_text(key, out));
    write_value_test(&test.value_test, out);
}

fn write_value_test(value_test: &ValueTest, out: &mut Vec<u8>) {
    let folded = |case: &Case| *case == Case::Folded;
    let mut text = |tag: u8, text: &str| {
        out.push(tag);
        write_text(text, out);
    };
    match value_test {
        ValueTest::In(values) => {
            out.push(b'=');
            write_number(values.len(), out);
            values.iter().for_each(|value| write_value(value, out));
        }
        ValueTest::Range(range) => {
            out.push(b'<');
            for limit in [&range.low, &range.high] {
                match limit {
                    Some(limit) => {
                        out.push(1 + u8::from(limit.inclusive));
                        write_value(&limit.value, out);
                    }
                    None => out.push(0),
                }
            }
        }
        ValueTest::Prefix(part, case) => text(if folded(case) { b'P' } else { b'p' }, part),
        ValueTest::Suffix(part, case) => text(if folded(case) { b'S' } else { b's' }, part),
        ValueTest::Contains(part, case) => text(if folded(case) { b'C' } else { b'c' }, part),
        ValueTest::Folded(other) => text(b'E', other),
        ValueTest::Matches(regex) => text(b'~', regex.as_str()),
        ValueTest::Cidr(network) => text(b'/', &network.to_string()),
        ValueTest::Wildcard(wildcard) => {
            out.push(b'*');
            write_number(wildcard.parts().len(), out);
            wildcard.parts().iter().for_each(|part| write_text(part, out));
        }
        ValueTest::Exists => out.push(b'e'),
        ValueTest::Missing => out.push(b'm'),
        ValueTest::But(inner) => {
            out.push(b'!');
            write_value_test(inner, out);
        }
    }
}

/// Shorter than [`write_key`]: most values are short, and there are many.
fn write_value(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Text(text) => {
            out.push(b't');
            write_text(text, out);
        }
        Value::Integer(integer) => {
            out.push(b'i');
            write_number(((integer << 1) ^ (integer >> 63)) as usize, out);
        }
        value => {
            out.push(b'k');
            // A value without a key is not in a normal form.
            let _ = write_key(&EvalValue::of(value), out);
        }
    }
}

fn write_text(text: &str, out: &mut Vec<u8>) {
    write_number(text.len(), out);
    out.extend_from_slice(text.as_bytes());
}

fn write_number(mut number: usize, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// The conjunctions of the disjunctive normal form, if there are at most [`CONJUNCTIONS_MAX`]; else `None`.
pub fn disjunction(condition: &Condition) -> Option<Vec<Vec<&Test>>> {
    match condition {
        Condition::Test(test) => Some(vec![vec![test]]),
        Condition::Always | Condition::Unknown => Some(vec![Vec::new()]),
        Condition::Any(parts) => {
            let mut list = Vec::new();
            for part in parts {
                list.extend(disjunction(part)?);
                if list.len() > CONJUNCTIONS_MAX {
                    return None;
                }
            }
            Some(list)
        }
        Condition::All(parts) => {
            let mut list: Vec<Vec<&Test>> = vec![Vec::with_capacity(parts.len())];
            for part in parts {
                if let Condition::Test(test) = part {
                    list.iter_mut().for_each(|tests| tests.push(test));
                    continue;
                }
                let more = disjunction(part)?;
                if list.len() * more.len() > CONJUNCTIONS_MAX {
                    return None;
                }
                list = list
                    .iter()
                    .flat_map(|left| more.iter().map(move |right| [left.as_slice(), right.as_slice()].concat()))
                    .collect();
            }
            Some(list)
        }
    }
}
