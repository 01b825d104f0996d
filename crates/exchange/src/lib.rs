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
//! Three services over one core: [`Intake`] receives, `Dispatch` sends, [`Operations`] changes definitions, ports and
//! suspended messages. All new messages and outcomes are stored by `Core::commit`. A file uses only files above it in
//! this list; `tocsin/tests/architecture.rs` checks that.
//!
//! Contains no SQL and no code for the protocols of callers.

// 1. Compile: from a definition to its parts.
pub mod error; // errors of receiving and of operator actions
mod message; // messages as submitted, and between pipeline steps
pub mod groups; // worker groups: separate concurrency limits per kind of work
mod promote; // property promotion: values from body and headers
mod pipeline; // pipelines: the steps of a port
mod route; // content-based routing: predicates and their index
pub mod compile; // compiles a definition, or reports every problem in it

// 2. State of running exchanges, without I/O of messages.
mod alarm; // timer for the earliest of several times
mod reply_waiters; // callers that wait for a reply
mod poison_messages; // suspends messages whose steps crash the process
mod spans; // trace spans of messages
mod meters; // metrics of ports
pub mod intake; // state of the intake: refusal and hold of messages
pub mod flow; // flow control: rates, limits and reasons of throttling
pub mod track; // message tracking: copies of bodies for operators
mod send_queue; // send queue of a port, a pure state machine
mod send_port; // a running send port: definition, state and queue
mod running; // running exchanges, and the legs of a message

// 3. Core: the one way to store.
mod commit; // what is stored in one commit, and what waits for it
mod core; // what all services share

// 4. Dispatch: sends what is stored.
mod reply_correlation; // correlation of asynchronous replies with their requests
mod send; // delivery attempts
mod dispatch; // performs the actions of send queues
mod after_commit; // work that follows a commit

// 5. Intake: receives and stores.
mod admission; // whether a message may be accepted now
mod process; // the receive pipeline and the routing of its result
mod replies; // the status of the reply to a request
pub mod receive; // receives a message and waits for its reply
pub mod locations; // receive locations: messages from folders, brokers and tables
mod aggregator; // aggregator: combines collected messages into one

// 6. Operations: actions of operators.
pub mod operate; // ports, locations, suspended messages
pub mod edit; // edits of suspended messages
pub mod tracking_queries; // tracked bodies, and message search by property
mod flow_reports; // reports and rates of flow control
pub mod route_tests; // where a message would go, without storing it
mod definitions; // check, apply and remove definitions

// 7. Upkeep: work by time.
mod flow_monitor; // checks what throttles messages
mod upkeep; // expires requests, deletes messages past their retention

use std::{sync::Arc, time::Duration};

use tocsin_model::id::Name;
use tocsin_store::{error::StoreError, spool::PartitionLoad};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    core::Core,
    dispatch::Dispatch,
    groups::{GroupLoad, WorkerGroup, WorkerGroups},
    locations::Locations,
    track::Tracker,
};
pub use crate::{core::ExchangeDependencies, operate::Operations, receive::Intake, running::RunningExchange};

/// All exchanges of an installation; one instance per process.
pub struct Exchanges {
    /// Receives messages.
    pub intake: Arc<Intake>,
    /// Changes definitions, ports and suspended messages.
    pub operations: Arc<Operations>,
    core: Arc<Core>,
    /// Tasks that write tracked bodies and handle commits. They end after all other tasks.
    background_tasks: TaskTracker,
    stop_background: CancellationToken,
}

impl Drop for Exchanges {
    fn drop(&mut self) {
        self.stop_background.cancel();
    }
}

impl Exchanges {
    /// Starts all stored exchanges. An exchange whose definition is invalid is not started; the log has the reason, and
    /// [`Operations::failed_exchanges`] lists it.
    ///
    /// # Errors
    /// The spool does not answer.
    pub async fn start(parts: ExchangeDependencies) -> Result<Arc<Exchanges>, StoreError> {
        let groups = WorkerGroups::new(parts.workers);
        let tracker = Tracker::new(parts.tracking.clone(), groups.of(WorkerGroup::Track).clone()).await?;
        let tracker = Arc::new(tracker);
        let state = tokio::sync::watch::Sender::new(parts.intake.clone());
        let (commits, committed) = tokio::sync::mpsc::unbounded_channel();
        let core = Arc::new(Core::new(parts, groups, tracker.clone(), commits));
        let dispatch = Arc::new(Dispatch { core: core.clone() });
        let intake = Arc::new(Intake { core: core.clone(), dispatch: dispatch.clone(), state });
        let operations = Arc::new(Operations {
            core: core.clone(),
            dispatch: dispatch.clone(),
            intake: intake.clone(),
            locations: Locations::default(),
            applying: tokio::sync::Mutex::default(),
            failed: parking_lot::Mutex::default(),
        });
        let exchanges = Arc::new(Exchanges {
            intake,
            operations: operations.clone(),
            core: core.clone(),
            background_tasks: TaskTracker::new(),
            stop_background: CancellationToken::new(),
        });
        let stop = &exchanges.stop_background;
        exchanges.background_tasks.spawn(tracker.run(core.parts.clock.clone(), stop.clone()));
        exchanges.background_tasks.spawn(after_commit::run(dispatch, committed, stop.clone()));
        for stored in core.parts.spool.exchanges().await? {
            match operations.compile(&stored.text) {
                Ok(compiled) => operations.run(compiled, stored.version).await?,
                Err(problems) => {
                    let problems = problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
                    tracing::error!(exchange = %stored.name, problems, "exchange not started: its definition is invalid");
                    operations.failed.lock().insert(stored.name, problems);
                }
            }
        }
        core.parts.spool.end_throttles(core.now()).await?;
        core.tasks.spawn(flow_monitor::run(core.clone()));
        core.tasks.spawn(aggregator::run(core.clone()));
        core.tasks.spawn(upkeep::run(operations));
        Ok(exchanges)
    }

    /// The load of the worker groups.
    pub fn workers(&self) -> Vec<GroupLoad> {
        self.core.groups.load()
    }

    /// The load of each partition of the spool, in their order.
    pub fn partitions(&self) -> Vec<PartitionLoad> {
        self.core.parts.spool.load_by_partition().into_iter().map(|(_, load)| load).collect()
    }

    /// The running exchange of this name.
    pub fn find(&self, name: &Name) -> Option<Arc<RunningExchange>> {
        self.core.find(name)
    }

    /// Names of the running exchanges.
    pub fn names(&self) -> Vec<Name> {
        self.core.names()
    }

    /// Stops dispatching and waits up to `patience` for work in progress. Returns whether all of it finished.
    pub async fn stop(&self, patience: Duration) -> bool {
        self.operations.locations.stop_all().await;
        self.core.stopping.cancel();
        self.core.tasks.close();
        let finished = tokio::time::timeout(patience, self.core.tasks.wait()).await.is_ok();
        self.stop_background.cancel();
        self.background_tasks.close();
        let finished = tokio::time::timeout(patience, self.background_tasks.wait()).await.is_ok() && finished;
        // Waiting callers are answered with the address at which to ask for the reply.
        self.core.reply_waiters.release();
        finished
    }
}

#[cfg(test)]
mod tests;
