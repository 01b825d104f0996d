//! Residual conditions, which no index answers: checked for all candidates of an event at once, column by column.

use std::time::Duration;

use tocsin_model::field::FieldType;

use crate::{
    dialect::Operator,
    eval_value::{EvalError, EvalValue, compare, equal},
    evaluate::{EvalContext, Parameters, holds, value},
    expression::{Expression, Function, Kind},
    functions::{EARTH_RADIUS_KM, distance_km, satisfies},
    index::table::Table,
};

/// One conjunct of a residual.
#[derive(Debug, Clone)]
pub(crate) struct Check {
    source: Expression,
    how: CheckKind,
}

#[derive(Debug, Clone)]
enum CheckKind {
    /// `subscription field operator event`.
    Column { field: usize, operator: Operator, event: Expression },
    /// The distance between a location of the event and one of the subscription is less than a limit.
    Near { latitude: Expression, longitude: Expression, to: [usize; 2], operator: Operator, limit: Limit },
    /// Any other condition, by the interpreter.
    Any,
}

#[derive(Debug, Clone)]
enum Limit {
    Field(usize),
    Event(Expression),
}

impl Check {
    /// `kinds` are the types of the subscription's columns.
    pub fn new(source: Expression, kinds: &[FieldType]) -> Check {
        let how = column(&source).or_else(|| near(&source, kinds)).unwrap_or(CheckKind::Any);
        Check { source, how }
    }

    pub fn source(&self) -> &Expression {
        &self.source
    }

    pub fn subscription_fields(&self) -> Vec<usize> {
        self.source.subscription_fields()
    }

    /// Whether it is evaluated per subscription, not column by column.
    pub fn is_interpreted(&self) -> bool {
        matches!(self.how, CheckKind::Any)
    }

    pub fn weight(&self) -> u8 {
        match self.how {
            CheckKind::Column { .. } => 0,
            CheckKind::Near { .. } => 1,
            CheckKind::Any => 2,
        }
    }

    /// Keeps the slots whose subscriptions pass. Returns how many evaluations were stopped by the step limit.
    ///
    /// # Errors
    /// The event's operand exceeded the step limit, or the deadline passed.
    pub fn retain(
        &self,
        slots: &mut Vec<u32>,
        context: EvalContext<'_>,
        table: &Table,
        deadline: Option<Deadline<'_>>,
    ) -> Result<u32, EvalError> {
        let mut stopped = 0;
        match &self.how {
            CheckKind::Column { field, operator, event } => match of_event(event, context)? {
                None => slots.clear(),
                Some(eval_value) => retain_column(slots, table, *field, *operator, &eval_value),
            },
            CheckKind::Near { latitude, longitude, to, operator, limit } => {
                let (Some(latitude), Some(longitude)) = (number(latitude, context)?, number(longitude, context)?)
                else {
                    slots.clear();
                    return Ok(0);
                };
                let (Some(latitudes), Some(longitudes)) = (table.numbers(to[0]), table.numbers(to[1])) else {
                    return self.retain_any(slots, context, table, deadline);
                };
                let passes = |slot: u32, limit: f64| {
                    let (to_latitude, to_longitude) = (latitudes[slot as usize], longitudes[slot as usize]);
                    // A great circle is at least as long as its part along the meridian. The margin is far above any
                    // rounding in the haversine, so this is only a shortcut.
                    let at_least = (latitude - to_latitude).abs().to_radians() * EARTH_RADIUS_KM;
                    if at_least > limit + 0.001 + limit.abs() * 1e-6 {
                        return false;
                    }
                    distance_km(latitude, longitude, to_latitude, to_longitude)
                        .is_ok_and(|distance| satisfies(*operator, distance.partial_cmp(&limit)))
                };
                match limit {
                    Limit::Event(limit) => match number(limit, context)? {
                        Some(limit) => slots.retain(|slot| passes(*slot, limit)),
                        None => slots.clear(),
                    },
                    Limit::Field(limit) => match table.numbers(*limit) {
                        Some(limits) => slots.retain(|slot| passes(*slot, limits[*slot as usize])),
                        None => return self.retain_any(slots, context, table, deadline),
                    },
                }
            }
            CheckKind::Any => stopped = self.retain_any(slots, context, table, deadline)?,
        }
        Ok(stopped)
    }

    fn retain_any(
        &self,
        slots: &mut Vec<u32>,
        context: EvalContext<'_>,
        table: &Table,
        deadline: Option<Deadline<'_>>,
    ) -> Result<u32, EvalError> {
        let (mut stopped, mut looked_at, mut is_late) = (0, 0u32, false);
        slots.retain(|slot| {
            if stopped >= STOPPED_MAX || is_late {
                return false;
            }
            looked_at += 1;
            if looked_at.is_multiple_of(CLOCK_INTERVAL) && deadline.is_some_and(Deadline::is_past) {
                is_late = true;
                return false;
            }
            match holds(&self.source, EvalContext { parameters: Parameters::Slot(table, *slot), ..context }) {
                Ok(holds) => holds,
                Err(_) => {
                    stopped += 1;
                    false
                }
            }
        });
        if is_late { Err(EvalError::Time) } else { Ok(stopped) }
    }
}

/// The deadline of a rule, with its clock.
#[derive(Clone, Copy)]
pub(crate) struct Deadline<'a> {
    pub clock: &'a dyn Fn() -> Duration,
    pub at: Duration,
}

impl Deadline<'_> {
    /// The remaining time.
    pub fn left(self) -> Duration {
        self.at.saturating_sub((self.clock)())
    }

    pub fn is_past(self) -> bool {
        (self.clock)() > self.at
    }
}

/// Evaluations between two reads of the clock.
const CLOCK_INTERVAL: u32 = 32;

/// After this many evaluations that hit the step limit, the remaining candidates of an event are skipped.
const STOPPED_MAX: u32 = 64;

/// The value of the event's operand; `None` if it has none, so that there is no match.
fn of_event<'a>(expression: &'a Expression, context: EvalContext<'a>) -> Result<Option<EvalValue<'a>>, EvalError> {
    match value(expression, context) {
        Ok(eval_value) => Ok(Some(eval_value)),
        Err(EvalError::Cost) => Err(EvalError::Cost),
        Err(_) => Ok(None),
    }
}

fn number(expression: &Expression, context: EvalContext<'_>) -> Result<Option<f64>, EvalError> {
    Ok(match of_event(expression, context)? {
        Some(EvalValue::Number(value)) => Some(value),
        Some(EvalValue::Integer(value)) => Some(value as f64),
        Some(EvalValue::Unsigned(value)) => Some(value as f64),
        _ => None,
    })
}

fn retain_column(slots: &mut Vec<u32>, table: &Table, field: usize, operator: Operator, eval_value: &EvalValue<'_>) {
    if let (Some(numbers), EvalValue::Number(value), true) =
        (table.numbers(field), eval_value, operator != Operator::NotEqual)
    {
        // A NaN, which is null here, passes none of these.
        match operator {
            Operator::Equal => slots.retain(|slot| numbers[*slot as usize] == *value),
            Operator::Less => slots.retain(|slot| numbers[*slot as usize] < *value),
            Operator::LessOrEqual => slots.retain(|slot| numbers[*slot as usize] <= *value),
            Operator::Greater => slots.retain(|slot| numbers[*slot as usize] > *value),
            _ => slots.retain(|slot| numbers[*slot as usize] >= *value),
        }
        return;
    }
    slots.retain(|slot| {
        let parameter = table.parameter(field, *slot);
        match operator {
            Operator::Equal => equal(&parameter, eval_value),
            Operator::NotEqual => !equal(&parameter, eval_value),
            _ => compare(&parameter, eval_value).is_ok_and(|order| satisfies(operator, order)),
        }
    });
}

fn column(source: &Expression) -> Option<CheckKind> {
    let Kind::Binary(operator, parts) = &source.kind else { return None };
    let (field, event, operator) = match (&parts[0].kind, &parts[1].kind) {
        (Kind::Subscription(field), _) if !parts[1].dependence().subscription => (*field, &parts[1], *operator),
        (_, Kind::Subscription(field)) if !parts[0].dependence().subscription => {
            (*field, &parts[0], mirrored(*operator)?)
        }
        _ => return None,
    };
    let compares = !matches!(
        operator,
        Operator::In | Operator::Add | Operator::Subtract | Operator::Multiply | Operator::Divide | Operator::Remainder
    );
    compares.then(|| CheckKind::Column { field, operator, event: event.clone() })
}

fn near(source: &Expression, kinds: &[FieldType]) -> Option<CheckKind> {
    let Kind::Binary(operator, parts) = &source.kind else { return None };
    let (distance, limit, operator) = match (&parts[0].kind, &parts[1].kind) {
        (Kind::Call(Function::DistanceKm, distance), _) => (distance, &parts[1], *operator),
        (_, Kind::Call(Function::DistanceKm, distance)) => (distance, &parts[0], mirrored(*operator)?),
        _ => return None,
    };
    let is_number = |field: usize| kinds[field] == FieldType::Number;
    let limit = match &limit.kind {
        Kind::Subscription(field) if is_number(*field) => Limit::Field(*field),
        _ if !limit.dependence().subscription => Limit::Event(limit.clone()),
        _ => return None,
    };
    let [a, b, c, d] = distance.as_slice() else { return None };
    let place = |latitude: &Expression, longitude: &Expression| match (&latitude.kind, &longitude.kind) {
        (Kind::Subscription(latitude), Kind::Subscription(longitude))
            if is_number(*latitude) && is_number(*longitude) =>
        {
            Some([*latitude, *longitude])
        }
        _ => None,
    };
    // The haversine of A to B equals that of B to A except for the order of one product. Only the orientation as
    // written gives the same result as the oracle, to the last bit.
    if a.dependence().subscription || b.dependence().subscription {
        return None;
    }
    let to = place(c, d)?;
    let less = matches!(operator, Operator::Less | Operator::LessOrEqual);
    less.then(|| CheckKind::Near { latitude: a.clone(), longitude: b.clone(), to, operator, limit })
}

/// The operator with its operands exchanged.
fn mirrored(operator: Operator) -> Option<Operator> {
    Some(match operator {
        Operator::Equal | Operator::NotEqual => operator,
        Operator::Less => Operator::Greater,
        Operator::LessOrEqual => Operator::GreaterOrEqual,
        Operator::Greater => Operator::Less,
        Operator::GreaterOrEqual => Operator::LessOrEqual,
        _ => return None,
    })
}
