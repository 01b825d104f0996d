//! Parts that the command-line programs share: failures with advice, output to a terminal, and a client of the HTTP API.
//!
//! Knows no command and no configuration.

pub mod client; // client of the HTTP API
pub mod failure; // error type of commands, with hints for the user
pub mod problems; // problems as lines of text
pub mod resource_usage; // processor and disk use of a process
pub mod signals; // signals that end a command
pub mod terminal; // terminal output: tables, colours, progress bars
