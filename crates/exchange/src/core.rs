//! The core that all services share: stores, registry, and the one way to store messages and outcomes.

use std::{path::PathBuf, sync::Arc};

use bytes::Bytes;
use tocsin_connect::{Clock, files::Files, networks::Networks, programs::Programs, spans::Spans};
use tocsin_model::{
    definition::Environment,
    exchange::{MessageKind, TrackPoint, Tracking},
    field::Row,
    id::{MessageId, Name},
    time::Timestamp,
};
use tocsin_sources::{Context, Folders, Listeners};
use tocsin_store::{
    spool::{Head, NewMessage, PartitionNumber},
    sqlite::{spool::SqliteSpool, tracking::SqliteTracking},
    tracking::IndexedProperties,
};
use tokio::time::Instant;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    alarm::Alarm,
    commit::{Commit, CommitSender, Committed, LegReservation},
    flow::{FlowMonitor, Memory},
    groups::{WorkerGroups, WorkerLimits},
    poison_messages::PoisonMessages,
    promote,
    reply_waiters::ReplyWaiters,
    running::{Registry, RunningExchange},
    send_queue::Conditions,
    spans::MessageSpans,
    track::{BodyCapture, Tracker},
};

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
    pub intake: crate::intake::IntakeState,
}

/// State that all services share.
pub(crate) struct Core {
    pub parts: ExchangeDependencies,
    pub registry: Registry,
    pub reply_waiters: Arc<ReplyWaiters>,
    /// Receives an event for each commit of the spool.
    pub commits: CommitSender,
    /// When the next request expires.
    pub expiry_alarm: Alarm,
    /// When the next group of collected messages is due.
    pub aggregation_alarm: Alarm,
    pub groups: WorkerGroups,
    pub flow_monitor: FlowMonitor,
    pub tracker: Arc<Tracker>,
    pub poison_messages: PoisonMessages,
    pub spans: MessageSpans,
    pub stopping: CancellationToken,
    /// Work that a shutdown waits for.
    pub tasks: TaskTracker,
    /// Called in the thread of the writer at each commit, before anything that waits for it.
    #[cfg(test)]
    pub on_commit: CommitHook,
}

/// A function of a test that is called at each commit.
#[cfg(test)]
pub type CommitHook = Arc<parking_lot::Mutex<Option<Box<dyn FnMut() + Send>>>>;

impl Core {
    pub fn new(
        parts: ExchangeDependencies,
        groups: WorkerGroups,
        tracker: Arc<Tracker>,
        commits: CommitSender,
    ) -> Core {
        Core {
            registry: Registry::default(),
            reply_waiters: Arc::default(),
            commits,
            expiry_alarm: Alarm::default(),
            aggregation_alarm: Alarm::default(),
            groups,
            flow_monitor: FlowMonitor::default(),
            tracker,
            poison_messages: PoisonMessages::open(&parts.data_folder),
            spans: MessageSpans(parts.spans.clone()),
            parts,
            stopping: CancellationToken::new(),
            tasks: TaskTracker::new(),
            #[cfg(test)]
            on_commit: Arc::default(),
        }
    }

    pub fn now(&self) -> Timestamp {
        self.parts.clock.now()
    }

    /// Time and state of the process, for an input of a send queue.
    pub fn conditions(&self) -> Conditions {
        Conditions {
            now: self.now(),
            instant: Instant::now(),
            memory_is_short: self.flow_monitor.memory_is_short(),
            is_stopping: self.stopping.is_cancelled(),
        }
    }

    /// The environment of receive locations.
    pub fn source_context(&self) -> Context {
        Context {
            clock: self.parts.clock.clone(),
            data_folder: self.parts.data_folder.clone(),
            networks: self.parts.networks.clone(),
            programs: self.parts.programs.clone(),
            files: self.parts.files.clone(),
            folders: self.parts.folders.clone(),
            listeners: self.parts.listeners.clone(),
        }
    }

    /// The running exchange of this name.
    pub fn find(&self, name: &Name) -> Option<Arc<RunningExchange>> {
        self.registry.find(name)
    }

    /// Names of the running exchanges.
    pub fn names(&self) -> Vec<Name> {
        self.registry.all().keys().cloned().collect()
    }

    /// Stores messages and outcomes. The work that must wait for the commit runs after it, in commit order, and does
    /// not depend on the caller. Waits only until the writer takes the commit, or for batches and combinations until
    /// they are stored.
    pub async fn commit(&self, commit: Commit) {
        let spool = &self.parts.spool;
        let notify = self.notifier();
        match commit {
            Commit::Message(pending) => {
                let received = pending.received.clone();
                spool.accept_then(received, move |stored| notify(Committed::Message(pending, stored))).await;
            }
            Commit::Attempt(completed) => {
                let outcome = completed.outcome.clone();
                spool.settle_then(outcome, move |settled| notify(Committed::Attempt(completed, settled)));
            }
            Commit::Both(pending, completed) => {
                let (received, outcome) = (pending.received.clone(), completed.outcome.clone());
                let notify = move |settled| notify(Committed::Both(pending, completed, settled));
                spool.accept_settled_then(received, outcome, notify);
            }
            Commit::Batch(batch) => {
                let (location, messages, marks) = (batch.location.clone(), batch.messages.clone(), batch.marks.clone());
                let stored = spool.accept_received(location, messages, marks).await;
                notify(Committed::Batch(batch, stored));
            }
            Commit::Combined(combination) => {
                let (members, whole) = (combination.members.clone(), combination.whole.clone());
                let stored = spool.assemble(&combination.group, members, whole).await;
                notify(Committed::Combined(combination, stored));
            }
        }
    }

    /// Reports a commit to the task that handles commits.
    fn notifier(&self) -> impl FnOnce(Committed) + Send + 'static {
        let commits = self.commits.clone();
        #[cfg(test)]
        let on_commit = self.on_commit.clone();
        move |committed| {
            #[cfg(test)]
            on_commit.lock().iter_mut().for_each(|on_commit| on_commit());
            // The send fails after shutdown; the next start finds the message.
            let _ = commits.send(committed);
        }
    }

    /// Reserves the legs of messages before their commit.
    pub fn reserve_legs<'a>(
        &self,
        running: &RunningExchange,
        messages: impl IntoIterator<Item = &'a NewMessage>,
    ) -> LegReservation {
        LegReservation::new(running, messages, self.commits.clone())
    }

    /// A new message with its body, before pipeline and routing.
    pub fn new_message(
        &self,
        running: &RunningExchange,
        partition: PartitionNumber,
        port: &Name,
        kind: MessageKind,
        body: Bytes,
        now: Timestamp,
    ) -> NewMessage {
        NewMessage {
            id: self.parts.spool.next_id(partition),
            exchange: running.compiled.definition.name.clone(),
            port: port.clone(),
            kind,
            answers: None,
            settles: None,
            part_of: None,
            key: None,
            sender: Box::default(),
            head: Head::default(),
            body,
            legs: Vec::new(),
            suspended: None,
            accepted_at: now,
            expires_at: None,
            kept: running.compiled.definition.retention,
        }
    }

    /// Schedules a request's expiry.
    pub fn expect_expiry(&self, stored: &NewMessage) {
        if let Some(expires_at) = stored.expires_at {
            self.expiry_alarm.expect(expires_at);
        }
    }

    /// Tracks a body if its port, or a route that its message matches, asks for it. `row` is the row that routes
    /// evaluate, if any route tracks.
    pub fn track(&self, running: &RunningExchange, captured: &BodyCapture<'_>, row: Option<&Row>, now: Timestamp) {
        let tracks = running.tracks();
        let is_receive = TrackPoint::OF_RECEIVE.contains(&captured.point);
        let of_port = if is_receive { tracks.of_receive(captured.port) } else { tracks.of_send(captured.port) };
        let takes = |tracking: &Arc<Tracking>| captured.is_taken_by(tracking);
        let tracking = of_port.filter(takes).or_else(|| {
            let met = running.compiled.routes.names(row.filter(|_| tracks.has_routes())?);
            let routes = &running.compiled.definition.routes;
            // At a send port, only routes to this port count.
            let leads =
                |name: &&Name| is_receive || routes.get(*name).is_some_and(|route| route.to.contains(captured.port));
            met.into_iter().filter(leads).find_map(|name| tracks.of_route(name).filter(takes))
        });
        if let Some(tracking) = tracking {
            self.tracker.take(&tracking, captured, now);
        }
    }

    /// Adds a message to the property index, if properties are declared for search.
    pub fn index_properties(&self, running: &RunningExchange, id: MessageId, head: &Head, at: Timestamp) {
        let definition = &running.compiled.definition;
        let declared = definition.properties.iter().filter(|property| property.search);
        let found = declared
            .filter_map(|property| Some((property.name.clone(), promote::text_of(head, property.name.as_str())?)));
        let properties: Vec<(Name, String)> = found.collect();
        if !properties.is_empty() {
            let indexed = IndexedProperties { message: id, at, properties };
            self.tracker.index(&definition.name, indexed, definition.retention);
        }
    }
}
