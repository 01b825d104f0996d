//! The HTTP channel alone against far ends of our own in this process: whether the number of messages at a time that it
//! finds by itself is as good as the best fixed one, and what a dead and a slow destination cost a thousand others.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::json;
use tocsin_delivery::{
    Answer, Context as ChannelContext, Facts, Message, OpenChannel, Outgoing, Signet, SystemClock, Ticket,
};
use tocsin_model::{
    application::{Channel, Flow, Pace, RetrySchedule},
    id::{NotificationBatchId, NotificationId},
    receipt::{Disposition, ReasonKind},
};
use tokio::sync::mpsc;

use super::{Bench, Measuring};
use crate::{
    bench::{
        context::Context,
        far_end::{FarEnd, Nature},
        figure::{Figure, Samples, rounded},
    },
    failure::{Failure, Outcome},
};

/// A far end that answers at once.
pub const FAST: Bench = Bench {
    name: "auto.http.fast",
    about: "posts/s to a far end that answers at once, concurrency found by itself; peer: the best fixed of a sweep",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context, |_| Nature { workers: 1_000, millis: 0 })) },
};

/// A far end that works on twelve at a time and takes a while.
pub const SLOW: Bench = Bench {
    name: "auto.http.slow",
    about: "the same to one that answers 12 at a time after 40 ms",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context, |_| Nature { workers: 12, millis: 40 })) },
};

/// A far end that is now one, now the other.
pub const CHANGING: Bench = Bench {
    name: "auto.http.changing",
    about: "the same to one that answers 6 at a time after 40 ms, then 40 after 10 ms, and so on every 2 s",
    by_default: true,
    run: |context| -> Measuring<'_> {
        Box::pin(run(context, |time| match time.as_secs() / 2 % 2 {
            0 => Nature { workers: 6, millis: 40 },
            _ => Nature { workers: 40, millis: 10 },
        }))
    },
};

/// A thousand destinations, two of which are in trouble.
pub const ISOLATION: Bench = Bench {
    name: "deliver.http.isolation",
    about: "p99 of 1,000 destinations beside a dead and a slow one; peer: the same without those, so at most 1.1",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(isolation(context)) },
};

const MOST: u32 = 64;
/// Messages that are handed over and not answered.
const AHEAD: usize = 512;
/// What the channel learns before the first turn is part of no figure.
const WARM_UP: Duration = Duration::from_secs(4);

fn open(per_destination: u32, pace: Pace) -> Outcome<Box<dyn OpenChannel>> {
    let name = |text: &str| text.parse().map_err(|_| Failure::failed("a name is none"));
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
        public_url: None,
        signet: Arc::new(Signet::new(&[7; 32])),
    };
    tocsin_delivery::open(&name("bench")?, &channel, &context)
        .map_err(|problems| Failure::failed(problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")))
}

/// The message that goes everywhere.
fn message() -> Outcome<Arc<Message>> {
    let name = |text: &str| text.parse().map_err(|_| Failure::failed("a name is none"));
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
        others: Vec::new(),
    }
}

/// Keeps a channel busy for so long; gives how many messages were delivered a second.
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

async fn run(context: &Context, nature: fn(Duration) -> Nature) -> Outcome<Figure> {
    let time = Duration::from_millis(context.size(4_000, 400));
    let far = FarEnd::start(nature).await?;
    let (message, address) = (message()?, format!("http://127.0.0.1:{}/hook", far.port));
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
    // The best of ten was lucky, too. So it is measured again, in turns with ours.
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
        .beside(&format!("fixed at {}", sweep[best]), theirs)
        .under(format!("signed posts of about 500 bytes, the channel alone, at most {MOST} at a time"))
        .under(format!(
            "{} s a run, ours after {} s of learning, in turns with the best of the sweep",
            time.as_secs_f64(),
            WARM_UP.as_secs()
        ))
        .under(format!("found {found} at a time"))
        .under(format!("the sweep before: {}", shown.join(", "))))
}

/// What the others take, in ms, each in order, when every destination gets a message every so often.
async fn latencies(
    open: &dyn OpenChannel,
    message: &Arc<Message>,
    port: u16,
    destinations: u32,
    trouble: bool,
    rounds: u32,
) -> Outcome<Vec<f64>> {
    let (answers, mut answered) = mpsc::channel::<Answer>(100_000);
    let address = |number: u32| format!("http://127.0.{}.{}:{port}/hook", number / 250 + 1, number % 250 + 1);
    let begun = Instant::now();
    let counting = tokio::spawn(async move {
        let mut took = Vec::new();
        // Those in trouble take minutes for theirs, which nobody waits for.
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
    // Twenty messages every 10 ms, to one after the other.
    let mut pulse = tokio::time::interval(Duration::from_millis(10));
    for round in 0..rounds {
        for chunk in (0..destinations).collect::<Vec<_>>().chunks(20) {
            pulse.tick().await;
            let at = begun.elapsed().as_micros() as u64;
            let mut batch: Vec<Outgoing> =
                chunk.iter().map(|number| outgoing(message, round, at, &address(*number))).collect();
            if trouble {
                batch.push(outgoing(message, round, u64::MAX, &format!("http://127.1.0.1:{port}/dead")));
                batch.push(outgoing(message, round, u64::MAX, &format!("http://127.1.0.2:{port}/slow")));
            }
            open.send_all(batch, &answers).await;
        }
    }
    drop(answers);
    counting.await.map_err(|error| Failure::failed("the measurement broke off").because(&error))?
}

async fn isolation(context: &Context) -> Outcome<Figure> {
    let destinations = context.size(1_000, 50);
    let rounds = context.size(8, 1);
    let far = FarEnd::start(|_| Nature { workers: 10_000, millis: 5 }).await?;
    let message = message()?;
    let (mut beside, mut alone) = (Samples::default(), Samples::default());
    let p99 = |sorted: &[f64]| sorted.get(sorted.len() * 99 / 100).copied().unwrap_or_default();
    for _ in context.turns() {
        for (trouble, samples) in [(false, &mut alone), (true, &mut beside)] {
            let open = open(20, Pace::Auto)?;
            // The first round makes the connections.
            latencies(&*open, &message, far.port, destinations, trouble, 1).await?;
            samples.push(p99(&latencies(&*open, &message, far.port, destinations, trouble, rounds).await?));
        }
    }
    Ok(Figure::new("ms", beside)
        .beside("without the two", alone)
        .under(format!("{destinations} destinations that answer after 5 ms, 2,000 messages/s, as many as one in ten more for each of the two"))
        .under("one never answers, one after 3 s; the ratio should be at most 1.1"))
}
