//! Keeps the match index consistent with the records at a change sequence (incremental view maintenance by a change
//! feed).
//!
//! The feed lists what changed, without values: the follower reads the state at its target sequence. So following is
//! idempotent. An index built from a scan can be caught up from before the scan, and one that is ahead of a batch can
//! go back, as far as the feed reaches.

use std::ops::RangeInclusive;

use parking_lot::Mutex;
use tocsin_matching::{rule::RuleSet, subscriber::SubscriberView};
use tocsin_model::id::{ChangeSequence, Name, SubscriberNumber, SubscriptionId};
use tocsin_store::{
    error::StoreError,
    queries::QueryTables,
    records::{ChangeKind, IndexedSubscription, MatchStore, RecordChange},
};

use crate::{
    compile::Compiled,
    keep_busy,
    shards::{IndexReport, ShardLost, Shards, subject},
    view_subscribers::view_subscribers,
};

/// Subscriptions read at a time.
const PAGE: u64 = 5_000;
/// Changes read from the feed at a time.
const CHANGES: usize = 1_000;

/// The shards of an application and its query tables, at a sequence of the change feed.
///
/// Between two steps the index is mixed: changes up to `place` are applied as of `reach`. When both are equal, all
/// shards are consistent.
pub(crate) struct Followed {
    application: Name,
    shards: Shards,
    /// Highest subscription number in the shards.
    last_put: u64,
    /// The same subscriptions for rules in SQL, if there are any. The lock only serves a task that moves between
    /// threads; there is no contention.
    queries: Option<Mutex<QueryTables>>,
    /// All changes up to here are applied.
    place: ChangeSequence,
    /// Nothing in the shards is newer than this.
    reach: ChangeSequence,
}

/// Reason why the index cannot reach a change sequence.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FollowError {
    /// The change feed does not reach back to the sequence. The index is unchanged.
    #[error("the change feed does not reach back to change {}", .0.0)]
    SequenceTrimmed(ChangeSequence),
    /// The index fell behind the feed, or lost a shard: it must be rebuilt.
    #[error("the match index {0}")]
    Index(&'static str),
    /// The records failed.
    #[error(transparent)]
    Store(StoreError),
}

impl From<ShardLost> for FollowError {
    fn from(_: ShardLost) -> Self {
        FollowError::Index("has lost a shard")
    }
}

impl Followed {
    /// Builds the index of an application at a sequence, or at the newest one if the feed does not reach back. Pages
    /// are read one after the other while the shards apply them in parallel.
    ///
    /// # Errors
    /// As [`Followed::move_to`]; `Index` if the system has no more threads.
    pub async fn build(
        records: &dyn MatchStore,
        compiled: &Compiled,
        shards: usize,
        place: ChangeSequence,
    ) -> Result<Followed, FollowError> {
        let application = &compiled.application.name;
        let shards = Shards::start(application, &compiled.rules, shards);
        let shards = shards.map_err(|error| FollowError::Store(StoreError::unavailable(error)))?;
        let queries = QueryTables::open(compiled.queries.clone()).map_err(FollowError::Store)?.map(Mutex::new);
        // A scan of many reads sees different times; following the feed makes it exact.
        let before = newest(records);
        let mut followed =
            Followed { application: application.clone(), shards, queries, last_put: 0, place: before, reach: before };
        let mut page = scan(records, application, None).await?;
        while let Some(last) = page.last().map(|subscription| subscription.id) {
            let is_last = (page.len() as u64) < PAGE;
            let views = followed.views(records, &page, ChangeSequence(u64::MAX)).await?;
            let put = || page.into_iter().zip(views).try_for_each(|(one, view)| followed.put(one, view));
            if is_last {
                keep_busy(put)?;
                break;
            }
            // The next page is read while this one is applied.
            let (next, done) = tokio::join!(scan(records, application, Some(last)), async { keep_busy(put) });
            done?;
            page = next?;
        }
        let reach = newest(records);
        followed.reach = reach;
        match followed.move_to(records, place).await {
            Err(FollowError::SequenceTrimmed(_)) => followed.move_to(records, reach).await?,
            done => done?,
        }
        Ok(followed)
    }

    /// The shards at their current sequence.
    pub fn shards(&mut self) -> &mut Shards {
        &mut self.shards
    }

    /// The query tables at the same sequence.
    pub fn queries(&mut self) -> Option<&mut QueryTables> {
        self.queries.as_mut().map(Mutex::get_mut)
    }

    /// All changes up to here are in the index.
    pub fn place(&self) -> ChangeSequence {
        self.place
    }

    /// Waits until the owners have applied all changes, discards their results, and returns the figures of the index.
    /// Blocks.
    pub fn wait_until_applied(&mut self) -> Result<IndexReport, ShardLost> {
        let report = self.shards.match_and_cut(Vec::new().into())?.report;
        Ok(self.with_queries(report))
    }

    /// Adds the query tables to the figures of the shards.
    pub fn with_queries(&self, report: IndexReport) -> IndexReport {
        let queries = self.queries.as_ref().map_or(0, |queries| queries.lock().bytes());
        IndexReport { bytes: report.bytes + queries, ..report }
    }

    /// The subscribers of these subscriptions, at a sequence.
    async fn views(
        &self,
        records: &dyn MatchStore,
        subscriptions: &[IndexedSubscription],
        at: ChangeSequence,
    ) -> Result<Vec<SubscriberView>, FollowError> {
        let subscribers: Vec<SubscriberNumber> = subscriptions.iter().map(|found| found.subscriber).collect();
        view_subscribers(records, self.shards.rules(), &subscribers, at).await.map_err(|error| match error {
            StoreError::Missing(_) => FollowError::Index("fell behind the change feed"),
            error => FollowError::Store(error),
        })
    }

    fn put(&mut self, subscription: IndexedSubscription, subscriber: SubscriberView) -> Result<(), ShardLost> {
        self.last_put = self.last_put.max(subscription.id.0);
        // Subscriptions that the index rejects are hidden from queries as well.
        let fits = self.queries.is_none() || fits(self.shards.rules(), &subscription);
        match self.queries() {
            Some(queries) if fits => queries.put(&subscription, &subscriber.columns),
            Some(queries) => queries.remove(subscription.id),
            None => {}
        }
        self.shards.put(subscription, subscriber)
    }

    fn remove(&mut self, id: SubscriptionId) -> Result<(), ShardLost> {
        if let Some(queries) = self.queries() {
            queries.remove(id);
        }
        self.shards.remove(id)
    }

    /// Brings the index to exactly this sequence, forwards or backwards. A future sequence means the newest.
    ///
    /// # Errors
    /// Unless a shard is lost, the index can be brought to any sequence later.
    pub async fn move_to(&mut self, records: &dyn MatchStore, place: ChangeSequence) -> Result<(), FollowError> {
        let place = place.min(newest(records));
        while !self.step_to(records, place).await? {}
        Ok(())
    }

    /// The next step of some hundred changes towards a sequence, or all of a way back. Returns whether the target is
    /// reached.
    ///
    /// # Errors
    /// As [`Followed::move_to`].
    pub async fn step_to(&mut self, records: &dyn MatchStore, place: ChangeSequence) -> Result<bool, FollowError> {
        if place < self.reach {
            self.roll_back_to(records, place).await?;
            return Ok(true);
        }
        if self.place < place {
            let changes = records.changes(self.place, CHANGES).await.map_err(|error| match error {
                StoreError::Missing(_) => FollowError::Index("fell behind the change feed"),
                error => FollowError::Store(error),
            })?;
            let is_all = changes.len() < CHANGES || changes.last().is_some_and(|last| last.sequence >= place);
            let until = if is_all { place } else { changes.last().map_or(place, |last| last.sequence) };
            self.reach = place;
            self.apply_changes(records, &changes, place).await?;
            self.place = until;
        }
        if self.place == place {
            self.reach = place;
        }
        Ok(self.place == place)
    }

    /// Rolls back changes beyond a sequence, and applies those missing before it.
    async fn roll_back_to(&mut self, records: &dyn MatchStore, place: ChangeSequence) -> Result<(), FollowError> {
        let is_behind = self.place < place;
        let mut after = self.place.min(place);
        loop {
            let changes = records.changes(after, CHANGES).await.map_err(|error| match error {
                StoreError::Missing(_) if is_behind => FollowError::Index("fell behind the change feed"),
                StoreError::Missing(_) => FollowError::SequenceTrimmed(place),
                error => FollowError::Store(error),
            })?;
            self.place = self.place.min(place);
            self.apply_changes(records, &changes, place).await?;
            match changes.last().map(|last| last.sequence) {
                Some(last) if changes.len() == CHANGES && last < self.reach => after = last,
                _ => break,
            }
        }
        (self.place, self.reach) = (place, place);
        Ok(())
    }

    /// Applies to the index the state of the records, at a sequence, of everything that these changes name.
    async fn apply_changes(
        &mut self,
        records: &dyn MatchStore,
        changes: &[RecordChange],
        at: ChangeSequence,
    ) -> Result<(), FollowError> {
        let as_of = |error| match error {
            StoreError::Missing(_) => FollowError::Index("fell behind the change feed"),
            error => FollowError::Store(error),
        };
        let mut ranges: Vec<RangeInclusive<u64>> = Vec::new();
        let mut subscribers: Vec<SubscriberNumber> = Vec::new();
        let mut moved: Vec<RangeInclusive<u64>> = Vec::new();
        for change in changes {
            match &change.what {
                ChangeKind::Subscriptions(first, last) => ranges.push(first.0..=last.0),
                // Another subscriber may be on another shard; it is put there.
                ChangeKind::Moved(first, last) => {
                    moved.push(first.0..=last.0);
                    ranges.push(first.0..=last.0);
                }
                ChangeKind::Subscriber(number) => subscribers.push(*number),
                ChangeKind::Profile(number) if self.shards.rules().depends_on_subscribers() => {
                    subscribers.push(*number)
                }
                // Members of an audience can only be determined one by one.
                ChangeKind::Segment(name) if self.shards.rules().audiences().contains(name) => {
                    ranges.extend((self.last_put > 0).then_some(1..=self.last_put));
                }
                // The channel of a device does not change; delivery checks whether it may be used.
                ChangeKind::Suppressions(_) => {}
                ChangeKind::Application(_) | ChangeKind::ApiKey | ChangeKind::Profile(_) | ChangeKind::Segment(_) => {}
            }
        }
        if !subscribers.is_empty() {
            subscribers.sort_unstable();
            subscribers.dedup();
            let owned = records.subscriptions_of(&subscribers, at).await.map_err(as_of)?;
            ranges.extend(owned.into_iter().map(|id| id.0..=id.0));
        }
        for id in moved.into_iter().flatten() {
            self.remove(SubscriptionId(id))?;
        }
        for page in pages(ranges) {
            let present = records.indexed_at(&self.application, &page, at).await.map_err(as_of)?;
            let views = self.views(records, &present, at).await?;
            keep_busy(|| self.agree(&page, present.into_iter().zip(views)))?;
        }
        Ok(())
    }

    /// For ranges of numbers, puts existing subscriptions and removes missing ones.
    fn agree(
        &mut self,
        page: &[RangeInclusive<SubscriptionId>],
        present: impl Iterator<Item = (IndexedSubscription, SubscriberView)>,
    ) -> Result<(), ShardLost> {
        let mut present = present.peekable();
        for number in page.iter().flat_map(|range| range.start().0..=range.end().0) {
            match present.next_if(|(subscription, _)| subscription.id.0 == number) {
                Some((subscription, subscriber)) => self.put(subscription, subscriber)?,
                None => self.remove(SubscriptionId(number))?,
            }
        }
        Ok(())
    }
}

/// Whether the index can hold a subscription: a later change of its class may have made it unusable. Only checking
/// its filter is costly, and most have none.
fn fits(rules: &RuleSet, subscription: &IndexedSubscription) -> bool {
    subscription.terms.filter.is_none() || rules.check_subject(subject(subscription)).is_ok()
}

fn newest(records: &dyn MatchStore) -> ChangeSequence {
    *records.newest_change().borrow()
}

async fn scan(
    records: &dyn MatchStore,
    application: &Name,
    after: Option<SubscriptionId>,
) -> Result<Vec<IndexedSubscription>, FollowError> {
    records.indexed_subscriptions(application, after, PAGE as usize).await.map_err(FollowError::Store)
}

/// Joins overlapping or adjacent ranges, and splits them into pages of limited size.
fn pages(mut ranges: Vec<RangeInclusive<u64>>) -> Vec<Vec<RangeInclusive<SubscriptionId>>> {
    ranges.sort_unstable_by_key(|range| *range.start());
    let mut pages = Vec::new();
    let (mut page, mut room) = (Vec::new(), PAGE);
    let mut ranges = ranges.into_iter().peekable();
    while let Some(range) = ranges.next() {
        let (mut first, mut last) = range.into_inner();
        while let Some(next) = ranges.next_if(|next| *next.start() <= last.saturating_add(1)) {
            last = last.max(*next.end());
        }
        while first <= last {
            let end = last.min(first + (room - 1));
            page.push(SubscriptionId(first)..=SubscriptionId(end));
            room -= end - first + 1;
            first = end + 1;
            if room == 0 {
                pages.push(std::mem::take(&mut page));
                room = PAGE;
            }
        }
    }
    if !page.is_empty() {
        pages.push(page);
    }
    pages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_joined_and_dealt_out_in_pages() {
        let shown = |ranges: Vec<RangeInclusive<u64>>| {
            let show = |page: &Vec<RangeInclusive<SubscriptionId>>| {
                page.iter().map(|range| format!("{}-{}", range.start().0, range.end().0)).collect::<Vec<_>>().join(" ")
            };
            pages(ranges).iter().map(show).collect::<Vec<_>>()
        };
        assert_eq!(shown(vec![7..=7, 1..=3, 2..=2, 4..=5, 9..=9]), ["1-5 7-7 9-9"]);
        assert_eq!(shown(vec![1..=4_999, 6_000..=16_000]), ["1-4999 6000-6000", "6001-11000", "11001-16000"]);
        assert!(shown(Vec::new()).is_empty());
    }
}
