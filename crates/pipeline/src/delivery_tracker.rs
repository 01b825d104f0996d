//! Tracks the delivery of one work item: each of its notifications gets exactly one disposition, by a decision of the
//! dispatcher or by an answer of the channel.
//!
//! Dispatcher and answers share the tracker. It queues itself for the recorder whenever there is something to commit;
//! the recorder drains it.

use std::{iter, mem, sync::Arc};

use parking_lot::{Mutex, MutexGuard};
use tocsin_delivery::{Answer, Ticket};
use tocsin_model::{
    delivery_policy::DeliveryPolicy,
    id::{Name, NotificationId, SubscriptionId},
    reason_code::ReasonCode,
    receipt::{Attempt, Disposition, Outcome, Reason, ReasonKind},
    suppression::Cause,
    time::Timestamp,
};
use tocsin_store::journal::WorkItem;
use tokio::sync::OwnedSemaphorePermit;

use crate::{
    class_counters::NotificationCounters,
    decide::Unsent,
    delivery_results::{
        AttemptResults, Deferrals, UncommittedResults, cut, next_channel, since, whole_second, whole_second_of,
    },
    in_flight::InFlight,
    lanes::LaneStatus,
    suspects::InProgressGuard,
    windows::Placing,
};

/// A work item in flight.
pub(crate) struct DeliveryTracker {
    in_flight: Arc<InFlight>,
    /// Correlates tickets with this item.
    number: u64,
    item: Arc<WorkItem>,
    state: Mutex<DeliveryState>,
}

/// Details of a work item that was read.
pub(crate) struct ItemDetails {
    /// When the event of each notification was accepted, by ordinal.
    pub accepted: Vec<Timestamp>,
    pub subscriptions: Vec<SubscriptionId>,
    pub delivery_policy: Arc<DeliveryPolicy>,
    /// Counters of the class.
    pub counters: Arc<NotificationCounters>,
}

impl ItemDetails {
    /// Details of an item that cannot be read.
    pub fn unknown(counters: Arc<NotificationCounters>) -> Self {
        ItemDetails { accepted: Vec::new(), subscriptions: Vec::new(), delivery_policy: Arc::default(), counters }
    }
}

struct DeliveryState {
    phase: Phase,
    details: ItemDetails,
    /// Permits of the notifications without a disposition; a slow one blocks no others.
    permit: Option<OwnedSemaphorePermit>,
    /// Number of dispositions.
    answered: usize,
    /// Number of notifications whose permits are released.
    freed: usize,
    /// Whether drained results are not recorded yet.
    is_committing: bool,
    /// Number of notifications that were dispatched, once no more will be.
    dispatched: Option<usize>,
    /// Whether the item is queued for the recorder.
    is_queued: bool,
    /// Digest windows that are not sent before the item is recorded.
    placing: Vec<Placing>,
    results: AttemptResults,
    deferrals: Deferrals,
}

/// Whether an item takes results.
enum Phase {
    /// Results are taken.
    Open(InProgressGuard),
    /// The item returns to the journal once its known results are recorded.
    Released(InProgressGuard),
    /// Recorded, or lost to another worker: further results are ignored.
    Closed,
}

impl DeliveryState {
    fn is_complete(&self) -> bool {
        self.dispatched == Some(self.answered)
    }

    /// Number of permits to release: those of notifications that have a disposition, or will not be dispatched.
    fn releasable(&self) -> usize {
        let held = self.permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        (self.answered + self.deferrals.left.len()).saturating_sub(self.freed).min(held)
    }

    fn release_permits(&mut self) {
        let count = self.releasable();
        if let Some(permit) = &mut self.permit {
            drop(permit.split(count));
            self.freed += count;
        }
    }
}

impl DeliveryTracker {
    /// Tracks an item that was claimed. See [`InFlight::begin`].
    pub fn new(in_flight: Arc<InFlight>, number: u64, item: WorkItem, guard: InProgressGuard) -> Self {
        let state = DeliveryState {
            phase: Phase::Open(guard),
            details: ItemDetails::unknown(in_flight.flow.classes.other()),
            permit: None,
            answered: 0,
            freed: 0,
            is_committing: false,
            dispatched: None,
            is_queued: false,
            placing: Vec::new(),
            results: AttemptResults::default(),
            deferrals: Deferrals::default(),
        };
        DeliveryTracker { in_flight, number, item: Arc::new(item), state: Mutex::new(state) }
    }

    /// Position among the items of its channel, in the order of their begin.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The item as it was claimed.
    pub fn item(&self) -> &WorkItem {
        &self.item
    }

    /// The ticket of one of its notifications.
    pub fn ticket(&self, ordinal: u32) -> Ticket {
        Ticket { key: self.number, ordinal }
    }

    /// Subscription of a notification.
    pub fn subscription(&self, ordinal: u32) -> Option<SubscriptionId> {
        self.state.lock().details.subscriptions.get(ordinal as usize).copied()
    }

    /// Whether it takes results, and its lease is to be extended: until they are recorded, or the item is lost.
    pub fn is_open(&self) -> bool {
        !matches!(self.state.lock().phase, Phase::Closed)
    }

    /// The item was read. The permit covers the notifications about to be dispatched.
    pub fn begin_dispatch(&self, details: ItemDetails, permit: Option<OwnedSemaphorePermit>) {
        let mut state = self.state.lock();
        if !matches!(state.phase, Phase::Closed) {
            (state.details, state.permit) = (details, permit);
        }
    }

    /// A notification was not sent.
    pub fn unsent(self: &Arc<Self>, ordinal: u32, at: Timestamp, unsent: Unsent) {
        self.update(|state| self.add_unsent(state, ordinal, at, unsent));
    }

    fn add_unsent(&self, state: &mut DeliveryState, ordinal: u32, at: Timestamp, Unsent { outcome, reason }: Unsent) {
        if outcome == Outcome::Suspended {
            state.results.suspended.entry(reason.text.clone()).or_default().push(ordinal);
        }
        metrics::counter!("tocsin_deliver_unsent_total", "outcome" => outcome.word()).increment(1);
        self.add_untried_attempt(state, &self.in_flight.channel, ordinal, at, outcome, reason.text);
    }

    /// A notification waits until `due_at` because of its subscriber's hours or its lane. Not an attempt.
    pub fn snooze(self: &Arc<Self>, ordinal: u32, due_at: Timestamp) {
        metrics::counter!("tocsin_deliver_snoozed_total").increment(1);
        let due_at = whole_second(due_at);
        self.update(|state| {
            state.deferrals.untried.entry(due_at).or_default().push(ordinal);
            self.put_off(ordinal, due_at);
        });
    }

    /// A notification waits until `due_at` because its destination, which `channel` reaches, is paused. Not an attempt,
    /// but the channel's time in the fallback chain goes on.
    pub fn hold(self: &Arc<Self>, ordinal: u32, channel: &Name, at: Timestamp, due_at: Timestamp) {
        metrics::counter!("tocsin_deliver_snoozed_total").increment(1);
        self.update(|state| self.add_held(state, channel, ordinal, at, due_at, "its destination is paused"));
    }

    /// Lets a notification wait for its destination, or continue with the next channel if that is tried before.
    fn add_held(
        &self,
        state: &mut DeliveryState,
        used: &Name,
        ordinal: u32,
        at: Timestamp,
        due_at: Timestamp,
        why: &str,
    ) {
        let due_at = whole_second(due_at);
        let deadline = self.deadline_before(state, used, due_at);
        let next = deadline.and_then(|deadline| self.pass_on(state, used, ordinal, deadline.max(at)));
        match next {
            Some(channel) => {
                let reply = cut(format!("{why}; `{channel}` is tried next"));
                self.add_untried_attempt(state, used, ordinal, at, Outcome::Deferred, reply);
            }
            None => {
                state.deferrals.held.entry(due_at).or_default().push(ordinal);
                self.put_off(ordinal, due_at);
            }
        }
    }

    /// A notification waits for the end of a digest window. Its digest is not sent before `placing` is dropped.
    pub fn defer_to_window(self: &Arc<Self>, ordinal: u32, window: Timestamp, placing: Option<Placing>) {
        metrics::counter!("tocsin_deliver_digest_deferred_total").increment(1);
        self.update(|state| {
            state.deferrals.in_window.entry(window).or_default().push(ordinal);
            state.placing.extend(placing);
        });
    }

    /// The channel reaches no device of the subscriber: the next channel of the fallback chain is tried, if there is
    /// one.
    pub fn no_device(self: &Arc<Self>, ordinal: u32, at: Timestamp, reason: Reason) {
        self.update(|state| {
            if next_channel(&state.details.delivery_policy, &self.item, &self.in_flight.channel).is_none() {
                return self.add_unsent(state, ordinal, at, Unsent { outcome: Outcome::Refused, reason });
            }
            let at = whole_second(at);
            state.deferrals.passed.entry(at).or_default().push(ordinal);
            self.put_off(ordinal, at);
        });
    }

    /// The address on this channel is suppressed: the next channel of the chain is tried, if there is one.
    pub fn suppress(self: &Arc<Self>, ordinal: u32, at: Timestamp, cause: Cause) {
        metrics::counter!("tocsin_deliver_suppressed_total", "cause" => cause.word()).increment(1);
        let reason = ReasonCode::AddressSuppressed.with(cause.phrase());
        let used = &self.in_flight.channel;
        self.update(|state| match self.pass_on(state, used, ordinal, at) {
            Some(channel) => {
                let reply = format!("{reason}; `{channel}` is tried next");
                self.add_untried_attempt(state, used, ordinal, at, Outcome::Deferred, reply);
            }
            None => {
                let reason = Reason::new(ReasonKind::Suppressed, reason);
                self.add_unsent(state, ordinal, at, Unsent { outcome: Outcome::Refused, reason });
            }
        });
    }

    /// No more will be dispatched: `dispatched` notifications have a disposition or will get one. Those `left` were not
    /// tried, and are due again at `due_at`.
    pub fn finish_dispatch(self: &Arc<Self>, dispatched: usize, left: Vec<u32>, due_at: Timestamp) {
        self.change_by(|state| {
            state.dispatched = Some(dispatched);
            (state.deferrals.left, state.deferrals.left_due_at) = (left, due_at);
            1
        });
    }

    /// The item returns to the journal, by release or expiry of its lease. Its known results are recorded anyway.
    pub fn release(&self) {
        self.in_flight.active.lanes.returned(self.item.batch);
        let mut state = self.state.lock();
        match mem::replace(&mut state.phase, Phase::Closed) {
            Phase::Open(guard) if state.is_committing || !state.results.is_empty() => {
                state.phase = Phase::Released(guard);
                drop(state.permit.take());
            }
            _ => self.close(state),
        }
    }

    /// The receiver accepted these notifications.
    pub fn delivered(self: &Arc<Self>, mut ordinals: impl Iterator<Item = u32>, answer: &Answer) {
        let Answer { formatted_at, sent_at, answered_at, .. } = *answer;
        let latencies = &self.in_flight.flow.latencies;
        let number = self.item.attempts + 1;
        let reply = match &answer.disposition {
            Disposition::Delivered { reply } if self.in_flight.log.status => cut(reply.clone()),
            _ => String::new(),
        };
        self.change_by(|state| {
            let DeliveryState { results, details, answered, .. } = state;
            let attempts = results.attempts_of(&answer.channel, &self.in_flight.channel);
            let before = attempts.len();
            // Most members have the same event.
            let mut accepted: Option<(Timestamp, u64)> = None;
            let record = |(accepted_at, count): (Timestamp, u64)| {
                latencies.end_to_end.record_many(answered_at.since(accepted_at), count);
            };
            for ordinal in ordinals.by_ref() {
                match (&mut accepted, details.accepted.get(ordinal as usize)) {
                    (Some((same, count)), Some(at)) if same == at => *count += 1,
                    (_, Some(at)) => accepted.replace((*at, 1)).into_iter().for_each(record),
                    (_, None) => {}
                }
                let (outcome, reply) = (Outcome::Delivered, reply.clone());
                attempts.push(Attempt { ordinal, number, formatted_at, sent_at, answered_at, outcome, reply });
            }
            accepted.into_iter().for_each(record);
            let count = attempts.len() - before;
            *answered += count;
            details.counters.outcomes[Outcome::Delivered as usize].increment(count as u64);
            latencies.deliver.record_many(answered_at.since(sent_at), count as u64);
            count
        });
        // If the item is closed, its answers are ignored.
        ordinals.for_each(drop);
    }

    /// The channel answered a notification: deferred or refused. `jitter` is a random number from 0 up to 1, for
    /// back-off.
    ///
    /// Returns whether it was the last attempt of the channel's retry schedule, and failed.
    pub fn answered(self: &Arc<Self>, ordinal: u32, answer: &Answer, jitter: f64) -> bool {
        let (used, at) = (&answer.channel, answer.answered_at);
        let mut is_last = false;
        match &answer.disposition {
            Disposition::Delivered { .. } => self.delivered(iter::once(ordinal), answer),
            Disposition::Deferred { reason, retry_after } if reason.kind == ReasonKind::Untried => {
                self.update(|state| match retry_after {
                    Some(wait) => self.add_held(state, used, ordinal, at, at + *wait, &reason.text),
                    None => {
                        let due_at = self.item.due_at;
                        state.deferrals.untried.entry(due_at).or_default().push(ordinal);
                        self.put_off(ordinal, due_at);
                    }
                });
            }
            Disposition::Deferred { reason, retry_after } => self.update(|state| {
                let number = self.item.attempts + 1;
                let delay = self.in_flight.retry.delay_after(number, *retry_after, jitter);
                is_last = delay.is_none();
                let due = delay.map(|delay| whole_second_of(at, delay));
                let result = self.retry(state, ordinal, answer, due, &reason.text);
                self.add_attempt(state, ordinal, answer, result);
            }),
            Disposition::Refused { reason } => self.update(|state| {
                let text = &reason.text;
                let result = match reason.kind {
                    ReasonKind::Expired => (Outcome::Expired, text.clone()),
                    _ => match self.pass_on(state, used, ordinal, at) {
                        Some(channel) => (Outcome::Deferred, format!("{text}; `{channel}` is tried next")),
                        None => (Outcome::Refused, text.clone()),
                    },
                };
                self.add_attempt(state, ordinal, answer, result);
            }),
        }
        is_last
    }

    /// Lets a deferred notification retry at `due`, continue with the next channel, or be suspended.
    fn retry(
        &self,
        state: &mut DeliveryState,
        ordinal: u32,
        answer: &Answer,
        due: Option<Timestamp>,
        text: &str,
    ) -> (Outcome, String) {
        let (used, at) = (&answer.channel, answer.answered_at);
        let deadline = due.and_then(|due| self.deadline_before(state, used, due));
        if let (Some(due), None) = (due, deadline) {
            state.results.retries.entry(due).or_default().push(ordinal);
            return (Outcome::Deferred, text.to_owned());
        }
        if let Some(channel) = self.pass_on(state, used, ordinal, deadline.unwrap_or(at).max(at)) {
            return (Outcome::Deferred, format!("{text}; `{channel}` is tried next"));
        }
        let text = match self.item.attempts + 1 {
            1 => format!("the only attempt failed: {text}"),
            number => format!("all {number} attempts failed, the last with: {text}"),
        };
        let reason = Reason::new(ReasonKind::AttemptsExhausted, text);
        state.results.suspended.entry(reason.text.clone()).or_default().push(ordinal);
        (Outcome::Suspended, reason.text)
    }

    /// Adds an attempt that was answered.
    fn add_attempt(
        &self,
        state: &mut DeliveryState,
        ordinal: u32,
        answer: &Answer,
        (outcome, reply): (Outcome, String),
    ) {
        let Answer { formatted_at, sent_at, answered_at, .. } = *answer;
        state.details.counters.outcomes[outcome as usize].increment(1);
        let (number, reply) = (self.item.attempts + 1, cut(reply));
        let attempt = Attempt { ordinal, number, formatted_at, sent_at, answered_at, outcome, reply };
        state.results.attempts_of(&answer.channel, &self.in_flight.channel).push(attempt);
    }

    /// Adds an attempt that contacted no receiver.
    fn add_untried_attempt(
        &self,
        state: &mut DeliveryState,
        used: &Name,
        ordinal: u32,
        at: Timestamp,
        outcome: Outcome,
        reply: String,
    ) {
        let number = self.item.attempts + 1;
        let attempt = Attempt { ordinal, number, formatted_at: at, sent_at: at, answered_at: at, outcome, reply };
        state.results.attempts_of(used, &self.in_flight.channel).push(attempt);
    }

    /// The time when the next channel of the chain takes over, if that is no later than `due`.
    fn deadline_before(&self, state: &DeliveryState, used: &Name, due: Timestamp) -> Option<Timestamp> {
        let delivery_policy = &state.details.delivery_policy;
        let next = next_channel(delivery_policy, &self.item, used)?;
        let deadline = since(&self.item) + delivery_policy.fallback[next].after?;
        (deadline <= due).then_some(deadline)
    }

    /// Passes a notification on to the next channel of its chain from a time on. Returns that channel, or `None` if
    /// there is none.
    fn pass_on(&self, state: &mut DeliveryState, used: &Name, ordinal: u32, from: Timestamp) -> Option<Name> {
        let delivery_policy = &state.details.delivery_policy;
        let next = next_channel(delivery_policy, &self.item, used)?;
        let channel = delivery_policy.fallback[next].channel.clone();
        metrics::counter!("tocsin_deliver_fallbacks_total").increment(1);
        state.results.fallbacks.entry((next, whole_second(from))).or_default().push(ordinal);
        Some(channel)
    }

    /// Defers the later notifications of its lane on this item too.
    fn put_off(&self, ordinal: u32, due_at: Timestamp) {
        let id = NotificationId { batch: self.item.batch, ordinal };
        self.in_flight.active.lanes.apply_results([(id, Some(LaneStatus::Later(due_at)))]);
    }

    /// Applies the disposition of one notification.
    fn update(self: &Arc<Self>, change: impl FnOnce(&mut DeliveryState)) {
        self.change_by(|state| {
            change(state);
            state.answered += 1;
            1
        });
    }

    /// Changes the state, unless the item is closed, and queues it for the recorder. `change` returns the number of
    /// results.
    fn change_by(self: &Arc<Self>, change: impl FnOnce(&mut DeliveryState) -> usize) {
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::Closed) {
            return;
        }
        let had_permits = state.releasable() > 0;
        let results = change(&mut state);
        let is_queued = mem::replace(&mut state.is_queued, true);
        // If there were some before, the recorder is awake.
        let has_permits = !had_permits && state.releasable() > 0;
        drop(state);
        self.in_flight.add_results(self, results, is_queued, has_permits);
    }

    /// Releases the permits of the notifications that have a disposition, or will not be dispatched.
    pub fn release_permits(&self) {
        self.state.lock().release_permits();
    }

    /// Releases permits, and takes the results to commit, if there are any. The deferred notifications are among them
    /// once every notification has its disposition.
    pub fn drain(&self) -> Option<UncommittedResults> {
        let mut state = self.state.lock();
        state.is_queued = false;
        state.release_permits();
        let is_complete = state.is_complete();
        if matches!(state.phase, Phase::Closed) || state.results.is_empty() && !is_complete {
            return None;
        }
        state.is_committing = true;
        Some(UncommittedResults {
            application: self.in_flight.active.name.clone(),
            channel: self.in_flight.channel.clone(),
            item: self.item.clone(),
            delivery_policy: state.details.delivery_policy.clone(),
            results: mem::take(&mut state.results),
            deferrals: is_complete.then(|| mem::take(&mut state.deferrals)),
        })
    }

    /// The drained results are stored. A finished item is closed, and a released one that has no more results.
    pub fn recorded(&self, uncommitted: &UncommittedResults) {
        self.in_flight.active.lanes.apply_results(uncommitted.lane_statuses());
        let mut state = self.state.lock();
        state.is_committing = false;
        let is_finished = uncommitted.deferrals.is_some();
        match mem::replace(&mut state.phase, Phase::Closed) {
            Phase::Open(guard) if !is_finished => state.phase = Phase::Open(guard),
            Phase::Released(guard) if !is_finished && !state.results.is_empty() => {
                state.phase = Phase::Released(guard);
            }
            Phase::Open(guard) | Phase::Released(guard) => {
                self.close(state);
                if is_finished {
                    guard.done();
                }
            }
            Phase::Closed => {}
        }
    }

    /// Another worker has claimed the item (fencing): it is dropped.
    pub fn lose(&self) {
        self.in_flight.active.lanes.returned(self.item.batch);
        metrics::counter!("tocsin_deliver_leases_lost_total").increment(1);
        let mut state = self.state.lock();
        state.phase = Phase::Closed;
        self.close(state);
    }

    /// Frees everything that a closed item holds.
    fn close(&self, mut state: MutexGuard<'_, DeliveryState>) {
        let freed = (state.permit.take(), mem::take(&mut state.placing), mem::take(&mut state.details.accepted));
        (state.results, state.deferrals) = Default::default();
        drop(state);
        drop(freed);
        self.in_flight.remove(self.number);
    }
}
