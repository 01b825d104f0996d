//! Programs of the operator that a definition names.

mod policy; // the programs that may be started
pub mod command; // checks a program and its variables in options
mod running; // a running program: its input, output and exit
pub mod change; // transforms messages by a program

pub use policy::Programs;
pub use running::{ANSWER_BYTES_MAX, Program, prepared_command};
