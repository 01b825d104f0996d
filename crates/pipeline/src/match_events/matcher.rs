//! The task that matches one application: owns its index and processes its quanta in order.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use tocsin_model::{
    event::EventBatch,
    id::{ChangeSequence, Name},
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    journal::{ClaimedEvents, Firing, FiringStatus, NewQuantum, PersonNames, Step},
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::{JoinError, JoinHandle},
};

use super::{
    build_index::{build, next_snapshot_sequence},
    lifecycle_rules::run_lifecycle,
    make_batches::{channels_of, notifications_of},
    matched::Matched,
    report::{count, quantum_input},
    rule_state::erase_chronicles,
};
use crate::{
    Flow, RefireError, broadcasts,
    compile::Compiled,
    delays,
    follow_changes::Followed,
    keep_busy,
    rates::NotificationCount,
    rule_breaker::RuleBreaker,
    schedules,
    shards::RuleStateCommand,
    suspects::{InProgressGuard, Work},
};

/// Delay after the store failed.
pub(super) const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(500);

/// Initial state of a matcher.
pub(super) enum Start {
    /// An index.
    Matched(Box<Matched>),
    /// No index yet: the matcher builds it.
    Build,
}

/// Event batches that are matched and committed together.
pub(super) struct Quantum {
    pub claimed: Vec<ClaimedEvents>,
    pub claimed_at: Timestamp,
    /// Number of releases of batches before it was claimed.
    pub generation: u64,
    /// Limit that throttles set on the notifications of schedule runs.
    pub run_notifications_max: Option<usize>,
}

/// A command, carried out between two quanta.
pub(super) enum Control {
    /// Match with this version and index from now on.
    Install(Arc<Compiled>, Box<Followed>, oneshot::Sender<()>),
    /// Fire a rule for batches for which it did not fire.
    Refire(Box<Firing>, oneshot::Sender<Result<u64, RefireError>>),
    /// Remove chronicle entries that name a person.
    Erase(Arc<PersonNames>, oneshot::Sender<Result<(), StoreError>>),
}

/// Outcome of a quantum.
pub(super) enum Outcome {
    /// Matched and being committed, or released; the next may come. Counts by event class.
    Matched(BTreeMap<Name, NotificationCount>),
    /// Batches were released; `generation` counts the releases.
    Released { generation: u64 },
}

/// A report of a matcher.
pub(super) struct Report {
    /// The matcher. Reports of removed matchers are ignored.
    pub id: u64,
    pub application: Name,
    pub outcome: Outcome,
}

/// Matches until all senders are gone.
pub(super) struct Matcher {
    pub flow: Arc<Flow>,
    pub id: u64,
    pub name: Name,
    pub quanta: mpsc::Receiver<Quantum>,
    pub controls: mpsc::Receiver<Control>,
    pub target: watch::Receiver<ChangeSequence>,
    pub reports: mpsc::Sender<Report>,
}

/// A quantum being committed.
struct Committing {
    claimed: Vec<ClaimedEvents>,
    under_way: Vec<InProgressGuard>,
    commit: JoinHandle<Result<(), StoreError>>,
}

/// A matcher with its index.
struct AtWork {
    matcher: Matcher,
    matched: Matched,
    committing: Option<Committing>,
    generation: u64,
    /// Whether the last quantum was slow.
    is_slow: bool,
}

impl Matcher {
    pub async fn run(self, start: Start) {
        let matched = match start {
            Start::Matched(matched) => *matched,
            Start::Build => match self.build().await {
                Some(matched) => matched,
                None => return,
            },
        };
        let work = AtWork { matcher: self, matched, committing: None, generation: 0, is_slow: false };
        work.run().await;
    }

    /// Builds the index of the running version, once it is known.
    async fn build(&self) -> Option<Matched> {
        loop {
            tokio::time::sleep(PAUSE_AFTER_FAILURE).await;
            let compiled = self.flow.running.lock().get(&self.name)?.upgrade()?.compiled();
            let built = match next_snapshot_sequence(&self.flow).await {
                Ok(place) => build(&self.flow, &compiled, place).await,
                Err(error) => Err(error),
            };
            match built {
                Ok(followed) => {
                    let matched = Matched::new(compiled, followed, RuleBreaker::default());
                    matched.publish(&self.flow);
                    return Some(matched);
                }
                Err(error) => tracing::error!(application = %self.name, %error, "the match index cannot be built yet"),
            }
        }
    }
}

impl AtWork {
    async fn run(mut self) {
        loop {
            let may_advance =
                self.committing.is_none() && self.matched.followed.place() < *self.matcher.target.borrow();
            tokio::select! {
                biased;
                control = self.matcher.controls.recv() => match control {
                    Some(control) => self.handle_control(control).await,
                    None => break,
                },
                done = committed(&mut self.committing) => drop(self.finish_commit(done).await),
                quantum = self.matcher.quanta.recv() => match quantum {
                    Some(quantum) => self.match_quantum(quantum).await,
                    None => break,
                },
                () = std::future::ready(()), if may_advance => self.advance_index().await,
                Ok(()) = self.matcher.target.changed() => {}
            }
        }
        // Finish the remaining queue.
        while let Some(quantum) = self.matcher.quanta.recv().await {
            self.match_quantum(quantum).await;
        }
        let _ = self.await_commit().await;
    }

    async fn handle_control(&mut self, control: Control) {
        // A pending commit belongs to the current index.
        let _ = self.await_commit().await;
        match control {
            Control::Install(compiled, followed, done) => {
                // Failure counts carry over from the previous version.
                let breaker = std::mem::take(&mut self.matched.breaker);
                self.matched = Matched::new(compiled, *followed, breaker);
                self.matched.publish(&self.matcher.flow);
                let _ = done.send(());
            }
            // Uses the current subscriptions, some batches at a time; batches for which the rule fails again stay
            // listed.
            Control::Refire(firing, done) => {
                let flow = self.matcher.flow.clone();
                let permit = flow.permits.acquire(self.is_slow).await;
                let _ = done.send(self.matched.refire(&flow, &firing).await);
                drop(permit);
                self.matched.publish(&flow);
            }
            Control::Erase(names, done) => {
                let Matcher { flow, name, .. } = &self.matcher;
                let erased = erase_chronicles(flow, name, &self.matched.compiled.rules, &names).await;
                // What is in memory is read again.
                self.matched.remembers = false;
                let _ = done.send(erased);
            }
        }
    }

    /// Advances the index by one step.
    async fn advance_index(&mut self) {
        let place = *self.matcher.target.borrow();
        let Matcher { flow, name, .. } = &self.matcher;
        if let Err(error) = self.matched.advance(flow, name, place).await {
            tracing::error!(application = %name, %error, "the index cannot follow the changes");
            tokio::time::sleep(PAUSE_AFTER_FAILURE).await;
        }
        self.matched.publish(flow);
    }

    /// Matches a quantum and commits it.
    async fn match_quantum(&mut self, quantum: Quantum) {
        let flow = self.matcher.flow.clone();
        let Quantum { claimed, claimed_at, generation, run_notifications_max } = quantum;
        let mut made = BTreeMap::new();
        if generation == self.generation {
            // A batch that was in progress when the process crashed is alone in its quantum.
            let works: Vec<Work> = claimed.iter().map(|events| Work::Events(events.claim.id)).collect();
            let alone = if works.iter().any(|work| flow.suspects.crashes(*work) > 0) {
                let _ = self.await_commit().await;
                Some(flow.suspects.alone().await)
            } else {
                None
            };
            let under_way = works.into_iter().map(|work| flow.suspects.enter(work, alone.as_ref())).collect();
            let permit = flow.permits.acquire(self.is_slow).await;
            let started = Instant::now();
            let matched = self.step(&claimed, claimed_at, run_notifications_max, &mut made).await;
            self.is_slow = started.elapsed() >= flow.options.slow_rule();
            drop(permit);
            let before = self.await_commit().await;
            match matched.and_then(|step| before.map(|()| step)) {
                Ok(step) => self.commit(claimed, under_way, step),
                Err(error) => {
                    self.matched.remembers = false;
                    self.release_batches(claimed, &error).await;
                }
            }
            if alone.is_some() {
                let _ = self.await_commit().await;
            }
            self.matched.publish(&flow);
        } else {
            // The released batches come before it.
            self.release_batches(claimed, &StoreError::unavailable("earlier event batches were released")).await;
        }
        self.report(Outcome::Matched(made)).await;
    }

    /// Matches a quantum, each batch at its snapshot sequence. Rule state becomes valid once the step is stored.
    async fn step(
        &mut self,
        claimed: &[ClaimedEvents],
        started_at: Timestamp,
        run_notifications_max: Option<usize>,
        made: &mut BTreeMap<Name, NotificationCount>,
    ) -> Result<Step, StoreError> {
        let (flow, name) = (self.matcher.flow.clone(), self.matcher.name.clone());
        let started = Instant::now();
        let mut step = Step::default();
        let compiled = self.matched.compiled.clone();
        let (sent, others): (Vec<&ClaimedEvents>, Vec<&ClaimedEvents>) =
            claimed.iter().partition(|events| broadcasts::is_broadcast(&events.batch));
        let (due, batches): (Vec<&ClaimedEvents>, Vec<&ClaimedEvents>) = others
            .into_iter()
            .partition(|events| delays::is_delay(&events.batch) || schedules::is_due(&compiled, &events.batch));
        if !batches.is_empty() {
            if !self.matched.remembers {
                // The pending commit must reach the journal first.
                self.await_commit().await?;
            }
            self.matched.load_rule_state(&flow, &name, batches[0].batch.snapshot_sequence).await?;
            self.matched.match_batches(&flow, &name, &batches, &mut step).await?;
            for events in batches.iter().filter(|events| compiled.application.is_lifecycle(&events.batch.class)) {
                if step.matched.iter().any(|claim| claim.id == events.claim.id) {
                    run_lifecycle(&flow, &compiled, &events.batch, None, &mut step).await?;
                }
            }
        }
        for events in &batches {
            made.entry(events.batch.class.clone()).or_default().batches += 1;
        }
        for batch in &step.batches {
            made.entry(batch.head.event_class.clone()).or_default().notifications += u64::from(batch.count);
        }
        // Due schedules come after event rules.
        let of_events = notifications_of(&step);
        for events in due {
            let before = notifications_of(&step);
            if compiled.rules.has_chronicles() {
                // Chronicle values seen by the last quantum's events are read from the journal.
                self.await_commit().await?;
            }
            let done = if delays::is_delay(&events.batch) {
                // Events of the last quantum may cancel.
                self.await_commit().await?;
                delays::run_delays(&flow, &compiled, &events.batch, &mut step).await?
            } else {
                schedules::run_due(&flow, &compiled, &events.batch, run_notifications_max, &mut step).await?
            };
            match done {
                Ok(()) => step.matched.push(events.claim),
                Err(reason) => step.failed.push((events.claim, reason)),
            }
            // Notifications of a run count like all others: they are sent, and later events wait.
            let of_class = made.entry(events.batch.class.clone()).or_default();
            of_class.batches += 1;
            of_class.notifications += notifications_of(&step) - before;
        }
        for events in sent {
            let before = notifications_of(&step);
            match broadcasts::run_part(&flow, &events.batch, run_notifications_max, &mut step).await? {
                Ok(()) => step.matched.push(events.claim),
                Err(reason) => step.failed.push((events.claim, reason)),
            }
            let of_class = made.entry(events.batch.class.clone()).or_default();
            of_class.batches += 1;
            of_class.notifications += notifications_of(&step) - before;
        }
        let notifications = notifications_of(&step);
        step.quantum = Some(NewQuantum {
            started_at,
            ended_at: flow.clock.now(),
            batches: claimed.iter().map(quantum_input).collect(),
            scheduled_notifications: notifications - of_events,
        });
        metrics::histogram!("tocsin_match_duration_seconds").record(started.elapsed());
        metrics::counter!("tocsin_match_quanta_total").increment(1);
        count(&flow, claimed, &step);
        for status in [FiringStatus::Failed, FiringStatus::Skipped] {
            let count = step.firings.iter().filter(|firing| firing.status == status).count();
            metrics::counter!("tocsin_match_missed_firings_total", "status" => status.name()).increment(count as u64);
        }
        for (claim, reason) in &step.failed {
            tracing::error!(batch = %claim.id, reason, "an event batch cannot be matched and is set aside");
        }
        Ok(step)
    }

    fn commit(&mut self, claimed: Vec<ClaimedEvents>, under_way: Vec<InProgressGuard>, step: Step) {
        let flow = self.matcher.flow.clone();
        let accepted: Vec<Timestamp> = claimed.iter().map(|events| events.batch.accepted_at).collect();
        // Only batches with trace context.
        let is_traced = |events: &&ClaimedEvents| flow.spans.is_on() && !events.batch.events.traces().is_empty();
        let traced: Vec<EventBatch> = claimed.iter().filter(is_traced).map(|events| events.batch.clone()).collect();
        let commit = tokio::spawn(async move {
            let stops = step.stops.clone();
            let channels = channels_of(&step);
            let delays_more = !step.delayed.is_empty();
            let has_broadcasts = !step.broadcasts.is_empty();
            flow.work_queue.commit(step).await?;
            flow.serve(channels);
            if has_broadcasts {
                flow.broadcasts_changed.notify_one();
                flow.broadcast_advanced();
            }
            if delays_more {
                flow.delays_started.notify_one();
            }
            for stop in stops {
                flow.stop(stop);
            }
            let now = flow.clock.now();
            for accepted_at in accepted {
                flow.latencies.matching.record(now.since(accepted_at));
            }
            for batch in traced {
                flow.spans.matched(&batch, now);
            }
            Ok(())
        });
        self.committing = Some(Committing { claimed, under_way, commit });
    }

    /// Waits for a pending commit. If it failed, its batches are released and matched again.
    async fn await_commit(&mut self) -> Result<(), StoreError> {
        if self.committing.is_none() {
            return Ok(());
        }
        let done = committed(&mut self.committing).await;
        self.finish_commit(done).await
    }

    async fn finish_commit(&mut self, done: Result<Result<(), StoreError>, JoinError>) -> Result<(), StoreError> {
        let Some(Committing { claimed, under_way, .. }) = self.committing.take() else { return Ok(()) };
        let done = done.unwrap_or_else(|panic| Err(StoreError::unavailable(panic)));
        match &done {
            Ok(()) => {
                under_way.into_iter().for_each(InProgressGuard::done);
                // If a shard is lost, matching will find out.
                let _ = keep_busy(|| self.matched.followed.shards().apply_state_command(&RuleStateCommand::Confirm));
                self.matcher.flow.switches.end_matching(&self.matcher.name);
            }
            Err(error) => {
                // The state was not stored, or that is unknown; only the journal is authoritative.
                self.matched.remembers = false;
                self.release_batches(claimed, error).await;
            }
        }
        done
    }

    async fn release_batches(&mut self, claimed: Vec<ClaimedEvents>, error: &StoreError) {
        tracing::error!(%error, batches = claimed.len(), "event batches could not be matched and will be tried again");
        self.generation += 1;
        for events in claimed {
            // A lost claim needs no release.
            let _ = self.matcher.flow.work_queue.release_events(events.claim).await;
        }
        // Batches claimed with this generation are claimed after the release, so together with these.
        self.report(Outcome::Released { generation: self.generation }).await;
        self.matcher.flow.switches.end_matching(&self.matcher.name);
        tokio::time::sleep(PAUSE_AFTER_FAILURE).await;
    }

    /// At a shutdown the receiver may be gone.
    async fn report(&self, outcome: Outcome) {
        let (id, application) = (self.matcher.id, self.matcher.name.clone());
        let _ = self.matcher.reports.send(Report { id, application, outcome }).await;
    }
}

/// Waits for the end of the pending commit; never returns if there is none.
async fn committed(committing: &mut Option<Committing>) -> Result<Result<(), StoreError>, JoinError> {
    match committing {
        Some(committing) => (&mut committing.commit).await,
        None => std::future::pending().await,
    }
}
