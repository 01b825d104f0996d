//! Operator actions: definitions, states of ports, and suspended messages.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use bytes::Bytes;
use tocsin_matching::filter::{CompiledFilter, compile_for_messages};
use tocsin_model::{
    exchange::PortState,
    filter::Filter,
    id::{MessageId, Name},
    problem::Problem,
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    spool::{
        AffectedCounts, Head, HistoryEntry, Leg, LegState, MessageFilter, MessageStatus, NewLeg, NewMessage,
        ReprocessedMessage, SpoolCounts, StoredExchange, StoredMessage,
    },
};

use crate::{
    Exchanges, RunningExchange, compile::CompiledExchange, flow::Flow, meters::ReceiveMeters,
    pipeline::PipelineMessage, promote, receive::PipelineOutput, reply_correlation::RoutingResult,
    reply_waiters::ReplyNotice, send_queue::SendQueue, track::ActiveTracking,
};

/// Messages per step of a bulk action.
const STEP: usize = 500;

/// Why an operator's action failed.
#[derive(Debug, thiserror::Error)]
pub enum OperateError {
    /// The named object does not exist.
    #[error("{0} does not exist")]
    Missing(String),
    /// The definition is invalid.
    #[error("the definition has problems")]
    Invalid(Vec<Problem>),
    /// The exchange has open messages: cancel them first, or let them finish.
    #[error("the exchange `{0}` has open messages")]
    InUse(Name),
    /// The store is unavailable.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Present state of a send port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortLoad {
    /// Its name.
    pub port: Name,
    /// Its effective state.
    pub state: PortState,
    /// Whether an operator's setting overrides the definition.
    pub is_set: bool,
    /// Legs in progress.
    pub under_way: u32,
    /// Ready legs in memory. More can wait in the spool.
    pub ready: usize,
    /// When its service window opens, if it is closed.
    pub opens_at: Option<Timestamp>,
}

/// Selection of messages by a filter and, optionally, a predicate.
#[derive(Clone)]
pub struct MessageSelection {
    filter: MessageFilter,
    when: Option<(Arc<RunningExchange>, CompiledFilter)>,
}

impl From<MessageFilter> for MessageSelection {
    fn from(filter: MessageFilter) -> MessageSelection {
        MessageSelection { filter, when: None }
    }
}

impl MessageSelection {
    fn takes(&self, stored: &StoredMessage) -> bool {
        let Some((running, when)) = &self.when else { return true };
        let bytes = usize::try_from(stored.bytes).unwrap_or(usize::MAX);
        let row = promote::row(&running.compiled, &stored.port, stored.kind, &stored.head, bytes);
        // A predicate that cannot be evaluated does not select the message.
        when.holds(&row).unwrap_or(false)
    }
}

impl Exchanges {
    /// The stored definitions, each with whether it runs.
    ///
    /// # Errors
    /// The store is unavailable.
    pub async fn stored(&self) -> Result<Vec<(StoredExchange, bool)>, StoreError> {
        let stored = self.parts.spool.exchanges().await?;
        let runs =
            |stored: &StoredExchange| self.find(&stored.name).is_some_and(|running| running.version == stored.version);
        Ok(stored.into_iter().map(|stored| (runs(&stored), stored)).map(|(runs, stored)| (stored, runs)).collect())
    }

    /// Stores a definition and activates it. Attempts in progress go on unchanged; waiting messages use the new
    /// definition.
    ///
    /// # Errors
    /// Nothing was changed.
    pub async fn apply(self: &Arc<Self>, text: &str, author: &str) -> Result<StoredExchange, OperateError> {
        let compiled = self.compile(text).map_err(OperateError::Invalid)?;
        let (exchanges, text, author) = (self.clone(), text.to_owned(), author.to_owned());
        self.run_to_completion(async move {
            let _one = exchanges.applying.lock().await;
            let (name, now) = (compiled.definition.name.clone(), exchanges.parts.clock.now());
            let stored = exchanges.parts.spool.put_exchange(name, text, author, now).await?;
            exchanges.run(compiled, stored.version).await?;
            Ok(stored)
        })
        .await
    }

    /// Runs an action to completion even if the caller disconnects.
    pub(crate) async fn run_to_completion<T: Send + 'static>(
        &self,
        act: impl Future<Output = T> + Send + 'static,
    ) -> T {
        match self.tasks.spawn(act).await {
            Ok(done) => done,
            Err(broken) => std::panic::resume_unwind(broken.into_panic()),
        }
    }

    /// Activates a definition in place of the previous one.
    pub(crate) async fn run(self: &Arc<Self>, compiled: CompiledExchange, version: u32) -> Result<(), StoreError> {
        let name = compiled.definition.name.clone();
        let set: BTreeMap<Name, PortState> = self.set_ports(&name).await?;
        let before = self.find(&name);
        let mut send_queues = BTreeMap::new();
        for (port, send_port) in &compiled.send_ports {
            let state = set.get(port).copied().unwrap_or(send_port.definition.state);
            let known =
                before.as_ref().and_then(|before| before.send_queues.get(port).or(before.leaving.get(port)).cloned());
            let send_queue = known.unwrap_or_else(|| {
                SendQueue::new(name.clone(), port.clone(), send_port.clone(), PortState::Hold, Arc::downgrade(self))
            });
            send_queues.insert(port.clone(), (send_queue, send_port.clone(), state));
        }
        let flow = before.as_ref().map_or_else(|| Flow::new(name.clone()), |before| before.flow.clone());
        let rates = self.parts.spool.rates().await?;
        let leaving = before.iter().flat_map(|before| {
            let still = before.leaving.iter().filter(|(_, send_queue)| send_queue.load().0 > 0);
            before.send_queues.iter().chain(still).filter(|(port, _)| !send_queues.contains_key(*port))
        });
        let running = Arc::new(RunningExchange {
            flow,
            tracks: parking_lot::RwLock::new(Arc::new(ActiveTracking::new(&compiled, &self.tracker.switches.read()))),
            leaving: leaving.map(|(port, send_queue)| (port.clone(), send_queue.clone())).collect(),
            send_queues: send_queues
                .iter()
                .map(|(port, (send_queue, ..))| (port.clone(), send_queue.clone()))
                .collect(),
            meters: ReceiveMeters::of_all(&compiled.definition),
            compiled: Arc::new(compiled),
            version,
        });
        let mut all = BTreeMap::clone(&self.running.read());
        all.insert(name, running.clone());
        *self.running.write() = Arc::new(all);
        for set in rates.into_iter().filter(|set| set.exchange == running.compiled.definition.name) {
            running.set_rate(set.side, set.port, Some(set.rate));
        }
        self.watch.wake();
        self.aggregation_alarm.expect(self.parts.clock.now());
        // After the registration: an attempt looks its exchange up.
        for (send_queue, send_port, state) in send_queues.into_values() {
            send_queue.change(send_port, state);
        }
        self.tasks.spawn(self.clone().rebuild_index(running.clone()));
        self.locations.change(self, &running.compiled.definition).await;
        running.leaving.values().for_each(|send_queue| send_queue.change(send_queue.send_port(), PortState::Off));
        self.suspend_orphaned_legs(&running).await;
        Ok(())
    }

    /// Suspends legs to removed send ports. Attempts in progress go on.
    async fn suspend_orphaned_legs(&self, running: &RunningExchange) {
        let name = &running.compiled.definition.name;
        let known: Arc<[Name]> = running.send_queues.keys().cloned().collect();
        let under_way = Arc::new(running.leaving.values().flat_map(|send_queue| send_queue.under_way()).collect());
        loop {
            match self
                .parts
                .spool
                .suspend_orphaned_legs(name, known.clone(), Arc::clone(&under_way), STEP, self.parts.clock.now())
                .await
            {
                Ok(suspended) if suspended.is_empty() => return,
                Ok(suspended) => {
                    let count = suspended.len();
                    tracing::warn!(exchange = %name, count, "messages to send ports that do not exist are suspended");
                    suspended.into_iter().for_each(|id| self.reply_waiters.answer(id, ReplyNotice::None));
                }
                Err(error) => {
                    return tracing::error!(exchange = %name, %error, "cannot suspend messages to removed send ports");
                }
            }
        }
    }

    /// Suspends orphaned legs of all exchanges: retries, and messages that were routed before a definition changed and
    /// stored after it.
    pub(crate) async fn suspend_all_orphaned_legs(&self) {
        // Skipped while a definition is applied, which does the same.
        let Ok(_one) = self.applying.try_lock() else { return };
        let all = self.running.read().clone();
        for running in all.values() {
            self.suspend_orphaned_legs(running).await;
        }
    }

    async fn set_ports(&self, exchange: &Name) -> Result<BTreeMap<Name, PortState>, StoreError> {
        let set = self.parts.spool.set_ports().await?;
        Ok(set.into_iter().filter(|set| set.exchange == *exchange).map(|set| (set.port, set.state)).collect())
    }

    /// Removes an exchange that has no open messages.
    ///
    /// # Errors
    /// There is none, or it has open messages.
    pub async fn remove(self: &Arc<Self>, name: &Name) -> Result<(), OperateError> {
        let (exchanges, name) = (self.clone(), name.clone());
        self.run_to_completion(async move { exchanges.remove_now(&name).await }).await
    }

    async fn remove_now(self: &Arc<Self>, name: &Name) -> Result<(), OperateError> {
        let _one = self.applying.lock().await;
        // Stopped before the check, since they could add open messages.
        self.locations.stop(name).await;
        let open = MessageFilter {
            exchange: Some(name.clone()),
            standing: Some(MessageStatus::Open),
            ..MessageFilter::default()
        };
        if !self.parts.spool.messages(open, None, 1).await?.is_empty() {
            if let Some(running) = self.find(name) {
                self.locations.change(self, &running.compiled.definition).await;
            }
            return Err(OperateError::InUse(name.clone()));
        }
        let mut all = BTreeMap::clone(&self.running.read());
        if let Some(running) = all.remove(name) {
            *self.running.write() = Arc::new(all);
            running
                .send_queues
                .values()
                .for_each(|send_queue| send_queue.change(send_queue.send_port(), PortState::Off));
        }
        let set: Vec<_> =
            self.tracker.switches.read().keys().filter(|(exchange, _)| exchange == name).cloned().collect();
        for (exchange, place) in set {
            self.parts.tracking.set(exchange.clone(), place.clone(), None).await?;
            self.tracker.switches.write().remove(&(exchange, place));
        }
        if self.parts.spool.remove_exchange(name.clone()).await? {
            return Ok(());
        }
        Err(OperateError::Missing(format!("the exchange `{name}`")))
    }

    /// The send ports of an exchange.
    ///
    /// # Errors
    /// There is no such exchange.
    pub async fn ports(&self, exchange: &Name) -> Result<Vec<PortLoad>, OperateError> {
        let running = self.running(exchange)?;
        let set = self.set_ports(exchange).await?;
        let load = |(port, send_queue): (&Name, &Arc<SendQueue>)| {
            let (under_way, ready) = send_queue.load();
            let (state, opens_at) = (send_queue.state(), send_queue.opens_at(self.parts.clock.now()));
            PortLoad { port: port.clone(), state, is_set: set.contains_key(port), under_way, ready, opens_at }
        };
        Ok(running.send_queues.iter().map(load).collect())
    }

    /// Sets the state of a send port; kept across restarts and new definitions. `None` restores the state of the
    /// definition.
    ///
    /// # Errors
    /// There is no such port.
    pub async fn set_port(
        self: &Arc<Self>,
        exchange: &Name,
        port: &Name,
        state: Option<PortState>,
    ) -> Result<(), OperateError> {
        let (exchanges, exchange, port) = (self.clone(), exchange.clone(), port.clone());
        self.run_to_completion(async move { exchanges.set_port_now(&exchange, &port, state).await }).await
    }

    async fn set_port_now(
        self: &Arc<Self>,
        exchange: &Name,
        port: &Name,
        state: Option<PortState>,
    ) -> Result<(), OperateError> {
        let running = self.running(exchange)?;
        let missing = || OperateError::Missing(format!("the send port `{port}` of `{exchange}`"));
        let send_queue = running.send_queues.get(port).ok_or_else(missing)?;
        self.parts.spool.set_port(exchange.clone(), port.clone(), state).await?;
        let send_port = send_queue.send_port();
        let state = state.unwrap_or(send_port.definition.state);
        tracing::info!(%exchange, %port, %state, "the state of a send port was set");
        send_queue.change(send_port, state);
        Ok(())
    }

    pub(crate) fn running(&self, exchange: &Name) -> Result<Arc<RunningExchange>, OperateError> {
        self.find(exchange).ok_or_else(|| OperateError::Missing(format!("the exchange `{exchange}`")))
    }

    /// A message without its body.
    ///
    /// # Errors
    /// The store is unavailable.
    pub async fn message(&self, id: MessageId) -> Result<Option<StoredMessage>, StoreError> {
        self.parts.spool.message(id).await
    }

    /// The history of a message, oldest first: failed attempts and operator actions.
    ///
    /// # Errors
    /// The store is unavailable.
    pub async fn history(&self, id: MessageId) -> Result<Vec<HistoryEntry>, StoreError> {
        self.parts.spool.history(id).await
    }

    /// The body of a message.
    ///
    /// # Errors
    /// The store is unavailable.
    pub async fn body(&self, id: MessageId) -> Result<Option<Bytes>, StoreError> {
        self.parts.spool.body(id).await
    }

    /// Some messages, newest first.
    ///
    /// # Errors
    /// The store is unavailable.
    pub async fn messages(
        &self,
        filter: MessageFilter,
        before: Option<MessageId>,
        limit: usize,
    ) -> Result<Vec<StoredMessage>, StoreError> {
        self.parts.spool.messages(filter, before, limit).await
    }

    /// Counters of the spool.
    pub fn counts(&self) -> SpoolCounts {
        self.parts.spool.counts()
    }

    /// Builds a selection of messages.
    ///
    /// # Errors
    /// The predicate is invalid, or the exchange whose properties it uses is not given or does not run.
    pub fn selection(&self, filter: MessageFilter, when: Option<&Filter>) -> Result<MessageSelection, OperateError> {
        let Some(when) = when else { return Ok(MessageSelection { filter, when: None }) };
        let wrong = |message: &str| OperateError::Invalid(vec![Problem::at("when", message)]);
        let exchange =
            filter.exchange.as_ref().ok_or_else(|| wrong("goes with `exchange`, whose properties it asks"))?;
        let running = self.running(exchange)?;
        let compiled = compile_for_messages(when, &running.compiled.fields);
        let compiled = compiled.map_err(|problems| {
            let here = |problem: Problem| Problem { path: "when".to_owned(), ..problem };
            OperateError::Invalid(problems.into_iter().map(here).collect())
        })?;
        Ok(MessageSelection { filter, when: Some((running, compiled)) })
    }

    /// The next page of a selection, newest first, with the cursor behind it; `None` at the end.
    pub(crate) async fn step(
        &self,
        selection: &MessageSelection,
        standing: MessageStatus,
        before: Option<MessageId>,
    ) -> Result<Option<(Vec<StoredMessage>, MessageId)>, StoreError> {
        let filter = MessageFilter { standing: Some(standing), ..selection.filter.clone() };
        let mut found = self.parts.spool.messages(filter, before, STEP).await?;
        let Some(last) = found.last().map(|last| last.id) else { return Ok(None) };
        found.retain(|stored| selection.takes(stored));
        Ok(Some((found, last)))
    }

    /// Resumes suspended messages. Unroutable messages are routed again; failed legs are sent again with a fresh retry
    /// schedule, whatever the state of their port.
    ///
    /// # Errors
    /// The store is unavailable; earlier changes remain.
    pub async fn resume(
        self: &Arc<Self>,
        selection: impl Into<MessageSelection>,
        by: &str,
    ) -> Result<AffectedCounts, StoreError> {
        let (exchanges, selection, by) = (self.clone(), selection.into(), by.to_owned());
        self.run_to_completion(async move {
            let acted = exchanges.resume_all(&selection, &by).await;
            // Messages that were resumed before an error are dispatched too.
            exchanges.refill_all_queues();
            acted
        })
        .await
    }

    async fn resume_all(&self, selection: &MessageSelection, by: &str) -> Result<AffectedCounts, StoreError> {
        let mut acted = AffectedCounts::default();
        let mut before = None;
        while let Some((found, last)) = self.step(selection, MessageStatus::Suspended, before).await? {
            before = Some(last);
            let now = self.parts.clock.now();
            for stored in found.iter().filter(|stored| stored.suspended.is_some()) {
                let routed = self.reroute(stored, by).await?;
                acted.messages += u64::from(routed > 0);
                acted.legs += routed;
            }
            let mut legs = Vec::new();
            for stored in found.iter().filter(|stored| stored.suspended.is_none()) {
                let running = self.find(&stored.exchange);
                let is_stray =
                    |leg: &Leg| running.as_ref().is_some_and(|running| !running.send_queues.contains_key(&leg.port));
                let suspended = stored.legs.iter().filter(|leg| leg.state == LegState::Suspended);
                let (strays, others): (Vec<&Leg>, Vec<&Leg>) = suspended.partition(|leg| is_stray(leg));
                let routed = match &running {
                    Some(running) if !strays.is_empty() => {
                        self.reroute_orphaned_legs(running, stored, &strays, by).await?
                    }
                    _ => 0,
                };
                acted.messages += u64::from(routed > 0 && others.is_empty());
                acted.legs += routed;
                legs.extend(others.iter().map(|leg| (stored.id, leg.number)));
            }
            let resumed = self.parts.spool.resume_legs(legs, by, now).await?;
            acted.messages += resumed.messages;
            acted.legs += resumed.legs;
        }
        Ok(acted)
    }

    /// Routes an unroutable message again. Returns the number of its legs.
    async fn reroute(&self, stored: &StoredMessage, by: &str) -> Result<u64, StoreError> {
        let Some(running) = self.find(&stored.exchange) else { return Ok(0) };
        if stored.head.raw {
            return self.reprocess(&running, stored, by).await;
        }
        let bytes = usize::try_from(stored.bytes).unwrap_or(usize::MAX);
        let (mut head, partition) = (stored.head.clone(), self.parts.spool.partition_of(stored.id));
        let RoutingResult { legs, answers } =
            self.route(&running, (&stored.port, stored.kind), &mut head, bytes, partition).await?;
        if answers.is_some() {
            let Some(body) = self.parts.spool.body(stored.id).await? else { return Ok(0) };
            let reply = ReprocessedMessage::One { head: Box::new(head), body, answers, legs };
            return self.store_reprocessed(&running, stored, reply, by).await;
        }
        let many = legs.as_ref().map_or(0, Vec::len) as u64;
        self.parts.spool.reroute(stored.id, legs, by, self.parts.clock.now()).await?;
        Ok(many)
    }

    /// Replaces legs to removed send ports: routes the message again, to send ports that it did not have before.
    /// Returns the number of new legs.
    async fn reroute_orphaned_legs(
        &self,
        running: &RunningExchange,
        stored: &StoredMessage,
        strays: &[&Leg],
        by: &str,
    ) -> Result<u64, StoreError> {
        let bytes = usize::try_from(stored.bytes).unwrap_or(usize::MAX);
        let had = |port: &Name| stored.legs.iter().any(|leg| leg.port == *port && leg.state != LegState::Ended);
        // A completed request needs no further reply.
        let is_over = stored.ending.is_some();
        let is_wanted = |leg: &NewLeg| !(had(&leg.port) || leg.replies && is_over);
        let legs = running.legs(&stored.port, stored.kind, &stored.head, bytes);
        let legs = legs.map(|legs| legs.into_iter().filter(is_wanted).collect::<Vec<NewLeg>>());
        let legs = match legs {
            Ok(legs) if legs.is_empty() => Err("no route leads it to another send port".to_owned()),
            legs => legs,
        };
        let port = &strays[0].port;
        let legs = legs.map_err(|why| format!("the send port `{port}` does not exist any more; {why}"));
        let strays = strays.iter().map(|leg| leg.number).collect();
        self.parts.spool.replace_legs(&stored.exchange, stored.id, strays, legs, by, self.parts.clock.now()).await
    }

    /// Runs the receive pipeline again for a message that failed in it. Returns the number of new legs.
    async fn reprocess(&self, running: &RunningExchange, stored: &StoredMessage, by: &str) -> Result<u64, StoreError> {
        let Some(body) = self.parts.spool.body(stored.id).await? else { return Ok(0) };
        let Head { content_type, headers, trace, .. } = stored.head.clone();
        let raw = PipelineMessage { content_type, headers, body: body.clone(), trace, ..PipelineMessage::default() };
        let whole = NewMessage {
            id: stored.id,
            exchange: stored.exchange.clone(),
            port: stored.port.clone(),
            kind: stored.kind,
            answers: stored.answers,
            settles: None,
            part_of: stored.part_of,
            key: None,
            sender: stored.sender.clone(),
            head: stored.head.clone(),
            body,
            legs: Vec::new(),
            suspended: None,
            accepted_at: self.parts.clock.now(),
            expires_at: stored.expires_at,
            kept: running.compiled.definition.retention,
        };
        let reworked = match self.work(running, &whole, &raw).await {
            Ok(PipelineOutput::One(head, body, RoutingResult { legs, answers })) => {
                ReprocessedMessage::One { head: Box::new(head), body, answers, legs }
            }
            Ok(PipelineOutput::Parts(parts)) => ReprocessedMessage::Parts(parts),
            Ok(PipelineOutput::Gathered(head, body, gather)) => {
                ReprocessedMessage::Gathered { head: Box::new(head), body, gather }
            }
            Err(step_error) => ReprocessedMessage::Stuck(step_error),
        };
        self.store_reprocessed(running, stored, reworked, by).await
    }

    /// Stores the result of processing a suspended message again, and notifies callers. Returns the number of new legs.
    async fn store_reprocessed(
        &self,
        running: &RunningExchange,
        stored: &StoredMessage,
        reworked: ReprocessedMessage,
        by: &str,
    ) -> Result<u64, StoreError> {
        let legs = match &reworked {
            // The reply to a request has no legs; it goes to the waiting caller.
            ReprocessedMessage::One { legs, answers, .. } => {
                legs.as_ref().map_or(0, |legs| legs.len().max(answers.iter().len()))
            }
            ReprocessedMessage::Parts(parts) => {
                parts.iter().map(|part| part.legs.len().max(part.settles.iter().len())).sum()
            }
            // It waits for aggregation, which counts as progress.
            ReprocessedMessage::Gathered { .. } => 1,
            ReprocessedMessage::Stuck(_) => 0,
        };
        match &reworked {
            ReprocessedMessage::One { head, .. } | ReprocessedMessage::Gathered { head, .. } => {
                self.index_properties(running, stored.id, head, stored.accepted_at)
            }
            ReprocessedMessage::Parts(parts) => {
                parts.iter().for_each(|part| self.index_properties(running, part.id, &part.head, part.accepted_at));
            }
            ReprocessedMessage::Stuck(_) => {}
        }
        let answered: Vec<MessageId> = match &reworked {
            ReprocessedMessage::One { answers, .. } => answers.iter().map(|(request, _)| *request).collect(),
            ReprocessedMessage::Parts(parts) => {
                parts.iter().filter(|part| part.settles.is_some()).filter_map(|part| part.answers).collect()
            }
            ReprocessedMessage::Gathered { .. } | ReprocessedMessage::Stuck(_) => Vec::new(),
        };
        let now = self.parts.clock.now();
        self.parts.spool.rework(&stored.exchange, stored.id, reworked, by, now).await?;
        answered.into_iter().for_each(|request| self.reply_waiters.answer(request, ReplyNotice::None));
        self.aggregation_alarm.expect(now);
        Ok(legs as u64)
    }

    /// Cancels open or suspended messages: nothing more of them is sent.
    ///
    /// # Errors
    /// The store is unavailable; earlier changes remain.
    pub async fn end(
        self: &Arc<Self>,
        selection: impl Into<MessageSelection>,
        by: &str,
    ) -> Result<AffectedCounts, StoreError> {
        let (exchanges, selection, by) = (self.clone(), selection.into(), by.to_owned());
        self.run_to_completion(async move {
            let acted = exchanges.end_all(&selection, &by).await;
            // Later messages of their ordering keys may have waited for them.
            exchanges.refill_all_queues();
            acted
        })
        .await
    }

    async fn end_all(&self, selection: &MessageSelection, by: &str) -> Result<AffectedCounts, StoreError> {
        let standing = selection.filter.standing.unwrap_or(MessageStatus::Suspended);
        let mut acted = AffectedCounts::default();
        let mut before = None;
        while let Some((found, last)) = self.step(selection, standing, before).await? {
            before = Some(last);
            let ids: Vec<MessageId> = found.iter().map(|stored| stored.id).collect();
            let ended = self.parts.spool.end(ids.clone(), by, self.parts.clock.now()).await?;
            acted.messages += ended.messages;
            acted.legs += ended.legs;
            self.remove_cancelled(&ids);
            ids.iter().for_each(|id| self.reply_waiters.answer(*id, ReplyNotice::None));
        }
        Ok(acted)
    }

    /// Removes cancelled messages from the memory of all send queues.
    fn remove_cancelled(&self, ended: &[MessageId]) {
        let ended: HashSet<MessageId> = ended.iter().copied().collect();
        for running in self.running.read().values() {
            running
                .send_queues
                .values()
                .chain(running.leaving.values())
                .for_each(|send_queue| send_queue.remove_cancelled(&ended));
        }
    }

    /// Makes all send queues read the spool.
    fn refill_all_queues(&self) {
        for running in self.running.read().values() {
            running.send_queues.values().for_each(SendQueue::refill_from_spool);
        }
    }
}
