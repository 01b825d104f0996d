//! Fault injection into the real binary: power losses, failed syncs, exhausted descriptors, memory and threads, damaged
//! files.
//! threads, damaged files.

mod bounds; // A6: exhausted descriptors, memory, threads
mod damage; // A7: flipped bits and truncated files
mod power; // A3: power loss
mod shim; // library that injects the faults
mod syncs; // A4: a failed fsync
mod writers; // clients that write until they are stopped

#[path = "../support/mod.rs"]
mod support;
