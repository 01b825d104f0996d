//! Limits of formatted content.

/// Largest part, in bytes.
pub const OUTPUT_BYTES_MAX: usize = 4 << 20;

/// Largest header, in bytes.
pub const HEADER_BYTES_MAX: usize = 2_000;
