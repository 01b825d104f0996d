//! Systems talk through the platform: a message is stored, routed by what it holds, delivered, and its reply finds its way
//! back.
//!
//! A message comes through a receive port and is stored with its legs, one for each send port that a route leads it to,
//! before anything of it leaves: routing is a function of the message, so both are one commit. A leg is sent, and what came
//! of it, the reply and the legs of the reply are the second commit; only then the caller hears of it. After a crash the
//! spool says what is still to be done. Where a receive port says so, a request whose caller waits and could not ask again
//! leaves first, and both are one commit. Far sides may see a message again, always under the same id; callers who repeat
//! their idempotency key get the stored reply.
//!
//! Knows nothing of SQL, and nothing of how callers reach it.

pub mod compile; // 1. a definition becomes what runs, or every problem in it
pub mod groups; //  1c. workers of their own for each kind of work
mod pipeline; //    1b. what is done to messages at a port, step by step
mod promote; //     2. a message's properties are taken out of it
mod route; //       3. predicates over them say where it goes
mod later; //       3b. or it is the reply to a message that waits for one
pub mod receive; // 4. a message comes, is stored, and its caller waits
pub mod locations; // 4d. messages are taken from where they are
pub mod flow; //    4a. how fast they come and leave, and why they are slowed down
mod gather; //      4c. what was gathered becomes one message
mod callers; //     4b. who waits for which reply
mod follow; //      4e. what is stored sets off what comes next
mod lane; //        5. what waits for a send port, in memory and behind that in the spool
mod send; //        6. a leg leaves; what came of it is stored
mod suspects; //    6a. messages whose steps crash the process are set aside
pub mod track; //   6b. bodies on their way are kept beside it, for people
mod spans; //       6c. what is told of those that stand in a trace
mod meters; //      6d. what is counted for every message
pub mod operate; // 7. what operators do: definitions, ports, suspended messages
pub mod edit; //    7b. suspended messages become what an operator wants
pub mod look; //    7c. what was tracked, and messages by their properties
mod upkeep; //      8. what is over: requests without an answer, messages that need not be kept

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

use callers::Callers;
use compile::Compiled;
use flow::{Flow, Memory, Watch};
use groups::{Group, GroupLoad, Groups, WorkersMost};
use lane::Lane;
use locations::Locations;
use meters::ReceiveMeters;
use spans::MessageSpans;
use suspects::Suspects;
use track::{Tracker, Tracks};

/// What exchanges work with.
pub struct Parts {
    /// Where messages are kept.
    pub spool: Arc<SqliteSpool>,
    /// Where what is tracked of them is kept.
    pub tracking: Arc<SqliteTracking>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// What send ports may reach besides public addresses.
    pub networks: Networks,
    /// The programs that steps may start.
    pub programs: Programs,
    /// The files that options may name.
    pub files: Files,
    /// Answers `${NAME}` in definitions.
    pub environment: Environment,
    /// The memory of the process.
    pub memory: Memory,
    /// Folders that the server has for locations lie below it.
    pub data_folder: PathBuf,
    /// Which other folders locations may empty.
    pub folders: Folders,
    /// Where locations may listen.
    pub listeners: Listeners,
    /// How many workers each group has.
    pub workers: WorkersMost,
    /// Who wants to know what became of messages that stand in a trace.
    pub spans: Spans,
}

/// All exchanges of an installation. One for the process.
pub struct Exchanges {
    parts: Parts,
    running: RwLock<Arc<BTreeMap<Name, Arc<Running>>>>,
    callers: Arc<Callers>,
    /// Where the spool tells what it has stored.
    stored: follow::Tell,
    upkeep: upkeep::Alarm,
    /// When gathered messages become one.
    gatherings: upkeep::Alarm,
    groups: Groups,
    watch: Watch,
    locations: Locations,
    tracker: Arc<Tracker>,
    suspects: Suspects,
    spans: MessageSpans,
    /// What carries away what is tracked, and what follows from what is stored: they end behind all other tasks.
    carrying: TaskTracker,
    carried: CancellationToken,
    /// One change of a definition at a time.
    applying: tokio::sync::Mutex<()>,
    stopping: CancellationToken,
    tasks: TaskTracker,
}

/// An exchange that runs.
pub struct Running {
    /// What it does.
    pub compiled: Arc<Compiled>,
    /// The version of its definition.
    pub version: u32,
    /// The send ports. They outlive a change of the definition, with what is under way in them.
    lanes: BTreeMap<Name, Arc<Lane>>,
    /// Send ports that are not there any more, as long as something is under way in them.
    leaving: BTreeMap<Name, Arc<Lane>>,
    /// What slows its messages down. It outlives a change of the definition too.
    flow: Arc<Flow>,
    /// What is tracked at its ports now.
    tracks: RwLock<Arc<Tracks>>,
    /// What is counted at its receive ports.
    meters: BTreeMap<Name, ReceiveMeters>,
}

impl Drop for Exchanges {
    fn drop(&mut self) {
        self.carried.cancel();
    }
}

impl Exchanges {
    /// Starts all exchanges that are stored. One whose definition is not good any more does not run; the log says why.
    ///
    /// # Errors
    /// The spool does not answer.
    pub async fn start(parts: Parts) -> Result<Arc<Exchanges>, StoreError> {
        let groups = Groups::new(parts.workers);
        let tracker = Tracker::new(parts.tracking.clone(), groups.of(Group::Track).clone()).await?;
        let tracker = Arc::new(tracker);
        let (stored, hears) = tokio::sync::mpsc::unbounded_channel();
        let exchanges = Arc::new(Exchanges {
            spans: MessageSpans(parts.spans.clone()),
            suspects: Suspects::open(&parts.data_folder),
            parts,
            tracker: tracker.clone(),
            carrying: TaskTracker::new(),
            carried: CancellationToken::new(),
            running: RwLock::default(),
            callers: Arc::default(),
            stored,
            upkeep: upkeep::Alarm::default(),
            gatherings: upkeep::Alarm::default(),
            groups,
            watch: Watch::default(),
            locations: Locations::default(),
            applying: tokio::sync::Mutex::default(),
            stopping: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        exchanges.carrying.spawn(tracker.run(exchanges.parts.clock.clone(), exchanges.carried.clone()));
        exchanges.carrying.spawn(follow::run(hears, exchanges.carried.clone()));
        for stored in exchanges.parts.spool.exchanges().await? {
            match exchanges.compile(&stored.text) {
                Ok(compiled) => exchanges.run(compiled, stored.version).await?,
                Err(problems) => {
                    let problems = problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
                    tracing::error!(exchange = %stored.name, problems, "an exchange does not run");
                }
            }
        }
        exchanges.parts.spool.end_throttles(exchanges.parts.clock.now()).await?;
        exchanges.tasks.spawn(flow::run(exchanges.clone()));
        exchanges.tasks.spawn(gather::run(exchanges.clone()));
        exchanges.tasks.spawn(upkeep::run(exchanges.clone()));
        Ok(exchanges)
    }

    /// How busy the worker groups are.
    pub fn workers(&self) -> Vec<GroupLoad> {
        self.groups.load()
    }

    /// How much there is in each partition of the spool, in their order.
    pub fn partitions(&self) -> Vec<PartitionLoad> {
        self.parts.spool.load_by_partition().into_iter().map(|(_, load)| load).collect()
    }

    /// The exchange of this name, if it runs.
    pub fn find(&self, name: &Name) -> Option<Arc<Running>> {
        self.running.read().get(name).cloned()
    }

    /// Takes nothing new from its queues and finishes what is under way, for at most `patience`. Gives whether all was.
    pub async fn stop(&self, patience: Duration) -> bool {
        self.locations.stop_all().await;
        self.stopping.cancel();
        self.tasks.close();
        let finished = tokio::time::timeout(patience, self.tasks.wait()).await.is_ok();
        self.carried.cancel();
        self.carrying.close();
        let finished = tokio::time::timeout(patience, self.carrying.wait()).await.is_ok() && finished;
        // Whose request waits in the spool is told where the reply will be.
        self.callers.release();
        finished
    }
}

#[cfg(test)]
mod tests;
