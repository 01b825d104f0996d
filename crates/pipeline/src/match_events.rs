//! 2. Event batches meet the index: matches, cut into notification batches.
//!
//! One matcher takes the batches in the order of their acceptance, a quantum at a time: whatever waits, within bounds;
//! nobody waits for a clock. The index is brought to the place of each batch among the changes of the records before the
//! batch is matched, and changes that come after a batch never hold it up. While one quantum is on its way to disk the
//! next is matched, and they are committed in order.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use tocsin_matching::chronicle::book::ChronicleBook;
use tocsin_model::{
    event::EventBatch,
    field::Fields,
    id::{ChangeSequence, EventBatchId, Name},
    state::StatePage,
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    journal::{Arrivals, ClaimedEvents, Firing, FiringStatus, NewQuantum, Step, TakenUp},
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use crate::{
    Flow, RefireError,
    compile::Compiled,
    follow_changes::{Followed, Lost},
    guard::Guard,
    keep_busy, schedules,
    shards::{IndexReport, Memory, shard_count},
};

mod matched; // an application's share of a quantum
mod refire; // a rule is fired again
mod make_batches; // what was cut becomes notification batches
mod report; // what was done is counted

pub(crate) use make_batches::new_batches;
pub(crate) use report::report_failures;

use make_batches::{channels_of, notifications_of};

/// A matcher that dies with its batches claimed loses them after this time.
const LEASE: Duration = Duration::from_secs(300);
/// How long to wait after the store failed.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(500);

/// The channel of notifications whose subscriber had no usable device when they were made.
pub fn unassigned_channel() -> Name {
    "unassigned".parse().expect("`unassigned` is a name")
}

/// Pages of what rules remember, read from the journal at a time.
const STATE_PAGES: usize = 1_000;

/// What the matcher is told between two quanta.
pub(crate) enum Command {
    /// Match with this version and index from now on.
    Install(Arc<Compiled>, Box<Followed>, oneshot::Sender<()>),
    /// Stop matching this application.
    Remove(Name, oneshot::Sender<()>),
    /// Fire a rule for batches for which it did not fire.
    Refire(Box<Firing>, oneshot::Sender<Result<u64, RefireError>>),
}

/// An application that is being matched.
struct Matched {
    compiled: Arc<Compiled>,
    followed: Followed,
    report: IndexReport,
    guard: Guard,
    /// What is kept of its events. Computed here, before any shard matches.
    chronicles: ChronicleBook,
    /// Whether the shards and the chronicles remember what the journal does. If not, it is read from there before the
    /// next match.
    remembers: bool,
}

/// What the index of an application holds, and where it stands.
#[derive(Debug, Clone)]
pub(crate) struct IndexStatus {
    /// The version by which it matches.
    pub version: u32,
    /// What it holds.
    pub report: IndexReport,
    /// Every change up to here is in it.
    pub place: ChangeSequence,
}

/// A quantum that is being committed.
struct Committing {
    claimed: Vec<ClaimedEvents>,
    /// The applications whose rules remember something by it.
    changed: Vec<Name>,
    commit: JoinHandle<Result<(), StoreError>>,
}

/// Owns the index and matches until it is stopped.
pub(crate) struct Matcher {
    flow: Arc<Flow>,
    applications: BTreeMap<Name, Matched>,
    commands: mpsc::Receiver<Command>,
    arrivals: Arrivals,
    changes: watch::Receiver<ChangeSequence>,
    switched: watch::Receiver<u64>,
}

impl Matcher {
    pub fn new(flow: Arc<Flow>, commands: mpsc::Receiver<Command>) -> Self {
        let (arrivals, changes) = (flow.journal.arrivals(), flow.records.newest_change());
        let switched = flow.switches.changes();
        Matcher { flow, applications: BTreeMap::new(), commands, arrivals, changes, switched }
    }

    /// Matches until `stop`; what is claimed then is finished first.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut committing: Option<Committing> = None;
        loop {
            while let Ok(command) = self.commands.try_recv() {
                // What a commit changes belongs to the index that is there now.
                let _ = self.settle(committing.take()).await;
                self.obey(command).await;
            }
            self.changes.mark_unchanged();
            // Before the claim: what is claimed later sees at least this.
            let settled = self.flow.places.settled();
            let (mut waiting, wait) = self.throttled();
            self.switched.mark_unchanged();
            waiting.extend(self.flow.switches.held());
            let taken_up_at = self.flow.clock.now();
            let rests = stop.is_cancelled() || self.flow.switches.holds_matching();
            let claimed = if rests { Ok(Vec::new()) } else { self.claim(&waiting).await };
            match claimed {
                Ok(claimed) if !claimed.is_empty() => {
                    let claimed = self.within_rates(claimed).await;
                    let before = committing.iter().flat_map(|before: &Committing| &before.claimed);
                    let under_way = claimed.iter().chain(before).map(|events| events.batch.application.clone());
                    self.flow.switches.now_matching(under_way);
                    let mut changed = Vec::new();
                    let matched = self.match_quantum(&claimed, taken_up_at, &mut changed, &mut committing).await;
                    let before = self.settle(committing.take()).await;
                    match matched.and_then(|step| before.map(|()| step)) {
                        Ok(step) => committing = Some(self.commit(claimed, changed, step)),
                        Err(error) => {
                            self.distrust(&changed);
                            self.give_back(claimed, &error).await;
                        }
                    }
                }
                Ok(_) => {
                    // A failed commit has given its batches back, so they will be claimed again.
                    let _ = self.settle(committing.take()).await;
                    self.flow.switches.now_matching(std::iter::empty());
                    if stop.is_cancelled() {
                        return;
                    }
                    if !self.flow.switches.holds_matching() && !self.follow(settled).await {
                        continue;
                    }
                    tokio::select! {
                        () = stop.cancelled() => {}
                        Some(command) = self.commands.recv() => self.obey(command).await,
                        Ok(()) = self.arrivals.events.changed() => {}
                        // Without an application there is no index that follows.
                        Ok(()) = self.changes.changed(), if !self.applications.is_empty() => {}
                        Ok(()) = self.switched.changed() => {}
                        () = tokio::time::sleep(wait) => {}
                    }
                }
                Err(error) => {
                    tracing::error!(%error, "event batches cannot be claimed");
                    tokio::time::sleep(PAUSE_AFTER_FAILURE).await;
                }
            }
            self.report();
        }
    }

    /// Matches an application by this version and index from now on.
    pub fn install(&mut self, compiled: Arc<Compiled>, mut followed: Followed) {
        // If a shard is gone already, matching will find that out.
        let report = keep_busy(|| followed.settle()).unwrap_or_default();
        let name = compiled.application.name.clone();
        // What its rules did under the version before still counts.
        let guard = self.applications.remove(&name).map(|before| before.guard).unwrap_or_default();
        let chronicles = ChronicleBook::new(compiled.rules.clone());
        self.applications.insert(name, Matched { compiled, followed, report, guard, chronicles, remembers: false });
        self.report();
    }

    async fn obey(&mut self, command: Command) {
        match command {
            Command::Install(compiled, followed, done) => {
                self.install(compiled, *followed);
                let _ = done.send(());
            }
            Command::Remove(name, done) => {
                self.applications.remove(&name);
                let _ = done.send(());
            }
            Command::Refire(firing, done) => {
                let _ = done.send(self.refire(&firing).await);
            }
        }
        self.report();
    }

    /// The applications that make too much and wait, and how long to wait for the next that may go on.
    fn throttled(&mut self) -> (Vec<Name>, Duration) {
        let now = self.flow.clock.now();
        let (mut throttled, mut soonest) = (BTreeMap::new(), LEASE);
        for (name, matched) in &mut self.applications {
            if let Some(wait) = matched.guard.wait(matched.compiled.application.limits.throttle, now) {
                throttled.insert(name.clone(), now + wait);
                soonest = soonest.min(wait);
            }
        }
        metrics::gauge!("match_throttled_applications").set(throttled.len() as f64);
        let names = throttled.keys().cloned().collect();
        *self.flow.throttled.lock() = throttled;
        (names, soonest)
    }

    /// Fires a rule for the batches of a listed firing, some at a time, by the subscriptions as they are now. Gives how
    /// many batches these were; those for which it fails again stay on the list.
    async fn refire(&mut self, firing: &Firing) -> Result<u64, RefireError> {
        let Some(matched) = self.applications.get_mut(&firing.application) else {
            return Err(RefireError::NotRunning(firing.application.clone()));
        };
        matched.refire(&self.flow, firing).await
    }

    /// Gives back the event batches of throttled applications that one quantum may not match: they would all be matched
    /// before the throttle could hold any of them.
    async fn within_rates(&mut self, claimed: Vec<ClaimedEvents>) -> Vec<ClaimedEvents> {
        let now = self.flow.clock.now();
        let mut rooms: BTreeMap<Name, Option<usize>> = BTreeMap::new();
        let mut kept = Vec::with_capacity(claimed.len());
        for events in claimed {
            let name = &events.batch.application;
            if !rooms.contains_key(name) {
                let room = self.applications.get_mut(name).and_then(|matched| {
                    let throttle = matched.compiled.application.limits.throttle;
                    matched.guard.batches_max(throttle, now)
                });
                rooms.insert(name.clone(), room);
            }
            match rooms.get_mut(name) {
                Some(Some(0)) => {
                    // A claim that is lost already needs no giving back.
                    let _ = self.flow.journal.release_events(events.claim).await;
                    continue;
                }
                Some(Some(room)) => *room -= 1,
                _ => {}
            }
            kept.push(events);
        }
        kept
    }

    async fn claim(&mut self, except: &[Name]) -> Result<Vec<ClaimedEvents>, StoreError> {
        self.arrivals.events.mark_unchanged();
        let options = &self.flow.options;
        let now = self.flow.clock.now();
        self.flow.journal.claim_events(options.quantum_batches, options.quantum_bytes, except, LEASE, now).await
    }

    /// Takes the next step to a place, with every application's index that is not there yet. Gives whether all are.
    async fn follow(&mut self, place: ChangeSequence) -> bool {
        let mut is_there = true;
        // What waits for an application that is held was accepted before: its index waits as well, and the records keep
        // what it has not followed.
        let held = self.flow.switches.held();
        for (name, matched) in &mut self.applications {
            if matched.followed.place() >= place || held.contains(name) {
                continue;
            }
            match matched.follow(&self.flow, name, place).await {
                Ok(arrived) => is_there &= arrived,
                Err(error) => {
                    tracing::error!(application = %name, %error, "the index cannot follow the changes");
                    tokio::time::sleep(PAUSE_AFTER_FAILURE).await;
                }
            }
        }
        is_there
    }

    /// Counts what became of a quantum, class by class.
    fn count(&self, claimed: &[ClaimedEvents], step: &Step) {
        let classes = &self.flow.classes;
        let failed: BTreeSet<EventBatchId> = step.failed.iter().map(|(claim, _)| claim.id).collect();
        let matched: BTreeSet<EventBatchId> = step.matched.iter().map(|claim| claim.id).collect();
        for events in claimed {
            let labels = classes.labels(&events.batch.application, &events.batch.class);
            if matched.contains(&events.claim.id) {
                metrics::counter!("match_event_batches_total", &labels).increment(1);
            } else if failed.contains(&events.claim.id) {
                metrics::counter!("match_failed_batches_total", &labels).increment(1);
            }
        }
        for batch in &step.batches {
            let labels = classes.labels(&batch.head.application, &batch.head.class);
            metrics::counter!("match_notification_batches_total", &labels).increment(1);
            metrics::counter!("match_notifications_total", &labels).increment(u64::from(batch.count));
        }
    }

    /// Matches a quantum, each batch by the index as of its place. Those in `changed` remember what is true only once the
    /// step is stored.
    async fn match_quantum(
        &mut self,
        claimed: &[ClaimedEvents],
        started_at: Timestamp,
        changed: &mut Vec<Name>,
        committing: &mut Option<Committing>,
    ) -> Result<Step, StoreError> {
        let started = std::time::Instant::now();
        let mut step = Step::default();
        let mut by_application: BTreeMap<&Name, Vec<&ClaimedEvents>> = BTreeMap::new();
        let mut due = Vec::new();
        for events in claimed {
            let matched = self.applications.get(&events.batch.application);
            if let Some(matched) = matched.filter(|matched| schedules::is_due(&matched.compiled, &events.batch)) {
                due.push((events, matched.compiled.clone()));
                continue;
            }
            by_application.entry(&events.batch.application).or_default().push(events);
        }
        for (name, batches) in by_application {
            if self.applications.get(name).is_some_and(|matched| !matched.remembers) {
                // The journal must have what is on its way there.
                self.settle(committing.take()).await?;
            }
            match self.applications.get_mut(name) {
                Some(matched) => {
                    matched.remember(&self.flow, name, batches[0].batch.sees).await?;
                    matched.match_batches(&self.flow, name, &batches, &mut step).await?;
                    changed.push(name.clone());
                }
                None => {
                    let reason = format!("the application `{name}` does not run");
                    step.failed.extend(batches.iter().map(|events| (events.claim, reason.clone())));
                }
            }
        }
        // Due schedules come after event rules.
        let of_events = notifications_of(&step);
        for (events, compiled) in due {
            let before = notifications_of(&step);
            if compiled.rules.has_chronicles() {
                // What the events of the last quantum saw of them is read from the journal.
                self.settle(committing.take()).await?;
            }
            match schedules::run_due(&self.flow, &compiled, &events.batch, &mut step).await? {
                Ok(()) => step.matched.push(events.claim),
                Err(reason) => step.failed.push((events.claim, reason)),
            }
            // What a run makes counts like anything else: it is told, and what comes behind it waits.
            if let Some(matched) = self.applications.get_mut(&events.batch.application) {
                let (throttle, now) = (compiled.application.limits.throttle, self.flow.clock.now());
                matched.guard.spend(throttle, notifications_of(&step) - before, 1, now);
            }
        }
        let notifications = notifications_of(&step);
        step.quantum = Some(NewQuantum {
            started_at,
            ended_at: self.flow.clock.now(),
            batches: claimed.iter().map(taken_up).collect(),
            scheduled_notifications: notifications - of_events,
        });
        metrics::histogram!("match_duration_seconds").record(started.elapsed());
        metrics::counter!("match_quanta_total").increment(1);
        self.count(claimed, &step);
        for status in [FiringStatus::Failed, FiringStatus::Skipped] {
            let count = step.firings.iter().filter(|firing| firing.status == status).count();
            metrics::counter!("match_firings_missed_total", "status" => status.name()).increment(count as u64);
        }
        for (claim, reason) in &step.failed {
            tracing::error!(batch = %claim.id, reason, "an event batch cannot be matched and is set aside");
        }
        Ok(step)
    }

    fn commit(&self, claimed: Vec<ClaimedEvents>, changed: Vec<Name>, step: Step) -> Committing {
        let flow = self.flow.clone();
        let accepted: Vec<Timestamp> = claimed.iter().map(|events| events.batch.accepted_at).collect();
        // Only those of which there is something to tell.
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
        Committing { claimed, changed, commit }
    }

    /// Waits for a commit. If it failed, its batches are given back to be matched again.
    async fn settle(&mut self, committing: Option<Committing>) -> Result<(), StoreError> {
        let Some(Committing { claimed, changed, commit }) = committing else {
            return Ok(());
        };
        let done = commit.await.unwrap_or_else(|panic| Err(StoreError::unavailable(panic)));
        match &done {
            Ok(()) => {
                for name in &changed {
                    if let Some(matched) = self.applications.get_mut(name) {
                        // If a shard is gone, matching will find that out.
                        let _ = keep_busy(|| matched.followed.shards().remember(&Memory::Confirm));
                    }
                }
            }
            Err(error) => {
                self.distrust(&changed);
                self.give_back(claimed, error).await;
            }
        }
        done
    }

    /// What was remembered is not stored, or nobody knows whether it is; only the journal does.
    fn distrust(&mut self, changed: &[Name]) {
        for name in changed {
            if let Some(matched) = self.applications.get_mut(name) {
                matched.remembers = false;
            }
        }
    }

    async fn give_back(&self, claimed: Vec<ClaimedEvents>, error: &StoreError) {
        tracing::error!(%error, batches = claimed.len(), "event batches could not be matched and will be tried again");
        for events in claimed {
            // A claim that is lost already needs no giving back.
            let _ = self.flow.journal.release_events(events.claim).await;
        }
        tokio::time::sleep(PAUSE_AFTER_FAILURE).await;
    }

    /// Publishes what the indexes hold, and asks the records to keep the changes that they have not followed yet.
    fn report(&self) {
        let mut indexes = self.flow.indexes.lock();
        indexes.clear();
        for (name, Matched { compiled, followed, report, .. }) in &self.applications {
            let status = IndexStatus { version: compiled.version, report: report.clone(), place: followed.place() };
            indexes.insert(name.clone(), status);
        }
        let needed = indexes.values().map(|status| status.place).min();
        drop(indexes);
        let chronicles = || self.applications.values().map(|matched| &matched.chronicles);
        metrics::gauge!("match_chronicle_keys").set(chronicles().map(ChronicleBook::keys).sum::<usize>() as f64);
        self.flow.records.keep_changes_after(needed.unwrap_or(ChangeSequence(u64::MAX)));
    }
}

/// Builds the index of a version as of a place.
pub(crate) async fn build(flow: &Flow, compiled: &Compiled, place: ChangeSequence) -> Result<Followed, StoreError> {
    let built = Followed::build(&*flow.records, compiled, shard_count(flow.options.match_shards), place).await;
    built.map_err(|lost| match lost {
        Lost::Store(error) => error,
        lost => StoreError::unavailable(lost),
    })
}

/// The place at which an index is wanted next: that of the oldest batch that waits, else the present.
pub(crate) async fn place_wanted(flow: &Flow) -> Result<ChangeSequence, StoreError> {
    let settled = flow.places.settled();
    Ok(flow.journal.oldest_place().await?.map_or(settled, |oldest| oldest.min(settled)))
}

/// The fields that a batch was packed with; the inner error says why nobody can know.
pub(crate) async fn event_fields(flow: &Flow, batch: &EventBatch) -> Result<Result<Fields, String>, StoreError> {
    let Some(compiled) = flow.versions.get(&batch.application, batch.version).await? else {
        return Ok(Err(format!("version {} of the application `{}` is gone", batch.version, batch.application)));
    };
    Ok(match compiled.application.events.get(&batch.class) {
        Some(class) => Ok(class.fields.clone()),
        None => Err(format!("version {} has no event class `{}`", batch.version, batch.class)),
    })
}

/// Removes what the rules of an application that is no more remembered.
pub(crate) async fn forget(flow: &Flow, name: &Name) -> Result<(), StoreError> {
    loop {
        let pages = flow.journal.state_pages(name, None, STATE_PAGES).await?;
        if pages.is_empty() {
            return Ok(());
        }
        let none = |page: StatePage| (name.clone(), StatePage { body: Bytes::new(), ..page });
        flow.journal.commit(Step { states: pages.into_iter().map(none).collect(), ..Step::default() }).await?;
    }
}

/// What is told of an event batch in the quantum that takes it up.
fn taken_up(events: &ClaimedEvents) -> TakenUp {
    let EventBatch { id, application, class, source, accepted_at, events, .. } = &events.batch;
    TakenUp {
        id: *id,
        application: application.clone(),
        class: class.clone(),
        source: source.clone(),
        accepted_at: *accepted_at,
        events: events.count(),
    }
}
