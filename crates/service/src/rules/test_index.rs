//! Temporary index of a rule test, and its results.

use std::time::Instant;

use parking_lot::Mutex;
use tocsin_matching::{
    eval_value::EvalError,
    oracle::SubscriptionView,
    rule::RuleNumber,
    shard::{ExternalMatch, MatchOptions, MatchSink, Run, Shard},
};
use tocsin_model::{
    application::api_source,
    event::{EventBatch, EventPacker},
    field::Row,
    id::{EventBatchId, EventId, SubscriberNumber, SubscriptionId},
    lifecycle::subscription_of,
    subscription::SubscriptionParams,
    time::Timestamp,
};
use tocsin_store::{
    queries::{ExtraColumns, QueryMatch, QueryTables},
    records::IndexedSubscription,
};

use super::{Sample, Tested, TestedEvent};

/// Subscriptions on which a rule is tested.
pub(crate) struct TestIndex {
    pub shard: Shard,
    /// Query tables of the rule. The lock only serves a task that moves between threads.
    pub tables: Option<Mutex<QueryTables>>,
}

impl TestIndex {
    /// Runs the rule's query over the events as one batch. No matches if there is no query.
    pub fn query(&mut self, tested: &Tested, batch: &EventBatch, rows: &[Row]) -> Result<Vec<QueryMatch>, String> {
        let Some(tables) = &mut self.tables else { return Ok(Vec::new()) };
        let (first, columns) = tested.rules.columns_of_queries(&tested.on);
        let beside = ExtraColumns { columns: &columns, first, rows };
        let firings = tables.get_mut().run(batch, &tested.fields, &beside, |_| true);
        let firings = firings.map_err(|damaged| damaged.to_string())?;
        firings.into_iter().next().map_or_else(|| Ok(Vec::new()), |firing| firing.outcome)
    }

    /// Matches the events as one batch, by the index and by the rule's query.
    ///
    /// # Errors
    /// The query failed.
    pub fn fire(
        &mut self,
        tested: &Tested,
        batch: &EventBatch,
        rows: &[Row],
        found: &mut impl MatchSink,
    ) -> Result<(), String> {
        let began = Instant::now();
        let clock = move || began.elapsed();
        let watch = MatchOptions { clock: Some(&clock), ..MatchOptions::default() };
        self.shard.match_rows((batch.id, Timestamp(0)), &tested.on, rows, watch, found);
        let matches = self.query(tested, batch, rows)?;
        let external = matches.iter().map(|found| ExternalMatch {
            event_ordinal: found.event,
            subscription: found.subscription,
            given: &found.values,
        });
        self.shard.emit_external_matches((batch.id, Timestamp(0)), tested.rule, rows, external, found);
        Ok(())
    }
}

/// Events as a batch that is accepted now.
pub(super) fn batch_of(tested: &Tested, rows: &[Row], now: Timestamp) -> EventBatch {
    let mut packer = EventPacker::new(tested.fields.clone());
    rows.iter().for_each(|row| packer.push(row));
    EventBatch {
        id: EventBatchId(0),
        application: tested.application.clone(),
        version: 0,
        class: tested.on.clone(),
        source: api_source(),
        received_at: now,
        accepted_at: now,
        snapshot_sequence: None,
        events: packer.finish(),
        chronicled: Default::default(),
    }
}

/// Runs a query over the samples, and returns for each whether it matches this subscription.
pub(super) fn try_query(
    mut index: TestIndex,
    tested: &Tested,
    samples: Vec<Sample>,
    witness: &SubscriptionView,
    now: Timestamp,
) -> Vec<TestedEvent> {
    let fields = tested.rules.class_fields(&tested.class);
    if let (Some(tables), Some(fields)) = (&mut index.tables, fields) {
        // A subscription that is not stored, or is disabled, is tested as if it were stored and enabled.
        let one = IndexedSubscription {
            id: witness.id,
            subscriber: SubscriberNumber(0),
            class: witness.class.clone(),
            values: fields.to_json(&witness.row).into(),
            terms: SubscriptionParams::default(),
            created_at: now,
            enabled_at: None,
            channel: None,
        };
        let columns = tested.rules.subscriber_columns().map_or(0, |columns| columns.len());
        let columns = fields.len()..fields.len() + columns;
        tables.get_mut().put(&one, witness.row.get(columns).unwrap_or_default());
    }
    let (ids, rows): (Vec<Option<EventId>>, Vec<Row>) =
        samples.into_iter().map(|sample| (sample.id, sample.row)).unzip();
    let found = index.query(tested, &batch_of(tested, &rows, now), &rows);
    let event = |(ordinal, (id, row)): (u32, (Option<EventId>, &Row))| {
        let given = found
            .as_ref()
            .map_err(String::clone)
            .map(|found| found.iter().any(|found| found.event == ordinal && found.subscription == witness.id));
        let trial = tested.rules.try_queried(tested.rule, row, witness, given);
        TestedEvent { event: id, matches: u64::from(trial.matches), trial: Some(trial), ..TestedEvent::default() }
    };
    (0..).zip(ids.into_iter().zip(&rows)).map(event).collect()
}

/// Matches the samples, and returns the results for each.
pub(super) fn who_matches(
    index: &mut TestIndex,
    tested: &Tested,
    samples: Vec<Sample>,
    shown: usize,
    now: Timestamp,
) -> Vec<TestedEvent> {
    let (ids, rows): (Vec<Option<EventId>>, Vec<Row>) =
        samples.into_iter().map(|sample| (sample.id, sample.row)).unzip();
    let events = ids.into_iter().map(|event| TestedEvent { event, ..TestedEvent::default() }).collect();
    let only = |row: &Row| tested.is_lifecycle.then(|| subscription_of(row));
    let mut found = TestSink { events, shown, only: rows.iter().map(only).collect() };
    let began = Instant::now();
    if let Err(reason) = index.fire(tested, &batch_of(tested, &rows, now), &rows, &mut found) {
        found.events.iter_mut().for_each(|event| event.failures.push(reason.clone()));
        return found.events;
    }
    if let Some(late) = found.events.iter().position(|event| !event.failures.is_empty())
        && began.elapsed() > tested.time
    {
        let not_tried = found.events.iter_mut().skip(late + 1);
        not_tried.for_each(|event| event.failures.push("not tried: the rule's time was over".to_owned()));
    }
    found.events
}

struct TestSink {
    events: Vec<TestedEvent>,
    shown: usize,
    /// For lifecycle events, the subscription of each.
    only: Vec<Option<Option<SubscriptionId>>>,
}

impl MatchSink for TestSink {
    fn run(&mut self, run: Run<'_>) {
        let Some(event) = self.events.get_mut(run.event_ordinal as usize) else { return };
        if let Some(Some(only)) = self.only.get(run.event_ordinal as usize) {
            let is_match = run.slots.iter().any(|slot| Some(run.id(*slot)) == *only);
            event.matches += u64::from(is_match);
            event.subscriptions.extend(only.filter(|_| is_match && self.shown > 0));
            return;
        }
        event.matches += run.slots.len() as u64;
        let room = self.shown.saturating_sub(event.subscriptions.len());
        event.subscriptions.extend(run.slots.iter().take(room).map(|slot| run.id(*slot)));
    }

    fn rule_failed(&mut self, _: RuleNumber, event: EventId, error: EvalError) {
        if let Some(event) = self.events.get_mut(event.ordinal as usize) {
            event.failures.push(error.to_string());
        }
    }

    fn subscriptions_failed(&mut self, _: RuleNumber, event: EventId, error: EvalError, count: u32) {
        if let Some(event) = self.events.get_mut(event.ordinal as usize) {
            event.failures.push(format!("{error} (for {count} subscriptions or filters)"));
        }
    }
}
