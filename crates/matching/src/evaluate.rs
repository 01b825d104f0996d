//! The plain interpreter: walks a typed expression. Fields are already places, so nothing is looked up by name.
//!
//! The stack cannot overflow, since the height of an expression is bounded; time cannot run out, since every node
//! and every piece of text or list that is made costs steps, and the steps of one evaluation are bounded.

use tocsin_model::value::Value;

use crate::{
    datum::{Datum, List, Map, Text, Trouble, compare, equal},
    defined::Defined,
    dialect::Operator,
    expression::{Constant, Expression, Function, Kind, Macro, MacroParts},
    functions,
    index::table::Table,
    regular::Pattern,
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

/// The value of an expression over an event and a subscription, each a row of its class; for dry runs and tests.
///
/// # Errors
/// Why it has none.
pub fn evaluate(expression: &Expression, event: &[Value], subscription: &[Value]) -> Result<Value, Trouble> {
    let scene = Scene { event, parameters: Parameters::Row(subscription) };
    value(expression, scene).map(|datum| datum.to_value())
}

/// The value of an expression over the variables of its scope, in their order.
///
/// # Errors
/// Why it has none.
pub fn evaluate_over<'a>(expression: &'a Expression, variables: Vec<Datum<'a>>) -> Result<Datum<'a>, Trouble> {
    Evaluator::over(Scene::default(), variables).run(expression, &mut Steps::default())
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
    // Guards mostly compare a field with a literal, and are asked of every event or of every subscription that is put.
    if let Kind::Binary(operator, parts) = &expression.kind
        && let (Some(left), Some(right)) = (plain(&parts[0], scene), plain(&parts[1], scene))
    {
        match operator {
            Operator::Equal => return Ok(equal(&left, &right)),
            Operator::NotEqual => return Ok(!equal(&left, &right)),
            Operator::Less | Operator::LessOrEqual | Operator::Greater | Operator::GreaterOrEqual => {
                return Ok(compare(&left, &right).is_ok_and(|order| functions::satisfies(*operator, order)));
            }
            _ => {}
        }
    }
    match Evaluator::new(scene).run(expression, &mut Steps::default()) {
        Ok(Datum::Boolean(value)) => Ok(value),
        Err(Trouble::Cost) => Err(Trouble::Cost),
        _ => Ok(false),
    }
}

/// Longer texts cost steps where they are compared.
const PLAIN_TEXT_MAX: usize = 64;

/// The value of a field or a literal, if nothing else is asked and to compare it costs no step of its own.
#[inline]
fn plain<'a>(expression: &'a Expression, scene: Scene<'a>) -> Option<Datum<'a>> {
    let datum = match (&expression.kind, scene.parameters) {
        (Kind::Constant(Constant::Value(value)), _) => Datum::of(value),
        (Kind::Event(at), _) => scene.event.get(*at).map_or(Datum::Null, Datum::of),
        (Kind::Subscription(at), Parameters::Row(row)) => row.get(*at).map_or(Datum::Null, Datum::of),
        (Kind::Subscription(at), Parameters::Slot(table, slot)) => table.parameter(*at, slot),
        _ => return None,
    };
    match &datum {
        Datum::List(_) | Datum::Map(_) => None,
        Datum::Text(text) if text.len() > PLAIN_TEXT_MAX => None,
        _ => Some(datum),
    }
}

/// The value of an expression.
#[inline]
pub(crate) fn value<'a>(expression: &'a Expression, scene: Scene<'a>) -> Result<Datum<'a>, Trouble> {
    // Fields alone are asked for most often, and for every event.
    if let Kind::Event(at) = expression.kind {
        return Ok(scene.event.get(at).map_or(Datum::Null, Datum::of));
    }
    Evaluator::new(scene).run(expression, &mut Steps::default())
}

impl<'a> Evaluator<'a> {
    pub fn new(scene: Scene<'a>) -> Self {
        Evaluator { scene, variables: Vec::new() }
    }

    /// With values for the outermost variables.
    pub fn over(scene: Scene<'a>, variables: Vec<Datum<'a>>) -> Self {
        Evaluator { scene, variables }
    }

    /// Recurses once for each level of an expression. What a level needs stands in functions of its own, so that the frame
    /// of this one stays small.
    pub fn run(&mut self, expression: &'a Expression, steps: &mut Steps) -> Result<Datum<'a>, Trouble> {
        steps.take(1)?;
        match &expression.kind {
            Kind::Constant(_) | Kind::Event(_) | Kind::Subscription(_) | Kind::Variable(_) => {
                self.leaf(&expression.kind)
            }
            Kind::Has(inner) => self.has(inner, steps),
            Kind::HasKey(inner, key) => self.has_key(inner, key, steps),
            Kind::Select(inner, key) => self.select(inner, key, steps),
            Kind::Index(parts) => self.index(parts, steps),
            Kind::Not(inner) => self.not(inner, steps),
            Kind::Negate(inner) => self.negate(inner, steps),
            Kind::And(parts) => self.absorb(parts.iter(), false, steps),
            Kind::Or(parts) => self.absorb(parts.iter(), true, steps),
            Kind::Binary(operator, parts) => self.binary(*operator, parts, steps),
            Kind::Conditional(parts) => self.conditional(parts, steps),
            Kind::List(items) => self.list(items, steps),
            // Stands only in lists and maps, which look into it themselves.
            Kind::IfPresent(_) => Err(Trouble::Type),
            Kind::Bind(values, body) => self.bind(values, body, steps),
            Kind::Map(entries) => self.map(entries, steps),
            Kind::Call(function, arguments) => self.call(*function, arguments, steps),
            Kind::Defined(function, arguments) => self.defined(function, arguments, steps),
            Kind::Matches(inner, pattern) => self.matches(inner, pattern, steps),
            Kind::Macro(which, parts) => self.expand(*which, parts, steps),
        }
    }

    #[inline]
    fn leaf(&self, kind: &'a Kind) -> Result<Datum<'a>, Trouble> {
        Ok(match kind {
            Kind::Constant(Constant::Value(value)) => Datum::of(value),
            Kind::Constant(Constant::Duration(micros)) => Datum::Duration(*micros),
            Kind::Constant(Constant::Unsigned(value)) => Datum::Unsigned(*value),
            Kind::Constant(Constant::Bytes(bytes)) => Datum::Bytes(bytes.clone()),
            Kind::Constant(Constant::Type(name)) => Datum::Type(name),
            Kind::Event(at) => self.scene.event.get(*at).map_or(Datum::Null, Datum::of),
            Kind::Subscription(at) => match self.scene.parameters {
                Parameters::None => Datum::Null,
                Parameters::Row(row) => row.get(*at).map_or(Datum::Null, Datum::of),
                Parameters::Slot(table, slot) => table.parameter(*at, slot),
            },
            Kind::Variable(at) => return self.variables.get(*at).cloned().ok_or(Trouble::NoSuchKey),
            _ => return Err(Trouble::Type),
        })
    }

    fn has(&mut self, inner: &'a Expression, steps: &mut Steps) -> Result<Datum<'a>, Trouble> {
        self.run(inner, steps).map(|found| Datum::Boolean(!matches!(found, Datum::Null)))
    }

    #[inline(never)]
    fn has_key(&mut self, inner: &'a Expression, key: &'a str, steps: &mut Steps) -> Result<Datum<'a>, Trouble> {
        let target = match self.run(inner, steps)? {
            Datum::Optional(None) => Datum::Null,
            Datum::Optional(Some(value)) => (*value).clone(),
            target => target,
        };
        match target {
            Datum::Map(map) => {
                steps.take(map.len() / 8)?;
                // A key whose value is null is there (CEL, "Macros").
                Ok(Datum::Boolean(map.find(&Datum::Text(Text::Borrowed(key))).is_some()))
            }
            Datum::Null => Ok(Datum::Boolean(false)),
            _ => Err(Trouble::Type),
        }
    }

    fn select(&mut self, inner: &'a Expression, key: &'a str, steps: &mut Steps) -> Result<Datum<'a>, Trouble> {
        let target = self.run(inner, steps)?;
        select_of(&target, key, steps)
    }

    fn index(&mut self, parts: &'a [Expression; 2], steps: &mut Steps) -> Result<Datum<'a>, Trouble> {
        let target = self.run(&parts[0], steps)?;
        let index = self.run(&parts[1], steps)?;
        index_of(&target, &index, steps)
    }

    fn not(&mut self, inner: &'a Expression, steps: &mut Steps) -> Result<Datum<'a>, Trouble> {
        match self.run(inner, steps)? {
            Datum::Boolean(value) => Ok(Datum::Boolean(!value)),
            Datum::Null => Err(Trouble::Null),
            _ => Err(Trouble::Type),
        }
    }

    fn negate(&mut self, inner: &'a Expression, steps: &mut Steps) -> Result<Datum<'a>, Trouble> {
        match self.run(inner, steps)? {
            Datum::Integer(value) => value.checked_neg().map(Datum::Integer).ok_or(Trouble::Range),
            Datum::Number(value) => Ok(Datum::Number(-value)),
            Datum::Duration(micros) => micros.checked_neg().map(Datum::Duration).ok_or(Trouble::Range),
            Datum::Null => Err(Trouble::Null),
            _ => Err(Trouble::Type),
        }
    }

    fn binary(
        &mut self,
        operator: Operator,
        parts: &'a [Expression; 2],
        steps: &mut Steps,
    ) -> Result<Datum<'a>, Trouble> {
        let left = self.run(&parts[0], steps)?;
        let right = self.run(&parts[1], steps)?;
        binary(operator, left, right, steps)
    }

    fn conditional(&mut self, parts: &'a [Expression; 3], steps: &mut Steps) -> Result<Datum<'a>, Trouble> {
        let chosen = match self.run(&parts[0], steps)? {
            Datum::Boolean(true) => 1,
            Datum::Boolean(false) => 2,
            Datum::Null => return Err(Trouble::Null),
            _ => return Err(Trouble::Type),
        };
        self.run(&parts[chosen], steps)
    }

    fn list(&mut self, items: &'a [Expression], steps: &mut Steps) -> Result<Datum<'a>, Trouble> {
        let mut made = Vec::with_capacity(items.len());
        for item in items {
            made.extend(self.item(item, steps)?);
        }
        Ok(Datum::List(List::Made(made.into())))
    }

    #[inline(never)]
    fn bind(
        &mut self,
        values: &'a [Expression],
        body: &'a Expression,
        steps: &mut Steps,
    ) -> Result<Datum<'a>, Trouble> {
        let outside = self.variables.len();
        let mut bound = Ok(());
        for value in values {
            match self.run(value, steps) {
                Ok(datum) => self.variables.push(datum),
                Err(trouble) => {
                    bound = Err(trouble);
                    break;
                }
            }
        }
        let result = bound.and_then(|()| self.run(body, steps));
        self.variables.truncate(outside);
        result
    }

    /// The values of arguments.
    fn given(&mut self, arguments: &'a [Expression], steps: &mut Steps) -> Result<Vec<Datum<'a>>, Trouble> {
        let mut given = Vec::with_capacity(arguments.len());
        for argument in arguments {
            given.push(self.run(argument, steps)?);
        }
        Ok(given)
    }

    fn call(
        &mut self,
        function: Function,
        arguments: &'a [Expression],
        steps: &mut Steps,
    ) -> Result<Datum<'a>, Trouble> {
        let given = self.given(arguments, steps)?;
        functions::call(function, &given, steps)
    }

    fn defined(
        &mut self,
        function: &'a Defined,
        arguments: &'a [Expression],
        steps: &mut Steps,
    ) -> Result<Datum<'a>, Trouble> {
        let given = self.given(arguments, steps)?;
        function.call(given, steps)
    }

    fn matches(&mut self, inner: &'a Expression, pattern: &Pattern, steps: &mut Steps) -> Result<Datum<'a>, Trouble> {
        match self.run(inner, steps)? {
            Datum::Text(text) => {
                steps.take(pattern.steps(&text))?;
                Ok(Datum::Boolean(pattern.is_match(&text)))
            }
            Datum::Null => Err(Trouble::Null),
            _ => Err(Trouble::Type),
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

    /// An item of a list or value of a map; `None` where an optional is empty.
    fn item(&mut self, item: &'a Expression, steps: &mut Steps) -> Result<Option<Datum<'a>>, Trouble> {
        let Kind::IfPresent(inner) = &item.kind else { return self.run(item, steps).map(Some) };
        match self.run(inner, steps)? {
            Datum::Optional(value) => Ok(value.map(|value| (*value).clone())),
            Datum::Null => Err(Trouble::Null),
            _ => Err(Trouble::Type),
        }
    }

    fn map(&mut self, entries: &'a [(Expression, Expression)], steps: &mut Steps) -> Result<Datum<'a>, Trouble> {
        let mut made: Vec<(Datum<'a>, Datum<'a>)> = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            let key = self.run(key, steps)?;
            if !matches!(key, Datum::Text(_) | Datum::Integer(_) | Datum::Unsigned(_) | Datum::Boolean(_)) {
                return Err(Trouble::Type);
            }
            steps.take(made.len() / 8)?;
            if made.iter().any(|(other, _)| equal(other, &key)) {
                return Err(Trouble::NoSuchKey);
            }
            if let Some(value) = self.item(value, steps)? {
                made.push((key, value));
            }
        }
        Ok(Datum::Map(Map::Made(made.into())))
    }

    fn expand(&mut self, which: Macro, parts: &'a MacroParts, steps: &mut Steps) -> Result<Datum<'a>, Trouble> {
        let range = self.run(&parts.range, steps)?;
        self.expand_over(which, parts, range, steps)
    }

    #[inline(never)]
    fn expand_over(
        &mut self,
        which: Macro,
        parts: &'a MacroParts,
        range: Datum<'a>,
        steps: &mut Steps,
    ) -> Result<Datum<'a>, Trouble> {
        let optional = matches!(which, Macro::OptMap | Macro::OptFlatMap);
        let (items, map): (List<'a>, Option<Map<'a>>) = match range {
            Datum::List(items) => (items, None),
            Datum::Map(map) => {
                steps.take(map.len())?;
                (List::Made(map.iter().map(|(key, _)| key).collect()), Some(map))
            }
            Datum::Optional(None) if optional => return Ok(Datum::optional(None)),
            Datum::Optional(Some(value)) if optional => (List::Made([(*value).clone()].into()), None),
            Datum::Null => return Err(Trouble::Null),
            _ => return Err(Trouble::Type),
        };
        let (mut failed, mut found, mut made, mut entries) = (None, 0usize, Vec::new(), Vec::new());
        let outside = self.variables.len();
        for at in 0..items.len() {
            steps.take(1)?;
            let item = items.item(at);
            // With two variables, a list gives place and item, a map key and value.
            match &map {
                Some(map) if parts.paired => self.variables.extend([item.clone(), map.entry(at).1]),
                None if parts.paired => self.variables.extend([Datum::Integer(at as i64), item.clone()]),
                _ => self.variables.push(item.clone()),
            }
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
            self.variables.truncate(outside);
            match (which, condition) {
                (_, Err(Trouble::Cost)) => return Err(Trouble::Cost),
                (Macro::All, Ok(false)) => return Ok(Datum::Boolean(false)),
                (Macro::Exists, Ok(true)) => return Ok(Datum::Boolean(true)),
                (Macro::All | Macro::Exists, Err(trouble)) => failed = failed.or(Some(trouble)),
                (_, Err(trouble)) => return Err(trouble),
                (Macro::ExistsOne, Ok(true)) => found += 1,
                (Macro::Filter, Ok(true)) => made.push(item),
                (Macro::TransformMap, Ok(true)) => {
                    let key = if map.is_some() { item } else { Datum::Integer(at as i64) };
                    entries.push((key, result.ok_or(Trouble::Type)??));
                }
                (Macro::Map | Macro::TransformList | Macro::OptMap | Macro::OptFlatMap, Ok(true)) => {
                    made.push(result.ok_or(Trouble::Type)??);
                }
                _ => {}
            }
        }
        match (which, failed) {
            (_, Some(trouble)) => Err(trouble),
            (Macro::All, None) => Ok(Datum::Boolean(true)),
            (Macro::Exists, None) => Ok(Datum::Boolean(false)),
            (Macro::ExistsOne, None) => Ok(Datum::Boolean(found == 1)),
            (Macro::Map | Macro::Filter | Macro::TransformList, None) => Ok(Datum::List(List::Made(made.into()))),
            (Macro::TransformMap, None) => Ok(Datum::Map(Map::Made(entries.into()))),
            (Macro::OptMap, None) => Ok(Datum::optional(made.pop())),
            (Macro::OptFlatMap, None) => match made.pop() {
                Some(value @ Datum::Optional(_)) => Ok(value),
                _ => Err(Trouble::Type),
            },
        }
    }
}

/// The value of a key of a map that is written with a dot.
fn select_of<'a>(target: &Datum<'a>, key: &'a str, steps: &mut Steps) -> Result<Datum<'a>, Trouble> {
    match target {
        Datum::Map(map) => {
            steps.take(map.len() / 8)?;
            map.find(&Datum::Text(Text::Borrowed(key))).ok_or(Trouble::NoSuchKey)
        }
        Datum::Optional(_) => functions::optional::index(target, &Datum::Text(Text::Borrowed(key)), steps),
        Datum::Null => Err(Trouble::Null),
        _ => Err(Trouble::Type),
    }
}

/// An item of a list, or the value of a key of a map. An optional gives an optional.
pub(crate) fn index_of<'a>(target: &Datum<'a>, index: &Datum<'a>, steps: &mut Steps) -> Result<Datum<'a>, Trouble> {
    use Datum::{Boolean, Integer, Number, Unsigned};
    match (target, index) {
        (Datum::List(items), Integer(_) | Unsigned(_) | Number(_)) => {
            let at = match index {
                Integer(at) => *at,
                Unsigned(at) => i64::try_from(*at).map_err(|_| Trouble::NoSuchKey)?,
                Number(at) if at.fract() == 0.0 && at.abs() < 1e15 => *at as i64,
                _ => return Err(Trouble::Type),
            };
            let at = usize::try_from(at).map_err(|_| Trouble::NoSuchKey)?;
            if at < items.len() { Ok(items.item(at)) } else { Err(Trouble::NoSuchKey) }
        }
        (Datum::Map(map), key @ (Datum::Text(_) | Integer(_) | Unsigned(_) | Boolean(_) | Number(_))) => {
            steps.take(map.len() / 8)?;
            map.find(key).ok_or(Trouble::NoSuchKey)
        }
        (Datum::Optional(_), _) => functions::optional::index(target, index, steps),
        (Datum::Null, _) | (_, Datum::Null) => Err(Trouble::Null),
        _ => Err(Trouble::Type),
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
pub(crate) fn charge_comparison(left: &Datum<'_>, right: &Datum<'_>, steps: &mut Steps) -> Result<(), Trouble> {
    match (left, right) {
        (Datum::Text(left), Datum::Text(right)) => steps.take(left.len().min(right.len()) / 64),
        (Datum::Bytes(left), Datum::Bytes(right)) => steps.take(left.len().min(right.len()) / 64),
        (Datum::Optional(Some(left)), Datum::Optional(Some(right))) => charge_comparison(left, right, steps),
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
