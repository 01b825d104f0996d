use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    sync::Arc,
    time::Duration,
};

use hashbrown::HashMap;
use tocsin_model::{
    application::{self, Flow},
    conduct::Priority,
};
use tocsin_pace::Pace;
use tokio::time::Instant;

use super::{
    breaker::{Breaker, Way},
    line::{Line, Waits},
    rate::Meter,
};
use crate::channel::{Destination, DestinationState};

/// A lane has room for so many, however full the queue is.
const LANE_ROOM_MIN: usize = 16;
/// Destinations that are remembered; beyond that those without trouble are forgotten once nothing is left for them, and
/// beyond twice that all such.
const REMEMBERED: usize = 10_000;
/// A destination that had nothing for so long, and no trouble, may be forgotten.
const FORGOTTEN: Duration = Duration::from_secs(60);
const SWEEP_PAUSE: Duration = Duration::from_secs(10);
/// What has no room comes back after the half of what is before it is done, within these bounds.
const RETURN_MIN: Duration = Duration::from_secs(1);
const RETURN_MAX: Duration = Duration::from_secs(900);
/// How long a far side that asks for less, but not for how long, is let be.
const SLOWER_PAUSE: Duration = Duration::from_secs(1);
/// A pause up to this is waited for in the queue.
const SHORT_PAUSE: Duration = Duration::from_secs(2);
/// What waits for a destination on trial comes back after this time.
const TRIAL_PAUSE: Duration = Duration::from_secs(3);
/// A destination this many times slower than usual is a slow one.
const SLOW: u32 = 8;
/// Trouble that goes on is told again after this time.
const TOLD_AGAIN: Duration = Duration::from_secs(900);
const REASON_CHARS_MAX: usize = 200;
/// A destination that may be served, and gets nothing for so long while messages wait, is reported.
const STALLED: Duration = Duration::from_secs(60);

/// What an attempt says about its destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Signal {
    /// It answered in earnest, whatever it said.
    Fine,
    /// It was not asked.
    Unasked,
    /// It asks for less, perhaps for none for a while.
    Slower(Option<Duration>),
    /// It answered that it is broken.
    Failed(String),
    /// The same, because it has too much to do.
    Overloaded(String),
    /// It did not answer.
    Silent(String),
}

/// Who may go next, of all that wait, each for one destination.
///
/// Lanes take turns, and in each what presses goes first. One that is slow or dead keeps the others from nothing: of the queue it gets no more than what is
/// left free, of the sessions as much as are idle, and all slow ones together at most half of them while others have
/// work. A lane that is alone leaves an eighth of the sessions, so that a newcomer always finds one.
#[derive(Clone)]
pub(crate) struct Lanes<T> {
    lanes: HashMap<Arc<str>, Lane<T>>,
    turns: VecDeque<Arc<str>>,
    parked: BinaryHeap<Reverse<(Instant, Arc<str>)>>,
    flow: Flow,
    sessions: usize,
    room: usize,
    waiting: usize,
    busy: usize,
    slow_busy: usize,
    /// Lanes with something to do.
    active: usize,
    meter: Option<Meter>,
    usual: Option<Duration>,
    swept: Option<Instant>,
}

#[derive(Clone)]
struct Lane<T> {
    waiting: Line<T>,
    busy: usize,
    state: LaneState,
    /// Whether its key is in `turns`. A key stays there when its lane is emptied, and is skipped then.
    in_turns: bool,
    pace: Pace,
    breaker: Breaker,
    meter: Option<Meter>,
    paused_until: Option<Instant>,
    slow: bool,
    failing_since: Option<Instant>,
    told: Option<Instant>,
    reason: Option<Box<str>>,
    used: Instant,
    /// When a message last left or was answered, or when the first message came into the empty lane.
    moved: Instant,
}

/// State of a destination's queue. Each state names the event that ends it, so no message waits without one.
///
/// `Lanes::settle` is the only place that leaves `Empty` or enters it; the test module `model` checks all sequences of events.
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
    /// When others are done.
    Later,
    /// When one of its own is done.
    Full,
    At(Instant),
}

/// The next message, or when to look again if nothing happens before.
pub(crate) enum Take<T> {
    Item(Arc<str>, T),
    Wait(Option<Instant>),
}

/// What became of a message that was to wait.
pub(crate) enum Pushed<T> {
    /// It waits; `wake`: a session may take it.
    Waits { wake: bool },
    /// There is no room now. It may well be there soon (`None`), or is better asked for after this time.
    NoRoom(T, Option<Duration>),
}

/// What a finished attempt changed.
pub(crate) struct Done<T> {
    /// What waited and is better sent later.
    pub returned: Vec<T>,
    /// Namely after this time.
    pub after: Duration,
    pub event: Option<Event>,
}

/// What an operator may want to know of a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// It is let be for a while. `tell`: it was not told of late.
    Paused { pause: Duration, reason: Box<str>, failures: u32, tell: bool },
    /// It is served again.
    Back { after: Duration },
}

impl<T: Waits> Lane<T> {
    fn new(flow: &Flow, now: Instant) -> Self {
        Lane {
            waiting: Line::new(),
            busy: 0,
            state: LaneState::Empty,
            in_turns: false,
            pace: match flow.pace {
                application::Pace::Auto => Pace::new(flow.per_destination as usize),
                application::Pace::Fixed => Pace::fixed(flow.per_destination as usize),
            },
            breaker: Breaker::new(flow.failures_before_pause),
            meter: flow.rate_per_destination.map(Meter::new),
            paused_until: None,
            slow: false,
            failing_since: None,
            told: None,
            reason: None,
            used: now,
            moved: now,
        }
    }

    fn is_active(&self) -> bool {
        self.busy > 0 || !self.waiting.is_empty()
    }

    /// Until when nothing may go there.
    fn shut(&self, now: Instant) -> Option<Instant> {
        let paused = self.paused_until.filter(|until| *until > now);
        match self.breaker.way(now) {
            Way::Shut(until) => Some(paused.map_or(until, |paused| paused.max(until))),
            _ => paused,
        }
    }

    /// The time that messages have waited for a destination that may be served and gets nothing.
    fn unserved(&self, now: Instant) -> Option<Duration> {
        if self.waiting.is_empty() || self.busy > 0 || self.shut(now).is_some() {
            return None;
        }
        if self.meter.as_ref().is_some_and(|meter| meter.wait(now).is_some()) {
            return None;
        }
        let paused_until = self.paused_until.max(self.breaker.until());
        Some(now.saturating_duration_since(paused_until.map_or(self.moved, |until| until.max(self.moved))))
    }

    /// When what waits will about have left.
    fn drained(&self) -> Option<Duration> {
        let count = u32::try_from(self.waiting.len()).unwrap_or(u32::MAX);
        let by_latency = self.pace.latency().map(|latency| latency * count / self.pace.limit().max(1) as u32);
        let by_rate = self.meter.as_ref().map(|meter| meter.span(self.waiting.len()));
        by_latency.max(by_rate)
    }
}

impl<T: Waits> Lanes<T> {
    /// For so many sessions, with room for so many messages.
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
            swept: None,
        }
    }

    /// From now on messages leave no faster than this, all together.
    pub fn keep_to(&mut self, meter: Option<Meter>) {
        self.meter = meter;
    }

    /// Messages that wait.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Whether another session has to look: a lane has a turn, or is parked until a time for which a session must wait.
    pub fn needs_session(&self) -> bool {
        !self.turns.is_empty() || !self.parked.is_empty()
    }

    /// The key of a lane; one that is known is not made again.
    pub fn key(&self, text: &str) -> Arc<str> {
        self.lanes.get_key_value(text).map_or_else(|| Arc::from(text), |(key, _)| key.clone())
    }

    /// Appends a message to its lane.
    pub fn push(&mut self, key: &Arc<str>, item: T, now: Instant) -> Pushed<T> {
        if !self.lanes.contains_key(key) {
            self.sweep(now);
            self.lanes.insert(key.clone(), Lane::new(&self.flow, now));
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
        let has_new_turn = Self::settle(&mut self.turns, key, lane);
        Pushed::Waits { wake: has_new_turn || lane.busy + lane.waiting.len() <= lane.pace.limit() }
    }

    /// Brings the state of a lane in line with its messages. Ends every change of what waits in a lane. Returns whether the
    /// lane got a turn.
    fn settle(turns: &mut VecDeque<Arc<str>>, key: &Arc<str>, lane: &mut Lane<T>) -> bool {
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

    /// How long a message of this priority for this destination is better not even made.
    pub fn hold(&self, key: &str, priority: Priority, now: Instant) -> Option<Duration> {
        let lane = self.lanes.get(key)?;
        if let Some(until) = lane.shut(now)
            && until - now > SHORT_PAUSE
        {
            return Some(until - now);
        }
        match lane.breaker.way(now) {
            Way::Shut(until) => return Some(until - now),
            Way::Trial if lane.is_active() => return Some(TRIAL_PAUSE),
            _ => {}
        }
        let free = self.room.saturating_sub(self.waiting);
        if lane.waiting.len_of(priority) < free.max(LANE_ROOM_MIN) {
            return None;
        }
        // A lane that moves has room in a moment; its sender waits for it.
        lane.drained().filter(|time| *time >= RETURN_MIN).map(|time| (time / 2).clamp(RETURN_MIN, RETURN_MAX))
    }

    /// How long something without room, in a lane that was thought to move, stays away.
    pub fn stay_away(&self, key: &str) -> Duration {
        let drained = self.lanes.get(key).and_then(Lane::drained).unwrap_or_default();
        (drained / 2).clamp(RETURN_MIN, RETURN_MAX)
    }

    /// The next message that may go.
    pub fn take(&mut self, now: Instant) -> Take<T> {
        while let Some(Reverse((at, _))) = self.parked.peek()
            && *at <= now
        {
            let Some(Reverse((at, key))) = self.parked.pop() else { break };
            if let Some(lane) = self.lanes.get_mut(&key)
                && lane.state == LaneState::Parked(at)
            {
                lane.state = LaneState::Queued;
                Self::settle(&mut self.turns, &key, lane);
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
                Ready::Later => drop(Self::settle(&mut self.turns, &key, lane)),
                Ready::Full => lane.state = LaneState::Full,
                Ready::At(at) => {
                    lane.state = LaneState::Parked(at);
                    self.parked.push(Reverse((at, key)));
                }
                Ready::Now => {
                    let Some(item) = lane.waiting.pop_front() else {
                        Self::settle(&mut self.turns, &key, lane);
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
                    Self::settle(&mut self.turns, &key, lane);
                    return Take::Item(key, item);
                }
            }
        }
        Take::Wait(parked(&self.parked))
    }

    /// Takes what goes next in a lane, from which something was taken just now, as long as it is `like` that, `most` at most.
    /// All of it leaves in that one attempt, so it is no more than the rates allow in their time.
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
        Self::settle(&mut self.turns, key, lane);
        taken
    }

    fn ready(&self, key: &str, now: Instant) -> Ready {
        let lane = &self.lanes[key];
        if let Some(until) = lane.shut(now) {
            return Ready::At(until);
        }
        let careful = lane.breaker.is_silent() || lane.breaker.way(now) == Way::Trial;
        let limit = if careful { 1 } else { lane.pace.limit() };
        if lane.busy >= limit {
            return Ready::Full;
        }
        if let Some(at) = lane.meter.as_ref().and_then(|meter| meter.wait(now)) {
            return Ready::At(at);
        }
        let idle = self.sessions.saturating_sub(self.busy);
        let fits = match self.active {
            // One session is nobody's reserve.
            ..=1 => self.sessions == 1 || lane.busy < self.sessions - (self.sessions / 8).max(1),
            _ if lane.slow && self.sessions > 1 && self.slow_busy >= self.sessions / 2 => false,
            _ => lane.busy == 0 || lane.busy < idle,
        };
        if fits { Ready::Now } else { Ready::Later }
    }

    /// An attempt is over; it took so long. `luck` is from 0 to 1.
    pub fn done(&mut self, key: &Arc<str>, signal: Signal, latency: Duration, now: Instant, luck: f64) -> Done<T> {
        let mut done = Done { returned: Vec::new(), after: Duration::ZERO, event: None };
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
                lane.breaker.succeed();
                // A pause that was reported is history, also if the destination asked for less in between.
                if lane.told.take().is_some() {
                    let after = lane.failing_since.map_or(Duration::ZERO, |since| now - since);
                    done.event = Some(Event::Back { after });
                }
                (lane.failing_since, lane.reason) = (None, None);
            }
            Signal::Slower(wait) => {
                lane.pace.answered(now, latency, false, full);
                lane.pace.slow_down();
                lane.breaker.succeed();
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
                if let Some(pause) = lane.breaker.fail(now, silent, luck) {
                    let tell = lane.told.is_none_or(|told| now - told >= TOLD_AGAIN);
                    if tell {
                        lane.told = Some(now);
                    }
                    let failures = lane.breaker.failures();
                    done.event = Some(Event::Paused { pause, reason: reason.clone(), failures, tell });
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
        // One slow answer makes nobody slow; the usual time is that of all destinations.
        let slow = lane.breaker.failures() > 0
            || lane.pace.latency().zip(usual).is_some_and(|(own, usual)| own > usual * SLOW + SHORT_PAUSE / 100);
        if slow != lane.slow {
            lane.slow = slow;
            self.slow_busy = if slow { self.slow_busy + lane.busy } else { self.slow_busy.saturating_sub(lane.busy) };
        }
        // Whether it may go is looked at when its turn comes.
        lane.state = LaneState::Queued;
        Self::settle(&mut self.turns, key, lane);
        done
    }

    /// Takes all that waits out of the queue.
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

    /// Forgets destinations that nobody needs to remember.
    fn sweep(&mut self, now: Instant) {
        let due = self.swept.is_none_or(|swept| now - swept >= SWEEP_PAUSE);
        let crowded = self.lanes.len() >= 2 * REMEMBERED;
        if self.lanes.len() < REMEMBERED || !(due || crowded) {
            return;
        }
        self.swept = Some(now);
        // A lane that has a turn or is parked has messages, so it is active.
        self.lanes.retain(|_, lane| {
            let calm = lane.breaker.failures() == 0 && lane.shut(now).is_none() && now - lane.used >= FORGOTTEN;
            lane.is_active() || lane.in_turns || !(calm || crowded)
        });
    }

    /// The number of destinations in each state.
    pub fn census(&self, now: Instant) -> [usize; DestinationState::ALL.len()] {
        let mut census = [0; DestinationState::ALL.len()];
        for lane in self.lanes.values() {
            census[self.state_of(lane, now) as usize] += 1;
        }
        census
    }

    /// A lane that may be served, and gets nothing for a minute while messages wait, is stalled.
    fn state_of(&self, lane: &Lane<T>, now: Instant) -> DestinationState {
        let is_paced = self.meter.as_ref().is_some_and(|meter| meter.wait(now).is_some());
        if !is_paced && lane.unserved(now).is_some_and(|time| time >= STALLED) {
            return DestinationState::Stalled;
        }
        DestinationState::of(lane.breaker.way(now))
    }

    /// The destinations, those with trouble first, then those with most to do.
    pub fn destinations(&self, limit: usize, now: Instant) -> Vec<Destination> {
        let mut lanes: Vec<(&Arc<str>, &Lane<T>)> = self.lanes.iter().collect();
        let rank = |(key, lane): &(&Arc<str>, &Lane<T>)| {
            let trouble = lane.shut(now).is_some() || self.state_of(lane, now) != DestinationState::Open;
            (Reverse((trouble, lane.breaker.failures(), lane.waiting.len(), lane.busy)), Arc::clone(key))
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
                paused_for: lane.shut(now).map(|until| until - now),
                reason: lane.reason.as_ref().map(|reason| reason.to_string()),
            })
            .collect()
    }
}

impl DestinationState {
    fn of(way: Way) -> Self {
        match way {
            Way::Open => DestinationState::Open,
            Way::Trial => DestinationState::Trial,
            Way::Shut(_) => DestinationState::Paused,
        }
    }
}

#[cfg(test)]
mod model; // the state machine against all sequences of events
#[cfg(test)]
mod tests;
