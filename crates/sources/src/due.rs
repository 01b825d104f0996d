//! Poll times of a source: an interval or a schedule.

use std::{sync::Arc, time::Duration};

use tocsin_connect::Clock;
use tocsin_model::{problem::Problem, schedule::Schedule, time::Timestamp};

/// The clock may be set while waiting, so each wait is limited.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The poll times.
pub(crate) enum PollSchedule {
    /// At an interval after the last poll.
    Every(Duration),
    /// By a schedule; missed times are made up for once.
    At(Box<Schedule>),
}

impl PollSchedule {
    /// From checked options.
    pub fn new(every: Duration, schedule: Option<&str>) -> PollSchedule {
        match schedule.and_then(|text| Schedule::parse(text).ok()) {
            Some(schedule) => PollSchedule::At(Box::new(schedule)),
            None => PollSchedule::Every(every),
        }
    }

    /// Problems of a schedule.
    pub fn problems(schedule: Option<&str>) -> Vec<Problem> {
        let problems = schedule.and_then(|text| Schedule::parse(text).err()).unwrap_or_default();
        let below = |problem: Problem| Problem { path: "schedule".to_owned(), ..problem };
        problems.into_iter().map(below).collect()
    }

    /// The next time, if the last poll was at `last`.
    fn next(&self, last: Option<Timestamp>, now: Timestamp) -> Option<Timestamp> {
        match (self, last) {
            (PollSchedule::Every(_), None) => Some(now),
            // A clock that was set back does not prolong the wait.
            (PollSchedule::Every(every), Some(last)) => Some((last + *every).min(now + *every)),
            (PollSchedule::At(schedule), last) => schedule.next_after(last.unwrap_or(now)).map(|next| next.at),
        }
    }

    /// Waits for the next time; forever if there is none.
    pub async fn wait(&self, last: Option<Timestamp>, clock: &Arc<dyn Clock>) {
        let began = clock.now();
        loop {
            let now = clock.now();
            let rest = match self.next(last.or(matches!(self, PollSchedule::At(_)).then_some(began)), now) {
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
    fn missed_times_are_made_up_for_once() {
        let at = |text: &str| -> Timestamp { text.parse().expect("a time") };
        let daily =
            PollSchedule::new(Duration::ZERO, Some("DTSTART;TZID=Europe/Vienna:20260101T080000\nRRULE:FREQ=DAILY"));
        let (last, now) = (at("2026-11-19T07:00:01Z"), at("2026-11-22T10:00:00Z"));
        assert_eq!(daily.next(Some(last), now), Some(at("2026-11-20T07:00:00Z")), "it is due");
        assert_eq!(daily.next(Some(now), now), Some(at("2026-11-23T07:00:00Z")));
        assert_eq!(daily.next(None, now), Some(at("2026-11-23T07:00:00Z")), "not before its first time");
        let every = PollSchedule::new(Duration::from_secs(60), None);
        assert_eq!(
            (every.next(None, now), every.next(Some(now), now)),
            (Some(now), Some(now + Duration::from_secs(60)))
        );
        assert!(
            PollSchedule::problems(Some("every monday"))[0].path == "schedule"
                && PollSchedule::problems(None).is_empty()
        );
    }
}
