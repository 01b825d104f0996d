//! Plays an example from beginning to end, and checks what came out by an independent computation.
//!
//! Everything goes the way of any client: the definition, the people and the events through the HTTP face, the mails
//! through SMTP. Only the server runs in this process.

mod oracle; // who should have been told, computed without Tocsin's rules
mod play; // a server on a fresh folder, and what each demo does with it
mod quakes; // a week of earthquakes, by mail
mod stock; // a market, by HTTP
mod world; // people around the world, seeded

pub use quakes::quakes;
pub use stock::stock;

/// What is played.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Whether it ends by itself.
    pub once: bool,
    /// How many people subscribe.
    pub subscribers: u32,
    /// Chance's seed.
    pub seed: u64,
}
