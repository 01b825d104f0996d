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
    exchange::{FlowSide, ThrottleReason},
    id::Name,
    time::Timestamp,
};
use tocsin_store::spool::{SetRate, ThrottleChange};
use tokio::{sync::Notify, time::Instant};

use crate::error::ReceiveError;

/// Hysteresis: consecutive checks before a state changes (for sending, and for the end of throttling), so that short
/// bursts do not toggle it.
const CHECKS: u8 = 3;
/// Maximum unsaved changes; further ones are only logged.
const CHANGES_MAX: usize = 1_000;
/// Minimum and maximum `Retry-After` for senders.
pub(crate) const RETRY_AFTER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Detail text for short memory.
pub(crate) const MEMORY_SHORT: &str = "the server has about as much memory as it may";

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

    /// Marks that no message moves. Called before a check, so that no movement during it is missed.
    pub fn rest(&self) {
        self.is_still.store(true, Ordering::Release);
    }

    /// Waits until a message moves.
    pub async fn moved(&self) {
        self.moves.notified().await;
    }

    pub fn set_memory_is_short(&self, is_short: bool) {
        self.memory_is_short.store(is_short, Ordering::Relaxed);
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
    pub fn enter(self: &Arc<Flow>, most: u32) -> Option<InFlight> {
        let entered = InFlight(self.clone());
        let before = self.in_flight.fetch_add(1, Ordering::AcqRel);
        (before < most as usize).then_some(entered)
    }

    /// Counts a message against the operator's rates. On error: the rate, and the delay until the next message is
    /// allowed.
    pub fn meter(&self, port: &Name, now: Instant) -> Result<(), (Rate, Duration)> {
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
    pub fn observe(&self, key: (FlowSide, Option<Name>, ThrottleReason), holds: Option<String>, now: Timestamp) {
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

    pub fn is_still(&self) -> bool {
        let states = self.states.lock();
        self.in_flight.load(Ordering::Acquire) == 0 && states.known.is_empty() && states.changes.is_empty()
    }

    /// The number of messages whose senders wait.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Acquire)
    }

    /// The operator's rates of receiving: for all receive ports, and for single ones.
    pub fn rates(&self) -> BTreeMap<Option<Name>, Rate> {
        self.meters.lock().iter().map(|(port, (rate, _))| (port.clone(), *rate)).collect()
    }

    /// Takes the changes that are not stored yet.
    pub fn take_changes(&self) -> Vec<ThrottleChange> {
        std::mem::take(&mut self.states.lock().changes)
    }
}

/// Explanation of an operator's rate of receiving.
pub(crate) fn rate_text(rate: Rate) -> String {
    format!("an operator limits receiving to {rate}")
}

/// The error for the sender, with the delay before a retry.
pub(crate) fn refuse(ThrottleRefusal { code, reason, retry_after }: ThrottleRefusal) -> ReceiveError {
    metrics::counter!("tocsin_exchange_refused_total", "reason" => code.word()).increment(1);
    ReceiveError::Full { code, reason, retry_after }
}
