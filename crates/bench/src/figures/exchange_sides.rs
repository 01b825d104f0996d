//! Figure of receiving and sending separately: messages queue for a port on hold, and are sent once the port is active.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use reqwest::Method;
use serde_json::json;

use super::exchange_roundtrip::{BODY_BYTES, CALLERS, apply, target};
use crate::{
    bench::{Bench, Measuring},
    failure::{Failure, Outcome},
    {
        context::Context,
        figure::{Figure, Samples, rounded},
        resource_usage::processor_seconds,
        server::{Server, next_poll},
        test_receiver::{ReceiverSpeed, TestReceiver},
    },
};

/// Rates of both sides.
pub const BENCH: Bench = Bench {
    name: "exchange.receive",
    about: "messages/s received from 64 callers for a port on hold; peer: the send rate once it is active",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(run(context)) },
};

/// Maximum time until all messages are sent.
const TIMEOUT: Duration = Duration::from_secs(300);

fn definition(port: u16) -> String {
    format!(
        "exchange: bench
open_messages: 1000000
receive: {{ questions: {{ mode: one_way }} }}
send:
  answers:
    mode: one_way
    protocol: http
    options: {{ url: \"http://127.0.0.1:{port}/answers\", allow_networks: [127.0.0.1] }}
    concurrency: {CALLERS}
    state: hold
routes: {{ every: {{ when: 'true', to: answers }} }}
"
    )
}

async fn run(context: &Context) -> Outcome<Figure> {
    let folder = context.folder()?;
    let left = Arc::new(AtomicU64::new(0));
    let reader = {
        let left = left.clone();
        Arc::new(move |_: &[u8]| {
            left.fetch_add(1, Ordering::Relaxed);
        })
    };
    let receiver = TestReceiver::with_reader(|_| ReceiverSpeed { workers: CALLERS, millis: 0 }, reader).await?;
    let server = Server::start(context, folder.path()).await?;
    apply(&server, "bench", definition(receiver.port)).await?;
    let target = target(&server, BODY_BYTES, CALLERS);
    let time = Duration::from_millis(context.size(5_000, 300));
    let (mut received, mut sent) = (RateSamples::default(), RateSamples::default());
    // The first turn is a warm-up.
    for turn in std::iter::once(None).chain(context.turns().map(Some)) {
        let before = processor_seconds(server.pid());
        let load = target.closed(time).await?;
        let came = (load.count, load.seconds, processor_seconds(server.pid()) - before);
        let (first, begun, before) = (left.load(Ordering::Relaxed), Instant::now(), processor_seconds(server.pid()));
        set(&server, "active").await?;
        while left.load(Ordering::Relaxed) - first < load.count {
            if begun.elapsed() > TIMEOUT {
                let went = left.load(Ordering::Relaxed) - first;
                return Err(Failure::failed(format!(
                    "{} messages were received, but {went} of them were sent",
                    load.count
                )));
            }
            tokio::time::sleep(next_poll(begun.elapsed())).await;
        }
        let went = (load.count, begun.elapsed().as_secs_f64(), processor_seconds(server.pid()) - before);
        set(&server, "hold").await?;
        if turn.is_some() {
            received.add(came);
            sent.add(went);
        }
    }
    let cpu = format!(
        "{} µs CPU per received message, {} per sent message",
        rounded(received.micros.median(), 3),
        rounded(sent.micros.median(), 3)
    );
    Ok(Figure::new("messages/s", received.rates)
        .with_peer("sending", sent.rates)
        .with_condition(format!("{CALLERS} callers, {BODY_BYTES} bytes, one route, {} s a turn", time.as_secs_f64()))
        .with_condition(format!("sent over up to {CALLERS} connections to a receiver that responds at once"))
        .with_condition(cpu))
}

async fn set(server: &Server, state: &str) -> Outcome {
    let request = server.client().request(Method::PUT, "/v1/exchanges/bench/send/answers/state");
    server.client().send(request.json(&json!({"state": state}))).await?;
    Ok(())
}

#[derive(Default)]
struct RateSamples {
    rates: Samples,
    micros: Samples,
}

impl RateSamples {
    /// Adds messages, their seconds, and CPU seconds of the server.
    fn add(&mut self, (messages, seconds, processor): (u64, f64, f64)) {
        let messages = messages.max(1) as f64;
        self.rates.push(messages / seconds.max(1e-9));
        self.micros.push(processor * 1e6 / messages);
    }
}
