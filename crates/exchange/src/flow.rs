//! Flow control: rates of receiving and sending, admission limits, and the reasons of throttling.
//!
//! Back-pressure: receive ports refuse messages before the store grows without limit, so that messages wait at their
//! senders. Each reason has a code, which is returned to senders and shown to operators. Throttling is checked once a
//! second while messages move; each change is stored in the spool.
//!
//! A slow receiver slows its senders down: messages that would wait longer than `flow.wait` are refused. An unavailable
//! receiver does not; its messages are stored up to `open_messages`.

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

use crate::{Exchanges, RunningExchange, operate::OperateError, receive::ReceiveError};

/// Interval of checks while messages move.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// Hysteresis: consecutive checks before a state changes (for sending, and for the end of throttling), so that short
/// bursts do not toggle it.
const CHECKS: u8 = 3;
/// Maximum legs of a port that are counted in the spool.
const COUNTED_MAX: u64 = 100_000;
/// Maximum unsaved changes; further ones are only logged.
const CHANGES_MAX: usize = 1_000;
/// Minimum and maximum `Retry-After` for senders.
const RETRY_AFTER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Detail text for short memory.
const MEMORY_SHORT: &str = "the server has about as much memory as it may";

/// Memory usage and limit of the process.
#[derive(Clone)]
pub struct Memory {
    /// Memory in use, if known.
    pub used: Arc<dyn Fn() -> Option<u64> + Send + Sync>,
    /// Usage above which receive ports refuse messages. 0: no limit.
    pub most: u64,
}

impl Default for Memory {
    fn default() -> Self {
        Memory { used: Arc::new(|| None), most: 0 }
    }
}

/// An active throttle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Throttled {
    /// The exchange.
    pub exchange: Name,
    /// Receiving or sending.
    pub side: FlowSide,
    /// The port that causes it, if it is a single one.
    pub port: Option<Name>,
    /// Why.
    pub reason: ThrottleReason,
    /// Since when.
    pub since: Timestamp,
    /// Explanation.
    pub detail: String,
}

/// Flow report of an exchange.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowReport {
    /// Messages whose senders wait for a response.
    pub in_flight: usize,
    /// Active throttles.
    pub throttled: Vec<Throttled>,
    /// Rates that an operator has set.
    pub rates: Vec<SetRate>,
    /// By send port: waiting messages, and the expected wait of a new one, if known.
    pub queues: Vec<(Name, u64, Option<Duration>)>,
}

/// State of the flow monitor, for all exchanges.
#[derive(Default)]
pub(crate) struct FlowMonitor {
    /// Whether the monitor is idle because no message moves.
    is_still: AtomicBool,
    moves: Notify,
    /// Whether the process has reached its memory limit.
    memory_is_short: AtomicBool,
}

impl FlowMonitor {
    /// Wakes the monitor, because a message moves.
    pub fn wake(&self) {
        if self.is_still.swap(false, Ordering::AcqRel) {
            self.moves.notify_one();
        }
    }

    pub fn memory_is_short(&self) -> bool {
        self.memory_is_short.load(Ordering::Relaxed)
    }
}

/// Flow control of one exchange. It outlives changes of the definition.
pub(crate) struct Flow {
    exchange: Name,
    in_flight: AtomicUsize,
    /// Rate limits of receiving: for all receive ports, and for single ones.
    meters: Mutex<BTreeMap<Option<Name>, (Rate, Meter)>>,
    states: Mutex<States>,
}

#[derive(Default)]
struct States {
    known: BTreeMap<(FlowSide, Option<Name>, ThrottleReason), State>,
    /// Changes that are not stored yet.
    changes: Vec<ThrottleChange>,
}

#[derive(Default)]
struct State {
    /// Start of throttling, if active.
    since: Option<Timestamp>,
    detail: String,
    /// Whether a message was refused since the last check.
    is_hit: bool,
    /// Consecutive checks in favour of a change.
    checks: u8,
}

/// Why a message is not admitted now.
pub(crate) struct ThrottleRefusal {
    /// The reason as a code.
    pub code: ThrottleReason,
    /// Explanation.
    pub reason: String,
    /// Delay before a retry.
    pub retry_after: Duration,
}

/// Counts a message whose sender waits, until this is dropped.
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

    /// Counts a message whose sender waits. `None` if the limit is reached.
    fn enter(self: &Arc<Flow>, most: u32) -> Option<InFlight> {
        let entered = InFlight(self.clone());
        let before = self.in_flight.fetch_add(1, Ordering::AcqRel);
        (before < most as usize).then_some(entered)
    }

    /// Counts a message against the operator's rates. On error: the rate, and the delay until the next message is
    /// allowed.
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

    /// Records that a message is refused or delayed for this reason.
    pub fn hit(&self, side: FlowSide, port: Option<&Name>, reason: ThrottleReason, detail: String, now: Timestamp) {
        let mut states = self.states.lock();
        let state = states.known.entry((side, port.cloned(), reason)).or_default();
        (state.is_hit, state.checks) = (true, 0);
        if state.since.is_none() {
            self.change(&mut states, (side, port.cloned(), reason), Some(detail), now);
        }
    }

    /// Refuses a received message for this reason.
    pub fn throttle(
        &self,
        port: Option<&Name>,
        code: ThrottleReason,
        reason: String,
        retry_after: Duration,
        now: Timestamp,
    ) -> ThrottleRefusal {
        self.hit(FlowSide::Publishing, port, code, reason.clone(), now);
        ThrottleRefusal { code, reason, retry_after: retry_after.clamp(RETRY_AFTER.0, RETRY_AFTER.1) }
    }

    /// Records at a check whether a reason holds, with its explanation.
    fn observe(&self, key: (FlowSide, Option<Name>, ThrottleReason), holds: Option<String>, now: Timestamp) {
        let mut states = self.states.lock();
        if holds.is_none() && !states.known.contains_key(&key) {
            return;
        }
        let state = states.known.entry(key.clone()).or_default();
        let is_on = state.since.is_some();
        let speaks_for_change = is_on != (holds.is_some() || std::mem::take(&mut state.is_hit));
        state.checks = if speaks_for_change { state.checks + 1 } else { 0 };
        if let (true, Some(detail)) = (is_on, &holds) {
            state.detail.clone_from(detail);
        }
        let enough = if !is_on && key.0 == FlowSide::Publishing { 1 } else { CHECKS };
        if state.checks >= enough {
            self.change(&mut states, key, holds, now);
        }
    }

    /// Begins throttling with this explanation, or ends it.
    fn change(
        &self,
        states: &mut States,
        key: (FlowSide, Option<Name>, ThrottleReason),
        detail: Option<String>,
        now: Timestamp,
    ) {
        let begins = detail.is_some();
        let state = states.known.entry(key.clone()).or_default();
        state.checks = 0;
        state.since = begins.then_some(now);
        if let Some(detail) = detail {
            state.detail = detail;
        }
        let detail = state.detail.clone();
        let (side, port, reason) = key;
        let exchange = self.exchange.clone();
        let name = port.as_ref().map(ToString::to_string).unwrap_or_default();
        let word = if begins { "begin" } else { "end" };
        tracing::warn!(%exchange, side = side.word(), port = name, %reason, detail, "throttling: {word}");
        let labels = [
            ("exchange", exchange.to_string()),
            ("side", side.word().to_owned()),
            ("port", name),
            ("reason", reason.word().to_owned()),
        ];
        metrics::gauge!("tocsin_exchange_throttled", &labels).set(if begins { 1.0 } else { 0.0 });
        if states.changes.len() < CHANGES_MAX {
            states.changes.push(ThrottleChange { at: now, exchange, side, port, reason, begins, detail });
        }
        if !begins {
            states.known.retain(|_, state| state.since.is_some() || state.checks > 0);
        }
    }

    /// The active throttles.
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
    /// Admits a message whose sender waits, before any work is done for it.
    pub(crate) fn admit(
        &self,
        running: &RunningExchange,
        port: &Name,
        now: Timestamp,
    ) -> Result<InFlight, ReceiveError> {
        self.check_admission(running, port, now).map_err(refuse)?;
        let (flow, most) = (&running.flow, running.compiled.definition.flow.in_flight_max);
        flow.enter(most).ok_or_else(|| {
            let text = format!("{most} senders wait for an answer, and `flow.in_flight` allows no more");
            refuse(flow.throttle(None, ThrottleReason::InFlight, text, RETRY_AFTER.0, now))
        })
    }

    /// Checks whether a receive port may accept a message.
    pub(crate) fn check_admission(
        &self,
        running: &RunningExchange,
        port: &Name,
        now: Timestamp,
    ) -> Result<(), ThrottleRefusal> {
        self.watch.wake();
        let (flow, definition) = (&running.flow, &running.compiled.definition);
        if let Err((rate, retry_after)) = flow.meter(port, Instant::now()) {
            return Err(flow.throttle(None, ThrottleReason::Operator, rate_text(rate), retry_after, now));
        }
        if self.watch.memory_is_short() {
            return Err(flow.throttle(None, ThrottleReason::Memory, MEMORY_SHORT.to_owned(), RETRY_AFTER.0 * 5, now));
        }
        match self.grown(definition) {
            Some(text) => Err(flow.throttle(None, ThrottleReason::StoreGrowth, text, RETRY_AFTER.0, now)),
            None => Ok(()),
        }
    }

    /// The explanation, if the exchange has reached its limit of open messages.
    fn grown(&self, definition: &Exchange) -> Option<String> {
        let (open, most) = (self.parts.spool.open_of(&definition.name), definition.open_messages_max);
        (open >= most).then(|| format!("{open} messages are open, and `open_messages` allows {most}"))
    }

    /// Checks that a message to these send ports would not wait longer than allowed.
    pub(crate) fn check_queues<'a>(
        &self,
        running: &RunningExchange,
        ports: impl Iterator<Item = &'a Name>,
        now: Timestamp,
    ) -> Result<(), ThrottleRefusal> {
        let wait_max = running.compiled.definition.flow.wait_max;
        for port in ports {
            if let Some(send_queue) = running.send_queues.get(port)
                && let Some(wait) = send_queue.excessive_wait(wait_max, now)
            {
                let text = format!(
                    "a message would wait {} s for the send port `{port}`, and `flow.wait` allows {} s",
                    wait.as_secs(),
                    wait_max.as_secs()
                );
                let retry_after = wait.saturating_sub(wait_max.mul_f64(crate::send_queue::RELIEF));
                return Err(running.flow.throttle(Some(port), ThrottleReason::RateImbalance, text, retry_after, now));
            }
        }
        Ok(())
    }

    /// Checks all exchanges once. Returns whether nothing moves.
    pub(crate) async fn check_flow(&self) -> bool {
        let now = self.parts.clock.now();
        let Memory { used, most } = &self.parts.memory;
        let is_short = *most > 0 && used().is_some_and(|used| used > *most);
        self.watch.memory_is_short.store(is_short, Ordering::Relaxed);
        let is_full = self.parts.spool.check_room().err().map(|error| error.to_string());
        let all = self.running.read().clone();
        let mut is_still = true;
        for running in all.values() {
            is_still &= self.check_exchange(running, is_short, is_full.clone(), now).await;
        }
        is_still
    }

    async fn check_exchange(
        &self,
        running: &RunningExchange,
        is_short: bool,
        is_full: Option<String>,
        now: Timestamp,
    ) -> bool {
        use FlowSide::{Delivery, Publishing};
        use ThrottleReason::{Disk, InFlight, Memory, Operator, RateImbalance, StoreGrowth};
        let (flow, definition) = (&running.flow, &running.compiled.definition);
        let short = is_short.then(|| MEMORY_SHORT.to_owned());
        flow.observe((Publishing, None, Memory), short.clone(), now);
        flow.observe((Publishing, None, Disk), is_full, now);
        flow.observe((Publishing, None, StoreGrowth), self.grown(definition), now);
        let (many, most) = (flow.in_flight.load(Ordering::Acquire), definition.flow.in_flight_max as usize);
        let held = (many >= most).then(|| format!("{many} senders wait for an answer"));
        flow.observe((Publishing, None, InFlight), held, now);
        let rates: BTreeMap<_, _> = flow.meters.lock().iter().map(|(port, (rate, _))| (port.clone(), *rate)).collect();
        let places = std::iter::once(None).chain(definition.receive.keys().cloned().map(Some));
        for port in places {
            let set = rates.get(&port).map(|rate| rate_text(*rate));
            flow.observe((Publishing, port, Operator), set, now);
        }
        let mut is_still = true;
        for (port, send_queue) in &running.send_queues {
            if let Some(moves) = send_queue.moves_if_truncated() {
                match self.parts.spool.count_due(&definition.name, port, now, COUNTED_MAX).await {
                    Ok(due) => send_queue.counted(due, moves),
                    Err(error) => tracing::error!(%error, %port, "cannot count waiting messages"),
                }
            }
            let load = send_queue.flow_load();
            is_still &= load.busy == 0 && load.waiting == 0;
            let wait = send_queue.excessive_wait(definition.flow.wait_max, now);
            let unequal = wait.map(|wait| format!("{} messages wait, a new one {} s", load.waiting, wait.as_secs()));
            flow.observe((Publishing, Some(port.clone()), RateImbalance), unequal, now);
            let busy = load.busy >= load.concurrency && load.waiting > 0;
            let busy = busy.then(|| format!("{} are in progress, {} wait", load.busy, load.waiting));
            flow.observe((Delivery, Some(port.clone()), InFlight), busy, now);
            let slowed = load.slowed_to.map(|few| format!("{} wait, and only {few} of them in memory", load.waiting));
            flow.observe((Delivery, Some(port.clone()), RateImbalance), slowed, now);
            let set = load.rate.map(|rate| format!("an operator limits sending to {rate}"));
            flow.observe((Delivery, Some(port.clone()), Operator), set, now);
            flow.observe((Delivery, Some(port.clone()), Memory), short.clone().filter(|_| load.waiting > 0), now);
            flow.observe((Delivery, Some(port.clone()), Disk), None, now);
            if let Some(wait) = send_queue.expected_wait(now) {
                let labels = [("exchange", running.name()), ("port", port.to_string())];
                metrics::gauge!("tocsin_exchange_queue_wait_seconds", &labels).set(wait.as_secs_f64());
                metrics::gauge!("tocsin_exchange_queue_messages", &labels).set(load.waiting as f64);
            }
        }
        let changes = std::mem::take(&mut flow.states.lock().changes);
        if !changes.is_empty()
            && let Err(error) = self.parts.spool.record_throttles(changes).await
        {
            tracing::error!(%error, exchange = %definition.name, "cannot store throttling changes");
        }
        is_still && flow.is_still()
    }

    /// All active throttles.
    pub fn throttled(&self) -> Vec<Throttled> {
        self.running.read().values().flat_map(|running| running.flow.throttled()).collect()
    }

    /// Reports the flow of an exchange.
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
                .send_queues
                .iter()
                .map(|(port, send_queue)| (port.clone(), send_queue.flow_load().waiting, send_queue.expected_wait(now)))
                .collect(),
        })
    }

    /// Throttling changes of an exchange, newest first.
    ///
    /// # Errors
    /// The store is unavailable.
    pub async fn flow_changes(&self, exchange: &Name, limit: usize) -> Result<Vec<ThrottleChange>, StoreError> {
        self.parts.spool.throttles(exchange, limit).await
    }

    /// Limits the rate of receiving (all receive ports or one) or of sending (one port). Kept across restarts and new
    /// definitions. `None` removes the limit.
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
        self.run_to_completion(async move { exchanges.set_rate_now(&exchange, side, port.as_ref(), rate).await }).await
    }

    async fn set_rate_now(
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
            (FlowSide::Delivery, Some(port)) => running.send_queues.contains_key(port),
            (FlowSide::Delivery, None) => false,
        };
        if !is_known {
            let side = if side == FlowSide::Publishing { "receive" } else { "send" };
            let port = port.map(|port| format!("the {side} port `{port}`")).unwrap_or_else(|| format!("a {side} port"));
            return Err(OperateError::Missing(format!("{port} of `{exchange}`")));
        }
        let _one = self.applying.lock().await;
        self.parts.spool.set_rate(exchange.clone(), side, port.cloned(), rate).await?;
        // The definition can have changed in the meantime.
        if let Some(running) = self.find(exchange) {
            running.set_rate(side, port.cloned(), rate);
        }
        self.watch.wake();
        Ok(())
    }
}

impl RunningExchange {
    pub(crate) fn set_rate(&self, side: FlowSide, port: Option<Name>, rate: Option<Rate>) {
        match (side, port) {
            (FlowSide::Publishing, port) => self.flow.set_rate(port, rate),
            (FlowSide::Delivery, Some(port)) => {
                if let Some(send_queue) = self.send_queues.get(&port) {
                    send_queue.set_rate(rate);
                }
            }
            (FlowSide::Delivery, None) => {}
        }
    }
}

fn rate_text(rate: Rate) -> String {
    format!("an operator limits receiving to {rate}")
}

/// The error for the sender, with the delay before a retry.
pub(crate) fn refuse(ThrottleRefusal { code, reason, retry_after }: ThrottleRefusal) -> ReceiveError {
    metrics::counter!("tocsin_exchange_refused_total", "reason" => code.word()).increment(1);
    ReceiveError::Full { code, reason, retry_after }
}

/// Checks once a second while messages move, until the exchanges stop.
pub(crate) async fn run(exchanges: Arc<Exchanges>) {
    loop {
        // Set before the check, so that no movement during it is missed.
        exchanges.watch.is_still.store(true, Ordering::Release);
        let is_still = exchanges.check_flow().await;
        let pause = async {
            if is_still {
                exchanges.watch.moves.notified().await;
            } else {
                tokio::time::sleep(CHECK_EVERY).await;
            }
        };
        tokio::select! {
            () = pause => {}
            () = exchanges.stopping.cancelled() => return,
        }
    }
}
