//! Figures `auto.http.*`: the HTTP channel alone with in-process receivers. Compares adaptive concurrency with the best
//! fixed limit, and measures how a dead and a slow destination affect a thousand others.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::json;
use tocsin_connect::SystemClock;
use tocsin_delivery::{Answer, Context as ChannelContext, Facts, Message, OpenChannel, Outgoing, Ticket, TokenSigner};
use tocsin_model::{
    application::{Channel, Flow, Pace, RetrySchedule},
    id::{NotificationBatchId, NotificationId},
    receipt::{Disposition, ReasonKind},
};
use tokio::sync::mpsc;

use crate::{
    bench::{Bench, Measuring},
    failure::{Failure, Outcome},
    {
        context::Context,
        figure::{Figure, Samples, rounded},
        test_receiver::{ReceiverSpeed, TestReceiver},
    },
};

/// Receiver that responds at once.
pub const FAST: Bench = Bench {
    name: "auto.http.fast",
    about: "posts/s to a receiver that responds at once, adaptive concurrency; peer: the best fixed limit of a sweep",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context, |_| ReceiverSpeed { workers: 1_000, millis: 0 })) },
};

/// Receiver that handles twelve requests at a time with a latency.
pub const SLOW: Bench = Bench {
    name: "auto.http.slow",
    about: "the same to a receiver with 12 workers and 40 ms latency",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context, |_| ReceiverSpeed { workers: 12, millis: 40 })) },
};

/// Receiver that alternates between two speeds.
pub const CHANGING: Bench = Bench {
    name: "auto.http.changing",
    about: "the same to a receiver that alternates every 2 s between 6 workers at 40 ms and 40 at 10 ms",
    by_default: true,
    run: |context| -> Measuring<'_> {
        Box::pin(run(context, |time| match time.as_secs() / 2 % 2 {
            0 => ReceiverSpeed { workers: 6, millis: 40 },
            _ => ReceiverSpeed { workers: 40, millis: 10 },
        }))
    },
};

/// A thousand healthy destinations, with a dead and a slow one.
pub const ISOLATION: Bench = Bench {
    name: "deliver.http.isolation",
    about: "p99 of 1,000 destinations, with a dead and a slow one; peer: without those; goal: ratio at most 1.1",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(isolation(context)) },
};

const MOST: u32 = 64;
/// Messages submitted to the channel without a result yet.
const AHEAD: usize = 512;
/// Time for the channel to adapt before the first measured turn.
const WARM_UP: Duration = Duration::from_secs(4);

fn open(per_destination: u32, pace: Pace) -> Outcome<Box<dyn OpenChannel>> {
    let name = |text: &str| text.parse().map_err(|_| Failure::failed("invalid name"));
    let channel = Channel {
        disable_after: None,
        endpoint_event: None,
        protocol: name("http")?,
        options: json!({
            "allow_networks": ["127.0.0.0/8"], "timeout": "10s", "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        })
        .as_object()
        .cloned()
        .unwrap_or_default(),
        retry: RetrySchedule { delays: Vec::new(), jitter_percent: 0 },
        concurrency: MOST + MOST / 4,
        flow: Flow { per_destination, pace, ..Flow::default() },
        lease: Duration::from_secs(300),
        log: Default::default(),
    };
    let context = ChannelContext {
        clock: Arc::new(SystemClock),
        installation: "bench".to_owned(),
        data_folder: std::env::temp_dir(),
        networks: Default::default(),
        programs: Default::default(),
        files: Default::default(),
        application: "bench".to_owned(),
        feeds: None,
        provider_days: None,
        public_url: None,
        token_signer: Arc::new(TokenSigner::new(&[7; 32])),
    };
    tocsin_delivery::open(&name("bench")?, &channel, &context)
        .map_err(|problems| Failure::failed(problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")))
}

/// Message that is sent to all destinations.
fn message() -> Outcome<Arc<Message>> {
    let name = |text: &str| text.parse().map_err(|_| Failure::failed("invalid name"));
    let fields = json!({"topic": "all", "text": "x".repeat(370)}).as_object().cloned().unwrap_or_default();
    Ok(Arc::new(Message {
        message_id: "n-1-1.bench".to_owned(),
        content: Arc::default(),
        facts: Facts {
            application: name("bench")?,
            class: name("item")?,
            event: None,
            fields: Arc::new(fields.into()),
        },
        formatted_at: std::time::SystemTime::now().into(),
        priority: Default::default(),
        expires_at: None,
        place: None,
        withdrawal: None,
    }))
}

fn outgoing(message: &Arc<Message>, number: u32, key: u64, address: &str) -> Outgoing {
    Outgoing {
        id: NotificationId { batch: NotificationBatchId(1), ordinal: number },
        subscriber: None,
        address: address.to_owned(),
        ticket: Ticket { key, ordinal: number },
        message: message.clone(),
        unsubscribe: None,
        subscription: None,
        recall: None,
        others: Vec::new(),
    }
}

/// Keeps a channel busy for this time; returns delivered messages per second.
async fn drive(open: &dyn OpenChannel, message: &Arc<Message>, address: &str, time: Duration) -> Outcome<f64> {
    let (answers, mut answered) = mpsc::channel::<Answer>(AHEAD * 2);
    let (start, mut delivered, mut number) = (Instant::now(), 0u64, 0);
    let mut batch = |count: usize| {
        let made = (0..count).map(|_| {
            number += 1;
            outgoing(message, number, 0, address)
        });
        made.collect::<Vec<_>>()
    };
    open.send_all(batch(AHEAD), &answers).await;
    let mut owed = 0;
    while let Some(answer) = answered.recv().await {
        match &answer.disposition {
            Disposition::Delivered { .. } => delivered += 1,
            Disposition::Deferred { reason, .. } | Disposition::Refused { reason } => {
                return Err(Failure::failed(format!("a post was not delivered: {}", reason.text)));
            }
        }
        owed += 1;
        if start.elapsed() >= time {
            break;
        }
        if owed == AHEAD / 8 {
            open.send_all(batch(owed), &answers).await;
            owed = 0;
        }
    }
    let rate = delivered as f64 / start.elapsed().as_secs_f64();
    drop(answers);
    while answered.recv().await.is_some() {}
    Ok(rate)
}

async fn run(context: &Context, nature: fn(Duration) -> ReceiverSpeed) -> Outcome<Figure> {
    let time = Duration::from_millis(context.size(4_000, 400));
    let receiver = TestReceiver::start(nature).await?;
    let (message, address) = (message()?, format!("http://127.0.0.1:{}/hook", receiver.port));
    let sweep = [2, 4, 6, 8, 12, 16, 24, 32, 48, MOST];
    let auto = open(MOST, Pace::Auto)?;
    let fixed = sweep.map(|most| open(most, Pace::Fixed).map(|open| (most, open)));
    let fixed: Vec<_> = fixed.into_iter().collect::<Outcome<_>>()?;
    let mut swept: Vec<Samples> = sweep.iter().map(|_| Samples::default()).collect();
    for _ in 0..context.repeats() {
        for (samples, (_, open)) in swept.iter_mut().zip(&fixed) {
            samples.push(drive(&**open, &message, &address, time).await?);
        }
    }
    let best = (0..sweep.len()).max_by(|a, b| swept[*a].median().total_cmp(&swept[*b].median())).unwrap_or(0);
    // The best of ten was also lucky, so it is measured again in alternating turns.
    drive(&*auto, &message, &address, if context.quick { time } else { WARM_UP }).await?;
    let (mut ours, mut theirs) = (Samples::default(), Samples::default());
    for _ in context.turns() {
        ours.push(drive(&*auto, &message, &address, time).await?);
        theirs.push(drive(&*fixed[best].1, &message, &address, time).await?);
    }
    let shown: Vec<String> =
        sweep.iter().zip(&swept).map(|(most, samples)| format!("{most}: {}", rounded(samples.median(), 4))).collect();
    let found = auto.destinations(1).first().map_or(0, |destination| destination.concurrency);
    Ok(Figure::new("messages/s", ours)
        .with_peer(&format!("fixed at {}", sweep[best]), theirs)
        .with_condition(format!("signed posts of about 500 bytes, the channel alone, at most {MOST} at a time"))
        .with_condition(format!(
            "{} s per run, ours after {} s to adapt, alternating with the best of the sweep",
            time.as_secs_f64(),
            WARM_UP.as_secs()
        ))
        .with_condition(format!("adapted to a limit of {found}"))
        .with_condition(format!("sweep: {}", shown.join(", "))))
}

/// Latencies of the healthy destinations in ms, sorted, when every destination gets messages at a constant rate.
async fn latencies(
    open: &dyn OpenChannel,
    message: &Arc<Message>,
    port: u16,
    destinations: u32,
    with_failing: bool,
    rounds: u32,
) -> Outcome<Vec<f64>> {
    let (answers, mut answered) = mpsc::channel::<Answer>(100_000);
    let address = |number: u32| format!("http://127.0.{}.{}:{port}/hook", number / 250 + 1, number % 250 + 1);
    let begun = Instant::now();
    let counting = tokio::spawn(async move {
        let mut took = Vec::new();
        // The failing destinations take minutes; do not wait for them.
        while took.len() < (destinations * rounds) as usize
            && let Some(answer) = answered.recv().await
        {
            if answer.ticket.key == u64::MAX {
                continue;
            }
            if let Disposition::Deferred { reason, .. } | Disposition::Refused { reason } = &answer.disposition
                && reason.kind != ReasonKind::Untried
            {
                return Err(Failure::failed(format!("a post was not delivered: {}", reason.text)));
            }
            took.push((begun.elapsed().as_secs_f64() - answer.ticket.key as f64 / 1e6) * 1e3);
        }
        took.sort_by(f64::total_cmp);
        Ok(took)
    });
    // Twenty messages every 10 ms, round-robin over the destinations.
    let mut pulse = tokio::time::interval(Duration::from_millis(10));
    for round in 0..rounds {
        for chunk in (0..destinations).collect::<Vec<_>>().chunks(20) {
            pulse.tick().await;
            let at = begun.elapsed().as_micros() as u64;
            let mut batch: Vec<Outgoing> =
                chunk.iter().map(|number| outgoing(message, round, at, &address(*number))).collect();
            if with_failing {
                batch.push(outgoing(message, round, u64::MAX, &format!("http://127.1.0.1:{port}/dead")));
                batch.push(outgoing(message, round, u64::MAX, &format!("http://127.1.0.2:{port}/slow")));
            }
            open.send_all(batch, &answers).await;
        }
    }
    drop(answers);
    counting.await.map_err(|error| Failure::failed("the measurement task panicked").because(&error))?
}

async fn isolation(context: &Context) -> Outcome<Figure> {
    let destinations = context.size(1_000, 50);
    let rounds = context.size(8, 1);
    let receiver = TestReceiver::start(|_| ReceiverSpeed { workers: 10_000, millis: 5 }).await?;
    let message = message()?;
    let (mut beside, mut alone) = (Samples::default(), Samples::default());
    let p99 = |sorted: &[f64]| sorted.get(sorted.len() * 99 / 100).copied().unwrap_or_default();
    for _ in context.turns() {
        for (with_failing, samples) in [(false, &mut alone), (true, &mut beside)] {
            let open = open(20, Pace::Auto)?;
            // The first round opens the connections.
            latencies(&*open, &message, receiver.port, destinations, with_failing, 1).await?;
            samples.push(p99(&latencies(&*open, &message, receiver.port, destinations, with_failing, rounds).await?));
        }
    }
    Ok(Figure::new("ms", beside)
        .with_peer("without the two", alone)
        .with_condition(format!(
            "{destinations} destinations with 5 ms latency, 2,000 messages/s, and 10 % more for each of the two"
        ))
        .with_condition("one never responds, one after 3 s; the ratio should be at most 1.1"))
}
