//! Shows how the server is doing: live in a terminal, plain when piped.

mod live; // the view that redraws itself
mod report; // what the server says, as numbers

use std::time::Duration;

use crate::{
    client::Client,
    failure::{Failure, Outcome},
    terminal::Terminal,
};

pub use report::Report;

/// Arguments of `tocsin status`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Prints the server's answer as JSON, once
    #[arg(long)]
    json: bool,
    /// Prints plain text once, even in a terminal
    #[arg(long)]
    once: bool,
    /// Seconds between two looks of the live view
    #[arg(long, default_value_t = 1.0, value_parser = parse_seconds)]
    interval: f64,
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is not a number of seconds"))?;
    if (0.1..=3600.0).contains(&seconds) { Ok(seconds) } else { Err("give 0.1 to 3600 seconds".to_owned()) }
}

impl Args {
    /// Shows the status.
    ///
    /// # Errors
    /// The server does not answer, or is not ready (exit code 1, so that scripts can ask).
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        let answer = client.get("/v1/status", &[]).await?;
        if self.json {
            return Ok(terminal.json(&answer)?);
        }
        if terminal.is_interactive() && !self.once {
            return live::run(client, Duration::from_secs_f64(self.interval)).await;
        }
        let report = Report::read(answer)?;
        for line in report.lines() {
            terminal.line(line)?;
        }
        if report.ready { Ok(()) } else { Err(Failure::failed("the server is not ready yet")) }
    }
}
