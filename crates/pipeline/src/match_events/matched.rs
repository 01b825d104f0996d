//! Matches the batches of one application's quantum against its index, chronicles and queries.

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tocsin_matching::{
    chronicle::{store::PREFIX, tables::EntryChange},
    rule::RuleNumber,
    state::restored::RestoredStates,
};
use tocsin_model::{
    event::EventBatch,
    field::{Fields, Row},
    id::{ChangeSequence, EventBatchId, Name},
    state::StatePage,
};
use tocsin_store::{
    error::StoreError,
    journal::{ClaimedEvents, Step},
    queries::ExtraColumns,
};

use super::{
    Matched, STATE_PAGES, build, event_fields,
    make_batches::new_batches,
    report::{report_failures, report_filtered, report_suppressed},
};
use crate::{
    Flow,
    follow_changes::FollowError,
    keep_busy,
    rule_breaker::{IsolatedRules, RuleFailureCounts},
    run_queries,
    shards::{Cut, RuleStateCommand, UnpackedBatch},
    slow_firings::SlowFiring,
};

/// Rebuilds of a lost index per quantum.
const REBUILDS_MAX: usize = 3;

/// An unpacked batch. Once the chronicles have processed it, it holds the values that rules read from them.
pub(super) struct Readable {
    pub batch: EventBatch,
    /// Fields it was packed with.
    pub fields: Fields,
    pub rows: Arc<[Row]>,
    /// Rules that do not fire for it.
    pub excluded_rules: Vec<RuleNumber>,
    /// Whether it was matched before, by all rules or by others.
    pub again: bool,
    /// Changes of chronicle tables after this batch, unless they were already applied.
    pub entries: Vec<EntryChange>,
    /// Failures left to each rule before it is stopped, as of the first batch of the quantum.
    pub failure_counts: RuleFailureCounts,
}

/// Query results other than matches.
#[derive(Default)]
pub(super) struct Queried {
    /// Queries that failed for a batch, with the reason.
    pub failed: Vec<(EventBatchId, RuleNumber, String)>,
    /// Queries left out of a batch because they had failed too often.
    pub stopped: Vec<(EventBatchId, RuleNumber)>,
}

impl Matched {
    /// Advances the index by one step towards a change sequence. Returns whether the index is available and intact.
    pub(super) async fn advance(
        &mut self,
        flow: &Flow,
        name: &Name,
        place: ChangeSequence,
    ) -> Result<bool, StoreError> {
        let arrived = match self.followed.step_to(&*flow.match_store, place).await {
            Ok(true) => {
                keep_busy(|| self.followed.wait_until_applied()).map(|report| self.report = report).map(|()| true)
            }
            Ok(false) => Ok(false),
            Err(FollowError::Store(error)) => return Err(error),
            Err(lost) => {
                self.rebuild(flow, name, place, &lost).await?;
                return Ok(true);
            }
        };
        match arrived {
            Ok(arrived) => Ok(arrived),
            Err(gone) => self.rebuild(flow, name, place, &gone.into()).await.map(|()| true),
        }
    }

    /// Matches batches in order and adds the results to the step. A batch that fails yields no notifications: its
    /// matches come again when it is matched again. A rule that fails too often is stopped within the quantum.
    pub(super) async fn match_batches(
        &mut self,
        flow: &Flow,
        name: &Name,
        batches: &[&ClaimedEvents],
        step: &mut Step,
    ) -> Result<(), StoreError> {
        let now = flow.clock.now();
        let mut failed: BTreeMap<EventBatchId, String> = BTreeMap::new();
        let mut fields = Vec::with_capacity(batches.len());
        for events in batches {
            match event_fields(flow, &events.batch).await? {
                Ok(found) => fields.push((&events.batch, found)),
                Err(reason) => {
                    failed.insert(events.batch.id, reason);
                }
            }
        }
        let compiled = self.compiled.clone();
        let rules = compiled.rules.clone();
        let stops = flow.stops.lock().clone();
        let mut isolation = IsolatedRules::default();
        let failure_counts = self.breaker.failure_counts(&compiled);
        let breaker = &mut self.breaker;
        let unpack = |(batch, fields): (&EventBatch, Fields)| match rules.rows(batch, &fields) {
            Ok(rows) => {
                breaker.before(&compiled, &stops, batch, now, &mut isolation);
                let excluded_rules = isolation.of(batch.id);
                let batch = EventBatch { chronicled: Bytes::new(), ..batch.clone() };
                let rows = rows.into();
                let (again, entries, failure_counts) = (false, Vec::new(), failure_counts.clone());
                Some(Readable { batch, fields, rows, excluded_rules, again, entries, failure_counts })
            }
            Err(damaged) => {
                failed.insert(batch.id, damaged.to_string());
                None
            }
        };
        let mut readable: Vec<Readable> = keep_busy(|| fields.into_iter().filter_map(unpack).collect());
        let cut = loop {
            keep_busy(|| self.take_events(&mut readable, &mut failed));
            let (cut, Queried { failed: queries, stopped }) = self.cut(flow, name, &readable).await?;
            self.report = self.followed.with_queries(cut.report.clone());
            self.record_slow_rules(flow, &readable, &cut);
            // They produced no matches, so there is nothing to undo.
            for (batch, rule, reason) in queries {
                isolation.fail(&compiled, batch, rule, reason, now);
            }
            for (batch, rule) in stopped {
                self.breaker.skip(&compiled, batch, rule, now, &mut isolation);
            }
            let mut is_done = cut.stopped.is_empty();
            // A rule may panic on several shards, but is isolated once.
            let mut isolated: BTreeSet<(EventBatchId, RuleNumber)> = BTreeSet::new();
            for (id, rule) in &cut.panicked {
                is_done = false;
                let mut isolate = |rule: RuleNumber| {
                    let reason = "it made the matcher panic".to_owned();
                    isolated.contains(&(*id, rule))
                        || isolation.fail(&compiled, *id, rule, reason, now) && isolated.insert((*id, rule))
                };
                if !rule.is_some_and(&mut isolate) {
                    failed.insert(*id, "matching it made the matcher panic".to_owned());
                }
            }
            for failure in cut.failures.iter().filter(|failure| failure.whole) {
                let reason = format!("{} (event {})", failure.error, failure.event);
                is_done &= !isolation.fail(&compiled, failure.event.batch, failure.rule, reason, now);
            }
            // Shards that did not leave it out have matched it.
            for (batch, rule) in &cut.stopped {
                self.breaker.skip(&compiled, *batch, *rule, now, &mut isolation);
            }
            if is_done {
                break cut;
            }
            // The other rules are matched again without the failed ones: a firing is complete or does not happen. If
            // a shard is lost, the next cut finds out.
            let _ = keep_busy(|| self.followed.shards().apply_state_command(&RuleStateCommand::Undo));
            readable.retain(|readable| !failed.contains_key(&readable.batch.id));
            for readable in &mut readable {
                readable.excluded_rules = isolation.of(readable.batch.id);
            }
        };
        let mut oldest = now;
        for events in batches {
            match failed.remove(&events.batch.id) {
                Some(reason) => step.failed.push((events.claim, reason)),
                None => {
                    oldest = oldest.min(events.batch.accepted_at);
                    self.breaker.after(&compiled, &events.batch, &isolation, now, &mut step.stops);
                    step.matched.push(events.claim);
                }
            }
        }
        for Readable { batch, .. } in readable.iter().filter(|readable| !readable.batch.chronicled.is_empty()) {
            step.chronicled.push((batch.id, batch.chronicled.clone()));
        }
        let pages = self.chronicles.take_changes();
        step.states.extend(pages.into_iter().map(|page| (name.clone(), page)));
        self.report_incidents(name);
        // For a batch that is set aside nothing else is listed: all its rules fire when it is matched again.
        let matched: BTreeSet<EventBatchId> = step.matched.iter().map(|claim| claim.id).collect();
        step.firings.extend(isolation.firings.into_iter().filter(|firing| matched.contains(&firing.batch)));
        report_failures(&compiled, &compiled.rules, &cut.failures);
        report_suppressed(&cut.suppressed);
        report_filtered(cut.filtered);
        step.states.extend(cut.states.into_iter().map(|page| (name.clone(), page)));
        // Rules may take seconds; a notification is made, and its time to live begins, when they end.
        let matched_at = flow.clock.now();
        step.batches.extend(keep_busy(|| new_batches(&compiled, &compiled.rules, cut.batches, oldest, matched_at)));
        Ok(())
    }

    /// Processes the events of batches by the chronicles in order, or again after a failure. A batch that makes them
    /// panic is set aside.
    fn take_events(&mut self, readable: &mut Vec<Readable>, failed: &mut BTreeMap<EventBatchId, String>) {
        if !self.chronicles.has_chronicles() {
            return;
        }
        let chronicles = &mut self.chronicles;
        loop {
            chronicles.undo();
            chronicles.begin();
            let mut tables = self.followed.queries();
            let culprit = readable.iter_mut().position(|Readable { batch, rows, entries, .. }| {
                entries.clear();
                let take = || {
                    let packed = chronicles.take(&batch.class, Arc::make_mut(rows), batch.accepted_at);
                    // Before the first batch the tables are not read, so this is their initial state.
                    match tables.take() {
                        Some(tables) => {
                            chronicles.publish_tables(batch.accepted_at, &mut |change| {
                                run_queries::apply_chronicle_change(tables, &change)
                            });
                        }
                        None => chronicles.publish_tables(batch.accepted_at, &mut |change| entries.push(change)),
                    }
                    packed
                };
                let taken = catch_unwind(AssertUnwindSafe(take));
                taken.map(|packed| batch.chronicled = packed).is_err()
            });
            let Some(culprit) = culprit else { return };
            let reason = "its chronicles made the matcher panic".to_owned();
            failed.insert(readable.remove(culprit).batch.id, reason);
        }
    }

    /// Lists slow firings.
    fn record_slow_rules(&self, flow: &Flow, batches: &[Readable], cut: &Cut) {
        let least = flow.options.slow_rule();
        for ((id, rule), took) in cut.times.iter().filter(|(_, took)| **took >= least) {
            let Some(Readable { batch, .. }) = batches.iter().find(|readable| readable.batch.id == *id) else {
                continue;
            };
            let now = flow.clock.now();
            flow.slow_firings.add(SlowFiring::new(&self.compiled, &self.report, (batch, *rule), *took, now));
        }
    }

    /// Counts events that chronicles rejected and keys that they evicted.
    fn report_incidents(&mut self, application: &Name) {
        for ((class, chronicle), incidents) in self.chronicles.take_incidents() {
            metrics::counter!("tocsin_match_chronicle_evictions_total").increment(incidents.evicted);
            for (reason, count) in incidents.not_taken {
                metrics::counter!("tocsin_match_chronicle_skipped_total", "reason" => reason.name()).increment(count);
            }
            if let Some(error) = incidents.error {
                tracing::warn!(%application, %class, %chronicle, %error, "a chronicle could not take an event");
            }
        }
    }

    /// Matches batches on the shards, each at its snapshot sequence. Returns the results and the failed queries. A
    /// lost index is rebuilt and matches all batches again.
    pub(super) async fn cut(
        &mut self,
        flow: &Flow,
        name: &Name,
        batches: &[Readable],
    ) -> Result<(Cut, Queried), StoreError> {
        let mut rebuilds = 0;
        loop {
            match self.try_cut(flow, name, batches).await {
                Ok(cut) => return Ok(cut),
                Err(FollowError::Store(error)) => {
                    self.remembers = false;
                    // Results so far are discarded; the next quantum does not use them.
                    let _ = keep_busy(|| self.followed.wait_until_applied());
                    return Err(error);
                }
                Err(lost) if rebuilds < REBUILDS_MAX => {
                    rebuilds += 1;
                    let first = batches.first().and_then(|readable| readable.batch.snapshot_sequence);
                    self.rebuild(flow, name, first.unwrap_or_else(|| flow.snapshots.newest()), &lost).await?;
                    if self.compiled.rules.has_state() || self.compiled.rules.has_chronicle_tables() {
                        // State is read again first, when no commit is in progress. Chronicles too: new tables hold
                        // nothing.
                        return Err(StoreError::unavailable(lost));
                    }
                }
                Err(lost) => return Err(StoreError::unavailable(lost)),
            }
        }
    }

    async fn try_cut(&mut self, flow: &Flow, name: &Name, batches: &[Readable]) -> Result<(Cut, Queried), FollowError> {
        keep_busy(|| self.followed.shards().apply_state_command(&RuleStateCommand::Begin))?;
        let (mut queried, mut failures) = (Queried::default(), BTreeMap::new());
        let mut times = BTreeMap::new();
        let mut runs =
            batches.chunk_by(|one, next| one.batch.snapshot_sequence == next.batch.snapshot_sequence).peekable();
        while let Some(run) = runs.next() {
            self.move_to(flow, name, run[0].batch.snapshot_sequence).await?;
            let unpacked: Arc<[UnpackedBatch]> = keep_busy(|| {
                let mut query = |readable| self.query(readable, &mut queried, &mut failures, &mut times);
                run.iter().map(&mut query).collect()
            });
            if runs.peek().is_some() {
                keep_busy(|| self.followed.shards().match_batches(&unpacked))?;
            } else {
                let mut cut = keep_busy(|| self.followed.shards().match_and_cut(unpacked))?;
                cut.times.extend(times);
                return Ok((cut, queried));
            }
        }
        Ok((Cut::default(), queried))
    }

    /// Runs the queries for a batch on the current tables, and returns the batch for the shards.
    fn query(
        &mut self,
        readable: &Readable,
        queried: &mut Queried,
        failures: &mut BTreeMap<RuleNumber, u32>,
        times: &mut BTreeMap<(EventBatchId, RuleNumber), Duration>,
    ) -> UnpackedBatch {
        let Readable { batch, fields, rows, excluded_rules, again, entries, failure_counts } = readable;
        let rules = &self.compiled.rules;
        let mut excluded_rules = excluded_rules.clone();
        for (rule, failures) in &*failures {
            let is_stopped = failure_counts.get(rule).is_some_and(|failure_counts| failures >= failure_counts);
            if is_stopped && *rules.event_class(*rule) == batch.class && !excluded_rules.contains(rule) {
                excluded_rules.push(*rule);
                queried.stopped.push((batch.id, *rule));
            }
        }
        let fires = |rule: &Name| rules.number(rule.as_str()).is_none_or(|number| !excluded_rules.contains(&number));
        let query_matches = self.followed.queries().map_or_else(Vec::new, |queries| {
            entries.iter().for_each(|change| run_queries::apply_chronicle_change(queries, change));
            let (first, columns) = rules.columns_of_queries(&batch.class);
            let beside = ExtraColumns { columns: &columns, first, rows };
            run_queries::run(queries, batch, fields, &beside, &fires)
        });
        for firing in &query_matches {
            let Some(number) = rules.number(firing.rule.as_str()) else { continue };
            times.insert((batch.id, number), firing.took);
            match &firing.outcome {
                Err(reason) => {
                    *failures.entry(number).or_default() += 1;
                    queried.failed.push((batch.id, number, reason.clone()));
                }
                Ok(_) => drop(failures.remove(&number)),
            }
        }
        UnpackedBatch {
            id: batch.id,
            accepted_at: batch.accepted_at,
            class: batch.class.clone(),
            rows: rows.clone(),
            excluded_rules,
            again: *again,
            query_matches,
            failure_counts: failure_counts.clone(),
        }
    }

    /// Brings the index to a change sequence. If the change feed no longer reaches back to it, the index stays where
    /// it is.
    async fn move_to(
        &mut self,
        flow: &Flow,
        name: &Name,
        snapshot_sequence: Option<ChangeSequence>,
    ) -> Result<(), FollowError> {
        match self
            .followed
            .move_to(&*flow.match_store, snapshot_sequence.unwrap_or_else(|| flow.snapshots.newest()))
            .await
        {
            Err(FollowError::SequenceTrimmed(place)) => {
                let stands = self.followed.place();
                metrics::counter!("tocsin_match_later_snapshot_total").increment(1);
                tracing::warn!(
                    application = %name,
                    snapshot_sequence = place.0,
                    matched_at = stands.0,
                    "the change feed no longer reaches back to the snapshot of event batches; they are matched at the current state of the index"
                );
                Ok(())
            }
            done => done,
        }
    }

    /// Reloads the shards' rule state from the journal if they differ, for the subscriptions at a change sequence or
    /// at the newest.
    pub(super) async fn load_rule_state(
        &mut self,
        flow: &Flow,
        name: &Name,
        snapshot_sequence: Option<ChangeSequence>,
    ) -> Result<(), StoreError> {
        if self.remembers {
            return Ok(());
        }
        let mut pages: Vec<StatePage> = Vec::new();
        loop {
            let more = flow.rule_store.state_pages(name, pages.last(), STATE_PAGES).await?;
            let is_last = more.len() < STATE_PAGES;
            pages.extend(more);
            if is_last {
                break;
            }
        }
        if let (Some(_), Err(lost)) = (snapshot_sequence, self.move_to(flow, name, snapshot_sequence).await) {
            self.rebuild(flow, name, snapshot_sequence.unwrap_or_else(|| flow.snapshots.newest()), &lost).await?;
        }
        let rules = self.compiled.rules.clone();
        let (chronicled, pages): (Vec<_>, Vec<_>) = pages.into_iter().partition(|page| page.name.starts_with(PREFIX));
        let damaged = keep_busy(|| self.chronicles.restore(chronicled));
        let remembered = RestoredStates::read(&rules, pages);
        if remembered.damaged + damaged > 0 {
            let pages = remembered.damaged + damaged;
            tracing::error!(application = %name, pages, "stored rule state is damaged in part; the affected pages start empty");
        }
        let remembered = Arc::new(Mutex::new(remembered));
        let restored = keep_busy(|| {
            self.followed.shards().apply_state_command(&RuleStateCommand::Restore(remembered.clone()))?;
            // When all shards have answered, each has taken its own pages.
            self.followed.wait_until_applied()?;
            let rest = std::mem::take(&mut *remembered.lock()).rest(&rules);
            self.followed.shards().apply_state_command(&RuleStateCommand::TakeOver(rest.into()))
        });
        restored.map_err(StoreError::unavailable)?;
        self.remembers = true;
        Ok(())
    }

    pub(super) async fn rebuild(
        &mut self,
        flow: &Flow,
        name: &Name,
        place: ChangeSequence,
        lost: &FollowError,
    ) -> Result<(), StoreError> {
        tracing::warn!(application = %name, reason = %lost, "the match index is built anew");
        metrics::counter!("tocsin_match_index_rebuilds_total").increment(1);
        self.remembers = false;
        self.followed = build(flow, &self.compiled, place).await?;
        self.report = keep_busy(|| self.followed.wait_until_applied()).map_err(StoreError::unavailable)?;
        Ok(())
    }
}
