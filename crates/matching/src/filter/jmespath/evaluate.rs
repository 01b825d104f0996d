//! The JMESPath interpreter. It borrows from the event and the filter where it can.
//!
//! The stack cannot overflow, since the height of an expression is bounded, and so is the depth of its results. Time is
//! bounded: every node, item and piece of text costs steps, and steps are limited.

use std::rc::Rc;

use tocsin_model::{field::Fields, value::Value};

use crate::{
    eval_value::{EvalError, EvalValue, List, Map, Text, compare},
    filter::jmespath::{
        functions::{Function, call, call_by, is_number, list_of},
        javascript,
        json_types::{is_true, same, to_json_types},
        syntax::{Comparison, Kind, Mode, Node, ProjectionKind, Slice},
    },
    steps::Steps,
};

/// One evaluation.
pub(super) struct Evaluation<'a> {
    fields: &'a Fields,
    event: &'a [Value],
    mode: Mode,
    steps: Steps,
}

impl<'a> Evaluation<'a> {
    /// Over an event, a row of a class.
    pub fn new(fields: &'a Fields, event: &'a [Value], mode: Mode) -> Self {
        Evaluation { fields, event, mode, steps: Steps::default() }
    }

    /// Whether an expression is true on a value, by default the event. Null, false and empty values are not true.
    ///
    /// # Errors
    /// The evaluation error.
    pub fn truth(&mut self, node: &'a Node, here: Option<&EvalValue<'a>>) -> Result<bool, EvalError> {
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
            // In NotifyBC, the reference is an object.
            Kind::Reference(_) if self.mode == Mode::Notifybc => Ok(true),
            _ => Ok(is_true(&self.value(node, here)?)),
        }
    }

    /// The value of an expression on a value, by default the event.
    ///
    /// # Errors
    /// An argument has the wrong type, or the step limit was exceeded.
    pub fn value(&mut self, node: &'a Node, here: Option<&EvalValue<'a>>) -> Result<EvalValue<'a>, EvalError> {
        self.steps.take(1)?;
        match &node.kind {
            Kind::Current => match here {
                Some(value) => Ok(value.clone()),
                None => self.whole(),
            },
            Kind::Event(at) => {
                Ok(self.event.get(*at).map_or(EvalValue::Null, |value| to_json_types(EvalValue::of(value))))
            }
            Kind::Field(name) => match here {
                Some(EvalValue::Map(map)) => {
                    self.steps.take(map.len() / 8)?;
                    Ok(map.find(&EvalValue::Text(Text::Borrowed(name))).map_or(EvalValue::Null, to_json_types))
                }
                _ => Ok(EvalValue::Null),
            },
            Kind::Literal(value) => Ok(EvalValue::of(value)),
            Kind::Index(at) => Ok(match here {
                Some(EvalValue::List(items)) => match place(*at, items.len()) {
                    Some(at) => to_json_types(items.item(at)),
                    None => EvalValue::Null,
                },
                _ => EvalValue::Null,
            }),
            Kind::Slice(slice) => match here {
                Some(EvalValue::List(items)) => self.slice(*slice, items),
                _ => Ok(EvalValue::Null),
            },
            Kind::Sub(parts) => {
                let left = self.value(&parts[0], here)?;
                self.value(&parts[1], Some(&left))
            }
            Kind::Or(parts) | Kind::And(parts) => {
                let decides = matches!(node.kind, Kind::Or(_));
                let mut last = EvalValue::Null;
                for part in parts {
                    last = self.value(part, here)?;
                    if is_true(&last) == decides {
                        break;
                    }
                }
                Ok(last)
            }
            Kind::Not(inner) => Ok(EvalValue::Boolean(!self.truth(inner, here)?)),
            Kind::Compare(comparison, parts) => {
                Ok(self.compare(*comparison, parts, here)?.map_or(EvalValue::Null, EvalValue::Boolean))
            }
            Kind::Project(over, parts) => {
                let left = self.value(&parts[0], here)?;
                match self.over(*over, left)? {
                    Some(items) => self.project(&items, None, &parts[1]),
                    None => Ok(EvalValue::Null),
                }
            }
            Kind::Filter(parts) => match self.value(&parts[0], here)? {
                EvalValue::List(items) => self.project(&items, Some(&parts[2]), &parts[1]),
                _ => Ok(EvalValue::Null),
            },
            Kind::List(_) | Kind::Map(_) if matches!(here, Some(EvalValue::Null)) => Ok(EvalValue::Null),
            Kind::List(parts) => {
                let items = parts.iter().map(|part| self.value(part, here)).collect::<Result<Vec<_>, _>>()?;
                Ok(list_of(items))
            }
            Kind::Map(entries) => {
                let mut map = Vec::with_capacity(entries.len());
                for (key, value) in entries {
                    let value = self.value(value, here)?;
                    self.steps.take(map.len() / 8)?;
                    // Of duplicate names, the later one wins.
                    map.retain(|(known, _)| !matches!(known, EvalValue::Text(known) if **known == **key));
                    map.push((EvalValue::Text(Text::Borrowed(key)), value));
                }
                Ok(EvalValue::Map(Map::Owned(map.into())))
            }
            Kind::Call(function, given) => self.call(*function, given, here),
            Kind::UserFunction(function, given) => {
                let mut values = Vec::with_capacity(given.len());
                for part in given {
                    // A field keeps its type: a timestamp stays a timestamp in CEL.
                    values.push(match &part.kind {
                        Kind::Event(at) => self.event.get(*at).map_or(EvalValue::Null, EvalValue::of),
                        _ => self.value(part, here)?,
                    });
                }
                let found = function.call(values, &mut self.steps)?;
                as_json(found, &mut self.steps)
            }
            Kind::Reference(_) | Kind::Failing => Err(EvalError::Type),
        }
    }

    /// The event as one object of the fields that have a value.
    fn whole(&mut self) -> Result<EvalValue<'a>, EvalError> {
        self.steps.take(self.event.len())?;
        let entries: Rc<[_]> = self
            .fields
            .iter()
            .zip(self.event)
            .filter(|(_, value)| !value.is_null())
            .map(|(field, value)| {
                (EvalValue::Text(Text::Borrowed(field.name.as_str())), to_json_types(EvalValue::of(value)))
            })
            .collect();
        Ok(EvalValue::Map(Map::Owned(entries)))
    }

    /// Whether a comparison holds; `None` for an ordering of values other than numbers, except in NotifyBC's dialect.
    fn compare(
        &mut self,
        comparison: Comparison,
        parts: &'a [Node; 2],
        here: Option<&EvalValue<'a>>,
    ) -> Result<Option<bool>, EvalError> {
        let left = self.value(&parts[0], here)?;
        let right = self.value(&parts[1], here)?;
        if self.mode == Mode::Notifybc {
            return self.compare_as_javascript(comparison, &left, &right).map(Some);
        }
        if !comparison.is_ordered() {
            return Ok(Some(same(&left, &right, &mut self.steps)? == (comparison == Comparison::Equal)));
        }
        if !is_number(&left) || !is_number(&right) {
            return Ok(None);
        }
        Ok(Some(comparison.holds(compare(&left, &right)?)))
    }

    fn compare_as_javascript(
        &mut self,
        comparison: Comparison,
        left: &EvalValue<'a>,
        right: &EvalValue<'a>,
    ) -> Result<bool, EvalError> {
        match comparison {
            Comparison::Equal => javascript::same(left, right, &mut self.steps),
            Comparison::NotEqual => javascript::same(left, right, &mut self.steps).map(|same| !same),
            _ => Ok(comparison.holds(javascript::order(left, right, &mut self.steps)?)),
        }
    }

    /// The items that a projection iterates over; `None` if the value has the wrong type.
    fn over(&mut self, over: ProjectionKind, value: EvalValue<'a>) -> Result<Option<List<'a>>, EvalError> {
        Ok(match (over, value) {
            (ProjectionKind::Items, EvalValue::List(items)) => Some(items),
            (ProjectionKind::Values, EvalValue::Map(entries)) => {
                self.steps.take(entries.len())?;
                Some(List::Owned(entries.iter().map(|(_, value)| value).collect()))
            }
            (ProjectionKind::Flattened, EvalValue::List(items)) => {
                let mut flat = Vec::with_capacity(items.len());
                for item in items.iter() {
                    match item {
                        EvalValue::List(inner) => {
                            self.steps.take(1 + inner.len())?;
                            flat.extend(inner.iter());
                        }
                        item => {
                            self.steps.take(1)?;
                            flat.push(item);
                        }
                    }
                }
                Some(List::Owned(flat.into()))
            }
            _ => None,
        })
    }

    fn project(
        &mut self,
        items: &List<'a>,
        condition: Option<&'a Node>,
        right: &'a Node,
    ) -> Result<EvalValue<'a>, EvalError> {
        let mut list = Vec::new();
        for item in items.iter() {
            self.steps.take(1)?;
            let item = to_json_types(item);
            if let Some(condition) = condition
                && !self.truth(condition, Some(&item))?
            {
                continue;
            }
            match self.value(right, Some(&item))? {
                EvalValue::Null => {}
                value => list.push(value),
            }
        }
        Ok(list_of(list))
    }

    fn slice(&mut self, slice: Slice, items: &List<'a>) -> Result<EvalValue<'a>, EvalError> {
        if slice.step == 0 {
            return Err(EvalError::Range);
        }
        let length = items.len() as i64;
        // As in Python: positions out of range are clamped.
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
        Ok(list_of(list))
    }

    fn call(
        &mut self,
        function: Function,
        given: &'a [Node],
        here: Option<&EvalValue<'a>>,
    ) -> Result<EvalValue<'a>, EvalError> {
        let by = match given {
            [Node { kind: Kind::Reference(by), .. }, list] | [list, Node { kind: Kind::Reference(by), .. }] => {
                Some((list, &**by))
            }
            _ => None,
        };
        let Some((list, by)) = by else {
            let given = given.iter().map(|part| self.value(part, here)).collect::<Result<Vec<_>, _>>()?;
            return call(function, &given, self.mode, &mut self.steps);
        };
        let items = match self.value(list, here)? {
            EvalValue::List(items) => items,
            EvalValue::Null => return Err(EvalError::Null),
            _ => return Err(EvalError::Type),
        };
        let mut keys = Vec::with_capacity(items.len());
        for item in items.iter() {
            self.steps.take(1)?;
            keys.push(self.value(by, Some(&to_json_types(item)))?);
        }
        call_by(function, items.iter().map(to_json_types).collect(), keys, self.mode, &mut self.steps)
    }
}

/// Converts a value from CEL to JSON types, as [`EvalValue::to_value`] does.
fn as_json<'a>(eval_value: EvalValue<'a>, steps: &mut Steps) -> Result<EvalValue<'a>, EvalError> {
    steps.take(1)?;
    Ok(match eval_value {
        EvalValue::Null | EvalValue::Boolean(_) | EvalValue::Integer(_) | EvalValue::Text(_) => eval_value,
        EvalValue::Number(value) if value.is_finite() => eval_value,
        EvalValue::Timestamp(_) => to_json_types(eval_value),
        EvalValue::List(List::Stored(_)) | EvalValue::Map(Map::Stored(_)) => eval_value,
        EvalValue::List(List::Owned(items)) => {
            let items = items.iter().map(|item| as_json(item.clone(), steps)).collect::<Result<Vec<_>, _>>()?;
            list_of(items)
        }
        EvalValue::Map(Map::Owned(entries)) => {
            let mut map = Vec::with_capacity(entries.len());
            for (key, value) in entries.iter() {
                let EvalValue::Text(_) = key else { return Err(EvalError::Type) };
                map.push((key.clone(), as_json(value.clone(), steps)?));
            }
            EvalValue::Map(Map::Owned(map.into()))
        }
        other => match other.to_value() {
            Value::Integer(value) => EvalValue::Integer(value),
            Value::Number(value) => EvalValue::Number(value),
            Value::Text(text) => EvalValue::text(&*text),
            Value::Boolean(value) => EvalValue::Boolean(value),
            Value::Null => EvalValue::Null,
            // An optional list or object.
            _ => return Err(EvalError::Type),
        },
    })
}

/// The position of an index, if the list has it.
fn place(at: i64, length: usize) -> Option<usize> {
    let at = if at < 0 { at.checked_add(i64::try_from(length).ok()?)? } else { at };
    usize::try_from(at).ok().filter(|at| *at < length)
}
