//! The plain interpreter: walks a typed expression. Fields are already places, so nothing is looked up by name.
//!
//! The stack cannot overflow, since the height of an expression is bounded; time cannot run out, since every node
//! and every piece of text or list that is made costs steps, and the steps of one evaluation are bounded.

use tocsin_model::value::Value;

use crate::{
    datum::{Datum, List, Map, Text, Trouble, compare, equal},
    dialect::Operator,
    expression::{Constant, Expression, Kind, Macro, MacroParts},
    functions,
    index::table::Table,
};

/// Most steps of one evaluation.
pub const STEPS_MAX: u32 = 100_000;

/// Steps that are left.
#[derive(Debug, Clone, Copy)]
pub struct Steps(u32);

impl Default for Steps {
    fn default() -> Self {
        Steps(STEPS_MAX)
    }
}

impl Steps {
    /// Takes some.
    ///
    /// # Errors
    /// There are not enough left.
    pub fn take(&mut self, steps: usize) -> Result<(), Trouble> {
        let steps = u32::try_from(steps).unwrap_or(u32::MAX);
        self.0 = self.0.checked_sub(steps).ok_or(Trouble::Cost)?;
        Ok(())
    }
}

/// Where a subscription's parameters come from.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum Parameters<'a> {
    #[default]
    None,
    Row(&'a [Value]),
    Slot(&'a Table, u32),
}

/// What an expression is evaluated over. Fields of what is absent are null.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Scene<'a> {
    pub event: &'a [Value],
    pub parameters: Parameters<'a>,
}

pub(crate) struct Evaluator<'a> {
    scene: Scene<'a>,
    variables: Vec<Datum<'a>>,
}

/// Whether a predicate is true. Anything else, an error too, is not a match.
///
/// # Errors
/// Only the cost limit.
pub(crate) fn holds(expression: &Expression, scene: Scene<'_>) -> Result<bool, Trouble> {
    match Evaluator::new(scene).run(expression, &mut Steps::default()) {
        Ok(Datum::Boolean(value)) => Ok(value),
        Err(Trouble::Cost) => Err(Trouble::Cost),
        _ => Ok(false),
    }
}

/// The value of an expression.
pub(crate) fn value<'a>(expression: &'a Expression, scene: Scene<'a>) -> Result<Datum<'a>, Trouble> {
    Evaluator::new(scene).run(expression, &mut Steps::default())
}

impl<'a> Evaluator<'a> {
    pub fn new(scene: Scene<'a>) -> Self {
        Evaluator { scene, variables: Vec::new() }
    }

    pub fn run(&mut self, expression: &'a Expression, steps: &mut Steps) -> Result<Datum<'a>, Trouble> {
        steps.take(1)?;
        match &expression.kind {
            Kind::Constant(Constant::Value(value)) => Ok(Datum::of(value)),
            Kind::Constant(Constant::Duration(micros)) => Ok(Datum::Duration(*micros)),
            Kind::Event(at) => Ok(self.scene.event.get(*at).map_or(Datum::Null, Datum::of)),
            Kind::Subscription(at) => Ok(match self.scene.parameters {
                Parameters::None => Datum::Null,
                Parameters::Row(row) => row.get(*at).map_or(Datum::Null, Datum::of),
                Parameters::Slot(table, slot) => table.parameter(*at, slot),
            }),
            Kind::Variable(at) => self.variables.get(*at).cloned().ok_or(Trouble::NoSuchKey),
            Kind::Has(inner) => Ok(Datum::Boolean(!matches!(self.run(inner, steps)?, Datum::Null))),
            Kind::HasKey(inner, key) => match self.run(inner, steps)? {
                Datum::Map(map) => {
                    steps.take(map.len() / 8)?;
                    let found = map.find(&Datum::Text(Text::Borrowed(key)));
                    Ok(Datum::Boolean(!matches!(found, None | Some(Datum::Null))))
                }
                Datum::Null => Ok(Datum::Boolean(false)),
                _ => Err(Trouble::Type),
            },
            Kind::Select(inner, key) => match self.run(inner, steps)? {
                Datum::Map(map) => {
                    steps.take(map.len() / 8)?;
                    map.find(&Datum::Text(Text::Borrowed(key))).ok_or(Trouble::NoSuchKey)
                }
                Datum::Null => Err(Trouble::Null),
                _ => Err(Trouble::Type),
            },
            Kind::Index(parts) => {
                let (target, index) = (self.run(&parts[0], steps)?, self.run(&parts[1], steps)?);
                self.index(&target, &index, steps)
            }
            Kind::Not(inner) => match self.run(inner, steps)? {
                Datum::Boolean(value) => Ok(Datum::Boolean(!value)),
                Datum::Null => Err(Trouble::Null),
                _ => Err(Trouble::Type),
            },
            Kind::Negate(inner) => match self.run(inner, steps)? {
                Datum::Integer(value) => value.checked_neg().map(Datum::Integer).ok_or(Trouble::Range),
                Datum::Number(value) => Ok(Datum::Number(-value)),
                Datum::Duration(micros) => micros.checked_neg().map(Datum::Duration).ok_or(Trouble::Range),
                Datum::Null => Err(Trouble::Null),
                _ => Err(Trouble::Type),
            },
            Kind::And(parts) => self.absorb(parts.iter(), false, steps),
            Kind::Or(parts) => self.absorb(parts.iter(), true, steps),
            Kind::Binary(operator, parts) => {
                let (left, right) = (self.run(&parts[0], steps)?, self.run(&parts[1], steps)?);
                binary(*operator, left, right, steps)
            }
            Kind::Conditional(parts) => match self.run(&parts[0], steps)? {
                Datum::Boolean(true) => self.run(&parts[1], steps),
                Datum::Boolean(false) => self.run(&parts[2], steps),
                Datum::Null => Err(Trouble::Null),
                _ => Err(Trouble::Type),
            },
            Kind::List(items) => {
                let items: Result<Vec<Datum<'a>>, Trouble> = items.iter().map(|item| self.run(item, steps)).collect();
                Ok(Datum::List(List::Made(items?.into())))
            }
            Kind::Map(entries) => self.map(entries, steps),
            Kind::Call(function, arguments) => {
                let mut given = Vec::with_capacity(arguments.len());
                for argument in arguments {
                    given.push(self.run(argument, steps)?);
                }
                functions::call(*function, &given, steps)
            }
            Kind::Matches(inner, pattern) => match self.run(inner, steps)? {
                Datum::Text(text) => {
                    steps.take(1 + text.len() / 8)?;
                    Ok(Datum::Boolean(pattern.0.is_match(&text)))
                }
                Datum::Null => Err(Trouble::Null),
                _ => Err(Trouble::Type),
            },
            Kind::Macro(which, parts) => self.expand(*which, parts, steps),
        }
    }

    /// `&&` and `||`: one operand that decides wins over errors, wherever it stands.
    fn absorb(
        &mut self,
        parts: impl Iterator<Item = &'a Expression>,
        decisive: bool,
        steps: &mut Steps,
    ) -> Result<Datum<'a>, Trouble> {
        let mut failed = None;
        for part in parts {
            match self.run(part, steps) {
                Ok(Datum::Boolean(value)) if value == decisive => return Ok(Datum::Boolean(decisive)),
                Ok(Datum::Boolean(_)) => {}
                Ok(Datum::Null) => failed = failed.or(Some(Trouble::Null)),
                Ok(_) => failed = failed.or(Some(Trouble::Type)),
                Err(Trouble::Cost) => return Err(Trouble::Cost),
                Err(trouble) => failed = failed.or(Some(trouble)),
            }
        }
        failed.map_or(Ok(Datum::Boolean(!decisive)), Err)
    }

    fn index(&mut self, target: &Datum<'a>, index: &Datum<'a>, steps: &mut Steps) -> Result<Datum<'a>, Trouble> {
        match (target, index) {
            (Datum::List(items), Datum::Integer(_) | Datum::Number(_)) => {
                let at = match index {
                    Datum::Integer(at) => *at,
                    Datum::Number(at) if at.fract() == 0.0 && at.abs() < 1e15 => *at as i64,
                    _ => return Err(Trouble::Type),
                };
                let at = usize::try_from(at).map_err(|_| Trouble::NoSuchKey)?;
                if at < items.len() { Ok(items.item(at)) } else { Err(Trouble::NoSuchKey) }
            }
            (Datum::Map(map), key @ (Datum::Text(_) | Datum::Integer(_) | Datum::Boolean(_) | Datum::Number(_))) => {
                steps.take(map.len() / 8)?;
                map.find(key).ok_or(Trouble::NoSuchKey)
            }
            (Datum::Null, _) | (_, Datum::Null) => Err(Trouble::Null),
            _ => Err(Trouble::Type),
        }
    }

    fn map(&mut self, entries: &'a [(Expression, Expression)], steps: &mut Steps) -> Result<Datum<'a>, Trouble> {
        let mut made: Vec<(Datum<'a>, Datum<'a>)> = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            let key = self.run(key, steps)?;
            if !matches!(key, Datum::Text(_) | Datum::Integer(_) | Datum::Boolean(_)) {
                return Err(Trouble::Type);
            }
            steps.take(made.len() / 8)?;
            if made.iter().any(|(other, _)| equal(other, &key)) {
                return Err(Trouble::NoSuchKey);
            }
            let value = self.run(value, steps)?;
            made.push((key, value));
        }
        Ok(Datum::Map(Map::Made(made.into())))
    }

    fn expand(&mut self, which: Macro, parts: &'a MacroParts, steps: &mut Steps) -> Result<Datum<'a>, Trouble> {
        let items: List<'a> = match self.run(&parts.range, steps)? {
            Datum::List(items) => items,
            Datum::Map(map) => {
                steps.take(map.len())?;
                List::Made(map.iter().map(|(key, _)| key).collect())
            }
            Datum::Null => return Err(Trouble::Null),
            _ => return Err(Trouble::Type),
        };
        let (mut failed, mut found, mut made) = (None, 0usize, Vec::new());
        for at in 0..items.len() {
            steps.take(1)?;
            let item = items.item(at);
            self.variables.push(item.clone());
            let condition = match &parts.condition {
                Some(condition) => self.run(condition, steps).and_then(|value| match value {
                    Datum::Boolean(value) => Ok(value),
                    Datum::Null => Err(Trouble::Null),
                    _ => Err(Trouble::Type),
                }),
                None => Ok(true),
            };
            let result = match (&parts.result, &condition) {
                (Some(result), Ok(true)) => Some(self.run(result, steps)),
                _ => None,
            };
            self.variables.pop();
            match (which, condition) {
                (_, Err(Trouble::Cost)) => return Err(Trouble::Cost),
                (Macro::All, Ok(false)) => return Ok(Datum::Boolean(false)),
                (Macro::Exists, Ok(true)) => return Ok(Datum::Boolean(true)),
                (Macro::All | Macro::Exists, Err(trouble)) => failed = failed.or(Some(trouble)),
                (_, Err(trouble)) => return Err(trouble),
                (Macro::ExistsOne, Ok(true)) => found += 1,
                (Macro::Filter, Ok(true)) => made.push(item),
                (Macro::Map, Ok(true)) => made.push(result.ok_or(Trouble::Type)??),
                _ => {}
            }
        }
        match (which, failed) {
            (_, Some(trouble)) => Err(trouble),
            (Macro::All, None) => Ok(Datum::Boolean(true)),
            (Macro::Exists, None) => Ok(Datum::Boolean(false)),
            (Macro::ExistsOne, None) => Ok(Datum::Boolean(found == 1)),
            (Macro::Map | Macro::Filter, None) => Ok(Datum::List(List::Made(made.into()))),
        }
    }
}

fn binary<'a>(operator: Operator, left: Datum<'a>, right: Datum<'a>, steps: &mut Steps) -> Result<Datum<'a>, Trouble> {
    match operator {
        Operator::Equal | Operator::NotEqual => {
            charge_comparison(&left, &right, steps)?;
            Ok(Datum::Boolean(equal(&left, &right) == (operator == Operator::Equal)))
        }
        Operator::Less | Operator::LessOrEqual | Operator::Greater | Operator::GreaterOrEqual => {
            charge_comparison(&left, &right, steps)?;
            Ok(Datum::Boolean(functions::satisfies(operator, compare(&left, &right)?)))
        }
        Operator::In => match &right {
            Datum::List(items) => {
                for item in items.iter() {
                    steps.take(1)?;
                    charge_comparison(&left, &item, steps)?;
                    if equal(&left, &item) {
                        return Ok(Datum::Boolean(true));
                    }
                }
                Ok(Datum::Boolean(false))
            }
            Datum::Map(map) => {
                steps.take(map.len() / 8)?;
                Ok(Datum::Boolean(map.find(&left).is_some()))
            }
            Datum::Null => Err(Trouble::Null),
            _ => Err(Trouble::Type),
        },
        _ => functions::arithmetic(operator, left, right, steps),
    }
}

/// Comparing long texts and lists costs what it takes. Maps are compared key by key, hence the square.
fn charge_comparison(left: &Datum<'_>, right: &Datum<'_>, steps: &mut Steps) -> Result<(), Trouble> {
    match (left, right) {
        (Datum::Text(left), Datum::Text(right)) => steps.take(left.len().min(right.len()) / 64),
        (Datum::List(left), Datum::List(right)) if left.len() == right.len() => {
            for (left, right) in left.iter().zip(right.iter()) {
                steps.take(1)?;
                charge_comparison(&left, &right, steps)?;
            }
            Ok(())
        }
        (Datum::Map(left), Datum::Map(right)) if left.len() == right.len() => {
            steps.take(left.len().saturating_mul(left.len()) / 8)?;
            for (key, value) in left.iter() {
                if let Some(other) = right.find(&key) {
                    charge_comparison(&value, &other, steps)?;
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}
