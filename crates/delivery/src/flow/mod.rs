//! How much goes where at a time: pure state of a channel's destinations. Time is an argument.
//!
//! A destination has a lane of its own: messages that wait, how many may be on their way ([`Pace`](tocsin_pace::Pace)), whether it is let
//! be for a while ([`breaker`]), how fast it may be served ([`rate`]). What one destination does changes nothing for
//! the others.

pub(crate) mod breaker; // failures in a row close a destination for a while; one message finds out when it is back
pub(crate) mod lanes; // who may go next
pub(crate) mod line; // what presses goes first, but nothing waits for ever
pub(crate) mod rate; // so many in a time, evenly
