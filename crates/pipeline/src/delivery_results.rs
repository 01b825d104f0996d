//! Results of a work item that are not committed yet, and the step that commits them.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tocsin_delivery::redact::TEXT_CHARACTERS_MAX;
use tocsin_model::{
    delivery_policy::DeliveryPolicy,
    id::{Name, NotificationId},
    receipt::{Attempt, Outcome},
    time::Timestamp,
};
use tocsin_store::journal::{ReceiptChunk, Retry, Step, Suspension, WorkItem, WorkState};

use crate::lanes::LaneStatus;

/// Ordinals of notifications by the time when they are due again.
pub(crate) type ByDueTime = BTreeMap<Timestamp, Vec<u32>>;

/// Attempts, with the retries and suspensions that follow from them. They are committed together, so that a crash
/// cannot lose a retry.
#[derive(Default)]
pub(crate) struct AttemptResults {
    /// Attempts of the item's channel.
    pub attempts: Arc<Vec<Attempt>>,
    /// Attempts by channels that subscribers prefer.
    pub other_channels: BTreeMap<Name, Vec<Attempt>>,
    pub retries: ByDueTime,
    /// Notifications that continue with another channel, by its index in the fallback chain.
    pub fallbacks: BTreeMap<(usize, Timestamp), Vec<u32>>,
    pub suspended: BTreeMap<String, Vec<u32>>,
}

impl AttemptResults {
    pub fn is_empty(&self) -> bool {
        self.attempts.is_empty() && self.other_channels.is_empty()
    }

    /// The attempts through channel `used`, of an item of channel `own`.
    pub fn attempts_of(&mut self, used: &Name, own: &Name) -> &mut Vec<Attempt> {
        match used == own {
            true => Arc::make_mut(&mut self.attempts),
            false => self.other_channels.entry(used.clone()).or_default(),
        }
    }
}

/// Notifications without an attempt. They are committed when the item is complete: if this worker ends before, the
/// worker that claims the item decides again.
#[derive(Default)]
pub(crate) struct Deferrals {
    /// Not dispatched, and due again at this time.
    pub left: Vec<u32>,
    pub left_due_at: Timestamp,
    /// Not tried, or returned by their channel unchanged.
    pub untried: ByDueTime,
    /// Not tried because their destination is paused.
    pub held: ByDueTime,
    /// Not tried because they wait for a digest, by the end of its window.
    pub in_window: ByDueTime,
    /// Passed to the next channel of the chain, by the time from which it tries.
    pub passed: ByDueTime,
}

/// Uncommitted results of one item. The recorder owns them until the journal has stored them.
pub(crate) struct UncommittedResults {
    pub application: Name,
    pub channel: Name,
    pub item: Arc<WorkItem>,
    pub delivery_policy: Arc<DeliveryPolicy>,
    pub results: AttemptResults,
    /// Set if every notification has its disposition: the item is finished.
    pub deferrals: Option<Deferrals>,
}

impl UncommittedResults {
    /// Adds them to a step.
    pub fn append(&self, step: &mut Step, now: Timestamp) {
        let UncommittedResults { item, results, .. } = self;
        if !results.attempts.is_empty() {
            let (channel, attempts) = (self.channel.clone(), results.attempts.clone());
            step.receipts.push(ReceiptChunk { batch: item.batch, channel, attempts });
        }
        step.receipts.extend(results.other_channels.iter().map(|(channel, attempts)| ReceiptChunk {
            batch: item.batch,
            channel: channel.clone(),
            attempts: Arc::new(attempts.clone()),
        }));
        let retries = results.retries.iter();
        step.retries.extend(retries.map(|(due, ordinals)| self.retry(ordinals, item.attempts + 1, *due, self.again())));
        let fallbacks = results.fallbacks.iter();
        step.retries.extend(fallbacks.map(|((index, due), ordinals)| self.fallback(ordinals, *index, *due)));
        step.suspensions.extend(results.suspended.iter().map(|(reason, ordinals)| Suspension {
            batch: item.batch,
            application: self.application.clone(),
            channel: self.channel.clone(),
            ordinals: sorted(ordinals),
            attempts: item.attempts + 1,
            reason: reason.clone(),
            since: now,
            work_state: item.work_state.clone(),
        }));
        match &self.deferrals {
            Some(deferrals) => {
                step.finished.push(item.claim);
                self.append_deferrals(step, deferrals);
            }
            None => step.held.push(item.claim),
        }
    }

    fn append_deferrals(&self, step: &mut Step, deferrals: &Deferrals) {
        let UncommittedResults { item, .. } = self;
        let unchanged = || item.work_state.clone();
        if !deferrals.left.is_empty() {
            step.retries.push(self.retry(&deferrals.left, item.attempts, deferrals.left_due_at, unchanged()));
        }
        let untried = deferrals.untried.iter();
        step.retries.extend(untried.map(|(due, ordinals)| self.retry(ordinals, item.attempts, *due, unchanged())));
        let held = deferrals.held.iter();
        step.retries.extend(held.map(|(due, ordinals)| self.retry(ordinals, item.attempts, *due, self.again())));
        step.retries.extend(deferrals.in_window.iter().map(|(window, ordinals)| {
            let work_state = WorkState { window: Some(*window), ..unchanged() };
            self.retry(ordinals, item.attempts, *window, work_state)
        }));
        let next = next_channel(&self.delivery_policy, item, &self.channel);
        let passed = deferrals.passed.iter();
        step.retries.extend(passed.flat_map(|(due, ordinals)| Some(self.fallback(ordinals, next?, *due))));
    }

    fn retry(&self, ordinals: &[u32], attempts: u32, due_at: Timestamp, work_state: WorkState) -> Retry {
        let (application, channel) = (self.application.clone(), self.channel.clone());
        Retry { batch: self.item.batch, application, channel, ordinals: sorted(ordinals), attempts, due_at, work_state }
    }

    /// State of the work for another attempt of this channel, which keeps the time since when it tries.
    fn again(&self) -> WorkState {
        WorkState { since: Some(since(&self.item)), ..self.item.work_state.clone() }
    }

    /// Work for a channel of the fallback chain.
    fn fallback(&self, ordinals: &[u32], index: usize, due_at: Timestamp) -> Retry {
        let work_state = WorkState { fallback: index as u8 + 1, since: Some(due_at), ..self.item.work_state.clone() };
        let channel = self.delivery_policy.fallback[index].channel.clone();
        Retry { channel, ..self.retry(ordinals, 0, due_at, work_state) }
    }

    /// Statuses of the notifications in their lanes, once this is committed: later, or settled.
    pub fn lane_statuses(&self) -> impl Iterator<Item = (NotificationId, Option<LaneStatus>)> {
        let id = |ordinal: &u32| NotificationId { batch: self.item.batch, ordinal: *ordinal };
        let is_settled = |attempt: &&Attempt| attempt.outcome.closes() || attempt.outcome == Outcome::Suspended;
        let attempts = self.results.attempts.iter().chain(self.results.other_channels.values().flatten());
        let settled = attempts.filter(is_settled).map(move |attempt| (id(&attempt.ordinal), None));
        let left = self.deferrals.iter().map(|deferrals| (&deferrals.left_due_at, &deferrals.left));
        let fallbacks = self.results.fallbacks.iter().map(|((_, due), ordinals)| (due, ordinals));
        let later = self.results.retries.iter().chain(fallbacks).chain(left);
        settled.chain(later.flat_map(move |(due, ordinals)| {
            ordinals.iter().map(move |ordinal| (id(ordinal), Some(LaneStatus::Later(*due))))
        }))
    }
}

/// Since when the present channel tries.
pub(crate) fn since(item: &WorkItem) -> Timestamp {
    item.work_state.since.unwrap_or(item.due_at)
}

/// Index of the step of the fallback chain that is tried after channel `used`, if there is one.
pub(crate) fn next_channel(delivery_policy: &DeliveryPolicy, item: &WorkItem, used: &Name) -> Option<usize> {
    // A notification that started with a channel of the chain continues behind it.
    let is_first = item.work_state.fallback == 0;
    let own = delivery_policy.fallback.iter().position(|step| is_first && step.channel == *used);
    let index = own.map_or(usize::from(item.work_state.fallback), |at| at + 1);
    (index < delivery_policy.fallback.len()).then_some(index)
}

/// Truncates a reply of a receiver.
pub(crate) fn cut(mut reply: String) -> String {
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
pub(crate) fn whole_second(time: Timestamp) -> Timestamp {
    Timestamp(time.0.div_euclid(1_000_000) * 1_000_000)
}

/// Rounds up a time that a delay leads to: part of a second matters for a short delay, so the attempt is rather late
/// than early.
pub(crate) fn whole_second_of(from: Timestamp, delay: Duration) -> Timestamp {
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
