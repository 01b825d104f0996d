//! The step limit of an evaluation.

use crate::eval_value::{EvalError, EvalValue};

/// Most steps of one evaluation.
pub const STEPS_MAX: u32 = 100_000;

/// The remaining step budget of an evaluation.
#[derive(Debug, Clone, Copy)]
pub struct Steps(u32);

impl Default for Steps {
    fn default() -> Self {
        Steps(STEPS_MAX)
    }
}

impl Steps {
    /// Consumes steps.
    ///
    /// # Errors
    /// The remaining budget is too small.
    pub fn take(&mut self, steps: usize) -> Result<(), EvalError> {
        let steps = u32::try_from(steps).unwrap_or(u32::MAX);
        self.0 = self.0.checked_sub(steps).ok_or(EvalError::Cost)?;
        Ok(())
    }
}

/// Charges for comparing long texts and lists. Maps are compared key by key, hence the square.
pub(crate) fn charge_comparison(
    left: &EvalValue<'_>,
    right: &EvalValue<'_>,
    steps: &mut Steps,
) -> Result<(), EvalError> {
    match (left, right) {
        (EvalValue::Text(left), EvalValue::Text(right)) => steps.take(left.len().min(right.len()) / 64),
        (EvalValue::Bytes(left), EvalValue::Bytes(right)) => steps.take(left.len().min(right.len()) / 64),
        (EvalValue::Optional(Some(left)), EvalValue::Optional(Some(right))) => charge_comparison(left, right, steps),
        (EvalValue::List(left), EvalValue::List(right)) if left.len() == right.len() => {
            for (left, right) in left.iter().zip(right.iter()) {
                steps.take(1)?;
                charge_comparison(&left, &right, steps)?;
            }
            Ok(())
        }
        (EvalValue::Map(left), EvalValue::Map(right)) if left.len() == right.len() => {
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
