//! An application's share of a quantum: its batches meet its index, its chronicles and its queries.

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tocsin_matching::{
    chronicle::{book::PREFIX, tables::EntryChange},
    rule::RuleNumber,
    state::remembered::Remembered,
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
    queries::Beside,
};

use super::{
    Matched, STATE_PAGES, build, event_fields,
    make_batches::new_batches,
    report::{report_failures, report_filtered, report_suppressed},
};
use crate::{
    Flow,
    follow_changes::Lost,
    guard::{LeftOut, Strikes},
    keep_busy, run_queries,
    shards::{Cut, Memory, UnpackedBatch},
    slow_firings::SlowFiring,
};

/// How often an index that was lost is built anew for one quantum.
const REBUILDS_MAX: usize = 3;

/// A batch that could be unpacked. Once its chronicles have taken it, it holds what rules read of them.
pub(super) struct Readable {
    pub batch: EventBatch,
    /// Those that it was packed with.
    pub fields: Fields,
    pub rows: Arc<[Row]>,
    /// Rules that do not fire for it.
    pub left_out: Vec<RuleNumber>,
    /// Whether it was matched before, by all rules or by others.
    pub again: bool,
    /// What the tables of chronicles say otherwise once the batch is taken, unless they were told already.
    pub entries: Vec<EntryChange>,
    /// The failures that rules have left at the first of the batches with which it is matched.
    pub strikes: Strikes,
}

/// The queries that gave no matches.
#[derive(Default)]
pub(super) struct Queried {
    /// Queries that failed for a batch, with the reason.
    pub failed: Vec<(EventBatchId, RuleNumber, String)>,
    /// Queries that were left out of a batch, since they had failed too often before it.
    pub stopped: Vec<(EventBatchId, RuleNumber)>,
}

impl Matched {
    /// Takes the next step to a place. Gives whether the index is there, and whole again if it was lost.
    pub(super) async fn follow(&mut self, flow: &Flow, name: &Name, place: ChangeSequence) -> Result<bool, StoreError> {
        let arrived = match self.followed.step_to(&*flow.records, place).await {
            Ok(true) => keep_busy(|| self.followed.settle()).map(|report| self.report = report).map(|()| true),
            Ok(false) => Ok(false),
            Err(Lost::Store(error)) => return Err(error),
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

    /// Matches batches in their order, and adds to the step what they give. Nothing is told of one that cannot be
    /// matched: the matches before the trouble come again when it is matched again. A rule that has failed too
    /// often is stopped within the batches.
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
        let mut left_out = LeftOut::default();
        let strikes = self.guard.strikes(&compiled);
        let guard = &mut self.guard;
        let unpack = |(batch, fields): (&EventBatch, Fields)| match rules.rows(batch, &fields) {
            Ok(rows) => {
                guard.before(&compiled, &stops, batch, now, &mut left_out);
                let left_out = left_out.of(batch.id);
                let batch = EventBatch { chronicled: Bytes::new(), ..batch.clone() };
                let rows = rows.into();
                let (again, entries, strikes) = (false, Vec::new(), strikes.clone());
                Some(Readable { batch, fields, rows, left_out, again, entries, strikes })
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
            self.note_slow(flow, &readable, &cut);
            // Nothing was told by them, so nothing is to be taken back.
            for (batch, rule, reason) in queries {
                left_out.fail(&compiled, batch, rule, reason, now);
            }
            for (batch, rule) in stopped {
                self.guard.skip(&compiled, batch, rule, now, &mut left_out);
            }
            let mut is_done = cut.stopped.is_empty();
            // A rule may panic on several shards, but once it is left out on none.
            let mut isolated: BTreeSet<(EventBatchId, RuleNumber)> = BTreeSet::new();
            for (id, rule) in &cut.panicked {
                is_done = false;
                let mut isolate = |rule: RuleNumber| {
                    let reason = "it made the matcher panic".to_owned();
                    isolated.contains(&(*id, rule))
                        || left_out.fail(&compiled, *id, rule, reason, now) && isolated.insert((*id, rule))
                };
                if !rule.is_some_and(&mut isolate) {
                    failed.insert(*id, "matching it made the matcher panic".to_owned());
                }
            }
            for failure in cut.failures.iter().filter(|failure| failure.whole) {
                let reason = format!("{} (event {})", failure.trouble, failure.event);
                is_done &= !left_out.fail(&compiled, failure.event.batch, failure.rule, reason, now);
            }
            // Shards that did not leave it out have matched it.
            for (batch, rule) in &cut.stopped {
                self.guard.skip(&compiled, *batch, *rule, now, &mut left_out);
            }
            if is_done {
                break cut;
            }
            // The others are matched anew, as if those had not been there: all of a firing is told, or nothing.
            // If a shard is gone, the next cut finds that out.
            let _ = keep_busy(|| self.followed.shards().remember(&Memory::Undo));
            readable.retain(|readable| !failed.contains_key(&readable.batch.id));
            for readable in &mut readable {
                readable.left_out = left_out.of(readable.batch.id);
            }
        };
        let mut oldest = now;
        for events in batches {
            match failed.remove(&events.batch.id) {
                Some(reason) => step.failed.push((events.claim, reason)),
                None => {
                    oldest = oldest.min(events.batch.accepted_at);
                    self.guard.after(&compiled, &events.batch, &left_out, now, &mut step.stops);
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
        // Of a batch that is set aside nothing else is listed: all its rules fire when it is matched again.
        let matched: BTreeSet<EventBatchId> = step.matched.iter().map(|claim| claim.id).collect();
        step.firings.extend(left_out.firings.into_iter().filter(|firing| matched.contains(&firing.batch)));
        report_failures(&compiled, &compiled.rules, &cut.failures);
        report_suppressed(&cut.suppressed);
        report_filtered(cut.filtered);
        step.states.extend(cut.states.into_iter().map(|page| (name.clone(), page)));
        // Rules may take seconds; a notification is made, and its time to live begins, when they have ended.
        let matched_at = flow.clock.now();
        step.batches.extend(keep_busy(|| new_batches(&compiled, &compiled.rules, cut.batches, oldest, matched_at)));
        Ok(())
    }

    /// Has the chronicles take the events of batches in their order, anew if they took some of them before. One that makes
    /// them panic is set aside.
    fn take_events(&mut self, readable: &mut Vec<Readable>, failed: &mut BTreeMap<EventBatchId, String>) {
        if !self.chronicles.is_kept() {
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
                    // Nobody asks the tables before the first batch, so that is where they stand already.
                    match tables.take() {
                        Some(tables) => {
                            chronicles.tell_tables(batch.accepted_at, &mut |change| run_queries::keep(tables, &change));
                        }
                        None => chronicles.tell_tables(batch.accepted_at, &mut |change| entries.push(change)),
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

    /// Lists the firings that took long.
    fn note_slow(&self, flow: &Flow, batches: &[Readable], cut: &Cut) {
        let least = flow.options.slow_rule();
        for ((id, rule), took) in cut.times.iter().filter(|(_, took)| **took >= least) {
            let Some(Readable { batch, .. }) = batches.iter().find(|readable| readable.batch.id == *id) else {
                continue;
            };
            let now = flow.clock.now();
            flow.slow_firings.note(SlowFiring::new(&self.compiled, &self.report, (batch, *rule), *took, now));
        }
    }

    /// Counts what chronicles did not take, and whom they forgot.
    fn report_incidents(&mut self, application: &Name) {
        for ((class, chronicle), incidents) in self.chronicles.take_incidents() {
            metrics::counter!("match_chronicle_evictions_total").increment(incidents.evicted);
            for (reason, count) in incidents.not_taken {
                metrics::counter!("match_chronicle_not_taken_total", "reason" => reason.name()).increment(count);
            }
            if let Some(trouble) = incidents.trouble {
                tracing::warn!(%application, %class, %chronicle, %trouble, "a chronicle could not take an event");
            }
        }
    }

    /// Has the shards match batches, each as of its place, and gives what they made of all, with the queries that failed.
    /// An index that is lost on the way is built anew, and all are matched by that.
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
                Err(Lost::Store(error)) => {
                    self.remembers = false;
                    // What the shards have made so far is of no use to the next quantum.
                    let _ = keep_busy(|| self.followed.settle());
                    return Err(error);
                }
                Err(lost) if rebuilds < REBUILDS_MAX => {
                    rebuilds += 1;
                    let first = batches.first().and_then(|readable| readable.batch.sees);
                    self.rebuild(flow, name, first.unwrap_or_else(|| flow.places.newest()), &lost).await?;
                    if self.compiled.rules.remembers() || self.compiled.rules.has_chronicle_tables() {
                        // What they remember is read again first, when nothing is on its way to the journal. So are
                        // chronicles, of which new tables know nothing.
                        return Err(StoreError::unavailable(lost));
                    }
                }
                Err(lost) => return Err(StoreError::unavailable(lost)),
            }
        }
    }

    async fn try_cut(&mut self, flow: &Flow, name: &Name, batches: &[Readable]) -> Result<(Cut, Queried), Lost> {
        keep_busy(|| self.followed.shards().remember(&Memory::Begin))?;
        let (mut queried, mut failures) = (Queried::default(), BTreeMap::new());
        let mut times = BTreeMap::new();
        let mut runs = batches.chunk_by(|one, next| one.batch.sees == next.batch.sees).peekable();
        while let Some(run) = runs.next() {
            self.go_to(flow, name, run[0].batch.sees).await?;
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

    /// Runs the queries that a batch fires by the tables as they stand, and gives the batch for the shards.
    fn query(
        &mut self,
        readable: &Readable,
        queried: &mut Queried,
        failures: &mut BTreeMap<RuleNumber, u32>,
        times: &mut BTreeMap<(EventBatchId, RuleNumber), Duration>,
    ) -> UnpackedBatch {
        let Readable { batch, fields, rows, left_out, again, entries, strikes } = readable;
        let rules = &self.compiled.rules;
        let mut left_out = left_out.clone();
        for (rule, failures) in &*failures {
            let is_stopped = strikes.get(rule).is_some_and(|strikes| failures >= strikes);
            if is_stopped && *rules.event_class(*rule) == batch.class && !left_out.contains(rule) {
                left_out.push(*rule);
                queried.stopped.push((batch.id, *rule));
            }
        }
        let fires = |rule: &Name| rules.number(rule.as_str()).is_none_or(|number| !left_out.contains(&number));
        let told = self.followed.queries().map_or_else(Vec::new, |queries| {
            entries.iter().for_each(|change| run_queries::keep(queries, change));
            let (first, columns) = rules.columns_of_queries(&batch.class);
            let beside = Beside { columns: &columns, first, rows };
            run_queries::run(queries, batch, fields, &beside, &fires)
        });
        for firing in &told {
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
            left_out,
            again: *again,
            told,
            strikes: strikes.clone(),
        }
    }

    /// Brings the index to a place; where the records do not remember it any more, the index stays where it stands.
    async fn go_to(&mut self, flow: &Flow, name: &Name, sees: Option<ChangeSequence>) -> Result<(), Lost> {
        match self.followed.go_to(&*flow.records, sees.unwrap_or_else(|| flow.places.newest())).await {
            Err(Lost::Place(place)) => {
                let stands = self.followed.place();
                metrics::counter!("match_displaced_batches_total").increment(1);
                tracing::warn!(
                    application = %name,
                    sees = place.0,
                    matched_at = stands.0,
                    "the records no longer know what event batches should see; they are matched by what is known"
                );
                Ok(())
            }
            done => done,
        }
    }

    /// Makes the shards remember what the journal does, and nothing else, if they do not; for the subscriptions as of a
    /// place, or as they are.
    pub(super) async fn remember(
        &mut self,
        flow: &Flow,
        name: &Name,
        sees: Option<ChangeSequence>,
    ) -> Result<(), StoreError> {
        if self.remembers {
            return Ok(());
        }
        let mut pages: Vec<StatePage> = Vec::new();
        loop {
            let more = flow.journal.state_pages(name, pages.last(), STATE_PAGES).await?;
            let is_last = more.len() < STATE_PAGES;
            pages.extend(more);
            if is_last {
                break;
            }
        }
        if let (Some(_), Err(lost)) = (sees, self.go_to(flow, name, sees).await) {
            self.rebuild(flow, name, sees.unwrap_or_else(|| flow.places.newest()), &lost).await?;
        }
        let rules = self.compiled.rules.clone();
        let (chronicled, pages): (Vec<_>, Vec<_>) = pages.into_iter().partition(|page| page.name.starts_with(PREFIX));
        let damaged = keep_busy(|| self.chronicles.restore(chronicled));
        let remembered = Remembered::read(&rules, pages);
        if remembered.damaged + damaged > 0 {
            let pages = remembered.damaged + damaged;
            tracing::error!(application = %name, pages, "what rules remember is damaged in part and begins anew there");
        }
        let remembered = Arc::new(Mutex::new(remembered));
        let restored = keep_busy(|| {
            self.followed.shards().remember(&Memory::Restore(remembered.clone()))?;
            // Each shard has taken its own when all have answered.
            self.followed.settle()?;
            let rest = std::mem::take(&mut *remembered.lock()).rest(&rules);
            self.followed.shards().remember(&Memory::TakeOver(rest.into()))
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
        lost: &Lost,
    ) -> Result<(), StoreError> {
        tracing::warn!(application = %name, reason = %lost, "the match index is built anew");
        metrics::counter!("match_index_rebuilds_total").increment(1);
        self.remembers = false;
        self.followed = build(flow, &self.compiled, place).await?;
        self.report = keep_busy(|| self.followed.settle()).map_err(StoreError::unavailable)?;
        Ok(())
    }
}
