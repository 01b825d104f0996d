//! The running pipeline of all applications: its start, its changes, its end, and the operations on it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tocsin_connect::{Clock, spans::Spans};
use tocsin_delivery::{Context, Destination, DestinationState, HeldBackMail, MailSender, Recalls};
use tocsin_matching::rule::RuleExplanation;
use tocsin_model::{
    definition::Environment, id::Name, mailbox::MailChannels, problem::Problem, suppression::Policy, time::Timestamp,
};
use tocsin_sources::{
    Context as SourceContext,
    rejected::{RejectedLine, read_rejected},
};
use tocsin_store::{
    audit,
    error::StoreError,
    inbox::Inbox,
    journal::{
        Component, Cutoffs, EndedWork, EventAcceptance, Firing, FiringFilter, Journal, Role, RuleStop, ScheduleKey,
        Switch,
    },
    records::Records,
};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use crate::{
    accept_events::{self, AcceptError, Submission},
    active_version::OpenedChannel,
    broadcasts, class_counters,
    compile::Compiled,
    delays::{self, DelayTask},
    endpoints,
    errors::{RefireError, RunError},
    feeds,
    flow::{Flow, Opener, RunningApplication},
    follow_lifecycle::{self, LifecycleTask},
    latency::Latencies,
    match_events::{self, Command, Dispatcher, IndexStatus},
    options::PipelineOptions,
    provider_days,
    recall_watcher::RecallWatcher,
    resend, run_sources,
    run_sources::SourceStatus,
    running::{self, Running},
    schedules::{self, Clockwork, MovedSchedule, ScheduleAction, ScheduleMove, ScheduleMoveError},
    slow_firings::{self, SlowFiring},
    snapshot_tracker::SnapshotTracker,
    spans, suppress, suspects,
    switches::{self, Switched},
    upkeep,
    versions::{self, Versions},
};

/// The parts a pipeline is built from. Tests pass their own.
pub struct Parts {
    /// Journal: the store of the flow.
    pub journal: Arc<dyn Journal>,
    /// The system of record.
    pub records: Arc<dyn Records>,
    /// The feeds that subscribers read; channels reach them through their context.
    pub inbox: Arc<dyn Inbox>,
    /// Resolves `${NAME}` in definitions.
    pub environment: Environment,
    /// Context of channels, with the clock.
    pub context: Context,
    /// Opens a channel: `tocsin_delivery::open`, or a test's own receiver.
    pub opener: Opener,
    /// Limits and delays.
    pub options: PipelineOptions,
    /// Seed of the random numbers for retry jitter.
    pub seed: u64,
    /// Receiver of trace spans.
    pub spans: Spans,
}

/// Open channels of a version that is not running yet. Dropping it closes those that no other version uses.
pub struct Prepared(BTreeMap<Name, Arc<OpenedChannel>>);

/// Status of one application.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ApplicationStatus {
    /// Running version.
    pub version: u32,
    /// Subscriptions in the match index.
    pub indexed: u64,
    /// Memory used by the index, in bytes.
    pub index_bytes: u64,
    /// Shards of the index.
    pub shards: u64,
    /// Distinct filters. A filter counts once per shard that has subscriptions with it.
    pub filters: u64,
    /// Distinct filters that are scanned for every event.
    pub scanned_filters: u64,
    /// Subscriptions that cannot be matched by this version.
    pub unusable: u64,
    /// Nodes of the index in which filter alternatives are filed.
    pub filter_groups: u64,
    /// Changes of the records that the index has not applied yet.
    pub changes_behind: u64,
    /// Whether events are accepted and matched.
    pub ready: bool,
    /// Approximate time until which a throttle of the application holds its events.
    pub throttled_until: Option<Timestamp>,
    /// Approximate times until which throttles of event classes hold events. Runs of schedules are of the class
    /// `due`.
    pub throttled_classes: BTreeMap<Name, Timestamp>,
}

/// The running pipeline of all applications.
pub struct Pipeline {
    pub(crate) flow: Arc<Flow>,
    pub(crate) running: Mutex<BTreeMap<Name, Arc<Running>>>,
    /// The applications that could not be started, each with the reason, until they are applied or removed.
    failed: Mutex<BTreeMap<Name, String>>,
    sources: run_sources::Sources,
    /// One lock per application: its changes are serialized, so an older version never overtakes a newer one. A slow
    /// change of one application delays no other.
    changing: Mutex<BTreeMap<Name, Arc<tokio::sync::Mutex<()>>>>,
    pub(crate) commands: mpsc::Sender<Command>,
    clockwork: mpsc::Sender<schedules::Command>,
    delays: mpsc::Sender<delays::Command>,
    lifecycle: mpsc::Sender<follow_lifecycle::Command>,
    stop: CancellationToken,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Pipeline {
    /// Starts the flow: runs the current version of every application, with its index built and its channels open.
    /// An application that cannot run (for example, because an environment variable is missing) is logged and listed
    /// by [`Pipeline::failed_applications`]; its work stays in the journal.
    ///
    /// # Errors
    /// The store failed.
    pub async fn start(parts: Parts) -> Result<Arc<Pipeline>, StoreError> {
        let Parts { journal, records, inbox, environment, mut context, opener, options, seed, spans } = parts;
        context.feeds = Some(Arc::new(feeds::StoredFeeds { inbox: inbox.clone(), clock: context.clock.clone() }));
        context.provider_days = Some(Arc::new(provider_days::StoredProviderDays(journal.clone())));
        let recalls = Arc::<Recalls>::default();
        records.watch_recipients(Arc::new(RecallWatcher(recalls.clone())));
        let flow = Arc::new(Flow {
            recalls,
            versions: Versions::new(records.clone(), environment),
            clock: context.clock.clone(),
            latencies: Latencies::default(),
            snapshots: SnapshotTracker::new(&*records),
            indexes: Mutex::default(),
            throttled: Mutex::default(),
            pins: Mutex::default(),
            permits: match_events::Permits::new(options.match_concurrency),
            suspects: suspects::Suspects::open(&context.data_folder),
            stops: Mutex::default(),
            jitter: Mutex::new(fastrand::Rng::with_seed(seed)),
            classes: class_counters::ClassCounters::default(),
            suppressions: suppress::Suppressions::new(options.suppression.clone()),
            feedback: crate::feedback::FeedbackApplier::new(&options.suppression),
            endpoints: endpoints::Endpoints::default(),
            switches: switches::Switches::default(),
            slow_firings: slow_firings::SlowFirings::default(),
            delays_started: tokio::sync::Notify::new(),
            lifecycle_switched: tokio::sync::Notify::new(),
            resends: tokio::sync::Notify::new(),
            broadcasts: broadcasts::Signals::default(),
            broadcast_versions: broadcasts::BroadcastVersions::default(),
            broadcasts_changed: tokio::sync::Notify::new(),
            broadcasts_advanced: tokio::sync::watch::Sender::default(),
            changing_broadcasts: tokio::sync::Mutex::default(),
            event_log: journal.clone(),
            work_queue: journal.clone(),
            notification_log: journal.clone(),
            rule_store: journal.clone(),
            schedules: journal.clone(),
            delays: journal.clone(),
            checkpoints: journal.clone(),
            operator_actions: journal.clone(),
            broadcast_store: journal.clone(),
            maintenance: journal.clone(),
            erasures: journal,
            installation: records.clone(),
            application_store: records.clone(),
            subscriber_store: records.clone(),
            subscription_store: records.clone(),
            suppression_store: records.clone(),
            consent_store: records.clone(),
            feedback_store: records.clone(),
            recipient_store: records.clone(),
            lifecycle: records.clone(),
            change_log: records.clone(),
            match_store: records.clone(),
            schedule_store: records,
            inbox,
            options,
            context,
            opener,
            spans: spans::StepSpans(spans),
            running: Mutex::default(),
        });
        let (commands, receiver) = mpsc::channel(16);
        let (clockwork, clockwork_receiver) = mpsc::channel(16);
        let (delays, delays_receiver) = mpsc::channel(16);
        let (lifecycle, lifecycle_receiver) = mpsc::channel(16);
        let pipeline = Arc::new(Pipeline {
            flow: flow.clone(),
            running: Mutex::default(),
            failed: Mutex::default(),
            sources: run_sources::Sources::default(),
            changing: Mutex::default(),
            commands,
            clockwork,
            delays,
            lifecycle,
            stop: CancellationToken::new(),
            tasks: Mutex::default(),
        });
        pipeline.run_all(receiver, clockwork_receiver, delays_receiver, lifecycle_receiver).await?;
        Ok(pipeline)
    }

    async fn run_all(
        self: &Arc<Self>,
        commands: mpsc::Receiver<Command>,
        clockwork: mpsc::Receiver<schedules::Command>,
        delays: mpsc::Receiver<delays::Command>,
        lifecycle: mpsc::Receiver<follow_lifecycle::Command>,
    ) -> Result<(), StoreError> {
        let mut installed = Vec::new();
        self.flow.suppressions.load(&*self.flow.suppression_store).await?;
        self.flow.feedback.load(&*self.flow.feedback_store).await?;
        self.flow.endpoints.load(&*self.flow.recipient_store).await?;
        self.flow.switches.load(&*self.flow.operator_actions).await?;
        self.flow.broadcasts.load(&*self.flow.broadcast_store).await?;
        for stop in self.flow.rule_store.rule_stops().await? {
            self.flow.stop(stop);
        }
        let mut dispatcher = Dispatcher::new(self.flow.clone(), commands);
        // Read before anything can change: waiting batches were accepted with the subscriptions of their time.
        let place = match_events::next_snapshot_sequence(&self.flow).await?;
        self.flow.change_log.keep_changes_after(place);
        for stored in self.flow.application_store.applications().await? {
            match self.flow.versions.get(&stored.name, stored.version).await? {
                Some(compiled) => {
                    let followed = match_events::build(&self.flow, &compiled, place).await?;
                    match self.prepare(&compiled) {
                        Ok(prepared) => {
                            self.open(compiled.clone(), prepared).await?;
                            installed.push(compiled.clone());
                            dispatcher.start(compiled, followed);
                            self.flow.operator_actions.rematch(&stored.name).await?;
                        }
                        Err(error) => {
                            let reason = versions::reason(&stored, &error);
                            tracing::error!(application = %stored.name, reason, "an application cannot run");
                            self.failed.lock().insert(stored.name, reason);
                        }
                    }
                }
                None => {
                    tracing::error!(application = %stored.name, "an application cannot run; see `tocsin check`");
                    let problem = self.flow.versions.problems(&stored).first().map(ToString::to_string);
                    self.failed.lock().insert(stored.name, problem.unwrap_or_default());
                }
            }
        }
        let matching = tokio::spawn(dispatcher.run(self.stop.clone()));
        let pipeline = Arc::downgrade(self);
        let upkeep = tokio::spawn(upkeep::run(self.flow.clone(), pipeline, self.stop.clone()));
        let clockwork = tokio::spawn(Clockwork::new(self.flow.clone(), clockwork).run(self.stop.clone()));
        let delaying = tokio::spawn(DelayTask::new(self.flow.clone(), delays).run(self.stop.clone()));
        let following = tokio::spawn(LifecycleTask::new(self.flow.clone(), lifecycle).run(self.stop.clone()));
        let resending = tokio::spawn(resend::run(self.flow.clone(), self.stop.clone()));
        let broadcasting = tokio::spawn(broadcasts::run(self.flow.clone(), self.stop.clone()));
        self.tasks.lock().extend([matching, upkeep, clockwork, delaying, following, resending, broadcasting]);
        for compiled in installed {
            self.sources.change(&self.flow, &compiled).await;
            let _ = self.follow_lifecycle(&compiled).await;
            let _ = self.delays.send(delays::Command::Install(compiled.clone())).await;
            let _ = self.clockwork.send(schedules::Command::Install(compiled)).await;
        }
        Ok(())
    }

    /// Replaces the running version of an application. The index of the new version is built first, while matching
    /// goes on. Work accepted or made under the old version is finished under that version.
    ///
    /// # Errors
    /// Its channels cannot be opened; the old version keeps running.
    pub async fn run(self: &Arc<Self>, compiled: Arc<Compiled>) -> Result<(), RunError> {
        let prepared = self.prepare(&compiled)?;
        self.run_prepared(compiled, prepared).await
    }

    /// Opens the channels of a version without running it, so that a caller can check them before it records the
    /// version.
    ///
    /// # Errors
    /// Its channels cannot be opened.
    pub fn prepare(&self, compiled: &Compiled) -> Result<Prepared, RunError> {
        let running = self.running.lock().get(&compiled.application.name).cloned();
        Ok(Prepared(Running::open_channels(&self.flow, running.as_deref(), &compiled.application)?))
    }

    /// Like [`Pipeline::run`], with the channels that `prepare` opened for the same definition.
    ///
    /// # Errors
    /// The store is unavailable, or the pipeline was stopped; the old version keeps running.
    pub async fn run_prepared(self: &Arc<Self>, compiled: Arc<Compiled>, prepared: Prepared) -> Result<(), RunError> {
        let pipeline = self.clone();
        // A separate task: the caller may stop waiting, but a change is never left half done.
        let changing = tokio::spawn(audit::inherit(async move { pipeline.change_to(compiled, prepared).await }));
        changing.await.unwrap_or(Err(RunError::Stopped))
    }

    async fn change_to(&self, compiled: Arc<Compiled>, prepared: Prepared) -> Result<(), RunError> {
        let name = compiled.application.name.clone();
        let _one_at_a_time = self.change(&name).await;
        let place = match_events::next_snapshot_sequence(&self.flow).await?;
        let followed = match_events::build(&self.flow, &compiled, place).await?;
        self.open(compiled.clone(), prepared).await?;
        let (done, installed) = oneshot::channel();
        let install = Command::Install(compiled.clone(), Box::new(followed), done);
        self.commands.send(install).await.map_err(|_| RunError::Stopped)?;
        installed.await.map_err(|_| RunError::Stopped)?;
        self.sources.change(&self.flow, &compiled).await;
        self.follow_lifecycle(&compiled).await?;
        let install = delays::Command::Install(compiled.clone());
        self.delays.send(install).await.map_err(|_| RunError::Stopped)?;
        self.clockwork.send(schedules::Command::Install(compiled)).await.map_err(|_| RunError::Stopped)?;
        // Batches that earlier versions could not match are matched again.
        self.rematch(&name).await?;
        Ok(())
    }

    /// Binds the event classes of a version to the life of subscriptions. Returns when later changes make events.
    async fn follow_lifecycle(&self, compiled: &Arc<Compiled>) -> Result<(), RunError> {
        let (done, installed) = oneshot::channel();
        let install = follow_lifecycle::Command::Install(compiled.clone(), done);
        self.lifecycle.send(install).await.map_err(|_| RunError::Stopped)?;
        installed.await.map_err(|_| RunError::Stopped)
    }

    /// Acquires the lock for changes of an application.
    async fn change(&self, name: &Name) -> tokio::sync::OwnedMutexGuard<()> {
        let changing = {
            let mut changing = self.changing.lock();
            // Drop the locks that no task holds.
            changing.retain(|_, lock| Arc::strong_count(lock) > 1);
            changing.entry(name.clone()).or_default().clone()
        };
        changing.lock_owned().await
    }

    /// Switches to the channels of a version and ensures that each has a worker.
    async fn open(&self, compiled: Arc<Compiled>, Prepared(channels): Prepared) -> Result<(), StoreError> {
        let name = compiled.application.name.clone();
        let waiting = self.flow.work_queue.open_channels(&name).await?;
        let running = self.running.lock().get(&name).cloned();
        let running = match running {
            Some(running) => {
                running.change(compiled.clone(), channels, waiting);
                running
            }
            None => Running::start(&self.flow, compiled.clone(), channels, waiting),
        };
        self.flow.versions.insert(compiled);
        let application: Weak<dyn RunningApplication> = Arc::downgrade(&running) as _;
        self.flow.running.lock().insert(name.clone(), application);
        self.failed.lock().remove(&name);
        self.running.lock().insert(name, running);
        Ok(())
    }

    /// Checks that a version's channels could be opened, by opening and closing them.
    ///
    /// # Errors
    /// Every problem, by its path in the definition.
    pub fn check_channels(&self, compiled: &Compiled) -> Result<(), Vec<Problem>> {
        running::check_channels(&compiled.application)
    }

    /// Stops an application that was removed.
    pub async fn stop(&self, name: &Name) {
        let _one_at_a_time = self.change(name).await;
        self.sources.stop(name).await;
        self.failed.lock().remove(name);
        self.flow.running.lock().remove(name);
        let running = self.running.lock().remove(name);
        let _ = self.clockwork.send(schedules::Command::Remove(name.clone())).await;
        let _ = self.delays.send(delays::Command::Remove(name.clone())).await;
        let _ = self.lifecycle.send(follow_lifecycle::Command::Remove(name.clone())).await;
        let (done, removed) = oneshot::channel();
        if self.commands.send(Command::Remove(name.clone(), done)).await.is_ok() {
            let _ = removed.await;
        }
        if let Err(error) = match_events::remove_rule_state(&self.flow, name).await {
            // A new application of the same name drops the state that it does not know.
            tracing::warn!(application = %name, %error, "the stored state of its rules could not be removed");
        }
        if let Err(error) = self.flow.checkpoints.delete_marks(name).await {
            tracing::warn!(application = %name, %error, "the stored state of its sources could not be removed");
        }
        if let Some(running) = running {
            running.stop().await;
        }
    }

    /// Ends the open work of an application that was removed: its notifications, its event batches, its listed firings
    /// and its stopped rules. Does nothing if the records have the application. An application of the same name that
    /// is applied meanwhile runs afterwards.
    ///
    /// # Errors
    /// The store failed. Upkeep repeats it.
    pub async fn end_removed(&self, name: &Name) -> Result<EndedWork, StoreError> {
        let _one_at_a_time = self.change(name).await;
        if self.flow.application_store.application(name, None).await?.is_some() {
            return Ok(EndedWork::default());
        }
        self.flow.suspects.clear_application(name);
        let ended = self.flow.operator_actions.end_application(name, self.flow.clock.now()).await?;
        let filter = FiringFilter { application: Some(name.clone()), ..FiringFilter::default() };
        self.flow.rule_store.dismiss_firings(&filter).await?;
        for stop in self.stopped_rules() {
            if stop.application == *name {
                self.resume_rule(name, &stop.rule).await?;
            }
        }
        if ended != EndedWork::default() {
            let EndedWork { notifications, event_batches } = ended;
            tracing::info!(application = %name, notifications, event_batches, "ended the work of a removed application");
        }
        Ok(ended)
    }

    /// Queues for matching all event batches of an application that were set aside, also those that crashed the
    /// process. Returns how many there were.
    ///
    /// # Errors
    /// The store failed.
    pub async fn rematch(&self, name: &Name) -> Result<u64, StoreError> {
        self.flow.suspects.clear_application(name);
        self.flow.operator_actions.rematch(name).await
    }

    /// Returns the running version of an application.
    pub fn application(&self, name: &Name) -> Option<Arc<Compiled>> {
        self.running.lock().get(name).map(|running| running.compiled())
    }

    /// Running versions of all applications, by name.
    pub fn running_applications(&self) -> Vec<Arc<Compiled>> {
        self.running.lock().values().map(|running| running.compiled()).collect()
    }

    /// The applications that could not be started, each with the reason.
    pub fn failed_applications(&self) -> Vec<(Name, String)> {
        self.failed.lock().iter().map(|(name, reason)| (name.clone(), reason.clone())).collect()
    }

    /// Problems for files and programs of the channels and collections of a version that the operator of this machine
    /// has not allowed: an apply is refused for them. Opens nothing.
    pub fn resources_not_allowed(&self, compiled: &Compiled) -> Vec<Problem> {
        let running = self.running.lock().get(&compiled.application.name).cloned();
        running::resources_not_allowed(&self.flow, running.as_deref(), &compiled.application)
    }

    /// Problems for resources that the sources of a version use and the operator of this machine has not allowed.
    pub fn closed_sources(&self, compiled: &Compiled) -> Vec<Problem> {
        closed_sources(compiled, &run_sources::context(&self.flow))
    }

    /// Returns any version of an application, for reading batches that it packed.
    ///
    /// # Errors
    /// The store failed.
    pub async fn version(&self, name: &Name, version: u32) -> Result<Option<Arc<Compiled>>, StoreError> {
        self.flow.versions.get(name, version).await
    }

    /// Resolves `${NAME}` in definitions.
    pub fn environment(&self) -> &Environment {
        self.flow.versions.environment()
    }

    /// Stores a submission. It is durable when this returns.
    ///
    /// # Errors
    /// See [`AcceptError`]. Nothing of the submission was stored.
    pub async fn accept(&self, submission: Submission) -> Result<EventAcceptance, AcceptError> {
        if self.stop.is_cancelled() {
            return Err(AcceptError::Full("the server is shutting down".to_owned()));
        }
        if !self.running.lock().contains_key(&submission.application) {
            return Err(AcceptError::NoApplication(submission.application));
        }
        accept_events::accept(&self.flow, submission).await
    }

    /// Lists all switched-off components by their text, and whether work begun before is still in progress.
    pub fn switches(&self) -> Vec<Switched> {
        let switched = |switch: Switch| Switched { pending: self.is_under_way(&switch.component), switch };
        self.flow.switches.list().into_iter().map(switched).collect()
    }

    /// Whether work of a component is still in progress.
    fn is_under_way(&self, component: &Component) -> bool {
        let running = self.running.lock();
        let delivers = |name: &Name| running.get(name).is_some_and(|running| running.is_busy(None));
        match component {
            Component::Role(Role::Match) => self.flow.switches.is_matching(None),
            Component::Role(Role::Deliver) => running.values().any(|running| running.is_busy(None)),
            Component::Application(name) => self.flow.switches.is_matching(Some(name)) || delivers(name),
            Component::Channel(name, channel) => {
                running.get(name).is_some_and(|running| running.is_busy(Some(channel)))
            }
            // An acceptance is over once it is answered, and a source checks before each batch.
            Component::Role(_) | Component::EventClass(..) | Component::Source(..) => false,
        }
    }

    /// Switches a component off, or changes its switch, at once and across restarts. Work in progress is finished
    /// first.
    ///
    /// # Errors
    /// The store failed; nothing is switched.
    pub async fn switch_off(&self, switch: Switch) -> Result<(), StoreError> {
        self.flow.operator_actions.set_switch(switch.clone()).await?;
        self.flow.switches.put(switch);
        Ok(())
    }

    /// Switches a component on again. Returns whether it was off.
    ///
    /// # Errors
    /// The store failed; it stays off.
    pub async fn switch_on(&self, component: &Component) -> Result<bool, StoreError> {
        let was_kept = self.flow.operator_actions.remove_switch(component).await?;
        let was_off = self.flow.switches.remove(component);
        self.flow.lifecycle_switched.notify_one();
        Ok(was_off || was_kept)
    }

    /// Status of each application, by name.
    pub fn status(&self) -> Vec<(Name, ApplicationStatus)> {
        let (indexes, newest) = (self.flow.indexes.lock().clone(), self.flow.snapshots.newest());
        let (throttled, now) = (self.flow.throttled.lock().clone(), self.flow.clock.now());
        let throttled_until = |name: &Name| throttled.get(name)?.all.filter(|until| *until > now);
        let throttled_classes = |name: &Name| {
            let classes = throttled.get(name).into_iter().flat_map(|throttled| &throttled.classes);
            classes.filter(|(_, until)| **until > now).map(|(class, until)| (class.clone(), *until)).collect()
        };
        let running = self.running.lock();
        let status = |name: &Name, running: &Running| match indexes.get(name) {
            Some(IndexStatus { version, report, place, .. }) => ApplicationStatus {
                version: *version,
                indexed: report.subscriptions,
                index_bytes: report.bytes,
                shards: report.shards as u64,
                filters: report.figures.filters().distinct,
                scanned_filters: report.figures.filters().unindexed,
                filter_groups: report.figures.filters().groups,
                unusable: report.unusable,
                changes_behind: newest.0.saturating_sub(place.0),
                ready: true,
                throttled_until: throttled_until(name),
                throttled_classes: throttled_classes(name),
            },
            None => ApplicationStatus { version: running.compiled().version, ..ApplicationStatus::default() },
        };
        running.iter().map(|(name, running)| (name.clone(), status(name, running))).collect()
    }

    /// Explains how each rule of an application is evaluated, with the current figures of its index. `None` if it is
    /// not running.
    pub fn explain(&self, application: &Name) -> Option<Vec<RuleExplanation>> {
        let compiled = self.running.lock().get(application)?.compiled();
        let mut explanations = compiled.explain();
        if let Some(status) = self.flow.indexes.lock().get(application)
            && status.version == compiled.version
        {
            status.report.figures.explain(&compiled.rules, &mut explanations);
        }
        Some(explanations)
    }

    /// Slow firings, newest first, optionally of one application and one rule.
    pub fn slow_firings(&self, application: Option<&Name>, rule: Option<&Name>, limit: usize) -> Vec<SlowFiring> {
        self.flow.slow_firings.newest(limit, |firing| {
            application.is_none_or(|requested| firing.application == *requested)
                && rule.is_none_or(|requested| firing.rule == *requested)
        })
    }

    /// The stopped rules of all applications, by application and rule.
    pub fn stopped_rules(&self) -> Vec<RuleStop> {
        self.flow.stops.lock().values().cloned().collect()
    }

    /// Stops a rule: from the next quantum on it does not fire, and its missed firings are listed. A rule that is
    /// already stopped keeps its first stop.
    ///
    /// # Errors
    /// The store failed; the rule stays active.
    pub async fn stop_rule(&self, stop: RuleStop) -> Result<(), StoreError> {
        self.flow.rule_store.stop_rule(stop.clone()).await?;
        self.flow.stop(stop);
        Ok(())
    }

    /// Lets a stopped rule fire again. Returns whether it was stopped. Its missed firings stay listed.
    ///
    /// # Errors
    /// The store failed; the rule stays stopped.
    pub async fn resume_rule(&self, application: &Name, rule: &Name) -> Result<bool, StoreError> {
        let was_stopped = self.flow.rule_store.resume_rule(application, rule).await?;
        let mut stops = self.flow.stops.lock();
        let was_known = stops.remove(&(application.clone(), rule.clone())).is_some();
        metrics::gauge!("tocsin_match_stopped_rules").set(stops.len() as f64);
        self.flow.delays_started.notify_one();
        Ok(was_stopped || was_known)
    }

    /// Fires a rule for the batches of a listed firing, with the current subscriptions. Returns how many batches
    /// there were; each leaves the list once it is fired.
    ///
    /// # Errors
    /// The application is not running, the rule failed again, or the store failed. Batches that were not fired stay
    /// listed.
    pub async fn refire(&self, firing: Firing) -> Result<u64, RefireError> {
        let (done, fired) = oneshot::channel();
        let command = Command::Refire(Box::new(firing), done);
        let stopped = || RefireError::Store(StoreError::unavailable("the server is shutting down"));
        self.commands.send(command).await.map_err(|_| stopped())?;
        fired.await.unwrap_or_else(|_| Err(stopped()))
    }

    /// Policy that decides how bounces and complaints suppress an address.
    pub fn suppression_policy(&self) -> &Policy {
        self.flow.suppressions.policy()
    }

    /// Latencies since the start.
    pub fn latencies(&self) -> &Latencies {
        &self.flow.latencies
    }

    /// Reader of feeds, within the networks that sources may contact.
    pub fn feed_reader(&self) -> tocsin_sources::feed::FeedReader {
        tocsin_sources::feed::FeedReader::new(run_sources::context(&self.flow))
    }

    /// Clock of the pipeline.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.flow.clock
    }

    /// Probes every channel of an application. Returns the receiver's reply, or the problem.
    pub async fn probe_channels(&self, name: &Name) -> Vec<(Name, Result<String, String>)> {
        let running = self.running.lock().get(name).cloned();
        match running {
            Some(running) => running.active.probe().await,
            None => Vec::new(),
        }
    }

    /// Identities of the open mail channels of an application.
    pub fn mail_senders(&self, name: &Name) -> Vec<(Name, MailSender)> {
        let running = self.running.lock().get(name).cloned();
        running.map(|running| running.active.mail_senders()).unwrap_or_default()
    }

    /// Known destinations of each channel of an application, failing ones first; at most `limit` per channel.
    pub fn destinations(&self, name: &Name, limit: usize) -> Vec<(Name, Vec<Destination>)> {
        let running = self.running.lock().get(name).cloned();
        running.map(|running| running.active.destinations(limit)).unwrap_or_default()
    }

    /// Mailbox providers that hold mail back, by application and channel, those with the longest pause first.
    pub fn held_back(&self) -> Vec<(Name, Name, Vec<HeldBackMail>)> {
        let running: Vec<_> = self.running.lock().values().cloned().collect();
        running.iter().flat_map(|running| running.active.held_back()).collect()
    }

    /// Records that a later server reports the mail to this address as delayed, with its reply: channels with pacing
    /// send less to the mailbox provider of the address. `None`: in all applications, on all channels.
    pub fn note_delay(&self, application: Option<&Name>, channel: Option<&Name>, address: &str, said: &str) {
        let running: Vec<_> = self.running.lock().values().cloned().collect();
        for running in running.iter().filter(|running| application.is_none_or(|name| *name == running.active.name)) {
            running.active.note_delay(channel, address, said);
        }
    }

    /// Number of destinations by application, channel and state, in the order of `DestinationState::ALL`.
    pub fn destination_counts(&self) -> Vec<(Name, Name, [usize; DestinationState::ALL.len()])> {
        let running: Vec<_> = self.running.lock().values().cloned().collect();
        running.iter().flat_map(|running| running.active.destination_counts()).collect()
    }

    /// Channels of all applications: application, channel, protocol.
    pub fn channel_protocols(&self) -> Vec<(Name, Name, Name)> {
        let running: Vec<_> = self.running.lock().values().cloned().collect();
        running.iter().flat_map(|running| running.active.channel_protocols()).collect()
    }

    /// Channels that send mail: the addresses of their devices are mailboxes.
    pub fn mail_channels(&self) -> MailChannels {
        let channels = self.channel_protocols();
        MailChannels::of(channels.iter().map(|(_, channel, protocol)| (channel, protocol)))
    }

    /// Runs a schedule of a rule now, or skips its next run.
    ///
    /// # Errors
    /// No rule follows the schedule; its rule is stopped; it has ended; the store failed.
    pub async fn move_schedule(
        &self,
        application: &Name,
        key: ScheduleKey,
        action: ScheduleAction,
    ) -> Result<MovedSchedule, ScheduleMoveError> {
        let (done, moved) = oneshot::channel();
        let asked = ScheduleMove { application: application.clone(), key, action, context: audit::current(), done };
        let stopping = || ScheduleMoveError::Store(StoreError::unavailable("the server is shutting down"));
        self.clockwork.send(schedules::Command::Move(asked)).await.map_err(|_| stopping())?;
        moved.await.map_err(|_| stopping())?
    }

    /// The newest rejected items of a source, newest first.
    ///
    /// # Errors
    /// Their file cannot be read.
    pub async fn rejected_items(
        &self,
        application: &Name,
        source: &Name,
        limit: usize,
    ) -> std::io::Result<Vec<RejectedLine>> {
        let (folder, name) = (self.flow.context.data_folder.clone(), format!("{application}.{source}"));
        let reading = tokio::task::spawn_blocking(move || read_rejected(&folder, &name, limit));
        reading.await.map_err(std::io::Error::other)?
    }

    /// Status of the running sources of an application, by name.
    pub fn sources(&self, name: &Name) -> Vec<SourceStatus> {
        self.sources.status(name)
    }

    /// Status of the running sources of all applications.
    pub fn all_sources(&self) -> Vec<(Name, SourceStatus)> {
        self.sources.all()
    }

    /// Ends at once, as a crash would. For tests of recovery.
    pub async fn abort(&self) {
        self.sources.abort().await;
        let tasks = std::mem::take(&mut *self.tasks.lock());
        for task in tasks {
            task.abort();
            let _ = task.await;
        }
        self.flow.running.lock().clear();
        let running = std::mem::take(&mut *self.running.lock());
        for running in running.into_values() {
            running.abort().await;
        }
    }

    pub(crate) fn cutoffs(&self, now: Timestamp) -> Cutoffs {
        let running: Vec<_> = self.running.lock().values().map(|running| running.compiled()).collect();
        upkeep::cutoffs(running.iter().map(|compiled| &compiled.application), &self.flow.options, now)
    }

    /// Removes data past its retention now. Returns how many batches were removed.
    ///
    /// # Errors
    /// The store failed.
    pub async fn prune(&self) -> Result<u64, StoreError> {
        upkeep::prune(&self.flow, &self.cutoffs(self.flow.clock.now()), || true, &self.stop).await
    }

    /// Graceful shutdown: takes no new work, finishes work in flight for at most `patience`, and leaves the rest to
    /// the next start. Returns whether all was finished.
    pub async fn drain(&self, patience: Duration) -> bool {
        self.stop.cancel();
        let tasks = std::mem::take(&mut *self.tasks.lock());
        // The applications stay known: a submission meanwhile is answered with "try again later", not with "unknown
        // application".
        let running: Vec<Arc<Running>> = self.running.lock().values().cloned().collect();
        // All at once: no application keeps sending while another drains.
        let stopping = running.iter().map(|running| running.stop());
        let all = async {
            let (stopping, tasks) = (futures_util::future::join_all(stopping), futures_util::future::join_all(tasks));
            tokio::join!(self.sources.stop_all(), stopping, tasks)
        };
        let is_finished = tokio::time::timeout(patience, all).await.is_ok();
        // Work that is interrupted from here on did not crash the process.
        self.flow.suspects.close();
        is_finished
    }
}

/// Problems for resources that the sources of a version use and the operator of a machine has not allowed. The
/// version can be applied, but these sources do not run.
pub fn closed_sources(compiled: &Compiled, context: &SourceContext) -> Vec<Problem> {
    run_sources::not_allowed(&compiled.application, context)
}
