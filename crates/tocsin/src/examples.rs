//! The generated parts of the examples: people, their interests and events, the same for every reader of a seed.

pub mod stock; // a stock market: quotes, and orders that wait for a price
