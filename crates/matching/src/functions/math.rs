//! The functions of CEL's `math` extension.

use crate::{
    eval_value::{EvalError, EvalValue, compare},
    expression::Function,
    functions::arguments::number,
    steps::Steps,
};

/// Calls one of the math functions.
pub fn call<'a>(function: Function, given: &[EvalValue<'a>], steps: &mut Steps) -> Result<EvalValue<'a>, EvalError> {
    let first = given.first().ok_or(EvalError::Type)?;
    match function {
        Function::Greatest | Function::Least => extreme(function == Function::Greatest, first, steps),
        Function::Abs | Function::Sign => size_or_sign(function, first),
        Function::Ceil
        | Function::Floor
        | Function::Round
        | Function::Trunc
        | Function::IsNan
        | Function::IsInf
        | Function::IsFinite => {
            let value = match first {
                EvalValue::Number(value) => *value,
                other => return Err(wrong(other)),
            };
            Ok(match function {
                Function::Ceil => EvalValue::Number(value.ceil()),
                Function::Floor => EvalValue::Number(value.floor()),
                // Rounds half away from zero.
                Function::Round => EvalValue::Number(value.round()),
                Function::Trunc => EvalValue::Number(value.trunc()),
                Function::IsNan => EvalValue::Boolean(value.is_nan()),
                Function::IsInf => EvalValue::Boolean(value.is_infinite()),
                _ => EvalValue::Boolean(value.is_finite()),
            })
        }
        Function::Sqrt => Ok(EvalValue::Number(number(first)?.sqrt())),
        _ => bits(function, first, given.get(1)),
    }
}

fn wrong(given: &EvalValue<'_>) -> EvalError {
    if matches!(given, EvalValue::Null) { EvalError::Null } else { EvalError::Type }
}

/// The greatest or least of a list, or the single given number. The first of equal ones; NaN is skipped.
fn extreme<'a>(greatest: bool, given: &EvalValue<'a>, steps: &mut Steps) -> Result<EvalValue<'a>, EvalError> {
    let numeric = |eval_value: &EvalValue<'a>| match eval_value {
        EvalValue::Integer(_) | EvalValue::Unsigned(_) | EvalValue::Number(_) => Ok(()),
        other => Err(wrong(other)),
    };
    let EvalValue::List(items) = given else { return numeric(given).map(|()| given.clone()) };
    steps.take(items.len())?;
    let mut best: Option<EvalValue<'a>> = None;
    for item in items.iter() {
        numeric(&item)?;
        let better = match &best {
            None => true,
            Some(best) => {
                compare(&item, best)?.is_some_and(|order| if greatest { order.is_gt() } else { order.is_lt() })
            }
        };
        if better {
            best = Some(item);
        }
    }
    best.ok_or(EvalError::NoSuchKey)
}

fn size_or_sign<'a>(function: Function, given: &EvalValue<'a>) -> Result<EvalValue<'a>, EvalError> {
    let size = function == Function::Abs;
    Ok(match given {
        EvalValue::Integer(value) if size => EvalValue::Integer(value.checked_abs().ok_or(EvalError::Range)?),
        EvalValue::Integer(value) => EvalValue::Integer(value.signum()),
        EvalValue::Unsigned(value) if size => EvalValue::Unsigned(*value),
        EvalValue::Unsigned(value) => EvalValue::Unsigned((*value).min(1)),
        EvalValue::Number(value) if size => EvalValue::Number(value.abs()),
        // Unlike in Rust, the sign of a zero is zero.
        EvalValue::Number(value) if *value == 0.0 => EvalValue::Number(0.0),
        EvalValue::Number(value) => EvalValue::Number(value.signum()),
        other => return Err(wrong(other)),
    })
}

fn bits<'a>(
    function: Function,
    first: &EvalValue<'a>,
    second: Option<&EvalValue<'a>>,
) -> Result<EvalValue<'a>, EvalError> {
    use Function::{BitAnd, BitNot, BitOr, BitXor, ShiftLeft, ShiftRight};
    let word = |eval_value: &EvalValue<'a>| match eval_value {
        EvalValue::Integer(value) => Ok(*value as u64),
        EvalValue::Unsigned(value) => Ok(*value),
        other => Err(wrong(other)),
    };
    let left = word(first)?;
    let right = match (function, second) {
        (BitNot, _) => 0,
        (ShiftLeft | ShiftRight, Some(EvalValue::Integer(places))) => {
            u64::try_from(*places).map_err(|_| EvalError::Range)?
        }
        (ShiftLeft | ShiftRight, other) => return Err(other.map_or(EvalError::Type, wrong)),
        (_, Some(second)) if std::mem::discriminant(first) == std::mem::discriminant(second) => word(second)?,
        _ => return Err(EvalError::Type),
    };
    // A shift fills with zeros, also for negative numbers; a shift by 64 or more gives zero.
    let places = u32::try_from(right).unwrap_or(u32::MAX);
    let result = match function {
        BitAnd => left & right,
        BitOr => left | right,
        BitXor => left ^ right,
        BitNot => !left,
        ShiftLeft => left.checked_shl(places).unwrap_or(0),
        ShiftRight => left.checked_shr(places).unwrap_or(0),
        _ => return Err(EvalError::Type),
    };
    Ok(if matches!(first, EvalValue::Integer(_)) {
        EvalValue::Integer(result as i64)
    } else {
        EvalValue::Unsigned(result)
    })
}
