use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque},
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
    provider_pace::HoldBack,
    providers::{LaneProvider, Providers},
    rate::Meter,
    warm_up::Answers,
};
use crate::channel::{Destination, DestinationState, HeldBackMail};

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
/// A provider is listed for so long after it last held mail back, and for the time of its pause.
const HELD_BACK_LISTED: Duration = Duration::from_secs(15 * 60);
/// A destination without a message in flight for this long, although messages wait and may leave, is reported.
const STALLED: Duration = Duration::from_secs(60);

/// Result of an attempt, as far as it concerns the destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Signal {
    /// It answered, with success or a proper refusal.
    Fine,
    /// It was not contacted.
    Unasked,
    /// It answered with a failure of this message alone. For mailbox providers.
    Answered,
    /// It asks for a lower rate, or for a pause.
    Slower(Option<Duration>),
    /// It answered that it is broken.
    Failed(String),
    /// It answered that it is overloaded.
    Overloaded(String),
    /// It did not answer.
    Silent(String),
    /// A mailbox provider holds mail back, with its reply.
    HeldBack(HoldBack, String),
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
    /// If the destinations are mailbox providers.
    providers: Option<Box<Providers>>,
}

#[derive(Clone)]
struct DestinationLane<T> {
    waiting: AgingQueue<T>,
    busy: usize,
    /// Messages in `busy` that a session sent ahead, while it waits for the answer to another message.
    ahead: usize,
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
    provider: Option<Box<LaneProvider>>,
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
    /// A mailbox provider holds mail back. `log`: it was not logged recently.
    HeldBack { pause: Duration, said: Box<str>, log: bool },
    /// A mailbox provider takes mail at the full rate again.
    Recovered { after: Duration },
}

impl<T: Waits> DestinationLane<T> {
    fn new(flow: &Flow, now: Instant) -> Self {
        DestinationLane {
            waiting: AgingQueue::new(),
            busy: 0,
            ahead: 0,
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
            provider: None,
        }
    }

    /// Most messages in flight.
    fn limit(&self) -> usize {
        let by_pace = self.provider.as_ref().map_or(usize::MAX, |provider| provider.pace.limit());
        self.pace.limit().min(by_pace)
    }

    fn is_active(&self) -> bool {
        self.busy > 0 || !self.waiting.is_empty()
    }

    /// End of the pause in which nothing may leave.
    fn paused_until(&self, now: Instant) -> Option<Instant> {
        let held_back = self.provider.as_ref().and_then(|provider| provider.pace.paused_until(now));
        let paused = self.paused_until.filter(|until| *until > now).max(held_back);
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
        let held_until = self.provider.as_ref().and_then(|provider| provider.pace.pause_end());
        let paused_until = self.paused_until.max(self.breaker.until()).max(held_until);
        Some(now.saturating_duration_since(paused_until.map_or(self.moved, |until| until.max(self.moved))))
    }

    /// Messages of one priority that may wait here, if `free` may by the free room of the queue.
    fn room(&self, free: usize) -> usize {
        let by_pace = self.provider.as_ref().map_or(usize::MAX, |provider| provider.pace.room());
        free.min(by_pace).max(LANE_ROOM_MIN)
    }

    /// Expected time until the waiting messages have left.
    fn drained(&self) -> Option<Duration> {
        let count = u32::try_from(self.waiting.len()).unwrap_or(u32::MAX);
        let by_latency = self.pace.latency().map(|latency| latency * count / self.pace.limit().max(1) as u32);
        let by_rate = self.meter.as_ref().map(|meter| meter.span(self.waiting.len()));
        let by_pace = self.provider.as_ref().and_then(|provider| provider.pace.interval());
        by_latency.max(by_rate).max(by_pace.map(|each| each.saturating_mul(count)))
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
            providers: None,
        }
    }

    /// A scheduler whose lanes are mailbox providers. Their pace replaces the circuit breaker.
    pub fn of_providers(providers: Providers, flow: Flow, sessions: usize, room: usize) -> Self {
        let flow = Flow { failures_before_pause: 0, pace: application::Pace::Fixed, ..flow };
        Lanes { providers: Some(Box::new(providers)), ..Lanes::new(flow, sessions, room) }
    }

    /// The state of all mailbox providers.
    pub fn providers_mut(&mut self) -> Option<&mut Providers> {
        self.providers.as_deref_mut()
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
            let mut lane = DestinationLane::new(&self.flow, now);
            if let Some(providers) = &self.providers {
                let provider = providers.lane(key, now);
                lane.pace = AdaptiveConcurrency::fixed(provider.pace.limit());
                lane.provider = Some(Box::new(provider));
            }
            self.lanes.insert(key.clone(), lane);
        }
        let priority = item.priority();
        if let Some(wait) = self.hold(key, priority, now) {
            return Pushed::NoRoom(item, Some(wait));
        }
        let free = self.room.saturating_sub(self.waiting);
        let lane = self.lanes.get_mut(key).expect("it was put there if it was missing");
        if lane.waiting.len_of(priority) >= lane.room(free) {
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
        Pushed::Waits { wake: has_new_turn || lane.busy + lane.waiting.len() <= lane.limit() }
    }

    /// Puts a message back that was taken and did not leave. It is never refused.
    pub fn push_front(&mut self, key: &Arc<str>, item: T) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        self.active += usize::from(!lane.is_active());
        lane.waiting.push_front(item);
        self.waiting += 1;
        Self::update_turn(&mut self.turns, key, lane);
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
        if let (Some(provider), Some(providers)) = (&lane.provider, &self.providers)
            && let Some(wait) = providers.hold(&provider.label, now)
            && wait > SHORT_PAUSE
        {
            return Some(wait);
        }
        let free = self.room.saturating_sub(self.waiting);
        if lane.waiting.len_of(priority) < lane.room(free) {
            return None;
        }
        // A lane that makes progress has room soon; its sender waits for it.
        lane.drained().filter(|time| *time >= RETURN_MIN).map(|time| (time / 2).clamp(RETURN_MIN, RETURN_MAX))
    }

    /// As [`hold`](Lanes::hold), for a message that waits in the journal: those for one provider are due one after the
    /// other, at its pace.
    pub fn book(&mut self, key: &str, priority: Priority, now: Instant) -> Option<Duration> {
        let wait = self.hold(key, priority, now)?;
        let provider = self.lanes.get_mut(key).and_then(|lane| lane.provider.as_mut());
        Some(provider.map_or(wait, |provider| provider.book(wait, now)))
    }

    /// Delay of a message without room, in a lane that was expected to make progress.
    pub fn retry_delay(&self, key: &str) -> Duration {
        let drained = self.lanes.get(key).and_then(DestinationLane::drained).unwrap_or_default();
        (drained / 2).clamp(RETURN_MIN, RETURN_MAX)
    }

    /// The next message that may leave through a free session.
    pub fn take(&mut self, now: Instant) -> Take<T> {
        self.take_as(None, now)
    }

    /// The next message that a session may send ahead while it waits for an answer of the lane `current`. It occupies
    /// no session until [`promote`](Lanes::promote).
    ///
    /// Sending ahead changes no share of the sessions: mostly the message is for the same destination. None is sent
    /// ahead to a slow destination, since others would wait for it.
    pub fn take_ahead(&mut self, current: &str, now: Instant) -> Take<T> {
        self.take_as(Some(current), now)
    }

    /// Counts a message that was sent ahead as one that occupies its session.
    pub fn promote(&mut self, key: &Arc<str>) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        lane.ahead = lane.ahead.saturating_sub(1);
        self.busy += 1;
        self.slow_busy += usize::from(lane.slow);
    }

    /// Whether a destination is slow.
    pub fn is_slow(&self, key: &str) -> bool {
        self.lanes.get(key).is_some_and(|lane| lane.slow)
    }

    fn take_as(&mut self, ahead_of: Option<&str>, now: Instant) -> Take<T> {
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
            let ready = self.ready(&key, ahead_of, now);
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
                    Self::count(&mut self.providers, lane, now);
                    self.waiting -= 1;
                    if ahead_of.is_some() {
                        lane.ahead += 1;
                    } else {
                        self.busy += 1;
                        self.slow_busy += usize::from(lane.slow);
                    }
                    if let Some(meter) = &mut self.meter {
                        meter.count(now);
                    }
                    // It would only be found full at its turn.
                    if lane.busy >= lane.limit() {
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
        let mut most = meters.map(|meter| meter.most() - 1).fold(most, usize::min);
        if let (Some(provider), Some(providers)) = (&lane.provider, &self.providers) {
            most = most.min(provider.pace.recipients_max() - 1);
            most = most.min(providers.recipients_max(&provider.label, now));
        }
        while taken.len() < most
            && let Some(line) = lane.waiting.front()
            && line.front().is_some_and(&like)
            && let Some(item) = line.pop_front()
        {
            [&mut self.meter, &mut lane.meter].into_iter().flatten().for_each(|meter| meter.count(now));
            Self::count(&mut self.providers, lane, now);
            taken.push(item);
        }
        self.waiting -= taken.len();
        Self::update_turn(&mut self.turns, key, lane);
        taken
    }

    /// Counts a recipient of a mailbox provider whose mail leaves now.
    fn count(providers: &mut Option<Box<Providers>>, lane: &mut DestinationLane<T>, now: Instant) {
        if let (Some(provider), Some(providers)) = (&mut lane.provider, providers) {
            provider.pace.take(now);
            providers.reserve(&provider.label);
        }
    }

    fn ready(&self, key: &str, ahead_of: Option<&str>, now: Instant) -> Ready {
        let lane = &self.lanes[key];
        if let Some(until) = lane.paused_until(now) {
            return Ready::At(until);
        }
        let careful = lane.breaker.is_silent() || lane.breaker.state(now) == BreakerState::Trial;
        let limit = if careful { 1 } else { lane.limit() };
        if lane.busy >= limit {
            return Ready::Full;
        }
        if let (Some(provider), Some(providers)) = (&lane.provider, &self.providers)
            && let Some(at) = provider.pace.wait(now).max(providers.wait(&provider.label, now))
        {
            return Ready::At(at);
        }
        if let Some(at) = lane.meter.as_ref().and_then(|meter| meter.wait(now)) {
            return Ready::At(at);
        }
        let idle = self.sessions.saturating_sub(self.busy);
        let sessions = lane.busy - lane.ahead;
        let fits = match self.active {
            _ if ahead_of.is_some() && lane.slow => false,
            active if ahead_of == Some(key) => active <= 1 || sessions <= idle + 1,
            _ if ahead_of.is_some() => idle == 0 && lane.busy == 0,
            // A single session cannot be kept in reserve.
            ..=1 => self.sessions == 1 || sessions < self.sessions - (self.sessions / 8).max(1),
            _ if lane.slow && self.sessions > 1 && self.slow_busy >= self.sessions / 2 => false,
            _ => sessions == 0 || sessions < idle,
        };
        if fits { Ready::Now } else { Ready::Later }
    }

    /// Records the answers to the recipients of a mail, before `done`.
    pub fn settle(&mut self, key: &Arc<str>, answers: Answers, now: Instant) {
        let provider = self.lanes.get(key).and_then(|lane| lane.provider.as_ref());
        if let (Some(provider), Some(providers)) = (provider, &mut self.providers) {
            providers.settle(&provider.label, answers, now);
        }
    }

    /// Records that a later server reports delayed mail for a destination.
    pub fn delayed(&mut self, key: &str, said: &str, now: Instant) {
        if let Some(provider) = self.lanes.get_mut(key).and_then(|lane| lane.provider.as_mut()) {
            provider.pace.held_back(HoldBack::Delayed, said, now, 0.0);
        }
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
            Signal::Answered => {
                lane.pace.answered(now, latency, true, full);
                if let Some(provider) = &mut lane.provider {
                    provider.pace.answered(now, false);
                }
            }
            Signal::Fine => {
                lane.pace.answered(now, latency, true, full);
                self.usual = Some(usual.map_or(latency, |usual| (usual * 63 + latency) / 64));
                lane.breaker.record_success();
                // A pause that was logged is over, even if the destination asked for a lower rate in between.
                let is_held_back = lane.provider.as_ref().is_some_and(|provider| provider.pace.holds_back());
                if !is_held_back && lane.logged_at.take().is_some() {
                    let after = lane.failing_since.map_or(Duration::ZERO, |since| now - since);
                    done.event = Some(Event::Back { after });
                }
                (lane.failing_since, lane.reason) = (None, None);
                if let Some(provider) = &mut lane.provider
                    && let Some(after) = provider.pace.answered(now, true)
                {
                    lane.logged_at = None;
                    done.event = Some(Event::Recovered { after });
                }
            }
            Signal::HeldBack(kind, said) => {
                lane.pace.answered(now, latency, true, full);
                let pause =
                    lane.provider.as_mut().and_then(|provider| provider.pace.held_back(kind, &said, now, jitter));
                if let Some(pause) = pause {
                    let log = lane.logged_at.is_none_or(|at| now - at >= LOG_INTERVAL);
                    if log {
                        lane.logged_at = Some(now);
                    }
                    let said = said.chars().take(REASON_CHARS_MAX).collect::<String>().into();
                    done.event = Some(Event::HeldBack { pause, said, log });
                    away = (pause > SHORT_PAUSE).then_some(pause);
                }
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
        let label = lane.provider.as_ref().map(|provider| provider.label.clone());
        self.active -= usize::from(!lane.is_active());
        // One slow answer does not make a destination slow; the usual time is the average of all destinations.
        let slow = lane.breaker.failures() > 0
            || lane.pace.latency().zip(usual).is_some_and(|(own, usual)| own > usual * SLOW + SHORT_PAUSE / 100);
        if slow != lane.slow {
            lane.slow = slow;
            let sessions = lane.busy - lane.ahead;
            self.slow_busy = if slow { self.slow_busy + sessions } else { self.slow_busy.saturating_sub(sessions) };
        }
        // Whether it may leave is checked at its turn.
        lane.state = LaneState::Queued;
        Self::update_turn(&mut self.turns, key, lane);
        if let Some(label) = label {
            self.drain_used_up(&label, now, &mut done);
        }
        done
    }

    /// Removes the waiting messages of all providers whose warm-up allows no more today, and says when they are due.
    pub fn drain_all_used_up(&mut self, now: Instant) -> AttemptEffect<T> {
        let waiting = self.lanes.values().filter(|lane| !lane.waiting.is_empty());
        let labels: BTreeSet<Arc<str>> =
            waiting.filter_map(|lane| Some(lane.provider.as_ref()?.label.clone())).collect();
        let mut done = AttemptEffect { returned: Vec::new(), after: Duration::ZERO, event: None };
        labels.iter().for_each(|label| self.drain_used_up(label, now, &mut done));
        done
    }

    /// Returns the waiting messages of a provider whose warm-up allows no more today: they would wait for hours.
    fn drain_used_up(&mut self, label: &str, now: Instant, done: &mut AttemptEffect<T>) {
        let wait = self.providers.as_ref().and_then(|providers| providers.hold(label, now));
        let Some(wait) = wait.filter(|wait| *wait > SHORT_PAUSE) else { return };
        for (key, lane) in &mut self.lanes {
            let is_same = lane.provider.as_ref().is_some_and(|provider| *provider.label == *label);
            if !is_same || lane.waiting.is_empty() {
                continue;
            }
            let returned = lane.waiting.drain();
            let before = done.returned.len();
            done.returned.extend(returned);
            self.waiting -= done.returned.len() - before;
            self.active -= usize::from(!lane.is_active());
            Self::update_turn(&mut self.turns, key, lane);
        }
        done.after = done.after.max(wait);
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
            let is_held_back = lane.provider.as_ref().is_some_and(|provider| provider.pace.holds_back());
            let has_failures = lane.breaker.failures() > 0 || lane.paused_until(now).is_some() || is_held_back;
            let calm = !has_failures && now - lane.used >= FORGOTTEN;
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
        let mut is_paced = self.meter.as_ref().is_some_and(|meter| meter.wait(now).is_some());
        if let (Some(provider), Some(providers)) = (&lane.provider, &self.providers) {
            is_paced |= provider.pace.wait(now).is_some() || providers.wait(&provider.label, now).is_some();
            if provider.pace.paused_until(now).is_some() {
                return DestinationState::Paused;
            }
        }
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
                concurrency: lane.limit() as u32,
                busy: lane.busy as u32,
                waiting: lane.waiting.len() as u32,
                latency: lane.pace.latency(),
                failures: lane.breaker.failures(),
                failing_for: lane.failing_since.map(|since| now - since),
                paused_for: lane.paused_until(now).map(|until| until - now),
                reason: self.reason(lane, now),
            })
            .collect()
    }

    /// The latest failure of a destination, or the limit of a provider.
    fn reason(&self, lane: &DestinationLane<T>, now: Instant) -> Option<String> {
        let provider = lane.provider.as_ref();
        let said = provider.and_then(|provider| provider.pace.said());
        said.or(lane.reason.as_deref()).map(str::to_owned).or_else(|| {
            let (provider, providers) = (provider?, self.providers.as_ref()?);
            providers.warm_up_reached(&provider.label, now)
        })
    }

    /// The mailbox providers that hold mail back, those with the longest pause first.
    pub fn held_back(&self, now: Instant) -> Vec<HeldBackMail> {
        let held_back = |(key, lane): (&Arc<str>, &DestinationLane<T>)| {
            let pace = &lane.provider.as_ref()?.pace;
            let paused_for = pace.paused_until(now).map(|until| until - now);
            let is_recent = pace.held_at().is_some_and(|at| now - at < HELD_BACK_LISTED);
            (is_recent || paused_for.is_some()).then_some(())?;
            Some(HeldBackMail {
                provider: key.to_string(),
                lasted: pace.held_since().map(|since| now - since)?,
                paused_for,
                interval: pace.interval(),
                waiting: lane.waiting.len() as u32,
                said: pace.said().unwrap_or_default().to_owned(),
            })
        };
        let mut found: Vec<HeldBackMail> = self.lanes.iter().filter_map(held_back).collect();
        found.sort_by(|one, other| (other.paused_for, &one.provider).cmp(&(one.paused_for, &other.provider)));
        found
    }

    /// Number of providers that hold mail back, by label.
    pub fn held_back_counts(&self) -> BTreeMap<Arc<str>, u32> {
        let mut counts = BTreeMap::new();
        for provider in self.lanes.values().filter_map(|lane| lane.provider.as_ref()) {
            *counts.entry(provider.label.clone()).or_insert(0) += u32::from(provider.pace.holds_back());
        }
        counts
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
