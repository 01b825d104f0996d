//! Order-preserving keys: ordered values become 64-bit integers, so that a search compares integers only.

use std::cmp::Ordering;

use crate::{
    dialect::Operator,
    eval_value::{EvalValue, compare_exact, compare_unsigned},
    expression::Type,
};

/// The original type of the keys of an ordered column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// Integers.
    Integer,
    /// Doubles.
    Number,
    /// Timestamps.
    Timestamp,
    /// Durations.
    Duration,
}

impl Measure {
    /// The measure of an ordered type.
    pub fn of(kind: &Type) -> Option<Measure> {
        Some(match kind {
            Type::Integer => Measure::Integer,
            Type::Number => Measure::Number,
            Type::Timestamp => Measure::Timestamp,
            Type::Duration => Measure::Duration,
            _ => return None,
        })
    }

    /// The key of a value; `None` if no comparison with it can hold: null, NaN, another type.
    pub fn key(self, eval_value: &EvalValue<'_>) -> Option<i64> {
        match (self, eval_value) {
            (Measure::Integer, EvalValue::Integer(value)) => Some(*value),
            (Measure::Number, EvalValue::Number(value)) if !value.is_nan() => Some(ordered_bits(*value)),
            (Measure::Timestamp, EvalValue::Timestamp(time)) => Some(time.0),
            (Measure::Duration, EvalValue::Duration(micros)) => Some(*micros),
            _ => None,
        }
    }

    /// As [`Measure::bound`], for an unsigned integer.
    fn bound_unsigned(self, operator: Operator, value: u64) -> Option<Bound> {
        if let Ok(value) = i64::try_from(value) {
            return self.bound(operator, &EvalValue::Integer(value));
        }
        let place = match self {
            Measure::Integer => KeyPosition::Above,
            Measure::Number => {
                let near = value as f64;
                let key = ordered_bits(near);
                match compare_unsigned(value, near)? {
                    Ordering::Equal => KeyPosition::At(key),
                    Ordering::Greater => KeyPosition::After(key),
                    Ordering::Less => KeyPosition::After(key.checked_sub(1)?),
                }
            }
            Measure::Timestamp | Measure::Duration => return None,
        };
        place.bound(operator)
    }

    /// [`Measure::bound`] for a value that is itself a key.
    #[inline]
    pub fn bound_at(operator: Operator, key: i64) -> Option<Bound> {
        KeyPosition::At(key).bound(operator)
    }

    /// The keys `k` for which `k operator value` holds, as one inclusive bound. `None`: there are none.
    pub fn bound(self, operator: Operator, value: &EvalValue<'_>) -> Option<Bound> {
        // The position of the value among the keys: at one of them, or between two.
        let place = match (self, value) {
            (Measure::Integer, EvalValue::Number(value)) => KeyPosition::of_number(*value)?,
            (_, EvalValue::Unsigned(value)) => return self.bound_unsigned(operator, *value),
            (Measure::Number, EvalValue::Integer(value)) => {
                let near = *value as f64;
                let key = ordered_bits(near);
                match compare_exact(*value, near)? {
                    Ordering::Equal => KeyPosition::At(key),
                    Ordering::Greater => KeyPosition::After(key),
                    Ordering::Less => KeyPosition::After(key.checked_sub(1)?),
                }
            }
            _ => KeyPosition::At(self.key(value)?),
        };
        place.bound(operator)
    }
}

/// The keys that satisfy a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// This key and all smaller ones.
    UpTo(i64),
    /// This key and all larger ones.
    From(i64),
}

enum KeyPosition {
    At(i64),
    After(i64),
    Above,
    Below,
}

impl KeyPosition {
    #[inline]
    fn bound(self, operator: Operator) -> Option<Bound> {
        match (operator, self) {
            (Operator::LessOrEqual, KeyPosition::At(key)) => Some(Bound::UpTo(key)),
            (Operator::Less, KeyPosition::At(key)) => key.checked_sub(1).map(Bound::UpTo),
            (Operator::GreaterOrEqual, KeyPosition::At(key)) => Some(Bound::From(key)),
            (Operator::Greater, KeyPosition::At(key)) => key.checked_add(1).map(Bound::From),
            (Operator::LessOrEqual | Operator::Less, KeyPosition::After(key)) => Some(Bound::UpTo(key)),
            (Operator::GreaterOrEqual | Operator::Greater, KeyPosition::After(key)) => {
                key.checked_add(1).map(Bound::From)
            }
            (Operator::LessOrEqual | Operator::Less, KeyPosition::Above) => Some(Bound::UpTo(i64::MAX)),
            (Operator::GreaterOrEqual | Operator::Greater, KeyPosition::Below) => Some(Bound::From(i64::MIN)),
            _ => None,
        }
    }

    /// The position of a double among the integers.
    fn of_number(value: f64) -> Option<KeyPosition> {
        let limit = 9_223_372_036_854_775_808.0;
        Some(if value.is_nan() {
            return None;
        } else if value >= limit {
            KeyPosition::Above
        } else if value < -limit {
            KeyPosition::Below
        } else if value.fract() == 0.0 {
            KeyPosition::At(value as i64)
        } else {
            KeyPosition::After(value.floor() as i64)
        })
    }
}

/// Bits of a double that order as integers like the double itself; both zeros have the same key.
pub(crate) fn ordered_bits(value: f64) -> i64 {
    let bits = (value + 0.0).to_bits() as i64;
    bits ^ (((bits >> 63) as u64) >> 1) as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{eval_value::compare, functions::satisfies};

    #[test]
    fn bounds_agree_with_comparisons() {
        let integers = [
            i64::MIN,
            i64::MIN + 1,
            -9_007_199_254_740_993,
            -3,
            -2,
            -1,
            0,
            1,
            2,
            9_007_199_254_740_992,
            9_007_199_254_740_993,
            i64::MAX - 1,
            i64::MAX,
        ];
        let numbers = [
            f64::NEG_INFINITY,
            -1e300,
            -9_223_372_036_854_775_808.0,
            -2.5,
            -2.0,
            -0.0,
            0.0,
            5e-324,
            0.5,
            1.0,
            1.5,
            9_007_199_254_740_992.0,
            9_223_372_036_854_774_784.0,
            9_223_372_036_854_775_808.0,
            f64::INFINITY,
        ];
        let all: Vec<EvalValue<'static>> =
            integers.map(EvalValue::Integer).into_iter().chain(numbers.map(EvalValue::Number)).collect();
        let unsigned = [0, 1, 9_007_199_254_740_993, 1 << 63, (1 << 63) + 1, u64::MAX - 1, u64::MAX];
        let values: Vec<EvalValue<'static>> = all.iter().cloned().chain(unsigned.map(EvalValue::Unsigned)).collect();
        for (measure, keys) in [(Measure::Integer, &all[..integers.len()]), (Measure::Number, &all[integers.len()..])] {
            for key in keys {
                for value in &values {
                    for operator in [Operator::Less, Operator::LessOrEqual, Operator::Greater, Operator::GreaterOrEqual]
                    {
                        let place = measure.key(key).expect("a key");
                        let found = match measure.bound(operator, value) {
                            None => false,
                            Some(Bound::UpTo(bound)) => place <= bound,
                            Some(Bound::From(bound)) => place >= bound,
                        };
                        let expected = satisfies(operator, compare(key, value).expect("numbers"));
                        assert_eq!(found, expected, "{key:?} {} {value:?}", operator.symbol());
                    }
                }
            }
        }
        assert_eq!(Measure::Number.bound(Operator::Less, &EvalValue::Number(f64::NAN)), None);
        assert_eq!(Measure::Number.key(&EvalValue::Number(f64::NAN)), None);
    }
}
