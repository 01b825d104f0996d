//! HTTP load: one request repeated in a closed loop, or in an open loop at a fixed rate.

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

use super::{figure::rounded, http_client::Connection, precise_timer};
use crate::failure::{Failure, Outcome};

/// Smallest part of the offered rate that counts as reached.
const RATE_REACHED_MIN: f64 = 0.98;

/// Result of an HTTP load.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HttpLoadResult {
    /// Offered rate in requests per second; `None` in a closed loop.
    pub offered: Option<f64>,
    /// Number of responses.
    pub count: u64,
    /// Duration of the load in seconds.
    pub seconds: f64,
    /// Latencies in milliseconds, sorted. In an open loop they count from the due time, which avoids coordinated
    /// omission: a slow server cannot delay the load unnoticed.
    times: Times,
}

impl HttpLoadResult {
    /// Responses per second.
    pub fn per_second(&self) -> f64 {
        self.count as f64 / self.seconds.max(1e-9)
    }

    /// 99th percentile of the latency in milliseconds.
    pub fn p99_ms(&self) -> f64 {
        self.times.quantile(0.99)
    }

    /// Whether the offered rate was reached.
    pub fn reached_rate(&self) -> bool {
        self.offered.is_none_or(|offered| self.per_second() >= offered * RATE_REACHED_MIN)
    }

    /// Summary for the conditions of a figure: loop, rate and latencies. States if the rate was not reached.
    pub fn summary(&self) -> String {
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
            Some(offered) if self.reached_rate() => format!("open loop at {offered:.0}/s, {times}"),
            Some(offered) => {
                format!("open loop at {offered:.0}/s, of which only {:.0}/s were REACHED, {times}", self.per_second())
            }
        }
    }
}

/// Target of a load, with the request and the number of connections.
pub struct Target {
    /// Port on this machine.
    pub port: u16,
    /// Complete HTTP request.
    pub request: Vec<u8>,
    /// Number of connections.
    pub connections: usize,
}

impl Target {
    /// Closed loop for this time: each connection sends the next request as soon as the response arrives.
    ///
    /// # Errors
    /// If a connection breaks or a response is not 2xx.
    pub async fn closed(&self, time: Duration) -> Outcome<HttpLoadResult> {
        let started = Instant::now();
        let sender = |mut sender: LoadConnection| async move {
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

    /// Open loop for this time at `rate` requests per second. Each request is sent when due, or as soon after as a
    /// connection is free.
    ///
    /// # Errors
    /// As [`Target::closed`].
    pub async fn open_at(&self, rate: f64, time: Duration) -> Outcome<HttpLoadResult> {
        let (started, next) = (Instant::now(), Arc::new(AtomicU64::new(0)));
        let all = (rate * time.as_secs_f64()) as u64;
        let sender = |mut sender: LoadConnection| {
            let next = next.clone();
            async move {
                let mut times = Vec::new();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= all {
                        return Ok(times);
                    }
                    let due = started + Duration::from_secs_f64(number as f64 / rate);
                    precise_timer::until(due).await;
                    sender.ask().await?;
                    times.push(due.elapsed());
                }
            }
        };
        Ok(load(Some(rate), self.on_each(sender).await?, started))
    }

    /// Runs one task per connection, as broker drivers do. A single task for all would need two thread switches per
    /// response.
    async fn on_each<F>(&self, run: impl Fn(LoadConnection) -> F) -> Outcome<Vec<Vec<Duration>>>
    where
        F: Future<Output = Outcome<Vec<Duration>>> + Send + 'static,
    {
        let request: Arc<[u8]> = self.request.as_slice().into();
        let mut senders = JoinSet::new();
        for _ in 0..self.connections {
            let connection = Connection::open(self.port).await.map_err(connection_failed)?;
            senders.spawn(run(LoadConnection { connection, request: request.clone() }));
        }
        let mut times = Vec::new();
        while let Some(sent) = senders.join_next().await {
            times.push(sent.map_err(|error| Failure::failed("a sender of the load broke").because(&error))??);
        }
        Ok(times)
    }
}

/// One connection of the load.
struct LoadConnection {
    connection: Connection,
    request: Arc<[u8]>,
}

impl LoadConnection {
    async fn ask(&mut self) -> Outcome {
        let (status, body) = self.connection.exchange(&self.request).await.map_err(connection_failed)?;
        if (200..300).contains(&status) {
            return Ok(());
        }
        let words = String::from_utf8_lossy(&body).into_owned();
        Err(Failure::failed(format!("the server answered {status}")).detail(words))
    }
}

fn connection_failed(error: io::Error) -> Failure {
    Failure::failed("a connection of the load broke").because(&error)
}

fn load(offered: Option<f64>, times: Vec<Vec<Duration>>, started: Instant) -> HttpLoadResult {
    let count = times.iter().map(Vec::len).sum::<usize>() as u64;
    let times = times.into_iter().flatten().map(|time| time.as_secs_f64() * 1e3).collect();
    HttpLoadResult { offered, count, seconds: started.elapsed().as_secs_f64(), times }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        http_client::post,
        test_receiver::{ReceiverSpeed, TestReceiver},
    };

    #[tokio::test]
    async fn a_missed_rate_is_reported_and_queueing_counts_as_latency() {
        // One at a time for 5 ms is at most 200 a second on any machine.
        let far = TestReceiver::start(|_| ReceiverSpeed { workers: 1, millis: 5 }).await.expect("a receiver");
        let target = Target { port: far.port, request: post("/x", "k", "text/plain", b"hello"), connections: 4 };
        let load = target.open_at(2_000.0, Duration::from_millis(50)).await.expect("a load");
        assert_eq!(load.count, 100);
        assert!(!load.reached_rate() && load.summary().contains("were REACHED"), "{}", load.summary());
        assert!(
            load.times.quantile(0.99) > load.times.quantile(0.1) && load.times.quantile(0.99) > 300.0,
            "{}",
            load.summary()
        );
        let closed = target.closed(Duration::from_millis(50)).await.expect("a load");
        assert!(closed.count > 0 && closed.summary().starts_with("closed loop"), "{}", closed.summary());
    }
}
