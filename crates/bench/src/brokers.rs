//! Message brokers as peers for durable request/reply: RabbitMQ, and NATS JetStream with a sync per message.
//!
//! `bench/peers/messaging/turns.sh` starts all of them and drives one at a time, alternating with Tocsin.

use std::{collections::BTreeMap, process::Stdio, time::Duration};

use serde::Deserialize;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

use super::{
    context::Context,
    figure::{Figure, Samples, rounded},
    progress::Progress,
};
use crate::failure::{Failure, Outcome};

/// Maximum time to build and start the brokers.
const STARTING: Duration = Duration::from_secs(900);
/// Maximum time a turn may exceed its planned duration.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Running brokers and the samples of their turns.
pub struct Brokers {
    process: Child,
    requests: ChildStdin,
    responses: Lines<BufReader<ChildStdout>>,
    sides: BTreeMap<String, BrokerRuns>,
    progress: Progress,
}

#[derive(Default)]
struct BrokerRuns {
    conditions: String,
    rates: Samples,
    p50: Samples,
    p99: Samples,
    steps: Vec<String>,
}

/// Output line of a driver.
#[derive(Debug, Deserialize)]
struct BrokerTurn {
    per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
}

impl Brokers {
    /// Starts the brokers. Returns `None`, with a log line, if they are not installed.
    pub async fn start(context: &Context) -> Option<Brokers> {
        match Brokers::try_start(context).await {
            Ok(brokers) => Some(brokers),
            Err(failure) => {
                context.log(format_args!("   no broker to compare with: {failure}"));
                None
            }
        }
    }

    async fn try_start(context: &Context) -> Outcome<Brokers> {
        let script = context.peers_source.join("messaging/turns.sh");
        let mut command = Command::new(&script);
        command.env("PEERS_DIR", &context.peers_folder).stdin(Stdio::piped()).stdout(Stdio::piped());
        // The script ends its servers, also when it is killed.
        let process = command.kill_on_drop(true).spawn();
        let mut process = process.map_err(|error| Failure::file("start", &script, &error))?;
        let requests = process.stdin.take().expect("stdin is piped");
        let responses = BufReader::new(process.stdout.take().expect("stdout is piped")).lines();
        let mut brokers =
            Brokers { process, requests, responses, sides: BTreeMap::new(), progress: context.progress.clone() };
        let names: BTreeMap<String, String> = brokers.answer(STARTING).await?;
        if names.is_empty() {
            return Err(Failure::failed("none is installed: `bench/peers/messaging/setup.sh` installs them"));
        }
        let side = |(name, conditions)| (name, BrokerRuns { conditions, ..BrokerRuns::default() });
        brokers.sides = names.into_iter().map(side).collect();
        Ok(brokers)
    }

    async fn answer<T: serde::de::DeserializeOwned>(&mut self, patience: Duration) -> Outcome<T> {
        let silent = || Failure::failed("the brokers do not answer");
        let line = timeout(patience, self.responses.next_line()).await.map_err(|_| silent())?;
        let line = line.map_err(|error| silent().because(&error))?.ok_or_else(silent)?;
        serde_json::from_str(&line).map_err(|error| silent().because(&error).detail(line))
    }

    async fn ask(&mut self, name: &str, callers: usize, time: Duration) -> Outcome<BrokerTurn> {
        let _turn = self.progress.peer_turn(name);
        let asked = format!("{name} {callers} {}\n", time.as_secs().max(1));
        let gone = |error: std::io::Error| Failure::failed("the broker script ended unexpectedly").because(&error);
        self.requests.write_all(asked.as_bytes()).await.map_err(gone)?;
        self.answer(time + TIMEOUT).await
    }

    /// Runs one turn of each broker.
    ///
    /// # Errors
    /// If a turn fails.
    pub async fn turn(&mut self, callers: usize, time: Duration) -> Outcome {
        for name in self.names() {
            let turn = self.ask(&name, callers, time).await?;
            let side = self.sides.get_mut(&name).expect("the broker was started");
            side.rates.push(turn.per_s);
            side.p50.push(turn.p50_ms);
            side.p99.push(turn.p99_ms);
        }
        Ok(())
    }

    /// Runs one turn of each broker with another number of callers and records it for the conditions.
    ///
    /// # Errors
    /// If a turn fails.
    pub async fn step(&mut self, callers: usize, time: Duration) -> Outcome {
        for name in self.names() {
            let turn = self.ask(&name, callers, time).await?;
            let summary = step_summary(turn.per_s, turn.p99_ms, callers);
            self.sides.get_mut(&name).expect("the broker was started").steps.push(summary);
        }
        Ok(())
    }

    fn names(&self) -> Vec<String> {
        self.sides.keys().cloned().collect()
    }

    /// Name and samples of the broker with the highest median.
    fn best(&self) -> Option<(String, Samples)> {
        let fastest = self.sides.iter().max_by(|one, other| one.1.rates.median().total_cmp(&other.1.rates.median()));
        fastest.map(|(name, side)| (name.clone(), side.rates.clone()))
    }

    /// Summary of each broker for the conditions of a figure.
    fn summaries(&self) -> Vec<String> {
        let summarize = |(name, side): (&String, &BrokerRuns)| {
            let (rate, p50, p99) = (side.rates.median(), side.p50.median(), side.p99.median());
            let summary = format!(
                "{name} ({}): {rate:.0}/s, p50 {} ms, p99 {} ms",
                side.conditions,
                rounded(p50, 3),
                rounded(p99, 3)
            );
            match side.steps.is_empty() {
                true => summary,
                false => format!("{summary}; {}", side.steps.join(", ")),
            }
        };
        self.sides.iter().map(summarize).collect()
    }

    /// Adds the fastest broker as the figure's peer, with a summary of each; then stops all brokers.
    pub async fn compare(brokers: Option<Brokers>, figure: Figure) -> Figure {
        let Some(brokers) = brokers else { return figure };
        let (peer, rates) = brokers.best().unwrap_or_default();
        let summaries = brokers.summaries();
        brokers.stop().await;
        summaries.into_iter().fold(figure.with_peer(&peer, rates), Figure::with_condition)
    }

    /// Closes the script's input and waits until it ends.
    async fn stop(mut self) {
        drop(self.requests);
        let _ = timeout(TIMEOUT, self.process.wait()).await;
    }
}

/// Summary of a rate at another number of callers.
pub fn step_summary(per_second: f64, p99_ms: f64, callers: usize) -> String {
    format!("{per_second:.0}/s p99 {} ms at {callers}", rounded(p99_ms, 3))
}
