//! Rules in SQL: their queries are run over each event batch after the index has answered, and what they find is cut
//! into the same notification batches. A query that fails is a firing that did not happen; the batch goes on without it.

use std::collections::BTreeMap;

use tocsin_matching::{
    cut::NotificationCutter,
    shard::{Shard, Told},
};
use tocsin_model::{
    event::EventBatch,
    field::{Damaged, Fields},
    id::EventBatchId,
    time::Timestamp,
};
use tocsin_store::{
    journal::{ClaimedEvents, FiringStatus, NewFiring},
    queries::QueryFiring,
};

use crate::{compile::Compiled, follow_changes::FollowedShard};

/// What the queries of each batch gave. Batches without any are not in it.
pub(crate) type Queried = BTreeMap<EventBatchId, Vec<QueryFiring>>;

/// Runs the queries that these batches fire. They see the subscriptions that the shard sees.
pub(crate) fn run(followed: &mut FollowedShard, batches: &[(&ClaimedEvents, Fields)]) -> Queried {
    let Some(queries) = &mut followed.queries else { return Queried::new() };
    let queries = queries.get_mut();
    let mut queried = Queried::new();
    for (events, fields) in batches {
        let batch = &events.batch;
        // A damaged batch is set aside when the index comes to it.
        let Ok(firings) = queries.run(batch, fields, |_| true) else { continue };
        for firing in &firings {
            metrics::histogram!("match_query_duration_seconds").record(firing.took);
        }
        if !firings.is_empty() {
            queried.insert(batch.id, firings);
        }
    }
    queried
}

/// Gives what the queries of a batch found to the cutter.
///
/// # Errors
/// The batch is damaged.
pub(crate) fn tell(
    shard: &Shard,
    batch: &EventBatch,
    fields: &Fields,
    firings: &[QueryFiring],
    cutter: &mut NotificationCutter,
) -> Result<(), Damaged> {
    let rows = shard.rules().rows(batch, fields)?;
    for firing in firings {
        let (Ok(matches), Some(rule)) = (&firing.outcome, shard.rules().number(firing.rule.as_str())) else { continue };
        let told = matches.iter().map(|found| Told {
            event_ordinal: found.event,
            subscription: found.subscription,
            given: &found.values,
        });
        shard.tell(batch.id, rule, &rows, told, cutter);
    }
    Ok(())
}

/// The firings of a batch that failed, as the journal lists them.
pub(crate) fn failed(
    compiled: &Compiled,
    batch: EventBatchId,
    firings: &[QueryFiring],
    now: Timestamp,
) -> Vec<NewFiring> {
    let failed = firings.iter().filter_map(|firing| Some((firing, firing.outcome.as_ref().err()?)));
    failed
        .map(|(firing, reason)| {
            let application = compiled.application.name.clone();
            metrics::counter!("match_failed_firings_total").increment(1);
            tracing::warn!(%application, rule = %firing.rule, %batch, reason, "a query failed");
            NewFiring {
                application,
                rule: firing.rule.clone(),
                batch,
                status: FiringStatus::Failed,
                reason: reason.clone(),
                run: None,
                at: now,
            }
        })
        .collect()
}
