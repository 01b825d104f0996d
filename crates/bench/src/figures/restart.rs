//! Figures `restart*`: time from exec to ready after a kill, with a million queued notifications and a match index of a
//! million subscriptions to rebuild.

use std::path::Path;

use tocsin_model::{
    delivery_policy::Priority,
    event::EventBatch,
    id::{EventId, SubscriptionId},
    notification::{Column, EventRun, NotificationHead, Notifications},
};
use tocsin_store::{
    journal::{JournalOptions, NewNotificationBatch, Step, WorkQueue},
    sqlite::journal::SqliteJournal,
};
use tokio::net::TcpListener;

use super::match_commit::{accept_and_claim, now, stored};
use crate::{
    bench::{Bench, Measuring},
    failure::{Failure, Outcome},
    {
        context::Context,
        figure::{Figure, Samples, rounded},
        server::{Server, megabytes},
        stock_workload::{self, ORDERS_EACH},
    },
};

/// Notifications in batches of the size that matching produces.
pub const BENCH: Bench = Bench {
    name: "restart.1m",
    about: "seconds from start to ready with 1,000,000 notifications queued in 400 batches",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context, 1, 2_500)) },
};

/// Worst case: batches of one notification.
pub const SINGLE: Bench = Bench {
    name: "restart.1m.single",
    about: "the same with 1,000,000 batches of one notification",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context, 1, 1)) },
};

/// Ten times as many subscriptions to index.
pub const TEN_MILLION: Bench = Bench {
    name: "restart.10m",
    about: "the same with 10,000,000 subscriptions, in batches as matching produces them; only on request",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(run(context, 10, 2_500)) },
};

/// Notifications per commit while the journal is filled.
const COMMITTED_TOGETHER: u64 = 100_000;

async fn run(context: &Context, times: u32, batch_size: u32) -> Outcome<Figure> {
    let people: u32 = context.size(200_000, 2_000);
    let (subscribers, queued) = (people * times, u64::from(people * ORDERS_EACH));
    // A receiver that accepts connections and never responds: queued notifications stay queued.
    let silent = TcpListener::bind("127.0.0.1:0").await?;
    let port = silent.local_addr()?.port();
    let silence = async {
        let mut connections = Vec::new();
        loop {
            match silent.accept().await {
                Ok(connection) => connections.push(connection),
                Err(error) => return Failure::from(error),
            }
        }
    };
    tokio::select! {
        figure = measure(context, subscribers, queued, batch_size, port) => figure,
        failure = silence => Err(failure),
    }
}

async fn measure(context: &Context, subscribers: u32, queued: u64, batch_size: u32, port: u16) -> Outcome<Figure> {
    let folder = context.folder()?;
    let server = Server::start(context, folder.path()).await?;
    stock_workload::load(&server, subscribers, port).await?;
    let data = server.folder.clone();
    server.stop().await;
    fill(&data, queued, batch_size).await?;

    let subscriptions = u64::from(subscribers) * u64::from(ORDERS_EACH);
    let (mut ours, mut peak) = (Samples::default(), 0);
    for _ in context.turns() {
        let server = Server::start(context, folder.path()).await?;
        ours.push(server.ready_after.as_secs_f64());
        let status = server.status().await?;
        let (waiting, indexed) = (&status["backlog"]["notifications"], &status["applications"][0]["indexed"]);
        if (waiting.as_u64(), indexed.as_u64()) != (Some(queued), Some(subscriptions)) {
            return Err(Failure::failed(format!(
                "{waiting} of {queued} notifications are queued and {indexed} of {subscriptions} subscriptions are indexed"
            )));
        }
        peak = peak.max(server.peak_bytes());
        // The server is dropped here, which kills it: the next start recovers from a crash.
    }
    Ok(Figure::new("s", ours)
        .with_condition(format!(
            "{subscriptions} subscriptions, {queued} notifications queued in batches of {batch_size}"
        ))
        .with_condition("killed before each start")
        .with_condition("the receiver never responds")
        .with_condition(format!("peak memory {} MB", rounded(megabytes(peak), 3))))
}

/// Fills the journal of a stopped server.
async fn fill(data: &Path, queued: u64, batch_size: u32) -> Outcome {
    let journal = SqliteJournal::open(data.join("journal.db"), JournalOptions::default()).await.map_err(stored)?;
    let compiled = stock_workload::compiled()?;
    let events = stock_workload::event_batches(&compiled)?.swap_remove(0);
    let claim = accept_and_claim(&journal, &events).await?;
    // The first event batch of the journal is the first of the market.
    let mut claim = Some(claim);
    let mut first = 0;
    while first < queued {
        let end = (first + COMMITTED_TOGETHER).min(queued);
        let batches = (first..end)
            .step_by(batch_size as usize)
            .map(|at| new_batch(&events, at, (end - at).min(u64::from(batch_size)) as u32));
        let step = Step { matched: claim.take().into_iter().collect(), batches: batches.collect(), ..Step::default() };
        journal.commit(step).await.map_err(stored)?;
        first = end;
    }
    Ok(())
}

/// Notifications for the subscriptions after number `first`.
fn new_batch(events: &EventBatch, first: u64, count: u32) -> NewNotificationBatch {
    let name = |text: &str| text.parse().expect("the names are valid");
    let notifications = Notifications {
        events: vec![EventRun { event: EventId { batch: events.id, ordinal: 0 }, count }],
        subscriptions: (first + 1..=first + u64::from(count)).map(SubscriptionId).collect(),
        captured: vec![(name("trigger"), Column::Integers(vec![12_345; count as usize]))],
    };
    let now = now();
    NewNotificationBatch {
        head: NotificationHead {
            application: events.application.clone(),
            version: events.version,
            rule: name("limit"),
            class: name("trade"),
            event_class: events.class.clone(),
            channel: name("web"),
            matched_at: now,
            accepted_at: now,
            expires_at: None,
        },
        count,
        priority: Priority::Normal,
        packed: notifications.pack().into(),
        suspended: None,
        run: None,
    }
}
