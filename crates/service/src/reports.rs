//! Reports on activity by quantum, batch, class, channel and time, and on the current state.
//!
//! Every report is a few tables with named columns, so that each front end can show all of them in the same way. They
//! are computed from the per-minute sums that the journal maintains in its commits, and from batch heads. A report
//! reads no more than it returns; only lists with a filter scan up to [`SCANNED_MAX`] heads and return a
//! cursor.

mod catalogue; // available reports and their parameters
mod quanta; // reports on quanta: runs of the matcher
mod event_batches; // reports on event batches
mod notification_batches; // reports on notification batches
mod diagnostics; // activity by class, source and channel, per interval
mod failures; // notifications that were not delivered, with the receiver's replies
mod timings; // latency percentiles by step
mod history; // totals by period
mod snapshots; // current state
mod schedules; // past and next runs of schedules
mod subscription; // notifications of one subscription

mod table; // tables of typed cells
mod walk; // paginated scans of lists, newest first

use std::{num::NonZeroU64, time::Duration};

use tocsin_model::{
    id::Name,
    problem::{Code, Problem},
    time::Timestamp,
};
use tocsin_store::journal::Window;

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
    known::Part,
};

pub use catalogue::{CATALOGUE, Description, Parameter};
pub use table::{Cell, Column, Report, Table};

/// Maximum number of heads of batches that one report looks through.
pub const SCANNED_MAX: usize = 10_000;
/// Maximum number of intervals of one report.
pub const INTERVALS_MAX: u64 = 1_500;
/// Default number of intervals.
const INTERVALS: u32 = 5;
const MINUTE: Duration = Duration::from_secs(60);

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

impl Service {
    /// Runs a report.
    ///
    /// # Errors
    /// The scope `operations:read` is missing; the report does not exist; a parameter is not supported; the id does
    /// not exist (any more).
    pub async fn report(&self, caller: &Caller, name: &str, request: &ReportRequest) -> Result<Report, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let found = CATALOGUE.iter().find(|found| found.name == name);
        let description = found.ok_or_else(|| ServiceError::Missing(format!("the report `{name}`")))?;
        description.check(request)?;
        let report = match name {
            "quantum-list" => self.quantum_list(request).await,
            "quantum-details" => self.quantum_details(request).await,
            "event-batch-list" => self.event_batch_list(request).await,
            "event-batch-details" => self.event_batch_details(request).await,
            "notification-batch-list" => self.notification_batch_list(request).await,
            "notification-batch-details" => self.notification_batch_details(request).await,
            "event-class" => self.event_class_diagnostics(request).await,
            "source" => self.source_diagnostics(request).await,
            "notification-class" => self.notification_class_diagnostics(request).await,
            "subscription-class" => self.subscription_class_diagnostics(request).await,
            "channel" => self.channel_diagnostics(request).await,
            "failed-notifications" => self.failed_notifications(request).await,
            "timings" => self.timings(request).await,
            "administration-history" => self.administration_history(request).await,
            "snapshot-applications" => self.snapshot_applications(request).await,
            "snapshot-sources" => self.snapshot_sources(request).await,
            "snapshot-events" => self.snapshot_events(request).await,
            "snapshot-subscriptions" => self.snapshot_subscriptions(request).await,
            "snapshot-channels" => self.snapshot_channels(request).await,
            "schedules" => self.schedules_report(caller, request).await,
            "scheduled-runs" => self.scheduled_runs(request).await,
            "subscription" => self.subscription_report(request).await,
            _ => unreachable!("every report of the catalogue is made here"),
        }?;
        if request.before.is_none() && report.tables.iter().all(|table| table.rows.is_empty()) {
            let ReportRequest { application, class, rule, channel, source, .. } = request;
            let (class, rule) = ((Part::Class, class.as_ref()), (Part::Rule, rule.as_ref()));
            let (channel, source) = ((Part::Channel, channel.as_ref()), (Part::Source, source.as_ref()));
            self.check_known(application.as_ref(), &[class, rule, channel, source]).await?;
        }
        let report = Report { name: description.name, ..report };
        if description.is_listed() { Ok(report) } else { report.page(request.before::<usize>()?, request.limit) }
    }

    /// Period of a report with intervals: the requested one, widened to whole minutes since sums are kept per minute,
    /// or the last few intervals.
    fn window(&self, request: &ReportRequest, usual: Duration) -> Result<Window, ServiceError> {
        let interval = request.interval.unwrap_or(usual);
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
        let to = request.to.map_or_else(|| minute_after(self.clock.now()), minute_at_or_after);
        let from = request.from.map_or_else(|| to - interval * INTERVALS, minute_before);
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
    fn span(&self, request: &ReportRequest) -> Result<(Timestamp, Timestamp), ServiceError> {
        let (from, to) = (request.from.unwrap_or(Timestamp(0)), request.to.unwrap_or(Timestamp(i64::MAX)));
        if from >= to {
            return Err(ServiceError::invalid(Code::OutOfRange, "from", "is not before `to`"));
        }
        Ok((from, to))
    }
}

impl ReportRequest {
    /// Returns the requested id.
    fn thing<T: std::str::FromStr>(&self, what: &str) -> Result<T, ServiceError> {
        let id = self.id.as_deref().unwrap_or_default();
        id.parse().map_err(|_| {
            ServiceError::from(
                Problem::new(Code::InvalidFormat, "id", format!("`{id}` is not {what}"))
                    .param("format", "id")
                    .param("value", id.to_string()),
            )
        })
    }

    fn limit(&self) -> Result<usize, ServiceError> {
        crate::page::limit(self.limit)
    }

    /// Cursor of the previous page.
    fn before<T: std::str::FromStr>(&self) -> Result<Option<T>, ServiceError> {
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

    fn means(&self, application: &Name, class: Option<&Name>) -> bool {
        is_or_any(&self.application, application) && class.is_none_or(|class| is_or_any(&self.class, class))
    }
}

fn is_or_any(wanted: &Option<Name>, found: &Name) -> bool {
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
fn share(of: u64, among: u64) -> Option<f64> {
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
