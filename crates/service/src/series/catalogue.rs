//! Names, kinds and units of all series.

use std::{sync::LazyLock, time::Duration};

use tocsin_model::receipt::Outcome;
use tocsin_store::journal::{Activity, Backlog, Count, DurationHistogram, Timing, Totals};

use super::ring::{SAMPLE_EVERY, Sample};

/// Interval of sums and durations.
pub(super) const MINUTE: Duration = Duration::from_secs(60);

/// Kind of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeriesKind {
    /// Sum over an interval.
    Sum,
    /// Statistic of durations in an interval.
    Duration,
    /// Mean of the samples in an interval.
    Gauge,
}

impl SeriesKind {
    /// Name of the kind.
    pub fn word(self) -> &'static str {
        match self {
            SeriesKind::Sum => "sum",
            SeriesKind::Duration => "duration",
            SeriesKind::Gauge => "gauge",
        }
    }
}

/// Unit of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeriesUnit {
    /// A number of things.
    Count,
    /// Bytes.
    Bytes,
    /// Milliseconds.
    Millis,
    /// Seconds.
    Seconds,
    /// Percent.
    Percent,
    /// A factor.
    Factor,
}

impl SeriesUnit {
    /// Name of the unit.
    pub fn word(self) -> &'static str {
        match self {
            SeriesUnit::Count => "count",
            SeriesUnit::Bytes => "bytes",
            SeriesUnit::Millis => "ms",
            SeriesUnit::Seconds => "seconds",
            SeriesUnit::Percent => "percent",
            SeriesUnit::Factor => "factor",
        }
    }
}

/// Description of a series.
#[derive(Debug)]
pub struct SeriesDescription {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: SeriesKind,
    /// Its unit.
    pub unit: SeriesUnit,
    /// Measured quantity.
    pub description: String,
    /// Names of its filters.
    pub filters: &'static [&'static str],
    pub(super) measure: Measure,
}

impl PartialEq for SeriesDescription {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl SeriesDescription {
    /// Shortest interval.
    pub fn step_min(&self) -> Duration {
        match self.measure {
            Measure::Gauge(_) | Measure::Sum(_, Some(_)) => SAMPLE_EVERY,
            Measure::Sum(_, None) | Measure::Duration(..) => MINUTE,
        }
    }

    pub(super) fn is_gauge(&self) -> bool {
        self.kind == SeriesKind::Gauge
    }
}

/// Measurement of a series.
pub(super) enum Measure {
    /// Sum of activity; with the total of which samples are kept, if there is one.
    Sum(fn(&Activity) -> u64, Option<fn(&Totals) -> u64>),
    Duration(Timing, Statistic),
    Gauge(fn(&Sample) -> Option<f64>),
}

impl std::fmt::Debug for Measure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Measure::Sum(..) => "Sum",
            Measure::Duration(..) => "Duration",
            Measure::Gauge(_) => "Gauge",
        })
    }
}

/// Statistic of durations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Statistic {
    Mean,
    Percentile(u8),
}

impl Statistic {
    const ALL: [(Statistic, &'static str, &'static str); 4] = [
        (Statistic::Mean, "mean", "Mean"),
        (Statistic::Percentile(50), "p50", "Median"),
        (Statistic::Percentile(95), "p95", "95th percentile"),
        (Statistic::Percentile(99), "p99", "99th percentile"),
    ];

    /// Its value in milliseconds.
    pub(super) fn of(self, durations: &DurationHistogram) -> Option<f64> {
        let found = match self {
            Statistic::Mean => durations.average(),
            Statistic::Percentile(percent) if durations.count > 0 => durations.percentile(f64::from(percent) / 100.0),
            Statistic::Percentile(_) => None,
        };
        found.map(|duration| duration.as_secs_f64() * 1_000.0)
    }
}

const OF_EVENTS: &[&str] = &["application", "class"];
const OF_NOTIFICATIONS: &[&str] = &["application", "class", "rule", "channel"];
const OF_FIRINGS: &[&str] = &["application", "rule"];

/// All series.
pub static SERIES: LazyLock<Vec<SeriesDescription>> =
    LazyLock::new(|| sums().chain(outcomes()).chain(durations()).chain(gauges()).collect());

fn sums() -> impl Iterator<Item = SeriesDescription> {
    type Row = (&'static str, &'static str, &'static [&'static str], fn(&Activity) -> u64, Option<fn(&Totals) -> u64>);
    let rows: [Row; 11] = [
        (
            "event_batches",
            "Event batches accepted.",
            OF_EVENTS,
            |activity| activity.count(Count::EventBatches),
            Some(|totals| totals.event_batches),
        ),
        (
            "events",
            "Events accepted.",
            OF_EVENTS,
            |activity| activity.count(Count::Events),
            Some(|totals| totals.events),
        ),
        ("event_bytes", "Packed bytes of events.", OF_EVENTS, |activity| activity.count(Count::EventBytes), None),
        (
            "matched_batches",
            "Event batches matched.",
            OF_EVENTS,
            |activity| activity.count(Count::MatchedBatches),
            None,
        ),
        (
            "failed_batches",
            "Event batches set aside because matching failed.",
            OF_EVENTS,
            |activity| activity.count(Count::FailedBatches),
            None,
        ),
        (
            "notification_batches",
            "Notification batches created.",
            OF_NOTIFICATIONS,
            |activity| activity.count(Count::NotificationBatches),
            Some(|totals| totals.notification_batches),
        ),
        (
            "notifications",
            "Notifications created.",
            OF_NOTIFICATIONS,
            |activity| activity.count(Count::Notifications),
            Some(|totals| totals.notifications),
        ),
        (
            "closed_batches",
            "Notification batches of which the last notification was closed.",
            OF_NOTIFICATIONS,
            |activity| activity.count(Count::ClosedBatches),
            None,
        ),
        (
            "attempts",
            "Attempts that contacted a receiver.",
            OF_NOTIFICATIONS,
            Activity::attempts,
            Some(|totals| {
                let of = |outcome: Outcome| totals.attempts[outcome as usize];
                of(Outcome::Delivered) + of(Outcome::Deferred) + of(Outcome::Refused)
            }),
        ),
        ("firings_failed", "Rule firings that failed.", OF_FIRINGS, |sums| sums.count(Count::FiringsFailed), None),
        (
            "firings_skipped",
            "Rule firings that were skipped.",
            OF_FIRINGS,
            |sums| sums.count(Count::FiringsSkipped),
            None,
        ),
    ];
    rows.into_iter().map(|(name, description, filters, sum, total)| SeriesDescription {
        name: name.to_owned(),
        kind: SeriesKind::Sum,
        unit: if name == "event_bytes" { SeriesUnit::Bytes } else { SeriesUnit::Count },
        description: description.to_owned(),
        filters,
        measure: Measure::Sum(sum, total),
    })
}

fn outcomes() -> impl Iterator<Item = SeriesDescription> {
    Outcome::ALL.into_iter().map(|outcome| {
        let (description, measure): (_, Measure) = match outcome {
            Outcome::Delivered => {
                ("Successful attempts.", of_outcome(|sums| sums.count(Count::Delivered), |totals| totals.attempts[0]))
            }
            Outcome::Deferred => (
                "Attempts that failed temporarily.",
                of_outcome(|sums| sums.count(Count::Deferred), |totals| totals.attempts[1]),
            ),
            Outcome::Refused => (
                "Attempts that were refused permanently.",
                of_outcome(|sums| sums.count(Count::Refused), |totals| totals.attempts[2]),
            ),
            Outcome::Expired => {
                ("Notifications expired.", of_outcome(|sums| sums.count(Count::Expired), |totals| totals.attempts[3]))
            }
            Outcome::Suspended => (
                "Notifications suspended for an operator.",
                of_outcome(|sums| sums.count(Count::Suspended), |totals| totals.attempts[4]),
            ),
            Outcome::Ended => (
                "Notifications closed by an operator.",
                of_outcome(|sums| sums.count(Count::Ended), |totals| totals.attempts[5]),
            ),
        };
        SeriesDescription {
            name: outcome.word().to_owned(),
            kind: SeriesKind::Sum,
            unit: SeriesUnit::Count,
            description: description.to_owned(),
            filters: OF_NOTIFICATIONS,
            measure,
        }
    })
}

/// An outcome, whose place in the totals is that in `Outcome::ALL`.
fn of_outcome(sum: fn(&Activity) -> u64, total: fn(&Totals) -> u64) -> Measure {
    Measure::Sum(sum, Some(total))
}

fn durations() -> impl Iterator<Item = SeriesDescription> {
    Timing::ALL.into_iter().flat_map(|timing| {
        let (filters, what) = match timing {
            Timing::Collection => (OF_EVENTS, "from the first byte of an event batch to its acceptance"),
            Timing::Pickup => (OF_EVENTS, "from the acceptance of an event batch to the start of its match"),
            Timing::Generation => (OF_NOTIFICATIONS, "from the acceptance of events to their notification batch"),
            Timing::Wait => (OF_NOTIFICATIONS, "from a notification batch to its first attempt"),
            Timing::Delivery => (OF_NOTIFICATIONS, "from the first attempt of a notification batch to its last answer"),
            Timing::Answer => (OF_NOTIFICATIONS, "from an attempt to the answer of the receiver"),
            Timing::EndToEnd => (OF_NOTIFICATIONS, "from the acceptance of an event to the delivery of a notification"),
        };
        Statistic::ALL.into_iter().map(move |(statistic, suffix, title)| SeriesDescription {
            name: format!("{}_{suffix}", timing.word()),
            kind: SeriesKind::Duration,
            unit: SeriesUnit::Millis,
            description: format!("{title} of the time {what}."),
            filters,
            measure: Measure::Duration(timing, statistic),
        })
    })
}

fn gauges() -> impl Iterator<Item = SeriesDescription> {
    fn of(count: u64) -> Option<f64> {
        Some(count as f64)
    }
    fn age(sample: &Sample) -> Option<f64> {
        let Backlog { oldest_event, .. } = &sample.backlog;
        Some(oldest_event.map_or(0.0, |oldest| sample.at.since(oldest).as_secs_f64()))
    }
    type Row = (&'static str, SeriesUnit, &'static str, fn(&Sample) -> Option<f64>);
    let rows: [Row; 9] = [
        ("waiting_event_batches", SeriesUnit::Count, "Event batches not yet matched.", |found| {
            of(found.backlog.event_batches)
        }),
        ("waiting_events", SeriesUnit::Count, "Events not yet matched.", |found| of(found.backlog.events)),
        ("failed_event_batches", SeriesUnit::Count, "Event batches set aside because matching failed.", |found| {
            of(found.backlog.failed_batches)
        }),
        ("waiting_notifications", SeriesUnit::Count, "Notifications of open work items.", |found| {
            of(found.backlog.notifications)
        }),
        ("work_items", SeriesUnit::Count, "Open work items.", |found| of(found.backlog.work_items)),
        ("suspended_notifications", SeriesUnit::Count, "Suspended notifications.", |found| of(found.backlog.suspended)),
        (
            "oldest_event_seconds",
            SeriesUnit::Seconds,
            "Age of the oldest event batch not yet matched; 0 without one.",
            age,
        ),
        ("headroom", SeriesUnit::Factor, "Least factor by which the load of a role or resource can grow.", |found| {
            found.headroom
        }),
        ("busiest_percent", SeriesUnit::Percent, "Utilisation of the busiest resource.", |found| {
            found.busiest.map(|used| used * 100.0)
        }),
    ];
    rows.into_iter().map(|(name, unit, description, gauge)| SeriesDescription {
        name: name.to_owned(),
        kind: SeriesKind::Gauge,
        unit,
        description: description.to_owned(),
        filters: &[],
        measure: Measure::Gauge(gauge),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_series_has_a_name_of_its_own() {
        let names: HashSet<&str> = SERIES.iter().map(|found| found.name.as_str()).collect();
        assert_eq!(names.len(), SERIES.len());
        assert_eq!(SERIES.len(), 11 + 6 + 28 + 9);
    }

    #[test]
    fn totals_of_outcomes_are_in_their_places() {
        for (at, outcome) in Outcome::ALL.into_iter().enumerate() {
            let mut totals = Totals::default();
            totals.attempts[at] = 7;
            let found = SERIES.iter().find(|found| found.name == outcome.word()).expect("a series");
            let Measure::Sum(_, Some(total)) = found.measure else { panic!("{outcome:?} has a total") };
            assert_eq!(total(&totals), 7, "{outcome:?}");
        }
    }
}
