//! The same request again and again, in a closed loop or at a rate of its own.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tocsin_capacity::queue::Times;
use tokio::task::JoinSet;

use super::{figure::rounded, on_time, wire::Connection};
use crate::failure::{Failure, Outcome};

/// A load that reached less than this part of what was offered did not keep its rate.
const KEPT: f64 = 0.98;

/// What a load came to.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Load {
    /// Requests in a second that were meant to be sent; `None` in a closed loop.
    pub offered: Option<f64>,
    /// Answers.
    pub count: u64,
    /// In which time.
    pub seconds: f64,
    /// Milliseconds of each, in order. At a rate they count from the moment at which the request was due, so that a server
    /// that is slow cannot make the load wait with it unseen.
    times: Times,
}

impl Load {
    /// Answers in a second.
    pub fn per_second(&self) -> f64 {
        self.count as f64 / self.seconds.max(1e-9)
    }

    /// All but one in a hundred came within so many milliseconds.
    pub fn p99_ms(&self) -> f64 {
        self.times.quantile(0.99)
    }

    /// Whether it reached the rate that was offered.
    pub fn kept_its_rate(&self) -> bool {
        self.offered.is_none_or(|offered| self.per_second() >= offered * KEPT)
    }

    /// For the conditions of a figure: the loop, the rate and the times. Says so if the rate was not reached.
    pub fn told(&self) -> String {
        let times = format!(
            "mean {} ms, p50 {} ms, p95 {} ms, p99 {} ms, p99.9 {} ms, longest {} ms",
            rounded(self.times.mean(), 3),
            rounded(self.times.quantile(0.5), 3),
            rounded(self.times.quantile(0.95), 3),
            rounded(self.times.quantile(0.99), 3),
            rounded(self.times.quantile(0.999), 3),
            rounded(self.times.quantile(1.0), 3)
        );
        match self.offered {
            None => format!("closed loop, {times}"),
            Some(offered) if self.kept_its_rate() => format!("open loop at {offered:.0}/s, {times}"),
            Some(offered) => {
                format!("open loop at {offered:.0}/s, of which only {:.0}/s were REACHED, {times}", self.per_second())
            }
        }
    }
}

/// Where a load goes, and over how many connections.
pub struct Target {
    /// The port of this machine.
    pub port: u16,
    /// The whole request.
    pub request: Vec<u8>,
    /// Connections.
    pub connections: usize,
}

impl Target {
    /// Sends the next as soon as an answer has come, on each connection, for this time.
    ///
    /// # Errors
    /// A connection broke, or an answer was not 2xx.
    pub async fn closed(&self, time: Duration) -> Outcome<Load> {
        let started = Instant::now();
        let sender = |mut sender: Sender| async move {
            let mut times = Vec::new();
            while started.elapsed() < time {
                let begun = Instant::now();
                sender.ask().await?;
                times.push(begun.elapsed());
            }
            Ok(times)
        };
        Ok(load(None, self.on_each(sender).await?, started))
    }

    /// Sends so many in a second for this time, each when it is due or as soon after as a connection is free.
    ///
    /// # Errors
    /// As [`Target::closed`].
    pub async fn open_at(&self, rate: f64, time: Duration) -> Outcome<Load> {
        let (started, next) = (Instant::now(), Arc::new(AtomicU64::new(0)));
        let all = (rate * time.as_secs_f64()) as u64;
        let sender = |mut sender: Sender| {
            let next = next.clone();
            async move {
                let mut times = Vec::new();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= all {
                        return Ok(times);
                    }
                    let due = started + Duration::from_secs_f64(number as f64 / rate);
                    on_time::until(due).await;
                    sender.ask().await?;
                    times.push(due.elapsed());
                }
            }
        };
        Ok(load(Some(rate), self.on_each(sender).await?, started))
    }

    /// A task for each connection, as drivers of brokers have them: one task for all would cost an answer two threads.
    async fn on_each<F>(&self, run: impl Fn(Sender) -> F) -> Outcome<Vec<Vec<Duration>>>
    where
        F: Future<Output = Outcome<Vec<Duration>>> + Send + 'static,
    {
        let request: Arc<[u8]> = self.request.as_slice().into();
        let mut senders = JoinSet::new();
        for _ in 0..self.connections {
            let connection = Connection::open(self.port).await.map_err(broke)?;
            senders.spawn(run(Sender { connection, request: request.clone() }));
        }
        let mut times = Vec::new();
        while let Some(sent) = senders.join_next().await {
            times.push(sent.map_err(|error| Failure::failed("a sender of the load broke").because(&error))??);
        }
        Ok(times)
    }
}

/// One connection.
struct Sender {
    connection: Connection,
    request: Arc<[u8]>,
}

impl Sender {
    async fn ask(&mut self) -> Outcome {
        let (status, body) = self.connection.exchange(&self.request).await.map_err(broke)?;
        if (200..300).contains(&status) {
            return Ok(());
        }
        let words = String::from_utf8_lossy(&body).into_owned();
        Err(Failure::failed(format!("the server answered {status}")).detail(words))
    }
}

fn broke(error: io::Error) -> Failure {
    Failure::failed("a connection of the load broke").because(&error)
}

fn load(offered: Option<f64>, times: Vec<Vec<Duration>>, started: Instant) -> Load {
    let count = times.iter().map(Vec::len).sum::<usize>() as u64;
    let times = times.into_iter().flatten().map(|time| time.as_secs_f64() * 1e3).collect();
    Load { offered, count, seconds: started.elapsed().as_secs_f64(), times }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{
        far_end::{FarEnd, Nature},
        wire::post,
    };

    #[tokio::test]
    async fn a_rate_that_was_not_reached_is_told_and_its_waiting_counts() {
        // One at a time for 5 ms is at most 200 a second on any machine.
        let far = FarEnd::start(|_| Nature { workers: 1, millis: 5 }).await.expect("a far end");
        let target = Target { port: far.port, request: post("/x", "k", "text/plain", b"hello"), connections: 4 };
        let load = target.open_at(2_000.0, Duration::from_millis(50)).await.expect("a load");
        assert_eq!(load.count, 100);
        assert!(!load.kept_its_rate() && load.told().contains("were REACHED"), "{}", load.told());
        assert!(
            load.times.quantile(0.99) > load.times.quantile(0.1) && load.times.quantile(0.99) > 300.0,
            "{}",
            load.told()
        );
        let closed = target.closed(Duration::from_millis(50)).await.expect("a load");
        assert!(closed.count > 0 && closed.told().starts_with("closed loop"), "{}", closed.told());
    }
}
