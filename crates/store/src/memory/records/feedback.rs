//! Feedback to sent messages.

use async_trait::async_trait;
use tocsin_model::{
    feedback::{Class, FeedbackEntry, Stage},
    id::{SubscriberId, SubscriberNumber},
    subscriber::Subscriber,
    suppression::Target,
    time::Timestamp,
};

use super::{MemoryRecords, RecordsState};
use crate::{
    bounded_scan::ScanPage,
    error::StoreError,
    records::{
        FeedbackChange, FeedbackFilter, FeedbackState, FeedbackStore, MERGES_FOLLOWED_MAX, STATE_ENTRIES_MAX,
        device_prefix,
    },
};

impl RecordsState {
    fn feedback_state(&self, target: &Target) -> FeedbackState {
        let newest = self.feedback.values().rev().filter(|entry| entry.target == *target).take(STATE_ENTRIES_MAX);
        let mut entries: Vec<FeedbackEntry> = newest.cloned().collect();
        entries.reverse();
        FeedbackState { entries, suppression: self.suppressions.get(&target.to_string()).cloned() }
    }

    fn add_feedback(&mut self, new: FeedbackEntry) {
        let is_same =
            |entry: &FeedbackEntry| (&entry.target, entry.class, &entry.key) == (&new.target, new.class, &new.key);
        if !self.feedback.values().any(is_same) {
            let number = self.feedback.last_key_value().map_or(0, |(number, _)| *number) + 1;
            self.feedback.insert(number, new);
        }
    }

    /// Removes the suppression of a target; its entries no longer count. Returns the number of removed suppressions.
    pub(super) fn lift_suppression(&mut self, target: &Target) -> usize {
        let removed = self.remove_suppressions(|found| found.target == *target, 1);
        if removed > 0 {
            self.feedback.values_mut().filter(|entry| entry.target == *target).for_each(|entry| entry.counts = false);
        }
        removed
    }

    pub(super) fn remove_feedback_of(&mut self, id: &SubscriberId) {
        let prefix = device_prefix(id);
        self.feedback.retain(|_, entry| !entry.target.to_string().starts_with(&prefix));
        let is_its = |entry: &&mut FeedbackEntry| entry.device.as_ref().is_some_and(|(subscriber, _)| subscriber == id);
        self.feedback.values_mut().filter(is_its).for_each(|entry| entry.device = None);
    }
}

#[async_trait]
impl FeedbackStore for MemoryRecords {
    async fn feedback_states(&self, targets: &[Target]) -> Result<Vec<FeedbackState>, StoreError> {
        let state = self.state.lock();
        Ok(targets.iter().map(|target| state.feedback_state(target)).collect())
    }

    async fn change_feedback(&self, changes: Vec<FeedbackChange>) -> Result<(), StoreError> {
        self.change(|state| {
            for change in &changes {
                if state.feedback_state(&change.target) != change.before {
                    return Err(StoreError::Changed(format!("the feedback of `{}`", change.target)));
                }
            }
            let mut changed = Vec::new();
            for change in changes {
                change.added.into_iter().for_each(|entry| state.add_feedback(entry));
                for entry in state.feedback.values_mut().filter(|entry| entry.target == change.target) {
                    let is_it = |(class, key): &(Class, String)| (*class, key) == (entry.class, &entry.key);
                    entry.counts &= !change.cleared.iter().any(is_it);
                }
                let Some(new) = change.suppression else { continue };
                let held = state.suppressions.get(&new.target.to_string());
                if !held.is_some_and(|held| held.outranks(&new)) && state.put_suppression(&new) {
                    changed.push(new.target);
                }
            }
            state.log_suppressions(&changed);
            Ok(())
        })
    }

    async fn scan_feedback(
        &self,
        filter: &FeedbackFilter,
        before: Option<u64>,
        limit: usize,
    ) -> Result<ScanPage<(u64, FeedbackEntry), u64>, StoreError> {
        let is_match = |entry: &FeedbackEntry| {
            filter.target.as_ref().is_none_or(|target| entry.target == *target)
                && filter.class.is_none_or(|class| entry.class == class)
                && filter.batch.is_none_or(|batch| entry.notification.is_some_and(|id| id.batch == batch))
        };
        let state = self.state.lock();
        let older = state.feedback.range(..before.unwrap_or(u64::MAX)).rev();
        let found = older.filter(|(_, entry)| is_match(entry)).take(limit.saturating_add(1));
        let found = found.map(|(number, entry)| (*number, entry.clone())).collect();
        Ok(ScanPage::cut(found, limit, None, |(number, _): &(u64, FeedbackEntry)| *number))
    }

    async fn counted_in_sessions(&self) -> Result<Vec<Target>, StoreError> {
        let is_counted = |entry: &&FeedbackEntry| {
            entry.counts && entry.stage == Stage::Session && matches!(entry.class, Class::Soft | Class::Challenge)
        };
        let state = self.state.lock();
        let mut targets: Vec<Target> =
            state.feedback.values().filter(is_counted).map(|entry| entry.target.clone()).collect();
        targets.sort_by_key(Target::to_string);
        targets.dedup();
        Ok(targets)
    }

    async fn subscriber_by_number(&self, number: SubscriberNumber) -> Result<Option<Subscriber>, StoreError> {
        let (state, mut number) = (self.state.lock(), number);
        for _ in 0..MERGES_FOLLOWED_MAX {
            if let Some(found) = state.subscribers.values().find(|found| found.number == number) {
                return Ok(Some(found.clone()));
            }
            match state.merges.iter().find(|(merge, _)| merge.from_number == number) {
                Some((merge, _)) => number = merge.into_number,
                None => return Ok(None),
            }
        }
        Ok(None)
    }

    async fn forget_feedback(&self, target: &Target) -> Result<(), StoreError> {
        self.change(|state| {
            state.feedback.retain(|_, entry| entry.target != *target);
            Ok(())
        })
    }

    async fn prune_feedback(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
        self.change(|state| {
            let expired = state.feedback.iter().filter(|(_, entry)| entry.expires_at <= now);
            let mut expired: Vec<(Timestamp, u64)> =
                expired.map(|(number, entry)| (entry.expires_at, *number)).collect();
            expired.sort_unstable();
            expired.truncate(limit);
            expired.iter().for_each(|(_, number)| drop(state.feedback.remove(number)));
            Ok(expired.len())
        })
    }
}
