//! What the index leaves over, checked for all candidates of an event at once, column by column.

use std::time::Duration;

use tocsin_model::field::FieldType;

use crate::{
    datum::{Datum, Trouble, compare, equal},
    dialect::Operator,
    evaluate::{Parameters, Scene, holds, value},
    expression::{Expression, Function, Kind},
    functions::{EARTH_RADIUS_KM, distance_km, satisfies},
    index::table::Table,
};

/// One conjunct of a residual.
#[derive(Debug, Clone)]
pub(crate) struct Check {
    source: Expression,
    how: How,
}

#[derive(Debug, Clone)]
enum How {
    /// `subscription field operator event`.
    Column { field: usize, operator: Operator, event: Expression },
    /// The distance between a place of the event and one of the subscription is less than a limit.
    Near { latitude: Expression, longitude: Expression, to: [usize; 2], operator: Operator, limit: Limit },
    /// Anything else, by the interpreter.
    Any,
}

#[derive(Debug, Clone)]
enum Limit {
    Field(usize),
    Event(Expression),
}

impl Check {
    /// `kinds` are those of the subscription's columns.
    pub fn new(source: Expression, kinds: &[FieldType]) -> Check {
        let how = column(&source).or_else(|| near(&source, kinds)).unwrap_or(How::Any);
        Check { source, how }
    }

    pub fn source(&self) -> &Expression {
        &self.source
    }

    pub fn subscription_fields(&self) -> Vec<usize> {
        self.source.subscription_fields()
    }

    /// Whether it is checked subscription by subscription, not column by column.
    pub fn is_interpreted(&self) -> bool {
        matches!(self.how, How::Any)
    }

    pub fn weight(&self) -> u8 {
        match self.how {
            How::Column { .. } => 0,
            How::Near { .. } => 1,
            How::Any => 2,
        }
    }

    /// Keeps the slots whose subscriptions pass. Answers how many evaluations were stopped by the cost limit.
    ///
    /// # Errors
    /// The event's side took too many steps, or the time is over.
    pub fn retain(
        &self,
        slots: &mut Vec<u32>,
        scene: Scene<'_>,
        table: &Table,
        until: Option<Until<'_>>,
    ) -> Result<u32, Trouble> {
        let mut stopped = 0;
        match &self.how {
            How::Column { field, operator, event } => match of_event(event, scene)? {
                None => slots.clear(),
                Some(datum) => retain_column(slots, table, *field, *operator, &datum),
            },
            How::Near { latitude, longitude, to, operator, limit } => {
                let (Some(latitude), Some(longitude)) = (number(latitude, scene)?, number(longitude, scene)?) else {
                    slots.clear();
                    return Ok(0);
                };
                let (Some(latitudes), Some(longitudes)) = (table.numbers(to[0]), table.numbers(to[1])) else {
                    return self.retain_any(slots, scene, table, until);
                };
                let passes = |slot: u32, limit: f64| {
                    let (to_latitude, to_longitude) = (latitudes[slot as usize], longitudes[slot as usize]);
                    // A great circle is at least as long as its part along the meridian; the margin is far above any
                    // rounding in the haversine, so this only spares work.
                    let at_least = (latitude - to_latitude).abs().to_radians() * EARTH_RADIUS_KM;
                    if at_least > limit + 0.001 + limit.abs() * 1e-6 {
                        return false;
                    }
                    distance_km(latitude, longitude, to_latitude, to_longitude)
                        .is_ok_and(|distance| satisfies(*operator, distance.partial_cmp(&limit)))
                };
                match limit {
                    Limit::Event(limit) => match number(limit, scene)? {
                        Some(limit) => slots.retain(|slot| passes(*slot, limit)),
                        None => slots.clear(),
                    },
                    Limit::Field(limit) => match table.numbers(*limit) {
                        Some(limits) => slots.retain(|slot| passes(*slot, limits[*slot as usize])),
                        None => return self.retain_any(slots, scene, table, until),
                    },
                }
            }
            How::Any => stopped = self.retain_any(slots, scene, table, until)?,
        }
        Ok(stopped)
    }

    fn retain_any(
        &self,
        slots: &mut Vec<u32>,
        scene: Scene<'_>,
        table: &Table,
        until: Option<Until<'_>>,
    ) -> Result<u32, Trouble> {
        let (mut stopped, mut looked_at, mut is_late) = (0, 0u32, false);
        slots.retain(|slot| {
            if stopped >= STOPPED_MAX || is_late {
                return false;
            }
            looked_at += 1;
            if looked_at.is_multiple_of(GLANCE) && until.is_some_and(Until::is_over) {
                is_late = true;
                return false;
            }
            match holds(&self.source, Scene { parameters: Parameters::Slot(table, *slot), ..scene }) {
                Ok(holds) => holds,
                Err(_) => {
                    stopped += 1;
                    false
                }
            }
        });
        if is_late { Err(Trouble::Time) } else { Ok(stopped) }
    }
}

/// When a rule's time is over, by a clock.
#[derive(Clone, Copy)]
pub(crate) struct Until<'a> {
    pub clock: &'a dyn Fn() -> Duration,
    pub at: Duration,
}

impl Until<'_> {
    /// How long it is until then.
    pub fn left(self) -> Duration {
        self.at.saturating_sub((self.clock)())
    }

    pub fn is_over(self) -> bool {
        (self.clock)() > self.at
    }
}

/// So many evaluations pass between two looks at the clock.
const GLANCE: u32 = 32;

/// After so many evaluations that hit the cost limit, the rest of an event's candidates is given up.
const STOPPED_MAX: u32 = 64;

/// The value of an event's side; `None` where it has none, so that nothing can match.
fn of_event<'a>(expression: &'a Expression, scene: Scene<'a>) -> Result<Option<Datum<'a>>, Trouble> {
    match value(expression, scene) {
        Ok(datum) => Ok(Some(datum)),
        Err(Trouble::Cost) => Err(Trouble::Cost),
        Err(_) => Ok(None),
    }
}

fn number(expression: &Expression, scene: Scene<'_>) -> Result<Option<f64>, Trouble> {
    Ok(match of_event(expression, scene)? {
        Some(Datum::Number(value)) => Some(value),
        Some(Datum::Integer(value)) => Some(value as f64),
        Some(Datum::Unsigned(value)) => Some(value as f64),
        _ => None,
    })
}

fn retain_column(slots: &mut Vec<u32>, table: &Table, field: usize, operator: Operator, datum: &Datum<'_>) {
    if let (Some(numbers), Datum::Number(value), true) = (table.numbers(field), datum, operator != Operator::NotEqual) {
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
            Operator::Equal => equal(&parameter, datum),
            Operator::NotEqual => !equal(&parameter, datum),
            _ => compare(&parameter, datum).is_ok_and(|order| satisfies(operator, order)),
        }
    });
}

fn column(source: &Expression) -> Option<How> {
    let Kind::Binary(operator, parts) = &source.kind else { return None };
    let (field, event, operator) = match (&parts[0].kind, &parts[1].kind) {
        (Kind::Subscription(field), _) if !parts[1].dependence().subscription => (*field, &parts[1], *operator),
        (_, Kind::Subscription(field)) if !parts[0].dependence().subscription => {
            (*field, &parts[0], turned(*operator)?)
        }
        _ => return None,
    };
    let compares = !matches!(
        operator,
        Operator::In | Operator::Add | Operator::Subtract | Operator::Multiply | Operator::Divide | Operator::Remainder
    );
    compares.then(|| How::Column { field, operator, event: event.clone() })
}

fn near(source: &Expression, kinds: &[FieldType]) -> Option<How> {
    let Kind::Binary(operator, parts) = &source.kind else { return None };
    let (distance, limit, operator) = match (&parts[0].kind, &parts[1].kind) {
        (Kind::Call(Function::DistanceKm, distance), _) => (distance, &parts[1], *operator),
        (_, Kind::Call(Function::DistanceKm, distance)) => (distance, &parts[0], turned(*operator)?),
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
    // The haversine of the way there and of the way back is the same to the last bit but for the order of one product,
    // so only the orientation as written keeps the index and the oracle in step.
    if a.dependence().subscription || b.dependence().subscription {
        return None;
    }
    let to = place(c, d)?;
    let less = matches!(operator, Operator::Less | Operator::LessOrEqual);
    less.then(|| How::Near { latitude: a.clone(), longitude: b.clone(), to, operator, limit })
}

/// The operator with its sides exchanged.
fn turned(operator: Operator) -> Option<Operator> {
    Some(match operator {
        Operator::Equal | Operator::NotEqual => operator,
        Operator::Less => Operator::Greater,
        Operator::LessOrEqual => Operator::GreaterOrEqual,
        Operator::Greater => Operator::Less,
        Operator::GreaterOrEqual => Operator::LessOrEqual,
        _ => return None,
    })
}
