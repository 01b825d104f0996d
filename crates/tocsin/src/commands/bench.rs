//! Command `bench`: the load generator and the cost vectors of capacity plans.

mod users; // simulated user population
mod vectors; // cost vectors of operations

use crate::{failure::Outcome, terminal::Terminal};

/// Arguments of `tocsin bench`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Simulate the users of a capacity profile
    Users(users::Args),
    /// Measure the cost of operations for `tocsin capacity`
    Vectors(vectors::Args),
}

impl Args {
    /// Measures with a server of this binary, which is stopped at the end, also on a signal.
    ///
    /// # Errors
    /// If the server cannot be started, or an operation fails.
    pub async fn run(self, terminal: &Terminal) -> Outcome {
        match self.command {
            Command::Users(args) => args.run(terminal).await,
            Command::Vectors(args) => args.run(terminal).await,
        }
    }
}
