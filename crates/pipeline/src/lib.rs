//! Carries batches of events to their receipts, one durable step at a time.
//!
//! Each step takes its input from the journal, does one thing, and commits its result together with the
//! acknowledgement of that input. A crash can repeat a step, so every step is safe to run twice; a repeated delivery
//! keeps its id. Knows nothing of SQL, sockets or templates; those live in the rooms it drives.

pub mod accept_events; // 1. a submission becomes an event batch
pub mod match_events; // 2. the batch meets the index: matches, cut into notification batches
mod deliver_work; // 3. a work item is formatted and leaves through its channel: dispositions
mod load_work; // 3a. what its delivery reads
mod feed; // 3b. one after the other or together
mod decide; // 3c. now, later or not at all, and to which device
mod suppress; // 3c. addresses that are not written to
mod digest; // 3d. what is told as one
mod windows; // 3e. how long it is gathered
mod multicast; // 3f. what is said to several
mod render; // 3g. what is sent
mod alike; // what reads the same for many is made once
mod record_receipts; // 4. dispositions become receipts, retries, suspensions
mod resend; // what had failed is sent again
mod class_counters; // figures by application and class, within bounds
mod spans; // what the steps tell of events that stand in a trace
mod trouble; // when the log tells that a channel only fails
mod disable_devices; // what the far side says is gone is not tried again
mod endpoints; // nor what has failed for days
mod feeds; // what goes into feeds goes into the store

pub mod compile; // a definition becomes what the steps run: rules, formatters, channels
mod read_text; // from its text, without telling what the environment holds
pub mod sample; // a notification made of what somebody names, shown or sent as a test
pub mod latency; // how long things take, by percentile
pub mod options; // the bounds and delays of the flow
mod preview; // what a notification would say
pub mod versions; // old batches are read by the version that packed them

mod lanes; // who goes before whom, where events are ordered
mod rates; // how fast notifications may be made
mod guard; // which rules fire, and what becomes of firings that do not happen
mod follow_changes; // keeps the match index true to the records, as of a place of their change feed
mod places; // where submissions stand among the changes
mod view_subscribers; // subscribers as rules see them, as of a place
mod shards; // the match index, split over threads that share nothing
mod slow_firings; // what took long, and how it was answered
mod schedules; // clockwork: rules that are evaluated by a schedule
mod run_queries; // rules in SQL, beside the index
mod switches; // what an operator has switched off
mod run_sources; // where events come from, if they are not submitted
mod suspects; // what crashes the process is set aside
mod running; // an application's open channels and their workers
mod upkeep; // clockwork: retention

#[cfg(test)]
mod panics; // what becomes of matching that panics

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tocsin_delivery::OpenChannel;
use tocsin_matching::rule::RuleExplanation;
use tocsin_model::{
    application::Channel,
    definition::Environment,
    id::{ChangeSequence, EventBatchId, Name},
    mailbox::MailChannels,
    problem::Problem,
    suppression::Policy,
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    inbox::Inbox,
    journal::{Accepted, Component, Cutoffs, Firing, Journal, Role, RuleStop, Switch},
    records::Records,
};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

pub use accept_events::{AcceptError, Submission};
pub use compile::Compiled;
pub use latency::Latencies;
pub use options::PipelineOptions;
pub use preview::Preview;
pub use read_text::{compile_sealed, compile_text};
pub use resend::{ResendCount, ResendRequest};
pub use run_queries::keep;
pub use run_sources::{SourceState, SourceStatus};
pub use shards::subject;
pub use slow_firings::{SLOW_FIRINGS_MAX, SlowFiring};
pub use switches::Switched;
pub use tocsin_delivery::{
    Clock, Context, Destination, DestinationState, SystemClock,
    spans::{Attribute, Span, SpanKind, Spans},
};
pub use tocsin_sources::{Context as SourceContext, Folders, Listeners};
pub use versions::Versions;
pub use view_subscribers::view_subscribers;

use match_events::{Command, Dispatcher, IndexStatus};
use places::Places;
use running::Running;
use schedules::Clockwork;

/// What all steps share.
pub(crate) struct Flow {
    journal: Arc<dyn Journal>,
    records: Arc<dyn Records>,
    inbox: Arc<dyn Inbox>,
    clock: Arc<dyn Clock>,
    options: PipelineOptions,
    latencies: Latencies,
    versions: Versions,
    context: Context,
    opener: Opener,
    places: Places,
    /// Each application's index, as last published by its matcher.
    indexes: Mutex<BTreeMap<Name, IndexStatus>>,
    /// Applications that made more notifications than they may, and until when their events wait for it.
    throttled: Mutex<BTreeMap<Name, Throttled>>,
    /// The places of the indexes of throttled applications at which their events began to wait.
    pins: Mutex<BTreeMap<Name, ChangeSequence>>,
    /// The bound of applications that are matched at the same time.
    permits: match_events::Permits,
    suspects: Arc<suspects::Suspects>,
    /// Rules that do not fire.
    stops: Mutex<guard::Stops>,
    luck: Mutex<fastrand::Rng>,
    suppressions: suppress::Suppressions,
    endpoints: endpoints::Endpoints,
    switches: switches::Switches,
    slow_firings: slow_firings::SlowFirings,
    /// Wakes whoever sends again what had failed.
    resends: tokio::sync::Notify,
    classes: class_counters::ClassCounters,
    spans: spans::StepSpans,
    /// The applications that run, for work of channels that no definition has.
    running: Mutex<BTreeMap<Name, Weak<Running>>>,
}

/// Until when events wait for a throttle, about.
#[derive(Debug, Clone, Default)]
struct Throttled {
    /// All events of the application.
    all: Option<Timestamp>,
    /// Events of a class.
    classes: BTreeMap<Name, Timestamp>,
}

impl Flow {
    /// Sees to it that work which was just stored has a worker, by application and channel. A device may name a channel that
    /// the application lacks: its notifications are suspended by the worker.
    fn serve(self: &Arc<Self>, channels: BTreeSet<(Name, Name)>) {
        for (application, channel) in channels {
            let running = self.running.lock().get(&application).and_then(Weak::upgrade);
            if let Some(running) = running {
                running.serve(self, channel);
            }
        }
    }

    /// From 0 to 1.
    fn luck(&self) -> f64 {
        self.luck.lock().f64()
    }

    /// From the next quantum on a rule does not fire. The journal knows it already.
    fn stop(&self, stop: RuleStop) {
        tracing::warn!(application = %stop.application, rule = %stop.rule, by = stop.by, reason = stop.reason, "a rule is stopped");
        let mut stops = self.stops.lock();
        stops.entry((stop.application.clone(), stop.rule.clone())).or_insert(stop);
        metrics::gauge!("match_stopped_rules").set(stops.len() as f64);
    }
}

/// What the pipeline is made of. Tests bring their own parts.
pub struct Parts {
    /// The flow's store.
    pub journal: Arc<dyn Journal>,
    /// The system of record.
    pub records: Arc<dyn Records>,
    /// The feeds that subscribers read; channels find them in their context.
    pub inbox: Arc<dyn Inbox>,
    /// Answers `${NAME}` in definitions.
    pub environment: Environment,
    /// What channels need to know: the clock too.
    pub context: Context,
    /// Opens a channel: `tocsin_delivery::open`, or a test's own far end.
    pub opener: Opener,
    /// Bounds and delays.
    pub options: PipelineOptions,
    /// Where the jitter of retries starts from.
    pub seed: u64,
    /// Who wants to know what each step did.
    pub spans: Spans,
}

/// Opens a channel by its name and definition.
pub type Opener = Arc<dyn Fn(&Name, &Channel, &Context) -> Result<Box<dyn OpenChannel>, Vec<Problem>> + Send + Sync>;

/// The open channels of a version that does not run yet. Dropping it closes those that no other version has.
pub struct Prepared(BTreeMap<Name, Arc<running::Open>>);

/// Why an application cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Its channels cannot be opened.
    #[error("{} in the definition", problems(.0))]
    Problems(Vec<Problem>),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The pipeline has been stopped.
    #[error("the server is shutting down")]
    Stopped,
}

/// Why a rule was not fired again.
#[derive(Debug, thiserror::Error)]
pub enum RefireError {
    /// Its application does not run.
    #[error("the application `{0}` does not run")]
    NotRunning(Name),
    /// It failed again. What is not fired stays listed.
    #[error("it failed again for {batch}: {reason}")]
    Failed {
        /// The event batch.
        batch: EventBatchId,
        /// Why.
        reason: String,
    },
    /// The store failed, or the server shuts down.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn problems(problems: &[Problem]) -> String {
    match problems {
        [one] => one.to_string(),
        many => format!("{} problems", many.len()),
    }
}

/// How one application is doing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ApplicationStatus {
    /// The version that runs.
    pub version: u32,
    /// Subscriptions in the match index.
    pub indexed: u64,
    /// Bytes that the index takes.
    pub index_bytes: u64,
    /// Shards of the index.
    pub shards: u64,
    /// Distinct filters; one that subscriptions of several shards have counts on each.
    pub filters: u64,
    /// Those of them that are looked at for every event.
    pub scanned_filters: u64,
    /// Subscriptions that cannot be matched by this version.
    pub unusable: u64,
    /// Places in the index in which their alternatives are filed.
    pub filter_groups: u64,
    /// Changes of the records that the index has not followed yet.
    pub changes_behind: u64,
    /// Whether events are accepted and matched.
    pub ready: bool,
    /// Until when its events wait because it made more notifications than its throttle allows, about.
    pub throttled_until: Option<Timestamp>,
    /// Until when events of a class wait because of a throttle of the class, about. Runs of schedules are of the class `due`.
    pub throttled_classes: BTreeMap<Name, Timestamp>,
}

/// The running flow of all applications.
pub struct Pipeline {
    flow: Arc<Flow>,
    running: Mutex<BTreeMap<Name, Arc<Running>>>,
    sources: run_sources::Sources,
    /// An application is changed once at a time, so that an older version never overtakes a newer; one that is slow to change
    /// delays no other.
    changing: Mutex<BTreeMap<Name, Arc<tokio::sync::Mutex<()>>>>,
    commands: mpsc::Sender<Command>,
    clockwork: mpsc::Sender<schedules::Command>,
    stop: CancellationToken,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Pipeline {
    /// Starts the flow: runs the current version of every application, with its index built and its channels open.
    /// An application that cannot run (a variable of the environment is missing, say) is logged and left out; what
    /// waits for it stays in the journal.
    ///
    /// # Errors
    /// The store failed.
    pub async fn start(parts: Parts) -> Result<Arc<Pipeline>, StoreError> {
        let Parts { journal, records, inbox, environment, mut context, opener, options, seed, spans } = parts;
        context.feeds = Some(Arc::new(feeds::StoredFeeds { inbox: inbox.clone(), clock: context.clock.clone() }));
        let flow = Arc::new(Flow {
            versions: Versions::new(records.clone(), environment),
            clock: context.clock.clone(),
            latencies: Latencies::default(),
            places: Places::new(&*records),
            indexes: Mutex::default(),
            throttled: Mutex::default(),
            pins: Mutex::default(),
            permits: match_events::Permits::new(options.match_concurrency),
            suspects: suspects::Suspects::open(&context.data_folder),
            stops: Mutex::default(),
            luck: Mutex::new(fastrand::Rng::with_seed(seed)),
            classes: class_counters::ClassCounters::default(),
            suppressions: suppress::Suppressions::new(options.suppression.clone()),
            endpoints: endpoints::Endpoints::default(),
            switches: switches::Switches::default(),
            slow_firings: slow_firings::SlowFirings::default(),
            resends: tokio::sync::Notify::new(),
            journal,
            records,
            inbox,
            options,
            context,
            opener,
            spans: spans::StepSpans(spans),
            running: Mutex::default(),
        });
        let (commands, receiver) = mpsc::channel(16);
        let (clockwork, clockwork_receiver) = mpsc::channel(16);
        let pipeline = Arc::new(Pipeline {
            flow: flow.clone(),
            running: Mutex::default(),
            sources: run_sources::Sources::default(),
            changing: Mutex::default(),
            commands,
            clockwork,
            stop: CancellationToken::new(),
            tasks: Mutex::default(),
        });
        pipeline.run_all(receiver, clockwork_receiver).await?;
        Ok(pipeline)
    }

    async fn run_all(
        self: &Arc<Self>,
        commands: mpsc::Receiver<Command>,
        clockwork: mpsc::Receiver<schedules::Command>,
    ) -> Result<(), StoreError> {
        let mut installed = Vec::new();
        self.flow.suppressions.load(&*self.flow.records).await?;
        self.flow.endpoints.load(&*self.flow.records).await?;
        self.flow.switches.load(&*self.flow.journal).await?;
        for stop in self.flow.journal.rule_stops().await? {
            self.flow.stop(stop);
        }
        let mut dispatcher = Dispatcher::new(self.flow.clone(), commands);
        // Before anything can be changed: what waits was accepted with the subscriptions of its time.
        let place = match_events::place_wanted(&self.flow).await?;
        self.flow.records.keep_changes_after(place);
        for stored in self.flow.records.applications().await? {
            match self.flow.versions.get(&stored.name, stored.version).await? {
                Some(compiled) => {
                    let followed = match_events::build(&self.flow, &compiled, place).await?;
                    match self.prepare(&compiled) {
                        Ok(prepared) => {
                            self.open(compiled.clone(), prepared).await?;
                            installed.push(compiled.clone());
                            dispatcher.start(compiled, followed);
                            self.flow.journal.rematch(&stored.name).await?;
                        }
                        Err(error) => tracing::error!(application = %stored.name, %error, "an application cannot run"),
                    }
                }
                None => tracing::error!(application = %stored.name, "an application cannot run; see `tocsin check`"),
            }
        }
        let matching = tokio::spawn(dispatcher.run(self.stop.clone()));
        let pipeline = Arc::downgrade(self);
        let cutoffs = move |now| pipeline.upgrade().map(|pipeline| pipeline.cutoffs(now));
        let upkeep = tokio::spawn(upkeep::run(self.flow.clone(), cutoffs, self.stop.clone()));
        let clockwork = tokio::spawn(Clockwork::new(self.flow.clone(), clockwork).run(self.stop.clone()));
        let resending = tokio::spawn(resend::run(self.flow.clone(), self.stop.clone()));
        self.tasks.lock().extend([matching, upkeep, clockwork, resending]);
        for compiled in installed {
            self.sources.change(&self.flow, &compiled).await;
            let _ = self.clockwork.send(schedules::Command::Install(compiled)).await;
        }
        Ok(())
    }

    /// Runs this version of an application in place of the one that runs. Its index is built first, so matching goes
    /// on meanwhile; what was accepted or made under the old version is finished as it was meant.
    ///
    /// # Errors
    /// Its channels cannot be opened; the version that ran still does.
    pub async fn run(self: &Arc<Self>, compiled: Arc<Compiled>) -> Result<(), RunError> {
        let prepared = self.prepare(&compiled)?;
        self.run_prepared(compiled, prepared).await
    }

    /// Opens the channels of a version, without running it. So a caller can make sure of them before it records the
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
    /// The store does not answer, or the pipeline was stopped; the version that ran still does.
    pub async fn run_prepared(self: &Arc<Self>, compiled: Arc<Compiled>, prepared: Prepared) -> Result<(), RunError> {
        let pipeline = self.clone();
        // A task of its own: whoever asked may stop waiting, but a change is never left halfway.
        let changing = tokio::spawn(async move { pipeline.change_to(compiled, prepared).await });
        changing.await.unwrap_or(Err(RunError::Stopped))
    }

    async fn change_to(&self, compiled: Arc<Compiled>, prepared: Prepared) -> Result<(), RunError> {
        let name = compiled.application.name.clone();
        let _one_at_a_time = self.change(&name).await;
        let place = match_events::place_wanted(&self.flow).await?;
        let followed = match_events::build(&self.flow, &compiled, place).await?;
        self.open(compiled.clone(), prepared).await?;
        let (done, installed) = oneshot::channel();
        let install = Command::Install(compiled.clone(), Box::new(followed), done);
        self.commands.send(install).await.map_err(|_| RunError::Stopped)?;
        installed.await.map_err(|_| RunError::Stopped)?;
        self.sources.change(&self.flow, &compiled).await;
        self.clockwork.send(schedules::Command::Install(compiled)).await.map_err(|_| RunError::Stopped)?;
        // What the version before could not match, or nobody could, may find its match now.
        self.rematch(&name).await?;
        Ok(())
    }

    /// The right to change an application, until it is dropped.
    async fn change(&self, name: &Name) -> tokio::sync::OwnedMutexGuard<()> {
        let changing = {
            let mut changing = self.changing.lock();
            // Those that nobody changes.
            changing.retain(|_, lock| Arc::strong_count(lock) > 1);
            changing.entry(name.clone()).or_default().clone()
        };
        changing.lock_owned().await
    }

    /// Goes over to the channels of a version, and keeps a worker on each.
    async fn open(&self, compiled: Arc<Compiled>, Prepared(channels): Prepared) -> Result<(), StoreError> {
        let name = compiled.application.name.clone();
        let waiting = self.flow.journal.open_channels(&name).await?;
        let running = self.running.lock().get(&name).cloned();
        let running = match running {
            Some(running) => {
                running.change(&self.flow, compiled.clone(), channels, waiting);
                running
            }
            None => Running::start(&self.flow, compiled.clone(), channels, waiting),
        };
        self.flow.versions.keep(compiled);
        self.flow.running.lock().insert(name.clone(), Arc::downgrade(&running));
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
        self.flow.running.lock().remove(name);
        let running = self.running.lock().remove(name);
        let _ = self.clockwork.send(schedules::Command::Remove(name.clone())).await;
        let (done, removed) = oneshot::channel();
        if self.commands.send(Command::Remove(name.clone(), done)).await.is_ok() {
            let _ = removed.await;
        }
        if let Err(error) = match_events::forget(&self.flow, name).await {
            // Whoever makes an application of this name again finds it, and drops what it does not know.
            tracing::warn!(application = %name, %error, "what its rules remembered could not be removed");
        }
        if let Err(error) = self.flow.journal.forget_marks(name).await {
            tracing::warn!(application = %name, %error, "what its sources remembered could not be removed");
        }
        if let Some(running) = running {
            running.stop().await;
        }
    }

    /// Sends the event batches of an application that were set aside to be matched again, also those that crashed the
    /// process. Gives how many there were.
    ///
    /// # Errors
    /// The store failed.
    pub async fn rematch(&self, name: &Name) -> Result<u64, StoreError> {
        self.flow.suspects.forget(name);
        self.flow.journal.rematch(name).await
    }

    /// The running version of an application.
    pub fn application(&self, name: &Name) -> Option<Arc<Compiled>> {
        self.running.lock().get(name).map(|running| running.compiled())
    }

    /// What the sources of a version would use and the operator of this machine has not opened.
    pub fn closed_sources(&self, compiled: &Compiled) -> Vec<Problem> {
        closed_sources(compiled, &run_sources::context(&self.flow))
    }

    /// Any version of an application, for reading batches that it packed.
    ///
    /// # Errors
    /// The store failed.
    pub async fn version(&self, name: &Name, version: u32) -> Result<Option<Arc<Compiled>>, StoreError> {
        self.flow.versions.get(name, version).await
    }

    /// Answers `${NAME}` in definitions.
    pub fn environment(&self) -> &Environment {
        self.flow.versions.environment()
    }

    /// Stores a submission; durable when it returns.
    ///
    /// # Errors
    /// See [`AcceptError`]. Nothing of the submission was stored.
    pub async fn accept(&self, submission: Submission) -> Result<Accepted, AcceptError> {
        if self.stop.is_cancelled() {
            return Err(AcceptError::Full("the server is shutting down".to_owned()));
        }
        if !self.running.lock().contains_key(&submission.application) {
            return Err(AcceptError::NoApplication(submission.application));
        }
        accept_events::accept(&self.flow, submission).await
    }

    /// Everything that is switched off, by its text, and whether something begun before is still under way.
    pub fn switches(&self) -> Vec<Switched> {
        let switched = |switch: Switch| Switched { pending: self.is_under_way(&switch.component), switch };
        self.flow.switches.list().into_iter().map(switched).collect()
    }

    /// Whether something of this is still under way.
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
            // Acceptance is over when it is answered, and a source asks before each batch.
            Component::Role(_) | Component::EventClass(..) | Component::Source(..) => false,
        }
    }

    /// Switches something off, or otherwise than it was: at once, and over restarts. What is begun is finished first.
    ///
    /// # Errors
    /// The store failed; nothing is switched.
    pub async fn switch_off(&self, switch: Switch) -> Result<(), StoreError> {
        self.flow.journal.set_switch(switch.clone()).await?;
        self.flow.switches.put(switch);
        Ok(())
    }

    /// Switches something on again. Gives whether it was off.
    ///
    /// # Errors
    /// The store failed; it stays off.
    pub async fn switch_on(&self, component: &Component) -> Result<bool, StoreError> {
        let was_kept = self.flow.journal.remove_switch(component).await?;
        Ok(self.flow.switches.remove(component) || was_kept)
    }

    /// How each application is doing, by name.
    pub fn status(&self) -> Vec<(Name, ApplicationStatus)> {
        let (indexes, newest) = (self.flow.indexes.lock().clone(), self.flow.places.newest());
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

    /// How the rules of an application are answered, with what its index holds now. `None` if it does not run.
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

    /// The newest slow firings, of this application and this rule if they are named, newest first.
    pub fn slow_firings(&self, application: Option<&Name>, rule: Option<&Name>, limit: usize) -> Vec<SlowFiring> {
        self.flow.slow_firings.newest(limit, |firing| {
            application.is_none_or(|wanted| firing.application == *wanted)
                && rule.is_none_or(|wanted| firing.rule == *wanted)
        })
    }

    /// The stopped rules of all applications, by application and rule.
    pub fn stopped_rules(&self) -> Vec<RuleStop> {
        self.flow.stops.lock().values().cloned().collect()
    }

    /// Stops a rule: from the next quantum on it does not fire, and what it misses is listed. One that is stopped already
    /// keeps its first stop.
    ///
    /// # Errors
    /// The store failed; the rule goes on.
    pub async fn stop_rule(&self, stop: RuleStop) -> Result<(), StoreError> {
        self.flow.journal.stop_rule(stop.clone()).await?;
        self.flow.stop(stop);
        Ok(())
    }

    /// Lets a stopped rule fire again. Gives whether it was stopped. What it missed stays listed.
    ///
    /// # Errors
    /// The store failed; the rule stays stopped.
    pub async fn resume_rule(&self, application: &Name, rule: &Name) -> Result<bool, StoreError> {
        let was_stopped = self.flow.journal.resume_rule(application, rule).await?;
        let mut stops = self.flow.stops.lock();
        let was_known = stops.remove(&(application.clone(), rule.clone())).is_some();
        metrics::gauge!("match_stopped_rules").set(stops.len() as f64);
        Ok(was_stopped || was_known)
    }

    /// Fires a rule for the batches of a listed firing, by the subscriptions as they are now. Gives how many batches
    /// these were; they leave the list one by one as they are fired.
    ///
    /// # Errors
    /// The application does not run, the rule failed again, or the store failed; what is not fired stays listed.
    pub async fn refire(&self, firing: Firing) -> Result<u64, RefireError> {
        let (done, fired) = oneshot::channel();
        let command = Command::Refire(Box::new(firing), done);
        let stopped = || RefireError::Store(StoreError::unavailable("the server is shutting down"));
        self.commands.send(command).await.map_err(|_| stopped())?;
        fired.await.unwrap_or_else(|_| Err(stopped()))
    }

    /// What bounces and complaints make of an address.
    pub fn suppression_policy(&self) -> &Policy {
        self.flow.suppressions.policy()
    }

    /// How long things have taken since the start.
    pub fn latencies(&self) -> &Latencies {
        &self.flow.latencies
    }

    /// The clock that the flow goes by.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.flow.clock
    }

    /// Asks every channel of an application for a sign of life: the far side's words, or what is wrong.
    pub async fn probe_channels(&self, name: &Name) -> Vec<(Name, Result<String, String>)> {
        let running = self.running.lock().get(name).cloned();
        match running {
            Some(running) => running.probe().await,
            None => Vec::new(),
        }
    }

    /// The destinations that each channel of an application knows, those with trouble first; at most `limit` for each.
    pub fn destinations(&self, name: &Name, limit: usize) -> Vec<(Name, Vec<Destination>)> {
        let running = self.running.lock().get(name).cloned();
        running.map(|running| running.destinations(limit)).unwrap_or_default()
    }

    /// How many destinations there are, by application, channel and state in the order of `DestinationState::ALL`.
    pub fn destination_counts(&self) -> Vec<(Name, Name, [usize; DestinationState::ALL.len()])> {
        let running: Vec<_> = self.running.lock().values().cloned().collect();
        running.iter().flat_map(|running| running.destination_counts()).collect()
    }

    /// The channels of all applications: the application, the channel, its protocol.
    pub fn channel_protocols(&self) -> Vec<(Name, Name, Name)> {
        let running: Vec<_> = self.running.lock().values().cloned().collect();
        running.iter().flat_map(|running| running.channel_protocols()).collect()
    }

    /// The channels that send mail, whose devices have mailboxes as addresses.
    pub fn mail_channels(&self) -> MailChannels {
        let channels = self.channel_protocols();
        MailChannels::of(channels.iter().map(|(_, channel, protocol)| (channel, protocol)))
    }

    /// How the sources of an application do that run by themselves, by name.
    pub fn sources(&self, name: &Name) -> Vec<SourceStatus> {
        self.sources.status(name)
    }

    /// How those of all applications do.
    pub fn all_sources(&self) -> Vec<(Name, SourceStatus)> {
        self.sources.all()
    }

    /// Ends at once, in the middle of everything, as a crash would. For tests of what is left behind.
    pub async fn abandon(&self) {
        self.sources.abandon().await;
        let tasks = std::mem::take(&mut *self.tasks.lock());
        for task in tasks {
            task.abort();
            let _ = task.await;
        }
        self.flow.running.lock().clear();
        let running = std::mem::take(&mut *self.running.lock());
        for running in running.into_values() {
            running.abandon().await;
        }
    }

    fn cutoffs(&self, now: Timestamp) -> Cutoffs {
        let running: Vec<_> = self.running.lock().values().map(|running| running.compiled()).collect();
        upkeep::cutoffs(running.iter().map(|compiled| &compiled.application), &self.flow.options, now)
    }

    /// Removes what is past its retention, at whatever hour. Gives how many batches it were.
    ///
    /// # Errors
    /// The store failed.
    pub async fn prune(&self) -> Result<u64, StoreError> {
        upkeep::prune(&self.flow, &self.cutoffs(self.flow.clock.now()), || true, &self.stop).await
    }

    /// Takes no new work, finishes what is in flight for at most `patience`, and leaves the rest to the next start.
    /// Gives whether all was finished.
    pub async fn drain(&self, patience: Duration) -> bool {
        self.stop.cancel();
        let tasks = std::mem::take(&mut *self.tasks.lock());
        // They stay known: who submits meanwhile is asked to come again, not told that there is no such application.
        let running: Vec<Arc<Running>> = self.running.lock().values().cloned().collect();
        // All at once: nobody goes on sending while another is waited for.
        let stopping = running.iter().map(|running| running.stop());
        let all = async {
            let (stopping, tasks) = (futures_util::future::join_all(stopping), futures_util::future::join_all(tasks));
            tokio::join!(self.sources.stop_all(), stopping, tasks)
        };
        let is_finished = tokio::time::timeout(patience, all).await.is_ok();
        // What is broken off now did not crash the process.
        self.flow.suspects.close();
        is_finished
    }
}

/// Runs something that keeps a core busy for a while, without holding up the other tasks of this thread.
fn keep_busy<T>(work: impl FnOnce() -> T) -> T {
    match tokio::runtime::Handle::current().runtime_flavor() {
        tokio::runtime::RuntimeFlavor::MultiThread => tokio::task::block_in_place(work),
        _ => work(),
    }
}

/// What the sources of a version would use and the operator of a machine has not opened: it can be applied, but they do not
/// run.
pub fn closed_sources(compiled: &Compiled, context: &SourceContext) -> Vec<Problem> {
    run_sources::closed(&compiled.application, context)
}
