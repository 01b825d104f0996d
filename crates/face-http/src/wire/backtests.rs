//! Backtests: the notifications of two versions of a rule over stored events.

use serde::{Deserialize, Serialize};
use tocsin_model::{id::Name, time::Timestamp};
use tocsin_service::backtests::{Backtest, BacktestDraft, BacktestProgress, Counts, Example};
use utoipa::ToSchema;

/// Input of a backtest.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BacktestDraft)]
pub(crate) struct BacktestDraftBody {
    /// The rule.
    #[schema(value_type = String)]
    rule: Name,
    /// Its condition in CEL, in place of that of the running version.
    #[serde(default)]
    when: Option<String>,
    /// Version of the definition whose rule is tested, instead of `when`; default: the running one.
    #[serde(default)]
    version: Option<u32>,
    /// Version of the definition with which it is compared; default: the running one.
    #[serde(default)]
    baseline: Option<u32>,
    /// Start of the range of acceptance times; default: seven days before the end.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    from: Option<Timestamp>,
    /// End of the range; default: now.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    to: Option<Timestamp>,
    /// Number of events after which it ends; 1 to 1,000,000, default 100,000.
    #[serde(default)]
    events_max: Option<usize>,
    /// Seconds after which it ends; 1 to 600, default 60.
    #[serde(default)]
    seconds_max: Option<usize>,
}

impl From<BacktestDraftBody> for BacktestDraft {
    fn from(body: BacktestDraftBody) -> Self {
        let BacktestDraftBody { rule, when, version, baseline, from, to, events_max, seconds_max } = body;
        BacktestDraft { rule, when, version, baseline, from, to, events_max, seconds_max }
    }
}

/// A backtest with its progress. Lists are without days, subscribers and examples.
#[derive(Serialize, ToSchema)]
#[schema(as = Backtest)]
pub(crate) struct BacktestBody {
    /// Such as `bt-3`.
    id: String,
    application: String,
    rule: String,
    /// The tested condition, if it was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    when: Option<String>,
    /// The tested version, if it was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<u32>,
    /// The version with which it is compared.
    baseline: u32,
    #[schema(value_type = String, format = DateTime)]
    from: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    to: Timestamp,
    events_max: usize,
    seconds_max: usize,
    /// `queued`, `running`, `done` or `failed`.
    state: &'static str,
    /// The limit at which it ended: `events` or `time`.
    stopped_by: Option<&'static str>,
    /// Why it failed.
    reason: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    started_at: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime)]
    ended_at: Option<Timestamp>,
    progress: ProgressBody,
    /// Number of evaluated subscriptions.
    subscriptions: usize,
    /// Number of subscriptions that do not fit the tested version.
    unusable: usize,
    totals: CountsBody,
    /// By day in UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    days: Option<Vec<DayBody>>,
    /// Subscribers with gained or lost notifications, at most 100, those with the most changes first.
    #[serde(skip_serializing_if = "Option::is_none")]
    subscribers: Option<Vec<SubscriberCountsBody>>,
    /// Number of subscribers with changes that are not listed.
    subscribers_more: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    examples: Option<ExamplesBody>,
    warnings: Vec<String>,
}

/// Progress of a backtest.
#[derive(Serialize, ToSchema)]
#[schema(as = BacktestProgress)]
pub(crate) struct ProgressBody {
    /// Number of evaluated events.
    events: u64,
    /// Number of their batches.
    batches: u64,
    /// Acceptance time of the last of them.
    #[schema(value_type = Option<String>, format = DateTime)]
    at: Option<Timestamp>,
    /// Part of the range that is done, from 0 to 1.
    fraction: f64,
}

/// Numbers of notifications.
#[derive(Serialize, ToSchema)]
#[schema(as = BacktestCounts)]
pub(crate) struct CountsBody {
    /// Made by the tested version only.
    gained: u64,
    /// Made by the baseline only.
    lost: u64,
    /// Made by both.
    kept: u64,
}

impl From<Counts> for CountsBody {
    fn from(Counts { gained, lost, kept }: Counts) -> Self {
        CountsBody { gained, lost, kept }
    }
}

/// Numbers of notifications of a day.
#[derive(Serialize, ToSchema)]
#[schema(as = BacktestDay)]
pub(crate) struct DayBody {
    /// Such as `2026-11-29`, in UTC.
    day: String,
    /// Number of events.
    events: u64,
    #[serde(flatten)]
    counts: CountsBody,
}

/// Numbers of notifications of a subscriber.
#[derive(Serialize, ToSchema)]
#[schema(as = BacktestSubscriber)]
pub(crate) struct SubscriberCountsBody {
    subscriber: String,
    #[serde(flatten)]
    counts: CountsBody,
}

/// Examples of differences, at most 20 of each kind.
#[derive(Serialize, ToSchema)]
#[schema(as = BacktestExamples)]
pub(crate) struct ExamplesBody {
    gained: Vec<ExampleBody>,
    lost: Vec<ExampleBody>,
}

/// A notification that only one of the versions makes.
#[derive(Serialize, ToSchema)]
#[schema(as = BacktestExample)]
pub(crate) struct ExampleBody {
    event: String,
    subscription: String,
    /// Null if the subscription was removed.
    subscriber: Option<String>,
}

impl From<Example> for ExampleBody {
    fn from(example: Example) -> Self {
        ExampleBody {
            event: example.event.to_string(),
            subscription: example.subscription.to_string(),
            subscriber: example.subscriber.map(|id| id.to_string()),
        }
    }
}

impl BacktestBody {
    /// Without days, subscribers and examples.
    pub(crate) fn summary(backtest: Backtest) -> Self {
        BacktestBody { days: None, subscribers: None, examples: None, ..backtest.into() }
    }
}

impl From<Backtest> for BacktestBody {
    fn from(backtest: Backtest) -> Self {
        let Backtest { id, application, draft, baseline, from, to, events_max, seconds_max, created_at, progress } =
            backtest;
        let BacktestProgress { state, stopped_by, reason, started_at, ended_at, .. } = progress;
        let day = |(day, events, counts): (String, u64, Counts)| DayBody { day, events, counts: counts.into() };
        let examples = |list: Vec<Example>| list.into_iter().map(ExampleBody::from).collect();
        BacktestBody {
            id: format!("bt-{id}"),
            application: application.to_string(),
            rule: draft.rule.to_string(),
            when: draft.when,
            version: draft.version,
            baseline,
            from,
            to,
            events_max,
            seconds_max,
            state: state.word(),
            stopped_by,
            reason,
            created_at,
            started_at,
            ended_at,
            progress: ProgressBody {
                events: progress.events,
                batches: progress.batches,
                at: progress.at,
                fraction: progress.fraction,
            },
            subscriptions: progress.subscriptions,
            unusable: progress.unusable,
            totals: progress.totals.into(),
            days: Some(progress.days.into_iter().map(day).collect()),
            subscribers: Some(
                progress
                    .subscribers
                    .into_iter()
                    .map(|(id, counts)| SubscriberCountsBody { subscriber: id.to_string(), counts: counts.into() })
                    .collect(),
            ),
            subscribers_more: progress.subscribers_more,
            examples: Some(ExamplesBody { gained: examples(progress.gained), lost: examples(progress.lost) }),
            warnings: progress.warnings,
        }
    }
}
