//! Key of a source's checkpoints.

use tocsin_model::id::Name;

/// A source, by its application and its name.
pub type SourceKey = (Name, Name);
