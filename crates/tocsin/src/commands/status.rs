//! Command `status`: shows the state of the server, live on a terminal, plain when piped.

mod live; // live view that refreshes itself
mod report; // server status as a typed report

use std::{ops::ControlFlow, time::Duration};

use serde_json::json;

use super::event_stream::{StreamEvent, follow};
use crate::{
    client::{Client, present_parameters},
    failure::{Failure, Outcome},
    terminal::Terminal,
};

pub use report::Report;

/// Arguments of `tocsin status`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print the server's response as JSON, once
    #[arg(long)]
    json: bool,
    /// Print plain text once, even on a terminal
    #[arg(long)]
    once: bool,
    /// Print summaries as lines of JSON when they change; TOPICS selects some
    #[arg(long, num_args = 0..=1, default_missing_value = "", value_name = "TOPICS", conflicts_with_all = ["json", "once"])]
    follow: Option<String>,
    /// Application to filter the batches of --follow by
    #[arg(long, requires = "follow")]
    application: Option<String>,
    /// Refresh interval of the live view in seconds
    #[arg(long, default_value_t = 1.0, value_parser = parse_seconds, value_name = "SECONDS")]
    interval: f64,
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is not a number of seconds"))?;
    if (0.1..=3600.0).contains(&seconds) { Ok(seconds) } else { Err("expected 0.1 to 3600 seconds".to_owned()) }
}

impl Args {
    /// Shows the status.
    ///
    /// # Errors
    /// If the server does not respond or is not ready (exit code 1, for scripts).
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        if let Some(topics) = &self.follow {
            return self.stream(terminal, client, topics).await;
        }
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
        if report.ready { Ok(()) } else { Err(Failure::failed("the server is not ready")) }
    }
    /// Prints the events of the live stream.
    async fn stream(&self, terminal: &Terminal, client: &Client, topics: &str) -> Outcome {
        let topics = (!topics.is_empty()).then(|| topics.to_owned());
        let query = [("topics", &topics), ("application", &self.application)];
        let print = |event: &StreamEvent| {
            terminal.line(json!({ "topic": event.name, "data": event.data }))?;
            Ok(ControlFlow::Continue(()))
        };
        follow(client, "/v1/stream", &present_parameters(&query), String::new(), print).await
    }
}
