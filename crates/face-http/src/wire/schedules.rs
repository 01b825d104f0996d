//! Previews and progress of schedules.

use serde::{Deserialize, Serialize};
use tocsin_model::{
    id::{EventBatchId, Name},
    time::Timestamp,
};
use tocsin_service::schedules::{
    MovedSchedule, Preview, PreviewDraft, PreviewRun, ScheduleStatus, SubscriptionSchedule,
};
use utoipa::ToSchema;

use super::subscriptions::ScheduleDraftBody;

/// Input for explaining a schedule.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PreviewDraft)]
pub(crate) struct SchedulePreviewDraft {
    /// The schedule.
    schedule: ScheduleDraftBody,
    /// Time zone of the recipient, if the schedule names none; default `UTC`.
    #[serde(default)]
    time_zone: Option<String>,
    /// Start; default: now.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    from: Option<Timestamp>,
    /// Number of runs; 1 to 100, default 10.
    #[serde(default)]
    count: Option<usize>,
}

/// Explanation of a schedule.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = Preview)]
pub struct SchedulePreviewBody {
    /// Its canonical text.
    schedule: String,
    /// Its zone.
    time_zone: String,
    /// Policy for local times that do not exist or exist twice in that zone.
    policies: Vec<String>,
    /// Next runs. Fewer than requested: the schedule ends after them.
    runs: Vec<PreviewRunBody>,
    /// Warnings: the schedule has ended, or is due more often than subscriptions may be.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// One time at which a schedule is due.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = PreviewRun)]
pub(crate) struct PreviewRunBody {
    /// When.
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    /// Local time in its zone.
    local: String,
    /// Policy that decided it, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

/// Progress of a schedule of a rule.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = ScheduleStatus)]
pub(crate) struct ScheduleStatusBody {
    /// The rule.
    #[schema(value_type = String)]
    rule: Name,
    /// The schedule, with its zone.
    schedule: String,
    /// Policy for missed runs.
    missed: String,
    /// Time up to which its due times are processed.
    #[schema(value_type = Option<String>, format = DateTime)]
    last_run: Option<Timestamp>,
    /// Next due time; null: none.
    #[schema(value_type = Option<String>, format = DateTime)]
    next_run: Option<Timestamp>,
    /// Missed runs that were not repeated.
    skipped: u64,
    /// When runs were last skipped.
    #[schema(value_type = Option<String>, format = DateTime)]
    skipped_at: Option<Timestamp>,
    /// Whether the rule is stopped, so that its runs wait.
    stopped: bool,
}

/// Due times of a subscription.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = SubscriptionSchedule)]
pub(crate) struct SubscriptionScheduleBody {
    /// Its schedule, in the effective time zone, with its next runs.
    preview: SchedulePreviewBody,
    /// Events accepted before this time do not count.
    #[schema(value_type = String, format = DateTime)]
    since: Timestamp,
    /// Rules that follow it.
    rules: Vec<ScheduleStatusBody>,
}

impl From<SchedulePreviewDraft> for PreviewDraft {
    fn from(draft: SchedulePreviewDraft) -> Self {
        PreviewDraft {
            schedule: draft.schedule.into(),
            time_zone: draft.time_zone,
            from: draft.from,
            count: draft.count,
        }
    }
}

impl From<Preview> for SchedulePreviewBody {
    fn from(found: Preview) -> Self {
        let run = |PreviewRun { at, local, note }| PreviewRunBody { at, local, note };
        SchedulePreviewBody {
            schedule: found.schedule,
            time_zone: found.time_zone,
            policies: found.policies,
            runs: found.runs.into_iter().map(run).collect(),
            warnings: found.warnings,
        }
    }
}

impl From<ScheduleStatus> for ScheduleStatusBody {
    fn from(found: ScheduleStatus) -> Self {
        ScheduleStatusBody {
            rule: found.rule,
            schedule: found.schedule,
            missed: found.missed,
            last_run: found.last_run,
            next_run: found.next_run,
            skipped: found.skipped,
            skipped_at: found.skipped_at,
            stopped: found.stopped,
        }
    }
}

impl From<SubscriptionSchedule> for SubscriptionScheduleBody {
    fn from(found: SubscriptionSchedule) -> Self {
        SubscriptionScheduleBody {
            preview: found.preview.into(),
            since: found.since,
            rules: found.rules.into_iter().map(ScheduleStatusBody::from).collect(),
        }
    }
}

/// A schedule that was run or whose next run was skipped.
#[derive(Serialize, ToSchema)]
#[schema(as = MovedSchedule)]
pub(crate) struct MovedScheduleBody {
    /// Time of the run, or due time of the skipped one.
    #[schema(value_type = String, format = DateTime)]
    due_at: Timestamp,
    /// Event batch of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    batch: Option<EventBatchId>,
    /// Next due time; absent: the schedule has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    next_run: Option<Timestamp>,
}

impl From<MovedSchedule> for MovedScheduleBody {
    fn from(moved: MovedSchedule) -> Self {
        MovedScheduleBody { due_at: moved.due_at, batch: moved.batch, next_run: moved.next }
    }
}
