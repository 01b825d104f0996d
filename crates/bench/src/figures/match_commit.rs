//! Figure `match.commit`: the commit of one matched batch into the SQLite journal: notification batches, their work
//! items and the acknowledgement of the input, compressed and synced.

use std::time::{Duration, Instant, SystemTime};

use tocsin_matching::cut::NotificationCutter;
use tocsin_model::{
    delivery_policy::Priority,
    event::EventBatch,
    id::{ChangeSequence, Name},
    notification::NotificationHead,
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    journal::{
        Claim, ClaimEvents, EventLog, Except, JournalOptions, NewEventBatch, NewNotificationBatch, Step, WorkQueue,
    },
    sqlite::journal::SqliteJournal,
};

use crate::{
    bench::{Bench, Measuring},
    failure::{Failure, Outcome},
    {
        context::{Context, run_blocking},
        disk,
        figure::{Figure, Samples, rounded},
        stock_workload::{self, BATCHES, ORDERS_EACH},
    },
};

/// Benchmark of this file.
pub const BENCH: Bench = Bench {
    name: "match.commit",
    about: "ms to commit the notification batches of a batch of 1,000 events, 1,000,000 subscriptions",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context)) },
};

async fn run(context: &Context) -> Outcome<Figure> {
    let subscribers = context.size(200_000, 2_000);
    let made = run_blocking(move || generate(subscribers)).await??;
    let notifications: u64 = made.iter().flat_map(|(_, batches)| batches).map(|batch| u64::from(batch.count)).sum();
    let folder = context.folder()?;
    let journal =
        SqliteJournal::open(folder.path().join("journal.db"), JournalOptions::default()).await.map_err(stored)?;
    let (mut ours, mut syncs) = (Samples::default(), Samples::default());
    // Not measured: the first pass grows the file.
    commit_all(&journal, &made).await?;
    for _ in context.turns() {
        syncs.push(1e3 / disk::syncs_per_second(folder.path(), Duration::from_millis(context.size(500, 100))).await?);
        ours.push(commit_all(&journal, &made).await?.as_secs_f64() * 1e3 / made.len() as f64);
    }
    Ok(Figure::new("ms", ours)
        .with_condition(format!("{} subscriptions", subscribers * ORDERS_EACH))
        .with_condition(format!(
            "batches of 1000 events, {:.0} notifications in batches of at most 2500",
            notifications as f64 / BATCHES as f64
        ))
        .with_condition("one commit at a time, mean over a pass of ten")
        .with_condition(format!("bare fdatasync of 8 KB {} ms", rounded(syncs.median(), 3))))
}

/// Event batches with the notification batches that they produce.
fn generate(subscribers: u32) -> Outcome<Vec<(EventBatch, Vec<NewNotificationBatch>)>> {
    let compiled = stock_workload::compiled()?;
    let (mut shard, _) = stock_workload::shard(&compiled, subscribers, 1)?;
    let fields = stock_workload::quote_fields(&compiled)?;
    let mut cutter = NotificationCutter::new();
    let mut made = Vec::new();
    for batch in stock_workload::event_batches(&compiled)? {
        let matched = shard.match_batch(&batch, &fields, &mut cutter);
        matched.map_err(|error| Failure::failed("a batch cannot be matched").because(&error))?;
        let (cut, _) = cutter.finish(&compiled.rules);
        let batches = cut.into_iter().map(|cut| NewNotificationBatch {
            head: NotificationHead {
                application: batch.application.clone(),
                version: batch.version,
                rule: compiled.rules.name(cut.rule).clone(),
                class: cut.class,
                event_class: batch.class.clone(),
                channel: cut.channel.unwrap_or_else(unassigned),
                matched_at: now(),
                accepted_at: now(),
                expires_at: None,
            },
            count: cut.notifications.count() as u32,
            priority: Priority::Normal,
            packed: cut.notifications.pack().into(),
            suspended: None,
            run: None,
        });
        let batches = batches.collect();
        made.push((batch, batches));
    }
    Ok(made)
}

/// Accepts and claims each batch and commits its result. Returns the total time of the commits.
async fn commit_all(journal: &SqliteJournal, made: &[(EventBatch, Vec<NewNotificationBatch>)]) -> Outcome<Duration> {
    let mut took = Duration::ZERO;
    for (batch, batches) in made {
        let claim = accept_and_claim(journal, batch).await?;
        let step = Step { matched: vec![claim], batches: batches.clone(), ..Step::default() };
        let started = Instant::now();
        journal.commit(step).await.map_err(stored)?;
        took += started.elapsed();
    }
    Ok(took)
}

/// Stores an event batch and claims it, as the matcher does.
///
/// # Errors
/// If the journal fails, or returns another claim.
pub async fn accept_and_claim(
    journal: &SqliteJournal,
    batch: &EventBatch,
) -> Outcome<Claim<tocsin_model::id::EventBatchId>> {
    let new = NewEventBatch {
        application: batch.application.clone(),
        version: batch.version,
        class: batch.class.clone(),
        source: batch.source.clone(),
        received_at: now(),
        accepted_at: now(),
        snapshot_sequence: ChangeSequence(0),
        events: batch.events.clone(),
        idempotency: None,
        marks: Vec::new(),
    };
    journal.accept(new).await.map_err(stored)?;
    let claimed = journal
        .claim_events(ClaimEvents {
            batches: 1,
            bytes: usize::MAX,
            except: &Except::default(),
            lease: Duration::from_secs(600),
            now: now(),
        })
        .await
        .map_err(stored)?;
    claimed.first().map(|claimed| claimed.claim).ok_or_else(|| Failure::failed("the journal returned no claim"))
}

/// Converts a journal error.
pub fn stored(error: StoreError) -> Failure {
    Failure::failed("the journal failed").because(&error)
}

/// Current time.
pub fn now() -> Timestamp {
    SystemTime::now().into()
}

fn unassigned() -> Name {
    "unassigned".parse().expect("a name")
}
