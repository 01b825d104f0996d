//! How fast messages come and leave, and why they are slowed down.
//!
//! Each reason has its word, which senders are told with the answer and operators with the state: receive ports refuse
//! before what is stored grows without end, so that senders wait with their messages, and not the messages with us. What is
//! slowed down and since when is looked at once a second while anything moves, and each change is kept in the spool.
//!
//! A far side that is slow makes its senders slow: who would wait longer than `flow.wait` is not taken. One that is dead
//! does not: for that time the spool is there, up to `open_messages`.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tocsin_delivery::Meter;
use tocsin_model::{
    application::Rate,
    exchange::{Exchange, FlowSide, ThrottleReason},
    id::Name,
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    spool::{SetRate, ThrottleChange},
};
use tokio::{sync::Notify, time::Instant};

use crate::{Exchanges, Running, operate::OperateError, receive::ReceiveError};

/// How often it is looked at while anything moves.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Looks at which something must hold where messages leave, and must not hold any more on both sides, so that no state
/// comes and goes with every burst.
const LOOKS: u8 = 3;
/// Legs of a port that are counted in the spool.
const COUNTED_MAX: u64 = 100_000;
/// Changes that wait to be stored; further ones are only logged.
const CHANGES_MAX: usize = 1_000;
/// How long a sender waits at least and at most before it tries again.
const RETRY_AFTER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// What is said where memory is short.
const MEMORY_SHORT: &str = "the server has about as much memory as it may";

/// The memory of the process.
#[derive(Clone)]
pub struct Memory {
    /// How much it has, if that is known.
    pub used: Arc<dyn Fn() -> Option<u64> + Send + Sync>,
    /// With more, receive ports refuse. 0: never.
    pub most: u64,
}

impl Default for Memory {
    fn default() -> Self {
        Memory { used: Arc::new(|| None), most: 0 }
    }
}

/// Something that is slowed down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Throttled {
    /// The exchange.
    pub exchange: Name,
    /// Where messages come in, or where they leave.
    pub side: FlowSide,
    /// The port for whose sake, if it is one.
    pub port: Option<Name>,
    /// Why.
    pub reason: ThrottleReason,
    /// Since when.
    pub since: Timestamp,
    /// In words.
    pub detail: String,
}

/// How an exchange flows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowReport {
    /// Messages whose senders wait for an answer.
    pub in_flight: usize,
    /// What is slowed down.
    pub throttled: Vec<Throttled>,
    /// Rates that an operator has set.
    pub rates: Vec<SetRate>,
    /// By send port: how many messages wait for it, and how long a new one would, where that is known.
    pub queues: Vec<(Name, u64, Option<Duration>)>,
}

/// What is looked at, for all exchanges.
#[derive(Default)]
pub(crate) struct Watch {
    /// Nothing moves, so that nobody looks.
    is_still: AtomicBool,
    moves: Notify,
    /// The process has about as much memory as it may.
    memory_is_short: AtomicBool,
}

impl Watch {
    /// Something moves: it is looked at from now on.
    pub fn wake(&self) {
        if self.is_still.swap(false, Ordering::AcqRel) {
            self.moves.notify_one();
        }
    }

    pub fn memory_is_short(&self) -> bool {
        self.memory_is_short.load(Ordering::Relaxed)
    }
}

/// The flow of one exchange. It outlives changes of the definition.
pub(crate) struct Flow {
    exchange: Name,
    in_flight: AtomicUsize,
    /// How fast messages may come: through all receive ports, and through some of them.
    meters: Mutex<BTreeMap<Option<Name>, (Rate, Meter)>>,
    states: Mutex<States>,
}

#[derive(Default)]
struct States {
    known: BTreeMap<(FlowSide, Option<Name>, ThrottleReason), State>,
    /// Not stored yet.
    changes: Vec<ThrottleChange>,
}

#[derive(Default)]
struct State {
    /// Since when, if it is.
    since: Option<Timestamp>,
    detail: String,
    /// Something was refused since the last look.
    is_hit: bool,
    /// Looks in a row that spoke for a change.
    looks: u8,
}

/// Why a message does not come in now.
pub(crate) struct Brake {
    /// As one word.
    pub code: ThrottleReason,
    /// In words.
    pub reason: String,
    /// When it may.
    pub retry_after: Duration,
}

/// A message whose sender waits. Over when this is dropped.
pub(crate) struct InFlight(Arc<Flow>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Flow {
    pub fn new(exchange: Name) -> Arc<Flow> {
        Arc::new(Flow { exchange, in_flight: AtomicUsize::new(0), meters: Mutex::default(), states: Mutex::default() })
    }

    /// Counts a message whose sender waits. `None` if there are as many as may be.
    fn enter(self: &Arc<Flow>, most: u32) -> Option<InFlight> {
        let entered = InFlight(self.clone());
        let before = self.in_flight.fetch_add(1, Ordering::AcqRel);
        (before < most as usize).then_some(entered)
    }

    /// Takes a message as far as the operator's rates go. Otherwise: the rate, and when one may come.
    fn meter(&self, port: &Name, now: Instant) -> Result<(), (Rate, Duration)> {
        let mut meters = self.meters.lock();
        let places = [None, Some(port.clone())];
        for place in &places {
            let Some((rate, meter)) = meters.get(place) else { continue };
            if rate.messages == 0 {
                return Err((*rate, RETRY_AFTER.1));
            }
            if let Some(at) = meter.wait(now) {
                return Err((*rate, at - now));
            }
        }
        for place in &places {
            if let Some((_, meter)) = meters.get_mut(place) {
                meter.count(now);
            }
        }
        Ok(())
    }

    pub fn set_rate(&self, port: Option<Name>, rate: Option<Rate>) {
        let mut meters = self.meters.lock();
        match rate {
            Some(rate) => meters.insert(port, (rate, Meter::new(rate))),
            None => meters.remove(&port),
        };
    }

    /// Something is refused or held up for this reason.
    pub fn hit(&self, side: FlowSide, port: Option<&Name>, reason: ThrottleReason, detail: String, now: Timestamp) {
        let mut states = self.states.lock();
        let state = states.known.entry((side, port.cloned(), reason)).or_default();
        (state.is_hit, state.looks) = (true, 0);
        if state.since.is_none() {
            self.change(&mut states, (side, port.cloned(), reason), Some(detail), now);
        }
    }

    /// Slows messages down that come.
    pub fn brake(
        &self,
        port: Option<&Name>,
        code: ThrottleReason,
        reason: String,
        retry_after: Duration,
        now: Timestamp,
    ) -> Brake {
        self.hit(FlowSide::Publishing, port, code, reason.clone(), now);
        Brake { code, reason, retry_after: retry_after.clamp(RETRY_AFTER.0, RETRY_AFTER.1) }
    }

    /// Whether a reason holds at a look, and in which words.
    fn look(&self, key: (FlowSide, Option<Name>, ThrottleReason), holds: Option<String>, now: Timestamp) {
        let mut states = self.states.lock();
        if holds.is_none() && !states.known.contains_key(&key) {
            return;
        }
        let state = states.known.entry(key.clone()).or_default();
        let is_on = state.since.is_some();
        let speaks_for_change = is_on != (holds.is_some() || std::mem::take(&mut state.is_hit));
        state.looks = if speaks_for_change { state.looks + 1 } else { 0 };
        if let (true, Some(detail)) = (is_on, &holds) {
            state.detail.clone_from(detail);
        }
        let enough = if !is_on && key.0 == FlowSide::Publishing { 1 } else { LOOKS };
        if state.looks >= enough {
            self.change(&mut states, key, holds, now);
        }
    }

    /// Begins with these words, or ends.
    fn change(
        &self,
        states: &mut States,
        key: (FlowSide, Option<Name>, ThrottleReason),
        detail: Option<String>,
        now: Timestamp,
    ) {
        let begins = detail.is_some();
        let state = states.known.entry(key.clone()).or_default();
        state.looks = 0;
        state.since = begins.then_some(now);
        if let Some(detail) = detail {
            state.detail = detail;
        }
        let detail = state.detail.clone();
        let (side, port, reason) = key;
        let exchange = self.exchange.clone();
        let name = port.as_ref().map(ToString::to_string).unwrap_or_default();
        let word = if begins { "begin" } else { "end" };
        tracing::warn!(%exchange, side = side.word(), port = name, %reason, detail, "messages {word} to be slowed down");
        let labels = [
            ("exchange", exchange.to_string()),
            ("side", side.word().to_owned()),
            ("port", name),
            ("reason", reason.word().to_owned()),
        ];
        metrics::gauge!("exchange_throttled", &labels).set(if begins { 1.0 } else { 0.0 });
        if states.changes.len() < CHANGES_MAX {
            states.changes.push(ThrottleChange { at: now, exchange, side, port, reason, begins, detail });
        }
        if !begins {
            states.known.retain(|_, state| state.since.is_some() || state.looks > 0);
        }
    }

    /// What is slowed down now.
    pub fn throttled(&self) -> Vec<Throttled> {
        let states = self.states.lock();
        let known = states.known.iter().filter_map(|((side, port, reason), state)| {
            let (exchange, port) = (self.exchange.clone(), port.clone());
            Some(Throttled {
                exchange,
                side: *side,
                port,
                reason: *reason,
                since: state.since?,
                detail: state.detail.clone(),
            })
        });
        known.collect()
    }

    fn is_still(&self) -> bool {
        let states = self.states.lock();
        self.in_flight.load(Ordering::Acquire) == 0 && states.known.is_empty() && states.changes.is_empty()
    }
}

impl Exchanges {
    /// Lets a message in whose sender waits, or says why not; before anything is done with it.
    pub(crate) fn let_in(&self, running: &Running, port: &Name, now: Timestamp) -> Result<InFlight, ReceiveError> {
        self.check_room(running, port, now).map_err(refuse)?;
        let (flow, most) = (&running.flow, running.compiled.definition.flow.in_flight_max);
        flow.enter(most).ok_or_else(|| {
            let text = format!("{most} senders wait for an answer, and `flow.in_flight` allows no more");
            refuse(flow.brake(None, ThrottleReason::InFlight, text, RETRY_AFTER.0, now))
        })
    }

    /// Whether a message may come through a port.
    pub(crate) fn check_room(&self, running: &Running, port: &Name, now: Timestamp) -> Result<(), Brake> {
        self.watch.wake();
        let (flow, definition) = (&running.flow, &running.compiled.definition);
        if let Err((rate, retry_after)) = flow.meter(port, Instant::now()) {
            return Err(flow.brake(None, ThrottleReason::Operator, lets_in(rate), retry_after, now));
        }
        if self.watch.memory_is_short() {
            return Err(flow.brake(None, ThrottleReason::Memory, MEMORY_SHORT.to_owned(), RETRY_AFTER.0 * 5, now));
        }
        match self.grown(definition) {
            Some(text) => Err(flow.brake(None, ThrottleReason::StoreGrowth, text, RETRY_AFTER.0, now)),
            None => Ok(()),
        }
    }

    /// Whether as many messages of an exchange are open as may be, in words.
    fn grown(&self, definition: &Exchange) -> Option<String> {
        let (open, most) = (self.parts.spool.open_of(&definition.name), definition.open_messages_max);
        (open >= most).then(|| format!("{open} messages are open, and `open_messages` allows {most}"))
    }

    /// Whether a message may go to these send ports: none of them has so much to do that it would wait for too long.
    pub(crate) fn check_queues<'a>(
        &self,
        running: &Running,
        ports: impl Iterator<Item = &'a Name>,
        now: Timestamp,
    ) -> Result<(), Brake> {
        let wait_max = running.compiled.definition.flow.wait_max;
        for port in ports {
            if let Some(lane) = running.lanes.get(port)
                && let Some(wait) = lane.too_long(wait_max, now)
            {
                let text = format!(
                    "a message would wait {} s for the send port `{port}`, and `flow.wait` allows {} s",
                    wait.as_secs(),
                    wait_max.as_secs()
                );
                let retry_after = wait.saturating_sub(wait_max.mul_f64(crate::lane::RELIEF));
                return Err(running.flow.brake(Some(port), ThrottleReason::RateImbalance, text, retry_after, now));
            }
        }
        Ok(())
    }

    /// Looks at all exchanges once. Gives whether nothing moves.
    pub(crate) async fn look_at_flow(&self) -> bool {
        let now = self.parts.clock.now();
        let Memory { used, most } = &self.parts.memory;
        let is_short = *most > 0 && used().is_some_and(|used| used > *most);
        self.watch.memory_is_short.store(is_short, Ordering::Relaxed);
        let is_full = self.parts.spool.check_room().err().map(|error| error.to_string());
        let all = self.running.read().clone();
        let mut is_still = true;
        for running in all.values() {
            is_still &= self.look_at(running, is_short, is_full.clone(), now).await;
        }
        is_still
    }

    async fn look_at(&self, running: &Running, is_short: bool, is_full: Option<String>, now: Timestamp) -> bool {
        use FlowSide::{Delivery, Publishing};
        use ThrottleReason::{Disk, InFlight, Memory, Operator, RateImbalance, StoreGrowth};
        let (flow, definition) = (&running.flow, &running.compiled.definition);
        let short = is_short.then(|| MEMORY_SHORT.to_owned());
        flow.look((Publishing, None, Memory), short.clone(), now);
        flow.look((Publishing, None, Disk), is_full, now);
        flow.look((Publishing, None, StoreGrowth), self.grown(definition), now);
        let (many, most) = (flow.in_flight.load(Ordering::Acquire), definition.flow.in_flight_max as usize);
        let held = (many >= most).then(|| format!("{many} senders wait for an answer"));
        flow.look((Publishing, None, InFlight), held, now);
        let rates: BTreeMap<_, _> = flow.meters.lock().iter().map(|(port, (rate, _))| (port.clone(), *rate)).collect();
        let places = std::iter::once(None).chain(definition.receive.keys().cloned().map(Some));
        for port in places {
            let set = rates.get(&port).map(|rate| lets_in(*rate));
            flow.look((Publishing, port, Operator), set, now);
        }
        let mut is_still = true;
        for (port, lane) in &running.lanes {
            if let Some(moves) = lane.moves_if_behind() {
                match self.parts.spool.count_due(&definition.name, port, now, COUNTED_MAX).await {
                    Ok(due) => lane.counted(due, moves),
                    Err(error) => tracing::error!(%error, %port, "what waits cannot be counted"),
                }
            }
            let load = lane.flow_load();
            is_still &= load.busy == 0 && load.waiting == 0;
            let wait = lane.too_long(definition.flow.wait_max, now);
            let unequal = wait.map(|wait| format!("{} messages wait, a new one {} s", load.waiting, wait.as_secs()));
            flow.look((Publishing, Some(port.clone()), RateImbalance), unequal, now);
            let busy = load.busy >= load.concurrency && load.waiting > 0;
            let busy = busy.then(|| format!("{} are under way, {} wait", load.busy, load.waiting));
            flow.look((Delivery, Some(port.clone()), InFlight), busy, now);
            let slowed = load.slowed_to.map(|few| format!("{} wait, and only {few} of them in memory", load.waiting));
            flow.look((Delivery, Some(port.clone()), RateImbalance), slowed, now);
            let set = load.rate.map(|rate| format!("an operator lets {rate} leave"));
            flow.look((Delivery, Some(port.clone()), Operator), set, now);
            flow.look((Delivery, Some(port.clone()), Memory), short.clone().filter(|_| load.waiting > 0), now);
            flow.look((Delivery, Some(port.clone()), Disk), None, now);
            if let Some(wait) = lane.wait_of_next(now) {
                let labels = [("exchange", running.name()), ("port", port.to_string())];
                metrics::gauge!("exchange_queue_wait_seconds", &labels).set(wait.as_secs_f64());
                metrics::gauge!("exchange_queue_messages", &labels).set(load.waiting as f64);
            }
        }
        let changes = std::mem::take(&mut flow.states.lock().changes);
        if !changes.is_empty()
            && let Err(error) = self.parts.spool.record_throttles(changes).await
        {
            tracing::error!(%error, exchange = %definition.name, "what was slowed down cannot be stored");
        }
        is_still && flow.is_still()
    }

    /// Everything that is slowed down.
    pub fn throttled(&self) -> Vec<Throttled> {
        self.running.read().values().flat_map(|running| running.flow.throttled()).collect()
    }

    /// How an exchange flows.
    ///
    /// # Errors
    /// There is no such exchange.
    pub async fn flow(&self, exchange: &Name) -> Result<FlowReport, OperateError> {
        let running = self.running(exchange)?;
        let now = self.parts.clock.now();
        let rates = self.parts.spool.rates().await?;
        Ok(FlowReport {
            in_flight: running.flow.in_flight.load(Ordering::Acquire),
            throttled: running.flow.throttled(),
            rates: rates.into_iter().filter(|set| set.exchange == *exchange).collect(),
            queues: running
                .lanes
                .iter()
                .map(|(port, lane)| (port.clone(), lane.flow_load().waiting, lane.wait_of_next(now)))
                .collect(),
        })
    }

    /// When messages of an exchange were slowed down, newest first.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn flow_changes(&self, exchange: &Name, limit: usize) -> Result<Vec<ThrottleChange>, StoreError> {
        self.parts.spool.throttles(exchange, limit).await
    }

    /// Sets how fast messages may come in, through all receive ports or one, or leave by a send port; for restarts and new
    /// definitions as well. `None`: as fast as they can.
    ///
    /// # Errors
    /// There is no such port.
    pub async fn set_rate(
        self: &Arc<Self>,
        exchange: &Name,
        side: FlowSide,
        port: Option<&Name>,
        rate: Option<Rate>,
    ) -> Result<(), OperateError> {
        let (exchanges, exchange, port) = (self.clone(), exchange.clone(), port.cloned());
        self.to_the_end(async move { exchanges.set_rate_whole(&exchange, side, port.as_ref(), rate).await }).await
    }

    async fn set_rate_whole(
        &self,
        exchange: &Name,
        side: FlowSide,
        port: Option<&Name>,
        rate: Option<Rate>,
    ) -> Result<(), OperateError> {
        let running = self.running(exchange)?;
        let definition = &running.compiled.definition;
        let is_known = match (side, port) {
            (FlowSide::Publishing, None) => true,
            (FlowSide::Publishing, Some(port)) => definition.receive.contains_key(port),
            (FlowSide::Delivery, Some(port)) => running.lanes.contains_key(port),
            (FlowSide::Delivery, None) => false,
        };
        if !is_known {
            let side = if side == FlowSide::Publishing { "receive" } else { "send" };
            let port = port.map(|port| format!("the {side} port `{port}`")).unwrap_or_else(|| format!("a {side} port"));
            return Err(OperateError::Missing(format!("{port} of `{exchange}`")));
        }
        let _one = self.applying.lock().await;
        self.parts.spool.set_rate(exchange.clone(), side, port.cloned(), rate).await?;
        // Another definition may run by now.
        if let Some(running) = self.find(exchange) {
            running.take_rate(side, port.cloned(), rate);
        }
        self.watch.wake();
        Ok(())
    }
}

impl Running {
    pub(crate) fn take_rate(&self, side: FlowSide, port: Option<Name>, rate: Option<Rate>) {
        match (side, port) {
            (FlowSide::Publishing, port) => self.flow.set_rate(port, rate),
            (FlowSide::Delivery, Some(port)) => {
                if let Some(lane) = self.lanes.get(&port) {
                    lane.set_rate(rate);
                }
            }
            (FlowSide::Delivery, None) => {}
        }
    }
}

fn lets_in(rate: Rate) -> String {
    format!("an operator lets {rate} in")
}

/// Who sends a message is told to come back with it.
pub(crate) fn refuse(Brake { code, reason, retry_after }: Brake) -> ReceiveError {
    metrics::counter!("exchange_refused_total", "reason" => code.word()).increment(1);
    ReceiveError::Full { code, reason, retry_after }
}

/// Looks once a second while anything moves, until the exchanges stop.
pub(crate) async fn run(exchanges: Arc<Exchanges>) {
    loop {
        // Whatever moves from here on is noticed.
        exchanges.watch.is_still.store(true, Ordering::Release);
        let is_still = exchanges.look_at_flow().await;
        let pause = async {
            if is_still {
                exchanges.watch.moves.notified().await;
            } else {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        tokio::select! {
            () = pause => {}
            () = exchanges.stopping.cancelled() => return,
        }
    }
}
