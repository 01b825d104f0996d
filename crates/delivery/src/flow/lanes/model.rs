//! State-machine model of a destination's queue and its sessions, checked against sequences of events: push, take,
//! answer, pause, expiry, drain and the passing of time.
//!
//! [`World`] is the lanes with a model of their sessions. A session sleeps until it is woken or its time has come, as
//! in `Queue`. After each event these must hold:
//!
//! - the state of each lane fits its messages, and no bound is exceeded (`check_invariants`),
//! - no session sleeps while a message may leave, nor beyond the time when one may (`check_wakes`),
//! - all messages leave once the destinations answer (`check_progress`).
//!
//! All short sequences are tried, by breadth-first search over distinct states, and long ones at random.

use std::{
    collections::hash_map::DefaultHasher,
    hash::{Hash, Hasher},
};

use proptest::prelude::{Just, ProptestConfig, Strategy, TestCaseError, prop_oneof, proptest};
use tocsin_model::{application::Rate, time::Timestamp};

use super::*;
use crate::flow::{provider_pace::PaceLimits, providers::ProviderSettings, warm_up::WarmUpPlan};

const KEYS: [&str; 2] = ["a", "b"];
const ROOM: usize = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Fine,
    /// The message had expired before its turn.
    Expired,
    Slower(Option<u64>),
    Failed,
    Silent,
    /// Mailbox providers only.
    HeldBack(HoldBack),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Push(usize),
    /// The session of this number looks for a message, if it is awake.
    Pop(usize),
    /// The session of this number sends a message ahead, if it waits for an answer.
    Ahead(usize),
    /// The attempt of the session of this number ends.
    Answer(usize, Answer),
    Pass(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Session {
    Awake,
    Asleep(Option<Instant>),
    /// It waits for the answer of a lane, and may have sent a message of another ahead.
    Busy(usize, Option<usize>),
}

#[derive(Clone)]
struct World {
    lanes: Lanes<u32>,
    keys: [Arc<str>; 2],
    sessions: Vec<Session>,
    /// Whether the next session that goes to sleep wakes at once, as with `Notify::notify_one` without a waiting task.
    permit: bool,
    now: Instant,
    pushed: usize,
    taken: usize,
    returned: usize,
}

impl World {
    fn new(flow: Flow, sessions: usize, rate: Option<Rate>) -> World {
        let mut lanes = Lanes::new(flow, sessions, ROOM);
        lanes.set_rate(rate.map(Meter::new));
        World {
            lanes,
            keys: KEYS.map(Arc::from),
            sessions: vec![Session::Awake; sessions],
            permit: false,
            now: Instant::now(),
            pushed: 0,
            taken: 0,
            returned: 0,
        }
    }

    /// Lanes of mailbox providers, the first of which has a warm-up.
    fn of_providers(sessions: usize, concurrency: usize, rate: Option<&str>, start: Option<u64>) -> World {
        let limits_default = PaceLimits { rate: rate.map(rate_of), concurrency };
        let plan = start.map(|start| WarmUpPlan { start, growth: 2.0, until: 1_000 });
        let settings = ProviderSettings {
            named: vec![KEYS[0].into()],
            limits: Default::default(),
            limits_default,
            plans: [(KEYS[0].into(), plan)].into(),
            plan_default: None,
        };
        let now = Instant::now();
        let mut providers = Providers::new(Arc::new(settings), now, Timestamp(1_800_000_000_000_000));
        providers.read([]);
        let lanes = Lanes::of_providers(providers, Flow::default(), sessions, ROOM);
        World { lanes, now, ..World::new(Flow::default(), sessions, None) }
    }

    fn wake_one(&mut self) {
        match self.sessions.iter_mut().find(|session| matches!(session, Session::Asleep(_))) {
            Some(session) => *session = Session::Awake,
            None => self.permit = true,
        }
    }

    /// Takes the next message, as `Queue::try_take` does.
    fn try_take(&mut self, number: usize) -> Result<(), Option<Instant>> {
        match self.lanes.take(self.now) {
            Take::Item(key, _) => {
                let key = self.keys.iter().position(|known| *known == key).expect("one of the two");
                self.sessions[number] = Session::Busy(key, None);
                self.taken += 1;
                if self.lanes.needs_session() {
                    self.wake_one();
                }
                Ok(())
            }
            Take::Wait(at) => Err(at),
        }
    }

    fn pop(&mut self, number: usize) {
        if self.sessions[number] != Session::Awake {
            return;
        }
        if let Err(at) = self.try_take(number) {
            let is_due = at.is_some_and(|at| at <= self.now);
            if !is_due && !std::mem::take(&mut self.permit) {
                self.sessions[number] = Session::Asleep(at);
            }
        }
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Push(key) => {
                self.pushed += 1;
                let number = self.pushed as u32;
                match self.lanes.push(&self.keys[key].clone(), number, self.now) {
                    Pushed::Waits { wake: true } => self.wake_one(),
                    Pushed::Waits { wake: false } => {}
                    Pushed::NoRoom(..) => self.returned += 1,
                }
            }
            Act::Pop(number) => self.pop(number % self.sessions.len()),
            Act::Ahead(number) => {
                let number = number % self.sessions.len();
                if let Session::Busy(key, None) = self.sessions[number]
                    && let Take::Item(ahead, _) = self.lanes.take_ahead(&self.keys[key].clone(), self.now)
                {
                    let ahead = self.keys.iter().position(|known| *known == ahead).expect("one of the two");
                    self.sessions[number] = Session::Busy(key, Some(ahead));
                    self.taken += 1;
                    if self.lanes.needs_session() {
                        self.wake_one();
                    }
                }
            }
            Act::Answer(number, answer) => {
                let number = number % self.sessions.len();
                let Session::Busy(key, ahead) = self.sessions[number] else { return };
                let signal = match answer {
                    Answer::Fine => Signal::Fine,
                    Answer::Expired => Signal::Unasked,
                    Answer::Slower(seconds) => Signal::Slower(seconds.map(Duration::from_secs)),
                    Answer::Failed => Signal::Overloaded("503".into()),
                    Answer::Silent => Signal::Silent("no answer".into()),
                    Answer::HeldBack(kind) => Signal::HeldBack(kind, "421 later".into()),
                };
                let answers = Answers {
                    taken: 1,
                    accepted: u64::from(answer == Answer::Fine),
                    held_back: u64::from(matches!(answer, Answer::HeldBack(_))),
                };
                self.lanes.settle(&self.keys[key].clone(), answers, self.now);
                let done = self.lanes.done(&self.keys[key].clone(), signal, Duration::from_millis(1), self.now, 0.5);
                self.returned += done.returned.len();
                if let Some(ahead) = ahead {
                    self.lanes.promote(&self.keys[ahead].clone());
                    self.sessions[number] = Session::Busy(ahead, None);
                    self.wake_one();
                    return;
                }
                self.sessions[number] = Session::Awake;
                // As `Queue::done`: the session takes the next one if one may leave, and looks again otherwise.
                let _ = self.try_take(number);
            }
            Act::Pass(millis) => self.pass(Duration::from_millis(millis)),
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        for session in &mut self.sessions {
            if let Session::Asleep(Some(at)) = session
                && *at <= self.now
            {
                *session = Session::Awake;
            }
        }
    }

    fn check_invariants(&self) -> Result<(), String> {
        let lanes = &self.lanes;
        let fail = |text: String| Err(text);
        let (mut waiting, mut busy, mut slow_busy, mut active) = (0, 0, 0, 0);
        for (key, lane) in &lanes.lanes {
            waiting += lane.waiting.len();
            busy += lane.busy - lane.ahead;
            slow_busy += if lane.slow { lane.busy - lane.ahead } else { 0 };
            active += usize::from(lane.is_active());
            if (lane.state == LaneState::Empty) != lane.waiting.is_empty() {
                return fail(format!("{key} is {:?} with {} messages", lane.state, lane.waiting.len()));
            }
            let turns = lanes.turns.iter().filter(|turn| *turn == key).count();
            if turns != usize::from(lane.in_turns) || (lane.state == LaneState::Queued && turns == 0) {
                return fail(format!("{key} is {:?} and has {turns} turns", lane.state));
            }
            if lane.state == LaneState::Full && lane.busy == 0 {
                return fail(format!("{key} is full with nothing under way"));
            }
            let is_parked = |at| lanes.parked.iter().any(|Reverse(parked)| *parked == (at, key.clone()));
            if let LaneState::Parked(at) = lane.state
                && !is_parked(at)
            {
                return fail(format!("{key} is parked until a time that does not come"));
            }
            if lane.busy > 2 * lanes.sessions
                || lane.ahead > lane.busy
                || lane.waiting.len() > lanes.room.max(LANE_ROOM_MIN)
            {
                return fail(format!("{key} has {} under way and {} that wait", lane.busy, lane.waiting.len()));
            }
        }
        let counted = (lanes.waiting, lanes.busy, lanes.slow_busy, lanes.active);
        if counted != (waiting, busy, slow_busy, active) {
            return fail(format!("counted {counted:?}, found {:?}", (waiting, busy, slow_busy, active)));
        }
        if self.pushed != self.taken + self.returned + waiting {
            return fail(format!("{} of {} messages are left", self.taken + self.returned + waiting, self.pushed));
        }
        Ok(())
    }

    /// Lets all awake sessions look for work until none is awake.
    fn pop_all(&mut self) -> Result<(), String> {
        for _ in 0..100 {
            let Some(number) = self.sessions.iter().position(|session| *session == Session::Awake) else {
                return Ok(());
            };
            self.pop(number);
            self.check_invariants()?;
        }
        Err("a session looks forever".into())
    }

    /// No session sleeps while a message may leave, nor beyond the time when one may.
    fn check_wakes(&self) -> Result<(), String> {
        let asleep = |session: &Session| match session {
            Session::Asleep(at) => Some(*at),
            _ => None,
        };
        let asleep: Vec<Option<Instant>> = self.sessions.iter().filter_map(asleep).collect();
        if asleep.is_empty() {
            return Ok(());
        }
        let alarm = asleep.iter().flatten().min().copied();
        match self.lanes.clone().take(self.now) {
            Take::Item(key, _) => Err(format!("a message for {key} may leave, and {} sessions sleep", asleep.len())),
            // Where all lanes are full, the end of an attempt comes first.
            Take::Wait(Some(at)) if self.lanes.needs_session() && alarm.is_none_or(|alarm| alarm > at) => {
                Err(format!("a message may leave after {:?}, and no session waits for it", at - self.now))
            }
            Take::Wait(_) => Ok(()),
        }
    }

    /// All messages leave once the destinations answer.
    fn check_progress(mut self) -> Result<(), String> {
        for _ in 0..200 {
            self.pop_all()?;
            self.check_wakes()?;
            if let Some(number) = self.sessions.iter().position(|session| matches!(session, Session::Busy(..))) {
                self.act(Act::Answer(number, Answer::Fine));
                self.check_invariants()?;
                continue;
            }
            if self.lanes.waiting == 0 {
                return Ok(());
            }
            let alarms = self.sessions.iter().filter_map(|session| match session {
                Session::Asleep(at) => *at,
                _ => None,
            });
            let Some(alarm) = alarms.min() else {
                return Err(format!("{} messages wait, and no event will come", self.lanes.waiting));
            };
            self.pass(alarm - self.now);
        }
        Err(format!("{} messages wait still", self.lanes.waiting))
    }

    fn check(&self) -> Result<(), String> {
        self.check_invariants()?;
        self.clone().check_progress()
    }

    /// Hash of the state; equal for states that behave alike from now on.
    fn fingerprint(&self) -> u64 {
        let mut hash = DefaultHasher::new();
        let ahead = |at: Instant| at.saturating_duration_since(self.now);
        for key in &self.keys {
            let lane = self.lanes.lanes.get(key);
            lane.is_some().hash(&mut hash);
            let Some(lane) = lane else { continue };
            (lane.waiting.len(), lane.busy, lane.ahead, lane.in_turns, lane.slow).hash(&mut hash);
            match lane.state {
                LaneState::Parked(at) => (3, ahead(at)).hash(&mut hash),
                state => std::mem::discriminant(&state).hash(&mut hash),
            }
            lane.paused_until.map(ahead).filter(|time| !time.is_zero()).hash(&mut hash);
            (lane.breaker.until().map(ahead), lane.breaker.failures(), lane.breaker.is_silent()).hash(&mut hash);
            lane.breaker.pauses().hash(&mut hash);
            lane.meter.as_ref().and_then(|meter| meter.wait(self.now)).map(ahead).hash(&mut hash);
            lane.pace.latency().hash(&mut hash);
            if let (Some(provider), Some(providers)) = (&lane.provider, &self.lanes.providers) {
                provider.pace.phase(self.now).hash(&mut hash);
                providers.recipients_max(&provider.label, self.now).hash(&mut hash);
                providers.wait(&provider.label, self.now).map(ahead).hash(&mut hash);
            }
        }
        self.lanes.turns.hash(&mut hash);
        self.lanes.meter.as_ref().and_then(|meter| meter.wait(self.now)).map(ahead).hash(&mut hash);
        self.lanes.usual.hash(&mut hash);
        let mut parked: Vec<_> = self.lanes.parked.iter().map(|Reverse((at, key))| (ahead(*at), key)).collect();
        parked.sort();
        parked.hash(&mut hash);
        for session in &self.sessions {
            match session {
                Session::Asleep(at) => (1, at.map(ahead)).hash(&mut hash),
                Session::Busy(key, ahead) => (2, Some(key), ahead).hash(&mut hash),
                Session::Awake => 3.hash(&mut hash),
            }
        }
        self.permit.hash(&mut hash);
        hash.finish()
    }
}

fn flow(per_destination: u32, failures_before_pause: u32, rate: Option<&str>) -> Flow {
    Flow {
        per_destination,
        failures_before_pause,
        pace: application::Pace::Fixed,
        rate_per_destination: rate.map(rate_of),
        ..Flow::default()
    }
}

fn rate_of(text: &str) -> Rate {
    text.parse().expect("a rate")
}

/// Checks all sequences of up to `depth` events; equivalent states are followed once.
fn check_all(flow: Flow, sessions: usize, rate: Option<&str>, depth: usize) -> usize {
    let answers = [Answer::Fine, Answer::Expired, Answer::Slower(None), Answer::Slower(Some(3))];
    let answers: Vec<Answer> = answers.into_iter().chain([Answer::Failed, Answer::Silent]).collect();
    check_world(World::new(flow, sessions, rate.map(rate_of)), &answers, &[1_000, 5_000], &[], depth)
}

/// As `check_all`, for mailbox providers.
fn check_providers(world: World, depth: usize) -> usize {
    let held_back = [HoldBack::Rate, HoldBack::Sessions].map(Answer::HeldBack);
    let answers: Vec<Answer> = [Answer::Fine, Answer::Expired].into_iter().chain(held_back).collect();
    let ahead: Vec<Act> = (0..world.sessions.len()).map(Act::Ahead).collect();
    check_world(world, &answers, &[1_000, 70_000], &ahead, depth)
}

fn check_world(world: World, answers: &[Answer], times: &[u64], more: &[Act], depth: usize) -> usize {
    let mut acts: Vec<Act> = vec![Act::Push(0), Act::Push(1)];
    acts.extend(more);
    acts.extend(times.iter().copied().map(Act::Pass));
    for number in 0..world.sessions.len() {
        acts.push(Act::Pop(number));
        acts.extend(answers.iter().map(|answer| Act::Answer(number, *answer)));
    }
    let mut seen = std::collections::HashSet::new();
    let mut level = vec![(world, Vec::new())];
    for _ in 0..depth {
        let mut next = Vec::new();
        for (world, path) in level {
            for act in &acts {
                let mut world = world.clone();
                world.act(*act);
                if !seen.insert(world.fingerprint()) {
                    continue;
                }
                let mut path: Vec<Act> = path.clone();
                path.push(*act);
                if let Err(text) = world.check() {
                    panic!("{text}: {path:?}");
                }
                next.push((world, path));
            }
        }
        level = next;
    }
    seen.len()
}

#[test]
fn b1_a_drained_destination_is_served_again() {
    // Four sessions, so that two may be in flight while one is left for others.
    let mut world = World::new(flow(2, 3, None), 4, None);
    for _ in 0..3 {
        world.act(Act::Push(0));
    }
    world.pop_all().expect("it looks");
    // Both attempts in flight are answered with a request for a later time; the queue is drained while it is full.
    for number in 0..4 {
        world.act(Act::Answer(number, Answer::Slower(Some(3))));
    }
    assert_eq!((world.lanes.waiting, world.returned), (0, 1));
    world.act(Act::Pass(5_000));
    world.act(Act::Push(0));
    world.check().expect("it is served");
    let shown = &world.lanes.destinations(1, world.now + STALLED)[0];
    assert_eq!((shown.state, shown.waiting), (DestinationState::Stalled, 1), "without a session it would show");
}

#[test]
fn b1_no_short_sequence_of_events_loses_a_message_or_a_wake() {
    assert!(check_all(flow(1, 2, None), 1, None, 7) > 200);
    assert!(check_all(flow(1, 2, None), 2, None, 6) > 200);
    assert!(check_all(flow(2, 1, Some("1/s")), 2, None, 5) > 200);
    assert!(check_all(flow(2, 0, None), 2, Some("1/s"), 5) > 200);
    assert!(check_all(flow(2, 2, None), 4, None, 5) > 200);
}

#[test]
fn no_short_sequence_of_answers_of_providers_loses_a_message_or_a_wake() {
    assert!(check_providers(World::of_providers(1, 2, None, None), 7) > 200);
    assert!(check_providers(World::of_providers(3, 2, None, None), 5) > 200);
    assert!(check_providers(World::of_providers(3, 1, Some("1/s"), None), 5) > 200);
    assert!(check_providers(World::of_providers(3, 2, None, Some(2)), 5) > 200);
}

#[test]
fn slow_b1_no_longer_sequence_of_events_loses_a_message_or_a_wake() {
    for sessions in [1, 2] {
        for (per_destination, failures) in [(1, 1), (2, 2), (1, 0)] {
            for rate_per_destination in [None, Some("1/s")] {
                for rate in [None, Some("2/s")] {
                    check_all(flow(per_destination, failures, rate_per_destination), sessions, rate, 8 - sessions);
                }
            }
        }
    }
}

fn any_act() -> impl Strategy<Value = Act> {
    let answer = prop_oneof![
        4 => Just(Answer::Fine),
        1 => Just(Answer::Expired),
        1 => Just(Answer::Failed),
        1 => Just(Answer::Silent),
        1 => prop_oneof![Just(None), (0..30u64).prop_map(Some)].prop_map(Answer::Slower),
    ];
    prop_oneof![
        4 => (0..KEYS.len()).prop_map(Act::Push),
        3 => (0..4usize).prop_map(Act::Pop),
        3 => ((0..4usize), answer).prop_map(|(number, answer)| Act::Answer(number, answer)),
        1 => (0..400_000u64).prop_map(Act::Pass),
        1 => (0..1_500u64).prop_map(Act::Pass),
    ]
}

fn any_act_of_providers() -> impl Strategy<Value = Act> {
    let kinds = prop_oneof![Just(HoldBack::Rate), Just(HoldBack::Sessions), Just(HoldBack::Blocked)];
    prop_oneof![
        2 => any_act(),
        1 => ((0..4usize), kinds).prop_map(|(number, kind)| Act::Answer(number, Answer::HeldBack(kind))),
        1 => (0..4usize).prop_map(Act::Ahead),
        1 => (0..100_000_000u64).prop_map(Act::Pass),
    ]
}

fn check_long(acts: &[Act], mut world: World) -> Result<(), TestCaseError> {
    for act in acts {
        world.act(*act);
        world.check_invariants().map_err(TestCaseError::fail)?;
    }
    world.check_progress().map_err(TestCaseError::fail)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn b1_no_long_sequence_of_events_loses_a_message_or_a_wake(
        acts in proptest::collection::vec(any_act(), 0..300),
        sessions in 1..4usize,
        failures in 0..4u32,
        is_fixed in proptest::bool::ANY,
        rates in (proptest::bool::ANY, proptest::bool::ANY),
    ) {
        let flow = Flow {
            pace: if is_fixed { application::Pace::Fixed } else { application::Pace::Auto },
            ..flow(2, failures, rates.0.then_some("2/s"))
        };
        check_long(&acts, World::new(flow, sessions, rates.1.then(|| rate_of("3/s"))))?;
    }

    #[test]
    fn no_long_sequence_of_answers_of_providers_loses_a_message_or_a_wake(
        acts in proptest::collection::vec(any_act_of_providers(), 0..300),
        sessions in 1..6usize,
        concurrency in 1..4usize,
        is_metered in proptest::bool::ANY,
        start in prop_oneof![Just(None), (1..20u64).prop_map(Some)],
    ) {
        let world = World::of_providers(sessions, concurrency, is_metered.then_some("2/s"), start);
        check_long(&acts, world)?;
    }
}
