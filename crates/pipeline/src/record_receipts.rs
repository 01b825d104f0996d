//! 4. Dispositions become receipts, retries, suspensions.
//!
//! In chunks, so that nothing durable is written once per notification.
//!
//! One recorder per channel gathers what its work items report and commits it together. What it has not yet committed
//! when the process dies is sent again, under the same id.

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
    conduct::{Conduct, Fallback},
    id::{Name, NotificationBatchId, NotificationId, SubscriptionId},
    receipt::{Attempt, Disposition, Outcome, Reason, ReasonKind},
    suppression::Cause,
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    journal::{Course, ReceiptChunk, Retry, Step, Suspension, WorkItem},
};
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc},
    time::Instant,
};

use crate::{
    Flow,
    class_counters::NotificationCounters,
    disable_devices::{Disabler, Gone},
    lanes::{Lanes, Standing},
    suspects::UnderWay,
    trouble::{Tidings, Trouble},
    windows::Placing,
};

/// How long to wait before the same commit is tried again, at first and at most.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Reports or answers that are taken at once, at most.
const AT_ONCE: usize = 256;

/// What a work item's delivery tells its recorder, beside the answers of the channel.
pub(crate) enum Report {
    /// It was claimed, and its notifications will come under this key. Its lease is kept from now on.
    Begun { key: u64, item: WorkItem, under_way: UnderWay },
    /// When the event of each notification was accepted, and for whom it is, by ordinal, and how its class is told. The
    /// permit covers those that are about to be sent.
    Read {
        key: u64,
        accepted: Vec<Timestamp>,
        subscriptions: Vec<SubscriptionId>,
        conduct: Arc<Conduct>,
        counters: Arc<NotificationCounters>,
        permit: Option<OwnedSemaphorePermit>,
    },
    /// One that was not even sent: its attempt, and why.
    Unsent { key: u64, ordinal: u32, at: Timestamp, outcome: Outcome, reason: Reason },
    /// One that waits until this time before anything is tried, because its subscriber is better let be until then. It is no
    /// attempt.
    Snoozed { key: u64, ordinal: u32, due_at: Timestamp },
    /// One whose destination is better let be until then. It is no attempt, but the time of its channel goes on.
    Held { key: u64, ordinal: u32, channel: Name, at: Timestamp, due_at: Timestamp },
    /// One that waits for the window of a digest to close, which is not told before `placing` is dropped.
    Gathered { key: u64, ordinal: u32, window: Timestamp, placing: Option<Placing> },
    /// One that the present channel cannot reach, so that the next of its chain is tried, if there is one.
    Passed { key: u64, ordinal: u32, at: Timestamp, reason: Reason },
    /// One that nothing may be sent to by the present channel; the next of its chain is tried, if there is one.
    Suppressed { key: u64, ordinal: u32, at: Timestamp, cause: Cause },
    /// Several that leave as one message: its answer comes under this key and is theirs.
    Joined { key: u64, members: Vec<Ticket> },
    /// Nothing more will be sent. `left` are those that were not tried, to be tried from `due_at` on.
    Fed { key: u64, fed: usize, left: Vec<u32>, due_at: Timestamp },
    /// It goes back to the journal, by its release or with its lease. What is known of it is recorded all the same.
    GivenBack { key: u64 },
}

/// What is in flight.
#[derive(Default)]
struct Flight {
    items: BTreeMap<u64, InFlight>,
    /// The notifications of messages that stand for several.
    joined: HashMap<u64, Vec<Ticket>>,
}

/// A work item in flight.
struct InFlight {
    item: WorkItem,
    /// Until what becomes of it is recorded.
    under_way: UnderWay,
    /// When the event of each notification was accepted, by ordinal.
    accepted: Vec<Timestamp>,
    subscriptions: Vec<SubscriptionId>,
    answered: usize,
    /// How many of them have given their place back.
    freed: usize,
    /// Set once nothing more will be sent: how many were, what is left, and when that is due.
    fed: Option<(usize, Vec<u32>, Timestamp)>,
    /// Not tried, or returned by their channel as they were, by the time when they are due again.
    untried: BTreeMap<Timestamp, Vec<u32>>,
    /// Not tried because of their destination, by the time when they are due again.
    held: BTreeMap<Timestamp, Vec<u32>>,
    /// Not tried yet because they wait for others.
    gathered: BTreeMap<Timestamp, Vec<u32>>,
    placing: Vec<Placing>,
    /// Not tried by this channel, but by the next from then on.
    passed: BTreeMap<Timestamp, Vec<u32>>,
    conduct: Arc<Conduct>,
    /// Counters of its class.
    counters: Arc<NotificationCounters>,
    given_back: bool,
    /// For those that are not answered yet, so that one that is slow holds up no others.
    permit: Option<OwnedSemaphorePermit>,
    /// Attempts not yet committed.
    attempts: Arc<Vec<Attempt>>,
    /// Those of channels that subscribers prefer.
    elsewhere: BTreeMap<Name, Vec<Attempt>>,
    retries: BTreeMap<Timestamp, Vec<u32>>,
    /// Those that go on by the channel at this place of their chain.
    onward: BTreeMap<(usize, Timestamp), Vec<u32>>,
    suspended: BTreeMap<String, Vec<u32>>,
}

impl InFlight {
    /// Since when the present channel tries.
    fn since(&self) -> Timestamp {
        self.item.course.since.unwrap_or(self.item.due_at)
    }

    fn is_over(&self) -> bool {
        self.fed.as_ref().is_some_and(|(fed, ..)| *fed == self.answered)
    }

    fn has_attempts(&self) -> bool {
        !self.attempts.is_empty() || !self.elsewhere.is_empty()
    }

    /// Lets others take the places of those that are settled.
    fn free_places(&mut self) {
        if let Some(permit) = &mut self.permit
            && self.answered > self.freed
        {
            drop(permit.split((self.answered - self.freed).min(permit.num_permits())));
            self.freed = self.answered;
        }
    }
}

/// Gathers reports and answers of one channel until both have ended.
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
    pub trouble: Trouble,
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
            // Who has nothing on its way sleeps until there is something.
            let extend = Some(extend_at).filter(|_| !flight.items.is_empty());
            let wake = flush_at.into_iter().chain(extend).min();
            tokio::select! {
                biased;
                count = self.reports.recv_many(&mut reports, at_once), if reports_open => reports_open = count > 0,
                count = self.answers.recv_many(&mut answers, at_once), if answers_open => {
                    answers_open = count > 0;
                    // A message is handed over after its item was reported, but while this task looked from one queue to
                    // the other both may have come.
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
            flight.items.values_mut().for_each(InFlight::free_places);
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

    /// How the endpoint does, where it is a matter of the device.
    fn note_endpoint(&mut self, Flight { items, joined }: &Flight, answer: &Answer) {
        let subscription = || {
            let ticket = joined.get(&answer.ticket.key).and_then(|members| members.first()).unwrap_or(&answer.ticket);
            items.get(&ticket.key)?.subscriptions.get(ticket.ordinal as usize).copied()
        };
        let limit = || self.disabler.running().disable_after(&answer.channel);
        if let Some(care) = self.flow.endpoints.note(&self.application, answer, subscription, limit) {
            self.disabler.note_endpoint(care);
        }
    }

    /// Tells the log when the channel only fails, and when it delivers again.
    fn note_trouble(&mut self, answer: &Answer) {
        let Some(tidings) = self.trouble.note(&answer.disposition, answer.answered_at) else { return };
        let (application, channel) = (&self.application, &self.channel);
        match tidings {
            Tidings::Fails { failures, since, reason } => {
                metrics::counter!(
                    "deliver_troubles_total",
                    "application" => application.to_string(), "channel" => channel.to_string()
                )
                .increment(1);
                let reason = redact::text(reason);
                tracing::warn!(%application, %channel, failures, %since, reason, "a channel only fails");
            }
            Tidings::Delivers { failures, since } => {
                tracing::info!(%application, %channel, failures, %since, "a channel delivers again");
            }
        }
    }

    /// What the far side says of the address, beside this message.
    fn note_gone(&mut self, Flight { items, joined }: &Flight, answer: &Answer) {
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
            self.disabler.note(Gone { id, subscription, channel, address, reason });
        }
    }

    /// Gives the number of things that are now to be recorded.
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
                    fed: None,
                    untried: BTreeMap::new(),
                    held: BTreeMap::new(),
                    gathered: BTreeMap::new(),
                    placing: Vec::new(),
                    passed: BTreeMap::new(),
                    conduct: Arc::default(),
                    counters: self.flow.classes.other(),
                    onward: BTreeMap::new(),
                    given_back: false,
                    permit: None,
                    attempts: Arc::default(),
                    elsewhere: BTreeMap::new(),
                    retries: BTreeMap::new(),
                    suspended: BTreeMap::new(),
                };
                in_flight.insert(key, begun);
                0
            }
            Report::Read { key, accepted, subscriptions, conduct, counters, permit } => {
                if let Some(entry) = in_flight.get_mut(&key) {
                    (entry.accepted, entry.subscriptions) = (accepted, subscriptions);
                    (entry.conduct, entry.counters, entry.permit) = (conduct, counters, permit);
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
                metrics::counter!("deliver_suppressed_total", "cause" => cause.word()).increment(1);
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
                metrics::counter!("deliver_gathered_total").increment(1);
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
                metrics::counter!("deliver_unsent_total", "outcome" => outcome.word()).increment(1);
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
                metrics::counter!("deliver_snoozed_total").increment(1);
                entry.answered += 1;
                let due_at = whole_second(due_at);
                entry.untried.entry(due_at).or_default().push(ordinal);
                self.put_off(entry.item.batch, ordinal, due_at);
                1
            }
            Report::Held { key, ordinal, channel, at, due_at } => {
                let Some(entry) = in_flight.get_mut(&key) else { return 0 };
                metrics::counter!("deliver_snoozed_total").increment(1);
                self.hold(entry, &channel, ordinal, at, due_at, "its destination is paused")
            }
            Report::Joined { key, members } => {
                joined.insert(key, members);
                0
            }
            Report::Fed { key, fed, left, due_at } => {
                let Some(entry) = in_flight.get_mut(&key) else { return 0 };
                entry.fed = Some((fed, left, due_at));
                1
            }
            Report::GivenBack { key } => {
                let Some(entry) = in_flight.get_mut(&key) else { return 0 };
                self.lanes.returned(entry.item.batch);
                if !entry.has_attempts() {
                    in_flight.remove(&key);
                } else {
                    entry.given_back = true;
                }
                0
            }
        }
    }

    fn take_answer(&mut self, flight: &mut Flight, answer: Answer) -> usize {
        // Of addresses that take what they are sent there is nothing to note.
        let is_plain = matches!(answer.disposition, Disposition::Delivered { .. }) && self.flow.endpoints.are_well();
        if is_plain && !flight.joined.contains_key(&answer.ticket.key) {
            self.note_trouble(&answer);
            return self.take_delivered(&mut flight.items, answer);
        }
        // Drawn once, so that those who were told together are told together again.
        let luck = match answer.disposition {
            Disposition::Deferred { .. } => self.flow.luck(),
            _ => 0.0,
        };
        let mut count = 0;
        for answer in answer.into_each() {
            self.note_trouble(&answer);
            self.note_gone(flight, &answer);
            self.note_endpoint(flight, &answer);
            let Flight { items, joined } = &mut *flight;
            count += match joined.remove(&answer.ticket.key) {
                None => self.take_one(items, answer, luck),
                Some(members) => {
                    let each = members.into_iter().map(|ticket| Answer { ticket, ..answer.clone() });
                    each.map(|answer| self.take_one(items, answer, luck)).sum()
                }
            };
        }
        count
    }

    /// Takes the answer that something was delivered: for all whom it is about at once.
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
            let attempts = attempts_by(&mut entry.attempts, &mut entry.elsewhere, &answer.channel, &self.channel);
            let before = attempts.len();
            // Most are told of the same event.
            let mut accepted: Option<(Timestamp, u64)> = None;
            let told = |(accepted_at, count): (Timestamp, u64)| {
                self.flow.latencies.end_to_end.record_many(answered_at.since(accepted_at), count);
            };
            for Ticket { ordinal, .. } in of_item {
                match (&mut accepted, entry.accepted.get(ordinal as usize)) {
                    (Some((same, count)), Some(at)) if same == at => *count += 1,
                    (_, Some(at)) => accepted.replace((*at, 1)).into_iter().for_each(told),
                    (_, None) => {}
                }
                let (outcome, reply) = (Outcome::Delivered, reply.clone());
                attempts.push(Attempt { ordinal, number, formatted_at, sent_at, answered_at, outcome, reply });
            }
            accepted.into_iter().for_each(told);
            let count = attempts.len() - before;
            entry.answered += count;
            entry.counters.outcomes[Outcome::Delivered as usize].increment(count as u64);
            taken += count;
        }
        self.flow.latencies.deliver.record_many(answered_at.since(sent_at), taken as u64);
        taken
    }

    /// Takes an answer for one notification.
    fn take_one(&self, items: &mut BTreeMap<u64, InFlight>, answer: Answer, luck: f64) -> usize {
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
                    .delay_after(number, retry_after, luck)
                    .map(|delay| whole_second(answer.answered_at + delay));
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
        let InFlight { attempts, elsewhere, .. } = entry;
        attempts_by(attempts, elsewhere, &answer.channel, &self.channel).push(Attempt {
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

    /// The place and the step of the chain that is tried after the channel `used`, if the chain of its class has another.
    fn next_of<'e>(&self, entry: &'e InFlight, used: &Name) -> Option<(usize, &'e Fallback)> {
        // Who begins with a channel of the chain goes on behind it.
        let begun = entry.item.course.fallback == 0;
        let own = entry.conduct.fallback.iter().position(|step| begun && step.channel == *used);
        let place = own.map_or(usize::from(entry.item.course.fallback), |at| at + 1);
        entry.conduct.fallback.get(place).map(|step| (place, step))
    }

    /// When the next channel of the chain is tried instead of this one, if that is no later than `due`.
    fn deadline_before(&self, entry: &InFlight, used: &Name, due: Timestamp) -> Option<Timestamp> {
        let deadline = entry.since() + self.next_of(entry, used)?.1.after?;
        (deadline <= due).then_some(deadline)
    }

    /// Lets one wait for its destination until `due_at`, or go on by the next channel if that is tried before. Gives the
    /// number of things that are now to be recorded.
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
        attempts_by(&mut entry.attempts, &mut entry.elsewhere, used, &self.channel).push(Attempt {
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

    /// Lets a notification go on by the next channel of its chain from then on. Gives the channel; `None`: there is none.
    fn pass_on(&self, entry: &mut InFlight, used: &Name, ordinal: u32, from: Timestamp) -> Option<Name> {
        let (place, channel) = self.next_of(entry, used).map(|(place, step)| (place, step.channel.clone()))?;
        metrics::counter!("deliver_fallbacks_total").increment(1);
        entry.onward.entry((place, whole_second(from))).or_default().push(ordinal);
        Some(channel)
    }

    /// Commits all that is not yet committed, trying until the store takes it.
    async fn commit(&self, in_flight: &mut BTreeMap<u64, InFlight>) {
        let mut pause = PAUSE_MIN;
        loop {
            let touched: Vec<u64> = in_flight
                .iter()
                .filter(|(_, entry)| entry.has_attempts() || entry.is_over())
                .map(|(key, _)| *key)
                .collect();
            if touched.is_empty() {
                return;
            }
            let mut step = Step::default();
            for key in &touched {
                self.append(&mut step, &in_flight[key]);
            }
            match self.flow.journal.commit(step).await {
                Ok(_) => {
                    for key in touched {
                        if let Some(entry) = in_flight.get(&key) {
                            self.settle_lanes(entry);
                        }
                        if in_flight.get(&key).is_some_and(|entry| entry.is_over() || entry.given_back) {
                            let over = in_flight.remove(&key).filter(InFlight::is_over);
                            over.into_iter().for_each(|entry| entry.under_way.done());
                        } else if let Some(entry) = in_flight.get_mut(&key) {
                            entry.attempts = Arc::default();
                            entry.elsewhere.clear();
                            entry.retries.clear();
                            entry.onward.clear();
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

    /// Those whose claim is lost belong to another worker now; what we know of them is not ours to say. Gives whether
    /// there were any.
    async fn drop_fenced(&self, in_flight: &mut BTreeMap<u64, InFlight>, touched: &[u64]) -> bool {
        let before = in_flight.len();
        for key in touched {
            let claim = in_flight[key].item.claim;
            if let Err(StoreError::Fenced(_)) = self.flow.journal.extend(claim, self.lease, self.flow.clock.now()).await
            {
                self.lanes.returned(in_flight[key].item.batch);
                in_flight.remove(key);
                metrics::counter!("deliver_leases_lost_total").increment(1);
            }
        }
        in_flight.len() < before
    }

    /// One was not sent and waits: those behind it need not wait here.
    fn put_off(&self, batch: NotificationBatchId, ordinal: u32, due_at: Timestamp) {
        self.lanes.settle([(NotificationId { batch, ordinal }, Some(Standing::Later(due_at)))]);
    }

    /// Lets those behind go on: what became of an item's notifications is recorded.
    fn settle_lanes(&self, entry: &InFlight) {
        let id = |ordinal: &u32| NotificationId { batch: entry.item.batch, ordinal: *ordinal };
        let is_settled = |attempt: &&Attempt| attempt.outcome.closes() || attempt.outcome == Outcome::Suspended;
        let attempts = entry.attempts.iter().chain(entry.elsewhere.values().flatten());
        let settled = attempts.filter(is_settled).map(|attempt| (id(&attempt.ordinal), None));
        let over = entry.fed.as_ref().filter(|_| entry.is_over());
        let left = over.into_iter().map(|(_, left, due_at)| (due_at, left));
        let onward = entry.onward.iter().map(|((_, due), ordinals)| (due, ordinals));
        let later = entry.retries.iter().chain(onward).chain(left);
        let later = later
            .flat_map(|(due, ordinals)| ordinals.iter().map(move |ordinal| (id(ordinal), Some(Standing::Later(*due)))));
        self.lanes.settle(settled.chain(later));
    }

    fn append(&self, step: &mut Step, entry: &InFlight) {
        let item = &entry.item;
        if !entry.attempts.is_empty() {
            let (channel, attempts) = (self.channel.clone(), entry.attempts.clone());
            step.receipts.push(ReceiptChunk { batch: item.batch, channel, attempts });
        }
        step.receipts.extend(entry.elsewhere.iter().map(|(channel, attempts)| ReceiptChunk {
            batch: item.batch,
            channel: channel.clone(),
            attempts: Arc::new(attempts.clone()),
        }));
        let retry = |ordinals: &[u32], attempts: u32, due_at: Timestamp, course: Course| Retry {
            batch: item.batch,
            application: self.application.clone(),
            channel: self.channel.clone(),
            ordinals: sorted(ordinals),
            attempts,
            due_at,
            course,
        };
        // Another attempt of this channel, which has tried since it was first due.
        let again = || Course { since: Some(entry.since()), ..item.course.clone() };
        let onward = |ordinals: &[u32], place: usize, due_at: Timestamp| {
            let course = Course { fallback: place as u8 + 1, since: Some(due_at), ..item.course.clone() };
            let channel = entry.conduct.fallback[place].channel.clone();
            Retry { channel, ..retry(ordinals, 0, due_at, course) }
        };
        let retries = entry.retries.iter();
        step.retries.extend(retries.map(|(due, ordinals)| retry(ordinals, item.attempts + 1, *due, again())));
        step.retries.extend(entry.onward.iter().map(|((place, due), ordinals)| onward(ordinals, *place, *due)));
        step.suspensions.extend(entry.suspended.iter().map(|(reason, ordinals)| Suspension {
            batch: item.batch,
            application: self.application.clone(),
            channel: self.channel.clone(),
            ordinals: sorted(ordinals),
            attempts: item.attempts + 1,
            reason: reason.clone(),
            since: self.flow.clock.now(),
            course: item.course.clone(),
        }));
        match &entry.fed {
            Some((_, left, due_at)) if entry.is_over() => {
                step.finished.push(item.claim);
                let course = || item.course.clone();
                if !left.is_empty() {
                    step.retries.push(retry(left, item.attempts, *due_at, course()));
                }
                // Only now: whoever takes the item over if this worker dies decides anew.
                let untried = entry.untried.iter();
                step.retries.extend(untried.map(|(due, ordinals)| retry(ordinals, item.attempts, *due, course())));
                let held = entry.held.iter();
                step.retries.extend(held.map(|(due, ordinals)| retry(ordinals, item.attempts, *due, again())));
                step.retries.extend(entry.gathered.iter().map(|(window, ordinals)| {
                    let course = Course { window: Some(*window), ..course() };
                    retry(ordinals, item.attempts, *window, course)
                }));
                let next = self.next_of(entry, &self.channel).map(|(place, _)| place);
                let passed = entry.passed.iter().flat_map(|(due, ordinals)| Some(onward(ordinals, next?, *due)));
                step.retries.extend(passed);
            }
            // A retry or suspension goes with the attempt that caused it: a crash now must not lose it.
            _ => step.held.push(item.claim),
        }
    }

    async fn extend(&self, in_flight: &BTreeMap<u64, InFlight>) {
        let now = self.flow.clock.now();
        for entry in in_flight.values().filter(|entry| !entry.given_back) {
            // A lost lease shows at the commit, which drops what is not ours any more.
            let _ = self.flow.journal.extend(entry.item.claim, self.lease, now).await;
        }
    }
}

/// Where attempts by the channel `used` gather for an item of `own`: by another one if its subscriber prefers that.
fn attempts_by<'a>(
    attempts: &'a mut Arc<Vec<Attempt>>,
    elsewhere: &'a mut BTreeMap<Name, Vec<Attempt>>,
    used: &Name,
    own: &Name,
) -> &'a mut Vec<Attempt> {
    match used == own {
        true => Arc::make_mut(attempts),
        false => elsewhere.entry(used.clone()).or_default(),
    }
}

/// What a far side said, no longer than anybody reads.
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

/// So that those of one item that are put off together are tried again together.
fn whole_second(time: Timestamp) -> Timestamp {
    Timestamp(time.0.div_euclid(1_000_000) * 1_000_000)
}
