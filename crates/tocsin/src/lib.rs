//! The binary's parts: commands, configuration, wiring, shutdown, the demo and its mailbox.
//!
//! Nothing here decides what happens to an event; it reads what a person asked for, puts the rooms together and shows
//! what the server answered. Commands other than `serve`, `init`, `check`, `doctor`, `backup`, `restore`, `demo`,
//! `bench` and `capacity` are clients of the HTTP face and know nothing else of the server.

pub mod cli; // what can be typed
pub mod commands; // one file for each command
pub mod configuration; // defaults < file < variables < flags, with the source of each value
pub mod demo; // a week of earthquakes, played to ten thousand people
pub mod examples; // the generated parts of the examples: people, interests, events
pub mod bench; // what it is able to do, measured
pub mod mailbox; // a small SMTP receiver with a page to read what came
pub mod platform; // the wiring: stores, pipeline, faces

pub mod client; // the HTTP face, from the other side
pub mod failure; // why a command failed, for people
pub mod first_key; // the first admin key of an installation
pub mod logging; // the log's level and form
pub mod metrics; // every metric, and what it tells
pub mod monitoring; // a dashboard and alert rules, made from them
pub mod telemetry; // spans go to a collector
pub mod saturation; // how far this process is from its bounds
pub mod terminal; // what is printed, and in which colour
