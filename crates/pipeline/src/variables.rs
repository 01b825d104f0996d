//! Variables of the environment in definitions.

use serde_json::{Map, Value};

/// The parts of a definition that may contain variables.
pub(crate) const VARIABLE_PLACES: [&str; 2] = ["channels.", "sources."];

/// Whether options contain an unresolved variable.
pub(crate) fn has_variables(options: &Map<String, Value>) -> bool {
    serde_json::to_string(options).is_ok_and(|text| text.contains("${"))
}
