//! Step 3: a work item is formatted and sent through its channel, which yields dispositions.
//!
//! One worker per channel claims due work items, formats them on the fly and hands them to the channel's sessions, up
//! to a bound in flight. The tracker of an item receives the disposition of each of its notifications.

mod in_order; // dispatch of items whose event class is in ordered mode

use std::{collections::HashMap, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt;
use parking_lot::Mutex;
use tocsin_delivery::Answer;
use tocsin_model::{
    application::DeliveryLog,
    delivery_policy::Priority,
    id::{Name, NotificationBatchId, WorkItemId},
    receipt::ReasonKind,
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    journal::{Claim, ClaimWindow, ClaimWork, WorkItem},
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use crate::{
    Flow,
    active_version::ActiveVersion,
    decide::Unsent,
    delivery_tracker::{DeliveryTracker, ItemDetails},
    dispatch_items::ItemDispatch,
    in_flight::InFlight,
    load_work::{Loaded, Unreadable},
    options::PipelineOptions,
    suspects::{CRASHES_APART, ExclusivePermit, Work},
    windows::Windows,
};

/// Work items of a channel in progress at the same time.
const ITEMS: usize = 64;
/// Notifications of one window that share a digest. Beyond this bound the rest make digests of their own.
const WINDOW_NOTIFICATIONS_MAX: usize = 1_000_000;
/// Panics of an item's delivery after which it is suspended.
const PANICS_MAX: u32 = 3;
/// Items whose panics are counted.
const PANICS_KNOWN: usize = 10_000;
/// Delay before a work item that could not be read is tried again.
pub(crate) const REST_AFTER_FAILURE: Duration = Duration::from_secs(5);
/// Delay before a work item whose batch is missing is tried again.
const REST_OF_LOST: Duration = Duration::from_secs(3600);
/// Urgent and high-priority work has its own share of the in-flight limit: one part in this many.
const PRESSING_SHARE: usize = 4;
/// Work items that are read ahead while they wait for a permit.
const ITEMS_AHEAD: usize = 4;
/// Interval at which a channel that is down is checked while it still has work in flight.
const DOWN_PAUSE: Duration = Duration::from_secs(1);

/// Claims and delivers the due work of one channel.
pub(crate) struct Worker {
    pub flow: Arc<Flow>,
    pub active: Arc<ActiveVersion>,
    pub channel: Name,
    pub lease: Duration,
    pub log: DeliveryLog,
    pub in_flight: Arc<InFlight>,
    pub answers: mpsc::Sender<Answer>,
    /// Open digest windows of the channel.
    pub windows: Arc<Windows>,
    pub panics: Mutex<Panics>,
    /// In-flight limits: for high-priority work, and for all work.
    pub bounds: [Arc<InFlightLimits>; 2],
    /// Held while claiming.
    pub claiming: tokio::sync::Mutex<()>,
}

impl Worker {
    /// Runs until `stop`. Work in progress then ends without handing over more; the rest stays for other workers.
    pub async fn run(self, stop: CancellationToken) {
        let worker = Arc::new(self);
        let [pressing, all] = worker.bounds.clone();
        let pressing = worker.clone().work(Priority::High, pressing, &stop);
        tokio::join!(worker.clone().work(Priority::Low, all, &stop), pressing);
        if !stop.is_cancelled() {
            tracing::error!(channel = %worker.channel, "the recorder of a channel panicked: the channel sends nothing");
        }
    }

    /// Delivers work of this priority or higher.
    async fn work(self: Arc<Self>, least: Priority, bounds: Arc<InFlightLimits>, stop: &CancellationToken) {
        let worker = self;
        let items = Arc::new(Semaphore::new(ITEMS));
        let mut tasks = JoinSet::new();
        let mut arrivals = worker.flow.work_queue.arrivals().work;
        let mut switched = worker.flow.switches.changes();
        while !stop.is_cancelled() && !worker.in_flight.is_closed() {
            let Some(permit) = stop.run_until_cancelled(items.clone().acquire_owned()).await else { break };
            let permit = permit.expect("the semaphore is never closed");
            while tasks.try_join_next().is_some() {}
            let is_failing = worker.is_failing();
            let idle = items.available_permits() == ITEMS - 1 && bounds.is_idle();
            if is_failing && !idle {
                drop(permit);
                stop.run_until_cancelled(tokio::time::sleep(DOWN_PAUSE)).await;
                continue;
            }
            arrivals.mark_unchanged();
            switched.mark_unchanged();
            let limit = if is_failing { 1 } else { 1 + items.available_permits() };
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

    /// Whether the channel as a whole is failing (circuit breaker). Then one item at a time probes it, and the others
    /// wait without using up their attempts.
    fn is_failing(&self) -> bool {
        self.active.channel(&self.channel).is_some_and(|open| open.down().is_some())
    }

    /// Whether there may be work of this priority or higher.
    fn has_work(&self, least: Priority) -> bool {
        least > Priority::High || self.active.has_high_priority()
    }

    /// Claims up to `limit` items, with all other items of their digest windows. No other claim of this channel runs
    /// meanwhile: two jobs for one window would split its digests.
    async fn claim(&self, least: Priority, limit: usize) -> Result<Vec<Vec<WorkItem>>, StoreError> {
        if !self.has_work(least) || self.flow.switches.pauses_delivery(&self.active.name, &self.channel) {
            return Ok(Vec::new());
        }
        let _alone = self.claiming.lock().await;
        let (application, now) = (&self.active.name, self.flow.clock.now());
        let claimed = self
            .flow
            .work_queue
            .claim_work(ClaimWork { application, channel: &self.channel, least, limit, lease: self.lease, now })
            .await?;
        let mut jobs = jobs(claimed);
        let suspects = &self.flow.suspects;
        for at in 0..jobs.len() {
            if let Err(error) = self.claim_rest_of(&mut jobs[at]).await {
                let claims: Vec<Claim<WorkItemId>> = jobs.iter().flatten().map(|item| item.claim).collect();
                self.release_claims(&claims, Some(self.flow.clock.now() + REST_AFTER_FAILURE)).await;
                return Err(error);
            }
        }
        // Digests are split to isolate the work item that crashes the process.
        let crashes = |item: &WorkItem| suspects.crashes(Work::Item(item.claim.id));
        let apart = |job: Vec<WorkItem>| match job.iter().any(|item| crashes(item) >= CRASHES_APART) {
            true => job.into_iter().map(|item| vec![item]).collect(),
            false => vec![job],
        };
        Ok(jobs.into_iter().flat_map(apart).collect())
    }

    /// Time until the next item is due. A lease that expires elsewhere makes an item due as well, so the wait is
    /// never longer than a lease.
    async fn next_due(&self, least: Priority) -> Duration {
        if !self.has_work(least) {
            return self.lease;
        }
        let now = self.flow.clock.now();
        match self.flow.work_queue.next_due(&self.active.name, &self.channel, now).await {
            Ok(Some(due)) => due.since(now).clamp(Duration::from_millis(1), self.lease),
            Ok(None) => self.lease,
            Err(_) => REST_AFTER_FAILURE,
        }
    }

    /// Delivers a job. After a panic, the job is tried again when its lease expires, up to a limit.
    async fn deliver(&self, items: Vec<WorkItem>, bounds: &InFlightLimits, stop: &CancellationToken) {
        let suspects = &self.flow.suspects;
        let claims: Vec<Claim<WorkItemId>> = items.iter().map(|item| item.claim).collect();
        let works: Vec<Work> = items.iter().map(|item| Work::Item(item.claim.id)).collect();
        // Work that was in progress when the process crashed runs alone among such suspects.
        let alone = if works.iter().any(|work| suspects.crashes(*work) > 0) {
            match self.wait_for_turn(&items, stop).await {
                Some(alone) => Some(alone),
                None => return self.release_claims(&claims, None).await,
            }
        } else {
            None
        };
        let begin = |(item, work)| self.in_flight.begin(item, suspects.enter(work, alone.as_ref()));
        let begun: Option<Vec<Arc<DeliveryTracker>>> = items.into_iter().zip(works).map(begin).collect();
        let Some(mut begun) = begun else { return self.release_claims(&claims, None).await };
        // From here on the in-progress marker keeps it.
        drop(alone);
        let released = match AssertUnwindSafe(self.deliver_started(&mut begun, bounds, stop)).catch_unwind().await {
            Ok(Ok(())) => return self.panics.lock().clear(&begun),
            Ok(Err(released)) => Some(released),
            Err(_) => {
                let ids: Vec<_> = begun.iter().map(|tracker| tracker.item().claim.id.to_string()).collect();
                tracing::error!(items = ids.join(", "), "delivering work items panicked");
                metrics::counter!("tocsin_deliver_panics_total").increment(1);
                self.panics.lock().count(&begun);
                None
            }
        };
        for tracker in begun {
            tracker.release();
            if let Some(ReleaseRequest { due_at }) = released {
                let _ = self.flow.work_queue.release(tracker.item().claim, due_at).await;
            }
        }
    }

    /// Waits until no other suspect runs, and extends the leases meanwhile. `None`: the worker must stop.
    async fn wait_for_turn(&self, items: &[WorkItem], stop: &CancellationToken) -> Option<ExclusivePermit> {
        let mut alone = std::pin::pin!(self.flow.suspects.alone());
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return None,
                alone = &mut alone => return Some(alone),
                () = tokio::time::sleep(self.lease / 3) => {
                    for item in items {
                        // A lost claim shows when the result of the item is recorded.
                        let _ = self.flow.work_queue.extend(item.claim, self.lease, self.flow.clock.now()).await;
                    }
                }
            }
        }
    }

    /// Removes from `begun` the items that are finished here.
    async fn deliver_started(
        &self,
        begun: &mut Vec<Arc<DeliveryTracker>>,
        bounds: &InFlightLimits,
        stop: &CancellationToken,
    ) -> Result<(), ReleaseRequest> {
        let Some(ahead) = stop.run_until_cancelled(bounds.ahead.acquire()).await else {
            return Err(ReleaseRequest { due_at: None });
        };
        let mut feeding: Vec<ItemDispatch> = Vec::with_capacity(begun.len());
        let mut at = 0;
        while at < begun.len() {
            let (tracker, item) = (&begun[at], begun[at].item());
            let broken_off = self.panics.lock().of(item);
            let poison = self.flow.suspects.poison(Work::Item(item.claim.id));
            let loaded = match (poison, broken_off) {
                (Some(reason), _) => {
                    metrics::counter!("tocsin_pipeline_poison_total", "work" => "delivery").increment(1);
                    Err(Unreadable::Permanent(reason))
                }
                (None, PANICS_MAX..) => {
                    Err(Unreadable::Permanent(format!("delivering it panicked {broken_off} times; see the log")))
                }
                (None, _) => Loaded::read(&self.flow, item).await,
            };
            match loaded {
                Ok(loaded) => {
                    let (tracker, due_at) = (tracker.clone(), item.due_at);
                    let ordinals = loaded.ordinals.clone();
                    feeding.push(ItemDispatch { tracker, loaded, ordinals, dispatched: 0, left: Vec::new(), due_at });
                    at += 1;
                }
                Err(Unreadable::Temporary(error)) => {
                    tracing::error!(%error, item = %item.claim.id, "a work item cannot be read yet");
                    return Err(ReleaseRequest { due_at: Some(self.flow.clock.now() + REST_AFTER_FAILURE) });
                }
                Err(Unreadable::Permanent(what)) => {
                    let tracker = begun.remove(at);
                    if let Err(ReleaseRequest { due_at }) = self.suspend_unread(&tracker, &what, bounds).await {
                        tracker.release();
                        let _ = self.flow.work_queue.release(tracker.item().claim, due_at).await;
                    }
                }
            }
        }
        let is_ordered = feeding.len() == 1 && feeding[0].loaded.is_ordered();
        if is_ordered
            && let Err(error) = self.active.lanes.learn(&self.flow, &self.active.name, &feeding[0].loaded).await
        {
            tracing::error!(%error, item = %begun[0].item().claim.id, "earlier notifications of the lanes of a work item cannot be read yet");
            return Err(ReleaseRequest { due_at: Some(self.flow.clock.now() + REST_AFTER_FAILURE) });
        }
        let total = feeding.iter().map(|item| item.loaded.ordinals.len()).sum();
        let Some(permit) = stop.run_until_cancelled(bounds.permit(total)).await else {
            return Err(ReleaseRequest { due_at: None });
        };
        drop(ahead);
        let mut permit = Some(permit);
        for (at, ItemDispatch { tracker, loaded, .. }) in feeding.iter().enumerate() {
            // Each item takes its share, and the last takes the rest. A request above the total limit takes the whole
            // limit.
            let is_last = at + 1 == feeding.len();
            let part = match permit.as_mut() {
                Some(whole) if !is_last => whole.split(loaded.ordinals.len().min(whole.num_permits())),
                _ => permit.take(),
            };
            let details = ItemDetails {
                accepted: loaded.accepted.clone(),
                subscriptions: loaded.notifications().subscriptions.clone(),
                delivery_policy: loaded.delivery_policy.clone(),
                counters: loaded.counters.clone(),
            };
            tracker.begin_dispatch(details, part);
        }
        match is_ordered {
            true => self.dispatch_in_order(&mut feeding[0], stop).await,
            false => self.dispatch(&mut feeding, stop).await,
        }
        for ItemDispatch { tracker, dispatched, left, due_at, .. } in feeding {
            tracker.finish_dispatch(dispatched, left, due_at);
        }
        Ok(())
    }

    /// Claims the remaining items of the job's digest window, if it has one, so that they share one digest.
    async fn claim_rest_of(&self, job: &mut Vec<WorkItem>) -> Result<(), StoreError> {
        let Some(window) = job[0].work_state.window else { return Ok(()) };
        self.windows.settled(window).await;
        let now = self.flow.clock.now();
        self.windows.close(now);
        let (application, most) = (&self.active.name, WINDOW_NOTIFICATIONS_MAX);
        job.extend(
            self.flow
                .work_queue
                .claim_window(ClaimWindow {
                    application,
                    channel: &self.channel,
                    window,
                    notifications: most,
                    lease: self.lease,
                    now,
                })
                .await?,
        );
        Ok(())
    }

    /// Releases items to the journal untouched.
    async fn release_claims(&self, claims: &[Claim<WorkItemId>], due_at: Option<Timestamp>) {
        for claim in claims {
            // A lost claim cannot be released.
            let _ = self.flow.work_queue.release(*claim, due_at).await;
        }
    }

    /// Suspends an item that cannot be read, with the reason for the operator.
    async fn suspend_unread(
        &self,
        tracker: &Arc<DeliveryTracker>,
        what: &str,
        bounds: &InFlightLimits,
    ) -> Result<(), ReleaseRequest> {
        let item = tracker.item();
        tracing::error!(item = %item.claim.id, batch = %item.batch, what, "a work item cannot be read and is suspended");
        let now = self.flow.clock.now();
        let ordinals = match &item.ordinals {
            Some(ordinals) => ordinals.clone(),
            None => {
                let next = NotificationBatchId(item.batch.0.saturating_add(1));
                let heads = self.flow.notification_log.notification_batches(Some(next), 1).await.unwrap_or_default();
                match heads.first() {
                    Some((id, _, count)) if *id == item.batch => (0..*count).collect(),
                    // The number of notifications is unknown, so there is nothing to suspend.
                    _ => return Err(ReleaseRequest { due_at: Some(now + REST_OF_LOST) }),
                }
            }
        };
        let permit = Some(bounds.permit(ordinals.len()).await);
        tracker.begin_dispatch(ItemDetails::unknown(self.flow.classes.other()), permit);
        let dispatched = ordinals.len();
        for ordinal in ordinals {
            tracker.unsent(ordinal, now, Unsent::suspended(ReasonKind::Internal, what));
        }
        tracker.finish_dispatch(dispatched, Vec::new(), now);
        Ok(())
    }
}

/// Groups claimed items into jobs: all items of one digest window, or one item.
fn jobs(claimed: Vec<WorkItem>) -> Vec<Vec<WorkItem>> {
    let mut jobs: Vec<Vec<WorkItem>> = Vec::with_capacity(claimed.len());
    for item in claimed {
        let window = item.work_state.window;
        match jobs.iter_mut().find(|job| window.is_some() && job[0].work_state.window == window) {
            Some(job) => job.push(item),
            None => jobs.push(vec![item]),
        }
    }
    jobs
}

/// Panics of each item's delivery. Not persistent.
#[derive(Default)]
pub(crate) struct Panics(HashMap<WorkItemId, u32>);

impl Panics {
    fn of(&self, item: &WorkItem) -> u32 {
        self.0.get(&item.claim.id).copied().unwrap_or(0)
    }

    fn count(&mut self, items: &[Arc<DeliveryTracker>]) {
        if self.0.len() < PANICS_KNOWN {
            items.iter().for_each(|tracker| *self.0.entry(tracker.item().claim.id).or_default() += 1);
        }
    }

    fn clear(&mut self, items: &[Arc<DeliveryTracker>]) {
        if !self.0.is_empty() {
            self.0.retain(|id, _| items.iter().all(|tracker| tracker.item().claim.id != *id));
        }
    }
}

/// Reason why an item is released untouched: the worker stops, or it is due again at this time.
#[derive(Clone, Copy)]
struct ReleaseRequest {
    due_at: Option<Timestamp>,
}

/// In-flight limits of one channel.
pub(crate) struct InFlightLimits {
    /// Permits for notifications being formatted or in flight.
    notifications: Arc<Semaphore>,
    notifications_max: usize,
    /// Permits for items that are read ahead.
    ahead: Semaphore,
}

impl InFlightLimits {
    /// The limits for high-priority work and for all work. High-priority work has permits of its own, so that it
    /// never waits for work begun before it.
    pub fn both(options: &PipelineOptions) -> [Arc<InFlightLimits>; 2] {
        let most = options.in_flight_per_channel;
        [most / PRESSING_SHARE, most].map(|in_flight| Arc::new(InFlightLimits::new(in_flight)))
    }

    fn new(in_flight: usize) -> Self {
        let notifications_max = in_flight.clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        InFlightLimits {
            notifications: Arc::new(Semaphore::new(notifications_max)),
            notifications_max,
            ahead: Semaphore::new(ITEMS_AHEAD),
        }
    }

    /// Waits for `count` permits. A count above the limit takes all permits.
    async fn permit(&self, count: usize) -> OwnedSemaphorePermit {
        let count = count.clamp(1, self.notifications_max) as u32;
        self.notifications.clone().acquire_many_owned(count).await.expect("the semaphore is never closed")
    }

    /// Whether nothing is being formatted, in flight or waiting to be recorded.
    pub fn is_idle(&self) -> bool {
        self.notifications.available_permits() == self.notifications_max
    }
}
