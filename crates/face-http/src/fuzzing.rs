//! Parsers of SCIM, for fuzz targets.

pub use crate::scim::fuzzing::{read_filter, read_patch};
