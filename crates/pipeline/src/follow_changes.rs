//! Keeps a shard of the match index true to the records, by their change feed.
//!
//! The feed says what changed, not how: a follower looks at the present state, so following twice does no harm and a
//! shard that is built from a scan may be caught up from before the scan.

use parking_lot::Mutex;
use tocsin_matching::shard::{Shard, Subject};
use tocsin_model::id::{ChangeSequence, Name, SubscriptionId};
use tocsin_store::{
    error::StoreError,
    queries::QueryTables,
    records::{Changed, IndexedSubscription, Records},
};

/// Subscriptions read from the records at a time.
const PAGE: usize = 5_000;
/// Changes read from the feed at a time.
const CHANGES: usize = 1_000;

/// A shard, the tables of queries, and the place in the change feed up to which they are true.
pub(crate) struct FollowedShard {
    pub shard: Shard,
    /// The same subscriptions for rules in SQL, if there are any. Nobody else looks at it: the lock is for a task that moves
    /// from thread to thread.
    pub queries: Option<Mutex<QueryTables>>,
    pub followed: ChangeSequence,
}

/// Fills an empty shard with the enabled subscriptions of an application. It is true as of some moment after its place
/// in the feed, so catching up from there makes it exact.
pub(crate) async fn build(
    records: &dyn Records,
    application: &Name,
    mut empty: FollowedShard,
) -> Result<FollowedShard, StoreError> {
    let mut after = None;
    loop {
        let page = records.indexed_subscriptions(application, after, PAGE).await?;
        let full = page.len() == PAGE;
        after = page.last().map(|subscription| subscription.id);
        for subscription in page {
            empty.put(application, &subscription);
        }
        if !full {
            return Ok(empty);
        }
        tokio::task::yield_now().await;
    }
}

/// Brings a shard up to the newest change that the records have now.
///
/// # Errors
/// `Missing`: the feed no longer reaches back to where the shard stands; it must be built anew.
pub(crate) async fn catch_up(
    records: &dyn Records,
    application: &Name,
    followed: &mut FollowedShard,
) -> Result<(), StoreError> {
    let newest = *records.newest_change().borrow();
    while followed.followed < newest {
        let changes = records.changes(followed.followed, CHANGES).await?;
        let Some(last) = changes.last().map(|change| change.sequence) else {
            return Ok(());
        };
        for change in changes {
            match change.what {
                Changed::Subscriptions(first, last) => refresh(records, application, followed, first, last).await?,
                Changed::Subscriber(number) => {
                    for id in records.subscriptions_of(number).await? {
                        refresh(records, application, followed, id, id).await?;
                    }
                }
                Changed::Application(_) | Changed::ApiKey | Changed::Segment(_) => {}
            }
        }
        followed.followed = last;
    }
    Ok(())
}

/// Makes the shard agree with the records for all numbers from `first` to `last`.
async fn refresh(
    records: &dyn Records,
    application: &Name,
    followed: &mut FollowedShard,
    first: SubscriptionId,
    last: SubscriptionId,
) -> Result<(), StoreError> {
    let mut from = first.0;
    while from <= last.0 {
        let to = last.0.min(from.saturating_add(PAGE as u64 - 1));
        let present = records.indexed_between(application, SubscriptionId(from), SubscriptionId(to)).await?;
        let mut expected = from;
        for subscription in &present {
            for gone in expected..subscription.id.0 {
                followed.remove(SubscriptionId(gone));
            }
            followed.put(application, subscription);
            expected = subscription.id.0 + 1;
        }
        for gone in expected..=to {
            followed.remove(SubscriptionId(gone));
        }
        from = to + 1;
    }
    Ok(())
}

impl FollowedShard {
    fn put(&mut self, application: &Name, subscription: &IndexedSubscription) {
        let subject = Subject {
            id: subscription.id,
            class: &subscription.class,
            values: &subscription.values,
            channel: subscription.channel.as_ref(),
            filter: subscription.terms.filter.as_ref(),
        };
        if let Err(problem) = self.shard.put(subject) {
            // It was checked when it was stored; a class that changed since may still make it unusable.
            self.remove(subscription.id);
            metrics::counter!("match_unusable_subscriptions_total").increment(1);
            tracing::warn!(%application, subscription = %subscription.id, %problem, "a subscription cannot be matched");
        } else if let Some(queries) = &mut self.queries {
            queries.get_mut().put(subscription);
        }
    }

    fn remove(&mut self, id: SubscriptionId) {
        self.shard.remove(id);
        if let Some(queries) = &mut self.queries {
            queries.get_mut().remove(id);
        }
    }
}
