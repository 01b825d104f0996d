use tocsin_model::application::Rate;

use super::*;

impl Waits for u32 {
    fn priority(&self) -> Priority {
        Priority::Normal
    }

    fn since(&self) -> Instant {
        Instant::now()
    }
}

/// Lanes whose messages are numbers, and a clock.
struct Play {
    lanes: Lanes<u32>,
    now: Instant,
    number: u32,
}

impl Play {
    fn new(sessions: usize, flow: Flow) -> Play {
        Play { lanes: Lanes::new(flow, sessions, 64), now: Instant::now(), number: 0 }
    }

    /// Pushes a message for each letter; returns those that found no room.
    fn push(&mut self, keys: &str) -> String {
        keys.chars()
            .filter(|key| {
                self.number += 1;
                matches!(self.lanes.push(&Arc::from(key.to_string()), self.number, self.now), Pushed::NoRoom(..))
            })
            .collect()
    }

    /// Takes the messages that may leave now, at most as many as there are sessions.
    fn take(&mut self) -> String {
        let mut taken = String::new();
        while self.lanes.busy < self.lanes.sessions
            && let Take::Item(key, _) = self.lanes.take(self.now)
        {
            taken.push_str(&key);
        }
        taken
    }

    fn done(&mut self, key: &str, signal: Signal, millis: u64) -> AttemptEffect<u32> {
        self.lanes.done(&Arc::from(key), signal, Duration::from_millis(millis), self.now, 0.5)
    }

    fn report_success(&mut self, keys: &str) {
        for key in keys.chars() {
            self.done(&key.to_string(), Signal::Fine, 1);
        }
    }

    fn pass(&mut self, millis: u64) {
        self.now += Duration::from_millis(millis);
    }
}

fn silent() -> Signal {
    Signal::Silent("no answer".into())
}

#[test]
fn lanes_take_turns_and_leave_room() {
    let mut play = Play::new(8, Flow::default());
    play.push("aaaaaaaaaa");
    assert_eq!(play.take(), "aaaaa", "five at first");
    play.push("bbbbc");
    assert_eq!(play.take(), "bc", "one is left for a newcomer");
    play.report_success("aaa");
    // No lane takes more than the idle sessions.
    assert_eq!(play.take(), "ba");
    let mut alone = Play::new(1, Flow::default());
    alone.push("ab");
    assert_eq!(alone.take(), "a");
    alone.report_success("a");
    assert_eq!(alone.take(), "b", "a single session is not reserved");
}

#[test]
fn taking_more_of_a_multicast_keeps_the_lane_state() {
    let mut play = Play::new(8, Flow { per_destination: 1, pace: application::Pace::Fixed, ..Flow::default() });
    play.push("aaaaabaa");
    assert_eq!(play.take(), "ab", "one each");
    let more = |play: &mut Play, key: &str, most: usize, last: u32| {
        play.lanes.take_more(&Arc::from(key), most, play.now, |number| *number <= last)
    };
    assert_eq!(more(&mut play, "a", 2, 9), [2, 3], "no more than asked for");
    assert_eq!(more(&mut play, "a", 9, 5), [4, 5], "only those alike");
    assert_eq!(more(&mut play, "b", 9, 9), [0; 0]);
    assert_eq!(more(&mut play, "a", 9, 9), [7, 8]);
    assert_eq!((more(&mut play, "nowhere", 9, 9), play.lanes.waiting()), (vec![], 0));
    play.push("a");
    assert_eq!(play.take(), "", "its one attempt is under way still");
    play.report_success("ab");
    assert_eq!(play.take(), "a");

    let rate = Rate { messages: 3, per: Duration::from_secs(60) };
    let mut slow = Play::new(8, Flow { rate_per_destination: Some(rate), ..Flow::default() });
    slow.push("aaaaa");
    assert_eq!(slow.take().len(), 1);
    assert_eq!(more(&mut slow, "a", 9, 99).len(), 2, "no more than in a minute");
    slow.report_success("a");
    assert_eq!(slow.take(), "");
    slow.pass(59_999);
    assert_eq!(slow.take(), "", "each counted");
    slow.pass(1);
    assert_eq!(slow.take(), "a");
}

#[test]
fn one_that_is_alone_leaves_an_eighth() {
    let mut play = Play::new(8, Flow::default());
    play.lanes.push(&Arc::from("a"), 0, play.now);
    play.lanes.lanes.get_mut("a").expect("it is there").pace = AdaptiveConcurrency::new(3);
    play.push("aaaaaaaaaaaa");
    assert_eq!(play.take(), "aaa", "never more than its bound");
    let mut play = Play::new(4, Flow::default());
    play.push("aaaaaaaaaaaa");
    assert_eq!(play.take(), "aaa");
}

#[test]
fn a_full_lane_takes_nothing_from_the_others() {
    let mut play = Play::new(2, Flow::default());
    // Of 64 places a lane gets as many as it leaves free.
    assert_eq!(play.push(&"a".repeat(40)), "a".repeat(8));
    assert_eq!(play.push(&"b".repeat(40)), "b".repeat(24));
    assert_eq!(play.push(&"cdefgh".repeat(10)), "", "small ones always have room");
    assert_eq!(play.lanes.hold("c", Priority::Normal, play.now), None);
    assert_eq!(play.lanes.hold("a", Priority::Normal, play.now), None, "nothing is known of it, so it may well move");
    play.take();
    play.done("a", Signal::Fine, 8000);
    // 31 wait, five at a time take 8 s.
    assert_eq!(play.lanes.hold("a", Priority::Normal, play.now).map(|wait| wait.as_secs()), Some(24));
}

#[test]
fn failures_pause_a_destination_and_one_message_ends_the_pause() {
    let mut play = Play::new(8, Flow::default());
    play.push("aaaaaaaaaabbb");
    assert_eq!(play.take(), "ababab");
    play.report_success("b");
    let mut returned = Vec::new();
    let mut events = Vec::new();
    for number in 0..5 {
        play.pass(100);
        // An answer to a recent message makes room for more; here two fail that were sent before.
        play.lanes.lanes.get_mut("a").expect("it is there").busy += usize::from(number > 2);
        let done = play.done("a", silent(), 100);
        returned.extend(done.returned);
        events.extend(done.event);
    }
    assert_eq!(returned.len(), 7, "what waited goes back");
    let reason = "no answer".into();
    assert_eq!(events, [Event::Paused { pause: Duration::from_secs(5), reason, failures: 20, log: true }]);
    assert_eq!(play.push("a"), "a", "and what comes now");
    assert_eq!(play.lanes.hold("a", Priority::Normal, play.now), Some(Duration::from_secs(5)));
    assert_eq!(play.lanes.hold("b", Priority::Normal, play.now), None);
    assert_eq!(play.lanes.destination_counts(play.now), [1, 0, 1, 0]);
    let shown = &play.lanes.destinations(1, play.now)[0];
    assert_eq!((shown.name.as_str(), shown.state), ("a", DestinationState::Paused));
    assert_eq!(shown.reason.as_deref(), Some("no answer"));

    play.pass(5000);
    assert_eq!(play.push("aaa"), "aa", "one finds out");
    assert_eq!(play.take(), "a");
    assert_eq!(play.lanes.hold("a", Priority::Normal, play.now), Some(TRIAL_PAUSE));
    assert!(matches!(play.done("a", silent(), 1).event, Some(Event::Paused { log: false, .. })));
    assert_eq!(play.lanes.hold("a", Priority::Normal, play.now).map(|wait| wait.as_secs()), Some(10));

    play.pass(10_000);
    play.push("a");
    play.take();
    let event = play.done("a", Signal::Fine, 1).event;
    assert_eq!(event, Some(Event::Back { after: Duration::from_millis(15_400) }));
    play.push("aaaaaaaaaa");
    assert_eq!(play.take(), "a", "carefully: it was halved each time it did not answer");
}

#[test]
fn a_destination_that_requests_less_is_slowed_down() {
    let mut play = Play::new(8, Flow::default());
    play.push("aaaaaaaaaa");
    play.take();
    let done = play.done("a", Signal::Slower(Some(Duration::from_secs(60))), 10);
    assert_eq!((done.returned.len(), done.after), (5, Duration::from_secs(60)));
    assert_eq!(play.lanes.hold("a", Priority::Normal, play.now), Some(Duration::from_secs(60)));
    assert_eq!(play.lanes.destination_counts(play.now), [1, 0, 0, 0], "it is no failure");
    play.pass(60_000);
    play.push("aaaaaaaaaa");
    assert_eq!(play.take(), "", "four are on their way, and two may be");
    play.report_success("aaaa");
    assert_eq!(play.take(), "aa");
    // A short pause is waited for in the queue.
    let done = play.done("a", Signal::Slower(None), 10);
    assert!(done.returned.is_empty());
    assert_eq!(play.take(), "");
    assert!(matches!(play.lanes.take(play.now), Take::Wait(Some(at)) if at == play.now + SLOWER_PAUSE));
    play.report_success("a");
    play.pass(1000);
    assert_eq!(play.take(), "a");
}

#[test]
fn each_destination_keeps_its_rate() {
    let rate = Rate { messages: 10, per: Duration::from_secs(1) };
    let mut play = Play::new(8, Flow { rate_per_destination: Some(rate), ..Flow::default() });
    play.push("aaabbb");
    let mut seen = Vec::new();
    for _ in 0..4 {
        let taken = play.take();
        play.report_success(&taken);
        seen.push(taken);
        play.pass(100);
    }
    assert_eq!(seen, ["ab", "ab", "ab", ""]);
}

/// Compares waiting times with and without one dead and one slow destination: messages of the others wait equally
/// long, within a small tolerance. Times are ticks of a millisecond.
#[test]
fn a_dead_and_a_slow_destination_cost_the_others_nothing() {
    fn run(with_trouble: bool) -> Vec<u64> {
        let (mut play, names) = (Play::new(64, Flow::default()), 1000u32);
        play.lanes.room = 4096;
        let start = play.now;
        let millis = |now: Instant| (now - start).as_millis() as u64;
        let mut rng = fastrand::Rng::with_seed(7);
        // When a session is free again, with its destination.
        let mut under_way: BinaryHeap<Reverse<(u64, String)>> = BinaryHeap::new();
        let mut pushed: HashMap<u32, u64> = HashMap::new();
        let mut waits = Vec::new();
        for tick in 0..20_000u64 {
            // Six messages a tick for random destinations, and one every ten ticks for each of the two.
            for _ in 0..6 {
                let name = Arc::from(format!("n{}", rng.u32(2..names)));
                play.number += 1;
                pushed.insert(play.number, tick);
                assert!(matches!(play.lanes.push(&name, play.number, play.now), Pushed::Waits { .. }));
            }
            if with_trouble && tick % 10 == 0 {
                for name in ["dead", "slow"] {
                    play.number += 1;
                    let _ = play.lanes.push(&Arc::from(name), play.number, play.now);
                }
            }
            while let Some(Reverse((at, _))) = under_way.peek()
                && *at <= tick
            {
                let Some(Reverse((_, name))) = under_way.pop() else { break };
                let (signal, latency) = match name.as_str() {
                    "dead" => (silent(), 15_000),
                    "slow" => (Signal::Fine, 5_000),
                    _ => (Signal::Fine, 5),
                };
                play.done(&name, signal, latency);
            }
            while under_way.len() < 64
                && let Take::Item(name, number) = play.lanes.take(play.now)
            {
                let takes = match &*name {
                    "dead" => 15_000,
                    "slow" => 5_000,
                    _ => 3 + rng.u64(0..5),
                };
                if let Some(since) = pushed.remove(&number) {
                    waits.push(tick - since + takes);
                }
                under_way.push(Reverse((tick + takes, name.to_string())));
            }
            play.now = start + Duration::from_millis(tick + 1);
            assert_eq!(millis(play.now), tick + 1);
        }
        waits.sort_unstable();
        waits
    }
    let (alone, beside) = (run(false), run(true));
    let p99 = |waits: &[u64]| waits[waits.len() * 99 / 100];
    assert_eq!(alone.len(), beside.len(), "nobody is left behind");
    assert_eq!((p99(&alone), p99(&beside)), (7, 7));
    let mean = |waits: &[u64]| waits.iter().sum::<u64>() as f64 / waits.len() as f64;
    assert!(mean(&beside) < mean(&alone) * 1.02, "{} {}", mean(&beside), mean(&alone));
}

#[test]
fn strangers_are_forgotten_and_trouble_is_not() {
    let mut play = Play::new(8, Flow { failures_before_pause: 1, ..Flow::default() });
    play.push("x");
    play.take();
    play.done("x", silent(), 1);
    for number in 0..3 * REMEMBERED {
        let name: Arc<str> = Arc::from(format!("n{number}"));
        assert!(matches!(play.lanes.push(&name, 0, play.now), Pushed::Waits { .. }));
        assert!(matches!(play.lanes.take(play.now), Take::Item(..)));
        play.lanes.done(&name, Signal::Fine, Duration::ZERO, play.now, 0.5);
        play.pass(10);
    }
    assert!(play.lanes.lanes.len() <= REMEMBERED + 7000, "{}", play.lanes.lanes.len());
    assert!(play.lanes.lanes.contains_key("x"));
}
