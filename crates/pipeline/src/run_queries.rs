//! Rules in SQL: runs their queries for each event batch, after the index, and cuts the matches into the same
//! notification batches. A failed query is a missed firing; the batch continues without it.

use tocsin_matching::{
    chronicle::tables::EntryChange,
    shard::{ExternalMatch, MatchSink, Shard},
};
use tocsin_model::{event::EventBatch, field::Fields, id::Name};
use tocsin_store::queries::{ExtraColumns, QueryFiring, QueryTables};

use crate::shards::UnpackedBatch;

/// Applies a change to the chronicle tables of the queries.
pub fn apply_chronicle_change(queries: &mut QueryTables, change: &EntryChange) {
    match change {
        EntryChange::Clear => queries.forget_states(),
        EntryChange::Entry { table, key, row } => queries.apply_entry(table, key, row.as_deref()),
    }
}

/// Runs the queries that a batch fires, on the same subscriptions as the index.
pub(crate) fn run(
    queries: &mut QueryTables,
    batch: &EventBatch,
    fields: &Fields,
    beside: &ExtraColumns<'_>,
    fires: &dyn Fn(&Name) -> bool,
) -> Vec<QueryFiring> {
    // A damaged batch is set aside earlier.
    let firings = queries.run(batch, fields, beside, fires).unwrap_or_default();
    for firing in &firings {
        metrics::histogram!("tocsin_match_query_duration_seconds").record(firing.took);
    }
    firings
}

/// Emits the query matches of a batch that belong to subscriptions of this shard.
pub(crate) fn emit_query_matches(shard: &mut Shard, batch: &UnpackedBatch, out: &mut impl MatchSink) {
    for firing in &batch.query_matches {
        let (Ok(matches), Some(rule)) = (&firing.outcome, shard.rules().number(firing.rule.as_str())) else { continue };
        let external = matches.iter().map(|found| ExternalMatch {
            event_ordinal: found.event,
            subscription: found.subscription,
            given: &found.values,
        });
        shard.emit_external_matches((batch.id, batch.accepted_at), rule, &batch.rows, external, out);
    }
}
