//! Decides who cares: an event batch in, matches out. No I/O, no clock, no threads; the same changes and batches give
//! the same matches.
//!
//! A rule is compiled once. Its predicate is taken apart: equality tests between event and subscription become the
//! key of a hash of groups, one ordered test (or a range with two ends) a sorted column in each group that is answered
//! by binary search and contiguous slices; what concerns the event alone is tested once per event, what concerns the
//! subscription alone once when it is put; the rest is a residual, checked per candidate. So an event costs what it
//! matches, not what is subscribed. An [`oracle`] that tests one by one is always at hand.
//!
//! # What expressions mean
//!
//! CEL, with these decisions; an error is never a match.
//!
//! | case | meaning |
//! |---|---|
//! | a field that is missing or null | is null; `has(event.x)` is false |
//! | a key that a map lacks | an error; `has(event.x.key)` is false, and true where the value is null |
//! | `==`, `!=` with null | null equals null and nothing else |
//! | `<`, `<=`, `>`, `>=`, arithmetic, functions with null | an error |
//! | errors in `&&`, `\|\|`, `all`, `exists` | absorbed where another operand decides, in any order |
//! | integer with number | compared by exact value, also beyond 2^53; equal where the values are; usable as map keys |
//! | integer with number in arithmetic | the integer becomes a number first |
//! | integer overflow, division by zero | an error |
//! | number overflow, division by zero | infinite or NaN; NaN equals and orders with nothing |
//! | strings | ordered by code points; sizes and places count characters |
//! | `uint` | counts for itself: it compares with the other numbers, but must be converted to calculate with them |
//! | messages | are refused; an unknown name is refused too, even where nothing would ask for it |
//! | extensions | `strings`, `math`, `base64`, `optional`, `cel.bind`, macros with two variables |
//! | timestamps, durations | to the microsecond; from the year 1 to 9999-12-30T22:00Z, else an error |
//! | `matches` | finds anywhere; linear time; literal patterns are compiled once |
//! | `contains_ci` | contains, after lower-casing both by Unicode |
//! | `distance_km(lat, lon, lat, lon)` | great circle by haversine, mean Earth radius 6371.0088 km; an error beyond the poles |
//! | a variable of a macro | may hide `event` and `sub` |
//! | more than [`evaluate::STEPS_MAX`] steps | no match, and the rule is reported as failed for this event |

pub mod check; //       ... or problems with positions and hints
pub mod cut; // 6. runs become notification batches
pub mod dialect; // 1. text becomes a syntax tree
pub mod expression; // 2. the tree becomes typed expressions over places of fields
pub mod defined; // 2b. functions of the application, which expressions may call
pub mod events; // 4. the events of a batch, as rules read them
pub mod index; // 4b. the structures that answer
pub mod join; // 6b. what several shards cut is joined
pub mod notify; // 7. at delivery: the full fields of one notification
pub mod filter; // 3b. a subscriber's own filter becomes conditions that an index answers
pub mod resolver; // predicates over two edits that meet
pub mod schema; // what bodies and rows must be like beyond their types
pub mod rule; // 3. a rule's predicate becomes branches: guards, keys, ranges, residuals
pub mod subscriber; // 3c. what rules may ask of the subscriber behind a subscription
pub mod sql; // 3e. what queries in SQL may ask beside fields
pub mod chronicle; // 3d. what is kept of the events of a class, as columns beside their fields
pub mod state; // 5b. which matches are told: cooldown, re-arm, change
pub mod shard; // 5. subscriptions in, event batches in, runs of matches out

pub mod figures; // what the index holds and costs
pub mod datum; // values while an expression runs
pub mod evaluate; // the plain interpreter
pub mod oracle; // the same answers without an index, one by one
pub mod bombs; // the worst that somebody may ask for
pub mod trial; // one rule tried on one event and one subscription, condition by condition

mod functions; // what expressions may call
pub mod regular; // regular expressions, and what they cost
mod occasion; // a rule meets some events: what it asks the index, and what it gives
mod residual; // what is left to check per candidate, column by column

/// What expressions call `distance_km` and `contains_ci`, for other languages of rules.
pub use functions::{contains_ci, distance_km};
