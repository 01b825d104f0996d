//! Conformance tests of journals, run with each backend, and tests of journals in files.

mod support; // journals to test, and short constructors

// One suite for each facet
mod event_log; // acceptance of event batches, idempotency keys, limits, reads of the log
mod open_work; // backlog, open work items, wake-ups
mod work_queue; // claims, and the commit of steps
mod notification_log; // notification batches, attempts, progress
mod rule_store; // rule firings, stopped rules, rule state
mod schedules; // progress of schedules
mod delays; // notifications of delayed rules that wait
mod mail_providers; // mails to mailbox providers by day
mod broadcasts; // broadcasts, and the work that they hold
mod checkpoints; // checkpoints of sources
mod operator_actions; // suspensions, resends, switches, removal of an application
mod activity_log; // activity, quanta, totals
mod maintenance; // pruning, and the health check
mod erasures; // erasure of a person

mod damaged; // damaged files

mod crash; // copies of the files at random moments
mod differential; // random operations on the memory and the SQLite journal, with equal results
