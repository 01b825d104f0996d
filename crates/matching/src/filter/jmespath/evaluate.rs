//! The plain interpreter of JMESPath. It borrows from the event and the filter, and makes only what an expression makes.
//!
//! The stack cannot overflow, since the height of an expression is bounded, and so the depth of what it makes; time
//! cannot run out, since every node, every item and every stretch of text costs steps, and they are bounded.

use std::{cmp::Ordering, fmt::Write, rc::Rc};

use tocsin_model::{field::Fields, value::Value};

use super::{
    functions::{Function, call, call_by, is_number, made},
    syntax::{Comparison, Kind, Node, Over, Slice},
};
use crate::{
    datum::{Datum, List, Map, Text, Trouble, compare, equal},
    evaluate::{Steps, charge_comparison},
};

/// One evaluation.
pub(super) struct Run<'a> {
    fields: &'a Fields,
    event: &'a [Value],
    steps: Steps,
}

impl<'a> Run<'a> {
    /// Over an event, a row of a class.
    pub fn new(fields: &'a Fields, event: &'a [Value]) -> Self {
        Run { fields, event, steps: Steps::default() }
    }

    /// Whether an expression is true of a value; of the event, if none is given. Null, false and what is empty are not.
    ///
    /// # Errors
    /// The expression has no value.
    pub fn truth(&mut self, node: &'a Node, here: Option<&Datum<'a>>) -> Result<bool, Trouble> {
        match &node.kind {
            Kind::And(parts) => {
                for part in parts {
                    if !self.truth(part, here)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Kind::Or(parts) => {
                for part in parts {
                    if self.truth(part, here)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Kind::Not(inner) => Ok(!self.truth(inner, here)?),
            Kind::Compare(comparison, parts) => Ok(self.compare(*comparison, parts, here)? == Some(true)),
            _ => Ok(is_true(&self.value(node, here)?)),
        }
    }

    /// The value of an expression asked of a value; of the event, if none is given.
    ///
    /// # Errors
    /// A function was given what it does not take, or the cost limit.
    pub fn value(&mut self, node: &'a Node, here: Option<&Datum<'a>>) -> Result<Datum<'a>, Trouble> {
        self.steps.take(1)?;
        match &node.kind {
            Kind::Current => match here {
                Some(value) => Ok(value.clone()),
                None => self.whole(),
            },
            Kind::Event(at) => Ok(self.event.get(*at).map_or(Datum::Null, |value| plain(Datum::of(value)))),
            Kind::Field(name) => match here {
                Some(Datum::Map(map)) => {
                    self.steps.take(map.len() / 8)?;
                    Ok(map.find(&Datum::Text(Text::Borrowed(name))).map_or(Datum::Null, plain))
                }
                _ => Ok(Datum::Null),
            },
            Kind::Literal(value) => Ok(Datum::of(value)),
            Kind::Index(at) => Ok(match here {
                Some(Datum::List(items)) => match place(*at, items.len()) {
                    Some(at) => plain(items.item(at)),
                    None => Datum::Null,
                },
                _ => Datum::Null,
            }),
            Kind::Slice(slice) => match here {
                Some(Datum::List(items)) => self.slice(*slice, items),
                _ => Ok(Datum::Null),
            },
            Kind::Sub(parts) => {
                let left = self.value(&parts[0], here)?;
                self.value(&parts[1], Some(&left))
            }
            Kind::Or(parts) | Kind::And(parts) => {
                let decides = matches!(node.kind, Kind::Or(_));
                let mut last = Datum::Null;
                for part in parts {
                    last = self.value(part, here)?;
                    if is_true(&last) == decides {
                        break;
                    }
                }
                Ok(last)
            }
            Kind::Not(inner) => Ok(Datum::Boolean(!self.truth(inner, here)?)),
            Kind::Compare(comparison, parts) => {
                Ok(self.compare(*comparison, parts, here)?.map_or(Datum::Null, Datum::Boolean))
            }
            Kind::Project(over, parts) => {
                let left = self.value(&parts[0], here)?;
                match self.over(*over, left)? {
                    Some(items) => self.project(&items, None, &parts[1]),
                    None => Ok(Datum::Null),
                }
            }
            Kind::Filter(parts) => match self.value(&parts[0], here)? {
                Datum::List(items) => self.project(&items, Some(&parts[2]), &parts[1]),
                _ => Ok(Datum::Null),
            },
            Kind::List(_) | Kind::Map(_) if matches!(here, Some(Datum::Null)) => Ok(Datum::Null),
            Kind::List(parts) => {
                let items = parts.iter().map(|part| self.value(part, here)).collect::<Result<Vec<_>, _>>()?;
                Ok(made(items))
            }
            Kind::Map(entries) => {
                let mut map = Vec::with_capacity(entries.len());
                for (key, value) in entries {
                    let value = self.value(value, here)?;
                    self.steps.take(map.len() / 8)?;
                    // Of two of one name, the later one counts.
                    map.retain(|(known, _)| !matches!(known, Datum::Text(known) if **known == **key));
                    map.push((Datum::Text(Text::Borrowed(key)), value));
                }
                Ok(Datum::Map(Map::Made(map.into())))
            }
            Kind::Call(function, given) => self.call(*function, given, here),
            Kind::Defined(function, given) => {
                let mut values = Vec::with_capacity(given.len());
                for part in given {
                    // A field is handed over as it is: an instant is one in CEL.
                    values.push(match &part.kind {
                        Kind::Event(at) => self.event.get(*at).map_or(Datum::Null, Datum::of),
                        _ => self.value(part, here)?,
                    });
                }
                let found = function.call(values, &mut self.steps)?;
                as_json(found, &mut self.steps)
            }
            Kind::Reference(_) => Err(Trouble::Type),
        }
    }

    /// The event as one object, of the fields that have a value.
    fn whole(&mut self) -> Result<Datum<'a>, Trouble> {
        self.steps.take(self.event.len())?;
        let entries: Rc<[_]> = self
            .fields
            .iter()
            .zip(self.event)
            .filter(|(_, value)| !value.is_null())
            .map(|(field, value)| (Datum::Text(Text::Borrowed(field.name.as_str())), plain(Datum::of(value))))
            .collect();
        Ok(Datum::Map(Map::Made(entries)))
    }

    /// Whether a comparison holds; `None` where it asks for the order of what is no number.
    fn compare(
        &mut self,
        comparison: Comparison,
        parts: &'a [Node; 2],
        here: Option<&Datum<'a>>,
    ) -> Result<Option<bool>, Trouble> {
        let left = self.value(&parts[0], here)?;
        let right = self.value(&parts[1], here)?;
        if !comparison.is_ordered() {
            return Ok(Some(same(&left, &right, &mut self.steps)? == (comparison == Comparison::Equal)));
        }
        if !is_number(&left) || !is_number(&right) {
            return Ok(None);
        }
        let order = compare(&left, &right)?;
        Ok(Some(match comparison {
            Comparison::Less => order == Some(Ordering::Less),
            Comparison::LessOrEqual => matches!(order, Some(Ordering::Less | Ordering::Equal)),
            Comparison::Greater => order == Some(Ordering::Greater),
            _ => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
        }))
    }

    /// What a projection goes over; `None` if the value is not of that kind.
    fn over(&mut self, over: Over, value: Datum<'a>) -> Result<Option<List<'a>>, Trouble> {
        Ok(match (over, value) {
            (Over::Items, Datum::List(items)) => Some(items),
            (Over::Values, Datum::Map(entries)) => {
                self.steps.take(entries.len())?;
                Some(List::Made(entries.iter().map(|(_, value)| value).collect()))
            }
            (Over::Flattened, Datum::List(items)) => {
                let mut flat = Vec::with_capacity(items.len());
                for item in items.iter() {
                    match item {
                        Datum::List(inner) => {
                            self.steps.take(1 + inner.len())?;
                            flat.extend(inner.iter());
                        }
                        item => {
                            self.steps.take(1)?;
                            flat.push(item);
                        }
                    }
                }
                Some(List::Made(flat.into()))
            }
            _ => None,
        })
    }

    fn project(
        &mut self,
        items: &List<'a>,
        condition: Option<&'a Node>,
        right: &'a Node,
    ) -> Result<Datum<'a>, Trouble> {
        let mut list = Vec::new();
        for item in items.iter() {
            self.steps.take(1)?;
            let item = plain(item);
            if let Some(condition) = condition
                && !self.truth(condition, Some(&item))?
            {
                continue;
            }
            match self.value(right, Some(&item))? {
                Datum::Null => {}
                value => list.push(value),
            }
        }
        Ok(made(list))
    }

    fn slice(&mut self, slice: Slice, items: &List<'a>) -> Result<Datum<'a>, Trouble> {
        let length = items.len() as i64;
        // As Python has it: what lies outside is moved to the nearest end.
        let (low, high) = if slice.step > 0 { (0, length) } else { (-1, length - 1) };
        let bound = |given: Option<i64>, none: i64| match given {
            None => none,
            Some(at) if at < 0 => at.saturating_add(length).clamp(low, high),
            Some(at) => at.clamp(low, high),
        };
        let (start, stop) = match slice.step > 0 {
            true => (bound(slice.start, low), bound(slice.stop, high)),
            false => (bound(slice.start, high), bound(slice.stop, low)),
        };
        let mut list = Vec::new();
        let mut at = start;
        while if slice.step > 0 { at < stop } else { at > stop } {
            self.steps.take(1)?;
            list.extend(usize::try_from(at).ok().map(|at| items.item(at)));
            at = at.saturating_add(slice.step);
        }
        Ok(made(list))
    }

    fn call(&mut self, function: Function, given: &'a [Node], here: Option<&Datum<'a>>) -> Result<Datum<'a>, Trouble> {
        let by = match given {
            [Node { kind: Kind::Reference(by), .. }, list] | [list, Node { kind: Kind::Reference(by), .. }] => {
                Some((list, &**by))
            }
            _ => None,
        };
        let Some((list, by)) = by else {
            let given = given.iter().map(|part| self.value(part, here)).collect::<Result<Vec<_>, _>>()?;
            return call(function, &given, &mut self.steps);
        };
        let items = match self.value(list, here)? {
            Datum::List(items) => items,
            Datum::Null => return Err(Trouble::Null),
            _ => return Err(Trouble::Type),
        };
        let mut keys = Vec::with_capacity(items.len());
        for item in items.iter() {
            self.steps.take(1)?;
            keys.push(self.value(by, Some(&plain(item)))?);
        }
        call_by(function, items.iter().map(plain).collect(), keys, &mut self.steps)
    }
}

/// What JSON would hold of a value that CEL made, which is handed over as [`Datum::to_value`] keeps it.
fn as_json<'a>(datum: Datum<'a>, steps: &mut Steps) -> Result<Datum<'a>, Trouble> {
    steps.take(1)?;
    Ok(match datum {
        Datum::Null | Datum::Boolean(_) | Datum::Integer(_) | Datum::Text(_) => datum,
        Datum::Number(value) if value.is_finite() => datum,
        Datum::Timestamp(_) => plain(datum),
        Datum::List(List::Stored(_)) | Datum::Map(Map::Stored(_)) => datum,
        Datum::List(List::Made(items)) => {
            let items = items.iter().map(|item| as_json(item.clone(), steps)).collect::<Result<Vec<_>, _>>()?;
            made(items)
        }
        Datum::Map(Map::Made(entries)) => {
            let mut map = Vec::with_capacity(entries.len());
            for (key, value) in entries.iter() {
                let Datum::Text(_) = key else { return Err(Trouble::Type) };
                map.push((key.clone(), as_json(value.clone(), steps)?));
            }
            Datum::Map(Map::Made(map.into()))
        }
        other => match other.to_value() {
            Value::Integer(value) => Datum::Integer(value),
            Value::Number(value) => Datum::Number(value),
            Value::Text(text) => Datum::text(&*text),
            Value::Boolean(value) => Datum::Boolean(value),
            Value::Null => Datum::Null,
            // An optional list or object.
            _ => return Err(Trouble::Type),
        },
    })
}

/// What JSON would hold: an instant is text.
pub(super) fn plain(datum: Datum<'_>) -> Datum<'_> {
    match datum {
        Datum::Timestamp(time) => Datum::text(time.to_string()),
        datum => datum,
    }
}

/// Whether a value counts as true.
pub(super) fn is_true(datum: &Datum<'_>) -> bool {
    match datum {
        Datum::Null | Datum::Boolean(false) => false,
        Datum::Text(text) => !text.is_empty(),
        Datum::List(items) => !items.is_empty(),
        Datum::Map(entries) => !entries.is_empty(),
        _ => true,
    }
}

/// Whether two values are equal, deeply; numbers by exact value.
///
/// # Errors
/// Only the cost limit.
pub(super) fn same(left: &Datum<'_>, right: &Datum<'_>, steps: &mut Steps) -> Result<bool, Trouble> {
    steps.take(1)?;
    charge_comparison(left, right, steps)?;
    Ok(equal(left, right))
}

/// The place that an index means, if the list has it.
fn place(at: i64, length: usize) -> Option<usize> {
    let at = if at < 0 { at.checked_add(i64::try_from(length).ok()?)? } else { at };
    usize::try_from(at).ok().filter(|at| *at < length)
}

/// Appends a value as JSON, without blanks; numbers as JavaScript writes them.
///
/// # Errors
/// Only the cost limit.
pub(super) fn write_json(datum: &Datum<'_>, out: &mut String, steps: &mut Steps) -> Result<(), Trouble> {
    steps.take(1)?;
    // Writing into a string does not fail.
    match datum {
        Datum::Null => out.push_str("null"),
        Datum::Boolean(value) => out.push_str(if *value { "true" } else { "false" }),
        Datum::Integer(value) => _ = write!(out, "{value}"),
        Datum::Number(value) if value.abs() < 1e21 && value.fract() == 0.0 => _ = write!(out, "{:.0}", value + 0.0),
        Datum::Number(value) => out.push_str(&json(&Value::Number(*value))),
        Datum::List(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                write_json(&item, out, steps)?;
            }
            out.push(']');
        }
        Datum::Map(entries) => {
            out.push('{');
            for (at, (key, value)) in entries.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                write_json(&key, out, steps)?;
                out.push(':');
                write_json(&value, out, steps)?;
            }
            out.push('}');
        }
        Datum::Text(text) => {
            steps.take(text.len() / 16)?;
            out.push_str(&json(&Value::from(&**text)));
        }
        other => out.push_str(&json(&other.to_value())),
    }
    Ok(())
}

fn json(value: &Value) -> String {
    serde_json::to_string(value).expect("a value is JSON")
}
