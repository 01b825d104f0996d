//! Rules that are evaluated by a schedule. A due time becomes an event like any other.
//!
//! One task tracks the schedules in use and their next due times. Subscriptions with the same schedule share it, so
//! the cost depends on the number of different schedules only. For due schedules the task accepts an event batch of
//! the class `due` and stores their progress, in one commit. The matcher runs the batch at its position in the log:
//! over the events between it and the previous due time, after the event rules, exactly once across crashes.

mod by_hand; // runs and skips by an operator
mod run; // execution of a due time: its subscriptions and events

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tocsin_model::{
    application::{Recurs, RuleSchedule, due_class, due_fields},
    event::EventPacker,
    id::{ChangeSequence, EventBatchId, Name},
    schedule::Schedule,
    time::Timestamp,
};
use tocsin_store::{
    audit::scope,
    error::StoreError,
    journal::{NewEventBatch, ScheduleKey, ScheduleRun},
    records::ScheduleMembers,
};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::{Flow, compile::Compiled};

pub(crate) use by_hand::ScheduleMove;
pub use by_hand::{MovedSchedule, ScheduleAction, ScheduleMoveError};
pub(crate) use run::{is_due, run_due};

/// Maximum number of due times per event batch.
const DUE_AT_ONCE: usize = 1_000;
/// Schedules and runs read at a time.
const PAGE: usize = 1_000;
/// Delay after the store failed or was full, and before a stopped rule is checked again.
const PAUSE: Duration = Duration::from_secs(5);
/// Maximum wait for a due time: clocks are adjusted, and machines sleep.
const SLEEP_MAX: Duration = Duration::from_secs(60);

/// The source of events of the class `due`.
pub(crate) fn source() -> Name {
    "schedule".parse().expect("`schedule` is a name")
}

/// A command for the schedule task.
pub(crate) enum Command {
    /// Run the scheduled rules of this version from now on.
    Install(Arc<Compiled>),
    /// Stop the schedules of this application.
    Remove(Name),
    /// Run a schedule now, or skip its next run.
    Move(ScheduleMove),
}

/// The task that tracks due times.
pub(crate) struct Clockwork {
    flow: Arc<Flow>,
    commands: mpsc::Receiver<Command>,
    changes: watch::Receiver<ChangeSequence>,
    applications: BTreeMap<Name, Clock>,
}

/// Schedules of an application.
struct Clock {
    compiled: Arc<Compiled>,
    schedules: BTreeMap<ScheduleKey, Followed>,
    /// Next due time of each schedule.
    due: BTreeSet<(Timestamp, ScheduleKey)>,
    /// Number of the last known schedule of the records.
    known: u64,
}

/// A schedule in use, and its progress.
struct Followed {
    schedule: Schedule,
    run: ScheduleRun,
}

impl Clockwork {
    pub fn new(flow: Arc<Flow>, commands: mpsc::Receiver<Command>) -> Self {
        let changes = flow.change_log.newest_change();
        Clockwork { flow, commands, changes, applications: BTreeMap::new() }
    }

    /// Runs until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            let pause = match self.turn().await {
                Ok(next) => next,
                Err(error) => {
                    tracing::error!(%error, "schedules cannot be followed and are tried again");
                    PAUSE
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                command = self.commands.recv() => match command {
                    Some(command) => self.handle_command(command).await,
                    None => return,
                },
                Ok(()) = self.changes.changed(), if self.follows_subscriptions() => {}
                () = tokio::time::sleep(pause.min(SLEEP_MAX)) => {}
            }
        }
    }

    /// Reads new schedules and fires due ones. Returns the time until the next due time.
    async fn turn(&mut self) -> Result<Duration, StoreError> {
        self.changes.mark_unchanged();
        let mut next = Timestamp(i64::MAX);
        let now = self.flow.clock.now();
        for clock in self.applications.values_mut() {
            clock.take_in(&self.flow, now).await?;
            clock.fire(&self.flow).await?;
            next = next.min(clock.due.first().map_or(next, |(at, _)| *at));
        }
        Ok(next.since(self.flow.clock.now()))
    }

    async fn handle_command(&mut self, command: Command) {
        match command {
            Command::Remove(name) => {
                self.applications.remove(&name);
            }
            Command::Move(asked) => {
                let moved = match (self.applications.get_mut(&asked.application), asked.context) {
                    (None, _) => Err(ScheduleMoveError::Unknown),
                    (Some(clock), None) => clock.move_schedule(&self.flow, &asked.key, asked.action).await,
                    (Some(clock), Some(context)) => {
                        scope(context, clock.move_schedule(&self.flow, &asked.key, asked.action)).await
                    }
                };
                // The caller may have left.
                let _ = asked.done.send(moved);
            }
            Command::Install(compiled) => {
                let name = compiled.application.name.clone();
                loop {
                    match Clock::start(&self.flow, compiled.clone()).await {
                        Ok(clock) => break drop(self.applications.insert(name, clock)),
                        Err(error) => tracing::error!(application = %name, %error, "its schedules cannot be read yet"),
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    fn follows_subscriptions(&self) -> bool {
        self.applications.values().any(Clock::follows_subscriptions)
    }
}

impl Clock {
    /// Reads the progress of an application's schedules, and removes those that no rule uses any more.
    async fn start(flow: &Flow, compiled: Arc<Compiled>) -> Result<Clock, StoreError> {
        let mut clock = Clock { compiled, schedules: BTreeMap::new(), due: BTreeSet::new(), known: 0 };
        let now = flow.clock.now();
        let mut left: BTreeMap<ScheduleKey, ScheduleRun> = BTreeMap::new();
        let mut after = None;
        loop {
            let page = flow.schedules.schedule_runs(clock.application(), after.as_ref(), PAGE).await?;
            let full = page.len() == PAGE;
            after = page.last().map(|run| (run.rule.clone(), run.schedule.clone()));
            left.extend(page.into_iter().map(|run| ((run.rule.clone(), run.schedule.clone()), run)));
            if !full {
                break;
            }
        }
        // A rule whose own schedule was changed continues from the progress of the old one.
        let fixed: Vec<(Name, Schedule)> = clock
            .rules()
            .filter_map(|(name, rule)| match &rule.recurs {
                Recurs::Fixed(schedule) => Some((name.clone(), schedule.clone())),
                Recurs::Subscription => None,
            })
            .collect();
        let mut new = Vec::new();
        for (rule, schedule) in fixed {
            let key: ScheduleKey = (rule.clone(), schedule.to_string().into());
            let before = left.remove(&key).or_else(|| {
                let (old, run) =
                    left.iter().find(|((of, _), _)| *of == rule).map(|(key, run)| (key.clone(), run.clone()))?;
                left.remove(&old);
                let run = ScheduleRun { schedule: key.1.clone(), due_at: now, ..run };
                new.push((Some(old), run.clone()));
                Some(run)
            });
            let run = match before {
                Some(run) => run,
                None => {
                    let run = clock.begin(&key, now, flow.event_log.position_at(now).await?);
                    new.push((None, run.clone()));
                    run
                }
            };
            clock.add_schedule(key, schedule, run);
        }
        flow.schedules.record_runs(None, new.iter().map(|(_, run)| run.clone()).collect()).await?;
        for old in new.into_iter().filter_map(|(old, _)| old) {
            flow.schedules.delete_schedule(clock.application(), &old).await?;
        }
        clock.take_in_known(flow, now, &mut left).await?;
        for gone in left.keys() {
            flow.schedules.delete_schedule(clock.application(), gone).await?;
        }
        Ok(clock)
    }

    fn application(&self) -> &Name {
        &self.compiled.application.name
    }

    /// Enabled rules with schedules.
    fn rules(&self) -> impl Iterator<Item = (&Name, &RuleSchedule)> {
        let rules = &self.compiled.application.rules;
        self.compiled.scheduled.keys().filter_map(|name| Some((name, rules[name].schedule.as_ref()?)))
    }

    fn follows_subscriptions(&self) -> bool {
        self.rules().any(|(_, rule)| rule.recurs == Recurs::Subscription)
    }

    fn begin(&self, (rule, schedule): &ScheduleKey, due_at: Timestamp, after: EventBatchId) -> ScheduleRun {
        ScheduleRun {
            application: self.application().clone(),
            rule: rule.clone(),
            schedule: schedule.clone(),
            due_at,
            after,
            seen: ChangeSequence(0),
            skipped: 0,
            skipped_at: None,
        }
    }

    fn add_schedule(&mut self, key: ScheduleKey, schedule: Schedule, run: ScheduleRun) {
        if let Some(next) = schedule.next_after(run.due_at) {
            self.due.insert((next.at, key.clone()));
        }
        self.schedules.insert(key, Followed { schedule, run });
    }

    /// Reads the schedules that new subscriptions follow.
    async fn take_in(&mut self, flow: &Flow, now: Timestamp) -> Result<(), StoreError> {
        if self.follows_subscriptions() { self.take_in_known(flow, now, &mut BTreeMap::new()).await } else { Ok(()) }
    }

    /// Like `take_in`, continuing known runs.
    async fn take_in_known(
        &mut self,
        flow: &Flow,
        now: Timestamp,
        runs: &mut BTreeMap<ScheduleKey, ScheduleRun>,
    ) -> Result<(), StoreError> {
        loop {
            let page = flow.schedule_store.schedules(self.application(), self.known, PAGE).await?;
            let (full, last) = (page.len() == PAGE, page.last().map(|followed| followed.number));
            let (mut found, mut new) = (Vec::new(), Vec::new());
            for followed in page {
                let Ok(schedule) = Schedule::parse(&followed.schedule) else { continue };
                let rules = self.rules().filter(|(name, rule)| {
                    rule.recurs == Recurs::Subscription
                        && self.compiled.application.rules[*name].subscription == followed.class
                });
                let rules: Vec<Name> = rules.map(|(name, _)| name.clone()).collect();
                for rule in rules {
                    let key: ScheduleKey = (rule, followed.schedule.clone());
                    let run = match runs.remove(&key) {
                        Some(run) => run,
                        None => {
                            let begins_at = followed.made_at.min(now);
                            let run = self.begin(&key, begins_at, EventBatchId(0));
                            new.push(run.clone());
                            run
                        }
                    };
                    found.push((key, schedule.clone(), run));
                }
            }
            if !new.is_empty() {
                flow.schedules.record_runs(None, new).await?;
            }
            for (key, schedule, run) in found {
                self.add_schedule(key, schedule, run);
            }
            self.known = last.unwrap_or(self.known);
            if !full {
                return Ok(());
            }
        }
    }

    /// Accepts events for all due times, in their order.
    async fn fire(&mut self, flow: &Flow) -> Result<(), StoreError> {
        let now = flow.clock.now();
        if self.due.first().is_none_or(|(at, _)| *at > now) {
            return Ok(());
        }
        let stops = flow.rule_store.rule_stops().await?;
        loop {
            // One rule at a time, so that a run that fails is set aside without others.
            let Some((_, (rule, _))) = self.due.first().filter(|(at, _)| *at <= now) else { return Ok(()) };
            let rule = rule.clone();
            let due = self.due.iter().take_while(|(at, _)| *at <= now).filter(|(_, (of, _))| *of == rule);
            let due: Vec<(Timestamp, ScheduleKey)> = due.take(DUE_AT_ONCE).cloned().collect();
            if stops.iter().any(|stop| (&stop.application, &stop.rule) == (self.application(), &rule)) {
                // Its runs count as missed once it is resumed.
                for (at, key) in due {
                    self.due.remove(&(at, key.clone()));
                    self.due.insert((now + PAUSE, key));
                }
                continue;
            }
            self.fire_some(flow, &rule, due, now).await?;
        }
    }

    async fn fire_some(
        &mut self,
        flow: &Flow,
        rule: &Name,
        due: Vec<(Timestamp, ScheduleKey)>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let definition = &self.compiled.application.rules[rule];
        let Some(scheduled) = definition.schedule.clone() else { return Ok(()) };
        let class = definition.subscription.clone();
        let labels = flow.classes.labels(self.application(), &definition.notify);
        let mut rounds: Vec<Vec<(ScheduleKey, run::Due)>> = Vec::new();
        let (mut moved, mut nexts) = (Vec::new(), Vec::new());
        for (at, key) in due {
            let Some(followed) = self.schedules.get(&key) else {
                self.due.remove(&(at, key));
                continue;
            };
            if scheduled.recurs == Recurs::Subscription
                && !has_followers(flow, self.application(), &class, &key.1).await?
            {
                if flow.schedule_store.delete_schedule(self.application(), &class, &key.1).await? {
                    flow.schedules.delete_schedule(self.application(), &key).await?;
                    self.schedules.remove(&key);
                    self.due.remove(&(at, key));
                    continue;
                }
                moved.push(ScheduleRun { due_at: now, ..followed.run.clone() });
                nexts.push((at, key, followed.schedule.next_after(now).map(|next| next.at)));
                continue;
            }
            let mut found = followed.schedule.due(Some(followed.run.due_at), now, scheduled.policy());
            let in_time = found.runs.len();
            if let Some(age) = scheduled.skip_older_than {
                found.runs.retain(|run| now.since(run.at) <= age);
            }
            let skipped = found.skipped + (in_time - found.runs.len()) as u64;
            let mut last_run = followed.run.due_at;
            let mut skipped_once = skipped;
            for (round, run) in found.runs.iter().enumerate() {
                if rounds.len() <= round {
                    rounds.push(Vec::new());
                }
                let due = run::Due::new(&key, run.at, last_run, std::mem::take(&mut skipped_once));
                rounds[round].push((key.clone(), due));
                last_run = run.at;
                metrics::histogram!("tocsin_schedule_lag_seconds", &labels).record(now.since(run.at));
            }
            if skipped > 0 {
                let (application, rule) = (self.application(), &key.0);
                tracing::warn!(%application, %rule, skipped, "runs of a schedule were missed and are not repeated");
                metrics::counter!("tocsin_schedule_skipped_runs_total", &labels).increment(skipped);
                let run = &followed.run;
                let run = ScheduleRun { skipped: run.skipped + skipped, skipped_at: Some(now), ..run.clone() };
                moved.push(if found.runs.is_empty() { ScheduleRun { due_at: now, ..run } } else { run });
            }
            nexts.push((at, key, found.next));
        }
        self.record(flow, None, moved).await?;
        // Subscriptions created up to now are included.
        let snapshot_sequence = *flow.change_log.newest_change().borrow();
        for round in rounds {
            let mut packer = EventPacker::new(due_fields());
            let mut runs = Vec::with_capacity(round.len());
            for (key, due) in &round {
                let run = &self.schedules[key].run;
                packer.push(&due.continuing(run, snapshot_sequence).row());
                runs.push(ScheduleRun { due_at: due.due_at, seen: snapshot_sequence, ..run.clone() });
            }
            let batch = self.due_batch(packer, snapshot_sequence, now);
            metrics::counter!("tocsin_schedule_runs_total", &labels).increment(round.len() as u64);
            self.record(flow, Some(batch), runs).await?;
        }
        for (at, key, next) in nexts {
            self.due.remove(&(at, key.clone()));
            self.due.extend(next.map(|next| (next, key)));
        }
        Ok(())
    }

    /// The event batch of due times.
    fn due_batch(&self, packer: EventPacker, snapshot_sequence: ChangeSequence, now: Timestamp) -> NewEventBatch {
        NewEventBatch {
            application: self.application().clone(),
            version: self.compiled.version,
            class: due_class(),
            source: source(),
            received_at: now,
            accepted_at: now,
            snapshot_sequence,
            events: packer.finish(),
            idempotency: None,
            marks: Vec::new(),
        }
    }

    /// Stores the progress of schedules, then updates it in memory. After a failure they are due as before.
    async fn record(
        &mut self,
        flow: &Flow,
        due: Option<NewEventBatch>,
        runs: Vec<ScheduleRun>,
    ) -> Result<(), StoreError> {
        if runs.is_empty() {
            return Ok(());
        }
        let batch = flow.schedules.record_runs(due, runs.clone()).await?;
        for run in runs {
            if let Some(followed) = self.schedules.get_mut(&(run.rule.clone(), run.schedule.clone())) {
                followed.run = ScheduleRun { after: batch.unwrap_or(run.after), ..run };
            }
        }
        Ok(())
    }
}

/// Whether any enabled subscription follows a schedule.
async fn has_followers(flow: &Flow, application: &Name, class: &Name, schedule: &str) -> Result<bool, StoreError> {
    Ok(!flow
        .schedule_store
        .scheduled_subscriptions(ScheduleMembers { application, class, schedule, after: None, limit: 1 })
        .await?
        .is_empty())
}
