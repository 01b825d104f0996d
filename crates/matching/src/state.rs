//! What rules remember for each subscription, so that it is told once and not a hundred times: when it was told, of
//! what, and whether it is armed.
//!
//! An event and a subscription do one of two things: an armed subscription is told and, if the rule has a re-arm
//! condition, waits; one that waits is re-armed by an event that satisfies the condition. Memories change only by being
//! told and being re-armed, in the order of the events, at the times at which their batches were accepted. So the same
//! batches give the same notifications, whenever they are matched.
//!
//! A shard remembers for its subscriptions. What changes in a quantum is committed with its matches, as whole pages;
//! until that commit is known to be stored, it can be undone.

pub(crate) mod book; // what each rule remembers, told and re-armed; the way back
pub(crate) mod compile; // `per`, `cooldown`, `rearm`, `changed` become expressions
pub mod remembered; // from the journal's pages back to the shards

mod page; // 256 subscriptions in columns
mod waiting; // those that wait to be re-armed, indexed by what re-arms them

pub use book::Suppression;
