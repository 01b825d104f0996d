//! Programs of others in tests, reserved ports, and waits with one bound.
//!
//! For tests and benchmarks only. It depends on no other crate of Tocsin, so that every crate can use it.

mod name_server; // a name server on loopback, with faults
mod peer; // programs and libraries of others; tests without theirs are skipped
mod port; // ports that no other process gets
mod postfix; // a mail server
mod wait; // waits with one bound

pub use name_server::NameServer;
pub use peer::{Peer, missing};
pub use port::{reserve_port, reserved_port};
pub use postfix::Postfix;
pub use wait::{until, until_listening, until_within, wait_timeout};
