//! The expression interpreter: a tree walk over a typed expression. Fields are resolved to indexes, so there is no
//! lookup by name.
//!
//! The stack cannot overflow, since the height of an expression is bounded. Time is bounded too: every node and every
//! text or list that is built costs steps, and the steps of one evaluation are limited.

use tocsin_model::value::Value;

use crate::{
    dialect::Operator,
    eval_value::{EvalError, EvalValue, List, Map, Text, compare, equal},
    expression::{Constant, Expression, Function, Kind, Macro, MacroParts, UserFunction},
    functions::{self, optional::index_of},
    index::table::Table,
    regex_pattern::Pattern,
    steps::{Steps, charge_comparison},
};

/// Source of a subscription's parameters.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum Parameters<'a> {
    #[default]
    None,
    Row(&'a [Value]),
    Slot(&'a Table, u32),
}

/// The input of an evaluation: an event and a subscription. Missing fields are null.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct EvalContext<'a> {
    pub event: &'a [Value],
    pub parameters: Parameters<'a>,
}

/// Evaluates an expression over an event and a subscription, each a row of its class; for dry runs and tests.
///
/// # Errors
/// The evaluation error.
pub fn evaluate(expression: &Expression, event: &[Value], subscription: &[Value]) -> Result<Value, EvalError> {
    let context = EvalContext { event, parameters: Parameters::Row(subscription) };
    value(expression, context).map(|eval_value| eval_value.to_value())
}

/// Evaluates an expression over the variables of its scope, in their order.
///
/// # Errors
/// The evaluation error.
pub fn evaluate_over<'a>(
    expression: &'a Expression,
    variables: Vec<EvalValue<'a>>,
) -> Result<EvalValue<'a>, EvalError> {
    Evaluator::over(EvalContext::default(), variables).run(expression, &mut Steps::default())
}

pub(crate) struct Evaluator<'a> {
    context: EvalContext<'a>,
    variables: Vec<EvalValue<'a>>,
}

/// Whether a predicate is true. Any other value, and an error, is not a match.
///
/// # Errors
/// Only the step limit.
pub(crate) fn holds(expression: &Expression, context: EvalContext<'_>) -> Result<bool, EvalError> {
    // Most guards compare a field with a literal, and are evaluated for every event or every added subscription.
    if let Kind::Binary(operator, parts) = &expression.kind
        && let (Some(left), Some(right)) = (plain(&parts[0], context), plain(&parts[1], context))
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
    match Evaluator::new(context).run(expression, &mut Steps::default()) {
        Ok(EvalValue::Boolean(value)) => Ok(value),
        Err(EvalError::Cost) => Err(EvalError::Cost),
        _ => Ok(false),
    }
}

/// Comparing longer texts costs steps.
const PLAIN_TEXT_MAX: usize = 64;

/// Fast path: the value of a field or literal whose comparison costs no extra step.
#[inline]
fn plain<'a>(expression: &'a Expression, context: EvalContext<'a>) -> Option<EvalValue<'a>> {
    let eval_value = match (&expression.kind, context.parameters) {
        (Kind::Constant(Constant::Value(value)), _) => EvalValue::of(value),
        (Kind::Event(at), _) => context.event.get(*at).map_or(EvalValue::Null, EvalValue::of),
        (Kind::Subscription(at), Parameters::Row(row)) => row.get(*at).map_or(EvalValue::Null, EvalValue::of),
        (Kind::Subscription(at), Parameters::Slot(table, slot)) => table.parameter(*at, slot),
        _ => return None,
    };
    match &eval_value {
        EvalValue::List(_) | EvalValue::Map(_) => None,
        EvalValue::Text(text) if text.len() > PLAIN_TEXT_MAX => None,
        _ => Some(eval_value),
    }
}

/// The value of an expression.
#[inline]
pub(crate) fn value<'a>(expression: &'a Expression, context: EvalContext<'a>) -> Result<EvalValue<'a>, EvalError> {
    // A plain field is the most common expression, evaluated for every event.
    if let Kind::Event(at) = expression.kind {
        return Ok(context.event.get(at).map_or(EvalValue::Null, EvalValue::of));
    }
    Evaluator::new(context).run(expression, &mut Steps::default())
}

impl<'a> Evaluator<'a> {
    pub fn new(context: EvalContext<'a>) -> Self {
        Evaluator { context, variables: Vec::new() }
    }

    /// With values for the outermost variables.
    pub fn over(context: EvalContext<'a>, variables: Vec<EvalValue<'a>>) -> Self {
        Evaluator { context, variables }
    }

    /// Recurses once for each level of an expression. The work of a level is in separate functions, so that the stack
    /// frame of this one stays small.
    pub fn run(&mut self, expression: &'a Expression, steps: &mut Steps) -> Result<EvalValue<'a>, EvalError> {
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
            // Valid only inside lists and maps, which handle it themselves.
            Kind::IfPresent(_) => Err(EvalError::Type),
            Kind::Bind(values, body) => self.bind(values, body, steps),
            Kind::Map(entries) => self.map(entries, steps),
            Kind::Call(function, arguments) => self.call(*function, arguments, steps),
            Kind::UserFunction(function, arguments) => self.defined(function, arguments, steps),
            Kind::Matches(inner, pattern) => self.matches(inner, pattern, steps),
            Kind::Macro(which, parts) => self.expand(*which, parts, steps),
        }
    }

    #[inline]
    fn leaf(&self, kind: &'a Kind) -> Result<EvalValue<'a>, EvalError> {
        Ok(match kind {
            Kind::Constant(Constant::Value(value)) => EvalValue::of(value),
            Kind::Constant(Constant::Duration(micros)) => EvalValue::Duration(*micros),
            Kind::Constant(Constant::Unsigned(value)) => EvalValue::Unsigned(*value),
            Kind::Constant(Constant::Bytes(bytes)) => EvalValue::Bytes(bytes.clone()),
            Kind::Constant(Constant::Type(name)) => EvalValue::Type(name),
            Kind::Event(at) => self.context.event.get(*at).map_or(EvalValue::Null, EvalValue::of),
            Kind::Subscription(at) => match self.context.parameters {
                Parameters::None => EvalValue::Null,
                Parameters::Row(row) => row.get(*at).map_or(EvalValue::Null, EvalValue::of),
                Parameters::Slot(table, slot) => table.parameter(*at, slot),
            },
            Kind::Variable(at) => return self.variables.get(*at).cloned().ok_or(EvalError::NoSuchKey),
            _ => return Err(EvalError::Type),
        })
    }

    fn has(&mut self, inner: &'a Expression, steps: &mut Steps) -> Result<EvalValue<'a>, EvalError> {
        self.run(inner, steps).map(|found| EvalValue::Boolean(!matches!(found, EvalValue::Null)))
    }

    #[inline(never)]
    fn has_key(&mut self, inner: &'a Expression, key: &'a str, steps: &mut Steps) -> Result<EvalValue<'a>, EvalError> {
        let target = match self.run(inner, steps)? {
            EvalValue::Optional(None) => EvalValue::Null,
            EvalValue::Optional(Some(value)) => (*value).clone(),
            target => target,
        };
        match target {
            EvalValue::Map(map) => {
                steps.take(map.len() / 8)?;
                // A key whose value is null is present (CEL, "Macros").
                Ok(EvalValue::Boolean(map.find(&EvalValue::Text(Text::Borrowed(key))).is_some()))
            }
            EvalValue::Null => Ok(EvalValue::Boolean(false)),
            _ => Err(EvalError::Type),
        }
    }

    fn select(&mut self, inner: &'a Expression, key: &'a str, steps: &mut Steps) -> Result<EvalValue<'a>, EvalError> {
        let target = self.run(inner, steps)?;
        select_of(&target, key, steps)
    }

    fn index(&mut self, parts: &'a [Expression; 2], steps: &mut Steps) -> Result<EvalValue<'a>, EvalError> {
        let target = self.run(&parts[0], steps)?;
        let index = self.run(&parts[1], steps)?;
        index_of(&target, &index, steps)
    }

    fn not(&mut self, inner: &'a Expression, steps: &mut Steps) -> Result<EvalValue<'a>, EvalError> {
        match self.run(inner, steps)? {
            EvalValue::Boolean(value) => Ok(EvalValue::Boolean(!value)),
            EvalValue::Null => Err(EvalError::Null),
            _ => Err(EvalError::Type),
        }
    }

    fn negate(&mut self, inner: &'a Expression, steps: &mut Steps) -> Result<EvalValue<'a>, EvalError> {
        match self.run(inner, steps)? {
            EvalValue::Integer(value) => value.checked_neg().map(EvalValue::Integer).ok_or(EvalError::Range),
            EvalValue::Number(value) => Ok(EvalValue::Number(-value)),
            EvalValue::Duration(micros) => micros.checked_neg().map(EvalValue::Duration).ok_or(EvalError::Range),
            EvalValue::Null => Err(EvalError::Null),
            _ => Err(EvalError::Type),
        }
    }

    fn binary(
        &mut self,
        operator: Operator,
        parts: &'a [Expression; 2],
        steps: &mut Steps,
    ) -> Result<EvalValue<'a>, EvalError> {
        let left = self.run(&parts[0], steps)?;
        let right = self.run(&parts[1], steps)?;
        binary(operator, left, right, steps)
    }

    fn conditional(&mut self, parts: &'a [Expression; 3], steps: &mut Steps) -> Result<EvalValue<'a>, EvalError> {
        let chosen = match self.run(&parts[0], steps)? {
            EvalValue::Boolean(true) => 1,
            EvalValue::Boolean(false) => 2,
            EvalValue::Null => return Err(EvalError::Null),
            _ => return Err(EvalError::Type),
        };
        self.run(&parts[chosen], steps)
    }

    fn list(&mut self, items: &'a [Expression], steps: &mut Steps) -> Result<EvalValue<'a>, EvalError> {
        let mut made = Vec::with_capacity(items.len());
        for item in items {
            made.extend(self.item(item, steps)?);
        }
        Ok(EvalValue::List(List::Owned(made.into())))
    }

    #[inline(never)]
    fn bind(
        &mut self,
        values: &'a [Expression],
        body: &'a Expression,
        steps: &mut Steps,
    ) -> Result<EvalValue<'a>, EvalError> {
        let outside = self.variables.len();
        let mut bound = Ok(());
        for value in values {
            match self.run(value, steps) {
                Ok(eval_value) => self.variables.push(eval_value),
                Err(error) => {
                    bound = Err(error);
                    break;
                }
            }
        }
        let result = bound.and_then(|()| self.run(body, steps));
        self.variables.truncate(outside);
        result
    }

    /// The values of the arguments.
    fn arguments_of(
        &mut self,
        arguments: &'a [Expression],
        steps: &mut Steps,
    ) -> Result<Vec<EvalValue<'a>>, EvalError> {
        let mut arguments_of = Vec::with_capacity(arguments.len());
        for argument in arguments {
            arguments_of.push(self.run(argument, steps)?);
        }
        Ok(arguments_of)
    }

    fn call(
        &mut self,
        function: Function,
        arguments: &'a [Expression],
        steps: &mut Steps,
    ) -> Result<EvalValue<'a>, EvalError> {
        let arguments_of = self.arguments_of(arguments, steps)?;
        functions::call(function, &arguments_of, steps)
    }

    fn defined(
        &mut self,
        function: &'a UserFunction,
        arguments: &'a [Expression],
        steps: &mut Steps,
    ) -> Result<EvalValue<'a>, EvalError> {
        let arguments_of = self.arguments_of(arguments, steps)?;
        function.call(arguments_of, steps)
    }

    fn matches(
        &mut self,
        inner: &'a Expression,
        pattern: &Pattern,
        steps: &mut Steps,
    ) -> Result<EvalValue<'a>, EvalError> {
        match self.run(inner, steps)? {
            EvalValue::Text(text) => {
                steps.take(pattern.steps(&text))?;
                Ok(EvalValue::Boolean(pattern.is_match(&text)))
            }
            EvalValue::Null => Err(EvalError::Null),
            _ => Err(EvalError::Type),
        }
    }

    /// `&&` and `||`: an operand that decides wins over errors, in either position.
    fn absorb(
        &mut self,
        parts: impl Iterator<Item = &'a Expression>,
        decisive: bool,
        steps: &mut Steps,
    ) -> Result<EvalValue<'a>, EvalError> {
        let mut failed = None;
        for part in parts {
            match self.run(part, steps) {
                Ok(EvalValue::Boolean(value)) if value == decisive => return Ok(EvalValue::Boolean(decisive)),
                Ok(EvalValue::Boolean(_)) => {}
                Ok(EvalValue::Null) => failed = failed.or(Some(EvalError::Null)),
                Ok(_) => failed = failed.or(Some(EvalError::Type)),
                Err(EvalError::Cost) => return Err(EvalError::Cost),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(EvalValue::Boolean(!decisive)), Err)
    }

    /// An item of a list or value of a map; `None` where an optional is empty.
    fn item(&mut self, item: &'a Expression, steps: &mut Steps) -> Result<Option<EvalValue<'a>>, EvalError> {
        let Kind::IfPresent(inner) = &item.kind else { return self.run(item, steps).map(Some) };
        match self.run(inner, steps)? {
            EvalValue::Optional(value) => Ok(value.map(|value| (*value).clone())),
            EvalValue::Null => Err(EvalError::Null),
            _ => Err(EvalError::Type),
        }
    }

    fn map(&mut self, entries: &'a [(Expression, Expression)], steps: &mut Steps) -> Result<EvalValue<'a>, EvalError> {
        let mut made: Vec<(EvalValue<'a>, EvalValue<'a>)> = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            let key = self.run(key, steps)?;
            if !matches!(
                key,
                EvalValue::Text(_) | EvalValue::Integer(_) | EvalValue::Unsigned(_) | EvalValue::Boolean(_)
            ) {
                return Err(EvalError::Type);
            }
            steps.take(made.len() / 8)?;
            if made.iter().any(|(other, _)| equal(other, &key)) {
                return Err(EvalError::NoSuchKey);
            }
            if let Some(value) = self.item(value, steps)? {
                made.push((key, value));
            }
        }
        Ok(EvalValue::Map(Map::Owned(made.into())))
    }

    fn expand(&mut self, which: Macro, parts: &'a MacroParts, steps: &mut Steps) -> Result<EvalValue<'a>, EvalError> {
        let range = self.run(&parts.range, steps)?;
        self.expand_over(which, parts, range, steps)
    }

    #[inline(never)]
    fn expand_over(
        &mut self,
        which: Macro,
        parts: &'a MacroParts,
        range: EvalValue<'a>,
        steps: &mut Steps,
    ) -> Result<EvalValue<'a>, EvalError> {
        let optional = matches!(which, Macro::OptMap | Macro::OptFlatMap);
        let (items, map): (List<'a>, Option<Map<'a>>) = match range {
            EvalValue::List(items) => (items, None),
            EvalValue::Map(map) => {
                steps.take(map.len())?;
                (List::Owned(map.iter().map(|(key, _)| key).collect()), Some(map))
            }
            EvalValue::Optional(None) if optional => return Ok(EvalValue::optional(None)),
            EvalValue::Optional(Some(value)) if optional => (List::Owned([(*value).clone()].into()), None),
            EvalValue::Null => return Err(EvalError::Null),
            _ => return Err(EvalError::Type),
        };
        let (mut failed, mut found, mut made, mut entries) = (None, 0usize, Vec::new(), Vec::new());
        let outside = self.variables.len();
        for at in 0..items.len() {
            steps.take(1)?;
            let item = items.item(at);
            // With two variables, a list binds index and item, a map key and value.
            match &map {
                Some(map) if parts.paired => self.variables.extend([item.clone(), map.entry(at).1]),
                None if parts.paired => self.variables.extend([EvalValue::Integer(at as i64), item.clone()]),
                _ => self.variables.push(item.clone()),
            }
            let condition = match &parts.condition {
                Some(condition) => self.run(condition, steps).and_then(|value| match value {
                    EvalValue::Boolean(value) => Ok(value),
                    EvalValue::Null => Err(EvalError::Null),
                    _ => Err(EvalError::Type),
                }),
                None => Ok(true),
            };
            let result = match (&parts.result, &condition) {
                (Some(result), Ok(true)) => Some(self.run(result, steps)),
                _ => None,
            };
            self.variables.truncate(outside);
            match (which, condition) {
                (_, Err(EvalError::Cost)) => return Err(EvalError::Cost),
                (Macro::All, Ok(false)) => return Ok(EvalValue::Boolean(false)),
                (Macro::Exists, Ok(true)) => return Ok(EvalValue::Boolean(true)),
                (Macro::All | Macro::Exists, Err(error)) => failed = failed.or(Some(error)),
                (_, Err(error)) => return Err(error),
                (Macro::ExistsOne, Ok(true)) => found += 1,
                (Macro::Filter, Ok(true)) => made.push(item),
                (Macro::TransformMap, Ok(true)) => {
                    let key = if map.is_some() { item } else { EvalValue::Integer(at as i64) };
                    entries.push((key, result.ok_or(EvalError::Type)??));
                }
                (Macro::Map | Macro::TransformList | Macro::OptMap | Macro::OptFlatMap, Ok(true)) => {
                    made.push(result.ok_or(EvalError::Type)??);
                }
                _ => {}
            }
        }
        match (which, failed) {
            (_, Some(error)) => Err(error),
            (Macro::All, None) => Ok(EvalValue::Boolean(true)),
            (Macro::Exists, None) => Ok(EvalValue::Boolean(false)),
            (Macro::ExistsOne, None) => Ok(EvalValue::Boolean(found == 1)),
            (Macro::Map | Macro::Filter | Macro::TransformList, None) => Ok(EvalValue::List(List::Owned(made.into()))),
            (Macro::TransformMap, None) => Ok(EvalValue::Map(Map::Owned(entries.into()))),
            (Macro::OptMap, None) => Ok(EvalValue::optional(made.pop())),
            (Macro::OptFlatMap, None) => match made.pop() {
                Some(value @ EvalValue::Optional(_)) => Ok(value),
                _ => Err(EvalError::Type),
            },
        }
    }
}

/// The value of a map key that is written with a dot.
fn select_of<'a>(target: &EvalValue<'a>, key: &'a str, steps: &mut Steps) -> Result<EvalValue<'a>, EvalError> {
    match target {
        EvalValue::Map(map) => {
            steps.take(map.len() / 8)?;
            map.find(&EvalValue::Text(Text::Borrowed(key))).ok_or(EvalError::NoSuchKey)
        }
        EvalValue::Optional(_) => {
            functions::optional::index_optional(target, &EvalValue::Text(Text::Borrowed(key)), steps)
        }
        EvalValue::Null => Err(EvalError::Null),
        _ => Err(EvalError::Type),
    }
}

fn binary<'a>(
    operator: Operator,
    left: EvalValue<'a>,
    right: EvalValue<'a>,
    steps: &mut Steps,
) -> Result<EvalValue<'a>, EvalError> {
    match operator {
        Operator::Equal | Operator::NotEqual => {
            charge_comparison(&left, &right, steps)?;
            Ok(EvalValue::Boolean(equal(&left, &right) == (operator == Operator::Equal)))
        }
        Operator::Less | Operator::LessOrEqual | Operator::Greater | Operator::GreaterOrEqual => {
            charge_comparison(&left, &right, steps)?;
            Ok(EvalValue::Boolean(functions::satisfies(operator, compare(&left, &right)?)))
        }
        Operator::In => match &right {
            EvalValue::List(items) => {
                for item in items.iter() {
                    steps.take(1)?;
                    charge_comparison(&left, &item, steps)?;
                    if equal(&left, &item) {
                        return Ok(EvalValue::Boolean(true));
                    }
                }
                Ok(EvalValue::Boolean(false))
            }
            EvalValue::Map(map) => {
                steps.take(map.len() / 8)?;
                Ok(EvalValue::Boolean(map.find(&left).is_some()))
            }
            EvalValue::Null => Err(EvalError::Null),
            _ => Err(EvalError::Type),
        },
        _ => functions::arithmetic(operator, left, right, steps),
    }
}

impl UserFunction {
    /// Calls the function.
    ///
    /// # Errors
    /// The evaluation error.
    pub(crate) fn call<'a>(&'a self, given: Vec<EvalValue<'a>>, steps: &mut Steps) -> Result<EvalValue<'a>, EvalError> {
        Evaluator::over(EvalContext::default(), given).run(&self.body, steps)
    }
}
