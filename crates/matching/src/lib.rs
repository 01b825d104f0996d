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
//! A module uses only modules above it in the list below. The files of a folder use each other in one direction too, and
//! none uses the file that has the name of the folder: that file assembles them.
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
//! | more than [`steps::STEPS_MAX`] steps | no match, and the rule is reported as failed for this event |

// 1. Expressions: text becomes a typed tree, and a value.
pub mod text; // text tests: wildcards, networks, case folding
pub mod regex_pattern; // regular expressions with a cost bound
pub mod dialect; // the syntax tree of expressions
mod cel; // the parser of CEL
pub mod eval_value; // values during evaluation
mod digest; // digests of values and texts
pub mod steps; // the step limit of an evaluation
pub mod expression; // typed expressions over field indexes
mod functions; // the built-in functions of expressions
pub mod index; // the index structures: groups, sorted columns, subscription tables
pub mod evaluate; // the expression interpreter
pub mod subscriber; // columns of the subscriber that rules can read
mod chronicle_names; // names of chronicle columns
pub mod check; // type checking, with problems that carry positions and hints
pub mod filter; // per-subscription filters, compiled to indexable conditions
pub mod user_functions; // functions that an application defines, callable from expressions
pub mod event_key; // correlation keys, expressions over an event alone
pub mod resolver; // predicates that resolve conflicts between two edits of a row
pub mod schema; // JSON Schemas of message bodies and collection rows

// 2. Rules: guards, keys, ranges and residuals per branch.
mod sql_names; // names of chronicle tables and columns in SQL
mod chronicle_span; // windows of chronicles, divided into parts
pub mod chronicle_columns; // packs chronicle columns to store them with the batch
mod compiled_chronicle; // compiles declarations of chronicles into expressions and columns
pub mod sql; // columns and tables that SQL queries can read in addition to fields
mod rows; // rows of parameters, parsed or converted from another version
pub mod event_condition; // conditions over stored events, for searches
pub mod events; // the events of a batch as columns of cells
mod residual; // residual conditions, checked per candidate column by column
pub mod index_stats; // statistics of the index: sizes and costs
pub mod subject; // a subscription as the index needs it
pub mod rule; // compiled rules

// 3. Matching: events meet the subscriptions of a shard.
pub mod matches; // matches in runs, and their receiver
mod subscription_index; // the subscriptions of a shard, and the index over them
mod rule_evaluation; // evaluates one rule over a window of events
pub mod chronicle; // chronicles: per-key aggregates over events, read as event columns
pub mod state; // suppression of matches: cooldown, re-arm, change
pub mod shard; // one partition of the subscriptions with its index and state

// 4. Notifications: what is stored of the matches.
pub mod cut; // runs of matches are cut into notification batches
pub mod join; // joins the notification batches of several shards
pub mod notify; // computes the fields of a notification at delivery

// 5. Display and measurement.
pub mod oracle; // reference implementation without an index, for tests and dry runs
pub mod trial; // evaluation of one rule, condition by condition, for display
pub mod worst_cases; // adversarial filters and segments, to measure the worst case

/// The functions `distance_km` and `contains_ci`, for other rule languages.
pub use functions::{contains_ci, distance_km};
