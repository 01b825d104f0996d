//! An application with its index, chronicles and queries, and the match of batches against them.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tocsin_matching::{
    chronicle::{
        store::{ChronicleStore, PREFIX},
        tables::EntryChange,
    },
    rule::RuleNumber,
    state::restored::RestoredStates,
};
use tocsin_model::{
    event::EventBatch,
    field::{Fields, Row},
    id::{ChangeSequence, EventBatchId, Name},
};
use tocsin_store::{error::StoreError, queries::ExtraColumns};

use super::{build_index::build, index_status::IndexStatus, rule_state::read_rule_state};
use crate::{
    Flow,
    compile::Compiled,
    follow_changes::{FollowError, Followed},
    keep_busy,
    rule_breaker::{RuleBreaker, RuleFailureCounts},
    run_queries,
    shards::{Cut, IndexReport, RuleStateCommand, UnpackedBatch},
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

/// An application with its index and state.
pub(super) struct Matched {
    pub compiled: Arc<Compiled>,
    pub followed: Followed,
    pub report: IndexReport,
    pub breaker: RuleBreaker,
    /// Per-key aggregates of its events, computed here before any shard matches.
    pub chronicles: ChronicleStore,
    /// Whether shards and chronicles hold the state of the journal. If not, it is read before the next match.
    pub remembers: bool,
}

impl Matched {
    /// Blocks until the owners of the index have applied all changes sent to them.
    pub fn new(compiled: Arc<Compiled>, mut followed: Followed, breaker: RuleBreaker) -> Matched {
        // If a shard is already lost, matching will find out.
        let report = keep_busy(|| followed.wait_until_applied()).unwrap_or_default();
        let chronicles = ChronicleStore::new(compiled.rules.clone());
        Matched { compiled, followed, report, breaker, chronicles, remembers: false }
    }

    /// Publishes the status of the index.
    pub fn publish(&self, flow: &Flow) {
        let status = IndexStatus {
            version: self.compiled.version,
            report: self.report.clone(),
            place: self.followed.place(),
            chronicle_keys: self.chronicles.keys(),
        };
        flow.publish(&self.compiled.application.name, Some(status));
    }
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
        let pages = read_rule_state(flow, name).await?;
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
