//! All ports in memory, for tests and trials: plain, obviously right, and gone with the process.

pub mod journal; // the flow
pub mod records; // who and what
pub mod inbox; // what is there to read
