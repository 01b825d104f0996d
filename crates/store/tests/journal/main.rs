//! Conformance tests of journals, run with each backend, and tests of journals in files.

mod support; // journals to test, and short constructors

mod accepting; // acceptance of event batches, idempotency keys, and limits
mod work_state; // priorities, digest windows, and edits
mod claiming; // claims and leases
mod resending; // resend requests
mod retention; // pruning
mod source_marks; // checkpoints of sources
mod schedules; // checkpoints of schedules, and the events of their runs
mod stepping; // steps: atomic and exactly once
mod waiting; // retries, suspensions, arrivals

mod damaged; // damaged files

mod crash; // copies of the files at random moments
mod differential; // random operations on the memory and the SQLite journal, with equal results
