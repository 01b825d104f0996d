//! Backtests that are kept in memory: input, progress and result.

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::AtomicU64},
};

use parking_lot::Mutex;
use tocsin_model::{
    id::{EventId, Name, SubscriberId, SubscriptionId},
    time::Timestamp,
};
use tokio_util::sync::CancellationToken;

use super::compare::Counts;

/// Examples of each kind that are listed.
pub const EXAMPLES_MAX: usize = 20;

/// Input of a backtest.
#[derive(Debug, Clone)]
pub struct BacktestDraft {
    /// The rule.
    pub rule: Name,
    /// Its condition, in place of that of the running version.
    pub when: Option<String>,
    /// A version of the definition whose rule is tested, instead of `when`.
    pub version: Option<u32>,
    /// The version of the definition with which it is compared; default: the running one.
    pub baseline: Option<u32>,
    /// Start of the range of acceptance times; default: seven days before the end.
    pub from: Option<Timestamp>,
    /// End of the range; default: now.
    pub to: Option<Timestamp>,
    /// Number of events after which it ends; 1 to 1,000,000, default 100,000.
    pub events_max: Option<usize>,
    /// Seconds after which it ends; 1 to 600, default 60.
    pub seconds_max: Option<usize>,
}

/// State of a backtest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BacktestState {
    /// It waits for its turn.
    #[default]
    Queued,
    /// It runs.
    Running,
    /// It has ended, at the end of its range or at a limit.
    Done,
    /// It has failed.
    Failed,
}

impl BacktestState {
    /// Its name.
    pub fn word(self) -> &'static str {
        match self {
            BacktestState::Queued => "queued",
            BacktestState::Running => "running",
            BacktestState::Done => "done",
            BacktestState::Failed => "failed",
        }
    }
}

/// A notification that only one of the versions makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Example {
    /// The event.
    pub event: EventId,
    /// The subscription.
    pub subscription: SubscriptionId,
    /// Its subscriber, if it still exists.
    pub subscriber: Option<SubscriberId>,
}

/// Progress and result of a backtest.
#[derive(Debug, Clone, Default)]
pub struct BacktestProgress {
    /// Its state.
    pub state: BacktestState,
    /// The limit at which it ended: `events` or `time`.
    pub stopped_by: Option<&'static str>,
    /// Why it failed.
    pub reason: Option<String>,
    /// When it began.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// Evaluated event batches.
    pub batches: u64,
    /// Evaluated events.
    pub events: u64,
    /// Acceptance time of the last of them.
    pub at: Option<Timestamp>,
    /// Part of the range that is done, from 0 to 1.
    pub fraction: f64,
    /// Evaluated subscriptions.
    pub subscriptions: usize,
    /// Subscriptions that do not fit the tested version.
    pub unusable: usize,
    /// Notifications of the whole range.
    pub totals: Counts,
    /// Notifications by day in UTC, such as `2026-11-29`, with the number of events.
    pub days: Vec<(String, u64, Counts)>,
    /// Subscribers with gained or lost notifications, the largest number first.
    pub subscribers: Vec<(SubscriberId, Counts)>,
    /// Number of subscribers with changes that are not listed.
    pub subscribers_more: usize,
    /// Notifications that only the tested version makes.
    pub gained: Vec<Example>,
    /// Notifications that only the baseline makes.
    pub lost: Vec<Example>,
    /// Warnings about the comparison.
    pub warnings: Vec<String>,
}

/// A backtest.
#[derive(Debug, Clone)]
pub struct Backtest {
    /// Its number, which is not reused before a restart.
    pub id: u64,
    /// The application.
    pub application: Name,
    /// Its input.
    pub draft: BacktestDraft,
    /// The version of the baseline.
    pub baseline: u32,
    /// Start of the range.
    pub from: Timestamp,
    /// End of the range.
    pub to: Timestamp,
    /// Limit of events.
    pub events_max: usize,
    /// Limit of time in seconds.
    pub seconds_max: usize,
    /// When it was created.
    pub created_at: Timestamp,
    /// Progress and result.
    pub progress: BacktestProgress,
}

/// A backtest that is kept.
pub(crate) struct Job {
    pub(super) backtest: Mutex<Backtest>,
    pub(super) cancel: CancellationToken,
}

/// All backtests.
pub(crate) struct Backtests {
    pub(super) jobs: Mutex<VecDeque<Arc<Job>>>,
    pub(super) last: AtomicU64,
    /// One runs at a time.
    pub(super) turn: tokio::sync::Semaphore,
}

impl Default for Backtests {
    fn default() -> Self {
        let turn = tokio::sync::Semaphore::new(1);
        Backtests { jobs: Mutex::default(), last: AtomicU64::new(0), turn }
    }
}

impl Job {
    pub(super) fn snapshot(&self) -> Backtest {
        self.backtest.lock().clone()
    }
}
