use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    sync::Arc,
    time::Duration,
};

use hashbrown::HashMap;
use tocsin_model::{
    application::{self, Flow},
    delivery_policy::Priority,
};
use tocsin_pace::AdaptiveConcurrency;
use tokio::time::Instant;

use super::{
    breaker::{Breaker, BreakerState},
    line::{AgingQueue, Waits},
    rate::Meter,
};
use crate::channel::{Destination, DestinationState};

/// Room of a lane, at least, however full the queue is.
const LANE_ROOM_MIN: usize = 16;
/// Remembered destinations. Above this number idle ones without failures are forgotten, above twice the number all
/// idle ones.
const REMEMBERED: usize = 10_000;
/// A destination that was idle for this long, without failures, may be forgotten.
const FORGOTTEN: Duration = Duration::from_secs(60);
const SWEEP_PAUSE: Duration = Duration::from_secs(10);
/// Shortest time after which a message without room returns; otherwise half of the time the messages before it take.
const RETURN_MIN: Duration = Duration::from_secs(1);
const RETURN_MAX: Duration = Duration::from_secs(900);
/// Pause of a destination that asks for less without a time.
const SLOWER_PAUSE: Duration = Duration::from_secs(1);
/// A pause up to this length is waited for in the queue.
const SHORT_PAUSE: Duration = Duration::from_secs(2);
/// Messages for a half-open destination return after this time.
const TRIAL_PAUSE: Duration = Duration::from_secs(3);
/// A destination this many times slower than usual counts as slow.
const SLOW: u32 = 8;
/// Interval at which continued failure is logged again.
const LOG_INTERVAL: Duration = Duration::from_secs(900);
const REASON_CHARS_MAX: usize = 200;
/// A destination without a message in flight for this long, although messages wait and may leave, is reported.
const STALLED: Duration = Duration::from_secs(60);

/// Result of an attempt, as far as it concerns the destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Signal {
    /// It answered, with success or a proper refusal.
    Fine,
    /// It was not contacted.
    Unasked,
    /// It asks for a lower rate, or for a pause.
    Slower(Option<Duration>),
    /// It answered that it is broken.
    Failed(String),
    /// It answered that it is overloaded.
    Overloaded(String),
    /// It did not answer.
    Silent(String),
}

/// Scheduler of all waiting messages, with one queue (lane) per destination.
///
/// Lanes take turns (round robin); within a lane, higher priority goes first. A slow or dead destination cannot block
/// others. Its share of the queue is bounded by the free room. It may use idle sessions only, and all slow ones
/// together at most half of them while others have work. A lane that is alone leaves an eighth of the sessions free
/// for new destinations.
#[derive(Clone)]
pub(crate) struct Lanes<T> {
    lanes: HashMap<Arc<str>, DestinationLane<T>>,
    turns: VecDeque<Arc<str>>,
    parked: BinaryHeap<Reverse<(Instant, Arc<str>)>>,
    flow: Flow,
    sessions: usize,
    room: usize,
    waiting: usize,
    busy: usize,
    slow_busy: usize,
    /// Lanes with messages that wait or are in flight.
    active: usize,
    meter: Option<Meter>,
    usual: Option<Duration>,
    last_sweep: Option<Instant>,
}

#[derive(Clone)]
struct DestinationLane<T> {
    waiting: AgingQueue<T>,
    busy: usize,
    state: LaneState,
    /// Whether its key is in `turns`. A key stays there when its lane is emptied, and is skipped then.
    in_turns: bool,
    pace: AdaptiveConcurrency,
    breaker: Breaker,
    meter: Option<Meter>,
    paused_until: Option<Instant>,
    slow: bool,
    failing_since: Option<Instant>,
    logged_at: Option<Instant>,
    reason: Option<Box<str>>,
    used: Instant,
    /// When a message last left or was answered, or when the first message came into the empty lane.
    moved: Instant,
}

/// State of a destination's queue. Each state names the event that ends it, so no message waits without one.
///
/// `Lanes::update_turn` is the only place that leaves `Empty` or enters it; the test module `model` checks all
/// sequences of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum LaneState {
    /// No message waits. Ends with `push`.
    Empty,
    /// Messages wait, and the lane has a turn in the round-robin queue. Ends with `take`.
    Queued,
    /// Messages wait, and as many as allowed, at least one, are under way. Ends with `done`.
    Full,
    /// Messages wait, and none may leave before this time. Ends at this time, or with `done`.
    Parked(Instant),
}

enum Ready {
    Now,
    /// When another lane finishes an attempt.
    Later,
    /// When one of its own attempts ends.
    Full,
    At(Instant),
}

/// The next message, or when to look again if nothing happens before.
pub(crate) enum Take<T> {
    Item(Arc<str>, T),
    Wait(Option<Instant>),
}

/// Result of adding a message.
pub(crate) enum Pushed<T> {
    /// The message waits; `wake`: a session may take it.
    Waits { wake: bool },
    /// The lane is full. Retry soon (`None`) or after this time.
    NoRoom(T, Option<Duration>),
}

/// Effects of a finished attempt.
pub(crate) struct AttemptEffect<T> {
    /// Waiting messages that should be sent later.
    pub returned: Vec<T>,
    /// When the returned messages are due.
    pub after: Duration,
    pub event: Option<Event>,
}

/// A change of a destination's state that operators should see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// The circuit breaker opened. `log`: it was not logged recently.
    Paused { pause: Duration, reason: Box<str>, failures: u32, log: bool },
    /// It works again.
    Back { after: Duration },
}

impl<T: Waits> DestinationLane<T> {
    fn new(flow: &Flow, now: Instant) -> Self {
        DestinationLane {
            waiting: AgingQueue::new(),
            busy: 0,
            state: LaneState::Empty,
            in_turns: false,
            pace: match flow.pace {
                application::Pace::Auto => AdaptiveConcurrency::new(flow.per_destination as usize),
                application::Pace::Fixed => AdaptiveConcurrency::fixed(flow.per_destination as usize),
            },
            breaker: Breaker::new(flow.failures_before_pause),
            meter: flow.rate_per_destination.map(Meter::new),
            paused_until: None,
            slow: false,
            failing_since: None,
            logged_at: None,
            reason: None,
            used: now,
            moved: now,
        }
    }

    fn is_active(&self) -> bool {
        self.busy > 0 || !self.waiting.is_empty()
    }

    /// End of the pause in which nothing may leave.
    fn paused_until(&self, now: Instant) -> Option<Instant> {
        let paused = self.paused_until.filter(|until| *until > now);
        match self.breaker.state(now) {
            BreakerState::Paused(until) => Some(paused.map_or(until, |paused| paused.max(until))),
            _ => paused,
        }
    }

    /// Time that messages have waited for a destination that may be served and gets nothing.
    fn unserved(&self, now: Instant) -> Option<Duration> {
        if self.waiting.is_empty() || self.busy > 0 || self.paused_until(now).is_some() {
            return None;
        }
        if self.meter.as_ref().is_some_and(|meter| meter.wait(now).is_some()) {
            return None;
        }
        let paused_until = self.paused_until.max(self.breaker.until());
        Some(now.saturating_duration_since(paused_until.map_or(self.moved, |until| until.max(self.moved))))
    }

    /// Expected time until the waiting messages have left.
    fn drained(&self) -> Option<Duration> {
        let count = u32::try_from(self.waiting.len()).unwrap_or(u32::MAX);
        let by_latency = self.pace.latency().map(|latency| latency * count / self.pace.limit().max(1) as u32);
        let by_rate = self.meter.as_ref().map(|meter| meter.span(self.waiting.len()));
        by_latency.max(by_rate)
    }
}

impl<T: Waits> Lanes<T> {
    /// A scheduler for `sessions` sessions, with room for `room` messages.
    pub fn new(flow: Flow, sessions: usize, room: usize) -> Self {
        Lanes {
            lanes: HashMap::new(),
            turns: VecDeque::new(),
            parked: BinaryHeap::new(),
            flow,
            sessions,
            room,
            waiting: 0,
            busy: 0,
            slow_busy: 0,
            active: 0,
            meter: None,
            usual: None,
            last_sweep: None,
        }
    }

    /// Sets the rate limit of all messages together.
    pub fn set_rate(&mut self, meter: Option<Meter>) {
        self.meter = meter;
    }

    /// Number of waiting messages.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Whether another session has to look: a lane has a turn, or is parked until a time for which a session must wait.
    pub fn needs_session(&self) -> bool {
        !self.turns.is_empty() || !self.parked.is_empty()
    }

    /// The key of a lane; shared if the lane exists.
    pub fn key(&self, text: &str) -> Arc<str> {
        self.lanes.get_key_value(text).map_or_else(|| Arc::from(text), |(key, _)| key.clone())
    }

    /// Appends a message to its lane.
    pub fn push(&mut self, key: &Arc<str>, item: T, now: Instant) -> Pushed<T> {
        if !self.lanes.contains_key(key) {
            self.sweep(now);
            self.lanes.insert(key.clone(), DestinationLane::new(&self.flow, now));
        }
        let priority = item.priority();
        if let Some(wait) = self.hold(key, priority, now) {
            return Pushed::NoRoom(item, Some(wait));
        }
        let free = self.room.saturating_sub(self.waiting);
        let lane = self.lanes.get_mut(key).expect("it was put there if it was missing");
        if lane.waiting.len_of(priority) >= free.max(LANE_ROOM_MIN) {
            return Pushed::NoRoom(item, None);
        }
        self.active += usize::from(!lane.is_active());
        if lane.waiting.is_empty() {
            lane.moved = now;
        }
        lane.waiting.push_back(item);
        lane.used = now;
        self.waiting += 1;
        let has_new_turn = Self::update_turn(&mut self.turns, key, lane);
        Pushed::Waits { wake: has_new_turn || lane.busy + lane.waiting.len() <= lane.pace.limit() }
    }

    /// Updates the state of a lane after any change of its waiting messages. Returns whether the lane got a turn.
    fn update_turn(turns: &mut VecDeque<Arc<str>>, key: &Arc<str>, lane: &mut DestinationLane<T>) -> bool {
        if lane.waiting.is_empty() {
            lane.state = LaneState::Empty;
        } else if lane.state == LaneState::Empty {
            lane.state = LaneState::Queued;
        }
        let has_new_turn = lane.state == LaneState::Queued && !lane.in_turns;
        if has_new_turn {
            lane.in_turns = true;
            turns.push_back(key.clone());
        }
        has_new_turn
    }

    /// Delay before a message of this priority for this destination should be rendered.
    pub fn hold(&self, key: &str, priority: Priority, now: Instant) -> Option<Duration> {
        let lane = self.lanes.get(key)?;
        if let Some(until) = lane.paused_until(now)
            && until - now > SHORT_PAUSE
        {
            return Some(until - now);
        }
        match lane.breaker.state(now) {
            BreakerState::Paused(until) => return Some(until - now),
            BreakerState::Trial if lane.is_active() => return Some(TRIAL_PAUSE),
            _ => {}
        }
        let free = self.room.saturating_sub(self.waiting);
        if lane.waiting.len_of(priority) < free.max(LANE_ROOM_MIN) {
            return None;
        }
        // A lane that makes progress has room soon; its sender waits for it.
        lane.drained().filter(|time| *time >= RETURN_MIN).map(|time| (time / 2).clamp(RETURN_MIN, RETURN_MAX))
    }

    /// Delay of a message without room, in a lane that was expected to make progress.
    pub fn retry_delay(&self, key: &str) -> Duration {
        let drained = self.lanes.get(key).and_then(DestinationLane::drained).unwrap_or_default();
        (drained / 2).clamp(RETURN_MIN, RETURN_MAX)
    }

    /// The next message that may leave.
    pub fn take(&mut self, now: Instant) -> Take<T> {
        while let Some(Reverse((at, _))) = self.parked.peek()
            && *at <= now
        {
            let Some(Reverse((at, key))) = self.parked.pop() else { break };
            if let Some(lane) = self.lanes.get_mut(&key)
                && lane.state == LaneState::Parked(at)
            {
                lane.state = LaneState::Queued;
                Self::update_turn(&mut self.turns, &key, lane);
            }
        }
        let parked = |parked: &BinaryHeap<Reverse<(Instant, Arc<str>)>>| parked.peek().map(|Reverse((at, _))| *at);
        if let Some(at) = self.meter.as_ref().and_then(|meter| meter.wait(now)) {
            return Take::Wait((self.waiting > 0).then_some(at));
        }
        for _ in 0..self.turns.len() {
            let Some(key) = self.turns.pop_front() else { break };
            let Some(lane) = self.lanes.get_mut(&key) else { continue };
            lane.in_turns = false;
            if lane.state != LaneState::Queued {
                continue;
            }
            let ready = self.ready(&key, now);
            let lane = self.lanes.get_mut(&key).expect("it was there just now");
            match ready {
                Ready::Later => drop(Self::update_turn(&mut self.turns, &key, lane)),
                Ready::Full => lane.state = LaneState::Full,
                Ready::At(at) => {
                    lane.state = LaneState::Parked(at);
                    self.parked.push(Reverse((at, key)));
                }
                Ready::Now => {
                    let Some(item) = lane.waiting.pop_front() else {
                        Self::update_turn(&mut self.turns, &key, lane);
                        continue;
                    };
                    lane.busy += 1;
                    (lane.used, lane.moved) = (now, now);
                    lane.pace.begin(now);
                    if let Some(meter) = &mut lane.meter {
                        meter.count(now);
                    }
                    self.waiting -= 1;
                    self.busy += 1;
                    self.slow_busy += usize::from(lane.slow);
                    if let Some(meter) = &mut self.meter {
                        meter.count(now);
                    }
                    // It would only be found full at its turn.
                    if lane.busy >= lane.pace.limit() {
                        lane.state = LaneState::Full;
                    }
                    Self::update_turn(&mut self.turns, &key, lane);
                    return Take::Item(key, item);
                }
            }
        }
        Take::Wait(parked(&self.parked))
    }

    /// Takes further messages from a lane that just had its turn, as long as they are `like` the first, up to `most`.
    /// All leave in one attempt, so the rate limit bounds their number.
    pub fn take_more(&mut self, key: &Arc<str>, most: usize, now: Instant, like: impl Fn(&T) -> bool) -> Vec<T> {
        let mut taken = Vec::new();
        let Some(lane) = self.lanes.get_mut(key) else { return taken };
        let meters = [&self.meter, &lane.meter].into_iter().flatten();
        let most = meters.map(|meter| meter.most() - 1).fold(most, usize::min);
        while taken.len() < most
            && let Some(line) = lane.waiting.front()
            && line.front().is_some_and(&like)
            && let Some(item) = line.pop_front()
        {
            [&mut self.meter, &mut lane.meter].into_iter().flatten().for_each(|meter| meter.count(now));
            taken.push(item);
        }
        self.waiting -= taken.len();
        Self::update_turn(&mut self.turns, key, lane);
        taken
    }

    fn ready(&self, key: &str, now: Instant) -> Ready {
        let lane = &self.lanes[key];
        if let Some(until) = lane.paused_until(now) {
            return Ready::At(until);
        }
        let careful = lane.breaker.is_silent() || lane.breaker.state(now) == BreakerState::Trial;
        let limit = if careful { 1 } else { lane.pace.limit() };
        if lane.busy >= limit {
            return Ready::Full;
        }
        if let Some(at) = lane.meter.as_ref().and_then(|meter| meter.wait(now)) {
            return Ready::At(at);
        }
        let idle = self.sessions.saturating_sub(self.busy);
        let fits = match self.active {
            // A single session cannot be kept in reserve.
            ..=1 => self.sessions == 1 || lane.busy < self.sessions - (self.sessions / 8).max(1),
            _ if lane.slow && self.sessions > 1 && self.slow_busy >= self.sessions / 2 => false,
            _ => lane.busy == 0 || lane.busy < idle,
        };
        if fits { Ready::Now } else { Ready::Later }
    }

    /// Records a finished attempt and its duration. `jitter` is from 0 to 1.
    pub fn done(
        &mut self,
        key: &Arc<str>,
        signal: Signal,
        latency: Duration,
        now: Instant,
        jitter: f64,
    ) -> AttemptEffect<T> {
        let mut done = AttemptEffect { returned: Vec::new(), after: Duration::ZERO, event: None };
        let usual = self.usual;
        let Some(lane) = self.lanes.get_mut(key) else { return done };
        let full = lane.busy >= lane.pace.limit();
        lane.busy = lane.busy.saturating_sub(1);
        self.busy = self.busy.saturating_sub(1);
        self.slow_busy = self.slow_busy.saturating_sub(usize::from(lane.slow));
        (lane.used, lane.moved) = (now, now);
        let mut away = None;
        match signal {
            Signal::Unasked => {}
            Signal::Fine => {
                lane.pace.answered(now, latency, true, full);
                self.usual = Some(usual.map_or(latency, |usual| (usual * 63 + latency) / 64));
                lane.breaker.record_success();
                // A pause that was logged is over, even if the destination asked for a lower rate in between.
                if lane.logged_at.take().is_some() {
                    let after = lane.failing_since.map_or(Duration::ZERO, |since| now - since);
                    done.event = Some(Event::Back { after });
                }
                (lane.failing_since, lane.reason) = (None, None);
            }
            Signal::Slower(wait) => {
                lane.pace.answered(now, latency, false, full);
                lane.pace.slow_down();
                lane.breaker.record_success();
                let wait = wait.unwrap_or(SLOWER_PAUSE);
                lane.paused_until = Some(lane.paused_until.map_or(now + wait, |until| until.max(now + wait)));
                lane.reason = Some("asks for less".into());
                away = (wait > SHORT_PAUSE).then_some(wait);
            }
            Signal::Failed(ref reason) | Signal::Overloaded(ref reason) | Signal::Silent(ref reason) => {
                let silent = matches!(signal, Signal::Silent(_));
                lane.pace.answered(now, latency, false, full);
                if !matches!(signal, Signal::Failed(_)) {
                    lane.pace.slow_down();
                }
                lane.failing_since.get_or_insert(now);
                let reason: Box<str> = reason.chars().take(REASON_CHARS_MAX).collect::<String>().into();
                if let Some(pause) = lane.breaker.fail(now, silent, jitter) {
                    let log = lane.logged_at.is_none_or(|at| now - at >= LOG_INTERVAL);
                    if log {
                        lane.logged_at = Some(now);
                    }
                    let failures = lane.breaker.failures();
                    done.event = Some(Event::Paused { pause, reason: reason.clone(), failures, log });
                    away = Some(pause);
                }
                lane.reason = Some(reason);
            }
        }
        if let Some(after) = away {
            done.returned = lane.waiting.drain().collect();
            done.after = after;
            self.waiting -= done.returned.len();
        }
        self.active -= usize::from(!lane.is_active());
        // One slow answer does not make a destination slow; the usual time is the average of all destinations.
        let slow = lane.breaker.failures() > 0
            || lane.pace.latency().zip(usual).is_some_and(|(own, usual)| own > usual * SLOW + SHORT_PAUSE / 100);
        if slow != lane.slow {
            lane.slow = slow;
            self.slow_busy = if slow { self.slow_busy + lane.busy } else { self.slow_busy.saturating_sub(lane.busy) };
        }
        // Whether it may leave is checked at its turn.
        lane.state = LaneState::Queued;
        Self::update_turn(&mut self.turns, key, lane);
        done
    }

    /// Removes all waiting messages.
    pub fn clear(&mut self) -> Vec<T> {
        self.turns.clear();
        self.parked.clear();
        self.waiting = 0;
        let mut left = Vec::new();
        for lane in self.lanes.values_mut() {
            left.extend(lane.waiting.drain());
            (lane.state, lane.in_turns) = (LaneState::Empty, false);
        }
        self.active = self.lanes.values().filter(|lane| lane.is_active()).count();
        left
    }

    /// Forgets idle destinations.
    fn sweep(&mut self, now: Instant) {
        let due = self.last_sweep.is_none_or(|swept| now - swept >= SWEEP_PAUSE);
        let crowded = self.lanes.len() >= 2 * REMEMBERED;
        if self.lanes.len() < REMEMBERED || !(due || crowded) {
            return;
        }
        self.last_sweep = Some(now);
        // A lane that has a turn or is parked has messages, so it is active.
        self.lanes.retain(|_, lane| {
            let calm = lane.breaker.failures() == 0 && lane.paused_until(now).is_none() && now - lane.used >= FORGOTTEN;
            lane.is_active() || lane.in_turns || !(calm || crowded)
        });
    }

    /// The number of destinations in each state.
    pub fn destination_counts(&self, now: Instant) -> [usize; DestinationState::ALL.len()] {
        let mut destination_counts = [0; DestinationState::ALL.len()];
        for lane in self.lanes.values() {
            destination_counts[self.state_of(lane, now) as usize] += 1;
        }
        destination_counts
    }

    /// A destination is stalled if messages wait and may leave, but none has left for a minute.
    fn state_of(&self, lane: &DestinationLane<T>, now: Instant) -> DestinationState {
        let is_paced = self.meter.as_ref().is_some_and(|meter| meter.wait(now).is_some());
        if !is_paced && lane.unserved(now).is_some_and(|time| time >= STALLED) {
            return DestinationState::Stalled;
        }
        DestinationState::of(lane.breaker.state(now))
    }

    /// The destinations: those with failures first, then the busiest.
    pub fn destinations(&self, limit: usize, now: Instant) -> Vec<Destination> {
        let mut lanes: Vec<(&Arc<str>, &DestinationLane<T>)> = self.lanes.iter().collect();
        let rank = |(key, lane): &(&Arc<str>, &DestinationLane<T>)| {
            let has_failures = lane.paused_until(now).is_some() || self.state_of(lane, now) != DestinationState::Open;
            (Reverse((has_failures, lane.breaker.failures(), lane.waiting.len(), lane.busy)), Arc::clone(key))
        };
        lanes.sort_by_cached_key(rank);
        lanes.truncate(limit);
        lanes
            .into_iter()
            .map(|(key, lane)| Destination {
                name: key.to_string(),
                state: self.state_of(lane, now),
                concurrency: lane.pace.limit() as u32,
                busy: lane.busy as u32,
                waiting: lane.waiting.len() as u32,
                latency: lane.pace.latency(),
                failures: lane.breaker.failures(),
                failing_for: lane.failing_since.map(|since| now - since),
                paused_for: lane.paused_until(now).map(|until| until - now),
                reason: lane.reason.as_ref().map(|reason| reason.to_string()),
            })
            .collect()
    }
}

impl DestinationState {
    fn of(state: BreakerState) -> Self {
        match state {
            BreakerState::Open => DestinationState::Open,
            BreakerState::Trial => DestinationState::Trial,
            BreakerState::Paused(_) => DestinationState::Paused,
        }
    }
}

#[cfg(test)]
mod model; // state-machine model: checks all short sequences of events
#[cfg(test)]
mod tests;
