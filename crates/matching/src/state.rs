//! Match suppression: state per subscription of a rule, so that a subscription is notified once and not a hundred
//! times. The state is the time of the last notification, a digest of its values, and whether the subscription is
//! armed.
//!
//! An armed subscription that matches is notified and, if the rule has a re-arm condition, disarmed. An event that
//! satisfies the condition re-arms it. State changes only by notifications and re-arming, in the order of the events,
//! at the acceptance times of their batches. So the same batches give the same notifications, whenever they are
//! matched.
//!
//! A shard holds the state of its own subscriptions. The changes of a quantum (one run of the matcher) are committed
//! with its matches, as whole pages; until that commit is confirmed, they can be undone.

pub(crate) mod state_table; // the state of all rules of a shard, with undo
pub mod restored; // restores state from journal pages

pub(crate) mod page; // the state of 256 subscriptions, in columns
mod state_trial; // the state of one subscription, checked for an event, for display
mod rearm_index; // index of the disarmed subscriptions, by their re-arm condition

pub use state_table::Suppression;
pub use state_trial::StateTrial;
