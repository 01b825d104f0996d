//! Step 4: dispositions become receipts, retries and suspensions, written in chunks (group commit).
//!
//! One recorder per channel collects the reports of its work items and commits them together, so that no durable
//! write is made per notification. Results that are not committed when the process ends are sent again, under the
//! same id.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use tocsin_delivery::{
    Answer, Ticket,
    redact::{self, TEXT_CHARACTERS_MAX},
};
use tocsin_model::{
    application::{DeliveryLog, RetrySchedule},
    delivery_policy::{DeliveryPolicy, Fallback},
    id::{Name, NotificationBatchId, NotificationId, SubscriptionId},
    receipt::{Attempt, Disposition, Outcome, Reason, ReasonKind},
    suppression::Cause,
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    journal::{ReceiptChunk, Retry, Step, Suspension, WorkItem, WorkState},
};
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc},
    time::Instant,
};

use crate::{
    Flow,
    channel_alerts::{ChannelAlert, ChannelAlerts},
    class_counters::NotificationCounters,
    disable_devices::{Disabler, RejectedAddress},
    lanes::{LaneStatus, Lanes},
    suspects::InProgressGuard,
    windows::Placing,
};

/// Minimum and maximum delay before a failed commit is tried again.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Reports or answers processed at a time.
const AT_ONCE: usize = 256;

/// A report about a work item from its delivery, beside the answers of the channel.
pub(crate) enum Report {
    /// The item was claimed; its notifications use this key. The recorder extends its lease from now on.
    Begun { key: u64, item: WorkItem, under_way: InProgressGuard },
    /// The item was read: acceptance times, recipients, and the delivery policy of its class. The permit covers the
    /// notifications about to be sent.
    Read {
        key: u64,
        accepted: Vec<Timestamp>,
        subscriptions: Vec<SubscriptionId>,
        delivery_policy: Arc<DeliveryPolicy>,
        counters: Arc<NotificationCounters>,
        permit: Option<OwnedSemaphorePermit>,
    },
    /// A notification was not sent: its attempt, and the reason.
    Unsent { key: u64, ordinal: u32, at: Timestamp, outcome: Outcome, reason: Reason },
    /// A notification waits until this time because of its subscriber's hours. Not an attempt.
    Snoozed { key: u64, ordinal: u32, due_at: Timestamp },
    /// A notification waits because its destination is paused. Not an attempt, but the channel's time in the fallback
    /// chain goes on.
    Held { key: u64, ordinal: u32, channel: Name, at: Timestamp, due_at: Timestamp },
    /// A notification waits for a digest window to close. The digest is not sent before `placing` is dropped.
    Gathered { key: u64, ordinal: u32, window: Timestamp, placing: Option<Placing> },
    /// The present channel cannot reach the subscriber; the next channel of the fallback chain is tried, if there is
    /// one.
    Passed { key: u64, ordinal: u32, at: Timestamp, reason: Reason },
    /// The address on the present channel is suppressed; the next channel of the chain is tried, if there is one.
    Suppressed { key: u64, ordinal: u32, at: Timestamp, cause: Cause },
    /// Several notifications leave as one message: an answer under this key applies to all.
    Joined { key: u64, members: Vec<Ticket> },
    /// The item is finished. `left` lists the notifications that were not tried, due again at `due_at`.
    Dispatched { key: u64, dispatched: usize, left: Vec<u32>, due_at: Timestamp },
    /// The item returns to the journal, by release or lease expiry. Its known results are recorded anyway.
    Released { key: u64 },
}

/// Work items in flight.
#[derive(Default)]
struct Flight {
    items: BTreeMap<u64, InFlight>,
    /// Members of messages that stand for several notifications.
    joined: HashMap<u64, Vec<Ticket>>,
}

/// A work item in flight.
struct InFlight {
    item: WorkItem,
    /// In-progress marker, held until the results are recorded.
    under_way: InProgressGuard,
    /// When the event of each notification was accepted, by ordinal.
    accepted: Vec<Timestamp>,
    subscriptions: Vec<SubscriptionId>,
    answered: usize,
    /// Number of notifications that have released their permits.
    freed: usize,
    /// Set once nothing more will be sent: number sent, ordinals left, and when those are due.
    dispatched: Option<(usize, Vec<u32>, Timestamp)>,
    /// Not tried, or returned by their channel unchanged, by the time when they are due again.
    untried: BTreeMap<Timestamp, Vec<u32>>,
    /// Not tried because their destination is paused, by the time when they are due again.
    held: BTreeMap<Timestamp, Vec<u32>>,
    /// Not tried because they wait for a digest, by the end of its window.
    gathered: BTreeMap<Timestamp, Vec<u32>>,
    placing: Vec<Placing>,
    /// Passed to the next channel of the chain, by the time from which it tries.
    passed: BTreeMap<Timestamp, Vec<u32>>,
    delivery_policy: Arc<DeliveryPolicy>,
    /// Counters of the class.
    counters: Arc<NotificationCounters>,
    released: bool,
    /// Permit for unanswered notifications; a slow one blocks no others.
    permit: Option<OwnedSemaphorePermit>,
    /// Attempts not yet committed.
    attempts: Arc<Vec<Attempt>>,
    /// Attempts by channels that subscribers prefer.
    other_channels: BTreeMap<Name, Vec<Attempt>>,
    retries: BTreeMap<Timestamp, Vec<u32>>,
    /// Notifications that continue with another channel, by its index in the fallback chain.
    fallbacks: BTreeMap<(usize, Timestamp), Vec<u32>>,
    suspended: BTreeMap<String, Vec<u32>>,
}

impl InFlight {
    /// Since when the present channel tries.
    fn since(&self) -> Timestamp {
        self.item.work_state.since.unwrap_or(self.item.due_at)
    }

    fn is_complete(&self) -> bool {
        self.dispatched.as_ref().is_some_and(|(dispatched, ..)| *dispatched == self.answered)
    }

    fn has_attempts(&self) -> bool {
        !self.attempts.is_empty() || !self.other_channels.is_empty()
    }

    /// Releases the permits of the settled notifications.
    fn release_permits(&mut self) {
        if let Some(permit) = &mut self.permit
            && self.answered > self.freed
        {
            drop(permit.split((self.answered - self.freed).min(permit.num_permits())));
            self.freed = self.answered;
        }
    }
}

/// Collects reports and answers of one channel until both queues are closed.
pub(crate) struct Recorder {
    pub flow: Arc<Flow>,
    pub application: Name,
    pub lanes: Arc<Lanes>,
    pub channel: Name,
    pub retry: RetrySchedule,
    pub lease: Duration,
    pub log: DeliveryLog,
    pub reports: mpsc::Receiver<Report>,
    pub answers: mpsc::Receiver<Answer>,
    pub disabler: Disabler,
    pub alerts: ChannelAlerts,
}

impl Recorder {
    /// Records until every sender of reports and answers is gone and all is committed.
    pub async fn run(mut self) {
        let mut flight = Flight::default();
        let mut unrecorded = 0;
        let mut flush_at: Option<Instant> = None;
        let mut extend_at = Instant::now() + self.lease / 3;
        let (mut reports_open, mut answers_open) = (true, true);
        let (mut reports, mut answers) = (Vec::new(), Vec::new());
        let at_once = self.flow.options.receipts_chunk.clamp(1, AT_ONCE);
        while reports_open || answers_open {
            // Without work in flight there is no lease to extend.
            let extend = Some(extend_at).filter(|_| !flight.items.is_empty());
            let wake = flush_at.into_iter().chain(extend).min();
            tokio::select! {
                biased;
                count = self.reports.recv_many(&mut reports, at_once), if reports_open => reports_open = count > 0,
                count = self.answers.recv_many(&mut answers, at_once), if answers_open => {
                    answers_open = count > 0;
                    // A message is handed over after its item was reported, but both may arrive between polling one
                    // queue and the other.
                    while let Ok(report) = self.reports.try_recv() {
                        reports.push(report);
                    }
                }
                () = tokio::time::sleep_until(wake.unwrap_or(extend_at)), if wake.is_some() => {}
            }
            for report in reports.drain(..) {
                unrecorded += self.take_report(&mut flight, report);
            }
            for answer in answers.drain(..) {
                self.flow.spans.delivered(&self.application, &answer);
                unrecorded += self.take_answer(&mut flight, answer);
            }
            flight.items.values_mut().for_each(InFlight::release_permits);
            let now = Instant::now();
            if unrecorded > 0 && flush_at.is_none() {
                flush_at = Some(now + self.flow.options.receipts_delay());
            }
            if unrecorded >= self.flow.options.receipts_chunk || flush_at.is_some_and(|at| at <= now) {
                self.commit(&mut flight.items).await;
                self.disabler.work(&self.flow);
                (unrecorded, flush_at) = (0, None);
            }
            if extend.is_none() {
                extend_at = now + self.lease / 3;
            } else if extend_at <= now {
                self.extend(&flight.items).await;
                extend_at = Instant::now() + self.lease / 3;
            }
        }
        self.commit(&mut flight.items).await;
        self.disabler.finish(&self.flow).await;
    }

    /// Counts the answer for the endpoint, if the channel has one per device.
    fn queue_endpoint_update(&mut self, Flight { items, joined }: &Flight, answer: &Answer) {
        let subscription = || {
            let ticket = joined.get(&answer.ticket.key).and_then(|members| members.first()).unwrap_or(&answer.ticket);
            items.get(&ticket.key)?.subscriptions.get(ticket.ordinal as usize).copied()
        };
        let limit = || self.disabler.running().disable_after(&answer.channel);
        if let Some(update) = self.flow.endpoints.record_answer(&self.application, answer, subscription, limit) {
            self.disabler.queue_endpoint_update(update);
        }
    }

    /// Logs that the channel fails, or delivers again.
    fn log_channel_alert(&mut self, answer: &Answer) {
        let Some(alert) = self.alerts.count(&answer.disposition, answer.answered_at) else { return };
        let (application, channel) = (&self.application, &self.channel);
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

    /// Queues an address that the receiver rejects for good.
    fn queue_rejected_address(&mut self, Flight { items, joined }: &Flight, answer: &Answer) {
        let Disposition::Refused { reason } = &answer.disposition else { return };
        if !matches!(reason.kind, ReasonKind::Gone | ReasonKind::Bounced) {
            return;
        }
        let ticket = joined.get(&answer.ticket.key).and_then(|members| members.first()).unwrap_or(&answer.ticket);
        let entry = items.get(&ticket.key);
        let subscription = entry.and_then(|entry| entry.subscriptions.get(ticket.ordinal as usize));
        if let Some(subscription) = subscription {
            let (id, subscription, channel) = (answer.id, *subscription, answer.channel.clone());
            let (address, reason) = (answer.address.clone(), reason.clone());
            self.disabler.queue(RejectedAddress { id, subscription, channel, address, reason });
        }
    }

    /// Processes a report. Returns the number of results to record.
    fn take_report(&self, flight: &mut Flight, report: Report) -> usize {
        let Flight { items: in_flight, joined } = &mut *flight;
        match report {
            Report::Begun { key, item, under_way } => {
                let begun = InFlight {
                    item,
                    under_way,
                    accepted: Vec::new(),
                    subscriptions: Vec::new(),
                    answered: 0,
                    freed: 0,
                    dispatched: None,
                    untried: BTreeMap::new(),
                    held: BTreeMap::new(),
                    gathered: BTreeMap::new(),
                    placing: Vec::new(),
                    passed: BTreeMap::new(),
                    delivery_policy: Arc::default(),
                    counters: self.flow.classes.other(),
                    fallbacks: BTreeMap::new(),
                    released: false,
                    permit: None,
                    attempts: Arc::default(),
                    other_channels: BTreeMap::new(),
                    retries: BTreeMap::new(),
                    suspended: BTreeMap::new(),
                };
                in_flight.insert(key, begun);
                0
            }
            Report::Read { key, accepted, subscriptions, delivery_policy, counters, permit } => {
                if let Some(entry) = in_flight.get_mut(&key) {
                    (entry.accepted, entry.subscriptions) = (accepted, subscriptions);
                    (entry.delivery_policy, entry.counters, entry.permit) = (delivery_policy, counters, permit);
                }
                0
            }
            Report::Passed { key, ordinal, at, reason } => {
                let Some(entry) = in_flight.get_mut(&key) else { return 0 };
                if self.next_of(entry, &self.channel).is_none() {
                    let outcome = Outcome::Refused;
                    return self.take_report(flight, Report::Unsent { key, ordinal, at, outcome, reason });
                }
                entry.answered += 1;
                entry.passed.entry(whole_second(at)).or_default().push(ordinal);
                self.put_off(entry.item.batch, ordinal, whole_second(at));
                1
            }
            Report::Suppressed { key, ordinal, at, cause } => {
                let Some(entry) = in_flight.get_mut(&key) else { return 0 };
                metrics::counter!("tocsin_deliver_suppressed_total", "cause" => cause.word()).increment(1);
                let reason = format!("the address is suppressed: {}", cause.phrase());
                let Some(channel) = self.pass_on(entry, &self.channel, ordinal, at) else {
                    let (outcome, reason) = (Outcome::Refused, Reason::new(ReasonKind::Suppressed, reason));
                    return self.take_report(flight, Report::Unsent { key, ordinal, at, outcome, reason });
                };
                entry.answered += 1;
                Arc::make_mut(&mut entry.attempts).push(Attempt {
                    ordinal,
                    number: entry.item.attempts + 1,
                    formatted_at: at,
                    sent_at: at,
                    answered_at: at,
                    outcome: Outcome::Deferred,
                    reply: format!("{reason}; `{channel}` is tried next"),
                });
                1
            }
            Report::Gathered { key, ordinal, window, placing } => {
                let Some(entry) = in_flight.get_mut(&key) else { return 0 };
                metrics::counter!("tocsin_deliver_digest_deferred_total").increment(1);
                entry.answered += 1;
                entry.gathered.entry(window).or_default().push(ordinal);
                entry.placing.extend(placing);
                1
            }
            Report::Unsent { key, ordinal, at, outcome, reason } => {
                let Some(entry) = in_flight.get_mut(&key) else { return 0 };
                let number = entry.item.attempts + 1;
                entry.answered += 1;
                if outcome == Outcome::Suspended {
                    entry.suspended.entry(reason.text.clone()).or_default().push(ordinal);
                }
                metrics::counter!("tocsin_deliver_unsent_total", "outcome" => outcome.word()).increment(1);
                Arc::make_mut(&mut entry.attempts).push(Attempt {
                    ordinal,
                    number,
                    formatted_at: at,
                    sent_at: at,
                    answered_at: at,
                    outcome,
                    reply: reason.text,
                });
                1
            }
            Report::Snoozed { key, ordinal, due_at } => {
                let Some(entry) = in_flight.get_mut(&key) else { return 0 };
                metrics::counter!("tocsin_deliver_snoozed_total").increment(1);
                entry.answered += 1;
                let due_at = whole_second(due_at);
                entry.untried.entry(due_at).or_default().push(ordinal);
                self.put_off(entry.item.batch, ordinal, due_at);
                1
            }
            Report::Held { key, ordinal, channel, at, due_at } => {
                let Some(entry) = in_flight.get_mut(&key) else { return 0 };
                metrics::counter!("tocsin_deliver_snoozed_total").increment(1);
                self.hold(entry, &channel, ordinal, at, due_at, "its destination is paused")
            }
            Report::Joined { key, members } => {
                joined.insert(key, members);
                0
            }
            Report::Dispatched { key, dispatched, left, due_at } => {
                let Some(entry) = in_flight.get_mut(&key) else { return 0 };
                entry.dispatched = Some((dispatched, left, due_at));
                1
            }
            Report::Released { key } => {
                let Some(entry) = in_flight.get_mut(&key) else { return 0 };
                self.lanes.returned(entry.item.batch);
                if !entry.has_attempts() {
                    in_flight.remove(&key);
                } else {
                    entry.released = true;
                }
                0
            }
        }
    }

    fn take_answer(&mut self, flight: &mut Flight, answer: Answer) -> usize {
        // If all endpoints are well and the message was delivered, there is nothing to update.
        let is_plain = matches!(answer.disposition, Disposition::Delivered { .. }) && self.flow.endpoints.are_healthy();
        if is_plain && !flight.joined.contains_key(&answer.ticket.key) {
            self.log_channel_alert(&answer);
            return self.take_delivered(&mut flight.items, answer);
        }
        // Drawn once, so that notifications of one message are retried together.
        let jitter = match answer.disposition {
            Disposition::Deferred { .. } => self.flow.jitter(),
            _ => 0.0,
        };
        let mut count = 0;
        for answer in answer.into_each() {
            self.log_channel_alert(&answer);
            self.queue_rejected_address(flight, &answer);
            self.queue_endpoint_update(flight, &answer);
            let Flight { items, joined } = &mut *flight;
            count += match joined.remove(&answer.ticket.key) {
                None => self.take_one(items, answer, jitter),
                Some(members) => {
                    let each = members.into_iter().map(|ticket| Answer { ticket, ..answer.clone() });
                    each.map(|answer| self.take_one(items, answer, jitter)).sum()
                }
            };
        }
        count
    }

    /// Processes a delivery, for all notifications of the message at once.
    fn take_delivered(&self, items: &mut BTreeMap<u64, InFlight>, answer: Answer) -> usize {
        let (mut reply, mut taken) = (String::new(), 0);
        if let Disposition::Delivered { reply: said } = &answer.disposition
            && self.log.status
        {
            reply = cut(said.clone());
        }
        let Answer { formatted_at, sent_at, answered_at, .. } = answer;
        let mut tickets = answer.tickets().map(|(_, ticket)| ticket).peekable();
        while let Some(Ticket { key, .. }) = tickets.peek().copied() {
            let of_item = std::iter::from_fn(|| tickets.next_if(|ticket| ticket.key == key));
            let Some(entry) = items.get_mut(&key) else {
                of_item.for_each(drop);
                continue;
            };
            let number = entry.item.attempts + 1;
            let attempts = attempts_by(&mut entry.attempts, &mut entry.other_channels, &answer.channel, &self.channel);
            let before = attempts.len();
            // Most members have the same event.
            let mut accepted: Option<(Timestamp, u64)> = None;
            let record = |(accepted_at, count): (Timestamp, u64)| {
                self.flow.latencies.end_to_end.record_many(answered_at.since(accepted_at), count);
            };
            for Ticket { ordinal, .. } in of_item {
                match (&mut accepted, entry.accepted.get(ordinal as usize)) {
                    (Some((same, count)), Some(at)) if same == at => *count += 1,
                    (_, Some(at)) => accepted.replace((*at, 1)).into_iter().for_each(record),
                    (_, None) => {}
                }
                let (outcome, reply) = (Outcome::Delivered, reply.clone());
                attempts.push(Attempt { ordinal, number, formatted_at, sent_at, answered_at, outcome, reply });
            }
            accepted.into_iter().for_each(record);
            let count = attempts.len() - before;
            entry.answered += count;
            entry.counters.outcomes[Outcome::Delivered as usize].increment(count as u64);
            taken += count;
        }
        self.flow.latencies.deliver.record_many(answered_at.since(sent_at), taken as u64);
        taken
    }

    /// Processes an answer for one notification.
    fn take_one(&self, items: &mut BTreeMap<u64, InFlight>, answer: Answer, jitter: f64) -> usize {
        let Ticket { key, ordinal } = answer.ticket;
        let Some(entry) = items.get_mut(&key) else { return 0 };
        let number = entry.item.attempts + 1;
        let (outcome, reply) = match answer.disposition {
            Disposition::Delivered { .. } => return self.take_delivered(items, answer),
            Disposition::Refused { reason } if reason.kind == ReasonKind::Expired => (Outcome::Expired, reason.text),
            Disposition::Refused { reason } => {
                match self.pass_on(entry, &answer.channel, ordinal, answer.answered_at) {
                    Some(channel) => (Outcome::Deferred, format!("{}; `{channel}` is tried next", reason.text)),
                    None => (Outcome::Refused, reason.text),
                }
            }
            Disposition::Deferred { reason, retry_after } if reason.kind == ReasonKind::Untried => {
                if let Some(wait) = retry_after {
                    let at = answer.answered_at;
                    return self.hold(entry, &answer.channel, ordinal, at, at + wait, &reason.text);
                }
                let due_at = entry.item.due_at;
                entry.untried.entry(due_at).or_default().push(ordinal);
                self.put_off(entry.item.batch, ordinal, due_at);
                entry.answered += 1;
                return 1;
            }
            Disposition::Deferred { reason, retry_after } => {
                let due = self
                    .retry
                    .delay_after(number, retry_after, jitter)
                    .map(|delay| whole_second_of(answer.answered_at, delay));
                match (due, due.and_then(|due| self.deadline_before(entry, &answer.channel, due))) {
                    (Some(_), Some(deadline)) => {
                        let from = deadline.max(answer.answered_at);
                        let channel = self.pass_on(entry, &answer.channel, ordinal, from);
                        let channel = channel.map(|name| name.to_string()).unwrap_or_default();
                        (Outcome::Deferred, format!("{}; `{channel}` is tried next", reason.text))
                    }
                    (Some(due), None) => {
                        entry.retries.entry(due).or_default().push(ordinal);
                        (Outcome::Deferred, reason.text)
                    }
                    (None, _) => match self.pass_on(entry, &answer.channel, ordinal, answer.answered_at) {
                        Some(channel) => (Outcome::Deferred, format!("{}; `{channel}` is tried next", reason.text)),
                        None => {
                            let text = match number {
                                1 => format!("the only attempt failed: {}", reason.text),
                                _ => format!("all {number} attempts failed, the last with: {}", reason.text),
                            };
                            let reason = Reason::new(ReasonKind::AttemptsExhausted, text);
                            entry.suspended.entry(reason.text.clone()).or_default().push(ordinal);
                            (Outcome::Suspended, reason.text)
                        }
                    },
                }
            }
        };
        entry.answered += 1;
        entry.counters.outcomes[outcome as usize].increment(1);
        let reply = cut(reply);
        let InFlight { attempts, other_channels, .. } = entry;
        attempts_by(attempts, other_channels, &answer.channel, &self.channel).push(Attempt {
            ordinal,
            number,
            formatted_at: answer.formatted_at,
            sent_at: answer.sent_at,
            answered_at: answer.answered_at,
            outcome,
            reply,
        });
        1
    }

    /// Index and step of the fallback chain that is tried after channel `used`, if there is one.
    fn next_of<'e>(&self, entry: &'e InFlight, used: &Name) -> Option<(usize, &'e Fallback)> {
        // A notification that started with a channel of the chain continues behind it.
        let begun = entry.item.work_state.fallback == 0;
        let own = entry.delivery_policy.fallback.iter().position(|step| begun && step.channel == *used);
        let place = own.map_or(usize::from(entry.item.work_state.fallback), |at| at + 1);
        entry.delivery_policy.fallback.get(place).map(|step| (place, step))
    }

    /// The time when the next channel of the chain takes over, if that is no later than `due`.
    fn deadline_before(&self, entry: &InFlight, used: &Name, due: Timestamp) -> Option<Timestamp> {
        let deadline = entry.since() + self.next_of(entry, used)?.1.after?;
        (deadline <= due).then_some(deadline)
    }

    /// Lets a notification wait for its destination until `due_at`, or continue with the next channel if that is
    /// tried before. Returns the number of results to record.
    fn hold(
        &self,
        entry: &mut InFlight,
        used: &Name,
        ordinal: u32,
        at: Timestamp,
        due_at: Timestamp,
        why: &str,
    ) -> usize {
        entry.answered += 1;
        let due_at = whole_second(due_at);
        let deadline = self.deadline_before(entry, used, due_at);
        let Some(channel) = deadline.and_then(|deadline| self.pass_on(entry, used, ordinal, deadline.max(at))) else {
            entry.held.entry(due_at).or_default().push(ordinal);
            self.put_off(entry.item.batch, ordinal, due_at);
            return 1;
        };
        let number = entry.item.attempts + 1;
        attempts_by(&mut entry.attempts, &mut entry.other_channels, used, &self.channel).push(Attempt {
            ordinal,
            number,
            formatted_at: at,
            sent_at: at,
            answered_at: at,
            outcome: Outcome::Deferred,
            reply: cut(format!("{why}; `{channel}` is tried next")),
        });
        1
    }

    /// Passes a notification on to the next channel of its chain from a time on. Returns that channel, or `None` if
    /// there is none.
    fn pass_on(&self, entry: &mut InFlight, used: &Name, ordinal: u32, from: Timestamp) -> Option<Name> {
        let (place, channel) = self.next_of(entry, used).map(|(place, step)| (place, step.channel.clone()))?;
        metrics::counter!("tocsin_deliver_fallbacks_total").increment(1);
        entry.fallbacks.entry((place, whole_second(from))).or_default().push(ordinal);
        Some(channel)
    }

    /// Commits all results, retrying until the store accepts them.
    async fn commit(&self, in_flight: &mut BTreeMap<u64, InFlight>) {
        let mut pause = PAUSE_MIN;
        loop {
            let touched: Vec<u64> = in_flight
                .iter()
                .filter(|(_, entry)| entry.has_attempts() || entry.is_complete())
                .map(|(key, _)| *key)
                .collect();
            if touched.is_empty() {
                return;
            }
            let mut step = Step::default();
            for key in &touched {
                self.append(&mut step, &in_flight[key]);
            }
            match self.flow.work_queue.commit(step).await {
                Ok(_) => {
                    for key in touched {
                        if let Some(entry) = in_flight.get(&key) {
                            self.update_lanes(entry);
                        }
                        if in_flight.get(&key).is_some_and(|entry| entry.is_complete() || entry.released) {
                            let over = in_flight.remove(&key).filter(InFlight::is_complete);
                            over.into_iter().for_each(|entry| entry.under_way.done());
                        } else if let Some(entry) = in_flight.get_mut(&key) {
                            entry.attempts = Arc::default();
                            entry.other_channels.clear();
                            entry.retries.clear();
                            entry.fallbacks.clear();
                            entry.suspended.clear();
                        }
                    }
                    return;
                }
                Err(StoreError::Fenced(what)) => {
                    tracing::warn!(%what, "the lease of a work item ran out before its receipts were recorded");
                    if !self.drop_fenced(in_flight, &touched).await {
                        tokio::time::sleep(pause).await;
                        pause = (pause * 2).min(PAUSE_MAX);
                    }
                }
                Err(error) => {
                    tracing::error!(%error, application = %self.application, channel = %self.channel, "receipts cannot be recorded yet");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                    self.extend(in_flight).await;
                }
            }
        }
    }

    /// Drops items whose claim was lost (fencing): another worker owns them now. Returns whether there were any.
    async fn drop_fenced(&self, in_flight: &mut BTreeMap<u64, InFlight>, touched: &[u64]) -> bool {
        let before = in_flight.len();
        for key in touched {
            let claim = in_flight[key].item.claim;
            if let Err(StoreError::Fenced(_)) =
                self.flow.work_queue.extend(claim, self.lease, self.flow.clock.now()).await
            {
                self.lanes.returned(in_flight[key].item.batch);
                in_flight.remove(key);
                metrics::counter!("tocsin_deliver_leases_lost_total").increment(1);
            }
        }
        in_flight.len() < before
    }

    /// A notification is deferred: later ones of its lane on this item are deferred too.
    fn put_off(&self, batch: NotificationBatchId, ordinal: u32, due_at: Timestamp) {
        self.lanes.apply_results([(NotificationId { batch, ordinal }, Some(LaneStatus::Later(due_at)))]);
    }

    /// Unblocks the lanes of an item whose results are recorded.
    fn update_lanes(&self, entry: &InFlight) {
        let id = |ordinal: &u32| NotificationId { batch: entry.item.batch, ordinal: *ordinal };
        let is_settled = |attempt: &&Attempt| attempt.outcome.closes() || attempt.outcome == Outcome::Suspended;
        let attempts = entry.attempts.iter().chain(entry.other_channels.values().flatten());
        let settled = attempts.filter(is_settled).map(|attempt| (id(&attempt.ordinal), None));
        let over = entry.dispatched.as_ref().filter(|_| entry.is_complete());
        let left = over.into_iter().map(|(_, left, due_at)| (due_at, left));
        let fallbacks = entry.fallbacks.iter().map(|((_, due), ordinals)| (due, ordinals));
        let later = entry.retries.iter().chain(fallbacks).chain(left);
        let later = later.flat_map(|(due, ordinals)| {
            ordinals.iter().map(move |ordinal| (id(ordinal), Some(LaneStatus::Later(*due))))
        });
        self.lanes.apply_results(settled.chain(later));
    }

    fn append(&self, step: &mut Step, entry: &InFlight) {
        let item = &entry.item;
        if !entry.attempts.is_empty() {
            let (channel, attempts) = (self.channel.clone(), entry.attempts.clone());
            step.receipts.push(ReceiptChunk { batch: item.batch, channel, attempts });
        }
        step.receipts.extend(entry.other_channels.iter().map(|(channel, attempts)| ReceiptChunk {
            batch: item.batch,
            channel: channel.clone(),
            attempts: Arc::new(attempts.clone()),
        }));
        let retry = |ordinals: &[u32], attempts: u32, due_at: Timestamp, work_state: WorkState| Retry {
            batch: item.batch,
            application: self.application.clone(),
            channel: self.channel.clone(),
            ordinals: sorted(ordinals),
            attempts,
            due_at,
            work_state,
        };
        // Another attempt of this channel; `since` is kept.
        let again = || WorkState { since: Some(entry.since()), ..item.work_state.clone() };
        let fallbacks = |ordinals: &[u32], place: usize, due_at: Timestamp| {
            let work_state = WorkState { fallback: place as u8 + 1, since: Some(due_at), ..item.work_state.clone() };
            let channel = entry.delivery_policy.fallback[place].channel.clone();
            Retry { channel, ..retry(ordinals, 0, due_at, work_state) }
        };
        let retries = entry.retries.iter();
        step.retries.extend(retries.map(|(due, ordinals)| retry(ordinals, item.attempts + 1, *due, again())));
        step.retries.extend(entry.fallbacks.iter().map(|((place, due), ordinals)| fallbacks(ordinals, *place, *due)));
        step.suspensions.extend(entry.suspended.iter().map(|(reason, ordinals)| Suspension {
            batch: item.batch,
            application: self.application.clone(),
            channel: self.channel.clone(),
            ordinals: sorted(ordinals),
            attempts: item.attempts + 1,
            reason: reason.clone(),
            since: self.flow.clock.now(),
            work_state: item.work_state.clone(),
        }));
        match &entry.dispatched {
            Some((_, left, due_at)) if entry.is_complete() => {
                step.finished.push(item.claim);
                let work_state = || item.work_state.clone();
                if !left.is_empty() {
                    step.retries.push(retry(left, item.attempts, *due_at, work_state()));
                }
                // Only now: if this worker dies, the worker that claims the item decides again.
                let untried = entry.untried.iter();
                step.retries.extend(untried.map(|(due, ordinals)| retry(ordinals, item.attempts, *due, work_state())));
                let held = entry.held.iter();
                step.retries.extend(held.map(|(due, ordinals)| retry(ordinals, item.attempts, *due, again())));
                step.retries.extend(entry.gathered.iter().map(|(window, ordinals)| {
                    let work_state = WorkState { window: Some(*window), ..work_state() };
                    retry(ordinals, item.attempts, *window, work_state)
                }));
                let next = self.next_of(entry, &self.channel).map(|(place, _)| place);
                let passed = entry.passed.iter().flat_map(|(due, ordinals)| Some(fallbacks(ordinals, next?, *due)));
                step.retries.extend(passed);
            }
            // A retry or suspension is committed with the attempt that caused it, so a crash cannot lose it.
            _ => step.held.push(item.claim),
        }
    }

    async fn extend(&self, in_flight: &BTreeMap<u64, InFlight>) {
        let now = self.flow.clock.now();
        for entry in in_flight.values().filter(|entry| !entry.released) {
            // A lost lease shows at the commit, which drops the item (fencing).
            let _ = self.flow.work_queue.extend(entry.item.claim, self.lease, now).await;
        }
    }
}

/// The attempt list for channel `used`, of an item of channel `own`.
fn attempts_by<'a>(
    attempts: &'a mut Arc<Vec<Attempt>>,
    other_channels: &'a mut BTreeMap<Name, Vec<Attempt>>,
    used: &Name,
    own: &Name,
) -> &'a mut Vec<Attempt> {
    match used == own {
        true => Arc::make_mut(attempts),
        false => other_channels.entry(used.clone()).or_default(),
    }
}

/// Truncates a reply of a receiver.
fn cut(mut reply: String) -> String {
    if reply.len() > TEXT_CHARACTERS_MAX
        && let Some((end, _)) = reply.char_indices().nth(TEXT_CHARACTERS_MAX)
    {
        reply.truncate(end);
    }
    reply
}

fn sorted(ordinals: &[u32]) -> Vec<u32> {
    let mut sorted = ordinals.to_vec();
    sorted.sort_unstable();
    sorted
}

/// Rounds to a second, so that notifications of one item that are deferred together are retried together.
fn whole_second(time: Timestamp) -> Timestamp {
    Timestamp(time.0.div_euclid(1_000_000) * 1_000_000)
}

/// Rounds up a time that a delay leads to: part of a second matters for a short delay, so the attempt is rather late
/// than early.
fn whole_second_of(from: Timestamp, delay: Duration) -> Timestamp {
    let due = from + delay;
    match whole_second(due) {
        begun if begun == due || delay.is_zero() || delay >= Duration::from_secs(60) => begun,
        begun => Timestamp(begun.0.saturating_add(1_000_000)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_attempt_comes_before_a_short_delay_is_over() {
        let millis = Duration::from_millis;
        for (from, delay, expected) in [
            (0, millis(1_000), 1_000_000),
            (5_000, millis(900), 1_000_000),
            (5_000, millis(1_000), 2_000_000),
            (5_000, Duration::ZERO, 0),
            (5_000, millis(60_000), 60_000_000),
        ] {
            assert_eq!(whole_second_of(Timestamp(from), delay), Timestamp(expected), "{from} and {delay:?}");
        }
    }
}
