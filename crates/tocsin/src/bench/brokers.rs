//! Brokers that put durable requests and replies through: RabbitMQ, and NATS JetStream that syncs each message.
//!
//! `bench/peers/messaging/turns.sh` starts them all, and drives one of them at a time, in turns with us.

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

/// How long they may take to be built and to start.
const STARTING: Duration = Duration::from_secs(900);
/// How long a turn may take beyond its time.
const PATIENCE: Duration = Duration::from_secs(120);

/// The brokers, and what their turns gave.
pub struct Brokers {
    process: Child,
    asks: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    sides: BTreeMap<String, Side>,
    progress: Progress,
}

#[derive(Default)]
struct Side {
    conditions: String,
    rates: Samples,
    p50: Samples,
    p99: Samples,
    steps: Vec<String>,
}

/// What a driver prints.
#[derive(Debug, Deserialize)]
struct Turn {
    per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
}

impl Brokers {
    /// Starts them; `None` if they cannot be had here, which is told.
    pub async fn start(context: &Context) -> Option<Brokers> {
        match Brokers::try_start(context).await {
            Ok(brokers) => Some(brokers),
            Err(failure) => {
                context.tell(format_args!("   no broker to compare with: {failure}"));
                None
            }
        }
    }

    async fn try_start(context: &Context) -> Outcome<Brokers> {
        let script = context.peers_source.join("messaging/turns.sh");
        let mut command = Command::new(&script);
        command.env("PEERS_DIR", &context.peers_folder).stdin(Stdio::piped()).stdout(Stdio::piped());
        // The servers end with the script, also if it is killed.
        let process = command.kill_on_drop(true).spawn();
        let mut process = process.map_err(|error| Failure::file("start", &script, &error))?;
        let asks = process.stdin.take().expect("it is piped");
        let answers = BufReader::new(process.stdout.take().expect("it is piped")).lines();
        let mut brokers =
            Brokers { process, asks, answers, sides: BTreeMap::new(), progress: context.progress.clone() };
        let names: BTreeMap<String, String> = brokers.answer(STARTING).await?;
        if names.is_empty() {
            return Err(Failure::failed("none is installed: `bench/peers/messaging/setup.sh` installs them"));
        }
        let side = |(name, conditions)| (name, Side { conditions, ..Side::default() });
        brokers.sides = names.into_iter().map(side).collect();
        Ok(brokers)
    }

    async fn answer<T: serde::de::DeserializeOwned>(&mut self, patience: Duration) -> Outcome<T> {
        let silent = || Failure::failed("the brokers do not answer");
        let line = timeout(patience, self.answers.next_line()).await.map_err(|_| silent())?;
        let line = line.map_err(|error| silent().because(&error))?.ok_or_else(silent)?;
        serde_json::from_str(&line).map_err(|error| silent().because(&error).detail(line))
    }

    async fn ask(&mut self, name: &str, callers: usize, time: Duration) -> Outcome<Turn> {
        let _theirs = self.progress.theirs(name);
        let asked = format!("{name} {callers} {}\n", time.as_secs().max(1));
        let gone = |error: std::io::Error| Failure::failed("the brokers are gone").because(&error);
        self.asks.write_all(asked.as_bytes()).await.map_err(gone)?;
        self.answer(time + PATIENCE).await
    }

    /// One turn of each.
    ///
    /// # Errors
    /// One fails.
    pub async fn turn(&mut self, callers: usize, time: Duration) -> Outcome {
        for name in self.names() {
            let turn = self.ask(&name, callers, time).await?;
            let side = self.sides.get_mut(&name).expect("it is there");
            side.rates.push(turn.per_s);
            side.p50.push(turn.p50_ms);
            side.p99.push(turn.p99_ms);
        }
        Ok(())
    }

    /// One turn of each with another number of callers, for the conditions.
    ///
    /// # Errors
    /// One fails.
    pub async fn step(&mut self, callers: usize, time: Duration) -> Outcome {
        for name in self.names() {
            let turn = self.ask(&name, callers, time).await?;
            let told = step_told(turn.per_s, turn.p99_ms, callers);
            self.sides.get_mut(&name).expect("it is there").steps.push(told);
        }
        Ok(())
    }

    fn names(&self) -> Vec<String> {
        self.sides.keys().cloned().collect()
    }

    /// The fastest, with its turns.
    fn best(&self) -> Option<(String, Samples)> {
        let fastest = self.sides.iter().max_by(|one, other| one.1.rates.median().total_cmp(&other.1.rates.median()));
        fastest.map(|(name, side)| (name.clone(), side.rates.clone()))
    }

    /// What stands beside the rate of each.
    fn told(&self) -> Vec<String> {
        let told = |(name, side): (&String, &Side)| {
            let (rate, p50, p99) = (side.rates.median(), side.p50.median(), side.p99.median());
            let told = format!(
                "{name} ({}): {rate:.0}/s, p50 {} ms, p99 {} ms",
                side.conditions,
                rounded(p50, 3),
                rounded(p99, 3)
            );
            match side.steps.is_empty() {
                true => told,
                false => format!("{told}; {}", side.steps.join(", ")),
            }
        };
        self.sides.iter().map(told).collect()
    }

    /// A figure beside the fastest, with what is told of each; they end.
    pub async fn beside(brokers: Option<Brokers>, figure: Figure) -> Figure {
        let Some(brokers) = brokers else { return figure };
        let (peer, rates) = brokers.best().unwrap_or_default();
        let told = brokers.told();
        brokers.stop().await;
        told.into_iter().fold(figure.beside(&peer, rates), Figure::under)
    }

    /// Lets them end, and waits until they have.
    async fn stop(mut self) {
        drop(self.asks);
        let _ = timeout(PATIENCE, self.process.wait()).await;
    }
}

/// A rate with another number of callers.
pub fn step_told(per_second: f64, p99_ms: f64, callers: usize) -> String {
    format!("{per_second:.0}/s p99 {} ms at {callers}", rounded(p99_ms, 3))
}
