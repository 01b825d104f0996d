//! When a source asks its far side: at a distance, or by a schedule.

use std::{sync::Arc, time::Duration};

use tocsin_delivery::Clock;
use tocsin_model::{problem::Problem, schedule::Schedule, time::Timestamp};

/// The clock may be set while we wait, so no wait is longer.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// When to ask.
pub(crate) enum Due {
    /// So long after the last time.
    Every(Duration),
    /// At the times of a schedule; what was missed is made up for once.
    At(Box<Schedule>),
}

impl Due {
    /// By options that were checked.
    pub fn new(every: Duration, schedule: Option<&str>) -> Due {
        match schedule.and_then(|text| Schedule::parse(text).ok()) {
            Some(schedule) => Due::At(Box::new(schedule)),
            None => Due::Every(every),
        }
    }

    /// What is wrong with a schedule.
    pub fn problems(schedule: Option<&str>) -> Vec<Problem> {
        let problems = schedule.and_then(|text| Schedule::parse(text).err()).unwrap_or_default();
        let below = |problem: Problem| Problem { path: "schedule".to_owned(), ..problem };
        problems.into_iter().map(below).collect()
    }

    /// The next time, if the last one was at `last`.
    fn next(&self, last: Option<Timestamp>, now: Timestamp) -> Option<Timestamp> {
        match (self, last) {
            (Due::Every(_), None) => Some(now),
            // A clock that was set back does not make anybody wait for it.
            (Due::Every(every), Some(last)) => Some((last + *every).min(now + *every)),
            (Due::At(schedule), last) => schedule.next_after(last.unwrap_or(now)).map(|next| next.at),
        }
    }

    /// Waits for it. Without any it waits for ever.
    pub async fn wait(&self, last: Option<Timestamp>, clock: &Arc<dyn Clock>) {
        let began = clock.now();
        loop {
            let now = clock.now();
            let rest = match self.next(last.or(matches!(self, Due::At(_)).then_some(began)), now) {
                Some(next) if next <= now => return,
                Some(next) => next.since(now).min(WAIT_MAX),
                None => WAIT_MAX,
            };
            tokio::time::sleep(rest).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_missed_is_made_up_for_once() {
        let at = |text: &str| -> Timestamp { text.parse().expect("a time") };
        let daily = Due::new(Duration::ZERO, Some("DTSTART;TZID=Europe/Vienna:20260101T080000\nRRULE:FREQ=DAILY"));
        let (last, now) = (at("2026-11-19T07:00:01Z"), at("2026-11-22T10:00:00Z"));
        assert_eq!(daily.next(Some(last), now), Some(at("2026-11-20T07:00:00Z")), "it is due");
        assert_eq!(daily.next(Some(now), now), Some(at("2026-11-23T07:00:00Z")));
        assert_eq!(daily.next(None, now), Some(at("2026-11-23T07:00:00Z")), "not before its first time");
        let every = Due::new(Duration::from_secs(60), None);
        assert_eq!(
            (every.next(None, now), every.next(Some(now), now)),
            (Some(now), Some(now + Duration::from_secs(60)))
        );
        assert!(Due::problems(Some("every monday"))[0].path == "schedule" && Due::problems(None).is_empty());
    }
}
