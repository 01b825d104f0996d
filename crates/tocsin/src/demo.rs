//! Demos: replay an example end to end, and verify the results by an independent computation.
//!
//! The demos are ordinary clients: definition, subscribers and events go through the HTTP API, mails through SMTP. Only
//! the server runs in this process.

mod oracle; // expected notifications, computed independently
mod play; // server on a temporary folder, and steps common to all demos
mod quakes; // a week of earthquakes, by mail
mod stock; // stock market, by HTTP
mod world; // generated subscribers around the world

pub use quakes::quakes;
pub use stock::stock;

/// Options of a demo.
#[derive(Debug, Clone)]
pub struct DemoOptions {
    /// Whether it exits when finished.
    pub once: bool,
    /// Number of subscribers.
    pub subscribers: u32,
    /// Random seed.
    pub seed: u64,
}
