//! Step 4: dispositions become receipts, retries and suspensions, written in chunks (group commit).
//!
//! One recorder per channel passes each answer to the tracker of its work item, and commits the results of all
//! trackers together, so that no durable write is made per notification. Results that are not committed when the
//! process ends are sent again, under the same id.

use std::{mem, sync::Arc, time::Duration};

use tocsin_delivery::{Answer, Ticket, redact};
use tocsin_model::{
    receipt::{Disposition, ReasonKind},
    suppression::Target,
};
use tocsin_store::{error::StoreError, journal::Step};
use tokio::{sync::mpsc, time::Instant};

use crate::{
    channel_alerts::{ChannelAlert, ChannelAlerts},
    delivery_results::UncommittedResults,
    delivery_tracker::DeliveryTracker,
    disable_devices::{Disabler, RejectedAddress},
    in_flight::{InFlight, TrackedNotification},
};

/// Minimum and maximum delay before a failed commit is tried again.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Answers processed at a time.
const AT_ONCE: usize = 256;

/// Results of an item, with its tracker.
type Drained = (Arc<DeliveryTracker>, UncommittedResults);

/// Records the results of one channel until its queue of answers is closed.
pub(crate) struct Recorder {
    pub in_flight: Arc<InFlight>,
    pub lease: Duration,
    pub answers: mpsc::Receiver<Answer>,
    pub disabler: Disabler,
    pub alerts: ChannelAlerts,
}

impl Recorder {
    /// Records until the worker and all messages are gone, and all is committed.
    pub async fn run(mut self) {
        let in_flight = self.in_flight.clone();
        let flow = &in_flight.flow;
        let mut changed: Vec<Arc<DeliveryTracker>> = Vec::new();
        let mut flush_at: Option<Instant> = None;
        let mut extend_at = Instant::now() + self.lease / 3;
        let mut answers = Vec::new();
        let chunk = flow.options.receipts_chunk;
        let mut is_open = true;
        while is_open {
            // Without work in flight there is no lease to extend.
            let extend = Some(extend_at).filter(|_| !in_flight.is_empty());
            let wake = flush_at.into_iter().chain(extend).min();
            tokio::select! {
                biased;
                () = in_flight.changed() => {}
                count = self.answers.recv_many(&mut answers, chunk.clamp(1, AT_ONCE)) => is_open = count > 0,
                () = tokio::time::sleep_until(wake.unwrap_or(extend_at)), if wake.is_some() => {}
            }
            for answer in answers.drain(..) {
                flow.spans.delivered(&in_flight.active.name, &answer);
                self.take_answer(answer);
            }
            changed.append(&mut in_flight.take_changed());
            changed.iter().for_each(|tracker| tracker.release_permits());
            let now = Instant::now();
            if !changed.is_empty() && flush_at.is_none() {
                flush_at = Some(now + flow.options.receipts_delay());
            }
            if in_flight.unrecorded() >= chunk || flush_at.is_some_and(|at| at <= now) {
                self.commit(&mut changed).await;
                self.disabler.work(flow);
                flush_at = None;
            }
            if extend.is_none() {
                extend_at = now + self.lease / 3;
            } else if extend_at <= now {
                self.extend().await;
                extend_at = Instant::now() + self.lease / 3;
            }
        }
        self.commit(&mut changed).await;
        self.disabler.finish(flow).await;
    }

    /// Logs that the channel fails, or delivers again.
    fn log_channel_alert(&mut self, answer: &Answer) {
        let Some(alert) = self.alerts.count(&answer.disposition, answer.answered_at) else { return };
        let (application, channel) = (&self.in_flight.active.name, &self.in_flight.channel);
        match alert {
            ChannelAlert::Fails { failures, since, reason } => {
                metrics::counter!(
                    "tocsin_deliver_channel_alerts_total",
                    "application" => application.to_string(), "channel" => channel.to_string()
                )
                .increment(1);
                let reason = redact::text(reason);
                tracing::warn!(%application, %channel, failures, %since, reason, "all attempts of a channel fail");
            }
            ChannelAlert::Delivers { failures, since } => {
                tracing::info!(%application, %channel, failures, %since, "a channel delivers again");
            }
        }
    }

    /// Counts the answer for the endpoint, if the channel has one per device.
    fn queue_endpoint_update(&mut self, answer: &Answer, first: Option<&TrackedNotification>) {
        let subscription = || first.and_then(|(tracker, ordinal)| tracker.subscription(*ordinal));
        let limit = || self.in_flight.active.disable_after(&answer.channel);
        let InFlight { flow, active, .. } = &*self.in_flight;
        if let Some(update) = flow.endpoints.record_answer(&active.name, answer, subscription, limit) {
            self.disabler.queue_endpoint_update(update);
        }
    }

    /// Queues an address that the receiver rejects for good.
    /// `is_last`: all attempts of the channel failed; a transient refusal of the mailbox counts then.
    fn queue_rejected_address(&mut self, answer: &Answer, first: Option<&TrackedNotification>, is_last: bool) {
        let reason = match &answer.disposition {
            Disposition::Refused { reason } => reason,
            Disposition::Deferred { reason, .. } if is_last => reason,
            _ => return,
        };
        if !matches!(reason.kind, ReasonKind::Gone | ReasonKind::Bounced | ReasonKind::SoftBounced) {
            return;
        }
        if let Some(subscription) = first.and_then(|(tracker, ordinal)| tracker.subscription(*ordinal)) {
            let (id, channel) = (answer.id, answer.channel.clone());
            let (address, reason) = (answer.address.clone(), reason.clone());
            self.disabler.queue(RejectedAddress { id, subscription, channel, address, reason });
        }
    }

    /// Queues deliveries to addresses of which soft bounces count.
    fn queue_successes(&mut self, answer: &Answer) {
        let feedback = &self.in_flight.flow.feedback;
        if feedback.is_idle() || !matches!(answer.disposition, Disposition::Delivered { .. }) {
            return;
        }
        let Some(channel) = self.in_flight.active.channel(&answer.channel) else { return };
        let others = answer.others.iter().map(|other| (&other.address, other.id));
        for (address, id) in std::iter::once((&answer.address, answer.id)).chain(others) {
            let target = Target::address(channel.protocol(), address);
            if feedback.counts(&target) {
                self.disabler.queue_success(target, id);
            }
        }
    }

    /// Passes an answer to the trackers of its notifications.
    fn take_answer(&mut self, answer: Answer) {
        self.queue_successes(&answer);
        // If all endpoints are well and the message was delivered, there is nothing to update.
        let is_plain =
            matches!(answer.disposition, Disposition::Delivered { .. }) && self.in_flight.flow.endpoints.are_healthy();
        if is_plain && !self.in_flight.is_digest(answer.ticket) {
            self.log_channel_alert(&answer);
            return self.take_delivered(&answer);
        }
        // Drawn once, so that notifications of one message are retried together.
        let jitter = match answer.disposition {
            Disposition::Deferred { .. } => self.in_flight.flow.jitter(),
            _ => 0.0,
        };
        for answer in answer.into_each() {
            self.log_channel_alert(&answer);
            let members = self.members(answer.ticket);
            self.queue_endpoint_update(&answer, members.first());
            let mut is_last = false;
            for (tracker, ordinal) in &members {
                is_last |= tracker.answered(*ordinal, &answer, jitter);
            }
            self.queue_rejected_address(&answer, members.first(), is_last);
        }
    }

    /// The notifications that an answer applies to: those of a digest, or one. Another worker sends those of lost
    /// items again, so the answer is not theirs.
    fn members(&self, ticket: Ticket) -> Vec<TrackedNotification> {
        let one = || self.in_flight.item(ticket).map(|tracker| (tracker, ticket.ordinal)).into_iter().collect();
        let mut members = self.in_flight.take_digest(ticket).unwrap_or_else(one);
        members.retain(|(tracker, _)| tracker.is_open());
        members
    }

    /// Passes on the delivery of a message, for all its notifications at once.
    fn take_delivered(&self, answer: &Answer) {
        let mut tickets = answer.tickets().map(|(_, ticket)| ticket).peekable();
        while let Some(first) = tickets.peek().copied() {
            let of_item = std::iter::from_fn(|| tickets.next_if(|ticket| ticket.key == first.key));
            match self.in_flight.item(first) {
                Some(tracker) => tracker.delivered(of_item.map(|ticket| ticket.ordinal), answer),
                None => of_item.for_each(drop),
            }
        }
    }

    /// Commits the results of these items, retrying until the store accepts them.
    async fn commit(&self, changed: &mut Vec<Arc<DeliveryTracker>>) {
        let InFlight { flow, active, channel, .. } = &*self.in_flight;
        let application = &active.name;
        self.in_flight.reset_unrecorded();
        changed.sort_unstable_by_key(|tracker| tracker.number());
        let drained = changed.drain(..).filter_map(|tracker| tracker.drain().map(|results| (tracker, results)));
        let mut drained: Vec<Drained> = drained.collect();
        let mut pause = PAUSE_MIN;
        while !drained.is_empty() {
            let mut step = Step::default();
            drained.iter().for_each(|(_, results)| results.append(&mut step, flow.clock.now()));
            match flow.work_queue.commit(step).await {
                Ok(_) => {
                    for (tracker, results) in drained {
                        tracker.recorded(&results);
                    }
                    flow.broadcast_advanced();
                    return;
                }
                Err(StoreError::Fenced(what)) => {
                    tracing::warn!(%what, "the lease of a work item ran out before its receipts were recorded");
                    if !self.drop_fenced(&mut drained).await {
                        tokio::time::sleep(pause).await;
                        pause = (pause * 2).min(PAUSE_MAX);
                    }
                }
                Err(error) => {
                    tracing::error!(%error, %application, %channel, "receipts cannot be recorded yet");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                    self.extend().await;
                }
            }
        }
    }

    /// Drops items whose claim was lost (fencing): another worker owns them now. Returns whether there were any.
    async fn drop_fenced(&self, drained: &mut Vec<Drained>) -> bool {
        let before = drained.len();
        for (tracker, results) in mem::take(drained) {
            match self.extend_lease(&tracker).await {
                Err(StoreError::Fenced(_)) => tracker.lose(),
                _ => drained.push((tracker, results)),
            }
        }
        drained.len() < before
    }

    /// Extends the leases of all items in flight.
    async fn extend(&self) {
        for tracker in self.in_flight.items().into_iter().filter(|tracker| tracker.is_open()) {
            // A lost lease shows at the commit, which drops the item (fencing).
            let _ = self.extend_lease(&tracker).await;
        }
    }

    async fn extend_lease(&self, tracker: &DeliveryTracker) -> Result<(), StoreError> {
        let flow = &self.in_flight.flow;
        flow.work_queue.extend(tracker.item().claim, self.lease, flow.clock.now()).await
    }
}

impl Drop for Recorder {
    /// Items in flight refer to their trackers, and these to them. After a panic nothing more is sent.
    fn drop(&mut self) {
        self.in_flight.close();
    }
}
