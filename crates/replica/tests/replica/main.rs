//! Replicas against a server in this process: what they see, what becomes of their edits, and what they cannot do.

mod bed;
mod built_in; // what the platform knows of a subscriber
mod cells; // cells that fields cannot hold
mod copies; // copies of a file, and what was put back to an earlier state
mod conflicts; // edits that meet
mod convergence; // random edits, broken links and crashes
mod layout; // files of older versions
mod partitions; // who sees what
mod programs; // those that decide between edits
mod raising; // events of changes
mod replacing; // REPLACE, upserts and triggers in the file
mod schemas; // what rows must be like
mod sessions; // edits go up, rows come down
mod vectors; // the cases that every client passes
mod watching; // who waits is woken
