//! The task that matches one application: it owns its index and takes its quanta in their order.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use tocsin_model::{
    event::EventBatch,
    id::{ChangeSequence, Name},
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    journal::{ClaimedEvents, Firing, FiringStatus, NewQuantum, Step},
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::{JoinError, JoinHandle},
};

use super::{
    Matched, PAUSE_AFTER_FAILURE, build,
    dispatch::Report,
    make_batches::{channels_of, notifications_of},
    place_wanted,
    report::count,
    taken_up,
};
use crate::{
    Flow, RefireError,
    compile::Compiled,
    follow_changes::Followed,
    guard::Guard,
    keep_busy,
    rates::Made,
    schedules,
    shards::Memory,
    suspects::{UnderWay, Work},
};

/// With what a matcher begins.
pub(super) enum Start {
    /// An index.
    Matched(Box<Matched>),
    /// Nothing: it builds the index.
    Build,
}

/// Batches that are matched and committed together.
pub(super) struct Quantum {
    pub claimed: Vec<ClaimedEvents>,
    pub taken_up_at: Timestamp,
    /// The count of times that batches were given back before it was claimed.
    pub generation: u64,
    /// The notifications that a throttle lets runs of schedules make.
    pub run_notifications_max: Option<usize>,
}

/// An order that is carried out between two quanta.
pub(super) enum Control {
    /// Match with this version and index from now on.
    Install(Arc<Compiled>, Box<Followed>, oneshot::Sender<()>),
    /// Fire a rule for batches for which it did not fire.
    Refire(Box<Firing>, oneshot::Sender<Result<u64, RefireError>>),
}

/// The outcome of a quantum.
pub(super) enum Outcome {
    /// It is matched and on its way to the journal, or given back; the next may come. What it made, by event class.
    Matched(BTreeMap<Name, Made>),
    /// Batches were given back, for the so many-th time.
    GaveBack { generation: u64 },
}

/// Matches until nobody can give it anything any more.
pub(super) struct Matcher {
    pub flow: Arc<Flow>,
    pub id: u64,
    pub name: Name,
    pub quanta: mpsc::Receiver<Quantum>,
    pub controls: mpsc::Receiver<Control>,
    pub follow: watch::Receiver<ChangeSequence>,
    pub reports: mpsc::Sender<Report>,
}

/// A quantum that is being committed.
struct Committing {
    claimed: Vec<ClaimedEvents>,
    under_way: Vec<UnderWay>,
    commit: JoinHandle<Result<(), StoreError>>,
}

/// A matcher with its index.
struct AtWork {
    matcher: Matcher,
    matched: Matched,
    committing: Option<Committing>,
    generation: u64,
    /// Whether the last quantum took long.
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

    /// Builds the index of the version that runs, when it is known.
    async fn build(&self) -> Option<Matched> {
        loop {
            tokio::time::sleep(PAUSE_AFTER_FAILURE).await;
            let compiled = self.flow.running.lock().get(&self.name)?.upgrade()?.compiled();
            let built = match place_wanted(&self.flow).await {
                Ok(place) => build(&self.flow, &compiled, place).await,
                Err(error) => Err(error),
            };
            match built {
                Ok(followed) => {
                    let matched = Matched::new(compiled, followed, Guard::default());
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
            let may_follow = self.committing.is_none() && self.matched.followed.place() < *self.matcher.follow.borrow();
            tokio::select! {
                biased;
                control = self.matcher.controls.recv() => match control {
                    Some(control) => self.obey(control).await,
                    None => break,
                },
                done = committed(&mut self.committing) => drop(self.settle_done(done).await),
                quantum = self.matcher.quanta.recv() => match quantum {
                    Some(quantum) => self.match_quantum(quantum).await,
                    None => break,
                },
                () = std::future::ready(()), if may_follow => self.follow().await,
                Ok(()) = self.matcher.follow.changed() => {}
            }
        }
        // What was given is finished.
        while let Some(quantum) = self.matcher.quanta.recv().await {
            self.match_quantum(quantum).await;
        }
        let _ = self.settle().await;
    }

    async fn obey(&mut self, control: Control) {
        // What a commit changes belongs to the index that is there now.
        let _ = self.settle().await;
        match control {
            Control::Install(compiled, followed, done) => {
                // What its rules did under the version before still counts.
                let guard = std::mem::take(&mut self.matched.guard);
                self.matched = Matched::new(compiled, *followed, guard);
                self.matched.publish(&self.matcher.flow);
                let _ = done.send(());
            }
            // By the subscriptions as they are now, some batches at a time; those for which it fails again stay on the list.
            Control::Refire(firing, done) => {
                let flow = self.matcher.flow.clone();
                let permit = flow.permits.acquire(self.is_slow).await;
                let _ = done.send(self.matched.refire(&flow, &firing).await);
                drop(permit);
                self.matched.publish(&flow);
            }
        }
    }

    /// Takes the next step to where the index may go.
    async fn follow(&mut self) {
        let place = *self.matcher.follow.borrow();
        let Matcher { flow, name, .. } = &self.matcher;
        if let Err(error) = self.matched.follow(flow, name, place).await {
            tracing::error!(application = %name, %error, "the index cannot follow the changes");
            tokio::time::sleep(PAUSE_AFTER_FAILURE).await;
        }
        self.matched.publish(flow);
    }

    /// Matches a quantum and has it committed.
    async fn match_quantum(&mut self, quantum: Quantum) {
        let flow = self.matcher.flow.clone();
        let Quantum { claimed, taken_up_at, generation, run_notifications_max } = quantum;
        let mut made = BTreeMap::new();
        if generation == self.generation {
            // One that was under way when the process crashed is alone in its quantum.
            let works: Vec<Work> = claimed.iter().map(|events| Work::Events(events.claim.id)).collect();
            let alone = if works.iter().any(|work| flow.suspects.crashes(*work) > 0) {
                let _ = self.settle().await;
                Some(flow.suspects.alone().await)
            } else {
                None
            };
            let under_way = works.into_iter().map(|work| flow.suspects.enter(work, alone.as_ref())).collect();
            let permit = flow.permits.acquire(self.is_slow).await;
            let started = Instant::now();
            let matched = self.step(&claimed, taken_up_at, run_notifications_max, &mut made).await;
            self.is_slow = started.elapsed() >= flow.options.slow_rule();
            drop(permit);
            let before = self.settle().await;
            match matched.and_then(|step| before.map(|()| step)) {
                Ok(step) => self.commit(claimed, under_way, step),
                Err(error) => {
                    self.matched.remembers = false;
                    self.give_back(claimed, &error).await;
                }
            }
            if alone.is_some() {
                let _ = self.settle().await;
            }
            self.matched.publish(&flow);
        } else {
            // Those that were given back come before it.
            self.give_back(claimed, &StoreError::unavailable("event batches before them were given back")).await;
        }
        self.report(Outcome::Matched(made)).await;
    }

    /// Matches a quantum, each batch by the index as of its place. What rules remember by it is true only once the step is
    /// stored.
    async fn step(
        &mut self,
        claimed: &[ClaimedEvents],
        started_at: Timestamp,
        run_notifications_max: Option<usize>,
        made: &mut BTreeMap<Name, Made>,
    ) -> Result<Step, StoreError> {
        let (flow, name) = (self.matcher.flow.clone(), self.matcher.name.clone());
        let started = Instant::now();
        let mut step = Step::default();
        let compiled = self.matched.compiled.clone();
        let (due, batches): (Vec<&ClaimedEvents>, Vec<&ClaimedEvents>) =
            claimed.iter().partition(|events| schedules::is_due(&compiled, &events.batch));
        if !batches.is_empty() {
            if !self.matched.remembers {
                // The journal must have what is on its way there.
                self.settle().await?;
            }
            self.matched.remember(&flow, &name, batches[0].batch.sees).await?;
            self.matched.match_batches(&flow, &name, &batches, &mut step).await?;
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
                // What the events of the last quantum saw of them is read from the journal.
                self.settle().await?;
            }
            match schedules::run_due(&flow, &compiled, &events.batch, run_notifications_max, &mut step).await? {
                Ok(()) => step.matched.push(events.claim),
                Err(reason) => step.failed.push((events.claim, reason)),
            }
            // Notifications of a run count like all others: they are sent, and later events wait.
            let of_class = made.entry(events.batch.class.clone()).or_default();
            of_class.batches += 1;
            of_class.notifications += notifications_of(&step) - before;
        }
        let notifications = notifications_of(&step);
        step.quantum = Some(NewQuantum {
            started_at,
            ended_at: flow.clock.now(),
            batches: claimed.iter().map(taken_up).collect(),
            scheduled_notifications: notifications - of_events,
        });
        metrics::histogram!("match_duration_seconds").record(started.elapsed());
        metrics::counter!("match_quanta_total").increment(1);
        count(&flow, claimed, &step);
        for status in [FiringStatus::Failed, FiringStatus::Skipped] {
            let count = step.firings.iter().filter(|firing| firing.status == status).count();
            metrics::counter!("match_firings_missed_total", "status" => status.name()).increment(count as u64);
        }
        for (claim, reason) in &step.failed {
            tracing::error!(batch = %claim.id, reason, "an event batch cannot be matched and is set aside");
        }
        Ok(step)
    }

    fn commit(&mut self, claimed: Vec<ClaimedEvents>, under_way: Vec<UnderWay>, step: Step) {
        let flow = self.matcher.flow.clone();
        let accepted: Vec<Timestamp> = claimed.iter().map(|events| events.batch.accepted_at).collect();
        // Only batches with traces.
        let is_traced = |events: &&ClaimedEvents| flow.spans.is_on() && !events.batch.events.traces().is_empty();
        let traced: Vec<EventBatch> = claimed.iter().filter(is_traced).map(|events| events.batch.clone()).collect();
        let commit = tokio::spawn(async move {
            let stops = step.stops.clone();
            let channels = channels_of(&step);
            flow.journal.commit(step).await?;
            flow.serve(channels);
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

    /// Waits for a commit, if one is under way. If it failed, its batches are given back to be matched again.
    async fn settle(&mut self) -> Result<(), StoreError> {
        if self.committing.is_none() {
            return Ok(());
        }
        let done = committed(&mut self.committing).await;
        self.settle_done(done).await
    }

    async fn settle_done(&mut self, done: Result<Result<(), StoreError>, JoinError>) -> Result<(), StoreError> {
        let Some(Committing { claimed, under_way, .. }) = self.committing.take() else { return Ok(()) };
        let done = done.unwrap_or_else(|panic| Err(StoreError::unavailable(panic)));
        match &done {
            Ok(()) => {
                under_way.into_iter().for_each(UnderWay::done);
                // If a shard is gone, matching will find that out.
                let _ = keep_busy(|| self.matched.followed.shards().remember(&Memory::Confirm));
                self.matcher.flow.switches.end_matching(&self.matcher.name);
            }
            Err(error) => {
                // What was remembered is not stored, or nobody knows whether it is; only the journal does.
                self.matched.remembers = false;
                self.give_back(claimed, error).await;
            }
        }
        done
    }

    async fn give_back(&mut self, claimed: Vec<ClaimedEvents>, error: &StoreError) {
        tracing::error!(%error, batches = claimed.len(), "event batches could not be matched and will be tried again");
        self.generation += 1;
        for events in claimed {
            // A claim that is lost already needs no giving back.
            let _ = self.matcher.flow.journal.release_events(events.claim).await;
        }
        // What is claimed with this generation is claimed after they are free, and so together with them.
        self.report(Outcome::GaveBack { generation: self.generation }).await;
        self.matcher.flow.switches.end_matching(&self.matcher.name);
        tokio::time::sleep(PAUSE_AFTER_FAILURE).await;
    }

    /// At a shutdown nobody listens any more.
    async fn report(&self, outcome: Outcome) {
        let (id, application) = (self.matcher.id, self.matcher.name.clone());
        let _ = self.matcher.reports.send(Report { id, application, outcome }).await;
    }
}

/// Waits for the end of a commit, for ever if there is none.
async fn committed(committing: &mut Option<Committing>) -> Result<Result<(), StoreError>, JoinError> {
    match committing {
        Some(committing) => (&mut committing.commit).await,
        None => std::future::pending().await,
    }
}
