//! Delayed rules: their matches wait in the journal, events cancel them, and a due time becomes an event batch.
//!
//! Matches are stored, and cancelled, in the step of their event batches. One task accepts an event batch of the class
//! `due` for notifications that are due, in one commit with their assignment to it. The matcher runs the batch at its
//! position in the log: it evaluates the rule again for each event and subscription that was not cancelled before. So
//! an event that was accepted before the due time cancels, also if it is matched later, and nothing is sent twice after
//! a crash.

mod run; // a due time: the rule is evaluated again
mod start; // matches of delayed rules, and events that cancel
mod task; // the task that accepts due times

use tocsin_model::{
    application::{delay_source, due_class},
    event::EventBatch,
};

pub(crate) use run::run_delays;
pub(crate) use start::{cancellations, take_delayed, within_limit};
pub(crate) use task::{Command, DelayTask};

/// Whether an event batch is a due time of a delayed rule.
pub(crate) fn is_delay(batch: &EventBatch) -> bool {
    batch.source == delay_source() && batch.class == due_class()
}
