//! 3. A work item is formatted and leaves through its channel: dispositions.
//!
//! One worker per channel claims what is due, formats on the fly and hands over to the channel's sessions, never more
//! at a time than the bound. What becomes of each notification is reported to the channel's recorder.

mod in_order; // an item whose events are in ordered mode

use std::{
    collections::HashMap,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt;
use parking_lot::Mutex;
use tocsin_delivery::Answer;
use tocsin_model::{
    application::DeliveryLog,
    conduct::Priority,
    id::{Name, NotificationBatchId, WorkItemId},
    receipt::{Outcome, Reason, ReasonKind},
    time::Timestamp,
};
use tocsin_store::{error::StoreError, journal::WorkItem};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use crate::{
    Flow,
    feed::Feeding,
    load_work::{Loaded, Unreadable},
    options::PipelineOptions,
    record_receipts::Report,
    running::Running,
    suspects::{Alone, CRASHES_APART, Work},
    windows::Windows,
};

/// Work items of a channel that are open at the same time.
const ITEMS: usize = 64;
/// Notifications of one window that are told together. At this bound the rest of them make digests of their own.
const WINDOW_NOTIFICATIONS_MAX: usize = 1_000_000;
/// How often the delivery of an item may break off before it is suspended.
const PANICS_MAX: u32 = 3;
/// Items of which that is remembered.
const PANICS_KNOWN: usize = 10_000;
/// How long a work item rests that could not even be read.
pub(crate) const REST_AFTER_FAILURE: Duration = Duration::from_secs(5);
/// How long a work item rests whose batch is gone.
const REST_OF_LOST: Duration = Duration::from_secs(3600);
/// What is urgent or high has room for a part of what may be on its way, beside all the rest.
const PRESSING_SHARE: usize = 4;
/// Work items that are read while they wait for their turn.
const ITEMS_AHEAD: usize = 4;
/// How often a channel that is down is looked at while it still has work on its way.
const DOWN_PAUSE: Duration = Duration::from_secs(1);

/// Claims the due work of one channel until it is stopped.
pub(crate) struct Worker {
    pub flow: Arc<Flow>,
    pub running: Arc<Running>,
    pub channel: Name,
    pub lease: Duration,
    pub log: DeliveryLog,
    pub reports: mpsc::Sender<Report>,
    pub answers: mpsc::Sender<Answer>,
    /// The windows of the channel's digests.
    pub windows: Arc<Windows>,
    pub panics: Mutex<Panics>,
    /// How much is on its way: of what presses, and of all.
    pub bounds: [Arc<Bounds>; 2],
    /// Held by whoever claims.
    pub claiming: tokio::sync::Mutex<()>,
}

impl Worker {
    /// Works until `stop`; what is begun then is ended without handing over more, and the rest is left to others.
    pub async fn run(self, stop: CancellationToken) {
        let worker = Arc::new(self);
        let [pressing, all] = worker.bounds.clone();
        let pressing = worker.clone().work(Priority::High, pressing, &stop);
        tokio::join!(worker.work(Priority::Low, all, &stop), pressing);
    }

    /// Works on what is of this priority or presses more.
    async fn work(self: Arc<Self>, least: Priority, bounds: Arc<Bounds>, stop: &CancellationToken) {
        let worker = self;
        let items = Arc::new(Semaphore::new(ITEMS));
        let mut tasks = JoinSet::new();
        let mut arrivals = worker.flow.journal.arrivals().work;
        let mut switched = worker.flow.switches.changes();
        while !stop.is_cancelled() {
            let Some(permit) = stop.run_until_cancelled(items.clone().acquire_owned()).await else { break };
            let permit = permit.expect("the semaphore is never closed");
            while tasks.try_join_next().is_some() {}
            let is_down = worker.is_down();
            let idle = items.available_permits() == ITEMS - 1 && bounds.is_idle();
            if is_down && !idle {
                drop(permit);
                stop.run_until_cancelled(tokio::time::sleep(DOWN_PAUSE)).await;
                continue;
            }
            arrivals.mark_unchanged();
            switched.mark_unchanged();
            let limit = if is_down { 1 } else { 1 + items.available_permits() };
            match worker.claim(least, limit).await {
                Ok(jobs) if !jobs.is_empty() => {
                    let mut permits = vec![permit];
                    for job in jobs {
                        let permit = permits.pop().or_else(|| items.clone().try_acquire_owned().ok());
                        let (worker, bounds, stop) = (worker.clone(), bounds.clone(), stop.clone());
                        tasks.spawn(async move {
                            worker.deliver(job, &bounds, &stop).await;
                            drop(permit);
                        });
                    }
                }
                Ok(_) => {
                    drop(permit);
                    let due = worker.next_due(least).await;
                    tokio::select! {
                        () = stop.cancelled() => {}
                        Ok(()) = arrivals.changed() => {}
                        Ok(()) = switched.changed() => {}
                        () = tokio::time::sleep(due) => {}
                    }
                }
                Err(error) => {
                    tracing::error!(%error, channel = %worker.channel, "work cannot be claimed");
                    stop.run_until_cancelled(tokio::time::sleep(REST_AFTER_FAILURE)).await;
                }
            }
        }
        while tasks.join_next().await.is_some() {}
    }

    /// Whether the channel as a whole is not working. Then one item at a time finds out when it does again, and the
    /// others wait without using up their attempts.
    fn is_down(&self) -> bool {
        self.running.channel(&self.channel).is_some_and(|open| open.down().is_some())
    }

    /// Whether there can be anything of this priority or one that presses more.
    fn has_work(&self, least: Priority) -> bool {
        least > Priority::High || self.running.has_pressing()
    }

    /// Claims up to `limit` items, and with those of a window all others of it; nobody else of this channel meanwhile, for two
    /// jobs of one window would tell its digests in parts.
    async fn claim(&self, least: Priority, limit: usize) -> Result<Vec<Vec<WorkItem>>, StoreError> {
        if !self.has_work(least) || self.flow.switches.holds_delivery(&self.running.name, &self.channel) {
            return Ok(Vec::new());
        }
        let _alone = self.claiming.lock().await;
        let (application, now) = (&self.running.name, self.flow.clock.now());
        let claimed = self.flow.journal.claim_work(application, &self.channel, least, limit, self.lease, now).await?;
        let mut jobs = jobs(claimed);
        let suspects = &self.flow.suspects;
        for at in 0..jobs.len() {
            if let Err(error) = self.claim_rest_of(&mut jobs[at]).await {
                self.give_back(&jobs, self.flow.clock.now() + REST_AFTER_FAILURE).await;
                return Err(error);
            }
        }
        // A digest is sent in parts in order to find the work item that crashes the process.
        let crashes = |item: &WorkItem| suspects.crashes(Work::Item(item.claim.id));
        let apart = |job: Vec<WorkItem>| match job.iter().any(|item| crashes(item) >= CRASHES_APART) {
            true => job.into_iter().map(|item| vec![item]).collect(),
            false => vec![job],
        };
        Ok(jobs.into_iter().flat_map(apart).collect())
    }

    /// How long until something becomes due by itself. A lease that runs out elsewhere becomes due as well, so the
    /// wait is never longer than one.
    async fn next_due(&self, least: Priority) -> Duration {
        if !self.has_work(least) {
            return self.lease;
        }
        let now = self.flow.clock.now();
        match self.flow.journal.next_due(&self.running.name, &self.channel, now).await {
            Ok(Some(due)) => due.since(now).clamp(Duration::from_millis(1), self.lease),
            Ok(None) => self.lease,
            Err(_) => REST_AFTER_FAILURE,
        }
    }

    /// Delivers a job. One that makes our own work panic is tried again when its lease is over, but not for ever.
    async fn deliver(&self, items: Vec<WorkItem>, bounds: &Bounds, stop: &CancellationToken) {
        let suspects = &self.flow.suspects;
        let works: Vec<Work> = items.iter().map(|item| Work::Item(item.claim.id)).collect();
        // What was under way when the process crashed runs while nothing else does that was.
        let alone = if works.iter().any(|work| suspects.crashes(*work) > 0) {
            match self.wait_for_turn(&items, stop).await {
                Some(alone) => Some(alone),
                None => {
                    for item in &items {
                        // A claim that is lost is nobody's to give back.
                        let _ = self.flow.journal.release(item.claim, None).await;
                    }
                    return;
                }
            }
        } else {
            None
        };
        let mut begun: Vec<(u64, WorkItem)> = Vec::with_capacity(items.len());
        for (item, work) in items.into_iter().zip(works) {
            let key = next_key();
            let under_way = suspects.enter(work, alone.as_ref());
            if self.reports.send(Report::Begun { key, item: item.clone(), under_way }).await.is_err() {
                return;
            }
            begun.push((key, item));
        }
        // From here on what is under way keeps it.
        drop(alone);
        let given_back = match AssertUnwindSafe(self.deliver_begun(&mut begun, bounds, stop)).catch_unwind().await {
            Ok(Ok(())) => return self.panics.lock().forget(&begun),
            Ok(Err(given_back)) => Some(given_back),
            Err(_) => {
                let ids: Vec<_> = begun.iter().map(|(_, item)| item.claim.id.to_string()).collect();
                tracing::error!(items = ids.join(", "), "delivering work items panicked");
                metrics::counter!("deliver_panics_total").increment(1);
                self.panics.lock().note(&begun);
                None
            }
        };
        for (key, item) in begun {
            let _ = self.reports.send(Report::GivenBack { key }).await;
            if let Some(GivenBack { due_at }) = given_back {
                let _ = self.flow.journal.release(item.claim, due_at).await;
            }
        }
    }

    /// Waits until no other suspect runs, and keeps the leases meanwhile. `None`: it is to stop.
    async fn wait_for_turn(&self, items: &[WorkItem], stop: &CancellationToken) -> Option<Alone> {
        let mut alone = std::pin::pin!(self.flow.suspects.alone());
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return None,
                alone = &mut alone => return Some(alone),
                () = tokio::time::sleep(self.lease / 3) => {
                    for item in items {
                        // A claim that is lost is noticed when what becomes of the item is recorded.
                        let _ = self.flow.journal.extend(item.claim, self.lease, self.flow.clock.now()).await;
                    }
                }
            }
        }
    }

    /// What of `begun` is dealt with otherwise is taken out.
    async fn deliver_begun(
        &self,
        begun: &mut Vec<(u64, WorkItem)>,
        bounds: &Bounds,
        stop: &CancellationToken,
    ) -> Result<(), GivenBack> {
        let Some(ahead) = stop.run_until_cancelled(bounds.ahead.acquire()).await else {
            return Err(GivenBack { due_at: None });
        };
        let mut feeding: Vec<Feeding> = Vec::with_capacity(begun.len());
        let mut at = 0;
        while at < begun.len() {
            let (key, item) = &begun[at];
            let broken_off = self.panics.lock().of(item);
            let poison = self.flow.suspects.poison(Work::Item(item.claim.id));
            let loaded = match (poison, broken_off) {
                (Some(reason), _) => {
                    metrics::counter!("pipeline_poison_total", "work" => "delivery").increment(1);
                    Err(Unreadable::ForGood(reason))
                }
                (None, PANICS_MAX..) => Err(Unreadable::ForGood(format!(
                    "delivering it broke off {broken_off} times in the middle of our own work; see the log"
                ))),
                (None, _) => Loaded::read(&self.flow, item).await,
            };
            match loaded {
                Ok(loaded) => {
                    let (key, due_at) = (*key, item.due_at);
                    let ordinals = loaded.ordinals.clone();
                    feeding.push(Feeding { key, loaded, ordinals, fed: 0, left: Vec::new(), due_at });
                    at += 1;
                }
                Err(Unreadable::ForNow(error)) => {
                    tracing::error!(%error, item = %item.claim.id, "a work item cannot be read yet");
                    return Err(GivenBack { due_at: Some(self.flow.clock.now() + REST_AFTER_FAILURE) });
                }
                Err(Unreadable::ForGood(what)) => {
                    let (key, item) = begun.remove(at);
                    if let Err(GivenBack { due_at }) = self.suspend_unread(key, &item, &what, bounds).await {
                        let _ = self.reports.send(Report::GivenBack { key }).await;
                        let _ = self.flow.journal.release(item.claim, due_at).await;
                    }
                }
            }
        }
        let is_ordered = feeding.len() == 1 && feeding[0].loaded.is_ordered();
        if is_ordered
            && let Err(error) = self.running.lanes.learn(&self.flow, &self.running.name, &feeding[0].loaded).await
        {
            tracing::error!(%error, item = %begun[0].1.claim.id, "what goes before a work item cannot be read yet");
            return Err(GivenBack { due_at: Some(self.flow.clock.now() + REST_AFTER_FAILURE) });
        }
        let total = feeding.iter().map(|item| item.loaded.ordinals.len()).sum();
        let Some(permit) = stop.run_until_cancelled(bounds.permit(total)).await else {
            return Err(GivenBack { due_at: None });
        };
        drop(ahead);
        let mut permit = Some(permit);
        for (at, Feeding { key, loaded, .. }) in feeding.iter().enumerate() {
            // Each takes its part, and the last what is left; more than may ever be on their way count as all.
            let is_last = at + 1 == feeding.len();
            let part = match permit.as_mut() {
                Some(whole) if !is_last => whole.split(loaded.ordinals.len().min(whole.num_permits())),
                _ => permit.take(),
            };
            let (accepted, conduct) = (loaded.accepted.clone(), loaded.conduct.clone());
            let subscriptions = loaded.notifications().subscriptions.clone();
            let counters = loaded.counters.clone();
            let read = Report::Read { key: *key, accepted, subscriptions, conduct, counters, permit: part };
            if self.reports.send(read).await.is_err() {
                return Ok(());
            }
        }
        match is_ordered {
            true => self.feed_in_order(&mut feeding[0], stop).await,
            false => self.feed(&mut feeding, stop).await,
        }
        for Feeding { key, fed, left, due_at, .. } in feeding {
            let _ = self.reports.send(Report::Fed { key, fed, left, due_at }).await;
        }
        Ok(())
    }

    /// Claims what else is of the window of a job, if it is of one, so that all of it is told together.
    async fn claim_rest_of(&self, job: &mut Vec<WorkItem>) -> Result<(), StoreError> {
        let Some(window) = job[0].course.window else { return Ok(()) };
        self.windows.settled(window).await;
        let now = self.flow.clock.now();
        self.windows.close(now);
        let (application, most) = (&self.running.name, WINDOW_NOTIFICATIONS_MAX);
        job.extend(self.flow.journal.claim_window(application, &self.channel, window, most, self.lease, now).await?);
        Ok(())
    }

    /// Gives jobs back to the journal untouched.
    async fn give_back(&self, jobs: &[Vec<WorkItem>], due_at: Timestamp) {
        for item in jobs.iter().flatten() {
            // A claim that is lost is nobody's to give back.
            let _ = self.flow.journal.release(item.claim, Some(due_at)).await;
        }
    }

    /// An item that nobody can read waits for an operator, who sees why.
    async fn suspend_unread(&self, key: u64, item: &WorkItem, what: &str, bounds: &Bounds) -> Result<(), GivenBack> {
        tracing::error!(item = %item.claim.id, batch = %item.batch, what, "a work item cannot be read and is suspended");
        let now = self.flow.clock.now();
        let ordinals = match &item.ordinals {
            Some(ordinals) => ordinals.clone(),
            None => {
                let next = NotificationBatchId(item.batch.0.saturating_add(1));
                let heads = self.flow.journal.notification_batches(Some(next), 1).await.unwrap_or_default();
                match heads.first() {
                    Some((id, _, count)) if *id == item.batch => (0..*count).collect(),
                    // Not even how many there are is known, so there is nothing to suspend.
                    _ => return Err(GivenBack { due_at: Some(now + REST_OF_LOST) }),
                }
            }
        };
        let permit = Some(bounds.permit(ordinals.len()).await);
        let (accepted, subscriptions, conduct) = (Vec::new(), Vec::new(), Arc::default());
        let counters = self.flow.classes.other();
        let read = Report::Read { key, accepted, subscriptions, conduct, counters, permit };
        let _ = self.reports.send(read).await;
        let fed = ordinals.len();
        for ordinal in ordinals {
            let reason = Reason::new(ReasonKind::Internal, what);
            let report = Report::Unsent { key, ordinal, at: now, outcome: Outcome::Suspended, reason };
            if self.reports.send(report).await.is_err() {
                return Ok(());
            }
        }
        let _ = self.reports.send(Report::Fed { key, fed, left: Vec::new(), due_at: now }).await;
        Ok(())
    }
}

/// Cuts claimed items into what is delivered together: all of one window of a digest, or one item.
fn jobs(claimed: Vec<WorkItem>) -> Vec<Vec<WorkItem>> {
    let mut jobs: Vec<Vec<WorkItem>> = Vec::with_capacity(claimed.len());
    for item in claimed {
        let window = item.course.window;
        match jobs.iter_mut().find(|job| window.is_some() && job[0].course.window == window) {
            Some(job) => job.push(item),
            None => jobs.push(vec![item]),
        }
    }
    jobs
}

/// How often the delivery of an item has broken off in the middle of our own work. Forgotten with the process.
#[derive(Default)]
pub(crate) struct Panics(HashMap<WorkItemId, u32>);

impl Panics {
    fn of(&self, item: &WorkItem) -> u32 {
        self.0.get(&item.claim.id).copied().unwrap_or(0)
    }

    fn note(&mut self, items: &[(u64, WorkItem)]) {
        if self.0.len() < PANICS_KNOWN {
            items.iter().for_each(|(_, item)| *self.0.entry(item.claim.id).or_default() += 1);
        }
    }

    fn forget(&mut self, items: &[(u64, WorkItem)]) {
        if !self.0.is_empty() {
            self.0.retain(|id, _| items.iter().all(|(_, item)| item.claim.id != *id));
        }
    }
}

/// Why an item goes back to the journal untouched: there is no time for it now, or it is due again at this time.
#[derive(Clone, Copy)]
struct GivenBack {
    due_at: Option<Timestamp>,
}

/// How much of a channel is worked on at the same time.
pub(crate) struct Bounds {
    /// Notifications formatted or on their way.
    notifications: Arc<Semaphore>,
    notifications_max: usize,
    /// Items read while they wait for those before them.
    ahead: Semaphore,
}

impl Bounds {
    /// Those of what presses, and of all: what presses has room of its own, so that it waits for nothing that was begun before
    /// it.
    pub fn both(options: &PipelineOptions) -> [Arc<Bounds>; 2] {
        let most = options.in_flight_per_channel;
        [most / PRESSING_SHARE, most].map(|in_flight| Arc::new(Bounds::new(in_flight)))
    }

    fn new(in_flight: usize) -> Self {
        let notifications_max = in_flight.clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        Bounds {
            notifications: Arc::new(Semaphore::new(notifications_max)),
            notifications_max,
            ahead: Semaphore::new(ITEMS_AHEAD),
        }
    }

    /// Waits until so many may be on their way; more than may ever be count as all.
    async fn permit(&self, count: usize) -> OwnedSemaphorePermit {
        let count = count.clamp(1, self.notifications_max) as u32;
        self.notifications.clone().acquire_many_owned(count).await.expect("the semaphore is never closed")
    }

    /// Whether nothing is formatted, on its way or waiting to be recorded.
    pub fn is_idle(&self) -> bool {
        self.notifications.available_permits() == self.notifications_max
    }
}

pub(crate) fn next_key() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
