//! Refused queries, and the bounds of queries.

use crate::record::CastError;

/// Most levels of a condition.
pub const DEPTH_MAX: usize = 32;
/// Most steps of a path. A digit is a position and a name, so each step below a list can have two ways.
pub const PATH_STEPS_MAX: usize = 16;
/// Most conditions and values of a query.
pub const CONDITIONS_MAX: usize = 20_000;
/// Most bytes of a query text.
pub const QUERY_BYTES_MAX: usize = 1 << 20;
/// Most bytes of a regular expression.
pub const REGEX_BYTES_MAX: usize = 4_096;
/// Most regular expressions of a query.
pub const REGEXES_MAX: usize = 16;
/// Most memory of a compiled regular expression.
pub const REGEX_MEMORY_MAX: usize = 1 << 20;

/// A query that is refused. The text is that of the answer, which has status 400.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The text is not JSON.
    #[error("{0}")]
    Syntax(String),
    /// An operator that is not of the language.
    #[error("unknown operator: {0}")]
    Operator(String),
    /// An operand of another type than its operator takes.
    #[error("{0}")]
    Operand(String),
    /// A value is not of the type of its property.
    #[error(transparent)]
    Cast(#[from] CastError),
    /// A bound is exceeded.
    #[error("the query is too large: at most {limit} {unit}")]
    TooLarge {
        /// The bound.
        limit: usize,
        /// The counted thing: `levels`.
        unit: &'static str,
    },
}
