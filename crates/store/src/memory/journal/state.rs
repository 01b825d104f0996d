//! Data of the in-memory journal, and the changes that a step makes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use bytes::Bytes;
use tocsin_model::{
    event::EventBatch,
    id::{ChangeSequence, EventBatchId, Name, NotificationBatchId, SubscriberNumber, WorkItemId},
    mail_provider::ProviderDay,
    notification::{NotificationHead, Notifications},
    receipt::Attempt,
    time::Timestamp,
};

use crate::{
    error::StoreError,
    journal::{
        APPLICATION_REMOVED, Activity, Backlog, Broadcast, BroadcastTotals, CancelDelayed, Claim, Cutoffs, Delayed,
        EndedWork, Erasure, EventBatchState, Firing, FiringStatus, Idempotency, Mark, NewDelayed, NewEventBatch,
        NewFiring, NewNotificationBatch, Progress, Quantum, QuantumInput, ReceiptChunk, RefiredBatch,
        ReopenedNotifications, Resend, ResendProgress, Retry, RuleStop, ScheduleKey, ScheduleRun, SourceKey, Step,
        Stream, Suspension, SuspensionFilter, Switch, Totals, WorkItem, WorkState,
        activity::{BatchProgress, MinuteSums, ProgressUpdate},
        ended_attempt, split_suspension,
    },
};

/// Mails of a channel by provider and day.
type ProviderDays = BTreeMap<(Box<str>, u32), ProviderDay>;

#[derive(Default)]
pub(super) struct State {
    pub(super) event_batches: BTreeMap<u64, Events>,
    pub(super) keys: HashMap<[u8; 16], (Idempotency, EventBatchId)>,
    pub(super) notification_batches: BTreeMap<u64, Batch>,
    pub(super) work: BTreeMap<u64, Item>,
    pub(super) suspensions: BTreeMap<u64, Suspension>,
    pub(super) firings: BTreeMap<u64, (Firing, Option<EventBatchId>)>,
    pub(super) stops: BTreeMap<(Name, Name), RuleStop>,
    pub(super) states: BTreeMap<(Name, Box<str>, u64), Bytes>,
    pub(super) runs: BTreeMap<(Name, ScheduleKey), ScheduleRun>,
    /// By application and channel.
    pub(super) provider_days: BTreeMap<(Name, Name), ProviderDays>,
    pub(super) delayed: BTreeMap<u64, Delayed>,
    pub(super) erasures: BTreeMap<SubscriberNumber, Erasure>,
    pub(super) marks: BTreeMap<(SourceKey, Box<str>), Bytes>,
    /// Resend requests with their keys.
    pub(super) resends: BTreeMap<u64, (String, Resend)>,
    pub(super) broadcasts: BTreeMap<u64, StoredBroadcast>,
    pub(super) activity: BTreeMap<(Stream, Timestamp), Activity>,
    pub(super) quanta: BTreeMap<u64, Quantum>,
    pub(super) switches: BTreeMap<String, Switch>,
    pub(super) event_claims: BTreeMap<u64, Lease>,
    pub(super) work_claims: BTreeMap<u64, Lease>,
    pub(super) last: Last,
    pub(super) totals: Totals,
}

/// Expired batch: its application and class, closing time and number.
pub(super) type ExpiredBatch = ((Name, Name), Timestamp, u64);

/// Last assigned numbers.
#[derive(Default)]
pub(super) struct Last {
    pub(super) event_batch: u64,
    pub(super) notification_batch: u64,
    pub(super) work: u64,
    pub(super) suspension: u64,
    pub(super) firing: u64,
    pub(super) resend: u64,
    pub(super) broadcast: u64,
    pub(super) quantum: u64,
    pub(super) delayed: u64,
    pub(super) token: u64,
    pub(super) snapshot_sequence: ChangeSequence,
}

pub(super) struct Events {
    pub(super) batch: EventBatch,
    pub(super) state: EventBatchState,
    /// Open notification batches made from it.
    pub(super) open: u64,
    pub(super) closed_at: Option<Timestamp>,
}

pub(super) struct Batch {
    pub(super) head: NotificationHead,
    pub(super) count: u32,
    pub(super) packed: Bytes,
    pub(super) events: Vec<EventBatchId>,
    pub(super) run: Option<EventBatchId>,
    pub(super) attempts: Vec<Attempt>,
    pub(super) progress: Progress,
}

pub(super) struct Item {
    pub(super) batch: NotificationBatchId,
    pub(super) application: Name,
    pub(super) channel: Name,
    pub(super) ordinals: Option<Vec<u32>>,
    pub(super) count: u32,
    pub(super) done: BTreeSet<u32>,
    pub(super) attempts: u32,
    pub(super) due_at: Timestamp,
    pub(super) work_state: WorkState,
}

/// A broadcast with its key, and the counts of its deleted notification batches.
pub(super) struct StoredBroadcast {
    pub(super) key: String,
    pub(super) broadcast: Broadcast,
    pub(super) deleted: BroadcastTotals,
}

#[derive(Clone, Copy)]
pub(super) struct Lease {
    pub(super) token: u64,
    pub(super) until: Timestamp,
    pub(super) claimed_at: Timestamp,
}

impl Batch {
    /// Adds attempts to the progress. Returns whether they close the batch.
    fn advance(&mut self, advance: &ProgressUpdate) -> bool {
        let progress = &mut self.progress;
        let was_open = progress.closed_at.is_none();
        if was_open {
            progress.open = progress.open.saturating_sub(advance.closing);
        }
        progress.attempts += advance.attempts;
        progress.delivered += advance.delivered;
        progress.failed += advance.failed;
        let first = progress.first_sent_at.map_or(advance.first_sent_at, |first| first.min(advance.first_sent_at));
        progress.first_sent_at = Some(first);
        progress.last_answered_at = progress.last_answered_at.max(Some(advance.last_answered_at));
        was_open && progress.open == 0 && advance.closing > 0
    }
}

impl Item {
    pub(super) fn contains(&self, ordinal: u32) -> bool {
        match &self.ordinals {
            Some(ordinals) => ordinals.binary_search(&ordinal).is_ok(),
            None => ordinal < self.count,
        }
    }

    pub(super) fn open(&self) -> u64 {
        u64::from(self.count) - self.done.len() as u64
    }

    /// Work item as a claim returns it.
    pub(super) fn to_work_item(&self, id: u64, token: u64) -> WorkItem {
        let ordinals = if self.done.is_empty() {
            self.ordinals.clone()
        } else {
            let all = self.ordinals.clone().unwrap_or_else(|| (0..self.count).collect());
            Some(all.into_iter().filter(|ordinal| !self.done.contains(ordinal)).collect())
        };
        WorkItem {
            claim: Claim { id: WorkItemId(id), token },
            batch: self.batch,
            ordinals,
            attempts: self.attempts,
            due_at: self.due_at,
            work_state: self.work_state.clone(),
        }
    }
}

impl State {
    pub(super) fn waiting(&self) -> impl Iterator<Item = (u64, &EventBatch)> {
        let waiting = |events: &&Events| events.state == EventBatchState::Accepted;
        self.event_batches.values().filter(waiting).map(|events| (events.batch.id.0, &events.batch))
    }

    pub(super) fn backlog(&self) -> Backlog {
        let mut backlog = Backlog::default();
        for (_, batch) in self.waiting() {
            backlog.event_batches += 1;
            backlog.events += u64::from(batch.events.count());
            backlog.event_bytes += batch.events.bytes().len() as u64;
            backlog.oldest_event.get_or_insert(batch.accepted_at);
        }
        let failed = |events: &&Events| matches!(events.state, EventBatchState::Failed(_));
        backlog.failed_batches = self.event_batches.values().filter(failed).count() as u64;
        backlog.notifications = self.work.values().map(Item::open).sum();
        backlog.work_items = self.work.len() as u64;
        backlog.suspended = self.suspensions.values().map(|suspension| suspension.ordinals.len() as u64).sum();
        backlog
    }

    pub(super) fn claim(&mut self, now: Timestamp, lease: Duration) -> Lease {
        self.last.token += 1;
        Lease { token: self.last.token, until: now + lease, claimed_at: now }
    }

    pub(super) fn claim_item(&mut self, id: u64, lease: Duration, now: Timestamp) -> WorkItem {
        let held = self.claim(now, lease);
        self.work_claims.insert(id, held);
        self.work[&id].to_work_item(id, held.token)
    }

    /// Checks all claims of a step. Returns the time of the latest claim.
    pub(super) fn check_claims(&self, step: &Step) -> Result<Timestamp, StoreError> {
        let mut claimed_at = Timestamp(i64::MIN);
        for claim in step.matched.iter().chain(step.failed.iter().map(|(claim, _)| claim)) {
            claimed_at = claimed_at.max(check(&self.event_claims, claim.id.0, claim.token, claim.id)?.claimed_at);
        }
        for claim in step.finished.iter().chain(&step.held) {
            claimed_at = claimed_at.max(check(&self.work_claims, claim.id.0, claim.token, claim.id)?.claimed_at);
        }
        Ok(claimed_at)
    }

    pub(super) fn mark(&mut self, source: &SourceKey, marks: Vec<Mark>) {
        for Mark { part, value } in marks {
            match value {
                Some(value) => drop(self.marks.insert((source.clone(), part), value)),
                None => drop(self.marks.remove(&(source.clone(), part))),
            }
        }
    }

    pub(super) fn add_events(&mut self, new: NewEventBatch) -> EventBatchId {
        self.mark(&(new.application.clone(), new.source.clone()), new.marks);
        self.last.event_batch += 1;
        self.last.snapshot_sequence = self.last.snapshot_sequence.max(new.snapshot_sequence);
        let id = EventBatchId(self.last.event_batch);
        self.totals.event_batches += 1;
        self.totals.events += u64::from(new.events.count());
        let stream = Stream::Events {
            application: new.application.clone(),
            class: new.class.clone(),
            source: new.source.clone(),
        };
        let mut sums = MinuteSums::default();
        let bytes = new.events.bytes().len() as u64;
        sums.add_accepted(&stream, new.received_at, new.accepted_at, new.events.count(), bytes);
        self.sum_up(sums);
        let batch = EventBatch {
            id,
            application: new.application,
            version: new.version,
            class: new.class,
            source: new.source,
            received_at: new.received_at,
            accepted_at: new.accepted_at,
            snapshot_sequence: Some(self.last.snapshot_sequence),
            events: new.events,
            chronicled: Bytes::new(),
        };
        self.event_batches.insert(id.0, Events { batch, state: EventBatchState::Accepted, open: 0, closed_at: None });
        id
    }

    pub(super) fn add_batch(
        &mut self,
        new: NewNotificationBatch,
        time: Timestamp,
    ) -> Result<NotificationBatchId, StoreError> {
        let events = Notifications::event_batches(&new.packed)?;
        self.last.notification_batch += 1;
        let id = NotificationBatchId(self.last.notification_batch);
        self.totals.notification_batches += 1;
        self.totals.notifications += u64::from(new.count);
        if new.count > 0 {
            for event in &events {
                if let Some(event) = self.event_batches.get_mut(&event.0) {
                    event.open += 1;
                    event.closed_at = None;
                }
            }
            match new.suspended {
                Some(reason) => self.add_suspension(Suspension {
                    batch: id,
                    application: new.head.application.clone(),
                    channel: new.head.channel.clone(),
                    ordinals: (0..new.count).collect(),
                    attempts: 0,
                    reason,
                    since: new.head.matched_at,
                    work_state: WorkState { priority: new.priority, ..WorkState::default() },
                }),
                None => self.add_work(Item {
                    batch: id,
                    application: new.head.application.clone(),
                    channel: new.head.channel.clone(),
                    ordinals: None,
                    count: new.count,
                    done: BTreeSet::new(),
                    attempts: 0,
                    due_at: new.head.matched_at,
                    work_state: WorkState { priority: new.priority, ..WorkState::default() },
                }),
            }
        }
        let mut sums = MinuteSums::default();
        sums.add_notifications(&Stream::of_head(&new.head), &new.head, new.count);
        self.sum_up(sums);
        let closed_at = (new.count == 0).then_some(time);
        let batch = Batch {
            head: new.head,
            count: new.count,
            packed: new.packed,
            events,
            run: new.run,
            attempts: Vec::new(),
            progress: Progress { open: new.count, closed_at, ..Progress::default() },
        };
        self.notification_batches.insert(id.0, batch);
        Ok(id)
    }

    pub(super) fn add_work(&mut self, item: Item) {
        self.last.work += 1;
        self.work.insert(self.last.work, item);
    }

    pub(super) fn add_retry(&mut self, retry: Retry) {
        self.add_work(Item {
            batch: retry.batch,
            application: retry.application,
            channel: retry.channel,
            count: retry.ordinals.len() as u32,
            ordinals: Some(retry.ordinals),
            done: BTreeSet::new(),
            attempts: retry.attempts,
            due_at: retry.due_at,
            work_state: retry.work_state,
        });
    }

    pub(super) fn add_firing(&mut self, new: NewFiring) {
        let newest = self.firings.values_mut().rev().find(|(firing, run)| {
            (&firing.application, &firing.rule, *run) == (&new.application, &new.rule, new.run) && run.is_some()
        });
        if let Some((firing, _)) = newest {
            firing.last = new.batch;
            firing.batches += 1;
            return;
        }
        self.last.firing += 1;
        let firing = Firing {
            id: self.last.firing,
            application: new.application,
            rule: new.rule,
            status: new.status,
            reason: new.reason,
            first: new.batch,
            last: new.batch,
            batches: 1,
            since: new.at,
        };
        self.firings.insert(firing.id, (firing, new.run));
    }

    pub(super) fn refire(&mut self, refired: RefiredBatch) {
        let Some((firing, _)) = self.firings.get_mut(&refired.id) else { return };
        firing.batches = firing.batches.saturating_sub(1);
        firing.first = EventBatchId(refired.batch.0 + 1);
        if refired.batch >= firing.last || firing.batches == 0 {
            self.firings.remove(&refired.id);
        }
    }

    pub(super) fn stop(&mut self, stop: RuleStop) {
        self.stops.entry((stop.application.clone(), stop.rule.clone())).or_insert(stop);
    }

    pub(super) fn add_suspension(&mut self, suspension: Suspension) {
        self.last.suspension += 1;
        self.suspensions.insert(self.last.suspension, suspension);
    }

    pub(super) fn record(&mut self, chunk: ReceiptChunk, time: Timestamp) {
        for attempt in chunk.attempts.iter() {
            self.totals.attempts[attempt.outcome as usize] += 1;
        }
        let Some(advance) = ProgressUpdate::of(&chunk.attempts) else { return };
        let Some(batch) = self.notification_batches.get_mut(&chunk.batch.0) else { return };
        let is_first = batch.progress.attempts == 0;
        let closes = batch.advance(&advance);
        let (first, last) = (batch.progress.first_sent_at, batch.progress.last_answered_at);
        let progress = BatchProgress {
            matched_at: batch.head.matched_at,
            accepted_at: batch.head.accepted_at,
            is_first,
            closed: first.zip(last).filter(|_| closes),
        };
        let of = Stream::of_head(&batch.head);
        let by = Stream::of_head(&NotificationHead { channel: chunk.channel, ..batch.head.clone() });
        let mut sums = MinuteSums::default();
        sums.add_attempts(&by, &of, &progress, &chunk.attempts);
        batch.attempts.extend(chunk.attempts.iter().cloned());
        self.sum_up(sums);
        if closes {
            self.close(chunk.batch, time);
        }
    }

    fn close(&mut self, id: NotificationBatchId, time: Timestamp) {
        let Some(batch) = self.notification_batches.get_mut(&id.0) else { return };
        batch.progress.closed_at = Some(time);
        for event in &batch.events {
            let Some(event) = self.event_batches.get_mut(&event.0) else { continue };
            event.open = event.open.saturating_sub(1);
            if event.open == 0 && matches!(event.state, EventBatchState::Matched(_)) {
                event.closed_at = Some(time);
            }
        }
    }

    fn sum_up(&mut self, sums: MinuteSums<Stream>) {
        for (key, activity) in sums.into_entries() {
            self.activity.entry(key).or_default().add(&activity);
        }
    }

    /// Counts matched batches and firings, and stores the quantum.
    pub(super) fn record_matching(&mut self, step: &Step, first_batch: Option<NotificationBatchId>) {
        let mut sums = MinuteSums::default();
        for firing in &step.firings {
            let stream = Stream::Firings { application: firing.application.clone(), rule: firing.rule.clone() };
            sums.add_missed_firing(&stream, firing.status == FiringStatus::Failed, firing.at);
        }
        if let Some(quantum) = &step.quantum {
            for QuantumInput { id, application, class, source, accepted_at, .. } in &quantum.batches {
                let (application, class, source) = (application.clone(), class.clone(), source.clone());
                let has_failed = step.failed.iter().any(|(claim, _)| claim.id == *id);
                sums.add_matched(&Stream::Events { application, class, source }, quantum, *accepted_at, has_failed);
            }
        }
        self.sum_up(sums);
        if let Some(quantum) = Quantum::of(self.last.quantum + 1, step, first_batch) {
            self.last.quantum = quantum.id;
            self.quanta.insert(quantum.id, quantum);
        }
    }

    /// Checks the expected progress of a request, and that the batches it reopens exist.
    pub(super) fn check_resent(&self, resent: &ResendProgress) -> Result<(), StoreError> {
        let found = self.resends.get(&resent.id).map(|(_, found)| found);
        if found.is_none_or(|found| found.reached != resent.from || found.done_at.is_some()) {
            return Err(StoreError::Fenced(format!("the resend request {}", resent.id)));
        }
        match resent.reopened.iter().find(|reopened| !self.notification_batches.contains_key(&reopened.batch.0)) {
            Some(reopened) => Err(StoreError::Missing(reopened.batch.to_string())),
            None => Ok(()),
        }
    }

    pub(super) fn advance(&mut self, resent: ResendProgress) {
        let mut count = resent.reopens();
        for ReopenedNotifications { batch, ordinals, failed } in &resent.reopened {
            let Some(batch) = self.notification_batches.get_mut(&batch.0) else { continue };
            batch.progress.open += ordinals.len() as u32;
            batch.progress.failed = batch.progress.failed.saturating_sub(*failed);
            if batch.progress.closed_at.take().is_some() {
                for event in &batch.events {
                    let Some(event) = self.event_batches.get_mut(&event.0) else { continue };
                    event.open += 1;
                    event.closed_at = None;
                }
            }
        }
        for (batch, ordinals) in &resent.resumed {
            let of_batch = self.suspensions.iter().filter(|(_, found)| found.batch == *batch).map(|(id, _)| *id);
            for id in of_batch.collect::<Vec<_>>() {
                let Some(mut suspension) = self.suspensions.remove(&id) else { continue };
                let selected = match split_suspension(&mut suspension, ordinals) {
                    None => {
                        self.suspensions.insert(id, suspension);
                        continue;
                    }
                    Some(None) => suspension,
                    Some(Some(cut)) => {
                        self.suspensions.insert(id, suspension);
                        cut
                    }
                };
                count += selected.ordinals.len() as u64;
                self.add_retry(Retry {
                    batch: selected.batch,
                    application: selected.application,
                    channel: selected.channel,
                    ordinals: selected.ordinals,
                    attempts: 0,
                    due_at: resent.now,
                    work_state: WorkState { since: None, ..selected.work_state },
                });
            }
        }
        if let Some((_, request)) = self.resends.get_mut(&resent.id) {
            (request.reached, request.done_at) = (resent.reached, resent.done_at);
            request.notifications += count;
        }
    }

    /// Ends the open work of a removed application.
    pub(super) fn end_application(&mut self, application: &Name, now: Timestamp) -> EndedWork {
        let mut ended = EndedWork::default();
        let of_application = self.work.iter().filter(|(_, item)| item.application == *application);
        let ids: Vec<u64> = of_application.map(|(id, _)| *id).collect();
        for id in ids {
            self.work_claims.remove(&id);
            let Some(item) = self.work.remove(&id) else { continue };
            let all = item.ordinals.clone().unwrap_or_else(|| (0..item.count).collect());
            let open = all.into_iter().filter(|ordinal| !item.done.contains(ordinal)).collect();
            ended.notifications += self.end(item.batch, item.channel, item.attempts, open, now);
        }
        let filter = SuspensionFilter { application: Some(application.clone()), ..SuspensionFilter::default() };
        let ids: Vec<u64> = self.matching(&filter).map(|(id, _)| id).collect();
        for id in ids {
            let Some(Suspension { batch, channel, attempts, ordinals, .. }) = self.suspensions.remove(&id) else {
                continue;
            };
            ended.notifications += self.end(batch, channel, attempts, ordinals, now);
        }
        self.end_delayed(|delayed| delayed.application == *application, usize::MAX, now);
        for (id, events) in &mut self.event_batches {
            if events.batch.application == *application && !matches!(events.state, EventBatchState::Matched(_)) {
                self.event_claims.remove(id);
                events.state = EventBatchState::Matched(now);
                events.closed_at = (events.open == 0).then_some(now);
                ended.event_batches += 1;
            }
        }
        self.end_broadcasts(application, APPLICATION_REMOVED, now);
        ended
    }

    /// Gives notifications of a removed application their closing attempt. Returns their number.
    fn end(&mut self, batch: NotificationBatchId, channel: Name, number: u32, open: Vec<u32>, now: Timestamp) -> u64 {
        let closing = |ordinal| ended_attempt(number, ordinal, APPLICATION_REMOVED, now);
        let attempts: Vec<Attempt> = open.into_iter().map(closing).collect();
        let count = attempts.len() as u64;
        self.record(ReceiptChunk { batch, channel, attempts: attempts.into() }, now);
        count
    }

    /// Stores the delays of a step.
    pub(super) fn store_delays(
        &mut self,
        (new, cancelled, released): (Vec<NewDelayed>, Vec<CancelDelayed>, Vec<EventBatchId>),
        time: Timestamp,
    ) {
        for NewDelayed { application, rule, event, subscription, due_at, key } in new {
            let is_known = self.delayed.values().any(|known| {
                (&known.application, &known.rule, known.event, known.subscription)
                    == (&application, &rule, event, subscription)
            });
            if is_known {
                continue;
            }
            self.last.delayed += 1;
            let id = self.last.delayed;
            if let Some(events) = self.event_batches.get_mut(&event.batch.0) {
                events.open += 1;
                events.closed_at = None;
            }
            self.delayed.insert(id, Delayed { id, application, rule, event, subscription, due_at, key, run: None });
        }
        for cancel in cancelled {
            self.end_delayed(|delayed| cancel.cancels(delayed), usize::MAX, time);
        }
        self.end_delayed(|delayed| delayed.run.is_some_and(|run| released.contains(&run)), usize::MAX, time);
    }

    /// Removes delayed notifications. Returns their number.
    pub(super) fn end_delayed(&mut self, ends: impl Fn(&Delayed) -> bool, limit: usize, time: Timestamp) -> usize {
        let ids: Vec<u64> = self.delayed.values().filter(|delayed| ends(delayed)).map(|delayed| delayed.id).collect();
        let ids = &ids[..ids.len().min(limit)];
        for id in ids {
            let Some(delayed) = self.delayed.remove(id) else { continue };
            let Some(events) = self.event_batches.get_mut(&delayed.event.batch.0) else { continue };
            events.open = events.open.saturating_sub(1);
            if events.open == 0 && matches!(events.state, EventBatchState::Matched(_)) {
                events.closed_at = Some(time);
            }
        }
        ids.len()
    }

    pub(super) fn mark_progress(&mut self, held: &[Claim<WorkItemId>], receipts: &[ReceiptChunk]) {
        for claim in held {
            let Some(item) = self.work.get_mut(&claim.id.0) else { continue };
            for attempt in receipts.iter().filter(|chunk| chunk.batch == item.batch).flat_map(|chunk| &*chunk.attempts)
            {
                if attempt.number > item.attempts && item.contains(attempt.ordinal) {
                    item.done.insert(attempt.ordinal);
                }
            }
        }
    }

    pub(super) fn matching(&self, filter: &SuspensionFilter) -> impl Iterator<Item = (u64, &Suspension)> {
        self.suspensions.iter().map(|(id, suspension)| (*id, suspension)).filter(|(id, suspension)| {
            filter.id.is_none_or(|requested| requested == *id)
                && filter.application.as_ref().is_none_or(|requested| *requested == suspension.application)
                && filter.channel.as_ref().is_none_or(|requested| *requested == suspension.channel)
                && filter.batch.is_none_or(|requested| requested == suspension.batch)
                && filter.before.is_none_or(|before| suspension.since < before)
                && filter.reason.as_ref().is_none_or(|requested| {
                    suspension.reason.to_ascii_lowercase().contains(&requested.to_ascii_lowercase())
                })
                && filter.class.as_ref().is_none_or(|requested| {
                    self.notification_batches
                        .get(&suspension.batch.0)
                        .is_some_and(|batch| batch.head.class == *requested)
                })
        })
    }
}

pub(super) fn is_free(claims: &BTreeMap<u64, Lease>, id: u64, now: Timestamp) -> bool {
    claims.get(&id).is_none_or(|held| held.until <= now)
}

pub(super) fn check(
    claims: &BTreeMap<u64, Lease>,
    id: u64,
    token: u64,
    what: impl ToString,
) -> Result<Lease, StoreError> {
    claims.get(&id).filter(|held| held.token == token).copied().ok_or_else(|| StoreError::Fenced(what.to_string()))
}

/// Notification batches and event batches past their retention.
pub(super) fn expired(state: &State, cutoffs: &Cutoffs) -> (Vec<ExpiredBatch>, Vec<ExpiredBatch>) {
    let mut batches: Vec<ExpiredBatch> = Vec::new();
    for (id, batch) in &state.notification_batches {
        let lane = (batch.head.application.clone(), batch.head.class.clone());
        let before = cutoffs.of_notifications(lane.0.clone(), lane.1.clone());
        batches.extend(batch.progress.closed_at.filter(|at| *at < before).map(|at| (lane, at, *id)));
    }
    let mut events: Vec<ExpiredBatch> = Vec::new();
    for (id, found) in &state.event_batches {
        let lane = (found.batch.application.clone(), found.batch.class.clone());
        let before = cutoffs.of_events(lane.0.clone(), lane.1.clone());
        events.extend(found.closed_at.filter(|at| *at < before).map(|at| (lane, at, *id)));
    }
    (batches, events)
}
