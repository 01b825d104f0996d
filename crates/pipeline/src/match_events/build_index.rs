//! Builds the index of a version.

use tocsin_model::id::ChangeSequence;
use tocsin_store::error::StoreError;

use crate::{
    Flow,
    compile::Compiled,
    follow_changes::{FollowError, Followed},
    shards::shard_count,
};

/// Builds the index of a version at a snapshot sequence.
pub(crate) async fn build(flow: &Flow, compiled: &Compiled, place: ChangeSequence) -> Result<Followed, StoreError> {
    let built = Followed::build(&*flow.match_store, compiled, shard_count(flow.options.match_shards), place).await;
    built.map_err(|lost| match lost {
        FollowError::Store(error) => error,
        lost => StoreError::unavailable(lost),
    })
}

/// Snapshot sequence of the next batch: that of the oldest waiting batch, else the newest.
pub(crate) async fn next_snapshot_sequence(flow: &Flow) -> Result<ChangeSequence, StoreError> {
    let settled = flow.snapshots.lower_bound();
    Ok(flow.event_log.oldest_waiting_sequence().await?.map_or(settled, |oldest| oldest.min(settled)))
}
