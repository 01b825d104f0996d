//! System-to-system messaging: a message is stored, routed by its content, delivered, and its reply is returned to the
//! sender.
//!
//! Store and forward. A receive port stores each message together with its legs before anything is sent. A leg is one
//! delivery to one send port that a route selects. Routing is a function of the message, so message and legs are one
//! commit. The outcome of a leg, its reply and the legs of the reply are the second commit; the caller is answered
//! after that. After a crash, the spool contains the remaining work.
//!
//! A receive port can send before it commits (`store_first: false`): if the caller waits and has no idempotency key,
//! the request is sent first, and message and outcome are one commit. Delivery is at least once: receivers can get a
//! message again, always with the same id. Callers that repeat their idempotency key get the stored reply.
//!
//! Contains no SQL and no code for the protocols of callers.

pub mod compile; // 1. compiles a definition, or reports every problem in it
pub mod groups; // 1b. worker groups: separate concurrency limits per kind of work
mod pipeline; // 1c. pipelines: the steps of a port
mod promote; // 2. property promotion: values from body and headers
mod route; // 3. content-based routing
mod reply_correlation; // 3b. correlation of asynchronous replies with their requests
pub mod receive; // 4. receives a message, stores it and waits for its reply
pub mod flow; // 4a. flow control: rates, limits and back-pressure
pub mod intake; // 4f. intake: refusal and hold of messages while it is closed
mod reply_waiters; // 4b. callers that wait for a reply
mod aggregator; // 4c. aggregator: combines collected messages into one
pub mod locations; // 4d. receive locations: messages from folders, brokers and tables
mod after_commit; // 4e. work that follows a commit
mod send_queue; // 5. send queue of a port, in memory, with overflow in the spool
mod send; // 6. delivery attempts: sends a leg and stores its outcome
mod poison_messages; // 6a. suspends messages whose steps crash the process
pub mod track; // 6b. message tracking: copies of bodies for operators
mod spans; // 6c. trace spans of messages
mod meters; // 6d. metrics of ports
pub mod operate; // 7. operator actions: definitions, ports, suspended messages
pub mod edit; // 7b. edits of suspended messages
pub mod tracking_queries; // 7c. queries of tracked bodies, and message search by property
mod upkeep; // 8. upkeep: expires requests, deletes messages past their retention

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use parking_lot::RwLock;
use tocsin_delivery::{Clock, files::Files, networks::Networks, programs::Programs, spans::Spans};
use tocsin_model::{definition::Environment, id::Name};
use tocsin_sources::{Folders, Listeners};
use tocsin_store::{
    error::StoreError,
    spool::PartitionLoad,
    sqlite::{spool::SqliteSpool, tracking::SqliteTracking},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use compile::CompiledExchange;
use flow::{Flow, FlowMonitor, Memory};
use groups::{GroupLoad, WorkerGroup, WorkerGroups, WorkerLimits};
use locations::Locations;
use meters::ReceiveMeters;
use poison_messages::PoisonMessages;
use reply_waiters::ReplyWaiters;
use send_queue::SendQueue;
use spans::MessageSpans;
use track::{ActiveTracking, Tracker};

/// Dependencies of all exchanges.
pub struct ExchangeDependencies {
    /// The message store.
    pub spool: Arc<SqliteSpool>,
    /// The store of tracked bodies.
    pub tracking: Arc<SqliteTracking>,
    /// Source of the current time.
    pub clock: Arc<dyn Clock>,
    /// Non-public networks that send ports may reach.
    pub networks: Networks,
    /// Programs that pipeline steps may start.
    pub programs: Programs,
    /// Files that options may name.
    pub files: Files,
    /// Resolves `${NAME}` in definitions.
    pub environment: Environment,
    /// Memory usage and limit of the process.
    pub memory: Memory,
    /// Parent folder of the folders that the server creates for locations.
    pub data_folder: PathBuf,
    /// Other folders from which locations may remove files.
    pub folders: Folders,
    /// Addresses on which locations may listen.
    pub listeners: Listeners,
    /// Worker limit of each group.
    pub workers: WorkerLimits,
    /// Exporter of trace spans.
    pub spans: Spans,
    /// The intake at the start.
    pub intake: intake::Intake,
}

/// All exchanges of an installation; one instance per process.
pub struct Exchanges {
    parts: ExchangeDependencies,
    running: RwLock<Arc<BTreeMap<Name, Arc<RunningExchange>>>>,
    reply_waiters: Arc<ReplyWaiters>,
    /// Receives an event for each commit of the spool.
    stored: after_commit::CommitSender,
    upkeep: upkeep::Alarm,
    /// The earliest time at which a group of collected messages is due.
    aggregation_alarm: upkeep::Alarm,
    groups: WorkerGroups,
    watch: FlowMonitor,
    locations: Locations,
    intake: tokio::sync::watch::Sender<intake::Intake>,
    tracker: Arc<Tracker>,
    poison_messages: PoisonMessages,
    spans: MessageSpans,
    /// Tasks that write tracked bodies and handle commits. They end after all other tasks.
    background_tasks: TaskTracker,
    stop_background: CancellationToken,
    /// Held while a definition changes, so that changes are serialized.
    applying: tokio::sync::Mutex<()>,
    stopping: CancellationToken,
    tasks: TaskTracker,
}

/// A running exchange.
pub struct RunningExchange {
    /// The compiled definition.
    pub compiled: Arc<CompiledExchange>,
    /// The version of its definition.
    pub version: u32,
    /// The queues of the send ports. They outlive a change of the definition, with their attempts in progress.
    send_queues: BTreeMap<Name, Arc<SendQueue>>,
    /// Queues of removed send ports, until their attempts in progress end.
    leaving: BTreeMap<Name, Arc<SendQueue>>,
    /// Flow control. It outlives a change of the definition.
    flow: Arc<Flow>,
    /// Effective tracking of its ports.
    tracks: RwLock<Arc<ActiveTracking>>,
    /// Metrics of its receive ports.
    meters: BTreeMap<Name, ReceiveMeters>,
}

impl Drop for Exchanges {
    fn drop(&mut self) {
        self.stop_background.cancel();
    }
}

impl Exchanges {
    /// Starts all stored exchanges. An exchange whose definition is invalid is not started; the log has the reason.
    ///
    /// # Errors
    /// The spool does not answer.
    pub async fn start(parts: ExchangeDependencies) -> Result<Arc<Exchanges>, StoreError> {
        let groups = WorkerGroups::new(parts.workers);
        let tracker = Tracker::new(parts.tracking.clone(), groups.of(WorkerGroup::Track).clone()).await?;
        let tracker = Arc::new(tracker);
        let (stored, commits) = tokio::sync::mpsc::unbounded_channel();
        let exchanges = Arc::new(Exchanges {
            intake: tokio::sync::watch::Sender::new(parts.intake.clone()),
            spans: MessageSpans(parts.spans.clone()),
            poison_messages: PoisonMessages::open(&parts.data_folder),
            parts,
            tracker: tracker.clone(),
            background_tasks: TaskTracker::new(),
            stop_background: CancellationToken::new(),
            running: RwLock::default(),
            reply_waiters: Arc::default(),
            stored,
            upkeep: upkeep::Alarm::default(),
            aggregation_alarm: upkeep::Alarm::default(),
            groups,
            watch: FlowMonitor::default(),
            locations: Locations::default(),
            applying: tokio::sync::Mutex::default(),
            stopping: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        exchanges.background_tasks.spawn(tracker.run(exchanges.parts.clock.clone(), exchanges.stop_background.clone()));
        exchanges.background_tasks.spawn(after_commit::run(commits, exchanges.stop_background.clone()));
        for stored in exchanges.parts.spool.exchanges().await? {
            match exchanges.compile(&stored.text) {
                Ok(compiled) => exchanges.run(compiled, stored.version).await?,
                Err(problems) => {
                    let problems = problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
                    tracing::error!(exchange = %stored.name, problems, "exchange not started: its definition is invalid");
                }
            }
        }
        exchanges.parts.spool.end_throttles(exchanges.parts.clock.now()).await?;
        exchanges.tasks.spawn(flow::run(exchanges.clone()));
        exchanges.tasks.spawn(aggregator::run(exchanges.clone()));
        exchanges.tasks.spawn(upkeep::run(exchanges.clone()));
        Ok(exchanges)
    }

    /// The load of the worker groups.
    pub fn workers(&self) -> Vec<GroupLoad> {
        self.groups.load()
    }

    /// The load of each partition of the spool, in their order.
    pub fn partitions(&self) -> Vec<PartitionLoad> {
        self.parts.spool.load_by_partition().into_iter().map(|(_, load)| load).collect()
    }

    /// The running exchange of this name.
    pub fn find(&self, name: &Name) -> Option<Arc<RunningExchange>> {
        self.running.read().get(name).cloned()
    }

    /// Stops dispatching and waits up to `patience` for work in progress. Returns whether all of it finished.
    pub async fn stop(&self, patience: Duration) -> bool {
        self.locations.stop_all().await;
        self.stopping.cancel();
        self.tasks.close();
        let finished = tokio::time::timeout(patience, self.tasks.wait()).await.is_ok();
        self.stop_background.cancel();
        self.background_tasks.close();
        let finished = tokio::time::timeout(patience, self.background_tasks.wait()).await.is_ok() && finished;
        // Waiting callers are answered with the address at which to ask for the reply.
        self.reply_waiters.release();
        finished
    }
}

#[cfg(test)]
mod tests;
