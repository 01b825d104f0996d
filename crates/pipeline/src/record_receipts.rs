//! 4. Dispositions become receipts, retries, suspensions.
//!
//! In chunks, so that nothing durable is written once per notification.
//!
//! One recorder per channel gathers what its work items report and commits it together. What it has not yet committed
//! when the process dies is sent again, under the same id.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tocsin_delivery::Answer;
use tocsin_model::{
    application::RetrySchedule,
    id::{Name, NotificationBatchId, NotificationId, SubscriptionId},
    receipt::{Attempt, Disposition, Outcome, Reason, ReasonKind},
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    journal::{ReceiptChunk, Retry, Step, Suspension, WorkItem},
};
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc},
    time::Instant,
};

use crate::{
    Flow,
    disable_devices::{Disabler, Gone},
    lanes::{Lanes, Standing},
};

/// How long to wait before the same commit is tried again, at first and at most.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// What a work item's delivery tells its recorder, beside the answers of the channel.
pub(crate) enum Report {
    /// It was claimed, and its notifications will come under this key. Its lease is kept from now on.
    Begun { key: u64, item: WorkItem },
    /// When the event of each notification was accepted, and for whom it is, by ordinal. The permit covers those that are
    /// about to be sent.
    Read { key: u64, accepted: Vec<Timestamp>, subscriptions: Vec<SubscriptionId>, permit: OwnedSemaphorePermit },
    /// One that was not even sent: its attempt, and why.
    Unsent { key: u64, ordinal: u32, at: Timestamp, outcome: Outcome, reason: Reason },
    /// One that is not made yet, because its destination is better let be until then. It is no attempt.
    Held { key: u64, ordinal: u32, due_at: Timestamp },
    /// Nothing more will be sent. `left` are those that were not tried, to be tried from `due_at` on.
    Fed { key: u64, fed: usize, left: Vec<u32>, due_at: Timestamp },
    /// It goes back to the journal, by its release or with its lease. What is known of it is recorded all the same.
    GivenBack { key: u64 },
}

/// A work item in flight.
struct InFlight {
    item: WorkItem,
    /// When the event of each notification was accepted, by ordinal.
    accepted: Vec<Timestamp>,
    subscriptions: Vec<SubscriptionId>,
    answered: usize,
    /// Set once nothing more will be sent: how many were, what is left, and when that is due.
    fed: Option<(usize, Vec<u32>, Timestamp)>,
    /// Returned by their channel as they were, by the time when they are due again.
    untried: BTreeMap<Timestamp, Vec<u32>>,
    given_back: bool,
    /// For those that are not answered yet, so that one that is slow holds up no others.
    permit: Option<OwnedSemaphorePermit>,
    /// Attempts not yet committed.
    attempts: Vec<Attempt>,
    retries: BTreeMap<Timestamp, Vec<u32>>,
    suspended: BTreeMap<String, Vec<u32>>,
}

impl InFlight {
    fn is_over(&self) -> bool {
        self.fed.as_ref().is_some_and(|(fed, ..)| *fed == self.answered)
    }

    /// Counts one that is settled; its place is free for another.
    fn settle_one(&mut self) {
        self.answered += 1;
        if let Some(permit) = &mut self.permit {
            drop(permit.split(1));
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
    pub reports: mpsc::Receiver<Report>,
    pub answers: mpsc::Receiver<Answer>,
    pub disabler: Disabler,
}

impl Recorder {
    /// Records until every sender of reports and answers is gone and all is committed.
    pub async fn run(mut self) {
        let mut in_flight: BTreeMap<u64, InFlight> = BTreeMap::new();
        let mut unrecorded = 0;
        let mut flush_at: Option<Instant> = None;
        let mut extend_at = Instant::now() + self.lease / 3;
        let (mut reports_open, mut answers_open) = (true, true);
        while reports_open || answers_open {
            let flush = flush_at.unwrap_or(extend_at);
            tokio::select! {
                biased;
                report = self.reports.recv(), if reports_open => match report {
                    Some(report) => unrecorded += self.take_report(&mut in_flight, report),
                    None => reports_open = false,
                },
                answer = self.answers.recv(), if answers_open => match answer {
                    Some(answer) => {
                        // A message is handed over after its item was reported, but while this task looked from one
                        // queue to the other both may have come.
                        while let Ok(report) = self.reports.try_recv() {
                            unrecorded += self.take_report(&mut in_flight, report);
                        }
                        self.note_gone(&in_flight, &answer);
                        unrecorded += self.take_answer(&mut in_flight, answer);
                    }
                    None => answers_open = false,
                },
                () = tokio::time::sleep_until(flush.min(extend_at)) => {}
            }
            let now = Instant::now();
            if unrecorded > 0 && flush_at.is_none() {
                flush_at = Some(now + self.flow.options.receipts_delay());
            }
            if unrecorded >= self.flow.options.receipts_chunk || flush_at.is_some_and(|at| at <= now) {
                self.commit(&mut in_flight).await;
                self.disabler.work(&self.flow);
                (unrecorded, flush_at) = (0, None);
            }
            if extend_at <= now {
                self.extend(&in_flight).await;
                extend_at = Instant::now() + self.lease / 3;
            }
        }
        self.commit(&mut in_flight).await;
        self.disabler.finish(&self.flow).await;
    }

    fn note_gone(&mut self, in_flight: &BTreeMap<u64, InFlight>, answer: &Answer) {
        let entry = in_flight.get(&answer.ticket.key);
        let subscription = entry.and_then(|entry| entry.subscriptions.get(answer.ticket.ordinal as usize));
        if let (Some(address), Some(subscription), Disposition::Refused { reason }) =
            (&answer.gone, subscription, &answer.disposition)
        {
            let (subscription, address, reason) = (*subscription, address.clone(), reason.text.clone());
            self.disabler.note(Gone { subscription, address, reason });
        }
    }

    /// Gives the number of things that are now to be recorded.
    fn take_report(&self, in_flight: &mut BTreeMap<u64, InFlight>, report: Report) -> usize {
        match report {
            Report::Begun { key, item } => {
                let begun = InFlight {
                    item,
                    accepted: Vec::new(),
                    subscriptions: Vec::new(),
                    answered: 0,
                    fed: None,
                    untried: BTreeMap::new(),
                    given_back: false,
                    permit: None,
                    attempts: Vec::new(),
                    retries: BTreeMap::new(),
                    suspended: BTreeMap::new(),
                };
                in_flight.insert(key, begun);
                0
            }
            Report::Read { key, accepted, subscriptions, permit } => {
                if let Some(entry) = in_flight.get_mut(&key) {
                    (entry.accepted, entry.subscriptions, entry.permit) = (accepted, subscriptions, Some(permit));
                }
                0
            }
            Report::Unsent { key, ordinal, at, outcome, reason } => {
                let Some(entry) = in_flight.get_mut(&key) else { return 0 };
                let number = entry.item.attempts + 1;
                entry.settle_one();
                if outcome == Outcome::Suspended {
                    entry.suspended.entry(reason.text.clone()).or_default().push(ordinal);
                }
                metrics::counter!("deliver_unsent_total", "outcome" => outcome.word()).increment(1);
                entry.attempts.push(Attempt {
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
            Report::Held { key, ordinal, due_at } => {
                let Some(entry) = in_flight.get_mut(&key) else { return 0 };
                entry.settle_one();
                let due_at = in_whole_seconds(due_at);
                entry.untried.entry(due_at).or_default().push(ordinal);
                self.put_off(entry.item.batch, ordinal, due_at);
                1
            }
            Report::Fed { key, fed, left, due_at } => {
                let Some(entry) = in_flight.get_mut(&key) else { return 0 };
                entry.fed = Some((fed, left, due_at));
                1
            }
            Report::GivenBack { key } => {
                let Some(entry) = in_flight.get_mut(&key) else { return 0 };
                self.lanes.returned(entry.item.batch);
                if entry.attempts.is_empty() {
                    in_flight.remove(&key);
                } else {
                    entry.given_back = true;
                }
                0
            }
        }
    }

    fn take_answer(&self, in_flight: &mut BTreeMap<u64, InFlight>, answer: Answer) -> usize {
        let ordinal = answer.ticket.ordinal;
        let Some(entry) = in_flight.get_mut(&answer.ticket.key) else {
            return 0;
        };
        entry.settle_one();
        let number = entry.item.attempts + 1;
        let (outcome, reply) = match answer.disposition {
            Disposition::Delivered { reply } => {
                self.flow.latencies.deliver.record(answer.answered_at.since(answer.sent_at));
                if let Some(accepted_at) = entry.accepted.get(ordinal as usize) {
                    self.flow.latencies.end_to_end.record(answer.answered_at.since(*accepted_at));
                }
                (Outcome::Delivered, reply)
            }
            Disposition::Refused { reason } if reason.kind == ReasonKind::Expired => (Outcome::Expired, reason.text),
            Disposition::Refused { reason } => (Outcome::Refused, reason.text),
            Disposition::Deferred { reason, retry_after } if reason.kind == ReasonKind::Untried => {
                let due_at = match retry_after {
                    Some(wait) => in_whole_seconds(answer.answered_at + wait),
                    None => entry.item.due_at,
                };
                entry.untried.entry(due_at).or_default().push(ordinal);
                self.put_off(entry.item.batch, ordinal, due_at);
                return 1;
            }
            Disposition::Deferred { reason, retry_after } => {
                match self.retry.delay_after(number, retry_after, self.flow.luck()) {
                    Some(delay) => {
                        entry.retries.entry(in_whole_seconds(answer.answered_at + delay)).or_default().push(ordinal);
                        (Outcome::Deferred, reason.text)
                    }
                    None => {
                        let text = match number {
                            1 => format!("the only attempt failed: {}", reason.text),
                            _ => format!("all {number} attempts failed, the last with: {}", reason.text),
                        };
                        let reason = Reason::new(ReasonKind::AttemptsExhausted, text);
                        entry.suspended.entry(reason.text.clone()).or_default().push(ordinal);
                        (Outcome::Suspended, reason.text)
                    }
                }
            }
        };
        metrics::counter!("deliver_outcomes_total", "outcome" => outcome.word()).increment(1);
        entry.attempts.push(Attempt {
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

    /// Commits all that is not yet committed, trying until the store takes it.
    async fn commit(&self, in_flight: &mut BTreeMap<u64, InFlight>) {
        let mut pause = PAUSE_MIN;
        loop {
            let touched: Vec<u64> = in_flight
                .iter()
                .filter(|(_, entry)| !entry.attempts.is_empty() || entry.is_over())
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
                            in_flight.remove(&key);
                        } else if let Some(entry) = in_flight.get_mut(&key) {
                            entry.attempts.clear();
                            entry.retries.clear();
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
        let settled = entry.attempts.iter().filter(is_settled).map(|attempt| (id(&attempt.ordinal), None));
        let over = entry.fed.as_ref().filter(|_| entry.is_over());
        let left = over.into_iter().map(|(_, left, due_at)| (due_at, left));
        let later = entry.retries.iter().chain(left);
        let later = later
            .flat_map(|(due, ordinals)| ordinals.iter().map(move |ordinal| (id(ordinal), Some(Standing::Later(*due)))));
        self.lanes.settle(settled.chain(later));
    }

    fn append(&self, step: &mut Step, entry: &InFlight) {
        let item = &entry.item;
        if !entry.attempts.is_empty() {
            step.receipts.push(ReceiptChunk { batch: item.batch, attempts: entry.attempts.clone() });
        }
        let retry = |ordinals: &[u32], attempts: u32, due_at: Timestamp| Retry {
            batch: item.batch,
            application: self.application.clone(),
            channel: self.channel.clone(),
            ordinals: sorted(ordinals),
            attempts,
            due_at,
        };
        step.retries.extend(entry.retries.iter().map(|(due, ordinals)| retry(ordinals, item.attempts + 1, *due)));
        step.suspensions.extend(entry.suspended.iter().map(|(reason, ordinals)| Suspension {
            batch: item.batch,
            application: self.application.clone(),
            channel: self.channel.clone(),
            ordinals: sorted(ordinals),
            attempts: item.attempts + 1,
            reason: reason.clone(),
            since: self.flow.clock.now(),
        }));
        match &entry.fed {
            Some((_, left, due_at)) if entry.is_over() => {
                step.finished.push(item.claim);
                if !left.is_empty() {
                    step.retries.push(retry(left, item.attempts, *due_at));
                }
                step.retries.extend(entry.untried.iter().map(|(due, ordinals)| retry(ordinals, item.attempts, *due)));
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

/// So that those of one item that are put off together are tried again together.
fn in_whole_seconds(due: Timestamp) -> Timestamp {
    Timestamp(due.0.div_euclid(1_000_000) * 1_000_000)
}

fn sorted(ordinals: &[u32]) -> Vec<u32> {
    let mut sorted = ordinals.to_vec();
    sorted.sort_unstable();
    sorted
}
