//! Parameters of a report, with their defaults and limits.

use std::{num::NonZeroU64, time::Duration};

use tocsin_model::{
    id::Name,
    problem::{Code, Problem},
    time::Timestamp,
};
use tocsin_store::journal::Window;

use crate::error::ServiceError;

/// Maximum number of heads of batches that one report looks through.
pub const SCANNED_MAX: usize = 10_000;
/// Maximum number of intervals of one report.
pub const INTERVALS_MAX: u64 = 1_500;
/// Default number of intervals.
const INTERVALS: u32 = 5;
pub(super) const MINUTE: Duration = Duration::from_secs(60);

/// Parameters of a report. Each report uses some of them, and rejects the others.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReportRequest {
    /// Id of a quantum, a batch or a subscription.
    pub id: Option<String>,
    /// Restricts to this application.
    pub application: Option<Name>,
    /// Restricts to this class.
    pub class: Option<Name>,
    /// Restricts to this rule.
    pub rule: Option<Name>,
    /// Restricts to this channel.
    pub channel: Option<Name>,
    /// Restricts to this source.
    pub source: Option<Name>,
    /// Only in this state.
    pub status: Option<String>,
    /// From this time on; reports with intervals begin at the minute that it is in.
    pub from: Option<Timestamp>,
    /// Before this time; reports with intervals end at the end of the minute that it is in.
    pub to: Option<Timestamp>,
    /// The length of an interval; whole minutes.
    pub interval: Option<Duration>,
    /// Cursor: `next` of the previous page.
    pub before: Option<String>,
    /// Maximum number of rows.
    pub limit: Option<usize>,
}

impl ReportRequest {
    /// Period of a report with intervals: the requested one, widened to whole minutes since sums are kept per minute,
    /// or the last few intervals.
    pub(super) fn window(&self, usual: Duration, now: Timestamp) -> Result<Window, ServiceError> {
        let interval = self.interval.unwrap_or(usual);
        if interval.is_zero() || !interval.as_micros().is_multiple_of(MINUTE.as_micros()) {
            return Err(ServiceError::from(
                Problem::new(
                    Code::InvalidFormat,
                    "interval",
                    "is not a number of whole minutes, such as `1m`, `15m` or `1d`",
                )
                .param("format", "duration"),
            ));
        }
        // The current minute is included up to now.
        let to = self.to.map_or_else(|| minute_after(now), minute_at_or_after);
        let from = self.from.map_or_else(|| to - interval * INTERVALS, minute_before);
        if from >= to {
            return Err(ServiceError::invalid(Code::OutOfRange, "from", "is not before `to`"));
        }
        let window = Window { from, to, interval };
        let intervals = to.since(from).as_micros().div_ceil(interval.as_micros());
        if intervals > u128::from(INTERVALS_MAX) {
            let problem = Problem::new(
                Code::TooMany,
                "interval",
                format!("parts the time into {intervals} intervals; {INTERVALS_MAX} are allowed"),
            )
            .param("limit", INTERVALS_MAX);
            return Err(ServiceError::Invalid(vec![problem.hint("make it longer, or the time shorter")]));
        }
        Ok(window)
    }

    /// Period of a list; default: no limit.
    pub(super) fn span(&self) -> Result<(Timestamp, Timestamp), ServiceError> {
        let (from, to) = (self.from.unwrap_or(Timestamp(0)), self.to.unwrap_or(Timestamp(i64::MAX)));
        if from >= to {
            return Err(ServiceError::invalid(Code::OutOfRange, "from", "is not before `to`"));
        }
        Ok((from, to))
    }

    /// Returns the requested id.
    pub(super) fn thing<T: std::str::FromStr>(&self, what: &str) -> Result<T, ServiceError> {
        let id = self.id.as_deref().unwrap_or_default();
        id.parse().map_err(|_| {
            ServiceError::from(
                Problem::new(Code::InvalidFormat, "id", format!("`{id}` is not {what}"))
                    .param("format", "id")
                    .param("value", id.to_string()),
            )
        })
    }

    pub(super) fn limit(&self) -> Result<usize, ServiceError> {
        crate::page::limit(self.limit)
    }

    /// Cursor of the previous page.
    pub(super) fn before<T: std::str::FromStr>(&self) -> Result<Option<T>, ServiceError> {
        let read = |text: &String| {
            text.parse().map_err(|_| {
                ServiceError::from(
                    Problem::new(Code::InvalidFormat, "before", format!("`{text}` is not the `next` of an answer"))
                        .param("format", "cursor")
                        .param("value", text.to_string()),
                )
            })
        };
        self.before.as_ref().map(read).transpose()
    }

    pub(super) fn means(&self, application: &Name, class: Option<&Name>) -> bool {
        is_or_any(&self.application, application) && class.is_none_or(|class| is_or_any(&self.class, class))
    }
}

pub(super) fn is_or_any(wanted: &Option<Name>, found: &Name) -> bool {
    wanted.as_ref().is_none_or(|wanted| wanted == found)
}

fn minute_before(time: Timestamp) -> Timestamp {
    Timestamp(time.0 - time.0.rem_euclid(60_000_000))
}

fn minute_at_or_after(time: Timestamp) -> Timestamp {
    let minute = minute_before(time);
    if minute == time { time } else { minute + MINUTE }
}

fn minute_after(time: Timestamp) -> Timestamp {
    minute_before(time) + MINUTE
}

/// A share of zero is undefined.
pub(super) fn share(of: u64, among: u64) -> Option<f64> {
    NonZeroU64::new(among).map(|among| of as f64 / among.get() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_are_whole() {
        assert_eq!(minute_before(Timestamp(119_999_999)), Timestamp(60_000_000));
        assert_eq!(minute_after(Timestamp(60_000_000)), Timestamp(120_000_000));
        assert_eq!(minute_at_or_after(Timestamp(60_000_000)), Timestamp(60_000_000));
        assert_eq!(minute_at_or_after(Timestamp(60_000_001)), Timestamp(120_000_000));
        assert_eq!((share(1, 0), share(1, 4)), (None, Some(0.25)));
    }
}
