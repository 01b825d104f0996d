//! Plays a week of earthquakes to ten thousand people, by mail.

use clap::ValueEnum;

use crate::{configuration::ConfigurationArgs, demo, failure::Outcome, terminal::Terminal};

/// Arguments of `tocsin demo`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Ends by itself: exit code 0 if every mail came, 1 if one is missing
    #[arg(long)]
    once: bool,
    /// How many people subscribe
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    subscribers: u32,
    /// What is played
    #[arg(long, value_enum, default_value_t = Application::Quakes)]
    application: Application,
    /// Chance's seed: the same people with the same wishes
    #[arg(long, default_value_t = 7)]
    seed: u64,
}

/// The examples that can be played.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Application {
    /// A week of earthquakes, by mail
    Quakes,
    /// A market with limit orders, by HTTP
    Stock,
}

impl Args {
    /// Plays it on a fresh folder, which is removed in the end.
    ///
    /// # Errors
    /// It cannot start, or a message is missing.
    pub async fn run(self, terminal: &Terminal, configuration: &ConfigurationArgs) -> Outcome {
        let plan = demo::Plan { once: self.once, subscribers: self.subscribers, seed: self.seed };
        match self.application {
            Application::Quakes => demo::quakes(terminal, configuration, &plan).await,
            Application::Stock => demo::stock(terminal, configuration, &plan).await,
        }
    }
}
