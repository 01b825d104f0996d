//! Generators of example data for the demo and the benchmarks.

pub mod stock; // stock market: subscribers, orders as subscriptions, quotes as events
