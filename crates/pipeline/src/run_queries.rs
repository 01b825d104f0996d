//! Rules in SQL: their queries are run over each event batch after the index has answered, and what they find is cut
//! into the same notification batches. A query that fails is a firing that did not happen; the batch goes on without it.

use tocsin_matching::{
    chronicle::tables::EntryChange,
    shard::{MatchSink, Shard, Told},
};
use tocsin_model::{event::EventBatch, field::Fields, id::Name};
use tocsin_store::queries::{Beside, QueryFiring, QueryTables};

use crate::shards::UnpackedBatch;

/// Has the tables of chronicles say what changed.
pub fn keep(queries: &mut QueryTables, change: &EntryChange) {
    match change {
        EntryChange::Clear => queries.forget_states(),
        EntryChange::Entry { table, key, row } => queries.keep(table, key, row.as_deref()),
    }
}

/// Runs the queries that a batch fires. They see the subscriptions that the index sees.
pub(crate) fn run(
    queries: &mut QueryTables,
    batch: &EventBatch,
    fields: &Fields,
    beside: &Beside<'_>,
    fires: &dyn Fn(&Name) -> bool,
) -> Vec<QueryFiring> {
    // A damaged batch is set aside before it comes here.
    let firings = queries.run(batch, fields, beside, fires).unwrap_or_default();
    for firing in &firings {
        metrics::histogram!("match_query_duration_seconds").record(firing.took);
    }
    firings
}

/// Gives on what the queries of a batch found, as far as it concerns the subscriptions of this shard.
pub(crate) fn tell(shard: &mut Shard, batch: &UnpackedBatch, out: &mut impl MatchSink) {
    for firing in &batch.told {
        let (Ok(matches), Some(rule)) = (&firing.outcome, shard.rules().number(firing.rule.as_str())) else { continue };
        let told = matches.iter().map(|found| Told {
            event_ordinal: found.event,
            subscription: found.subscription,
            given: &found.values,
        });
        shard.tell((batch.id, batch.accepted_at), rule, &batch.rows, told, out);
    }
}
