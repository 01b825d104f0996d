//! Operator actions: ports, locations, and suspended messages.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use tocsin_matching::filter::{CompiledFilter, compile_for_messages};
use tocsin_model::{
    exchange::PortState,
    filter::Filter,
    id::{MessageId, Name},
    problem::{Code, Problem},
    time::Timestamp,
};
use tocsin_store::{
    audit,
    bounded_scan::ScanPage,
    error::StoreError,
    spool::{
        AffectedCounts, Head, HistoryEntry, Leg, LegState, MessageFilter, MessageStatus, NewLeg, NewMessage,
        ReprocessedMessage, SpoolCounts, StoredMessage, WaitingLegs,
    },
};

use crate::{
    core::Core,
    dispatch::Dispatch,
    error::OperateError,
    intake::WaitingMessages,
    locations::{LocationStatus, Locations},
    message::PipelineMessage,
    process::{self, PipelineOutput},
    promote,
    receive::Intake,
    reply_correlation::{self, RoutingResult},
    reply_waiters::ReplyNotice,
    running::RunningExchange,
    send_port::SendPort,
};

/// Messages per step of a bulk action.
const STEP: usize = 500;

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
        let row = promote::row(&running.compiled.schema, &stored.port, stored.kind, &stored.head, bytes);
        // A predicate that cannot be evaluated does not select the message.
        when.holds(&row).unwrap_or(false)
    }
}

/// Actions of operators on all exchanges.
pub struct Operations {
    pub(crate) core: Arc<Core>,
    pub(crate) dispatch: Arc<Dispatch>,
    pub(crate) intake: Arc<Intake>,
    pub(crate) locations: Locations,
    /// Held while a definition changes, so that changes are serialized.
    pub(crate) applying: tokio::sync::Mutex<()>,
    /// The exchanges that could not be started, each with the reason, until they are applied or removed.
    pub(crate) failed: parking_lot::Mutex<BTreeMap<Name, String>>,
}

impl Operations {
    /// The exchanges that could not be started, each with the reason.
    pub fn failed_exchanges(&self) -> Vec<(Name, String)> {
        self.failed.lock().iter().map(|(name, reason)| (name.clone(), reason.clone())).collect()
    }

    /// Runs an action to completion even if the caller disconnects.
    pub(crate) async fn run_to_completion<T: Send + 'static>(
        &self,
        act: impl Future<Output = T> + Send + 'static,
    ) -> T {
        match self.core.tasks.spawn(audit::inherit(act)).await {
            Ok(done) => done,
            Err(broken) => std::panic::resume_unwind(broken.into_panic()),
        }
    }

    /// The send ports of an exchange.
    ///
    /// # Errors
    /// There is no such exchange.
    pub async fn ports(&self, exchange: &Name) -> Result<Vec<PortLoad>, OperateError> {
        let running = self.running(exchange)?;
        let set = self.operator_states(exchange).await?;
        let load = |(port, send_port): (&Name, &Arc<SendPort>)| {
            let (under_way, ready) = send_port.load();
            let (state, opens_at) = (send_port.state(), send_port.opens_at(self.core.now()));
            PortLoad { port: port.clone(), state, is_set: set.contains_key(port), under_way, ready, opens_at }
        };
        Ok(running.send_ports.iter().map(load).collect())
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
        let (operations, exchange, port) = (self.clone(), exchange.clone(), port.clone());
        self.run_to_completion(async move { operations.set_port_now(&exchange, &port, state).await }).await
    }

    async fn set_port_now(
        self: &Arc<Self>,
        exchange: &Name,
        port: &Name,
        state: Option<PortState>,
    ) -> Result<(), OperateError> {
        let running = self.running(exchange)?;
        let missing = || OperateError::Missing(format!("the send port `{port}` of `{exchange}`"));
        let send_port = running.send_ports.get(port).ok_or_else(missing)?;
        self.core.parts.spool.set_port(exchange.clone(), port.clone(), state).await?;
        let compiled = send_port.compiled();
        let state = state.unwrap_or(compiled.definition.state);
        tracing::info!(%exchange, %port, %state, "the state of a send port was set");
        self.dispatch.configure(send_port, compiled, state);
        Ok(())
    }

    pub(crate) fn running(&self, exchange: &Name) -> Result<Arc<RunningExchange>, OperateError> {
        self.core.find(exchange).ok_or_else(|| match self.failed.lock().contains_key(exchange) {
            true => OperateError::NotRunning(exchange.clone()),
            false => OperateError::Missing(format!("the exchange `{exchange}`")),
        })
    }

    /// A message without its body.
    ///
    /// # Errors
    /// The store is unavailable.
    pub async fn message(&self, id: MessageId) -> Result<Option<StoredMessage>, StoreError> {
        self.core.parts.spool.message(id).await
    }

    /// The history of a message, oldest first: failed attempts and operator actions.
    ///
    /// # Errors
    /// The store is unavailable.
    pub async fn history(&self, id: MessageId) -> Result<Vec<HistoryEntry>, StoreError> {
        self.core.parts.spool.history(id).await
    }

    /// The body of a message.
    ///
    /// # Errors
    /// The store is unavailable.
    pub async fn body(&self, id: MessageId) -> Result<Option<Bytes>, StoreError> {
        self.core.parts.spool.body(id).await
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
        self.core.parts.spool.messages(filter, before, limit).await
    }

    /// A page of messages, as [`SqliteSpool::page`](tocsin_store::sqlite::spool::SqliteSpool::page) reads it.
    ///
    /// # Errors
    /// The store is unavailable.
    pub async fn message_page(
        &self,
        filter: MessageFilter,
        before: Option<MessageId>,
        limit: usize,
    ) -> Result<ScanPage<StoredMessage, MessageId>, StoreError> {
        self.core.parts.spool.page(filter, before, limit).await
    }

    /// Number of suspended messages; the count ends at `limit` in each partition, as [`Spool::suspended`] says.
    ///
    /// [`Spool::suspended`]: tocsin_store::sqlite::Spool::suspended
    ///
    /// # Errors
    /// The store is unavailable.
    pub async fn suspended(&self, limit: u64) -> Result<u64, StoreError> {
        self.core.parts.spool.suspended(limit).await
    }

    /// Counters of the spool.
    pub fn counts(&self) -> SpoolCounts {
        self.core.parts.spool.counts()
    }

    /// Builds a selection of messages.
    ///
    /// # Errors
    /// The predicate is invalid, or the exchange whose properties it uses is not given or does not run.
    pub fn selection(&self, filter: MessageFilter, when: Option<&Filter>) -> Result<MessageSelection, OperateError> {
        let Some(when) = when else { return Ok(MessageSelection { filter, when: None }) };
        let exchange = filter.exchange.as_ref().ok_or_else(|| {
            let message = "goes with `exchange`, whose properties it asks";
            OperateError::Invalid(vec![
                Problem::new(Code::MissingCounterpart, "when", message).param("with", "exchange"),
            ])
        })?;
        let running = self.running(exchange)?;
        let compiled = compile_for_messages(when, &running.compiled.schema.fields);
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
        let mut found = self.core.parts.spool.messages(filter, before, STEP).await?;
        let Some(last) = found.last().map(|last| last.id) else { return Ok(None) };
        found.retain(|stored| selection.takes(stored));
        Ok(Some((found, last)))
    }

    /// Counts the messages that a resumption would change, with their suspended legs.
    ///
    /// # Errors
    /// The store is unavailable.
    pub async fn count_resumable(&self, selection: &MessageSelection) -> Result<AffectedCounts, StoreError> {
        let is_resumed = |leg: &Leg| leg.state == LegState::Suspended;
        self.count(selection, MessageStatus::Suspended, is_resumed).await
    }

    /// Counts the messages that would be ended, with their unfinished legs.
    ///
    /// # Errors
    /// The store is unavailable.
    pub async fn count_endable(&self, selection: &MessageSelection) -> Result<AffectedCounts, StoreError> {
        let standing = selection.filter.standing.unwrap_or(MessageStatus::Suspended);
        let is_ended = |leg: &Leg| !matches!(leg.state, LegState::Done | LegState::Ended);
        self.count(selection, standing, is_ended).await
    }

    async fn count(
        &self,
        selection: &MessageSelection,
        standing: MessageStatus,
        affected: impl Fn(&Leg) -> bool,
    ) -> Result<AffectedCounts, StoreError> {
        let mut counts = AffectedCounts::default();
        let mut before = None;
        while let Some((found, last)) = self.step(selection, standing, before).await? {
            before = Some(last);
            counts.messages += found.len() as u64;
            counts.legs += found.iter().flat_map(|stored| &stored.legs).filter(|leg| affected(leg)).count() as u64;
        }
        Ok(counts)
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
        let (operations, selection, by) = (self.clone(), selection.into(), by.to_owned());
        self.run_to_completion(async move {
            let acted = operations.resume_all(&selection, &by).await;
            // Messages that were resumed before an error are dispatched too.
            operations.dispatch.refill_all();
            acted
        })
        .await
    }

    async fn resume_all(&self, selection: &MessageSelection, by: &str) -> Result<AffectedCounts, StoreError> {
        let mut acted = AffectedCounts::default();
        let mut before = None;
        while let Some((found, last)) = self.step(selection, MessageStatus::Suspended, before).await? {
            before = Some(last);
            let now = self.core.now();
            for stored in found.iter().filter(|stored| stored.suspended.is_some()) {
                let routed = self.reroute(stored, by).await?;
                acted.messages += u64::from(routed > 0);
                acted.legs += routed;
            }
            let mut legs = Vec::new();
            for stored in found.iter().filter(|stored| stored.suspended.is_none()) {
                let running = self.core.find(&stored.exchange);
                let is_stray =
                    |leg: &Leg| running.as_ref().is_some_and(|running| !running.send_ports.contains_key(&leg.port));
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
            let resumed = self.core.parts.spool.resume_legs(legs, by, now).await?;
            acted.messages += resumed.messages;
            acted.legs += resumed.legs;
        }
        Ok(acted)
    }

    /// Routes an unroutable message again. Returns the number of its legs.
    async fn reroute(&self, stored: &StoredMessage, by: &str) -> Result<u64, StoreError> {
        let Some(running) = self.core.find(&stored.exchange) else { return Ok(0) };
        if stored.head.raw {
            return self.reprocess(&running, stored, by).await;
        }
        let bytes = usize::try_from(stored.bytes).unwrap_or(usize::MAX);
        let (mut head, partition) = (stored.head.clone(), self.core.parts.spool.partition_of(stored.id));
        let RoutingResult { legs, answers } =
            reply_correlation::route(&self.core, &running, (&stored.port, stored.kind), &mut head, bytes, partition)
                .await?;
        if answers.is_some() {
            let Some(body) = self.core.parts.spool.body(stored.id).await? else { return Ok(0) };
            let reply = ReprocessedMessage::One { head: Box::new(head), body, answers, legs };
            return self.store_reprocessed(&running, stored, reply, by).await;
        }
        let many = legs.as_ref().map_or(0, Vec::len) as u64;
        self.core.parts.spool.reroute(stored.id, legs, by, self.core.now()).await?;
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
        self.core.parts.spool.replace_legs(&stored.exchange, stored.id, strays, legs, by, self.core.now()).await
    }

    /// Runs the receive pipeline again for a message that failed in it. Returns the number of new legs.
    async fn reprocess(&self, running: &RunningExchange, stored: &StoredMessage, by: &str) -> Result<u64, StoreError> {
        let Some(body) = self.core.parts.spool.body(stored.id).await? else { return Ok(0) };
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
            accepted_at: self.core.now(),
            expires_at: stored.expires_at,
            kept: running.compiled.definition.retention,
        };
        let reworked = match process::apply(&self.core, running, &whole, &raw).await {
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
                self.core.index_properties(running, stored.id, head, stored.accepted_at)
            }
            ReprocessedMessage::Parts(parts) => {
                parts
                    .iter()
                    .for_each(|part| self.core.index_properties(running, part.id, &part.head, part.accepted_at));
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
        let now = self.core.now();
        self.core.parts.spool.rework(&stored.exchange, stored.id, reworked, by, now).await?;
        answered.into_iter().for_each(|request| self.core.reply_waiters.answer(request, ReplyNotice::None));
        self.core.aggregation_alarm.expect(now);
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
        let (operations, selection, by) = (self.clone(), selection.into(), by.to_owned());
        self.run_to_completion(async move {
            let acted = operations.end_all(&selection, &by).await;
            // Later messages of their ordering keys may have waited for them.
            operations.dispatch.refill_all();
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
            let ended = self.core.parts.spool.end(ids.clone(), by, self.core.now()).await?;
            acted.messages += ended.messages;
            acted.legs += ended.legs;
            self.dispatch.remove_cancelled(&ids);
            ids.iter().for_each(|id| self.core.reply_waiters.answer(*id, ReplyNotice::None));
        }
        Ok(acted)
    }

    /// The states of send ports that operators have set.
    pub(crate) async fn operator_states(&self, exchange: &Name) -> Result<BTreeMap<Name, PortState>, StoreError> {
        let set = self.core.parts.spool.set_ports().await?;
        Ok(set.into_iter().filter(|set| set.exchange == *exchange).map(|set| (set.port, set.state)).collect())
    }

    /// Counts the deliveries to send ports that are not finished. Suspended messages and awaited replies do not count.
    ///
    /// # Errors
    /// The spool does not answer.
    pub async fn waiting_messages(&self, now: Timestamp) -> Result<WaitingMessages, StoreError> {
        let mut waiting = WaitingMessages::default();
        for WaitingLegs { exchange, port, due, later, next } in self.core.parts.spool.waiting_legs(now).await? {
            let running = self.core.find(&exchange);
            let send_port = running.as_ref().and_then(|running| running.send_ports.get(&port));
            let Some(send_port) = send_port.filter(|port| port.state() == PortState::Active) else {
                waiting.held += due + later;
                continue;
            };
            waiting.later += later;
            waiting.next = waiting.next.into_iter().chain(next).min();
            match send_port.opens_at(now) {
                None => waiting.due += due,
                Some(opens_at) => {
                    waiting.later += due;
                    waiting.next = waiting.next.into_iter().chain((due > 0).then_some(opens_at)).min();
                }
            }
        }
        Ok(waiting)
    }

    /// The locations of an exchange, by port and name.
    ///
    /// # Errors
    /// There is no such exchange.
    pub fn locations(&self, exchange: &Name) -> Result<Vec<LocationStatus>, OperateError> {
        self.running(exchange)?;
        Ok(self.locations.of(exchange))
    }

    /// All locations.
    pub fn all_locations(&self) -> Vec<LocationStatus> {
        self.locations.all()
    }
}
