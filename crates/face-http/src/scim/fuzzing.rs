//! Parsers of filters and changes, for fuzz targets.

use super::{filter, patch, schema::RESOURCES};

/// Reads a filter for users and for groups. Returns the result as debug text.
///
/// # Errors
/// Reason why it is invalid for one of them.
pub fn read_filter(text: &str) -> Result<Vec<String>, String> {
    let read =
        |kind| filter::read(text, kind).map(|filter| format!("{filter:?}")).map_err(|error| error.body().to_string());
    RESOURCES.into_iter().map(read).collect()
}

/// Reads the body of a PATCH for users and for groups. Returns the result as debug text.
///
/// # Errors
/// Reason why it is invalid for one of them.
pub fn read_patch(body: &serde_json::Value) -> Result<Vec<String>, String> {
    let read = |kind| {
        patch::read(body, kind).map(|operations| format!("{operations:?}")).map_err(|error| error.body().to_string())
    };
    RESOURCES.into_iter().map(read).collect()
}
