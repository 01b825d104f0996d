//! The `tocsin` binary as a library: command line, configuration, wiring of the server, demo and test
//! mailbox.
//!
//! No event processing happens here: this crate reads the user's input, assembles the other crates and prints the
//! server's answers. All commands except `serve`, `init`, `check`, `doctor`, `backup`, `restore`, `demo`, `bench` and
//! `capacity` are pure clients of the HTTP API.

pub mod cli; // command-line grammar (clap)
pub mod commands; // implementation of each command, one file per command
pub mod configuration; // layered configuration: defaults < file < variables < flags, with the source of each value
pub mod demo; // demo: a week of earthquakes, replayed for ten thousand subscribers
pub mod mailbox; // test SMTP server with a web page that shows received mail
pub mod platform; // server wiring: stores, pipeline, faces

pub mod client; // connection of a command to a server: flags, variables, the key of this machine
pub mod host; // this process as the service sees it: configuration, examination, drill, log
pub mod local_change; // changes of commands on the data folder: time, entry in the audit log
pub mod first_key; // creation of the first admin API key of an installation
pub mod logging; // log level and log format
pub mod metrics; // table of all Prometheus metrics, with help texts
pub mod monitoring; // Grafana dashboard and alert rules, generated from the metrics
pub mod telemetry; // OpenTelemetry trace export (OTLP)
pub mod saturation; // saturation gauges: use of each bounded resource as a part of its limit

pub use tocsin_command_line::{failure, problems, signals, terminal};
pub use tocsin_example_data as examples;
