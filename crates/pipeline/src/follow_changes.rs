//! Keeps a shard of the match index true to the records, by their change feed.
//!
//! The feed says what changed, not how: a follower looks at the present state, so following twice does no harm and a
//! shard that is built from a scan may be caught up from before the scan.

use tocsin_matching::shard::{Shard, Subject};
use tocsin_model::id::{ChangeSequence, Name, SubscriptionId};
use tocsin_store::{
    error::StoreError,
    records::{Changed, IndexedSubscription, Records},
};

/// Subscriptions read from the records at a time.
const PAGE: usize = 5_000;
/// Changes read from the feed at a time.
const CHANGES: usize = 1_000;

/// A shard and the place in the change feed up to which it is true.
pub(crate) struct FollowedShard {
    pub shard: Shard,
    pub followed: ChangeSequence,
}

/// Fills an empty shard with the enabled subscriptions of an application. It is true as of some moment after
/// `followed`, so catching up from there makes it exact.
pub(crate) async fn build(
    records: &dyn Records,
    application: &Name,
    mut shard: Shard,
    followed: ChangeSequence,
) -> Result<FollowedShard, StoreError> {
    let mut after = None;
    loop {
        let page = records.indexed_subscriptions(application, after, PAGE).await?;
        let full = page.len() == PAGE;
        after = page.last().map(|subscription| subscription.id);
        for subscription in page {
            put(&mut shard, application, &subscription);
        }
        if !full {
            return Ok(FollowedShard { shard, followed });
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
                Changed::Subscriptions(first, last) => {
                    refresh(records, application, &mut followed.shard, first, last).await?
                }
                Changed::Subscriber(number) => {
                    for id in records.subscriptions_of(number).await? {
                        refresh(records, application, &mut followed.shard, id, id).await?;
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
    shard: &mut Shard,
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
                shard.remove(SubscriptionId(gone));
            }
            put(shard, application, subscription);
            expected = subscription.id.0 + 1;
        }
        for gone in expected..=to {
            shard.remove(SubscriptionId(gone));
        }
        from = to + 1;
    }
    Ok(())
}

fn put(shard: &mut Shard, application: &Name, subscription: &IndexedSubscription) {
    let subject = Subject {
        id: subscription.id,
        class: &subscription.class,
        values: &subscription.values,
        channel: subscription.channel.as_ref(),
        filter: subscription.terms.filter.as_ref(),
    };
    if let Err(problem) = shard.put(subject) {
        // It was checked when it was stored; a class that changed since may still make it unusable.
        shard.remove(subscription.id);
        metrics::counter!("match_unusable_subscriptions_total").increment(1);
        tracing::warn!(%application, subscription = %subscription.id, %problem, "a subscription cannot be matched");
    }
}
