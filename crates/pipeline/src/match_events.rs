//! Step 2: event batches meet the match index; the matches are cut into notification batches.
//!
//! A dispatcher claims event batches and hands each application its waiting batches, within limits, as one quantum (a
//! matcher batch). One matcher per application takes its batches in order of acceptance, so a slow application delays
//! no other. Before a batch is matched, the index is brought to the snapshot sequence of the batch; later changes
//! never delay it. While one quantum of an application is committed, the next is matched (pipelining); commits stay
//! in order.

mod dispatch; // claims event batches and distributes them to the matchers
mod matcher; // the task that matches one application
mod matched; // an application with its index, and the match against it
mod match_batches; // matching of one quantum: failed rules are isolated
mod build_index; // the index of a version, and its first snapshot sequence
mod index_status; // status of an application's index
mod rule_state; // stored rule state
mod lifecycle_rules; // rules on lifecycle events, for the subscription of each event
mod refire; // fires a rule again for listed batches
mod make_batches; // cut matches become notification batches
mod permits; // concurrency limit of the matchers
mod report; // counters and log lines of matching

pub(crate) use build_index::{build, next_snapshot_sequence};
pub(crate) use dispatch::{Command, Dispatcher};
pub(crate) use index_status::IndexStatus;
pub(crate) use make_batches::{new_batches, unassigned_channel};
pub(crate) use permits::Permits;
pub(crate) use report::report_failures;
pub(crate) use rule_state::remove_rule_state;
