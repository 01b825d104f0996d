//! Simulated time: the paused clock of tokio, as a time of day.

use tocsin_connect::Clock;
use tocsin_model::time::Timestamp;
use tokio::time::Instant;

/// A clock that advances only with tokio's clock. Under `start_paused` it advances when all tasks wait.
#[derive(Debug, Clone, Copy)]
pub struct SimulatedClock {
    started: Instant,
    midnight: Timestamp,
}

impl SimulatedClock {
    /// Starts at midnight of 2026-03-01 (UTC), a day without a change of time zones.
    pub fn midnight() -> Self {
        let midnight = "2026-03-01T00:00:00Z".parse().expect("a timestamp");
        SimulatedClock { started: Instant::now(), midnight }
    }

    /// The time of day as `HH:MM:SS`, with the number of days if it is not the first.
    pub fn time_of_day(&self, at: Timestamp) -> String {
        let seconds = at.since(self.midnight).as_secs();
        let (day, seconds) = (seconds / 86_400, seconds % 86_400);
        let time = format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
        if day == 0 { time } else { format!("+{day}d {time}") }
    }

    /// The instant that is this number of seconds after the first midnight.
    pub fn instant(&self, seconds: u64) -> Instant {
        self.started + std::time::Duration::from_secs(seconds)
    }
}

impl Clock for SimulatedClock {
    fn now(&self) -> Timestamp {
        self.midnight + self.started.elapsed()
    }
}
