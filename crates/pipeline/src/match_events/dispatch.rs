//! Dispatcher of step 2: claims event batches and hands each application its own, one quantum at a time; runs a
//! matcher for each application.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use tocsin_model::{
    id::{ChangeSequence, EventBatchId, Name},
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    journal::{Arrivals, Claim, ClaimEvents, ClaimedEvents, Except, Firing, NewQuantum, PersonNames, Step},
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::{Id, JoinError, JoinSet},
};
use tokio_util::sync::CancellationToken;

use super::{
    matched::Matched,
    matcher::{Control, Matcher, Outcome, PAUSE_AFTER_FAILURE, Quantum, Report, Start},
    report::{count, quantum_input},
};
use crate::{
    Flow, RefireError, compile::Compiled, flow::Throttled, follow_changes::Followed, rates::Rates,
    rule_breaker::RuleBreaker, suspects::Work,
};

/// Lease of claimed batches: a matcher that dies loses them after this time.
const LEASE: Duration = Duration::from_secs(300);
/// Maximum number of matcher reports waiting for the dispatcher; a matcher with another one waits.
const REPORTS_WAITING_MAX: usize = 256;
/// Maximum number of commands waiting for a matcher. Beyond it, a refire request fails.
const CONTROLS_WAITING_MAX: usize = 16;

/// A command for the dispatcher.
pub(crate) enum Command {
    /// Match with this version and index from now on.
    Install(Arc<Compiled>, Box<Followed>, oneshot::Sender<()>),
    /// Stop matching this application. Work in progress is finished first.
    Remove(Name, oneshot::Sender<()>),
    /// Fire a rule for batches for which it did not fire.
    Refire(Box<Firing>, oneshot::Sender<Result<u64, RefireError>>),
    /// Remove the entries of an application's chronicles that name a person.
    Erase(Name, Arc<PersonNames>, oneshot::Sender<Result<(), StoreError>>),
}

/// Handle of a matcher.
struct Handle {
    id: u64,
    compiled: Arc<Compiled>,
    quanta: mpsc::Sender<Quantum>,
    controls: mpsc::Sender<Control>,
    /// Change sequence up to which its index may advance while nothing waits.
    target: watch::Sender<ChangeSequence>,
    rates: Rates,
    /// Number of times batches were released. A quantum claimed before is released as well, so that it does not
    /// overtake them.
    generation: u64,
    /// Batches of the quantum it is working on.
    under_way: Vec<Claim<EventBatchId>>,
}

/// Gives event batches to matchers until it is stopped.
pub(crate) struct Dispatcher {
    flow: Arc<Flow>,
    handles: BTreeMap<Name, Handle>,
    matchers: JoinSet<()>,
    /// Running matcher tasks, with the receiver that waits for the end of each.
    tasks: HashMap<Id, (Name, u64, Option<oneshot::Sender<()>>)>,
    next_id: u64,
    commands: mpsc::Receiver<Command>,
    reports: mpsc::Receiver<Report>,
    reporter: mpsc::Sender<Report>,
    arrivals: Arrivals,
    changes: watch::Receiver<ChangeSequence>,
    switched: watch::Receiver<u64>,
}

impl Dispatcher {
    pub fn new(flow: Arc<Flow>, commands: mpsc::Receiver<Command>) -> Self {
        let (arrivals, changes) = (flow.work_queue.arrivals(), flow.change_log.newest_change());
        let switched = flow.switches.changes();
        let (reporter, reports) = mpsc::channel(REPORTS_WAITING_MAX);
        Dispatcher {
            flow,
            handles: BTreeMap::new(),
            matchers: JoinSet::new(),
            tasks: HashMap::new(),
            next_id: 0,
            commands,
            reports,
            reporter,
            arrivals,
            changes,
            switched,
        }
    }

    /// Distributes batches until `stop`; claimed batches are finished first.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            while let Ok(command) = self.commands.try_recv() {
                self.handle_command(command);
            }
            while let Ok(report) = self.reports.try_recv() {
                self.handle_report(report);
            }
            self.changes.mark_unchanged();
            // Read before the claim: batches claimed later see at least this.
            let settled = self.flow.snapshots.lower_bound();
            self.switched.mark_unchanged();
            let (except, wait) = self.except();
            let rests = stop.is_cancelled() || self.flow.switches.pauses_matching();
            match if rests { Ok(Vec::new()) } else { self.claim(&except).await } {
                Ok(claimed) if !claimed.is_empty() => {
                    self.give(claimed).await;
                    continue;
                }
                Ok(_) if stop.is_cancelled() => break,
                Ok(_) if !rests => self.advance_indexes(settled, &except),
                Ok(_) => {}
                Err(error) => {
                    tracing::error!(%error, "event batches cannot be claimed");
                    tokio::time::sleep(PAUSE_AFTER_FAILURE).await;
                    continue;
                }
            }
            tokio::select! {
                () = stop.cancelled() => {}
                Some(command) = self.commands.recv() => self.handle_command(command),
                Some(report) = self.reports.recv() => self.handle_report(report),
                Some(ended) = self.matchers.join_next_with_id(), if !self.matchers.is_empty() => self.handle_end(ended).await,
                Ok(()) = self.arrivals.events.changed() => {}
                // Without an application there is no index to advance.
                Ok(()) = self.changes.changed(), if !self.handles.is_empty() => {}
                Ok(()) = self.switched.changed() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
        // A matcher ends when it has finished its queue.
        self.handles.clear();
        self.reports.close();
        while self.matchers.join_next().await.is_some() {}
    }

    /// Starts matching an application.
    pub fn start(&mut self, compiled: Arc<Compiled>, followed: Followed) {
        let matched = Matched::new(compiled.clone(), followed, RuleBreaker::default());
        matched.publish(&self.flow);
        self.start_matcher(compiled, Start::Matched(Box::new(matched)));
    }

    fn start_matcher(&mut self, compiled: Arc<Compiled>, start: Start) {
        self.next_id += 1;
        let (id, name) = (self.next_id, compiled.application.name.clone());
        let (quanta, quanta_in) = mpsc::channel(1);
        let (controls, controls_in) = mpsc::channel(CONTROLS_WAITING_MAX);
        let (target, target_in) = watch::channel(ChangeSequence(0));
        let matcher = Matcher {
            flow: self.flow.clone(),
            id,
            name: name.clone(),
            quanta: quanta_in,
            controls: controls_in,
            target: target_in,
            reports: self.reporter.clone(),
        };
        let task = self.matchers.spawn(matcher.run(start)).id();
        self.tasks.insert(task, (name.clone(), id, None));
        let (rates, under_way) = (Rates::default(), Vec::new());
        let handle = Handle { id, compiled, quanta, controls, target, rates, generation: 0, under_way };
        self.handles.insert(name, handle);
    }

    fn handle_command(&mut self, command: Command) {
        match command {
            Command::Install(compiled, followed, done) => match self.handles.get_mut(&compiled.application.name) {
                Some(handle) => {
                    handle.compiled = compiled.clone();
                    order(handle, Control::Install(compiled, followed, done));
                }
                None => {
                    self.start(compiled, *followed);
                    let _ = done.send(());
                }
            },
            Command::Remove(name, done) => {
                let handle = self.handles.remove(&name);
                self.flow.publish(&name, None);
                self.flow.unpin(&name);
                let task = handle.and_then(|handle| self.tasks.values_mut().find(|(_, id, _)| *id == handle.id));
                match task {
                    Some((_, _, waits)) => *waits = Some(done),
                    None => drop(done.send(())),
                }
            }
            Command::Refire(firing, done) => match self.handles.get(&firing.application) {
                Some(handle) => {
                    if let Err(refused) = handle.controls.try_send(Control::Refire(firing, done))
                        && let Control::Refire(firing, done) = refused.into_inner()
                    {
                        let what = format!(
                            "too many rules of `{}` wait to be fired again; try again later",
                            firing.application
                        );
                        let _ = done.send(Err(RefireError::Store(StoreError::Full(what))));
                    }
                }
                None => drop(done.send(Err(RefireError::NotRunning(firing.application)))),
            },
            Command::Erase(name, names, done) => match self.handles.get(&name) {
                Some(handle) => {
                    if let Err(refused) = handle.controls.try_send(Control::Erase(names, done))
                        && let Control::Erase(_, done) = refused.into_inner()
                    {
                        let what = format!("too many commands for `{name}` are waiting; try again later");
                        let _ = done.send(Err(StoreError::Full(what)));
                    }
                }
                // It has no chronicles that a rule could read.
                None => drop(done.send(Ok(()))),
            },
        }
    }

    /// Handles a report of a matcher.
    fn handle_report(&mut self, Report { id, application, outcome }: Report) {
        let Some(handle) = self.handles.get_mut(&application).filter(|handle| handle.id == id) else { return };
        match outcome {
            Outcome::Matched(made) => {
                handle.under_way.clear();
                let now = self.flow.clock.now();
                let compiled = handle.compiled.clone();
                for (class, made) in made {
                    handle.rates.charge(&compiled.application, &class, made, now);
                }
            }
            Outcome::Released { generation } => handle.generation = generation,
        }
    }

    /// Handles the end of a matcher: it was removed, or it panicked and is replaced.
    async fn handle_end(&mut self, ended: Result<(Id, ()), JoinError>) {
        let (task, panicked) = match &ended {
            Ok((task, ())) => (*task, None),
            Err(error) => (error.id(), Some(error)),
        };
        let Some((name, id, waits)) = self.tasks.remove(&task) else { return };
        if let Some(error) = panicked {
            tracing::error!(application = %name, %error, "the matcher of an application panicked and is restarted");
            metrics::counter!("tocsin_match_panics_total").increment(1);
        }
        if let Some(waits) = waits {
            // Its status is never published after its end.
            self.flow.publish(&name, None);
            let _ = waits.send(());
        }
        let Some(handle) = self.handles.get(&name).filter(|handle| handle.id == id) else { return };
        let compiled = handle.compiled.clone();
        for claim in handle.under_way.clone() {
            // A lost claim needs no release.
            let _ = self.flow.work_queue.release_events(claim).await;
        }
        self.flow.switches.forget_matching(&name);
        self.start_matcher(compiled, Start::Build);
    }

    /// Applications and throttled events to exclude from the claim, and the time until the first throttle ends.
    fn except(&mut self) -> (Except, Duration) {
        let now = self.flow.clock.now();
        let (mut except, mut soonest) = (Except::default(), LEASE);
        let mut throttled: BTreeMap<Name, Throttled> = BTreeMap::new();
        for (name, handle) in &mut self.handles {
            let waits = handle.rates.waits(&handle.compiled.application, now);
            let until = |wait: &Duration| now + *wait;
            if waits.all.is_some() || !waits.classes.is_empty() {
                let classes = waits.classes.iter().map(|(class, wait)| (class.clone(), until(wait))).collect();
                throttled.insert(name.clone(), Throttled { all: waits.all.as_ref().map(until), classes });
                self.flow.pin(name);
            }
            if waits.all.is_some() || !handle.under_way.is_empty() {
                except.applications.insert(name.clone());
            }
            except.classes.extend(waits.classes.keys().map(|class| (name.clone(), class.clone())));
            soonest = waits.all.into_iter().chain(waits.classes.into_values()).fold(soonest, Duration::min);
        }
        except.applications.extend(self.flow.switches.held());
        let holds = throttled.values().filter(|throttled| throttled.all.is_some()).count();
        metrics::gauge!("tocsin_match_throttled_applications").set(holds as f64);
        let holds = throttled.values().map(|throttled| throttled.classes.len()).sum::<usize>();
        metrics::gauge!("tocsin_match_throttled_classes").set(holds as f64);
        *self.flow.throttled.lock() = throttled;
        (except, soonest)
    }

    async fn claim(&mut self, except: &Except) -> Result<Vec<ClaimedEvents>, StoreError> {
        self.arrivals.events.mark_unchanged();
        let options = &self.flow.options;
        let now = self.flow.clock.now();
        self.flow
            .work_queue
            .claim_events(ClaimEvents {
                batches: options.quantum_batches,
                bytes: options.quantum_bytes,
                except,
                lease: LEASE,
                now,
            })
            .await
    }

    /// Hands batches to the matchers of their applications.
    async fn give(&mut self, claimed: Vec<ClaimedEvents>) {
        let claimed_at = self.flow.clock.now();
        let mut by_application: BTreeMap<Name, Vec<ClaimedEvents>> = BTreeMap::new();
        for events in claimed {
            by_application.entry(events.batch.application.clone()).or_default().push(events);
        }
        for (name, claimed) in by_application {
            if !self.handles.contains_key(&name) {
                let reason = format!("the application `{name}` does not run");
                self.set_aside(reason, claimed, claimed_at).await;
                continue;
            }
            let Some(claimed) = self.apart(&name, claimed, claimed_at).await else { continue };
            let claimed = self.within_rates(&name, claimed, claimed_at).await;
            let Some(handle) = self.handles.get_mut(&name) else { continue };
            let run_notifications_max = handle.rates.notifications_max(&handle.compiled.application, claimed_at);
            handle.under_way = claimed.iter().map(|events| events.claim).collect();
            let generation = handle.generation;
            self.flow.switches.begin_matching(&name);
            // There is room for one, and it has none. If the matcher ended, its end releases them.
            let _ = handle.quanta.try_send(Quantum { claimed, claimed_at, generation, run_notifications_max });
        }
    }

    /// Releases the event batches of a throttled application beyond one quantum's limit: the throttle could not hold
    /// them later.
    async fn within_rates(&mut self, name: &Name, claimed: Vec<ClaimedEvents>, now: Timestamp) -> Vec<ClaimedEvents> {
        let Some(handle) = self.handles.get_mut(name) else { return claimed };
        let compiled = handle.compiled.clone();
        let mut admission = handle.rates.admission(&compiled.application, now);
        let (kept, beyond): (Vec<_>, Vec<_>) =
            claimed.into_iter().partition(|events: &ClaimedEvents| admission.take(&events.batch.class));
        for events in beyond {
            // A lost claim needs no release.
            let _ = self.flow.work_queue.release_events(events.claim).await;
        }
        kept
    }

    /// Isolates a batch that was in progress when the process crashed: it is matched alone, and the rest is released.
    /// A batch that crashed the process too often is set aside, and nothing is left.
    async fn apart(&self, name: &Name, claimed: Vec<ClaimedEvents>, now: Timestamp) -> Option<Vec<ClaimedEvents>> {
        let suspects = &self.flow.suspects;
        let is_suspect = |events: &ClaimedEvents| suspects.crashes(Work::Events(events.claim.id)) > 0;
        let Some(first) = claimed.iter().position(is_suspect) else { return Some(claimed) };
        let mut kept = claimed;
        for events in kept.split_off(first.max(1)) {
            // A lost claim needs no release.
            let _ = self.flow.work_queue.release_events(events.claim).await;
        }
        let id = kept[0].claim.id;
        match suspects.poison(Work::Events(id)) {
            Some(reason) => {
                metrics::counter!("tocsin_pipeline_poison_total", "work" => "events").increment(1);
                self.set_aside(reason, kept, now).await;
                suspects.set_aside(id, name);
                None
            }
            None => Some(kept),
        }
    }

    /// Sets aside batches that cannot be matched.
    async fn set_aside(&self, reason: String, claimed: Vec<ClaimedEvents>, claimed_at: Timestamp) {
        let quantum = NewQuantum {
            started_at: claimed_at,
            ended_at: self.flow.clock.now(),
            batches: claimed.iter().map(quantum_input).collect(),
            scheduled_notifications: 0,
        };
        let failed = claimed.iter().map(|events| (events.claim, reason.clone())).collect();
        let step = Step { failed, quantum: Some(quantum), ..Step::default() };
        for (claim, reason) in &step.failed {
            tracing::error!(batch = %claim.id, reason, "an event batch cannot be matched and is set aside");
        }
        count(&self.flow, &claimed, &step);
        if let Err(error) = self.flow.work_queue.commit(step).await {
            tracing::error!(%error, batches = claimed.len(), "event batches could not be set aside");
            for events in claimed {
                let _ = self.flow.work_queue.release_events(events.claim).await;
            }
            tokio::time::sleep(PAUSE_AFTER_FAILURE).await;
        }
    }

    /// Lets indexes advance to `settled`: no waiting batch sees less. Events of held or throttled applications were
    /// accepted before, so their indexes wait too, and the records retain the changes.
    fn advance_indexes(&self, settled: ChangeSequence, except: &Except) {
        let throttled: BTreeSet<&Name> = except.classes.iter().map(|(name, _)| name).collect();
        for (name, handle) in &self.handles {
            if except.applications.contains(name) || throttled.contains(name) {
                continue;
            }
            self.flow.unpin(name);
            handle.target.send_if_modified(|place| {
                let is_further = *place < settled;
                *place = settled.max(*place);
                is_further
            });
        }
    }
}

/// Sends a command. If the queue is full, a task sends it later; the dispatcher never waits for a matcher.
fn order(handle: &Handle, control: Control) {
    if let Err(refused) = handle.controls.try_send(control) {
        let controls = handle.controls.clone();
        tokio::spawn(async move { drop(controls.send(refused.into_inner()).await) });
    }
}
