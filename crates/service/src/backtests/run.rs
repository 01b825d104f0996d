//! The job of a backtest.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::{Duration, Instant},
};

use tocsin_model::{
    event::EventBatch,
    id::{ChangeSequence, EventBatchId, EventId, Name, SubscriberId, SubscriberNumber, SubscriptionId},
    time::Timestamp,
};
use tocsin_store::journal::EventRange;

use super::{Backtest, BacktestState, Counts, Example, Job, SUBSCRIBERS_MAX, Versions, compare::Comparison};
use crate::{Service, error::ServiceError, rules::SUBSCRIPTIONS_MAX};

/// Packed bytes of events that are read at a time.
const PAGE_BYTES: usize = 1 << 20;
/// Tolerance for a clock that is set back between batches.
const LATENESS: Duration = Duration::from_secs(1);
/// Subscriptions whose owners are read at a time.
const OWNERS_PAGE: usize = 1_000;
/// Longest pause after a batch.
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// Errors of evaluations that are listed as warnings.
const FAILURES_MAX: usize = 5;

impl Service {
    /// Waits for the turn of a backtest and runs it.
    pub(super) async fn run_backtest(&self, job: &Job, versions: Versions) {
        let turn = job.cancel.run_until_cancelled(self.backtests.turn.acquire()).await;
        let Some(Ok(_turn)) = turn else { return };
        let backtest = {
            let mut backtest = job.backtest.lock();
            backtest.progress.state = BacktestState::Running;
            backtest.progress.started_at = Some(self.clock.now());
            backtest.clone()
        };
        let ended = job.cancel.run_until_cancelled(self.evaluate_backtest(job, &backtest, versions)).await;
        let mut backtest = job.backtest.lock();
        let progress = &mut backtest.progress;
        progress.ended_at = Some(self.clock.now());
        match ended {
            Some(Ok(())) => (progress.state, progress.fraction) = (BacktestState::Done, 1.0),
            // It is removed from the list.
            None => {}
            Some(Err(error)) => {
                progress.state = BacktestState::Failed;
                progress.reason = Some(error.to_string());
            }
        }
    }

    async fn evaluate_backtest(&self, job: &Job, backtest: &Backtest, versions: Versions) -> Result<(), ServiceError> {
        let began = Instant::now();
        let Versions { tested, baseline } = versions;
        let (tested_index, unusable, all) = self.test_index(&tested, SUBSCRIPTIONS_MAX, &[]).await?;
        let (baseline_index, ..) = self.test_index(&baseline, SUBSCRIPTIONS_MAX, &[]).await?;
        let mut warnings = vec![
            "subscriptions are evaluated as they are now; the state of the rule begins empty; delays are not applied"
                .to_owned(),
        ];
        if !all {
            warnings.push(format!("only the first {SUBSCRIPTIONS_MAX} subscriptions are evaluated"));
        }
        let running = self.running(&backtest.application)?;
        let kept = running.rules.chronicle_columns(&tested.on);
        let missing = tested.rules.chronicle_columns(&tested.on).into_iter().filter(|column| !kept.contains(column));
        warnings.extend(missing.map(|column| format!("`{column}` is not stored with events: it is null")));
        {
            let progress = &mut job.backtest.lock().progress;
            (progress.subscriptions, progress.unusable) = (tested_index.shard.len(), unusable);
            progress.warnings = warnings;
        }
        let mut comparison = Comparison::new(tested_index.shard, baseline_index.shard);
        let mut days: BTreeMap<String, (u64, Counts)> = BTreeMap::new();
        let mut unreadable = 0;
        let limit = Duration::from_secs(backtest.seconds_max as u64);
        let mut after = self.event_log.position_at(backtest.from).await?;
        'pages: loop {
            let range = EventRange {
                application: &backtest.application,
                class: &tested.on,
                after,
                before: EventBatchId(i64::MAX as u64),
                bytes: PAGE_BYTES,
            };
            let page = self.event_log.events_between(range).await?;
            unreadable += page.damaged.len();
            for batch in page.batches {
                if batch.accepted_at >= backtest.to + LATENESS {
                    break 'pages;
                }
                if batch.accepted_at < backtest.from || batch.accepted_at >= backtest.to {
                    continue;
                }
                let (events, at) = (u64::from(batch.events.count()), batch.accepted_at);
                let Some(rows) = self.backtest_rows(&tested, &baseline, &batch).await? else {
                    unreadable += 1;
                    continue;
                };
                let stopped_by = {
                    let progress = &job.backtest.lock().progress;
                    match () {
                        () if progress.events + events > backtest.events_max as u64 => Some("events"),
                        () if began.elapsed() >= limit => Some("time"),
                        () => None,
                    }
                };
                if stopped_by.is_some() {
                    job.backtest.lock().progress.stopped_by = stopped_by;
                    break 'pages;
                }
                let class = tested.on.clone();
                let evaluate = move || {
                    let began = Instant::now();
                    let counts = comparison.evaluate((batch.id, batch.accepted_at), &class, &rows.0, &rows.1);
                    (comparison, counts, began.elapsed())
                };
                let evaluated = tokio::task::spawn_blocking(evaluate).await;
                let (returned, counts, took) = evaluated.map_err(|error| ServiceError::Unavailable(error.into()))?;
                comparison = returned;
                let day = days.entry(at.to_string().chars().take(10).collect()).or_default();
                day.0 += events;
                day.1.add(counts);
                {
                    let progress = &mut job.backtest.lock().progress;
                    progress.batches += 1;
                    progress.events += events;
                    progress.at = Some(at);
                    progress.totals.add(counts);
                    progress.fraction = part(backtest, at);
                    progress.days =
                        days.iter().map(|(day, (events, counts))| (day.clone(), *events, *counts)).collect();
                }
                // The pipeline comes first: at most half of one core is used.
                tokio::time::sleep(took.min(PAUSE_MAX)).await;
            }
            match page.next {
                Some(next) => after = next,
                None => break,
            }
        }
        self.finish_backtest(job, backtest, comparison, unreadable).await
    }

    /// The events of a batch as rows of both versions; `None` if they cannot be read.
    async fn backtest_rows(
        &self,
        tested: &crate::rules::Tested,
        baseline: &crate::rules::Tested,
        batch: &EventBatch,
    ) -> Result<Option<Rows>, ServiceError> {
        let fields = match self.fields_of(batch).await {
            Ok(fields) => fields,
            Err(ServiceError::Missing(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let (tested, baseline) = (tested.rules.rows(batch, &fields), baseline.rules.rows(batch, &fields));
        Ok(tested.ok().zip(baseline.ok()))
    }

    /// Resolves subscribers and stores the result.
    async fn finish_backtest(
        &self,
        job: &Job,
        backtest: &Backtest,
        comparison: Comparison,
        unreadable: usize,
    ) -> Result<(), ServiceError> {
        let Comparison { subscriptions, gained, lost, failures, .. } = comparison;
        let examples = gained.iter().chain(&lost).map(|(_, id)| *id);
        let changed = subscriptions.iter().filter(|(_, counts)| counts.changes() > 0).map(|(id, _)| *id);
        let wanted: BTreeSet<SubscriptionId> = changed.chain(examples).collect();
        let owners = self.owners(&backtest.application, &wanted).await?;
        let mut by_subscriber: HashMap<SubscriberNumber, Counts> = HashMap::new();
        for (id, counts) in &subscriptions {
            if let Some(owner) = owners.get(id) {
                by_subscriber.entry(*owner).or_default().add(*counts);
            }
        }
        let mut ordered: Vec<(SubscriberNumber, Counts)> = by_subscriber.into_iter().collect();
        ordered.sort_by_key(|(number, counts)| (std::cmp::Reverse(counts.changes()), *number));
        let more = ordered.len().saturating_sub(SUBSCRIBERS_MAX);
        ordered.truncate(SUBSCRIBERS_MAX);
        let shown: BTreeSet<SubscriberNumber> = {
            let shown = gained.iter().chain(&lost).filter_map(|(_, id)| owners.get(id).copied());
            ordered.iter().map(|(number, _)| *number).chain(shown).collect()
        };
        let numbers: Vec<SubscriberNumber> = shown.into_iter().collect();
        let profiles = self.match_store.profiles(&numbers, ChangeSequence(u64::MAX)).await?;
        let ids = numbers.into_iter().zip(profiles).filter_map(|(number, found)| Some((number, found?.id.clone())));
        let ids: HashMap<SubscriberNumber, SubscriberId> = ids.collect();
        let example = |(event, subscription): (EventId, SubscriptionId)| {
            let subscriber = owners.get(&subscription).and_then(|number| ids.get(number)).cloned();
            Example { event, subscription, subscriber }
        };
        let progress = &mut job.backtest.lock().progress;
        progress.subscribers =
            ordered.into_iter().filter_map(|(number, counts)| Some((ids.get(&number)?.clone(), counts))).collect();
        progress.subscribers_more = more;
        progress.gained = gained.into_iter().map(example).collect();
        progress.lost = lost.into_iter().map(example).collect();
        if unreadable > 0 {
            progress.warnings.push(format!("{unreadable} event batches cannot be read any more"));
        }
        let mut failures: Vec<(String, u64)> = failures.into_iter().collect();
        failures.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let text = |(error, count): (String, u64)| format!("{count} evaluations failed: {error}");
        progress.warnings.extend(failures.into_iter().take(FAILURES_MAX).map(text));
        Ok(())
    }

    /// The owners of subscriptions, as of now.
    async fn owners(
        &self,
        application: &Name,
        subscriptions: &BTreeSet<SubscriptionId>,
    ) -> Result<HashMap<SubscriptionId, SubscriberNumber>, ServiceError> {
        let mut owners = HashMap::new();
        let ids: Vec<SubscriptionId> = subscriptions.iter().copied().collect();
        for page in ids.chunks(OWNERS_PAGE) {
            let ranges: Vec<_> = page.iter().map(|id| *id..=*id).collect();
            let found = self.match_store.indexed_at(application, &ranges, ChangeSequence(u64::MAX)).await?;
            owners.extend(found.into_iter().map(|found| (found.id, found.subscriber)));
        }
        Ok(owners)
    }
}

/// Events as rows of the tested version and of the baseline.
type Rows = (Vec<tocsin_model::field::Row>, Vec<tocsin_model::field::Row>);

/// The part of the range that is done.
fn part(backtest: &Backtest, at: Timestamp) -> f64 {
    let whole = backtest.to.since(backtest.from).as_secs_f64();
    if whole > 0.0 { (at.since(backtest.from).as_secs_f64() / whole).clamp(0.0, 1.0) } else { 1.0 }
}
