//! Flow control of a channel's destinations, as pure state machines. Time is an argument.
//!
//! Each destination has its own lane: a queue of messages, a concurrency limit
//! ([`AdaptiveConcurrency`](tocsin_pace::AdaptiveConcurrency)), a circuit breaker ([`breaker`]) and a rate limit
//! ([`rate`]). Destinations do not influence each other.

pub(crate) mod breaker; // circuit breaker: pauses a destination after consecutive failures, then tests it with one message
pub(crate) mod lanes; // scheduler over the lanes of all destinations
pub(crate) mod line; // priority queue with aging
pub(crate) mod rate; // rate limiter: spreads messages evenly
