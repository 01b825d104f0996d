//! Benchmarks of Tocsin, with peer programs that do the same work; each figure is one JSON line.
//!
//! The server under test is a separate process on loopback with a temporary folder. Measurements of a single crate
//! (matching, formatting, commits) run in this process. Every started process is killed at the end, also on
//! interruption. A figure is the median over repeats; runs of Tocsin and of the peer alternate.
//!
//! Without the feature `figures` this crate is the load generator and the cost vectors, which operators reach by
//! `tocsin bench`.

#[cfg(feature = "figures")]
pub mod commands; // command line of `tocsin-bench`
pub mod bench; // definition of a figure: name, description, measuring function
pub mod figure; // statistics: samples to one result line
pub mod figures; // all figures, one file each

mod context; // measurement context: sizes, turns, folders, progress
pub mod progress; // progress display of a measurement
pub mod external_targets; // external mail servers and HTTP endpoints given by flags
mod report; // results as a file and as a table
mod history; // all runs of each figure, combined per commit
pub mod vectors; // cost vectors of operations, for capacity planning
pub mod run; // build, machine and settings of a run
pub mod results; // reader for result files of earlier runs
pub mod compare; // significance test between two runs
pub mod workloads; // published workloads with their reported numbers
pub mod summary; // comparison of results with published numbers

mod child_process; // child processes that are killed with their owner
mod disk; // raw disk speed: syncs/s and MB/s
mod mail_target; // mail target of a figure: external server, or smtp-sink
mod peers; // peer programs: nginx, wrk, smtp-sink, smtp-source, dd, bare prototypes
mod server; // `tocsin serve` as a child process with its own folder
mod load; // HTTP load: closed loop, or open loop at a fixed rate
mod precise_timer; // timer with sub-millisecond precision
pub(crate) mod resource_usage; // CPU and disk use of a process
mod http_client; // minimal HTTP/1.1 client, so that the CPU is left to the server

mod mixed_load; // mixed load of all operations on one server
pub mod population_load; // simulated user population: sessions, think times, operations of a profile
mod test_receiver; // HTTP receiver with configurable concurrency and latency
mod fanout_server; // server with one event class and many subscribers, for delivery figures
mod stock_workload; // stock-market workload, in this process and in a server
mod ldap_fixture; // generated LDIF entries for a directory
mod ldap_client; // minimal LDAP client and its closed-loop load
mod slapd; // OpenLDAP `slapd` with the same entries, as a peer
mod brokers; // message brokers as peers: RabbitMQ, NATS JetStream
mod match_harness; // in-process matching index with batches of quotes

pub use bench::Bench;
pub use context::{Context, Settings};
pub use external_targets::ExternalTargets;
pub use figures::choose;
pub use report::Report;

// Every module names these as modules of this crate.
use tocsin_command_line::{client, failure, problems, terminal};
use tocsin_example_data as examples;
