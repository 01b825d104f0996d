//! 3. A work item is formatted and leaves through its channel: dispositions.
//!
//! One worker per channel claims what is due, formats on the fly and hands over to the channel's sessions, never more
//! at a time than the bound. What becomes of each notification is reported to the channel's recorder.

use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt;
use tocsin_delivery::{Answer, Outgoing, Ticket};
use tocsin_model::{
    id::{Name, NotificationBatchId, SubscriptionId},
    receipt::{Outcome, Reason, ReasonKind},
    subscriber::Device,
    time::Timestamp,
};
use tocsin_store::{error::StoreError, journal::WorkItem, records::Recipient};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use crate::{
    Flow,
    decide::{Decision, Unsent, decide},
    digest::{Group, Groups, group_key},
    load_work::{Loaded, Unreadable},
    options::PipelineOptions,
    record_receipts::Report,
    render::{Member, render},
    running::{Open, Running},
};

/// Work items of a channel that are open at the same time.
const ITEMS: usize = 64;
/// Notifications whose recipients are read, and which are formatted and handed over, at a time.
const RECIPIENTS: usize = 128;
/// How long a work item rests that could not even be read.
const REST_AFTER_FAILURE: Duration = Duration::from_secs(5);
/// How long a work item rests whose batch is gone.
const REST_OF_LOST: Duration = Duration::from_secs(3600);
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
    pub reports: mpsc::Sender<Report>,
    pub answers: mpsc::Sender<Answer>,
}

impl Worker {
    /// Works until `stop`; what is begun then is ended without handing over more, and the rest is left to others.
    pub async fn run(self, stop: CancellationToken) {
        let worker = Arc::new(self);
        let items = Arc::new(Semaphore::new(ITEMS));
        let bounds = Arc::new(Bounds::new(&worker.flow.options));
        let mut tasks = JoinSet::new();
        let mut arrivals = worker.flow.journal.arrivals().work;
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
            let limit = if is_down { 1 } else { 1 + items.available_permits() };
            match worker.claim(limit).await {
                Ok(claimed) if !claimed.is_empty() => {
                    let mut permits = vec![permit];
                    for item in claimed {
                        let permit = permits.pop().or_else(|| items.clone().try_acquire_owned().ok());
                        let (worker, bounds, stop) = (worker.clone(), bounds.clone(), stop.clone());
                        tasks.spawn(async move {
                            worker.deliver(item, &bounds, &stop).await;
                            drop(permit);
                        });
                    }
                }
                Ok(_) => {
                    drop(permit);
                    let due = worker.next_due().await;
                    tokio::select! {
                        () = stop.cancelled() => {}
                        Ok(()) = arrivals.changed() => {}
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

    async fn claim(&self, limit: usize) -> Result<Vec<WorkItem>, StoreError> {
        let now = self.flow.clock.now();
        self.flow.journal.claim_work(&self.running.name, &self.channel, limit, self.lease, now).await
    }

    /// How long until something becomes due by itself. A lease that runs out elsewhere becomes due as well, so the
    /// wait is never longer than one.
    async fn next_due(&self) -> Duration {
        let now = self.flow.clock.now();
        match self.flow.journal.next_due(&self.running.name, &self.channel, now).await {
            Ok(Some(due)) => due.since(now).clamp(Duration::from_millis(1), self.lease),
            Ok(None) => self.lease,
            Err(_) => REST_AFTER_FAILURE,
        }
    }

    /// Delivers an item. One that makes our own work panic is tried again when its lease is over.
    async fn deliver(&self, item: WorkItem, bounds: &Bounds, stop: &CancellationToken) {
        let (claim, key) = (item.claim, next_key());
        if self.reports.send(Report::Begun { key, item: item.clone() }).await.is_err() {
            return;
        }
        let given_back = match AssertUnwindSafe(self.deliver_begun(key, item, bounds, stop)).catch_unwind().await {
            Ok(Ok(())) => return,
            Ok(Err(given_back)) => Some(given_back),
            Err(_) => {
                tracing::error!(item = %claim.id, "delivering a work item panicked");
                metrics::counter!("deliver_panics_total").increment(1);
                None
            }
        };
        let _ = self.reports.send(Report::GivenBack { key }).await;
        if let Some(GivenBack { due_at }) = given_back {
            let _ = self.flow.journal.release(claim, due_at).await;
        }
    }

    async fn deliver_begun(
        &self,
        key: u64,
        item: WorkItem,
        bounds: &Bounds,
        stop: &CancellationToken,
    ) -> Result<(), GivenBack> {
        let Some(ahead) = stop.run_until_cancelled(bounds.ahead.acquire()).await else {
            return Err(GivenBack { due_at: None });
        };
        let loaded = match Loaded::read(&self.flow, &item).await {
            Ok(loaded) => loaded,
            Err(Unreadable::ForNow(error)) => {
                tracing::error!(%error, item = %item.claim.id, "a work item cannot be read yet");
                return Err(GivenBack { due_at: Some(self.flow.clock.now() + REST_AFTER_FAILURE) });
            }
            Err(Unreadable::ForGood(what)) => return self.suspend_unread(key, &item, &what, bounds).await,
        };
        let accepted = Report::Read { key, accepted: loaded.accepted.clone() };
        let Some(permit) = stop.run_until_cancelled(bounds.permit(loaded.ordinals.len())).await else {
            return Err(GivenBack { due_at: None });
        };
        drop(ahead);
        if self.reports.send(accepted).await.is_err() {
            return Ok(());
        }
        let Fed { fed, left, due_at } = self.feed(key, &loaded, item.due_at, stop).await;
        let _ = self.reports.send(Report::Fed { key, fed, left, due_at, permit }).await;
        Ok(())
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
        let permit = bounds.permit(ordinals.len()).await;
        let fed = ordinals.len();
        for ordinal in ordinals {
            let reason = Reason::new(ReasonKind::Internal, what);
            let report = Report::Unsent { key, ordinal, at: now, outcome: Outcome::Suspended, reason };
            if self.reports.send(report).await.is_err() {
                return Ok(());
            }
        }
        let _ = self.reports.send(Report::Fed { key, fed, left: Vec::new(), due_at: now, permit }).await;
        Ok(())
    }

    /// Decides, formats and hands over one notification after the other, until all are, or `stop`, or the records fail.
    /// Those that are told together wait until all are looked at.
    async fn feed(&self, key: u64, loaded: &Loaded, due_at: Timestamp, stop: &CancellationToken) -> Fed {
        let mut groups = Groups::new();
        let mut fed = Fed { fed: 0, left: Vec::new(), due_at };
        for (at, chunk) in loaded.ordinals.chunks(RECIPIENTS).enumerate() {
            let rest = &loaded.ordinals[at * RECIPIENTS..];
            if at > 0 && stop.is_cancelled() {
                return fed.but(rest).and_groups(groups.into_groups());
            }
            let recipients = match self.recipients(loaded, chunk).await {
                Ok(recipients) => recipients,
                Err(error) => {
                    tracing::error!(%error, channel = %self.channel, "recipients cannot be read yet");
                    fed.due_at = self.flow.clock.now() + REST_AFTER_FAILURE;
                    return fed.but(rest).and_groups(groups.into_groups());
                }
            };
            let mut ready = Ready::default();
            for (ordinal, recipient) in chunk.iter().copied().zip(recipients) {
                let now = self.flow.clock.now();
                let taken = recipient.and_then(|recipient| {
                    self.take(loaded, ordinal, recipient, Ticket { key, ordinal }, now, &mut groups)
                });
                let report = match taken {
                    Ok(Taken::Gathered) => continue,
                    Ok(Taken::Ready(channel, outgoing)) => {
                        fed.fed += 1;
                        ready.push(channel, outgoing);
                        continue;
                    }
                    Ok(Taken::Later(due_at)) => Report::Snoozed { key, ordinal, due_at },
                    Err(Unsent { outcome, reason }) => Report::Unsent { key, ordinal, at: now, outcome, reason },
                };
                fed.fed += 1;
                if self.reports.send(report).await.is_err() {
                    return fed;
                }
            }
            ready.send(&self.answers).await;
            tokio::task::yield_now().await;
        }
        self.feed_digests(key, loaded, groups.into_groups(), fed, stop).await
    }

    /// What becomes of one notification.
    fn take(
        &self,
        loaded: &Loaded,
        ordinal: u32,
        recipient: Option<Recipient>,
        ticket: Ticket,
        now: Timestamp,
        groups: &mut Groups<u32>,
    ) -> Result<Taken, Unsent> {
        let device = match decide(loaded, recipient.as_ref(), now) {
            Decision::Send(device) => device,
            Decision::Later(time) => return Ok(Taken::Later(time)),
            Decision::Unsent(unsent) => return Err(unsent),
        };
        let recipient = recipient.expect("nothing is sent without one");
        let (channel, target) = self.open(&recipient, &device)?;
        if let Some(digest) = loaded.class().and_then(|class| class.conduct.digest.as_ref()) {
            groups.add(group_key(loaded, digest, ordinal, &recipient, &device)?, device, ordinal);
            return Ok(Taken::Gathered);
        }
        let message = render(&self.flow, &[Member { loaded, ordinal }], &recipient, &device, target, now)?;
        let address = target.address.clone();
        let outgoing = Outgoing { id: loaded.id(ordinal), address, ticket, message: Arc::new(message) };
        Ok(Taken::Ready(channel, outgoing))
    }

    /// The device of this name, and its channel.
    fn open<'r>(&self, recipient: &'r Recipient, device: &Name) -> Result<(Arc<Open>, &'r Device), Unsent> {
        let target = recipient
            .devices
            .get(device)
            .ok_or_else(|| Unsent::suspended(ReasonKind::Unreachable, format!("the device `{device}` is gone")))?;
        let open = self.running.channel(&target.channel).ok_or_else(|| {
            let text = format!("the application has no channel `{}`", target.channel);
            Unsent::suspended(ReasonKind::Unreachable, text)
        })?;
        Ok((open, target))
    }

    /// Formats digests and hands them over, each for all its notifications.
    async fn feed_digests(
        &self,
        key: u64,
        loaded: &Loaded,
        mut groups: Vec<Group<u32>>,
        mut fed: Fed,
        stop: &CancellationToken,
    ) -> Fed {
        for group in &mut groups {
            // Must stay a stable sort: a digest tells events in the order they were accepted.
            group.members.sort_by_key(|ordinal| loaded.event_of[*ordinal as usize]);
        }
        while !groups.is_empty() {
            if stop.is_cancelled() {
                return fed.and_groups(groups);
            }
            let heads: Vec<u32> = groups.iter().take(RECIPIENTS).map(|group| group.members[0]).collect();
            let recipients = match self.recipients(loaded, &heads).await {
                Ok(recipients) => recipients,
                Err(error) => {
                    tracing::error!(%error, channel = %self.channel, "recipients cannot be read yet");
                    fed.due_at = self.flow.clock.now() + REST_AFTER_FAILURE;
                    return fed.and_groups(groups);
                }
            };
            let mut ready = Ready::default();
            for (recipient, group) in recipients.into_iter().zip(groups.drain(..heads.len())) {
                let now = self.flow.clock.now();
                let Group { device, members } = group;
                fed.fed += members.len();
                let joined = next_key();
                let rendered = recipient.and_then(|recipient| {
                    let recipient = recipient.ok_or_else(|| {
                        Unsent::closed(Outcome::Refused, ReasonKind::Unreachable, "the subscription is gone")
                    })?;
                    let (channel, target) = self.open(&recipient, &device)?;
                    let told: Vec<_> = members.iter().map(|ordinal| Member { loaded, ordinal: *ordinal }).collect();
                    let message = Arc::new(render(&self.flow, &told, &recipient, &device, target, now)?);
                    let (ticket, address) = (Ticket { key: joined, ordinal: 0 }, target.address.clone());
                    Ok((channel, Outgoing { id: loaded.id(members[0]), address, ticket, message }))
                });
                let sent = match rendered {
                    Ok((channel, outgoing)) => {
                        metrics::counter!("deliver_digests_total").increment(1);
                        ready.push(channel, outgoing);
                        let members = members.into_iter().map(|ordinal| Ticket { key, ordinal }).collect();
                        self.reports.send(Report::Joined { key: joined, members }).await.is_ok()
                    }
                    Err(unsent) => self.report_unsent(key, &members, &unsent, now).await,
                };
                if !sent {
                    return fed;
                }
            }
            ready.send(&self.answers).await;
            tokio::task::yield_now().await;
        }
        fed
    }

    /// Gives whether anybody still listens.
    async fn report_unsent(&self, key: u64, ordinals: &[u32], unsent: &Unsent, at: Timestamp) -> bool {
        let Unsent { outcome, reason } = unsent;
        for ordinal in ordinals {
            let report = Report::Unsent { key, ordinal: *ordinal, at, outcome: *outcome, reason: reason.clone() };
            if self.reports.send(report).await.is_err() {
                return false;
            }
        }
        true
    }

    /// The recipients of some notifications. If one of them is damaged, only it is suspended.
    async fn recipients(
        &self,
        loaded: &Loaded,
        chunk: &[u32],
    ) -> Result<Vec<Result<Option<Recipient>, Unsent>>, StoreError> {
        let of = |ordinal: &u32| loaded.notifications().subscriptions[*ordinal as usize];
        let subscriptions: Vec<SubscriptionId> = chunk.iter().map(of).collect();
        match self.flow.records.recipients(&subscriptions).await {
            Ok(recipients) => return Ok(recipients.into_iter().map(Ok).collect()),
            Err(StoreError::Damaged(_)) => {}
            Err(error) => return Err(error),
        }
        let mut apart = Vec::with_capacity(subscriptions.len());
        for subscription in subscriptions {
            apart.push(match self.flow.records.recipients(&[subscription]).await {
                Ok(found) => Ok(found.into_iter().next().flatten()),
                Err(StoreError::Damaged(what)) => {
                    let text = format!("the records of subscription {subscription} are damaged: {what}");
                    Err(Unsent::suspended(ReasonKind::Internal, text))
                }
                Err(error) => return Err(error),
            });
        }
        Ok(apart)
    }
}

/// What becomes of a notification for now.
enum Taken {
    /// It leaves by this channel.
    Ready(Arc<Open>, Outgoing),
    /// It is told together with others.
    Gathered,
    /// It waits until then.
    Later(Timestamp),
}

/// Messages by the channel that takes them.
#[derive(Default)]
struct Ready(Vec<(Arc<Open>, Vec<Outgoing>)>);

impl Ready {
    fn push(&mut self, channel: Arc<Open>, outgoing: Outgoing) {
        match self.0.iter_mut().find(|(open, _)| Arc::ptr_eq(open, &channel)) {
            Some((_, waiting)) => waiting.push(outgoing),
            None => self.0.push((channel, vec![outgoing])),
        }
    }

    async fn send(self, answers: &mpsc::Sender<Answer>) {
        for (channel, outgoing) in self.0 {
            channel.send_all(outgoing, answers).await;
        }
    }
}

/// Why an item goes back to the journal untouched: there is no time for it now, or it is due again at this time.
struct GivenBack {
    due_at: Option<Timestamp>,
}

/// How far feeding came: how many were reported or handed over, and what is left, which is due then.
struct Fed {
    fed: usize,
    left: Vec<u32>,
    due_at: Timestamp,
}

impl Fed {
    fn but(mut self, left: &[u32]) -> Fed {
        self.left.extend_from_slice(left);
        self
    }

    fn and_groups(mut self, groups: Vec<Group<u32>>) -> Fed {
        self.left.extend(groups.into_iter().flat_map(|group| group.members));
        self
    }
}

/// How much of a channel is worked on at the same time.
struct Bounds {
    /// Notifications formatted or on their way.
    notifications: Arc<Semaphore>,
    notifications_max: usize,
    /// Items read while they wait for those before them.
    ahead: Semaphore,
}

impl Bounds {
    fn new(options: &PipelineOptions) -> Self {
        let notifications_max = options.in_flight_per_channel.clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
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

    fn is_idle(&self) -> bool {
        self.notifications.available_permits() == self.notifications_max
    }
}

fn next_key() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
