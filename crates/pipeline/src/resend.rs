//! Sends failed notifications again: they are counted first, then processed in steps, each one commit with its
//! progress.
//!
//! A notification keeps its id, so that the receiver can detect the repetition. With `as_new` it becomes a new
//! notification with its own id and time to live. Delivered notifications are never sent again, and those in flight
//! are left alone.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tocsin_model::{
    delivery_policy::Priority,
    id::{Name, NotificationBatchId, NotificationId, SubscriberId, SubscriptionId},
    notification::{NotificationHead, Notifications},
    receipt::{Attempt, Outcome},
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    journal::{
        NewNotificationBatch, NewResend, ReceiptChunk, ReopenedNotifications, Resend, ResendProgress, Retry, Step,
        SuspensionFilter, WorkState,
    },
    records::SubscriptionFilter,
};
use tokio_util::sync::CancellationToken;

use crate::{Flow, Pipeline};

/// Notifications per step; a batch is always processed whole.
const NOTIFICATIONS: u64 = 10_000;
/// Batches examined per step.
const BATCHES: usize = 256;
/// Batches whose heads are read at a time.
const PAGE: usize = 64;
/// Requests read at a time.
const REQUESTS: usize = 16;
/// Delay after the store failed.
const REST: Duration = Duration::from_secs(5);
/// Maximum number of a subscriber's subscriptions examined.
const SUBSCRIPTIONS_MAX: usize = 100_000;

/// Selection of notifications to send again; all given conditions must hold.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ResendRequest {
    /// Outcomes: refused, expired, ended or suspended.
    pub outcomes: Vec<Outcome>,
    /// Only this notification.
    pub notification: Option<NotificationId>,
    /// Only what failed at this time or later.
    pub since: Option<Timestamp>,
    /// Only what failed before this time.
    pub until: Option<Timestamp>,
    /// Restricts to this application.
    pub application: Option<Name>,
    /// Restricts to this channel.
    pub channel: Option<Name>,
    /// Restricts to this notification class.
    pub class: Option<Name>,
    /// Only for this subscriber.
    pub subscriber: Option<SubscriberId>,
    /// Only notifications whose subscription does not name another device.
    pub device: Option<Name>,
    /// Only failures whose reason contains this text; ASCII letters in either case.
    pub reason: Option<String>,
    /// Whether they become new notifications.
    pub as_new: bool,
}

/// Selected notifications of a batch.
#[derive(Default)]
struct SelectedNotifications {
    /// Closed notifications, with the attempt that closed each.
    closed: Vec<Attempt>,
    suspended: Vec<u32>,
}

/// Result of counting the notifications that a request selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResendCount {
    /// Number of notifications in the batches examined.
    pub notifications: u64,
    /// Number of batches examined.
    pub batches: u64,
    /// Last batch examined; `None`: all were.
    pub reached: Option<NotificationBatchId>,
}

/// A request with the data resolved from the records.
struct Search<'r> {
    request: &'r ResendRequest,
    reason: Option<String>,
    /// Selected subscriptions; `None`: any.
    subscriptions: Option<HashSet<SubscriptionId>>,
}

impl<'r> Search<'r> {
    async fn new(flow: &Flow, request: &'r ResendRequest) -> Result<Search<'r>, StoreError> {
        let mut subscriptions = None;
        if let Some(subscriber) = &request.subscriber {
            let filter = SubscriptionFilter { subscriber: Some(subscriber.clone()), ..SubscriptionFilter::default() };
            let found = flow.subscription_store.subscriptions(&filter, None, SUBSCRIPTIONS_MAX).await?;
            let is_selected = |device: &Option<Name>| match (&request.device, device) {
                (Some(selected), Some(device)) => selected == device,
                _ => true,
            };
            subscriptions = Some(found.into_iter().filter(|one| is_selected(&one.device)).map(|one| one.id).collect());
        }
        let reason = request.reason.as_ref().map(|reason| reason.to_ascii_lowercase());
        Ok(Search { request, reason, subscriptions })
    }

    fn may_hold(&self, id: NotificationBatchId, head: &NotificationHead) -> bool {
        let request = self.request;
        request.notification.is_none_or(|one| one.batch == id)
            && request.application.as_ref().is_none_or(|application| head.application == *application)
            && request.channel.as_ref().is_none_or(|channel| head.channel == *channel)
            && request.class.as_ref().is_none_or(|class| head.class == *class)
            && request.until.is_none_or(|until| head.matched_at < until)
    }

    fn includes(&self, attempt: &Attempt) -> bool {
        let request = self.request;
        request.outcomes.contains(&attempt.outcome)
            && request.notification.is_none_or(|one| one.ordinal == attempt.ordinal)
            && request.since.is_none_or(|since| attempt.answered_at >= since)
            && request.until.is_none_or(|until| attempt.answered_at < until)
            && self.reason.as_ref().is_none_or(|reason| attempt.reply.to_ascii_lowercase().contains(reason))
    }

    /// Selects the notifications of a batch by the last attempt of each.
    async fn select_batch(
        &self,
        flow: &Flow,
        id: NotificationBatchId,
        count: u32,
    ) -> Result<SelectedNotifications, StoreError> {
        let mut last: Vec<Option<Attempt>> = vec![None; count as usize];
        for attempt in flow.notification_log.attempts(id).await? {
            if let Some(place) = last.get_mut(attempt.ordinal as usize) {
                *place = Some(attempt);
            }
        }
        let mut failed: Vec<Attempt> = last.into_iter().flatten().filter(|attempt| self.includes(attempt)).collect();
        if failed.is_empty() {
            return Ok(SelectedNotifications::default());
        }
        if let Some(subscriptions) = &self.subscriptions {
            let batch = match flow.notification_log.notification_batch(id).await {
                Ok(Some(batch)) => batch,
                Ok(None) => return Ok(SelectedNotifications::default()),
                Err(StoreError::Damaged(what)) => {
                    tracing::error!(batch = %id, what, "a batch cannot be read and is not sent again");
                    return Ok(SelectedNotifications::default());
                }
                Err(error) => return Err(error),
            };
            let of = |attempt: &Attempt| batch.notifications.subscriptions.get(attempt.ordinal as usize);
            failed.retain(|attempt| of(attempt).is_some_and(|subscription| subscriptions.contains(subscription)));
        }
        let (suspended, closed): (Vec<_>, Vec<_>) =
            failed.into_iter().partition(|attempt| attempt.outcome == Outcome::Suspended);
        let mut selected = SelectedNotifications { closed, suspended: Vec::new() };
        if !suspended.is_empty() {
            // A resumed notification is in flight, though its last attempt suspended it.
            let filter = SuspensionFilter { batch: Some(id), ..SuspensionFilter::default() };
            let waiting = flow.operator_actions.suspensions(&filter, 0, usize::MAX).await?;
            let waiting: HashSet<u32> = waiting.into_iter().flat_map(|found| found.suspension.ordinals).collect();
            let ordinals = suspended.into_iter().map(|attempt| attempt.ordinal);
            selected.suspended = ordinals.filter(|ordinal| waiting.contains(ordinal)).collect();
        }
        Ok(selected)
    }
}

impl Pipeline {
    /// Counts the notifications that a request selects, in up to `batches` batches after one.
    ///
    /// # Errors
    /// The store is unavailable.
    pub async fn count_resend(
        &self,
        request: &ResendRequest,
        after: NotificationBatchId,
        batches: u64,
    ) -> Result<ResendCount, StoreError> {
        let flow = &self.flow;
        let search = Search::new(flow, request).await?;
        let mut count = ResendCount { notifications: 0, batches: 0, reached: None };
        let mut at = start(request, after);
        loop {
            let page = flow.notification_log.notification_batches_after(at, PAGE).await?;
            let is_last = page.len() < PAGE;
            for (id, head, size) in page {
                if count.batches == batches {
                    count.reached = Some(at);
                    return Ok(count);
                }
                at = id;
                count.batches += 1;
                if request.notification.is_some_and(|one| one.batch < id) {
                    return Ok(count);
                }
                if search.may_hold(id, &head) {
                    let selected = search.select_batch(flow, id, size).await?;
                    count.notifications += (selected.closed.len() + selected.suspended.len()) as u64;
                }
            }
            if is_last {
                return Ok(count);
            }
        }
    }

    /// Stores a request to send again. It is durable when this returns, and is carried out in the background, across
    /// restarts. A request with a known key is not carried out again. Returns the request, and whether it is new.
    ///
    /// # Errors
    /// The store is unavailable.
    pub async fn resend(&self, request: &ResendRequest, key: String, by: String) -> Result<(Resend, bool), StoreError> {
        let request = serde_json::to_string(request).expect("a request is JSON");
        let new = NewResend { key, request, by, asked_at: self.flow.clock.now() };
        let begun = self.flow.operator_actions.begin_resend(new).await?;
        self.flow.resends.notify_one();
        Ok(begun)
    }
}

/// The batch to start after.
fn start(request: &ResendRequest, reached: NotificationBatchId) -> NotificationBatchId {
    let before = request.notification.map_or(0, |one| one.batch.0.saturating_sub(1));
    reached.max(NotificationBatchId(before))
}

/// Carries out requests one after the other, until `stop`.
pub(crate) async fn run(flow: Arc<Flow>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        match execute_all(&flow, &stop).await {
            Ok(()) => {
                stop.run_until_cancelled(flow.resends.notified()).await;
            }
            Err(error) => {
                tracing::error!(%error, "failed notifications cannot be sent again yet");
                stop.run_until_cancelled(tokio::time::sleep(REST)).await;
            }
        }
    }
}

async fn execute_all(flow: &Arc<Flow>, stop: &CancellationToken) -> Result<(), StoreError> {
    loop {
        let requests = flow.operator_actions.resends(true, 0, REQUESTS).await?;
        if requests.is_empty() {
            return Ok(());
        }
        for resend in requests {
            execute(flow, resend, stop).await?;
            if stop.is_cancelled() {
                return Ok(());
            }
        }
    }
}

async fn execute(flow: &Arc<Flow>, resend: Resend, stop: &CancellationToken) -> Result<(), StoreError> {
    let request: Option<ResendRequest> = serde_json::from_str(&resend.request)
        .inspect_err(|error| tracing::error!(%error, resend = resend.id, "a request to send again cannot be read"))
        .ok();
    let search = match &request {
        Some(request) => Some(Search::new(flow, request).await?),
        None => None,
    };
    let mut reached = resend.reached;
    loop {
        let now = flow.clock.now();
        let mut step = Step::default();
        let (reopened, resumed) = (Vec::new(), Vec::new());
        let mut resent =
            ResendProgress { id: resend.id, from: reached, reached, done_at: None, reopened, resumed, now };
        let is_done = match &search {
            Some(search) => gather(flow, search, resend.last, &mut resent, &mut step).await?,
            None => true,
        };
        resent.done_at = is_done.then_some(now);
        reached = resent.reached;
        let count: usize = resent.resumed.iter().map(|(_, ordinals)| ordinals.len()).sum();
        let count = resent.reopened.iter().map(|reopened| reopened.ordinals.len()).sum::<usize>() + count;
        step.resent = Some(resent);
        let channels = channels_of(&step);
        flow.work_queue.commit(step).await?;
        flow.serve(channels);
        metrics::counter!("tocsin_resend_notifications_total").increment(count as u64);
        if is_done {
            tracing::info!(resend = resend.id, by = resend.by, "failed notifications are sent again");
        }
        if is_done || stop.is_cancelled() {
            return Ok(());
        }
        tokio::task::yield_now().await;
    }
}

/// Applications and channels to which a step sends. Only an earlier process may have had workers for them.
fn channels_of(step: &Step) -> BTreeSet<(Name, Name)> {
    let made = step.batches.iter().map(|batch| (batch.head.application.clone(), batch.head.channel.clone()));
    let retried = step.retries.iter().map(|retry| (retry.application.clone(), retry.channel.clone()));
    made.chain(retried).collect()
}

/// Adds the selected notifications of the next batches to a step. Returns whether there are no more batches.
async fn gather(
    flow: &Flow,
    search: &Search<'_>,
    last: NotificationBatchId,
    resent: &mut ResendProgress,
    step: &mut Step,
) -> Result<bool, StoreError> {
    let mut at = start(search.request, resent.reached);
    let last = search.request.notification.map_or(last, |one| one.batch.min(last));
    let (mut looked_at, mut notifications) = (0, 0u64);
    loop {
        let page = flow.notification_log.notification_batches_after(at, PAGE).await?;
        let is_last = page.len() < PAGE;
        for (id, head, count) in page {
            if id > last {
                return Ok(true);
            }
            (at, resent.reached) = (id, id);
            looked_at += 1;
            if search.may_hold(id, &head) {
                let selected = search.select_batch(flow, id, count).await?;
                notifications += (selected.closed.len() + selected.suspended.len()) as u64;
                put(flow, search.request, id, head, selected, resent, step).await?;
            }
            if notifications >= NOTIFICATIONS || looked_at >= BATCHES {
                return Ok(id == last);
            }
        }
        if is_last {
            return Ok(true);
        }
    }
}

/// Adds the selected notifications of a batch to a step.
async fn put(
    flow: &Flow,
    request: &ResendRequest,
    id: NotificationBatchId,
    head: NotificationHead,
    selected: SelectedNotifications,
    resent: &mut ResendProgress,
    step: &mut Step,
) -> Result<(), StoreError> {
    let SelectedNotifications { closed, suspended } = selected;
    let channel = head.channel.clone();
    if !suspended.is_empty() {
        resent.resumed.push((id, suspended));
    }
    if closed.is_empty() {
        return Ok(());
    }
    let mut ordinals: Vec<u32> = closed.iter().map(|attempt| attempt.ordinal).collect();
    ordinals.sort_unstable();
    let compiled = flow.version_of(&head).await?.map(|(compiled, _)| compiled);
    let class = compiled.as_ref().and_then(|compiled| compiled.application.notifications.get(&head.class));
    let priority = class.map_or(Priority::default(), |class| class.delivery_policy.priority);
    let (outcome, words) = match request.as_new {
        true => (Outcome::Ended, format!("sent again as new (request {})", resent.id)),
        false => (Outcome::Deferred, format!("sent again (request {})", resent.id)),
    };
    if request.as_new {
        let Some(batch) = flow.notification_log.notification_batch(id).await? else { return Ok(()) };
        let notifications = batch.notifications.only(&ordinals);
        let lives = head.expires_at.map(|end| end.since(head.matched_at));
        let head =
            NotificationHead { matched_at: resent.now, expires_at: lives.map(|lives| resent.now + lives), ..head };
        step.batches.push(NewNotificationBatch {
            head,
            count: ordinals.len() as u32,
            packed: Notifications::pack(&notifications).into(),
            priority,
            suspended: None,
            run: None,
        });
    } else {
        step.retries.push(Retry {
            batch: id,
            application: head.application,
            channel: head.channel,
            ordinals: ordinals.clone(),
            attempts: 0,
            due_at: resent.now,
            work_state: WorkState { priority, ..WorkState::default() },
        });
    }
    let failed = closed.iter().filter(|attempt| attempt.outcome != Outcome::Ended).count() as u32;
    // The notifications are open again, or closed by another outcome: a repeated request does not select them.
    let reopened = closed.into_iter().map(|attempt| Attempt {
        formatted_at: resent.now,
        sent_at: resent.now,
        answered_at: resent.now,
        outcome,
        reply: words.clone(),
        ..attempt
    });
    step.receipts.push(ReceiptChunk { batch: id, channel, attempts: Arc::new(reopened.collect()) });
    resent.reopened.push(ReopenedNotifications { batch: id, ordinals, failed });
    Ok(())
}
