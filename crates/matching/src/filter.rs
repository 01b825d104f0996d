//! Subscription filters: compiled, brought to a canonical form, and indexed, so that the cost of an event grows with
//! its matches.
//!
//! A dialect lowers a filter to a [`Condition`]: a tree of single tests of the event. If the condition is exact, it
//! replaces the filter, and equivalent filters of different dialects are equal. If the condition is only necessary,
//! events that satisfy it are passed to the filter's own evaluator.

pub(crate) mod condition; // conditions: trees of single tests
pub mod normal; // normal form of conditions, its encoding, its disjunctions
pub mod show; // conditions as text for people
mod literals; // substrings that a regular expression requires
mod over_budget; // relaxes conditions that are too expensive for the index
pub(crate) mod compiled; // a compiled filter
pub mod cel; // CEL filters, lowered to conditions
pub mod jmespath; // JMESPath filters: parser, interpreter, lowering to conditions
mod pattern; // event pattern filters, lowered to conditions
pub(crate) mod compile; // compiles a filter by the compiler of its dialect
pub mod index; // the filter index: finds the filters that match an event
pub mod explain; // explains the placement of a filter
mod packed; // memory representation of an indexed filter
pub(crate) mod filter_table; // the distinct filters of a class, shared between subscriptions

pub use compile::{compile, compile_for_messages, compile_with};
pub use compiled::{CompiledFilter, EmptyEvent, Evaluate, FilterScope};
pub use condition::{Case, Condition, Limit, Path, Range, Reach, Test, ValueTest};
