//! Backtests: two versions of a rule are evaluated over stored events, and their notifications are compared.
//!
//! A backtest is a job beside the pipeline. One runs at a time; it pauses after each batch for as long as the batch
//! took, and ends at its limits of events and time. It evaluates the present subscriptions, with the state clauses of the
//! rule from an empty state. Its result is in memory: a restart and newer backtests remove it.

mod compare; // the notifications of both versions for a batch of events
pub(crate) mod jobs; // backtests that are kept
mod run; // the job

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use tocsin_model::{
    application::Rule,
    id::Name,
    problem::{Code, Problem},
};
use tocsin_pipeline::Compiled;
use tokio_util::sync::CancellationToken;

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
    rules::{Tested, bounded, rule_named, with_state},
};

use self::jobs::Job;
pub use self::{
    compare::Counts,
    jobs::{Backtest, BacktestDraft, BacktestProgress, BacktestState, EXAMPLES_MAX, Example},
};

/// Backtests that are kept, the newest first; unfinished ones count.
pub const KEPT_MAX: usize = 20;
/// Backtests that wait for their turn.
pub const QUEUED_MAX: usize = 10;
/// Maximum number of events of a backtest.
pub const EVENTS_MAX: usize = 1_000_000;
/// Default number of events of a backtest.
const EVENTS_USUAL: usize = 100_000;
/// Maximum duration of a backtest, in seconds.
pub const SECONDS_MAX: usize = 600;
/// Default duration of a backtest, in seconds.
const SECONDS_USUAL: usize = 60;
/// Period of a backtest without `from`.
const PERIOD_USUAL: Duration = Duration::from_secs(7 * 86_400);
/// Subscribers that are listed.
pub const SUBSCRIBERS_MAX: usize = 100;

/// The two versions of a rule.
struct Versions {
    tested: Tested,
    baseline: Tested,
}

impl Service {
    /// Starts a backtest. It runs as soon as earlier ones have ended.
    ///
    /// # Errors
    /// The scope `operations:read` is missing; the application is not running; `Invalid` with all problems of the draft;
    /// `TooMany` if [`QUEUED_MAX`] backtests wait.
    pub async fn start_backtest(
        self: &Arc<Self>,
        caller: &Caller,
        application: &Name,
        draft: BacktestDraft,
    ) -> Result<Backtest, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let running = self.running(application)?;
        let now = self.clock.now();
        let to = draft.to.unwrap_or(now);
        let from = draft.from.unwrap_or(to - PERIOD_USUAL);
        if from >= to {
            return Err(ServiceError::invalid(Code::OutOfRange, "from", "is not before `to`"));
        }
        let events_max = bounded("events_max", draft.events_max, EVENTS_USUAL, 1, EVENTS_MAX)?;
        let seconds_max = bounded("seconds_max", draft.seconds_max, SECONDS_USUAL, 1, SECONDS_MAX)?;
        let versions = self.backtest_versions(&running, &draft).await?;
        let job = {
            let mut jobs = self.backtests.jobs.lock();
            let waiting = jobs.iter().filter(|job| job.backtest.lock().progress.state == BacktestState::Queued);
            if waiting.count() >= QUEUED_MAX {
                return Err(ServiceError::TooMany {
                    reason: format!("{QUEUED_MAX} backtests wait already"),
                    retry_after: Duration::from_secs(30),
                });
            }
            let backtest = Backtest {
                id: self.backtests.last.fetch_add(1, Ordering::Relaxed) + 1,
                application: application.clone(),
                baseline: draft.baseline.unwrap_or(running.version),
                draft,
                from,
                to,
                events_max,
                seconds_max,
                created_at: now,
                progress: BacktestProgress::default(),
            };
            let job = Arc::new(Job { backtest: Mutex::new(backtest), cancel: CancellationToken::new() });
            jobs.push_front(job.clone());
            while jobs.len() > KEPT_MAX {
                jobs.pop_back().into_iter().for_each(|job| job.cancel.cancel());
            }
            job
        };
        let (service, running) = (self.clone(), job.clone());
        tokio::spawn(async move { service.run_backtest(&running, versions).await });
        Ok(job.snapshot())
    }

    /// The backtests of an application, newest first.
    ///
    /// # Errors
    /// The scope `operations:read` is missing.
    pub fn backtests(&self, caller: &Caller, application: &Name) -> Result<Vec<Backtest>, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let jobs = self.backtests.jobs.lock();
        Ok(jobs.iter().map(|job| job.snapshot()).filter(|found| found.application == *application).collect())
    }

    /// A backtest with its progress or result.
    ///
    /// # Errors
    /// There is none of this number, or it was removed.
    pub fn backtest(&self, caller: &Caller, application: &Name, id: u64) -> Result<Backtest, ServiceError> {
        let found = self.backtests(caller, application)?.into_iter().find(|found| found.id == id);
        found.ok_or_else(|| ServiceError::Missing(format!("the backtest bt-{id}")))
    }

    /// Cancels a backtest if it runs or waits, and removes it.
    ///
    /// # Errors
    /// The scope `operations:read` is missing; there is none of this number.
    pub fn remove_backtest(&self, caller: &Caller, application: &Name, id: u64) -> Result<(), ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let mut jobs = self.backtests.jobs.lock();
        let is_it = |job: &Arc<Job>| {
            let found = job.backtest.lock();
            found.id == id && found.application == *application
        };
        let at = jobs.iter().position(is_it);
        let job = at.and_then(|at| jobs.remove(at));
        let job = job.ok_or_else(|| ServiceError::Missing(format!("the backtest bt-{id}")))?;
        job.cancel.cancel();
        Ok(())
    }

    /// Compiles both versions of the rule.
    async fn backtest_versions(
        &self,
        running: &Arc<Compiled>,
        draft: &BacktestDraft,
    ) -> Result<Versions, ServiceError> {
        if draft.when.is_some() && draft.version.is_some() {
            let problem = Problem::new(Code::ConflictingMembers, "version", "stands beside `when`; give one of them");
            return Err(problem.param("with", "when").into());
        }
        let baseline = self.backtest_version(running, draft.baseline, "baseline").await?;
        let rule = rule_named(&baseline, draft.rule.as_str())?;
        comparable(&baseline, &rule)?;
        let (compiled, tested) = match draft.version {
            Some(_) => {
                let compiled = self.backtest_version(running, draft.version, "version").await?;
                let tested = rule_named(&compiled, draft.rule.as_str())?;
                comparable(&compiled, &tested)?;
                (compiled, tested)
            }
            None => {
                let current = rule_named(running, draft.rule.as_str())?;
                comparable(running, &current)?;
                (running.clone(), Rule { when: draft.when.clone().or(current.when.clone()), ..current })
            }
        };
        if (&tested.on, &tested.subscription) != (&rule.on, &rule.subscription) {
            let message = "the two versions of the rule have different event or subscription classes";
            return Err(ServiceError::invalid(Code::Mismatch, "version", message));
        }
        let tested = with_state(&compiled, &draft.rule, tested).map_err(|problems| {
            let when = |problem: Problem| Problem {
                path: problem.path.rsplit('.').next().unwrap_or_default().to_owned(),
                ..problem
            };
            ServiceError::Invalid(problems.into_iter().map(when).collect())
        })?;
        let baseline = with_state(&baseline, &draft.rule, rule).map_err(ServiceError::Invalid)?;
        Ok(Versions { tested, baseline })
    }

    async fn backtest_version(
        &self,
        running: &Arc<Compiled>,
        version: Option<u32>,
        path: &'static str,
    ) -> Result<Arc<Compiled>, ServiceError> {
        let Some(version) = version.filter(|version| *version != running.version) else { return Ok(running.clone()) };
        let name = &running.application.name;
        let found = self.pipeline.version(name, version).await?;
        found.ok_or_else(|| {
            let message = format!("version {version} of `{name}` does not exist or cannot be compiled");
            Problem::new(Code::UnknownReference, path, message).param("kind", "version").into()
        })
    }
}

/// Checks that a rule is evaluated event by event.
fn comparable(compiled: &Compiled, rule: &Rule) -> Result<(), ServiceError> {
    let reason = if rule.sql.is_some() {
        "is in SQL: its query is run over whole batches"
    } else if rule.schedule.is_some() {
        "is evaluated by a schedule"
    } else if compiled.application.is_lifecycle(&rule.on) {
        "is on the life of subscriptions"
    } else {
        return Ok(());
    };
    let problem = Problem::new(Code::NotApplicable, "rule", reason);
    Err(problem.hint("`rules/test` evaluates it on up to 1,000 events").into())
}
