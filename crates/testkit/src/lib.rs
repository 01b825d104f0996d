//! A complete platform in memory for tests: simulated time, scripted channels, and simulated crashes.
//!
//! A [`Scenario`] runs a script of lines, each with a time of day and an action; its result is the transcript of the
//! received messages. Time is tokio's paused clock, so a simulated day takes no real time, and results are
//! deterministic.

mod clock; // simulated time
mod scripted_channels; // channels with scripted answers
mod crashing_journal; // journal that simulates a crash at a chosen write
mod scenario; // scripts and their transcripts
mod module_graph; // uses between the source files of a crate

pub use clock::SimulatedClock;
pub use crashing_journal::CrashPoint;
pub use module_graph::ModuleGraph;
pub use scenario::{Scenario, check};
pub use scripted_channels::{ScriptedAnswer, ScriptedChannels};
