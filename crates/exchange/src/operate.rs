//! What operators do: definitions, the states of ports, and messages that are suspended.

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
        Acted, Head, HistoryEntry, Leg, LegState, MessageFilter, NewLeg, NewMessage, Reworked, SpoolCounts, Standing,
        StoredExchange, StoredMessage,
    },
};

use crate::{
    Exchanges, Running, callers::Answer, compile::Compiled, flow::Flow, lane::Lane, later::Routed,
    meters::ReceiveMeters, pipeline::Parcel, promote, receive::Worked, track::Tracks,
};

/// Messages that one step of a bulk act looks at.
const STEP: usize = 500;

/// Why an operator's act was not done.
#[derive(Debug, thiserror::Error)]
pub enum OperateError {
    /// There is no such thing.
    #[error("{0} does not exist")]
    Missing(String),
    /// This is wrong with the definition.
    #[error("the definition has problems")]
    Invalid(Vec<Problem>),
    /// Messages of the exchange are open: end them first, or let them finish.
    #[error("the exchange `{0}` has open messages")]
    InUse(Name),
    /// The store does not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A send port, as it is at this moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortLoad {
    /// Its name.
    pub port: Name,
    /// Whether it sends.
    pub state: PortState,
    /// Whether an operator has set that, against the definition.
    pub is_set: bool,
    /// Legs that are under way.
    pub under_way: u32,
    /// Legs that are ready in memory. More may wait in the spool.
    pub ready: usize,
    /// When its service window opens, if it is closed.
    pub opens_at: Option<Timestamp>,
}

/// Which messages: those of a filter that meet a predicate, too.
#[derive(Clone)]
pub struct Choice {
    filter: MessageFilter,
    when: Option<(Arc<Running>, CompiledFilter)>,
}

impl From<MessageFilter> for Choice {
    fn from(filter: MessageFilter) -> Choice {
        Choice { filter, when: None }
    }
}

impl Choice {
    fn takes(&self, stored: &StoredMessage) -> bool {
        let Some((running, when)) = &self.when else { return true };
        let bytes = usize::try_from(stored.bytes).unwrap_or(usize::MAX);
        let row = promote::row(&running.compiled, &stored.port, stored.kind, &stored.head, bytes);
        // A predicate that cannot be answered for a message does not choose it.
        when.holds(&row).unwrap_or(false)
    }
}

impl Exchanges {
    /// The definitions that are stored, each with whether it runs.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn stored(&self) -> Result<Vec<(StoredExchange, bool)>, StoreError> {
        let stored = self.parts.spool.exchanges().await?;
        let runs =
            |stored: &StoredExchange| self.find(&stored.name).is_some_and(|running| running.version == stored.version);
        Ok(stored.into_iter().map(|stored| (runs(&stored), stored)).map(|(runs, stored)| (stored, runs)).collect())
    }

    /// Stores a definition and runs it from now on. What is under way goes on as it began; what waits takes the new way.
    ///
    /// # Errors
    /// Nothing was changed.
    pub async fn apply(self: &Arc<Self>, text: &str, author: &str) -> Result<StoredExchange, OperateError> {
        let compiled = self.compile(text).map_err(OperateError::Invalid)?;
        let (exchanges, text, author) = (self.clone(), text.to_owned(), author.to_owned());
        self.to_the_end(async move {
            let _one = exchanges.applying.lock().await;
            let (name, now) = (compiled.definition.name.clone(), exchanges.parts.clock.now());
            let stored = exchanges.parts.spool.put_exchange(name, text, author, now).await?;
            exchanges.run(compiled, stored.version).await?;
            Ok(stored)
        })
        .await
    }

    /// Does something that must not stop in the middle when whoever asked for it is gone.
    pub(crate) async fn to_the_end<T: Send + 'static>(&self, act: impl Future<Output = T> + Send + 'static) -> T {
        match self.tasks.spawn(act).await {
            Ok(done) => done,
            Err(broken) => std::panic::resume_unwind(broken.into_panic()),
        }
    }

    /// Lets a definition take the place of the one before it.
    pub(crate) async fn run(self: &Arc<Self>, compiled: Compiled, version: u32) -> Result<(), StoreError> {
        let name = compiled.definition.name.clone();
        let set: BTreeMap<Name, PortState> = self.set_ports(&name).await?;
        let before = self.find(&name);
        let mut lanes = BTreeMap::new();
        for (port, way) in &compiled.ways {
            let state = set.get(port).copied().unwrap_or(way.definition.state);
            let known = before.as_ref().and_then(|before| before.lanes.get(port).or(before.leaving.get(port)).cloned());
            let lane = known.unwrap_or_else(|| {
                Lane::new(name.clone(), port.clone(), way.clone(), PortState::Hold, Arc::downgrade(self))
            });
            lanes.insert(port.clone(), (lane, way.clone(), state));
        }
        let flow = before.as_ref().map_or_else(|| Flow::new(name.clone()), |before| before.flow.clone());
        let rates = self.parts.spool.rates().await?;
        let leaving = before.iter().flat_map(|before| {
            let still = before.leaving.iter().filter(|(_, lane)| lane.load().0 > 0);
            before.lanes.iter().chain(still).filter(|(port, _)| !lanes.contains_key(*port))
        });
        let running = Arc::new(Running {
            flow,
            tracks: parking_lot::RwLock::new(Arc::new(Tracks::new(&compiled, &self.tracker.switches.read()))),
            leaving: leaving.map(|(port, lane)| (port.clone(), lane.clone())).collect(),
            lanes: lanes.iter().map(|(port, (lane, ..))| (port.clone(), lane.clone())).collect(),
            meters: ReceiveMeters::of_all(&compiled.definition),
            compiled: Arc::new(compiled),
            version,
        });
        let mut all = BTreeMap::clone(&self.running.read());
        all.insert(name, running.clone());
        *self.running.write() = Arc::new(all);
        for set in rates.into_iter().filter(|set| set.exchange == running.compiled.definition.name) {
            running.take_rate(set.side, set.port, Some(set.rate));
        }
        self.watch.wake();
        self.gatherings.expect(self.parts.clock.now());
        // Only now: what is sent looks for its exchange.
        for (lane, way, state) in lanes.into_values() {
            lane.change(way, state);
        }
        self.tasks.spawn(self.clone().catch_up(running.clone()));
        self.locations.change(self, &running.compiled.definition).await;
        running.leaving.values().for_each(|lane| lane.change(lane.way(), PortState::Off));
        self.suspend_strays(&running).await;
        Ok(())
    }

    /// Suspends what waits for send ports that are not there any more. What is under way in them goes on.
    async fn suspend_strays(&self, running: &Running) {
        let name = &running.compiled.definition.name;
        let known: Arc<[Name]> = running.lanes.keys().cloned().collect();
        let under_way = Arc::new(running.leaving.values().flat_map(|lane| lane.under_way()).collect());
        loop {
            match self
                .parts
                .spool
                .suspend_strays(name, known.clone(), Arc::clone(&under_way), STEP, self.parts.clock.now())
                .await
            {
                Ok(suspended) if suspended.is_empty() => return,
                Ok(suspended) => {
                    let count = suspended.len();
                    tracing::warn!(exchange = %name, count, "messages to send ports that do not exist are suspended");
                    suspended.into_iter().for_each(|id| self.callers.answer(id, Answer::None));
                }
                Err(error) => {
                    return tracing::error!(exchange = %name, %error, "messages to former send ports still wait");
                }
            }
        }
    }

    /// Does so in all exchanges: some are tried again, or were routed before the definition changed, and stored after it.
    pub(crate) async fn suspend_all_strays(&self) {
        // Whoever applies a definition does it too.
        let Ok(_one) = self.applying.try_lock() else { return };
        let all = self.running.read().clone();
        for running in all.values() {
            self.suspend_strays(running).await;
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
        self.to_the_end(async move { exchanges.remove_whole(&name).await }).await
    }

    async fn remove_whole(self: &Arc<Self>, name: &Name) -> Result<(), OperateError> {
        let _one = self.applying.lock().await;
        // Before it is looked at: what they take would be open.
        self.locations.stop(name).await;
        let open =
            MessageFilter { exchange: Some(name.clone()), standing: Some(Standing::Open), ..MessageFilter::default() };
        if !self.parts.spool.messages(open, None, 1).await?.is_empty() {
            if let Some(running) = self.find(name) {
                self.locations.change(self, &running.compiled.definition).await;
            }
            return Err(OperateError::InUse(name.clone()));
        }
        let mut all = BTreeMap::clone(&self.running.read());
        if let Some(running) = all.remove(name) {
            *self.running.write() = Arc::new(all);
            running.lanes.values().for_each(|lane| lane.change(lane.way(), PortState::Off));
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
        let load = |(port, lane): (&Name, &Arc<Lane>)| {
            let (under_way, ready) = lane.load();
            let (state, opens_at) = (lane.state(), lane.opens_at(self.parts.clock.now()));
            PortLoad { port: port.clone(), state, is_set: set.contains_key(port), under_way, ready, opens_at }
        };
        Ok(running.lanes.iter().map(load).collect())
    }

    /// Sets the state of a send port, for restarts and new definitions as well; `None`: as the definition says.
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
        self.to_the_end(async move { exchanges.set_port_whole(&exchange, &port, state).await }).await
    }

    async fn set_port_whole(
        self: &Arc<Self>,
        exchange: &Name,
        port: &Name,
        state: Option<PortState>,
    ) -> Result<(), OperateError> {
        let running = self.running(exchange)?;
        let missing = || OperateError::Missing(format!("the send port `{port}` of `{exchange}`"));
        let lane = running.lanes.get(port).ok_or_else(missing)?;
        self.parts.spool.set_port(exchange.clone(), port.clone(), state).await?;
        let way = lane.way();
        let state = state.unwrap_or(way.definition.state);
        tracing::info!(%exchange, %port, %state, "the state of a send port was set");
        lane.change(way, state);
        Ok(())
    }

    pub(crate) fn running(&self, exchange: &Name) -> Result<Arc<Running>, OperateError> {
        self.find(exchange).ok_or_else(|| OperateError::Missing(format!("the exchange `{exchange}`")))
    }

    /// A message without its body.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn message(&self, id: MessageId) -> Result<Option<StoredMessage>, StoreError> {
        self.parts.spool.message(id).await
    }

    /// The history of a message, oldest first: attempts that failed, and what was done to it.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn history(&self, id: MessageId) -> Result<Vec<HistoryEntry>, StoreError> {
        self.parts.spool.history(id).await
    }

    /// The body of a message.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn body(&self, id: MessageId) -> Result<Option<Bytes>, StoreError> {
        self.parts.spool.body(id).await
    }

    /// Some messages, newest first.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn messages(
        &self,
        filter: MessageFilter,
        before: Option<MessageId>,
        limit: usize,
    ) -> Result<Vec<StoredMessage>, StoreError> {
        self.parts.spool.messages(filter, before, limit).await
    }

    /// How much there is.
    pub fn counts(&self) -> SpoolCounts {
        self.parts.spool.counts()
    }

    /// What chooses messages.
    ///
    /// # Errors
    /// The predicate is wrong, or the exchange to whose properties it belongs is not named or does not run.
    pub fn choice(&self, filter: MessageFilter, when: Option<&Filter>) -> Result<Choice, OperateError> {
        let Some(when) = when else { return Ok(Choice { filter, when: None }) };
        let wrong = |message: &str| OperateError::Invalid(vec![Problem::at("when", message)]);
        let exchange =
            filter.exchange.as_ref().ok_or_else(|| wrong("goes with `exchange`, whose properties it asks"))?;
        let running = self.running(exchange)?;
        let compiled = compile_for_messages(when, &running.compiled.fields);
        let compiled = compiled.map_err(|problems| {
            let here = |problem: Problem| Problem { path: "when".to_owned(), ..problem };
            OperateError::Invalid(problems.into_iter().map(here).collect())
        })?;
        Ok(Choice { filter, when: Some((running, compiled)) })
    }

    /// The next messages of a choice, newest first, and where the ones behind them begin; `None` at the end.
    pub(crate) async fn step(
        &self,
        choice: &Choice,
        standing: Standing,
        before: Option<MessageId>,
    ) -> Result<Option<(Vec<StoredMessage>, MessageId)>, StoreError> {
        let filter = MessageFilter { standing: Some(standing), ..choice.filter.clone() };
        let mut found = self.parts.spool.messages(filter, before, STEP).await?;
        let Some(last) = found.last().map(|last| last.id) else { return Ok(None) };
        found.retain(|stored| choice.takes(stored));
        Ok(Some((found, last)))
    }

    /// Lets suspended messages go on: what no route led anywhere is routed anew, what failed is sent again with a fresh
    /// schedule, whatever the state of its port.
    ///
    /// # Errors
    /// The store does not answer; what was done before stays.
    pub async fn resume(self: &Arc<Self>, choice: impl Into<Choice>, by: &str) -> Result<Acted, StoreError> {
        let (exchanges, choice, by) = (self.clone(), choice.into(), by.to_owned());
        self.to_the_end(async move {
            let acted = exchanges.resume_all(&choice, &by).await;
            // Also what was resumed before an error goes on.
            exchanges.look();
            acted
        })
        .await
    }

    async fn resume_all(&self, choice: &Choice, by: &str) -> Result<Acted, StoreError> {
        let mut acted = Acted::default();
        let mut before = None;
        while let Some((found, last)) = self.step(choice, Standing::Suspended, before).await? {
            before = Some(last);
            let now = self.parts.clock.now();
            for stored in found.iter().filter(|stored| stored.suspended.is_some()) {
                let routed = self.route_anew(stored, by).await?;
                acted.messages += u64::from(routed > 0);
                acted.legs += routed;
            }
            let mut legs = Vec::new();
            for stored in found.iter().filter(|stored| stored.suspended.is_none()) {
                let running = self.find(&stored.exchange);
                let is_stray =
                    |leg: &Leg| running.as_ref().is_some_and(|running| !running.lanes.contains_key(&leg.port));
                let suspended = stored.legs.iter().filter(|leg| leg.state == LegState::Suspended);
                let (strays, others): (Vec<&Leg>, Vec<&Leg>) = suspended.partition(|leg| is_stray(leg));
                let routed = match &running {
                    Some(running) if !strays.is_empty() => self.route_strays(running, stored, &strays, by).await?,
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

    /// Routes a message that went nowhere. Gives how many legs it has now.
    async fn route_anew(&self, stored: &StoredMessage, by: &str) -> Result<u64, StoreError> {
        let Some(running) = self.find(&stored.exchange) else { return Ok(0) };
        if stored.head.raw {
            return self.rework(&running, stored, by).await;
        }
        let bytes = usize::try_from(stored.bytes).unwrap_or(usize::MAX);
        let (mut head, partition) = (stored.head.clone(), self.parts.spool.partition_of(stored.id));
        let Routed { legs, answers } =
            self.route(&running, (&stored.port, stored.kind), &mut head, bytes, partition).await?;
        if answers.is_some() {
            let Some(body) = self.parts.spool.body(stored.id).await? else { return Ok(0) };
            let reply = Reworked::One { head: Box::new(head), body, answers, legs };
            return self.store_reworked(&running, stored, reply, by).await;
        }
        let many = legs.as_ref().map_or(0, Vec::len) as u64;
        self.parts.spool.route_anew(stored.id, legs, by, self.parts.clock.now()).await?;
        Ok(many)
    }

    /// Routes a message anew for its legs to send ports that are not there any more: to those that it did not have before.
    /// Gives how many legs came of it.
    async fn route_strays(
        &self,
        running: &Running,
        stored: &StoredMessage,
        strays: &[&Leg],
        by: &str,
    ) -> Result<u64, StoreError> {
        let bytes = usize::try_from(stored.bytes).unwrap_or(usize::MAX);
        let had = |port: &Name| stored.legs.iter().any(|leg| leg.port == *port && leg.state != LegState::Ended);
        // Of a request that is over nobody wants another answer.
        let is_over = stored.ending.is_some();
        let is_wanted = |leg: &NewLeg| !(had(&leg.port) || leg.replies && is_over);
        let legs = running.legs(&stored.port, stored.kind, &stored.head, bytes);
        let legs = legs.map(|legs| legs.into_iter().filter(is_wanted).collect::<Vec<NewLeg>>());
        let legs = match legs {
            Ok(legs) if legs.is_empty() => Err("no route leads it to another".to_owned()),
            legs => legs,
        };
        let port = &strays[0].port;
        let legs = legs.map_err(|why| format!("the send port `{port}` does not exist any more; {why}"));
        let strays = strays.iter().map(|leg| leg.number).collect();
        self.parts.spool.replace_legs(&stored.exchange, stored.id, strays, legs, by, self.parts.clock.now()).await
    }

    /// Does the steps of its port again to a message that did not get to their end. Gives how many legs came of it.
    async fn rework(&self, running: &Running, stored: &StoredMessage, by: &str) -> Result<u64, StoreError> {
        let Some(body) = self.parts.spool.body(stored.id).await? else { return Ok(0) };
        let Head { content_type, headers, trace, .. } = stored.head.clone();
        let raw = Parcel { content_type, headers, body: body.clone(), trace, ..Parcel::default() };
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
            Ok(Worked::One(head, body, Routed { legs, answers })) => {
                Reworked::One { head: Box::new(head), body, answers, legs }
            }
            Ok(Worked::Parts(parts)) => Reworked::Parts(parts),
            Ok(Worked::Gathered(head, body, gather)) => Reworked::Gathered { head: Box::new(head), body, gather },
            Err(stuck) => Reworked::Stuck(stuck),
        };
        self.store_reworked(running, stored, reworked, by).await
    }

    /// Stores what a suspended message became, and tells those who wait for it. Gives how many legs came of it.
    async fn store_reworked(
        &self,
        running: &Running,
        stored: &StoredMessage,
        reworked: Reworked,
        by: &str,
    ) -> Result<u64, StoreError> {
        let legs = match &reworked {
            // The reply to a request goes to nobody but who waits for it.
            Reworked::One { legs, answers, .. } => legs.as_ref().map_or(0, |legs| legs.len().max(answers.iter().len())),
            Reworked::Parts(parts) => parts.iter().map(|part| part.legs.len().max(part.settles.iter().len())).sum(),
            // It goes on, if not to a send port yet.
            Reworked::Gathered { .. } => 1,
            Reworked::Stuck(_) => 0,
        };
        match &reworked {
            Reworked::One { head, .. } | Reworked::Gathered { head, .. } => {
                self.let_be_found(running, stored.id, head, stored.accepted_at)
            }
            Reworked::Parts(parts) => {
                parts.iter().for_each(|part| self.let_be_found(running, part.id, &part.head, part.accepted_at));
            }
            Reworked::Stuck(_) => {}
        }
        let answered: Vec<MessageId> = match &reworked {
            Reworked::One { answers, .. } => answers.iter().map(|(request, _)| *request).collect(),
            Reworked::Parts(parts) => {
                parts.iter().filter(|part| part.settles.is_some()).filter_map(|part| part.answers).collect()
            }
            Reworked::Gathered { .. } | Reworked::Stuck(_) => Vec::new(),
        };
        let now = self.parts.clock.now();
        self.parts.spool.rework(&stored.exchange, stored.id, reworked, by, now).await?;
        answered.into_iter().for_each(|request| self.callers.answer(request, Answer::None));
        self.gatherings.expect(now);
        Ok(legs as u64)
    }

    /// Ends messages that are open or suspended: nothing more of them leaves.
    ///
    /// # Errors
    /// The store does not answer; what was done before stays.
    pub async fn end(self: &Arc<Self>, choice: impl Into<Choice>, by: &str) -> Result<Acted, StoreError> {
        let (exchanges, choice, by) = (self.clone(), choice.into(), by.to_owned());
        self.to_the_end(async move {
            let acted = exchanges.end_all(&choice, &by).await;
            // Others of their keys may have waited for them.
            exchanges.look();
            acted
        })
        .await
    }

    async fn end_all(&self, choice: &Choice, by: &str) -> Result<Acted, StoreError> {
        let standing = choice.filter.standing.unwrap_or(Standing::Suspended);
        let mut acted = Acted::default();
        let mut before = None;
        while let Some((found, last)) = self.step(choice, standing, before).await? {
            before = Some(last);
            let ids: Vec<MessageId> = found.iter().map(|stored| stored.id).collect();
            let ended = self.parts.spool.end(ids.clone(), by, self.parts.clock.now()).await?;
            acted.messages += ended.messages;
            acted.legs += ended.legs;
            self.forget(&ids);
            ids.iter().for_each(|id| self.callers.answer(*id, Answer::None));
        }
        Ok(acted)
    }

    /// Takes what ended out of the memory of all send ports.
    fn forget(&self, ended: &[MessageId]) {
        let ended: HashSet<MessageId> = ended.iter().copied().collect();
        for running in self.running.read().values() {
            running.lanes.values().chain(running.leaving.values()).for_each(|lane| lane.forget(&ended));
        }
    }

    /// Lets all send ports look into the spool.
    fn look(&self) {
        for running in self.running.read().values() {
            running.lanes.values().for_each(Lane::look);
        }
    }
}
