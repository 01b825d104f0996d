//! A whole platform in memory: simulated time, far ends that answer as told, crashes on command. Tests only.
//!
//! A [`Scenario`] is a script of lines, each a time of day and what happens then; its result is the transcript of what
//! the far ends saw. Time is tokio's paused clock, so a day takes no time, and nothing happens by luck.

mod clock; // simulated time
mod far_end; // channels whose answers are scripted
mod mortal_journal; // a process that dies at a chosen write
mod scenario; // scripts and their transcripts

pub use clock::SimulatedClock;
pub use far_end::{FarEnds, Manner};
pub use mortal_journal::Moment;
pub use scenario::{Scenario, check};
