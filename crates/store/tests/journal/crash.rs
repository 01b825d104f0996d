//! Copies of the files at random moments of a run are the state after a crash. They must contain everything that was
//! acknowledged before the copy, and no partial changes.

use std::{collections::HashSet, path::Path, sync::Arc};

use parking_lot::Mutex;
use tocsin_model::{
    id::{EventBatchId, NotificationBatchId},
    receipt::Outcome,
};
use tocsin_store::journal::{Backlog, EventBatchState, Journal, Retry, Step, SuspensionFilter, WorkState};
use tokio::sync::{Semaphore, watch};

use crate::support::*;

const NOTIFICATIONS: u32 = 50;
const BATCHES_EACH: usize = 2;
/// Steps in each round.
const STEPS: usize = 40;

/// Work that the journal has acknowledged.
#[derive(Default, Clone)]
struct Acknowledged {
    accepted: HashSet<EventBatchId>,
    matched: HashSet<EventBatchId>,
    attempts: Vec<(NotificationBatchId, usize)>,
}

#[test]
fn a_crash_loses_nothing_acknowledged() {
    let seed =
        std::env::var("TOCSIN_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("TOCSIN_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let fixture = JournalFixture::sqlite();
    run(async {
        let journal = fixture.open().await;
        let acknowledged = Arc::new(Mutex::new(Acknowledged::default()));
        // Each round permits some steps, and the copy is taken while they run.
        let gate = Arc::new(Semaphore::new(0));
        let (done, mut steps) = watch::channel(0);
        let workers: Vec<_> = (0..6)
            .map(|_| {
                let (journal, acknowledged) = (journal.clone(), acknowledged.clone());
                let (gate, done) = (gate.clone(), done.clone());
                let mut random = fastrand::Rng::with_seed(random.u64(..));
                tokio::spawn(async move {
                    while let Ok(permit) = gate.acquire().await {
                        permit.forget();
                        let _counted = Counted(&done);
                        work(&*journal, &acknowledged, &mut random).await;
                    }
                })
            })
            .collect();
        for round in 0..20 {
            gate.add_permits(STEPS);
            let until = round * STEPS + random.usize(1..STEPS);
            steps.wait_for(|steps| *steps >= until).await.expect("the workers go on");
            let before = acknowledged.lock().clone();
            let copy = crash_image(fixture.folder());
            examine(copy.path(), before).await;
        }
        gate.close();
        for worker in workers {
            worker.await.expect("worked");
        }
    });
}

/// Counts a step when it ends, successful or not.
struct Counted<'a>(&'a watch::Sender<usize>);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|steps| *steps += 1);
    }
}

/// Runs one random operation.
async fn work(journal: &dyn Journal, acknowledged: &Mutex<Acknowledged>, random: &mut fastrand::Rng) {
    match random.u32(..10) {
        0..5 => {
            let id = accept(journal, random.u32(1..40), at(0)).await;
            acknowledged.lock().accepted.insert(id);
        }
        5..7 => {
            let claimed = claim_events(journal, 3, at(1)).await;
            let batches = claimed.iter().flat_map(|claimed| {
                std::iter::repeat_with(|| notifications(&[claimed.claim.id], NOTIFICATIONS, at(1))).take(BATCHES_EACH)
            });
            let step = Step {
                batches: batches.collect(),
                matched: claimed.iter().map(|claimed| claimed.claim).collect(),
                ..Step::default()
            };
            journal.commit(step).await.expect("committed");
            acknowledged.lock().matched.extend(claimed.iter().map(|claimed| claimed.claim.id));
        }
        _ => {
            for item in claim_work(journal, 4, at(1)).await {
                let ordinals = item.ordinals.clone().unwrap_or_else(|| (0..NOTIFICATIONS).collect());
                let (sent, failed) = ordinals.split_at(random.usize(..=ordinals.len()));
                let receipts = vec![
                    chunk(item.batch, attempts(sent.iter().copied(), item.attempts + 1, Outcome::Delivered, at(1))),
                    chunk(item.batch, attempts(failed.iter().copied(), item.attempts + 1, Outcome::Deferred, at(1))),
                ];
                let retry = Retry {
                    batch: item.batch,
                    application: app(),
                    channel: mail(),
                    ordinals: failed.to_vec(),
                    attempts: item.attempts + 1,
                    due_at: at(1),
                    work_state: WorkState::default(),
                };
                let retries = if failed.is_empty() { Vec::new() } else { vec![retry] };
                let step = Step { finished: vec![item.claim], receipts, retries, ..Step::default() };
                journal.commit(step).await.expect("committed");
                acknowledged.lock().attempts.push((item.batch, sent.len() + failed.len()));
            }
        }
    }
}

/// Copies the file and its WAL at one moment: the file must not change while the WAL is read.
pub fn crash_image(folder: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("a folder");
    loop {
        let read = |name: &str| std::fs::read(folder.join(name)).expect("readable");
        let (file, log) = (read("journal.sqlite"), read("journal.sqlite-wal"));
        if file == read("journal.sqlite") {
            std::fs::write(copy.path().join("journal.sqlite"), file).expect("written");
            std::fs::write(copy.path().join("journal.sqlite-wal"), log).expect("written");
            return copy;
        }
    }
}

async fn examine(folder: &Path, before: Acknowledged) {
    let journal = open_at(folder, options()).await;
    let mut recount = Backlog::default();
    for (batch, state) in journal.event_batches(None, usize::MAX).await.expect("read") {
        let batches =
            journal.notification_batches_of(batch.id, NotificationBatchId(0), usize::MAX).await.expect("read");
        let (whole, _) = journal.event_batch(batch.id).await.expect("read").expect("listed");
        match state {
            EventBatchState::Accepted => {
                assert!(!before.matched.contains(&batch.id), "{} was matched", batch.id);
                assert!(batches.is_empty(), "{} is partially matched", batch.id);
                recount.event_batches += 1;
                recount.events += u64::from(batch.events.count());
                recount.event_bytes += whole.events.bytes().len() as u64;
                recount.oldest_event = Some(at(0));
            }
            EventBatchState::Matched(_) => assert_eq!(batches.len(), BATCHES_EACH, "{} is partially matched", batch.id),
            EventBatchState::Failed(why) => panic!("{} failed: {why}", batch.id),
        }
    }
    for id in &before.accepted {
        assert!(journal.event_batch(*id).await.expect("read").is_some(), "{id} is lost");
    }
    for (id, _, count) in journal.notification_batches(None, usize::MAX).await.expect("read") {
        assert_eq!(count, NOTIFICATIONS);
        journal.notification_batch(id).await.expect("read").expect("listed");
        let tried = journal.attempts(id).await.expect("read");
        let acknowledged: usize =
            before.attempts.iter().filter(|(batch, _)| *batch == id).map(|(_, count)| count).sum();
        assert!(tried.len() >= acknowledged, "attempts at {id} are lost");
        // Each notification is either delivered or in exactly one work item.
        let delivered = tried.iter().filter(|attempt| attempt.outcome.closes()).map(|attempt| attempt.ordinal);
        let open = journal.open_work(id).await.expect("read");
        recount.work_items += open.len() as u64;
        let open = open.into_iter().flat_map(|item| item.ordinals.unwrap_or_else(|| (0..NOTIFICATIONS).collect()));
        let open: Vec<u32> = open.collect();
        recount.notifications += open.len() as u64;
        let mut accounted: Vec<u32> = delivered.chain(open).collect();
        accounted.sort_unstable();
        assert_eq!(accounted, (0..NOTIFICATIONS).collect::<Vec<_>>(), "notifications of {id}");
    }
    assert!(journal.suspensions(&SuspensionFilter::default(), 0, 9).await.expect("read").is_empty());
    assert_eq!(journal.backlog(), recount);
}
