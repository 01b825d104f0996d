//! Matches events against subscriptions: an event batch in, matches out. No I/O, no clock, no threads: the same changes
//! and batches always give the same matches.
//!
//! A rule is compiled once, and its predicate is split by what each part depends on:
//! - Equality tests between event and subscription become the key of a hash table of groups.
//! - One ordered test, or a range with two ends, becomes a sorted column in each group, answered by binary search.
//! - A condition on the event alone is a guard, tested once per event.
//! - A condition on the subscription alone is tested once, when the subscription is added.
//! - The rest is the residual, checked per candidate.
//!
//! So the cost of an event grows with its matches, not with the number of subscriptions. The [`oracle`] evaluates every
//! rule one by one, without an index; tests and dry runs use it.
//!
//! # Semantics of expressions
//!
//! CEL, with these decisions. An error is never a match.
//!
//! | case | meaning |
//! |---|---|
//! | a missing field or a field that is null | null; `has(event.x)` is false |
//! | a key that is missing from a map | an error; `has(event.x.key)` is false, and true where the value is null |
//! | `==`, `!=` with null | null equals null and nothing else |
//! | `<`, `<=`, `>`, `>=`, arithmetic, functions with null | an error |
//! | errors in `&&`, `\|\|`, `all`, `exists` | absorbed where another operand decides, in any order |
//! | integer with number | compared by exact value, also beyond 2^53; equal values are equal and usable as map keys |
//! | integer with number in arithmetic | the integer is converted to a number first |
//! | integer overflow, division by zero | an error |
//! | number overflow, division by zero | infinite or NaN; NaN is neither equal to nor ordered with any value |
//! | strings | ordered by code points; sizes and positions count characters |
//! | `uint` | a type of its own: it compares with the other numbers, but must be converted for arithmetic |
//! | messages | rejected; an unknown name is rejected too, even where it would never be evaluated |
//! | extensions | `strings`, `math`, `base64`, `optional`, `cel.bind`, macros with two variables |
//! | timestamps, durations | in microseconds; from the year 1 to 9999-12-30T22:00Z, else an error |
//! | `matches` | finds the pattern anywhere in the text; linear time; literal patterns are compiled once |
//! | `contains_ci` | substring test after Unicode lower-casing of both texts |
//! | `distance_km(lat, lon, lat, lon)` | great circle by haversine, mean Earth radius 6371.0088 km; a latitude beyond a pole is an error |
//! | a variable of a macro | may hide `event` and `sub` |
//! | more than [`evaluate::STEPS_MAX`] steps | no match, and the rule is reported as failed for this event |

pub mod check; // 2a. type checking, with problems that carry positions and hints
pub mod cut; // 6. runs of matches are cut into notification batches
pub mod dialect; // 1. expression text is parsed into a syntax tree
pub mod expression; // 2. typed expressions over field indexes
pub mod user_functions; // 2b. functions that an application defines, callable from expressions
pub mod events; // 4. the events of a batch as columns of cells
pub mod index; // 4b. the index structures: groups, sorted columns, subscription tables
pub mod join; // 6b. joins the notification batches of several shards
pub mod notify; // 7. computes the fields of a notification at delivery
pub mod filter; // 3b. per-subscription filters, compiled to indexable conditions
pub mod resolver; // predicates that resolve conflicts between two edits of a row
pub mod schema; // JSON Schemas of message bodies and collection rows
pub mod rule; // 3. compiled rules: guards, keys, ranges and residuals per branch
pub mod subscriber; // 3c. columns of the subscriber that rules can read
pub mod sql; // 3e. columns and tables that SQL queries can read in addition to fields
pub mod chronicle; // 3d. chronicles: per-key aggregates over events, read as event columns
pub mod state; // 5b. suppression of matches: cooldown, re-arm, change
pub mod shard; // 5. one partition of the subscriptions with its index

pub mod index_stats; // statistics of the index: sizes and costs
pub mod eval_value; // values during evaluation
pub mod evaluate; // the expression interpreter
pub mod oracle; // reference implementation without an index, for tests and dry runs
pub mod worst_cases; // adversarial filters and segments, to measure the worst case
pub mod trial; // evaluation of one rule, condition by condition, for display

mod functions; // the built-in functions of expressions
pub mod regex_pattern; // regular expressions with a cost bound
mod rule_evaluation; // evaluates one rule over a window of events
mod residual; // residual conditions, checked per candidate column by column

/// The functions `distance_km` and `contains_ci`, for other rule languages.
pub use functions::{contains_ci, distance_km};
