//! Keeps the match index true to the records as they were at a place of their change feed.
//!
//! The feed says what changed, not how: a follower asks for the state as it was at the place that it goes to. So
//! following twice does no harm, an index that was built from a scan may be caught up from before the scan, and one that
//! is ahead of a batch can go back, as far as the feed reaches.

use std::ops::RangeInclusive;

use parking_lot::Mutex;
use tocsin_matching::{rule::RuleSet, subscriber::SubscriberView};
use tocsin_model::id::{ChangeSequence, Name, SubscriberNumber, SubscriptionId};
use tocsin_store::{
    error::StoreError,
    queries::QueryTables,
    records::{Change, Changed, IndexedSubscription, Records},
};

use crate::{
    compile::Compiled,
    keep_busy,
    shards::{Gone, IndexReport, Shards, subject},
    view_subscribers::view_subscribers,
};

/// Subscriptions read from the records at a time.
const PAGE: u64 = 5_000;
/// Changes read from the feed at a time.
const CHANGES: usize = 1_000;

/// The shards of an application, its tables of queries, and where they stand in the change feed.
///
/// Between two steps to the same place they stand nowhere: what changed up to `place` is as it was at `reach`. Once both
/// are the same, so are all shards.
pub(crate) struct Followed {
    application: Name,
    shards: Shards,
    /// No subscription in the shards has a higher number.
    last_put: u64,
    /// The same subscriptions for rules in SQL, if there are any. Nobody else looks at it: the lock is for a task that moves
    /// from thread to thread.
    queries: Option<Mutex<QueryTables>>,
    /// Every change up to here has been followed.
    place: ChangeSequence,
    /// Nothing in the shards is newer than this.
    reach: ChangeSequence,
}

/// Why shards cannot go to a place.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Lost {
    /// The records do not remember the place any more. The shards stand where they stood.
    #[error("the change feed does not reach back to change {}", .0.0)]
    Place(ChangeSequence),
    /// The shards fell behind the feed, or one of them is gone: they must be built anew.
    #[error("the match index {0}")]
    Index(&'static str),
    /// The records fail.
    #[error(transparent)]
    Store(StoreError),
}

impl From<Gone> for Lost {
    fn from(_: Gone) -> Self {
        Lost::Index("has lost a shard")
    }
}

impl Followed {
    /// Builds the shards of an application as of a place, or of the present if the feed does not reach back to it. Pages
    /// are read one after the other; the shards take them in side by side.
    ///
    /// # Errors
    /// As [`Followed::go_to`]; `Index` if the system has no more threads.
    pub async fn build(
        records: &dyn Records,
        compiled: &Compiled,
        shards: usize,
        place: ChangeSequence,
    ) -> Result<Followed, Lost> {
        let application = &compiled.application.name;
        let shards = Shards::start(application, &compiled.rules, shards);
        let shards = shards.map_err(|error| Lost::Store(StoreError::unavailable(error)))?;
        let queries = QueryTables::open(compiled.queries.clone()).map_err(Lost::Store)?.map(Mutex::new);
        // A scan of many reads sees the records at different times; going to a place makes it exact.
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
            // The next page is read while this one is put.
            let (next, done) = tokio::join!(scan(records, application, Some(last)), async { keep_busy(put) });
            done?;
            page = next?;
        }
        let reach = newest(records);
        followed.reach = reach;
        match followed.go_to(records, place).await {
            Err(Lost::Place(_)) => followed.go_to(records, reach).await?,
            done => done?,
        }
        Ok(followed)
    }

    /// The shards, which stand at a place that they were brought to.
    pub fn shards(&mut self) -> &mut Shards {
        &mut self.shards
    }

    /// The tables of queries, which stand where the shards stand.
    pub fn queries(&mut self) -> Option<&mut QueryTables> {
        self.queries.as_mut().map(Mutex::get_mut)
    }

    /// Every change up to here is in the index.
    pub fn place(&self) -> ChangeSequence {
        self.place
    }

    /// Has the owners take in what was given to them, drops what they have cut, and says what the index holds. Blocks.
    pub fn settle(&mut self) -> Result<IndexReport, Gone> {
        let report = self.shards.match_and_cut(Vec::new().into())?.report;
        Ok(self.with_queries(report))
    }

    /// Adds the tables of queries to what the shards report.
    pub fn with_queries(&self, report: IndexReport) -> IndexReport {
        let queries = self.queries.as_ref().map_or(0, |queries| queries.lock().bytes());
        IndexReport { bytes: report.bytes + queries, ..report }
    }

    /// The subscribers of these subscriptions as rules saw them at a place.
    async fn views(
        &self,
        records: &dyn Records,
        subscriptions: &[IndexedSubscription],
        at: ChangeSequence,
    ) -> Result<Vec<SubscriberView>, Lost> {
        let subscribers: Vec<SubscriberNumber> = subscriptions.iter().map(|found| found.subscriber).collect();
        view_subscribers(records, self.shards.rules(), &subscribers, at).await.map_err(|error| match error {
            StoreError::Missing(_) => Lost::Index("fell behind the change feed"),
            error => Lost::Store(error),
        })
    }

    fn put(&mut self, subscription: IndexedSubscription, subscriber: SubscriberView) -> Result<(), Gone> {
        self.last_put = self.last_put.max(subscription.id.0);
        // What the index cannot take, no query sees: it is as if it were not there.
        let fits = self.queries.is_none() || fits(self.shards.rules(), &subscription);
        match self.queries() {
            Some(queries) if fits => queries.put(&subscription, &subscriber.columns),
            Some(queries) => queries.remove(subscription.id),
            None => {}
        }
        self.shards.put(subscription, subscriber)
    }

    fn remove(&mut self, id: SubscriptionId) -> Result<(), Gone> {
        if let Some(queries) = self.queries() {
            queries.remove(id);
        }
        self.shards.remove(id)
    }

    /// Brings the shards to exactly the place, forwards or backwards. A place that is still to come means the present.
    ///
    /// # Errors
    /// Unless the shards are lost, they can be brought to any place later.
    pub async fn go_to(&mut self, records: &dyn Records, place: ChangeSequence) -> Result<(), Lost> {
        let place = place.min(newest(records));
        while !self.step_to(records, place).await? {}
        Ok(())
    }

    /// The next step of some hundred changes to a place, or all of a way back. Gives whether the shards have arrived.
    ///
    /// # Errors
    /// As [`Followed::go_to`].
    pub async fn step_to(&mut self, records: &dyn Records, place: ChangeSequence) -> Result<bool, Lost> {
        if place < self.reach {
            self.go_back(records, place).await?;
            return Ok(true);
        }
        if self.place < place {
            let changes = records.changes(self.place, CHANGES).await.map_err(|error| match error {
                StoreError::Missing(_) => Lost::Index("fell behind the change feed"),
                error => Lost::Store(error),
            })?;
            let is_all = changes.len() < CHANGES || changes.last().is_some_and(|last| last.sequence >= place);
            let until = if is_all { place } else { changes.last().map_or(place, |last| last.sequence) };
            self.reach = place;
            self.follow(records, &changes, place).await?;
            self.place = until;
        }
        if self.place == place {
            self.reach = place;
        }
        Ok(self.place == place)
    }

    /// Undoes what the shards have followed beyond a place, and follows what they have not before it.
    async fn go_back(&mut self, records: &dyn Records, place: ChangeSequence) -> Result<(), Lost> {
        let is_behind = self.place < place;
        let mut after = self.place.min(place);
        loop {
            let changes = records.changes(after, CHANGES).await.map_err(|error| match error {
                StoreError::Missing(_) if is_behind => Lost::Index("fell behind the change feed"),
                StoreError::Missing(_) => Lost::Place(place),
                error => Lost::Store(error),
            })?;
            self.place = self.place.min(place);
            self.follow(records, &changes, place).await?;
            match changes.last().map(|last| last.sequence) {
                Some(last) if changes.len() == CHANGES && last < self.reach => after = last,
                _ => break,
            }
        }
        (self.place, self.reach) = (place, place);
        Ok(())
    }

    /// Makes the shards agree with the records, as they were at a place, on all that these changes name.
    async fn follow(&mut self, records: &dyn Records, changes: &[Change], at: ChangeSequence) -> Result<(), Lost> {
        let as_of = |error| match error {
            StoreError::Missing(_) => Lost::Index("fell behind the change feed"),
            error => Lost::Store(error),
        };
        let mut ranges: Vec<RangeInclusive<u64>> = Vec::new();
        let mut subscribers: Vec<SubscriberNumber> = Vec::new();
        let mut moved: Vec<RangeInclusive<u64>> = Vec::new();
        for change in changes {
            match &change.what {
                Changed::Subscriptions(first, last) => ranges.push(first.0..=last.0),
                // The shard of another subscriber is another one; then it is put where it belongs at that place.
                Changed::Moved(first, last) => {
                    moved.push(first.0..=last.0);
                    ranges.push(first.0..=last.0);
                }
                Changed::Subscriber(number) => subscribers.push(*number),
                Changed::Profile(number) if self.shards.rules().asks_of_subscribers() => subscribers.push(*number),
                // Who belongs to an audience can only be found out one by one.
                Changed::Segment(name) if self.shards.rules().audiences().contains(name) => {
                    ranges.extend((self.last_put > 0).then_some(1..=self.last_put));
                }
                // The channel of a device stays the same; delivery itself looks whether it may be used.
                Changed::Suppressions(_) => {}
                Changed::Application(_) | Changed::ApiKey | Changed::Profile(_) | Changed::Segment(_) => {}
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

    /// Puts what is there, and removes what is not, of some ranges of numbers.
    fn agree(
        &mut self,
        page: &[RangeInclusive<SubscriptionId>],
        present: impl Iterator<Item = (IndexedSubscription, SubscriberView)>,
    ) -> Result<(), Gone> {
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

/// Whether the index can take a subscription: a class that changed since it was stored may have made it unusable. Only its
/// filter is costly to look at, and most have none.
fn fits(rules: &RuleSet, subscription: &IndexedSubscription) -> bool {
    subscription.terms.filter.is_none() || rules.check_subject(subject(subscription)).is_ok()
}

fn newest(records: &dyn Records) -> ChangeSequence {
    *records.newest_change().borrow()
}

async fn scan(
    records: &dyn Records,
    application: &Name,
    after: Option<SubscriptionId>,
) -> Result<Vec<IndexedSubscription>, Lost> {
    records.indexed_subscriptions(application, after, PAGE as usize).await.map_err(Lost::Store)
}

/// Joins ranges that overlap or touch, and deals them out in order, each page with so many numbers at most.
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
