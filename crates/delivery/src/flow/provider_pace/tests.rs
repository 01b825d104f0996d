//! Tables and a random model of the pace of one provider.

use proptest::prelude::{Just, ProptestConfig, Strategy, TestCaseError, prop_assert, prop_oneof, proptest};

use super::*;

fn limits(rate: Option<(u32, u64)>, concurrency: usize) -> PaceLimits {
    let rate = rate.map(|(messages, seconds)| Rate { messages, per: Duration::from_secs(seconds) });
    PaceLimits { rate, concurrency }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The pauses after hold-backs in a row, each right after the end of the pause before.
fn check_pauses(kind: HoldBack, expected: &[u64]) {
    let (mut pace, mut now) = (ProviderPace::new(limits(None, 10)), Instant::now());
    let mut pauses = Vec::new();
    for _ in expected {
        let pause = pace.held_back(kind, "421 later", now, 0.5).expect("a pause");
        assert_eq!(pace.wait(now), Some(now + pause));
        assert_eq!(pace.held_back(kind, "421 later", now, 0.5), None, "a mail under way begins no further pause");
        assert_eq!(pace.answered(now, true), None);
        assert_eq!(pace.paused_until(now), Some(now + pause), "nor does its success end the pause");
        pauses.push(pause.as_secs());
        now += pause;
        assert_eq!((pace.limit(), pace.paused_until(now)), (1, None), "one mail tests the provider");
    }
    assert_eq!(pauses, expected);
    pace.answered(now, true);
    let pause = pace.held_back(kind, "421 later", now, 0.5).expect("a pause");
    assert_eq!(pause.as_secs(), expected[0], "an accepted mail ends the row");
}

#[test]
fn pauses_double_up_to_their_maximum() {
    check_pauses(HoldBack::Rate, &[60, 120, 240, 480, 960, 1_800, 1_800]);
    check_pauses(HoldBack::Sessions, &[10, 20, 40, 80, 160, 300, 300]);
    check_pauses(HoldBack::Blocked, &[900, 1_800, 3_600, 7_200, 7_200]);
}

#[test]
fn the_rate_halves_and_rises_again_step_by_step() {
    let (mut pace, mut now) = (ProviderPace::new(limits(Some((10, 1)), 4)), Instant::now());
    let began = now;
    assert_eq!(pace.interval(), Some(Duration::from_millis(100)));
    let pause = pace.held_back(HoldBack::Rate, "421 4.7.28 unusual rate", now, 0.5).expect("a pause");
    assert_eq!((pace.interval(), pace.said()), (Some(Duration::from_millis(200)), Some("421 4.7.28 unusual rate")));
    now += pause;
    assert_eq!(pace.answered(now, true), None);
    assert_eq!((pace.limit(), pace.interval()), (4, Some(Duration::from_millis(200))), "the trial is over");
    let mut intervals = Vec::new();
    let lasted = loop {
        now += RECOVERY_STEP;
        let lasted = pace.answered(now, true);
        intervals.push(pace.interval().expect("a rate").as_millis());
        assert_eq!(pace.answered(now, true), None, "one step a minute");
        if let Some(lasted) = lasted {
            break lasted;
        }
    };
    assert_eq!(intervals, [160, 128, 102, 100]);
    assert_eq!((lasted, pace.said(), pace.holds_back()), (now - began, None, false));
}

#[test]
fn without_a_configured_rate_the_measured_one_is_halved() {
    let (mut pace, begin) = (ProviderPace::new(limits(None, 4)), Instant::now());
    // 20 mails a second.
    let times = (0..400).map(|number| begin + Duration::from_millis(50) * number);
    times.for_each(|at| pace.take(at));
    let mut now = begin + seconds(20);
    assert_eq!((pace.wait(now), pace.interval()), (None, None));
    let pause = pace.held_back(HoldBack::Rate, "421 later", now, 0.5).expect("a pause");
    let halved = pace.interval().expect("a rate");
    assert!((95..=105).contains(&halved.as_millis()), "{halved:?}");
    now += pause;
    let recovered = (0..60).any(|_| {
        now += RECOVERY_STEP;
        pace.answered(now, true).is_some()
    });
    assert!(recovered && pace.interval().is_none(), "at the rate before, the limit ends");
}

#[test]
fn fewer_sessions_do_not_lower_the_rate() {
    let (mut pace, mut now) = (ProviderPace::new(limits(Some((10, 1)), 8)), Instant::now());
    now += pace.held_back(HoldBack::Sessions, "421 too many connections", now, 0.5).expect("a pause");
    pace.answered(now, true);
    assert_eq!((pace.limit(), pace.interval()), (4, Some(Duration::from_millis(100))));
    for expected in [5, 6, 7, 8] {
        assert!(pace.holds_back());
        now += RECOVERY_STEP;
        pace.answered(now, true);
        assert_eq!(pace.limit(), expected);
    }
    assert!(!pace.holds_back());
}

#[test]
fn a_delay_of_a_later_server_lowers_the_rate_without_a_pause() {
    let (mut pace, now) = (ProviderPace::new(limits(Some((10, 1)), 8)), Instant::now());
    for (after, interval) in [(0, 200), (1, 200), (599, 200), (600, 400)] {
        assert_eq!(pace.held_back(HoldBack::Delayed, "451 4.7.1 later", now + seconds(after), 0.5), None);
        assert_eq!(pace.interval(), Some(Duration::from_millis(interval)), "after {after} s");
    }
    assert_eq!((pace.wait(now), pace.limit()), (None, 8));
}

#[test]
fn a_failure_of_one_mail_ends_the_trial_and_raises_nothing() {
    let (mut pace, mut now) = (ProviderPace::new(limits(Some((10, 1)), 8)), Instant::now());
    now += pace.held_back(HoldBack::Rate, "421 later", now, 0.5).expect("a pause") + RECOVERY_STEP;
    assert_eq!(pace.answered(now, false), None);
    assert_eq!((pace.limit(), pace.interval()), (8, Some(Duration::from_millis(200))));
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Pass(u64),
    Take,
    Accepted,
    Failed,
    Held(HoldBack, u8),
}

fn any_step() -> impl Strategy<Value = Step> {
    let kinds =
        prop_oneof![Just(HoldBack::Rate), Just(HoldBack::Sessions), Just(HoldBack::Blocked), Just(HoldBack::Delayed)];
    prop_oneof![
        3 => (0..200_000u64).prop_map(Step::Pass),
        4 => Just(Step::Take),
        4 => Just(Step::Accepted),
        1 => Just(Step::Failed),
        1 => (kinds, 0..=100u8).prop_map(|(kind, jitter)| Step::Held(kind, jitter)),
    ]
}

/// Checks the invariants of every state.
fn check_state(pace: &ProviderPace, limits: PaceLimits, now: Instant) -> Result<(), TestCaseError> {
    prop_assert!((1..=limits.concurrency).contains(&pace.limit()));
    prop_assert!(pace.recipients_max() >= 1 && pace.room() >= 1);
    let configured = limits.rate.map(|rate| Meter::new(rate).span(1));
    // Never faster than configured, never slower than the lowest rate.
    let interval = pace.interval().unwrap_or_default();
    prop_assert!(interval >= configured.unwrap_or_default());
    prop_assert!(interval <= INTERVAL_MAX.max(configured.unwrap_or_default()));
    prop_assert!(pace.paused_until(now).is_none_or(|until| until - now <= BLOCK_PAUSES[1].mul_f64(1.1)));
    prop_assert!(pace.holds_back() == pace.said().is_some());
    prop_assert!(
        pace.holds_back() || (pace.limit() == limits.concurrency && interval == configured.unwrap_or_default())
    );
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// After any sequence of answers the provider recovers completely, within a bounded time, if it accepts all mail.
    #[test]
    fn every_provider_recovers(
        steps in proptest::collection::vec(any_step(), 0..200),
        rate in prop_oneof![Just(None), (1..100u32, 1..100u64).prop_map(Some)],
        concurrency in 1..20usize,
    ) {
        let limits = limits(rate, concurrency);
        let (mut pace, mut now) = (ProviderPace::new(limits), Instant::now());
        for step in steps {
            match step {
                Step::Pass(millis) => now += Duration::from_millis(millis),
                Step::Take => if pace.wait(now).is_none() {
                    pace.take(now);
                },
                Step::Accepted => _ = pace.answered(now, true),
                Step::Failed => _ = pace.answered(now, false),
                Step::Held(kind, jitter) => {
                    _ = pace.held_back(kind, "421 later", now, f64::from(jitter) / 100.0);
                }
            }
            check_state(&pace, limits, now)?;
        }
        for _ in 0..200 {
            if !pace.holds_back() {
                break;
            }
            now = pace.wait(now).unwrap_or(now) + RECOVERY_STEP;
            pace.take(now);
            _ = pace.answered(now, true);
            check_state(&pace, limits, now)?;
        }
        prop_assert!(!pace.holds_back(), "it never recovers: {pace:?}");
        prop_assert!(pace.paused_until(now).is_none());
    }
}
