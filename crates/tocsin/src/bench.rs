//! Measures Tocsin, beside others that do the same work, and writes one line for each figure.
//!
//! The server under test is a process of its own, on loopback, with a folder that is removed afterwards; what is
//! measured inside one room (matching, formatting, commits) runs in this process. Whatever was started is killed at the
//! end, also when the run is interrupted. A figure is a median over repeats, and runs of ours and of a peer take turns.

pub mod figure; // samples become one line
pub mod figures; // what can be measured, a file for each

mod context; // what a measurement is given: sizes, turns, folders
pub mod progress; // how far it is, for whoever waits
pub mod given; // far ends of somebody else, in place of our own
mod report; // the lines as file and as table
mod history; // every run, and the median of all runs of a commit
pub mod vectors; // what operations cost, for the planner
pub mod results; // the lines of earlier runs, read back
pub mod compare; // whether one run was faster than another, or only luckier
pub mod workloads; // what papers measured, what they reported and claimed
pub mod summary; // what was measured, beside what was published

mod child; // processes that never outlive us
mod disk; // what the disk can do at best
mod peers; // nginx, wrk, smtp-sink, smtp-source, dd, the bare prototypes
mod server; // `tocsin serve` on a folder of its own
mod load; // requests in a closed loop, or at a rate of their own
mod on_time; // waits that end when they should
pub(crate) mod probe; // what a process and its disk have used
mod wire; // a bare HTTP client that leaves the processor to the server

mod crew; // one server that does everything, and users who ask it for all kinds of things
pub mod visits; // users who come, think, ask and leave, as a profile says
mod far_end; // a far end of our own, as slow as it is told
mod fanout; // one event that concerns many, for the deliveries
mod market; // the stock market, in this process and in a server
mod people; // entries for a directory
mod ldap; // a bare LDAP client that does the same again and again
mod slapd; // who serves the same entries
mod brokers; // who puts the same requests and replies through
mod bed; // an index in this process that is asked again and again

pub use context::{Context, Settings};
pub use figures::{Bench, choose};
pub use given::Given;
pub use report::Report;
