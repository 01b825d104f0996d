//! The open channels of a running application, with a worker and a recorder for each.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tocsin_delivery::{Context, Destination, DestinationState, OpenChannel, folders::Folders};
use tocsin_model::{
    application::{Application, Channel, DeliveryLog, RetrySchedule},
    collection::{Collection, Resolver},
    delivery_policy::Priority,
    id::Name,
    problem::{Code, Problem},
};
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::{
    Flow, RunError,
    channel_alerts::ChannelAlerts,
    compile::Compiled,
    deliver_work::{InFlightLimits, Worker},
    disable_devices::Disabler,
    lanes::Lanes,
    match_events::unassigned_channel,
    record_receipts::Recorder,
    windows::Windows,
};

/// Default time for which an endpoint may fail.
const DISABLE_AFTER: Duration = Duration::from_secs(5 * 86_400);
/// Lease of work items whose channel the application does not define.
const LEASE: std::time::Duration = std::time::Duration::from_secs(300);

/// An open channel with its definition.
pub(crate) struct OpenedChannel {
    definition: Channel,
    is_endpoint: bool,
    channel: Box<dyn OpenChannel>,
}

impl OpenedChannel {
    fn new(definition: &Channel, channel: Box<dyn OpenChannel>) -> Self {
        OpenedChannel { definition: definition.clone(), is_endpoint: tocsin_delivery::is_endpoint(definition), channel }
    }

    fn disable_after(&self) -> Option<Duration> {
        let after = self.definition.disable_after.unwrap_or(DISABLE_AFTER);
        Some(after).filter(|after| !after.is_zero() && self.is_endpoint)
    }

    /// Its protocol.
    pub fn protocol(&self) -> &Name {
        &self.definition.protocol
    }

    /// Whether the channel can stay open for a definition: changes of retries and leases concern the workers only.
    fn serves(&self, definition: &Channel) -> bool {
        self.definition.protocol == definition.protocol
            && self.definition.concurrency == definition.concurrency
            && self.definition.flow == definition.flow
            && self.definition.options == definition.options
            && self.definition.disable_after == definition.disable_after
    }
}

impl std::ops::Deref for OpenedChannel {
    type Target = dyn OpenChannel;
    fn deref(&self) -> &Self::Target {
        &*self.channel
    }
}

/// A running application.
pub(crate) struct Running {
    pub name: Name,
    /// Lanes of ordered delivery.
    pub lanes: Arc<Lanes>,
    compiled: ArcSwap<Compiled>,
    channels: ArcSwap<BTreeMap<Name, Arc<OpenedChannel>>>,
    workers: Mutex<Workers>,
    /// Digest windows of each channel, shared by successive workers.
    windows: Mutex<BTreeMap<Name, Arc<Windows>>>,
    /// Replaced workers that are still finishing.
    retired_workers: Mutex<Vec<Working>>,
}

/// The workers of each channel.
#[derive(Default)]
struct Workers {
    by_channel: BTreeMap<Name, Working>,
    /// Whether the application is stopping. A new worker would find its channels closed and suspend its work.
    is_stopping: bool,
}

/// Tasks of one channel.
struct Working {
    stop: CancellationToken,
    retry: RetrySchedule,
    lease: std::time::Duration,
    log: DeliveryLog,
    bounds: [Arc<InFlightLimits>; 2],
    worker: JoinHandle<()>,
    recorder: JoinHandle<()>,
}

impl Running {
    /// Starts the workers of the open channels, and of channels with work left from earlier versions.
    pub fn start(
        flow: &Arc<Flow>,
        compiled: Arc<Compiled>,
        channels: BTreeMap<Name, Arc<OpenedChannel>>,
        waiting: Vec<Name>,
    ) -> Arc<Running> {
        let running = Arc::new(Running {
            name: compiled.application.name.clone(),
            lanes: Arc::default(),
            compiled: ArcSwap::new(compiled.clone()),
            channels: ArcSwap::default(),
            workers: Mutex::default(),
            windows: Mutex::default(),
            retired_workers: Mutex::default(),
        });
        running.change(flow, compiled, channels, waiting);
        running
    }

    /// Opens the channels of a version. Channels of `running` that are unchanged are reused.
    pub fn open_channels(
        flow: &Flow,
        running: Option<&Running>,
        application: &Application,
    ) -> Result<BTreeMap<Name, Arc<OpenedChannel>>, RunError> {
        let before = running.map(|running| running.channels.load_full()).unwrap_or_default();
        let context = Context { application: application.name.to_string(), ..flow.context.clone() };
        let mut channels = BTreeMap::new();
        let mut problems = Vec::new();
        for (name, definition) in &application.channels {
            if let Some(open) = before.get(name).filter(|open| open.serves(definition)) {
                channels.insert(name.clone(), open.clone());
                continue;
            }
            let reconfigure = before.get(name).and_then(|open| open.reconfigure(name, definition, &context));
            match reconfigure.unwrap_or_else(|| (flow.opener)(name, definition, &context)) {
                Ok(channel) => {
                    channels.insert(name.clone(), Arc::new(OpenedChannel::new(definition, channel)));
                }
                Err(found) => problems.extend(found.into_iter().map(|mut problem| {
                    problem.path = format!("channels.{name}.options.{}", problem.path);
                    problem
                })),
            }
        }
        problems.extend(programs_not_allowed(flow, application));
        if problems.is_empty() { Ok(channels) } else { Err(RunError::Problems(problems)) }
    }

    /// Switches to another version with its open channels; channels it does not use are closed.
    pub fn change(
        self: &Arc<Self>,
        flow: &Arc<Flow>,
        compiled: Arc<Compiled>,
        channels: BTreeMap<Name, Arc<OpenedChannel>>,
        waiting: Vec<Name>,
    ) {
        let before = self.channels.load_full();
        let requested: Vec<Name> = channels.keys().cloned().chain(waiting).chain([unassigned_channel()]).collect();
        let replaced =
            before.iter().filter(|(name, open)| !channels.get(*name).is_some_and(|kept| Arc::ptr_eq(kept, open)));
        let replaced: Vec<Arc<OpenedChannel>> = replaced.map(|(_, open)| open.clone()).collect();
        self.channels.store(Arc::new(channels));
        self.compiled.store(compiled);
        drop(before);
        tokio::spawn(retire(replaced));
        for channel in requested {
            self.ensure_worker(flow, channel);
        }
    }

    /// Ensures that a channel has a worker.
    pub fn serve(self: &Arc<Self>, flow: &Arc<Flow>, channel: Name) {
        if !self.workers.lock().by_channel.contains_key(&channel) {
            self.ensure_worker(flow, channel);
        }
    }

    /// Ensures that a channel has a worker with the current retry schedule and lease.
    fn ensure_worker(self: &Arc<Self>, flow: &Arc<Flow>, channel: Name) {
        let compiled = self.compiled.load();
        let definition = compiled.application.channels.get(&channel);
        let retry =
            definition.map_or(RetrySchedule { delays: Vec::new(), jitter_percent: 0 }, |found| found.retry.clone());
        let lease = definition.map_or(LEASE, |found| found.lease);
        let log = definition.map_or_else(DeliveryLog::default, |found| found.log);
        let mut workers = self.workers.lock();
        if workers.is_stopping {
            return;
        }
        let workers = &mut workers.by_channel;
        if workers
            .get(&channel)
            .is_some_and(|working| working.retry == retry && working.lease == lease && working.log == log)
        {
            return;
        }
        if let Some(replaced) = workers.remove(&channel) {
            // The old worker finishes its items; the new one claims the rest.
            replaced.stop.cancel();
            let mut retired_workers = self.retired_workers.lock();
            retired_workers.retain(|working| !working.recorder.is_finished());
            retired_workers.push(replaced);
        }
        let bound = flow.options.in_flight_per_channel.max(1);
        let (reports, reports_in) = mpsc::channel(bound);
        let (answers, answers_in) = mpsc::channel(bound);
        let recorder = Recorder {
            flow: flow.clone(),
            application: self.name.clone(),
            lanes: self.lanes.clone(),
            channel: channel.clone(),
            retry: retry.clone(),
            lease,
            log,
            reports: reports_in,
            answers: answers_in,
            disabler: Disabler::new(self.clone()),
            alerts: ChannelAlerts::new(log.failures),
        };
        let bounds = InFlightLimits::both(&flow.options);
        let worker = Worker {
            flow: flow.clone(),
            running: self.clone(),
            channel: channel.clone(),
            lease,
            log,
            reports,
            answers,
            windows: self.windows.lock().entry(channel.clone()).or_default().clone(),
            panics: Mutex::default(),
            bounds: bounds.clone(),
            claiming: tokio::sync::Mutex::default(),
        };
        let stop = CancellationToken::new();
        let working = Working {
            retry,
            lease,
            log,
            bounds,
            worker: tokio::spawn(worker.run(stop.clone())),
            recorder: tokio::spawn(recorder.run()),
            stop,
        };
        workers.insert(channel, working);
    }

    /// The running version.
    pub fn compiled(&self) -> Arc<Compiled> {
        self.compiled.load_full()
    }

    /// Whether some notification class has urgent or high priority.
    pub fn has_high_priority(&self) -> bool {
        let compiled = self.compiled.load();
        compiled.application.notifications.values().any(|class| class.delivery_policy.priority <= Priority::High)
    }

    /// Time for which the endpoint of a device may fail on a channel; `None`: no limit, or the channel has no
    /// per-device endpoints.
    pub fn disable_after(&self, channel: &Name) -> Option<Duration> {
        self.channels.load().get(channel)?.disable_after()
    }

    /// Returns an open channel.
    pub fn channel(&self, name: &Name) -> Option<Arc<OpenedChannel>> {
        self.channels.load().get(name).cloned()
    }

    /// Whether notifications of a channel, or of any channel, are being formatted or in flight.
    pub fn is_busy(&self, channel: Option<&Name>) -> bool {
        let workers = self.workers.lock();
        let mut meant = workers.by_channel.iter().filter(|(name, _)| channel.is_none_or(|channel| channel == *name));
        meant.any(|(_, working)| working.bounds.iter().any(|bounds| !bounds.is_idle()))
    }

    /// Probes every channel.
    pub async fn probe(&self) -> Vec<(Name, Result<String, String>)> {
        let channels = self.channels.load_full();
        let mut answers = Vec::with_capacity(channels.len());
        for (name, open) in channels.iter() {
            answers.push((name.clone(), open.probe().await.map_err(|reason| reason.text)));
        }
        answers
    }

    /// Known destinations of every channel; at most `limit` per channel.
    pub fn destinations(&self, limit: usize) -> Vec<(Name, Vec<Destination>)> {
        self.channels.load().iter().map(|(name, open)| (name.clone(), open.destinations(limit))).collect()
    }

    /// Number of destinations of every channel by state.
    pub fn destination_counts(&self) -> Vec<(Name, Name, [usize; DestinationState::ALL.len()])> {
        let channels = self.channels.load();
        channels.iter().map(|(name, open)| (self.name.clone(), name.clone(), open.destination_counts())).collect()
    }

    /// Its channels with their protocols.
    pub fn channel_protocols(&self) -> Vec<(Name, Name, Name)> {
        let compiled = self.compiled.load();
        let channels = compiled.application.channels.iter();
        channels.map(|(name, channel)| (self.name.clone(), name.clone(), channel.protocol.clone())).collect()
    }

    /// Aborts all tasks.
    pub async fn abort(&self) {
        for working in self.take_workers() {
            for task in [working.worker, working.recorder] {
                task.abort();
                let _ = task.await;
            }
        }
        self.channels.store(Arc::default());
    }

    /// Removes all workers of all channels, including replaced ones, and returns them.
    fn take_workers(&self) -> Vec<Working> {
        let retired_workers = std::mem::take(&mut *self.retired_workers.lock());
        let mut workers = self.workers.lock();
        workers.is_stopping = true;
        std::mem::take(&mut workers.by_channel).into_values().chain(retired_workers).collect()
    }

    /// Finishes work in flight and closes the channels. Work that was not begun stays in the journal.
    pub async fn stop(&self) {
        let workers = self.take_workers();
        for working in &workers {
            working.stop.cancel();
        }
        for open in self.channels.load().values() {
            open.drain();
        }
        for working in workers {
            let _ = working.worker.await;
            let _ = working.recorder.await;
        }
        let channels = self.channels.swap(Arc::default());
        for open in Arc::try_unwrap(channels).unwrap_or_default().into_values() {
            if let Some(open) = Arc::into_inner(open) {
                open.channel.close().await;
            }
        }
    }
}

/// Lets channels finish their queues, then closes them.
async fn retire(channels: Vec<Arc<OpenedChannel>>) {
    for open in channels {
        open.wait_until_answered().await;
        if let Some(open) = Arc::into_inner(open) {
            open.channel.close().await;
        }
    }
}

/// All problems in the options of an application's channels.
pub(crate) fn check_channels(application: &Application) -> Result<(), Vec<Problem>> {
    let problems: Vec<Problem> = application
        .channels
        .iter()
        .flat_map(|(name, channel)| {
            let mut problems =
                tocsin_delivery::check(&channel.protocol, &channel.options, &format!("channels.{name}.options"));
            let given = [
                channel.disable_after.map(|_| "disable_after"),
                channel.endpoint_event.as_ref().map(|_| "endpoint_event"),
            ];
            if problems.is_empty() && !tocsin_delivery::is_endpoint(channel) {
                for key in given.into_iter().flatten() {
                    let text =
                        "all devices of this channel share one endpoint: its failures say nothing about a single device";
                    let problem = Problem::new(Code::NotApplicable, format!("channels.{name}.{key}"), text);
                    problems.push(problem.hint("leave it out; it is for `http` without `url`"));
                }
            }
            problems
        })
        .collect();
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// Merge programs of the definition that may not be started on this machine.
/// Problems for files and programs of new or changed channels, and programs of collections, that the operator of this
/// machine has not allowed. Opens and creates nothing.
pub fn resources_not_allowed(flow: &Flow, running: Option<&Running>, application: &Application) -> Vec<Problem> {
    let before = running.map(|running| running.channels.load_full()).unwrap_or_default();
    let is_changed = |name: &Name, definition: &Channel| !before.get(name).is_some_and(|open| open.serves(definition));
    let folders = Folders { allow: flow.options.channel_folders.clone() };
    let mut problems = Vec::new();
    for (name, definition) in application.channels.iter().filter(|(name, definition)| is_changed(name, definition)) {
        let option = |key: &str| definition.options.get(key);
        let (path, why) = match definition.protocol.as_str() {
            "file" => {
                let path = option("path").and_then(serde_json::Value::as_str).map(Path::new);
                ("path", path.and_then(|path| folders.resolve_allowed(path, &flow.context.data_folder).err()))
            }
            "process" => {
                let program = option("command").and_then(|command| command.get(0)?.as_str()).map(Path::new);
                ("command", program.and_then(|program| flow.context.programs.resolve_allowed(program).err()))
            }
            _ => continue,
        };
        problems.extend(why.map(|why| Problem::new(Code::NotAllowed, format!("channels.{name}.options.{path}"), why)));
    }
    problems.extend(programs_not_allowed(flow, application));
    problems
}

fn programs_not_allowed(flow: &Flow, application: &Application) -> Vec<Problem> {
    let program_problem = |(name, collection): (&Name, &Collection)| {
        let Resolver::Process(process) = &collection.conflicts.resolver else { return None };
        let program = process.command.first().map(Path::new)?;
        let why = flow.context.programs.resolve_allowed(program).err()?;
        Some(Problem::new(Code::NotAllowed, format!("collections.{name}.conflicts.resolver.process"), why))
    };
    application.collections.iter().filter_map(program_problem).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::panics::Platform;

    /// A matcher finishes its quantum, and may store work for channels that are already closed.
    #[tokio::test]
    async fn a8_work_that_is_stored_while_an_application_stops_is_left_to_the_next_start() {
        let platform = Platform::start("stops").await;
        let running = platform.pipeline.running.lock()[&platform.name].clone();
        let channel: Name = "log".parse().expect("a name");
        assert!(running.workers.lock().by_channel.contains_key(&channel));
        assert!(platform.pipeline.drain(Duration::from_secs(60)).await);
        running.serve(&platform.pipeline.flow, channel);
        assert!(running.workers.lock().by_channel.is_empty(), "nobody claims it and finds no channel");
    }
}
