//! Schedules: explanation of a schedule, next due times, and progress of an application's schedules.

use std::time::Duration;

use tocsin_model::{
    application::{Application, GRACE, Limits, Missed, Recurs, Rule, RuleSchedule},
    definition::write_duration,
    id::{Name, SubscriptionId},
    problem::{Code, Problem},
    schedule::{FoldPolicy, GapPolicy, Reading, Schedule},
    time::Timestamp,
};
use tocsin_pipeline::ScheduleMoveError;
pub use tocsin_pipeline::{MovedSchedule, ScheduleAction};
use tocsin_store::journal::{RuleStop, ScheduleKey, ScheduleRun};

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
    page::{Page, key_of},
    subscriptions::ScheduleDraft,
};

/// Maximum number of runs in a preview.
pub const RUNS_MAX: usize = 100;

/// Input for explaining a schedule.
#[derive(Debug, Clone)]
pub struct PreviewDraft {
    /// The schedule.
    pub schedule: ScheduleDraft,
    /// Time zone of the recipient, if the schedule names none; default `UTC`.
    pub time_zone: Option<String>,
    /// Start; default: now.
    pub from: Option<Timestamp>,
    /// Number of runs; 1 to 100, default 10.
    pub count: Option<usize>,
}

/// Explanation of a schedule.
#[derive(Debug, Clone, PartialEq)]
pub struct Preview {
    /// Its canonical text.
    pub schedule: String,
    /// Its zone.
    pub time_zone: String,
    /// Policy for local times that do not exist or exist twice in that zone.
    pub policies: Vec<String>,
    /// Next runs. Fewer than requested: the schedule ends after them.
    pub runs: Vec<PreviewRun>,
    /// Warnings: the schedule has ended, or is due more often than subscriptions may be.
    pub warnings: Vec<String>,
}

/// One time at which a schedule is due.
#[derive(Debug, Clone, PartialEq)]
pub struct PreviewRun {
    /// When.
    pub at: Timestamp,
    /// Local time in its zone.
    pub local: String,
    /// Policy that decided it, if any.
    pub note: Option<String>,
}

/// Progress of a schedule of a rule.
#[derive(Debug, Clone, PartialEq)]
pub struct ScheduleStatus {
    /// The rule.
    pub rule: Name,
    /// The schedule, with its zone.
    pub schedule: String,
    /// Policy for missed runs.
    pub missed: String,
    /// Time up to which its due times are processed.
    pub last_run: Option<Timestamp>,
    /// Next due time; null: none.
    pub next_run: Option<Timestamp>,
    /// Missed runs that were not repeated.
    pub skipped: u64,
    /// When runs were last skipped.
    pub skipped_at: Option<Timestamp>,
    /// Whether the rule is stopped, so that its runs wait.
    pub stopped: bool,
}

/// Due times of a subscription.
#[derive(Debug, Clone, PartialEq)]
pub struct SubscriptionSchedule {
    /// Its schedule, in the effective time zone, with its next runs.
    pub preview: Preview,
    /// Events accepted before this time do not count.
    pub since: Timestamp,
    /// Rules that follow it.
    pub rules: Vec<ScheduleStatus>,
}

/// Next runs of a schedule, with the policies that decide them. `least`: minimum interval between two runs.
pub fn preview(schedule: &Schedule, from: Timestamp, count: usize, least: Duration) -> Preview {
    let runs = schedule.preview(from, count).into_iter().map(|run| PreviewRun {
        at: run.at,
        local: schedule.clock_at(run.at).unwrap_or(run.local).to_string(),
        note: match run.reading {
            Reading::Plain => None,
            Reading::Shifted => {
                Some(format!("{} does not exist on that day: it is later by the length of the gap", run.local.time()))
            }
            Reading::Repeated => Some("the second time that clocks show it".to_owned()),
        },
    });
    let gap = match schedule.gap_policy() {
        GapPolicy::ShiftForward => "a time that does not exist is later by the length of the gap: 02:30 becomes 03:30",
        GapPolicy::Skip => "a time that does not exist is left out",
    };
    let fold = match schedule.fold_policy() {
        FoldPolicy::First => "a time that exists twice counts the first time",
        FoldPolicy::Both => "a time that exists twice counts both times",
    };
    Preview {
        schedule: schedule.to_string(),
        time_zone: schedule.zone().to_owned(),
        policies: vec![gap.to_owned(), fold.to_owned()],
        runs: runs.collect(),
        warnings: over(schedule, from).into_iter().chain(too_frequent(schedule, least)).collect(),
    }
}

/// Warns about a schedule without further due times.
pub(crate) fn over(schedule: &Schedule, now: Timestamp) -> Option<String> {
    let is_over = schedule.next_after(now).is_none();
    is_over.then(|| format!("is over: it has no due time after {now}; give a later start or end"))
}

/// Warns about due times that are closer than a minimum.
pub(crate) fn too_frequent(schedule: &Schedule, least: Duration) -> Option<String> {
    let (one, other) = schedule.closer_than(least)?;
    let (apart, least) = (write_duration(other.at.since(one.at)), write_duration(least));
    Some(format!("is due at {} and {apart} later; due times should be {least} apart or more", one.at))
}

/// Rules of a definition whose schedule has ended.
pub fn schedule_warnings(application: &Application, now: Timestamp) -> Vec<Problem> {
    let warning = |(name, rule): (&Name, &Rule)| {
        let Recurs::Fixed(schedule) = &rule.schedule.as_ref()?.recurs else { return None };
        Some(Problem::new(Code::NeverDue, format!("rules.{name}.schedule"), over(schedule, now)?))
    };
    application.rules.iter().filter_map(warning).collect()
}

/// Policy for missed runs, as text.
fn missed(schedule: &RuleSchedule) -> String {
    let age = schedule.skip_older_than;
    match (schedule.missed, age) {
        (Missed::Skip, age) => {
            format!("skip: one that is later than {} is not made up for", write_duration(age.unwrap_or(GRACE)))
        }
        (Missed::Once, None) => "once: one run makes up for all".to_owned(),
        (Missed::Once, Some(age)) => {
            format!("once: one run makes up for all, unless it is later than {}", write_duration(age))
        }
        (Missed::All, None) => "all: each is made up for, at most 1000".to_owned(),
        (Missed::All, Some(age)) => format!("all: each that is not later than {} is made up for", write_duration(age)),
    }
}

fn count(wanted: Option<usize>) -> Result<usize, ServiceError> {
    match wanted {
        None => Ok(10),
        Some(count @ 1..=RUNS_MAX) => Ok(count),
        Some(_) => Err(ServiceError::from(Problem::out_of_range("count", 1, RUNS_MAX))),
    }
}

impl Service {
    /// Explains a schedule. Stores nothing.
    ///
    /// # Errors
    /// `Invalid` with everything that is wrong with it.
    pub fn preview_schedule(&self, _caller: &Caller, draft: &PreviewDraft) -> Result<Preview, ServiceError> {
        let count = count(draft.count)?;
        let below = |problem: Problem| {
            let path = draft.schedule.place(&problem.path);
            Problem { path: if path.is_empty() { "schedule".into() } else { format!("schedule.{path}") }, ..problem }
        };
        let schedule = draft.schedule.read();
        let schedule = schedule.map_err(|problems| ServiceError::Invalid(problems.into_iter().map(below).collect()))?;
        let zone = draft.time_zone.as_deref().unwrap_or("UTC");
        let schedule = schedule.in_zone(zone).ok_or_else(|| {
            let problem = Problem::unknown_time_zone("time_zone", zone);
            ServiceError::Invalid(vec![problem.hint("give an IANA name, such as `Europe/Vienna`")])
        })?;
        let from = draft.from.unwrap_or_else(|| self.clock.now());
        Ok(preview(&schedule, from, count, Limits::default().schedule_interval))
    }

    /// Due times of a subscription, and progress of the rules that follow its schedule.
    ///
    /// # Errors
    /// There is no subscription of this id, or it has no schedule.
    pub async fn schedule_of(
        &self,
        caller: &Caller,
        id: SubscriptionId,
        runs: Option<usize>,
    ) -> Result<SubscriptionSchedule, ServiceError> {
        caller.needs(Scope::SubscribersRead)?;
        let subscription = self.find_subscription(id).await?;
        let count = count(runs)?;
        let none = || ServiceError::Missing(format!("a schedule of the subscription `{id}`"));
        let (text, since) = self.schedule_store.schedule_of(id).await?.ok_or_else(none)?;
        let schedule = Schedule::parse(&text).map_err(ServiceError::Invalid)?;
        let compiled = self.pipeline.application(&subscription.application);
        let stops = self.rule_store.rule_stops().await?;
        let mut rules = Vec::new();
        for (name, rule) in compiled.iter().flat_map(|compiled| &compiled.application.rules) {
            let Some(scheduled) = rule.schedule.as_ref().filter(|_| rule.enabled) else { continue };
            if scheduled.recurs != Recurs::Subscription || rule.subscription != subscription.class {
                continue;
            }
            // The page begins just before it, whatever other schedules there are.
            let key: ScheduleKey = (name.clone(), text.clone());
            let run = self.schedules.schedule_run(&subscription.application, &key).await?;
            rules.push(status(name, scheduled, &schedule, run.as_ref(), &stops, &subscription.application, since));
        }
        let limits = compiled.map(|compiled| compiled.application.limits).unwrap_or_default();
        let preview = preview(&schedule, self.clock.now(), count, limits.schedule_interval);
        Ok(SubscriptionSchedule { preview, since, rules })
    }

    /// Runs a schedule of a rule now, over the events since its last run, or skips its next run.
    ///
    /// # Errors
    /// The scope `operations:write` is missing; the application does not run; no rule follows the schedule; its rule is
    /// stopped; it has ended; the store failed.
    pub async fn move_schedule(
        &self,
        caller: &Caller,
        application: &Name,
        (rule, schedule): (&Name, &str),
        action: ScheduleAction,
    ) -> Result<MovedSchedule, ServiceError> {
        caller.needs(Scope::OperationsWrite)?;
        self.running(application)?;
        let key: ScheduleKey = (rule.clone(), schedule.into());
        let moved = self.pipeline.move_schedule(application, key, action).await;
        let moved = moved.map_err(|error| match error {
            ScheduleMoveError::Unknown => {
                ServiceError::Missing(format!("the schedule `{schedule}` of the rule `{rule}`"))
            }
            ScheduleMoveError::Stopped | ScheduleMoveError::Ended => {
                ServiceError::invalid(Code::Conflict, "schedule", error.to_string())
            }
            ScheduleMoveError::Store(error) => error.into(),
        })?;
        let what = match action {
            ScheduleAction::Run => "was run",
            ScheduleAction::Skip => "skips a run",
        };
        tracing::info!(%application, %rule, due_at = %moved.due_at, by = caller.key(), "a schedule {what}");
        Ok(moved)
    }

    /// Lists the progress of an application's schedules, by rule and schedule.
    ///
    /// # Errors
    /// The scope `operations:read` is missing, or the application does not exist.
    pub async fn schedules(
        &self,
        caller: &Caller,
        application: &Name,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<ScheduleStatus>, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let compiled = self.running(application)?;
        let wrong = || {
            ServiceError::from(
                Problem::new(Code::InvalidFormat, "after", "is not a cursor that a page of this list gave")
                    .param("format", "cursor"),
            )
        };
        let after: Option<String> = key_of(after)?;
        let after: Option<ScheduleKey> = match after.as_deref().map(|key| key.split_once(' ').ok_or_else(wrong)) {
            Some(key) => {
                key.map(|(rule, schedule)| Ok::<_, ServiceError>((rule.parse()?, schedule.into())))?.map(Some)?
            }
            None => None,
        };
        let stops = self.rule_store.rule_stops().await?;
        let runs = self.schedules.schedule_runs(application, after.as_ref(), limit + 1).await?;
        let page = Page::cut(runs, limit, |run| format!("{} {}", run.rule, run.schedule));
        let next = page.next;
        let of = |run: ScheduleRun| {
            let rule = compiled.application.rules.get(&run.rule)?.schedule.as_ref()?;
            let schedule = Schedule::parse(&run.schedule).ok()?;
            Some(status(&run.rule, rule, &schedule, Some(&run), &stops, application, run.due_at))
        };
        Ok(Page { items: page.items.into_iter().filter_map(of).collect(), next })
    }
}

fn status(
    name: &Name,
    rule: &RuleSchedule,
    schedule: &Schedule,
    run: Option<&ScheduleRun>,
    stops: &[RuleStop],
    application: &Name,
    since: Timestamp,
) -> ScheduleStatus {
    ScheduleStatus {
        rule: name.clone(),
        schedule: schedule.to_string(),
        missed: missed(rule),
        last_run: run.map(|run| run.due_at),
        next_run: schedule.next_after(run.map_or(since, |run| run.due_at)).map(|next| next.at),
        skipped: run.map_or(0, |run| run.skipped),
        skipped_at: run.and_then(|run| run.skipped_at),
        stopped: stops.iter().any(|stop| (&stop.application, &stop.rule) == (application, name)),
    }
}
