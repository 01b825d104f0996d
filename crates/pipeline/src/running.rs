//! A running application: a worker and a recorder for each of its channels.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use tocsin_delivery::{Context, folders::Folders};
use tocsin_model::{
    application::{Application, Channel, DeliveryLog, RetrySchedule},
    id::Name,
    problem::{Code, Problem},
};
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::{
    Flow, RunError,
    active_version::{ActiveVersion, OpenedChannel},
    channel_alerts::ChannelAlerts,
    compile::Compiled,
    deliver_work::{InFlightLimits, Worker},
    disable_devices::Disabler,
    flow::RunningApplication,
    in_flight::InFlight,
    match_events::unassigned_channel,
    record_receipts::Recorder,
    resource_policy::ResourcePolicy,
    windows::Windows,
};

/// Lease of work items whose channel the application does not define.
const LEASE: std::time::Duration = std::time::Duration::from_secs(300);

/// A running application.
pub(crate) struct Running {
    flow: Arc<Flow>,
    pub active: Arc<ActiveVersion>,
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
            flow: flow.clone(),
            active: ActiveVersion::new(compiled.clone()),
            workers: Mutex::default(),
            windows: Mutex::default(),
            retired_workers: Mutex::default(),
        });
        running.change(compiled, channels, waiting);
        running
    }

    /// Opens the channels of a version. Channels of `running` that are unchanged are reused.
    pub fn open_channels(
        flow: &Flow,
        running: Option<&Running>,
        application: &Application,
    ) -> Result<BTreeMap<Name, Arc<OpenedChannel>>, RunError> {
        let before = running.map(|running| running.active.channels()).unwrap_or_default();
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
        problems.extend(resource_policy(flow).collection_programs(application));
        if problems.is_empty() { Ok(channels) } else { Err(RunError::Problems(problems)) }
    }

    /// Switches to another version with its open channels; channels it does not use are closed.
    pub fn change(&self, compiled: Arc<Compiled>, channels: BTreeMap<Name, Arc<OpenedChannel>>, waiting: Vec<Name>) {
        let before = self.active.channels();
        let requested: Vec<Name> = channels.keys().cloned().chain(waiting).chain([unassigned_channel()]).collect();
        let replaced =
            before.iter().filter(|(name, open)| !channels.get(*name).is_some_and(|kept| Arc::ptr_eq(kept, open)));
        let replaced: Vec<Arc<OpenedChannel>> = replaced.map(|(_, open)| open.clone()).collect();
        drop((before, self.active.replace(compiled, channels)));
        tokio::spawn(retire(replaced));
        for channel in requested {
            self.ensure_worker(channel);
        }
    }

    /// Ensures that a channel has a worker with the current retry schedule and lease.
    fn ensure_worker(&self, channel: Name) {
        let flow = &self.flow;
        let compiled = self.active.compiled();
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
        let serves = |working: &Working| {
            let is_same = working.retry == retry && working.lease == lease && working.log == log;
            is_same && !working.recorder.is_finished()
        };
        if workers.get(&channel).is_some_and(serves) {
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
        let (answers, answers_in) = mpsc::channel(bound);
        let in_flight = InFlight::new(flow.clone(), self.active.clone(), channel.clone(), retry.clone(), log);
        let recorder = Recorder {
            in_flight: in_flight.clone(),
            lease,
            answers: answers_in,
            disabler: Disabler::new(self.active.clone()),
            alerts: ChannelAlerts::new(log.failures),
        };
        let bounds = InFlightLimits::both(&flow.options);
        let worker = Worker {
            flow: flow.clone(),
            active: self.active.clone(),
            channel: channel.clone(),
            lease,
            log,
            in_flight,
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

    /// Whether notifications of a channel, or of any channel, are being formatted or in flight.
    pub fn is_busy(&self, channel: Option<&Name>) -> bool {
        let workers = self.workers.lock();
        let mut meant = workers.by_channel.iter().filter(|(name, _)| channel.is_none_or(|channel| channel == *name));
        meant.any(|(_, working)| working.bounds.iter().any(|bounds| !bounds.is_idle()))
    }

    /// Aborts all tasks.
    pub async fn abort(&self) {
        for working in self.take_workers() {
            for task in [working.worker, working.recorder] {
                task.abort();
                let _ = task.await;
            }
        }
        self.active.take_channels();
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
        for open in self.active.channels().values() {
            open.drain();
        }
        for working in workers {
            let _ = working.worker.await;
            let _ = working.recorder.await;
        }
        let channels = self.active.take_channels();
        for open in Arc::try_unwrap(channels).unwrap_or_default().into_values() {
            if let Some(open) = Arc::into_inner(open) {
                open.close().await;
            }
        }
    }
}

impl RunningApplication for Running {
    fn compiled(&self) -> Arc<Compiled> {
        self.active.compiled()
    }

    fn serve(&self, channel: Name) {
        if !self.workers.lock().by_channel.contains_key(&channel) {
            self.ensure_worker(channel);
        }
    }
}

/// Lets channels finish their queues, then closes them.
async fn retire(channels: Vec<Arc<OpenedChannel>>) {
    for open in channels {
        open.wait_until_answered().await;
        if let Some(open) = Arc::into_inner(open) {
            open.close().await;
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

/// Problems for files and programs of new or changed channels, and programs of collections, that the operator of this
/// machine has not allowed. Opens and creates nothing.
pub fn resources_not_allowed(flow: &Flow, running: Option<&Running>, application: &Application) -> Vec<Problem> {
    let before = running.map(|running| running.active.channels()).unwrap_or_default();
    let is_changed = |name: &Name, definition: &Channel| !before.get(name).is_some_and(|open| open.serves(definition));
    resource_policy(flow).not_allowed(application, is_changed)
}

fn resource_policy(flow: &Flow) -> ResourcePolicy {
    ResourcePolicy {
        data_folder: flow.context.data_folder.clone(),
        folders: Folders { allow: flow.options.channel_folders.clone() },
        files: flow.context.files.clone(),
        programs: flow.context.programs.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
        running.serve(channel);
        assert!(running.workers.lock().by_channel.is_empty(), "nobody claims it and finds no channel");
    }

    /// Its answers would be lost, and the same messages would be sent again whenever their leases expire.
    #[tokio::test(start_paused = true)]
    async fn a_channel_whose_recorder_ended_sends_nothing() {
        let platform = Platform::start("records").await;
        let running = platform.pipeline.running.lock()[&platform.name].clone();
        let channel: Name = "log".parse().expect("a name");
        let has_ended = || running.workers.lock().by_channel[&channel].recorder.is_finished();
        running.workers.lock().by_channel[&channel].recorder.abort();
        while !has_ended() {
            tokio::task::yield_now().await;
        }
        platform.quote("A").await;
        assert_eq!(platform.ends.messages(), 0);
        // As an application does that is applied again.
        running.ensure_worker(channel.clone());
        assert!(!has_ended());
        platform.quote("A").await;
        assert!(platform.ends.messages() > 0);
        assert!(platform.pipeline.drain(Duration::from_secs(60)).await);
    }
}
