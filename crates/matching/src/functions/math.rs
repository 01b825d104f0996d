//! Functions of numbers: those of CEL's `math` extension.

use crate::{
    datum::{Datum, Trouble, compare},
    evaluate::Steps,
    expression::Function,
};

/// Calls one of the functions of numbers.
pub fn call<'a>(function: Function, given: &[Datum<'a>], steps: &mut Steps) -> Result<Datum<'a>, Trouble> {
    let first = given.first().ok_or(Trouble::Type)?;
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
                Datum::Number(value) => *value,
                other => return Err(wrong(other)),
            };
            Ok(match function {
                Function::Ceil => Datum::Number(value.ceil()),
                Function::Floor => Datum::Number(value.floor()),
                // Halves go away from zero.
                Function::Round => Datum::Number(value.round()),
                Function::Trunc => Datum::Number(value.trunc()),
                Function::IsNan => Datum::Boolean(value.is_nan()),
                Function::IsInf => Datum::Boolean(value.is_infinite()),
                _ => Datum::Boolean(value.is_finite()),
            })
        }
        Function::Sqrt => Ok(Datum::Number(super::number(first)?.sqrt())),
        _ => bits(function, first, given.get(1)),
    }
}

fn wrong(given: &Datum<'_>) -> Trouble {
    if matches!(given, Datum::Null) { Trouble::Null } else { Trouble::Type }
}

/// The greatest or least of a list, or the one number that was given. The first of equal ones; a NaN is passed over.
fn extreme<'a>(greatest: bool, given: &Datum<'a>, steps: &mut Steps) -> Result<Datum<'a>, Trouble> {
    let numeric = |datum: &Datum<'a>| match datum {
        Datum::Integer(_) | Datum::Unsigned(_) | Datum::Number(_) => Ok(()),
        other => Err(wrong(other)),
    };
    let Datum::List(items) = given else { return numeric(given).map(|()| given.clone()) };
    steps.take(items.len())?;
    let mut best: Option<Datum<'a>> = None;
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
    best.ok_or(Trouble::NoSuchKey)
}

fn size_or_sign<'a>(function: Function, given: &Datum<'a>) -> Result<Datum<'a>, Trouble> {
    let size = function == Function::Abs;
    Ok(match given {
        Datum::Integer(value) if size => Datum::Integer(value.checked_abs().ok_or(Trouble::Range)?),
        Datum::Integer(value) => Datum::Integer(value.signum()),
        Datum::Unsigned(value) if size => Datum::Unsigned(*value),
        Datum::Unsigned(value) => Datum::Unsigned((*value).min(1)),
        Datum::Number(value) if size => Datum::Number(value.abs()),
        // Unlike Rust's, the sign of a zero is zero.
        Datum::Number(value) if *value == 0.0 => Datum::Number(0.0),
        Datum::Number(value) => Datum::Number(value.signum()),
        other => return Err(wrong(other)),
    })
}

fn bits<'a>(function: Function, first: &Datum<'a>, second: Option<&Datum<'a>>) -> Result<Datum<'a>, Trouble> {
    use Function::{BitAnd, BitNot, BitOr, BitXor, ShiftLeft, ShiftRight};
    let word = |datum: &Datum<'a>| match datum {
        Datum::Integer(value) => Ok(*value as u64),
        Datum::Unsigned(value) => Ok(*value),
        other => Err(wrong(other)),
    };
    let left = word(first)?;
    let right = match (function, second) {
        (BitNot, _) => 0,
        (ShiftLeft | ShiftRight, Some(Datum::Integer(places))) => u64::try_from(*places).map_err(|_| Trouble::Range)?,
        (ShiftLeft | ShiftRight, other) => return Err(other.map_or(Trouble::Type, wrong)),
        (_, Some(second)) if std::mem::discriminant(first) == std::mem::discriminant(second) => word(second)?,
        _ => return Err(Trouble::Type),
    };
    // A shift fills with zeros, also where the number is negative; beyond the word nothing is left.
    let places = u32::try_from(right).unwrap_or(u32::MAX);
    let result = match function {
        BitAnd => left & right,
        BitOr => left | right,
        BitXor => left ^ right,
        BitNot => !left,
        ShiftLeft => left.checked_shl(places).unwrap_or(0),
        ShiftRight => left.checked_shr(places).unwrap_or(0),
        _ => return Err(Trouble::Type),
    };
    Ok(if matches!(first, Datum::Integer(_)) { Datum::Integer(result as i64) } else { Datum::Unsigned(result) })
}
