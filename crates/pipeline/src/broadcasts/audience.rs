//! Examines the subscriptions of a broadcast's audience in pages: the class, the segment, the sender's filter and the
//! subscriptions' own filters. Memory is bounded by the page.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

use tocsin_matching::{cut::CutBatch, subscriber::SubscriberView};
use tocsin_model::{
    broadcast::{Per, broadcast_class},
    id::{ChangeSequence, EventBatchId, SubscriberNumber, SubscriptionId},
    time::Timestamp,
};
use tocsin_store::{error::StoreError, records::IndexedSubscription};

use super::versions::CompiledBroadcast;
use crate::{
    Flow, keep_busy, match_events::report_failures, temporary_index::TemporaryIndex, view_subscribers::view_subscribers,
};

/// Subscriptions read at a time.
const PAGE: usize = 5_000;
/// The present state of the records.
const NOW: ChangeSequence = ChangeSequence(u64::MAX);

/// The audience of a broadcast.
pub(super) struct Audience<'a> {
    pub flow: &'a Flow,
    pub broadcast: &'a CompiledBroadcast,
    /// Subscriptions that were created or enabled later are not in the audience.
    pub until: Timestamp,
    /// Event batch of the notifications.
    pub events: EventBatchId,
}

/// Some examined subscriptions.
pub(super) struct Examined {
    /// Last subscription examined.
    pub reached: SubscriptionId,
    /// Number of subscriptions read, of all classes.
    pub read: u64,
    /// Number of subscriptions of the class among them.
    pub examined: u64,
    /// Notifications of those that match.
    pub cut: Vec<CutBatch>,
    /// Number of subscriptions that cannot be matched: their filter does not fit the data, or the sender's filter
    /// exceeds its step limit.
    pub unusable: u64,
    /// Whether no more subscriptions follow.
    pub is_last: bool,
}

impl Examined {
    /// Number of notifications.
    pub fn notifications(&self) -> u64 {
        self.cut.iter().map(|cut| cut.notifications.count() as u64).sum()
    }
}

/// Subscriptions read at a time.
struct Page {
    subscriptions: Vec<IndexedSubscription>,
    /// Last number of the page, also if that subscription does not exist any more.
    reached: SubscriptionId,
    read: u64,
    is_last: bool,
}

type Member = (IndexedSubscription, SubscriberView);

impl Audience<'_> {
    /// Examines one page of subscriptions after `after`, at most `limit`. The inner error says why they cannot be
    /// matched.
    pub async fn next(&self, after: SubscriptionId, limit: usize) -> Result<Result<Examined, String>, StoreError> {
        let size = PAGE.min(limit).max(1);
        let Page { subscriptions: page, reached, read, is_last } = self.page(after, size).await?;
        let page: Vec<IndexedSubscription> = page.into_iter().filter(|found| self.includes(found)).collect();
        let examined = page.len() as u64;
        let others = match self.broadcast.draft.per {
            Per::Subscriber => self.excluded(after, &page).await?,
            Per::Subscription => Ok(BTreeSet::new()),
        };
        let others = match others {
            Ok(others) => others,
            Err(reason) => return Ok(Err(reason)),
        };
        let page = page.into_iter().filter(|found| !others.contains(&found.id)).collect();
        let members = self.with_subscribers(page).await?;
        Ok(self.matches(&members).map(|(cut, unusable)| Examined { reached, read, examined, cut, unusable, is_last }))
    }

    /// Reads the next `size` subscriptions of the application, or of those that the draft lists.
    async fn page(&self, after: SubscriptionId, size: usize) -> Result<Page, StoreError> {
        let application = &self.broadcast.compiled.application.name;
        let Some(listed) = &self.broadcast.draft.subscriptions else {
            let subscriptions = self.flow.match_store.indexed_subscriptions(application, Some(after), size).await?;
            let reached = subscriptions.last().map_or(after, |last| last.id);
            let read = subscriptions.len();
            return Ok(Page { subscriptions, reached, read: read as u64, is_last: read < size });
        };
        let after_it = (Bound::Excluded(after), Bound::Unbounded);
        let ids: Vec<_> = listed.range(after_it).take(size).map(|id| *id..=*id).collect();
        let reached = ids.last().map_or(after, |last| *last.end());
        let subscriptions = match ids.is_empty() {
            true => Vec::new(),
            false => self.flow.match_store.indexed_at(application, &ids, NOW).await?,
        };
        Ok(Page { subscriptions, reached, read: ids.len() as u64, is_last: ids.len() < size })
    }

    fn includes(&self, found: &IndexedSubscription) -> bool {
        let listed = self.broadcast.draft.subscriptions.as_ref();
        found.class == *self.broadcast.subscription_class()
            && found.since() <= self.until
            && listed.is_none_or(|listed| listed.contains(&found.id))
    }

    async fn with_subscribers(&self, found: Vec<IndexedSubscription>) -> Result<Vec<Member>, StoreError> {
        let subscribers: Vec<SubscriberNumber> = found.iter().map(|found| found.subscriber).collect();
        let views = view_subscribers(&*self.flow.match_store, self.broadcast.rules(), &subscribers, NOW).await?;
        Ok(found.into_iter().zip(views).collect())
    }

    /// The notifications of the members that match, and the number of those that cannot be matched.
    fn matches(&self, members: &[Member]) -> Result<(Vec<CutBatch>, u64), String> {
        keep_busy(|| {
            let mut index = TemporaryIndex::new(self.broadcast.rules().clone(), self.broadcast.takes_filters);
            let mut unusable = 0;
            for (subscription, subscriber) in members {
                match self.broadcast.sender_filter.as_ref().map_or(Some(true), |f| f.matches(&subscription.values)) {
                    Some(true) => {}
                    Some(false) => continue,
                    None => {
                        unusable += 1;
                        continue;
                    }
                }
                unusable += u64::from(index.put(subscription, subscriber.clone()).is_err());
            }
            let event = self.broadcast.rules().bare_row(&broadcast_class(), self.broadcast.event.clone());
            index.match_event(self.events, 0, &broadcast_class(), &event)?;
            let (cut, failures) = index.finish();
            report_failures(&self.broadcast.compiled, self.broadcast.rules(), &failures);
            Ok((cut, unusable))
        })
    }

    /// Subscriptions of a page that are left out, because an earlier one of their subscriber matches.
    async fn excluded(
        &self,
        after: SubscriptionId,
        page: &[IndexedSubscription],
    ) -> Result<Result<BTreeSet<SubscriptionId>, String>, StoreError> {
        let subscribers: Vec<SubscriberNumber> =
            page.iter().map(|found| found.subscriber).collect::<BTreeSet<_>>().into_iter().collect();
        let records = &self.flow.match_store;
        let earlier = records.subscriptions_of(&subscribers, NOW).await?;
        let ranges: Vec<_> = earlier.into_iter().filter(|id| *id <= after).map(|id| id..=id).collect();
        let mut candidates = match ranges.is_empty() {
            true => Vec::new(),
            false => {
                let application = &self.broadcast.compiled.application.name;
                records.indexed_at(application, &ranges, NOW).await?
            }
        };
        candidates.retain(|found| self.includes(found));
        let mut counts: BTreeMap<SubscriberNumber, u32> = BTreeMap::new();
        for found in candidates.iter().chain(page) {
            *counts.entry(found.subscriber).or_default() += 1;
        }
        candidates.extend(page.iter().cloned());
        candidates.retain(|found| counts[&found.subscriber] > 1);
        if candidates.is_empty() {
            return Ok(Ok(BTreeSet::new()));
        }
        candidates.sort_unstable_by_key(|found| found.id);
        let of: BTreeMap<SubscriptionId, SubscriberNumber> =
            candidates.iter().map(|found| (found.id, found.subscriber)).collect();
        let members = self.with_subscribers(candidates).await?;
        let matching: BTreeSet<SubscriptionId> = match self.matches(&members) {
            Ok((cut, _)) => cut.into_iter().flat_map(|cut| cut.notifications.subscriptions).collect(),
            Err(reason) => return Ok(Err(reason)),
        };
        // The first subscription of each subscriber that matches.
        let mut firsts: BTreeMap<SubscriberNumber, SubscriptionId> = BTreeMap::new();
        for id in matching {
            firsts.entry(of[&id]).or_insert(id);
        }
        let is_excluded = |(id, subscriber): &(&SubscriptionId, &SubscriberNumber)| {
            firsts.get(subscriber).is_some_and(|first| first < *id)
        };
        Ok(Ok(of.iter().filter(is_excluded).map(|(id, _)| *id).collect()))
    }
}
