//! Command `demo`: replays a week of earthquakes for ten thousand subscribers.

use clap::ValueEnum;

use crate::{configuration::ConfigurationArgs, demo, failure::Outcome, terminal::Terminal};

/// Arguments of `tocsin demo`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Exit when finished: code 0 if all messages arrived, 1 if one is missing
    #[arg(long)]
    once: bool,
    /// Number of subscribers
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    subscribers: u32,
    /// Example to replay
    #[arg(long, value_enum, default_value_t = Application::Quakes)]
    application: Application,
    /// Random seed: the same seed generates the same subscribers
    #[arg(long, default_value_t = 7)]
    seed: u64,
}

/// Examples that can be replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Application {
    /// Week of earthquakes, by mail
    Quakes,
    /// Market with limit orders, by HTTP
    Stock,
}

impl Args {
    /// Runs the demo in a temporary folder, removed at the end.
    ///
    /// # Errors
    /// If it cannot start, or a message is missing.
    pub async fn run(self, terminal: &Terminal, configuration: &ConfigurationArgs) -> Outcome {
        let plan = demo::DemoOptions { once: self.once, subscribers: self.subscribers, seed: self.seed };
        match self.application {
            Application::Quakes => demo::quakes(terminal, configuration, &plan).await,
            Application::Stock => demo::stock(terminal, configuration, &plan).await,
        }
    }
}
