//! Flow control of a channel's destinations, as pure state machines. Time is an argument.
//!
//! Each destination has its own lane: a queue of messages, a concurrency limit
//! ([`AdaptiveConcurrency`](tocsin_pace::AdaptiveConcurrency)), a circuit breaker ([`breaker`]) and a rate limit
//! ([`rate`]). Destinations do not influence each other. If the destinations are mailbox providers, each has a pace
//! ([`provider_pace`]) and a warm-up ([`warm_up`]) as well.

pub(crate) mod breaker; // circuit breaker: pauses a destination after consecutive failures, then tests it with one message
pub(crate) mod lanes; // scheduler over the lanes of all destinations
pub(crate) mod line; // priority queue with aging
pub(crate) mod rate; // rate limiter: spreads messages evenly
pub(crate) mod provider_pace; // rate, concurrency and pauses of a mailbox provider
pub(crate) mod warm_up; // most mails of a day while a sender is new to a provider
pub(crate) mod providers; // pace and warm-up of all mailbox providers of a channel
