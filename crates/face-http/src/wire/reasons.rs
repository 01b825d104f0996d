//! Codes and parameters of stored reasons.

use std::collections::BTreeMap;

use tocsin_model::reason_code::ReasonCode;

/// Parameters of a stored reason by name.
pub(super) fn parameters(reason: &str) -> BTreeMap<&'static str, String> {
    let (code, value) = ReasonCode::of(reason);
    code.param().zip(value).map(|(name, value)| (name, value.to_owned())).into_iter().collect()
}
