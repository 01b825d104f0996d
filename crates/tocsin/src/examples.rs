//! Generators of example data: subscribers, subscriptions and events, deterministic by seed.

pub mod stock; // stock market: quotes, and orders with a price trigger
